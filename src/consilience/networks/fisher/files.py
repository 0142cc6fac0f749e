"""Files of Fisher information: what travels beside a network's file, so that the network's own stays as it is.

An ordinary safetensors file: arrays ``residual/NAME`` and ``factors/NAME`` by parameter, and one JSON document in the
header's metadata, format "consilience-fisher". It is bound to its network by a digest of the parameters.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from consilience.core.provenance import file_digest, library_versions
from consilience.errors import FileFormatError, InputError
from consilience.files.arrays import read_arrays, shapes_and_types, storable_arrays, write_arrays
from consilience.files.document import METADATA_KEY, check_version, open_safetensors, parse_document, validate_document
from consilience.files.schemas import Chunked, StrictModel
from consilience.networks.fisher.information import FisherInformation, Likelihood

_FORMAT, _VERSION = "consilience-fisher", 1
_REMEDY = "write it with consilience.save"
_FIELDS = (
    "observations", "prior_precision", "likelihood", "noise", "seen", "samples", "linear", "compat", "digest",
)  # fmt: skip


class FisherHeader(StrictModel):
    """The JSON document in the header of a Fisher file."""

    format: Literal["consilience-fisher"]
    format_version: Literal[1]
    library_version: str
    parameters: Chunked[list[str]]
    observations: float | None
    prior_precision: float | None
    likelihood: Likelihood | None
    noise: float
    seen: int | None
    samples: int | None
    linear: bool
    compat: bool
    digest: str | None
    aliases: Chunked[dict[str, str]]


@dataclass(frozen=True)
class FisherSummary:
    """What the header of a Fisher file says, without reading its tensors.

    Parameters
    ----------
    header
        The document.
    shapes, dtypes
        By name of the tensor.
    """

    header: FisherHeader
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]

    @property
    def rank(self) -> int:
        """Number of factors."""
        return max(
            (shape[0] for name, shape in self.shapes.items() if name.startswith("factors/") and shape), default=0
        )


def write_fisher(path: Path, information: FisherInformation) -> None:
    """Write Fisher information, whole or not at all.

    Raises
    ------
    InputError
        When the path cannot be written, or an array cannot be stored.
    """
    arrays = {f"residual/{name}": values for name, values in information.residual.items()}
    arrays |= {f"factors/{name}": values for name, values in information.factors.items()}
    header = {
        "format": _FORMAT,
        "format_version": _VERSION,
        "library_version": library_versions()["consilience"],
        "parameters": list(information.residual),
        "aliases": dict(sorted(information.aliases.items())),
        **{name: getattr(information, name) for name in _FIELDS},
    }
    write_arrays(
        path, storable_arrays(path, arrays), {METADATA_KEY: json.dumps(header, sort_keys=True, allow_nan=False)}
    )


def read_fisher_summary(path: Path) -> FisherSummary:
    """Return what the header of a Fisher file says.

    Raises
    ------
    FileFormatError
        For a file that is no Fisher file of a version that this library reads, or whose tensors are not those that its
        header tells of.
    """
    with open_safetensors(path, _REMEDY) as file:
        metadata = file.metadata()
        shapes, dtypes = shapes_and_types(file)
    document = parse_document(path, metadata[METADATA_KEY]) if metadata and METADATA_KEY in metadata else None
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise FileFormatError(f"{path}: is no file of Fisher information; {_REMEDY}")
    check_version(path, document, _VERSION)
    header = validate_document(path, FisherHeader, document)
    expected = {f"residual/{name}" for name in header.parameters}
    factors = {f"factors/{name}" for name in header.parameters}
    if set(shapes) not in (expected, expected | factors):
        odd = sorted(set(shapes) ^ expected)[:3]
        raise FileFormatError(f"{path}: its tensors are not those of its parameters ({', '.join(odd)}); {_REMEDY}")
    return FisherSummary(header, shapes, dtypes)


def read_fisher(path: Path) -> FisherInformation:
    """Return the Fisher information in a file, everything checked.

    Raises
    ------
    FileFormatError
        As `read_fisher_summary`.
    InputError
        When its values are not valid, naming the parameters at fault.
    """
    summary = read_fisher_summary(path)
    arrays = read_arrays(path, list(summary.shapes), summary.dtypes, _REMEDY)
    header = summary.header
    try:
        return FisherInformation(
            residual={name: arrays[f"residual/{name}"] for name in header.parameters},
            factors={name: arrays[f"factors/{name}"] for name in header.parameters if f"factors/{name}" in arrays},
            aliases=header.aliases,
            name=str(path),
            sha256=file_digest(path),
            **{name: getattr(header, name) for name in _FIELDS},
        )
    except IndexError as error:  # factors without an axis
        raise InputError(f"{path}: factors must have an axis for their number; {_REMEDY}") from error
