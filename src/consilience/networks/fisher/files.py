"""Files of Fisher information, written beside the file of a network.

An ordinary safetensors file: arrays ``residual/NAME`` (*shape) and ``factors/NAME`` (rank, *shape) by parameter, or
Kronecker factors ``layers/PATH/inputs`` and ``layers/PATH/outputs`` by layer (float32 lower triangles), and one JSON
document in the header's metadata, format "consilience-fisher". A digest of the parameters binds it to its network,
whose own file stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from consilience.core.inspection import Row
from consilience.core.min_count import MIN_COUNT
from consilience.errors import FileFormatError, InputError
from consilience.files.arrays import storable_arrays, write_arrays
from consilience.files.document import check_version, validate_document
from consilience.files.format import document_text
from consilience.files.our_formats import FISHER
from consilience.files.safetensors_file import SafetensorsFile, as_file
from consilience.files.schemas import Chunked, StrictModel
from consilience.networks.fisher.information import FisherInformation, Likelihood
from consilience.networks.fisher.kronecker import (
    OBSERVATIONS_PER_SIZE,
    factor_arrays,
    factors_of_arrays,
    stated_sizes,
)

_VERSION = 1
_REMEDY = "write it with consilience.save"
# Fields of the header that are attributes of `FisherInformation` under the same name.
_FIELDS = (
    "observations", "prior_precision", "likelihood", "noise", "seen", "samples", "linear", "digest",
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
    digest: str | None
    aliases: Chunked[dict[str, str]]
    layers: Chunked[dict[str, list[int]]] = Field(default_factory=dict)


@dataclass(frozen=True)
class FisherSummary:
    """The header of a Fisher file, read without its tensors.

    Parameters
    ----------
    header : FisherHeader
        The JSON document.
    shapes : dict of str to tuple of int
        Shape of every tensor, by its name.
    dtypes : dict of str to str
        Type of every tensor, by its name.
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
    arrays |= factor_arrays(information.layers)
    layers = {"layers": stated_sizes(information.layers)} if information.layers else {}
    fields = {
        "parameters": list(information.residual),
        "aliases": dict(sorted(information.aliases.items())),
        **{name: getattr(information, name) for name in _FIELDS},
        **layers,
    }
    stored = storable_arrays(path, arrays)
    write_arrays(path, stored, document_text(path, FISHER, _VERSION, fields, stored))


def read_fisher_summary(where: Path | SafetensorsFile) -> FisherSummary:
    """Return what the header of a Fisher file says.

    Raises
    ------
    FileFormatError
        For a file that is no Fisher file of a version that this library reads, or whose tensors are not those that its
        header lists.
    """
    file = as_file(where)
    shapes, dtypes = dict(file.header(_REMEDY).shapes), dict(file.header(_REMEDY).dtypes)
    if file.format != FISHER:
        raise FileFormatError(file, "is no file of Fisher information", _REMEDY)
    check_version(file.label, file.document, _VERSION)
    header = validate_document(file.label, FisherHeader, file.document)
    expected = {f"residual/{name}" for name in header.parameters}
    expected |= {f"layers/{path}/{what}" for path in header.layers for what in ("inputs", "outputs")}
    factors = {f"factors/{name}" for name in header.parameters}
    if set(shapes) not in (expected, expected | factors):
        odd = sorted(set(shapes) ^ expected)[:3]
        raise FileFormatError(file, f"its tensors are not those of its parameters ({', '.join(odd)})", _REMEDY)
    return FisherSummary(header, shapes, dtypes)


def read_fisher(where: Path | SafetensorsFile) -> FisherInformation:
    """Return the Fisher information in a file, everything checked.

    Raises
    ------
    FileFormatError
        As `read_fisher_summary`.
    InputError
        When its values are not valid, naming the parameters at fault.
    """
    file = as_file(where)
    summary = read_fisher_summary(file)
    arrays = file.arrays(list(summary.shapes), _REMEDY)
    header = summary.header
    try:
        return FisherInformation(
            residual={name: arrays[f"residual/{name}"] for name in header.parameters},
            factors={name: arrays[f"factors/{name}"] for name in header.parameters if f"factors/{name}" in arrays},
            layers=factors_of_arrays(header.layers, arrays, file.label),
            aliases=header.aliases,
            name=file.label,
            sha256=file.digest,
            **{name: getattr(header, name) for name in _FIELDS},
        )
    except IndexError as error:  # factors without an axis
        raise InputError(file, "factors must have an axis for their number", _REMEDY) from error


def layer_people_rows(n_observations: float | None, min_count: float = MIN_COUNT) -> list[Row]:
    """Return what second moments of layers tell about people, in plain words."""
    rare = f", and of a row that fewer than {min_count:g} observations make non-zero" if min_count > 0 else ""
    over = "" if n_observations is None else f", over {n_observations:,g} observations"
    return [
        (
            "layers",
            f"how the site's inputs vary together, and what every layer makes of them{over}; of fewer than "
            f"{OBSERVATIONS_PER_SIZE} observations for each row of a factor only its diagonal{rare}",
        ),
        (
            "directions",
            "the leading directions of the first layer are directions in which inputs vary; an observation unlike all "
            "others may have one of its own",
        ),
    ]
