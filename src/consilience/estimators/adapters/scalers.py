"""Scalers: means and variances of columns, which add up, and extremes, which are single observations."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np

from consilience.checks import Array
from consilience.core.agreement import ColumnMoments
from consilience.errors import InputError, Problem
from consilience.estimators.adapters.base import RefittedAdapter, SiteSums, whole_moments
from consilience.estimators.site_rows import SiteRows
from consilience.estimators.statistics import ROWS, Statistics
from consilience.families.centred_moments import CentredMoments

_EPS = float(np.finfo(np.float64).eps)


class StandardScalerAdapter(RefittedAdapter):
    """Means and standard deviations of columns; a fitted object keeps all of it, with counts of each column."""

    kind: ClassVar[str] = "sklearn.StandardScaler"
    module: ClassVar[str] = "sklearn.preprocessing"
    sum_parameters: ClassVar[tuple[str, ...]] = ("with_std",)
    by_column: ClassVar[bool] = True
    is_diagonal: ClassVar[bool] = True
    compared: ClassVar[tuple[str, ...]] = ("mean_", "var_")

    def array_shapes(self, statistics: Statistics) -> dict[str, tuple[int, ...]]:
        """Return one record for each column, or in a Pipeline one of all."""
        return {f"moments {ROWS!r}": (statistics.n_columns,) if statistics.last_step is None else ()}

    def sums_of_rows(self, rows: SiteRows) -> SiteSums:
        """Return the moments of each column."""
        record = CentredMoments.of_rows(rows.dense, rows.weights, diagonal=not rows.products)
        return SiteSums({ROWS: record if rows.products else record.by_column()})

    def sums_of_fitted(self, model: Any, n_observations: float | None) -> SiteSums:
        """Return n_samples_seen_, mean_ and n var_ of each column."""
        d = int(model.n_features_in_)
        if model.mean_ is None:
            text = "with `with_mean=False` and `with_std=False` does not keep the means of its columns"
            remedy = "describe it where its data are: `cs.describe(model, data=X)`"
            raise InputError("a StandardScaler", text, remedy, "E-NEEDED")
        n = np.array(np.broadcast_to(np.asarray(model.n_samples_seen_, dtype=np.float64), d))
        mean = np.asarray(model.mean_, dtype=np.float64)
        variances = np.zeros(d) if model.var_ is None else np.asarray(model.var_, dtype=np.float64)
        mean, variances = (np.where(n > 0, values, 0.0) for values in (mean, variances))  # NaN of empty columns
        return SiteSums({ROWS: CentredMoments(n, n, np.zeros(d), mean[:, None], (n * variances)[:, None])})

    def fit_sums(self, model: Any, statistics: Statistics) -> None:
        """Set means, variances and scales of columns."""
        record = statistics.rows
        if not record.shape:  # as a step of a Pipeline: of all columns together
            record = whole_moments(statistics).by_column()
        set_scaler(model, record)


def set_scaler(model: Any, record: CentredMoments) -> None:
    """Set on a StandardScaler the moments of each column (d,)."""
    weight, mean = record.weight, record.mean[:, 0]
    variances: Array = record.scatter[:, 0] / np.where(weight > 0, weight, 1.0)
    counted = weight.astype(np.int64) if np.array_equal(weight, record.n) else weight
    model.n_samples_seen_ = counted[0] if np.all(weight == weight[0]) else counted
    has_mean = model.with_mean or model.with_std
    model.mean_ = mean.copy() if has_mean else None
    model.var_ = variances if model.with_std else None
    model.scale_ = None
    if model.with_std:
        # A column that rounding alone tells from a constant keeps its scale (Chan, Golub and LeVeque 1983).
        is_constant = variances <= weight * _EPS * variances + (weight * mean * _EPS) ** 2
        model.scale_ = np.where(is_constant, 1.0, np.sqrt(variances))


class ExtremesAdapter(RefittedAdapter):
    """What scalers by extremes have in common: the greatest value of a column is somebody's."""

    module: ClassVar[str] = "sklearn.preprocessing"
    follows_units: ClassVar[bool] = False
    is_idempotent: ClassVar[bool] = True

    def disclosure(self) -> Problem | None:
        """Say that extremes are single observations."""
        text = "is made of the least and the greatest value of every column, each of which is one person's"
        remedy = "scale by StandardScaler, whose moments add up; `min_count=0` sends them"
        return Problem(f"a {self.class_name}", text, remedy)

    def array_shapes(self, statistics: Statistics) -> dict[str, tuple[int, ...]]:
        """Return a count of rows, and extremes of each column."""
        d = np.zeros(statistics.n_columns)
        return {f"counts {ROWS!r}": (), **{f"maxima {name!r}": d.shape for name in self.extremes(d, d)}}

    def sums_of_rows(self, rows: SiteRows) -> SiteSums:
        """Return the extremes of each column."""
        X = rows.dense
        return SiteSums(counts={ROWS: rows.counts}, maxima=self.extremes(X.min(axis=0), X.max(axis=0)))

    def extremes(self, least: Array, greatest: Array) -> dict[str, Array]:
        """Return what of the extremes the class needs, as maxima."""
        return {"greatest": greatest, "minus_least": -least}

    def sums_of_fitted(self, model: Any, n_observations: float | None) -> SiteSums:
        """Return the extremes that the object keeps, with its count of rows."""
        return SiteSums(counts={ROWS: np.array(float(np.max(model.n_samples_seen_)))}, maxima=self.extremes_of(model))

    def column_moments(self, statistics: Statistics) -> ColumnMoments | None:
        """Return the greatest absolute values as deviations from zero, which another unit multiplies like any."""
        sizes = np.max(np.abs(list(statistics.maxima.values())), axis=0)
        return ColumnMoments(statistics.features.names, statistics.n_observations, np.zeros(len(sizes)), sizes)

    @abstractmethod
    def extremes_of(self, model: Any) -> dict[str, Array]:
        """Return the extremes that a fitted object keeps, as maxima."""


class MinMaxScalerAdapter(ExtremesAdapter):
    """Least and greatest values."""

    kind: ClassVar[str] = "sklearn.MinMaxScaler"
    compared: ClassVar[tuple[str, ...]] = ("data_min_", "data_max_")

    def extremes_of(self, model: Any) -> dict[str, Array]:
        """Return the extremes that the object keeps."""
        return self.extremes(np.asarray(model.data_min_), np.asarray(model.data_max_))

    def fit_sums(self, model: Any, statistics: Statistics) -> None:
        """Set extremes, ranges and the affine map."""
        least, greatest = -statistics.maxima["minus_least"], statistics.maxima["greatest"]
        low, high = model.feature_range
        model.n_samples_seen_ = int(statistics.n_observations)
        model.data_min_, model.data_max_, model.data_range_ = least, greatest.copy(), greatest - least
        ranges = np.where(model.data_range_ < 10 * _EPS, 1.0, model.data_range_)  # scikit-learn's rule for constants
        model.scale_ = (high - low) / ranges
        model.min_ = low - least * model.scale_


class MaxAbsScalerAdapter(ExtremesAdapter):
    """Greatest absolute values."""

    kind: ClassVar[str] = "sklearn.MaxAbsScaler"
    compared: ClassVar[tuple[str, ...]] = ("max_abs_",)

    def extremes(self, least: Array, greatest: Array) -> dict[str, Array]:
        """Return the greatest absolute values."""
        return {"max_abs": np.maximum(np.abs(least), np.abs(greatest))}

    def extremes_of(self, model: Any) -> dict[str, Array]:
        """Return the extremes that the object keeps."""
        return {"max_abs": np.array(model.max_abs_, np.float64)}

    def fit_sums(self, model: Any, statistics: Statistics) -> None:
        """Set extremes and scales."""
        model.max_abs_ = statistics.maxima["max_abs"].copy()
        model.n_samples_seen_ = int(statistics.n_observations)
        model.scale_ = np.where(model.max_abs_ < 10 * _EPS, 1.0, model.max_abs_)
