"""How the convolutional networks that are merged were trained: three models a seed, in three settings.

``published``: one start, the same images, and other hyper-parameters for every model: model k (0, 1, 2) has k + 1
passes and the learning rate 0.01 (k + 1) / 2. The paper on self-supervised Fisher merging names neither; this is the
rule of its published script for the pinwheel, with passes in place of hundreds of them. ``parties``: one start, and
three disjoint parts of the images with skewed classes. ``starts``: those parts, and a start of its own for every model.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import image_sites
import torch
from image_sites import ImageData
from recipes import Recipe
from torch import nn

SETTINGS, DATASETS, MODELS = ("published", "parties", "starts"), ("mnist", "fashion_mnist"), 3
WEIGHT_DECAY = 5e-4
SGD = partial(torch.optim.SGD, momentum=0.5, weight_decay=WEIGHT_DECAY)


def convnet() -> nn.Sequential:
    """Return the ConvNet of the paper, of 21,840 parameters, from images (n, 1, 28, 28) to 10 logits."""
    return nn.Sequential(
        nn.Conv2d(1, 10, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(320, 50),
        nn.ReLU(),
        nn.Linear(50, 10),
    )


def shared(name: str) -> Callable[[int, int], ImageData]:
    """Return the data of models that see the same images."""

    def everything(_seed: int, _which: int) -> ImageData:
        return image_sites.load(name)

    return everything


def divided(name: str) -> Callable[[int, int], ImageData]:
    """Return the data of models of which each has one party's images."""

    def part(seed: int, which: int) -> ImageData:
        return image_sites.of_party(name, seed, which)

    return part


def recipe(setting: str, dataset: str, which: int) -> Recipe:
    """Return network, data and training of one of the three models of a setting."""
    if setting == "published":
        return Recipe(convnet, shared(dataset), SGD, 0.01 * (which + 1) / 2, 64, which + 1)
    return Recipe(convnet, divided(dataset), SGD, 0.01, 64, 3)


def start_and_order(setting: str, seed: int, which: int) -> list[int]:
    """Return what seeds the initialisation of a model, and what the order of its images."""
    return [seed, 1000 + which if setting == "starts" else 1000, which]
