"""Speed of the sticky HDP-HMM: ``python benchmarks/hidden_markov.py`` (about two minutes).

Writes ``hidden_markov.json`` beside this file. One pass of variational inference (all messages, statistics, posteriors,
sticks and the bound) against one iteration of hmmlearn's VariationalGaussianHMM with full covariances and as many
states, whose messages are C++; both in one process on one thread, round by round. Ratios below one are faster than
hmmlearn; seconds are those of one small machine and mean little on another.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
from hmmlearn.vhmm import VariationalGaussianHMM
from threadpoolctl import threadpool_limits
from timing import interleaved, medians, versions, yardstick

from consilience.families import NormalWishart
from consilience.posteriors.hidden_markov.learner import initial_factors
from consilience.posteriors.hidden_markov.sticky_transitions import HMMProblem, StickyPrior, global_step, local_step

RESULTS = Path(__file__).with_suffix(".json")
SEED, REPEATS, PASSES, STAY = 0, 7, 10, 0.95
SIZES = {
    "one sequence": {"lengths": [2000], "dim": 12, "states": 20},
    "ten sequences": {"lengths": [200] * 10, "dim": 12, "states": 20},
    "motion capture": {"lengths": [446, 387, 387], "dim": 12, "states": 20},
    "long": {"lengths": [20_000], "dim": 4, "states": 10},
    "many states": {"lengths": [2000], "dim": 12, "states": 60},
}


def simulated(lengths: list[int], dim: int, states: int) -> np.ndarray:
    """Return rows of a sticky chain of Gaussian states that overlap a little, so that inference takes many passes."""
    rng = np.random.default_rng(SEED)
    labels = np.empty(sum(lengths), dtype=np.int64)
    for row in range(len(labels)):
        labels[row] = labels[row - 1] if row and rng.random() < STAY else rng.integers(states)
    centres = rng.normal(size=(states, dim))
    return centres[labels] + rng.normal(size=(len(labels), dim))


def compare(lengths: list[int], dim: int, states: int) -> dict[str, Any]:
    """Return the seconds of a pass of each, and the ratios of this library's to hmmlearn's."""
    rows, family = simulated(lengths, dim, states), NormalWishart(dim)
    prior = family.to_natural(mean=np.zeros((1, dim)), kappa=[0.01], dof=[dim + 2.0], inverse_scale=np.eye(dim)[None])[
        0
    ]
    problem = HMMProblem(family, prior, StickyPrior(), rows, np.array(lengths))
    start = initial_factors(problem, states, np.random.default_rng(SEED), clusters=True)
    problem.statistics  # noqa: B018  (kept for all passes)

    def own() -> None:
        factors = start
        for _ in range(PASSES):
            marginals, _ = local_step(problem, factors)
            factors = global_step(problem, marginals, factors.sticks)

    def other(implementation: str, iterations: int) -> None:
        VariationalGaussianHMM(
            states,
            covariance_type="full",
            n_iter=iterations,
            tol=-np.inf,
            random_state=SEED,
            implementation=implementation,
        ).fit(rows, lengths)

    functions = {"own": own}
    for implementation in ("log", "scaling"):
        for iterations in (1, 1 + PASSES):
            functions[f"{implementation}, {iterations}"] = lambda i=implementation, n=iterations: other(i, n)
    times = medians(interleaved(functions, REPEATS, {}))
    seconds = {
        "own": times["own"] / PASSES,
        **{name: (times[f"{name}, {1 + PASSES}"] - times[f"{name}, 1"]) / PASSES for name in ("log", "scaling")},
    }
    return {
        "seconds_of_a_pass": seconds,
        "ratio_to_hmmlearn": {name: seconds["own"] / seconds[name] for name in ("log", "scaling")},
    }


def main() -> None:
    """Compare at every size."""
    logging.getLogger("hmmlearn").setLevel(logging.CRITICAL)  # which warns that it did not converge in few iterations
    found: dict[str, Any] = {}
    with threadpool_limits(1):
        unit = yardstick()
        for name, size in SIZES.items():
            found[name] = compare(**size)
            found[name]["own_in_yardsticks"] = found[name]["seconds_of_a_pass"]["own"] / unit
            sys.stdout.write(f"{name}: {found[name]['ratio_to_hmmlearn']}\n")
            sys.stdout.flush()
    result = {
        "settings": {
            "seed": SEED,
            "repeats": REPEATS,
            "passes": PASSES,
            "stay": STAY,
            "sizes": SIZES,
            "covariances": "full",
            "yardstick": "product of two 1000 x 1000 matrices",
            "hmmlearn": "VariationalGaussianHMM, implementation log (its default) and scaling; one iteration is the "
            f"difference of {1 + PASSES} and 1, divided by {PASSES}",
            "threads": 1,
        },
        "versions": {**versions(), "hmmlearn": importlib.metadata.version("hmmlearn")},
        "yardstick_seconds": unit,
        "results": found,
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
