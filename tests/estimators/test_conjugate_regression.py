"""Laws of the matrix-normal Wishart posterior: products are pooled posteriors, grad A, evidence as Student's t."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_t, wishart
from sklearn.linear_model import LinearRegression
from sklearn.naive_bayes import GaussianNB

import consilience as cs
from consilience import MatrixNormalWishart

EXACT = 1e-10
STEP = 1e-5
DIFFERENCES = 1e-6
"""Central differences of steps of 1e-5."""

targets = pytest.mark.parametrize("q", [1, 3])


def spd(rng, size):
    factor = rng.normal(size=(size, 3 * size))
    return factor @ factor.T / (3 * size)


def prior_of(d, q, seed=5):
    rng = np.random.default_rng(seed)
    return MatrixNormalWishart(rng.normal(size=(d, q)), spd(rng, d), spd(rng, q), q + 2.5)


def rows(q, n=120, seed=0, offset=0.0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)) + offset
    return X, X @ rng.normal(size=(3, q)) + rng.normal(size=(n, q)) + 2.0


def described(X, Y, weights=None, intercept=True):
    model = LinearRegression(fit_intercept=intercept).fit(X, Y, weights)
    return cs.describe(model, data=(X, Y), sample_weight=weights)


def direct(prior, X, Y):
    """The textbook update of rows."""
    precision = prior.precision + X.T @ X
    mean = np.linalg.solve(precision, prior.precision @ prior.mean + X.T @ Y)
    scale = prior.scale + Y.T @ Y + prior.mean.T @ prior.precision @ prior.mean - mean.T @ precision @ mean
    return mean, precision, scale, prior.dof + len(X)


@targets
@pytest.mark.parametrize("intercept", [True, False])
def test_the_posterior_of_sums_is_that_of_the_rows(q, intercept):
    X, Y = rows(q)
    prior = prior_of(3 + intercept, q)
    found = prior.posterior(described(X, Y, intercept=intercept))
    A = np.hstack([X, np.ones((len(X), 1))]) if intercept else X
    for ours, its in zip((found.mean, found.precision, found.scale, found.dof), direct(prior, A, Y), strict=True):
        np.testing.assert_allclose(ours, its, rtol=EXACT, atol=EXACT)


@targets
def test_the_product_over_sites_is_the_posterior_of_the_pooled_rows(q):
    X, Y = rows(q)
    prior = prior_of(4, q)
    sent = [described(X[k::5], Y[k::5]) for k in range(5)]
    product = prior.product([prior.posterior(one) for one in sent])
    pooled = prior.posterior(cs.fuse(sent))
    for name in ("mean", "precision", "scale", "dof"):
        np.testing.assert_allclose(getattr(product, name), getattr(pooled, name), rtol=1e-9, err_msg=name)


@targets
def test_mean_parameters_are_the_gradient_of_the_log_normalizer(q):
    law = prior_of(3, q)
    square, linear, noise, log_noise = law.mean_parameters()
    rng = np.random.default_rng(1)
    for _ in range(5):
        change = (spd(rng, 3), rng.normal(size=(3, q)), spd(rng, q), rng.normal())

        def shifted(step, change=change):
            precision, cross, total, dof = law.additive()
            # eta = (-V^-1 / 2, V^-1 M, -(Psi + M^T V^-1 M) / 2, (nu + d - q - 1) / 2)
            moved = (precision - 2 * step * change[0], cross + step * change[1], total - 2 * step * change[2])
            return MatrixNormalWishart.of_additive(*moved, dof + 2 * step * change[3]).log_normalizer()

        slope = (shifted(STEP) - shifted(-STEP)) / (2 * STEP)
        expected = np.sum(square * change[0]) + np.sum(linear * change[1]) + np.sum(noise * change[2])
        np.testing.assert_allclose(slope, expected + log_noise * change[3], rtol=DIFFERENCES)


def test_mean_parameters_are_those_of_draws():
    law, rng = prior_of(2, 2), np.random.default_rng(0)
    noise = wishart(law.dof, np.linalg.inv(law.scale)).rvs(40_000, random_state=rng)
    np.testing.assert_allclose(noise.mean(axis=0), law.mean_parameters()[2], rtol=0.05, atol=0.05)
    np.testing.assert_allclose(np.linalg.slogdet(noise)[1].mean(), law.mean_parameters()[3], atol=0.05)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_evidence_of_one_target_is_the_density_of_students_t(weighted):
    X, Y = rows(1, n=30)
    weights = np.random.default_rng(3).uniform(0.5, 2.0, 30) if weighted else None
    prior = prior_of(4, 1)
    A = np.hstack([X, np.ones((30, 1))])
    inner = np.diag(1.0 / (np.ones(30) if weights is None else weights)) + A @ prior.covariance @ A.T
    law = multivariate_t((A @ prior.mean)[:, 0], prior.scale[0, 0] / prior.dof * inner, df=prior.dof)
    np.testing.assert_allclose(prior.log_evidence(described(X, Y, weights)), law.logpdf(Y[:, 0]), rtol=1e-9)


@targets
def test_the_evidence_is_the_product_of_predictive_densities_row_by_row(q):
    X, Y = rows(q, n=12)
    law = prior_of(3, q)
    total, current = 0.0, law
    for x, y in zip(X, Y, strict=True):
        location, scale, dof = current.predictive(x[None])
        total += multivariate_t(location[0], scale[0], df=dof).logpdf(y)
        precision, cross, square, nu = current.additive()
        current = MatrixNormalWishart.of_additive(
            precision + np.outer(x, x), cross + np.outer(x, y), square + np.outer(y, y), nu + 1
        )
    np.testing.assert_allclose(law.log_evidence(described(X, Y, intercept=False)), total, rtol=1e-9)


def test_columns_far_from_zero_keep_their_digits():
    """Slopes and noise of columns moved by 1e5 are those of columns about zero, under a prior that follows them."""
    X, Y = rows(1)
    near = prior_of(4, 1)
    moved = np.eye(4)
    moved[3, :3] = -1e5  # the intercept of moved columns
    inverse = np.linalg.inv(moved)
    far = MatrixNormalWishart(moved @ near.mean, inverse.T @ near.precision @ inverse, near.scale, near.dof)
    a, b = near.posterior(described(X, Y)), far.posterior(described(X + 1e5, Y))
    np.testing.assert_allclose(b.mean[:3], a.mean[:3], rtol=1e-5)
    np.testing.assert_allclose(b.scale, a.scale, rtol=1e-5)


def test_a_weak_prior_gives_least_squares_with_its_intervals():
    X, Y = rows(1)
    prior = MatrixNormalWishart(np.zeros((4, 1)), 1e-10 * np.eye(4), [[1e-10]], 1e-6)
    statistics = described(X, Y)
    found = prior.posterior(statistics)
    fitted = LinearRegression().fit(X, Y[:, 0])
    np.testing.assert_allclose(found.mean[:3, 0], fitted.coef_, rtol=1e-7)
    low, high = found.intervals(0.9)[0, 0]
    assert low < fitted.coef_[0] < high


@pytest.mark.parametrize("kind", ["OLS", "WLS"])
def test_results_of_statsmodels_and_files_have_posteriors_too(kind, tmp_path):
    sm = pytest.importorskip("statsmodels.api")
    X, Y = rows(1)
    weights = np.random.default_rng(3).uniform(0.5, 2.0, len(X)) if kind == "WLS" else np.ones(len(X))
    A, prior = np.hstack([X, np.ones((len(X), 1))]), prior_of(4, 1)
    models = [
        sm.WLS(Y[k::2, 0], A[k::2], weights=weights[k::2]) if kind == "WLS" else sm.OLS(Y[k::2, 0], A[k::2])
        for k in range(2)
    ]
    fusion = cs.fuse([model.fit() for model in models])
    fusion.save(tmp_path / "fused.safetensors")
    expected = direct(prior, A * np.sqrt(weights)[:, None], Y * np.sqrt(weights)[:, None])
    for sums in (fusion, fusion.statistics, tmp_path / "fused.safetensors"):
        found = prior.posterior(sums)
        for ours, its in zip((found.mean, found.precision, found.scale, found.dof), expected, strict=True):
            np.testing.assert_allclose(ours, its, rtol=EXACT, atol=EXACT)


def test_what_is_no_such_law_is_refused():
    X, Y = rows(1)
    with pytest.raises(cs.errors.InputError, match="the intercept last"):
        prior_of(3, 1).posterior(described(X, Y))
    with pytest.raises(cs.errors.InputError, match="precision: is not positive definite"):
        MatrixNormalWishart(np.zeros((2, 1)), np.diag([1.0, -1.0]), np.eye(1), 3.0)
    with pytest.raises(cs.errors.InputError, match="expected above 1"):
        MatrixNormalWishart(np.zeros((2, 2)), np.eye(2), np.eye(2), 1.0)
    strong = MatrixNormalWishart(np.zeros((4, 1)), 1e6 * np.eye(4), np.eye(1), 3.0)
    sites = [prior_of(4, 1).posterior(described(X[k::2], Y[k::2])) for k in range(2)]
    with pytest.raises(cs.errors.InputError, match="state the prior that the posteriors have"):
        strong.product(sites)
    classifier = cs.describe(GaussianNB().fit(X, Y[:, 0] > 0))
    with pytest.raises(cs.errors.InputError, match="is no linear regression"):
        prior_of(4, 1).posterior(classifier)
