"""Small networks of tabular data, where classes are often no Gaussians: ``python tabular.py START END [--write]``.

Cell k, drawn from seed k alone: one of twelve data sets in turn (scikit-learn's digits, breast cancer, scaled and raw,
wine, and simulated moons, rings, spirals, products of signs, clusters, Gaussian quantiles, counts, and columns of mixed
kinds), half of the rows for tests; 2 to 8 sites, Dirichlet 0.1 to 100 over labels; networks of two hidden layers (ReLU,
GELU, tanh, batch or layer normalisation, SiLU with dropout) of 16 to 64 units, from one start or from starts of their
own. Rules were judged on cells 0 to 143: parts of classes by the errors of networks on 0 to 71, and when 72 to 143 had
been run once (one verdict of harmless was wrong, where a network of one class had shown no gap), by densities too.
Cells 144 to 215 were run once, afterwards; both halves were looked at before rows of numbers were fitted further
from alike sites than images and texts are (``networks/choice/make_candidates.py``). Cells 216 to 287 shaped nothing;
all cells were in sight when a site's network was no longer kept for the gap where classes differ.

Every cell is fused by the default from full descriptions, and from descriptions with one Gaussian for each class; those
from 216 on from full descriptions as images are too, which changes alike sites alone. Test labels measure, and
select only the best site and the best candidate. A cell is kept in ``CONSILIENCE_CACHE``, so that the run may be
stopped and started again; ``--write`` writes ``tabular.json`` beside this file, over the same cells.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from sklearn import datasets
from threadpoolctl import threadpool_limits
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[1]))
from record import as_text, versions

import consilience as cs
from consilience.networks.choice import inputs as compared
from consilience.networks.classes.shares import MAX_SKEW_OF_ALIKE, class_skew

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("CONSILIENCE_CACHE", HERE.parent / ".cache")) / "tabular"
N_TUNE, N_SEEN, N_CELLS = 144, 216, 288
"""Cells on which rules were judged, those that were looked at when a later one was, and all."""
SKEWS = (0.1, 0.3, 1, 100)
"""Parameters of Dirichlet distributions over labels; sites of the largest are called IID."""
MIN_ROWS = 25
"""Rows of a site at least; of fewer there is no network."""
NAMES = (
    "digits", "breast cancer", "raw breast cancer", "wine", "moons", "rings", "spirals", "products", "clusters",
    "quantiles", "counts", "mixed columns",
)  # fmt: skip
KINDS = ("relu", "gelu", "tanh", "relu-bn", "relu-ln", "silu-drop")
ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh, "silu": nn.SiLU}
VARIANTS = ("described", "one Gaussian a class")
NEAR = "near sites alone"


def rows_of(name: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs (n, d) and classes (n,)."""
    seed, n = int(rng.integers(1e6)), 3000
    if name == "digits":
        x, y = datasets.load_digits(return_X_y=True)
        x = x / 16
    elif name in ("breast cancer", "raw breast cancer", "wine"):
        x, y = (datasets.load_wine if name == "wine" else datasets.load_breast_cancer)(return_X_y=True)
        x = x if name.startswith("raw") else (x - x.mean(axis=0)) / x.std(axis=0)
    elif name == "moons":
        x, y = datasets.make_moons(n, noise=0.25, random_state=seed)
    elif name == "rings":
        x, y = datasets.make_circles(n, noise=0.12, factor=0.5, random_state=seed)
    elif name == "spirals":
        turn, y = rng.uniform(0.3, 3, n) * np.pi, rng.integers(0, 3, n)
        angle = turn + y * 2 * np.pi / 3
        x = np.stack([turn * np.cos(angle), turn * np.sin(angle)], axis=1) / 6 + rng.normal(0, 0.04, (n, 2))
    elif name == "products":
        x = rng.normal(size=(n, 6))
        y = (x[:, 0] * x[:, 1] > 0) + 2 * (x[:, 2] * x[:, 3] > 0)
    elif name == "clusters":
        x, y = datasets.make_classification(
            4000, 20, n_informative=8, n_classes=5, n_clusters_per_class=2, class_sep=1.2, random_state=seed
        )
    elif name == "quantiles":
        x, y = datasets.make_gaussian_quantiles(n_samples=n, n_features=5, n_classes=4, random_state=seed)
    elif name == "counts":
        words, y = rng.dirichlet(np.full(40, 0.2), 4), rng.integers(0, 4, n)
        x = np.array([rng.multinomial(12, words[label]) for label in y])
    else:
        y = rng.integers(0, 3, n)
        shares, shifts = 0.2 + 0.5 * rng.random((3, 8)), rng.normal(size=(3, 4))
        x = np.hstack([rng.random((n, 8)) < shares[y], np.exp(rng.normal(size=(n, 4)) + 0.8 * shifts[y])])
    return x.astype(np.float32), y.astype(np.int64)


def network(kind: str, n_inputs: int, n_classes: int, width: int) -> nn.Sequential:
    """Return a network of two hidden layers."""
    activation = ACTIVATIONS[kind.partition("-")[0]]
    norms: dict[str, list[nn.Module]] = {"bn": [nn.BatchNorm1d(width)], "ln": [nn.LayerNorm(width)]}
    norm = norms.get(kind.partition("-")[2], [])
    dropout = [nn.Dropout(0.3)] if kind.endswith("drop") else []
    return nn.Sequential(
        nn.Linear(n_inputs, width), *norm, activation(), *dropout, nn.Linear(width, width), activation(),
        nn.Linear(width, n_classes),
    )  # fmt: skip


def train(module: nn.Module, x: np.ndarray, y: np.ndarray, epochs: int) -> None:
    """Train a network in place by Adam on batches of 32."""
    inputs, labels = torch.from_numpy(x), torch.from_numpy(y)
    optimiser = torch.optim.Adam(module.parameters(), 5e-3)
    module.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(labels)).split(32):
            if len(batch) > 1:
                optimiser.zero_grad()
                nn.functional.cross_entropy(module(inputs[batch]), labels[batch]).backward()
                optimiser.step()
    module.eval()


def results(number: int) -> dict[str, Any] | None:
    """Return the accuracies of a cell; None where fewer than two sites have rows enough."""
    rng = np.random.default_rng(number)
    name, kind = NAMES[number % len(NAMES)], KINDS[int(rng.integers(len(KINDS)))]
    n_sites, skew = int(rng.choice([2, 3, 5, 8])), float(rng.choice(SKEWS))
    is_common, width, epochs = bool(rng.random() < 0.6), int(rng.choice([16, 32, 64])), int(rng.choice([8, 25]))
    x, y = rows_of(name, rng)
    n_classes, order = int(y.max()) + 1, rng.permutation(len(x))
    train_rows, test_rows = np.split(order, [len(x) // 2])
    shares = rng.dirichlet(np.full(n_sites, skew), n_classes)
    site_of = np.array([rng.choice(n_sites, p=shares[label]) for label in y[train_rows]])
    rows = [train_rows[site_of == site] for site in range(n_sites)]
    rows = [of_site for of_site in rows if len(of_site) >= MIN_ROWS]
    if len(rows) < 2:
        return None
    torch.manual_seed(number)
    networks = []
    for of_site in rows:
        if is_common:
            torch.manual_seed(number)
        module = network(kind, x.shape[1], n_classes, width)
        train(module, x[of_site], y[of_site], epochs)
        networks.append(module)
    inputs, labels = torch.from_numpy(x[test_rows]), y[test_rows]

    def is_right(module: nn.Module) -> np.ndarray:
        with torch.no_grad():
            return module(inputs).argmax(dim=1).numpy() == labels

    start = time.process_time()
    described = [cs.describe(net, (x[of_site], y[of_site])) for net, of_site in zip(networks, rows, strict=True)]
    seconds = time.process_time() - start
    found: dict[str, Any] = {
        "data": name, "network": kind, "sites": len(rows), "skew": skew, "common start": is_common, "width": width,
        "best site": max(float(is_right(net).mean()) for net in networks), "describe seconds": round(seconds, 2),
        "split": sum(bool(one.description and one.description.class_mixtures) for one in described),
    }  # fmt: skip
    right_by_site = [is_right(net) for net in networks]
    best_site = max(right_by_site, key=lambda right: right.mean())
    for variant in (*VARIANTS, *((NEAR,) if number >= N_SEEN else ())):
        models = described
        if variant == "one Gaussian a class":
            models = [replace(one, description=replace(one.description, class_mixtures={})) for one in described]
        with kept_near_sites() if variant == NEAR else nullcontext():
            fusion = cs.fuse(models)
        right = is_right(fusion.model)
        lost = best_site.astype(float) - right
        error = float(lost.std(ddof=1) / len(lost) ** 0.5)
        found[variant] = {
            "accuracy": float(right.mean()),
            "ensemble": float(is_right(fusion.ensemble).mean()),
            "best candidate": max((float(is_right(one).mean()) for one in fusion.candidates.values()), default=0.0),
            "is worse": bool(lost.mean() > 1.96 * error),
            "harmless": fusion.verdict.harmless,
            "chosen": fusion.details.get("chosen"),
        }
    return found


@contextmanager
def kept_near_sites() -> Iterator[None]:
    """Fit of alike sites only what is half of the way from one of them, as of images and texts."""
    draw = compared._draw

    def drawn(described: Sequence[Any], *rest: Any) -> compared.ChoiceInputs | None:
        found = draw(described, *rest)
        if found is None or found.held.labels is None:
            return found
        counted = [one.class_counts for one in described if one.class_counts is not None]
        return replace(found, keeps_near_sites=class_skew(counted) < MAX_SKEW_OF_ALIKE)

    with patch.object(compared, "_draw", drawn):
        yield


def summary(cells: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Return, for every part of the cells and every variant, what the table shows; and the gains of IID sites."""
    parts = {"tune": range(N_TUNE), "report": range(N_TUNE, N_SEEN), "fresh": range(N_SEEN, N_CELLS)}
    halves = {name: [cells[number] for number in part if number in cells] for name, part in parts.items()}
    rows: dict[str, Any] = {}
    for half, of_half in halves.items():
        for variant in (variant for variant in (*VARIANTS, NEAR) if of_half and variant in of_half[0]):
            gains = np.array([cell[variant]["accuracy"] - cell["best site"] for cell in of_half])
            best = np.array([max(cell[variant]["best candidate"], cell["best site"]) for cell in of_half])
            said = [cell for cell in of_half if cell[variant]["harmless"] is True]
            iid = gains[[cell["skew"] == max(SKEWS) for cell in of_half]]
            rows[f"{half}, {variant}"] = {
                "cells": len(of_half),
                "gain": 100 * float(gains.mean()),
                "gain error": 100 * float(gains.std(ddof=1) / len(gains) ** 0.5),
                "not worse": float(np.mean([not cell[variant]["is worse"] for cell in of_half])),
                "within a point": float(np.mean(best - [c[variant]["accuracy"] for c in of_half] <= 0.01)),
                "ensemble": 100 * float(np.mean([c[variant]["ensemble"] - c["best site"] for c in of_half])),
                "harmless": len(said),
                "harmless wrong": sum(cell[variant]["is worse"] for cell in said),
                "IID cells": len(iid),
                "IID gain": 100 * float(iid.mean()),
                "IID least gain": 100 * float(iid.min()),
            }
    return rows


def main() -> None:
    """Run what was asked for, and write what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("start", type=int, nargs="?", default=0)
    parser.add_argument("end", type=int, nargs="?", default=N_CELLS)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    stamp = versions()
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(asked.start, asked.end):
            kept = CACHE / f"{number}.json"
            if not kept.exists():
                kept.write_text(json.dumps({"cell": results(number), "source": stamp["library_source"]}))
                sys.stdout.write(f"{number} {kept.read_text()[:400]}\n")
                sys.stdout.flush()
    if asked.write:
        path = HERE / "tabular.json"
        recorded = json.loads(path.read_text()) if path.exists() else {"cells": {}, "sources": []}
        kept_cells = {kept.stem: json.loads(kept.read_text()) for kept in CACHE.glob("*.json")}
        cells = recorded["cells"] | {number: one["cell"] for number, one in kept_cells.items() if one["cell"]}
        cells = {number: cells[number] for number in sorted(cells, key=int)}
        written = {
            "summary": summary({int(number): cell for number, cell in cells.items()}),
            "cells": cells,
            "sources": sorted({*recorded["sources"], *(one["source"] for one in kept_cells.values())}),
            "versions": stamp,
        }
        path.write_text(as_text(written))


if __name__ == "__main__":
    main()
