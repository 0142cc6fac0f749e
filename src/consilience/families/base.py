"""The exponential family: six primitives that a family states, and everything that follows from them.

A family has density ``q(z | eta) = h(z) exp(<eta, T(z)> - A(eta))``. Natural parameters of n components are ONE array
(n, P); matrices inside are stored row by row, so that ``<., .>`` is the dot product of two rows. To add a family, write
one file with a frozen dataclass that gives the abstract methods below and add it to the table in ``__init__``; the laws
in ``tests/contracts`` then run on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

import numpy as np

from consilience.checks import Array, Labels, as_rows, as_weights
from consilience.errors import InputError, OptionError

if TYPE_CHECKING:
    from consilience.families.evidence import EvidenceFamily

Direction = Literal["forward", "reverse"]
Draws = dict[str, Any]

_NEAR_ZERO = 1e-6
_ROUNDING = 3e-10
_EPSILON = float(np.finfo(np.float64).eps)
_PAIR_BYTES = 2**26


class Family(ABC):
    """A frozen value that knows its dimension and the geometry of its natural parameters."""

    name: ClassVar[str]
    has_width: ClassVar[bool] = True  # whether a member is a density, so that products of members mean something
    to_natural: ClassVar[Callable[..., Array]]  # natural parameters (n, P) of standard ones, given by keyword

    @property
    @abstractmethod
    def size(self) -> int:
        """Length P of a row of natural parameters."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Return what the constructor needs, as JSON values."""

    @abstractmethod
    def from_natural(self, eta: Array) -> Draws:
        """Return the standard parameters of `eta` (n, P), by the names that ``to_natural`` takes."""

    @abstractmethod
    def log_normalizer(self, eta: Array) -> Array:
        """Return A(eta) (n,), the logarithm of the normalising constant."""

    @abstractmethod
    def mean_parameters(self, eta: Array) -> Array:
        """Return E[T] = grad A(eta) (n, P)."""

    @abstractmethod
    def from_mean(self, mean: Array) -> Array:
        """Return the natural parameters (n, P) whose mean parameters are `mean`: the inverse of ``mean_parameters``."""

    @abstractmethod
    def kl_pairs(self, eta_a: Array, eta_b: Array) -> Array:
        """Return KL(q_a || q_b) (n,) row by row, by a formula that does not cancel for nearly equal rows."""

    @abstractmethod
    def faults(self, eta: Array) -> list[tuple[int, str]]:
        """Return (row, what is wrong) for every finite row of `eta` outside the domain."""

    @abstractmethod
    def sample(self, eta: Array, size: int, rng: np.random.Generator) -> Draws:
        """Return `size` draws from every component: arrays (size, n, ...) by the name of the variable."""

    @abstractmethod
    def sufficient_statistics(self, draws: Draws) -> Array:
        """Return T (size, n, P) of what ``sample`` gives."""

    @abstractmethod
    def evidence_form(self, eta: Array) -> tuple[EvidenceFamily, Array]:
        """Return the same components in a family that counts information: itself where it does."""

    @final
    def check(self, eta: Array) -> list[tuple[int, str]]:
        """Return (row, what is wrong) for every row of `eta` that is not a member of the family; empty when all are."""
        rows = as_rows("natural", eta, self.size)
        finite = np.isfinite(rows).all(axis=1)
        problems = [(int(i), "has NaN or infinite natural parameters") for i in np.flatnonzero(~finite)]
        good = np.flatnonzero(finite)
        with np.errstate(all="ignore"):  # finite parameters may still overflow on the way to what is wrong with them
            problems += [(int(good[i]), text) for i, text in self.faults(rows[good])] if good.size else []
        return sorted(problems)

    @final
    def kl(self, eta_a: Array, eta_b: Array) -> Array:
        """Return the matrix KL(q_a || q_b) (n_a, n_b): one matrix product and two vectors.

        Entries where the product has lost digits are recomputed by ``kl_pairs``.

        Parameters
        ----------
        eta_a, eta_b
            Natural parameters (n_a, P) and (n_b, P).

        Returns
        -------
        numpy.ndarray
            Divergences in nats, not negative.

        Examples
        --------
        >>> from consilience.families import Gaussian
        >>> family = Gaussian(dim=1)
        >>> eta = family.to_natural(mean=[[0.0], [1.0]], covariance=[[[1.0]], [[1.0]]])
        >>> family.kl(eta, eta)
        array([[0. , 0.5],
               [0.5, 0. ]])
        """
        left = as_rows("eta_a", eta_a, self.size)
        divergence = FixedSide(self, as_rows("eta_b", eta_b, self.size))
        return divergence.accurate_costs(left)

    @final
    def barycenter(self, eta: Array, weights: Array | None = None, direction: Direction = "forward") -> Array:
        """Return the natural parameters (P,) of the weighted Kullback-Leibler barycenter of the rows of `eta`.

        ``forward`` minimises sum_i w_i KL(q || q_i): the mean of the natural parameters. ``reverse`` minimises
        sum_i w_i KL(q_i || q): the mean of the mean parameters.

        Raises
        ------
        OptionError
            For another direction, or weights that are negative or all zero.
        """
        rows = as_rows("eta", eta, self.size)
        share = as_weights(weights, rows.shape[0])
        share = share / share.sum()
        if direction == "forward":
            forward: Array = share @ rows
            return forward
        if direction == "reverse":
            return self.from_mean((share @ self.mean_parameters(rows))[None])[0]
        raise OptionError(f"direction: expected 'forward' or 'reverse', found {direction!r}")

    @final
    def product(self, eta: Array, prior: Array) -> Array:
        """Return prior + sum_i (eta_i - prior) (P,): the posterior given all data when each row had the same `prior`.

        Raises
        ------
        InputError
            When the result is outside the domain: the rows were not posteriors under that prior.
        """
        rows = as_rows("eta", eta, self.size)
        pooled: Array = prior + (rows - prior).sum(axis=0)
        for _, text in self.check(pooled[None]):
            raise InputError(f"product of {rows.shape[0]} posteriors with the prior removed {text}: is it their prior?")
        return pooled

    @final
    def log_density(self, eta: Array, draws: Draws) -> Array:
        """Return log q(z | eta) (size, n) of what ``sample`` gives."""
        inner: Array = np.einsum("snp,np->sn", self.sufficient_statistics(draws), eta)
        return inner - self.log_normalizer(eta) + self.log_base_measure(draws)

    def log_base_measure(self, draws: Draws) -> Array | float:
        """Return log h of what ``sample`` gives: zero but for families that say otherwise."""
        del draws
        return 0.0

    def points(self, eta: Array) -> Array:
        """Return the point (n, D) that stands for each component where only points are matched: by default its mean.

        Families over a simplex return square roots of mean probabilities, so that distances are Hellinger's.
        """
        return np.asarray(self.from_natural(eta)["mean"], dtype=np.float64)

    def entropy(self, eta: Array) -> Array:
        """Return the differential entropy A(eta) - <eta, E[T]> - E[log h] (n,), in nats."""
        rows = as_rows("eta", eta, self.size)
        return self.log_normalizer(rows) - np.einsum("np,np->n", rows, self.mean_parameters(rows))


@final
class Tangent:
    """The log normaliser without its tangent at a centre, which leaves every divergence as it is.

    KL(q_a || q_b) = A(b) - A(a) - <grad A(a), b - a> is a Bregman divergence of A, hence the same for A minus any
    affine function. Taking off the tangent of A at a centre replaces A by the divergence from that centre, and
    gradients and parameters by their differences from it, so that nothing large is left to cancel.

    Parameters
    ----------
    family
        The family.
    centre
        Natural parameters (P,), best near those of the components to be compared.
    """

    def __init__(self, family: Family, centre: Array) -> None:
        self.family, self.centre = family, centre
        self.centre_mean: Array = family.mean_parameters(centre[None])[0]
        self._level = float(family.log_normalizer(centre[None])[0])

    def kl_from_centre_by_pairs(self, eta: Array) -> Array:
        """KL(centre || eta) (n,): the log normaliser without its tangent at the centre."""
        return self.family.kl_pairs(np.broadcast_to(self.centre, eta.shape), eta)

    def kl_from_centre(self, eta: Array) -> Array:
        """``from_centre`` by the log normaliser itself where that keeps enough digits: many times faster."""
        result = np.empty(len(eta))
        step = max(1, _PAIR_BYTES // (8 * self.family.size))
        for start in range(0, len(eta), step):
            rows = eta[start : start + step]
            level, slope = self.family.log_normalizer(rows), (rows - self.centre) @ self.centre_mean
            above = level - self._level - slope
            lost = above < _NEAR_ZERO * (np.abs(level) + abs(self._level) + np.abs(slope))
            if np.any(lost):
                above[lost] = self.kl_from_centre_by_pairs(rows[lost])
            result[start : start + step] = above
        return result

    def kl_factors(self, eta: Array, potential: Callable[[Array], Array], *, first: bool) -> tuple[Array, Array]:
        """Return the factor (n, P) and the vector (n,) that rows contribute as first or second argument of KL.

        Then KL(q_a || q_b) = vector_a + vector_b - <factor_a, factor_b>.
        """
        offset, height = eta - self.centre, potential(eta)
        if not first:
            return offset, height
        slope = self.family.mean_parameters(eta) - self.centre_mean
        return slope, np.einsum("np,np->n", slope, offset) - height


@final
class FixedSide:
    """Divergences between a fixed set of components (n, P) and sets that change, each one matrix product.

    Parameters
    ----------
    family
        The family of both sides.
    eta
        Natural parameters (n, P) of the fixed side; its mean is the centre of the ``Tangent``.
    direction
        ``forward``: costs KL(moving || fixed). ``reverse``: costs KL(fixed || moving).
    """

    def __init__(self, family: Family, eta: Array, direction: Direction = "forward") -> None:
        self.family, self.eta, self.direction = family, eta, direction
        self.tangent = Tangent(family, eta.mean(axis=0))

    @cached_property
    def _fixed(self) -> tuple[Array, Array]:
        """What the fixed side is in ``costs``, see ``Tangent.kl_factors``."""
        return self.tangent.kl_factors(self.eta, self.tangent.kl_from_centre, first=self.direction == "reverse")

    def costs(self, eta: Array) -> Array:
        """Return the divergences (n_moving, n_fixed), clipped at zero."""
        left, moving = self.tangent.kl_factors(eta, self.tangent.kl_from_centre, first=self.direction == "forward")
        right, fixed = self._fixed
        product: Array = left @ right.T
        np.negative(product, out=product)
        product += moving[:, None]
        product += fixed
        return np.maximum(product, 0.0, out=product)

    def accurate_costs(self, eta: Array) -> Array:
        """Return ``costs`` with every entry that has lost digits recomputed from its pair.

        Lost are entries below 1e-6 of their row's median, and those whose rounding error may exceed 3e-10 of the larger
        of themselves and that median.
        """
        forward = self.direction == "forward"
        left, moving = self.tangent.kl_factors(eta, self.tangent.kl_from_centre_by_pairs, first=forward)
        right, fixed = self.tangent.kl_factors(self.eta, self.tangent.kl_from_centre_by_pairs, first=not forward)
        matrix: Array = moving[:, None] + fixed - left @ right.T
        if matrix.size == 0:
            return matrix
        median = np.abs(np.median(matrix, axis=1))[:, None]
        # differences of mean parameters carry the rounding of both
        left_size = np.abs(left) + 2.0 * np.abs(self.tangent.centre_mean) if forward else np.abs(left)
        right_size = np.abs(right) if forward else np.abs(right) + 2.0 * np.abs(self.tangent.centre_mean)
        rounding = _EPSILON * (left_size @ right_size.T + np.abs(moving)[:, None] + np.abs(fixed))
        lost = (matrix < _NEAR_ZERO * median) | (rounding > _ROUNDING * np.maximum(median, matrix))
        rows, columns = np.nonzero(lost)
        matrix[rows, columns] = self.pairs(eta, rows, columns)
        return np.maximum(matrix, 0.0, out=matrix)

    def pairs(self, eta: Array, rows: Labels, columns: Labels) -> Array:
        """Return the divergence of each (moving row, fixed row) pair, accurately, in chunks of bounded memory."""
        result = np.empty(len(rows))
        step = max(1, _PAIR_BYTES // (8 * self.family.size))
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            moving, fixed = eta[rows[part]], self.eta[columns[part]]
            if self.direction == "forward":
                result[part] = self.family.kl_pairs(moving, fixed)
            else:
                result[part] = self.family.kl_pairs(fixed, moving)
        return result
