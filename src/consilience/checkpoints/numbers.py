"""Floating-point formats of checkpoints: decoding to float32 or float64, and correctly rounded encoding.

A number is (-1)^s 2^(e - bias) (1 + m / 2^M), with e its exponent bits and m its M mantissa bits; for e = 0 it is
subnormal, (-1)^s 2^(1 - bias) m / 2^M. Rounding is to the nearest number of the type, to the one of even mantissa of
two, by integer arithmetic on bit patterns: the same bits everywhere, without torch. Values beyond the largest finite
number have no right answer: types of 8 bits take the largest (saturate), the others infinity, which a merge refuses.
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
    name : str
        Name as in torch, such as "bfloat16".
    exponent, mantissa : int
        Numbers of bits.
    largest : int
        Pattern of the largest finite number.
    saturates : bool
        Whether larger values become that number. Default: False.
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
        """The unsigned integers that hold its bit patterns."""
        return np.dtype(f"u{self.itemsize}")

    @property
    def bias(self) -> int:
        """What is added to an exponent to give its bits."""
        return 2 ** (self.exponent - 1) - 1

    @cached_property
    def native(self) -> np.dtype[Any] | None:
        """The same type in NumPy; None where NumPy has none."""
        return np.dtype(self.name) if self.name in ("float16", "float32", "float64") else None

    @cached_property
    def table(self) -> NDArray[np.float32]:
        """The number of every pattern (256,), for types of 8 bits."""
        patterns = np.arange(2**8)
        exponents, fractions = (patterns >> self.mantissa) & (2**self.exponent - 1), patterns & (2**self.mantissa - 1)
        scales = 2.0 ** (np.maximum(exponents, 1) - self.bias - self.mantissa)
        values = (fractions + (exponents > 0) * 2.0**self.mantissa) * scales  # normal numbers have a hidden 1
        magnitudes = patterns & 0x7F
        values[magnitudes > self.largest] = np.nan
        if self.largest == 0x7B:  # float8_e5m2 has an infinity, as in IEEE 754; float8_e4m3fn has none
            values[magnitudes == 0x7C] = np.inf
        return np.where(patterns >> 7, -values, values).astype(np.float32)

    def decode(self, stored: NDArray[np.uint8], out: Floats) -> None:
        """Write the n numbers of some bytes into an array (n,) of float32 or float64."""
        patterns = stored.view(self.bits)
        if self.native is not None:
            with np.errstate(invalid="ignore"):  # a signalling NaN would warn; callers look for NaN
                np.copyto(out, stored.view(self.native))
        elif self.itemsize == 1:
            np.copyto(out, self.table[patterns])
        elif out.dtype == np.float32:  # bfloat16 is the upper half of a float32
            upper = out.view(np.uint32)
            np.copyto(upper, patterns)
            np.left_shift(upper, 16, out=upper)
        else:
            with np.errstate(invalid="ignore"):  # bfloat16 through float32, which is exact, to float64
                np.copyto(out, (patterns.astype(np.uint32) << 16).view(np.float32))

    def encode(self, values: Floats, out: NDArray[np.uint8]) -> None:
        """Write rounded values (n,) as bytes; the values, in float32 or float64 and never NaN, may be overwritten."""
        if self.native is not None:
            with np.errstate(over="ignore"):  # an overflow gives infinity, which the caller looks for
                np.copyto(out.view(self.native), values, casting="same_kind")
        elif self.itemsize == 2 and values.dtype == np.float32:
            _round_to_bfloat16(values.view(np.uint32), out.view(np.uint16))
        else:
            self._encode_patterns(values, out.view(self.bits))

    def _encode_patterns(self, values: Floats, out: Bits) -> None:
        """Round the bit patterns of wider numbers (n,), which order as the numbers do and have a longer mantissa.

        Dropping `shift` bits of a pattern drops them of the mantissa, and a carry out of the mantissa goes into the
        exponent, where it belongs.
        """
        wide = _WIDE[values.dtype.itemsize]
        bits = values.view(wide.bits)  # (n,)
        shift = wide.mantissa - self.mantissa
        sign = (bits >> (8 * wide.itemsize - 1)).astype(self.bits) << (8 * self.itemsize - 1)
        # The sign apart: patterns of magnitudes order as the numbers do.
        magnitude = bits & bits.dtype.type(2 ** (8 * wide.itemsize - 1) - 1)
        # Nearest, ties to even: add half of the last place, less one, plus the last bit that stays.
        code = (magnitude + (2 ** (shift - 1) - 1) + ((magnitude >> shift) & 1)) >> shift
        # From the exponent bias of the wide type to this one; numbers that are too small follow below.
        code -= np.minimum(code, (wide.bias - self.bias) << self.mantissa)
        # Subnormal numbers are evenly spaced: adding a wide number whose last place is that spacing rounds to it, and
        # the difference of the patterns is the multiple of the spacing.
        is_subnormal = magnitude < ((wide.bias - self.bias + 1) << wide.mantissa)
        anchor = values.dtype.type(2.0 ** (1 - self.bias - self.mantissa + wide.mantissa))
        multiples = (np.abs(values[is_subnormal]) + anchor).view(wide.bits) - np.asarray(anchor).view(wide.bits)
        code[is_subnormal] = multiples
        # Beyond the largest finite number: that number, or the pattern after it, which is infinity.
        np.minimum(code, self.largest if self.saturates else self.largest + 1, out=code)
        np.bitwise_or(code.astype(self.bits), sign, out=out)


def _round_to_bfloat16(bits: NDArray[np.uint32], out: NDArray[np.uint16]) -> None:
    """Round float32 patterns to bfloat16, their upper half; the patterns are overwritten.

    Adding 0x7FFF, and 1 where the upper half is odd, carries into it exactly where the nearest one, ties to even, is
    above.
    """
    increment = bits >> 16
    increment &= 1
    increment += 0x7FFF
    bits += increment
    np.right_shift(bits, 16, out=bits)
    np.copyto(out, bits, casting="unsafe")


FLOAT_TYPES: Mapping[str, FloatType] = {
    "F64": FloatType("float64", 11, 52, 0x7FEFFFFFFFFFFFFF),
    "F32": FloatType("float32", 8, 23, 0x7F7FFFFF),
    "F16": FloatType("float16", 5, 10, 0x7BFF),
    "BF16": FloatType("bfloat16", 8, 7, 0x7F7F),
    "F8_E4M3": FloatType("float8_e4m3fn", 4, 3, 0x7E, saturates=True),
    "F8_E5M2": FloatType("float8_e5m2", 5, 2, 0x7B, saturates=True),
}
"""The types that can be merged, by their names in safetensors."""

_WIDE: Mapping[int, FloatType] = {4: FLOAT_TYPES["F32"], 8: FLOAT_TYPES["F64"]}

SAFETENSORS_NAMES: Mapping[str, str] = {float_type.name: name for name, float_type in FLOAT_TYPES.items()}
"""The name of a type in safetensors, by its name in torch."""
