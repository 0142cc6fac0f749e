"""The default in twice the width over eight seeds: ``python experiments/synthetic_inputs/wide_digits.py``.

Three small convolutional networks with batch normalisation for scikit-learn's digits, of independent starts, each of a
quarter of two thirds of the images; fused into networks of twice the units from nothing but themselves, by the
library's defaults and with five steps of distillation instead of its number. Accuracy in percent on the other third.
Nothing was chosen on these. Writes ``wide_digits.json`` beside this file.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import t
from sklearn.datasets import load_digits
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from record import as_text, versions

import consilience as cs

RESULTS = Path(__file__).with_suffix(".json")
SEEDS, SITES, WIDTHS, FACTOR = range(8), 3, (6, 8), 2
STEPS, RATE = 60, 5e-3
VARIANTS: dict[str, dict[str, int]] = {"defaults": {}, "five steps": {"steps": 5}}


def network() -> nn.Module:
    """Return two convolutions with batch normalisation, a mean over places and a linear head."""
    layers: list[nn.Module] = [nn.Unflatten(1, (1, 8, 8))]
    for before, width in zip((1, *WIDTHS), WIDTHS, strict=False):
        layers += [nn.Conv2d(before, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTHS[-1], 10))


def trained(x: torch.Tensor, y: torch.Tensor, start: int) -> nn.Module:
    """Return a site's network."""
    torch.manual_seed(start)
    net = network()
    optimiser = torch.optim.Adam(net.parameters(), RATE)
    for _ in range(STEPS):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    return net.eval()


def run(seed: int, options: dict[str, int]) -> dict[str, Any]:
    """Return the accuracies of one seed, fused with options."""
    inputs, labels = load_digits(return_X_y=True)
    x, y, number = torch.tensor(inputs / 16, dtype=torch.float32), torch.tensor(labels), np.arange(len(labels))
    held = number % 3 == 0

    def accuracy(net: nn.Module) -> float:
        with torch.no_grad():
            return 100 * float((net(x[held]).argmax(dim=1) == y[held]).double().mean())

    parts = [~held & (number % 4 == site) for site in range(SITES)]
    nets = {f"site {site}": trained(x[part], y[part], 10 * seed + site) for site, part in enumerate(parts)}
    groups = cs.symmetry(nets["site 0"], example=x[:2]).groups
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the verdict is recorded
        wide = {name: FACTOR * width for name, width in groups.items()}
        fusion = cs.fuse(nets, example=x[:2], target_widths=wide, rng=seed, **options)
    sites, fused = [accuracy(net) for net in nets.values()], accuracy(fusion.model)
    return {
        "seed": seed,
        "sites": sites,
        "fused": fused,
        "gain": fused - max(sites),
        "chosen": fusion.details.get("chosen"),
        "harmless": fusion.verdict.harmless,
    }


def summary_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean gain over the best site with its 95 % interval, and where it is below."""
    gains = np.array([row["gain"] for row in rows])
    half = t.ppf(0.975, len(gains) - 1) * gains.std(ddof=1) / len(gains) ** 0.5
    below = [-gain for gain in gains if gain < 0]
    return {
        "gain": gains.mean(),
        "low": gains.mean() - half,
        "high": gains.mean() + half,
        "seeds": len(gains),
        "seeds below": len(below),
        "points below": below,
        "least": gains.min(),
    }


def main() -> None:
    """Run all seeds of both variants."""
    torch.set_num_threads(1)
    rows = {name: [run(seed, options) for seed in SEEDS] for name, options in VARIANTS.items()}
    summary = {name: summary_of(of_variant) for name, of_variant in rows.items()}
    settings = {"steps": STEPS, "rate": RATE, "widths": WIDTHS, "factor": FACTOR, "chosen": "the library's defaults"}
    RESULTS.write_text(as_text({"settings": settings, "versions": versions(), "summary": summary, "rows": rows}))


if __name__ == "__main__":
    main()
