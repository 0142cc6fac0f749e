"""Units and spellings: how often honest sites are doubted, and how often a fault is noticed.

``python experiments/agreement/run.py --half tune`` prints the results on one half of the data; ``--half report`` those
on the other, on which no number was set; ``--extremes`` those of scalers by extremes in place of linear regressions;
``--write`` also writes them to ``results.json`` beside this file.

Honest sites are rows of one table in one unit, split at random, by clusters, along a column (the most uneven split
there is), by class, or as the data came (firms, sequences, years). Faults are one column of one site in another unit:
1,000, 100, 88.4 (creatinine), 18 (glucose), 10 and 2.54 times as large or small, Kelvin for Celsius, Fahrenheit.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import statsmodels.api as sm
from sklearn import datasets
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import MaxAbsScaler

sys.path.append(str(Path(__file__).resolve().parents[1]))
from record import versions

import consilience as cs
from consilience.core.agreement import Meaning, doubts_of
from consilience.errors import TwiceWarning, UnitsWarning

HERE = Path(__file__).parent
DATA = Path(os.environ.get("CONSILIENCE_DATA", HERE.parents[2] / "shared" / "data"))
SEEDS = range(5)
SITES = (2, 3, 5, 10)
MIN_ROWS = 12
FACTORS = (1000.0, 100.0, 88.4, 18.0, 10.0, 2.54)

Table = tuple[np.ndarray, np.ndarray | None]
"""Rows (n, d), and the site that each came from where the data say it (n,)."""


def of_sklearn(name: str) -> Callable[[], Table]:
    """Return what loads a table of scikit-learn."""
    return lambda: (getattr(datasets, f"load_{name}")().data.astype(float), None)


def of_statsmodels(name: str, site: str | None = None, n_sites: int = 0) -> Callable[[], Table]:
    """Return what loads a table of statsmodels; sites are the values of a column, or equal parts along it."""

    def load() -> Table:
        frame = getattr(sm.datasets, name).load_pandas().data
        of = None
        if site is not None:
            of = frame[site].astype("category").cat.codes.to_numpy()
            if n_sites:
                of = of * n_sites // (of.max() + 1)
            frame = frame.drop(columns=site)
        rows = frame.select_dtypes("number").to_numpy(float)
        is_whole = np.isfinite(rows).all(axis=1)
        return rows[is_whole], None if of is None else of[is_whole]

    return load


def images(name: str) -> Callable[[], Table]:
    """Return what loads pixels of images, by class."""

    def load() -> Table:
        file = np.load(DATA / f"{name}.npz", allow_pickle=False)
        x, y = (file["x_train"], file["y_train"]) if "x_train" in file else (file["x_test"], file["y_test"])
        x = x[:2000, ::2, ::2]  # 14 x 14 pixels
        return x.reshape(len(x), -1).astype(float), y[:2000] // 2

    return load


def scores_of_images(name: str) -> Callable[[], Table]:
    """Return what loads 20 principal components of images, by class."""

    def load() -> Table:
        rows, of = images(name)()
        return PCA(20, random_state=0).fit_transform(rows), of

    return load


def cities() -> Table:
    """Return temperatures of four seasons in twelve cities in degrees Celsius, a site for each: warm and cold ones."""
    file = np.load(DATA / "city_temps.npz", allow_pickle=False)
    stored = file["temp_f_x10"]
    known = (stored[:, :8400] > -32768).mean(axis=1) > 0.98
    celsius = np.where(stored > -32768, (stored / 10.0 - 32.0) / 1.8, np.nan)[known]
    chosen = np.argsort(np.nanmean(celsius, axis=1))[np.linspace(0, known.sum() - 1, 12).astype(int)]
    days = np.arange(0, 8400, 31)
    parts = [celsius[city][days[:, None] + [0, 91, 182, 273]] for city in chosen]
    rows, of = np.concatenate(parts), np.repeat(np.arange(12), len(days))
    is_whole = np.isfinite(rows).all(axis=1)
    return rows[is_whole], of[is_whole]


def sequences() -> Table:
    """Return the channels of six motion-capture sequences, a site for each."""
    file = np.load(DATA / "mocap6.npz", allow_pickle=False)
    return file["x"], np.repeat(np.arange(6), np.diff(file["offsets"]))


TABLES: dict[str, Callable[[], Table]] = {
    "anes96": of_statsmodels("anes96"), "breast cancer": of_sklearn("breast_cancer"),
    "ccard": of_statsmodels("ccard"), "cities": cities, "copper": of_statsmodels("copper"),
    "diabetes": of_sklearn("diabetes"), "digits": of_sklearn("digits"), "engel": of_statsmodels("engel"),
    "fair": of_statsmodels("fair"), "fashion": images("fashion_mnist"),
    "fashion, components": scores_of_images("fashion_mnist"), "grunfeld": of_statsmodels("grunfeld", "firm"),
    "heart": of_statsmodels("heart"), "iris": of_sklearn("iris"), "linnerud": of_sklearn("linnerud"),
    "macrodata": of_statsmodels("macrodata", "year", 6), "mnist": images("mnist"),
    "mnist, components": scores_of_images("mnist"), "mocap": sequences, "modechoice": of_statsmodels("modechoice"),
    "randhie": of_statsmodels("randhie"), "scotland": of_statsmodels("scotland"), "spector": of_statsmodels("spector"),
    "star98": of_statsmodels("star98"), "statecrime": of_statsmodels("statecrime"), "wine": of_sklearn("wine"),
}  # fmt: skip
"""Tables in alphabetical order: those at even places tune, those at odd places report."""


def splits(rows: np.ndarray, of: np.ndarray | None, rng: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    """Yield how rows are split over sites: the split's name, and the site of every row (n,)."""
    n = len(rows)
    for n_sites in SITES:
        if n < 2 * MIN_ROWS * n_sites:
            continue
        yield "random", rng.integers(n_sites, size=n)
        varying = np.flatnonzero(rows.std(axis=0) > 0)
        for column in rng.choice(varying, size=min(3, len(varying)), replace=False):
            order = np.argsort(np.argsort(rows[:, column] + 1e-9 * rng.normal(size=n)))
            yield "along a column", order * n_sites // n
        scaled = (rows - rows.mean(axis=0)) / np.maximum(rows.std(axis=0), 1e-300)
        yield "clusters", KMeans(n_sites, n_init=1, random_state=int(rng.integers(1000))).fit(scaled).labels_
    if of is not None:
        yield "as the data came", of


LABELS: dict[str, Callable[[], tuple[str, ...]]] = {
    "breast cancer": lambda: tuple(datasets.load_breast_cancer().target_names),
    "iris": lambda: tuple(datasets.load_iris().target_names),
    "wine": lambda: tuple(datasets.load_wine().target_names),
    "digits": lambda: tuple(map(str, range(10))),
    "newsgroups": lambda: tuple(np.load(DATA / "newsgroups20_text.npz", allow_pickle=False)["label_names"].tolist()),
    "mocap": lambda: tuple(np.load(DATA / "mocap6.npz", allow_pickle=False)["state_names"].tolist()),
}
"""Names of classes of the data in the docs."""


def doubted_labels(names: tuple[str, ...], rng: np.random.Generator, n_sites: int) -> bool:
    """Return whether sites that have each some of the classes, spelt alike, are doubted."""
    sites = []
    for site in range(n_sites):
        own = rng.random(len(names)) < 0.6
        sites.append((f"site {site}", Meaning(labels=tuple(name for name, has in zip(names, own, strict=True) if has))))
    return bool(doubts_of(sites))


Describe = Callable[[np.ndarray], Any]
"""What a site sends of its rows (n, d)."""


def regression(rows: np.ndarray) -> Any:
    """Return the sums of a linear regression of the last column on the others."""
    model = LinearRegression().fit(rows[:, :-1], rows[:, -1])
    return cs.describe(model, data=(rows[:, :-1], rows[:, -1]))


def extremes(rows: np.ndarray) -> Any:
    """Return the greatest absolute values of the columns."""
    return cs.describe(MaxAbsScaler().fit(rows), min_count=0)


def says(
    rows: np.ndarray, of: np.ndarray, describe: Describe = regression, category: type[Warning] = UnitsWarning
) -> list[str]:
    """Return what is said of the units of sites, or by another warning."""
    by_site = {f"site {number}": rows[of == number] for number in np.unique(of)}
    sites = {name: describe(own) for name, own in by_site.items() if len(own) >= MIN_ROWS}
    if len(sites) < 2:
        return []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cs.check(sites)
    return [str(warning.message) for warning in caught if issubclass(warning.category, category)]


def faults(values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the values of a column in other units, by the name of the fault."""
    for factor in FACTORS:
        yield f"x {factor:g}", values * factor
        yield f"/ {factor:g}", values / factor
    if values.min() > -90 and values.max() < 150:
        yield "Kelvin", values + 273.15
        yield "Fahrenheit", values * 1.8 + 32.0


def main() -> None:
    """Count doubts of honest sites and of faults, by table and by split."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=("tune", "report"), required=True)
    parser.add_argument("--extremes", action="store_true")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    describe, key = (extremes, f"{arguments.half} extremes") if arguments.extremes else (regression, arguments.half)
    names = list(TABLES)[0 if arguments.half == "tune" else 1 :: 2]
    honest: dict[str, list[bool]] = defaultdict(list)
    noticed: dict[str, list[bool]] = defaultdict(list)
    by_table: dict[str, list[int]] = {}
    twice: list[bool] = []
    rng = np.random.default_rng(0)
    labels = [doubted_labels(load(), rng, count) for load in LABELS.values() for count in SITES for _ in range(50)]
    for name in names:
        rows, of = TABLES[name]()
        doubted = fusions = 0
        for seed in SEEDS:
            rng = np.random.default_rng(seed)
            for split, sites in splits(rows, of, rng):
                found = says(rows, sites, describe)
                fusions, doubted = fusions + 1, doubted + bool(found)
                honest[split].append(bool(found))
                twice.append(bool(says(rows, sites, describe, TwiceWarning)))
                if split != "random":
                    continue
                site = int(rng.integers(sites.max() + 1))
                here = sites == site
                column = int(rng.choice(np.flatnonzero(rows[here].std(axis=0) > 0)))
                for fault, values in faults(rows[here, column]):
                    wrong = rows.copy()
                    wrong[here, column] = values
                    noticed[fault].append(bool(says(wrong, sites, describe)))
        by_table[name] = [doubted, fusions]
        print(name, rows.shape, f"{doubted} of {fusions} honest fusions doubted", flush=True)  # noqa: T201
    results: dict[str, Any] = {
        "honest": {split: [sum(one), len(one)] for split, one in honest.items()},
        "tables": by_table,
        "noticed": {fault: [sum(one), len(one)] for fault, one in noticed.items()},
        "twice": [sum(twice), len(twice)],
        "spelling": [sum(labels), len(labels)],
        "seeds": len(SEEDS),
        "versions": versions(),
    }
    print("twice", results["twice"], "spelling", results["spelling"])  # noqa: T201
    for part in ("honest", "noticed"):
        for one, (count, total) in results[part].items():
            print(f"{part:8} {one:20} {count:5} of {total:5}  {100 * count / max(total, 1):5.1f} %")  # noqa: T201
    if arguments.write:
        path = HERE / "results.json"
        document = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**document, key: results}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
