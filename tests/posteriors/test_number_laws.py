"""Laws of the number of components and of the matching that evidence selects."""

import functools
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist
from scipy.stats import multivariate_normal, norm
from sklearn.metrics import adjusted_rand_score

import consilience as cs
from consilience.families.evidence import PlainDiscounts
from consilience.matching.agglomeration import agglomerate
from consilience.matching.conjugate_groups import ConjugateGroups, MixedGroups
from consilience.matching.groups import GroupSums
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.evidence import diagnostics
from consilience.posteriors.evidence.diagnostics import Judged, diagnose, judge
from consilience.posteriors.evidence.random_effects import (
    OWN_FACTORS,
    OWN_LOG_SD,
    RandomEffects,
    fit_lenient_prior,
    strict_prior,
)
from consilience.posteriors.evidence.search import EvidenceSearch, is_same_partition, steady_order
from consilience.posteriors.evidence.virtual_loss import likelihood_stack, virtual_loss_of
from tests import tolerances
from tests.families.zoo import ZOO
from tests.posteriors import planted
from tests.posteriors.matchings import stacked

pytestmark = pytest.mark.covering(2)


def found(sites, **options):
    return cs.fuse(sites, "kl", **options)


def held_components(rng, n_sites, n_components, per_site):
    """Which components each site has, every one at two sites at least."""
    while True:
        held = [rng.permutation(n_components)[:per_site] for _ in range(n_sites)]
        if np.bincount(np.concatenate(held), minlength=n_components).min() >= 2:
            return held


def shape(rng, dim):
    """The root of a covariance of determinant one, in random directions."""
    halves = rng.uniform(-0.5, 0.5, dim)
    return np.linalg.qr(rng.standard_normal((dim, dim)))[0] * np.exp(halves - halves.mean())


def sites_of(seed, held, *, separation, dim=5, n=150):
    """Sites of components with shapes of their own, the median one so far from its nearest; and which each has."""
    rng, family = np.random.default_rng([seed, 51]), planted.family_named("normal-wishart", dim)
    count = max(map(max, held)) + 1
    centres, roots = rng.normal(size=(count, dim)), [shape(rng, dim) for _ in range(count)]
    centres *= separation / np.median(np.sort(cdist(centres, centres), axis=1)[:, 1])
    data = [[centres[g] + rng.normal(size=(n, dim)) @ roots[g].T for g in own] for own in held]
    return [planted.conjugate_site(family, one) for one in data], np.concatenate(held)


@functools.cache
def hard_sites(seed, **options):
    """Components that overlap, so that matchings are in doubt."""
    return tuple(planted.mixtures(seed=seed, apart=2.0, n_sites=8, n=40, **options).sites)


def disjoint_sites(seed=0):
    """Five sites of three components that no other has."""
    return sites_of(seed, np.arange(15).reshape(5, 3).tolist(), separation=2.5)


# -- Planted numbers.


@pytest.mark.parametrize("seed", [1, 2])
def test_many_small_sites_of_many_components_are_told_apart(seed):
    held = held_components(np.random.default_rng(seed), 20, 12, 2)
    sites, truth = sites_of(seed, held, separation=3.0)
    fusion = found(sites)
    assert fusion.n_components == 12
    assert adjusted_rand_score(truth, fusion.matching.labels) == 1.0


@pytest.mark.parametrize("seed", range(3))
def test_sites_that_share_nothing_keep_their_components(seed):
    fusion = found(disjoint_sites(seed)[0])
    assert abs(fusion.n_components - 15) <= 1
    assert fusion.details["number"]["prior"] == "lenient"


@pytest.mark.parametrize("seed", range(3))
def test_the_search_finds_at_least_the_evidence_of_the_truth(seed):
    """Whatever the prior over matchings, at the heterogeneity that is best for it."""
    held = held_components(np.random.default_rng(seed), 8, 5, 3)
    for sites, truth in (disjoint_sites(seed), sites_of(seed, held, separation=3.0)):
        selection, _ = selection_of(sites)
        problem, truth = selection._search.problem, truth[selection._order]
        lenient = fit_lenient_prior(np.bincount(truth), len(sites))
        for prior, matching in (
            (strict_prior(len(sites)), selection._search.strict()),
            (lenient, selection._search.lenient()),
        ):
            amount, evidence = problem.fit_heterogeneity(truth, 0.05 * problem.unit, prior)
            assert evidence == pytest.approx(problem.evidence(truth, amount, prior))
            assert matching.evidence >= evidence - tolerances.CALIBRATION * abs(evidence)


@pytest.mark.parametrize("seed", range(3))
def test_no_limit_and_a_limit_that_cannot_bind_are_one(seed):
    sites = hard_sites(seed)
    free, bounded = found(sites), found(sites, max_components=sum(site.n_components for site in sites))
    assert free.objective == bounded.objective
    assert_array_equal(free.matching.labels, bounded.matching.labels)


# -- Splits.


@pytest.mark.parametrize("name", ["normal-wishart", "spherical-gaussian", "dirichlet", "gamma"])
@pytest.mark.parametrize("n_sites", [2, 3, 10, 100])
def test_splitting_a_group_of_copies_never_pays(name, n_sites):
    """A(base + t e) - A(base) is convex in t and 0 at 0; the strict prior charges one more component."""
    family, eta = ZOO[name].family.evidence_form(ZOO[name].draw(np.random.default_rng(3), 6))
    pieces = eta - family.flat
    groups = ConjugateGroups(family, family.law_of(eta), pieces, np.array([0, 6]), strict_prior(n_sites).level)
    members = np.arange(1.0, n_sites + 1)
    for piece in pieces:
        worth = groups.value(GroupSums(members[:, None] * piece, members))  # (n_sites,): of 1, 2, ... copies
        for n in range(2, n_sites + 1):
            parts = worth[: n - 1] + worth[n - 2 :: -1]
            assert np.all(parts < worth[n - 1] + tolerances.ROOT_FINDING * abs(worth[n - 1]))


# -- What the matching depends on.


@pytest.mark.parametrize("seed", range(4))
def test_changes_by_rounding_change_no_match(seed):
    sites = hard_sites(seed)
    moved = planted.moved_by_rounding(sites, seed)
    here, there = found(sites), found(moved)
    assert is_same_partition(here.matching.labels, there.matching.labels)
    assert_allclose(there.objective, here.objective, rtol=tolerances.QUADRATURE)


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_sites_and_of_their_components_changes_no_match(seed):
    sites, rng = hard_sites(seed), np.random.default_rng(seed)
    order = rng.permutation(len(sites))
    within = [rng.permutation(site.n_components) for site in sites]
    here, there = found(sites), found([sites[number].take(within[number]) for number in order])
    back = np.empty_like(here.matching.labels)
    for place, number in enumerate(order):
        rows = np.flatnonzero(here.matching.owner == number)
        back[rows[within[number]]] = there.matching.of_site(place)
    assert is_same_partition(here.matching.labels, back)


def test_no_seed_changes_a_match():
    one, other = (found(hard_sites(0), rng=seed) for seed in (0, 1))
    assert one.objective == other.objective
    assert one.posterior.natural.tobytes() == other.posterior.natural.tobytes()
    assert_array_equal(one.matching.labels, other.matching.labels)
    assert one.matching.confidence.tobytes() == other.matching.confidence.tobytes()


@pytest.mark.parametrize("unit", [1e-3, 1e3])
@pytest.mark.parametrize("name", ["normal-wishart", "gaussian"])
def test_units_change_no_match(name, unit):
    options = {"apart": 3.0, "n_sites": 6, "n": 40}
    here = found(planted.mixtures(name, seed=3, **options).sites)
    there = found(planted.mixtures(name, seed=3, unit=unit, **options).sites)
    assert is_same_partition(here.matching.labels, there.matching.labels)


def test_the_prior_of_sites_has_no_part_in_the_matching():
    """One more of it in every site and in what it says is its prior changes nothing."""
    sites = hard_sites(1)
    family = sites[0].family
    more = sites[0].prior - family.flat
    strengthened = [
        cs.Posterior(family, site.natural + more, prior=site.prior + more, counts=site.counts) for site in sites
    ]
    here, there = (likelihood_stack(Ensemble.of(each))[0] for each in (sites, strengthened))
    assert_allclose(there.natural, here.natural, rtol=tolerances.CONJUGATE_UPDATE, atol=tolerances.CONJUGATE_UPDATE)


@pytest.mark.parametrize("name", ["normal-wishart", "normal-gamma", "gaussian"])
def test_discounted_copies_say_no_more_than_their_differences_admit(name):
    """Each is worth at most 1 / h, n of them n / h."""
    family, eta = ZOO[name].family.evidence_form(ZOO[name].draw(np.random.default_rng(5), 7))
    for amount in (0.01, 1.0):
        worth = family.information(family.discounted(eta, np.full(len(family.part_names), amount)))
        floors = np.where(np.array(family.part_names) == "scale", ZOO[name].family.size, 0.0)  # of a Normal-Wishart
        assert np.all(worth <= np.maximum(1 / amount, floors))


# -- The evidence.


@pytest.mark.parametrize("seed", range(3))
def test_the_objective_is_minus_the_evidence_recomputed_from_scratch(seed):
    """By plain formulas, from the labels, the heterogeneity and the prior that are reported."""
    sites = hard_sites(seed)
    fusion = found(sites)
    family, labels = sites[0].family, fusion.matching.labels
    eta = np.concatenate([family.without_prior(s.natural, np.tile(s.prior, (s.n_components, 1))) for s in sites])
    discounts, amount = (
        PlainDiscounts(family, eta),
        np.array(list(fusion.details["heterogeneity"].values()), dtype=float),
    )
    base, pieces = discounts.law(amount), discounts.pieces(amount)
    groups = [np.flatnonzero(labels == label) for label in range(labels.max() + 1)]
    sizes = np.array([len(rows) for rows in groups])
    is_strict = fusion.details["number"]["prior"] == "strict"
    prior = strict_prior(len(sites)) if is_strict else fit_lenient_prior(sizes, len(sites))
    together = family.log_normalizer(base + np.stack([pieces[rows].sum(axis=0) for rows in groups]))
    alone = discounts.observed(amount)[labels >= 0].sum()
    evidence = together.sum() - len(groups) * family.log_normalizer(base[None])[0] - alone + prior.total(sizes)
    if np.all(labels >= 0) or is_strict:  # the lenient prior is fitted before strays are left out
        assert_allclose(-fusion.objective, evidence, rtol=tolerances.CONJUGATE_UPDATE)


@pytest.mark.parametrize("seed", range(2))
def test_a_mixture_of_one_discount_is_the_evidence_at_it(seed):
    stack, _ = likelihood_stack(Ensemble.of(hard_sites(seed)))
    problem = RandomEffects(stack)
    plain = problem.groups(0.1 * problem.unit, strict_prior(stack.n_sites))
    pieces = np.concatenate([plain.pieces, np.zeros((len(plain.pieces), 1))], axis=1)
    mixed = MixedGroups(plain.family, plain.base, pieces, plain.offsets, plain.level, np.zeros(1))
    path = agglomerate(plain, np.arange(len(pieces)))
    assert_allclose(path.valued_by(plain).totals, path.totals, rtol=tolerances.CONJUGATE_UPDATE)
    assert_allclose(path.valued_by(mixed).totals, path.totals, rtol=tolerances.CONJUGATE_UPDATE)


@pytest.mark.parametrize("factor", [1.0 / 9.0, 1.0, 9.0])
def test_copies_that_differ_more_than_others_are_worth_more_as_one_by_a_heterogeneity_of_their_own(factor):
    """At the common heterogeneity a group has less evidence but for the price of not knowing its own."""
    stack, _ = likelihood_stack(Ensemble.of(sites_of(0, [[0, 1]] * 30, separation=6.0)[0]))
    problem, labels = RandomEffects(stack), np.tile([0, 1], 30)
    prior = strict_prior(stack.n_sites)
    fitted, _ = problem.fit_heterogeneity(labels, problem.unit, prior)
    common = fitted * np.array([factor, 1.0])
    gain = problem.own_evidence(labels, common, prior) - problem.evidence(labels, common, prior)
    assert gain > 2.0 * np.log(norm.pdf(0.0) * np.diff(np.log(OWN_FACTORS))[0] / OWN_LOG_SD)
    if factor != 1.0:
        assert gain > 0.0


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_evidence_never_falls_over_the_rounds_of_one_start(monkeypatch, lenient, seed):
    stack, _ = likelihood_stack(Ensemble.of(hard_sites(seed)))
    search, round_of = EvidenceSearch(stack), EvidenceSearch._round
    evidence_of, evidences = search.problem.evidence, []

    def round_of_start(self, objective, labels):
        if labels is None:
            evidences.append([])
        return round_of(self, objective, labels)

    def recorded(labels, heterogeneity, prior):
        evidences[-1].append(evidence_of(labels, heterogeneity, prior))
        return evidences[-1][-1]

    monkeypatch.setattr(EvidenceSearch, "_round", round_of_start)
    monkeypatch.setattr(search.problem, "evidence", recorded)
    best = search.lenient() if lenient else search.strict()
    assert evidences
    for start in filter(None, evidences):  # a start that comes upon the end of another one has none
        assert np.all(np.diff(start) >= -tolerances.CONJUGATE_UPDATE * np.abs(start[:-1]))
        assert best.evidence >= max(start) - tolerances.CONJUGATE_UPDATE * abs(best.evidence)


def selection_of(sites):
    ensemble = Ensemble.of(sites)
    rows = likelihood_stack(ensemble)[1]
    return Judged.single(ensemble).selection, virtual_loss_of(ensemble, rows)


def doubtful_sites(name, seed):
    """Ensembles of some family in which numbers of components are nearly as good as others."""
    if name == "topics":
        return planted.topics(seed=seed, between=0.02, tokens=200).sites
    if name != "diagonal-gaussian":
        return planted.mixtures(name, seed=seed, apart=2.5, between=0.6, n_sites=10, n=40).sites
    rng, family = np.random.default_rng([seed, 52]), cs.families.DiagonalGaussian(3)
    centres, sites = 2.0 * rng.normal(size=(6, 3)), []
    for _ in range(10):
        held = rng.permutation(6)[: rng.integers(2, 6)]
        means = centres[held] + 0.5 * rng.normal(size=(len(held), 3))
        eta = family.to_natural(mean=means, variance=rng.uniform(0.05, 0.5, means.shape))
        sites.append(cs.Posterior(family, eta))
    return sites


# In these, the matching that the search ended at was below another one of its own path.
BELOW_THEIR_PATH = [("normal-wishart", 15), *(("spherical-normal-gamma", seed) for seed in (10, 13, 15))]
DOUBTFUL = [(name, seed) for name in (*planted.NORMAL, "diagonal-gaussian") for seed in range(4)]


@pytest.mark.parametrize(
    ("name", "seed"),
    [*BELOW_THEIR_PATH, *(pytest.param(*case, marks=[pytest.mark.slow] if case[1] > 1 else []) for case in DOUBTFUL)],
)
def test_no_number_on_the_path_has_more_evidence_than_the_selected_one(name, seed):
    """At its heterogeneity and under its prior, in the order of sites and components that came, or any other."""
    sites, rng = doubtful_sites(name, seed), np.random.default_rng(seed)
    selection = judge(Ensemble.of(sites)).selection
    selected = selection.selected.matching
    best = max(selection.evidence_by_number().values())
    assert best <= selected.evidence + tolerances.CONJUGATE_UPDATE * (1 + abs(selected.evidence))
    fusion = found(sites)
    number = fusion.details["number"]
    if not number.get("linked"):  # the number of linked components has no probability
        assert number["probability"][str(selected.n_groups)] == max(number["probability"].values())
    order = rng.permutation(len(sites))
    moved = [
        replace(
            sites[number], natural=sites[number].natural * (1 + 1e-12 * rng.normal(size=sites[number].natural.shape))
        )
        for number in order
    ]
    there = found(moved)
    labels = np.concatenate([there.matching.of_site(place) for place in np.argsort(order)])
    assert is_same_partition(labels, fusion.matching.labels)


@pytest.mark.parametrize("seed", range(2))
def test_the_evidence_of_every_number_is_that_of_its_matching(seed):
    """At the heterogeneity and under the prior of the selected one; told a number, ascent and a fit of h only add."""
    selection, _ = selection_of(hard_sites(seed))
    selected = selection.selected.matching
    by_number = selection.evidence_by_number()
    assert by_number[selected.n_groups] >= selected.evidence
    for number in by_number:
        matching = selection.of_size(number)
        if matching is not None and number != selected.n_groups:
            assert matching.evidence >= by_number[number] - tolerances.LOCAL_OPTIMUM * abs(by_number[number])


# -- The choice between two priors.


@pytest.mark.parametrize(
    "make", [lambda: hard_sites(0), lambda: hard_sites(1), lambda: disjoint_sites()[0]], ids=["0", "1", "disjoint"]
)
def test_the_chosen_matching_loses_no_more_than_the_strict_one(make):
    selection, loss = selection_of(make())
    selected, strict = selection.selected, selection._search.strict()
    strict_labels = selection._of_input(strict.labels)
    if selected.prior_name == "strict":
        kept = selected.matching.labels >= 0
        assert np.all(kept) <= is_same_partition(strict_labels, selected.matching.labels)
    else:
        assert selected.losses["strict"] - selected.losses["lenient"] > 0.1
        assert loss(selected.matching.labels)[0] < loss(strict_labels)[0]


def test_where_both_priors_give_one_matching_nothing_is_compared():
    sites = planted.mixtures(apart=12.0).sites
    selection, _ = selection_of(sites)
    assert is_same_partition(selection._search.strict().labels, selection._search.lenient().labels)
    selected = selection.selected
    assert (selected.prior_name, selected.losses) == ("strict", {})
    assert "virtual_loss" not in found(sites).details["number"]


@pytest.mark.parametrize("name", ["categorical", "point", "gamma"])
def test_without_densities_of_data_the_strict_prior_decides(name):
    kind, rng = ZOO[name], np.random.default_rng(4)
    shared = kind.draw(rng, 3)
    fusion = found([cs.Posterior(kind.family, kind.near(rng, shared, 0.01)) for _ in range(4)])
    assert fusion.details["number"]["prior"] == "strict"
    assert "virtual_loss" not in fusion.details["number"]


# -- A given number.


@pytest.mark.parametrize("seed", range(3))
def test_the_number_that_was_found_gives_the_matching_that_was_found(seed):
    selection, _ = selection_of(hard_sites(seed))
    matching = selection.selected.matching
    assert selection.of_size(matching.n_groups) is matching


@pytest.mark.parametrize("apart", [12.0, 3.0])
def test_told_what_would_be_found_fusion_is_the_same(apart):
    sites = planted.mixtures(apart=apart).sites
    free = found(sites)
    told = found(sites, n_components=free.n_components)
    assert is_same_partition(told.matching.labels, free.matching.labels)
    assert_allclose(told.objective, free.objective, rtol=tolerances.ROUNDING)
    assert_allclose(told.posterior.natural, free.posterior.natural, rtol=tolerances.ROUNDING)


@pytest.mark.parametrize("seed", range(2))
def test_every_number_that_is_told_is_given(seed):
    sites = hard_sites(seed)
    n_rows, largest = sum(site.n_components for site in sites), max(site.n_components for site in sites)
    for number in range(largest, n_rows + 1, 5):
        labels = found(sites, n_components=number).matching.labels
        assert labels.max() + 1 == number
        assert np.all(np.bincount(labels[labels >= 0], minlength=number) > 0)


@pytest.mark.parametrize("seed", range(3))
def test_of_very_many_components_whole_sites_are_sampled_for_the_loss_and_the_same_after_rounding(monkeypatch, seed):
    monkeypatch.setattr(diagnostics, "MAX_SEARCHED_ROWS", 10)
    rng, ensemble = np.random.default_rng(seed), Ensemble.of(hard_sites(seed))
    rows = np.arange(len(ensemble.natural))
    sampled = diagnostics._rows_of_sample(ensemble, rows)
    assert 0 < len(sampled) <= 10
    assert set(rows[np.isin(ensemble.owner, ensemble.owner[sampled])]) == set(sampled)
    moved = [
        replace(s, natural=s.natural * (1 + 1e-12 * rng.standard_normal((s.n_components, 1)))) for s in hard_sites(seed)
    ]
    assert_array_equal(diagnostics._rows_of_sample(Ensemble.of(moved), rows), sampled)
    assert found(hard_sites(seed)).n_components == found(moved).n_components


# -- The matching of k-means, where it loses less.


@functools.cache
def split_sites(seed, apart):
    """Five sites of three of four elongated components, some of which local fits cut into halves."""
    rng, family = np.random.default_rng([seed, 7]), planted.family_named("normal-wishart")
    centres, sites = planted.centres_apart(rng, 4, apart), []
    for _ in range(5):
        data = []
        for component in rng.permutation(4)[:3]:
            drawn = centres[component] + rng.normal(size=(60, 2)) * [3.0, 1.0]
            is_right = drawn[:, 0] > centres[component, 0]
            data += [drawn[is_right], drawn[~is_right]] if rng.random() < 0.3 else [drawn]
        sites.append(planted.conjugate_site(family, data))
    return tuple(sites)


def lost_by_draws(sites, labels, n_draws=20_000):
    """Minus the log density of the merged mixture at draws of all sites' mixtures, by SciPy's densities."""
    parameters = [site.family.standard(site.natural) for site in sites]
    means, _, inverse_scales, dofs = (np.concatenate(column) for column in zip(*parameters, strict=True))
    covariances, shares = inverse_scales / dofs[:, None, None], np.concatenate([site.counts for site in sites])
    rng = np.random.default_rng(1)
    drawn = rng.choice(len(shares), n_draws, p=shares / shares.sum())
    points = means[drawn] + np.einsum(
        "nij,nj->ni", np.linalg.cholesky(covariances)[drawn], rng.standard_normal((n_draws, means.shape[1]))
    )
    density = np.zeros(n_draws)
    for label in range(labels.max() + 1):
        own = labels == label
        weights = shares[own] / shares[own].sum()
        mean = weights @ means[own]
        second = np.einsum("n,nij->ij", weights, covariances[own] + means[own, :, None] * means[own, None, :])
        mass = shares[own].sum() / shares[labels >= 0].sum()
        density += mass * multivariate_normal(mean, second - np.outer(mean, mean)).pdf(points)
    return -np.log(density)


CLUSTERED = [(3, 4.0, {}), (18, 4.0, {"n_components": 5}), (10, 6.0, {"n_components": 5})]


@pytest.mark.parametrize(("seed", "apart", "options"), CLUSTERED)
def test_regrouping_that_knows_no_sites_is_taken_where_it_loses_less_by_other_draws_too(seed, apart, options):
    sites = split_sites(seed, apart)
    taken, exclusive = found(sites, **options), found(sites, exclusive=True, **options)
    assert taken.n_components == exclusive.n_components
    gains = lost_by_draws(sites, exclusive.matching.labels) - lost_by_draws(sites, taken.matching.labels)
    assert gains.mean() > 2 * gains.std() / len(gains) ** 0.5
    assert taken.details["violations"] > 0
    if "runnalls_gain" in taken.details:
        assert taken.details["runnalls_gain"] > 0
        return
    assert taken.details["kmeans_gain"] > 0
    clusters = cs.fuse(sites, "kmeans", n_components=taken.n_components)
    assert_allclose(taken.objective, clusters.objective, rtol=tolerances.ROUNDING)
    assert is_same_partition(taken.matching.labels, clusters.matching.labels)


@pytest.mark.parametrize("options", [{"exclusive": True}, {"robust": "trim"}], ids=str)
def test_no_two_of_a_site_are_matched_where_that_is_excluded(options):
    seed, apart, number = CLUSTERED[1]
    fusion = found(split_sites(seed, apart), **number, **options)
    assert not {"kmeans_gain", "runnalls_gain", "linked"} & {*fusion.details, *fusion.details.get("number", {})}
    assert "violations" not in fusion.details


@pytest.mark.parametrize(("seed", "apart", "options"), CLUSTERED)
def test_regrouping_is_the_same_of_perturbed_and_relabelled_sites(seed, apart, options):
    sites, rng = split_sites(seed, apart), np.random.default_rng(0)
    expected = found(sites, **options).matching.labels
    rows = np.split(np.arange(len(expected)), np.cumsum([site.n_components for site in sites])[:-1])
    for _ in range(3):
        moved, origin = [], []
        for number in rng.permutation(len(sites)):
            order = rng.permutation(sites[number].n_components)
            natural = sites[number].natural * (1 + 1e-12 * rng.standard_normal((len(order), 1)))
            moved.append(replace(sites[number], natural=natural).take(order))
            origin.append(rows[number][order])
        fusion = found(moved, **options)
        assert {"kmeans_gain", "runnalls_gain"} & set(fusion.details)
        assert is_same_partition(fusion.matching.labels, expected[np.concatenate(origin)])


@pytest.mark.parametrize(("seed", "apart", "options"), CLUSTERED)
def test_of_two_of_a_site_in_one_group_the_one_beside_has_no_confidence(seed, apart, options):
    """Also where a group has more members than there are sites."""
    sites = split_sites(seed, apart)
    fusion = found(sites, **options)
    assert np.count_nonzero(np.isnan(fusion.matching.confidence)) == fusion.details["violations"]
    everything = np.zeros(len(fusion.matching.labels), dtype=np.int64)
    confidence, _ = diagnose(Ensemble.of(sites), everything)
    assert np.count_nonzero(np.isfinite(confidence)) == len(sites) < len(everything)


# -- The order in which components come.


def test_rows_stay_with_their_sites_where_sites_are_copies():
    family, eta = ZOO["spherical-gaussian"].family, ZOO["spherical-gaussian"].draw(np.random.default_rng(6), 3)
    stack = stacked(family, np.concatenate([eta, eta, eta[::-1]]), (3, 3, 3))
    owner = stack.owner[steady_order(stack.natural, stack.owner)]
    assert np.count_nonzero(np.diff(owner)) == 2


@pytest.mark.parametrize("seed", range(5))
def test_changes_by_rounding_change_no_order(seed):
    rng = np.random.default_rng(seed)
    stack, _ = likelihood_stack(Ensemble.of(hard_sites(0)))
    moved = stacked(stack.family, stack.natural * (1 + 1e-12 * rng.standard_normal(stack.natural.shape)), stack.sizes)
    assert_array_equal(steady_order(moved.natural, moved.owner), steady_order(stack.natural, stack.owner))
