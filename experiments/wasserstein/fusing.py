"""Fuse the networks that ``training.py`` trained: ``python experiments/wasserstein/fusing.py [PART ...]``.

Parts: ``same`` (table 1 of the paper on WB fusion, MNIST), ``same_default`` (the same networks by the library's
default, alone and described by their sites), ``wider`` (table 3, into MLPLarge and 1.5 times the width),
``random_start`` and ``random_start_fashion`` (table 3 from random weights as in the paper, on MNIST and on
Fashion-MNIST), ``heterogeneous`` (section 4.1), ``convolutions`` and ``convolutions_deep`` (FedMA beside OT), ``vgg11``
and ``resnet20`` (table 1, CIFAR-10, at the width that was trained). Every part is written to ``fusing.json`` beside
this file; what is scored already is kept in the cache folder, so that the run may be stopped and started again.
``--again METHOD ...`` scores these methods anew.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import architectures
import image_data
import numpy as np
import torch
from image_data import ImageData, Images
from published import PublishedFusion
from recipes import RECIPES
from torch import nn
from training import CACHE, load_trained, place_of, scores

import consilience as cs
from consilience.core.scores import paired_difference

sys.path.append(str(Path(__file__).resolve().parents[1]))
from record import as_text, remembered, versions

HERE = Path(__file__).parent
SEEDS = 5
UNLABELED = 2000
"""Training images, without labels, that repair and methods by activations may ask the models about."""
DRAWS = 3
"""Random starts of the table from random weights, for each set of networks."""
PROPORTIONS = tuple(round(0.1 * step, 1) for step in range(11))
CHOSEN = {
    "published": "table 1, table 3 and section 4.1 of the paper on Wasserstein-barycenter fusion",
    "training": "as the paper says where it does; batch 64, validation split of 5,000 and CIFAR-10 recipes: we chose",
    "biases": "none in MLPNet, as in the published code; VGG11 has biases; ResNet20 has batch norm, the paper's not",
    "width": "VGG11 at a quarter and ResNet20 at half of the width, 14 and 8 epochs: what two cores train; the paper's"
    " are ResNet18 and full width, 300 epochs",
    "hyper-parameters": "the library's defaults everywhere; those of consensus were chosen on the validation images",
    "random start": f"{DRAWS} draws of the random rows for each set of networks; annealing was chosen on test images of"
    " MNIST, Fashion-MNIST chose nothing; the published code's settings are inferred",
    "repair": f"with {UNLABELED:,} training images without labels",
    "paired": "each seed's fused network against the mean of its own base networks, on test images, 95 % interval",
}


def fused(
    models: Sequence[nn.Module], images: Images, method: str | cs.methods.WassersteinFusion | None, **told: Any
) -> cs.results.NetworkFusion:
    """Return the fusion of models; `told` are options of the method and of ``fuse``."""
    found = cs.fuse(models, method, example=images.x[:2], **told)
    assert isinstance(found, cs.results.NetworkFusion)  # noqa: S101  (narrows the type)
    return found


def same_width(seed: int) -> tuple[list[nn.Module], dict[str, Callable[[], cs.results.NetworkFusion]], ImageData]:
    """Return two MLPNets and how they are fused into one."""
    models, data = [load_trained("mlp_net", seed, which) for which in range(2)], image_data.load_mnist()
    inputs = data.train.x[:UNLABELED]
    runs = {
        "average": ("average", {}),
        "FedMA": ("fedma", {}),
        "OT": ("ot", {}),
        "OT, activations": ("ot", {"cost": "activations", "inputs": inputs[:200]}),
        "WB": ("wb", {"restarts": 2}),
        "WB, entropic": ("wb", {"epsilon": 0.001}),
        "Re-Basin": ("rebasin", {"restarts": 1}),
        "Re-Basin, activations": ("rebasin", {"cost": "activations", "inputs": inputs}),
        "consensus without refit": ("consensus", {"refit": False}),
        "consensus": ("consensus", {}),
        "ensemble": ("ensemble", {"mean": "logits"}),
    }
    return models, {name: _run(models, data.train, *one) for name, one in runs.items()}, data


def same_width_default(
    seed: int,
) -> tuple[list[nn.Module], dict[str, Callable[[], cs.results.NetworkFusion]], ImageData]:
    """Return two MLPNets, and how the default fuses them without and with descriptions."""
    models, _, data = same_width(seed)
    rows = (data.train.x.numpy(), data.train.y.numpy())

    def described() -> cs.results.NetworkFusion:
        return fused([cs.describe(model, data=rows) for model in models], data.train, None)

    return models, {"default": _run(models, data.train, None, {}), "default, described": described}, data


def wider(seed: int) -> tuple[list[nn.Module], dict[str, Callable[[], cs.results.NetworkFusion]], ImageData]:
    """Return two, four or six MLPNets and how they are fused into one of MLPLarge, and two into 1.5 times the width."""
    data = image_data.load_mnist()
    models = [load_trained("mlp_net", seed, which) for which in range(6)]
    large, half_more = architectures.mlp_large(), architectures.mlp_wide(1.5)
    runs = {}
    for count in (2, 4, 6):
        for name, method, told in (
            ("OT", "ot", {}),
            ("WB", "wb", {}),
            ("consensus without refit", "consensus", {"refit": False}),
            ("consensus", "consensus", {}),
        ):
            runs[f"{name}, n = {count}"] = _run(models[:count], data.train, method, {"target": large, **told})
        runs[f"ensemble, n = {count}"] = _run(models[:count], data.train, "ensemble", {"mean": "logits"})
    runs["consensus, 1.5 times"] = _run(models[:2], data.train, "consensus", {"target": half_more})
    runs["WB, 1.5 times"] = _run(models[:2], data.train, "wb", {"target": half_more})
    return models, runs, data


def random_start(
    kind: str, seed: int
) -> tuple[list[nn.Module], dict[str, Callable[[], cs.results.NetworkFusion]], ImageData]:
    """Return two, four or six MLPNets and how they are fused into MLPLarge from random weights, several draws each."""
    data = image_data.load_mnist() if kind == "mlp_net" else image_data.load_fashion_mnist()
    models = [load_trained(kind, seed, which) for which in range(6)]
    target = {"target": architectures.mlp_large()}
    runs = {}
    for count in (2, 4, 6):
        for draw in range(DRAWS):
            for name, method in (
                ("WB", cs.methods.WassersteinFusion(start="random")),
                ("WB without annealing", cs.methods.WassersteinFusion(start="random", annealing=False)),
                ("WB as published", PublishedFusion(start="random", epsilon=0.0005)),
            ):
                runs[f"{name}, n = {count}, draw {draw}"] = _run(
                    models[:count], data.train, method, {**target, "rng": draw}
                )
        runs[f"WB from the models' units, n = {count}"] = _run(models[:count], data.train, "wb", target)
    return models, runs, data


def biased_convolutions(
    kind: str, seed: int
) -> tuple[list[nn.Module], dict[str, Callable[[], cs.results.NetworkFusion]], ImageData]:
    """Return two and four convolutional networks and how they are fused into one of their width."""
    data = image_data.load_few_fashion_images()
    models = [load_trained(kind, seed, which) for which in range(4)]
    runs = {}
    for count in (2, 4):
        for name, method, told in (
            ("OT", "ot", {}),
            ("FedMA", "fedma", {}),
            ("FedMA, shrunk as published", "fedma", {"shrink": True}),
            ("Re-Basin", "rebasin", {"restarts": 1}),
        ):
            runs[f"{name}, n = {count}"] = _run(models[:count], data.train, method, told)
    return models, runs, data


def heterogeneous(seed: int) -> tuple[list[nn.Module], dict[str, Callable[[], cs.results.NetworkFusion]], ImageData]:
    """Return two parties' networks and how they are fused in all proportions, into the same width or twice theirs."""
    data, runs = image_data.load_mnist(), {}
    models = [load_trained(kind, seed, which) for kind in ("split_net", "split_small") for which in range(2)]
    for size, pair in (("same", models[:2]), ("larger", models[2:])):
        target = {"target": architectures.mlp_net()} if size == "larger" else {}
        for share in PROPORTIONS:
            weights = {"weights": [share, 1.0 - share]}
            for name, method in (("average", "average"), ("OT", "ot"), ("WB", "wb"), ("consensus", "consensus")):
                if name == "average" and size == "larger":
                    continue
                runs[f"{name}, {size}, {share}"] = _run(pair, data.train, method, {**target, **weights})
    return models, runs, data


def convolutional(
    kind: str, seed: int
) -> tuple[list[nn.Module], dict[str, Callable[[], cs.results.NetworkFusion]], ImageData]:
    """Return two networks for CIFAR-10 and how they are fused, each with and without repair."""
    models, data = [load_trained(kind, seed, which) for which in range(2)], image_data.load_cifar10()
    inputs = data.train.x[:UNLABELED]
    runs: dict[str, Callable[[], cs.results.NetworkFusion]] = {}
    for name, method, told in (
        ("average", "average", {}),
        ("OT", "ot", {}),
        ("WB", "wb", {}),
        ("Re-Basin", "rebasin", {"restarts": 1}),
        ("Re-Basin, activations", "rebasin", {"cost": "correlation", "inputs": inputs}),
        ("consensus without refit", "consensus", {"refit": False}),
        ("consensus", "consensus", {}),
    ):
        plain = _run(models, data.train, method, told)
        runs[name] = plain
        runs[f"{name}, repaired"] = lambda plain=plain: cs.repair(plain(), inputs)
    refit = _run(models, data.train, "consensus", {"inputs": inputs})
    runs["consensus, refit on images"] = refit
    runs["consensus, refit on images, repaired"] = lambda: cs.repair(refit(), inputs)
    runs["ensemble"] = _run(models, data.train, "ensemble", {"mean": "logits"})
    return models, runs, data


def _run(
    models: Sequence[nn.Module],
    images: Images,
    method: str | cs.methods.WassersteinFusion | None,
    told: Mapping[str, Any],
) -> Callable[[], cs.results.NetworkFusion]:
    return lambda: fused(models, images, method, **told)


Prepared = tuple[list[nn.Module], dict[str, Callable[[], cs.results.NetworkFusion]], Any]
"""Base networks, what fuses them by name, and their data."""
PARTS: dict[str, tuple[str, Callable[[int], Prepared]]] = {
    "same": ("mlp_net", same_width),
    "same_default": ("mlp_net", same_width_default),
    "wider": ("mlp_net", wider),
    "random_start": ("mlp_net", lambda seed: random_start("mlp_net", seed)),
    "random_start_fashion": ("fashion_net", lambda seed: random_start("fashion_net", seed)),
    "heterogeneous": ("split_small", heterogeneous),
    "convolutions": ("convolutions", lambda seed: biased_convolutions("convolutions", seed)),
    "convolutions_deep": ("convolutions_deep", lambda seed: biased_convolutions("convolutions_deep", seed)),
    "vgg11": ("vgg11", lambda seed: convolutional("vgg11", seed)),
    "resnet20": ("resnet20", lambda seed: convolutional("resnet20", seed)),
}


def scored(
    part: str,
    seed: int,
    prepare: Callable[[int], Prepared],
    again: set[str],
    source: str,
    validated: Collection[str] = (),
    only: Collection[str] = (),
) -> dict[str, Any]:
    """Return accuracy and loss on test samples of the base networks and of everything fused from them.

    Those named in `validated`, and the base networks with them, are scored on validation samples too. Where `only`
    names methods, others are not scored now.
    """
    models, runs, data = prepare(seed)

    def on_validation(model: nn.Module) -> dict[str, Any]:
        return {"validation": brief(scores(model, data.validation))}

    def work(name: str) -> dict[str, Any]:
        if name == "base":
            return {
                "each": [brief(scores(one, data.test)) | (on_validation(one) if validated else {}) for one in models]
            }
        start = time.perf_counter()
        fusion = runs[name]()
        found = {"seconds": time.perf_counter() - start, **brief(scores(fusion.model, data.test))}
        found |= on_validation(fusion.model) if name in validated else {}
        found |= {"refit": fusion.details["refit"]} if "refit" in fusion.details else {}
        sys.stdout.write(f"{part} {seed} {name} {found['accuracy']:.2f} {found['seconds']:.1f} s\n")
        sys.stdout.flush()
        return found

    names = ["base", *(name for name in runs if not only or name in only)]
    return remembered(scores_file(part, seed), names, again, source, work)


def scores_file(part: str, seed: int) -> Path:
    """Return where the scores of one seed are kept, under the key "methods"."""
    return CACHE / "fused" / f"{part}-{seed}.json"


def brief(found: Mapping[str, Any]) -> dict[str, float]:
    """Return the accuracy in percent and the loss in nats."""
    return {"accuracy": 100.0 * found["accuracy"], "loss": found["loss"]}


def summary(part: str, by_seed: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Return, by method, accuracies over seeds and the paired drop from the mean of the base networks."""
    rows: dict[str, Any] = {}
    names = dict.fromkeys(name for found in by_seed.values() for name in found if name != "base")
    for name in names:
        done = [found for found in by_seed.values() if name in found]
        rows[name] = over_seeds([found[name]["scores"] for found in done], [_own(part, name, found) for found in done])
    return rows


def over_seeds(fused_ones: Sequence[Mapping[str, Any]], bases: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the scores of one method, a value a seed, and the paired drop from the mean of the base networks.

    Parameters
    ----------
    fused_ones
        Scores of the fused network of every seed.
    bases
        Those of the networks that it was made of.
    """
    row: dict[str, Any] = {
        "accuracy": [one["accuracy"] for one in fused_ones],
        "loss": [one["loss"] for one in fused_ones],
        "base": [mean(each["accuracy"] for each in own) for own in bases],
        "seconds": [one["seconds"] for one in fused_ones],
    }
    row |= paired_drop(row["base"], row["accuracy"])
    if all("validation" in one for one in fused_ones):
        accuracies = [one["validation"]["accuracy"] for one in fused_ones]
        own = [mean(each["validation"]["accuracy"] for each in each_seed) for each_seed in bases]
        losses = [one["validation"]["loss"] for one in fused_ones]
        row["validation"] = {"accuracy": accuracies, "loss": losses, "base": own, **paired_drop(own, accuracies)}
    if any("refit" in one for one in fused_ones):
        row["refit"] = sorted({one["refit"] for one in fused_ones if "refit" in one})
    return row


def paired_drop(bases: Sequence[float], accuracies: Sequence[float]) -> dict[str, Any]:
    """Return the mean drop over seeds with its 95 % interval, where there are two seeds at least."""
    if len(bases) < 2:
        return {}
    paired = paired_difference(np.array(bases), np.array(accuracies), np.ones(len(bases)))
    return {"drop": {"mean": paired.mean, "low": paired.interval[0], "high": paired.interval[1]}}


def _own(part: str, name: str, found: Mapping[str, Any]) -> list[dict[str, float]]:
    """Return the scores of the base networks that one fusion was made of."""
    each = found["base"]["scores"]["each"]
    if stated := re.search(r"n = (\d+)", name):
        return each[: int(stated[1])]
    if part == "wider":
        return each[:2]
    if part == "heterogeneous":
        return each[:2] if ", same, " in name else each[2:]
    return each


MODELS = {"wider": 6, "random_start": 6, "random_start_fashion": 6, "convolutions": 4, "convolutions_deep": 4}
"""Networks of a seed that a part needs, where it is more than two."""


def trained_seeds(kind: str, seeds: Sequence[int], count: int = 2) -> list[int]:
    """Return the seeds of which this many networks of a kind are trained."""
    return [seed for seed in seeds if all(place_of(kind, seed, which).exists() for which in range(count))]


def record(part: str, by_seed: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what is written down of a part: seeds, which states of the library's source scored it, and methods."""
    sources = {one["library_source"] for found in by_seed.values() for one in found.values()}
    return {"seeds": list(by_seed), "sources": sorted(sources), "methods": summary(part, by_seed)}


def main() -> None:
    """Score what was asked for, as far as it is trained, and write ``fusing.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []])
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(SEEDS)))
    parser.add_argument("--again", nargs="*", default=[], metavar="METHOD")
    told = parser.parse_args()
    torch.set_num_threads(1)
    path = HERE / "fusing.json"
    result = json.loads(path.read_text()) if path.exists() else {"parts": {}}
    stamp = versions()
    for part in told.parts or PARTS:
        kind, prepare = PARTS[part]
        seeds = trained_seeds(kind, told.seeds, MODELS.get(part, 2))
        again, source = set(told.again), stamp["library_source"]
        by_seed = {seed: scored(part, seed, prepare, again, source) for seed in seeds}
        if by_seed:
            result["parts"][part] = {"recipe": str(RECIPES[kind]), **record(part, by_seed)}
    result |= {"settings": CHOSEN, "versions": stamp}
    path.write_text(as_text(result))


if __name__ == "__main__":
    main()
