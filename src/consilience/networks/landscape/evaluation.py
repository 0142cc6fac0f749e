"""Evaluation of networks at many points of parameter space: one at a time, or many in one product.

An evaluation is any function that takes a module and returns numbers by name, such as ``{"loss": .., "error": ..}``.
One that also offers ``many`` (`BatchedEvaluation`; `Classification` does) is asked for many points at once. For
networks with logits z_n (classes,) of sample n and labels y_n, n = 1 .. N, `Classification` returns

    loss = 1/N sum_n [ log sum_c exp z_nc - z_n,y_n ],      error = 100/N sum_n 1[ argmax_c z_nc != y_n ],

the logits in the dtype of the network and all sums in float64. A loss that is not finite becomes infinite, and its
error that of guessing, so that one diverged network does not stop a curve or a surface.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from consilience.checks import Array, is_count
from consilience.errors import InputError, OptionError
from consilience.networks.landscape.parameters import Span, named_tensors, write_tensors
from consilience.networks.module_outputs import answer_tensor, ask, form_of
from consilience.networks.torch_modules import evaluating

Evaluate = Callable[[nn.Module], Mapping[str, float]]
Refresh = Callable[[nn.Module], object]

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
"""Layers of channels on axis 1, by module type."""

# Torch has no vectorised recurrence. Convolutions become grouped ones, which took a CPU 1.6 (4 networks at once) to 4
# times (16) as long as one network after the other.
_NOT_VECTORISED = (nn.RNNBase,)


@runtime_checkable
class BatchedEvaluation(Protocol):
    """An evaluation that can take many networks of one architecture at once."""

    def at_once(self, module: nn.Module) -> int:
        """Return how many networks of this architecture one call of ``many`` should get."""

    def __call__(self, module: nn.Module) -> Mapping[str, float]:
        """Return the values of one network."""

    def many(self, module: nn.Module, states: Mapping[str, Tensor]) -> Mapping[str, Array]:
        """Return arrays (n,) of values; `states` has a stack ``(n, *shape)`` for each floating-point tensor."""


def _reference_tensor(module: nn.Module) -> Tensor:
    """Return a tensor of the dtype and on the device of a module."""
    return next((t for t in named_tensors(module).values() if t.is_floating_point()), torch.zeros(()))


@dataclass(frozen=True, eq=False)
class Classification:
    """Mean cross-entropy in nats ("loss") and percentage of wrong answers ("error") on a fixed data set.

    Networks run in their own dtype, without dropout; sums over the data are float64. Where the loss is not finite it is
    infinite, and the error is that of guessing. Many networks go through one vectorised product; those that cannot be
    vectorised, or not with a gain (recurrent layers; convolutions on a CPU), are evaluated one by one.

    Parameters
    ----------
    inputs : Tensor or array of shape (N, ...)
        Samples; floating-point numbers are cast to the dtype of the network, and moved to its device.
    labels : Tensor or array of shape (N,)
        Class of each sample, whole numbers from 0.
    batch_size : int, optional
        Samples in one forward pass. Default: 1024.
    models_at_once : int, optional
        Networks in one forward pass: as many as fit into memory with a batch of samples each. Default: 16.

    Raises
    ------
    InputError
        When there are no samples, or not as many labels as inputs, or negative ones.

    Examples
    --------
    >>> net = nn.Linear(2, 2, bias=False)
    >>> _ = nn.init.eye_(net.weight)
    >>> scores = Classification(torch.eye(2), torch.tensor([0, 0]))(net)
    >>> round(scores["loss"], 4), scores["error"]
    (0.8133, 50.0)
    """

    inputs: Tensor
    labels: Tensor
    batch_size: int = 1024
    models_at_once: int = 16

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", torch.as_tensor(self.inputs))
        object.__setattr__(self, "labels", torch.as_tensor(self.labels))
        for name in ("batch_size", "models_at_once"):
            if not is_count(getattr(self, name)):
                raise OptionError(name, f"expected a positive whole number, found {getattr(self, name)!r}")
        if self.labels.ndim != 1 or self.inputs.ndim == 0 or len(self.inputs) != len(self.labels):
            shapes = f"{tuple(self.inputs.shape)} and {tuple(self.labels.shape)}"
            raise InputError("labels", f"expected (N,) for inputs (N, ...), found {shapes}", code="E-SHAPE")
        if len(self.labels) == 0 or self.labels.is_floating_point() or int(self.labels.min()) < 0:
            raise InputError("labels", "expected at least one, all of them whole numbers from 0", code="E-NUMBER")

    def __call__(self, module: nn.Module) -> dict[str, float]:
        """Return the loss and error of one network, whose mode is left as it was."""

        def forward(rows: Tensor) -> Any:
            answer = ask(module, rows)
            return answer[None] if isinstance(answer, Tensor) else answer  # logits as those of one network

        with evaluating(module, keeps_gradients=True):
            scores = self._mean_scores(module, forward)
        return {name: float(values[0]) for name, values in scores.items()}

    def at_once(self, module: nn.Module) -> int:
        """Return `models_at_once`, or 1 for networks that are evaluated one by one."""
        unvectorised = _NOT_VECTORISED if _reference_tensor(module).is_cuda else (*_NOT_VECTORISED, *CONVOLUTIONS)
        return 1 if any(isinstance(part, unvectorised) for part in module.modules()) else self.models_at_once

    def many(self, module: nn.Module, states: Mapping[str, Tensor]) -> dict[str, Array]:
        """Return "loss" and "error" (n,) of the networks that `module` is with each of n states, stacks of tensors."""
        n_networks, step = len(next(iter(states.values()))), self.at_once(module)
        if step == 1:
            return self._evaluate_one_by_one(module, states)
        chunk_scores = []
        with evaluating(module, keeps_gradients=True):
            for start in range(0, n_networks, step):
                chunk = {name: values[start : start + step] for name, values in states.items()}
                chunk_scores.append(self._evaluate_vectorised(module, chunk))
        return {name: np.concatenate([scores[name] for scores in chunk_scores]) for name in chunk_scores[0]}

    def _evaluate_vectorised(self, module: nn.Module, states: Mapping[str, Tensor]) -> dict[str, Array]:
        def forward(rows: Tensor) -> Any:
            return torch.vmap(lambda state: answer_tensor(functional_call(module, state, (rows,)), module))(states)

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns of operations that it vectorises slowly
                return self._mean_scores(module, forward)
        except RuntimeError:  # what torch raises for operations that it cannot vectorise, and when memory is full
            return self._evaluate_one_by_one(module, states)

    def _evaluate_one_by_one(self, module: nn.Module, states: Mapping[str, Tensor]) -> dict[str, Array]:
        scratch_module = deepcopy(module)  # one copy for all states; the module itself is never written to
        scores = []
        for index in range(len(next(iter(states.values())))):
            write_tensors(scratch_module, {name: values[index] for name, values in states.items()})
            scores.append(self(scratch_module))
        return {name: np.array([score[name] for score in scores]) for name in scores[0]}

    def _mean_scores(self, module: nn.Module, forward: Callable[[Tensor], Any]) -> dict[str, Array]:
        """Return losses and errors (n,) of the n networks whose logits (n, batch, classes) `forward` gives."""
        reference = _reference_tensor(module)
        total_loss = n_wrong = torch.zeros((), dtype=torch.float64, device=reference.device)
        n_classes = 0
        with torch.no_grad():
            for start in range(0, len(self.labels), self.batch_size):
                rows = self.inputs[start : start + self.batch_size].to(reference.device)
                labels = self.labels[start : start + self.batch_size].to(reference.device, torch.int64)
                logits = forward(rows.to(reference.dtype) if rows.is_floating_point() else rows)
                n_classes = self._count_classes(logits, len(labels))
                logits = logits.to(torch.float64)  # (n, batch, classes)
                # Cross-entropy -log softmax(z)_y = logsumexp(z) - z_y, for each network and sample: (n, batch).
                true_logits = logits.gather(2, labels.expand(len(logits), -1)[..., None])[..., 0]
                total_loss = total_loss + (logits.logsumexp(dim=2) - true_logits).sum(dim=1)
                n_wrong = n_wrong + (logits.argmax(dim=2) != labels).sum(dim=1)
        # Loss and error are means over all samples, not over batches, so the size of batches changes nothing.
        losses, errors = (total.cpu().numpy() / len(self.labels) for total in (total_loss, n_wrong))
        is_finite = np.isfinite(losses)
        chance_error = 100.0 * (1.0 - 1.0 / n_classes)
        return {"loss": np.where(is_finite, losses, np.inf), "error": np.where(is_finite, 100.0 * errors, chance_error)}

    def _count_classes(self, logits: Any, n_samples: int) -> int:
        """Return the number of classes, or raise when the network's output does not fit the labels."""
        if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.shape[1] != n_samples:
            output_form = tuple(logits.shape[1:]) if isinstance(logits, Tensor) else form_of(logits)
            text = f"the network's output: expected logits of shape ({n_samples}, classes), found {output_form}"
            raise InputError("", text, code="E-SHAPE")
        if int(self.labels.max()) >= logits.shape[2]:
            text = f"found {int(self.labels.max())}, but the network has {logits.shape[2]} classes"
            raise InputError("labels", text, code="E-SHAPE")
        return int(logits.shape[2])


def evaluate_points(span: Span, weights: Array, evaluate: Evaluate, refresh: Refresh | None = None) -> dict[str, Array]:
    """Return arrays (n,) of what `evaluate` says of the combinations with `weights` (n, m); non-finite values are inf.

    To evaluate is a function of a module in evaluation mode, or a `BatchedEvaluation`. To refresh is called with each
    combined module before, to set its normalisation statistics in place; then networks are evaluated one by one.
    """
    if refresh is None and isinstance(evaluate, BatchedEvaluation):
        step = evaluate.at_once(span.module)
        chunks = [weights[start : start + step] for start in range(0, len(weights), step)]
        chunk_values = [evaluate.many(span.module, span.states(chunk)) for chunk in chunks]
        curves = {name: np.concatenate([values[name] for values in chunk_values]) for name in chunk_values[0]}
    else:
        values = [_evaluate_module(span.model(row), evaluate, refresh) for row in weights]
        if any(point_values.keys() != values[0].keys() for point_values in values):
            raise InputError("evaluate", "returned other names for some networks than for others")
        curves = {name: np.array([point_values[name] for point_values in values]) for name in values[0]}
    return {name: np.where(np.isfinite(curve), curve, np.inf) for name, curve in curves.items()}


def _evaluate_module(module: nn.Module, evaluate: Evaluate, refresh: Refresh | None) -> dict[str, float]:
    module.eval()
    if refresh is not None:
        refresh(module)
        module.eval()  # a refresh of running statistics needs training mode, and may leave it on
    values = evaluate(module)
    try:
        numbers = {str(name): float(value) for name, value in values.items()}
    except (AttributeError, TypeError, ValueError):
        numbers = {}
    if not numbers:
        text = f"expected numbers by name, such as {{'loss': 0.3}}, found {values!r:.80}"
        raise InputError("evaluate", text, code="E-TYPE")
    return numbers
