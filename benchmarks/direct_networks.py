"""Fusion of multilayer perceptrons as one would write it directly: what the library's times are held against.

Both are written to be good: a cost matrix is one product, assignments are SciPy's. They know that a network is a list
of weights and biases and nothing else: no tracing, no checks, no other architectures.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

Weights = list[np.ndarray]


def ot_fusion(reference: Weights, other: Weights) -> Weights:
    """Return the average after aligning one bias-free network to another, equations (34) and (35), exact transport."""
    fused, before = [], None
    for layer, (target, source) in enumerate(zip(reference, other, strict=True)):
        aligned = source if before is None else source[:, before]
        if layer < len(reference) - 1:
            costs = (target**2).sum(axis=1)[:, None] + (aligned**2).sum(axis=1) - 2.0 * target @ aligned.T
            before = linear_sum_assignment(costs.astype(np.float64))[1]
            aligned = aligned[before]
        fused.append(0.5 * (target + aligned))
    return fused


def weight_matching(
    one: Weights, two: Weights, biases: tuple[Weights, Weights], rng: np.random.Generator
) -> tuple[list[np.ndarray], float]:
    """Return permutations of the second network's hidden units by coordinate descent, and the squared distance after.

    As published: groups in random order, all other permutations applied anew at every visit, until a whole pass brings
    no progress.
    """
    orders = [np.arange(len(weights)) for weights in one[:-1]]
    progress = True
    while progress:
        progress = False
        for group in rng.permutation(len(orders)):
            rows = two[group] if group == 0 else two[group][:, orders[group - 1]]
            below = two[group + 1] if group + 1 == len(orders) else two[group + 1][orders[group + 1]]
            worth = one[group] @ rows.T + one[group + 1].T @ below + np.outer(biases[0][group], biases[1][group])
            worth = worth.astype(np.float64)
            new = linear_sum_assignment(worth, maximize=True)[1]
            here = np.arange(len(new))
            if worth[here, new].sum() > worth[here, orders[group]].sum() + 1e-12:
                orders[group], progress = new, True
    return orders, distance(one, two, biases, orders)


def distance(one: Weights, two: Weights, biases: tuple[Weights, Weights], orders: Sequence[np.ndarray]) -> float:
    """Return the squared distance of two networks, the second one's units in these orders."""
    total, before = 0.0, np.arange(one[0].shape[1])
    for layer, (first, second) in enumerate(zip(one, two, strict=True)):
        order = orders[layer] if layer < len(orders) else np.arange(len(second))
        total += float(((first - second[order][:, before]) ** 2).sum(dtype=np.float64))
        total += float(((biases[0][layer] - biases[1][layer][order]) ** 2).sum(dtype=np.float64))
        before = order
    return total
