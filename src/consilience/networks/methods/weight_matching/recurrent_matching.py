"""Weight matching of recurrent units.

A hidden-to-hidden matrix H is permuted on both axes, H -> P H P^T. So with all other groups fixed the matching
objective is quadratic in the permutation P:

    maximise_P  <C, P> + sum_gates <H_target P H_model^T, P>,

with C (slots, units) the inner products at all other places (``InnerProducts``), H_target the recurrent weights of the
weighted sum of the other models, and H_model those of the model that moves. This is a fused Gromov-Wasserstein problem
(``consilience.matching.gromov``). It is solved by conditional gradient from the present placement and from the linear
assignment by C. A solution that does not raise the objective by more than rounding is discarded.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import numpy as np

from consilience.checks import Array
from consilience.matching.gromov import FusedGromov, TransportPlan
from consilience.matching.gromov_descent import conditional_gradient
from consilience.networks.methods.weight_matching.recurrent_weights import recurrent_arrays, recurrent_weights
from consilience.networks.methods.weight_matching.state import MatchingState, PlacedModel, RemainingModels
from consilience.networks.symmetry.axes import Place
from consilience.networks.symmetry.transport import Injection


def match_recurrent_units(
    state: MatchingState, model: PlacedModel, remaining: RemainingModels, group: str, places: Sequence[Place]
) -> dict[str, Injection]:
    """Return the best move that was found for the units of a recurrent group; empty where none gains.

    Parameters
    ----------
    state : MatchingState
        The slots, all of them filled by all models.
    model : PlacedModel
        The model that moves.
    remaining : RemainingModels
        The models that stay.
    group : str
        The group.
    places : sequence of Place
        Places of the group that count.
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
