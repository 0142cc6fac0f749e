"""Local fits of a cell, kept in a cache folder: ``python experiments/battery/local_fits.py [--half HALF] [--pooled]``.

What is there is kept, so that methods are rerun without fitting again. The folder is ``battery`` in
``CONSILIENCE_CACHE`` (default ``experiments/.cache``); file names have a digest of the cell's settings.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import BayesianGaussianMixture
from threadpoolctl import threadpool_limits

sys.path.append(str(Path(__file__).resolve().parents[1]))
from battery import cells, real
from battery.cells import HALVES, Data, Setting, settings_of, simulate

import consilience as cs
from consilience.posteriors.describe import describe

CACHE = Path(os.environ.get("CONSILIENCE_CACHE", Path(__file__).parents[1] / ".cache")) / "battery"
OVER_SPLIT = 2
"""Components beyond the true number in over-split fits."""
LOCAL = {"n_init": 1, "max_iter": 100}
POOLED = {"n_init": 2, "max_iter": 100}
POOLED_ROWS, POOLED_WORK = 20_000, 2e8
"""Rows of a pooled fit at most, and rows times G D^2; others are drawn at random."""
AnySetting = Setting | real.RealSetting


@dataclass(frozen=True, eq=False)
class Cell:
    """An ensemble with its truth.

    Parameters
    ----------
    setting : Setting or RealSetting
        What it is.
    posteriors : list of Posterior
        Normal-Wishart posteriors of every site: what is fused.
    truth : ndarray of shape (L,)
        True component that most of the data has which a local component explains; -1 where it explains none.
    n_true : int
        Number G of true components that occur.
    held_out, held_out_labels, bayes_error
        As in ``Data``.
    """

    setting: AnySetting
    posteriors: list[cs.Posterior]
    truth: np.ndarray
    n_true: int
    held_out: np.ndarray
    held_out_labels: np.ndarray
    bayes_error: float | None

    @property
    def is_separated(self) -> bool | None:
        """Whether the Bayes error is below 2 %; None for real data."""
        return None if self.bayes_error is None else self.bayes_error < 0.02


def plan(half: str) -> list[AnySetting]:
    """Return all cells of a half, simulated and real."""
    return [*cells.plan(half), *real.plan(half)]


def setting_named(name: str) -> AnySetting:
    """Return the setting of the one cell whose name begins with `name`."""
    (setting,) = (one for half in HALVES for one in plan(half) if one.name.startswith(name))
    return setting


def data_of(setting: AnySetting) -> Data:
    """Draw or split the data of a cell."""
    return simulate(setting) if isinstance(setting, Setting) else real.split(setting)


def digest(setting: AnySetting) -> str:
    """Return eight letters that tell settings apart."""
    return hashlib.sha256(json.dumps(settings_of(setting), sort_keys=True).encode()).hexdigest()[:8]


def load(cell: str | AnySetting) -> Cell:
    """Return a cell, fitted now where it is not in the cache.

    Parameters
    ----------
    cell : str or setting
        A setting, or the beginning of a name that only one cell has, such as ``"tune-00"``.
    """
    setting = setting_named(cell) if isinstance(cell, str) else cell
    stored = _cached(CACHE / f"{setting.name}-{digest(setting)}.npz", lambda: _fit(setting))
    ends = np.cumsum(stored["sizes"])
    family = cs.families.NormalWishart(dim=stored["held_out"].shape[1])
    posteriors = [
        cs.Posterior(
            family,
            stored["natural"][end - size : end],
            prior=stored["priors"][site],
            counts=stored["counts"][end - size : end],
            weights=stored["weights"][end - size : end],
        )
        for site, (size, end) in enumerate(zip(stored["sizes"].tolist(), ends.tolist(), strict=True))
    ]
    error = float(stored["bayes_error"])
    return Cell(
        setting,
        posteriors,
        stored["truth"],
        int(stored["n_true"]),
        stored["held_out"],
        stored["held_out_labels"],
        None if np.isnan(error) else error,
    )


def pooled(cell: Cell) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return weights, means and covariances of a mixture of the true number, fitted to the data of all sites."""
    path = CACHE / "pooled" / f"{cell.setting.name}-{digest(cell.setting)}.npz"
    stored = _cached(path, lambda: _fit_pooled(cell))
    return stored["weights"], stored["means"], stored["covariances"]


def _cached(path: Path, make: Any) -> dict[str, np.ndarray]:
    """Return the arrays of a file, made and written whole where there is none."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.part.npz")
        np.savez(partial, **make())
        partial.replace(path)
    with np.load(path) as stored:
        return dict(stored)


def _fit(setting: AnySetting) -> dict[str, Any]:
    """Fit every site of a cell, as arrays."""
    data = data_of(setting)
    stacked: dict[str, list[Any]] = {name: [] for name in ("natural", "counts", "weights", "priors", "sizes", "truth")}
    for site, (rows, labels) in enumerate(zip(data.rows, data.labels, strict=True)):
        if setting.local == "exact":
            posterior, truth = _conjugate(rows, labels)
        else:
            count = len(np.unique(labels)) + (OVER_SPLIT if setting.local == "over-split" else 0)
            model = mixture(rows, count, setting.seed + site, setting.prior, LOCAL)
            posterior, truth = describe(model, min_count=0), _majority(model.predict(rows), labels, count)
        stacked["natural"].append(posterior.natural)
        stacked["counts"].append(posterior.counts)
        stacked["weights"].append(posterior.weights)
        stacked["priors"].append(posterior.prior[None])
        stacked["sizes"].append([posterior.n_components])
        stacked["truth"].append(truth)
    return {
        **{name: np.concatenate(values) for name, values in stacked.items()},
        "n_true": len(np.unique(np.concatenate(data.labels))),
        "held_out": data.held_out,
        "held_out_labels": data.held_out_labels,
        "bayes_error": np.nan if data.bayes_error is None else data.bayes_error,
    }


def mixture(rows: np.ndarray, count: int, seed: int, prior: str, options: dict[str, int]) -> BayesianGaussianMixture:
    """Return scikit-learn's variational mixture of some rows (n, D), under its default prior or an agreed one."""
    dim = rows.shape[1]
    agreed: dict[str, Any] = {
        "weight_concentration_prior": 1.0,
        "mean_prior": np.zeros(dim),
        "mean_precision_prior": 1.0,
        "degrees_of_freedom_prior": dim + 2,
        "covariance_prior": np.eye(dim),
    }
    model = BayesianGaussianMixture(
        n_components=count,
        weight_concentration_prior_type="dirichlet_distribution",
        random_state=seed % 2**32,
        **(agreed if prior == "agreed" else {}),
        **options,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(rows)


def _conjugate(rows: np.ndarray, labels: np.ndarray) -> tuple[cs.Posterior, np.ndarray]:
    """Return the posterior of the true components of a site under the agreed prior, and which they are."""
    dim = rows.shape[1]
    family = cs.families.NormalWishart(dim=dim)
    held, counts = np.unique(labels, return_counts=True)
    means = np.stack([rows[labels == one].mean(axis=0) for one in held])
    scatters = np.stack([np.cov(rows[labels == one].T, bias=True) * n for one, n in zip(held, counts, strict=True)])
    pulls = (counts / (counts + 1.0))[:, None, None] * means[:, :, None] * means[:, None, :]  # prior mean 0, kappa 1
    natural = family.to_natural(
        mean=means * (counts / (counts + 1.0))[:, None],
        kappa=counts + 1.0,
        inverse_scale=np.eye(dim) + scatters + pulls,
        dof=counts + dim + 2.0,
    )
    prior = family.to_natural(mean=np.zeros((1, dim)), kappa=[1.0], inverse_scale=np.eye(dim)[None], dof=[dim + 2.0])
    weights = counts / counts.sum()
    return cs.Posterior(family, natural, prior=prior[0], counts=counts.astype(float), weights=weights), held


def _majority(found: np.ndarray, labels: np.ndarray, count: int) -> np.ndarray:
    """Return the commonest label (count,) of the rows that each component explains; -1 where it explains none."""
    return np.array(
        [np.bincount(labels[found == one]).argmax() if (found == one).any() else -1 for one in range(count)]
    )


def _fit_pooled(cell: Cell) -> dict[str, np.ndarray]:
    rows = np.concatenate(data_of(cell.setting).rows)
    most = int(min(POOLED_ROWS, POOLED_WORK / (cell.n_true * rows.shape[1] ** 2)))
    rng = np.random.default_rng(cell.setting.seed)
    chosen = rng.choice(len(rows), size=min(most, len(rows)), replace=False)
    model = mixture(rows[chosen], cell.n_true, cell.setting.seed, cell.setting.prior, POOLED)
    return {"weights": model.weights_, "means": model.means_, "covariances": model.covariances_}


def main() -> None:
    """Fit what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=HALVES, action="append")
    parser.add_argument("--pooled", action="store_true", help="the fits to the data of all sites as well")
    options = parser.parse_args()
    with threadpool_limits(1):
        for half in options.half or HALVES:
            for setting in plan(half):
                if isinstance(setting, real.RealSetting) and not real.is_there(setting):
                    sys.stdout.write(f"{setting.name}: the data are not here\n")
                    continue
                start = time.perf_counter()
                cell = load(setting)
                if options.pooled:
                    pooled(cell)
                sys.stdout.write(f"{setting.name}: {len(cell.truth)} components, {time.perf_counter() - start:.1f} s\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
