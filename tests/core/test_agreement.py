"""Whether inputs mean the same: rows twice in another order, columns in another unit, labels in another spelling."""

import warnings

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from sklearn.covariance import LedoitWolf
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.linear_model import BayesianRidge, LinearRegression, LogisticRegression, Ridge
from sklearn.mixture import BayesianGaussianMixture
from sklearn.naive_bayes import BernoulliNB, GaussianNB
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, StandardScaler

import consilience as cs
from consilience.core.agreement import ColumnMoments, Meaning, doubts_of
from consilience.errors import SpellingWarning, TwiceWarning, UnitsWarning

N = 240


def rows(seed):
    rng = np.random.default_rng(seed)
    X = rng.normal([5.0, 0.0, 12.0], size=(N, 3))
    return X, (X[:, 0] - 5.0 + rng.normal(size=N) > 0).astype(int)


def targets(X):
    return X @ [1.0, 2.0, 3.0] + np.sin(50.0 * X[:, 1])


KINDS = {
    "LinearRegression": lambda X, y: cs.describe(LinearRegression().fit(X, targets(X)), data=(X, targets(X))),
    "Ridge": lambda X, y: cs.describe(Ridge().fit(X, targets(X)), data=(X, targets(X))),
    "BayesianRidge": lambda X, y: cs.describe(BayesianRidge().fit(X, targets(X)), data=(X, targets(X))),
    "LogisticRegression": lambda X, y: cs.describe(LogisticRegression().fit(X, y), data=(X, y)),
    "GaussianNB": lambda X, y: GaussianNB().fit(X, y),
    "LinearDiscriminantAnalysis": lambda X, y: cs.describe(LinearDiscriminantAnalysis().fit(X, y), data=(X, y)),
    "QuadraticDiscriminantAnalysis": lambda X, y: cs.describe(
        QuadraticDiscriminantAnalysis(store_covariance=True).fit(X, y), data=(X, y)
    ),
    "StandardScaler": lambda X, y: StandardScaler().fit(X),
    "LedoitWolf": lambda X, y: cs.describe(LedoitWolf().fit(X), data=X),
    "PCA": lambda X, y: cs.describe(PCA().fit(X), data=X),
    "OLS": lambda X, y: sm.OLS(targets(X), sm.add_constant(X)).fit(),
    "Logit": lambda X, y: sm.Logit(y, sm.add_constant(X)).fit(disp=0),
    "Poisson": lambda X, y: sm.GLM(y, sm.add_constant(X), family=sm.families.Poisson()).fit(),
}


def said(sites, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert not cs.check(sites, **options)
    return [(warning.category, str(warning.message)) for warning in caught]


@pytest.mark.parametrize("kind", KINDS)
class TestSums:
    def test_the_same_rows_in_another_order_count_twice(self, kind):
        (X, y), (Z, w) = rows(0), rows(1)
        order = np.random.default_rng(2).permutation(N)
        sites = {"lund": KINDS[kind](X, y), "oslo": KINDS[kind](Z, w), "riga": KINDS[kind](X[order], y[order])}
        ((category, text),) = said(sites)
        assert category is TwiceWarning
        assert "riga: has the sums of lund" in text

    def test_centred_rows_in_another_order_count_twice_and_alike_small_ones_do_not(self, kind):
        (X, y), (Z, w) = rows(0), rows(1)
        X, Z = (0.02 * (one - one.mean(axis=0)) for one in (X, Z))
        order = np.random.default_rng(2).permutation(N)
        sites = {"lund": KINDS[kind](X, y), "oslo": KINDS[kind](Z, w), "riga": KINDS[kind](X[order], y[order])}
        ((_, text),) = said(sites)
        assert "riga: has the sums of lund" in text

    @pytest.mark.parametrize(("column", "name"), [(0, "column 0|x1|x2"), (2, "column 2|x3|x2")])
    def test_a_column_in_another_unit_is_named(self, kind, column, name):
        sites = {}
        for seed in range(3):
            X, y = rows(seed)
            if seed == 1:
                X[:, column] *= 1000.0
            sites[f"site {seed}"] = KINDS[kind](X, y)
        found = [text for category, text in said(sites) if category is UnitsWarning]
        assert len(found) == 1
        assert found[0].startswith("site 1: may have another unit than the other sites in")
        assert any(one in found[0] for one in name.split("|")), found

    def test_honest_sites_are_not_doubted(self, kind):
        for split in ("random", "sorted"):
            X, y = rows(3)
            X, y = np.concatenate([X, rows(4)[0]]), np.concatenate([y, rows(4)[1]])
            order = np.arange(2 * N) if split == "random" else np.argsort(X[:, 1])
            assert not said({f"site {j}": KINDS[kind](X[part], y[part]) for j, part in enumerate(np.split(order, 3))})


@pytest.mark.parametrize("scaler", [MinMaxScaler, MaxAbsScaler])
def test_extremes_in_another_unit_are_named(scaler):
    sites = {}
    for seed in range(3):
        X = rows(seed)[0]
        sites[f"site {seed}"] = cs.describe(scaler().fit(X), min_count=0)
    assert not said(sites, min_count=0)
    X[:, 1] *= 1000.0
    ((category, text),) = said({**sites, "site 2": cs.describe(scaler().fit(X), min_count=0)}, min_count=0)
    assert category is UnitsWarning
    assert text.startswith("site 2: may have another unit than the other sites in column 1 (values ")


def test_equal_extremes_are_no_copy_and_one_object_twice_is():
    """Extremes count once, and those of whole numbers agree between honest sites."""
    one, other = (MaxAbsScaler().fit(np.array([[1.0, 5.0], [9.0, 4.0], [3.0, middle]])) for middle in (2.0, 3.0))
    assert not said([one, other], min_count=0)
    ((category, text),) = said([one, one], min_count=0)
    assert category is TwiceWarning
    assert "is the same object" in text


def moments(mean, deviation, n=200.0, **more):
    return Meaning(ColumnMoments(None, n, np.array(mean, float), np.array(deviation, float), **more))


def test_kelvin_is_told_from_celsius_and_not_a_warmer_place():
    at = {"lund": moments([9.0, 70.0], [7.0, 12.0]), "oslo": moments([6.0, 72.0], [8.0, 13.0])}
    kelvin = {**at, "riga": moments([7.0 + 273.15, 71.0], [8.0, 12.5])}
    (doubt,) = doubts_of(list(kelvin.items()))
    assert doubt.problem.subject == "riga"
    assert "column 0 (mean 3" in doubt.problem.text
    assert not doubts_of(list({**at, "rome": moments([31.0, 71.0], [6.0, 12.5])}.items()))


@pytest.mark.parametrize(
    ("what", "sites"),
    [
        ("a binary column that is rare at one site", [([0.001], [0.0316]), ([0.5], [0.5]), ([0.4], [0.49])]),
        ("a column that is constant at one site", [([5.0], [0.0]), ([500.0], [5.0]), ([480.0], [6.0])]),
        ("a sparse column with one value at a site", [([0.01], [0.15]), ([30.0], [70.0]), ([28.0], [66.0])]),
        ("sites in order along a column", [([float(j)], [0.02]) for j in range(6)]),
        ("sites of all sizes", [([10.0**j], [2.0 * 10.0**j]) for j in range(5)]),
    ],
)
def test_honest_differences_raise_no_doubt(what, sites):
    assert not doubts_of([(f"site {j}", moments(*own)) for j, own in enumerate(sites)]), what


def test_sites_of_a_mixture_may_lie_apart():
    apart = [("lund", moments([0.0], [1.0], has_origin=False)), ("oslo", moments([90.0], [1.0], has_origin=False))]
    assert not doubts_of(apart)


def test_a_mixture_in_another_unit_is_doubted_and_one_of_other_components_is_not():
    def fitted(seed, centres, factor=1.0):
        X = np.random.default_rng(seed).normal(size=(90, 2)) + np.repeat(centres, 45, axis=0)
        X[:, 0] *= factor
        return BayesianGaussianMixture(n_components=2, random_state=0).fit(X)

    near, other = [[20.0, 0.0], [20.0, 9.0]], [[29.0, 0.0], [29.0, 9.0]]
    assert not said([fitted(0, near), fitted(1, other)])
    ((category, text),) = said([fitted(0, near), fitted(1, near, 1000.0)])
    assert category is UnitsWarning
    assert "column 0" in text


def classes(*names):
    return Meaning(labels=names)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("No", "Yes"), ("no ", "Yes")),
        (("in-patient", "home"), ("In patient", "home")),
        (("benign", "malignant"), ("bengin", "malignant")),
        (("setosa",), ("setossa",)),
        (("well_differentiated",), ("Well differentiated",)),
    ],
)
def test_labels_that_differ_in_spelling_are_doubted(first, second):
    (doubt,) = doubts_of([("lund", classes(*first)), ("oslo", classes(*second))])
    assert doubt.category is SpellingWarning
    assert doubt.problem.subject in ("lund", "oslo")
    assert repr(first[0]) in doubt.problem.text
    assert repr(second[0]) in doubt.problem.text


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("cat",), ("bat",)),
        (("A+",), ("A-",)),
        (("species a",), ("species b",)),
        (("type I",), ("type II",)),
        (("class 1",), ("class 2",)),
        (("mouse",), ("house",)),
        (("positive",), ("negative",)),
        (("lesion", "legion"), ("lesion",)),  # a site that has both means two
        (("comp.graphics", "comp.windows.x"), ("rec.autos", "rec.motorcycles")),
    ],
)
def test_labels_of_different_classes_are_not_doubted(first, second):
    assert not doubts_of([("lund", classes(*first)), ("oslo", classes(*second))])


def test_a_verdict_in_doubt_excludes_no_harm_and_says_why():
    X, y = rows(0)
    names = np.array(["No", "Yes"])[y]
    sites = {"lund": GaussianNB().fit(X, names), "oslo": GaussianNB().fit(rows(1)[0], np.char.lower(names))}
    with pytest.warns(SpellingWarning, match=r"two classes here, one perhaps; spell labels alike.*\[W-SPELLING\]"):
        fusion = cs.fuse(sites)
    assert fusion.verdict.code == "exact"
    assert fusion.verdict.harmless is None
    assert "In doubt: " in fusion.summary()
    assert "spell labels alike" in fusion.verdict.remedy


def test_few_counts_that_agree_by_chance_are_not_said_to_be_the_same_rows():
    y = np.array([0, 1] * 20)
    first, second = (np.random.default_rng(seed).integers(0, 2, (40, 1)) for seed in (0, 1))
    second[:, 0] = np.roll(first[:, 0], 2)
    sites = [BernoulliNB().fit(first, y), BernoulliNB().fit(second, y)]
    assert [category for category, _ in said(sites)] in (
        [],
        [TwiceWarning],
    )  # equal contents are said, whoever sent them


# -- Columns in another order, and values of a fusion.


def frame_site(seed, columns, factor=1.0):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"kg": rng.normal(60.0, 9.0, 150), "m": rng.normal(1.7, 0.1, 150) * factor})
    y = table.kg + rng.normal(size=150)
    return cs.describe(LinearRegression().fit(table[columns], y), (table[columns], y))


@pytest.mark.parametrize("odd", [["kg", "m"], ["m", "kg"]])
def test_units_are_compared_by_name(odd):
    honest = {"lund": frame_site(0, ["kg", "m"]), "oslo": frame_site(1, ["m", "kg"]), "riga": frame_site(2, odd)}
    assert not said(honest)
    ((category, text),) = said({**honest, "riga": frame_site(2, odd, 100.0)})
    assert category is UnitsWarning
    assert text.startswith("riga: may have another unit than the other sites in m ")


def test_the_same_rows_with_their_columns_in_another_order_count_twice():
    ((category, text),) = said({"lund": frame_site(0, ["kg", "m"]), "oslo": frame_site(0, ["m", "kg"])})
    assert category is TwiceWarning
    assert text.startswith("oslo: has the ")


def values_of_fusions():
    sites = {name: frame_site(seed, ["kg", "m"]) for seed, name in enumerate(("lund", "oslo"))}
    yield cs.fuse(sites).statistics, sites["lund"]
    draws = [cs.Draws({"mu": np.random.default_rng(seed).normal(size=(2, 300))}, prior=0.5) for seed in range(2)]
    yield cs.fuse(draws).draws, draws[0]
    mixtures = [
        BayesianGaussianMixture(n_components=2, max_iter=1000, random_state=0).fit(
            np.random.default_rng(s).normal(size=(90, 2)) + 6.0 * (np.arange(90) % 2)[:, None]
        )
        for s in (0, 1)
    ]
    yield cs.fuse(mixtures).posterior, mixtures[0]


def test_the_value_of_a_fusion_beside_a_part_is_refused():
    for value, part in values_of_fusions():
        with pytest.raises(cs.errors.InputError, match="was fused from"):
            cs.fuse({"fused": value, "part": part})
