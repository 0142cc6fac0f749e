"""The command ``inspect``: what is inside a file, from its header alone."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import click

from consilience.bayesian.file_format import BayesianSummary, read_bayesian_summary
from consilience.drawing.words import format_count, printable
from consilience.errors import InputError
from consilience.networks.files import NetworkSummary, file_kind, read_network_summary, read_symmetry
from consilience.networks.fisher.files import FisherSummary, read_fisher_summary
from consilience.networks.methods.weight_matching.state import STATISTICS
from consilience.networks.symmetry.symmetry import Symmetry, symmetry_to_json
from consilience.posteriors.files import FileSummary, read_summary
from consilience.posteriors.sharded.file import SUFFIXES, is_shard, read_shard_summary
from consilience.posteriors.sharded.packed_sites import ShardSummary

_FEW = 8
"""Groups, arrays and columns that are named; more are counted."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(file: Path, as_json: bool) -> None:
    """Say what is inside FILE: a posterior, network (Bayesian too), checkpoint, symmetry or Fisher information."""
    document, text = _found(file)
    click.echo(json.dumps(document, indent=2, sort_keys=True) if as_json else text)


def _found(file: Path) -> tuple[dict[str, Any], str]:
    """Return what is said of a file, as JSON values and as text."""
    if _is_json(file):
        symmetry = read_symmetry(file)
        rows = [("file", str(file)), ("format", "consilience-symmetry"), *_rows_of_symmetry(symmetry)]
        return {"kind": "symmetry", **_json_of_symmetry(symmetry)}, _table(rows)
    if file.suffix == SUFFIXES["parquet"] or (file.is_file() and is_shard(file)):
        shard = read_shard_summary(file, str(file))
        return _json_of_shard(shard), _table(_rows_of_shard(file, shard))
    try:
        kind = file_kind(file)
    except InputError:  # said better by the reader of posteriors
        kind = "posterior"
    if kind == "posterior":
        summary = read_summary(file)
        shapes = {name: list(shape) for name, shape in summary.shapes.items()}
        return {"header": summary.header.model_dump(), "shapes": shapes}, _inspection(file, summary)
    if kind == "fisher":
        known = read_fisher_summary(file)
        said = {"kind": "fisher", "header": known.header.model_dump(), "rank": known.rank}
        return {**said, "shapes": {name: list(s) for name, s in known.shapes.items()}}, _table(
            _rows_of_fisher(file, known)
        )
    if kind == "bayesian":
        gaussian = read_bayesian_summary(file)
        return _json_of_bayesian(gaussian), _table(_rows_of_bayesian(file, gaussian))
    network = read_network_summary(file)
    return _json_of_network(network), _table(_rows_of_network(file, network))


def _json_of_shard(summary: ShardSummary) -> dict[str, Any]:
    kind = summary.kind
    return {
        "kind": "shard",
        "family": {"name": kind.family.name, **kind.family.config()},
        "sites": summary.n_sites,
        "components": summary.n_components,
        "source": dict(kind.source),
        "features": kind.features.to_json(),
        "attached": sorted(kind.attached),
    }


def _rows_of_shard(file: Path, summary: ShardSummary) -> list[tuple[str, str]]:
    said = _json_of_shard(summary)
    rows = [("file", str(file)), ("format", "consilience-shard"), ("family", str(summary.kind.family))]
    rows.append(("sites", str(summary.n_sites)))
    if summary.n_components is not None:
        rows.append(("components", str(summary.n_components)))
    if said["source"]:
        rows.append(("model", ", ".join(f"{key} {value}" for key, value in sorted(said["source"].items()))))
    if said["attached"]:
        rows.append(("attached", ", ".join(said["attached"])))
    return rows


def _is_json(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return stream.read(1) == b"{"
    except (OSError, ValueError):  # said by whoever reads it
        return False


def _json_of_symmetry(symmetry: Symmetry) -> dict[str, Any]:
    return {"proved": symmetry.proved, "symmetry": symmetry_to_json(symmetry)}


def _json_of_network(summary: NetworkSummary) -> dict[str, Any]:
    said = {"symmetry": None, "proved": False} if summary.symmetry is None else _json_of_symmetry(summary.symmetry)
    units = None if summary.symmetry is None else summary.symmetry.units(summary.shapes)
    return {
        "kind": summary.kind,
        "arrays": {n: {"shape": list(s), "dtype": summary.dtypes[n]} for n, s in summary.shapes.items()},
        "parameters": _parameters(summary),
        "units": units,
        "provenance": summary.provenance,
        "library_version": summary.library_version,
        **said,
    }


def _parameters(summary: NetworkSummary) -> int:
    """Return the number of parameters: real numbers but for statistics, tied ones once."""
    aliases = {} if summary.symmetry is None else summary.symmetry.aliases
    return sum(
        prod(shape)
        for name, shape in summary.shapes.items()
        if name not in aliases and "float" in summary.dtypes[name] and not name.endswith(STATISTICS)
    )


def _rows_of_network(file: Path, summary: NetworkSummary) -> list[tuple[str, str]]:
    """Return what is said of a network file or checkpoint, line by line."""
    version = "" if summary.library_version is None else f" (consilience {summary.library_version})"
    what = "consilience-network" if summary.kind == "network" else "a plain checkpoint: says nothing of its units"
    kinds = sorted(set(summary.dtypes.values()))
    shown = [f"{name} {list(shape)}" for name, shape in list(summary.shapes.items())[:_FEW]]
    rows = [
        ("file", str(file)),
        ("format", what + version),
        (
            "parameters",
            f"{_parameters(summary):,} in {format_count(len(summary.shapes), 'array')} of {', '.join(kinds)}",
        ),
        ("arrays", _some(shown, len(summary.shapes))),
    ]
    if summary.symmetry is not None:
        rows += _rows_of_symmetry(summary.symmetry, summary.symmetry.units(summary.shapes, str(file)))
    if summary.provenance is not None:
        rows += _rows_of_provenance(summary.provenance)
    return rows


def _rows_of_fisher(file: Path, summary: FisherSummary) -> list[tuple[str, str]]:
    """Return what is said of a file of Fisher information, line by line."""
    header = summary.header
    shown = [f"{name} {list(summary.shapes[f'residual/{name}'])}" for name in header.parameters]
    kind = f"diagonal and {format_count(summary.rank, 'factor')}" if summary.rank else "diagonal"
    of = "the published code's sums" if header.compat else f"{header.likelihood} likelihood"
    drawn = "exact" if header.samples is None else f"{format_count(header.samples, 'outcome')} drawn for each"
    return [
        ("file", str(file)),
        ("format", f"{header.format} {header.format_version} (consilience {header.library_version})"),
        ("information", f"{kind}; {of}, {drawn}"),
        ("observations", f"{_plain(header.observations)}, {header.seen} of them looked at"),
        ("prior", f"precision {_plain(header.prior_precision)}"),
        ("parameters", _some(shown)),
        ("network", f"sha256 {header.digest} of its parameters"),
    ]


def _json_of_bayesian(summary: BayesianSummary) -> dict[str, Any]:
    header = summary.header
    said = {"symmetry": None, "proved": False} if summary.symmetry is None else _json_of_symmetry(summary.symmetry)
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
        "provenance": header.provenance,
        "library_version": header.library_version,
        **said,
    }


def _rows_of_bayesian(file: Path, summary: BayesianSummary) -> list[tuple[str, str]]:
    """Return what is said of a Bayesian network's file, line by line."""
    header = summary.header
    kinds = sorted({*summary.mean_dtypes.values(), *summary.variance_dtypes.values()})
    size = f"{summary.weights:,} in {format_count(len(summary.shapes), 'array')} of {', '.join(kinds)}"
    classes = header.classes
    rows = [
        ("file", str(file)),
        ("format", f"{header.format} {header.format_version} (consilience {header.library_version})"),
        ("parameters", f"{size}, each with a mean and a variance"),
        ("arrays", _some([f"{name} {list(shape)}" for name, shape in summary.shapes.items()])),
        ("prior", _prior(header.prior_variances)),
        ("classes", "not told" if classes is None else f"{len(classes)}: {_some(classes)}" if classes else "none"),
    ]
    if summary.symmetry is None:
        rows.append(("groups", "not told; give a symmetry or a module to fuse it"))
    else:
        rows += _rows_of_symmetry(summary.symmetry, summary.units)
    if header.provenance is not None:
        rows += _rows_of_provenance(header.provenance)
    return rows


def _prior(variances: dict[str, float] | None) -> str:
    if variances is None:
        return "not told"
    if len(set(variances.values())) == 1:
        return f"variance {next(iter(variances.values())):g}"
    return "variance " + _some([f"{value:g} of {name}" for name, value in variances.items()])


def _plain(value: float | None) -> str:
    return "not told" if value is None else f"{value:g}"


def _rows_of_symmetry(symmetry: Symmetry, units: dict[str, int] | None = None) -> list[tuple[str, str]]:
    sizes = symmetry.groups if units is None else units
    rows = [
        ("groups", f"{len(sizes)}: " + _some([f"{name} {size}" for name, size in sizes.items()]) if sizes else "none")
    ]
    if sizes:
        rows.append(("proved", proof_of(symmetry)))
    if symmetry.aliases:
        rows.append(("tied", _some([f"{alias} is {name}" for alias, name in symmetry.aliases.items()])))
    return rows + [("note", note) for note in symmetry.notes]


def _rows_of_provenance(made: dict[str, Any]) -> list[tuple[str, str]]:
    """Return how a file came to be; provenance is any JSON object, so nothing of it is taken for granted."""
    rows = [("fused by", f"{made.get('method')} {made.get('options')} seed {made.get('seed')}")]
    result = made.get("result")
    if isinstance(result, dict) and result.get("repaired"):
        rows.append(("repaired", str(result["repaired"])))
    inputs = made.get("inputs")
    records = [one for one in inputs if isinstance(one, dict)] if isinstance(inputs, list) else []
    return rows + [
        ("from", f"{one.get('name')}: weight {one.get('weight')}, sha256 {one.get('sha256')}") for one in records
    ]


def proof_of(symmetry: Symmetry) -> str:
    """Return whether a symmetry is proved, in words."""
    if symmetry.proved and symmetry.proof is not None:
        return (
            f"yes: outputs differed by {symmetry.proof.deviation:.1e} at most, {symmetry.proof.trials} trials a group"
        )
    return (
        "no; `consilience symmetry` proves it" if symmetry.proof is None else "no: it was changed since it was proved"
    )


def _some(texts: list[str], count: int | None = None) -> str:
    total = len(texts) if count is None else count
    return ", ".join(texts[:_FEW]) + (f", ... ({total})" if total > _FEW else "")


def _table(rows: list[tuple[str, str]]) -> str:
    return "\n".join(f"{name + ':':12} {printable(value)}" for name, value in rows)


def _inspection(file: Path, summary: FileSummary) -> str:
    header = summary.header
    family = {key: value for key, value in header.family.items() if key != "name"}
    rows = [
        ("file", str(file)),
        ("format", f"{header.format} {header.format_version} (consilience {header.library_version})"),
        ("family", f"{header.family.get('name')} {family}"),
        ("components", str(next(iter(summary.shapes.get("natural", ())), 0))),
        ("model", ", ".join(f"{key} {value}" for key, value in header.source.items()) or "a posterior"),
    ]
    if header.counts:
        rows.append(("counts", f"smallest {min(header.counts):.4g}, largest {max(header.counts):.4g}"))
    names = header.features.names
    if names:
        rows.append(("features", ", ".join(names[:8]) + (f", ... ({len(names)})" if len(names) > 8 else "")))
    rows.append(("tensors", ", ".join(f"{name} {list(shape)}" for name, shape in sorted(summary.shapes.items()))))
    if header.provenance:
        made = header.provenance
        rows.append(("fused by", f"{made.method} {made.options} seed {made.seed}"))
        rows += [
            ("from", f"{one['name']}: {one['components']} components, sha256 {one.get('sha256')}")
            for one in made.inputs
        ]
    return _table(rows)
