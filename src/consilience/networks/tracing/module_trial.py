"""Trials of a module: a copy with random arrays, whose outputs are compared under changes of the arrays.

The copy runs in float64, or in float32 if the module insists on it. Its own casts to float32 (norms, softmax and rotary
positions of transformers) run in float64 too: their rounding alone changes outputs by 1e-7. Its arrays are random where
those of the module would hide an error: a bias of zero, a gain of one or an identity matrix stays as it is under wrong
permutations too, and a gain of a millionth, as of a branch that is faded in, hides all that is behind it. Running
statistics are measured on the example, because statistics of other weights would leave most units of a deep network
silent, and silent units hide everything.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from consilience.errors import UnsupportedError
from consilience.networks.entry_names import is_extra_state
from consilience.networks.example import Example
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.torch_modules import evaluating, seeded_torch

OUTPUT_TOLERANCE = {
    torch.float64: 1e-8,  # sums in another order err by 1e-16, which some hundred layers amplify
    torch.float32: 5e-5,  # the same from 6e-8; broken symmetries were seen to differ by as little as 4e-4
}
"""Largest deviation of outputs, relative to the largest output, that rounding explains, by precision."""
MIN_REPEATED_SHARE = 0.1
"""Share of entries equal to their neighbour from which a matrix is taken to be constructed, not learnt: zeros, an
identity. Chosen by hand; nobody has measured other values."""
MIN_VARIANCE = 1e-3
"""Least running variance of a trial, so that normalising a silent channel does not blow it up. Chosen by hand."""
RELATIVE_NOISE = 0.5
"""Standard deviation of the noise added to an array, relative to its spread, and half the width of the factors of
positive arrays. Chosen by hand: large enough to tell equal entries apart, small enough to leave networks alive."""
NOISE_OF_EQUAL_ENTRIES = 0.3
"""Standard deviation of the noise added to an array of equal entries, and to running means, in standard deviations of
their channel. Chosen by hand."""

MIN_GAIN = 0.1
"""Root mean square of a gain or bias below which a trial takes a larger one: LayerScale begins at 1e-6. Chosen by
hand."""
MIN_EFFECT = 100.0
"""Relative change of the outputs, in tolerances, by changes of an array as large as itself, below which a wrong place
of it might pass for rounding. Chosen by hand."""
NO_EFFECT = 1000.0
"""The same in rounding units (eps) of arrays that have no effect but by rounding, such as a bias of keys, which a
softmax takes out: any place of them is right. Chosen by hand."""


Change = Callable[[str, Tensor], Tensor]
"""What becomes of an array, by its name: another one of its shape, or itself."""


@dataclass(eq=False)
class ModuleTrial:
    """A copy of a module, arrays and inputs on which changes are tried, and its outputs without any change.

    Changes are made in place, one array at a time, since a copy of all arrays of a large network is large. Trials that
    were redrawn share what is not redrawn: what is changed for good in one is changed in all (`follow`).
    """

    module: nn.Module  # the copy
    example: Example  # its inputs
    arrays: Mapping[str, Tensor]  # random arrays like those of the module
    outputs: Sequence[Tensor]  # outputs with these arrays
    tolerance: float  # relative deviation of outputs that rounding explains

    is_double: bool = False  # whether the copy runs in float64, casts to narrower types included

    def change(self, change: Change) -> float:
        """Change arrays for good, and return the largest difference of outputs, relative to the largest of each."""
        self._write(change)
        before, self.outputs = self.outputs, self._answers()
        return _largest_difference(before, self.outputs)

    def follow(self, other: ModuleTrial, change: Change) -> None:
        """Change arrays as another trial did for good, those that it does not share."""
        self._write(lambda name, array: array if array is other.arrays[name] else change(name, array))

    def deviation(self, change: Change, undo: Change) -> float:
        """Return the largest difference of outputs under a change of arrays, which is undone."""
        self._write(change)
        try:
            return _largest_difference(self.outputs, self._answers())
        finally:
            self._write(undo)

    def deviation_of_copies(self, change: Change) -> float:
        """Return the largest difference of outputs under a change of arrays that only copies of them undo."""
        changed = {name: change(name, array) for name, array in self.arrays.items()}
        before = {name: array.clone() for name, array in self.arrays.items() if changed[name] is not array}
        return self.deviation(lambda name, _: changed[name], lambda name, array: before.get(name, array))

    def _write(self, change: Change) -> None:
        """Change arrays in place."""
        for name, array in self.arrays.items():
            if (changed := change(name, array)) is not array:
                array.copy_(changed)

    def _answers(self) -> list[Tensor]:
        """Return the outputs with the arrays as they are."""
        return _run(self.module, self.example, self.arrays, is_double=self.is_double)

    def hidden_arrays(self, rng: np.random.Generator) -> set[str]:
        """Return the arrays whose places the outputs could hardly tell, since even large changes have little effect.

        Changes are as large as the arrays. To first order, of all arrays at once: the gradients of a random combination
        of the outputs. Buffers, and arrays of modules without gradients, are taken for seen.
        """
        try:
            effects = self._effects(rng)
        except Exception:  # whatever has no derivative
            return set()
        no_effect = NO_EFFECT * torch.finfo(torch.float64 if self.is_double else torch.float32).eps
        return {name for name, effect in effects.items() if no_effect < effect < MIN_EFFECT * self.tolerance}

    def _effects(self, rng: np.random.Generator) -> dict[str, float]:
        """Return the effects of changes of parameters, as large as these, on a random combination of the outputs."""
        parameters = {name: one for name, one in self.module.named_parameters() if name in self.arrays}
        precision = _NoNarrowCasts() if self.is_double else nullcontext()  # type: ignore[no-untyped-call]
        with evaluating(self.module), seeded_torch(), precision, torch.enable_grad():
            for name, parameter in parameters.items():
                parameter.data = self.arrays[name]
                parameter.requires_grad_(parameter.is_floating_point() or parameter.is_complex())
            effects: dict[str, float] = {}
            with ExitStack() as stack:
                for name, parameter in parameters.items():
                    if parameter.requires_grad:
                        hook: Any = parameter.register_post_accumulate_grad_hook
                        stack.enter_context(hook(partial(_record_effect, effects, name)))
                answers = [leaf for leaf in pytree.tree_leaves(self.example.call(self.module)) if _is_real(leaf)]
                combined = torch.stack([(_normal(leaf, rng) * leaf / _size_of(leaf)).sum() for leaf in answers]).sum()
                combined.backward()  # type: ignore[no-untyped-call]
        return effects

    def redrawn(self, rng: np.random.Generator) -> ModuleTrial:
        """Return a trial with other random arrays, on inputs around the example if the module takes them."""
        around = self.example.changed(lambda leaf: _perturb(leaf, rng))
        arrays = {name: random_like(array, rng) for name, array in self.arrays.items()}
        return self._with(around, arrays) or self._with(self.example, arrays) or self

    def at_unit_scale(self) -> ModuleTrial | None:
        """Return a trial on the same inputs divided by their root mean square; None if the module refuses them."""
        return self._with(self.example.changed(_at_unit_scale), self.arrays)

    def _with(self, example: Example, arrays: Mapping[str, Tensor]) -> ModuleTrial | None:
        """Return a trial on other inputs and arrays; None where the module refuses them, or overflows."""
        try:
            outputs = _run(self.module, example, arrays, is_double=self.is_double)
        except Exception:  # a network may refuse inputs that are not like its own
            return None
        if not all(bool(torch.isfinite(output).all()) for output in outputs):
            return None
        return replace(self, example=example, arrays=arrays, outputs=outputs)


def make_trial(module: nn.Module, example: Example, symmetry: Symmetry, rng: np.random.Generator) -> ModuleTrial:
    """Return a trial in the highest precision that the module runs in; UnsupportedError if it runs in none."""
    first_error: Exception | None = None
    for dtype, tolerance in OUTPUT_TOLERANCE.items():
        try:
            copied = copy.deepcopy(module).eval()
            cast = partial(_cast, dtype=dtype)
            copied._apply(cast)  # type: ignore[no-untyped-call]  # `to` makes complex ones real
            cast_example = example.changed(cast)
            originals = {name: array for name, array in arrays_of(copied).items() if name in symmetry.layouts}
            is_double = dtype == torch.float64
            arrays = _randomise_arrays(copied, cast_example, originals, rng)
            outputs = _run(copied, cast_example, arrays, is_double=is_double)
            return ModuleTrial(copied, cast_example, arrays, outputs, tolerance, is_double)
        except Exception as error:  # whatever the module's own code raises in a precision that it was not written for
            first_error = first_error or error
    text = f"a copy of it does not run in float64 or float32 ({first_error})"
    remedy = "let its forward take the precision of its weights"
    raise UnsupportedError(type(module).__name__, text, remedy) from first_error


def _record_effect(effects: dict[str, float], name: str, parameter: Tensor) -> None:
    """Record the effect of a change of a parameter as large as it, and drop its gradient."""
    if parameter.grad is not None:
        effects[name] = float(torch.linalg.vector_norm(parameter.grad.mul_(parameter.detach())))
        parameter.grad = None


def _randomise_arrays(
    module: nn.Module, example: Example, originals: Mapping[str, Tensor], rng: np.random.Generator
) -> dict[str, Tensor]:
    """Return random arrays like the originals, with running statistics near those that the example has under them."""
    statistics = {name for name, _ in module.named_buffers()}
    arrays = {
        name: random_like(array if name in statistics else _enlarged(array), rng) for name, array in originals.items()
    }
    norms = {
        path: layer
        for path, layer in module.named_modules()
        if isinstance(layer, nn.modules.batchnorm._NormBase) and isinstance(layer.running_var, Tensor)
    }
    if not norms:
        return arrays
    try:
        for layer in norms.values():  # of a copy that is never trained
            layer.momentum = 1.0  # running statistics become those of this one batch
        _run(module, example, arrays, measuring=list(norms.values()))
        measured = {
            f"{path}.{name}".lstrip("."): array
            for path, layer in norms.items()
            for name, array in layer.named_buffers()
        }
    except ValueError:  # a batch of one, of which no spread can be measured
        measured = {}
    for name in arrays:
        if name.endswith("running_var") and name in measured:
            variance = measured[name].clamp(min=MIN_VARIANCE)
            mean_name = name.removesuffix("var") + "mean"
            arrays[name] = random_like(variance, rng)
            noise = NOISE_OF_EQUAL_ENTRIES * variance.sqrt() * _normal(variance, rng)
            arrays[mean_name] = measured[mean_name] + noise
    return arrays


class _NoNarrowCasts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs every cast to 16 or 32 bits, and every new tensor of such a type, in float64."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation with another `dtype`, where that is a narrow one."""
        keywords = dict(kwargs or {})
        if keywords.get("dtype") in _NARROW_TYPES:
            keywords["dtype"] = torch.float64
        return func(*args, **keywords)


_NARROW_TYPES = (torch.float16, torch.bfloat16, torch.float32)


def _run(
    module: nn.Module,
    example: Example,
    arrays: Mapping[str, Tensor],
    measuring: Sequence[nn.Module] = (),
    is_double: bool = False,
) -> list[Tensor]:
    """Return all tensors that the module answers with these arrays; layers in `measuring` update their statistics."""
    precision = _NoNarrowCasts() if is_double else nullcontext()  # type: ignore[no-untyped-call]
    with evaluating(module), seeded_torch(), precision:  # whatever the module draws is the same in every run
        for layer in measuring:
            layer.training = True
        for name, parameter in module.named_parameters():
            if name in arrays:
                parameter.data = arrays[name]
        for name, buffer in module.named_buffers():
            if name in arrays:
                buffer.data = arrays[name].clone()  # the module may change it
        result = example.call(module)
    return [leaf.detach().clone() for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def _cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return real numbers in a type, complex ones in that of such parts, anything else as it is."""
    if values.is_complex():
        return values.to(dtype.to_complex())
    return values.to(dtype) if values.is_floating_point() else values


def _normal(like: Tensor, rng: np.random.Generator) -> Tensor:
    return torch.as_tensor(rng.standard_normal(tuple(like.shape)), dtype=like.dtype, device=like.device)


def _perturb(values: Tensor, rng: np.random.Generator) -> Tensor:
    """Return real inputs with normal noise of their own spread; whole numbers (indices, masks) stay."""
    if not values.is_floating_point() or not values.numel():
        return values
    spread = float(values.std(unbiased=False))
    return values + (spread if 0 < spread < np.inf else 1.0) * _normal(values, rng)


def _at_unit_scale(values: Tensor) -> Tensor:
    """Return real inputs divided by their root mean square; whole numbers (indices, masks) stay."""
    if not values.is_floating_point() or not values.numel():
        return values
    size = float(values.square().mean().sqrt())
    return values / size if 0 < size < np.inf else values


def _enlarged(array: Tensor) -> Tensor:
    """Return a small gain or bias as one of order 1, which shows what is behind it; any other array as it is."""
    if not array.is_floating_point() or not array.numel() or array.numel() > max(array.shape, default=1):
        return array
    size = float(array.square().mean().sqrt())
    if not 0 < size < MIN_GAIN:
        return array
    return array * ((1.0 if bool((array > 0).all()) else NOISE_OF_EQUAL_ENTRIES) / size)


def _is_real(leaf: Any) -> bool:
    """Return whether an output is a tensor of real numbers."""
    return isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel() > 0


def _size_of(leaf: Tensor) -> float:
    """Return the largest finite entry of an output; 1 where all are zero."""
    finite = leaf.detach()[torch.isfinite(leaf)]
    return (float(finite.abs().max()) if finite.numel() else 0.0) or 1.0


def random_like(array: Tensor, rng: np.random.Generator) -> Tensor:
    """Return random numbers like those of an array: positive ones stay positive, equal ones become different.

    Matrices of many different numbers are returned as they are: they hide no error.
    """
    if array.is_complex():
        return torch.view_as_complex(random_like(torch.view_as_real(array), rng).contiguous())
    if not array.is_floating_point() or not array.numel():
        return array
    flat = array.reshape(-1)
    if array.ndim > 1 and float((flat[1:] == flat[:-1]).to(torch.float32).mean()) < MIN_REPEATED_SHARE:
        return array
    if bool((array > 0).all()):  # gains, running variances
        factors = rng.uniform(1 - RELATIVE_NOISE, 1 + RELATIVE_NOISE, tuple(array.shape))
        return array * torch.as_tensor(factors, dtype=array.dtype, device=array.device)
    spread = float(array.std(unbiased=False))
    return array + (RELATIVE_NOISE * spread if spread > 0 else NOISE_OF_EQUAL_ENTRIES) * _normal(array, rng)


def _largest_difference(outputs: Sequence[Tensor], references: Sequence[Tensor]) -> float:
    """Return the largest difference of two lists of outputs, relative to the largest entry of the first's.

    Infinite where whole numbers differ, or entries that are finite in one are not in the other.
    """
    largest = 0.0
    for output, reference in zip(outputs, references, strict=True):
        if not output.numel():
            continue
        if not output.is_floating_point() and not output.is_complex():
            largest = max(largest, 0.0 if torch.equal(output, reference) else np.inf)
            continue
        finite = torch.isfinite(output)
        if not torch.equal(finite, torch.isfinite(reference)):
            return np.inf
        if bool(finite.any()):
            size = float(output[finite].abs().max())
            largest = max(largest, float((output - reference)[finite].abs().max()) / (size or 1.0))
    return largest


def arrays_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the arrays of a module by name."""
    return {
        name: array
        for name, array in module.state_dict().items()
        if isinstance(array, Tensor) and not is_extra_state(name)
    }
