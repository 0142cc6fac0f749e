"""Rebuild: the fitted estimator of its statistics, or the fitted Pipeline of the statistics before its steps.

A step of a Pipeline is rebuilt from the moments of the columns that reach it; it is affine, z = M x + t, so the moments
that leave it follow. Every step is then what ``fit`` would make it on the rows of all sites. The parts of a
ColumnTransformer are scalers, columns as they are, and columns left out: each is an affine function of its own columns,
so the whole is one with one entry in every row of M.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from consilience.catalogue import suggestion
from consilience.checks import Array, Json
from consilience.core.features import Features
from consilience.errors import ConsilienceError, InputError, OptionError, Problem, UnsupportedError
from consilience.estimators.adapters.base import new_estimator, whole_moments
from consilience.estimators.adapters.scalers import set_scaler
from consilience.estimators.adapters.table import adapter_of_kind
from consilience.estimators.hyper_parameters import encode, encoded_parameters
from consilience.estimators.statistics import ROWS, Statistics, Step, is_by_class
from consilience.families.centred_moments import CentredMoments

PASSTHROUGH = "passthrough"
"""The kind of a step that does nothing."""

COLUMN_TRANSFORMER = "sklearn.ColumnTransformer"
"""The kind of a step of several parts."""

_WORDS = (PASSTHROUGH, "drop")
"""What may stand in the place of a transformer."""


def rebuild(statistics: Statistics, parameters: Mapping[str, Json] | None = None) -> Any:
    """Return the fitted estimator of the sums of one site, or of all; `parameters` replace those that they name.

    It raises where the sums do not determine the estimator, as covariances of fewer rows than columns.
    """
    statistics = with_parameters(statistics, parameters or {})
    adapter = adapter_of_kind(statistics.kind)
    if refusal := adapter.refusal(statistics.parameters):
        raise InputError([refusal])
    if problems := too_few_rows(statistics):
        raise InputError(problems)
    try:
        return adapter.rebuild(statistics) if statistics.last_step is None else _rebuild_pipeline(statistics)
    except ConsilienceError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Of hyper-parameters that scikit-learn does not take, which a file of a stranger may have.
        text = f"cannot be made of these hyper-parameters and sums ({str(error).partition(chr(10))[0][:200]})"
        raise InputError(f"a {adapter.class_name}", text) from error


def _rebuild_pipeline(statistics: Statistics) -> Any:
    """Return the fitted Pipeline of statistics of the data before its steps."""
    from sklearn.pipeline import Pipeline

    last_step, adapter = statistics.last_step, adapter_of_kind(statistics.kind)
    steps, leaving, _ = apply_steps(statistics)
    return Pipeline([*steps, (last_step, adapter.rebuild(leaving))])


def apply_steps(statistics: Statistics) -> tuple[list[tuple[str, Any]], Statistics, tuple[Array, Array]]:
    """Return the fitted steps of a Pipeline by name, the statistics of what leaves them, and their map of columns.

    The map is M (m, d) and t (m,) of z = M x + t, of d columns before the steps and m after.
    """
    steps: list[tuple[str, Any]] = []
    matrix, shift = np.eye(statistics.n_columns), np.zeros(statistics.n_columns)
    for step in statistics.steps:
        fitted, statistics, (of_step, by_step) = _apply(step, statistics)
        steps.append((step.name, fitted))
        matrix, shift = of_step @ matrix, of_step @ shift + by_step
    return steps, statistics, (matrix, shift)


def too_few_rows(statistics: Statistics) -> list[Problem]:
    """Return that there are no rows, or none of some class, a line each."""
    if statistics.classes is None:
        n = statistics.n_observations
        return [] if n >= 1 else [Problem("", f"has {n:g} rows in all, expected some", code="E-FEW")]
    counts = statistics.row_counts
    names = [name for name, count in zip(statistics.classes.names, counts, strict=True) if not count > 0]
    if not names:
        return []
    return [Problem("", f"has no rows of class {', '.join(names[:8])} at any site", "leave that class out", "E-SHAPE")]


def with_parameters(statistics: Statistics, parameters: Mapping[str, Json]) -> Statistics:
    """Return statistics with other hyper-parameters; values by class may be a mapping from labels."""
    if not parameters:
        return statistics
    adapter = adapter_of_kind(statistics.kind)
    for name, value in parameters.items():
        if name not in statistics.parameters:
            known = ", ".join(sorted(statistics.parameters)) or "none"
            meant = suggestion(name, statistics.parameters)
            raise OptionError(name, f"is no hyper-parameter of a {adapter.class_name}{meant}; it has {known}")
        if name in adapter.sum_parameters and encode(name, value) != statistics.parameters[name]:
            raise OptionError(name, "was used where sums were taken, so another value asks for other sums")
    changed = {name: _by_class(statistics, name, value) for name, value in parameters.items()}
    return replace(statistics, parameters={**statistics.parameters, **changed})


def _by_class(statistics: Statistics, name: str, value: Any) -> Any:
    """Return a hyper-parameter as JSON values, a mapping from labels in the order of the classes."""
    classes = statistics.classes
    if classes is not None and isinstance(value, Mapping) and is_by_class(name, []):
        if set(value) != set(classes.values):
            raise OptionError(name, f"expected a value for each of the classes {', '.join(classes.names[:8])}")
        value = [float(value[label]) for label in classes.values]
    encoded = encode(name, value)
    if classes is not None and is_by_class(name, encoded) and len(encoded) != len(classes):
        raise OptionError(name, f"has {len(encoded)} values, expected {len(classes)}: {', '.join(classes.names[:8])}")
    return encoded


def steps_of(pipeline: Any) -> tuple[Step, ...]:
    """Return the steps of a Pipeline before its last.

    A step that is no affine function of columns, or not one of their moments, is refused by its name.
    """
    steps = []
    for name, step in pipeline.steps[:-1]:
        if step is None or (isinstance(step, str) and step == PASSTHROUGH):
            steps.append(Step(name, PASSTHROUGH, {}))
            continue
        kind = f"sklearn.{type(step).__name__}"
        if kind == COLUMN_TRANSFORMER and type(step).__module__.startswith("sklearn."):
            try:
                steps.append(Step(name, kind, encoded_transformer(step)))
            except UnsupportedError as error:
                raise UnsupportedError(problem.about(f"step {name!r}") for problem in error.problems) from error
            continue
        if kind not in _MAPS or not type(step).__module__.startswith("sklearn."):
            known = ", ".join(known.rpartition(".")[2] for known in (*_MAPS, COLUMN_TRANSFORMER))
            text = f"is a {type(step).__name__}, not fitted from moments of columns alone; those that are: {known}"
            remedy = "do the same to the data at all sites before, and describe the last step alone"
            raise UnsupportedError(f"step {name!r}", text, remedy)
        steps.append(Step(name, kind, encoded_parameters(step)))
    return tuple(steps)


def encoded_transformer(transformer: Any) -> dict[str, Any]:
    """Return the parts of a fitted ColumnTransformer as JSON values, their columns by number."""
    if transformer.transformer_weights is not None:
        raise UnsupportedError("transformer_weights", "are not carried", "leave them out")
    positions = transformer._transformer_to_input_indices  # by name of the part, names of columns resolved
    parts = []
    for name, part, _ in transformer.transformers:
        if isinstance(part, str):
            parts.append({"name": name, "part": part, "columns": list(map(int, positions[name]))})
            continue
        _require_scaler(name, part)
        columns = list(map(int, positions[name]))
        parts.append({"name": name, "part": encoded_parameters(part), "columns": columns})
    if not isinstance(transformer.remainder, str):
        raise UnsupportedError("remainder", "is an estimator, expected 'drop' or 'passthrough'", "name its columns")
    return {
        "parts": parts,
        "remainder": transformer.remainder,
        "verbose_feature_names_out": bool(transformer.verbose_feature_names_out),
    }


def _require_scaler(name: str, part: Any) -> None:
    if type(part).__name__ != "StandardScaler" or not type(part).__module__.startswith("sklearn."):
        text = f"is a {type(part).__name__}, and only StandardScaler, 'passthrough' and 'drop' follow from moments"
        raise UnsupportedError(f"part {name!r}", text, "do the same to the data at all sites before")


def _made(part: Any) -> Any:
    return part if part in _WORDS else new_estimator("sklearn.preprocessing", "StandardScaler", part)


def rebuild_transformer(
    parameters: Mapping[str, Any], columns: CentredMoments, features: Features
) -> tuple[Any, Array, Array]:
    """Return a fitted ColumnTransformer with its map z = M x + t.

    It is made of what ``encoded_transformer`` returned, the moments of the d columns that reach it, and their names.
    """
    from sklearn.compose import ColumnTransformer

    d = columns.n_columns
    transformer = ColumnTransformer(
        [(part["name"], _made(part["part"]), part["columns"]) for part in parameters["parts"]],
        remainder=parameters["remainder"],
        verbose_feature_names_out=parameters["verbose_feature_names_out"],
    )
    # Fitting sets how parts lie beside one another, for which any rows serve; then each scaler gets its moments.
    transformer.fit(np.stack([np.zeros(d), np.ones(d)]))
    names = np.array(features.names, dtype=object) if features.from_columns and features.names is not None else None
    if names is not None:
        transformer.feature_names_in_ = names
    rows, shifts = [], []
    used: set[int] = set()
    for name, part, chosen in transformer.transformers_:
        if name == "remainder" and parameters["remainder"] != "drop":
            chosen = sorted(set(range(d)) - used)
        used |= set(chosen)
        if isinstance(part, str) and part == "drop":
            continue
        scale, mean = np.ones(len(chosen)), np.zeros(len(chosen))
        if hasattr(part, "with_std"):
            set_scaler(part, columns.columns(np.array(chosen, dtype=np.int64)).by_column())
            if names is not None:
                part.feature_names_in_ = names[chosen]
            scale = scale if part.scale_ is None else part.scale_
            mean = part.mean_ if part.with_mean else mean
        rows.append(np.eye(d)[chosen] / scale[:, None])
        shifts.append(-mean / scale)
    return transformer, np.vstack(rows), np.concatenate(shifts)


def mixes_columns(steps: tuple[Step, ...]) -> bool:
    """Return whether a step makes columns of several others, so that products of columns are needed."""
    return any(step.kind not in (PASSTHROUGH, "sklearn.StandardScaler", COLUMN_TRANSFORMER) for step in steps)


def _apply(step: Step, statistics: Statistics) -> tuple[Any, Statistics, tuple[Array, Array]]:
    """Return a fitted step, the statistics of what leaves it, and its map of columns."""
    d = statistics.n_columns
    if step.kind == PASSTHROUGH:
        return PASSTHROUGH, statistics, (np.eye(d), np.zeros(d))
    record = statistics.rows
    columns = whole_moments(statistics).columns(slice(0, d))
    features, inner = statistics.features, Features()
    if step.kind == COLUMN_TRANSFORMER:
        fitted, matrix, shift = rebuild_transformer(step.parameters, columns, features)
    else:
        fitted = adapter_of_kind(step.kind).rebuild(
            Statistics(step.kind, step.parameters, d, {ROWS: columns}, features=features)
        )
        matrix, shift = _MAPS[step.kind](fitted)
    leaving = replace(statistics, n_columns=len(shift), features=inner, steps=statistics.steps[1:])
    of_columns = matrix, shift
    targets = record.n_columns - d
    if targets:  # which no step changes
        zeros = np.zeros((len(shift), targets))
        matrix = np.block([[matrix, zeros], [np.zeros((targets, d)), np.eye(targets)]])
        shift = np.concatenate([shift, np.zeros(targets)])
    images = {name: _image(moments, matrix, shift, step) for name, moments in statistics.moments.items()}
    return fitted, replace(leaving, moments=images), of_columns


def _image(record: CentredMoments, matrix: Array, shift: Array, step: Step) -> CentredMoments:
    try:
        return record.affine_image(matrix, shift)
    except InputError as error:
        raise InputError(problem.about(f"step {step.name!r}") for problem in error.problems) from error


def _standardisation(step: Any) -> tuple[Array, Array]:
    """Return M and t of z = (x - mean) / scale."""
    d = int(step.n_features_in_)
    scale = np.ones(d) if step.scale_ is None else np.asarray(step.scale_)
    mean = np.asarray(step.mean_) if step.with_mean else np.zeros(d)
    return np.diag(1.0 / scale), -mean / scale


def _projection(step: Any) -> tuple[Array, Array]:
    """Return M and t of z = V (x - mean), divided by deviations where the step whitens."""
    axes = np.asarray(step.components_)
    if step.whiten:
        axes = axes / np.sqrt(step.explained_variance_)[:, None]
    return axes, -axes @ np.asarray(step.mean_)


_MAPS: dict[str, Callable[[Any], tuple[Array, Array]]] = {
    "sklearn.StandardScaler": _standardisation,
    "sklearn.PCA": _projection,
    "sklearn.IncrementalPCA": _projection,
    "sklearn.TruncatedSVD": lambda step: (np.asarray(step.components_), np.zeros(len(step.components_))),
}
"""The map of a fitted step, by its class."""
