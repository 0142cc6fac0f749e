"""Inspection of files of Bayesian networks, from headers alone."""

from __future__ import annotations

from consilience.checks import Json
from consilience.core.inspection import Row, listed, plain_words, provenance_rows
from consilience.core.kind import Inspection
from consilience.drawing.words import format_count
from consilience.files.safetensors_file import SafetensorsFile
from consilience.networks.gaussian.file_format import BayesianSummary, read_bayesian_summary
from consilience.networks.inspect import network_people_rows, symmetry_document, symmetry_rows


def inspect_bayesian(file: SafetensorsFile) -> Inspection:
    """Return the inspection of a Bayesian network's file, from its header."""
    summary = read_bayesian_summary(file)
    made = summary.header.provenance is not None
    plain = plain_words(
        f"a {'fused ' * made}Bayesian network: a mean and a variance for each of"
        f" {format_count(summary.weights, 'parameter')}",
        summary.header.n_observations,
        "Bayesian networks of the same layers, whose units may differ in number and order",
        made,
        loaded_by="`consilience.load(FUSED)`",
    )
    return Inspection(_document(summary), [*_rows(file, summary), *network_people_rows()], plain)


def _document(summary: BayesianSummary) -> dict[str, Json]:
    header = summary.header
    document = {"symmetry": None, "proved": False} if summary.symmetry is None else symmetry_document(summary.symmetry)
    return {
        "kind": "bayesian",
        "arrays": {
            name: {"shape": list(s), "mean": summary.mean_dtypes[name], "variance": summary.variance_dtypes[name]}
            for name, s in summary.shapes.items()
        },
        "parameters": summary.weights,
        "units": None if summary.symmetry is None else summary.units,
        "classes": header.classes,
        "prior_variances": header.prior_variances,
        "n_observations": header.n_observations,
        "provenance": header.provenance,
        "library_version": header.library_version,
        **document,
    }


def _rows(file: SafetensorsFile, summary: BayesianSummary) -> list[Row]:
    """Return the rows of the inspection: names and texts."""
    header = summary.header
    dtypes = sorted({*summary.mean_dtypes.values(), *summary.variance_dtypes.values()})
    size = f"{summary.weights:,} in {format_count(len(summary.shapes), 'array')} of {', '.join(dtypes)}"
    classes = header.classes
    rows = [
        ("file", str(file)),
        ("format", f"{header.format} {header.format_version} (consilience {header.library_version})"),
        ("parameters", f"{size}, each with a mean and a variance"),
        ("arrays", listed([f"{name} {list(shape)}" for name, shape in summary.shapes.items()])),
        ("prior", _format_prior(header.prior_variances)),
        (
            "trained on",
            "not stated" if header.n_observations is None else f"{header.n_observations:,.10g} observations",
        ),
        ("classes", "not stated" if classes is None else f"{len(classes)}: {listed(classes)}" if classes else "none"),
    ]
    if summary.symmetry is None:
        rows.append(("groups", "not stated; give a symmetry or a module to fuse it"))
    else:
        rows += symmetry_rows(summary.symmetry, summary.units)
    if header.provenance is not None:
        rows += provenance_rows(header.provenance)
    return rows


def _format_prior(variances: dict[str, float] | None) -> str:
    """Return prior variances by parameter as text: one number where all are equal."""
    if variances is None:
        return "not stated"
    if len(set(variances.values())) == 1:
        return f"variance {next(iter(variances.values())):g}"
    return "variance " + listed([f"{value:g} of {name}" for name, value in variances.items()])
