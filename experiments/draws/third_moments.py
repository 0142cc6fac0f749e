"""How far third moments say that the Gaussian product is off, beside how far it is.

python -m experiments.draws.third_moments [--seeds 1] [--only TARGET ...]    resumes; samples are those of ``run.py``

Writes ``third_moments.json``: root mean square over coordinates of the predicted and of the measured shift of means, in
standard deviations of the product, in unconstrained coordinates. Targets with modes or labels are left out.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import consilience as cs
from consilience.draws.subposteriors import Subposteriors
from experiments.draws.run import in_chains, read_arguments, sampled
from experiments.draws.targets import REPORTED, TUNING
from experiments.record import versions

RESULTS = Path(__file__).with_name("third_moments.json")
TARGETS = {name: make for name, make in {**TUNING, **REPORTED}.items() if name not in ("signs", "mixture")}


def root_mean_square(values):
    """Return the root of the mean of squares."""
    return float(np.sqrt(np.mean(np.square(values))))


def run_cell(name, make, seed):
    """Return predicted and measured shifts of one target with one seed."""
    target, (full, _), draws, _ = sampled(name, make, seed)
    n_sites = len(target.likelihoods)
    sites = [cs.Draws(in_chains(target, own), prior=1.0 / n_sites, **target.told) for own in draws["shared"]]
    stack = Subposteriors(tuple(f"site {j}" for j in range(n_sites)), tuple(sites))
    predicted, error = stack.shift_by_skewness
    product = cs.fuse(sites, "gaussian_product", allow_divergent=True, n_draws=len(full), rng=seed).draws.variables
    # The full posterior is kept in comparable coordinates, which are those of the product up to an order and a map.
    coordinates = target.to_coordinates({key: one[0] for key, one in product.items()})
    measured = (full.mean(axis=0) - coordinates.mean(axis=0)) / coordinates.std(axis=0)
    return {
        "predicted": root_mean_square(predicted),
        "error": root_mean_square(error),
        "measured": root_mean_square(measured),
        "said": stack.most_shifted is not None,
    }


def main():
    """Run what the file lacks."""
    arguments = read_arguments(__doc__, seeds=1)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for seed in range(arguments.seeds):
        for name, make in TARGETS.items():
            key = f"{name} {seed}"
            if key in results or (arguments.only and name not in arguments.only):
                continue
            results[key] = run_cell(name, make, seed) | {"library_source": versions()["library_source"]}
            RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
            print(key, results[key])  # noqa: T201


if __name__ == "__main__":
    main()
