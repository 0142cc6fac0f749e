"""The data of the cells: rows of a half, their scalings, and their division between sites.

Needs the data folder ``CONSILIENCE_DATA`` (default ``../shared/data`` beside the repository). Training and test rows of
each set are permuted once, by ``ROWS_SEED``; ``tune`` draws from the first half of them and ``report`` from the second,
so that no row is in both. Images are reduced by the mean of 2 x 2 pixels unless a cell has their full side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from network_battery.cells import HALVES, STRONG_AND_WEAK, Setting
from sklearn.datasets import load_digits
from wasserstein.image_data import DATA, unpacked

ROWS_SEED = 24
TEST_ROWS = 5_000
"""Test rows of a cell at most: 5,000 give a standard error of 0.5 points at 85 %."""
LEAST_ROWS, LEAST_SHARE = 80, 0.1
"""Training rows of a site at least, and least share of the mean number of rows; other divisions are drawn again."""
VOCABULARY, LENGTH = 2_000, 24
"""Token ids from ``VOCABULARY`` on are the unknown word, 1; texts are cut after ``LENGTH`` tokens, padded before."""
UNKNOWN = 1
TEST_PART = 0.3
"""Part of a set without a test set of its own (scikit-learn's digits, faces of the font digits) that is for test."""
LAGS = (7, 14, 28)
FIRST_TEST_DAY = 15_340
"""Days since 1970 of 2012-01-01: temperatures from then on are for test."""
TEMPERATURE_MEAN, TEMPERATURE_SD = 60.0, 20.0
"""Degrees Fahrenheit that standardise temperatures, about those of the whole archive."""
PIXELS = {
    "fashion_mnist": (0.286, 0.353),
    "mnist": (0.131, 0.308),
    "cifar10": (0.473, 0.251),
    "digits_and_clothes": (0.208, 0.340),
}
"""Mean and standard deviation of pixels in [0, 1], which standardise them: of unreduced training images, CIFAR-10 over
all channels. The other sets have no standardised cell."""
Half = str
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class CellData:
    """What the sites of a cell have, and the rows that models are scored on.

    Parameters
    ----------
    sites : list of tuple of ndarray
        Inputs (n_j, ...) and labels (n_j,) of every site; labels are classes in int64, targets of a regression (n_j, 1)
        in float32.
    rows : list of ndarray of shape (n_j,)
        Where each site's rows are among the training rows of the half.
    test : tuple of ndarray
        Inputs and labels of the population of all sites.
    n_classes : int or None
        Number of classes; None for a regression.
    """

    sites: list[tuple[np.ndarray, np.ndarray]]
    rows: list[np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    n_classes: int | None

    @property
    def pooled(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and labels of all sites together."""
        inputs, labels = zip(*self.sites, strict=True)
        return np.concatenate(inputs), np.concatenate(labels)

    @property
    def counts(self) -> np.ndarray:
        """Observations of every class at every site (J, C); of a regression (J, 1)."""
        if self.n_classes is None:
            return np.array([[len(labels)] for _, labels in self.sites])
        return np.array([np.bincount(labels, minlength=self.n_classes) for _, labels in self.sites])


def load(setting: Setting) -> CellData:
    """Return the data of a cell."""
    x, y, x_test, y_test = SOURCES[setting.data](setting.half)
    rng = np.random.default_rng(setting.seed)
    chosen = rng.permutation(len(y))[: setting.rows]
    if len(chosen) < setting.rows:
        raise ValueError(f"{setting.name}: {setting.rows} rows asked for, {len(y)} there; correct the plan")
    divided = [np.sort(chosen[rows]) for rows in divide(y[chosen], setting, rng)]
    scale = partial(scaled, setting=setting)
    targets = temperatures if setting.skew == "regions" else np.asarray
    sites = [(scale(x[rows]), targets(y[rows])) for rows in divided]
    n_classes = None if setting.skew == "regions" else 1 + int(y.max())
    return CellData(sites, divided, (scale(x_test), targets(y_test)), n_classes)


def temperatures(y: np.ndarray) -> np.ndarray:
    """Return the targets (n, 1) of rows (n, 2) of temperature and region."""
    return y[:, :1].astype(np.float32)


def divide(labels: np.ndarray, setting: Setting, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the rows of every site.

    Parameters
    ----------
    labels : ndarray of shape (n,)
        Classes of the rows; (n, 2), temperature and region, for a regression.
    setting : Setting
        Its skew and number of sites.
    rng : Generator
        Draws the division.
    """
    n, n_sites = len(labels), setting.sites
    if setting.skew == "regions":
        return [np.flatnonzero(labels[:, 1] == site) for site in range(n_sites)]
    if setting.skew == "IID":
        return np.array_split(rng.permutation(n), n_sites)
    if setting.skew == "strong and weak":
        return np.split(rng.permutation(n), np.cumsum(STRONG_AND_WEAK)[:-1])
    while True:
        site = np.empty(n, dtype=int)
        for label in range(1 + int(labels.max())):
            own = rng.permutation(np.flatnonzero(labels == label))
            shares = rng.dirichlet(np.full(n_sites, float(setting.skew)))
            site[own] = np.searchsorted(np.cumsum(shares)[:-1] * len(own), np.arange(len(own)), side="right")
        if np.bincount(site, minlength=n_sites).min() >= max(LEAST_ROWS, LEAST_SHARE * n / n_sites):
            return [np.flatnonzero(site == number) for number in range(n_sites)]


def scaled(x: np.ndarray, setting: Setting) -> np.ndarray:
    """Return inputs as a cell has them: images float32 (n, channels, side, side), token ids int64 (n, length).

    Parameters
    ----------
    x : ndarray
        Images (n, side, side, channels) of 0 to 255, token ids, or rows that are standardised already.
    setting : Setting
        Its scaling and the side of its images.
    """
    if setting.scaling == "tokens" or not setting.side:
        return x
    factor = x.shape[1] // setting.side
    pixels = x.reshape(len(x), setting.side, factor, setting.side, factor, x.shape[3]).mean(axis=(2, 4))
    pixels = np.ascontiguousarray(np.moveaxis(pixels, 3, 1))
    if setting.scaling == "standard":
        mean, deviation = PIXELS[setting.data]
        pixels = (pixels / 255 - mean) / deviation
    elif setting.scaling == "unit":
        pixels /= 255
    return pixels.astype(np.float32)


def of_half(x: np.ndarray, y: np.ndarray, half: Half) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of a half, in the order of one permutation."""
    order = np.random.default_rng(ROWS_SEED).permutation(len(y))
    chosen = np.array_split(order, len(HALVES))[HALVES.index(half)]
    return x[chosen], y[chosen]


def test_rows(x: np.ndarray, y: np.ndarray, half: Half, *, both: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return at most ``TEST_ROWS`` rows; those of a half where both halves have cells of the set."""
    if both:
        x, y = of_half(x, y, half)
    order = np.random.default_rng(ROWS_SEED + 1).permutation(len(y))[:TEST_ROWS]
    return x[order], y[order]


@cache
def images(half: Half, *, name: str) -> Arrays:
    """Return MNIST or Fashion-MNIST, pixels (n, 28, 28, 1)."""
    with np.load(DATA / f"{name}.npz") as stored:
        x, x_test = (stored[f"x_{part}"][..., None] for part in ("train", "test"))
        y, y_test = (stored[f"y_{part}"].astype(np.int64) for part in ("train", "test"))
    return *of_half(x, y, half), *test_rows(x_test, y_test, half, both=True)


@cache
def cifar10(half: Half) -> Arrays:
    """Return CIFAR-10, pixels (n, 32, 32, 3): the first block of 10,000 training images for tune, the second else."""
    block = HALVES.index(half)
    with np.load(DATA / "cifar10.npz") as stored:
        x = unpacked(stored[f"x_train_{block}"])
        y = stored["y_train"][10_000 * block : 10_000 * (block + 1)].astype(np.int64)
        x_test, y_test = unpacked(stored["x_test"]), stored["y_test"].astype(np.int64)
    return x, y, *test_rows(x_test, y_test, half, both=True)


@cache
def digits_and_clothes(half: Half) -> Arrays:
    """Return MNIST as classes 0 to 9 and Fashion-MNIST as 10 to 19, alike many of each."""
    digits, clothes = images(half, name="mnist"), images(half, name="fashion_mnist")
    x, x_test = (np.concatenate([digits[part], clothes[part]]) for part in (0, 2))
    y, y_test = (np.concatenate([digits[part], clothes[part] + 10]) for part in (1, 3))
    chosen = np.random.default_rng(ROWS_SEED + 2).permutation(len(y_test))[:TEST_ROWS]
    return x, y, x_test[chosen], y_test[chosen]


@cache
def sklearn_digits(_half: Half) -> Arrays:
    """Return scikit-learn's digits, pixels (n, 8, 8, 1) scaled from 0 to 16 up to 255."""
    digits = load_digits()
    x, y = digits.images[..., None] * (255 / 16), digits.target.astype(np.int64)
    order = np.random.default_rng(ROWS_SEED).permutation(len(y))
    test, train = np.split(order, [round(TEST_PART * len(y))])
    return x[train], y[train], x[test], y[test]


@cache
def font_digits(_half: Half) -> Arrays:
    """Return digits in computer fonts, pixels (n, 28, 28, 1), divided by face."""
    with np.load(DATA / "font_digits.npz") as stored:
        x, y, font = stored["x"][..., None], stored["y"].astype(np.int64), stored["font"]
    faces = np.random.default_rng(ROWS_SEED).permutation(np.unique(font))
    is_test = np.isin(font, faces[: round(TEST_PART * len(faces))])
    return x[~is_test], y[~is_test], x[is_test], y[is_test]


@cache
def texts(half: Half, *, name: str, test_part: str = "test") -> Arrays:
    """Return token ids (n, ``LENGTH``) and classes of a set; only one half has cells of it."""
    with np.load(DATA / f"{name}.npz") as stored:
        x, y = padded(stored["tokens_train"], stored["offsets_train"]), stored["y_train"].astype(np.int64)
        x_test = padded(stored[f"tokens_{test_part}"], stored[f"offsets_{test_part}"])
        y_test = stored[f"y_{test_part}"].astype(np.int64)
    return x, y, *test_rows(x_test, y_test, half, both=False)


def padded(tokens: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the first ``LENGTH`` token ids of every text, padded before by 0, rare words as the unknown one."""
    tokens = np.where(tokens < VOCABULARY, tokens, UNKNOWN)
    lengths = np.minimum(np.diff(offsets), LENGTH)
    places = np.arange(LENGTH) - (LENGTH - lengths)[:, None]  # (n, LENGTH), negative where there is padding
    return np.where(places >= 0, tokens[np.minimum(offsets[:-1, None] + places.clip(0), len(tokens) - 1)], 0).astype(
        np.int64
    )


@cache
def city_temperatures(_half: Half, *, american: bool) -> Arrays:
    """Return the mean temperature of days and its region, by date, place and the temperatures of earlier weeks.

    Inputs are sine and cosine of the date in the year, latitude / 45, longitude / 90, height in km and standardised
    temperatures ``LAGS`` days before. Regions are fifths of the cities, by longitude in the United States and by
    latitude elsewhere.
    """
    with np.load(DATA / "city_temps.npz") as stored:
        city = np.flatnonzero((stored["country"] == "US") == american)
        measured, day = stored["temp_f_x10"][city].astype(float), stored["day"]
        place = np.stack([stored["lat"] / 45, stored["lon"] / 90, stored["elev_m"] / 1000], axis=1)[city]
    values = np.where(measured > -30_000, (measured / 10 - TEMPERATURE_MEAN) / TEMPERATURE_SD, np.nan)
    along = place[:, 1] if american else place[:, 0]
    region = np.searchsorted(np.quantile(along, [0.2, 0.4, 0.6, 0.8]), along)
    year = 2 * np.pi * day / 365.25
    shown = np.arange(max(LAGS), len(day))
    inputs = np.concatenate(
        [
            np.broadcast_to(np.stack([np.sin(year), np.cos(year)], axis=1)[shown], (len(city), len(shown), 2)),
            np.broadcast_to(place[:, None], (len(city), len(shown), 3)),
            np.stack([values[:, shown - lag] for lag in LAGS], axis=2),
        ],
        axis=2,
    )
    rows = np.stack([values[:, shown], np.broadcast_to(region[:, None], (len(city), len(shown)))], axis=2)
    is_whole = np.isfinite(inputs).all(axis=2) & np.isfinite(rows).all(axis=2)
    is_test = is_whole & (day[shown] >= FIRST_TEST_DAY)
    is_train = is_whole & (day[shown] < FIRST_TEST_DAY)
    x, y = inputs[is_train].astype(np.float32), rows[is_train]
    return x, y, *test_rows(inputs[is_test].astype(np.float32), rows[is_test], "", both=False)


SOURCES: dict[str, Callable[[Half], Arrays]] = {
    "fashion_mnist": partial(images, name="fashion_mnist"),
    "mnist": partial(images, name="mnist"),
    "cifar10": cifar10,
    "sklearn_digits": sklearn_digits,
    "font_digits": font_digits,
    "digits_and_clothes": digits_and_clothes,
    "ag_news": partial(texts, name="ag_news"),
    "dbpedia14": partial(texts, name="dbpedia14"),
    "sst2": partial(texts, name="sst2", test_part="dev"),
    "temperatures_us": partial(city_temperatures, american=True),
    "temperatures_world": partial(city_temperatures, american=False),
}
