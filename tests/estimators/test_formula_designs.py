"""Laws of what a formula says of columns: equal designs give the fit of all rows, what differs is refused by name."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest

import consilience as cs
from consilience.estimators.adapters.formula import digest
from consilience.estimators.design import Design, Factor, merged_designs
from consilience.estimators.files import write_statistics

sm, smf = pytest.importorskip("statsmodels.api"), pytest.importorskip("statsmodels.formula.api")
pandas, patsy = pytest.importorskip("pandas"), pytest.importorskip("patsy")

EXACT = 1e-6


def table(seed, n=60):
    """Return rows of one site; x has another mean and deviation at every site."""
    rng = np.random.default_rng(seed)
    x = rng.normal(2.0 * seed, 1.0 + seed, n)
    group, dose = rng.permutation(np.tile(list("abc"), n // 3)), np.tile(np.arange(6.0), n // 6)
    y = 1.0 + 2.0 * x + (group == "b") * 0.5 + np.sin(dose) + rng.normal(size=n)
    counts = rng.poisson(np.exp(0.05 * x) * (1.0 + dose))
    positive = (y > np.median(y) + rng.normal(size=n)).astype(int)
    return pandas.DataFrame({"x": x, "g": group, "t": 1.0 + dose, "d": dose, "y": y, "k": counts, "b": positive})


A, B = table(0), table(1)
BOTH = pandas.concat([A, B], ignore_index=True)


def quietly(fit):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit()


def ols(formula):
    return lambda rows: smf.ols(formula, rows).fit()


def with_variables(formula, **variables):
    env = patsy.EvalEnvironment([{"np": np, "pd": pandas, **variables}])
    return lambda rows: quietly(lambda: smf.ols(formula, rows, eval_env=env).fit())


def as_files(models, folder):
    for number, model in enumerate(models):
        cs.save(model, folder / f"site-{number}.safetensors")
    return sorted(folder.glob("site-*.safetensors"))


def refused(models, folder, pattern):
    """Require one line that names a pattern, of objects, of statistics and of files."""
    described = [cs.describe(model) for model in models]
    for inputs in (models, described, as_files(described, folder)):
        with pytest.raises(cs.errors.InputError, match=pattern) as caught:
            cs.fuse(inputs)
        assert len(caught.value.problems) == 1
        assert caught.value.problems[0].remedy


EQUAL = {
    "columns as they are": "y ~ x",
    "stated constants": "y ~ I((x - 50) / 10)",
    "elementwise functions": "np.log(y + 100) ~ np.log(x + 100) + Q('t')",
    "B splines of stated knots": "y ~ bs(x, knots=(0, 2), lower_bound=-20, upper_bound=20)",
    "natural splines of stated knots": "y ~ cr(x, knots=(0, 2), lower_bound=-20, upper_bound=20) - 1",
    "the same rows of a dose": "y ~ g + bs(d, df=4)",
    "the constants of an interaction": "y ~ center(d):g",
    "treatment contrasts": "y ~ C(g, Treatment('b')) * x",
    "sum contrasts": "y ~ C(g, Sum)",
    "polynomial contrasts": "y ~ C(g, Poly)",
    "all dummies": "y ~ g - 1",
    "a condition": "y ~ C(x > 0)",
}


@pytest.mark.parametrize("case", EQUAL)
def test_equal_designs_give_the_fit_of_all_rows(case, tmp_path):
    fit = ols(EQUAL[case])
    pooled, *models = quietly(lambda: [fit(BOTH), fit(A), fit(B)])
    for inputs in (models, as_files(models, tmp_path)):
        ours = cs.fuse(inputs).model
        assert np.max(np.abs(ours.params - pooled.params) / pooled.bse) < EXACT
        assert ours.rsquared == pytest.approx(pooled.rsquared, abs=EXACT)


BY_ROWS = {
    "standardize": ("y ~ standardize(x)", r"standardize\(x\) with mean .* and deviation .*, expected mean"),
    "scale": ("y ~ scale(x)", r"scale\(x\) with mean"),
    "center": ("y ~ center(x)", r"center\(x\) with mean"),
    "degrees of freedom": ("y ~ standardize(x, ddof=1)", r"ddof=1\) with mean"),
    "B splines": ("y ~ bs(x, df=4)", r"bs\(x, df=4\) with constants of bs, other than in"),
    "natural splines": ("y ~ cr(x, df=4) - 1", r"cr\(x, df=4\)"),
    "cyclic splines": ("y ~ cc(x, df=4)", r"cc\(x, df=4\)"),
    "constraints of splines": (
        "y ~ cr(x, knots=(0, 2), lower_bound=-20, upper_bound=20, constraints='center')",
        "constants of cr",
    ),
    "tensor products": ("y ~ te(cr(x, df=3), cr(t, df=3)) - 1", r"te\(cr\(x, df=3\)"),
    "an interaction": ("y ~ standardize(x):g", r"standardize\(x\) with mean"),
    "a nested transform": ("y ~ np.log(center(x) + 50)", r"np.log\(center\(x\) \+ 50\) with mean"),
    "two transforms of a term": ("y ~ I(center(x) + center(t))", r"with mean .*, expected mean"),
    "the outcome": ("standardize(y) ~ x", r"standardize\(y\) with mean"),
    "means of an expression": ("y ~ I(x - x.mean())", r"values of I\(x - x.mean\(\)\) that depend on its other rows"),
    "means of the outcome": ("I(y - y.mean()) ~ x", r"values of I\(y - y.mean\(\)\)"),
    "intervals": ("y ~ pd.cut(x, 3)", r"values of pd.cut\(x, 3\)"),
    "ranks": ("y ~ x.rank()", r"values of x.rank\(\)"),
}


@pytest.mark.parametrize("case", BY_ROWS)
def test_constants_that_a_sites_rows_set_are_refused_by_their_term(case, tmp_path):
    formula, pattern = BY_ROWS[case]
    fit = with_variables(formula)
    refused(quietly(lambda: [fit(A), fit(B)]), tmp_path, pattern)


class LargestIsOne:
    """A stateful transform of the user's: values over the largest one."""

    def memorize_chunk(self, x):
        self.largest = float(np.max(x))

    def memorize_finish(self):
        pass

    def transform(self, x):
        return x / self.largest


def test_transforms_and_variables_of_the_users_own_are_compared(tmp_path):
    fit = with_variables("y ~ own(x)", own=patsy.stateful_transform(LargestIsOne))
    refused([fit(A), fit(B)], tmp_path, r"own\(x\) with constants of own")
    one, other = (with_variables("y ~ I(x - middle)", middle=middle) for middle in (1.0, 2.0))
    refused([one(A), other(B)], tmp_path, r"I\(x - middle\) with constants of middle")
    assert cs.fuse([one(A), one(B)]).verdict.harmless


def contrasts_of(matrix):
    return with_variables("y ~ C(g, matrix)", matrix=np.array(matrix, dtype=float))


RENAMED = A.assign(g=A.g.replace("a", "0"))
POISSON, BINOMIAL = sm.families.Poisson(), sm.families.Binomial()
WORDS = {True: "yes", False: "no"}
WITH_X = {name: sm.add_constant(rows[["x"]]) for name, rows in (("A", A), ("B", B))}

DIFFERING = {
    "outcomes": (lambda: ols("y ~ x")(A), lambda: ols("t ~ x")(B), "outcome t, expected y"),
    "a logarithm": (lambda: ols("t ~ x")(A), lambda: ols("np.log(t) ~ x")(B), r"outcome np.log\(t\), expected t"),
    "outcomes of columns": (
        lambda: sm.OLS(A.y, WITH_X["A"]).fit(),
        lambda: sm.OLS(B.t, WITH_X["B"]).fit(),
        "outcome t, expected y",
    ),
    "times": (
        lambda: smf.phreg("t ~ x", A).fit(),
        lambda: smf.phreg("np.exp(t) ~ x", B).fit(),
        r"outcome np.exp\(t\), expected t",
    ),
    "the reference level": (
        lambda: ols("y ~ g")(RENAMED),
        lambda: ols("y ~ g")(B),
        "lacks the level 0 of g: it has a, b, c, expected 0, b, c",
    ),
    "a level less": (
        lambda: ols("y ~ g")(A),
        lambda: ols("y ~ g")(B[B.g != "a"]),  # the reference: another level takes its place
        "lacks the level a of g: it has b, c, expected a, b, c",
    ),
    "contrasts of one name": (
        lambda: contrasts_of([[1, 0], [0, 1], [0, 0]])(A),
        lambda: contrasts_of([[1, 1], [0, 1], [0, 0]])(B),
        r"C\(g, matrix\)",
    ),
    "columns of successes": (
        lambda: smf.glm("b + I(1 - b) ~ x", A, family=BINOMIAL).fit(),
        lambda: smf.glm("I(1 - b) + b ~ x", B, family=BINOMIAL).fit(),
        r"outcome I\(1 - b\), b, expected b, I\(1 - b\)",
    ),
    "exposure at one site": (
        lambda: smf.glm("k ~ x", A, family=POISSON, exposure=A.t).fit(),
        lambda: smf.glm("k ~ x", B, family=POISSON).fit(),
        "is not fitted with exposure, and",
    ),
    "exposures": (
        lambda: smf.glm("k ~ x", A, family=POISSON, exposure=A.t).fit(),
        lambda: smf.glm("k ~ x", B, family=POISSON, exposure=B.t.rename("days")).fit(),
        "exposure days, expected t",
    ),
    "exposure of counts": (
        lambda: smf.poisson("k ~ x", A).fit(disp=0),
        lambda: smf.poisson("k ~ x", B, exposure=B.t).fit(disp=0),
        "is fitted with exposure, and",
    ),
    "offsets": (
        lambda: smf.logit("b ~ x", A, offset=0.1 * A.t).fit(disp=0),
        lambda: smf.logit("b ~ x", B).fit(disp=0),
        "is not fitted with offset, and",
    ),
    "strata": (
        lambda: smf.phreg("t ~ x", A, strata=A.b.to_numpy()).fit(),
        lambda: smf.phreg("t ~ x", B).fit(),
        "is not fitted with strata, and",
    ),
    "counts as weights": (
        lambda: smf.glm("y ~ x", A, freq_weights=A.t).fit(),
        lambda: smf.glm("y ~ x", B).fit(),
        "is not fitted with freq_weights, and",
    ),
    "kinds of weights": (
        lambda: smf.glm("y ~ x", A).fit(),
        lambda: smf.glm("y ~ x", B, var_weights=B.t).fit(),
        "is fitted with var_weights, and",
    ),
    "links": (
        lambda: smf.glm("t ~ d", A, family=sm.families.Gaussian(sm.families.links.Log())).fit(),
        lambda: smf.glm("t ~ d", B).fit(),
        "link Identity, expected Log",
    ),
    "a parameter of the family": (
        lambda: smf.glm("k ~ x", A, family=sm.families.NegativeBinomial(alpha=1.0)).fit(),
        lambda: smf.glm("k ~ x", B, family=sm.families.NegativeBinomial(alpha=2.0)).fit(),
        "family_option 2.0, expected 1.0",
    ),
    "a power of the family": (
        lambda: smf.glm("t ~ x", A, family=sm.families.Tweedie(var_power=1.5)).fit(),
        lambda: smf.glm("t ~ x", B, family=sm.families.Tweedie(var_power=1.2)).fit(),
        "family_option 1.2, expected 1.5",
    ),
    "the dispersion": (
        lambda: smf.glm("y ~ x", A).fit(),
        lambda: smf.glm("y ~ x", B).fit(scale=1.0),
        "scale 1.0, expected estimated",
    ),
    "hasconst": (
        lambda: sm.OLS(A.y, WITH_X["A"]).fit(),
        lambda: sm.OLS(B.y, WITH_X["B"], hasconst=False).fit(),
        "another hasconst",
    ),
    "weights of least squares": (
        lambda: smf.wls("y ~ x", A, weights=A.t).fit(),
        lambda: smf.ols("y ~ x", B).fit(),
        "is a statsmodels.OLS, expected statsmodels.WLS",
    ),
    "categories": (
        lambda: sm.MNLogit(A.g, WITH_X["A"]).fit(disp=0),
        lambda: sm.MNLogit(B.g.replace("a", "0"), WITH_X["B"]).fit(disp=0),
        "categories",
    ),
}


@pytest.mark.parametrize("case", DIFFERING)
def test_what_differs_between_sites_is_refused_and_named(case, tmp_path):
    first, second, pattern = DIFFERING[case]
    refused(quietly(lambda: [first(), second()]), tmp_path, pattern)


def test_levels_of_a_categorical_outcome_are_named():
    sites = [
        smf.glm("s ~ x", rows.assign(s=pandas.Categorical(rows.b.map({1: "yes", 0: "no"}), levels)), family=BINOMIAL)
        for rows, levels in ((A, ["no", "yes"]), (B, ["yes", "no"]))
    ]
    with pytest.raises(cs.errors.InputError, match=r"outcome s\[yes\], s\[no\], expected s\[no\], s\[yes\]"):
        cs.fuse([site.fit() for site in sites])


def test_a_level_that_a_site_lacks_is_declared_there():
    fit = ols("y ~ x + C(g, levels=['a', 'b', 'c'])")
    parts = [A, B[B.g != "c"]]
    pooled, *sites = quietly(lambda: [fit(rows) for rows in (pandas.concat(parts), *parts)])
    assert np.max(np.abs(cs.fuse(sites).model.params - pooled.params) / pooled.bse) < EXACT


WORKING_REMEDIES = {
    "offset of zero": (
        lambda rows, own: smf.glm("k ~ x", rows, family=POISSON, offset=0.1 * rows.t * own).fit(),
        "approximate",
    ),
    "exposure of one": (
        lambda rows, own: smf.glm("k ~ x", rows, family=POISSON, exposure=rows.t**own).fit(),
        "approximate",
    ),
    "weights of one": (lambda rows, own: smf.glm("y ~ x", rows, freq_weights=rows.t**own).fit(), "approximate"),
    "hasconst everywhere": (
        lambda rows, own: sm.OLS(rows.y, sm.add_constant(rows[["x"]]), hasconst=False).fit(),
        "exact",
    ),
}


@pytest.mark.parametrize("case", WORKING_REMEDIES)
def test_what_a_refusal_tells_to_do_works(case):
    fit, code = WORKING_REMEDIES[case]
    assert cs.fuse([fit(A, 1), fit(B, 0)]).verdict.code == code


def test_weights_that_all_sites_state_give_the_fit_of_all_rows():
    pooled, *sites = (smf.glm("y ~ x", rows, freq_weights=rows.t).fit() for rows in (BOTH, A, B))
    ours = cs.fuse(sites).model
    assert np.max(np.abs(ours.params - pooled.params) / pooled.bse) < EXACT


def test_arrays_without_names_agree_with_any_outcome():
    named, unnamed = sm.OLS(A.y, WITH_X["A"]).fit(), sm.OLS(B.y.to_numpy(), WITH_X["B"]).fit()
    assert cs.fuse([unnamed, named]).statistics.design.outcome == ("y",)


def test_rounds_and_inspection_state_the_design(tmp_path):
    from consilience.core.kind import facet
    from consilience.estimators.kind import Estimators
    from consilience.files.safetensors_file import SafetensorsFile
    from tests.cli.running import command

    fit = smf.glm("k ~ standardize(x) + g", A, family=POISSON, exposure=A.t).fit()
    (path,) = as_files([fit], tmp_path)
    facets = Estimators().site_facts(SafetensorsFile(path), None).facets
    assert facets["outcome"] == facet(["k"])
    assert facets["offset, exposure and weights"] == facet(["exposure"])
    assert "standardize(x)" in facets["constants of transforms"]
    assert '"levels": ["a", "b", "c"]' in facets["levels of factors"]
    shown = command("inspect", str(path)).out
    for text in ("outcome", "g: a, b, c", "standardize(x): mean", "exposure t"):
        assert text in shown
    assert "standardize(x)" in repr(cs.load(path))


def test_adding_a_site_compares_designs():
    first, second, other = (smf.ols("y ~ center(d)", rows).fit() for rows in (A, B, B.assign(d=B.d + 1.0)))
    fusion = cs.fuse([first, second])
    with pytest.raises(cs.errors.InputError, match=r"center\(d\) with mean 3.5, expected mean 2.5"):
        cs.add(fusion, other)


@pytest.mark.parametrize("outcome", ["standardize(y)", "I(y - y.mean())"])
def test_pickled_results_forget_the_constants_of_their_outcome(outcome, tmp_path):
    sites = [pickle.loads(pickle.dumps(smf.ols(f"{outcome} ~ x", rows).fit())) for rows in (A, B)]  # noqa: S301
    refused(sites, tmp_path, "depend on its other rows")
    plain = [pickle.loads(pickle.dumps(smf.ols("np.log(y + 99) ~ x", rows).fit())) for rows in (A, B)]  # noqa: S301
    assert cs.fuse(plain).verdict.harmless


PENALISED = {
    "ridge": lambda rows: smf.ols("y ~ x", rows).fit_regularized(alpha=1.0, L1_wt=0.0),
    "lasso": lambda rows: smf.ols("y ~ x", rows).fit_regularized(alpha=1.0, L1_wt=0.5),
    "a refit": lambda rows: smf.ols("y ~ x", rows).fit_regularized(alpha=1.0, L1_wt=0.5, refit=True),
    "weighted": lambda rows: smf.wls("y ~ x", rows, weights=rows.t).fit_regularized(alpha=1.0),
    "GLM": lambda rows: smf.glm("y ~ x", rows).fit_regularized(alpha=1.0),
    "Logit": lambda rows: smf.logit("b ~ x", rows).fit_regularized(alpha=1.0, disp=0),
    "PHReg": lambda rows: smf.phreg("t ~ x", rows).fit_regularized(alpha=0.1),
}


@pytest.mark.parametrize("case", PENALISED)
def test_penalised_fits_are_refused(case):
    model = quietly(lambda: PENALISED[case](A))
    with pytest.raises(cs.errors.InputError, match=r"fitted with fit_regularized, whose .*fit without regularisation"):
        cs.describe(model)


def test_constrained_fits_are_refused():
    with pytest.raises(cs.errors.InputError, match="fit_constrained"):
        cs.describe(smf.glm("y ~ x", A).fit_constrained("x = 1"))


OTHERS = {
    "Probit": lambda: smf.probit("b ~ x", A).fit(disp=0),
    "QuantReg": lambda: smf.quantreg("y ~ x", A).fit(),
    "RLM": lambda: smf.rlm("y ~ x", A).fit(),
    "GEE": lambda: smf.gee("y ~ x", "g", A).fit(),
    "GLS": lambda: smf.gls("y ~ x", A).fit(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_results_that_do_not_add_up_are_pointed_to_a_meta_analysis_which_takes_them(name):
    result = quietly(OTHERS[name])
    with pytest.raises(cs.errors.UnsupportedError, match=f"a {name} of statsmodels.*cs.meta_analysis"):
        cs.describe(result)
    assert len(cs.meta_analysis({"lund": result, "oslo": result}).coefficients) == 2


def test_models_that_were_not_fitted_and_links_of_the_users_own_are_said():
    with pytest.raises(
        cs.errors.UnsupportedError, match=r"a OLS of statsmodels: is not fitted yet; give `model.fit\(\)"
    ):
        cs.describe(smf.ols("y ~ x", A))
    link = sm.families.links.NegativeBinomial(alpha=2.0)
    family = quietly(lambda: sm.families.NegativeBinomial(link, alpha=1.0))
    with pytest.raises(cs.errors.UnsupportedError, match="link: is a NegativeBinomial with options of its own"):
        cs.describe(quietly(lambda: smf.glm("k ~ x", A, family=family).fit()))


def test_results_without_rows_are_described_with_them():
    model = smf.wls("y ~ standardize(x)", A, weights=A.t).fit()
    X, y, w = model.model.exog.copy(), model.model.endog.copy(), A.t.to_numpy()
    model.remove_data()
    described = cs.describe(model, (X, y), sample_weight=w)
    assert described.design.constants["standardize(x)"]["mean"] == pytest.approx(A.x.mean())
    with pytest.raises(cs.errors.InputError, match="is not the model that the sums of these data give"):
        cs.describe(model, (X, y + np.arange(len(y))), sample_weight=w)
    with pytest.raises(cs.errors.OptionError, match="a OLS takes none"):
        cs.describe(smf.ols("y ~ x", A).fit(), (X, y), sample_weight=w)


def test_dependent_columns_are_refused():
    fit = ols("y ~ cr(x, knots=(0, 2), lower_bound=-20, upper_bound=20)")
    with pytest.raises(cs.errors.InputError, match=r"linearly dependent; leave out one .*\(- 1 in the formula\)"):
        cs.fuse(quietly(lambda: [fit(A), fit(B)]))


@pytest.mark.parametrize(
    "formula", ["y ~ standardize(x) + g", "y ~ bs(x, df=4)", "y ~ poly(x, 2)", "scale(y) ~ x", "y ~ I(x - x.mean())"]
)
def test_formulas_of_formulaic_are_read_too(formula, tmp_path, monkeypatch):
    pytest.importorskip("formulaic")
    options = pytest.importorskip("statsmodels.formula").options
    monkeypatch.setattr(options, "_formula_engine", "formulaic")
    sites = quietly(lambda: [ols(formula)(A), ols(formula)(B)])
    refused(sites, tmp_path, "state the constants in the formula")
    same = [ols("y ~ I(x - 1) + g + standardize(d)")(rows) for rows in (A, B)]
    assert cs.fuse(same).verdict.harmless
    with pytest.raises(cs.errors.InputError, match="lacks the level 0 of g: it has a, b, c, expected 0, b, c"):
        cs.fuse([ols("y ~ g")(RENAMED), ols("y ~ g")(B)])


def test_designs_survive_json_and_merge():
    one = Design(("y",), {"g": Factor(("a", "b"), "1f")}, {"center(x)": {"mean": 2.0}}, {"exposure": None})
    other = Design(None, {}, {}, {"exposure": "days"}, hasconst=False)
    merged = merged_designs([one, other])
    assert Design.from_json({"factors": {}, "constants": {}, "extra": {}, **merged.to_json()}) == merged
    assert merged == Design(("y",), one.factors, one.constants, {"exposure": "days"}, hasconst=False)
    assert Design().to_json() == {}


@pytest.mark.parametrize(
    "value", [np.mean, [np.mean], object(), {"a": {1, 2}}], ids=["function", "list", "object", "set"]
)
def test_what_is_no_value_has_no_digest(value):
    assert digest(value) is None


def test_digests_are_of_twelve_digits_and_of_no_type():
    assert digest([1, 2.5]) == digest(np.array([1.0 + 1e-15, 2.5])) != digest([1, 2.6])


STRANGE = {
    "levels of numbers": Design(factors={"g": Factor((1, 2), "1f")}),
    "a constant of many values": Design(constants={"center(x)": {"mean": [1.0]}}),
    "an outcome that is a number": Design(outcome=(1,)),
    "names of no column": Design(extra={"offset": 3.0}),
}


@pytest.mark.parametrize("case", STRANGE)
def test_designs_of_a_strangers_file_are_not_trusted(case, tmp_path):
    described = replace(cs.describe(smf.ols("y ~ x", A).fit()), design=STRANGE[case])
    write_statistics(tmp_path / "site.safetensors", described)
    with pytest.raises(cs.errors.FileFormatError, match="design"):
        cs.load(tmp_path / "site.safetensors")
