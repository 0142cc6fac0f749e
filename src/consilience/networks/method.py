"""What every method for networks is: say where the units of every model go; the rest is the same for all.

A method is a frozen dataclass of options with one job of its own, ``align``: a transport for every group of every
model. Then every weight is averaged once, over the models that own the unit which receives it:

    W[u, v] = sum_i a_i (T_i W_i S_i)[u, v] / sum_i a_i [model i has unit u],

T_i the output side and S_i the input side of the transports (see ``networks.transport``). A unit that only some models
have keeps their weights, and what it sends on counts as much as those models do; so where all units find room side by
side, the fused network computes the average of the models' logits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import AnyArray, Array, is_count, is_number
from consilience.core.options import Options
from consilience.core.progress import Progress, silent
from consilience.core.status import Status
from consilience.errors import InputError, OptionError
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.network import Network
from consilience.networks.robust import credible, distances, geometric_median, refuse_robust, trusted
from consilience.networks.symmetry.axes import Axis
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Transport, move_axis, to_blocks, to_dense
from consilience.posteriors.robust.estimators import How, Robust


@dataclass(frozen=True, eq=False)
class NetworkEnsemble:
    """Networks of one symmetry, what each counts, and how wide the fused one is to be.

    Parameters
    ----------
    networks
        The models.
    weights
        How much each counts (J,), summing to 1.
    target_units
        Number of units of every group of the fused network.
    reference
        The model whose numbering of units the fused network keeps where it can.
    activations
        For every model, what its units give on the same inputs, by group (k, m); for methods that match by these.
    given
        For every model, its number in the list that was handed in, to which options that speak of models refer.
    placed
        For every model, where a matching of all groups together puts its units; for methods that start from there.
    information
        For every model, the Fisher information of its parameters; for methods that weigh by it.
    priors
        For every Bayesian network, its prior variances by name of the parameter, None where it states none.
    """

    networks: tuple[Network, ...]
    weights: Array
    target_units: Mapping[str, int]
    reference: int = 0
    activations: tuple[Mapping[str, Array], ...] | None = None
    given: tuple[int, ...] = ()
    placed: tuple[Mapping[str, Transport], ...] | None = None
    information: tuple[FisherInformation, ...] | None = None
    priors: tuple[Mapping[str, float] | None, ...] | None = None

    @property
    def symmetry(self) -> Symmetry:
        """The symmetry that all share."""
        return self.networks[0].symmetry

    @property
    def same_units(self) -> bool:
        """Whether all models have as many units as the fused network."""
        return all(dict(network.units) == dict(self.target_units) for network in self.networks)


@dataclass(frozen=True, eq=False)
class Alignment:
    """What ``align`` gives.

    Parameters
    ----------
    transports
        For every model, where the units of every group go.
    objective
        Value of the method's objective at the end; NaN for a method without one.
    history
        The objective after each iteration (iterations,).
    status
        How it ended.
    details
        Further facts worth reporting, as JSON values.
    arrays
        The fused arrays, for methods that find them with the alignment; None averages.
    """

    transports: tuple[Mapping[str, Transport], ...]
    objective: float = float("nan")
    history: Array = field(default_factory=lambda: np.zeros(0))
    status: Status = Status.CONVERGED
    details: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, AnyArray] | None = None


@dataclass(frozen=True, eq=False)
class NetworkOutcome:
    """A finished fusion of networks: how they were aligned, the fused one, and the networks as they were averaged."""

    alignment: Alignment
    network: Network
    ensemble: NetworkEnsemble


@dataclass(frozen=True)
class NetworkMethod(Options, ABC):
    """A way to fuse networks; its fields are its options.

    Class attributes describe it for users: ``name``, ``summary`` (one line), ``needs`` and ``gives`` (what goes in and
    comes out), ``paper`` (a key of docs/refs.bib, or why there is none), ``widths`` (whether models and the fused
    network may differ in their numbers of units), ``keeps_models`` (whether the fused model is all models side by
    side), and ``optional_symmetry`` (whether it goes without knowing which axes move together, units as they are).

    Parameters
    ----------
    robust
        For sites that may be hostile or broken: ``"trim"`` leaves out the part `trim` of the models that is farthest
        from where most are, ``"median"`` takes geometric medians, row by row. None trusts every site.
    trim
        Part of the models that may be hostile, below one half.
    """

    summary: ClassVar[str]
    needs: ClassVar[str]
    gives: ClassVar[str]
    paper: ClassVar[str]
    widths: ClassVar[bool] = False
    keeps_models: ClassVar[bool] = False
    optional_symmetry: ClassVar[bool] = False

    robust: How | None = field(default=None, kw_only=True)
    trim: float = field(default=0.2, kw_only=True)

    def __post_init__(self) -> None:
        self.require("robust", self.robust in ("trim", "median", None), "'trim', 'median' or None")
        self.require("trim", is_number(self.trim) and 0 < self.trim < 0.5, "a number between 0 and 0.5")

    @property
    def averages(self) -> bool:
        """Whether the fused weights are averages of aligned ones."""
        return not self.keeps_models

    @property
    def wants_activations(self) -> bool:
        """Whether it matches by what units give on inputs."""
        return False

    @property
    def wants_information(self) -> bool:
        """Whether it weighs parameters by Fisher information."""
        return False

    @property
    def refits(self) -> bool:
        """Whether every layer is to be fitted anew to what the models answer, where they are modules."""
        return False

    @abstractmethod
    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return where the units of every model go."""

    def default_units(self, networks: Sequence[Network], reference: int | None) -> dict[str, int]:
        """Return how wide the fused network is where nobody says: as the widest model.

        Parameters
        ----------
        networks
            The models.
        reference
            The model to start from, if somebody said which.
        """
        return {name: max(network.units[name] for network in networks) for name in networks[0].units}

    def prepare(self, ensemble: NetworkEnsemble) -> NetworkEnsemble:
        """Return the networks that are aligned and averaged: the same functions, perhaps written otherwise."""
        return ensemble

    def refuse(self, ensemble: NetworkEnsemble) -> list[str]:
        """Return why these networks cannot be fused with these options, a line each; empty when they can."""
        if self.wants_activations and ensemble.activations is None:
            return [
                f"{self.name}: matching by activations needs inputs=..., unlabeled inputs that all models are asked"
            ]
        if self.widths:
            return []
        return [
            f"{network.name}: group {group} has {network.units[group]} units where the fused network has {units}; "
            f"method {self.name!r} needs the same everywhere (methods 'consensus', 'ot' and 'wb' do not)"
            for network in ensemble.networks
            for group, units in ensemble.target_units.items()
            if network.units[group] != units
        ]

    @final
    def reasons(self, ensemble: NetworkEnsemble) -> list[str]:
        """Return everything that is in the way of fusing these networks, a line each."""
        robust = self.robust
        voting = int(np.count_nonzero(ensemble.weights))
        hostile = [] if robust is None else refuse_robust(self.name, robust, voting, averages=self.averages)
        return _unsplittable(ensemble) + hostile + self.refuse(ensemble)

    @final
    def fuse(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress = silent) -> NetworkOutcome:
        """Align and average.

        Raises
        ------
        InputError
            When the networks do not fit the options.
        """
        if reasons := self.reasons(ensemble):
            raise InputError(reasons)
        prepared = self.prepare(ensemble)
        robust = None if self.robust is None else Robust(self.robust, self.trim)
        found = self.align(prepared if robust is None else credible(prepared, robust), rng, progress)
        arrays = found.arrays
        if arrays is None:
            arrays = average(prepared, found.transports, robust)
        return NetworkOutcome(found, prepared.networks[ensemble.reference].with_arrays(arrays), prepared)


def _unsplittable(ensemble: NetworkEnsemble) -> list[str]:
    """Return which groups cannot have another width, since one array both makes and reads their units."""
    symmetry = ensemble.symmetry
    both = {name: place.array for name in symmetry.by_name for place in symmetry.places(name) if place.side == "both"}
    return [
        f"{network.name}: group {name} has {network.units[name]} units where the fused network has "
        f"{ensemble.target_units[name]}; {array} makes these units and reads them too (tied weights), which no "
        "other width can do alike: keep the width, or untie the weights"
        for network in ensemble.networks
        for name, array in both.items()
        if network.units[name] != ensemble.target_units[name]
    ]


def average(
    ensemble: NetworkEnsemble, transports: tuple[Mapping[str, Transport], ...], robust: Robust | None = None
) -> dict[str, AnyArray]:
    """Return the average of moved networks, every weight over the models that own the unit which receives it."""
    weights = ensemble.weights.tolist()
    layouts = {key: ensemble.symmetry.layouts[key] for key in ensemble.networks[0].working}
    if robust is not None and robust.how == "trim":
        far = [distances(*_at_home(ensemble, transports, key), weights, layout) for key, layout in layouts.items()]
        voting = np.flatnonzero(ensemble.weights > 0)  # what counts nothing has no say in who is far from whom
        left = np.zeros(len(weights))
        left[voting] = trusted(np.array(far)[:, voting], robust) * ensemble.weights[voting]
        weights = (left / left.sum()).tolist()
    fused = {}
    for key, layout in layouts.items():
        moved, owned = _at_home(ensemble, transports, key)
        if robust is not None and robust.how == "median":
            mean = geometric_median(moved, owned, weights, layout)
        else:
            mean = _mean(moved, owned, weights)
        fused[key] = to_blocks(mean, layout)
    return fused


def _at_home(
    ensemble: NetworkEnsemble, transports: tuple[Mapping[str, Transport], ...], key: str
) -> tuple[list[AnyArray], list[Any]]:
    """Return one array of every model with its units moved, and 1 where the model owns the unit that receives."""
    layout = ensemble.symmetry.layouts[key]
    moved, owned = [], []
    for network, moves in zip(ensemble.networks, transports, strict=True):
        values = to_dense(network.working[key], layout)
        held: Any = 1.0
        for number, axis in enumerate(layout.axes):
            values = move_axis(values, number, axis, moves, network.units)
            if axis.moves and axis.side != "input":
                shape = tuple(-1 if n == number else 1 for n in range(len(layout.axes)))
                held = held * np.reshape(owned_entries(axis, moves, ensemble.target_units), shape)
        moved.append(values)
        owned.append(held)
    return moved, owned


def _mean(moved: Sequence[AnyArray], owned: Sequence[Any], weights: Sequence[float]) -> AnyArray:
    """Return the weighted mean of arrays over those that own an entry.

    Where all own all, it is the array of most weight plus weighted differences: exact for equal arrays.
    """
    if all(np.all(np.asarray(held) == 1.0) for held in owned):
        most = max(range(len(moved)), key=weights.__getitem__)
        total = moved[most]
        for number, (weight, values) in enumerate(zip(weights, moved, strict=True)):
            if number != most and weight:
                total = total + weight * (values - moved[most])
        return total
    xp = array_namespace(moved[0])
    total = sum((w * values for w, values in zip(weights[1:], moved[1:], strict=True)), start=weights[0] * moved[0])
    share = sum(weight * np.asarray(held) for weight, held in zip(weights, owned, strict=True))
    return total / xp.asarray(np.where(share > 0, share, 1.0), dtype=total.dtype, device=total.device)


def owned_entries(axis: Axis, transports: Mapping[str, Transport], units: Mapping[str, int]) -> Array:
    """Return 1 for entries of an axis whose unit the model has, 0 for the others."""
    return np.concatenate(
        [
            np.ones(segment.length(units)) if segment.group is None else segment.along(transports[segment.group].owned)
            for segment in axis.segments
        ]
    )


def check_widths(symmetry: Symmetry, units: Mapping[str, int], given: Mapping[str, int] | None) -> dict[str, int]:
    """Return the number of units of every group of the fused network: as `units`, but for what is given.

    Raises
    ------
    OptionError
        For groups that do not exist or cannot be resized, and numbers that are not positive.
    """
    widths = dict(units)
    for name, width in (given or {}).items():
        if name not in symmetry.by_name:
            raise OptionError(f"target_widths: group {name!r} does not exist; there are {', '.join(symmetry.by_name)}")
        if not is_count(width):
            raise OptionError(f"target_widths: group {name} must have at least one unit, found {width!r}")
        group = symmetry.by_name[name]
        if width != widths[name] and (not group.resizable or group.parent is not None):
            raise OptionError(
                f"target_widths: group {name} must keep its {widths[name]} units, since something in the network "
                "(a normalisation over units, attention, a fixed reshape) depends on their number"
            )
        widths[name] = int(width)
    return widths
