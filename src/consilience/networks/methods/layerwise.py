"""Layer-wise matching: groups of units from the input to the output, by the weights that units receive.

When a group's turn comes, the groups before it are matched. So the incoming weights of every model can be written in
the numbering of the fused network: one row per unit, incoming weights and biases side by side, with the transports T of
the groups before on the input side,

    row_u = [W_i[u, :] T_i^T, b_i[u]].

A subclass matches the rows of one group (``match``) and need not know that there is a network. Optimal transport,
Wasserstein barycenters and Beta-Bernoulli matching differ in nothing else. The order is greedy: a match is not revised
when later groups are matched.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from consilience.checks import AnyArray, Array
from consilience.core.details import Status
from consilience.core.methods import Requirement
from consilience.core.progress import Progress
from consilience.networks.details import GroupDetails, NetworkDetails
from consilience.networks.method import Alignment, NetworkEnsemble, NetworkMethod
from consilience.networks.methods.weight_matching.state import RUNNING_STATISTICS
from consilience.networks.network import Network, on_host
from consilience.networks.symmetry.axes import Layout, Place
from consilience.networks.symmetry.transport import Injection, Transport, laid_out, move_axis
from consilience.networks.symmetry.unit_rows import odd_columns, row_squares, unit_rows

Writers = Literal["all", "first"]
"""Which layers identify the units of a residual stream: all that write to it and are known by then, or the first."""


@dataclass(frozen=True, eq=False)
class UnitRows:
    """Incoming weights of the units of one group, in every model."""

    width: int  # number K of units in the fused network
    # each (k_j, F): for every model a row per unit, in the numbering of the fused network on the input side; in the
    # networks' array library and working precision
    points: tuple[AnyArray, ...]
    # each (k_j,): for every model the squared length of every row; under couplings that are no permutations it is the
    # mean square of the weights that a row averages, not the square of their mean, so that squared distances include
    # the variance inside the coupling
    squares: tuple[AnyArray, ...]
    are_squares_exact: bool = False  # whether `squares` are, to the last bit, the sums of squares of `points` by row
    # what the columns come from, in their order: the shape of a dense array in the numbering of the fused network, its
    # layout, and the place in it
    sources: Sequence[tuple[tuple[int, ...], Layout, Place]] = ()

    @cached_property
    def odd(self) -> NDArray[np.bool_]:
        """Which entries of a row (F,) change sign with the unit; empty where signs play no part."""
        return np.concatenate([np.zeros(0, dtype=bool), *(odd_columns(*source) for source in self.sources)])


@dataclass(frozen=True, eq=False)
class LayerMatching:
    """Matching of the units of one group, and of the groups inside it."""

    transports: tuple[Mapping[str, Transport], ...]  # for every model and group, the transport of its units
    history: Sequence[float] = ()  # the objective after each iteration
    details: GroupDetails = field(default_factory=GroupDetails)  # further results about this group
    converged: bool = True  # whether the iteration ended before its limit


@dataclass(frozen=True)
class LayerwiseMethod(NetworkMethod):
    """Base class of methods that match one group after another, from the input to the output.

    Parameters
    ----------
    writers : {"all", "first"}
        For residual streams, which layers identify their units: all that write to them and whose other units are
        matched by then, or the first alone. Default: "all".
    """

    widths: ClassVar[bool] = True

    writers: Writers = field(default="all", kw_only=True)

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield ("writers", self.writers in ("all", "first"), "'all' or 'first'")

    @abstractmethod
    def match(
        self, bundle: Mapping[str, UnitRows], ensemble: NetworkEnsemble, reference: int, rng: np.random.Generator
    ) -> LayerMatching:
        """Return the matching of one group, from rows of it (first) and of the groups inside it."""

    @property
    def counts_sent(self) -> bool:
        """Whether outgoing weights count too, where the units that receive them are matched by then."""
        return False

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return the alignment of one pass from the ensemble's reference model."""
        return self.pass_through(ensemble, ensemble.reference, rng, progress)

    def pass_through(
        self, ensemble: NetworkEnsemble, reference: int, rng: np.random.Generator, progress: Progress
    ) -> Alignment:
        """Return the alignment of one pass over all groups, which starts from the reference model."""
        transports: list[dict[str, Transport]] = [{} for _ in ensemble.networks]  # grows group by group
        histories: dict[str, list[float]] = {}
        details: dict[str, GroupDetails] = {}
        converged = True
        # In the order of computation; heads are matched together with what lies inside them.
        top_groups = [name for name, group in ensemble.symmetry.by_name.items() if group.parent is None]
        for number, top in enumerate(top_groups):
            names = [top, *(child.name for child in ensemble.symmetry.children(top))]
            bundle = {name: self._unit_rows(ensemble, name, transports) for name in names}
            if any(rows.points[0].shape[1] for rows in bundle.values()):
                matching = self.match(bundle, ensemble, reference, rng)
            else:  # units without any row when their turn comes stay as they are numbered
                units = ensemble.target_units
                stay = ({n: Injection(np.arange(of.units[n]), units[n]) for n in names} for of in ensemble.networks)
                matching = LayerMatching(tuple(stay))
            for model_transports, group_transports in zip(transports, matching.transports, strict=True):
                model_transports.update(group_transports)
            converged = converged and matching.converged
            if matching.history:
                histories[top] = list(matching.history)
            if matching.details:
                details[top] = matching.details
            progress(number + 1, len(top_groups))
        history = sum_histories(list(histories.values()))
        objective = float(history[-1]) if history.size else float("nan")
        group_details: NetworkDetails = {"groups": details} if details else {}
        status = Status.CONVERGED if converged else Status.MAX_ITERATIONS
        return Alignment(tuple(transports), objective, history, status, group_details)

    def _unit_rows(
        self, ensemble: NetworkEnsemble, group: str, transports: Sequence[Mapping[str, Transport]]
    ) -> UnitRows:
        """Return the rows by which the units of a group are matched: activations, or weights at known places.

        `transports` are those of the groups matched so far, for every model.
        """
        width = ensemble.target_units[group]
        if ensemble.activations is not None and self.wants_activations:
            points = tuple(
                model_activations.get(group, np.zeros((network.units[group], 0)))
                for model_activations, network in zip(ensemble.activations, ensemble.networks, strict=True)
            )
            return UnitRows(width, points, tuple(map(row_squares, points)))
        places = self._known_places(ensemble, group, set(transports[0]))
        models = [
            _incoming_rows(network, model_transports, group, places, width)
            for network, model_transports in zip(ensemble.networks, transports, strict=True)
        ]
        points, squares, sources = zip(*models, strict=True)
        # Sums over several places, and mean squares under a coupling, are other numbers than sums over whole rows.
        is_exact = len(places) == 1 and not any(map(_has_soft, transports))
        return UnitRows(width, points, squares, is_exact, sources[0])

    def _known_places(self, ensemble: NetworkEnsemble, group: str, matched_groups: set[str]) -> list[Place]:
        """Return the places that count for the units of a group and whose other axes are matched by now."""
        symmetry = ensemble.symmetry
        places = [
            place
            for place in symmetry.places(group)
            if (self.counts_sent or place.side != "input")
            and place.array in ensemble.networks[0].working
            and place.array.rpartition(".")[2] not in RUNNING_STATISTICS
            and symmetry.beside(place) <= matched_groups
        ]
        # As published: the first layer that writes to a residual stream decides, the others follow.
        if self.writers == "first" and places:
            layer = places[0].array.rpartition(".")[0]
            places = [place for place in places if place.array.rpartition(".")[0] == layer]
        return places


def _incoming_rows(
    network: Network, transports: Mapping[str, Transport], group: str, places: Sequence[Place], width: int
) -> tuple[AnyArray, AnyArray, list[tuple[tuple[int, ...], Layout, Place]]]:
    """Return the rows of one model's units (k, F), their mean squares (k,), and the sources of `UnitRows`.

    Axes other than the group's own are transported into the numbering of the fused network.
    """
    if not places:
        return np.zeros((network.units[group], 0)), np.zeros(network.units[group]), []
    has_soft = _has_soft(transports)
    # Squares move by squared weights of the coupling; see ``Spread.squared``.
    squared_transports = {name: transport.squared for name, transport in transports.items()} if has_soft else {}
    parts, square_sums, sources = [], [], []  # by place, the first two (k, F_p) and (k,)
    for place in places:
        layout = network.symmetry.layouts[place.array]
        values = laid_out(on_host(network.working[place.array]), layout)
        if place.side == "input" and width != network.units[group]:
            # In another width outgoing weights are split; scaled so, they compare with those of the fused units.
            values = values * (network.units[group] / width)
        transported = _move_other_axes(values, place, layout, transports, network)
        rows = unit_rows(transported, layout, place, network.units)
        parts.append(rows)
        sources.append((tuple(transported.shape), layout, place))
        if has_soft:
            # Mean squares under the coupling, not squares of means: equation (36) instead of (35) of the
            # Wasserstein paper's appendix D.
            squares = _move_other_axes(values**2, place, layout, squared_transports, network)
            square_sums.append(array_namespace(squares).sum(unit_rows(squares, layout, place, network.units), axis=1))
        else:
            square_sums.append(row_squares(rows))
    points = parts[0] if len(parts) == 1 else array_namespace(parts[0]).concat(parts, axis=1)  # (k, F)
    return points, sum(square_sums[1:], start=square_sums[0]), sources


def _has_soft(transports: Mapping[str, Transport]) -> bool:
    """Return whether a unit of a model may be spread over several places."""
    return any(transport.is_soft for transport in transports.values())


def _move_other_axes(
    values: AnyArray, place: Place, layout: Layout, transports: Mapping[str, Transport], network: Network
) -> AnyArray:
    """Return an array with all axes transported but the one of a place."""
    for number, axis in layout.moving_axes:
        if number != place.axis:
            values = move_axis(values, number, axis, transports, network.units)
    return values


def sum_histories(histories: Sequence[Sequence[float]]) -> Array:
    """Return the sum of several histories (n_iterations,); those that end earlier keep their last value."""
    # Layers converge after different numbers of iterations; the sum never rises if none of them does.
    n_steps = max((len(history) for history in histories), default=0)
    padded = [[*history, *[history[-1]] * (n_steps - len(history))] for history in histories]
    return np.sum(padded, axis=0) if n_steps else np.zeros(0)
