"""Entries of a state dict: dense tensors, which are the arrays of a network, and everything else that torch puts there.

Extra state (`get_extra_state` of a module: any object, or a tensor of its bytes) says how a layer works and is no
array. Whoever fuses modules carries it over from the module that the fused one is made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from consilience.checks import AnyArray
from consilience.errors import InputError, Problem

EXTRA_STATE = "_extra_state"
"""The last part of the names that torch gives to extra state."""


def is_extra_state(name: str) -> bool:
    """Return whether an entry of a state dict is extra state."""
    return name.rpartition(".")[2] == EXTRA_STATE


def extra_state(state: Mapping[str, AnyArray]) -> tuple[str, ...]:
    """Return the names of the entries of a state dict that are extra state."""
    return tuple(filter(is_extra_state, state))


def is_state_dict(model: object) -> bool:
    """Return whether an object is a mapping of names to torch tensors and extra state, as ``module.state_dict()``."""
    return (
        isinstance(model, Mapping)
        and all(isinstance(name, str) for name in model)
        and any(_is_tensor(values) for values in model.values())
    )


def dense_arrays(state: Mapping[str, AnyArray], label: str) -> dict[str, AnyArray]:
    """Return the arrays of a state dict, not copied and without gradients; extra state is left out.

    `label` is the network's name in messages. Raises InputError with a line for every entry that is no dense tensor:
    lazy, sparse, quantised, nested, sharded, without values, or no tensor at all.
    """
    arrays: dict[str, AnyArray] = {}
    problems: list[Problem] = []
    for name, values in state.items():
        if is_extra_state(name):
            continue
        found = next(_faults(values), None)
        if found is None:
            arrays[name] = values.detach() if _is_tensor(values) else values
        else:
            problems.append(Problem(label, f"entry {name} {found[0]}", found[1], "E-TYPE"))
    if problems:
        raise InputError(problems)
    return arrays


def _faults(values: Any) -> Iterator[tuple[str, str]]:
    """Yield why an entry is no dense tensor, and what to do about it."""
    kind = type(values).__name__
    if not _is_tensor(values):
        if kind in ("tuple", "dtype"):  # packed weights of torch.ao's quantised layers, and their type
            yield f"is of type {kind}, as quantised layers have", "fuse the networks before they are quantised"
        elif not hasattr(values, "dtype"):
            yield f"is of type {kind}, expected a tensor", "leave it out, or return it from `get_extra_state`"
        return
    if is_uninitialised(values):
        yield (
            "has no shape yet (a lazy layer before its first input)",
            "give `example=`, or call the network once on an input",
        )
    elif kind == "DTensor":
        yield "is sharded over processes (DTensor)", "gather it with `full_tensor()`"
    elif values.is_nested:
        yield "is a nested tensor", "pad it to a dense one"
    elif values.is_quantized:
        yield f"is quantised ({_dtype(values)})", "convert it with `dequantize()`, or fuse before quantising"
    elif str(values.layout) != "torch.strided":
        yield f"is sparse ({str(values.layout).removeprefix('torch.')})", "convert it with `to_dense()`"
    elif values.is_meta:
        yield "has no values (device meta)", "load the weights before"


def is_uninitialised(values: object) -> bool:
    """Return whether a tensor is one of a lazy layer that has not seen an input."""
    return type(values).__name__ in ("UninitializedParameter", "UninitializedBuffer")


def _dtype(values: Any) -> str:
    return str(values.dtype).removeprefix("torch.")


def _is_tensor(values: object) -> bool:
    """Return whether an object is a torch tensor, without importing torch; lazy ones are asked no attribute."""
    return any(kind.__module__ == "torch" and kind.__name__ == "Tensor" for kind in type(values).__mro__)
