"""The virtual loss against numerical integration, its bound, and maps of the data."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from consilience.posteriors.evidence.virtual_loss import VirtualLoss
from tests import tolerances

LABELINGS = [[0, 0, 1, 1, 2, 2], [0, 1, 2, 0, 1, 2], [0, 0, 0, 0, 0, 0], [0, -1, 0, 1, 1, 1], [2, 1, 0, 0, 1, 2]]
every_labeling = pytest.mark.parametrize("labels", LABELINGS, ids=str)


def components(dim, seed=0, n=6):
    """Means (n, D), covariances (n, D, D) and weights (n,)."""
    rng = np.random.default_rng([seed, dim])
    roots = rng.normal(size=(n, dim, dim)) * 0.4 + np.eye(dim)
    return rng.normal(0, 2, (n, dim)), roots @ np.swapaxes(roots, 1, 2), rng.uniform(0.5, 3, n)


def merged(means, covariances, weights, labels):
    """Moments and weight of each group, in loops."""
    groups = []
    for label in range(max(labels) + 1):
        rows = [row for row, own in enumerate(labels) if own == label]
        share = weights[rows] / weights[rows].sum()
        mean = share @ means[rows]
        offsets = means[rows] - mean
        covariance = sum(
            s * (covariances[row] + np.outer(o, o)) for s, row, o in zip(share, rows, offsets, strict=True)
        )
        groups.append((mean, covariance, weights[rows].sum()))
    return groups


@every_labeling
@pytest.mark.parametrize("seed", range(2))
def test_in_one_dimension_it_is_the_integral(labels, seed):
    """KL(all components || groups); what is in no group is lost."""
    means, covariances, weights = components(1, seed)
    weights = weights / weights.sum()
    groups = merged(means, covariances, weights, labels)
    mass = sum(weight for _, _, weight in groups)

    def log_density(x, parts):
        return np.log(sum(w * stats.norm(m[0], v[0, 0] ** 0.5).pdf(x) for m, v, w in parts))

    def integrand(x):
        local = log_density(x, list(zip(means, covariances, weights, strict=True)))
        return np.exp(local) * (local - log_density(x, [(m, v, w / mass) for m, v, w in groups]))

    grid = np.linspace(-14, 14, 4001)  # sums over a fine grid are exact for functions so smooth
    expected = integrand(grid).sum() * (grid[1] - grid[0])
    found, error = VirtualLoss(means, covariances, weights, 40_000)(np.array(labels))
    assert abs(found - expected) < tolerances.STANDARD_ERRORS * error


@every_labeling
def test_its_standard_error_is_honest(labels):
    """Chunks of one long run lie about their mean as far as it says."""
    draws = VirtualLoss(*components(2), 40_000).by_draw(np.array(labels)).reshape(20, 2000)
    stated = draws.std(axis=1, ddof=1).mean() / 2000**0.5
    assert 0.5 < draws.mean(axis=1).std(ddof=1) / stated < 1.6


@pytest.mark.parametrize("dim", [1, 3])
def test_without_a_merge_nothing_is_lost(dim):
    loss = VirtualLoss(*components(dim))
    assert_allclose(loss.by_draw(np.arange(6)), 0.0, atol=tolerances.ROOT_FINDING)


@every_labeling
@pytest.mark.parametrize("dim", [1, 2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_no_gain_and_at_most_its_bound(labels, dim, seed):
    """Joint convexity: (sum_g W_g log|S_g| - sum_l w_l log|S_l|) / 2 where every component is in a group."""
    means, covariances, weights = components(dim, seed)
    weights = weights / weights.sum()
    found, error = VirtualLoss(means, covariances, weights)(np.array(labels))
    assert found >= -4 * error
    if min(labels) >= 0:
        groups = merged(means, covariances, weights, labels)
        fused = sum(weight * np.linalg.slogdet(covariance)[1] for _, covariance, weight in groups)
        assert found <= 0.5 * (fused - weights @ np.linalg.slogdet(covariances)[1]) + 4 * error


@every_labeling
def test_shifts_and_triangular_maps_of_the_data_change_nothing(labels):
    """Draws are mapped with the components."""
    means, covariances, weights = components(3)
    matrix, shift = np.array([[2.0, 0, 0], [0.3, 1e-2, 0], [5.0, 1.0, 40.0]]), np.array([1e3, -5.0, 0.0])
    moved = VirtualLoss(means @ matrix.T + shift, matrix @ covariances @ matrix.T, weights)
    plain = VirtualLoss(means, covariances, weights).by_draw(np.array(labels))
    assert_allclose(moved.by_draw(np.array(labels)), plain, atol=tolerances.QUADRATURE)


@every_labeling
def test_other_linear_maps_change_only_the_draws(labels):
    means, covariances, weights = components(3)
    matrix = np.random.default_rng(1).normal(size=(3, 3))
    (moved, first), (plain, second) = (
        loss(np.array(labels))
        for loss in (
            VirtualLoss(means @ matrix.T, matrix @ covariances @ matrix.T, weights),
            VirtualLoss(means, covariances, weights),
        )
    )
    assert abs(moved - plain) < tolerances.STANDARD_ERRORS * np.hypot(first, second)


def test_variances_are_diagonal_covariances():
    """Of groups whose means differ in one coordinate, so that their moments are independent, too."""
    means, covariances, weights = components(3)
    means[1::2] = means[::2]
    means[1::2, 0] += 1.0
    variances, labels = np.diagonal(covariances, axis1=1, axis2=2), np.array([0, 0, 1, 1, 2, -1])
    by_matrix = VirtualLoss(means, variances[:, :, None] * np.eye(3), weights).by_draw(labels)
    assert_allclose(VirtualLoss(means, variances, weights).by_draw(labels), by_matrix, atol=tolerances.ROOT_FINDING)


def test_units_of_weights_and_names_of_groups_do_not_matter():
    means, covariances, weights = components(2)
    plain = VirtualLoss(means, covariances, weights).by_draw(np.array([0, 0, 1, 1, 2, 2]))
    other = VirtualLoss(means, covariances, 7e4 * weights).by_draw(np.array([2, 2, 0, 0, 1, 1]))
    assert_allclose(other, plain, atol=tolerances.QUADRATURE)


def test_what_is_left_out_is_lost_unless_it_is_not_asked_for():
    means, covariances, weights = components(2)
    means[5] += 30.0
    loss, labels = VirtualLoss(means, covariances, weights), np.array([0, 0, 1, 1, 2, -1])
    rest = VirtualLoss(means[:5], covariances[:5], weights[:5])
    assert loss(labels)[0] > rest(labels[:5])[0] + weights[5] / weights.sum()
