"""Floating-point formats of checkpoints: decoding to float32 or float64, and correctly rounded encoding.

NumPy knows float16, float32 and float64; `ml_dtypes` adds bfloat16 and the types of 8 bits. Rounding is to the nearest
number of the type, to the one of even mantissa of two: the same bits everywhere, without torch. Values beyond the
largest finite number have no right answer: types of 8 bits take the largest (saturate), the others infinity, which a
merge refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from consilience.catalogue import suggestion
from consilience.errors import OptionError

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class FloatType:
    """A binary floating-point type."""

    name: str  # name as in torch and ml_dtypes, such as "bfloat16"

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The type in NumPy."""
        return np.dtype(getattr(ml_dtypes, self.name, self.name))

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return self.dtype.itemsize

    @property
    def saturates(self) -> bool:
        """Whether values beyond the largest finite number become that number."""
        return self.itemsize == 1

    @cached_property
    def largest(self) -> float:
        """The largest finite number."""
        return float(ml_dtypes.finfo(self.dtype).max)  # type: ignore[no-untyped-call]

    @cached_property
    def _number_of_pattern(self) -> NDArray[np.float32]:
        """The number of every pattern (256,), for types of 8 bits."""
        return np.arange(2**8, dtype=np.uint8).view(self.dtype).astype(np.float32)

    def all_finite(self, stored: NDArray[np.uint8]) -> bool:
        """Return whether no number of some bytes is NaN or infinite; patterns of magnitudes order as they do."""
        if self.itemsize == 1:
            return bool(np.isfinite(self._number_of_pattern[stored]).all())
        patterns = stored.view(f"u{self.itemsize}")
        infinity = np.array(np.inf, self.dtype).view(patterns.dtype)
        sign = patterns.dtype.type(1 << 8 * self.itemsize - 1)
        return not len(patterns) or bool((patterns & ~sign).max() < infinity)

    def decode(self, stored: NDArray[np.uint8], out: Floats) -> None:
        """Write the n numbers of some bytes into an array (n,) of float32 or float64."""
        if self.itemsize == 1:  # a table is 4 to 7 times as fast as a cast (benchmarks/float_types.py)
            np.copyto(out, self._number_of_pattern[stored])
            return
        with np.errstate(invalid="ignore"):  # a signalling NaN would warn; callers look for NaN
            np.copyto(out, stored.view(self.dtype))

    def encode(self, values: Floats, out: NDArray[np.uint8]) -> None:
        """Write rounded values (n,) as bytes; the values, in float32 or float64 and never NaN, may be overwritten."""
        if self.saturates:
            np.clip(values, -self.largest, self.largest, out=values)
        if self.name in _ROUNDED_FROM_FLOAT32 and values.dtype == np.float64:
            values = off_ties(values) if self.name == "bfloat16" else _round_to_odd(values)
        with np.errstate(over="ignore"):  # an overflow gives infinity, which the caller looks for
            np.copyto(out.view(self.dtype), values, casting="unsafe")


def rounded_to(float_type: FloatType, values: Floats) -> Floats:
    """Return values as a type has them, in float64 and in their shape."""
    encoded = np.empty(values.size * float_type.itemsize, dtype=np.uint8)
    float_type.encode(values.reshape(-1).copy(), encoded)
    rounded = np.empty(values.size, dtype=np.float64)
    float_type.decode(encoded, rounded)
    return rounded.reshape(values.shape)


def off_ties(values: Floats) -> NDArray[np.float32]:
    """Return float64 values (n,) in float32, none on a tie of bfloat16 that is not one.

    Rounding twice goes wrong where the first rounding ends half way between two numbers of bfloat16, whose lower bits
    are then 0x8000. Such values, few of them, are moved by the last bit towards what they were.
    """
    with np.errstate(over="ignore", under="ignore"):
        rounded = values.astype(np.float32)
    patterns = rounded.view(np.uint32)
    is_tie = (patterns & np.uint32(0xFFFF)) == 0x8000
    if np.count_nonzero(is_tie) > len(values) // _MANY_TIES:
        is_tie &= rounded != values  # a tie that is one stays, and with weights such as 0.5 many are
    ties = np.flatnonzero(is_tie)
    if len(ties):
        exact, found = np.abs(values[ties]), np.abs(rounded[ties])
        patterns[ties] += (exact > found).astype(np.uint32)
        patterns[ties] -= (exact < found).astype(np.uint32)
    return rounded


def near_ties(values: NDArray[np.float32], margin: int) -> NDArray[np.bool_]:
    """Return which values (n,) in float32 are near a tie of bfloat16: by `margin` units of the last place, or less."""
    lower = (values.view(np.uint32) + np.uint32(0x8000 + margin)) & np.uint32(0xFFFF)
    return lower <= 2 * margin


def _round_to_odd(values: Floats) -> NDArray[np.float32]:
    """Return float64 values (n,) in float32; for a value between two neighbours, the one of odd mantissa.

    The odd last bit says that the value was not exact, so that rounding to a type of fewer bits sees no tie where there
    is none, and what is rounded twice is as if rounded once (Boldo and Melquiond 2008, "Emulation of FMA and correctly
    rounded sums: proved algorithms using rounding to odd").
    """
    with np.errstate(over="ignore", under="ignore"):
        rounded = values.astype(np.float32)
    patterns = rounded.view(np.uint32)  # without their sign they order as the magnitudes do
    is_between = rounded != values
    patterns -= np.abs(rounded) > np.abs(values)  # now the neighbour towards zero
    patterns |= is_between
    return rounded


FLOAT_TYPES: Mapping[str, FloatType] = {
    "F64": FloatType("float64"),
    "F32": FloatType("float32"),
    "F16": FloatType("float16"),
    "BF16": FloatType("bfloat16"),
    "F8_E4M3": FloatType("float8_e4m3fn"),
    "F8_E5M2": FloatType("float8_e5m2"),
}
"""The types that can be merged, by their names in safetensors."""

_MANY_TIES = 64
"""One in so many is too many ties to look at each: where sums are of few bits. Both ways give the same."""

_ROUNDED_FROM_FLOAT32 = {"bfloat16", "float8_e4m3fn", "float8_e5m2"}
"""Types to which ml_dtypes casts float64 by way of float32: two roundings, whose result may not be the nearest."""

COMPLEX_TYPES: Mapping[str, str] = {"C64": "F32"}
"""Types of complex numbers, which are merged as pairs of real ones: the type of the parts, by names in safetensors."""

SAFETENSORS_NAMES: Mapping[str, str] = {float_type.name: name for name, float_type in FLOAT_TYPES.items()}
"""The name of a type in safetensors, by its name in torch."""

SHORT_TYPES = {"bf16": "bfloat16", "fp16": "float16", "f16": "float16", "fp32": "float32", "f32": "float32"}
"""Types by the short names that are usual."""


def type_in_files(dtype: str) -> str:
    """Return a type in the words of safetensors; raise OptionError for one that there is not.

    Examples
    --------
    >>> type_in_files("bf16")
    'BF16'
    """
    name = SHORT_TYPES.get(dtype, dtype)
    if name not in SAFETENSORS_NAMES:
        text = f"expected one of {', '.join(SAFETENSORS_NAMES)}, found {dtype!r}{suggestion(name, SAFETENSORS_NAMES)}"
        raise OptionError("dtype", text)
    return SAFETENSORS_NAMES[name]
