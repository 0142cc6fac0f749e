"""Inspection of adapter files: what is inside, from the header alone, and what it tells about people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from consilience.checkpoints.lora.factors import read_factors
from consilience.checkpoints.lora.files import open_adapter_at, read_adapter_header
from consilience.checkpoints.lora.fusion import TELLS
from consilience.checkpoints.lora.plan import adapter_problems
from consilience.core.inspection import Row, listed, plain_words, provenance_rows
from consilience.core.kind import Inspection
from consilience.errors import InputError
from consilience.files.safetensors_file import SafetensorsFile


def inspect_adapter(file: SafetensorsFile) -> Inspection:
    """Return what the header of an adapter file says."""
    header = read_adapter_header(file)
    form = f"{header.format} {header.format_version} (consilience {header.library_version})"
    made = [] if header.provenance is None else provenance_rows(header.provenance.model_dump())
    found = _inspection(file.path, str(file), form, header.n_observations, made)
    return replace(found, document={"header": header.model_dump(), **found.document})


def inspect_foreign_adapter(path: Path) -> Inspection:
    """Return what the header of an adapter says that another program wrote, in a folder or a file."""
    return _inspection(path, str(path), "of another program", None, [])


def _inspection(path: Path, label: str, form: str, n_observations: float | None, made: Sequence[Row]) -> Inspection:
    """Return what an adapter is by its tensors; `form` is its format, `made` how it was fused."""
    checkpoint = open_adapter_at(path)
    adapter = read_factors(checkpoint)
    if problems := adapter_problems(adapter):
        raise InputError(problem.renamed(path, label) for problem in problems)
    shapes = {name: list(stored.shape) for name, (_, stored) in checkpoint.tensors.items()}
    ranks = Counter(adapter.rank(module) for module in adapter.factors)
    base = checkpoint.config.get("base_model_name_or_path")
    rows: list[Row] = [
        ("file", label),
        ("format", form),
        ("adapter", f"in the convention of {adapter.convention}"),
        ("modules", listed(list(adapter.factors))),
        ("ranks", ", ".join(f"{rank} ({count})" for rank, count in sorted(ranks.items()))),
    ]
    rows += [("base", str(base))] if base else []
    rows += [("whole", listed(list(adapter.others)))] if adapter.others else []
    rows += [] if n_observations is None else [("observations", f"{n_observations:,.0f}")]
    rows += [("size", f"{checkpoint.nbytes:,} bytes"), *made]
    kinds = ("factors", "whole", "memory", "differences", "protection")
    rows += [("What this file tells about people", ""), *zip(kinds, TELLS, strict=True)]
    plain = plain_words(
        f"{'a fused' if made else 'a'} LoRA adapter of {len(adapter.factors)} modules",
        n_observations,
        "adapters of the same base from other sites",
        bool(made),
        following="put it into its base with `consilience merge BASE+FILE -o OUT`" if made else None,
    )
    return Inspection({"shapes": shapes}, rows, plain)
