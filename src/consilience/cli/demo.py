"""The demo: five sites with different populations of handwritten digits train apart, and their files are fused.

The data are scikit-learn's 1,797 digits of 8 x 8 pixels. Every site computes the same ten low-frequency cosine
coefficients, a transformation that needs no data, holds four of the ten digits in its own proportions, and fits a
variational Gaussian mixture under a prior that all sites agreed on. Number of components and restarts are the same
everywhere. The held-out digits are 500 drawn at random from all ten classes.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from consilience import api
from consilience.checks import Array, Labels
from consilience.core.fusion import Fusion
from consilience.core.provenance import library_versions
from consilience.drawing.figures import comparison_figure, save_figure
from consilience.errors import InputError
from consilience.files.atomic import write_bytes
from consilience.posteriors.files import read_posterior
from consilience.posteriors.posterior import Features
from consilience.posteriors.rebuild import rebuild

CLASSES_OF_SITES: Final = ((0, 1, 2, 3), (2, 3, 4, 5), (4, 5, 6, 7), (6, 7, 8, 9), (8, 9, 0, 1))
DIM: Final = 10
LOCAL_COMPONENTS: Final = 5
POOLED_COMPONENTS: Final = 10
HELD_OUT: Final = 500
SKEW: Final = 3.0
INITIALISATIONS: Final = 3

Say = Callable[[str], Any]


@dataclass(frozen=True, eq=False)
class _Repetition:
    """What one seed gave: (log likelihood per digit, mutual information with the classes, components) by name."""

    scores: dict[str, tuple[float, float, int]]
    fusion: Fusion
    labels: list[str]


def run_demo(folder: Path, seeds: int, say: Say) -> None:
    """Run the demo in `folder`: site files, fused files, ``demo.json``, ``demo.png`` and ``report.html``.

    Raises
    ------
    InputError
        When the folder cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made: {error.strerror}") from error
    values, classes, names = _digits()
    say(f"Five sites hold different digits ({len(values)} images, {DIM} features each); no site shows its data.")
    repetitions = []
    for seed in range(seeds):
        say(f"seed {seed}: five sites train, then: consilience fuse site-*.safetensors -o fused.safetensors")
        repetitions.append(_repeat(folder / f"seed-{seed}", values, classes, names, seed))
    table = _table(repetitions)
    say("\n" + "\n".join(_lines(table)))
    record = {"settings": _settings(seeds), "versions": library_versions(), "results": table}
    write_bytes(folder / "demo.json", (json.dumps(record, indent=2, sort_keys=True) + "\n").encode())
    _draw(folder / "demo.png", table, repetitions[0])
    repetitions[0].fusion.report(folder / "report.html")
    say(f"\nwrote {folder / 'demo.json'} and {folder / 'demo.png'}; the fused model is in {folder / 'seed-0'},")
    say(f"and {folder / 'report.html'} tells all about it: open it in a browser")


def _digits() -> tuple[Array, Labels, tuple[str, ...]]:
    """Return features (n, D), classes (n,) and feature names."""
    from scipy.fft import dctn
    from sklearn.datasets import load_digits

    data = load_digits()
    spectrum = dctn(data.images, axes=(1, 2), norm="ortho") / 8.0
    places = sorted(((i, j) for i in range(8) for j in range(8) if i + j > 0), key=lambda place: (sum(place), place))
    chosen = places[:DIM]
    values = np.stack([spectrum[:, i, j] for i, j in chosen], axis=1)
    return values, data.target, tuple(f"cosine-{i}-{j}" for i, j in chosen)


def _split(classes: Labels, rng: np.random.Generator) -> tuple[list[Labels], Labels]:
    """Return the rows of every site and the held-out rows."""
    order = rng.permutation(len(classes))
    held_out, rest = order[:HELD_OUT], order[HELD_OUT:]
    sites: list[list[int]] = [[] for _ in CLASSES_OF_SITES]
    for digit in range(10):
        rows = rest[classes[rest] == digit]
        holders = [site for site, digits in enumerate(CLASSES_OF_SITES) if digit in digits]
        shares = rng.dirichlet(np.full(len(holders), SKEW))
        for row, site in zip(rows, rng.choice(holders, size=len(rows), p=shares), strict=True):
            sites[site].append(int(row))
    return [np.array(rows) for rows in sites], held_out


def _fit(values: Array, components: int, seed: int) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import BayesianGaussianMixture

    model = BayesianGaussianMixture(
        n_components=components,
        weight_concentration_prior_type="dirichlet_distribution",
        weight_concentration_prior=1.0,
        mean_prior=np.zeros(DIM),
        mean_precision_prior=1.0,
        degrees_of_freedom_prior=DIM + 2,
        covariance_prior=np.eye(DIM),
        n_init=INITIALISATIONS,
        max_iter=500,
        random_state=seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(values)


def _repeat(folder: Path, values: Array, classes: Labels, names: tuple[str, ...], seed: int) -> _Repetition:
    """Train the sites, write their files, fuse the files in every way, and score all models on held-out digits."""
    from sklearn.metrics import adjusted_mutual_info_score

    folder.mkdir(exist_ok=True)
    sites, held_out = _split(classes, np.random.default_rng(seed))
    paths, locals_, labels = [], [], []
    for number, rows in enumerate(sites, 1):
        model = _fit(values[rows], LOCAL_COMPONENTS, seed)
        path = folder / f"site-{number}.safetensors"
        api.save(model, path, features=Features(names=names))
        paths.append(str(path))
        locals_.append(model)
        labels += _majority(classes[rows], model.predict(values[rows]), LOCAL_COMPONENTS)
    fused = api.fuse(paths, rng=seed)
    fused.save(folder / "fused.safetensors")
    candidates: dict[str, Any] = {f"site {number}": model for number, model in enumerate(locals_, 1)}
    candidates |= {
        "naive average": api.fuse(paths, "average", rng=seed).model,
        "concatenation": api.fuse(paths, "concatenate", rng=seed).model,
        f"KL-k-means, {POOLED_COMPONENTS} told": api.fuse(
            paths, "kmeans", rng=seed, n_components=POOLED_COMPONENTS
        ).model,
        "fused": rebuild(read_posterior(folder / "fused.safetensors")[0]),
        "fused, product": api.fuse(paths, rng=seed, combine="product").model,
        "all data pooled": _fit(values[np.concatenate(sites)], POOLED_COMPONENTS, seed),
    }
    test, truth = values[held_out], classes[held_out]
    scores = {
        name: (
            float(model.score(test)),
            float(adjusted_mutual_info_score(truth, model.predict(test))),
            int(model.means_.shape[0]),
        )
        for name, model in candidates.items()
    }
    return _Repetition(scores, fused, labels)


def _majority(classes: Labels, assigned: Labels, components: int) -> list[str]:
    """Return the commonest digit of each component, for the picture only."""
    found = (classes[assigned == component] for component in range(components))
    return [str(np.bincount(members).argmax()) if len(members) else "-" for members in found]


def _table(repetitions: list[_Repetition]) -> dict[str, dict[str, list[float]]]:
    """Return, by name, the values over seeds; the five sites also as their mean and their best."""
    columns = ("log_likelihood", "mutual_information", "components")
    table: dict[str, dict[str, list[float]]] = {}
    site_names = [name for name in repetitions[0].scores if name.startswith("site ")]
    for index, column in enumerate(columns):
        by_site = np.array([[r.scores[name][index] for name in site_names] for r in repetitions], dtype=np.float64)
        table.setdefault("sites, mean", {})[column] = by_site.mean(axis=1).tolist()
        table.setdefault("sites, best", {})[column] = by_site.max(axis=1).tolist()
        for name in repetitions[0].scores:
            table.setdefault(name, {})[column] = [float(r.scores[name][index]) for r in repetitions]
    return table


def _lines(table: dict[str, dict[str, list[float]]]) -> list[str]:
    """Return the comparison as text: mean and standard deviation over seeds, and the gap to pooled data."""
    lines = [f"{'':22} {'log likelihood':>18} {'to pooled':>10} {'mutual information':>20} {'components':>11}"]
    pooled = np.array(table["all data pooled"]["log_likelihood"])
    for name, columns in table.items():
        fit, information = np.array(columns["log_likelihood"]), np.array(columns["mutual_information"])
        lines.append(
            f"{name:22} {fit.mean():10.2f} ± {_deviation(fit):5.2f} {np.mean(fit - pooled):10.2f}"
            f" {information.mean():12.3f} ± {_deviation(information):5.3f} {np.mean(columns['components']):11.1f}"
        )
    return lines


def _deviation(values: Array) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def _settings(seeds: int) -> dict[str, Any]:
    return {
        "data": "scikit-learn load_digits, 10 low-frequency cosine coefficients",
        "classes_of_sites": [list(digits) for digits in CLASSES_OF_SITES],
        "share_of_a_digit": f"Dirichlet({SKEW}) over the sites that hold it",
        "local_components": LOCAL_COMPONENTS,
        "pooled_components": POOLED_COMPONENTS,
        "initialisations": INITIALISATIONS,
        "held_out": HELD_OUT,
        "seeds": list(range(seeds)),
        "chosen_on": "fixed beforehand, the same everywhere; the number of classes was told to pooled and k-means only",
        "log_likelihood": "mean per held-out digit, nats",
        "mutual_information": "adjusted mutual information of predicted components and true digits, held out",
    }


def _draw(path: Path, table: dict[str, dict[str, list[float]]], first: _Repetition) -> None:
    names = [name for name in table if not name.startswith("site ")]
    scores = [
        ("Log likelihood of held-out digits", np.array([table[name]["log_likelihood"] for name in names])),
        ("Adjusted mutual information with digits", np.array([table[name]["mutual_information"] for name in names])),
    ]
    matching = first.fusion.matching
    meaning = "commonest digit of the site's component"
    save_figure(comparison_figure(names, scores, matching.labels, matching.owner, first.labels, meaning), path)
