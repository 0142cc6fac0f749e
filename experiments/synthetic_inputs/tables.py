"""The results of experiments on synthetic inputs as Markdown tables, which ``experiments/write_tables.py`` writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

RESULTS = Path(__file__).parent / "convolutions.json"
ROWS = {
    "ot": "`ot`",
    "wb": "`wb`",
    "fedma": "`fedma`",
    "rebasin": "`rebasin`",
    "matched, no refit": "matched, no refit",
    "default": "default, nothing described",
    "default, described": "default, described",
    "default, 200 images": "default, 200 unlabelled images",
    "default, 2,000 images": "default, 2,000 unlabelled images",
    "refit on 1,000 images": "matched and refitted on 1,000 real images",
    "distill": "`distill`, nothing described",
    "distill, described": "`distill`, described",
}
MODES = ("eval", "train", "recalibrated")
NOT_RUN = "not run"
GROUPS = (
    *(f"{name}, fashion-mnist 14x14" for name in ("ResNet-8 BN", "ResNet-14 BN")),
    *(f"{name}, fashion-mnist 28x28" for name in ("VGG11 BN", "VGG11")),
    *(f"{name}, fashion-mnist 14x14" for name in ("ResNet-8 GN", "ResNet-14 GN", "MobileNet BN")),
    "ResNet-8 BN, cifar10 16x16",
)
"""Those of ``convolutions.CASES``."""


def _cell(rows: list[dict[str, Any]], missing: str = NOT_RUN) -> str:
    """Return the mean accuracies of pairs in every mode, and how many pairs there are where it is not one."""
    if not rows:
        return missing
    if any("refused" in row for row in rows):
        return "refused"
    shown = " / ".join(f"{mean(row[mode] for row in rows):.1f}" for mode in MODES if mode in rows[0])
    return shown + (f" ({len(rows)})" if len(rows) > 1 else "")


def _is_of_a_site(name: str) -> bool:
    """Return whether a candidate is a site's own network, or what that became by distillation."""
    return name.startswith(("site:", "distill(site:"))


def _has_fused(row: dict[str, Any]) -> bool:
    """Return whether the network of a site was taken of candidates with some among them that were refitted to both."""
    return _is_of_a_site(row.get("chosen", "")) and any("refit" in name for name in row["scores"])


def _best_fused(row: dict[str, Any]) -> dict[str, Any]:
    """Return the accuracy of the candidate of the least score that was fused of both."""
    scores = row["scores"].items()
    fused = {name: score for name, score in scores if name in row["candidates"] and not _is_of_a_site(name)}
    return {"eval": row["candidates"][min(fused, key=fused.__getitem__)]}


def convolutions_table() -> str:
    """Return accuracies by way of fusing (row) and kind of networks (column), means over pairs."""
    results = json.loads(RESULTS.read_text())["rows"]
    by_row = {
        (group, name): [row for row in results if row["group"] == group and row["row"] == name]
        for group in GROUPS
        for name in ("sites", *ROWS)
    }
    lines = [f"| | {' | '.join(GROUPS)} |", f"| --- |{' ---: |' * len(GROUPS)}"]
    for shown, of_pair in (("best site", max), ("mean site", mean)):
        of_sites = [_cell([{"eval": of_pair(row["sites"])} for row in by_row[group, "sites"]]) for group in GROUPS]
        lines.append(f"| {shown} | {' | '.join(of_sites)} |")
    ensembles = [_cell([{"eval": row["eval"]} for row in by_row[group, "sites"]]) for group in GROUPS]
    lines.append(f"| ensemble | {' | '.join(ensembles)} |")
    for name, shown in ROWS.items():
        lines.append(f"| {shown} | {' | '.join(_cell(by_row[group, name]) for group in GROUPS)} |")
        fused = [[_best_fused(row) for row in by_row[group, name] if _has_fused(row)] for group in GROUPS]
        if any(fused):
            cells = " | ".join(_cell(rows, missing="") for rows in fused)
            lines.append(f"| best score of what was fused of both, where {shown} is of one site | {cells} |")
    return "\n".join(lines) + "\n"


def convolution_ranges_table() -> str:
    """Return by way of fusing how far accuracies of all pairs are from those of their sites, and from other modes."""
    results = json.loads(RESULTS.read_text())["rows"]
    of_sites = {row["case"]: row["sites"] for row in results if row["row"] == "sites"}
    lines = [
        "| of all pairs, points | pairs | over the mean site: least | most | below the better site: mean | most "
        "| `train()` over `eval()`: least | most | recalibrated, off `eval()`: most |",
        "| --- |" + " ---: |" * 8,
    ]
    for name in (one for one in ROWS if one.startswith(("default", "distill"))):
        for kind, has_norms in (("batch normalisation", True), ("no batch normalisation", False)):
            rows = [row for row in results if row["row"] == name and "eval" in row and ("train" in row) == has_norms]
            if not rows:
                continue
            sites = [row.get("sites") or of_sites[row["case"]] for row in rows]
            over = [row["eval"] - mean(own) for row, own in zip(rows, sites, strict=True)]
            below = [max(own) - row["eval"] for row, own in zip(rows, sites, strict=True)]
            cells = [min(over), max(over), mean(below), max(below)]
            if has_norms:
                cells += [reach(row["train"] - row["eval"] for row in rows) for reach in (min, max)]
                cells.append(max(abs(row["recalibrated"] - row["eval"]) for row in rows))
            shown = [*(f"{cell:.1f}" for cell in cells), *[""] * (7 - len(cells))]
            lines.append(f"| {ROWS[name]}, {kind} | {len(rows)} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


MANY = RESULTS.with_name("many.json")
MANY_ROWS = ("default", "default, 1.5 times as wide", "default, 2 times as wide", "distill")


def many_networks_table() -> str:
    """Return accuracies of many networks in one width and in wider ones, and of candidates at twice the width."""
    results = json.loads(MANY.read_text())["rows"]
    by_row = {(row["case"], row["row"]): row for row in results}
    lines = [
        f"| | best | mean | ensemble | {' | '.join(MANY_ROWS)} | score of the chosen / 1.5 / 2 times as wide, % "
        "| 2 times as wide: two side by side, distilled | best fused of all |",
        f"| --- |{' ---: |' * (6 + len(MANY_ROWS))}",
    ]
    for case in dict.fromkeys(row["case"] for row in results):
        if (case, "ensemble") not in by_row:
            continue
        sites = by_row[case, "sites"]["sites"]
        cells = [f"{by_row[case, name]['eval']:.1f}" if (case, name) in by_row else NOT_RUN for name in MANY_ROWS]
        default = by_row.get((case, "default"))
        named = NOT_RUN
        if default is not None:
            wider = [score for name, score in default["scores"].items() if name.endswith("as wide")]
            named = " / ".join(f"{100 * score:.1f}" for score in (default["scores"][default["chosen"]], *wider))
        own = f"{max(sites):.1f} | {mean(sites):.1f} | {by_row[case, 'ensemble']['eval']:.1f}"
        wide = by_row[case, "default, 2 times as wide"]["candidates"]
        beside = [wide[name] for name in ("side_by_side", "distill(side_by_side)")]
        of_all = max(found for name, found in wide.items() if "side_by_side" not in name)
        doubled = f"{', '.join(f'{found:.1f}' for found in beside)} | {of_all:.1f}"
        lines.append(f"| {case} | {own} | {' | '.join(cells)} | {named} | {doubled} |")
    return "\n".join(lines) + "\n"


def _name_of(setting: dict[str, Any]) -> str:
    """Return what a setting of the benchmark is called."""
    start = {"own": "independent initialisations", "common": "a common initialisation"}[setting["start"]]
    division = "IID" if setting["skew"] == "IID" else f"Dirichlet {setting['skew']}"
    return f"{setting['data'].replace('_', '-')}, {setting['sites']} sites, {start}, {division}"


UNDESCRIBED = RESULTS.with_name("undescribed.json")


def undescribed_table() -> str:
    """Return what is estimated of classes that nobody says, and accuracies, by cell."""
    lines = [
        "| half | cell | skew, true / estimated | distance | best / mean site | ensemble: equal / estimated / true | "
        "default | best fused |",
        "| --- | --- |" + " ---: |" * 6,
    ]
    cells = json.loads(UNDESCRIBED.read_text())["cells"].values()
    for cell in sorted(cells, key=lambda one: one["setting"]["half"], reverse=True):
        setting, skew, sites = cell["setting"], cell["skew"], cell["sites"]
        name = _name_of(setting)
        wide = ", twice as wide" if setting["widths"][0] > 8 else ""
        ensembles = " / ".join(f"{cell['ensembles'][by]:.1f}" for by in ("equal", "estimated", "true"))
        taken = " (a site)" if cell["chosen"].startswith("site:") else ""
        lines.append(
            f"| {setting['half']} | {name}{wide} | {skew['true']:.2f} / {skew['estimated']:.2f} | "
            f"{cell['distance']:.2f} | {max(sites):.1f} / {mean(sites):.1f} | {ensembles} | "
            f"{cell['default']:.1f}{taken} | {cell['fused']:.1f} |"
        )
    return "\n".join(lines) + "\n"


DESCRIBED = RESULTS.with_name("described.json")


def described_table() -> str:
    """Return what the default makes of described networks whose sites differ, by the rule and on matched images."""
    lines = [
        "| half | cell | excess | best / mean site | ensemble | by the rule | harmless | s | matched images | harmless "
        "| s |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- | ---: | ---: | --- | ---: |",
    ]
    cells = json.loads(DESCRIBED.read_text())["cells"].values()
    for cell in sorted(cells, key=lambda one: (one["setting"]["half"] == "report", one["excess"]["mean"])):
        setting, sites = cell["setting"], cell["sites"]
        name = f"{setting['architecture']}, {_name_of(setting)}"
        ways = []
        for way in ("rule", "images"):
            row = cell[way]
            taken = " (a site)" if row["chosen"].startswith("site:") else ""
            ways.append(f"{_cell([row])}{taken} | {row['harmless']} | {row['seconds']:.0f}")
        if cell["rule"] == cell["images"]:
            ways[1] = "the same | | "
        lines.append(
            f"| {setting['half']} | {name} | {cell['excess']['mean']:.3f} | {max(sites):.1f} / {mean(sites):.1f} | "
            f"{cell['rule']['ensemble']:.1f} | {' | '.join(ways)} |"
        )
    return "\n".join(lines) + "\n"


HALFWAY = RESULTS.with_name("halfway.json")
SHARES = ("0.25", "0.5", "1")


def halfway_table() -> str:
    """Return what a site's network gains on the way to its distilled one, on test images and on made-up inputs."""
    lines = [
        "| half | networks; inputs | site | best / mean site | ensemble | a quarter of the way | half | all of it "
        "| gain of half of the way on such inputs |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    rows = json.loads(HALFWAY.read_text())["rows"]
    for row in sorted(rows, key=lambda one: one["half"] == "report"):
        ways = [row[f"{share} of the way"] for share in SHARES]
        gains = " | ".join(f"{way['accuracy'] - row['site']:+.1f}" for way in ways)
        lines.append(
            f"| {row['half']} | {row['name']} | {row['site']:.1f} | {row['best_site']:.1f} / {row['mean_site']:.1f} | "
            f"{row['ensemble']:.1f} | {gains} | {100 * ways[1]['gain']:.0f} % |"
        )
    return "\n".join(lines) + "\n"


BENCHMARK = RESULTS.parents[1] / "network_battery"
TEXTS = {"none": "all texts", "tokens": "tokens by class", "pairs": "pairs by class", "tokens and pairs": "both"}


def texts_table() -> str:
    """Return the default on texts by what a class is described by, the first seed, and means of each half."""
    results = json.loads((BENCHMARK / "texts.json").read_text())
    names = dict.fromkeys(key.split(" | ")[0] for key in results)
    lines = [
        f"| setting | best site | {' | '.join(TEXTS.values())} | ensemble | best candidate (tokens) "
        "| harmless (tokens) |",
        "| --- |" + " ---: |" * 7 + " --- |",
    ]
    for half in ("tune", "report"):
        columns: list[list[float]] = []
        for name in (one for one in names if one.startswith(half)):
            found = {kind: results.get(f"{name} | {kind} | 0") for kind in TEXTS}
            tokens = found["tokens"]
            values = [row and row["accuracy"] for row in found.values()]
            values = [tokens["best site"], *values, tokens["ensemble"], tokens["best candidate"]]
            columns.append(values)
            cells = " | ".join("" if value is None else f"{100 * value:.1f}" for value in values)
            lines.append(f"| {name} | {cells} | {tokens['harmless']} |")
        means = ["" if None in column else f"{100 * mean(column):.1f}" for column in zip(*columns, strict=True)]
        lines.append(f"| mean, {half} | {' | '.join(means)} | |")
    return "\n".join(lines) + "\n"


def mixtures_table() -> str:
    """Return accuracies of what is taken, refitted, and refitted with its head, by how inputs are drawn."""
    results = json.loads((BENCHMARK / "mixtures.json").read_text())
    kinds = {"gaussian": "Gaussians", "mixture": "clusters of each site", "fused": "clusters, fused"}
    scores = ("accuracy", "refit", "refit_head")
    lines = [f"| setting | {' | '.join(kinds.values())} |", "| --- |" + " ---: |" * len(kinds)]
    names = list(dict.fromkeys(key.split(" | ")[0] for key in results))
    for name in (*names, "mean"):
        of_name = [[results[f"{one} | {kind}"] for one in (names if name == "mean" else [name])] for kind in kinds]
        cells = [" / ".join(f"{100 * mean(row[score] for row in rows):.1f}" for score in scores) for rows in of_name]
        lines.append(f"| {name.removeprefix('tune-')} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


COMPARED = (
    "site 1", "site 2", "default as it stands", "no refit", "noise of mean and variance",
    "noise of mean and variance, not anchored", "leaves of mean and variance",
    "leaves of mean and variance, not anchored", "Gaussian of covariance", "matched, nothing described",
    "matched, nothing described, not anchored", "matched, variance described", "matched, covariance described",
    "1,000 real images",
)  # fmt: skip
"""Rows of the table, in this order."""


def compared_table() -> str:
    """Return accuracies by what two networks are refitted on (row) and kind of networks (column)."""
    rows = json.loads(RESULTS.with_name("compare.json").read_text())["rows"]
    by_key = {(row["case"], row["inputs"]): [row] for row in rows}
    cases = list(dict.fromkeys(row["case"] for row in rows))
    shown = (case.replace("fashion_mnist", "Fashion-MNIST").replace("mnist,", "MNIST,") for case in cases)
    lines = [f"| | {' | '.join(shown)} |", "| --- |" + " ---: |" * len(cases)]
    for inputs in COMPARED:
        cells = (_cell(by_key.get((case, inputs), []), missing="-") for case in cases)
        lines.append(f"| {inputs} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


TABLES: dict[str, Callable[[], str]] = {
    "halfway": halfway_table,
    "convolutions": convolutions_table,
    "convolution-ranges": convolution_ranges_table,
    "texts-by-class": texts_table,
    "mixtures-of-inputs": mixtures_table,
    "compared-inputs": compared_table,
    "many-networks": many_networks_table,
    "undescribed": undescribed_table,
    "described": described_table,
}
