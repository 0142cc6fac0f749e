"""Variants of random-feature heads: a second layer, and noise for privacy.

``python experiments/one_shot/heads_variants.py --part layers`` compares features of a second layer with as many more of
the first, so that messages are of one size; ``--part noise`` scores private heads; results go to the cache of
``heads.py``, which writes them. ``--draw`` draws ``heads_noise.svg`` from ``heads.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))
from one_shot.heads import remembered
from one_shot.heads_data import N_CLASSES, SCALES, divided, images, random_features

import consilience as cs

HERE = Path(__file__).parent
RIDGE = 1e-4
FIRST_LAYER = 900
"""Features of the first layer where there is a second one."""
EPSILONS, DELTA, NOISE_SEEDS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0), 1e-5, 2
NOISE_COUNTS = (90, 360)
"""Numbers of features of private heads."""


def _head(train: np.ndarray, y: np.ndarray, ridge: float) -> Any:
    return cs.learners.Head("ridge", ridge=ridge).fit(train, y, classes=N_CLASSES, min_count=0).model


def run_layers(name: str) -> dict[str, Any]:
    """Return accuracies of second layers, each of 1,800 features in all; the library's ridge for all."""
    data, features = images(name), random_features(name)
    train, test = features["train"], features["test"]
    rng = np.random.default_rng(0)
    # 900 of the 1,800 features: every other filter, so that all scales stay.
    filters = np.arange(train.shape[1] // 18)
    small = (18 * filters[::2][:, None] + np.arange(18)).ravel()[:FIRST_LAYER]
    low, low_test = train[:, small], test[:, small]
    mean, deviation = low.mean(0), np.maximum(low.std(0), 1e-6)
    z, z_test = (low - mean) / deviation, (low_test - mean) / deviation  # what a first message of sums gives
    first = _head(low, data.y, RIDGE)
    scores, scores_test = first.decision_function(low), first.decision_function(low_test)
    projection = rng.standard_normal((FIRST_LAYER, FIRST_LAYER)) / np.sqrt(FIRST_LAYER)
    of_scores = 2.0 * rng.standard_normal((N_CLASSES, FIRST_LAYER))

    def relu(features_z: np.ndarray, head_scores: np.ndarray, with_scores: bool) -> np.ndarray:
        return np.maximum(features_z @ projection + (head_scores @ of_scores if with_scores else 0.0), 0.0)

    variants = {
        "one layer, 900": (low, low_test),
        "one layer, 1,800": (train, test),
        "random ReLU of the first layer": (relu(z, scores, False), relu(z_test, scores_test, False)),
        "random ReLU of the first layer and its head's scores": (
            relu(z, scores, True),
            relu(z_test, scores_test, True),
        ),
        "thresholds of the first layer at its means": ((z > 0).astype(np.float32), (z_test > 0).astype(np.float32)),
    }
    found: dict[str, Any] = {}
    for label, (rows, rows_test) in variants.items():
        if not label.startswith("one layer"):
            rows, rows_test = np.hstack([low, rows]), np.hstack([low_test, rows_test])
        accuracy = 100.0 * float(np.mean(_head(rows, data.y, RIDGE).predict(rows_test) == data.y_test))
        found[label] = {"accuracy": accuracy, "messages": 1 if label.startswith("one layer") else 2}
    return found


def run_noise(name: str) -> dict[str, Any]:
    """Return accuracies of private ridge heads over 5 sites and of one site with all rows, by epsilon."""
    data = images(name)
    found: dict[str, Any] = {}
    for count in NOISE_COUNTS:
        features = cs.features.random_convolutions(data.x.shape[1:], count, seed=0, scale=SCALES[name])
        # Scaling and bound are public: of the pretraining images, which no site has.
        public = features(data.x_pretraining)
        mean, deviation = public.mean(0), public.std(0)
        train, test = ((features(x) - mean) / deviation for x in (data.x, data.x_test))
        bound = float(np.median(np.linalg.norm((public - mean) / deviation, axis=1)))
        parts = divided(data.y, 0.1, 5, 0)
        plain = _head(train, data.y, RIDGE)
        scores: dict[str, Any] = {"without noise": 100.0 * float(np.mean(plain.predict(test) == data.y_test))}
        for epsilon in EPSILONS:
            noise = cs.learners.GaussianMechanism(epsilon, DELTA, bound)
            of_sites, of_all = [], []
            for seed in range(NOISE_SEEDS):
                sent = [
                    cs.learners.Head("ridge").fit(
                        train[rows], data.y[rows], classes=N_CLASSES, noise=noise, rng=[seed, site], min_count=0
                    )
                    for site, rows in enumerate(parts)
                ]
                of_sites.append(np.mean(cs.fuse(sent, min_count=0).model.predict(test) == data.y_test))
                whole = cs.learners.Head("ridge").fit(
                    train, data.y, classes=N_CLASSES, noise=noise, rng=[seed, 99], min_count=0
                )
                of_all.append(np.mean(whole.predict(test) == data.y_test))
            scores[f"{epsilon:g}"] = {
                "five sites": 100.0 * float(np.mean(of_sites)),
                "one": 100.0 * float(np.mean(of_all)),
            }
        found[str(count)] = {"bound": bound, **scores}
    return found


def draw() -> None:
    """Draw accuracy against epsilon."""
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    mpl.rcParams.update({"svg.hashsalt": "consilience", "font.size": 9})
    results = json.loads((HERE / "heads.json").read_text())["noise"]
    figure, axes = plt.subplots(1, len(results), figsize=(4.2 * len(results), 3.0), layout="constrained", squeeze=False)
    for axis, (name, by_count) in zip(axes[0], results.items(), strict=True):
        for colour, (count, scores) in zip(
            ("C1", "C0"), sorted(by_count.items(), key=lambda one: int(one[0])), strict=True
        ):
            for who, style in (("one", "-"), ("five sites", "--")):
                label = f"{count} features, {'one site' if who == 'one' else who}"
                axis.plot(
                    EPSILONS,
                    [scores[f"{e:g}"][who] for e in EPSILONS],
                    style,
                    color=colour,
                    marker="o",
                    ms=3,
                    label=label,
                )
            axis.axhline(scores["without noise"], color=colour, linestyle=":", linewidth=1)
        axis.set(xscale="log", xlabel="epsilon (delta = 1e-5)", ylabel="accuracy, %", title=name.replace("_", " "))
        axis.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS])
    axes[0][-1].legend(frameon=False, fontsize=8)
    figure.savefig(HERE / "heads_noise.svg", metadata={"Date": None})


def main() -> None:
    """Run a part for some sets, or draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("layers", "noise"))
    parser.add_argument("--set", action="append")
    parser.add_argument("--draw", action="store_true")
    given = parser.parse_args()
    if given.draw:
        draw()
        return
    runs = {"layers": run_layers, "noise": run_noise}
    for name in given.set or ("fashion_mnist", "cifar10"):
        remembered(given.part, name, partial(runs[given.part], name))


if __name__ == "__main__":
    main()
