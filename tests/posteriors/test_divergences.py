"""Fusion by other divergences: each average minimises its own objective, and each divergence is what it says."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.linalg import sqrtm
from scipy.stats import norm

import consilience as cs
from consilience import families as f
from consilience.errors import InputError, OptionError
from consilience.families.wasserstein import WassersteinFamily
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.methods.kl.divergences import HELLINGER_ORDER, make_geometry
from tests import tolerances
from tests.families.zoo import ZOO

pytestmark = pytest.mark.covering(2)

NAMES = ("kl", "renyi", "hellinger", "wasserstein")
CASES = [
    (family, name)
    for family, kind in ZOO.items()
    for name in NAMES
    if name != "wasserstein" or isinstance(kind.family, WassersteinFamily)
]
every_case = pytest.mark.parametrize(("family", "name"), CASES)
LINE = f.Gaussian(1)


def on_the_line(means, variances):
    return LINE.to_natural(mean=np.array(means)[:, None], covariance=np.array(variances)[:, None, None])


def geometry(name, family, natural, order=0.3):
    return make_geometry(name, order, "forward", family, natural)


@every_case
def test_no_member_of_the_family_does_better_than_the_average(family, name):
    rng, kind = np.random.default_rng(4), ZOO[family]
    local = kind.near(rng, np.repeat(kind.draw(rng, 2), 4, axis=0), 0.05)
    labels, weights = np.repeat([0, 1], 4), rng.uniform(0.5, 2.0, 8)
    space = geometry(name, kind.family, local)
    centres = space.averages(labels, weights, 2)

    def objective(rows):
        return float((space.costs(rows)[labels, np.arange(8)] * weights).sum())

    best = objective(centres)
    for amount in (1e-3, 1e-2, 0.1):
        for _ in range(10):
            assert objective(kind.near(rng, centres, amount)) >= best * (1.0 - tolerances.DESCENT)


def test_the_optimal_maps_from_a_wasserstein_barycenter_average_to_the_identity():
    """Of covariances far apart, beside a group of equal ones, which arrives at once; their maps are symmetric."""
    rng, family, labels = np.random.default_rng(3), f.Gaussian(3), np.array([0, 1, 0, 1, 0, 1])
    weights, means = rng.uniform(0.5, 2.0, 6), rng.normal(size=(6, 3))
    roots = rng.normal(size=(6, 3, 3)) * np.array([10.0, 1.0, 0.1])
    roots[labels == 1] = roots[1]
    covariances = roots @ roots.swapaxes(1, 2)
    space = geometry("wasserstein", family, family.to_natural(mean=means, covariance=covariances))
    found = family.from_natural(space.averages(labels, weights, 2))
    for group, (mean, covariance) in enumerate(zip(found["mean"], found["covariance"], strict=True)):
        shares = weights[labels == group] / weights[labels == group].sum()
        assert_allclose(mean, shares @ means[labels == group], rtol=tolerances.ROOT_FINDING)
        root = sqrtm(covariance)
        inverse = np.linalg.inv(root)
        maps = [inverse @ sqrtm(root @ own @ root) @ inverse for own in covariances[labels == group]]
        assert_allclose(np.einsum("n,nij->ij", shares, maps), np.eye(3), rtol=0, atol=1e-6)


@every_case
def test_a_component_is_at_no_distance_from_itself_and_some_from_others(family, name):
    rng, kind = np.random.default_rng(5), ZOO[family]
    local = kind.draw(rng, 4)
    costs = geometry(name, kind.family, local).costs(local)
    assert np.all(np.diag(costs) <= tolerances.KL_MATRIX_PRODUCT * costs.max())
    assert np.all(costs[~np.eye(4, dtype=bool)] > 0)


@every_case
def test_copies_average_to_themselves(family, name):
    rng, kind = np.random.default_rng(6), ZOO[family]
    one = kind.draw(rng, 1)
    average = geometry(name, kind.family, np.repeat(one, 3, axis=0)).averages(np.zeros(3, dtype=int), np.ones(3), 1)
    assert_allclose(average, one, rtol=tolerances.ROOT_FINDING, atol=tolerances.ROOT_FINDING * np.abs(one).max())


@pytest.mark.parametrize("order", [0.2, 0.5, 0.9])
def test_renyi_and_hellinger_are_the_integrals_they_are_named_after(order):
    p, q = norm(0.3, np.sqrt(0.5)), norm(-0.8, np.sqrt(2.0))
    eta = on_the_line([0.3, -0.8], [0.5, 2.0])
    overlap = quad(lambda x: p.pdf(x) ** order * q.pdf(x) ** (1.0 - order), -30, 30)[0]
    found = geometry("renyi", LINE, eta[1:], order).costs(eta[:1])
    assert_allclose(found, [[np.log(overlap) / (order - 1.0)]], rtol=tolerances.QUADRATURE)
    squared = 0.5 * quad(lambda x: (np.sqrt(p.pdf(x)) - np.sqrt(q.pdf(x))) ** 2, -30, 30)[0]
    assert_allclose(geometry("hellinger", LINE, eta[1:]).costs(eta[:1]), [[squared]], rtol=tolerances.QUADRATURE)
    assert HELLINGER_ORDER == 0.5


def test_renyi_tends_to_kullback_leibler_at_order_one():
    eta = on_the_line([0.3, -0.8, 2.0], [0.5, 2.0, 1.0])
    near = geometry("renyi", LINE, eta, 1.0 - 1e-6).costs(eta)
    assert_allclose(near, LINE.kl(eta, eta), rtol=1e-4, atol=1e-8)


def test_an_outlier_hardly_moves_the_hellinger_average():
    eta = on_the_line([0.0, 0.1, -0.1, 0.05, 40.0], [1.0] * 5)
    labels, weights = np.zeros(5, dtype=int), np.ones(5)
    means = {name: geometry(name, LINE, eta).averages(labels, weights, 1) for name in ("kl", "hellinger")}
    moved = {name: float(abs(LINE.from_natural(row)["mean"][0, 0])) for name, row in means.items()}
    assert moved["kl"] > 5.0
    assert moved["hellinger"] < 8.1  # never farther than where the mean starts
    near = on_the_line([0.0, 0.1, -0.1, 0.05, 3.0], [1.0] * 5)
    by_name = {n: geometry(n, LINE, near).averages(labels, weights, 1) for n in ("kl", "hellinger")}
    shift = {n: float(LINE.from_natural(row)["mean"][0, 0]) for n, row in by_name.items()}
    assert shift["hellinger"] < 0.6 * shift["kl"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_planted_components_are_found_with_every_divergence(name):
    rng = np.random.default_rng(7)
    family = f.NormalWishart(2)
    truth = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]])
    sites, planted = [], []
    for _ in range(6):
        own = rng.permutation(3)[: rng.integers(2, 4)]
        means = truth[own] + 0.3 * rng.normal(size=(len(own), 2))
        dof = np.full(len(own), 60.0)
        inverse = np.repeat(60.0 * np.eye(2)[None], len(own), axis=0)
        sites.append(cs.Posterior(family, family.to_natural(mean=means, kappa=dof, inverse_scale=inverse, dof=dof)))
        planted.append(own)
    fusion = cs.fuse(sites, divergence=name)
    assert fusion.n_components == 3
    assert np.all(np.diff(fusion.history) <= tolerances.DESCENT * np.abs(fusion.history[:-1]))
    named = {}
    for own, got in zip(np.concatenate(planted), fusion.matching.labels, strict=True):
        assert named.setdefault(int(own), int(got)) == int(got)
    means = fusion.posterior.parameters()["mean"]
    assert np.linalg.norm(means[:, None] - truth, axis=2).min(axis=1).max() < 0.5


@pytest.mark.parametrize("name", ["renyi", "hellinger", "wasserstein"])
def test_the_objective_is_that_of_the_fused_components(name):
    rng = np.random.default_rng(8)
    family = f.Gaussian(2)
    sites = [cs.Posterior(family, ZOO["gaussian"].draw(rng, 3)) for _ in range(4)]
    fusion = cs.fuse(sites, n_components=4, divergence=name, order=0.4)
    local = np.concatenate([site.natural for site in sites])
    costs = geometry(name, family, local, 0.4).costs(fusion.posterior.natural)
    total = costs[fusion.matching.labels, np.arange(len(local))].sum()
    assert_allclose(fusion.objective, total, rtol=tolerances.MATRIX_ROOT)


def test_wasserstein_is_refused_where_components_are_not_gaussian():
    rng = np.random.default_rng(9)
    sites = [cs.Posterior(f.Dirichlet(4), ZOO["dirichlet"].draw(rng, 2)) for _ in range(2)]
    with pytest.raises(InputError, match="Gaussian components"):
        cs.fuse(sites, divergence="wasserstein")


@pytest.mark.parametrize(
    "options",
    [
        {"divergence": "euclid"},
        {"divergence": "renyi", "order": 1.0},
        {"divergence": "hellinger", "direction": "reverse"},
        {"divergence": "wasserstein", "assignment": "relaxed"},
    ],
)
def test_options_that_mean_nothing_are_refused(options):
    with pytest.raises(OptionError):
        cs.methods.KLFusion(**options)


def test_weights_of_sites_weigh_in_every_average():
    eta = on_the_line([0.0, 1.0], [1.0, 1.0])
    for name in NAMES:
        sites = [cs.Posterior(LINE, row[None]) for row in eta]
        outcome = cs.methods.KLFusion(n_components=1, divergence=name).fuse(
            Ensemble.of(sites, [3.0, 1.0]), np.random.default_rng(0)
        )
        assert LINE.from_natural(outcome.posterior.natural)["mean"][0, 0] < 0.45
