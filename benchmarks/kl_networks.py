"""Time of KL-fusion of five Bayesian networks of 150 units beside a direct implementation.

The direct implementation follows the paper: k-means++ seeds among the units, then iterations that compare every unit
with every fused unit and assign each site's by SciPy. It is written to be fair: a divergence between two units is one
vectorised expression over their 795 weights; but it loops over pairs of units, as the published code does. Some
thousand pairs are timed, and the rest follows from counting them, for as many iterations as ours takes sweeps and for
the ten that the published code always does. Times are of one processor, so that other work on the machine does not
count.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from threadpoolctl import threadpool_limits
from timing import write_parts

import consilience as cs
from consilience.checks import Array

HERE = Path(__file__).parent
SITES, UNITS, INPUTS, CLASSES = 5, 150, 784, 10
REPEATS = 5
PAIRS = 4000
PUBLISHED = 10


def networks(seed: int) -> list[cs.BayesianNetwork]:
    """Return networks some of whose units are noisy copies of common ones."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(2 * UNITS, INPUTS + 1 + CLASSES)) * 0.1
    found = []
    for _ in range(SITES):
        own = common[rng.choice(len(common), UNITS, replace=False)]
        rows = torch.as_tensor(own + 0.02 * rng.normal(size=own.shape), dtype=torch.float32)
        spread = torch.as_tensor(rng.gamma(2.0, 2e-4, size=own.shape), dtype=torch.float32)
        parts = {
            "0.weight": (slice(None), slice(0, INPUTS)),
            "0.bias": (slice(None), INPUTS),
            "2.weight": (slice(None), slice(INPUTS + 1, None)),
        }
        means = {name: rows[where] for name, where in parts.items()}
        variances = {name: spread[where] for name, where in parts.items()}
        for arrays in (means, variances):
            arrays["2.weight"] = arrays["2.weight"].T.contiguous()
        means["2.bias"], variances["2.bias"] = torch.zeros(CLASSES), torch.full((CLASSES,), 1e-3)
        module = torch.nn.Sequential(torch.nn.Linear(INPUTS, UNITS), torch.nn.ReLU(), torch.nn.Linear(UNITS, CLASSES))
        found.append(cs.BayesianNetwork(module, means, variances))
    return found


def divergence(mean: Array, variance: Array, other: Array, other_variance: Array) -> float:
    """Return KL between two units."""
    ratio = variance / other_variance
    return float(0.5 * np.sum(ratio - 1.0 - np.log(ratio) + (mean - other) ** 2 / other_variance))


def direct(bnns: list[cs.BayesianNetwork], groups: int) -> tuple[float, float]:
    """Return the seconds of the seeds and of one iteration, from the pairs that are timed."""
    units, spread = (
        [np.concatenate([a["0.weight"], a["0.bias"][:, None], a["2.weight"].T], axis=1).astype(float) for a in arrays]
        for arrays in ([b.means for b in bnns], [b.variances for b in bnns])
    )
    start = time.process_time()
    for pair in range(PAIRS):
        one, other = pair % UNITS, (pair // UNITS) % UNITS
        divergence(units[0][one], spread[0][one], units[1][other], spread[1][other])
    each = (time.process_time() - start) / PAIRS
    costs = np.random.default_rng(0).random((UNITS, groups))
    start = time.process_time()
    linear_sum_assignment(costs)
    assignment = time.process_time() - start
    total = SITES * UNITS
    return groups * total * each, total * groups * each + SITES * assignment


def run_networks() -> dict[str, Any]:
    """Fuse the networks of every seed, and count what the direct implementation would take."""
    rows: list[dict[str, Any]] = []
    for seed in range(REPEATS):
        bnns = networks(seed)
        symmetry = cs.symmetry(bnns[0].module, torch.zeros(2, INPUTS))
        if seed == 0:  # imports and the first calls of libraries are no part of fusing
            cs.fuse(bnns, symmetry=symmetry)
        start = time.process_time()
        fusion = cs.fuse(bnns, symmetry=symmetry)
        own = time.process_time() - start
        seeds, iteration = direct(bnns, fusion.n_components)
        sweeps = len(fusion.history) + 1  # the last one finds nothing to gain
        same, published = seeds + sweeps * iteration, seeds + PUBLISHED * iteration
        rows.append({
            "seed": seed, "seconds": own, "direct": same, "published": published, "ratio": same / own,
            "ratio_published": published / own, "units": fusion.n_components, "sweeps": sweeps,
        })  # fmt: skip
        sys.stdout.write(json.dumps(rows[-1]) + "\n")
    return {"results": rows, "pairs": PAIRS, "sites": SITES, "units": UNITS, "weights": INPUTS + 1 + CLASSES}


def main(parts: list[str]) -> None:
    """Run the named parts, or all."""
    torch.set_num_threads(1)
    with threadpool_limits(1):
        write_parts(HERE / "kl_networks.json", {"networks": run_networks}, parts, {"torch": torch.__version__})


if __name__ == "__main__":
    main(sys.argv[1:])
