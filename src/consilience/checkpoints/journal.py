"""Merges that were interrupted: a hidden folder beside the output, with the files that are finished and a journal.

The journal names what was merged and how by one digest. The same merge goes on with the file after the last that is
finished; any other, also one whose inputs have changed, starts anew. At the end the folder takes the output's place in
one step, so that the output is whole or not there.
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

_MAX_JOURNAL = 2**26


class Finished(BaseModel):
    """A file that is complete."""

    model_config = ConfigDict(extra="forbid", strict=True)
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    nbytes: Annotated[int, Field(ge=0)]
    differing: list[str]


class _Journal(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    identity: str
    files: dict[str, Finished]


class Workplace:
    """The hidden folder of one merge, and what is finished in it.

    Parameters
    ----------
    folder
        The folder.
    identity
        Digest of what is merged and how.
    finished
        By name of the file.
    """

    def __init__(self, folder: Path, identity: str, finished: dict[str, Finished]) -> None:
        self.folder, self._identity = folder, identity
        self.finished = finished

    def finish(self, name: str, sha256: str, differing: list[str]) -> None:
        """Note that a file is complete, which it must be on the disk by now."""
        nbytes = (self.folder / name).stat().st_size
        self.finished[name] = Finished(sha256=sha256, nbytes=nbytes, differing=differing)
        journal = _Journal(identity=self._identity, files=self.finished)
        write_bytes(self.folder / JOURNAL, journal.model_dump_json().encode())


def workplace_of(output: Path) -> Path:
    """Return where a merge works until its output is complete."""
    return output.parent / f".{output.name}.partial"


def identity(document: Any) -> str:
    """Return the digest of what is merged and how, as JSON values."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, allow_nan=False).encode()).hexdigest()


@contextmanager
def workplace(output: Path, wanted: str, resume: bool) -> Iterator[Workplace]:
    """Yield the hidden folder of a merge, with what an interrupted one left if it is the same and may be resumed.

    It stays when anything goes wrong, for the next attempt.

    Raises
    ------
    InputError
        When another process is at it, or the system refuses.
    """
    folder = workplace_of(output)
    try:
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise InputError(f"{folder}: is in the way of the partial output; remove it")
        folder.mkdir(exist_ok=True)
        with _locked(folder):
            finished = _left(folder, wanted) if resume else {}
            for path in folder.iterdir():
                if path.name not in (LOCK, JOURNAL, *finished):
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            if not finished:
                (folder / JOURNAL).unlink(missing_ok=True)
            work = Workplace(folder, wanted, finished)
            try:
                yield work
            except BaseException:
                if not work.finished:  # nothing to go on with
                    shutil.rmtree(folder, ignore_errors=True)
                raise
    except OSError as error:
        raise InputError(f"{output}: cannot be written: {error.strerror or error}") from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / LOCK).open("wb") as stream:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise InputError(f"{folder}: another merge into the same output is under way") from error
        yield


def _left(folder: Path, wanted: str) -> dict[str, Finished]:
    """Return the files that an earlier attempt at the same merge finished and nothing has damaged since."""
    path = folder / JOURNAL
    try:
        if path.is_symlink() or path.stat().st_size > _MAX_JOURNAL:
            return {}
        journal = _Journal.model_validate(parse_document(path, path.read_bytes(), "content"))
    except (OSError, ValidationError, FileFormatError):  # none, or one that was not written to its end
        return {}
    if journal.identity != wanted:
        return {}
    return {name: one for name, one in journal.files.items() if _whole(folder / name, folder, one)}


def _whole(path: Path, folder: Path, finished: Finished) -> bool:
    if path.parent != folder or path.is_symlink() or not path.is_file() or path.stat().st_size != finished.nbytes:
        return False
    return file_digest(path) == finished.sha256


def publish(work: Workplace, output: Path, single: bool) -> None:
    """Put a complete folder, or its only file of weights and the provenance beside it, in the output's place."""
    _sync(work.folder)
    if single:
        (work.folder / PROVENANCE).replace(beside(output))
        (work.folder / output.name).replace(output)
        shutil.rmtree(work.folder)
    else:
        old = output.parent / f".{output.name}.replaced"
        if output.exists():
            shutil.rmtree(old, ignore_errors=True)
            output.rename(old)
        work.folder.rename(output)
        for name in (JOURNAL, LOCK):  # only now, so that until now the merge could be gone on with
            (output / name).unlink(missing_ok=True)
        shutil.rmtree(old, ignore_errors=True)
    _sync(output.parent)


def beside(output: Path) -> Path:
    """Return where the provenance of a single file stands."""
    return output.with_name(f"{output.name.removesuffix('.safetensors')}.{PROVENANCE}")


def _sync(folder: Path) -> None:
    """Bring a folder's entries to the disk, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
