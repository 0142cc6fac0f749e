"""Units of checkpoints put into the order of the first, with no more than an array of two models in memory at a time.

Weight matching (Ainsworth et al. 2023) as in `ReBasin`: a group's units go where the inner product of everything that
touches them with the same of the first model is largest, an assignment problem, group after group until nothing moves.
The first pass goes from the input to the output and looks at what is known of the other axes by then. Arrays are read
when a group's turn comes and forgotten; what stays is a permutation for each group.
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

MOST_PASSES = 100


@dataclass(frozen=True, eq=False)
class Aligned:
    """Where units go.

    Parameters
    ----------
    transports
        For every model, by group; the first stays.
    moved
        For every model, how many units have another number now.
    passes
        For every model, how many passes it took.
    """

    transports: tuple[Mapping[str, Injection], ...]
    moved: tuple[int, ...]
    passes: tuple[int, ...]


def align(symmetry: Symmetry, units: Mapping[str, int], count: int, read: ReadArray, floating: set[str]) -> Aligned:
    """Return where the units of every model go so that it comes closest to the first.

    Parameters
    ----------
    symmetry
        Which axes move together.
    units
        Number of units of every group, the same in all models.
    count
        Number of models.
    read
        Gives arrays.
    floating
        Names of the arrays that have floating numbers.
    """
    transports, passes = [dict(_stay(units))], [0]
    for model in range(1, count):
        own, taken = _aligned(symmetry, units, model, read, floating)
        transports.append(own)
        passes.append(taken)
    moved = tuple(sum(int(np.sum(one.slots != np.arange(one.width))) for one in own.values()) for own in transports)
    return Aligned(tuple(transports), moved, tuple(passes))


def _stay(units: Mapping[str, int]) -> dict[str, Injection]:
    return {name: Injection(np.arange(width), width) for name, width in units.items()}


def _aligned(
    symmetry: Symmetry, units: Mapping[str, int], model: int, read: ReadArray, floating: set[str]
) -> tuple[dict[str, Injection], int]:
    """Return where one model's units go, and after how many passes nothing moved any more."""
    own = _stay(units)
    tops = [name for name, group in symmetry.by_name.items() if group.parent is None]
    known: set[str] = set()
    for top in tops:
        names = [top, *(child.name for child in symmetry.children(top))]
        places = {name: _places(symmetry, name, floating, known | set(names), receiving=True) for name in names}
        if any(places.values()):
            own.update(_best(symmetry, units, own, model, read, places))
        known |= set(names)
    everything = set(symmetry.by_name)
    number = 0
    while number < MOST_PASSES:
        number += 1
        still = True
        for top in tops:
            names = [top, *(child.name for child in symmetry.children(top))]
            places = {name: _places(symmetry, name, floating, everything, receiving=False) for name in names}
            if not any(places.values()):
                continue
            trial = {**own, **_best(symmetry, units, own, model, read, places)}
            if all(np.array_equal(trial[name].slots, own[name].slots) for name in names):
                continue
            if _nearness(symmetry, units, trial, model, read, places) > _nearness(
                symmetry, units, own, model, read, places
            ):
                own, still = trial, False
        if still:
            break
    places = {name: _places(symmetry, name, floating, everything, receiving=False) for name in symmetry.by_name}
    if _nearness(symmetry, units, _stay(units), model, read, places) >= _nearness(
        symmetry, units, own, model, read, places
    ):
        own = _stay(units)
    return own, number


def _places(symmetry: Symmetry, group: str, floating: set[str], known: set[str], receiving: bool) -> list[Place]:
    """Return the places that count for a group: those whose other axes are known by now."""
    return [
        place
        for place in symmetry.places(group)
        if place.array in floating
        and place.array.rpartition(".")[2] not in RUNNING_STATISTICS
        and symmetry.beside(place) <= known
        and not (receiving and place.side == "input")
    ]


def _best(
    symmetry: Symmetry,
    units: Mapping[str, int],
    own: Mapping[str, Injection],
    model: int,
    read: ReadArray,
    places: Mapping[str, Sequence[Place]],
) -> dict[str, Injection]:
    """Return where the units of a group, and of the groups inside it, are worth most, everything else held."""
    worth = {name: _worth(symmetry, units, own, name, model, read, places[name]) for name in places}
    top, *inside = places
    found = assign_nested(-worth[top], {name: -worth[name] for name in inside})
    slots = {top: found.outer, **found.inner}
    return {name: Injection(where, len(where)) for name, where in slots.items()}


def _worth(
    symmetry: Symmetry,
    units: Mapping[str, int],
    own: Mapping[str, Injection],
    group: str,
    model: int,
    read: ReadArray,
    places: Sequence[Place],
) -> Array:
    """Return inner products (k, k) of what touches each unit of a model (rows) and of the first (columns)."""
    total = np.zeros((units[group], units[group]))
    for place in places:
        layout = symmetry.layouts[place.array]
        theirs = to_dense(read(0, place.array), layout)
        values = to_dense(read(model, place.array), layout)
        for number, axis in enumerate(layout.axes):
            if number != place.axis:
                values = move_axis(values, number, axis, own, units)
        total += unit_rows(values, layout, place, units) @ unit_rows(theirs, layout, place, units).T
    return total


def _nearness(
    symmetry: Symmetry,
    units: Mapping[str, int],
    own: Mapping[str, Injection],
    model: int,
    read: ReadArray,
    places: Mapping[str, Sequence[Place]],
) -> float:
    """Return the inner product of a model, moved, and the first, over the arrays of some places."""
    total = 0.0
    for key in dict.fromkeys(place.array for some in places.values() for place in some):
        layout = symmetry.layouts[key]
        values = to_dense(read(model, key), layout)
        for number, axis in enumerate(layout.axes):
            values = move_axis(values, number, axis, own, units)
        total += float(np.sum(values * to_dense(read(0, key), layout), dtype=np.float64))
    return total
