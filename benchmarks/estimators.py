"""Cost of sums of estimators, as ratios to bare matrix work: ``python benchmarks/estimators.py``.

Writes ``estimators.json`` beside this file. *sums* is one site's record of counts, means and centred products over the
matrix product of its rows; *fusing* is the merge of the records of a thousand sites over adding up their products.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits
from timing import interleaved, medians, write_parts

from consilience.families.centred_moments import CentredMoments, merge_moments

RESULTS = Path(__file__).with_suffix(".json")
ROWS, COLUMNS, REPEATS = 60_000, 1_800, 3
SITES, ROWS_OF_SITE, COLUMNS_OF_SITE = 1_000, 40, 200


def run_sums() -> dict[str, Any]:
    """Time the record of one site against the matrix product."""
    rows = np.random.default_rng(0).normal(size=(ROWS, COLUMNS))
    found = medians(
        interleaved({"record": lambda: CentredMoments.of_rows(rows), "product": lambda: rows.T @ rows}, REPEATS, {})
    )
    return {"rows": ROWS, "columns": COLUMNS, "seconds": found, "ratio": found["record"] / found["product"]}


def run_fusing() -> dict[str, Any]:
    """Time the merge of many records against the sum of their products."""
    rng = np.random.default_rng(0)
    records = [CentredMoments.of_rows(rng.normal(size=(ROWS_OF_SITE, COLUMNS_OF_SITE))) for _ in range(SITES)]
    runs = {"merge": lambda: merge_moments(records), "sum": lambda: sum(record.scatter for record in records)}
    found = medians(interleaved(runs, REPEATS, {}))
    return {"sites": SITES, "columns": COLUMNS_OF_SITE, "seconds": found, "ratio": found["merge"] / found["sum"]}


PARTS = {"sums": run_sums, "fusing": run_fusing}


if __name__ == "__main__":
    with threadpool_limits(1):
        write_parts(RESULTS, PARTS, sys.argv[1:], {})
