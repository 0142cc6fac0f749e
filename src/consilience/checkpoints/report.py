"""The report of a merge as one HTML file: changes of the base by layer, sign conflicts, what went in, its recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup

from consilience.checkpoints.card import FORMAT, NOT_COMPARED, noun_of
from consilience.checkpoints.changes import is_far, limit_of, sentences
from consilience.checkpoints.folder import read_config
from consilience.checkpoints.output import PROVENANCE, provenance_path
from consilience.core.page_blocks import digest_column, what_to_know
from consilience.drawing.axes import HALF_WIDTH, Axes
from consilience.drawing.blocks import (
    Block,
    BlockGroup,
    Column,
    Facts,
    Figure,
    Heading,
    Paragraph,
    Section,
    Table,
    text_column,
)
from consilience.drawing.html import Page
from consilience.drawing.svg import integer_ticks, text
from consilience.drawing.words import format_count
from consilience.errors import FileFormatError
from consilience.files.atomic import write_bytes

_MAX_DOTS = 80
"""Layers up to which each has a dot, as in other curves of reports. Chosen by eye."""


def write_page(path: Path, record: Mapping[str, Any]) -> None:
    """Write the report of a merge, whole or not at all; `record` is its provenance."""
    write_bytes(path, render(record).encode("utf-8"))


def record_at(output: Path) -> Path | None:
    """Return the record of a merge in its folder or next to its single file; None where there is none."""
    record = output / PROVENANCE if output.is_dir() else provenance_path(output)
    return record if record.is_file() else None


def write_page_of(path: Path, record: Path) -> None:
    """Write the report of a merge by its record in a file, which may be anybody's."""
    document = read_config(record.parent, record.name)
    try:
        page = render(document) if document.get("format") == FORMAT else None
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
        page = None
    if page is None:
        raise FileFormatError(record, "is not as a merge writes it", "merge again")
    write_bytes(path, page.encode("utf-8"))


def render(record: Mapping[str, Any]) -> str:
    """Return the report as HTML; the same record gives the same text."""
    models = [one for one in record["inputs"] if one["role"] == "model"]
    changes = record["details"].get("changes") or {}
    lines = [f"{sentence[:1].upper()}{sentence[1:]}." for sentence in sentences(changes)]
    other = [note for note in record["notes"] if note not in sentences(changes)]
    return Page(
        "Merge report",
        (format_count(len(models), noun_of(record)), f"→ one, by {record['recipe']['method']}"),
        [
            Paragraph(NOT_COMPARED, "status open"),
            *(Paragraph(sentence, "status act" if is_far(changes) else "") for sentence in lines),
            what_to_know(other),
        ],
        [_changes(changes), _what_went_in(record["inputs"]), _how_it_was_made(record)],
        "One file: no scripts, nothing fetched, no weights.",
    ).render()


def _changes(changes: Mapping[str, Any]) -> Section | None:
    """Return norms of changes, and by layer how far the merge goes and where signs disagree."""
    if not changes:
        return None
    # Sorted here, since a record that was read from its file has its names in the order of the alphabet.
    norms = [(f"change of {name}", norm) for name, norm in sorted(changes["models"].items())]
    furthest = sorted(changes["furthest"].items(), key=lambda one: (-one[1], one[0]))
    norms += [("change of the merge", changes["merge"])]
    norms += [("base", changes["base"])] if changes["base"] else []  # of adapters it is zero
    cosine, conflicts = changes.get("cosine"), changes.get("conflicts")
    blocks: list[Block] = [
        Table("Norms", norms, [text_column("Vector", lambda one: one[0]), Column("Norm", lambda one: one[1])], "model"),
        Facts({
            "Ratio of the merge to the largest": f"{changes['ratio']:.2f}" if changes.get("ratio") else None,
            "Mean cosine of changes": None if cosine is None else f"{cosine:.3f}",
            "Sign conflicts": None if conflicts is None else f"{100 * conflicts:.1f} % of entries that several changed",
            "Largest ratios": ", ".join(f"{name} ({value:.2f})" for name, value in furthest),
        }),
    ]  # fmt: skip
    towers: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
    for name, layer in changes["layers"].items():
        stem, _, number = name.rpartition(".")
        towers.setdefault(stem, []).append((int(number), layer))
    for stem, layers in sorted(towers.items()):
        layers.sort(key=lambda layer: layer[0])
        if len(layers) > 1:
            blocks += [Heading(stem)] if len(towers) > 1 else []
            blocks.append(
                BlockGroup([_ratios(layers, limit_of(changes), stem), _conflicts(layers, stem, len(changes["models"]))])
            )
    return Section("changes", "Changes of the base", blocks)


def _ratios(layers: Sequence[tuple[int, Mapping[str, Any]]], limit: float, stem: str) -> Figure:
    """Return the norm of the merge's change over the largest of a model, by layer, with the limit of the alarm."""
    points = [(number, layer["ratio"]) for number, layer in layers if layer["ratio"] is not None]
    values = [value for _, value in points]
    alt = (
        f"The norm of the merge's change over the largest fine-tune's, by layer: from {min(values, default=0):.2f} to"
        f" {max(values, default=0):.2f}; the limit of the alarm is {limit:g}."
    )
    axes, parts = _axes(layers, 1.08 * max([limit, *values]), "norm of change / largest fine-tune's")
    parts += _reference(axes, layers, points, limit, f"limit {limit:g}")
    return Figure(axes.drawing([*parts, *_curve(axes, points)], alt), f"Ratios by layer {stem}".strip(),
                  "Beyond the limit most merges of fine-tunes were worse than their start.")  # fmt: skip


def _conflicts(layers: Sequence[tuple[int, Mapping[str, Any]]], stem: str, n_models: int) -> Figure | None:
    """Return the share of entries of several changes whose signs disagree, by layer; None where nowhere several are."""
    points = [(number, 100 * layer["conflicts"]) for number, layer in layers if layer["conflicts"] is not None]
    if not points:
        return None
    values, expected = [value for _, value in points], 100 * (1 - 2.0 ** (1 - n_models))
    alt = (
        f"The share of entries with both signs, by layer: from {min(values):.1f} to {max(values):.1f} percent; of"
        f" independent signs {expected:.1f} percent."
    )
    axes, parts = _axes(layers, 1.12 * max([expected, *values]), "sign conflicts, %")
    parts += _reference(axes, layers, points, expected, "independent signs")
    return Figure(axes.drawing([*parts, *_curve(axes, points)], alt), f"Sign conflicts by layer {stem}".strip(),
                  "Of entries that several models changed.")  # fmt: skip


def _axes(layers: Sequence[tuple[int, Any]], top: float, name: str) -> tuple[Axes, list[Markup]]:
    """Return axes over layers and from 0 to `top`, and their ticks and names."""
    first, last = layers[0][0], layers[-1][0]
    axes = Axes.over((first, last), (0.0, top), 194.0, HALF_WIDTH, (52.0, 10.0), (10.0, 10.0))
    marks = integer_ticks(first, last, 6)
    return axes, axes.names("layer", name) + axes.y_ticks() + axes.x_labels(marks, [str(mark) for mark in marks])


def _reference(
    axes: Axes, layers: Sequence[tuple[int, Any]], points: Sequence[tuple[float, float]], value: float, name: str
) -> list[Markup]:
    """Return a line at a value, with its name at that end, and on that side, which is furthest from the points."""
    length = 7.0 * len(name)  # estimated, since no font can be measured here

    def distance(place: tuple[str, float]) -> float:
        side, shift = place
        y = axes.y(value) + shift - 4.0
        near = [
            abs(axes.y(b) - y)
            for a, b in points
            if (axes.x(a) > axes.right - length if side == "end" else axes.x(a) < axes.left + length)
        ]
        return min(near, default=axes.bottom)

    side, shift = max((("end", -6.0), ("start", -6.0), ("end", 16.0), ("start", 16.0)), key=distance)
    x = axes.right - 4 if side == "end" else axes.left + 4
    ends = [(layers[0][0], value), (layers[-1][0], value)]
    return [axes.curve(ends, "chosen"), text(x, axes.y(value) + shift, name, "tick", side)]


def _curve(axes: Axes, points: Sequence[tuple[float, float]]) -> list[Markup]:
    dots = axes.dots(points, 3, "point") if len(points) <= _MAX_DOTS else []
    return [axes.curve(points, "curve"), *dots]


def _what_went_in(inputs: Sequence[Mapping[str, Any]]) -> Section:
    """Return the checkpoints with their files."""
    files = [
        _File(one["role"], one["name"], file["name"], file["bytes"], file["sha256"])
        for one in inputs
        for file in one["files"]
    ]
    columns = [
        text_column("Role", lambda file: file.role),
        text_column("Checkpoint", lambda file: file.checkpoint),
        text_column("File", lambda file: file.name),
        Column("Bytes", lambda file: file.nbytes, digits=0),
        digest_column(files),
    ]
    return Section("in", "What went in", [Table("Files", files, columns, "file")])


@dataclass(frozen=True)
class _File:
    """A file of a checkpoint."""

    role: str
    checkpoint: str
    name: str
    nbytes: int
    sha256: str


def _how_it_was_made(record: Mapping[str, Any]) -> Section:
    """Return method and options, and versions."""
    recipe = record["recipe"]
    options = {name: yaml.safe_dump(value, default_flow_style=True, width=100).removesuffix("\n...\n").strip()
               for name, value in sorted(recipe.items()) if name not in ("method", "tensors")}  # fmt: skip
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    if (size := recipe.get("shard_size")) is not None:
        options["shard_size"] = f"{size:,} bytes"
    rules = format_count(len(recipe["tensors"]), "rule") if recipe.get("tensors") else None
    facts = {"method": recipe["method"], **options, "rules for tensors": rules, "versions": versions}
    return Section("made", "How it was made", [Facts(facts)])
