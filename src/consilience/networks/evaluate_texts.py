"""Evaluation of language models on texts: their next tokens are the labels, and texts are the rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from consilience.checks import Array
from consilience.core.evaluation import Evaluation
from consilience.errors import InputError, UnsupportedError, reason_of
from consilience.networks.evaluate import compare_rows
from consilience.networks.example import Example, is_one_batch, unlabelled
from consilience.networks.module_inputs import first_line
from consilience.networks.output_layout import have_next_token, layout_of, tokens_of
from consilience.networks.repair.partial_forward import call_module, evaluation_without_gradients


def texts_of(data: Any, module: nn.Module) -> Tensor | Example | None:
    """Return data as texts that a language model reads, with their mask; None for anything else."""
    if isinstance(data, str | Path) or not is_one_batch(data):
        return None
    inputs = unlabelled(data, module)
    if not isinstance(inputs, Tensor | Example) or not len(inputs) or tokens_of(inputs) is None:
        return None
    try:
        return inputs if layout_of(module, inputs).is_next_token else None
    except UnsupportedError:
        return None


def compare_language_models(fused: nn.Module, own: nn.Module, texts: Tensor | Example) -> Evaluation:
    """Return how two language models compare by the next tokens of n texts, the mean of every text a row.

    Raises InputError for a model that does not take the texts, or of another vocabulary.
    """
    correct, losses = zip(*(_scores(module, texts) for module in (fused, own)), strict=True)
    return compare_rows(list(correct), list(losses), what="language model", unit="percentage points of next tokens")


def _scores(module: nn.Module, texts: Tensor | Example) -> tuple[Array, Array]:
    """Return the percentage of the next tokens of every text that a model says, and their mean loss in nats (n,)."""
    tokens = tokens_of(texts)
    assert tokens is not None  # noqa: S101  (narrows the type: texts have tokens)
    counts = have_next_token(module, texts).double().cpu()
    weights = counts / counts.sum(dim=1, keepdim=True).clamp(min=1.0)  # (n, T - 1)
    right, losses = [], []
    try:
        n_rows = layout_of(module, texts).inputs_at_once
    except UnsupportedError as error:
        raise InputError("data", f"{type(module).__name__} does not take these texts ({reason_of(error)})") from error
    with evaluation_without_gradients(module):
        for start in range(0, len(tokens), n_rows):
            rows = slice(start, start + n_rows)
            try:
                logits = call_module(module, texts[rows])[:, :-1].double().cpu()
            except (IndexError, ValueError, RuntimeError, TypeError) as error:
                text = f"{type(module).__name__} does not take these texts ({first_line(error)})"
                raise InputError("data", text, code="E-SHAPE") from error
            following = tokens[rows, 1:].cpu()
            surprisal = torch.nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten(), reduction="none")
            losses.append((surprisal.reshape(following.shape) * weights[rows]).sum(dim=1))
            right.append(((logits.argmax(dim=2) == following) * weights[rows]).sum(dim=1))
    accuracy: Array = 100.0 * torch.cat(right).numpy()
    loss: Array = torch.cat(losses).numpy()
    if not np.isfinite(loss).all():
        row = int(np.flatnonzero(~np.isfinite(loss))[0])
        raise InputError("data", f"text {row}, counted from 0: the network's answer is not finite", code="E-NUMBER")
    return accuracy, loss
