"""Fixed-point numbers of 128 bits: sums of them are exact, whatever the order, and can be masked.

A number x is the integer z = round(x 2^F), half to even, modulo 2^128 (two's complement), as two words of 64 bits, the
lower one first. Sums are modulo 2^128 and are right while n max|x| 2^F < 2^127, so that a site refuses numbers of
2^(126 - F) / n and more. A float64 is represented exactly if its lowest set bit is 2^-F or more: all integers, and at
F = 60 every float32 of size 2^-36 = 1.5e-11 and more. Of others each summand is off by 2^-(F + 1) at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array
from consilience.errors import InputError

Words = NDArray[np.uint64]
"""Integers modulo 2^128 (L, 2): the lower and the upper 64 bits."""

FRACTIONAL_BITS = 60
"""F by default: float32 values down to 1.5e-11 are exact, and 1,000 sites sum numbers up to 7e16."""
WORD_BITS = 128
WORD_BYTES = WORD_BITS // 8

_MANTISSA_BITS = 53
_HALF_RANGE = 1 << (WORD_BITS - 1)
_MODULUS = 1 << WORD_BITS


def largest(n_sites: int, fractional_bits: int = FRACTIONAL_BITS) -> float:
    """Return the size below which numbers of so many sites can be summed: 2^(126 - F) / n."""
    return 2.0 ** (WORD_BITS - 2 - fractional_bits) / n_sites


def encode(values: Array, n_sites: int, fractional_bits: int = FRACTIONAL_BITS) -> Words:
    """Return numbers as fixed-point words (L, 2), rounded half to even.

    At most `n_sites` such vectors are summed; `fractional_bits` is F. Raises InputError for a number that is not
    finite, or so large that the sum might not be right.

    Examples
    --------
    >>> decode(encode(np.array([0.1, -3.0]), 2)).tolist()
    [0.1, -3.0]
    """
    values = np.asarray(values, dtype=np.float64)
    limit = largest(n_sites, fractional_bits)
    if not np.all(np.abs(values) < limit):  # NaN is not
        position = int(np.flatnonzero(~(np.abs(values) < limit))[0])
        raise _out_of_range(f"number {position} is {values[position]:.3g}", limit)
    scaled = np.ldexp(values, fractional_bits)  # exact, but for numbers near the smallest of all, which become 0
    # From 2^53 on every float64 is an integer; below it, the rounded one fits into 64 bits.
    is_small = np.abs(scaled) < 2.0**_MANTISSA_BITS
    small = np.rint(np.where(is_small, scaled, 0.0)).astype(np.int64)
    mantissa, exponent = np.frexp(np.abs(np.where(is_small, 0.0, scaled)))
    digits = np.ldexp(mantissa, _MANTISSA_BITS).astype(np.uint64)
    shift = np.where(is_small, 0, exponent - _MANTISSA_BITS).astype(np.uint64)  # 0 to 73
    # A shift by 64 bits or more is not defined in C, so that both halves take shifts below 64.
    low = np.where(shift < 64, digits << np.minimum(shift, 63), 0).astype(np.uint64)
    spilled = np.where(
        (shift > 0) & (shift < 64), digits >> np.clip(64 - shift.astype(np.int64), 1, 63).astype(np.uint64), 0
    )
    high = np.where(shift < 64, spilled, digits << np.clip(shift.astype(np.int64) - 64, 0, 63).astype(np.uint64))
    words = np.stack([low, high.astype(np.uint64)], axis=-1)
    words = np.where((~is_small & (scaled < 0))[:, None], negated(words), words)
    of_small = np.stack([small.view(np.uint64), (small >> np.int64(63)).view(np.uint64)], axis=-1)
    return np.where(is_small[:, None], of_small, words)


def from_integers(integers: Iterable[int], n_sites: int) -> Words:
    """Return integers z, as they are, as words (L, 2).

    Raises InputError for one so large that the sum of `n_sites` might not be right.
    """
    limit = (_HALF_RANGE >> 1) // n_sites
    parts = []
    for position, value in enumerate(integers):
        if not -limit < value < limit:
            raise _out_of_range(f"number {position} has {value.bit_length()} bits", float(limit))
        parts.append((value % _MODULUS).to_bytes(WORD_BYTES, "little"))
    return np.frombuffer(b"".join(parts), dtype="<u8").reshape(-1, 2).astype(np.uint64)


def to_integers(words: Words) -> list[int]:
    """Return words (L, 2) as the integers from -2^127 to 2^127 - 1 that they stand for."""
    data = np.ascontiguousarray(words, dtype="<u8").tobytes()
    return [
        int.from_bytes(data[start : start + WORD_BYTES], "little", signed=True)
        for start in range(0, len(data), WORD_BYTES)
    ]


def decode(words: Words, fractional_bits: int = FRACTIONAL_BITS) -> Array:
    """Return the float64 numbers nearest to those that words stand for (L,): division of integers rounds correctly."""
    unit = 1 << fractional_bits
    return np.array([value / unit for value in to_integers(words)], dtype=np.float64)


def add(a: Words, b: Words) -> Words:
    """Return the sums modulo 2^128."""
    low = a[:, 0] + b[:, 0]
    carry = low < a[:, 0]
    return np.stack([low, a[:, 1] + b[:, 1] + carry], axis=-1)


def negated(words: Words) -> Words:
    """Return -z modulo 2^128."""
    low = ~words[:, 0] + np.uint64(1)
    return np.stack([low, ~words[:, 1] + (low == 0)], axis=-1)


def total(vectors: Sequence[Words]) -> Words:
    """Return the sum of vectors modulo 2^128."""
    result = np.zeros_like(vectors[0])
    for words in vectors:
        result = add(result, words)
    return result


def scaled_integer(value: int, bits: int) -> int:
    """Return value 2^bits, rounded half to even where bits are negative."""
    if bits >= 0:
        return value << bits
    quotient, rest = divmod(value, 1 << -bits)
    half = 1 << (-bits - 1)
    return quotient + (rest > half or (rest == half and quotient & 1 == 1))


def unit_exponent(size: float) -> int:
    """Return the exponent of the power of two next to a size; 0 of none."""
    return 0 if not size > 0.0 or not np.isfinite(size) else int(np.round(np.log2(size)))


def _out_of_range(found: str, limit: float) -> InputError:
    remedy = "let the server expect a file of that scale, whose units are larger"
    return InputError("", f"{found}, and below {limit:.3g} the sum of all sites is exact", remedy, "E-ROUND")


def as_words(data: bytes) -> Words:
    """Return the words (L, 2) that bytes hold, 16 of them each."""
    return np.frombuffer(data, dtype="<u8").reshape(-1, 2).astype(np.uint64)


def to_bytes(words: Words) -> bytes:
    """Return words as bytes, 16 of them each."""
    return np.ascontiguousarray(words, dtype="<u8").tobytes()
