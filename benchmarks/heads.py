"""Cost of heads on shared features, as ratios to bare matrix work: ``python benchmarks/heads.py``.

Writes ``heads.json`` beside this file. *sums* is one site's counts, sums by class and moments over the matrix product
of its rows; *fusing* is the sum of a thousand sites' statistics over adding up their products.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits
from timing import interleaved, medians, write_parts

import consilience as cs
from consilience.estimators.average import average
from consilience.estimators.heads.sums import sums_of_features
from consilience.estimators.statistics import TOTAL

RESULTS = Path(__file__).with_suffix(".json")
ROWS, COLUMNS, CLASSES, REPEATS = 60_000, 1_800, 10, 3
SITES, DISTINCT_SITES, ROWS_OF_SITE = 1_000, 20, 40


def run_sums() -> dict[str, Any]:
    """Time the sums of one site against the matrix product."""
    rng = np.random.default_rng(0)
    rows, numbers = rng.normal(size=(ROWS, COLUMNS)), rng.integers(0, CLASSES, ROWS)
    runs = {"sums": lambda: sums_of_features(rows, numbers, CLASSES), "product": lambda: rows.T @ rows}
    found = medians(interleaved(runs, REPEATS, {}))
    return {"rows": ROWS, "columns": COLUMNS, "seconds": found, "ratio": found["sums"] / found["product"]}


def run_fusing() -> dict[str, Any]:
    """Time the sum of many sites' statistics against the sum of their products; sites repeat, to fit into memory."""
    rng = np.random.default_rng(0)
    distinct = [
        cs.learners.Head()
        .fit(rng.normal(size=(ROWS_OF_SITE, COLUMNS)), np.arange(ROWS_OF_SITE) % CLASSES, classes=CLASSES, min_count=0)
        .statistics
        for _ in range(DISTINCT_SITES)
    ]
    sites = [distinct[number % DISTINCT_SITES] for number in range(SITES)]

    def add_up() -> Any:
        total = np.zeros((COLUMNS, COLUMNS))
        for site in sites:
            total += site.moments[TOTAL].scatter
        return total

    found = medians(interleaved({"fusing": lambda: average(sites), "adding up": add_up}, REPEATS, {}))
    return {
        "sites": SITES,
        "columns": COLUMNS,
        "classes": CLASSES,
        "seconds": found,
        "ratio": found["fusing"] / found["adding up"],
    }


PARTS = {"sums": run_sums, "fusing": run_fusing}


if __name__ == "__main__":
    with threadpool_limits(1):
        write_parts(RESULTS, PARTS, sys.argv[1:], {})
