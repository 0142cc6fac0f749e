"""Arrays that a fusion carries over and does not average: integers, truth values, constants with infinities, counters.

Integers, truth values and constants with infinities (causal masks, bounds) have no mean. They are carried over where
all networks have the same; a network where they differ is another function, and is refused. Counters of batches take
the largest count; extra state is one network's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from consilience.checks import AnyArray
from consilience.errors import Problem
from consilience.networks.entry_names import is_counter, is_extra_state
from consilience.networks.network import Network, as_buffer, dtype_name, is_averaged, is_complex, is_finite, to_numpy
from consilience.networks.symmetry.transport import Transport, move

CARRIED_REMEDY = "make it the same in all (quantised weights: dequantise), or leave it out"
"""What to do about integers and truth values that differ."""


def shared_constants(networks: Sequence[Mapping[str, AnyArray]]) -> frozenset[str]:
    """Return the names of arrays that have NaN or infinite values, to the bit the same in all networks."""
    first, *others = networks
    return frozenset(
        key
        for key, values in first.items()
        if others
        and not is_finite(values)
        and all(key in arrays and same_numbers(values, arrays[key]) for arrays in others)
    )


def type_problems(network: Network, first: Network) -> list[Problem]:
    """Return which arrays of a network are real, complex or neither where those of another are not."""
    texts = [
        f"array {key} holds {dtype_name(values)}, but {dtype_name(first.arrays[key])} in {first.name}"
        for key, values in network.arrays.items()
        if (is_averaged(values), is_complex(values)) != (is_averaged(first.arrays[key]), is_complex(first.arrays[key]))
    ]
    return [Problem(network.name, text, "convert one", "E-TYPE") for text in texts]


def difference_problems(network: Network, first: Network) -> list[Problem]:
    """Return which arrays that have no mean differ between two networks, a line each.

    Masks whose units move are compared once it is known where the units go (`NetworkMethod.fuse`).
    """
    problems = []
    for key, values in first.arrays.items():
        own = network.arrays[key]
        if key in first.working and key in network.working:
            continue
        if (
            is_counter(key)
            or is_extra_state(key)
            or first.symmetry.layouts[key].moving_axes
            or same_numbers(values, own)
        ):
            continue
        if is_averaged(values):
            text = f"array {key} has NaN or infinite values, and is not the same as in {first.name}"
            problems.append(Problem(network.name, text, "make it the same in all, or train again", "E-NUMBER"))
        else:
            text = f"array {key} ({dtype_name(values)}) is not the same as in {first.name}, and has no mean"
            problems.append(Problem(network.name, text, CARRIED_REMEDY, "E-MISMATCH"))
    return problems


def moved_mask_problems(
    networks: Sequence[Network], transports: Sequence[Mapping[str, Transport]], reference: int
) -> list[Problem]:
    """Return which masks over units are not, where the units go, those of the reference, whose the fused network has.

    `reference` is the number of the network whose masks are taken.
    """
    fused = networks[reference]
    masks = [key for key, layout in fused.symmetry.layouts.items() if layout.moving_axes and key not in fused.working]
    problems = []
    for key in masks:
        layout, values = fused.symmetry.layouts[key], to_numpy(fused.arrays[key])
        for network, of_units in zip(networks, transports, strict=True):
            moved = move(to_numpy(network.arrays[key]), layout, of_units, network.units)
            if moved.shape != values.shape or not np.allclose(moved, values):
                text = f"mask {key} is not that of {fused.name} once the units are matched"
                remedy = "multiply the weights with it, and leave it out"
                problems.append(Problem(network.name, text, remedy, "E-MISMATCH"))
    return problems


def largest_counters(networks: Sequence[Network]) -> dict[str, AnyArray]:
    """Return the largest count of every counter of batches."""
    return {
        key: max((network.arrays[key] for network in networks), key=lambda values: int(values))
        for key, values in networks[0].arrays.items()
        if is_counter(key) and not is_averaged(values) and not tuple(values.shape)
    }


def same_numbers(values: AnyArray, other: AnyArray) -> bool:
    """Return whether two arrays are the same to the bit, or hold the same numbers in other types."""
    if values is other:
        return True
    if tuple(values.shape) != tuple(other.shape):
        return False
    if dtype_name(values) == dtype_name(other):
        return np.array_equal(as_buffer(values), as_buffer(other))
    return np.array_equal(to_numpy(values), to_numpy(other), equal_nan=True)
