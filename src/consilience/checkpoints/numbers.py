"""Floating-point numbers as checkpoints store them, to and from the 32 or 64 bits that one calculates in.

Rounding is to the nearest number of the type, to the even one of two, by integer arithmetic on bit patterns: the same
bits everywhere, without torch. Values beyond the largest finite number have no right answer; types of 8 bits take the
largest (saturate), the others infinity, which a merge refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Bits = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class FloatType:
    """A binary floating-point type: a sign bit, exponent bits and mantissa bits.

    Parameters
    ----------
    name
        What people call it, such as "bfloat16".
    exponent, mantissa
        Numbers of bits.
    largest
        Pattern of the largest finite number.
    saturates
        Whether larger values become that number.
    """

    name: str
    exponent: int
    mantissa: int
    largest: int
    saturates: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return (1 + self.exponent + self.mantissa) // 8

    @property
    def bits(self) -> np.dtype[Any]:
        """The integers of its patterns."""
        return np.dtype(f"u{self.itemsize}")

    @property
    def bias(self) -> int:
        """What is added to exponents."""
        return 2 ** (self.exponent - 1) - 1

    @cached_property
    def native(self) -> np.dtype[Any] | None:
        """The type of NumPy that it is; None where NumPy has none."""
        return np.dtype(self.name) if self.name in ("float16", "float32", "float64") else None

    @cached_property
    def table(self) -> NDArray[np.float32]:
        """The number of every pattern, for types of 8 bits."""
        pattern = np.arange(2**8)
        power, fraction = (pattern >> self.mantissa) & (2**self.exponent - 1), pattern & (2**self.mantissa - 1)
        scale = 2.0 ** (np.maximum(power, 1) - self.bias - self.mantissa)
        values = (fraction + (power > 0) * 2.0**self.mantissa) * scale
        magnitude = pattern & 0x7F
        values[magnitude > self.largest] = np.nan
        if self.largest == 0x7B:  # with an infinity, as in IEEE 754
            values[magnitude == 0x7C] = np.inf
        return np.where(pattern >> 7, -values, values).astype(np.float32)

    def decode(self, stored: NDArray[np.uint8], out: Floats) -> None:
        """Write the numbers of some bytes into an array of 32 or 64 bits of their number."""
        pattern = stored.view(self.bits)
        if self.native is not None:
            with np.errstate(invalid="ignore"):  # NaN may signal; whoever asked finds it
                np.copyto(out, stored.view(self.native))
        elif self.itemsize == 1:
            np.copyto(out, self.table[pattern])
        elif out.dtype == np.float32:  # bfloat16 is the upper half
            upper = out.view(np.uint32)
            np.copyto(upper, pattern)
            np.left_shift(upper, 16, out=upper)
        else:
            with np.errstate(invalid="ignore"):
                np.copyto(out, (pattern.astype(np.uint32) << 16).view(np.float32))

    def encode(self, values: Floats, out: NDArray[np.uint8]) -> None:
        """Write rounded values as bytes; the values, of 32 or 64 bits and never NaN, may be overwritten."""
        if self.native is not None:
            with np.errstate(over="ignore"):
                np.copyto(out.view(self.native), values, casting="same_kind")
        elif self.itemsize == 2 and values.dtype == np.float32:
            _upper_halves(values.view(np.uint32), out.view(np.uint16))
        else:
            self._encode(values, out.view(self.bits))

    def _encode(self, values: Floats, out: Bits) -> None:
        """Round the bit patterns of wider numbers: these order as the numbers do, with a mantissa that is longer."""
        wide = _WIDE[values.dtype.itemsize]
        bits = values.view(wide.bits)
        shift = wide.mantissa - self.mantissa
        sign = (bits >> (8 * wide.itemsize - 1)).astype(self.bits) << (8 * self.itemsize - 1)
        magnitude = bits & bits.dtype.type(2 ** (8 * wide.itemsize - 1) - 1)
        code = (magnitude + (2 ** (shift - 1) - 1) + ((magnitude >> shift) & 1)) >> shift
        code -= np.minimum(code, (wide.bias - self.bias) << self.mantissa)
        # Below the smallest normal number spacing is even: adding a number of that spacing rounds to it.
        small = magnitude < ((wide.bias - self.bias + 1) << wide.mantissa)
        anchor = values.dtype.type(2.0 ** (1 - self.bias - self.mantissa + wide.mantissa))
        even = (np.abs(values[small]) + anchor).view(wide.bits) - np.asarray(anchor).view(wide.bits)
        code[small] = even
        np.minimum(code, self.largest if self.saturates else self.largest + 1, out=code)
        np.bitwise_or(code.astype(self.bits), sign, out=out)


def _upper_halves(bits: NDArray[np.uint32], out: NDArray[np.uint16]) -> None:
    """Round numbers of 32 bits to bfloat16, their upper half, in place."""
    odd = bits >> 16
    odd &= 1
    odd += 0x7FFF
    bits += odd
    np.right_shift(bits, 16, out=bits)
    np.copyto(out, bits, casting="unsafe")


FLOATS: Mapping[str, FloatType] = {
    "F64": FloatType("float64", 11, 52, 0x7FEFFFFFFFFFFFFF),
    "F32": FloatType("float32", 8, 23, 0x7F7FFFFF),
    "F16": FloatType("float16", 5, 10, 0x7BFF),
    "BF16": FloatType("bfloat16", 8, 7, 0x7F7F),
    "F8_E4M3": FloatType("float8_e4m3fn", 4, 3, 0x7E, saturates=True),
    "F8_E5M2": FloatType("float8_e5m2", 5, 2, 0x7B, saturates=True),
}
"""The types that can be merged, as safetensors calls them."""

_WIDE = {4: FLOATS["F32"], 8: FLOATS["F64"]}

DTYPES: Mapping[str, str] = {kind.name: name for name, kind in FLOATS.items()}
"""What safetensors calls a type, by the name that people know."""
