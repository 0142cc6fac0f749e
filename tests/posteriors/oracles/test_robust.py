"""Robust averages against brute force and closed forms that share no code with them."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

import consilience as cs
from consilience import families as f
from consilience.core.robust import (
    MIN_DISTANCE,
    copy_weights,
    geometric_median_weights,
    pairwise_squares,
)
from consilience.core.robust_estimator import RobustEstimator, squared_distance
from consilience.networks.robust import _row_blocks, geometric_medians, inlier_mask
from consilience.networks.symmetry.axes import Axis, Layout, Segment
from consilience.posteriors.ensemble import Ensemble
from tests import tolerances
from tests.posteriors.test_robust import assert_never_rises, record_sums_of_distances


def of_points(points, how, trim=0.2):
    family = f.Point(points.shape[1])
    sites = [cs.Posterior(family, row[None]) for row in points]
    return (
        cs.methods.Average(robust=how, trim=trim)
        .fuse(Ensemble.of(sites), np.random.default_rng(0))
        .posterior.natural[0]
    )


def least_radius(points):
    """The medoid by brute force: every point, and every subset of more than half."""
    apart = ((points[:, None] - points[None]) ** 2).sum(axis=2)
    size = len(points) // 2 + 1
    radius = [min(max(apart[i, j] for j in chosen) for chosen in itertools.combinations(range(len(points)), size))
              for i in range(len(points))]  # fmt: skip
    return int(np.argmin(radius))


@pytest.mark.parametrize("seed", range(10))
def test_the_medoid_is_that_of_all_subsets(seed):
    rng = np.random.default_rng(seed)
    points = np.concatenate([rng.normal(size=(5, 2)), 10 * rng.normal(size=(3, 2))])
    zeros = np.zeros(len(points), dtype=np.int64)
    _, (medoid,) = RobustEstimator("trim", 0.2).inliers(squared_distance, points, zeros, np.ones(len(points)), 1)
    assert medoid == least_radius(points)


def by_squares(points):
    weights, _ = geometric_median_weights(pairwise_squares(points), np.ones(len(points)))
    return weights @ points


def by_copies(points):
    return copy_weights(pairwise_squares(points), np.ones(len(points))) @ points


def by_rows(points):
    """The median of one row of networks, beside a row of which it is another."""
    rows = np.stack([points, 3.0 * points[::-1] + 1.0], axis=1)
    found, other = geometric_medians(rows, np.ones(rows.shape[:2]))
    assert_allclose(other, 3.0 * found + 1.0, atol=1e-8 * np.abs(points).max())
    return found


def by_posteriors(points):
    return of_points(points, "median")


MEDIANS = {"squares": by_squares, "copies": by_copies, "rows": by_rows, "posteriors": by_posteriors}
every_median = pytest.mark.parametrize("median", MEDIANS.values(), ids=MEDIANS)


def least_sum_of_distances(points, start):
    """The minimum by a method that shares nothing with Weiszfeld's, polished from several starts."""

    def total(centre):
        return np.linalg.norm(points - centre, axis=1).sum()

    options = {"xatol": 1e-10, "fatol": 1e-13, "maxiter": 20000, "maxfev": 20000}
    found = [minimize(total, start, method="BFGS"), minimize(total, points.mean(axis=0), method="BFGS")]
    found += [minimize(total, one.x, method="Nelder-Mead", options=options) for one in found]
    return min(found, key=lambda one: one.fun)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("name", "dim"),
    # In so many dimensions that all are about as far apart nobody leaves a point out before.
    [("squares", 2), ("squares", 4), ("rows", 2), ("rows", 4), *((name, 20) for name in MEDIANS)],
)
def test_a_geometric_median_is_the_minimum_of_the_sum_of_distances(name, dim, seed):
    points = np.random.default_rng([seed, dim]).normal(size=(7, dim))
    found = MEDIANS[name](points)
    least = least_sum_of_distances(points, found)
    distances = np.linalg.norm(points - found, axis=1)
    rounded = MIN_DISTANCE * np.median(distances)  # so near to a point its weight grows no further
    assert distances.sum() <= least.fun * (1 + tolerances.FLAT_MINIMUM) + rounded * (distances.min() < rounded)
    assert_allclose(found, least.x, atol=rounded + 1e-4 * np.median(distances))


@every_median
def test_a_geometric_median_moves_with_the_points_and_not_with_their_order(median):
    rng = np.random.default_rng(3)
    points, shift = rng.normal(size=(9, 5)), 10.0 * rng.normal(size=5)
    turn, _ = np.linalg.qr(rng.normal(size=(5, 5)))
    found = median(points)
    assert_allclose(median(points[rng.permutation(9)]), found, atol=1e-8)
    assert_allclose(median(100.0 * points @ turn + shift), 100.0 * found @ turn + shift, atol=1e-6)


@every_median
@pytest.mark.parametrize("size", [1.0, 1e3, 1e6, 1e12])
@pytest.mark.parametrize(("n", "k"), [(5, 1), (5, 2), (10, 4), (60, 29)])
def test_a_minority_moves_a_geometric_median_no_farther_than_the_bound(median, n, k, size):
    """Lopuhaa and Rousseeuw (1991): |c - x| <= 2 r (n - k) / (n - 2 k) for honest points within r of x."""
    rng = np.random.default_rng([n, k])
    points = rng.normal(size=(n, 3))
    points[n - k :] = size * (1.0 + 0.1 * rng.normal(size=(k, 3)))  # together, in one direction
    centre = points[: n - k].mean(axis=0)
    radius = np.linalg.norm(points[: n - k] - centre, axis=1).max()
    moved = np.linalg.norm(median(points) - centre)
    assert moved <= 2.0 * radius * (n - k) / (n - 2 * k) * (1 + 1e-6)


@every_median
def test_a_geometric_median_of_copies_is_their_point_and_of_most_copies_theirs(median):
    point = np.random.default_rng(0).normal(size=4)
    assert_allclose(median(np.tile(point, (5, 1))), point, rtol=tolerances.ROUNDING)
    assert_allclose(median(np.concatenate([np.tile(point, (5, 1)), 7.0 + np.eye(4)])), point, rtol=tolerances.ROUNDING)


@every_median
@pytest.mark.parametrize("seed", range(5))
def test_the_sum_of_distances_never_rises(median, seed, monkeypatch):
    points = np.random.default_rng(seed).normal(size=(9, 3))
    points[8] *= 1e3
    histories = record_sums_of_distances(monkeypatch)
    median(points)
    assert histories
    for sums, roundings in histories:
        assert len(sums) > 3
        assert_never_rises(sums, roundings)


def test_of_two_points_none_is_right_however_they_are_weighed():
    points, votes = np.array([[0.0, 1.0], [4.0, 3.0]]), np.array([1.0, 3.0])
    weights, _ = geometric_median_weights(pairwise_squares(points), votes)
    assert_allclose(weights, [0.25, 0.75])
    assert_allclose(geometric_medians(points[:, None], votes[:, None])[0], [3.0, 2.5])


def test_points_of_no_vote_have_no_say_and_votes_count_as_copies():
    rng = np.random.default_rng(2)
    points, votes = rng.normal(size=(6, 3)), np.array([2.0, 1.0, 0.0, 3.0, 1.0, 1.0])
    repeated = np.repeat(points, votes.astype(int), axis=0)
    weights, _ = geometric_median_weights(pairwise_squares(points), votes)
    assert weights[2] == 0.0
    assert_allclose(weights @ points, by_squares(repeated), atol=1e-6)
    assert_allclose(geometric_medians(points[:, None], votes[:, None])[0], by_squares(repeated), atol=1e-6)


def test_two_far_points_of_ten_are_left_out():
    points = np.random.default_rng(0).normal(size=(10, 3))
    points[[2, 7]] += 1e6
    assert_allclose(of_points(points, "trim"), np.delete(points, [2, 7], axis=0).mean(axis=0), rtol=tolerances.ROUNDING)


def test_rows_of_models_that_lack_a_unit_do_not_count():
    layout = Layout((Axis((Segment("hidden"),)),))
    moved = [np.array([1.0, 5.0]), np.array([2.0, 6.0]), np.array([3.0, 0.0])]
    owned = [np.ones(2), np.ones(2), np.array([1.0, 0.0])]
    ((rows, votes),) = _row_blocks(moved, owned, [1.0, 1.0, 1.0], layout)
    assert votes.tolist() == [[1.0, 1.0], [1.0, 1.0], [1.0, 0.0]]
    assert_allclose(geometric_medians(rows, votes)[:, 0], [2.0, 5.5], rtol=1e-6)


def test_models_are_left_out_by_their_worst_array():
    far = np.ones((3, 10))
    far[1, 4] = far[2, 8] = 7.0
    assert np.flatnonzero(inlier_mask(far, RobustEstimator("trim", 0.2)) == 0).tolist() == [4, 8]
