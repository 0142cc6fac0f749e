"""The results of ``run.py --write`` as Markdown tables, which ``experiments/write_tables.py`` writes.

Names of tables end in the half: ``network-battery-tune``, ``network-battery-report``, and so on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

from network_battery.cells import HALVES
from network_battery.scores import is_harm
from network_battery.summary import (
    LEVELS,
    TARGETS,
    best_candidate,
    choice_summary,
    has_scores,
    is_said_better,
    method_names,
    rank_correlation,
    reference_ensemble,
    sites_summary,
    summary,
)

HERE = Path(__file__).parent
SAID = {"with": "all that `describe` gives", "counts": "counts alone", "none": "nothing"}

DESCRIBED = {"with": "classes and inputs (`describe`)", "counts": "counts of classes alone", "none": "nothing"}


def _rows(half: str) -> list[dict[str, Any]]:
    return json.loads((HERE / f"{half}.json").read_text())["cells"]


def _percent(result: dict[str, Any] | None) -> str:
    """Return an accuracy in %, marked where it does harm; empty where there is none."""
    if not has_scores(result):
        return ""
    shown = f"{100 * result['accuracy']:.1f}"  # type: ignore[index]
    return f"**{shown}**" if is_harm(result) else shown  # type: ignore[arg-type]


def methods_table(half: str) -> str:
    """Return every method over all cells: accuracy, the difference from the best site, cells of harm and of gain."""
    rows = _rows(half)
    lines = [
        "| method | cells | mean accuracy, % | over the best site | worst | worse than the best site | better | s |",
        f"| --- |{' ---: |' * 7}",
    ]
    lines += [f"| {name} | {len(rows)} | {100 * value:.1f} | | | | | |" for name, value in sites_summary(rows).items()]
    for name in method_names(rows):
        if found := summary(rows, name):
            lines.append(
                f"| {name} | {found['cells']} | {100 * found['accuracy']:.1f} | {100 * found['over_best_site']:+.1f} "
                f"| {100 * found['worst']:+.1f} | {found['harms']} | {found['gains']} | {found['seconds']:.1f} |"
            )
    return "\n".join(lines) + "\n"


def default_table(half: str) -> str:
    """Return how far the default is from the best site at every level of description, the first table of the README."""
    rows = _rows(half)
    lines = [
        "| sites describe | over the best site, points | at worst | clearly worse than it (95 %) | clearly better |",
        f"| --- |{' ---: |' * 4}",
    ]
    for level, name in DESCRIBED.items():
        found = summary(rows, f"default, {level}")
        lines.append(
            f"| {name} | {100 * found['over_best_site']:+.1f} | {100 * found['worst']:+.1f} "
            f"| {found['harms']} of {found['cells']} | {found['gains']} |"
        )
    return "\n".join(lines) + "\n"


def cells_table(half: str) -> str:
    """Return every cell: what it is, and the accuracies of sites, defaults, candidates, ensemble and pooled network."""
    lines = [
        "| cell | scaling, start, skew, sites | best / mean site | average by n | matched by n | default before "
        "| default, described | counts alone | nothing described | best candidate | ensemble | pooled |",
        f"| --- | --- |{' ---: |' * 10}",
    ]
    for row in _rows(half):
        settings, methods = row["settings"], row["methods"]
        best = best_candidate(row, "with")
        names = ("average by n", "matched by n", "default before", *(f"default, {level}" for level in LEVELS))
        shown = [_percent(methods.get(name)) for name in names]
        lines.append(
            f"| {row['name'].removeprefix(f'{half}-')} "
            f"| {settings['scaling']}, {settings['start']}, {settings['skew']}, {settings['sites']} "
            f"| {100 * max(row['sites']):.1f} / {100 * mean(row['sites']):.1f} | {' | '.join(shown)} "
            f"| {'' if best is None else f'{100 * best:.1f}'} | {_percent(reference_ensemble(row))} "
            f"| {_percent(methods.get('pooled'))} |"
        )
    return "\n".join(lines) + "\n"


def choice_table(half: str) -> str:
    """Return how the default chose at every level of description."""
    rows = _rows(half)
    lines = [
        "| described | cells | never worse than the best site | below the best candidate, mean | worst "
        "| within 1 point | rank correlation of score and accuracy, mean | least |",
        f"| --- |{' ---: |' * 7}",
    ]
    for level, said in SAID.items():
        if not (found := choice_summary(rows, level)):
            continue
        correlations = "| |"
        if found["rank_correlation"] is not None:
            correlations = f"| {found['rank_correlation']:.2f} | {found['least_rank_correlation']:.2f} |"
        lines.append(
            f"| {said} | {found['cells']} | {found['never_worse']:.0%} | {100 * found['regret']:.1f} "
            f"| {100 * found['worst_regret']:.1f} | {found['near']:.0%} {correlations}"
        )
    return "\n".join(lines) + "\n"


def verdicts_table(half: str) -> str:
    """Return what verdicts say of synthetic inputs at every level of description, and in how many cells was harm."""
    rows = _rows(half)
    lines = [
        "| described | better on synthetic inputs | cells | worse than the best site |",
        "| --- | --- | ---: | ---: |",
    ]
    for level, said in SAID.items():
        found = choice_summary(rows, level)
        for is_better, number in found.get("better", {}).items():
            lines.append(f"| {said} | {is_better} | {number['cells']} | {number['harms']} |")
    return "\n".join(lines) + "\n"


def targets_table(half: str) -> str:
    """Return what is aimed at and what the default reaches where sites describe themselves."""
    found = choice_summary(_rows(half), "with")
    reached = {
        "never worse": found["never_worse"],
        "near the best candidate": found["near"],
        "better": found["better"]["yes"]["cells"] / max(found["with_class_moments"], 1),
    }
    said = {
        "never worse": "cells in which the default is not worse than the best site, at least",
        "near the best candidate": "cells in which it is within a point of the best candidate, at least",
        "better": "cells with moments of classes said to be better on synthetic inputs, at least",
    }
    lines = ["| what | target | found | |", "| --- | ---: | ---: | --- |"]
    for name, share in reached.items():
        met = "met" if share >= TARGETS[name] else "**missed**"
        lines.append(f"| {said[name]} | {TARGETS[name]:.0%} | {share:.0%} | {met} |")
    return "\n".join(lines) + "\n"


def candidates_table(half: str) -> str:
    """Return, of every cell, what was chosen, how far it is below the best candidate, and the rank correlation."""
    lines = [
        "| cell | verdict | said better | chosen, % | best candidate, % | which | rank correlation | candidates |",
        "| --- | --- | --- | ---: | ---: | --- | ---: | ---: |",
    ]
    for row in _rows(half):
        result = row["methods"].get("default, with")
        if not has_scores(result):
            continue
        verdict = result["verdict"] or {"code": ""}
        known = {name: one["accuracy"] for name, one in result["candidates"].items() if "accuracy" in one}
        best = max(known, key=known.__getitem__, default="")
        correlation = rank_correlation(result)
        lines.append(
            f"| {row['name'].removeprefix(f'{half}-')} | {verdict['code']} "
            f"| {'yes' if is_said_better(result) else 'no'} "
            f"| {_percent(result)} | {f'{100 * known[best]:.1f}' if best else ''} | {best} "
            f"| {'' if correlation is None else f'{correlation:.2f}'} | {len(result['candidates'])} |"
        )
    return "\n".join(lines) + "\n"


def bayesian_table() -> str:
    """Return, of the settings of Bayesian networks, accuracy in % and log likelihood: best site, KL-fusion, default."""
    lines = [
        "| setting | best site | `kl` | chosen | over the best site [95 %] | which | rank correlation "
        "| seconds, of `kl` |",
        "| --- | ---: | ---: | ---: | ---: | --- | ---: | ---: |",
    ]
    for half in HALVES:
        for row in _rows(half):
            methods = row["methods"]
            if "Bayesian, share, by n" not in methods:
                continue
            matched, chosen = methods["Bayesian, share, by n"], methods["default, with"]
            both = [f"{100 * one['accuracy']:.1f}, {one['log_likelihood']:.2f}" for one in (matched, chosen)]
            over = (f"{100 * chosen['over_best_site'][name]:+.1f}" for name in ("mean", "low", "high"))
            verdict = chosen["verdict"]
            which = "a site's" if verdict["code"] == "site" else f"`{verdict['text'].split(', ')[0][8:]}`"
            name = row["name"].removeprefix(f"{half}-")[3:]
            lines.append(
                f"| {name}, {row['settings']['skew']} | {100 * max(row['sites']):.1f} "
                f"| {' | '.join(both)} | {'{} [{}, {}]'.format(*over)} | {which} "
                f"| {rank_correlation(chosen):.2f} | {chosen['seconds']:.1f}, {matched['seconds']:.1f} |"
            )
    return "\n".join(lines) + "\n"


def sizes_table(half: str) -> str:
    """Return bytes of descriptions beside the weights, and seconds to describe, by architecture."""
    rows = [row for row in _rows(half) if has_scores(row["methods"].get("default, with"))]
    lines = ["| network | weights, kB | description, kB | seconds to describe a site |", f"| --- |{' ---: |' * 3}"]
    for name in dict.fromkeys(row["settings"]["architecture"] for row in rows):
        results = [row["methods"]["default, with"] for row in rows if row["settings"]["architecture"] == name]
        weights, beside = (
            ", ".join(f"{result['bytes'][part] / 1000:.0f}" for result in results)
            for part in ("weights", "description")
        )
        seconds = median(result["seconds_to_describe"] for result in results)
        lines.append(f"| {name} | {weights} | {beside} | {seconds:.2f} |")
    return "\n".join(lines) + "\n"


def times_table() -> str:
    """Return the time of the described default over that of training one site in the mean, by architecture."""
    ratios: dict[str, list[float]] = {}
    for half in HALVES:
        for row in _rows(half):
            if not has_scores(result := row["methods"].get("default, with")):
                continue
            of_sites = [seconds for name, seconds in row["training_seconds"].items() if name != "pooled"]
            ratios.setdefault(row["settings"]["architecture"], []).append(result["seconds"] / mean(of_sites))
    ratios["all"] = [ratio for of_architecture in ratios.values() for ratio in of_architecture]
    lines = ["| network | settings | median | worst |", "| --- | ---: | ---: | ---: |"]
    lines += [f"| {name} | {len(own)} | {median(own):.1f} | {max(own):.1f} |" for name, own in ratios.items()]
    return "\n".join(lines) + "\n"


MAKERS: dict[str, Callable[[str], str]] = {
    "network-default": default_table,
    "network-battery": methods_table,
    "network-battery-cells": cells_table,
    "network-battery-choice": choice_table,
    "network-battery-verdicts": verdicts_table,
    "network-battery-targets": targets_table,
    "network-battery-candidates": candidates_table,
    "network-battery-sizes": sizes_table,
}
TABLES: dict[str, Callable[[], str]] = {
    f"{name}-{half}": partial(make, half) for name, make in MAKERS.items() for half in HALVES
} | {"network-battery-times": times_table, "network-battery-bayesian": bayesian_table}
