"""Partial forward passes: a network run as far as one of its layers, while the layers before it change.

Repair and refitting visit the layers in the order of computation: each is measured after those before it have been
changed. A network that is an ``nn.Sequential`` is resumed from the layer visited last, whose inputs are cached; any
other one is run from its start, one pass for each layer, and a pass ends where the layer has been called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from consilience.errors import InputError, Problem
from consilience.networks.example import Example
from consilience.networks.module_outputs import answer_tensor
from consilience.networks.repair.recurrent_layers import (
    clone_values,
    input_and_initial_state,
    is_recurrent,
    n_bytes,
    unsupported_reason,
)
from consilience.networks.torch_modules import evaluating

TransposedConvolution = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d | TransposedConvolution
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_AFFINE_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *_TRANSPOSED)
_MAX_CACHED_BYTES = 2**30
"""Activations of all batches between two parts of a network that are cached, at most; beyond, passes start at the
input. Chosen by hand; only speed and memory depend on it, and nobody has measured other values."""


def is_layer(part: nn.Module) -> TypeGuard[Layer]:
    """Return whether a module is a linear layer or a convolution, transposed ones too."""
    return isinstance(part, _AFFINE_LAYERS)


def is_transposed(part: nn.Module) -> TypeGuard[TransposedConvolution]:
    """Return whether a module is a transposed convolution."""
    return isinstance(part, _TRANSPOSED)


def is_norm(part: nn.Module) -> TypeGuard[_BatchNorm]:
    """Return whether a module is batch normalisation."""
    return isinstance(part, _BatchNorm)


def is_grouped(layer: Layer) -> bool:
    """Return whether a layer is a convolution whose channels see only some of its input."""
    return not isinstance(layer, nn.Linear) and layer.groups > 1


def as_batches(batches: Any) -> Iterable[Any]:
    """Return batches, at least one, that can be iterated again and again; a tensor or an Example is one batch."""
    if isinstance(batches, Example):
        return [batches]
    if isinstance(batches, Tensor):
        batches = [batches] if batches.ndim > 0 and len(batches) > 0 else []
    if isinstance(batches, Iterator):
        batches = list(batches)
    if not isinstance(batches, Iterable) or next(iter(batches), None) is None:
        raise InputError("batches", "expected a tensor, or at least one batch of inputs", code="E-TYPE")
    return batches


def batch_length(batch: Any) -> int:
    """Return the number of observations in a batch: a tensor, keyword arguments, or inputs with labels."""
    if isinstance(batch, Mapping):
        return len(next(values for values in batch.values() if isinstance(values, Tensor) and values.ndim))
    return len(batch[0] if isinstance(batch, (tuple, list)) else batch)


def call_module(module: nn.Module, batch: Any) -> Any:
    """Return what a module answers to a batch: a tensor, an Example, keyword arguments, or (inputs, labels, ...)."""
    return answer_tensor(_called(module, batch), module)


def _called(module: nn.Module, batch: Any) -> Any:
    """Return what a module returns for a batch, as the module after it takes it."""
    if isinstance(batch, Example):
        placed = batch.changed(lambda tensor: _to_device_of(tensor, module))
        return module(*placed.args, **dict(placed.kwargs or {}))
    if isinstance(batch, Mapping):
        return module(**{key: _to_device_of(value, module) for key, value in batch.items()})
    return module(_to_device_of(batch[0] if isinstance(batch, (tuple, list)) else batch, module))


def _to_device_of(values: Any, module: nn.Module) -> Any:
    """Return a tensor on the device of a module and in its precision; anything else as it is."""
    # Integer inputs (words) keep their type; parameters of integers say nothing of a precision.
    like = next((t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()), None)
    if like is None or not isinstance(values, Tensor):
        return values
    return values.to(like.device, like.dtype) if values.is_floating_point() else values.to(like.device)


@contextmanager
def evaluation_without_gradients(*modules: nn.Module) -> Iterator[None]:
    """Run modules in evaluation mode and without gradients for the while."""
    with ExitStack() as stack, torch.no_grad():
        for module in modules:
            stack.enter_context(evaluating(module, keeps_gradients=True))
        yield


def observe(
    module: nn.Module, batches: Iterable[Any], names: Iterable[str], record: Callable[[str, nn.Module, Any, Any], None]
) -> None:
    """Run a module on batches, and call `record` with the name, part, arguments and output of every call of a part."""
    with evaluation_without_gradients(module), ExitStack() as stack:
        for name in names:
            stack.enter_context(module.get_submodule(name).register_forward_hook(partial(record, name)))
        for batch in batches:
            call_module(module, batch)


@dataclass(frozen=True)
class LayerOrder:
    """Layers of a network that can be repaired or refitted, in the order of computation."""

    # linear layers, convolutions, batch normalisations and recurrent layers, in the order of computation
    names: tuple[str, ...]
    recurrent: frozenset[str]  # those of them that are recurrent
    normalised: Mapping[str, str]  # name of a layer -> the batch normalisation that its output goes to
    outputs: frozenset[str]  # layers whose output is the network's; the last layer, if there are none
    skipped: Mapping[str, str]  # name of a part -> why it is left alone

    @property
    def not_recurrent(self) -> tuple[str, ...]:
        """Linear layers, convolutions and batch normalisations, in the order of computation."""
        return tuple(name for name in self.names if name not in self.recurrent)

    @property
    def affine(self) -> tuple[str, ...]:
        """Linear layers and convolutions, in the order of computation."""
        norms = set(self.normalised.values())
        return tuple(name for name in self.not_recurrent if name not in norms)


@dataclass(frozen=True, eq=False)
class _RecordedCalls:
    """The candidates that a network calls, in that order, and what hooks see of them."""

    candidates: Mapping[str, nn.Module]
    names: list[str] = field(default_factory=list)
    layer_of_output: dict[int, str] = field(default_factory=dict)  # by the `id` of an output tensor
    normalised: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    _outputs_alive: list[Any] = field(default_factory=list)  # so that no two outputs have one id

    def record(self, name: str, part: nn.Module, arguments: Any, keywords: Any, output: Any) -> None:
        """Record a call; a hook of the part under this name."""
        layer_input, _ = input_and_initial_state(arguments, keywords)
        if is_layer(part) and output.ndim < 2:
            self.skipped[name] = "answers a single sample, no batch"
        if is_norm(part):
            # A normalisation belongs to a layer if its input is that layer's output itself.
            producer = self.layer_of_output.get(id(layer_input))
            if producer is not None and is_layer(self.candidates[producer]):
                self.normalised[producer] = name
        else:
            layer_output = output if is_layer(part) else _as_list(output)[0]
            self.layer_of_output[id(layer_output)] = name
            self._outputs_alive.append(layer_output)
        if reason := unsupported_reason(part, layer_input):
            self.skipped[name] = reason
        if any(parameter.is_complex() for parameter in part.parameters(recurse=False)):
            self.skipped[name] = "has complex weights"
        self.names.append(name)

    def output_layers(self, network_output: Any) -> frozenset[str]:
        """Return the layers whose very output is returned; where an activation follows, say, the last layer."""
        values = network_output.values() if isinstance(network_output, Mapping) else _as_list(network_output)
        returned = {id(value) for value in values}
        last = [name for name in self.names if not is_norm(self.candidates[name])][-1:]
        return frozenset(name for key, name in self.layer_of_output.items() if key in returned) or frozenset(last)


def layer_order(module: nn.Module, batch: Any) -> LayerOrder:
    """Return the layers of a network that can be repaired or refitted, found by calling it once on a batch."""
    candidates = {
        name: part
        for name, part in module.named_modules()
        if is_layer(part) or is_norm(part) or is_recurrent(part) or isinstance(part, nn.RNNCellBase)
    }
    calls = _RecordedCalls(candidates)
    with evaluation_without_gradients(module), ExitStack() as stack:
        for name, part in candidates.items():
            stack.enter_context(part.register_forward_hook(partial(calls.record, name), with_kwargs=True))
        network_output = call_module(module, batch)
    # A layer that is called twice, or shares its weights, has no single output to repair.
    skipped, n_calls = calls.skipped, Counter(calls.names)
    skipped |= {name: "is not called as a module" for name in candidates if name not in n_calls}
    skipped |= {name: f"is called {n} times" for name, n in n_calls.items() if n > 1}
    uses = Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))
    for name, part in candidates.items():
        if any(uses[id(parameter)] > 1 for parameter in part.parameters(recurse=False)):
            skipped.setdefault(name, "shares its weights")
    names = tuple(name for name in calls.names if name not in skipped)
    pairs = {layer: norm for layer, norm in calls.normalised.items() if {layer, norm} <= set(names)}
    recurrent = frozenset(name for name in names if is_recurrent(candidates[name]))
    return LayerOrder(names, recurrent, pairs, calls.output_layers(network_output), skipped)


def _as_list(values: Any) -> list[Any]:
    return list(values) if isinstance(values, (tuple, list)) else [values]


@dataclass(eq=False)
class _ForwardStoppedError(Exception):
    """Ends a forward pass at a part, and carries out its (input, initial state) and, after the call, its output."""

    inputs: tuple[Any, Any]
    output: Any = None


@dataclass(frozen=True, eq=False)
class PartialForward:
    """A network that has been run as far as one of its parts, on all batches."""

    module: nn.Module  # the network, in evaluation mode
    # its parts in the order in which they are called, by name; the network itself unless it is an ``nn.Sequential``
    parts: Sequence[tuple[str, nn.Module]]
    start: int  # index of the part that comes next
    batches: Iterable[Any]  # inputs of that part

    @classmethod
    def at_input(cls, module: nn.Module, batches: Iterable[Any]) -> PartialForward:
        """Return a network before its first part."""
        return cls(module, list(_sequential_parts("", module)), 0, batches)

    def advance_to(self, name: str) -> PartialForward:
        """Return the network run on to the part that holds a layer, if the activations there are not too large."""
        index = self._part_index(name)
        if index == self.start:
            return self
        # The parts that are passed here were changed before, and are not changed again: their outputs stay valid.
        activations: list[Any] = []
        # data that is read anew in each pass has no length
        n_batches = len(self.batches) if isinstance(self.batches, (list, tuple)) else float("inf")
        for batch in self.batches:
            activations.append(self._run(batch, index))
            if n_bytes(activations[0]) * n_batches > _MAX_CACHED_BYTES:
                return self
        return replace(self, start=index, batches=activations)

    def inputs_and_outputs(self, name: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the input and the output of a part, batch by batch; raise InputError for values that are not finite."""
        for (inputs, _), outputs in self._calls(name, before=False):
            if not torch.isfinite(outputs.sum()):  # one NaN or infinity makes the sum one, and a sum is quick
                raise InputError(not_finite_problem(name))
            yield inputs, outputs

    def inputs_and_initial_states(self, name: str) -> Iterator[tuple[Any, Any]]:
        """Yield the input and the initial state (or None) that a part is called with, without running it."""
        for inputs, _ in self._calls(name, before=True):
            yield inputs

    def _calls(self, name: str, before: bool) -> Iterator[tuple[tuple[Any, Any], Any]]:
        """Yield the (input, initial state) and the output of a part by batch; `before` it runs, None as output."""
        index, part = self._part_index(name), self.module.get_submodule(name)
        for batch in self.batches:
            register: Any = part.register_forward_pre_hook if before else part.register_forward_hook
            try:
                with register(_stop, with_kwargs=True):
                    self._run(batch, index + 1)
            except _ForwardStoppedError as stopped:
                call = stopped.inputs, stopped.output
            else:
                raise InputError(name, "is not called for every batch, so that it cannot be measured")
            yield call

    def _part_index(self, name: str) -> int:
        """Return the index of the part that is a layer or contains it."""
        owners = (n for n, (part, _) in enumerate(self.parts) if not part or f"{name}.".startswith(f"{part}."))
        return next(owners, self.start)

    def _run(self, batch: Any, stop: int) -> Any:
        """Return the output of the parts from `start` up to `stop`, exclusive."""
        values = batch
        for index, (_, part) in enumerate(self.parts[self.start : stop], self.start):
            if index == 0:
                values = _called(part, values)
            else:
                # An in-place activation must not write into cached values.
                values = part(clone_values(values) if index == self.start else values)
        return values


def _sequential_parts(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the parts of nested sequences in the order in which they are called; other modules whole."""
    # A hook may change outputs, which running the children one by one would leave out.
    if type(module) is not nn.Sequential or module._forward_hooks or module._forward_pre_hooks:
        yield name, module
        return
    for child, part in module.named_children():
        yield from _sequential_parts(f"{name}.{child}" if name else child, part)


def _stop(_part: nn.Module, arguments: tuple[Any, ...], keywords: Mapping[str, Any], output: Any = None) -> None:
    raise _ForwardStoppedError(input_and_initial_state(arguments, keywords), output)


def not_finite_problem(name: str) -> Problem:
    """Return the problem of a part whose values are not finite."""
    return Problem(name, "gives NaN or infinite values on these inputs", "look at both", "E-NUMBER")
