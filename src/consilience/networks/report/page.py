"""The report of a fusion of networks as one HTML file, from the fusion or from files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from consilience.core.page_blocks import how_it_was_made, in_short, status, verdict
from consilience.core.provenance import read_inputs_of
from consilience.core.verdict import SIDE_BY_SIDE
from consilience.drawing.blocks import Section
from consilience.drawing.html import Page
from consilience.drawing.words import format_count, shorten
from consilience.errors import FileFormatError, InputError, Problem
from consilience.files.atomic import write_bytes
from consilience.files.safetensors_file import SafetensorsFile, as_file
from consilience.networks.files import NetworkFile, read_weights
from consilience.networks.network import Network
from consilience.networks.report import sections
from consilience.networks.report.content import NetworkContent, ShownNetworks, content_of, provenance_of
from consilience.networks.report.landscape_sections import around_networks, between_networks

if TYPE_CHECKING:
    from consilience.networks.landscape.barrier import Barrier
    from consilience.networks.landscape.plane import Plane

SECTIONS = (
    sections.what_was_chosen,
    sections.what_went_in,
    sections.what_data_say,
    sections.what_came_out,
    sections.how_good_it_is,
    sections.how_well_units_match,
    sections.who_is_who,
    between_networks,
    around_networks,
    sections.how_it_was_found,
)
"""The sections of the page but for the last, each a function of the content; one without blocks is left out."""
OF_MATCHING = (sections.how_well_units_match, sections.who_is_who, sections.how_it_was_found)
"""Sections about how networks were matched and fused."""


def write_network_content(path: Path, content: NetworkContent) -> None:
    """Write the report to `path`, whole or not at all; raise InputError when the path cannot be written."""
    write_bytes(path, render_network(content).encode("utf-8"))


def render_network(
    content: NetworkContent,
    parts: Sequence[Callable[[Any], Section | None]] = SECTIONS,
    styles: tuple[str, ...] = ("report.css", "network.css"),
) -> str:
    """Return the report as HTML; the same content gives the same text.

    `parts` are the sections, each a function of the content; `styles` the file names of the style sheets.
    """
    size = SIDE_BY_SIDE if content.side_by_side else f"one of {format_count(content.parameters, 'parameter')}"
    if content.single_site is not None:  # what says how networks were matched tells nothing of it
        size = f"not fused: the network of {shorten(content.single_site)}"
        parts = [part for part in parts if part not in OF_MATCHING]
    parameters = format_count(content.parameters, "parameter")
    came_out = SIDE_BY_SIDE if content.side_by_side else f"one network of {parameters}"
    return Page(
        "Fusion report",
        (format_count(len(content.sites), content.noun), f"→ {size}"),
        [
            in_short(content.verdict, len(content.sites), came_out),
            verdict(content.verdict),
            status(content.findings) if content.single_site is None else None,
            *sections.warnings(content),
        ],
        [*(part(content) for part in parts), how_it_was_made(content, {})],
        f"One file: no scripts, nothing fetched, parameters{content.beside} only.",
        styles,
    ).render()


def checked_content_of(
    shown: ShownNetworks,
    barriers: Mapping[str, Barrier] | None = None,
    planes: Mapping[str, Plane] | None = None,
    scores: Mapping[str, Mapping[str, float]] | None = None,
) -> NetworkContent:
    """Return the content of the page, what is shown with it checked.

    Barriers by name, such as "as they are" and "aligned", are drawn on common axes; scores are numbers by name, by
    model in the order to show, such as ``{"model 0": {"accuracy": 0.98}}``. Raises InputError for barriers, planes or
    scores that are something else.
    """
    return content_of(shown, _comparisons(barriers, "barriers"), _comparisons(planes, "planes"), _scores(scores))


def _comparisons(given: Mapping[str, Any] | None, argument: Literal["barriers", "planes"]) -> dict[str, Any]:
    """Return barriers or planes by name, checked."""
    if not given:
        return {}
    from consilience.networks.landscape.barrier import Barrier  # here, since they need torch
    from consilience.networks.landscape.plane import Plane

    kind = Barrier if argument == "barriers" else Plane
    expected = f"expected {argument} by name, as consilience.{kind.__name__.lower()} returns them, found"
    return by_name(given, kind, argument, expected, "write {'aligned': ...}", "E-NUMBER")


def by_name(given: Any, kind: type, argument: str, expected: str, remedy: str, code: str) -> dict[str, Any]:
    """Return what was given by name, each of a kind; raise InputError, naming the argument, for anything else."""
    if not given:
        return {}
    if not isinstance(given, Mapping):
        raise InputError(argument, f"{expected} {type(given).__name__}", remedy, code)
    for name, one in given.items():
        if not isinstance(one, kind):
            raise InputError(argument, f"{expected} {type(one).__name__} under {name!r}", code=code)
    return {str(name): one for name, one in given.items()}


def _scores(scores: Mapping[str, Mapping[str, float]] | None) -> dict[str, dict[str, float]]:
    if not scores:
        return {}
    expected = Problem(
        "scores", "expected numbers by name for every model, such as {'fused': {'accuracy': 0.98}}", code="E-TYPE"
    )
    if not isinstance(scores, Mapping):
        raise InputError("", f"{expected}, found {type(scores).__name__}", code="E-TYPE")
    scores_by_model: dict[str, dict[str, float]] = {}
    for model, model_scores in scores.items():
        if not isinstance(model_scores, Mapping):
            raise InputError("", f"{expected}, found {type(model_scores).__name__} under {model!r}", code="E-TYPE")
        try:
            scores_by_model[str(model)] = {str(name): float(value) for name, value in model_scores.items()}
        except (TypeError, ValueError) as error:
            raise InputError(f"{expected}; under {model!r}: {error}") from error
    return scores_by_model


def shown_networks_of_files(
    fused: Path | SafetensorsFile,
    sites: Sequence[Path | SafetensorsFile] = (),
    read: Callable[[SafetensorsFile], NetworkFile] = read_weights,
) -> ShownNetworks:
    """Return a fused network file, and those of its sites, as its page takes them.

    A fused file has the provenance, not the matching: distances after matching and couplings are known to the fusion
    only. Files of networks that it was made from come in any order, and not necessarily all; each is known by its
    SHA-256. With all of them the page also shows how far apart they are as they stand. `read` reads one. Raises
    FileFormatError for files that cannot be read, or a first one that no fusion wrote, and InputError, listing the
    sites that the fused file was not made from.
    """
    fused = as_file(fused)
    file = read(fused)
    if file.provenance is None:
        raise FileFormatError(fused, "does not say how it was made, so there is nothing to report", "give a fused file")
    provenance = provenance_of(fused.label, file.provenance)
    digests = [record.sha256 for record in provenance.inputs]
    contents = read_inputs_of(fused, digests, [as_file(site) for site in sites], lambda site: (read(site), str(site)))
    symmetry = file.symmetry
    return ShownNetworks(
        fused.label,
        file.arrays,
        symmetry,
        file.provenance,
        [
            None
            if content is None
            else content[0]
            if symmetry is None
            else Network(content[0].arrays, symmetry, name=content[1])
            for content in contents
        ],
        provenance.result.get("repaired") is None and any(key.endswith("running_var") for key in file.arrays),
        is_from_file=True,
    )
