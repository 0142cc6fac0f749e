"""Recurrent weights of a group, and weight matching of recurrent units.

The rows and columns of a hidden-to-hidden matrix H are the same units: it is permuted on both axes, H -> P H P^T. So
with all other groups fixed the matching objective is quadratic in the permutation P:

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
from consilience.networks.network import to_numpy
from consilience.networks.symmetry.axes import Place, Segment
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Injection


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
        if len(places) != 2 or not is_alone or layout.blocks > 1 or symmetry.beside(places[0]) != {group}:
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
