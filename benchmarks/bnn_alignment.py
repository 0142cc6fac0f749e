"""Time of aligning Gaussian posteriors against that of matching means: ``python benchmarks/bnn_alignment.py``.

Writes ``bnn_alignment.json`` beside this file; after figure A2 of Rossi, Singh, Hannagan (2023). For perceptrons of
three hidden layers, by their width: seconds of matching two posteriors by Wasserstein-2 distance, where every array
comes twice, as means and as deviations, over those of weight matching on the networks of means alone. *matching* is the
descent, *fusing* all that ``consilience.fuse`` does with given symmetry: for posteriors it also checks variances and
reports distances of all parameters before and after. What is compared ran in one process on one thread, round by round,
from the same start, in the same random order of layers. Posteriors are noisy copies of one with units renumbered, as
much noise in means and in logarithms of deviations as they vary themselves, so that matching is neither trivial nor
hopeless.
"""

from __future__ import annotations

import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from timing import interleaved, medians, write_parts
from torch import nn

import consilience as cs
from consilience.core.progress import silent
from consilience.networks.method import Alignment, NetworkEnsemble
from consilience.networks.methods.weight_matching.match import match_weights

RESULTS = Path(__file__).with_suffix(".json")
WIDTHS, SEEDS, REPEATS, INPUTS, CLASSES = (64, 128, 256, 512, 1024), range(3), 3, 784, 10
NOISE, DEVIATION, SPREAD = 1.0, 0.1, 0.5
"""Noise of means as a share of their spread; deviations as a share of it, and the spread of their logarithms."""


def mlp(width: int) -> nn.Sequential:
    """Return a perceptron of three hidden layers."""
    layers: list[nn.Module] = []
    for before, after in pairwise((INPUTS, width, width, width, CLASSES)):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).eval()


def pair(width: int, seed: int) -> tuple[list[cs.BayesianNetwork], list[nn.Module], cs.Symmetry]:
    """Return two posteriors, the networks of their means, and the symmetry of all of them."""
    torch.manual_seed(seed)
    means = mlp(width)
    symmetry = cs.symmetry(means, torch.zeros(2, INPUTS))
    deviations = mlp(width)
    with torch.no_grad():
        for mean, values in zip(means.parameters(), deviations.parameters(), strict=True):
            values.copy_(SPREAD * torch.randn_like(values) + torch.log(DEVIATION * mean.std()))
    rng = np.random.default_rng(seed)
    posteriors, modules = [], []
    for _ in range(2):
        order = {name: rng.permutation(size) for name, size in symmetry.groups.items()}
        own, spread = (cs.permute(one, symmetry, order) for one in (means, deviations))
        with torch.no_grad():
            for mean, values in zip(own.parameters(), spread.parameters(), strict=True):
                mean += NOISE * mean.std() * torch.randn_like(mean)
                values += SPREAD * torch.randn_like(values)
        variances = {name: (2.0 * values.detach()).exp() for name, values in spread.named_parameters()}
        given = {name: values.detach() for name, values in own.named_parameters()}
        posteriors.append(cs.BayesianNetwork(own, given, variances, symmetry=symmetry))
        modules.append(own)
    return posteriors, modules, symmetry


def ensemble(fusion: cs.results.NetworkFusion) -> NetworkEnsemble:
    """Return the networks that were fused, as methods get them."""
    networks = tuple(one.network for one in fusion.inputs)
    return NetworkEnsemble(networks, np.full(len(networks), 1.0 / len(networks)), dict(networks[0].units))


def matching(given: NetworkEnsemble, seed: int) -> Alignment:
    """Return permutations that one descent finds."""
    return match_weights(given, ["identity"], 100, np.random.default_rng(seed), silent)


def run_widths() -> dict[str, Any]:
    """Compare Wasserstein-2 alignment with weight matching on means."""
    results = []
    for width in WIDTHS:
        for seed in SEEDS:
            posteriors, modules, symmetry = pair(width, seed)
            told = {"symmetry": symmetry, "reference": 0, "rng": seed}
            runs = {
                "w2": lambda p=posteriors, o=told: cs.fuse(p, "w2", restarts=1, **o),
                "weight matching": lambda m=modules, o=told: cs.fuse(m, "rebasin", restarts=1, **o),
            }
            found = {name: run() for name, run in runs.items()}
            bare = {name: partial(matching, ensemble(one), seed) for name, one in found.items()}
            fusing = medians(interleaved(runs, REPEATS, {}))
            descents = medians(interleaved(bare, REPEATS, {}))
            same = [
                float((one.labels == found["weight matching"].matching[name].labels).mean())
                for name, one in found["w2"].matching.items()
            ]
            results.append(
                {
                    "width": width,
                    "seed": seed,
                    "seconds": {"matching": descents, "fusing": fusing},
                    "ratio": {
                        "matching": descents["w2"] / descents["weight matching"],
                        "fusing": fusing["w2"] / fusing["weight matching"],
                    },
                    "steps": {name: len(one.history) for name, one in found.items()},
                    "units_matched_alike": min(same),
                }
            )
            sys.stdout.write(f"{results[-1]}\n")
    return {"repeats": REPEATS, "results": results}


PARTS = {"widths": run_widths}


if __name__ == "__main__":
    torch.set_num_threads(1)
    with threadpool_limits(1):
        write_parts(RESULTS, PARTS, sys.argv[1:], {"torch": torch.__version__})
