"""The number of AMPS, SPAHM and the Dirichlet process on the battery: their own, and that of the greatest evidence.

    python experiments/battery/processes.py --half tune|second --write
    python experiments/battery/processes.py --fonts --write

The second command fuses digits in computer fonts, ten classes at sites that lack some, by the default and told ten,
from five seeds. What was run is kept as by ``run.py``, so that both may be stopped and started again. The default of
``n_components`` was judged on ``tune`` first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

sys.path.append(str(Path(__file__).resolve().parents[1]))
from battery import local_fits, methods, real
from battery.cells import HALVES
from battery.local_fits import CACHE, AnySetting, Cell, load
from battery.methods import METHODS, Found, fused
from battery.run import chosen_cells, score
from record import as_text, remembered, versions

HERE = Path(__file__).parent
MAX_ROWS = 300
"""Components of a cell at most: the variational mixtures of larger ones take minutes."""
LIMIT = 60
"""Seconds after which a method gives up on a cell."""
PROCESSES: dict[str, Callable[[Cell], Found]] = {
    "spahm": lambda cell: fused(cell, "spahm"),
    "spahm, evidence": lambda cell: fused(cell, "spahm", n_components="evidence"),
    "amps": lambda cell: fused(cell, "amps", growth=True),
    "amps, evidence": lambda cell: fused(cell, "amps", growth=True, n_components="evidence"),
    "dp means": lambda cell: fused(cell, "dp", assignment="means"),
    "dp means, evidence": lambda cell: fused(cell, "dp", assignment="means", n_components="evidence"),
    "dp": lambda cell: fused(cell, "dp"),
    "dp, evidence": lambda cell: fused(cell, "dp", n_components="evidence"),
}
FONT_METHODS = ("default", "told", "KL-k-means", "k-means", "Runnalls", "true matching", "concatenation", "pooled")
FONT_SEEDS = range(5)
FONT_SITES = {"few sites": (5, 0.5), "more sites": (12, 0.3), "all classes": (5, 1.0)}
"""Sites, and the share of the classes that each holds."""


def font_settings() -> list[AnySetting]:
    """Return the settings of the digits in computer fonts: splits that no half of the battery has."""
    template = next(one for one in real.plan("second") if one.data == "font_digits")
    return [
        replace(
            template,
            name=f"fonts-{layout.replace(' ', '-')}-{seed}",
            kind=layout,
            seed=2_000_000 + seed,
            sites=n_sites,
            classes=share,
        )
        for layout, (n_sites, share) in FONT_SITES.items()
        for seed in FONT_SEEDS
    ]


def rows_of(settings: Sequence[AnySetting], names: Sequence[str], folder: Path, max_rows: int) -> list[dict[str, Any]]:
    """Return the scores of some methods on every cell of at most so many components."""
    rows, source = [], versions()["library_source"]
    for setting in settings:
        cell = load(setting)
        if len(cell.truth) > max_rows:
            continue
        path = folder / f"{setting.name}-{local_fits.digest(setting)}.json"
        scores = remembered(path, list(names), set(), source, lambda name, cell=cell: score(cell, name, LIMIT))
        rows.append(
            {
                "name": setting.name,
                "kind": setting.kind,
                "true": cell.n_true,
                "locals": len(cell.truth),
                "separated": cell.is_separated,
                "methods": {name: scores[name]["scores"] for name in names},
            }
        )
        sys.stdout.write(f"{setting.name}\n")
        sys.stdout.flush()
    return rows


def main() -> None:
    """Run what is missing and write it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--half", choices=HALVES)
    what.add_argument("--fonts", action="store_true", help="digits in computer fonts, five seeds")
    parser.add_argument("--results", type=Path, default=CACHE / "processes", help="folder of the files of single cells")
    parser.add_argument("--write", action="store_true", help="write the results beside this file")
    options = parser.parse_args()
    methods.METHODS.update(PROCESSES)
    options.results.mkdir(parents=True, exist_ok=True)
    with threadpool_limits(1):
        METHODS["default"](load("tune-06"))  # so that the first time is not that of loading libraries
        if options.fonts:
            name, rows = "fonts", rows_of(font_settings(), FONT_METHODS, options.results, 10**6)
        else:
            name, names = f"processes-{options.half}", ["default", *PROCESSES]
            rows = rows_of(chosen_cells(options.half, "*"), names, options.results, MAX_ROWS)
    if options.write:
        (HERE / f"{name}.json").write_text(as_text({"versions": versions(), "cells": rows}))


if __name__ == "__main__":
    main()
