"""The results of ``fine_tunes.py`` and of ``benchmarks/merging.py`` as Markdown tables."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from consilience.checkpoints.changes import ALIGNED, MAX_ALIGNED, MAX_RATIO

HERE = Path(__file__).parent
BENCHMARK = HERE.parents[1] / "benchmarks" / "merging.json"
TUNING_SEED = 21
"""The seed on which limits were set."""


def _rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((HERE / "fine_tunes.json").read_text())["settings"]
    return rows


def _kinds() -> dict[tuple[str, int, str], list[dict[str, Any]]]:
    """Return the rows of all seeds, by network, number of tasks and distance."""
    kinds: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for row in _rows():
        setting = row["setting"]
        kinds.setdefault((setting["kind"], setting["n_tasks"], setting["far"]), []).append(row)
    return kinds


def _spread(values: Iterable[float], digits: int) -> str:
    found = list(values)
    return f"{mean(found):.{digits}f} ± {stdev(found):.{digits}f}"


def settings_table() -> str:
    """Return start, fine-tunes and joint model of every setting, with norms and cosines of changes."""
    lines = [
        "| fine-tunes | start | a fine-tune, over all tasks | joint model | change over base | cosine of changes |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for (kind, n_tasks, far), rows in _kinds().items():
        digits = 1 if kind == "vit" else 3
        cells = [_spread((row[name] for row in rows), digits) for name in ("start", "joint")]
        own = _spread((mean(row["own"]) for row in rows), digits)
        far_from = f"{mean(row['of base'] for row in rows):.2f}"
        cosine = f"{mean(row['cosine'] for row in rows):.2f}"
        lines.append(f"| {kind}, {n_tasks} tasks, {far} | {cells[0]} | {own} | {cells[1]} | {far_from} | {cosine} |")
    return "\n".join(lines) + "\n"


def gains_table() -> str:
    """Return which share of the way from the start to the joint model every merge goes, in percent."""
    kinds = _kinds()
    lines = ["| method and scale | " + " | ".join(f"{k}, {n}, {far}" for k, n, far in kinds) + " |"]
    lines += ["| --- |" + " ---: |" * len(kinds)]
    for name in _rows()[0]["merges"]:
        gains = [
            [100 * (row["merges"][name]["score"] - row["start"]) / (row["joint"] - row["start"]) for row in rows]
            for rows in kinds.values()
        ]
        lines.append(f"| {name} | " + " | ".join(f"{mean(one):.0f} ± {stdev(one):.0f}" for one in gains) + " |")
    return "\n".join(lines) + "\n"


def alarms_table() -> str:
    """Return how often notes on merges were right: on the seed that set their limits, and on the others."""
    lines = [
        "| limit of the ratio | seeds | merges | right | false alarms | missed |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for said, aligned, limit in (
        ("0.8", 0.8, 0.8),
        (f"{MAX_RATIO:g}, aligned {MAX_ALIGNED:g}", MAX_ALIGNED, MAX_RATIO),
    ):
        for is_tuning in (True, False):
            counts = {(False, False): 0, (True, True): 0, (True, False): 0, (False, True): 0}
            for row in _rows():
                if (row["setting"]["seed"] == TUNING_SEED) != is_tuning:
                    continue
                for one in row["merges"].values():
                    alarm = one["ratio"] > (aligned if row["cosine"] >= ALIGNED else limit)
                    counts[alarm, one["score"] < row["start"]] += 1
            right = counts[True, True] + counts[False, False]
            seeds = "of tuning" if is_tuning else "others"
            total = sum(counts.values())
            lines.append(
                f"| {said} | {seeds} | {total} | {100 * right / total:.0f} % | {counts[True, False]} "
                f"| {counts[False, True]} |"
            )
    return "\n".join(lines) + "\n"


def loops_table() -> str:
    """Return processor time over that of a bare loop, and wall time of digests."""
    found = json.loads(BENCHMARK.read_text())
    lines = [
        "| merge | ours, ns an entry | over the loop | wall time, with digests over without |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, row in found["methods"].items():
        each = 1e9 * row["ours"] / found["entries"]
        lines.append(f"| {name} | {each:.1f} | {row['ratio']:.2f} | {row['digests']:.2f} |")
    for name, times in found["times the average of three"].items():
        lines.append(f"| {name}, over the average of three: {times:.1f} | | | |")
    return "\n".join(lines) + "\n"


def _adapters() -> dict[str, Any]:
    record: dict[str, Any] = json.loads((HERE / "adapters.json").read_text())
    return record


def adapters_table() -> str:
    """Return the scores of merged adapters over five tasks, and what their ranks lose."""
    rows = _adapters()["seeds"]
    lines = ["| adapters | accuracy, % | error of the rank | change over the largest |", "| --- | ---: | ---: | ---: |"]
    lines.append(f"| base | {_spread((row['base'] for row in rows), 1)} | | |")
    lines.append(f"| one adapter, over all tasks | {_spread((mean(row['own']) for row in rows), 1)} | | |")
    lines.append(f"| joint | {_spread((row['joint'] for row in rows), 1)} | | |")
    for name in rows[0]["merges"]:
        found = [row["merges"][name] for row in rows]
        error = mean(one["error"] for one in found)
        shown = f"{error:.2f}" if error > 1e-6 else "exact"
        ratio = mean(one["ratio"] for one in found)
        lines.append(f"| {name} | {_spread((one['score'] for one in found), 1)} | {shown} | {ratio:.2f} |")
    return "\n".join(lines) + "\n"


def combinations_table() -> str:
    """Return the distance of peft's combinations from the mean of products, over its size, and their scores."""
    rows = _adapters()["seeds"]
    lines = ["| combination of peft | error to the mean of products | accuracy, % |", "| --- | ---: | ---: |"]
    for name in rows[0]["peft"]:
        found = [row["peft"][name] for row in rows]
        error = mean(one["error"] for one in found)
        lines.append(f"| `{name}` | {error:.2f} | {_spread((one['score'] for one in found), 1)} |")
    return "\n".join(lines) + "\n"


def adapter_size_table() -> str:
    """Return seconds and memory of merges of adapters of a Llama of 7 billion parameters."""
    lines = [
        "| two adapters of rank 16, 224 modules | seconds | peak memory of the process, GiB |",
        "| --- | ---: | ---: |",
    ]
    for name, row in _adapters()["size"].items():
        lines.append(f"| {name} | {row['seconds']:.0f} | {row['gib']:.2f} |")
    return "\n".join(lines) + "\n"


def examples_table() -> str:
    """Return how merges by mergekit's examples agree with mergekit's own."""
    rows = json.loads((HERE / "mergekit_examples.json").read_text())["examples"]
    lines = [
        "| example | entries that differ in float32, % | largest difference | rounded once, here, % | mergekit, % |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, row in rows.items():
        ours, theirs, differing, largest = (
            row[key]
            for key in (
                "rounded once, ours, %", "rounded once, mergekit, %",
                "entries that differ by more than rounding, %", "largest difference in float32",
            )
        )  # fmt: skip
        lines.append(f"| {name} | {differing:.2f} | {largest:.0e} | {ours:.2f} | {theirs:.1f} |")
    return "\n".join(lines) + "\n"


TABLES = {
    "mergekit-examples": examples_table,
    "adapters": adapters_table,
    "adapters-peft": combinations_table,
    "adapters-size": adapter_size_table,
    "fine-tunes": settings_table,
    "fine-tunes-gains": gains_table,
    "fine-tunes-alarms": alarms_table,
    "merging-loops": loops_table,
}
