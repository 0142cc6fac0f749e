"""Real data with labels: site splits in which every site lacks classes.

The data sets of which earlier rules for the number of components have seen results (scikit-learn's digits, iris, wine)
are in the half "tune". Of the others, in alphabetical order, the first and the fourth join them; the rest are reported.
Each has two cells: few sites that hold many classes, and more sites that hold few.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import statsmodels.datasets
from battery.cells import Data
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_linnerud,
    load_wine,
)
from sklearn.decomposition import PCA

FOLDER = Path(os.environ.get("CONSILIENCE_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
SEEN = ("digits", "iris", "wine")
OTHERS = ("ag_news", "breast_cancer", "dbpedia14", "fashion_mnist", "font_digits", "mnist", "mocap6")
TUNE = (*SEEN, *OTHERS[:4:3])
REPORT = tuple(name for name in OTHERS if name not in TUNE)
LAYOUTS = {"few sites": (5, 0.5), "more sites": (12, 0.3)}
"""Sites, and the share of the classes that each holds; at least two classes."""
SMALL_LAYOUTS = {"few sites": (3, 0.6), "more sites": (5, 0.6)}
"""The same for data of fewer than 1,000 rows."""
SMALL = 1000
ROWS_PER_CLASS = 120
"""Rows of a class at a site, at most, so that local fits stay cheap and thin."""
HELD_OUT = 1000
DIM = 10
"""Principal components, of all training rows; fewer where rows are few (``SMALL_DIM``)."""
SMALL_DIM = 5
CONCENTRATION = 3.0
"""Dirichlet concentration of the shares of a class over the sites that hold it, as in the library's demo."""


@dataclass(frozen=True)
class RealSetting:
    """A cell of real data; its half follows from the data set."""

    name: str
    half: str
    kind: str
    seed: int
    data: str
    sites: int
    classes: float
    local: str = "fitted"
    prior: str = "default"
    group: str = "real"


def plan(half: str) -> list[RealSetting]:
    """Return the cells of real data of a half."""
    cells = []
    for data in TUNE if half == "tune" else REPORT:
        small = data in ("breast_cancer", "iris", "wine")
        for number, (layout, (sites, share)) in enumerate((SMALL_LAYOUTS if small else LAYOUTS).items()):
            name = f"{half}-real-{re.sub('_', '-', data)}-{layout.split()[0]}"
            seed = 1000 * (1 + number) + sum(map(ord, data)) + (500_000 if half == "second" else 0)
            cells.append(RealSetting(name, half, layout, seed, data, sites, share))
    return cells


SETS = (
    "ag_news",
    "anes96",
    "breast_cancer",
    "dbpedia14",
    "diabetes",
    "digits",
    "fair",
    "fashion_mnist",
    "font_digits",
    "linnerud",
    "mnist",
    "mocap6",
    "temperatures",
    "wine",
)
"""Data sets of the table over real sets, in alphabetical order."""
SET_SEEDS = range(5)
NO_FILE = (*SEEN, "breast_cancer", "diabetes", "linnerud", "anes96", "fair")
"""Those that packages ship."""
N_QUANTILES = 4
"""Classes of data without any: quarters of what is to be predicted."""


def sets() -> list[RealSetting]:
    """Return the cells of the table over real sets: five sites, or three where rows are few, of half of the classes."""
    cells = []
    for seed in SET_SEEDS:
        for data in SETS:
            sites, share = SMALL_LAYOUTS["few sites"] if len(features(data)[0]) < SMALL else LAYOUTS["few sites"]
            name = f"sets-{re.sub('_', '-', data)}-{seed}"
            cells.append(RealSetting(name, "sets", "few sites", 7000 + seed, data, sites, share))
    return cells


def is_there(setting: RealSetting) -> bool:
    """Return whether the data of a cell are on this machine."""
    if setting.data in NO_FILE:
        return True
    stored = "city_temps" if setting.data == "temperatures" else setting.data
    needed = [stored, *(["glove50_vocab"] if setting.data in ("ag_news", "dbpedia14") else [])]
    return all((FOLDER / f"{name}.npz").exists() for name in needed)


def split(setting: RealSetting) -> Data:
    """Return the rows of every site: whole classes are lacking, shares of the others are drawn."""
    rng = np.random.default_rng(setting.seed)
    x, y = features(setting.data)
    order = rng.permutation(len(x))
    n_held_out = min(HELD_OUT, len(x) // 4)
    held_out, training = order[:n_held_out], order[n_held_out:]
    n_classes = int(y.max()) + 1
    held = max(2, round(setting.classes * n_classes))
    holds = np.zeros((setting.sites, n_classes), dtype=bool)
    while not holds.any(axis=0).all():  # every class is somewhere
        for site in range(setting.sites):
            holds[site] = np.isin(np.arange(n_classes), rng.choice(n_classes, size=held, replace=False))
    rows: list[list[np.ndarray]] = [[] for _ in range(setting.sites)]
    for label in range(n_classes):
        members, holders = training[y[training] == label], np.flatnonzero(holds[:, label])
        shares = rng.dirichlet(np.full(len(holders), CONCENTRATION))
        members = members[: int(ROWS_PER_CLASS * len(holders))]
        for site, part in zip(holders, np.split(members, _ends(shares, len(members))), strict=True):
            rows[site].append(part)
    of_site = [np.concatenate(parts) for parts in rows]
    return Data([x[part] for part in of_site], [y[part] for part in of_site], x[held_out], y[held_out], None)


def _ends(shares: np.ndarray, total: int) -> np.ndarray:
    """Return where the parts of `total` rows end, but for the last."""
    return np.round(np.cumsum(shares)[:-1] * total).astype(int)


@cache
def features(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return features (n, D), scaled to standard deviation one on average, and classes (n,) from 0."""
    if name in ("breast_cancer", "iris", "wine"):
        loaded = {"breast_cancer": load_breast_cancer, "iris": load_iris, "wine": load_wine}[name]()
        x, y = _standardised(loaded.data), loaded.target
        dim = min(SMALL_DIM, x.shape[1])
    elif name == "digits":
        loaded = load_digits()
        x, y, dim = loaded.data, loaded.target, DIM
    elif name in ("mnist", "fashion_mnist"):
        with np.load(FOLDER / f"{name}.npz") as stored:  # 10,000 test images are many enough
            x, y, dim = stored["x_test"].reshape(-1, 784).astype(float), stored["y_test"], DIM
    elif name == "font_digits":
        with np.load(FOLDER / "font_digits.npz") as stored:
            x, y, dim = stored["x"].reshape(-1, 784).astype(float), stored["y"], DIM
    elif name in ("diabetes", "linnerud", "temperatures"):
        x, y = _without_classes(name)
        dim = min(SMALL_DIM, x.shape[1])
    elif name in ("anes96", "fair"):
        loaded = getattr(statsmodels.datasets, name).load_pandas()
        x, y, dim = _standardised(loaded.exog.to_numpy(float)), _quarters(loaded.endog.to_numpy(float)), SMALL_DIM
    elif name == "mocap6":
        with np.load(FOLDER / "mocap6.npz") as stored:
            x, y, dim = _standardised(stored["x"]), stored["z"], DIM
    else:
        x, y = _documents(name)
        dim = DIM
    reduced = PCA(dim, random_state=0).fit_transform(x)
    return reduced / reduced.std(), np.unique(y, return_inverse=True)[1]


def _without_classes(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return standardised rows (n, D), and the quarters (n,) of what is to be predicted of them."""
    if name == "temperatures":  # of every city by month; what is to be predicted is its latitude
        with np.load(FOLDER / "city_temps.npz") as stored:
            days = stored["day"].astype("datetime64[D]").astype("datetime64[M]").astype(int) % 12
            values = np.where(stored["temp_f_x10"] == np.iinfo(np.int16).min, np.nan, stored["temp_f_x10"] / 10.0)
            latitudes = stored["lat"].astype(float)
        x = np.stack([np.nanmean(values[:, days == month], axis=1) for month in range(12)], axis=1)
        return _standardised(x), _quarters(latitudes)
    loaded = {"diabetes": load_diabetes, "linnerud": load_linnerud}[name]()
    target = loaded.target if loaded.target.ndim == 1 else loaded.target[:, 0]
    return _standardised(loaded.data), _quarters(target)


def _quarters(values: np.ndarray) -> np.ndarray:
    """Return which quarter each value is in (n,)."""
    edges = np.unique(np.quantile(values, np.arange(1, N_QUANTILES) / N_QUANTILES))
    return np.unique(np.searchsorted(edges, values), return_inverse=True)[1]


def _standardised(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(axis=0)) / x.std(axis=0)


def _documents(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean word vector (n, 50) of the test documents of a set, and their classes."""
    with np.load(FOLDER / "glove50_vocab.npz") as vocabulary, np.load(FOLDER / f"{name}.npz") as stored:
        vectors, known = vocabulary["vectors"].astype(float), vocabulary["has_vector"]
        tokens, offsets, y = (stored[f"{part}_test"] for part in ("tokens", "offsets", "y"))
    sums = np.add.reduceat(np.where(known[tokens, None], vectors[tokens], 0.0), offsets[:-1], axis=0)
    counts = np.add.reduceat(known[tokens].astype(float), offsets[:-1])
    return sums / np.maximum(counts, 1.0)[:, None], y
