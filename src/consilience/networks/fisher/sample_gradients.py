"""Per-sample gradients of a network, from backward passes for many observations together.

Layers of known kinds (linear, convolutions, normalisation, embeddings, recurrent) are hooked while the network runs;
their inputs and the gradients of their outputs give the gradient of every observation (`parameter_uses`). Whether that
holds for a network is tried on a few observations taken alone: where parameters are used otherwise, or observations
interact, gradients are taken one observation after another, which is slower. (A network that uses its layers otherwise
for other inputs may pass the trial: three observations cannot tell.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from consilience.errors import InputError, UnsupportedError
from consilience.networks.fisher.layer_uses import layer_uses
from consilience.networks.fisher.parameter_uses import LinearUse, ParameterUse, sum_of_squares
from consilience.networks.fisher.recurrent_uses import record_recurrent_uses
from consilience.networks.repair.partial_forward import call_module
from consilience.networks.repair.recurrent_layers import at_least_float32, is_recurrent

_N_TRIAL_OBSERVATIONS = 3
"""Observations whose batched gradients are compared with those of each alone. Two would show whether observations
interact; three was chosen by hand, nobody has measured other values."""

_GRADIENT_ROUNDING_UNITS = 1e4
"""Batched and single gradients agree if they differ by at most this many rounding units (eps) of the largest entry.
Chosen by hand; nobody has measured other values."""


@dataclass(frozen=True, eq=False)
class PerSampleGradients(ABC):
    """Gradients of all parameters for every observation of a batch, for one gradient of the outputs."""

    n_observations: int

    @abstractmethod
    def squares(self, name: str) -> Tensor:
        """Return the sum over observations of squared gradients of a parameter, in its shape."""

    @abstractmethod
    def gradients(self, name: str) -> Tensor:
        """Return the gradients of a parameter (n, *shape)."""


@dataclass(frozen=True, eq=False)
class _BatchedGradients(PerSampleGradients):
    """From one backward pass for all observations.

    Parameters
    ----------
    uses : mapping of str to sequence of ParameterUse
        By parameter.
    output_gradients : mapping of int to Tensor
        By the `id` of a use's output, the gradient g of that output.
    """

    uses: Mapping[str, Sequence[ParameterUse]]
    output_gradients: Mapping[int, Tensor]

    def squares(self, name: str) -> Tensor:
        """Return the sum over observations of squared gradients of a parameter, in its shape."""
        uses = self.uses[name]
        if len(uses) == 1:
            return uses[0].squares(self.output_gradients[id(uses[0].output)], self.n_observations)
        # Gradients of several uses add up before they are squared.
        return sum_of_squares(lambda rows: self._sum_over_uses(name, rows), uses[0].shape, self.n_observations)

    def gradients(self, name: str) -> Tensor:
        """Return the gradients of a parameter (n, *shape)."""
        return self._sum_over_uses(name, slice(None))

    def _sum_over_uses(self, name: str, rows: slice) -> Tensor:
        parts = [use.gradients(self.output_gradients[id(use.output)], rows) for use in self.uses[name]]
        return torch.stack(parts).sum(dim=0) if len(parts) > 1 else parts[0]


@dataclass(frozen=True, eq=False)
class _SingleGradients(PerSampleGradients):
    """From a backward pass for each observation: gradients (n, *shape) by parameter."""

    by_parameter: Mapping[str, Tensor]

    def squares(self, name: str) -> Tensor:
        """Return the sum over observations of squared gradients of a parameter, in its shape."""
        return self.by_parameter[name].square().sum(dim=0)

    def gradients(self, name: str) -> Tensor:
        """Return the gradients of a parameter (n, *shape)."""
        return self.by_parameter[name]


Backward = Callable[[Tensor], PerSampleGradients]
"""From a gradient of the outputs of each observation (n, ...) to the gradients of the parameters."""


@dataclass(frozen=True, eq=False)
class PerSampleBackward:
    """A network in evaluation mode that is differentiated for every observation by itself.

    Parameters
    ----------
    module : Module
        The network.
    parameters : mapping of str to Parameter
        Its trained parameters by name, tied ones once.

    Raises
    ------
    UnsupportedError
        For a network that normalises over the batch.
    """

    module: nn.Module
    parameters: Mapping[str, nn.Parameter]
    _names: Mapping[int, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_names", {id(values): name for name, values in self.parameters.items()})
        for path, part in self.module.named_modules():
            if isinstance(part, _BatchNorm) and part.running_mean is None:
                raise UnsupportedError(
                    f"{path or 'the network'}: normalises over the batch, so that no observation has a gradient of its "
                    "own; give a network with running statistics (track_running_stats=True)"
                )

    def forward(self, batch: Any, batched: bool) -> tuple[Tensor, Backward]:
        """Return the outputs for a batch (n, ...), and the function that gives the gradients of every observation.

        Parameters
        ----------
        batch : Tensor, mapping or tuple
            Inputs.
        batched : bool
            Whether one backward pass serves all observations, which `is_batchable` tells; otherwise each has its own.
        """
        return self._forward_batched(batch) if batched else self._forward_singly(batch)

    def is_batchable(self, batch: Any) -> bool:
        """Return whether one backward pass gives the gradient of each observation, tried on the first ones."""
        trial = batch_rows(batch, slice(0, _N_TRIAL_OBSERVATIONS))
        with self._recorded_uses() as uses:
            outputs = _outputs(self.module, trial)
        if {use.parameter for use in uses} != set(self.parameters):
            return False
        # A random gradient of the outputs: a difference in any of them shows.
        column = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0)).to(outputs)
        try:
            per_sample = self._backward(uses, outputs, column)
            batched = {name: per_sample.gradients(name) for name in self.parameters}
        except (RuntimeError, IndexError):  # something has another shape than such layers have
            return False
        _, backward_singly = self._forward_singly(trial)
        single = backward_singly(column)
        return all(
            _are_close(batched[name], single.gradients(name), torch.finfo(values.dtype).eps)
            for name, values in self.parameters.items()
        )

    def entries_per_observation(self, batch: Any) -> int:
        """Return how many numbers are kept for each observation between forward and backward pass."""
        with self._recorded_uses() as uses:
            _outputs(self.module, batch_rows(batch, slice(0, 1)))
        return sum(use.output.numel() + use.inputs.numel() for use in uses if isinstance(use, LinearUse))

    def _forward_batched(self, batch: Any) -> tuple[Tensor, Backward]:
        with self._recorded_uses() as uses:
            outputs = _outputs(self.module, batch)
        return outputs.detach(), lambda column: self._backward(uses, outputs, column)

    def _backward(self, uses: Sequence[ParameterUse], outputs: Tensor, column: Tensor) -> PerSampleGradients:
        """Return the gradients of every observation for one gradient of the outputs, `column` (n, ...)."""
        use_outputs = list({id(use.output): use.output for use in uses}.values())
        gradients = torch.autograd.grad(outputs, use_outputs, column, retain_graph=True, materialize_grads=True)
        uses_by_parameter: dict[str, list[ParameterUse]] = {}
        for use in uses:
            uses_by_parameter.setdefault(use.parameter, []).append(use)
        by_output = {
            id(output): at_least_float32(gradient) for output, gradient in zip(use_outputs, gradients, strict=True)
        }
        return _BatchedGradients(len(outputs), uses_by_parameter, by_output)

    def _forward_singly(self, batch: Any) -> tuple[Tensor, Backward]:
        with torch.backends.cudnn.flags(enabled=False):  # whose recurrent layers go backward in training mode only
            outputs = [_outputs(self.module, batch_rows(batch, slice(i, i + 1))) for i in range(batch_length(batch))]
            parameters = list(self.parameters.values())

            def backward(column: Tensor) -> PerSampleGradients:
                rows = [
                    torch.autograd.grad(
                        output, parameters, column[i : i + 1], retain_graph=True, materialize_grads=True
                    )
                    for i, output in enumerate(outputs)
                ]
                stacked = {
                    name: at_least_float32(torch.stack(gradients))
                    for name, gradients in zip(self.parameters, zip(*rows, strict=True), strict=True)
                }
                return _SingleGradients(len(outputs), stacked)

            return torch.cat(outputs).detach(), backward

    @contextmanager
    def _recorded_uses(self) -> Iterator[list[ParameterUse]]:
        """Collect the uses of trained parameters while the network runs."""
        uses: list[ParameterUse] = []

        def trained_name(layer: nn.Module, attribute: str) -> str | None:
            return self._names.get(id(layer._parameters.get(attribute)))

        def record(layer: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
            new_uses = layer_uses(layer, arguments, output, trained_name)
            uses.extend(new_uses)
            return output.clone() if new_uses else output  # in-place operations then leave the recorded output alone

        with ExitStack() as stack, torch.enable_grad():
            for layer in self.module.modules():
                if not any(id(values) in self._names for values in layer.parameters(recurse=False)):
                    continue
                if is_recurrent(layer):
                    stack.enter_context(record_recurrent_uses(layer, trained_name, uses))
                else:
                    stack.callback(layer.register_forward_hook(record).remove)
            yield uses


def _outputs(module: nn.Module, batch: Any) -> Tensor:
    """Return the outputs of a network for a batch, (n, ...) with at least two axes.

    Raises
    ------
    InputError
        When they are no tensor, do not count observations on their first axis, or are not finite.
    """
    with torch.enable_grad():
        outputs = call_module(module, batch)
    if not isinstance(outputs, Tensor):
        raise InputError(f"the network answers a {type(outputs).__name__}; wrap it so that it answers a tensor")
    if outputs.ndim == 1:
        outputs = outputs.unsqueeze(1)
    if outputs.ndim == 0 or len(outputs) != batch_length(batch):
        raise InputError(
            f"the network answers shape {tuple(outputs.shape)} for {batch_length(batch)} observations; the first axis "
            "of what goes in and of what comes out must count them"
        )
    if not bool(torch.isfinite(outputs).all()):
        raise InputError("the network answers NaN or infinite values on these inputs; look at both")
    return outputs


def batch_length(batch: Any) -> int:
    """Return the number of observations in a batch: a tensor, keyword arguments, or inputs with labels."""
    if isinstance(batch, Mapping):
        return len(next(values for values in batch.values() if isinstance(values, Tensor) and values.ndim))
    return len(batch[0] if isinstance(batch, (tuple, list)) else batch)


def batch_rows(batch: Any, rows: slice) -> Any:
    """Return some observations of a batch; of inputs with labels, the inputs alone."""
    if isinstance(batch, Mapping):
        size = batch_length(batch)
        # Keyword arguments of another length, such as flags or tables, go to every observation whole.
        by_row = {
            key: isinstance(values, Tensor) and values.ndim > 0 and len(values) == size for key, values in batch.items()
        }
        return {key: values[rows] if by_row[key] else values for key, values in batch.items()}
    return (batch[0] if isinstance(batch, (tuple, list)) else batch)[rows]


def _are_close(batched: Tensor, single: Tensor, eps: float) -> bool:
    """Return whether gradients from two ways of computing them agree but for rounding."""
    if batched.shape != single.shape:
        return False
    largest = float(single.abs().max()) if prod(single.shape) else 0.0
    # The floor of 1e-30 lets two zero gradients agree.
    return bool((batched - single).abs().max() <= _GRADIENT_ROUNDING_UNITS * eps * max(largest, 1e-30))
