"""The demo: non-IID sites of handwritten digits train Gaussian mixtures apart, and their files are fused in one shot.

The data are scikit-learn's 1,797 digits of 8 x 8 pixels. The features are the D = 10 cosine coefficients of lowest
frequency, a transformation that needs no data. Each of five sites holds four of the ten digits; for each digit the
shares of the sites that hold it are drawn from Dirichlet(3). A site fits a variational Gaussian mixture under a prior
that all sites agreed on; number of components and restarts are the same everywhere. The held-out digits are 500 drawn
at random from all ten classes. Scores are the mean log predictive density of a held-out digit in nats, with paired
differences from the default fusion, and the adjusted mutual information of predicted components and true digits. Number
of components, prior and features were fixed beforehand (docs/gallery/demo.md).
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

import consilience as cs
from consilience.api.scores import log_density
from consilience.checks import Array, Json, Labels
from consilience.cli.json_output import echo_json, json_option
from consilience.core.features import Features
from consilience.core.fusion import Fusion
from consilience.core.provenance import library_versions
from consilience.core.scores import PairedDifference, paired_difference
from consilience.drawing.comparison import comparison_drawing
from consilience.errors import InputError
from consilience.files.atomic import write_bytes
from consilience.posteriors.files import read_posterior
from consilience.posteriors.rebuild import rebuild

CLASSES_OF_SITES: Final = ((0, 1, 2, 3), (2, 3, 4, 5), (4, 5, 6, 7), (6, 7, 8, 9), (8, 9, 0, 1))
"""Digits that each site holds: a ring in which neighbours share two. Chosen by hand."""
DIM: Final = 10
"""Number of cosine coefficients D. Chosen by hand, and fixed beforehand (docs/gallery/demo.md)."""
PUBLIC_DATA: Final = 0
"""The ``min_count`` of the demo. Images of digits are no secret, and the naive average needs sites of equal size."""
LOCAL_COMPONENTS: Final = 5
"""Components of a site's mixture, one more than it has digits. Chosen by hand, and fixed beforehand
(docs/gallery/demo.md)."""
POOLED_COMPONENTS: Final = 10
"""Components of the mixture of all data pooled, and of k-means: the number of digits, which no fusion is given."""
HELD_OUT: Final = 500
"""Number of held-out digits. Chosen by hand; nobody has measured other values."""
DIRICHLET_CONCENTRATION: Final = 3.0
"""Concentration of a digit's shares over the sites that hold it; smaller is more skewed.

Chosen by hand; nobody has measured other values.
"""
INITIALISATIONS: Final = 3
"""Restarts of every fit. Chosen by hand; nobody has measured other values."""

FUSED: Final = "fused"
"""Name of the default fusion, which is the first row and what all others are compared with."""
POOLED: Final = "all data pooled"

_DIGITS: Final = {"log_density": 2, "mutual_information": 3}
"""Scores that are shown, and digits after the point of each."""

_PRODUCT_SIZE: Final = 600
"""Rows of the square matrices whose product calibrates the estimate: a few milliseconds, enough to be timed."""
_PRODUCTS_TO_START: Final = 100.0
_PRODUCTS_PER_SEED: Final = 165.0
"""Processor time of imports and of one seed, in such products: 2.2 s for one seed and 7.7 s for five where one took 8.4
ms on one thread. With two threads, which cost five times the processor time here, the product costs as much more."""

PrintLine = Callable[[str], Any]
"""Prints one line, or does not."""


@dataclass(frozen=True, eq=False)
class _Repetition:
    """The results of one seed."""

    # (n_held_out,), log predictive density of every held-out digit under each model, in nats; the default fusion first
    densities: dict[str, Array]
    columns: dict[str, dict[str, float]]  # of each model the means of all scores, by their names in ``demo.json``
    fusion: Fusion  # the recommended fusion
    labels: list[str]  # the commonest digit of each local component (L,)


def run_demo(folder: Path, seeds: int, print_line: PrintLine) -> None:
    """Run the demo in `folder`: site files, fused files, ``demo.json``, ``demo.svg`` and ``report.html``.

    `seeds` is the number of repetitions, with seeds 0, 1, ...; `print_line` gets every line of the story. Raises
    InputError when the folder cannot be made or written to.
    """
    started = time.process_time()
    seconds = estimated_seconds(seeds)
    n_sites = len(CLASSES_OF_SITES)
    print_line(
        f"{n_sites} sites train on handwritten digits, four of the ten each; their files are fused, without any data,"
        f" and compared on {HELD_OUT} held-out digits with what sites and pooling give."
    )
    count = "1 seed" if seeds == 1 else f"{seeds} seeds"
    print_line(f"{count}: about {max(1, round(seconds))} s of processor time, estimated from a matrix product here.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(folder, f"cannot be made: {error.strerror}") from error
    values, classes, names = _load_features()
    repetitions = []
    for seed in range(seeds):
        repetition = _repeat(folder / f"seed-{seed}", values, classes, names, seed)
        if seed == 0:
            print_line(f"\nverdict, from the files alone: {repetition.fusion.verdict}")
        else:
            print_line(f"seed {seed}: {repetition.fusion.verdict}")
        repetitions.append(repetition)
    table, differences = _score_table(repetitions), _differences(repetitions)
    print_line(f"\non {HELD_OUT} held-out digits, of which the sites' models are less sure than of their own draws:")
    print_line("\n".join([*_format_table(table, differences), "", *_sentences(differences)]))
    record = {
        "settings": _settings(seeds),
        "versions": library_versions(),
        "verdicts": [str(repetition.fusion.verdict) for repetition in repetitions],
        "results": table,
        "fused_minus": {
            name: {"mean": difference.mean, "interval": list(difference.interval), "n": difference.n_observations}
            for name, difference in differences.items()
        },
    }
    write_bytes(folder / "demo.json", (json.dumps(record, indent=2) + "\n").encode())
    _draw_comparison(folder / "demo.svg", table, repetitions[0])
    repetitions[0].fusion.report(folder / "report.html")
    print_line(f"\nwrote {folder / 'demo.json'} and {folder / 'demo.svg'}; the fused model is in {folder / 'seed-0'},")
    print_line(f"and {folder / 'report.html'} tells all about it: open it in a browser")
    print_line(f"took {time.process_time() - started:.1f} s of processor time")


def estimated_seconds(seeds: int) -> float:
    """Return the processor time that the demo will take, in seconds, by timing a matrix product on this machine."""
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((_PRODUCT_SIZE, _PRODUCT_SIZE))
    times = []
    for _ in range(5):
        started = time.process_time()
        matrix @ matrix
        times.append(time.process_time() - started)
    return float(np.median(times)) * (_PRODUCTS_TO_START + seeds * _PRODUCTS_PER_SEED)


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
        n_components=components, weight_concentration_prior_type="dirichlet_distribution",
        weight_concentration_prior=1.0, mean_prior=np.zeros(DIM), mean_precision_prior=1.0,
        degrees_of_freedom_prior=DIM + 2, covariance_prior=np.eye(DIM), n_init=INITIALISATIONS, max_iter=500,
        random_state=seed,
    )  # fmt: skip
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
        cs.save(model, path, features=Features(names=names), min_count=PUBLIC_DATA)
        paths.append(str(path))
        local_models.append(model)
        labels += _commonest_digits(classes[rows], model.predict(values[rows]), LOCAL_COMPONENTS)
    fused = cs.fuse(paths, rng=seed, min_count=PUBLIC_DATA)
    fused.save(folder / "fused.safetensors")
    candidates: dict[str, Any] = {FUSED: rebuild(read_posterior(folder / "fused.safetensors")[0])}
    candidates |= {f"site {number}": model for number, model in enumerate(local_models, 1)}
    told = cs.fuse(paths, "kmeans", rng=seed, min_count=PUBLIC_DATA, n_components=POOLED_COMPONENTS)
    candidates |= {
        "naive average": cs.fuse(paths, "average", rng=seed, min_count=PUBLIC_DATA).model,
        f"k-means, {POOLED_COMPONENTS} given": told.model,
        "concatenation": cs.fuse(paths, "concatenate", rng=seed, min_count=PUBLIC_DATA).model,
        POOLED: _fit_mixture(values[np.concatenate(sites)], POOLED_COMPONENTS, seed),
    }
    test, truth = values[held_out], classes[held_out]
    densities = {name: log_density(model, test) for name, model in candidates.items()}
    columns = {
        name: {
            "log_density": float(densities[name].mean()),
            "plug_in": float(log_density(model, test, kind="plug-in").mean()),
            "bound": float(model.score(test)),
            "mutual_information": float(adjusted_mutual_info_score(truth, model.predict(test))),
            "components": int(model.means_.shape[0]),
        }
        for name, model in candidates.items()
    }
    return _Repetition(densities, columns, fused, labels)


def _commonest_digits(classes: Labels, labels: Labels, components: int) -> list[str]:
    """Return the commonest digit of each component, for the picture only; "-" for a component without rows."""
    classes_of_components = (classes[labels == component] for component in range(components))
    return [str(np.bincount(digits).argmax()) if len(digits) else "-" for digits in classes_of_components]


def _site_names(repetition: _Repetition) -> list[str]:
    """Return the names of the sites' own models."""
    return [name for name in repetition.columns if name.startswith("site ")]


def _score_table(repetitions: list[_Repetition]) -> dict[str, dict[str, list[float]]]:
    """Return the scores of each model over seeds, by name and score: the default fusion first, then the sites.

    Of the sites there are also the best and the mean; the best is the one of the greatest log density on the held-out
    digits, all of its scores, which is more than the sites could know.
    """
    sites = _site_names(repetitions[0])
    chosen: list[dict[str, dict[str, float]]] = []
    for repetition in repetitions:
        columns = repetition.columns
        best = _best_site(repetition)
        means = {name: float(np.mean([columns[site][name] for site in sites])) for name in columns[best]}
        others = {name: row for name, row in columns.items() if name != FUSED}
        chosen.append({FUSED: columns[FUSED], "sites, best": columns[best], "sites, mean": means, **others})
    return {
        name: {score: [float(rows[name][score]) for rows in chosen] for score in chosen[0][name]} for name in chosen[0]
    }


def _best_site(repetition: _Repetition) -> str:
    """Return the site whose own model has the greatest log density on the held-out digits."""
    return max(_site_names(repetition), key=lambda name: float(repetition.densities[name].mean()))


def _differences(repetitions: list[_Repetition]) -> dict[str, PairedDifference]:
    """Return log density of the default fusion minus that of each other row of the table, in nats per digit.

    Of one seed they are paired by held-out digit; of several, a seed is one observation of their means.
    """
    compared: dict[str, list[Array]] = {}
    for repetition in repetitions:
        sites = [repetition.densities[name] for name in _site_names(repetition)]
        others = {name: row for name, row in repetition.densities.items() if not name.startswith("site ")}
        rows = {"sites, best": repetition.densities[_best_site(repetition)], "sites, mean": np.mean(sites, axis=0)}
        for name, densities in {**rows, **others}.items():
            compared.setdefault(name, []).append(densities)
    fused = compared.pop(FUSED)
    if len(repetitions) > 1:
        fused = [np.array([values.mean() for values in fused])]
        compared = {name: [np.array([values.mean() for values in rows])] for name, rows in compared.items()}
    ones = np.ones(len(fused[0]))
    return {name: paired_difference(fused[0], rows[0], ones) for name, rows in compared.items()}


def _format_table(table: dict[str, dict[str, list[float]]], differences: dict[str, PairedDifference]) -> list[str]:
    """Return the comparison as text: means, standard deviations over seeds, and what the default fusion is ahead by."""
    n_seeds = len(table[FUSED]["log_density"])
    titles = ("log density", "fused is ahead by", "mutual information", "components")
    rows = []
    for name, columns in table.items():
        if name.startswith("site "):
            continue
        ahead = f"{differences[name].mean:+.2f} ± {differences[name].margin:.2f}" if name in differences else ""
        density, agreement = (_mean_and_deviation(columns[one], n) for one, n in _DIGITS.items())
        components = f"{np.mean(columns['components']):.{0 if n_seeds == 1 else 1}f}"
        rows.append((name, density, ahead, agreement, components))
    widths = [max(len(row[column]) for row in [("", *titles), *rows]) for column in range(5)]
    lines = []
    for name, *cells in [("", *titles), *rows]:
        padded = [f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([f"{name:{widths[0]}}", *padded]))
    paired = "held-out digits" if n_seeds == 1 else f"{n_seeds} seeds"
    spread = "" if n_seeds == 1 else "; ± of the other columns: standard deviation over seeds"
    unit = "log density: predictive, nats per digit"
    return [*lines, f"({unit}; fused is ahead by: 95 % interval, paired by {paired}{spread})"]


def _mean_and_deviation(values: list[float], digits: int) -> str:
    """Return the mean over seeds, with the standard deviation where there are several."""
    deviation = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{deviation}"


def _sentences(differences: dict[str, PairedDifference]) -> list[str]:
    """Return sentences on the differences: what the default fusion is ahead of, behind, or not distinguished from."""
    texts = {1: "fused is ahead of", -1: "fused is behind", 0: "fused is not distinguished from"}
    names = {sign: [name for name, one in differences.items() if one.sign == sign] for sign in texts}
    return [f"{text}: {'; '.join(names[sign])}" for sign, text in texts.items() if names[sign]]


def _settings(seeds: int) -> dict[str, Json]:
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
        "chosen_on": "fixed beforehand, the same everywhere; only pooled and k-means were given the number of classes",
        "log_density": "posterior predictive, mean per held-out digit, nats",
        "plug_in": "the same at posterior means",
        "bound": "what scikit-learn calls score",
        "fused_minus": "log_density of the default fusion minus that of the row, 95 % interval, paired by held-out"
        " digit (one seed) or by seed",
        "best_site": "by log_density on the held-out digits, of each seed",
        "mutual_information": "adjusted mutual information of predicted components and true digits, held out",
    }


def _draw_comparison(path: Path, table: dict[str, dict[str, list[float]]], first: _Repetition) -> None:
    names = [name for name in table if not name.startswith("site ")]
    titles = ("Log predictive density, nats per digit", "Adjusted mutual information with digits")
    scores = [
        (title, np.array([table[name][score] for name in names]), digits)
        for title, (score, digits) in zip(titles, _DIGITS.items(), strict=True)
    ]
    matching = first.fusion.matching
    meaning = "commonest digit of the site's component"
    picture = comparison_drawing(names, scores, matching.labels, matching.owner, first.labels, meaning)
    write_bytes(path, (picture + "\n").encode())


@click.command()
@click.argument("folder", default="consilience-demo", type=click.Path(path_type=Path))
@click.option(
    "--seeds",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Number of repetitions, compared seed by seed.",
)
@click.option("--quiet", is_flag=True, help="Print nothing but problems.")
@json_option
def demo(folder: Path, seeds: int, quiet: bool, as_json: bool) -> None:
    """Train five sites on real data, fuse their files, and compare, in FOLDER."""
    run_demo(folder, seeds, (lambda _line: None) if quiet or as_json else click.echo)
    if as_json:
        written = [folder / "demo.json", folder / "demo.svg", folder / "report.html"]
        echo_json({"wrote": written, "results": json.loads((folder / "demo.json").read_text())})
