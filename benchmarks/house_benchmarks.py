"""Ratios of every benchmark before and after a change of the house, for the table in docs/adr/0019.

``python benchmarks/house_benchmarks.py BEFORE AFTER``: two folders with the JSON files that the benchmarks wrote when
they ran on either tree. Every number is a ratio inside one run (to a baseline, to bare operations, to a fixed product
of matrices), so that the load of the machine cancels, more or less. Below 1 is faster than what it is compared with.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).with_name("house.json")

Document = dict[str, Any]
RATIOS: dict[tuple[str, str], Callable[[Document], float]] = {
    ("kl_fusion", "an iteration over 10,000 sites, to its bare operations (six settings)"): lambda d: median(
        row["ratio"] for row in d["iteration"]["results"].values()
    ),
    ("kl_fusion", "topics over 12,500 words, in products of matrices"): lambda d: (
        d["topics"]["results"]["median"] / d["direct"]["results"][0]["yardstick"]
    ),
    ("spahm", "one start, to the direct code (three seeds)"): lambda d: median(
        row["ratios"]["one start"] for row in d["direct"]["results"]
    ),
    ("hidden_markov", "a pass, to hmmlearn in logarithms (five sizes)"): lambda d: median(
        row["ratio_to_hmmlearn"]["log"] for row in d["results"].values()
    ),
    ("networks", "rebasin, to the direct code"): lambda d: median(
        row["medians"]["rebasin"] / row["medians"]["direct"] for row in d["matching"]["results"]
    ),
    ("networks", "optimal transport, to the direct code"): lambda d: median(
        row["medians"]["ot"] / row["medians"]["direct"] for row in d["transport"]["results"]
    ),
    ("recurrent", "Gromov fusion, to bare operations (nine runs)"): lambda d: median(
        row["ratio"] for row in d["pair"]["results"]
    ),
    ("kl_networks", "a fusion, to its products (five seeds)"): lambda d: median(
        row["ratio"] for row in d["networks"]["results"]
    ),
    ("bnn_alignment", "fusing, to weight matching"): lambda d: median(
        row["ratio"]["fusing"] for row in d["widths"]["results"]
    ),
    ("fisher", "the exact diagonal, to a loop over samples"): lambda d: median(
        1.0 / row["times_as_fast"] for row in d["information"]["results"]
    ),
    ("fisher", "low-rank merging, to bare operations (six runs)"): lambda d: median(
        row["ratio"] for row in d["low_rank"]["results"]
    ),
    ("shards", "twenty passes over 100,000 sites, to bare products"): lambda d: d["iterations"]["over_bare"]["passes"],
    ("shards", "spahm over 100,000 sites, in products of matrices"): lambda d: (
        d["whole"]["results"]["spahm"]["seconds"] / d["yardstick"]
    ),
    ("checkpoints", "an average of 2 x 2 GB, to bare reading and writing"): lambda d: (
        d["consilience"]["seconds"] / d["bare"]["seconds"]
    ),
}
"""By benchmark and what is measured, the ratio in its document."""


def main() -> None:
    """Write the ratios of both folders beside each other into house.json, and print them."""
    before, after = map(Path, sys.argv[1:])
    rows = []
    for (benchmark, measured), ratio in RATIOS.items():
        values = [ratio(json.loads((folder / f"{benchmark}.json").read_text())) for folder in (before, after)]
        rows.append({"benchmark": benchmark, "measured": measured, "before": values[0], "after": values[1]})
        sys.stdout.write(f"{benchmark:16s} {measured:70s} {values[0]:10.3f} {values[1]:10.3f}\n")
    document = json.loads(RESULTS.read_text()) | {"benchmarks": rows}
    RESULTS.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
