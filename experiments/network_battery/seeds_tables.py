"""The results of ``seeds.py --write`` as Markdown tables, which ``experiments/write_tables.py`` writes."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

RESULTS = Path(__file__).with_name("seeds.json")
OVER = "over the best site"


def _cells() -> dict[str, dict[str, Any]]:
    return json.loads(RESULTS.read_text())["cells"]


def seeds_table() -> str:
    """Return, for every kind of network, how far outcomes of one cell differ by seeds of fusing."""
    kinds = {"MLP": "-mlp-", "BNN": "-bnn-", "ResNet-8 BN, sites that differ": "-resnet-"}
    lines = [
        "| network | cells | over the best site, points | deviation of a seed | largest difference | worst "
        "| another candidate at another seed |",
        f"| --- |{' ---: |' * 6}",
    ]
    for shown, part in kinds.items():
        of_cells = [cell["two sets"] for name, cell in _cells().items() if part in name]
        gains = [[one[OVER] for one in of_cell] for of_cell in of_cells]
        deviation = mean(stdev(of_cell) ** 2 for of_cell in gains) ** 0.5
        differing = sum(len({one["chosen"] for one in of_cell}) > 1 for of_cell in of_cells)
        widest = max(max(of_cell) - min(of_cell) for of_cell in gains)
        lines.append(
            f"| {shown} | {len(gains)} | {mean(map(mean, gains)):+.1f} | {deviation:.1f} "
            f"| {widest:.1f} | {min(map(min, gains)):+.1f} | {differing} |"
        )
    return "\n".join(lines) + "\n"


def image_sets_table() -> str:
    """Return outcomes with two sets of matched images and with one, by seeds of fusing."""
    lines = [
        "| cell | sets of images | over the best site, points, by seed | mean | time over training one site |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for name, cell in _cells().items():
        for sets in ("two sets", "one set") if "one set" in cell else ():
            gains = [one[OVER] for one in cell[sets]]
            lines.append(
                f"| {name} | {sets.split()[0]} | {', '.join(f'{gain:+.1f}' for gain in gains)} | {mean(gains):+.1f} "
                f"| {mean(one['time'] for one in cell[sets]):.1f} |"
            )
    return "\n".join(lines) + "\n"


TABLES = {"network-battery-seeds": seeds_table, "network-battery-image-sets": image_sets_table}
