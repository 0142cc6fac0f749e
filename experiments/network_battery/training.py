"""Training of the sites' networks and of the pooled one of a cell, kept in a cache folder.

The folder is ``network_battery`` in ``CONSILIENCE_CACHE`` (default ``experiments/.cache``), with a folder a cell whose
name has a digest of the cell's setting and recipe: ``site-0.safetensors`` and so on, ``pooled.safetensors``,
``rows.npz`` (where each site's rows are among the training rows of the half) and ``outputs.npz`` (what every network
answers on the test rows). What is there is kept, so that a run may be stopped and started again.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from network_battery import data as data_files
from network_battery.architectures import ARCHITECTURES
from network_battery.cells import Setting, digest, settings_of
from network_battery.data import LENGTH, VOCABULARY, CellData
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

import consilience as cs

CACHE = Path(os.environ.get("CONSILIENCE_CACHE", Path(__file__).parents[1] / ".cache")) / "network_battery"
SCORED_AT_ONCE = 1_000
DRAWS = 64
"""Monte Carlo draws of a Bayesian network's weights, of which its predictive probabilities are the mean."""
LEAST_STEPS = 500
"""Steps of a site at least: a site of few rows goes through them more often, else its network is hardly trained."""
POOLED = -1
"""Number of the network that is trained on the rows of all sites."""


@dataclass(frozen=True)
class Recipe:
    """How the networks of a cell are trained.

    Parameters
    ----------
    optimiser : {"sgd", "adam", "gaussian", "horseshoe"}
        SGD with momentum 0.9, Adam, or a learner of Bayesian networks with this prior.
    rate : float
        Learning rate at the start; it falls to zero along a line, of Bayesian networks along a cosine.
    epochs, batch : int
        Passes over a site's rows, more where these are fewer than ``LEAST_STEPS`` steps; and rows of a step.
    """

    optimiser: str
    rate: float
    epochs: int = 8
    batch: int = 32


RECIPES: dict[str, dict[str, Recipe]] = {
    "tune": {
        "MLP": Recipe("sgd", 0.05),
        "LeNet": Recipe("sgd", 0.05),
        "VGG": Recipe("adam", 2e-3),
        "ResNet-8 BN": Recipe("sgd", 0.05),
        "ResNet-8 GN": Recipe("adam", 3e-3),
        "LSTM": Recipe("adam", 5e-3),
        "transformer": Recipe("adam", 3e-3),
        "BNN": Recipe("horseshoe", 4e-3, epochs=20),
    },
    "report": {
        "MLP": Recipe("sgd", 0.05),
        "LeNet": Recipe("adam", 5e-3),
        "VGG": Recipe("adam", 5e-3),
        "ResNet-8 BN": Recipe("adam", 3e-3),
        "ResNet-8 GN": Recipe("sgd", 0.05),
        **dict.fromkeys(("MLP BN", "VGG BN", "MobileNet BN"), Recipe("adam", 3e-3)),
        "LSTM": Recipe("adam", 5e-3),
        "transformer": Recipe("adam", 3e-3),
        "BNN": Recipe("gaussian", 4e-3, epochs=20),
    },
}
BYTES = Recipe("adam", 1e-3)
"""Inputs of 0 to 255 are too large for SGD at one rate for all layers."""
BAYESIAN: dict[str, dict[str, Any]] = {
    "horseshoe": {"deviation": 0.1, "temperature": 0.1, "unit_width": 0.1},
    "gaussian": {"deviation": 0.05, "temperature": 0.1},
}
"""Options of the learners beside those of a recipe; of the horseshoe as in the experiments of Bayesian fusion."""


def recipe_of(setting: Setting) -> Recipe:
    """Return how the networks of a cell are trained."""
    return BYTES if setting.scaling == "byte" else RECIPES[setting.half][setting.architecture]


def folder_of(setting: Setting) -> Path:
    """Return where the networks of a cell are kept."""
    return CACHE / f"{setting.name}-{digest([settings_of(setting), asdict(recipe_of(setting))])}"


def build(setting: Setting, data: CellData) -> nn.Module:
    """Return an untrained network of a cell."""
    shape = (VOCABULARY, LENGTH) if setting.scaling == "tokens" else data.test[0].shape[1:]
    return ARCHITECTURES[setting.architecture](shape, data.n_classes or 1, setting.widths)


def seeds(setting: Setting, number: int) -> tuple[int, int]:
    """Return the seeds of the start and of the order of rows of a site, or of the pooled network."""
    start = 0 if setting.start == "common" or number == POOLED else 1 + number
    return tuple(
        int(np.random.SeedSequence([setting.seed, kind, value]).generate_state(1)[0])
        for kind, value in ((0, start), (1, 1 + number))
    )  # type: ignore[return-value]


def train(setting: Setting, data: CellData, number: int) -> Any:
    """Return the trained network of a site, or the pooled one, in evaluation mode."""
    recipe = recipe_of(setting)
    start_seed, order_seed = seeds(setting, number)
    x, y = data.pooled if number == POOLED else data.sites[number]
    torch.manual_seed(start_seed)
    if recipe.optimiser in BAYESIAN:
        learner = cs.learners.HorseshoeBNN if recipe.optimiser == "horseshoe" else cs.learners.GaussianBNN
        options = {"epochs": recipe.epochs, "batch_size": recipe.batch, "learning_rate": recipe.rate}
        return learner(
            module=build(setting, data), **options, **BAYESIAN[recipe.optimiser], seed=start_seed
        ).fit(x, y, classes=data.n_classes).posterior  # fmt: skip
    network = build(setting, data).train()
    inputs, labels = torch.from_numpy(x), torch.from_numpy(y)
    loss_of = functional.mse_loss if data.n_classes is None else functional.cross_entropy
    kind = {
        "sgd": lambda parameters: torch.optim.SGD(parameters, lr=recipe.rate, momentum=0.9),
        "adam": lambda parameters: torch.optim.Adam(parameters, lr=recipe.rate),
    }
    optimiser = kind[recipe.optimiser](network.parameters())
    generator = torch.Generator().manual_seed(order_seed)
    steps_of_epoch = math.ceil(len(y) / recipe.batch)
    epochs = max(recipe.epochs, math.ceil(LEAST_STEPS / steps_of_epoch))
    step, steps = 0, epochs * steps_of_epoch
    for _ in range(epochs):
        for rows in torch.randperm(len(y), generator=generator).split(recipe.batch):
            for group in optimiser.param_groups:
                group["lr"] = recipe.rate * (1 - step / steps)
            step += 1
            if len(rows) == 1:  # batch norm cannot train on one row
                continue
            optimiser.zero_grad()
            loss_of(network(inputs[rows]), labels[rows]).backward()
            optimiser.step()
    return network.eval()


@torch.no_grad()
def outputs(model: Any, x: np.ndarray) -> np.ndarray:
    """Return logits (n, C) in float64, or predictions (n, 1); log probabilities of Bayesian networks."""
    if not isinstance(model, torch.nn.Module):
        return np.log(np.maximum(np.asarray(model.predict(x, samples=DRAWS, rng=0), dtype=float), 1e-30))
    parts = [model(part) for part in torch.from_numpy(x).split(SCORED_AT_ONCE)]
    return torch.cat(parts).double().numpy()


def save_network(model: Any, path: Path) -> None:
    """Write the weights of a network, the file whole or not at all."""
    partial_file = path.with_name(f"part-{path.name}")
    if isinstance(model, cs.BayesianNetwork):
        cs.save(model, partial_file)
    else:
        save_file({name: values.contiguous() for name, values in model.state_dict().items()}, partial_file)
    partial_file.replace(path)


def load_network(setting: Setting, data: CellData, path: Path) -> Any:
    """Return a network that was trained, in evaluation mode."""
    module = build(setting, data)
    if setting.architecture == "BNN":
        return cs.load(path).with_module(module)
    module.load_state_dict(load_file(path))
    return module.eval()


def file_name(number: int) -> str:
    """Return the name of the file of a site's network, or of the pooled one."""
    return "pooled" if number == POOLED else f"site-{number}"


def train_cell(setting: Setting, say: Callable[[str], None], *, with_pooled: bool = True) -> None:
    """Train what is missing of a cell, and keep what all networks answer on the test rows."""
    folder = folder_of(setting)
    numbers = [*range(setting.sites), *([POOLED] if with_pooled else [])]
    if (folder / "outputs.npz").exists():
        with np.load(folder / "outputs.npz") as stored:
            if set(map(file_name, numbers)) <= set(stored.files):
                return
    folder.mkdir(parents=True, exist_ok=True)
    data = data_files.load(setting)
    np.savez(folder / "rows.npz", **{file_name(site): rows for site, rows in enumerate(data.rows)})
    answers, taken = {}, {}
    for number in numbers:
        path = folder / f"{file_name(number)}.safetensors"
        facts = path.with_suffix(".json")
        if not facts.exists():
            start = time.process_time()
            save_network(train(setting, data, number), path)
            facts.write_text(json.dumps({"seconds": time.process_time() - start}))
        taken[number] = json.loads(facts.read_text())["seconds"]
        answers[file_name(number)] = outputs(load_network(setting, data, path), data.test[0])
    partial_file = folder / "part-outputs.npz"
    np.savez(partial_file, **answers)
    partial_file.replace(folder / "outputs.npz")
    sites = sum(seconds for number, seconds in taken.items() if number != POOLED)
    say(f"{setting.name}: {sites:.0f} s at the sites, {taken.get(POOLED, 0.0):.0f} s pooled")


@dataclass(frozen=True, eq=False)
class Cell:
    """A trained cell.

    Parameters
    ----------
    setting : Setting
        What it is.
    data : CellData
        What its sites have, and the test rows.
    """

    setting: Setting
    data: CellData

    @cached_property
    def models(self) -> list[Any]:
        """The sites' networks, fresh modules in evaluation mode or Bayesian networks."""
        return [self.network(site) for site in range(self.setting.sites)]

    def network(self, number: int) -> Any:
        """Return the network of a site, or the pooled one."""
        path = folder_of(self.setting) / f"{file_name(number)}.safetensors"
        return load_network(self.setting, self.data, path)

    @cached_property
    def example(self) -> torch.Tensor:
        """Two training rows, for tracing."""
        return torch.from_numpy(self.data.sites[0][0][:2])

    @cached_property
    def answers(self) -> np.ndarray:
        """What the sites' networks answer on the test rows (J, n, C)."""
        with np.load(folder_of(self.setting) / "outputs.npz") as stored:
            return np.stack([stored[file_name(site)] for site in range(self.setting.sites)])

    @cached_property
    def pooled_answers(self) -> np.ndarray:
        """What the pooled network answers on the test rows (n, C)."""
        with np.load(folder_of(self.setting) / "outputs.npz") as stored:
            return stored[file_name(POOLED)]

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Processor time of training, by network."""
        names = [file_name(number) for number in (*range(self.setting.sites), POOLED)]
        files = {name: folder_of(self.setting) / f"{name}.json" for name in names}
        return {name: json.loads(file.read_text())["seconds"] for name, file in files.items() if file.exists()}


def load_cell(setting: Setting) -> Cell:
    """Return a cell whose networks are trained."""
    if not (folder_of(setting) / "outputs.npz").exists():
        raise FileNotFoundError(f"{setting.name} is not trained; run.py --half {setting.half} --train")
    return Cell(setting, data_files.load(setting))
