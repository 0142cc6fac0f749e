"""Normal-Wishart: the posterior of a Gaussian component with unknown mean and precision matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import digamma, gammaln, polygamma

from consilience.checks import Array, as_matrices, as_rows, as_vector, as_weights, symmetric_part
from consilience.errors import InputError
from consilience.families.base import Draws, Parameters
from consilience.families.evidence import EvidenceFamily
from consilience.families.gaussian import Gaussian
from consilience.families.linalg import (
    cholesky,
    flatten,
    half_solve,
    inverse,
    log_det_divergence,
    log_determinant,
    not_positive_definite,
    unflatten,
)
from consilience.families.special import (
    decreasing_root,
    itakura_saito,
    log_minus_digamma,
    shifted_gamma_bregman,
    subtract_quotients,
)

_FAR = 100.0


@dataclass(frozen=True)
class NormalWishart(EvidenceFamily):
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
    parts: ClassVar[tuple[str, ...]] = ("location", "scale")

    @property
    def size(self) -> int:
        """Length P = D + 1 + D^2 + 1 of a row of natural parameters."""
        return self.dim + 2 + self.dim**2

    def config(self) -> dict[str, Any]:
        """Return what the constructor needs."""
        return {"dim": self.dim}

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
            raise InputError("Normal-Wishart: give exactly one of scale (W) and inverse_scale (W^-1)")
        means = as_rows("mean", mean, self.dim)
        count = means.shape[0]
        kappas, dofs = as_vector("kappa", kappa, count), as_vector("dof", dof, count)
        if scale is not None:
            inverse_scales = inverse(as_matrices("scale", scale, self.dim), "scale matrix")
        else:
            assert inverse_scale is not None  # noqa: S101  (narrows the type; checked above)
            inverse_scales = symmetric_part(as_matrices("inverse_scale", inverse_scale, self.dim))
        linear = kappas[:, None] * means
        second = inverse_scales + linear[:, :, None] * means[:, None, :]
        return np.concatenate(
            [linear, -0.5 * kappas[:, None], flatten(-0.5 * second), 0.5 * (dofs - self.dim)[:, None]], axis=1
        )

    def standard(self, eta: Array) -> tuple[Array, Array, Array, Array]:
        """Return m (n, D), kappa (n,), W^-1 (n, D, D) and nu (n,): no matrix is inverted."""
        kappa = -2.0 * eta[:, self.dim]
        mean = eta[:, : self.dim] / kappa[:, None]
        second = -2.0 * unflatten(eta[:, self.dim + 1 : -1], self.dim)
        linear = eta[:, : self.dim]
        inverse_scale = second - linear[:, :, None] * mean[:, None, :]
        sizes, left = (np.diagonal(matrix, axis1=1, axis2=2) for matrix in (second, inverse_scale))
        far = np.flatnonzero(~(sizes <= _FAR * left).all(axis=1))  # means far from the origin: the difference cancels
        if far.size:
            pairs = [(linear[far, :, None], linear[far, None, :])]
            inverse_scale[far] = subtract_quotients(second[far], pairs, kappa[far, None, None])
        return mean, kappa, inverse_scale, self._dof(eta)

    def _dof(self, eta: Array) -> Array:
        return 2.0 * eta[:, -1] + self.dim

    def _typical(self, eta: Array) -> tuple[Array, Array, Array, Array]:
        """Return m, kappa, the Cholesky factor of W^-1 / nu (a typical covariance) and nu."""
        mean, kappa, inverse_scale, dof = self.standard(eta)
        return mean, kappa, cholesky(inverse_scale / dof[:, None, None], "scale matrix"), dof

    def from_natural(self, eta: Array) -> Parameters:
        """Return ``mean`` (n, D), ``kappa`` (n,), ``scale`` (n, D, D) and ``dof`` (n,)."""
        mean, kappa, inverse_scale, dof = self.standard(eta)
        return {"mean": mean, "kappa": kappa, "scale": inverse(inverse_scale, "scale matrix"), "dof": dof}

    def log_normalizer(self, eta: Array) -> Array:
        """Return -(D/2) log kappa + (D/2) log 2 pi + (nu/2) log|W| + (nu D/2) log 2 + log Gamma_D(nu/2)."""
        _, kappa, factor, dof = self._typical(eta)
        half, steps = 0.5 * dof, 0.5 * np.arange(self.dim)
        log_gamma = gammaln(half[:, None] - steps).sum(axis=1) + 0.25 * self.dim * (self.dim - 1) * np.log(np.pi)
        log_det = -log_determinant(factor) - self.dim * np.log(half)
        result: Array = 0.5 * self.dim * np.log(2.0 * np.pi / kappa) + half * log_det + log_gamma
        return result

    def mean_parameters(self, eta: Array) -> Array:
        """Return (nu W m, D / kappa + nu m^T W m, nu W, E log|Lambda|)."""
        mean, kappa, factor, dof = self._typical(eta)
        root = np.linalg.inv(factor)
        precision = np.swapaxes(root, 1, 2) @ root
        linear = np.einsum("nij,nj->ni", precision, mean)
        square = self.dim / kappa + np.sum(np.einsum("nij,nj->ni", root, mean) ** 2, axis=1)
        half, steps = 0.5 * dof, 0.5 * np.arange(self.dim)
        log_det = -log_determinant(factor) + (digamma(half[:, None] - steps) - np.log(half)[:, None]).sum(axis=1)
        return np.concatenate([linear, square[:, None], flatten(precision), log_det[:, None]], axis=1)

    def from_mean(self, mean: Array) -> Array:
        """Return eta of given E[T]: all in closed form but nu, the root of a decreasing function."""
        dim = self.dim
        precision = unflatten(mean[:, dim + 1 : -1], dim)
        factor = cholesky(precision, "mean precision")
        centre = np.linalg.solve(precision, mean[:, :dim, None])[:, :, 0]
        kappa = dim / (mean[:, dim] - np.einsum("ni,ni->n", centre, mean[:, :dim]))
        gap = log_determinant(factor) - mean[:, -1]
        steps = 0.5 * np.arange(dim)

        def function(z: Array) -> tuple[Array, Array]:
            """Sum of log x - psi(x - step) less the gap, and its slope, at x = (D - 1) / 2 + exp z."""
            above = np.exp(z)[:, None]
            x = above + steps[-1]
            low = above + (steps[-1] - steps)
            value = (log_minus_digamma(low) - np.log1p(-steps / x)).sum(axis=1) - gap
            return value, ((1.0 / x - polygamma(1, low)) * above).sum(axis=1)

        start = np.log(0.25 * dim * (dim + 1) / gap)
        dof = 2.0 * np.exp(decreasing_root(function, start)) + (dim - 1)
        inverse_scale = dof[:, None, None] * inverse(precision, "mean precision")
        return self.to_natural(mean=centre, kappa=kappa, inverse_scale=inverse_scale, dof=dof)

    def kl_pairs(self, eta_a: Array, eta_b: Array) -> Array:
        """Return KL(a || b) as a sum of non-negative terms.

        With the typical covariances C = W^-1 / nu, rho the eigenvalues of C_a^-1 C_b and h(u) = u - log(1 + u):
        D h(kappa_b / kappa_a - 1) / 2 + kappa_b (m_a - m_b)^T C_a^-1 (m_a - m_b) / 2 + nu_b sum h(rho - 1) / 2
        + sum_d B_d(nu_b / 2, nu_a / 2), B_d the Bregman divergence of log Gamma(x - d / 2) - x log x.
        """
        mean_a, kappa_a, inverse_scale_a, dof_a = self.standard(eta_a)
        mean_b, kappa_b, inverse_scale_b, dof_b = self.standard(eta_b)
        typical_a, typical_b = inverse_scale_a / dof_a[:, None, None], inverse_scale_b / dof_b[:, None, None]
        factor_a, factor_b = cholesky(typical_a, "scale matrix"), cholesky(typical_b, "scale matrix")
        change = typical_b - typical_a
        location = 0.5 * self.dim * itakura_saito(kappa_b - kappa_a, kappa_b, kappa_a)
        location += 0.5 * kappa_b * np.sum(half_solve(factor_a, mean_b - mean_a) ** 2, axis=1)
        shape = 0.5 * dof_b * log_det_divergence(factor_a, factor_b, change)
        steps = 0.5 * np.arange(self.dim, dtype=np.float64)
        freedom = shifted_gamma_bregman(0.5 * dof_b[:, None], 0.5 * dof_a[:, None], steps).sum(axis=1)
        return location + shape + freedom

    @property
    def flat(self) -> Array:
        """No observations: kappa, W^-1 and nu are zero."""
        return np.append(np.zeros(self.size - 1), -0.5 * self.dim)

    @property
    def enough(self) -> Array:
        """Two observations per dimension: a covariance of fewer is too rough to be compared."""
        return np.array([0.0, 2.0 * self.dim])

    def information(self, eta: Array) -> Array:
        """Return kappa and nu (n, 2)."""
        return np.stack([-2.0 * eta[:, self.dim], self._dof(eta)], axis=1)

    def reweighted(self, eta: Array, factors: Array) -> Array:
        """Multiply kappa and nu with m and nu W kept; nu does not fall below D."""
        mean, kappa, inverse_scale, dof = self.standard(eta)
        following = np.maximum(factors[:, 1] * dof, self.dim)
        scaled = inverse_scale * (following / dof)[:, None, None]
        return self.to_natural(mean=mean, kappa=factors[:, 0] * kappa, inverse_scale=scaled, dof=following)

    def _plug_in(self, eta: Array) -> Array:
        """Return natural parameters of the Gaussians N(m, W^-1 / nu) that the rows stand for."""
        mean, _, inverse_scale, dof = self.standard(eta)
        return Gaussian(self.dim).to_natural(mean=mean, covariance=inverse_scale / dof[:, None, None])

    def wasserstein(self, eta_a: Array, eta_b: Array) -> Array:
        """Return squared Wasserstein-2 distances (n_a, n_b) of the Gaussians N(m, W^-1 / nu)."""
        return Gaussian(self.dim).wasserstein(self._plug_in(eta_a), self._plug_in(eta_b))

    def wasserstein_barycenter(self, eta: Array, weights: Array | None = None) -> Array:
        """Return eta (P,) whose Gaussian is the barycenter of the rows', with the mean kappa and nu."""
        family, share = Gaussian(self.dim), as_weights(weights, eta.shape[0])
        centre = family.from_natural(family.wasserstein_barycenter(self._plug_in(eta), share)[None])
        kappa, dof = (share / share.sum()) @ self.information(eta)
        scale = centre["covariance"] * dof
        return self.to_natural(mean=centre["mean"], kappa=[kappa], inverse_scale=scale, dof=[dof])[0]

    def faults(self, eta: Array) -> list[tuple[int, str]]:
        """Rows with kappa <= 0, nu <= D - 1 or a scale matrix that is not positive definite."""
        kappa, dof = -2.0 * eta[:, self.dim], self._dof(eta)
        problems = [(int(i), f"has kappa = {kappa[i]:.6g}, which must be positive") for i in np.flatnonzero(kappa <= 0)]
        problems += [
            (int(i), f"has {dof[i]:.6g} degrees of freedom, which must exceed D - 1 = {self.dim - 1}")
            for i in np.flatnonzero(dof <= self.dim - 1)
        ]
        good = np.flatnonzero(kappa > 0)
        inverse_scale = self.standard(eta[good])[2]
        return problems + [(int(good[i]), text) for i, text in not_positive_definite(inverse_scale, "scale matrix")]

    def sample(self, eta: Array, size: int, rng: np.random.Generator) -> Draws:
        """Return ``mean`` (size, n, D) and ``precision`` (size, n, D, D), by Bartlett's decomposition."""
        mean, kappa, inverse_scale, dof = self.standard(eta)
        root = np.swapaxes(np.linalg.inv(cholesky(inverse_scale, "scale matrix")), 1, 2)
        count, dim = eta.shape[0], self.dim
        bartlett = np.tril(rng.standard_normal((size, count, dim, dim)), -1)
        diagonal = np.sqrt(rng.chisquare(dof[:, None] - np.arange(dim), size=(size, count, dim)))
        factor = root @ (bartlett + diagonal[..., None] * np.eye(dim))
        noise = rng.standard_normal((size, count, dim, 1)) / np.sqrt(kappa)[:, None, None]
        offset = np.linalg.solve(np.swapaxes(factor, -1, -2), noise)[..., 0]
        return {"mean": mean + offset, "precision": factor @ np.swapaxes(factor, -1, -2)}

    def sufficient_statistics(self, draws: Draws) -> Array:
        """Return (Lambda mu, mu^T Lambda mu, Lambda, log|Lambda|)."""
        mean, precision = draws["mean"], draws["precision"]
        linear = np.einsum("snij,snj->sni", precision, mean)
        square = np.einsum("sni,sni->sn", linear, mean)
        log_det = np.linalg.slogdet(precision)[1]
        matrix = precision.reshape(*precision.shape[:2], -1)
        return np.concatenate([linear, square[..., None], matrix, log_det[..., None]], axis=-1)
