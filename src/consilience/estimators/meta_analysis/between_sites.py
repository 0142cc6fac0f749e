"""Between-site variance of estimates: DerSimonian-Laird, Paule-Mandel, and restricted maximum likelihood.

The model is y_k ~ N(mu, V_k + T): y_k (p,) the estimate of site k, V_k (p, p) its covariance, T (p, p) the covariance
between sites. With W_k = (V_k + T)^-1,

    mu = (sum_k W_k)^-1 sum_k W_k y_k,      C = (sum_k W_k)^-1,      Q = sum_k (y_k - mu)^T V_k^-1 (y_k - mu) at T = 0.

A site that lacks a coefficient has no row and column of it in V_k; W_k is zero there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import brentq, minimize

from consilience.checks import Array, symmetric_part

MAX_ITERATIONS = 2_000
"""A bound on what a file of a stranger may take; trials of 3 to 20 sites with 1 to 6 coefficients took 10 to 60."""

EM_STEPS = 20
"""Steps of EM before quasi-Newton: enough to leave the moments; where they end does not depend on it."""

GRADIENT_TOLERANCE = 1e-9
"""Gradient of the likelihood by the root of T, in units of the sites' mean variance, at which quasi-Newton ends."""

TOLERANCE = 1e-13
"""Change of tau^2, in units of the sites' mean variance, at which its iteration ends: near rounding."""

Method = Literal["reml", "dersimonian_laird", "paule_mandel", "fixed"]
"""How the variance between sites is estimated; ``fixed`` takes none."""


@dataclass(frozen=True, eq=False)
class SiteEstimates:
    """Estimates of J sites with their covariances; 0 where a site lacks a coefficient."""

    estimates: Array  # (J, p), estimates
    covariances: Array  # (J, p, p), their covariances
    known: np.ndarray  # (J, p), which site has which coefficient

    @property
    def n_free(self) -> int:
        """Number of estimates less the number of coefficients."""
        return int(self.known.sum()) - self.known.shape[1]

    def column(self, number: int) -> SiteEstimates:
        """Return one coefficient of the sites that have it."""
        sites = np.flatnonzero(self.known[:, number])
        pick = slice(number, number + 1)
        return SiteEstimates(
            self.estimates[sites, pick], self.covariances[sites, pick, pick], np.ones((len(sites), 1), dtype=bool)
        )

    def scaled(self, units: Array) -> SiteEstimates:
        """Return the same in other units (p,) of the coefficients."""
        return SiteEstimates(self.estimates / units, self.covariances / np.outer(units, units), self.known)


@dataclass(frozen=True, eq=False)
class Pooled:
    """Weighted mean of estimates."""

    mean: Array  # (p,), mu
    covariance: Array  # (p, p), C
    weights: Array  # (J, p, p), W_k
    squares: float  # sum_k (y_k - mu)^T W_k (y_k - mu)
    log_likelihood: float  # restricted log-likelihood of T, without its constant


def pool(sites: SiteEstimates, between: Array) -> Pooled:
    """Return the weighted mean of estimates at a covariance T (p, p) between sites."""
    is_known = sites.known[:, :, None] & sites.known[:, None, :]  # (J, p, p)
    total = np.where(is_known, sites.covariances + between, np.eye(sites.known.shape[1]))
    weights = np.where(is_known, symmetric_part(np.linalg.inv(total)), 0.0)
    precision = weights.sum(axis=0)
    covariance = symmetric_part(np.linalg.inv(precision))
    mean = covariance @ np.einsum("kij,kj->i", weights, sites.estimates)
    residuals = np.where(sites.known, sites.estimates - mean, 0.0)
    squares = float(np.einsum("ki,kij,kj->", residuals, weights, residuals))
    log_likelihood = -0.5 * float(np.linalg.slogdet(total)[1].sum() + np.linalg.slogdet(precision)[1] + squares)
    return Pooled(mean, covariance, weights, squares, log_likelihood)


def weighted_least_squares(X: Array, y: Array, w: Array) -> tuple[Array, Array]:
    """Return the coefficients (q,) of y (J,) on X (J, q) with weights w (J,), and A = (X^T W X)^-1."""
    inverse: Array = np.asarray(np.linalg.inv(X.T @ (w[:, None] * X)), dtype=np.float64)
    return inverse @ (X.T @ (w * y)), inverse


def _excess(X: Array, y: Array, w: Array) -> float:
    """Return the generalised Q, the weighted squares of the residuals, less its expectation J - q under weights w."""
    beta, _ = weighted_least_squares(X, y, w)
    return float(np.sum(w * (y - X @ beta) ** 2)) - (len(y) - X.shape[1])


def _ones(estimates: Array) -> Array:
    return np.ones((len(estimates), 1))


def dersimonian_laird(estimates: Array, variances: Array, design: Array | None = None) -> float:
    """Return tau^2 by the method of moments (DerSimonian and Laird 1986) of estimates (J,) with variances (J,).

    `design` (J, q) explains the estimates; without one they have a common mean.
    """
    X = _ones(estimates) if design is None else design
    if len(estimates) <= X.shape[1]:
        return 0.0
    w = 1.0 / variances
    _, inverse = weighted_least_squares(X, estimates, w)
    trace = w.sum() - float(np.sum(inverse * (X.T @ (w[:, None] ** 2 * X))))
    return max(0.0, _excess(X, estimates, w) / trace)


def paule_mandel(estimates: Array, variances: Array, design: Array | None = None) -> float:
    """Return the tau^2 at which the generalised Q equals J - q (Paule and Mandel 1982); 0 where none does."""
    X = _ones(estimates) if design is None else design

    def excess(tau2: float) -> float:
        return _excess(X, estimates, 1.0 / (variances + tau2))

    if len(estimates) <= X.shape[1] or excess(0.0) <= 0.0:
        return 0.0
    # At tau2 = sum r^2 / (J - q), r least squares' residuals, Q is below J - q, since no weight exceeds 1 / tau2.
    beta, _ = weighted_least_squares(X, estimates, np.ones(len(estimates)))
    upper = 2.0 * float(np.sum((estimates - X @ beta) ** 2)) / (len(estimates) - X.shape[1])
    return float(brentq(excess, 0.0, upper, xtol=1e-15 * upper, rtol=1e-14))


def reml(estimates: Array, variances: Array, design: Array | None = None) -> tuple[float, int]:
    """Return tau^2 by restricted maximum likelihood (Viechtbauer 2005), and the number of iterations.

    tau^2 <- max(0, sum w^2 (r^2 - v + h) / sum w^2), w = 1 / (v + tau^2), r the residuals, h = diag(X A X^T) the
    variances of the fitted values; of a common mean h = 1 / sum w (eq. 19).
    """
    X = _ones(estimates) if design is None else design
    tau2, unit = dersimonian_laird(estimates, variances, X), float(variances.mean())
    if len(estimates) <= X.shape[1]:
        return 0.0, 0
    iteration, change = 0, np.inf
    while iteration < MAX_ITERATIONS and change > TOLERANCE * (unit + tau2):
        iteration += 1
        w = 1.0 / (variances + tau2)
        beta, inverse = weighted_least_squares(X, estimates, w)
        leverages = np.einsum("jq,qr,jr->j", X, inverse, X)  # (J,), variances of the fitted values
        step = np.sum(w**2 * ((estimates - X @ beta) ** 2 - variances + leverages)) / np.sum(w**2)
        change, tau2 = abs(max(0.0, float(step)) - tau2), max(0.0, float(step))
    return tau2, iteration


def variance_between_sites(
    estimates: Array, variances: Array, method: Method, design: Array | None = None
) -> tuple[float, int]:
    """Return tau^2 of one coefficient by a method, and the number of iterations."""
    if method == "fixed":
        return 0.0, 0
    if method == "reml":
        return reml(estimates, variances, design)
    by_moments = dersimonian_laird if method == "dersimonian_laird" else paule_mandel
    return by_moments(estimates, variances, design), 0


def multivariate_reml(sites: SiteEstimates, *, diagonal: bool = False) -> tuple[Array, int]:
    """Return T (p, p) by restricted maximum likelihood, and the number of iterations; `diagonal` has a diagonal T.

    EM over the sites' own coefficients, with r_k = y_k - mu and u_k = T W_k r_k,

        T <- mean_k ( u_k u_k^T + T - T W_k T + T W_k C W_k T ),

    comes near from the moments of each coefficient alone, and creeps where T is near singular. Its last steps are
    therefore quasi-Newton on the triangular root L of T = L L^T, which keeps T positive semi-definite, along

        d l / d T = -1/2 sum_k ( W_k - W_k C W_k - W_k r_k r_k^T W_k ).
    """
    p = sites.known.shape[1]
    units = np.sqrt(np.einsum("kii->i", sites.covariances) / sites.known.sum(axis=0))
    sites = sites.scaled(units)
    entries = np.diag_indices(p) if diagonal else np.tril_indices(p)

    def gradient_terms(between: Array) -> tuple[Pooled, Array]:
        """Return mu, and W_k - W_k C W_k - W_k r_k r_k^T W_k (J, p, p)."""
        pooled = pool(sites, between)
        weighted = np.einsum("kij,kj->ki", pooled.weights, np.where(sites.known, sites.estimates - pooled.mean, 0.0))
        inner = pooled.weights - pooled.weights @ pooled.covariance @ pooled.weights
        return pooled, inner - weighted[:, :, None] * weighted[:, None, :]

    def negative_likelihood(values: Array) -> tuple[float, Array]:
        root = np.zeros((p, p))
        root[entries] = values
        pooled, terms = gradient_terms(root @ root.T)
        return -pooled.log_likelihood, (terms.sum(axis=0) @ root)[entries]

    # T = 0 is a fixed point of both, so no coefficient of two sites starts below a tenth of the sites' own variance,
    # which is one in these units. What one site alone knows does not vary between sites.
    columns = [sites.column(number) for number in range(p)]
    moments = [dersimonian_laird(one.estimates[:, 0], one.covariances[:, 0, 0]) for one in columns]
    starts = [max(tau2, 0.1) if len(one.estimates) > 1 else 0.0 for one, tau2 in zip(columns, moments, strict=True)]
    between = np.diag(starts)
    for _ in range(EM_STEPS):
        _, terms = gradient_terms(between)
        between = symmetric_part(between - between @ terms.mean(axis=0) @ between)
        if diagonal:
            between = np.diag(np.diag(between))
    root = _triangular_root(between)
    optimum = minimize(
        negative_likelihood,
        root[entries],
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": MAX_ITERATIONS, "maxfun": 10 * MAX_ITERATIONS, "ftol": 0.0, "gtol": GRADIENT_TOLERANCE},
    )
    root = np.zeros((p, p))
    root[entries] = optimum.x
    return root @ root.T * np.outer(units, units), EM_STEPS + int(optimum.nit)


def _triangular_root(matrix: Array) -> Array:
    """Return L (p, p), lower triangular, with L L^T a positive semi-definite matrix, which may be singular."""
    values, vectors = np.linalg.eigh(matrix)
    factor = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    lower: Array = np.linalg.qr(factor.T)[1].T
    return lower


def between_site_covariance(sites: SiteEstimates, method: Method, *, diagonal: bool) -> tuple[Array, int]:
    """Return T (p, p) and the number of iterations; moments are of each coefficient alone, so their T is diagonal."""
    p = sites.known.shape[1]
    if method == "reml" and p > 1:
        return multivariate_reml(sites, diagonal=diagonal)
    columns = [sites.column(number) for number in range(p)]
    found = [variance_between_sites(one.estimates[:, 0], one.covariances[:, 0, 0], method) for one in columns]
    return np.diag([tau2 for tau2, _ in found]), found[-1][1]
