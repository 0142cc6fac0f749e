"""The Wasserstein barycenter of subposteriors whose likelihoods were raised to the power J (WASP).

Each site samples the prior times its likelihood^J: a posterior as wide as the full one, about a place of its own. Their
Wasserstein-2 barycenter among laws of one location-scatter family has the mean of the means, the Bures barycenter S of
the covariances (``families.wasserstein``), and is the image of every site under

    T_j(theta) = m + S_j^-1/2 (S_j^1/2 S S_j^1/2)^1/2 S_j^-1/2 (theta - mu_j).

In one dimension it is the mean of quantile functions, for any laws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from consilience.checks import Array
from consilience.core.progress import Progress
from consilience.draws.methods.base import CombinedDraws, DrawsMethod
from consilience.draws.subposteriors import Subposteriors
from consilience.errors import Problem
from consilience.families.wasserstein import bures_barycenter, matrix_square_root


@dataclass(frozen=True)
class WASP(DrawsMethod):
    """Take the Wasserstein barycenter of subposteriors with likelihood^J and the whole prior.

    References
    ----------
    Srivastava, Cevher, Dinh and Dunson (2015).
    """

    name: ClassVar[str] = "wasp"
    summary: ClassVar[str] = "take the Wasserstein barycenter of subposteriors with likelihood^J"
    needs: ClassVar[str] = "draws under the whole prior and the likelihood to the power of the number of sites"
    gives: ClassVar[str] = "draws of the barycenter; widths are right only with that power"
    paper: ClassVar[str] = "srivastava2015"
    needs_prior: ClassVar[bool] = False
    multiplies: ClassVar[bool] = False
    assumes_agreement: ClassVar[bool] = False
    assumes_normality: ClassVar[bool] = False

    def _power_problems(self, stack: Subposteriors) -> list[Problem]:
        """Return the sites whose likelihood was not raised to J: their widths would stay."""
        n = stack.n_sites
        expected = f"expected {n}, the number of sites: the barycenter would be too wide or too narrow"
        remedy = f"sample with likelihood^{n} and the whole prior, and state `likelihood_power={n}`"
        return [
            Problem(name, f"raised its likelihood to {site.likelihood_power:g}, {expected}", remedy)
            for name, site in zip(stack.names, stack.sites, strict=True)
            if abs(site.likelihood_power - n) > 1e-6 * n
        ]

    def check(self, stack: Subposteriors) -> None:
        """Check nothing: a barycenter of proper laws is proper."""

    def combine(self, stack: Subposteriors, rng: np.random.Generator, progress: Progress) -> CombinedDraws:
        """Return draws of the barycenter."""
        count = self.count(stack)
        if stack.n_coordinates == 1:
            levels = (np.arange(count) + 0.5) / count
            quantiles = [np.quantile(draws, levels, axis=0, method="hazen") for draws in stack.draws]
            return CombinedDraws(np.mean(quantiles, axis=0)[rng.permutation(count)])
        weights = np.full(stack.n_sites, 1.0 / stack.n_sites)
        mean, covariance = stack.means.mean(axis=0), bures_barycenter(stack.covariances, weights)
        order = rng.permutation(stack.n_draws)
        parts: list[Array] = []
        for j, draws in enumerate(stack.draws):
            root = matrix_square_root(stack.covariances[j])
            inverse = np.linalg.inv(root)
            transport = inverse @ matrix_square_root(root @ covariance @ root) @ inverse
            # Every site gives the draws of other places, so that copies of one file give that file back.
            places = np.resize(order, count)[j :: stack.n_sites]
            parts.append(mean + (draws[places] - stack.means[j]) @ transport)
        return CombinedDraws(rng.permutation(np.concatenate(parts)))
