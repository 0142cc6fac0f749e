"""Laws of ``robust=True``: matching on the median site, sites judged as a whole, geometric medians of the rest."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import consilience as cs
from consilience.core.robust import (
    COPY,
    GATE_RADIUS,
    colluding_sites,
    copies_of_another,
    copy_weights,
    geometric_median_weights,
    judge,
    pairwise_squares,
    tolerated,
)
from consilience.errors import InputError, OptionError, RobustWarning
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.robust.median_site import (
    MEDIAN_OF_ATTACHED,
    JudgedInclusion,
    coordinates,
    judge_whole_mixtures,
)
from consilience.posteriors.robust.minority import Room
from consilience.posteriors.summary import notes_of
from tests import tolerances
from tests.families.zoo import NAMES, ZOO
from tests.posteriors.test_robust import everything, hostile, sites_of

pytestmark = pytest.mark.covering(2)

DIM, GROUPS = 2, np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0], [6.0, 6.0]])


def fused(sites, **options):
    return cs.methods.KLFusion(robust=True, **options).fuse(Ensemble.of(sites), np.random.default_rng(0))


def mixture(rng, shift=0.0, factor=1.0, groups=GROUPS, scale=1.0):
    """Return a site's mixture, its means moved by rows' noise and a `shift`, of `factor` times 100 rows a component."""
    family, n = cs.families.NormalWishart(dim=DIM), len(groups)
    means = scale * (groups + shift + 0.1 * rng.normal(size=(n, DIM)))
    spread = np.array([scale**2 * np.cov(rng.normal(size=(40, DIM)).T) for _ in range(n)])
    count = np.full(n, 100.0 * factor)
    natural = family.to_natural(
        mean=means, kappa=count + 1, dof=count + DIM, inverse_scale=spread * (count + DIM)[:, None, None]
    )
    prior = family.to_natural(mean=np.zeros((1, DIM)), kappa=[1.0], dof=[float(DIM)], scale=np.eye(DIM)[None])[0]
    return cs.Posterior(family, natural, prior=prior, counts=count, weights=count / count.sum())


def left_out(outcome):
    return sorted(record["model"] for record in outcome.details["robust"]["left_out"])


def ordered(posterior):
    """Return natural parameters in the order of their bytes, to compare components."""
    return posterior.natural[np.lexsort(posterior.natural.T[::-1])]


@pytest.mark.parametrize("family", NAMES)
def test_copies_are_a_fixed_point_and_nobody_is_left_out(family):
    site = sites_of(family, 1)[0]
    outcome = fused([site] * 5, combine="barycenter")
    assert left_out(outcome) == []
    assert_allclose(ordered(outcome.posterior), ordered(site), rtol=1e-6, atol=1e-9)
    assert_allclose(np.sort(outcome.posterior.counts), np.sort(5 * site.counts), rtol=tolerances.ROUNDING)


@pytest.mark.parametrize("family", NAMES)
def test_the_average_stays_in_the_domain_and_no_count_decides(family):
    honest = sites_of(family, 7)
    bad = [hostile(honest[0], family, seed) for seed in (1, 2, 3)]
    outcome = fused([*honest, *bad])
    assert ZOO[family].family.check(outcome.posterior.natural) == []
    largest = max(site.counts.max() for site in honest)
    assert (outcome.posterior.counts <= 10 * largest * (1 + tolerances.ROUNDING)).all()
    assert np.isfinite(np.concatenate([np.ravel(values) for values in everything(outcome.posterior)])).all()


@pytest.mark.parametrize("family", ["normal-wishart", "dirichlet", "diagonal-gaussian", "product"])
def test_neither_the_order_of_sites_nor_of_components_changes_anything(family):
    rng = np.random.default_rng(3)
    sites = [*sites_of(family, 6), hostile(sites_of(family, 1)[0], family)]
    plain = fused(sites).posterior
    moved = fused([site.take(rng.permutation(site.n_components)) for site in sites[::-1]]).posterior
    for one, other in zip(everything(plain), everything(moved), strict=True):
        assert_array_equal(one, other)


@pytest.mark.parametrize("attack", ["far", "near, colluding", "copies", "overclaim", "huge", "tiny"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_hostile_minorities_do_not_move_the_means_farther_than_honest_sites_differ(attack, count):
    rng = np.random.default_rng([count, 5])
    honest = [mixture(rng) for _ in range(10 - count)]
    bad = {
        "far": lambda: mixture(rng, shift=30.0),
        "near, colluding": lambda: mixture(rng, shift=0.8),
        "copies": lambda: honest[0],
        "overclaim": lambda: mixture(rng, shift=0.8, factor=1e6),
        "huge": lambda: mixture(rng, scale=1e3),
        "tiny": lambda: mixture(rng, groups=np.repeat(GROUPS[:1], 4, axis=0)),
    }[attack]
    outcome = fused([*honest, *(bad() for _ in range(count))])
    means = outcome.posterior.parameters()["mean"]
    distances = np.linalg.norm(means[:, None] - GROUPS, axis=2)
    assert outcome.posterior.n_components == len(GROUPS)
    assert distances.min(axis=0).max() < 0.3  # three deviations of one honest site
    assert outcome.posterior.counts.max() <= 10 * 100.0 * (1 + tolerances.ROUNDING)


def test_a_shift_and_a_common_scale_change_nothing():
    points = [mixture(np.random.default_rng(seed)).natural[0] for seed in range(6)]
    family, rng = cs.families.NormalWishart(dim=DIM), np.random.default_rng(0)
    eta = np.array(points)
    parameters = family.from_natural(eta)
    moved = family.to_natural(
        mean=3.0 * parameters["mean"] + rng.normal(size=DIM), kappa=parameters["kappa"], dof=parameters["dof"],
        scale=parameters["scale"] / 9.0,
    )  # fmt: skip
    assert_allclose(coordinates(family, eta), coordinates(family, moved), rtol=1e-9, atol=1e-9)


def test_a_site_of_another_prior_than_most_is_left_out():
    rng = np.random.default_rng(0)
    sites = [mixture(rng) for _ in range(6)]
    other = sites[2]
    sites[2] = cs.Posterior(
        other.family, other.natural, prior=1e6 * other.prior, counts=other.counts, weights=other.weights
    )
    outcome = fused(sites)
    assert outcome.details["robust"]["left_out"] == [{"model": "model 2", "step": "another prior than most"}]
    assert "model 2: left out by `robust=True` (another prior than most)" in notes_of(outcome.details)


def test_invented_components_are_dropped():
    rng = np.random.default_rng(0)
    sites = [mixture(rng) for _ in range(7)]
    sites += [mixture(rng, groups=np.concatenate([GROUPS, [[40.0, 40.0], [-40.0, 0.0]]])) for _ in range(3)]
    assert fused(sites).posterior.n_components == len(GROUPS)


def test_by_name_a_minority_is_kept_with_a_warning_only():
    sites = [mixture(np.random.default_rng(seed)) for seed in range(4)]
    with pytest.warns(RobustWarning, match="minority='keep'"):
        cs.fuse(sites, method="kl", robust="trim", minority="keep")
    assert cs.fuse(sites, method="kl", robust="trim").details.get("minority") is None


def test_what_it_means_nothing_for_is_refused():
    sites = [mixture(np.random.default_rng(seed)) for seed in range(4)]
    with pytest.raises(InputError, match="at least 3 models"):
        cs.fuse(sites[:2], method="kl", robust=True)
    with pytest.raises(InputError, match="number of components from the median site"):
        cs.fuse(sites, method="kl", robust=True, n_components=3)
    with pytest.raises(OptionError, match="robust"):
        cs.fuse(sites, method="kl", robust="mean")


# -- The judgement of sites.


def test_the_geometric_median_has_the_least_sum_of_distances():
    rng = np.random.default_rng(1)
    points = rng.normal(size=(9, 4))
    weights, distances = geometric_median_weights(pairwise_squares(points), np.ones(9))
    centre = weights @ points
    assert_allclose(distances, np.linalg.norm(points - centre, axis=1), rtol=1e-9)
    least = np.linalg.norm(points - centre, axis=1).sum()
    for step in 0.01 * rng.normal(size=(50, 4)):
        assert np.linalg.norm(points - centre - step, axis=1).sum() >= least * (1 - 1e-6)


@pytest.mark.parametrize("n_sites", [3, 4, 7, 10, 11])
@pytest.mark.parametrize("seed", range(5))
def test_what_passes_the_gate_is_near_and_fewer_than_half_are_left_out(n_sites, seed):
    rng = np.random.default_rng([n_sites, seed])
    points = rng.normal(size=(n_sites, 30))
    k = int(rng.integers(0, tolerated(n_sites) + 1))
    points[:k] += 10.0 ** rng.uniform(-1, 8, size=(k, 1)) * rng.normal(size=(k, 30))
    verdict = judge([(np.arange(n_sites), pairwise_squares(points))], n_sites, 30)
    n_copies = sum(step == COPY for step in verdict.steps.values())
    n_out = np.count_nonzero(~verdict.kept) - n_copies
    assert n_copies <= tolerated(n_sites)
    assert n_out <= tolerated(n_sites - n_copies)
    if n_out < tolerated(n_sites - n_copies):
        assert (verdict.scores[verdict.kept] <= GATE_RADIUS).all()


@pytest.mark.parametrize("size", [1e6, 1e12, 1e16, 1e20, 1e50, 1e100])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_sites_of_absurd_size_are_left_out_and_do_not_hide_what_the_others_differ_by(size, count):
    points = np.random.default_rng(count).normal(size=(10, 50))
    points[10 - count :] *= size
    verdict = judge([(np.arange(10), pairwise_squares(points))], 10, 50)
    assert np.flatnonzero(~verdict.kept).tolist() == list(range(10 - count, 10))
    assert np.ptp(verdict.scores[: 10 - count]) > 0.01


def mimicking(seed, n_mimics, noise, n_coordinates, n_sites=10):
    """Return points of sites of which the last send the first one's again, with so many deviations of noise."""
    rng = np.random.default_rng([seed, n_coordinates])
    points = rng.normal(size=(n_sites, n_coordinates))
    points[n_sites - n_mimics :] = points[0] + noise * rng.normal(size=(n_mimics, n_coordinates))
    return points


@pytest.mark.parametrize(("n_coordinates", "noise"), [(8, 0.01), (25, 0.2), (60, 0.6), (2000, 0.6)])
@pytest.mark.parametrize("n_mimics", [1, 2, 3, 4])
def test_copies_of_each_other_count_as_one_site_however_many_they_are(n_mimics, n_coordinates, noise):
    for seed in range(5):
        points = mimicking(seed, n_mimics, noise, n_coordinates)
        copies = copies_of_another(np.sqrt(pairwise_squares(points)), n_coordinates, tolerated(10))
        group = [0, *range(10 - n_mimics, 10)]
        assert copies[group].sum() == n_mimics, "one of them stays"
        assert not np.delete(copies, group).any()


@pytest.mark.parametrize("n_coordinates", [1, 2, 3, 8, 25, 60, 2000])
@pytest.mark.parametrize("n_sites", [3, 6, 10, 25])
def test_honest_sites_are_copies_of_each_other_no_more_often_than_once_in_a_hundred(n_sites, n_coordinates):
    rng = np.random.default_rng([n_sites, n_coordinates])
    rounds = [np.sqrt(pairwise_squares(rng.normal(size=(n_sites, n_coordinates)))) for _ in range(200)]
    assert sum(copies_of_another(one, n_coordinates, tolerated(n_sites)).any() for one in rounds) <= 2


def test_no_more_sites_are_copies_than_may_be_hostile_and_of_equal_sites_nobody_is():
    points = mimicking(0, 7, 1e-6, 30)  # eight of ten are one: the usual distance is theirs
    assert not copies_of_another(np.sqrt(pairwise_squares(points)), 30, 4).any()
    pairs = np.repeat(np.random.default_rng(0).normal(size=(5, 30)), 2, axis=0)
    pairs[::2] += 1e-6
    assert copies_of_another(np.sqrt(pairwise_squares(pairs)), 30, 4).sum() == 4
    assert not copies_of_another(np.zeros((10, 10)), 30, 4).any()


def fits_in_different_optima(seed):
    """Return ten sites' points: four near each other, as sampling lets them be, and six whose fits ended elsewhere."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.normal(size=(4, 12)), 12.0 * rng.normal(size=(6, 12)) + rng.normal(size=(6, 12))])


@pytest.mark.parametrize("seed", range(5))
def test_the_few_whose_fits_went_right_are_no_copies_where_sampling_tells(seed):
    squares = pairwise_squares(fits_in_different_optima(seed))
    by_sampling = 24.0  # what these four differ by on average
    assert copies_of_another(np.sqrt(squares), 12, 4).any()
    assert not copies_of_another(np.sqrt(squares), 12, 4, squares / by_sampling)[:4].any()
    copied = fits_in_different_optima(seed)
    copied[1:4] = copied[0] + 0.3 * np.random.default_rng(seed).normal(size=(3, 12))
    squares = pairwise_squares(copied)
    assert copies_of_another(np.sqrt(squares), 12, 4, squares / by_sampling)[:4].sum() == 3


def test_far_sites_stay_where_all_that_may_be_hostile_are_copies_that_sampling_does_not_bring_so_near():
    points = fits_in_different_optima(0)
    points[1:4] = points[0] + 0.1 * np.random.default_rng(0).normal(size=(3, 12))
    points[8:] *= 30.0
    verdict = judge([(np.arange(10), pairwise_squares(points))], 10, 12, by_sampling=[24.0])
    assert [verdict.steps[site] for site in verdict.steps].count(COPY) == 3
    assert np.count_nonzero(~verdict.kept) == tolerated(10)
    assert np.count_nonzero(~judge([(np.arange(10), pairwise_squares(points))], 10, 12).kept) > tolerated(10)


PLACES = np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]])
APART, FIRST_TWO_AS_ONE, FIRST_AND_LAST_AS_ONE = [[0], [1], [2]], [[0, 1], [2], [2]], [[0, 2], [1], [1]]


def fit_in_optimum(rng, places_of_components):
    """Return a site of 300 rows, 100 about each of three places, with components on one or two of these."""
    family, per_place = cs.families.NormalWishart(dim=DIM), np.bincount(np.concatenate(places_of_components))
    counts = np.array([sum(100.0 / per_place[place] for place in places) for places in places_of_components])
    means = np.array([PLACES[places].mean(axis=0) for places in places_of_components])
    spreads = np.array([np.eye(DIM) + np.cov(PLACES[places].T, bias=True) for places in places_of_components])
    natural = family.to_natural(
        mean=means + 0.1 * rng.normal(size=means.shape), kappa=counts + 1, dof=counts + DIM,
        inverse_scale=spreads * (counts + DIM)[:, None, None],
    )  # fmt: skip
    prior = family.to_natural(mean=np.zeros((1, DIM)), kappa=[1.0], dof=[float(DIM)], scale=np.eye(DIM)[None])[0]
    return cs.Posterior(family, natural, prior=prior, counts=counts, weights=counts / counts.sum())


@pytest.mark.parametrize("n_hostile", [0, 2])
def test_components_that_few_sites_hold_and_others_have_room_for_are_no_average_of_both(n_hostile):
    rng = np.random.default_rng(n_hostile)
    optima = [*[APART] * 4, *[FIRST_TWO_AS_ONE] * (3 - n_hostile), *[FIRST_AND_LAST_AS_ONE] * 3]
    sites = [fit_in_optimum(rng, optimum) for optimum in optima]
    sites += [mixture(rng, shift=30.0, groups=PLACES) for _ in range(n_hostile)]
    outcome = fused(sites)
    means = outcome.posterior.parameters()["mean"]
    nearest = np.linalg.norm(means[:, None] - PLACES, axis=2).min(axis=0)
    assert nearest.max() < 0.5
    assert means.max() < 6.0


@pytest.mark.parametrize("seed", range(3))
def test_drifts_that_are_as_many_as_the_fits_that_went_right_are_told_by_the_whole_mixtures(seed):
    rng = np.random.default_rng(seed)
    optima = [*[APART] * 3, *[FIRST_TWO_AS_ONE] * 2, *[FIRST_AND_LAST_AS_ONE] * 2]
    drifts = [fit_in_optimum(rng, APART) for _ in range(3)]
    drifts = [within(site, site.parameters()["mean"] + 1.5) for site in drifts]
    outcome = fused([*(fit_in_optimum(rng, optimum) for optimum in optima), *drifts])
    assert len({"model 7", "model 8", "model 9"} & set(left_out(outcome))) >= 2
    means = outcome.posterior.parameters()["mean"]
    assert np.linalg.norm(means[:, None] - PLACES, axis=2).min(axis=0).max() < 0.3


def test_the_whole_mixture_does_not_depend_on_the_optimum_of_a_fit():
    rng = np.random.default_rng(0)
    optima = [*[APART] * 5, *[FIRST_TWO_AS_ONE] * 5]
    sites = [fit_in_optimum(rng, optimum) for optimum in optima]
    assert np.count_nonzero(~judge_whole_mixtures(Ensemble.of(sites)).kept) <= 1
    sites[0] = mixture(rng, shift=30.0, groups=PLACES)
    judgement = judge_whole_mixtures(Ensemble.of(sites))
    assert not judgement.kept[0]
    assert np.count_nonzero(~judgement.kept) <= 2


def test_of_points_without_spread_there_is_no_whole_mixture():
    assert judge_whole_mixtures(Ensemble.of(sites_of("dirichlet", 4))) is None


@pytest.mark.parametrize(("n_elsewhere", "is_one"), [(0, True), (1, True), (2, False)])
def test_fits_of_which_a_third_end_elsewhere_are_not_in_one_optimum(n_elsewhere, is_one):
    """The wide component of four sites has room for the narrow one of the others, which has none for it."""
    rng = np.random.default_rng(0)
    sites = [fit_in_optimum(rng, optimum) for optimum in [*[FIRST_TWO_AS_ONE] * 4, *[APART] * n_elsewhere]]
    labels = np.concatenate([[0, 1, 2] * 4, [0, -1, 1] * n_elsewhere]).astype(np.int64)
    assert Room.of(Ensemble.of(sites), labels).is_of_one_kind == is_one


def test_the_verdict_names_fits_in_different_optima():
    rng = np.random.default_rng(1)
    optima = [*[APART] * 4, *[FIRST_TWO_AS_ONE] * 2, *[FIRST_AND_LAST_AS_ONE] * 3]
    sites = [*(fit_in_optimum(rng, one) for one in optima), mixture(rng, shift=30.0, groups=PLACES)]
    assert "ended in different optima" in cs.fuse(sites, "kl", robust=True).verdict.text
    in_one = cs.fuse([fit_in_optimum(rng, APART) for _ in range(10)], "kl", robust=True)
    assert "ended in different optima" not in in_one.verdict.text


@pytest.mark.parametrize("n_left", [4, 5, 10])
def test_sums_are_not_cut_to_those_of_sites_that_take_no_part(n_left):
    rng, n = np.random.default_rng(0), len(GROUPS)
    moves = cs.Attached(np.full((n, n), 30.0), ("component", "component"), "sum")
    sites = [replace(mixture(rng), attached={"moves": moves}) for _ in range(10)]
    labels = np.concatenate([np.tile(np.arange(n), n_left), np.full(n * (10 - n_left), -1)])
    inclusion = JudgedInclusion(MEDIAN_OF_ATTACHED, "forward", is_total=True)
    total = inclusion.attached([moves] * 10, Ensemble.of(sites), labels, n)
    assert_allclose(total.values, n_left * moves.values, rtol=tolerances.ROUNDING)


def test_a_component_of_two_sites_for_which_nobody_has_room_is_dropped():
    rng = np.random.default_rng(0)
    optima = [*[APART] * 3, *[FIRST_TWO_AS_ONE, FIRST_AND_LAST_AS_ONE] * 2]
    sites = [fit_in_optimum(rng, optimum) for optimum in optima]
    rare = [mixture(rng, groups=np.concatenate([PLACES[:2], [[12.0, 12.0]]])) for _ in range(2)]
    assert fused([*sites, *rare]).posterior.parameters()["mean"].max() < 6.0


def test_what_a_site_claims_does_not_make_it_no_copy():
    """Sampling is of the usual count of a group: mimics that claim many rows are as near as before."""
    rng = np.random.default_rng(0)
    honest = [mixture(rng) for _ in range(6)]
    for factor in (1.0, 1e6):
        mimics = []
        for _ in range(3):
            copy = within(honest[0], honest[0].parameters()["mean"] + 1e-3 * rng.normal(size=GROUPS.shape))
            counts = factor * copy.counts
            mimics.append(
                cs.Posterior(copy.family, copy.natural, prior=copy.prior, counts=counts, weights=copy.weights)
            )
        records = fused([*honest, *mimics]).details["robust"]["left_out"]
        assert [record["step"] for record in records].count(COPY) == 3


def test_mimics_of_one_honest_site_are_no_majority_with_it():
    """Four mimics and the site that they copy are five of ten: they counted each, and the gate left the others out."""
    errors = {}
    for seed in range(4):
        rng = np.random.default_rng([seed, 4])
        honest = [mixture(rng) for _ in range(6)]
        means = np.stack([site.parameters()["mean"] for site in honest])
        farthest = honest[int(np.argmax(((means - means.mean(axis=0)) ** 2).sum(axis=(1, 2))))]
        mimics = [
            within(farthest, farthest.parameters()["mean"] + noise * means.std(axis=0) * rng.normal(size=GROUPS.shape))
            for noise in (0.01, 0.02, 0.3, 0.3)
        ]

        def error(sites, **options):
            fusion = cs.fuse(sites, method="kl", rng=0, **options)
            found = fusion.posterior.parameters()["mean"]
            return float(((found[:, None] - GROUPS) ** 2).sum(axis=2).min(axis=0).sum())

        errors.setdefault("clean", []).append(error(honest))
        errors.setdefault("plain", []).append(error([*honest, *mimics]))
        errors.setdefault("robust", []).append(error([*honest, *mimics], robust=True))
    clean, plain, robust = (np.sqrt(np.mean(errors[name])) for name in ("clean", "plain", "robust"))
    assert robust <= 1.2 * clean
    assert robust < plain


def colluders(seed, shift=-1.5, noise=0.7, n_hostile=3, n_coordinates=100):
    """Return ten sites' points, of which the last push together by `shift` deviations, each with noise of its own."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(10, n_coordinates))
    points[10 - n_hostile :] = shift + noise * rng.normal(size=(n_hostile, n_coordinates))
    return points


@pytest.mark.parametrize("n_hostile", [2, 3, 4])
def test_sites_that_push_together_are_left_out_whatever_noise_each_adds(n_hostile):
    for seed in range(20):
        found = colluding_sites(pairwise_squares(colluders(seed, n_hostile=n_hostile)), tolerated(10))
        assert_array_equal(np.flatnonzero(found), np.arange(10 - n_hostile, 10), err_msg=f"seed {seed}")


def test_honest_sites_are_no_cluster_more_often_than_once_in_a_hundred():
    squares = [pairwise_squares(colluders(seed, n_hostile=0)) for seed in range(500)]
    assert sum(colluding_sites(one, tolerated(10)).any() for one in squares) <= 5


def test_sites_that_differ_along_one_direction_without_a_gap_are_no_cluster():
    rng = np.random.default_rng(0)
    direction = rng.normal(size=60)
    for spread in (rng.normal(size=10), np.linspace(-3.0, 3.0, 10), rng.exponential(size=10)):
        points = 4.0 * spread[:, None] * direction + rng.normal(size=(10, 60))
        assert not colluding_sites(pairwise_squares(points), tolerated(10)).any()


def test_a_cluster_is_found_in_every_order_scale_and_place_of_the_sites():
    points, rng = colluders(1), np.random.default_rng(2)
    order = rng.permutation(10)
    expected = colluding_sites(pairwise_squares(points), 4)[order]
    assert expected.sum() == 3
    assert_array_equal(colluding_sites(pairwise_squares(1e3 * points[order] + 7.0), 4), expected)


def test_no_more_sites_are_a_cluster_than_may_be_left_out():
    squares = pairwise_squares(colluders(0, n_hostile=4))
    assert not colluding_sites(squares, 3)[6:].all()
    assert not colluding_sites(squares, 1).any()
    assert not colluding_sites(pairwise_squares(np.repeat([[0.0], [1.0]], [6, 3], axis=0)), 4).any()  # most are equal


def test_colluding_sites_with_noise_move_a_mixture_no_farther_than_nobody():
    rng = np.random.default_rng(3)
    groups = 6.0 * np.stack(np.meshgrid(np.arange(4.0), np.arange(4.0)), axis=-1).reshape(-1, DIM)
    honest = [mixture(rng, groups=groups) for _ in range(10)]
    means = np.stack([site.parameters()["mean"] for site in honest[:7]])
    pushed = means.mean(axis=0) - 5.0 * means.std(axis=0, ddof=1)
    jittered = [mixture(rng, groups=pushed + 0.05 * rng.normal(size=pushed.shape)) for _ in range(3)]
    clean, outcome = fused(honest[:7]), fused([*honest[:7], *jittered])
    steps = {record["model"]: record["step"] for record in outcome.details["robust"]["left_out"]}
    assert steps == {"model 7": "collusion", "model 8": "collusion", "model 9": "collusion"}
    assert_allclose(ordered(outcome.posterior), ordered(clean.posterior), rtol=tolerances.ROUNDING)


def test_copies_far_from_their_group_have_no_weight_in_it_and_few_copies_all_have():
    rng = np.random.default_rng(4)
    points = rng.normal(size=(10, 20))
    points[7:] += 6.0
    weights = copy_weights(pairwise_squares(points), np.ones(10))
    assert weights[7:].sum() == 0.0
    assert (weights[:7] > 0).all()
    assert weights.sum() == pytest.approx(1.0)
    few = np.array([[0.0], [0.1], [0.2], [9.0]])
    assert (copy_weights(pairwise_squares(few), np.ones(4)) > 0).all()


def within(like, mean):
    """Return a site with other means, which is as another one besides."""
    natural = like.family.to_natural(**{**like.family.from_natural(like.natural), "mean": mean})
    return cs.Posterior(like.family, natural, prior=like.prior, counts=like.counts, weights=like.weights)


def within_the_honest_range(rng, sites, like):
    """Return a site 1.5 deviations off the means of others, with noise of its own; the rest is as at an honest one."""
    means = np.stack([site.parameters()["mean"] for site in sites])
    moved = means.mean(axis=0) - 1.5 * means.std(axis=0) + 0.7 * means.std(axis=0) * rng.normal(size=means.shape[1:])
    return within(like, moved)


def drifting(rng):
    """Return an honest site whose means differ from others' far more than its covariances do."""
    return mixture(rng, shift=0.3 * rng.normal(size=GROUPS.shape))


@pytest.mark.parametrize(("count", "by_raw_coordinates"), [(3, 6), pytest.param(4, 4, marks=pytest.mark.slow)])
def test_of_colluders_who_have_in_common_what_they_leave_alone_one_stays_at_most(count, by_raw_coordinates):
    found = 0
    for seed in range(20):
        rng = np.random.default_rng([seed, 8])
        honest = [drifting(rng) for _ in range(10 - count)]
        bad = [within_the_honest_range(rng, honest, honest[0]) for _ in range(count)]
        found += len({f"model {site}" for site in range(10 - count, 10)} - set(left_out(fused([*honest, *bad])))) <= 1
    assert found >= 2 * by_raw_coordinates - 2  # of 20, where raw coordinates alone find so many


@pytest.mark.slow
def test_standardized_judgement_leaves_out_hardly_any_honest_site(monkeypatch):
    def n_left_out():
        rngs = (np.random.default_rng([seed, 9]) for seed in range(40))
        return sum(len(left_out(fused([drifting(rng) for _ in range(10)]))) for rng in rngs)

    n_in_both = n_left_out()
    nobody = "consilience.posteriors.robust.median_site.standardized_squares"
    monkeypatch.setattr(nobody, lambda rows: np.zeros((len(rows), len(rows))))
    assert n_in_both <= n_left_out() + 4  # one in a hundred
