"""Heads in one message: random features, a pretrained body, and a second message, beside fused networks.

``python experiments/one_shot/heads.py`` runs what is missing, cell by cell, and may be stopped and started again;
what ``heads.json`` beside this file has is not run again, unless it is taken out. ``--part random|body|networks`` runs
one part, ``--set NAME`` one set, ``--write`` writes what is there into the file. What a cell is: images divided between
sites by Dirichlet(alpha) of each class (``heads_data.py``); no method sees a test label. Ridges and all other constants
are the library's defaults.

*random*: exact ridge head on 1,800 shared random convolutions. *body*: exact heads on the 84 features of a LeNet
trained on 5,000 other images. *networks*: every site trains a LeNet from a start of its own; the best site, the
library's default, its stationary ensemble weighted by class counts, the exact head of the default by a second message,
and the network of all rows.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

sys.path.append(str(Path(__file__).resolve().parents[1]))
from one_shot.heads_data import CACHE, COUNT, N_CLASSES, SETS, divided, images, random_features
from record import versions

import consilience as cs

HERE = Path(__file__).parent
ALPHAS, SITES, SEEDS = (0.05, 0.1, 0.5), (5, 20), (0, 1, 2)
EPOCHS, BATCH, RATE = 8, 64, 0.05
LEAST_STEPS = 250
"""Steps of a site at least: a site of few rows goes through them more often."""


def cells(
    sets: tuple[str, ...], n_sites: tuple[int, ...], seeds: tuple[int, ...]
) -> Iterator[tuple[str, float, int, int]]:
    """Yield the cells, those of the first seed and of few sites before the others: a part that stops has every row."""
    for seed in seeds:
        for count in n_sites:
            for name in sets:
                for alpha in ALPHAS:
                    yield name, alpha, count, seed


def lenet(shape: tuple[int, ...], seed: int) -> nn.Sequential:
    """Return a LeNet-5 with ReLU, its weights drawn with a seed."""
    channels, side = shape[0], shape[1]
    torch.manual_seed(seed)
    places = ((side - 4) // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * places**2, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
        nn.Linear(84, N_CLASSES),
    )  # fmt: skip


def scaled(x: np.ndarray) -> torch.Tensor:
    """Return images in [0, 1], less a half."""
    return torch.from_numpy(x.astype(np.float32) / 255.0 - 0.5)


def trained(x: np.ndarray, y: np.ndarray, seed: int) -> nn.Sequential:
    """Return a network trained by SGD with momentum 0.9 and a rate that falls to zero along a line."""
    network = lenet(x.shape[1:], seed)
    inputs, labels = scaled(x), torch.from_numpy(y)
    n_steps = max(EPOCHS * -(-len(y) // BATCH), LEAST_STEPS)
    optimiser = torch.optim.SGD(network.parameters(), RATE, momentum=0.9)
    generator = torch.Generator().manual_seed(seed)
    step = 0
    while step < n_steps:
        for rows in torch.randperm(len(y), generator=generator).split(BATCH):
            for group in optimiser.param_groups:
                group["lr"] = RATE * (1.0 - step / n_steps)
            optimiser.zero_grad()
            functional.cross_entropy(network(inputs[rows]), labels[rows]).backward()
            optimiser.step()
            step += 1
            if step == n_steps:
                break
    return network.eval()


def accuracy(module: Any, x: np.ndarray, y: np.ndarray) -> float:
    """Return the percentage of images that a module judges rightly."""
    inputs = scaled(x)
    with torch.no_grad():
        predicted = torch.cat([module(batch).argmax(dim=1) for batch in inputs.split(500)])
    return 100.0 * float((predicted.numpy() == y).mean())


def run_random(name: str, alpha: float, n_sites: int, seed: int) -> dict[str, Any]:
    """Return the exact head on random features, and what it takes."""
    data, features = images(name), random_features(name)
    parts = divided(data.y, alpha, n_sites, seed)
    begin = time.process_time()
    sent = {}
    for number, rows in enumerate(parts):
        head = cs.learners.Head("ridge").fit(features["train"][rows], data.y[rows], classes=N_CLASSES, min_count=0)
        sent[f"site {number:02d}"] = head
    at_sites = time.process_time() - begin
    begin = time.process_time()
    fusion = cs.fuse(sent, min_count=0)
    fusing = time.process_time() - begin
    path = CACHE / "message.safetensors"
    cs.save(sent["site 00"], path, min_count=0)
    result = {
        "accuracy": 100.0 * float((fusion.model.predict(features["test"]) == data.y_test).mean()),
        "bytes": path.stat().st_size,
        "seconds": {"features": float(features["seconds"]), "sums": at_sites, "fusing": fusing},
    }
    if seed == 0:
        best = max(sent, key=lambda site: sent[site].statistics.n_observations)
        result["largest site"] = 100.0 * float((sent[best].predict(features["test"]) == data.y_test).mean())
    return result


def run_ridge(name: str) -> dict[str, Any]:
    """Return the ridge that held-out error curves choose, and the head with it."""
    data, features = images(name), random_features(name)
    parts = divided(data.y, 0.1, 5, 0)
    sent = [
        cs.learners.Head().fit(features["train"][r], data.y[r], classes=N_CLASSES, min_count=0, held_out=0.1)
        for r in parts
    ]
    fusion = cs.fuse(sent, min_count=0)
    curves = [head.error_curve(fusion) for head in sent]
    ridge = cs.learners.choose_ridge(curves)
    chosen = cs.fuse(sent, min_count=0, ridge=ridge)
    rates = np.sum([curve.n_errors for curve in curves], axis=0) / sum(curve.n for curve in curves)
    return {
        "ridge": ridge,
        "held-out error": dict(
            zip([f"{one:.1g}" for one in curves[0].ridges], (100 * rates).round(2).tolist(), strict=True)
        ),
        "accuracy": 100.0 * float((chosen.model.predict(features["test"]) == data.y_test).mean()),
        "accuracy of the default": 100.0 * float((fusion.model.predict(features["test"]) == data.y_test).mean()),
    }


def body(name: str, seed: int) -> nn.Sequential:
    """Return the network trained on the pretraining part of a set, kept in the cache."""
    data, path = images(name), CACHE / f"body-{name}-{seed}.pt"
    if not path.exists():
        torch.save(trained(data.x_pretraining, data.y_pretraining, 900 + seed).state_dict(), path)
    network = lenet(data.x.shape[1:], 0)
    network.load_state_dict(torch.load(path))
    return network.eval()


def run_body(name: str, alpha: float, n_sites: int, seed: int) -> dict[str, Any]:
    """Return exact heads on the features of a body that was trained on other images."""
    data, network = images(name), body(name, seed)
    frozen = network[:-1].eval()
    parts = divided(data.y, alpha, n_sites, seed)
    x, x_test = scaled(data.x), scaled(data.x_test)
    result: dict[str, Any] = {"its own head": accuracy(network, data.x_test, data.y_test)}
    for kind in ("ridge", "lda", "gaussian_nb"):
        begin = time.process_time()
        sent = [
            cs.learners.Head(kind, features=frozen).fit(x[rows], data.y[rows], classes=N_CLASSES, min_count=0)
            for rows in parts
        ]
        model = cs.fuse(sent, min_count=0).model
        path = CACHE / "message.safetensors"
        cs.save(sent[0], path, min_count=0)
        result[kind] = {
            "accuracy": 100.0 * float((model.predict(x_test) == data.y_test).mean()),
            "bytes": path.stat().st_size,
            "seconds": time.process_time() - begin,
        }
    return result


def run_networks(name: str, alpha: float, n_sites: int, seed: int) -> dict[str, Any]:
    """Return fused networks with and without a second message."""
    data = images(name)
    parts = divided(data.y, alpha, n_sites, seed)
    sites = {f"site {number:02d}": (scaled(data.x[rows]).numpy(), data.y[rows]) for number, rows in enumerate(parts)}
    begin = time.process_time()
    networks = {
        site: trained(data.x[rows], data.y[rows], 100 * seed + number)
        for (number, rows), site in zip(enumerate(parts), sites, strict=True)
    }
    seconds = {"training": time.process_time() - begin}
    pooled_path = CACHE / f"pooled-{name}-{seed}.json"
    if not pooled_path.exists():
        score = accuracy(trained(data.x, data.y, 800 + seed), data.x_test, data.y_test)
        pooled_path.write_text(json.dumps(score))
    scores: dict[str, float] = {"pooled network": json.loads(pooled_path.read_text())}
    scores["best site"] = max(accuracy(network, data.x_test, data.y_test) for network in networks.values())
    begin = time.process_time()
    described = {site: cs.describe(networks[site], sites[site], classes=N_CLASSES) for site in sites}
    fusion = cs.fuse(described)
    seconds["default"] = time.process_time() - begin
    chosen = fusion.verdict.text
    scores["default"] = accuracy(fusion.model, data.x_test, data.y_test)
    scores["class-weighted ensemble"] = accuracy(fusion.ensemble, data.x_test, data.y_test)
    begin = time.process_time()
    message = cs.federated.request("head", fusion)
    answers = {
        site: cs.federated.answer(message, rows, min_count=0, module=fusion.model) for site, rows in sites.items()
    }
    ended = cs.federated.finish(fusion, [cs.federated.reduce(message, answers)])
    seconds["second message"] = time.process_time() - begin
    scores["default, second message"] = accuracy(ended.model, data.x_test, data.y_test)
    matched = cs.fuse(networks, method="consensus", example=torch.zeros(1, *data.x.shape[1:]))
    scores["matched average"] = accuracy(matched.model, data.x_test, data.y_test)
    ended = cs.federated.exchange("head", matched, sites, min_count=0)
    scores["matched average, second message"] = accuracy(ended.model, data.x_test, data.y_test)
    path = CACHE / "network.safetensors"
    first = next(iter(described))
    cs.save(described[first], path)
    n_bytes = {
        "network and description": sum(part.stat().st_size for part in CACHE.glob("network*.safetensors")),
        "request": len(message.data),
        "answer": len(answers[first].data),
    }
    return {"scores": scores, "seconds": seconds, "bytes": n_bytes, "verdict": chosen}


def run_bytes(name: str) -> dict[str, int]:
    """Return the bytes of a second message, which depend on shapes alone."""
    data = images(name)
    x, y = scaled(data.x[:500]).numpy(), data.y[:500]
    networks = [lenet(data.x.shape[1:], seed).eval() for seed in range(2)]
    fusion = cs.fuse(networks, method="consensus", example=torch.zeros(1, *data.x.shape[1:]))
    message = cs.federated.request("head", fusion)
    answer = cs.federated.answer(message, (x, y), min_count=0, module=fusion.model)
    return {"request": len(message.data), "answer": len(answer.data)}


def written(part: str) -> dict[str, Any]:
    """Return the results of a part that ``heads.json`` has."""
    path = HERE / "heads.json"
    found: dict[str, Any] = json.loads(path.read_text()).get(part, {}) if path.exists() else {}
    return found


def remembered(part: str, key: str, work: Any) -> Any:
    """Return a result that is written or kept in the cache, run where it is missing."""
    path = CACHE / "results" / part / f"{key}.json"
    if not path.exists():
        if key in written(part):
            return written(part)[key]
        path.parent.mkdir(parents=True, exist_ok=True)
        begin = time.time()
        path.write_text(json.dumps(work(), indent=1))
        sys.stdout.write(f"{part} {key}: {time.time() - begin:.0f} s {path.read_text()[:400]}\n")
        sys.stdout.flush()
    return json.loads(path.read_text())


def key_of(name: str, alpha: float, n_sites: int, seed: int) -> str:
    """Return the name of a cell."""
    return f"{name}-alpha{alpha:g}-sites{n_sites}-seed{seed}"


def write() -> None:
    """Write all results that there are: those of the cache in place of those that were written before."""
    found: dict[str, Any] = {
        "versions": versions(),
        "features": COUNT,
        "chosen": "the library's defaults; no test label",
    }
    for part in ("random", "body", "networks", "ridge", "bytes", "layers", "noise"):
        folder = CACHE / "results" / part
        cached = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
        found[part] = written(part) | cached
    (HERE / "heads.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def main() -> None:
    """Run what is missing, or write what there is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("random", "body", "networks", "ridge", "bytes"), action="append")
    parser.add_argument("--set", choices=SETS, action="append")
    parser.add_argument("--sites", type=int, action="append")
    parser.add_argument("--seed", type=int, action="append")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    if given.write:
        write()
        return
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    runs = {"random": run_random, "body": run_body, "networks": run_networks}
    sets, counts, seeds = tuple(given.set or SETS), tuple(given.sites or SITES), tuple(given.seed or SEEDS)
    for part in given.part or ("ridge", "bytes", *runs):
        if part in ("ridge", "bytes"):
            for name in sets:
                remembered(part, name, partial(run_ridge if part == "ridge" else run_bytes, name))
            continue
        for cell in cells(sets, counts, seeds):
            remembered(part, key_of(*cell), partial(runs[part], *cell))


if __name__ == "__main__":
    main()
