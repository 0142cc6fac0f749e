"""Laws of products of Laplace approximations: normal algebra on derivatives that are taken by differences."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.linear_model import GammaRegressor, LogisticRegression, PoissonRegressor, TweedieRegressor
from sklearn.metrics import log_loss
from sklearn.preprocessing import scale

import consilience as cs
from consilience.estimators.describe import ApproximateStatisticsWarning
from consilience.estimators.inference import coefficients_of

pytestmark = pytest.mark.covering(2)

TIGHT = {"tol": 1e-10, "max_iter": 5000}
DIFFERENCES = 1e-5
"""Second differences of log posteriors of steps of 1e-4, relative to the largest coefficient."""
SOLVER = 1e-7

CANCER_X, CANCER_Y = load_breast_cancer(return_X_y=True)
CANCER_X = scale(CANCER_X)[:, [0, 1, 4, 8]]
WINE_X, WINE_Y = load_wine(return_X_y=True)
WINE_X = scale(WINE_X)[:, :3]


def count_rows(seed=0, n=400):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    mean = np.exp(0.5 + X @ [0.3, -0.2, 0.1])
    return X, mean, rng


def poisson_rows():
    X, mean, rng = count_rows()
    return X, rng.poisson(mean).astype(float)


def gamma_rows():
    X, mean, rng = count_rows()
    return X, rng.gamma(2.0, mean / 2.0)


def normal_rows():
    X, mean, rng = count_rows()
    return X, np.log(mean) + rng.normal(size=len(X))


MODELS = {
    "logistic, C=1": (lambda: LogisticRegression(C=1.0, **TIGHT), lambda: (CANCER_X, CANCER_Y)),
    "logistic, no intercept": (
        lambda: LogisticRegression(C=2.0, fit_intercept=False, **TIGHT),
        lambda: (CANCER_X, CANCER_Y),
    ),
    "logistic, three classes": (lambda: LogisticRegression(C=0.5, **TIGHT), lambda: (WINE_X, WINE_Y)),
    "Poisson": (lambda: PoissonRegressor(alpha=0.1, **TIGHT), poisson_rows),
    "Poisson, no penalty, no intercept": (
        lambda: PoissonRegressor(alpha=0, fit_intercept=False, **TIGHT),
        poisson_rows,
    ),
    "gamma": (lambda: GammaRegressor(alpha=0.05, **TIGHT), gamma_rows),
    "Tweedie": (lambda: TweedieRegressor(power=1.5, alpha=0.05, **TIGHT), gamma_rows),
    "Tweedie, identity": (lambda: TweedieRegressor(power=0, alpha=0.2, **TIGHT), normal_rows),
}
every_model = pytest.mark.parametrize("name", MODELS)


def sites_of(make, X, y, n_sites, weights=None, **options):
    owner = np.random.default_rng(n_sites).permutation(len(X)) % n_sites
    sent = {}
    for site in range(n_sites):
        rows = owner == site
        own = None if weights is None else weights[rows]
        model = make().fit(X[rows], y[rows], sample_weight=own)
        sent[f"site {site}"] = cs.describe(model, data=(X[rows], y[rows]), sample_weight=own, **options)
    return sent, owner


def coefficients(model):
    return np.concatenate([np.ravel(model.coef_), np.ravel(model.intercept_) if model.fit_intercept else []])


@every_model
def test_one_site_gives_its_own_model_back(name):
    make, rows = MODELS[name]
    X, y = rows()
    model = make().fit(X, y)
    again = cs.rebuild(cs.describe(model, data=(X, y)))
    np.testing.assert_allclose(coefficients(again), coefficients(model), atol=SOLVER)
    assert type(again.coef_) is np.ndarray
    assert again.coef_.shape == model.coef_.shape
    assert np.shape(again.intercept_) == np.shape(model.intercept_)
    np.testing.assert_allclose(again.predict(X), model.predict(X), rtol=1e-6)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(again)).predict(X), again.predict(X))  # noqa: S301


def log_posterior(model, X, y, weights, theta):
    """The objective of scikit-learn's documentation, up to its sign and a constant, at coefficients of its order."""
    d = X.shape[1]
    weights = np.ones(len(X)) if weights is None else weights
    if isinstance(model, LogisticRegression):
        beta = theta[:d]
        eta = X @ beta + (theta[d] if model.fit_intercept else 0.0)
        likelihood = -log_loss(y, 1 / (1 + np.exp(-eta)), normalize=False, sample_weight=weights)
        return likelihood - beta @ beta / (2.0 * model.C)
    beta = theta[:d]
    mean = X @ beta + (theta[d] if model.fit_intercept else 0.0)
    power = {"PoissonRegressor": 1.0, "GammaRegressor": 2.0}.get(type(model).__name__, getattr(model, "power", None))
    if power:
        mean = np.exp(mean)
    from sklearn.metrics import mean_tweedie_deviance

    penalty = model.alpha * beta @ beta / 2.0
    return -weights.sum() * (mean_tweedie_deviance(y, mean, power=power, sample_weight=weights) / 2.0 + penalty)


def hessian_by_differences(function, theta, step=1e-4):
    p = len(theta)
    eye, found = np.eye(p) * step, np.zeros((p, p))
    for i in range(p):
        for j in range(p):
            corners = [function(theta + a * eye[i] + b * eye[j]) * a * b for a in (1, -1) for b in (1, -1)]
            found[i, j] = sum(corners) / (4.0 * step**2)
    return found


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", [name for name in MODELS if "three" not in name])
def test_the_product_is_that_of_normals_at_the_modes(name, weighted):
    make, rows = MODELS[name]
    X, y = rows()
    weights = np.random.default_rng(3).uniform(0.5, 2.0, len(X)) if weighted else None
    sent, owner = sites_of(make, X, y, 3, weights)
    total, shift = 0.0, 0.0
    for site in range(3):
        part = owner == site
        own = None if weights is None else weights[part]
        model = make().fit(X[part], y[part], sample_weight=own)
        theta = coefficients(model)
        hessian = -hessian_by_differences(
            lambda at, model=model, part=part, own=own: log_posterior(model, X[part], y[part], own, at), theta
        )
        prior = np.zeros(len(theta))
        is_logistic = isinstance(model, LogisticRegression)
        size = np.sum(np.ones(part.sum()) if own is None else own)
        prior[: X.shape[1]] = 1.0 / model.C if is_logistic else model.alpha * size
        total, shift = total + hessian - is_logistic * (site > 0) * np.diag(prior), shift + hessian @ theta
    fused = cs.fuse(sent).model
    expected = np.linalg.solve(total, shift)
    np.testing.assert_allclose(coefficients(fused), expected, atol=DIFFERENCES * np.abs(expected).max())


def test_three_classes_are_invariant_to_their_shared_shift_and_near_the_pooled_fit():
    make, _ = MODELS["logistic, three classes"]
    sent, _ = sites_of(make, WINE_X, WINE_Y, 2)
    fused, pooled = cs.fuse(sent).model, make().fit(WINE_X, WINE_Y)
    np.testing.assert_allclose(fused.coef_.sum(axis=0), 0.0, atol=SOLVER)
    np.testing.assert_allclose(fused.intercept_.sum(), 0.0, atol=SOLVER)
    own = [cs.rebuild(one) for one in sent.values()]
    gap = [np.abs(m.predict_proba(WINE_X) - pooled.predict_proba(WINE_X)).mean() for m in (fused, *own)]
    assert gap[0] < min(gap[1:])


def test_a_site_that_lacks_a_class_is_flat_there():
    """Rows of two classes alone say nothing of the third: shifting its coefficients leaves their factor as it is."""
    make, _ = MODELS["logistic, three classes"]
    all_classes = cs.describe(make().fit(WINE_X[::2], WINE_Y[::2]), data=(WINE_X[::2], WINE_Y[::2]))
    rows = np.flatnonzero(WINE_Y[1::2] > 0) * 2 + 1
    two = cs.describe(make().fit(WINE_X[rows], WINE_Y[rows]), data=(WINE_X[rows], WINE_Y[rows]))
    fusion = cs.fuse({"all": all_classes, "two": two})
    information = fusion.statistics.counts["information"] - all_classes.counts["information"]
    assert fusion.model.classes_.tolist() == [0, 1, 2]
    assert np.abs(information[0]).max() < 1e-9
    np.testing.assert_allclose(information.sum(axis=2), 0.0, atol=1e-9)
    assert cs.fuse({"two": two, "all": all_classes}).statistics.digest == fusion.statistics.digest


def test_the_product_is_nearer_the_pooled_fit_than_the_average_of_coefficients():
    X, y = poisson_rows()
    make = MODELS["Poisson"][0]
    sent, owner = sites_of(make, X, y, 8)
    pooled = coefficients(make().fit(X, y))
    average = np.mean([coefficients(make().fit(X[owner == j], y[owner == j])) for j in range(8)], axis=0)
    product = coefficients(cs.fuse(sent).model)
    assert np.linalg.norm(product - pooled) < np.linalg.norm(average - pooled)


def test_files_options_removal_and_report(tmp_path):
    X, y = CANCER_X, CANCER_Y
    sent, _ = sites_of(lambda: LogisticRegression(C=20.0, **TIGHT), X, y, 3)
    fusion = cs.fuse(sent)
    for name, statistics in sent.items():
        cs.save(statistics, tmp_path / f"{name}.safetensors")
    of_files = cs.fuse(sorted(tmp_path.glob("site*.safetensors")))
    np.testing.assert_array_equal(of_files.model.coef_, fusion.model.coef_)
    left = cs.remove(fusion, sent["site 2"])
    others = cs.fuse({name: sent[name] for name in ("site 0", "site 1")})
    np.testing.assert_allclose(left.model.coef_, others.model.coef_, rtol=1e-8)
    assert np.abs(cs.fuse(sent, C=0.01).model.coef_).max() < np.abs(fusion.model.coef_).max()
    fusion.report(tmp_path / "page.html")
    assert "approximate" in (tmp_path / "page.html").read_text()


def test_alpha_of_the_fused_model_is_per_row():
    X, y = poisson_rows()
    sent, _ = sites_of(lambda: PoissonRegressor(alpha=0.0, **TIGHT), X, y, 2)
    pooled = PoissonRegressor(alpha=0.3, **TIGHT).fit(X, y)
    np.testing.assert_allclose(coefficients(cs.fuse(sent, alpha=0.3).model), coefficients(pooled), atol=0.05)


def test_verdicts_are_approximate_and_say_what_speaks_against():
    X, y = poisson_rows()
    alike = cs.fuse(sites_of(MODELS["Poisson"][0], X, y, 4)[0])
    assert alike.verdict.code == "approximate"
    assert "differ" not in alike.verdict.text
    first = X[:, 0] > 0
    differing = {}
    for name, rows, sign in (("a", first, 1.0), ("b", ~first, -1.0)):
        moved = X[rows] * [1.0, 1.0, sign]
        differing[name] = cs.describe(
            MODELS["Poisson"][0]().fit(moved, y[rows] * (3 if sign < 0 else 1)),
            data=(moved, y[rows] * (3 if sign < 0 else 1)),
        )
    assert "coefficients differ between sites" in cs.fuse(differing).verdict.text
    shrunk = cs.fuse(sites_of(lambda: LogisticRegression(C=0.01, **TIGHT), CANCER_X, CANCER_Y, 10)[0])
    assert "penalties make up" in shrunk.verdict.text


def test_heterogeneity_under_one_law_has_p_values_that_are_not_small():
    """Q of 4 sites of one law is chi-squared on 3 p: over seeds its standardised mean is that of few draws."""
    q = []
    for seed in range(20):
        X, mean, rng = count_rows(seed)
        y = rng.poisson(mean).astype(float)
        fusion = cs.fuse(sites_of(lambda: PoissonRegressor(alpha=0.0, **TIGHT), X, y, 4)[0])
        q.append(fusion.details["heterogeneity"]["q"])
    assert fusion.details["heterogeneity"]["degrees_of_freedom"] == 12
    z = (np.mean(q) - 12.0) / np.sqrt(2.0 * 12.0 / len(q))
    assert norm.sf(abs(z)) > 1e-4


def test_a_meta_analysis_takes_what_sites_sent():
    X, y = poisson_rows()
    sent, _ = sites_of(lambda: PoissonRegressor(alpha=0.0, **TIGHT), X, y, 4)
    analysis = cs.meta_analysis(sent)
    assert analysis.coefficients == ("column 0", "column 1", "column 2", "intercept")
    np.testing.assert_allclose(analysis.fixed.mean, coefficients(cs.fuse(sent).model), rtol=1e-6)


def test_separated_classes_are_said_and_undetermined_coefficients_refused():
    X = np.linspace(-3.0, 3.0, 40)[:, None]
    y = (X[:, 0] > 0.05).astype(int)
    with pytest.warns(ApproximateStatisticsWarning, match="separated"):
        cs.describe(LogisticRegression(C=1e4, **TIGHT).fit(X, y), data=(X, y))
    twice = np.hstack([CANCER_X, CANCER_X[:, :1]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LogisticRegression(C=np.inf, **TIGHT).fit(twice, CANCER_Y)
    with pytest.raises(cs.errors.InputError, match="its information is singular"):
        cs.describe(model, data=(twice, CANCER_Y))


REFUSED = {
    "class_weight": (LogisticRegression(class_weight="balanced"), "class_weight"),
    "l1": (LogisticRegression(solver="saga", l1_ratio=0.5, **TIGHT), "normal prior"),
    "other rows": (None, "standard errors from the fit of these data"),
    "no data": (LogisticRegression(**TIGHT), "describe it where its data are"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_laplace_product_is_refused_with_what_to_do(case):
    model, text = REFUSED[case]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = (LogisticRegression(**TIGHT) if model is None else model).fit(CANCER_X, CANCER_Y)
    half = (
        None
        if case == "no data"
        else (CANCER_X[:200], CANCER_Y[:200])
        if case == "other rows"
        else (CANCER_X, CANCER_Y)
    )
    with pytest.raises(cs.errors.InputError, match=text):
        cs.describe(model, data=half)


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [("logistic, C=1", "C", 0), ("logistic, C=1", "C", "big"), ("Poisson", "alpha", None), ("Tweedie", "power", "two")],
)
def test_hyper_parameters_that_are_none_are_refused(name, parameter, value):
    make, rows = MODELS[name]
    X, y = rows()
    statistics = cs.describe(make().fit(X, y), data=(X, y))
    odd = replace(statistics, parameters={**statistics.parameters, parameter: value})
    with pytest.raises(cs.errors.InputError, match=f"^{parameter}|cannot be made (of|with) these hyper-parameters"):
        cs.rebuild(odd)
    with pytest.raises((cs.errors.InputError, cs.errors.OptionError)):
        cs.fuse({"a": odd, "b": odd})


def test_sums_that_are_no_curvature_are_refused():
    make, rows = MODELS["Poisson"]
    X, y = rows()
    statistics = cs.describe(make().fit(X, y), data=(X, y))
    counts = {**statistics.counts, "information": -statistics.counts["information"]}
    with pytest.raises(cs.errors.InputError, match="singular"):
        cs.rebuild(replace(statistics, counts=counts))


def test_a_class_of_too_few_rows_withholds_the_whole_model():
    rows = np.concatenate([np.flatnonzero(CANCER_Y == 1)[:50], np.flatnonzero(CANCER_Y == 0)[:3]])
    model = LogisticRegression(**TIGHT).fit(CANCER_X[rows], CANCER_Y[rows])
    with pytest.raises(cs.errors.InputError, match="needs all of its classes"):
        cs.describe(model, data=(CANCER_X[rows], CANCER_Y[rows]))


def test_coefficients_come_with_their_intercept_errors_and_ratios(tmp_path):
    X, y = load_breast_cancer(return_X_y=True)
    X = (X[:, :3] - X[:, :3].mean(axis=0)) / X[:, :3].std(axis=0)
    sites, information = {}, 0.0
    for name, rows in zip("ab", np.array_split(np.random.default_rng(0).permutation(len(X)), 2), strict=True):
        model = LogisticRegression(C=1e6, tol=1e-10).fit(X[rows], y[rows])
        sites[name] = cs.describe(model, data=(X[rows], y[rows]))
        p, design = model.predict_proba(X[rows])[:, 1], np.c_[X[rows], np.ones(len(rows))]
        information += design.T @ (design * (p * (1 - p))[:, None])  # of penalties of nearly nothing
    fusion = cs.fuse(sites)
    found = coefficients_of(fusion.statistics)
    np.testing.assert_allclose(found.values, [*fusion.model.coef_[0], fusion.model.intercept_[0]], rtol=1e-6)
    assert found.names == ("column 0", "column 1", "column 2", "intercept")
    np.testing.assert_allclose(found.errors, np.sqrt(np.diag(np.linalg.inv(information))), rtol=1e-3)
    np.testing.assert_allclose(found.intervals.mean(axis=1), found.values, rtol=1e-12)
    np.testing.assert_allclose(np.diff(found.intervals)[:, 0], 2 * 1.959963984540054 * found.errors, rtol=1e-12)
    fusion.report(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    for text in (
        "Odds ratio",
        "Odds ratio, 95 % interval",
        f"{np.exp(found.values[0]):.4g}",
        "intercept",
        "Forest plot",
    ):
        assert text in page
    assert page.count("<svg") <= 2
