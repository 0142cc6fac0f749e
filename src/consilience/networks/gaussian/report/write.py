"""The page of fused Bayesian networks, one HTML file, from the networks or their files, and checks of what it shows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from consilience.files.atomic import write_bytes
from consilience.files.safetensors_file import SafetensorsFile
from consilience.networks.files import NetworkFile
from consilience.networks.gaussian.file_format import BAYESIAN_FILES
from consilience.networks.gaussian.gaussian_arrays import gaussian_arrays, gaussian_symmetry
from consilience.networks.gaussian.predictive import PredictiveScores
from consilience.networks.gaussian.report import sections
from consilience.networks.gaussian.report.content import BayesianContent, bayesian_content
from consilience.networks.report import sections as network_sections
from consilience.networks.report.content import ShownNetworks
from consilience.networks.report.landscape_sections import around_networks, between_networks
from consilience.networks.report.page import by_name, checked_content_of, render_network


def read_gaussian(path: SafetensorsFile) -> NetworkFile:
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
    """Write the report to `path`, whole or not at all: one HTML file without scripts that fetches nothing."""
    page = render_network(content, SECTIONS, ("report.css", "network.css", "bayesian.css"))
    write_bytes(path, page.encode("utf-8"))


def bayesian_content_of(
    shown: ShownNetworks, *, predictions: Mapping[str, PredictiveScores] | None = None, **comparisons: Any
) -> BayesianContent:
    """Return the content of the page, what is shown with it checked.

    `comparisons` are as for `checked_content_of` of networks; `predictions` what ``consilience.predictive_scores``
    gave, by model, in the order to show.
    """
    expected = "expected what consilience.predictive_scores returns, by name of the model, found"
    checked = by_name(predictions, PredictiveScores, "predictions", expected, "write {'fused': ...}", "E-TYPE")
    return bayesian_content(checked_content_of(shown, **comparisons), shown, predictions=checked)
