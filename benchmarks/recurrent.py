"""Speed, memory and scaling of Gromov fusion: ``python benchmarks/recurrent.py [part ...]`` (some minutes for all).

Writes ``recurrent.json`` beside this file; a part that is not named keeps its numbers. What is compared ran in one
process on one thread, round by round. Networks are LSTMs that read 50 numbers a step and tell 10 classes: copies of one
another with units renumbered and twice as much noise as weights, so that the descent has something to do.

*Bare* is what a fusion cannot do without: the products of hidden-to-hidden matrices with every plan that its descent
went to, and the assignment problems that it solved, on the same arrays and in the same number, and nothing else.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from threadpoolctl import threadpool_limits
from timing import interleaved, medians, seconds, write_parts
from torch import nn

import consilience as cs
from consilience.matching import gromov, gromov_descent
from consilience.networks.method import NetworkEnsemble
from consilience.networks.methods.gromov_wasserstein.method import GromovFusion
from consilience.networks.network import Network
from consilience.networks.torch_modules import arrays_of_module

RESULTS = Path(__file__).with_suffix(".json")
SEEDS, REPEATS, HIDDEN, INPUTS, CLASSES = range(3), 5, 256, 50, 10
SIZES = (128, 256, 512, 1024)
NOISE = 2.0
"""Standard deviation of the noise, as a share of that of the weights."""
METHODS = {
    "exact, all starts": GromovFusion(),
    "exact, start at the input part": GromovFusion(starts=("input",)),
    "exact, without signs": GromovFusion(signs=False),
}


class Reader(nn.Module):
    """Reads a sequence (n, steps, 50) and tells its class from the last state."""

    def __init__(self, hidden: int) -> None:
        """Build an LSTM of so many units and its decoder."""
        super().__init__()
        self.recurrent = nn.LSTM(INPUTS, hidden, batch_first=True)
        self.decoder = nn.Linear(hidden, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        states, _ = self.recurrent(x)
        return self.decoder(states[:, -1])


def pair(hidden: int, seed: int) -> NetworkEnsemble:
    """Return two noisy copies of an LSTM with units renumbered."""
    torch.manual_seed(seed)
    base = Reader(hidden)
    symmetry = cs.symmetry(base, torch.randn(2, 3, INPUTS))
    rng = np.random.default_rng(seed)
    networks = []
    for _ in range(2):
        model = cs.permute(base, symmetry, {name: rng.permutation(size) for name, size in symmetry.groups.items()})
        with torch.no_grad():
            for values in model.parameters():
                values += NOISE * values.std() * torch.randn_like(values)
        networks.append(Network(arrays_of_module(model), symmetry))
    return NetworkEnsemble(tuple(networks), np.full(2, 0.5), networks[0].units)


def run(method: GromovFusion, ensemble: NetworkEnsemble) -> Any:
    """Return the alignment of a pair, after it was fused."""
    return method.fuse(ensemble, np.random.default_rng(0)).alignment


def recorded(method: GromovFusion, ensemble: NetworkEnsemble) -> tuple[Any, Callable[[], None]]:
    """Return the alignment, and a function that does its bare products and assignments once more."""
    plans: list[tuple[Any, bool]] = []
    costs: list[np.ndarray] = []
    at, at_permutation, assign = gromov.FusedGromov.at, gromov.FusedGromov.at_permutation, gromov.assign_block

    def dense(problem: gromov.FusedGromov, plan: gromov.TransportPlan) -> Any:
        plans.append((problem, False))
        return at(problem, plan)

    def looked_up(problem: gromov.FusedGromov, columns: np.ndarray, signs: np.ndarray | None) -> Any:
        plans.append((problem, True))
        return at_permutation(problem, columns, signs)

    def assigned(given: np.ndarray) -> np.ndarray:
        costs.append(given)
        return assign(given)

    with (
        mock.patch.object(gromov.FusedGromov, "at", dense),
        mock.patch.object(gromov.FusedGromov, "at_permutation", looked_up),
        mock.patch.object(gromov, "assign_block", assigned),
    ):
        found = run(method, ensemble)

    def bare() -> None:
        for problem, permuted in plans:
            plan = problem.costs
            for left, right in zip(problem.row_structure, problem.column_structure, strict=True):
                if permuted:  # a product with a permutation is a look-up
                    left @ right
                    left.T @ right
                else:
                    left @ (plan @ right.T)
                    left.T @ (plan @ right)
        for given in costs:
            linear_sum_assignment(given)

    return found, bare


def run_pair() -> dict[str, Any]:
    """Compare Gromov fusion of an LSTM pair to convergence with its bare products and assignments."""
    results = []
    for seed in SEEDS:
        ensemble = pair(HIDDEN, seed)
        for name, method in METHODS.items():
            found, bare = recorded(method, ensemble)
            times = interleaved({"fusion": lambda m=method: run(m, ensemble), "bare": bare}, REPEATS, {})  # noqa: B023
            middle = medians(times)
            (told,) = found.details["groups"].values()
            results.append(
                {
                    "method": name,
                    "seed": seed,
                    "seconds": middle,
                    "ratio": middle["fusion"] / middle["bare"],
                    "objective": found.objective,
                    "steps": told["steps"],
                }
            )
    return {"hidden": HIDDEN, "repeats": REPEATS, "results": results}


def run_scaling() -> dict[str, Any]:
    """Return seconds of one step of the descent against the number of units."""
    results = []
    for hidden in SIZES:
        ensemble = pair(hidden, 0)
        method = METHODS["exact, start at the input part"]
        with mock.patch.object(gromov_descent, "_step", wraps=gromov_descent._step) as step:
            taken, _ = seconds(lambda: run(method, ensemble))  # noqa: B023
        steps = step.call_count
        results.append({"hidden": hidden, "seconds": taken, "steps": steps, "seconds_per_step": taken / steps})
    sizes, each = (np.log([row[key] for row in results]) for key in ("hidden", "seconds_per_step"))
    return {"results": results, "slope": float(np.polyfit(sizes, each, 1)[0])}


def run_memory() -> dict[str, Any]:
    """Return the peak of memory beyond the models, in matrices of 256 x 1024 numbers of 64 bits."""
    results = {}
    for name, method in METHODS.items():
        ensemble = pair(HIDDEN, 0)
        run(method, ensemble)  # what is kept with the models is there before
        tracemalloc.start()
        run(method, ensemble)
        results[name] = tracemalloc.get_traced_memory()[1] / (HIDDEN * 4 * HIDDEN * 8)
        tracemalloc.stop()
    return {"results": results}


PARTS = {"pair": run_pair, "scaling": run_scaling, "memory": run_memory}


def main(parts: list[str]) -> None:
    """Run the named parts, or all."""
    torch.set_num_threads(1)
    with threadpool_limits(1):
        write_parts(RESULTS, PARTS, parts, {"torch": torch.__version__})


if __name__ == "__main__":
    main(sys.argv[1:])
