"""The page of fused Bayesian networks, one HTML file, from the networks or their files, and checks of what it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consilience.errors import InputError, Problem
from consilience.files.atomic import write_bytes
from consilience.files.safetensors_file import SafetensorsFile
from consilience.networks.files import NetworkFile
from consilience.networks.gaussian.file_format import BAYESIAN_FILES
from consilience.networks.gaussian.gaussian_arrays import gaussian_arrays, gaussian_symmetry
from consilience.networks.gaussian.predictive_scores import PredictiveScores
from consilience.networks.gaussian.report import sections
from consilience.networks.gaussian.report.content import BayesianContent, bayesian_content
from consilience.networks.report import sections as network_sections
from consilience.networks.report.content import ShownNetworks
from consilience.networks.report.landscape_sections import around_networks, between_networks
from consilience.networks.report.page import checked_content_of, render_network, shown_networks_of_files

if TYPE_CHECKING:
    from consilience.networks.landscape.barrier import Barrier
    from consilience.networks.landscape.plane import Plane


def shown_bayesian_of_files(
    fused: Path | SafetensorsFile, sites: Sequence[Path | SafetensorsFile] = ()
) -> ShownNetworks:
    """Return a fused Bayesian network's file, and those of its sites, as its page takes them.

    Parameters and errors are those of `shown_networks_of_files`.
    """
    return shown_networks_of_files(fused, sites, _read_gaussian)


def _read_gaussian(path: SafetensorsFile) -> NetworkFile:
    """Return a file's means and standard deviations as one network."""
    bnn, provenance = BAYESIAN_FILES.read(path)
    symmetry = None if bnn.symmetry is None else gaussian_symmetry(bnn.symmetry, list(bnn.means))
    return NetworkFile(gaussian_arrays(bnn.means, bnn.variances), symmetry, provenance)


SECTIONS = (
    network_sections.what_was_chosen,
    network_sections.what_went_in,
    network_sections.what_data_say,
    network_sections.what_came_out,
    network_sections.how_good_it_is,
    sections.what_it_predicts,
    network_sections.how_well_units_match,
    network_sections.who_is_who,
    sections.how_many_sites_have_a_unit,
    sections.how_far_apart_posteriors_are,
    between_networks,
    around_networks,
    network_sections.how_it_was_found,
)
"""The sections of the page but for the last, each a function of the content; one without blocks is left out."""


def write_bayesian_content(path: Path, content: BayesianContent) -> None:
    """Write the report to `path`, whole or not at all."""
    write_bytes(path, render_bayesian(content).encode("utf-8"))


def render_bayesian(content: BayesianContent) -> str:
    """Return the report as HTML; the same content gives the same text."""
    return render_network(content, SECTIONS, ("report.css", "network.css", "bayesian.css"))


def write_bayesian_page(
    path: Path,
    shown: ShownNetworks,
    *,
    barriers: Mapping[str, Barrier] | None = None,
    planes: Mapping[str, Plane] | None = None,
    scores: Mapping[str, Mapping[str, float]] | None = None,
    predictions: Mapping[str, PredictiveScores] | None = None,
) -> None:
    """Write the report to `path`, whole or not at all: one HTML file without scripts that fetches nothing.

    `barriers`, `planes` and `scores` are as for `checked_content_of` of networks; `predictions` what
    ``consilience.predictive_scores`` gave, by model, in the order to show.
    """
    content = bayesian_content_of(shown, barriers=barriers, planes=planes, scores=scores, predictions=predictions)
    write_bayesian_content(path, content)


def bayesian_content_of(
    shown: ShownNetworks,
    *,
    predictions: Mapping[str, PredictiveScores] | None = None,
    **comparisons: Any,
) -> BayesianContent:
    """Return the content of the page, what is shown with it checked; parameters as for `write_bayesian_page`."""
    checked_predictions = _check_predictions(predictions)
    content = checked_content_of(shown, **comparisons)
    return bayesian_content(content, shown, predictions=checked_predictions)


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
