"""Whether a mixture of each site's inputs draws better images than one Gaussian, where no classes are described.

``python experiments/network_battery/mixtures.py`` takes cells of ``tune`` (images of few pixels; moments by class are
taken out of the descriptions) and runs the default on three kinds of drawn inputs:

    gaussian   one Gaussian of each site, rank 64: what the library draws
    mixture    at most ten components of each site by k-means, each of at least 100 observations, rank 40
    fused      these components of all sites, matched by KL-fusion of Gaussians (the method "kl" of posteriors)

Results are kept in ``mixtures.json`` beside this file, one entry a cell and kind.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

sys.path.append(str(Path(__file__).resolve().parents[1]))
from network_battery import cells, training
from network_battery.default import describe_sites, result_of
from network_battery.training import Cell
from record import as_text, versions

import consilience as cs
from consilience.networks.descriptions.description import Description, Moments
from consilience.networks.descriptions.moments import MomentAccumulator
from consilience.networks.synthetic import draws

RESULTS = Path(__file__).with_name("mixtures.json")
MOST_COMPONENTS, RANK, LEAST = 10, 40, 100
"""Components of a site, directions of each, and observations behind each, as the specification has them."""
OBSERVATIONS_PER_DIRECTION = 10
PROJECTED = 10
"""Leading directions of all inputs in which components are matched."""
RIDGE = 0.01
"""Share of the mean variance that is added to covariances there, since KL-fusion needs their inverses."""
KINDS = ("gaussian", "mixture", "fused")


def components_of(inputs: np.ndarray) -> list[Moments]:
    """Return the moments of the clusters of a site's inputs (n, d); of all together where they are too few."""
    rows = inputs.reshape(len(inputs), -1).astype(np.float64)
    count = int(np.clip(len(rows) // (2 * LEAST), 1, MOST_COMPONENTS))
    labels = KMeans(count, n_init=1, random_state=0).fit_predict(rows)
    clusters = [rows[labels == number] for number in range(count)]
    large = [cluster for cluster in clusters if len(cluster) >= LEAST] or [rows]
    moments = []
    for cluster in large:
        accumulator = MomentAccumulator(rows.shape[1])
        accumulator.add(cluster)
        moments.append(accumulator.moments(min(RANK, len(cluster) // OBSERVATIONS_PER_DIRECTION)))
    return moments


def pooled(members: Sequence[Moments]) -> Moments:
    """Return the moments of the observations of several components together, every direction kept."""
    n = sum(one.n_observations for one in members)
    mean = sum(one.n_observations * one.mean for one in members) / n
    between = [np.sqrt(one.n_observations / n) * (one.mean - mean) for one in members]
    within = [np.sqrt(one.n_observations / n) * one.factor for one in members]
    residual = sum(one.n_observations * one.residual for one in members) / n
    return Moments(n, mean, np.concatenate([*within, np.stack(between)]), residual)


def fused(mixtures: Sequence[Sequence[Moments]]) -> list[Moments]:
    """Return the components of all sites matched by KL-fusion, each group with the moments of its members together.

    Divergences are of Gaussians in the leading directions of all inputs: in all directions each is singular.
    """
    whole = pooled([one for of_site in mixtures for one in of_site])
    directions = np.linalg.svd(whole.factor, full_matrices=False)[2][:PROJECTED]  # (PROJECTED, d)
    family = cs.families.Gaussian(len(directions))
    ridge = RIDGE * np.square(whole.factor @ directions.T).sum() / len(directions) * np.eye(len(directions))
    posteriors = [
        cs.Posterior(
            family,
            family.to_natural(
                mean=np.stack([directions @ one.mean for one in of_site]),
                covariance=np.stack([directions @ one.covariance @ directions.T + ridge for one in of_site]),
            ),
        )
        for of_site in mixtures
    ]
    labels = np.asarray(cs.fuse(posteriors, "kl", rng=0).matching.labels)
    labels = np.where(labels < 0, labels.max() + 1 + np.arange(len(labels)), labels)  # what was dropped stays apart
    components = [one for of_site in mixtures for one in of_site]
    groups = [[one for one, label in zip(components, labels, strict=True) if label == group] for group in set(labels)]
    return [pooled(members) for members in groups]


def drawn_from(components: Sequence[tuple[int, Moments]]) -> Any:
    """Return what gives the library these components (site and moments) in the place of one Gaussian of each site."""

    def site_components(descriptions: Sequence[Description], is_text: bool) -> list[Any]:
        return [draws._Component(site, -1, one.n_observations, one, None) for site, one in components]

    return site_components


def row_of(cell: Cell, kind: str) -> dict[str, Any]:
    """Return what the default takes and makes of a cell on one kind of drawn inputs."""
    described, _ = describe_sites(cell)
    models = {
        name: replace(one, description=replace(one.description, class_moments={})) for name, one in described.items()
    }
    original, n_components = draws._site_components, len(models)
    if kind != "gaussian":
        mixtures = [components_of(inputs) for inputs, _ in cell.data.sites]
        parts = [(site, one) for site, of_site in enumerate(mixtures) for one in of_site]
        if kind == "fused":
            parts = [(0, one) for one in fused(mixtures)]
        n_components = len(parts)
        draws._site_components = drawn_from(parts)
    try:
        result = result_of(cell, models, "with")
    finally:
        draws._site_components = original
    candidates = result["candidates"]
    accuracies = {name: one["accuracy"] for name, one in candidates.items()}
    return {
        "accuracy": result["accuracy"],
        "best site": max(value for name, value in accuracies.items() if name.startswith("site:")),
        "best candidate": max(accuracies.values()),
        "refit": accuracies.get("refit"),
        "refit_head": accuracies.get("refit_head"),
        "rank correlation": float(spearmanr([-one["score"] for one in candidates.values()], [*accuracies.values()])[0]),
        "components": n_components,
        "ensemble": result["ensemble"]["accuracy"],
    }


def main() -> None:
    """Run what is missing, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cells", nargs="+", default=["tune-00*", "tune-04*", "tune-06*", "tune-08*", "tune-10*"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    source = versions()["library_source"]
    with threadpool_limits(1):
        for setting in cells.plan("tune"):
            missing = [kind for kind in KINDS if f"{setting.name} | {kind}" not in results]
            if not missing or not any(fnmatch.fnmatch(setting.name, pattern) for pattern in options.cells):
                continue
            cell = training.load_cell(setting)
            for kind in missing:
                results[f"{setting.name} | {kind}"] = row_of(cell, kind) | {"source": source}
                RESULTS.write_text(as_text(results))
    columns = ("accuracy", "best site", "best candidate", "refit", "refit_head", "ensemble", "rank correlation")
    sys.stdout.write(f"{'cell':38}" + "".join(f"{name:>17}" for name in columns) + "\n")
    for name, row in results.items():
        numbers = "".join(f"{row[column] if row[column] is not None else np.nan:17.3f}" for column in columns)
        sys.stdout.write(f"{name:38}{numbers}\n")


if __name__ == "__main__":
    main()
