"""How the networks of the fusion experiments are trained: the network, its data, and the settings of every kind.

Learning rate, momentum and epochs of ``mlp_net``, ``split_net`` and ``split_small`` are those published for WB fusion;
batches of 64 are our choice. ``fashion_net`` is ``mlp_net`` on Fashion-MNIST for 10 epochs, and the small
``convolutions`` have what trains them in seconds. ``mlp_512`` has optimiser, rate and batch of Git Re-Basin, but 12
epochs for 100, and all of the training images for random halves. The CIFAR-10 networks have 14 and 8 epochs of one
cycle of the learning rate instead of the published 300 epochs, so that one model takes minutes on one processor core;
batch and highest rate were chosen by the training loss of trials of 2 and 4 epochs with one seed, among 0.025, 0.05 and
0.1 (``vgg11``), 0.1 and 0.2 (``resnet20``), batches of 64 and 128. The momentum is Nesterov's there, which the
published one is not.

The recurrent networks (``mnist_rnn``, ``ag_news_lstm`` and so on) have the published optimiser, Adam with weight decay,
and rate but for tanh RNNs on AG News and DBpedia (3e-4 for 1e-4), batches of 64 and 3 to 8 epochs for 5 to 50.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import architectures
import image_data
import torch
from image_data import ImageData
from recurrent import recurrent_networks, sequence_data
from torch import nn
from torch.nn import functional

CROP_MARGIN, WARM_UP = 4, 0.25


def constant(_: float) -> float:
    """Return 1: the learning rate does not change."""
    return 1.0


def one_cycle(done: float) -> float:
    """Return the factor of the learning rate when this part of the steps is done: up in a quarter, then to zero."""
    if done < WARM_UP:
        return 0.02 + 0.98 * done / WARM_UP
    return 0.5 * (1.0 + math.cos(math.pi * (done - WARM_UP) / (1.0 - WARM_UP)))


def as_they_are(x: torch.Tensor, _: torch.Generator) -> torch.Tensor:
    """Return the images of a batch unchanged."""
    return x


def cropped_and_flipped(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return images moved by up to 4 pixels in both directions, the margin filled with the mean colour, half mirrored.

    The positions of all images are looked up at once, with channels last.
    """
    n, size = len(x), x.shape[-1]
    padded = functional.pad(x.permute(0, 2, 3, 1), (0, 0, *[CROP_MARGIN] * 4))
    top, left = torch.randint(0, 2 * CROP_MARGIN + 1, (2, n, 1), generator=generator)
    mirrored = torch.randint(0, 2, (n, 1), generator=generator).bool()
    steps = torch.arange(size)
    rows, columns = top + steps, left + torch.where(mirrored, steps.flip(0), steps)
    here = (torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :])
    return padded[tuple(index.to(x.device) for index in here)].permute(0, 3, 1, 2)


def mnist(_seed: int, _which: int) -> ImageData:
    """Return MNIST."""
    return image_data.load_mnist()


def fashion_mnist(_seed: int, _which: int) -> ImageData:
    """Return Fashion-MNIST."""
    return image_data.load_fashion_mnist()


def few_fashion_images(_seed: int, _which: int) -> ImageData:
    """Return 12,000 training images of Fashion-MNIST."""
    return image_data.load_few_fashion_images()


def mnist_of_parties(seed: int, which: int) -> ImageData:
    """Return MNIST with the training images of party A (0) or B (1)."""
    return replace(image_data.load_mnist(), train=image_data.heterogeneous_parts(seed)[which])


def cifar10(_seed: int, _which: int) -> ImageData:
    """Return CIFAR-10."""
    return image_data.load_cifar10()


def mnist_rows(_seed: int, _which: int) -> ImageData:
    """Return MNIST as sequences of rows."""
    return sequence_data.load_mnist_rows()


def sst2(_seed: int, _which: int) -> sequence_data.TextData:
    """Return SST-2."""
    return sequence_data.load_texts("sst2")


def ag_news(_seed: int, _which: int) -> sequence_data.TextData:
    """Return AG News."""
    return sequence_data.load_texts("ag_news")


def dbpedia(_seed: int, _which: int) -> sequence_data.TextData:
    """Return DBpedia-14."""
    return sequence_data.load_texts("dbpedia14")


@dataclass(frozen=True)
class Recipe:
    """A network, its data, and how it is trained.

    Parameters
    ----------
    factory
        Builds the network; a function of ``architectures``.
    data
        Gives the samples for a seed and the number of a model.
    optimiser
        Gives an optimiser for parameters and ``lr``.
    rate, batch, epochs
        Highest learning rate, images in a batch, passes over the training images.
    schedule
        Factor of the learning rate when a given part of the steps is done.
    augment
        Changes the images of a batch.
    arguments
        Arguments of the factory.
    """

    factory: Callable[..., nn.Module]
    data: Callable[[int, int], Any]
    optimiser: Callable[..., torch.optim.Optimizer]
    rate: float
    batch: int
    epochs: int
    schedule: Callable[[float], float] = constant
    augment: Callable[[torch.Tensor, torch.Generator], torch.Tensor] = as_they_are
    arguments: dict[str, Any] = field(default_factory=dict)

    def build(self) -> nn.Module:
        """Return the network before training, from torch's global generator."""
        return self.factory(**self.arguments)

    def as_json(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        told = self.optimiser.keywords if isinstance(self.optimiser, partial) else {}
        optimiser = self.optimiser.func if isinstance(self.optimiser, partial) else self.optimiser
        names = {key: getattr(self, key).__name__ for key in ("factory", "data", "schedule", "augment")}
        numbers = {key: getattr(self, key) for key in ("arguments", "rate", "batch", "epochs")}
        return {**names, **numbers, "optimiser": {"name": optimiser.__name__, **told}}


SGD_MLP = partial(torch.optim.SGD, momentum=0.5)
SGD_CIFAR = partial(torch.optim.SGD, momentum=0.9, weight_decay=5e-4, nesterov=True)
CIFAR = {"schedule": one_cycle, "augment": cropped_and_flipped}
DEEP = [8, 8, None, 16, 16, None, 32]
"""Channels of five convolutions; None halves the image."""
RECIPES = {
    "mlp_net": Recipe(architectures.mlp_net, mnist, SGD_MLP, 0.05, 64, 20),
    "fashion_net": Recipe(architectures.mlp_net, fashion_mnist, SGD_MLP, 0.05, 64, 10),
    "mlp_512": Recipe(architectures.mlp_512, mnist, torch.optim.Adam, 1e-3, 500, 12),
    "split_net": Recipe(architectures.mlp_net, mnist_of_parties, SGD_MLP, 0.01, 64, 10),
    "split_small": Recipe(architectures.mlp_small, mnist_of_parties, SGD_MLP, 0.01, 64, 10),
    "convolutions": Recipe(architectures.convolutions, few_fashion_images, torch.optim.Adam, 1e-3, 64, 4),
    "convolutions_deep": Recipe(
        architectures.convolutions, few_fashion_images, torch.optim.Adam, 1e-3, 64, 4, arguments={"widths": DEEP}
    ),
    "vgg11": Recipe(architectures.vgg11, cifar10, SGD_CIFAR, 0.05, 64, 14, **CIFAR, arguments={"width": 0.25}),
    "resnet20": Recipe(architectures.resnet20, cifar10, SGD_CIFAR, 0.1, 64, 8, **CIFAR, arguments={"width": 0.5}),
}
ADAM = partial(torch.optim.Adam, weight_decay=1e-4)
for _cell, _epochs in (("rnn", (8, 8, 6, 6)), ("lstm", (5, 5, 3, 3)), ("gru", (4, 5, 3, 3))):
    RECIPES[f"mnist_{_cell}"] = Recipe(
        recurrent_networks.RowReader, mnist_rows, ADAM, 1e-3, 64, _epochs[0], arguments={"cell": _cell}
    )
    for _texts, _classes, _passes in ((sst2, 2, _epochs[1]), (ag_news, 4, _epochs[2]), (dbpedia, 14, _epochs[3])):
        RECIPES[f"{_texts.__name__}_{_cell}"] = Recipe(
            recurrent_networks.TextReader,
            _texts,
            ADAM,
            3e-4 if _cell == "rnn" and _texts is not sst2 else 1e-3,
            64,
            _passes,
            arguments={"cell": _cell, "classes": _classes},
        )


def altered(kind: str, told: dict[str, Any]) -> tuple[str, Recipe]:
    """Return the name of a folder and a kind's recipe with some settings changed.

    Parameters
    ----------
    kind
        Key of `RECIPES`.
    told
        Values of ``width``, ``epochs``, ``rate`` and ``batch``; those that are missing or None stay as they are.

    Raises
    ------
    ValueError
        If the network has no ``width``.
    """
    recipe, name = RECIPES[kind], kind
    for key, value in told.items():
        if value is None or value == recipe.as_json().get(key, recipe.arguments.get(key)):
            continue
        name += f"-{key}{value:g}"
        if key != "width":
            recipe = replace(recipe, **{key: value})
        elif key in inspect.signature(recipe.factory).parameters:
            recipe = replace(recipe, arguments={**recipe.arguments, key: value})
        else:
            raise ValueError(f"the widths of {kind} are fixed: leave out --width")
    return name, recipe
