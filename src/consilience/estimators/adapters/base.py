"""The adapter protocol of estimators: a fitted estimator as sums over its rows, and the estimator that sums give.

To take in one more class, write a file with a `RefittedAdapter` that gives ``kind``, ``mark``, ``sums_of_rows`` and
``fit_sums``, and add an instance to the table in ``table``; the laws in ``tests/estimators`` then run on it.
Estimators are known by the names of their classes, so scikit-learn is imported only where one is rebuilt.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from inspect import signature
from typing import Any, ClassVar, Literal

import numpy as np

from consilience.catalogue import with_suggestions
from consilience.checks import Array, Json
from consilience.core.agreement import ColumnMoments
from consilience.core.features import Features, sklearn_features
from consilience.errors import InputError, OptionError, Problem
from consilience.estimators.design import Design
from consilience.estimators.hyper_parameters import decode, encoded_parameters
from consilience.estimators.site_rows import Needs, SiteRows
from consilience.estimators.statistics import ROWS, Statistics
from consilience.families.centred_moments import CentredMoments

Mark = Literal["exact", "iterative", "approximate"]
"""What the fused estimator is: the one that ``fit`` gives on the rows of all sites, to 1e-10; what its iteration gives
there, to the tolerance of the solver; or neither, which the verdict then says."""


@dataclass(frozen=True, eq=False)
class SiteSums:
    """What an adapter takes of a site: moments, counts and maxima by name, and why they are not exact."""

    moments: Mapping[str, CentredMoments] = field(default_factory=dict)
    counts: Mapping[str, Array] = field(default_factory=dict)
    maxima: Mapping[str, Array] = field(default_factory=dict)
    approximations: tuple[str, ...] = ()


def kind_name(model: object) -> str | None:
    """Return the kind of estimator that an object is by the name of its class; None for what is none.

    A result of statsmodels is of the class of its model; what was fused says which class it stands for.

    Examples
    --------
    >>> from sklearn.linear_model import Ridge
    >>> kind_name(Ridge()), kind_name(0)
    ('sklearn.Ridge', None)
    """
    of_model = type(model)
    library = of_model.__module__.partition(".")[0]
    if library in ("sklearn", "laplace"):
        return f"{library}.{of_model.__name__}"
    if library == "statsmodels":
        return f"{library}.{type(getattr(model, 'model', None)).__name__}"
    return getattr(model, "estimator_kind", None) if hasattr(of_model, "estimator_kind") else None


class EstimatorAdapter(ABC):
    """One class of estimators, in and out."""

    kind: ClassVar[str]
    """Library and name of the class, as files and messages have it: ``sklearn.GaussianNB``."""
    module: ClassVar[str]
    """Module that it is imported from."""
    mark: ClassVar[Mark] = "exact"
    needs: ClassVar[Needs] = "nothing"
    """What it is fitted to beside rows."""
    lacks: ClassVar[str | None] = None
    """What a fitted object does not keep, so that its sums are taken from data; None where it keeps all."""
    says_all: ClassVar[str | None] = None
    """What messages add to the name of the class where a fitted object needs no data; None of those that may."""
    sum_parameters: ClassVar[tuple[str, ...]] = ()
    """Hyper-parameters by which the sums themselves differ, so that they must agree between sites."""
    is_diagonal: ClassVar[bool] = False
    """Whether sums of squares of columns are enough, without those of products."""
    follows_units: ClassVar[bool] = True
    """Whether its sums are moments of the columns, so that affine steps before it can be applied to sums."""
    by_column: ClassVar[bool] = False
    """Whether its moments have one record for each column."""
    is_idempotent: ClassVar[bool] = False
    """Whether the same statistics added a second time change nothing but the number of rows."""
    may_be_sparse: ClassVar[bool] = False
    """Whether sums are taken of sparse rows without filling them."""
    loose_solvers: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Values of hyper-parameters with which a model may be too far from what its sums give for being compared."""
    has_score: ClassVar[bool] = True
    """Whether predictions are compared with targets by their squared error, where it is fitted to targets."""
    sent_as: ClassVar[str | None] = None
    """What a site writes to make it; None for fitted estimators, which are described."""
    pools_classes: ClassVar[bool] = False
    """Whether some sums are of all classes together, so that no class can be taken out of them."""
    compared: ClassVar[tuple[str, ...]] = ()
    """Fitted attributes by which a model is compared with what its sums give; what it predicts, where there are
    none."""

    @property
    def class_name(self) -> str:
        """Name of the class."""
        return self.kind.rpartition(".")[2]

    def accepts(self, model: object) -> bool:
        """Return whether an object is of this class, or stands for it; not of a subclass, which may fit otherwise."""
        return kind_name(model) == self.kind

    def is_fitted(self, model: Any) -> bool:
        """Return whether ``fit`` was called."""
        return hasattr(model, "n_features_in_")

    def parameters_of(self, model: Any) -> dict[str, Json]:
        """Return the hyper-parameters of a fitted object as JSON values."""
        return encoded_parameters(model)

    def takes_weights(self, model: Any) -> bool:
        """Return whether a fit may weigh its rows."""
        return "sample_weight" in signature(type(model).fit).parameters

    def n_columns_of(self, model: Any) -> int:
        """Return how many columns a fitted object takes."""
        return int(model.n_features_in_)

    def features_of(self, model: Any) -> Features:
        """Return what a fitted object knows of its columns."""
        return sklearn_features(model)

    def design_of(self, model: Any) -> Design:
        """Return what a formula made columns and outcome of; nothing here."""
        return Design()

    def refusal(self, parameters: Mapping[str, Json]) -> Problem | None:
        """Return why an estimator of these hyper-parameters is no function of sums; None where it is one."""
        return None

    def needs_fourth_moments(self, parameters: Mapping[str, Json]) -> bool:
        """Return whether ``fit`` shrinks by fourth moments, which sites tell in a second message."""
        return False

    def contradictions(self, first_label: str, first: Statistics, site: Statistics) -> list[Problem]:
        """Return why sums of a site cannot be added to those of the first, besides the checks of all estimators."""
        return []

    def refuse_data(self) -> None:
        """Raise where a fitted object says all, so that data have no use."""
        if self.says_all is not None:
            text = f"are not needed: a fitted {self.class_name}{self.says_all} says all; leave them out"
            raise OptionError("data", text)

    def disclosure(self) -> Problem | None:
        """Return why the statistics are single observations, which leave a site with ``min_count=0`` only."""
        return None

    def looks_like_one_row(self, statistics: Statistics) -> Any:
        """Return which classes (C,) may be a single row, whatever their counts say."""
        return np.zeros(len(statistics.classes or ()), dtype=bool)

    def trimmed(self, statistics: Statistics) -> Statistics:
        """Return the statistics without values that come from withheld classes alone."""
        return statistics

    def array_shapes(self, statistics: Statistics) -> dict[str, tuple[int, ...]]:
        """Return the shapes of counts and maxima, and the leading ones of moments, by what messages call them."""
        return {f"moments {ROWS!r}": () if statistics.classes is None else (len(statistics.classes),)}

    def column_moments(self, statistics: Statistics) -> ColumnMoments | None:
        """Return means and deviations of the columns and targets, by which units are compared; None without such."""
        if ROWS not in statistics.moments:
            return None
        record = whole_moments(statistics)
        if self.by_column and statistics.last_step is None:  # a record for each column, (d,)
            means, scatter = record.mean.ravel(), record.variances.ravel()
        else:
            means, scatter = record.mean, record.variances
        deviations = np.sqrt(np.maximum(scatter, 0.0) / np.maximum(record.weight, np.finfo(np.float64).tiny))
        return ColumnMoments(names_with_targets(statistics, len(means)), statistics.n_observations, means, deviations)

    def kept_statistics(self, model: Any) -> Statistics | None:
        """Return the statistics that an object keeps whole; None where they are made of what it keeps, or of data."""
        return None

    @abstractmethod
    def sums_of_rows(self, rows: SiteRows) -> SiteSums:
        """Return the sums of rows."""

    def is_loose(self, parameters: Mapping[str, Json]) -> bool:
        """Return whether `fit` would stop at a tolerance, or draw at random, where the sums are solved exactly."""
        return any(parameters.get(name) in values for name, values in self.loose_solvers.items())

    def sums_of_model(self, model: Any, rows: SiteRows) -> SiteSums:
        """Return the sums of rows for a model that was fitted to them; those of the rows alone, unless it is named."""
        return self.sums_of_rows(rows)

    def sums_of_fitted(self, model: Any, n_observations: float | None) -> SiteSums:
        """Return the sums that a fitted object keeps.

        Raises
        ------
        InputError
            Where it does not keep all of them.
        """
        text = f"does not keep {self.lacks}"
        remedy = "describe it where its data are: `cs.describe(model, data=" + (
            "X)`" if self.needs == "nothing" else "(X, y))`"
        )
        raise InputError(f"a {self.class_name}", text, remedy, "E-DESCRIBE")

    def written_like(self, fused: Any, like: Any) -> Any:
        """Return a fused model in the form of one that was fused, where sums alone cannot give it; as it is here."""
        return fused

    @abstractmethod
    def rebuild(self, statistics: Statistics) -> Any:
        """Return the fitted estimator of its sums.

        Raises
        ------
        InputError
            Where the sums of all do not determine it.
        """


class RefittedAdapter(EstimatorAdapter):
    """One class of estimators that are made anew, and get from sums what ``fit`` would set."""

    @abstractmethod
    def fit_sums(self, model: Any, statistics: Statistics) -> None:
        """Set on a new estimator with its hyper-parameters what ``fit`` would, or raise where sums do not say it."""

    def rebuild(self, statistics: Statistics) -> Any:
        """Return the fitted estimator of its sums."""
        model = new_estimator(self.module, self.class_name, statistics.parameters)
        model.n_features_in_ = statistics.n_columns
        if statistics.features.from_columns and statistics.features.names is not None:
            model.feature_names_in_ = np.array(statistics.features.names, dtype=object)
        if statistics.classes is not None and not isinstance(getattr(type(model), "classes_", None), property):
            model.classes_ = statistics.classes.array()
        self.fit_sums(model, statistics)
        return model


class JointMomentsAdapter(EstimatorAdapter):
    """What regressions have in common: joint moments of columns and targets."""

    needs: ClassVar[Needs] = "targets"

    def sums_of_rows(self, rows: SiteRows) -> SiteSums:
        """Return joint moments."""
        return joint_moments(rows)


class ClassMomentsAdapter(EstimatorAdapter):
    """What classifiers by means and scatters of classes have in common."""

    needs: ClassVar[Needs] = "classes"

    def sums_of_rows(self, rows: SiteRows) -> SiteSums:
        """Return the moments of each class."""
        return SiteSums({ROWS: moments_of_classes(rows, diagonal=self.is_diagonal and not rows.products)})


def new_estimator(module: str, name: str, parameters: Mapping[str, Json]) -> Any:
    """Return an estimator with these hyper-parameters, not fitted."""
    made = getattr(import_module(module), name)
    known = made._get_param_names()  # of scikit-learn's base class, sorted
    if unknown := [key for key in parameters if key not in known]:
        text = f"has no hyper-parameter {with_suggestions(unknown, known)}; it has {', '.join(known)}"
        raise InputError(f"a {name}", text, "", "E-OPTION")
    try:
        model = made(**{key: decode(value) for key, value in parameters.items()})
        model._validate_params()  # what fit itself would refuse, such as a negative penalty
    except (TypeError, ValueError) as error:
        raise InputError(f"a {name}", f"cannot be made with these hyper-parameters: {error}") from None
    return model


def joint_moments(rows: SiteRows) -> SiteSums:
    """Return the moments of columns and targets together."""
    y = rows.y if rows.y.ndim == 2 else rows.y[:, None]
    return SiteSums({ROWS: CentredMoments.of_rows(np.hstack([rows.dense, y]), rows.weights)})


def moments_of_classes(rows: SiteRows, *, diagonal: bool, weighted: bool = True) -> CentredMoments:
    """Return the moments of the rows of each class (C,)."""
    X = rows.dense
    records = []
    for number in range(rows.n_classes):
        members = np.flatnonzero(rows.numbers == number)
        weights = None if rows.weights is None or not weighted else rows.weights[members]
        records.append(CentredMoments.of_rows(X[members], weights, diagonal=diagonal))
    stacked = {name: np.stack([getattr(record, name) for record in records]) for name in _PARTS}
    return CentredMoments(**stacked)


def names_with_targets(statistics: Statistics, count: int) -> tuple[str, ...]:
    """Return what messages call the columns and, after them, the targets: `count` names in all."""
    d = statistics.n_columns
    names = statistics.features.names or tuple(f"column {number}" for number in range(d))
    outcome = statistics.design.outcome
    targets = tuple("target" if count - d == 1 else f"target {number}" for number in range(count - d))
    return (*names, *(outcome if outcome is not None and len(outcome) == count - d else targets))


_PARTS = ("n", "weight", "log_weight", "mean", "scatter")


def whole_moments(statistics: Statistics, name: str = ROWS) -> CentredMoments:
    """Return the moments of all rows, whatever their class."""
    record = statistics.moments[name]
    return record if statistics.classes is None else record.total()


def require_two_classes(statistics: Statistics) -> None:
    """Raise where all rows are of one class, which no classifier tells from another."""
    if len(statistics.classes or ()) < 2:
        text = "has one class in all, expected two or more"
        raise InputError("", text, "fuse sites that know others too", "E-NUMBER")


def class_priors(statistics: Statistics, parameter: str = "priors") -> Array:
    """Return the probabilities of the classes (C,): as given, or their shares of rows."""
    given = statistics.parameters.get(parameter)
    if given is not None:
        return np.asarray(given, dtype=np.float64)
    weight = statistics.rows.weight
    shares: Array = weight / weight.sum()
    return shares
