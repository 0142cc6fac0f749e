"""Densities, entropies, samples, barycenters, Wasserstein distances and products against SciPy and textbooks."""

import functools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import integrate, linalg, optimize, special, stats

from consilience import families as f
from tests import tolerances

pytestmark = pytest.mark.covering(2)

D, V, N = 2, 4, 4
ROUNDING, ROOT = ({"rtol": x, "atol": x} for x in (tolerances.ROUNDING, tolerances.ROOT_FINDING))
NOISE = np.array([[1.5, 0.4], [0.4, 0.7]])


def spd(rng, n):
    factor = rng.normal(size=(n, D, 3 * D))
    return factor @ factor.swapaxes(1, 2) / (3 * D)


def cases():
    """Name: (family, parameters of N members, the natural parameters written out from the definition)."""
    rng = np.random.default_rng(77)
    m, covariance, v = rng.normal(size=(N, D)), spd(rng, N), rng.uniform(0.5, 2, (N, D))
    kappa, a, b = rng.uniform(1, 5, (N, 1)), rng.uniform(2, 6, (N, 1)), rng.uniform(1, 4, (N, D))
    alpha, p, scale, dof = rng.uniform(0.7, 6, (N, V)), rng.dirichlet(np.ones(V), N), spd(rng, N), rng.uniform(4, 9, N)
    k, half, shape, rate, flat = kappa[:, 0], -kappa / 2, a[:, 0], b[:, 0], lambda x: x.reshape(N, -1)
    precision, inverse, outer = np.linalg.inv(covariance), np.linalg.inv(scale), m[:, :, None] * m[:, None, :]
    pulled, square = np.einsum("nij,nj->ni", precision, m), (m**2).sum(1, keepdims=True)
    wishart, gamma = {"mean": m, "kappa": k, "scale": scale, "dof": dof}, {"mean": m, "kappa": k, "shape": shape}
    table = {
        "gaussian": [{"mean": m, "covariance": covariance}, pulled, -flat(precision) / 2],
        "diagonal": [{"mean": m, "variance": v}, m / v, -0.5 / v],
        "spherical": [{"mean": m, "variance": v[:, 0]}, m / v[:, :1], -0.5 / v[:, :1]],
        "known": [{"mean": m}, m @ np.linalg.inv(NOISE)],
        "normal-wishart": [wishart, kappa * m, half, half * flat(outer) - flat(inverse) / 2, (dof[:, None] - D) / 2],
        "normal-gamma": [{**gamma, "rate": b}, kappa * m, half, half * m**2 - b, a - 0.5],
        "spherical normal-gamma": [{**gamma, "rate": rate}, kappa * m, half, half * square - b[:, :1], a - 1 + D / 2],
        "dirichlet": [{"concentration": alpha}, alpha - 1],
        "beta": [{"a": alpha[:, 0], "b": alpha[:, 1]}, alpha[:, :2] - 1],
        "gamma": [{"shape": shape, "rate": rate}, a - 1, -b[:, :1]],
        "categorical": [{"probabilities": p}, np.log(p[:, :-1] / p[:, -1:])],
        "point": [{"value": m}, m],
    }
    families = (f.Gaussian(D), f.DiagonalGaussian(D), f.SphericalGaussian(D), f.KnownCovarianceGaussian(NOISE))
    families += (f.NormalWishart(D), f.NormalGamma(D), f.SphericalNormalGamma(D), f.Dirichlet(V), f.Beta(), f.Gamma())
    families += (f.Categorical(V), f.Point(D))
    return {name: (fam, row[0], np.hstack(row[1:])) for (name, row), fam in zip(table.items(), families, strict=True)}


CASES = cases()
every_family = pytest.mark.parametrize("name", CASES)
every_random_family = pytest.mark.parametrize("name", [name for name in CASES if name != "point"])


def test_every_family_is_written_out():
    """But products, which are asked below whether they are their blocks."""
    assert {family.name for family, *_ in CASES.values()} == {kind.name for kind in f.FAMILIES} - {f.Product.name}


def covariances(name, p):
    if name == "gaussian":
        return p["covariance"]
    if name == "known":
        return np.broadcast_to(NOISE, (N, D, D))
    return np.eye(D) * np.reshape(p["variance"], (len(p["mean"]), -1, 1))


def distribution(name, p, i):
    """SciPy's distribution of member i, or of its precision where it is a pair (mean, precision)."""
    if name in ("gaussian", "diagonal", "spherical", "known"):
        return stats.multivariate_normal(p["mean"][i], covariances(name, p)[i])
    if name == "normal-wishart":
        return stats.wishart(p["dof"][i], p["scale"][i])
    if "gamma" in name:
        return stats.gamma(p["shape"][i], scale=1 / p["rate"][i])
    if name == "dirichlet":
        return stats.dirichlet(p["concentration"][i])
    return stats.beta(p["a"][i], p["b"][i]) if name == "beta" else stats.multinomial(1, p["probabilities"][i])


@functools.cache
def draws_of(name):
    family, _, eta = CASES[name]
    return family.sample(eta, 4_000, np.random.default_rng(123))


@functools.cache
def log_density(name, i, j):
    """Log density of member i at the draws of member j; of a pair, log q(precision) + log q(mean | precision)."""
    p, x = CASES[name][1], {key: value[:, j] for key, value in draws_of(name).items()}
    q = distribution(name, p, i)
    if name == "normal-wishart":
        lower = np.linalg.cholesky(p["kappa"][i] * x["precision"])
        whitened = np.einsum("sij,si->sj", lower, x["mean"] - p["mean"][i])
        conditional = stats.norm.logpdf(whitened) + np.log(np.diagonal(lower, axis1=1, axis2=2))
        return q.logpdf(np.moveaxis(x["precision"], 0, -1)) + conditional.sum(1)
    if "normal-gamma" in name:
        precision = x["precision"].reshape(len(x["mean"]), -1)
        conditional = stats.norm.logpdf(x["mean"], p["mean"][i], (p["kappa"][i] * precision) ** -0.5)
        return q.logpdf(precision).sum(1) + conditional.sum(1)
    if name == "categorical":
        return q.logpmf(x["value"])
    return q.logpdf({"dirichlet": x["value"].T, "beta": x["value"].T[0]}.get(name, x["value"]))


def entropy(name, p, i):
    """Entropy of member i; of a pair, H(precision) + E[H(mean | precision)]."""
    log_precision = None
    if name == "normal-wishart":
        log_precision = special.psi((p["dof"][i] - np.arange(D)) / 2).sum()
        log_precision += D * np.log(2) + np.linalg.slogdet(p["scale"][i])[1]
    if "normal-gamma" in name:
        log_precision = (special.psi(p["shape"][i]) - np.log(p["rate"][i]) * np.ones(D)).sum()
    conditional = 0 if log_precision is None else (D * np.log(2 * np.pi * np.e / p["kappa"][i]) - log_precision) / 2
    return np.sum(distribution(name, p, i).entropy()) + conditional


@every_family
def test_natural_parameters_are_laid_out_as_documented(name):
    """to_natural is the written-out definition, of length P, and from_natural is its inverse."""
    family, parameters, eta = CASES[name]
    actual = family.to_natural(**parameters)
    assert actual.shape == (N, family.size)
    assert_allclose(actual, eta, **ROUNDING)
    back = family.from_natural(eta)
    assert back.keys() == parameters.keys()
    for key, value in parameters.items():
        assert_allclose(back[key], value, **ROUNDING, err_msg=key)


@every_random_family
def test_log_density_is_that_of_scipy(name):
    """log q(x) = <eta, T(x)> - A(eta) + log h(x), normalised, at draws (size, N)."""
    family, _, eta = CASES[name]
    expected = np.column_stack([log_density(name, i, i) for i in range(N)])
    assert_allclose(family.log_density(eta, draws_of(name)), expected, **ROUNDING)


@every_random_family
def test_entropy_is_that_of_scipy(name):
    """H = A(eta) - <eta, E[T]> - E[log h]."""
    family, parameters, eta = CASES[name]
    expected = [entropy(name, parameters, i) for i in range(N)]
    assert_allclose(family.entropy(eta), expected, **ROUNDING)


@pytest.mark.slow
@every_random_family
def test_divergence_is_the_mean_log_ratio(name):
    """KL(q_i || q_j) = E_i[log q_i - log q_j], by draws of q_i and the densities of SciPy."""
    family, _, eta = CASES[name]
    kl = family.kl(eta, eta)
    for i, j in np.ndindex(N, N):
        ratios = log_density(name, i, i) - log_density(name, j, i)
        error = abs(ratios.mean() - kl[i, j])
        assert error <= tolerances.STANDARD_ERRORS * stats.sem(ratios) + tolerances.KL_INDISTINGUISHABLE


@every_random_family
def test_draws_have_the_mean_statistics(name):
    """The mean of T(x) over draws is E[T] within Monte-Carlo error; the same generator gives the same draws."""
    family, _, eta = CASES[name]
    statistics = family.sufficient_statistics(draws_of(name))
    assert statistics.shape == (4_000, N, family.size)
    error = np.abs(statistics.mean(0) - family.mean_parameters(eta)) / stats.sem(statistics, axis=0)
    assert error.max() <= tolerances.STANDARD_ERRORS
    again = family.sample(eta, 4_000, np.random.default_rng(123))
    for key, x in draws_of(name).items():
        assert_array_equal(x, again[key])


@pytest.mark.parametrize("name", ["beta", "gamma"])
def test_divergence_is_the_integral(name):
    """KL(q_0 || q_1) = int q_0 (log q_0 - log q_1), by adaptive quadrature."""
    family, p, eta = CASES[name]
    a, b = distribution(name, p, 0), distribution(name, p, 1)
    expected, _ = integrate.quad(lambda x: a.pdf(x) * (a.logpdf(x) - b.logpdf(x)), *a.ppf([1e-14, 1 - 1e-14]))
    assert_allclose(family.kl(eta[:1], eta[1:2]), [[expected]], rtol=tolerances.QUADRATURE)


@every_family
def test_from_mean_inverts_mean_parameters(name):
    """from_mean(grad A(eta)) = eta."""
    family, _, eta = CASES[name]
    assert_allclose(family.from_mean(family.mean_parameters(eta)), eta, **ROOT)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@every_family
def test_barycenter_is_the_minimum(name, direction):
    """Along the line to every member, sum_i w_i KL is least at the barycenter; weights count by their ratios only."""
    family, _, eta = CASES[name]
    weights = np.array([0.5, 2.0, 1.0, 1.5])
    center = family.barycenter(eta, weights=weights, direction=direction)
    assert_allclose(family.barycenter(eta, weights=7 * weights, direction=direction), center, **ROOT)
    assert_allclose(family.barycenter(eta[:1], direction=direction), eta[0], **ROOT)

    def objective(t, target):
        q = np.tile(center + t * (target - center), (N, 1))
        return weights @ (family.kl_pairs(q, eta) if direction == "forward" else family.kl_pairs(eta, q))

    for target in eta:
        best = optimize.minimize_scalar(objective, None, (-0.01, 0.5), (target,), options={"xatol": 1e-9})
        assert abs(best.x) <= tolerances.FLAT_MINIMUM


def test_a_product_is_independent_blocks():
    """eta concatenates; log normalisers, divergences, entropies and log densities add; draws and E[T] go by block."""
    names = ("normal-wishart", "dirichlet")
    (a, parameters_a, eta_a), (b, parameters_b, eta_b) = (CASES[name] for name in names)
    family, eta = f.Product({"left": a, "right": b}), np.hstack([eta_a, eta_b])
    assert_allclose(family.to_natural(left=parameters_a, right=parameters_b), eta, **ROUNDING)
    assert family.from_natural(eta).keys() == {"left", "right"}
    for law in ("log_normalizer", "entropy"):
        assert_allclose(getattr(family, law)(eta), getattr(a, law)(eta_a) + getattr(b, law)(eta_b), **ROUNDING)
    assert_allclose(family.kl(eta, eta), a.kl(eta_a, eta_a) + b.kl(eta_b, eta_b), **ROUNDING)
    mean = np.hstack([a.mean_parameters(eta_a), b.mean_parameters(eta_b)])
    assert_allclose(family.mean_parameters(eta), mean, **ROUNDING)
    assert_allclose(family.from_mean(mean), eta, **ROOT)
    draws = family.sample(eta, 5, np.random.default_rng(0))
    expected = a.log_density(eta_a, draws["left"]) + b.log_density(eta_b, draws["right"])
    assert_allclose(family.log_density(eta, draws), expected, **ROUNDING)


@pytest.mark.parametrize("name", ["gaussian", "diagonal", "spherical"])
def test_wasserstein_distance_and_barycenter(name):
    """W2^2 = |m0 - m1|^2 + tr(S0 + S1 - 2 (S0^1/2 S1 S0^1/2)^1/2); barycenter: S = sum w (S^1/2 S_i S^1/2)^1/2."""
    family, p, eta = CASES[name]
    m, S, weights = p["mean"], covariances(name, p), np.array([0.1, 0.4, 0.2, 0.3])

    def cross(a, b):
        root = linalg.sqrtm(a)
        return linalg.sqrtm(root @ b @ root)

    expected = np.square(m[:, None] - m).sum(2)
    for i, j in np.ndindex(N, N):
        expected[i, j] += np.trace(S[i] + S[j] - 2 * cross(S[i], S[j]))
    assert_allclose(family.wasserstein(eta, eta), expected, rtol=tolerances.MATRIX_ROOT, atol=tolerances.MATRIX_ROOT)
    center = family.wasserstein_barycenter(eta, weights=5 * weights)
    parameters = family.from_natural(center[None])
    covariance = covariances(name, parameters)[0]
    assert_allclose(parameters["mean"][0], weights @ m, **ROUNDING)
    step = sum(w * cross(covariance, s) for w, s in zip(weights, S, strict=True))
    assert_allclose(step, covariance, atol=tolerances.FIXED_POINT)


LINES = [(f.Gaussian(1), "covariance", (1, 1)), (f.DiagonalGaussian(1), "variance", (1,))]
LINES += [(f.SphericalGaussian(1), "variance", ())]


@pytest.mark.parametrize(("family", "name", "shape"), LINES)
def test_wasserstein_distance_on_the_line_is_between_quantiles(family, name, shape):
    """W2^2 = int_0^1 (F^-1(u) - G^-1(u))^2 du, and the barycenter averages the standard deviations."""
    m, s = np.array([[0.3], [-1.1]]), np.array([0.5, 2.0])
    v = s.reshape(2, *shape) ** 2
    eta = family.to_natural(**{"mean": m, name: v})
    a, b = (stats.norm(*x) for x in zip(m[:, 0], s, strict=True))
    expected, _ = integrate.quad(lambda u: (a.ppf(u) - b.ppf(u)) ** 2, 0, 1)
    assert_allclose(family.wasserstein(eta[:1], eta[1:]), [[expected]], rtol=tolerances.QUADRATURE)
    variance = family.from_natural(family.wasserstein_barycenter(eta)[None])[name]
    assert_allclose(np.sqrt(variance).ravel(), [s.mean()], atol=tolerances.FIXED_POINT)


def paired(name, x):
    """Textbook posterior of (mean, precision) given observations x: the scatter grows by that between means."""
    n, m, kappa = len(x), np.array([0.5, -1.0]), 0.3
    center = x.mean(0) if n else m
    growth = (x - center).T @ (x - center) + kappa * n / (kappa + n) * np.outer(center - m, center - m)
    shared = {"mean": (kappa * m + n * center) / (kappa + n), "kappa": kappa + n}
    if name == "wishart":
        return shared | {"scale": np.linalg.inv(np.linalg.inv(NOISE) + growth), "dof": 3.5 + n}
    if name == "gamma":
        return shared | {"shape": 1.5 + n / 2, "rate": [0.5, 0.8] + np.diag(growth) / 2}
    return shared | {"shape": 1.5 + n * D / 2, "rate": 0.5 + np.trace(growth) / 2}


def location(x):
    """Textbook posterior of a mean under known noise, from a prior of variance 4."""
    covariance = np.linalg.inv(np.eye(D) / 4 + len(x) * np.linalg.inv(NOISE))
    return {"mean": covariance @ np.linalg.solve(NOISE, x.sum(0)), "covariance": covariance}


COUNTS = np.random.default_rng(8).poisson(3.0, size=(60, D))
PLACES = np.random.default_rng(9).normal([3, -2], [1, 2], size=(60, D))
CONJUGATE = {  # family, data, posterior parameters given any part of the data, all of it or none
    "normal-wishart": (f.NormalWishart(D), PLACES, functools.partial(paired, "wishart")),
    "normal-gamma": (f.NormalGamma(D), PLACES, functools.partial(paired, "gamma")),
    "spherical normal-gamma": (f.SphericalNormalGamma(D), PLACES, functools.partial(paired, "spherical")),
    "location": (f.Gaussian(D), PLACES, location),
    "poisson": (f.Gamma(), COUNTS, lambda x: {"shape": 2.0 + x.sum(), "rate": 0.7 + x.size}),
    "exponential": (f.Gamma(), abs(PLACES), lambda x: {"shape": 2.0 + x.size, "rate": 0.7 + x.sum()}),
    "multinomial": (f.Dirichlet(9), COUNTS, lambda x: {"concentration": 0.5 + np.bincount(x.ravel() % 9, minlength=9)}),
    "bernoulli": (f.Beta(), COUNTS > 2, lambda x: {"a": 0.5 + x.sum(), "b": 2.0 + (~x).sum()}),
}


@pytest.mark.parametrize("name", CONJUGATE)
def test_product_of_posteriors_of_split_data_is_the_pooled_posterior(name):
    """prior + sum_j (eta_j - prior) is the textbook posterior given all data at once."""
    family, data, update = CONJUGATE[name]
    posterior = lambda x: family.to_natural(**{k: np.asarray(v, float)[None] for k, v in update(x).items()})  # noqa: E731
    parts = np.concatenate([posterior(data[:7]), posterior(data[7:10]), posterior(data[10:])])
    assert_allclose(family.product(parts, posterior(data[:0])[0]), posterior(data)[0], **ROUNDING)
