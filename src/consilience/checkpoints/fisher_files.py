"""Fisher diagonals beside checkpoints: which informs which tensor, and whether it is of that model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from consilience.checkpoints.folder import Checkpoint, open_checkpoint
from consilience.checkpoints.header import Stored
from consilience.checkpoints.inputs import located
from consilience.checkpoints.numbers import FLOATS
from consilience.checkpoints.tensor_reader import Library
from consilience.errors import FileFormatError, InputError
from consilience.files.document import METADATA_KEY
from consilience.networks.fisher.files import read_fisher_summary

_PREFIX = "residual/"
_STEP = 2**22


def open_fisher(path: Path, model: Checkpoint) -> tuple[Checkpoint, str | None]:
    """Return a checkpoint of Fisher diagonals, tensors named as the model's, and the digest of its parameters if told.

    Files that `consilience.save` wrote, and safetensors with a diagonal under every parameter's name. A parameter that
    the model stores under several names (tied weights) is informed under all of them.

    Raises
    ------
    FileFormatError
        For what is no such file, and for one with factors, which an entry-by-entry merge cannot use.
    """
    found = open_checkpoint(path)
    if not any(METADATA_KEY in part.header.metadata for part in found.parts):
        return found, None
    header = read_fisher_summary(path).header
    if any(name.startswith("factors/") for name in found.tensors):
        raise FileFormatError(
            f"{path}: has factors, which a merge of checkpoints has no room for; compute it with kind='diagonal'"
        )
    tensors: dict[str, tuple[int, Stored]] = {}
    for name, at in found.tensors.items():
        own = name.removeprefix(_PREFIX)
        known = [own, *(alias for alias, of in header.aliases.items() if of == own)]
        for alias in [one for one in known if one in model.tensors] or [own]:
            tensors[alias] = at
    return Checkpoint(found.name, found.parts, tensors), header.digest


def refuse_strangers(
    models: tuple[Checkpoint, ...], fishers: tuple[Checkpoint, ...], digests: tuple[str | None, ...], library: Library
) -> None:
    """Raise when a diagonal was computed at other parameters than those of its model; reads the models once.

    Raises
    ------
    InputError
        Naming the files.
    """
    problems = [
        f"{fisher.name}: was computed at other parameters than those of {model.name} (another model, or another "
        "precision); give the files in the order of the models"
        for model, fisher, digest in zip(models, fishers, digests, strict=True)
        if digest is not None and digest != _digest(model, fisher, library)
    ]
    if problems:
        raise InputError(problems)


def _digest(model: Checkpoint, fisher: Checkpoint, library: Library) -> str:
    """Return the digest of the parameters that a diagonal informs, as `parameter_digest` of the arrays would be."""
    names: dict[tuple[int, int], str] = {}
    for name, (part, stored) in fisher.tensors.items():
        names.setdefault((part, stored.start), name)  # under the first of its names
    digest = hashlib.sha256()
    buffer = np.empty(_STEP, dtype=np.uint8)
    own = {fisher_name(fisher, at): name for at, name in names.items()}
    for key in sorted(own):
        part_, stored = located(model, own[key])
        kind = FLOATS[stored.dtype].name
        digest.update(f"{key} {stored.shape} {kind}\n".encode())
        for start in range(0, stored.nbytes, _STEP):
            count = min(_STEP, stored.nbytes - start)
            hashed = library.read(part_, stored.start + start, buffer[:count])
            digest.update(buffer[:count].data)
            if hashed is not None:
                hashed.result()
    return digest.hexdigest()


def fisher_name(fisher: Checkpoint, at: tuple[int, int]) -> str:
    """Return what a file itself calls the parameter whose diagonal is at a place."""
    part, start = at
    for name, stored in fisher.parts[part].header.tensors.items():
        if stored.start == start and stored.nbytes:
            return name.removeprefix(_PREFIX)
    raise FileFormatError(f"{fisher.name}: has a tensor without entries")


def norms(fishers: tuple[Checkpoint, ...], read: Callable[[Checkpoint, str, int, int], Any]) -> Mapping[str, float]:
    """Return the norm of every diagonal, as the facts "norm 0", "norm 1", ...; reads them once.

    Parameters
    ----------
    fishers
        The diagonals.
    read
        Gives entries of a tensor, in 64 bits: of which file, its name, the first entry, and how many.
    """
    found = {}
    for number, fisher in enumerate(fishers):
        total = 0.0
        for name, (_, stored) in sorted(fisher.tensors.items()):
            for start in range(0, stored.size, _STEP):
                total += float(np.sum(read(fisher, name, start, min(_STEP, stored.size - start)) ** 2))
        found[f"norm {number}"] = total**0.5
    return found
