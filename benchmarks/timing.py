"""What every part of the benchmarks uses: clocks, a fixed yardstick and the versions."""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import cvxpy
import numpy as np
import scs

sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
import record

YARDSTICK_SIZE = 1000


def seconds(
    function: Callable[[], Any], inner: int = 1, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, Any]:
    """Return the seconds of one call by a clock, the mean of `inner` calls, and what the last one returned."""
    gc.collect()
    start = clock()
    for _ in range(inner):
        result = function()
    return (clock() - start) / inner, result


def interleaved(
    functions: dict[str, Callable[[], Any]],
    repeats: int,
    inner: dict[str, int],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds of every function, each timed once a round, so that a busy moment hits all alike."""
    found: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            found[name].append(seconds(function, inner.get(name, 1), clock)[0])
    return found


def yardstick() -> float:
    """Return the seconds of a fixed product of two 1000 x 1000 matrices: what times of other machines compare by."""
    matrix = np.random.default_rng(0).standard_normal((YARDSTICK_SIZE, YARDSTICK_SIZE))
    return median(seconds(lambda: matrix @ matrix)[0] for _ in range(9))


def medians(found: dict[str, list[float]]) -> dict[str, float]:
    """Return the median of every list."""
    return {name: median(values) for name, values in found.items()}


def minima(found: dict[str, list[float]]) -> dict[str, float]:
    """Return the minimum of every list."""
    return {name: min(values) for name, values in found.items()}


def versions() -> dict[str, str]:
    """Return what the times depend on besides the settings."""
    return record.versions() | {"cvxpy": cvxpy.__version__, "scs": scs.__version__}


def write_parts(
    results: Path, parts: Mapping[str, Callable[[], dict[str, Any]]], named: Sequence[str], more: Mapping[str, str]
) -> None:
    """Run the named parts, or all, and write them into a JSON file; a part that is not named keeps its numbers.

    Parameters
    ----------
    results
        The file.
    parts
        What each part does.
    named
        Which to run.
    more
        Versions beyond those that every benchmark has.
    """
    found = json.loads(results.read_text()) if results.exists() else {}
    for part in named or parts:
        found[part] = parts[part]()
    found |= {"yardstick": yardstick(), "versions": versions() | dict(more)}
    results.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
