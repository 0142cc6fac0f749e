"""Components of fits gone wrong: by the sizes of groups against scipy's laws, and planted."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from sklearn.metrics import adjusted_rand_score

import consilience as cs
from consilience.posteriors.evidence import strays
from consilience.posteriors.evidence.strays import stray_log_odds
from tests import tolerances
from tests.posteriors import planted

CENTRES = 8.0 * np.array([[0.0, 0.0], [1.0, 0.1], [0.1, 1.2], [1.3, 1.1]])


def by_scipy(sizes, n_sites):
    """Log odds of strays, the likeliest law of all on the grid."""
    best, odds = -np.inf, None
    for mean, precision in itertools.product(strays.INCLUSION_MEANS, strays.INCLUSION_PRECISIONS):
        law = stats.betabinom(n_sites, mean * precision, (1 - mean) * precision)
        shared = law.pmf(sizes) / (1 - law.pmf(0))
        stray = stats.geom(0.8).pmf(sizes)
        for share in [0.0, *strays.STRAY_SHARES]:
            total = np.log(share * stray + (1 - share) * shared).sum() - (3.0 if share else 0.0)
            if total > best:
                best, odds = (
                    total,
                    np.log(share * stray / ((1 - share) * shared)) if share else np.full(len(sizes), -np.inf),
                )
    return odds


SIZES = [([28, 30, 27, 29, 1, 1, 2, 1], 30), ([1, 2, 3, 1, 2, 1], 30), ([5, 5, 4, 1], 5), ([12, 9, 15, 3, 1, 1, 1], 60)]


@pytest.mark.parametrize(("sizes", "n_sites"), SIZES, ids=str)
def test_sizes_are_a_mixture_of_geometric_and_beta_binomial_ones(sizes, n_sites):
    sizes = np.array(sizes)
    with np.errstate(divide="ignore"):
        assert_allclose(stray_log_odds(sizes, n_sites), by_scipy(sizes, n_sites), rtol=tolerances.ROOT_FINDING)


def test_where_most_groups_have_thirty_members_one_of_one_member_is_suspect():
    sizes = np.array([28, 30, 27, 29, 30, 26, 1, 1, 2])
    assert_array_equal(stray_log_odds(sizes, 30) > 0, sizes <= 2)


@pytest.mark.parametrize("sizes", [[1, 2, 3, 1, 2, 1], [1] * 8, [3] * 5], ids=str)
def test_where_all_groups_have_few_members_none_is_suspect(sizes):
    assert np.all(stray_log_odds(np.array(sizes), 30) == -np.inf)


# -- Planted.


def sites_of_four(rng, n_sites, blended=(), own=()):
    """Sites with three of four components each; some have a fourth that blends two they lack, or one of their own.

    Returns sites and the truth, -1 for blends.
    """
    family, sites, truth = planted.family_named("normal-wishart"), [], []
    for site in range(n_sites):
        held = np.delete(np.arange(4), site % 4)
        data = [rng.normal(CENTRES[g] + 0.1 * rng.normal(size=2), 1.0, (80, 2)) for g in held]
        labels = held.tolist()
        if site in blended:  # its fit has taken two components for one
            data[:2], labels[:2] = [np.concatenate(data[:2])], [-1]
        if site in own:
            data.append(rng.normal([-30.0, 25.0], 1.0, (80, 2)))
            labels.append(4)
        sites.append(planted.conjugate_site(family, data))
        truth.append(labels)
    return sites, np.concatenate(truth)


@pytest.mark.parametrize("blended", [(3,), (1, 8, 14), (2, 6, 10)], ids=str)
@pytest.mark.parametrize("n_sites", [16, 30])
def test_blends_of_two_components_are_left_out(n_sites, blended):
    """Also where several sites blend the same two."""
    sites, truth = sites_of_four(np.random.default_rng(n_sites), n_sites, blended)
    fusion = cs.fuse(sites, "kl", exclusive=True)
    labels = fusion.matching.labels
    assert_array_equal(labels < 0, truth < 0)
    assert adjusted_rand_score(truth, labels) == 1.0
    assert [record["name"] for record in fusion.details["outliers"]] == sorted(f"model {site}" for site in blended)


@pytest.mark.parametrize("n_sites", [8, 30])
def test_a_component_that_one_site_has_is_no_stray(n_sites):
    """However much sharing speaks against it, for it is no blend."""
    sites, truth = sites_of_four(np.random.default_rng(n_sites), n_sites, own=(5,))
    fusion = cs.fuse(sites, "kl")
    assert np.all(fusion.matching.labels >= 0)
    assert adjusted_rand_score(truth, fusion.matching.labels) == 1.0


def test_no_more_than_a_seventh_of_all_components_is_left_out():
    sites, _ = sites_of_four(np.random.default_rng(2), 12, blended=range(0, 12, 2))
    labels = cs.fuse(sites, "kl").matching.labels
    assert np.count_nonzero(labels < 0) <= 0.15 * len(labels)
