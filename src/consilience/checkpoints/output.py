"""Output of a merge: configuration and tokenizer, the index of shards, and checks of the destination."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from consilience.checkpoints.card import config_text, short_name
from consilience.checkpoints.folder import INDEX, Checkpoint, companion_files
from consilience.checkpoints.journal import PROVENANCE, PartialOutput
from consilience.checkpoints.numbers import FLOAT_TYPES
from consilience.checkpoints.request import SINGLE_FILE_SUFFIX, PreparedMerge
from consilience.errors import InputError, OptionError
from consilience.files.atomic import write_bytes
from consilience.files.quantisation import QUANTISATION_FILES, without_quantisation

_MAX_LISTED = 8
"""Files that a note names. Chosen by hand."""


def copy_companions(prepared: PreparedMerge, partial: PartialOutput) -> list[str]:
    """Copy configuration and tokenizer of the first model and write the index; return notes on files not copied."""
    request, plan = prepared.request, prepared.plan
    first = prepared.inputs.models[0]
    dtype = None if request.dtype is None else FLOAT_TYPES[request.dtype].name
    config = without_quantisation(first.config)
    is_changed = dtype is not None or config != first.config
    notes = copy_companions_of(first, partial, {*QUANTISATION_FILES, *({"config.json"} if is_changed else ())})
    if is_changed and first.folder is not None and (first.folder / "config.json").is_file():
        write_bytes(partial.folder / "config.json", config_text(config, dtype))
    if len(plan.shards) > 1:
        index = {
            "metadata": {"total_size": sum(task.nbytes for shard in plan.shards for task in shard.tasks)},
            "weight_map": {task.name: shard.name for shard in plan.shards for task in shard.tasks},
        }
        write_bytes(partial.folder / INDEX, f"{as_json(index)}\n".encode())
    return notes


def copy_companions_of(first: Checkpoint, partial: PartialOutput, written: Collection[str]) -> list[str]:
    """Copy the files next to the weights of a checkpoint; return notes on files not copied.

    `written` names files that the caller writes itself.
    """
    if first.folder is None:
        return []
    copied, refused = companion_files(first.folder)
    for path in copied:
        if path.name not in (PROVENANCE, *written):
            write_bytes(partial.folder / path.name, path.read_bytes())
    if not refused:
        return []
    listed = ", ".join(refused[:_MAX_LISTED])
    return [f"not copied from {short_name(first)}: {listed} (programs, large files, or links)"]


def refuse_full_disk(output: Path, size: int) -> None:
    """Raise when the disk has no room for an output, or its folder cannot be written to."""
    folder = output.parent
    if not os.access(folder, os.W_OK):
        raise InputError(output, f"cannot be written: nothing may be written to {folder}", code="E-OUTPUT")
    if size > (free := shutil.disk_usage(folder).free):
        raise InputError(output, f"needs {size} bytes, and {folder} has {free} left", "make room", "E-OUTPUT")


def refuse_output(output: Path, inputs: Sequence[Path], overwrite: bool) -> None:
    """Raise when an output exists and may not be replaced, is an input, or cannot be written.

    It is refused too where `overwrite` would remove what no merge wrote.
    """
    if not output.parent.is_dir():
        raise InputError(output, f"cannot be written: there is no folder {output.parent}", code="E-OUTPUT")
    target = output.resolve()
    if any(_is_in_one(target, path) for path in inputs):
        raise InputError(output, "is one of the inputs, or lies in one", "give another output", "E-OUTPUT")
    if output.is_symlink():
        raise InputError(output, "is a link", "give the path of what it leads to", "E-OUTPUT")
    if output.exists():
        _refuse_to_replace(output, overwrite)


def _refuse_to_replace(output: Path, overwrite: bool) -> None:
    """Raise for an output that exists and may not be replaced; see `refuse_output`."""
    single = output.suffix == SINGLE_FILE_SUFFIX
    if single and not output.is_file():
        raise InputError(output, "is no ordinary file", code="E-OUTPUT")
    if not single and not output.is_dir():
        raise InputError(output, "exists and is no folder", "give another output", "E-OUTPUT")
    entries = [] if single else list(output.iterdir())
    if not overwrite and (single or entries):
        remedy = "give another output, or allow it to be overwritten (`overwrite=True`)"
        raise InputError(output, "exists" if single else "is not empty", remedy, "E-OUTPUT")
    if entries and not _is_of_checkpoint(entries):
        raise OptionError(output, "is no folder of a checkpoint alone, so it is not overwritten", "remove it yourself")


def _is_in_one(target: Path, path: Path) -> bool:
    """Return whether an output is an input, holds it, or lies in it."""
    source = path.resolve()
    return target == source or target in source.parents or (path.is_dir() and source in target.parents)


def _is_of_checkpoint(entries: Sequence[Path]) -> bool:
    """Return whether what lies in a folder may be a checkpoint alone: files, weights among them."""
    return not any(entry.is_dir() for entry in entries) and any(entry.suffix == ".safetensors" for entry in entries)


def as_json(record: Mapping[str, Any]) -> str:
    """Return JSON for people to read, keys sorted."""
    return json.dumps(record, indent=1, sort_keys=True, allow_nan=False)
