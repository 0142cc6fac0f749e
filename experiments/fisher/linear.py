"""Merging linear regressions (figure 1 of Recasens et al.): ``python experiments/fisher/linear.py``.

Three regressions with ten weights, each fitted exactly on a third or on an overlapping half of the observations, are
merged with their exact posteriors; what is aimed at is the posterior mean of all data, each observation counted once.
Writes ``linear.json`` beside this file; it takes a minute or two.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean
from typing import Any

import numpy as np
import torch
from comparing import compared, write
from published import StochasticFisher
from torch import nn

import consilience as cs

SEEDS, OBSERVATIONS, FEATURES, CORRELATION, NOISE, ALPHA = range(10), 300, 10, 0.5, 0.5, 1.0
PARTS = {
    "overlapping": ((0.0, 0.5), (0.25, 0.75), (0.5, 1.0)),
    "disjoint": ((0.0, 1 / 3), (1 / 3, 2 / 3), (2 / 3, 1.0)),
}
"""What every site sees of the observations, in order of the first input."""
STEPS = (1, 3, 10, 30, 100, 300, 1000)
SGD = {"mask_rate": 0.2}
METHODS: dict[str, tuple[Any, dict[str, Any]]] = {
    "isotropic": ("fisher", {"structure": "isotropic"}),
    "Fisher diagonal": ("fisher", {"structure": "diagonal"}),
    "Fisher diagonal, prior removed": ("fisher", {"structure": "diagonal", "prior": "removed"}),
    "low rank": ("fisher", {"structure": "low_rank", "prior": "removed"}),
    "low rank, prior ignored": ("fisher", {"structure": "low_rank", "prior": "ignored"}),
    "full": ("fisher", {"structure": "full", "prior": "removed"}),
    **{f"SSF {rate:.0%}": ("ssf", {"mask_rate": rate, "masks": 200}) for rate in (0.2, 0.5, 0.7)},
    "SSF 20%, prior ignored": ("ssf", {"mask_rate": 0.2, "masks": 200, "prior": "ignored"}),
    "SSF 20%, stochastic": (StochasticFisher(**SGD, steps=STEPS[-1]), {}),
}
CHOSEN = {
    "published": "figure 1 of the paper on self-supervised Fisher merging: a figure without numbers",
    "data": f"{OBSERVATIONS} observations of a constant and {FEATURES - 1} normal inputs, neighbours correlated by"
    f" {CORRELATION}; weights drawn from the prior, of precision {ALPHA}; noise of deviation {NOISE}: we chose",
    "noise and prior precision": "known to all sites and to the merge; nothing is chosen by results",
    "stochastic": f"{STEPS[-1]} steps from a random start, the last fifth averaged; rate and momentum by default",
    "error": "mean over parameters of the squared difference from the posterior mean of all data",
}


def observed(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs (n, 10), the first a constant, in order of the second, and targets (n,)."""
    rng = np.random.default_rng([11, seed])
    apart = np.abs(np.subtract.outer(np.arange(FEATURES - 1), np.arange(FEATURES - 1)))
    x = rng.multivariate_normal(np.zeros(FEATURES - 1), CORRELATION**apart, size=OBSERVATIONS)
    phi = np.column_stack([np.ones(OBSERVATIONS), x[np.argsort(x[:, 0])]])
    return phi, phi @ rng.normal(size=FEATURES) / ALPHA**0.5 + NOISE * rng.normal(size=OBSERVATIONS)


def posterior_mean(phi: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Return (8): the posterior mean of the weights (10,)."""
    precision = phi.T @ phi / NOISE**2 + ALPHA * np.eye(FEATURES)
    return np.linalg.solve(precision, phi.T @ t / NOISE**2)


def regression(weights: np.ndarray) -> nn.Linear:
    """Return a linear layer in double precision with these weights."""
    net = nn.Linear(FEATURES, 1, bias=False, dtype=torch.float64)
    net.load_state_dict({"weight": torch.from_numpy(weights[None])})
    return net


def sites(seed: int, parts: str) -> tuple[list[nn.Linear], list[cs.results.FisherInformation], np.ndarray]:
    """Return the sites' regressions, their information, and the posterior mean of all data."""
    phi, t = observed(seed)
    cuts = [slice(round(low * OBSERVATIONS), round(high * OBSERVATIONS)) for low, high in PARTS[parts]]
    nets = [regression(posterior_mean(phi[rows], t[rows])) for rows in cuts]
    told = {"kind": "factors", "likelihood": "gaussian", "noise": NOISE, "prior_precision": ALPHA, "rank": None}
    infos = [cs.fisher(net, torch.from_numpy(phi[rows]), **told) for net, rows in zip(nets, cuts, strict=True)]
    return nets, infos, posterior_mean(phi, t)


def error(fusion: Any, aim: np.ndarray) -> float:
    """Return the mean squared difference of a merged regression's weights from those aimed at."""
    return float(np.mean((fusion.model.weight.detach().numpy()[0] - aim) ** 2))


def curve(
    nets: list[nn.Linear], infos: list[cs.results.FisherInformation], aim: np.ndarray, prior: str
) -> dict[str, Any]:
    """Return objective and error of stochastic SSF by number of steps, from a random start."""
    runs = [cs.fuse(nets, StochasticFisher(prior=prior, **SGD, steps=steps), fishers=infos, rng=0) for steps in STEPS]
    thinned = np.unique(np.geomspace(1, len(runs[-1].history), 150).astype(int)) - 1
    return {
        "steps": list(STEPS),
        "error": [error(run, aim) for run in runs],
        "objective at": (thinned + 1).tolist(),
        "objective": runs[-1].history[thinned].tolist(),
    }


def errors(parts: str) -> Mapping[str, list[float]]:
    """Return errors of all methods, a value a seed."""
    found: dict[str, list[float]] = {name: [] for name in METHODS}
    for seed in SEEDS:
        nets, infos, aim = sites(seed, parts)
        for name, (method, options) in METHODS.items():
            own = None if name == "isotropic" else infos
            found[name].append(error(cs.fuse(nets, method, fishers=own, rng=seed, **options), aim))
    return found


def main() -> None:
    """Merge, and write what came out."""
    torch.set_num_threads(1)
    result: dict[str, Any] = {"seeds": list(SEEDS), "settings": CHOSEN, "parts": {}, "curves": {}}
    for parts in PARTS:
        result["parts"][parts] = compared(errors(parts))
        nets, infos, aim = sites(SEEDS[0], parts)
        result["curves"][parts] = {prior: curve(nets, infos, aim, prior) for prior in ("removed", "ignored")}
    result["mean square of the weights"] = mean(float(np.mean(sites(seed, "disjoint")[2] ** 2)) for seed in SEEDS)
    write("linear", result)


if __name__ == "__main__":
    main()
