"""Columns that set few rows apart: products of columns give those rows, and a site is told before they leave."""

import warnings

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.mixture import GaussianMixture
from sklearn.naive_bayes import GaussianNB

import consilience as cs
from consilience.api.kinds import inspect_file
from consilience.errors import OptionError, RareColumnWarning
from consilience.estimators.describe import ApproximateStatisticsWarning
from consilience.estimators.rare_columns import without_rare_columns
from consilience.estimators.site_rows import SiteRows

N = 60


def rows(seed=0):
    """Return rows with an age, a binary column, and one that is 1 for person 7 alone."""
    rng = np.random.default_rng(seed)
    return np.c_[rng.normal(50.0, 9.0, N), np.arange(N) % 2, np.arange(N) == 7]


def described(X, model=None, **options):
    y = X[:, 0] + np.random.default_rng(1).normal(size=len(X))
    model = Ridge() if model is None else model
    y = (np.arange(len(X)) % 3 > 0).astype(float) if hasattr(model, "predict_proba") else y
    return cs.describe(model.fit(X, y), data=(X, y), **options)


def test_products_give_the_row_that_a_column_sets_apart_from_the_file_and_the_fused_file():
    X, others = rows(), [rows(seed)[:, :] for seed in (1, 2)]
    for other in others:
        other[:, 2] = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RareColumnWarning)
        sites = [described(one) for one in (X, *others)]
    for statistics in (sites[0], cs.fuse(dict(zip("abc", sites, strict=True))).statistics):
        record = statistics.moments["rows"]
        about_zero = record.scatter + statistics.n_observations * np.outer(record.mean, record.mean)
        np.testing.assert_allclose(about_zero[2, :3], X[7], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("model", [LinearRegression(), Ridge(), LogisticRegression(), LinearDiscriminantAnalysis()],
                         ids=lambda model: type(model).__name__)  # fmt: skip
def test_a_site_is_told_which_columns_set_how_many_rows_apart(model):
    X = rows()
    with pytest.warns(
        RareColumnWarning, match=r"^column 2( in class 1.0)? \(1 row\): set fewer than 5 rows apart.*\[W-RARE\]$"
    ):
        described(X, model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        described(X, model, min_count=0)
        described(X[:, :2], model)


def test_what_has_no_products_is_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        described(rows(), GaussianNB(), min_count=0)


def test_a_column_whose_usual_value_is_not_zero_is_found_and_a_constant_one_is_not():
    X = rows()
    X[:, 2] = np.where(np.arange(N) < 3, 4.0, 9.0)
    with pytest.warns(RareColumnWarning, match=r"^column 2 \(3 rows\): set"):
        described(X)
    X[:, 2] = 9.0
    described(X)


def test_pairs_of_columns_set_rows_apart_by_their_difference_and_by_what_is_in_neither():
    X = rows()
    whole = np.arange(N) < 30
    X[:, 1], X[:, 2] = whole, np.arange(N) < 28
    with pytest.warns(RareColumnWarning, match=r"^column 2 and column 1 \(2 rows\): set"):
        described(X)
    X[:, 2] = np.arange(N) >= 33
    with pytest.warns(RareColumnWarning, match=r"^column 1 and column 2 \(3 rows\): set"):
        described(X)
    X[:, 2] = np.arange(N) >= 36
    described(X)


def test_names_of_columns_stand_in_the_warning_and_sparse_rows_are_looked_at():
    X = rows()
    with pytest.warns(RareColumnWarning, match=r"^gaucher \(1 row\): set"):
        described(X, features=["age", "female", "gaucher"])
    y = np.arange(N) % 3 > 0
    sparse = csr_array(X)
    with pytest.warns(RareColumnWarning, match=r"^column 2 \(1 row\): set"):
        cs.describe(LogisticRegression(max_iter=5000, tol=1e-8).fit(sparse, y), data=(sparse, y))


def test_few_rows_of_whole_numbers_are_refused_unless_they_may_be_known():
    X = np.random.default_rng(0).integers(0, 2, (10, 40)).astype(float)
    y = np.random.default_rng(1).normal(size=10)
    model = Ridge().fit(X, y)
    with pytest.raises(cs.errors.InputError, match=r"10 rows of 40 columns, all whole numbers: .*`min_count=0`.*E-FEW"):
        cs.describe(model, data=(X, y))
    assert cs.describe(model, data=(X, y), min_count=0).n_observations == 10
    X += np.random.default_rng(2).normal(size=X.shape) / 100
    cs.describe(Ridge().fit(X, y), data=(X, y))


@pytest.mark.parametrize("model", [Ridge(), LinearDiscriminantAnalysis(), QuadraticDiscriminantAnalysis(reg_param=0.1)],
                         ids=lambda model: type(model).__name__)  # fmt: skip
def test_columns_that_set_few_rows_apart_are_constant_on_request_and_the_result_says_so(model):
    X, other = rows(), rows(1)
    X[:, 1] = np.arange(N) % 4 == 1  # common, and in the classes too
    X[:, 2], other[:, 2] = np.arange(N) == 7, np.arange(N) % 5 < 2
    y = X[:, 0] + np.random.default_rng(1).normal(size=N)
    y = (np.arange(N) % 3 > 0).astype(float) if hasattr(model, "predict_proba") else y
    with pytest.warns(ApproximateStatisticsWarning, match="withholds rows of fewer than 5 people.* column 2: there"):
        site = cs.describe(clone(model).fit(X, y), data=(X, y), withhold_columns=True)
    record = site.moments["rows"]
    plain = cs.describe(clone(model).fit(X[:, :2], y), data=(X[:, :2], y)).moments["rows"]
    products = record.scatter + record.n[..., None, None] * record.mean[..., None] * record.mean[..., None, :]
    assert not products[..., 2, :].any()
    np.testing.assert_array_equal(record.scatter[..., :2, :2], plain.scatter[..., :2, :2])
    fusion = cs.fuse({"a": site, "b": described(other, clone(model))})
    assert "withholds rows" in fusion.verdict.text
    assert not any("withholds" in text for text in fusion.inputs[1].value.approximations)


def test_whoever_has_the_sums_finds_the_same_columns_in_them(tmp_path):
    X = np.c_[rows(), np.arange(N) < 30, np.arange(N) < 28, np.arange(N) >= 33]
    y = X[:, 0] + np.random.default_rng(1).normal(size=N)
    for model, target in ((Ridge(), y), (QuadraticDiscriminantAnalysis(reg_param=0.1), np.arange(N) % 2)):
        model.fit(X, target)
        with pytest.warns(RareColumnWarning) as caught:
            cs.save(model, tmp_path / "a", data=(X, target), overwrite=True)
        told = str(caught[0].message).partition(": set")[0]
        assert dict(inspect_file(tmp_path / "a").rows)["rare columns"].partition(": set")[0] == told
        with pytest.warns(ApproximateStatisticsWarning):
            cs.save(model, tmp_path / "b", data=(X, target), withhold_columns=True)
        assert "rare columns" not in dict(inspect_file(tmp_path / "b").rows)
        (tmp_path / "b").unlink()


def test_columns_are_withheld_from_sums_of_rows_alone(tmp_path):
    X = rows()
    with pytest.raises(OptionError, match="sums of rows; coefficients of a LogisticRegression"):
        described(X, LogisticRegression(), withhold_columns=True)
    statistics = described(X[:, :2])
    with pytest.raises(OptionError, match="withhold_columns: needs the rows that sums"):
        cs.describe(statistics, withhold_columns=True)
    with pytest.raises(OptionError, match="is for estimators that are fused by their sums"):
        cs.describe(GaussianMixture(2, random_state=0).fit(X), data=X, withhold_columns=True)


def test_sparse_columns_are_withheld_too():
    X = csr_array(rows())
    found, columns = without_rare_columns(SiteRows(X), 5.0, by_class=False)
    assert columns == [2]
    np.testing.assert_array_equal(found.dense, rows() * [1.0, 1.0, 0.0])
    np.testing.assert_array_equal(X.toarray(), rows())
