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
from consilience.networks.landscape.evaluation import evaluation_mode
from consilience.networks.repair.recurrent_layers import called_with, copied, is_recurrent, size_of, unfit

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
    calls
        Linear layers, convolutions, batch normalisations and recurrent layers, in the order of computation.
    recurrent
        Which of them are recurrent.
    normalised
        Name of a layer -> the batch normalisation that its output goes to.
    outputs
        Layers whose output is the network's; the last layer, if there are none.
    skipped
        Name of a part -> why it is left alone.
    """

    calls: tuple[str, ...]
    recurrent: frozenset[str]
    normalised: Mapping[str, str]
    outputs: frozenset[str]
    skipped: Mapping[str, str]

    @property
    def order(self) -> tuple[str, ...]:
        """Linear layers, convolutions and batch normalisations, in the order of computation."""
        return tuple(name for name in self.calls if name not in self.recurrent)

    @property
    def layers(self) -> tuple[str, ...]:
        """Linear layers and convolutions, in the order of computation."""
        norms = set(self.normalised.values())
        return tuple(name for name in self.order if name not in norms)


def structure(module: nn.Module, batch: Any) -> Structure:
    """Return what there is to be repaired in a network, by calling it once."""
    named = {name: part for name, part in module.named_modules() if _is_known(part)}
    calls: list[str] = []
    made: dict[int, str] = {}
    kept: list[Any] = []  # so that no two outputs have one address
    normalised: dict[str, str] = {}
    skipped: dict[str, str] = {}

    def watch(name: str) -> Callable[[nn.Module, Any, Any, Any], None]:
        def hook(part: nn.Module, arguments: Any, keywords: Any, output: Any) -> None:
            given, _ = called_with(arguments, keywords)
            if is_layer(part) and output.ndim < 2:
                skipped[name] = "answers a single sample, no batch"
            if is_norm(part):
                before = made.get(id(given))
                if before is not None and is_layer(named[before]):
                    normalised[before] = name
            else:
                answer = output if is_layer(part) else _flat(output)[0]
                made[id(answer)] = name
                kept.append(answer)
            if why := unfit(part, given):
                skipped[name] = why
            calls.append(name)

        return hook

    with evaluated(module), ExitStack() as stack:
        for name, part in named.items():
            stack.callback(part.register_forward_hook(watch(name), with_kwargs=True).remove)
        found = call(module, batch)
    skipped |= {name: "is not called as a module" for name in named if name not in calls}
    skipped |= {name: f"is called {calls.count(name)} times" for name in calls if calls.count(name) > 1}
    names_of: dict[int, set[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names_of.setdefault(id(parameter), set()).add(name)
    for name, part in named.items():
        if any(len(names_of[id(parameter)]) > 1 for parameter in part.parameters(recurse=False)):
            skipped.setdefault(name, "shares its weights")
    order = tuple(name for name in calls if name not in skipped)
    layers = [name for name in calls if not is_norm(named[name])]
    returned = {id(value) for value in (found.values() if isinstance(found, Mapping) else _flat(found))}
    outputs = frozenset(name for made_id, name in made.items() if made_id in returned) or frozenset(layers[-1:])
    pairs = {layer: norm for layer, norm in normalised.items() if layer in order and norm in order}
    recurrent = frozenset(name for name in order if is_recurrent(named[name]))
    return Structure(order, recurrent, pairs, outputs, skipped)


def _is_known(part: nn.Module) -> bool:
    return is_layer(part) or is_norm(part) or is_recurrent(part) or isinstance(part, nn.RNNCellBase)


def _flat(values: Any) -> list[Any]:
    return list(values) if isinstance(values, (tuple, list)) else [values]


@dataclass(eq=False)
class _ReachedError(Exception):
    """Carries what a part was given, and what it answered if it was asked, out of a pass."""

    given: Any
    answer: Any = None


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
        reached: list[Any] = []
        # data that is read anew in each pass has no length
        number = len(self.batches) if isinstance(self.batches, (list, tuple)) else float("inf")
        for batch in self.batches:
            reached.append(self._run(batch, place))
            if size_of(reached[0]) * number > _KEPT_BYTES:
                return self
        return replace(self, start=place, batches=reached)

    def at(self, name: str) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield what a part is given and what it answers, batch by batch.

        Raises
        ------
        InputError
            When the part is not reached, or has values that are not finite.
        """
        for (given, _), answer in self._reached(name, before=False):
            if not torch.isfinite(answer.sum()):  # one NaN or infinity makes the sum one, and a sum is quick
                raise InputError(not_finite(name))
            yield given, answer

    def before(self, name: str) -> Iterator[tuple[Any, Any]]:
        """Yield the input and the first states (or None) that a part is called with, which is not run itself.

        Raises
        ------
        InputError
            When the part is not reached.
        """
        for called, _ in self._reached(name, before=True):
            yield called

    def _reached(self, name: str, before: bool) -> Iterator[tuple[tuple[Any, Any], Any]]:
        """Yield what a part is called with and what it answers, or as it is called."""
        place, part = self._part_of(name), self.module.get_submodule(name)
        for batch in self.batches:
            handle = (
                part.register_forward_pre_hook(_stop_before, with_kwargs=True)
                if before
                else part.register_forward_hook(_stop_after, with_kwargs=True)
            )
            try:
                self._run(batch, place + 1)
            except _ReachedError as reached:
                found = reached.given, reached.answer
            else:
                raise InputError(f"{name}: is not called for every batch, so that it cannot be measured")
            finally:
                handle.remove()
            yield found

    def _part_of(self, name: str) -> int:
        owners = (n for n, (part, _) in enumerate(self.parts) if not part or f"{name}.".startswith(f"{part}."))
        return next(owners, self.start)

    def _run(self, batch: Any, stop: int) -> Any:
        values = batch
        for number, (_, part) in enumerate(self.parts[self.start : stop], self.start):
            # an in-place activation must not write into what is kept
            values = call(part, values) if number == 0 else part(copied(values) if number == self.start else values)
        return values


def _parts(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the parts of nested sequences in the order in which they are called; other modules whole."""
    if type(module) is not nn.Sequential or module._forward_hooks or module._forward_pre_hooks:
        yield name, module
        return
    for child, part in module.named_children():
        yield from _parts(f"{name}.{child}" if name else child, part)


def _stop_before(_part: nn.Module, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    raise _ReachedError(called_with(given, named))


def _stop_after(_part: nn.Module, given: tuple[Any, ...], named: Mapping[str, Any], answer: Any) -> None:
    raise _ReachedError(called_with(given, named), answer)


def not_finite(name: str) -> str:
    """Return what is said of a part whose values are not finite."""
    return f"{name}: gives NaN or infinite values on these inputs; look at both"
