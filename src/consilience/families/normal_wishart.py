"""Normal-Wishart: the posterior of a Gaussian component with unknown mean and precision matrix.

Lambda ~ Wishart(W, nu) with E[Lambda] = nu W and nu > D - 1, and mu | Lambda ~ N(m, (kappa Lambda)^-1):

    T   = (Lambda mu, mu^T Lambda mu, Lambda, log|Lambda|)
    eta = (kappa m, -kappa / 2, -(W^-1 + kappa m m^T) / 2, (nu - D) / 2)
    A   = -(D/2) log kappa + (D/2) log 2 pi + (nu/2) log|W| + (nu D/2) log 2 + log Gamma_D(nu/2)
    mu  = (nu W m, D / kappa + nu m^T W m, nu W, psi_D(nu/2) + D log 2 + log|W|)

with log Gamma_D(x) = (D (D - 1) / 4) log pi + sum_{d<D} log Gamma(x - d/2) and psi_D its derivative. With n data points
of mean x and scatter S, a flat prior becomes kappa = n, m = x, W^-1 = S. The forward barycenter averages kappa, nu,
kappa m and W^-1 + kappa m m^T, so W^-1 gains the scatter of the means and stays positive definite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array
from scipy.special import digamma, gammaln, stdtrit

from consilience.checks import Array, Labels, as_matrices, as_rows, as_vector, symmetric_part
from consilience.errors import InputError
from consilience.families.base import Draws, Parameters
from consilience.families.chunks import map_rows, row_chunks
from consilience.families.evidence import MAX_KEPT_ROWS, Discounts
from consilience.families.gaussian import Gaussian
from consilience.families.linalg import (
    cholesky,
    flatten,
    half_solve,
    inverse,
    is_cancelled,
    log_det_divergence,
    log_determinant,
    log_determinants_of_many,
    not_positive,
    not_positive_definite,
    squared_offsets,
    unflatten,
)
from consilience.families.random_effects import GaussianPosteriorFamily
from consilience.families.special import (
    decreasing_root,
    itakura_saito,
    log_minus_digamma,
    shifted_gamma_bregman,
    subtract_quotients,
    trigamma,
)

_CANCELLING_RATIO = 100.0
"""Ratio of a diagonal entry of W^-1 + kappa m m^T to that of W^-1 above which the difference is compensated: two of
sixteen digits may be lost, no more. Chosen by hand: compensating every row costs time (it was introduced for speed)."""

_MANY_ROWS = 10
"""Rows in units of D^2 from which on decompositions of all at once are faster than LAPACK's one by one: measured at
D = 2, 3, 5, 8, 10 and 20."""
_KEPT_SCALES = 32
"""Heterogeneities of the scale for which log gammas of all rows are kept: fits try some ten, again and again."""
_KEPT_SUMS = 2
"""Values of each heterogeneity for which sums over groups are kept: where a search stands, and its trial."""
_BLOCK_ROWS = 1024
"""Rows whose decompositions are made at once, so that they stay in the cache: measured as above."""


@dataclass(frozen=True)
class NormalWishart(GaussianPosteriorFamily):
    """Lambda ~ Wishart(W, nu) and mu | Lambda ~ N(m, (kappa Lambda)^-1); P = D + 1 + D^2 + 1.

    eta = (kappa m, -kappa / 2, -(W^-1 + kappa m m^T) / 2, (nu - D) / 2) for the statistics
    T = (Lambda mu, mu^T Lambda mu, Lambda, log|Lambda|). E[Lambda] = nu W. The Normal-inverse-Wishart with scale
    matrix W^-1 is the same law of the covariance Lambda^-1.

    Parameters
    ----------
    dim
        Data dimension D.

    Examples
    --------
    >>> family = NormalWishart(dim=2)
    >>> eta = family.to_natural(mean=[[0.0, 1.0]], kappa=[3.0], scale=[[[0.2, 0.0], [0.0, 0.1]]], dof=[5.0])
    >>> {name: value.shape for name, value in family.from_natural(eta).items()}
    {'mean': (1, 2), 'kappa': (1,), 'scale': (1, 2, 2), 'dof': (1,)}
    """

    dim: int
    name: ClassVar[str] = "normal-wishart"
    _width: ClassVar[str] = "covariance"

    @property
    def size(self) -> int:
        """Length P = D + 1 + D^2 + 1 of a row of natural parameters."""
        return self.dim + 2 + self.dim**2

    def to_natural(
        self,
        *,
        mean: ArrayLike,
        kappa: ArrayLike,
        dof: ArrayLike,
        scale: ArrayLike | None = None,
        inverse_scale: ArrayLike | None = None,
    ) -> Array:
        """Return eta (n, P).

        Parameters
        ----------
        mean
            m (n, D).
        kappa
            Pseudo-observations behind the mean (n,).
        dof
            Degrees of freedom nu (n,), above D - 1.
        scale, inverse_scale
            W or W^-1 (n, D, D); exactly one of them.
        """
        if (scale is None) == (inverse_scale is None):
            raise InputError("Normal-Wishart", "give exactly one of scale (W) and inverse_scale (W^-1)")
        means = as_rows("mean", mean, self.dim)
        n = means.shape[0]
        kappas, dofs = as_vector("kappa", kappa, n), as_vector("dof", dof, n)
        if scale is not None:
            inverse_scales = inverse(as_matrices("scale", scale, self.dim), "scale matrix")
        else:
            assert inverse_scale is not None  # noqa: S101  (narrows the type; checked above)
            inverse_scales = symmetric_part(as_matrices("inverse_scale", inverse_scale, self.dim))
        linear = kappas[:, None] * means  # (n, D)
        second = inverse_scales + linear[:, :, None] * means[:, None, :]  # W^-1 + kappa m m^T, (n, D, D)
        columns = [linear, -0.5 * kappas[:, None], flatten(-0.5 * second), 0.5 * (dofs - self.dim)[:, None]]
        return np.concatenate(columns, axis=1)

    def standard(self, eta: Array) -> tuple[Array, Array, Array, Array]:
        """Return m (n, D), kappa (n,), W^-1 (n, D, D) and nu (n,): no matrix is inverted.

        W^-1 is the third block less kappa m m^T. Where means are far from the origin, in units of the component's
        width, the two nearly cancel, and the difference is calculated with twice the digits.
        """
        kappa = -2.0 * eta[:, self.dim]
        mean = eta[:, : self.dim] / kappa[:, None]
        second = -2.0 * unflatten(eta[:, self.dim + 1 : -1], self.dim)  # W^-1 + kappa m m^T, (n, D, D)
        linear = eta[:, : self.dim]  # kappa m, (n, D)
        inverse_scale = second - linear[:, :, None] * mean[:, None, :]
        before, after = (np.diagonal(matrix, axis1=1, axis2=2) for matrix in (second, inverse_scale))  # (n, D) each
        cancelling = np.flatnonzero(~(before <= _CANCELLING_RATIO * after).all(axis=1))
        if cancelling.size:
            factors = [(linear[cancelling, :, None], linear[cancelling, None, :])]  # (kappa m)(kappa m)^T / kappa
            inverse_scale[cancelling] = subtract_quotients(second[cancelling], factors, kappa[cancelling, None, None])
        return mean, kappa, inverse_scale, self._dof(eta)

    def scatter_form(self, eta: Array) -> tuple[Array, Array, Array, Array]:
        """Return `standard`: W^-1 is the scatter."""
        return self.standard(eta)

    def from_scatter_form(self, mean: Array, kappa: Array, scatter: Array, dof: Array) -> Array:
        """Return the rows with W^-1 = scatter and nu = dof."""
        return self.to_natural(mean=mean, kappa=kappa, dof=dof, inverse_scale=scatter)

    @property
    def _gaussians(self) -> Gaussian:
        return Gaussian(self.dim)

    def _dof(self, eta: Array) -> Array:
        """Return nu (n,)."""
        return 2.0 * eta[:, -1] + self.dim

    def _typical_factor(self, eta: Array) -> tuple[Array, Array, Array, Array]:
        """Return m, kappa, the Cholesky factor (n, D, D) of the typical covariance W^-1 / nu, and nu."""
        mean, kappa, inverse_scale, dof = self.standard(eta)
        return mean, kappa, cholesky(self._typical(inverse_scale, dof), "scale matrix"), dof

    def from_natural(self, eta: Array) -> Parameters:
        """Return ``mean`` (n, D), ``kappa`` (n,), ``scale`` (n, D, D) and ``dof`` (n,)."""
        mean, kappa, inverse_scale, dof = self.standard(eta)
        return {"mean": mean, "kappa": kappa, "scale": inverse(inverse_scale, "scale matrix"), "dof": dof}

    def log_normalizer(self, eta: Array) -> Array:
        """Return -(D/2) log kappa + (D/2) log 2 pi + (nu/2) log|W| + (nu D/2) log 2 + log Gamma_D(nu/2)."""
        _, kappa, factor, dof = self._typical_factor(eta)
        half, shifts = 0.5 * dof, 0.5 * np.arange(self.dim)  # nu / 2 (n,); d / 2 (D,)
        log_gamma = gammaln(half[:, None] - shifts).sum(axis=1) + 0.25 * self.dim * (self.dim - 1) * np.log(np.pi)
        # log|2 W| with W = C^-1 / nu for the typical covariance C: -log|C| - D log(nu / 2)
        log_det = -log_determinant(factor) - self.dim * np.log(half)
        return np.asarray(0.5 * self.dim * np.log(2.0 * np.pi / kappa) + half * log_det + log_gamma)

    def mean_parameters(self, eta: Array) -> Array:
        """Return (nu W m, D / kappa + nu m^T W m, nu W, E log|Lambda|)."""
        mean, kappa, factor, dof = self._typical_factor(eta)
        root = np.linalg.inv(factor)  # L^-1 with L L^T = W^-1 / nu, (n, D, D)
        precision = np.swapaxes(root, 1, 2) @ root  # nu W
        linear = np.einsum("nij,nj->ni", precision, mean)  # nu W m, (n, D)
        square = self.dim / kappa + np.sum(np.einsum("nij,nj->ni", root, mean) ** 2, axis=1)  # (n,)
        half, shifts = 0.5 * dof, 0.5 * np.arange(self.dim)
        # E log|Lambda| = log|nu W| + sum_d psi((nu - d) / 2) - log(nu / 2): each difference is small for large nu
        log_det = -log_determinant(factor) + (digamma(half[:, None] - shifts) - np.log(half)[:, None]).sum(axis=1)
        return np.concatenate([linear, square[:, None], flatten(precision), log_det[:, None]], axis=1)

    def from_mean(self, mean: Array) -> Array:
        """Return eta from E[T]: all in closed form but nu, the root of a decreasing function.

        With P = nu W the mean precision, m = P^-1 E[Lambda mu], kappa = D / (E[mu^T Lambda mu] - m^T P m), and nu
        solves sum_d log(nu / 2) - psi((nu - d) / 2) = log|P| - E log|Lambda|, d = 0, .., D - 1.
        """
        dim = self.dim
        precision = unflatten(mean[:, dim + 1 : -1], dim)  # P (n, D, D)
        factor = cholesky(precision, "mean precision")
        centre = np.linalg.solve(precision, mean[:, :dim, None])[:, :, 0]  # m (n, D)
        kappa = dim / (mean[:, dim] - np.einsum("ni,ni->n", centre, mean[:, :dim]))
        dof = self._dof_of(log_determinant(factor) - mean[:, -1])
        inverse_scale = dof[:, None, None] * inverse(precision, "mean precision")
        return self.to_natural(mean=centre, kappa=kappa, inverse_scale=inverse_scale, dof=dof)

    def _dof_of(self, gap: Array, near: tuple[Array, Array] | None = None) -> Array:
        """Return nu (n,) from log|E Lambda| - E log|Lambda| (n,), positive by Jensen, and from nu at gaps near it."""
        dim, shifts = self.dim, 0.5 * np.arange(self.dim)  # d / 2

        def equation(z: Array) -> tuple[Array, Array]:
            """Return sum_d log x - psi(x - d / 2) less the gap, and its slope, at x = nu / 2 = (D - 1) / 2 + exp z."""
            excess = np.exp(z)[:, None]  # (nu - D + 1) / 2, positive for every z
            x = excess + shifts[-1]
            # x - d / 2, (n, D), without cancellation at the edge of the domain
            shifted = excess + (shifts[-1] - shifts)
            value = (log_minus_digamma(shifted) - np.log1p(-shifts / x)).sum(axis=1) - gap
            return value, ((1.0 / x - trigamma(shifted)) * excess).sum(axis=1)

        # For large nu the sum is about D (D + 1) / (2 nu).
        numerator = 0.25 * dim * (dim + 1) if near is None else 0.5 * (near[0] - dim + 1) * near[1]
        start = np.log(numerator / gap)
        return np.asarray(2.0 * np.exp(decreasing_root(equation, start)) + (dim - 1))

    def kl_pairs(self, eta_a: Array, eta_b: Array) -> Array:
        """Return KL(a || b) as a sum of non-negative terms.

        With the typical covariances C = W^-1 / nu, rho the eigenvalues of C_a^-1 C_b and h(u) = u - log(1 + u):
        D h(kappa_b / kappa_a - 1) / 2 + kappa_b (m_a - m_b)^T C_a^-1 (m_a - m_b) / 2 + nu_b sum h(rho - 1) / 2
        + sum_d B_d(nu_b / 2, nu_a / 2), B_d the Bregman divergence of log Gamma(x - d / 2) - x log x.
        """
        mean_a, kappa_a, inverse_scale_a, dof_a = self.standard(eta_a)
        mean_b, kappa_b, inverse_scale_b, dof_b = self.standard(eta_b)
        typical_a, typical_b = self._typical(inverse_scale_a, dof_a), self._typical(inverse_scale_b, dof_b)  # C_a, C_b
        factor_a, factor_b = cholesky(typical_a, "scale matrix"), cholesky(typical_b, "scale matrix")
        change = typical_b - typical_a  # (n, D, D)
        # Published code of KL-fusion has kappa_a / kappa_b in the first bracket, which can be negative.
        location = 0.5 * self.dim * itakura_saito(kappa_b - kappa_a, kappa_b, kappa_a)
        location += 0.5 * kappa_b * np.sum(half_solve(factor_a, mean_b - mean_a) ** 2, axis=1)
        scale = 0.5 * dof_b * log_det_divergence(factor_a, factor_b, change)
        shifts = 0.5 * np.arange(self.dim, dtype=np.float64)
        freedom = shifted_gamma_bregman(0.5 * dof_b[:, None], 0.5 * dof_a[:, None], shifts).sum(axis=1)
        return location + scale + freedom

    @property
    def flat(self) -> Array:
        """No observations: kappa, W^-1 and nu are zero."""
        return np.append(np.zeros(self.size - 1), -0.5 * self.dim)

    @property
    def enough(self) -> Array:
        """Two observations per dimension: a covariance of fewer is too rough to be compared (docs/adr/0008).

        Chosen by hand; nobody has measured other values.
        """
        return np.array([0.0, 2.0 * self.dim])

    def reweighted(self, eta: Array, factors: Array) -> Array:
        """Multiply kappa and nu with m and nu W kept; nu does not fall below D."""
        mean, kappa, inverse_scale, dof = self.standard(eta)
        new_dof = np.maximum(factors[:, 1] * dof, self.dim)  # the domain ends at D - 1
        scaled = inverse_scale * (new_dof / dof)[:, None, None]
        return self.to_natural(mean=mean, kappa=factors[:, 0] * kappa, inverse_scale=scaled, dof=new_dof)

    def discounts(self, eta: Array) -> Discounts:
        """Return these rows under any discount, which changes kappa, nu and the scale of W^-1 alone."""
        return _NormalWishartDiscounts(self, eta)

    def log_normalizer_of_sums(self, eta: Array) -> Array:
        """Return A(eta) as ``log_normalizer`` does, for very many rows with means near the origin."""
        dim, half = self.dim, eta[:, -1] + 0.5 * self.dim  # nu / 2
        result = _log_multigamma(half, dim)
        result += 0.5 * dim * np.log(-np.pi / eta[:, dim])
        # log|W^-1| - D log 2 of W^-1 = -2 (M + x x^T / (2 kappa)), M the third block and x the first one.
        result -= half * _log_determinants_of_minus(eta[:, dim + 1 : -1], eta[:, :dim], -4.0 * eta[:, dim])
        return result

    def with_spread(self, eta: Array, spread: Array) -> Array:
        """Return m of `eta` with W and nu of `spread`; kappa keeps the width of the mean.

        With S = W^-1 / nu the new kappa is that of `eta` times tr(S_eta^-1 S_spread) / D, since the mean has the
        covariance S / kappa.
        """
        mean, kappa, inner, inner_dof = self.standard(eta)
        _, _, inverse_scale, dof = self.standard(spread)
        covariance, wider = self._typical(inner, inner_dof), self._typical(inverse_scale, dof)
        ratio = np.trace(np.linalg.solve(covariance, wider), axis1=1, axis2=2) / self.dim
        return self.to_natural(mean=mean, kappa=kappa * ratio, inverse_scale=inverse_scale, dof=dof)

    def mean_intervals(self, eta: Array, level: float) -> tuple[Array, Array, Array]:
        """Return m and Student's interval of mu: nu - D + 1 degrees of freedom, scale W^-1 / (kappa (nu - D + 1))."""
        mean, kappa, inverse_scale, dof = self.standard(eta)
        student_dof = dof - self.dim + 1.0
        variance = np.diagonal(inverse_scale, axis1=1, axis2=2) / (kappa * student_dof)[:, None]
        half_width = stdtrit(student_dof, 0.5 + 0.5 * level)[:, None] * np.sqrt(variance)
        return mean, mean - half_width, mean + half_width

    def affine_image(self, eta: Array, matrix: Array, shift: Array) -> Array:
        """Return the distribution of (A mu + b, A^-T Lambda A^-1): m to A m + b, W^-1 to A W^-1 A^T.

        The parameters kappa and nu do not change.
        """
        kappa = -2.0 * eta[:, self.dim]
        second = -2.0 * unflatten(eta[:, self.dim + 1 : -1], self.dim)  # W^-1 + kappa m m^T, (n, D, D)
        moved = eta[:, : self.dim] @ matrix.T  # kappa A m, (n, D)
        cross = moved[:, :, None] * shift  # kappa A m b^T
        image = matrix @ second @ matrix.T + cross + np.swapaxes(cross, 1, 2)
        image += kappa[:, None, None] * np.outer(shift, shift)
        linear = moved + kappa[:, None] * shift
        columns = [linear, eta[:, self.dim, None], flatten(-0.5 * symmetric_part(image)), eta[:, -1:]]
        return np.concatenate(columns, axis=1)

    def predictive(self, eta: Array) -> tuple[Array, Array, Array]:
        """Return locations m (n, D), scales W^-1 (kappa + 1) / (kappa (nu - D + 1)) (n, D, D), dof nu - D + 1 (n,).

        Murphy (2007), "Conjugate Bayesian analysis of the Gaussian distribution", section 8.
        """
        mean, kappa, inverse_scale, dof = self.standard(eta)
        student_dof = dof - self.dim + 1.0
        return mean, inverse_scale * ((kappa + 1.0) / (kappa * student_dof))[:, None, None], student_dof

    def faults(self, eta: Array) -> list[tuple[int, str]]:
        """Rows with kappa <= 0, nu <= D - 1 or a scale matrix that is not positive definite."""
        kappa, dof = -2.0 * eta[:, self.dim], self._dof(eta)
        text = f"degrees of freedom, which must exceed D - 1 = {self.dim - 1}"
        problems = not_positive("kappa =", kappa)
        problems += [(int(i), f"has {dof[i]:.6g} {text}") for i in np.flatnonzero(dof <= self.dim - 1)]
        has_means = np.flatnonzero(kappa > 0)  # without a positive kappa there is no mean to take off W^-1
        inverse_scale = self.standard(eta[has_means])[2]
        problems_of_scale = not_positive_definite(inverse_scale, "scale matrix")
        return problems + [(int(has_means[i]), text) for i, text in problems_of_scale]

    def offsets(self, eta: Array) -> tuple[Array, Array] | None:
        """Return m and kappa m^2 [W]_dd, both (n, D); None where no W^-1 is small beside kappa m m^T."""
        linear, diagonal = eta[:, : self.dim], -2.0 * eta[:, self.dim + 1 : -1 : self.dim + 1]
        if not np.any(is_cancelled(diagonal, diagonal + 0.5 * linear**2 / eta[:, self.dim, None])):
            return None  # which is quick, and nearly always the answer
        mean, kappa, inverse_scale, _ = self.standard(eta)
        second = -2.0 * unflatten(eta[:, self.dim + 1 : -1], self.dim)
        return mean, squared_offsets(linear, kappa, second, inverse_scale)

    def sample(self, eta: Array, size: int, rng: np.random.Generator) -> Draws:
        """Return ``mean`` (size, n, D) and ``precision`` (size, n, D, D), by Bartlett's decomposition."""
        mean, kappa, inverse_scale, dof = self.standard(eta)
        root = np.swapaxes(np.linalg.inv(cholesky(inverse_scale, "scale matrix")), 1, 2)  # R with R R^T = W, (n, D, D)
        n, dim = eta.shape[0], self.dim
        # Lambda = (R B)(R B)^T, B lower triangular with normal entries and roots of chi-squares on its diagonal.
        below_diagonal = np.tril(rng.standard_normal((size, n, dim, dim)), -1)
        diagonal = np.sqrt(rng.chisquare(dof[:, None] - np.arange(dim), size=(size, n, dim)))
        factor = root @ (below_diagonal + diagonal[..., None] * np.eye(dim))  # (size, n, D, D)
        noise = rng.standard_normal((size, n, dim, 1)) / np.sqrt(kappa)[:, None, None]
        offset = np.linalg.solve(np.swapaxes(factor, -1, -2), noise)[..., 0]  # covariance (kappa Lambda)^-1
        return {"mean": mean + offset, "precision": factor @ np.swapaxes(factor, -1, -2)}

    def sufficient_statistics(self, draws: Draws) -> Array:
        """Return (Lambda mu, mu^T Lambda mu, Lambda, log|Lambda|)."""
        mean, precision = draws["mean"], draws["precision"]
        linear = np.einsum("snij,snj->sni", precision, mean)
        square = np.einsum("sni,sni->sn", linear, mean)
        log_det = np.linalg.slogdet(precision)[1]
        matrix = precision.reshape(*precision.shape[:2], -1)
        return np.concatenate([linear, square[..., None], matrix, log_det[..., None]], axis=-1)


@cache
def _gamma_chains(dim: int) -> tuple[Array, Array, Array, Array]:
    """Return f, n, s and m, of which log Gamma_D(x) is made, but for log pi.

    sum_d log Gamma(x - d / 2) = sum_i n_i log Gamma(x - f_i) - sum_k m_k log(x - s_k), f of length 2 (or 1): every
    other d is one step of Gamma(x + 1) = x Gamma(x) below the one before.
    """
    lengths = [-(-(dim - first) // 2) for first in range(min(dim, 2))]  # of the chains that begin at d = 0 and d = 1
    steps = [(0.5 * first + k, length - k) for first, length in enumerate(lengths) for k in range(1, length)]
    shifts, counts = np.array(steps, dtype=np.float64).reshape(-1, 2).T
    return 0.5 * np.arange(len(lengths), dtype=np.float64), np.array(lengths, dtype=np.float64), shifts, counts


def _log_multigamma(x: Array, dim: int) -> Array:
    """Return log Gamma_D(x) (n,) of two log gammas, see ``_gamma_chains``."""
    firsts, n_firsts, steps, n_steps = _gamma_chains(dim)
    column = x[:, None]
    log_gamma: Array = gammaln(column - firsts) @ n_firsts
    log_gamma -= np.log(column - steps) @ n_steps
    log_gamma += 0.25 * dim * (dim - 1) * math.log(math.pi)
    return log_gamma


def _multidigamma(x: Array, dim: int) -> Array:
    """Return sum_d psi(x - d / 2) (n,), the slope of log Gamma_D(x), of two digammas."""
    firsts, n_firsts, steps, n_steps = _gamma_chains(dim)
    return np.asarray(digamma(x[:, None] - firsts) @ n_firsts - (1.0 / (x[:, None] - steps)) @ n_steps)


def _log_determinants_of_minus(matrices: Array, linear: Array, divisors: Array) -> Array:
    """Return log|-M - x x^T / k| (n,) for rows of M (n, D^2), x (n, D) and k (n,)."""
    n, dim = linear.shape
    scaled = linear / -divisors[:, None]
    if n >= _MANY_ROWS * dim**2:
        log_det = np.empty(n)
        for start in range(0, n, _BLOCK_ROWS):
            block = slice(start, start + _BLOCK_ROWS)
            columns = np.negative(matrices[block].T, order="C").reshape(dim, dim, -1)  # an entry of all side by side
            left, right = np.ascontiguousarray(linear[block].T), np.ascontiguousarray(scaled[block].T)
            for j in range(dim):
                columns[j:, j] += left[j:] * right[j]
            log_det[block] = log_determinants_of_many(columns)
        return log_det
    products = np.einsum("ni,nj->nij", linear, scaled)
    products -= matrices.reshape(n, dim, dim)
    try:
        return log_determinant(np.asarray(np.linalg.cholesky(products), dtype=np.float64))
    except np.linalg.LinAlgError:  # rounding: then in a form that puts up with it
        return log_determinants_of_many(np.ascontiguousarray(products.transpose(1, 2, 0)))


@dataclass(frozen=True, eq=False)
class _ScaleAt:
    """What of discounted Normal-Wisharts depends on the heterogeneity of the scale alone."""

    dof: Array  # nu' (L,)
    observed: Array  # A of each row without its term of kappa' (L,)
    law_dof: Array  # nu of the law (1,)


class _NormalWishartDiscounts:
    """Normal-Wisharts under any discount: decompositions are made once, for W' is W times nu / nu'.

    Means are relative to that of all rows, so that W^-1 + kappa m m^T keeps the digits of W^-1.
    """

    def __init__(self, family: NormalWishart, eta: Array) -> None:
        self._family, self._eta, dim, n = family, eta, family.dim, len(eta)
        is_kept = n <= MAX_KEPT_ROWS
        chunks = [slice(0, n)] if is_kept else list(row_chunks(n, family.size))
        self._mean, self._kappa, self._dof = np.empty((n, dim)), np.empty(n), np.empty(n)
        for rows in chunks:
            self._kappa[rows] = -2.0 * eta[rows][:, dim]
            self._mean[rows] = eta[rows][:, :dim] / self._kappa[rows, None]
        self._mean -= self._mean.mean(axis=0)
        self._log_det, self._squares = np.empty(n), np.empty(n)
        linear, law_precision = np.zeros(dim), np.zeros((1, dim, dim))
        for rows in chunks:
            mean, inverse_scale, dof = self._mean[rows], *family.standard(eta[rows])[2:]
            factor = cholesky(inverse_scale / dof[:, None, None], "scale matrix")
            root = np.linalg.inv(factor)
            precision = np.swapaxes(root, 1, 2) @ root  # nu W, the same at every discount
            self._dof[rows] = dof
            self._log_det[rows] = log_determinant(factor) + dim * np.log(dof)  # log|W^-1|
            self._squares[rows] = np.sum(np.einsum("nij,nj->ni", root, mean) ** 2, axis=1)  # nu m^T W m
            linear += np.einsum("nij,nj->ni", precision, mean).sum(axis=0)
            law_precision += precision.sum(axis=0)
        # What of the law no discount changes: its mean, and nu W with its log determinant and inverse.
        linear /= n
        law_precision /= n
        self._law_mean = np.linalg.solve(law_precision, linear[None, :, None])[:, :, 0]  # (1, D)
        self._law_square = float(np.sum(self._law_mean * linear))
        self._law_log_det = log_determinant(cholesky(law_precision, "mean precision"))
        self._law_inverse = inverse(law_precision, "mean precision")
        self._law_at: tuple[Array, Array] | None = None
        self._scale_at = lru_cache(maxsize=_KEPT_SCALES if is_kept else 1)(self._compute_scale)
        self._kept = self._directions(mean, inverse_scale) if is_kept else None

    @staticmethod
    def _directions(mean: Array, inverse_scale: Array) -> tuple[Array, Array]:
        """Return what kappa' multiplies in the pieces (n, P - 1), and what nu' / nu does (n, D^2)."""
        outer = mean[:, :, None] * mean[:, None, :]
        location = np.concatenate([mean, np.full((len(mean), 1), -0.5), -0.5 * flatten(outer)], axis=1)
        return location, -0.5 * flatten(inverse_scale)

    def _kappa_at(self, heterogeneity: Array, rows: slice | Labels = slice(None)) -> Array:
        """Return kappa' of some rows (n,)."""
        kappa = self._kappa[rows]
        return kappa / (1.0 + heterogeneity[0] * kappa)

    def _compute_scale(self, heterogeneity: float) -> _ScaleAt:
        """Return what depends on the heterogeneity of the scale alone: a search moves one of the two at a time."""
        dim = self._family.dim
        dof = np.maximum(self._dof / (1.0 + heterogeneity * self._dof), dim)
        half = 0.5 * dof
        log_det = self._log_det + dim * np.log(dof / self._dof)  # log|W'^-1|
        observed = half * (dim * np.log(2.0) - log_det) + _log_multigamma(half, dim)
        # E log|Lambda| = log|nu W| + sum_d psi((nu' - d) / 2) - log(nu' / 2)
        expected = dim * np.log(self._dof) - self._log_det + _multidigamma(half, dim) - dim * np.log(half)
        # As ``from_mean`` does, from the dof of the last call, which is near.
        gap = self._law_log_det - expected.mean()  # (1,)
        self._law_at = self._family._dof_of(gap, self._law_at), gap
        return _ScaleAt(dof, observed, self._law_at[0])

    def part(self, rows: slice | Labels) -> _NormalWishartRows:
        """Return some of the rows."""
        return _NormalWishartRows(self, rows)

    def pieces(self, heterogeneity: Array, rows: slice | Labels | None = None) -> Array:
        """Return what some rows say when discounted, less the flat limit (n, P); all of them by default."""
        if rows is None:
            if self._kept is None:
                return map_rows(len(self._kappa), self._family.size, lambda rows: self.pieces(heterogeneity, rows))
            rows = slice(None)
        dim = self._family.dim
        kappa, dof = self._kappa_at(heterogeneity, rows), self._scale_at(float(heterogeneity[1])).dof[rows]
        if self._kept is not None:
            location, scale = (directions[rows] for directions in self._kept)
        else:
            location, scale = self._directions(self._mean[rows], self._family.standard(self._eta[rows])[2])
        pieces = np.empty((len(kappa), self._family.size))
        np.multiply(location, kappa[:, None], out=pieces[:, :-1])
        pieces[:, dim + 1 : -1] += scale * (dof / self._dof[rows])[:, None]
        pieces[:, -1] = 0.5 * dof
        return pieces

    def sums_of(self, membership: csr_array) -> Callable[[Array], Array]:
        """Return the sums of pieces weighted by a matrix (G, L) as a function of the heterogeneity (2,), (G, P).

        No pieces are made. Both parts are kept, for a search moves one of the two at a time.
        """
        if self._kept is None:
            return lambda heterogeneity: np.asarray(membership @ self.pieces(heterogeneity))
        (location, scale), dim, weighted = self._kept, self._family.dim, membership.copy()

        def product(factors: Array, directions: Array) -> Array:
            np.multiply(membership.data, factors[membership.indices], out=weighted.data)
            return np.asarray(weighted @ directions)

        @lru_cache(maxsize=_KEPT_SUMS)
        def location_sums(heterogeneity: float) -> Array:
            return product(self._kappa_at(np.array([heterogeneity])), location)

        @lru_cache(maxsize=_KEPT_SUMS)
        def scale_sums(heterogeneity: float) -> tuple[Array, Array]:
            dof = self._scale_at(heterogeneity).dof
            return product(dof / self._dof, scale), 0.5 * (membership @ dof)

        def sums(heterogeneity: Array) -> Array:
            of_scale, half_dof = scale_sums(float(heterogeneity[1]))
            result = np.empty((len(half_dof), self._family.size))
            result[:, :-1] = location_sums(float(heterogeneity[0]))
            result[:, dim + 1 : -1] += of_scale
            result[:, -1] = half_dof
            return result

        return sums

    def observed(self, heterogeneity: Array, rows: slice | Labels = slice(None)) -> Array:
        """Return A of some rows, discounted (n,)."""
        location = 0.5 * self._family.dim * np.log(2.0 * np.pi / self._kappa_at(heterogeneity, rows))
        return np.asarray(location + self._scale_at(float(heterogeneity[1])).observed[rows])

    def law(self, heterogeneity: Array) -> Array:
        """Return the distribution (P,) of the discounted rows: only E[mu^T Lambda mu] and E log|Lambda| change."""
        square = self._family.dim / self._kappa_at(heterogeneity) + self._squares
        dof = self._scale_at(float(heterogeneity[1])).law_dof
        kappa = np.array([self._family.dim / (square.mean() - self._law_square)])
        # As ``to_natural`` does; this is called for every value of the heterogeneity that a fit tries.
        linear = kappa * self._law_mean[0]
        second = dof * self._law_inverse[0] + linear[:, None] * self._law_mean[0]
        return np.concatenate([linear, -0.5 * kappa, -0.5 * second.ravel(), 0.5 * (dof - self._family.dim)])


@dataclass(frozen=True, eq=False)
class _NormalWishartRows:
    """Some of the rows of discounted Normal-Wisharts."""

    discounts: _NormalWishartDiscounts
    rows: slice | Labels

    def pieces(self, heterogeneity: Array) -> Array:
        """Return what each row says when discounted, less the flat limit (n, P)."""
        return self.discounts.pieces(heterogeneity, self.rows)

    def observed(self, heterogeneity: Array) -> Array:
        """Return A of each discounted row (n,)."""
        return self.discounts.observed(heterogeneity, self.rows)
