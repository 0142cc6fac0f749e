"""Folders of ensembles: a safetensors file for every member, and one JSON document beside them.

Members are files like those of any network, so that they can be fused and inspected one by one. The document has what
the ensemble makes of them (weights, mean, counts and names of classes) and the digest of every file. Architectures are
not written: who reads a folder says how a member is made.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import FailFast

from consilience.catalogue import unreadable
from consilience.checks import AnyArray
from consilience.core.provenance import file_digest, library_versions
from consilience.errors import FileFormatError, InputError, OptionError, Problem
from consilience.files.atomic import write_bytes, write_folder_atomically
from consilience.files.document import check_version, parse_document, validate_document
from consilience.files.opening import open_file
from consilience.files.safetensors_file import as_file
from consilience.files.safetensors_header import MAX_HEADER_BYTES
from consilience.files.schemas import Chunked, StrictModel
from consilience.networks.files import read_network, write_network
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.torch_modules import arrays_of_module, make_template, module_with

if TYPE_CHECKING:
    from torch import nn

    from consilience.networks.ensemble import ModuleEnsemble

DOCUMENT = "ensemble.json"
"""Name of the document in a folder."""

_FORMAT_VERSION = 1
_REMEDY = "write it with `consilience.save(ensemble, folder)`"
_CONTENT = "content"


class _Member(StrictModel):
    """A member: its name, and the SHA-256 of its file."""

    name: str
    sha256: str


class _AnswerMean(StrictModel):
    """How the members' answers are averaged; of several outputs, those to one."""

    mean: Literal["probabilities", "logits", "stationary"]
    weights: Chunked[list[float]]
    classes: Chunked[list[str]] | None
    class_counts: Chunked[list[list[float]]] | None
    n_observations: Chunked[list[float]] | None
    class_prior: Chunked[list[Literal["own", "removed"]]]
    one_output: Literal["logits", "probabilities"] | None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `AnswerMean`."""
        return {**self.model_dump(), "weights": np.array(self.weights, dtype=np.float64)}


class _EnsembleDocument(StrictModel):
    """The JSON document of an ensemble's folder; member j is in ``member-j.safetensors``."""

    format: Literal["consilience-ensemble"]
    format_version: Literal[1]
    library_version: str
    members: Chunked[list[_Member]]
    answer: _AnswerMean
    outputs: Annotated[list[_AnswerMean], FailFast()]


def is_ensemble(model: object) -> bool:
    """Return whether an object is an ensemble of networks, without importing torch."""
    ensembles = sys.modules.get("consilience.networks.ensemble")  # if nobody imported it, nothing is an ensemble
    return ensembles is not None and isinstance(model, ensembles.ModuleEnsemble)


def member_file(number: int) -> str:
    """Return the name of a member's file in a folder."""
    return f"member-{number}.safetensors"


def write_ensemble(folder: Path, ensemble: ModuleEnsemble) -> None:
    """Write an ensemble into a new folder, whole or not at all.

    The folder must not exist, or be empty; parameters and persistent buffers of the members are written. Raises
    InputError when the folder cannot be written, or an array of a member cannot be stored.
    """
    with write_folder_atomically(folder) as partial:
        members = []
        for number, (name, member) in enumerate(zip(ensemble.names, ensemble.members, strict=True)):
            try:
                write_network(partial / member_file(number), arrays_of_module(member))
            except InputError as error:
                problems = [problem.renamed(partial, folder) for problem in error.problems]
                raise InputError(problems) from error
            members.append({"name": name, "sha256": file_digest(partial / member_file(number))})
        document = {
            "format": "consilience-ensemble",
            "format_version": _FORMAT_VERSION,
            "library_version": library_versions()["consilience"],
            "members": members,
            "answer": _stated(ensemble.answer),
            "outputs": [_stated(one) for one in ensemble.outputs],
        }
        write_bytes(partial / DOCUMENT, f"{json.dumps(document, allow_nan=False, indent=1)}\n".encode())


def _stated(answer: Any) -> dict[str, Any]:
    """Return what a document states of the mean of the members' answers."""
    return {
        "mean": answer.mean,
        # As decimal numbers they come back to the bit.
        "weights": answer.weights.double().tolist(),
        "classes": None if answer.classes is None else list(answer.classes),
        "class_counts": None if answer.class_counts is None else answer.class_counts.tolist(),
        "n_observations": None if answer.n_observations is None else answer.n_observations.tolist(),
        "class_prior": list(answer.class_prior),
        "one_output": answer.one_output,
    }


def read_ensemble(
    folder: Path, module: nn.Module | Callable[[], nn.Module] | Sequence[Any] | Mapping[str, Any] | None
) -> ModuleEnsemble:
    """Return the ensemble in a folder, in evaluation mode on the CPU: it answers as the one that was written.

    `module` is a network of the members' architecture, or a function that makes one; for members of several, one for
    each, in their order or by name. Buffers that are not persistent stay as it has them. Raises FileFormatError for a
    folder without a document, one that is not valid or newer, and for members' files that are missing, broken or others
    than were written; InputError for members of another architecture; OptionError for a module that is none, or not one
    for each member.
    """
    from consilience.networks.ensemble import AnswerMean, ModuleEnsemble  # here, since it needs torch

    document = _read_document(folder)
    names = [member.name for member in document.members]
    modules = [
        _read_member(folder / member_file(number), member.sha256, template)
        for number, (member, template) in enumerate(zip(document.members, _templates(module, names), strict=True))
    ]
    try:
        outputs = [AnswerMean(**one.arguments()) for one in document.outputs]
        return ModuleEnsemble(modules, **document.answer.arguments(), names=names, outputs=outputs).eval()
    except InputError as error:
        raise FileFormatError([_not_valid(folder / DOCUMENT, problem) for problem in error.problems]) from error


def _read_document(folder: Path) -> _EnsembleDocument:
    """Return the document of a folder, every field checked."""
    path = folder / DOCUMENT
    try:
        with open_file(path) as stream:
            text = stream.read(MAX_HEADER_BYTES + 1)
    except FileNotFoundError:
        raise FileFormatError(
            folder, f"cannot be read: it is a directory without {DOCUMENT}, so no ensemble", _REMEDY
        ) from None
    except OSError as error:
        raise FileFormatError(unreadable(path, error)) from error
    if len(text) > MAX_HEADER_BYTES:
        raise FileFormatError(path, "is too long for the document of an ensemble", _REMEDY)
    content = parse_document(path, text, _CONTENT, _REMEDY)
    check_version(path, content, _FORMAT_VERSION)
    document = validate_document(path, _EnsembleDocument, content, _CONTENT, _REMEDY)
    # `Chunked` entries stay as JSON gave them.
    members = [_Member.model_validate(member) for member in document.members]
    if not members:
        raise FileFormatError(path, "names no members", _REMEDY)
    weights = np.array(document.answer.weights, dtype=np.float64)
    if not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        problem = Problem("weights", "expected finite numbers that are not negative, and not all zero", code="E-NUMBER")
        raise FileFormatError(_not_valid(path, problem))
    return document.model_copy(update={"members": members})


def _not_valid(path: Path, problem: Problem) -> Problem:
    """Return a problem of a field as one of the document."""
    return Problem(path, f"its {_CONTENT} is not valid at {problem.subject}: {problem.text}", _REMEDY)


def _templates(module: Any, names: Sequence[str]) -> list[nn.Module]:
    """Return a network of the architecture of every member, or raise where one is missing."""
    if isinstance(module, Mapping):
        if missing := [name for name in names if name not in module]:
            raise OptionError("module", f"there is none for member {missing[0]}; the members are {', '.join(names)}")
        module = [module[name] for name in names]
    # A network that is a sequence of layers is one network all the same.
    elif not isinstance(module, list | tuple):
        module = [module] * len(names)
    if len(module) != len(names):
        raise OptionError("module", f"expected one for each of {len(names)} members, found {len(module)}")
    templates = []
    for each in module:
        template = make_template(each)
        if template is None:
            remedy = "give a network of the members' architecture, or a function that makes one"
            raise OptionError("module", f"files have parameters only: {remedy}")
        templates.append(template)
    return templates


def _read_member(path: Path, sha256: str, template: nn.Module) -> nn.Module:
    """Return a member with the arrays of its file, in their precision."""
    file = as_file(path)
    network = read_network(file)
    if file.digest != sha256:
        text = (
            f"is not the file that the ensemble was written with: its SHA-256 is {file.digest[:12]}…, expected "
            f"{sha256[:12]}…"
        )
        raise FileFormatError(path, text, "copy the folder again")
    try:
        return module_with(_in_precision_of(template, network.arrays), network.arrays, Symmetry({}, ()))
    except InputError as error:
        raise InputError([problem.about(path) for problem in error.problems]) from error


def _in_precision_of(template: nn.Module, arrays: Mapping[str, AnyArray]) -> nn.Module:
    """Return a copy of a module whose parameters and buffers have the types of arrays of the same names."""
    import torch

    module = copy.deepcopy(template)
    for name, values in module.state_dict(keep_vars=True).items():
        if name in arrays:
            values.data = values.data.to(torch.as_tensor(arrays[name]).dtype)
    return module
