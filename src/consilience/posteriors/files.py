"""Posterior files: safetensors with a JSON document in the header.

Format 1: every later version of the library reads it, and what does not fit it will have another number. Tensors, all
float64: ``natural`` (L, P), and where present ``prior`` (P,), ``weights`` (L,), ``attached.NAME`` and
``attached.NAME.precision``. The header's metadata has one key, ``consilience``, whose value is the JSON of
``PosteriorHeader``. One key, because the order of several is not fixed, and the same fusion must give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from consilience.checks import AnyArray, Json
from consilience.core.features import Features
from consilience.errors import FileFormatError, InputError
from consilience.families import Family, family_from_config
from consilience.files.document import POSTERIOR, REMEDY
from consilience.files.format import Format, TensorSpec, read_document
from consilience.files.safetensors_file import SafetensorsFile, TensorHeader, as_file
from consilience.files.schemas import Chunked, Entries, FeaturesHeader, FiniteJSON, StrictModel
from consilience.posteriors.posterior import Attached, Posterior

FORMAT_VERSION = 1
"""Version of the format, stated by every file; another one is refused."""
_WHAT = "a posterior file"
_MAX_ENTRIES = {"attached": 1000}
"""Attached arrays of a file at most, against files that exhaust memory. Chosen by hand."""
_DTYPES = ("float64", "float32")


class AttachedHeader(StrictModel):
    """Axes of an attached array, and the rule by which it is fused."""

    axes: Chunked[list[Literal["component", "fixed"]]]
    rule: Literal["sum", "mean", "precision-mean", "keep"]


class InputHeader(StrictModel):
    """One of the models that a fused file was made from."""

    name: str
    components: int
    weight: float
    sha256: str | None = None
    labels: Chunked[list[int] | None] = None
    confidence: Chunked[list[float | None] | None] = None


def _check_input(record: Any) -> Any:
    """Return a record unchanged, if `InputHeader` accepts it.

    Model objects of very many inputs would take more memory than the text of the document.
    """
    InputHeader.model_validate(record)
    return record


Input = Annotated[dict[str, Any], BeforeValidator(_check_input)]
"""A record that `InputHeader` accepts, as a dict."""


class ProvenanceHeader(StrictModel):
    """Provenance of a fused file, as ``make_provenance`` records it."""

    method: str
    options: dict[str, Any]
    seed: int | None
    inputs: Chunked[list[Input]]
    result: dict[str, Any]
    versions: Chunked[dict[str, str]]
    verdict: dict[str, Any] | None = None


class PosteriorHeader(StrictModel):
    """The JSON document in a posterior file's header."""

    format: Literal["consilience-posterior"]
    format_version: Literal[1]
    library_version: str
    family: dict[str, Any]
    source: FiniteJSON
    counts: Chunked[list[float] | None] = None
    features: FeaturesHeader = Field(default_factory=FeaturesHeader)
    attached: Entries[AttachedHeader] = Field(default_factory=dict)
    provenance: ProvenanceHeader | None = None


@dataclass(frozen=True)
class FileSummary:
    """The header of a posterior file, and the shapes of its tensors, which are not read."""

    header: PosteriorHeader
    shapes: dict[str, tuple[int, ...]]


def write_posterior(path: Path, posterior: Posterior, provenance: Mapping[str, Json] | None = None) -> None:
    """Write a posterior file, whole or not at all."""
    fields = {
        "family": {"name": posterior.family.name, **posterior.family.config()},
        "source": dict(posterior.source),
        "counts": None if posterior.counts is None else posterior.counts.tolist(),
        "features": posterior.features.to_json(),
        "attached": {
            name: {"axes": list(array.axes), "rule": array.rule} for name, array in posterior.attached.items()
        },
        "provenance": None if provenance is None else dict(provenance),
    }
    tensors = {"natural": posterior.natural, "prior": posterior.prior, "weights": posterior.weights}
    for name, attached in posterior.attached.items():
        tensors[f"attached.{name}"] = attached.values
        tensors[f"attached.{name}.precision"] = attached.precision
    arrays = {name: np.asarray(values, order="C") for name, values in tensors.items() if values is not None}
    POSTERIOR_FILES.write(path, fields, arrays)


def read_summary(where: Path | SafetensorsFile) -> FileSummary:
    """Return what the header of a posterior file says; raise FileFormatError where it is none that is read."""
    file = as_file(where)
    header, tensors = read_document(file, POSTERIOR, PosteriorHeader, FORMAT_VERSION, _WHAT, _MAX_ENTRIES)
    return FileSummary(header, dict(tensors.shapes))


def family_of(path: Path | str, config: dict[str, Json], remedy: str = REMEDY) -> Family:
    """Return the family that a file's header describes; raise FileFormatError where it cannot be made."""
    try:
        return _shared_family(json.dumps(config, sort_keys=True))
    except FileFormatError as error:
        raise FileFormatError(problem.about(path) for problem in error.problems) from error
    except (ArithmeticError, TypeError, ValueError) as error:
        raise FileFormatError(path, f"its family cannot be made: {error}", remedy) from error


@lru_cache(maxsize=8)
def _shared_family(config: str) -> Family:
    """Return the family of a description in JSON; files of one fusion mostly share a family, which is made once."""
    return family_from_config(json.loads(config))


def _tensors(header: PosteriorHeader) -> dict[str, TensorSpec]:
    """Return the tensors that a document announces."""
    needed, stated = TensorSpec(dtypes=_DTYPES), TensorSpec(dtypes=_DTYPES, is_needed=False)
    attached = {f"attached.{name}": needed for name in header.attached}
    precisions = {f"attached.{name}.precision": stated for name in header.attached}
    natural = TensorSpec(dtypes=_DTYPES, is_empty_where="the model has no components")
    return {"natural": natural, "prior": stated, "weights": stated, **attached, **precisions}


def _prepare(file: SafetensorsFile, header: PosteriorHeader, tensors: TensorHeader) -> tuple[PosteriorHeader, Family]:
    """Return the document with the family that it names."""
    return header, family_of(file.label, header.family)


def _make(
    file: SafetensorsFile, prepared: tuple[PosteriorHeader, Family], arrays: dict[str, AnyArray]
) -> tuple[Posterior, dict[str, Any] | None]:
    """Return the posterior of a file with its provenance."""
    header, family = prepared
    tensors = {name: np.asarray(arrays.pop(name), dtype=np.float64) for name in sorted(arrays)}
    try:
        posterior = Posterior(
            family,
            tensors["natural"],
            prior=tensors.get("prior"),
            counts=None if header.counts is None else np.array(header.counts, dtype=np.float64),
            weights=tensors.get("weights"),
            attached={
                name: Attached(
                    tensors[f"attached.{name}"],
                    tuple(array.axes),
                    array.rule,
                    tensors.get(f"attached.{name}.precision"),
                )
                for name, array in header.attached.items()
            },
            features=Features(**header.features.model_dump()),
            source=header.source,
        )
    except InputError as error:
        raise InputError(problem.about(file.label) for problem in error.problems) from error
    return posterior, None if header.provenance is None else header.provenance.model_dump(exclude_unset=True)


POSTERIOR_FILES = Format(POSTERIOR, FORMAT_VERSION, PosteriorHeader, _WHAT, _make, _tensors, _prepare, _MAX_ENTRIES)
read_posterior = POSTERIOR_FILES.read
"""Returns the posterior of a file, and its provenance or None."""
load_posterior = POSTERIOR_FILES.load
"""Returns the posterior of a file."""
