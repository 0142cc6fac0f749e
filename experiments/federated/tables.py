"""The tables of the documentation, from the results of ``rounds.py`` and ``em_rounds.py``."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, stdev

_CHOSEN_ON = 5
"""Seeds of ``em_rounds.py`` on which the rule for withheld components was chosen; the table is of those after them."""

_T_QUANTILE = 2.776
"""Of Student's t with four degrees of freedom, for those five seeds, at 97.5 %."""

_NAMES = {
    "kl": ("mixture, KL-fusion: log likelihood of a held-out row, nats", 3),
    "wb": ("digits, WB: held-out accuracy, %", 1),
    "ssf": ("digits, SSF: held-out accuracy, %", 1),
}


def rounds_table() -> str:
    """Return means by round, and the paired differences."""
    results = json.loads((Path(__file__).parent / "rounds.json").read_text())
    count = len(results["kl"]["summary"]["mean"])
    head = " | ".join(f"round {number}" for number in range(1, count + 1))
    others = "last minus first [95 %] | one round, as much local work | last minus that [95 %] | pooled data"
    lines = [
        f"| | {head} | {others} |",
        f"| --- |{' ---: |' * (count + 4)}",
    ]
    for key, (name, digits) in _NAMES.items():
        found = results[key]["summary"]
        scale = 1.0 if key == "kl" else 100.0

        def shown(value: float, scale: float = scale, digits: int = digits) -> str:
            return f"{scale * value:.{digits}f}"

        def gain(triple: list[float], scale: float = scale, digits: int = digits) -> str:
            mean, low, high = (f"{scale * one:+.{digits}f}" for one in triple)
            text = f"{mean} [{low}, {high}]"
            return f"**{text}**" if (triple[1] > 0.0) == (triple[2] > 0.0) else text

        cells = [
            *map(shown, found["mean"]),
            gain(found["gain"]),
            shown(found["once"]),
            gain(found["gain_over_one_round_of_the_same_work"]),
            shown(found["pooled"]),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def change_table() -> str:
    """Return how much the fused model changed by round."""
    results = json.loads((Path(__file__).parent / "rounds.json").read_text())
    count = len(results["kl"]["summary"]["mean"])
    head = " | ".join(f"round {number}" for number in range(2, count + 1))
    lines = [f"| | {head} |", f"| --- |{' ---: |' * (count - 1)}"]
    rows = [("kl", "divergence", "mixture: nats a component"), ("kl", "components", "mixture: components")]
    rows += [("wb", "change", "digits, WB: relative change"), ("ssf", "change", "digits, SSF: relative change")]
    for key, what, name in rows:
        cells = ["–" if one is None else f"{one:.3g}" for one in results[key]["summary"][what][1:]]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def em_table() -> str:
    """Return the gain in held-out nats of requests of federated EM, by number, and what they are compared with."""
    results = json.loads((Path(__file__).parent / "em_rounds.json").read_text())
    lines = [
        "| | start | em:1 | em:2 | em:3 | em:5 | em:5, `min_count=0` | pooled fit |",
        "| --- |" + " ---: |" * 7,
    ]
    for name, all_runs in results.items():
        runs = all_runs[_CHOSEN_ON:]
        for start, label in (("from fused", "fused"), ("from best site", "best site")):
            before = [run[start]["scores"]["0"] for run in runs]

            def gain(values: list[float], before: list[float] = before) -> str:
                differences = [one - other for one, other in zip(values, before, strict=True)]
                half = _T_QUANTILE * stdev(differences) / len(differences) ** 0.5
                text = f"{mean(differences):+.3f} ± {half:.3f}"
                return f"**{text}**" if abs(mean(differences)) > half else text

            rounds = [gain([run[start]["scores"][count] for run in runs]) for count in ("1", "2", "3", "5")]
            others = [""]
            if start == "from fused":
                others = [gain([run["from fused, nothing withheld"]["scores"]["5"] for run in runs])]
            others.append(gain([run["pooled"] for run in runs]))
            cells = [f"{label}: {mean(before):.3f}", *rounds, *others]
            lines.append(f"| {name if label == 'fused' else ''} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


TABLES = {"federated-rounds": rounds_table, "federated-change": change_table, "federated-em": em_table}
