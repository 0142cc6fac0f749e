"""Files of Fisher information, written next to the file of a network.

An ordinary safetensors file: arrays ``residual/NAME`` (*shape) and ``factors/NAME`` (rank, *shape) by parameter, or
Kronecker factors ``layers/PATH/inputs`` and ``layers/PATH/outputs`` by layer (float32 lower triangles), and one JSON
document in the header's metadata, format "consilience-fisher". A digest of the parameters binds it to its network,
whose own file stays as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from consilience.checks import AnyArray
from consilience.core.inspection import Row
from consilience.core.min_count import MIN_COUNT
from consilience.errors import InputError
from consilience.files.arrays import storable_arrays
from consilience.files.document import FISHER
from consilience.files.format import Format, TensorSpec
from consilience.files.safetensors_file import SafetensorsFile, TensorHeader
from consilience.files.schemas import Chunked, StrictModel
from consilience.networks.fisher.information import FisherInformation, Likelihood
from consilience.networks.fisher.kronecker import (
    OBSERVATIONS_PER_SIZE,
    factor_arrays,
    factor_tensors,
    factors_of_arrays,
    stated_sizes,
)

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


def write_fisher(path: Path, information: FisherInformation) -> None:
    """Write Fisher information, whole or not at all; raise InputError for what cannot be written."""
    arrays = {f"residual/{name}": values for name, values in information.residual.items()}
    arrays |= {f"factors/{name}": values for name, values in information.factors.items()}
    arrays |= factor_arrays(information.layers)
    fields = {
        "parameters": list(information.residual),
        "aliases": dict(sorted(information.aliases.items())),
        **{name: getattr(information, name) for name in _FIELDS},
        "layers": stated_sizes(information.layers),
    }
    FISHER_FILES.write(path, fields, storable_arrays(path, arrays))


def _tensors(header: FisherHeader) -> dict[str, TensorSpec]:
    """Return the tensors that a document announces."""
    diagonals = {f"residual/{name}": TensorSpec(may_be_empty=True) for name in header.parameters}
    factors = {f"factors/{name}": TensorSpec(is_needed=False, may_be_empty=True) for name in header.parameters}
    return {**diagonals, **factors, **factor_tensors(header.layers)}


def _make(file: SafetensorsFile, header: FisherHeader, arrays: dict[str, AnyArray]) -> tuple[FisherInformation, None]:
    """Return the Fisher information of a file."""
    try:
        information = FisherInformation(
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
    return information, None


FISHER_FILES = Format(FISHER, 1, FisherHeader, "a file of Fisher information", _make, _tensors, remedy=_REMEDY)
read_fisher = FISHER_FILES.load
"""Returns the Fisher information in a file, everything checked."""


def rank_of(tensors: TensorHeader) -> int:
    """Return the number of factors in a file."""
    ranks = [shape[0] for name, shape in tensors.shapes.items() if name.startswith("factors/") and shape]
    return max(ranks, default=0)


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
