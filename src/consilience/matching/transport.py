"""Optimal transport between the units of two layers: exact plans, and entropic plans by Sinkhorn iterations.

    min_P <C, P> + epsilon sum_ij P_ij (log P_ij - 1),    P 1 = a, P^T 1 = b, P >= 0,

under uniform or other marginals a and b. Exact plans (epsilon = 0) of equal uniform marginals are permutations and come
from the assignment solver; other exact plans from POT's network simplex; entropic ones from Sinkhorn iterations in the
log domain, on costs divided by their largest, so that `epsilon` is relative. What an entropic plan lacks of its
marginals at the last iteration is rounded off.
"""

from __future__ import annotations

import warnings

import numpy as np
from scipy.special import logsumexp

from consilience.checks import Array
from consilience.errors import InputError
from consilience.matching.assignment import assign_block

MARGINAL_ERROR = 1e-8
"""Largest summed error of a marginal of an entropic plan, as a share of all mass. Chosen by hand."""
MAX_SIMPLEX_STEPS = 10_000_000
"""Iterations of the network simplex at most; reaching them raises an error. Chosen by hand."""
MAX_ITERATIONS = 2_000
"""Iterations at the last epsilon at most. Chosen by hand."""
WARM_ITERATIONS = 50
"""Iterations at each larger epsilon on the way: they only start the next. Chosen by hand."""
CHECK_EVERY = 10
"""Iterations between looks at the marginals. Chosen by hand for their cost."""
MAX_LOG_SCALING = 50.0
"""Scalings beyond the exponential of this go into the potentials, long before exp overflows at 709."""


def exact_plan(costs: Array, rows: Array | None = None, columns: Array | None = None) -> Array:
    """Return a plan (n, m) of least cost with marginals (n,) and (m,), each summing to 1; uniform ones by default.

    Examples
    --------
    >>> exact_plan(np.array([[1.0, 0.0], [0.0, 1.0]]))
    array([[0. , 0.5],
           [0.5, 0. ]])
    """
    n, m = costs.shape
    if rows is None and columns is None and n == m:
        plan = np.zeros((n, n))
        plan[np.arange(n), assign_block(costs)] = 1.0 / n
        return plan
    import ot  # here, since only couplings of unequal widths need it

    rows = np.full(n, 1.0 / n) if rows is None else rows / rows.sum()
    columns = np.full(m, 1.0 / m) if columns is None else columns / columns.sum()
    scale = float(np.abs(costs).max()) or 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            plan = ot.emd(rows, columns, np.ascontiguousarray(costs / scale), numItermax=MAX_SIMPLEX_STEPS)
        except UserWarning as error:
            raise InputError(f"the transport between {n} and {m} units could not be solved: {error}") from error
    return np.asarray(plan)


def entropic_plan(costs: Array, epsilon: float, rows: Array | None = None, columns: Array | None = None) -> Array:
    """Return the plan (n, m) that minimises cost plus `epsilon` times negative entropy, with marginals (n,) and (m,).

    Costs are divided by their largest, so that `epsilon` is relative; it is reached by halving from 1, each time from
    the last potentials. Iterations at the last one end at a marginal error of 1e-8, or at their limit; what is then
    left is rounded off, so that the marginals, by default uniform, always hold.

    Examples
    --------
    >>> entropic_plan(np.array([[1.0, 0.0], [0.0, 1.0]]), 0.01).round(6)
    array([[0. , 0.5],
           [0.5, 0. ]])
    """
    n, m = costs.shape
    a = np.full(n, 1.0 / n) if rows is None else rows / rows.sum()
    b = np.full(m, 1.0 / m) if columns is None else columns / columns.sum()
    scaled = (costs - costs.min()) / (float(np.abs(costs).max()) or 1.0)
    f, g = np.zeros(n), np.zeros(m)
    step = max(1.0, epsilon)
    while step > epsilon:  # epsilon scaling: potentials at twice epsilon are close to those at epsilon
        f, g = _sinkhorn(scaled, step, a, b, f, g, WARM_ITERATIONS)
        step = max(step / 2.0, epsilon)
    f, g = _sinkhorn(scaled, epsilon, a, b, f, g, MAX_ITERATIONS)
    return _rounded(np.exp((f[:, None] + g - scaled) / epsilon), a, b)


def _rounded(plan: Array, a: Array, b: Array) -> Array:
    """Return the plan with exact marginals: what is too much is taken off, what is missing is spread by its shares.

    Altschuler, Niles-Weed, Rigollet (2017), "Near-linear time approximation algorithms for optimal transport via
    Sinkhorn iteration", algorithm 2.
    """
    # Rows, then columns, with too much mass are scaled down; afterwards both marginals lack the same mass.
    plan = plan * np.minimum(1.0, a / plan.sum(axis=1))[:, None]
    plan = plan * np.minimum(1.0, b / plan.sum(axis=0))
    row_deficits, column_deficits = np.maximum(a - plan.sum(axis=1), 0.0), np.maximum(b - plan.sum(axis=0), 0.0)
    missing_mass = float(row_deficits.sum())
    return plan + np.multiply.outer(row_deficits, column_deficits) / missing_mass if missing_mass > 0 else plan


def _sinkhorn(
    costs: Array, epsilon: float, a: Array, b: Array, f: Array, g: Array, iterations: int
) -> tuple[Array, Array]:
    """Return potentials after so many iterations, or when the marginals hold.

    Between two absorptions an iteration is two products of a fixed matrix with vectors; the logarithms of what these
    scale are moved into the potentials before they grow large.
    """
    f, g = _log_domain_step(costs, epsilon, a, b, g)
    # Plan = diag(u) K diag(v) with K = exp((f + g - C) / epsilon); u and v are absorbed into f and g from time to time.
    kernel = np.exp((f[:, None] + g - costs) / epsilon)  # (n, m)
    u, v = np.ones(len(a)), np.ones(len(b))
    for iteration in range(1, iterations + 1):
        u = a / (kernel @ v)  # (n,)
        v = b / (kernel.T @ u)  # (m,)
        if iteration % CHECK_EVERY and iteration < iterations:
            continue
        if not (np.all(np.isfinite(u)) and np.all(np.isfinite(v)) and u.min() > 0 and v.min() > 0):
            f, g = _log_domain_step(costs, epsilon, a, b, g)  # a whole row underflowed
        else:
            error = float(np.abs(u * (kernel @ v) - a).sum())
            is_large = max(float(np.abs(np.log(u)).max()), float(np.abs(np.log(v)).max())) > MAX_LOG_SCALING
            if error > MARGINAL_ERROR and not is_large and iteration < iterations:
                continue
            f, g = f + epsilon * np.log(u), g + epsilon * np.log(v)
            if error <= MARGINAL_ERROR:
                break
        kernel = np.exp((f[:, None] + g - costs) / epsilon)
        u, v = np.ones(len(a)), np.ones(len(b))
    return f, g


def _log_domain_step(costs: Array, epsilon: float, a: Array, b: Array, g: Array) -> tuple[Array, Array]:
    """Return potentials after one iteration that cannot underflow."""
    f = epsilon * (np.log(a) - logsumexp((g - costs) / epsilon, axis=1))
    return f, epsilon * (np.log(b) - logsumexp((f[:, None] - costs) / epsilon, axis=0))
