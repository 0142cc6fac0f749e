"""Data of the heads' part of the one-shot benchmark: images, the sites' rows, and random features kept in a cache.

Fashion-MNIST and CIFAR-10: 20,000 training images (the first of one fixed permutation) are divided between sites, the
next 5,000 are the part of the data on which a body is pretrained, the first 5,000 test images are for scores. Font
digits: 150 faces are divided, 50 others are for scores; there the body is pretrained on 5,000 images of MNIST. Needs
the folder ``CONSILIENCE_DATA`` (default ``../shared/data`` beside the repository); the cache is ``one_shot_heads`` in
``CONSILIENCE_CACHE`` (default ``experiments/.cache``).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from wasserstein.image_data import DATA, unpacked

import consilience as cs

CACHE = Path(os.environ.get("CONSILIENCE_CACHE", Path(__file__).parents[1] / ".cache")) / "one_shot_heads"
SETS = ("fashion_mnist", "cifar10", "font_digits")
N_CLASSES = 10
TRAINING, PRETRAINING, TEST = 20_000, 5_000, 5_000
FACES_FOR_TRAINING = 150
ROWS_SEED = 27
LEAST_ROWS = 40
"""Rows of a site at least; other divisions are drawn again."""
COUNT = 1_800
SCALES = {"fashion_mnist": 0.353, "cifar10": 0.2512, "font_digits": 0.3081}
"""Deviation of pixels in [0, 1]; that of the font digits is MNIST's."""


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images (n, channels, side, side) uint8 and their classes: of the sites, of the pretraining, and of the test."""

    x: np.ndarray
    y: np.ndarray
    x_pretraining: np.ndarray
    y_pretraining: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


@cache
def images(name: str) -> ImageSet:
    """Return the images of a set."""
    if name == "font_digits":
        with np.load(DATA / "font_digits.npz") as file:
            x, y, font = file["x"][:, None], file["y"].astype(np.int64), file["font"]
        faces = np.random.default_rng(ROWS_SEED).permutation(int(font.max()) + 1)
        is_training = np.isin(font, faces[:FACES_FOR_TRAINING])
        with np.load(DATA / "mnist.npz") as file:
            x_mnist, y_mnist = file["x_train"][:PRETRAINING, None], file["y_train"][:PRETRAINING].astype(np.int64)
        return ImageSet(x[is_training], y[is_training], x_mnist, y_mnist, x[~is_training], y[~is_training])
    if name == "cifar10":
        with np.load(DATA / "cifar10.npz") as file:
            x = np.concatenate([unpacked(file[f"x_train_{k}"]) for k in range(3)]).transpose(0, 3, 1, 2)
            y = file["y_train"][: len(x)].astype(np.int64)
            x_test = unpacked(file["x_test"]).transpose(0, 3, 1, 2)[:TEST]
            y_test = file["y_test"][:TEST].astype(np.int64)
    else:
        with np.load(DATA / f"{name}.npz") as file:
            x, y = file["x_train"][:, None], file["y_train"].astype(np.int64)
            x_test, y_test = file["x_test"][:TEST, None], file["y_test"][:TEST].astype(np.int64)
    order = np.random.default_rng(ROWS_SEED).permutation(len(x))
    own, others = order[:TRAINING], order[TRAINING : TRAINING + PRETRAINING]
    return ImageSet(x[own], y[own], x[others], y[others], x_test, y_test)


def divided(y: np.ndarray, alpha: float, n_sites: int, seed: int) -> list[np.ndarray]:
    """Return the rows of every site: of each class, shares drawn from Dirichlet(alpha) over the sites."""
    rng = np.random.default_rng([ROWS_SEED, seed, n_sites, round(1000 * alpha)])
    least = min(LEAST_ROWS, len(y) // (4 * n_sites))
    best: list[np.ndarray] = []
    for _ in range(10_000):
        owner = np.empty(len(y), dtype=np.int64)
        for label in range(N_CLASSES):
            members = rng.permutation(np.flatnonzero(y == label))
            bounds = np.cumsum(rng.dirichlet(np.full(n_sites, alpha)))[:-1] * len(members)
            owner[members] = np.searchsorted(bounds, np.arange(len(members)), side="right")
        best = [np.flatnonzero(owner == site) for site in range(n_sites)]
        if min(map(len, best)) >= least:
            return best
    raise RuntimeError(f"no division of {n_sites} sites with {least} rows each at alpha {alpha}")


def random_features(name: str) -> dict[str, np.ndarray]:
    """Return random convolutional features of a set, computed once: train (n, d), test (m, d), and CPU seconds."""
    path = CACHE / f"features-{name}-{COUNT}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        data = images(name)
        features = features_of(name)
        begin = time.process_time()
        train = features(data.x)
        seconds = time.process_time() - begin
        np.savez(path, train=train, test=features(data.x_test), seconds=np.array(seconds))
    with np.load(path) as file:
        return {key: file[key] for key in file.files}


def features_of(name: str) -> cs.features.FeatureMap:
    """Return the random convolutions of a set."""
    return cs.features.random_convolutions(images(name).x.shape[1:], COUNT, seed=0, scale=SCALES[name])
