"""What travels with the components is carried through the matching by the rule that it states."""

import functools
import itertools
import operator

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import consilience as cs
from consilience import families as f
from consilience.posteriors.average import carry, fused_attached
from consilience.posteriors.ensemble import Ensemble
from tests import tolerances

G, FIXED = 5, 3
FAMILY = f.SphericalGaussian(2)
PLACES = np.array([[0.0, 0.0], [20.0, 0.0], [0.0, 20.0], [20.0, 20.0], [-20.0, 5.0]])
OWN = ([3, 0, 1], [1, 4], [2, 0, 4, 3], [4, 1])  # the true component of each site's components
WEIGHTS = np.array([1.5, 0.5, 1.0, 1.0])
AXES = [
    (),
    ("component",),
    ("fixed",),
    ("component", "fixed"),
    ("fixed", "component"),
    ("component", "component"),
    ("component", "fixed", "component"),
]
every_axes = pytest.mark.parametrize("axes", AXES, ids=lambda axes: "-".join(axes) or "scalar")


def shape_of(axes, size):
    return tuple(size if tag == "component" else FIXED for tag in axes)


def sites_with(attach, rng, **columns):
    """The four sites; ``attach(number, own)`` gives what a site attaches."""
    sites = []
    for number, own in enumerate(OWN):
        mean = PLACES[own] + 0.1 * rng.normal(size=(len(own), 2))
        eta = FAMILY.to_natural(mean=mean, variance=np.full(len(own), 0.5))
        extra = {name: values[number] for name, values in columns.items()}
        sites.append(cs.Posterior(FAMILY, eta, attached=attach(number, own), **extra))
    return sites


def fuse(sites, weights=WEIGHTS, **options):
    """Return the outcome and the true component of each fused one."""
    method = cs.methods.KLFusion(**({"n_components": G} | options))
    outcome = method.fuse(Ensemble.of(sites, weights), np.random.default_rng(0))
    pairs = set(zip(outcome.matching.labels.tolist(), np.concatenate(OWN).tolist(), strict=True))
    true = dict(sorted(pair for pair in pairs if pair[0] >= 0))
    assert len(true) == outcome.posterior.n_components, "the planted matching was not found"
    return outcome, [true[g] for g in range(len(true))]


def entries(axes, own, array):
    """Yield (place among the true components, value) for every entry, one by one."""
    for index in itertools.product(*(range(size) for size in array.shape)):
        yield tuple(own[i] if tag == "component" else i for i, tag in zip(index, axes, strict=True)), array[index]


def collected(axes, arrays):
    """Place -> list of (site, value)."""
    places = {place: [] for place in itertools.product(*(range(n) for n in shape_of(axes, G)))}
    for number, (own, array) in enumerate(zip(OWN, arrays, strict=True)):
        for place, value in entries(axes, own, array):
            places[place].append((number, float(value)))
    return places


def at_places(axes, true, fused):
    """The fused array by place among the true components."""
    return dict(entries(axes, true, fused))


def carried(axes, rule, precisions=False):
    """Fuse random arrays; return them, their precisions, the places and the fused ones."""
    rng = np.random.default_rng(len(axes))
    arrays = [rng.normal(size=shape_of(axes, len(own))) for own in OWN]
    widths = [rng.gamma(1.0, size=shape_of(axes, len(own))) + 0.1 for own in OWN]

    def attach(number, _own):
        precision = widths[number] if precisions else None
        return {"thing": cs.Attached(arrays[number], axes, rule, precision)}

    outcome, true = fuse(sites_with(attach, rng))
    thing = outcome.posterior.attached["thing"]
    assert thing.axes == axes
    assert thing.rule == rule
    assert thing.values.shape == shape_of(axes, G)
    return collected(axes, arrays), collected(axes, widths), at_places(axes, true, thing.values), true, thing


@every_axes
def test_sums_are_weighted_by_site(axes):
    places, _, fused, *_ = carried(axes, "sum")
    for place, found in places.items():
        expected = sum(WEIGHTS[site] * value for site, value in found)
        assert_allclose(fused[place], expected, rtol=tolerances.ROUNDING, atol=tolerances.ROUNDING)


@every_axes
def test_means_are_over_the_sites_that_have_the_entry(axes):
    places, _, fused, *_ = carried(axes, "mean")
    for place, found in places.items():
        mass = sum(WEIGHTS[site] for site, _ in found)
        expected = sum(WEIGHTS[site] * value for site, value in found) / mass if found else 0.0
        assert_allclose(fused[place], expected, rtol=tolerances.ROUNDING, atol=tolerances.ROUNDING)


@every_axes
def test_precision_means_are_those_of_independent_measurements(axes):
    """And the precision of the result is the sum, so that fusing it again goes on where this stopped."""
    places, widths, fused, true, thing = carried(axes, "precision-mean", precisions=True)
    precision = at_places(axes, true, thing.precision)
    for place, found in places.items():
        if found:
            share = [WEIGHTS[site] * width for site, width in widths[place]]
            expected = np.average([value for _, value in found], weights=share)
            assert_allclose(fused[place], expected, rtol=tolerances.ROUNDING, atol=tolerances.ROUNDING)
            assert_allclose(precision[place], sum(share), rtol=tolerances.ROUNDING)


@every_axes
def test_kept_entries_are_some_site_s(axes):
    places, _, fused, *_ = carried(axes, "keep")
    for place, found in places.items():
        assert fused[place] in ([value for _, value in found] or [0.0])


def test_what_is_kept_does_not_depend_on_the_order_of_models():
    """Also where the sites differ in nothing else than the arrangement of what they attach."""
    eta = FAMILY.to_natural(mean=PLACES, variance=np.ones(G))
    levels = ([1.0, 2.0], [2.0, 1.0])
    sites = [cs.Posterior(FAMILY, eta, attached={"level": cs.Attached(level, ("fixed",), "keep")}) for level in levels]
    both = [
        cs.methods.KLFusion(n_components=G)
        .fuse(Ensemble.of(order), np.random.default_rng(0))
        .posterior.attached["level"]
        for order in (sites, sites[::-1])
    ]
    assert_array_equal(both[0].values, both[1].values)


def test_transition_counts_of_a_chain_add_up():
    """One long chain cut in four: each site numbers the states it saw its own way."""
    rng = np.random.default_rng(9)
    total = np.zeros((G, G))

    def attach(_number, own):
        moves = rng.integers(0, 50, size=(len(own), len(own))).astype(float)
        total[np.ix_(own, own)] += moves
        return {"moves": cs.Attached(moves, ("component", "component"), "sum")}

    outcome, true = fuse(sites_with(attach, rng), None)
    assert_array_equal(outcome.posterior.attached["moves"].values, total[np.ix_(true, true)])


def test_what_one_site_lacks_is_not_carried():
    def attach(number, own):
        level = {"level": cs.Attached(np.ones(len(own)), ("component",), "sum")}
        return level if number else level | {"own": cs.Attached(1.0, (), "keep")}

    outcome, _ = fuse(sites_with(attach, np.random.default_rng(1)))
    assert set(outcome.posterior.attached) == {"level"}


# -- Counts and mixture weights.


def nothing(_number, _own):
    return {}


COUNTS = [np.array([30.0, 50, 20]), np.array([15.0, 85]), np.array([5.0, 25, 35, 35]), np.array([60.0, 140])]
TOTALS = np.zeros(G)
for _own, _counts in zip(OWN, COUNTS, strict=True):
    TOTALS[_own] += _counts


@pytest.mark.parametrize("combine", ["barycenter", "product"])
def test_counts_and_weights_are_those_of_the_pooled_data(combine):
    """Where a site's weights are the shares of its observations, the fused weights are the shares of all."""
    shares = [counts / counts.sum() for counts in COUNTS]
    prior = FAMILY.to_natural(mean=[[0.0, 0.0]], variance=[1e3])
    sites = sites_with(nothing, np.random.default_rng(2), counts=COUNTS, weights=shares, prior=np.repeat(prior, 4, 0))
    outcome, true = fuse(sites, None, combine=combine)
    assert_allclose(outcome.posterior.counts, TOTALS[true], rtol=tolerances.ROUNDING)
    assert_allclose(outcome.posterior.weights, (TOTALS / TOTALS.sum())[true], rtol=tolerances.ROUNDING)


def test_weights_without_counts_are_the_mean_of_the_sites():
    shares = [counts / 7 for counts in COUNTS]  # they need not sum to one
    outcome, true = fuse(sites_with(nothing, np.random.default_rng(2), weights=shares))
    expected = np.zeros(G)
    for own, share, weight in zip(OWN, shares, WEIGHTS, strict=True):
        expected[own] += weight * share / share.sum()
    assert_allclose(outcome.posterior.weights, (expected / expected.sum())[true], rtol=tolerances.ROUNDING)


def test_components_with_too_few_observations_are_left_out():
    """Nothing of them is carried; the rest is as if the site had never sent them. One component is lost with them."""

    def attach(number, own):
        return {"level": cs.Attached(COUNTS[number], ("component",), "sum")}

    sites = sites_with(attach, np.random.default_rng(3), counts=COUNTS)
    outcome, true = fuse(sites, None, n_components=G - 1, min_matching_count=18.0)
    assert_array_equal(np.flatnonzero(outcome.matching.labels < 0), [3, 5])
    assert outcome.details["left_out"] == 2
    expected = TOTALS - np.bincount([OWN[1][0], OWN[2][0]], weights=[15.0, 5.0], minlength=G)
    assert_allclose(outcome.posterior.counts, expected[true], rtol=tolerances.ROUNDING)
    assert_allclose(outcome.posterior.attached["level"].values, expected[true], rtol=tolerances.ROUNDING)
    kept = [site.take(np.flatnonzero(counts >= 18.0)) for site, counts in zip(sites, COUNTS, strict=True)]
    without = cs.methods.KLFusion(n_components=G - 1).fuse(Ensemble.of(kept), np.random.default_rng(0))
    assert_allclose(outcome.posterior.natural, without.posterior.natural, rtol=tolerances.ROUNDING)


# -- Sums of shards, in whatever order they come.


def sums_of(sites, numbers, keys, axes):
    """The sums of some of the sites, as one shard carries them; the matching is the true one."""
    arrays = [sites[number].attached["array"] for number in numbers]
    offsets = np.concatenate([[0], np.cumsum([len(OWN[number]) for number in numbers])])
    labels = np.concatenate([OWN[number] for number in numbers])
    return carry(arrays, offsets, labels, WEIGHTS[list(numbers)], G, keys[list(numbers)])


@every_axes
@pytest.mark.parametrize("rule", ["sum", "mean", "keep", "precision-mean"])
def test_sums_of_shards_add_up_to_those_of_all_sites(axes, rule):
    def attach(_number, own):
        shape = shape_of(axes, len(own))
        precision = rng.gamma(2.0, size=shape) if rule == "precision-mean" else None
        return {"array": cs.Attached(rng.normal(size=shape), axes, rule, precision)}

    rng = np.random.default_rng(11)
    sites = sites_with(attach, rng)
    keys = np.array([7, 2, 9, 4], dtype=np.uint64)
    whole = fused_attached(sums_of(sites, range(4), keys, axes), axes, rule)
    for parts in ([(0, 1), (2, 3)], [(3, 1), (2, 0)], [(2,), (0, 3), (1,)]):
        sums = [sums_of(sites, numbers, keys, axes) for numbers in parts]
        together = fused_attached(functools.reduce(operator.add, sums), axes, rule)
        assert_allclose(together.values, whole.values, rtol=tolerances.ROUNDING, atol=tolerances.ROUNDING)
        assert (together.precision is None) == (whole.precision is None)
        if whole.precision is not None:
            assert_allclose(together.precision, whole.precision, rtol=tolerances.ROUNDING)


@every_axes
def test_what_is_kept_is_the_entry_of_the_site_of_the_lowest_key(axes):
    rng = np.random.default_rng(12)
    sites = sites_with(
        lambda _number, own: {"array": cs.Attached(rng.normal(size=shape_of(axes, len(own))), axes, "keep")}, rng
    )
    keys = np.array([7, 2, 9, 4], dtype=np.uint64)
    expected = np.zeros(shape_of(axes, G))
    for number in np.argsort(keys)[::-1].tolist():  # the lowest key is the last to write
        for place, value in entries(axes, OWN[number], sites[number].attached["array"].values):
            expected[place] = value
    for numbers in (range(4), (3, 2, 1, 0), (1, 0, 3, 2)):
        kept = fused_attached(sums_of(sites, tuple(numbers), keys, axes), axes, "keep")
        assert_array_equal(kept.values, expected)
