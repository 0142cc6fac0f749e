"""The tables of docs/evidence/scores.md, from the results of ``lda_perplexity.py`` and of the demo."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

HERE = Path(__file__).parent


def _mean_and_deviation(rows: list[dict[str, Any]], value: Callable[[dict[str, Any]], float], digits: int = 2) -> str:
    values = [value(row) for row in rows]
    return f"{round(mean(values), digits) + 0.0:.{digits}f} ± {stdev(values):.{digits}f}"  # without a minus before zero


def lda_table() -> str:
    """Return both log perplexities of topic models by training articles and topics, the bound in its two parts."""
    results = json.loads((HERE / "lda_perplexity.json").read_text())["results"]
    lines = [
        "| articles, topics | completion | scikit-learn, 1,000 articles | of it documents | of it topics |"
        " scikit-learn, 100 articles | NPMI |",
        "| --- |" + " ---: |" * 6,
    ]
    settings = {(row["n_articles"], row["n_topics"]) for row in results}
    by_topics = sorted(setting for setting in settings if setting[0] == 4000)
    by_articles = sorted(setting for setting in settings if setting[1] == 20)
    for n_articles, n_topics in [*by_topics, *(setting for setting in by_articles if setting not in by_topics)]:
        rows = [row for row in results if (row["n_articles"], row["n_topics"]) == (n_articles, n_topics)]
        cells = [
            _mean_and_deviation(rows, lambda row: row["completion"]),
            _mean_and_deviation(rows, lambda row: row["sklearn"]["1000"]["log_perplexity"]),
            _mean_and_deviation(
                rows, lambda row: row["sklearn"]["1000"]["log_perplexity"] - row["sklearn"]["1000"]["topics"]
            ),
            _mean_and_deviation(rows, lambda row: row["sklearn"]["1000"]["topics"]),
            _mean_and_deviation(rows, lambda row: row["sklearn"]["100"]["log_perplexity"]),
            _mean_and_deviation(rows, lambda row: row["npmi"]),
        ]
        lines.append(f"| {n_articles:,}, {n_topics} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def mixture_table() -> str:
    """Return predictive density, plug-in density and bound of the demo's models, over its seeds."""
    results = json.loads((HERE.parent / "demo/results.json").read_text())["results"]
    lines = ["| model | predictive | plug-in | scikit-learn's bound |", "| --- | ---: | ---: | ---: |"]
    for name, columns in results.items():
        if not name.startswith("site "):
            cells = [
                f"{mean(columns[kind]):.2f} ± {stdev(columns[kind]):.2f}"
                for kind in ("log_density", "plug_in", "bound")
            ]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


TABLES = {"lda-perplexity": lda_table, "mixture-scores": mixture_table}
