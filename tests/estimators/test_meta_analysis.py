"""Laws of meta-analysis: published figures, statsmodels, direct maximisation, one coefficient as a special case."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar
from scipy.stats import multivariate_normal, norm, t

import consilience as cs
from consilience.estimators.meta_analysis.between_sites import SiteEstimates, multivariate_reml, reml
from consilience.estimators.meta_analysis.report import forest_plot
from tests.drawing.shapes import DECIMALS, shapes

pytestmark = pytest.mark.covering(2)

# BCG vaccine against tuberculosis, log relative risks of 13 trials (Colditz et al. 1994), as metafor's `dat.bcg`.
EFFECTS = np.array(
    [-0.8893, -1.5854, -1.3481, -1.4416, -0.2175, -0.7861, -1.6209, 0.0120, -0.4694, -1.3713, -0.3394, 0.4459, -0.0173]
)
VARIANCES = np.array(
    [0.3256, 0.1946, 0.4154, 0.0200, 0.0512, 0.0069, 0.2230, 0.0040, 0.0564, 0.0730, 0.0124, 0.5325, 0.0714]
)
TRIALS = {f"trial {k}": (EFFECTS[k], VARIANCES[k]) for k in range(13)}

ROUNDING = 1e-12
OPTIMISER = 1e-7
"""Quasi-Newton of the oracle with numerical gradients."""
PUBLISHED = 6e-4
"""The figures are of data to more digits."""


def some_sites(seed: int, n_sites: int, p: int, tau2: float) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    sites = {}
    for k in range(n_sites):
        root = rng.normal(size=(p, p + 2))
        covariance = root @ root.T / 10 + 0.02 * np.eye(p)
        sites[f"site {k}"] = (rng.multivariate_normal(np.ones(p), covariance + tau2 * np.eye(p)), covariance)
    return sites


def restricted_likelihood(sites: dict, between: np.ndarray) -> float:
    """The density of contrasts, by integrating the mean out of the joint normal; without its constant."""
    y = np.concatenate([mean for mean, _ in sites.values()])
    p, n_sites = len(between), len(sites)
    joint = np.zeros((p * n_sites, p * n_sites))
    for k, (_, covariance) in enumerate(sites.values()):
        joint[k * p : k * p + p, k * p : k * p + p] = covariance + between
    contrasts = np.kron(np.linalg.svd(np.ones((1, n_sites)))[2][1:], np.eye(p))  # orthonormal, free of the mean
    return float(multivariate_normal(cov=contrasts @ joint @ contrasts.T).logpdf(contrasts @ y))


@pytest.mark.parametrize(
    ("method", "tau2", "mean"),
    [("reml", 0.3132, -0.7145), ("dl", 0.3088, -0.7141), ("pm", 0.3181, -0.7150)],
)
def test_published_figures_of_the_bcg_trials(method, tau2, mean):
    analysis = cs.meta_analysis(TRIALS, method=method)
    np.testing.assert_allclose([analysis.tau2[0], analysis.random.mean[0]], [tau2, mean], atol=PUBLISHED)


@pytest.mark.parametrize(("method", "theirs"), [("dl", "chi2"), ("pm", "iterated")])
def test_moments_equal_those_of_statsmodels(method, theirs):
    meta_analysis = pytest.importorskip("statsmodels.stats.meta_analysis")
    options = {"atol": 1e-14} if theirs == "iterated" else {}
    oracle = meta_analysis.combine_effects(EFFECTS, VARIANCES, method_re=theirs, **options)
    ours = cs.meta_analysis(TRIALS, method=method)
    pairs = [
        (ours.tau2[0], oracle.tau2),
        (ours.random.mean[0], oracle.mean_effect_re),
        (ours.fixed.mean[0], oracle.mean_effect_fe),
        (ours.random.standard_errors[0], oracle.sd_eff_w_re_hksj),
        (ours.heterogeneity.q, oracle.q),
        (ours.i2[0], oracle.i2),
    ]
    np.testing.assert_allclose(*zip(*pairs, strict=True), rtol=1e-10)


@pytest.mark.parametrize("tau2", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("n_sites", [3, 8])
def test_reml_of_one_coefficient_maximises_the_restricted_likelihood(n_sites, tau2):
    sites = some_sites(n_sites, n_sites, 1, tau2)
    found = cs.meta_analysis(sites).tau2[0]
    oracle = minimize_scalar(
        lambda value: -restricted_likelihood(sites, np.array([[value]])), bounds=(0.0, 20.0), options={"xatol": 1e-9}
    )
    assert abs(found - oracle.x) < 1e-5
    assert restricted_likelihood(sites, np.array([[found]])) >= -oracle.fun - OPTIMISER


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize(("n_sites", "p", "tau2"), [(5, 2, 0.5), (8, 3, 1.0), (6, 2, 0.0), (10, 3, 0.05)])
def test_multivariate_reml_maximises_the_restricted_likelihood(n_sites, p, tau2, diagonal):
    sites = some_sites(n_sites, n_sites, p, tau2)
    entries = np.diag_indices(p) if diagonal else np.tril_indices(p)

    def objective(values):
        root = np.zeros((p, p))
        root[entries] = values
        return -restricted_likelihood(sites, root @ root.T)

    oracle = min((minimize(objective, size * np.eye(p)[entries]) for size in (0.1, 1.0)), key=lambda one: one.fun)
    analysis = cs.meta_analysis(sites, diagonal=diagonal)
    assert restricted_likelihood(sites, analysis.between) >= -oracle.fun - OPTIMISER
    assert not diagonal or np.count_nonzero(analysis.between - np.diag(np.diag(analysis.between))) == 0


def test_multivariate_reml_of_one_coefficient_is_the_univariate_one():
    sites = SiteEstimates(EFFECTS[:, None], VARIANCES[:, None, None], np.ones((13, 1), dtype=bool))
    np.testing.assert_allclose(multivariate_reml(sites)[0][0, 0], reml(EFFECTS, VARIANCES)[0], rtol=OPTIMISER)


def test_the_fixed_effect_is_the_product_of_normal_likelihoods():
    sites = some_sites(1, 5, 3, 0.5)
    precision = sum(np.linalg.inv(covariance) for _, covariance in sites.values())
    mean = np.linalg.solve(precision, sum(np.linalg.solve(covariance, y) for y, covariance in sites.values()))
    for effects in (cs.meta_analysis(sites).fixed, cs.meta_analysis(sites, method="fixed", interval="normal").random):
        np.testing.assert_allclose(effects.mean, mean, rtol=ROUNDING)
        np.testing.assert_allclose(effects.covariance, np.linalg.inv(precision), rtol=1e-10)


def test_hartung_knapp_without_heterogeneity_of_variances_is_the_t_test_of_the_estimates():
    y = np.array([0.3, 1.1, 0.7, 2.0])
    analysis = cs.meta_analysis({f"site {k}": (value, 0.01) for k, value in enumerate(y)})
    low, high = t(3, y.mean(), y.std(ddof=1) / 2.0).interval(0.95)
    np.testing.assert_allclose(analysis.random.intervals[0], [low, high], rtol=1e-9)
    margin = t(2).ppf(0.975) * np.sqrt(analysis.tau2[0] + y.var(ddof=1) / 4.0)
    np.testing.assert_allclose(analysis.prediction[0], [y.mean() - margin, y.mean() + margin], rtol=1e-9)


@pytest.mark.parametrize("method", ["reml", "dl", "pm", "fixed"])
def test_units_and_the_order_of_sites_and_coefficients_change_nothing(method):
    sites, units, order = some_sites(2, 6, 2, 0.3), np.array([1e3, 1e-2]), [1, 0]
    plain = cs.meta_analysis({k: ({"a": y[0], "b": y[1]}, v) for k, (y, v) in sites.items()}, method=method)
    turned = {
        k: ({"b": y[1] * units[1], "a": y[0] * units[0]}, (v * np.outer(units, units))[np.ix_(order, order)])
        for k, (y, v) in reversed(sites.items())
    }
    other = cs.meta_analysis(turned, method=method)
    assert other.coefficients == ("b", "a")
    np.testing.assert_allclose(other.random.mean[order], plain.random.mean * units, rtol=OPTIMISER)
    np.testing.assert_allclose(other.tau2[order] / units**2, plain.tau2, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(other.heterogeneity.q, plain.heterogeneity.q, rtol=ROUNDING)


@pytest.mark.parametrize("method", ["reml", "dl", "pm"])
def test_a_coefficient_that_sites_lack_is_pooled_over_those_that_have_it(method):
    sites = {f"trial {k}": ({"a": EFFECTS[k]}, VARIANCES[k]) for k in range(13)}
    sites |= {f"clinic {k}": ({"b": EFFECTS[k]}, VARIANCES[k]) for k in range(8)}
    both = cs.meta_analysis(sites, method=method, diagonal=True)
    for number, count in enumerate((13, 8)):
        alone = cs.meta_analysis({k: (EFFECTS[k], VARIANCES[k]) for k in range(count)}, method=method)
        np.testing.assert_allclose(both.tau2[number], alone.tau2[0], rtol=OPTIMISER)
        np.testing.assert_allclose(both.random.mean[number], alone.random.mean[0], rtol=OPTIMISER)
        np.testing.assert_allclose(both.i2[number], alone.i2[0], rtol=ROUNDING)
    assert np.isnan(both.estimates[0, 1])


def test_a_table_gives_what_its_values_give(tmp_path):
    path = tmp_path / "trials.csv"
    rows = [f"trial {k},{EFFECTS[k]},{VARIANCES[k]}" for k in range(13)]
    path.write_text("\n".join(["site,estimate,variance", *rows]))
    np.testing.assert_array_equal(cs.meta_analysis(path).random.mean, cs.meta_analysis(TRIALS).random.mean)


def test_a_fitted_result_gives_its_parameters_and_their_covariance():
    class Result:
        def __init__(self, mean, covariance):
            self.params, self._covariance = mean, covariance

        def cov_params(self):
            return self._covariance

    sites = some_sites(3, 4, 2, 0.1)
    of_results = cs.meta_analysis({name: Result(*pair) for name, pair in sites.items()})
    np.testing.assert_array_equal(of_results.random.mean, cs.meta_analysis(sites).random.mean)


def test_verdicts_say_whether_sites_differ_and_that_few_sites_tell_little():
    differing, alike = cs.meta_analysis(TRIALS), cs.meta_analysis({"a": (1.0, 0.1), "b": (1.1, 0.1), "c": (0.9, 0.2)})
    assert differing.verdict.code == "heterogeneous"
    assert alike.verdict.code == "homogeneous"
    assert "hardly estimable" in alike.verdict.text
    assert "hardly estimable" not in differing.verdict.text
    assert np.isnan(cs.meta_analysis({"a": (1.0, 0.1), "b": (1.1, 0.1)}).prediction).all()


NARROW = {
    "equal estimates": {"lund": (1.0, 0.1), "oslo": (1.0, 0.1), "riga": (1.0, 0.1)},
    "two sites": {"lund": (1.0, 0.1), "oslo": (1.0, 0.1)},
    "nearly equal estimates": {str(k): (1.0 + 0.01 * k, 0.1) for k in range(6)},
    "one of two coefficients, alone": {str(k): ({"a": 1.0 + 0.01 * k, "b": 0.5}, 0.1 * np.eye(2)) for k in range(6)},
}


@pytest.mark.parametrize("case", NARROW)
def test_intervals_narrower_than_the_fixed_effects_are_said_with_the_remedy(case, tmp_path):
    analysis, truncated = (
        cs.meta_analysis(NARROW[case], interval=interval) for interval in ("hartung_knapp", "truncated_hartung_knapp")
    )
    random, fixed = (np.diff(effects.intervals)[:, 0] for effects in (analysis.random, analysis.fixed))
    assert np.all(random < fixed)
    assert analysis.narrower == analysis.coefficients
    analysis.report(tmp_path / "page.html")
    for shown in (analysis.summary(), " ".join(repr(analysis).split()), (tmp_path / "page.html").read_text()):
        assert "narrower than the fixed effect" in " ".join(shown.split())
        assert "truncated_hartung_knapp" in shown
    assert np.all(np.diff(truncated.random.intervals)[:, 0] >= fixed)
    assert truncated.narrower == ()
    assert "narrower" not in truncated.summary()


@pytest.mark.parametrize("interval", ["hartung_knapp", "truncated_hartung_knapp", "normal"])
def test_wide_intervals_are_not_called_narrow(interval):
    analysis = cs.meta_analysis(TRIALS, interval=interval)
    assert analysis.narrower == ()
    assert "truncated" not in (analysis.verdict.remedy or "")


def test_the_page_of_a_fusion_says_that_random_effects_are_narrow(tmp_path):
    from sklearn.linear_model import LinearRegression

    X, noise = np.linspace(0.0, 1.0, 20)[:, None], np.random.default_rng(0).normal(size=20)
    sites = [(X + shift, 2.0 * (X[:, 0] + shift) + noise) for shift in (0.0, 1.0, 2.0, 3.0)]
    fusion = cs.fuse([cs.describe(LinearRegression().fit(*site), data=site) for site in sites])
    fusion.report(tmp_path / "page.html")
    assert "is narrower than the fixed effect" in (tmp_path / "page.html").read_text()


def test_the_report_draws_every_site_and_escapes_names(tmp_path):
    class Tags(HTMLParser):
        def __init__(self):
            super().__init__()
            self.squares, self.scripts, self.text = 0, 0, ""

        def handle_starttag(self, tag, attrs):
            self.squares += tag == "rect"
            self.scripts += tag == "script"

        def handle_data(self, data):
            self.text += data

    path, tags = tmp_path / "page.html", Tags()
    cs.meta_analysis({"<script>": (0.5, 0.1), **TRIALS}).report(path)
    tags.feed(path.read_text(encoding="utf-8"))
    assert tags.squares == 14
    assert tags.scripts == 0
    assert "<script>" in tags.text


BAD = {
    "one site": ({"a": (1.0, 1.0)}, "1 sites, expected two"),
    "no mapping": ([(1.0, 1.0)], "expected a mapping from sites"),
    "no pair": ({"a": 1.0, "b": (1.0, 1.0)}, "a: expected \\(estimate, covariance\\)"),
    "negative variance": ({"a": (1.0, -1.0), "b": (1.0, 1.0)}, "a: the variance is -1, expected above 0"),
    "variances of a vector": ({"a": ([1.0, 2.0], [1.0, 1.0]), "b": (1.0, 1.0)}, "np.diag"),
    "asymmetric": ({"a": ([1.0, 2.0], [[1.0, 0.5], [0.0, 1.0]]), "b": (1.0, 1.0)}, "not symmetric"),
    "not finite": ({"a": (np.nan, 1.0), "b": (1.0, 1.0)}, "a: has values that are not finite"),
    "lengths": ({"a": ([1.0, 2.0], np.eye(2)), "b": (1.0, 1.0)}, "b: names its coefficients otherwise than a"),
    "names": ({"a": ({"x": 1.0}, 1.0), "b": (1.0, 1.0)}, "b: names its coefficients otherwise than a"),
    "texts": ({"a": ("one", 1.0), "b": (1.0, 1.0)}, "a: expected numbers"),
}


@pytest.mark.parametrize(("estimates", "text"), BAD.values(), ids=BAD)
def test_bad_estimates_are_refused_by_site(estimates, text):
    with pytest.raises(cs.errors.InputError, match=text):
        cs.meta_analysis(estimates)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("site,value\na,1\n", "has columns site, value, expected"),
        ("site,estimate,se\na,1,1\na,2,1\n", "line 3: has effect of a a second time"),
        ("site,estimate,se\na,1,0\nb,2,1\n", "line 2: the standard error of a is 0, expected above 0"),
        ("site,estimate,se\na,1,x\nb,2,1\n", "line 2, column se: expected a finite number, found 'x'"),
    ],
)
def test_bad_tables_are_refused_by_line(tmp_path, table, text):
    path = tmp_path / "table.csv"
    path.write_text(table)
    with pytest.raises(cs.errors.InputError, match=text):
        cs.meta_analysis(path)


@pytest.mark.parametrize(
    "options",
    [{"method": "mle"}, {"interval": "wald"}, {"level": 95}, {"diagonal": 1}],
    ids=lambda one: next(iter(one)),
)
def test_unknown_options_are_refused(options):
    with pytest.raises(cs.errors.OptionError, match=next(iter(options))):
        cs.meta_analysis(TRIALS, **options)


def test_a_forest_plot_has_estimates_and_intervals_at_their_values():
    analysis = cs.meta_analysis(TRIALS)
    figure = forest_plot(analysis, 0)
    boxes, strokes = shapes(figure, "rect", "box"), shapes(figure, "line", "range")
    widths = np.array([box["width"] for box in boxes])
    middles = np.array([(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes])
    scale, zero = np.polyfit(EFFECTS, middles[:, 0], 1)
    assert scale > 0
    np.testing.assert_allclose(middles[:, 0], zero + scale * EFFECTS, atol=2 * DECIMALS)
    margins = np.sqrt(VARIANCES) * norm.ppf(0.5 + analysis.level / 2)
    ends = np.stack([EFFECTS - margins, EFFECTS + margins], axis=1)
    ends = np.concatenate([ends, analysis.random.intervals, analysis.fixed.intervals])
    np.testing.assert_allclose([(one["x1"], one["x2"]) for one in strokes], zero + scale * ends, atol=4 * DECIMALS)
    heights = [one["y1"] for one in strokes]
    assert heights == [one["y2"] for one in strokes]
    np.testing.assert_allclose(middles[:, 1], heights[:-2], atol=2 * DECIMALS)
    np.testing.assert_allclose(np.diff(heights), np.mean(np.diff(heights)), atol=2 * DECIMALS)
    # The sides of squares grow with the root of the weight, and the largest has 14.
    assert [box["height"] for box in boxes] == pytest.approx(widths, abs=2 * DECIMALS)
    weights = analysis.weights[:, 0]
    np.testing.assert_allclose(widths, 5 + 9 * np.sqrt(weights / weights.max()), atol=2 * DECIMALS)
    (predicted,) = shapes(figure, "line", "chosen")
    expected = zero + scale * analysis.prediction[0]
    np.testing.assert_allclose((predicted["x1"], predicted["x2"]), expected, atol=4 * DECIMALS)


@pytest.mark.parametrize("kind", ["forest", "funnel"])
def test_forests_and_funnels_are_drawn_by_their_names(kind):
    one = cs.meta_analysis({"a": (1.0, 0.1), "b": (2.0, 0.1), "c": (1.5, 0.2)})
    assert one.plot(kind).get_title()
    sites = {"a": ([1.0, 0.0], np.eye(2) / 10), "b": ([2.0, 0.5], np.eye(2) / 9)}
    two = cs.meta_analysis(sites, names=["x", "y"])
    with pytest.raises(cs.errors.OptionError, match=f"there are .*{kind} x, {kind} y"):
        two.plot("no plot")
    assert two.plot(f"{kind} y").get_title()
