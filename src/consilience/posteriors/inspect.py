"""Inspection of posterior files, from headers alone."""

from __future__ import annotations

from collections.abc import Mapping

from consilience.core.inspection import listed
from consilience.core.kind import Inspection
from consilience.files.safetensors_file import SafetensorsFile
from consilience.posteriors.files import read_summary


def inspect_posterior(file: SafetensorsFile) -> Inspection:
    """Return what the header of a posterior file says."""
    summary = read_summary(file)
    shapes = {name: list(shape) for name, shape in summary.shapes.items()}
    document = {"header": summary.header.model_dump(), "shapes": shapes}
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
        rows.append(("features", listed(names)))
    rows.append(("tensors", ", ".join(f"{name} {list(shape)}" for name, shape in sorted(summary.shapes.items()))))
    if header.provenance:
        made = header.provenance
        rows.append(("fused by", f"{made.method} {made.options} seed {made.seed}"))
        if made.verdict and made.verdict.get("text"):
            rows.append(("verdict", str(made.verdict["text"])))
        average = (made.result or {}).get("average")
        if isinstance(average, Mapping):
            reason = f": {average['reason']}" if average.get("reason") else ""
            rows.append(("average", f"{average.get('name')}{reason}"))
        rows += [
            ("from", f"{one['name']}: {one['components']} components, sha256 {one.get('sha256')}")
            for one in made.inputs
        ]
    return Inspection(document, rows)
