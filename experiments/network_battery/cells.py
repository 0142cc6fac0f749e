"""The cells of the battery of network fusion, written down before the default was tuned on any of them.

``TUNE`` and ``REPORT`` have one line a cell. The halves have the same make-up, so many cells of each architecture,
scaling, start, skew and number of sites, crossed in different ways; they differ in data sets or in the rows drawn from
them (``data.py``), in widths and depths, and in seeds. Constants are chosen on ``tune`` alone.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import Any

HALVES = ("tune", "report")
SKEWS = ("IID", "0.5", "0.3", "0.1", "0.05", "strong and weak", "regions")
"""Classes over sites: alike, by a Dirichlet distribution of this concentration for each class, alike at sites of
``STRONG_AND_WEAK`` rows; and, for regressions, each site a region of its own."""
STRONG_AND_WEAK = (8000, 400, 300)
"""Training rows of the sites of such a cell, as in the checks that the default is specified by."""
AXES = ("architecture", "scaling", "start", "skew", "sites")
"""What the halves agree in, as numbers of cells."""

Row = tuple[str, tuple[int, ...], str, int, str, str, str, int, int]

TUNE: tuple[Row, ...] = (
    # architecture, widths, data, side, scaling, start, skew, sites, training rows
    ("MLP", (80, 40), "fashion_mnist", 14, "unit", "common", "0.1", 5, 10_000),
    ("MLP", (100, 50), "mnist", 28, "unit", "own", "0.5", 5, 10_000),
    ("MLP", (64, 64, 64), "fashion_mnist", 14, "standard", "own", "IID", 3, 9_000),
    ("MLP", (96, 48), "mnist", 14, "byte", "common", "0.3", 8, 10_000),
    ("MLP", (48, 32), "sklearn_digits", 8, "unit", "own", "0.3", 2, 1_000),
    ("MLP", (32, 16), "temperatures_us", 0, "standard", "common", "regions", 5, 10_000),
    ("LeNet", (8, 16, 64), "fashion_mnist", 14, "standard", "common", "0.05", 5, 10_000),
    ("LeNet", (12, 24, 64), "cifar10", 16, "unit", "own", "0.1", 5, 10_000),
    ("LeNet", (8, 16, 48), "mnist", 14, "unit", "own", "strong and weak", 3, 8_700),
    ("LeNet", (8, 16, 64), "fashion_mnist", 14, "byte", "common", "0.5", 16, 10_000),
    ("VGG", (12, 24), "fashion_mnist", 14, "unit", "own", "IID", 2, 8_000),
    ("VGG", (16, 32), "cifar10", 16, "standard", "common", "0.3", 3, 10_000),
    ("VGG", (8, 16), "mnist", 14, "byte", "own", "0.1", 5, 8_000),
    ("ResNet-8 BN", (8, 16, 32), "fashion_mnist", 14, "standard", "own", "IID", 8, 10_000),
    ("ResNet-8 BN", (12, 24, 32), "cifar10", 16, "unit", "common", "0.3", 5, 10_000),
    ("ResNet-8 BN", (8, 16, 24), "mnist", 14, "byte", "common", "0.05", 5, 8_000),
    ("ResNet-8 BN", (8, 12, 24), "fashion_mnist", 14, "unit", "common", "strong and weak", 3, 8_700),
    ("ResNet-8 GN", (8, 16, 32), "fashion_mnist", 14, "byte", "own", "0.5", 2, 8_000),
    ("ResNet-8 GN", (12, 24, 32), "cifar10", 16, "standard", "own", "0.1", 8, 10_000),
    ("LSTM", (40,), "ag_news", 0, "tokens", "own", "IID", 3, 9_000),
    ("LSTM", (32, 32), "ag_news", 0, "tokens", "common", "0.3", 5, 10_000),
    ("transformer", (32, 64), "ag_news", 0, "tokens", "common", "0.5", 2, 8_000),
    ("transformer", (24, 48, 48), "ag_news", 0, "tokens", "own", "0.05", 5, 10_000),
    ("transformer", (32, 48), "ag_news", 0, "tokens", "common", "strong and weak", 3, 8_700),
    ("BNN", (50,), "mnist", 14, "unit", "own", "0.1", 8, 10_000),
    ("BNN", (40, 40), "fashion_mnist", 14, "standard", "common", "IID", 16, 10_000),
)
REPORT: tuple[Row, ...] = (
    ("MLP", (120, 80, 60), "digits_and_clothes", 28, "unit", "own", "IID", 3, 10_000),
    ("MLP", (64, 48), "fashion_mnist", 14, "standard", "common", "0.5", 8, 9_000),
    ("MLP", (40, 40), "font_digits", 14, "unit", "common", "0.3", 2, 1_400),
    ("MLP", (128, 32), "mnist", 14, "byte", "own", "0.1", 5, 8_000),
    ("MLP", (96, 64), "digits_and_clothes", 14, "unit", "common", "0.05", 5, 10_000),
    ("MLP", (24, 24, 24), "temperatures_world", 0, "standard", "own", "regions", 5, 10_000),
    ("LeNet", (10, 20, 50), "mnist", 14, "standard", "own", "0.1", 5, 8_000),
    ("LeNet", (6, 12, 48), "fashion_mnist", 14, "unit", "common", "strong and weak", 3, 8_700),
    ("LeNet", (16, 24, 48), "cifar10", 16, "byte", "own", "0.3", 5, 10_000),
    ("LeNet", (10, 16, 80), "digits_and_clothes", 14, "standard", "own", "0.3", 16, 10_000),
    ("VGG", (10, 20), "mnist", 14, "unit", "own", "0.5", 2, 6_000),
    ("VGG", (12, 16, 24), "fashion_mnist", 14, "byte", "common", "0.05", 3, 9_000),
    ("VGG", (16, 24), "cifar10", 16, "standard", "own", "strong and weak", 3, 8_700),
    ("ResNet-8 BN", (10, 16, 24), "mnist", 14, "unit", "common", "0.1", 8, 10_000),
    ("ResNet-8 BN", (8, 20, 32), "fashion_mnist", 14, "byte", "own", "IID", 5, 9_000),
    ("ResNet-8 BN", (12, 20, 40), "cifar10", 16, "standard", "common", "0.5", 2, 10_000),
    ("ResNet-8 BN", (10, 20, 30), "digits_and_clothes", 14, "unit", "common", "0.3", 5, 10_000),
    ("ResNet-8 GN", (8, 12, 24), "mnist", 14, "standard", "own", "0.05", 5, 8_000),
    ("ResNet-8 GN", (10, 20, 30), "fashion_mnist", 14, "byte", "common", "IID", 3, 9_000),
    ("LSTM", (48,), "dbpedia14", 0, "tokens", "own", "0.1", 5, 10_000),
    ("LSTM", (24, 24), "sst2", 0, "tokens", "common", "strong and weak", 3, 8_700),
    ("transformer", (32, 48, 48), "dbpedia14", 0, "tokens", "common", "0.3", 8, 10_000),
    ("transformer", (24, 64), "sst2", 0, "tokens", "own", "IID", 2, 8_000),
    ("transformer", (40, 64), "dbpedia14", 0, "tokens", "common", "0.5", 5, 9_000),
    ("BNN", (40,), "fashion_mnist", 14, "unit", "own", "0.1", 8, 10_000),
    ("BNN", (60, 30), "digits_and_clothes", 14, "unit", "common", "IID", 16, 10_000),
)
PLANS = {"tune": TUNE, "report": REPORT}


@dataclass(frozen=True)
class Setting:
    """A cell.

    Parameters
    ----------
    name : str
        Its name, which is unique.
    half : {"tune", "report"}
        The half that it belongs to.
    seed : int
        Seed of the rows drawn, their division, all starts and orders.
    architecture : str
        A key of ``architectures.ARCHITECTURES``.
    widths : tuple of int
        Widths of its layers, as the architecture reads them.
    data : str
        A key of ``data.SOURCES``.
    side : int
        Height and width of the images; 0 for data that are none.
    scaling : {"unit", "standard", "byte", "tokens"}
        Pixels in [0, 1], standardised by one mean and deviation, in [0, 255], or token ids.
    start : {"common", "own"}
        Whether all sites start from the same weights.
    skew : str
        One of ``SKEWS``.
    sites : int
        Number J of sites.
    rows : int
        Training rows of all sites together.
    """

    name: str
    half: str
    seed: int
    architecture: str
    widths: tuple[int, ...]
    data: str
    side: int
    scaling: str
    start: str
    skew: str
    sites: int
    rows: int


def plan(half: str) -> list[Setting]:
    """Return the cells of a half."""
    first_seed = 1000 * (1 + HALVES.index(half))
    settings = []
    for number, row in enumerate(PLANS[half]):
        label = re.sub("[^a-z0-9]+", "-", f"{row[0]} {row[2]}".lower())
        settings.append(Setting(f"{half}-{number:02d}-{label}", half, first_seed + number, *row))
    return settings


def setting_named(name: str) -> Setting:
    """Return the setting of the one cell whose name begins with `name`."""
    (setting,) = (setting for half in HALVES for setting in plan(half) if setting.name.startswith(name))
    return setting


def settings_of(setting: Setting) -> dict[str, Any]:
    """Return a setting as JSON values."""
    return {**asdict(setting), "widths": list(setting.widths)}


def digest(values: Any) -> str:
    """Return eight letters that tell JSON values apart."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]
