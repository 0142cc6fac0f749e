"""Matchings to compare with: k-means and Runnalls' reduction, told the number, and the slope rule, which finds it.

All are ours, vectorised, and see what the library sees, except that k-means and Runnalls ignore which site a component
is of, as published.
"""

from __future__ import annotations

import numpy as np
from battery.local_fits import Cell
from battery.metrics import GaussianMixture, concatenation
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans, kmeans_plusplus

KMEANS = {"n_init": 20, "max_iter": 1000}
PATH_STARTS, LAST_STARTS = 2, 5
"""Starts of the slope rule at every number, besides that from the next larger one, and in the end at the number found;
as the rule had them."""
MOST_STEPS = 100
EXHAUSTIVE, RATIO = 30, 3
"""The slope rule tries all numbers up to 30 local components, else up to three times the largest site."""
BREAK, PRICE = 3.0, 3.0
"""Its break, where the cost per residual falls below a third, and its price of a component, in slopes."""


def kmeans(cell: Cell, count: int) -> np.ndarray:
    """Return the clusters (L,) of local means, whitened by the mean covariance of local components."""
    local = concatenation(cell)
    inverse = np.linalg.inv(np.linalg.cholesky(np.einsum("n,nij->ij", local.weights, local.covariances)))
    points = local.means @ inverse.T
    return KMeans(min(count, len(points)), random_state=0, **KMEANS).fit(points).labels_


def runnalls(cell: Cell, count: int) -> np.ndarray:
    """Return the groups (L,) of Runnalls' greedy reduction of the concatenation to `count` components.

    Runnalls, "Kullback-Leibler approach to Gaussian mixture reduction", IEEE Trans. Aerospace and Electronic Systems
    43(3), 2007: merge, by moments, the pair with the least upper bound of the divergence that merging it causes,
    B(i, j) = [(w_i + w_j) log|P_ij| - w_i log|P_i| - w_j log|P_j|] / 2, equation (21), until `count` are left.
    """
    local = concatenation(cell)
    weights, means, covariances = local.weights.copy(), local.means.copy(), local.covariances.copy()
    log_dets = np.linalg.slogdet(covariances)[1]
    labels = np.arange(len(weights))
    bounds = np.full((len(weights), len(weights)), np.inf)

    def update(row: int, others: np.ndarray) -> None:
        """Set the bounds between a component and others."""
        totals = np.maximum(weights[row] + weights[others], np.finfo(float).tiny)
        own, their = weights[row] / totals, weights[others] / totals
        offsets = means[others] - means[row]
        merged = own[:, None, None] * covariances[row] + their[:, None, None] * covariances[others]
        merged += (own * their)[:, None, None] * offsets[:, :, None] * offsets[:, None, :]
        values = (
            totals * np.linalg.slogdet(merged)[1] - weights[row] * log_dets[row] - weights[others] * log_dets[others]
        )
        bounds[row, others] = bounds[others, row] = 0.5 * values

    for row in range(len(weights) - 1):
        update(row, np.arange(row + 1, len(weights)))
    alive = np.ones(len(weights), dtype=bool)
    nearest = bounds.argmin(axis=1)
    least = bounds[np.arange(len(weights)), nearest]
    for _ in range(len(weights) - count):
        i = int(np.where(alive, least, np.inf).argmin())
        i, j = sorted((i, int(nearest[i])))
        pair = GaussianMixture(weights[[i, j]], means[[i, j]], covariances[[i, j]]).merged(np.zeros(2, dtype=int))
        weights[i] += weights[j]
        means[i], covariances[i] = pair.means[0], pair.covariances[0]
        log_dets[i] = np.linalg.slogdet(covariances[i])[1]
        labels[labels == j] = i
        alive[j] = False
        bounds[j], bounds[:, j] = np.inf, np.inf
        others = np.flatnonzero(alive)
        update(i, others[others != i])
        stale = alive & ((nearest == i) | (nearest == j))
        stale[i] = True
        nearest[stale] = bounds[stale].argmin(axis=1)
        closer = alive & (bounds[:, i] < bounds[np.arange(len(weights)), nearest])
        nearest[closer] = i
        least = bounds[np.arange(len(weights)), nearest]
    return np.unique(labels, return_inverse=True)[1]


class SlopeRule:
    """KL-fusion whose number is chosen by the slope of the cost, as the library's third decision record has it.

    Equation (6) of Claici et al. 2020 is descended at every number from the largest site up to a limit: components are
    matched site by site, exactly, and their natural parameters averaged in turn. Starts are as the rule had them; the
    refinement site by site that followed is not repeated here.
    """

    def __init__(self, cell: Cell) -> None:
        """Take the components of a cell that have at least one observation."""
        counts = np.concatenate([posterior.counts for posterior in cell.posteriors])
        owner = np.repeat(np.arange(len(cell.posteriors)), [one.n_components for one in cell.posteriors])
        self.kept = np.flatnonzero(counts >= 1.0)
        self.family = cell.posteriors[0].family
        self.natural = np.concatenate([posterior.natural for posterior in cell.posteriors])[self.kept]
        self.potentials = self.family.log_normalizer(self.natural)
        self.sizes = np.unique(owner[self.kept], return_counts=True)[1]
        self.ends = np.cumsum(self.sizes)
        self.n_rows = len(counts)
        self.rng = np.random.default_rng(cell.setting.seed)

    def labels(self) -> np.ndarray:
        """Return the matching (L,) at the number that the rule chooses; -1 for components without observations."""
        total, largest = len(self.natural), int(self.sizes.max())
        limit = total if total <= EXHAUSTIVE else min(total, RATIO * largest)
        numbers = np.arange(largest, limit + 1)
        best: dict[int, tuple[float, np.ndarray]] = {}
        for number in numbers[::-1].tolist():
            tried = [self._descend(self._seeds(number, start % 2 == 0)) for start in range(PATH_STARTS)]
            if number + 1 in best and best[number + 1][1].max() + 1 > largest:
                tried.append(self._descend(self._without_one(best[number + 1][1])))
            best[number] = min(tried, key=lambda fit: fit[0])
        costs = np.minimum.accumulate([best[number][0] for number in numbers.tolist()])
        number = int(numbers[chosen_size(numbers, costs, total)])
        tried = [best[number], *(self._descend(self._seeds(number, start % 2 == 0)) for start in range(LAST_STARTS))]
        labels = np.full(self.n_rows, -1)
        labels[self.kept] = min(tried, key=lambda fit: fit[0])[1]
        return labels

    def _costs(self, centres: np.ndarray) -> np.ndarray:
        """Return KL(centre || component), (L, G)."""
        means = self.family.mean_parameters(centres)
        constants = (means * centres).sum(axis=1) - self.family.log_normalizer(centres)
        return np.maximum(self.potentials[:, None] + constants - self.natural @ means.T, 0.0)

    def _match(self, costs: np.ndarray) -> np.ndarray:
        """Return the exact assignment of every site."""
        return np.concatenate(
            [linear_sum_assignment(costs[end - size : end])[1] for size, end in zip(self.sizes, self.ends, strict=True)]
        )

    def _averages(self, labels: np.ndarray, number: int) -> np.ndarray:
        counts = np.bincount(labels, minlength=number)
        sums = np.zeros((number, self.natural.shape[1]))
        np.add.at(sums, labels, self.natural)
        return sums[counts > 0] / counts[counts > 0, None]

    def _descend(self, centres: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the cost and the matching after matching and averaging in turn."""
        number, previous, lowest = len(centres), None, np.inf
        costs = self._costs(centres)
        for _ in range(MOST_STEPS):
            labels = self._match(costs)
            centres = self._averages(labels, number)
            positions = np.unique(labels, return_inverse=True)[1]
            matched = self._costs(centres)[np.arange(len(labels)), positions]
            if previous is not None and (matched.sum() >= lowest or np.array_equal(labels, previous)):
                break
            previous, lowest = positions, float(matched.sum())
            if len(centres) < number:  # centres that nobody used go to the components that are matched worst
                centres = np.concatenate([centres, self.natural[np.argsort(-matched)[: number - len(centres)]]])
            costs = self._costs(centres)
        assert previous is not None  # noqa: S101  (there is at least one step)
        return lowest, previous

    def _seeds(self, number: int, spread_out: bool) -> np.ndarray:
        """Return components by k-means++ on their means, or uniformly drawn."""
        if not spread_out:
            return self.natural[self.rng.choice(len(self.natural), size=number, replace=False)]
        points = self.family.standard(self.natural)[0]
        return self.natural[kmeans_plusplus(points, number, random_state=int(self.rng.integers(2**31)))[1]]

    def _without_one(self, labels: np.ndarray) -> np.ndarray:
        """Return the averages without that whose members cost least to place elsewhere."""
        centres = self._averages(labels, int(labels.max()) + 1)
        costs = self._costs(centres)
        matched = []
        for group in range(len(centres)):
            others = np.delete(costs, group, axis=1)
            matched.append(others[np.arange(len(others)), self._match(others)].sum())
        return np.delete(centres, int(np.argmin(matched)), axis=0)


def chosen_size(numbers: np.ndarray, costs: np.ndarray, n_local: int) -> int:
    """Return the position of the number that the slope rule chooses, given the lowest cost of each (k,).

    The largest number at which the cost per residual falls below a third, as long as a quarter of the local components
    are residuals; else the number of least cost at a price of three slopes of the upper half (Baudry, Maugis and
    Michel 2012 take two).
    """
    residuals = n_local - numbers
    level = np.maximum(costs, 1e-9 * costs[0]) / np.maximum(residuals, 1)
    breaks = np.flatnonzero((BREAK * level[1:] < level[:-1]) & (4 * residuals[1:] >= n_local))
    if breaks.size:
        return int(breaks[-1]) + 1
    if len(numbers) < 3:
        return 0
    upper = numbers >= (numbers[0] + numbers[-1]) / 2
    upper[-2:] = True
    slope = max(0.0, -float(np.polyfit(numbers[upper], costs[upper], 1)[0]))
    return int(np.argmin(costs + PRICE * slope * numbers))
