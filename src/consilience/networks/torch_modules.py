"""torch modules as networks and back: their state is taken as it is, and a fused one is put into a copy."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from consilience.checks import AnyArray
from consilience.errors import InputError, UnsupportedError
from consilience.networks.symmetry.symmetry import Symmetry

if TYPE_CHECKING:
    from torch import nn

_GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}
_SIZES = {
    "Linear": (("out_features", 0), ("in_features", 1)),
    "BatchNorm": (("num_features", 0),),
    "InstanceNorm": (("num_features", 0),),
    "Embedding": (("num_embeddings", 0), ("embedding_dim", 1)),
}
"""What the layers of torch call the lengths of their weight's axes, by the start or end of their class's name."""


def is_module(model: object) -> bool:
    """Return whether a model is a torch module, without importing torch."""
    return any(kind.__module__ == "torch.nn.modules.module" for kind in type(model).__mro__)


def arrays_of_module(module: nn.Module) -> dict[str, AnyArray]:
    """Return the state of a module: parameters and persistent buffers by name, not copied."""
    return {name: values.detach() for name, values in module.state_dict().items()}


def aliases_of_module(module: nn.Module) -> dict[str, str]:
    """Return the other names of tied parameters, to the first."""
    first: dict[int, str] = {}
    found = {}
    for name, values in module.named_parameters(remove_duplicate=False):
        if first.setdefault(id(values), name) != name:
            found[name] = first[id(values)]
    return found


def layer_kinds(module: nn.Module) -> dict[str, str]:
    """Return, by path, which of torch's layers with parameters and activations the parts of a module are."""
    found = {}
    for path, part in module.named_modules():
        kind = next((one for one in type(part).__mro__ if one.__module__.startswith("torch.nn.modules.")), None)
        if kind is None or next(part.children(), None) is not None:
            continue
        if kind.__module__.endswith(".activation"):
            told = [one for one in part.extra_repr().split(", ") if one and not one.startswith("inplace")]
        elif next(part.parameters(recurse=False), None) is not None:
            told = [getattr(part, "nonlinearity", ""), "both ways" if getattr(part, "bidirectional", False) else ""]
            told.append("batch first" if getattr(part, "batch_first", False) else "")
        else:
            continue
        name = "BatchNorm" if "BatchNorm" in kind.__name__ else kind.__name__
        said = ", ".join(one for one in told if one)
        found[path] = f"{name} ({said})" if said else name
    return found


def like(values: Any, other: AnyArray) -> AnyArray:
    """Return a tensor in the library and precision of another array."""
    if hasattr(other, "detach"):
        return values.to(other.dtype)
    wide = values.detach().cpu()
    return (wide.float() if wide.is_floating_point() and wide.element_size() < 4 else wide).numpy().astype(other.dtype)


def beside(values: AnyArray, tensor: Any) -> Any:
    """Return an array, of any library, as a tensor on the device of another tensor, in its own precision."""
    import torch

    if hasattr(values, "detach"):
        return values.to(tensor.device)
    return torch.from_numpy(values.copy()).to(tensor.device)


def module_with(template: nn.Module, arrays: Mapping[str, AnyArray], symmetry: Symmetry) -> nn.Module:
    """Return a copy of a module with other arrays, its layers resized where the arrays have another width.

    Parameters
    ----------
    template
        A module of the architecture; it is left as it is.
    arrays
        Every array by name; those of tied weights under one name at least.
    symmetry
        Which names are tied.

    Raises
    ------
    InputError
        When the arrays are not those of the module.
    """
    import torch

    state = {key: torch.as_tensor(values) for key, values in arrays.items()}
    state |= {alias: state[key] for alias, key in symmetry.aliases.items() if alias not in state and key in state}
    own = template.state_dict(keep_vars=True)
    if missing := sorted(set(own) ^ set(state)):
        raise InputError(
            f"{type(template).__name__}: arrays {', '.join(missing[:5])} are in the module or in the network only"
        )
    memo: dict[int, Any] = {}  # a deep copy takes what stands here instead of copying it
    for key, old in own.items():
        values = state[key].detach().to(device=old.device, dtype=old.dtype, copy=True)
        made = torch.nn.Parameter(values, requires_grad=old.requires_grad)
        memo.setdefault(id(old), made if isinstance(old, torch.nn.Parameter) else values)
    module = copy.deepcopy(template, memo)
    for key, old in own.items():
        if state[key].shape != old.shape:
            _tell(module, key, tuple(old.shape), tuple(state[key].shape))
    return module


def _tell(module: nn.Module, key: str, old: tuple[int, ...], new: tuple[int, ...]) -> None:
    """Tell a layer of a module the new shape of one of its arrays."""
    path, _, name = key.rpartition(".")
    layer = module.get_submodule(path)
    kind = type(layer).__name__
    if kind.startswith("Conv") and name == "weight" and hasattr(layer, "groups"):
        _tell_convolution(layer, old, new)
        return
    for known, sizes in _SIZES.items():
        if (kind.endswith(known) or kind.startswith(known)) and (name == "weight" or "Norm" in known):
            for attribute, axis in sizes:
                if hasattr(layer, attribute) and axis < len(new):
                    setattr(layer, attribute, new[axis])
            return
    if kind.removesuffix("Cell") in _GATES:
        _tell_recurrent(layer, path)


def _tell_recurrent(layer: Any, path: str) -> None:
    """Tell a recurrent layer or cell its sizes.

    Raises
    ------
    UnsupportedError
        When its layers and directions are not of one width, as torch wants them.
    """
    gates = _GATES[type(layer).__name__.removesuffix("Cell")]
    named = dict(layer.named_parameters(recurse=False))
    hidden = {len(values) // gates for name, values in named.items() if name.startswith("weight_hh")}
    outputs = {values.shape[1] for name, values in named.items() if name.startswith("weight_hh")}
    if len(hidden) > 1 or len(outputs) > 1:
        widths = ", ".join(map(str, sorted(hidden | outputs)))
        raise UnsupportedError(
            f"{path}: the layers and directions of a {type(layer).__name__} must have one width, found {widths}; give "
            "all of its groups the same in target_widths"
        )
    layer.hidden_size = hidden.pop()
    layer.input_size = next(values for name, values in named.items() if name.startswith("weight_ih")).shape[1]
    if getattr(layer, "proj_size", 0):
        layer.proj_size = outputs.pop()


def _tell_convolution(layer: Any, old: tuple[int, ...], new: tuple[int, ...]) -> None:
    """Tell a convolution its channels; a depthwise one has a group for each of its input channels."""
    depthwise = old[1] == 1 and layer.groups > 1 and new[1] == 1
    first, second = (
        ("in_channels", "out_channels") if "Transpose" in type(layer).__name__ else ("out_channels", "in_channels")
    )
    if depthwise:
        layer.groups = layer.groups * new[0] // old[0]
    setattr(layer, first, new[0])
    setattr(layer, second, new[1] * layer.groups)
