"""Merging three ConvNets (table 2, figure 3 of Recasens et al.): ``python experiments/fisher/convnets.py``.

Settings ``published`` and ``parties`` of ``convnet_recipes.py``, on MNIST and Fashion-MNIST. Shrinkage, damping and
what is done about the prior are chosen by the mean validation loss of two seeds, for every method, setting and set of
images; the other seeds see the chosen variants alone. Scores are kept in the cache folder, so that the run may be
stopped and started again; the result is ``convnets.json`` beside this file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import product
from statistics import mean
from typing import Any

import convnet_recipes
import numpy as np
import torch
from comparing import FISHER, WITH_PRIOR, choices, key_of, rows, sources, versions, write
from convnet_recipes import DATASETS, MODELS, WEIGHT_DECAY, ImageData
from record import remembered
from torch import nn
from train_convnets import CACHE, SEEDS, load_trained, record_of, trained_seeds
from training import scores

import consilience as cs
from consilience.errors import InputError

SOURCE = versions()["library_source"]
"""The state of the library that this process has loaded."""
IMAGES, RANK, CHOOSING = 500, 256, (0, 1)
WINDOWED, FEW = "SSF, window of 5,000", (0, 1, 2)
WINDOW = {"mask_rate": 0.16, "window": 5000, "masks": 30, "tolerance": 1e-3}
COUNTERPARTS = {
    **dict.fromkeys(("low rank", "SSF", WINDOWED), WITH_PRIOR),
    **dict.fromkeys(("low rank, normalised", "SSF, normalised"), f"{WITH_PRIOR}, normalised"),
}
"""Diagonal merges that were offered the same ways with the prior and with scales."""
CHOSEN = {
    "published": "table 2 and figure 3 of the paper on self-supervised Fisher merging",
    "training": "architecture and one start as published; data and hyper-parameters of the models: we chose",
    "information": f"{RANK} directions (the library now allows 125 of 500 images) and the residual diagonal, exact"
    f" expectation over {IMAGES} training images of each site, scaled up to all of them; the diagonal is of the same"
    " images",
    "prior precision": "number of training images times weight decay; 'damping' multiplies it",
    "normalised": "each site's information divided by the norm of its diagonal, as Matena and Raffel's code does; of"
    " low rank and SSF in the published setting only",
    "chosen": f"variants by the mean validation loss (5,000 images) of seeds {CHOOSING[0]} and {CHOOSING[-1]}."
    " Damping 100 of low rank and SSF was added after first test results had been seen, since the diagonal had it",
    "SSF": "20 % masked, 10 masks, each parameter masked twice, no window, exact minimum to 1e-3",
    WINDOWED: f"800 of 5,000 masked, as published; 30 masks where the published descent draws 200 in every step; exact"
    f" minimum to 1e-3; seeds {FEW[0]} to {FEW[-1]}",
}
Variant = tuple[str, dict[str, Any], float, bool]
"""The library's method, its options, by how much the prior's precision is multiplied, and whether sites are scaled."""


def shrunk(told: Iterable[tuple[float, float, str]], scaled: bool) -> dict[str, Variant]:
    """Return variants of the low-rank merge by shrinkage, damping, and what is done about the prior."""
    return {
        f"shrinkage {shrinkage}, prior {prior}, damping {damping:g}": (
            "fisher",
            {"structure": "low_rank", "shrinkage": shrinkage, "prior": prior, "tolerance": 1e-4},
            damping,
            scaled,
        )
        for shrinkage, damping, prior in told
    }


def _damped(scaled: bool) -> dict[str, Variant]:
    ways = (*product(("kept", "removed"), (1.0, 10.0)), ("kept", 100.0))
    return {
        f"prior {prior}, damping {damping:g}": ("fisher", {"structure": "diagonal", "prior": prior}, damping, scaled)
        for prior, damping in ways
    }


def _ssf(shrinkages: Iterable[float], scaled: bool, damping: float = 10.0) -> dict[str, Variant]:
    return {
        f"shrinkage {shrinkage}, prior kept, damping {damping:g}": (
            "ssf",
            {"mask_rate": 0.2, "masks": 10, "tolerance": 1e-3, "shrinkage": shrinkage, "prior": "kept"},
            damping,
            scaled,
        )
        for shrinkage in shrinkages
    }


def variants(setting: str) -> dict[str, dict[str, Variant]]:
    """Return methods and their variants, normalised ones too where some networks were trained longer than others."""
    told = ((0.0, 10.0, "kept"), (0.5, 10.0, "kept"), (0.5, 10.0, "removed"), (0.9, 10.0, "removed"))
    found: dict[str, dict[str, Variant]] = {
        "isotropic": {"": ("fisher", {"structure": "isotropic"}, 1.0, False)},
        FISHER: {"": ("fisher", {"structure": "diagonal"}, 1.0, False)},
        WITH_PRIOR: _damped(scaled=False),
        "Fisher diagonal, normalised": {"": ("fisher", {"structure": "diagonal", "normalize": True}, 1.0, False)},
        "low rank": shrunk(told, False),
        "SSF": _ssf((0.0, 0.5), False),
        WINDOWED: {"": ("ssf", {**WINDOW, "shrinkage": 0.5, "prior": "kept"}, 10.0, False)},
    }
    if setting == "published":
        more = ((0.5, 100.0, "kept"),)
        found["low rank"] |= shrunk(more, False)
        found[f"{WITH_PRIOR}, normalised"] = _damped(scaled=True)
        found["low rank, normalised"] = shrunk((*told, *more), True)
        found["SSF, normalised"] = _ssf((0.5,), True) | _ssf((0.5,), True, 100.0)
    return found


@lru_cache(maxsize=1)
def prepared(
    setting: str, dataset: str, seed: int
) -> tuple[list[nn.Module], list[cs.results.FisherInformation], ImageData]:
    """Return the networks of a seed, what each site sends with its own, and images."""
    networks, infos = load_trained(setting, dataset, seed), []
    for which, network in enumerate(networks):
        data = convnet_recipes.recipe(setting, dataset, which).data(seed, which)
        n = len(data.train)
        some = torch.from_numpy(np.random.default_rng([13, seed, which]).permutation(n)[:IMAGES])
        told = {"rank": RANK, "n_observations": n, "prior_precision": n * WEIGHT_DECAY}
        infos.append(cs.fisher(network, data.train.x[some], kind="factors", **told))
    return networks, infos, data


def norm_of(info: cs.results.FisherInformation) -> float:
    """Return the Euclidean norm of the diagonal."""
    return float(torch.cat([values.double().flatten() for values in info.diagonal.values()]).norm())


def scored(setting: str, dataset: str, seed: int, variant: Variant, **told: Any) -> dict[str, Any]:
    """Return validation and test scores of one merge; an infinite loss where the objective has no minimum."""
    method, options, damping, scaled = variant
    networks, infos, data = prepared(setting, dataset, seed)
    given: dict[str, Any] = {**options, **told}
    if options.get("structure") != "isotropic":
        given["fishers"] = [replace(one, prior_precision=damping * one.prior_precision) for one in infos]
    if scaled:
        given["weights"] = [1.0 / norm_of(one) for one in infos]
    if given.get("prior") == "removed":
        given["prior_precision"] = damping * mean(one.prior_precision for one in infos)
    try:
        fusion = cs.fuse(networks, method, rng=seed, **given)
    except InputError as error:
        bad = {"loss": np.inf, "accuracy": 0.0}
        return {"validation": bad, "test": bad, "refused": str(error)}
    both = {"validation": brief(fusion.model, data.validation), "test": brief(fusion.model, data.test)}
    return {**both, "status": fusion.status.name}


def brief(network: nn.Module, images: Any) -> dict[str, float]:
    """Return loss in nats and accuracy in percent."""
    found = scores(network, images)
    return {"loss": found["loss"], "accuracy": 100.0 * found["accuracy"]}


def base(setting: str, dataset: str, seed: int) -> dict[str, Any]:
    """Return test scores of the base networks."""
    own = [record_of(setting, dataset, seed, which) for which in range(MODELS)]
    return {
        "each": [{"loss": one["test"]["loss"], "accuracy": 100.0 * one["test"]["accuracy"]} for one in own],
        "images": [one["rows"] for one in own],
    }


def merged(setting: str, dataset: str, seed: int, wanted: Mapping[str, Variant], again: set[str]) -> dict[str, Any]:
    """Return scores of some variants by key, remembered ones too."""

    def work(key: str) -> dict[str, Any]:
        found = base(setting, dataset, seed) if key == "base" else scored(setting, dataset, seed, wanted[key])
        shown = found["test"]["loss"] if "test" in found else mean(one["loss"] for one in found["each"])
        sys.stdout.write(f"{setting} {dataset} {seed} {key}: {shown:.4f}\n")
        sys.stdout.flush()
        return found

    place = CACHE / "merged" / f"{setting}-{dataset}-{seed}.json"
    return remembered(place, ["base", *wanted], again, SOURCE, work)


def base_rows(by_seed: Mapping[int, Any]) -> dict[str, list[float]]:
    """Return mean and best scores of the base networks, a value a seed."""
    each = [found["base"]["scores"]["each"] for found in by_seed.values()]
    return {
        "loss": [mean(one["loss"] for one in own) for own in each],
        "best": [min(one["loss"] for one in own) for own in each],
        "accuracy": [mean(one["accuracy"] for one in own) for own in each],
        "best accuracy": [max(one["accuracy"] for one in own) for own in each],
    }


def wanted(offered: Mapping[str, Mapping[str, Variant]], done: Mapping[int, Any], seed: int) -> dict[str, Variant]:
    """Return which variants a seed sees, by key: all of them, or those that were chosen by the first seeds."""
    if seed in CHOOSING:
        return {key_of(method, name): one for method, own in offered.items() for name, one in own.items()}
    picked = choices(offered, done, CHOOSING)
    names = {method: own["chosen"] for method, own in picked.items() if method != WINDOWED or seed in FEW}
    return {key_of(method, name): offered[method][name] for method, name in names.items()}


def summary(offered: Mapping[str, Mapping[str, Variant]], by_seed: Mapping[int, Any]) -> dict[str, Any]:
    """Return what is written down of one setting and set of images."""
    picked = choices(offered, by_seed, [seed for seed in CHOOSING if seed in by_seed])
    return {
        "seeds": list(by_seed),
        "sources": sources(by_seed),
        "base": base_rows(by_seed),
        "methods": rows(picked, by_seed, COUNTERPARTS),
    }


def main() -> None:
    """Merge what is not merged yet, and write ``convnets.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", nargs="*", default=[], metavar="KEY")
    parser.add_argument("--most", type=int, default=SEEDS, help="seeds, from 0")
    told = parser.parse_args()
    torch.set_num_threads(1)
    offered = {setting: variants(setting) for setting in ("published", "parties")}
    found: dict[tuple[str, str], dict[int, Any]] = {part: {} for part in product(offered, DATASETS)}
    for seed in range(told.most):
        for (setting, dataset), done in found.items():
            if seed in trained_seeds(setting, dataset):
                seen = wanted(offered[setting], done, seed)
                done[seed] = merged(setting, dataset, seed, seen, set(told.again))
        parts = {f"{setting}-{dataset}": summary(offered[setting], done) for (setting, dataset), done in found.items()}
        write("convnets", {"settings": CHOSEN, "choosing": list(CHOOSING), "parts": parts})


if __name__ == "__main__":
    main()
