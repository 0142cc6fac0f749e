"""The results of one point of the experiment over its seeds, and whether targets set beforehand are met."""

from __future__ import annotations

from statistics import mean, median, stdev
from typing import Any

import numpy as np
from compare import OURS
from simulate import ARMS, Setting

from consilience.core.scores import paired_difference

PARTS = {"all": range(10), "0 to 5": range(6), "6 to 9": range(6, 10)}  # the rule's constants were chosen on 0 to 5
SPLIT = ("auto", "floor")  # what is summed up for parts of the seeds as well
EXCESS = 1.05
ERRORS = {"any subset": 0.1, "at most three": 0.3}
FROM = 0.5  # the separation from which on the targets are meant
ARM_OF = {most: arm for arm, most in zip(ERRORS, ARMS, strict=True)}


def place(setting: Setting) -> dict[str, Any]:
    """Return where a setting stands in the experiment."""
    kind = "more sites" if setting.sites > 50 else "more dimensions" if setting.dim > 10 else "figures"
    return {"kind": kind, "arm": ARM_OF[setting.most], "separation": setting.separation, "noise": setting.noise}


def spread(values: list[float]) -> dict[str, float]:
    """Return mean, standard deviation and worst (greatest) of some scores."""
    return {"mean": mean(values), "sd": stdev(values) if len(values) > 1 else 0.0, "worst": max(values)}


def columns(scores: list[dict[str, Any] | None]) -> dict[str, list[Any]]:
    """Return the scores of every seed, a list for each score; empty where the method was not run."""
    return {name: [one[name] for one in scores] for name in scores[0] or ()}


def summary(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the summary of one method over some seeds; empty where it was not run."""
    found = [(row["true"], row["methods"][name]["scores"]) for row in rows if row["methods"][name]["scores"]]
    if not found:
        return {}
    result: dict[str, Any] = {"seeds": len(found)}
    result["error"] = spread([abs(scores["components"] - true) for true, scores in found])
    result["signed_error"] = mean(scores["components"] - true for true, scores in found)
    for score in ("hausdorff", "seconds"):
        values = [scores[score] for _, scores in found if scores[score] is not None]
        if values:
            result[score] = spread(values) | {"median": median(values)}
    if "rand" in found[0][1]:
        result["rand"] = {"mean": mean(s["rand"] for _, s in found), "worst": min(s["rand"] for _, s in found)}
        result["left_out"] = sum(scores["left_out"] for _, scores in found)
    return result


def against(rows: list[dict[str, Any]], other: str) -> dict[str, Any]:
    """Return how the Hausdorff distance of the default compares with another's, seed by seed; empty without it."""
    pairs = [tuple(row["methods"][name]["scores"] for name in ("auto", other)) for row in rows]
    pairs = [(ours["hausdorff"], theirs["hausdorff"]) for ours, theirs in pairs if theirs]
    if not pairs:
        return {}
    ours, theirs = (np.array(column) for column in zip(*pairs, strict=True))
    difference = paired_difference(ours, theirs, np.ones(len(ours)))
    return {
        "of_means": float(ours.mean() / theirs.mean()),
        "ratio": spread((ours / theirs).tolist()),
        "difference": difference.mean,
        "interval": list(difference.interval) if len(ours) > 1 else None,
    }


def point(setting: Setting, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the results of one setting: those of every seed, and their summaries."""
    names = list(rows[0]["methods"])
    result: dict[str, Any] = {
        **place(setting),
        "sites": setting.sites,
        "dim": setting.dim,
        "samples": setting.samples,
        "seeds": [row["seed"] for row in rows],
        "true": [row["true"] for row in rows],
        "locals": [row["locals"] for row in rows],
        "library_sources": sorted({row["methods"][name]["library_source"] for row in rows for name in OURS}),
        "summary": {},
        "scores": {name: columns([row["methods"][name]["scores"] for row in rows]) for name in names},
    }
    for part, seeds in PARTS.items():
        chosen = [row for row in rows if row["seed"] in seeds]
        if chosen:
            found: dict[str, Any] = {name: summary(chosen, name) for name in (names if part == "all" else SPLIT)}
            found["auto against floor"] = against(chosen, "floor")
            found["auto against pooled"] = against(chosen, "pooled")
            result["summary"][part] = found
    return result


def targets(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, for every point of the figures from separation 0.5 on, what was aimed at and what was found."""
    result = []
    for one in points:
        if one["kind"] != "figures" or one["separation"] < FROM:
            continue
        for part, found in one["summary"].items():
            ratio, error = found["auto against floor"]["of_means"], found["auto"]["error"]["mean"]
            aim = ERRORS[one["arm"]]
            result.append(
                {
                    **{name: one[name] for name in ("arm", "separation", "noise")},
                    "seeds": part,
                    "number_of_seeds": found["auto"]["seeds"],
                    "hausdorff_over_floor": ratio,
                    "hausdorff_target": EXCESS,
                    "hausdorff_met": ratio <= EXCESS,
                    "error": error,
                    "error_target": aim,
                    "error_met": error <= aim + 1e-9,
                }
            )
    return result
