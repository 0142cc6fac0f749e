"""Barriers and planes of recurrent networks.

``python experiments/wasserstein/recurrent/connectivity_recurrent.py [KIND ...]`` measures the line between two
networks, 11 points and 2,000 test samples, as they are and with the second one aligned to the first by WB, GWB and
consensus, and planes as in figures 3, 8, 10, 11 and 12 of the paper on WB fusion: base 1, base 2 and base 2 aligned by
GWB, 11 x 11 points and 1,000 test samples, seed 0. Frozen word vectors, which all networks share, are no part of a line
or a plane. Writes ``planes_recurrent.json`` beside this file; what is measured is kept in the cache folder.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from connectivity import barriers_of, by_alignment, marks, plane_of
from fusing import trained_seeds
from image_data import SPLIT_SEED
from recipes import RECIPES
from recurrent.cells import KINDS, PUBLISHED_KINDS
from training import CACHE, load_trained, scores

from consilience.networks.landscape.plane import Plane

sys.path.append(str(Path(__file__).resolve().parents[2]))
from record import as_text, remembered, versions

HERE = Path(__file__).parent
METHODS = {"WB": "wb", "GWB": "gwb", "consensus": "consensus"}
SEEDS, ON_LINE, ON_PLANE, POINTS = 3, 2_000, 1_000, 11


def evaluation(samples: Any, count: int) -> Callable[[nn.Module], Mapping[str, float]]:
    """Return what gives loss and error of a network on some samples, drawn once for all."""
    order = np.random.default_rng(SPLIT_SEED).permutation(len(samples))
    part = samples.at(np.sort(order[:count]))

    def evaluate(network: nn.Module) -> dict[str, float]:
        found = scores(network, part)
        return {"loss": found["loss"], "error": 100.0 - 100.0 * found["accuracy"]}

    return evaluate


def barriers(kind: str, seed: int) -> dict[str, dict[str, float]]:
    """Return heights of the barrier between two networks, as they are and aligned in several ways."""
    data, models = RECIPES[kind].data(0, 0), [load_trained(kind, seed, which) for which in range(2)]
    evaluate = evaluation(data.test, ON_LINE)
    return barriers_of(models, METHODS, data, f"{kind}-{seed}", evaluate, points=POINTS, include_frozen=False)


def plane_file(kind: str) -> Path:
    """Return where the plane of a kind is kept."""
    return CACHE / "fused" / f"plane-{kind}.safetensors"


def plane(kind: str) -> Plane:
    """Return the plane through two networks and the second one aligned by GWB, for seed 0."""
    data, models = RECIPES[kind].data(0, 0), [load_trained(kind, 0, which) for which in range(2)]
    evaluate = evaluation(data.test, ON_PLANE)
    marked = {"GWB": {"method": "gwb"}, "consensus": {"method": "consensus"}}
    return plane_of(models, data, "gwb", marked, evaluate, points=POINTS, include_frozen=False)


def main() -> None:
    """Measure what is trained, and write ``planes_recurrent.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []])
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(SEEDS)), help="of barriers")
    parser.add_argument("--again", nargs="*", default=[], metavar="KIND")
    told = parser.parse_args()
    torch.set_num_threads(1)
    path, stamp = HERE / "planes_recurrent.json", versions()
    for kind in told.kinds or KINDS:
        seeds = trained_seeds(kind, told.seeds)
        again = {str(seed) for seed in seeds} if kind in told.again else set()

        def work(name: str, kind: str = kind) -> dict[str, Any]:
            return barriers(kind, int(name))

        cache = CACHE / "fused" / f"connectivity-{kind}.json"
        stored = remembered(cache, [str(seed) for seed in seeds], again, stamp["library_source"], work)
        if not stored:
            continue
        found = by_alignment(sorted(int(seed) for seed in stored), stored)
        if kind in PUBLISHED_KINDS and trained_seeds(kind, [0]):
            if kind in told.again or not plane_file(kind).exists():
                plane(kind).save(plane_file(kind))
            found["plane"] = marks(Plane.load(plane_file(kind)))
        result = json.loads(path.read_text()) if path.exists() else {"kinds": {}}
        result["kinds"][kind] = found
        path.write_text(as_text(result | {"versions": stamp, "settings": settings()}))
        sys.stdout.write(f"{kind}: seeds {found['seeds']}\n")
        sys.stdout.flush()


def settings() -> dict[str, Any]:
    """Return what was chosen."""
    return {
        "samples": f"test samples drawn once for all: {ON_LINE:,} on lines (SST-2 has 872), {ON_PLANE:,} on planes",
        "points": {"line": POINTS, "plane": [POINTS, POINTS]},
        "alignment": "to base 1, without refit and in the scales that the networks have: permutations and signs alone",
        "loss": "mean cross-entropy in nats",
        "error": "percent",
    }


if __name__ == "__main__":
    main()
