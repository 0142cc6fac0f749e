"""Files of Fisher diagonals for merges of checkpoints: which diagonal belongs to which tensor, and to which model.

A file that `consilience.fisher` and `consilience.save` wrote holds the digest of the parameters at which it was
computed; a merge with a model of other parameters is refused. Plain safetensors with a diagonal under every parameter's
name are taken as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from consilience.checkpoints.folder import Checkpoint, open_checkpoint
from consilience.checkpoints.header import StoredTensor
from consilience.checkpoints.inputs import locate_tensor
from consilience.checkpoints.numbers import FLOAT_TYPES
from consilience.checkpoints.tensor_reader import InputFiles
from consilience.errors import FileFormatError, InputError, Problem
from consilience.files.document import METADATA_KEY
from consilience.networks.fisher.files import FISHER_FILES

_PREFIX = "residual/"
"""Before the names of diagonals in files of the library: what low-rank factors leave is a diagonal, too."""

_CHUNK = 2**22
"""Bytes (of digests) or entries (of norms) that are read at once. Chosen by hand; digests do not depend on it, the last
bits of a norm do."""


def open_fisher(path: Path, model: Checkpoint) -> tuple[Checkpoint, str | None]:
    """Return a checkpoint of Fisher diagonals, tensors named as the model's, and the digest of its parameters, if any.

    A parameter that the model stores under several names (tied weights) has its diagonal under all of them.

    `path` is a file that `consilience.save` wrote, or safetensors with a diagonal under every parameter's name. Raises
    FileFormatError for what is no such file, and for one with factors, which an entry-by-entry merge cannot use.
    """
    stored_fisher = open_checkpoint(path, is_fisher=True)
    if not any(METADATA_KEY in file.header.metadata for file in stored_fisher.files):
        return stored_fisher, None
    header = FISHER_FILES.read_header(path)[0]
    if any(name.startswith(("factors/", "layers/")) for name in stored_fisher.tensors):
        text = "has factors, which a merge of checkpoints has no room for"
        raise FileFormatError(path, text, "compute it with `kind='diagonal'`")
    tensors: dict[str, tuple[int, StoredTensor]] = {}
    for name, location in stored_fisher.tensors.items():
        parameter = name.removeprefix(_PREFIX)
        aliases = [parameter, *(alias for alias, target in header.aliases.items() if target == parameter)]
        for alias in [alias for alias in aliases if alias in model.tensors] or [parameter]:
            tensors[alias] = location
    return Checkpoint(stored_fisher.name, stored_fisher.files, tensors), header.digest


def refuse_mismatched_fishers(
    models: tuple[Checkpoint, ...],
    fishers: tuple[Checkpoint, ...],
    digests: tuple[str | None, ...],
    input_files: InputFiles,
) -> None:
    """Raise when a diagonal was computed at other parameters than those of its model; reads the models once.

    `digests` are of the parameters of every diagonal, where its file states them.
    """
    problems = [
        Problem(
            fisher.name,
            f"was computed at other parameters than those of {model.name} (another model, or another precision)",
            "give the files in the order of the models",
            "E-MISMATCH",
        )
        for model, fisher, digest in zip(models, fishers, digests, strict=True)
        if digest is not None and digest != _informed_digest(model, fisher, input_files)
    ]
    if problems:
        raise InputError(problems)


def _informed_digest(model: Checkpoint, fisher: Checkpoint, input_files: InputFiles) -> str:
    """Return the digest of the parameters that have a diagonal, as `parameter_digest` of the arrays would be."""
    names: dict[tuple[int, int], str] = {}  # by file and first byte
    for name, (file_number, stored) in fisher.tensors.items():
        names.setdefault((file_number, stored.start), name)  # of tied weights, the first name
    digest = hashlib.sha256()
    buffer = np.empty(_CHUNK, dtype=np.uint8)
    names_in_model = {stored_parameter_name(fisher, location): name for location, name in names.items()}
    for key in sorted(names_in_model):
        file, stored = locate_tensor(model, names_in_model[key])
        type_name = FLOAT_TYPES[stored.dtype].name
        digest.update(f"{key} {stored.shape} {type_name}\n".encode())
        for start in range(0, stored.nbytes, _CHUNK):
            count = min(_CHUNK, stored.nbytes - start)
            hashing = input_files.read(file, stored.start + start, buffer[:count])
            digest.update(buffer[:count].data)
            if hashing is not None:
                hashing.result()  # only then may the buffer be filled again
    return digest.hexdigest()


def stored_parameter_name(fisher: Checkpoint, location: tuple[int, int]) -> str:
    """Return the file's own name of the parameter whose diagonal is at (number of the file, first byte)."""
    file_number, start = location
    for name, stored in fisher.files[file_number].header.tensors.items():
        if stored.start == start and stored.nbytes:
            return name.removeprefix(_PREFIX)
    raise FileFormatError(fisher.name, "has a tensor without entries")


def diagonal_norms(
    fishers: tuple[Checkpoint, ...], read: Callable[[Checkpoint, str, int, int], Any]
) -> Mapping[str, float]:
    """Return the Euclidean norm of every diagonal, as the facts "norm 0", "norm 1", ...; reads them once.

    `read` gives entries of a tensor in float64, by checkpoint, name, number of the first entry and number of entries.
    """
    norms = {}
    for number, fisher in enumerate(fishers):
        total = 0.0
        for name, (_, stored) in sorted(fisher.tensors.items()):
            for start in range(0, stored.size, _CHUNK):
                total += float(np.sum(read(fisher, name, start, min(_CHUNK, stored.size - start)) ** 2))
        norms[f"norm {number}"] = total**0.5
    return norms
