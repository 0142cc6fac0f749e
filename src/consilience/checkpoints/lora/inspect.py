"""Inspection of adapter files: what is inside, from the header alone, and what it tells about people."""

from __future__ import annotations

from collections import Counter

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
    checkpoint = open_adapter_at(file.path)
    adapter = read_factors(checkpoint)
    if problems := adapter_problems(adapter):
        raise InputError(problem.renamed(file.path, file) for problem in problems)
    shapes = {name: list(stored.shape) for name, (_, stored) in checkpoint.tensors.items()}
    ranks = Counter(adapter.rank(module) for module in adapter.factors)
    base = checkpoint.config.get("base_model_name_or_path")
    rows: list[Row] = [
        ("file", str(file)),
        ("format", f"{header.format} {header.format_version} (consilience {header.library_version})"),
        ("adapter", f"in the convention of {adapter.convention}"),
        ("modules", listed(list(adapter.factors))),
        ("ranks", ", ".join(f"{rank} ({count})" for rank, count in sorted(ranks.items()))),
    ]
    rows += [("base", str(base))] if base else []
    rows += [("whole", listed(list(adapter.others)))] if adapter.others else []
    if header.n_observations is not None:
        rows.append(("observations", f"{header.n_observations:,.0f}"))
    rows.append(("size", f"{checkpoint.nbytes:,} bytes"))
    if header.provenance is not None:
        rows += provenance_rows(header.provenance.model_dump())
    kinds = ("factors", "whole", "memory", "differences", "protection")
    rows += [("What this file tells about people", ""), *zip(kinds, TELLS, strict=True)]
    is_fused = header.provenance is not None
    plain = plain_words(
        f"{'a fused' if is_fused else 'a'} LoRA adapter of {len(adapter.factors)} modules",
        header.n_observations,
        "adapters of the same base from other sites",
        is_fused,
        following="put it into its base with `consilience merge BASE+FILE -o OUT`" if is_fused else None,
    )
    return Inspection({"header": header.model_dump(), "shapes": shapes}, rows, plain)
