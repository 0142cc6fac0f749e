"""Choice at the sites on the battery: the default's candidates compared on rows that sites held out, by two forms.

Then with the exact head of all sites' training rows (``head``) before it.

``python experiments/network_battery/at_sites.py --half report`` runs what is missing, each cell into a file of its own
in ``CONSILIENCE_CACHE``; ``--write`` writes all that is there to ``at_sites.json``. Networks are those of ``run.py``.

A site's held-out rows, a tenth as many as it trained on, 50 at least and 500 at most, are drawn from one half of the
test rows with the site's shares of classes; the other half scores. Cells without classes are left out, and those of
Bayesian networks.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

sys.path.append(str(Path(__file__).resolve().parents[1]))
from network_battery import cells, training
from network_battery.default import describe_sites
from record import as_text, versions

import consilience as cs
from consilience.api.at_sites import choose_at_sites
from consilience.api.kinds import NETWORKS
from consilience.core.held_out import MAX_HELD_OUT, MIN_HELD_OUT, SHARE
from consilience.errors import ConsilienceError

HERE = Path(__file__).parent


def held_out_rows(cell: training.Cell, rng: np.random.Generator) -> tuple[dict[str, Any], np.ndarray]:
    """Return rows of every site by name, and the numbers of the test rows that score."""
    x, y = cell.data.test
    order = rng.permutation(len(y))
    to_hold, to_score = order[: len(y) // 2], order[len(y) // 2 :]
    held = {}
    for number, counts in enumerate(cell.data.counts):
        n = int(np.clip(round(SHARE * counts.sum()), MIN_HELD_OUT, MAX_HELD_OUT))
        shares = counts / counts.sum()
        of_class = np.bincount(y[to_hold], minlength=len(shares))
        weights = (shares / np.maximum(of_class, 1))[y[to_hold]]
        rows = to_hold[rng.choice(len(to_hold), size=n, replace=True, p=weights / weights.sum())]
        held[f"site {number}"] = (torch.as_tensor(x[rows]), torch.as_tensor(y[rows]))
    return held, to_score


def run(cell: training.Cell, rng: np.random.Generator) -> dict[str, Any]:
    """Return the accuracies of the default and of the choice at the sites in both forms."""
    held, rows = held_out_rows(cell, rng)
    x, y = cell.data.test

    def accuracy(model: Any) -> float:
        return float((training.outputs(model, x[rows]).argmax(axis=1) == y[rows]).mean())

    described, _ = describe_sites(cell)
    sites = [accuracy(model) for model in cell.models]
    start = time.process_time()
    fusion = cs.fuse(described)
    record: dict[str, Any] = {
        "sites": sites,
        "held out": [len(labels) for _, labels in held.values()],
        "seconds of the default": time.process_time() - start,
        "default": {"accuracy": accuracy(fusion.model), "chosen": fusion.details["chosen"]},
    }
    record["default"]["better on synthetic inputs"] = "it is better than every" in fusion.verdict.text

    def with_head() -> Any:
        trained = dict(zip(held, cell.data.sites, strict=True))
        return cs.federated.exchange("head", fusion, trained, module=dict(zip(held, cell.models, strict=True)))

    for name, choose in (
        ("shared", lambda: choose_at_sites(NETWORKS, fusion, held)),
        ("not shared", lambda: cs.federated.exchange("choose", fusion, held)),
        ("head", with_head),
        ("head, shared", lambda: choose_at_sites(NETWORKS, with_head(), held)),
        ("head, not shared", lambda: cs.federated.exchange("choose", with_head(), held)),
    ):
        start = time.process_time()
        try:
            chosen = choose()
        except ConsilienceError as error:
            record[name] = {"refused": str(error)}
            continue
        record[name] = {
            "accuracy": accuracy(chosen.model),
            "chosen": chosen.details["chosen"],
            "harmless": chosen.verdict.harmless,
            "seconds": time.process_time() - start,
        }
    return record


def main() -> None:
    """Run what is missing, or write what is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=cells.HALVES)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    folder = training.CACHE / "at_sites"
    folder.mkdir(parents=True, exist_ok=True)
    if options.write:
        rows = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
        (HERE / "at_sites.json").write_text(as_text({"versions": versions(), "cells": rows}))
        return
    with threadpool_limits(1):
        for number, setting in enumerate(cells.plan(options.half)):
            path = folder / f"{setting.name}.json"
            if (
                (path.exists() and "head" in json.loads(path.read_text()))
                or setting.architecture == "BNN"
                or not (training.folder_of(setting) / "outputs.npz").exists()
            ):
                continue
            cell = training.load_cell(setting)
            if cell.data.n_classes is None:
                continue
            record = {"name": setting.name, "half": options.half} | run(cell, np.random.default_rng([number, 50]))
            path.write_text(json.dumps(record))
            best = max(record["sites"])
            shown = {
                name: round(100 * (record[name].get("accuracy", best) - best), 2)
                for name in ("default", "shared", "not shared", "head", "head, shared", "head, not shared")
            }
            sys.stdout.write(
                f"{setting.name} {shown} {record['shared'].get('harmless')} {record['not shared'].get('harmless')}\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
