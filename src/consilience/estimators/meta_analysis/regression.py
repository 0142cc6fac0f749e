"""Meta-regression: how an effect changes with what is known of the sites, such as their latitude or year.

The model is y_k ~ N(x_k^T beta, v_k + tau^2): y_k the estimate of site k, v_k its variance, x_k (q,) a one and the
site's moderators. With W = diag(1 / (v_k + tau^2)) and P = W - W X (X^T W X)^-1 X^T W,

    beta = (X^T W X)^-1 X^T W y,      tau^2 <- tau^2 + (y^T P P y - tr P) / tr(P P),

which is Fisher scoring of the restricted likelihood (Viechtbauer 2005). Intervals are of Knapp and Hartung (2003).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import chdtrc

from consilience.checks import Array
from consilience.drawing.display import Displayed, Tabular
from consilience.drawing.words import printable
from consilience.errors import InputError
from consilience.estimators.meta_analysis.between_sites import (
    Method,
    variance_between_sites,
    weighted_least_squares,
)
from consilience.estimators.meta_analysis.effects import random_effects
from consilience.estimators.meta_analysis.tables import COLUMNS
from consilience.files.tables import NamedTable, as_named_table

INTERCEPT = "intercept"
"""Name of the effect where every moderator is zero."""


@dataclass(frozen=True, eq=False, repr=False)
class MetaRegression(Displayed, Tabular):
    """An effect as a linear function of moderators of the sites.

    Parameters
    ----------
    sites, names : tuple of str
        Names of the J sites, and of the intercept and the moderators.
    coefficients : ndarray of shape (q,)
        Intercept and slopes.
    covariance : ndarray of shape (q, q)
        Their covariance, scaled as the intervals are.
    intervals : ndarray of shape (q, 2)
        Confidence intervals at `level`.
    tau2 : float
        Variance between sites that the moderators leave.
    explained : float
        Part of the variance between sites that the moderators explain, R^2; nan where there is none.
    residual_q, residual_p : float
        Cochran's test that the moderators leave nothing, on J - q degrees of freedom.
    moderators_q, moderators_p : float
        Wald's test that no moderator matters, on q - 1 degrees of freedom.
    level : float
        Probability of the intervals.
    """

    sites: tuple[str, ...]
    names: tuple[str, ...]
    coefficients: Array
    covariance: Array
    intervals: Array
    tau2: float
    explained: float
    residual_q: float
    residual_p: float
    moderators_q: float
    moderators_p: float
    level: float

    @property
    def standard_errors(self) -> Array:
        """Standard errors (q,)."""
        errors: Array = np.sqrt(np.diag(self.covariance))
        return errors

    def _headline(self) -> str:
        return f"{len(self.sites)} sites, {', '.join(map(printable, self.names[1:]))}, tau2 = {self.tau2:.4g}"

    def _facts(self) -> dict[str, object | None]:
        rows = zip(self.names, self.coefficients, self.intervals, strict=True)
        effects = {printable(name): f"{value:.4g} ({low:.4g} to {high:.4g})" for name, value, (low, high) in rows}
        return {"": self._in_words(), **effects}

    def to_columns(self) -> dict[str, list[Any]]:
        """Return a row for the intercept and for each moderator: coefficient, standard error and interval."""
        return {
            "name": list(self.names),
            "coefficient": self.coefficients.tolist(),
            "standard error": self.standard_errors.tolist(),
            "low": self.intervals[:, 0].tolist(),
            "high": self.intervals[:, 1].tolist(),
        }

    def summary(self) -> str:
        """Return what the moderators explain, and a line for each coefficient."""
        return str(self)

    def _in_words(self) -> str:
        part = "" if np.isnan(self.explained) else f", of which they explain {100 * self.explained:.0f} %"
        left = f"what they leave: Q = {self.residual_q:.4g}, p = {self.residual_p:.2g}"
        return f"moderators: Q = {self.moderators_q:.4g}, p = {self.moderators_p:.2g}{part}; {left}"


def regress(
    sites: Sequence[str],
    y: Array,
    v: Array,
    moderators: Any,
    interval: str,
    level: float,
    method: Method,
) -> MetaRegression:
    """Return the regression of effects (J,) with variances (J,) on moderators by site; see `MetaAnalysis.regress`."""
    names, columns = read_moderators(moderators, sites)
    X = np.column_stack([np.ones(len(sites)), columns])
    n_sites, q = X.shape
    if n_sites <= q:
        text = f"{q - 1} of {n_sites} sites, which leave nothing to tell how sites differ otherwise"
        raise InputError("moderators", text, "take fewer, or more sites", "E-FEW")
    scale = np.sqrt((X**2).mean(axis=0))
    if np.any(scale == 0.0) or np.linalg.matrix_rank(X / np.where(scale > 0, scale, 1.0)) < q:
        text = "determine one another, or do not vary between sites"
        raise InputError("moderators", text, "leave one out", "E-NUMBER")
    tau2, _ = variance_between_sites(y, v, method, X)
    beta, covariance = weighted_least_squares(X, y, 1.0 / (v + tau2))
    freedom = n_sites - q
    squares = float(np.sum((y - X @ beta) ** 2 / (v + tau2)))
    effects = random_effects(beta, covariance, squares, freedom, interval, level)
    without, _ = variance_between_sites(y, v, method)
    slopes = beta[1:]
    wald = float(slopes @ np.linalg.solve(effects.covariance[1:, 1:], slopes))
    fixed, _ = weighted_least_squares(X, y, 1.0 / v)
    left = float(np.sum((y - X @ fixed) ** 2 / v))
    return MetaRegression(
        tuple(sites),
        (INTERCEPT, *names),
        beta,
        effects.covariance,
        effects.intervals,
        tau2,
        max(0.0, 1.0 - tau2 / without) if without > 0 else float("nan"),
        left,
        float(chdtrc(freedom, left)),
        wald,
        float(chdtrc(q - 1, wald)),
        level,
    )


def read_moderators(moderators: Any, sites: Sequence[str]) -> tuple[tuple[str, ...], Array]:
    """Return names of moderators, and their values (J, q) by site in the order of `sites`.

    They are a mapping from sites to numbers by name, a mapping from names to numbers by site or in the order of the
    sites, or a table with a column of sites or with sites as its index. A pandas Series has its numbers by its index.
    """
    if (named := getattr(moderators, "name", None)) is not None and callable(getattr(moderators, "to_dict", None)):
        moderators = {str(named): moderators}  # a Series
    if not isinstance(moderators, Mapping) and (table := as_named_table(moderators)) is not None:
        moderators = _of_table(table, moderators)
    if not isinstance(moderators, Mapping) or not moderators:
        text = f"expected a mapping from names to numbers by site, or a table, found {type(moderators).__name__}"
        raise InputError("moderators", text, code="E-TYPE")
    if set(moderators) <= set(sites) and all(isinstance(one, Mapping) for one in moderators.values()):
        names = list(dict.fromkeys(name for of_site in moderators.values() for name in of_site))
        moderators = {name: {site: own.get(name) for site, own in moderators.items()} for name in names}
    columns = [_column(str(name), values, sites) for name, values in moderators.items()]
    return tuple(map(str, moderators)), np.column_stack(columns)


def _of_table(table: NamedTable, given: Any) -> dict[str, Any]:
    """Return the columns of a table by name and site; without a column of sites, as what was given has them."""
    place = next((number for number, name in enumerate(table.header) if name.lower() in COLUMNS["site"]), None)
    if place is None:
        if not _counts_rows(given):
            return {str(name): given[name] for name in given.columns}
        raise InputError("moderators", "is a table without a column site", "name each row's site", "E-NEEDED")
    rows = [str(cell).strip() for cell in np.asarray(table.take(place)).tolist()]
    return {
        name: dict(zip(rows, np.asarray(table.take(number)).tolist(), strict=True))
        for number, name in enumerate(table.header)
        if number != place
    }


def _counts_rows(table: Any) -> bool:
    """Return whether what may be of pandas has no index, or one that only counts its rows."""
    index = getattr(table, "index", None)
    return index is None or not hasattr(table, "to_dict") or type(index).__name__ == "RangeIndex"


def _column(name: str, values: Any, sites: Sequence[str]) -> Array:
    """Return one moderator (J,), or raise for sites without a number."""
    if not _counts_rows(values):
        values = {str(site): number for site, number in values.to_dict().items()}
    if not isinstance(values, Mapping):
        if np.shape(values) != (len(sites),):
            text = f"expected a number for each of {len(sites)} sites, found shape {np.shape(values)}"
            raise InputError(name, text, "give them by site", "E-SHAPE")
        values = dict(zip(sites, values, strict=True))
    try:
        numbers = np.array([np.nan if values.get(site) is None else float(values[site]) for site in sites])
    except (TypeError, ValueError):
        raise InputError(name, "has values that are no numbers", "code categories as 0 and 1", "E-TYPE") from None
    if lacking := [site for site, number in zip(sites, numbers, strict=True) if not np.isfinite(number)]:
        raise InputError(name, f"has no number for {', '.join(lacking[:8])}", "leave the site out", "E-NUMBER")
    return numbers
