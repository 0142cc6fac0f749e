"""Gaussian posteriors of networks with low-rank precisions, and the energy of their product.

The posterior of site k is N(theta_k, P_k^-1) with P_k = F_k + alpha_k I (Laplace), F = G^T G + diag(r) its Fisher
information (``networks.fisher.information``), G (rank, P) the factors and r (P,) the residual diagonal. The matrices
P x P are never formed, except on request.

Networks are not linear in their parameters, so far from theta_k the off-diagonal part of F is what can be trusted
least. Shrinkage rho takes (1 - rho) of it and keeps the diagonal,

    P = (1 - rho) G^T G + diag(r + rho diag(G^T G)) + alpha I:

rho = 0 is the posterior as it is, rho = 1 its diagonal.

The mode of the product of diagonal posteriors is an average entry by entry. With p_k the precisions of model k, times
how often it counts, and e the precision of priors that the p_k count too often,

    theta = sum_k p_k theta_k / (sum_k p_k - e)      (Matena and Raffel 2022; with priors (5) of Recasens et al. 2023);

where nothing is left of the denominator no model knows anything, and theta is the plain weighted mean. Else it solves
A x = b, with A known by its products only, by preconditioned conjugate gradients, whose every step lowers
q(x) = x^T A x / 2 - b^T x, at a rate that depends on the spread of the eigenvalues of M^-1 A (Hestenes, Stiefel 1952).
Where A shows a direction without positive curvature the iteration ends and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import AnyArray, Array
from consilience.networks.fisher.information import FisherInformation


@dataclass(frozen=True, eq=False)
class VectorLayout:
    """Layout of named arrays in one vector (P,), one after the other."""

    shapes: Mapping[str, tuple[int, ...]]  # shape of every array, in the order of the vector

    @cached_property
    def blocks(self) -> dict[str, slice]:
        """The slice of the vector that holds each array."""
        ends = list(accumulate((prod(shape) for shape in self.shapes.values()), initial=0))
        return {name: slice(*pair) for name, pair in zip(self.shapes, pairwise(ends), strict=True)}

    @property
    def size(self) -> int:
        """Number of entries, P."""
        return sum(prod(shape) for shape in self.shapes.values())

    def vector(self, arrays: Mapping[str, AnyArray]) -> AnyArray:
        """Return arrays as one float64 vector (P,)."""
        parts = [arrays[name] for name in self.shapes]
        xp = array_namespace(parts[0])
        return xp.concat([xp.reshape(xp.astype(part, xp.float64), (-1,)) for part in parts])

    def arrays(self, vector: AnyArray) -> dict[str, AnyArray]:
        """Return a vector (P,) as named arrays."""
        xp = array_namespace(vector)
        return {name: xp.reshape(vector[self.blocks[name]], shape) for name, shape in self.shapes.items()}


@dataclass(frozen=True, eq=False)
class LowRankPrecision:
    """A precision matrix s G^T G + diag(d)."""

    layout: VectorLayout  # where parameters lie in a vector
    # each (rank, entries): G by parameter, in its own precision; empty for a diagonal matrix
    factors: tuple[AnyArray, ...]
    scale: float  # factor s of G^T G
    diagonal_part: AnyArray  # (P,): d, float64

    @classmethod
    def of(
        cls, information: FisherInformation, layout: VectorLayout, shrinkage: float, prior: float
    ) -> LowRankPrecision:
        """Return the precision of a site's posterior after shrinkage by rho, with a prior of precision alpha."""
        rank = information.rank if shrinkage < 1.0 else 0  # at rho = 1 nothing of G is left
        xp = array_namespace(next(iter(information.residual.values())))
        factors = tuple(xp.reshape(information.factors[name], (rank, -1)) for name in layout.shapes) if rank else ()
        diagonal = layout.vector(information.residual)
        if shrinkage and information.rank:  # r + rho diag(G^T G)
            diagonal = diagonal + shrinkage * (layout.vector(information.diagonal) - diagonal)
        return cls(layout, factors, 1.0 - shrinkage, diagonal + prior)

    @cached_property
    def diagonal(self) -> AnyArray:
        """The diagonal (P,) of the whole matrix."""
        if not self.factors:
            return self.diagonal_part
        xp = array_namespace(self.diagonal_part)
        # Row by row, so that no float64 copy of all factors is made.
        squares = [
            sum(xp.astype(block[row, ...], xp.float64) ** 2 for row in range(block.shape[0])) for block in self.factors
        ]
        return self.diagonal_part + self.scale * xp.concat(squares)

    def times(self, vector: AnyArray) -> AnyArray:
        """Return the product with a vector (P,): two products with G, in the precision of G."""
        product = self.diagonal_part * vector
        if not self.factors:
            return product
        xp = array_namespace(vector)
        # Factors may be in single precision, and large: the vector is rounded, not the factors widened.
        rounded = xp.astype(vector, self.factors[0].dtype)
        blocks = self.layout.blocks.values()
        # G v (rank,)
        coefficients = sum(factor @ rounded[block] for factor, block in zip(self.factors, blocks, strict=True))
        low_rank_product = xp.concat([coefficients @ factor for factor in self.factors])  # G^T G v (P,)
        return product + self.scale * xp.astype(low_rank_product, xp.float64)

    def rows(self) -> AnyArray:
        """Return sqrt(s) G (rank, P) in float64."""
        xp = array_namespace(self.diagonal_part)
        if not self.factors:
            return xp.zeros((0, self.layout.size), dtype=xp.float64, device=self.diagonal_part.device)
        return self.scale**0.5 * xp.concat([xp.astype(factor, xp.float64) for factor in self.factors], axis=1)

    def dense(self) -> AnyArray:
        """Return the matrix (P, P)."""
        xp = array_namespace(self.diagonal_part)
        rows = self.rows()
        identity = xp.eye(self.layout.size, dtype=xp.float64, device=self.diagonal_part.device)
        return rows.T @ rows + self.diagonal_part[:, None] * identity


@dataclass(frozen=True, eq=False)
class PosteriorProduct:
    """Product of the sites' Gaussian posteriors, with surplus priors taken out.

    Minus its log density up to a constant, (5) of Recasens et al. (2023), is

        E(theta) = 1/2 sum_k w_k (theta - theta_k)^T P_k (theta - theta_k) - 1/2 excess |theta|^2.
    """

    means: Sequence[AnyArray]  # each (P,): theta_k
    precisions: Sequence[LowRankPrecision]  # P_k
    counts: Sequence[float]  # w_k, how often each site counts; 1 at most
    excess: float  # precision of the priors that the product counts too often, sum_k w_k alpha_k - alpha

    def energy(self, theta: AnyArray) -> float:
        """Return E at parameters (P,)."""
        total = -0.5 * self.excess * float(theta @ theta)
        for mean, precision, count in self._sites():
            step = theta - mean
            total += 0.5 * count * float(step @ precision.times(step))
        return total

    def times(self, vector: AnyArray) -> AnyArray:
        """Return the product of E's Hessian, sum_k w_k P_k - excess I, with a vector (P,)."""
        products = (count * precision.times(vector) for _, precision, count in self._sites())
        return sum(products, start=-self.excess * vector)

    def negative_gradient(self, theta: AnyArray) -> AnyArray:
        """Return minus the gradient of E at parameters (P,)."""
        products = (count * precision.times(mean - theta) for mean, precision, count in self._sites())
        return sum(products, start=self.excess * theta)

    @property
    def diagonal(self) -> AnyArray:
        """The diagonal (P,) of E's Hessian."""
        return sum((count * precision.diagonal for _, precision, count in self._sites()), start=-self.excess)

    def diagonal_merge(self) -> AnyArray:
        """Return the mean (P,) weighted by the diagonals, with which iterative merges start.

        Surplus priors are not taken out.
        """
        diagonals = (count * precision.diagonal for _, precision, count in self._sites())
        return diagonal_average(self.means, diagonals, self.counts)

    def dense(self) -> AnyArray:
        """Return E's Hessian (P, P)."""
        total: AnyArray = sum((count * precision.dense() for _, precision, count in self._sites()), start=0.0)
        xp = array_namespace(total)
        return total - self.excess * xp.eye(total.shape[0], dtype=total.dtype, device=total.device)

    def _sites(self) -> zip[tuple[AnyArray, LowRankPrecision, float]]:
        return zip(self.means, self.precisions, self.counts, strict=True)


MIN_TARGET_PRECISION = 1e-6
"""Least precision of the favoured model, the floor of Matena and Raffel's published code."""

CANCELLATION_ROUNDING = 1e-12
"""A precision below this fraction of its terms is what rounding leaves where priors cancel. Chosen by hand."""


def least_precision(share: float, floor: float, has_target: bool, is_target: bool) -> float:
    """Return the least precision of every entry of a model, its floor.

    The share is the weight of the model relative to the largest: the floor follows the weights alone, no norms of
    diagonals. Where a model is favoured it alone has a floor, of at least `MIN_TARGET_PRECISION`.

    Examples
    --------
    >>> least_precision(0.5, 1e-20, False, False), least_precision(0.5, 1e-20, True, True)
    (5e-21, 5e-07)
    """
    if not has_target:
        return share * floor
    return share * max(floor, MIN_TARGET_PRECISION) if is_target else 0.0


def diagonal_average(
    means: Sequence[AnyArray], precisions: Iterable[AnyArray], weights: Sequence[float], excess: float = 0.0
) -> AnyArray:
    """Return the average (P,) of parameters weighted entry by entry; of equal models it is the model, to the last bit.

    Precisions (P,) are needed one after the other; weights are those of the models in the plain mean.
    """
    first = means[0]
    numerator: Any = 0.0
    denominator: Any = -excess
    for mean, precision in zip(means, precisions, strict=True):
        # Differences from the first mean, so that equal parameters return to the last bit.
        numerator, denominator = numerator + precision * (mean - first), denominator + precision
    if excess:
        numerator = numerator + excess * first
    xp = array_namespace(first)
    # The terms of the denominator sum to denominator + excess before the surplus priors are taken off.
    is_informed = denominator > CANCELLATION_ROUNDING * (denominator + excess)
    if bool(xp.all(is_informed)):
        return first + numerator / denominator
    offset = sum(weight * (mean - first) for mean, weight in zip(means, weights, strict=True)) / sum(weights)
    divisor = xp.where(is_informed, denominator, xp.ones_like(denominator))
    return first + xp.where(is_informed, numerator / divisor, offset)


@dataclass(frozen=True, eq=False)
class LinearSolution:
    """Solution of linear equations by conjugate gradients."""

    x: AnyArray  # (P,): the solution, or the last iterate
    history: Array  # (n_steps,): q after each step
    residual: float  # norm of b - A x relative to that of b, in the preconditioner's norm |r|^2 = r^T M^-1 r
    converged: bool  # whether the residual is within the tolerance
    definite: bool = True  # whether A showed no direction of negative or no curvature


def conjugate_gradients(
    times: Callable[[AnyArray], AnyArray],
    b: AnyArray,
    diagonal: AnyArray,
    tolerance: float,
    max_steps: int,
    progress: Callable[[int, int], None],
) -> LinearSolution:
    """Return the solution of A x = b (P,), float64, from x = 0.

    `times` is the product with A, `diagonal` the preconditioner M, positive. The tolerance is relative to the residual
    of x = 0.
    """
    xp = array_namespace(b)
    x, r = xp.zeros_like(b), b  # r = b - A x
    z = r / diagonal  # M^-1 r
    direction, norm = z, float(r @ z)
    initial_norm = norm
    history: list[float] = []
    if not initial_norm:
        return LinearSolution(x, np.zeros(0), 0.0, True)
    for step in range(max_steps):
        product = times(direction)
        curvature = float(direction @ product)
        if not curvature > 0:  # also where it is NaN
            return LinearSolution(x, np.array(history), (norm / initial_norm) ** 0.5, False, definite=False)
        length = norm / curvature
        x = x + length * direction
        r = r - length * product
        history.append(-0.5 * float(x @ (b + r)))  # q(x), since A x = b - r
        z = r / diagonal
        previous_norm, norm = norm, float(r @ z)
        progress(step + 1, max_steps)
        if norm <= tolerance**2 * initial_norm:
            return LinearSolution(x, np.array(history), (norm / initial_norm) ** 0.5, True)
        direction = z + (norm / previous_norm) * direction
    return LinearSolution(x, np.array(history), (norm / initial_norm) ** 0.5, False)
