"""Tables of what `benchmarks/shards.py` measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def _found(part: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((ROOT / "benchmarks/shards.json").read_text())[part]
    return document


def storage_table() -> str:
    """Return how fast sites are read from each kind of file."""
    results = _found("storage")["results"]
    lines = ["| | sites a second | MB |", "| --- | ---: | ---: |"]
    for name in ("posterior files", "parquet", "safetensors"):
        found = results[name]
        called = name if name == "posterior files" else f"packed, {name}, float32"
        lines.append(f"| {called} | {found['sites_per_second']:,.0f} | {found['bytes'] / 1e6:.1f} |")
    return "\n".join(lines) + "\n"


def engines_table() -> str:
    """Return one fusion here, on two Dask workers, and with one of these killed."""
    found = _found("engines")
    lines = [
        f"| `kl`, {found['settings']['sites']:,} sites | seconds | same bits as here |",
        "| --- | ---: | --- |",
        f"| here, two threads | {found['seconds']['local']:.1f} | |",
    ]
    for name in ("dask", "dask, a worker killed"):
        same = "yes" if found["same_bits"][name] else "no"
        called = name.replace("dask", "Dask, two workers").replace("workers, a worker", "workers, one")
        lines.append(f"| {called} | {found['seconds'][name]:.1f} | {same} |")
    return "\n".join(lines) + "\n"


def passes_table() -> str:
    """Return twenty passes beside their bare operations."""
    found = _found("iterations")
    lines = ["| twenty passes, two threads | seconds | over bare operations |", "| --- | ---: | ---: |"]
    for name, called in (("passes", "number given"), ("priced", "priced")):
        each = [a / b for a, b in zip(found["seconds"][name], found["seconds"]["bare"], strict=True)]
        spread = f"{min(each):.2f} to {max(each):.2f}"
        lines.append(f"| {called} | {found['median'][name]:.1f} | {found['over_bare'][name]:.2f} ({spread}) |")
    lines.append(f"| bare operations | {found['median']['bare']:.1f} | |")
    lines.append(f"| the products alone | {found['median']['bare_product']:.1f} | |")
    return "\n".join(lines) + "\n"


def whole_table() -> str:
    """Return whole fusions from the disk."""
    lines = [
        "| 100,000 sites | seconds | passes | peak, GiB | components | Rand index with the truth |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, found in _found("whole")["results"].items():
        lines.append(
            f"| {name} | {found['seconds']:.1f} | {found['passes'] or ''} | {found['peak_gib']:.2f} "
            f"| {found['n_components']} | {found['rand']:.3f} |"
        )
    return "\n".join(lines) + "\n"


def model_table() -> str:
    """Return what a hundred million sites would take."""
    found = _found("model")
    constants = found["constants"]
    lines = [
        "| cores | loading, once | a pass | twenty passes | shards, GiB a core |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in found["rows"]:
        again = row["cores"] < 512
        one = row["pass_seconds"] + (row["load_seconds"] if again else 0.0)
        lines.append(
            f"| {row['cores']:,} | {_time(row['load_seconds'])} | {_time(one)} "
            f"| {_time(constants['passes'] * one + row['load_seconds'])} | {row['gib_per_core']:.2g} |"
        )
    micro = 1e6 * constants["pass_seconds_per_site_and_core"]
    load = 1e6 * constants["load_seconds_per_site_and_core"]
    lines += [
        "",
        f"Constants: {load:.1f} µs to load a site and {micro:.1f} µs for a pass over it, on one core; "
        f"{1000 * constants['seconds_per_task']:.1f} ms a task; {constants['shards']:,} shards, "
        f"{constants['bytes'] / 1e9:.0f} GB.",
    ]
    return "\n".join(lines) + "\n"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


SCALE: dict[str, Callable[[], str]] = {
    "storage": storage_table,
    "engines": engines_table,
    "passes": passes_table,
    "whole": whole_table,
    "model": model_table,
}
