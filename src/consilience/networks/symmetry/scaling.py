"""Units that may be scaled: multiply what one receives by s, divide what it sends by s, and nothing changes.

Two networks of the same function may so be far apart. In balanced scales every unit receives and sends weights of the
same norm, which is the form of least total squared weight; networks trained with weight decay are near it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from array_api_compat import array_namespace

from consilience.checks import AnyArray
from consilience.networks.network import Network, same_values
from consilience.networks.symmetry.axes import Place
from consilience.networks.symmetry.transport import dense, undense
from consilience.networks.symmetry.unit_rows import unit_rows

_SWEEPS = 10
"""Rounds over the groups; what is left after these is far below any difference of models."""


def shared_groups(networks: Sequence[Network]) -> set[str]:
    """Return the groups whose units are made by the same weights in all networks, such as a frozen embedding.

    Such units are aligned, in scale too.
    """
    first = networks[0]
    found = set()
    for name in first.symmetry.by_name:
        made = {place.array for place in first.symmetry.places(name) if place.side == "output"} & set(first.working)
        if any(first.working[key].ndim > 1 for key in made) and all(
            same_values(first.working[key], other.working[key]) for other in networks[1:] for key in made
        ):
            found.add(name)
    return found


def balanced(network: Network, but: Collection[str] = ()) -> Network:
    """Return the same function with every unit that may be scaled in balanced scale, of all groups but some.

    Units that receive or send nothing at all stay as they are.
    """
    groups = [name for name, group in network.symmetry.by_name.items() if "scale" in group.actions and name not in but]
    if not groups:
        return network
    arrays = dict(network.working)
    for _ in range(_SWEEPS):
        for group in groups:
            places = [place for place in network.symmetry.places(group) if place.array in arrays]
            made = _squares(network, arrays, [place for place in places if place.side == "output"])
            sent = _squares(network, arrays, [place for place in places if place.side == "input"])
            xp = array_namespace(made)
            alive = (made > 0) & (sent > 0)
            ratio = xp.where(alive, sent, xp.ones_like(sent)) / xp.where(alive, made, xp.ones_like(made))
            factor = ratio**0.25
            for place in places:
                arrays[place.array] = _scaled(network, arrays[place.array], place, factor)
    return network.with_arrays(arrays, network.name)


def _squares(network: Network, arrays: dict[str, AnyArray], places: list[Place]) -> AnyArray:
    """Return the summed squares of each unit (k,) over some places."""
    total: AnyArray = 0.0
    for place in places:
        layout = network.symmetry.layouts[place.array]
        rows = unit_rows(dense(arrays[place.array], layout), layout, place, network.units)
        total = total + array_namespace(rows).sum(rows**2, axis=1)
    return total


def _scaled(network: Network, values: AnyArray, place: Place, factor: AnyArray) -> AnyArray:
    """Return an array with the units at one place multiplied (output side) or divided (input side)."""
    xp = array_namespace(values)
    layout = network.symmetry.layouts[place.array]
    axis = layout.axes[place.axis]
    parts = []
    for number, segment in enumerate(axis.segments):
        length = segment.length(network.units)
        one = xp.ones((length,), dtype=values.dtype, device=values.device)
        if number == place.segment:
            own = xp.astype(factor if place.side == "output" else 1.0 / factor, values.dtype)
            one = xp.tile(xp.repeat(own, segment.inner), (segment.outer,))
        parts.append(one)
    full = dense(values, layout)
    shape = tuple(-1 if n == place.axis else 1 for n in range(full.ndim))
    return undense(full * xp.reshape(xp.concat(parts), shape), layout)
