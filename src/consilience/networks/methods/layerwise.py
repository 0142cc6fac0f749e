"""From the input to the output: match the units of one group after another, by what they receive.

When a group's turn comes, the groups before it have been matched, so that what every unit receives can be written in
the numbering of the fused network: a row per unit, incoming weights and biases side by side. Whoever matches the rows
of one group need not know that there is a network: optimal transport, Wasserstein barycenters and Beta-Bernoulli
matching differ in nothing else.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from consilience.checks import AnyArray, Array
from consilience.core.progress import Progress
from consilience.core.status import Status
from consilience.networks.method import Alignment, NetworkEnsemble, NetworkMethod
from consilience.networks.methods.weight_matching.state import STATISTICS
from consilience.networks.network import Network
from consilience.networks.symmetry.axes import Layout, Place
from consilience.networks.symmetry.transport import Injection, Spread, Transport, move_axis, to_dense
from consilience.networks.symmetry.unit_rows import odd_columns, unit_rows

Writers = Literal["all", "first"]
"""Which layers tell the units of a residual stream apart: all that write to it and are known, or the first alone."""


@dataclass(frozen=True, eq=False)
class Rows:
    """What the units of one group receive, in every model.

    Parameters
    ----------
    width
        Number K of units of the fused network.
    points
        For every model, a row per unit (k_j, F), in the numbering of the fused network on the input side; of the
        networks' array library, in working precision.
    squares
        For every model, the squared length of every row (k_j,), with the variance inside couplings: the mean square of
        what is averaged, not the square of the mean.
    odd
        Which entries of a row change sign with the unit (F,).
    """

    width: int
    points: tuple[AnyArray, ...]
    squares: tuple[AnyArray, ...]
    odd: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))


@dataclass(frozen=True, eq=False)
class Layer:
    """How the units of a group, and of the groups inside it, were matched.

    Parameters
    ----------
    transports
        For every model, by group.
    history
        The objective after each iteration; empty for methods without one.
    details
        Further facts about this group.
    converged
        Whether no limit of iterations ended it.
    """

    transports: tuple[Mapping[str, Transport], ...]
    history: Sequence[float] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    converged: bool = True


@dataclass(frozen=True)
class LayerwiseMethod(NetworkMethod):
    """A method that goes from the input to the output.

    Parameters
    ----------
    writers
        For residual streams, whether all layers that write to them and are known tell their units apart, or the first.
    """

    widths: ClassVar[bool] = True

    writers: Writers = field(default="all", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("writers", self.writers in ("all", "first"), "'all' or 'first'")

    @abstractmethod
    def match(
        self, bundle: Mapping[str, Rows], ensemble: NetworkEnsemble, reference: int, rng: np.random.Generator
    ) -> Layer:
        """Return how the units of one group are matched.

        Parameters
        ----------
        bundle
            Rows of the group (first) and of the groups inside it.
        ensemble
            The models.
        reference
            The model to start from.
        rng
            For random choices.
        """

    @property
    def counts_sent(self) -> bool:
        """Whether what units send counts too, where its readers are known by then."""
        return False

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Match one group after another."""
        return self.pass_through(ensemble, ensemble.reference, rng, progress)

    def pass_through(
        self, ensemble: NetworkEnsemble, reference: int, rng: np.random.Generator, progress: Progress
    ) -> Alignment:
        """Return the alignment of one pass that starts from a reference model."""
        symmetry = ensemble.symmetry
        transports: list[dict[str, Transport]] = [{} for _ in ensemble.networks]
        histories: dict[str, list[float]] = {}
        details: dict[str, Any] = {}
        converged = True
        tops = [name for name, group in symmetry.by_name.items() if group.parent is None]
        for done, top in enumerate(tops):
            names = [top, *(child.name for child in symmetry.children(top))]
            bundle = {name: self._rows(ensemble, name, transports, set(names)) for name in names}
            if not any(rows.points[0].shape[1] for rows in bundle.values()):
                found = _unmoved(ensemble, names)
            else:
                found = self.match(bundle, ensemble, reference, rng)
            for own, more in zip(transports, found.transports, strict=True):
                own.update(more)
            converged = converged and found.converged
            if found.history:
                histories[top] = list(found.history)
            if found.details:
                details[top] = dict(found.details)
            progress(done + 1, len(tops))
        history = total_history(list(histories.values()))
        objective = float(history[-1]) if history.size else float("nan")
        facts: dict[str, Any] = {"groups": details} if details else {}
        status = Status.CONVERGED if converged else Status.MAX_ITERATIONS
        return Alignment(tuple(transports), objective, history, status, facts)

    def _rows(
        self, ensemble: NetworkEnsemble, group: str, transports: Sequence[Mapping[str, Transport]], solving: set[str]
    ) -> Rows:
        """Return what tells the units of a group apart."""
        if ensemble.activations is not None and self.wants_activations:
            points = tuple(
                given.get(group, np.zeros((n.units[group], 0)))
                for given, n in zip(ensemble.activations, ensemble.networks, strict=True)
            )
            return Rows(ensemble.target_units[group], points, tuple((p**2).sum(axis=1) for p in points))
        places = self._places(ensemble, group, set(transports[0]), solving)
        width = ensemble.target_units[group]
        found = [
            _told_apart(network, own, group, places, width)
            for network, own in zip(ensemble.networks, transports, strict=True)
        ]
        return Rows(width, tuple(p for p, _, _ in found), tuple(s for _, s, _ in found), found[0][2])

    def _places(self, ensemble: NetworkEnsemble, group: str, known: set[str], solving: set[str]) -> list[Place]:
        """Return the places that count for the units of a group and whose other axes are known by now."""
        symmetry = ensemble.symmetry
        places = [
            place
            for place in symmetry.places(group)
            if (self.counts_sent or place.side != "input")
            and place.array in ensemble.networks[0].working
            and place.array.rpartition(".")[2] not in STATISTICS
            and symmetry.beside(place) <= known
        ]
        if self.writers == "first" and places:
            layer = places[0].array.rpartition(".")[0]
            places = [place for place in places if place.array.rpartition(".")[0] == layer]
        return places


def _told_apart(
    network: Network, transports: Mapping[str, Transport], group: str, places: Sequence[Place], width: int
) -> tuple[AnyArray, AnyArray, NDArray[np.bool_]]:
    """Return rows of units (k, F) with their inputs moved, their mean squares (k,), and which entries are odd (F,).

    What is sent is split in another width, so that it is compared as shares of what all units send.
    """
    if not places:
        return np.zeros((network.units[group], 0)), np.zeros(network.units[group]), np.zeros(0, dtype=bool)
    expected = {name: one.squared for name, one in transports.items()}
    spread = any(isinstance(one, Spread) for one in transports.values())
    parts, totals, odd = [], [], []
    for place in places:
        layout = network.symmetry.layouts[place.array]
        values = to_dense(network.working[place.array], layout)
        if place.side == "input" and width != network.units[group]:
            values = values * (network.units[group] / width)
        xp = array_namespace(values)
        moved = _moved(values, place, layout, transports, network)
        rows = unit_rows(moved, layout, place, network.units)
        parts.append(rows)
        odd.append(odd_columns(tuple(moved.shape), layout, place))
        if spread:
            squares = unit_rows(_moved(values**2, place, layout, expected, network), layout, place, network.units)
            totals.append(xp.sum(squares, axis=1))
        else:
            totals.append(xp.sum(rows * rows, axis=-1))
    xp = array_namespace(parts[0])
    points = parts[0] if len(parts) == 1 else xp.concat(parts, axis=1)
    return points, sum(totals[1:], start=totals[0]), np.concatenate(odd)


def _moved(
    values: AnyArray, place: Place, layout: Layout, transports: Mapping[str, Transport], network: Network
) -> AnyArray:
    """Return an array with all axes moved but the one of a place."""
    for number, axis in enumerate(layout.axes):
        if number != place.axis:
            values = move_axis(values, number, axis, transports, network.units)
    return values


def _unmoved(ensemble: NetworkEnsemble, names: Sequence[str]) -> Layer:
    """Return transports that move nothing, for units of which nothing is known when their turn comes."""
    return Layer(
        tuple(
            {name: Injection(np.arange(network.units[name]), ensemble.target_units[name]) for name in names}
            for network in ensemble.networks
        )
    )


def total_history(histories: Sequence[Sequence[float]]) -> Array:
    """Return the sum of histories by iteration; those that end earlier keep their last value."""
    steps = max((len(one) for one in histories), default=0)
    padded = [[*one, *[one[-1]] * (steps - len(one))] for one in histories]
    return np.sum(padded, axis=0) if steps else np.zeros(0)
