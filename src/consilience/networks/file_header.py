"""Header of network files: format, symmetry (which axes move together) and provenance.

One JSON document under the key ``consilience`` of a safetensors header, format "consilience-network". Whatever has no
such key is a plain checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from consilience.checks import AnyArray
from consilience.errors import FileFormatError
from consilience.files.document import check_version, validate_document
from consilience.files.format import document_text
from consilience.files.our_formats import NETWORK, OUR_FORMATS, misplaced
from consilience.files.safetensors_file import SafetensorsFile, as_file
from consilience.files.schemas import FiniteJSON, StrictModel
from consilience.networks.symmetry.document import symmetry_from_json
from consilience.networks.symmetry.symmetry import Symmetry, symmetry_to_json

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
    """Header of a network file or checkpoint, read without its tensors.

    Parameters
    ----------
    kind : {"network", "checkpoint"}
        "network" for our own files, "checkpoint" for others.
    shapes, dtypes : dict
        By name of the array; types by NumPy's and torch's name.
    symmetry, provenance, library_version
        As in the header; None for a plain checkpoint.
    """

    kind: Literal["network", "checkpoint"]
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    symmetry: Symmetry | None = None
    provenance: dict[str, Any] | None = None
    library_version: str | None = None


def read_network_summary(where: Path | SafetensorsFile) -> NetworkSummary:
    """Return what the header of a network file or checkpoint says.

    Raises
    ------
    FileFormatError
        As `read_network`, but for what is wrong with tensors.
    """
    file = as_file(where)
    shapes, dtypes = dict(file.header(REMEDY).shapes), dict(file.header(REMEDY).dtypes)
    header = _parse_header(file)
    if header is None:
        return NetworkSummary("checkpoint", shapes, dtypes)
    symmetry = None if header.symmetry is None else symmetry_from_json(header.symmetry, file.label)
    return NetworkSummary("network", shapes, dtypes, symmetry, header.provenance, header.library_version)


def header_text(
    path: Path, symmetry: Symmetry | None, provenance: dict[str, Any] | None, arrays: Mapping[str, AnyArray]
) -> str:
    """Return the JSON document of the header.

    Its keys are sorted, but for those of the symmetry's arrays: their order is the order in which methods sum.
    """
    document = None if symmetry is None else symmetry_to_json(symmetry)
    if document is not None:
        symmetry_from_json(document, f"{path}: cannot be written")
    return document_text(
        path, NETWORK, FORMAT_VERSION, {"provenance": provenance, "symmetry": document}, arrays, in_order="symmetry"
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
