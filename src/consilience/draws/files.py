"""Draws files: safetensors with a JSON document in the header.

Format 1. Tensors: ``draws.NAME`` float64 (C, T, ...) for every variable, chains first, and ``diverging`` uint8 (C, T)
where the sampler recorded divergent transitions. The header's metadata has one key, ``consilience``, whose value is the
JSON of ``DrawsHeader``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from consilience.checks import AnyArray, Json
from consilience.draws.containers import CONTAINERS
from consilience.draws.draws import Draws
from consilience.errors import ConsilienceError, FileFormatError, InputError
from consilience.files.document import DRAWS, REMEDY
from consilience.files.format import Format, TensorSpec
from consilience.files.safetensors_file import SafetensorsFile, TensorHeader
from consilience.files.schemas import Chunked, Entries, FiniteJSON, MadeHeader, StrictModel

FORMAT_VERSION = 1
"""Version of the format, stated by every file; another one is refused."""

_PREFIX, _DIVERGING = "draws.", "diverging"
_MAX_VARIABLES = 10_000
"""Variables at most, against files that exhaust memory. Chosen by hand."""


class VariableHeader(StrictModel):
    """A variable: names of its axes after chain and draw, and where it lies."""

    dims: Chunked[list[str]]
    constraint: str | Chunked[list[str | int | float]]


class CoordinateHeader(StrictModel):
    """Labels of an axis."""

    dtype: str
    labels: Chunked[list[bool | int | float | str]]


class DrawsHeader(StrictModel):
    """The JSON document in the header of a draws file."""

    format: Literal["consilience-draws"]
    format_version: Literal[1]
    library_version: str
    order: Chunked[list[str]]
    variables: Entries[VariableHeader]
    coords: Entries[CoordinateHeader]
    prior: float | int | str | FiniteJSON | None = None
    n_observations: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    likelihood_power: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    jacobian: Literal["once", "shared"] = "once"
    exchangeable: Chunked[list[str]] = Field(default_factory=list)
    container: str
    attributes: Chunked[dict[str, str]] = Field(default_factory=dict)
    dropped: Chunked[list[str]] = Field(default_factory=list)
    provenance: MadeHeader | None = None


def write_draws(path: Path, draws: Draws, provenance: Mapping[str, Json] | None = None) -> None:
    """Write a draws file, whole or not at all."""
    fields = {
        "order": list(draws.variables),
        **draws.header(),
        "provenance": None if provenance is None else dict(provenance),
    }
    arrays = {f"{_PREFIX}{name}": np.array(values, order="C") for name, values in draws.variables.items()}
    if draws.diverging is not None:
        arrays[_DIVERGING] = draws.diverging.astype(np.uint8)
    DRAWS_FILES.write(path, fields, arrays)


def _tensors(header: DrawsHeader) -> dict[str, TensorSpec]:
    """Return the tensors that a document announces: chains and draws come first."""
    variables = {
        f"{_PREFIX}{name}": TensorSpec((None,) * (2 + len(one.dims)), ("float64",))
        for name, one in header.variables.items()
    }
    return {**variables, _DIVERGING: TensorSpec((None, None), ("uint8",), is_needed=False)}


def _checked(file: SafetensorsFile, header: DrawsHeader, tensors: TensorHeader) -> DrawsHeader:
    """Return the document, if it names its variables once and all of them have the same chains and draws."""
    if header.container not in CONTAINERS:
        raise FileFormatError(file.label, f"has draws in a {header.container!r:.40}, expected one of {CONTAINERS}")
    if sorted(header.order) != sorted(header.variables) or not header.order:
        raise FileFormatError(file.label, "names its variables in two ways, or none", REMEDY)
    if len({shape[:2] for shape in tensors.shapes.values()}) > 1:
        raise FileFormatError(file.label, "has tensors of several numbers of chains or draws", REMEDY)
    return header


def _make(
    file: SafetensorsFile, header: DrawsHeader, arrays: dict[str, AnyArray]
) -> tuple[Draws, dict[str, Any] | None]:
    """Return the draws of a file with its provenance."""
    try:
        draws = Draws(
            {name: arrays[f"{_PREFIX}{name}"] for name in header.order},
            prior=header.prior,
            constraints={name: one.constraint for name, one in header.variables.items()},
            n_observations=header.n_observations,
            likelihood_power=header.likelihood_power,
            jacobian=header.jacobian,
            exchangeable=tuple(header.exchangeable),
            has_chains=True,
            diverging=arrays.get(_DIVERGING),
            dims={name: tuple(one.dims) for name, one in header.variables.items()},
            coords={name: _labels(name, one) for name, one in header.coords.items()},
            container=header.container,
            attributes=dict(header.attributes),
            dropped=tuple(header.dropped),
        )
    except ConsilienceError as error:
        raise InputError(problem.about(file.label) for problem in error.problems) from error
    return draws, None if header.provenance is None else header.provenance.model_dump(exclude_unset=True)


def _labels(name: str, header: CoordinateHeader) -> Any:
    """Return the labels of an axis as they were."""
    try:
        dtype = np.dtype(header.dtype)
        if dtype.kind not in "iufbUM":
            raise TypeError(f"labels of type {dtype}")
        if dtype.kind == "M":
            return np.array(header.labels, dtype=np.int64).astype(dtype)
        return np.array(header.labels, dtype=dtype)
    except (TypeError, ValueError, OverflowError) as error:
        text = f"has labels that are not of their type ({error})"
        raise InputError(f"coordinate {name}", text, code="E-NUMBER") from error


DRAWS_FILES = Format(
    DRAWS, FORMAT_VERSION, DrawsHeader, "a draws file", _make, _tensors, _checked, {"variables": _MAX_VARIABLES}
)
read_header = DRAWS_FILES.read_header
read_draws = DRAWS_FILES.read
"""Returns the draws of a file, and its provenance or None."""
load_draws = DRAWS_FILES.load
"""Returns the draws of a file."""
