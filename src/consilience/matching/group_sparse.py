"""Assignment with a group-sparse count of columns: the matching step of KL-fusion, binary and relaxed.

Rows are local components (L of them, in blocks of one site each), columns are global ones (G). The problem is

    min_P <C, P> + lambda sum_g ||P_g||_2,   rows of P sum to 1, each block's columns sum to at most 1, P >= 0,

equations (8) and (9) of Claici et al. 2020. For binary P the norm of a column is the square root of its number of
users: block-coordinate descent by linear assignments. For relaxed P it is convex: consensus ADMM to a certified gap. At
``max_iterations`` the certificate is valid, though its gap may be wider than asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from consilience.checks import Array, Labels
from consilience.families.chunks import CHUNK_BYTES
from consilience.matching.assignment import assign_block, assign_blocks

CERTIFY_EVERY = 25
"""ADMM steps between certificates, each of which solves one assignment per site. Chosen by hand for its cost."""
BALANCE_EVERY = 10
"""ADMM steps between changes of the penalty. Chosen by hand."""
RESIDUAL_RATIO = 10.0
"""Ratio of primal to dual residual beyond which the penalty changes: that of Boyd et al. (2011), section 3.4.1."""
PENALTY_FACTOR = 1.5
"""By what the penalty changes then (Boyd et al. have 2). Chosen by hand."""
RELATIVE_GAIN_ROUNDING = 1e-12
"""Gain of a block, in units of its cost, below which it is rounding."""
MIN_NORM = 1e-300
"""Norm to divide by where a column is zero."""


def binary_penalty(labels: Labels, n_columns: int) -> float:
    """Return sum_g sqrt(n_g), the norm (8) of a binary matching."""
    return float(np.sqrt(np.bincount(labels, minlength=n_columns)).sum())


def descend_binary(
    costs: Array, offsets: Labels, strength: float, labels: Labels | None, rng: np.random.Generator, max_sweeps: int
) -> Labels:
    """Return labels (L,) after block-coordinate descent on (9) with binary P; exact in each block.

    Given the users n_g outside block j, its optimum is the assignment with costs C + lambda (sqrt(n_g + 1) -
    sqrt(n_g)). First all blocks move at once: since the square root is concave, the price of the last user of each
    column bounds what any number of them costs, so that no such step raises (9). Then the blocks that are not at their
    optimum move one by one, in random order, until a sweep changes nothing. With ``strength`` lambda zero the blocks
    are independent and solved at once. It starts from labels, or where there are none, from what costs C (L, G) alone
    give blocks that start at offsets (J + 1,).
    """
    if strength == 0.0:
        return assign_blocks(costs, offsets)
    current = assign_blocks(costs, offsets) if labels is None else labels.copy()
    users = _users(current, costs.shape[1])
    for _ in range(max_sweeps):  # all blocks at once, under a price that is an upper bound and exact where they are
        slope = np.where(users > 0, np.sqrt(users) - np.sqrt(np.maximum(users - 1.0, 0.0)), 1.0)
        proposed = assign_blocks(costs, offsets, strength * slope)
        if np.array_equal(proposed, current):
            break
        current, users = proposed, _users(proposed, costs.shape[1])
    for _ in range(max_sweeps):
        blocks = _improvable(costs, offsets, strength, current, users)
        if not blocks.size:
            break
        for block in rng.permutation(blocks):
            rows = slice(offsets[block], offsets[block + 1])
            users[current[rows]] -= 1.0
            current[rows] = assign_block(costs[rows] + strength * (np.sqrt(users + 1.0) - np.sqrt(users)))
            users[current[rows]] += 1.0
    return current


def _users(labels: Labels, n_columns: int) -> Array:
    """Return the number of users of every column (G,)."""
    return np.bincount(labels, minlength=n_columns).astype(np.float64)


def _improvable(costs: Array, offsets: Labels, strength: float, labels: Labels, users: Array) -> Labels:
    """Return the blocks that are not at their optimum given the users of all others, some blocks after others."""
    join_price = strength * (np.sqrt(users + 1.0) - np.sqrt(users))
    stay_price = strength * (np.sqrt(users) - np.sqrt(np.maximum(users - 1.0, 0.0)))
    improvable, first, n_blocks = [], 0, len(offsets) - 1
    while first < n_blocks:
        chunk_end = offsets[first] + CHUNK_BYTES // (8 * costs.shape[1])
        end = max(first + 1, int(np.searchsorted(offsets, chunk_end, side="right")) - 1)
        rows, chunk_offsets = slice(offsets[first], offsets[end]), offsets[first : end + 1] - offsets[first]
        improvable.append(first + _improvable_of(costs[rows], chunk_offsets, labels[rows], join_price, stay_price))
        first = end
    return np.concatenate(improvable)


def _improvable_of(costs: Array, offsets: Labels, labels: Labels, join_price: Array, stay_price: Array) -> Labels:
    """Return the blocks, of some, that are not at their optimum under the prices (G,) of joining and of staying."""
    sizes = np.diff(offsets)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    # The users of a column outside a block are its users less the block's own row there, if any.
    priced = costs + join_price
    for position in range(int(sizes.max())):  # a block's own labels have one user fewer without it, in all of its rows
        own_column = np.full(len(sizes), -1)
        own_column[sizes > position] = labels[offsets[:-1][sizes > position] + position]
        rows = np.flatnonzero(own_column[owner] >= 0)
        columns = own_column[owner[rows]]
        priced[rows, columns] += (stay_price - join_price)[columns]
    all_rows = np.arange(len(labels))
    current_costs, best_costs = priced[all_rows, labels], priced[all_rows, assign_blocks(priced, offsets)]
    gains = np.bincount(owner, weights=current_costs - best_costs, minlength=len(sizes))
    totals = np.bincount(owner, weights=np.abs(current_costs), minlength=len(sizes))
    return np.flatnonzero(gains > RELATIVE_GAIN_ROUNDING * totals)


@dataclass(frozen=True, eq=False)
class RelaxedPlan:
    """A solution of the relaxed problem with its certificate."""

    plan: Array  # P (L, G): rows sum to 1, block columns sum to at most 1
    upper: float  # objective of `plan`
    lower: float  # a proved lower bound on the optimum
    gap: float  # (upper - lower) / max(1, |upper|) in the scale of the mean absolute cost: what the solver stops at
    state: tuple[Array, Array, float]  # what a warm start needs


def solve_relaxed(
    costs: Array,
    offsets: Labels,
    strength: float,
    gap: float,
    max_iterations: int,
    warm: tuple[Array, Array, float] | None = None,
) -> RelaxedPlan:
    """Solve the relaxed problem by consensus ADMM to a certified relative gap.

    Three copies of P carry the group norm, the row constraints and the block-column constraints. The first copy gives a
    subgradient Y of the norm, and sum_j min_{P in U_j} <C_j + Y_j, P>, a set of assignment problems, bounds the optimum
    from below; repairing the second copy to feasibility bounds it from above. The certificate is valid where steps end
    before the gap is reached.

    Costs are C (L, G), offsets the start of each block (J + 1,), strength lambda; `warm` is the ``state`` of an earlier
    solution of a similar problem.
    """
    scale = float(np.abs(costs).mean()) or 1.0  # rho starts at the scale of the costs, so they are scaled to 1
    c, weight = costs / scale, strength / scale
    blocks = _Blocks(offsets)
    if warm is None:
        consensus, duals, rho = np.full(c.shape, 1.0 / c.shape[1]), np.zeros((3, *c.shape)), 1.0
    else:
        consensus, duals, rho = warm[0].copy(), warm[1].copy(), warm[2]
    best_plan, upper, lower = consensus, np.inf, -np.inf
    for step in range(1, max_iterations + 1):
        shifted = consensus - duals[0] - c / rho
        norms = np.linalg.norm(shifted, axis=0)  # (G,)
        shrink = np.maximum(0.0, 1.0 - weight / (rho * np.maximum(norms, MIN_NORM)))
        # (3, L, G): the group soft threshold, the rows' simplices, the block columns' sums of at most 1.
        copies = np.stack(
            [shifted * shrink, project_simplex(consensus - duals[1]), blocks.project(consensus - duals[2])]
        )
        if step % CERTIFY_EVERY == 0 or step == max_iterations:
            # The optimality condition of the first copy: Y lies in lambda times the subdifferential of the group norm.
            subgradient = rho * (consensus - duals[0] - copies[0]) - c
            lower = max(lower, _lower_bound(c, subgradient, offsets, weight))
            plan = blocks.repair(copies[1])
            value = float(np.sum(c * plan) + weight * np.linalg.norm(plan, axis=0).sum())
            if value < upper:
                best_plan, upper = plan, value
            if upper - lower <= gap * max(1.0, abs(upper)):
                break
        previous, consensus = consensus, (copies + duals).mean(axis=0)
        duals += copies - consensus
        primal = float(np.linalg.norm(copies - consensus))
        dual = float(np.sqrt(3.0) * np.linalg.norm(consensus - previous))
        if step % BALANCE_EVERY == 0 and step <= max_iterations // 2:
            rho, duals = _balance(rho, duals, primal, dual)
    relative = (upper - lower) / max(1.0, abs(upper))
    return RelaxedPlan(best_plan, upper * scale, lower * scale, relative, (consensus, duals, rho))


def _balance(rho: float, duals: Array, primal: float, dual: float) -> tuple[float, Array]:
    """Move the penalty towards equal residuals; scaled duals move the other way."""
    if primal > RESIDUAL_RATIO * dual:
        return rho * PENALTY_FACTOR, duals / PENALTY_FACTOR
    if dual > RESIDUAL_RATIO * primal:
        return rho / PENALTY_FACTOR, duals * PENALTY_FACTOR
    return rho, duals


def _lower_bound(costs: Array, subgradient: Array, offsets: Labels, weight: float) -> float:
    """Return the assignment bound for a subgradient, first shrunk into the ball that makes it one."""
    norms = np.linalg.norm(subgradient, axis=0)
    inside = subgradient * np.minimum(1.0, weight / np.maximum(norms, MIN_NORM))
    # min over P in U_j of <C + Y, P> is an assignment problem, since U_j has integral vertices.
    total = costs + inside
    return float(total[np.arange(len(total)), assign_blocks(total, offsets)].sum())


def project_simplex(rows: Array) -> Array:
    """Return the Euclidean projection of each row on the probability simplex."""
    descending = -np.sort(-rows, axis=1)
    excess = np.cumsum(descending, axis=1) - 1.0  # (n, G)
    steps = np.arange(1, rows.shape[1] + 1)
    # The threshold of Held, Wolfe and Crowder (1974): the largest prefix whose entries stay positive.
    last_positive = np.sum(descending * steps > excess, axis=1) - 1
    threshold = excess[np.arange(len(rows)), last_positive] / (last_positive + 1)
    return np.maximum(rows - threshold[:, None], 0.0)


class _Blocks:
    """Ragged blocks of rows, padded to (J, L_max) for operations on block columns."""

    def __init__(self, offsets: Labels) -> None:
        sizes = np.diff(offsets)
        inside = np.arange(sizes.max())
        self.real = inside < sizes[:, None]
        self.index = np.where(self.real, offsets[:-1, None] + inside, 0)

    def project(self, values: Array) -> Array:
        """Project every block column on {x >= 0, sum x <= 1}."""
        padded = np.where(self.real[:, :, None], values[self.index], -np.inf)  # (J, L_max, G)
        clipped = np.maximum(padded, 0.0)
        over = clipped.sum(axis=1) > 1.0
        if np.any(over):
            columns = np.swapaxes(padded, 1, 2)[over]
            finite = np.where(np.isfinite(columns), columns, columns.max(axis=1, keepdims=True) - 2.0)
            np.swapaxes(clipped, 1, 2)[over] = project_simplex(finite)
        return self._ragged(clipped)

    def repair(self, plan: Array) -> Array:
        """Return a feasible plan near `plan`, whose rows sum to 1 and are not negative."""
        padded = np.where(self.real[:, :, None], plan[self.index], 0.0)
        # Columns over 1 are scaled down; what rows then lack goes to columns in proportion to their slack, which
        # suffices
        # since G is at least the size of a block.
        padded = padded / np.maximum(padded.sum(axis=1, keepdims=True), 1.0)  # (J, L_max, G)
        slack = 1.0 - padded.sum(axis=1)  # room of each block column (J, G)
        deficit = np.where(self.real, 1.0 - padded.sum(axis=2), 0.0)  # what each row lacks (J, L_max)
        slack, deficit = np.maximum(slack, 0.0), np.maximum(deficit, 0.0)
        share = slack / np.maximum(slack.sum(axis=1, keepdims=True), MIN_NORM)
        filled = self._ragged(padded + deficit[:, :, None] * share[:, None, :])
        return filled / filled.sum(axis=1, keepdims=True)

    def _ragged(self, padded: Array) -> Array:
        """Return padded (J, L_max, G) as rows (L, G)."""
        return padded[self.real]
