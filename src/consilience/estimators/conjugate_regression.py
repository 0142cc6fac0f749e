"""Bayesian linear regression from sums: the matrix-normal Wishart posterior, its evidence and its predictive law.

Coefficients B (d, q) of d columns and q targets, with noise of the precision L (q, q):

    L ~ Wishart(Psi^-1, nu),    B | L ~ MN(M, V, L^-1),    y | x ~ N(B^T x, L^-1).

The posterior of rows X (n, d), Y (n, q) has

    V^-1 <- V^-1 + X^T X,    V^-1 M <- V^-1 M + X^T Y,    Psi + M^T V^-1 M <- Psi + M^T V^-1 M + Y^T Y,    nu <- nu + n,

so that these four add up over sites, and a product of J posteriors under one prior is their sum less J - 1 priors. With
the statistics T = (B L B^T, B L, L, log|L|) it is an exponential family of

    A = (d q / 2) log 2 pi - (q / 2) log|V^-1| - (nu / 2) log|Psi| + (nu q / 2) log 2 + log Gamma_q(nu / 2)
    grad A = (q V + M E M^T, M E, E, psi_q(nu / 2) + q log 2 - log|Psi|),    E = nu Psi^-1,

and the evidence of rows is A(posterior) - A(prior) - (n q / 2) log 2 pi. q = 1 is the Normal-inverse-gamma law with
a = nu / 2 and b = Psi / 2 (Gelman et al., "Bayesian data analysis", 3rd edition, section 14.2; Minka, 2000, "Bayesian
linear regression").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import digamma, multigammaln, stdtrit

from consilience.checks import Array, symmetric_part
from consilience.core.scores import LEVEL
from consilience.drawing.display import Displayed
from consilience.drawing.words import format_count
from consilience.errors import InputError
from consilience.estimators.inputs import read_sums
from consilience.estimators.statistics import Statistics
from consilience.families.centred_moments import CentredMoments

REGRESSIONS = (
    "sklearn.LinearRegression",
    "sklearn.Ridge",
    "sklearn.BayesianRidge",
    "sklearn.ARDRegression",
    "statsmodels.OLS",
    "statsmodels.WLS",
)
"""Estimators whose sums are those of such a regression."""


@dataclass(frozen=True, eq=False, repr=False)
class MatrixNormalWishart(Displayed):
    """The distribution of coefficients and noise precision of a Bayesian linear regression: a prior, or a posterior.

    Parameters
    ----------
    mean : ndarray of shape (d, q)
        M.
    precision : ndarray of shape (d, d)
        V^-1.
    scale : ndarray of shape (q, q)
        Psi, the inverse scale matrix of the Wishart law: a sum of squares of the noise.
    dof : float
        nu, above q - 1.

    Examples
    --------
    >>> prior = MatrixNormalWishart(np.zeros((2, 1)), np.eye(2), np.eye(1), 3.0)
    >>> prior.predictive([[1.0, 0.0]])[2]
    3.0
    """

    mean: Array
    precision: Array
    scale: Array
    dof: float

    def _headline(self) -> str:
        """Return how many coefficients it is a distribution of."""
        columns, outcomes = self.mean.shape
        return f"coefficients of {format_count(columns, 'column')} for {format_count(outcomes, 'outcome')}"

    def _facts(self) -> dict[str, object | None]:
        """Return the posterior means of the coefficients and of the noise."""
        return {"mean": np.array2string(self.mean, precision=4, threshold=20), "degrees of freedom": f"{self.dof:g}"}

    def __post_init__(self) -> None:
        mean = np.atleast_2d(np.asarray(self.mean, dtype=np.float64))
        d, q = mean.shape
        for name, size in (("precision", d), ("scale", q)):
            matrix = np.atleast_2d(np.asarray(getattr(self, name), dtype=np.float64))
            if matrix.shape != (size, size):
                text = f"has shape {matrix.shape}, expected {(size, size)} for a mean {mean.shape}"
                raise InputError(name, text, code="E-SHAPE")
            if not np.all(np.isfinite(matrix)) or np.linalg.eigvalsh(symmetric_part(matrix))[0] <= 0.0:
                raise InputError(name, "is not positive definite", code="E-NUMBER")
            object.__setattr__(self, name, symmetric_part(matrix))
        if not np.all(np.isfinite(mean)) or not self.dof > q - 1:
            text = f"is {self.dof:g}, expected above {q - 1} for {q} targets, and a finite mean"
            raise InputError("dof", text, code="E-NUMBER")
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "dof", float(self.dof))

    @property
    def covariance(self) -> Array:
        """V (d, d), the covariance of coefficients in units of the noise."""
        return np.asarray(np.linalg.inv(self.precision), dtype=np.float64)

    def additive(self) -> tuple[Array, Array, Array, float]:
        """Return what adds up: V^-1, V^-1 M, Psi + M^T V^-1 M, and nu."""
        cross = self.precision @ self.mean
        return self.precision, cross, self.scale + self.mean.T @ cross, self.dof

    @classmethod
    def of_additive(cls, precision: Array, cross: Array, square: Array, dof: float) -> MatrixNormalWishart:
        """Return the distribution with the natural parameters that `additive` gives.

        Raises
        ------
        InputError
            Where there is none: as of a product from which more priors were taken than went in.
        """
        if np.linalg.eigvalsh(symmetric_part(precision))[0] <= 0.0:
            text = "is not positive definite"
            raise InputError("precision", text, "state the prior that the posteriors have", "E-NUMBER")
        mean: Array = np.asarray(np.linalg.solve(precision, cross), dtype=np.float64)
        return cls(mean, precision, square - mean.T @ cross, dof)

    def log_normalizer(self) -> float:
        """Return A."""
        d, q = self.mean.shape
        half = 0.5 * self.dof
        determinants = q * np.linalg.slogdet(self.precision)[1] + self.dof * np.linalg.slogdet(self.scale)[1]
        constant = 0.5 * d * q * np.log(2.0 * np.pi) + half * q * np.log(2.0) + multigammaln(half, q)
        return float(constant - 0.5 * determinants)

    def mean_parameters(self) -> tuple[Array, Array, Array, float]:
        """Return the expectations of B L B^T (d, d), B L (d, q), L (q, q) and log|L|: the gradient of A."""
        q = self.mean.shape[1]
        noise: Array = np.asarray(self.dof * np.linalg.inv(self.scale), dtype=np.float64)
        log_noise = digamma(0.5 * (self.dof - np.arange(q))).sum() + q * np.log(2.0)
        square: Array = q * self.covariance + self.mean @ noise @ self.mean.T
        return square, self.mean @ noise, noise, float(log_noise - np.linalg.slogdet(self.scale)[1])

    def predictive(self, X: object) -> tuple[Array, Array, float]:
        """Return locations (n, q), scale matrices (n, q, q) and degrees of freedom of Student's t of targets."""
        rows = np.atleast_2d(np.asarray(X, dtype=np.float64))
        dof = self.dof - self.mean.shape[1] + 1.0
        widths = 1.0 + np.einsum("ni,ij,nj->n", rows, self.covariance, rows)
        return rows @ self.mean, widths[:, None, None] * (self.scale / dof), dof

    def intervals(self, level: float = LEVEL) -> Array:
        """Return intervals (d, q, 2) of the coefficients, each of Student's t."""
        dof = self.dof - self.mean.shape[1] + 1.0
        deviations = np.sqrt(np.outer(np.diag(self.covariance), np.diag(self.scale)) / dof)
        margin = float(stdtrit(dof, 0.5 + 0.5 * level)) * deviations
        return np.stack([self.mean - margin, self.mean + margin], axis=-1)

    def posterior(self, sums: Any) -> MatrixNormalWishart:
        """Return the posterior of coefficients and noise under this prior.

        Columns and targets are taken about their means, and the prior with them, so that columns far from zero lose no
        digits; the posterior is that of the columns as they are.

        Parameters
        ----------
        sums : EstimatorFusion, Statistics, fitted result or path
            A fusion of linear regressions, what one site sends, or a saved file of either. The prior has d
            coefficients, of which the last is the intercept's where a regression of scikit-learn has one.

        Raises
        ------
        InputError
            For other estimators, and a prior of other numbers of coefficients or targets.

        Examples
        --------
        >>> import consilience as cs
        >>> from sklearn.linear_model import LinearRegression
        >>> X, y = np.arange(6.0)[:, None], np.array([1.0, 3.1, 4.9, 7.0, 9.1, 10.9])
        >>> prior = cs.MatrixNormalWishart(np.zeros((2, 1)), 1e-6 * np.eye(2), [[1e-3]], 1.0)
        >>> prior.posterior(cs.describe(LinearRegression().fit(X, y), data=(X, y))).mean.ravel().round(1)
        array([2., 1.])
        """
        statistics = _regression_sums(sums)
        record, q = statistics.rows, statistics.n_targets
        p = record.n_columns - q
        has_intercept = _has_intercept(statistics)
        d = p + has_intercept
        if self.mean.shape != (d, q):
            last = ", the intercept last" if has_intercept else ""
            raise InputError("prior", f"has a mean of shape {self.mean.shape}, expected {(d, q)}{last}", code="E-SHAPE")
        products = record.scatter if has_intercept else record.raw_scatter()
        gram, cross, square = products[:p, :p], products[:p, p:], products[p:, p:]
        if not has_intercept:
            return self._updated(gram, cross, square, float(record.n))
        return self._about_means(record, gram, cross, square)

    def _about_means(self, record: CentredMoments, gram: Array, cross: Array, square: Array) -> MatrixNormalWishart:
        """Return a posterior with an intercept, of centred products of columns (p, p), cross (p, q), square (q, q)."""
        p, q = cross.shape
        d = p + 1
        # y - m_y = B^T (x - m_x) + (b + B^T m_x - m_y): the intercept of centred rows is a linear function of both.
        to_centred = np.eye(d)
        to_centred[p, :p] = record.mean[:p]
        back = np.eye(d)
        back[p, :p] = -record.mean[:p]
        shift = np.zeros((d, q))
        shift[p] = record.mean[p:]
        moved = MatrixNormalWishart(
            to_centred @ self.mean - shift, back.T @ self.precision @ back, self.scale, self.dof
        )
        whole = np.zeros((d, d))
        whole[:p, :p], whole[p, p] = gram, float(record.weight)
        centred = moved._updated(whole, np.vstack([cross, np.zeros((1, q))]), square, float(record.n))
        return MatrixNormalWishart(
            back @ (centred.mean + shift), to_centred.T @ centred.precision @ to_centred, centred.scale, centred.dof
        )

    def _updated(self, gram: Array, cross: Array, square: Array, n: float) -> MatrixNormalWishart:
        """Return the posterior of X^T X, X^T Y, Y^T Y and n rows."""
        precision, weighted, scale, dof = self.additive()
        return MatrixNormalWishart.of_additive(precision + gram, weighted + cross, scale + square, dof + n)

    def log_evidence(self, sums: Any) -> float:
        """Return the logarithm of the density of the targets under this prior, coefficients and noise integrated out.

        Of several priors, or penalties that stand for them, the one of greatest evidence is chosen without a held-out
        row.

        Parameters
        ----------
        sums : EstimatorFusion, Statistics, fitted result or path
            As of `posterior`.

        Raises
        ------
        InputError
            As `posterior`.
        """
        statistics = _regression_sums(sums)
        posterior = self.posterior(statistics)
        q, record = self.mean.shape[1], statistics.rows
        constant = 0.5 * float(record.n) * q * np.log(2.0 * np.pi) - 0.5 * q * float(record.log_weight)
        return float(posterior.log_normalizer() - self.log_normalizer() - constant)

    def product(self, posteriors: Sequence[MatrixNormalWishart]) -> MatrixNormalWishart:
        """Return the product of posteriors that sites made under this one prior, which is counted once.

        Parameters
        ----------
        posteriors : sequence of MatrixNormalWishart
            A posterior of each site.

        Raises
        ------
        InputError
            For none, for other shapes, and where the prior is not theirs, so that nothing would be left.
        """
        if not posteriors:
            raise InputError("posteriors", "are none")
        shapes = {one.mean.shape for one in (*posteriors, self)}
        if len(shapes) > 1:
            text = f"are of different shapes: {', '.join(map(str, sorted(shapes)))}"
            raise InputError("posteriors", text, code="E-SHAPE")
        parts, of_prior = [one.additive() for one in posteriors], self.additive()
        total = [sum(part[k] for part in parts) - (len(parts) - 1) * of_prior[k] for k in range(4)]
        return MatrixNormalWishart.of_additive(*total)  # type: ignore[arg-type]


def _regression_sums(sums: Any) -> Statistics:
    """Return the sums of a linear regression."""
    statistics, _ = read_sums(sums, "sums")
    if statistics.kind not in REGRESSIONS or statistics.last_step is not None:
        text = f"is no linear regression, of which there are {', '.join(REGRESSIONS)}"
        raise InputError(f"a {statistics.kind}", text, code="E-TYPE")
    return statistics


def _has_intercept(statistics: Statistics) -> bool:
    """Return whether a regression has an intercept in addition to its columns; in statsmodels it is a column."""
    return not statistics.kind.startswith("statsmodels.") and bool(statistics.parameters.get("fit_intercept", True))
