"""Fused Gromov-Wasserstein problem of one model and one recurrent layer, and plans to start from."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from consilience.checks import AnyArray, Array
from consilience.matching.gromov import FusedGromov, TransportPlan
from consilience.networks.method import NetworkEnsemble
from consilience.networks.methods.layerwise import UnitRows
from consilience.networks.methods.optimal_transport import squared_costs
from consilience.networks.methods.weight_matching.recurrent_weights import RecurrentWeights, recurrent_arrays
from consilience.networks.network import to_numpy
from consilience.networks.symmetry.transport import Injection


def fan_in(ensemble: NetworkEnsemble, group: str) -> float:
    """Return the number of inputs that a unit of the fused network has from the layers before, without biases."""
    layouts = ensemble.symmetry.layouts
    hidden_arrays = {place.array for pair in recurrent_arrays(ensemble.symmetry, group) for place in pair}
    total = 0.0
    for place in ensemble.symmetry.places(group):
        shape = layouts[place.array].shape(ensemble.target_units)
        if place.side != "input" and place.array not in hidden_arrays and len(shape) > 1:
            total += prod(shape) / shape[place.axis]
    return max(1.0, total)


def rescale_to_width(weights: Sequence[RecurrentWeights], width: int) -> list[RecurrentWeights]:
    """Return recurrent weights whose rows sum alike in every width: times k / K, because outgoing weights are split.

    Parameters
    ----------
    weights : sequence of RecurrentWeights, of length n_models
        Recurrent weights (gates, k, k) of every model.
    width : int
        Number K of units in the fused network.
    """
    return [
        model_weights
        if model_weights.matrices.shape[1] == width
        else RecurrentWeights(model_weights.matrices * (model_weights.matrices.shape[1] / width), model_weights.flips)
        for model_weights in weights
    ]


def coupling_problem(
    support: AnyArray,
    hidden: Array | None,
    rows: UnitRows,
    weights: RecurrentWeights,
    model: int,
    alpha: float,
    has_signs: bool,
) -> FusedGromov:
    """Return the problem that couples one model's units to those of the fused layer.

    Parameters
    ----------
    support : array of shape (K, F)
        Incoming weights of the fused layer.
    hidden : ndarray of shape (gates, K, K), optional
        Recurrent weights of the fused layer; None where they are not known yet, which leaves the second term out.
    rows : UnitRows
        Incoming weights of all models' units.
    weights : RecurrentWeights
        Recurrent weights (gates, k, k) of the model.
    model : int
        Index of the model.
    alpha : float
        Weight of the second term, alpha_H of equation (10).
    has_signs : bool
        Whether units may change sign.
    """
    costs = squared_costs(support, rows, model)  # (K, k)
    matrices = weights.matrices
    if hidden is None:
        hidden, matrices = np.zeros((0, rows.width, rows.width)), matrices[:0]
    if not has_signs:
        return FusedGromov(costs, hidden, matrices, alpha)
    odd = np.flatnonzero(rows.odd)
    products = to_numpy(support)[:, odd] @ to_numpy(rows.points[model])[:, odd].T  # (K, k)
    # Costs without the products of odd entries, which FusedGromov adds with the sign that it chooses.
    return FusedGromov(costs + 2.0 * products, hidden, matrices, alpha, products, weights.flips[: len(hidden)])


def uniform_product(problem: FusedGromov) -> float:
    """Return sum_g <H_g P H'_g^T, P> at the uniform plan P: the product of the means of both matrices."""
    return float(
        np.einsum("g,g->", problem.row_structure.mean(axis=(1, 2)), problem.column_structure.mean(axis=(1, 2)))
    )


def identity_plan(problem: FusedGromov) -> TransportPlan:
    """Return the plan that couples every unit with the unit of its own number."""
    mass = np.eye(len(problem.costs)) / len(problem.costs)
    return TransportPlan(mass, None if problem.odd is None else mass)


def permutation_plan(transport: Injection, has_signs: bool) -> TransportPlan:
    """Return a permutation as a plan (K, K), with its signs where the problem has any."""
    mass = np.zeros((transport.width, transport.width))
    mass[transport.slots, np.arange(transport.width)] = 1.0 / transport.width
    if not has_signs:
        return TransportPlan(mass)
    return TransportPlan(mass, mass if transport.signs is None else mass * transport.signs)
