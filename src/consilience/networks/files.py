"""Network files: safetensors state dicts with a symmetry and provenance in the header.

They are ordinary state dicts, so that any checkpoint of the ecosystem can be an input: the tensors are exactly what
``load_state_dict(safetensors.torch.load_file(path), strict=True)`` needs, tied weights under all of their names. The
symmetry (which axes move together) and the provenance are one JSON document in the header's metadata. A symmetry can
also be a JSON file of its own, for checkpoints of others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from consilience.catalogue import unreadable
from consilience.checks import AnyArray, Json
from consilience.core.provenance import library_versions
from consilience.errors import FileFormatError, InputError, Problem
from consilience.files.arrays import same_bits, storable_arrays, write_arrays
from consilience.files.atomic import write_bytes
from consilience.files.document import NETWORK, OUR_FORMATS, check_version, misplaced, parse_document, validate_document
from consilience.files.format import document_text
from consilience.files.opening import open_file
from consilience.files.safetensors_file import SafetensorsFile, as_file
from consilience.files.safetensors_header import MAX_HEADER_BYTES
from consilience.files.schemas import FiniteJSON, StrictModel
from consilience.networks.descriptions.files import description_path, remove_description_of_another
from consilience.networks.fisher.information import network_digest
from consilience.networks.symmetry.document import REMEDY as SYMMETRY_REMEDY
from consilience.networks.symmetry.document import symmetry_from_json
from consilience.networks.symmetry.symmetry import Symmetry, symmetry_to_json
from consilience.networks.weight_parts import with_known_weights

_SYMMETRY_VERSION = 1
"""Version of the format of symmetry files."""


@dataclass(frozen=True, eq=False)
class NetworkFile:
    """Content of a network file."""

    # By name, in the order of the symmetry where there is one. NumPy arrays, or torch tensors on the CPU where any
    # of them has a type that NumPy lacks (bfloat16, float8).
    arrays: dict[str, AnyArray]
    symmetry: Symmetry | None = None  # which axes move together; None for a plain checkpoint
    # How the file came to be, any JSON object; None for a network nobody fused.
    provenance: dict[str, Json] | None = None


def write_network(
    path: Path,
    arrays: Mapping[str, AnyArray],
    symmetry: Symmetry | None = None,
    provenance: Mapping[str, Json] | None = None,
    *,
    sent: Mapping[str, AnyArray] | None = None,
) -> None:
    """Write a network file, whole or not at all.

    A description beside it that is of other arrays is removed, since no fusion would take the two together. Tied
    weights may be given under one of their names or under all. `sent` is written instead of `arrays`, which the
    symmetry is of: a state dict whose parametrised layers have parts. Raises InputError when the path cannot be
    written, an array cannot be stored, tied weights differ, the symmetry is of another network, or the provenance is
    not made of JSON values.
    """
    named = with_tied_arrays(arrays, {} if symmetry is None else symmetry.aliases)
    stored = storable_arrays(path, named)
    if symmetry is not None:
        symmetry.units({name: tuple(values.shape) for name, values in stored.items()}, f"{path}: cannot be written")
        _refuse_untied(path, stored, symmetry)
    if sent is not None and sent is not arrays:
        stored = storable_arrays(path, dict(sent))
    write_arrays(path, stored, header_text(path, symmetry, provenance, stored))
    if description_path(path).is_file():
        remove_description_of_another(path, network_digest(stored, {}))


def with_tied_arrays(arrays: Mapping[str, AnyArray], aliases: Mapping[str, str]) -> dict[str, AnyArray]:
    """Return arrays with those that are tied under all of their names: first the main name, then its aliases."""
    named = dict(arrays)
    for alias, name in aliases.items():
        if name not in named and alias in named:
            named[name] = named[alias]
    for alias, name in aliases.items():
        if name in named:
            named.setdefault(alias, named[name])
    return named


def read_network(where: Path | SafetensorsFile, *, mapped: bool = False) -> NetworkFile:
    """Return the arrays of a network file or of any other safetensors checkpoint, everything but numbers checked.

    With `mapped`, arrays stay in the file until their values are used. Raises FileFormatError for a file that is
    missing, empty, truncated, no safetensors, of a newer version, with metadata that is not valid, with a type that
    nothing here reads, or that holds a posterior.
    """
    file = as_file(where)
    summary = read_network_summary(file)
    order = dict.fromkeys((*(summary.symmetry.layouts if summary.symmetry else ()), *summary.shapes))
    read = file.mapped_arrays if mapped else file.arrays
    arrays = read([name for name in order if name in summary.shapes], REMEDY)
    return NetworkFile(arrays, summary.symmetry, summary.provenance)


def read_weights(where: Path | SafetensorsFile) -> NetworkFile:
    """Return the content of a network file with weights instead of the parts that names explain; see `read_network`."""
    network = read_network(where)
    return replace(network, arrays=with_known_weights(network.arrays)[0])


def write_symmetry(path: Path, symmetry: Symmetry) -> None:
    """Write a symmetry as a JSON file, whole or not at all.

    Raises InputError when the path cannot be written, or the symmetry refers to groups or arrays that it does not have.
    """
    document = symmetry_to_json(symmetry)
    symmetry_from_json(document, f"{path}: cannot be written")
    text = json.dumps(
        {
            "format": "consilience-symmetry",
            "format_version": _SYMMETRY_VERSION,
            "library_version": library_versions()["consilience"],
            "symmetry": document,
        },
        allow_nan=False,
        indent=1,
    )
    write_bytes(path, f"{text}\n".encode())


def read_symmetry(path: Path) -> Symmetry:
    """Return the symmetry in a JSON file, or the one that a network file carries.

    Raises FileFormatError when the file is neither, is of a newer version, or holds a symmetry that is not valid.
    """
    text = _json_text(path)
    if text is None:
        symmetry = read_network_summary(path).symmetry
        if symmetry is None:
            raise FileFormatError(path, "carries no symmetry", SYMMETRY_REMEDY)
        return symmetry
    document = parse_document(path, text, "content", SYMMETRY_REMEDY)
    check_version(path, document, _SYMMETRY_VERSION)
    header = validate_document(path, _SymmetryHeader, document, "content", SYMMETRY_REMEDY)
    return symmetry_from_json(header.symmetry, str(path))


class _SymmetryHeader(StrictModel):
    """The JSON document that is a symmetry file."""

    format: Literal["consilience-symmetry"]
    format_version: Literal[1]
    library_version: str
    symmetry: dict[str, Any]


def _json_text(path: Path) -> bytes | None:
    """Return the content of a file that may be JSON; None for one that may be safetensors."""
    try:
        with open_file(path) as stream:
            start = stream.read(8)
            # A safetensors file starts with the length of its header in eight bytes, the upper of them zero.
            if start[4:] == bytes(4):
                return None
            size = stream.seek(0, 2)
            if size > MAX_HEADER_BYTES:
                raise FileFormatError(path, "is too long for a symmetry", SYMMETRY_REMEDY)
            stream.seek(0)
            text = stream.read(size)  # and no more: to read is to allocate first
    except OSError as error:
        raise FileFormatError(unreadable(path, error)) from error
    except FileFormatError:
        raise
    except ValueError as error:  # a name that no file can have, with a zero byte
        raise FileFormatError(path, f"cannot be read: {error}") from error
    if not text:
        raise FileFormatError(path, "is empty", SYMMETRY_REMEDY)
    return text


def _refuse_untied(path: Path, stored: Mapping[str, AnyArray], symmetry: Symmetry) -> None:
    """Raise for tied arrays with different values."""
    where = "are one array in this network (tied weights), but differ here"
    problems = [
        Problem(path, f"cannot be written: arrays {alias} and {name} {where}", "give them the same values")
        for alias, name in symmetry.aliases.items()
        if not same_bits(stored[alias], stored[name])
    ]
    if problems:
        raise InputError(problems)


FORMAT_VERSION = 1
"""Version of the format of network files; newer ones are refused."""
REMEDY = "write it with consilience.save or safetensors.torch.save_file"


class NetworkHeader(StrictModel):
    """The JSON document in a network file's header; the symmetry is checked by `symmetry_from_json`."""

    format: Literal["consilience-network"]
    format_version: Literal[1]
    library_version: str
    symmetry: dict[str, Any] | None
    provenance: FiniteJSON | None


@dataclass(frozen=True)
class NetworkSummary:
    """Header of a network file or checkpoint, read without its tensors."""

    kind: Literal["network", "checkpoint"]  # "network" for our own files, "checkpoint" for others
    # `shapes`, `dtypes`: by name of the array; types by NumPy's and torch's name.
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    # `symmetry`, `provenance`, `library_version`: as in the header; None for a plain checkpoint.
    symmetry: Symmetry | None = None
    provenance: dict[str, Json] | None = None
    library_version: str | None = None


def read_network_summary(where: Path | SafetensorsFile) -> NetworkSummary:
    """Return what the header of a network file or checkpoint says.

    Raises FileFormatError as `read_network`, but for what is wrong with tensors.
    """
    file = as_file(where)
    shapes, dtypes = dict(file.header(REMEDY).shapes), dict(file.header(REMEDY).dtypes)
    header = _parse_header(file)
    if header is None:
        return NetworkSummary("checkpoint", shapes, dtypes)
    symmetry = None if header.symmetry is None else symmetry_from_json(header.symmetry, file.label)
    return NetworkSummary("network", shapes, dtypes, symmetry, header.provenance, header.library_version)


def header_text(
    path: Path, symmetry: Symmetry | None, provenance: Mapping[str, Json] | None, arrays: Mapping[str, AnyArray]
) -> str:
    """Return the JSON document of the header.

    Its keys are sorted, but for those of the symmetry's arrays: their order is the order in which methods sum.
    """
    document = None if symmetry is None else symmetry_to_json(symmetry)
    if document is not None:
        symmetry_from_json(document, f"{path}: cannot be written")
    return document_text(
        path,
        NETWORK,
        FORMAT_VERSION,
        {"provenance": None if provenance is None else dict(provenance), "symmetry": document},
        arrays,
        in_order="symmetry",
    )


def _parse_header(file: SafetensorsFile) -> NetworkHeader | None:
    """Return the document of a network file; None for a plain checkpoint; raise for files of other kinds."""
    document = file.document
    if file.header().text is None:
        return None
    stated_format = document.get("format") if isinstance(document, dict) else None
    if isinstance(stated_format, str) and stated_format in OUR_FORMATS and stated_format != NETWORK:
        raise FileFormatError(file, *misplaced(stated_format, "a network or a checkpoint"))
    if stated_format == NETWORK:
        check_version(file.label, document, FORMAT_VERSION)
    return validate_document(file.label, NetworkHeader, document)
