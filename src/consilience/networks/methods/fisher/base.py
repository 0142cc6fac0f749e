"""Base class of Fisher merging methods: one Gaussian posterior for each site.

A subclass merges the sites' Gaussians, N(theta_k, P_k^-1), in the common coordinates that ``informed`` finds
(``precision``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from consilience.checks import is_number
from consilience.core.methods import Requirement
from consilience.errors import Problem
from consilience.networks.details import NetworkDetails
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.method import NetworkEnsemble
from consilience.networks.methods.fisher.informed import InformedMethod
from consilience.networks.methods.fisher.parameter_vectors import AlignedSites
from consilience.networks.methods.fisher.precision import LowRankPrecision, PosteriorProduct
from consilience.networks.network import to_numpy

Prior = Literal["removed", "kept", "ignored"]

SHRINKAGE = 0.9
"""Shrinkage for networks that are not linear in their parameters. Between 0.5 and 0.95 validation data chose otherwise
from task to task; 0.9 was never bad (docs/adr/0013). Test losses (docs/fisher.md): for three networks of 400 parameters
1.34 without shrinkage, 0.22 with 0.9, 0.31 for the diagonal merge; on digits 0.197 without, 0.191 with 0.5, 0.206 with
0.9."""

PRIOR_ROUNDING = 1e-6
"""Prior precisions that differ by no more than this fraction are equal, because numbers of observations times a weight
decay are rounded. Chosen by hand; nobody has measured other values."""


@dataclass(frozen=True)
class FisherMethod(InformedMethod, ABC):
    """Base class of methods that weigh parameters by the Fisher information of the sites' data.

    Its fields are options that ``FisherMerging`` documents.
    """

    prior: Prior | None = None
    prior_precision: float | None = None
    shrinkage: float | None = None
    normalize: bool = False

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield ("prior", self.prior in (None, "removed", "kept", "ignored"), "'removed', 'kept' or 'ignored'")
        alpha = self.prior_precision
        yield ("prior_precision", alpha is None or is_number(alpha), "a number, not negative, or None")
        is_removed = self.prior in (None, "removed")
        yield ("prior_precision", alpha is None or is_removed, "left out unless the sites' priors are removed")
        rho = self.shrinkage
        yield ("shrinkage", rho is None or (is_number(rho) and 0 <= rho <= 1), "a number from 0 to 1, or None")

    @abstractmethod
    def default_prior(self, sites: Sequence[FisherInformation]) -> Prior:
        """Return the treatment of the sites' priors where the user did not choose one."""

    def _mismatches(self, ensemble: NetworkEnsemble) -> list[Problem]:
        """Return problems of sites whose information or prior is not comparable with the first's."""
        return super()._mismatches(ensemble) or self._prior_problems(ensemble.information or ())

    def _prior_problems(self, sites: Sequence[FisherInformation]) -> list[Problem]:
        """Return problems of priors: precisions that must be known and are not, or that differ."""
        prior = self._prior_treatment(sites)
        if prior == "ignored":
            return []
        if unknown := [site.name for site in sites if site.prior_precision is None]:
            text = "says no prior precision, which is needed to count the prior once"
            remedy = "compute it with `consilience.fisher(..., prior_precision=...)`, or set `prior='ignored'`"
            return [Problem(", ".join(unknown), text, remedy, "E-NEEDED")]
        precisions = [float(site.prior_precision or 0.0) for site in sites]
        if prior == "removed" and not _are_equal(precisions) and self.prior_precision is None:
            listed = ", ".join(f"{precision:g}" for precision in sorted(precisions))
            text = f"the sites were trained with different priors (precisions {listed})"
            remedy = "give `prior_precision=`, that of the fused network, or set `prior='kept'`"
            return [Problem("", text, remedy)]
        return []

    def _prior_treatment(self, sites: Sequence[FisherInformation]) -> Prior:
        """Return the treatment of the sites' priors.

        It is the option `prior`, or "removed" where the fused network's prior precision is an option, or the method's
        default. Sites of one weight decay and different numbers of observations have different priors, whose product is
        that of training with this decay on all observations: so different ones are kept.
        """
        if self.prior is not None or self.prior_precision is not None:
            return self.prior or "removed"
        default = self.default_prior(sites)
        precisions = [site.prior_precision for site in sites]
        are_known = None not in precisions
        if default == "removed" and are_known and not _are_equal([float(alpha or 0.0) for alpha in precisions]):
            return "kept"
        return default

    def effective_shrinkage(self, sites: AlignedSites) -> float:
        """Return the shrinkage rho of off-diagonal information: none where networks are linear in their parameters."""
        if self.shrinkage is not None:
            return self.shrinkage
        return 0.0 if all(information.linear for information in sites.information) else SHRINKAGE

    def posterior_product(self, sites: AlignedSites) -> tuple[PosteriorProduct, NetworkDetails]:
        """Return the product of the sites' Gaussian posteriors, and details and notes about it.

        With "removed" priors the surplus is excess = sum_k w_k alpha_k - alpha: K - 1 priors in (5), whose printed sum
        has (k - 1) / K where K - 1 in all is meant.
        """
        prior, shrinkage = self._prior_treatment(sites.information), self.effective_shrinkage(sites)
        alphas = [
            0.0 if prior == "ignored" else float(information.prior_precision or 0.0)
            for information in sites.information
        ]
        precisions = tuple(
            LowRankPrecision.of(information, sites.layout, shrinkage, alpha)
            for information, alpha in zip(sites.information, alphas, strict=True)
        )
        counts = self._counts(sites)
        # sum_k w_k alpha_k is in the product; one prior, the fused network's, is to be left.
        total_prior = sum(count * alpha for count, alpha in zip(counts, alphas, strict=True))
        fused_prior = alphas[0] if self.prior_precision is None else self.prior_precision
        excess = total_prior - fused_prior if prior == "removed" else 0.0
        details: NetworkDetails = {"prior": prior, "shrinkage": shrinkage}
        if self.prior is None and self.prior_precision is None and alphas[0] > 0:
            details["notes"] = [_KEPT_NOTE if prior == "kept" else _REMOVED_NOTE]
        return PosteriorProduct(sites.means, precisions, counts, excess), details

    def _counts(self, sites: AlignedSites) -> list[float]:
        """Return how often each site counts, w_k: 1 for the site of largest weight, less for the others."""
        counts = sites.weights  # (J,)
        if self.normalize:  # by the norm of the diagonal, as Matena and Raffel do
            norms = [
                float(np.linalg.norm(to_numpy(sites.layout.vector(information.diagonal))))
                for information in sites.information
            ]
            counts = counts / np.array(norms)
        # Relative to the largest, so that the merge of one site alone is that site, with its prior counted once.
        relative: list[float] = (counts / counts.max()).tolist()
        return relative


_KEPT_NOTE = (
    "the sites' priors differ, so all of them were kept, which is right where all had one weight decay; "
    "`prior_precision=` takes out all but that of the fused network"
)
_REMOVED_NOTE = (
    "the sites have one prior, so it was counted once; where it stands for one weight decay of mean losses, "
    "`prior='kept'` is what training on all data with that decay would be"
)


def _are_equal(precisions: Sequence[float]) -> bool:
    """Return whether prior precisions are equal up to rounding."""
    return max(precisions) - min(precisions) <= PRIOR_ROUNDING * max(precisions)
