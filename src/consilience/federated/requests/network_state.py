"""Networks in requests: the fused arrays as a message's content, and a site's module with these arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from consilience.checks import AnyArray, Array
from consilience.errors import InputError, OptionError, Problem, UnsupportedError

PREFIX = "network."
"""What the names of the network's arrays begin with in a message."""

_LARGEST = 1e38
"""Largest number in a network: that of single precision."""


def network_arrays(fusion: Any, request: str) -> dict[str, Array]:
    """Return the arrays of a fused network as a message has them.

    Raises UnsupportedError for anything but the fusion of networks into one.
    """
    network = getattr(fusion, "network", None)
    if network is None or not hasattr(network, "symmetry"):
        raise UnsupportedError(request, f"this is a {type(fusion).__name__}", f"{request} is for fused networks")
    if getattr(fusion, "keeps_models", False):
        text = "this fusion keeps all networks side by side"
        raise UnsupportedError(request, text, "fuse by a method that makes one")
    return {PREFIX + name: as_double(values) for name, values in network.arrays.items()}


def as_double(values: Any) -> Array:
    """Return an array of any library in double precision."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()
    return np.asarray(values, dtype=np.float64)


def arrays_of_state(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the network's arrays in a message, by their own names."""
    return {name.removeprefix(PREFIX): values for name, values in arrays.items() if name.startswith(PREFIX)}


def network_problems(arrays: Mapping[str, Array]) -> list[Problem]:
    """Return what is wrong with the network in a request."""
    own = arrays_of_state(arrays)
    if not own:
        return [Problem("request", "has no network")]
    return [
        Problem("request", f"array {name} has values that are NaN, infinite, or beyond {_LARGEST:g}")
        for name, values in own.items()
        if not np.all(np.abs(values) <= _LARGEST)
    ]


def module_of_state(module: Any, arrays: Mapping[str, Array]) -> Any:
    """Return a copy of a site's module with the arrays of a request, in evaluation mode.

    Raises OptionError for what is no module, and makes none. Raises InputError where the arrays are those of another
    network.
    """
    import torch

    network = own_template(module)
    state, own = network.state_dict(), arrays_of_state(arrays)
    shapes = {name: tuple(values.shape) for name, values in state.items()}
    missing = sorted(name for name in own if name not in shapes)
    # A tied weight has several names in a module, and one in the fused network.
    left = sorted(name for name in shapes if name not in own and not _is_tied(state, name, own))
    if missing or left:
        names = ", ".join((missing or left)[:4])
        text = (
            f"has no arrays {names}, which the request has" if missing else f"has arrays {names} that the request lacks"
        )
        raise InputError("module", text, "give the module of the network that was fused", "E-MISMATCH")
    for name, values in own.items():
        if shapes[name] != values.shape:
            text = f"array {name} has shape {shapes[name]}, expected {values.shape}"
            raise InputError("module", text, code="E-SHAPE")
        with torch.no_grad():
            state[name].copy_(torch.from_numpy(values.copy()))
    return network.eval()


def own_template(module: Any) -> Any:
    """Return a copy of a site's module, or of what makes one, with the weights that it has as parameters.

    Raises OptionError for what is no module, and makes none.
    """
    from consilience.networks.parametrised_layers import copy_of_module, plain_module
    from consilience.networks.torch_modules import make_template

    template = make_template(module)
    if template is None:
        raise OptionError("module", "is needed: the torch module of the network")
    return copy_of_module(plain_module(template))


def _is_tied(state: Mapping[str, AnyArray], name: str, own: Mapping[str, Array]) -> bool:
    pointer = state[name].data_ptr()
    return any(other in own and values.data_ptr() == pointer for other, values in state.items() if other != name)


def upper_triangle(matrix: Array) -> Array:
    """Return the entries of a symmetric matrix (d, d) on and above its diagonal, row by row (d (d + 1) / 2,)."""
    return matrix[np.triu_indices(len(matrix))]


def symmetric_matrix(triangle: Array, d: int) -> Array:
    """Return the symmetric matrix (d, d) of its upper triangle."""
    matrix = np.zeros((d, d))
    rows, columns = np.triu_indices(d)
    matrix[rows, columns] = triangle
    matrix[columns, rows] = triangle
    return matrix


def weights_in_order(network: Any) -> Iterator[tuple[str, bool]]:
    """Yield the layers by the path of their weight, in the order of computation, with whether each is an output.

    Layers are known by the symmetry: the second axis of their weight (outputs, inputs, ...) is one of inputs. An output
    has no group on its first axis, and reads one.
    """
    orders = {name: place for place, name in enumerate(network.symmetry.by_name)}
    layers: list[tuple[int, int, str, bool]] = []
    for position, (name, layout) in enumerate(network.symmetry.layouts.items()):
        if not (name == "weight" or name.endswith(".weight")) or len(layout.axes) < 2 or layout.axes[1].side != "input":
            continue  # a bias, a normalisation, or a table of embeddings
        written, read = (
            [segment.group for segment in axis.segments if segment.group is not None] for axis in layout.axes[:2]
        )
        order = max((orders[group] for group in read), default=-1)
        is_output = not written and bool(read) and len(layout.axes) == 2
        layers.append((order, position, name.removesuffix("weight").removesuffix("."), is_output))
    for _, _, path, is_output in sorted(layers):
        yield path, is_output


def array_names(path: str) -> tuple[str, str]:
    """Return the names of a layer's weight and bias."""
    return (f"{path}.weight", f"{path}.bias") if path else ("weight", "bias")
