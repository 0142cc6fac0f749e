"""Weight matching of checkpoints that no memory holds: every model's units into the order of the first model's.

As `ReBasin` (Ainsworth et al. 2023), model by model, over the permutations P_g of the units of each group g:

    maximise_P  sum_arrays <A_first, P A_model>                       (P A: the array with all of its axes permuted)

by coordinate descent. With all other groups fixed, the objective is linear in P_g, so each step is an assignment
problem over the inner products of what touches a unit of the model with what touches a unit of the first; heads, which
hold units of their own, are assigned together with these. A step that does not raise the objective is discarded, so
passes end; if the result is no better than the order in which the units came, they stay.

The first pass goes from the input to the output and uses, of each group, only arrays whose other axes are aligned by
then: before that, products over axes in unrelated orders are noise. Arrays are read when a group's turn comes and
forgotten afterwards: at most one array of two models is in memory; what stays is a permutation for each group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array
from consilience.matching.nested_assignment import assign_nested
from consilience.networks.methods.weight_matching.state import RUNNING_STATISTICS
from consilience.networks.symmetry.axes import Place
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Injection, move_axis, to_dense
from consilience.networks.symmetry.unit_rows import unit_rows

ReadArray = Callable[[int, str], NDArray[np.float32]]
"""Gives an array of a model by the model's number and the array's name."""

MAX_PASSES = 100
"""As `ReBasin.max_passes`. A bound only: every pass but the last raises the objective, which takes finitely many
values. Nobody has measured how many passes checkpoints need."""


@dataclass(frozen=True, eq=False)
class CheckpointAlignment:
    """Where the units of every model go.

    Parameters
    ----------
    transports : tuple of J mappings of str to Injection
        For every model the permutation of each group; the identity for the first model.
    moved : tuple of J ints
        Number of units of every model that have another number afterwards.
    passes : tuple of J ints
        Number of passes that every model took.
    """

    transports: tuple[Mapping[str, Injection], ...]
    moved: tuple[int, ...]
    passes: tuple[int, ...]


def align(
    symmetry: Symmetry, units: Mapping[str, int], count: int, read: ReadArray, floating: set[str]
) -> CheckpointAlignment:
    """Return where the units of every model go so that it comes closest to the first.

    Parameters
    ----------
    symmetry : Symmetry
        Which axes move together.
    units : mapping of str to int
        Number of units of every group, the same in all models.
    count : int
        Number of models.
    read : callable
        Gives an array in float32 by the number of the model and the name of the array.
    floating : set of str
        Names of the arrays of floating-point numbers.
    """
    transports, passes = [_identity_transports(units)], [0]  # the first model is the reference
    for model in range(1, count):
        model_transports, n_passes = _align_model(symmetry, units, model, read, floating)
        transports.append(model_transports)
        passes.append(n_passes)
    moved = tuple(
        sum(int(np.sum(transport.slots != np.arange(transport.width))) for transport in model_transports.values())
        for model_transports in transports
    )
    return CheckpointAlignment(tuple(transports), moved, tuple(passes))


def _identity_transports(units: Mapping[str, int]) -> dict[str, Injection]:
    return {name: Injection(np.arange(width), width) for name, width in units.items()}


def _align_model(
    symmetry: Symmetry, units: Mapping[str, int], model: int, read: ReadArray, floating: set[str]
) -> tuple[dict[str, Injection], int]:
    """Return where one model's units go, and the number of passes until nothing moved any more."""
    transports = _identity_transports(units)
    outer_groups = [name for name, group in symmetry.by_name.items() if group.parent is None]
    aligned: set[str] = set()
    # From the input to the output: receiving weights only, and only of axes that are aligned by now.
    for outer in outer_groups:
        names = [outer, *(child.name for child in symmetry.children(outer))]
        places = {
            name: _usable_places(symmetry, name, floating, aligned | set(names), receiving=True) for name in names
        }
        if any(places.values()):
            transports.update(_assign_units(symmetry, units, transports, model, read, places))
        aligned |= set(names)
    # Coordinate descent over the outer groups, each with the groups inside it, on all of their arrays.
    every_group = set(symmetry.by_name)
    n_passes = 0
    while n_passes < MAX_PASSES:
        n_passes += 1
        is_stationary = True
        for outer in outer_groups:
            names = [outer, *(child.name for child in symmetry.children(outer))]
            places = {name: _usable_places(symmetry, name, floating, every_group, receiving=False) for name in names}
            if not any(places.values()):
                continue
            trial = {**transports, **_assign_units(symmetry, units, transports, model, read, places)}
            if all(np.array_equal(trial[name].slots, transports[name].slots) for name in names):
                continue
            # Where a group has two axes in one array, an assignment need not raise the objective; such a step is
            # discarded, so that the descent ends.
            if _inner_product(symmetry, units, trial, model, read, places) > _inner_product(
                symmetry, units, transports, model, read, places
            ):
                transports, is_stationary = trial, False
        if is_stationary:
            break
    places = {name: _usable_places(symmetry, name, floating, every_group, receiving=False) for name in symmetry.by_name}
    # The first pass had no objective of its own, so the result may be worse than no permutation at all.
    identity = _identity_transports(units)
    if _inner_product(symmetry, units, identity, model, read, places) >= _inner_product(
        symmetry, units, transports, model, read, places
    ):
        transports = identity
    return transports, n_passes


def _usable_places(
    symmetry: Symmetry, group: str, floating: set[str], aligned: set[str], receiving: bool
) -> list[Place]:
    """Return the places of a group in arrays of weights whose other axes belong to aligned groups.

    With `receiving`, without the places at which other layers read the group's units.
    """
    return [
        place
        for place in symmetry.places(group)
        if place.array in floating
        and place.array.rpartition(".")[2] not in RUNNING_STATISTICS
        and symmetry.beside(place) <= aligned
        and not (receiving and place.side == "input")
    ]


def _assign_units(
    symmetry: Symmetry,
    units: Mapping[str, int],
    transports: Mapping[str, Injection],
    model: int,
    read: ReadArray,
    places: Mapping[str, Sequence[Place]],
) -> dict[str, Injection]:
    """Return the best permutations of a group and of the groups inside it, all others fixed.

    `places` has the group first, then the groups inside it.
    """
    similarities = {
        name: _unit_similarity(symmetry, units, transports, name, model, read, places[name]) for name in places
    }
    outer, *inner = places
    # Costs (k, k) of the outer units; those of inner units are assigned best for every pair of outer ones.
    assignment = assign_nested(-similarities[outer], {name: -similarities[name] for name in inner})
    slots_by_group = {outer: assignment.outer, **assignment.inner}
    return {name: Injection(slots, len(slots)) for name, slots in slots_by_group.items()}


def _unit_similarity(
    symmetry: Symmetry,
    units: Mapping[str, int],
    transports: Mapping[str, Injection],
    group: str,
    model: int,
    read: ReadArray,
    places: Sequence[Place],
) -> Array:
    """Return inner products (k, k) of what touches each unit of a model (rows) and of the first model (columns)."""
    total = np.zeros((units[group], units[group]))
    for place in places:
        layout = symmetry.layouts[place.array]
        first_values = to_dense(read(0, place.array), layout)
        model_values = to_dense(read(model, place.array), layout)
        for number, axis in enumerate(layout.axes):
            if number != place.axis:  # the other axes, into the order of the first model as it is known by now
                model_values = move_axis(model_values, number, axis, transports, units)
        # (k, entries per unit) times (entries per unit, k)
        total += unit_rows(model_values, layout, place, units) @ unit_rows(first_values, layout, place, units).T
    return total


def _inner_product(
    symmetry: Symmetry,
    units: Mapping[str, int],
    transports: Mapping[str, Injection],
    model: int,
    read: ReadArray,
    places: Mapping[str, Sequence[Place]],
) -> float:
    """Return the objective: <A_first, P A_model>, summed over the arrays of some places, each array once."""
    total = 0.0
    for name in dict.fromkeys(place.array for group_places in places.values() for place in group_places):
        layout = symmetry.layouts[name]
        values = to_dense(read(model, name), layout)
        for number, axis in enumerate(layout.axes):
            values = move_axis(values, number, axis, transports, units)
        total += float(np.sum(values * to_dense(read(0, name), layout), dtype=np.float64))
    return total
