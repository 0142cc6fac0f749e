"""The results of the experiments of Fisher merging as Markdown tables, which ``experiments/write_tables.py`` writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

HERE = Path(__file__).parent
DATASETS = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}
PUBLISHED_PINWHEEL = {
    "isotropic": (1.0762, 0.6658, 0.4342, 0.3085),
    "Fisher diagonal": (0.7413, 0.2320, 0.1424, 0.1126),
    "SSF 20%": (0.7396, 0.2265, 0.1397, 0.1108),
    "SSF 30%": (0.7397, 0.2270, 0.1403, 0.1109),
    "SSF 40%": (0.7397, 0.2276, 0.1403, 0.1117),
    "SSF 50%": (0.7398, 0.2277, 0.1406, 0.1114),
}
"""Table 1 of the paper, two to five networks."""
PUBLISHED_CONVNETS = {
    "isotropic": (0.0911, 0.4734),
    "Fisher diagonal": (0.0697, 0.4679),
    "SSF, window of 5,000": (0.0697, 0.4694),
}
"""Table 2 of the paper, MNIST and Fashion-MNIST."""


STARTS = ("loss", "difference [95 %]", "by alignment [95 %]", "accuracy, %")


def _read(name: str) -> dict[str, Any]:
    return json.loads((HERE / f"{name}.json").read_text())


def _parts(name: str) -> dict[str, Any]:
    return _read(name)["parts"]


def _spread(values: Sequence[float], digits: int) -> str:
    """Return mean and standard deviation over seeds."""
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}"


def _difference(row: Mapping[str, Any], score: str, digits: int) -> str:
    """Return a paired difference with its interval, in bold type where the interval excludes zero."""
    found = row.get(score)
    if found is None:
        return ""
    shown = f"{found['mean']:+.{digits}f} [{found['low']:+.{digits}f}, {found['high']:+.{digits}f}]"
    return f"**{shown}**" if found["low"] > 0 or found["high"] < 0 else shown


def _head(*columns: str) -> list[str]:
    return [f"| {' | '.join(columns)} |", "| --- |" + " ---: |" * (len(columns) - 1)]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _text(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"


def linear_table() -> str:
    """Return squared errors of merged regressions, and how they differ from the Fisher diagonal's."""
    parts = _read("linear")["parts"]
    lines = _head("method", *(cell for part in parts for cell in (f"{part}: error, 10⁻⁵", "difference [95 %]")))
    for name in parts["disjoint"]:
        cells = []
        for rows in parts.values():
            row = rows[name]
            scaled = {key: 1e5 * value for key, value in row.get("difference", {}).items()}
            cells += [_spread([1e5 * one for one in row["loss"]], 2), _difference({"d": scaled or None}, "d", 2)]
        lines.append(_line(name, *cells))
    return _text(lines)


def pinwheel_table() -> str:
    """Return test losses on the pinwheel by number of networks, beside the paper's."""
    tables = _read("pinwheel")["tables"]
    lines = _head("method", *(cell for count in tables for cell in (f"{count} networks", "published")))
    for score, shown in (("loss", "base networks, mean"), ("best", "base networks, best")):
        cells = [cell for one in tables.values() for cell in (_spread(one["base"][score], 4), "")]
        lines.append(_line(shown, *cells))
    for name in tables["2"]["methods"]:
        published = [f"{loss:.4f}" for loss in PUBLISHED_PINWHEEL.get(name, ())] or [""] * len(tables)
        losses = [_spread(one["methods"][name]["loss"], 4) for one in tables.values()]
        cells = [cell for pair in zip(losses, published, strict=True) for cell in pair]
        lines.append(_line(_counted(name, tables), *cells))
    return _text(lines)


def pinwheel_differences(what: str, digits: int) -> str:
    """Return paired differences on the pinwheel by number of networks.

    Parameters
    ----------
    what
        "loss difference" or "accuracy difference", from the Fisher diagonal; or "loss beyond diagonal", from the
        diagonal merge with the prior.
    digits
        Behind the point.
    """
    tables = _read("pinwheel")["tables"]
    lines = _head("method", *(f"{count} networks" for count in tables))
    for name in tables["2"]["methods"]:
        if what not in tables["2"]["methods"][name]:
            continue
        cells = (_difference(one["methods"][name], what, digits) for one in tables.values())
        lines.append(_line(_counted(name, tables), *cells))
    return _text(lines)


def _counted(name: str, tables: Mapping[str, Any]) -> str:
    """Return a method's name, with the number of its seeds where they are not all."""
    found, seeds = tables["2"]["methods"][name]["seeds"], tables["2"]["methods"]["isotropic"]["seeds"]
    return name if len(found) == len(seeds) else f"{name} ({len(found)} seeds)"


def convnets_table(setting: str) -> str:
    """Return test scores of merged ConvNets of one setting, beside the paper's where it has that setting."""
    parts = [_read("convnets")["parts"][f"{setting}-{dataset}"] for dataset in DATASETS]
    published = setting == "published"
    columns = ["method (seeds)"]
    for name in DATASETS.values():
        columns += [f"{name}: loss", *(["published"] if published else [])]
        columns += ["difference [95 %]", "beyond its diagonal [95 %]", "accuracy, %"]
    lines = _head(*columns)
    for loss, accuracy, shown in (("loss", "accuracy", "mean"), ("best", "best accuracy", "best")):
        cells = []
        for part in parts:
            cells += [_spread(part["base"][loss], 4), *([""] if published else []), "", ""]
            cells += [_spread(part["base"][accuracy], 2)]
        lines.append(_line(f"base networks, {shown}", *cells))
    for name in parts[0]["methods"]:
        cells = []
        for number, part in enumerate(parts):
            row = part["methods"][name]
            known = PUBLISHED_CONVNETS.get(name)
            cells += [_spread(row["loss"], 4), *([f"{known[number]:.4f}" if known else ""] if published else [])]
            cells += [_difference(row, f"loss {what}", 4) for what in ("difference", "beyond diagonal")]
            cells += [_spread(row["accuracy"], 2)]
        lines.append(_line(f"{name} ({len(parts[0]['methods'][name]['seeds'])})", *cells))
    return _text(lines)


def starts_table() -> str:
    """Return test scores of merged ConvNets of different starts, with units as they are or aligned."""
    parts = _read("starts")["parts"]
    columns = [f"{DATASETS[name]}: {what}" for name in parts for what in STARTS]
    lines = _head("method", *columns)
    for loss, accuracy, shown in (("loss", "accuracy", "mean"), ("best", "best accuracy", "best")):
        cells = [
            cell
            for part in parts.values()
            for cell in (_spread(part["base"][loss], 3), "", "", _spread(part["base"][accuracy], 2))
        ]
        lines.append(_line(f"base networks, {shown}", *cells))
    for name in parts["mnist"]["methods"]:
        cells = []
        for part in parts.values():
            row = part["methods"][name]
            cells += [_spread(row["loss"], 3), _difference(row, "loss difference", 3)]
            cells += [_difference(row, "loss by alignment", 3), _spread(row["accuracy"], 2)]
        lines.append(_line(name, *cells))
    return _text(lines)


def chosen_table() -> str:
    """Return which variants were chosen for ConvNets, with their mean validation losses."""
    lines = _head("experiment", "method", "chosen", "validation loss")
    found = [(name.replace("_", "-").replace("-", ", ", 1), one["methods"]) for name, one in _parts("convnets").items()]
    found += [
        (f"starts, {name.replace('_', '-')}", {key: row for key, row in one["methods"].items() if "aligned" in key})
        for name, one in _parts("starts").items()
    ]
    for where, methods in found:
        for name, row in methods.items():
            if row["chosen"]:
                lines.append(_line(where, name, row["chosen"], f"{row['validation'][row['chosen']]:.4f}"))
    return _text(lines)


DIGITS = {
    "start": "the start",
    "best site": "the best site's",
    "isotropic": '`"isotropic"`',
    "diagonal": '`"diagonal"`',
    "low_rank": '`"low_rank"`',
    "low_rank, shrinkage=0": '`"low_rank"`, `shrinkage=0`',
    "ssf": "`ssf`",
    "pooled": "trained on the shares of all, for as long",
}
DIGITS_STARTS = ("public digits", "random weights")
DIGITS_SCORES = (("loss", 3), ("accuracy", 1))
"""Scores, and their digits behind the point."""


def digits_table() -> str:
    """Return scores of merged networks of digits, from a start on public digits and from random weights."""
    starts = {name: runs for name, runs in _read("digits")["starts"].items() if name in DIGITS_STARTS}
    lines = _head("network", *(cell for name in starts for cell in (f"{name}: loss, nats", "accuracy, %")))
    for name, shown in DIGITS.items():
        scores = (([one[name][score] for one in runs], n) for runs in starts.values() for score, n in DIGITS_SCORES)
        lines.append(_line(shown, *(_spread(values, n) for values, n in scores)))
    return _text(lines)


TABLES = {
    "fisher-linear": linear_table,
    "fisher-pinwheel": pinwheel_table,
    "fisher-pinwheel-differences": partial(pinwheel_differences, "loss difference", 4),
    "fisher-pinwheel-beyond": partial(pinwheel_differences, "loss beyond diagonal", 4),
    "fisher-pinwheel-accuracy": partial(pinwheel_differences, "accuracy difference", 2),
    "fisher-convnets": partial(convnets_table, "published"),
    "fisher-parties": partial(convnets_table, "parties"),
    "fisher-starts": starts_table,
    "fisher-chosen": chosen_table,
    "fisher-digits": digits_table,
}
