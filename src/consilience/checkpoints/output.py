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
    """Copy configuration and tokenizer of the first model and write the index; return notes on files not copied.

    Parameters
    ----------
    prepared : PreparedMerge
        The merge.
    partial : PartialOutput
        The folder to write into.
    """
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

    Parameters
    ----------
    first : Checkpoint
        The checkpoint.
    partial : PartialOutput
        The folder to write into.
    written : collection of str
        Names of files that the caller writes itself.
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
    """Raise when the disk has no room for an output, or its folder cannot be written to.

    Parameters
    ----------
    output : Path
        The folder or file.
    size : int
        Bytes that will be written.

    Raises
    ------
    InputError
        With the bytes that are free.
    """
    folder = output.parent
    if not os.access(folder, os.W_OK):
        raise InputError(output, f"cannot be written: nothing may be written to {folder}", code="E-OUTPUT")
    if size > (free := shutil.disk_usage(folder).free):
        raise InputError(output, f"needs {size} bytes, and {folder} has {free} left", "make room", "E-OUTPUT")


def refuse_output(output: Path, inputs: Sequence[Path], overwrite: bool) -> None:
    """Raise when an output exists and may not be replaced, is an input, or cannot be written.

    Parameters
    ----------
    output : Path
        The folder or file.
    inputs : sequence of Path
        All checkpoints that are read.
    overwrite : bool
        Whether an output that exists may be replaced.

    Raises
    ------
    InputError
        With the reason and the remedy.
    OptionError
        When `overwrite` would remove what no merge wrote.
    """
    if not output.parent.is_dir():
        raise InputError(output, f"cannot be written: there is no folder {output.parent}", code="E-OUTPUT")
    single = output.suffix == SINGLE_FILE_SUFFIX
    target = output.resolve()
    for path in inputs:
        source = path.resolve()
        if target == source or target in source.parents or (path.is_dir() and source in target.parents):
            raise InputError(output, "is one of the inputs, or lies in one", "give another output", "E-OUTPUT")
    if output.is_symlink():
        raise InputError(output, "is a link", "give the path of what it leads to", "E-OUTPUT")
    if not output.exists():
        return
    if single:
        if not output.is_file():
            raise InputError(output, "is no ordinary file", code="E-OUTPUT")
        if not overwrite:
            raise InputError(
                output, "exists", "give another output, or allow it to be overwritten (`overwrite=True`)", "E-OUTPUT"
            )
        return
    if not output.is_dir():
        raise InputError(output, "exists and is no folder", "give another output", "E-OUTPUT")
    entries = list(output.iterdir())
    if not entries:
        return
    if not overwrite:
        raise InputError(
            output, "is not empty", "give another output, or allow it to be overwritten (`overwrite=True`)", "E-OUTPUT"
        )
    if any(entry.is_dir() for entry in entries) or not any(entry.suffix == ".safetensors" for entry in entries):
        raise OptionError(output, "is no folder of a checkpoint alone, so it is not overwritten", "remove it yourself")


def as_json(record: Mapping[str, Any]) -> str:
    """Return JSON for people to read, keys sorted."""
    return json.dumps(record, indent=1, sort_keys=True, allow_nan=False)
