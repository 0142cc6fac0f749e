"""The search for the matching of the greatest evidence against brute force over the matchings of one site."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from consilience import families as f
from consilience.matching.assignment import NO_NEW_GROUPS
from consilience.matching.conjugate_groups import ConjugateGroups
from consilience.matching.site_by_site import ascend, grow, match_confidence, match_log_odds
from consilience.posteriors.evidence.random_effects import strict_prior
from tests import tolerances
from tests.posteriors.matchings import matchings, stacked

pytestmark = pytest.mark.covering(2)


def groups_of(sizes, seed, family=None):
    """Components so close that matchings are in doubt."""
    rng = np.random.default_rng([seed, *sizes])
    family = f.SphericalGaussian(2) if family is None else family
    mean, count = rng.normal(0.0, 1.5, (sum(sizes), 2)), sum(sizes)
    eta = family.to_natural(mean=mean, variance=rng.uniform(0.2, 1.0, count))
    base = family.to_natural(mean=[[0.0, 0.0]], variance=[4.0])[0]
    offsets = stacked(family, eta, sizes).offsets
    return ConjugateGroups(family, base, eta - family.flat, offsets, strict_prior(len(sizes)).level)


def owner_of(groups):
    return np.repeat(np.arange(len(groups.offsets) - 1), np.diff(groups.offsets))


def other_matchings(groups, labels, site):
    """Labels of every matching that differs from `labels` at most in one site, and `labels` itself."""
    rows = np.flatnonzero(owner_of(groups) == site)
    others = np.unique(np.delete(labels, rows))
    fresh = labels.max() + 1 + np.arange(len(rows))
    for chosen in itertools.permutations([*others, *fresh], len(rows)):
        changed = labels.copy()
        changed[rows] = chosen
        yield np.unique(changed, return_inverse=True)[1]


def same_company(a, b, row):
    """Whether a component has the same copies in two matchings."""
    return set(np.flatnonzero(a == a[row])) == set(np.flatnonzero(b == b[row]))


@pytest.mark.parametrize("sizes", [(3, 2, 3), (2, 2, 2, 1), (1, 3), (3, 1)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_the_log_odds_of_a_match_are_its_lead_over_the_best_matching_without_it(sizes, seed):
    groups, rng, every = groups_of(sizes, seed), np.random.default_rng(seed), matchings(sizes)
    for labels in [max(every, key=groups.total), every[rng.integers(len(every))]]:
        log_odds = match_log_odds(groups, labels)
        for row, site in enumerate(owner_of(groups)):
            rest = [o for o in other_matchings(groups, labels, site) if not same_company(o, labels, row)]
            lead = groups.total(labels) - max(groups.total(other) for other in rest)
            assert_allclose(log_odds[row], lead, rtol=tolerances.ROOT_FINDING, atol=tolerances.ROOT_FINDING)


@pytest.mark.parametrize("seed", range(3))
def test_the_confidence_of_a_match_is_the_logistic_of_a_fifth_of_its_log_odds_up_to_thirty(seed):
    groups = groups_of((2, 2, 2), seed)
    far = ConjugateGroups(groups.family, groups.base, 30.0 * groups.pieces, groups.offsets, groups.level)
    for objective in (groups, far):
        labels = np.array([0, 1, 0, 1, 1, 0])
        expected = 1 / (1 + np.exp(-np.clip(match_log_odds(objective, labels), -30, 30) / 5))
        assert_allclose(match_confidence(objective, labels), expected, rtol=tolerances.ROUNDING)
    assert np.abs(match_log_odds(far, labels)).max() > 30


def test_a_component_that_is_left_out_has_no_match_to_be_sure_of():
    sure = match_confidence(groups_of((2, 2, 1), 3), np.array([0, -1, 0, 1, 1]))
    assert np.isnan(sure).tolist() == [False, True, False, False, False]


@pytest.mark.parametrize("sizes", [(3, 2, 3), (2, 2, 2, 1), (1, 3, 2), (1, 1, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_ascent_ends_where_no_site_can_do_better(sizes, seed):
    groups = groups_of(sizes, seed)
    every, rng = matchings(sizes), np.random.default_rng(seed)
    for start in rng.choice(len(every), size=4):
        found = ascend(groups, every[start], rng, 50)[0]
        assert set(found) == set(range(found.max() + 1))
        total = groups.total(found)
        slack = tolerances.ROOT_FINDING * abs(total)
        assert total >= groups.total(every[start]) - slack
        for site in range(len(sizes)):
            assert total >= max(map(groups.total, other_matchings(groups, found, site))) - slack


def test_ascent_leaves_out_what_is_left_out():
    found = ascend(groups_of((2, 2, 1), 5), np.array([0, -1, 0, 1, 1]), np.random.default_rng(0), 50)[0]
    assert (found < 0).tolist() == [False, True, False, False, False]


# -- As many groups as were asked for.


@pytest.mark.parametrize("sizes", [(2, 2, 2), (1, 3, 2), (1, 1, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_ascent_that_empties_and_opens_no_group_keeps_their_number(sizes, seed):
    groups, rng = groups_of(sizes, seed), np.random.default_rng(seed)
    n_lost, owner = 0, owner_of(groups)
    for start in matchings(sizes):
        n_lost += ascend(groups, start, rng, 50)[0].max() < start.max()
        found = ascend(groups, start, rng, 50, NO_NEW_GROUPS, empties_groups=False)[0]
        assert found.max() == start.max()
        assert groups.total(found) >= groups.total(start) - tolerances.ROOT_FINDING * abs(groups.total(start))
        assert len({(s, g) for s, g in zip(owner, found, strict=True)}) == len(owner)  # no two of one site
    assert n_lost  # otherwise some are


# -- Sites that join groups that are there.


@pytest.mark.parametrize("seed", range(3))
def test_growing_from_nothing_is_growing_from_the_first_site(seed):
    groups, order = groups_of((2, 3, 2), seed), np.array([1, 0, 2])
    first = np.array([-1, -1, 0, 1, 2, -1, -1])
    whole, rest = grow(groups, order), grow(groups, order[1:], labels=first)
    assert_array_equal(whole[:, None] == whole, rest[:, None] == rest)


@pytest.mark.parametrize("seed", range(3))
def test_a_site_that_joins_others_takes_the_best_of_all_places(seed):
    groups = groups_of((2, 2, 3), seed)
    there = np.array([0, 1, 1, 2, -1, -1, -1])
    joined = grow(groups, np.array([2]), labels=there)
    best = max(groups.total(other) for other in other_matchings(groups, np.append(there[:4], [3, 4, 5]), 2))
    assert_allclose(groups.total(joined), best, rtol=tolerances.ROUNDING)
