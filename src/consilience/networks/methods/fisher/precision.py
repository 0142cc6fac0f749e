"""Gaussian posteriors of networks as vectors and precisions that never are P x P matrices.

The posterior of a site is N(theta, P^-1) with P = F + alpha I and F its Fisher information, G^T G + diag(r) (see
``networks.information``). Far from theta the off-diagonal part of F is what can be trusted least: networks are not
linear in their parameters. Shrinkage rho takes (1 - rho) of it,

    P = (1 - rho) G^T G + diag(r + rho diag(G^T G)) + alpha I,

so that rho = 0 is the posterior as it is, and rho = 1 its diagonal.
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


@dataclass(frozen=True, eq=False)
class Flat:
    """Where arrays lie in one vector, one after the other."""

    shapes: Mapping[str, tuple[int, ...]]

    @cached_property
    def blocks(self) -> dict[str, slice]:
        """Where each array is."""
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
        """Return a vector (P,) as arrays."""
        xp = array_namespace(vector)
        return {name: xp.reshape(vector[self.blocks[name]], shape) for name, shape in self.shapes.items()}


@dataclass(frozen=True, eq=False)
class Precision:
    """A precision matrix: share * G^T G + diag(d).

    Parameters
    ----------
    flat
        Where parameters lie.
    factors
        G by parameter, (r, entries) each, in their own precision; none for a diagonal matrix.
    share
        Of G^T G.
    own
        d (P,), float64.
    """

    flat: Flat
    factors: tuple[AnyArray, ...]
    share: float
    own: AnyArray

    @classmethod
    def of(cls, information: FisherInformation, flat: Flat, shrinkage: float, prior: float) -> Precision:
        """Return the precision of a site's posterior, shrunk."""
        rank = information.rank if shrinkage < 1.0 else 0
        xp = array_namespace(next(iter(information.residual.values())))
        factors = tuple(xp.reshape(information.factors[name], (rank, -1)) for name in flat.shapes) if rank else ()
        own = flat.vector(information.residual)
        if shrinkage and information.rank:
            own = own + shrinkage * (flat.vector(information.diagonal) - own)
        return cls(flat, factors, 1.0 - shrinkage, own + prior)

    @cached_property
    def diagonal(self) -> AnyArray:
        """The diagonal of the whole (P,)."""
        if not self.factors:
            return self.own
        xp = array_namespace(self.own)
        squares = [
            sum(xp.astype(block[row, ...], xp.float64) ** 2 for row in range(block.shape[0])) for block in self.factors
        ]
        return self.own + self.share * xp.concat(squares)

    def times(self, vector: AnyArray) -> AnyArray:
        """Return the product with a vector (P,): two products with G, in its precision."""
        made = self.own * vector
        if not self.factors:
            return made
        xp = array_namespace(vector)
        kind = self.factors[0].dtype
        narrow = xp.astype(vector, kind)
        blocks = self.flat.blocks.values()
        along = sum(block @ narrow[place] for block, place in zip(self.factors, blocks, strict=True))
        back = xp.concat([along @ block for block in self.factors])
        return made + self.share * xp.astype(back, xp.float64)

    def rows(self) -> AnyArray:
        """Return sqrt(share) G (r, P) in float64."""
        xp = array_namespace(self.own)
        if not self.factors:
            return xp.zeros((0, self.flat.size), dtype=xp.float64, device=self.own.device)
        return self.share**0.5 * xp.concat([xp.astype(block, xp.float64) for block in self.factors], axis=1)

    def dense(self) -> AnyArray:
        """Return the matrix (P, P)."""
        xp = array_namespace(self.own)
        rows = self.rows()
        return rows.T @ rows + self.own[:, None] * xp.eye(self.flat.size, dtype=xp.float64, device=self.own.device)


@dataclass(frozen=True, eq=False)
class Posteriors:
    """Gaussian posteriors of several sites, and what their product is to be.

    Minus the logarithm of the product, up to a constant, (5) of the paper with K - 1 of the priors taken out:

        E(theta) = 1/2 sum_k w_k (theta - theta_k)^T P_k (theta - theta_k) - 1/2 excess |theta|^2.

    Parameters
    ----------
    means
        theta_k (P,).
    precisions
        P_k.
    counts
        How often each counts, w_k, 1 at most.
    excess
        Precision of the priors that were counted too often, sum_k w_k alpha_k - alpha.
    """

    means: Sequence[AnyArray]
    precisions: Sequence[Precision]
    counts: Sequence[float]
    excess: float

    def energy(self, theta: AnyArray) -> float:
        """Return E."""
        total = -0.5 * self.excess * float(theta @ theta)
        for mean, precision, count in self._all():
            step = theta - mean
            total += 0.5 * count * float(step @ precision.times(step))
        return total

    def times(self, vector: AnyArray) -> AnyArray:
        """Return the product of E's matrix of second derivatives with a vector."""
        total = -self.excess * vector
        for _, precision, count in self._all():
            total = total + count * precision.times(vector)
        return total

    def downhill(self, theta: AnyArray) -> AnyArray:
        """Return minus the gradient of E."""
        total = self.excess * theta
        for mean, precision, count in self._all():
            total = total + count * precision.times(mean - theta)
        return total

    @property
    def diagonal(self) -> AnyArray:
        """The diagonal of E's matrix of second derivatives."""
        total = -self.excess
        for _, precision, count in self._all():
            total = total + count * precision.diagonal
        return total

    def dense(self) -> AnyArray:
        """Return E's matrix of second derivatives (P, P)."""
        total: AnyArray = 0.0
        for _, precision, count in self._all():
            total = total + count * precision.dense()
        xp = array_namespace(total)
        return total - self.excess * xp.eye(total.shape[0], dtype=total.dtype, device=total.device)

    def _all(self) -> zip[tuple[AnyArray, Precision, float]]:
        return zip(self.means, self.precisions, self.counts, strict=True)
