"""The learner of heads: what a site fits is its sums of features by class, which are all that it sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from consilience.catalogue import suggestion
from consilience.checks import Array, is_count, is_number
from consilience.core.caller import warn_caller
from consilience.core.min_count import MIN_COUNT
from consilience.errors import InputError, OptionError, Problem, WithheldWarning
from consilience.estimators.adapters.heads import (
    FEATURES,
    NORM_BOUND,
    BayesianHeadAdapter,
    BayesianRegressionHeadAdapter,
    GaussianNBHeadAdapter,
    HeadAdapter,
    LDAHeadAdapter,
    QDAHeadAdapter,
    RidgeHeadAdapter,
    RidgeRegressionHeadAdapter,
)
from consilience.estimators.class_labels import ClassLabels
from consilience.estimators.heads.feature_maps import FeatureMap, frozen
from consilience.estimators.heads.model import FittedHead, clip_norms
from consilience.estimators.heads.privacy import GaussianMechanism
from consilience.estimators.heads.ridge_choice import RIDGES, ErrorCurve, error_curve
from consilience.estimators.rebuild import rebuild
from consilience.estimators.site_rows import SiteRows, real_targets
from consilience.estimators.statistics import NOISE, ROWS, SUMS, TOTAL, Statistics
from consilience.families.centred_moments import CentredMoments

HeadKind = Literal["ridge", "lda", "qda", "gaussian_nb", "bayesian", "ridge_regression", "bayesian_regression"]

KINDS: Mapping[str, HeadAdapter] = {
    "ridge": RidgeHeadAdapter(),
    "lda": LDAHeadAdapter(),
    "qda": QDAHeadAdapter(),
    "gaussian_nb": GaussianNBHeadAdapter(),
    "bayesian": BayesianHeadAdapter(),
    "ridge_regression": RidgeRegressionHeadAdapter(),
    "bayesian_regression": BayesianRegressionHeadAdapter(),
}
"""Heads by name."""

WITH_NOISE = "Noise was added to the sums for privacy"
"""Why heads with noise are not those of the rows; the verdict says how much."""


class Head:
    """A head on frozen features, as its sums: counts, sums and second moments of the features by class.

    Sums of sites are the sums of all rows, so that ``cs.fuse([head_a, head_b]).model`` is the head that one site with
    all rows would have, however skewed the sites are.

    Parameters
    ----------
    kind : {"ridge", "lda", "qda", "gaussian_nb", "bayesian", "ridge_regression", "bayesian_regression"}, optional
        Ridge regression of indicators of classes, linear or quadratic discriminants, Gaussian naive Bayes, or Bayesian
        regression of indicators with unknown noise; ridge or Bayesian regression of real targets, one or several. Ridge
        on `random_fourier` features is kernel ridge regression. Default: "ridge".
    features : torch module, transformer, FeatureMap or callable, optional
        What computes features: a module in evaluation mode, an object with ``transform``, one of ``cs.features``, or
        ``cs.features.frozen(function, digest="...")``. Default: rows are features already.
    **parameters
        Hyper-parameters of the head, which change no sums: ``ridge`` of each row of unit variance (1e-4) of "ridge" and
        "ridge_regression"; ``shrinkage`` of "lda" (0.05); ``reg_param`` of "qda" (0.05); ``var_smoothing`` of
        "gaussian_nb" (1e-9).

    Raises
    ------
    OptionError
        For a kind or hyper-parameter that there is not.
    InputError
        For a module in training mode, and a callable without a digest.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import consilience as cs
    >>> X, y = load_digits(return_X_y=True)
    >>> kernel = cs.features.random_fourier(64, count=200, length=30.0)
    >>> small, large = y < 5, y >= 5
    >>> heads = [cs.learners.Head(features=kernel).fit(X[part], y[part], classes=10) for part in (small, large)]
    >>> fused = cs.fuse(heads).model
    >>> bool((fused.predict(X) == y).mean() > 0.95)
    True
    """

    def __init__(self, kind: HeadKind = "ridge", features: Any = None, **parameters: Any) -> None:
        if kind not in KINDS:
            raise OptionError("kind", f"there is no head {kind!r:.40}; there are {', '.join(KINDS)}")
        self.kind = kind
        self._adapter = KINDS[kind]
        self.head_kind = self._adapter.kind
        self.features: FeatureMap = frozen(features)
        if unknown := sorted(set(parameters) - set(self._adapter.defaults)):
            known = ", ".join(self._adapter.defaults) or "none"
            meant = suggestion(unknown[0], self._adapter.defaults)
            raise OptionError(unknown[0], f"is no hyper-parameter of a {kind} head{meant}; it has {known}")
        self.parameters = {**self._adapter.defaults, **parameters}
        if refusal := self._adapter.refusal(self.parameters):
            raise OptionError([refusal])
        self.statistics: Statistics | None = None
        self._held_out: tuple[Array, Any] | None = None

    @property
    def estimator_kind(self) -> str:
        """The kind of estimator that it stands for."""
        return self.head_kind

    def __repr__(self) -> str:
        """Return the kind, the features and the rows."""
        rows = "not fitted" if self.statistics is None else f"{self.statistics.n_observations:,.0f} rows"
        return f"Head({self.kind!r}, {self.features.name}, {rows})"

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        classes: Any = None,
        min_count: float = MIN_COUNT,
        noise: GaussianMechanism | None = None,
        held_out: float = 0.0,
        rng: int | np.random.Generator | None = None,
    ) -> Head:
        """Take the sums of a site's rows.

        Parameters
        ----------
        X : array_like or Tensor of shape (n, ...)
            Inputs of the features.
        y : array_like of shape (n,), or (n, q) of regressions
            Class of each row, or its targets.
        classes : int or sequence, optional
            Number of classes 0, 1, ..., or their labels, as all sites name them. Default: those in `y`. Classes are
            matched by label, and a site may lack some.
        min_count : float, optional
            Rows of classes with fewer are left out of all sums, and a `WithheldWarning` names the classes; 0 keeps
            them. Of regressions nothing leaves of fewer rows. Default: 5.
        noise : GaussianMechanism, optional
            Noise on the sums, for ridge, lda and bayesian; give `classes`, since those in `y` would tell. Default:
            none.
        held_out : float, optional
            Part of the rows that is set aside for `error_curve`, drawn by `rng`. Default: 0.
        rng : int or Generator, optional
            Of held-out rows and of the noise. Default: 0, and with noise numbers of the system, which nobody can
            repeat.

        Raises
        ------
        InputError
            For rows and classes that do not fit together, a label that is no class, and where nothing would be left.
        OptionError
            For arguments out of their range.
        """
        self._refuse_options(classes, min_count, noise, held_out)
        targets = np.asarray(y.detach().cpu() if hasattr(y, "detach") else y)
        generator = np.random.default_rng(0 if rng is None and noise is None else rng)
        if self._adapter.needs == "targets":
            return self._fit_regression(self.features(X), targets, min_count, held_out, generator)
        labels = _labels(classes, targets)
        rows = self.features(X)
        targets = one_label_each(targets, len(rows))
        numbers = labels.numbers_of(targets)
        rows = clip_norms(rows, None if noise is None else noise.norm_bound)
        is_held = self._hold_out(rows, targets, held_out, generator)
        rows, numbers = rows[~is_held], numbers[~is_held]
        n_withheld = 0
        if noise is None:
            rows, numbers, labels, n_withheld = _without_thin_classes(rows, numbers, labels, min_count)
        sums = self._adapter.sums_of_rows(
            SiteRows(rows, numbers=numbers, n_classes=len(labels), parameters=self.parameters)
        )
        statistics = Statistics(
            self.head_kind,
            {
                **self.parameters,
                FEATURES: self.features.record,
                NORM_BOUND: None if noise is None else float(noise.norm_bound),
            },
            rows.shape[1],
            sums.moments,
            sums.counts,
            classes=labels,
            min_count=float(min_count),
            n_withheld=n_withheld,
        )
        self.statistics = statistics if noise is None else _disturbed(statistics, noise, generator, min_count)
        return self

    def _refuse_options(self, classes: Any, min_count: Any, noise: GaussianMechanism | None, held_out: Any) -> None:
        """Raise OptionError for arguments of `fit` out of their range, or that such a head does not take."""
        if not is_number(min_count):
            raise OptionError("min_count", f"expected a number that is not negative, found {min_count!r}")
        if not is_number(held_out) or held_out >= 1.0:
            raise OptionError("held_out", f"expected a number from 0 to below 1, found {held_out!r}")
        if noise is not None and not self._adapter.pools_classes:
            raise OptionError(
                "noise",
                f"is for ridge, lda and bayesian heads, not for {self.kind}"
                + (": its targets have no bound" if self._adapter.needs == "targets" else ""),
            )
        if noise is not None and classes is None:
            raise OptionError("classes", "of all sites are needed with noise, since those in y would disclose rows")
        if classes is not None and self._adapter.needs == "targets":
            raise OptionError("classes", f"a {self.kind} head has none; leave it out")

    def _hold_out(self, rows: Array, targets: Any, part: float, rng: np.random.Generator) -> Any:
        """Keep a part of the rows for `error_curve`; return which (n,)."""
        self._held_out = None
        if part == 0:
            return np.zeros(len(rows), dtype=bool)
        is_held = rng.random(len(rows)) < part
        self._held_out = rows[is_held], targets[is_held]
        return is_held

    def _fit_regression(
        self, rows: Array, targets: Any, min_count: float, held_out: float, rng: np.random.Generator
    ) -> Head:
        """Take the sums of features and real targets."""
        text, remedy = "expected a number for every row, found texts", "classes take `Head('ridge')`"
        y = real_targets(targets, len(rows), text, remedy)
        is_held = self._hold_out(rows, y, held_out, rng)
        rows, y = rows[~is_held], y[~is_held]
        if len(rows) < max(min_count, 1.0):
            text = f"has {len(rows)} rows, fewer than {max(min_count, 1):g}: nothing may leave"
            remedy = "take more rows, or a lower `min_count=`" if len(rows) else "take more rows"
            raise InputError("y", text, remedy, "E-FEW")
        sums = self._adapter.sums_of_rows(SiteRows(rows, y, parameters=self.parameters))
        self.statistics = Statistics(
            self.head_kind,
            {**self.parameters, FEATURES: self.features.record, NORM_BOUND: None},
            rows.shape[1],
            sums.moments,
            target_shape=y.shape[1:],
            min_count=float(min_count),
        )
        return self

    @property
    def model(self) -> FittedHead:
        """The site's own head, of its rows alone.

        Raises
        ------
        InputError
            Before `fit`.
        """
        if self.statistics is None:
            raise InputError("", "this head is not fitted yet; call fit first", code="E-UNFITTED")
        model: FittedHead = rebuild(self.statistics)
        return model

    def predict(self, X: Any) -> Any:
        """Return the classes (n,), or the targets, of inputs by this site's own head."""
        return self.model.predict(X)

    def error_curve(self, fused: Any, ridges: tuple[float, ...] = RIDGES) -> ErrorCurve:
        """Return the errors of all sites' ridge heads on this site's held-out rows, for `choose_ridge`.

        Parameters
        ----------
        fused : EstimatorFusion or Statistics
            The sums of all sites, of a ridge head.
        ridges : tuple of float, optional
            Ridge of each row, the same at all sites. Default: 11 from 1e-6 to 0.1.

        Raises
        ------
        InputError
            Where no rows are held out, and for sums of another head or of other features.
        """
        statistics = getattr(fused, "statistics", fused)
        if self._held_out is None or not len(self._held_out[0]):
            raise InputError("head", "has no rows held out", "fit it with `held_out=0.1`", "E-SHAPE")
        ridge_kinds = {KINDS[name].kind for name in ("ridge", "ridge_regression")}
        if not isinstance(statistics, Statistics) or statistics.kind not in ridge_kinds:
            raise InputError("fused", "is no fusion of ridge heads", code="E-TYPE")
        if statistics.kind != self.head_kind and KINDS["ridge_regression"].kind in (statistics.kind, self.head_kind):
            text = f"is of {statistics.kind}, and this head is a {self.head_kind}"
            raise InputError("fused", text, code="E-MISMATCH")
        if statistics.parameters[FEATURES] != self.features.record:
            raise InputError("fused", "is of other features than this head", code="E-MISMATCH")
        return error_curve(statistics, *self._held_out, ridges=ridges)


def one_label_each(y: Any, n: int) -> Any:
    """Return the classes (n,) of n rows."""
    labels = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if labels.shape != (n,):
        text = f"expected one class for each of the {n} rows, found shape {labels.shape}"
        remedy = "real targets, one or several, take `Head('ridge_regression')`" if labels.ndim == 2 else ""
        raise InputError("y", text, remedy, "E-SHAPE")
    if n == 0:
        raise InputError("X", "has no rows", code="E-SHAPE")
    return labels


def _labels(classes: Any, y: Any) -> ClassLabels:
    """Return the classes of all sites, as they are stated, or those in `y`."""
    if classes is None:
        return ClassLabels.of(np.unique(np.asarray(y)))
    if is_count(classes):
        return ClassLabels(tuple(range(int(classes))))
    if isinstance(classes, str | bytes | int | float) or not hasattr(classes, "__iter__"):
        raise OptionError("classes", f"expected the number of classes or their labels, found {classes!r:.40}")
    return ClassLabels.of(np.asarray(classes))


def _without_thin_classes(
    rows: Array, numbers: Any, labels: ClassLabels, min_count: float
) -> tuple[Array, Any, ClassLabels, int]:
    """Return rows and classes without those of too few rows, and how many of these there were."""
    counts = np.bincount(numbers, minlength=len(labels))
    is_kept = (counts > 0) & (counts >= min_count)
    thin = np.flatnonzero((counts > 0) & ~is_kept)
    if not np.any(is_kept):
        remedy = "`min_count=0` keeps classes of fewer"
        if labels.array().dtype.kind == "f":
            remedy += "; real numbers take `Head('ridge_regression')`"
        raise InputError("y", f"has no class of {max(min_count, 1):g} rows or more: nothing may leave", remedy, "E-FEW")
    for number in thin.tolist():
        text = f"has {counts[number]} rows, fewer than {min_count:g}: they are in no sum"
        problem = Problem(f"class {labels.names[number]}", text, "`min_count=0` keeps them", "E-FEW")
        warn_caller(str(problem), WithheldWarning)
    kept = np.flatnonzero(is_kept)
    position_of = np.full(len(labels), -1)
    position_of[kept] = np.arange(len(kept))
    mask = is_kept[numbers]
    if not np.all(mask):
        rows, numbers = rows[mask], numbers[mask]
    values = tuple(labels.values[number] for number in kept.tolist())
    return rows, position_of[numbers], ClassLabels(values, labels.are_objects), len(thin)


def _disturbed(
    statistics: Statistics, noise: GaussianMechanism, rng: np.random.Generator, min_count: float
) -> Statistics:
    """Return sums with noise, again as counts, sums and moments; classes whose noisy count is too small are left out.

    Counts, means and scatters are other coordinates of counts, sums and products, so that they add up as these do.
    """
    total = statistics.moments[TOTAL]
    counts, sums, products = noise.disturb(statistics.counts[ROWS], statistics.counts[SUMS], total.raw_scatter(), rng)
    kept = np.flatnonzero(counts >= max(min_count, 1.0))
    if not len(kept):
        raise InputError("noise", "leaves no class with enough rows", "take a larger epsilon, or join sites", "E-FEW")
    n = counts[kept].sum()
    mean = sums[kept].sum(axis=0) / n
    scatter = products - n * np.outer(mean, mean)  # which noise may leave indefinite
    record = CentredMoments(np.array(n), np.array(n), np.array(0.0), mean, scatter)
    labels = statistics.classes
    values = tuple(labels.values[number] for number in kept.tolist()) if labels else ()
    text = f"{WITH_NOISE}, ({noise.epsilon:g}, {noise.delta:g}) differential privacy of each row"
    return Statistics(
        statistics.kind,
        statistics.parameters,
        statistics.n_columns,
        {TOTAL: record},
        {ROWS: counts[kept], SUMS: sums[kept], NOISE: np.array(noise.scale**2)},
        classes=ClassLabels(values, labels is not None and labels.are_objects),
        approximations=(text,),
        min_count=float(min_count),
    )
