"""Scores of approximations of laplace-torch on rows, by the predictive distribution over their weights.

Classifiers: minus the log probability of the class of every row, then accuracy. Regressions, whose outputs have the
predictive mean m(x) and covariance S(x) (c, c), where s is the deviation of the noise: the log density

    log N(y | m(x), S(x) + s^2 I)

of every row, then the squared error of the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from consilience.checks import Array
from consilience.core.evaluation import RowScore
from consilience.core.scores import ScoreKind
from consilience.errors import InputError, UnsupportedError
from consilience.estimators.adapters.laplace_torch import LaplaceTorchAdapter
from consilience.estimators.fused_laplace import FusedLaplace
from consilience.files.labelled_arrays import read_class_labels, read_labelled_arrays

BATCH_ROWS = 256
"""Rows of which laplace-torch holds the Jacobians (rows, outputs, weights) at a time. Chosen by hand."""


def laplace_scores(
    models: Sequence[Any], names: Sequence[str], adapter: LaplaceTorchAdapter, data: Any, labels: Any
) -> list[list[RowScore]]:
    """Return the scores of every row by each of two approximations, which messages call `names`.

    A normal distribution without a network predicts with that of the other; one of the two must have one. Rows are
    ``(X, y)``, or X (n, ...) and y apart, or the path of a .npz with x and y.
    """
    of_fused, of_own = (adapter.parameters_of(model) for model in models)
    for what in ("likelihood", "n_outputs"):
        if of_fused.get(what) != of_own.get(what):
            text = f"has {what} {of_own.get(what)}, expected {of_fused.get(what)} as {names[0]}"
            raise InputError(names[1], text, "compare models that predict the same", "E-MISMATCH")
    likelihood, n_outputs = str(of_fused["likelihood"]), int(of_fused["n_outputs"])
    if likelihood not in ("classification", "regression"):
        text = f"of likelihood {likelihood!r} has no score here"
        raise UnsupportedError(f"a {adapter.class_name}", text, "compare what it predicts")
    approximations = _with_networks(models, names, adapter)
    X, y, called = _inputs(data, labels)
    if likelihood == "classification":
        classes = _classes(y, len(X), n_outputs)
        return [_classification_scores(_predicted(model, X, called)[0], classes) for model in approximations]
    targets = _targets(y, len(X), n_outputs)
    found = []
    for model, name in zip(approximations, names, strict=True):
        means, covariances = _predicted(model, X, called)
        found.append(_regression_scores(means, covariances, float(model.sigma_noise), targets, name))
    return found


def _with_networks(models: Sequence[Any], names: Sequence[str], adapter: LaplaceTorchAdapter) -> list[Any]:
    """Return approximations that predict: a law without a network is put into the other's class."""
    holder = next((number for number, model in enumerate(models) if not isinstance(model, FusedLaplace)), None)
    if holder is None:
        text = "has no network in its file, so that it predicts nothing"
        remedy = (
            'compare in Python with your own, as it was fitted: `cs.evaluate("fused.safetensors", laplace, (X, y))`'
        )
        raise UnsupportedError(f"a {adapter.class_name}", text, remedy)
    try:
        return [
            adapter.written_like(model, models[holder]) if isinstance(model, FusedLaplace) else model
            for model in models
        ]
    except InputError as error:
        raise InputError(problem.without_subject().about(names[holder]) for problem in error.problems) from error


def _inputs(data: Any, labels: Any) -> tuple[Any, Any, str]:
    """Return X as an array or a tensor, y, and what to call X."""
    called = "data"
    if isinstance(data, str | Path):
        arrays = read_labelled_arrays(Path(data))
        data, labels, called = arrays.inputs, arrays.labels if labels is None else labels, str(data)
    elif isinstance(data, tuple) and len(data) == 2 and labels is None:
        data, labels = data
    X = data if hasattr(data, "detach") else np.asarray(data)
    if not hasattr(X, "detach") and X.dtype.kind not in "biuf":
        raise InputError(called, f"expected numbers, found an array of type {X.dtype}", code="E-TYPE")
    if X.ndim == 0 or len(X) == 0:
        raise InputError(called, f"expected rows, found shape {tuple(X.shape)}", code="E-SHAPE")
    if not np.isfinite(_array(X)).all():
        raise InputError(called, "has NaN or infinite entries", "take them out", "E-NUMBER")
    if labels is None:
        text = "has no y, which this model is fitted to"
        raise InputError(called, text, "give `data=(X, y)`, or a .npz with x and y", "E-NEEDED")
    if isinstance(labels, str | Path):
        labels = read_class_labels(Path(labels), called, len(X), "labels")
    return X, _array(labels), called


def _array(values: Any) -> Any:
    """Return a tensor, or what is like an array, as an array."""
    return np.asarray(values.detach().cpu().numpy() if hasattr(values, "detach") else values)


def _numbers(y: Any, expected: str) -> Array:
    try:
        numbers: Array = y.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError("labels", f"expected {expected}, found {str(y.ravel()[0])!r:.40}", code="E-NUMBER") from None
    return numbers


def _classes(y: Any, n: int, n_classes: int) -> Any:
    """Return the class of every row as a number from 0 (n,)."""
    expected = f"numbers of classes from 0 to {n_classes - 1}"
    numbers = _numbers(y, expected)
    if numbers.size != n or numbers.shape[:1] != (n,):
        text = f"expected one class for each of the {n} rows, found shape {numbers.shape}"
        raise InputError("labels", text, code="E-SHAPE")
    numbers = numbers.ravel()
    odd = np.flatnonzero(~np.isin(numbers, np.arange(n_classes)))
    if len(odd):
        text = f"row {odd[0]}, counted from 0, has {numbers[odd[0]]:g}, expected {expected}"
        raise InputError("labels", text, code="E-NUMBER")
    return numbers.astype(np.int64)


def _targets(y: Any, n: int, n_outputs: int) -> Array:
    """Return the targets of every row (n, c)."""
    numbers = _numbers(y, "numbers")
    if numbers.shape not in ((n, n_outputs), *([(n,)] if n_outputs == 1 else [])):
        text = f"expected {n_outputs} targets for each of the {n} rows, found {numbers.shape}"
        raise InputError("labels", text, code="E-SHAPE")
    if not np.isfinite(numbers).all():
        raise InputError("labels", "has NaN or infinite entries", "take them out", "E-NUMBER")
    return numbers.reshape(n, n_outputs)


def _predicted(model: Any, X: Any, called: str) -> list[Array]:
    """Return what an approximation predicts: probabilities (n, C), or means (n, c) and covariances (n, c, c)."""
    parts: list[list[Array]] = []
    for start in range(0, len(X), BATCH_ROWS):
        rows = X[start : start + BATCH_ROWS]
        tensor = rows.to(model.mean.device) if hasattr(rows, "detach") else model.mean.new_tensor(rows)
        try:
            found = model(tensor.to(model.mean.dtype) if tensor.is_floating_point() else tensor)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            said = str(error).partition("\n")[0][:200]
            shape = tuple(rows.shape)
            text = f"of shape {shape} a batch, do not fit the network ({said})"
            raise InputError(called, text, code="E-SHAPE") from error
        parts.append([_array(one).astype(np.float64) for one in (found if isinstance(found, tuple) else (found,))])
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


def _classification_scores(probabilities: Array, classes: Any) -> list[RowScore]:
    """Return minus the log probability of every row's class, and whether it is the most probable."""
    # Probabilities are of the network's precision, in which the least ones may be rounded to 0.
    own = np.maximum(probabilities[np.arange(len(classes)), classes], np.finfo(np.float32).tiny)
    correct = 100.0 * (probabilities.argmax(axis=1) == classes)
    return [
        ("cross-entropy", "nats per row", False, -np.log(own), ScoreKind.PREDICTIVE),
        ("accuracy", "percentage points", True, correct, ScoreKind.AGREEMENT),
    ]


def _regression_scores(means: Array, covariances: Array, noise: float, targets: Array, name: str) -> list[RowScore]:
    """Return the log density of every row's targets, and the squared error of the mean."""
    n, c = targets.shape
    errors = targets - means.reshape(n, c)
    of_outputs = covariances.reshape(n, c, c)
    of_targets = (of_outputs + of_outputs.transpose(0, 2, 1)) / 2.0 + noise**2 * np.eye(c)
    try:
        factors = np.linalg.cholesky(of_targets)
    except np.linalg.LinAlgError:
        text = "predicts a covariance that is not positive definite"
        raise InputError(name, text, "fit it in float64", "E-NUMBER") from None
    whitened = np.linalg.solve(factors, errors[:, :, None])[:, :, 0]
    log_determinants = 2.0 * np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(axis=1)
    densities = -0.5 * (c * np.log(2.0 * np.pi) + log_determinants + (whitened**2).sum(axis=1))
    return [
        ("log density", "nats per row", True, densities, ScoreKind.PREDICTIVE),
        ("squared error", "squared units per row", False, (errors**2).sum(axis=1), ScoreKind.DISTANCE),
    ]
