"""What networks are refitted on, and what it is worth: ``python experiments/synthetic_inputs/compare.py``.

Two networks of one architecture are trained on 10,000 images each, from starts of their own, fused by ``consensus``,
and refitted on

    nothing, the made-up inputs of the default as it stands, white noise and dead leaves of the described mean and
    variance, Gaussians of the described mean and covariance, channel-matched images, 1,000 real images.

The accuracy of each is taken in evaluation mode and, where there is batch normalisation, in training mode at batches of
128 test images. Needs ``fashion_mnist.npz`` and ``mnist.npz`` in the folder ``CONSILIENCE_DATA`` (default
``../shared/data`` beside the repository); trained networks are kept in ``CONSILIENCE_CACHE`` (default: the system's
temporary folder). Writes ``compare.json`` beside this file after every row, so that the run may be stopped and started
again; its table is in docs/evidence/synthetic_inputs.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.append(str(Path(__file__).resolve().parents[1]))
from record import versions

import consilience as cs
from consilience.networks import repair
from consilience.networks.descriptions.description import ChannelStatistics, Description, Moments
from consilience.networks.repair.channel_statistics import channel_statistics
from consilience.networks.synthetic.draws import draw_inputs
from consilience.networks.synthetic.matched_images import matched_images

HERE = Path(__file__).parent
DATA = Path(os.environ.get("CONSILIENCE_DATA", HERE.parents[2] / "shared/data"))
CACHE = Path(os.environ.get("CONSILIENCE_CACHE", Path(tempfile.gettempdir()) / "consilience-synthetic-inputs"))
RESULTS = HERE / "compare.json"

SITE_IMAGES, BATCH = 10_000, 64
EPOCHS = {"ResNet-8 BN": 5, "LeNet": 10, "MLP": 20}
TEST_IMAGES = 5000
RANK = 64
"""Of the covariance that is described."""
NOT_ANCHORED = ("noise of mean and variance", "leaves of mean and variance", "matched, nothing described")
"""After which the refit is made without its last step, too."""
N_IMAGES, N_ROWS = 1000, 5000
"""Inputs that are refitted on, but for matched images: the numbers of the default."""


class ResNet8(nn.Module):
    """Three residual blocks of 16, 32 and 64 channels with batch normalisation."""

    def __init__(self, channels: int = 1) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.blocks = nn.ModuleList(Block(*widths) for widths in ((16, 16, 1), (16, 32, 2), (32, 64, 2)))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = functional.relu(self.stem_norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=(2, 3)))


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.first_norm, self.second_norm = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut = (
            nn.Identity()
            if stride == 1
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the rectified sum of both ways."""
        return functional.relu(
            self.shortcut(x) + self.second_norm(self.second(functional.relu(self.first_norm(self.first(x)))))
        )


def lenet() -> nn.Module:
    """Return two convolutions and two linear layers."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 9, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def perceptron() -> nn.Module:
    """Return three linear layers."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(196, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10)
    )


@dataclass(frozen=True)
class Case:
    """A pair of networks: architecture, data set, scale of its inputs, and what seeds are counted from."""

    architecture: str
    data: str
    scale: str
    seed: int = 0

    @property
    def has_norms(self) -> bool:
        """Whether there is batch normalisation."""
        return self.architecture == "ResNet-8 BN"

    def __str__(self) -> str:
        return f"{self.architecture}, {self.data}, {self.scale}" + (f", pair {self.seed + 1}" if self.seed else "")


ARCHITECTURES: dict[str, Callable[[], nn.Module]] = {"ResNet-8 BN": ResNet8, "LeNet": lenet, "MLP": perceptron}
CASES = [
    Case("MLP", "fashion_mnist", "[0, 1]"),
    Case("LeNet", "fashion_mnist", "[0, 1]"),
    Case("ResNet-8 BN", "fashion_mnist", "[0, 1]"),
    Case("MLP", "mnist", "[0, 1]"),
    Case("LeNet", "mnist", "[0, 1]"),
    Case("ResNet-8 BN", "fashion_mnist", "[0, 255]"),
    Case("ResNet-8 BN", "fashion_mnist", "[0, 1]", seed=1),
    Case("ResNet-8 BN", "mnist", "[0, 1]"),
    Case("LeNet", "fashion_mnist", "[0, 1]", seed=1),
]


def load(case: Case) -> dict[str, Tensor]:
    """Return images (n, 1, 14, 14), means of 2x2 pixels at the case's scale, and labels, for training and testing."""
    with np.load(DATA / f"{case.data}.npz") as stored:
        parts = {
            part: (
                torch.as_tensor(stored[f"x_{part}"].reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)), dtype=torch.float32),
                torch.as_tensor(stored[f"y_{part}"], dtype=torch.int64),
            )
            for part in ("train", "test")
        }
    mean, deviation = parts["train"][0].mean(), parts["train"][0].std()
    offset, unit = {"[0, 1]": (0.0, 255.0), "[0, 255]": (0.0, 1.0), "standardised": (mean, deviation)}[case.scale]
    arrays = {}
    for part, (images, labels) in parts.items():
        arrays[f"x_{part}"], arrays[f"y_{part}"] = ((images - offset) / unit)[:, None], labels
    arrays["x_test"], arrays["y_test"] = arrays["x_test"][:TEST_IMAGES], arrays["y_test"][:TEST_IMAGES]
    return arrays


def site_rows(site: int) -> slice:
    """Return which training images a site has; those after both sites' are the real ones that are refitted on."""
    return slice(site * SITE_IMAGES, (site + 1) * SITE_IMAGES)


def trained(case: Case, site: int, data: dict[str, Tensor]) -> nn.Module:
    """Return the network of a site, from the cache where it is there."""
    seed = 10 * case.seed + site
    path = CACHE / f"{case.architecture}-{case.data}-{case.scale}-{seed}-{EPOCHS[case.architecture]}.pt".replace(
        " ", ""
    )
    torch.manual_seed(seed)
    net = ARCHITECTURES[case.architecture]()
    if path.exists():
        net.load_state_dict(torch.load(path, weights_only=True))
        return net.eval()
    x, y = data["x_train"][site_rows(site)], data["y_train"][site_rows(site)]
    optimiser = torch.optim.Adam(net.parameters(), lr=2e-3)
    n_steps = EPOCHS[case.architecture] * (len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / n_steps)
    for _ in range(EPOCHS[case.architecture]):
        for rows in torch.randperm(len(x))[: len(x) // BATCH * BATCH].split(BATCH):
            loss = functional.cross_entropy(net(x[rows]), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    CACHE.mkdir(parents=True, exist_ok=True)
    torch.save(net.state_dict(), path)
    return net.eval()


def described(net: nn.Module, x: Tensor, rank: int, name: str) -> Description:
    """Return what a site says of its network: moments of its inputs, of a rank, and statistics of its layers."""
    rows = x.flatten(1).double().numpy()
    mean, covariance = rows.mean(axis=0), np.cov(rows.T, bias=True)
    values, vectors = np.linalg.eigh(covariance)
    factor = (vectors[:, ::-1] * np.sqrt(np.maximum(values[::-1], 0.0)))[:, :rank].T
    residual = np.maximum(np.diag(covariance) - np.square(factor).sum(axis=0), 0.0)
    statistics = channel_statistics(net, x.split(1000))
    return Description(
        digest=name,
        n_observations=len(x),
        input_shape=tuple(x.shape[1:]),
        input_range=tuple(np.quantile(rows, (0.001, 0.999)).tolist()),
        inputs=Moments(len(x), mean, factor, residual),
        channels={
            path: ChannelStatistics(layer.mean.numpy(), layer.std.square().numpy())
            for path, layer in statistics.items()
        },
        name=name,
    )


def accuracy(net: nn.Module, data: dict[str, Tensor], training: bool = False) -> float:
    """Return the percentage of right answers, in training mode at batches of 128 without any lasting effect."""
    state = {key: values.clone() for key, values in net.state_dict().items()}
    net.train(training)
    with torch.no_grad():
        answers = torch.cat([net(batch).argmax(dim=1) for batch in data["x_test"].split(128)])
    net.load_state_dict(state)
    net.eval()
    return round(100 * float((answers == data["y_test"]).double().mean()), 2)


def fit_inputs(
    case: Case, nets: list[nn.Module], data: dict[str, Tensor], seed: int = 0
) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Yield every kind of inputs by name, with what makes them."""
    x = [data["x_train"][site_rows(site)] for site in range(2)]
    full = [described(net, rows, RANK, f"site {n}") for n, (net, rows) in enumerate(zip(nets, x, strict=True))]
    variances = [described(net, rows, 0, f"site {n}") for n, (net, rows) in enumerate(zip(nets, x, strict=True))]
    shape, count = full[0].input_shape, N_ROWS if case.architecture == "MLP" else N_IMAGES
    pooled = torch.cat(x)

    def noise() -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return pooled.mean() + pooled.std() * torch.randn((count, *shape), generator=generator)

    yield "noise of mean and variance", noise
    yield "leaves of mean and variance", lambda: draw_inputs(variances, count, seed).inputs
    yield "Gaussian of covariance", lambda: draw_inputs(full, count, seed).inputs
    if case.has_norms:
        yield "matched, nothing described", lambda: matched_images(nets, shape, rng=seed).inputs
    yield "matched, variance described", lambda: matched_images(nets, shape, rng=seed, descriptions=variances).inputs
    yield "matched, covariance described", lambda: matched_images(nets, shape, rng=seed, descriptions=full).inputs
    yield "1,000 real images", lambda: data["x_train"][2 * SITE_IMAGES :][:1000]


def networks_of(case: Case, data: dict[str, Tensor]) -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    """Yield the rows of a case by name, with what makes each network."""
    nets = [trained(case, site, data) for site in range(2)]
    example = data["x_train"][:2]
    fusion = cs.fuse(nets, method="consensus", refit=False, example=example)

    def refitted(make: Callable[[], Tensor]) -> nn.Module:
        return repair.refit(fusion.model, fusion.aligned_models, None, make()).module

    def not_anchored(make: Callable[[], Tensor]) -> nn.Module:
        with patch("consilience.networks.repair.refit.anchor_norms", return_value=({}, {})):
            return refitted(make)

    for site, net in enumerate(nets):
        yield f"site {site + 1}", partial(deepcopy, net)
    yield "default as it stands", lambda: cs.fuse(nets, method="consensus", example=example).model
    yield "no refit", lambda: fusion.model
    for name, make in fit_inputs(case, nets, data):
        yield name, partial(refitted, make)
        if name in NOT_ANCHORED and case.has_norms:
            yield f"{name}, not anchored", partial(not_anchored, make)


def rows_of(case: Case, done: set[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield the results of a case, a row for each kind of inputs that is not done."""
    data = load(case)
    for name, make in networks_of(case, data):
        if (str(case), name) in done:
            continue
        started = time.process_time()
        net = make()
        seconds = time.process_time() - started
        training = {"train": accuracy(net, data, training=True)} if case.has_norms else {}
        yield {"case": str(case), "inputs": name, "eval": accuracy(net, data), **training, "seconds": round(seconds, 1)}


def main() -> None:
    """Compute what is missing, and write ``compare.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose names contain this")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": []}
    done = {(row["case"], row["inputs"]) for row in results["rows"]}
    source = versions()["library_source"]
    for case in CASES:
        if arguments.only in str(case):
            for row in rows_of(case, done):
                sys.stdout.write(f"{row}\n")
                results["rows"].append(row | {"library_source": source})
                RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
