"""What merging by information shares: units aligned first, what sites know moved with them, one Gaussian for each site.

Networks of different starts have their units elsewhere. Renumbering units (or turning their sign) leaves a network's
posterior what it was, in other coordinates: means, factors and diagonals move together (`FisherInformation.moved`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, final

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import AnyArray, Array, is_count, is_number
from consilience.core.progress import Progress
from consilience.core.status import Status
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.method import Alignment, NetworkEnsemble, NetworkMethod, average
from consilience.networks.methods.fisher.parameter_vectors import Sites, as_given, gathered_sites, mean_cosine
from consilience.networks.methods.fisher.precision import Posteriors, Precision
from consilience.networks.methods.weight_matching.match import matched
from consilience.networks.network import identity_transports, to_numpy
from consilience.networks.symmetry.scaling import balance_scales, shared_groups
from consilience.networks.symmetry.transport import Transport

Prior = Literal["removed", "kept", "ignored"]

SHRINKAGE = 0.9
"""For networks that are not linear in their parameters; see decision record 13."""

_APART = 0.2
"""Networks of one start that were trained apart have a higher cosine than this, those of different starts near none."""

_ROUNDING = 1e-6
"""Precisions that differ by no more than this share are the same: numbers of observations times a decay are rounded."""


@dataclass(frozen=True, eq=False)
class Merged:
    """A merged vector and how it was found.

    Parameters
    ----------
    vector
        The parameters (P,).
    objective, history, status, details
        As in Alignment.
    """

    vector: AnyArray
    objective: float
    history: Array = field(default_factory=lambda: np.zeros(0))
    status: Status = Status.CONVERGED
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class InformedMethod(NetworkMethod, ABC):
    """A method that weighs parameters by what the sites' data say of them."""

    optional_symmetry: ClassVar[bool] = True

    prior: Prior | None = None
    prior_precision: float | None = None
    shrinkage: float | None = None
    normalize: bool = False
    aligned: bool | None = None
    restarts: int = 2
    tolerance: float = 1e-8
    max_iterations: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("prior", self.prior in (None, "removed", "kept", "ignored"), "'removed', 'kept' or 'ignored'")
        own = self.prior_precision
        self.require("prior_precision", own is None or is_number(own), "a number, not negative, or None")
        removed = self.prior in (None, "removed")
        self.require("prior_precision", own is None or removed, "left out unless the sites' priors are removed")
        rho = self.shrinkage
        self.require("shrinkage", rho is None or (is_number(rho) and 0 <= rho <= 1), "a number from 0 to 1, or None")
        self.require("normalize", isinstance(self.normalize, bool), "true or false")
        self.require("aligned", self.aligned is None or isinstance(self.aligned, bool), "true, false or None")
        self.require("restarts", is_count(self.restarts), "a positive integer")
        self.require("tolerance", is_number(self.tolerance) and self.tolerance > 0, "a positive number")
        self.require("max_iterations", is_count(self.max_iterations), "a positive integer")

    @property
    def averages(self) -> bool:
        """What sites say of their own weights decides, not how near they are to others."""
        return False

    @property
    def wants_information(self) -> bool:
        """Whether it needs Fisher information of the networks."""
        return True

    @abstractmethod
    def merge(self, sites: Sites, rng: np.random.Generator, progress: Progress) -> Merged:
        """Return the merged parameters."""

    @abstractmethod
    def prior_of(self, sites: Sequence[FisherInformation]) -> Prior:
        """Return what is done about the prior, where nobody says."""

    def refuse(self, ensemble: NetworkEnsemble) -> list[str]:
        """Return why these networks cannot be merged with what is known of them, a line each."""
        ensemble = as_given(ensemble)
        reasons = super().refuse(ensemble)
        if self.aligned and not ensemble.symmetry.all_groups:
            reasons.append(
                f"{self.name}: aligned=True needs to know which axes move together; give example= or symmetry="
            )
        if not self.wants_information:
            return reasons
        if ensemble.information is None:
            return [
                *reasons,
                f"{self.name}: needs fishers=, what consilience.fisher computed at each site, one for each network "
                "(or their files among the models)",
            ]
        for network, own in zip(ensemble.networks, ensemble.information, strict=True):
            reasons += own.unfit(network)
        found = self._unlike(ensemble) or self._without_prior(ensemble.information)
        return reasons or found or self.refuse_information(ensemble.information)

    def refuse_information(self, sites: Sequence[FisherInformation]) -> list[str]:
        """Return what else is in the way of merging by what sites know, a line each."""
        del sites
        return []

    def _unlike(self, ensemble: NetworkEnsemble) -> list[str]:
        """Return what tells that the sites counted differently."""
        own = [one.renamed(ensemble.symmetry) for one in ensemble.information or ()]
        first, found = own[0], []
        for other in own[1:]:
            if odd := sorted(set(first.residual) ^ set(other.residual)):
                found.append(
                    f"{other.name}: informs other parameters than {first.name} ({', '.join(odd[:3])}); freeze the same "
                    "ones at all sites"
                )
            for what, one, two in (
                ("is a sum over observations", first.observations is not None, other.observations is not None),
                ("has the published code's sums", first.compat, other.compat),
                ("likelihood", first.likelihood, other.likelihood),
            ):
                if one != two:
                    found.append(
                        f"{other.name}: is counted on another scale than {first.name} ({what}: {two}, there {one}); "
                        "compute all with consilience.fisher and the same options"
                    )
        return found

    def _without_prior(self, sites: Sequence[FisherInformation]) -> list[str]:
        """Return whose prior must be known and is not, or differs."""
        prior = self._prior(sites)
        if prior == "ignored":
            return []
        if silent := [one.name for one in sites if one.prior_precision is None]:
            return [
                f"{', '.join(silent)}: says no prior precision, which is needed to count the prior once; compute it "
                "with consilience.fisher(..., prior_precision=...), or set prior='ignored'"
            ]
        told = [float(one.prior_precision or 0.0) for one in sites]
        if prior == "removed" and not _same(told) and self.prior_precision is None:
            return [
                f"the sites were trained with different priors (precisions "
                f"{', '.join(f'{one:g}' for one in sorted(told))}); "
                "give prior_precision=, that of the fused network, or set prior='kept'"
            ]
        return []

    @final
    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return aligned units, and the merged parameters; what has no information (buffers) is averaged."""
        aligning, merging = rng.spawn(2)
        transports, details = self._aligned(ensemble, aligning, progress)
        arrays = average(ensemble, transports)
        if not self.wants_information:
            return Alignment(transports, details=details, arrays=arrays)
        sites = gathered_sites(ensemble, transports)
        found = self.merge(sites, merging, progress)
        for key, values in sites.flat.arrays(found.vector).items():
            arrays[key] = array_namespace(values).astype(values, arrays[key].dtype)
        notes = [*details.pop("notes", ()), *found.details.get("notes", ())]
        details |= {**found.details, "notes": notes}
        return Alignment(transports, found.objective, found.history, found.status, details, arrays)

    def _aligned(
        self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress
    ) -> tuple[tuple[Mapping[str, Transport], ...], dict[str, Any]]:
        """Return where units go, and what is to be said of it."""
        if self.aligned is not False and ensemble.symmetry.all_groups:
            shared = shared_groups(ensemble.networks)
            compared = replace(ensemble, networks=tuple(balance_scales(one, shared) for one in ensemble.networks))
            starts = ["identity", "receiving", *["random"] * self.restarts][: self.restarts]
            found = matched(compared, starts, 100, rng, progress, signs=True)
            return found.transports, {"aligned": True}
        details: dict[str, Any] = {"aligned": False}
        if (cosine := mean_cosine(ensemble)) < _APART:
            details["notes"] = [
                f"the networks are far apart (mean cosine {cosine:.2f}), as those of different starts are: give "
                "example= or symmetry=, so that their units are aligned first"
            ]
        return tuple(identity_transports(one.units) for one in ensemble.networks), details

    def _prior(self, sites: Sequence[FisherInformation]) -> Prior:
        """Return what is done about the prior: as told, removed where somebody told the fused network's, or as usual.

        Sites of one weight decay and different numbers of observations have different priors, whose product is that of
        training with this decay on all observations: so different ones are kept.
        """
        if self.prior is not None or self.prior_precision is not None:
            return self.prior or "removed"
        usual = self.prior_of(sites)
        known = [one.prior_precision for one in sites]
        if usual == "removed" and None not in known and not _same([float(one or 0.0) for one in known]):
            return "kept"
        return usual

    def shrunk(self, sites: Sites) -> float:
        """Return how much off-diagonal information is shrunk: not at all where it is exact."""
        if self.shrinkage is not None:
            return self.shrinkage
        exact = all(one.linear or one.compat for one in sites.information)
        return 0.0 if exact else SHRINKAGE

    def posteriors(self, sites: Sites) -> tuple[Posteriors, dict[str, Any]]:
        """Return the sites' Gaussians with what is done about their priors, and what is to be said of it."""
        prior, shrinkage = self._prior(sites.information), self.shrunk(sites)
        alphas = [0.0 if prior == "ignored" else float(one.prior_precision or 0.0) for one in sites.information]
        precisions = tuple(
            Precision.of(one, sites.flat, shrinkage, alpha)
            for one, alpha in zip(sites.information, alphas, strict=True)
        )
        counts = self._counts(sites)
        counted = sum(count * alpha for count, alpha in zip(counts, alphas, strict=True))
        alone = alphas[0] if self.prior_precision is None else self.prior_precision
        excess = counted - alone if prior == "removed" else 0.0
        details: dict[str, Any] = {"prior": prior, "shrinkage": shrinkage}
        if self.prior is None and self.prior_precision is None and alphas[0] > 0:
            details["notes"] = [_KEPT if prior == "kept" else _REMOVED]
        return Posteriors(sites.means, precisions, counts, excess), details

    def _counts(self, sites: Sites) -> list[float]:
        """Return how often each site counts: once, or less than the one that counts most."""
        counts = sites.weights
        if self.normalize:
            norms = [float(np.linalg.norm(to_numpy(sites.flat.vector(one.diagonal)))) for one in sites.information]
            counts = counts / np.array(norms)
        relative: list[float] = (counts / counts.max()).tolist()
        return relative


_KEPT = (
    "the sites' priors differ, so all of them were kept, which is right where all had one weight decay; "
    "prior_precision= takes out all but that of the fused network"
)
_REMOVED = (
    "the sites have one prior, so it was counted once; where it stands for one weight decay of mean losses, "
    "prior='kept' is what training on all data with that decay would be"
)


def _same(values: Sequence[float]) -> bool:
    """Return whether numbers are the same but for rounding."""
    return max(values) - min(values) <= _ROUNDING * max(values)
