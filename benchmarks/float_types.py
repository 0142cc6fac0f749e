"""Encoding and decoding of narrow floats, beside bare casts of ml_dtypes: ``python benchmarks/float_types.py``.

Writes ``float_types.json`` beside this file (a minute). The library and the cast take turns in one process on one
thread, over 32 million values in blocks as the streams have them. The cast overflows to NaN or infinity and rounds
float64 twice; the library saturates and rounds once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from threadpoolctl import threadpool_limits
from timing import interleaved, medians, write_parts

from consilience.checkpoints.methods.base import BLOCK_ENTRIES
from consilience.checkpoints.numbers import FLOAT_TYPES, FloatType

RESULTS = Path(__file__).with_suffix(".json")
N_VALUES, REPEATS = 2**25, 5
NARROW = ("BF16", "F8_E4M3", "F8_E5M2")


def in_blocks(convert: Callable[[slice], Any]) -> Callable[[], None]:
    """Return a function that converts all values, block by block."""

    def run() -> None:
        with np.errstate(all="ignore"):
            for start in range(0, N_VALUES, BLOCK_ENTRIES):
                convert(slice(start, start + BLOCK_ENTRIES))

    return run


def compare(float_type: FloatType, wide: str) -> dict[str, Any]:
    """Return the seconds of the library and of the cast, both ways, and the ratios of cast over library."""
    values = (0.02 * np.random.default_rng(0).standard_normal(N_VALUES)).astype(wide)
    block = np.empty(BLOCK_ENTRIES, dtype=wide)
    stored, decoded = np.empty(N_VALUES, dtype=float_type.dtype), np.empty(N_VALUES, dtype=wide)

    def encode(rows: slice) -> None:
        np.copyto(block, values[rows])  # which the library may overwrite
        float_type.encode(block, stored[rows].view(np.uint8))

    def encode_by_cast(rows: slice) -> None:
        np.copyto(block, values[rows])
        np.copyto(stored[rows], block, casting="unsafe")

    middle = medians(
        interleaved(
            {
                "encode": in_blocks(encode),
                "encode by cast": in_blocks(encode_by_cast),
                "decode": in_blocks(lambda rows: float_type.decode(stored[rows].view(np.uint8), decoded[rows])),
                "decode by cast": in_blocks(lambda rows: np.copyto(decoded[rows], stored[rows], casting="unsafe")),
            },
            REPEATS,
            {},
        )
    )
    return {
        "type": float_type.name,
        "wide": wide,
        "seconds": middle,
        "cast_over_library": {name: middle[f"{name} by cast"] / middle[name] for name in ("encode", "decode")},
    }


def run_types() -> dict[str, Any]:
    """Compare all narrow types, from and to both widths."""
    results = [compare(FLOAT_TYPES[name], wide) for name in NARROW for wide in ("float32", "float64")]
    return {"values": N_VALUES, "repeats": REPEATS, "results": results}


if __name__ == "__main__":
    with threadpool_limits(1):
        write_parts(RESULTS, {"types": run_types}, sys.argv[1:], {"ml_dtypes": ml_dtypes.__version__})
