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
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors

from consilience.checks import Array
from consilience.errors import FileFormatError, InputError
from consilience.families import family_from_config
from consilience.families.posterior import Attached, Features, Posterior
from consilience.io.atomic import write_bytes
from consilience.io.provenance import library_versions

FORMAT_VERSION = 1
_KEY = "consilience"
_REMEDY = "write it with consilience.save"
_MAX_DEPTH = 64
_MAX_HEADER = 100_000_000  # a safetensors file starts with the length of its header, and none is longer


class AttachedHeader(BaseModel):
    """How an attached array is carried."""

    model_config = ConfigDict(extra="forbid", strict=True)
    axes: list[Literal["component", "fixed"]]
    rule: Literal["sum", "mean", "precision-mean", "keep"]


class FeaturesHeader(BaseModel):
    """What the columns mean."""

    model_config = ConfigDict(extra="forbid", strict=True)
    names: list[str] | None = None
    units: list[str] | None = None
    scaling: dict[str, list[float]] | None = None
    classes: list[str] | None = None
    from_columns: bool = False


class InputHeader(BaseModel):
    """One of the models that a fused file was made from."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: str
    components: int
    weight: float
    sha256: str | None = None
    labels: list[int] | None = None
    confidence: list[float | None] | None = None


class ProvenanceHeader(BaseModel):
    """How a fused file came to be, as ``make_provenance`` records it."""

    model_config = ConfigDict(extra="forbid", strict=True)
    method: str
    options: dict[str, Any]
    seed: int | None
    inputs: list[InputHeader]
    result: dict[str, Any]
    versions: dict[str, str]


class Header(BaseModel):
    """The JSON document in a posterior file's header."""

    model_config = ConfigDict(extra="forbid", strict=True)
    format: Literal["consilience-posterior"]
    format_version: Literal[1]
    library_version: str
    family: dict[str, Any]
    source: dict[str, Any]
    counts: list[float] | None = None
    features: FeaturesHeader = Field(default_factory=FeaturesHeader)
    attached: dict[str, AttachedHeader] = Field(default_factory=dict)
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
    write_bytes(path, to_safetensors(arrays, metadata={_KEY: document}))


def read_summary(path: Path) -> FileSummary:
    """Return what the header of a posterior file says.

    Raises
    ------
    FileFormatError
        For a file that is missing, truncated, not safetensors, without our metadata or of a newer version.
    """
    with _opened(path) as file:
        header = _parse_header(path, file.metadata())
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  (not a dict)
    return FileSummary(header, shapes)


def read_posterior(path: Path) -> tuple[Posterior, dict[str, Any] | None]:
    """Return the posterior of a file and its provenance, everything checked.

    Raises
    ------
    FileFormatError
        As ``read_summary``, and for tensors that are missing, unknown, or not floating point.
    InputError
        For values that are not members of the family, naming file and component.
    """
    with _opened(path) as file:
        header = _parse_header(path, file.metadata())
        try:
            family = family_from_config(header.family)
        except FileFormatError as error:
            raise FileFormatError(f"{path}: {error}") from error
        except (ArithmeticError, TypeError, ValueError) as error:
            raise FileFormatError(f"{path}: its family cannot be made: {error}; {_REMEDY}") from error
        expected = {"natural", "prior", "weights"}
        expected |= {f"attached.{name}{part}" for name in header.attached for part in ("", ".precision")}
        names = set(file.keys())
        if "natural" not in names:
            raise FileFormatError(f"{path}: has no tensor 'natural'; {_REMEDY}")
        if names - expected:
            raise FileFormatError(f"{path}: has tensors its header does not announce: {sorted(names - expected)}")
        missing = [name for name in header.attached if f"attached.{name}" not in names]
        if missing:
            raise FileFormatError(f"{path}: lacks the attached arrays its header announces: {missing}")
        tensors = {name: _tensor(path, file, name) for name in sorted(names)}
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
        raise InputError([f"{path}: {problem}" for problem in error.problems]) from error
    return posterior, None if header.provenance is None else header.provenance.model_dump(exclude_unset=True)


def _opened(path: Path) -> Any:
    """Open a safetensors file, with an error that says what the file is instead."""
    try:
        with path.open("rb") as stream:
            start = stream.read(8)
        if not start:
            raise FileFormatError(f"{path}: is empty; {_REMEDY}")
        if start.startswith((b"\x80", b"PK\x03\x04")) and int.from_bytes(start[:8], "little") > _MAX_HEADER:
            raise FileFormatError(f"{path}: is a pickle or zip archive, which is never loaded; {_REMEDY}")
        return safe_open(path, framework="numpy")
    except SafetensorError as error:
        raise FileFormatError(f"{path}: is truncated or not a safetensors file ({error}); {_REMEDY}") from error
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a name that no file can have, with a zero byte
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{path}: cannot be read: {error}") from error


def _parse_header(path: Path, metadata: dict[str, str] | None) -> Header:
    if not metadata or _KEY not in metadata:
        raise FileFormatError(f"{path}: has no consilience metadata, so it is not a posterior file; {_REMEDY}")
    try:
        document = json.loads(metadata[_KEY])
        if _depth(document) > _MAX_DEPTH:
            raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")
        found = document.get("format_version") if isinstance(document, dict) else None
        if isinstance(found, int) and found > FORMAT_VERSION:
            raise FileFormatError(
                f"{path}: has format version {found}, this library reads up to {FORMAT_VERSION}; update consilience"
            )
        header = Header.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise FileFormatError(f"{path}: its metadata is not valid at {place}: {first['msg']}; {_REMEDY}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{path}: its metadata is not valid JSON ({error}); {_REMEDY}") from error
    return header


def _depth(document: Any) -> int:
    """Return how deeply lists and dicts are nested, counted without recursion."""
    depth, level = 0, [document]
    while level:
        nested = [value for value in level if isinstance(value, dict | list)]
        level = [child for value in nested for child in (value.values() if isinstance(value, dict) else value)]
        depth += 1
    return depth


def _tensor(path: Path, file: Any, name: str) -> Array:
    kind = file.get_slice(name).get_dtype()
    if kind not in ("F64", "F32"):
        raise FileFormatError(f"{path}: tensor {name!r} has type {kind}, expected F64")
    values = np.asarray(file.get_tensor(name), dtype=np.float64)
    if math.prod(values.shape) == 0:
        because = ": the model has no components" if name == "natural" else ""
        raise FileFormatError(f"{path}: tensor {name!r} is empty{because}")
    return values
