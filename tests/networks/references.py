"""The formulas of network fusion by explicit loops: they share no code with the library, and know no modules.

Plans come from scipy, costs from the tensor of all four indices, and averages from loops over units. A network is a
list of pairs (W, b), inputs first.
"""

import itertools

import numpy as np
from scipy.optimize import linear_sum_assignment, linprog

# -- Optimal transport.


def plan(costs):
    """Return the cheapest coupling of uniform marginals."""
    n, m = costs.shape
    if n == m:
        permutation = np.zeros((n, m))
        permutation[linear_sum_assignment(costs)] = 1 / n
        return permutation
    return linear_programme(costs, np.full(n, 1 / n), np.full(m, 1 / m))


def linear_programme(costs, rows, columns):
    """Return the cheapest coupling of any marginals."""
    n, m = costs.shape
    sums = np.vstack([np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))])
    solution = linprog(costs.ravel(), A_eq=sums, b_eq=np.concatenate([rows, columns]), method="highs")
    return solution.x.reshape(n, m)


def sinkhorn(costs, epsilon, rows, columns, iterations=50_000):
    """Return the entropic coupling: plain iterations of the kernel."""
    kernel = np.exp(-costs / epsilon)
    row_scales, column_scales = np.ones(len(rows)), np.ones(len(columns))
    for _ in range(iterations):
        before = row_scales
        row_scales = rows / (kernel @ column_scales)
        column_scales = columns / (kernel.T @ row_scales)
        if np.abs(row_scales / before - 1).max() < 1e-14:
            break
    return row_scales[:, None] * kernel * column_scales[None, :]


# -- Layer by layer: OT fusion, and Wasserstein barycenters by the tensor of all four indices.


def couplings_to_reference(models, reference):
    """Return the couplings (k_reference, k_j) of every model and hidden layer: OT fusion, steps 1 to 6."""
    target = models[reference]
    couplings = []
    for layers in models:
        before = np.eye(layers[0][0].shape[1])
        model_couplings = []
        for number in range(len(layers) - 1):
            weight, bias = layers[number]
            moved = weight @ before if number == 0 else weight @ (before * weight.shape[1]).T
            costs = np.array([[((w - v) ** 2).sum() for v in moved] for w in target[number][0]])
            if bias is not None:
                costs += (target[number][1][:, None] - bias[None, :]) ** 2
            before = plan(costs)
            model_couplings.append(before)
        couplings.append(model_couplings)
    return couplings


def spread_average(models, couplings, shares):
    """Return the layers that the couplings give: what units receive averages, what they send splits, by loops."""
    fused = []
    depth = len(models[0])
    for number in range(depth):
        total_w, total_b = 0.0, 0.0
        for layers, model_couplings, share in zip(models, couplings, shares, strict=True):
            weight, bias = layers[number]
            out = model_couplings[number] if number < depth - 1 else np.eye(len(weight)) / len(weight)
            into = model_couplings[number - 1] if number else np.eye(weight.shape[1]) / weight.shape[1]
            new, old = len(into), into.shape[1]
            moved = np.zeros((len(out), new))
            for j, q in np.ndindex(*moved.shape):
                for g, s in np.ndindex(*weight.shape):
                    moved[j, q] += len(out) * out[j, g] * weight[g, s] * old * into[q, s]
            total_w = total_w + share * moved
            if bias is not None:
                total_b = total_b + share * len(out) * out @ bias
        fused.append((total_w, None if models[0][number][1] is None else total_b))
    return fused


def four_way_costs(target, layer, before):
    """Return the costs (7) (k_new, k_old) by the tensor (j, q, g, s), times the number of inputs.

    Weights are compared as densities over inputs, k w, so that layers of different widths can be the same function;
    the paper compares the weights themselves.
    """
    (new, new_bias), (old, old_bias) = target, layer
    width, width_old = new.shape[1], old.shape[1]
    tensor = (width * new[:, :, None, None] - width_old * old[None, None, :, :]) ** 2 / width
    costs = np.einsum("jqgs,qs->jg", tensor, before)
    if new_bias is not None:
        costs = costs + (new_bias[:, None] - old_bias[None, :]) ** 2
    return costs


def barycenter(models, shares, reference, iterations=200):
    """Return layers, couplings by model, and the objective of every hidden layer by iteration: algorithm 1."""
    depth = len(models[0])
    couplings = [[] for _ in models]
    histories = []
    for number in range(depth - 1):
        target = models[reference][number]
        befores = [
            model_couplings[-1] if model_couplings else np.eye(layers[0][0].shape[1]) / layers[0][0].shape[1]
            for layers, model_couplings in zip(models, couplings, strict=True)
        ]
        history, last = [], None
        for _ in range(iterations):
            costs = [
                four_way_costs(target, layers[number], before) for layers, before in zip(models, befores, strict=True)
            ]
            plans = [plan(model_costs) for model_costs in costs]
            history.append(sum(a * (c * p).sum() for a, c, p in zip(shares, costs, plans, strict=True)))
            if last is not None and all(np.allclose(p, q, atol=1e-12) for p, q in zip(plans, last, strict=True)):
                break
            last = plans
            target = barycentric_rows([layers[number] for layers in models], plans, befores, shares)
        for model_couplings, coupling in zip(couplings, plans, strict=True):
            model_couplings.append(coupling)
        histories.append(history)
    return spread_average(models, couplings, shares), couplings, histories


def barycentric_rows(layers, plans, befores, shares):
    """Return the pair (W, b) of formula (9)."""
    weight, bias = 0.0, 0.0
    for (old, old_bias), out, into, share in zip(layers, plans, befores, shares, strict=True):
        weight = weight + share * len(out) * into.shape[1] * out @ old @ into.T
        if old_bias is not None:
            bias = bias + share * len(out) * out @ old_bias
    return weight, None if layers[0][1] is None else bias


# -- Permutations.


def permuted_layers(layers, orders):
    """Return the layers with hidden unit `orders[l][u]` at place u."""
    permuted = []
    for number, (weight, bias) in enumerate(layers):
        out = orders[number] if number < len(orders) else np.arange(len(weight))
        into = orders[number - 1] if number else np.arange(weight.shape[1])
        permuted.append((weight[np.ix_(out, into)], None if bias is None else bias[list(out)]))
    return permuted


def squared_distance(layers, others):
    """Return the squared distance of all weights and biases of two networks."""
    return sum(
        ((w - v) ** 2).sum() + (0.0 if b is None else ((b - c) ** 2).sum())
        for (w, b), (v, c) in zip(layers, others, strict=True)
    )


def every_order(widths):
    """Return all orders of all hidden layers of these widths."""
    return itertools.product(*[list(itertools.permutations(range(width))) for width in widths])


def concatenated(models, shares):
    """Return the network that has all hidden units of all models side by side, and their mean logits."""
    depth = len(models[0])
    joint_layers = []
    for number in range(depth):
        weights, biases = [layers[number][0] for layers in models], [layers[number][1] for layers in models]
        if number == 0 < depth - 1:
            weight = np.vstack(weights)
        elif number < depth - 1:
            weight = np.zeros((sum(map(len, weights)), sum(weight.shape[1] for weight in weights)))
            row = column = 0
            for block in weights:
                weight[row : row + len(block), column : column + block.shape[1]] = block
                row, column = row + len(block), column + block.shape[1]
        else:
            weight = np.hstack([share * block for share, block in zip(shares, weights, strict=True)])
        last = number == depth - 1
        bias = sum(s * b for s, b in zip(shares, biases, strict=True)) if last else np.concatenate(biases)
        joint_layers.append((weight, bias))
    return joint_layers
