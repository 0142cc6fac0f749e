"""The report of a fusion of Bayesian networks as one HTML file."""

from __future__ import annotations

from pathlib import Path

from consilience.bayesian.report import sections
from consilience.bayesian.report.content import BayesianContent
from consilience.files.atomic import write_bytes
from consilience.networks.report import sections as network_sections
from consilience.networks.report.landscape_sections import around_networks, between_networks
from consilience.networks.report.page import render_network

SECTIONS = (
    network_sections.what_was_chosen,
    network_sections.what_went_in,
    network_sections.what_data_say,
    network_sections.what_came_out,
    network_sections.how_good_it_is,
    sections.what_it_predicts,
    sections.what_it_is_sure_of,
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
