"""Posterior files: safetensors, with everything but arrays in one JSON document of the header.

Format 1: every later version of the library reads it, and what does not fit it will have another number. Tensors, all
float64: ``natural`` (L, P), and where present ``prior`` (P,), ``weights`` (L,), ``attached.NAME`` and
``attached.NAME.precision``. The header's metadata has one key, ``consilience``, whose value is the JSON of ``Header``.
One key, because the order of several is not fixed, and the same fusion must give the same bytes.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, field_validator
from safetensors.numpy import save as to_safetensors

from consilience.core.provenance import library_versions
from consilience.errors import FileFormatError, InputError
from consilience.families import Family, family_from_config
from consilience.files.arrays import DTYPES
from consilience.files.atomic import write_bytes
from consilience.files.budget import pad_text
from consilience.files.document import METADATA_KEY, REMEDY, check_version, validate_document
from consilience.files.safetensors_file import SafetensorsFile, as_file
from consilience.files.schemas import Chunked, Entries, StrictModel
from consilience.posteriors.posterior import Attached, Features, Posterior

FORMAT_VERSION = 1
_MOST_ATTACHED = 1000
_FEW = 5  # names that a message lists; more are counted


class AttachedHeader(StrictModel):
    """How an attached array is carried."""

    axes: Chunked[list[Literal["component", "fixed"]]]
    rule: Literal["sum", "mean", "precision-mean", "keep"]


class FeaturesHeader(StrictModel):
    """What the columns mean."""

    names: Chunked[list[str] | None] = None
    units: Chunked[list[str] | None] = None
    scaling: Chunked[dict[str, Chunked[list[float]]] | None] = None
    classes: Chunked[list[str] | None] = None
    from_columns: bool = False


class InputHeader(StrictModel):
    """One of the models that a fused file was made from."""

    name: str
    components: int
    weight: float
    sha256: str | None = None
    labels: Chunked[list[int] | None] = None
    confidence: Chunked[list[float | None] | None] = None


def _is_input(record: Any) -> Any:
    """Return a record as it is, if it is one: of many inputs, models would take more memory than their text does."""
    InputHeader.model_validate(record)
    return record


Input = Annotated[dict[str, Any], BeforeValidator(_is_input)]
"""What `InputHeader` describes, as a dict."""


class ProvenanceHeader(StrictModel):
    """How a fused file came to be, as ``make_provenance`` records it."""

    method: str
    options: dict[str, Any]
    seed: int | None
    inputs: Chunked[list[Input]]
    result: dict[str, Any]
    versions: Chunked[dict[str, str]]


class Header(StrictModel):
    """The JSON document in a posterior file's header."""

    format: Literal["consilience-posterior"]
    format_version: Literal[1]
    library_version: str
    family: dict[str, Any]
    source: dict[str, Any]
    counts: Chunked[list[float] | None] = None
    features: FeaturesHeader = Field(default_factory=FeaturesHeader)
    attached: Entries[AttachedHeader] = Field(default_factory=dict)
    provenance: ProvenanceHeader | None = None

    @field_validator("source")
    @classmethod
    def _writable(cls, source: dict[str, Any]) -> dict[str, Any]:
        """Refuse NaN and infinity, which Python reads from JSON but which no fused file could carry on."""
        json.dumps(source, allow_nan=False)
        return source


@dataclass(frozen=True)
class FileSummary:
    """What the header of a posterior file says, without reading its tensors."""

    header: Header
    shapes: dict[str, tuple[int, ...]]


def write_posterior(path: Path, posterior: Posterior, provenance: dict[str, Any] | None = None) -> None:
    """Write a posterior file, whole or not at all.

    Raises
    ------
    InputError
        When the path cannot be written, or the source or provenance is not made of JSON values.
    """
    header = {
        "format": "consilience-posterior",
        "format_version": FORMAT_VERSION,
        "library_version": library_versions()["consilience"],
        "family": {"name": posterior.family.name, **posterior.family.config()},
        "source": dict(posterior.source),
        "counts": None if posterior.counts is None else posterior.counts.tolist(),
        "features": posterior.features.to_json(),
        "attached": {name: {"axes": list(a.axes), "rule": a.rule} for name, a in posterior.attached.items()},
        "provenance": provenance,
    }
    tensors = {"natural": posterior.natural, "prior": posterior.prior, "weights": posterior.weights}
    for name, attached in posterior.attached.items():
        tensors[f"attached.{name}"] = attached.values
        tensors[f"attached.{name}.precision"] = attached.precision
    arrays = {name: np.asarray(values, order="C") for name, values in tensors.items() if values is not None}
    try:
        document = json.dumps(header, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: cannot be written: its header would not be JSON ({error})") from error
    try:
        document = pad_text(document, sum(values.nbytes for values in arrays.values()))
    except InputError as error:
        raise InputError(f"{path}: cannot be written: {error}") from error
    write_bytes(path, to_safetensors(arrays, metadata={METADATA_KEY: document}))


def read_summary(where: Path | SafetensorsFile) -> FileSummary:
    """Return what the header of a posterior file says.

    Raises
    ------
    FileFormatError
        For a file that is missing, truncated, not safetensors, without our metadata or of a newer version.
    """
    file = as_file(where)
    return FileSummary(_parse_header(file), dict(file.header().shapes))


def read_posterior(where: Path | SafetensorsFile) -> tuple[Posterior, dict[str, Any] | None]:
    """Return the posterior of a file and its provenance, everything checked.

    Raises
    ------
    FileFormatError
        As ``read_summary``, and for tensors that are missing, unknown, or not floating point.
    InputError
        For values that are not members of the family, naming file and component.
    """
    file = as_file(where)
    header = _parse_header(file)
    shapes, kinds = file.header().shapes, file.header().dtypes
    family = family_of(file.label, header.family)
    expected = {"natural", "prior", "weights"}
    expected |= {f"attached.{name}{part}" for name in header.attached for part in ("", ".precision")}
    if "natural" not in shapes:
        raise FileFormatError(f"{file}: has no tensor 'natural'; {REMEDY}")
    if odd := sorted(set(shapes) - expected):
        raise FileFormatError(f"{file}: has tensors its header does not announce: {odd[:_FEW]}{_more(odd)}")
    if missing := [name for name in header.attached if f"attached.{name}" not in shapes]:
        raise FileFormatError(
            f"{file}: lacks the attached arrays its header announces: {missing[:_FEW]}{_more(missing)}"
        )
    for name in sorted(shapes):
        _check_tensor(file, name, shapes[name], kinds[name])
    arrays = file.arrays(sorted(shapes))
    tensors = {name: np.asarray(arrays.pop(name), dtype=np.float64) for name in sorted(shapes)}
    try:
        posterior = Posterior(
            family,
            tensors["natural"],
            prior=tensors.get("prior"),
            counts=None if header.counts is None else np.array(header.counts, dtype=np.float64),
            weights=tensors.get("weights"),
            attached={
                name: Attached(
                    tensors[f"attached.{name}"], tuple(a.axes), a.rule, tensors.get(f"attached.{name}.precision")
                )
                for name, a in header.attached.items()
            },
            features=Features(**header.features.model_dump()),
            source=header.source,
        )
    except InputError as error:
        raise InputError([f"{file}: {problem}" for problem in error.problems]) from error
    return posterior, None if header.provenance is None else header.provenance.model_dump(exclude_unset=True)


def family_of(path: Path | str, config: dict[str, Any], remedy: str = REMEDY) -> Family:
    """Return the family that a file's header describes.

    Raises
    ------
    FileFormatError
        Naming the file, for a family that is not known or cannot be made.
    """
    try:
        return family_from_config(config)
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from error
    except (ArithmeticError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path}: its family cannot be made: {error}; {remedy}") from error


def _parse_header(file: SafetensorsFile) -> Header:
    if file.header().text is None:
        raise FileFormatError(f"{file}: has no consilience metadata, so it is not a posterior file; {REMEDY}")
    document = file.document
    check_version(file.label, document, FORMAT_VERSION)
    attached = document.get("attached") if isinstance(document, dict) else None
    if isinstance(attached, dict) and len(attached) > _MOST_ATTACHED:
        raise FileFormatError(
            f"{file}: has {len(attached)} attached arrays, expected at most {_MOST_ATTACHED}; {REMEDY}"
        )
    return validate_document(file.label, Header, document)


def _check_tensor(file: SafetensorsFile, name: str, shape: tuple[int, ...], kind: str) -> None:
    if kind not in ("float64", "float32"):
        called = next((own for own, plain in DTYPES.items() if plain == kind), kind)
        raise FileFormatError(f"{file}: tensor {name!r} has type {called}, expected F64")
    if math.prod(shape) == 0:
        because = ": the model has no components" if name == "natural" else ""
        raise FileFormatError(f"{file}: tensor {name!r} is empty{because}")


def _more(names: list[str]) -> str:
    return f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
