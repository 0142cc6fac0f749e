"""Fusing convolutional networks without data: ``experiments/synthetic_inputs/convolutions.py``.

Two networks of one architecture are trained on 10,000 images each, from starts of their own. Each row is one way to
fuse them, from nothing but the networks up to real images: the methods of the literature that match units by weights,
the default and distillation without any data, the same where sites describe themselves, and with 200, 1,000 and 2,000
unlabelled images. Accuracies on 5,000 test images are taken in evaluation mode; where there is batch normalisation,
also in training mode at batches of 128 and, in evaluation mode, after the statistics were measured anew on 2,000 real
images.

Needs ``fashion_mnist.npz`` and ``cifar10.npz`` in the folder ``CONSILIENCE_DATA`` (default ``../shared/data`` beside
the repository); trained networks are kept in ``CONSILIENCE_CACHE`` (default: the system's temporary folder). Writes
``convolutions.json`` beside this file after every row, so that the run may be stopped and started again. ``--train``
only trains, ``--only`` takes cases, ``--rows`` rows, and ``--again`` computes rows anew that are there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from record import versions
from synthetic_inputs.compare import Block, ResNet8
from torch import Tensor, nn
from torch.nn import functional
from wasserstein.image_data import DATA, unpacked

import consilience as cs
from consilience.networks.repair.channel_statistics import reestimate_batch_norm

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("CONSILIENCE_CACHE", Path(tempfile.gettempdir()) / "consilience-synthetic-inputs"))
RESULTS = HERE / "convolutions.json"

SITE_IMAGES, BATCH, TEST_IMAGES = 10_000, 64, 5_000
EPOCHS, RATE = 4, 2e-3
GROUPS = 4
"""Of group normalisation."""


class ResNet14(ResNet8):
    """Six residual blocks, two of 16, 32 and 64 channels each, with batch normalisation."""

    def __init__(self, channels: int = 1) -> None:
        super().__init__(channels)
        widths = ((16, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1))
        self.blocks = nn.ModuleList(Block(*width) for width in widths)


def group_normed(residual: type[ResNet8], channels: int = 1) -> nn.Module:
    """Return a residual network whose batch normalisation is group normalisation."""
    net = residual(channels)
    for path, part in list(net.named_modules()):
        if isinstance(part, nn.BatchNorm2d):
            parent, _, name = path.rpartition(".")
            setattr(net.get_submodule(parent), name, nn.GroupNorm(GROUPS, part.num_features))
    return net


def vgg11(channels: int = 1, norm: bool = True) -> nn.Sequential:
    """Return eight 3x3 convolutions, pooling after the first, second, fourth and sixth, and a linear layer."""
    layers: list[nn.Module] = []
    before = channels
    for number, width in enumerate((16, 32, 64, 64, 96, 96, 96, 96), 1):
        layers += [nn.Conv2d(before, width, 3, padding=1, bias=not norm)]
        layers += [nn.BatchNorm2d(width)] if norm else []
        layers += [nn.ReLU()] + ([nn.MaxPool2d(2)] if number in (1, 2, 4, 6) else [])
        before = width
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(before, 10))
    if not norm:  # as torchvision's: at torch's own initial weights eight layers without normalisation do not train
        for part in net:
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(part.bias)
    return net


def mobile(channels: int = 1) -> nn.Sequential:
    """Return depthwise 3x3 and pointwise convolutions in turn, with batch normalisation after each (MobileNet)."""
    layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    for before, width, stride in ((16, 32, 1), (32, 48, 2), (48, 64, 1), (64, 96, 2), (96, 96, 1)):
        layers += [nn.Conv2d(before, before, 3, stride=stride, padding=1, groups=before, bias=False)]
        layers += [nn.BatchNorm2d(before), nn.ReLU(), nn.Conv2d(before, width, 1, bias=False)]
        layers += [nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10))


ARCHITECTURES: dict[str, Callable[[int], nn.Module]] = {
    "ResNet-8 BN": ResNet8,
    "ResNet-14 BN": ResNet14,
    "VGG11 BN": vgg11,
    "VGG11": partial(vgg11, norm=False),
    "ResNet-8 GN": partial(group_normed, ResNet8),
    "ResNet-14 GN": partial(group_normed, ResNet14),
    "MobileNet BN": mobile,
}


@dataclass(frozen=True)
class Case:
    """A pair of networks: architecture, data set, side of its images, and what seeds are counted from."""

    architecture: str
    data: str
    side: int
    seed: int = 0

    @property
    def has_norms(self) -> bool:
        """Whether there is batch normalisation."""
        return self.architecture.endswith("BN")

    @property
    def group(self) -> str:
        """What pairs of several seeds have in common."""
        return f"{self.architecture}, {self.data.replace('_', '-')} {self.side}x{self.side}"

    def __str__(self) -> str:
        return f"{self.group}, pair {self.seed + 1}"


CASES = [
    Case(architecture, data, side, seed)
    for seed in range(3)
    for architecture, data, side in (
        ("ResNet-8 BN", "fashion_mnist", 14),
        ("ResNet-14 BN", "fashion_mnist", 14),
        ("VGG11 BN", "fashion_mnist", 28),
        ("VGG11", "fashion_mnist", 28),
        ("ResNet-8 GN", "fashion_mnist", 14),
        ("ResNet-14 GN", "fashion_mnist", 14),
        ("MobileNet BN", "fashion_mnist", 14),
        ("ResNet-8 BN", "cifar10", 16),
    )
]


@cache
def load(data: str, side: int) -> dict[str, Tensor]:
    """Return images (n, channels, side, side) in [0, 1], means of pixels, and labels, for training and testing."""
    kept = CACHE / f"{data}-{side}.npz"
    if not kept.exists():
        with np.load(DATA / f"{data}.npz") as stored:
            if data == "cifar10":
                train = np.concatenate([unpacked(stored[f"x_train_{number}"]) for number in range(3)])
                images = {"train": train, "test": unpacked(stored["x_test"])}
            else:
                images = {part: stored[f"x_{part}"][..., None] for part in ("train", "test")}
            labels = {part: stored[f"y_{part}"].astype(np.int64) for part in images}
        arrays = {}
        for part, pixels in images.items():
            n, full, _, channels = pixels.shape
            means = pixels.reshape(n, side, full // side, side, full // side, channels).mean(axis=(2, 4)) / 255
            arrays[f"x_{part}"] = np.ascontiguousarray(np.moveaxis(means, 3, 1)).astype(np.float32)
            arrays[f"y_{part}"] = labels[part][:n]
        CACHE.mkdir(parents=True, exist_ok=True)
        np.savez(kept, **{name: values[:30_000] for name, values in arrays.items()})
    with np.load(kept) as stored:
        tensors = {name: torch.as_tensor(stored[name]) for name in stored.files}
    return tensors | {name: tensors[name][:TEST_IMAGES] for name in ("x_test", "y_test")}


def site_data(case: Case, site: int) -> tuple[Tensor, Tensor]:
    """Return the training images and labels of a site; those after both sites' are given as unlabelled images."""
    arrays, rows = load(case.data, case.side), slice(site * SITE_IMAGES, (site + 1) * SITE_IMAGES)
    return arrays["x_train"][rows], arrays["y_train"][rows]


def real_images(case: Case, count: int) -> Tensor:
    """Return real images that no site has."""
    return load(case.data, case.side)["x_train"][2 * SITE_IMAGES :][:count]


def trained(case: Case, site: int) -> nn.Module:
    """Return the network of a site, from the cache where it is there."""
    x, y = site_data(case, site)
    seed = 10 * case.seed + site
    path = CACHE / f"{case.architecture}-{case.data}-{case.side}-{seed}-{EPOCHS}.pt".replace(" ", "")
    torch.manual_seed(seed)
    net = ARCHITECTURES[case.architecture](x.shape[1])
    if path.exists():
        net.load_state_dict(torch.load(path, weights_only=True))
        return net.eval()
    rate = RATE if "BN" in case.architecture or "GN" in case.architecture else RATE / 2
    optimiser = torch.optim.Adam(net.parameters(), lr=rate)
    n_steps = EPOCHS * (len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / n_steps)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x))[: len(x) // BATCH * BATCH].split(BATCH):
            loss = functional.cross_entropy(net(x[rows]), y[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    CACHE.mkdir(parents=True, exist_ok=True)
    torch.save(net.state_dict(), path)
    return net.eval()


def accuracy(net: nn.Module, case: Case, training: bool = False) -> float:
    """Return the percentage of right answers, in training mode at batches of 128 without any lasting effect."""
    arrays = load(case.data, case.side)
    state = {key: values.clone() for key, values in net.state_dict().items()}
    net.train(training)
    with torch.no_grad():
        answers = torch.cat([net(batch).argmax(dim=1) for batch in arrays["x_test"].split(128)])
    net.load_state_dict(state)
    net.eval()
    return round(100 * float((answers == arrays["y_test"]).double().mean()), 2)


MATCHING = ("ot", "wb", "fedma", "rebasin")
"""Methods that match units by weights, as they stand in the literature: nothing is fitted afterwards."""
Fusions = Mapping[str, Callable[[], cs.results.NetworkFusion]]


def fusions_of(case: Case) -> Fusions:
    """Return what makes every fusion of a case, by the name of its row."""
    nets = {f"site {site + 1}": trained(case, site) for site in range(2)}
    example = real_images(case, 2)

    @cache
    def described() -> dict[str, Any]:
        return {
            name: cs.describe(net, site_data(case, site), classes=10) for site, (name, net) in enumerate(nets.items())
        }

    def given(count: int) -> Tensor:
        return real_images(case, count)

    return {
        **{
            method: lambda method=method: cs.fuse(
                nets, method=method, example=example, **({"restarts": 1} if method == "rebasin" else {})
            )
            for method in MATCHING
        },
        "matched, no refit": lambda: cs.fuse(nets, method="consensus", refit=False, example=example),
        "default": lambda: cs.fuse(nets, example=example),
        "distill": lambda: cs.fuse(nets, method="distill", example=example),
        "default, described": lambda: cs.fuse(described()),
        "distill, described": lambda: cs.fuse(described(), method="distill"),
        **{
            f"default, {count:,} images": lambda count=count: cs.fuse(nets, inputs=given(count), example=example)
            for count in (200, 2000)
        },
        "refit on 1,000 images": lambda: cs.fuse(nets, method="consensus", inputs=given(1000), example=example),
    }


def row_of(case: Case, make: Callable[[], cs.results.NetworkFusion]) -> dict[str, Any]:
    """Return the accuracies of a fusion, of its candidates, and the processor time that it took."""
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the verdict is recorded
        try:
            fusion = make()
        except cs.errors.ConsilienceError as error:
            return {"refused": str(error)}
    seconds = time.process_time() - started
    row: dict[str, Any] = {"eval": accuracy(fusion.model, case), "seconds": round(seconds, 1)}
    row["sites"] = [accuracy(trained(case, site), case) for site in range(2)]  # trained anew, they may differ a little
    if case.has_norms:
        row["train"] = accuracy(fusion.model, case, training=True)
        row["recalibrated"] = accuracy(reestimate_batch_norm(fusion.model, real_images(case, 2000).split(128)), case)
    if fusion.candidates:
        row["chosen"] = fusion.details.get("chosen")
        row["candidates"] = {name: accuracy(net, case) for name, net in fusion.candidates.items()}
        row["scores"] = dict(fusion.verdict.candidates)
    return row


def sites_row(case: Case) -> dict[str, Any]:
    """Return the accuracies of both sites' networks and of their ensemble."""
    nets = [trained(case, site) for site in range(2)]
    ensemble = cs.fuse(nets, method="ensemble").model
    row: dict[str, Any] = {"sites": [accuracy(net, case) for net in nets], "eval": accuracy(ensemble, case)}
    if case.has_norms:
        row["train"] = float(np.mean([accuracy(net, case, training=True) for net in nets]))
    return row


def main() -> None:
    """Compute what is missing, and write ``convolutions.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", action="store_true", help="train networks, compute nothing")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--rows", default="", help="rows whose names contain this")
    parser.add_argument("--exact", nargs="*", default=[], help="rows of these names")
    parser.add_argument("--again", action="store_true", help="compute rows that are there anew")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": []}
    results["versions"] = versions() | {"torch": torch.__version__}
    for case in CASES:
        if arguments.only not in str(case):
            continue
        if arguments.train:
            for site in range(2):
                trained(case, site)
            sys.stdout.write(f"{case}: trained\n")
            continue
        makers = {"sites": partial(sites_row, case)}
        makers |= {name: partial(row_of, case, make) for name, make in fusions_of(case).items()}
        for name, make in makers.items():
            key = {"case": str(case), "group": case.group, "seed": case.seed, "row": name}
            is_there = any(key.items() <= row.items() for row in results["rows"])
            is_asked = name in arguments.exact if arguments.exact else arguments.rows in name
            if not is_asked or (is_there and not arguments.again):
                continue
            row = key | make() | {"library_source": results["versions"]["library_source"]}
            sys.stdout.write(f"{row}\n")
            sys.stdout.flush()
            results["rows"] = [old for old in results["rows"] if not key.items() <= old.items()] + [row]
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
