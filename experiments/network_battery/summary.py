"""The results of the battery of network fusion summed up over cells.

Accuracies are shares of test rows, R^2 of a regression. A model does *harm* in a cell where it is worse than the best
site, the one of highest true accuracy, beyond the 95 % interval of the paired difference.
"""

from __future__ import annotations

from statistics import mean, median
from typing import Any

from network_battery.scores import is_harm
from scipy.stats import spearmanr

NEAR = 0.01
"""A choice is near the best candidate when it is no more than a point below it."""
LEVELS = ("with", "counts", "none")
"""What sites say of themselves, as in ``default.py``."""
MOST_ACCURATE_ENSEMBLE = ("stationary ensemble", "ensemble by n")
"""The ensemble that a cell is compared with: the first that applies to it."""
TARGETS = {"never worse": 0.95, "near the best candidate": 0.9, "better": 0.8}
"""What is aimed at on the half that is reported, as shares of cells."""


def has_scores(result: dict[str, Any] | None) -> bool:
    """Return whether a method was run on a cell and came to an end."""
    return result is not None and "accuracy" in result


def method_names(rows: list[dict[str, Any]]) -> list[str]:
    """Return the names of all methods of some cells, in the order of their first occurrence."""
    return list(dict.fromkeys(name for row in rows for name in row["methods"]))


def reference_ensemble(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return the scores of the ensemble that a cell is compared with."""
    found = [row["methods"].get(name) for name in MOST_ACCURATE_ENSEMBLE]
    return next((result for result in found if has_scores(result)), None)


def accuracies_of_candidates(result: dict[str, Any]) -> dict[str, float]:
    """Return the true accuracy of every candidate of a fusion, where they are known."""
    return {name: one["accuracy"] for name, one in result.get("candidates", {}).items() if "accuracy" in one}


def best_candidate(row: dict[str, Any], level: str) -> float | None:
    """Return the highest true accuracy of the candidates of the default, sites' own networks too."""
    result = row["methods"].get(f"default, {level}")
    if not has_scores(result):
        return None
    return max([result["accuracy"], *row["sites"], *accuracies_of_candidates(result).values()])


def rank_correlation(result: dict[str, Any]) -> float | None:
    """Return Spearman's correlation of candidates' true accuracies with their scores, less being better.

    None where fewer than three candidates have both, or all are alike.
    """
    both = [
        (-one["score"], one["accuracy"])
        for one in result.get("candidates", {}).values()
        if one.get("score") is not None and "accuracy" in one
    ]
    if len(both) < 3 or min(len(set(column)) for column in zip(*both, strict=True)) < 2:
        return None
    return float(spearmanr(*zip(*both, strict=True)).statistic)


def summary(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the summary of a method over the cells on which it came to an end; empty where there are none."""
    done = [(row, row["methods"][name]) for row in rows if has_scores(row["methods"].get(name))]
    if not done:
        return {}
    results = [result for _, result in done]
    gaps = [result["accuracy"] - max(row["sites"]) for row, result in done]
    return {
        "cells": len(done),
        "missing": sum(name in row["methods"] for row in rows) - len(done),
        "accuracy": mean(result["accuracy"] for result in results),
        "over_best_site": mean(gaps),
        "worst": min(gaps),
        "harms": sum(is_harm(result) for result in results),
        "gains": sum(result["over_best_site"]["low"] > 0 for result in results),
        "seconds": median(result["seconds"] for result in results),
    }


def sites_summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the mean over cells of the best site's accuracy and of the mean site's."""
    return {
        "best site": mean(max(row["sites"]) for row in rows),
        "mean site": mean(mean(row["sites"]) for row in rows),
    }


def choice_summary(rows: list[dict[str, Any]], level: str) -> dict[str, Any]:
    """Return how the default chose at a level of description, over the cells on which it came to an end."""
    name = f"default, {level}"
    done = [(row, row["methods"][name]) for row in rows if has_scores(row["methods"].get(name))]
    if not done:
        return {}
    regrets = [best_candidate(row, level) - result["accuracy"] for row, result in done]  # type: ignore[operator]
    told = [is_said_better(result) for _, result in done]
    harms = [is_harm(result) for _, result in done]
    with_moments = [says_class_moments(result) for _, result in done]
    correlations = [value for _, result in done if (value := rank_correlation(result)) is not None]
    return {
        "cells": len(done),
        "never_worse": 1 - mean(harms),
        "regret": mean(regrets),
        "worst_regret": max(regrets),
        "near": mean(regret <= NEAR for regret in regrets),
        "better": {said: said_of(said == "yes", told, harms) for said in ("yes", "no")},
        "with_class_moments": sum(with_moments),
        "rank_correlation": mean(correlations) if correlations else None,
        "least_rank_correlation": min(correlations) if correlations else None,
        "with_rank_correlation": len(correlations),
    }


def is_said_better(result: dict[str, Any]) -> bool:
    """Return whether the verdict says that the network is better on synthetic inputs than every other site's own."""
    return "it is better than every" in (result["verdict"] or {}).get("text", "")


def says_class_moments(result: dict[str, Any]) -> bool:
    """Return whether the choice was made by errors on inputs drawn from moments of classes."""
    verdict = result["verdict"] or {}
    return str(verdict.get("criterion") or "").startswith("error on inputs drawn")


def said_of(said: bool, told: list[bool], harms: list[bool]) -> dict[str, int]:
    """Return in how many cells a verdict said this, and in how many of these there was harm."""
    chosen = [harm for one, harm in zip(told, harms, strict=True) if one is said]
    return {"cells": len(chosen), "harms": sum(chosen)}


def text(rows: list[dict[str, Any]]) -> str:
    """Return the summary as lines to print."""
    lines = [f"{'cells of ' + str(len(rows)):<28}cells miss   mean  -best  worst harms gains       s"]
    for name, value in sites_summary(rows).items() if rows else ():
        lines.append(f"{name:<28}{len(rows):5d}     {100 * value:7.1f}")
    lines += [f"{name:<28}{_line(found)}" for name in method_names(rows) if (found := summary(rows, name))]
    lines += [f"{level}: {found}" for level in LEVELS if (found := choice_summary(rows, level))]
    for row in rows:
        for name, result in row["methods"].items():
            if not has_scores(result):
                lines.append(f"{row['name']}, {name}: {result}")
    return "\n".join(lines) + "\n"


def _line(found: dict[str, Any]) -> str:
    return (
        f"{found['cells']:5d}{found['missing']:5d}{100 * found['accuracy']:7.1f}"
        f"{100 * found['over_best_site']:+7.1f}{100 * found['worst']:+7.1f}{found['harms']:6d}"
        f"{found['gains']:6d}{found['seconds']:8.1f}"
    )
