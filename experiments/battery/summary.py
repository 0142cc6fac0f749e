"""The results of the battery summed up: by group of cells, what each method errs by and how well it matches."""

from __future__ import annotations

from statistics import mean, median
from typing import Any

import numpy as np

from consilience.core.scores import paired_difference

TOLD = ("told", "k-means", "Runnalls")  # as in methods.py; the best of them is what the default is held to
TRUE = "true matching"
PARTS = (
    "all",
    "separated",
    "many small sites",
    "disjoint",
    "real",
    "overlap",
    "tails",
    "noise",
    "over-split",
    "ordinary",
)
"""Groups of cells: all, the simulated ones with a Bayes error below 2 %, and what ``group`` of a setting says."""
TARGETS = {"error of separated": 0.5, "ARI of best told": 0.97, "collapses": 0}


def part(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return the cells of a part."""
    if name == "all":
        return rows
    return [row for row in rows if (row["separated"] if name == "separated" else row["settings"]["group"] == name)]


def has_scores(scores: dict[str, Any] | None) -> bool:
    """Return whether a method was run on a cell and came to an end."""
    return scores is not None and "error" in scores


def share_of_best(row: dict[str, Any], name: str) -> float | None:
    """Return the matching ARI of a method over the best of the three that are told; None where none is above zero."""
    told = [row["methods"][one]["ari"] for one in TOLD if has_scores(row["methods"].get(one))]
    best = max(told, default=0.0)
    return row["methods"][name]["ari"] / best if best > 0 else None


def summary(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the summary of a method over the cells on which it came to an end; empty where there are none."""
    done = [row for row in rows if has_scores(row["methods"].get(name))]
    missing = len([row for row in rows if name in row["methods"]]) - len(done)
    if not done:
        return {}
    scores = [row["methods"][name] for row in done]
    result: dict[str, Any] = {
        "cells": len(done),
        "missing": missing,
        "error": mean(abs(one["error"]) for one in scores),
        "worst_error": max((one["error"] for one in scores), key=abs),
        "exact": mean(one["error"] == 0 for one in scores),
        "collapses": sum(one["collapsed"] for one in scores),
    }
    for score in ("log_likelihood", "ami", "virtual_loss"):
        result[score] = mean(one[score] for one in scores)
    true = [row["methods"].get(TRUE) for row in done]
    if all(map(has_scores, true)):  # of cells that differ by tens of nats, only differences can be averaged
        differences = [one["log_likelihood"] - best["log_likelihood"] for one, best in zip(scores, true, strict=True)]
        result["over_true"] = mean(differences)
    if "ari" in scores[0]:
        result["ari"] = mean(one["ari"] for one in scores)
        result["ari_of_matched"] = mean(one["ari_of_matched"] for one in scores)
        result["worst_ari"] = min(one["ari"] for one in scores)
        result["left_out"] = sum(one["left_out"] for one in scores)
        shares = [value for row in done if (value := share_of_best(row, name)) is not None]
        if shares:
            result |= {"share_of_best": mean(shares), "worst_share": min(shares)}
    if "relative" in scores[0]:
        result["relative"] = median(one["relative"] for one in scores)
        result["most_relative"] = max(one["relative"] for one in scores)
    return result


def paired(rows: list[dict[str, Any]], name: str, other: str, score: str) -> dict[str, Any] | None:
    """Return the mean difference of a score between two methods over the cells that both have, with its 95 % margin."""
    both = [
        (row["methods"][name][score], row["methods"][other][score])
        for row in rows
        if all(has_scores(row["methods"].get(one)) and score in row["methods"][one] for one in (name, other))
    ]
    if len(both) < 2:
        return None
    first, second = (np.array(column, dtype=float) for column in zip(*both, strict=True))
    difference = paired_difference(first, second, np.ones(len(both)))
    return {"cells": len(both), "mean": difference.mean, "margin": difference.margin}


def calibration(rows: list[dict[str, Any]], name: str) -> list[tuple[int, float, float]]:
    """Return, by stated confidence, the number of matches, the mean stated and the share that are right."""
    tables = [row["methods"][name].get("confidence") for row in rows if has_scores(row["methods"].get(name))]
    bins = [table["bins"] for table in tables if table]
    if not bins:
        return []
    total = np.sum(np.array(bins), axis=0)  # (bins, 3): number, sum of stated, right ones
    return [(int(n), stated / n, right / n) for n, stated, right in total.tolist() if n > 0]


def text(rows: list[dict[str, Any]]) -> str:
    """Return the summary as lines to print."""
    names = list(rows[0]["methods"]) if rows else []
    head = "cells miss  |dG|  worst exact coll   ARI worst /best worst matched left    AMI  ll/true     VL    rel  most"
    lines = []
    for name in PARTS:
        chosen = part(rows, name)
        if not chosen:
            continue
        lines.append(f"{name} ({len(chosen)})".ljust(22) + head)
        lines += [f"  {method:<20}{_line(found)}" for method in names if (found := summary(chosen, method))]
    for method in names:
        if table := calibration(rows, method):
            shown = ", ".join(f"{stated:.3f}: {right:.3f} of {n}" for n, stated, right in table)
            lines.append(f"confidence of {method}, stated: right: {shown}")
    for row in rows:
        for method, scores in row["methods"].items():
            if not has_scores(scores):
                lines.append(f"{row['name']}, {method}: {scores}")
    return "\n".join(lines) + "\n"


def _line(found: dict[str, Any]) -> str:
    def number(name: str, form: str) -> str:
        width = int(form.split(".")[0])
        return f"{found[name]:{form}}" if name in found else " " * width

    return (
        f"{found['cells']:5d}{found['missing']:5d}{found['error']:6.2f}{found['worst_error']:+7d}{found['exact']:6.2f}"
        f"{found['collapses']:5d}{number('ari', '6.3f')}{number('worst_ari', '6.2f')}{number('share_of_best', '6.3f')}"
        f"{number('worst_share', '6.2f')}{number('ari_of_matched', '8.3f')}{number('left_out', '5.0f')}"
        f"{found['ami']:7.3f}{number('over_true', '9.3f')}"
        f"{found['virtual_loss']:7.3f}{number('relative', '7.2f')}{number('most_relative', '6.0f')}"
    )


def perturbation_text(rows: list[dict[str, Any]]) -> str:
    """Return how often the partition stayed the same, and the cells where it did not."""
    lines, same, total = [], 0, 0
    for row in rows:
        if "gave_up" in row:
            lines.append(f"{row['name']}: gave up after {row['gave_up']} s")
            continue
        same, total = same + sum(row["same"].values()), total + len(row["same"])
        changed = [f"{name}: {row['found'][name]}" for name, stayed in row["same"].items() if not stayed]
        if changed:
            lines.append(f"{row['name']}, {row['components']} components: {'; '.join(changed)}")
    return "\n".join([f"the same partition in {same} of {total}", *lines]) + "\n"
