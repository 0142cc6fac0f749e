"""Arrays in safetensors files, written and read: NumPy where NumPy has the type, torch for bfloat16 and float8.

torch is imported only where an array is a tensor, or a file holds what NumPy cannot: bfloat16, float8.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from consilience.checks import AnyArray
from consilience.errors import InputError, Problem
from consilience.files.atomic import write_atomically, write_bytes
from consilience.files.document import METADATA_KEY

NUMPY_TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "C64": "complex64", "BOOL": "bool",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
}  # fmt: skip
_TORCH_TYPES = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
DTYPES = NUMPY_TYPES | _TORCH_TYPES
"""What NumPy and torch call the types of safetensors."""


MAX_BYTES_IN_MEMORY = 2**26
"""Bytes of arrays up to which a file is made in memory before it is written: 64 MiB. Chosen by hand."""


def storable_arrays(path: Path, arrays: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    """Return arrays as safetensors takes them: contiguous, on the CPU, and tensors all of them if one is.

    Raises InputError naming every array whose name or type a file cannot have.
    """
    torch = sys.modules.get("torch")  # if nobody imported it, no array is a tensor
    tensors = torch is not None and any(isinstance(values, torch.Tensor) for values in arrays.values())
    copies: dict[str, AnyArray] = {}
    problems = []
    for name, values in arrays.items():
        try:
            if name == "__metadata__":
                raise ValueError("this name is safetensors' own")
            name.encode()  # a lone surrogate is no text
            if torch is not None and isinstance(values, torch.Tensor):
                copies[name] = _dense_tensor(torch, values)
            else:
                array = _contiguous_array(values)
                copies[name] = torch.from_numpy(array.copy()) if torch is not None and tensors else array
        except (TypeError, ValueError, RuntimeError) as error:
            problems.append(Problem(path, f"cannot be written: array {name!r}: {error}"))
    if problems:
        raise InputError(problems)
    return copies


def _dense_tensor(torch: Any, values: Any) -> Any:
    """Return a dense copy of a tensor that shares its memory with nothing, which safetensors asks for."""
    dtype = str(values.dtype).removeprefix("torch.")
    if dtype not in DTYPES.values():
        raise ValueError(f"is {dtype}, expected one of {', '.join(DTYPES.values())}")
    if values.layout is not torch.strided or values.is_meta:
        raise ValueError("has no values of its own (a sparse or meta tensor); give a dense one")
    return torch.empty(values.shape, dtype=values.dtype, device="cpu").copy_(values.detach())


def _contiguous_array(values: AnyArray) -> Any:
    """Return a NumPy array in row order and in the byte order of the machine."""
    array = np.asarray(values, order="C")
    if array.dtype.name not in NUMPY_TYPES.values():
        raise ValueError(f"is {array.dtype.name}, expected one of {', '.join(NUMPY_TYPES.values())}")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def same_bits(a: AnyArray, b: AnyArray) -> bool:
    """Return whether two storable arrays of one library are equal to the last bit, NaN included."""
    if a.dtype != b.dtype or tuple(a.shape) != tuple(b.shape):
        return False
    if isinstance(a, np.ndarray):
        return np.array_equal(a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8))
    import torch

    return bool(torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)))


def write_arrays(path: Path, arrays: Mapping[str, AnyArray], document: str) -> None:
    """Write storable arrays and their JSON document, whole or not at all; the same bytes from either library.

    Large ones go from their memory to the disk, since a copy of a network may not fit beside it; of small ones the
    bytes are made first, so that errors are those of the system and not of a library. Raises InputError when the system
    refuses.
    """
    metadata = {METADATA_KEY: document}
    are_numpy = all(isinstance(values, np.ndarray) for values in arrays.values())
    if are_numpy and sum(values.nbytes for values in arrays.values()) <= MAX_BYTES_IN_MEMORY:
        write_bytes(path, safetensors.numpy.save(dict(arrays), metadata))
        return
    try:
        with write_atomically(path) as partial:
            if are_numpy:
                safetensors.numpy.save_file(dict(arrays), partial, metadata)
            else:
                from safetensors.torch import save_file  # which imports torch

                save_file(dict(arrays), partial, metadata)
    except SafetensorError as error:
        raise InputError(path, f"cannot be written: {error}", code="E-OUTPUT") from error
