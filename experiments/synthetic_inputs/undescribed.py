"""Networks with batch normalisation that nobody describes: ``experiments/synthetic_inputs/undescribed.py``.

ResNet-8 of one start or of starts of their own are trained at sites that have their classes alike, or that differ in
them (a Dirichlet distribution over the sites for each class), and are fused by default from the networks alone. What is
known of the classes is estimated on matched images; a row has the skew of the true and of the estimated counts, the
total variation distance between them (mean over sites), and the accuracy in per cent, on 5,000 test images, of the
sites' networks, of the ensembles by equal weights, by estimated and by true counts, of the default and its candidates.

``tune`` cells shaped the rule (which site may be taken, and by what margin a fused network must be better); ``report``
cells, of other data sets, other widths and other rows, did not. Needs the data sets in ``CONSILIENCE_DATA``; trained
networks are kept in ``CONSILIENCE_CACHE``. Writes ``undescribed.json`` beside this file after every cell, so that the
run may be stopped and started again; ``--cells`` runs a part by name. ``tables.py`` makes the table of
docs/evidence/synthetic_inputs.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from network_battery import training
from network_battery.cells import Setting
from network_battery.training import outputs
from record import as_text, versions

import consilience as cs
from consilience.networks.choice.teacher import stationary_answers
from consilience.networks.classes.shares import class_skew

RESULTS = Path(__file__).with_suffix(".json")
NARROW, WIDE = (8, 16, 32), (16, 32, 64)
ROWS = 10_000
CELLS = {
    "tune": [
        ("fashion_mnist", 14, NARROW, "common", "IID", 2, 777),
        ("fashion_mnist", 14, NARROW, "common", "IID", 5, 777),
        ("fashion_mnist", 14, NARROW, "own", "IID", 4, 777),
        ("fashion_mnist", 14, NARROW, "common", "0.5", 5, 777),
        ("fashion_mnist", 14, NARROW, "common", "0.1", 5, 777),
        ("fashion_mnist", 14, NARROW, "own", "0.5", 3, 777),
        ("fashion_mnist", 14, NARROW, "own", "0.1", 5, 777),
    ],
    "report": [
        ("mnist", 14, NARROW, "own", "IID", 2, 777),
        ("mnist", 14, NARROW, "own", "0.3", 3, 777),
        ("mnist", 14, NARROW, "common", "0.1", 5, 777),
        ("cifar10", 16, NARROW, "own", "0.5", 2, 777),
        ("cifar10", 16, NARROW, "common", "0.5", 5, 777),
        ("cifar10", 16, NARROW, "own", "IID", 3, 778),
        ("fashion_mnist", 14, WIDE, "own", "0.3", 2, 778),
        ("fashion_mnist", 14, WIDE, "common", "0.3", 5, 778),
        ("digits_and_clothes", 14, NARROW, "own", "IID", 3, 778),
        ("digits_and_clothes", 14, NARROW, "own", "0.3", 3, 778),
    ],
}
"""Data set, side of its images, widths, start, skew, sites and seed, by half."""


def settings() -> list[Setting]:
    """Return the cells."""
    return [
        Setting(
            f"undescribed-{half}-{data}-{widths[0]}-{start}-{skew}-{sites}-{seed}", half, seed, "ResNet-8 BN", widths,
            data, side, "standard", start, skew, sites, ROWS,
        )
        for half, cells in CELLS.items()
        for data, side, widths, start, skew, sites, seed in cells
    ]  # fmt: skip


def results(cell: training.Cell) -> dict[str, Any]:
    """Return what is estimated of the classes, and accuracies."""
    x, y = cell.data.test

    def accuracy(answers: np.ndarray) -> float:
        return round(100 * float((answers.argmax(axis=1) == y).mean()), 2)

    probabilities = np.stack(
        [torch.as_tensor(outputs(model.eval(), x)).softmax(dim=1).numpy() for model in cell.models]
    )
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the verdict is recorded
        fusion = cs.fuse(list(cell.models), example=cell.example, rng=0)
    seconds = time.process_time() - started
    n_sites = len(cell.models)
    estimated = np.array([fusion.details["estimated_classes"][f"model {site}"] for site in range(n_sites)])
    counts = cell.data.counts
    true = counts / counts.sum(axis=1, keepdims=True)
    sites = [accuracy(of_site) for of_site in probabilities]
    scores = dict(fusion.verdict.candidates)
    candidates = {name: accuracy(outputs(net.eval(), x)) for name, net in fusion.candidates.items()}
    fused = {name: scores[name] for name in candidates if not name.startswith("site:")}
    return {
        "skew": {"true": round(class_skew(counts), 3), "estimated": round(class_skew(estimated), 3)},
        "distance": round(float(0.5 * np.abs(estimated - true).sum(axis=1).mean()), 3),
        "sites": sites,
        "ensembles": {
            "equal": accuracy(probabilities.mean(axis=0)),
            "estimated": accuracy(outputs(fusion.ensemble, x)),
            "true": accuracy(stationary_answers(probabilities, counts.astype(float), [False] * n_sites)),
        },
        "default": accuracy(outputs(fusion.model.eval(), x)),
        "chosen": fusion.details["chosen"],
        "fused": candidates[min(fused, key=fused.__getitem__)],
        "candidates": candidates,
        "scores": scores,
        "harmless": fusion.verdict.harmless,
        "seconds": round(seconds, 1),
    }


def run(description: str | None, path: Path, cells: list[Setting], results_of: Callable[[Setting], Any]) -> None:
    """Run the cells that are asked for and missing in a file, and write it after each."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default="*", help="names of the cells to run, with wildcards")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    whole: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"cells": {}}
    for setting in cells:
        if setting.name in whole["cells"] or not fnmatch(setting.name, arguments.cells):
            continue
        training.train_cell(setting, lambda line: sys.stdout.write(f"{line}\n"))
        found = results_of(setting)
        sys.stdout.write(f"{setting.name}: {found}\n")
        sys.stdout.flush()
        whole["cells"][setting.name] = found | {"setting": training.settings_of(setting)}
        whole["versions"] = versions()
        path.write_text(as_text(whole))


if __name__ == "__main__":
    run(__doc__, RESULTS, settings(), lambda setting: results(training.load_cell(setting)))
