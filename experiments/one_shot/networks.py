"""One-shot federated fusion of networks: ``python experiments/one_shot/networks.py``.

Networks of one start are trained at 5, 10 and 20 sites that share 20,000 images of Fashion-MNIST (14 x 14), class by
class by a Dirichlet distribution of 0.05, 0.1, 0.3 and 0.5, or alike (IID), and fused once. Every method of the library
that makes one network of them is compared with the best site, the class-weighted ensemble and the network of all
images: the accuracy on 5,000 test images, the bytes that a site sends, and the seconds of processor time at all sites
and at the server. No method sees a test label; the best site is chosen by them, to compare with.

A cell's networks and results are files in ``CONSILIENCE_CACHE``, so that the run may be stopped and started again.
``--cells`` runs a part by name, and ``--write`` adds what was run to ``networks.json`` beside this file, from which
``networks_tables.py`` makes the tables of docs/evidence/one_shot.md. ``--default`` runs the default alone, after its
rule has changed, for ``networks_default.json``. A cell that is recorded there is not run again: take it out of the
file for that. Everything runs on one thread.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from threadpoolctl import threadpool_limits

sys.path.append(str(Path(__file__).resolve().parents[1]))
from network_battery import training
from network_battery.cells import Setting
from network_battery.default import DEFAULTS
from network_battery.scores import site_accuracies
from network_battery.training import outputs, recipe_of
from record import as_text, versions

import consilience as cs

HERE = Path(__file__).parent
RESULTS, OF_DEFAULT = HERE / "networks.json", HERE / "networks_default.json"
ROWS = 20_000
SKEWS = ("0.05", "0.1", "0.3", "0.5", "IID")
SITES = (5, 10, 20)
ARCHITECTURES = {"LeNet": (8, 16, 64), "VGG": (12, 24), "ResNet-8 BN": (8, 16, 32)}
SEEDS = range(3)
MINIMUM_OF_INFORMATION = 80
"""Observations from which Fisher information is computed: every site of a cell has a hundred at least."""
IMPOSSIBLE = {
    ("0.05", 20): "no division gives every one of 20 sites a tenth of the mean number of images",
    ("0.1", 20): "no division gives every one of 20 sites a tenth of the mean number of images",
}
"""Cells that the rule of the battery's divisions cannot draw in practice: ten classes, each at one or two sites."""
CHOSEN = {
    "cells": "common start, Fashion-MNIST 14 x 14 standardised, 20,000 images over all sites",
    "recipes": "those of the first half of experiments/network_battery, by architecture; 8 epochs",
    "division": "each class over sites by a Dirichlet distribution; every site has a tenth of the mean at least",
    "weights": "numbers of observations; Fisher merges sum information over observations",
    "bytes": "files of one site, mean over sites: the network, with the description or the information that is needed",
    "seconds": "processor time, one thread; 'at the sites' without training, over all sites",
    "labels": "no method sees a test label; only the best site is chosen by them, to compare with",
}
SENT = {
    **dict.fromkeys(("average", "rebasin", "ot", "wb", "fedma", "best site"), "network"),
    **dict.fromkeys(("fedfisher", "fedlpa"), "kronecker"),
    **dict.fromkeys(("distill", "default", "class-weighted ensemble"), "described"),
    "fisher": "diagonal",
    "kfac": "described and kronecker",
}
"""What a site sends for each method."""
NEEDS = {"fisher": "diagonal"} | dict.fromkeys(("kfac", "fedfisher", "fedlpa"), "kronecker")
"""Kind of information that a method needs."""


def settings() -> list[Setting]:
    """Return the cells, those of fewest seeds and sites first."""
    return [
        Setting(
            f"one-shot-{architecture}-{skew}-{sites}-{seed}".lower().replace(" ", ""), "tune", 9500 + seed,
            architecture, widths, "fashion_mnist", 14, "standard", "common", skew, sites, ROWS,
        )
        for seed in SEEDS
        for architecture, widths in ARCHITECTURES.items()
        for sites in SITES
        for skew in SKEWS
        if (skew, sites) not in IMPOSSIBLE
    ]  # fmt: skip


def accuracy(cell: training.Cell, module: Any) -> float:
    """Return the share of the test rows that a network answers rightly, in percent."""
    x, y = cell.data.test
    return round(100 * float((outputs(module.eval(), x).argmax(axis=1) == y).mean()), 2)


def bytes_of(values: Sequence[Any]) -> float:
    """Return the bytes of the files of what sites send, mean over sites."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, value in enumerate(values):
            cs.save(value, Path(folder) / f"{number}.safetensors")
        return mean([sum(path.stat().st_size for path in Path(folder).iterdir())]) / len(values)


def results(cell: training.Cell) -> dict[str, Any]:
    """Return accuracies, seconds and bytes of every method on a cell."""
    models, sites = cell.models, cell.data.sites
    n = [len(x) for x, _ in sites]
    scores: dict[str, Any] = {"sites": [accuracy(cell, model) for model in models]}
    seconds: dict[str, float] = {}

    def timed(name: str, make: Callable[[], Any]) -> Any:
        start = time.process_time()
        made = make()
        seconds[name] = round(time.process_time() - start, 2)
        return made

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cs.errors.WithheldWarning)
        described = timed("at the sites: description", lambda: [
            cs.describe(model, site, classes=cell.data.n_classes) for model, site in zip(models, sites, strict=True)
        ])  # fmt: skip
        information: dict[str, Sequence[Any]] = {}
        refused: dict[str, str] = {}
        for kind in ("diagonal", "kronecker"):
            try:
                information[kind] = timed(f"at the sites: {kind}", lambda kind=kind: [
                    cs.fisher(model, torch.from_numpy(x), kind, minimum=MINIMUM_OF_INFORMATION)
                    for model, (x, _) in zip(models, sites, strict=True)
                ])  # fmt: skip
            except cs.ConsilienceError as error:  # of a network of one class that answers it with certainty
                refused[kind] = " ".join(str(error).split())
    kronecker = {"fishers": information.get("kronecker"), "aligned": False}
    calls: Mapping[str, tuple[Sequence[Any], dict[str, Any]]] = {
        "average": (models, {"weights": n}),
        "rebasin": (models, {"weights": n, "example": cell.example, "restarts": 1}),
        "ot": (models, {"weights": n, "example": cell.example}),
        "wb": (models, {"weights": n, "example": cell.example}),
        "fedma": (models, {"weights": n, "example": cell.example}),
        "fisher": (models, {"fishers": information.get("diagonal"), "aligned": False}),
        "kfac": (described, kronecker),
        "fedfisher": (models, kronecker),
        "fedlpa": (models, kronecker),
        "distill": (described, {}),
        "default": (described, {}),
    }
    notes = {name: refused[NEEDS[name]] for name in NEEDS if NEEDS[name] in refused}
    for name, (inputs, options) in calls.items():
        if name in notes:
            continue
        method = None if name == "default" else name
        try:
            fusion = timed(name, lambda i=inputs, m=method, o=options: cs.fuse(i, m, rng=0, **o))
        except (
            cs.ConsilienceError
        ) as error:  # such as Kronecker factors of batch normalisation, which there are none of
            notes[name] = " ".join(str(error).split())
            continue
        scores[name] = accuracy(cell, fusion.model)
    verdict = fusion.verdict
    scores["class-weighted ensemble"] = accuracy(cell, timed("class-weighted ensemble", lambda: fusion.ensemble))
    scores["best site"] = max(scores["sites"])
    scores["pooled"] = round(100 * float((cell.pooled_answers.argmax(axis=1) == cell.data.test[1]).mean()), 2)
    network = bytes_of(models)
    sizes = {"network": network, "described": bytes_of(described)}
    for kind, of_sites in information.items():
        sizes[kind] = network + bytes_of(of_sites)
    if "kronecker" in sizes:
        sizes["described and kronecker"] = sizes["described"] + sizes["kronecker"] - network
    return {
        "accuracy": scores,
        "seconds": seconds,
        "bytes": {name: round(sizes[sent]) for name, sent in SENT.items() if sent in sizes},
        "n": n,
        "training_seconds": cell.seconds,
        "verdict": {"text": verdict.text, "harmless": verdict.harmless, "chosen": fusion.details.get("chosen")},
        "not_run": notes,
    }


def default_alone(cell: training.Cell) -> dict[str, Any]:
    """Return accuracies, seconds and verdict of the default on a cell, as the battery runs it."""
    found = DEFAULTS["default, with"](cell)
    return {
        "default": round(100 * found["accuracy"], 2),
        "sites": [round(100 * accuracy, 2) for accuracy in site_accuracies(cell)],
        "over_best_site": {name: round(100 * value, 2) for name, value in found["over_best_site"].items()},
        "ensemble": round(100 * found["ensemble"]["accuracy"], 2),
        "seconds": round(found["seconds"], 2),
        "training_seconds": [cell.seconds[training.file_name(site)] for site in range(cell.setting.sites)],
        "verdict": {name: found["verdict"][name] for name in ("text", "harmless")},
    }


def say(line: str) -> None:
    """Tell how far the run is."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Run what is missing, and write or print what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", default="*", help="names of the cells to run, with wildcards, separated by commas")
    parser.add_argument("--write", action="store_true", help="write networks.json beside this file")
    parser.add_argument("--default", action="store_true", help="run the default alone, for networks_default.json")
    arguments = parser.parse_args()
    kept = training.CACHE / ("one-shot-default" if arguments.default else "one-shot-results")
    kept.mkdir(parents=True, exist_ok=True)
    recorded = OF_DEFAULT if arguments.default else RESULTS
    cells: dict[str, Any] = json.loads(recorded.read_text())["cells"] if recorded.exists() else {}
    with threadpool_limits(1):
        torch.set_num_threads(1)
        for setting in settings():
            path = kept / f"{setting.name}.json"
            is_asked = any(fnmatch(setting.name, pattern) for pattern in arguments.cells.split(","))
            if is_asked and setting.name not in cells and not path.exists():
                training.train_cell(setting, say, with_pooled=not arguments.default)
                found = (default_alone if arguments.default else results)(training.load_cell(setting))
                stated = {"setting": training.settings_of(setting), "versions": versions()}
                path.write_text(json.dumps(found | stated))
                say(f"{setting.name}: {found['default' if arguments.default else 'accuracy']}")
            if path.exists():
                cells[setting.name] = json.loads(path.read_text())
    if arguments.write and arguments.default:
        OF_DEFAULT.write_text(as_text({"cells": cells, "versions": versions()}))
    elif arguments.write:
        recipes = {
            name: vars(recipe_of(next(s for s in settings() if s.architecture == name))) for name in ARCHITECTURES
        }
        not_run = [setting.name for setting in settings() if setting.name not in cells]
        impossible = {f"Dirichlet {skew}, {sites} sites": why for (skew, sites), why in IMPOSSIBLE.items()}
        whole = {"chosen": CHOSEN, "recipes": recipes, "cells": cells, "not_run": not_run, "not_drawn": impossible}
        RESULTS.write_text(as_text(whole | {"versions": versions()}))


if __name__ == "__main__":
    main()
