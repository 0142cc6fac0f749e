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

from consilience.posteriors.verdict import held_out_bound

HERE = Path(__file__).parent
AGAINST = ("told", "k-means", "Runnalls", "slope rule", "pooled")
SCORES = {"ari": "matching ARI", "ami": "AMI", "log_likelihood": "nats"}
OF_WHAT = {"told a third": "a third of G given", "told": "G given"}
"""What methods and fusions are called in tables, where not as in ``methods.py`` and ``verdicts.py``."""


def _rows(half: str) -> list[dict[str, Any]]:
    return json.loads((HERE / f"{half}.json").read_text())["cells"]


def _number(found: dict[str, Any], name: str, form: str) -> str:
    return f"{found[name]:{form}}" if name in found else ""


def _named(method: str) -> str:
    """Return what a method or fusion is called in tables."""
    for name, shown in OF_WHAT.items():
        method = method.replace(name, shown)
    return method


def methods_table(half: str) -> str:
    """Return all methods on all cells, and on each group of them."""
    rows = _rows(half)
    lines = [
        "| settings | method | finished | error of G | worst | collapses | matching ARI | of best, G given | worst "
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
                f"| {shown} | {'**default**' if method == 'default' else _named(method)} | {found['cells']} "
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
        "ARI of best told": "matching ARI over that of the best with G given, k-means and Runnalls, at least",
        "collapses": "settings with less than a third of the true number",
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
        lines.append(f"| {_named(other)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def confidence_table(half: str) -> str:
    """Return how many matches of the default are right, by stated confidence."""
    lines = ["| matches | stated, mean | right |", "| ---: | ---: | ---: |"]
    lines += [f"| {n:,} | {stated:.3f} | {right:.3f} |" for n, stated, right in calibration(_rows(half), "default")]
    return "\n".join(lines) + "\n"


def cells_table(half: str) -> str:
    """Return every cell: what it is, what the default finds there, and the best matching of those told."""
    lines = [
        "| setting | J | G | D | local components | Bayes error | found | matching ARI "
        "| G given | k-means | Runnalls |",
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
                    f"| {_named(name)} | {text} | {len(chosen)} | {better} | {len(chosen) - better - worse} | {worse} |"
                )
    return "\n".join(lines) + "\n"


def alarms_table(half: str) -> str:
    """Return how often a loss was told, and how often there was one on held-out rows."""
    rows = [row for row in json.loads((HERE / f"verdicts-{half}.json").read_text())["rows"] if row["loss"] is not None]
    told = ("loses_little", "loses", "sites_differ", "harm", "nothing_shared", "outlier")
    lines = ["| loss on held-out rows, nats | fusions | a loss, harm or differing sites stated | fine |"]
    lines.append("| --- | ---: | ---: | ---: |")
    edges = [-np.inf, 0.02, 0.05, 0.3, np.inf]
    for low, high in pairwise(edges):
        chosen = [row for row in rows if low < row["true_loss"] <= high]
        alarms = sum(row["code"] in told for row in chosen)
        span = f"at most {high}" if np.isinf(low) else f"above {low}" if np.isinf(high) else f"{low} to {high}"
        lines.append(f"| {span} | {len(chosen)} | {alarms} | {len(chosen) - alarms} |")
    return "\n".join(lines) + "\n"


def bounds_table() -> str:
    """Return how often held-out rows lose no more, and gain half as much at least, as the verdict says."""
    lines = ["| fusions | lose no more than is stated | gain half of what is stated |", "| --- | ---: | ---: |"]
    for half, name in (("tune", "the half that set it"), ("second", "the other half")):
        rows = json.loads((HERE / f"verdicts-{half}.json").read_text())["rows"]
        told = [row for row in rows if row["loss"] is not None]
        within = sum(row["true_loss"] <= held_out_bound(row["loss"]) for row in told)
        better = [row for row in told if row["harmless"] and row["candidates"]]
        stated = [
            min(value for key, value in row["candidates"].items() if key != "fused") - row["loss"] for row in better
        ]
        gained = sum(row["gain"] + 2 * row["gain_error"] >= 0.5 * s for row, s in zip(better, stated, strict=True))
        lines.append(f"| {name} | {within} of {len(told)} | {gained} of {len(better)} |")
    cells = [row["methods"] for row in _rows("sets")]
    for method in ("default", "told"):
        pairs = [(one["concatenation"], one[method].get("fused", one[method])) for one in cells]
        within = sum(
            all_of["log_likelihood"] - fused["log_likelihood"] <= held_out_bound(fused["virtual_loss"])
            for all_of, fused in pairs
        )
        name = "default" if method == "default" else "G given"
        lines.append(f"| fourteen sets, {name} | {within} of {len(pairs)} | |")
    return "\n".join(lines) + "\n"


def processes_table(half: str) -> str:
    """Return AMPS, SPAHM and the Dirichlet process with their own number and with that of the evidence."""
    rows = json.loads((HERE / f"processes-{half}.json").read_text())["cells"]
    lines = [
        f"| method | settings of {len(rows)} | error of G | where separated | worst "
        "| exact | collapses | matching ARI |",
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


NATS_OF_SETS = ("default", "told", "k-means", "Runnalls", "naive average", "best site", "pooled")
AMI_OF_SETS = ("default", "told", "k-means", "Runnalls", "best site", "pooled")


def _returned(row: dict[str, Any], method: str) -> dict[str, Any] | None:
    """Return the scores of the model that a method returns, by its own average; None where it has none."""
    scores = row["methods"].get(method)
    return scores.get("fused", scores) if has_scores(scores) else None


def _mean_of(rows: list[dict[str, Any]], method: str, score: str) -> float:
    """Return the mean score of a method over splits; NaN where it has none."""
    found = [scores[score] for row in rows if (scores := _returned(row, method)) is not None]
    return float(np.mean(found)) if found else float("nan")


def _by_set() -> dict[str, list[dict[str, Any]]]:
    rows = json.loads((HERE / "sets.json").read_text())["cells"]
    return {name: [row for row in rows if row["settings"]["data"] == name] for name in
            dict.fromkeys(row["settings"]["data"] for row in rows)}  # fmt: skip


def _sets_lines(methods: tuple[str, ...], cells: Callable[[list[dict[str, Any]]], list[str]]) -> list[str]:
    """Return the head of a table over real sets, and a line for each, with `cells` of its splits."""
    head = [f"**{name}**" if name == "default" else _named(name) for name in methods]
    lines = [f"| set, splits | {' | '.join(head)} |", f"| --- |{' ---: |' * len(methods)}"]
    return lines + [f"| {name}, {len(rows)} | {' | '.join(cells(rows))} |" for name, rows in _by_set().items()]


def sets_table() -> str:
    """Return held-out nats of every method less those of the concatenation; bold is the default where it is below."""

    def cells(rows: list[dict[str, Any]]) -> list[str]:
        base = _mean_of(rows, "concatenation", "log_likelihood")
        values = {name: _mean_of(rows, name, "log_likelihood") - base for name in NATS_OF_SETS}
        is_below = values["default"] < np.nanmax([values[name] for name in NATS_OF_SETS[2:-1]])
        return [
            f"**{value:.2f}**" if name == "default" and is_below else "" if np.isnan(value) else f"{value:.2f}"
            for name, value in values.items()
        ]

    return "\n".join(_sets_lines(NATS_OF_SETS, cells)) + "\n"


def sets_ami_table() -> str:
    """Return the adjusted mutual information of held-out rows with their classes, and the default's number of G."""

    def cells(rows: list[dict[str, Any]]) -> list[str]:
        numbers = f"{_mean_of(rows, 'default', 'components'):.1f} of {rows[0]['true']}"
        return [
            f"{_mean_of(rows, name, 'ami'):.3f}" + (f" ({numbers})" if name == "default" else "")
            for name in AMI_OF_SETS
        ]

    return "\n".join(_sets_lines(AMI_OF_SETS, cells)) + "\n"


def sets_paired_table() -> str:
    """Return the default's, and that of G given, differences from baselines over all splits, with 95 % intervals."""
    rows = [
        {**row, "methods": {name: _returned(row, name) for name in row["methods"]}}
        for of_set in _by_set().values()
        for row in of_set
    ]
    lines = ["| minus | default, nats | AMI | splits lower by 0.05 | G given, nats | AMI |", f"| --- |{' ---: |' * 5}"]
    for other in ("k-means", "Runnalls", "naive average", "best site", "concatenation", "pooled"):
        cells = []
        for method in ("default", "told"):
            for score in ("log_likelihood", "ami"):
                found = paired(rows, method, other, score)
                cells.append("" if found is None else f"{found['mean']:+.3f} ± {found['margin']:.3f}")
        pairs = [(row["methods"]["default"], row["methods"].get(other)) for row in rows]
        differences = [a["log_likelihood"] - b["log_likelihood"] for a, b in pairs if a is not None and b is not None]
        cells.insert(2, f"{sum(one < -0.05 for one in differences)} of {len(differences)}")
        lines.append(f"| {other} | {' | '.join(cells)} |")
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
} | {"battery-sets": sets_table, "battery-sets-ami": sets_ami_table, "battery-sets-paired": sets_paired_table}
TABLES["battery-bounds"] = bounds_table
