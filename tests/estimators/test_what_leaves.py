"""What leaves a site with the default min_count: nothing from which a single row follows."""

import warnings
from contextlib import nullcontext

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.naive_bayes import BernoulliNB, CategoricalNB, GaussianNB, MultinomialNB
from sklearn.preprocessing import StandardScaler

import consilience as cs
from consilience.errors import RareColumnWarning
from consilience.estimators.describe import ApproximateStatisticsWarning
from tests.cli.running import command
from tests.copies import COPIES
from tests.estimators.estimators_zoo import class_rows, code_rows, count_rows, regression_rows
from tests.estimators.sites import differences


def test_weighted_rows_leave_without_their_unweighted_moments():
    X, y = class_rows(0)
    weights = np.ones(len(X))
    weights[7] = 3.0  # the difference of weighted and unweighted sums would be twice this row
    model = GaussianNB().fit(X, y, sample_weight=weights)
    with pytest.warns(ApproximateStatisticsWarning, match="`min_count=0` only"):
        sent = cs.describe(model, (X, y), sample_weight=weights)
    assert set(sent.moments) == {"rows"}
    whole = cs.describe(model, (X, y), sample_weight=weights, min_count=0)
    assert set(whole.moments) == {"rows", "unweighted"}
    assert set(cs.describe(whole).moments) == {"rows"}
    plain = cs.describe(GaussianNB().fit(X[1:], y[1:]))
    for sites in ([sent, plain], [whole, plain]):
        verdict = cs.fuse(sites).verdict
        assert (verdict.code, verdict.harmless) == ("approximate", None)
        assert verdict.remedy == "`min_count=0` at the sites and here sends what is missing"
    assert cs.fuse([whole, plain], min_count=0).verdict.code == "exact"
    mixed = cs.fuse([whole, cs.describe(sent, features=cs.Features(names="abcd"))], min_count=0)
    assert set(mixed.statistics.moments) == {"rows"}  # of all rows they are not known
    np.testing.assert_allclose(cs.rebuild(sent).theta_, model.theta_, rtol=1e-12)
    np.testing.assert_allclose(cs.rebuild(sent).var_, model.var_, rtol=1e-6)


@COPIES
def test_a_column_with_a_value_in_few_rows_does_not_leave():
    X = regression_rows(0)[0].copy()
    X[2:, 1] = np.nan  # of two rows their mean and variance tell both
    X[4:, 3] = np.nan
    scaler = StandardScaler().fit(X)
    with pytest.raises(cs.errors.InputError) as caught:
        cs.describe(scaler)
    assert [problem.subject for problem in caught.value.problems] == ["column 1", "column 3"]
    assert "has a value in 2 rows, fewer than 5; leave that column out, or give `min_count=0" in str(caught.value)
    assert "column 1" in str(cs.check([scaler, scaler]))
    assert cs.describe(scaler, min_count=0).n_observations == len(X)
    assert cs.describe(StandardScaler().fit(X[:, [0, 2, 4]])).n_observations == len(X)


def test_codes_that_only_a_withheld_class_has_do_not_leave():
    X, y = code_rows(0)
    X, y = np.minimum(X, 4), np.where(y == 0, 1, y)
    rare = np.array([[2, 11, 0, 0], [0, 7, 0, 0]])
    X, y = np.vstack([X, rare]), np.concatenate([y, [9, 9]])
    model = CategoricalNB().fit(X, y)
    for described in (lambda: cs.describe(model), lambda: cs.describe(model, (X, y))):
        with pytest.warns(cs.errors.WithheldWarning, match="class 9"):
            sent = described()
        assert sent.counts["features"].shape == (2, 4 * 5)
        assert sent.maxima["categories"].tolist() == [5.0] * 4
        expected = CategoricalNB().fit(X[:-2], y[:-2])
        assert differences(cs.rebuild(sent), expected, 1e-12) == []


def test_removing_a_site_removes_the_categories_that_only_it_had():
    X, y = code_rows(0)
    low = X.max(axis=1) < 5
    sites = [CategoricalNB().fit(X[low][j::2], y[low][j::2]) for j in (0, 1)]
    last = CategoricalNB().fit(X[~low], y[~low])
    left, others = cs.remove(cs.fuse([*sites, last]), last), cs.fuse(sites)
    assert left.model.n_categories_.tolist() == others.model.n_categories_.tolist() == [5] * 4
    assert differences(left.model, others.model, 1e-12) == []


def test_categories_follow_the_hyper_parameter_of_the_fused_model():
    X, y = code_rows(0)
    sites = [
        cs.describe(CategoricalNB(min_categories=number).fit(X[j::2], y[j::2])) for j, number in ((0, None), (1, 14))
    ]
    with pytest.warns(UserWarning, match="min_categories is None as at model 0"):
        fused = cs.fuse(sites)
    assert differences(fused.model, CategoricalNB().fit(X, y), 1e-12) == []
    wide = cs.fuse(sites, min_categories=12).model
    assert differences(wide, CategoricalNB(min_categories=12).fit(X, y), 1e-12) == []


@pytest.mark.parametrize("make", [GaussianNB, MultinomialNB, BernoulliNB])
def test_counts_that_are_sums_of_weights_are_not_taken_for_rows(make):
    X, y = count_rows(0)
    rows = np.concatenate([np.flatnonzero(y != 2), np.flatnonzero(y == 2)[:1]])
    X, y = X[rows], y[rows]
    weights = np.where(y == 2, 10.5, 1.0)  # one row that counts for ten
    model = make().fit(X, y, sample_weight=weights)
    with pytest.raises(cs.errors.InputError, match=r"counts weights, not rows \(10\.5\).*describe it with its data"):
        cs.describe(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert cs.describe(model, (X, y), sample_weight=weights).classes.names == ("0", "1")
    assert "class 2: has 1 rows" in " ".join(str(warning.message) for warning in caught)


def test_a_class_that_varies_in_no_column_may_be_one_row_and_is_withheld():
    X, y = class_rows(0)
    rows = np.concatenate([np.flatnonzero(y != "ash"), np.flatnonzero(y == "ash")[:1]])
    X, y = X[rows], y[rows]
    model = GaussianNB().fit(X, y, sample_weight=np.where(y == "ash", 10.0, 1.0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert cs.describe(model).classes.names == ("birch", "cedar", "elm")
    told = " ".join(str(warning.message) for warning in caught)
    assert "class ash: varies in no column, so that it may be one row" in told


def test_a_scaler_of_weighted_rows_does_not_say_how_many_rows_it_saw():
    X = regression_rows(0)[0]
    scaler = StandardScaler().fit(X, sample_weight=np.full(len(X), 0.71))
    with pytest.raises(cs.errors.InputError, match="a StandardScaler: counts weights, not rows"):
        cs.describe(scaler)


def test_a_row_that_alone_has_a_value_in_a_column_follows_from_products_and_the_pages_say_so(tmp_path):
    X = regression_rows(0)[0]
    X[:, 4] = 0.0
    X[17, 4] = 1.0
    for name, rows in (("a", slice(0, 200)), ("b", slice(200, None))):
        with nullcontext() if name == "b" else pytest.warns(RareColumnWarning, match=r"^column 4 \(1 row\)"):
            cs.save(PCA().fit(X[rows]), tmp_path / f"{name}.safetensors", data=X[rows])
    fusion = cs.fuse([tmp_path / "a.safetensors", tmp_path / "b.safetensors"])
    np.testing.assert_allclose(fusion.statistics.rows.raw_scatter()[4], X[17], atol=1e-8)
    fusion.report(tmp_path / "page.html")
    assert "they hold that whole row, whatever min_count" in (tmp_path / "page.html").read_text()
    fusion.save(tmp_path / "fused.safetensors")
    told = command("inspect", tmp_path / "fused.safetensors").out
    assert "of a column that is not zero for one row alone, that whole row" in " ".join(told.split())
