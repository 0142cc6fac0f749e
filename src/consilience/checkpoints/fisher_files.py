"""Files of Fisher diagonals for merges of checkpoints: which diagonal belongs to which tensor, and to which model.

A file that `consilience.fisher` and `consilience.save` wrote holds the digest of the parameters at which it was
computed; a merge with a model of other parameters is refused. Plain safetensors with a diagonal under every parameter's
name are taken as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from consilience.checkpoints.folder import Checkpoint, open_checkpoint
from consilience.checkpoints.header import StoredTensor
from consilience.checkpoints.inputs import InformedParameters, InputFactors, locate_tensor
from consilience.checkpoints.numbers import FLOAT_TYPES
from consilience.checkpoints.tensor_reader import InputFiles
from consilience.errors import FileFormatError, InputError, Problem
from consilience.files.document import METADATA_KEY
from consilience.networks.fisher.files import FISHER_FILES, FisherHeader
from consilience.networks.fisher.kronecker import parameter_names

_PREFIX = "residual/"
"""Before the names of diagonals in files of the library: what low-rank factors leave is a diagonal, too."""

_KRONECKER = "compute it with `kind='kronecker'`"
_CHUNK = 2**22
"""Bytes (of digests) or entries (of norms) that are read at once. Chosen by hand; digests do not depend on it, the last
bits of a norm do."""


def open_fisher(path: Path, model: Checkpoint, factors: bool = False) -> tuple[Checkpoint, InformedParameters | None]:
    """Return a checkpoint of Fisher diagonals, tensors named as the model's, and the parameters that it is of, if any.

    A parameter that the model stores under several names (tied weights) has its diagonal under all of them.

    `path` is a file that `consilience.save` wrote, or safetensors with a diagonal under every parameter's name. Raises
    FileFormatError for what is no such file, and for one with factors, which an entry-by-entry merge cannot use; with
    `factors`, for one without those of layers.
    """
    stored_fisher = open_checkpoint(path, takes_other_formats=True)
    if not any(METADATA_KEY in file.header.metadata for file in stored_fisher.files):
        if factors:
            raise FileFormatError(path, "has no factors of layers", _KRONECKER)
        return stored_fisher, None
    header = FISHER_FILES.read_header(path)[0]
    if factors:
        return _input_factors(path, stored_fisher, header, model)
    if any(name.startswith(("factors/", "layers/")) for name in stored_fisher.tensors):
        text = "has factors, which a merge of checkpoints has no room for"
        raise FileFormatError(path, text, "compute it with `kind='diagonal'`")
    tensors: dict[str, tuple[int, StoredTensor]] = {}
    names: dict[str, str] = {}
    for name, location in stored_fisher.tensors.items():
        parameter = name.removeprefix(_PREFIX)
        known = _names_in(model, parameter, header)
        names[parameter] = known[0]
        tensors |= dict.fromkeys(known, location)
    informed = None if header.digest is None else InformedParameters(header.digest, names)
    return Checkpoint(stored_fisher.name, stored_fisher.files, tensors), informed


def _names_in(model: Checkpoint, parameter: str, header: FisherHeader) -> list[str]:
    """Return the names of a parameter that a model has; its own name where it has none."""
    aliases = [parameter, *(alias for alias, target in header.aliases.items() if target == parameter)]
    return [alias for alias in aliases if alias in model.tensors] or [parameter]


def _input_factors(
    path: Path, stored_fisher: Checkpoint, header: FisherHeader, model: Checkpoint
) -> tuple[Checkpoint, InformedParameters | None]:
    """Return the factors of layers' inputs by the names of the model's weights, and the parameters that they are of."""
    if not header.layers:
        raise FileFormatError(path, "has no factors of layers", _KRONECKER)
    tensors, sizes = {}, {}
    informed = list(header.parameters)
    for layer, stated in header.layers.items():
        weight, bias = parameter_names(layer)
        has_bias = len(stated) == 4 and bool(stated[3])
        informed += [weight, bias][: 1 + has_bias]
        location = stored_fisher.tensors.get(f"layers/{layer}/inputs")
        if location is None or len(stated) != 4 or min(stated[:3]) < 1 or weight not in model.tensors:
            raise FileFormatError(path, f"has factors of {layer}, which are none of {model.name}", _KRONECKER)
        shape = model.tensors[weight][1].shape
        groups, outputs, rows = stated[:3]
        n_inputs = prod(shape[1:])
        if shape[0] != groups * outputs or rows != n_inputs + has_bias:
            raise FileFormatError(path, f"factors of {layer} are not of the shape that {model.name} has", _KRONECKER)
        for name in _names_in(model, weight, header):
            tensors[name], sizes[name] = location, (groups, n_inputs, rows)
    names = {name: _names_in(model, name, header)[0] for name in informed}
    of = None if header.digest is None else InformedParameters(header.digest, names)
    return InputFactors(stored_fisher.name, stored_fisher.files, tensors, sizes=sizes), of


def refuse_mismatched_fishers(
    models: tuple[Checkpoint, ...],
    fishers: tuple[Checkpoint, ...],
    informed: tuple[InformedParameters | None, ...],
    input_files: InputFiles,
) -> None:
    """Raise when a file was computed at other parameters than those of its model; reads the models once.

    `informed` are the parameters of every file, where it states them.
    """
    problems = [
        Problem(
            fisher.name,
            f"was computed at other parameters than those of {model.name} (another model, or another precision)",
            "give the files in the order of the models",
            "E-MISMATCH",
        )
        for model, fisher, of in zip(models, fishers, informed, strict=True)
        if of is not None and of.digest != _digest_in(model, of.names, input_files)
    ]
    if problems:
        raise InputError(problems)


def _digest_in(model: Checkpoint, names: Mapping[str, str], input_files: InputFiles) -> str:
    """Return the digest of some parameters of a model, as `parameter_digest` of the arrays would be."""
    digest = hashlib.sha256()
    buffer = np.empty(_CHUNK, dtype=np.uint8)
    for key in sorted(names):
        if names[key] not in model.tensors:
            return ""  # of other parameters in any case
        file, stored = locate_tensor(model, names[key])
        type_name = FLOAT_TYPES[stored.dtype].name
        digest.update(f"{key} {stored.shape} {type_name}\n".encode())
        for start in range(0, stored.nbytes, _CHUNK):
            count = min(_CHUNK, stored.nbytes - start)
            hashing = input_files.read(file, stored.start + start, buffer[:count])
            digest.update(buffer[:count].data)
            if hashing is not None:
                hashing.result()  # only then may the buffer be filled again
    return digest.hexdigest()


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
