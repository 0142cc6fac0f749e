"""The battery of network fusion: the default on cells that were written down before it was tuned.

``python experiments/network_battery/run.py --half tune --train`` trains what is missing, ``--baselines`` scores what
the default is compared with, ``--default`` the default at three levels of description; each may be stopped and started
again, and prints a summary. ``--write`` writes all that is there to ``tune.json`` (or ``report.json``) beside this
file, over the same methods of the same cells. ``--again NAME`` runs methods anew where the library's source has changed
since.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits

sys.path.append(str(Path(__file__).resolve().parents[1]))
from network_battery import baselines, cells, data, training
from network_battery.cells import Setting, digest, plan, settings_of
from network_battery.default import DEFAULTS
from network_battery.scores import scores, site_accuracies
from network_battery.summary import text
from record import as_text, remembered, versions
from time_limit import GaveUpError, limited

from consilience.errors import ConsilienceError

HERE = Path(__file__).parent
GIVE_UP = 900
CHOSEN = {
    "cells": "cells.py: written down before the default was tuned",
    "recipes": "training.py: chosen so that a site of IID rows comes near what its rows allow, before any fusion",
    "labels": "no method sees a test label; the best site and the best candidate are chosen by them, to compare with",
    "default before": "the default at commit 639850d: consensus, equal weights, refit on made-up inputs",
    "seconds": "processor time on one thread",
}


def score(cell: training.Cell, name: str, limit: int) -> dict[str, Any] | None:
    """Return the scores of a method on a cell; None where it does not apply, why where it was refused or gave up."""
    start = time.process_time()
    try:
        if name in DEFAULTS:
            return limited(lambda: DEFAULTS[name](cell), limit)
        outcome = limited(lambda: baselines.METHODS[name](cell), limit)
    except GaveUpError:
        return {"gave_up": limit}
    except ConsilienceError as error:
        return {"refused": str(error)}
    if outcome is None:
        return None
    return scores(cell, outcome.answers) | outcome.facts | {"seconds": time.process_time() - start}


def results_path(folder: Path, setting: Setting, part: str) -> Path:
    """Return where results of a cell are remembered: "baselines" and "defaults" apart, so that both may run at once."""
    return folder / part / f"{training.folder_of(setting).name}.json"


def part_of(name: str) -> str:
    """Return the part of the results that a method belongs to."""
    return "defaults" if name in DEFAULTS else "baselines"


def run(setting: Setting, names: list[str], again: set[str], limit: int, source: str, folder: Path) -> None:
    """Run what is missing of some methods on a cell, and remember it."""
    for part in dict.fromkeys(map(part_of, names)):
        path = results_path(folder, setting, part)
        of_part = [name for name in names if part_of(name) == part]
        stored = json.loads(path.read_text())["methods"] if path.exists() else {}
        stale = {name for name in again if name in stored and stored[name]["library_source"] != source}
        if not set(of_part) <= stored.keys() - stale:
            cell = training.load_cell(setting)
            remembered(path, of_part, stale, source, lambda name, cell=cell: score(cell, name, limit))


def facts_of(setting: Setting) -> dict[str, Any]:
    """Return what a cell is and how good its sites are, kept beside its networks, so that its data are read once."""
    path = training.folder_of(setting) / "facts.json"
    if not path.exists():
        cell = training.load_cell(setting)
        facts = {
            "name": setting.name,
            "settings": settings_of(setting),
            "recipe": asdict(training.recipe_of(setting)),
            "parameters": sum(values.numel() for values in training.build(setting, cell.data).state_dict().values()),
            "test_rows": len(cell.data.test[1]),
            "classes": cell.data.n_classes,
            "counts": cell.data.counts.tolist(),
            "rows": digest([rows.tolist() for rows in cell.data.rows]),
            "training_seconds": cell.seconds,
            "sites": site_accuracies(cell),
        }
        path.write_text(json.dumps(facts))
    return json.loads(path.read_text())


def row_of(setting: Setting, folder: Path, recorded: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the facts of a cell and all that is remembered of it, over what is recorded of its other methods."""
    methods = {}
    for path in [results_path(folder, setting, part) for part in ("baselines", "defaults")]:
        methods |= json.loads(path.read_text())["methods"] if path.exists() else {}
    if recorded is not None and not methods:
        return recorded
    before = {} if recorded is None else {name: one for name, one in recorded["methods"].items() if name not in methods}
    sources = {one["library_source"] for one in methods.values()}
    return facts_of(setting) | {
        "sources": sorted(sources.union(recorded["sources"] if recorded is not None and before else ())),
        "methods": before | {name: one["scores"] for name, one in methods.items() if one["scores"] is not None},
    }


def say(line: str) -> None:
    """Tell how far the run is."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Train, run what is missing, print a summary, and write it all if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--half", choices=cells.HALVES, required=True)
    parser.add_argument("--cells", default="*", help="a pattern of names, such as 'tune-0*'")
    parser.add_argument("--train", action="store_true", help="train the networks that are missing")
    parser.add_argument("--baselines", action="store_true", help="run what the default is compared with")
    parser.add_argument("--default", action="store_true", help="run the default at three levels of description")
    every = [*baselines.METHODS, *DEFAULTS]
    parser.add_argument("--methods", nargs="+", choices=every, default=[], help="run these")
    parser.add_argument("--again", nargs="+", choices=every, default=[], help="run anew where the library changed")
    parser.add_argument("--limit", type=int, default=GIVE_UP, help="seconds after which a method gives up on a cell")
    parser.add_argument("--results", type=Path, default=training.CACHE / "results", help="folder of single results")
    parser.add_argument("--write", action="store_true", help="write the results beside this file")
    options = parser.parse_args()
    names = [
        *options.methods,
        *(baselines.METHODS if options.baselines else ()),
        *(DEFAULTS if options.default else ()),
    ]
    torch.set_num_threads(1)
    ran = versions()
    settings = [one for one in plan(options.half) if fnmatch.fnmatch(one.name, options.cells)]
    with threadpool_limits(1):
        for number, setting in enumerate(settings):
            start = time.perf_counter()
            if options.train:
                training.train_cell(setting, say)
            source = ran["library_source"]
            run(setting, list(dict.fromkeys(names)), set(options.again), options.limit, source, options.results)
            say(f"{number + 1} of {len(settings)}: {setting.name} ({time.perf_counter() - start:.0f} s)")
        file = HERE / f"{options.half}.json"
        recorded = {row["name"]: row for row in json.loads(file.read_text())["cells"]} if file.exists() else {}
        rows = [row_of(setting, options.results, recorded.get(setting.name)) for setting in settings]
    sys.stdout.write("\n" + text(rows))
    if options.write:
        record = {"settings": settings_record(options.half), "versions": ran, "cells": rows}
        file.write_text(as_text(record))


def settings_record(half: str) -> dict[str, Any]:
    """Return what was chosen, as JSON values."""
    return {
        "chosen": CHOSEN,
        "recipes": {name: asdict(recipe) for name, recipe in training.RECIPES[half].items()},
        "recipe of bytes": asdict(training.BYTES),
        "least steps": training.LEAST_STEPS,
        "Bayesian": training.BAYESIAN,
        "draws": training.DRAWS,
        "test rows": data.TEST_ROWS,
        "least rows": data.LEAST_ROWS,
        "vocabulary": data.VOCABULARY,
        "length": data.LENGTH,
    }


if __name__ == "__main__":
    main()
