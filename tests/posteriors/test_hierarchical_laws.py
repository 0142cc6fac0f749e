"""Laws of the hierarchical average: the product without heterogeneity, calibrated widths with it, and who decides."""

import json
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import consilience as cs
from consilience import families as f
from consilience.core.features import Features
from consilience.errors import InputError, OptionError, UnsupportedError
from consilience.files.safetensors_file import SafetensorsFile
from consilience.posteriors.average import combine, kl_average
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.inspect import inspect_posterior
from consilience.posteriors.intervals import MAX_PAIR_ERROR, pair_error_bounds
from consilience.posteriors.posterior import Posterior
from tests import tolerances
from tests.copies import COPIES
from tests.posteriors.random_effects_sites import normal_wisharts

pytestmark = pytest.mark.covering(2)

CELLS = [(sites, deviation) for sites in (3, 5, 20) for deviation in (0.0, 0.1, 0.3, 1.0)]
REPLICATIONS = 500


def barycenter(ensemble, labels, n_groups):
    return kl_average(ensemble, labels, n_groups, "forward")


def averaged(posteriors, how="hierarchical", labels=None, weights=None):
    """Return the fused posterior of components matched by number, and the record."""
    ensemble = Ensemble.of(posteriors, weights)
    n_groups = posteriors[0].n_components if labels is None else int(labels.max()) + 1
    if labels is None:
        labels = np.tile(np.arange(n_groups), len(posteriors))
    return combine(ensemble, labels, n_groups, how, barycenter)


def sites_of(seed, *, deviation=0.5, sites=6, dim=3, n_groups=4, **options):
    return normal_wisharts(
        np.random.default_rng(seed), n_groups=n_groups, sites=sites, dim=dim, deviation=deviation, **options
    )[0]


def gaussian_sites(seed, *, deviation, sites=6, n_groups=4, scale=1.0, with_prior=True):
    """Return sites with posteriors of means of known variance (spherical Gaussians)."""
    rng = np.random.default_rng(seed)
    family = f.SphericalGaussian(3)
    truth = 40.0 * rng.standard_normal((n_groups, 3))
    prior = family.to_natural(mean=np.zeros((1, 3)), variance=[1e6 * scale**2])[0]
    posteriors = []
    for _ in range(sites):
        counts = rng.integers(20, 200, n_groups).astype(float)
        means = truth + deviation * rng.standard_normal((n_groups, 3))
        means = scale * (means + rng.standard_normal((n_groups, 3)) / np.sqrt(counts)[:, None])
        natural = family.to_natural(mean=means, variance=scale**2 / counts) + prior
        posteriors.append(Posterior(family, natural, prior=prior if with_prior else None, counts=counts))
    return posteriors


@pytest.mark.parametrize(("sites", "deviation"), CELLS)
def test_intervals_cover_the_population_means(sites, deviation):
    """Independent groups in five dimensions, 133 observations each; the product's fail as soon as sites differ."""
    rng = np.random.default_rng([sites, int(10 * deviation)])
    posteriors, truth = normal_wisharts(rng, n_groups=REPLICATIONS, sites=sites, dim=5, deviation=deviation)

    def coverage(how):
        fused, _ = averaged(posteriors, how)
        _, low, high = fused.family.mean_intervals(fused.natural, 0.9)
        return np.mean((low < truth) & (truth < high))

    assert 0.84 <= coverage("auto") <= 0.95
    if deviation >= 0.1 and sites == 20:
        assert coverage("product") < 0.75


@pytest.mark.parametrize("level", [0.5, 0.8, 0.99])
def test_intervals_cover_at_other_levels_too(level):
    rng = np.random.default_rng(8)
    posteriors, truth = normal_wisharts(rng, n_groups=60, sites=4, dim=5, deviation=0.5)
    fusion = cs.fuse(posteriors, n_components=60)
    nearest = {
        row.component: truth[np.argmin([np.sum((row_mean - t) ** 2) for t in truth])]
        for row, row_mean in zip(fusion.intervals(level).rows[::5], fusion.posterior.parameters()["mean"], strict=True)
    }
    inside = [row.low < nearest[row.component][int(row.feature)] < row.high for row in fusion.intervals(level)]
    assert abs(np.mean(inside) - level) < 0.05


@pytest.mark.parametrize("make", [sites_of, gaussian_sites], ids=["normal-wishart", "gaussian"])
def test_components_without_heterogeneity_are_the_product_bit_for_bit(make):
    posteriors = make(3, deviation=0.0, n_groups=40)
    fused, record = averaged(posteriors)
    product, _ = averaged(posteriors, "product")
    is_zero = record.random_effects.heterogeneity[0] == 0.0
    assert 5 < is_zero.sum() < 40
    assert_array_equal(fused.natural[is_zero], product.natural[is_zero])
    assert np.all(np.any(fused.natural[~is_zero] != product.natural[~is_zero], axis=1))
    effects = record.random_effects
    assert np.all(effects.widening[is_zero] == 1.0)
    assert np.all(np.isinf(effects.effective_dof[is_zero]))


@COPIES
def test_copies_of_one_model_give_the_product_bit_for_bit():
    site = sites_of(1, sites=1)[0]
    fused = cs.fuse([site] * 5)
    assert_array_equal(fused.posterior.natural, cs.fuse([site] * 5, combine="product").posterior.natural)
    assert fused.details["hierarchical"]["heterogeneity"]["location"] == [0.0] * 4
    assert fused.details["average"]["name"] == "hierarchical"


def test_discounted_information_is_at_most_the_number_of_copies_over_the_heterogeneity():
    posteriors = gaussian_sites(5, deviation=2.0)
    fused, record = averaged(posteriors)
    product, _ = averaged(posteriors, "product")
    information = fused.family.information(fused.natural)[:, 0]
    heterogeneity, widening = record.random_effects.heterogeneity[0], record.random_effects.widening
    assert np.all(heterogeneity > 0)
    prior = fused.family.information(fused.prior[None])[0, 0]
    assert np.all(information * widening <= 6 / heterogeneity + prior)
    assert np.all(information <= product.family.information(product.natural)[:, 0])


def test_large_heterogeneity_gives_the_unweighted_mean():
    posteriors = sites_of(2, deviation=1000.0)
    fused, _ = averaged(posteriors)
    means = np.mean([posterior.parameters()["mean"] for posterior in posteriors], axis=0)
    assert_allclose(fused.parameters()["mean"], means, atol=0.1)


def test_the_spread_is_that_of_the_product():
    fused, _ = averaged(sites_of(2))
    product, _ = averaged(sites_of(2), "product")
    assert_allclose(fused.parameters()["scale"], product.parameters()["scale"], rtol=tolerances.CONJUGATE_UPDATE)
    assert_array_equal(fused.parameters()["dof"], product.parameters()["dof"])
    assert np.all(fused.parameters()["kappa"] < product.parameters()["kappa"])


def test_the_prior_is_no_evidence():
    """A copy of the prior more in every site, and in the common prior, changes no heterogeneity."""
    posteriors = gaussian_sites(6, deviation=0.3)
    twice = [Posterior(p.family, p.natural + 5 * p.prior, prior=6 * p.prior, counts=p.counts) for p in posteriors]
    (fused, record), (again, other) = averaged(posteriors), averaged(twice)
    assert_allclose(
        other.random_effects.heterogeneity, record.random_effects.heterogeneity, rtol=tolerances.CONJUGATE_UPDATE
    )
    assert_allclose(again.parameters()["mean"], fused.parameters()["mean"], rtol=1e-4)


@pytest.mark.parametrize("scale", [1e-6, 1e5])
def test_heterogeneity_of_gaussians_is_in_the_units_of_the_data(scale):
    _, record = averaged(gaussian_sites(7, deviation=0.3))
    _, scaled = averaged(gaussian_sites(7, deviation=0.3, scale=scale))
    expected = scale**2 * record.random_effects.heterogeneity
    assert_allclose(scaled.random_effects.heterogeneity, expected, rtol=tolerances.CONJUGATE_UPDATE)


def test_sites_and_components_in_any_order_give_the_same_bytes():
    posteriors = sites_of(4)
    rng = np.random.default_rng(0)
    shuffled = [posteriors[site].take(rng.permutation(4)) for site in rng.permutation(6)]
    fused, again = cs.fuse(posteriors), cs.fuse(shuffled)
    assert fused.posterior.natural.tobytes() == again.posterior.natural.tobytes()
    assert fused.details["hierarchical"] == again.details["hierarchical"]


def test_what_is_recorded_is_in_the_order_of_the_fused_components():
    """Component g of the record is component g of the posterior: one that differs much between sites is found again."""
    rng = np.random.default_rng(3)
    posteriors, _ = normal_wisharts(rng, n_groups=4, sites=8, dim=3, deviation=0.0)
    wide = []
    for posterior in posteriors:
        parameters = posterior.parameters()
        parameters["mean"][2] += 0.5 * rng.standard_normal(3)
        wide.append(Posterior(posterior.family, posterior.family.to_natural(**parameters), prior=posterior.prior,
                              counts=posterior.counts * [1.0, 1.0, 0.2, 1.0]))  # fmt: skip
    fusion = cs.fuse(wide)
    heterogeneity = fusion.details["hierarchical"]["heterogeneity"]["location"]
    assert fusion.n_components == 4
    component = fusion.matching.labels[2]
    assert int(np.argmax(heterogeneity)) == component == 3
    assert fusion.posterior.parameters()["kappa"].argmin() == component


@pytest.mark.parametrize("weight", [0.5, 3.0])
def test_equal_weights_are_no_weights(weight):
    posteriors = sites_of(9)
    plain, _ = averaged(posteriors)
    weighted, _ = averaged(posteriors, weights=[weight] * 6)
    assert_allclose(weighted.natural, plain.natural, rtol=tolerances.ROUNDING)


def test_a_weight_of_two_counts_like_two_sites_where_sites_differ_little():
    """In the product exactly, and in the weights of the mean at any heterogeneity."""
    posteriors = sites_of(9, deviation=0.0)
    fused, record = averaged(posteriors, weights=[2, 1, 1, 1, 1, 1])
    product, _ = averaged(posteriors, "product", weights=[2, 1, 1, 1, 1, 1])
    is_zero = record.random_effects.heterogeneity[0] == 0.0
    assert is_zero.any()
    assert_array_equal(fused.natural[is_zero], product.natural[is_zero])


def test_components_of_one_site_in_one_group_are_one_copy():
    """Splitting what each site knows of a component in two halves changes nothing."""
    posteriors = sites_of(10, n_groups=2)
    halves = []
    for posterior in posteriors:
        half = posterior.prior + 0.5 * (posterior.natural - posterior.prior)
        halves.append(
            Posterior(
                posterior.family,
                np.concatenate([half, half]),
                prior=posterior.prior,
                counts=np.tile(0.5 * posterior.counts, 2),
            )
        )
    whole, record = averaged(posteriors)
    split, other = averaged(halves, labels=np.tile([0, 1, 0, 1], 6))
    assert other.random_effects.n_sites.tolist() == [6, 6]
    assert_allclose(other.random_effects.heterogeneity, record.random_effects.heterogeneity, rtol=1e-6)
    assert_allclose(split.natural, whole.natural, rtol=1e-6)


def test_components_of_one_site_each_are_their_product():
    """Where no component has two copies, heterogeneity is not known, and nothing is discounted."""
    posteriors = [posterior.take(np.array([site])) for site, posterior in enumerate(sites_of(11, sites=4))]
    fused, record = averaged(posteriors, labels=np.arange(4))
    product, _ = averaged(posteriors, "product", labels=np.arange(4))
    assert_array_equal(fused.natural, product.natural)
    assert record.details()["hierarchical"]["heterogeneity"] == {"location": [None] * 4, "scale": [None] * 4}
    assert record.details()["hierarchical"]["pooled_heterogeneity"] == {"location": None, "scale": None}


def test_a_component_that_says_nothing_beyond_its_prior_is_left_out_and_named():
    posteriors = sites_of(12)
    natural = posteriors[2].natural.copy()
    natural[1] = posteriors[2].prior
    empty = Posterior(posteriors[2].family, natural, prior=posteriors[2].prior, counts=posteriors[2].counts)
    sites = {f"site {number}": empty if number == 2 else posterior for number, posterior in enumerate(posteriors)}
    fusion = cs.fuse(sites, method=cs.methods.KLFusion(regularization=0.1, n_components=4, combine="hierarchical"))
    component = fusion.matching.labels[1]
    found = fusion.details["hierarchical"]
    assert found["left_out"] == [{"model": "site 2", "component": 1}]
    assert found["n_sites"][component] == (6 - 1 if fusion.matching.labels[9] == component else 6)


def test_a_component_of_which_nobody_knows_anything_is_the_prior():
    posteriors = sites_of(13, n_groups=2)
    empty = [Posterior(p.family, np.stack([p.natural[0], p.prior]), prior=p.prior, counts=p.counts) for p in posteriors]
    fused, record = averaged(empty)
    assert_allclose(fused.natural[1], posteriors[0].prior, rtol=tolerances.ROUNDING)
    assert record.random_effects.n_sites.tolist() == [6, 0]
    assert len(record.random_effects.left_out) == 6


# -- What "auto" is.


def without(posteriors, **fields):
    return [Posterior(p.family, p.natural, **{"prior": p.prior, "counts": p.counts, **fields}) for p in posteriors]


POINTS = [Posterior(f.Point(2), np.array([[0.0, 0.0], [9.0, 9.0]]) + shift) for shift in (0.0, 0.1, 0.2)]


@pytest.mark.parametrize(
    ("posteriors", "method", "options", "reason"),
    [
        (without(sites_of(1), prior=None), "kl", {}, "state.* no prior"),
        (without(sites_of(1), counts=None), "kl", {}, "state.* no counts"),
        (without(sites_of(1), source={"samples": "assumed"}), "kl", {}, "is assumed; give n_observations"),
        (POINTS, "spahm", {}, "points have no width"),
        (sites_of(1), "kl", {"robust": "trim"}, "near to where most are"),
        (sites_of(1), "kl", {"direction": "reverse"}, "mean parameters"),
        (sites_of(1), "kl", {"divergence": "hellinger", "n_components": 4}, "an average of its own"),
        (sites_of(1), "average", {}, "federated averaging"),
        (sites_of(1), "concatenate", {}, "not matched"),
        (sites_of(1), "kmeans", {"direction": "reverse", "n_components": 4}, "mean parameters"),
    ],
)
def test_auto_is_the_barycenter_with_a_reason(posteriors, method, options, reason):
    fusion = cs.fuse(posteriors, method, **options)
    said = fusion.details["average"]
    assert said["name"] == "barycenter"
    assert said["requested"] == "auto"
    assert re.search(reason, said["reason"]), said
    assert "hierarchical" not in fusion.details
    same = cs.fuse(posteriors, method, combine="barycenter", **options)
    assert_array_equal(fusion.posterior.natural, same.posterior.natural)
    assert f"average barycenter: {said['reason']}" in fusion.summary()


def test_one_model_stays_as_it_is():
    fused, record = averaged(sites_of(1, sites=1), "auto")
    assert_array_equal(fused.natural, sites_of(1, sites=1)[0].natural)
    assert "one model" in record.reason


@pytest.mark.parametrize("method", ["kl", "spahm", "kmeans", "dp", "amps"])
def test_methods_that_match_take_the_hierarchical_average(method):
    options = {"n_components": 4} if method == "kmeans" else {}
    combined = {"combine": "auto"} if method == "amps" else {}
    fusion = cs.fuse(sites_of(1), method, **options, **combined)
    assert fusion.details["average"]["name"] == "hierarchical"
    assert fusion.details["hierarchical"]["n_sites"] == [6] * 4


def test_amps_stays_the_product():
    assert cs.fuse(sites_of(1), "amps").details["average"] == {"name": "product", "requested": "product"}


def test_a_product_outside_the_family_is_a_barycenter_under_auto_and_an_error_by_name():
    posteriors = sites_of(14)
    large = 10.0 * posteriors[0].natural[0]  # as if the prior had been ten times what a component is
    wrong = without(posteriors, prior=large)
    fusion_of = lambda how: cs.fuse(wrong, method=cs.methods.KLFusion(regularization=0.1, combine=how))  # noqa: E731
    with pytest.raises(InputError, match="check the sites' priors"):
        fusion_of("hierarchical")
    assert "the priors are not those of the models" in fusion_of("auto").details["average"]["reason"]


def test_priors_that_differ_are_said_with_both_values():
    posteriors = sites_of(15)
    family, prior = posteriors[3].family, posteriors[3].family.from_natural(posteriors[3].prior[None])
    other = family.to_natural(**{**prior, "kappa": 2.0 * prior["kappa"]})[0]
    changed = Posterior(family, posteriors[3].natural + other - posteriors[3].prior, prior=other,
                        counts=posteriors[3].counts)  # fmt: skip
    posteriors[3] = changed
    for how in ("auto", "product", "barycenter"):  # the prior of every fused posterior is their mean
        fusion = cs.fuse(posteriors, combine=how)
        said = fusion.details["average"]["priors"]
        assert "state different priors (kappa" in said
        assert "0.001" in said
        assert "0.002" in said
        assert f"priors: {said}" in fusion.summary()
    assert "priors" not in cs.fuse(sites_of(15)).details["average"]


@pytest.mark.parametrize(
    ("posteriors", "options", "text"),
    [
        (without(sites_of(1), prior=None), {}, "combine='hierarchical'` needs every model's prior.*family.flat"),
        (POINTS, {}, "combine='hierarchical'` means nothing for points"),
        (sites_of(1), {"robust": "trim"}, "two answers to sites that differ"),
    ],
)
def test_the_hierarchical_average_by_name_is_refused_where_it_means_nothing(posteriors, options, text):
    with pytest.raises(InputError, match=text):
        cs.fuse(posteriors, "kl", combine="hierarchical", **options)


def test_an_unknown_average_is_refused():
    with pytest.raises(OptionError, match="'auto', 'hierarchical', 'product' or 'barycenter'"):
        cs.methods.KLFusion(combine="mean")


@COPIES
def test_families_without_a_random_effects_average_refuse_it_by_name():
    family = f.Gamma()
    prior = family.to_natural(shape=[1.0], rate=[1.0])[0]
    posteriors = [
        Posterior(family, family.to_natural(shape=[30.0, 300.0], rate=[10.0, 10.0]), prior=prior, counts=[9.0, 9.0])
        for _ in range(3)
    ]
    with pytest.raises(InputError, match="is not known for gamma components; use 'product' or 'barycenter'"):
        cs.fuse(posteriors, combine="hierarchical")
    assert "gamma has no random-effects average" in cs.fuse(posteriors).details["average"]["reason"]


# -- Intervals.


def test_intervals_are_a_table_by_component_and_feature():
    named = without(sites_of(1), features=Features(names=("a", "b", "c"), units=("kg", "m", "")))
    fusion = cs.fuse(named)
    table = fusion.intervals()
    assert len(table) == 4 * 3
    assert [row.feature for row in table] == ["a", "b", "c"] * 4
    first = next(iter(table))
    assert (first.component, first.feature, first.unit, first.n_sites) == (0, "a", "kg", 6)
    assert first.low < first.mean < first.high
    assert first.heterogeneity == fusion.details["hierarchical"]["heterogeneity"]["location"][0]
    assert first.optimistic is False
    assert "a (kg)" in str(table)
    assert "90 % intervals, of the mean of the distribution" in str(table)
    _, low, high = fusion.posterior.family.mean_intervals(fusion.posterior.natural, 0.9)
    assert_allclose([[row.low, row.high] for row in table], np.stack([low, high], axis=2).reshape(-1, 2))


def test_intervals_of_other_averages_are_their_own():
    for how in ("product", "barycenter"):
        fusion = cs.fuse(sites_of(1), combine=how)
        row = fusion.intervals(0.5)[0]
        assert row.heterogeneity is None
        assert row.n_sites == 6
        _, low, _ = fusion.posterior.family.mean_intervals(fusion.posterior.natural, 0.5)
        assert row.low == low[0, 0]


def test_intervals_of_proportions_are_those_of_beta_laws():
    scipy_beta = pytest.importorskip("scipy.stats").beta
    family = f.Dirichlet(4)
    alpha = np.array([[3.0, 5.0, 0.5, 20.0]])
    mean, low, high = family.mean_intervals(family.to_natural(concentration=alpha), 0.8)
    assert_allclose(mean, alpha / alpha.sum())
    assert_allclose(low, scipy_beta.ppf(0.1, alpha, alpha.sum() - alpha), rtol=1e-9)
    assert_allclose(high, scipy_beta.ppf(0.9, alpha, alpha.sum() - alpha), rtol=1e-9)


def test_topics_keep_the_words_that_the_product_predicts_by():
    """Mean probabilities are the random effects', the total the product's; intervals are as wide as sites differ."""
    rng, family = np.random.default_rng(2), f.Dirichlet(30)
    shares = rng.dirichlet(np.full(30, 2.0), 3)
    prior = family.to_natural(concentration=np.full((1, 30), 0.1))[0]
    posteriors = []
    for _ in range(8):
        counts = np.stack([rng.multinomial(3000, rng.dirichlet(60.0 * row)) for row in shares]).astype(float)
        natural = family.to_natural(concentration=0.1 + counts)
        posteriors.append(Posterior(family, natural, prior=prior, counts=counts.sum(axis=1)))
    fused, record = averaged(posteriors)
    product, _ = averaged(posteriors, "product")
    total = family.location_information
    assert_allclose(total(fused.natural), total(product.natural), rtol=tolerances.ROUNDING)
    assert np.all(record.random_effects.interval_share < 0.1)
    fusion = cs.fuse(posteriors, n_components=3, combine="hierarchical")
    wide, narrow = fusion.intervals(), cs.fuse(posteriors, n_components=3, combine="product").intervals()
    assert np.mean([row.high - row.low for row in wide]) > 3 * np.mean([row.high - row.low for row in narrow])
    inside = {}
    for name, table in (("wide", wide), ("narrow", narrow)):
        nearest = {
            component: min(shares, key=lambda row, c=component: np.sum((row - means_of(table, c)) ** 2))
            for component in range(3)
        }
        inside[name] = np.mean([row.low < nearest[row.component][int(row.feature)] < row.high for row in table])
    assert inside["wide"] > 0.8 > 0.6 > inside["narrow"]


def means_of(table, component):
    return np.array([row.mean for row in table if row.component == component])


def test_overlapping_components_are_marked():
    rng = np.random.default_rng(0)
    family = f.NormalWishart(2)
    prior = family.to_natural(mean=np.zeros((1, 2)), kappa=[1e-3], inverse_scale=1e-3 * np.eye(2)[None], dof=[2.0])[0]
    centres = np.array([[0.0, 0.0], [2.5, 0.0], [30.0, 0.0]])
    posteriors = [
        Posterior(
            family,
            family.to_natural(
                mean=centres + 0.02 * rng.standard_normal((3, 2)), kappa=[200.0] * 3,
                inverse_scale=200.0 * np.tile(np.eye(2), (3, 1, 1)), dof=[200.0] * 3,
            ),
            prior=prior,
            counts=[200.0] * 3,
        )
        for _ in range(4)
    ]  # fmt: skip
    table = cs.fuse(posteriors, n_components=3).intervals()
    marked = {row.component: row.optimistic for row in table}
    means = {row.component: row.mean for row in table if row.feature == "0"}
    assert all(marked[component] == (mean < 10) for component, mean in means.items())
    assert "optimistic: overlaps" in str(table)


def test_pair_errors_of_like_gaussians_are_bounded_by_their_distance():
    """exp(-d^2 / 8) / 2 for two equal weights, above the exact error Phi(-d / 2)."""
    means, distance = np.array([[0.0, 0.0], [3.0, 0.0]]), 3.0
    full = pair_error_bounds(means, np.tile(np.eye(2), (2, 1, 1)), np.ones(2))
    diagonal = pair_error_bounds(means, np.ones((2, 2)), np.ones(2))
    assert_allclose(full, diagonal, rtol=tolerances.ROUNDING)
    assert_allclose(full[0, 1], 0.5 * np.exp(-(distance**2) / 8))
    assert full[0, 1] > 0.0668 > MAX_PAIR_ERROR


@pytest.mark.parametrize("level", [0, 1, -0.5, 1.5, "much", None])
def test_levels_that_are_no_probability_are_refused(level):
    with pytest.raises(OptionError, match=r"level.*between 0 and 1"):
        cs.fuse(sites_of(1)).intervals(level)


def test_components_without_means_have_no_intervals():
    with pytest.raises(InputError, match="a point has none"):
        cs.fuse(POINTS, "spahm").intervals()


def test_a_data_frame_needs_pandas(monkeypatch):
    table = cs.fuse(sites_of(1)).intervals()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UnsupportedError, match="pip install 'consilience\\[tables\\]'"):
        table.to_frame()
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=dict))
    columns = table.to_frame()
    assert columns["mean"] == [row.mean for row in table]
    assert list(columns) == [
        "component", "feature", "unit", "mean", "low", "high", "n_sites", "heterogeneity", "optimistic"
    ]  # fmt: skip


def test_files_and_pages_say_which_average_was_taken(tmp_path):
    fusion = cs.fuse(sites_of(1))
    fusion.save(tmp_path / "fused.safetensors")
    fusion.report(tmp_path / "report.html")
    result = fusion.provenance["result"]
    assert json.loads(json.dumps(result))["hierarchical"] == fusion.details["hierarchical"]
    assert "copies discounted by how much sites differ" in (tmp_path / "report.html").read_text()
    rows = dict(inspect_posterior(SafetensorsFile(tmp_path / "fused.safetensors")).rows)
    assert rows["average"] == "hierarchical: every model states its prior and its counts"


# -- Shards.


def shards_of(tmp_path, posteriors):
    for number, posterior in enumerate(posteriors):
        cs.save(posterior, tmp_path / "sites" / f"site-{number}.safetensors")
    cs.pack(tmp_path / "sites", tmp_path / "packed", shard_bytes=2**10)
    return tmp_path / "packed"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sites").mkdir()
    return tmp_path


def test_few_components_of_shards_are_averaged_as_in_memory(folder):
    posteriors = sites_of(1, sites=12)
    options = {"n_components": 4, "regularization": 0.0}
    packed = cs.fuse(shards_of(folder, posteriors), pilot_sites=5, **options)
    memory = cs.fuse(posteriors, **options)
    assert packed.details["average"] == memory.details["average"]
    assert packed.details["shards"] > 1
    order = np.argmin(packed.posterior.family.kl(packed.posterior.natural, memory.posterior.natural), axis=0)
    assert_allclose(packed.posterior.natural[order], memory.posterior.natural, rtol=tolerances.CONJUGATE_UPDATE)
    for name in ("widening", "effective_dof", "n_sites"):
        found, expected = (fusion.details["hierarchical"][name] for fusion in (packed, memory))
        assert_allclose(np.array(found)[order], expected, rtol=tolerances.CONJUGATE_UPDATE)


def test_very_many_components_of_shards_are_the_product_and_say_so(folder, monkeypatch):
    monkeypatch.setattr("consilience.posteriors.sharded.fuse.MAX_GATHERED_ROWS", 10)
    posteriors = sites_of(1, sites=12)
    shards, options = shards_of(folder, posteriors), {"n_components": 4, "regularization": 0.0, "pilot_sites": 5}
    fusion = cs.fuse(shards, **options)
    assert fusion.details["average"]["name"] == "product"
    assert "sums over shards give the Bayes product" in fusion.details["average"]["reason"]
    assert "priors" not in fusion.details["average"]
    assert_array_equal(fusion.posterior.natural, cs.fuse(shards, combine="product", **options).posterior.natural)
    with pytest.raises(InputError, match=r"takes all copies at once.*found 48.*'product'"):
        cs.fuse(shards, combine="hierarchical", **options)
    reverse = cs.fuse(shards, direction="reverse", **options).details["average"]
    assert reverse["name"] == "barycenter"
    assert "mean parameters" in reverse["reason"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"prior": None}, "no prior"), ({"counts": None}, "no counts"), ({"source": {"samples": "assumed"}}, "assumed")],
)
def test_very_many_components_of_shards_without_priors_or_counts_are_barycenters(folder, monkeypatch, fields, reason):
    monkeypatch.setattr("consilience.posteriors.sharded.fuse.MAX_GATHERED_ROWS", 10)
    shards = shards_of(folder, without(sites_of(1, sites=12), **fields))
    average = cs.fuse(shards, n_components=4, regularization=0.0, pilot_sites=5).details["average"]
    assert average["name"] == "barycenter"
    assert reason in average["reason"]


def test_priors_of_very_many_sites_that_differ_are_said(folder, monkeypatch):
    monkeypatch.setattr("consilience.posteriors.sharded.fuse.MAX_GATHERED_ROWS", 10)
    posteriors = sites_of(1, sites=12)
    family, prior = posteriors[3].family, posteriors[3].family.from_natural(posteriors[3].prior[None])
    other = family.to_natural(**{**prior, "kappa": 3.0 * prior["kappa"]})[0]
    posteriors[3] = Posterior(
        family, posteriors[3].natural + other - posteriors[3].prior, prior=other, counts=posteriors[3].counts
    )
    fusion = cs.fuse(shards_of(folder, posteriors), n_components=4, regularization=0.0, pilot_sites=5)
    assert "(natural parameter 3 from -0.0015 to -0.0005)" in fusion.details["average"]["priors"]
