"""The demo: non-IID sites of handwritten digits train Gaussian mixtures apart, and their files are fused in one shot.

The data are scikit-learn's 1,797 digits of 8 x 8 pixels. The features are the D = 10 cosine coefficients of lowest
frequency, a transformation that needs no data. Each of five sites holds four of the ten digits; for each digit the
shares of the sites that hold it are drawn from Dirichlet(3). A site fits a variational Gaussian mixture under a prior
that all sites agreed on; number of components and restarts are the same everywhere. The held-out digits are 500 drawn
at random from all ten classes. Scores are the mean log likelihood of a held-out digit in nats, and the adjusted mutual
information of predicted components and true digits. Number of components, prior and features were fixed beforehand
(docs/demo.md).
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
from consilience.drawing.comparison import comparison_drawing
from consilience.errors import InputError
from consilience.files.atomic import write_bytes
from consilience.posteriors.files import read_posterior
from consilience.posteriors.posterior import Features
from consilience.posteriors.rebuild import rebuild

CLASSES_OF_SITES: Final = ((0, 1, 2, 3), (2, 3, 4, 5), (4, 5, 6, 7), (6, 7, 8, 9), (8, 9, 0, 1))
"""Digits that each site holds: a ring in which neighbours share two. Chosen by hand."""
DIM: Final = 10
"""Number of cosine coefficients D. Chosen by hand, and fixed beforehand (docs/demo.md)."""
PUBLIC_DATA: Final = 0
"""The ``min_count`` of the demo. Images of digits are no secret, and the naive average needs sites of equal size."""
LOCAL_COMPONENTS: Final = 5
"""Components of a site's mixture, one more than it has digits. Chosen by hand, and fixed beforehand (docs/demo.md)."""
POOLED_COMPONENTS: Final = 10
"""Components of the mixture of all data pooled, and of k-means: the number of digits, which no fusion is told."""
HELD_OUT: Final = 500
"""Number of held-out digits. Chosen by hand; nobody has measured other values."""
DIRICHLET_CONCENTRATION: Final = 3.0
"""Concentration of a digit's shares over the sites that hold it; smaller is more skewed.

Chosen by hand; nobody has measured other values.
"""
INITIALISATIONS: Final = 3
"""Restarts of every fit. Chosen by hand; nobody has measured other values."""

PrintLine = Callable[[str], Any]
"""Prints one line, or does not."""


@dataclass(frozen=True, eq=False)
class _Repetition:
    """The results of one seed.

    Parameters
    ----------
    scores : dict of str to tuple
        Log likelihood per digit, mutual information with the classes, and number of components of each model.
    fusion : Fusion
        The recommended fusion.
    labels : list of str
        The commonest digit of each local component (L,).
    """

    scores: dict[str, tuple[float, float, int]]
    fusion: Fusion
    labels: list[str]


def run_demo(folder: Path, seeds: int, print_line: PrintLine) -> None:
    """Run the demo in `folder`: site files, fused files, ``demo.json``, ``demo.svg`` and ``report.html``.

    Parameters
    ----------
    folder : Path
        Where to write; made where it does not exist.
    seeds : int
        Number of repetitions, with seeds 0, 1, ...
    print_line : callable
        Gets every line of the demo's story.

    Raises
    ------
    InputError
        When the folder cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(folder, f"cannot be made: {error.strerror}") from error
    values, classes, names = _load_features()
    print_line(f"Five sites hold different digits ({len(values)} images, {DIM} features each); no site shows its data.")
    repetitions = []
    for seed in range(seeds):
        print_line(
            f"seed {seed}: five sites train, then: consilience fuse site-*.safetensors --min-count 0"
            " -o fused.safetensors"
        )
        repetitions.append(_repeat(folder / f"seed-{seed}", values, classes, names, seed))
    table = _score_table(repetitions)
    print_line("\n" + "\n".join(_format_table(table)))
    record = {"settings": _settings(seeds), "versions": library_versions(), "results": table}
    write_bytes(folder / "demo.json", (json.dumps(record, indent=2, sort_keys=True) + "\n").encode())
    _draw_comparison(folder / "demo.svg", table, repetitions[0])
    repetitions[0].fusion.report(folder / "report.html")
    print_line(f"\nwrote {folder / 'demo.json'} and {folder / 'demo.svg'}; the fused model is in {folder / 'seed-0'},")
    print_line(f"and {folder / 'report.html'} tells all about it: open it in a browser")


def _load_features() -> tuple[Array, Labels, tuple[str, ...]]:
    """Return cosine coefficients (n, D), classes (n,) and names of coefficients (D,)."""
    from scipy.fft import dctn
    from sklearn.datasets import load_digits

    data = load_digits()
    spectrum = dctn(data.images, axes=(1, 2), norm="ortho") / 8.0  # (n, 8, 8)
    # Without the coefficient (0, 0), which is the mean brightness.
    frequencies = sorted(((i, j) for i in range(8) for j in range(8) if i + j > 0), key=lambda pair: (sum(pair), pair))
    lowest = frequencies[:DIM]
    values = np.stack([spectrum[:, i, j] for i, j in lowest], axis=1)  # (n, D)
    return values, data.target, tuple(f"cosine-{i}-{j}" for i, j in lowest)


def _split_rows(classes: Labels, rng: np.random.Generator) -> tuple[list[Labels], Labels]:
    """Return the rows of every site and the held-out rows."""
    order = rng.permutation(len(classes))
    held_out, training = order[:HELD_OUT], order[HELD_OUT:]
    sites: list[list[int]] = [[] for _ in CLASSES_OF_SITES]
    for digit in range(10):
        rows = training[classes[training] == digit]
        holders = [site for site, digits in enumerate(CLASSES_OF_SITES) if digit in digits]
        shares = rng.dirichlet(np.full(len(holders), DIRICHLET_CONCENTRATION))
        for row, site in zip(rows, rng.choice(holders, size=len(rows), p=shares), strict=True):
            sites[site].append(int(row))
    return [np.array(rows) for rows in sites], held_out


def _fit_mixture(values: Array, components: int, seed: int) -> Any:
    """Return a variational Gaussian mixture fitted to rows (n, D), under the prior that all sites share."""
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
    sites, held_out = _split_rows(classes, np.random.default_rng(seed))
    paths, local_models, labels = [], [], []
    for number, rows in enumerate(sites, 1):
        model = _fit_mixture(values[rows], LOCAL_COMPONENTS, seed)
        path = folder / f"site-{number}.safetensors"
        api.save(model, path, features=Features(names=names), min_count=PUBLIC_DATA)
        paths.append(str(path))
        local_models.append(model)
        labels += _commonest_digits(classes[rows], model.predict(values[rows]), LOCAL_COMPONENTS)
    fused = api.fuse(paths, rng=seed, min_count=PUBLIC_DATA)
    fused.save(folder / "fused.safetensors")
    candidates: dict[str, Any] = {f"site {number}": model for number, model in enumerate(local_models, 1)}
    candidates |= {
        "naive average": api.fuse(paths, "average", rng=seed, min_count=PUBLIC_DATA).model,
        "concatenation": api.fuse(paths, "concatenate", rng=seed, min_count=PUBLIC_DATA).model,
        f"KL-k-means, {POOLED_COMPONENTS} told": api.fuse(
            paths, "kmeans", rng=seed, min_count=PUBLIC_DATA, n_components=POOLED_COMPONENTS
        ).model,
        "fused": rebuild(read_posterior(folder / "fused.safetensors")[0]),
        "fused, product": api.fuse(paths, rng=seed, min_count=PUBLIC_DATA, combine="product").model,
        "all data pooled": _fit_mixture(values[np.concatenate(sites)], POOLED_COMPONENTS, seed),
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


def _commonest_digits(classes: Labels, labels: Labels, components: int) -> list[str]:
    """Return the commonest digit of each component, for the picture only; "-" for a component without rows."""
    classes_of_components = (classes[labels == component] for component in range(components))
    return [str(np.bincount(digits).argmax()) if len(digits) else "-" for digits in classes_of_components]


def _score_table(repetitions: list[_Repetition]) -> dict[str, dict[str, list[float]]]:
    """Return the scores of each model over seeds, by name and score; the sites also as their mean and their best."""
    columns = ("log_likelihood", "mutual_information", "components")
    table: dict[str, dict[str, list[float]]] = {}
    site_names = [name for name in repetitions[0].scores if name.startswith("site ")]
    for index, column in enumerate(columns):
        site_scores = [[repetition.scores[name][index] for name in site_names] for repetition in repetitions]
        by_site = np.array(site_scores, dtype=np.float64)  # (seeds, sites)
        table.setdefault("sites, mean", {})[column] = by_site.mean(axis=1).tolist()
        table.setdefault("sites, best", {})[column] = by_site.max(axis=1).tolist()
        for name in repetitions[0].scores:
            table.setdefault(name, {})[column] = [float(repetition.scores[name][index]) for repetition in repetitions]
    return table


def _format_table(table: dict[str, dict[str, list[float]]]) -> list[str]:
    """Return the comparison as text: mean and standard deviation over seeds, and the gap to pooled data."""
    lines = [f"{'':22} {'log likelihood':>18} {'to pooled':>10} {'mutual information':>20} {'components':>11}"]
    pooled = np.array(table["all data pooled"]["log_likelihood"])
    for name, columns in table.items():
        log_likelihood, information = np.array(columns["log_likelihood"]), np.array(columns["mutual_information"])
        lines.append(
            f"{name:22} {log_likelihood.mean():10.2f} ± {_standard_deviation(log_likelihood):5.2f}"
            f" {np.mean(log_likelihood - pooled):10.2f}"
            f" {information.mean():12.3f} ± {_standard_deviation(information):5.3f}"
            f" {np.mean(columns['components']):11.1f}"
        )
    return lines


def _standard_deviation(values: Array) -> float:
    """Return the sample standard deviation; 0 for one value."""
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def _settings(seeds: int) -> dict[str, Any]:
    """Return everything that was set, for ``demo.json``."""
    return {
        "data": "scikit-learn load_digits, 10 low-frequency cosine coefficients",
        "classes_of_sites": [list(digits) for digits in CLASSES_OF_SITES],
        "share_of_a_digit": f"Dirichlet({DIRICHLET_CONCENTRATION}) over the sites that hold it",
        "local_components": LOCAL_COMPONENTS,
        "pooled_components": POOLED_COMPONENTS,
        "initialisations": INITIALISATIONS,
        "held_out": HELD_OUT,
        "seeds": list(range(seeds)),
        "chosen_on": "fixed beforehand, the same everywhere; the number of classes was told to pooled and k-means only",
        "log_likelihood": "mean per held-out digit, nats",
        "mutual_information": "adjusted mutual information of predicted components and true digits, held out",
    }


def _draw_comparison(path: Path, table: dict[str, dict[str, list[float]]], first: _Repetition) -> None:
    names = [name for name in table if not name.startswith("site ")]
    scores = [
        ("Log likelihood of held-out digits", np.array([table[name]["log_likelihood"] for name in names])),
        ("Adjusted mutual information with digits", np.array([table[name]["mutual_information"] for name in names])),
    ]
    matching = first.fusion.matching
    meaning = "commonest digit of the site's component"
    picture = comparison_drawing(names, scores, matching.labels, matching.owner, first.labels, meaning)
    write_bytes(path, (picture + "\n").encode())
