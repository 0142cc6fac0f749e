"""The evidence of a matching against probability theory: hierarchical models, and data predicted one by one."""

from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from scipy.integrate import quad
from scipy.special import betaln

import consilience as cs
from consilience import families as f
from consilience.matching.conjugate_groups import ConjugateGroups
from consilience.matching.groups import consecutive
from consilience.posteriors.ensemble import Ensemble, Stack
from consilience.posteriors.evidence.random_effects import RandomEffects, lenient_prior, strict_prior
from consilience.posteriors.evidence.virtual_loss import likelihood_stack
from tests import tolerances
from tests.posteriors.matchings import matchings, stacked

pytestmark = pytest.mark.covering(2)

SIZES = [(2, 3), (2, 2, 1), (1, 2, 2), (3, 1), (1, 1, 1)]
every_ensemble = pytest.mark.parametrize("sizes", SIZES, ids=str)


def blocks(labels):
    return [np.flatnonzero(labels == label) for label in range(labels.max() + 1)]


@cache
def held_by(members, n_sites):
    """Log probability of which sites hold a component, by integration over the probability that one does."""
    return np.log(quad(lambda p: p**members * (1 - p) ** (n_sites - members), 0, 1)[0])


def who_holds_what(labels, n_sites):
    """Log probability of a matching beforehand; each component more is e^-5 times as likely."""
    return sum(held_by(len(block), n_sites) - 5.0 for block in blocks(labels))


# -- Components with known variances.


def gaussians(sizes, seed=0):
    rng = np.random.default_rng([seed, *sizes])
    return rng.normal(0.0, 3.0, sum(sizes)), rng.uniform(0.3, 2.0, sum(sizes))


def log_marginal(means, variances, labels, base_mean, base_variance):
    """theta_g ~ N(base), m_l ~ N(theta_g, v_l): each block's means are jointly normal."""
    total = 0.0
    for block in blocks(labels):
        covariance = base_variance * np.ones((len(block), len(block))) + np.diag(variances[block])
        total += stats.multivariate_normal(np.full(len(block), base_mean), covariance).logpdf(means[block])
    return total


@pytest.mark.parametrize("amount", [0.0, 0.8])
@pytest.mark.parametrize("family", [f.SphericalGaussian(1), f.DiagonalGaussian(1), f.Gaussian(1)], ids=str)
@every_ensemble
def test_the_evidence_is_the_marginal_likelihood_of_the_hierarchical_model(family, sizes, amount):
    """Variances grow by h; components come from the law that has the moments of them all."""
    means, variances = gaussians(sizes)
    spread = {"covariance": variances[:, None, None]} if family == f.Gaussian(1) else {"variance": variances[:, None]}
    if family == f.SphericalGaussian(1):
        spread = {"variance": variances}
    problem = RandomEffects(stacked(family, family.to_natural(mean=means[:, None], **spread), sizes))
    widened = variances + amount
    base = means.mean(), widened.mean() + means.var()
    for labels in matchings(sizes):
        expected = log_marginal(means, widened, labels, *base) + who_holds_what(labels, len(sizes))
        found = problem.evidence(labels, np.array([amount]), strict_prior(len(sizes)))
        assert_allclose(found, expected, rtol=tolerances.ROOT_FINDING)


def problem_of(sizes, weights=None):
    means, variances = gaussians(sizes)
    family = f.SphericalGaussian(1)
    stack = stacked(family, family.to_natural(mean=means[:, None], variance=variances), sizes)
    return RandomEffects(stack if weights is None else Stack(family, stack.natural, stack.offsets, weights))


@every_ensemble
def test_the_value_of_groups_is_the_evidence_but_for_what_all_matchings_have_alike(sizes):
    problem, amount, prior = problem_of(sizes), np.array([0.4]), lenient_prior(len(sizes), 2.0, 0.7)
    groups = problem.groups(amount, prior)
    differences = [problem.evidence(labels, amount, prior) - groups.total(labels) for labels in matchings(sizes)]
    assert_allclose(differences, differences[0], rtol=tolerances.ROUNDING * 10)


@every_ensemble
def test_components_that_are_left_out_have_no_part_in_the_evidence(sizes):
    """But in the law that components are drawn from."""
    means, variances = gaussians(sizes)
    labels = matchings(sizes)[0].copy()
    labels[0] = -1
    labels = consecutive(labels)
    base = means.mean(), variances.mean() + means.var()
    expected = log_marginal(means, variances, labels, *base) + who_holds_what(labels, len(sizes))
    found = problem_of(sizes).evidence(labels, np.zeros(1), strict_prior(len(sizes)))
    assert_allclose(found, expected, rtol=tolerances.ROOT_FINDING)


@pytest.mark.parametrize("twice", range(3))
def test_a_site_of_twice_the_weight_says_twice_as_much(twice):
    """Its components' likelihoods are squared, their normalisers with them."""
    sizes, amount = (2, 2, 1), 0.3
    means, variances = gaussians(sizes)
    owner = np.repeat(np.arange(3), sizes)
    weights = np.where(owner == twice, 2.0, 1.0)
    base_mean, base_variance = means.mean(), (variances + amount).mean() + means.var()

    theta = np.linspace(-40.0, 40.0, 4001)  # sums over a fine grid are exact to rounding for functions so smooth
    log_likelihoods = stats.norm(means[:, None], np.sqrt(variances + amount)[:, None]).logpdf(theta)  # (L, grid)
    log_law = stats.norm(base_mean, np.sqrt(base_variance)).logpdf(theta)

    problem = problem_of(sizes, weights)
    for labels in matchings(sizes):
        log_joints = [weights[block] @ log_likelihoods[block] + log_law for block in blocks(labels)]
        expected = who_holds_what(labels, 3) + sum(np.log(np.exp(joint).sum() * 0.02) for joint in log_joints)
        found = problem.evidence(labels, np.array([amount]), strict_prior(3))
        assert_allclose(found, expected, rtol=tolerances.QUADRATURE)


# -- Conjugate components: the evidence of the data that they saw.


class Counts:
    """Categories drawn one by one: the next is predicted by the share that it has had, Laplace's rule."""

    family = f.Dirichlet(3)
    base = np.array([0.8, 1.5, 1.1])
    natural_base = base - 1.0

    def draw(self, rng, size):
        return rng.choice(3, size=size, p=rng.dirichlet(np.ones(3)))

    def said(self, data):
        return np.bincount(data, minlength=3) - 1.0

    def log_evidence(self, data):
        total, seen = 0.0, self.base.copy()
        for category in data:
            total += np.log(seen[category] / seen.sum())
            seen[category] += 1
        return total


class Trials:
    """Successes and failures."""

    family = f.Beta()
    natural_base = np.array([0.7, 1.4]) - 1.0

    def draw(self, rng, size):
        return rng.random(size) < rng.random()

    def said(self, data):
        return np.array([data.sum(), (~data).sum()]) - 1.0

    def log_evidence(self, data):
        return betaln(0.7 + data.sum(), 1.4 + (~data).sum()) - betaln(0.7, 1.4)


class Events:
    """Poisson counts with a Gamma rate: the next one is negative binomial."""

    family = f.Gamma()
    natural_base = np.array([2.0 - 1.0, -0.5])

    def draw(self, rng, size):
        return rng.poisson(rng.gamma(2.0, 2.0), size) + 1

    def said(self, data):
        return np.array([data.sum() - 1.0, -len(data)])

    def log_evidence(self, data):
        total, shape, rate = 0.0, 2.0, 0.5
        for count in data:
            total += stats.nbinom(shape, rate / (rate + 1)).logpmf(count)
            shape, rate = shape + count, rate + 1
        return total


class Measurements:
    """Numbers with unknown mean and precision: jointly Student t."""

    family = f.NormalGamma(1)
    natural_base = family.to_natural(mean=[[1.0]], kappa=[0.4], shape=[1.7], rate=[[2.0]])[0]

    def draw(self, rng, size):
        return rng.normal(rng.normal(0, 3), rng.uniform(0.5, 2), size)

    def said(self, data):
        n, mean = len(data), data.mean()
        rate = 0.5 * ((data - mean) ** 2).sum()
        return self.family.to_natural(mean=[[mean]], kappa=[n], shape=[n / 2], rate=[[rate]])[0]

    def log_evidence(self, data):
        shape = 2.0 / 1.7 * (np.eye(len(data)) + 1 / 0.4)
        return stats.multivariate_t(np.full(len(data), 1.0), shape, df=3.4).logpdf(data)


class Vectors:
    """Vectors with unknown mean and precision matrix: the next one is multivariate Student t."""

    family = f.NormalWishart(2)
    prior = (np.array([1.0, -1.0]), 0.4, np.array([[2.0, 0.3], [0.3, 1.0]]), 3.2)
    natural_base = family.to_natural(mean=[prior[0]], kappa=[0.4], inverse_scale=[prior[2]], dof=[3.2])[0]

    def draw(self, rng, size):
        return rng.normal(rng.normal(0, 3, 2), rng.uniform(0.5, 2, 2), (size, 2))

    def said(self, data):
        n, offset = len(data), data - data.mean(axis=0)
        return self.family.to_natural(mean=[data.mean(axis=0)], kappa=[n], inverse_scale=[offset.T @ offset], dof=[n])[
            0
        ]

    def log_evidence(self, data):
        total, (mean, kappa, inverse, dof) = 0.0, self.prior
        for x in data:
            shape = inverse * (kappa + 1) / (kappa * (dof - 1))
            total += stats.multivariate_t(mean, shape, df=dof - 1).logpdf(x)
            inverse = inverse + kappa / (kappa + 1) * np.outer(x - mean, x - mean)
            mean, kappa, dof = (kappa * mean + x) / (kappa + 1), kappa + 1, dof + 1
        return total


CONJUGATE = [Counts(), Trials(), Events(), Measurements(), Vectors()]
every_model = pytest.mark.parametrize("model", CONJUGATE, ids=lambda model: type(model).__name__)


@every_model
@every_ensemble
def test_the_evidence_is_that_of_the_data_predicted_one_by_one(model, sizes):
    """What sites' data say about their components is all that their data say about who is who."""
    rng = np.random.default_rng([1, *sizes])
    data = [model.draw(rng, rng.integers(4, 9)) for _ in range(sum(sizes))]
    pieces = np.stack([model.said(x) for x in data]) - model.family.flat
    stack = stacked(model.family, pieces, sizes)
    groups = ConjugateGroups(model.family, model.natural_base, pieces, stack.offsets, strict_prior(len(sizes)).level)

    @cache
    def of_block(rows):
        return model.log_evidence(np.concatenate([data[row] for row in rows]))

    alone = sum(of_block((row,)) for row in range(len(data)))
    for labels in matchings(sizes):
        together = sum(of_block(tuple(block.tolist())) for block in blocks(labels))
        expected = together - alone + who_holds_what(labels, len(sizes))
        found = groups.total(labels) - groups.alone.sum()
        assert_allclose(found, expected, rtol=tolerances.ROOT_FINDING, atol=tolerances.ROOT_FINDING)


# -- Points, which have no width: narrow Gaussians, whose width is then what copies differ by.


def point_sites(sizes, seed=3):
    """Sites that hold some of four points of the plane, far apart, each site's a little moved."""
    rng = np.random.default_rng([seed, *sizes])
    places, family = rng.normal(0.0, 10.0, (4, 2)), f.Point(2)
    return [cs.Posterior(family, places[rng.permutation(4)[:n]] + 0.3 * rng.normal(size=(n, 2))) for n in sizes]


def log_evidence_of_points(points, labels, heterogeneity, n_sites):
    """theta_g ~ N(0, base), x_l ~ N(theta_g, v), in each coordinate; theta integrated out numerically. What is narrow
    about a point is a millionth of the variance of all."""
    points = points - points.mean(axis=0)
    variance = 1e-6 * np.mean(points**2) + heterogeneity
    base = variance + np.mean(points**2)

    @cache
    def of_block(rows, axis):
        values = points[list(rows), axis]
        precision = len(values) / variance + 1 / base
        centre, width = values.sum() / variance / precision, 1 / np.sqrt(precision)

        def log_joint(theta):
            squares = ((values - theta) ** 2).sum() / variance + theta**2 / base
            return -0.5 * (squares + len(values) * np.log(2 * np.pi * variance) + np.log(2 * np.pi * base))

        # Relative to its maximum, since it may be too small for float64.
        joint = quad(
            lambda theta: np.exp(log_joint(theta) - log_joint(centre)), centre - 12 * width, centre + 12 * width
        )
        return log_joint(centre) + np.log(joint[0])

    together = sum(of_block(tuple(block.tolist()), axis) for block in blocks(labels) for axis in range(2))
    return together + who_holds_what(labels, n_sites)


@every_ensemble
def test_the_evidence_of_points_is_that_of_gaussians_as_wide_as_copies_differ(sizes):
    ensemble = Ensemble.of(point_sites(sizes))
    stack, rows = likelihood_stack(ensemble)
    assert_allclose(rows, np.arange(sum(sizes)))
    problem = RandomEffects(stack)
    for labels in matchings(sizes):
        expected = log_evidence_of_points(ensemble.natural, labels, 0.4, len(sizes))
        found = problem.evidence(labels, np.array([0.4]), strict_prior(len(sizes)))
        assert_allclose(found, expected, rtol=tolerances.QUADRATURE)


def test_the_objective_of_fused_points_is_minus_their_evidence():
    sites = point_sites((3, 4, 2, 3))
    fusion = cs.fuse(sites, "kl", rng=0)
    points = np.concatenate([site.natural for site in sites])
    heterogeneity = fusion.details["heterogeneity"]["location"]
    expected = log_evidence_of_points(points, fusion.matching.labels, heterogeneity, len(sites))
    assert fusion.n_components == 4
    assert_allclose(-fusion.objective, expected, rtol=tolerances.QUADRATURE)
    by_number = {record["n_components"]: record["criterion"] for record in fusion.details["path"]}
    assert min(by_number, key=by_number.get) == 4
    assert by_number[4] == pytest.approx(fusion.objective, rel=tolerances.ROUNDING * 10)


@pytest.mark.parametrize(("unit", "origin"), [(1e5, 0.0), (1e-3, 7.0), (1.0, 1e4)], ids=str)
def test_the_evidence_of_points_is_a_density_in_their_unit_from_any_origin(unit, origin):
    sites = point_sites((3, 4, 2, 3))
    moved = [cs.Posterior(site.family, unit * site.natural + origin) for site in sites]
    plain, fusion = cs.fuse(sites, "kl", rng=0), cs.fuse(moved, "kl", rng=0)
    shift = 2 * len(plain.matching.labels) * np.log(unit)
    assert_allclose(fusion.objective, plain.objective + shift, rtol=tolerances.ROOT_FINDING)
    found, expected = (one.details["heterogeneity"]["location"] for one in (fusion, plain))
    assert_allclose(found, unit**2 * expected, rtol=tolerances.FLAT_MINIMUM)
    assert np.array_equal(fusion.matching.labels, plain.matching.labels)
