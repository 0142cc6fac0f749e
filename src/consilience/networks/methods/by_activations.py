"""Matching and joining of units by their activations into the slots of a network of any width.

The fused network has K slots in every group. With x_u the activations of unit u of any model over inputs, centred and
of length 1, units are placed in slots so that

    E = sum_slots sum_{units in the slot} |x_u - mean of the slot|^2

is least. In `ActivationSlots` no two units of one model share a slot. At the width of the models that is the matching
of activations, with all models against the mean of the others. In wider networks only those units share a slot that
answer alike, and the others stand beside each other: the partial merging of ZipIt (Stoica et al. 2024), by
correlations. E is lowered model by model, all others held, by a linear assignment problem: joining a slot of s units
with mean m costs s / (s + 1) |x - m|^2, an empty slot next to nothing.

At the width of J models each slot then has to hold one unit of every model, alike or not. In `ActivationJoins` a unit
without a partner elsewhere stays in a slot of its own, and in exchange units of one model that answer alike are joined:
the merging within models of ZipIt. Joined units are averaged, and what reads them reads their mean. There E is the
objective of k-means, which is started at Ward's minimum-variance merging (Ward 1963), where ZipIt merges greedily by
the largest correlation, and lowered by moving units to the nearest mean. Both need correlations of units only.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.optimize import linear_sum_assignment

from consilience.checks import Array, Labels
from consilience.core.progress import Progress
from consilience.errors import UnsupportedError
from consilience.networks.method import Alignment, NetworkEnsemble
from consilience.networks.methods.consensus import MIN_RELATIVE_DECREASE
from consilience.networks.methods.layerwise import LayerMatching, LayerwiseMethod, UnitRows
from consilience.networks.network import to_numpy
from consilience.networks.symmetry.transport import Injection, MatrixTransport, Transport

MAX_PASSES = 50
"""A bound that is not reached: passes of `match_to_slots` end at the first one that lowers E by a thousandth or
less, after 3 to 6 on four ResNet-8."""

EMPTY_SLOT_COST = 1e-6
"""What an empty slot costs, so that units that are equal but for the rounding of single precision share one."""

ROUNDING = 1e-12
"""Squared distances of rows of length 1 that differ by less are equal but for rounding."""


@dataclass(frozen=True)
class ByActivations(LayerwiseMethod):
    """A method that places the units of every group, of all models, in the slots of the fused network.

    The default fusion makes candidates by such methods, on the inputs that it draws; they have no names among the
    methods.
    """

    @property
    def wants_activations(self) -> bool:
        """Units are compared by their activations."""
        return True

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return the transports into the slots, group by group; UnsupportedError for groups inside others."""
        if any(group.parent is not None for group in ensemble.symmetry.all_groups):
            raise UnsupportedError("units inside heads are not compared by activations")
        return super().align(ensemble, rng, progress)

    def match(
        self, bundle: Mapping[str, UnitRows], ensemble: NetworkEnsemble, reference: int, rng: np.random.Generator
    ) -> LayerMatching:
        """Return the slots of one group's units; UnsupportedError where their activations are unknown."""
        ((group, rows),) = bundle.items()
        points = [to_numpy(values) for values in rows.points]
        if any(not values.shape[1] for values in points):
            raise UnsupportedError(f"no layer reads the units of group {group} alone, so their activations are unknown")
        slots, history = self.place(points, rows.width)
        transports = tuple({group: self.transport(of_model, rows.width)} for of_model in slots)
        return LayerMatching(transports, history, converged=len(history) < MAX_PASSES)

    @abstractmethod
    def place(self, points: Sequence[Array], width: int) -> tuple[list[Labels], list[float]]:
        """Return the slots of units with activations (k_j, m), model by model, and the objective after each pass."""

    @abstractmethod
    def transport(self, slots: Labels, width: int) -> Transport:
        """Return the transport of a model's units (k,) to slots."""


def unit_correlations(points: Sequence[Array]) -> Array:
    """Return the correlations (L, L) of the rows (k_j, m) of all models; 0 for rows that are constant."""
    rows = np.concatenate([values - values.mean(axis=1, keepdims=True) for values in points])
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    # A row that is constant but for rounding has no correlation.
    floor = np.finfo(np.float64).eps ** 0.5 * float(lengths.max(initial=0.0))
    rows = np.where(lengths > floor, rows / np.maximum(lengths, np.finfo(np.float64).tiny), 0.0)
    return np.asarray(rows @ rows.T)


def distances_to_slots(correlations: Array, members: Array, products: Array) -> tuple[Array, Array, float]:
    """Return the size (K,) of every slot, the squared distance (L, K) of every unit from its mean, and E.

    From an empty slot the distance is that from 0. Members (L, K) are 1 where a unit is in a slot; products (L, K), of
    every unit with the sum of a slot, are ``correlations @ members``.
    """
    squares = np.diag(correlations)  # (L,): 1, or 0 for constant rows
    sizes = members.sum(axis=0)
    sum_squares = np.einsum("lk,lk->k", members, products)  # (K,): of the slots' sums
    divisors = np.maximum(sizes, 1.0)
    distances = squares[:, None] - 2.0 * products / divisors + sum_squares / divisors**2
    return sizes, distances, float(max(squares.sum() - (sum_squares / divisors).sum(), 0.0))


@dataclass(frozen=True)
class ActivationSlots(ByActivations):
    """Match the units of all models by their activations, keep apart what finds no partner, and average.

    References
    ----------
    Stoica, Bolya, Bjorner, Ramesh, Hearn, Hoffman (2024), "ZipIt! Merging models from different tasks without
    training", ICLR, for partial merging by correlations; the objective over slots is that of ``consensus``.
    """

    name: ClassVar[str] = "activation_slots"
    summary: ClassVar[str] = "match units by their activations, keep apart what finds no partner"
    needs: ClassVar[str] = "networks of one architecture, and inputs; the fused one is no narrower"
    gives: ClassVar[str] = "one network of any width no smaller than the widest"
    paper: ClassVar[str] = "none: partial merging (stoica2024) over the slots of consensus"

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return the transports into the slots, group by group; UnsupportedError for networks that are wider."""
        for network in ensemble.networks:
            if wider := [g for g, width in ensemble.target_units.items() if network.units[g] > width]:
                raise UnsupportedError(f"group {wider[0]} of {network.name} has more units than there are slots")
        return super().align(ensemble, rng, progress)

    def place(self, points: Sequence[Array], width: int) -> tuple[list[Labels], list[float]]:
        """Return the slots, no two units of a model in one; see `ByActivations.place`."""
        return match_to_slots(points, width)

    def transport(self, slots: Labels, width: int) -> Injection:
        """Return the transport of a model's units (k,) to slots of their own."""
        return Injection(slots, width)


def match_to_slots(points: Sequence[Array], width: int) -> tuple[list[Labels], list[float]]:
    """Return the slot of each unit of every model, and E after each pass, from activations (k_j, m).

    There are at least as many slots as units of a model.

    Examples
    --------
    >>> units = np.array([[1.0, 0, 0, 0], [0, 1.0, 0, 0]])
    >>> [slots.tolist() for slots in match_to_slots([units, units[::-1]], 2)[0]]
    [[0, 1], [1, 0]]
    """
    correlations = unit_correlations(points)
    ends = np.cumsum([len(values) for values in points])
    units = [np.arange(end - len(values), end) for values, end in zip(points, ends, strict=True)]
    members = np.zeros((len(correlations), width))  # 1 where a unit is in a slot
    slots: list[Labels] = [np.arange(len(of_model)) for of_model in units]
    members[units[0], slots[0]] = 1.0
    history: list[float] = []
    while len(history) < MAX_PASSES:
        products = correlations @ members  # (L, K): anew in every pass, so that rounding does not add up
        for model, rows in enumerate(units):
            if not history and not model:
                continue
            if history:
                members[rows] = 0.0
                products[:, slots[model]] -= correlations[:, rows]  # one unit of a model in a slot at most
            sizes, distances, _ = distances_to_slots(correlations, members, products)
            costs = np.where(sizes > 0, sizes / (sizes + 1.0) * distances[rows], EMPTY_SLOT_COST)  # (k, K)
            slots[model] = linear_sum_assignment(costs)[1]
            members[rows, slots[model]] = 1.0
            products[:, slots[model]] += correlations[:, rows]
        history.append(distances_to_slots(correlations, members, products)[2])
        if len(history) > 1 and history[-2] - history[-1] <= MIN_RELATIVE_DECREASE * history[-2]:
            break
    return slots, history


@dataclass(frozen=True)
class ActivationJoins(ByActivations):
    """Join units that answer alike, within and across models, until the width is reached, and average.

    References
    ----------
    Stoica, Bolya, Bjorner, Ramesh, Hearn, Hoffman (2024), "ZipIt! Merging models from different tasks without
    training", ICLR, for joins within and across models by correlations; Ward (1963), "Hierarchical grouping to optimize
    an objective function", Journal of the American Statistical Association, for the order of joins.
    """

    name: ClassVar[str] = "activation_joins"
    summary: ClassVar[str] = "join units that answer alike, within and across models"
    needs: ClassVar[str] = "networks of one architecture, and inputs"
    gives: ClassVar[str] = "one network of any width"
    paper: ClassVar[str] = "none: joins within and across models (stoica2024) by the objective of k-means"

    def match(
        self, bundle: Mapping[str, UnitRows], ensemble: NetworkEnsemble, reference: int, rng: np.random.Generator
    ) -> LayerMatching:
        """Return the slots of one group's units; UnsupportedError for tied weights too."""
        for group in bundle:
            if any(place.side == "both" for place in ensemble.symmetry.places(group)):
                raise UnsupportedError(
                    f"one array both makes and reads the units of group {group}, which joins cannot do"
                )
        return super().match(bundle, ensemble, reference, rng)

    def place(self, points: Sequence[Array], width: int) -> tuple[list[Labels], list[float]]:
        """Return the slots, of which several units of a model may share one; see `ByActivations.place`."""
        return join_units(points, width)

    def transport(self, slots: Labels, width: int) -> MatrixTransport:
        """Return the transport of a model's units (k,) to slots."""
        return join_transport(slots, width)


def join_transport(slots: Labels, width: int) -> MatrixTransport:
    """Return the transport of a model's units (k,) to slots, of which several may be in one.

    Examples
    --------
    >>> transport = join_transport(np.array([0, 2, 0]), 3)
    >>> transport.receiving.tolist(), transport.owned.tolist()
    ([[0.5, 0.0, 0.5], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [1.0, 0.0, 1.0])
    """
    members = np.zeros((width, len(slots)))  # 1 where a unit is in a slot
    members[slots, np.arange(len(slots))] = 1.0
    return MatrixTransport(members / np.maximum(members.sum(axis=1, keepdims=True), 1.0), members)


def join_units(points: Sequence[Array], width: int) -> tuple[list[Labels], list[float]]:
    """Return the slot of each unit of every model, and E at the start and after each pass, from activations (k_j, m).

    Examples
    --------
    >>> first = np.array([[1.0, 0, 0, -1], [2.0, 0, 0, -2]])
    >>> second = np.array([[0, 1.0, -1, 0], [1.0, 0, 0, -1]])
    >>> [slots.tolist() for slots in join_units([first, second], 2)[0]]
    [[0, 0], [1, 0]]
    """
    correlations = unit_correlations(points)
    n_units = len(correlations)
    ends = np.cumsum([len(values) for values in points])[:-1]
    if n_units <= width:
        return np.split(np.arange(n_units), ends), [0.0]
    squares = np.diag(correlations)  # (L,): 1, or 0 for constant rows
    distances = np.sqrt(np.maximum(squares[:, None] + squares - 2.0 * correlations, 0.0))
    merges = linkage(distances[np.triu_indices(n_units, 1)], "ward")
    slots: Labels = cut_tree(merges, n_clusters=width)[:, 0].astype(np.int64)
    history: list[float] = []
    while len(history) < MAX_PASSES:
        members = np.zeros((n_units, width))
        members[np.arange(n_units), slots] = 1.0
        sizes, to_means, objective = distances_to_slots(correlations, members, correlations @ members)
        history.append(objective)
        to_means[:, sizes == 0] = np.inf
        nearest = to_means.argmin(axis=1)
        # Of equally near means a unit keeps its own, so that passes end.
        own, best = (to_means[np.arange(n_units), of_unit] for of_unit in (slots, nearest))
        moved = np.where(best < own - ROUNDING, nearest, slots)
        if np.array_equal(moved, slots):
            break
        slots = moved
    return np.split(slots, ends), history
