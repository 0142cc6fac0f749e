"""MNIST and Fashion-MNIST as images for convolutional networks, and their division between three parties.

Training, validation and test images are those of the other network experiments: of the 60,000 training images 5,000
are for validation, the same for every seed. Each set's pixels are normalised with its own usual constants.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch

sys.path += [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[1] / "wasserstein")]
from image_data import DATA, ImageData, Images, divided

PARTIES, CONCENTRATION, PARTY_SEED = 3, 1.0, 2023
NORMALISED = {"mnist": (0.1307, 0.3081), "fashion_mnist": (0.2860, 0.3530)}
"""Mean and standard deviation of the pixels."""


@cache
def load(name: str) -> ImageData:
    """Return images (n, 1, 28, 28) in float32: 55,000 for training, 5,000 for validation, 10,000 for test.

    Parameters
    ----------
    name
        ``"mnist"`` or ``"fashion_mnist"``.
    """
    middle, spread = NORMALISED[name]

    def part(stored: np.lib.npyio.NpzFile, which: str) -> Images:
        pixels = stored[f"x_{which}"].reshape(-1, 1, 28, 28).astype(np.float32) / 255
        return Images(
            torch.from_numpy((pixels - np.float32(middle)) / np.float32(spread)),
            torch.from_numpy(stored[f"y_{which}"].astype(np.int64)),
        )

    with np.load(DATA / f"{name}.npz") as stored:
        return divided(part(stored, "train"), part(stored, "test"))


def rows_of_parties(labels: np.ndarray, seed: int) -> list[np.ndarray]:
    """Return the rows of every party: of each class, parts whose sizes are drawn from a flat Dirichlet distribution.

    Parameters
    ----------
    labels
        Classes of all training images (n,).
    seed
        Draws the parts, which are disjoint and together all rows.
    """
    rng = np.random.default_rng([PARTY_SEED, seed])
    parts: list[list[np.ndarray]] = [[] for _ in range(PARTIES)]
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.round(np.cumsum(rng.dirichlet([CONCENTRATION] * PARTIES))[:-1] * len(rows)).astype(int)
        for part, own in zip(parts, np.split(rows, cuts), strict=True):
            part.append(own)
    return [np.concatenate(part) for part in parts]


def of_party(name: str, seed: int, which: int) -> ImageData:
    """Return a set of images of which only one party's are for training; validation and test images are everyone's."""
    data = load(name)
    return replace(data, train=data.train.at(rows_of_parties(data.train.y.numpy(), seed)[which]))
