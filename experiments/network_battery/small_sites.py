"""Networks of sites of few rows: ``python small_sites.py [--tiny] [--seeds N] [--write]``.

A cell is a data set and a seed, which draws all else: scikit-learn's diabetes, breast cancer, wine, iris and digits,
Friedman's three regressions and a linear one with noise; 3 to 5 sites of 25 to 90 rows in the mean, divided at random,
along a random direction of the inputs, or into sites of unlike sizes; networks of two hidden layers of 16 or 32 units,
from one start or from starts of their own. All columns are standardised over all rows. The other rows are for tests,
1,000 at most: their labels measure, and select only the best site.

Every cell is fused by the default from full descriptions, and from descriptions that say no moments of all inputs where
a site has fewer than 100 rows, as they were before. A cell is kept in ``CONSILIENCE_CACHE``, so that the run may be
stopped and started again; ``--write`` writes ``small_sites.json`` beside this file. The least number of rows was chosen
on seeds of an earlier script; those here were run once, afterwards.

``--tiny`` runs sites of 16 to 31 rows in the mean instead, some of which say nothing of their inputs: of all seeds the
cells in which those that do have half of all rows and less than nine tenths. The second variant is then the fusion
without a choice. The share of a half was chosen on fifteen cells of an earlier script; those here were run once,
afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from threadpoolctl import threadpool_limits
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[1]))
from record import as_text, versions

import consilience as cs
from consilience.networks.choice.inputs import described_share
from consilience.networks.descriptions.description import Description

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("CONSILIENCE_CACHE", HERE.parent / ".cache")) / "small_sites"
REGRESSIONS = ("diabetes", "friedman 1", "friedman 2", "friedman 3", "linear")
NAMES = (*REGRESSIONS, "breast cancer", "wine", "iris", "digits")
DIVISIONS = ("alike", "by direction", "by size")
VARIANTS = ("moments of 20 rows and more", "moments of 100 rows and more")
N_ROWS, N_TINY_ROWS = (25, 91), (16, 32)
FIRST_TINY_SEED = 100
SAID = (0.5, 0.9)
"""Least and most share of rows of sites that describe their inputs, in cells of tiny sites."""
N_SEEDS, N_SIMULATED, MAX_TEST = 4, 1500, 1000
MIN_ROWS = 12
"""Rows of a site at least; of fewer there is no network."""


def rows_of(name: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return standardised inputs (n, d), and classes (n,) or standardised targets (n, 1)."""
    seed = int(rng.integers(1e6))
    if name == "diabetes":
        x, y = datasets.load_diabetes(return_X_y=True)
    elif name == "friedman 1":
        x, y = datasets.make_friedman1(N_SIMULATED, 10, noise=1.5, random_state=seed)
    elif name == "friedman 2":
        x, y = datasets.make_friedman2(N_SIMULATED, noise=100, random_state=seed)
    elif name == "friedman 3":
        x, y = datasets.make_friedman3(N_SIMULATED, noise=0.2, random_state=seed)
    elif name == "linear":
        x, y = datasets.make_regression(N_SIMULATED, 15, n_informative=8, noise=60, random_state=seed)
    elif name == "breast cancer":
        x, y = datasets.load_breast_cancer(return_X_y=True)
    else:
        x, y = {"wine": datasets.load_wine, "iris": datasets.load_iris, "digits": datasets.load_digits}[name](
            return_X_y=True
        )
    deviation = x.std(axis=0)
    x = (x - x.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    y = ((y - y.mean()) / y.std())[:, None].astype(np.float32) if name in REGRESSIONS else y.astype(np.int64)
    return x.astype(np.float32), y


def divide(x: np.ndarray, n_sites: int, division: str, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the rows of every site."""
    order = rng.permutation(len(x))
    if division == "by direction":  # sites overlap: the noise is as large as the direction varies
        order = np.argsort(x @ rng.normal(size=x.shape[1]) + rng.normal(size=len(x)) * x.shape[1] ** 0.5)
    shares = np.full(n_sites, 1.0 / n_sites)
    if division == "by size":
        shares = rng.dirichlet(np.full(n_sites, 3.0))
    parts = np.split(order, np.round(np.cumsum(shares)[:-1] * len(x)).astype(int))
    return parts


def train(module: nn.Module, x: np.ndarray, y: np.ndarray, epochs: int) -> None:
    """Train a network in place by Adam on batches of 16."""
    inputs, targets = torch.from_numpy(x), torch.from_numpy(y)
    loss = nn.functional.mse_loss if targets.is_floating_point() else nn.functional.cross_entropy
    optimiser = torch.optim.Adam(module.parameters(), 5e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(targets)).split(16):
            optimiser.zero_grad()
            loss(module(inputs[batch]), targets[batch]).backward()
            optimiser.step()


def is_between(descriptions: list[Description]) -> bool:
    """Return whether sites describe the inputs of some rows only, and too few by class for a choice by errors."""
    rows = np.array([one.n_observations for one in descriptions])
    said = float(np.average([one.inputs is not None for one in descriptions], weights=rows))
    by_class = float(np.average([described_share(one) for one in descriptions], weights=rows))
    return SAID[0] <= said < SAID[1] and by_class < SAID[1]


def results(name: str, seed: int) -> dict[str, Any] | None:
    """Return the scores of a cell: accuracies, or explained shares of variance; None where it is left out."""
    rng = np.random.default_rng([2026, seed, NAMES.index(name)])
    x, y = rows_of(name, rng)
    is_tiny = seed >= FIRST_TINY_SEED
    n_sites, division = int(rng.choice([3, 4, 5])), str(rng.choice(DIVISIONS))
    n_rows = int(rng.integers(*(N_TINY_ROWS if is_tiny else N_ROWS)))
    is_common, width, epochs = bool(rng.random() < 0.5), int(rng.choice([16, 32])), int(rng.choice([40, 120]))
    order = rng.permutation(len(y))
    n_train = min(n_sites * n_rows, 7 * len(y) // 10)
    train_rows, test_rows = order[:n_train], order[n_train:][:MAX_TEST]
    parts = [train_rows[part] for part in divide(x[train_rows], n_sites, division, rng)]
    # Of a site without a class of five rows nothing can be said.
    parts = [
        rows for rows in parts if len(rows) >= MIN_ROWS and (name in REGRESSIONS or np.bincount(y[rows]).max() > 4)
    ]
    if len(parts) < 2:
        return None
    n_outputs = 1 if name in REGRESSIONS else int(y.max()) + 1
    networks = []
    for site, rows in enumerate(parts):
        torch.manual_seed(100 * seed + (0 if is_common else site + 1))
        module = nn.Sequential(
            nn.Linear(x.shape[1], width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, n_outputs)
        )  # fmt: skip
        train(module, x[rows], y[rows], epochs)
        networks.append(module.eval())
    inputs, targets = torch.from_numpy(x[test_rows]), y[test_rows]

    def scores(module: nn.Module) -> np.ndarray:
        """Return a score (n,) of every test row, whose mean is the accuracy, or R^2."""
        with torch.no_grad():
            answers = module(inputs).numpy()
        if name in REGRESSIONS:
            return 1.0 - np.square(answers - targets).mean(axis=1) / targets.var()
        return (answers.argmax(axis=1) == targets).astype(float)

    of_sites = [scores(module) for module in networks]
    best_site = max(of_sites, key=np.mean)
    described = {
        f"site {site}": cs.describe(module, (x[rows], y[rows]))
        for site, (module, rows) in enumerate(zip(networks, parts, strict=True))
    }
    if is_tiny and not is_between([one.description for one in described.values() if one.description is not None]):
        return None
    found: dict[str, Any] = {
        "data": name, "tiny": is_tiny, "division": division, "rows": [len(rows) for rows in parts],
        "common start": is_common, "width": width, "epochs": epochs, "best site": float(best_site.mean()),
        "mean site": float(np.mean([one.mean() for one in of_sites])),
        "most rows": float(of_sites[int(np.argmax([len(rows) for rows in parts]))].mean()),
    }  # fmt: skip
    for variant, least in zip(VARIANTS, (20, 100), strict=True):
        models = {
            name: one
            if one.description.n_observations >= least
            else replace(one, description=replace(one.description, inputs=None))
            for name, one in described.items()
        }
        fusion = cs.fuse(models)
        gains = scores(fusion.model) - best_site
        error = float(gains.std(ddof=1) / len(gains) ** 0.5)
        found[variant] = {
            "score": float(scores(fusion.model).mean()),
            "is worse": bool(gains.mean() < -1.96 * error),
            "is better": bool(gains.mean() > 1.96 * error),
            "ensemble": float(scores(fusion.ensemble).mean()),
            "code": fusion.verdict.code,
            "harmless": fusion.verdict.harmless,
            "chosen": fusion.details.get("chosen"),
        }
    return found


def summary(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the table shows, for regressions and for classifiers, by variant."""
    rows: dict[str, Any] = {}
    classes = tuple(set(NAMES) - set(REGRESSIONS))
    for kind, names, is_tiny in (
        ("regression", REGRESSIONS, False),
        ("classes", classes, False),
        ("regression of tiny sites", REGRESSIONS, True),
        ("classes of tiny sites", classes, True),
    ):
        of_kind = [cell for cell in cells if cell["data"] in names and cell.get("tiny", False) == is_tiny]
        for variant in VARIANTS if of_kind else ():
            fused = [cell[variant] for cell in of_kind]
            rows[f"{kind}, {variant}"] = {
                "cells": len(of_kind),
                "best site": float(np.mean([cell["best site"] for cell in of_kind])),
                "mean site": float(np.mean([cell["mean site"] for cell in of_kind])),
                "score": float(np.mean([one["score"] for one in fused])),
                "ensemble": float(np.mean([one["ensemble"] for one in fused])),
                "worse": sum(one["is worse"] for one in fused),
                "better": sum(one["is better"] for one in fused),
                "nothing compared": sum(one["code"] == "no_inputs" for one in fused),
                "harmless": sum(one["harmless"] is True for one in fused),
                "harmless wrong": sum(one["harmless"] is True and one["is worse"] for one in fused),
            }
    return rows


def main() -> None:
    """Run what is missing, and write what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=N_SEEDS)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    stamp = versions()
    cells, sources = [], set()
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = FIRST_TINY_SEED if options.tiny else 0
        for seed in range(first, first + options.seeds):
            for name in NAMES:
                kept = CACHE / f"{name.replace(' ', '-')}-{seed}.json"
                if not kept.exists():
                    kept.write_text(json.dumps({"cell": results(name, seed), "source": stamp["library_source"]}))
                    sys.stdout.write(f"{seed} {kept.read_text()[:700]}\n")
                    sys.stdout.flush()
                stored = json.loads(kept.read_text())
                sources.add(stored["source"])
                if stored["cell"]:
                    cells.append(stored["cell"])
    if options.write:
        stored_file = json.loads((HERE / "small_sites.json").read_text())  # the other part stays as it was run
        others = [cell for cell in stored_file["cells"] if cell.get("tiny", False) != options.tiny]
        cells = [*others, *cells] if options.tiny else [*cells, *others]
        sources |= set(stored_file["sources"])
        written = {"summary": summary(cells), "cells": cells, "sources": sorted(sources), "versions": stamp}
        (HERE / "small_sites.json").write_text(as_text(written))


if __name__ == "__main__":
    main()
