"""Robust averages against brute force and closed forms that share no code with them."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

import consilience as cs
from consilience import families as f
from consilience.core.robust_estimator import RobustEstimator, squared_distance
from consilience.networks.robust import _row_blocks, geometric_medians, inlier_mask
from consilience.networks.symmetry.axes import Axis, Layout, Segment
from consilience.posteriors.ensemble import Ensemble
from tests import tolerances


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


@pytest.mark.parametrize("seed", range(5))
def test_the_geometric_median_of_points_is_the_minimum_of_distances(seed):
    points = np.random.default_rng(seed).normal(size=(7, 20))  # so many dimensions that all are about as far apart
    found = of_points(points, "median")
    direct = minimize(lambda c: np.linalg.norm(points - c, axis=1).sum(), points.mean(axis=0), method="BFGS")
    total = np.linalg.norm(points - found, axis=1).sum()
    assert total <= direct.fun * (1 + tolerances.FLAT_MINIMUM)


def test_two_far_points_of_ten_are_left_out():
    points = np.random.default_rng(0).normal(size=(10, 3))
    points[[2, 7]] += 1e6
    assert_allclose(of_points(points, "trim"), np.delete(points, [2, 7], axis=0).mean(axis=0), rtol=tolerances.ROUNDING)


def test_a_geometric_median_of_rows_is_that_of_distances():
    rows = np.random.default_rng(1).normal(size=(7, 1, 4))
    found = geometric_medians(rows, np.ones((7, 1)))[0]
    direct = minimize(lambda c: np.linalg.norm(rows[:, 0] - c, axis=1).sum(), rows.mean(axis=0)[0], method="BFGS")
    assert np.linalg.norm(rows[:, 0] - found, axis=1).sum() <= direct.fun * (1 + tolerances.FLAT_MINIMUM)


def test_rows_of_models_that_lack_a_unit_do_not_count():
    layout = Layout((Axis((Segment("hidden"),)),))
    moved = [np.array([1.0, 5.0]), np.array([2.0, 6.0]), np.array([3.0, 0.0])]
    owned = [np.ones(2), np.ones(2), np.array([1.0, 0.0])]
    ((rows, owns, shares),) = _row_blocks(moved, owned, [1.0, 1.0, 1.0], layout)
    assert owns.tolist() == [[True, True], [True, True], [True, False]]
    assert_allclose(geometric_medians(rows, shares)[:, 0], [2.0, 5.5], rtol=1e-6)


def test_models_are_left_out_by_their_worst_array():
    far = np.ones((3, 10))
    far[1, 4] = far[2, 8] = 7.0
    assert np.flatnonzero(inlier_mask(far, RobustEstimator("trim", 0.2)) == 0).tolist() == [4, 8]
