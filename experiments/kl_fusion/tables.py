"""The results of ``run.py`` and ``topics.py`` as Markdown tables, which ``experiments/write_tables.py`` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SHOWN = {
    "auto": "default",
    "paper": "paper's λ",
    "paper, integral": "paper's λ, integral",
    "SPAHM": "SPAHM",
    "SPAHM, published": "SPAHM, published settings",
    "Dirichlet process": "Dirichlet process",
    "k-means": "k-means",
    "pooled": "pooled",
    "floor": "true matching",
    "largest site": "largest site",
}
UNSEEN = "6 to 9"  # seeds that had no part in the default's constants


def _points() -> list[dict[str, Any]]:
    return json.loads((HERE / "results.json").read_text())["points"]


def _place(one: dict[str, Any]) -> str:
    """Return the first columns of a row: what sites hold, separation, noise."""
    more = {"more sites": f", J = {one['sites']}", "more dimensions": f", D = {one['dim']}"}.get(one["kind"], "")
    return f"| {one['arm']}{more} | {one['separation']:g} | {one['noise']:g} "


def _ordered(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the points arm by arm, figure 2 (noise 0.5) before figure 3, then more sites and more dimensions."""
    kinds = ["figures", "more sites", "more dimensions"]
    return sorted(
        points,
        key=lambda one: (
            kinds.index(one["kind"]),
            one["arm"] != "any subset",
            one["noise"] != 0.5,
            one["separation"],
            one["noise"],
        ),
    )


def hausdorff_table() -> str:
    """Return Hausdorff distances of every method: mean ± standard deviation over seeds, and the worst."""
    names = [name for name in SHOWN if name != "largest site"]
    lines = [
        f"| sites hold | s | σ | seeds | {' | '.join(SHOWN[name] for name in names)} | default / true matching |",
        f"| --- | ---: | ---: | ---: |{' ---: |' * (len(names) + 1)}",
    ]
    for one in _ordered(_points()):
        found = one["summary"]["all"]
        cells = []
        for name in names:
            values = found[name].get("hausdorff")
            cells.append(f"{values['mean']:.2f} ± {values['sd']:.2f} ({values['worst']:.2f})" if values else "")
        ratio = found["auto against floor"]["of_means"]
        lines.append(f"{_place(one)}| {len(one['seeds'])} | {' | '.join(cells)} | {ratio:.3f} |")
    return "\n".join(lines) + "\n"


def number_table() -> str:
    """Return the error of the number of components of the methods that find it: mean over seeds, and the worst."""
    names = ("auto", "paper", "paper, integral", "SPAHM", "SPAHM, published", "Dirichlet process", "largest site")
    lines = [
        f"| sites hold | s | σ | seeds | {' | '.join(SHOWN[name] for name in names)} | Rand | left out | seconds |",
        f"| --- | ---: | ---: | ---: |{' ---: |' * (len(names) + 3)}",
    ]
    for one in _ordered(_points()):
        found = one["summary"]["all"]
        cells = [f"{found[name]['error']['mean']:.1f} ({found[name]['error']['worst']})" for name in names]
        auto = found["auto"]
        cells += [
            f"{auto['rand']['mean']:.3f} ({auto['rand']['worst']:.3f})",
            f"{auto['left_out']} of {sum(one['locals'])}",
            f"{auto['seconds']['median']:.2f}",
        ]
        lines.append(f"{_place(one)}| {len(one['seeds'])} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def targets_table() -> str:
    """Return what was aimed at and what was found, over all seeds and over those that the default had not seen."""
    found = json.loads((HERE / "results.json").read_text())["targets"]
    lines = [
        "| sites hold | s | σ | distance over true matching's | seeds 6 to 9 | at most 1.05 | error of the number "
        "| seeds 6 to 9 | at most | met |",
        f"| --- |{' ---: |' * 9}",
    ]
    by_place: dict[tuple[str, float, float], dict[str, dict[str, Any]]] = {}
    for one in found:
        by_place.setdefault((one["arm"], one["separation"], one["noise"]), {})[one["seeds"]] = one
    for (arm, separation, noise), parts in sorted(
        by_place.items(), key=lambda item: (item[0][0] != "any subset", item[0][2] != 0.5, item[0][1:])
    ):
        every, unseen = parts["all"], parts.get(UNSEEN)
        lines.append(
            f"| {arm} | {separation:g} | {noise:g} | {every['hausdorff_over_floor']:.3f} "
            f"| {_number(unseen, 'hausdorff_over_floor', 3)} | {_met(every['hausdorff_met'])} "
            f"| {every['error']:.2f} | {_number(unseen, 'error', 2)} | {every['error_target']} "
            f"| {_met(every['error_met'])} |"
        )
    return "\n".join(lines) + "\n"


def _number(one: dict[str, Any] | None, name: str, digits: int) -> str:
    return "" if one is None else f"{one[name]:.{digits}f}"


def _met(met: bool) -> str:
    return "met" if met else "**missed**"


def size_table() -> str:
    """Return the error of the default's number of components, beside that of the largest site."""
    lines = [
        "| sites hold | s | σ | seeds | mean error of the number | worst | seeds 6 to 9 | largest site alone errs by |",
        f"| --- |{' ---: |' * 7}",
    ]
    for one in _ordered(_points()):
        every, unseen = one["summary"]["all"], one["summary"].get(UNSEEN)
        error = every["auto"]["error"]
        part = f"{unseen['auto']['error']['mean']:.2f}" if unseen else ""
        lines.append(
            f"{_place(one)}| {len(one['seeds'])} | {error['mean']:.2f} | {error['worst']} | {part} "
            f"| {every['largest site']['error']['mean']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def newsgroups_table() -> str:
    """Return how well topics predict held-out tokens, best last, with paired differences to the parametric fusion."""
    found = json.loads((HERE / "topics.json").read_text())["summary"]
    lines = [
        "| topics | log likelihood a token | against parametric | topics | seconds of fusing |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, one in sorted(found.items(), key=lambda item: item[1]["log_likelihood"]["mean"]):
        fit, interval = one["log_likelihood"], one["interval"]
        against = "" if name == "parametric" else f"{one['difference']:+.4f} ± {(interval[1] - interval[0]) / 2:.4f}"
        seconds = "" if one["seconds"] is None else f"{one['seconds']:.2f}"
        shown = f"**{name}**" if name == "auto" else name
        lines.append(f"| {shown} | {fit['mean']:.4f} ± {fit['sd']:.4f} | {against} | {one['topics']:.1f} | {seconds} |")
    return "\n".join(lines) + "\n"


TOPIC_METHODS = (
    "default", "given, 20", "k-means, 20", "Runnalls, 20", "naive average", "best site", "pooled, 30"
)  # fmt: skip


def topic_sets_table() -> str:
    """Return nats a held-out token of every method less those of the concatenation, mean over splits."""
    rows = json.loads((HERE / "topic_sets.json").read_text())["rows"]
    lines = [
        f"| set, splits | {' | '.join(f'**{one}**' if one == 'default' else one for one in TOPIC_METHODS)} |",
        f"| --- |{' ---: |' * len(TOPIC_METHODS)}",
    ]
    for name in dict.fromkeys(row["set"] for row in rows):
        scores = [{one: row["methods"][one]["scores"] for one in row["methods"]} for row in rows if row["set"] == name]
        cells = []
        for method in TOPIC_METHODS:
            nats = [row[method]["log_likelihood"] - row["concatenation"]["log_likelihood"] for row in scores]
            number = (
                f" ({sum(row[method]['topics'] for row in scores) / len(scores):.0f})" if method == "default" else ""
            )
            cells.append(f"{sum(nats) / len(nats):+.3f}{number}")
        lines.append(f"| {name}, {len(scores)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def unseen_table() -> str:
    """Return what the default finds in simulations that shaped no rule, by setting."""
    rows = json.loads((HERE / "unseen.json").read_text())["rows"]
    keys = ("sites", "most", "separation", "noise")
    lines = [
        "| sites | at most | s | σ | the number found | adjusted Rand index | distance over true matching's | worst |",
        f"|{' ---: |' * 8}",
    ]
    for place in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        own = [row for row in rows if tuple(row[key] for key in keys) == place]
        exact = sum(row["components"] == row["true"] for row in own)
        ratios = [row["hausdorff_over_floor"] for row in own]
        numbers = " | ".join(f"{value:g}" for value in place)
        lines.append(
            f"| {numbers} | {exact} of {len(own)} | {sum(row['rand'] for row in own) / len(own):.3f} "
            f"| {sum(ratios) / len(ratios):.3f} | {max(ratios):.2f} |"
        )
    return "\n".join(lines) + "\n"


TABLES = {
    "unseen-simulations": unseen_table,
    "topic-sets": topic_sets_table,
    "newsgroups": newsgroups_table,
    "hausdorff": hausdorff_table,
    "number": number_table,
    "targets": targets_table,
    "size": size_table,
}
