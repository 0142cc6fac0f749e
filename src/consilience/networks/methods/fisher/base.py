"""Base class of Fisher merging methods: alignment of units, and one Gaussian posterior for each site.

Networks of different starts number their units differently, so units are first aligned by weight matching. Permutations
and sign changes of units change a posterior's coordinates only: means, factors and diagonals move together
(`FisherInformation.moved`). A subclass merges the sites' Gaussians, N(theta_k, P_k^-1), in common coordinates
(``precision``). Parameters without information and buffers are averaged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, final

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import AnyArray, Array, is_count, is_number
from consilience.core.options import Requirement
from consilience.core.progress import Progress
from consilience.core.status import Status
from consilience.errors import Problem
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.method import Alignment, NetworkEnsemble, NetworkMethod, average
from consilience.networks.methods.fisher.parameter_vectors import (
    AlignedSites,
    gather_sites,
    in_input_order,
    mean_cosine,
)
from consilience.networks.methods.fisher.precision import LowRankPrecision, PosteriorProduct
from consilience.networks.methods.weight_matching.match import match_weights
from consilience.networks.network import identity_transports, to_numpy
from consilience.networks.symmetry.scaling import balance_scales, shared_groups
from consilience.networks.symmetry.transport import Transport

Prior = Literal["removed", "kept", "ignored"]

SHRINKAGE = 0.9
"""Shrinkage for networks that are not linear in their parameters. Between 0.5 and 0.95 validation data chose otherwise
from task to task; 0.9 was never bad (docs/adr/0013). Test losses (docs/fisher.md): for three networks of 400 parameters
1.34 without shrinkage, 0.22 with 0.9, 0.31 for the diagonal merge; on digits 0.197 without, 0.191 with 0.5, 0.206 with
0.9."""

MIN_COMMON_START_COSINE = 0.2
"""A lower mean cosine of weights adds a note that the networks seem to be of different starts. Networks of one start
that were trained apart have a higher cosine, those of different starts nearly zero. Chosen by hand; nobody has measured
other values."""

PRIOR_ROUNDING = 1e-6
"""Prior precisions that differ by no more than this fraction are equal, because numbers of observations times a weight
decay are rounded. Chosen by hand; nobody has measured other values."""

MAX_MATCHING_PASSES = 100
"""Passes of the weight matching that aligns units at most, as in the published code of weight matching."""


@dataclass(frozen=True, eq=False)
class MergedParameters:
    """Merged parameters of all sites, and how they were found.

    Parameters
    ----------
    vector : array of shape (P,)
        The parameters.
    objective, history, status, details
        As in Alignment.
    """

    vector: AnyArray
    objective: float
    history: Array = field(default_factory=lambda: np.zeros(0))
    status: Status = Status.CONVERGED
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FisherMethod(NetworkMethod, ABC):
    """Base class of methods that weigh parameters by the Fisher information of the sites' data.

    Its fields are options that ``FisherMerging`` documents.
    """

    optional_symmetry: ClassVar[bool] = True

    prior: Prior | None = None
    prior_precision: float | None = None
    shrinkage: float | None = None
    normalize: bool = False
    aligned: bool | None = None
    restarts: int = 2
    tolerance: float = 1e-8
    max_iterations: int = 1000

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield ("prior", self.prior in (None, "removed", "kept", "ignored"), "'removed', 'kept' or 'ignored'")
        alpha = self.prior_precision
        yield ("prior_precision", alpha is None or is_number(alpha), "a number, not negative, or None")
        is_removed = self.prior in (None, "removed")
        yield ("prior_precision", alpha is None or is_removed, "left out unless the sites' priors are removed")
        rho = self.shrinkage
        yield from (
            ("shrinkage", rho is None or (is_number(rho) and 0 <= rho <= 1), "a number from 0 to 1, or None"),
            ("aligned", self.aligned is None or isinstance(self.aligned, bool), "true, false or None"),
            ("restarts", is_count(self.restarts), "a positive integer"),
            ("tolerance", is_number(self.tolerance) and self.tolerance > 0, "a positive number"),
            ("max_iterations", is_count(self.max_iterations), "a positive integer"),
        )

    @property
    def averages(self) -> bool:
        """False: weights come from the sites' own information, which a robust average would not bound."""
        return False

    @property
    def wants_information(self) -> bool:
        """Whether the method needs Fisher information of the networks."""
        return True

    @abstractmethod
    def merge(self, sites: AlignedSites, rng: np.random.Generator, progress: Progress) -> MergedParameters:
        """Return the merged parameters.

        Parameters
        ----------
        sites : AlignedSites
            Parameters and information of all sites.
        rng : numpy.random.Generator
            Source of random choices.
        progress : callable
            Called with (steps done, steps at most).
        """

    @abstractmethod
    def default_prior(self, sites: Sequence[FisherInformation]) -> Prior:
        """Return the treatment of the sites' priors where the user did not choose one."""

    def refuse(self, ensemble: NetworkEnsemble) -> list[Problem]:
        """Return the problems of merging these networks with their information, a line each."""
        ensemble = in_input_order(ensemble)  # networks are sorted by content; messages follow the user's order
        reasons = super().refuse(ensemble)
        if self.aligned and not ensemble.symmetry.all_groups:
            reasons.append(
                Problem(self.name, "aligned=True needs to know which axes move together", "give example= or symmetry=")
            )
        if not self.wants_information:
            return reasons
        if ensemble.information is None:
            return [
                *reasons,
                Problem(
                    self.name,
                    "needs fishers=, what consilience.fisher computed at each site, one for each network "
                    "(or their files among the models)",
                ),
            ]
        for network, information in zip(ensemble.networks, ensemble.information, strict=True):
            reasons += information.unfit(network)
        mismatches = self._mismatches(ensemble) or self._prior_problems(ensemble.information)
        return reasons or mismatches or self.refuse_information(ensemble.information)

    def refuse_information(self, sites: Sequence[FisherInformation]) -> list[Problem]:
        """Return further problems of the sites' information for a method, a line each."""
        del sites
        return []

    def _mismatches(self, ensemble: NetworkEnsemble) -> list[Problem]:
        """Return problems of sites whose information is of other parameters or on another scale than the first's."""
        # Tied parameters may go by different names at different sites.
        sites = [information.renamed(ensemble.symmetry) for information in ensemble.information or ()]
        first, problems = sites[0], []
        for other in sites[1:]:
            if odd := sorted(set(first.residual) ^ set(other.residual)):
                problems.append(
                    Problem(
                        other.name,
                        f"informs other parameters than {first.name} ({', '.join(odd[:3])})",
                        "freeze the same ones at all sites",
                    )
                )
            for what, expected, actual in (
                ("is a sum over observations", first.observations is not None, other.observations is not None),
                ("has the published code's sums", first.compat, other.compat),
                ("likelihood", first.likelihood, other.likelihood),
            ):
                if expected != actual:
                    problems.append(
                        Problem(
                            other.name,
                            f"is counted on another scale than {first.name} ({what}: {actual}, there {expected})",
                            "compute all with consilience.fisher and the same options",
                        )
                    )
        return problems

    def _prior_problems(self, sites: Sequence[FisherInformation]) -> list[Problem]:
        """Return problems of priors: precisions that must be known and are not, or that differ."""
        prior = self._prior_treatment(sites)
        if prior == "ignored":
            return []
        if unknown := [site.name for site in sites if site.prior_precision is None]:
            return [
                Problem(
                    ", ".join(unknown),
                    "says no prior precision, which is needed to count the prior once",
                    "compute it with consilience.fisher(..., prior_precision=...), or set prior='ignored'",
                )
            ]
        precisions = [float(site.prior_precision or 0.0) for site in sites]
        if prior == "removed" and not _are_equal(precisions) and self.prior_precision is None:
            listed = ", ".join(f"{precision:g}" for precision in sorted(precisions))
            text = f"the sites were trained with different priors (precisions {listed})"
            remedy = "give prior_precision=, that of the fused network, or set prior='kept'"
            return [Problem("", text, remedy)]
        return []

    @final
    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return the alignment with the merged parameters; arrays without information (buffers) are averaged."""
        matching_rng, merging_rng = rng.spawn(2)  # so that masks do not depend on how units were matched
        transports, details = self._align_units(ensemble, matching_rng, progress)
        # The plain average of everything; parameters with information are replaced by merged ones below.
        arrays = average(ensemble, transports)
        if not self.wants_information:
            return Alignment(transports, details=details, arrays=arrays)
        sites = gather_sites(ensemble, transports)
        merged = self.merge(sites, merging_rng, progress)
        for key, values in sites.layout.arrays(merged.vector).items():
            arrays[key] = array_namespace(values).astype(values, arrays[key].dtype)
        notes = [*details.pop("notes", ()), *merged.details.get("notes", ())]
        details |= {**merged.details, "notes": notes}
        return Alignment(transports, merged.objective, merged.history, merged.status, details, arrays)

    def _align_units(
        self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress
    ) -> tuple[tuple[Mapping[str, Transport], ...], dict[str, Any]]:
        """Return the transports of all models, and details and notes about them."""
        if self.aligned is not False and ensemble.symmetry.all_groups:
            # Matched in balanced scales, but merged as they are: scaling a unit would change its prior too.
            shared = shared_groups(ensemble.networks)
            compared = replace(
                ensemble, networks=tuple(balance_scales(network, shared) for network in ensemble.networks)
            )
            starts = ["identity", "receiving", *["random"] * self.restarts][: self.restarts]
            matching = match_weights(compared, starts, MAX_MATCHING_PASSES, rng, progress, signs=True)
            return matching.transports, {"aligned": True}
        details: dict[str, Any] = {"aligned": False}
        if (cosine := mean_cosine(ensemble)) < MIN_COMMON_START_COSINE:
            details["notes"] = [
                f"the networks are far apart (mean cosine {cosine:.2f}), as those of different starts are: give "
                "example= or symmetry=, so that their units are aligned first"
            ]
        return tuple(identity_transports(network.units) for network in ensemble.networks), details

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
        """Return the shrinkage rho of off-diagonal information: none where networks are linear in their parameters.

        Information in the published code's form is not shrunk either.
        """
        if self.shrinkage is not None:
            return self.shrinkage
        needs_none = all(information.linear or information.compat for information in sites.information)
        return 0.0 if needs_none else SHRINKAGE

    def posterior_product(self, sites: AlignedSites) -> tuple[PosteriorProduct, dict[str, Any]]:
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
        details: dict[str, Any] = {"prior": prior, "shrinkage": shrinkage}
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
    "prior_precision= takes out all but that of the fused network"
)
_REMOVED_NOTE = (
    "the sites have one prior, so it was counted once; where it stands for one weight decay of mean losses, "
    "prior='kept' is what training on all data with that decay would be"
)


def _are_equal(precisions: Sequence[float]) -> bool:
    """Return whether prior precisions are equal up to rounding."""
    return max(precisions) - min(precisions) <= PRIOR_ROUNDING * max(precisions)
