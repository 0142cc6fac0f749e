"""Where units go that have weights among themselves: those weights move on both axes at once.

With all other groups held, what a placement of such units is worth is quadratic in it: the products at the other places
and, over all gates, < H P H', P >. It is matched as a fused Gromov-Wasserstein problem (`consilience.matching.gromov`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from consilience.checks import Array
from consilience.matching.gromov import FusedGromov, TransportPlan
from consilience.matching.gromov_descent import conditional_gradient
from consilience.networks.methods.weight_matching.recurrent_weights import loops, weights_among
from consilience.networks.methods.weight_matching.state import Others, Placed, Slots
from consilience.networks.symmetry.axes import Place
from consilience.networks.symmetry.transport import Injection


def looped(slots: Slots, one: Placed, others: Others, group: str, places: Sequence[Place]) -> dict[str, Injection]:
    """Return the best move found for the units of a group with weights among themselves; none where none gains.

    Parameters
    ----------
    slots
        The slots, all of them filled by all models.
    one
        The model that moves.
    others
        The models that stay.
    group
        The group.
    places
        Its places.
    """
    symmetry = slots.symmetry
    inside = {place for pair in loops(symmetry, group) for place in pair}
    worth = slots.worth(one, others, group, [place for place in places if place not in inside])
    width = slots.width[group]
    turning = group in slots.turning
    theirs, own = (weights_among(symmetry, arrays, group, width) for arrays in (others.products.other, one.arrays))
    problem = FusedGromov(
        -2.0 * worth.even.T,
        theirs.matrices,
        own.matrices,
        float(width),
        worth.odd.T if worth.odd is not None else None,
        own.flips,
    )
    here = np.eye(width) / width
    stay = TransportPlan(here, here if turning else None)
    now = problem.value(problem.at(stay))
    best = min(
        (conditional_gradient(problem, start) for start in (stay, problem.by_costs())), key=lambda one: one.objective
    )
    if now - best.objective <= slots.rounding * problem.objective_scale:
        return {}
    return {group: moved_by(best.plan)}


def moved_by(plan: TransportPlan) -> Injection:
    """Return a coupling that is a permutation as a transport."""
    columns = np.abs(plan.signed_mass).argmax(axis=1)
    slots = np.empty(len(columns), dtype=np.int64)
    slots[columns] = np.arange(len(columns))
    if plan.signed is None:
        return Injection(slots, len(columns))
    signs: Array = np.sign(plan.signed[slots, np.arange(len(columns))])
    return Injection(slots, len(columns), signs if np.any(signs < 0) else None)
