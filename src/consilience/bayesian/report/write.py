"""The page of fused Bayesian networks, and checks of what is shown with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consilience.bayesian.predictive_scores import PredictiveScores
from consilience.bayesian.report.content import BayesianContent, bayesian_content
from consilience.bayesian.report.images import galleries_of
from consilience.bayesian.report.page import write_bayesian_content
from consilience.errors import InputError, Problem
from consilience.networks.report.content import ShownNetworks
from consilience.networks.report.page import checked_content_of

if TYPE_CHECKING:
    from consilience.networks.landscape.barrier import Barrier
    from consilience.networks.landscape.plane import Plane


def write_bayesian_page(
    path: Path,
    shown: ShownNetworks,
    *,
    barriers: Mapping[str, Barrier] | None = None,
    planes: Mapping[str, Plane] | None = None,
    scores: Mapping[str, Mapping[str, float]] | None = None,
    predictions: Mapping[str, PredictiveScores] | None = None,
    images: Mapping[str, Any] | None = None,
) -> None:
    """Write the report to `path`, whole or not at all: one HTML file without scripts that fetches nothing.

    `barriers`, `planes` and `scores` are as for `checked_content_of` of networks; `predictions` what
    ``consilience.predictive_scores`` gave, by model, in the order to show; `images` (n, h, w) what these are of, by
    model.
    """
    content = bayesian_content_of(
        shown, barriers=barriers, planes=planes, scores=scores, predictions=predictions, images=images
    )
    write_bayesian_content(path, content)


def bayesian_content_of(
    shown: ShownNetworks,
    *,
    predictions: Mapping[str, PredictiveScores] | None = None,
    images: Mapping[str, Any] | None = None,
    **comparisons: Any,
) -> BayesianContent:
    """Return the content of the page, what is shown with it checked; parameters as for `write_bayesian_page`."""
    checked_predictions = _check_predictions(predictions)
    content = checked_content_of(shown, **comparisons)
    return bayesian_content(
        content, shown, predictions=checked_predictions, galleries=galleries_of(images, checked_predictions)
    )


def _check_predictions(predictions: Mapping[str, object] | None) -> dict[str, PredictiveScores]:
    if not predictions:
        return {}
    expected = Problem(
        "predictions", "expected what consilience.predictive_scores returns, by name of the model", code="E-TYPE"
    )
    if not isinstance(predictions, Mapping):
        raise InputError("", f"{expected}, found {type(predictions).__name__}; write {{'fused': ...}}", code="E-TYPE")
    scores_by_model: dict[str, PredictiveScores] = {}
    for name, scores in predictions.items():
        if not isinstance(scores, PredictiveScores):
            raise InputError("", f"{expected}, found {type(scores).__name__} under {name!r}", code="E-TYPE")
        scores_by_model[str(name)] = scores
    return scores_by_model
