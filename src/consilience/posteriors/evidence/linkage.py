"""More components than evidence asks for: known non-matches, average linkage, and Runnalls' reduction.

Evidence learns how much copies differ between sites from the matching that it judges. Where that matching is wrong, so
is the heterogeneity, and wrong merges cost nothing. One thing is known beforehand: two components of one site are
certainly different (Fellegi and Sunter 1969: a sample of certain non-matches). With Bhattacharyya's distance of
components as Gaussians,

    B(k, l) = (1/8) d' S^-1 d + (1/2) log(|S| / sqrt(|S_k| |S_l|)),    S = (S_k + S_l) / 2,  d = m_k - m_l,

the log distance of a component to the nearest other one of its own site, b_l, says how near different components come;
that to the nearest one of another site s, x_ls, is either that of a copy or as far. So the x are a mixture

    x ~ p N(m, v) + (1 - p) f0,    f0 = N(median b, (1.48 MAD b)^2), constant beyond its centre,

fitted by expectation maximisation. Two components are linked below the distance at which a copy is three times as
probable; groups are those of average linkage below it in which no site is twice. Where a mixture is hardly likelier
than f0 alone, or of few non-matches, nothing can be told from parameters.

What is linked is judged by the virtual loss against what evidence has selected; then the smallest number of components
is taken that loses hardly more, by linkage or by Runnalls' (2007) reduction: the pair is merged by moments whose
merging has the least upper bound on what it costs, (1/2) [w log|S| - w_k log|S_k| - w_l log|S_l|].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import logsumexp

from consilience.checks import Array, Labels
from consilience.families.linalg import log_determinants_of_many
from consilience.matching.agglomeration import AgglomerationPath, agglomerate
from consilience.matching.groups import GroupSums, consecutive
from consilience.matching.site_by_site import ValuedGroups
from consilience.posteriors.evidence.virtual_loss import VirtualLoss, mean_and_error

MAX_LINKED_ROWS = 1000
"""Components up to which linkage is tried: its cost grows with their third power. Above, evidence alone decides."""
MIN_NON_MATCHES = 6
"""Non-matches, one a component, below which their distribution says nothing. Chosen on experiments/battery's half for
tuning, as are the next four."""
MIN_LOG_LIKELIHOOD_GAIN = 3.0
"""Nats by which distances are likelier with copies than without: two parameters and a share, by AIC."""
MIN_DEVIATION = 0.3
"""Standard deviation of the log distance of copies at least, so that no pair of them is a copy for itself."""
LINK_ODDS = 3.0
"""Odds of a copy below which components are not linked."""
MIN_LOSS, MIN_LOSS_SHARE, N_ERRORS = 0.1, 0.25, 2.0
"""What evidence's matching must lose more, in nats per observation, in its own loss, in standard errors of the
difference: as between the two priors (``selection``)."""
MAX_FURTHER_LOSS = 0.05
"""Nats per observation that fewer components may lose against the linked ones."""
EM_STEPS = 200
"""Steps of one fit: a bound, for most settle within 50."""
FIRST_QUANTILES = (0.05, 0.2, 0.4, 0.6)
"""Quantiles of the distances that copies are first supposed at."""
DETERMINANT_BYTES = 2**24
"""Memory of the matrices whose determinants are taken at once: 16 MiB, chosen by hand."""


@dataclass(frozen=True, eq=False)
class MomentGroups(ValuedGroups):
    """Minus the entropy that merging by moments adds: a ``ValuedObjective``, whatever site components are of."""

    means: Array  # (L, D), centred
    covariances: Array  # (L, D, D), or variances (L, D)
    weights: Array  # positive (L,), of sum one

    @cached_property
    def pieces(self) -> Array:
        """Weights, weighted means and weighted second moments (L, 1 + D + D^2), or (L, 1 + 2 D) of variances."""
        outer = self.means[:, :, None] * self.means[:, None, :] if self.covariances.ndim == 3 else self.means**2
        second = (self.covariances + outer).reshape(len(self.means), -1)
        return self.weights[:, None] * np.concatenate([np.ones((len(second), 1)), self.means, second], axis=1)

    @property
    def offsets(self) -> Labels:
        """Every component is by itself: any two may become one."""
        return np.arange(len(self.means) + 1)

    def value(self, groups: GroupSums) -> Array:
        """Return -(1/2) w log|S| of groups (n,)."""
        dim, weights = self.means.shape[1], groups.sums[:, 0]
        means = groups.sums[:, 1 : 1 + dim] / weights[:, None]
        second = groups.sums[:, 1 + dim :] / weights[:, None]
        if self.covariances.ndim == 2:
            log_determinants = np.log(np.maximum(second - means**2, np.finfo(np.float64).tiny)).sum(axis=1)
        else:
            covariances = second.reshape(-1, dim, dim) - means[:, :, None] * means[:, None, :]
            log_determinants = log_determinants_of_many(np.ascontiguousarray(covariances.transpose(1, 2, 0)))
        return np.asarray(-0.5 * weights * log_determinants)


@dataclass(frozen=True, eq=False)
class Reduction:
    """Runnalls' reduction of the components of a virtual loss that have observations, or of some of them."""

    loss: VirtualLoss
    among: Labels | None = None  # their numbers; None for all

    @cached_property
    def _rows(self) -> Labels:
        rows = np.flatnonzero(self.loss.weights > 0)
        return rows if self.among is None else np.intersect1d(rows, self.among)

    @cached_property
    def _path(self) -> AgglomerationPath:
        loss, rows = self.loss, self._rows
        means = loss.means[rows] - loss.means[rows].mean(axis=0)
        groups = MomentGroups(means, loss.covariances[rows], loss.weights[rows] / loss.weights[rows].sum())
        return agglomerate(groups, np.arange(len(rows)))

    def labels(self, n_groups: int) -> Labels | None:
        """Return the matching (L,) of so many groups, other components -1; None without such a one."""
        if not 1 <= n_groups <= len(self._rows):
            return None
        labels = np.full(len(self.loss.means), -1)
        labels[self._rows] = self._path.labels(len(self._rows) - n_groups)
        return labels


def log_distances(means: Array, covariances: Array) -> Array:
    """Return the logarithms of Bhattacharyya's distances (L, L) of Gaussians (L, D), (L, D, D) or variances (L, D)."""
    if covariances.ndim == 2:
        covariances = covariances[:, :, None] * np.eye(means.shape[1])
    n_rows, dim = means.shape
    by_entry = np.ascontiguousarray(covariances.transpose(1, 2, 0))  # (D, D, L)
    log_determinants = log_determinants_of_many(by_entry.copy())
    distances = np.zeros((n_rows, n_rows))
    first, second = np.triu_indices(n_rows, 1)
    step = max(1, DETERMINANT_BYTES // (8 * dim * dim))
    for start in range(0, len(first), step):
        a, b = first[start : start + step], second[start : start + step]
        pooled = 0.5 * (by_entry[:, :, a] + by_entry[:, :, b])
        offsets = (means[a] - means[b]).T  # (D, n)
        spread = pooled + offsets[:, None] * offsets[None, :]
        of_pooled = log_determinants_of_many(pooled)
        # |S + d d'| = |S| (1 + d' S^-1 d)
        squares = np.expm1(np.clip(log_determinants_of_many(spread) - of_pooled, 0.0, MAX_LOG_SQUARE))
        distances[a, b] = 0.125 * squares + 0.5 * (of_pooled - 0.5 * (log_determinants[a] + log_determinants[b]))
    distances += distances.T
    return np.asarray(np.log(np.maximum(distances, SMALLEST_DISTANCE)))


MAX_LOG_SQUARE = 600.0
"""Logarithm of the squared distance that is told from greater ones."""
SMALLEST_DISTANCE = float(np.finfo(np.float64).eps)
"""Distance below which two components are the same."""


def link_distance(distances: Array, owner: Labels) -> float | None:
    """Return the log distance below which components are linked; None where that cannot be told.

    `distances` (L, L) are logarithms, `owner` (L,) the site of each component.
    """
    n_sites, is_own = int(owner.max()) + 1, owner[:, None] == owner
    own = np.where(is_own & ~np.eye(len(owner), dtype=np.bool_), distances, np.inf).min(axis=1)
    non_matches = own[np.isfinite(own)]
    if len(non_matches) < MIN_NON_MATCHES:
        return None
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    nearest = np.minimum.reduceat(distances, starts, axis=1)  # (L, J): to each site
    between = nearest[owner[:, None] != owner[starts]]
    if n_sites < 2 or not between.size:
        return None
    centre = float(np.median(non_matches))
    deviation = max(1.4826 * float(np.median(np.abs(non_matches - centre))), MIN_DEVIATION)

    def log_non_match(x: Array) -> Array:
        return -0.5 * (np.minimum(x - centre, 0.0) / deviation) ** 2 - np.log(deviation)

    log_f0 = log_non_match(between)
    fits = [_fitted_copies(between, log_f0, float(np.quantile(between, q))) for q in FIRST_QUANTILES]
    value, share, mean, spread = max(fits, key=lambda fit: fit[0])
    if value < float(log_f0.sum()) + MIN_LOG_LIKELIHOOD_GAIN or mean >= centre:
        return None
    grid = np.linspace(mean, centre, 200)
    log_odds = np.log(share / (1.0 - share)) - 0.5 * ((grid - mean) / spread) ** 2 - np.log(spread)
    is_copy = log_odds - log_non_match(grid) >= np.log(LINK_ODDS)
    return float(grid[np.flatnonzero(is_copy)[-1]]) if is_copy.any() else None


def _fitted_copies(x: Array, log_f0: Array, mean: float) -> tuple[float, float, float, float]:
    """Return the log likelihood of distances (n,) with copies, and the share, mean and deviation of these."""
    share, spread = 0.5, 1.0
    for _ in range(EM_STEPS):
        log_f1 = -0.5 * ((x - mean) / spread) ** 2 - np.log(spread)
        log_both = np.stack([np.log(share) + log_f1, np.log1p(-share) + log_f0])
        total = logsumexp(log_both, axis=0)
        is_copy = np.exp(log_both[0] - total)
        mass = max(float(is_copy.sum()), np.finfo(np.float64).tiny)
        new_mean = float(is_copy @ x) / mass
        is_settled = abs(new_mean - mean) < SETTLED
        mean, spread = new_mean, max(float(np.sqrt(is_copy @ (x - new_mean) ** 2 / mass)), MIN_DEVIATION)
        share = float(np.clip(mass / len(x), MIN_SHARE, 1.0 - MIN_SHARE))
        if is_settled:
            break
    return float(total.sum()), share, mean, spread


SETTLED = 1e-6
"""Change of the mean log distance of copies below which a fit has settled."""
MIN_SHARE = 1e-3
"""Share of copies, and of others, at least."""


def average_linkage(distances: Array, owner: Labels) -> tuple[list[tuple[int, int]], list[float]]:
    """Return the merges of average linkage in which no site is twice, and their mean distances.

    `distances` (L, L) are those whose means are compared; the second group of a merge goes into the first.
    """
    means = distances.copy()
    np.fill_diagonal(means, np.inf)
    holds = np.zeros((len(owner), int(owner.max()) + 1), dtype=np.bool_)
    holds[np.arange(len(owner)), owner] = True
    is_free = owner[:, None] != owner
    sizes, alive = np.ones(len(owner)), np.ones(len(owner), dtype=np.bool_)
    merges, heights = list[tuple[int, int]](), list[float]()
    nearest = np.where(is_free, means, np.inf)  # what may be merged
    while True:
        a, b = divmod(int(nearest.argmin()), len(owner))
        if not np.isfinite(nearest[a, b]):
            return merges, heights
        merges.append((a, b))
        heights.append(float(nearest[a, b]))
        means[a] = means[:, a] = (sizes[a] * means[a] + sizes[b] * means[b]) / (sizes[a] + sizes[b])
        sizes[a] += sizes[b]
        holds[a] |= holds[b]
        alive[b] = False
        nearest[b], nearest[:, b] = np.inf, np.inf
        row = np.where(alive & ~(holds & holds[a]).any(axis=1), means[a], np.inf)
        row[a] = np.inf
        nearest[a], nearest[:, a] = row, row


@dataclass(frozen=True, eq=False)
class Linkage:
    """Average linkage of the components of a virtual loss that have observations."""

    loss: VirtualLoss
    rows: Labels  # of the loss (n,)
    merges: list[tuple[int, int]]
    n_linked: int  # merges below the distance of copies

    @classmethod
    def of(cls, loss: VirtualLoss, owner: Labels, rows: Labels) -> Linkage | None:
        """Return that of some rows of a loss, whose components are of the sites `owner` (L,); None if not known."""
        if not 1 < len(rows) <= MAX_LINKED_ROWS:
            return None
        sites = np.unique(owner[rows], return_inverse=True)[1]
        centred = loss.means[rows] - loss.means[rows].mean(axis=0)
        logarithms = log_distances(centred, loss.covariances[rows])
        limit = link_distance(logarithms, sites)
        if limit is None:
            return None
        merges, heights = average_linkage(np.exp(logarithms), sites)
        # Heights of average linkage under a constraint may fall again: what follows a link that is too long is none.
        is_short = np.array(heights) < np.exp(limit)
        n_linked = len(merges) if is_short.all() else int(np.argmin(is_short))
        return cls(loss, rows, merges, n_linked)

    @property
    def n_groups(self) -> int:
        """Number of linked groups."""
        return len(self.rows) - self.n_linked

    def labels(self, n_groups: int) -> Labels | None:
        """Return the matching (L,) of so many groups, other rows -1; None without such a one."""
        n_merges = len(self.rows) - n_groups
        if not 0 <= n_merges <= len(self.merges):
            return None
        becomes = np.arange(len(self.rows))
        for into, other in self.merges[:n_merges][::-1]:
            becomes[other] = becomes[into]
        labels = np.full(len(self.loss.means), -1)
        labels[self.rows] = consecutive(becomes)
        return labels


def better_linked(
    loss: VirtualLoss, owner: Labels, rows: Labels, selected: Labels, noise: float
) -> tuple[Labels, dict[str, float]] | None:
    """Return a matching (L,) of more groups that loses clearly less than the selected one, and both losses.

    `rows` are those that may be linked, `noise` what one more component gains by fitting noise, in nats per
    observation. None where nothing is gained, or cannot be told.
    """
    n_selected, of_selected = int(selected.max()) + 1, loss.by_draw(selected)
    if float(of_selected.mean()) <= MIN_LOSS:  # no more can be gained than is lost
        return None
    linkage = Linkage.of(loss, owner, rows)
    if linkage is None or (linkage.n_groups <= n_selected and selected.min() >= 0):
        return None
    linked = linkage.labels(linkage.n_groups)
    assert linked is not None  # noqa: S101  (narrows the type)
    of_linked = loss.by_draw(linked)
    gain, error = mean_and_error(of_selected - of_linked)
    gain -= noise * max(linkage.n_groups - n_selected, 0)
    losses = {"evidence": float(of_selected.mean()), "linked": float(of_linked.mean())}
    if gain <= max(MIN_LOSS, MIN_LOSS_SHARE * losses["evidence"], N_ERRORS * error):
        return None
    # Reduction is no reason to take more: where sites truly differ, it always loses less.
    reduction, best = Reduction(loss), linked
    for n_groups in range(linkage.n_groups, n_selected, -1):
        fewer = _least(loss, (linkage, reduction), n_groups)
        if fewer is None or float(loss.by_draw(fewer).mean()) > losses["linked"] + MAX_FURTHER_LOSS:
            break
        best = fewer
    return best, losses


def _least(loss: VirtualLoss, paths: tuple[Linkage, Reduction], n_groups: int) -> Labels | None:
    """Return the matching (L,) of so many groups on any of some paths that loses least; None where none has one."""
    candidates = [labels for path in paths if (labels := path.labels(n_groups)) is not None]
    return min(candidates, key=lambda labels: float(loss.by_draw(labels).mean()), default=None)
