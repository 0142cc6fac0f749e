"""Tables of merges of checkpoints, hostile sites and mutated files, from the results of the benchmarks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
HOW = ("plain", "trim", "trim, minority dropped", "median")


def _found(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((ROOT / f"benchmarks/{name}.json").read_text())
    return document


def merges_table() -> str:
    """Return the time and memory of averaging two checkpoints."""
    found = _found("checkpoints")
    lines = ["| | seconds (turns) | anonymous memory, peak |", "| --- | ---: | ---: |"]
    called = {
        "consilience": "`consilience merge`",
        "mergekit": "mergekit 0.1.5, `linear`",
        "bare": "a stream in one thread, no digests, rounding towards zero",
    }
    for name, text in called.items():
        one = found[name]
        turns = ", ".join(f"{seconds:.1f}" for seconds in one["all_seconds"])
        lines.append(f"| {text} | {one['seconds']:.1f} ({turns}) | {one['peak_gb']:.2f} GB |")
    lines += ["", f"That is {found['times_as_fast_as_mergekit']:.1f} times as fast as mergekit."]
    return "\n".join(lines) + "\n"


def hostile_table() -> str:
    """Return errors under every attack, over that of plainly fusing the honest sites: median and worst of the seeds."""
    lines = []
    for task, attacks in _found("hostile_sites")["summary"].items():
        lines += [f"| {task}: two of ten | {' | '.join(HOW)} |", f"| --- |{' ---: |' * len(HOW)}"]
        for attack, found in attacks.items():
            if isinstance(found, dict):
                lines.append(f"| {attack} | {' | '.join(_ratio(found.get(how)) for how in HOW)} |")
        lines.append("")
    return "\n".join(lines)


def _ratio(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    middle, worst = (_shown(found[name]) for name in ("ratio", "worst"))
    return middle if middle == worst else f"{middle} ({worst})"


def _shown(value: float | str) -> str:
    return f"{value:.2f}" if isinstance(value, float) and value < 1e6 else "infinite"


def fuzzing_table() -> str:
    """Return what came of mutated files."""
    found = _found("fuzzing")
    seconds, _ = found["slowest_seconds_and_mutant"]
    multiple, _ = found["largest_multiple_beyond_a_mebibyte_and_mutant"]
    heaviest = found["heaviest_of_allowed"]
    heaviest = heaviest[0] if isinstance(heaviest, list) else heaviest
    lines = [
        "| mutants | readings | read | refused | crashed | slowest | most allocated beyond a mebibyte, over the file |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        f"| {found['mutants']:,} | {found['readings']:,} | {found['by_outcome']['read']:,} "
        f"| {found['by_outcome']['refused']:,} | {found['by_outcome']['crashed']:,} "
        f"| {seconds:.1f} s | {multiple:.1f} |",
        "",
        f"Of files made to be heavy, resident memory grew by at most {heaviest} of what is allowed.",
    ]
    return "\n".join(lines) + "\n"


TRUST: dict[str, Callable[[], str]] = {
    "merges": merges_table,
    "hostile": hostile_table,
    "fuzzing": fuzzing_table,
}
