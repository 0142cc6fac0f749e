"""Coordinate descent over the slots of all groups and all models: weight matching, for any number of models and widths.

One visit takes the units of one group of one model out and puts them back where they are worth most beside all other
models, everything else held: an assignment problem. No visit raises E (see ``slots``), so the descent ends. A group is
visited again only after something that it shares an array with has moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from consilience.checks import AnyArray, Array
from consilience.networks.methods.weight_matching.recurrent_matching import looped
from consilience.networks.methods.weight_matching.recurrent_weights import loops
from consilience.networks.methods.weight_matching.state import Others, Placed, Slots
from consilience.networks.network import square_sum
from consilience.networks.symmetry.axes import Place
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Injection

MOST_VISITS = 100
"""Visits of each group in one pass; a bound that matching never came near."""


@dataclass(frozen=True, eq=False)
class Descent:
    """Models in slots that no single visit can improve, and the objective before and after each pass."""

    models: list[Placed]
    history: Array
    converged: bool


def descend(
    slots: Slots,
    models: Sequence[Placed],
    weights: Array,
    fixed: int,
    rng: np.random.Generator,
    max_passes: int,
    tolerance: float = 0.0,
) -> Descent:
    """Improve until no visit helps.

    Parameters
    ----------
    slots
        The slots.
    models
        In their first places; they are moved.
    weights
        Of the models (J,), summing to 1.
    fixed
        The model that stays, if there are two.
    rng
        Draws the order of models.
    max_passes
        Most passes over all models.
    tolerance
        A pass over more than two models that lowers E by no more than this share is the last.
    """
    models = list(models)
    movable = [i for i in range(len(models)) if len(models) > 2 or i != fixed]
    history = [objective(slots, models, weights)]
    converged = len(models) < 2
    for _ in range(0 if converged else max_passes):
        moved = _pass(slots, models, weights, rng.permutation(movable).tolist())
        history.append(objective(slots, models, weights))
        fall = history[-2] - history[-1]
        if len(models) == 2 or not any(moved) or fall <= tolerance * history[-2]:  # one beside one settles in one pass
            converged = True
            break
    return Descent(models, np.array(history), converged)


def objective(slots: Slots, models: Sequence[Placed], weights: Array) -> float:
    """Return E: squared distances over all pairs of models, each times both weights."""
    if not slots.full:
        pairs = [(i, j) for j in range(len(models)) for i in range(j)]
        return sum(float(weights[i] * weights[j]) * slots.distance(models[i], models[j]) for i, j in pairs)
    if len(models) == 2:
        one, two = (model.arrays for model in models)
        return float(weights[0] * weights[1]) * sum(square_sum(one[key] - two[key]) for key in one)
    total = 0.0
    for key in models[0].arrays:
        mean = _weighted(models, weights, key)
        total += sum(
            weight * square_sum(model.arrays[key] - mean)
            for model, weight in zip(models, weights.tolist(), strict=True)
        )
    return total


def _weighted(models: Sequence[Placed], weights: Array, key: str) -> AnyArray:
    """Return the weighted sum of one array over models."""
    total: AnyArray = 0.0
    for model, weight in zip(models, weights.tolist(), strict=True):
        if weight:
            total = total + weight * model.arrays[key]
    return total


def _pass(slots: Slots, models: Sequence[Placed], weights: Array, order: Sequence[int]) -> list[bool]:
    """Improve one model after another; return which moved.

    Where all slots are full, a model is held against the sum of the others, which is kept up to date.
    """
    share = weights.tolist()
    if not slots.full or len(models) == 2:
        found = []
        for i in order:
            others = [(share[j], model) for j, model in enumerate(models) if j != i and share[j]]
            found.append(_improve(slots, models[i], slots.others(others)))
        return found
    total = {key: _weighted(models, weights, key) for key in models[0].arrays}
    moved = []
    for i in order:
        rest = {key: values - share[i] * models[i].arrays[key] for key, values in total.items()}
        others = [] if share[i] == 1.0 else [(1.0, Placed(rest, models[i].slots))]
        moved.append(_improve(slots, models[i], slots.others(others)))
        if moved[-1]:
            total = {key: values + share[i] * models[i].arrays[key] for key, values in rest.items()}
    return moved


def _improve(slots: Slots, one: Placed, others: Others) -> bool:
    """Visit the groups of one model, from the input on, until no visit helps; return whether any did."""
    if not others.models:
        return False
    near = _neighbours(slots, one.arrays)
    waiting = dict.fromkeys(near)  # from the input on, where what units receive already tells them apart
    moved = False
    for _ in range(MOST_VISITS * len(near)):
        if not waiting:
            break
        group = next(iter(waiting))
        del waiting[group]
        if visit(slots, one, others, group):
            moved = True
            waiting.update(dict.fromkeys(near[group]))
    return moved


def _neighbours(slots: Slots, arrays: Mapping[str, AnyArray]) -> dict[str, list[str]]:
    """Return, for every group to visit that is not inside another, the groups whose best slots depend on its own."""
    symmetry = slots.symmetry
    top = {name: group.parent or name for name, group in symmetry.by_name.items() if name not in slots.held}
    axes: dict[str, set[tuple[str, int]]] = {}
    for name in top:
        places = [place for place in symmetry.places(name) if place.array in arrays]
        axes.setdefault(top[name], set()).update((place.array, place.axis) for place in places)
    return {
        name: [
            other
            for other, theirs in axes.items()
            if any(array == key and number != axis for array, axis in own for key, number in theirs)
        ]
        for name, own in axes.items()
        if own
    }


def visit(
    slots: Slots, one: Placed, others: Others, group: str, places: Mapping[str, Sequence[Place]] | None = None
) -> bool:
    """Put the units of a group of one model, and of the groups inside it, where they are worth most.

    Parameters
    ----------
    slots
        The slots.
    one
        The model that moves.
    others
        What it is held against.
    group
        A group that is not inside another.
    places
        By group, the places that count; None for all.

    Returns
    -------
    bool
        Whether anything moved.
    """
    symmetry = slots.symmetry
    names = [group, *(child.name for child in symmetry.children(group))]
    counted = {name: slots.places(name, one.arrays) if places is None else places[name] for name in names}
    if places is None and slots.full and len(names) == 1 and loops(symmetry, group):
        moves = looped(slots, one, others, group, counted[group])
    else:
        moves = _assigned(slots, one, others, group, counted)
    if not moves:
        return False
    trial = Placed(dict(one.arrays), dict(one.slots))
    for name, move in moves.items():
        trial.move(symmetry, name, move, slots.width)
    if _twice(symmetry, names, one.arrays) and not _better(slots, one, trial, others, moves):
        return False
    for name, move in moves.items():
        others.products.moved(name, move, one.arrays, trial.arrays)
    one.arrays, one.slots = trial.arrays, trial.slots
    return True


def _assigned(
    slots: Slots, one: Placed, others: Others, group: str, counted: Mapping[str, Sequence[Place]]
) -> dict[str, Injection]:
    """Return the moves that are worth most, of a group and the groups inside it; none where they gain nothing."""
    worth = {name: slots.worth(one, others, name, places) for name, places in counted.items()}
    moves = slots.assign(worth[group], one, group, {name: worth[name] for name in counted if name != group})
    gain, stake = 0.0, 0.0
    for name, move in moves.items():
        held = one.slots[name].slots
        there, here = worth[name].best[held, move.slots[held]], worth[name].now[held, held]
        gain += float((there - here).sum())
        stake += float(np.abs(there).sum() + np.abs(here).sum())
    return moves if gain > slots.rounding * stake else {}


def _twice(symmetry: Symmetry, names: Sequence[str], arrays: Mapping[str, AnyArray]) -> bool:
    """Return whether an array has a group on two axes, so that the worth above is only a linear model of E."""
    axes = {(place.array, place.axis) for name in names for place in symmetry.places(name) if place.array in arrays}
    return len({array for array, _ in axes}) < len(axes)


def _better(slots: Slots, one: Placed, trial: Placed, others: Others, moved: Iterable[str]) -> bool:
    """Return whether E really falls."""
    keys = {place.array for name in moved for place in slots.symmetry.places(name)} & set(one.arrays)
    before, after = (
        sum(weight * slots.distance(model, other, keys) for weight, other in others.models) for model in (one, trial)
    )
    return after < before * (1.0 - slots.rounding)
