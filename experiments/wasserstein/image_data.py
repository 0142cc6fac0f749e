"""MNIST, Fashion-MNIST and CIFAR-10 as tensors for the network experiments: train, validation, test, and two parties.

Needs ``mnist.npz``, ``fashion_mnist.npz`` and ``cifar10.npz`` in the folder ``CONSILIENCE_DATA`` (default
``../shared/data`` beside the repository). Pixels are scaled to [0, 1] and normalised with the constants that are usual
for each set. The last 5,000 images of one fixed permutation of the training images are for validation, whatever the
seed of an experiment is.
"""

from __future__ import annotations

import lzma
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

DATA = Path(os.environ.get("CONSILIENCE_DATA", Path(__file__).parents[3] / "shared/data"))
VALIDATION, SPLIT_SEED = 5_000, 2022
MNIST_MEAN, MNIST_SD = 0.1307, 0.3081
FASHION_MEAN, FASHION_SD = 0.2860, 0.3530
CIFAR_MEAN, CIFAR_SD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
SPECIAL_DIGIT, REST_OF_A = 4, 0.1


@dataclass(frozen=True, eq=False)
class Images:
    """Normalised images, and their classes.

    Parameters
    ----------
    x
        float32, (n, 784) for MNIST and Fashion-MNIST; (n, 3, 32, 32) for CIFAR-10, in memory with channels last.
    y
        int64 (n,), 0 to 9.
    """

    x: torch.Tensor
    y: torch.Tensor

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.y)

    def at(self, rows: np.ndarray) -> Images:
        """Return some of the images."""
        chosen = torch.from_numpy(rows)
        return Images(self.x[chosen], self.y[chosen])

    def to(self, device: torch.device) -> Images:
        """Return the images on a device."""
        return Images(self.x.to(device), self.y.to(device))

    def shuffled(self, batch: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        """Return the rows of batches, in random order."""
        return torch.randperm(len(self), generator=generator).split(batch)

    def in_order(self, batch: int) -> tuple[torch.Tensor, ...]:
        """Return the rows of batches, in the order of the images."""
        return torch.arange(len(self)).split(batch)

    def inputs(self, rows: torch.Tensor) -> torch.Tensor:
        """Return what networks read of a batch."""
        return self.x[rows.to(self.x.device)]


@dataclass(frozen=True, eq=False)
class ImageData:
    """Images to learn from, to choose settings by, and to report."""

    train: Images
    validation: Images
    test: Images


def divided(train: Images, test: Images) -> ImageData:
    """Return the training images divided in two, the larger part to learn from and the smaller for validation."""
    order = np.random.default_rng(SPLIT_SEED).permutation(len(train))
    return ImageData(train.at(order[:-VALIDATION]), train.at(order[-VALIDATION:]), test)


@cache
def load_mnist() -> ImageData:
    """Return MNIST as rows of 784 pixels: 55,000 images for training, 5,000 for validation, 10,000 for test."""
    return _grey_images("mnist", MNIST_MEAN, MNIST_SD)


@cache
def load_fashion_mnist() -> ImageData:
    """Return Fashion-MNIST as rows of 784 pixels, divided as MNIST is."""
    return _grey_images("fashion_mnist", FASHION_MEAN, FASHION_SD)


FEW_IMAGES = 12_000
"""Training images of the small convolutional networks."""


@cache
def load_few_fashion_images() -> ImageData:
    """Return Fashion-MNIST as images (n, 1, 28, 28), with the first 12,000 of its training images."""
    whole = load_fashion_mnist()
    parts = (whole.train.at(np.arange(FEW_IMAGES)), whole.validation, whole.test)
    return ImageData(*(Images(part.x.reshape(-1, 1, 28, 28), part.y) for part in parts))


def _grey_images(name: str, pixel_mean: float, pixel_sd: float) -> ImageData:
    def part(stored: np.lib.npyio.NpzFile, which: str) -> Images:
        pixels = stored[f"x_{which}"].reshape(-1, 784).astype(np.float32) / 255
        labels = stored[f"y_{which}"].astype(np.int64)
        return Images(torch.from_numpy((pixels - pixel_mean) / pixel_sd), torch.from_numpy(labels))

    with np.load(DATA / f"{name}.npz") as stored:
        return divided(part(stored, "train"), part(stored, "test"))


@cache
def load_cifar10() -> ImageData:
    """Return CIFAR-10: 45,000 images for training, 5,000 for validation, 10,000 for test; it takes some 10 s."""

    def part(pixels: np.ndarray, labels: np.ndarray) -> Images:
        normalised = (pixels.astype(np.float32) / 255 - np.float32(CIFAR_MEAN)) / np.float32(CIFAR_SD)
        # the last axis stays last in memory, which is the layout in which convolutions on processors are fastest
        return Images(torch.from_numpy(normalised).permute(0, 3, 1, 2), torch.from_numpy(labels.astype(np.int64)))

    with np.load(DATA / "cifar10.npz") as stored:
        train = np.concatenate([unpacked(stored[f"x_train_{number}"]) for number in range(5)])
        return divided(part(train, stored["y_train"]), part(unpacked(stored["x_test"]), stored["y_test"]))


def unpacked(packed: np.ndarray) -> np.ndarray:
    """Return images (n, 32, 32, 3) from the coded form of ``cifar10.npz``.

    The planes G, R - G and B - G are coded, mod 256, as residuals of the median edge predictor.
    """
    residuals = np.frombuffer(lzma.decompress(packed.tobytes()), np.uint8).reshape(3, -1, 1024)
    n = residuals.shape[1]
    residuals = (residuals >> 1) ^ -(residuals & 1)  # undoes the zig-zag map; unsigned arithmetic wraps
    errors = np.ascontiguousarray(residuals.reshape(3 * n, 1024).T)
    planes = np.zeros((32, 32, 3 * n), np.int16)
    for i in range(32):
        for j in range(32):
            if i == 0:
                predicted = planes[0, j - 1] if j else 0
            elif j == 0:
                predicted = planes[i - 1, 0]
            else:
                left, up, corner = planes[i, j - 1], planes[i - 1, j], planes[i - 1, j - 1]
                predicted = np.clip(left + up - corner, np.minimum(left, up), np.maximum(left, up))
            planes[i, j] = (predicted + errors[32 * i + j]) & 255
    green, red, blue = planes.astype(np.uint8).reshape(1024, 3, n).transpose(1, 2, 0).reshape(3, n, 32, 32)
    return np.stack([red + green, green, blue + green], axis=-1)


def heterogeneous_parts(seed: int, special: int = SPECIAL_DIGIT, rest_of_a: float = REST_OF_A) -> tuple[Images, Images]:
    """Return MNIST's training images divided between two parties, as in section 4.1 of the paper on WB fusion.

    Parameters
    ----------
    seed
        Draws the rows of either party.
    special
        Digit that A alone has, and has all of.
    rest_of_a
        Fraction of the images of the other digits that A has. B has the others.
    """
    train = load_mnist().train
    labels = train.y.numpy()
    rest = np.random.default_rng([SPLIT_SEED, seed]).permutation(np.flatnonzero(labels != special))
    cut = round(rest_of_a * len(rest))
    of_a = np.concatenate([np.flatnonzero(labels == special), rest[:cut]])
    return train.at(of_a), train.at(rest[cut:])
