"""Base class of methods that weigh parameters by the sites' information: alignment of units, then a merge.

Networks of different starts number their units differently, so units are first aligned by weight matching. Permutations
and sign changes of units change a posterior's coordinates only: means, factors and diagonals move together
(`FisherInformation.moved`). A subclass merges the parameters in common coordinates. Parameters without information and
buffers are averaged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, final

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
from consilience.networks.methods.weight_matching.match import match_weights
from consilience.networks.network import identity_transports
from consilience.networks.symmetry.scaling import balance_scales, shared_groups
from consilience.networks.symmetry.transport import Transport

if TYPE_CHECKING:
    from consilience.networks.choice.sites import Sites

MIN_COMMON_START_COSINE = 0.2
"""A lower mean cosine of weights adds a note that the networks seem to be of different starts. Networks of one start
that were trained apart have a higher cosine, those of different starts nearly zero. Chosen by hand; nobody has measured
other values."""

MAX_MATCHING_PASSES = 100
"""Passes of the weight matching that aligns units at most, as in the published code of weight matching."""


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
        yield from (
            ("aligned", self.aligned is None or isinstance(self.aligned, bool), "true, false or None"),
            ("restarts", is_count(self.restarts), "a positive integer"),
            ("tolerance", is_number(self.tolerance) and self.tolerance > 0, "a positive number"),
            ("max_iterations", is_count(self.max_iterations), "a positive integer"),
        )

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
            shared = shared_groups(ensemble.networks)
            compared = replace(
                ensemble, networks=tuple(balance_scales(network, shared) for network in ensemble.networks)
            )
            starts = ["identity", "receiving", *["random"] * self.restarts][: self.restarts]
            matching = match_weights(compared, starts, MAX_MATCHING_PASSES, rng, progress, signs=True)
            return matching.transports, {"aligned": True}
        details: NetworkDetails = {"aligned": False}
        if (cosine := mean_cosine(ensemble)) < MIN_COMMON_START_COSINE:
            details["notes"] = [
                f"the networks are far apart (mean cosine {cosine:.2f}), as those of different starts are: give "
                "`example=` or `symmetry=`, so that their units are aligned first"
            ]
        return tuple(identity_transports(network.units) for network in ensemble.networks), details
