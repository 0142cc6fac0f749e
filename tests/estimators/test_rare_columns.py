"""Columns that set few rows apart: products of columns give those rows, and a site is told before they leave."""

import warnings

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB

import consilience as cs
from consilience.errors import RareColumnWarning

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
    with pytest.warns(RareColumnWarning, match=r"^column 2 \(1 row\): set fewer than 5 rows apart.*\[W-RARE\]$"):
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
