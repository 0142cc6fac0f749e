"""Tables of what `benchmarks/house.py` measured, before the rooms were by kind of model and after."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FUSIONS = (
    "mixtures, objects",
    "mixtures, files",
    "shards, packed",
    "networks, modules",
    "networks, files",
    "Bayesian networks, files",
    "checkpoints",
    "round over a folder",
)
"""The traced calls that fuse, as in the benchmark."""
HEADLINE = "mixtures, files"


def _entries() -> tuple[dict[str, Any], dict[str, Any]]:
    document = json.loads((ROOT / "benchmarks/house.json").read_text())
    return document["before"], document["after"]


def calls_table() -> str:
    """Return what every fusion runs, enters and opens, before and after."""
    before, after = (entry["calls"] for entry in _entries())
    lines = [
        "| fusion | source files run | entries | returns | header openings per file |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name in FUSIONS:
        old, new = before[name], after[name]
        cells = [
            _change(old["files_run"], new["files_run"]),
            _change(old["inputs"]["entries"], new["inputs"]["entries"]),
            _change(old["inputs"]["returns"], new["inputs"]["returns"]),
            _openings(old["reading"], new["reading"]),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    counts = [entry[HEADLINE]["inputs"] for entry in (before, after)]
    sentence = _sentence(*(count["entries"] for count in counts))
    return "\n".join([*lines, "", f"For three mixtures in files, entries {sentence}."]) + "\n"


def tree_table() -> str:
    """Return import time and the size of the tree, before and after."""
    before, after = _entries()
    lines = ["| | before | after |", "| --- | ---: | ---: |"]
    for command in ("import consilience", "consilience --help"):
        for name, key in (("seconds", "seconds"), ("modules imported", "modules")):
            values = [entry["imports"][command][key] for entry in (before, after)]
            shown = [f"{value:.2f}" if key == "seconds" else f"{value:,.0f}" for value in values]
            lines.append(f"| `{command}`, {name} | {' | '.join(shown)} |")
    rows: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "source files": lambda tree: f"{tree['files']:,}",
        "lines": lambda tree: f"{tree['lines']:,}",
        "rooms": lambda tree: str(tree["rooms"]),
        "longest file, lines": lambda tree: str(tree["most_lines_of_a_file"]),
        "import cycles between modules": lambda tree: str(len(tree["import_cycles"])),
        "class names that two files define": lambda tree: str(len(tree["class_names_defined_twice"])),
        "lines with a comment, per thousand": lambda tree: f"{tree['comments_per_thousand_lines']:.0f}",
        "names that say nothing of their value, %": lambda tree: f"{100 * tree['names']['share']:.1f}",
    }
    lines += [f"| {name} | {shown(before['tree'])} | {shown(after['tree'])} |" for name, shown in rows.items()]
    return "\n".join(lines) + "\n"


def times_table() -> str:
    """Return the times of the golden fusions on both trees, by what is fused."""
    times = json.loads((ROOT / "benchmarks/house.json").read_text())["times"]
    lines = ["| golden cases | before, s | after, s | ratio |", "| --- | ---: | ---: | ---: |"]
    for name, row in sorted(times["groups"].items(), key=lambda item: (item[0] == "all", item[0])):
        lines.append(f"| {name} | {row['before']:.2f} | {row['after']:.2f} | {row['ratio']:.2f} |")
    sentence = f"{times['cases']} cases, the median of their ratios is {times['median_ratio']:.2f}."
    return "\n".join([*lines, "", sentence]) + "\n"


def benchmarks_table() -> str:
    """Return the ratios of the benchmarks on both trees."""
    rows = json.loads((ROOT / "benchmarks/house.json").read_text())["benchmarks"]
    lines = ["| benchmark | measured | before | after |", "| --- | --- | ---: | ---: |"]
    lines += [f"| `{r['benchmark']}.py` | {r['measured']} | {r['before']:.3g} | {r['after']:.3g} |" for r in rows]
    return "\n".join(lines) + "\n"


def _change(old: float, new: float) -> str:
    return f"{old:g} → {new:g}"


def _openings(old: Mapping[str, float] | None, new: Mapping[str, float] | None) -> str:
    if old is None or new is None:  # objects in memory, no files
        return "-"
    return _change(round(old["safe_open"], 1), round(new["safe_open"], 1))


def _sentence(old: int, new: int) -> str:
    if new == old:
        return f"stayed at {old}"
    return f"{'rose' if new > old else 'fell'} from {old} to {new}"


def skeleton_table() -> str:
    """Return what calls run and open, and the size of the tree, before the kinds shared one skeleton and after."""
    document = json.loads((ROOT / "benchmarks/house.json").read_text())
    before, after = document["skeleton: before"], document["skeleton: after"]
    lines = ["| call | source files run | their lines | openings of a file |", "| --- | ---: | ---: | ---: |"]
    for name, new in after["calls"].items():
        old = before["calls"][name]
        cells = [_change(old["files_run"], new["files_run"]), _change(old["lines_run"], new["lines_run"])]
        readings = (old["reading"], new["reading"])
        opens = "-" if None in readings else _change(*(round(one["opens in all"], 1) for one in readings))
        lines.append(f"| {name} | {' | '.join(cells)} | {opens} |")
    rows = {
        "source files": "files",
        "lines": "lines",
        "lines of code": "code_lines",
        "functions over 50 lines": "functions_over_50_lines",
        "functions of complexity over 15": "complexity_over_15",
        "mappings of text to anything": "untyped_mappings",
        "short files that one neighbour alone imports": "chapters",
    }
    lists = {
        "import circles, with imports inside functions": "circles",
        "classes of one name": "class_names_defined_twice",
    }
    trees = (before["tree"], after["tree"])
    lines += ["", "| the tree | before | after |", "| --- | ---: | ---: |"]
    lines += [f"| {name} | {' | '.join(f'{tree[key]:,}' for tree in trees)} |" for name, key in rows.items()]
    lines += [f"| {name} | {' | '.join(str(len(tree[key])) for tree in trees)} |" for name, key in lists.items()]
    return "\n".join(lines) + "\n"


HOUSE: dict[str, Callable[[], str]] = {
    "house-skeleton": skeleton_table,
    "house-calls": calls_table,
    "house-tree": tree_table,
    "house-times": times_table,
    "house-benchmarks": benchmarks_table,
}
