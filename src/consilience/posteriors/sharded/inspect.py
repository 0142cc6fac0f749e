"""Inspection of packed shards, from headers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from consilience.core.inspection import Row, plain_words
from consilience.core.kind import Inspection
from consilience.drawing.words import format_count
from consilience.files.safetensors_file import SafetensorsFile
from consilience.posteriors.sharded.file import read_shard_summary
from consilience.posteriors.sharded.header import ShardSummary


def inspect_shard(file: SafetensorsFile) -> Inspection:
    """Return what the header of a packed file says."""
    summary = read_shard_summary(file)
    plain = plain_words(
        f"a shard: the posteriors of {format_count(summary.n_sites, 'site')} in one file",
        None,
        "shards and posteriors of the same family and columns",
        following="fuse the folder of all shards: `consilience fuse FOLDER -o fused.safetensors`",
    )
    return Inspection(_document(summary), _rows(file.path, summary), plain)


def _document(summary: ShardSummary) -> dict[str, Any]:
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


def _rows(file: Path, summary: ShardSummary) -> list[Row]:
    document = _document(summary)
    rows = [("file", str(file)), ("format", "consilience-shard"), ("family", str(summary.kind.family))]
    rows.append(("sites", str(summary.n_sites)))
    if summary.n_components is not None:
        rows.append(("components", str(summary.n_components)))
    if document["source"]:
        rows.append(("model", ", ".join(f"{key} {value}" for key, value in sorted(document["source"].items()))))
    if document["attached"]:
        rows.append(("attached", ", ".join(document["attached"])))
    return rows
