"""The random-effects average of subposteriors: what sites have in common where they differ.

Site j's likelihood is a Gaussian with the moments of its draws, what every site's density has once taken off. Sites'
parameters are drawn from a law about a common mean, whose posterior is that of ``posteriors.hierarchical_average``:
heterogeneity by Paule and Mandel, the prior counted once, intervals of Student's t. Where sites agree it is the
Gaussian product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from consilience.checks import Array
from consilience.core.progress import Progress
from consilience.draws.methods.base import CombinedDraws, DrawsMethod
from consilience.draws.subposteriors import Subposteriors, gaussian_draws
from consilience.errors import InputError
from consilience.families import Gaussian
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.hierarchical_average import hierarchical_average
from consilience.posteriors.posterior import Posterior


@dataclass(frozen=True)
class HierarchicalDraws(DrawsMethod):
    """Average the subposteriors under random effects between sites: draws of the mean of the sites' parameters.

    References
    ----------
    Paule and Mandel (1982); docs/concepts/average.md.
    """

    name: ClassVar[str] = "hierarchical"
    summary: ClassVar[str] = "average the subposteriors under random effects between sites"
    needs: ClassVar[str] = "draws of the same parameters, and what of the prior they hold; best five sites or more"
    gives: ClassVar[str] = "Gaussian draws of what sites have in common; the product where they agree"
    paper: ClassVar[str] = "paule1982"
    assumes_agreement: ClassVar[bool] = False

    def check(self, stack: Subposteriors) -> None:
        """Raise InputError where a site says less than its prior."""
        self._likelihoods(stack)

    def _likelihoods(self, stack: Subposteriors) -> tuple[Array, Array]:
        """Return natural parameters of what each site says (J, P), and of what all have once (P,).

        c is replaced by its quadratic at the mean of the product, so that taking it off J times and adding it once is
        the Gaussian product.
        """
        family = Gaussian(stack.n_coordinates)
        precision, shift = stack.factor.quadratic(stack.product[0])
        common = np.concatenate([shift, -0.5 * precision.ravel()])
        site_naturals = family.to_natural(mean=stack.means, covariance=stack.covariances)
        for name, values in zip(stack.names, np.linalg.eigvalsh(stack.precisions - precision), strict=True):
            if values[0] <= 0:
                text = "says less of some coordinate than its prior and Jacobian: no likelihood is left without these"
                remedy = (
                    "give it more rows, or take `method='consensus_mc'`, which divides them out of the product alone"
                )
                raise InputError(name, text, remedy, "E-NEEDED")
        return site_naturals - common, common

    def combine(self, stack: Subposteriors, rng: np.random.Generator, progress: Progress) -> CombinedDraws:
        """Return draws of the common mean."""
        family = Gaussian(stack.n_coordinates)
        likelihoods, common = self._likelihoods(stack)
        ensemble = Ensemble.of([Posterior(family, row[None]) for row in likelihoods], None, stack.names)
        rows = np.stack([posterior.natural[0] for posterior in ensemble.posteriors])
        total = common + likelihoods.sum(axis=0)
        labels = np.zeros(len(rows), dtype=np.int64)
        natural, record = hierarchical_average(ensemble, labels, 1, rows, common, lambda _: total[None].copy())
        fused = family.from_natural(natural)
        draws = gaussian_draws(fused["mean"][0], np.linalg.inv(fused["covariance"][0]), self.count(stack), rng)
        return CombinedDraws(draws, {"random_effects": record.details()})
