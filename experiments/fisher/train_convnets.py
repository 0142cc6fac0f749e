"""Train the convolutional networks that are merged later: ``python experiments/fisher/train_convnets.py``.

Three models for each of three settings and two sets of images (``convnet_recipes.py``), seed by seed. They are kept in
the cache folder (``CONSILIENCE_CACHE``, default ``experiments/.cache``) as ``fisher/SETTING-DATASET/seedS-modelM``: the
weights as safetensors, and a JSON file with settings and scores. A model that is there is not trained again, so that
the run may be stopped and started again.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import convnet_recipes
import numpy as np
import torch
from convnet_recipes import DATASETS, MODELS, SETTINGS
from safetensors.torch import load_file, save_file
from torch import nn
from training import CACHE as NETWORK_CACHE
from training import say, scores, train_epoch, whole

CACHE = NETWORK_CACHE.parent / "fisher"
SEEDS = 10


def place_of(setting: str, dataset: str, seed: int, which: int) -> Path:
    """Return where the weights of a model are kept; its JSON file is beside them."""
    return CACHE / f"{setting}-{dataset}" / f"seed{seed}-model{which}.safetensors"


def load_trained(setting: str, dataset: str, seed: int) -> list[nn.Module]:
    """Return the three trained networks of a seed, ready for use."""
    networks = [convnet_recipes.convnet() for _ in range(MODELS)]
    for which, network in enumerate(networks):
        network.load_state_dict(load_file(place_of(setting, dataset, seed, which)))
        network.eval()
    return networks


def record_of(setting: str, dataset: str, seed: int, which: int) -> dict:
    """Return settings and scores of a trained network, which were written when it was trained."""
    return json.loads(place_of(setting, dataset, seed, which).with_suffix(".json").read_text())


def trained_seeds(setting: str, dataset: str, seeds: range = range(SEEDS)) -> list[int]:
    """Return the seeds of which all models are trained."""
    return [
        seed
        for seed in seeds
        if all(place_of(setting, dataset, seed, which).with_suffix(".json").exists() for which in range(MODELS))
    ]


def train(setting: str, dataset: str, seed: int, which: int) -> None:
    """Train one model and keep it, unless it is there."""
    place, recipe = place_of(setting, dataset, seed, which), convnet_recipes.recipe(setting, dataset, which)
    if place.with_suffix(".json").exists():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    parts = convnet_recipes.start_and_order(setting, seed, which)
    for_start = int(np.random.SeedSequence(parts[:2]).generate_state(1)[0])
    for_order = int(np.random.SeedSequence(parts).generate_state(1)[0])
    torch.manual_seed(for_start)
    network = recipe.build()
    optimiser = recipe.optimiser(network.parameters(), lr=recipe.rate)
    generator, data, start = torch.Generator().manual_seed(for_order), recipe.data(seed, which), time.process_time()
    losses = [train_epoch(recipe, network, optimiser, data.train, generator, epoch) for epoch in range(recipe.epochs)]
    seconds = time.process_time() - start
    found = {
        "setting": setting,
        "dataset": dataset,
        "seed": seed,
        "model": which,
        "settings": recipe.as_json(),
        "rows": len(data.train),
        "rows_by_class": torch.bincount(data.train.y, minlength=10).tolist(),
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "validation": scores(network, data.validation),
        "test": scores(network, data.test),
        "training_losses": losses,
        "seconds": seconds,
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "machine": platform.machine()},
    }
    whole(place, lambda path: save_file(network.state_dict(), path))
    whole(place.with_suffix(".json"), lambda path: path.write_text(json.dumps(found, indent=1) + "\n"))
    score = found["test"]["accuracy"]
    say(f"{setting} {dataset} seed {seed} model {which}: test accuracy {score:.4f}, {seconds:.1f} s")


def main() -> None:
    """Train what is asked for, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(SEEDS)))
    told = parser.parse_args()
    torch.set_num_threads(1)
    for seed in told.seeds:
        for dataset in DATASETS:
            for setting in SETTINGS:
                for which in range(MODELS):
                    train(setting, dataset, seed, which)


if __name__ == "__main__":
    main()
