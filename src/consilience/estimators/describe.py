"""Describe: the statistics of a fitted estimator, from the object alone where it keeps them, else from its data.

Where data are given, the estimator is fitted again from their sums and compared: what a site sends is known to give its
own model, with the weights and the hyper-parameters that it was fitted with.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from consilience.checks import Array, Json, is_number
from consilience.core.caller import warn_caller
from consilience.core.features import Features, final_model, is_pipeline, sklearn_features
from consilience.core.inspection import listed
from consilience.core.min_count import MIN_COUNT
from consilience.errors import (
    ConsilienceError,
    InputError,
    OptionError,
    Problem,
    RareColumnWarning,
    UnsupportedError,
    WithheldWarning,
)
from consilience.estimators.adapters.base import EstimatorAdapter, SiteSums
from consilience.estimators.adapters.laplace import LaplaceAdapter
from consilience.estimators.adapters.table import adapter_for, adapter_of_kind, refusal_of
from consilience.estimators.class_labels import ClassLabels
from consilience.estimators.fourth_moments import with_own_fourth_moments
from consilience.estimators.inference import column_names
from consilience.estimators.rare_columns import problem_of, rare_columns, refuse_whole_numbers, without_rare_columns
from consilience.estimators.rebuild import mixes_columns, rebuild, steps_of
from consilience.estimators.site_rows import SiteRows, names_within, read_rows
from consilience.estimators.statistics import INFORMATION, NOISE, Statistics
from consilience.posteriors.scaling import scaling_of

COMPARED_ROWS = 200
"""Rows on which a model is compared with what its sums give. Chosen by hand: enough to tell another fit."""

FIT_DIFFERENCE = 1e-3
"""Difference of predictions, as a part of their spread, above which a model was not fitted to these rows. Solvers that
stop at a tolerance are off by 1e-4; leaving out the weights of a fit, by 1e-2 and more. Chosen by hand between them."""


_WHOLE = 1e-9
"""Relative difference of a count of rows from a whole number that is rounding."""


class ApproximateStatisticsWarning(UserWarning):
    """A fitted object keeps its sums only in part, so that what is fused of them is near the pooled model, not it."""

    code = "W-APPROXIMATE"


def is_estimator(model: object) -> bool:
    """Return whether an object is an estimator of the table, one refused by name, or a Pipeline that ends in one."""
    if is_pipeline(model):
        steps: Any = getattr(model, "steps", None)
        return isinstance(steps, list) and len(steps) > 0 and is_estimator(steps[-1][1])
    return adapter_for(model) is not None or refusal_of(model) is not None


def describe(
    model: Any,
    data: Any = None,
    *,
    n_observations: float | None = None,
    sample_weight: Any = None,
    features: Features | None = None,
    min_count: float = MIN_COUNT,
    withhold_columns: bool = False,
) -> Statistics:
    """Return the statistics of a fitted estimator, or of a Pipeline of affine steps and one: what a site sends.

    Options are as `consilience.describe` takes them. Data are ``(X, y)``, ``X`` alone where there is no y, or the path
    of a .npz with x and y; without them the sums are those that the object keeps. The number of rows is for objects
    that keep covariances without it, weights (n,) are those of the fit, of which the object keeps no trace.

    Examples
    --------
    >>> from sklearn.linear_model import LinearRegression
    >>> X, y = [[0.0], [1.0], [2.0], [3.0], [4.0]], [1.0, 3.0, 5.0, 7.0, 9.0]
    >>> statistics = describe(LinearRegression().fit(X, y), data=(X, y))
    >>> float(statistics.n_observations), rebuild(statistics).coef_.round(6)
    (5.0, array([2.]))
    """
    if not is_number(min_count):
        raise OptionError("min_count", f"expected a number that is not negative, found {min_count!r}")
    rows = None
    if isinstance(model, Statistics):
        if data is not None or sample_weight is not None or n_observations is not None:
            raise OptionError("data, sample_weight, n_observations", "are for fitted estimators; these are sums")
        statistics = model
    else:
        statistics, rows = _described(model, data, n_observations, sample_weight)
    if features is not None:
        statistics = replace(statistics, features=_agreed(statistics, features, isinstance(model, Statistics)))
    if withhold_columns and rows is None:
        raise OptionError("withhold_columns", "needs the rows that sums are taken of; give a fitted model with data")
    if rows is not None and min_count > 0 and holds_products(statistics):
        refuse_whole_numbers(rows)
        if withhold_columns:
            statistics = _without_rare_columns(
                statistics, final_model(model) if is_pipeline(model) else model, rows, min_count
            )
        elif found := rare_columns(rows, min_count, by_class=are_by_class(statistics)):
            warn_caller(
                problem_of(found, column_names(statistics), statistics.classes, min_count),
                RareColumnWarning,
            )
    left, withheld = withhold(statistics, min_count)
    is_known = isinstance(model, Statistics) or NOISE in left.counts  # who adds noise knows it
    for text in () if is_known else left.approximations:
        warn_caller(
            f"the sums of this {adapter_of_kind(left.kind).class_name} are approximate: {text}",
            ApproximateStatisticsWarning,
        )
    for problem in withheld:
        warn_caller(problem, WithheldWarning)
    return left


def describe_all(
    model: Any, data: Any = None, n_observations: float | None = None, sample_weight: Any = None
) -> Statistics:
    """Return the statistics of a fitted estimator with all of its classes; see ``describe``."""
    return _described(model, data, n_observations, sample_weight)[0]


def holds_products(statistics: Statistics) -> bool:
    """Return whether sums have products of columns, plain or weighted."""
    return INFORMATION in statistics.counts or any(not one.is_diagonal for one in statistics.moments.values())


def are_by_class(statistics: Statistics) -> bool:
    """Return whether sums of products are of every class by itself."""
    return any(not one.is_diagonal and one.n.ndim for one in statistics.moments.values())


def _without_rare_columns(statistics: Statistics, model: Any, rows: SiteRows, min_count: float) -> Statistics:
    """Return sums of rows whose columns set no few of them apart, which say so."""
    adapter = adapter_of_kind(statistics.kind)
    if INFORMATION in statistics.counts:
        text = f"is for sums of rows; coefficients of a {adapter.class_name} were fitted to the columns themselves"
        raise OptionError("withhold_columns", text, "leave the columns out of the fit", "E-OPTION")
    rows, columns = without_rare_columns(rows, min_count, by_class=are_by_class(statistics))
    if not columns:
        return statistics
    sums, names = adapter.sums_of_model(model, rows), column_names(statistics)
    text = (
        f"a site withholds rows of fewer than {min_count:g} people, who have another value than all others in"
        f" {listed([names[column] for column in columns])}: there these columns are constant"
    )
    approximations = (*sums.approximations, text)
    return replace(
        statistics, moments=sums.moments, counts=sums.counts, maxima=sums.maxima, approximations=approximations
    )


def _described(
    model: Any, data: Any, n_observations: float | None, sample_weight: Any
) -> tuple[Statistics, SiteRows | None]:
    """Return the statistics of a fitted estimator, and the rows that they were taken from; None for none."""
    if is_pipeline(model):
        return _describe_pipeline(model, data, n_observations, sample_weight)
    known = adapter_for(model)
    kept = None if known is None else known.kept_statistics(model)
    if kept is not None:
        if data is not None or sample_weight is not None:
            raise OptionError("data, sample_weight", f"are for estimators without sums; a {kept.kind} has its own")
        _require_same_number(kept, n_observations)
        return kept, None
    adapter, parameters = _known(model)
    names = adapter.features_of(model)
    rows = None
    if data is None:
        if sample_weight is not None:
            raise OptionError("sample_weight", "weighs rows of data; give data too")
        sums = adapter.sums_of_fitted(model, n_observations)
        statistics = _checked(_statistics(adapter, sums, model, parameters, names))
    else:
        statistics, rows = _of_data(adapter, model, model, parameters, names, data, sample_weight)
        _require_same_fit(adapter, model, statistics, rows)
    _require_same_number(statistics, n_observations)
    return statistics, rows


def _known(model: Any) -> tuple[EstimatorAdapter, dict[str, Any]]:
    """Return the adapter and the hyper-parameters of a fitted estimator that is a function of sums."""
    name = type(model).__name__
    if refusal := refusal_of(model):
        raise UnsupportedError([refusal])
    adapter = adapter_for(model)
    if adapter is None:
        raise UnsupportedError(f"a {name}", "is no estimator that is fused by its sums")
    parameters = adapter.parameters_of(model)
    if refusal := adapter.refusal(parameters):
        raise InputError([refusal.about(f"a {name}")])
    if not adapter.is_fitted(model):
        raise InputError("", f"this {name} is not fitted yet; call fit first", code="E-UNFITTED")
    return adapter, parameters


def _statistics(
    adapter: EstimatorAdapter, sums: SiteSums, model: Any, parameters: dict[str, Json], features: Features
) -> Statistics:
    """Return sums with what an estimator says of itself."""
    return Statistics(
        adapter.kind,
        parameters,
        adapter.n_columns_of(model),
        sums.moments,
        sums.counts,
        sums.maxima,
        classes=ClassLabels.of(model.classes_) if adapter.needs == "classes" else None,
        target_shape=() if adapter.needs == "targets" else None,
        features=features,
        design=adapter.design_of(model),
        approximations=sums.approximations,
    )


def _checked(statistics: Statistics) -> Statistics:
    if problems := statistics.problems():
        raise InputError(problems)
    return statistics


def n_columns_of(model: Any) -> int:
    """Return how many columns an estimator takes; of a Pipeline, its first step that is one."""
    if not is_pipeline(model):
        adapter = adapter_for(model)
        return int(model.n_features_in_) if adapter is None else adapter.n_columns_of(model)
    return next(int(step.n_features_in_) for _, step in model.steps if step is not None and not isinstance(step, str))


def _of_data(
    adapter: EstimatorAdapter,
    model: Any,
    whole: Any,
    parameters: dict[str, Json],
    features: Features,
    data: Any,
    sample_weight: Any,
    *,
    products: bool = False,
) -> tuple[Statistics, SiteRows]:
    """Return the statistics of data, for an estimator (the last step of `whole`, where that is a Pipeline)."""
    adapter.refuse_data()
    if sample_weight is not None and not adapter.takes_weights(model):
        raise OptionError("sample_weight", f"a {adapter.class_name} takes none; leave it out")
    n_columns = n_columns_of(whole)
    names = names_within(data, features)
    rows = read_rows(data, sample_weight, n_columns, names, adapter.needs, may_be_sparse=adapter.may_be_sparse)
    classes = ClassLabels.of(model.classes_) if adapter.needs == "classes" else None
    numbers = None if classes is None else classes.numbers_of(rows.y)
    rows = replace(rows, numbers=numbers, n_classes=len(classes or ()), parameters=parameters, products=products)
    statistics = _statistics(adapter, adapter.sums_of_model(model, rows), model, parameters, features)
    target_shape = rows.y.shape[1:] if adapter.needs == "targets" else None
    return replace(statistics, n_columns=n_columns, target_shape=target_shape), rows


def _describe_pipeline(
    pipeline: Any, data: Any, n_observations: float | None, sample_weight: Any
) -> tuple[Statistics, SiteRows | None]:
    """Return the statistics of a Pipeline in the units of the data, before any of its steps, and the rows."""
    rows = None
    inner = final_model(pipeline)
    if is_pipeline(inner):
        raise UnsupportedError("a Pipeline within a Pipeline", "is not fused", "put all steps into one")
    adapter, parameters = _known(inner)
    steps = steps_of(pipeline)
    last = pipeline.steps[-1][0]
    if steps and not adapter.follows_units:
        text = "is described by counts or information of what its steps make, which do not follow them"
        remedy = "do the same to the data at all sites before, and describe the last step alone"
        raise UnsupportedError(f"a Pipeline of a {adapter.class_name}", text, remedy)
    features = sklearn_features(pipeline)
    if sample_weight is not None:
        text = "does not say which steps of a Pipeline it weighs; describe its steps one by one"
        raise OptionError("sample_weight", text)
    if data is None:
        try:
            scaling = scaling_of(pipeline)
        except ConsilienceError as error:
            raise InputError(
                [
                    *error.problems,
                    Problem("a Pipeline", "cannot be undone", "describe it where its data are, with `data=`"),
                ]
            ) from error
        if adapter.by_column:
            raise InputError("a Pipeline", "of scalers does not keep its sums", "describe it with `data=X`", "E-NEEDED")
        sums = adapter.sums_of_fitted(inner, n_observations)
        if scaling is not None:
            back = scaling.inverse()
            moments = {name: record.affine_image(back.matrix, back.shift) for name, record in sums.moments.items()}
            sums = replace(sums, moments=moments)
        statistics = _checked(_statistics(adapter, sums, inner, parameters, features))
        statistics = replace(statistics, steps=steps, last_step=last)
    else:
        products = mixes_columns(steps) or adapter.by_column
        statistics, rows = _of_data(adapter, inner, pipeline, parameters, features, data, None, products=products)
        statistics = replace(statistics, steps=steps, last_step=last)
        _require_same_fit(adapter, pipeline, statistics, rows)
    _require_same_number(statistics, n_observations)
    return statistics, rows


def _require_same_fit(adapter: EstimatorAdapter, model: Any, statistics: Statistics, rows: SiteRows) -> None:
    """Raise InputError where a model is not what the sums of these rows give."""
    if adapter.is_loose(statistics.parameters):
        return
    if (
        statistics.classes is not None and len(statistics.classes) < 2
    ):  # a site of one class has sums, and no classifier
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            again = rebuild(with_own_fourth_moments(adapter, statistics, rows))
            ours, its = (_fingerprint(adapter, one, rows) for one in (again, model))
    except InputError:  # too few rows at this site for a model of sums: the sum over sites decides
        return
    if not its.size and not ours.size:  # as of a scaler that neither centres nor scales
        return
    spread = max(float(np.abs(its).max(initial=0.0)), float(np.std(its)), np.finfo(np.float64).tiny)
    if ours.shape != its.shape or not np.all(np.abs(ours - its) <= FIT_DIFFERENCE * spread):
        text = "is not the model that the sums of these data give: it was fitted to other rows, or with weights"
        remedy = "give data and sample_weight as they were in fit"
        raise InputError(f"a {adapter.class_name}", text, remedy, "E-MISMATCH")


def _fingerprint(adapter: EstimatorAdapter, model: Any, rows: SiteRows) -> Array:
    """Return numbers (k,) that distinguish two fits of a model."""
    inner = final_model(model) if is_pipeline(model) else model
    if adapter.compared:
        parts = [getattr(inner, name) for name in adapter.compared if getattr(inner, name, None) is not None]
        return np.concatenate([np.ravel(part).astype(np.float64) for part in parts] or [np.zeros(0)])
    X = rows.X[:COMPARED_ROWS]
    predicted = model.predict_proba(X) if hasattr(model, "predict_proba") else None
    if predicted is None:
        predicted = model.decision_function(X) if hasattr(model, "decision_function") else model.predict(X)
    return np.asarray(predicted, dtype=np.float64)


def _require_same_number(statistics: Statistics, n_observations: float | None) -> None:
    """Raise where a number of rows is stated that is not that of the sums."""
    if n_observations is None:
        return
    if not (is_number(n_observations) and n_observations > 0):
        text = f"expected a positive number of rows, found {n_observations!r}"
        raise InputError("n_observations", text, code="E-NUMBER")
    n_rows = statistics.n_observations
    if abs(n_rows - n_observations) > 1e-6 * max(n_rows, 1.0):
        text = f"is {n_observations:g}, but the sums are of {n_rows:g} rows"
        raise InputError("n_observations", text, code="E-MISMATCH")


def _agreed(statistics: Statistics, features: Features, is_told: bool) -> Features:
    """Return what columns mean; of a fitted model it must not contradict what the model records."""
    if features.names is not None and len(features.names) != statistics.n_columns:
        text = f"names {len(features.names)} columns, the model has {statistics.n_columns}"
        raise InputError("features", text, code="E-SHAPE")
    if not is_told and (texts := statistics.features.differences(features)):
        raise InputError(Problem("features", text) for text in texts)
    return replace(features, from_columns=statistics.features.from_columns)


def withhold(statistics: Statistics, min_count: float) -> tuple[Statistics, list[Problem]]:
    """Return statistics without classes of too few rows, and what was left out, a line each.

    It raises where nothing would be left.
    """
    adapter = adapter_of_kind(statistics.kind)
    disclosure = adapter.disclosure()
    if disclosure is not None and min_count > 0:
        raise InputError([disclosure])
    _require_counted_rows(statistics, min_count)
    statistics = statistics.without_fourth_moments()
    leaving = replace(statistics.without_unweighted() if min_count > 0 else statistics, min_count=float(min_count))
    keeps = "`min_count=0` keeps them"
    if statistics.classes is None:
        if statistics.n_observations < min_count:
            text = f"has {statistics.n_observations:g} rows, fewer than {min_count:g}: nothing may leave"
            raise InputError("", text, keeps, "E-FEW")
        return leaving, []
    counts = statistics.row_counts
    is_thin = counts < min_count
    is_alike = (min_count > 0) & adapter.looks_like_one_row(statistics)
    is_kept = (counts > 0) & ~is_thin & ~is_alike
    if not np.any(is_kept):
        text = f"has no class of {max(min_count, 1):g} rows or more"
        if np.any(is_alike & ~is_thin):
            text += " that vary in any column"
        raise InputError("", f"{text}: nothing may leave", keeps, "E-FEW")
    if np.all(is_kept):
        return leaving, []
    problems = [
        Problem(
            f"class {statistics.classes.names[c]}",
            f"has {counts[c]:g} rows, fewer than {min_count:g}"
            if is_thin[c]
            else "varies in no column, so that it may be one row with a large weight",
            keeps,
            "E-FEW",
        )
        for c in np.flatnonzero(~is_kept & (counts > 0)).tolist()
    ]
    # Log odds against a class, and sums over all classes, tell of its rows even where it is left out.
    if isinstance(adapter, LaplaceAdapter) or (problems and adapter.pools_classes):
        remedy = f"fit with `min_count={min_count:g}`" if adapter.pools_classes else "fit without that class"
        raise InputError([*problems, Problem("", f"a {adapter.class_name} needs all of its classes", remedy)])
    left = replace(leaving.some_classes(np.flatnonzero(is_kept)), n_withheld=leaving.n_withheld + len(problems))
    return adapter.trimmed(left), problems


def _require_counted_rows(statistics: Statistics, min_count: float) -> None:
    """Raise unless the counts show that `min_count` rows are behind every statistic."""
    if min_count <= 0:
        return
    counts = np.atleast_1d(statistics.row_counts)
    called = adapter_of_kind(statistics.kind).class_name
    if np.any(np.abs(counts - np.rint(counts)) > _WHOLE * np.maximum(counts, 1.0)):
        text = (
            f"counts weights, not rows ({counts[counts != np.rint(counts)][0]:g}), so that a class of fewer than"
            f" {min_count:g} rows is not seen"
        )
        remedy = "describe it with its data, `cs.describe(model, data=..., sample_weight=...)`, or give `min_count=0`"
        raise InputError(f"a {called}", text, remedy, "E-FEW")
    if statistics.classes is not None:
        return
    thin = np.flatnonzero((counts > 0) & (counts < min_count))
    if len(counts) > 1 and len(thin):
        names = statistics.features.names or tuple(f"column {number}" for number in range(len(counts)))
        raise InputError(
            Problem(
                names[column],
                f"has a value in {counts[column]:g} rows, fewer than {min_count:g}",
                "leave that column out, or give `min_count=0`",
                "E-FEW",
            )
            for column in thin.tolist()
        )
