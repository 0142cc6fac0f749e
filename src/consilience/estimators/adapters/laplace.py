"""Generalised linear models by Laplace's approximation: logistic, Poisson, gamma and Tweedie regression.

Site j sends the quadratic expansion of its log posterior at its own fit theta_j: the information I_j of its rows (the
negative Hessian of their log-likelihood), its prior precision P_j, and (I_j + P_j) theta_j. All of them add up over
sites, and with the prior precision P of the fused model

    Lam = sum_j I_j + P,        theta = Lam^-1 sum_j (I_j + P_j) theta_j,

which is the product of the sites' normal posteriors with their priors divided out and one put back. It is near the fit
on all rows, and is that fit only where log-likelihoods are quadratic.

Logistic regression of C classes is kept with coefficients (C, p) of all classes, p columns and the intercept last;
those of two classes are -beta/2 and beta/2. The information is singular along shifts that classes share, which the sum
of coefficients over classes, zero, settles. A site that lacks a class has a flat factor there.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from consilience.checks import Array, Json, symmetric_part
from consilience.core.agreement import ColumnMoments
from consilience.errors import InputError, Problem
from consilience.estimators.adapters.base import EstimatorAdapter, Mark, RefittedAdapter, SiteSums, new_estimator
from consilience.estimators.adapters.likelihood import Likelihood, Multinomial, Tweedie
from consilience.estimators.hyper_parameters import decode
from consilience.estimators.site_rows import Needs, SiteRows
from consilience.estimators.statistics import INFORMATION, PEARSON, PRIOR, ROWS, SHIFT, WEIGHT, Statistics

MAX_LOG_ODDS = 15.0
"""Largest log odds above which a fit that has every row on its side is said to separate classes: probabilities of 3e-7.
Without the second condition one outlier among 114 rows was enough. Chosen by hand."""

MIN_INFORMATION = 1e-6
"""Least eigenvalue of H, in units of its diagonal, below which a site is said to know next to nothing of a direction.
Chosen by hand."""

MAX_NEWTON_STEP = 0.5
"""Newton step from a fit, in standard errors, above which it is not the fit of these rows. Solvers at their default
tolerance end within 0.1; weights that were forgotten move by 1 and more. Chosen by hand between them."""


OPTIMUM_TOLERANCE, OPTIMUM_ITERATIONS = 1e-8, 10_000
"""Tolerance and iterations of the optimum of a loss, far beyond those of descent."""


class LaplaceProductAdapter(EstimatorAdapter):
    """A model whose sites send normal approximations of their posteriors, of which the fused one is the product."""

    mark: ClassVar[Mark] = "approximate"
    unrefined: ClassVar[str | None] = None
    """Why no refinement can be asked of sites, of any such model; None where one can."""
    has_prior_share: ClassVar[bool] = True
    """Whether it is said what part of the precision is divided out with sites' priors, where that is most."""

    @abstractmethod
    def natural(self, statistics: Statistics) -> tuple[Array, Array, Array, Array]:
        """Return sum I_j (q, q), sum (I_j + P_j) theta_j (q,), sum P_j (q,) and P (q,) of the q free coefficients.

        The second is less sum P_j mu_j where priors have means mu_j.
        """

    def n_free(self, statistics: Statistics) -> int:
        """Return the number q of free coefficients; that of columns here."""
        return statistics.n_columns

    def array_shapes(self, statistics: Statistics) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the natural parameters."""
        q = self.n_free(statistics)
        shapes: dict[str, tuple[int, ...]] = {ROWS: (), INFORMATION: (q, q), SHIFT: (q,), PRIOR: (q,)}
        return {f"counts {name!r}": shape for name, shape in shapes.items()}

    def prior_shift(self, statistics: Statistics) -> Array:
        """Return P mu (q,) of the fused model's prior; zero here."""
        return np.zeros_like(self.natural(statistics)[1])

    def determined(self, hessian: Array, statistics: Statistics) -> Array:
        """Return a Hessian (q, q) with what directions that mean nothing need to be solved to zero; itself here."""
        return hessian

    def dispersion(self, statistics: Statistics) -> float:
        """Return what all covariances are multiplied by; 1 here."""
        return 1.0

    def described(self, statistics: Statistics) -> str:
        """Return what a fit on all rows is called in a verdict, before these rows are named."""
        return f"{self.class_name} that fit gives on"

    def coefficient_names(self, statistics: Statistics) -> tuple[str, ...]:
        """Return the names of columns and intercept, one for each coefficient (p,) of a class or an output."""
        d = statistics.n_columns
        names = statistics.features.names or tuple(f"column {number}" for number in range(d))
        return (*names, *["intercept"] * (statistics.counts[SHIFT].shape[-1] - d))

    def no_refinement(self, statistics: Statistics) -> str | None:
        """Return why no refinement can be asked of sites; None where one can."""
        return self.unrefined

    def coefficients(self, statistics: Statistics) -> Array:
        """Return the free coefficients (q,) of the fused model, (sum I_j + P)^-1 (sum (I_j + P_j) theta_j + P mu)."""
        information, vector, _, prior = self.natural(statistics)
        hessian = self.determined(information + np.diag(prior), statistics)
        return solve_positive(hessian, vector + self.prior_shift(statistics), f"the {self.class_name} of all sites")


class LaplaceAdapter(LaplaceProductAdapter):
    """A generalised linear model with a normal prior on its coefficients and none on its intercept."""

    def is_concave(self, parameters: Mapping[str, Json]) -> bool:
        """Return whether the information is positive semidefinite at any coefficients, and not at the fit alone."""
        return True

    @abstractmethod
    def likelihood(self, coefficients: Array, rows: SiteRows) -> Likelihood:
        """Return the log-likelihood of rows with its derivatives at free coefficients (q,), as a refinement asks."""

    @abstractmethod
    def expanded(self, statistics: Statistics, coefficients: Array, information: Array) -> Statistics:
        """Return statistics whose fused model has some coefficients (q,), with the information (q, q) there.

        Its counts of rows, weights and residuals stay; its priors become the one prior of the fused model.
        """

    module: ClassVar[str] = "sklearn.linear_model"
    lacks: ClassVar[str | None] = "the information of its rows"
    sum_parameters: ClassVar[tuple[str, ...]] = ("fit_intercept",)
    follows_units: ClassVar[bool] = False

    def intercept_column(self, statistics: Statistics) -> int | None:
        """Return the number of the intercept's column; None of a model without one."""
        return statistics.n_columns if statistics.parameters.get("fit_intercept", True) else None

    def column_moments(self, statistics: Statistics) -> ColumnMoments | None:
        """Return means and deviations of the columns, rows weighted as their information weighs them.

        With I of the columns x and the intercept c: I_cx / I_cc is the mean, I_xx / I_cc that of the squares.
        """
        c, d, blocks = self.intercept_column(statistics), statistics.n_columns, statistics.counts[INFORMATION]
        p = d if c is None else max(d, c + 1)
        n_blocks, rest = divmod(int(np.sqrt(blocks.size)), p)
        if c is None or rest or blocks.size != (n_blocks * p) ** 2:
            return None
        # Of all classes or equations together.
        information = np.einsum("kikj->ij", blocks.reshape(n_blocks, p, n_blocks, p))  # (p, p)
        if not information[c, c] > 0.0:
            return None
        columns = [number for number in range(d) if number != c]
        means = information[c, columns] / information[c, c]
        variances = np.diag(information)[columns] / information[c, c] - means**2
        names = statistics.features.names or tuple(f"column {number}" for number in range(d))
        deviations = np.sqrt(np.maximum(variances, 0.0))
        return ColumnMoments(tuple(names[number] for number in columns), statistics.n_observations, means, deviations)

    def sums_of_rows(self, rows: SiteRows) -> SiteSums:
        """Return the expansion at the fit of these rows."""
        model = new_estimator(self.module, self.class_name, rows.parameters)
        model.fit(rows.X, rows.y, sample_weight=rows.weights)
        return self.sums_of_model(model, rows)

    def array_shapes(self, statistics: Statistics) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the expansion."""
        p = statistics.n_columns + bool(statistics.parameters.get("fit_intercept", True))
        c = () if statistics.classes is None else (len(statistics.classes),)
        shapes = {ROWS: c, INFORMATION: (*c, p, *c, p), SHIFT: (*c, p), PRIOR: (*c, p)}
        if statistics.classes is None:
            shapes |= {PEARSON: (), WEIGHT: ()}
        return {f"counts {name!r}": shape for name, shape in shapes.items()}


def number(parameters: Mapping[str, Json], name: str) -> float:
    """Return a hyper-parameter that is a number, not negative."""
    value = decode(parameters.get(name))
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0.0:
        raise InputError(name, f"expected a number that is not negative, found {value!r:.40}", code="E-NUMBER")
    return float(value)


def with_intercept(rows: SiteRows) -> Array:
    """Return rows (n, p) with a last column of ones where the model has an intercept."""
    return np.hstack([rows.dense, np.ones((rows.n, 1))]) if rows.parameters.get("fit_intercept", True) else rows.dense


def prior_precision(p: int, precision: float, parameters: Mapping[str, Json]) -> Array:
    """Return the prior precision of p coefficients, of which the intercept, the last, has none."""
    diagonal = np.full(p, precision)
    if parameters.get("fit_intercept", True):
        diagonal[-1] = 0.0
    return diagonal


def solve_positive(matrix: Array, vector: Array, name: str) -> Array:
    """Return the solution of a positive definite system (p, p), scaled to a unit diagonal first."""
    is_positive = bool(np.all(np.diag(matrix) > 0.0))
    scale = np.sqrt(np.where(np.diag(matrix) > 0.0, np.diag(matrix), 1.0))
    scaled = symmetric_part(matrix / scale / scale[:, None])
    if not is_positive or np.linalg.eigvalsh(scaled)[0] < len(scaled) * np.finfo(np.float64).eps:
        text = "has coefficients that its rows do not determine: its information is singular"
        raise InputError(name, text, "fit with a penalty, fewer columns, or more rows", "E-NUMBER")
    solution: Array = np.linalg.solve(scaled, vector / scale) / scale
    return solution


def checked_expansion(name: str, hessian: Array, gradient: Array, *, is_separated: bool) -> tuple[str, ...]:
    """Return what makes the expansion of a site poor, a sentence each.

    Negative Hessian (p, p) and gradient (p,) are those of the log posterior at the fit, which must be near its mode;
    `is_separated` says whether the fit separates classes.
    """
    step = solve_positive(hessian, gradient, name)
    distance = float(np.max(np.abs(step) / np.sqrt(np.diag(np.linalg.inv(hessian))), initial=0.0))
    if not distance <= MAX_NEWTON_STEP:
        text = (
            f"is {distance:.2g} standard errors from the fit of these data: it was fitted to other rows, with weights,"
            " or stopped before its solver converged"
        )
        remedy = "give data and sample_weight as they were in fit; raise max_iter, or scale the columns"
        raise InputError(name, text, remedy, "E-MISMATCH")
    scale = np.sqrt(np.diag(hessian))
    lowest = np.linalg.eigvalsh(hessian / np.outer(scale, scale))[0]
    if is_separated or lowest < MIN_INFORMATION:
        return (
            "classes are separated or columns nearly dependent at a site, so that its rows tell little of some"
            " coefficients, for which a weak penalty there helps",
        )
    return ()


class LogisticRegressionAdapter(LaplaceAdapter, RefittedAdapter):
    """Logistic regression with an l2 penalty or none, of two classes or more; prior precision 1 / C."""

    kind: ClassVar[str] = "sklearn.LogisticRegression"
    needs: ClassVar[Needs] = "classes"

    def refusal(self, parameters: Mapping[str, Json]) -> Problem | None:
        """Refuse penalties that are no normal prior, and objectives that are no likelihood of the rows."""
        if parameters.get("penalty") in ("l1", "elasticnet") or parameters.get("l1_ratio"):
            return Problem("penalty", "is no normal prior, so that no Laplace approximation adds up", "fit with l2")
        if parameters.get("solver") == "liblinear":
            return Problem("solver", "liblinear penalises the intercept", "fit with lbfgs")
        if parameters.get("multi_class") == "ovr":
            return Problem("multi_class", "ovr is one model for each class", "fit with multinomial")
        if parameters.get("class_weight") is not None:
            return Problem("class_weight", "weighs rows otherwise at every site", "fit without, or with sample_weight")
        return None

    def precision(self, parameters: Mapping[str, Json], n_rows: float) -> float:
        """Return 1 / C, 0 without a penalty, whatever the number of rows."""
        del n_rows
        if parameters.get("penalty", "l2") is None:
            return 0.0
        inverse = number(parameters, "C")
        if inverse == 0.0:
            raise InputError("C", "is 0, expected a positive number", code="E-NUMBER")
        return 1.0 / inverse

    def sums_of_model(self, model: Any, rows: SiteRows) -> SiteSums:
        """Return the expansion at a fitted model."""
        name, parameters, n_classes = f"this {self.class_name}", rows.parameters, rows.n_classes
        theta = np.asarray(model.coef_, dtype=np.float64)
        if parameters.get("fit_intercept", True):
            theta = np.hstack([theta, np.asarray(model.intercept_, dtype=np.float64)[:, None]])
        if theta.shape[0] != (1 if n_classes == 2 else n_classes):
            raise InputError(name, f"has coefficients of shape {theta.shape} for {n_classes} classes", code="E-SHAPE")
        law = self.likelihood(theta, rows)
        p, information = theta.shape[1], law.information_by_class()
        precision = self.precision(parameters, float(rows.weight_of_each.sum()))
        prior = np.tile(prior_precision(p, precision, parameters), (n_classes, 1))
        hessian, gradient, penalty = _free(information, law.gradient_by_class(), prior)
        mode = law.theta[1] - law.theta[0] if n_classes == 2 else theta.ravel()
        eta, own_class = law.log_odds, (np.arange(rows.n), rows.numbers)
        own = eta[own_class].copy()  # log odds of each row's class against the best of the others
        eta[own_class] = -np.inf
        log_odds = own - eta.max(axis=1)
        is_separated = bool(log_odds.min() > 0.0 and log_odds.max() > MAX_LOG_ODDS)
        text = checked_expansion(
            name, _settled(hessian, n_classes, p), gradient - penalty * mode, is_separated=is_separated
        )
        shift = (hessian @ mode).reshape(-1, p)
        counts = {
            ROWS: rows.counts,
            INFORMATION: information,
            SHIFT: np.vstack([-shift, shift]) if n_classes == 2 else shift,
            PRIOR: prior,
        }
        return SiteSums(counts=counts, approximations=text)

    def natural(self, statistics: Statistics) -> tuple[Array, Array, Array, Array]:
        """Return sum I_j (q, q), the shift (q,), sum P_j (q,) and P (q,) of the free coefficients, q = p or C p."""
        information, shift = statistics.counts[INFORMATION], statistics.counts[SHIFT]
        n_classes, p = shift.shape
        precision = self.precision(statistics.parameters, statistics.n_observations)
        target = prior_precision(p, precision, statistics.parameters)
        hessian, vector, _ = _free(information, shift, np.zeros_like(shift))
        summed = statistics.counts[PRIOR][1] if n_classes == 2 else statistics.counts[PRIOR].ravel()
        return hessian, vector, summed, target if n_classes == 2 else np.tile(target, n_classes)

    def determined(self, hessian: Array, statistics: Statistics) -> Array:
        """Return a Hessian (q, q) in which shifts that classes share are determined."""
        return _settled(hessian, *statistics.counts[SHIFT].shape)

    def likelihood(self, coefficients: Array, rows: SiteRows) -> Multinomial:
        """Return the log-likelihood of rows with its derivatives."""
        A = with_intercept(rows)
        theta = coefficients.reshape(-1, A.shape[1])
        if rows.n_classes == 2:
            theta = np.vstack([-theta / 2.0, theta / 2.0])  # (C, p)
        return Multinomial(A, rows.numbers, rows.weight_of_each, theta, 1 if rows.n_classes == 2 else 0)

    def expanded(self, statistics: Statistics, coefficients: Array, information: Array) -> Statistics:
        """Return statistics of some coefficients with the information there."""
        n_classes, p = statistics.counts[SHIFT].shape
        precision = self.precision(statistics.parameters, statistics.n_observations)
        prior = prior_precision(p, precision, statistics.parameters)
        shift = (information @ coefficients).reshape(-1, p) + prior * coefficients.reshape(-1, p)
        if n_classes == 2:
            information = np.kron(np.array([[1.0, -1.0], [-1.0, 1.0]]), information)
            shift = np.vstack([-shift, shift])
        counts = {
            INFORMATION: information.reshape(n_classes, p, n_classes, p),
            SHIFT: shift,
            PRIOR: np.tile(prior, (n_classes, 1)),
        }
        return replace(statistics, counts={**statistics.counts, **counts}, approximations=())

    def fit_sums(self, model: Any, statistics: Statistics) -> None:
        """Set coefficients and intercepts."""
        n_classes, p = statistics.counts[SHIFT].shape
        if n_classes < 2:
            raise InputError("classes", "are one, expected two or more over all sites", "fuse sites with both")
        theta = self.coefficients(statistics).reshape(-1, p)
        has_intercept = bool(statistics.parameters.get("fit_intercept", True))
        model.coef_ = np.ascontiguousarray(theta[:, :-1] if has_intercept else theta)
        model.intercept_ = theta[:, -1].copy() if has_intercept else np.zeros(len(theta))
        model.n_iter_ = np.array([1], dtype=np.int32)


class SGDClassifierAdapter(LogisticRegressionAdapter):
    """Logistic regression by stochastic gradient descent, as the linear model that its loss has: precision alpha n.

    Descent stops before the optimum of its loss, so a site sends the expansion at the optimum for its rows, and the
    fused model has the coefficients that the descent of all rows would approach. More than two classes are one model a
    class there, and refused.
    """

    kind: ClassVar[str] = "sklearn.SGDClassifier"
    loose_solvers: ClassVar[Mapping[str, tuple[str, ...]]] = {"loss": ("log_loss",)}

    def refusal(self, parameters: Mapping[str, Json]) -> Problem | None:
        """Refuse losses that are no likelihood, and penalties that are no normal prior."""
        if parameters.get("loss") != "log_loss":
            text = f"is {parameters.get('loss')!r}, which is no log-likelihood of rows"
            return Problem("loss", text, "fit with `loss='log_loss'`")
        if parameters.get("penalty") not in ("l2", None):
            return Problem("penalty", "is no normal prior, so that no Laplace approximation adds up", "fit with l2")
        if parameters.get("class_weight") is not None:
            return Problem("class_weight", "weighs rows otherwise at every site", "fit without, or with sample_weight")
        return None

    def precision(self, parameters: Mapping[str, Json], n_rows: float) -> float:
        """Return alpha n, 0 without a penalty: the loss is the mean over rows."""
        return 0.0 if parameters.get("penalty") is None else number(parameters, "alpha") * n_rows

    def sums_of_model(self, model: Any, rows: SiteRows) -> SiteSums:
        """Return the expansion at the optimum of the loss for these rows."""
        if rows.n_classes > 2:
            text = f"has {rows.n_classes} classes, and is one model for each"
            raise InputError(f"this {self.class_name}", text, "fit LogisticRegression", "E-SHAPE")
        precision = self.precision(rows.parameters, float(rows.weight_of_each.sum()))
        parameters = {
            "C": 1.0 / precision if precision > 0 else np.inf,
            "fit_intercept": rows.parameters.get("fit_intercept", True),
            "tol": OPTIMUM_TOLERANCE,
            "max_iter": OPTIMUM_ITERATIONS,
        }
        fitted = new_estimator(self.module, "LogisticRegression", parameters)
        fitted.fit(rows.X, rows.y, sample_weight=rows.weights)
        return super().sums_of_model(fitted, rows)


def _free(information: Array, vector: Array, prior: Array) -> tuple[Array, Array, Array]:
    """Return I + P (q, q), a vector (q,) and P (q,) of the coefficients that are free: beta alone for two classes."""
    n_classes, p = vector.shape
    if n_classes == 2:  # with theta = (0, beta)
        return information[1, :, 1, :] + np.diag(prior[1]), vector[1], prior[1]
    flat = information.reshape(n_classes * p, n_classes * p) + np.diag(prior.ravel())
    return flat, vector.ravel(), prior.ravel()


def _settled(hessian: Array, n_classes: int, p: int) -> Array:
    """Return a Hessian to which shifts that classes share are added, so that they solve to zero."""
    if n_classes == 2:
        return hessian
    scales = np.diag(hessian).reshape(n_classes, p).mean(axis=0)  # (p,), of the size of each column's curvature
    total: Array = hessian + np.kron(np.full((n_classes, n_classes), 1.0 / n_classes), np.diag(scales))
    return total


class GeneralisedLinearAdapter(LaplaceAdapter, RefittedAdapter):
    """Regressors of a mean mu = exp(X beta) with the variance mu^power; prior precision alpha times the weights.

    In eta = X beta, half the unit deviance of power q is mu^(2-q)/(2-q) - y mu^(1-q)/(1-q) with a limit at 1 and 2, its
    gradient mu^(2-q) - y mu^(1-q), and its curvature (2-q) mu^(2-q) - (1-q) y mu^(1-q). The dispersion, one for all
    sites, multiplies every log posterior alike; sum (y - mu)^2 / mu^q is sent, from which it is estimated.
    """

    needs: ClassVar[Needs] = "targets"
    fixed_power: ClassVar[float | None] = None
    """The power of the variance, where it is no hyper-parameter."""

    def is_concave(self, parameters: Mapping[str, Json]) -> bool:
        """Return whether the log-likelihood is concave: for powers above 2 it is so near the fit only."""
        return self.power(parameters) <= 2.0

    def power(self, parameters: Mapping[str, Json]) -> float:
        """Return the power of the variance."""
        return number(parameters, "power") if self.fixed_power is None else self.fixed_power

    def sums_of_model(self, model: Any, rows: SiteRows) -> SiteSums:
        """Return the expansion at a fitted model."""
        name, parameters = f"this {self.class_name}", rows.parameters
        beta = np.asarray(model.coef_, dtype=np.float64)
        if parameters.get("fit_intercept", True):
            beta = np.append(beta, float(model.intercept_))
        law, weight = self.likelihood(beta, rows), float(rows.weight_of_each.sum())
        information, gradient = law.information(), law.gradient()
        prior = prior_precision(len(beta), number(parameters, "alpha") * weight, parameters)
        hessian = information + np.diag(prior)
        text = checked_expansion(name, hessian, gradient - prior * beta, is_separated=False)
        counts = {
            ROWS: rows.counts,
            INFORMATION: information,
            SHIFT: hessian @ beta,
            PRIOR: prior,
            WEIGHT: np.array(weight),
            PEARSON: np.array(law.pearson()),
        }
        return SiteSums(counts=counts, approximations=text)

    def natural(self, statistics: Statistics) -> tuple[Array, Array, Array, Array]:
        """Return sum I_j (p, p), the shift (p,), sum P_j (p,) and P (p,).

        alpha is per unit of weight, so P is sum P_j where all sites have the alpha of the fused model.
        """
        counts, parameters = statistics.counts, statistics.parameters
        precision = number(parameters, "alpha") * float(counts[WEIGHT])
        target = prior_precision(len(counts[SHIFT]), precision, parameters)
        return counts[INFORMATION], counts[SHIFT], counts[PRIOR], target

    def dispersion(self, statistics: Statistics) -> float:
        """Return sum (y - mu)^2 / mu^q over its degrees of freedom, of the sites' own fits; 1 for counts."""
        n = statistics.n_observations
        fitted = len(statistics.counts[SHIFT])
        if self.power(statistics.parameters) == 1.0 or n <= fitted:
            return 1.0
        return float(statistics.counts[PEARSON]) / (n - fitted)

    def likelihood(self, coefficients: Array, rows: SiteRows) -> Tweedie:
        """Return the log-likelihood of rows with its derivatives."""
        y, q = rows.one_target, self.power(rows.parameters)
        # Least squares, of which link="auto" has the identity.
        is_identity = q == 0.0 and rows.parameters.get("link") != "log"
        return Tweedie(with_intercept(rows), y, rows.weight_of_each, coefficients, q, is_identity)

    def expanded(self, statistics: Statistics, coefficients: Array, information: Array) -> Statistics:
        """Return statistics of some coefficients with the information there."""
        prior = self.natural(statistics)[3]
        counts = {INFORMATION: information, SHIFT: information @ coefficients + prior * coefficients, PRIOR: prior}
        return replace(statistics, counts={**statistics.counts, **counts}, approximations=())

    def fit_sums(self, model: Any, statistics: Statistics) -> None:
        """Set coefficients and the intercept."""
        beta = self.coefficients(statistics)
        has_intercept = bool(statistics.parameters.get("fit_intercept", True))
        model.coef_ = beta[:-1].copy() if has_intercept else beta
        model.intercept_ = float(beta[-1]) if has_intercept else 0.0
        model.n_iter_ = 1
        model._base_loss = model._get_loss()


class PoissonRegressorAdapter(GeneralisedLinearAdapter):
    """Poisson regression, of a log link."""

    kind: ClassVar[str] = "sklearn.PoissonRegressor"
    fixed_power: ClassVar[float | None] = 1.0


class GammaRegressorAdapter(GeneralisedLinearAdapter):
    """Gamma regression, of a log link."""

    kind: ClassVar[str] = "sklearn.GammaRegressor"
    fixed_power: ClassVar[float | None] = 2.0


class TweedieRegressorAdapter(GeneralisedLinearAdapter):
    """Tweedie regression, of a log link, or of the identity for power 0."""

    kind: ClassVar[str] = "sklearn.TweedieRegressor"
    sum_parameters: ClassVar[tuple[str, ...]] = ("fit_intercept", "power", "link")

    def refusal(self, parameters: Mapping[str, Json]) -> Problem | None:
        """Refuse the identity link of means that must be positive."""
        power = decode(parameters.get("power"))
        if isinstance(power, int | float) and power < 0.0:
            text = f"{power:g} has a curvature that is not positive"
            return Problem("power", text, "fit with power 0, 1 or more", "E-NUMBER")
        if power != 0.0 and parameters.get("link") == "identity":
            return Problem("link", "identity of positive means may leave them", "fit with `link='log'`")
        return None
