"""Results of a regression that was fused from results of statsmodels: coefficients with their covariance.

A results object of statsmodels holds the rows that it was fitted to, so none can be made of sums. This has what needs
no rows: ``params``, ``bse``, ``cov_params()``, ``tvalues``, ``pvalues``, ``conf_int()``, ``predict(exog)`` and
``summary()``.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtr, stdtrit

from consilience.catalogue import no_attribute
from consilience.checks import Array, Json
from consilience.errors import InputError, UnsupportedError

FAMILY_OPTIONS = {"NegativeBinomial": "alpha", "Tweedie": "var_power"}
"""The option of families that have one."""


def require_statsmodels() -> Any:
    """Return the package."""
    try:
        import statsmodels.api
    except ImportError as error:
        text = "is not installed"
        raise UnsupportedError("statsmodels", text, 'pip install "consilience[statsmodels]"', "E-EXTRA") from error
    return statsmodels.api


def make_family(parameters: Mapping[str, Json]) -> Any:
    """Return the family of a generalised linear model, with its link."""
    families = require_statsmodels().families
    link, name = getattr(families.links, str(parameters["link"]), None), str(parameters["family"])
    made = getattr(families, name, None)
    if not (isinstance(made, type) and issubclass(made, families.Family)) or not isinstance(link, type):
        raise InputError("family", f"statsmodels has no {name!r:.40} with the link {parameters['link']!r:.40}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of links that are not the customary ones of a family
        option, power = parameters.get("family_option"), parameters.get("link_power")
        options = {FAMILY_OPTIONS[name]: option} if option is not None and name in FAMILY_OPTIONS else {}
        return made(link=link() if power is None else link(power=power), **options)


@dataclass(frozen=True, eq=False)
class FusedResults:
    """Coefficients of a regression over all sites, with what does not need their rows.

    Parameters
    ----------
    kind : str
        The class of the model, such as ``statsmodels.GLM``.
    names : tuple of str
        Names of the columns, ``exog_names``.
    params : ndarray of shape (p,), or (p, C - 1) for MNLogit
        The coefficients.
    covariance : ndarray of shape (q, q)
        Their covariance; of MNLogit equation by equation, as statsmodels has it.
    scale : float
        Dispersion, which the covariance includes.
    nobs, df_resid : float
        Rows, and degrees of freedom of the residuals.
    parameters : mapping of str to JSON values
        Family, link and others.
    use_t : bool
        Whether intervals are those of Student's t.
    log_likelihood, r_squared : float, optional
        Of least squares, as `llf` and `rsquared`. Default: none, since they are no sums that sites sent.
    """

    kind: str
    names: tuple[str, ...]
    params: Array
    covariance: Array = field(repr=False)
    scale: float
    nobs: float
    df_resid: float
    parameters: Mapping[str, Any] = field(repr=False)
    use_t: bool = False
    log_likelihood: float | None = field(default=None, repr=False)
    r_squared: float | None = field(default=None, repr=False)

    def __getattr__(self, name: str) -> Any:
        """Say what it is, for what only rows could tell."""
        if name.startswith("_"):
            raise AttributeError(name)
        there = "what needs rows stays at the sites; there are params, bse, cov_params(), tvalues, pvalues, conf_int()"
        raise no_attribute(self, name, f"{there}, predict(exog), summary()")

    @property
    def estimator_kind(self) -> str:
        """The kind of estimator that it stands for."""
        return self.kind

    @property
    def llf(self) -> float:
        """The log-likelihood, of least squares only."""
        if self.log_likelihood is None:
            raise AttributeError("llf")  # `__getattr__` says why
        return self.log_likelihood

    @property
    def rsquared(self) -> float:
        """R^2, of least squares only."""
        if self.r_squared is None:
            raise AttributeError("rsquared")
        return self.r_squared

    @property
    def n_features_in_(self) -> int:
        """Number of columns."""
        return len(self.names)

    @property
    def coefficient_names(self) -> tuple[str, ...]:
        """A name for every entry of the covariance (q,)."""
        if self.params.ndim == 1:
            return self.names
        categories = self.parameters["categories"][1:]
        return tuple(f"{name} ({category})" for category in categories for name in self.names)

    @property
    def bse(self) -> Array:
        """Standard errors, in the shape of `params`."""
        return self._shaped(np.sqrt(np.diag(self.covariance)))

    @property
    def tvalues(self) -> Array:
        """Coefficients over their standard errors."""
        values: Array = self.params / self.bse
        return values

    @property
    def pvalues(self) -> Array:
        """Two-sided p-values, of Student's t where `use_t`, else of the normal distribution."""
        below = -np.abs(self.tvalues)
        tails: Array = stdtr(self.df_resid if self.use_t else np.inf, below)
        return 2.0 * tails

    def _shaped(self, values: Array) -> Array:
        return values if self.params.ndim == 1 else values.reshape(self.params.T.shape).T

    def cov_params(self) -> Array:
        """Return the covariance of the coefficients (q, q)."""
        return self.covariance

    def conf_int(self, alpha: float = 0.05) -> Array:
        """Return confidence intervals (q, 2) of the probability 1 - alpha, in the order of the covariance."""
        quantile = float(stdtrit(self.df_resid, 1 - alpha / 2)) if self.use_t else float(ndtri(1 - alpha / 2))
        flat = self.params if self.params.ndim == 1 else self.params.T.ravel()
        margin = quantile * np.sqrt(np.diag(self.covariance))
        return np.stack([flat - margin, flat + margin], axis=1)

    def predict(self, exog: Any) -> Array:
        """Return what statsmodels predicts for rows (n, p): means, probabilities (n, C), or of PHReg log hazard ratios.

        Raises
        ------
        InputError
            For another number of columns.
        """
        X = np.atleast_2d(np.asarray(exog, dtype=np.float64))
        if X.shape[1] != len(self.names):
            text = f"has {X.shape[1]} columns, expected {len(self.names)}: {', '.join(self.names[:8])}"
            raise InputError("exog", text, code="E-SHAPE")
        eta: Array = X @ self.params
        called = self.kind.rpartition(".")[2]
        if called == "MNLogit":
            eta = np.hstack([np.zeros((len(X), 1)), eta])
            probabilities: Array = np.exp(eta - np.logaddexp.reduce(eta, axis=1)[:, None])
            return probabilities
        if called == "GLM":
            return np.asarray(make_family(self.parameters).link.inverse(eta))
        if called == "Logit":
            return np.asarray(np.exp(-np.logaddexp(0.0, -eta)))
        return np.exp(eta) if called == "Poisson" else eta

    def summary(self, alpha: float = 0.05) -> str:
        """Return a table of coefficients, standard errors, tests and intervals as text."""
        sign = "t" if self.use_t else "z"
        head = ["", "coef", "std err", sign, f"P>|{sign}|", f"[{alpha / 2:g}", f"{1 - alpha / 2:g}]"]
        flat = [values if values.ndim == 1 else values.T.ravel() for values in (self.params, self.bse)]
        tests = [values if values.ndim == 1 else values.T.ravel() for values in (self.tvalues, self.pvalues)]
        lines = [head]
        for name, mean, error, t, p, (low, high) in zip(
            self.coefficient_names, *flat, *tests, self.conf_int(alpha), strict=True
        ):
            lines.append([name, f"{mean:.4g}", f"{error:.4g}", f"{t:.3f}", f"{p:.3f}", f"{low:.4g}", f"{high:.4g}"])
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        rows = [
            "  ".join(
                [
                    line[0].ljust(widths[0]),
                    *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
                ]
            )
            for line in lines
        ]
        called = self.kind.rpartition(".")[2] + (", stratified by site" if self.kind == "statsmodels.PHReg" else "")
        title = f"{called}, {self.nobs:,.0f} rows, {self.df_resid:g} degrees of freedom, scale {self.scale:.4g}"
        return "\n".join([title, *rows])
