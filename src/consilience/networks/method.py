"""Base class of network fusion methods: alignment of units by transports, then one weighted average.

A method is a frozen dataclass of options. Its own part is ``align``, which returns a transport for every group of units
in every model. The average is the same for all methods. Every weight is averaged once, over the models that own the
unit u which receives it:

    W[u, v] = sum_i a_i (T_i W_i S_i)[u, v] / sum_i a_i [model i has unit u],

with a_i the weight of model i, T_i the output side and S_i the input side of its transports (see
``networks.symmetry.transport``). A unit that only some models have keeps their weights. The input side is not divided:
what such a unit sends to units that all models have is scaled by the weight of the models that have it. So where all
units of all models fit side by side, the fused network computes the average of the models' logits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from consilience.catalogue import suggestion
from consilience.checks import AnyArray, Array, Labels, is_count, is_number
from consilience.core.details import Status
from consilience.core.methods import Options, Requirement, is_robust_option
from consilience.core.progress import Progress, silent
from consilience.core.robust import Judgement, huber_weights, judge_twice, too_few
from consilience.core.robust_estimator import Robust, RobustEstimator
from consilience.errors import InputError, OptionError, Problem
from consilience.networks.carried_arrays import largest_counters, moved_mask_problems
from consilience.networks.details import NetworkDetails
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.network import Network
from consilience.networks.robust import (
    array_median,
    clip_array_scales,
    distances_to_median,
    inlier_mask,
    squared_distances,
    standardized_squared_distances,
)
from consilience.networks.symmetry.axes import Axis
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Transport, as_stored, laid_out, move_axis

if TYPE_CHECKING:
    from consilience.networks.choice.sites import Sites

Road = Literal["matched", "chosen", "distilled", "damped"]
"""Ways from described networks to a fused one; methods of one's own are matched, the others are those of ours."""


FEWER_NETWORKS = (
    "weak here: fewer networks make a worse average, so that leaving out copies may cost up to an eighth of its error"
)
"""Where robust fusion of networks loses more than a twentieth to no defence (docs/evidence/robust.md)."""


@dataclass(frozen=True, eq=False)
class NetworkEnsemble:
    """Networks of one symmetry with their weights, and the widths of the fused network."""

    networks: tuple[Network, ...]  # the models, in the order in which they are fused
    weights: Array  # (n_models,), weight of each model in the average; they sum to 1
    target_units: Mapping[str, int]  # number of units of every group of the fused network
    reference: int = 0  # index of the model whose numbering of units the fused network keeps where it can
    # For every model, the activations (k, n_samples) of its units on the same inputs, by group, for methods that match
    # them.
    activations: tuple[Mapping[str, Array], ...] | None = None
    # For every model, its position in the list that the user passed; options that name models refer to it. Empty:
    # the same order.
    input_numbers: tuple[int, ...] = ()
    # For every model, transports from a matching of all groups at once, for methods that can start from it.
    initial_transports: tuple[Mapping[str, Transport], ...] | None = None
    # Fisher information of every model, for methods that weigh parameters by it.
    information: tuple[FisherInformation, ...] | None = None
    # For every Bayesian network, its prior variance by parameter; None for a network that states none.
    priors: tuple[Mapping[str, float] | None, ...] | None = None

    @property
    def symmetry(self) -> Symmetry:
        """The symmetry that all share."""
        return self.networks[0].symmetry

    @property
    def voters(self) -> Labels:
        """Numbers (n,) of the models with a weight."""
        return np.flatnonzero(self.weights > 0)

    def take(self, kept: Labels) -> NetworkEnsemble:
        """Return some of the models, by number; the first of them is the reference where that is not among them."""
        chosen = kept.tolist()

        def of_kept(values: tuple[Any, ...] | None) -> Any:
            return values and tuple(values[number] for number in chosen)

        return replace(
            self,
            networks=of_kept(self.networks),
            weights=self.weights[kept] / self.weights[kept].sum(),
            reference=chosen.index(self.reference) if self.reference in chosen else 0,
            activations=of_kept(self.activations),
            input_numbers=of_kept(self.input_numbers),
            initial_transports=of_kept(self.initial_transports),
            information=of_kept(self.information),
            priors=of_kept(self.priors),
        )

    @property
    def same_units(self) -> bool:
        """Whether all models have as many units as the fused network."""
        return all(dict(network.units) == dict(self.target_units) for network in self.networks)


@dataclass(frozen=True, eq=False)
class Alignment:
    """Result of ``NetworkMethod.align``: transports of all models, and how they were found."""

    # For every model and group, the transport of its units into the fused network.
    transports: tuple[Mapping[str, Transport], ...]
    # Final value of the method's objective. Default: NaN, for a method without one.
    objective: float = float("nan")
    # (n_iterations,), the objective after each iteration. Default: empty.
    history: Array = field(default_factory=lambda: np.zeros(0))
    # How the iteration ended. Default: converged.
    status: Status = Status.CONVERGED
    details: NetworkDetails = field(default_factory=NetworkDetails)  # further results for reports and provenance
    # The fused arrays, for methods that compute them together with the alignment. Default: the weighted average of
    # the transported networks.
    arrays: Mapping[str, AnyArray] | None = None


@dataclass(frozen=True, eq=False)
class NetworkOutcome:
    """Result of ``NetworkMethod.fuse``: the alignment, the fused network, and the (prepared) networks it averages."""

    alignment: Alignment
    network: Network
    ensemble: NetworkEnsemble


@dataclass(frozen=True)
class NetworkMethod(Options, ABC):
    """Base class of methods that fuse networks; the fields of a subclass are its options.

    Class attributes describe a method for users: ``name``, ``summary`` (one line), ``needs`` and ``gives`` (inputs and
    output in words), ``paper`` (a key of docs/refs.bib, or why there is none), ``widths`` (whether models and the fused
    network may differ in their numbers of units), ``keeps_models`` (whether the fused model is all models side by
    side), and ``optional_symmetry`` (whether the method also runs without a symmetry, with units as they are numbered).

    Parameters
    ----------
    robust : {True, "trim", "median"}, optional
        Protection against hostile or broken sites. True leaves out whole models that are copies of each other, or
        farther than one and a half of the usual distance, and averages the others as whole networks, aligned as if
        those had not come, with less weight beyond the median distance from the geometric median. ``"trim"`` leaves out
        the fraction `trim` of the models that is farthest from the coordinate-wise median; ``"median"`` takes geometric
        medians, row by row. Default: every site is trusted.
    trim : float
        Fraction of the models that may be hostile, between 0 and 0.5. Default: 0.2, chosen by hand.
    """

    summary: ClassVar[str]
    needs: ClassVar[str]
    gives: ClassVar[str]
    paper: ClassVar[str]
    widths: ClassVar[bool] = False
    keeps_models: ClassVar[bool] = False
    optional_symmetry: ClassVar[bool] = False
    takes_information: ClassVar[bool] = False
    """Whether it can do with Fisher information what it does better than without."""
    describes_information: ClassVar[bool] = False
    """Whether descriptions serve as information where nobody gives any."""
    compares_networks: ClassVar[bool] = False
    """Whether whole networks are compared on inputs, so that what cannot be traced is fused where all describe it."""

    robust: Robust = field(default=None, kw_only=True)
    trim: float = field(default=0.2, kw_only=True)

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from (
            ("robust", is_robust_option(self.robust), "True, 'trim', 'median' or None"),
            ("trim", is_number(self.trim) and 0 < self.trim < 0.5, "a number between 0 and 0.5"),
        )

    @property
    def is_robust(self) -> bool:
        """Whether some model may be hostile."""
        return self.robust not in (None, False)

    @property
    def starts_from_activations(self) -> bool:
        """Whether units may be matched by activations first, where there are inputs, to be matched otherwise then."""
        return False

    @property
    def takes_activations(self) -> bool:
        """Whether networks are asked on inputs where there are any."""
        return self.wants_activations or self.starts_from_activations

    @property
    def wants_activations(self) -> bool:
        """Whether units are matched by their activations on inputs."""
        return False

    @property
    def wants_information(self) -> bool:
        """Whether parameters are weighed by Fisher information."""
        return False

    @property
    def road(self) -> Road:
        """How networks are fused once they are described: matched alone, chosen, distilled, or at a chosen damping."""
        return "matched"

    def resolved(self, *, can_compare: bool = False) -> NetworkMethod:
        """Return the method that runs under these options; `can_compare` says whether modules and inputs are known."""
        del can_compare
        return self

    def informed(self, information: Sequence[FisherInformation] | None) -> NetworkMethod:
        """Return the method that runs with the information of the sites, or without any."""
        del information
        return self

    def observed_shares(self, information: Sequence[FisherInformation] | None, weights: Array) -> Array:
        """Return the weights (J,) of sites for which nobody states any, given those by numbers of observations."""
        del information
        return weights

    def site_weights(self, sites: Sites) -> Array:
        """Return the weights (J,) of the sites in the average."""
        return sites.information_weights if self.wants_information else sites.weights

    @property
    def refits(self) -> bool:
        """Whether every layer is refitted afterwards to the models' activations, where the models are modules."""
        return False

    @abstractmethod
    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return the transports of all models.

        All random choices come from `rng`; `progress` is called with (steps done, steps in all).
        """

    def default_units(self, networks: Sequence[Network], reference: int | None) -> dict[str, int]:
        """Return the default widths of the fused network: of every group the widest model's.

        `reference` is the number of the reference model, if the user chose one.
        """
        return {name: max(network.units[name] for network in networks) for name in networks[0].units}

    def prepare(self, ensemble: NetworkEnsemble) -> NetworkEnsemble:
        """Return the networks that are aligned and averaged: the same functions, perhaps in other parameters."""
        return ensemble

    def refuse(self, ensemble: NetworkEnsemble) -> list[Problem]:
        """Return the problems of fusing these networks with these options, a line each; empty when there are none."""
        if self.wants_activations and ensemble.activations is None:
            text = "matching by activations needs `inputs=...`, unlabeled inputs that all models are asked"
            return [Problem(self.name, text, code="E-NEEDED")]
        if self.widths:
            return []
        why = f"method {self.name!r} needs the same everywhere (methods 'consensus', 'ot' and 'wb' do not)"
        texts = [
            (network.name, f"group {group} has {network.units[group]} units where the fused network has {units}; {why}")
            for network in ensemble.networks
            for group, units in ensemble.target_units.items()
            if network.units[group] != units
        ]
        return [Problem(name, text, code="E-SHAPE") for name, text in texts]

    @final
    def reasons(self, ensemble: NetworkEnsemble) -> list[Problem]:
        """Return all problems of fusing these networks: of widths, of robust averages and of the method's options."""
        robust = self.robust if self.is_robust else None
        n_voters = int(np.count_nonzero(ensemble.weights))  # a model of weight zero has no vote
        robust_problems = [] if robust is None else too_few(self.name, f"`robust={robust!r}`", n_voters, "networks")
        return _tied_width_problems(ensemble) + robust_problems + self.refuse(ensemble)

    @final
    def fuse(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress = silent) -> NetworkOutcome:
        """Align the networks and average them.

        The outcome has the alignment, the fused network in the precision of the reference model, and the averaged
        networks. Raises InputError when the networks do not fit the options.
        """
        if reasons := self.reasons(ensemble):
            raise InputError(reasons)
        prepared = self.prepare(ensemble)
        how = "median" if self.robust is True else self.robust
        robust = RobustEstimator(how, self.trim) if isinstance(how, str) else None
        # The same draws once more, as if those that are left out had not come.
        rng_of_kept = deepcopy(rng) if self.robust is True else rng
        # Only the alignment sees clipped scales; the robust average judges the networks as they were sent.
        alignment = self.align(prepared if robust is None else clip_array_scales(prepared, robust), rng, progress)
        if problems := _alignment_problems(prepared, alignment):
            raise InputError(problem.about(self.name) for problem in problems)
        if problems := moved_mask_problems(prepared.networks, alignment.transports, ensemble.reference):
            raise InputError(problems)
        arrays = alignment.arrays
        if arrays is None:
            if self.robust is True:
                alignment, weights = self._kept(prepared, alignment, rng_of_kept, progress)
                arrays = average(replace(prepared, weights=weights), alignment.transports)
            else:
                arrays = average(prepared, alignment.transports, robust)
        fused = prepared.networks[ensemble.reference].with_arrays({**arrays, **largest_counters(prepared.networks)})
        return NetworkOutcome(alignment, fused, prepared)

    def _kept(
        self, ensemble: NetworkEnsemble, alignment: Alignment, rng: np.random.Generator, progress: Progress
    ) -> tuple[Alignment, Array]:
        """Return the alignment of the networks that are kept, and their weights (J,).

        Where some are left out the others are aligned as if these had not come, since a far network misleads them all;
        those left out stay as they were aligned.
        """
        voters = ensemble.voters
        judgement = judge_networks(ensemble, alignment.transports)
        kept = voters[judgement.kept]
        details = judgement.details([ensemble.networks[voter].name for voter in voters.tolist()])
        if len(kept) < len(voters):
            of_kept = self.align(ensemble.take(kept), rng, progress)
            transports = list(alignment.transports)
            for number, of_network in zip(kept.tolist(), of_kept.transports, strict=True):
                transports[number] = of_network
            alignment = replace(of_kept, transports=tuple(transports))
        if ensemble.target_units:  # the average of linear models is as good as any network of theirs
            details["weak"] = FEWER_NETWORKS
        alignment = replace(alignment, details={**alignment.details, "robust": details})
        return alignment, weights_of_kept(ensemble, alignment.transports, kept)


def _alignment_problems(ensemble: NetworkEnsemble, alignment: Alignment) -> list[Problem]:
    """Return how the transports of a method do not fit the networks, a line each; a method of others may err."""
    n_models = len(ensemble.networks)
    if len(alignment.transports) != n_models:
        text = f"its alignment has transports of {len(alignment.transports)} models, expected {n_models}"
        return [Problem("", text, code="E-SHAPE")]
    problems = []
    widths: dict[str, int] = {}  # a method may find the width of a group, but one for all models
    for network, transports in zip(ensemble.networks, alignment.transports, strict=True):
        for group in ensemble.target_units:
            transport = transports.get(group)
            if transport is None:
                problems.append(Problem("", f"its alignment has no transport of group {group} of {network.name}"))
                continue
            n_units, width = network.units[group], widths.setdefault(group, transport.width)
            if (len(transport.labels), transport.width) != (n_units, width):
                text = (
                    f"its transport of group {group} of {network.name} takes {len(transport.labels)} units to "
                    f"{transport.width}, expected {n_units} to {width}"
                )
                problems.append(Problem("", text))
    return problems


def _tied_width_problems(ensemble: NetworkEnsemble) -> list[Problem]:
    """Return problems of groups that change their width although one array both makes and reads their units.

    The output side of such an array would average and its input side split, so that one array would need two values.
    """
    symmetry = ensemble.symmetry
    tied_arrays = {
        name: place.array for name in symmetry.by_name for place in symmetry.places(name) if place.side == "both"
    }
    return [
        Problem(
            network.name,
            f"group {name} has {network.units[name]} units where the fused network has "
            f"{ensemble.target_units[name]}; {array} makes these units and reads them too (tied weights), which no "
            "other width can do alike: keep the width, or untie the weights",
            code="E-SHAPE",
        )
        for network in ensemble.networks
        for name, array in tied_arrays.items()
        if network.units[name] != ensemble.target_units[name]
    ]


def average(
    ensemble: NetworkEnsemble, transports: tuple[Mapping[str, Transport], ...], robust: RobustEstimator | None = None
) -> dict[str, AnyArray]:
    """Return the average of transported networks, every weight over the models that own the unit which receives it.

    `transports` are those of the units of every model and group; `robust` replaces the weighted mean. Floating-point
    arrays come in the shapes of the fused network, in working precision.
    """
    weights = ensemble.weights.tolist()
    layouts = {key: ensemble.symmetry.layouts[key] for key in ensemble.networks[0].working}
    if robust is not None and robust.how == "trim":
        by_array = ((_transported(ensemble, transports, key), layout) for key, layout in layouts.items())
        # (n_arrays, n_models)
        distances = np.array([distances_to_median(*moved, weights, layout) for moved, layout in by_array])
        voters = np.flatnonzero(ensemble.weights > 0)  # a model of weight zero has no say in which model is far
        inlier_weights = np.zeros(len(weights))
        inlier_weights[voters] = inlier_mask(distances[:, voters], robust) * ensemble.weights[voters]
        weights = (inlier_weights / inlier_weights.sum()).tolist()
    fused = {}
    for key, layout in layouts.items():
        arrays, ownership = _transported(ensemble, transports, key)
        if robust is not None and robust.how == "median":
            mean = array_median(arrays, ownership, weights, layout)
        else:
            mean = _mean_over_owners(arrays, ownership, weights)
        fused[key] = as_stored(mean, layout)
    return fused


def judge_networks(ensemble: NetworkEnsemble, transports: tuple[Mapping[str, Transport], ...]) -> Judgement:
    """Return which of the networks with a vote are kept (``robust=True``).

    Models that are copies of each other, a cluster apart, or farther from the geometric median than one and a half of
    the median distance, are left out as a whole (`core.robust`): the units of one network rely on each
    other. They are judged by their weights as they are, and those that pass once more by standardized weights, in
    which small pushes show.
    """
    voters = ensemble.voters
    n_coordinates = sum(prod(tuple(values.shape)) for values in ensemble.networks[0].working.values())

    def group_of(
        measure: Callable[[Sequence[AnyArray]], Array], passed: NDArray[np.bool_]
    ) -> list[tuple[Labels, Array]]:
        """Return the voters that passed and their squared distances: all weights are one group."""
        return [(np.flatnonzero(passed), _distances(ensemble, transports, voters[passed], measure))]

    everyone = group_of(squared_distances, np.ones(len(voters), dtype=np.bool_))
    standardized = partial(group_of, standardized_squared_distances)
    return judge_twice(everyone, standardized, len(voters), n_coordinates)


def weights_of_kept(ensemble: NetworkEnsemble, transports: tuple[Mapping[str, Transport], ...], kept: Labels) -> Array:
    """Return the weights (J,) of the networks that are kept, as whole networks (``huber_weights``)."""
    weights, squares = np.zeros(len(ensemble.weights)), _distances(ensemble, transports, kept, squared_distances)
    weights[kept] = huber_weights(squares, ensemble.weights[kept])
    return weights


def _distances(
    ensemble: NetworkEnsemble,
    transports: tuple[Mapping[str, Transport], ...],
    chosen: Labels,
    measure: Callable[[Sequence[AnyArray]], Array],
) -> Array:
    """Return squared distances (n, n) of some transported networks, summed over arrays by what measures one array."""
    total = np.zeros((len(chosen), len(chosen)))
    for key in ensemble.networks[0].working:
        arrays, _ = _transported(ensemble, transports, key)
        total += measure([arrays[number] for number in chosen.tolist()])
    return total


def _transported(
    ensemble: NetworkEnsemble, transports: tuple[Mapping[str, Transport], ...], key: str
) -> tuple[list[AnyArray], list[Any]]:
    """Return one array of every model after transport, and its ownership mask: 1 where the model owns the receiver.

    The masks broadcast to the arrays; where the model has every unit of the output axes, the mask is the number 1.
    """
    layout = ensemble.symmetry.layouts[key]
    arrays, ownership = [], []
    for network, model_transports in zip(ensemble.networks, transports, strict=True):
        values = laid_out(network.working[key], layout)
        mask: Any = 1.0
        for number, axis in layout.moving_axes:
            values = move_axis(values, number, axis, model_transports, network.units)
            groups = [segment.group for segment in axis.segments if segment.group is not None]
            # Only the output side decides ownership: a column of a unit that the model lacks is a zero that counts.
            if axis.side != "input" and not all(model_transports[group].owns_all for group in groups):
                shape = tuple(-1 if n == number else 1 for n in range(values.ndim))
                mask = mask * np.reshape(owned_entries(axis, model_transports, ensemble.target_units), shape)
        arrays.append(values)
        ownership.append(mask)
    return arrays, ownership


def _mean_over_owners(arrays: Sequence[AnyArray], ownership: Sequence[Any], weights: Sequence[float]) -> AnyArray:
    """Return the weighted mean of arrays, every entry over the models that own it."""
    if all(isinstance(mask, float) or np.all(mask == 1.0) for mask in ownership):
        # Written as the heaviest array plus weighted differences, so that equal arrays return to the last bit.
        heaviest = max(range(len(arrays)), key=weights.__getitem__)
        total = arrays[heaviest]
        for number, (weight, values) in enumerate(zip(weights, arrays, strict=True)):
            if number != heaviest and weight:
                step = values - arrays[heaviest]  # a new array, in which the sum is taken: memory is most of the time
                step *= weight
                step += total
                total = step
        return total
    xp = array_namespace(arrays[0])
    # No mask on the sum: transported arrays are zero where the model has no unit.
    total = sum((w * values for w, values in zip(weights[1:], arrays[1:], strict=True)), start=weights[0] * arrays[0])
    owner_weight = sum(weight * np.asarray(mask) for weight, mask in zip(weights, ownership, strict=True))
    # Entries that no model owns stay zero.
    divisor = np.where(owner_weight > 0, owner_weight, 1.0)
    return total / xp.asarray(divisor, dtype=total.dtype, device=total.device)


def owned_entries(axis: Axis, transports: Mapping[str, Transport], units: Mapping[str, int]) -> Array:
    """Return the ownership mask (n_entries,) of an axis: 1 for entries of units that the model has, 0 for others."""
    stretches = [
        np.ones(segment.length(units)) if segment.group is None else segment.along(transports[segment.group].owned)
        for segment in axis.segments
    ]
    return np.concatenate(stretches)


def check_widths(symmetry: Symmetry, units: Mapping[str, int], requested: Mapping[str, int] | None) -> dict[str, int]:
    """Return the widths of the fused network: the defaults, replaced by the checked widths that the user requested.

    Raises OptionError for groups that do not exist or cannot be resized, and numbers that are not positive.
    """
    widths = dict(units)  # of the fused network
    if not isinstance(requested, Mapping | None):
        example = dict(list(units.items())[:1])
        raise OptionError("target_widths", f"expected numbers of units by group, as {example}, found {requested!r:.80}")
    for name, width in (requested or {}).items():
        if name not in symmetry.by_name:
            text = f"group {name!r} does not exist{suggestion(name, symmetry.by_name)}"
            raise OptionError("target_widths", f"{text}; there are {', '.join(symmetry.by_name)}")
        if not is_count(width):
            raise OptionError("target_widths", f"group {name} must have at least one unit, found {width!r}")
        group = symmetry.by_name[name]
        if width != widths[name] and (not group.resizable or group.parent is not None):
            why = "(a normalisation over units, attention, a fixed reshape) depends on their number"
            text = f"group {name} must keep its {widths[name]} units, since something in the network {why}"
            raise OptionError("target_widths", text)
        widths[name] = int(width)
    return widths
