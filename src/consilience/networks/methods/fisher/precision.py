"""Gaussian posteriors of networks with low-rank precisions, and the energy of their product.

The posterior of site k is N(theta_k, P_k^-1) with P_k = F_k + alpha_k I (Laplace), F = G^T G + diag(r) its Fisher
information (``networks.fisher.information``), G (rank, P) the factors and r (P,) the residual diagonal. The matrices
P x P are never formed, except on request.

Networks are not linear in their parameters, so far from theta_k the off-diagonal part of F is what can be trusted
least. Shrinkage rho takes (1 - rho) of it and keeps the diagonal,

    P = (1 - rho) G^T G + diag(r + rho diag(G^T G)) + alpha I:

rho = 0 is the posterior as it is, rho = 1 its diagonal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod

from array_api_compat import array_namespace

from consilience.checks import AnyArray
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.methods.fisher.diagonal_average import diagonal_average


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
            # w_k / 2 (theta - theta_k)^T P_k (theta - theta_k)
            total += 0.5 * count * float(step @ precision.times(step))
        return total

    def times(self, vector: AnyArray) -> AnyArray:
        """Return the product of E's Hessian, sum_k w_k P_k - excess I, with a vector (P,)."""
        total = -self.excess * vector
        for _, precision, count in self._sites():
            total = total + count * precision.times(vector)
        return total

    def negative_gradient(self, theta: AnyArray) -> AnyArray:
        """Return minus the gradient of E at parameters (P,)."""
        total = self.excess * theta
        for mean, precision, count in self._sites():
            total = total + count * precision.times(mean - theta)
        return total

    @property
    def diagonal(self) -> AnyArray:
        """The diagonal (P,) of E's Hessian."""
        total = -self.excess
        for _, precision, count in self._sites():
            total = total + count * precision.diagonal
        return total

    def diagonal_merge(self) -> AnyArray:
        """Return the mean (P,) weighted by the diagonals, with which iterative merges start.

        Surplus priors are not taken out.
        """
        diagonals = (count * precision.diagonal for _, precision, count in self._sites())
        return diagonal_average(self.means, diagonals, self.counts)

    def dense(self) -> AnyArray:
        """Return E's Hessian (P, P)."""
        total: AnyArray = 0.0
        for _, precision, count in self._sites():
            total = total + count * precision.dense()
        xp = array_namespace(total)
        return total - self.excess * xp.eye(total.shape[0], dtype=total.dtype, device=total.device)

    def _sites(self) -> zip[tuple[AnyArray, LowRankPrecision, float]]:
        return zip(self.means, self.precisions, self.counts, strict=True)
