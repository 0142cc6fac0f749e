"""The results of ``transformers/run.py`` and ``transformers/proof.py`` as Markdown tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

HERE = Path(__file__).parent / "transformers"
COLUMNS = ("described", "with inputs", "nothing said", "average", "rebasin", "consensus")


def _rows(half: str = "report") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((HERE / f"{half}.json").read_text())["settings"]
    return rows


def _name(row: dict[str, Any]) -> str:
    return f"{row['kind']}, {'common' if row['common'] else 'independent'}, seed {row['seed']}"


def scores_table(is_image: bool) -> str:
    """Return the scores of sites and fusions, a row a setting: those for report, then the fresh ones.

    Of images, behind the score of what is described, what it is over the better site.
    """
    digits = 1 if is_image else 3
    lines = ["| setting | sites | " + " | ".join(COLUMNS) + " |", "| --- | ---: |" + " ---: |" * len(COLUMNS)]
    for row in (*_rows(), *_rows("fresh")):
        if row["kind"].startswith("vit") != is_image:
            continue
        sites = ", ".join(f"{one:.{digits}f}" for one in row["sites"])
        cells = [f"{row[column]['score']:.{digits}f}" for column in COLUMNS]
        if is_image:
            over = round(row[COLUMNS[0]]["score"] - max(row["sites"]), 1)
            cells[0] += f" ({over:+.1f})" if over else " (0.0)"
        lines.append(f"| {_name(row)} | {sites} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def held_out_table() -> str:
    """Return the scores of the default and of the choice at the sites, a row a setting that held rows out."""
    names = {"described": "default", "shared": "`choose`, sites' networks shared", "not shared": "`choose`, not shared"}
    lines = [f"| setting | sites | {' | '.join(names.values())} |", "| --- | ---: |" + " ---: |" * len(names)]
    for row in _rows():
        if (held := row.get("held out")) is None:
            continue
        cells = [f"{held[column]['score']:.1f}" for column in names]
        sites = ", ".join(f"{one:.1f}" for one in held["sites"])
        lines.append(f"| {_name(row)} | {sites} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def seconds_table() -> str:
    """Return the seconds of training, describing and fusing, a row a kind."""
    lines = [
        "| network | training, both | describing, both | default, described | with inputs | nothing said | consensus |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for kind in ("vit", "gpt", "llama"):
        rows = [row for row in _rows() if row["kind"].startswith(kind)]
        if not rows:
            continue
        cells = [mean(row["training seconds"] for row in rows), mean(row["describe seconds"] for row in rows)]
        cells += [
            mean(row[name]["seconds"] for row in rows)
            for name in ("described", "with inputs", "nothing said", "consensus")
        ]
        lines.append(f"| {kind} | " + " | ".join(f"{cell:.0f}" for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def proof_table() -> str:
    """Return seconds and memory of tracing and proving."""
    rows = json.loads((HERE / "proof.json").read_text())["rows"]
    lines = [
        "| model | parameters, millions | trace, s | proof, s | memory of the proof, over the model's own | peak, GB |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        is_proved = "proof seconds" in row
        proof = f"{row['proof seconds']:.1f} | {row['memory']:.1f} times" if is_proved else "- | -"
        lines.append(
            f"| {row['model']} | {row['parameters'] / 1e6:,.0f} | {row['trace seconds']:.1f} | {proof} "
            f"| {row['peak'] / 1e9:.1f} |"
        )
    return "\n".join(lines) + "\n"


TABLES: dict[str, Callable[[], str]] = {
    "transformers-images": partial(scores_table, True),
    "transformers-held-out": held_out_table,
    "transformers-texts": partial(scores_table, False),
    "transformers-seconds": seconds_table,
    "transformers-proof": proof_table,
}
