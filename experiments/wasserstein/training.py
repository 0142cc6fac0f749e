"""Train the networks that are fused later: ``python experiments/wasserstein/training.py KIND [KIND ...]``.

A kind is a network, its data and how it is trained (``recipes.py``). The models of one seed differ in initialisation
and in the order of the data; those of the kinds ``split_net`` and ``split_small`` also in their data: model 0 is party
A, with all images of the digit 4 and a tenth of the others, and model 1 is party B, with nine tenths of the others.

What is trained is kept in the cache folder (``CONSILIENCE_CACHE``, default ``experiments/.cache``): the weights as
``wasserstein/KIND/seedS-modelM.safetensors``, and beside them a JSON file of the same name with settings, losses and
accuracies. A model that is there is not trained again. A run may be stopped and started again: it goes on after the
last whole epoch, and ends with the same weights on the same machine. ``--width 1 --epochs 300`` gives the published
size and length of the CIFAR-10 experiments, for which one wants ``--device cuda``; such models are kept in folders of
their own (``KIND-width1-epochs300``).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from image_data import Images
from recipes import RECIPES, Recipe, altered
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

CACHE = Path(os.environ.get("CONSILIENCE_CACHE", Path(__file__).parents[1] / ".cache")) / "wasserstein"
SCORED_AT_ONCE = 500


@dataclass
class Progress:
    """What is known after some epochs: their number, mean training loss of each, and processor seconds so far."""

    epochs: int = 0
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0


def place_of(name: str, seed: int, which: int) -> Path:
    """Return where the weights of a model are kept; its JSON file is beside them."""
    return CACHE / name / f"seed{seed}-model{which}.safetensors"


def load_trained(kind: str, seed: int, which: int, **told: Any) -> nn.Module:
    """Return a trained network, ready for use. `told` are settings that were changed, as ``width=1, epochs=300``."""
    name, recipe = altered(kind, told)
    network = recipe.build()
    network.load_state_dict(load_file(place_of(name, seed, which)), strict=not frozen(network))
    return network.eval()


def frozen(network: nn.Module) -> set[str]:
    """Return the parameters that are not trained, which the recipe knows: they are not kept."""
    return {name for name, parameter in network.named_parameters() if not parameter.requires_grad}


def trained(network: nn.Module) -> dict[str, torch.Tensor]:
    """Return the arrays of a network without its frozen parameters."""
    without = frozen(network)
    return {name: values for name, values in network.state_dict().items() if name not in without}


@torch.no_grad()
def scores(network: nn.Module, images: Images) -> dict[str, Any]:
    """Return accuracy and mean cross-entropy in nats, and accuracy by class."""
    network.eval()
    batches = images.in_order(SCORED_AT_ONCE)
    logits = torch.cat([network(images.inputs(rows)) for rows in batches]).double()
    logits = logits[torch.cat(batches).argsort().to(logits.device)]
    right = (logits.argmax(dim=1) == images.y).double()
    return {
        "accuracy": right.mean().item(),
        "loss": functional.cross_entropy(logits, images.y).item(),
        "accuracy_by_class": [right[images.y == label].mean().item() for label in range(logits.shape[1])],
    }


def train_epoch(
    recipe: Recipe,
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    train: Images,
    generator: torch.Generator,
    epoch: int,
) -> float:
    """Go through the training images once in random order, and return the mean loss."""
    network.train()
    batches = train.shuffled(recipe.batch, generator)
    total = 0.0
    for number, rows in enumerate(batches):
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate * recipe.schedule((epoch + number / len(batches)) / recipe.epochs)
        logits = network(recipe.augment(train.inputs(rows), generator))
        loss = functional.cross_entropy(logits, train.y[rows.to(train.y.device)])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        total += loss.item() * len(rows)
    if not math.isfinite(total):
        sys.exit(f"the loss is no longer finite in epoch {epoch + 1}: take a lower --rate than {recipe.rate}")
    return total / len(train)


def train(name: str, recipe: Recipe, seed: int, which: int, device: torch.device) -> None:
    """Train one model and keep it, unless it is there; go on from a checkpoint where there is one."""
    place, settings = place_of(name, seed, which), recipe.as_json()
    if place.with_suffix(".json").exists():
        if json.loads(place.with_suffix(".json").read_text())["settings"] != settings:
            sys.exit(f"{place} was trained with other settings: move it away to train it anew")
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    for_start, for_order = (int(state) for state in np.random.SeedSequence([seed, which]).generate_state(2))
    torch.manual_seed(for_start)
    network = recipe.build().to(device, memory_format=torch.channels_last)
    optimiser = recipe.optimiser([one for one in network.parameters() if one.requires_grad], lr=recipe.rate)
    generator, progress = torch.Generator().manual_seed(for_order), Progress()
    checkpoint = place.with_suffix(".checkpoint")
    if checkpoint.exists():
        kept = torch.load(checkpoint, map_location="cpu", weights_only=True)
        if kept["settings"] != settings:
            sys.exit(f"{checkpoint} was trained with other settings: remove it to train anew")
        network.load_state_dict(kept["network"], strict=not frozen(network))
        optimiser.load_state_dict(kept["optimiser"])
        generator.set_state(kept["generator"])
        progress = Progress(**kept["progress"])
    data = recipe.data(seed, which)
    own = data.train.to(device)
    for epoch in range(progress.epochs, recipe.epochs):
        start = time.process_time()
        loss = train_epoch(recipe, network, optimiser, own, generator, epoch)
        seconds = time.process_time() - start
        progress = Progress(epoch + 1, [*progress.losses, loss], progress.seconds + seconds)
        states = {"network": trained(network), "optimiser": optimiser.state_dict()}
        states |= {"settings": settings, "generator": generator.get_state(), "progress": asdict(progress)}
        whole(checkpoint, lambda path, states=states: torch.save(states, path))
        say(f"{name}, seed {seed}, model {which}: epoch {epoch + 1}, loss {loss:.4f}, {seconds:.1f} s")
    weights = {key: value.cpu().contiguous() for key, value in trained(network).items()}
    whole(place, lambda path: save_file(weights, path))
    found = {
        "kind": name,
        "seed": seed,
        "model": which,
        "settings": settings,
        "rows": len(own),
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "validation": scores(network, data.validation.to(device)),
        "test": scores(network, data.test.to(device)),
        "training_losses": progress.losses,
        "seconds": progress.seconds,
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "machine": platform.machine()},
        "device": str(device),
    }
    whole(place.with_suffix(".json"), lambda path: path.write_text(json.dumps(found, indent=1) + "\n"))
    checkpoint.unlink()
    say(f"{name}, seed {seed}, model {which}: test accuracy {found['test']['accuracy']:.4f}")


def whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file under another name first, so that a file of this name is always whole."""
    partial_file = path.with_name(path.name + ".part")
    write(partial_file)
    partial_file.replace(path)


def say(text: str) -> None:
    """Tell how far the run is."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    """Train the models that are asked for, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="+", choices=list(RECIPES), metavar="KIND", help=", ".join(RECIPES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--models", type=int, default=2, help="of each seed")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    for name, kind in (("width", float), ("epochs", int), ("rate", float), ("batch", int)):
        parser.add_argument(f"--{name}", type=kind, help="instead of the kind's own")
    told = parser.parse_args()
    if told.models > 2 and any(kind.startswith("split") for kind in told.kinds):
        parser.error("there are two parties, so --models is at most 2 for split_net and split_small")
    changed = {key: getattr(told, key) for key in ("width", "epochs", "rate", "batch")}
    torch.set_num_threads(torch.get_num_threads() if told.device.type == "cuda" else 1)
    try:
        recipes = [altered(kind, changed) for kind in told.kinds]
    except ValueError as error:
        parser.error(str(error))
    for seed in told.seeds:
        for name, recipe in recipes:
            for which in range(told.models):
                train(name, recipe, seed, which, told.device)


if __name__ == "__main__":
    main()
