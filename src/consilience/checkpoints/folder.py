"""Checkpoints as the ecosystem keeps them: a folder with a configuration and sharded safetensors, or a single file.

A folder has ``model.safetensors``, or ``model.safetensors.index.json`` and the shards that it names. Nothing in it is
trusted: an index names files beside itself and no others, links may not lead out of the folder (but for those of the
hub's cache, whose folders are links throughout), pickles are never opened, and headers are read before anything else.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from consilience.checkpoints.header import Header, Stored, read_header
from consilience.errors import FileFormatError
from consilience.files.document import parse_document, validate_document

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_MAX_INDEX = 100_000_000
_MAX_SMALL = 64 * 2**20
_MAX_FILES = 256
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib")
_OTHER_WEIGHTS = (".safetensors", ".h5", ".msgpack", ".onnx", ".gguf", ".npz", ".npy", ".index.json", ".tflite")
_FEW = 5

_REMEDY = "save it with save_pretrained(..., safe_serialization=True)"


@dataclass(frozen=True)
class Part:
    """One file of weights, and what identifies its content without reading it.

    Parameters
    ----------
    path
        Where it is.
    nbytes
        Its length.
    modified
        When it was written, in nanoseconds.
    header
        What is in it.
    """

    path: Path
    nbytes: int
    modified: int
    header: Header


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint of which only headers have been read.

    Parameters
    ----------
    name
        What it is called in messages: the path as it was given.
    parts
        Its files of weights.
    tensors
        By name, in the order of files and their bytes: number of the part, and where in it.
    folder
        Where configuration and tokenizer are; None for a single file.
    """

    name: str
    parts: tuple[Part, ...]
    tensors: Mapping[str, tuple[int, Stored]]
    folder: Path | None = None
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(stored.nbytes for _, stored in self.tensors.values())


class _Index(BaseModel):
    """``model.safetensors.index.json``; what else stands there is not looked at."""

    model_config = ConfigDict(extra="ignore", strict=True)
    weight_map: Annotated[dict[str, str], Field(min_length=1)]


def open_checkpoint(path: Path) -> Checkpoint:
    """Return a checkpoint by its folder, its index file or its only file, headers read.

    Raises
    ------
    FileFormatError
        Naming every file that is missing, leads out of the folder, or is not what its name says.
    """
    try:
        if path.is_dir():
            return _from_folder(path)
        if path.name.endswith(".index.json"):
            return _from_index(path, str(path))
        _refuse_pickle(path)
        return _joined([_part(path, None)], str(path), None)
    except (OSError, ValueError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _from_folder(folder: Path) -> Checkpoint:
    if (folder / WEIGHTS).is_file():
        return _joined([_part(folder / WEIGHTS, folder)], str(folder), folder)
    if (folder / INDEX).is_file():
        return _from_index(folder / INDEX, str(folder))
    found = sorted(one for one in folder.iterdir() if one.suffix == ".safetensors")
    if len(found) == 1:
        return _joined([_part(found[0], folder)], str(folder), folder)
    if found:
        raise FileFormatError(
            f"{folder}: has {len(found)} safetensors files and no {INDEX} that says which belong together; "
            "give the path of the one that is meant"
        )
    if pickles := sorted(one.name for one in folder.iterdir() if one.suffix in _PICKLES):
        raise FileFormatError(f"{folder}: has only pickles ({pickles[0]}), which are never loaded; {_REMEDY}")
    raise FileFormatError(f"{folder}: has no {WEIGHTS} and no {INDEX}; {_REMEDY}")


def _from_index(path: Path, name: str) -> Checkpoint:
    folder = path.parent
    _refuse_outside(path, folder)
    if path.stat().st_size > _MAX_INDEX:
        raise FileFormatError(f"{path}: is too long for an index")
    index = validate_document(
        path, _Index, parse_document(path, path.read_bytes(), "content", _REMEDY), "content", _REMEDY
    )
    names = list(dict.fromkeys(index.weight_map.values()))
    if problems := [f"{path}: names the file {shard!r}, which is no plain name of a file beside it" for shard in names
                    if not _plain(shard)]:  # fmt: skip
        raise FileFormatError(problems)
    if missing := [shard for shard in names if not (folder / shard).is_file()]:
        raise FileFormatError([f"{path}: names the file {shard}, which does not exist" for shard in missing])
    parts = [_part(folder / shard, folder) for shard in sorted(names)]
    by_name = {part.path.name: part for part in parts}
    absent = [key for key, shard in index.weight_map.items() if key not in by_name[shard].header.tensors]
    if absent:
        more = f" and {len(absent) - _FEW} more" if len(absent) > _FEW else ""
        listed = ", ".join(f"{key} ({index.weight_map[key]})" for key in absent[:_FEW])
        raise FileFormatError(f"{path}: names tensors that their files do not have: {listed}{more}")
    return _joined(parts, name, folder, index.weight_map)


def _joined(
    parts: list[Part], name: str, folder: Path | None, weight_map: Mapping[str, str] | None = None
) -> Checkpoint:
    tensors = {
        key: (number, stored)
        for number, part in enumerate(parts)
        for key, stored in part.header.tensors.items()
        if weight_map is None or weight_map.get(key) == part.path.name
    }
    if not tensors:
        raise FileFormatError(f"{name}: has no tensors")
    config = {} if folder is None else read_config(folder)
    return Checkpoint(name, tuple(parts), tensors, folder, config)


def _part(path: Path, folder: Path | None) -> Part:
    if folder is not None:
        _refuse_outside(path, folder)
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise FileFormatError(f"{path}: is not an ordinary file")
    return Part(path, found.st_size, found.st_mtime_ns, read_header(path))


def _plain(name: str) -> bool:
    """Return whether a name is that of a file in the folder itself, on any system."""
    return (
        bool(name)
        and name not in (".", "..")
        and PurePosixPath(name).name == name
        and PureWindowsPath(name).name == name
        and "\0" not in name
    )


def _refuse_outside(path: Path, folder: Path) -> None:
    """Raise for a link that leads out of a folder, unless the folder is one of the hub's cache and it leads to that."""
    real, home = path.resolve(), folder.resolve()
    if real.is_relative_to(home):
        return
    if home.parent.name == "snapshots" and real.parent == home.parent.parent / "blobs":
        return
    raise FileFormatError(f"{path}: is a link to a file outside of its folder, which is not followed")


def _refuse_pickle(path: Path) -> None:
    if path.suffix in _PICKLES:
        raise FileFormatError(f"{path}: is a pickle by its name, which is never loaded; {_REMEDY}")
    if not path.exists():
        raise FileFormatError(f"{path}: does not exist")


def read_config(folder: Path) -> dict[str, Any]:
    """Return the configuration in a folder, empty where there is none.

    Raises
    ------
    FileFormatError
        When it is not a JSON object, or leads out of the folder.
    """
    path = folder / "config.json"
    if not path.is_file():
        return {}
    _refuse_outside(path, folder)
    if path.stat().st_size > _MAX_SMALL:
        raise FileFormatError(f"{path}: is too long for a configuration")
    document = parse_document(path, path.read_bytes(), "content")
    if not isinstance(document, dict):
        raise FileFormatError(f"{path}: is not a JSON object")
    return document


def companions(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the files beside the weights that go with a copy, and the names of those that do not.

    Weights in any format, pickles, hidden files, the model card (a new one is written), programs, links out of the
    folder, and files over 64 MiB stay behind; folders are not looked into.
    """
    taken: list[Path] = []
    left: list[str] = []
    for path in sorted(folder.iterdir()):
        name = path.name
        if name.startswith(".") or name == "README.md" or not path.is_file():
            continue
        if name.endswith((*_OTHER_WEIGHTS, *_PICKLES)):
            continue
        try:
            _refuse_outside(path, folder)
        except FileFormatError:
            left.append(name)
            continue
        if path.suffix == ".py" or path.stat().st_size > _MAX_SMALL or len(taken) >= _MAX_FILES:
            left.append(name)
        else:
            taken.append(path)
    return taken, left
