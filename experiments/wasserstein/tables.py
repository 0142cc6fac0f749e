"""The results of the experiments with networks as Markdown tables, which ``experiments/write_tables.py`` writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any

HERE = Path(__file__).parent
PUBLISHED = {"average": (86.50, 98.31), "FedMA": (97.89, 98.31), "OT": (97.84, 98.31), "WB": (97.92, 98.31)}
TABLE_3 = {2: 94.93, 4: 89.03, 6: 86.40}
"""WB of table 3: MLPNets into MLPLarge from random weights."""


def _read(name: str) -> dict[str, Any]:
    return json.loads((HERE / f"{name}.json").read_text())


def spread(values: list[float]) -> str:
    """Return mean and standard deviation over seeds."""
    return f"{mean(values):.2f} ± {stdev(values):.2f}" if len(values) > 1 else f"{values[0]:.2f}"


def drop(row: Mapping[str, Any]) -> str:
    """Return the drop from the base networks, with its interval where there are seeds for one."""
    if "drop" not in row:
        return f"{mean(row['base']) - mean(row['accuracy']):.2f}"
    return f"{row['drop']['mean']:.2f} [{row['drop']['low']:.2f}, {row['drop']['high']:.2f}]"


def same_table() -> str:
    """Return accuracies of two MLPNets fused into one, and drops from their mean, beside the paper's."""
    parts = _read("fusing")["parts"]
    rows = parts["same"]["methods"] | parts["same_default"]["methods"]
    lines = [
        "| method | accuracy, % | drop from base [95 %] | published | published drop |",
        "| --- | ---: | ---: | ---: | ---: |",
        f"| base networks, mean | {spread(rows['consensus']['base'])} | | 98.31 | |",
    ]
    for name, row in rows.items():
        published = PUBLISHED.get(name)
        shown = "| | |" if published is None else f"| {published[0]:.2f} | {published[1] - published[0]:.2f} |"
        bold = f"**{name}**" if name == "consensus" else name
        lines.append(f"| {bold} | {spread(row['accuracy'])} | {drop(row)} {shown}")
    return "\n".join(lines) + "\n"


def wider_table() -> str:
    """Return accuracies of two, four and six MLPNets fused into MLPLarge, beside the paper's."""
    rows = _read("fusing")["parts"]["wider"]["methods"]
    names = dict.fromkeys(name.rpartition(", n = ")[0] for name in rows if ", n = " in name)
    lines = ["| method | n = 2 | n = 4 | n = 6 |", "| --- | ---: | ---: | ---: |"]
    bases = [spread(rows[f"consensus, n = {count}"]["base"]) for count in (2, 4, 6)]
    lines.append(f"| base networks, mean | {' | '.join(bases)} |")
    for name in names:
        cells = [spread(rows[f"{name}, n = {count}"]["accuracy"]) for count in (2, 4, 6)]
        lines.append(f"| {f'**{name}**' if name == 'consensus' else name} | {' | '.join(cells)} |")
    half_more = [spread(rows[f"{name}, 1.5 times"]["accuracy"]) for name in ("WB", "consensus")]
    lines.append(f"| into 1.5 times the width: WB, **consensus** | {half_more[0]}, {half_more[1]} | | |")
    return "\n".join(lines) + "\n"


def random_start_table() -> str:
    """Return accuracies of two, four and six networks fused into MLPLarge from random weights, on both data sets."""
    parts = _read("fusing")["parts"]
    lines = ["| data | method | n = 2 | n = 4 | n = 6 |", "| --- | --- | ---: | ---: | ---: |"]
    for part, data in (("random_start", "MNIST"), ("random_start_fashion", "Fashion-MNIST")):
        if part not in parts:
            continue
        rows = parts[part]["methods"]
        bases = [spread(rows[f"WB, n = {count}, draw 0"]["base"]) for count in (2, 4, 6)]
        lines.append(f"| {data} | base networks, mean | {' | '.join(bases)} |")
        for name in dict.fromkeys(name.rpartition(", n = ")[0] for name in rows):
            cells = [spread_over_draws(rows, name, count) for count in (2, 4, 6)]
            label = {"WB": "**WB**, annealed", "WB as published": "WB as published, reproduced"}.get(name, name)
            lines.append(f"| {data} | {label} | {' | '.join(cells)} |")
        if part == "random_start":
            lines.append(f"| {data} | WB, published | {' | '.join(f'{value:.2f}' for value in TABLE_3.values())} |")
    return "\n".join(lines) + "\n"


def spread_over_draws(rows: Mapping[str, Any], name: str, count: int) -> str:
    """Return mean and standard deviation of the accuracy over all draws and seeds of one method."""
    of_method = [found for row, found in rows.items() if row.startswith(f"{name}, n = {count}")]
    return spread([value for found in of_method for value in found["accuracy"]])


def biased_convolutions_table() -> str:
    """Return accuracies of small convolutional networks with biases: FedMA beside OT."""
    parts = _read("fusing")["parts"]
    titles = {"convolutions": "two convolutions", "convolutions_deep": "five convolutions"}
    kinds = [kind for kind in titles if kind in parts]
    heads = [f"{titles[kind]} (seeds: {len(parts[kind]['seeds'])}), n = {count}" for kind in kinds for count in (2, 4)]
    lines = [f"| method | {' | '.join(heads)} |", f"| --- |{' ---: |' * len(heads)}"]
    bases = [spread(parts[kind]["methods"][f"OT, n = {count}"]["base"]) for kind in kinds for count in (2, 4)]
    lines.append(f"| base networks, mean | {' | '.join(bases)} |")
    for name in dict.fromkeys(name.rpartition(", n = ")[0] for name in parts[kinds[0]]["methods"]):
        cells = [
            spread(parts[kind]["methods"][f"{name}, n = {count}"]["accuracy"]) for kind in kinds for count in (2, 4)
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def heterogeneous_table() -> str:
    """Return accuracies over the share of party A, which alone has seen all of the digit 4."""
    rows = _read("fusing")["parts"]["heterogeneous"]["methods"]
    shares = sorted({float(name.rpartition(", ")[2]) for name in rows})
    lines = [
        f"| method | {' | '.join(f'{share:g}' for share in shares)} |",
        f"| --- |{' ---: |' * len(shares)}",
    ]
    for size in ("same", "larger"):
        for name in ("average", "OT", "WB", "consensus"):
            if f"{name}, {size}, {shares[0]}" in rows:
                cells = [f"{mean(rows[f'{name}, {size}, {share}']['accuracy']):.1f}" for share in shares]
                label = f"{name}, {'same width' if size == 'same' else 'from half the width'}"
                lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def convolutional_table() -> str:
    """Return accuracies of two networks for CIFAR-10 fused into one, without and with repair."""
    parts = _read("fusing")["parts"]
    kinds = [kind for kind in ("vgg11", "resnet20") if kind in parts]
    titles = {"vgg11": "VGG11, ¼ width", "resnet20": "ResNet20, ½ width"}
    heads = [f"{titles[kind]} ({len(parts[kind]['seeds'])} seeds) | repaired" for kind in kinds]
    lines = [f"| method | {' | '.join(heads)} |", f"| --- |{' ---: | ---: |' * len(kinds)}"]
    bases = [f"{spread(parts[kind]['methods']['consensus']['base'])} |" for kind in kinds]
    lines.append(f"| base networks, mean | {' | '.join(bases)} |")
    names = dict.fromkeys(n.removesuffix(", repaired") for kind in kinds for n in parts[kind]["methods"])
    for name in names:
        cells = []
        for kind in kinds:
            rows = parts[kind]["methods"]
            keys = (name, f"{name}, repaired")
            cells += [spread(rows[key]["accuracy"]) if key in rows else "" for key in keys]
        lines.append(f"| {f'**{name}**' if name == 'consensus' else name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def barrier_table() -> str:
    """Return heights of barriers before and after alignment: test loss in nats, test error in points."""
    kinds = _read("connectivity")["kinds"]
    lines = [
        "| networks (seeds) | alignment | loss over the line | over the worse end | over the mean | error, points |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for kind, found in kinds.items():
        for name, heights in found["barriers"].items():
            cells = [
                spread(heights[key])
                for key in (
                    "loss, over the line",
                    "loss, over the worse end",
                    "loss, over the mean",
                    "error, over the line",
                )
            ]
            lines.append(f"| {kind} ({len(found['seeds'])}) | {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


TABLES = {
    "networks-same": same_table,
    "networks-wider": wider_table,
    "networks-random-start": random_start_table,
    "networks-biased-convolutions": biased_convolutions_table,
    "networks-heterogeneous": heterogeneous_table,
    "networks-convolutional": convolutional_table,
    "networks-barriers": barrier_table,
}
