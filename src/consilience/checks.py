"""Checks of arrays, weights, numbers and sizes that several rooms need.

Each raises with the name of the argument, what was expected and what was found.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from consilience.errors import InputError, OptionError

Array = NDArray[np.float64]
"""A NumPy array in double precision."""
Labels = NDArray[np.int64]
"""A NumPy array of integers: group numbers, row numbers, counts."""
AnyArray = Any
"""An array of any library that follows the array API: NumPy, torch on a CPU, torch on a GPU."""
Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
"""A value of a JSON document."""


def as_rows(name: str, values: ArrayLike, columns: int | None = None) -> Array:
    """Return `values` as a float64 array (n, columns), or raise naming `name`; 1-D input is one row.

    Examples
    --------
    >>> as_rows("mean", [1.0, 2.0], columns=2).shape
    (1, 2)
    """
    rows = np.asarray(values, dtype=np.float64)
    if rows.ndim == 1:
        rows = rows[None, :]
    if rows.ndim != 2 or (columns is not None and rows.shape[1] != columns):
        expected = f"(n, {'any' if columns is None else columns})"
        raise InputError(name, f"expected an array of shape {expected}, found {np.shape(values)}", code="E-SHAPE")
    return rows


def as_vector(name: str, values: ArrayLike, length: int | None = None) -> Array:
    """Return `values` as a float64 array (n,), or raise naming `name`; a scalar is repeated `length` times."""
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim == 0:
        vector = np.full(1 if length is None else length, float(vector))
    if vector.ndim != 1 or (length is not None and vector.shape[0] != length):
        text = f"expected {'any number of' if length is None else length} values, found {vector.shape}"
        raise InputError(name, text, code="E-SHAPE")
    return vector


def as_matrices(name: str, values: ArrayLike, dim: int) -> Array:
    """Return `values` as a float64 array (n, dim, dim), or raise naming `name`; 2-D input is one matrix."""
    matrices = np.asarray(values, dtype=np.float64)
    if matrices.ndim == 2:
        matrices = matrices[None]
    if matrices.ndim != 3 or matrices.shape[1:] != (dim, dim):
        text = f"expected an array of shape (n, {dim}, {dim}), found {np.shape(values)}"
        raise InputError(name, text, code="E-SHAPE")
    return matrices


def as_weights(weights: ArrayLike | None, count: int, what: str = "weights", signed: bool = False) -> Array:
    """Return `count` finite weights that are not all zero, nor negative unless `signed`; None gives ones."""
    if weights is None:
        return np.ones(count)
    try:
        vector = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        raise OptionError(what, f"expected {count} numbers, one for each, found {weights!r}") from None
    if vector.shape != (count,):
        raise OptionError(what, f"expected {count} numbers, one for each, found shape {vector.shape}")
    if not np.all(np.isfinite(vector)) or (np.any(vector < 0) and not signed) or not np.any(vector):
        expected = "finite and not all zero" if signed else "finite, not negative and not all zero"
        raise OptionError(what, f"must be {expected}, found {vector.tolist()}")
    return vector


def symmetric_part(matrices: Array) -> Array:
    """Return (M + M^T) / 2 over the last two axes."""
    averaged: Array = (matrices + np.swapaxes(matrices, -1, -2)) / 2.0
    return averaged


def is_count(value: object) -> bool:
    """Return whether `value` is a positive integer."""
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= 1


def is_number(value: object) -> bool:
    """Return whether `value` is a finite number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return 0.0 <= float(value) < float("inf")
    except OverflowError:  # an integer that no float is as large as
        return False


def is_finite(value: object) -> bool:
    """Return whether `value` is a finite number."""
    return is_number(value) or (not isinstance(value, bool) and isinstance(value, Real) and is_number(-value))


# Decimal and binary prefixes of the IEC.
_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def as_bytes(size: str | int, what: str = "shard_bytes") -> int:
    """Return a number of bytes, from text such as "5GB".

    `what` names the option in messages. Raises OptionError for anything but a positive number with a known unit.

    Examples
    --------
    >>> as_bytes("5GB"), as_bytes("1.5 GiB"), as_bytes(1000)
    (5000000000, 1610612736, 1000)
    """
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([a-z]*)", str(size).strip().lower())
    if isinstance(size, bool) or match is None or match[2] not in _UNITS or float(match[1]) * _UNITS[match[2]] < 1:
        raise OptionError(what, f"expected a size such as 5GB, 500MB or a number of bytes, found {size!r}")
    return int(float(match[1]) * _UNITS[match[2]])
