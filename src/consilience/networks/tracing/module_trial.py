"""Running a copy of a module on other arrays, to see what comes of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from consilience.errors import UnsupportedError
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.tracing.export import Example, evaluating

_TOLERANCE = {
    torch.float64: 1e-8,  # sums in another order err by 1e-16, which some hundred layers amplify
    torch.float32: 5e-5,  # as above from 6e-8; broken symmetries were seen to differ by as little as 4e-4
}

_REPEATED = 0.1
"""Share of entries equal to their neighbour from which an array is taken to be made, not learnt: zeros, an identity."""


@dataclass(frozen=True)
class Bench:
    """A copy of the module, arrays and inputs to try changes on, and what comes out without any.

    Parameters
    ----------
    module
        The copy.
    example
        What it is called with.
    arrays
        Random arrays like those that the module came with.
    outputs
        What comes out with these.
    tolerance
        Deviation that rounding explains.
    """

    module: nn.Module
    example: Example
    arrays: Mapping[str, Tensor]
    outputs: Sequence[Tensor]
    tolerance: float

    def deviation(self, arrays: Mapping[str, Tensor]) -> float:
        """Return the largest difference of outputs with other arrays, relative to the size of the output."""
        return _difference(self.outputs, _run(self.module, self.example, arrays))

    def stays(self, arrays: Mapping[str, Tensor]) -> bool:
        """Whether the outputs with other arrays are the same but for rounding."""
        return self.deviation(arrays) <= self.tolerance

    def elsewhere(self, rng: np.random.Generator) -> Bench:
        """Return one with other random arrays, on inputs around the example if the module takes them."""
        leaves, form = pytree.tree_flatten((self.example.args, dict(self.example.kwargs or {})))
        near = [_around(one, rng) if isinstance(one, Tensor) else one for one in leaves]
        args, kwargs = pytree.tree_unflatten(near, form)
        arrays = {name: random_like(array, rng) for name, array in self.arrays.items()}
        for example in (Example(args, kwargs), self.example):
            try:
                outputs = _run(self.module, example, arrays)
            except Exception:  # noqa: S112  (a network may refuse inputs that are not like its own)
                continue
            if all(bool(torch.isfinite(one).all()) for one in outputs):
                return replace(self, example=example, arrays=arrays, outputs=outputs)
        return self


def make_bench(module: nn.Module, example: Example, symmetry: Symmetry, rng: np.random.Generator) -> Bench:
    """Return a bench of the highest precision that the module runs in.

    Raises
    ------
    UnsupportedError
        If a copy of the module runs in none.
    """
    problem: Exception | None = None
    for dtype, tolerance in _TOLERANCE.items():
        try:
            copied = copy.deepcopy(module).to(dtype).eval()
            cast = _cast(example, dtype)
            given = {name: array.clone() for name, array in arrays_of(copied).items() if name in symmetry.layouts}
            arrays = _lively(copied, cast, given, rng)
            return Bench(copied, cast, arrays, _run(copied, cast, arrays), tolerance)
        except Exception as error:  # whatever the module's own code raises in a precision that it was not written for
            problem = problem or error
    raise UnsupportedError(
        f"{type(module).__name__}: a copy of it does not run in float64 or float32 ({problem}); "
        "let its forward take the precision of its weights"
    ) from problem


def _lively(
    module: nn.Module, example: Example, given: Mapping[str, Tensor], rng: np.random.Generator
) -> dict[str, Tensor]:
    """Return random arrays like those given, with running statistics near those of the example.

    Statistics of other weights would leave most units of a deep network silent, and silent units hide everything.
    """
    arrays = {name: random_like(array, rng) for name, array in given.items()}
    norms = {
        name: part
        for name, part in module.named_modules()
        if isinstance(part, nn.modules.batchnorm._NormBase) and isinstance(part.running_var, Tensor)
    }
    if not norms:
        return arrays
    momenta = {name: part.momentum for name, part in norms.items()}
    try:
        for part in norms.values():
            part.momentum = 1.0
        _run(module, example, arrays, measuring=list(norms.values()))
        measured = {
            f"{path}.{name}".lstrip("."): array for path, one in norms.items() for name, array in one.named_buffers()
        }
    except ValueError:  # a batch of one, of which no spread can be measured
        measured = {}
    finally:
        for name, part in norms.items():
            part.momentum = momenta[name]
    for name in arrays:
        if name.endswith("running_var") and name in measured:
            variance = measured[name].clamp(min=1e-3)
            mean = name.removesuffix("var") + "mean"
            arrays[name] = random_like(variance, rng)
            arrays[mean] = measured[mean] + 0.3 * variance.sqrt() * _normal(variance, rng)
    return arrays


def _run(
    module: nn.Module, example: Example, arrays: Mapping[str, Tensor], measuring: Sequence[nn.Module] = ()
) -> list[Tensor]:
    """Return all tensors that the module computes with these arrays, while some parts measure their statistics."""
    with evaluating(module), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for part in measuring:
            part.training = True
        for name, parameter in module.named_parameters():
            if name in arrays:
                parameter.data = arrays[name]
        for name, buffer in module.named_buffers():
            if name in arrays:
                buffer.data = arrays[name].clone()  # the module may change it
        made = example.call(module)
    return [one.detach().clone() for one in pytree.tree_leaves(made) if isinstance(one, Tensor)]


def _cast(example: Example, dtype: torch.dtype) -> Example:
    args, kwargs = pytree.tree_map(
        lambda one: one.to(dtype) if isinstance(one, Tensor) and one.is_floating_point() else one,
        (example.args, dict(example.kwargs or {})),
    )
    return Example(args, kwargs)


def _normal(like: Tensor, rng: np.random.Generator) -> Tensor:
    return torch.as_tensor(rng.standard_normal(tuple(like.shape)), dtype=like.dtype, device=like.device)


def _around(values: Tensor, rng: np.random.Generator) -> Tensor:
    if not values.is_floating_point() or not values.numel():
        return values
    spread = float(values.std(unbiased=False))
    return values + (spread if 0 < spread < np.inf else 1.0) * _normal(values, rng)


def random_like(array: Tensor, rng: np.random.Generator) -> Tensor:
    """Return random numbers like those of an array: positive ones stay so, equal ones are made to differ.

    Tables of many different numbers are left as they are: they hide nothing.
    """
    if not array.is_floating_point() or not array.numel():
        return array
    flat = array.reshape(-1)
    if array.ndim > 1 and float((flat[1:] == flat[:-1]).to(torch.float32).mean()) < _REPEATED:
        return array
    if bool((array > 0).all()):
        return array * torch.as_tensor(
            rng.uniform(0.5, 1.5, tuple(array.shape)), dtype=array.dtype, device=array.device
        )
    spread = float(array.std(unbiased=False))
    return array + (0.5 * spread if spread > 0 else 0.3) * _normal(array, rng)


def _difference(outputs: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    worst = 0.0
    for one, other in zip(outputs, others, strict=True):
        if not one.numel():
            continue
        if not one.is_floating_point() and not one.is_complex():
            worst = max(worst, 0.0 if torch.equal(one, other) else np.inf)
            continue
        finite = torch.isfinite(one)
        if not torch.equal(finite, torch.isfinite(other)):
            return np.inf
        if bool(finite.any()):
            size = float(one[finite].abs().max())
            worst = max(worst, float((one - other)[finite].abs().max()) / (size or 1.0))
    return worst


def arrays_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the arrays of a module by name."""
    return {name: array for name, array in module.state_dict().items() if isinstance(array, Tensor)}
