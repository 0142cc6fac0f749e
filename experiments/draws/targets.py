"""Targets: data at sites; subposteriors with prior^(1/J), the whole prior, and likelihood^J; the full posterior.

A target gives log densities in unconstrained coordinates, Jacobians included, as samplers see them: log prior of theta,
log likelihood of the rows of a site, log |d theta / d u|.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from experiments.draws.sampling import ensemble_draws, grid_draws

EIGHT_SCHOOLS = np.array([[28, 15], [8, 10], [-3, 16], [7, 11], [-1, 9], [1, 11], [18, 10], [12, 18]], dtype=float)
"""Effects and standard errors of Rubin (1981)."""


@dataclass(frozen=True)
class Target:
    """A model with data at J sites.

    Parameters
    ----------
    likelihoods : list of callable
        Log likelihood (n,) of the rows of each site at unconstrained points (n, d).
    log_prior, log_jacobian : callable
        At the same points.
    start : ndarray of shape (d,)
        Where samplers start.
    to_variables : callable
        Arrays by name of unconstrained draws (..., d).
    laws : dict
        The prior by variable, to be divided out; empty where no law of the library's table is it.
    told : dict
        Statements for ``consilience.Draws``.
    to_coordinates : callable, optional
        Comparable coordinates (n, d) of arrays by name.
    """

    likelihoods: list[Callable[[np.ndarray], np.ndarray]]
    log_prior: Callable[[np.ndarray], np.ndarray]
    log_jacobian: Callable[[np.ndarray], np.ndarray]
    start: np.ndarray
    to_variables: Callable[[np.ndarray], dict[str, np.ndarray]]
    to_coordinates: Callable[[dict[str, np.ndarray]], np.ndarray]
    laws: dict[str, Any] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)
    ranges: tuple[tuple[float, float], ...] | None = None
    switches: Callable[[np.ndarray, np.random.Generator], np.ndarray] | None = None
    n_steps: int = 3000

    def draws(self, which: int | None, prior_power: float, likelihood_power: float, n_draws: int, rng) -> np.ndarray:
        """Return unconstrained draws of the subposterior of a site, or of all data for None."""
        sites = self.likelihoods if which is None else [self.likelihoods[which]]

        def log_density(points):
            total = prior_power * self.log_prior(points) + self.log_jacobian(points)
            for likelihood in sites:
                total = total + likelihood_power * likelihood(points)
            return np.where(np.isnan(total), -np.inf, total)

        if self.ranges is not None:
            found = grid_draws(log_density, self.ranges, n_draws, rng)
        else:
            found = ensemble_draws(log_density, self.start, n_draws, rng, self.n_steps)
        return found if self.switches is None else self.switches(found, rng)


def nothing(points):
    """Return the log Jacobian of parameters without constraints."""
    return np.zeros(len(points))


def logarithm(values):
    """Return the logarithm of values, flat, which baselines may have made negative."""
    return np.log(np.maximum(values.ravel(), 1e-9))


def normal(x, mean, sd):
    """Return the log density of a normal law, up to a constant."""
    return -0.5 * ((x - mean) / sd) ** 2 - np.log(sd)


def gaussian(rng):
    """Mean of five Gaussian columns with a known covariance: 5 sites of 40 rows, each with another design of noise."""
    d, mixing = 5, rng.normal(size=(5, 5, 5))
    truth, likelihoods = rng.normal(size=d), []
    for own in mixing:
        covariance = own @ own.T + 0.5 * np.eye(d)
        rows = rng.multivariate_normal(truth, covariance, size=40)
        precision, mean = 40 * np.linalg.inv(covariance), rows.mean(axis=0)
        likelihoods.append(
            lambda u, precision=precision, mean=mean: -0.5 * np.einsum("na,ab,nb->n", u - mean, precision, u - mean)
        )
    return Target(
        likelihoods, lambda u: normal(u, 0.0, 2.0).sum(axis=1), nothing, truth, lambda u: {"mu": u},
        lambda v: v["mu"], {"mu": ("normal", 0, 2)},
    )  # fmt: skip


def logistic(rng, n=1000, n_sites=10, d=5):
    """Logistic regression, prior N(0, 1): 10 sites of 100 rows, an intercept and four correlated columns."""
    mixing = np.linalg.cholesky(0.5 * np.eye(d - 1) + 0.5)
    X = np.concatenate([np.ones((n, 1)), rng.normal(size=(n, d - 1)) @ mixing.T], axis=1)
    beta = np.array([-1.0, 1.0, -1.0, 0.5, 0.0])
    signs = np.where(rng.random(n) < 1 / (1 + np.exp(-X @ beta)), 1.0, -1.0)
    signed = np.array_split(X * signs[:, None], n_sites)
    return Target(
        [lambda u, rows=rows: -np.logaddexp(0.0, -u @ rows.T).sum(axis=1) for rows in signed],
        lambda u: normal(u, 0.0, 1.0).sum(axis=1), nothing, beta, lambda u: {"beta": u}, lambda v: v["beta"],
        {"beta": ("normal", 0, 1)}, {"n_observations": n / n_sites},
    )  # fmt: skip


def gamma(rng, n_sites=10, rows=4):
    """Three Poisson rates with gamma priors, 10 sites of 4 rows: skewed posteriors of positive parameters."""
    rates = np.array([1.5, 3.0, 6.0])
    y = rng.poisson(rates, size=(n_sites, rows, 3))
    totals = y.sum(axis=1)  # (n_sites, 3)
    return Target(
        [lambda u, total=total: (total * u - rows * np.exp(u)).sum(axis=1) for total in totals],
        lambda u: (u - np.exp(u)).sum(axis=1), lambda u: u.sum(axis=1), np.log(rates),
        lambda u: {"rate": np.exp(u)}, lambda v: np.log(np.maximum(v["rate"], 1e-9)),
        {"rate": ("gamma", 2, 1)}, {"constraints": {"rate": "positive"}},
    )  # fmt: skip


def signs(rng, n_sites=5, rows=20):
    """Y ~ N(theta^2, 4): two modes at every site."""
    y = rng.normal(1.25**2, 2.0, size=(n_sites, rows))
    return Target(
        [lambda u, own=own: normal(own, u**2, 2.0).sum(axis=1) for own in y],
        lambda u: normal(u[:, 0], 0.0, 2.0), nothing, np.array([0.0]), lambda u: {"theta": u[..., 0]},
        lambda v: v["theta"].reshape(-1, 1), {"theta": ("normal", 0, 2)}, n_steps=3000,
        switches=lambda u, rng: u * rng.choice([-1.0, 1.0], size=(len(u), 1)),
    )  # fmt: skip


def eight_schools(rng):
    """Rubin's eight schools at four sites of two, school effects integrated out: mean and deviation of schools."""
    parts = np.split(EIGHT_SCHOOLS[rng.permutation(8)], 4)

    def likelihood(u, rows):
        variance = np.exp(2 * u[:, 1:]) + rows[:, 1] ** 2  # (n, 2)
        return (-0.5 * (rows[:, 0] - u[:, :1]) ** 2 / variance - 0.5 * np.log(variance)).sum(axis=1)

    return Target(
        [lambda u, rows=rows: likelihood(u, rows) for rows in parts],
        lambda u: normal(u[:, 0], 0.0, 20.0) - np.log(25 + np.exp(2 * u[:, 1])),  # half-Cauchy(5)
        lambda u: u[:, 1], np.array([5.0, 1.5]),
        lambda u: {"mu": u[..., 0], "tau": np.exp(u[..., 1])},
        lambda v: np.stack([v["mu"].ravel(), logarithm(v["tau"])], axis=1),
        {"mu": ("normal", 0, 20), "tau": ("half_cauchy", 5)}, {"constraints": {"tau": "positive"}},
        ranges=((-120.0, 120.0), (-8.0, 10.0)),
    )  # fmt: skip


def radon(rng, n_sites=5, counties=8):
    """Radon-like: 40 counties, 8 at each of 5 sites; the floor as covariate, county effects integrated out."""
    truth = np.array([1.5, -0.7, np.log(0.35), np.log(0.75)])  # intercept, floor, log deviations of counties and houses
    sums = []
    for _ in range(n_sites * counties):
        n = int(rng.integers(2, 25))
        floor = (rng.random(n) < 0.3).astype(float)
        y = truth[0] + np.exp(truth[2]) * rng.normal() + truth[1] * floor + np.exp(truth[3]) * rng.normal(size=n)
        sums.append([n, y.sum(), floor.sum(), y @ y, y @ floor, floor @ floor])
    parts = np.split(np.array(sums), n_sites)

    def likelihood(u, s):
        a, b = u[:, :1], u[:, 1:2]
        n, y, x, yy, xy, xx = s.T
        total = y - n * a - b * x  # sum of residuals (N, counties)
        squares = yy + n * a**2 + b**2 * xx - 2 * a * y - 2 * b * xy + 2 * a * b * x
        within, between = np.exp(2 * u[:, 3:4]), np.exp(2 * u[:, 2:3])
        whole = within + n * between
        quadratic = squares / within - between * total**2 / (within * whole)
        return (-0.5 * quadratic - 0.5 * (n - 1) * np.log(within) - 0.5 * np.log(whole)).sum(axis=1)

    return Target(
        [lambda u, s=s: likelihood(u, s) for s in parts],
        lambda u: normal(u[:, :2], 0.0, 5.0).sum(axis=1) - 0.5 * np.exp(2 * u[:, 2:]).sum(axis=1),  # half-normal(1)
        lambda u: u[:, 2:].sum(axis=1), truth,
        lambda u: {"a": u[..., 0], "b": u[..., 1], "tau": np.exp(u[..., 2]), "sigma": np.exp(u[..., 3])},
        lambda v: np.stack([v["a"].ravel(), v["b"].ravel(), logarithm(v["tau"]), logarithm(v["sigma"])], axis=1),
        {"a": ("normal", 0, 5), "b": ("normal", 0, 5), "tau": ("half_normal", 1), "sigma": ("half_normal", 1)},
        {"constraints": {"tau": "positive", "sigma": "positive"}},
    )  # fmt: skip


def mixture(rng, n_sites=5, rows=150):
    """Three Gaussians with unknown means, deviations and weights; labels switch between draws."""
    means, sds, weights = np.array([-3.0, 0.0, 3.0]), np.array([0.7, 0.9, 0.6]), np.array([0.3, 0.45, 0.25])
    z = rng.choice(3, p=weights, size=(n_sites, rows))
    y = rng.normal(means[z], sds[z])
    start = np.concatenate([means, np.log(sds), np.log(weights[:2] / weights[2])])

    def parts(u):
        ratios = np.concatenate([u[..., 6:], np.zeros((*u.shape[:-1], 1))], axis=-1)
        return u[..., :3], u[..., 3:6], ratios - np.logaddexp.reduce(ratios, axis=-1, keepdims=True)

    def likelihood(u, own):
        mu, log_sd, log_w = (part[:, :, None] for part in parts(u))
        return np.logaddexp.reduce(log_w - log_sd - 0.5 * ((own - mu) * np.exp(-log_sd)) ** 2, axis=1).sum(axis=1)

    def log_prior(u):
        mu, log_sd, log_w = parts(u)
        inside = np.where((np.diff(mu, axis=1) > 0).all(axis=1), 0.0, -np.inf)  # one labelling; others by symmetry
        return inside + (normal(mu, 0.0, 5.0) - 0.5 * (log_sd / 0.7) ** 2 - log_sd + log_w).sum(axis=1)

    def switch(u, rng):
        """Return the draws with labels of their own, which the prior cannot tell apart."""
        mu, log_sd, log_w = (part.copy() for part in parts(u))
        order = rng.permuted(np.tile(np.arange(3), (len(u), 1)), axis=1)
        mu, log_sd, log_w = (np.take_along_axis(part, order, axis=1) for part in (mu, log_sd, log_w))
        return np.concatenate([mu, log_sd, log_w[:, :2] - log_w[:, 2:]], axis=1)

    def variables(u):
        mu, log_sd, log_w = parts(u)
        return {"mu": mu, "sigma": np.exp(log_sd), "w": np.exp(log_w)}

    def coordinates(v):
        flat = {name: values.reshape(-1, 3) for name, values in v.items()}
        order = np.argsort(flat["mu"], axis=1)
        mu, sigma, w = (np.take_along_axis(flat[name], order, axis=1) for name in ("mu", "sigma", "w"))
        logs = np.log(np.maximum(w, 1e-9))
        return np.concatenate([mu, np.log(np.maximum(sigma, 1e-9)), logs[:, :2] - logs[:, 2:]], axis=1)

    return Target(
        [lambda u, own=own: likelihood(u, own) for own in y],
        log_prior, lambda u: u[:, 3:6].sum(axis=1) + parts(u)[2].sum(axis=1), start, variables, coordinates,
        {"mu": ("normal", 0, 5), "sigma": ("lognormal", 0, 0.7), "w": ("dirichlet", 2)},
        {"constraints": {"sigma": "positive", "w": "simplex"}, "exchangeable": ("mu", "sigma", "w")},
        switches=switch, n_steps=2000,
    )  # fmt: skip


def funnel(rng, n_sites=5, rows=2, k=4):
    """Neal's funnel with data: v ~ N(0, 2^2), theta_k ~ N(0, e^v), y ~ N(theta_k, 1); 5 sites of 2 rows for each."""
    theta = rng.normal(size=k)
    y = rng.normal(theta, 1.0, size=(n_sites, rows, k))

    def log_prior(u):
        return normal(u[:, 0], 0.0, 2.0) + (normal(u[:, 1:], 0.0, np.exp(0.5 * u[:, :1]))).sum(axis=1)

    return Target(
        [lambda u, own=own: normal(own, u[:, None, 1:], 1.0).sum(axis=(1, 2)) for own in y],
        log_prior, nothing, np.concatenate([[0.0], theta]),
        lambda u: {"v": u[..., 0], "theta": u[..., 1:]},
        lambda v: np.concatenate([v["v"].reshape(-1, 1), v["theta"].reshape(-1, k)], axis=1), {}, n_steps=6000,
    )  # fmt: skip


TUNING = {"gaussian": gaussian, "logistic": logistic, "gamma": gamma, "signs": signs}
"""Targets on which the default was chosen."""
REPORTED = {"eight_schools": eight_schools, "radon": radon, "mixture": mixture, "funnel": funnel}
"""Targets that did not shape it."""
