"""Per-sample gradients of a network: of each observation the vector-Jacobian product J_n^T s_n.

The rule is `torch.func`: the network is vectorised over observations, each of which has parameters theta_n = theta of
its own, so that one vector-Jacobian product of all observations has the gradient of each.

A measured exception: where all trained parameters belong to layers of known kinds (linear, convolutions, normalisation,
embeddings, recurrent), one ordinary backward pass gives inputs and output gradients of the layers, and closed forms
give the gradients or the sums of their squares (`parameter_uses`). For every network measured that was faster than
torch.func: 1.1 to 2.1 times for convolutions and attention, 40 to 60 times for perceptrons, whose squares factorise
(docs/evidence/benchmarks.md). And torch.func has no rule for recurrent layers.

What neither can do, such as torch's own multi-head attention in evaluation mode, is differentiated one observation
after another. Which way is right for a network is tried on a few observations taken alone. (A network that computes
otherwise for other inputs may pass the trial: three observations cannot tell.)

**Parameter uses of torch's layers**: linear ones, convolutions, normalisations, embeddings.

For every trained parameter of a layer that was called, its `ParameterUse`: what the parameter was multiplied with, and
how the gradient of the layer's output is laid out by observation and position.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from consilience.errors import InputError, UnsupportedError
from consilience.networks.fisher.parameter_uses import (
    ElementwiseUse,
    EmbeddingUse,
    LinearUse,
    ParameterUse,
    TrainedName,
    record_recurrent_uses,
    sum_of_squares,
)
from consilience.networks.module_outputs import form_of
from consilience.networks.repair.convolution_patches import kernel_windows
from consilience.networks.repair.partial_forward import batch_length, call_module, is_layer, is_transposed
from consilience.networks.repair.recurrent_layers import at_least_float32, is_recurrent

_N_TRIAL_OBSERVATIONS = 3
"""Observations whose gradients taken together are compared with those of each alone. Two would show whether
observations interact; three was chosen by hand, nobody has measured other values."""

_GRADIENT_ROUNDING_UNITS = 1e4
"""Gradients taken together and alone agree if they differ by at most this many rounding units (eps) of the largest
entry of the parameter. Chosen by hand; nobody has measured other values."""

_ZERO_ROUNDING_UNITS = 1e2
"""Or by this many units of the largest entry of all parameters, for gradients that are zero but for rounding (a shift
before a normalisation): there 5 units were seen."""


class GradientMethod(Enum):
    """How the gradients of several observations are taken."""

    VECTORISED = "vectorised by torch.func"
    CLOSED_FORMS = "closed forms of known layers"
    ONE_BY_ONE = "one observation after another"


class PerSampleGradients(ABC):
    """Gradients of all parameters for every observation of a batch, for one gradient of the outputs."""

    @abstractmethod
    def gradients(self, name: str) -> Tensor:
        """Return the gradients of a parameter (n, *shape)."""

    def squares(self, name: str) -> Tensor:
        """Return the sum over observations of squared gradients of a parameter, in its shape."""
        return self.gradients(name).square().sum(dim=0)


@dataclass(frozen=True, eq=False)
class ClosedFormGradients(PerSampleGradients):
    """From one ordinary backward pass for all observations."""

    n_observations: int  # observations of the batch
    uses: Mapping[str, Sequence[ParameterUse]]  # by parameter
    output_gradients: Mapping[int, Tensor]  # by the `id` of a use's output, the gradient g of that output

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
class _StackedGradients(PerSampleGradients):
    """Gradients (n, *shape) by parameter."""

    by_parameter: Mapping[str, Tensor]

    def gradients(self, name: str) -> Tensor:
        return self.by_parameter[name]


Backward = Callable[[Tensor], PerSampleGradients]
"""From a gradient of the outputs of each observation (n, ...) to the gradients of the parameters."""


@dataclass(frozen=True, eq=False)
class PerSampleBackward:
    """A network in evaluation mode that is differentiated for every observation by itself.

    Raises
    ------
    UnsupportedError
        For a network that normalises over the batch.
    """

    module: nn.Module  # the network
    parameters: Mapping[str, nn.Parameter]  # its trained parameters by name, tied ones once
    _names: Mapping[int, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_names", {id(values): name for name, values in self.parameters.items()})
        for path, part in self.module.named_modules():
            if isinstance(part, _BatchNorm) and part.running_mean is None:
                text = "normalises over the batch, so that no observation has a gradient of its own"
                remedy = "give a network with running statistics (`track_running_stats=True`)"
                raise UnsupportedError(path or "the network", text, remedy)

    def forward(self, batch: Any, method: GradientMethod) -> tuple[Tensor, Backward]:
        """Return the outputs for a batch (n, ...), and the function that gives the gradients of every observation.

        The method is one that is right for the network, which `choose_method` tells; `ONE_BY_ONE` always is.
        """
        if method is GradientMethod.VECTORISED:
            return self._forward_vectorised(batch)
        if method is GradientMethod.CLOSED_FORMS:
            return self._forward_with_uses(batch)
        return self._forward_one_by_one(batch)

    def choose_method(self, batch: Any) -> GradientMethod:
        """Return the fastest way that gives the gradient of each observation, tried on the first ones."""
        trial = batch_rows(batch, slice(0, _N_TRIAL_OBSERVATIONS))
        column, expected = self._alone(trial)
        # Closed forms need layers of known kinds that use all trained parameters.
        has_closed_forms = {use.parameter for use in self.recorded(trial)} == set(self.parameters)
        if has_closed_forms and self._agrees(GradientMethod.CLOSED_FORMS, trial, column, expected):
            return GradientMethod.CLOSED_FORMS
        if self._agrees(GradientMethod.VECTORISED, trial, column, expected):
            return GradientMethod.VECTORISED
        return GradientMethod.ONE_BY_ONE

    def closed_form_parameters(self, batch: Any) -> set[str]:
        """Return the parameters whose gradients the closed forms of their layers give, tried on the first rows."""
        trial = batch_rows(batch, slice(0, _N_TRIAL_OBSERVATIONS))
        used = {use.parameter for use in self.recorded(trial)}
        return self._right_parameters(used, GradientMethod.CLOSED_FORMS, trial, *self._alone(trial))

    def _alone(self, trial: Any) -> tuple[Tensor, PerSampleGradients]:
        """Return a random gradient of the outputs, where a difference in any shows, and the gradients taken alone."""
        outputs, backward = self._forward_one_by_one(trial)
        column = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0)).to(outputs)
        return column, backward(column)

    def recorded(self, batch: Any, n_rows: int = _N_TRIAL_OBSERVATIONS) -> list[ParameterUse]:
        """Return the uses of trained parameters by layers of known kinds, for the first rows of a batch."""
        with self._recorded_uses() as uses:
            _outputs(self.module, batch_rows(batch, slice(0, n_rows)))
        return uses

    def _right_parameters(
        self, names: Collection[str], method: GradientMethod, trial: Any, column: Tensor, expected: PerSampleGradients
    ) -> set[str]:
        """Return those of some parameters of which a way gives the gradients of each observation taken alone."""
        outputs, backward = self.forward(trial, method)
        if outputs.shape != column.shape:
            return set()
        per_sample = backward(column)
        largest = max(_largest(expected.gradients(name)) for name in self.parameters)
        pairs = {name: (per_sample.gradients(name), expected.gradients(name)) for name in names}
        eps = {name: torch.finfo(self.parameters[name].dtype).eps for name in names}
        return {name for name, pair in pairs.items() if _are_close(*pair, largest, eps[name])}

    def _agrees(self, method: GradientMethod, trial: Any, column: Tensor, expected: PerSampleGradients) -> bool:
        """Return whether a way runs and gives the gradients of each observation taken alone."""
        names = set(self.parameters)
        try:
            return self._right_parameters(names, method, trial, column, expected) == names
        except (RuntimeError, IndexError, TypeError, ValueError):
            # A layer has another shape than its kind, or torch.func has no rule for an operation.
            return False

    def entries_per_observation(self, batch: Any) -> int:
        """Return how many numbers are kept for each observation between forward and backward pass."""
        uses = self.recorded(batch, 1)
        return sum(use.output.numel() + use.inputs.numel() for use in uses if isinstance(use, LinearUse))

    def _forward_vectorised(self, batch: Any) -> tuple[Tensor, Backward]:
        inputs = batch_rows(batch, slice(None))
        axes: Any = 0
        if isinstance(inputs, Mapping):
            inputs = dict(inputs)
            axes = {key: 0 if key in _keys_by_row(inputs) else None for key in inputs}

        def outputs_of_one(parameters: dict[str, Tensor], observation: Any) -> Tensor:
            outputs = call_module(ModuleWithParameters(self.module, parameters), _as_batch(observation, axes))
            return _with_two_axes(outputs, 1)[0]

        def outputs_of_all(parameters: dict[str, Tensor]) -> Tensor:
            return vmap(outputs_of_one, in_dims=(0, axes))(parameters, inputs)

        # theta_n = theta for every observation n, so that the pullback to theta_n is the gradient of observation n.
        n = batch_length(batch)
        copies = {name: values.detach().expand(n, *values.shape) for name, values in self.parameters.items()}
        with _without_vectorisation_warnings():
            outputs, pullback, *_ = vjp(outputs_of_all, copies)

        def backward(column: Tensor) -> PerSampleGradients:
            with _without_vectorisation_warnings():
                (gradients,) = pullback(column)
            return _StackedGradients({name: at_least_float32(values) for name, values in gradients.items()})

        return _all_finite(outputs.detach()), backward

    def _forward_with_uses(self, batch: Any) -> tuple[Tensor, Backward]:
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
        return ClosedFormGradients(len(outputs), uses_by_parameter, by_output)

    def _forward_one_by_one(self, batch: Any) -> tuple[Tensor, Backward]:
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
                return _StackedGradients(stacked)

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
                    stack.enter_context(layer.register_forward_hook(record))
            yield uses


class ModuleWithParameters(nn.Module):
    """A network with other values, by name, for its parameters."""

    def __init__(self, module: nn.Module, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.module, self.values = module, dict(parameters)

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        """Return its outputs."""
        return functional_call(self.module, self.values, arguments, keywords)


@contextmanager
def _without_vectorisation_warnings() -> Iterator[None]:
    """Ignore that torch warns of operations which it vectorises slowly."""
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")
        yield


def _outputs(module: nn.Module, batch: Any) -> Tensor:
    """Return the outputs of a network for a batch, (n, ...) with at least two axes."""
    with torch.enable_grad():
        outputs = call_module(module, batch)
    return _all_finite(_with_two_axes(outputs, batch_length(batch)))


def _with_two_axes(outputs: Any, n_observations: int) -> Tensor:
    """Return outputs (n, ...) with at least two axes."""
    if not isinstance(outputs, Tensor):
        text = f"the network answers {form_of(outputs)}; wrap it so that it answers a tensor"
        raise InputError("", text, code="E-TYPE")
    if outputs.ndim == 1:
        outputs = outputs.unsqueeze(1)
    if outputs.ndim == 0 or len(outputs) != n_observations:
        text = f"the network answers shape {tuple(outputs.shape)} for {n_observations} observations; the first axis"
        raise InputError("", f"{text} of what goes in and of what comes out must count them", code="E-SHAPE")
    return outputs


def _all_finite(outputs: Tensor) -> Tensor:
    """Return outputs that are all finite."""
    if not bool(torch.isfinite(outputs).all()):
        text = "the network answers NaN or infinite values on these inputs; look at both"
        raise InputError("", text, code="E-NUMBER")
    return outputs


def batch_rows(batch: Any, rows: slice) -> Any:
    """Return some observations of a batch; of inputs with labels, the inputs alone."""
    if isinstance(batch, Mapping):
        by_row = _keys_by_row(batch)
        return {key: values[rows] if key in by_row else values for key, values in batch.items()}
    return (batch[0] if isinstance(batch, (tuple, list)) else batch)[rows]


def _keys_by_row(batch: Mapping[str, Any]) -> set[str]:
    """Return the keyword arguments with a row for each observation; others, such as flags or tables, serve all."""
    size = batch_length(batch)
    return {key for key, values in batch.items() if isinstance(values, Tensor) and values.ndim and len(values) == size}


def _as_batch(observation: Any, axes: Any) -> Any:
    """Return one observation as a batch of one; `axes` is None for the keyword arguments that serve all."""
    if isinstance(observation, Mapping):
        return {key: values if axes[key] is None else values.unsqueeze(0) for key, values in observation.items()}
    return observation.unsqueeze(0)


def _are_close(together: Tensor, alone: Tensor, largest: float, eps: float) -> bool:
    """Return whether gradients (n, *shape) from two ways of computing them agree but for rounding.

    Rounding is in units of `eps` of their own largest entry, or of the `largest` entry of all parameters.
    """
    if together.shape != alone.shape:
        return False
    tolerance = eps * max(_GRADIENT_ROUNDING_UNITS * _largest(alone), _ZERO_ROUNDING_UNITS * largest)
    return _largest(together - alone) <= tolerance


def _largest(values: Tensor) -> float:
    """Return the largest magnitude; 0 where there are no values."""
    return float(values.abs().max()) if values.numel() else 0.0


def layer_uses(
    layer: nn.Module, arguments: tuple[Any, ...], output: Any, trained_name: TrainedName
) -> list[ParameterUse]:
    """Return the uses of a layer's parameters in one call; none for a layer of an unknown kind."""
    if len(arguments) != 1 or not isinstance(arguments[0], Tensor) or not isinstance(output, Tensor):
        return []
    inputs = at_least_float32(arguments[0].detach()) if arguments[0].is_floating_point() else arguments[0]
    weight, bias = trained_name(layer, "weight"), trained_name(layer, "bias")
    if is_layer(layer) and not is_transposed(layer) and inputs.ndim > 1:
        return _affine_uses(layer, inputs, output, weight, bias)
    if isinstance(layer, nn.Embedding):
        # These options change the gradient, or the weight itself, in ways that `EmbeddingUse` does not follow.
        if weight is None or layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse:
            return []
        padding_index = -1 if layer.padding_idx is None else layer.padding_idx
        indices = inputs.reshape(len(inputs), -1)
        return [EmbeddingUse(weight, tuple(layer.weight.shape), output, indices, padding_index)]
    normalised = _normalised_inputs(layer, inputs)
    return [] if normalised is None else _norm_uses(layer, normalised, output, weight, bias)


def _norm_uses(
    layer: Any, normalised: Tensor, output: Tensor, weight: str | None, bias: str | None
) -> list[ParameterUse]:
    """Return the uses of gain and bias of a normalisation."""
    of_last_axes = isinstance(layer, (nn.LayerNorm, nn.RMSNorm))
    shape = tuple(layer.normalized_shape if of_last_axes else normalised.shape[1:2])

    def by_position(g: Tensor) -> Tensor:  # (n, positions, *shape)
        if of_last_axes:
            return g.reshape(len(normalised), -1, *shape)
        return g.reshape(*g.shape[:2], -1).transpose(1, 2)

    factors = [(weight, normalised), (bias, None)]
    return [ElementwiseUse(key, shape, output, factor, by_position) for key, factor in factors if key is not None]


def _affine_uses(
    layer: Any, inputs: Tensor, output: Tensor, weight: str | None, bias: str | None
) -> list[ParameterUse]:
    """Return the uses of weight and bias of a linear layer or a convolution."""
    n_observations = len(inputs)
    if isinstance(layer, nn.Linear):
        weight_inputs = inputs.reshape(n_observations, 1, -1, inputs.shape[-1])  # (n, 1, positions, d_in)

        def output_gradients(g: Tensor) -> Tensor:
            return g.reshape(n_observations, 1, -1, g.shape[-1])
    else:
        n_groups, n_axes = layer.groups, len(layer.kernel_size)
        patches = kernel_windows(layer, inputs).flatten(1, n_axes).flatten(2)  # (n, positions, channels * kernel)
        by_group = patches.reshape(*patches.shape[:2], n_groups, -1)  # (n, positions, groups, d_in)
        weight_inputs = by_group.transpose(1, 2)  # (n, groups, positions, d_in)

        def output_gradients(g: Tensor) -> Tensor:
            return g.reshape(n_observations, n_groups, g.shape[1] // n_groups, -1).transpose(2, 3)

    def by_position(g: Tensor) -> Tensor:  # (n, positions, channels)
        return output_gradients(g).transpose(1, 2).flatten(2)

    uses: list[ParameterUse] = []
    if weight is not None:
        uses.append(LinearUse(weight, tuple(layer.weight.shape), output, weight_inputs, output_gradients))
    if bias is not None:
        uses.append(ElementwiseUse(bias, tuple(layer.bias.shape), output, None, by_position))
    return uses


def _normalised_inputs(layer: nn.Module, inputs: Tensor) -> Tensor | None:
    """Return what a normalisation multiplies by its gain; None for other layers."""
    if isinstance(layer, _BatchNorm) and layer.running_mean is not None and layer.running_var is not None:
        mean, variance = at_least_float32(layer.running_mean), at_least_float32(layer.running_var)
        return functional.batch_norm(inputs, mean, variance, eps=layer.eps)
    if isinstance(layer, nn.GroupNorm):
        return functional.group_norm(inputs, layer.num_groups, eps=layer.eps)
    if isinstance(layer, nn.LayerNorm):
        return functional.layer_norm(inputs, layer.normalized_shape, eps=layer.eps)
    if isinstance(layer, nn.RMSNorm):
        return functional.rms_norm(inputs, layer.normalized_shape, eps=layer.eps)
    return None
