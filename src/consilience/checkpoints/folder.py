"""Hugging Face checkpoints on disk: a folder with a configuration and sharded safetensors, or a single file.

A folder has ``model.safetensors``, or ``model.safetensors.index.json`` and the shards that it names. Nothing in it is
trusted: an index names files beside itself and no others, links may not lead out of the folder (but for those of the
hub's cache, whose folders are links throughout), pickles are never opened, and headers are read before anything else.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from consilience.catalogue import unreadable
from consilience.checkpoints.header import SafetensorsHeader, StoredTensor, read_header
from consilience.checks import Json
from consilience.drawing.words import first_names
from consilience.errors import FileFormatError, Problem
from consilience.files.document import METADATA_KEY, NETWORK, misplaced, parse_document, validate_document
from consilience.files.foreign_formats import named_foreign, part_of_checkpoint
from consilience.files.opening import read_file
from consilience.files.quantisation import quantisation_beside

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"

_MAX_INDEX_BYTES = 100_000_000
"""Chosen by hand, as long as the longest header that safetensors reads: an index names the same tensors."""

_MAX_COMPANION_BYTES = 64 * 2**20
"""Longest configuration that is read, longest file that is copied beside the weights. Chosen by hand:
tokenizers of large vocabularies have tens of megabytes."""

_MAX_COMPANIONS = 256
"""A bound on what is copied out of folders that hold more than a checkpoint. Chosen by hand."""

_MAX_LISTED = 5
"""Tensors that a message names; more are counted. Chosen by hand."""

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib")
_OTHER_WEIGHTS = (".safetensors", ".h5", ".msgpack", ".onnx", ".gguf", ".npz", ".npy", ".index.json", ".tflite")

_REMEDY = "save it with `save_pretrained(..., safe_serialization=True)`"


@dataclass(frozen=True)
class WeightFile:
    """One file of weights, and what identifies its content without reading it."""

    path: Path  # the file
    nbytes: int  # its length
    modified: int  # time of its last change, in nanoseconds
    header: SafetensorsHeader  # its tensors


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint of which only headers have been read."""

    name: str  # name in messages: the path as the user gave it
    files: tuple[WeightFile, ...]  # its files of weights
    # The tensors, in the order of files and of their bytes: number of the file, and place in it.
    tensors: Mapping[str, tuple[int, StoredTensor]]
    folder: Path | None = None  # folder of configuration and tokenizer. Default: None, for a single file.
    config: Mapping[str, Json] = field(default_factory=dict)  # the configuration
    # What adapters change when a tensor is read: by the path of its file and its first byte (``checkpoints.lora``).
    changes: Mapping[tuple[Path, int], Any] = field(default_factory=dict)
    adapters: tuple[Checkpoint, ...] = ()  # the adapters that do so
    notes: tuple[str, ...] = ()  # what a user should know of how it was read, a line each

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(stored.nbytes for _, stored in self.tensors.values())

    @cached_property
    def quantisation(self) -> str | None:
        """The method of quantisation stated by the configuration or a file next to the weights; None for none."""
        return quantisation_beside(self.files[0].path.parent if self.folder is None else self.folder)


class _Index(BaseModel):
    """``model.safetensors.index.json``; other keys are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)
    weight_map: Annotated[dict[str, str], Field(min_length=1)]


def open_checkpoint(path: Path, takes_other_formats: bool = False) -> Checkpoint:
    """Return a checkpoint by its folder, its index file or its only file, headers read.

    With `takes_other_formats`, as of Fisher diagonals, the caller says what else the file is. Raises FileFormatError,
    naming every file that is missing, leads out of the folder, is not what its name says, or holds anything but
    weights.
    """
    try:
        if os.path.isdir(path):
            checkpoint = _from_folder(path)
        elif path.name.endswith(".index.json"):
            checkpoint = _from_index(path, str(path))
        elif not os.path.exists(path):
            raise FileFormatError(path, "does not exist")
        else:
            checkpoint = _join_files([_weight_file(path, None)], str(path), None)
        if not takes_other_formats:
            _refuse_other_formats(checkpoint)
        return checkpoint
    except (OSError, ValueError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from error


def adapter_folder(path: Path) -> Path | None:
    """Return the folder of an adapter of peft, from its path or that of one of its files; None for anything else.

    A folder with the weights of a whole model beside the adapter's is that model's.
    """
    folder = path.parent if path.name in (ADAPTER_WEIGHTS, ADAPTER_CONFIG) else path
    names = (ADAPTER_CONFIG, ADAPTER_WEIGHTS, "adapter_model.bin")
    is_model = folder is path and any(os.path.isfile(folder / name) for name in (WEIGHTS, INDEX))
    return folder if not is_model and any(os.path.isfile(folder / name) for name in names) else None


def open_adapter(folder: Path) -> Checkpoint:
    """Return the adapter in a folder, its header and its configuration read.

    Raises FileFormatError where its configuration or its weights are missing, or not what their names say.
    """
    try:
        if not os.path.isfile(folder / ADAPTER_WEIGHTS):
            if (folder / "adapter_model.bin").is_file():
                raise FileFormatError(folder, "has only a pickle (adapter_model.bin), which is never loaded", _REMEDY)
            raise FileFormatError(folder, f"has {ADAPTER_CONFIG} and no {ADAPTER_WEIGHTS}", _REMEDY)
        if not (folder / ADAPTER_CONFIG).is_file():
            raise FileFormatError(folder, f"has {ADAPTER_WEIGHTS} and no {ADAPTER_CONFIG}", "save the adapter whole")
        config = read_config(folder, ADAPTER_CONFIG)
        checkpoint = _join_files([_weight_file(folder / ADAPTER_WEIGHTS, folder)], str(folder), folder)
    except OSError as error:
        raise FileFormatError(unreadable(folder, error)) from error
    return replace(checkpoint, config=config)


def _from_folder(folder: Path) -> Checkpoint:
    # The order in which from_pretrained looks: one file, then an index, then (here) the only file there is.
    def of_file(name: str) -> Checkpoint:
        return _join_files([_weight_file(folder / name, folder)], str(folder), folder)

    if (folder / WEIGHTS).is_file():
        return of_file(WEIGHTS)
    if (folder / INDEX).is_file():
        return _from_index(folder / INDEX, str(folder))
    names = sorted(path.name for path in folder.iterdir())
    candidates = [name for name in names if name.endswith(".safetensors")]
    if parts := [part for name in candidates if (part := part_of_checkpoint(Path(name))) is not None]:
        text = f"has {len(parts)} of the {parts[0][1]} parts of a checkpoint, and no {INDEX}"
        raise FileFormatError(folder, text, "fetch it whole, or save it again")
    if len(candidates) == 1:
        return of_file(candidates[0])
    if candidates:
        _refuse_other_formats(of_file(candidates[0]))
        text = f"has {len(candidates)} safetensors files and no {INDEX} that says which belong together"
        raise FileFormatError(folder, text, "give the path of the one that is meant")
    raise _without_weights(folder, names)


def _without_weights(folder: Path, names: list[str]) -> FileFormatError:
    """Return the error for a folder without weights, which says what is there in their place."""
    if pickles := [name for name in names if name.endswith(_PICKLES)]:
        return FileFormatError(folder, f"has only pickles ({pickles[0]}), which are never loaded", _REMEDY)
    if foreign := [problem for name in names if (problem := named_foreign(folder / name)) is not None]:
        text = f"has no {WEIGHTS}; {Path(foreign[0].subject).name} {foreign[0].text}"
        return FileFormatError(folder, text, foreign[0].remedy)
    return FileFormatError(folder, f"has no {WEIGHTS} and no {INDEX}", _REMEDY)


def _from_index(path: Path, name: str) -> Checkpoint:
    folder = path.parent
    _refuse_outside(path, folder)
    if path.stat().st_size > _MAX_INDEX_BYTES:
        raise FileFormatError(path, "is too long for an index")
    index = validate_document(
        path, _Index, parse_document(path, read_file(path), "content", _REMEDY), "content", _REMEDY
    )
    names = list(dict.fromkeys(index.weight_map.values()))
    if odd := [shard for shard in names if not _is_plain_name(shard)]:
        text = "names the file {!r}, which is no plain name of a file next to it"
        raise FileFormatError(Problem(path, text.format(shard)) for shard in odd)
    if missing := [shard for shard in names if not (folder / shard).is_file()]:
        raise FileFormatError([Problem(path, f"names the file {shard}, which does not exist") for shard in missing])
    # Sorted, so that neither tensors nor digests depend on the order in the index.
    files = [_weight_file(folder / shard, folder) for shard in sorted(names)]
    by_name = {file.path.name: file for file in files}
    places = index.weight_map.items()
    if absent := [f"{key} ({shard})" for key, shard in places if key not in by_name[shard].header.tensors]:
        text = f"names tensors that their files do not have: {first_names(absent, _MAX_LISTED)}"
        raise FileFormatError(path, text)
    return _join_files(files, name, folder, index.weight_map)


def _join_files(
    files: list[WeightFile], name: str, folder: Path | None, weight_map: Mapping[str, str] | None = None
) -> Checkpoint:
    """Return the checkpoint of some files; with an index, of the tensors that it names, each from the file it names."""
    tensors = {
        key: (number, stored)
        for number, file in enumerate(files)
        for key, stored in file.header.tensors.items()
        if weight_map is None or weight_map.get(key) == file.path.name
    }
    if not tensors:
        raise FileFormatError(name, "has no tensors")
    config = {} if folder is None else read_config(folder)
    return Checkpoint(name, tuple(files), tensors, folder, config)


def _weight_file(path: Path, folder: Path | None) -> WeightFile:
    if folder is not None:
        _refuse_outside(path, folder)
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise FileFormatError(path, "is not an ordinary file")
    return WeightFile(path, status.st_size, status.st_mtime_ns, read_header(path))


def _is_plain_name(name: str) -> bool:
    """Return whether a name, on any system, can only be that of a file in the folder itself."""
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
    # The hub's cache: MODEL/snapshots/REVISION has links to MODEL/blobs, and nothing else.
    if home.parent.name == "snapshots" and real.parent == home.parent.parent / "blobs":
        return
    raise FileFormatError(path, "is a link to a file outside of its folder, which is not followed")


def _refuse_other_formats(checkpoint: Checkpoint) -> None:
    """Raise for files of this library that hold no weights: posteriors, sums, draws, what travels beside networks."""
    texts = [(file, file.header.metadata.get(METADATA_KEY)) for file in checkpoint.files]
    documents = [(file, parse_document(file.path, text)) for file, text in texts if text is not None]
    tags = [(file, document.get("format") if isinstance(document, dict) else None) for file, document in documents]
    problems = [
        Problem(file.path, *misplaced(tag, "the weights of a checkpoint"), "E-FILE")
        for file, tag in tags
        if tag != NETWORK
    ]
    if problems:
        raise FileFormatError(problems)


def read_config(folder: Path, name: str = "config.json") -> dict[str, Json]:
    """Return the configuration in a folder, empty where there is none.

    Raises FileFormatError when it is not a JSON object, or leads out of the folder.
    """
    path = folder / name
    if not path.is_file():
        return {}
    _refuse_outside(path, folder)
    if path.stat().st_size > _MAX_COMPANION_BYTES:
        raise FileFormatError(path, "is too long for a configuration")
    return read_object(path)


def read_object(path: Path) -> dict[str, Json]:
    """Return the JSON object in a file; raise for anything else."""
    document = parse_document(path, read_file(path), "content")
    if not isinstance(document, dict):
        raise FileFormatError(path, "is not a JSON object")
    return document


def companion_files(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the files next to the weights that are copied with a checkpoint, and the names of those that are refused.

    Refused are programs, links out of the folder, files over 64 MiB, and any beyond a number of files. Passed over
    without a word are weights in any format, pickles, hidden files, folders, and the model card, of which a new one is
    written.
    """
    copied: list[Path] = []
    refused: list[str] = []
    for path in sorted(folder.iterdir()):
        name = path.name
        if name.startswith(".") or name == "README.md" or not path.is_file():
            continue
        if name.endswith((*_OTHER_WEIGHTS, *_PICKLES)):
            continue
        try:
            _refuse_outside(path, folder)
        except FileFormatError:
            refused.append(name)
            continue
        if path.suffix == ".py" or path.stat().st_size > _MAX_COMPANION_BYTES or len(copied) >= _MAX_COMPANIONS:
            refused.append(name)
        else:
            copied.append(path)
    return copied, refused
