"""Another method on the cells of ``networks.py``: ``python experiments/one_shot/enter.py METHOD.py [--cells NAMES]``.

METHOD.py is one file with ``fuse(networks, sent, numbers, example)``, which returns one network of the sites' networks,
what each site sends beside its own, the sites' numbers of rows, and two rows to trace with; and, where sites send more
than networks, ``describe(network, x, y)``, which is called for one site with its rows after the other. Neither sees a
test row. Accuracies stand beside those of the best site, the default and the ensemble that ``networks.json`` records;
METHOD.json, beside the file, has them with seconds of processor time, settings and versions.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from fnmatch import fnmatch
from pathlib import Path
from statistics import mean
from types import ModuleType
from typing import Any

import torch
from networks import RESULTS, accuracy, settings
from threadpoolctl import threadpool_limits

sys.path.append(str(Path(__file__).resolve().parents[1]))
from network_battery import training
from record import as_text, versions

BESIDE = ("best site", "default", "class-weighted ensemble")
"""What an entered method is shown beside."""


def entered(path: Path) -> ModuleType:
    """Return the file of a method as a module."""
    specification = importlib.util.spec_from_file_location(path.stem, path)
    if specification is None or specification.loader is None or not path.is_file():
        sys.exit(f"{path}: no file of Python")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    if not hasattr(module, "fuse"):
        sys.exit(f"{path}: defines no fuse(networks, sent, numbers, example)")
    return module


def result(cell: training.Cell, method: ModuleType) -> dict[str, Any]:
    """Return the accuracy of a method on a cell, and the seconds at all sites and at the server."""
    start = time.process_time()
    describe = getattr(method, "describe", None)
    pairs = list(zip(cell.models, cell.data.sites, strict=True))
    sent = [None if describe is None else describe(network, x, y) for network, (x, y) in pairs]
    at_sites = time.process_time() - start
    fused = method.fuse(cell.models, sent, [len(x) for _, (x, _) in pairs], cell.example)
    seconds = {"at the sites": at_sites, "at the server": time.process_time() - start - at_sites}
    return {"accuracy": accuracy(cell, fused), "seconds": {name: round(value, 2) for name, value in seconds.items()}}


def main() -> None:
    """Run a method on the cells that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", type=Path, help="a file of Python with the method")
    parser.add_argument("--cells", default="*-0", help="names of cells, with wildcards, separated by commas")
    arguments = parser.parse_args()
    method, recorded = entered(arguments.method), json.loads(RESULTS.read_text())["cells"]
    cells: dict[str, Any] = {}
    sys.stdout.write(f"| cell | {arguments.method.stem} | {' | '.join(BESIDE)} |\n| --- |{' ---: |' * 4}\n")
    with threadpool_limits(1):
        torch.set_num_threads(1)
        for setting in settings():
            if any(fnmatch(setting.name, pattern) for pattern in arguments.cells.split(",")):
                training.train_cell(setting, lambda line: sys.stderr.write(f"{line}\n"))
                found = cells[setting.name] = result(training.load_cell(setting), method)
                beside = " | ".join(f"{recorded[setting.name]['accuracy'][name]:.1f}" for name in BESIDE)
                sys.stdout.write(f"| {setting.name} | {found['accuracy']:.1f} | {beside} |\n")
                sys.stdout.flush()
    if not cells:
        sys.exit(f"no cell is called {arguments.cells}")
    whole = {"mean": mean(found["accuracy"] for found in cells.values()), "cells": cells, "versions": versions()}
    arguments.method.with_suffix(".json").write_text(as_text(whole))


if __name__ == "__main__":
    main()
