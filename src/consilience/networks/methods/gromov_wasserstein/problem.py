"""One model against a layer of the fused network as a fused Gromov-Wasserstein problem, and its couplings as plans."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from consilience.checks import AnyArray, Array
from consilience.matching.gromov import FusedGromov, TransportPlan
from consilience.networks.method import NetworkEnsemble
from consilience.networks.methods.layerwise import Rows
from consilience.networks.methods.optimal_transport import squared_costs
from consilience.networks.methods.weight_matching.recurrent_weights import Among, loops
from consilience.networks.network import to_numpy
from consilience.networks.symmetry.transport import Injection


def inputs_of(ensemble: NetworkEnsemble, group: str) -> float:
    """Return how many inputs a unit has from the layers before, not counting biases."""
    layouts = ensemble.symmetry.layouts
    own = {place.array for pair in loops(ensemble.symmetry, group) for place in pair}
    total = 0.0
    for place in ensemble.symmetry.places(group):
        shape = layouts[place.array].shape(ensemble.target_units)
        if place.side != "input" and place.array not in own and len(shape) > 1:
            total += prod(shape) / shape[place.axis]
    return max(1.0, total)


def in_density(among: Sequence[Among], width: int, paper_scaling: bool) -> list[Among]:
    """Return weights among units that sum alike in every width, since what units send is split."""
    return [
        one
        if paper_scaling or one.matrices.shape[1] == width
        else Among(one.matrices * (one.matrices.shape[1] / width), one.flips)
        for one in among
    ]


def problem_of(
    support: AnyArray, left: Array | None, rows: Rows, among: Among, model: int, alpha: float, signed: bool
) -> FusedGromov:
    """Return what couples one model to the layer, of which the weights among units may not be known yet."""
    costs = squared_costs(support, rows, model)
    right = among.matrices
    if left is None:
        left, right = np.zeros((0, rows.width, rows.width)), right[:0]
    if not signed:
        return FusedGromov(costs, left, right, alpha)
    own = rows.points[model]
    odd = np.flatnonzero(rows.odd)
    products = to_numpy(support)[:, odd] @ to_numpy(own)[:, odd].T
    return FusedGromov(costs + 2.0 * products, left, right, alpha, products, among.flips[: len(left)])


def mean_product(problem: FusedGromov) -> float:
    """Return sum_g < H P H', P > at the uniform plan."""
    return float(
        np.einsum("g,g->", problem.row_structure.mean(axis=(1, 2)), problem.column_structure.mean(axis=(1, 2)))
    )


def stay(problem: FusedGromov) -> TransportPlan:
    """Return the coupling of every unit with itself."""
    mass = np.eye(len(problem.costs)) / len(problem.costs)
    return TransportPlan(mass, None if problem.odd is None else mass)


def plan_of(moved: Injection, signed: bool) -> TransportPlan:
    """Return a permutation as a coupling."""
    mass = np.zeros((moved.width, moved.width))
    mass[moved.slots, np.arange(moved.width)] = 1.0 / moved.width
    if not signed:
        return TransportPlan(mass)
    return TransportPlan(mass, mass if moved.signs is None else mass * moved.signs)
