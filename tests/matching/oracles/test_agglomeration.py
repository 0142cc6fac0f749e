"""Agglomeration against the same rule in plain loops, on groups of points."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from consilience.matching.agglomeration import agglomerate, nearest_rows, pair_gains, site_bits
from consilience.matching.groups import GroupSums, group_sums
from tests import tolerances

pytestmark = pytest.mark.covering(2)

SIZES = [(2, 3, 2), (1, 1, 1, 1, 1, 1), (3, 3, 3), (4, 1), (2, 2, 1, 3, 2)]
every_ensemble = pytest.mark.parametrize("sizes", SIZES, ids=str)
every_seed = pytest.mark.parametrize("seed", range(3))


class Points:
    """Points of the plane: a group is worth what is squared of its sum, over its members and a half, less a price."""

    def __init__(self, sizes, seed, price=3.0):
        self.pieces = np.random.default_rng([seed, *sizes]).normal(0.0, 2.0, (sum(sizes), 2))
        self.offsets = np.concatenate([[0], np.cumsum(sizes)])
        self.owner = np.repeat(np.arange(len(sizes)), sizes)
        self.price = price

    def value(self, groups):
        return (groups.sums**2).sum(axis=1) / (groups.mass + 0.5) - self.price

    def of(self, block):
        """What a group of these rows is worth."""
        return float(
            self.value(GroupSums(self.pieces[list(block)].sum(axis=0)[None], np.array([float(len(block))])))[0]
        )

    def allowed(self, a, b):
        return set(self.owner[list(a)]).isdisjoint(self.owner[list(b)])


def blocks_of(labels):
    """The groups as a set of sets of rows."""
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in range(labels.max() + 1)}


def by_loops(points, blocks):
    """Every step's groups, the best pair first."""
    steps = [set(blocks)]
    while True:
        pairs = [pair for pair in itertools.combinations(steps[-1], 2) if points.allowed(*pair)]
        if not pairs:
            return steps
        a, b = max(pairs, key=lambda pair: points.of(pair[0] | pair[1]) - points.of(pair[0]) - points.of(pair[1]))
        steps.append(steps[-1] - {a, b} | {a | b})


@every_ensemble
@every_seed
def test_every_step_merges_the_best_pair_that_may(sizes, seed):
    points = Points(sizes, seed)
    path = agglomerate(points, np.arange(sum(sizes)))
    expected = by_loops(points, [frozenset([row]) for row in range(sum(sizes))])
    assert [blocks_of(path.labels(step)) for step in range(len(path.totals))] == expected


@every_ensemble
@every_seed
def test_totals_are_what_the_groups_of_every_step_are_worth(sizes, seed):
    points = Points(sizes, seed)
    path = agglomerate(points, np.arange(sum(sizes)))
    worth = [sum(map(points.of, blocks_of(path.labels(step)))) for step in range(len(path.totals))]
    assert_allclose(path.totals, worth, rtol=tolerances.ROUNDING * 100)
    assert_array_equal(path.n_groups, [path.labels(step).max() + 1 for step in range(len(path.totals))])


@every_ensemble
@every_seed
def test_no_two_components_of_one_site_become_one(sizes, seed):
    points = Points(sizes, seed)
    path = agglomerate(points, np.arange(sum(sizes)))
    for step in range(len(path.totals)):
        pairs = np.stack([points.owner, path.labels(step)])
        assert np.unique(pairs, axis=1).shape == pairs.shape


@every_seed
def test_rows_in_no_group_stay_in_none_and_say_nothing(seed):
    points, start = Points((3, 3, 2), seed), np.array([0, -1, 1, 2, 3, -1, 4, 5])
    path = agglomerate(points, start)
    kept = np.flatnonzero(start >= 0)
    expected = by_loops(points, [frozenset([row]) for row in kept.tolist()])
    for step, blocks in enumerate(expected):
        labels = path.labels(step)
        assert_array_equal(labels < 0, start < 0)
        assert blocks_of(labels) == blocks
    assert len(path.totals) == len(expected)


@every_seed
def test_groups_that_are_there_are_merged_on(seed):
    points = Points((2, 2, 2, 2), seed)
    start = np.array([0, 1, 1, 0, 2, 3, 4, 5])
    path = agglomerate(points, start)
    expected = by_loops(points, blocks_of(start))
    assert [blocks_of(path.labels(step)) for step in range(len(path.totals))] == expected


@every_seed
def test_the_best_step_is_the_greatest_total_with_few_enough_groups(seed):
    points = Points((2, 3, 2, 2), seed)
    path = agglomerate(points, np.arange(9))
    assert path.totals[path.best()] == path.totals.max()
    for limit in range(1, 11):
        within = np.flatnonzero(path.n_groups <= limit)
        expected = within[path.totals[within].argmax()] if within.size else len(path.totals) - 1
        assert path.best(limit) == expected


def neighbours_of(n_rows, seed):
    """Some pairs of rows, symmetric."""
    are_near = np.random.default_rng(seed).random((n_rows, n_rows)) < 0.4
    return are_near | are_near.T


@every_ensemble
@every_seed
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("nearest", [False, True])
def test_rounds_of_reciprocal_pairs_end_where_no_two_groups_may_merge(sizes, seed, share, nearest):
    points, n_rows = Points(sizes, seed), sum(sizes)
    near = neighbours_of(n_rows, seed) if nearest else None
    path = agglomerate(points, np.arange(n_rows), min_gain_share=share, are_neighbours=near)
    steps = [blocks_of(path.labels(step)) for step in range(len(path.totals))]
    assert_allclose(path.totals, [sum(map(points.of, blocks)) for blocks in steps], rtol=tolerances.ROUNDING * 100)
    for blocks in steps:
        assert all(points.allowed([a], [b]) for block in blocks for a, b in itertools.combinations(block, 2))
    assert not any(points.allowed(*pair) for pair in itertools.combinations(steps[-1], 2))


@every_ensemble
@every_seed
@pytest.mark.parametrize("nearest", [False, True])
def test_while_pairs_gain_it_ends_where_none_does(sizes, seed, nearest):
    points, n_rows = Points(sizes, seed, price=-1.0), sum(sizes)
    near = neighbours_of(n_rows, seed) if nearest else None
    path = agglomerate(points, np.arange(n_rows), min_gain_share=0.5, are_neighbours=near, while_gaining=True)
    assert np.all(np.diff(path.totals) > 0)
    pairs = itertools.combinations(blocks_of(path.labels(len(path.totals) - 1)), 2)
    assert all(points.of(a | b) <= points.of(a) + points.of(b) for a, b in pairs if points.allowed(a, b))


def test_far_clusters_are_found_in_rounds_as_one_after_another():
    """Of clusters far apart every pair inside gains and none across does: rounds end at the same partition."""
    points = Points((3,) * 8, 0)
    points.pieces = np.tile([[0.0, 20.0], [20.0, 0.0], [-20.0, -20.0]], (8, 1)) + 0.1 * points.pieces
    step_by_step, rounds = (agglomerate(points, np.arange(24), min_gain_share=share) for share in (1.0, 0.5))
    assert step_by_step.n_groups[step_by_step.best()] == 3
    assert blocks_of(step_by_step.labels(step_by_step.best())) == blocks_of(rounds.labels(rounds.best()))


def test_the_nearest_rows_are_neighbours_of_each_other():
    divergences = np.abs(np.subtract.outer(np.array([0.0, 1.0, 3.0, 10.0]), np.array([0.0, 1.0, 3.0, 10.0])))
    np.fill_diagonal(divergences, np.inf)
    expected = np.zeros((4, 4), dtype=bool)
    expected[[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]] = True  # 10's nearest is 3, whose nearest is 1
    assert_array_equal(nearest_rows(divergences, 1), expected)


def test_of_equal_totals_the_fewest_groups_are_best():
    """Copies at the origin are worth nothing, together or apart, at no price."""
    points = Points((1, 1, 1), 0, price=0.0)
    points.pieces[:] = 0.0
    path = agglomerate(points, np.arange(3))
    assert path.n_groups[path.best()] == 1


def test_of_equal_pairs_the_first_is_merged():
    points = Points((1, 1, 1, 1), 0)
    points.pieces[:] = 1.0
    assert agglomerate(points, np.arange(4)).merges.tolist()[0] == [0, 1]


@pytest.mark.parametrize("n_sites", [3, 64, 65, 130])
def test_gains_of_pairs_are_symmetric_and_forbidden_where_a_site_is_in_both(n_sites):
    points = Points((2,) * n_sites, 0)
    rng = np.random.default_rng(n_sites)
    labels = np.concatenate([rng.choice(6, 2, replace=False) + 6 * (site % 3) for site in range(n_sites)])
    labels = np.unique(labels, return_inverse=True)[1]
    groups = group_sums(points.pieces, labels, np.ones(len(labels)), labels.max() + 1)
    gains = pair_gains(points, groups, site_bits(points.owner, labels))
    assert_array_equal(gains, gains.T)
    for a, b in itertools.product(range(labels.max() + 1), repeat=2):
        rows = [np.flatnonzero(labels == group) for group in (a, b)]
        if a == b or not points.allowed(*rows):
            assert gains[a, b] == -np.inf
        else:
            expected = points.of(np.concatenate(rows)) - points.of(rows[0]) - points.of(rows[1])
            assert_allclose(gains[a, b], expected, atol=tolerances.CONJUGATE_UPDATE)
