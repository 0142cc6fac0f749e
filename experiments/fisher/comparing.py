"""What the experiments of Fisher merging share: candidates, the choice among them, and paired differences."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))
from record import as_text, versions

from consilience.core.scores import paired_difference

HERE = Path(__file__).parent
FISHER = "Fisher diagonal"
"""The method that all others are compared with: diagonal information, the prior ignored, as published."""
WITH_PRIOR = "Fisher diagonal with prior"
"""The same with the sites' priors, of which the surplus ones are removed or kept, whichever was chosen."""


Scores = Mapping[str, Mapping[str, Any]]
"""What was remembered of one seed: scores by key."""


def paired(losses: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """Return the mean over seeds of ``losses - others`` and its 95 % interval."""
    found = paired_difference(np.array(losses), np.array(others), np.ones(len(losses)))
    return {"mean": found.mean, "low": found.interval[0], "high": found.interval[1]}


def chosen(validation: Mapping[str, Sequence[float]]) -> str:
    """Return the variant of lowest mean validation loss, each a list over seeds."""
    means = {name: mean(losses) if np.all(np.isfinite(losses)) else np.inf for name, losses in validation.items()}
    return min(means, key=lambda name: means[name])


def compared(losses: Mapping[str, Sequence[float]]) -> dict[str, dict[str, Any]]:
    """Return, of every method, its losses and the paired difference from those of the Fisher diagonal."""
    return {
        name: {"loss": list(own), **({} if name == FISHER else {"difference": paired(own, losses[FISHER])})}
        for name, own in losses.items()
    }


def key_of(method: str, variant: str) -> str:
    """Return under which key the scores of a method's variant are kept."""
    return f"{method} | {variant}" if variant else method


def choices(
    variants: Mapping[str, Iterable[str]], by_seed: Mapping[int, Scores], seeds: Iterable[int]
) -> dict[str, dict[str, Any]]:
    """Return, of every method, which variant has the lowest mean validation loss over some seeds, and those losses."""
    found = {}
    for method, names in variants.items():
        losses = {
            name: [by_seed[seed][key_of(method, name)]["scores"]["validation"]["loss"] for seed in seeds]
            for name in names
        }
        found[method] = {
            "chosen": chosen(losses),
            "validation": {name: mean(own) if np.all(np.isfinite(own)) else None for name, own in losses.items()},
        }
    return found


def sources(by_seed: Mapping[int, Scores]) -> list[str]:
    """Return digests of the states of the library that gave the scores."""
    return sorted({one["library_source"] for found in by_seed.values() for one in found.values()})


def rows(
    picked: Mapping[str, Mapping[str, Any]], by_seed: Mapping[int, Scores], counterparts: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Return test scores of every method in its chosen variant, and paired differences from the Fisher diagonal.

    Methods that were not run on all seeds are compared on those that they were run on. `counterparts` names, for
    methods that look beyond the diagonal, the diagonal merge that was offered the same ways with the prior and with
    scales: what their difference is due to.
    """
    keys = {method: key_of(method, own["chosen"]) for method, own in picked.items()}
    table: dict[str, dict[str, Any]] = {}
    for method, own in picked.items():
        seeds = [seed for seed, found in by_seed.items() if keys[method] in found]

        def tests(of: str, score: str, seeds: Sequence[int] = seeds) -> list[float]:
            return [by_seed[seed][keys[of]]["scores"]["test"][score] for seed in seeds]

        row = {**own, "seeds": seeds}
        for score in ("loss", "accuracy"):
            row[score] = tests(method, score)
            if method != FISHER:
                row[f"{score} difference"] = paired(row[score], tests(FISHER, score))
            if method in counterparts:
                row[f"{score} beyond diagonal"] = paired(row[score], tests(counterparts[method], score))
        table[method] = row
    return table


def write(name: str, result: Mapping[str, Any]) -> None:
    """Write a JSON file beside this one, with versions."""
    (HERE / f"{name}.json").write_text(as_text({**result, "versions": versions()}))
