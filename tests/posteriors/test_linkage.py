"""Linkage of components: Bhattacharyya's distance, known non-matches, average linkage and Runnalls' reduction."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from sklearn.metrics import adjusted_rand_score

import consilience as cs
from consilience.posteriors.evidence.linkage import (
    Linkage,
    Reduction,
    average_linkage,
    better_linked,
    link_distance,
    log_distances,
)
from consilience.posteriors.evidence.search import is_same_partition
from consilience.posteriors.evidence.virtual_loss import VirtualLoss
from tests import tolerances
from tests.posteriors import planted

pytestmark = pytest.mark.covering(2)


def gaussians(n=8, dim=3, seed=0, spread=3.0):
    rng = np.random.default_rng([seed, 41])
    roots = rng.normal(size=(n, dim, dim + 3))
    return rng.normal(size=(n, dim)) * spread, roots @ roots.transpose(0, 2, 1) / dim


def components(seed=0, n_sites=6, n_components=6, per_site=4, apart=6.0, between=0.3, dim=3):
    """Components (L, D) of sites that have some of the common ones, their owners, and which they are."""
    rng = np.random.default_rng([seed, 42])
    centres = rng.normal(size=(n_components, dim)) * apart
    held = [rng.permutation(n_components)[:per_site] for _ in range(n_sites)]
    means = np.concatenate([centres[own] + between * rng.normal(size=(per_site, dim)) for own in held])
    loss = VirtualLoss(means, np.tile(np.eye(dim), (len(means), 1, 1)), np.full(len(means), 100.0))
    return loss, np.repeat(np.arange(n_sites), per_site), np.concatenate(held)


def test_distances_are_bhattacharyyas():
    """Minus the logarithm of the integral of sqrt(p q), here by quadrature on a line and by its formula."""
    means, covariances = np.array([[0.0], [1.5]]), np.array([[[1.0]], [[2.5]]])
    x = np.linspace(-30, 30, 200_001)
    p, q = (
        np.exp(-0.5 * (x - m[0]) ** 2 / c[0, 0]) / np.sqrt(2 * np.pi * c[0, 0])
        for m, c in zip(means, covariances, strict=True)
    )
    expected = -np.log(np.trapezoid(np.sqrt(p * q), x))
    assert_allclose(np.exp(log_distances(means, covariances)[0, 1]), expected, rtol=1e-8)
    means, covariances = gaussians()
    found = np.exp(log_distances(means, covariances))
    for a, b in itertools.combinations(range(len(means)), 2):
        pooled, d = (covariances[a] + covariances[b]) / 2, means[a] - means[b]
        expected = d @ np.linalg.solve(pooled, d) / 8 + 0.5 * (
            np.linalg.slogdet(pooled)[1]
            - 0.5 * (np.linalg.slogdet(covariances[a])[1] + np.linalg.slogdet(covariances[b])[1])
        )
        assert_allclose(found[[a, b], [b, a]], expected, rtol=tolerances.MATRIX_ROOT)


def test_variances_are_diagonal_covariances():
    means, variances = gaussians()[0], np.random.default_rng(1).uniform(0.5, 2.0, (8, 3))
    expected = log_distances(means, variances[:, :, None] * np.eye(3))
    assert_allclose(log_distances(means, variances), expected, rtol=tolerances.ROUNDING)


def test_linkage_of_sites_of_one_component_is_average_linkage():
    means, covariances = gaussians(20)
    distances = np.exp(log_distances(means, covariances))
    merges, heights = average_linkage(distances, np.arange(20))
    tree = linkage(squareform(distances, checks=False), "average")
    assert_allclose(heights, tree[:, 2], rtol=tolerances.ROUNDING)
    becomes = np.arange(20)
    for into, other in merges[:14][::-1]:
        becomes[other] = becomes[into]
    assert is_same_partition(np.unique(becomes, return_inverse=True)[1], fcluster(tree, 6, "maxclust").astype(np.int64))


@pytest.mark.parametrize("seed", range(4))
def test_shared_components_are_linked_and_no_site_is_twice(seed):
    loss, owner, truth = components(seed)
    found = Linkage.of(loss, owner, np.arange(len(owner)))
    labels = found.labels(found.n_groups)
    assert adjusted_rand_score(truth, labels) == 1.0
    assert len(np.unique(np.stack([labels, owner]), axis=1).T) == len(owner)


def test_nothing_is_told_of_few_non_matches_or_of_sites_that_share_nothing():
    loss, owner, _ = components(n_sites=2, per_site=2)
    assert Linkage.of(loss, owner, np.arange(4)) is None
    rng = np.random.default_rng(3)
    means = rng.normal(size=(40, 8)) * 5.0
    distances = log_distances(means, np.tile(np.eye(8), (40, 1, 1)))
    assert link_distance(distances, np.repeat(np.arange(8), 5)) is None


def test_reduction_merges_the_pair_of_the_least_bound():
    """Runnalls' equation (21) for every pair, one merge after another."""
    means, covariances = gaussians(7)
    weights = np.random.default_rng(2).uniform(1.0, 5.0, 7)
    reduction = Reduction(VirtualLoss(means, covariances, weights))
    groups = [([row], weights[row], means[row], covariances[row]) for row in range(7)]
    while len(groups) > 2:

        def merged(one, two):
            w = one[1] + two[1]
            mean = (one[1] * one[2] + two[1] * two[2]) / w
            parts = [g[1] * (g[3] + np.outer(g[2] - mean, g[2] - mean)) for g in (one, two)]
            return one[0] + two[0], w, mean, sum(parts) / w

        def bound(pair):
            new, old = merged(*pair), pair
            return new[1] * np.linalg.slogdet(new[3])[1] - sum(g[1] * np.linalg.slogdet(g[3])[1] for g in old)

        pair = min(itertools.combinations(groups, 2), key=bound)
        groups = [one for one in groups if one is not pair[0] and one is not pair[1]] + [merged(*pair)]
        expected = np.empty(7, dtype=np.int64)
        for number, (rows, *_) in enumerate(groups):
            expected[rows] = number
        assert is_same_partition(reduction.labels(len(groups)), expected)


def test_what_was_merged_wrongly_is_taken_apart_and_what_was_not_is_left():
    loss, owner, truth = components(apart=12.0)
    rows = np.arange(len(owner))
    merged = np.where(truth >= 4, truth - 3, truth)  # two pairs of components are one
    labels, losses = better_linked(loss, owner, rows, np.unique(merged, return_inverse=True)[1], 0.0)
    assert adjusted_rand_score(truth, labels) == 1.0
    assert losses["linked"] < losses["evidence"] - 0.1
    assert better_linked(loss, owner, rows, np.unique(truth, return_inverse=True)[1], 0.0) is None


@pytest.mark.parametrize("seed", range(3))
def test_sites_that_truly_differ_are_not_taken_apart(seed):
    truth = planted.mixtures(seed=seed, between=1.0, apart=10.0)
    fusion = cs.fuse(truth.sites)
    assert fusion.n_components == 4
    assert "linked" not in fusion.details["number"]


def test_components_of_no_observations_are_in_no_group_and_offsets_do_not_matter():
    means, covariances = gaussians(9)
    weights = np.ones(9)
    weights[4] = 0.0
    near, far = (Reduction(VirtualLoss(means + shift, covariances, weights)) for shift in (0.0, 1e8))
    assert near.labels(3)[4] == -1
    assert is_same_partition(near.labels(3), far.labels(3))
    assert near.labels(9) is None


def displaced(seed, n_sites, between, dim=10, n_components=5):
    """Posteriors of sites whose components are displaced by a normal effect and have covariances of their own."""
    rng = np.random.default_rng([seed, 43])
    family = cs.families.NormalWishart(dim)
    centres = rng.normal(size=(n_components, dim)) * np.sqrt(2.5)
    roots = rng.normal(size=(n_components, dim, 2 * dim))
    covariances = roots @ roots.transpose(0, 2, 1) / (2 * dim)
    posteriors, truth = [], []
    for _ in range(n_sites):
        own = rng.permutation(n_components)[:3]
        groups = [
            rng.multivariate_normal(centres[k] + between * rng.normal(size=dim), covariances[k], size=150) for k in own
        ]
        means = np.stack([group.mean(axis=0) for group in groups])
        scatters = np.stack([np.cov(group.T, bias=True) * len(group) for group in groups])
        n = np.full(len(own), 150.0)
        natural = family.to_natural(mean=means, kappa=n, dof=n + dim, inverse_scale=scatters)
        posteriors.append(cs.Posterior(family, natural, prior=np.zeros(family.size), counts=n))
        truth.extend(own.tolist())
    return posteriors, np.array(truth)


@pytest.mark.parametrize(("seed", "n_sites", "between"), [(0, 6, 0.5), (2, 6, 0.7), (2, 12, 0.7), (1, 20, 0.7)])
def test_displaced_copies_of_one_width_are_copies(seed, n_sites, between):
    """Their distances alone are those of different components."""
    posteriors, truth = displaced(seed, n_sites, between=between)
    fusion = cs.fuse(posteriors)
    assert "linked" not in fusion.details["number"]
    assert adjusted_rand_score(truth, fusion.matching.labels) > 0.99
