"""The virtual loss: what a fused mixture loses against keeping all sites' mixtures side by side, without data.

    VL = KL(c || f) = E_{x ~ c}[log c(x) - log f(x)]  in nats per observation,

with c = sum_l w_l p_l the concatenation, w_l the observations' shares and p_l the density of data at the posterior mean
of component l, and f the mixture of the groups' moments. Components in no group stay in c: to lose them is a loss. It
is estimated from draws of c, the same for all matchings, so that their differences are known better than they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from consilience.checks import Array, Labels
from consilience.families.base import Family
from consilience.families.chunks import CHUNK_BYTES as PART_BYTES
from consilience.families.chunks import row_chunks
from consilience.families.linalg import log_gaussians
from consilience.matching.groups import carried_sums
from consilience.posteriors.ensemble import Ensemble, Stack
from consilience.posteriors.evidence.search import steady_order
from consilience.posteriors.posterior import shares_of

N_DRAWS = 2000
"""Draws of the concatenation: standard errors of 0.004 nats where the loss is small, 0.03 where it is 1."""
N_FIRST_DRAWS = 250
"""Draws that tell a clear loss: each costs the density of all components."""
N_FURTHER_DRAWS = 10_000
"""Draws where a choice would be within its standard error."""
CHUNK_BYTES = 2**26
"""Memory of whitened differences that would be held at once: 64 MiB, chosen by hand."""
MAX_DENSE_ROWS = 6000
"""Components up to which moments are products with a dense matrix of rows and groups: as many as are searched."""
NOISE_SHARE = 0.25
"""Share of the noise of local fits that a loss must exceed. Of 0, 1/4, 1/2 and 1, chosen on the first half of
experiments/battery, before each site's prior counted once in all: 2 wrong alarms for 7 without it, 12 right ones of 18
for 15."""


@dataclass(frozen=True, eq=False)
class VirtualLoss:
    """Losses of matchings of one set of Gaussian components, all by the same draws."""

    means: Array  # (L, D)
    covariances: Array  # (L, D, D), or variances of independent dimensions (L, D)
    weights: Array  # observations behind each component (L,), in any unit
    n_draws: int = N_DRAWS
    unit_of_row: Labels | None = None  # what is matched, where components are parts of it (L,)
    describes_data: bool = True  # else densities are of parameters, and a loss is in no unit that a user knows
    order: Labels | None = None  # rows in the order in which they are drawn from (L,), on which draws depend

    def noise_of_component(self, n_observations: float) -> float:
        """Return what one more component gains by the noise of local fits, p / (4 N), in nats per observation."""
        dim = self.means.shape[1]
        n_parameters = 2 * dim if self.covariances.ndim == 2 else dim * (dim + 3) // 2
        return NOISE_SHARE * n_parameters / n_observations

    @cached_property
    def _centre(self) -> Array:
        """Mean of the means (D,), taken off everywhere, so that densities lose no digits far from the origin."""
        return self.means.mean(axis=0)

    @cached_property
    def _centred_means(self) -> Array:
        """Means less their mean (L, D)."""
        return self.means - self._centre

    @cached_property
    def _shares(self) -> Array:
        """Weights of the concatenation (L,)."""
        return shares_of(self.weights)

    @cached_property
    def _drawn(self) -> tuple[Labels, Array]:
        """Which component each draw is of (n,), and the draws (n, D): fixed, for no seed may change a matching."""
        rng = np.random.default_rng(0)
        order = np.arange(len(self._shares)) if self.order is None else self.order
        places = np.searchsorted(np.cumsum(self._shares[order]), rng.random(self.n_draws), side="right")
        rows = order[np.minimum(places, len(order) - 1)]
        noise = rng.standard_normal((self.n_draws, self.means.shape[1]))
        centred = self.means[rows] - self._centre
        if self.covariances.ndim == 2:
            return rows, centred + noise * np.sqrt(self.covariances[rows])
        used, which = np.unique(rows, return_inverse=True)
        factors = np.linalg.cholesky(self.covariances[used])
        return rows, centred + np.einsum("nij,nj->ni", factors[which], noise)

    @property
    def rows_of_draws(self) -> Labels:
        """Which component each draw is of (n,)."""
        return self._drawn[0]

    @cached_property
    def _log_concatenation(self) -> Array:
        """Log c of every draw (n,)."""
        return _log_density(self._drawn[1], self._centred_means, self.covariances, self._shares)

    def by_draw(self, labels: Labels) -> Array:
        """Return log c - log f of every draw (n,) for the groups of a matching; -1 is in none."""
        return self._log_concatenation - self._log_fused(labels)

    def differences(self, labels: Labels, others: Labels) -> Array:
        """Return by how much a matching loses more than another at every draw (n,), for which c is not needed."""
        return self._log_fused(others) - self._log_fused(labels)

    def grown(self, labels: Labels, rows: Labels, groups: Labels) -> Labels:
        """Return the matching with rows (n,) put one by one into the groups (n,) where f gains by it."""
        labels = labels.copy()
        means, covariances, mass = self._moments(labels)  # (G, D), (G, D, D) or (G, D), (G,)
        used = mass > 0  # groups without observations have no density
        means, covariances, mass = means[used], covariances[used], mass[used]
        number = np.where(used, np.cumsum(used) - 1, -1)
        log_parts = log_gaussians(self._drawn[1], means, covariances) + np.log(mass)  # (n, G)
        best = float(logsumexp(log_parts, axis=1).mean() - np.log(mass.sum()))
        for row, label in zip(rows.tolist(), groups.tolist(), strict=True):
            group = int(number[label])
            if group < 0 or self._shares[row] == 0.0:  # a component of no observations changes nothing
                continue
            total = mass[group] + self._shares[row]
            share = self._shares[row] / total
            offset = self._centred_means[row] - means[group]
            spread = offset**2 if covariances.ndim == 2 else np.outer(offset, offset)
            mean = means[group] + share * offset
            covariance = (1.0 - share) * covariances[group] + share * self.covariances[row]
            covariance += share * (1.0 - share) * spread
            before = log_parts[:, group].copy()
            log_parts[:, group] = log_gaussians(self._drawn[1], mean[None], covariance[None])[:, 0] + np.log(total)
            value = float(logsumexp(log_parts, axis=1).mean() - np.log(mass.sum() + self._shares[row]))
            if value > best:
                best, labels[row] = value, label
                means[group], covariances[group], mass[group] = mean, covariance, total
            else:
                log_parts[:, group] = before
        return labels

    def _log_fused(self, labels: Labels) -> Array:
        """Return log f of every draw (n,)."""
        means, covariances, mass = self._moments(labels if self.unit_of_row is None else labels[self.unit_of_row])
        used = mass > 0
        return _log_density(self._drawn[1], means[used], covariances[used], mass[used] / mass.sum())

    def _moments(self, labels: Labels) -> tuple[Array, Array, Array]:
        """Return means (G, D), covariances and masses (G,) of the groups of a matching (L,)."""
        n_groups = int(labels.max()) + 1
        if len(labels) > MAX_DENSE_ROWS:
            return self._moments_in_chunks(labels, n_groups)
        rows = np.flatnonzero(labels >= 0)
        shares = np.zeros((n_groups, len(labels)))  # (G, L), summing to one in each group below
        shares[labels[rows], rows] = self._shares[rows]
        mass = shares.sum(axis=1)
        shares /= np.where(mass > 0, mass, 1.0)[:, None]
        means = shares @ self._centred_means
        deviations = self._centred_means[rows] - means[labels[rows]]
        if self.covariances.ndim == 2:
            spread = np.zeros_like(self.covariances)
            spread[rows] = deviations**2
            covariances = shares @ (self.covariances + spread)
        else:
            dim = means.shape[1]
            spread = self.covariances.copy()
            spread[rows] += deviations[:, :, None] * deviations[:, None, :]
            covariances = (shares @ spread.reshape(len(labels), -1)).reshape(-1, dim, dim)
        return means, covariances, mass

    def _moments_in_chunks(self, labels: Labels, n_groups: int) -> tuple[Array, Array, Array]:
        """Return ``_moments`` without arrays of all rows and groups, or of all rows once more."""
        is_in, dim = labels >= 0, self.means.shape[1]
        mass: Array = np.bincount(labels[is_in], weights=self._shares[is_in], minlength=n_groups).astype(np.float64)
        scale = np.where(mass > 0, mass, 1.0)[:, None]

        def means_of(terms: Callable[[slice], Array], width: int) -> Array:
            sums = np.zeros((n_groups, width))
            for rows in row_chunks(len(labels), width):
                sums = carried_sums(sums, self._shares[rows, None] * terms(rows), labels[rows])
            return sums / scale

        means = means_of(lambda rows: self.means[rows] - self._centre, dim)

        def squares(rows: slice) -> Array:
            deviations = self.means[rows] - self._centre - means[labels[rows]]  # those of -1 are in no sum
            if self.covariances.ndim == 2:
                return self.covariances[rows] + deviations**2
            return (self.covariances[rows] + deviations[:, :, None] * deviations[:, None, :]).reshape(-1, dim * dim)

        covariances = means_of(squares, dim ** (self.covariances.ndim - 1))
        return means, covariances.reshape(-1, *self.covariances.shape[1:]), mass

    def of_mixture(self, means: Array, covariances: Array, weights: Array) -> Array:
        """Return log c - log f of every draw (n,) for a mixture f of components as this one's, with weights (G,)."""
        log_mixture = _log_density(self._drawn[1], means - self._centre, covariances, shares_of(weights))
        return self._log_concatenation - log_mixture

    def of_sites(self, offsets: Labels, shares: Array) -> Array:
        """Return log c - log p_j of every draw (J, n) for the mixtures p_j of sites' rows.

        Rows of a site lie between two of the offsets (J + 1,); their shares (L,) in it may be of any scale.
        """
        sites = [slice(*ends) for ends in pairwise(offsets.tolist())]
        return np.stack([self.of_mixture(self.means[site], self.covariances[site], shares[site]) for site in sites])

    def __call__(self, labels: Labels) -> tuple[float, float]:
        """Return the loss of a matching in nats per observation, and its standard error."""
        return mean_and_error(self.by_draw(labels))


def mean_and_error(values: Array) -> tuple[float, float]:
    """Return the mean of draws, and its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5)


def _log_density(points: Array, means: Array, covariances: Array, weights: Array) -> Array:
    """Return the log density (n,) of a mixture of Gaussians."""
    log_weights = np.log(np.maximum(weights, np.finfo(np.float64).tiny))
    # Matrices are factorised once for each chunk.
    n_rows = max(1, CHUNK_BYTES // (8 * len(means) * points.shape[1]))
    if covariances.ndim == 2:
        n_rows = max(1, PART_BYTES // (8 * len(means)))
    chunks = (points[start : start + n_rows] for start in range(0, len(points), n_rows))
    return np.concatenate(
        [logsumexp(log_gaussians(chunk, means, covariances) + log_weights, axis=1) for chunk in chunks]
    )


def likelihood_stack(ensemble: Ensemble) -> tuple[Stack, Labels]:
    """Return what the sites' data say about their components (L', P), and the rows of the ensemble that they are (L',).

    Sites' priors are taken off, since they are no evidence: one that all sites share would make unlike components
    alike. A component whose data alone do not make a member of the family, or say less than is ``enough`` to be judged
    by, is left out; where that would be at least half of them, priors stay.
    """
    family, natural = ensemble.family.evidence_form(ensemble.natural)
    stack = Stack(family, natural, ensemble.offsets, ensemble.row_weights)
    # Families whose evidence form is another one (points, say) state no prior in that form.
    priors = [posterior.prior for posterior in ensemble.unordered]
    if family == ensemble.family and all(prior is not None for prior in priors):
        site_priors = np.stack([prior for prior in priors if prior is not None])[ensemble.owner]  # (L, P)
        without_prior, is_judged = _without_priors(stack, site_priors)
        if 2 * is_judged.sum() > len(is_judged):
            rows = np.flatnonzero(is_judged)
            return without_prior.take(rows), rows
    return stack, np.arange(len(natural))


def _without_priors(stack: Stack, site_priors: Array) -> tuple[Stack, NDArray[np.bool_]]:
    """Return components without their sites' priors (L, P), and which of them say enough to be judged (L,)."""
    family = stack.family
    without_prior = family.without_prior(stack.natural, site_priors)
    improper = {row for row, _ in family.check(without_prior)}
    is_judged = np.array([row not in improper for row in range(len(without_prior))], dtype=bool)
    is_judged[is_judged] = np.all(family.information(without_prior[is_judged]) >= family.enough, axis=1)
    return replace(stack, natural=without_prior), is_judged


def virtual_loss_of(ensemble: Ensemble, rows: Labels | None = None) -> VirtualLoss | None:
    """Return the virtual losses of matchings of components; None for families without densities of data.

    Components are all, or those of some `rows` (n,), ascending. They count by ``observation_weights``, and are drawn
    from in an order that tiny changes do not change.
    """
    chosen = slice(None) if rows is None else rows
    densities = _densities(ensemble.family, ensemble.natural[chosen])
    if densities is None:
        return None
    order = steady_order(ensemble.natural, ensemble.owner)
    if rows is not None:
        order = np.argsort(np.argsort(order)[rows])
    weights, describes_data = observation_weights(ensemble)[chosen], ensemble.family.describes_data
    return VirtualLoss(*densities, weights, describes_data=describes_data, order=order)


def _densities(family: Family, natural: Array) -> tuple[Array, Array] | None:
    """Return the means and covariances (or variances) of rows (L, P), one chunk after another; None without."""
    chunks = list(row_chunks(len(natural), natural.shape[1]))
    parts = family.plug_in(natural[chunks[0]]) if chunks else None
    if parts is None or len(chunks) == 1:
        return parts
    means, covariances = (np.empty((len(natural), *part.shape[1:])) for part in parts)
    for rows in chunks:
        parts = family.plug_in(natural[rows])
        assert parts is not None  # noqa: S101  (the first rows had them)
        means[rows], covariances[rows] = parts
    return means, covariances


def observation_weights(ensemble: Ensemble) -> Array:
    """Return the observations behind all components (L,), in any unit: their counts times the weights of their sites.

    Where sites state no counts, their mixture weights, or all alike.
    """
    mass = ensemble.column("counts")
    if mass is None:
        mass = ensemble.column("weights")
    if mass is None or mass.sum() <= 0:
        mass = np.ones(len(ensemble.natural))
    return mass * ensemble.row_weights
