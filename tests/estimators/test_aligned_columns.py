"""Columns of sites aligned by name: in another order, and zero for levels that a site has not."""

import warnings

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor, Ridge
from sklearn.naive_bayes import BernoulliNB, CategoricalNB, GaussianNB, MultinomialNB
from sklearn.preprocessing import MaxAbsScaler, StandardScaler

import consilience as cs
from consilience.estimators.adapters.table import adapter_of_kind

N = 150


def table(seed, levels="abc"):
    rng = np.random.default_rng(seed)
    g = rng.choice(list(levels), N)
    x, z = rng.normal(size=N), rng.integers(0, 3, N).astype(float)
    y = 1.0 + 2.0 * x + (g == "b") * 0.5 + (g == "c") * 1.5 + rng.normal(size=N)
    outcome = rng.choice(3, N, p=[0.4, 0.3, 0.3])
    return pd.DataFrame(
        {"x": x, "z": z, "g": g, "y": y, "k": rng.poisson(2.0, N), "o": outcome, "b": (y > 1).astype(int)}
    )


ESTIMATORS = {
    "LinearRegression": lambda X, t: cs.describe(LinearRegression().fit(X, t.y), data=(X, t.y)),
    "Ridge": lambda X, t: cs.describe(Ridge().fit(X, t.y), data=(X, t.y)),
    "PoissonRegressor": lambda X, t: cs.describe(PoissonRegressor(tol=1e-10).fit(X, t.k), data=(X, t.k)),
    "LogisticRegression": lambda X, t: cs.describe(LogisticRegression(tol=1e-10).fit(X, t.o), data=(X, t.o)),
    "GaussianNB": lambda X, t: GaussianNB().fit(X, t.b),
    "BernoulliNB": lambda X, t: BernoulliNB().fit(X, t.b),
    "MultinomialNB": lambda X, t: MultinomialNB().fit(np.abs(X), t.b),
    "LinearDiscriminantAnalysis": lambda X, t: cs.describe(LinearDiscriminantAnalysis().fit(X, t.b), data=(X, t.b)),
    "StandardScaler": lambda X, t: StandardScaler().fit(X),
    "PCA": lambda X, t: cs.describe(PCA().fit(X), data=X),
    "OLS": lambda X, t: sm.OLS(t.y, sm.add_constant(X)).fit(),
    "GLM": lambda X, t: sm.GLM(t.k, sm.add_constant(X), family=sm.families.Poisson()).fit(),
    "MNLogit": lambda X, t: sm.MNLogit(t.o, sm.add_constant(X)).fit(disp=0),
}


def sums(statistics):
    return np.concatenate([np.ravel(values) for _, values in statistics.tensors()])


@pytest.mark.parametrize("name", ESTIMATORS)
def test_columns_in_another_order_are_aligned_by_name(name):
    make, (one, other) = ESTIMATORS[name], (table(0), table(1))
    columns = ["x", "z", "y2"]
    first, second = (t.assign(y2=t.x**2 + t.z)[columns] for t in (one, other))
    straight = cs.fuse({"lund": make(first, one), "oslo": make(second, other)})
    turned = cs.fuse({"lund": make(first, one), "oslo": make(second[["y2", "x", "z"]], other)})
    np.testing.assert_allclose(sums(turned.statistics), sums(straight.statistics), rtol=1e-6, atol=1e-6)
    assert turned.statistics.features.names == straight.statistics.features.names
    assert "oslo has its columns in another order: aligned by name" in turned.notes
    assert turned.verdict.text == straight.verdict.text


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name not in ("MultinomialNB", "PCA")])
def test_a_column_that_is_zero_at_a_site_may_be_left_out_there(name):
    make, (one, other) = ESTIMATORS[name], (table(0), table(1, "ab"))
    first, second = (
        pd.get_dummies(t[["x", "g"]], dtype=float)[lambda d: [c for c in d if c != "g_a"]] for t in (one, other)
    )
    sites = {"lund": make(first, one), "oslo": make(second, other)}
    with pytest.raises(cs.errors.InputError, match=r"oslo: lacks g_c, unlike lund.*`absent_columns='zeros'`"):
        cs.fuse(sites)
    fusion = cs.fuse(sites, absent_columns="zeros")
    assert "oslo has no g_c: zero in all its rows" in fusion.notes
    if adapter_of_kind(fusion.statistics.kind).mark == "exact" and name != "OLS":  # which warns of a column of zeros
        whole = cs.fuse({"lund": make(first, one), "oslo": make(second.assign(g_c=0.0), other)})
        np.testing.assert_allclose(sums(fusion.statistics), sums(whole.statistics), rtol=1e-9, atol=1e-9)


def test_categories_of_columns_move_with_them():
    def site(seed, columns):
        rng = np.random.default_rng(seed)
        frame = pd.DataFrame({"a": rng.integers(0, 2, N), "b": rng.integers(0, 4, N)})
        return CategoricalNB().fit(frame[columns], np.arange(N) % 2)

    straight = cs.fuse({"lund": site(0, ["a", "b"]), "oslo": site(1, ["a", "b"])})
    turned = cs.fuse({"lund": site(0, ["a", "b"]), "oslo": site(1, ["b", "a"])})
    np.testing.assert_array_equal(sums(turned.statistics), sums(straight.statistics))


@pytest.mark.parametrize("formula", ["y ~ x + C(g)", "y ~ x * C(g)", "y ~ x + C(g) - 1"])
def test_a_level_that_a_site_lacks_is_exact_in_a_formula(formula):
    one, other = table(0), table(1, "ab")
    fusion = cs.fuse({"lund": smf.ols(formula, one).fit(), "oslo": smf.ols(formula, other).fit()})
    whole = smf.ols(formula, pd.concat([one, other])).fit()
    assert fusion.verdict.code == "exact"
    params = dict(zip(fusion.model.names, fusion.model.params, strict=True))
    np.testing.assert_allclose([params[name] for name in whole.params.index], whole.params, rtol=1e-9)
    assert any("[T.c]" in note or "[c]" in note for note in fusion.notes)


@pytest.mark.parametrize(("levels", "formula"), [("bc", "y ~ x + C(g)"), ("ab", "y ~ x + C(g, Sum)")])
def test_a_level_whose_lack_changes_other_columns_is_refused_by_name(levels, formula):
    sites = {"lund": smf.ols(formula, table(0)).fit(), "oslo": smf.ols(formula, table(1, levels)).fit()}
    lacking = (set("abc") - set(levels)).pop()
    with pytest.raises(cs.errors.InputError, match=rf"oslo: lacks the level {lacking} of C\(g"):
        cs.fuse(sites)


def test_a_category_that_a_site_lacks_is_flat_there():
    one, other = table(0), table(1)
    other = other[other.o < 2]
    fits = {"lund": smf.mnlogit("o ~ x", one).fit(disp=0), "oslo": smf.mnlogit("o ~ x", other).fit(disp=0)}
    fusion = cs.fuse(fits)
    assert fusion.statistics.parameters["categories"] == ["0", "1", "2"]
    # Of the third category lund alone says something: what changes there follows from the other equations.
    of_lund = fits["lund"].params.to_numpy()
    assert np.abs(np.asarray(fusion.model.params)[:, 1] - of_lund[:, 1]).max() < 3.0 * fits["lund"].bse.to_numpy().max()
    assert any("category 2" in note for note in fusion.notes)


def test_a_site_with_columns_of_its_own_is_refused_by_name():
    one, other = table(0), table(1)
    sites = {
        "lund": LinearRegression().fit(one[["x", "z"]], one.y),
        "oslo": LinearRegression().fit(other[["x", "k", "b"]], other.y),
    }
    described = {
        name: cs.describe(model, data=(t[list(model.feature_names_in_)], t.y))
        for (name, model), t in zip(sites.items(), (one, other), strict=True)
    }
    with pytest.raises(cs.errors.InputError, match=r"oslo: lacks z and also has k, b, unlike lund"):
        cs.fuse(described, absent_columns="zeros")


def test_scalers_of_extremes_follow_and_heads_stay():
    one, other = table(0)[["x", "z"]], table(1)[["z", "x"]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sites = [cs.describe(MaxAbsScaler().fit(rows), data=rows, min_count=0) for rows in (one, other)]
    fused = cs.fuse(sites, min_count=0).model
    whole = MaxAbsScaler().fit(pd.concat([one, other[["x", "z"]]]))
    np.testing.assert_allclose(fused.max_abs_, whole.max_abs_)


def test_the_option_is_checked():
    with pytest.raises(cs.errors.OptionError, match="'zeros' or None"):
        cs.fuse([GaussianNB().fit(np.eye(4), [0, 0, 1, 1])] * 2, absent_columns="zero")


def rows_of_logit(seed, columns):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(rng.normal(size=(200, 2)), columns=["x", "z"])
    return sm.add_constant(table[columns]), (1.5 * table.x + rng.logistic(size=200) > 0) * 1


def test_outcomes_by_name_are_answered_as_their_places_are():
    fits, rows = {}, {}
    for seed, site in enumerate(("lund", "oslo")):
        one = table(seed)
        X = sm.add_constant(one[["x", "z"]])
        rows[site] = X, np.array(["high", "low", "mid"])[one.o]
        fits[site] = sm.MNLogit(rows[site][1], X).fit(disp=0)
    fusion = cs.fuse(fits)
    assert fusion.statistics.parameters["categories"] == ["high", "low", "mid"]
    refined = cs.federated.exchange("refine", fusion, rows, rounds=8)
    X, names = (np.concatenate(parts) for parts in zip(*rows.values(), strict=True))
    np.testing.assert_allclose(refined.model.params, sm.MNLogit(names, X).fit(disp=0).params, atol=1e-6)
    rows["oslo"] = rows["oslo"][0], np.where(rows["oslo"][1] == "low", "lo", rows["oslo"][1])
    with pytest.raises(cs.errors.InputError, match="y: expected one of high, low, mid for every row"):
        cs.federated.exchange("refine", fusion, rows)


def test_answers_and_scores_of_named_columns_are_taken_by_name():
    """A result of statsmodels is fitted by place; a table that has just its columns says which is which."""
    rows = {"lund": rows_of_logit(0, ["x", "z"]), "oslo": rows_of_logit(1, ["z", "x"])}
    fits = {site: sm.Logit(y, X).fit(disp=0) for site, (X, y) in rows.items()}
    fusion = cs.fuse(fits)
    refined = cs.federated.exchange("refine", fusion, rows, rounds=8)
    X, y = (pd.concat(parts, ignore_index=True) for parts in zip(*rows.values(), strict=True))
    np.testing.assert_allclose(refined.model.params, sm.Logit(y, X).fit(disp=0).params, atol=1e-6)
    table, outcomes = rows["lund"]
    moved = table[["z", "const", "x"]]
    assert str(cs.evaluate(fusion, fits["lund"], (moved, outcomes))) == str(
        cs.evaluate(fusion, fits["lund"], (table, outcomes))
    )
