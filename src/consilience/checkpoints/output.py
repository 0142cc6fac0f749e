"""Output of a merge: configuration and tokenizer, the index of shards, checks of the destination, and resumption.

A merge writes into a hidden folder beside the output. Its journal names the finished files with their digests, and what
is merged and how by one digest, the identity. A later run of the same identity continues after the last finished file;
any other, also one whose inputs have changed, starts anew. At the end the folder takes the output's place in one step,
so that the output is whole or not there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from consilience.checkpoints.card import config_text, short_name
from consilience.checkpoints.chat_templates import TEMPLATE_FILE, TOKENIZER_CONFIG
from consilience.checkpoints.folder import INDEX, Checkpoint, companion_files, read_object
from consilience.checkpoints.numbers import FLOAT_TYPES
from consilience.checkpoints.request import SINGLE_FILE_SUFFIX, PreparedMerge
from consilience.checkpoints.unions import json_bytes
from consilience.checkpoints.vocabularies import TOKENIZER_FILES, with_tokens
from consilience.checks import Array
from consilience.core.provenance import file_digest
from consilience.errors import FileFormatError, InputError, OptionError
from consilience.files.atomic import sole_use, write_bytes
from consilience.files.document import parse_document
from consilience.files.opening import read_file
from consilience.files.quantisation import QUANTISATION_FILES, without_quantisation

JOURNAL = "journal.json"
LOCK = "lock"
PROVENANCE = "merge.json"

_MAX_JOURNAL_BYTES = 2**26
"""Chosen by hand; a longer journal is ignored, and the merge starts anew."""


class FinishedFile(BaseModel):
    """A complete file: its digest and its length."""

    model_config = ConfigDict(extra="forbid", strict=True)
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    nbytes: Annotated[int, Field(ge=0)]
    changes: dict[str, list[list[float]]] = Field(default_factory=dict)
    """By tensor, what ``checkpoints.changes`` sums."""


class _Journal(BaseModel):
    """``journal.json``: the identity of the merge, and its finished files by name."""

    model_config = ConfigDict(extra="forbid", strict=True)
    identity: str
    files: dict[str, FinishedFile]


class PartialOutput:
    """The hidden folder of one merge, and the files that are finished in it.

    `identity` is the digest of what is merged and how.
    """

    def __init__(self, folder: Path, identity: str, finished: dict[str, FinishedFile]) -> None:
        self.folder, self._identity = folder, identity
        self.finished = finished

    def finish(self, name: str, sha256: str, changes: Mapping[str, Array]) -> None:
        """Record a file as complete, with what its tensors changed; its bytes must be on the disk by now."""
        nbytes = (self.folder / name).stat().st_size
        sums = {tensor: gram.tolist() for tensor, gram in changes.items()}
        self.finished[name] = FinishedFile(sha256=sha256, nbytes=nbytes, changes=sums)
        journal = _Journal(identity=self._identity, files=self.finished)
        write_bytes(self.folder / JOURNAL, journal.model_dump_json().encode())


def partial_folder(output: Path) -> Path:
    """Return the hidden folder of a merge until its output is complete."""
    return output.parent / f".{output.name}.partial"


def merge_identity(document: Any) -> str:
    """Return the digest of what is merged and how, as JSON values."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, allow_nan=False).encode()).hexdigest()


@contextmanager
def open_partial_output(output: Path, identity: str, resume: bool) -> Iterator[PartialOutput]:
    """Yield the hidden folder of a merge, with the files that an interrupted run of the same merge finished.

    It stays when anything goes wrong after the first finished file, for the next attempt.

    `output` is the folder or file that the merge writes, `identity` the digest of what is merged and how; with `resume`
    finished files of an earlier run are taken. Raises InputError when another process writes into it, or the system
    refuses.
    """
    folder = partial_folder(output)
    try:
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise InputError(folder, "is in the way of the partial output", "remove it", "E-OUTPUT")
        folder.mkdir(exist_ok=True)
        under_way = InputError(folder, "another merge into the same output is under way", code="E-OUTPUT")
        with sole_use(folder / LOCK, under_way):
            finished = _resumable_files(folder, identity) if resume else {}
            # What was under way when the earlier run ended is incomplete.
            for path in folder.iterdir():
                if path.name not in (LOCK, JOURNAL, *finished):
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            if not finished:
                (folder / JOURNAL).unlink(missing_ok=True)
            partial = PartialOutput(folder, identity, finished)
            try:
                yield partial
            except BaseException:
                if not partial.finished:  # nothing to resume
                    shutil.rmtree(folder, ignore_errors=True)
                raise
    except OSError as error:
        raise InputError(output, f"cannot be written: {error.strerror or error}", "", "E-SYSTEM") from error


def _resumable_files(folder: Path, identity: str) -> dict[str, FinishedFile]:
    """Return the files that an earlier run of the same merge finished and that still have their digests."""
    path = folder / JOURNAL
    try:
        if path.is_symlink() or path.stat().st_size > _MAX_JOURNAL_BYTES:
            return {}
        journal = _Journal.model_validate(parse_document(path, read_file(path), "content"))
    except (OSError, ValidationError, FileFormatError):  # none, or one that was not written to its end
        return {}
    if journal.identity != identity:
        return {}
    return {name: file for name, file in journal.files.items() if _is_intact(folder / name, folder, file)}


def _is_intact(path: Path, folder: Path, finished: FinishedFile) -> bool:
    # The journal may be forged: a name that leaves the folder, or a link, is none of its files.
    if path.parent != folder or path.is_symlink() or not path.is_file() or path.stat().st_size != finished.nbytes:
        return False
    return file_digest(path) == finished.sha256


def publish(partial: PartialOutput, output: Path, single: bool) -> None:
    """Move a complete folder to the output; with `single`, its only file of weights, and the provenance beside that."""
    _sync(partial.folder)  # the entries of finished files, before any of them is moved
    if single:
        (partial.folder / PROVENANCE).replace(provenance_path(output))
        (partial.folder / output.name).replace(output)
        shutil.rmtree(partial.folder)
    else:
        replaced = output.parent / f".{output.name}.replaced"
        if output.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            output.rename(replaced)
        partial.folder.rename(output)
        for name in (JOURNAL, LOCK):  # only now: until the renaming the merge could be resumed
            (output / name).unlink(missing_ok=True)
        shutil.rmtree(replaced, ignore_errors=True)
    _sync(output.parent)


def provenance_path(output: Path) -> Path:
    """Return the path of the provenance next to an output that is a single file."""
    return output.with_name(f"{output.name.removesuffix('.safetensors')}.{PROVENANCE}")


def _sync(folder: Path) -> None:
    """Bring a folder's entries to the disk, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


_MAX_LISTED = 8
"""Files that a note names. Chosen by hand."""


def copy_companions(prepared: PreparedMerge, partial: PartialOutput) -> list[str]:
    """Copy configuration and tokenizer of the first model that has them and write the index; return notes on it."""
    request, plan = prepared.request, prepared.plan
    models = prepared.inputs.models
    first = next((model for model in models if model.config), models[0])
    dtype = None if request.dtype is None else FLOAT_TYPES[request.dtype].name
    config = without_quantisation(first.config)
    vocabulary = prepared.vocabulary
    if vocabulary is not None:
        config = with_tokens(config, vocabulary)
    is_changed = dtype is not None or config != first.config or bool(request.slices)
    notes = (
        [] if first is models[0] else [f"{short_name(models[0])} has no configuration; {short_name(first)}'s is taken"]
    )
    written = {*QUANTISATION_FILES, *({"config.json"} if is_changed else ())}
    if vocabulary is not None:
        notes += copy_companions_of(
            vocabulary.source, partial.folder, {*vocabulary.files, *vocabulary.left_out}, TOKENIZER_FILES
        )
        for name, content in vocabulary.files.items():
            write_bytes(partial.folder / name, content)
        written |= set(TOKENIZER_FILES)
    notes += copy_companions_of(first, partial.folder, written)
    if is_changed and first.folder is not None and (first.folder / "config.json").is_file():
        write_bytes(partial.folder / "config.json", config_text(config, dtype))
    if prepared.chat_template is not None:
        notes += _write_chat_template(partial.folder, prepared.chat_template)
    if len(plan.shards) > 1:
        index = {
            "metadata": {"total_size": sum(task.nbytes for shard in plan.shards for task in shard.tasks)},
            "weight_map": {task.name: shard.name for shard in plan.shards for task in shard.tasks},
        }
        write_bytes(partial.folder / INDEX, f"{as_json(index)}\n".encode())
    return notes


def _write_chat_template(folder: Path, template: str) -> list[str]:
    """Write a chat template into the tokenizer's files in a folder; return a note where there is no tokenizer."""
    names = {path.name for path in folder.iterdir()}
    if not names & set(TOKENIZER_FILES):
        return ["chat_template: the output has no tokenizer, so none was written"]
    (folder / "chat_template.json").unlink(missing_ok=True)  # of processors, with another template
    write_bytes(folder / TEMPLATE_FILE, template.encode())
    if TOKENIZER_CONFIG in names:
        config = {**read_object(folder / TOKENIZER_CONFIG), "chat_template": template}
        write_bytes(folder / TOKENIZER_CONFIG, json_bytes(config))
    return []


def copy_companions_of(
    first: Checkpoint, target: Path, written: Collection[str], only: Collection[str] | None = None
) -> list[str]:
    """Copy the files next to the weights of a checkpoint into a folder; return notes on files not copied.

    `written` names files that the caller writes itself, `only` those that are copied; None for all.
    """
    if first.folder is None:
        return []
    copied, refused = companion_files(first.folder)
    for path in copied:
        if path.name not in (PROVENANCE, *written) and (only is None or path.name in only):
            write_bytes(target / path.name, read_file(path))
    folders = sorted(path.name for path in first.folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    refused += [f"{name}/" for name in folders]
    if not refused or only is not None:
        return []
    listed = ", ".join(refused[:_MAX_LISTED])
    return [f"not copied from {short_name(first)}: {listed} (programs, folders, large files, or links)"]


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
    """Return whether what lies in a folder may be a checkpoint alone: files, weights among them.

    So are a base and an adapter, each in a folder.
    """
    if {entry.name for entry in entries} == {"adapter", "base"} and all(entry.is_dir() for entry in entries):
        return all(_is_of_checkpoint(list(entry.iterdir())) for entry in entries)
    return not any(entry.is_dir() for entry in entries) and any(entry.suffix == ".safetensors" for entry in entries)


def as_json(record: Mapping[str, Any]) -> str:
    """Return JSON for people to read, keys sorted."""
    return json.dumps(record, indent=1, sort_keys=True, allow_nan=False)
