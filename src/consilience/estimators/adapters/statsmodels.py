"""Results of statsmodels: least squares by sums, and GLM, Logit, Poisson, MNLogit and PHReg by Laplace's approximation.

A fitted result says ``params`` and ``cov_params()``. Where the dispersion is estimated, these have the site's own; so
what is sent is the information at dispersion one, H = inv(cov / scale), with the sum of squared Pearson residuals and
its degrees of freedom, of which the fused model has one dispersion. Sandwich covariances are no information of rows,
and are refused: a meta-analysis takes them.

The sum of the partial likelihoods of sites is that of the Cox model stratified by site, so that is what PHReg gives.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from consilience.checks import Array, Json, Labels, symmetric_part
from consilience.core.features import Features
from consilience.errors import InputError, Problem, UnsupportedError
from consilience.estimators.adapters.base import EstimatorAdapter, Mark, SiteSums, joint_moments
from consilience.estimators.adapters.formula import read_design
from consilience.estimators.adapters.laplace import MAX_LOG_ODDS, MIN_INFORMATION, LaplaceAdapter, LaplaceProductAdapter
from consilience.estimators.adapters.likelihood import Likelihood, Multinomial
from consilience.estimators.adapters.linear_regression import solve_penalised
from consilience.estimators.design import Design
from consilience.estimators.fused_results import FAMILY_OPTIONS, FusedResults, make_family, require_statsmodels
from consilience.estimators.site_rows import Needs, SiteRows
from consilience.estimators.statistics import DEGREES, INFORMATION, PEARSON, PRIOR, ROWS, SHIFT, Statistics

FIXED_SCALE = ("Binomial", "Poisson", "NegativeBinomial")
"""Families whose dispersion is one unless it is asked for."""

_CONSTANT = 1e-14
"""Variance of a column, as a part of its squared mean, that is rounding: the column is the constant."""

_SPANS = 1e-10
"""Part of the rows that least squares of the constant on the columns may leave where they span it: rounding."""

_DEPENDENT = 1e-13
"""Least eigenvalue of the columns' correlations that rounding of sums over rows leaves of one that is zero, of which
three digits of the coefficients would be left."""

_SANDWICH = Problem(
    "cov_type",
    "is a sandwich covariance, which is no information of rows, so that its inverse does not add up",
    "fit with `cov_type='nonrobust'`, or take cs.meta_analysis, which pools such estimates",
)


_NO_LIKELIHOOD = (
    "whose estimate is not that of the likelihood of its rows, so that their sums give another one",
    "fit without regularisation and constraints, by `fit()`",
    "E-MODEL",
)


def _not_plain(model: Any) -> str | None:
    """Return the call by which a result is no fit of the likelihood alone; None of a plain fit."""
    classes = {type(model).__name__, type(getattr(model, "_results", None)).__name__}
    is_regularised = any(name.startswith(("Regularized", "L1")) for name in classes)
    if is_regularised or getattr(model, "regularized", False) is True:
        return "fit_regularized"
    return "fit_constrained" if getattr(model, "k_constr", 0) else None


def statsmodels_refusal(model: Any) -> Problem | None:
    """Return why an object of statsmodels that no adapter takes is refused; None of what is no model and no result."""
    inner = getattr(model, "model", None)
    if inner is not None and hasattr(model, "params"):
        called = f"a {type(inner).__name__} of statsmodels"
        if callable(getattr(model, "cov_params", None)):
            remedy = "take `cs.meta_analysis({site: result, ...})`, which pools its params by `cov_params()`"
        else:
            remedy = "take cs.meta_analysis of (estimate, covariance) by site, where it has these"
        return Problem(called, "has an estimate that is no function of sums over sites", remedy, "E-MODEL")
    if callable(getattr(model, "fit", None)) and hasattr(model, "exog_names"):
        text = "is not fitted yet"
        return Problem(f"a {type(model).__name__} of statsmodels", text, "give `model.fit()`", "E-UNFITTED")
    return None


class StatsmodelsAdapter(EstimatorAdapter):
    """What results of statsmodels have in common."""

    module: ClassVar[str] = "statsmodels.api"
    needs: ClassVar[Needs] = "targets"
    follows_units: ClassVar[bool] = False
    extra_arguments: ClassVar[tuple[str, ...]] = ()
    """Arguments of its models by row, besides columns and outcome."""

    def is_fitted(self, model: Any) -> bool:
        """Return that a result is that of a fit."""
        return hasattr(model, "params")

    def n_columns_of(self, model: Any) -> int:
        """Return the number of columns."""
        return len(_names(model))

    def features_of(self, model: Any) -> Features:
        """Return the names of the columns."""
        return Features(names=_names(model))

    def parameters_of(self, model: Any) -> dict[str, Json]:
        """Return what the coefficients are of, as JSON values."""
        return dict(model.parameters) if isinstance(model, FusedResults) else self.fitted_parameters(model)

    def fitted_parameters(self, model: Any) -> dict[str, Json]:
        """Return what the coefficients of a result are of; nothing here."""
        return {}

    def design_of(self, model: Any) -> Design:
        """Return outcome, factors and constants of a formula, and the extra arguments by row, such as an offset."""
        if isinstance(model, FusedResults):
            return Design()
        return replace(read_design(model.model), extra=self.extra_of(model.model))

    def extra_of(self, model: Any) -> dict[str, str | None]:
        """Return which of `extra_arguments` a model was made with, by the name of their column, None if not known."""
        given = [
            name
            for name in self.extra_arguments
            if getattr(model, f"_has_{name}", getattr(model, name, None) is not None)
        ]
        return {name: getattr(model, f"_{name}_name", None) for name in given}

    def require_plain(self, model: Any) -> None:
        """Raise where a result is one that was fused, is no plain fit, has no information, or did not converge."""
        if isinstance(model, FusedResults):
            raise InputError(f"this {self.class_name}", "was fused before", "give the fusion, or its saved file")
        if why := _not_plain(model):
            text, remedy, code = _NO_LIKELIHOOD
            raise InputError(f"this {self.class_name}", f"was fitted with {why}, {text}", remedy, code)
        of_phreg = getattr(model, "covariance_type", "naive")
        if getattr(model, "cov_type", "nonrobust") != "nonrobust" or of_phreg != "naive":
            raise InputError([_SANDWICH])
        retvals = getattr(model, "mle_retvals", None)
        if getattr(model, "converged", True) is False or (retvals and retvals.get("converged") is False):
            raise InputError(f"this {self.class_name}", "did not converge", "fit with a higher maxiter")


def _names(model: Any) -> tuple[str, ...]:
    return model.names if isinstance(model, FusedResults) else tuple(map(str, model.model.exog_names))


class LeastSquaresAdapter(StatsmodelsAdapter):
    """Ordinary and weighted least squares, exactly, with the rows that a result holds."""

    mark: ClassVar[Mark] = "exact"
    compared: ClassVar[tuple[str, ...]] = ("params",)

    def takes_weights(self, model: Any) -> bool:
        """Return whether it is weighted least squares."""
        return self.class_name == "WLS"

    def sums_of_rows(self, rows: SiteRows) -> SiteSums:
        """Return joint moments of columns and target."""
        return joint_moments(replace(rows, y=rows.one_target))

    def sums_of_fitted(self, model: Any, n_observations: float | None) -> SiteSums:
        """Return joint moments of the rows that a result holds."""
        self.require_plain(model)
        X, y = getattr(model.model, "exog", None), getattr(model.model, "endog", None)
        if X is None or y is None:
            text = "has no rows any more"
            remedy = "describe it with its data: `cs.describe(result, (X, y))`"
            raise InputError(f"this {self.class_name}", text, remedy, "E-SHAPE")
        weights = np.asarray(model.model.weights, dtype=np.float64) * np.ones(len(X))
        is_weighted = self.class_name == "WLS"
        return joint_moments(SiteRows(np.asarray(X), np.asarray(y), weights if is_weighted else None))

    def rebuild(self, statistics: Statistics) -> FusedResults:
        """Return coefficients, covariance, scale and likelihood, which are those of all rows."""
        record, d = statistics.rows, statistics.n_columns
        if statistics.n_targets != 1 or record.n_columns != d + 1:
            text = "has sums of another number of columns than it names"
            raise InputError(f"a {self.class_name}", text, code="E-SHAPE")
        n, w = float(record.n), float(record.weight)
        constant, others = self._constant_column(statistics)
        products = record.scatter if len(constant) else record.raw_scatter()
        among = products[np.ix_(others, others)]
        inverse = None if _are_dependent(among) else solve_penalised(among, np.eye(len(others)), 0.0)
        if inverse is None:
            text = "has columns that are linearly dependent"
            remedy = "leave out one of them, such as the intercept next to a basis of splines (- 1 in the formula)"
            raise InputError(f"the {self.class_name} of all sites", text, remedy, "E-NUMBER")
        params, covariance = np.zeros(d), np.zeros((d, d))
        params[others] = inverse @ products[others, d]
        covariance[np.ix_(others, others)] = inverse
        if len(constant):  # the columns about their means, and the constant that returns to these
            value, mean = record.mean[constant[0]], record.mean[others]
            params[constant[0]] = (record.mean[d] - mean @ params[others]) / value
            covariance[constant[0], others] = covariance[others, constant[0]] = -(inverse @ mean) / value
            covariance[constant[0], constant[0]] = (1.0 / w + mean @ inverse @ mean) / value**2
        is_centred = statistics.design.hasconst
        if is_centred is None:
            raw, sums = record.raw_scatter()[:d, :d], w * record.mean[:d]
            is_centred = len(constant) > 0 or _span_constant(raw, sums, w)
        residual = float(products[d, d] - params[others] @ products[others, d])
        scale = residual / (n - d)
        return FusedResults(
            self.kind,
            statistics.features.names or tuple(f"x{number}" for number in range(1, d + 1)),
            params,
            scale * symmetric_part(covariance),
            scale,
            n,
            n - d,
            dict(statistics.parameters),
            use_t=True,
            log_likelihood=float(-n / 2.0 * (np.log(2.0 * np.pi * residual / n) + 1.0) + 0.5 * record.log_weight),
            r_squared=float(1.0 - residual / (record.scatter if is_centred else record.raw_scatter())[d, d]),
        )

    def _constant_column(self, statistics: Statistics) -> tuple[Labels, Labels]:
        """Return the number of the column that is constant, if one is, and those of the others."""
        record, d = statistics.rows, statistics.n_columns
        mean = record.mean[:d]
        is_constant = np.diag(record.scatter)[:d] <= _CONSTANT * float(record.weight) * mean**2
        constant, others = np.flatnonzero(is_constant & (mean != 0.0)), np.flatnonzero(~is_constant)
        if np.any(is_constant & (mean == 0.0)) or len(constant) > 1 or float(record.n) <= d:
            text = f"has {d} columns that {float(record.n):g} rows do not determine"
            remedy = "leave out columns of zeros and constant columns other than the intercept, or bring more rows"
            raise InputError(f"the {self.class_name} of all sites", text, remedy, "E-NUMBER")
        return constant, others

    def design_of(self, model: Any) -> Design:
        """Return what a formula says, and whether the constant was said to be among the columns, or not."""
        design, columns = super().design_of(model), getattr(getattr(model, "model", None), "exog", None)
        if columns is None or not np.all(np.isfinite(columns)):
            return design
        X = np.asarray(columns, dtype=np.float64)
        has_constant = bool(np.any((np.ptp(X, axis=0) == 0.0) & (X[0] != 0.0)))
        spans = has_constant or _span_constant(X.T @ X, X.sum(axis=0), float(len(X)))
        is_said = bool(model.model.k_constant)
        return design if is_said == spans else replace(design, hasconst=is_said)


def _are_dependent(products: Array) -> bool:
    """Return whether products of columns (d, d), each in units of its own, are singular but for rounding."""
    scale = np.sqrt(np.diag(products))
    return bool(len(scale) and np.linalg.eigvalsh(products / np.outer(scale, scale))[0] < _DEPENDENT)


def _span_constant(products: Array, sums: Array, weight: float) -> bool:
    """Return whether columns add up to the constant, as all dummies of a factor do.

    They do where least squares of 1 on the columns leaves nothing, w - s^T (X^T W X)^-1 s, of products X^T W X (d, d),
    weighted sums s (d,) of columns, and the sum w of weights.
    """
    scale = np.sqrt(np.diag(products))
    scale = np.where(scale > 0.0, scale, 1.0)
    left = weight - (sums / scale) @ np.linalg.lstsq(products / np.outer(scale, scale), sums / scale, rcond=None)[0]
    return bool(left <= _SPANS * weight)


class OLSAdapter(LeastSquaresAdapter):
    """Ordinary least squares."""

    kind: ClassVar[str] = "statsmodels.OLS"


class WLSAdapter(LeastSquaresAdapter):
    """Weighted least squares."""

    kind: ClassVar[str] = "statsmodels.WLS"


class LikelihoodAdapter(StatsmodelsAdapter, LaplaceAdapter):
    """Models of a likelihood, by Laplace's approximation with a flat prior."""

    lacks: ClassVar[str | None] = None
    says_all: ClassVar[str | None] = " of statsmodels"
    sum_parameters: ClassVar[tuple[str, ...]] = ()
    estimates_scale: ClassVar[bool] = False

    def intercept_column(self, statistics: Statistics) -> int | None:
        """Return the number of the column that formulas and statsmodels call the constant."""
        names = statistics.features.names or ()
        return next((number for number, name in enumerate(names) if name in ("Intercept", "const")), None)

    def sums_of_fitted(self, model: Any, n_observations: float | None) -> SiteSums:
        """Return the expansion at the fit, at dispersion one."""
        self.require_plain(model)
        name = f"this {self.class_name}"
        try:
            covariance = np.asarray(model.cov_params(), dtype=np.float64) / self.scale_of(model)
            theta = np.asarray(model.params, dtype=np.float64)
            theta = theta if theta.ndim == 1 else theta.T.ravel()  # equation by equation, as the covariance
        except (AttributeError, TypeError, ValueError, np.linalg.LinAlgError) as error:
            text = f"has no covariance of its coefficients ({error})"
            raise InputError(name, text, "fit without regularisation", "E-NEEDED") from error
        q = len(theta)
        deviations = np.sqrt(np.maximum(np.diag(covariance), 0.0)) if covariance.shape == (q, q) else np.zeros(q)
        if not np.all(np.isfinite(covariance)) or not np.all(deviations > 0.0):
            text = "has a covariance of its coefficients that is none: rows do not determine them all"
            raise InputError(name, text, code="E-NUMBER")
        scaled = covariance / np.outer(deviations, deviations)
        if np.linalg.eigvalsh(scaled)[0] < q * np.finfo(np.float64).eps:
            text = "has a singular covariance: rows do not determine all coefficients"
            raise InputError(name, text, "fit fewer columns", "E-NUMBER")
        hessian = symmetric_part(np.linalg.inv(scaled) / np.outer(deviations, deviations))
        n = float(model.nobs) if hasattr(model, "nobs") else float(len(model.model.endog))
        counts = {
            ROWS: np.array(n),
            INFORMATION: hessian,
            SHIFT: hessian @ theta,
            PRIOR: np.zeros(q),
            PEARSON: np.array(float(model.pearson_chi2) if self.estimates_scale else 0.0),
            DEGREES: np.array(float(model.df_resid) if self.estimates_scale else n - q),
        }
        return SiteSums(counts=counts, approximations=self.weak_directions(model, hessian))

    def fitted_parameters(self, model: Any) -> dict[str, Json]:
        """Return the names of the extra arguments by row, such as an offset."""
        return {"extra": list(self.extra_of(model.model))}

    def weak_directions(self, model: Any, hessian: Array) -> tuple[str, ...]:
        """Return what makes the expansion of a site poor, a sentence each."""
        scale = np.sqrt(np.diag(hessian))
        if np.linalg.eigvalsh(hessian / np.outer(scale, scale))[0] >= MIN_INFORMATION:
            return ()
        return (
            "columns are nearly dependent at a site, or its classes separated, so that its rows tell little of some"
            " coefficients",
        )

    def scale_of(self, model: Any) -> float:
        """Return the dispersion that a result's covariance is multiplied by; 1 here."""
        return 1.0

    def array_shapes(self, statistics: Statistics) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the expansion."""
        return LaplaceProductAdapter.array_shapes(self, statistics) | {f"counts {n!r}": () for n in (PEARSON, DEGREES)}

    def natural(self, statistics: Statistics) -> tuple[Array, Array, Array, Array]:
        """Return sum I_j (q, q), the shift (q,), and priors (q,), which are flat."""
        counts = statistics.counts
        return counts[INFORMATION], counts[SHIFT], counts[PRIOR], np.zeros_like(counts[PRIOR])

    def dispersion(self, statistics: Statistics) -> float:
        """Return the one dispersion: as given, one, or the sum of squared residuals over its degrees of freedom."""
        scale = statistics.parameters.get("scale", 1.0)
        if scale != "estimated":
            return float(scale) if isinstance(scale, int | float) else 1.0
        degrees = float(statistics.counts[DEGREES])
        return float(statistics.counts[PEARSON]) / degrees if degrees > 0.0 else 1.0

    def coefficient_names(self, statistics: Statistics) -> tuple[str, ...]:
        """Return a name for every coefficient (q,)."""
        return self._results(statistics, np.zeros(self.n_free(statistics)), np.zeros((0, 0))).coefficient_names

    def expanded(self, statistics: Statistics, coefficients: Array, information: Array) -> Statistics:
        """Return statistics of some coefficients with the information there."""
        q = len(coefficients)
        counts = {
            INFORMATION: information,
            SHIFT: information @ coefficients,
            PRIOR: np.zeros(q),
            DEGREES: np.array(max(statistics.n_observations - q, 0.0)),
        }
        return replace(statistics, counts={**statistics.counts, **counts}, approximations=())

    def no_refinement(self, statistics: Statistics) -> str | None:
        """Return why there is no refinement: rows have offsets or the like, which an answer cannot state."""
        extra = statistics.parameters.get("extra")
        return (
            None
            if not extra
            else f"was fitted with {', '.join(map(str, extra))}, which answers to requests do not take"
        )

    def rebuild(self, statistics: Statistics) -> FusedResults:
        """Return coefficients with their covariance, at one dispersion."""
        theta = self.coefficients(statistics)
        information = self.natural(statistics)[0]
        deviations = 1.0 / np.sqrt(np.diag(information))
        inverse = np.linalg.inv(information * np.outer(deviations, deviations)) * np.outer(deviations, deviations)
        return self._results(statistics, theta, self.dispersion(statistics) * symmetric_part(inverse))

    def _results(self, statistics: Statistics, theta: Array, covariance: Array) -> FusedResults:
        d = statistics.n_columns
        names = statistics.features.names or tuple(f"x{number}" for number in range(1, d + 1))
        params = theta if len(theta) == d else theta.reshape(-1, d).T
        n, scale = statistics.n_observations, self.dispersion(statistics)
        is_estimated = statistics.parameters.get("scale") == "estimated"
        degrees = float(statistics.counts[DEGREES]) if is_estimated else n - len(theta)
        return FusedResults(self.kind, names, params, covariance, scale, n, degrees, dict(statistics.parameters))


class ModelLikelihoodAdapter(LikelihoodAdapter):
    """Models whose likelihood statsmodels itself gives at any coefficients and on any rows."""

    def likelihood(self, coefficients: Array, rows: SiteRows) -> Likelihood:
        """Return the log-likelihood of rows with its derivatives, as statsmodels has them."""
        return ModelLikelihood(self.model_of(rows), coefficients, rows)

    @abstractmethod
    def model_of(self, rows: SiteRows) -> Any:
        """Return a model of statsmodels for rows, not fitted."""


@dataclass(frozen=True, eq=False)
class ModelLikelihood(Likelihood):
    """The log-likelihood of rows at coefficients (q,) by a model of statsmodels, at dispersion one."""

    model: Any
    coefficients: Array
    rows: SiteRows
    options: ClassVar[Mapping[str, float]] = {}
    """Of the model's methods."""

    def value(self) -> float:
        """Return the log-likelihood."""
        return float(self._of_model("loglike"))

    def gradient(self) -> Array:
        """Return its gradient (q,)."""
        return np.asarray(self._of_model("score"), dtype=np.float64)

    def information(self) -> Array:
        """Return its negative Hessian (q, q)."""
        return symmetric_part(-np.asarray(self._of_model("hessian"), dtype=np.float64))

    def _of_model(self, name: str) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return getattr(self.model, name)(self.coefficients, **self.options)


class GLMLikelihood(ModelLikelihood):
    """The log-likelihood of rows by a generalised linear model."""

    options: ClassVar[Mapping[str, float]] = {"scale": 1.0}

    def pearson(self) -> float:
        """Return the sum of squared Pearson residuals."""
        family = make_family(self.rows.parameters)
        with np.errstate(all="ignore"):
            mu = np.asarray(family.link.inverse(self.rows.X @ self.coefficients))
            squares = (self.rows.y - mu) ** 2 / family.variance(mu)
        return float(squares.sum() if self.rows.weights is None else self.rows.weights @ squares)


class GLMAdapter(ModelLikelihoodAdapter):
    """Generalised linear models of any family and link."""

    kind: ClassVar[str] = "statsmodels.GLM"
    extra_arguments: ClassVar[tuple[str, ...]] = ("offset", "exposure", "freq_weights", "var_weights")
    sum_parameters: ClassVar[tuple[str, ...]] = ("family", "family_option", "link", "link_power", "scale")
    estimates_scale: ClassVar[bool] = True

    def fitted_parameters(self, model: Any) -> dict[str, Json]:
        """Return family, link and how the dispersion is known."""
        family, scaletype = model.model.family, getattr(model.model, "scaletype", None)
        name, link = type(family).__name__, family.link
        _require_known_link(link)
        scale: Any = "estimated"
        if isinstance(scaletype, int | float):
            scale = float(scaletype)
        elif scaletype is None and name in FIXED_SCALE:
            scale = 1.0
        elif scaletype == "dev":
            raise UnsupportedError("scale", "is of the deviance, which does not add up", "fit with `scale='X2'`")
        extra = [name for name in self.extra_of(model.model) if not name.endswith("weights")]  # which refinement takes
        if np.ndim(getattr(model.model, "n_trials", 1)) and np.any(np.asarray(model.model.n_trials) != 1):
            extra.append("numbers of trials")
        return {
            "family": name,
            "family_option": float(getattr(family, FAMILY_OPTIONS[name])) if name in FAMILY_OPTIONS else None,
            "link": type(link).__name__,
            "link_power": float(link.power) if type(link).__name__ == "Power" else None,
            "scale": scale,
            "extra": extra,
        }

    def scale_of(self, model: Any) -> float:
        """Return the site's dispersion."""
        return float(model.scale)

    def likelihood(self, coefficients: Array, rows: SiteRows) -> Likelihood:
        """Return the log-likelihood of rows with its derivatives, as statsmodels has them."""
        return GLMLikelihood(self.model_of(rows), coefficients, rows)

    def model_of(self, rows: SiteRows) -> Any:
        """Return a GLM of rows."""
        sm = require_statsmodels()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return sm.GLM(rows.y, rows.X, family=make_family(rows.parameters), freq_weights=rows.weights)

    def is_concave(self, parameters: Mapping[str, Json]) -> bool:
        """Return whether the information is positive semidefinite anywhere: of canonical links and a few others."""
        return (parameters.get("family"), parameters.get("link")) in _CONCAVE

    def weak_directions(self, model: Any, hessian: Array) -> tuple[str, ...]:
        """Return what makes the expansion of a site poor."""
        return _separated(model, hessian, type(model.model.family).__name__ == "Binomial") or super().weak_directions(
            model, hessian
        )


def _require_known_link(link: Any) -> None:
    """Raise for a link of the caller's own, or one whose options are not its defaults, which a name does not say."""
    name = type(link).__name__
    known = getattr(require_statsmodels().families.links, name, None)
    if known is type(link) and (name == "Power" or _simple_options(link) == _simple_options(known())):
        return
    text = f"is a {name} with options of its own, which its name does not tell"
    remedy = "fit with a link of statsmodels, or take cs.meta_analysis, which pools such estimates"
    raise UnsupportedError("link", text, remedy)


def _simple_options(link: Any) -> dict[str, Json]:
    return {name: value for name, value in vars(link).items() if isinstance(value, int | float | str)} | {
        name: getattr(value, "name", str(type(value))) for name, value in vars(link).items() if name == "dbn"
    }


_CONCAVE = {
    ("Binomial", "Logit"),
    ("Binomial", "Probit"),
    ("Poisson", "Log"),
    ("Gaussian", "Identity"),
    ("Gamma", "Log"),
}
"""Families and links of a log-likelihood that is concave for all rows."""


def _separated(model: Any, hessian: Array, is_binomial: bool) -> tuple[str, ...]:
    """Return that a fit separates classes, by the log odds of the rows that a result holds."""
    X, y = getattr(model.model, "exog", None), getattr(model.model, "endog", None)
    if not is_binomial or X is None or y is None:
        return ()
    log_odds = (2.0 * np.asarray(y) - 1.0) * (np.asarray(X) @ np.asarray(model.params))
    if log_odds.ndim != 1 or not (log_odds.min() > 0.0 and log_odds.max() > MAX_LOG_ODDS):
        return ()
    return ("classes are separated at a site, so that its rows tell little of the coefficients",)


class LogitAdapter(ModelLikelihoodAdapter):
    """Logistic regression of 0 and 1."""

    kind: ClassVar[str] = "statsmodels.Logit"
    extra_arguments: ClassVar[tuple[str, ...]] = ("offset",)

    def model_of(self, rows: SiteRows) -> Any:
        """Return a Logit of rows."""
        _refuse_weights(rows, self.class_name)
        return require_statsmodels().Logit(rows.y, rows.X)

    def weak_directions(self, model: Any, hessian: Array) -> tuple[str, ...]:
        """Return what makes the expansion of a site poor."""
        return _separated(model, hessian, True) or super().weak_directions(model, hessian)


class DiscretePoissonAdapter(ModelLikelihoodAdapter):
    """Poisson regression of counts."""

    kind: ClassVar[str] = "statsmodels.Poisson"
    extra_arguments: ClassVar[tuple[str, ...]] = ("offset", "exposure")

    def model_of(self, rows: SiteRows) -> Any:
        """Return a Poisson regression of rows."""
        _refuse_weights(rows, self.class_name)
        return require_statsmodels().Poisson(rows.y, rows.X)


class MNLogitAdapter(LikelihoodAdapter):
    """Multinomial logistic regression; coefficients are those of all categories but the first, which sites share.

    Its likelihood is our own: a site may lack a category, which statsmodels does not take.
    """

    kind: ClassVar[str] = "statsmodels.MNLogit"
    extra_arguments: ClassVar[tuple[str, ...]] = ("offset",)
    has_score: ClassVar[bool] = False
    sum_parameters: ClassVar[tuple[str, ...]] = ("categories",)

    def fitted_parameters(self, model: Any) -> dict[str, Json]:
        """Return the categories, the first of which is the reference."""
        names = model.model._ynames_map  # of codes 0, 1, ...
        return {"categories": [str(names[code]) for code in sorted(names)], **super().fitted_parameters(model)}

    def n_free(self, statistics: Statistics) -> int:
        """Return the number of coefficients of all equations."""
        categories = statistics.parameters.get("categories")
        if not isinstance(categories, list) or len(categories) < 2:
            raise InputError("categories", "are those of a MNLogit, two or more, found none", code="E-NEEDED")
        return statistics.n_columns * (len(categories) - 1)

    def likelihood(self, coefficients: Array, rows: SiteRows) -> Multinomial:
        """Return the log-likelihood of rows with its derivatives."""
        categories = rows.parameters["categories"]
        try:
            values = [float(name) for name in categories]
        except ValueError:
            values = list(map(float, range(len(categories))))
        code_of = {value: code for code, value in enumerate(values)}
        if odd := [value for value in np.unique(rows.y).tolist() if value not in code_of]:
            raise InputError("y", f"has the category {odd[0]:g}, expected {', '.join(map(str, categories[:8]))}")
        codes = np.array([code_of[value] for value in rows.y.tolist()], dtype=np.int64)
        theta = np.vstack([np.zeros(rows.X.shape[1]), coefficients.reshape(-1, rows.X.shape[1])])
        return Multinomial(rows.X, codes, rows.weight_of_each, theta, 1)


class PHRegAdapter(ModelLikelihoodAdapter):
    """Cox regression; what comes out is the one stratified by site."""

    kind: ClassVar[str] = "statsmodels.PHReg"
    extra_arguments: ClassVar[tuple[str, ...]] = ("entry", "offset", "strata")
    has_score: ClassVar[bool] = False
    sum_parameters: ClassVar[tuple[str, ...]] = ("ties",)

    def fitted_parameters(self, model: Any) -> dict[str, Json]:
        """Return how ties are treated."""
        return {"ties": str(model.model.ties), **super().fitted_parameters(model)}

    def described(self, statistics: Statistics) -> str:
        """Return what a fit on all rows is called."""
        return "PHReg, stratified by site, that fit gives on"

    def model_of(self, rows: SiteRows) -> Any:
        """Return a Cox model of rows, whose y has the time and the status."""
        _refuse_weights(rows, self.class_name)
        require_statsmodels()
        from statsmodels.duration.hazard_regression import PHReg

        if rows.y.ndim != 2 or rows.y.shape[1] != 2:
            raise InputError("y", f"has shape {rows.y.shape}, expected two columns: time and status", code="E-SHAPE")
        return PHReg(rows.y[:, 0], rows.X, status=rows.y[:, 1], ties=str(rows.parameters["ties"]))


def _refuse_weights(rows: SiteRows, name: str) -> None:
    if rows.weights is not None:
        raise InputError("sample_weight", f"a {name} of statsmodels takes none", "answer with (X, y)")
