"""Inputs of networks: arrays and files as tensors that a module takes.

Real numbers are converted to the precision of the module's parameters, whole numbers (indices, words) to 64 bits.
Inputs are tried on the module before anything relies on them, and the error quotes what the module says.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.errors import InputError, split_codes
from consilience.files.labelled_arrays import read_labelled_arrays

if TYPE_CHECKING:
    from torch import Tensor, nn

MAX_QUOTED_CHARACTERS = 200
"""Characters of another library's message that ours quote. Chosen by hand, for legible messages."""


def read_inputs(path: Path, module: nn.Module) -> Tensor:
    """Return the unlabelled inputs of a .npy or .npz file.

    Raises InputError for a file of another content, or inputs that the module does not take.
    """
    inputs = as_tensor(read_labelled_arrays(path).inputs, str(path), module)
    refuse_unfit(module, (inputs[:2],), str(path))  # two rows, since some layers refuse a batch of one
    return inputs


def as_tensor(values: Any, name: str, module: nn.Module | None) -> Tensor:
    """Return an array as a tensor, real numbers in the precision of the module.

    Raises InputError for arrays without entries or axes, of something else than numbers, or with entries that are not
    finite.
    """
    import torch

    array = np.asarray(values.toarray() if hasattr(values, "toarray") else values)
    if array.dtype.kind not in "biuf":
        raise InputError(name, f"expected numbers, found an array of type {array.dtype}", code="E-TYPE")
    if array.ndim == 0 or array.size == 0:
        raise InputError(name, f"expected an array with entries, found shape {array.shape}", code="E-SHAPE")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise InputError(name, "has NaN or infinite entries", "take them out", "E-NUMBER")
        return torch.as_tensor(np.asarray(array, dtype=array.dtype.newbyteorder("="))).to(precision_of(module))
    return torch.as_tensor(array if array.dtype.kind == "b" else array.astype(np.int64))


def refuse_unfit(module: nn.Module, arguments: Any, name: str) -> None:
    """Raise InputError, quoting its error, when a module in evaluation mode cannot take these arguments.

    Arguments are a tuple of tensors, a dict of keyword arguments, or an Example.
    """
    import torch

    from consilience.networks.example import as_example

    example = as_example(arguments)
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    with torch.no_grad():
        try:
            example.changed(lambda argument: argument.to(device)).call(module)
        except Exception as error:  # whatever the code of the user's module raises
            shapes = " and ".join(
                f"{str(argument.dtype).removeprefix('torch.')} {tuple(argument.shape)}" for argument in example.tensors
            )
            text = f"{type(module).__name__} does not take an input such as {shapes} ({first_line(error)})"
            raise InputError(name, text, code="E-SHAPE") from error


def precision_of(module: nn.Module | None) -> Any:
    """Return the type of a module's real parameters; float32 without any."""
    import torch

    parameters = () if module is None else module.parameters()
    return next((parameter.dtype for parameter in parameters if parameter.is_floating_point()), torch.float32)


def first_line(error: BaseException) -> str:
    """Return the class of an error and the first line of its message, shortened."""
    lines = [line.strip() for line in split_codes(str(error))[0].splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:MAX_QUOTED_CHARACTERS]}" if lines else type(error).__name__
