"""What does not belong is left out and named, what is rare is kept, and matches say how sure they are."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.metrics import adjusted_rand_score

import consilience as cs
from consilience import families as f
from tests.posteriors import planted

pytestmark = pytest.mark.covering(2)

NORMAL = ("normal-wishart", "normal-gamma", "spherical-normal-gamma")
FOUR = 9.0 * np.array([[0.0, 0.0], [1.0, 0.1], [0.1, 1.2], [1.3, 1.1]])


def found(sites, **options):
    return cs.fuse(sites, regularization="auto", min_count=0, **{"exclusive": True, **options})


def site_of(family, means, rng, *, n=80, between=0.2, counts=None):
    """A site with components about these places."""
    data = [rng.normal(m + between * rng.normal(size=len(m)), 1.0, (n, len(m))) for m in np.asarray(means)]
    return planted.conjugate_site(family, data, counts)


def seven_sites(family, rng):
    """Sites with three of four components each, but for the last, which has none yet."""
    held = [np.delete(np.arange(4), missing % 4) for missing in range(6)]
    return [site_of(family, FOUR[own], rng) for own in held], held


def merged(family, rng):
    """A site that has taken two true components for one; its third component has no observations."""
    pair = np.concatenate([rng.normal(FOUR[0], 1.0, (80, 2)), rng.normal(FOUR[1], 1.0, (80, 2))])
    real = planted.conjugate_site(family, [pair, rng.normal(FOUR[3], 1.0, (80, 2))])
    return cs.Posterior(
        family,
        np.concatenate([real.natural, real.prior[None]]),
        prior=real.prior,
        counts=[*real.counts, 0.0],
    )


# -- What does not belong.


@pytest.mark.parametrize("name", NORMAL)
def test_a_component_that_merges_two_is_left_out_and_named(name):
    rng, family = np.random.default_rng(31), planted.family_named(name)
    sites, held = seven_sites(family, rng)
    fusion = found([*sites, merged(family, rng)])
    assert fusion.n_components == 4
    labels = fusion.matching.labels
    assert labels[-3:].tolist() == [-1, fusion.matching.of_site(0)[held[0].tolist().index(3)], -1]
    assert adjusted_rand_score(np.concatenate(held), labels[:-3]) == 1.0
    assert [record["name"] for record in fusion.details["outliers"]] == [fusion.inputs[-1].name]
    assert_array_equal(np.isnan(fusion.matching.confidence), labels < 0)


@pytest.mark.parametrize("name", NORMAL)
def test_a_second_copy_is_put_beside_the_first_and_named_where_that_is_not_excluded(name):
    rng, family = np.random.default_rng(31), planted.family_named(name)
    sites, held = seven_sites(family, rng)
    sites += [site_of(family, FOUR, rng) for _ in range(4)]
    double = site_of(family, FOUR[[0, 0, 3]], rng, between=0.0)
    fusion, exclusive = found([*sites, double], exclusive=False), found([*sites, double])
    assert fusion.n_components == exclusive.n_components == 4
    labels = fusion.matching.labels
    third = fusion.matching.of_site(0)[held[0].tolist().index(3)]
    assert labels[-1] == third
    assert labels[-3] == labels[-2] != third
    if exclusive.matching.labels[-3:].min() < 0:  # else both were merged as one before
        assert "put where most of it fits" in fusion.details["outliers"][0]["why"]


def test_what_fits_nowhere_stays_out_and_nothing_is_placed_where_sites_may_lie():
    rng, family = np.random.default_rng(31), planted.family_named("normal-wishart")
    sites = [*seven_sites(family, rng)[0], merged(family, rng)]
    placed, robust = found(sites, exclusive=False), found(sites, exclusive=False, robust="median")
    assert placed.verdict.loss <= found(sites).verdict.loss + 0.05  # the fused components are no moments of the groups
    assert_array_equal(robust.matching.labels, found(sites, robust="median").matching.labels)


def test_what_is_left_out_has_no_part_in_the_fused_model():
    rng, family = np.random.default_rng(32), planted.family_named("normal-wishart")
    sites, _ = seven_sites(family, rng)
    fusion = found([*sites, merged(family, rng)])
    kept = np.flatnonzero(fusion.matching.labels >= 0)
    counts = np.concatenate([one.value.counts for one in fusion.inputs])
    assert fusion.posterior.counts.sum() == pytest.approx(counts[kept].sum())


@pytest.mark.slow
@pytest.mark.parametrize("name", NORMAL)
@pytest.mark.parametrize("place", [(30.0, -25.0), (-14.0, 14.0)], ids=["far", "near"])
def test_a_component_that_one_site_alone_has_is_kept(name, place):
    rng, family = np.random.default_rng(33), planted.family_named(name)
    sites, held = seven_sites(family, rng)
    rare = site_of(family, [FOUR[0], FOUR[2], place], rng)
    fusion = found([*sites, rare])
    assert fusion.n_components == 5
    assert adjusted_rand_score([*np.concatenate(held), 0, 2, 4], fusion.matching.labels) == 1.0
    assert "outliers" not in fusion.details


@pytest.mark.slow
@pytest.mark.parametrize("name", ["normal-wishart", "gaussian", "point"])
@pytest.mark.parametrize("shift", [(1.0, -1.0), (2.5, -2.0)], ids=str)
def test_a_site_that_is_shifted_is_named(name, shift):
    """By five and by ten times as much as others differ, matched or not."""
    rng, family = np.random.default_rng(34), planted.family_named(name)
    sites, held = seven_sites(family, rng)
    fusion = found([*sites, site_of(family, np.add(FOUR[[0, 1, 3]], shift), rng)])
    assert adjusted_rand_score(np.concatenate(held), fusion.matching.labels[:-3]) == 1.0
    assert [record["name"] for record in fusion.details["outliers"]] == [fusion.inputs[-1].name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["normal-wishart", "gaussian", "point"])
def test_a_site_of_another_world_leaves_the_others_matched(name):
    """Far from all others: its components are their own, or it is named."""
    rng, family = np.random.default_rng(35), planted.family_named(name)
    sites, held = seven_sites(family, rng)
    fusion = found([*sites, site_of(family, np.add(FOUR[:3], [500.0, 300.0]), rng)])
    others = fusion.matching.labels[:-3]
    assert adjusted_rand_score(np.concatenate(held), others) == 1.0
    named = [record["name"] for record in fusion.details.get("outliers", [])]
    assert set(fusion.matching.labels[-3:]).isdisjoint(others) or named == [fusion.inputs[-1].name]


# -- Confidence.


@pytest.mark.parametrize("name", ["normal-wishart", "gaussian", "point"])
def test_clear_matches_are_sure(name):
    truth = planted.mixtures(name, apart=12.0)
    sure = found(truth.sites).matching.confidence
    assert np.all(sure > 0.85)
    assert np.all(sure <= 1 / (1 + np.exp(-6)))


@pytest.mark.parametrize("name", [*NORMAL, "gaussian"])
def test_a_component_between_two_is_as_likely_one_as_the_other(name):
    """Sites have the same two components, exactly; one site has a single component halfway between them.

    It might be a third one, too.
    """
    rng, family = np.random.default_rng(36), planted.family_named(name)
    cloud = rng.normal(size=(60, 2))
    cloud = np.concatenate([cloud, -cloud])
    apart = np.array([2.5, 0.0])
    shifts = 0.3 * rng.normal(size=(6, 2))
    pairs = [[cloud - apart + shift, cloud + apart - shift] for shift in (*shifts, *-shifts)]
    sites = [planted.conjugate_site(family, data) for data in [*pairs, [cloud]]]
    fusion = found([cs.Posterior(family, site.natural) for site in sites], n_components=2)
    assert fusion.matching.confidence[-1] == pytest.approx(0.5, abs=0.1)
    assert np.all(fusion.matching.confidence[:-1] > 0.8)


@pytest.mark.parametrize("apart", [8.0, 1.5])
def test_confidence_is_a_probability_or_unknown(apart):
    fusion = found(planted.mixtures(apart=apart, seed=1).sites)
    sure, labels = fusion.matching.confidence, fusion.matching.labels
    assert_array_equal(np.isnan(sure), labels < 0)
    known = sure[labels >= 0]
    assert np.all((known >= 0) & (known <= 1))


# -- Small and strange ensembles.


@pytest.mark.slow
@pytest.mark.parametrize("name", NORMAL)
@pytest.mark.parametrize("dim", [1, 5])
def test_any_dimension_will_do(name, dim):
    truth = planted.mixtures(name, dim=dim, apart=12.0 if dim == 1 else 8.0)
    fusion = found(truth.sites)
    assert fusion.n_components == 4
    assert adjusted_rand_score(truth.all_truth, fusion.matching.labels) == 1.0


@pytest.mark.parametrize("name", [*NORMAL, "gaussian", "point"])
def test_two_sites_with_some_components_in_common(name):
    rng, family = np.random.default_rng(37), planted.family_named(name)
    fusion = found([site_of(family, FOUR[:3], rng), site_of(family, FOUR[1:], rng)])
    assert fusion.n_components == 4
    assert adjusted_rand_score([0, 1, 2, 1, 2, 3], fusion.matching.labels) == 1.0


@pytest.mark.parametrize("name", [*NORMAL, "gaussian", "point"])
def test_sites_of_one_component_that_are_alike_have_one_in_common(name):
    rng, family = np.random.default_rng(38), planted.family_named(name)
    fusion = found([site_of(family, FOUR[:1], rng) for _ in range(5)])
    assert fusion.matching.labels.tolist() == [0] * 5


@pytest.mark.parametrize("name", [*NORMAL, "gaussian", "point"])
def test_sites_of_one_component_of_two_kinds_are_told_apart(name):
    rng, family = np.random.default_rng(39), planted.family_named(name)
    kinds = [0, 1, 0, 1, 1, 0, 0, 1]
    fusion = found([site_of(family, 3 * FOUR[[kind]], rng) for kind in kinds])
    assert fusion.n_components == 2
    assert adjusted_rand_score(kinds, fusion.matching.labels) == 1.0


@pytest.mark.parametrize("name", NORMAL)
@pytest.mark.parametrize("n", [2, 3, 5])
def test_sites_with_a_handful_of_observations_are_fused(name, n):
    """Too few for what they say to be compared: their priors take part, and every site's components stay apart."""
    rng, family = np.random.default_rng(40), planted.family_named(name)
    fusion = found([site_of(family, FOUR[:2], rng, n=n) for _ in range(4)])
    assert 2 <= fusion.n_components <= 8
    for site in range(4):
        own = fusion.matching.of_site(site)
        assert len(set(own[own >= 0])) == np.sum(own >= 0)


@pytest.mark.parametrize("name", NORMAL)
def test_a_site_that_saw_almost_nothing_does_not_change_the_others(name):
    rng, family = np.random.default_rng(41), planted.family_named(name)
    sites, held = seven_sites(family, rng)
    fusion = found([*sites, site_of(family, FOUR[:2], rng, n=2)])
    assert fusion.n_components == 4
    assert adjusted_rand_score(np.concatenate(held), fusion.matching.labels[:-2]) == 1.0


def test_the_details_say_how_much_sites_differ():
    fusion = found(planted.mixtures(between=0.3).sites)
    assert set(fusion.details["heterogeneity"]) == {"location", "scale"}
    assert 0.03 < fusion.details["heterogeneity"]["location"] < 0.3
    assert fusion.details["heterogeneity"]["scale"] < 0.03
    numbers = [step["n_components"] for step in fusion.details["path"]]
    best = min(fusion.details["path"], key=lambda step: step["criterion"])
    assert numbers == sorted(numbers)
    assert best["n_components"] == fusion.n_components == 4


def test_beta_components_of_trials_are_found():
    """Success rates of treatments at clinics: one number each."""
    rng, family = np.random.default_rng(42), f.Beta()
    rates = np.array([0.05, 0.35, 0.8])
    held = [np.delete(np.arange(3), missing % 3) for missing in range(9)]
    successes = [rng.binomial(400, rates[own]) for own in held]
    fusion = found([cs.Posterior(family, family.to_natural(a=1.0 + s, b=401.0 - s)) for s in successes])
    assert fusion.n_components == 3
    assert adjusted_rand_score(np.concatenate(held), fusion.matching.labels) == 1.0
