"""Exchanges of two sites' members between two groups, against all of them tried one by one."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from consilience import families as f
from consilience.matching import agglomeration
from consilience.matching.agglomeration import improve_by_exchange
from consilience.matching.bregman_groups import BregmanGroups
from consilience.matching.groups import GroupSums, group_sums
from tests import tolerances

FAMILY = f.SphericalGaussian(2)


def problem(sizes, seed, strength=0.5):
    """Sites whose means lie on either side of zero, so that sums of parameters have both signs; and a matching."""
    rng = np.random.default_rng([seed, *sizes])
    eta = FAMILY.to_natural(mean=rng.normal(0.0, 3.0, (sum(sizes), 2)), variance=rng.uniform(0.5, 2.0, sum(sizes)))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    objective = BregmanGroups(FAMILY, eta, offsets, rng.uniform(0.5, 2.0, sum(sizes)), strength)
    labels = np.concatenate([rng.permutation(max(sizes) + 1)[:size] for size in sizes])
    return objective, np.unique(labels, return_inverse=True)[1]


def total(objective, labels):
    """The worth of a matching; groups that lost all members are worth nothing."""
    return objective.total(np.unique(labels, return_inverse=True)[1])


def all_exchanges(objective, labels):
    """Every matching in which two sites have swapped what they have in two groups."""
    owner = np.repeat(np.arange(len(objective.offsets) - 1), np.diff(objective.offsets))
    for sites in itertools.combinations(range(owner.max() + 1), 2):
        for first, second in itertools.combinations(range(labels.max() + 1), 2):
            swapped = {first: second, second: first}
            yield np.array([
                swapped.get(label, label) if site in sites else label
                for site, label in zip(owner.tolist(), labels.tolist(), strict=True)
            ])  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("sizes", [(2, 2), (3, 2, 3), (1, 2, 2, 3), (2, 2, 2, 2, 2)], ids=str)
def test_the_best_exchange_is_the_best_of_all(sizes, seed):
    objective, labels = problem(sizes, seed)
    before = labels.copy()
    found = improve_by_exchange(objective, labels)
    assert_array_equal(labels, before, "the matching was overwritten")
    now = total(objective, labels)
    best = max(total(objective, trial) for trial in all_exchanges(objective, labels))
    if found is None:
        assert best <= now + tolerances.DESCENT * abs(now)
    else:
        assert total(objective, found) > now
        assert abs(total(objective, found) - best) <= tolerances.DESCENT * abs(best)


def test_repeated_exchanges_end_where_none_helps():
    objective, labels = problem((3, 3, 3, 3), 9)
    values = [total(objective, labels)]
    while (better := improve_by_exchange(objective, labels)) is not None:
        labels = better
        values.append(total(objective, labels))
    assert len(values) > 2
    assert values == sorted(values)
    assert max(total(objective, trial) for trial in all_exchanges(objective, labels)) <= values[-1] * (1 - 1e-12)


def test_what_a_row_adds_to_a_group_is_the_rise_of_its_worth_and_to_no_group_nothing():
    """Exactly for the nearest groups, which are all of them where there are so few."""
    objective, labels = problem((3, 2, 3), 4)
    others = labels.copy()
    others[:3] = -1
    groups = group_sums(objective.pieces, others, np.ones(8), int(labels.max()) + 1)
    occupied = np.flatnonzero(groups.mass)
    groups = GroupSums(groups.sums[occupied], groups.mass[occupied])
    gains = objective.gains(np.arange(3), groups)
    expected = np.array([
        objective.value(GroupSums(groups.sums + objective.pieces[row], groups.mass + 1.0)) - objective.value(groups)
        for row in range(3)
    ])  # fmt: skip
    assert_allclose(gains, expected, rtol=tolerances.ROOT_FINDING)
    none = GroupSums(np.zeros((0, objective.pieces.shape[1])), np.zeros(0))
    assert objective.gains(np.arange(3), none).shape == (3, 0)


def test_too_many_exchanges_are_not_tried(monkeypatch):
    objective, labels = problem((2, 2), 3)
    improvable = next(p for p in (problem((3, 2, 3), seed) for seed in range(9)) if improve_by_exchange(*p) is not None)
    monkeypatch.setattr(agglomeration, "MAX_EVALUATED_PARAMETERS", 1)
    assert improve_by_exchange(*improvable) is None
    assert improve_by_exchange(objective, labels) is None
