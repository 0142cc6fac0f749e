"""The report of a fusion of Bayesian networks as one HTML file."""

from __future__ import annotations

from pathlib import Path

from consilience.bayesian.report.charts import CLASSES_AT_MOST, MODELS_AT_MOST, class_entropies, reliability
from consilience.bayesian.report.content import SHARES_AT_MOST, BayesianContent
from consilience.bayesian.report.images import picture_row
from consilience.files.atomic import write_bytes
from consilience.networks.report.page import render_network


def write_bayesian_content(path: Path, content: BayesianContent) -> None:
    """Write the report to `path`, whole or not at all.

    Raises
    ------
    InputError
        When the path cannot be written.
    """
    write_bytes(path, render_bayesian(content).encode("utf-8"))


def render_bayesian(content: BayesianContent) -> str:
    """Return the report as HTML; the same content gives the same text."""
    predictions = content.predictions
    return render_network(
        content,
        "bayesian.html.j2",
        ("report.css", "network.css", "bayesian.css"),
        reliability=reliability(predictions) if predictions else None,
        entropies=[
            (outside, drawn)
            for outside in (False, True)
            if predictions and (drawn := class_entropies(predictions, outside)) is not None
        ],
        galleries=[
            (one, picture_row(one.most, "Most certain"), picture_row(one.least, "Least certain"))
            for one in content.galleries
        ],
        most_shares=SHARES_AT_MOST,
        most_models=MODELS_AT_MOST,
        most_classes=CLASSES_AT_MOST,
    )
