"""What the default is compared with: every site, averages, matching, the default before it, ensembles, all the data.

No method here sees a test label. The ensembles are written out from their equations, apart from the library, with J
sites, p_j(c|x) the probabilities of site j, n_jc its observations of class c, n_j all of them, N those of all sites:

    mean                    1/J sum_j p_j(c|x)
    mean by n               sum_j n_j/N p_j(c|x)
    class-weighted          sum_j w_jc p_j(c|x), normalised over c;     w_jc = n_jc / sum_i n_ic
    stationary              q = M(x) q,  M_cc'(x) = sum_j p_j(c|x) w_jc'

A class that no site has counts as n_j at site j. M is mixed with 0.001 pi 1^T, pi_c = sum_j n_jc / N, so that q is
unique: q = (I - 0.999 M)^-1 0.001 pi.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from network_battery.training import Cell, outputs
from scipy.special import softmax

import consilience as cs

MIXED = 1e-3
"""Share of the pooled class distribution in the chain, as the specification of the stationary ensemble has it."""
LEAST_PROBABILITY = 1e-30


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a method answers on the test rows.

    Parameters
    ----------
    answers : ndarray of shape (n, C)
        Logits or log probabilities, or predictions of a regression.
    facts : dict
        JSON values to keep beside the scores.
    """

    answers: np.ndarray
    facts: dict[str, Any] = field(default_factory=dict)


def class_shares(counts: np.ndarray) -> np.ndarray:
    """Return w_jc, the share of site j in the observations of class c (J, C), of counts (J, C)."""
    totals = counts.sum(axis=0)
    sizes = counts.sum(axis=1, keepdims=True)
    return np.where(totals > 0, counts / np.maximum(totals, 1), sizes / sizes.sum())


def stationary(probabilities: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return q (n, C), the stationary distribution of M(x), of probabilities (J, n, C) and counts (J, C)."""
    chains = np.einsum("jnc,jd->ncd", probabilities, class_shares(counts))  # (n, C, C), columns sum to 1
    prior = counts.sum(axis=0) / counts.sum()
    right = np.broadcast_to(MIXED * prior, chains.shape[:2])[..., None]
    return np.linalg.solve(np.eye(counts.shape[1]) - (1 - MIXED) * chains, right)[..., 0]


def class_weighted(probabilities: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the mean of probabilities (J, n, C) weighted by class shares, normalised (n, C)."""
    weighted = np.einsum("jnc,jc->nc", probabilities, class_shares(counts))
    return weighted / weighted.sum(axis=1, keepdims=True)


def mean_by_n(probabilities: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the mean of probabilities (J, n, C) weighted by observations (n, C)."""
    return np.average(probabilities, axis=0, weights=counts.sum(axis=1))


def mean(probabilities: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the unweighted mean of probabilities (J, n, C)."""
    return probabilities.mean(axis=0)


def ensemble(combine: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[[Cell], Outcome | None]:
    """Return the method that combines the sites' probabilities; of a regression predictions, where it has a meaning."""

    def method(cell: Cell) -> Outcome | None:
        if cell.data.n_classes is None:
            return Outcome(combine(cell.answers, cell.data.counts)) if combine in (mean, mean_by_n) else None
        combined = combine(softmax(cell.answers, axis=-1), cell.data.counts)
        return Outcome(np.log(np.maximum(combined, LEAST_PROBABILITY)))

    return method


def fused_answers(cell: Cell, model: Any) -> np.ndarray:
    """Return what a fused model answers on the test rows; arrays by name are put into a network of the cell."""
    if isinstance(model, Mapping):
        module = cell.network(0)
        module.load_state_dict({name: torch.as_tensor(values) for name, values in model.items()})
        model = module
    return outputs(model.eval() if isinstance(model, torch.nn.Module) else model, cell.data.test[0])


def fusion(method: str | None, *, by_n: bool = False, **options: Any) -> Callable[[Cell], Outcome]:
    """Return the method that fuses the sites' networks as they are, without descriptions."""

    def fused(cell: Cell) -> Outcome:
        weights = cell.data.counts.sum(axis=1).tolist() if by_n else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = cs.fuse(cell.models, method, weights=weights, example=cell.example, rng=0, **options)
        facts = {"status": result.status.name, "refit": result.details.get("refit")}
        return Outcome(fused_answers(cell, result.model), facts)

    return fused


def only(is_bayesian: bool, method: Callable[[Cell], Outcome]) -> Callable[[Cell], Outcome | None]:
    """Return a method that applies to Bayesian networks alone, or to all others."""
    return lambda cell: method(cell) if (cell.setting.architecture == "BNN") == is_bayesian else None


def default_before(cell: Cell) -> Outcome:
    """Return what `fuse` did without a method before networks were described: equal weights, made-up inputs."""
    return fusion("kl" if cell.setting.architecture == "BNN" else "consensus")(cell)


METHODS: dict[str, Callable[[Cell], Outcome | None]] = {
    "average by n": fusion("average", by_n=True),
    "matched by n": only(False, fusion("consensus", by_n=True, refit=False)),
    "default before": default_before,
    "default before, no refit": only(False, fusion("consensus", refit=False)),
    "Bayesian, share, by n": only(True, fusion("kl", by_n=True, outgoing="share")),
    "ensemble": ensemble(mean),
    "ensemble by n": ensemble(mean_by_n),
    "class-weighted ensemble": ensemble(class_weighted),
    "stationary ensemble": ensemble(stationary),
    "pooled": lambda cell: Outcome(cell.pooled_answers),
}
"""Methods by name; one that does not apply to a cell gives None there."""
FUSIONS = ("average by n", "matched by n", "default before", "default before, no refit", "Bayesian, share, by n")
"""Those that give one network and see no rows."""
