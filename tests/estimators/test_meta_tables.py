"""Meta-analysis of tables and counts, without one site, and by moderators, against published numbers.

Effects of the BCG vaccine on tuberculosis in 13 trials (Colditz et al. 1994): counts, and the absolute latitude. The
numbers expected are those that metafor prints for ``rma(yi, vi)`` and ``rma(yi, vi, mods = ~ ablat)``.
"""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.optimize import minimize_scalar
from statsmodels.stats.meta_analysis import effectsize_2proportions

import consilience as cs
from consilience.estimators.meta_analysis.counts import effects_of_counts

TRIALS = pd.DataFrame(
    [
        ("Aronson", 4, 119, 11, 128, 44), ("Ferguson", 6, 300, 29, 274, 55), ("Rosenthal 1960", 3, 228, 11, 209, 42),
        ("Hart", 62, 13536, 248, 12619, 52), ("Frimodt-Moller", 33, 5036, 47, 5761, 13),
        ("Stein", 180, 1361, 372, 1079, 44), ("Vandiviere", 8, 2537, 10, 619, 19),
        ("TPT Madras", 505, 87886, 499, 87892, 13), ("Coetzee", 29, 7470, 45, 7232, 27),
        ("Rosenthal 1961", 17, 1699, 65, 1600, 42), ("Comstock 1974", 186, 50448, 141, 27197, 18),
        ("Comstock 1969", 5, 2493, 3, 2338, 33), ("Comstock 1976", 27, 16886, 29, 17825, 33),
    ],
    columns=["slab", "ai", "bi", "ci", "di", "ablat"],
)  # fmt: skip
LATITUDES = dict(zip(TRIALS.slab, TRIALS.ablat, strict=True))


def trials(**options):
    return cs.meta_analysis(TRIALS, measure="log_risk_ratio", **{"interval": "normal", **options})


def test_counts_are_pooled_as_published():
    analysis = trials()
    assert analysis.sites[0] == "Aronson"
    np.testing.assert_allclose(analysis.random.mean, [-0.7145], atol=5e-5)
    np.testing.assert_allclose(analysis.random.standard_errors, [0.1798], atol=5e-5)
    np.testing.assert_allclose(analysis.tau2, [0.3132], atol=5e-5)
    np.testing.assert_allclose(analysis.heterogeneity.q, 152.2330, atol=5e-5)


def test_latitude_explains_what_is_published():
    found = trials().regress({"ablat": LATITUDES})
    assert found.names == ("intercept", "ablat")
    np.testing.assert_allclose(found.coefficients, [0.2515, -0.0291], atol=5e-5)
    np.testing.assert_allclose(found.standard_errors, [0.2491, 0.0072], atol=5e-5)
    np.testing.assert_allclose([found.tau2, 100 * found.explained], [0.0764, 75.62], atol=1e-2)
    np.testing.assert_allclose([found.moderators_q, found.residual_q], [16.3571, 30.7331], rtol=1e-4)
    assert "explain 76 %" in found.summary()


def test_the_variance_that_moderators_leave_maximises_the_restricted_likelihood():
    analysis = trials()
    y, v = analysis.estimates[:, 0], analysis.covariances[:, 0, 0]
    X = np.column_stack([np.ones(len(y)), TRIALS.ablat])

    def loss(tau2):
        total = np.diag(v + tau2)
        inverse = np.linalg.inv(total)
        beta = np.linalg.solve(X.T @ inverse @ X, X.T @ inverse @ y)
        residual = y - X @ beta
        determinants = np.linalg.slogdet(total)[1] + np.linalg.slogdet(X.T @ inverse @ X)[1]
        return determinants + residual @ inverse @ residual

    expected = minimize_scalar(loss, bounds=(0, 1), method="bounded", options={"xatol": 1e-10}).x
    assert analysis.regress({"ablat": LATITUDES}).tau2 == pytest.approx(expected, rel=1e-5)


def test_a_moderator_without_scatter_between_sites_leaves_no_variance():
    x = np.arange(6.0)
    analysis = cs.meta_analysis({f"s{k}": (1.0 + 0.5 * k, 0.04) for k in range(6)}, interval="truncated_hartung_knapp")
    found = analysis.regress({"x": x})
    np.testing.assert_allclose(found.coefficients, [1.0, 0.5], rtol=1e-9)
    assert found.tau2 < 1e-8 and found.explained == pytest.approx(1.0)  # noqa: PT018


@pytest.mark.filterwarnings("ignore:statistic='rr':FutureWarning")  # a name that the lowest version has
@pytest.mark.parametrize("measure", ["log_odds_ratio", "log_risk_ratio", "risk_difference"])
def test_effects_of_counts_are_those_of_statsmodels(measure):
    counts = TRIALS[["ai", "bi", "ci", "di"]].to_numpy(float).reshape(-1, 2, 2)
    totals = counts.sum(axis=2)
    statistic = {"log_odds_ratio": "odds-ratio", "log_risk_ratio": "rr", "risk_difference": "diff"}[measure]
    expected = effectsize_2proportions(
        counts[:, 0, 0], totals[:, 0], counts[:, 1, 0], totals[:, 1], statistic=statistic
    )
    np.testing.assert_allclose(effects_of_counts(counts, measure), expected, rtol=1e-12)


def test_a_zero_count_is_corrected_in_its_own_site_alone():
    with_zero, without = [[0.0, 20.0], [5.0, 15.0]], [[4.0, 16.0], [5.0, 15.0]]
    effect, _ = effects_of_counts(np.array([with_zero, without]), "log_odds_ratio")
    assert effect[0] == pytest.approx(np.log(0.5 * 15.5 / (20.5 * 5.5)))
    assert effect[1] == pytest.approx(np.log(4 * 15 / (16 * 5)))


def test_counts_by_site_are_those_of_the_table():
    by_site = {row.slab: [[row.ai, row.bi], [row.ci, row.di]] for row in TRIALS.itertuples()}
    analysis = cs.meta_analysis(by_site, measure="log_risk_ratio")
    np.testing.assert_allclose(analysis.estimates, trials().estimates)


@pytest.mark.parametrize("spread", [[0.2, 0.1], [[0.2, 0.0], [0.0, 0.1]]])
def test_a_pair_of_two_coefficients_is_no_table_of_counts(spread):
    """A tuple is an estimate with its covariance, whatever its shape."""
    sites = {name: ([1.0, 2.0], spread) for name in "ab"}
    if np.ndim(spread) == 1:
        with pytest.raises(cs.errors.InputError, match=r"np\.diag"):
            cs.meta_analysis(sites)
    else:
        np.testing.assert_allclose(cs.meta_analysis(sites, method="fixed").fixed.mean, [1.0, 2.0])


def test_leaving_one_site_out_is_the_analysis_of_the_others():
    analysis = trials(interval="hartung_knapp")
    left = analysis.leave_one_out()
    assert list(left) == list(analysis.sites)
    others = cs.meta_analysis(TRIALS[TRIALS.slab != "Hart"], measure="log_risk_ratio")
    np.testing.assert_array_equal(left["Hart"].random.mean, others.random.mean)
    np.testing.assert_array_equal(left["Hart"].random.intervals, others.random.intervals)
    with pytest.raises(cs.errors.InputError, match="leaves 1 of 2 sites"):
        cs.meta_analysis({"a": (1.0, 1.0), "b": (2.0, 1.0)}).leave_one_out()


ROWS = {"site": ["a", "b", "c"], "estimate": [1.0, 2.0, 1.5], "se": [0.3, 0.3, 0.4]}


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame(ROWS),
        pl.DataFrame(ROWS),
        pd.DataFrame({"slab": ROWS["site"], "yi": ROWS["estimate"], "vi": np.square(ROWS["se"])}),
        pd.DataFrame({"Study": ROWS["site"], "TE": ROWS["estimate"], "seTE": ROWS["se"]}),
        pd.DataFrame({"site": ROWS["site"], "term": ["x"] * 3, "estimate": ROWS["estimate"], "std.error": ROWS["se"]}),
    ],
)
def test_tables_are_known_by_the_names_of_their_columns(table, tmp_path):
    analysis = cs.meta_analysis(table)
    expected = cs.meta_analysis({"a": (1.0, 0.09), "b": (2.0, 0.09), "c": (1.5, 0.16)})
    np.testing.assert_allclose(analysis.random.mean, expected.random.mean)
    assert analysis.sites == ("a", "b", "c")
    if isinstance(table, pd.DataFrame):
        table.to_csv(tmp_path / "t.tsv", sep="\t", index=False)
        np.testing.assert_allclose(cs.meta_analysis(tmp_path / "t.tsv").random.mean, expected.random.mean)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: cs.meta_analysis(pd.DataFrame({"x": [1.0]})), "has columns x, expected some of"),
        (
            lambda: cs.meta_analysis(pd.DataFrame({**ROWS, "se": [0.3, 0.0, 1.0]})),
            "row 1, counted from 0: the standard",
        ),
        (lambda: cs.meta_analysis({"a": [[1, -1], [2, 2]], "b": [[1, 1], [2, 2]]}), "a: has counts that are negative"),
        (lambda: cs.meta_analysis({"a": [[0, 0], [2, 2]], "b": [[1, 1], [2, 2]]}), "a: has a group of nobody"),
        (lambda: trials().regress({"ablat": {"Hart": 1.0}}), "ablat: has no number for Aronson"),
        (lambda: trials().regress({"one": np.ones(13)}), "determine one another, or do not vary"),
        (lambda: trials().regress({f"m{k}": np.arange(13.0) ** k for k in range(1, 14)}), "13 of 13 sites"),
        (lambda: trials().regress(3), "expected a mapping from names to numbers by site"),
    ],
)
def test_what_cannot_be_analysed_is_refused(make, text):
    with pytest.raises(cs.errors.InputError, match=text):
        make()


def test_moderators_are_read_by_site_by_name_and_from_tables():
    analysis = trials()
    expected = analysis.regress({"ablat": LATITUDES}).coefficients
    for moderators in (
        {site: {"ablat": value} for site, value in LATITUDES.items()},
        {"ablat": TRIALS.ablat.to_numpy()},
        TRIALS.rename(columns={"slab": "site"})[["site", "ablat"]],
    ):
        np.testing.assert_allclose(analysis.regress(moderators).coefficients, expected)
    with pytest.raises(cs.errors.OptionError, match="measure: expected one of"):
        cs.meta_analysis(TRIALS, measure="hazard")


@pytest.mark.parametrize(
    "shape",
    [
        lambda values: {"ablat": values},
        lambda values: values,
        lambda values: values.to_frame(),
        lambda values: values.rename_axis("slab").reset_index(),
    ],
)
def test_moderators_of_pandas_are_taken_by_their_index(shape):
    shuffled = pd.Series(LATITUDES, name="ablat").iloc[::-1]
    found = trials().regress(shape(shuffled))
    np.testing.assert_allclose(found.coefficients, trials().regress({"ablat": LATITUDES}).coefficients, rtol=1e-12)


@pytest.mark.parametrize("method", ["dl", "pm"])
def test_moments_of_the_regression_are_those_of_the_method(method):
    """Q of the residuals is what it is expected to be under tau^2: at tau^2 = 0, or at the estimate itself."""
    analysis = trials(method=method)
    found = analysis.regress({"ablat": LATITUDES})
    y, v = analysis.estimates[:, 0], analysis.covariances[:, 0, 0]
    X = np.column_stack([np.ones(len(y)), TRIALS.ablat])

    def residuals(w):
        hat = X @ np.linalg.solve(X.T @ (w[:, None] * X), X.T * w)
        return (np.eye(len(y)) - hat).T @ np.diag(w) @ (np.eye(len(y)) - hat)

    weights = 1.0 / v if method == "dl" else 1.0 / (v + found.tau2)
    form = residuals(weights)
    np.testing.assert_allclose(y @ form @ y, np.trace(form @ np.diag(v + found.tau2)), rtol=1e-8)
    assert found.tau2 > 0


def test_effects_of_a_table_come_before_its_counts():
    """As metafor's escalc adds them, by a measure of its own."""
    expected = trials()
    table = TRIALS.assign(yi=expected.estimates[:, 0], vi=expected.covariances[:, 0, 0])
    np.testing.assert_allclose(cs.meta_analysis(table).estimates, expected.estimates)
    with pytest.raises(cs.errors.InputError, match="sei is not the root of vi"):
        cs.meta_analysis(table.assign(sei=table.vi))


def test_a_series_is_no_table():
    with pytest.raises(cs.errors.InputError, match="found Series"):
        cs.meta_analysis(pd.Series([1.0, 2.0]))
    with pytest.raises(cs.errors.InputError, match="without a column site"):
        trials().regress(TRIALS[["ablat"]])
