"""Checkpointing of a merge: resumption after an interruption, and atomic publication of the output.

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
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from consilience.core.provenance import file_digest
from consilience.errors import FileFormatError, InputError
from consilience.files.atomic import write_bytes
from consilience.files.document import parse_document

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

    def finish(self, name: str, sha256: str) -> None:
        """Record a file as complete; its bytes must be on the disk by now."""
        nbytes = (self.folder / name).stat().st_size
        self.finished[name] = FinishedFile(sha256=sha256, nbytes=nbytes)
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
        with _locked(folder):
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


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; the system drops it with the process, however that ends."""
    with (folder / LOCK).open("wb") as stream:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise InputError(folder, "another merge into the same output is under way", code="E-OUTPUT") from error
        yield


def _resumable_files(folder: Path, identity: str) -> dict[str, FinishedFile]:
    """Return the files that an earlier run of the same merge finished and that still have their digests."""
    path = folder / JOURNAL
    try:
        if path.is_symlink() or path.stat().st_size > _MAX_JOURNAL_BYTES:
            return {}
        journal = _Journal.model_validate(parse_document(path, path.read_bytes(), "content"))
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
