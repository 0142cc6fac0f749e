"""Exponential families: the primitives that a family states, and the divergences and barycenters that follow.

A family has density

    q(z | eta) = h(z) exp(<eta, T(z)> - A(eta))

with natural parameters eta, sufficient statistics T, base measure h and log normaliser A. Everything here rests on:

    grad A(eta) = E[T] =: mu                                        (the mean parameters; A is convex)
    KL(q_a || q_b) = A(b) - A(a) - <grad A(a), b - a>               (a Bregman divergence of A, arguments swapped)
    argmin_q sum_i w_i KL(q || q_i):  eta = sum_i w_i eta_i         (forward barycenter; w sums to one)
    argmin_q sum_i w_i KL(q_i || q):  mu = sum_i w_i mu_i           (reverse barycenter)

Natural parameters of n components are ONE array (n, P); matrices inside are stored row by row, so that ``<., .>`` is
the dot product of two rows. All divergences between n_a and n_b components are then one matrix product and two vectors.
To add a family, write one file with a frozen dataclass that gives the abstract methods below and add it to the table in
``__init__``; the laws in ``tests/families`` then run on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

import numpy as np

from consilience.checks import Array, Json, Labels, as_rows, as_weights
from consilience.errors import InputError, OptionError, UnsupportedError
from consilience.families.chunks import CHUNK_BYTES, row_chunks
from consilience.families.linalg import far_components

if TYPE_CHECKING:
    from consilience.families.evidence import EvidenceFamily

Direction = Literal["forward", "reverse"]
"""Which argument of the divergence the barycenter is: forward KL(q || q_i), reverse KL(q_i || q)."""

Parameters = dict[str, Any]
"""Standard parameters by name, arrays whose first axis is that of the components (n, ...)."""

Draws = dict[str, Any]
"""Random draws by the name of the variable, arrays (size, n, ...)."""

_NEAR_ZERO = 1e-6
"""A difference below this share of its terms has lost six of its sixteen digits and is computed again by pairs. Part of
the promise of ``Family.kl`` (tests hold it): 1e-9 of a row's median, and 1e-8 of each entry below 1e-6 of it."""

_MAX_ROUNDING = 3e-10
"""Rounding error, relative to an entry or to its row's median, above which a divergence is computed again: a third of
the promised 1e-9, since the bound itself is rough."""

_EPSILON = float(np.finfo(np.float64).eps)


class Family(ABC):
    """A frozen value that knows its dimension and the geometry of its natural parameters."""

    describes_data: ClassVar[bool] = False
    """Whether ``plug_in`` is a density of data, of which members are posteriors, and ``information`` counts data."""
    name: ClassVar[str]
    has_width: ClassVar[bool] = True  # whether a member is a density, so that products of members mean something
    to_natural: ClassVar[Callable[..., Array]]  # natural parameters (n, P) of standard ones, given by keyword

    @property
    @abstractmethod
    def size(self) -> int:
        """Length P of a row of natural parameters."""

    def config(self) -> dict[str, Json]:
        """Return what the constructor needs, as JSON values: by default ``dim``, if the family has one."""
        dim: int | None = getattr(self, "dim", None)
        return {} if dim is None else {"dim": dim}

    @abstractmethod
    def from_natural(self, eta: Array) -> Parameters:
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

    def faults(self, eta: Array) -> list[tuple[int, str]]:
        """Return (row, what is wrong) for every finite row of `eta` outside the domain: by default none is."""
        del eta
        return []

    def offsets(self, eta: Array) -> tuple[Array, Array] | None:
        """Return means and their squared distances from zero in units of the width, both (n, D); see ``linalg``.

        Of families whose natural parameters hold second moments about zero; None of others, and where no width is lost.
        """
        return None

    @abstractmethod
    def sample(self, eta: Array, size: int, rng: np.random.Generator) -> Draws:
        """Return `size` draws from every component: arrays (size, n, ...) by the name of the variable."""

    @abstractmethod
    def sufficient_statistics(self, draws: Draws) -> Array:
        """Return T (size, n, P) of what ``sample`` gives."""

    def plug_in(self, eta: Array) -> tuple[Array, Array] | None:
        """Return means (n, D) and covariances (n, D, D), or variances (n, D), of the Gaussians that rows stand for.

        The density of data at the posterior mean of the parameters (``describes_data``); for a Gaussian itself. None
        for all others.
        """
        return None

    def locations_and_spreads(self, eta: Array) -> tuple[Array, Array] | None:
        """Return means (n, D) and typical covariances (n, D, D), or variances (n, D), to draw; by default `plug_in`.

        None for a family without locations, whose components have no place in a plane.
        """
        return self.plug_in(eta)

    def scatter_form(self, eta: Array) -> tuple[Array, Array, Array, Array] | None:
        """Return m (n, D), kappa (n,), scatter (n, D, D) or (n, R) and nu (n,) of a posterior of a Gaussian.

        They are those of kappa observations of mean m, and of nu whose scatter about their mean this is, of R blocks
        of dimensions with one variance each or of all. Natural parameters are sums over data, but it is these that
        say what data a posterior stands for (``robust=True``). None for all other families.
        """
        return None

    def from_scatter_form(self, mean: Array, kappa: Array, scatter: Array, dof: Array) -> Array:
        """Return the rows (n, P) of which `scatter_form` gives these.

        Raises
        ------
        UnsupportedError
            For a family without such a form.
        """
        raise UnsupportedError(f"the {self.name} family has no scatter form")

    def mean_probabilities(self, eta: Array) -> Array | None:
        """Return the mean probabilities (n, V) of a family over probabilities; None for all others."""
        return None

    def predictive(self, eta: Array) -> tuple[Array, Array, Array] | None:
        """Return locations (n, D), scales and degrees of freedom (n,) of the Student t's that predict an observation.

        That is the density of data with the parameters integrated out, as ``linalg.log_student_ts`` takes it: scales
        are (n, D, D), or (n, R) for R independent blocks of dimensions. None for families that are no such posterior.
        """
        return None

    def affine_image(self, eta: Array, matrix: Array, shift: Array) -> Array:
        """Return the distribution (n, P) of the parameters of A z + b, where `eta` is that of the parameters of z.

        Means go to A m + b and covariances to A S A^T. The map of natural parameters is linear, so it serves improper
        priors too: "nothing observed" stays that.

        Parameters
        ----------
        eta : ndarray of shape (n, P)
            Natural parameters, proper or not.
        matrix : ndarray of shape (D, D)
            A, invertible.
        shift : ndarray of shape (D,)
            b.

        Raises
        ------
        UnsupportedError
            Where the image is outside the family, or the family is none of Gaussian data.
        """
        raise UnsupportedError(f"{self.name} components do not follow an affine map of the data")

    def log_normalizer_of_sums(self, eta: Array) -> Array:
        """Return A(eta) (n,) of very many rows, each a base distribution plus a sum of pieces.

        Both are those of ``EvidenceFamily.discounts``.

        Families whose ``log_normalizer`` is slow on many rows have a faster form here.
        """
        return self.log_normalizer(eta)

    @abstractmethod
    def evidence_form(self, eta: Array) -> tuple[EvidenceFamily, Array]:
        """Return the same components in a family that measures information, and their natural parameters there.

        An ``EvidenceFamily`` returns itself and `eta`; points and categories have no width and get a narrow one.
        """

    @final
    def check(self, eta: Array) -> list[tuple[int, str]]:
        """Return (row, what is wrong) for every row of `eta` that is not a member of the family; empty when all are."""
        rows = as_rows("natural", eta, self.size)
        is_finite = np.isfinite(rows).all(axis=1)
        problems = [(int(i), "has NaN or infinite natural parameters") for i in np.flatnonzero(~is_finite)]
        finite = np.flatnonzero(is_finite)
        with np.errstate(all="ignore"):  # finite parameters may still overflow on the way to what is wrong with them
            problems += [(int(finite[i]), text) for i, text in self.faults(rows[finite])] if finite.size else []
        return sorted(problems)

    @final
    def member_problems(
        self, natural: Array, prior: Array | None = None, columns: Sequence[str] | None = None
    ) -> list[str]:
        """Return what keeps arrays from being the components (n, P) of a model and their prior (P,), a line each.

        Members of which float64 does not keep the width are among it; `columns` are the names of the data's columns.
        """
        if natural.ndim != 2 or natural.shape[1] != self.size:
            return [f"natural parameters of {self} must be (n, {self.size}), found {natural.shape}"]
        if len(natural) == 0:
            return ["the model has no components"]
        with np.errstate(all="ignore"):  # of rows that are no members
            offsets = self.offsets(natural)
        far, lines = (set[int](), []) if offsets is None else far_components(*offsets, columns)
        problems: list[str] = [*lines]
        problems += [f"component {row} {text}" for row, text in self.check(natural) if row not in far]
        if prior is not None and prior.shape != (self.size,):
            problems.append(f"prior must be ({self.size},), found {prior.shape}")
        elif prior is not None and not np.all(np.isfinite(prior)):
            problems.append("the prior has NaN or infinite natural parameters")
        return problems

    @final
    def kl(self, eta_a: Array, eta_b: Array) -> Array:
        """Return the matrix of divergences KL(q_a || q_b): one matrix product and two vectors.

        Entries where the product has lost digits are recomputed by ``kl_pairs``.

        Parameters
        ----------
        eta_a : array_like of shape (n_a, P)
            Natural parameters of the first arguments.
        eta_b : array_like of shape (n_b, P)
            Natural parameters of the second arguments.

        Returns
        -------
        ndarray of shape (n_a, n_b)
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
        rows = as_rows("eta_a", eta_a, self.size)
        divergence = FixedSide(self, as_rows("eta_b", eta_b, self.size))
        return divergence.accurate_costs(rows)

    @final
    def barycenter(self, eta: Array, weights: Array | None = None, direction: Direction = "forward") -> Array:
        """Return the natural parameters (P,) of the weighted Kullback-Leibler barycenter of the rows of `eta`.

        ``forward`` minimises sum_i w_i KL(q || q_i): the mean of the natural parameters. ``reverse`` minimises
        sum_i w_i KL(q_i || q): the mean of the mean parameters. Both stay in the domain, which is convex.

        Parameters
        ----------
        eta : array_like of shape (n, P)
            Natural parameters.
        weights : array_like of shape (n,), optional
            Weights w_i, not negative; they are scaled to sum to one. Default: equal weights.
        direction : {"forward", "reverse"}
            Which argument of the divergence the barycenter is.

        Returns
        -------
        ndarray of shape (P,)
            Natural parameters of the barycenter.

        Raises
        ------
        OptionError
            For another direction, or weights that are negative or all zero.
        """
        rows = as_rows("eta", eta, self.size)
        w = as_weights(weights, rows.shape[0])
        w = w / w.sum()
        if direction == "forward":
            return np.asarray(w @ rows)
        if direction == "reverse":
            return self.from_mean((w @ self.mean_parameters(rows))[None])[0]
        raise OptionError("direction", f"expected 'forward' or 'reverse', found {direction!r}")

    @final
    def product(self, eta: Array, prior: Array) -> Array:
        """Return prior + sum_i (eta_i - prior) (P,): the posterior given all data when each row had the same `prior`.

        It is sum_i eta_i - (n - 1) prior, Bayes' rule for conjugate posteriors of separate data, in the form that
        cancels least.

        Parameters
        ----------
        eta : array_like of shape (n, P)
            Natural parameters of the posteriors.
        prior : ndarray of shape (P,)
            Natural parameters of their common prior.

        Raises
        ------
        InputError
            When the result is outside the domain: the rows were not posteriors under that prior.
        """
        rows = as_rows("eta", eta, self.size)
        pooled: Array = prior + (rows - prior).sum(axis=0)
        for _, text in self.check(pooled[None]):
            problem = f"product of {rows.shape[0]} posteriors with the prior removed {text}: is it their prior?"
            raise InputError("", problem, code="E-NUMBER")
        return pooled

    @final
    def log_density(self, eta: Array, draws: Draws) -> Array:
        """Return log q(z | eta) = <eta, T(z)> - A(eta) + log h(z) (size, n) of what ``sample`` gives."""
        inner_products: Array = np.einsum("snp,np->sn", self.sufficient_statistics(draws), eta)
        return inner_products - self.log_normalizer(eta) + self.log_base_measure(draws)

    def log_base_measure(self, draws: Draws) -> Array | float:
        """Return log h of what ``sample`` gives: zero but for families that say otherwise."""
        del draws
        return 0.0

    def points(self, eta: Array) -> Array:
        """Return the point (n, D) that stands for each component where only points are matched.

        By default its mean, or the mean of its sufficient statistics where it has no parameter of that name. Families
        over a simplex return square roots of mean probabilities, so that distances are Hellinger's.
        """
        mean = self.from_natural(eta).get("mean")
        points: Array = self.mean_parameters(eta) if mean is None else np.asarray(mean, dtype=np.float64)
        return points.reshape(len(eta), -1)  # of one dimension, a mean may be a number

    def entropy(self, eta: Array) -> Array:
        """Return the differential entropy A(eta) - <eta, E[T]> - E[log h] (n,), in nats."""
        rows = as_rows("eta", eta, self.size)
        return self.log_normalizer(rows) - np.einsum("np,np->n", rows, self.mean_parameters(rows))


@final
class Tangent:
    """The log normaliser without its tangent at a centre, which leaves every divergence as it is.

    KL(q_a || q_b) = A(b) - A(a) - <grad A(a), b - a> is a Bregman divergence of A, hence the same for A minus any
    affine function. Taking off the tangent of A at a centre c (P,), best near the components to be compared, replaces A
    by the divergence from that centre, and gradients and parameters by their differences from it, so that nothing large
    is left to cancel:

        B(eta) = A(eta) - A(c) - <grad A(c), eta - c> = KL(q_c || q_eta)
        KL(q_a || q_b) = B(b) - B(a) - <mu_a - mu_c, (b - c) - (a - c)>
    """

    def __init__(self, family: Family, centre: Array) -> None:
        self.family, self.centre = family, centre
        self.centre_mean: Array = family.mean_parameters(centre[None])[0]
        self._centre_normalizer = float(family.log_normalizer(centre[None])[0])

    def kl_from_centre_by_pairs(self, eta: Array) -> Array:
        """Return B(eta) = KL(centre || eta) (n,), accurate to the last digits also near the centre."""
        return self.family.kl_pairs(np.broadcast_to(self.centre, eta.shape), eta)

    def kl_from_centre(self, eta: Array) -> Array:
        """Return ``kl_from_centre_by_pairs`` by the log normaliser itself where that keeps enough digits.

        It is many times faster, since no pair of matrices has to be factorised.
        """
        divergence = np.empty(len(eta))
        for part in row_chunks(len(eta), self.family.size):
            rows = eta[part]
            normalizer, slope = self.family.log_normalizer(rows), (rows - self.centre) @ self.centre_mean  # (step,)
            chunk = normalizer - self._centre_normalizer - slope
            # The difference has the rounding of its three terms: where it is far smaller than they are, it is noise.
            is_lost = chunk < _NEAR_ZERO * (np.abs(normalizer) + abs(self._centre_normalizer) + np.abs(slope))
            if np.any(is_lost):
                chunk[is_lost] = self.kl_from_centre_by_pairs(rows[is_lost])
            divergence[part] = chunk
        return divergence

    def kl_factors(self, eta: Array, potential: Callable[[Array], Array], *, first: bool) -> tuple[Array, Array]:
        """Return the factor (n, P) and the vector (n,) that rows contribute as first or second argument of KL.

        Then KL(q_a || q_b) = vector_a + vector_b - <factor_a, factor_b>, with

            factor_a = mu_a - mu_c,    vector_a = <mu_a - mu_c, a - c> - B(a),
            factor_b = b - c,          vector_b = B(b),

        and `potential` is B, one of ``kl_from_centre`` and ``kl_from_centre_by_pairs``.
        """
        offset, height = eta - self.centre, potential(eta)  # (n, P), (n,)
        if not first:
            return offset, height
        slope = self.family.mean_parameters(eta) - self.centre_mean  # (n, P)
        return slope, np.einsum("np,np->n", slope, offset) - height


@final
class FixedSide:
    """Divergences between a fixed set of components and sets that change, each one matrix product.

    Parameters
    ----------
    family : Family
        The family of both sides.
    eta : ndarray of shape (n_fixed, P)
        Natural parameters of the fixed side; its mean is the centre of the ``Tangent``.
    direction : {"forward", "reverse"}
        ``forward``: costs KL(moving || fixed). ``reverse``: costs KL(fixed || moving).
    """

    def __init__(self, family: Family, eta: Array, direction: Direction = "forward") -> None:
        self.family, self.eta, self.direction = family, eta, direction
        self.tangent = Tangent(family, eta.mean(axis=0))

    @cached_property
    def _fixed_factors(self) -> tuple[Array, Array]:
        """Factor (n_fixed, P) and vector (n_fixed,) of the fixed side in ``costs``, see ``Tangent.kl_factors``."""
        return self.tangent.kl_factors(self.eta, self.tangent.kl_from_centre, first=self.direction == "reverse")

    @cached_property
    def _fixed_heights(self) -> Array:
        """The vector of ``_fixed_factors`` alone (n_fixed,), of fixed second arguments."""
        return self.tangent.kl_from_centre(self.eta)

    def costs(self, eta: Array) -> Array:
        """Return the divergences (n_moving, n_fixed), clipped at zero.

        Rounding is relative to the largest terms of a row; use ``accurate_costs`` where small entries matter.
        """
        is_forward, tangent = self.direction == "forward", self.tangent
        moving_factor, moving = tangent.kl_factors(eta, tangent.kl_from_centre, first=is_forward)
        costs: Array  # (n_moving, n_fixed), updated in place: it may fill the memory
        if is_forward and self.eta.nbytes > CHUNK_BYTES:
            # The factor is a difference, which takes less time to make anew than memory to keep.
            fixed, costs = self._fixed_heights, np.empty((len(eta), len(self.eta)))
            for rows in row_chunks(len(self.eta), self.eta.shape[1]):
                costs[:, rows] = moving_factor @ (self.eta[rows] - self.tangent.centre).T
        else:
            fixed_factor, fixed = self._fixed_factors
            costs = moving_factor @ fixed_factor.T
        np.negative(costs, out=costs)
        costs += moving[:, None]
        costs += fixed
        return np.maximum(costs, 0.0, out=costs)

    def matched_costs(self, eta: Array, labels: Labels) -> Array:
        """Return the divergence (n_fixed,) of each fixed row from the row of `eta` (n_moving, P) that `labels` give it.

        As ``costs`` of all would have it, without making all at once.
        """
        if self.direction != "forward" or self.eta.nbytes <= CHUNK_BYTES:
            return self.costs(eta)[labels, np.arange(len(self.eta))]
        moving_factor, moving = self.tangent.kl_factors(eta, self.tangent.kl_from_centre, first=True)
        matched = np.empty(len(self.eta))
        for rows in row_chunks(len(self.eta), self.eta.shape[1]):
            products = moving_factor @ (self.eta[rows] - self.tangent.centre).T
            matched[rows] = products[labels[rows], np.arange(products.shape[1])]
        np.negative(matched, out=matched)
        matched += moving[labels]
        matched += self._fixed_heights
        return np.maximum(matched, 0.0, out=matched)

    def accurate_costs(self, eta: Array) -> Array:
        """Return ``costs`` with every entry that has lost digits recomputed from its pair.

        Lost are entries below 1e-6 of their row's median, and those whose rounding error may exceed 3e-10 of the larger
        of themselves and that median.
        """
        is_forward, potential = self.direction == "forward", self.tangent.kl_from_centre_by_pairs
        moving_factor, moving = self.tangent.kl_factors(eta, potential, first=is_forward)
        fixed_factor, fixed = self.tangent.kl_factors(self.eta, potential, first=not is_forward)
        costs: Array = moving[:, None] + fixed - moving_factor @ fixed_factor.T  # (n_moving, n_fixed)
        if costs.size == 0:
            return costs
        median = np.abs(np.median(costs, axis=1))[:, None]  # (n_moving, 1)
        # A bound on the rounding: eps times the sum of the sizes of all terms. The factor of the first argument is a
        # difference of mean parameters, mu - mu_c, and carries the rounding of both.
        moving_size, fixed_size = np.abs(moving_factor), np.abs(fixed_factor)
        both = 2.0 * np.abs(self.tangent.centre_mean)
        moving_size, fixed_size = (moving_size + both, fixed_size) if is_forward else (moving_size, fixed_size + both)
        rounding = _EPSILON * (moving_size @ fixed_size.T + np.abs(moving)[:, None] + np.abs(fixed))
        is_lost = (costs < _NEAR_ZERO * median) | (rounding > _MAX_ROUNDING * np.maximum(median, costs))
        rows, columns = np.nonzero(is_lost)
        costs[rows, columns] = self.pairs(eta, rows, columns)
        return np.maximum(costs, 0.0, out=costs)

    def pairs(self, eta: Array, rows: Labels, columns: Labels) -> Array:
        """Return the divergence (n_pairs,) of each (moving row of `eta`, fixed row), accurately, in bounded memory."""
        divergences = np.empty(len(rows))
        for chunk in row_chunks(len(rows), self.family.size):
            moving, fixed = eta[rows[chunk]], self.eta[columns[chunk]]  # (step, P) each
            if self.direction == "forward":
                divergences[chunk] = self.family.kl_pairs(moving, fixed)
            else:
                divergences[chunk] = self.family.kl_pairs(fixed, moving)
        return divergences
