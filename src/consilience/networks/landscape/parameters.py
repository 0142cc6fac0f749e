"""Parameter vectors of networks and their affine combinations (linear interpolation).

    theta = sum_i w_i theta_i,   sum_i w_i = 1,

with theta_i (P,) the floating-point state of network i of m as one vector. What can be interpolated is every
floating-point parameter and every floating-point buffer that is saved with the network (running statistics); tied
tensors count once. Integer buffers and whatever else is no floating-point number are not interpolated: they stay as the
first network has them. Vectors are float64, so that a combination is rounded once, when it is written back in the dtype
of each tensor. Networks that differ in a name or shape do not combine: an `InputError` names the tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from consilience.checks import Array
from consilience.errors import InputError, OptionError, Problem, UnsupportedError

State = Mapping[str, Any]
Model = nn.Module | State
_REMEDY = "only networks of one architecture and width combine, so fuse or permute into one target first"
_WEIGHT_SUM_TOLERANCE = 1e-9
"""How far the weights of an affine combination may be from a sum of one.

Far above the rounding of their sum in float64, far below a forgotten weight; chosen by hand.
"""


def named_tensors(model: Model) -> dict[str, Tensor]:
    """Return the parameters and saved buffers of a module, or the tensors of a mapping, tied ones under every name."""
    if isinstance(model, nn.Module):
        saved = model.state_dict().keys()
        buffers = {name: tensor for name, tensor in model.named_buffers(remove_duplicate=False) if name in saved}
        return {**dict(model.named_parameters(remove_duplicate=False)), **buffers}
    if isinstance(model, Mapping):
        arrays = {name: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for name, v in model.items()}
        return {name: value for name, value in arrays.items() if isinstance(value, Tensor)}
    raise UnsupportedError(f"expected a torch module or a mapping of names to tensors, found {type(model).__name__}")


def _memory_key(tensor: Tensor) -> tuple[Any, ...]:
    """Return a key that two tensors share exactly when they are the same numbers in the same memory."""
    address = tensor.data_ptr()  # 0 for tensors without storage (meta, empty), which are tied only as one object
    return (tensor.device, tuple(tensor.shape), tensor.stride(), address) if address else (id(tensor),)


@dataclass(frozen=True)
class ParameterLayout:
    """Where every floating-point tensor of a network lies in one vector of `size` numbers.

    Parameters
    ----------
    names, shapes, dtypes : tuple
        Name, shape and dtype of each tensor, in the order in which they follow each other.
    tied : mapping of str to str
        Other name -> the name under which a tied tensor is in `names`.
    frozen : tuple of str, optional
        Parameters that were left out because they are not trained. Default: none.

    Examples
    --------
    >>> layout = ParameterLayout.of(nn.Linear(3, 2))
    >>> layout.names, layout.size
    (('weight', 'bias'), 8)
    >>> {name: tuple(value.shape) for name, value in layout.unflatten(torch.zeros(5, 8)).items()}
    {'weight': (5, 2, 3), 'bias': (5, 2)}
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    dtypes: tuple[torch.dtype, ...]
    tied: Mapping[str, str]
    frozen: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: Model, include_frozen: bool = True) -> ParameterLayout:
        """Return the layout of a network.

        Parameters
        ----------
        model : Module or mapping of names to tensors
            The network.
        include_frozen : bool, optional
            Whether parameters with ``requires_grad=False`` are part of the vector; only modules tell which those are.
            Default: True.

        Raises
        ------
        InputError
            When nothing is left to interpolate.
        UnsupportedError
            For complex tensors.
        """
        tensors: dict[str, Tensor] = {}
        name_of_memory: dict[tuple[Any, ...], str] = {}
        tied: dict[str, str] = {}
        frozen = []
        for name, tensor in named_tensors(model).items():
            if tensor.is_complex():
                raise UnsupportedError(f"tensor {name!r} is complex; only real networks can be interpolated")
            if not tensor.is_floating_point():
                continue
            if not include_frozen and isinstance(tensor, nn.Parameter) and not tensor.requires_grad:
                frozen.append(name)
                continue
            # Tied tensors share their memory: they count once, under their first name.
            owner = name_of_memory.setdefault(_memory_key(tensor), name)
            if owner == name:
                tensors[name] = tensor
            else:
                tied[name] = owner
        if not tensors:
            raise InputError("the network has no floating-point tensors to interpolate")
        shapes, dtypes = [value.shape for value in tensors.values()], [value.dtype for value in tensors.values()]
        return cls(tuple(tensors), tuple(shapes), tuple(dtypes), tied, tuple(frozen))

    @property
    def bounds(self) -> list[int]:
        """Where each tensor starts in the vector, and at last where the vector ends."""
        return [0, *np.cumsum([shape.numel() for shape in self.shapes]).tolist()]

    @property
    def size(self) -> int:
        """Length of the vector."""
        return self.bounds[-1]

    def flatten(self, model: Model, what: str = "model") -> Tensor:
        """Return the numbers of `model` as one float64 vector (size,), on the device of its first tensor.

        Parameters
        ----------
        model : Module or mapping of names to tensors
            A network of the same names and shapes.
        what : str, optional
            What errors call it. Default: "model".

        Raises
        ------
        InputError
            Naming every tensor that is missing, of another shape, not finite or not tied as expected.
        """
        tensors = named_tensors(model)
        tensor_of_name = {name: self._find_tied(name, tensors) for name in self.names}
        expected = {*self.names, *self.tied, *self.frozen}
        unexpected = [name for name, tensor in tensors.items() if tensor.is_floating_point() and name not in expected]
        problems = [f"has a tensor {name!r} that the first network lacks; {_REMEDY}" for name in unexpected]
        for name, shape in zip(self.names, self.shapes, strict=True):
            tensor = tensor_of_name[name]
            if tensor is None:
                problems.append(f"has no tensor {name!r} of shape {tuple(shape)}; {_REMEDY}")
            elif tensor.shape != shape:
                problems.append(f"tensor {name!r} has shape {tuple(tensor.shape)}, expected {tuple(shape)}; {_REMEDY}")
            elif not bool(torch.isfinite(tensor).all()):
                problems.append(f"tensor {name!r} has NaN or infinite values")
        for other, name in self.tied.items():
            tensor, alias = tensor_of_name[name], tensors.get(other)
            if tensor is not None and alias is not None and not torch.equal(tensor, alias):
                problems.append(f"tensors {name!r} and {other!r} differ, but are tied in the first network")
        if problems:
            raise InputError(Problem(what, problem) for problem in problems)
        parts = [tensor for tensor in tensor_of_name.values() if tensor is not None]
        device = parts[0].device
        return torch.cat([part.detach().reshape(-1).to(device, torch.float64) for part in parts])

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the tensors by name, each in its dtype; of a stack (..., size), stacks ``(..., *shape)``."""
        if vector.ndim == 0 or vector.shape[-1] != self.size:
            text = f"expected {self.size} numbers on the last axis, found {tuple(vector.shape)}"
            raise InputError("vector", text, code="E-SHAPE")
        parts = zip(self.names, self.shapes, self.dtypes, pairwise(self.bounds), strict=True)
        lead = vector.shape[:-1]
        return {name: vector[..., a:b].reshape(*lead, *shape).to(dtype) for name, shape, dtype, (a, b) in parts}

    def _find_tied(self, name: str, tensors: Mapping[str, Tensor]) -> Tensor | None:
        """Return the tensor, also when a checkpoint has saved a tied one under its other name only."""
        aliases = [name, *(other for other, owner in self.tied.items() if owner == name)]
        return next((tensors[alias] for alias in aliases if alias in tensors), None)


def write_tensors(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy tensors into a module in place, each in the dtype and on the device that it has there."""
    targets = named_tensors(module)
    with torch.no_grad():
        for name, values in state.items():
            targets[name].copy_(values)


@dataclass(frozen=True, eq=False)
class Span:
    """Networks of one architecture, and everything that affine combinations of them reach."""

    module: nn.Module  # the first network, which everything that is not interpolated is taken from; it is never changed
    layout: ParameterLayout  # where its tensors lie in a vector
    vectors: Tensor  # (m, P): the networks as vectors, float64, on the device of the first

    @classmethod
    def of(cls, models: Mapping[str, Model], include_frozen: bool = True) -> Span:
        """Return the span of networks, given by the names that errors call them; the first must be a module.

        A name or shape in which they differ, or a frozen tensor that is left out, is an `InputError`.
        """
        (first, module), *others = models.items()
        if not isinstance(module, nn.Module):
            raise UnsupportedError(first, f"expected a torch module to evaluate, found {type(module).__name__}")
        layout = ParameterLayout.of(module, include_frozen)
        vectors = [layout.flatten(module, first)]
        first_tensors = named_tensors(module)
        for name, model in others:
            vectors.append(layout.flatten(model, name).to(vectors[0].device))
            tensors = named_tensors(model)
            for frozen in layout.frozen:
                if frozen in tensors and not torch.equal(
                    first_tensors[frozen].detach().cpu(), tensors[frozen].detach().cpu()
                ):
                    text = f"frozen tensor {frozen!r} is not that of {first}"
                    raise InputError(name, text, "set `include_frozen=True`", "E-MISMATCH")
        return cls(module, layout, torch.stack(vectors))

    def states(self, weights: Array) -> dict[str, Tensor]:
        """Return the tensors ``(n, *shape)`` of the combinations whose weights are the rows of `weights` (n, m).

        Each is written as the network b of largest weight plus weighted differences to it,

            theta = theta_b + sum_i w_i (theta_i - theta_b)     (which needs sum_i w_i = 1),

        so that equal networks combine to themselves without rounding, and a weight of one gives that network exactly.
        """
        rows = torch.from_numpy(np.ascontiguousarray(weights, dtype=np.float64)).to(self.vectors.device)
        base_index = rows.abs().argmax(dim=1)
        states = {}
        for name, shape, dtype, (start, stop) in zip(
            self.layout.names, self.layout.shapes, self.layout.dtypes, pairwise(self.layout.bounds), strict=True
        ):
            block = self.vectors[:, start:stop]  # (m, entries of this tensor)
            combined = block[base_index]  # (n, entries)
            for index in set(base_index.tolist()):
                has_base = base_index == index  # (n,), combinations written as differences to this network
                combined[has_base] += rows[has_base] @ (block - block[index])
            states[name] = combined.to(dtype).reshape(-1, *shape)
        return states

    def model(self, weights: Array) -> nn.Module:
        """Return a new module, the combination with `weights` (m,)."""
        module = deepcopy(self.module)
        write_tensors(module, {name: values[0] for name, values in self.states(weights[None]).items()})
        return module


def interpolate(module: nn.Module, states: Sequence[Model], weights: ArrayLike) -> nn.Module:
    """Return a new module whose floating-point tensors are an affine combination of those of several networks.

    theta = sum_i w_i theta_i with sum_i w_i = 1; weights may be negative or above one.

    Parameters
    ----------
    module : Module
        The architecture, and the source of whatever is not interpolated. It is not changed.
    states : sequence of Module or mapping of names to tensors, of length m
        The networks to combine.
    weights : array_like of shape (m,)
        Weight of each network, of sum one.

    Returns
    -------
    Module
        A copy of `module` with the combined tensors.

    Raises
    ------
    InputError
        When a network lacks a tensor, has another shape, or values that are not finite.
    OptionError
        When the weights are not as many, not finite, or do not sum to one.

    Examples
    --------
    >>> net_a, net_b = nn.Linear(1, 1), nn.Linear(1, 1)
    >>> middle = interpolate(net_a, [net_a, net_b], [0.5, 0.5])
    >>> bool(torch.isclose(middle.weight, (net_a.weight + net_b.weight) / 2))
    True
    """
    weight_row = np.asarray(weights, dtype=np.float64)
    if (
        weight_row.shape != (len(states),)
        or not np.all(np.isfinite(weight_row))
        or abs(weight_row.sum() - 1.0) > _WEIGHT_SUM_TOLERANCE
    ):
        raise OptionError("weights", f"expected {len(states)} finite numbers of sum one, found {weights!r}")
    layout = ParameterLayout.of(module)
    vectors = [layout.flatten(state, f"states[{i}]") for i, state in enumerate(states)]
    return Span(module, layout, torch.stack([vector.to(vectors[0].device) for vector in vectors])).model(weight_row)
