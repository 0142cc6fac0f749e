"""Tables of the heads' part of the one-shot benchmark, from ``heads.json``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

HERE = Path(__file__).parent
ALPHAS, COUNTS = (0.05, 0.1, 0.5), (5, 20)
SETS = {"fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "font_digits": "font digits"}
NETWORKS = {
    "best site": "best site's network, chosen by test labels",
    "matched average": "average of matched networks",
    "class-weighted ensemble": "ensemble weighted by class counts, all networks kept",
    "default": "the library's default",
    "matched average, second message": "average of matched networks, exact head by a second message",
    "default, second message": "the default, exact head by a second message",
    "pooled network": "network of all rows",
}


def _results() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((HERE / "heads.json").read_text())
    return document


def _cells(part: dict[str, Any], name: str, alpha: float, n_sites: int) -> list[dict[str, Any]]:
    """Return the cells of all seeds that there are."""
    return [cell for key, cell in part.items() if key.startswith(f"{name}-alpha{alpha:g}-sites{n_sites}-seed")]


Score = Callable[[dict[str, Any]], float | None]


def _row(label: str, found: dict[str, Any], score: Score, part: str, where: tuple[str, int]) -> str:
    """Return the mean score over seeds at every alpha; a dash where nothing was run."""
    name, n_sites = where
    entries = []
    for alpha in ALPHAS:
        values = [value for cell in _cells(found[part], name, alpha, n_sites) if (value := score(cell)) is not None]
        entries.append(f"{mean(values):.1f}" + (f" ({len(values)})" if len(values) > 1 else "") if values else "-")
    return f"| {label} | {' | '.join(entries)} |"


def scores_table() -> str:
    """Return accuracies by set, number of sites and alpha, with what was sent."""
    found, lines = _results(), list[str]()
    for name, title in SETS.items():
        for n_sites in COUNTS:
            where = name, n_sites
            rows = [
                _row(label, found, lambda cell, key=key: cell["scores"].get(key), "networks", where)
                for key, label in NETWORKS.items()
            ]
            body, random = (
                "exact {} on a LeNet of 5,000 other images",
                "**exact ridge head on 1,800 random convolutions**",
            )
            rows[-1:-1] = [
                _row(body.format("ridge head"), found, lambda cell: cell["ridge"]["accuracy"], "body", where),
                _row(body.format("discriminants"), found, lambda cell: cell["lda"]["accuracy"], "body", where),
                _row(random, found, lambda cell: cell["accuracy"], "random", where),
            ]
            rows = [row for row in rows if not row.endswith("| - | - | - |")]
            if rows:
                head = f"| {title}, {n_sites} sites | alpha 0.05 | 0.1 | 0.5 |"
                lines += [head, "| --- | ---: | ---: | ---: |", *rows, ""]
    return "\n".join(lines)


def cost_table() -> str:
    """Return bytes that a site sends, and processor seconds."""
    found = _results()
    lines = ["| | bytes a site sends | seconds of one processor |", "| --- | ---: | --- |"]
    cells = _cells(found["random"], "fashion_mnist", 0.1, 5)
    if cells:
        seconds = cells[0]["seconds"]
        text = ", ".join(f"{seconds[part]:.0f} for {part}" for part in ("features", "sums", "fusing"))
        lines.append(f"| 1,800 random convolutions | {cells[0]['bytes']:,} | {text} |")
    cells = _cells(found["body"], "fashion_mnist", 0.1, 5)
    if cells:
        ridge = cells[0]["ridge"]
        lines.append(f"| 84 features of a LeNet | {ridge['bytes']:,} | {ridge['seconds']:.0f} in all |")
    cells = _cells(found["networks"], "fashion_mnist", 0.1, 5)
    if cells:
        seconds, n_bytes = cells[0]["seconds"], cells[0]["bytes"]
        text = f"{seconds['training']:.0f} for training, {seconds['default']:.0f} for fusing"
        lines.append(f"| a LeNet with its description | {n_bytes['network and description']:,} | {text} |")
        answer = found["bytes"]["fashion_mnist"]["answer"]
        lines.append(f"| second message | {answer:,} | {seconds['second message']:.1f} |")
    return "\n".join(lines) + "\n"


def layers_table() -> str:
    """Return accuracies of one and of two layers of random features."""
    found = _results()["layers"]
    names = [name for name in SETS if name in found]
    head = f"| ridge head on | messages | {' | '.join(SETS[name] for name in names)} |"
    lines = [head, f"| --- | ---: |{' ---: |' * len(names)}"]
    for label, first in found[names[0]].items():
        called = label if label.startswith("one layer") else f"900 and 900 more: {label}"
        scores = " | ".join(f"{found[name][label]['accuracy']:.1f}" for name in names)
        lines.append(f"| {called} | {first['messages']} | {scores} |")
    return "\n".join(lines) + "\n"


REFITS = {
    "best site": "best site, chosen by test labels",
    "matched average": "matched average",
    "gram:3": "`gram:3`",
    "chain:1": "`chain:1`",
    "chain:2": "`chain:2`",
    "chain:3": "`chain:3`",
    "head:1": "`head`, which needs labels",
}


def refits_table() -> str:
    """Return accuracies after requests about layers, means over seeds, by start and alpha."""
    cells: dict[str, dict[str, float]] = json.loads((HERE / "layer_refits.json").read_text())["cells"]
    settings = list(dict.fromkeys(name.rpartition(", seed")[0] for name in cells))
    lines = [f"| digits, 5 sites | {' | '.join(settings)} |", f"| --- |{' ---: |' * len(settings)}"]
    for method, label in REFITS.items():
        scores = [mean(cell[method] for name, cell in cells.items() if name.startswith(f"{one},")) for one in settings]
        lines.append(f"| {label} | {' | '.join(f'{score:.1f}' for score in scores)} |")
    return "\n".join(lines) + "\n"


TABLES: dict[str, Callable[[], str]] = {
    "one-shot-heads": scores_table,
    "one-shot-heads-cost": cost_table,
    "one-shot-layers": layers_table,
    "one-shot-refits": refits_table,
}
