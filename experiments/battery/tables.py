"""The results of ``run.py --write`` as Markdown tables, which ``experiments/write_tables.py`` writes.

Names of tables end in the half: ``battery-tune``, ``battery-report``, and so on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from battery.cells import HALVES
from battery.summary import PARTS, TARGETS, calibration, has_scores, paired, part, summary

HERE = Path(__file__).parent
AGAINST = ("told", "k-means", "Runnalls", "slope rule", "pooled")
SCORES = {"ari": "matching ARI", "ami": "AMI", "log_likelihood": "nats"}


def _rows(half: str) -> list[dict[str, Any]]:
    return json.loads((HERE / f"{half}.json").read_text())["cells"]


def _number(found: dict[str, Any], name: str, form: str) -> str:
    return f"{found[name]:{form}}" if name in found else ""


def methods_table(half: str) -> str:
    """Return all methods on all cells, and on each group of them."""
    rows = _rows(half)
    lines = [
        "| cells | method | finished | error of G | worst | collapses | matching ARI | of best told | worst "
        "| of what is matched | AMI | log likelihood over true matching's, nats | virtual loss, nats | time |",
        f"| --- | --- |{' ---: |' * 12}",
    ]
    for name in PARTS:
        chosen = part(rows, name)
        for method in rows[0]["methods"] if chosen else ():
            found = summary(chosen, method)
            if not found:
                continue
            shown = f"{name} ({len(chosen)})" if method == next(iter(rows[0]["methods"])) else ""
            lines.append(
                f"| {shown} | {'**default**' if method == 'default' else method} | {found['cells']} "
                f"| {found['error']:.2f} | {found['worst_error']:+d} | {found['collapses']} "
                f"| {_number(found, 'ari', '.3f')} | {_number(found, 'share_of_best', '.3f')} "
                f"| {_number(found, 'worst_share', '.2f')} | {_number(found, 'ari_of_matched', '.3f')} "
                f"| {found['ami']:.3f} | {_number(found, 'over_true', '+.3f')} "
                f"| {found['virtual_loss']:.3f} | {_number(found, 'relative', '.2f')} |"
            )
    return "\n".join(lines) + "\n"


def targets_table(half: str) -> str:
    """Return what was aimed at and what the default reaches."""
    rows = _rows(half)
    separated, every = summary(part(rows, "separated"), "default"), summary(rows, "default")
    found = {
        "error of separated": (f"{separated['error']:.2f}", separated["error"] <= TARGETS["error of separated"]),
        "ARI of best told": (f"{every['share_of_best']:.3f}", every["share_of_best"] >= TARGETS["ARI of best told"]),
        "collapses": (str(every["collapses"]), every["collapses"] == TARGETS["collapses"]),
    }
    said = {
        "error of separated": "mean error of G where clusters are separated, at most",
        "ARI of best told": "matching ARI over that of the best of told, k-means and Runnalls, at least",
        "collapses": "cells with less than a third of the true number",
    }
    lines = ["| what | target | found | |", "| --- | ---: | ---: | --- |"]
    for name, (value, met) in found.items():
        lines.append(f"| {said[name]} | {TARGETS[name]} | {value} | {'met' if met else '**missed**'} |")
    return "\n".join(lines) + "\n"


def paired_table(half: str) -> str:
    """Return the default's differences from other methods over cells, with 95 % intervals."""
    rows = _rows(half)
    lines = [f"| default minus | {' | '.join(SCORES.values())} |", f"| --- |{' ---: |' * len(SCORES)}"]
    for other in AGAINST:
        cells = []
        for score in SCORES:
            found = paired(rows, "default", other, score)
            cells.append("" if found is None else f"{found['mean']:+.3f} ± {found['margin']:.3f}")
        lines.append(f"| {other} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def confidence_table(half: str) -> str:
    """Return how many matches of the default are right, by stated confidence."""
    lines = ["| matches | stated, mean | right |", "| ---: | ---: | ---: |"]
    lines += [f"| {n:,} | {stated:.3f} | {right:.3f} |" for n, stated, right in calibration(_rows(half), "default")]
    return "\n".join(lines) + "\n"


def cells_table(half: str) -> str:
    """Return every cell: what it is, what the default finds there, and the best matching of those told."""
    lines = [
        "| cell | J | G | D | local components | Bayes error | found | matching ARI | told | k-means | Runnalls |",
        f"| --- |{' ---: |' * 10}",
    ]
    for row in _rows(half):
        settings, methods = row["settings"], row["methods"]
        error = "" if row["bayes_error"] is None else f"{100 * row['bayes_error']:.1f} %"
        default = methods["default"]
        found = str(default["components"]) if has_scores(default) else ", ".join(default)
        matched = [
            f"{one['ari']:.3f}" if has_scores(one := methods[name]) else "" for name in ("default", *AGAINST[:3])
        ]
        lines.append(
            f"| {row['name'].removeprefix(f'{half}-')} | {settings['sites']} | {row['true']} "
            f"| {settings.get('dim', '')} | {row['locals']} | {error} | {found} | {' | '.join(matched)} |"
        )
    return "\n".join(lines) + "\n"


def perturbed_table(half: str) -> str:
    """Return how often the default's partition stays the same."""
    rows = [row for row in json.loads((HERE / f"{half}-perturbed.json").read_text())["cells"] if "same" in row]
    lines = ["| inputs | the same partition | of |", "| --- | ---: | ---: |"]
    for kind in ("times 1 + 1e-12 z", "relabelled"):
        same = [stayed for row in rows for name, stayed in row["same"].items() if name.startswith(kind)]
        lines.append(f"| {kind} | {sum(same)} | {len(same)} |")
    return "\n".join(lines) + "\n"


def verdicts_table(half: str) -> str:
    """Return what was said of harm, and how it was on held-out rows, where by two standard errors it is known."""
    rows = json.loads((HERE / f"verdicts-{half}.json").read_text())["rows"]
    lines = [
        "| fusion | said | fusions | fused is better than every site's own | not known | a site's own is better |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for name in dict.fromkeys(row["fusion"] for row in rows):
        of_name = [row for row in rows if row["fusion"] == name]
        for said, text in ((True, "harmless"), (None, "not known"), (False, "harm")):
            chosen = [row for row in of_name if row["harmless"] is said]
            better = sum(row["gain"] > 2 * row["gain_error"] for row in chosen)
            worse = sum(row["gain"] < -2 * row["gain_error"] for row in chosen)
            if chosen:
                lines.append(
                    f"| {name} | {text} | {len(chosen)} | {better} | {len(chosen) - better - worse} | {worse} |"
                )
    return "\n".join(lines) + "\n"


def alarms_table(half: str) -> str:
    """Return how often a loss was told, and how often there was one on held-out rows."""
    rows = [row for row in json.loads((HERE / f"verdicts-{half}.json").read_text())["rows"] if row["loss"] is not None]
    told = ("loses_little", "loses", "sites_differ", "harm", "nothing_shared", "outlier")
    lines = ["| loss on held-out rows, nats | fusions | a loss, harm or differing sites told | fine |"]
    lines.append("| --- | ---: | ---: | ---: |")
    edges = [-np.inf, 0.02, 0.05, 0.3, np.inf]
    for low, high in pairwise(edges):
        chosen = [row for row in rows if low < row["true_loss"] <= high]
        alarms = sum(row["code"] in told for row in chosen)
        span = f"at most {high}" if np.isinf(low) else f"above {low}" if np.isinf(high) else f"{low} to {high}"
        lines.append(f"| {span} | {len(chosen)} | {alarms} | {len(chosen) - alarms} |")
    return "\n".join(lines) + "\n"


def processes_table(half: str) -> str:
    """Return AMPS, SPAHM and the Dirichlet process with their own number and with that of the evidence."""
    rows = json.loads((HERE / f"processes-{half}.json").read_text())["cells"]
    lines = [
        f"| method | cells of {len(rows)} | error of G | where separated | worst | exact | collapses | matching ARI |",
        f"| --- |{' ---: |' * 7}",
    ]
    for method in rows[0]["methods"]:
        pairs = [(row, row["methods"][method]) for row in rows if has_scores(row["methods"][method])]
        errors = np.array([scores["error"] for _, scores in pairs])
        separated = [abs(scores["error"]) for row, scores in pairs if row["separated"]]
        lines.append(
            f"| {'**default**' if method == 'default' else method} | {len(pairs)} | {np.abs(errors).mean():.2f} "
            f"| {np.mean(separated):.2f} | {errors[np.abs(errors).argmax()]:+d} | {np.mean(errors == 0):.2f} "
            f"| {sum(scores['collapsed'] for _, scores in pairs)} "
            f"| {np.mean([scores['ari'] for _, scores in pairs]):.3f} |"
        )
    return "\n".join(lines) + "\n"


MAKERS: dict[str, Callable[[str], str]] = {
    "battery": methods_table,
    "battery-targets": targets_table,
    "battery-paired": paired_table,
    "battery-confidence": confidence_table,
    "battery-cells": cells_table,
    "battery-perturbed": perturbed_table,
    "battery-verdicts": verdicts_table,
    "battery-alarms": alarms_table,
    "battery-processes": processes_table,
}
TABLES: dict[str, Callable[[], str]] = {
    f"{name}-{half}": partial(make, half) for name, make in MAKERS.items() for half in HALVES
} | {"battery-sets": sets_table, "battery-sets-paired": sets_paired_table}
