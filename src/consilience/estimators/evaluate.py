"""Evaluation of estimators: a fused one and a site's own on the site's rows, by the score of their class.

Classifiers: accuracy, and cross-entropy where they give probabilities. Regressions: squared error, and R^2.
Covariances, principal components and factors: the log-likelihood of rows under their Gaussian; projections without one:
the squared distance of rows to their projections. Approximations of laplace-torch: the log density that they predict.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from consilience.checks import Array
from consilience.core.evaluation import MIN_OBSERVATIONS, Evaluation, RowScore, Score
from consilience.core.features import final_model, is_pipeline
from consilience.core.inputs import NamedInput
from consilience.core.inspection import MAX_LISTED
from consilience.core.observations import ExpectedColumns, read_observations
from consilience.core.scores import ScoreKind, paired_difference
from consilience.errors import ConsilienceError, InputError, OptionError, UnsupportedError
from consilience.estimators.adapters.base import EstimatorAdapter
from consilience.estimators.adapters.laplace_torch import LaplaceTorchAdapter
from consilience.estimators.adapters.table import adapter_for
from consilience.estimators.describe import is_estimator, n_columns_of
from consilience.estimators.files import read_statistics
from consilience.estimators.fusion import EstimatorFusion
from consilience.estimators.heads.model import FittedHead
from consilience.estimators.laplace_scores import laplace_scores
from consilience.estimators.rebuild import rebuild
from consilience.estimators.site_rows import SiteRows, names_within, read_rows
from consilience.estimators.statistics import Statistics
from consilience.files.csv import read_csv
from consilience.files.labelled_arrays import read_class_labels, read_labelled_arrays
from consilience.files.tables import as_named_table, read_named_table

_HELD_OUT = "use data that neither model was trained on; scores on a model's own training data favour that model"


def evaluate_estimators(fused: NamedInput, local: NamedInput, data: Any, labels: Any, module: Any = None) -> Evaluation:
    """Compare two estimators; see ``consilience.evaluate``. A module is what computes the features of heads."""
    models = [_fitted(one) for one in (fused, local)]
    adapters = [_adapter(model) for model in models]
    if adapters[0].kind != adapters[1].kind:
        text = f"is a {adapters[1].kind}, expected a {adapters[0].kind} as {fused.label}"
        raise InputError(local.label, text, code="E-MISMATCH")
    if isinstance(adapters[0], LaplaceTorchAdapter):
        if module is not None:
            raise OptionError("module", "is for networks and heads on their features, and these models are none")
        of_fused, of_own = laplace_scores(models, (fused.label, local.label), adapters[0], data, labels)
        return _compared(of_fused, of_own)
    widths = [n_columns_of(model) for model in models]
    if widths[0] != widths[1]:
        raise InputError(local.label, f"has {widths[1]} columns, expected {widths[0]} as {fused.label}", code="E-SHAPE")
    if not adapters[0].has_score:
        text = "has no score of single rows here"
        raise UnsupportedError(f"a {adapters[0].class_name}", text, "compare what its predict gives")
    if isinstance(models[0], FittedHead) or isinstance(models[1], FittedHead):
        models, data = _on_features(models, (fused, local), data, labels, module)
        labels = None
    elif module is not None:
        raise OptionError("module", "is for networks and heads on their features, and these models are none")
    rows = _rows(models, adapters[0], data, labels)
    of_fused, of_own = (_scores(adapters[0], model, rows) for model in models)
    of_fused, of_own = of_fused[: len(of_own)], of_own[: len(of_fused)]
    more = _explained(rows, of_fused[0], of_own[0]) if adapters[0].needs == "targets" else []
    return _compared(of_fused, of_own, more, _unknown_classes(models, rows) if adapters[0].needs == "classes" else [])


def _explained(rows: SiteRows, of_fused: RowScore, of_own: RowScore) -> list[Score]:
    """Return R^2 by squared errors of both models; nothing of targets that do not vary."""
    total = float(((rows.y - rows.y.mean(axis=0)) ** 2).reshape(rows.n, -1).sum())
    if total <= 0:
        return []
    by_fused, by_own = (1.0 - float(one[3].sum()) / total for one in (of_fused, of_own))
    return [Score("R^2", "", True, by_fused, by_own, ScoreKind.DISTANCE)]


def _unknown_classes(models: list[Any], rows: SiteRows) -> list[str]:
    """Return the classes of rows that models do not know, a line each."""
    notes = []
    for called, model in zip(("the fused model", "your own model"), models, strict=True):
        unknown = sorted(set(map(str, rows.y.tolist())) - set(map(str, model.classes_.tolist())))
        if unknown:
            notes.append(f"{called} does not know the class {', '.join(unknown[:8])}")
    return notes


def _compared(
    of_fused: Sequence[RowScore], of_own: Sequence[RowScore], more: Sequence[Score] = (), notes: Sequence[str] = ()
) -> Evaluation:
    """Return the comparison of the same scores of two models by row, of which the first is paired."""
    scores = [
        Score(a[0], a[1], a[2], float(a[3].mean()), float(b[3].mean()), a[4])
        for a, b in zip(of_fused, of_own, strict=True)
    ]
    n = len(of_fused[0][3])
    limits = [_HELD_OUT, *([f"only {n} rows: the interval is rough"] if n < MIN_OBSERVATIONS else []), *notes]
    difference = paired_difference(of_fused[0][3], of_own[0][3], np.ones(n))
    return Evaluation((*scores, *more), difference, tuple(limits), what="estimator")


def _fitted(one: NamedInput) -> Any:
    """Return an input as a fitted estimator."""
    try:
        if one.file is not None:
            return rebuild(read_statistics(one.file)[0])
        if isinstance(one.model, EstimatorFusion):
            return one.model.model
        if isinstance(one.model, Statistics):
            return rebuild(one.model)
    except ConsilienceError as error:
        raise type(error)(
            problem if problem.subject == one.label else problem.about(one.label) for problem in error.problems
        ) from error
    if not is_estimator(one.model):
        raise InputError(one.label, f"is a {type(one.model).__name__}, expected an estimator", code="E-TYPE")
    return one.model.model if hasattr(one.model, "error_curve") else one.model


def _on_features(
    models: list[Any], inputs: tuple[NamedInput, NamedInput], data: Any, labels: Any, module: Any
) -> tuple[list[Any], Any]:
    """Return heads as classifiers of features, and the features with the classes of the data."""
    if models[0].features_record_ != models[1].features_record_:
        text = f"is on other features than {inputs[0].label}"
        raise InputError(inputs[1].label, text, "compare heads on the same", "E-MISMATCH")
    if module is not None:
        models = [model.with_features(module) for model in models]
    features, own_labels = models[0].labelled_features(data if labels is None else (_inputs(data), labels))
    if isinstance(own_labels, str | Path):
        own_labels = np.asarray(read_class_labels(Path(own_labels), "data", len(features), "labels"))
    return [model.on_features() for model in models], (np.asarray(features, dtype=np.float64), own_labels)


def _inputs(data: Any) -> Any:
    """Return inputs of features: those in a file, or as they are given."""
    return read_labelled_arrays(Path(data)).inputs if isinstance(data, str | Path) else data


def _adapter(model: Any) -> EstimatorAdapter:
    adapter = adapter_for(final_model(model) if is_pipeline(model) else model)
    if adapter is None:
        raise UnsupportedError(f"a {type(model).__name__}", "is no estimator that is fused by its sums")
    return adapter


def _rows(models: list[Any], adapter: EstimatorAdapter, data: Any, labels: Any) -> SiteRows:
    """Return the rows, with their classes or targets."""
    first = models[0]
    columns = names_within(data, adapter.features_of(first))
    if labels is not None:
        data = _labelled(data, labels, n_columns_of(first), columns, adapter)
    rows = read_rows(data, None, n_columns_of(first), columns, adapter.needs, may_be_sparse=False)
    return SiteRows(rows.X, _as_known(models, rows.y), rows.weights) if adapter.needs == "classes" else rows


def _as_known(models: list[Any], labels: Any) -> Any:
    """Return the labels of rows as the models have them: of the class 1, a table may have 1.0 or the text "1".

    Raises where no row is of a class that a model knows, since a score of 0 would say nothing of the models.
    """
    known = [label for model in models for label in model.classes_.tolist()]
    by_value, by_name = {label: label for label in known}, {str(label): label for label in known}
    found = np.asarray(labels).tolist()
    values = [by_value.get(label, by_name.get(str(label), label)) for label in found]
    if found and not any(value in by_value for value in values):
        text = f"has the classes {_listed(found)}, of which no model knows any; they know {_listed(known)}"
        raise InputError("the data", text, "write classes as the models were fitted to them", "E-MISMATCH")
    return np.array(values, dtype=object)


def _listed(labels: Sequence[Any]) -> str:
    return ", ".join(sorted(set(map(str, labels)))[:MAX_LISTED])


def _labelled(
    data: Any, labels: Any, n_columns: int, columns: tuple[str, ...] | None, adapter: EstimatorAdapter
) -> Any:
    """Return (X, y), where labels are a column of a table, a file, or a separate array."""
    if isinstance(labels, str) and (found := _with_column(data, labels, columns, adapter)) is not None:
        return found
    if not isinstance(labels, str | Path):
        return data, labels
    X = read_observations(data, None, ExpectedColumns(n_columns, columns, False)).values
    values = np.asarray(read_class_labels(Path(labels), "data", len(X), "labels"))
    if adapter.needs != "targets":
        return X, values
    try:
        return X, values.astype(np.float64)
    except ValueError:
        text = f"expected numbers for a {adapter.class_name}, found {values[0]!r}"
        raise InputError(f"{labels}", text, code="E-TYPE") from None


def _with_column(data: Any, name: str, columns: tuple[str, ...] | None, adapter: EstimatorAdapter) -> Any:
    """Return (X, y) of a table with a column of this name; None of what has none."""
    suffix = Path(data).suffix.lower() if isinstance(data, str | Path) else ""
    if suffix == ".csv":
        table = read_csv(Path(data), columns)
        header = table.header or ()
        if name in header:
            used = [n for n, one in enumerate(header) if one != name and one in (columns or header)]
            y = table.column(name)
            return table.numbers(used), np.asarray(y, dtype=np.float64) if adapter.needs == "targets" else np.array(y)
    named = read_named_table(Path(data)) if suffix == ".parquet" else as_named_table(data)
    return (named, name) if named is not None and name in named.header else None


def _scores(adapter: EstimatorAdapter, model: Any, rows: SiteRows) -> list[RowScore]:
    """Return the scores of every row, the class's own first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # rows here have no names of columns
        if adapter.needs == "classes":
            return _classification_scores(model, rows)
        if adapter.needs == "targets":
            errors = (np.asarray(model.predict(rows.X)).reshape(rows.n, -1) - rows.y.reshape(rows.n, -1)) ** 2
            return [("squared error", "squared units per row", False, errors.sum(axis=1), ScoreKind.DISTANCE)]
        return [_moment_score(adapter, model, rows.X)]


def _classification_scores(model: Any, rows: SiteRows) -> list[RowScore]:
    X = rows.X.astype(np.int64) if type(model).__name__ == "CategoricalNB" else rows.X
    correct = 100.0 * (np.asarray(model.predict(X)).astype(str) == np.asarray(rows.y).astype(str))
    scores: list[RowScore] = [("accuracy", "percentage points", True, correct, ScoreKind.AGREEMENT)]
    names = [str(label) for label in model.classes_.tolist()]
    position_of = {name: position for position, name in enumerate(names)}
    has_probabilities = hasattr(model, "predict_log_proba") and getattr(model, "has_probabilities", True)
    if has_probabilities and all(str(label) in position_of for label in rows.y.tolist()):
        log_probabilities = np.asarray(model.predict_log_proba(X))
        own = log_probabilities[np.arange(rows.n), [position_of[str(label)] for label in rows.y.tolist()]]
        if np.all(np.isfinite(own)):
            scores.append(("cross-entropy", "nats per row", False, -own, ScoreKind.PLUG_IN))
    return scores


def _moment_score(adapter: EstimatorAdapter, model: Any, X: Array) -> RowScore:
    """Return the log-likelihood of rows, or their squared distance to their projections."""
    if hasattr(model, "score_samples"):
        return "log-likelihood", "nats per row", True, np.asarray(model.score_samples(X)), ScoreKind.PLUG_IN
    inner = final_model(model) if is_pipeline(model) else model
    if hasattr(inner, "location_"):
        Z = model[:-1].transform(X) if is_pipeline(model) and len(model.steps) > 1 else X
        precision = np.asarray(inner.get_precision())
        centred = Z - inner.location_
        distances = np.einsum("ij,jk,ik->i", centred, precision, centred)
        log_determinant = float(np.linalg.slogdet(precision)[1])
        values = 0.5 * (log_determinant - Z.shape[1] * np.log(2 * np.pi) - distances)
        return "log-likelihood", "nats per row", True, values, ScoreKind.PLUG_IN
    if hasattr(model, "inverse_transform") and hasattr(inner, "components_"):
        errors = ((model.inverse_transform(model.transform(X)) - X) ** 2).sum(axis=1)
        return "squared distance to the projection", "squared units per row", False, errors, ScoreKind.DISTANCE
    raise UnsupportedError(f"a {adapter.class_name}", "says nothing of rows that could be scored")
