"""The described default by seeds of fusing: ``python seeds.py [--cells PATTERN] [--write]``.

A cell's networks and descriptions stay; the synthetic inputs, the order of batches and what else fusing draws change.
Cells of classes of perceptrons, Bayesian networks, and ResNets whose sites differ, by three seeds; those of CIFAR-10
with one set of matched images in place of two besides, and as many steps of distillation. Each cell is kept in
``CONSILIENCE_CACHE``, so that the run may be stopped and started again; ``--write`` writes ``seeds.json``.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any
from unittest.mock import patch

import torch
from threadpoolctl import threadpool_limits

sys.path.append(str(Path(__file__).resolve().parents[1]))
from network_battery import cells, training
from network_battery.default import describe_sites, result_of
from network_battery.run import say
from record import as_text, versions

from consilience.networks.choice import inputs

SEEDS = (0, 1, 2)
ARCHITECTURES = ("MLP", "BNN", "ResNet-8 BN")
RESULTS = Path(__file__).with_suffix(".json")


def outcome(cell: training.Cell, described: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return the points over the best site, the seconds over those of training one, and what was chosen."""
    found = result_of(cell, described, "with", seed)
    of_sites = [cell.seconds[training.file_name(site)] for site in range(cell.setting.sites)]
    chosen = found["verdict"]["text"].partition(", with ")[0].removeprefix("Chosen: ")
    return {
        "over the best site": round(100 * found["over_best_site"]["mean"], 2),
        "time": round(found["seconds"] / mean(of_sites), 2),
        "chosen": "a site's" if found["verdict"]["code"] == "site" else chosen,
    }


def results(cell: training.Cell) -> dict[str, Any]:
    """Return the outcomes of a cell, those with one set of images apart."""
    described, _ = describe_sites(cell)
    found: dict[str, Any] = {"two sets": [outcome(cell, described, seed) for seed in SEEDS]}
    if cell.setting.data == "cifar10" and cell.setting.architecture == "ResNet-8 BN":
        with patch.multiple(inputs, FIT_SETS=1, STEPS=inputs.FIT_SETS * inputs.STEPS):
            found["one set"] = [outcome(cell, described, seed) for seed in SEEDS]
    return found


def settings() -> list[cells.Setting]:
    """Return the cells: of ResNets those whose sites differ, since images are matched for no others."""
    return [
        setting
        for half in cells.HALVES
        for setting in cells.plan(half)
        if setting.architecture in ARCHITECTURES
        and "temperatures" not in setting.data
        and not (setting.architecture == "ResNet-8 BN" and setting.skew in ("IID", "strong and weak"))
    ]


def main() -> None:
    """Run what is missing, and write what is there."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cells", default="*")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    cache = training.CACHE / "seeds"
    cache.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    stamp = versions()
    kept: dict[str, Any] = json.loads(RESULTS.read_text())["cells"] if RESULTS.exists() else {}
    with threadpool_limits(1):
        for setting in settings():
            path = cache / f"{setting.name}.json"
            if fnmatch.fnmatch(setting.name, options.cells) and not path.exists():
                training.train_cell(setting, say, with_pooled=False)
                found = results(training.load_cell(setting)) | {"library_source": stamp["library_source"]}
                path.write_text(json.dumps(found))
                say(f"{setting.name}: {found}")
            if path.exists():
                kept[setting.name] = json.loads(path.read_text())
    if options.write:
        RESULTS.write_text(as_text({"settings": {"seeds": SEEDS}, "cells": kept, "versions": stamp}))


if __name__ == "__main__":
    main()
