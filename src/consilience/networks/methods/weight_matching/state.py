"""State of weight matching: models placed in the slots of one network, and the gain of assigning a unit to a slot.

The fused network has K slots in every group. A model with k units fills k of them; the other entries of its arrays are
zero. Units of different models in one slot are *merged*. Merging costs the squared distance of all weights that touch
the merged units. So all weight matching here minimises

    E = sum_{i < j} a_i a_j sum_entries [the entry touches a unit merged from i and j] (theta_i - theta_j)^2,

with a_i the weight of model i and theta_i its arrays in the slots. Units of one model alone cost nothing. With as many
slots as units all units are merged, and E is the weighted sum of squared distances of all pairs of models: weight
matching of Ainsworth et al. (2023), a sum of bilinear assignments. For one group of one model, all else fixed, the best
slots solve a linear assignment problem.

Models that no memory holds are lazy (`LazyModel`): arrays are read and moved when a product needs them, when units move
only transports change, and products are recomputed at every visit (`RecomputedProducts`), since one of them for each
place of each group would be more than the largest arrays. So the descent holds one array of each model at a time, and
matrices (K, K) of one group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import AnyArray, Array
from consilience.matching.assignment import assign_block, assign_nested
from consilience.networks.methods.weight_matching.products import AssignmentGain, InnerProducts
from consilience.networks.network import Network, square_sum, to_numpy
from consilience.networks.symmetry.axes import Axis, Layout, Place
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Injection, move_axis, move_laid_out
from consilience.networks.symmetry.unit_rows import unit_rows

RUNNING_STATISTICS = ("running_mean", "running_var")
"""Buffers of batch normalisation. They describe the data, not the units, so no matching by weights compares them."""


def has_matched_units(name: str, layout: Layout) -> bool:
    """Return whether weight matching compares an array: units stand in it, and it describes them and not the data."""
    return name.rpartition(".")[2] not in RUNNING_STATISTICS and any(axis.moves for axis in layout.axes)


@dataclass(eq=False)
class PlacedModel:
    """One model in the slots; both of its mappings are replaced when its units move, never written to."""

    # its arrays that move, dense, in the shapes of the fused network; zero where the model has no unit
    arrays: Mapping[str, AnyArray]
    transports: Mapping[str, Injection]  # by group, the slot of each of its units

    def moved(self, symmetry: Symmetry, moves: Mapping[str, Injection], width: Mapping[str, int]) -> PlacedModel:
        """Return the model with the units of some groups moved from slot to slot, by permutations of all K slots."""
        arrays = dict(self.arrays)
        for group in moves:
            # A group may stand in several segments of one axis: each (array, axis) is moved once.
            for key, number in {(place.array, place.axis): None for place in symmetry.places(group)}:
                if key in arrays:
                    axis = symmetry.layouts[key].axes[number]
                    arrays[key] = move_axis(arrays[key], number, axis, {group: moves[group]}, width)
        return PlacedModel(arrays, self._transports_after(moves))

    def _transports_after(self, moves: Mapping[str, Injection]) -> dict[str, Injection]:
        """Return the slot of each unit, by group, after some groups have moved."""
        return {**self.transports, **{group: self.transports[group].then(move) for group, move in moves.items()}}


@dataclass(frozen=True, eq=False)
class RemainingModels:
    """The models that stay while one moves."""

    models: Sequence[tuple[float, PlacedModel]]  # the models with their weights
    products: InnerProducts  # inner products of the model that moves with the weighted sum of these models


@dataclass(frozen=True, eq=False)
class MatchingState:
    """The slots of the fused network, and how matching by them is set up."""

    symmetry: Symmetry  # which axes move together
    width: Mapping[str, int]  # number K of slots of every group
    is_full: bool  # whether every model fills every slot
    allows_signs: bool = False  # whether units may change sign, where that changes no output
    # groups whose units keep their order, because the same weights make them in all models
    fixed_groups: frozenset[str] = frozenset()
    product_type: type[InnerProducts] = InnerProducts  # class that compares unit rows
    # moves are made only if they gain more than this fraction of the sizes that are compared, so that a descent ends:
    # about the rounding of single precision; chosen by hand, nobody has measured other values
    min_relative_gain: float = 1e-7
    # whether recurrent weights enter an assignment linearised, as in Ainsworth et al. (2023), instead of by the
    # quadratic problem; that ends 2 % lower, but takes 5 to 16 times the memory and 38 to 56 times the time (an LSTM of
    # two layers of 400 units and a residual network of 600, unrelated models)
    linearizes_recurrent: bool = False

    @cached_property
    def sign_groups(self) -> frozenset[str]:
        """The groups whose units may change sign: none that has others inside, or lies inside another."""
        parents = {group.parent for group in self.symmetry.all_groups}
        return frozenset(
            group.name
            for group in self.symmetry.all_groups
            if self.allows_signs and "sign" in group.actions and group.parent is None and group.name not in parents
        )

    def place(self, network: Network, transports: Mapping[str, Injection]) -> PlacedModel:
        """Return a network placed in the slots, by the slot of each unit of every group."""
        layouts = self.symmetry.layouts
        arrays = {
            key: move_laid_out(values, layouts[key], transports, network.units)
            for key, values in network.working.items()
            if has_matched_units(key, layouts[key])
        }
        return PlacedModel(arrays, transports)

    def places(self, group: str, arrays: Iterable[str]) -> list[Place]:
        """Return the places of a group in the named arrays."""
        names = set(arrays)
        return [place for place in self.symmetry.places(group) if place.array in names]

    def assignment_gain(
        self, model: PlacedModel, remaining: RemainingModels, group: str, places: Sequence[Place]
    ) -> AssignmentGain:
        """Return the gain (K, K) of moving the unit in one slot (row) to another slot (column), all else fixed.

        It is half of the fall of E, divided by the weight a_i of the model that moves. With every slot full, that is
        the inner product of the unit's row with the row of the weighted sum of the other models. Otherwise squares
        count too: a unit that merges pays for its own weights and for those of its partner that were free before.
        """
        total: AssignmentGain | None = None
        for place in places:
            products = remaining.products.at(place, model.arrays)
            total = products if total is None else total.plus(products)
        n_slots = self.width[group]
        if total is None:  # heads that stand in no array themselves; only the units inside them do
            zeros = np.zeros((n_slots, n_slots))
            return AssignmentGain(zeros, zeros if group in self.sign_groups else None)
        gain = AssignmentGain(to_numpy(total.even), None if total.odd is None else to_numpy(total.odd))
        if self.is_full:
            return gain
        # sum_j a_j [j fills the column] (2 <row, column_j> - |row|^2 - |column_j|^2) / 2. The products need no mask:
        # empty slots are zero. The squares leave out entries that E counts anyway, for merged units of other groups.
        filled = np.stack([other.transports[group].owned for _, other in remaining.models])  # (others, K)
        row_squares = np.zeros((len(filled), n_slots))  # a_j |row|^2, by other model j
        column_squares = np.zeros(n_slots)  # sum_j a_j |column_j|^2
        for place in places:
            layout = self.symmetry.layouts[place.array]
            squares = to_numpy(unit_rows(model.arrays[place.array] ** 2, layout, place, self.width))  # (K, F)
            for number, (weight, other) in enumerate(remaining.models):
                unmerged = self._unmerged_entries(model, other, place)  # (F,)
                other_squares = to_numpy(unit_rows(other.arrays[place.array] ** 2, layout, place, self.width))
                row_squares[number] += weight * (squares @ unmerged)
                column_squares += weight * (other_squares @ unmerged) * filled[number]
        has_unit = model.transports[group].owned[:, None]  # (K, 1): an empty slot gains nothing anywhere
        even = (gain.even - 0.5 * (row_squares.T @ filled + column_squares)) * has_unit
        return AssignmentGain(even, None if gain.odd is None else gain.odd * has_unit)

    def _unmerged_entries(self, model: PlacedModel, other: PlacedModel, place: Place) -> Array:
        """Return the mask (F,) of entries of a unit's row that touch no merged unit of other groups."""
        mask = np.ones(1)
        # In the order of ``unit_rows``: axes before, copies and inner entries of the unit, axes after.
        for number, axis in enumerate(self.symmetry.layouts[place.array].axes):
            if number == place.axis:
                segment = axis.segments[place.segment]
                axis_mask = np.ones(segment.outer * segment.inner)
            else:
                axis_mask = 1.0 - self._merged_entries(axis, model, other)
            mask = np.multiply.outer(mask, axis_mask).ravel()
        return mask

    def _merged_entries(self, axis: Axis, first: PlacedModel, second: PlacedModel) -> Array:
        """Return the mask (n_entries,) of an axis: 1 for entries of slots that both models fill."""
        groups = {segment.group for segment in axis.segments if segment.group is not None}
        is_merged = {group: first.transports[group].owned * second.transports[group].owned for group in groups}  # (K,)
        return axis.along(is_merged, self.width, 0.0)

    def remaining_models(self, models: Sequence[tuple[float, PlacedModel]]) -> RemainingModels:
        """Return weighted models that stay, with the inner products that compare them to one that moves."""
        target: Mapping[str, AnyArray] = {}
        if len(models) == 1 and models[0][0] == 1.0:
            target = models[0][1].arrays
        elif models:
            target = {
                key: sum((weight * model.arrays[key] for weight, model in models[1:]), start=models[0][0] * first)
                for key, first in models[0][1].arrays.items()
            }
        return RemainingModels(models, self.product_type(self.symmetry, self.width, target, self.sign_groups))

    def distance(self, first: PlacedModel, second: PlacedModel, keys: Iterable[str] | None = None) -> float:
        """Return the squared distance of two models over all entries that touch merged units, of some arrays or all."""
        total = 0.0
        for key in first.arrays if keys is None else keys:
            difference = first.arrays[key] - second.arrays[key]
            if self.is_full:
                total += square_sum(difference)
                continue
            xp = array_namespace(difference)
            unmerged: Any = 1.0  # 1 for entries of which no axis is merged; broadcasts to the array
            for number, axis in enumerate(self.symmetry.layouts[key].axes):
                if axis.moves:
                    apart = 1.0 - self._merged_entries(axis, first, second)
                    axis_mask = xp.asarray(apart, dtype=difference.dtype, device=difference.device)
                    shape = tuple(-1 if n == number else 1 for n in range(difference.ndim))
                    unmerged = unmerged * xp.reshape(axis_mask, shape)
            total += square_sum(difference * (1.0 - unmerged))
        return total

    def assign(
        self, gain: AssignmentGain, model: PlacedModel, group: str, inside: Mapping[str, AssignmentGain]
    ) -> dict[str, Injection]:
        """Return the moves of greatest total gain, of a group and of the groups inside it, by linear assignment.

        They are permutations of all K slots: by group, the new slot of what is in each slot now.
        """
        if inside:
            assignment = assign_nested(-gain.even, {name: -values.even for name, values in inside.items()})
            moves = {name: Injection(slots, self.width[name]) for name, slots in assignment.inner.items()}
            return {group: Injection(assignment.outer, self.width[group]), **moves}
        filled = np.arange(self.width[group]) if self.is_full else np.sort(model.transports[group].slots)
        costs = -gain.with_best_signs  # (K, K)
        columns = assign_block(costs if self.is_full else costs[filled])  # new slot of each filled slot
        target = np.full(self.width[group], -1, dtype=np.int64)
        target[filled] = columns
        # Empty slots go where no unit went, in their order, so that the move is a permutation.
        target[target < 0] = np.setdiff1d(np.arange(self.width[group]), columns)
        # with_best_signs took |odd|: units whose odd part is negative there change sign.
        signs = None
        if gain.odd is not None and np.any(gain.odd[filled, columns] < 0):
            signs = np.ones(self.width[group])
            signs[filled] = np.where(gain.odd[filled, columns] < 0, -1.0, 1.0)
        return {group: Injection(target, self.width[group], signs)}


@dataclass(frozen=True, eq=False)
class LazyArrays(Mapping[str, AnyArray]):
    """Arrays of a model in its slots; each is read and moved whenever it is looked up."""

    read: Callable[[str], AnyArray]  # gives an array, as stored, by its name
    names: Collection[str]  # names of the arrays
    symmetry: Symmetry  # which axes move together
    units: Mapping[str, int]  # number of units of every group
    transports: Mapping[str, Injection]  # by group, the slot of each unit

    def __getitem__(self, name: str) -> AnyArray:
        return move_laid_out(self.read(name), self.symmetry.layouts[name], self.transports, self.units)

    def __contains__(self, name: object) -> bool:  # the default would read the array
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


@dataclass(eq=False)
class LazyModel(PlacedModel):
    """A model in the slots whose arrays are lazy."""

    arrays: LazyArrays

    def moved(self, symmetry: Symmetry, moves: Mapping[str, Injection], width: Mapping[str, int]) -> LazyModel:
        """Return the model with the units of some groups moved from slot to slot; nothing is read."""
        transports = self._transports_after(moves)
        return LazyModel(replace(self.arrays, transports=transports), transports)


class RecomputedProducts(InnerProducts):
    """Inner products that are computed at every use, so that none is kept."""

    def at(self, place: Place, arrays: Mapping[str, AnyArray]) -> AssignmentGain:
        """Return the products (K, K) at one place: rows of the model that moves, columns of the target."""
        return self._product(place, arrays[place.array], self.target[place.array])

    def update(
        self, group: str, move: Injection, before: Mapping[str, AnyArray], after: Mapping[str, AnyArray]
    ) -> None:
        """Do nothing: no product is kept that a move could change."""
