"""Cells on which rules of the choice are judged without fusing again: ``python rules.py HALF [--write]``.

Cell k, drawn from seed k alone, is of the half ``tune`` (even k) or ``report`` (odd k), which have the same data and
networks in turn (``KINDS``), other rows, sites and seeds: scikit-learn's sets and two simulated ones, MNIST,
Fashion-MNIST, digits in computer fonts and CIFAR-10, 2 to 8 sites of 15 to 300 rows (400 to 800 of deep networks),
alike, skewed, of unlike sizes or along a direction of the inputs. The harms that it was drawn up after: two plain VGG11
that are alike (docs/evidence/synthetic_inputs.md), breast cancer and iris at tiny sites (``small_sites.py``).

Every cell is fused by the default from full descriptions. What the rule sees (losses of all candidates on all held-out
inputs, efforts, margins, excesses, the ensemble) is kept as an array file in ``CONSILIENCE_CACHE`` beside true
accuracies, so that `judged` gives for any rule what it would have chosen. ``--write`` writes what is kept, by the rule
and by `RULES` that differ from it in one point, to ``rules.json``. Test labels measure, and select only the best
site and the best candidate.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from threadpoolctl import threadpool_limits
from torch import nn

sys.path += [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "kl_fusion")]
from network_battery.architectures import lenet, mlp, vgg
from network_battery.data import SOURCES
from record import as_text, versions

import consilience as cs
from consilience.networks.choice import compare
from consilience.networks.choice.choose import CandidateScores
from consilience.networks.choice.verdict import Choice

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("CONSILIENCE_CACHE", HERE.parent / ".cache")) / "rules"
HALVES = ("tune", "report")
KINDS = (
    ("breast cancer", "MLP"), ("iris", "MLP"), ("fashion_mnist", "VGG"), ("wine", "MLP"), ("sklearn_digits", "MLP"),
    ("mnist", "LeNet"), ("clusters", "MLP"), ("blobs", "MLP"), ("fashion_mnist", "LeNet"), ("font_digits", "MLP"),
    ("fashion_mnist", "MLP"), ("mnist", "VGG"), ("sklearn_digits", "LeNet"), ("cifar10", "LeNet"),
    ("breast cancer", "MLP"),
)  # fmt: skip
N_CELLS = 90
"""Half of them of each half: every kind three times."""
DIVISIONS = ("alike", "alike", "skewed", "by size", "by direction")
SIDES = {"sklearn_digits": 8, "cifar10": 16}
MIN_ROWS, MAX_TEST = 15, 3000


@cache
def image_rows(name: str, half: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return images (n, channels, side, side) in [0, 1] and classes, for sites and for tests."""
    x, y, x_test, y_test = SOURCES[name](half)
    side = SIDES.get(name, 14)

    def reduced(images: np.ndarray) -> np.ndarray:
        factor = images.shape[1] // side
        means = images.reshape(len(images), side, factor, side, factor, -1).mean(axis=(2, 4)) / 255
        return np.ascontiguousarray(np.moveaxis(means, 3, 1)).astype(np.float32)

    return reduced(x[:12_000]), y[:12_000], reduced(x_test[:MAX_TEST]), y_test[:MAX_TEST]


def table_rows(name: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return standardised inputs (n, d) and classes (n,)."""
    if name == "clusters":
        x, y = datasets.make_classification(5000, 12, n_informative=6, n_classes=3, flip_y=0.05, random_state=seed)
    elif name == "blobs":
        x, y = datasets.make_blobs(5000, 6, centers=4, cluster_std=6.0, random_state=seed)
    else:
        load = {"breast cancer": datasets.load_breast_cancer, "wine": datasets.load_wine, "iris": datasets.load_iris}
        x, y = load[name](return_X_y=True)
    return ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32), y.astype(np.int64)


def divide(x: np.ndarray, y: np.ndarray, sites: int, division: str, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the rows of every site."""
    if division == "skewed":
        shares = rng.dirichlet(np.full(sites, rng.choice([0.3, 1.0])), int(y.max()) + 1)
        site = np.array([rng.choice(sites, p=shares[label]) for label in y])
        return [np.flatnonzero(site == number) for number in range(sites)]
    order = rng.permutation(len(y))
    if division == "by direction":  # sites overlap: the noise is as large as the direction varies
        flat = x.reshape(len(x), -1)
        along = flat @ rng.normal(size=flat.shape[1])
        order = np.argsort(along + rng.normal(size=len(x)) * along.std())
    parts = rng.dirichlet(np.full(sites, 2.0)) if division == "by size" else np.full(sites, 1 / sites)
    return np.split(order, np.round(np.cumsum(parts)[:-1] * len(order)).astype(int))


def train(module: nn.Module, x: np.ndarray, y: np.ndarray, epochs: int) -> None:
    """Train a network in place by Adam on batches of 32."""
    inputs, labels = torch.from_numpy(x), torch.from_numpy(y)
    optimiser = torch.optim.Adam(module.parameters(), 2e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(labels)).split(32):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(inputs[batch]), labels[batch]).backward()
            optimiser.step()


def run(number: int) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    """Return what describes a cell, and its arrays; None where fewer than two sites have rows enough."""
    rng = np.random.default_rng([24, number])
    half, (name, kind) = HALVES[number % 2], KINDS[number // 2 % len(KINDS)]
    is_deep = kind == "VGG"
    sites = int(rng.choice([2, 2, 3])) if is_deep else int(rng.choice([2, 3, 4, 5, 8]))
    division, is_common = "alike" if is_deep else str(rng.choice(DIVISIONS)), bool(rng.random() < 0.4)
    most = {"iris": 35, "wine": 60, "breast cancer": 120}.get(name, 300)
    n_rows = int(rng.integers(400, 801)) if is_deep else int(np.exp(rng.uniform(np.log(20), np.log(most))))
    if name in ("breast cancer", "wine", "iris", "clusters", "blobs"):
        x, y = table_rows(name, int(rng.integers(1e6)))
        order = rng.permutation(len(y))
        n_train = min(sites * n_rows, 6 * len(y) // 10)
        x_test, y_test, x, y = x[order[n_train:]], y[order[n_train:]], x[order[:n_train]], y[order[:n_train]]
    else:
        n_rows = n_rows if is_deep else max(n_rows, 60)
        x, y, x_test, y_test = image_rows(name, half)
        chosen = rng.permutation(len(y))[: sites * n_rows]
        x, y = x[chosen], y[chosen]
    parts = [rows for rows in divide(x, y, sites, division, rng) if len(rows) >= MIN_ROWS]
    parts = [rows for rows in parts if np.bincount(y[rows]).max() > 4]
    if len(parts) < 2:
        return None
    n_classes, epochs = int(max(y.max(), y_test.max())) + 1, 10 if is_deep else int(rng.choice([20, 60]))
    widths = {"MLP": [32, 32], "LeNet": [8, 16, 32], "VGG": [8, 16, 16]}[kind]
    modules = []
    for site, rows in enumerate(parts):
        torch.manual_seed(1000 * number + (0 if is_common else site + 1))
        module = {"MLP": mlp, "LeNet": lenet, "VGG": vgg}[kind](x.shape[1:], n_classes, widths)
        train(module, x[rows], y[rows], epochs)
        modules.append(module.eval())
    models = {
        f"site {site}": cs.describe(module, (x[rows], y[rows]), classes=n_classes)
        for site, (module, rows) in enumerate(zip(modules, parts, strict=True))
    }
    choices: list[Choice] = []
    choose = compare.Comparison.choose

    def recorded(comparison: compare.Comparison) -> Choice:
        choices.append(choose(comparison))
        return choices[-1]

    compare.Comparison.choose = recorded  # type: ignore[method-assign]
    start = time.process_time()
    try:
        fusion = cs.fuse(models)
    finally:
        compare.Comparison.choose = choose  # type: ignore[method-assign]
    seconds = time.process_time() - start
    inputs = torch.from_numpy(x_test)

    def is_right(module: nn.Module) -> np.ndarray:
        with torch.no_grad():
            return module(inputs).argmax(dim=1).numpy() == y_test

    of_sites = np.stack([is_right(module) for module in modules])
    cell = {
        "half": half, "data": name, "network": kind, "division": division, "common start": is_common,
        "rows": [len(rows) for rows in parts], "test rows": len(y_test), "seconds": round(seconds, 1),
        "code": fusion.verdict.code, "harmless": fusion.verdict.harmless,
        "own errors": [one.description.own_error if one.description else None for one in models.values()],
    }  # fmt: skip
    arrays = {
        "sites": of_sites, "fused": is_right(fusion.model), "ensemble right": is_right(fusion.ensemble),
    }  # fmt: skip
    if choices:
        choice = choices[-1]
        scores = choice.scores
        if scores is None:
            raise RuntimeError(f"cell {number}: candidates were compared without scores")
        cell |= {
            "names": [one.name for one in choice.candidates], "chosen": choice.taken.name,
            "is labelled": bool(choice.criterion and choice.criterion.is_labelled), "mean gap": scores.mean_gap,
            "is alike": scores.is_alike, "can exclude harm": choice.can_exclude_harm,
        }  # fmt: skip
        arrays |= {key: np.asarray(getattr(scores, key)) for key in _VECTORS if getattr(scores, key) is not None}
        arrays |= {
            "losses": scores.losses.astype(np.float32), "ties": scores.ties.astype(np.float16),
            "right": np.stack([is_right(one.module) for one in choice.candidates]),
        }  # fmt: skip
        if scores.ensemble is not None:
            arrays["ensemble"] = scores.ensemble.astype(np.float32)
    return cell, arrays


_VECTORS = ("efforts", "is_site", "margins", "is_eligible", "gaps", "sizes", "is_fitted")


@dataclass(frozen=True)
class Cell:
    """A cell that was run: what describes it, and its arrays."""

    number: int
    says: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @property
    def scores(self) -> CandidateScores | None:
        """What the rule sees; None where nothing was compared."""
        if "losses" not in self.arrays:
            return None
        said = {key: self.arrays[key].tolist() for key in _VECTORS if key in self.arrays}
        ensemble = self.arrays.get("ensemble")
        return CandidateScores(
            self.arrays["losses"].astype(float), self.arrays["ties"].astype(float), **said,
            mean_gap=self.says["mean gap"], is_alike=self.says["is alike"],
            ensemble=None if ensemble is None else ensemble.astype(float),
        )  # fmt: skip


def kept_cells(half: str) -> list[Cell]:
    """Return the cells of a half that were run."""
    cells = []
    for path in sorted(CACHE.glob("*[0-9].npz"), key=lambda path: int(path.stem)):
        if HALVES[int(path.stem) % 2] == half:
            with np.load(path) as stored:
                arrays = {key: stored[key] for key in stored.files if key != "says"}
                cells.append(Cell(int(path.stem), json.loads(str(stored["says"])), arrays))
    return cells


RULES: dict[str, Callable[[CandidateScores], CandidateScores]] = {
    "the rule": lambda scores: scores,
    "no waiver of margins by the ensemble": lambda scores: replace(scores, ensemble=None),
    "no margins": lambda scores: replace(scores, margins=None),
    "of tied sites the best drawn error": lambda scores: replace(scores, sizes=None),
    "excesses left out": lambda scores: replace(scores, gaps=None, mean_gap=0.0),
}
"""Rules, each by what it makes of that which the rule sees."""


def judged(cell: Cell, rule: str = "the rule") -> dict[str, Any]:
    """Return what a rule chooses in a cell, and how that compares with the best site and the best candidate."""
    scores = None if cell.scores is None else RULES[rule](cell.scores)
    right, harmless, chosen = cell.arrays["fused"], cell.says["harmless"], cell.says.get("chosen", "")
    best_candidate = float(cell.arrays["sites"].mean(axis=1).max())
    if scores is not None:
        number = scores.choose()
        right, chosen = cell.arrays["right"][number], cell.says["names"][number]
        eligible = np.asarray(scores.is_eligible, dtype=bool)
        best_candidate = max(best_candidate, float(cell.arrays["right"][eligible].mean(axis=1).max()))
        harmless = None
        if cell.says["is labelled"] and cell.says["can exclude harm"]:
            harmless = False if scores.is_harmful(number) else scores.is_harmless(number) or None
    of_sites = cell.arrays["sites"].astype(float)
    gain = right - of_sites[of_sites.mean(axis=1).argmax()]
    error = float(gain.std(ddof=1) / len(gain) ** 0.5)
    return {
        "number": cell.number, "chosen": chosen, "accuracy": float(right.mean()), "gain": float(gain.mean()),
        "best site": float(of_sites.mean(axis=1).max()), "mean site": float(of_sites.mean()),
        "best candidate": best_candidate, "ensemble": float(cell.arrays["ensemble right"].mean()),
        "is worse": bool(gain.mean() < -1.96 * error), "is better": bool(gain.mean() > 1.96 * error),
        "harmless": harmless, "compared": scores is not None,
        "labelled": bool(cell.says.get("is labelled", False)),
    }  # fmt: skip


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the table shows of a half."""
    gains = np.array([row["gain"] for row in rows])
    said = [row for row in rows if row["harmless"] is True]
    return {
        "cells": len(rows),
        "labelled": sum(row["labelled"] for row in rows),
        "best site": float(np.mean([row["best site"] for row in rows])),
        "gain": float(gains.mean()),
        "worst": float(gains.min()),
        "ensemble": float(np.mean([row["ensemble"] - row["best site"] for row in rows])),
        "worse": sum(row["is worse"] for row in rows),
        "better": sum(row["is better"] for row in rows),
        "point worse": int((gains < -0.01).sum()),
        "within": float(np.mean([row["best candidate"] - row["accuracy"] <= 0.01 for row in rows])),
        "harmless": len(said),
        "harmless wrong": sum(row["is worse"] for row in said),
        "harmless below": sum(row["gain"] < 0 for row in said),
    }


def main() -> None:
    """Run what is missing of a half, and write what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("half", choices=HALVES)
    parser.add_argument("--cells", type=int, default=N_CELLS, help="of both halves together")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(HALVES.index(options.half), options.cells, 2):
            kept = CACHE / f"{number}.npz"
            if kept.exists() or kept.with_suffix(".none").exists():
                continue
            result = run(number)
            if result is None:
                kept.with_suffix(".none").touch()
                continue
            says, arrays = result
            partial = kept.with_suffix(".part.npz")
            np.savez_compressed(partial, says=np.array(json.dumps(says)), **arrays)
            partial.rename(kept)
            row = judged(Cell(number, says, arrays))
            if options.half == "tune":  # the other half is looked at once, at the end
                sys.stdout.write(f"{number} {json.dumps(says)[:300]} {row}\n")
                sys.stdout.flush()
    if options.write:
        halves = {half: kept for half in HALVES if (kept := kept_cells(half))}
        written = {
            "summary": {
                f"{half}, {rule}": summary([judged(cell, rule) for cell in cells])
                for half, cells in halves.items()
                for rule in RULES
            },
            "cells": {half: [judged(cell) | cell.says for cell in cells] for half, cells in halves.items()},
            "versions": versions(),
        }
        (HERE / "rules.json").write_text(as_text(written))


if __name__ == "__main__":
    main()
