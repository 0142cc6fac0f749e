"""Proof of symmetries by random group elements.

Tracing and files may be wrong, and a wrong symmetry fuses networks into noise without an error. A symmetry is therefore
proved on a copy of the module: a random element g of the group permutes the units of every group, without fixed points
and differently inside every unit of a parent, and the outputs must stay,

    max |f(x; g theta) - f(x; theta)|  <=  tolerance * max |f(x; theta)|        (1e-8 in float64),

for random statistics, gains and biases theta (a zero bias or a gain of one would hide a place that is missing). If they
do not, each group is tried alone, and the error names those that fail with their places. Changes of sign and positive
scales are not traced at all: they are tried in the same way, and become actions of the groups for which they hold.

This is a test on the example and on inputs around it, not a theorem: a branch that the example does not take is not
proved. Broken symmetries were seen to differ by as little as 4e-4.

**Actions on the units of a group that are not traced but tried**: changes of sign, positive scales.

An action draws random elements, as transports. It is tried on each group; where no output changes, the group gets it. A
new action is a function and a line in `ACTIONS`, and its name one in `symmetry.axes.Action`, which is what files of
symmetries may state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from consilience.checks import Labels
from consilience.errors import InputError
from consilience.networks.example import as_example
from consilience.networks.network import complete_orders
from consilience.networks.symmetry.axes import Action, Proof
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Injection, Scaling, Transport, move, permutation
from consilience.networks.tracing.module_trial import Change, ModuleTrial, arrays_of, make_trial
from consilience.networks.tracing.trace import is_meta, trace

MAX_CONFUSABLE_SIZE = 6
"""Units up to which two groups may well get the same order by chance: beyond, once in (k - 1)! >= 720 times."""
N_TRIALS = 2
"""Random arrays and inputs of a proof: the first on the example, the other on inputs around it. Chosen by hand."""
MAX_SEPARATE_TRIALS = 4
"""Groups of a kind up to which each is tried on its own after they failed together. Chosen by hand; nobody has measured
other values."""


def symmetry(module: nn.Module, example: Any, rng: np.random.Generator | int = 0) -> Symmetry:
    """Return the symmetry of a module, traced and proved.

    The example is a tensor, a tuple of arguments, or a dict of keyword arguments; `rng` draws the changes of the proof.
    A module of the meta device, of any size, is traced and not proved.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    >>> traced = symmetry(net, torch.zeros(3, 4))
    >>> traced.groups, traced.proved, traced.by_name["0"].actions
    ({'0': 6}, True, ('permute', 'scale'))
    """
    traced = trace(module, example)
    if is_meta(module):
        note = "unproved: the module is on the meta device; prove a smaller one of its kind, or a layer of it"
        return replace(traced, notes=(*traced.notes, note))
    return prove(module, traced, example, rng)


def prove(module: nn.Module, symmetry: Symmetry, example: Any, rng: np.random.Generator | int = 0) -> Symmetry:
    """Return the symmetry with a proof, and with the actions on its groups that hold.

    The module is left as it is. Raises InputError if the symmetry is of another network, or changes what it computes,
    naming the groups and their places, and UnsupportedError if the module cannot be copied.
    """
    rng = np.random.default_rng(rng)
    units = symmetry.units(
        {name: tuple(array.shape) for name, array in arrays_of(module).items()}, type(module).__name__
    )
    if not symmetry.all_groups:
        return _with_proof(symmetry, 0.0)
    module_trials = [make_trial(module, as_example(example), symmetry, rng)]
    module_trials += [module_trials[0].redrawn(rng) for _ in range(N_TRIALS - 1)]
    largest_deviation = 0.0
    for trial, resting in _trials_and_resting_groups(module_trials, symmetry):
        orders = _random_orders(symmetry, units, rng, resting)
        moves = _moves(symmetry, units, orders)
        # Units stay in their new order: a permutation that holds need not be undone.
        deviation = trial.change(moves)
        if not deviation <= trial.tolerance:  # NaN fails too
            # What is wrong cannot be undone: it may drop entries of blocks. So each group is tried on a new copy.
            anew = make_trial(module, as_example(example), symmetry, rng)
            anew = anew if trial is module_trials[0] else anew.redrawn(rng)
            raise InputError(_failing_groups(anew, symmetry, units, orders, deviation))
        for other in module_trials:
            other.follow(trial, moves)
        largest_deviation = max(largest_deviation, deviation)
    # A network whose outputs do not depend on its weights passes with any symmetry.
    undo = partial(_change_entries, undo=True)
    if all(one.deviation(_change_entries, undo) <= one.tolerance for one in module_trials):
        text = f"what {type(module).__name__} makes of it does not depend on the weights, so that nothing can be proved"
        raise InputError("example", text, "give inputs like those that the network is for")
    # Far from zero GELU is the identity or nothing, so that raw inputs of a thousand would prove the scales of ReLU.
    scaled = module_trials[0].at_unit_scale()
    action_trials = module_trials if scaled is None else [*module_trials, scaled]
    allowed = {action: _groups_that_allow(action_trials, symmetry, units, action, rng) for action in ACTIONS}
    notes = _discard_unseen(allowed, symmetry, module_trials, rng)
    if not module_trials[0].is_double:
        tolerance = f"{module_trials[0].tolerance:g}"
        notes.append(f"proved in float32, to {tolerance} of the outputs, as the module does not run in float64")
    groups = tuple(
        replace(group, actions=("permute", *(name for name, names in allowed.items() if group.name in names)))
        for group in symmetry.all_groups
    )
    proved = replace(symmetry, all_groups=groups, notes=(*symmetry.notes, *notes))
    return _with_proof(proved, largest_deviation)


def _discard_unseen(
    allowed: Mapping[Action, set[str]],
    symmetry: Symmetry,
    module_trials: Sequence[ModuleTrial],
    rng: np.random.Generator,
) -> list[str]:
    """Take groups out of `allowed`, by action, whose arrays the outputs could hardly tell; return a note for each."""
    first, *others = module_trials
    hidden = first.hidden_arrays(rng)
    for trial in others if hidden else ():  # what one trial shows is not hidden
        hidden &= trial.hidden_arrays(rng)
    notes: list[str] = []
    for group in symmetry.by_name:
        unseen = [place.array for place in symmetry.places(group) if place.array in hidden]
        claimed = [action for action, names in allowed.items() if group in names]
        if unseen and claimed:
            for action in claimed:
                allowed[action].discard(group)
            actions = " and ".join(claimed)
            notes.append(
                f"{group}: {unseen[0]} hardly moves the outputs, so that {actions} of its units are not proved"
            )
    return notes


def _change_entries(_name: str, array: Tensor, undo: bool = False) -> Tensor:
    """Return an array with every entry multiplied by a factor of its own, from 0.5 to 1.5, or divided by it."""
    if not array.is_floating_point() and not array.is_complex():
        return array
    dtype = array.real.dtype if array.is_complex() else array.dtype
    factors = torch.linspace(0.5, 1.5, array.numel(), dtype=dtype, device=array.device).reshape(array.shape)
    return array / factors if undo else array * factors


def _with_proof(symmetry: Symmetry, deviation: float) -> Symmetry:
    """Return a symmetry with a proof that is bound to its digest."""
    return replace(symmetry, proof=Proof(symmetry.digest, deviation, N_TRIALS))


def _trials_and_resting_groups(
    module_trials: Sequence[ModuleTrial], symmetry: Symmetry
) -> Iterator[tuple[ModuleTrial, set[str]]]:
    """Yield pairs of a trial and the groups that are not permuted in it.

    First all groups move at once, in every trial. Two small groups may by chance get the same
    order, and one taken for the other would go unseen. So half of the small groups rest in each of ceil(log2(n))
    further trials, by the binary digits of their numbers: any two of the n groups differ in a digit, and only one of
    them moves there.
    """
    for trial in module_trials:
        yield trial, set()
    small = [group.name for group in symmetry.all_groups if group.size <= MAX_CONFUSABLE_SIZE]
    for digit in range((len(small) - 1).bit_length() if small else 0):
        resting = {name for number, name in enumerate(small) if number >> digit & 1}
        yield module_trials[digit % len(module_trials)], resting


def _random_orders(
    symmetry: Symmetry, units: Mapping[str, int], rng: np.random.Generator, resting: set[str]
) -> dict[str, Labels]:
    """Return random orders without fixed points, different inside every unit of a parent; some groups rest."""
    orders: dict[str, Labels] = {}
    for group in sorted(symmetry.all_groups, key=lambda group: group.parent is not None):  # parents first
        parent_order = np.zeros(1, dtype=np.int64) if group.parent is None else orders[group.parent]
        size = units[group.name] if group.parent is None else group.size
        inner_orders = []
        for parent_unit in parent_order:
            if group.name in resting:
                inner_orders.append(np.arange(size))
            else:
                # Two units have one cycle only, the swap: permutations in every other parent unit tell these apart.
                inner_orders.append(_random_cycle(size, rng) if parent_unit % 2 == 0 else rng.permutation(size))
        orders[group.name] = np.concatenate([p * size + o for p, o in zip(parent_order, inner_orders, strict=True)])
    return orders


def _random_cycle(count: int, rng: np.random.Generator) -> Labels:
    """Return a random order (count,) that is one cycle, which leaves no unit where it was."""
    ring = rng.permutation(count)
    order = np.empty(count, dtype=np.int64)
    order[ring] = np.roll(ring, 1)
    return order


def _moves(symmetry: Symmetry, units: Mapping[str, int], moves: Mapping[str, Labels | Transport]) -> Change:
    """Return what becomes of an array when the units of some groups move, into an order or by a transport."""
    transports = {name: permutation(by) if isinstance(by, np.ndarray) else by for name, by in moves.items()}
    return lambda name, array: move(array, symmetry.layouts[name], transports, units)


def _failing_groups(
    trial: ModuleTrial,
    symmetry: Symmetry,
    units: Mapping[str, int],
    orders: Mapping[str, Labels],
    joint_deviation: float,
) -> list[str]:
    """Return a line for every group that changes the outputs on its own, or one for all if none does."""
    problems = []
    for group in symmetry.by_name.values():
        group_order = {group.name: orders[group.name]}
        if group.parent is not None:  # only inside the units of its parent, which stay
            inner = orders[group.name].reshape(-1, group.size) % group.size  # (units of the parent, size)
            group_order = {group.name: (np.arange(len(inner))[:, None] * group.size + inner).ravel()}
        completed = complete_orders(symmetry, units, group_order)
        deviation = trial.deviation_of_copies(_moves(symmetry, units, completed))
        if not deviation <= trial.tolerance:
            problems.append(_failure_message(symmetry, [group.name], deviation))
    return problems or [_failure_message(symmetry, list(symmetry.by_name), joint_deviation)]


def _failure_message(symmetry: Symmetry, groups: Sequence[str], deviation: float) -> str:
    """Return what an error says of groups that do not move together as the symmetry says."""
    places = dict.fromkeys(str(place) for group in groups for place in symmetry.places(group))
    return (
        f"group {', '.join(groups)}: another order of its units changes the outputs by {deviation:.2g} of their "
        f"size, so these do not move together, or not alone: {', '.join(places) or 'nothing of its own'}; correct the "
        "symmetry, or trace it anew from the module"
    )


def _groups_that_allow(
    module_trials: Sequence[ModuleTrial],
    symmetry: Symmetry,
    units: Mapping[str, int],
    action: Action,
    rng: np.random.Generator,
) -> set[str]:
    """Return the groups on which an action holds.

    Groups of a kind (the same sides of their places) are tried together, and in halves where that fails. Where it fails
    for the first and the last of more than `MAX_SEPARATE_TRIALS`, the others are not tried: an action that is missed is
    merely not used.
    """

    def holds(names: Sequence[str]) -> bool:
        for transports in ACTIONS[action]({name: units[name] for name in names}, rng):
            inverses = {name: inverse for name, one in transports.items() if (inverse := one.inverse) is not None}
            there, back = _moves(symmetry, units, transports), _moves(symmetry, units, inverses)
            if not all(trial.deviation(there, back) <= trial.tolerance for trial in module_trials):
                return False
        return True

    statistics = {name for name, _ in module_trials[0].module.named_buffers()}
    kinds: dict[object, list[str]] = {}  # groups on which the action may hold, those of a kind together
    for group in symmetry.by_name.values():
        places = symmetry.places(group.name)
        # No action holds where statistics follow the units, nor where units are combined as in a layer norm.
        is_free = bool(places) and not any(place.array in statistics for place in places)
        sides = tuple(place.side for place in places)
        if action == "scale" and "both" in sides:  # an array that makes and reads units is multiplied and divided
            continue
        if is_free and (group.parent is not None or group.resizable):
            kinds.setdefault((sides, group.parent is None), []).append(group.name)
    allowed: set[str] = set()
    pending = list(kinds.values())
    while pending:
        names = pending.pop()
        if holds(names):  # for all of a kind, else for halves
            allowed.update(names)
        elif len(names) > MAX_SEPARATE_TRIALS and not holds(names[:1]) and not holds(names[-1:]):
            continue
        elif len(names) > 1:
            pending += [names[: len(names) // 2], names[len(names) // 2 :]]
    return allowed


SCALE_RANGE = (0.5, 2.0)
"""Range of the positive factors that are tried. Chosen by hand; nobody has measured other values."""


def _signs(units: Mapping[str, int], rng: np.random.Generator) -> list[dict[str, Transport]]:
    """Return random signs, which may hold below odd functions such as tanh, and their opposites."""
    signs = {name: rng.choice([-1.0, 1.0], count) for name, count in units.items()}
    return [
        {name: Injection(np.arange(units[name]), units[name], sign * values) for name, values in signs.items()}
        for sign in (1.0, -1.0)
    ]


def _scales(units: Mapping[str, int], rng: np.random.Generator) -> list[dict[str, Transport]]:
    """Return one draw of positive factors, which may hold below ReLU."""
    return [{name: Scaling(rng.uniform(*SCALE_RANGE, count)) for name, count in units.items()}]


ACTIONS: dict[Action, Callable[[Mapping[str, int], np.random.Generator], list[dict[str, Transport]]]] = {
    "sign": _signs,
    "scale": _scales,
}
"""Every action that is tried, in the order in which a group lists them: from numbers of units by group to random
elements, so many that every unit is changed in one of them."""
