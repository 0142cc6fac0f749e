"""Base class of methods that weigh parameters by the sites' information: alignment of units, then a merge.

Networks of different starts number their units differently, so units are first aligned by weight matching. Permutations
and sign changes of units change a posterior's coordinates only: means, factors and diagonals move together
(`FisherInformation.moved`). A subclass merges the parameters in common coordinates. Parameters without information and
buffers are averaged. A `FisherMethod` merges one Gaussian of each site, N(theta_k, P_k^-1) (``precision``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal, final

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import AnyArray, Array, is_count, is_number
from consilience.core.details import Status
from consilience.core.methods import Requirement
from consilience.core.progress import Progress
from consilience.errors import Problem
from consilience.networks.details import NetworkDetails
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.method import Alignment, NetworkEnsemble, NetworkMethod, average
from consilience.networks.methods.fisher.parameter_vectors import (
    AlignedSites,
    gather_sites,
    in_input_order,
    mean_cosine,
)
from consilience.networks.methods.fisher.precision import LowRankPrecision, PosteriorProduct
from consilience.networks.methods.weight_matching.match import MAX_MATCHING_PASSES, descent_starts, match_weights
from consilience.networks.network import identity_transports, to_numpy
from consilience.networks.symmetry.transport import Transport
from consilience.networks.symmetry.unit_rows import balanced_networks

if TYPE_CHECKING:
    from consilience.networks.choice.sites import Sites

MIN_COMMON_START_COSINE = 0.2
"""A lower mean cosine of weights adds a note that the networks seem to be of different starts. Networks of one start
that were trained apart have a higher cosine, those of different starts nearly zero. Chosen by hand; nobody has measured
other values."""


@dataclass(frozen=True, eq=False)
class MergedParameters:
    """Merged parameters of all sites (P,), and how they were found, as in `Alignment`."""

    vector: AnyArray
    objective: float
    history: Array = field(default_factory=lambda: np.zeros(0))
    status: Status = Status.CONVERGED
    details: NetworkDetails = field(default_factory=NetworkDetails)


@dataclass(frozen=True)
class InformedMethod(NetworkMethod, ABC):
    """Base class of methods that weigh parameters by what the sites' data say of them.

    Parameters
    ----------
    aligned : bool, optional
        Whether units are matched first, by weights. Default: where the symmetry is known.
    restarts : int
        Descents of that matching. Default: 2.
    tolerance : float
        Bound on the residual of linear equations, relative to the right-hand side. Default: 1e-8, chosen by hand.
    max_iterations : int
        Steps of their solution at most. Default: 1000.
    """

    optional_symmetry: ClassVar[bool] = True
    reads_layers: ClassVar[bool] = False
    """Whether the method reads Kronecker factors of layers; others get their diagonals."""
    # Weights come from the sites' own information, which a robust average would not bound.
    robust: ClassVar[None] = None  # type: ignore[misc]  # no option here, as `trim`
    trim: ClassVar[float] = 0.2  # type: ignore[misc]

    aligned: bool | None = field(default=None, kw_only=True)
    restarts: int = field(default=2, kw_only=True)
    tolerance: float = field(default=1e-8, kw_only=True)
    max_iterations: int = field(default=1000, kw_only=True)

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield "aligned", self.aligned is None or isinstance(self.aligned, bool), "true, false or None"
        yield "restarts", is_count(self.restarts), "a positive integer"
        yield "tolerance", is_number(self.tolerance) and self.tolerance > 0, "a positive number"
        yield "max_iterations", is_count(self.max_iterations), "a positive integer"

    @property
    def wants_information(self) -> bool:
        """Whether the method needs Fisher information of the networks."""
        return True

    def site_weights(self, sites: Sites) -> Array:
        """Return the weights (J,) of the sites: alike where nobody states any, as information counts observations."""
        return sites.information_weights if self.wants_information else sites.weights

    @abstractmethod
    def merge(self, sites: AlignedSites, rng: np.random.Generator, progress: Progress) -> MergedParameters:
        """Return the merged parameters."""

    def refuse(self, ensemble: NetworkEnsemble) -> list[Problem]:
        """Return the problems of merging these networks with their information, a line each."""
        ensemble = in_input_order(ensemble)  # networks are sorted by content; messages follow the user's order
        reasons = super().refuse(ensemble)
        if self.aligned and not ensemble.symmetry.all_groups:
            text = "`aligned=True` needs to know which axes move together"
            reasons.append(Problem(self.name, text, "give `example=` or `symmetry=`", "E-NEEDED"))
        if not self.wants_information:
            return reasons
        if ensemble.information is None:
            text = "needs `fishers=`, what consilience.fisher computed at each site, one for each network"
            return [*reasons, Problem(self.name, f"{text} (or their files among the models)", code="E-NEEDED")]
        for network, information in zip(ensemble.networks, ensemble.information, strict=True):
            reasons += information.unfit(network)
        return reasons or self._mismatches(ensemble) or self.refuse_information(ensemble.information)

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
            if odd := sorted(set(first.parameters) ^ set(other.parameters)):
                text = f"informs other parameters than {first.name} ({', '.join(odd[:3])})"
                problems.append(Problem(other.name, text, "freeze the same ones at all sites", "E-MISMATCH"))
            elif self.reads_layers and (odd := sorted(set(first.layers) ^ set(other.layers))):
                text = f"has Kronecker factors of other layers than {first.name} ({', '.join(odd[:3])})"
                remedy = "compute all with `consilience.fisher(..., kind='kronecker')`"
                problems.append(Problem(other.name, text, remedy, "E-MISMATCH"))
            for what, expected, actual in (
                ("is a sum over observations", first.observations is not None, other.observations is not None),
                ("likelihood", first.likelihood, other.likelihood),
            ):
                if expected != actual:
                    text = f"is counted on another scale than {first.name} ({what}: {actual}, there {expected})"
                    remedy = "compute all with consilience.fisher and the same options"
                    problems.append(Problem(other.name, text, remedy, "E-MISMATCH"))
        return problems

    @final
    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return the alignment with the merged parameters; arrays without information (buffers) are averaged."""
        matching_rng, merging_rng = rng.spawn(2)  # so that masks do not depend on how units were matched
        transports, details = self._align_units(ensemble, matching_rng, progress)
        # The plain average of everything; parameters with information are replaced by merged ones below.
        arrays = average(ensemble, transports)
        if not self.wants_information:
            return Alignment(transports, details=details, arrays=arrays)
        sites = gather_sites(ensemble, transports, keeps_layers=self.reads_layers)
        merged = self.merge(sites, merging_rng, progress)
        for key, values in sites.layout.arrays(merged.vector).items():
            arrays[key] = array_namespace(values).astype(values, arrays[key].dtype)
        notes = [*details.get("notes", ()), *merged.details.get("notes", ())]
        details = {**details, **merged.details, "notes": notes}
        return Alignment(transports, merged.objective, merged.history, merged.status, details, arrays)

    def _align_units(
        self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress
    ) -> tuple[tuple[Mapping[str, Transport], ...], NetworkDetails]:
        """Return the transports of all models, and details and notes about them."""
        if self.aligned is not False and ensemble.symmetry.all_groups:
            # Matched in balanced scales, but merged as they are: scaling a unit would change its prior too.
            compared = replace(ensemble, networks=balanced_networks(ensemble.networks))
            starts = descent_starts(ensemble, self.restarts)
            matching = match_weights(compared, starts, MAX_MATCHING_PASSES, rng, progress, signs=True)
            return matching.transports, {"aligned": True}
        details: NetworkDetails = {"aligned": False}
        if (cosine := mean_cosine(ensemble)) < MIN_COMMON_START_COSINE:
            details["notes"] = [
                f"the networks are far apart (mean cosine {cosine:.2f}), as those of different starts are: give "
                "`example=` or `symmetry=`, so that their units are aligned first"
            ]
        return tuple(identity_transports(network.units) for network in ensemble.networks), details


Prior = Literal["removed", "kept", "ignored"]

SHRINKAGE = 0.9
"""Shrinkage for networks that are not linear in their parameters. Between 0.5 and 0.95 validation data chose otherwise
from task to task; 0.9 was never bad (docs/adr/0013). Test losses (docs/guides/fisher.md): for three networks of 400
parameters 1.34 without shrinkage, 0.22 with 0.9, 0.31 for the diagonal merge; on digits 0.197 without, 0.191 with 0.5,
0.206 with 0.9."""

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
        return (counts / counts.max()).tolist()


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
