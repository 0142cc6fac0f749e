"""What is refused, each with a line that says what was found, what was expected and what to do."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from sklearn.compose import ColumnTransformer
from sklearn.covariance import OAS, EmpiricalCovariance, MinCovDet
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.linear_model import ARDRegression, LinearRegression, Ridge, RidgeClassifier, RidgeClassifierCV, RidgeCV
from sklearn.naive_bayes import BernoulliNB, GaussianNB, MultinomialNB
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)

import consilience as cs
from consilience.estimators.adapters.linear_regression import SingularMomentsWarning
from consilience.estimators.adapters.table import REFUSED
from consilience.estimators.inputs import HyperParameterWarning
from consilience.estimators.site_rows import read_rows
from tests.estimators.estimators_zoo import class_rows, count_rows, regression_rows, two_class_rows


def halves(make, rows, **describe):
    """Return what two sites say of a model of half of the rows each."""
    X, y = rows(0)
    half = np.arange(len(X)) % 2
    return [
        cs.describe(make().fit(X[half == j], y[half == j]), (X[half == j], y[half == j]), **describe) for j in (0, 1)
    ]


def refused_by_name():
    X, y = two_class_rows(0)
    return {
        "MinCovDet": MinCovDet(random_state=0).fit(X),
        "RobustScaler": RobustScaler().fit(X),
        "QuantileTransformer": QuantileTransformer(n_quantiles=10).fit(X),
        "PowerTransformer": PowerTransformer().fit(X),
        "RidgeCV": RidgeCV().fit(X, X[:, 0]),
        "RidgeClassifierCV": RidgeClassifierCV().fit(X, y),
        **{name: type(name, (), {"__module__": "laplace.baselaplace"})() for name in OF_LAPLACE_TORCH},
    }


@pytest.mark.parametrize(
    "make",
    [
        *(lambda solver=solver: LinearDiscriminantAnalysis(solver=solver) for solver in ("svd", "lsqr")),
        RidgeClassifier,
    ],
)
def test_classifiers_of_one_class_in_all_are_refused_and_its_sites_are_not(make):
    X, y = two_class_rows(0)
    of_one = y == 3
    first, second = (X[of_one][j::2] for j in (0, 1))
    alone = [
        cs.describe(make().fit(rows, np.full(len(rows), 3)), (rows, np.full(len(rows), 3))) for rows in (first, second)
    ]
    with pytest.raises(cs.errors.InputError, match="the sums of all sites: has one class in all, expected two or more"):
        cs.fuse(alone)
    with pytest.raises(cs.errors.InputError, match="has one class in all"):
        cs.rebuild(alone[0])
    other = cs.describe(make().fit(X[~of_one], y[~of_one]), (X[~of_one], y[~of_one]))
    assert cs.fuse([*alone, other]).n_components == 2


def test_one_object_given_twice_is_said_to_be_one():
    X, y = two_class_rows(0)
    model = GaussianNB().fit(X, y)
    for one in (model, cs.describe(model)):
        with pytest.warns(cs.errors.TwiceWarning, match="model 1: is the same object as model 0: it counts twice"):
            cs.fuse([one, one])
    with pytest.warns(cs.errors.TwiceWarning, match="has the same contents as"):
        cs.fuse([model, GaussianNB().fit(X, y)])


def test_a_fusion_beside_one_of_its_sites_is_refused():
    X, y = two_class_rows(0)
    sites = {f"site {j}": cs.describe(GaussianNB().fit(X[j::3], y[j::3])) for j in range(3)}
    fusion = cs.fuse({name: sites[name] for name in ("site 0", "site 1")})
    with pytest.raises(
        cs.errors.InputError, match="all: was fused from site 0, which is given too: it would count twice"
    ):
        cs.fuse({"all": fusion, "site 0": sites["site 0"]})
    whole = cs.fuse({"all": fusion, "site 2": sites["site 2"]})
    np.testing.assert_allclose(whole.model.theta_, GaussianNB().fit(X, y).theta_, rtol=1e-12)


def test_weights_that_are_none_are_named_with_what_was_found():
    X, y = regression_rows(0)
    weights = np.ones(len(X))
    weights[7] = -2.0
    for odd, message in (
        (weights, "found -2 for row 7"),
        (weights[:3], r"found shape \(3,\)"),
        (0 * weights, "0 for all"),
    ):
        with pytest.raises(cs.errors.OptionError, match=message):
            cs.describe(Ridge().fit(X, y), (X, y), sample_weight=odd)


OF_LAPLACE_TORCH = (
    "KronLaplace",
    "KronLLLaplace",
    "LowRankLaplace",
    "DiagLLLaplace",
    "FullSubnetLaplace",
    "DiagSubnetLaplace",
    "FunctionalLaplace",
    "FunctionalLLLaplace",
    "ELLA",
    "VaLLA",
)
"""Approximations of laplace-torch that are refused by the names of their classes, which these stand in for."""


def test_every_estimator_that_is_refused_by_name_says_what_to_do():
    models = refused_by_name()
    assert set(models) == set(REFUSED)
    for name, model in models.items():
        with pytest.raises(cs.errors.UnsupportedError) as caught:
            cs.describe(model, np.zeros((3, 4)))
        (problem,) = caught.value.problems
        assert problem.subject == f"a {name}"
        assert problem.remedy.startswith("fit ")
        assert cs.check([model, model])[0].subject == "model 0"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (NearestCentroid(metric="manhattan"), "metric: is 'manhattan': centroids are then medians"),
        (RidgeClassifier(positive=True), "positive: holds coefficients above zero"),
    ],
)
def test_options_that_are_no_function_of_sums_are_named(model, message):
    X, y = class_rows(0)
    with pytest.raises(cs.errors.InputError, match=message):
        cs.describe(model.fit(X, y), (X, y))


@pytest.mark.parametrize("make", [LinearRegression, Ridge])
def test_positive_coefficients_are_no_function_of_sums(make):
    X, y = regression_rows(0)
    with pytest.raises(cs.errors.InputError, match=r"positive: .*fit with `positive=False"):
        cs.describe(make(positive=True).fit(X, y), (X, y))


def test_an_estimator_that_was_not_fitted_is_named():
    with pytest.raises(cs.errors.InputError, match="this GaussianNB is not fitted yet; call fit first"):
        cs.describe(GaussianNB())
    with pytest.raises(cs.errors.InputError, match="this LinearRegression is not fitted yet"):
        cs.describe(LinearRegression(), regression_rows(0))


def test_a_subclass_that_may_fit_in_another_way_is_not_taken_for_its_base():
    class Own(GaussianNB):
        pass

    with pytest.raises(cs.errors.UnsupportedError, match="no adapter for"):
        cs.describe(Own().fit(*class_rows(0)))


def test_forgotten_weights_and_other_rows_are_noticed():
    X, y = regression_rows(0)
    weights = np.random.default_rng(0).exponential(size=len(X)) ** 2
    model = LinearRegression().fit(X, y, sample_weight=weights)
    with pytest.raises(
        cs.errors.InputError, match="fitted to other rows, or with weights; give data and sample_weight"
    ):
        cs.describe(model, (X, y))
    with pytest.raises(cs.errors.InputError, match="is not the model that the sums of these data give"):
        cs.describe(model, (X[::-1], y), sample_weight=weights)
    assert cs.describe(model, (X, y), sample_weight=weights).n_observations == len(X)


def test_weights_are_refused_where_nothing_takes_them():
    X, y = class_rows(0)
    with pytest.raises(
        cs.errors.OptionError, match="sample_weight: a LinearDiscriminantAnalysis takes none; leave it out"
    ):
        cs.describe(LinearDiscriminantAnalysis().fit(X, y), (X, y), sample_weight=np.ones(len(X)))
    with pytest.raises(cs.errors.OptionError, match="weighs rows of data; give data too"):
        cs.describe(GaussianNB().fit(X, y), sample_weight=np.ones(len(X)))
    with pytest.raises(cs.errors.OptionError, match="does not say which steps of a Pipeline it weighs"):
        cs.describe(
            make_pipeline(StandardScaler(), Ridge()).fit(X, X[:, 0]), (X, X[:, 0]), sample_weight=np.ones(len(X))
        )
    X, y = regression_rows(0)
    with pytest.raises(cs.errors.OptionError, match="takes none"):
        cs.describe(ARDRegression().fit(X, y), (X, y), sample_weight=np.ones(len(X)))
    for bad in (np.ones(3), -np.ones(len(X)), np.zeros(len(X)), "heavy"):
        with pytest.raises(cs.errors.OptionError, match="sample_weight: expected"):
            cs.describe(Ridge().fit(X, y), (X, y), sample_weight=bad)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda X, y: X, r"data: expected \(X, y\), found ndarray without y"),
        (lambda X, y: (X[:, :3], y), "X: has 3 columns, expected 5"),
        (lambda X, y: (X, y[:7]), "y: expected a number, or a row of them, for each of the 420 rows"),
        (lambda X, y: (np.where(X.mean() < X, np.nan, X), y), "expected a finite number"),
        (lambda X, y: (X, np.where(y > y.mean(), np.inf, y)), "is not finite"),
        (lambda X, y: (X, np.array(["a"] * len(y))), "y: expected a number for every row"),
    ],
)
def test_data_that_do_not_fit_are_named(data, message):
    X, y = regression_rows(0)
    with pytest.raises(cs.errors.InputError, match=message):
        cs.describe(LinearRegression().fit(X, y), data(X, y))


def test_a_class_that_the_model_does_not_know_is_named():
    X, y = class_rows(0)
    with pytest.raises(cs.errors.InputError, match="y: has the class 'oak', which the model does not know"):
        cs.describe(GaussianNB().fit(X, y), (X, np.where(y == "elm", "oak", y)))


def test_a_file_without_targets_is_named(tmp_path):
    X, y = regression_rows(0)
    np.savez(tmp_path / "rows.npz", x=X)
    np.savez(tmp_path / "both.npz", x=X, y=y)
    model = LinearRegression().fit(X, y)
    with pytest.raises(cs.errors.InputError, match=r"rows\.npz: has no array y"):
        cs.describe(model, tmp_path / "rows.npz")
    assert cs.describe(model, tmp_path / "both.npz").n_observations == len(X)


def test_extremes_leave_a_site_only_when_it_says_so():
    X, _ = regression_rows(0)
    for make in (MinMaxScaler, MaxAbsScaler):
        models = [make().fit(X[:200]), make().fit(X[200:])]
        with pytest.raises(cs.errors.InputError, match="each of which is one person's; scale by StandardScaler"):
            cs.describe(models[0])
        assert "one person's" in str(cs.check(models))
        sent = [cs.describe(model, min_count=0) for model in models]
        np.testing.assert_array_equal(cs.fuse(sent, min_count=0).model.scale_, make().fit(X).scale_)


def test_small_classes_are_withheld_with_a_line():
    X, y = class_rows(0)
    keep = np.concatenate([np.flatnonzero(y != "ash"), np.flatnonzero(y == "ash")[:3]])
    model = GaussianNB().fit(X[keep], y[keep])
    with pytest.warns(cs.errors.WithheldWarning, match="class ash: has 3 rows, fewer than 5; `min_count=0` keeps them"):
        described = cs.describe(model)
    assert described.classes.names == ("birch", "cedar", "elm")
    fusion = cs.fuse({"lund": model, "oslo": GaussianNB().fit(X, y)})
    assert fusion.details["withheld"]["components"] == [{"model": "lund", "component": "class ash"}]
    assert fusion.verdict.harmless is None
    assert "min_count=0" in fusion.verdict.remedy
    assert cs.fuse([model, GaussianNB().fit(X, y)], min_count=0).statistics.classes.names == (
        "ash",
        "birch",
        "cedar",
        "elm",
    )


def test_a_site_of_few_rows_sends_nothing():
    X, y = regression_rows(0)
    model = LinearRegression().fit(X[:4], y[:4])
    with pytest.raises(cs.errors.InputError, match="has 4 rows, fewer than 5: nothing may leave; `min_count=0`"):
        cs.describe(model, (X[:4], y[:4]))


def test_a_site_of_one_class_is_carried_and_the_union_is_fused():
    X, y = class_rows(0)
    sites = {name: GaussianNB().fit(X[y == name], y[y == name]) for name in np.unique(y).tolist()}
    fusion = cs.fuse(sites)
    assert fusion.model.classes_.tolist() == ["ash", "birch", "cedar", "elm"]
    np.testing.assert_allclose(fusion.model.theta_, GaussianNB().fit(X, y).theta_, rtol=1e-12)
    assert fusion.matching.labels.tolist() == [0, 1, 2, 3]
    assert list(fusion.details["classes"]["cedar"]) == ["cedar"]


def test_classes_of_another_type_are_not_matched():
    X, y = two_class_rows(0)
    problems = cs.check([GaussianNB().fit(X, y), GaussianNB().fit(X, y.astype(str))])
    assert "names its classes by texts, expected integers as in model 0" in problems[0]


def test_priors_must_name_all_classes_once():
    X, y = class_rows(0)
    some = y != "ash"
    models = [
        GaussianNB(priors=[0.25] * 4).fit(X, y),
        GaussianNB(priors=[0.2, 0.3, 0.5]).fit(X[some], y[some]),
    ]
    assert "was fitted" in str(cs.check([models[0], GaussianNB().fit(X, y)]))
    assert "has priors 0.2 of class birch, expected 0.25" in str(cs.check(models))
    fusion = cs.fuse(models, priors={"ash": 0.1, "birch": 0.2, "cedar": 0.3, "elm": 0.4})
    assert fusion.model.class_prior_.tolist() == [0.1, 0.2, 0.3, 0.4]
    with pytest.raises(cs.errors.OptionError, match="expected a value for each of the classes ash, birch"):
        cs.fuse(models, priors={"ash": 1.0})


def of_three_sites(kinds):
    X, y = two_class_rows(0)
    made = {"ridge": Ridge, "least squares": LinearRegression, "classes": GaussianNB}
    data = [(X[k::3], y[k::3]) for k in range(len(kinds))]
    return {f"site {k}": cs.describe(made[kind]().fit(*data[k]), data[k]) for k, kind in enumerate(kinds)}


@pytest.mark.parametrize(
    ("kinds", "blamed", "reference"),
    [
        (("least squares", "classes", "classes"), ["site 0"], "site 1"),
        (("classes", "least squares", "classes"), ["site 1"], "site 0"),
        (("classes", "classes", "least squares"), ["site 2"], "site 0"),
        (("classes", "least squares", "ridge"), ["site 1", "site 2"], "site 0"),  # as many of each: as the first
    ],
)
def test_the_site_that_is_of_another_kind_than_most_is_named(kinds, blamed, reference):
    problems = cs.check(of_three_sites(kinds))
    assert [problem.subject for problem in problems] == blamed
    assert all(f"expected sklearn.GaussianNB as in {reference}" in problem.text for problem in problems)


def test_a_hyper_parameter_that_is_misspelt_is_suggested():
    X, y = count_rows(0)
    models = [MultinomialNB().fit(X[::2], y[::2]), MultinomialNB().fit(X[1::2], y[1::2])]
    for name, meant in (("alhpa", "alpha"), ("min_cont", "min_count"), ("robst", "robust")):
        with pytest.raises(
            cs.errors.OptionError, match=rf"{name}: is no hyper-parameter of .*, did you mean {meant}\?; it"
        ):
            cs.fuse(models, **{name: 2.0})
    with pytest.raises(cs.errors.OptionError, match=r"did you mean alpha\?; it has"):
        cs.rebuild(cs.describe(models[0]), alhpa=2.0)
    with pytest.raises(cs.errors.OptionError, match=r"did you mean ridge\?; it has"):
        cs.learners.Head(rigde=2.0)


def test_hyper_parameters_by_which_sums_differ_must_agree():
    X, y = count_rows(0)
    problems = cs.check([BernoulliNB(binarize=0.0).fit(X, y), BernoulliNB(binarize=2.0).fit(X, y)])
    assert "took sums with binarize 2.0, expected 0.0 as in model 0; fit all sites alike" in problems[0]
    with pytest.raises(cs.errors.OptionError, match="binarize: was used where sums were taken"):
        cs.rebuild(cs.describe(BernoulliNB().fit(X, y)), binarize=3.0)


def test_other_hyper_parameters_are_the_first_sites_and_said_so():
    X, y = count_rows(0)
    models = {"b": MultinomialNB(alpha=2.0).fit(X[::2], y[::2]), "a": MultinomialNB(alpha=0.5).fit(X[1::2], y[1::2])}
    with pytest.warns(HyperParameterWarning, match="alpha is 0.5 as at a, and another at b"):
        fusion = cs.fuse(models)
    assert fusion.model.alpha == 0.5
    assert cs.fuse(models, alpha=1.5).model.alpha == 1.5
    with pytest.raises(
        cs.errors.OptionError, match=r"mass: is no hyper-parameter of a sklearn\.MultinomialNB; it has alpha"
    ):
        cs.fuse(models, mass=3.0)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        (lambda: halves(Ridge, regression_rows)[1], "is a sklearn.Ridge, expected sklearn.LinearRegression"),
        (lambda: halves(LinearRegression, lambda seed: regression_rows(seed, 2))[1], "has targets of shape"),
        (
            lambda: halves(LinearRegression, lambda seed: (regression_rows(seed)[0][:, :4], regression_rows(seed)[1]))[
                1
            ],
            "has columns: 4, expected 5",
        ),
        (
            lambda: halves(lambda: make_pipeline(StandardScaler(), LinearRegression()), regression_rows)[1],
            "has the steps",
        ),
        (lambda: np.zeros(3), "is a ndarray, expected an estimator"),
    ],
)
def test_what_does_not_go_together_is_named(others, message):
    assert message in str(cs.check([halves(LinearRegression, regression_rows)[0], others()]))


def test_columns_of_other_names_order_and_units_are_named():
    first, second = halves(LinearRegression, regression_rows)
    named = cs.describe(first, features=cs.Features(names="abcde", units=["mg"] * 5))
    for features, message in (
        (cs.Features(names="abcdx"), "has other features: number 4 is 'x'"),
        (cs.Features(names="abcde", units=["g"] * 5), "has other units"),
    ):
        assert message in str(cs.check([named, cs.describe(second, features=features)]))
    with pytest.raises(cs.errors.InputError, match=r"features: names 2 columns, the model has 5"):
        cs.describe(first, features=cs.Features(names="ab"))


@pytest.mark.parametrize("weights", [[1, 2], {"a": 1, "b": 2}])
def test_what_counts_models_is_refused(weights):
    sites = dict(zip("ab", halves(LinearRegression, regression_rows), strict=True))
    with pytest.raises(cs.errors.OptionError, match="weights: sums count every row once"):
        cs.fuse(sites, weights=weights)
    with pytest.raises(
        cs.errors.OptionError,
        match="and Bayesian networks, not for estimators; give one of sums",
    ):
        cs.fuse(sites, "kl")
    with pytest.raises(cs.errors.OptionError, match="n_observations: is in the sums"):
        cs.fuse(sites, n_observations=[3, 4])
    with pytest.raises(cs.errors.OptionError, match="classes: is for networks"):
        cs.describe(sites["a"], classes=3)
    with pytest.raises(cs.errors.OptionError, match="data, sample_weight, n_observations: are for fitted estimators"):
        cs.describe(sites["a"], data=regression_rows(0))


def test_a_number_of_rows_that_contradicts_the_sums_is_named():
    X, y = regression_rows(0)
    with pytest.raises(cs.errors.InputError, match="is 7, but the sums are of 420 rows"):
        cs.describe(LinearRegression().fit(X, y), (X, y), n_observations=7)
    model = EmpiricalCovariance().fit(X)
    with pytest.raises(cs.errors.InputError, match=r"does not keep the number of rows \(`n_observations=`\)"):
        cs.describe(model)
    np.testing.assert_allclose(cs.rebuild(cs.describe(model, n_observations=420)).covariance_, model.covariance_)


def test_singular_sums_warn_and_give_the_least_norm():
    X, y = regression_rows(0)
    X = np.hstack([X, X[:, :1]])
    model = LinearRegression().fit(X, y)
    sites = [cs.describe(model, (X, y))] * 2
    sites[1] = replace(sites[1], approximations=("a copy",))  # so that it is not the same site twice
    with pytest.warns(SingularMomentsWarning, match="the 6 columns of all rows together have rank 5"):
        fused = cs.fuse(sites).model
    np.testing.assert_allclose(fused.coef_, model.coef_, rtol=1e-6)
    assert fused.rank_ == 5


def test_a_singular_site_is_carried_where_the_sum_is_not():
    X, y = regression_rows(0)
    parts = np.split(np.arange(len(X)), [6, 12])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sites = [
            cs.describe(LinearRegression().fit(X[rows], y[rows]), (X[rows], y[rows]), min_count=0) for rows in parts
        ]
        fused = cs.fuse(sites, min_count=0).model
    np.testing.assert_allclose(fused.coef_, LinearRegression().fit(X, y).coef_, rtol=1e-9)


def test_a_covariance_of_too_few_rows_in_all_is_named():
    X, y = class_rows(0)
    few = np.concatenate([np.flatnonzero(y == "elm"), np.flatnonzero(y == "ash")[:4]])
    X, y = X[few], y[few]
    model = QuadraticDiscriminantAnalysis(reg_param=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model.fit(X, y)
        except np.linalg.LinAlgError:
            model.fit(*class_rows(0)).classes_ = np.array(["ash", "elm"])
    statistics = cs.describe(model, (X, y), min_count=0)
    with pytest.raises(
        cs.errors.InputError, match=r"class ash: has a covariance of rank 3 in 4 columns, of 4 rows.*reg_param"
    ):
        cs.rebuild(statistics, reg_param=0.0)
    assert cs.rebuild(statistics, reg_param=0.5).predict(X).shape == y.shape


@pytest.mark.parametrize("step", [RobustScaler(), MinMaxScaler()])
def test_steps_that_are_not_fitted_from_moments_are_named(step):
    X, y = regression_rows(0)
    pipeline = make_pipeline(step, LinearRegression()).fit(X, y)
    name = type(step).__name__
    with pytest.raises(
        cs.errors.UnsupportedError, match=f"step '{name.lower()}': is a {name}, not fitted from moments"
    ):
        cs.describe(pipeline, (X, y))


def test_parts_of_a_column_transformer_that_are_not_fitted_from_moments_are_named():
    X, y = regression_rows(0)
    for part, message in (
        (OneHotEncoder(sparse_output=False), "part 'codes': is a OneHotEncoder, and only StandardScaler"),
        (RobustScaler(), "part 'codes': is a RobustScaler"),
    ):
        pipeline = make_pipeline(ColumnTransformer([("codes", part, [0])], remainder="passthrough"), Ridge())
        with pytest.raises(cs.errors.UnsupportedError, match=message):
            cs.describe(pipeline.fit(X.round(), y), (X.round(), y))
    weighed = ColumnTransformer([("a", StandardScaler(), [0])], transformer_weights={"a": 2.0})
    with pytest.raises(cs.errors.UnsupportedError, match="transformer_weights: are not carried"):
        cs.describe(make_pipeline(weighed, Ridge()).fit(X, y), (X, y))


def test_counts_do_not_follow_steps():
    X, y = count_rows(0)
    pipeline = make_pipeline(StandardScaler(with_mean=False), MultinomialNB()).fit(X, y)
    with pytest.raises(cs.errors.UnsupportedError, match="counts or information of what its steps make"):
        cs.describe(pipeline, (X, y))


def test_a_batch_wise_fit_is_said_to_be_approximate():
    X, y = class_rows(0)
    model = GaussianNB()
    for rows in np.array_split(np.arange(len(X)), 3):
        model.partial_fit(X[rows] * (1 + rows[0] / 200), y[rows], classes=np.unique(y))
    with pytest.warns(UserWarning, match="its epsilon_ is not that of its own variances, as after partial_fit"):
        described = cs.describe(model)
    verdict = cs.fuse([described, GaussianNB().fit(X, y)]).verdict
    assert verdict.code == "approximate"
    assert verdict.harmless is None
    assert "cs.describe(model, data=...)" in verdict.remedy


def test_components_that_were_cut_off_are_said_to_be_missing():
    X, _ = regression_rows(0)
    with pytest.warns(UserWarning, match="keeps 2 of 5 components"):
        described = cs.describe(PCA(2).fit(X))
    assert cs.fuse([described, cs.describe(PCA(2).fit(X[1:]), X[1:])]).verdict.harmless is None


def test_the_same_site_does_not_count_twice(tmp_path):
    first, second = halves(LinearRegression, regression_rows)
    for name, one in (("a", first), ("b", second)):
        cs.save(one, tmp_path / f"{name}.safetensors")
    files = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    cs.fuse(files).save(tmp_path / "fused.safetensors")
    assert "would count twice" in str(cs.check([tmp_path / "fused.safetensors", files[0]]))
    assert "is the same file as" in str(cs.check([files[0], files[0]]))
    assert cs.check([tmp_path / "fused.safetensors", halves(LinearRegression, lambda _: regression_rows(1))[0]]) == []


def tampered(path, **changes):
    """Rewrite a statistics file with changes of its header or of its tensors."""
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        document = json.loads(file.metadata()["consilience"])
    arrays = load_file(path)
    for key, value in changes.items():
        if key in document:
            document[key] = value
        elif value is None:
            del arrays[key.replace("__", ".")]
        else:
            arrays[key.replace("__", ".")] = value
    save_file(arrays, path, {"consilience": json.dumps(document)})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"moments__rows__n": np.array([-1.0, 9.0])}, "negative counts"),
        ({"moments__rows__mean": np.full((2, 4), np.nan)}, "moments.rows.mean has values that are not finite"),
        ({"moments__rows__variances": -np.ones((2, 4))}, "a scatter with negative variances"),
        ({"moments__rows__weight": np.array([0.0, 3.0])}, "weights without rows"),
        ({"moments__rows__mean": None}, "lacks the tensor 'moments.rows.mean'"),
        ({"moments__rows__mean": np.zeros((2, 3))}, "shapes that do not go together"),
        ({"moments__rows__n": np.ones(2, np.float32)}, "has type float32, expected F64"),
        ({"extra": np.zeros(3)}, "has tensors that such a file does not have: extra"),
        ({"counts__rows": np.ones(2)}, "has no use for counts 'rows'"),
        ({"classes": [3, "x"]}, "expected labels of one type"),
        ({"classes": [3, 3]}, "has a class twice"),
        ({"classes": [3]}, "expected"),
        ({"classes": None}, "do not go together"),
        ({"estimator": "sklearn.Oracle"}, "'sklearn.Oracle' is not known"),
        ({"n_columns": 7}, "are of 4 columns, expected 7"),
        ({"min_count": -1.0}, "min_count"),
        ({"format_version": 2}, "format version 2, this library reads up to 1"),
        ({"parameters": {"priors": {"estimator": "Evil", "parameters": {}}}}, "cannot be read"),
        ({"target_shape": [2]}, "are of 4 columns, expected 6"),
    ],
)
def test_a_file_that_cannot_be_sums_of_rows_is_named(changes, message, tmp_path):
    X, y = two_class_rows(0)
    path = tmp_path / "site.safetensors"
    cs.save(GaussianNB().fit(X, y), path)
    tampered(path, **changes)
    with pytest.raises(cs.errors.InputError) as caught:
        cs.load(path)
    assert message in str(caught.value)
    assert all(str(path) in problem for problem in caught.value.problems)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"alpha": "x"}, "a Ridge: cannot be made (of|with) these hyper-parameters"),
        ({"alpha": [1.0, 2.0, 3.0]}, "alpha: has 3 values"),
        ({"oracle": 1}, "a Ridge: has no hyper-parameter oracle; it has alpha, "),
        ({"positive": True}, "holds coefficients above zero"),
        ({"max_iter": 10**9}, "max_iter: is 1000000000, expected at most 1,000,000"),
        ({"max_iter": 10**400}, "max_iter: is 1000"),
    ],
)
def test_hyper_parameters_of_a_strangers_file_are_not_trusted(parameters, message, tmp_path):
    path = tmp_path / "site.safetensors"
    own, other = halves(Ridge, regression_rows)
    cs.save(own, path)
    tampered(path, parameters={**own.parameters, **parameters})
    with pytest.raises(cs.errors.InputError, match=message):
        cs.rebuild(cs.load(path))
    assert cs.check({"a": path, "b": other})


def test_steps_of_a_strangers_file_are_not_trusted(tmp_path):
    path = tmp_path / "site.safetensors"
    pipeline = make_pipeline(ColumnTransformer([("a", StandardScaler(), [0, 1])]), Ridge())
    own, _ = halves(lambda: pipeline, regression_rows)
    for columns in ([0, 99], ["x"], [[0]], None):
        cs.save(own, path)
        step = dict(own.steps[0].parameters, parts=[{"name": "a", "part": "passthrough", "columns": columns}])
        tampered(path, steps=[{"name": "t", "estimator": "sklearn.ColumnTransformer", "parameters": step}])
        with pytest.raises(cs.errors.InputError, match="a Ridge: cannot be made"):
            cs.rebuild(cs.load(path))


def test_a_scatter_that_is_not_positive_is_named(tmp_path):
    path = tmp_path / "site.safetensors"
    cs.save(halves(LinearRegression, regression_rows)[0], path)
    packed = load_file(path)["moments.rows.scatter"].copy()
    packed[1] *= 1e3  # a covariance beyond its variances
    tampered(path, moments__rows__scatter=packed)
    with pytest.raises(cs.errors.InputError, match="have a scatter with negative variances"):
        cs.load(path)


def test_scalers_have_no_score_and_others_have_their_own():
    X, y = regression_rows(0)
    scalers = [StandardScaler().fit(X[::2]), StandardScaler().fit(X[1::2])]
    with pytest.raises(cs.errors.UnsupportedError, match="a StandardScaler: says nothing of rows"):
        cs.evaluate(cs.fuse(scalers), scalers[0], X)
    covariances = [cs.describe(OAS().fit(part), part) for part in (X[::2], X[1::2])]
    evaluation = cs.evaluate(cs.fuse(covariances), covariances[0], X)
    assert evaluation.scores[0].name == "log-likelihood"
    X, y = class_rows(0)
    models = [GaussianNB().fit(X[::2], y[::2]), GaussianNB().fit(X[1::2], y[1::2])]
    evaluation = cs.evaluate(cs.fuse(models), models[0], X, y)
    assert [score.name for score in evaluation.scores] == ["accuracy", "cross-entropy"]
    with pytest.raises(cs.errors.InputError, match=r"is a sklearn\.GaussianNB, expected a sklearn\.OAS"):
        cs.evaluate(covariances[0], models[0], X, y)


def test_rows_of_a_table_are_matched_by_name():
    pandas = pytest.importorskip("pandas")
    X, y = regression_rows(0)
    table = pandas.DataFrame(X, columns=list("abcde"))
    model = LinearRegression().fit(table, y)
    swapped = cs.describe(model, (table[list("edcba")], y))
    assert swapped.digest == cs.describe(model, (table, y)).digest
    rebuilt = cs.rebuild(swapped)
    assert rebuilt.feature_names_in_.tolist() == list("abcde")
    assert read_rows((table, y), None, 5, tuple("abcde"), "targets", may_be_sparse=False).n == 420


def test_a_fusion_says_where_its_model_and_its_sums_are():
    fusion = cs.fuse(halves(LinearRegression, regression_rows))
    with pytest.raises(AttributeError, match=r"its fitted model does: fusion\.model\.predict"):
        _ = fusion.predict
    with pytest.raises(AttributeError, match=r"the sums are in \.statistics"):
        _ = fusion.posterior


@pytest.mark.parametrize("make", [LinearRegression, GaussianNB, lambda: RidgeClassifier(class_weight="balanced")])
def test_rows_of_weight_zero_are_refused_by_name(make):
    X, y = regression_rows(0) if make is LinearRegression else two_class_rows(0)
    weights = np.ones(len(X))
    weights[[3, 11]] = 0.0
    model = make().fit(X, y, sample_weight=weights)
    with pytest.raises(cs.errors.OptionError, match="sample_weight: is 0 for 2 of the rows, the first of them row 3"):
        cs.describe(model, (X, y), sample_weight=weights)


def test_a_scaler_that_keeps_no_means_asks_for_its_data():
    X, _ = regression_rows(0)
    models = [StandardScaler(with_mean=mean, with_std=False).fit(X[j::2]) for j, mean in enumerate((True, False))]
    assert "does not keep the means of its columns; describe it where its data are" in str(cs.check(models))
    with pytest.warns(HyperParameterWarning):
        fusion = cs.fuse([models[0], cs.describe(models[1], X[1::2])])
    np.testing.assert_allclose(fusion.model.mean_, X.mean(axis=0), rtol=1e-12)


@pytest.mark.parametrize("solver", ["lsqr", "eigen", "svd"])
def test_other_rows_are_noticed_whatever_the_solver_of_a_discriminant_analysis_is_called(solver):
    X, y = class_rows(0)
    model = LinearDiscriminantAnalysis(solver=solver).fit(X, y)
    with pytest.raises(cs.errors.InputError, match="is not the model that the sums of these data give"):
        cs.describe(model, (X[::-1], y))


def test_models_of_solvers_that_stop_early_are_not_compared():
    X, y = regression_rows(0)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    model = Ridge(solver="sag", tol=0.3, random_state=0).fit(X, y)
    assert cs.describe(model, (X, y)).n_observations == len(X)


def test_a_solver_with_a_tolerance_is_not_called_exact():
    X, y = np.random.default_rng(0).normal(size=(90, 3)), np.arange(90.0)
    halves = [slice(0, None, 2), slice(1, None, 2)]
    for solver, mark in (("cholesky", "exact"), ("lsqr", "iterative")):
        sent = [cs.describe(Ridge(solver=solver).fit(X[h], y[h]), data=(X[h], y[h])) for h in halves]
        verdict = cs.fuse(sent).verdict
        assert verdict.code == mark
        assert ("up to the tolerance of its solver" in verdict.text) == (mark == "iterative")
