"""Proving that a symmetry holds: change every group at random, and see whether the outputs stay.

Tracing (``tracing.trace``) and files may be wrong, and a wrong symmetry fuses networks into noise without
a word. So a copy of the module gets random statistics, gains and biases (a zero bias or a gain of one would hide a
place that is missing), its units are renumbered by orders without fixed points, differently inside every unit of a
parent, and its outputs are compared in float64. The same way it is tried whether units may change sign or scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from consilience.checks import Array, Labels
from consilience.errors import InputError
from consilience.networks.network import complete_orders
from consilience.networks.symmetry.axes import Action, Axis, Group, Proof
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Transport, move, permutation, to_blocks, to_dense
from consilience.networks.tracing.export import as_example
from consilience.networks.tracing.module_trial import Bench, arrays_of, make_bench
from consilience.networks.tracing.trace import trace

_SMALL = 6
"""Units up to which two groups may well get the same order by chance: beyond, once in (k - 1)! > 700 times."""

_MANY = 4
"""Groups of a kind up to which each is tried on its own."""


def symmetry(module: nn.Module, example: Any, rng: np.random.Generator | int = 0) -> Symmetry:
    """Return the groups of a module that move together, traced and proved.

    Parameters
    ----------
    module
        Any module; it is left as it is.
    example
        What it is called with: a tensor, a tuple of arguments, or a dict of keyword arguments.
    rng
        Draws the changes of the proof.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    >>> found = symmetry(net, torch.zeros(3, 4))
    >>> found.groups, found.proved, found.by_name["0"].actions
    ({'0': 6}, True, ('permute', 'scale'))
    """
    return prove(module, trace(module, example), example, rng)


def prove(
    module: nn.Module, symmetry: Symmetry, example: Any, rng: np.random.Generator | int = 0, trials: int = 2
) -> Symmetry:
    """Return the symmetry with a proof, and with the actions on its groups that hold.

    Parameters
    ----------
    module
        The module; it is left as it is.
    symmetry
        What is to be proved of it.
    example
        What it is called with: a tensor, a tuple of arguments, or a dict of keyword arguments.
    rng
        Draws the changes.
    trials
        Number of random changes: the first on the example, the others on inputs around it.

    Raises
    ------
    InputError
        If the symmetry is of another network, or changes what it computes: naming the groups and their places.
    UnsupportedError
        If the module cannot be copied.
    """
    rng = np.random.default_rng(rng)
    units = symmetry.units(
        {name: tuple(array.shape) for name, array in arrays_of(module).items()}, type(module).__name__
    )
    if not symmetry.all_groups:
        return _with_proof(symmetry, 0.0, trials)
    benches = [make_bench(module, as_example(example), symmetry, rng)]
    benches += [benches[0].elsewhere(rng) for _ in range(trials - 1)]
    worst = 0.0
    for bench, resting in _rounds(benches, symmetry):
        orders = _orders(symmetry, units, rng, resting)
        deviation = bench.deviation(_moved(bench.arrays, symmetry, units, orders))
        if not deviation <= bench.tolerance:
            raise InputError(_guilty(bench, symmetry, units, orders, deviation))
        worst = max(worst, deviation)
    others = {name: _tilted(array) for name, array in benches[0].arrays.items()}
    if all(bench.stays(others) for bench in benches):
        raise InputError(
            f"example: what {type(module).__name__} makes of it does not depend on the weights, so that nothing can be "
            "proved; give inputs like those that the network is for"
        )
    held = {action: _holding(benches, symmetry, units, action, rng) for action in ("sign", "scale")}
    groups = tuple(_acting(group, held) for group in symmetry.all_groups)
    return _with_proof(replace(symmetry, all_groups=groups), worst, trials)


def _tilted(array: Tensor) -> Tensor:
    """Return an array with every entry changed a little differently."""
    if not array.is_floating_point():
        return array
    return array * torch.linspace(0.5, 1.5, array.numel(), dtype=array.dtype, device=array.device).reshape(array.shape)


def _with_proof(symmetry: Symmetry, deviation: float, trials: int) -> Symmetry:
    return replace(symmetry, proof=Proof(symmetry.digest, deviation, trials))


def _acting(group: Group, held: Mapping[str, set[str]]) -> Group:
    actions: list[Action] = ["permute"]
    if group.name in held["sign"]:
        actions.append("sign")
    if group.name in held["scale"]:
        actions.append("scale")
    return replace(group, actions=tuple(actions))


def _rounds(benches: Sequence[Bench], symmetry: Symmetry) -> Iterator[tuple[Bench, set[str]]]:
    """Yield on what to change groups, and which shall rest.

    First all move at once. Small groups may by chance be renumbered alike, and one taken for the other goes unseen; so
    then half of them rest, so often that any two are told apart: by the digits of their number.
    """
    for bench in benches:
        yield bench, set()
    small = [group.name for group in symmetry.all_groups if group.size <= _SMALL]
    for digit in range((len(small) - 1).bit_length() if small else 0):
        yield benches[digit % len(benches)], {name for number, name in enumerate(small) if number >> digit & 1}


def _orders(
    symmetry: Symmetry, units: Mapping[str, int], rng: np.random.Generator, resting: set[str]
) -> dict[str, Labels]:
    """Return random orders without fixed points, different inside every unit of a parent; some groups rest."""
    orders: dict[str, Labels] = {}
    for group in sorted(symmetry.all_groups, key=lambda one: one.parent is not None):
        outer = np.zeros(1, dtype=np.int64) if group.parent is None else orders[group.parent]
        size = units[group.name] if group.parent is None else group.size
        inner = []
        for number in outer:
            if group.name in resting:
                inner.append(np.arange(size))
            else:
                inner.append(_cycle(size, rng) if number % 2 == 0 else rng.permutation(size))
        orders[group.name] = np.concatenate([o * size + i for o, i in zip(outer, inner, strict=True)])
    return orders


def _cycle(count: int, rng: np.random.Generator) -> Labels:
    """Return a random order in one cycle, which leaves no unit where it was."""
    ring = rng.permutation(count)
    order = np.empty(count, dtype=np.int64)
    order[ring] = np.roll(ring, 1)
    return order


def _moved(
    arrays: Mapping[str, Tensor], symmetry: Symmetry, units: Mapping[str, int], orders: Mapping[str, Labels]
) -> dict[str, Tensor]:
    transports: dict[str, Transport] = {name: permutation(order) for name, order in orders.items()}
    return {name: move(array, symmetry.layouts[name], transports, units) for name, array in arrays.items()}


def _guilty(
    bench: Bench, symmetry: Symmetry, units: Mapping[str, int], orders: Mapping[str, Labels], together: float
) -> list[str]:
    """Return a line for every group that changes the outputs on its own."""
    problems = []
    for group in symmetry.by_name.values():
        alone = {group.name: orders[group.name]}
        if group.parent is not None:  # only inside the units of its parent, which stay
            inner = orders[group.name].reshape(-1, group.size) % group.size
            alone = {group.name: (np.arange(len(inner))[:, None] * group.size + inner).ravel()}
        deviation = bench.deviation(_moved(bench.arrays, symmetry, units, complete_orders(symmetry, units, alone)))
        if not deviation <= bench.tolerance:
            problems.append(_problem(symmetry, [group.name], deviation))
    return problems or [_problem(symmetry, list(symmetry.by_name), together)]


def _problem(symmetry: Symmetry, groups: Sequence[str], deviation: float) -> str:
    places = dict.fromkeys(str(place) for group in groups for place in symmetry.places(group))
    return (
        f"group {', '.join(groups)}: another order of its units changes the outputs by {deviation:.2g} of their "
        f"size, so these do not move together, or not alone: {', '.join(places) or 'nothing of its own'}; correct the "
        "symmetry, or trace it anew from the module"
    )


def _holding(
    benches: Sequence[Bench],
    symmetry: Symmetry,
    units: Mapping[str, int],
    action: Action,
    rng: np.random.Generator,
) -> set[str]:
    """Return groups whose units may change sign or scale.

    Groups of a kind are tried together, in halves where that fails, and not at all where it fails for the first and the
    last of many: an action that is not found is merely not used.
    """

    def holds(names: Sequence[str]) -> bool:
        factors = _factors({name: units[name] for name in names}, action, rng)
        signed = action == "sign"
        tries = ((b, _multiplied(b.arrays, symmetry, units, one, signed)) for one in factors for b in benches)
        return all(bench.stays(arrays) for bench, arrays in tries)

    held: set[str] = set()
    statistics = {name for name, _ in benches[0].module.named_buffers()}
    kinds: dict[object, list[str]] = {}
    for group in symmetry.by_name.values():
        if _may(statistics, symmetry, group, action):
            sides = tuple(place.side for place in symmetry.places(group.name))
            kinds.setdefault((sides, group.parent is None), []).append(group.name)
    waiting = list(kinds.values())
    while waiting:
        names = waiting.pop()
        if holds(names):
            held.update(names)
        elif len(names) > _MANY and not holds(names[:1]) and not holds(names[-1:]):
            continue
        elif len(names) > 1:
            waiting += [names[: len(names) // 2], names[len(names) // 2 :]]
    return held


def _may(statistics: set[str], symmetry: Symmetry, group: Group, action: Action) -> bool:
    """Whether an action is worth trying: not on statistics, which are squares, nor on what is normalised."""
    places = symmetry.places(group.name)
    if not places or any(place.array in statistics for place in places):
        return False
    if group.parent is None and not group.resizable:
        return False
    return action == "sign" or all(place.side != "both" for place in places)


def _factors(counts: Mapping[str, int], action: Action, rng: np.random.Generator) -> list[dict[str, Array]]:
    """Return random factors, in each of which or between which every unit is changed."""
    if action == "scale":
        return [{name: rng.uniform(0.5, 2.0, count) for name, count in counts.items()}]
    signs = {name: rng.choice([-1.0, 1.0], count) for name, count in counts.items()}
    return [signs, {name: -values for name, values in signs.items()}]


def _multiplied(
    arrays: Mapping[str, Tensor],
    symmetry: Symmetry,
    units: Mapping[str, int],
    factors: Mapping[str, Array],
    signed: bool,
) -> dict[str, Tensor]:
    """Return arrays with what makes units multiplied and what reads them divided by factors."""
    made = {}
    for name, array in arrays.items():
        layout = symmetry.layouts[name]
        if any(segment.group in factors for axis in layout.axes for segment in axis.segments):
            values = to_dense(array, layout)
            for number, axis in enumerate(layout.axes):
                along = _along(axis, units, factors, signed)
                vector = torch.as_tensor(along, dtype=array.dtype, device=array.device)
                vector = vector.reshape(-1, *[1] * (values.ndim - number - 1))
                values = values / vector if axis.side == "input" else values * vector
            made[name] = to_blocks(values, layout)
        else:
            made[name] = array
    return made


def _along(axis: Axis, units: Mapping[str, int], factors: Mapping[str, Array], signed: bool) -> Array:
    """Return the factor of every entry of an axis."""
    parts = [
        np.ones(s.length(units)) if s.group is None or s.group not in factors else s.along(factors[s.group], signed)
        for s in axis.segments
    ]
    return np.concatenate(parts)
