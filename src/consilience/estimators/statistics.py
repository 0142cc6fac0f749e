"""Statistics of an estimator: what a site sends, sums and centred moments in place of rows.

They are named: by the estimator's class, by classes and columns. Sums of sites are the sums of all rows, so that the
estimator which they give is the one that ``fit`` would give of the rows of all sites.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.checks import Array, Json, Labels
from consilience.core.features import Features
from consilience.core.scores import LEVEL
from consilience.drawing.display import Displayed, names_in_line
from consilience.drawing.words import format_count
from consilience.errors import Problem
from consilience.estimators.class_labels import ClassLabels
from consilience.estimators.design import Design
from consilience.estimators.hyper_parameters import PRIORS
from consilience.families.centred_moments import CentredMoments

if TYPE_CHECKING:
    from consilience.estimators.inference import Coefficients

ROWS = "rows"
"""Name of the moments of all rows, and of the count of rows: of one of the two, or both."""
UNWEIGHTED = "unweighted"
"""Name of the moments of the same rows, all counted alike, which some estimators need besides weighted ones. Together
with weighted ones they disclose single rows (of one row with a weight of its own the difference is that row), so they
leave a site with ``min_count=0`` only."""

WITHOUT_UNWEIGHTED = (
    "its epsilon_ is that of weighted rows, and fit takes that of rows without their weights, whose moments would"
    " disclose single rows together with the weighted ones and leave with `min_count=0` only"
)
"""Why statistics of weighted rows from which `UNWEIGHTED` was left out are approximate."""

INFORMATION, SHIFT, PRIOR = "information", "shift", "prior"
"""Names of the sums of Laplace's approximation; those of classes have classes on the third axis of the first too."""
PEARSON, WEIGHT = "pearson", "weight"
"""Names of the sum of squared Pearson residuals, and of the sum of weights."""
DEGREES = "degrees"
"""Name of the sum of degrees of freedom of residuals, by which a sum of squares of sites' own fits is a dispersion."""
SUMS = "sums"
"""Name of the sums of columns by class."""
TOTAL = "total"
"""Name of the moments of the rows of all classes together, which have no axis of classes."""
NOISE = "noise"
"""Name of the variance of what was added to each sum for privacy, a single number."""
FEATURE_COUNTS = "features"
"""Name of the sums of columns by class that naive Bayes counts: (C, d), or flat over the categories of all columns."""
CATEGORIES = "categories"
"""Name of the numbers of categories K_j of columns (d,), by which counts `FEATURE_COUNTS` (C, sum K_j) are flat."""
FOURTH, FOURTH_TOTAL = "fourth", "fourth_total"
"""Names of the mean squared squares of norms of all rows, or of each class, and of the rows of all classes together, in
the frame of the fused moments; 0 where no site told them. They come with a second message and are of these rows
alone, so they are dropped where statistics are added or taken apart."""
OF_ALL = (TOTAL, NOISE, FOURTH_TOTAL)
"""Moments and counts of a classifier that have no axis of classes."""
SIGNED = (INFORMATION, SHIFT, SUMS)
"""Counts that may be negative."""

_NEGATIVE_VARIANCE = 1e-10
"""Negative eigenvalues of a scatter, as a part of its trace, that rounding may leave. Spectra of sums of 60 sites have
some 1e-16."""

_COUNT_ROUNDING = 1e-9
"""Relative difference of two sums of the same counts. Rounding only."""


_NOT_OF_SUMS = ("min_count", "n_withheld")
"""What of a header does not tell one site's sums from another's."""


@dataclass(frozen=True)
class Step:
    """A step of a Pipeline before its last: the name, the class and the hyper-parameters of a transformer."""

    name: str  # its name in the Pipeline
    kind: str  # its class, such as ``sklearn.StandardScaler``
    parameters: Mapping[str, Json]  # its hyper-parameters


@dataclass(frozen=True, eq=False, repr=False)
class Statistics(Displayed):
    """Sums over the rows of one site, or of all sites, from which an estimator is rebuilt.

    Parameters
    ----------
    kind : str
        The estimator's class, such as ``sklearn.GaussianNB``.
    parameters : mapping of str to JSON values
        Its hyper-parameters.
    n_columns : int
        Number d of columns of the data, before any step of a Pipeline.
    moments : mapping of str to CentredMoments, optional
        Moments by name, merged as such; of classifiers the first axis is that of the classes.
    counts : mapping of str to ndarray, optional
        Sums by name, which are added; of classifiers the first axis is that of the classes.
    maxima : mapping of str to ndarray, optional
        Greatest values by name.
    classes : ClassLabels, optional
        The classes of a classifier.
    target_shape : tuple of int, optional
        () where the targets of a regression are a vector, (q,) where they have q columns.
    features : Features, optional
        What the columns mean.
    design : Design, optional
        What a formula made columns and outcome of, of results of statsmodels.
    steps : tuple of Step, optional
        Steps of a Pipeline before the estimator; the sums are of the data before any of them.
    last_step : str, optional
        Name of the estimator in its Pipeline.
    approximations : tuple of str, optional
        Why these are not the sums of the rows to the last digits, a sentence each.
    min_count : float, optional
        Least rows of a class, or of all, that the site tells of.
    n_withheld : int, optional
        Number of classes that were left out for too few rows; of all sites together, each counts its own. How many is
        told, and not which: that somebody at a site is of a class is what withholding it keeps.
    """

    kind: str
    parameters: Mapping[str, Any]
    n_columns: int
    moments: Mapping[str, CentredMoments] = field(default_factory=dict)
    counts: Mapping[str, Array] = field(default_factory=dict)
    maxima: Mapping[str, Array] = field(default_factory=dict)
    classes: ClassLabels | None = None
    target_shape: tuple[int, ...] | None = None
    features: Features = field(default_factory=Features)
    design: Design = field(default_factory=Design)
    steps: tuple[Step, ...] = ()
    last_step: str | None = None
    approximations: tuple[str, ...] = ()
    min_count: float = 0.0
    n_withheld: int = 0

    def _headline(self) -> str:
        return f"{self.kind}, {self.n_observations:,.0f} rows of {format_count(self.n_columns, 'column')}"

    def _facts(self) -> dict[str, object | None]:
        return {
            "columns": names_in_line(self.features.names or ()),
            "units": names_in_line(self.features.units or ()),
            "outcome": names_in_line(self.design.outcome or ()),
            "constants": names_in_line(tuple(self.design.constants)),
            "extra columns": names_in_line(tuple(self.design.extra)),
            "classes": None if self.classes is None else names_in_line(self.classes.names),
            "steps before": names_in_line([step.name for step in self.steps]),
            "withheld": f"{self.n_withheld} classes of fewer than {self.min_count:g} rows" if self.n_withheld else None,
        }

    @property
    def rows(self) -> CentredMoments:
        """The moments of all rows."""
        return self.moments[ROWS]

    @property
    def row_counts(self) -> Array:
        """Number of rows: of every class (C,), of every column where rows lack values (d,), or of all ()."""
        counted = self.counts.get(ROWS)
        return self.rows.n if counted is None else counted

    @property
    def n_observations(self) -> float:
        """Number of rows."""
        counts = self.row_counts
        return float(counts.sum() if self.classes is not None else counts.max(initial=0.0))

    @property
    def n_components(self) -> int:
        """Number of classes; 1 for estimators without."""
        return 1 if self.classes is None else len(self.classes)

    def coefficients(self, level: float = LEVEL) -> Coefficients | None:
        """Return the coefficients of the estimator that the sums give; None for an estimator without.

        Parameters
        ----------
        level : float
            Coverage of the intervals. Default: 0.95.

        Examples
        --------
        >>> from sklearn.linear_model import LinearRegression
        >>> from consilience import describe
        >>> X, y = [[0.0], [1.0], [2.0], [3.0], [4.0], [5.0]], [1.1, 2.9, 5.1, 6.9, 9.1, 10.9]
        >>> table = describe(LinearRegression().fit(X, y), data=(X, y)).coefficients()
        >>> dict(zip(table.names, table.values.round(2).tolist()))
        {'column 0': 1.98, 'intercept': 1.04}
        >>> table.errors.round(2).tolist(), table.intervals[0].round(2).tolist()
        ([0.03, 0.08], [1.91, 2.06])
        """
        from consilience.estimators.inference import coefficients_of  # here, since it rebuilds what statistics are of

        return coefficients_of(self, level)

    @property
    def n_targets(self) -> int:
        """Number q of columns of the targets; 0 without."""
        if self.target_shape is None:
            return 0
        return self.target_shape[0] if self.target_shape else 1

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the sums and of what they are of, in hexadecimal; whatever was asked of what leaves a site."""
        hashed_fields = {name: value for name, value in self.header().items() if name not in _NOT_OF_SUMS}
        digest = hashlib.sha256(json.dumps(hashed_fields, sort_keys=True).encode())
        for name, values in self.tensors():
            digest.update(f"{name} {values.shape}".encode())
            digest.update(np.ascontiguousarray(values + 0.0).tobytes())  # + 0.0 makes -0.0 and 0.0 the same bits
        return digest.hexdigest()

    def header(self) -> dict[str, Json]:
        """Return everything but the arrays, as JSON values."""
        classes, design = self.classes, self.design.to_json()
        return {
            **({"design": design} if design else {}),
            "estimator": self.kind,
            "parameters": dict(self.parameters),
            "n_columns": self.n_columns,
            "classes": None if classes is None else list(classes.values),
            "classes_are_objects": classes is not None and classes.are_objects,
            "target_shape": None if self.target_shape is None else list(self.target_shape),
            "features": self.features.to_json(),
            "steps": [
                {"name": step.name, "estimator": step.kind, "parameters": dict(step.parameters)} for step in self.steps
            ],
            "last_step": self.last_step,
            "approximations": list(self.approximations),
            "min_count": self.min_count,
            "n_withheld": self.n_withheld,
        }

    def tensors(self) -> Iterator[tuple[str, Array]]:
        """Yield all arrays by name, scatters as their upper triangles."""
        for name, record in sorted(self.moments.items()):
            for part in ("n", "weight", "log_weight", "mean"):
                yield f"moments.{name}.{part}", getattr(record, part)
            if record.is_diagonal:
                yield f"moments.{name}.variances", record.scatter
            else:
                yield f"moments.{name}.scatter", record.scatter[..., *np.triu_indices(record.n_columns)]
        for name, values in sorted(self.counts.items()):
            yield f"counts.{name}", values
        for name, values in sorted(self.maxima.items()):
            yield f"maxima.{name}", values

    def without_unweighted(self) -> Statistics:
        """Return the statistics without the moments of rows without their weights, said to be approximate."""
        if UNWEIGHTED not in self.moments:
            return self
        moments = {name: record for name, record in self.moments.items() if name != UNWEIGHTED}
        approximations = tuple(dict.fromkeys([*self.approximations, WITHOUT_UNWEIGHTED]))
        return replace(self, moments=moments, approximations=approximations)

    def without_fourth_moments(self) -> Statistics:
        """Return the statistics without the fourth moments that a second message stated for these very rows."""
        if FOURTH not in self.counts:
            return self
        counts = {name: values for name, values in self.counts.items() if name not in (FOURTH, FOURTH_TOTAL)}
        return replace(self, counts=counts)

    def some_classes(self, positions: Labels) -> Statistics:
        """Return the statistics of some classes."""
        assert self.classes is not None  # noqa: S101  (narrows the type; callers have asked)
        values = tuple(self.classes.values[position] for position in positions)
        by_class = {
            name: [value[position] for position in positions] if is_by_class(name, value) else value
            for name, value in self.parameters.items()
        }
        return replace(
            self,
            parameters=by_class,
            classes=ClassLabels(values, self.classes.are_objects),
            moments={name: record if name in OF_ALL else record.at(positions) for name, record in self.moments.items()},
            counts={
                name: array
                if name in OF_ALL
                else array[positions][:, :, positions]
                if name == INFORMATION
                else array[positions]
                for name, array in self.counts.items()
            },
        )

    def problems(self) -> list[Problem]:
        """Return what is wrong with the numbers, a line each."""
        arrays = dict(self.tensors())
        problems = [
            Problem("", f"{name} has values that are not finite", code="E-NUMBER")
            for name, values in arrays.items()
            if not np.isfinite(values).all()
        ]
        if problems:
            return problems
        for name, record in self.moments.items():
            where = _first_where(record.n < 0) or _first_where(record.weight < 0)
            if where is not None:
                problems.append(Problem("", f"moments {name!r} have negative counts at {where}", code="E-NUMBER"))
                continue
            if np.any((record.n == 0) != (record.weight == 0)):
                text = f"moments {name!r} have weights without rows, or rows without weight"
                problems.append(Problem("", text, code="E-NUMBER"))
            if NOISE not in self.counts and _has_negative_variance(record):
                text = f"moments {name!r} have a scatter with negative variances"
                problems.append(Problem("", text, code="E-NUMBER"))
        problems += [
            Problem("", f"counts {name!r} have negative values", code="E-NUMBER")
            for name, values in self.counts.items()
            if name not in SIGNED and np.any(values < 0)
        ]
        if self.classes is not None:
            problems += self._contradictions()
        return problems

    def _contradictions(self) -> list[Problem]:
        """Return where arrays do not have one entry for each class, or count the same rows differently."""
        count = len(self.classes or ())
        leading = {f"moments {name!r}": record.shape for name, record in self.moments.items() if name not in OF_ALL}
        leading |= {f"counts {name!r}": values.shape for name, values in self.counts.items() if name not in OF_ALL}
        problems = [
            Problem(
                "", f"{name} have shape {list(shape)}, expected one entry for each of {count} classes", code="E-SHAPE"
            )
            for name, shape in leading.items()
            if shape[:1] != (count,)
        ]
        if not problems and UNWEIGHTED in self.moments:
            one, other = self.rows.n, self.moments[UNWEIGHTED].n
            if np.any(np.abs(one - other) > _COUNT_ROUNDING * np.maximum(one, other)):
                problems.append(Problem("", "counts of the same rows contradict each other", code="E-MISMATCH"))
        if not problems and TOTAL in self.moments:
            by_class, of_all = float(self.row_counts.sum()), float(self.moments[TOTAL].n)
            if abs(by_class - of_all) > _COUNT_ROUNDING * max(by_class, of_all):
                text = f"has {by_class:g} rows by class and {of_all:g} rows of all classes"
                problems.append(Problem("", text, code="E-MISMATCH"))
        return problems


def is_by_class(name: str, value: Any) -> bool:
    """Return whether a hyper-parameter has a value for every class."""
    return name in PRIORS and isinstance(value, list)


def _has_negative_variance(record: CentredMoments) -> bool:
    """Return whether a scatter has an eigenvalue below what rounding leaves."""
    lowest_allowed = -_NEGATIVE_VARIANCE * np.maximum(record.variances.sum(axis=-1), 0.0)  # (...)
    if record.is_diagonal:
        return bool(np.any(record.scatter.min(axis=-1, initial=0.0) < lowest_allowed))
    raised = record.scatter - lowest_allowed[..., None, None] * np.eye(record.n_columns)
    try:  # a tenth of the time of eigenvalues; zero matrices have no factor
        np.linalg.cholesky(raised)
    except np.linalg.LinAlgError:
        return bool(np.any(np.linalg.eigvalsh(record.scatter).min(axis=-1, initial=0.0) < lowest_allowed))
    return False


def _first_where(mask: Any) -> str | None:
    """Return the first position at which a mask holds, in words; None where it does nowhere."""
    positions = np.argwhere(mask)
    return None if not len(positions) else f"entry {positions[0].tolist() or 0}"
