"""Laws of every estimator that is fused by its sums: what comes out is what the rows of all sites would have given."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.decomposition import FactorAnalysis

import consilience as cs
from consilience.estimators.adapters.table import adapter_of_kind
from consilience.estimators.average import average
from consilience.estimators.describe import ApproximateStatisticsWarning
from tests.estimators.estimators_zoo import CASES, PIPELINES
from tests.estimators.sites import differences, fused_of, has_classes, owners, site_statistics, weights_of

pytestmark = pytest.mark.covering(2)

SEEDS = (0,)
ORDER = 1e-12
"""Sums of the same few numbers in another order, relative to the largest."""

LOSSY = ("columns apart of classes", "components of Gaussian classes", "scaled twice")
"""Pipelines whose steps lose columns, or whose last step is a scaler of what others made."""

every_case = pytest.mark.parametrize("name", CASES)


def described(monkeypatch, case, n_sites, seed, *, by_class=True):
    X, y = case.rows(seed)
    weights = weights_of(case, len(X), seed)
    rng = np.random.default_rng([seed, n_sites])
    owner = owners(rng, len(X), n_sites, y if by_class and has_classes(y) else None)
    return X, y, weights, site_statistics(monkeypatch, case.fit(X, y, weights), X, y, weights, owner)


@pytest.mark.parametrize("n_sites", [1, 2, 7, 30])
@every_case
def test_the_fused_estimator_is_the_one_of_all_rows_in_every_fitted_attribute(name, n_sites, monkeypatch):
    case = CASES[name]
    for seed in SEEDS:
        X, y, weights, sites = described(monkeypatch, case, n_sites, seed)
        found = differences(fused_of(sites), case.pooled(X, y, weights), case.relative, case.ignored)
        assert not found, f"seed {seed}, {n_sites} sites: {found}"


@pytest.mark.slow
@every_case
def test_the_fused_estimator_of_many_sites_is_the_one_of_all_rows(name, monkeypatch):
    case, n_sites = CASES[name], 100
    for seed in range(8):
        X, y, weights, sites = described(monkeypatch, case, n_sites, seed, by_class=seed % 2 == 0)
        found = differences(fused_of(sites), case.pooled(X, y, weights), case.relative, case.ignored)
        assert not found, f"seed {seed}, {n_sites} sites: {found}"


@every_case
def test_order_and_grouping_of_sites_change_nothing_but_rounding(name, monkeypatch):
    _, _, _, sites = described(monkeypatch, CASES[name], 9, 0)
    whole = average(sites)
    assert average(sites).digest == whole.digest  # the same order gives the same bits
    grouped = average([average(sites[5:]), average([average(sites[2:5]), *sites[:2]])])
    expected = dict(whole.tensors())
    for key, values in grouped.tensors():
        scale = max(float(np.abs(expected[key]).max(initial=0.0)), 1e-300)
        assert np.abs(values - expected[key]).max(initial=0.0) <= ORDER * scale, key


@every_case
def test_one_site_gives_its_own_model_back(name):
    case = CASES[name]
    X, y = case.rows(1)
    weights = weights_of(case, len(X), 1)
    model = case.fit(X, y, weights, case.oracle)
    statistics = cs.describe(model, X if y is None else (X, y), sample_weight=weights, min_count=0)
    assert differences(cs.rebuild(statistics), model, case.relative, case.ignored) == []


@every_case
def test_what_a_fitted_object_keeps_is_what_its_rows_give(name):
    case = CASES[name]
    X, y = case.rows(2)
    if case.weighted:
        pytest.skip("a fitted object keeps no trace of weights")
    model = case.fit(X, y)
    kind = cs.describe(model, X if y is None else (X, y), min_count=0).kind
    if adapter_of_kind(kind).lacks is not None:
        with pytest.raises(cs.errors.InputError, match=r"does not keep .*cs\.describe\(model, data=|describe it where"):
            cs.describe(model, min_count=0)
        return
    if name in LOSSY:
        with pytest.raises(cs.errors.InputError, match=r"describe it where its data are|describe it with `data="):
            cs.describe(model, min_count=0)
        return
    if name.startswith(("PCA, two", "PCA, share", "PCA, mle", "PCA, arpack", "IncrementalPCA, two")):
        with pytest.warns(ApproximateStatisticsWarning, match=r"keeps \d of 5 components.*cs\.describe\(model, data=X"):
            cs.describe(model, min_count=0)
        return
    alone = cs.describe(model, min_count=0)
    assert differences(cs.rebuild(alone), model, 1e-9, case.ignored) == []


@every_case
def test_a_rebuilt_estimator_predicts_and_is_cloned_and_pickled(name):
    case = CASES[name]
    X, y = case.rows(3)
    weights = weights_of(case, len(X), 3)
    model = case.fit(X, y, weights, case.oracle)
    again = cs.rebuild(cs.describe(model, X if y is None else (X, y), sample_weight=weights, min_count=0))
    assert type(again) is type(model)
    copy = pickle.loads(pickle.dumps(again))  # noqa: S301  (our own)
    for one in (again, copy):
        for method in ("predict", "predict_proba", "decision_function", "transform", "score_samples"):
            if hasattr(model, method) and not (method == "transform" and "discriminant" in str(type(model)).lower()):
                ours, its = getattr(one, method)(X[:20]), getattr(model, method)(X[:20])
                if np.asarray(its).dtype.kind in "US":
                    assert np.array_equal(ours, its)
                elif not (method == "transform" and case.ignored):  # axes of free signs
                    np.testing.assert_allclose(ours, its, rtol=1e-7, atol=1e-7)
    clone(again).fit(X) if y is None else clone(again).fit(X, y)


@every_case
def test_a_file_says_what_was_said(name, tmp_path):
    case = CASES[name]
    X, y = case.rows(0)
    weights = weights_of(case, len(X), 0)
    statistics = cs.describe(case.fit(X, y, weights), X if y is None else (X, y), sample_weight=weights, min_count=0)
    cs.save(statistics, tmp_path / "site.safetensors", min_count=0)
    loaded = cs.load(tmp_path / "site.safetensors")
    assert loaded.digest == statistics.digest
    cs.save(loaded, tmp_path / "again.safetensors", min_count=0)
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "site.safetensors").read_bytes()


SHIFTED = [name for name in CASES if name.startswith(("LinearRegression", "Ridge", "Linear", "Quadratic", "Gaussian"))]


@pytest.mark.parametrize("name", SHIFTED)
def test_units_of_a_site_undone_by_its_record_change_nothing(name, monkeypatch):
    """A site that standardised its columns by its own numbers is fused in raw units."""
    from dataclasses import replace

    case = CASES[name]
    X, y = case.rows(0)
    weights = weights_of(case, len(X), 0)
    model = case.fit(X, y, weights)
    raw = site_statistics(monkeypatch, model, X, y, weights, np.zeros(len(X)))[0]
    scale, shift = np.linspace(0.1, 10.0, X.shape[1]), np.linspace(-5.0, 50.0, X.shape[1])
    scaled = site_statistics(monkeypatch, model, (X - shift) / scale, y, weights, np.zeros(len(X)))[0]
    extra = raw.rows.n_columns - X.shape[1]
    back, offset = np.diag([*scale, *[1.0] * extra]), np.array([*shift, *[0.0] * extra])
    undone = replace(scaled, moments={key: record.affine_image(back, offset) for key, record in scaled.moments.items()})
    for key, values in raw.tensors():
        other = dict(undone.tensors())[key]
        assert np.abs(values - other).max() <= 1e-10 * max(np.abs(values).max(), 1.0), key


@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_is_fused_in_the_units_of_the_data(name, monkeypatch):
    case = CASES[name]
    X, y, weights, sites = described(monkeypatch, case, 5, 0)
    pooled = case.pooled(X, y, weights)
    method = "predict" if hasattr(pooled, "predict") else "transform"
    fused = fused_of(sites)
    if has_classes(y):
        assert np.array_equal(fused.predict(X), pooled.predict(X))
        return
    np.testing.assert_allclose(getattr(fused, method)(X), getattr(pooled, method)(X), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", ["LinearRegression", "GaussianNB", "PCA", "CategoricalNB"])
def test_the_order_in_which_sites_without_names_come_changes_no_bit(name, monkeypatch):
    _, _, _, sites = described(monkeypatch, CASES[name], 12, 0)
    whole = cs.fuse(sites, min_count=0).statistics
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(sites))
        assert cs.fuse([sites[j] for j in order], min_count=0).statistics.digest == whole.digest
    named = {f"site {j}": sites[j] for j in order}
    assert cs.fuse(named, min_count=0).statistics.digest == whole.digest


def test_weak_factors_are_those_of_all_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 1)) @ np.array([[2.0, -1.0, 1.0, 0.5]]) + rng.normal(size=(300, 4))
    pooled = FactorAnalysis(3, tol=1e-6, max_iter=5000, svd_method="lapack").fit(X)
    model = FactorAnalysis(3, tol=1e-6, max_iter=5000)
    fused = cs.fuse([cs.describe(clone(model).fit(part), part) for part in (X[::2], X[1::2])]).model
    np.testing.assert_allclose(fused.get_covariance(), pooled.get_covariance(), rtol=1e-6)
