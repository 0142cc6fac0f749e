"""LoRA adapters in memory, and files of this library that hold one: its tensors as they are, and its configuration.

Format 1. Tensors: those of the adapter, under the names of its convention. The header's metadata has one key,
``consilience``, whose value is the JSON of ``AdapterHeader``. Of other metadata only what loaders need goes with it,
and of an absolute path to the base the last part.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath, PureWindowsPath
from typing import Any

import numpy as np

from consilience.checkpoints.folder import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from consilience.checkpoints.header import StoredTensor, header_bytes, read_header
from consilience.checkpoints.lora.factors import read_factors
from consilience.checkpoints.lora.files import (
    FORMAT_VERSION,
    LORA_FILE,
    LoraFile,
    adapter_at,
    open_adapter_at,
    read_adapter_header,
)
from consilience.checks import Json
from consilience.drawing.display import Displayed
from consilience.drawing.words import format_count
from consilience.errors import InputError, OptionError
from consilience.files.atomic import write_bytes
from consilience.files.document import ADAPTER, METADATA_KEY
from consilience.files.format import document_text
from consilience.files.opening import open_file
from consilience.files.safetensors_file import SafetensorsFile

_BASE = "base_model_name_or_path"
_SUFFIX = ".safetensors"


@dataclass(frozen=True, eq=False, repr=False)
class LoraAdapter(Displayed):
    """A LoRA adapter: its tensors as they are stored, and how they are read.

    `LoraAdapter.read` makes one of a folder of peft, or of a file of kohya's trainer, diffusers or this library;
    `write` writes it as the program that it is of reads it.

    Parameters
    ----------
    tensors : mapping of str to StoredTensor
        Types, shapes and places of the tensors, by name.
    content : bytes or Path
        Where the tensors' bytes are.
    config : mapping, optional
        Configuration of peft. Default: None, for other conventions.
    metadata : mapping of str to str
        What loaders of other conventions read. Default: nothing.
    n_observations : float, optional
        Number of observations that it was trained on, where that is stated.
    """

    tensors: Mapping[str, StoredTensor]
    content: bytes | Path
    config: Mapping[str, Json] | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    n_observations: float | None = None

    @classmethod
    def read(cls, path: str | Path) -> LoraAdapter:
        """Return the adapter at a path, in memory.

        Raises InputError for a path without one, and for adapters whose tensors or configuration are not understood.
        """
        found = adapter_at(Path(path))
        if found is None:
            text = "is no LoRA adapter: no folder of peft, and no file of kohya's trainer or of diffusers"
            raise InputError(path, text, "save the adapter alone", "E-FILE")
        return cls._of(found, is_lazy=False)

    @classmethod
    def of_file(cls, file: SafetensorsFile) -> LoraAdapter:
        """Return the adapter in a file of this library, or a LoRA file, whose tensors stay there."""
        return cls._of(file.path, is_lazy=True)

    @classmethod
    def _of(cls, place: Path, is_lazy: bool) -> LoraAdapter:
        checkpoint = open_adapter_at(place)
        file = checkpoint.files[0].path
        header = read_header(file)
        stated = header.metadata.get(METADATA_KEY)
        n_observations = None if stated is None else read_adapter_header(SafetensorsFile(file)).n_observations
        is_file = isinstance(checkpoint, LoraFile)
        config = None if is_file else _without_folders(checkpoint.config)
        metadata = checkpoint.needed_metadata if isinstance(checkpoint, LoraFile) else {}
        adapter = cls(dict(header.tensors), file, config, metadata, n_observations)
        return adapter if is_lazy else adapter.in_memory()

    def in_memory(self) -> LoraAdapter:
        """Return the adapter with its tensors in memory."""
        if isinstance(self.content, bytes):
            return self
        places, parts, start = {}, [], 0
        for name, stored in self.tensors.items():
            places[name] = replace(stored, start=start)
            parts.append(self.bytes_of(name))
            start += stored.nbytes
        return replace(self, tensors=places, content=b"".join(parts))

    def bytes_of(self, name: str) -> bytes:
        """Return the bytes of a tensor."""
        stored = self.tensors[name]
        if isinstance(self.content, bytes):
            return self.content[stored.start : stored.start + stored.nbytes]
        with open_file(self.content) as stream:
            stream.seek(stored.start)
            return stream.read(stored.nbytes)

    @property
    def digest(self) -> str:
        """SHA-256 of its tensors and of how they are read."""
        found = hashlib.sha256(json.dumps([self.config, dict(self.metadata)], sort_keys=True).encode())
        for name in sorted(self.tensors):
            stored = self.tensors[name]
            found.update(json.dumps([name, stored.dtype, stored.shape]).encode())
            found.update(self.bytes_of(name))
        return found.hexdigest()

    def pack(self, path: Path, provenance: Mapping[str, Json] | None = None) -> None:
        """Write a file of this library, whole or not at all."""
        fields = {
            "config": None if self.config is None else dict(self.config),
            "metadata": dict(self.metadata),
            "n_observations": self.n_observations,
            "provenance": None if provenance is None else dict(provenance),
        }
        sizes: Any = {name: np.broadcast_to(np.uint8(0), stored.nbytes) for name, stored in self.tensors.items()}
        text = document_text(path, ADAPTER, FORMAT_VERSION, fields, sizes)
        write_bytes(path, self._file({METADATA_KEY: text}))

    def write(self, place: str | Path) -> None:
        """Write the adapter as its program reads it: a folder of peft, or a LoRA file, alone or in a folder.

        Raises InputError for a place that is not empty.
        """
        target = Path(place)
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise InputError(target, "exists" if target.is_file() else "is not empty", "give another", "E-OUTPUT")
        if self.config is not None and target.suffix == _SUFFIX:
            raise OptionError("place", f"an adapter of peft is a folder, found {target}", "give a folder")
        metadata = {"format": "pt", **self.metadata}
        if target.suffix == _SUFFIX:
            write_bytes(target, self._file(metadata))
            return
        target.mkdir(parents=True, exist_ok=True)
        write_bytes(target / (LORA_FILE if self.config is None else ADAPTER_WEIGHTS), self._file(metadata))
        if self.config is not None:
            write_bytes(target / ADAPTER_CONFIG, f"{json.dumps(self.config, indent=1, sort_keys=True)}\n".encode())

    def _file(self, metadata: Mapping[str, str]) -> bytes:
        """Return a safetensors file of the tensors."""
        entries = [(name, stored.dtype, stored.shape, stored.nbytes) for name, stored in self.tensors.items()]
        return b"".join([header_bytes(entries, metadata), *(self.bytes_of(name) for name in self.tensors)])

    @property
    def n_modules(self) -> int:
        """Number of modules whose names its factors have."""
        ends = ("lora_B.weight", "lora_up.weight", "lora_embedding_B", ".up.weight")
        return sum(name.endswith(ends) for name in self.tensors)

    def _headline(self) -> str:
        return f"{format_count(self.n_modules, 'module')}, {format_count(len(self.tensors), 'tensor')}"

    def _facts(self) -> dict[str, object | None]:
        return {"base": None if self.config is None else self.config.get(_BASE), "observations": self.n_observations}


def _without_folders(config: Mapping[str, Json]) -> dict[str, Json]:
    """Return a configuration in which an absolute path to the base is its last part alone."""
    base = config.get(_BASE)
    if not isinstance(base, str):
        return dict(config)
    kinds = (PurePath(base), PureWindowsPath(base))
    return {**config, _BASE: next((path.name for path in kinds if path.is_absolute()), base)}


def load_adapter(file: SafetensorsFile) -> LoraAdapter:
    """Return the adapter in a file of this library, in memory."""
    return LoraAdapter.of_file(file).in_memory()


def modules_of(adapter: Path) -> tuple[str, ...]:
    """Return the modules that the adapter at a path changes, by their names there."""
    return tuple(read_factors(open_adapter_at(adapter)).factors)
