"""Merging by Kronecker factors on skewed image sites: ``python experiments/network_battery/kronecker.py``.

MLPs and LeNets of one start on Fashion-MNIST (14 x 14), five sites with 10,000 rows, Dirichlet 0.1 and 0.5, seeds 0 to
2: the average by numbers of observations, the diagonal Fisher merge, K-FAC at every damping and at the one that is
chosen without labels, FedFisher, FedLPA, the default with and without the factors of layers, beside the best site and
the ensemble. Test labels measure, and select only the best site and the best damping that others are compared with.
Networks and results of single cells are kept in ``CONSILIENCE_CACHE``, so that the run may be stopped and started
again; ``--write`` writes ``kronecker.json`` beside this file.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from threadpoolctl import threadpool_limits

sys.path.append(str(Path(__file__).resolve().parents[1]))
from network_battery import training
from network_battery.cells import Setting
from record import as_text, versions

import consilience as cs

HERE = Path(__file__).parent
SEEDS = range(3)
SKEWS = ("0.1", "0.5")
ARCHITECTURES = {"MLP": (80, 40), "LeNet": (8, 16, 64)}
DAMPINGS = (0.01, 0.1, 1.0, 10.0)
CHOSEN = {
    "cells": "common start, 5 sites, 10,000 rows, standardised 14 x 14 images; recipes of the battery's first half",
    "damping": "chosen without labels on inputs drawn from the sites' class moments; 'best damping' by test accuracy",
    "weights": "numbers of observations; the diagonal Fisher merge sums information over observations",
    "fedfisher": "2,000 steps of Adam at 0.001, Adam's own rate and the library's default; 0.01 is listed beside",
    "labels": "no method sees a test label; the best site and the best damping are chosen by them, to compare with",
}


def settings() -> list[Setting]:
    """Return the cells."""
    return [
        Setting(
            f"kronecker-{architecture.lower()}-{skew}-{seed}", "tune", 9000 + seed, architecture, widths,
            "fashion_mnist", 14, "standard", "common", skew, 5, 10_000,
        )
        for architecture, widths in ARCHITECTURES.items()
        for skew in SKEWS
        for seed in SEEDS
    ]  # fmt: skip


def accuracy(cell: training.Cell, module: Any) -> float:
    """Return the share of the test rows that a network answers rightly, in percent."""
    x, y = cell.data.test
    with torch.no_grad():
        return 100 * float((training.outputs(module.eval(), x).argmax(axis=1) == y).mean())


def results(cell: training.Cell) -> dict[str, Any]:
    """Return the accuracy of every method on a cell, and seconds of processor time beside."""
    models, sites = cell.models, cell.data.sites
    scores: dict[str, Any] = {"sites": [accuracy(cell, model) for model in models]}
    seconds: dict[str, float] = {}

    def timed(name: str, make: Callable[[], Any]) -> Any:
        start = time.process_time()
        made = make()
        seconds[name] = round(time.process_time() - start, 2)
        return made

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cs.errors.WithheldWarning)
        described, plain = (
            timed(name, lambda layers=layers: [
                cs.describe(model, site, classes=cell.data.n_classes, layers=layers)
                for model, site in zip(models, sites, strict=True)
            ])
            for name, layers in (("describe", True), ("describe without layers", False))
        )  # fmt: skip
        kronecker, diagonal = (
            timed(f"fisher {kind}", lambda kind=kind: [
                cs.fisher(model, torch.from_numpy(x), kind, minimum=80)
                for model, (x, _) in zip(models, sites, strict=True)
            ])
            for kind in ("kronecker", "diagonal")
        )  # fmt: skip
    n = [len(x) for x, _ in sites]

    def fused(name: str, inputs: Any, **options: Any) -> cs.results.NetworkFusion:
        fusion = timed(name, lambda: cs.fuse(inputs, rng=0, **options))
        scores[name] = accuracy(cell, fusion.model)
        return fusion

    fused("average", models, method="average", weights=n)
    fused("diagonal", models, method="fisher", fishers=diagonal, aligned=False)
    for damping in DAMPINGS:
        fused(f"kfac {damping:g}", models, method="kfac", damping=damping, fishers=kronecker, aligned=False)
    chosen = fused("kfac", described, method="kfac", fishers=kronecker, aligned=False)
    scores["damping"] = chosen.details["damping"]
    fused("fedlpa", models, method="fedlpa", fishers=kronecker, aligned=False)
    for rate in (0.01, 0.001):
        fused(f"fedfisher {rate:g}", models, method="fedfisher", learning_rate=rate, fishers=kronecker, aligned=False)
    for name, inputs in (("default", described), ("default without layers", plain)):
        default = fused(name, inputs)
        scores[f"{name}: candidates"] = {
            candidate: accuracy(cell, module)
            for candidate, module in default.candidates.items()
            if not candidate.startswith("site:")
        }
        scores[f"{name}: chosen"] = default.details["chosen"]
    with torch.no_grad():
        scores["ensemble"] = accuracy(cell, default.ensemble)
    return {"accuracy": scores, "seconds": seconds, "n": n}


def summary(cells: dict[str, Any]) -> dict[str, Any]:
    """Return means and deviations over seeds, by architecture and skew."""
    table: dict[str, Any] = {}
    for architecture in ARCHITECTURES:
        for skew in SKEWS:
            found = [
                cells[name]["accuracy"]
                for seed in SEEDS
                if (name := f"kronecker-{architecture.lower()}-{skew}-{seed}") in cells
            ]
            if not found:
                continue
            rows = {key: [float(of[key]) for of in found] for key in found[0] if isinstance(found[0][key], float | int)}
            rows["best site"] = [max(of["sites"]) for of in found]
            rows["regmean"] = [of["default: candidates"]["regmean"] for of in found]
            rows["best damping"] = [max(of[f"kfac {damping:g}"] for damping in DAMPINGS) for of in found]
            table[f"{architecture}, Dirichlet {skew}"] = {
                key: {"mean": round(mean(values), 2), "sd": round(stdev(values), 2) if len(values) > 1 else None,
                      "seeds": len(values)}
                for key, values in rows.items()
            }  # fmt: skip
    return table


def main() -> None:
    """Run what is missing, print the means, and write them if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write kronecker.json beside this file")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="of these only the first ones")
    arguments = parser.parse_args()
    kept = training.CACHE / "kronecker-results"
    kept.mkdir(parents=True, exist_ok=True)
    cells: dict[str, Any] = {}
    with threadpool_limits(1):
        torch.set_num_threads(1)
        for setting in sorted(settings(), key=lambda one: one.seed):
            path = kept / f"{setting.name}.json"
            if setting.seed - 9000 < arguments.seeds and not path.exists():
                training.train_cell(setting, lambda line: sys.stdout.write(f"{line}\n"))
                path.write_text(json.dumps(results(training.load_cell(setting))))
                sys.stdout.write(f"{setting.name} done\n")
            if path.exists():
                cells[setting.name] = json.loads(path.read_text())
    table = summary(cells)
    sys.stdout.write(json.dumps(table, indent=1) + "\n")
    if arguments.write:
        whole = {"chosen": CHOSEN, "summary": table, "cells": cells, "versions": versions()}
        (HERE / "kronecker.json").write_text(as_text(whole))


if __name__ == "__main__":
    main()
