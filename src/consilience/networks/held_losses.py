"""Losses of networks on rows that a site held out, by what the networks answer.

Classes, also of a network of one output, are judged by the error, cross-entropy breaking ties; numbers by the squared
error; language models by the mean loss of the next tokens of a text; tokens or pixels with a class each by the share of
them that is wrong; several outputs by the mean of what each is judged by, squared errors over the variance of the
targets there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from consilience.checks import Array, Labels
from consilience.core.site_losses import RowLosses
from consilience.errors import InputError, UnsupportedError
from consilience.networks.choice.criterion import (
    LARGEST_LOSS,
    Criterion,
    ErrorOnLabels,
    MeanOfHeads,
    NextToken,
    SquaredError,
)
from consilience.networks.classes.heads import find_head
from consilience.networks.classes.logits import two_class_logits
from consilience.networks.descriptions.observations import (
    Batch,
    LabelsOfOutputs,
    are_binary,
    are_classes,
    batches_of_data,
    class_names,
    kind_of_labels,
    label_array,
    numbers_of_classes,
    targets_of,
)
from consilience.networks.descriptions.output_labels import labels_by_output
from consilience.networks.output_layout import OutputLayout, answered, have_next_token, layout_of, tokens_of
from consilience.networks.repair.partial_forward import evaluation_without_gradients


@dataclass(frozen=True, eq=False)
class _Judged:
    """Rows of a batch that are judged, and by what."""

    criterion: Criterion  # of rows (N, k)
    weights: Array  # (n, P), of every row of an input in its mean loss; 0 for rows that are left out
    labels: Labels | None  # (n,), the class of every input


@dataclass(frozen=True)
class _Task:
    """What is judged."""

    name: str  # what a loss is
    is_share: bool  # whether it is a share of rows
    n_classes: int
    judged: Callable[[Batch, Any], _Judged]
    # Networks of one output for two classes return the log odds, or a probability; None for all others.
    one_output: Any = None


def losses_of_networks(modules: Sequence[nn.Module], data: Any) -> RowLosses:
    """Return the losses of networks on a site's held-out rows, read as ``describe`` reads them.

    Raises InputError for data that the networks do not take, or without labels where these are needed, and
    UnsupportedError for networks whose outputs are not understood.
    """
    values: list[list[Array]] = [[] for _ in modules]
    ties: list[list[Array]] = [[] for _ in modules]
    labels: list[Labels | None] = []
    task: _Task | None = None
    layout: OutputLayout | None = None
    for batch in batches_of_data(data, modules[0]):
        inputs = batch.asked
        if task is None or layout is None:
            layout = layout_of(modules[0], inputs)
            task = _task_of(modules[0], layout, batch, inputs)
        judged = task.judged(batch, inputs)
        labels.append(judged.labels)
        for number, module in enumerate(modules):
            rows = _rows(module, layout, task, inputs)
            is_answered = np.isfinite(rows).all(axis=1)  # what answers NaN is wrong, whatever is asked
            worst = 1.0 if task.is_share else LARGEST_LOSS
            for found, losses in ((values, judged.criterion.losses(rows)), (ties, judged.criterion.ties(rows))):
                by_input = np.where(is_answered, losses, worst).reshape(judged.weights.shape)
                found[number].append((by_input * judged.weights).sum(axis=1) / judged.weights.sum(axis=1))
    assert task is not None  # noqa: S101  (narrows the type; `batches_of_data` raises where there are none)
    known = [one for one in labels if one is not None]
    return RowLosses(
        task.name,
        np.stack([np.concatenate(one) for one in values]),
        np.stack([np.concatenate(one) for one in ties]),
        np.concatenate(known) if len(known) == len(labels) else None,
        task.n_classes,
        task.is_share,
    )


def _rows(module: nn.Module, layout: OutputLayout, task: _Task, inputs: Any) -> Array:
    """Return what a network answers as rows (n P, k), those of two classes with two numbers."""
    pieces = []
    with evaluation_without_gradients(module):
        for start in range(0, len(inputs), layout.inputs_at_once):
            rows = layout.rows(answered(module, inputs[start : start + layout.inputs_at_once]))
            rows = rows.detach().to(device="cpu", dtype=torch.float64).reshape(-1, rows.shape[-1])
            pieces.append(rows if task.one_output is None else two_class_logits(rows, task.one_output))
    answers: Array = torch.cat(pieces).numpy()
    return answers


def _task_of(module: nn.Module, layout: OutputLayout, batch: Batch, inputs: Any) -> _Task:
    """Return what networks are judged by, seen on the first rows."""
    if layout.is_next_token:
        return _Task("next-token loss in nats", False, 0, partial(_next_tokens, module))
    if batch.labels is None:
        text = "has no labels, by which networks are judged"
        raise InputError(batch.name, text, "give (X, y)", "E-NEEDED")
    if len(layout.widths) > 1:
        return _heads(layout, batch)
    if isinstance(batch.labels, LabelsOfOutputs):
        text = f"has labels of {len(batch.labels.parts)} outputs, and the networks have one"
        raise InputError(batch.name, text, "give its labels alone", "E-SHAPE")
    if layout.has_positions:
        return _by_position(layout, batch)
    is_binary = layout.size == 1 and kind_of_labels(batch.labels) in "iub" and are_binary(batch.labels)
    if is_binary or (layout.size > 1 and are_classes(batch.labels)):
        names = class_names(2 if is_binary else None, layout.size) or ()
        return _Task(
            "error", True, len(names), lambda one, _: _classes(one, names), _one_output(module, inputs, is_binary)
        )
    return _Task("squared error", False, 0, lambda one, _: _numbers(one, layout))


def _one_output(module: nn.Module, inputs: Any, is_binary: bool) -> Any:
    """Return what a network of one output for two classes returns: log odds, or a probability."""
    if not is_binary:
        return None
    try:
        return "probabilities" if find_head(module, inputs[:4]) is None else "logits"
    except (InputError, UnsupportedError):
        return "probabilities"


def _classes(batch: Batch, names: Sequence[str]) -> _Judged:
    """Judge classes by the error."""
    numbers = numbers_of_classes(batch.labels, names, batch.name)
    if (numbers < 0).any():
        text = f"has {int((numbers < 0).sum())} rows without a class"
        raise InputError(batch.name, text, "take them out", "E-NEEDED")
    return _Judged(ErrorOnLabels(numbers), np.ones((len(numbers), 1)), numbers)


def _numbers(batch: Batch, layout: OutputLayout) -> _Judged:
    """Judge numbers by the squared error."""
    targets = targets_of(batch.labels, layout.size, batch.name)
    return _Judged(SquaredError(targets), np.ones((len(targets), 1)), None)


def _next_tokens(module: nn.Module, batch: Batch, inputs: Any) -> _Judged:
    """Judge language models by the loss of next tokens, the mean of a text."""
    tokens = tokens_of(inputs)
    assert tokens is not None  # noqa: S101  (narrows the type: texts have tokens)
    following = torch.cat([tokens[:, 1:], tokens[:, :1]], dim=1).cpu().numpy()
    weights = np.zeros(following.shape)  # behind the last there is none
    weights[:, :-1] = have_next_token(module, inputs).cpu().numpy()
    if not (weights.sum(axis=1) > 0).all():
        text = "has texts of a single token, which have no next one"
        raise InputError(batch.name, text, "take them out", "E-FEW")
    return _Judged(NextToken(following.ravel()), weights, None)


def _by_position(layout: OutputLayout, first: Batch) -> _Task:
    """Judge tokens or pixels with a class each by the share that is wrong; with numbers by the squared error."""
    if layout.size > 1 and label_array(first.labels).size == len(first.labels) * layout.n_positions:
        return _Task("share of tokens or pixels that are wrong", True, 0, lambda one, _: _classes_at(one, layout))
    return _Task("squared error", False, 0, lambda one, _: _numbers_at(one, layout))


def _classes_at(batch: Batch, layout: OutputLayout) -> _Judged:
    """Judge classes of tokens or pixels; those without a class count for nothing."""
    labels = label_array(batch.labels)
    numbers = numbers_of_classes(labels.reshape(-1), tuple(map(str, range(layout.size))), batch.name)
    weights = (numbers >= 0).astype(np.float64).reshape(len(labels), -1)
    if not (weights.sum(axis=1) > 0).all():
        raise InputError(batch.name, "has rows without any class", "take them out", "E-NEEDED")
    return _Judged(ErrorOnLabels(np.maximum(numbers, 0)), weights, None)


def _numbers_at(batch: Batch, layout: OutputLayout) -> _Judged:
    """Judge numbers at tokens or pixels, which have the axes of the outputs."""
    labels = label_array(batch.labels).astype(np.float64)
    n = len(labels)
    if labels.size != n * layout.n_positions * layout.size:
        text = f"has labels of shape {labels.shape}, and the networks answer {layout.n_positions} rows to an input"
        raise InputError(batch.name, text, "give a label for each", "E-SHAPE")
    rows = labels.reshape(n, -1, 1) if layout.size == 1 else np.moveaxis(labels, layout.class_axis or -1, -1)
    return _Judged(SquaredError(rows.reshape(-1, layout.size)), np.ones((n, layout.n_positions)), None)


def _heads(layout: OutputLayout, first: Batch) -> _Task:
    """Judge several outputs, each by its own."""
    labels = labels_by_output(first, layout)
    classify = [width > 1 and are_classes(one) for one, width in zip(labels, layout.widths, strict=True)]
    scales = [
        1.0 if classes else float(np.var(targets_of(one, width, first.name))) or 1.0
        for one, width, classes in zip(labels, layout.widths, classify, strict=True)
    ]

    def judged(batch: Batch, _: Any) -> _Judged:
        criteria: list[tuple[slice, Criterion]] = []
        of_batch = labels_by_output(batch, layout)
        for one, columns, classes, scale in zip(of_batch, layout.heads, classify, scales, strict=True):
            width = columns.stop - columns.start
            if classes:
                numbers = numbers_of_classes(one, tuple(map(str, range(width))), batch.name)
                criteria.append((columns, ErrorOnLabels(numbers)))
            else:
                criteria.append((columns, SquaredError(targets_of(one, width, batch.name), scale)))
        return _Judged(MeanOfHeads(tuple(criteria)), np.ones((len(batch.inputs), 1)), None)

    return _Task("mean over the outputs of the error, or of the squared error over the variance", False, 0, judged)
