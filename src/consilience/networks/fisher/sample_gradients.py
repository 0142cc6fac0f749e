"""Gradients of every single observation, from backward passes for many observations together.

Layers that are known (linear, convolutions, normalisation, embeddings, recurrent ones) are watched while the network
runs; what each was given and the gradient of what it answered give the gradient of every observation (see ``uses``).
Whether that holds for a network is tried on a few observations taken alone: where parameters are used otherwise, or
observations meet, the gradients are taken one by one, which is slower. (A network that uses its layers otherwise for
other inputs may pass the trial: three observations cannot tell.)
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
from consilience.networks.fisher.layer_uses import uses_of
from consilience.networks.fisher.parameter_uses import Product, Use, summed_squares
from consilience.networks.fisher.recurrent_uses import unrolled
from consilience.networks.repair.partial_forward import call
from consilience.networks.repair.recurrent_layers import is_recurrent, precise

Name = Callable[[nn.Module, str], str | None]
"""The name of a part's parameter, if it is trained."""

_TRIED = 3
"""Observations on which the gradients of all are compared with those of one."""

_ROUNDING = 1e4
"""How many times the rounding of one number two ways to the same gradient may differ by, as a share of its size."""


@dataclass(frozen=True, eq=False)
class Pulled(ABC):
    """Gradients of all observations for one column of their outputs' gradients."""

    observations: int

    @abstractmethod
    def squares(self, name: str) -> Tensor:
        """Return the sum of squared gradients of a parameter, in its shape."""

    @abstractmethod
    def gradients(self, name: str) -> Tensor:
        """Return the gradients of a parameter (n, *shape)."""


@dataclass(frozen=True, eq=False)
class _Together(Pulled):
    """From one backward pass for all."""

    uses: Mapping[str, Sequence[Use]]
    g: Mapping[int, Tensor]

    def squares(self, name: str) -> Tensor:
        """Return the sum of squared gradients of a parameter, in its shape."""
        uses = self.uses[name]
        if len(uses) == 1:
            return uses[0].squares(self.g[id(uses[0].answer)], self.observations)
        return summed_squares(lambda rows: self._rows(name, rows), uses[0].shape, self.observations)

    def gradients(self, name: str) -> Tensor:
        """Return the gradients of a parameter (n, *shape)."""
        return self._rows(name, slice(None))

    def _rows(self, name: str, rows: slice) -> Tensor:
        parts = [use.gradients(self.g[id(use.answer)], rows) for use in self.uses[name]]
        return torch.stack(parts).sum(dim=0) if len(parts) > 1 else parts[0]


@dataclass(frozen=True, eq=False)
class _OneByOne(Pulled):
    """From a backward pass for each."""

    rows: Mapping[str, Tensor]

    def squares(self, name: str) -> Tensor:
        """Return the sum of squared gradients of a parameter, in its shape."""
        return self.rows[name].square().sum(dim=0)

    def gradients(self, name: str) -> Tensor:
        """Return the gradients of a parameter (n, *shape)."""
        return self.rows[name]


Pull = Callable[[Tensor], Pulled]
"""From a gradient of the outputs of each observation (n, ...) to the gradients of its parameters."""


@dataclass(frozen=True, eq=False)
class SampleGradients:
    """A network in evaluation mode whose observations are differentiated one from another.

    Parameters
    ----------
    module
        The network.
    parameters
        Its trained parameters by name, tied ones once.
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

    def run(self, batch: Any, together: bool) -> tuple[Tensor, Pull]:
        """Return the outputs for a batch, and what gives the gradients of every observation."""
        return self._together(batch) if together else self._one_by_one(batch)

    def fits(self, batch: Any) -> bool:
        """Return whether gradients for all observations together are those of each alone, tried on a few."""
        few = rows_of(batch, slice(0, _TRIED))
        with self._watched() as uses:
            outputs = _outputs(self.module, few)
        if {use.parameter for use in uses} != set(self.parameters):
            return False
        column = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0)).to(outputs)
        try:
            pulled = self._pulled(uses, outputs, column)
            found = {name: pulled.gradients(name) for name in self.parameters}
        except (RuntimeError, IndexError):  # something has another shape than such layers have
            return False
        alone = self._one_by_one(few)[1](column)
        return all(
            _alike(found[name], alone.gradients(name), torch.finfo(values.dtype).eps)
            for name, values in self.parameters.items()
        )

    def entries(self, batch: Any) -> int:
        """Return how many numbers are kept for each observation."""
        with self._watched() as uses:
            _outputs(self.module, rows_of(batch, slice(0, 1)))
        return sum(use.answer.numel() + use.given.numel() for use in uses if isinstance(use, Product))

    def _together(self, batch: Any) -> tuple[Tensor, Pull]:
        with self._watched() as uses:
            outputs = _outputs(self.module, batch)
        return outputs.detach(), lambda column: self._pulled(uses, outputs, column)

    def _pulled(self, uses: Sequence[Use], outputs: Tensor, column: Tensor) -> Pulled:
        answers = list({id(use.answer): use.answer for use in uses}.values())
        found = torch.autograd.grad(outputs, answers, column, retain_graph=True, materialize_grads=True)
        by_parameter: dict[str, list[Use]] = {}
        for use in uses:
            by_parameter.setdefault(use.parameter, []).append(use)
        g = {id(answer): precise(gradient) for answer, gradient in zip(answers, found, strict=True)}
        return _Together(len(outputs), by_parameter, g)

    def _one_by_one(self, batch: Any) -> tuple[Tensor, Pull]:
        with torch.backends.cudnn.flags(enabled=False):  # whose recurrent layers go backward in training mode only
            return self._singles(batch)

    def _singles(self, batch: Any) -> tuple[Tensor, Pull]:
        single = [_outputs(self.module, rows_of(batch, slice(i, i + 1))) for i in range(length(batch))]
        own = list(self.parameters.values())

        def pull(column: Tensor) -> Pulled:
            rows = [
                torch.autograd.grad(output, own, column[i : i + 1], retain_graph=True, materialize_grads=True)
                for i, output in enumerate(single)
            ]
            stacked = {
                name: precise(torch.stack(parts))
                for name, parts in zip(self.parameters, zip(*rows, strict=True), strict=True)
            }
            return _OneByOne(len(single), stacked)

        return torch.cat(single).detach(), pull

    @contextmanager
    def _watched(self) -> Iterator[list[Use]]:
        """Collect what is used while the network runs."""
        uses: list[Use] = []

        def name(part: nn.Module, attribute: str) -> str | None:
            return self._names.get(id(part._parameters.get(attribute)))

        def watch(part: nn.Module, given: tuple[Any, ...], answer: Any) -> Any:
            found = uses_of(part, given, answer, name)
            uses.extend(found)
            return answer.clone() if found else answer  # what works in place then leaves the answer alone

        with ExitStack() as stack, torch.enable_grad():
            for part in self.module.modules():
                if not any(id(values) in self._names for values in part.parameters(recurse=False)):
                    continue
                if is_recurrent(part):
                    stack.enter_context(unrolled(part, name, uses))
                else:
                    stack.callback(part.register_forward_hook(watch).remove)
            yield uses


def _outputs(module: nn.Module, batch: Any) -> Tensor:
    """Return what a network answers for a batch, first axis observations.

    Raises
    ------
    InputError
        When it answers something else, or values that are not finite.
    """
    with torch.enable_grad():
        outputs = call(module, batch)
    if not isinstance(outputs, Tensor):
        raise InputError(f"the network answers a {type(outputs).__name__}; wrap it so that it answers a tensor")
    if outputs.ndim == 1:
        outputs = outputs.unsqueeze(1)
    if outputs.ndim == 0 or len(outputs) != length(batch):
        raise InputError(
            f"the network answers shape {tuple(outputs.shape)} for {length(batch)} observations; the first axis of "
            "what goes in and of what comes out must count them"
        )
    if not bool(torch.isfinite(outputs).all()):
        raise InputError("the network answers NaN or infinite values on these inputs; look at both")
    return outputs


def length(batch: Any) -> int:
    """Return the number of observations in a batch."""
    if isinstance(batch, Mapping):
        return len(next(values for values in batch.values() if isinstance(values, Tensor) and values.ndim))
    return len(batch[0] if isinstance(batch, (tuple, list)) else batch)


def rows_of(batch: Any, rows: slice) -> Any:
    """Return some observations of a batch; of inputs with labels, the inputs."""
    if isinstance(batch, Mapping):
        size = length(batch)
        taken = {key: isinstance(one, Tensor) and one.ndim > 0 and len(one) == size for key, one in batch.items()}
        return {key: one[rows] if taken[key] else one for key, one in batch.items()}
    return (batch[0] if isinstance(batch, (tuple, list)) else batch)[rows]


def _alike(one: Tensor, other: Tensor, eps: float) -> bool:
    if one.shape != other.shape:
        return False
    most = float(other.abs().max()) if prod(other.shape) else 0.0
    return bool((one - other).abs().max() <= _ROUNDING * eps * max(most, 1e-30))
