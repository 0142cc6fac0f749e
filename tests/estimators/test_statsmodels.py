"""Laws of fused results of statsmodels: its own fits of all rows are the oracle."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest

import consilience as cs
from consilience.federated.requests.base import Content
from tests.cli.running import command

sm = pytest.importorskip("statsmodels.api")
from statsmodels.duration.hazard_regression import PHReg  # noqa: E402  (after the skip)

N = 600
EXACT = 1e-10
IN_STANDARD_ERRORS = 1e-6


def columns(seed=0):
    rng = np.random.default_rng(seed)
    X = sm.add_constant(rng.normal(size=(N, 3)) @ rng.normal(size=(3, 3)) * 0.5 + [5.0, 0.0, -2.0])
    eta = X @ [-1.0, 0.3, -0.4, 0.2]
    return rng, X, eta


def weights():
    return np.random.default_rng(9).uniform(0.3, 3.0, N)


def quietly(fit, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit(*args, **options)


def targets(name):
    rng, X, eta = columns()
    match name:
        case "Logit" | "GLM binomial" | "GLM probit":
            return X, (rng.random(N) < 1 / (1 + np.exp(-eta))).astype(float)
        case "Poisson" | "GLM Poisson":
            return X, rng.poisson(np.exp(0.3 * eta)).astype(float)
        case "GLM gamma":
            return X, rng.gamma(2.0, np.exp(0.3 * eta) / 2.0)
        case "GLM Gaussian" | "OLS" | "WLS":
            return X, eta + rng.normal(size=N)
        case "MNLogit":
            return X, np.argmax(np.stack([0 * eta, eta, -0.5 * eta], 1) + rng.gumbel(size=(N, 3)), axis=1).astype(float)
    time, status = rng.exponential(np.exp(-0.5 * eta)), (rng.random(N) < 0.8).astype(float)
    return X[:, 1:], np.stack([time, status], axis=1)


MODELS = {
    "OLS": lambda X, y: sm.OLS(y, X).fit(),
    "Logit": lambda X, y: sm.Logit(y, X).fit(disp=0, tol=1e-12),
    "Poisson": lambda X, y: sm.Poisson(y, X).fit(disp=0, tol=1e-12),
    "GLM binomial": lambda X, y: sm.GLM(y, X, family=sm.families.Binomial()).fit(tol=1e-12),
    "GLM probit": lambda X, y: sm.GLM(y, X, family=sm.families.Binomial(sm.families.links.Probit())).fit(tol=1e-12),
    "GLM Poisson": lambda X, y: sm.GLM(y, X, family=sm.families.Poisson()).fit(tol=1e-12),
    "GLM gamma": lambda X, y: sm.GLM(y, X, family=sm.families.Gamma(sm.families.links.Log())).fit(tol=1e-12),
    "GLM Gaussian": lambda X, y: sm.GLM(y, X, family=sm.families.Gaussian()).fit(),
    "MNLogit": lambda X, y: sm.MNLogit(y, X).fit(disp=0, tol=1e-12),
    "PHReg": lambda X, y: PHReg(y[:, 0], X, status=y[:, 1]).fit(),
}
LIKELIHOODS = [name for name in MODELS if name != "OLS"]


def sites_of(name, n_sites=4):
    X, y = targets(name)
    owner = np.argsort(np.random.default_rng(1).permutation(N)) % n_sites
    fitted = {f"site {k}": quietly(MODELS[name], X[owner == k], y[owner == k]) for k in range(n_sites)}
    data = {f"site {k}": (X[owner == k], y[owner == k]) for k in range(n_sites)}
    return fitted, data, owner, X, y


def pooled_fit(name, owner, X, y):
    if name != "PHReg":
        return quietly(MODELS[name], X, y)
    return PHReg(y[:, 0], X, status=y[:, 1], strata=owner).fit()


def flat(values):
    values = np.asarray(values)
    return values if values.ndim == 1 else values.T.ravel()


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "no constant"])
@pytest.mark.parametrize("weighted", [False, True], ids=["OLS", "WLS"])
def test_least_squares_is_that_of_all_rows_in_every_number(constant, weighted):
    X, y = targets("OLS")
    X = X if constant else X[:, 1:]
    w = weights() if weighted else np.ones(N)

    def fit(rows):
        return sm.WLS(y[rows], X[rows], weights=w[rows]).fit() if weighted else sm.OLS(y[rows], X[rows]).fit()

    order = np.argsort(X[:, -1])
    fusion = cs.fuse({f"site {k}": fit(rows) for k, rows in enumerate(np.array_split(order, 5))})
    ours, its = fusion.model, fit(slice(None))
    assert fusion.verdict.harmless is True
    for name in ("params", "bse", "tvalues", "pvalues", "scale", "nobs", "df_resid", "llf", "rsquared"):
        np.testing.assert_allclose(getattr(ours, name), getattr(its, name), rtol=EXACT, atol=1e-14, err_msg=name)
    np.testing.assert_allclose(ours.cov_params(), its.cov_params(), rtol=EXACT)
    np.testing.assert_allclose(ours.conf_int(0.1), its.conf_int(0.1), rtol=EXACT)
    np.testing.assert_allclose(ours.predict(X[:5]), its.predict(X[:5]), rtol=EXACT)


def test_columns_far_from_zero_keep_their_digits():
    X, y = targets("OLS")
    X = X + np.array([0.0, 1e5, -1e5, 0.0])
    fusion = cs.fuse([sm.OLS(y[k::3], X[k::3]).fit() for k in range(3)])
    centred = np.hstack([np.ones((N, 1)), X[:, 1:] - X[:, 1:].mean(axis=0)])
    np.testing.assert_allclose(fusion.model.params[1:], sm.OLS(y, centred).fit().params[1:], rtol=1e-9)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_one_site_twice_over_is_its_own_model_with_half_the_variance(name):
    """The product of two sites of the same rows has their coefficients; they must differ by a digit to be two sites."""
    fitted, _, _, _, _ = sites_of(name, 1)
    (result,) = fitted.values()
    statistics = cs.describe(result)
    np.testing.assert_allclose(flat(cs.rebuild(statistics).params), flat(result.params), rtol=1e-8)
    np.testing.assert_allclose(cs.rebuild(statistics).cov_params(), result.cov_params(), rtol=1e-8)
    np.testing.assert_allclose(flat(cs.rebuild(statistics).bse), flat(result.bse), rtol=1e-8)
    np.testing.assert_allclose(flat(cs.rebuild(statistics).pvalues), flat(result.pvalues), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_product_is_inverse_variance_meta_analysis_at_one_dispersion(name):
    fitted, _, _, _, _ = sites_of(name)
    scales = [one.scale if name in ("GLM gamma", "GLM Gaussian") else 1.0 for one in fitted.values()]
    precisions = [np.linalg.inv(one.cov_params() / scale) for one, scale in zip(fitted.values(), scales, strict=True)]
    mean = np.linalg.solve(
        sum(precisions), sum(p @ flat(one.params) for p, one in zip(precisions, fitted.values(), strict=True))
    )
    fusion = cs.fuse(fitted)
    scale = 1.0
    if name in ("GLM gamma", "GLM Gaussian"):
        scale = sum(one.pearson_chi2 for one in fitted.values()) / sum(one.df_resid for one in fitted.values())
        np.testing.assert_allclose(fusion.model.scale, scale, rtol=1e-12)
    np.testing.assert_allclose(flat(fusion.model.params), mean, rtol=1e-8)
    np.testing.assert_allclose(fusion.model.cov_params(), scale * np.linalg.inv(sum(precisions)), rtol=1e-8)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_refinement_reaches_the_fit_of_all_rows(name):
    fitted, data, owner, X, y = sites_of(name)
    fusion = cs.fuse(fitted)
    refined = cs.federated.exchange("refine", fusion, data, rounds=12)
    pooled = pooled_fit(name, owner, X, y)
    error = np.abs(flat(refined.model.params) - flat(pooled.params)) / flat(pooled.bse)
    assert error.max() < IN_STANDARD_ERRORS
    # Fisher scoring has the expected information, and the refinement the observed one, of links that are not canonical.
    if name not in ("GLM gamma", "GLM probit"):
        np.testing.assert_allclose(refined.model.cov_params(), pooled.cov_params(), rtol=1e-4, atol=1e-8)
    np.testing.assert_allclose(refined.model.bse, pooled.bse, rtol=0.1)
    with pytest.raises(AttributeError, match="has no attribute 'llf'; what needs rows stays at the sites"):
        _ = refined.model.llf
    assert set(refined.to_columns()["level"]) == {0.95}
    table = refined.statistics.coefficients()
    assert refined.to_columns()["standard_error"] == table.errors.tolist()
    assert refined.to_columns()["fused"] == table.values.tolist()
    assert refined.verdict.code == "iterative"
    assert ("stratified by site" in refined.verdict.text) == (name == "PHReg")


@pytest.mark.parametrize("name", MODELS)
def test_predictions_tables_and_files_are_those_of_the_results(name, tmp_path):
    fitted, _, _, X, _ = sites_of(name, 2)
    fusion = cs.fuse(fitted)
    one = cs.rebuild(cs.describe(fitted["site 0"]))
    its = fitted["site 0"].predict(exog=X[:7])
    its = its.predicted_values if name == "PHReg" else its
    np.testing.assert_allclose(one.predict(X[:7]), its, rtol=1e-7)
    assert "[0.025" in fusion.model.summary()
    assert len(fusion.model.summary().splitlines()) == len(fusion.model.coefficient_names) + 2
    again = pickle.loads(pickle.dumps(fusion.model))  # noqa: S301  (our own bytes)
    np.testing.assert_array_equal(again.params, fusion.model.params)
    for label, result in fitted.items():
        cs.save(result, tmp_path / f"{label}.safetensors")
    of_files = cs.fuse(sorted(tmp_path.glob("site*.safetensors")))
    np.testing.assert_array_equal(of_files.model.params, fusion.model.params)
    fusion.save(tmp_path / "fused.safetensors")
    assert f"statsmodels.{name.split()[0]}" in command("inspect", str(tmp_path / "fused.safetensors")).out
    fusion.report(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Standard error" in page
    assert "Forest plot" in page
    assert cs.check(sorted(tmp_path.glob("site*.safetensors"))) == []


def test_names_of_columns_are_matched_and_others_refused():
    pandas = pytest.importorskip("pandas")
    X, y = targets("Logit")
    table = pandas.DataFrame(X, columns=["const", "age", "bmi", "dose"])
    parts = [sm.Logit(y[k::2], table.iloc[k::2]).fit(disp=0) for k in range(2)]
    assert cs.fuse(parts).model.names == ("const", "age", "bmi", "dose")
    other = sm.Logit(y[1::2], table.iloc[1::2].rename(columns={"bmi": "weight"})).fit(disp=0)
    with pytest.raises(cs.errors.InputError, match="weight"):
        cs.fuse([parts[0], other])


def test_sandwich_covariances_are_refused_in_products_and_taken_by_a_meta_analysis():
    X, y = targets("Logit")
    robust = {f"site {k}": sm.Logit(y[k::3], X[k::3]).fit(disp=0, cov_type="HC1") for k in range(3)}
    with pytest.raises(cs.errors.InputError, match=r"sandwich covariance.*meta_analysis"):
        cs.fuse(robust)
    assert cs.meta_analysis(robust).heterogeneity.degrees_of_freedom == 8
    with pytest.raises(cs.errors.InputError, match="sandwich"):
        cs.describe(sm.OLS(y, X).fit(cov_type="HC3"))


def test_a_meta_analysis_of_described_results_is_that_of_the_results():
    fitted, *_ = sites_of("Logit")
    described = cs.meta_analysis({name: cs.describe(one) for name, one in fitted.items()})
    direct = cs.meta_analysis({name: (one.params, one.cov_params()) for name, one in fitted.items()})
    np.testing.assert_allclose(described.random.mean, direct.random.mean, rtol=1e-6, atol=1e-8)


def test_sites_that_do_not_fit_together_are_named():
    X, y = targets("GLM Poisson")
    poisson = sm.GLM(y[::2], X[::2], family=sm.families.Poisson()).fit()
    gamma = sm.GLM(y[1::2] + 0.1, X[1::2], family=sm.families.Gamma(sm.families.links.Log())).fit()
    with pytest.raises(cs.errors.InputError, match="took sums with family Gamma, expected Poisson"):
        cs.fuse([poisson, gamma])
    with pytest.raises(cs.errors.InputError, match="was fused before"):
        cs.describe(cs.fuse([poisson, sm.GLM(y[1::2], X[1::2], family=sm.families.Poisson()).fit()]).model)
    with pytest.raises(cs.errors.OptionError, match="says all"):
        cs.describe(poisson, data=(X[::2], y[::2]))


def test_offsets_are_taken_by_the_product_and_refused_by_a_refinement():
    X, y = targets("GLM Poisson")
    fits = [sm.GLM(y[k::2], X[k::2], family=sm.families.Poisson(), offset=np.full(N // 2, 0.3)).fit() for k in range(2)]
    fusion = cs.fuse(fits)
    assert "refine" not in (fusion.verdict.remedy or "")
    with pytest.raises(cs.errors.UnsupportedError, match="was fitted with offset"):
        cs.federated.request("refine", fusion)


ODD_REQUESTS = {
    "a family that is none": ("GLM Poisson", {"family": "Link"}),
    "a family of another module": ("GLM Poisson", {"family": "__builtins__"}),
    "a link that is none": ("GLM Poisson", {"link": "np"}),
    "ties of another name": ("PHReg", {"ties": "exact"}),
    "one category": ("MNLogit", {"categories": ["0"]}),
}


@pytest.mark.parametrize("case", ODD_REQUESTS)
def test_requests_of_strangers_are_refused_in_one_line(case):
    name, change = ODD_REQUESTS[case]
    fitted, data, *_ = sites_of(name, 2)
    message = cs.federated.request("refine", cs.fuse(fitted))
    fields = {**message.content.fields, "parameters": {**message.content.fields["parameters"], **change}}
    with pytest.raises(cs.errors.InputError):
        cs.federated.answer(replace(message, content=Content(fields, message.content.arrays)), data["site 0"])


def test_targets_that_a_model_does_not_take_are_refused_in_one_line():
    fitted, data, *_ = sites_of("Logit", 2)
    message = cs.federated.request("refine", cs.fuse(fitted))
    X, y = data["site 0"]
    with pytest.raises(cs.errors.InputError, match="has no likelihood under this request"):
        cs.federated.answer(message, (X, y + 5.0))


def test_what_needs_rows_is_said_to_stay_at_the_sites():
    fitted, *_ = sites_of("OLS", 2)
    with pytest.raises(AttributeError, match="what needs rows stays at the sites"):
        cs.fuse(fitted).model.resid  # noqa: B018


def test_columns_that_rows_do_not_determine_are_refused():
    X, y = targets("OLS")
    doubled = np.hstack([X, X[:, :1] * 2.0])
    with pytest.raises(cs.errors.InputError, match="constant columns other than the intercept"):
        cs.fuse([quietly(sm.OLS(y[k::2], doubled[k::2]).fit) for k in range(2)])
