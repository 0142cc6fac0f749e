"""Naive Bayes classifiers: counts and sums of squares of every class; smoothing is applied once, after summing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from consilience.checks import Array
from consilience.errors import InputError
from consilience.estimators.adapters.base import RefittedAdapter, SiteSums, class_priors, moments_of_classes
from consilience.estimators.hyper_parameters import decode, encode
from consilience.estimators.site_rows import Needs, SiteRows
from consilience.estimators.statistics import CATEGORIES, FEATURE_COUNTS, ROWS, UNWEIGHTED, Statistics
from consilience.families.centred_moments import CentredMoments

_SAME_EPSILON = 1e-6
"""Relative difference between the epsilon that a model has and that of its own variances, above which it is that of
other rows: the last batch's, or rows without their weights. Rounding leaves 1e-12."""


class GaussianNBAdapter(RefittedAdapter):
    """Gaussian naive Bayes; epsilon is that of the variance of all rows, never the mean of the sites'.

    ``fit`` takes epsilon from rows without their weights. Weighted rows have their unweighted moments too, which leave
    a site with ``min_count=0`` only; without them epsilon is that of weighted rows.
    """

    kind: ClassVar[str] = "sklearn.GaussianNB"
    module: ClassVar[str] = "sklearn.naive_bayes"
    needs: ClassVar[Needs] = "classes"
    is_diagonal: ClassVar[bool] = True

    def sums_of_rows(self, rows: SiteRows) -> SiteSums:
        """Return the moments of each class."""
        moments = {ROWS: moments_of_classes(rows, diagonal=not rows.products)}
        if rows.weights is not None:
            moments[UNWEIGHTED] = moments_of_classes(rows, diagonal=not rows.products, weighted=False)
        return SiteSums(moments)

    def sums_of_fitted(self, model: Any, n_observations: float | None) -> SiteSums:
        """Return N_c = class_count_ and S_c = N_c (var_ - epsilon_)."""
        count = np.asarray(model.class_count_, dtype=np.float64)
        variances = np.maximum(np.asarray(model.var_, dtype=np.float64) - float(model.epsilon_), 0.0)
        mean = np.where((count > 0)[:, None], np.asarray(model.theta_, dtype=np.float64), 0.0)
        record = CentredMoments(count, count, np.zeros_like(count), mean, count[:, None] * variances)
        total = record.total()
        expected = model.var_smoothing * float((total.variances / total.weight).max())
        is_of_these = abs(expected - float(model.epsilon_)) <= _SAME_EPSILON * max(expected, float(model.epsilon_))
        return SiteSums(
            {ROWS: record},
            approximations=()
            if is_of_these
            else (
                "its epsilon_ is not that of its own variances, as after partial_fit or with sample_weight, so its"
                " variances are known to epsilon_ only; `cs.describe(model, data=(X, y))` gives them exactly",
            ),
        )

    def looks_like_one_row(self, statistics: Statistics) -> Any:
        """Return which classes vary in no column: counts of a fitted object are sums of weights."""
        record = statistics.rows
        rounding = record.weight[:, None] * (8 * np.finfo(np.float64).eps * record.mean) ** 2
        return (record.variances <= rounding).all(axis=1)

    def fit_sums(self, model: Any, statistics: Statistics) -> None:
        """Set means, variances, counts and priors."""
        record = statistics.rows
        total = statistics.moments.get(UNWEIGHTED, record).total()
        model.epsilon_ = model.var_smoothing * float((total.variances / total.weight).max())
        model.theta_ = record.mean.copy()
        with np.errstate(invalid="ignore"):
            model.var_ = record.variances / record.weight[:, None] + model.epsilon_
        model.class_count_ = record.weight.copy()
        model.class_prior_ = class_priors(statistics)


class CountAdapter(RefittedAdapter):
    """What naive Bayes classifiers of counts have in common: fitted objects keep all sums."""

    module: ClassVar[str] = "sklearn.naive_bayes"
    needs: ClassVar[Needs] = "classes"
    follows_units: ClassVar[bool] = False
    may_be_sparse: ClassVar[bool] = True

    def array_shapes(self, statistics: Statistics) -> dict[str, tuple[int, ...]]:
        """Return the shapes of counts of classes and columns."""
        n_classes = len(statistics.classes or ())
        return {
            f"counts {ROWS!r}": (n_classes,),
            "counts 'weight'": (n_classes,),
            f"counts {FEATURE_COUNTS!r}": (n_classes, statistics.n_columns),
        }

    def features(self, X: Any, parameters: Mapping[str, Any]) -> Any:
        """Return the counts of every row."""
        if (X.data if sparse.issparse(X) else X).min(initial=0.0) < 0:
            raise InputError("X", f"has negative values, and a {self.class_name} counts", code="E-NUMBER")
        return X

    def sums_of_rows(self, rows: SiteRows) -> SiteSums:
        """Return weighted counts of every class and column."""
        places = (rows.numbers, np.arange(rows.n))
        members = sparse.csr_array((rows.weight_of_each, places), shape=(rows.n_classes, rows.n))
        counted = members @ self.features(rows.X, rows.parameters)  # (C, d)
        features = np.asarray(counted.toarray() if sparse.issparse(counted) else counted, dtype=np.float64)
        return SiteSums(counts={**_row_counts(rows), FEATURE_COUNTS: features})

    def sums_of_fitted(self, model: Any, n_observations: float | None) -> SiteSums:
        """Return the counts that the object keeps."""
        weight = np.array(model.class_count_, dtype=np.float64)
        return SiteSums(
            counts={ROWS: weight, "weight": weight, FEATURE_COUNTS: np.array(model.feature_count_, np.float64)}
        )

    def fit_sums(self, model: Any, statistics: Statistics) -> None:
        """Set counts, and probabilities by scikit-learn's own smoothing."""
        model.class_count_ = statistics.counts["weight"].copy()
        model.feature_count_ = statistics.counts[FEATURE_COUNTS].copy()
        _set_probabilities(model)


class MultinomialNBAdapter(CountAdapter):
    """Multinomial naive Bayes."""

    kind: ClassVar[str] = "sklearn.MultinomialNB"


class ComplementNBAdapter(CountAdapter):
    """Complement naive Bayes (Rennie et al. 2003)."""

    kind: ClassVar[str] = "sklearn.ComplementNB"

    def fit_sums(self, model: Any, statistics: Statistics) -> None:
        """Set counts, those of all classes together, and weights."""
        model.feature_all_ = statistics.counts[FEATURE_COUNTS].sum(axis=0)
        super().fit_sums(model, statistics)


class BernoulliNBAdapter(CountAdapter):
    """Bernoulli naive Bayes; rows are binarized before counting, so thresholds must agree."""

    kind: ClassVar[str] = "sklearn.BernoulliNB"
    sum_parameters: ClassVar[tuple[str, ...]] = ("binarize",)

    def features(self, X: Any, parameters: Mapping[str, Any]) -> Any:
        """Return 1 where a value is above the threshold."""
        threshold = parameters["binarize"]
        if threshold is None:
            return X
        if sparse.issparse(X) and threshold < 0:
            X = X.toarray()
        return (threshold < X).astype(np.float64)


class CategoricalNBAdapter(CountAdapter):
    """Categorical naive Bayes: counts of codes of one encoder, flat over the categories of all columns.

    A column j has K_j categories, up to the last that a row has, and its counts are K_j columns of (C, sum K_j). How
    many there are is read off the counts, so that classes and sites that are left out or taken out leave nothing.
    """

    kind: ClassVar[str] = "sklearn.CategoricalNB"
    may_be_sparse: ClassVar[bool] = False

    def array_shapes(self, statistics: Statistics) -> dict[str, tuple[int, ...]]:
        """Return the shapes of counts by class and category."""
        categories = statistics.maxima.get(CATEGORIES, np.ones(statistics.n_columns))
        if not np.all((categories >= 1.0) & (categories == np.rint(categories))):
            text = "expected whole numbers of one category or more for each column"
            raise InputError(CATEGORIES, text, code="E-NUMBER")
        shapes = super().array_shapes(statistics)
        shapes[f"counts {FEATURE_COUNTS!r}"] = (len(statistics.classes or ()), int(categories.sum()))
        return {**shapes, f"maxima {CATEGORIES!r}": (statistics.n_columns,)}

    def sums_of_rows(self, rows: SiteRows) -> SiteSums:
        """Return weighted counts of every class and category (C, sum K_j)."""
        codes = rows.X.astype(np.int64)
        if codes.min(initial=0) < 0:
            raise InputError("X", "has negative values, expected codes of categories from 0", code="E-NUMBER")
        counted = []
        for column in codes.T:
            values = np.zeros((rows.n_classes, int(column.max()) + 1))
            np.add.at(values, (rows.numbers, column), rows.weight_of_each)
            counted.append(values)
        return _of_categories(_row_counts(rows), counted, rows.parameters["min_categories"])

    def sums_of_fitted(self, model: Any, n_observations: float | None) -> SiteSums:
        """Return the counts that the object keeps."""
        weight = np.array(model.class_count_, dtype=np.float64)
        counted = [np.asarray(values, dtype=np.float64) for values in model.category_count_]
        return _of_categories({ROWS: weight, "weight": weight}, counted, encode("min_categories", model.min_categories))

    def trimmed(self, statistics: Statistics) -> Statistics:
        """Return counts without the categories that no row has."""
        least = statistics.parameters["min_categories"]
        sums = _of_categories(dict(statistics.counts), _by_column(statistics), least)
        return replace(statistics, counts=sums.counts, maxima=sums.maxima)

    def fit_sums(self, model: Any, statistics: Statistics) -> None:
        """Set counts by column, each with its own number of categories."""
        model.class_count_ = statistics.counts["weight"].copy()
        counted = _with_categories(_by_column(statistics), statistics.parameters["min_categories"])
        model.n_categories_ = np.array([values.shape[1] for values in counted], dtype=np.int64)
        model.category_count_ = counted
        _set_probabilities(model)


def _by_column(statistics: Statistics) -> list[Array]:
    """Return flat counts as those of each column (C, K_j)."""
    ends = np.cumsum(statistics.maxima[CATEGORIES].astype(np.int64))[:-1]
    return np.split(statistics.counts[FEATURE_COUNTS], ends, axis=1)


def _with_categories(counted: list[Array], least: Any) -> list[Array]:
    """Return counts of columns (C, K_j), each up to the last category that a row has, and of `least` or more."""
    floor = np.broadcast_to(np.asarray(1 if least is None else decode(least), dtype=np.int64), len(counted))
    trimmed = []
    for values, fewest in zip(counted, floor.tolist(), strict=True):
        seen = np.flatnonzero(values.sum(axis=0) > 0)
        most = max(int(seen[-1]) + 1 if len(seen) else 1, fewest)
        trimmed.append(np.pad(values, ((0, 0), (0, max(most - values.shape[1], 0))))[:, :most])
    return trimmed


def _of_categories(counts: dict[str, Array], counted: list[Array], least: Any) -> SiteSums:
    """Return counts of columns (C, K_j) as flat ones, with the number of categories of each."""
    counted = _with_categories(counted, least)
    categories = np.array([float(values.shape[1]) for values in counted])
    return SiteSums(counts={**counts, FEATURE_COUNTS: np.hstack(counted)}, maxima={CATEGORIES: categories})


def _row_counts(rows: SiteRows) -> dict[str, Array]:
    weights = np.bincount(rows.numbers, rows.weights, minlength=rows.n_classes).astype(np.float64)
    return {ROWS: rows.counts, "weight": weights}


def _set_probabilities(model: Any) -> None:
    """Set log probabilities as ``fit`` does of its counts, in this version of scikit-learn."""
    model._update_feature_log_prob(model._check_alpha())
    model._update_class_log_prior(class_prior=model.class_prior)
