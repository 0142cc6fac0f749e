"""Coordinate descent of weight matching, over the groups of all models.

One visit takes the units of one group of one model and moves them to the slots of greatest gain, all else fixed: a
linear assignment problem, or for recurrent units a quadratic one. A visit is undone unless it lowers E of
``weight_matching.state``, so the descent ends. It is the SOBLAP iteration of Ainsworth et al. (2023) for any number of
models and widths. Two departures from the published code: groups are visited from the input to the output instead of in
random order, and a group is visited again only after a group that shares an array with it has moved.

For more than two models the published merge-many matches every model to the mean of the others. With weights a_j that
is the weighted sum of the others, whose inner products are the exact gain.

The rows and columns of a hidden-to-hidden matrix H are the same units: it is permuted on both axes, H -> P H P^T. So
with all other groups fixed the objective of recurrent units is quadratic in the permutation P:

    maximise_P  <C, P> + sum_gates <H_target P H_model^T, P>,

with C (slots, units) the inner products at all other places (``InnerProducts``), H_target the recurrent weights of the
weighted sum of the other models, and H_model those of the model that moves. This is a fused Gromov-Wasserstein problem
(``consilience.matching.gromov``). It is solved by conditional gradient from the present placement and from the linear
assignment by C. A solution that does not raise the objective by more than rounding is discarded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from consilience.checks import AnyArray, Array
from consilience.matching.gromov import FusedGromov, TransportPlan
from consilience.matching.gromov_descent import conditional_gradient
from consilience.networks.methods.weight_matching.state import MatchingState, PlacedModel, RemainingModels
from consilience.networks.network import square_sum, to_numpy
from consilience.networks.symmetry.axes import Place, Segment
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Injection

MAX_VISITS_PER_GROUP = 100
"""Visits of each group in one pass over a model at most; against cycling only, matching never came near."""


@dataclass(frozen=True, eq=False)
class CoordinateDescent:
    """Result of a descent."""

    models: list[PlacedModel]  # the models in their slots at the end
    history: Array  # (n_passes + 1,): E before the first and after every pass
    converged: bool  # whether the descent ended before the limit on passes


def descend(
    state: MatchingState,
    models: Sequence[PlacedModel],
    weights: Array,
    fixed: int,
    rng: np.random.Generator,
    max_passes: int,
    tolerance: float = 0.0,
) -> CoordinateDescent:
    """Lower E by passes over all models, which change in place, until no visit lowers it.

    Of two models one, `fixed`, never moves. A pass over more than two that lowers E by no more than the tolerance is
    the last.
    """
    models = list(models)
    # Of two models one may stay: E depends on their relative placement only.
    movable = [i for i in range(len(models)) if len(models) > 2 or i != fixed]
    history = [objective(state, models, weights)]
    converged = len(models) < 2
    for _ in range(0 if converged else max_passes):
        has_moved = _pass_over_models(state, models, weights, rng.permutation(movable).tolist())
        history.append(objective(state, models, weights))
        decrease = history[-2] - history[-1]
        # Of two models only one moves, and a pass visits its groups until none gains: one pass is enough.
        if len(models) == 2 or not any(has_moved) or decrease <= tolerance * history[-2]:
            converged = True
            break
    return CoordinateDescent(models, np.array(history), converged)


def objective(state: MatchingState, models: Sequence[PlacedModel], weights: Array) -> float:
    """Return E: squared distances over all pairs of models, each times the weights of both."""
    if not state.is_full:
        pairs = [(i, j) for j in range(len(models)) for i in range(j)]
        return sum(float(weights[i] * weights[j]) * state.distance(models[i], models[j]) for i, j in pairs)
    if len(models) == 2:
        first, second = (model.arrays for model in models)
        return float(weights[0] * weights[1]) * sum(square_sum(first[key] - second[key]) for key in first)
    # With weights that sum to 1, sum_{i<j} a_i a_j |theta_i - theta_j|^2 = sum_i a_i |theta_i - mean|^2.
    total = 0.0
    for key in models[0].arrays:
        mean = _weighted_sum(models, weights, key)
        total += sum(
            weight * square_sum(model.arrays[key] - mean)
            for model, weight in zip(models, weights.tolist(), strict=True)
        )
    return total


def _weighted_sum(models: Sequence[PlacedModel], weights: Array, key: str) -> AnyArray:
    """Return the weighted sum of one array over models."""
    total: AnyArray = 0.0
    for model, weight in zip(models, weights.tolist(), strict=True):
        if weight:
            total = total + weight * model.arrays[key]
    return total


def _pass_over_models(
    state: MatchingState, models: Sequence[PlacedModel], weights: Array, order: Sequence[int]
) -> list[bool]:
    """Improve one model after another; return which moved.

    Where all slots are full, a model is compared with the weighted sum of the others, which is kept up to date.
    """
    shares = weights.tolist()
    if not state.is_full or len(models) == 2:
        moved = []
        for i in order:
            others = [(shares[j], model) for j, model in enumerate(models) if j != i and shares[j]]
            moved.append(improve_model(state, models[i], state.remaining_models(others)))
        return moved
    total = {key: _weighted_sum(models, weights, key) for key in models[0].arrays}
    moved = []
    for i in order:
        # sum_j a_j theta_j without model i: the target of its inner products.
        sum_of_others = {key: values - shares[i] * models[i].arrays[key] for key, values in total.items()}
        # One model stands for all others; its transports are not used, because every slot is full.
        others = [] if shares[i] == 1.0 else [(1.0, PlacedModel(sum_of_others, models[i].transports))]
        moved.append(improve_model(state, models[i], state.remaining_models(others)))
        if moved[-1]:
            total = {key: values + shares[i] * models[i].arrays[key] for key, values in sum_of_others.items()}
    return moved


def improve_model(state: MatchingState, model: PlacedModel, remaining: RemainingModels) -> bool:
    """Visit the groups of one model, in place, until no visit lowers E; return whether any did."""
    if not remaining.models:
        return False
    dependents = _dependent_groups(state, model.arrays)
    # A queue without repetition, from the input on: there what units receive already tells them apart.
    queue = dict.fromkeys(dependents)
    has_moved = False
    for _ in range(MAX_VISITS_PER_GROUP * len(dependents)):
        if not queue:
            break
        group = next(iter(queue))
        del queue[group]
        if visit_group(state, model, remaining, group):
            has_moved = True
            queue.update(dict.fromkeys(dependents[group]))
    return has_moved


def _dependent_groups(state: MatchingState, arrays: Mapping[str, AnyArray]) -> dict[str, list[str]]:
    """Return, for every group that is not inside another, the groups whose best slots depend on its own.

    These are the groups that stand on another axis of one of its arrays. Groups of units that are fixed are left out.
    """
    symmetry = state.symmetry
    top_group = {
        name: group.parent or name for name, group in symmetry.by_name.items() if name not in state.fixed_groups
    }
    axes: dict[str, set[tuple[str, int]]] = {}  # (array, axis) on which a group or one inside it stands
    for name in top_group:
        places = [place for place in symmetry.places(name) if place.array in arrays]
        axes.setdefault(top_group[name], set()).update((place.array, place.axis) for place in places)
    return {
        name: [
            other
            for other, other_axes in axes.items()
            if any(array == key and number != axis for array, axis in name_axes for key, number in other_axes)
        ]
        for name, name_axes in axes.items()
        if name_axes
    }


def visit_group(
    state: MatchingState,
    model: PlacedModel,
    remaining: RemainingModels,
    group: str,
    places: Mapping[str, Sequence[Place]] | None = None,
) -> bool:
    """Move units of a model, of a top group and those inside it, to the slots of greatest gain; return whether any did.

    The model is changed in place. By default all places of a group count.
    """
    symmetry = state.symmetry
    names = [group, *(child.name for child in symmetry.children(group))]
    counted = {name: state.places(name, model.arrays) if places is None else places[name] for name in names}
    is_quadratic = places is None and state.is_full and not state.linearizes_recurrent and len(names) == 1
    if is_quadratic and recurrent_arrays(symmetry, group):
        moves = match_recurrent_units(state, model, remaining, group, counted[group])
    else:
        moves = _best_assignment(state, model, remaining, group, counted)
    if not moves:
        return False
    trial = model.moved(symmetry, moves, state.width)
    axes = {(place.array, place.axis) for name in names for place in state.places(name, model.arrays)}
    keys = {array for array, _ in axes}
    # The gain of an array with the groups on two axes is only linearised: accept the move only if E itself falls.
    if len(keys) < len(axes):
        before, after = (
            sum(weight * state.distance(candidate, other, keys) for weight, other in remaining.models)
            for candidate in (model, trial)
        )
        if not after < before * (1.0 - state.min_relative_gain):  # by more than rounding
            return False
    for name, move in moves.items():
        remaining.products.update(name, move, model.arrays, trial.arrays)
    model.arrays, model.transports = trial.arrays, trial.transports
    return True


def _best_assignment(
    state: MatchingState,
    model: PlacedModel,
    remaining: RemainingModels,
    group: str,
    counted: Mapping[str, Sequence[Place]],
) -> dict[str, Injection]:
    """Return the moves of greatest gain of a group and of those inside it; empty where they gain only rounding."""
    gains = {name: state.assignment_gain(model, remaining, name, places) for name, places in counted.items()}
    moves = state.assign(gains[group], model, group, {name: gains[name] for name in counted if name != group})
    total_gain, scale = 0.0, 0.0
    # Gains are summed over filled slots only: empty ones move without effect.
    for name, move in moves.items():
        filled = model.transports[name].slots  # (k,)
        after = gains[name].with_best_signs[filled, move.slots[filled]]  # (k,)
        before = gains[name].with_current_signs[filled, filled]  # (k,)
        total_gain += float((after - before).sum())
        scale += float(np.abs(after).sum() + np.abs(before).sum())
    return moves if total_gain > state.min_relative_gain * scale else {}


@dataclass(frozen=True, eq=False)
class RecurrentWeights:
    """Hidden-to-hidden matrices of the units of a group, gate by gate."""

    matrices: Array  # (gates, k, k): weights with which a unit (row) receives another (column)
    # for every gate, whether its rows change sign with the unit that receives; columns always change sign with the unit
    # that sends
    flips: tuple[bool, ...]


def recurrent_arrays(symmetry: Symmetry, group: str) -> list[tuple[Place, Place]]:
    """Return the arrays in which a group stands on two axes, alone on both, with no other group on any axis.

    Of every such array these are its places: the axis that receives (rows) and the axis that sends (columns).
    """
    by_array: dict[str, list[Place]] = {}
    for place in symmetry.places(group):
        by_array.setdefault(place.array, []).append(place)
    pairs = []
    for array, places in by_array.items():
        layout = symmetry.layouts[array]
        is_alone = all(len(layout.axes[place.axis].segments) == 1 for place in places)
        if len(places) != 2 or not is_alone or not layout.is_as_stored or symmetry.beside(places[0]) != {group}:
            continue
        rows, columns = sorted(places, key=lambda place: place.side == "input")
        # FusedGromov assumes that the columns of every gate change sign with the unit that sends.
        if rows.axis != columns.axis and _segment(symmetry, columns).odd is None:
            pairs.append((rows, columns))
    return pairs


def ignored_recurrent_arrays(symmetry: Symmetry, group: str) -> set[str]:
    """Return the arrays that hold a group on two axes and are no recurrent weights: the matching leaves them out."""
    axes: dict[str, set[int]] = {}
    for place in symmetry.places(group):
        axes.setdefault(place.array, set()).add(place.axis)
    return {array for array, numbers in axes.items() if len(numbers) > 1} - {
        rows.array for rows, _ in recurrent_arrays(symmetry, group)
    }


def recurrent_weights(symmetry: Symmetry, arrays: Mapping[str, AnyArray], group: str, n_units: int) -> RecurrentWeights:
    """Return the recurrent weights of a group of k units in float64, of those arrays that are there."""
    matrices, flips = [], []
    for rows, columns in recurrent_arrays(symmetry, group):
        if rows.array not in arrays:
            continue
        out, inp = _segment(symmetry, rows), _segment(symmetry, columns)
        values = np.moveaxis(to_numpy(arrays[rows.array]), (rows.axis, columns.axis), (0, 1))
        # (gate, receiving unit, inner) x (copy, sending unit, inner) x what is left of other axes
        blocks = values.reshape(out.outer, n_units, out.inner, inp.outer, n_units, inp.inner, -1)
        gates = blocks.transpose(0, 2, 3, 5, 6, 1, 4)
        matrices.append(gates.reshape(-1, n_units, n_units))  # (gates, unit that receives, unit that sends)
        matrices_per_copy = len(matrices[-1]) // out.outer
        flips += [out.odd is None or copy in out.odd for copy in range(out.outer) for _ in range(matrices_per_copy)]
    if not matrices:
        return RecurrentWeights(np.zeros((0, n_units, n_units)), ())
    return RecurrentWeights(matrices[0] if len(matrices) == 1 else np.concatenate(matrices), tuple(flips))


def _segment(symmetry: Symmetry, place: Place) -> Segment:
    return symmetry.layouts[place.array].axes[place.axis].segments[place.segment]


def match_recurrent_units(
    state: MatchingState, model: PlacedModel, remaining: RemainingModels, group: str, places: Sequence[Place]
) -> dict[str, Injection]:
    """Return the best move that was found for the units of a recurrent group; empty where none gains.

    All slots are filled by all models; of the places of the group those given count.
    """
    symmetry = state.symmetry
    # The places of H carry the quadratic term; C is made of all others.
    recurrent_places = {place for pair in recurrent_arrays(symmetry, group) for place in pair}
    gain = state.assignment_gain(model, remaining, group, [place for place in places if place not in recurrent_places])
    width = state.width[group]
    has_signs = group in state.sign_groups
    target_weights = recurrent_weights(symmetry, remaining.products.target, group, width)  # (gates, K, K)
    model_weights = recurrent_weights(symmetry, model.arrays, group, width)  # (gates, K, K)
    # FusedGromov takes plans of total mass 1, here P / K. With costs -2 C and alpha = K its objective is a constant
    # minus 2 / K times the objective above.
    problem = FusedGromov(
        -2.0 * gain.even.T,  # (slot, unit)
        target_weights.matrices,
        model_weights.matrices,
        float(width),
        gain.odd.T if gain.odd is not None else None,
        model_weights.flips,
    )
    identity = np.eye(width) / width
    present = TransportPlan(identity, identity if has_signs else None)
    present_value = problem.value(problem.at(present))
    starts = (present, problem.by_costs())
    best = min((conditional_gradient(problem, start) for start in starts), key=attrgetter("objective"))
    if present_value - best.objective <= state.min_relative_gain * problem.objective_scale:
        return {}
    return {group: permutation_transport(best.plan)}


def permutation_transport(plan: TransportPlan) -> Injection:
    """Return a coupling (K, K) that is a permutation, with or without signs, as a transport."""
    unit_of_slot = np.abs(plan.signed_mass).argmax(axis=1)
    slots = np.empty(len(unit_of_slot), dtype=np.int64)
    slots[unit_of_slot] = np.arange(len(unit_of_slot))
    if plan.signed is None:
        return Injection(slots, len(unit_of_slot))
    signs: Array = np.sign(plan.signed[slots, np.arange(len(unit_of_slot))])
    return Injection(slots, len(unit_of_slot), signs if np.any(signs < 0) else None)
