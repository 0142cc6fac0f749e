"""The law of atoms and their copies against equations (10) as loops and dense normals, on easy and on hopeless data."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

import consilience as cs
from consilience import families as f
from consilience.matching.beta_bernoulli import AtomLaw
from consilience.matching.groups import GroupSums
from consilience.posteriors.methods.spahm.atom_law import (
    AtomStatistics,
    initial_law,
    point_variances,
    update_law,
)
from tests import tolerances
from tests.matching.log_posterior import LogPosterior, fused, law_of

pytestmark = pytest.mark.covering(2)

EXACT = tolerances.KL_MATRIX_PRODUCT
FLOOR = 1e-10


def copies_of(groups):
    points = np.concatenate(groups)
    sums = GroupSums(np.array([v.sum(axis=0) for v in groups]), np.array([float(len(v)) for v in groups]))
    return AtomStatistics(sums, (points**2).sum(axis=0)), point_variances(points)


def by_dimension(groups, law):
    """log p of all copies (D,), each group a dense normal in each dimension."""
    total = np.zeros(len(law.mean))
    for v in groups:
        covariance = law.within[:, None, None] * np.eye(len(v)) + law.between[:, None, None]
        offset = (v - law.mean).T[:, :, None]
        squares = (offset * np.linalg.solve(covariance, offset)).sum(axis=(1, 2))
        total -= (squares + np.linalg.slogdet(2 * np.pi * covariance)[1]) / 2
    return total


def equations_10(groups, law):
    """mu0, s and s0 (D,) as published: the variance of copies stays where no group has two members."""
    size, count = sum(len(v) for v in groups), len(groups)
    mean, within, between = np.zeros_like(law.mean), np.array(law.within), np.zeros_like(law.mean)
    for d in range(len(mean)):
        means = [v[:, d].sum() / len(v) for v in groups]
        mean[d] = sum(means) / count
        if size > count:
            within[d] = sum((x - m) ** 2 for v, m in zip(groups, means, strict=True) for x in v[:, d]) / (size - count)
        between[d] = sum((m - mean[d]) ** 2 for m in means) / count
        between[d] -= within[d] * sum(1 / len(v) for v in groups) / count
    return mean, within, between


def random_groups(seed, apart=3.0, dim=3, most=5):
    """Groups of one to a few members, their atoms `apart` standard deviations of a copy from one another."""
    rng = np.random.default_rng([seed, 31])
    sizes = rng.integers(1, most + 1, rng.integers(2, 8))
    return [rng.normal(5 + apart * rng.normal(size=dim), 1.0, (n, dim)) for n in sizes]


def some_law(seed, dim=3):
    rng = np.random.default_rng([seed, 32])
    return AtomLaw(5 + rng.normal(size=dim), np.exp(rng.normal(size=dim)), 5 * np.exp(rng.normal(size=dim)))


# -- One estimate.


@pytest.mark.parametrize("apart", [0.0, 0.5, 3.0])
def test_an_estimate_is_the_published_one_where_that_pays_and_never_lowers_the_posterior(apart):
    """From laws far off, from laws that (10) would worsen, and where (10) asks for a negative variance."""
    taken, refused, negative = 0, 0, 0
    for seed in range(25):
        groups = random_groups(seed, apart)
        copies, spread = copies_of(groups)
        law = some_law(seed)
        for _ in range(5):
            before, found = by_dimension(groups, law), update_law(copies, law, spread)
            after = by_dimension(groups, found)
            assert np.all(after >= before - EXACT * np.abs(before))
            assert np.all(found.within >= FLOOR * spread * (1 - EXACT))
            assert np.all(found.between >= FLOOR * spread * (1 - EXACT))
            mean, within, between = equations_10(groups, law)
            valid = between > FLOOR * spread
            there = by_dimension(groups, AtomLaw(mean, within, np.where(valid, between, 1.0)))
            pays = valid & (there >= before + EXACT * np.abs(before))
            assert_allclose(found.mean[pays], mean[pays], rtol=EXACT)
            assert_allclose(found.within[pays], within[pays], rtol=EXACT)
            assert_allclose(found.between[pays], between[pays], rtol=EXACT)
            taken, refused, law = taken + pays.sum(), refused + (~pays).sum(), found
            negative += (between < 0).sum()
    assert min(taken, refused) > 0
    assert negative > 0 or apart == 3.0


@pytest.mark.parametrize("sizes", [(3, 3, 3, 3), (2, 2)], ids=str)
def test_with_groups_of_one_size_the_published_estimate_is_the_likeliest(sizes):
    """The balanced design: no law that a numerical search finds is likelier."""
    rng = np.random.default_rng(1)
    groups = [rng.normal(4 * rng.normal(size=1), 0.5, (n, 1)) for n in sizes]
    copies, spread = copies_of(groups)
    found = update_law(copies, some_law(0, 1), spread)
    mean, within, between = equations_10(groups, some_law(0, 1))
    assert_allclose([found.mean, found.within, found.between], [mean, within, between], rtol=EXACT)

    def cost(x):
        return -by_dimension(groups, AtomLaw(x[:1], np.exp(x[1:2]), np.exp(x[2:])))[0]

    start = np.concatenate([mean, np.log(within), np.log(between)])
    best = minimize(cost, start, method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-12, "maxiter": 5000})
    assert_allclose(start, best.x, rtol=tolerances.FLAT_MINIMUM, atol=tolerances.FLAT_MINIMUM)


def test_estimates_repeated_reach_the_likeliest_law():
    """Groups of different sizes: (10) is biased there, and what follows it must not stop at its bias."""
    for seed in range(4):
        groups = random_groups(seed, 2.0, dim=1)
        copies, spread = copies_of(groups)
        law = some_law(seed, 1)
        for _ in range(1000):
            law = update_law(copies, law, spread)

        def cost(x, groups=groups):
            return -by_dimension(groups, AtomLaw(x[:1], np.exp(x[1:2]), np.exp(x[2:])))[0]

        start = np.concatenate([law.mean, np.log(law.within), np.log(law.between)])
        best = minimize(cost, start, method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-12, "maxiter": 5000})
        assert_allclose(cost(start), best.fun, rtol=tolerances.FLAT_MINIMUM)


@pytest.mark.parametrize("apart", [0.0, 0.5, 3.0])
def test_two_variances_for_all_dimensions_never_lower_the_posterior(apart):
    for seed in range(15):
        groups, law = random_groups(seed, apart), some_law(seed)
        law = AtomLaw(law.mean, np.full(3, law.within[0]), np.full(3, law.between[0]))
        copies, spread = copies_of(groups)
        for _ in range(4):
            before, found = by_dimension(groups, law).sum(), update_law(copies, law, spread, scalar=True)
            assert np.ptp(found.within) == np.ptp(found.between) == 0
            assert by_dimension(groups, found).sum() >= before - EXACT * abs(before)
            law = found


def test_the_stated_likelihood_is_that_of_dense_normals_wherever_the_origin_is():
    for seed in range(5):
        groups, law = random_groups(seed), some_law(seed)
        copies, origin = copies_of(groups)[0], np.array([5.0, -3.0, 0.5])
        expected = by_dimension(groups, law) + sum(len(v) for v in groups) / 2 * np.log(2 * np.pi)
        assert_allclose(copies.log_likelihoods(law), expected, rtol=EXACT)
        moved = AtomLaw(law.mean - origin, law.within, law.between)
        assert_allclose(copies.about(origin).log_likelihoods(moved), expected, rtol=EXACT)


# -- Whole fusions on data where the published estimates break down.


def badly_separated(seed):
    """Sites of points from one cloud, or nearly: atoms no farther apart than copies, some coordinates shared."""
    rng = np.random.default_rng([seed, 33])
    dim, n_sites = int(rng.integers(1, 4)), int(rng.integers(2, 7))
    sites = [rng.normal(size=(int(rng.integers(1, 6)), dim)) * 10.0 ** rng.integers(-4, 5) for _ in range(n_sites)]
    match seed % 4:
        case 0:
            sites = [rng.normal(size=v.shape) for v in sites]
        case 1:
            sites = [np.round(v / np.abs(v).max()) for v in sites]  # many ties
        case 2:
            sites = [np.concatenate([np.full((len(v), 1), 7.0), v], axis=1) for v in sites]  # a constant coordinate
    return sites


@pytest.mark.parametrize("variances", ["dimension", "scalar"])
@pytest.mark.parametrize("block", range(4))
def test_variances_stay_positive_on_badly_separated_points(block, variances):
    """The published code takes the square root of a negative variance there."""
    for seed in range(block, 24, 4):
        sites = badly_separated(seed)
        fusion = fused(sites, variances=variances, restarts=1)
        law, history = law_of(fusion), fusion.history
        assert np.all(law.within > 0)
        assert np.all(law.between > 0)
        assert np.all(np.isfinite([law.mean, law.within, law.between]))
        assert np.all(np.isfinite(history))
        assert np.all(np.diff(history) <= tolerances.DESCENT * np.abs(history[:-1]))
        assert np.all(np.isfinite(fusion.posterior.natural))


def test_the_law_of_a_fusion_is_no_less_likely_than_the_published_estimates():
    """Given the matching that was found, which the published estimates of another matching may have led to."""
    for seed in range(0, 24, 4):
        sites = badly_separated(seed)
        fusion, points = fused(sites, restarts=1), np.concatenate(sites)
        law, labels = law_of(fusion), fusion.matching.labels
        mean, within, between = equations_10([points[labels == g] for g in np.unique(labels)], law)
        if np.all(within > 0) and np.all(between > 0):
            ours, theirs = (LogPosterior(points, len(sites), one) for one in (law, AtomLaw(mean, within, between)))
            assert ours(labels) >= theirs(labels) - tolerances.FLAT_MINIMUM * abs(theirs(labels))


# -- Where it starts, and dimensions by themselves.


@pytest.mark.parametrize("seed", range(5))
def test_the_law_starts_from_distances_to_the_nearest_point_of_another_site(seed):
    rng = np.random.default_rng([seed, 33])
    sizes = rng.integers(1, 5, 4)
    owner, points = np.repeat(np.arange(4), sizes), rng.normal(3.0, [0.5, 20.0], (sizes.sum(), 2))
    spread = point_variances(points)
    law = initial_law(points, np.concatenate([[0], np.cumsum(sizes)]), spread)
    nearest = [
        min(((one - other) ** 2 / spread).sum() for other in points[owner != site])
        for one, site in zip(points, owner, strict=True)
    ]
    share = min(max(np.mean(nearest) / 2 / 2, 1e-6), 1.0)  # half a squared distance, over two dimensions
    assert_allclose(law.within, share * spread, rtol=EXACT)
    assert_allclose(law.between, spread, rtol=EXACT)
    assert_allclose(law.mean, points.mean(axis=0), rtol=EXACT)


def test_copies_start_no_wider_than_all_points_and_no_narrower_than_a_millionth():
    far = np.array([[0.0, 0.0], [3.0, 3.0], [1000.0, 1000.0]])
    assert_allclose(initial_law(far[:2], np.array([0, 1, 2]), np.ones(2)).within, [1.0, 1.0], rtol=EXACT)
    copies = initial_law(far[[0, 2, 0, 2]], np.array([0, 2, 4]), np.ones(2))
    assert_allclose(copies.within, [1e-6, 1e-6], rtol=EXACT)
    alone = initial_law(far, np.array([0, 3]), np.ones(2))  # one site, whose points are no copies of each other
    assert_allclose(alone.within, [1e-6, 1e-6], rtol=EXACT)


@pytest.mark.parametrize("apart", [0.0, 0.5, 3.0])
def test_every_dimension_takes_the_step_that_it_would_take_by_itself(apart):
    for seed in range(25):
        groups, law = random_groups(seed, apart), some_law(seed)
        copies, spread = copies_of(groups)
        found = update_law(copies, law, spread)
        for d in range(3):
            alone = AtomLaw(*(values[d : d + 1] for values in (law.mean, law.within, law.between)))
            copies_of_one, spread_of_one = copies_of([v[:, d : d + 1] for v in groups])
            expected = update_law(copies_of_one, alone, spread_of_one)
            for name in ("mean", "within", "between"):
                assert_allclose(getattr(found, name)[d], getattr(expected, name)[0], rtol=EXACT)


@pytest.mark.parametrize("apart", [0.0, 0.5, 3.0])
def test_no_dimension_gains_less_than_by_itself_where_others_have_gained(apart):
    """Step after step, so that the published estimates still pay in some dimensions and no longer in others."""
    for seed in range(8):
        groups, law = random_groups(seed, apart), some_law(seed)
        copies, spread = copies_of(groups)
        for _ in range(3):
            found = by_dimension(groups, update_law(copies, law, spread))
            for d in range(3):
                one = [v[:, d : d + 1] for v in groups]
                alone = AtomLaw(*(values[d : d + 1] for values in (law.mean, law.within, law.between)))
                expected = by_dimension(one, update_law(copies_of(one)[0], alone, spread[d : d + 1]))[0]
                assert found[d] >= expected - EXACT * abs(expected), (seed, d)
            law = update_law(copies, law, spread)


def test_a_limit_below_the_largest_site_is_refused():
    sites = [cs.Posterior(f.Point(2), np.random.default_rng(n).normal(size=(n, 2))) for n in (2, 5, 3)]
    (problem,) = cs.check(sites, "spahm", max_components=4)
    assert problem.startswith("max_components is 4, but one model has 5 components")
    assert cs.check(sites, "spahm", max_components=5) == []


@pytest.mark.parametrize("option", ["within_variance", "between_variance"])
def test_variances_are_positive_in_every_dimension(option):
    for variances in ((1.0, -1.0), (0.0, 1.0), ()):
        with pytest.raises(
            cs.errors.OptionError, match=f"{option} must be a positive number, one per dimension, or None"
        ):
            cs.methods.SPAHM(**{option: variances})
    assert getattr(cs.methods.SPAHM(**{option: (1.0, 2.0)}), option) == (1.0, 2.0)


@pytest.mark.parametrize(("noise", "n_atoms"), [(0.05, 5), (1.0, 5), (10.0, 5), (30.0, 5)])
def test_atoms_are_indistinct_where_a_copy_tells_less_than_which_it_is(noise, n_atoms):
    """Mutual information of a copy and its atom, sum_d log(1 + s0 / s) / 2, against the log of the number of atoms."""
    rng = np.random.default_rng(0)
    atoms = rng.normal(0.0, 5.0, (n_atoms, 2))
    fusion = cs.fuse(
        [cs.Posterior(f.Point(2), atoms + noise * rng.normal(size=(n_atoms, 2))) for _ in range(6)], "spahm"
    )
    law = law_of(fusion)
    told = 0.5 * np.log(1 + law.between / law.within).sum()
    assert (fusion.status is cs.results.Status.INDISTINCT) == (told < np.log(fusion.n_components))
    assert (fusion.status is cs.results.Status.CONVERGED) == (noise < 5)
