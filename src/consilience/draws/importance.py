"""Importance sampling of the posterior of all sites: points that every site's log density is asked at, and weights.

With u unconstrained coordinates, p_j the density of site j in its own parameters and c what all sites count once
(``priors``), the posterior of all data has the density

    log p(u) = sum_j (log p_j(theta(u)) + a log |d theta / d u|) - (J - 1) c(u) + constant,

a = 1, or 1/J where sites raised Jacobians too. Points come from proposals q_1, q_2, ..., one after another, each fitted
to the weighted points before it, and all points are weighted by the mixture of all proposals,

    w_i = p(u_i) / (1/R sum_r q_r(u_i)),

which is adaptive multiple importance sampling (Cornuet, Marin, Mira and Robert 2012). A proposal is half normal, half
Student's t of the same location and scale: weights stay bounded where tails are heavy, and few are lost in many
dimensions. The largest weights are smoothed by a generalised Pareto law, whose shape k says whether weights can be
trusted (Vehtari, Simpson, Gelman, Yao and Gabry 2024). Exact up to Monte Carlo error, whatever the shapes of the sites'
densities; it needs no draw of theirs but for where to begin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from consilience.checks import Array
from consilience.draws.diagnostics import MIN_CHAIN_LENGTH
from consilience.draws.draws import Draws
from consilience.draws.priors import CommonFactor, Term
from consilience.draws.relabel import assign_components, component_features
from consilience.draws.subposteriors import MIN_DRAWS_PER_COORDINATE, Subposteriors
from consilience.errors import InputError

N_POINTS = 2000
"""Points of a request. As many as the draws of a site in experiments/draws, where two requests gave what draws of the
full posterior have; chosen before that was measured."""
DEGREES_OF_FREEDOM = 5.0
"""Of Student's t: heavy tails, and a covariance. The customary value for proposals; others were not compared."""
MIN_EFFECTIVE_DRAWS = 400.0
"""Effective sample size below which a mean has no error that could be told (Vehtari et al. 2021, section 4)."""

_MAX_PARETO_K = 0.7
"""Shape above which errors of importance sampling cannot be told (Vehtari et al. 2024, section 3.2.4)."""
_TEMPERING_STEPS = 50
"""Halvings in search of a power of the weights: more than a double's digits need."""


@dataclass(frozen=True, eq=False)
class Proposal:
    """Mixture of a normal distribution and a Student's t, half each, of the same location and scale."""

    mean: Array  # (D,), location
    factor: Array  # (D, D), lower Cholesky factor of the scale

    @classmethod
    def of(cls, points: Array, weights: Array) -> Proposal:
        """Return the proposal with the moments of weighted points (n, D)."""
        mean = weights @ points
        centred = points - mean
        covariance = centred.T @ (weights[:, None] * centred)
        try:
            factor: Array = np.linalg.cholesky(covariance).astype(np.float64)
            return cls(mean, factor)
        except np.linalg.LinAlgError:
            text = f"do not vary in all {len(mean)} parameters"
            raise InputError("the fused draws", text, "fuse more draws of each site", "E-NUMBER") from None

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Return points (count, D): the first half from the normal law."""
        z = rng.standard_normal((count, len(self.mean)))
        tails = np.ones(count)
        half = count // 2
        tails[half:] = np.sqrt(rng.chisquare(DEGREES_OF_FREEDOM, count - half) / DEGREES_OF_FREEDOM)
        points: Array = self.mean + (z / tails[:, None]) @ self.factor.T
        return points

    def log_density(self, points: Array) -> Array:
        """Return the log density (n,) at points (n, D)."""
        d, nu = len(self.mean), DEGREES_OF_FREEDOM
        squares = np.sum(np.linalg.solve(self.factor, (points - self.mean).T) ** 2, axis=0)  # (n,)
        volume = np.log(np.diagonal(self.factor)).sum()
        normal = -0.5 * squares - 0.5 * d * np.log(2 * np.pi)
        student = gammaln((nu + d) / 2) - gammaln(nu / 2) - 0.5 * d * np.log(nu * np.pi)
        student = student - 0.5 * (nu + d) * np.log1p(squares / nu)
        result: Array = np.logaddexp(normal, student) - np.log(2.0) - volume
        return result


@dataclass(frozen=True, eq=False)
class Points:
    """Points of one request, and what sites answered."""

    proposal: Proposal  # where they come from
    values: Array  # (n, D), the points
    densities: Mapping[str, Array]  # (n,), log densities in the sites' own parameters, by site


@dataclass(frozen=True, eq=False)
class WeightedPoints:
    """Points of some requests with their weights."""

    stack: Subposteriors  # the sites, with their draws
    rounds: tuple[Points, ...]  # all requests that were answered, in order

    @cached_property
    def answered(self) -> tuple[str, ...]:
        """Sites whose densities count: those of the request with the most answers, the last one of such."""
        best = max(self.rounds, key=lambda one: len(one.densities))
        latest = [one for one in self.rounds if len(one.densities) == len(best.densities)][-1]
        return tuple(sorted(latest.densities))

    @cached_property
    def used(self) -> tuple[Points, ...]:
        """The requests that all of these sites answered.

        A site's density is known up to a constant, so that points with densities of other sites cannot be compared.
        """
        return tuple(one for one in self.rounds if set(self.answered) <= set(one.densities))

    @property
    def standing_in(self) -> tuple[str, ...]:
        """Sites in whose place the Gaussian of their draws stands."""
        return tuple(name for name in self.stack.names if name not in self.answered)

    @cached_property
    def points(self) -> Array:
        """All points in use (n, D)."""
        return np.concatenate([one.values for one in self.used])

    @cached_property
    def raw_log_weights(self) -> Array:
        """Logarithms of w (n,), the largest 0; -inf outside of the posterior."""
        total = np.zeros(len(self.points))
        with np.errstate(invalid="ignore"):
            for number, name in enumerate(self.stack.names):
                if name in self.answered:
                    total = total + np.concatenate([one.densities[name] for one in self.used])
                    total = total + self._jacobian_power * self._log_jacobian
                else:
                    centred = self.points - self.stack.means[number]
                    total -= 0.5 * np.einsum("na,ab,nb->n", centred, self.stack.precisions[number], centred)
            total = total - (self.stack.n_sites - 1) * self.stack.factor.value(self.points)
        proposals = [one.proposal.log_density(self.points) for one in self.used]
        total = total - logsumexp(proposals, axis=0) + np.log(len(proposals))
        is_own = own_labels(self.stack.sites[0], self.points, self.stack)
        total = np.where(is_own & ~np.isnan(total), total, -np.inf)
        if not np.any(total > -np.inf):
            text = "are -inf at all points, so that nothing could be weighed"
            raise InputError("the sites' log densities", text, code="E-NUMBER")
        return total - total.max()

    @property
    def _jacobian_power(self) -> float:
        first = self.stack.sites[0]
        is_shared = first.jacobian == "shared" and not isinstance(first.prior, dict)
        return 1.0 / self.stack.n_sites if is_shared else 1.0

    @cached_property
    def _log_jacobian(self) -> Array:
        first = self.stack.sites[0]
        terms = tuple(Term(part, shape, constraint) for _, part, shape, constraint in first.parts())
        return CommonFactor(terms, self.stack.n_coordinates).value(self.points)

    @cached_property
    def smoothed(self) -> tuple[Array, float]:
        """Smoothed weights (n,), which sum to 1, and the Pareto shape k of the largest."""
        logs, k = pareto_smoothed(self.raw_log_weights)
        return np.exp(logs - logsumexp(logs)), k

    @property
    def weights(self) -> Array:
        """Smoothed weights (n,), which sum to 1."""
        return self.smoothed[0]

    @property
    def effective_size(self) -> float:
        """1 / sum w^2: independent draws that would tell as much."""
        return float(1.0 / np.sum(self.weights**2))

    @property
    def pareto_k(self) -> float:
        """Shape of the Pareto distribution of the largest weights."""
        return self.smoothed[1]

    @property
    def is_reliable(self) -> bool:
        """Whether errors of weighted means can be estimated, and are small."""
        return self.pareto_k <= largest_shape(len(self.points)) and self.effective_size >= MIN_EFFECTIVE_DRAWS

    def next_proposal(self) -> Proposal:
        """Return the proposal with the moments of the weighted points, weights tempered where few points have them."""
        least = max(MIN_CHAIN_LENGTH, MIN_DRAWS_PER_COORDINATE * self.stack.n_coordinates)
        return Proposal.of(self.points, tempered(self.raw_log_weights, self.weights, float(least)))

    def resampled(self, count: int, rng: np.random.Generator) -> Array:
        """Return draws (count, D): every point as often as its weight says, up to rounding, in random order."""
        places = (np.arange(count) + rng.random()) / count
        chosen = np.searchsorted(np.cumsum(self.weights), places).clip(max=len(self.weights) - 1)
        return self.points[rng.permutation(chosen)]


def own_labels(draws: Draws, points: Array, stack: Subposteriors) -> NDArray[np.bool_]:
    """Return which points (n,) number exchangeable components as all sites' draws do; all where there are none.

    The posterior of a mixture has a copy of itself for every numbering. Of these cells one is sampled: the points whose
    components are nearest to the centres of the same number.
    """
    if not draws.exchangeable:
        return np.ones(len(points), dtype=bool)
    features = [component_features(site, site.exchangeable) for site in stack.sites]  # (C, T, K, p) each
    flat = np.concatenate([one.reshape(-1, *one.shape[2:]) for one in features])
    centres, deviations = flat.mean(axis=0), flat.std(axis=0).mean(axis=0)
    drawn = replace(draws, variables=draws.from_unconstrained(points), diverging=None)
    own = component_features(drawn, draws.exchangeable)[0] / deviations
    labels = assign_components(own, centres / deviations)
    return np.all(labels == np.arange(labels.shape[1]), axis=1)


def tempered(log_weights: Array, weights: Array, least: float) -> Array:
    """Return weights (n,), or those to the power below 1 at which their effective number is `least`."""
    if 1.0 / np.sum(weights**2) >= least:
        return weights
    low, high = 0.0, 1.0
    inside = np.where(log_weights > -np.inf, log_weights, 0.0)
    tempered_weights = weights
    for _ in range(_TEMPERING_STEPS):
        power = 0.5 * (low + high)
        flattened = np.where(log_weights > -np.inf, np.exp(power * inside), 0.0)
        flattened = flattened / flattened.sum()
        if 1.0 / np.sum(flattened**2) >= least:
            low, tempered_weights = power, flattened
        else:
            high = power
    return tempered_weights


def largest_shape(count: int) -> float:
    """Return the Pareto shape up to which means of so many weighted points can be trusted."""
    return min(1.0 - 1.0 / np.log10(max(count, 20)), _MAX_PARETO_K)


def pareto_smoothed(log_weights: Array) -> tuple[Array, float]:
    """Return log weights whose largest are replaced by quantiles of a fitted Pareto distribution, and its shape.

    The M = min(n / 5, 3 sqrt n) largest are smoothed (Vehtari et al. 2024, section 2.3); -inf where too few are apart.
    """
    n = len(log_weights)
    count = int(np.ceil(min(0.2 * n, 3.0 * np.sqrt(n))))
    order = np.argsort(log_weights, kind="stable")
    tail = order[n - count :]
    largest = float(log_weights.max())
    cutoff = max(float(log_weights[order[n - count - 1]]), largest + float(np.log(np.finfo(np.float64).tiny)))
    is_above = log_weights[tail] > cutoff
    if np.sum(is_above) < 5:
        return log_weights, float("-inf")
    tail = tail[is_above]
    exceedances = np.exp(log_weights[tail] - largest) - np.exp(cutoff - largest)  # ascending
    shape, scale = fit_generalised_pareto(exceedances)
    if not np.isfinite(shape):
        return log_weights, shape
    ranks = (np.arange(len(tail)) + 0.5) / len(tail)
    quantiles = scale * np.expm1(-shape * np.log1p(-ranks)) / shape if shape != 0 else -scale * np.log1p(-ranks)
    smoothed = log_weights.copy()
    smoothed[tail] = np.minimum(np.log(quantiles + np.exp(cutoff - largest)), 0.0) + largest
    return smoothed, shape


def fit_generalised_pareto(ascending: Array) -> tuple[float, float]:
    """Return shape k and scale of the generalised Pareto distribution of exceedances, ascending.

    The estimator of Zhang and Stephens (2009), with the weak prior on k of Vehtari et al. (2024, appendix G).
    """
    n = len(ascending)
    n_candidates = 30 + int(np.sqrt(n))
    candidates = 1.0 - np.sqrt(n_candidates / (np.arange(1, n_candidates + 1) - 0.5))
    candidates = candidates / (3.0 * ascending[int(n / 4.0 + 0.5) - 1]) + 1.0 / ascending[-1]
    shapes = np.log1p(-candidates[:, None] * ascending).mean(axis=1)
    profile = n * (np.log(-candidates / shapes) - shapes - 1.0)
    weights = np.exp(profile - logsumexp(profile))
    chosen = float(weights @ candidates)
    shape = float(np.log1p(-chosen * ascending).mean())
    return (n * shape + 10.0 * 0.5) / (n + 10.0), -shape / chosen


def start_proposal(fused: Draws) -> Proposal:
    """Return the proposal with the moments of fused draws."""
    flat = fused.unconstrained.reshape(fused.n_draws, -1)
    return Proposal.of(flat, np.full(len(flat), 1.0 / len(flat)))
