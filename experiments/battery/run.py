"""The battery: number of components and matching of the library's default, judged on cells that nobody tuned to.

``python experiments/battery/run.py --half tune`` makes what is missing of the local fits, runs every method on every
cell of a half, prints a summary, and with ``--write`` writes ``tune.json`` (or ``report.json``) beside this file, over
the same methods of the same cells. What was run is kept, one small file for each cell, so that the run may be stopped
and started again; ``--again`` runs methods anew if the library's source has changed since. ``--perturb`` instead asks
whether the default gives the same partition of perturbed and relabelled inputs.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

sys.path.append(str(Path(__file__).resolve().parents[1]))
from battery import baselines, cells, local_fits, real
from battery.local_fits import CACHE, AnySetting, Cell, load, plan
from battery.methods import METHODS, UNTIMED
from battery.metrics import VIRTUAL_DRAWS, bench
from battery.perturb import perturbed
from battery.summary import perturbation_text, text
from record import as_text, remembered, versions
from time_limit import GaveUpError, limited

from consilience.errors import ConsilienceError

HERE = Path(__file__).parent
GIVE_UP = 600
UNIT_SIZE, UNIT_TIMES = 500, 20
CHOSEN = {
    "cells": "cells.py and real.py: a fixed rule, written down before any method was run on them",
    "local fits": "scikit-learn's variational mixtures, one start, 100 iterations, told the true local number",
    "told, k-means, KL-k-means, Runnalls, pooled": "told the true number of components",
    "averages": "groups of every method are merged by moments, so that matchings are compared",
    "seconds": "processor time on one thread; `relative` is over that of 20 products of 500 x 500 matrices",
}


def unit() -> float:
    """Return the processor time of what times are divided by, the median of three."""
    matrix = np.random.default_rng(0).standard_normal((UNIT_SIZE, UNIT_SIZE))
    times = []
    for _ in range(3):
        start = time.process_time()
        for _ in range(UNIT_TIMES):
            matrix @ matrix
        times.append(time.process_time() - start)
    return float(np.median(times))


def score(cell: Cell, name: str, limit: int = GIVE_UP) -> dict[str, Any]:
    """Return the scores of a method on a cell; ``{"refused": why}`` or ``{"gave_up": seconds}`` where it has none.

    Parameters
    ----------
    cell : Cell
        What ``load`` gives.
    name : str
        One of ``METHODS``.
    limit : int, optional
        Seconds after which it gives up.
    """
    if name in UNTIMED:
        return METHODS[name](cell).scores(bench(cell))
    of_unit, start = unit(), time.process_time()
    try:
        found = limited(lambda: METHODS[name](cell), limit)
    except GaveUpError:
        return {"gave_up": limit}
    except ConsilienceError as error:
        return {"refused": str(error)}
    taken = time.process_time() - start
    return found.scores(bench(cell)) | {"seconds": taken, "relative": taken / of_unit}


def chosen_cells(half: str, pattern: str) -> list[AnySetting]:
    """Return the cells of a half whose names match, without those whose data are not on this machine."""
    named = [one for one in plan(half) if fnmatch.fnmatch(one.name, pattern)]
    return [one for one in named if not isinstance(one, real.RealSetting) or real.is_there(one)]


def run(
    setting: AnySetting, names: list[str], again: set[str], folder: Path, limit: int, source: str
) -> dict[str, Any]:
    """Return the results of a cell."""
    path = folder / f"{setting.name}-{local_fits.digest(setting)}.json"
    cell = load(setting)
    stored = json.loads(path.read_text())["methods"] if path.exists() else {}
    stale = {name for name in again if name in stored and stored[name]["library_source"] != source}
    methods = remembered(path, names, stale, source, lambda name: score(cell, name, limit))
    return {
        "name": setting.name,
        "settings": cells.settings_of(setting),
        "true": cell.n_true,
        "locals": len(cell.truth),
        "bayes_error": cell.bayes_error,
        "separated": cell.is_separated,
        "sources": sorted({methods[name]["library_source"] for name in names}),
        "methods": {name: methods[name]["scores"] for name in names},
    }


def main() -> None:
    """Run what is missing, print a summary, and write it all if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--half", choices=cells.HALVES, required=True)
    parser.add_argument("--cells", default="*", help="a pattern of names, such as 'tune-0*'")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument(
        "--again", nargs="+", choices=METHODS, default=[], help="methods to run anew where the library changed"
    )
    parser.add_argument("--limit", type=int, default=GIVE_UP, help="seconds after which a method gives up on a cell")
    parser.add_argument("--results", type=Path, default=CACHE / "results", help="folder of the files of single cells")
    parser.add_argument("--perturb", action="store_true", help="ask whether the default's partition stays the same")
    parser.add_argument("--write", action="store_true", help="write the results beside this file")
    options = parser.parse_args()
    ran, rows = versions(), []
    settings = chosen_cells(options.half, options.cells)
    names = ["perturbed"] if options.perturb else options.methods
    with threadpool_limits(1):
        METHODS["default"](load("tune-06"))  # so that the first time is not that of loading libraries
        for number, setting in enumerate(settings):
            start = time.perf_counter()
            if options.perturb:
                row = perturb(setting, options)
            else:
                row = run(setting, names, set(options.again), options.results, options.limit, ran["library_source"])
            rows.append(row)
            taken = time.perf_counter() - start
            sys.stdout.write(f"{number + 1} of {len(settings)}: {setting.name} ({taken:.0f} s)\n")
            sys.stdout.flush()
    sys.stdout.write("\n" + (perturbation_text(rows) if options.perturb else text(rows)))
    if options.write:
        path = HERE / (f"{options.half}-perturbed.json" if options.perturb else f"{options.half}.json")
        if path.exists() and not options.perturb:
            rows = over(json.loads(path.read_text())["cells"], rows)
        path.write_text(as_text({"settings": settings_record(), "versions": ran, "cells": rows}))


def over(recorded: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return recorded cells with the methods of those that ran in place of the same ones."""
    cells_by_name = {row["name"]: row for row in recorded}
    for row in rows:
        old = cells_by_name.get(row["name"], row)
        sources = sorted({*old["sources"], *row["sources"]})
        cells_by_name[row["name"]] = old | row | {"methods": old["methods"] | row["methods"], "sources": sources}
    return list(cells_by_name.values())


def perturb(setting: AnySetting, options: argparse.Namespace) -> dict[str, Any]:
    """Return whether the default's partition of a cell stays the same; never remembered."""
    cell = load(setting)
    try:
        return {"name": setting.name, "true": cell.n_true} | limited(lambda: perturbed(cell), 7 * options.limit)
    except GaveUpError:
        return {"name": setting.name, "true": cell.n_true, "gave_up": 7 * options.limit}


def settings_record() -> dict[str, Any]:
    """Return what was chosen, as JSON values."""
    return {
        "chosen": CHOSEN,
        "kinds": cells.KINDS,
        "ordinary": cells.ORDINARY,
        "any": cells.ANY,
        "local": local_fits.LOCAL,
        "pooled": local_fits.POOLED,
        "k-means": baselines.KMEANS,
        "virtual_draws": VIRTUAL_DRAWS,
    }


if __name__ == "__main__":
    main()
