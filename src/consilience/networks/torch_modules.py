"""torch modules as networks, and networks as torch modules.

The arrays of a module are its state dict. A fused network is written into a deep copy of a template whose parameters
are replaced while it is copied; where widths differ, the layers of torch are told their new sizes, such as
``out_features``. torch is imported only where a module is at hand.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from consilience.checks import AnyArray
from consilience.errors import InputError, OptionError, UnsupportedError
from consilience.networks.entry_names import dense_arrays, is_extra_state, is_uninitialised
from consilience.networks.parametrised_layers import Parametrised, copy_of_module, parts_of_module, set_hooked_weights
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.weight_parts import find_parts, unknown_parts, with_weights

if TYPE_CHECKING:
    from torch import nn

_N_GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}
"""Gates stacked in the weights of torch's recurrent layers."""
_SIZE_ATTRIBUTES = {
    "Linear": (("out_features", 0), ("in_features", 1)),
    "BatchNorm": (("num_features", 0),),
    "InstanceNorm": (("num_features", 0),),
    "Embedding": (("num_embeddings", 0), ("embedding_dim", 1)),
}
"""Attributes of torch's layers that hold the lengths of their weight's axes, by the start or end of the class's
name."""

_WRAPPED_AS = {
    ("torch.nn.parallel.data_parallel", "DataParallel"): "module",
    ("torch.nn.parallel.distributed", "DistributedDataParallel"): "module",
    ("torch.optim.swa_utils", "AveragedModel"): "module",
    ("torch._dynamo.eval_frame", "OptimizedModule"): "_orig_mod",
}
"""Attribute that holds the network, by the class of torch that wraps it."""


def is_module(model: object) -> bool:
    """Return whether a model is a torch module, without importing torch."""
    return any(base.__module__ == "torch.nn.modules.module" for base in type(model).__mro__)


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the network in a module that only spreads, compiles or averages it; any other module as it is."""
    wrapped: Any = module
    while True:
        kinds = ((base.__module__, base.__name__) for base in type(wrapped).__mro__)
        attribute = next((_WRAPPED_AS[kind] for kind in kinds if kind in _WRAPPED_AS), None)
        if attribute is None:
            network: nn.Module = wrapped
            return network
        wrapped = getattr(wrapped, attribute)


@contextmanager
def seeded_torch(seed: int = 0) -> Iterator[None]:
    """Draw torch's random numbers on the CPU from a seed for a while, and leave all generators as they were."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed those of accelerators too
        yield


@contextmanager
def evaluating(module: nn.Module, *, keeps_gradients: bool = False) -> Iterator[None]:
    """Put a module into evaluation mode, without gradients, for a while; then all its layers have their modes back."""
    import torch

    modes = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        with nullcontext() if keeps_gradients else torch.no_grad():
            yield
    finally:
        for layer, training in modes:
            layer.training = training


def make_template(module: nn.Module | Callable[[], nn.Module] | None) -> nn.Module | None:
    """Return the network that was handed in, or that a function makes, its initial weights drawn with seed 0.

    A symmetry is proved at the initial weights, and the proof is written to files: same seed, same bytes. Raises
    OptionError for anything else.
    """
    made: Any = module
    if module is not None and not is_module(module) and callable(module):
        with seeded_torch():
            made = module()
    if made is not None and not is_module(made):
        text = f"expected a torch module or a function that makes one, found {type(made).__name__}"
        raise OptionError("module", text)
    template: nn.Module | None = made
    return None if template is None else unwrapped(template)


def arrays_of_module(module: nn.Module, label: str | None = None) -> dict[str, AnyArray]:
    """Return the state of a module: parameters and persistent buffers by name, not copied; no extra state.

    Raises InputError for entries that are no dense tensors, by the module's name in messages (default: that of its
    class).
    """
    return dense_arrays(module.state_dict(), type(module).__name__ if label is None else label)


def initialised(module: nn.Module, example: Any) -> nn.Module:
    """Return a module whose lazy layers have shapes: itself, or a copy that was called on an example, with seed 0.

    Raises InputError for an example that it does not take.
    """
    if example is None:
        return module
    lazy: list[Any] = [one for one in (*module.parameters(), *module.buffers()) if is_uninitialised(one)]
    if not lazy:
        return module
    from consilience.networks.module_inputs import refuse_unfit

    # torch cannot copy buffers without a shape.
    memo: dict[int, Any] = {id(one): type(one)(device=one.device, dtype=one.dtype) for one in lazy}
    called = copy.deepcopy(module, memo).eval()
    with seeded_torch():
        refuse_unfit(called, example if isinstance(example, tuple) else (example,), "example")
    return called


def aliases_of_module(module: nn.Module) -> dict[str, str]:
    """Return the second names of tied parameters, to the first."""
    first_names: dict[int, str] = {}
    aliases = {}
    for name, values in module.named_parameters(remove_duplicate=False):
        if first_names.setdefault(id(values), name) != name:
            aliases[name] = first_names[id(values)]
    return aliases


@lru_cache(maxsize=256)  # a network has few kinds of layers, and as many networks are compared as there are sites
def _torch_base(kind: type) -> type | None:
    """Return the nearest class of torch that a class of layers is or comes from."""
    return next((base for base in kind.__mro__ if base.__module__.startswith("torch.nn.modules.")), None)


def layer_kinds(module: nn.Module) -> dict[str, str]:
    """Return, by path, the kind of every layer of torch that has parameters or is an activation.

    A kind is the name of the layer's class with the options of activations and recurrent layers that change what they
    compute, such as the slope of a leaky ReLU or the directions of an LSTM.
    """
    kinds = {}
    for path, submodule in module.named_modules():
        base = _torch_base(type(submodule))  # type: ignore[arg-type]  # classes are hashable, which mypy does not see
        if base is None or next(submodule.children(), None) is not None:
            continue
        attributes = vars(submodule)  # a module looks for what it lacks among all its parameters
        if base.__module__.endswith(".activation"):
            options = [
                option for option in submodule.extra_repr().split(", ") if option and not option.startswith("inplace")
            ]
        elif next(submodule.parameters(recurse=False), None) is not None:
            ways = "both ways" if attributes.get("bidirectional", False) else ""
            first = "batch first" if attributes.get("batch_first", False) else ""
            options = [attributes.get("nonlinearity", ""), ways, first]
        else:
            continue
        name = "BatchNorm" if "BatchNorm" in base.__name__ else base.__name__
        listed = ", ".join(option for option in options if option)
        kinds[path] = f"{name} ({listed})" if listed else name
    return kinds


def cast_like(values: Any, other: AnyArray) -> AnyArray:
    """Return a tensor in the library and precision of another array."""
    if hasattr(other, "detach"):
        return values.to(other.dtype)
    # NumPy has no bfloat16, so that 16 bits go through 32.
    wide = values.detach().cpu()
    return (wide.float() if wide.is_floating_point() and wide.element_size() < 4 else wide).numpy().astype(other.dtype)


def tensor_beside(values: AnyArray, tensor: Any) -> Any:
    """Return an array, of any library, as a tensor on the device of another tensor, in its own precision."""
    import torch

    if hasattr(values, "detach"):
        return values.to(tensor.device)
    return torch.from_numpy(values.copy()).to(tensor.device)


def module_with(template: nn.Module, arrays: Mapping[str, AnyArray], symmetry: Symmetry) -> nn.Module:
    """Return a copy of a module with other arrays, its layers resized where the arrays have another width.

    Arrays of tied weights, which `symmetry` knows, come under one name at least; weights of parametrised layers under
    their own names, or under those of their parts. Raises InputError when the arrays are not those of the module.
    """
    import torch

    state = {key: torch.as_tensor(values) for key, values in arrays.items()}
    state |= {alias: state[key] for alias, key in symmetry.aliases.items() if alias not in state and key in state}
    parametrised = Parametrised.of_module(template)
    if parametrised is not None:
        stored = parametrised.stored(state)
        template = parametrised.rebuilt(stored)
        state = {key: torch.as_tensor(values) for key, values in stored.arrays.items()}
    template_state = {
        key: values for key, values in template.state_dict(keep_vars=True).items() if not is_extra_state(key)
    }
    if differing := sorted(set(template_state) ^ set(state)):
        text = f"arrays {', '.join(differing[:5])} are in the module or in the network only"
        raise InputError(type(template).__name__, text, code="E-MISMATCH")
    if is_scripted(template):  # whose copies are made outside of Python
        return _scripted_with(template, state)
    module = _copy_with(template, template_state, state)
    if parametrised is not None:
        parts = parts_of_module(template)
        template_state, state = with_weights(template_state, parts), with_weights(state, parts)
        set_hooked_weights(module)
    for key, template_values in template_state.items():
        if state[key].shape != template_values.shape:
            _resize_layer(module, key, tuple(template_values.shape), tuple(state[key].shape))
    return module


def _copy_with(template: nn.Module, template_state: Mapping[str, Any], state: Mapping[str, Any]) -> nn.Module:
    """Return a copy of a module with other values of its state, on its devices and in its precision."""
    import torch

    memo: dict[int, Any] = {}  # a deep copy takes what stands here instead of copying it
    for key, template_values in template_state.items():
        values = state[key].detach().to(device=template_values.device, dtype=template_values.dtype, copy=True)
        if isinstance(template_values, torch.nn.Parameter):
            values = torch.nn.Parameter(values, requires_grad=template_values.requires_grad)
        # The first name of a tied parameter wins, so that it stays tied in the copy.
        memo.setdefault(id(template_values), values)
    module: nn.Module = copy_of_module(template, memo)
    return module


def is_scripted(module: nn.Module) -> bool:
    """Return whether a module is one of TorchScript."""
    return any(
        (base.__module__, base.__name__) == ("torch.jit._script", "ScriptModule") for base in type(module).__mro__
    )


def refuse_scripted_parts(module: nn.Module | None, label: str) -> None:
    """Raise for a TorchScript module with parts of weights, of which its code does not say how they are combined.

    Raises UnsupportedError, naming the weights.
    """
    if module is None or not is_scripted(module):
        return
    shapes = {name: tuple(values.shape) for name, values in module.state_dict().items()}
    found = dict.fromkeys([*(parts.name for parts in find_parts(shapes)), *unknown_parts(shapes)])
    if found:
        text = f"a TorchScript module does not say how {', '.join(found)} is computed from its parts"
        raise UnsupportedError(label, text, "give the module that it was scripted from")


def _scripted_with(template: nn.Module, state: Mapping[str, AnyArray]) -> nn.Module:
    """Return a copy of a TorchScript module with other arrays of the same shapes."""
    import torch

    module = copy.deepcopy(template)
    with torch.no_grad():
        for key, values in arrays_of_module(module).items():
            if values.shape != state[key].shape:
                text = f"a TorchScript module keeps its widths, and {key} would have shape {tuple(state[key].shape)}"
                raise UnsupportedError(type(template).__name__, text, "give the module that it was scripted from")
            values.copy_(state[key])
    return module


def _resize_layer(module: nn.Module, key: str, old_shape: tuple[int, ...], new_shape: tuple[int, ...]) -> None:
    """Set the sizes that a layer keeps as attributes, after one of its arrays has changed shape."""
    path, _, name = key.rpartition(".")
    layer = module.get_submodule(path)
    kind = type(layer).__name__.removeprefix("Parametrized")
    if kind.startswith("Conv") and name == "weight" and hasattr(layer, "groups"):
        _resize_convolution(layer, old_shape, new_shape)
        return
    for layer_name, size_attributes in _SIZE_ATTRIBUTES.items():
        # Norms have no weight where they are not affine, so that any of their arrays counts.
        if (kind.endswith(layer_name) or kind.startswith(layer_name)) and (name == "weight" or "Norm" in layer_name):
            for attribute, axis in size_attributes:
                if hasattr(layer, attribute) and axis < len(new_shape):
                    setattr(layer, attribute, new_shape[axis])
            return
    if kind.removesuffix("Cell") in _N_GATES:
        _resize_recurrent(layer, path)


def _resize_recurrent(layer: Any, path: str) -> None:
    """Set the sizes of a recurrent layer or cell from the shapes of its weights."""
    n_gates = _N_GATES[type(layer).__name__.removesuffix("Cell")]
    parameters = dict(layer.named_parameters(recurse=False))
    # weight_hh is (gates * units, outputs); units and outputs differ where an LSTM has a projection.
    hidden_widths = {len(values) // n_gates for name, values in parameters.items() if name.startswith("weight_hh")}
    output_widths = {values.shape[1] for name, values in parameters.items() if name.startswith("weight_hh")}
    if len(hidden_widths) > 1 or len(output_widths) > 1:
        widths = ", ".join(map(str, sorted(hidden_widths | output_widths)))
        text = f"the layers and directions of a {type(layer).__name__} must have one width, found {widths}"
        raise UnsupportedError(path, text, "give all of its groups the same in target_widths")
    layer.hidden_size = hidden_widths.pop()
    layer.input_size = next(values for name, values in parameters.items() if name.startswith("weight_ih")).shape[1]
    if getattr(layer, "proj_size", 0):
        layer.proj_size = output_widths.pop()


def _resize_convolution(layer: Any, old_shape: tuple[int, ...], new_shape: tuple[int, ...]) -> None:
    """Set the channels of a convolution; a depthwise one has a group for each of its input channels."""
    is_depthwise = old_shape[1] == 1 and layer.groups > 1 and new_shape[1] == 1
    # The weight is (out, in / groups, ...), that of a transposed convolution (in, out / groups, ...).
    first, second = (
        ("in_channels", "out_channels") if "Transpose" in type(layer).__name__ else ("out_channels", "in_channels")
    )
    if is_depthwise:
        layer.groups = layer.groups * new_shape[0] // old_shape[0]
    setattr(layer, first, new_shape[0])
    setattr(layer, second, new_shape[1] * layer.groups)
