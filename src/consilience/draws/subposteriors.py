"""The subposteriors of all sites side by side, in unconstrained coordinates, and their Gaussian product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from consilience.checks import Array, Labels, symmetric_part
from consilience.draws.diagnostics import Overlap, overlap, separate_modes, skewness
from consilience.draws.draws import Draws
from consilience.draws.priors import CommonFactor

MIN_DRAWS_PER_COORDINATE = 5
"""Draws for each coordinate that a covariance needs: the inverse of one of n draws is too large by (n - 1)/(n - D - 2),
a quarter at five draws for each of D coordinates."""

SINGULAR = 1e-10
"""Smallest eigenvalue of the correlation matrix of variables that are no functions of each other. Chosen by hand: the
square of the six digits that CmdStan writes, and two to spare."""


@dataclass(frozen=True, eq=False)
class Subposteriors:
    """Draws of J sites that were found to agree.

    Parameters
    ----------
    names : tuple of str
        Names of the sites.
    sites : tuple of Draws
        Their draws.
    """

    names: tuple[str, ...]
    sites: tuple[Draws, ...]

    @property
    def n_sites(self) -> int:
        """Number J of sites."""
        return len(self.sites)

    @property
    def n_coordinates(self) -> int:
        """Number D of coordinates."""
        return self.sites[0].n_coordinates

    @property
    def n_draws(self) -> int:
        """Least number of draws of a site."""
        return min(site.n_draws for site in self.sites)

    @cached_property
    def draws(self) -> tuple[Array, ...]:
        """All draws of each site (T_j, D)."""
        return tuple(site.unconstrained.reshape(site.n_draws, -1) for site in self.sites)

    @cached_property
    def means(self) -> Array:
        """Means (J, D)."""
        return np.stack([draws.mean(axis=0) for draws in self.draws])

    @cached_property
    def covariances(self) -> Array:
        """Covariances (J, D, D)."""
        return np.stack([np.atleast_2d(np.cov(draws, rowvar=False)) for draws in self.draws])

    @cached_property
    def precisions(self) -> Array:
        """Inverse covariances (J, D, D)."""
        return symmetric_part(np.linalg.inv(self.covariances).astype(np.float64))

    @cached_property
    def factor(self) -> CommonFactor:
        """What every site's density has once."""
        return self.sites[0].common_factor()

    @cached_property
    def density_product(self) -> tuple[Array, Array]:
        """Mean (D,) and precision (D, D) of the product of Gaussians with the sites' moments; nothing divided out."""
        precision = self.precisions.sum(axis=0)
        mean = np.linalg.solve(precision, np.einsum("jab,jb->a", self.precisions, self.means))
        return mean, precision

    @cached_property
    def product(self) -> tuple[Array, Array]:
        """Mean and precision of the full posterior: the product, what is common divided out J - 1 times.

        Raises
        ------
        InputError
            Where nothing proper is left.
        """
        return self.factor.divide_out(*self.density_product, self.n_sites - 1)

    @cached_property
    def skewness(self) -> Array:
        """Skewness (J, D)."""
        return np.stack([skewness(site.unconstrained) for site in self.sites])

    @cached_property
    def bimodal(self) -> tuple[Labels, ...]:
        """Coordinates with two modes that are apart, by site."""
        return tuple(separate_modes(site.unconstrained) for site in self.sites)

    @cached_property
    def overlap(self) -> Overlap:
        """How far sites overlap."""
        return overlap(self.means, self.covariances)

    def called(self, coordinates: Sequence[int] | Labels, limit: int = 5) -> str:
        """Return the names of some coordinates."""
        names = self.sites[0].coordinate_names
        more = f", ... ({len(coordinates)})" if len(coordinates) > limit else ""
        return ", ".join(names[place] for place in list(coordinates)[:limit]) + more

    def singular_sites(self) -> list[int]:
        """Return the sites whose coordinates are linear functions of each other."""
        singular = []
        for number, covariance in enumerate(self.covariances):
            scale = np.sqrt(np.diagonal(covariance))
            if np.linalg.eigvalsh(covariance / np.outer(scale, scale))[0] < SINGULAR:
                singular.append(number)
        return singular


def standard_draws(count: int, dim: int, rng: np.random.Generator) -> Array:
    """Return normal draws (count, dim) whose mean is 0 and whose covariance is 1, where there are enough of them.

    So that what is drawn has exactly the moments that were computed, and Monte Carlo adds no error to these.
    """
    draws = rng.standard_normal((count, dim))
    if count <= dim + 1:
        return draws
    centred = draws - draws.mean(axis=0)
    factor = np.linalg.cholesky(np.atleast_2d(np.cov(centred, rowvar=False)))
    standard: Array = np.linalg.solve(factor, centred.T).T
    return standard


def gaussian_draws(mean: Array, precision: Array, count: int, rng: np.random.Generator) -> Array:
    """Return draws (count, D) with exactly this mean and the covariance precision^-1."""
    factor = np.linalg.cholesky(precision)  # Lam = L L^T, and L^-T z has covariance Lam^-1
    result: Array = mean + np.linalg.solve(factor.T, standard_draws(count, len(mean), rng).T).T
    return result


def some_draws(draws: Array, count: int, rng: np.random.Generator) -> Array:
    """Return `count` draws in random order, each at most once where there are enough."""
    order = rng.permutation(len(draws))
    return draws[np.resize(order, count)]
