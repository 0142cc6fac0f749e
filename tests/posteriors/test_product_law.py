"""Fusing by product is Bayes' rule: matched conjugate posteriors give the posterior that pooled data would give.

The posteriors here are textbook updates of real draws; nothing comes from the library but the natural parameters.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.testing import assert_allclose

import consilience as cs
from consilience import families as f
from consilience.posteriors.ensemble import Ensemble
from tests import tolerances

pytestmark = pytest.mark.covering(2)

D, V = 3, 6
NOISE = np.array([[1.0, 0.3, 0.0], [0.3, 0.8, -0.2], [0.0, -0.2, 1.2]])
CENTRES = np.array([[0.0, 0, 0], [12, 0, 0], [0, 14, 0], [0, 0, 16], [-13, -11, 9]])
SHARES = np.array([[60, 8, 8, 8, 8, 8], [8, 60, 8, 8, 8, 8], [8, 8, 60, 8, 8, 8], [8, 8, 8, 60, 8, 8]]) / 100
RATES = np.array([0.5, 4.0, 20.0, 90.0])


@dataclass(frozen=True)
class Model:
    """A family with a prior, ``update(prior, data)`` of the textbook, and ``draw(rng, component, n)`` of data."""

    family: f.Family
    prior: dict
    update: object
    draw: object
    n_global: int


def gaussian_data(rng, component, n):
    return rng.multivariate_normal(CENTRES[component], NOISE, n)


def count_data(rng, component, n):
    return rng.multinomial(40, SHARES[component], n)


def poisson_data(rng, component, n):
    return rng.poisson(RATES[component], n)


def pulled_mean(prior, x):
    """kappa_n, m_n, the scatter about the data's mean, and how far the prior mean was off, weighted."""
    n, average = len(x), x.mean(axis=0)
    kappa = prior["kappa"] + n
    mean = (prior["kappa"] * prior["mean"] + n * average) / kappa
    return kappa, mean, x - average, np.sqrt(prior["kappa"] * n / kappa) * (average - prior["mean"])


def normal_wishart(prior, x):
    kappa, mean, centred, off = pulled_mean(prior, x)
    inverse_scale = prior["inverse_scale"] + centred.T @ centred + np.outer(off, off)
    return {"mean": mean, "kappa": kappa, "inverse_scale": inverse_scale, "dof": prior["dof"] + len(x)}


def normal_gamma(prior, x):
    kappa, mean, centred, off = pulled_mean(prior, x)
    rate = prior["rate"] + 0.5 * ((centred**2).sum(axis=0) + off**2)
    return {"mean": mean, "kappa": kappa, "shape": prior["shape"] + 0.5 * len(x), "rate": rate}


def spherical_normal_gamma(prior, x):
    kappa, mean, centred, off = pulled_mean(prior, x)
    rate = prior["rate"] + 0.5 * ((centred**2).sum() + (off**2).sum())
    return {"mean": mean, "kappa": kappa, "shape": prior["shape"] + 0.5 * x.size, "rate": rate}


def gaussian_mean(prior, x):
    """The mean of Gaussian data of known covariance."""
    before, each = np.linalg.inv(prior["covariance"]), np.linalg.inv(NOISE)
    covariance = np.linalg.inv(before + len(x) * each)
    return {"mean": covariance @ (before @ prior["mean"] + each @ x.sum(axis=0)), "covariance": covariance}


def diagonal_mean(prior, x):
    """The same, each dimension on its own; also with one variance for all."""
    precision = 1 / prior["variance"] + len(x)
    return {"mean": (prior["mean"] / prior["variance"] + x.sum(axis=0)) / precision, "variance": 1 / precision}


def dirichlet(prior, x):
    return {"concentration": prior["concentration"] + x.sum(axis=0)}


def beta(prior, x):
    """Of the first category among the first two."""
    return {"a": prior["a"] + x[:, 0].sum(), "b": prior["b"] + x[:, 1].sum()}


def gamma(prior, x):
    return {"shape": prior["shape"] + x.sum(), "rate": prior["rate"] + len(x)}


def both(prior, data):
    return {"place": normal_gamma(prior["place"], data[0]), "rate": gamma(prior["rate"], data[1])}


ORIGIN = np.full(D, 0.3)
WISHART = {"mean": ORIGIN, "kappa": 0.4, "inverse_scale": 0.7 * np.eye(D), "dof": D + 0.5}
NORMAL_GAMMA = {"mean": ORIGIN, "kappa": 0.4, "shape": 1.2, "rate": np.array([0.5, 0.8, 1.1])}
GAMMA = {"shape": 0.8, "rate": 0.6}
MODELS = {
    "normal-wishart": Model(f.NormalWishart(D), WISHART, normal_wishart, gaussian_data, 5),
    "normal-gamma": Model(f.NormalGamma(D), NORMAL_GAMMA, normal_gamma, gaussian_data, 5),
    "spherical normal-gamma": Model(
        f.SphericalNormalGamma(D), {**NORMAL_GAMMA, "rate": 0.7}, spherical_normal_gamma, gaussian_data, 5
    ),
    "gaussian mean": Model(f.Gaussian(D), {"mean": ORIGIN, "covariance": 25 * NOISE}, gaussian_mean, gaussian_data, 5),
    "diagonal mean": Model(
        f.DiagonalGaussian(D), {"mean": ORIGIN, "variance": np.array([9.0, 16, 25])}, diagonal_mean, gaussian_data, 5
    ),
    "spherical mean": Model(
        f.SphericalGaussian(D), {"mean": ORIGIN, "variance": 20.0}, diagonal_mean, gaussian_data, 5
    ),
    "dirichlet": Model(f.Dirichlet(V), {"concentration": np.full(V, 0.7)}, dirichlet, count_data, 4),
    "beta": Model(f.Beta(), {"a": 0.7, "b": 1.3}, beta, count_data, 3),
    "gamma": Model(f.Gamma(), GAMMA, gamma, poisson_data, 4),
    "product": Model(
        f.Product({"place": f.NormalGamma(D), "rate": f.Gamma()}),
        {"place": NORMAL_GAMMA, "rate": GAMMA},
        both,
        lambda rng, g, n: (gaussian_data(rng, g, n), poisson_data(rng, g, n)),
        4,
    ),
}
every_model = pytest.mark.parametrize("name", MODELS)


def natural(family, parameters):
    """One row of natural parameters from the parameters of one component."""
    if isinstance(family, f.Product):
        return np.concatenate([natural(block, parameters[key]) for key, block in family.blocks])
    return family.to_natural(**{key: np.asarray(value)[None] for key, value in parameters.items()})[0]


def standard(family, eta):
    """The parameters of one component, as the updates take them."""
    if isinstance(family, f.Product):
        cuts = np.cumsum([block.size for _, block in family.blocks])[:-1]
        return {k: standard(b, part) for (k, b), part in zip(family.blocks, np.split(eta, cuts), strict=True)}
    found = {key: value[0] for key, value in family.from_natural(eta[None]).items()}
    if "scale" in found:
        found["inverse_scale"] = np.linalg.inv(found.pop("scale"))
    return found


def length(data):
    return len(data[0]) if isinstance(data, tuple) else len(data)


def pool(parts):
    return (
        tuple(map(np.concatenate, zip(*parts, strict=True))) if isinstance(parts[0], tuple) else np.concatenate(parts)
    )


def scenario(name, priors, everything=False):
    """Sites with those priors, the truth (L,), and every component's data in one heap."""
    model, rng = MODELS[name], np.random.default_rng(len(name))
    sites, truth, heaps = [], [], {g: [] for g in range(model.n_global)}
    for site, prior in enumerate(priors):
        some = rng.permutation(model.n_global)[: rng.integers(2, model.n_global)]
        own = rng.permutation(model.n_global) if everything or site == 0 else some
        data = [model.draw(rng, g, int(rng.integers(60, 200))) for g in own]
        for g, heap in zip(own, data, strict=True):
            heaps[int(g)].append(heap)
        eta = np.stack([natural(model.family, model.update(prior, x)) for x in data])
        counts = [length(x) for x in data]
        sites.append(cs.Posterior(model.family, eta, prior=natural(model.family, prior), counts=counts))
        truth.append(own)
    return sites, np.concatenate(truth), {g: pool(heap) for g, heap in heaps.items()}


def fuse(sites, n_global, weights=None):
    method = cs.methods.KLFusion(n_components=n_global, combine="product", restarts=10)
    return method.fuse(Ensemble.of(sites, weights), np.random.default_rng(0))


def assert_is_pooled(outcome, truth, heaps, model, prior):
    """Every fused component is the posterior of all data of one true component."""
    labels = outcome.matching.labels
    pairs = sorted(set(zip(labels.tolist(), truth.tolist(), strict=True)))
    assert [g for g, _ in pairs] == list(range(model.n_global)), "the planted matching was not found"
    expected = np.stack([natural(model.family, model.update(prior, heaps[g])) for _, g in pairs])
    actual = outcome.posterior.natural
    slack = tolerances.CONJUGATE_UPDATE
    assert_allclose(actual, expected, rtol=slack, atol=slack * np.abs(expected).max())
    assert_allclose(outcome.posterior.counts, [length(heaps[g]) for _, g in pairs])


@every_model
@pytest.mark.parametrize("everything", [True, False], ids=["same components", "subsets"])
def test_the_product_is_the_posterior_of_pooled_data(name, everything):
    model = MODELS[name]
    sites, truth, heaps = scenario(name, [model.prior] * 5, everything)
    outcome = fuse(sites, model.n_global)
    assert_is_pooled(outcome, truth, heaps, model, model.prior)
    assert_allclose(outcome.posterior.prior, sites[0].prior, rtol=tolerances.ROUNDING)


def sharper(prior, factor):
    """The prior with other numbers: multiplied, so that every parameter stays in its domain."""
    if all(isinstance(value, dict) for value in prior.values()):
        return {key: sharper(value, factor) for key, value in prior.items()}
    return {key: value * factor if key != "dof" else value + factor for key, value in prior.items()}


@every_model
def test_each_site_s_own_prior_is_removed_and_their_mean_put_back(name):
    model = MODELS[name]
    priors = [sharper(model.prior, factor) for factor in (0.5, 1.0, 1.7, 2.2)]
    sites, truth, heaps = scenario(name, priors)
    shared = np.mean([site.prior for site in sites], axis=0)
    outcome = fuse(sites, model.n_global)
    assert_is_pooled(outcome, truth, heaps, model, standard(model.family, shared))
    assert_allclose(outcome.posterior.prior, shared, rtol=tolerances.ROUNDING)


@every_model
def test_weights_temper_each_site_s_data(name):
    """A site of weight w counts as w times its data, and so do its prior in the mean and its counts."""
    model, weights = MODELS[name], np.array([1.6, 0.4, 1.0])
    sites, truth, _ = scenario(name, [sharper(model.prior, factor) for factor in (0.5, 1.0, 2.0)], everything=True)
    outcome = fuse(sites, model.n_global, 7 * weights)
    shared = np.average([site.prior for site in sites], axis=0, weights=weights)
    start = np.cumsum([0] + [site.n_components for site in sites])
    for fused in range(model.n_global):
        rows = np.flatnonzero(outcome.matching.labels == fused)
        assert len(set(truth[rows])) == 1
        expected, total = shared.copy(), 0.0
        for row, number in zip(rows, range(3), strict=True):
            inside = row - start[number]
            expected += weights[number] * (sites[number].natural[inside] - sites[number].prior)
            total += weights[number] * sites[number].counts[inside]
        scale = np.abs(expected).max()
        slack = tolerances.CONJUGATE_UPDATE
        assert_allclose(outcome.posterior.natural[fused], expected, rtol=slack, atol=slack * scale)
        assert_allclose(outcome.posterior.counts[fused], total)


@every_model
def test_one_site_after_another_is_all_at_once(name):
    """Fused posteriors are posteriors under the shared prior, so they can be fused again with more."""
    model = MODELS[name]
    sites, _, _ = scenario(name, [model.prior] * 4, everything=True)
    at_once = fuse(sites, model.n_global).posterior
    so_far = sites[0]
    for site in sites[1:]:
        so_far = fuse([so_far, site], model.n_global).posterior
    slack = tolerances.CONJUGATE_UPDATE
    assert_allclose(so_far.natural, at_once.natural, rtol=slack, atol=slack * np.abs(at_once.natural).max())
    assert_allclose(so_far.counts, at_once.counts)


def test_the_product_narrows_where_the_barycenter_keeps_the_width():
    """Ten sites of the same size: the product is ten times as sure of a mean as one site."""
    model = MODELS["gaussian mean"]
    rng = np.random.default_rng(5)
    data = [[gaussian_data(rng, g, 50) for g in range(5)] for _ in range(10)]
    prior = natural(model.family, model.prior)
    etas = [np.stack([natural(model.family, gaussian_mean(model.prior, x)) for x in heaps]) for heaps in data]
    sites = [cs.Posterior(model.family, eta, prior=prior) for eta in etas]
    widths = {}
    for how in ("product", "barycenter"):
        method = cs.methods.KLFusion(n_components=5, combine=how)
        fused = method.fuse(Ensemble.of(sites), np.random.default_rng(0)).posterior
        widths[how] = np.linalg.det(fused.parameters()["covariance"]) ** (1 / D)
    one = np.linalg.det(sites[0].parameters()["covariance"]) ** (1 / D)
    assert_allclose(widths["barycenter"], one, rtol=1e-9)
    assert_allclose(one[0] / widths["product"], 10.0, rtol=0.02)


PRODUCT = cs.methods.KLFusion(n_components=2, combine="product")


def test_a_product_without_priors_is_refused():
    eta = f.Gaussian(1).to_natural(mean=[[0.0], [5.0]], covariance=[[[1.0]], [[1.0]]])
    with pytest.raises(cs.errors.InputError, match="prior"):
        PRODUCT.fuse(Ensemble.of([cs.Posterior(f.Gaussian(1), eta)] * 2), np.random.default_rng(0))


def test_a_product_of_points_is_refused():
    """They have no width, so that adding them up means nothing."""
    points = cs.Posterior(f.Point(1), [[0.0], [5.0]], prior=[0.0])
    with pytest.raises((cs.errors.InputError, cs.errors.UnsupportedError)):
        PRODUCT.fuse(Ensemble.of([points] * 2), np.random.default_rng(0))
