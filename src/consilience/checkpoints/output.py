"""Where a merge goes, and what goes there beside the weights."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from consilience.checkpoints.card import config_text, short_name
from consilience.checkpoints.folder import INDEX, companions
from consilience.checkpoints.journal import PROVENANCE, Workplace
from consilience.checkpoints.numbers import FLOATS
from consilience.checkpoints.request import SINGLE, Prepared
from consilience.errors import InputError, OptionError
from consilience.files.atomic import write_bytes


def copy_companions(prepared: Prepared, work: Workplace) -> list[str]:
    """Copy configuration and tokenizer of the first model, write the index, and say what stayed behind."""
    request, plan = prepared.request, prepared.plan
    first = prepared.ingredients.models[0]
    notes = []
    if first.folder is not None:
        taken, left = companions(first.folder)
        for path in taken:
            if path.name == "config.json":
                dtype = None if request.dtype is None else FLOATS[request.dtype].name
                write_bytes(
                    work.folder / path.name, path.read_bytes() if dtype is None else config_text(first.config, dtype)
                )
            elif path.name != PROVENANCE:
                write_bytes(work.folder / path.name, path.read_bytes())
        if left:
            notes.append(
                f"not copied from {short_name(first)}: {', '.join(left[:8])} (programs, large files, or links)"
            )
    if len(plan.shards) > 1:
        index = {
            "metadata": {"total_size": sum(task.nbytes for shard in plan.shards for task in shard.tasks)},
            "weight_map": {task.name: shard.name for shard in plan.shards for task in shard.tasks},
        }
        write_bytes(work.folder / INDEX, f"{as_json(index)}\n".encode())
    return notes


def refuse_full(output: Path, size: int) -> None:
    """Raise when an output of so many bytes has no room, or its folder cannot be written to.

    Raises
    ------
    InputError
        Saying how much room there is.
    """
    folder = output.parent
    if not os.access(folder, os.W_OK):
        raise InputError(f"{output}: cannot be written: nothing may be written to {folder}")
    if size > (free := shutil.disk_usage(folder).free):
        raise InputError(f"{output}: needs {size} bytes, and {folder} has {free} left; make room")


def refuse_output(output: Path, inputs: Sequence[Path], overwrite: bool) -> None:
    """Raise when an output is in the way, is an input, or cannot be.

    Raises
    ------
    InputError
        Saying why, and what to do.
    OptionError
        When `overwrite` would remove what no merge wrote.
    """
    if not output.parent.is_dir():
        raise InputError(f"{output}: cannot be written: there is no folder {output.parent}")
    single = output.suffix == SINGLE
    here = output.resolve()
    for path in inputs:
        other = path.resolve()
        if here == other or here in other.parents or (path.is_dir() and other in here.parents):
            raise InputError(f"{output}: is one of the inputs, or lies in one; give another output")
    if output.is_symlink():
        raise InputError(f"{output}: is a link; give the path of what it leads to")
    if not output.exists():
        return
    if single:
        if not output.is_file():
            raise InputError(f"{output}: is no ordinary file")
        if not overwrite:
            raise InputError(f"{output}: exists; give another output, or allow it to be overwritten (--overwrite)")
        return
    if not output.is_dir():
        raise InputError(f"{output}: exists and is no folder; give another output")
    entries = list(output.iterdir())
    if not entries:
        return
    if not overwrite:
        raise InputError(f"{output}: is not empty; give another output, or allow it to be overwritten (--overwrite)")
    if any(entry.is_dir() for entry in entries) or not any(entry.suffix == ".safetensors" for entry in entries):
        raise OptionError(f"{output}: is no folder of a checkpoint alone, so it is not overwritten; remove it yourself")


def as_json(record: Mapping[str, Any]) -> str:
    """Return JSON for people to read, keys sorted."""
    return json.dumps(record, indent=1, sort_keys=True, allow_nan=False)
