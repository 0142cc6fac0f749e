"""The report of a fusion of Bayesian networks as one HTML file."""

from __future__ import annotations

from pathlib import Path

from consilience.bayesian.report.charts import MAX_CLASSES, MAX_MODELS, class_entropy_figure, reliability_figure
from consilience.bayesian.report.content import MAX_SHARE_COLUMNS, BayesianContent
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
        reliability=reliability_figure(predictions) if predictions else None,
        entropies=[
            (outside, figure)
            for outside in (False, True)
            if predictions and (figure := class_entropy_figure(predictions, outside)) is not None
        ],
        galleries=[
            (gallery, picture_row(gallery.most, "Most certain"), picture_row(gallery.least, "Least certain"))
            for gallery in content.galleries
        ],
        most_shares=MAX_SHARE_COLUMNS,
        most_models=MAX_MODELS,
        most_classes=MAX_CLASSES,
    )
