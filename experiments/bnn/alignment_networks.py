"""Networks and data of the experiment on aligning posteriors, and how their posteriors are learned.

Three pairs as in table 1 of Rossi, Singh, Hannagan (2023): an MLP of three hidden layers of 512 on MNIST and on
CIFAR-10, and a ResNet20 on CIFAR-10. Both networks of a pair learn from the same training images and differ in their
seeds alone. Normalisation inside of the ResNet is over all channels and places of one image (``GroupNorm(1, C)``),
which draws of weights bear, unlike batch norm.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path += [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "wasserstein")]
from image_data import MNIST_MEAN, MNIST_SD, ImageData, Images, load_cifar10, load_mnist

CLASSES = 10
RESNET_WIDTHS, BLOCKS = (16, 32, 64), 3


class NormalisedBlock(nn.Module):
    """Two 3x3 convolutions with normalisation over each image, added to the input or to its 1x1 projection."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        """Build a block from `before` to `channels` channels whose first convolution has this stride."""
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(1, channels, affine=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(1, channels, affine=False)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != channels:
            self.shortcut = nn.Conv2d(before, channels, 1, stride=stride, bias=False)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        inner = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        return self.relu(inner + self.shortcut(x))


def resnet20(width: float = 0.5) -> nn.Sequential:
    """Return ResNet20 for images (n, 3, 32, 32), normalised over each image, its 16, 32, 64 channels times `width`."""
    widths = [max(1, round(width * base)) for base in RESNET_WIDTHS]
    before = widths[0]
    layers: list[nn.Module] = [nn.Conv2d(3, before, 3, padding=1, bias=False), nn.GroupNorm(1, before, affine=False)]
    layers.append(nn.ReLU())
    for stage, channels in enumerate(widths):
        for block in range(BLOCKS):
            layers.append(NormalisedBlock(before, channels, 2 if stage and not block else 1))
            before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES))


def mnist() -> ImageData:
    """Return MNIST, a row of pixels in [0, 1] for each image, so that weights of the empty margin add no noise."""
    data = load_mnist()
    parts = (data.train, data.validation, data.test)
    return ImageData(*(Images(one.x * MNIST_SD + MNIST_MEAN, one.y) for one in parts))


def cifar10() -> ImageData:
    """Return CIFAR-10 as images, densely in memory."""
    data = load_cifar10()
    return ImageData(*(Images(one.x.contiguous(), one.y) for one in (data.train, data.validation, data.test)))


@dataclass(frozen=True)
class Setting:
    """How the posteriors of one kind of network are learned.

    Parameters
    ----------
    data
        What is learned.
    options
        Of `consilience.learners.GaussianBNN`, but for the module and the seed.
    module
        Builds a module; None for the linear layers that the options say.
    images
        How many of the training images.
    """

    data: Callable[[], ImageData]
    options: dict[str, Any]
    module: Callable[[], nn.Module] | None = None
    images: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        named = {key: value.__name__ if callable(value) else value for key, value in asdict(self).items()}
        return {key: value for key, value in named.items() if value is not None}


MLP: dict[str, Any] = {"hidden": (512, 512, 512), "batch_size": 500, "prior_variance": 0.01}
NARROW = {"deviation": 0.01, "learning_rate": 1e-3}
SETTINGS = {
    "mlp-mnist-narrow": Setting(mnist, {**MLP, **NARROW, "epochs": 10}),
    "mlp-mnist": Setting(mnist, {**MLP, "deviation": 0.05, "learning_rate": 1e-2, "epochs": 25}),
    "mlp-mnist-cold": Setting(mnist, {**MLP, **NARROW, "epochs": 10, "temperature": 0.1}),
    "mlp-cifar10-narrow": Setting(cifar10, {**MLP, **NARROW, "epochs": 3, "prior_variance": 0.0025}),
    "resnet20-cifar10": Setting(
        cifar10,
        {
            "epochs": 12,
            "learning_rate": 3e-3,
            "batch_size": 100,
            "prior_variance": 0.01,
            "deviation": 0.01,
            "estimator": "weights",
        },
        resnet20,
        10_000,
    ),
}
"""By name. *Narrow* ones start from deviations of 0.01, as published, and learn slowly: they stop before deviations of
weights that are of no use have grown to that of the prior. ``mlp-mnist`` starts wide and learns fast, towards the
optimum of the bound."""
