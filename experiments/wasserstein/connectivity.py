"""Barriers before and after alignment, and planes of test error: ``python experiments/wasserstein/connectivity.py``.

Two networks of each pair that ``training.py`` trained, test images, 25 points on the line (11 for convolutional ones);
networks with batch norm have their running statistics measured anew at every point. Planes as in figures 1, 3, 8 and 9
of the paper on WB fusion: base 1, base 2 and base 2 permuted by WB, with the fused networks marked; seed 0. Writes
``connectivity.json`` beside this file, and the planes and the curves of seed 0 as pictures.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import image_data
import numpy as np
import torch
from image_data import ImageData
from torch import nn
from training import CACHE, load_trained, place_of

import consilience as cs
from consilience.networks.landscape.barrier import Barrier
from consilience.networks.landscape.evaluation import Classification, Evaluate
from consilience.networks.landscape.plane import Plane
from consilience.networks.repair.channel_statistics import reestimate_batch_norm

sys.path.append(str(Path(__file__).resolve().parents[1]))
from record import as_text, remembered, versions

HERE = Path(__file__).parent
KINDS = {"mlp_net": 25, "mlp_512": 25, "vgg11": 11, "resnet20": 11}
METHODS = {"WB": "wb", "Re-Basin": "rebasin", "consensus": "consensus"}
SEEDS, STATISTICS, EVALUATED = 5, 1000, 1000
PLANE_POINTS = {"mlp_net": 15, "mlp_512": 15, "vgg11": 9, "resnet20": 9}


def data_of(kind: str) -> ImageData:
    """Return the data that a kind of network is for."""
    return image_data.load_mnist() if kind.startswith("mlp") else image_data.load_cifar10()


def evaluation(kind: str, data: ImageData) -> tuple[Classification, Any]:
    """Return what evaluates networks on test images, and what measures their statistics anew."""
    count = len(data.test) if kind.startswith("mlp") else EVALUATED
    evaluate = Classification(data.test.x[:count], data.test.y[:count])
    if kind != "resnet20":
        return evaluate, None
    inputs = data.train.x[:STATISTICS]

    def refresh(module: nn.Module) -> None:
        module.load_state_dict(reestimate_batch_norm(module, inputs).state_dict())

    return evaluate, refresh


def barriers(kind: str, seed: int) -> dict[str, dict[str, float]]:
    """Return heights of the barrier between two networks, as they are and aligned in several ways."""
    data = data_of(kind)
    models = [load_trained(kind, seed, which) for which in range(2)]
    evaluate, refresh = evaluation(kind, data)
    return barriers_of(models, METHODS, data, f"{kind}-{seed}", evaluate, points=KINDS[kind], refresh=refresh)


def barriers_of(
    models: list[nn.Module], methods: Mapping[str, str], data: Any, name_of_files: str, evaluate: Evaluate, **told: Any
) -> dict[str, dict[str, float]]:
    """Return heights of the barrier between two networks, and keep the curves.

    Parameters
    ----------
    models
        The two.
    methods
        Methods to align them by, by the name they are shown by.
    data
        Samples of their kind.
    name_of_files
        Kind and seed.
    evaluate
        Gives loss and error.
    told
        Options of ``cs.barrier``.
    """
    found = {}
    for name, method in {"as they are": None, **methods}.items():
        pair = models if method is None else aligned(models, method, data)
        barrier = cs.barrier(*pair, evaluate, **told)
        found[name] = summarised(barrier)
        barrier.save(curve_file(name_of_files, name))
    return found


def curve_file(name_of_files: str, alignment: str) -> Path:
    """Return where a curve is kept."""
    return CACHE / "fused" / f"barrier-{name_of_files}-{alignment.replace(' ', '-')}.safetensors"


def aligned(models: list[nn.Module], method: str, data: ImageData) -> list[nn.Module]:
    """Return the first network and the second one permuted to it."""
    told = {"refit": False, "balance": False} if method == "consensus" else {}
    fusion = cs.fuse(models, method, example=data.test.x[:2], reference=0, **told)
    return [models[0], fusion.aligned_models[1]]


def summarised(barrier: Barrier) -> dict[str, float]:
    """Return the heights by the three definitions and the values in the middle."""
    return {
        f"{value}, {definition}": float(height(value))
        for definition, height in (
            ("over the line", barrier.height),
            ("over the worse end", barrier.height_over_maximum),
            ("over the mean", barrier.height_over_mean),
        )
        for value in ("loss", "error")
    }


def plane(kind: str) -> Plane:
    """Return the plane through two networks and the second one permuted by WB, for seed 0."""
    data = data_of(kind)
    models = [load_trained(kind, 0, which) for which in range(2)]
    evaluate, refresh = evaluation(kind, data)
    marked: dict[str, Any] = {"WB": {"method": "wb"}, "consensus": {}}
    return plane_of(models, data, "wb", marked, evaluate, points=PLANE_POINTS[kind], refresh=refresh)


def plane_of(
    models: list[nn.Module], data: Any, method: str, marked: Mapping[str, Any], evaluate: Evaluate, **told: Any
) -> Plane:
    """Return the plane through two networks and the second one permuted by a method.

    Parameters
    ----------
    models
        The two.
    data
        Samples of their kind.
    method
        Aligns the second network to the first.
    marked
        Method and options of fused networks to find in the plane, by the name they are shown by.
    evaluate
        Gives loss and error.
    told
        Options of ``cs.plane``.
    """
    _, permuted = aligned(models, method, data)
    example = data.test.x[:2]
    fused = {name: cs.fuse(models, example=example, reference=0, **one).model for name, one in marked.items()}
    names = ("base 1", "base 2", "base 2, permuted")
    return cs.plane(models[0], models[1], permuted, evaluate, marked=fused, names=names, **told)


def main() -> None:
    """Measure what is trained, and write ``connectivity.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []])
    parser.add_argument("--again", nargs="*", default=[], metavar="KIND")
    told = parser.parse_args()
    torch.set_num_threads(1)
    path, stamp = HERE / "connectivity.json", versions()
    result = json.loads(path.read_text()) if path.exists() else {"kinds": {}}
    for kind in told.kinds or KINDS:
        seeds = [seed for seed in range(SEEDS) if all(place_of(kind, seed, which).exists() for which in range(2))]
        again = {str(seed) for seed in seeds} if kind in told.again else set()

        def work(name: str, kind: str = kind) -> dict[str, Any]:
            return barriers(kind, int(name))

        cache = CACHE / "fused" / f"connectivity-{kind}.json"
        stored = remembered(cache, [str(seed) for seed in seeds], again, stamp["library_source"], work)
        file = CACHE / "fused" / f"plane-{kind}.safetensors"
        if seeds and (kind in told.again or not file.exists()):
            plane(kind).save(file)
        result["kinds"][kind] = {
            "points": KINDS[kind],
            "plane_points": PLANE_POINTS[kind],
            **by_alignment(seeds, stored),
            "plane": marks(Plane.load(file)),
        }
        path.write_text(as_text(result | {"versions": stamp, "settings": settings()}))


def by_alignment(seeds: Sequence[int], stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the seeds, and heights of barriers by alignment and by value, a number a seed."""
    scores = [stored[str(seed)]["scores"] for seed in seeds]
    return {
        "seeds": list(seeds),
        "barriers": {
            name: {value: [one[name][value] for one in scores] for value in heights}
            for name, heights in scores[0].items()
        },
    }


def settings() -> dict[str, Any]:
    """Return what was chosen."""
    return {
        "images": f"MNIST: all for test; CIFAR-10: the first {EVALUATED:,}; statistics on {STATISTICS:,} for training",
        "alignment": "to base 1, without refit and in the scales that the networks have: permutations alone",
        "loss": "mean cross-entropy in nats",
        "error": "percent",
    }


def marks(found: Plane) -> dict[str, Any]:
    """Return where models lie on a plane, and the range of its error."""
    return {
        "error": [float(np.min(found.values["error"])), float(np.max(found.values["error"]))],
        "models": {
            one.name: {"place": [one.alpha, one.beta], "distance": one.distance, **dict(one.values)}
            for one in found.markers
        },
    }


if __name__ == "__main__":
    main()
