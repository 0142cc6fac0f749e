"""The results of ``run.py --write`` as Markdown tables, which ``experiments/write_tables.py`` writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
METHODS = (
    "site",
    "naive average",
    "meta-analysis, random",
    "meta-analysis, fixed",
    "product",
    "one refinement",
    "refined",
    "pooled",
)


def _results(part: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((HERE / "results.json").read_text())[part]
    return rows


def _error(value: float) -> str:
    return f"{value:.2g}" if value >= 1e-3 else (f"{value:.0e}" if value > 0.0 else "0")


def fits_table() -> str:
    """Return the distance to the pooled fit in its standard errors, and the held-out loss above its own."""
    lines = [
        f"| model, sites (with a model) | {' | '.join(METHODS[:-1])} | rounds |",
        f"| --- |{' ---: |' * len(METHODS)}",
    ]
    for row in _results("fits"):
        methods = row["methods"]
        cells = []
        for name in METHODS[:-1]:
            if name not in methods:
                cells.append("–")
                continue
            found = methods[name]
            cells.append(f"{_error(found['error'])}, {100 * found['excess'] / abs(row['loss']):+.1f} %")
        lines.append(
            f"| {row['model']}, {row['sites']} ({row['models']:.1f}) | {' | '.join(cells)} | {row['rounds'] or '–'} |"
        )
    return "\n".join(lines) + "\n"


def coverage_table() -> str:
    """Return the coverage of 90 % intervals of slopes."""
    names = [name for name in METHODS if name != "naive average"]
    lines = [
        f"| model, sites | deviation between sites | intervals | {' | '.join(names)} |",
        f"| --- | ---: | ---: |{' ---: |' * len(names)}",
    ]
    for row in _results("coverage"):
        cells = [f"{row['coverage'][name]:.2f}" if name in row["coverage"] else "–" for name in names]
        start = f"{row['model']}, {row['sites']} | {row['deviation']:g} | {row['intervals']}"
        lines.append(f"| {start} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def estimators_table() -> str:
    """Return every estimator with its mark, its distance from the pooled fit, and the bytes of a site."""
    lines = [
        "| estimator | mark | difference | product, in s.e. | refined, in s.e. (requests) | bytes of a site |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for row in _results("estimators"):
        library, _, name = row["estimator"].partition(".")
        called = f"`{name}`" + {"statsmodels": " of statsmodels", "laplace": " of laplace-torch"}.get(library, "")
        if "excess" in row:
            cells = [f"{100 * row['excess']:+.1f} % (site {100 * row['site']:+.0f} %)", "", ""]
        elif row["mark"] == "approximate":
            refined = "–" if row["refined"] is None else f"{row['refined']:.0e} ({row['rounds']})"
            cells = ["", _error(row["product"]), refined]
        else:
            cells = [f"{row['difference']:.0e}" if row["difference"] else "0", "", ""]
        lines.append(f"| {called} | {row['mark']} | {' | '.join(cells)} | {row['bytes']:,} |")
    return "\n".join(lines) + "\n"


TABLES: dict[str, Callable[[], str]] = {
    "exact-fits": fits_table,
    "exact-coverage": coverage_table,
    "exact-estimators": estimators_table,
}
"""Tables by the name of their block in a page."""
