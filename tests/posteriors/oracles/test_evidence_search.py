"""The search for the matching of the greatest evidence against brute force over the matchings of one site."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose

from consilience import families as f
from consilience.matching.site_by_site import ascend, match_probabilities
from consilience.posteriors.methods.kl.evidence import Evidence
from tests import tolerances
from tests.posteriors.matchings import matchings, stacked


def evidence_of(sizes, seed, family=None):
    """Components so close that matchings are in doubt."""
    rng = np.random.default_rng([seed, *sizes])
    family = f.SphericalGaussian(2) if family is None else family
    mean, count = rng.normal(0.0, 1.5, (sum(sizes), 2)), sum(sizes)
    eta = family.to_natural(mean=mean, variance=rng.uniform(0.2, 1.0, count))
    base = family.to_natural(mean=[[0.0, 0.0]], variance=[4.0])[0]
    return Evidence(stacked(family, eta, sizes), base)


def other_matchings(evidence, labels, site):
    """Labels of every matching that differs from `labels` at most in one site, and `labels` itself."""
    rows = np.flatnonzero(evidence.stack.owner == site)
    others = np.unique(np.delete(labels, rows))
    fresh = labels.max() + 1 + np.arange(len(rows))
    for chosen in itertools.permutations([*others, *fresh], len(rows)):
        changed = labels.copy()
        changed[rows] = chosen
        yield np.unique(changed, return_inverse=True)[1]


def same_company(evidence, a, b, row):
    """Whether a component has the same copies in two matchings."""
    return set(np.flatnonzero(a == a[row])) == set(np.flatnonzero(b == b[row]))


@pytest.mark.parametrize("sizes", [(3, 2, 3), (2, 2, 2, 1), (1, 3), (3, 1)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_a_match_is_as_sure_as_its_lead_over_the_best_matching_without_it(sizes, seed):
    evidence = evidence_of(sizes, seed)
    rng = np.random.default_rng(seed)
    every = matchings(sizes)
    for labels in [max(every, key=evidence.score), every[rng.integers(len(every))]]:
        sure = match_probabilities(evidence.groups, labels)
        for row, site in enumerate(evidence.stack.owner):
            rest = [o for o in other_matchings(evidence, labels, site) if not same_company(evidence, o, labels, row)]
            lead = evidence.score(labels) - max(evidence.score(other) for other in rest)
            assert_allclose(sure[row], 1 / (1 + np.exp(-lead)), rtol=tolerances.ROOT_FINDING)


def test_a_component_that_is_left_out_has_no_match_to_be_sure_of():
    evidence = evidence_of((2, 2, 1), 3)
    sure = match_probabilities(evidence.groups, np.array([0, -1, 0, 1, 1]))
    assert np.isnan(sure).tolist() == [False, True, False, False, False]


@pytest.mark.parametrize("sizes", [(3, 2, 3), (2, 2, 2, 1), (1, 3, 2), (1, 1, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_polishing_ends_where_no_site_can_do_better(sizes, seed):
    evidence = evidence_of(sizes, seed)
    every, rng = matchings(sizes), np.random.default_rng(seed)
    for start in rng.choice(len(every), size=4):
        found = ascend(evidence.groups, every[start], rng, 50)[0]
        assert set(found) == set(range(found.max() + 1))
        score = evidence.score(found)
        slack = tolerances.ROOT_FINDING * abs(score)
        assert score >= evidence.score(every[start]) - slack
        for site in range(len(sizes)):
            assert score >= max(map(evidence.score, other_matchings(evidence, found, site))) - slack


def test_polishing_leaves_out_what_is_left_out():
    found = ascend(evidence_of((2, 2, 1), 5).groups, np.array([0, -1, 0, 1, 1]), np.random.default_rng(0), 50)[0]
    assert (found < 0).tolist() == [False, True, False, False, False]
