"""Running a network as far as one of its layers, while the layers before are being changed.

Repair and refitting go through the layers in the order of computation: each is measured after those before it have been
changed. A network that is an ``nn.Sequential`` is run on from where it was left (`advanced`), any other one from its
start, in one pass for each layer; a pass ends where the layer has answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from consilience.errors import InputError
from consilience.landscape.evaluation import evaluation_mode

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_KEPT_BYTES = 2**30
"""Activations between two parts of a network that are kept at most; beyond, passes start at the input."""


def is_layer(part: nn.Module) -> TypeGuard[Layer]:
    """Return whether a module is a linear layer or a convolution (not a transposed one)."""
    return isinstance(part, _LAYERS)


def is_norm(part: nn.Module) -> TypeGuard[_BatchNorm]:
    """Return whether a module is batch normalisation."""
    return isinstance(part, _BatchNorm)


def is_grouped(layer: Layer) -> bool:
    """Return whether a layer is a convolution whose channels see only some of its input."""
    return not isinstance(layer, nn.Linear) and layer.groups > 1


def as_batches(batches: Any) -> Iterable[Any]:
    """Return batches that can be gone through again and again; a tensor is one batch.

    Raises
    ------
    InputError
        When there are none.
    """
    if isinstance(batches, Tensor):
        batches = [batches] if batches.ndim > 0 and len(batches) > 0 else []
    if isinstance(batches, Iterator):
        batches = list(batches)
    if not isinstance(batches, Iterable) or next(iter(batches), None) is None:
        raise InputError("batches: expected a tensor, or at least one batch of inputs")
    return batches


def in_batches(inputs: Any, size: int) -> list[Any]:
    """Return inputs in memory: a tensor (N, ...) in batches of at most `size`, batches as they are.

    Raises
    ------
    InputError
        When there are none.
    """
    if not isinstance(inputs, Tensor):
        return list(as_batches(inputs))
    if inputs.ndim == 0 or len(inputs) == 0:
        raise InputError("inputs: expected at least one, found none")
    return list(torch.split(inputs, size))


def samples(batch: Any) -> int:
    """Return how many samples a batch has."""
    values = next(iter(batch.values())) if isinstance(batch, Mapping) else batch
    return len(values[0] if isinstance(values, (tuple, list)) else values)


def call(module: nn.Module, batch: Any) -> Any:
    """Return what a module makes of a batch: a tensor, keyword arguments, or (inputs, labels, ...)."""
    if isinstance(batch, Mapping):
        return module(**{key: _placed(value, module) for key, value in batch.items()})
    return module(_placed(batch[0] if isinstance(batch, (tuple, list)) else batch, module))


def _placed(values: Any, module: nn.Module) -> Any:
    """Return a tensor on the device of a module and in its precision; anything else as it is."""
    like = next((t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()), None)
    if like is None or not isinstance(values, Tensor):
        return values
    return values.to(like.device, like.dtype) if values.is_floating_point() else values.to(like.device)


@contextmanager
def evaluated(*modules: nn.Module) -> Iterator[None]:
    """Run modules in evaluation mode and without gradients for the while."""
    with ExitStack() as stack, torch.no_grad():
        for module in modules:
            stack.enter_context(evaluation_mode(module))
        yield


@dataclass(frozen=True)
class Structure:
    """What there is to be repaired in a network.

    Parameters
    ----------
    order
        Linear layers, convolutions and batch normalisations, in the order of computation.
    normalised
        Name of a layer -> the batch normalisation that its output goes to.
    outputs
        Layers whose output is the network's; the last layer, if there are none.
    skipped
        Name of a part -> why it is left alone.
    """

    order: tuple[str, ...]
    normalised: Mapping[str, str]
    outputs: frozenset[str]
    skipped: Mapping[str, str]

    @property
    def layers(self) -> tuple[str, ...]:
        """Linear layers and convolutions, in the order of computation."""
        norms = set(self.normalised.values())
        return tuple(name for name in self.order if name not in norms)


def structure(module: nn.Module, batch: Any) -> Structure:
    """Return what there is to be repaired in a network, by calling it once."""
    named = {name: part for name, part in module.named_modules() if is_layer(part) or is_norm(part)}
    calls: list[str] = []
    made: dict[int, str] = {}
    kept: list[Tensor] = []  # so that no two outputs have one address
    normalised: dict[str, str] = {}

    def watch(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(part: nn.Module, arguments: Any, output: Tensor) -> None:
            if is_norm(part) and id(arguments[0]) in made:
                normalised[made[id(arguments[0])]] = name
            if is_layer(part):
                made[id(output)] = name
                kept.append(output)
            calls.append(name)

        return hook

    with evaluated(module), ExitStack() as stack:
        for name, part in named.items():
            stack.callback(part.register_forward_hook(watch(name)).remove)
        found = call(module, batch)
    skipped = {name: "is not called as a module" for name in named if name not in calls}
    skipped |= {name: f"is called {calls.count(name)} times" for name in calls if calls.count(name) > 1}
    names_of: dict[int, set[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names_of.setdefault(id(parameter), set()).add(name)
    for name, part in named.items():
        if any(len(names_of[id(parameter)]) > 1 for parameter in part.parameters(recurse=False)):
            skipped.setdefault(name, "shares its weights")
    order = tuple(name for name in calls if name not in skipped)
    layers = [name for name in calls if is_layer(named[name])]
    returned = {id(value) for value in (found.values() if isinstance(found, Mapping) else _flat(found))}
    outputs = frozenset(name for made_id, name in made.items() if made_id in returned) or frozenset(layers[-1:])
    pairs = {layer: norm for layer, norm in normalised.items() if layer in order and norm in order}
    return Structure(order, pairs, outputs, skipped)


def _flat(values: Any) -> list[Any]:
    return list(values) if isinstance(values, (tuple, list)) else [values]


class _ReachedError(Exception):
    """Carries what a layer was given and what it answered out of a pass."""

    def __init__(self, given: Tensor, answer: Tensor) -> None:
        super().__init__()
        self.given, self.answer = given, answer


@dataclass(frozen=True, eq=False)
class Stage:
    """A network that has been run as far as one of its parts.

    Parameters
    ----------
    module
        The network, in evaluation mode.
    parts
        Its parts in the order in which they are called, by name; the network itself unless it is an ``nn.Sequential``.
    start
        The part that comes next.
    batches
        What goes into that part.
    """

    module: nn.Module
    parts: Sequence[tuple[str, nn.Module]]
    start: int
    batches: Iterable[Any]

    @classmethod
    def at_input(cls, module: nn.Module, batches: Iterable[Any]) -> Stage:
        """Return a network before its first part."""
        return cls(module, list(_parts("", module)), 0, batches)

    def advanced(self, name: str) -> Stage:
        """Return the network run on to the part that has a layer, if the activations there are not too large."""
        place = self._part_of(name)
        if place == self.start:
            return self
        reached: list[Tensor] = []
        for batch in self.batches:
            reached.append(self._run(batch, place))
            if reached[0].nbytes * _length(self.batches) > _KEPT_BYTES:
                return self
        return replace(self, start=place, batches=reached)

    def at(self, name: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield what a part is given and what it answers, batch by batch.

        Raises
        ------
        InputError
            When the part is not reached, or has values that are not finite.
        """
        place = self._part_of(name)
        for batch in self.batches:
            handle = self.module.get_submodule(name).register_forward_hook(_reached)
            try:
                self._run(batch, place + 1)
            except _ReachedError as reached:
                given, answer = reached.given, reached.answer
            else:
                raise InputError(f"{name}: is not called for every batch, so that it cannot be measured")
            finally:
                handle.remove()
            if not torch.isfinite(answer.sum()):  # one NaN or infinity makes the sum one, and a sum is quick
                raise InputError(f"{name}: gives NaN or infinite values on these inputs; look at both")
            yield given, answer

    def _part_of(self, name: str) -> int:
        owners = (n for n, (part, _) in enumerate(self.parts) if not part or f"{name}.".startswith(f"{part}."))
        return next(owners, self.start)

    def _run(self, batch: Any, stop: int) -> Any:
        values = batch
        for number, (_, part) in enumerate(self.parts[self.start : stop], self.start):
            # an in-place activation must not write into what is kept
            values = call(part, values) if number == 0 else part(values.clone() if number == self.start else values)
        return values


def _parts(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the parts of nested sequences in the order in which they are called; other modules whole."""
    if type(module) is not nn.Sequential or module._forward_hooks or module._forward_pre_hooks:
        yield name, module
        return
    for child, part in module.named_children():
        yield from _parts(f"{name}.{child}" if name else child, part)


def _length(batches: Iterable[Any]) -> float:
    """Return how many batches there are; infinite for data that is read anew in each pass."""
    return len(batches) if isinstance(batches, (list, tuple)) else float("inf")


def _reached(_part: nn.Module, given: tuple[Tensor, ...], answer: Tensor) -> None:
    raise _ReachedError(given[0], answer)
