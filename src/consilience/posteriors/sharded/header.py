"""What a packed file states and holds, in both of its forms: the schema that all its sites share, and their columns.

The JSON header states format and version, family, source, features, and the attached arrays with their axes and rules.
It is validated field by field; a file whose columns do not fit it, or one another, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from consilience.checks import AnyArray, Array
from consilience.core.features import Features
from consilience.errors import FileFormatError, UnsupportedError
from consilience.files.document import SHARD, check_version, validate_document
from consilience.files.format import document_text
from consilience.files.safetensors_file import TensorHeader
from consilience.files.schemas import FeaturesHeader
from consilience.posteriors.columns import ComponentColumns, ShardSchema
from consilience.posteriors.files import family_of
from consilience.posteriors.posterior import ORIGIN, Attached, Posterior

FORMAT_VERSION = 1
"""Version of the shard format; a file of a later one is refused."""
STATED = ("counts", "weights", "prior")
"""What a site may state beside its components, in the order of ``ShardSchema.stated``."""
REMEDY = "write it with `consilience pack`"
"""What messages about shards advise."""
DIGEST_BYTES = 32
"""Bytes of a SHA-256."""


class _AttachedHeader(BaseModel):
    """How an attached array of every site is averaged, and the lengths of its axes, -1 for the components'."""

    model_config = ConfigDict(extra="forbid", strict=True)
    axes: list[Literal["component", "fixed"]]
    rule: Literal["sum", "mean", "precision-mean", "keep"]
    lengths: list[int]


class ShardHeader(BaseModel):
    """The JSON document of a shard; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)
    format: Literal["consilience-shard"]
    format_version: Literal[1]
    library_version: str
    family: dict[str, Any]
    source: dict[str, Any]
    features: FeaturesHeader = Field(default_factory=FeaturesHeader)
    attached: dict[str, _AttachedHeader] = Field(default_factory=dict)
    stated: list[Literal["counts", "weights", "prior"]] = Field(default_factory=list)


def kind_of(posterior: Posterior) -> ShardSchema:
    """Return the kind of a posterior: what it shares with those with which it can be packed."""
    if ORIGIN in posterior.attached:
        text = "is kept about an origin, since its means are far from zero, and packed posteriors have none"
        raise UnsupportedError("", text, "subtract a constant from its columns, the same at all sites, and fit again")
    attached = {name: (array.axes, array.rule, _lengths(array)) for name, array in sorted(posterior.attached.items())}
    stated = tuple(name for name in STATED if getattr(posterior, name) is not None)
    return ShardSchema(posterior.family, dict(posterior.source), posterior.features, attached, stated)


def _lengths(attached: Attached) -> tuple[int, ...]:
    """Return the length of each axis, -1 where it follows the components."""
    pairs = zip(attached.axes, attached.values.shape, strict=True)
    return tuple(-1 if tag == "component" else size for tag, size in pairs)


def differences(expected: ShardSchema, actual: ShardSchema) -> list[str]:
    """Return how the kind of a site differs from the expected one, a line each."""
    problems = []
    if actual.family != expected.family:
        problems.append(f"is {actual.family}, expected {expected.family}")
    problems += [
        f"has {key} {actual.source.get(key)!r}, expected {expected.source.get(key)!r}"
        for key in sorted(set(expected.source) | set(actual.source))
        if actual.source.get(key) != expected.source.get(key)
    ]
    problems += expected.features.differences(actual.features)
    if actual.stated != expected.stated:
        problems.append(f"states {_listed(actual.stated)}, expected {_listed(expected.stated)}")
    for name in sorted(set(expected.attached) | set(actual.attached)):
        if expected.attached.get(name) != actual.attached.get(name):
            problems.append(f"has attached array {name!r} as {actual.attached.get(name)}, "
                            f"expected {expected.attached.get(name)}")  # fmt: skip
    return problems


def _listed(names: tuple[str, ...]) -> str:
    """Return names as a list in words."""
    return ", ".join(names) or "neither counts nor weights nor a prior"


def header_text(path: Path, kind: ShardSchema, arrays: Mapping[str, AnyArray]) -> str:
    """Return the JSON document of a shard of a kind that holds these arrays; see `document_text`."""
    fields = {
        "family": {"name": kind.family.name, **kind.family.config()},
        "source": dict(kind.source),
        "features": kind.features.to_json(),
        "attached": {
            name: {"axes": list(axes), "rule": rule, "lengths": list(lengths)}
            for name, (axes, rule, lengths) in kind.attached.items()
        },
        "stated": list(kind.stated),
    }
    return document_text(path, SHARD, FORMAT_VERSION, fields, arrays)


def parse_kind(path: Path | str, document: Any) -> ShardSchema:
    """Return the kind that a shard's JSON document states, every field checked; `path` is its name in messages."""
    check_version(path, document, FORMAT_VERSION)
    header = validate_document(path, ShardHeader, document, remedy=REMEDY)
    family = family_of(path, header.family, REMEDY)
    for name, array in header.attached.items():
        is_consistent = len(array.axes) == len(array.lengths) and all(
            (tag == "component") == (length == -1) and length >= -1
            for tag, length in zip(array.axes, array.lengths, strict=False)
        )
        if not is_consistent:
            raise FileFormatError(path, f"attached array {name!r} has lengths that do not fit its axes", REMEDY)
    attached = {
        name: (tuple(array.axes), array.rule, tuple(array.lengths)) for name, array in sorted(header.attached.items())
    }
    stated = tuple(name for name in STATED if name in header.stated)
    return ShardSchema(family, header.source, Features(**header.features.model_dump()), attached, stated)


def refuse_columns(kind: ShardSchema, present: set[str]) -> None:
    """Raise ValueError naming the columns of parameters that a shard of a kind lacks, or has beyond those it needs."""
    expected = {"natural", *kind.stated}
    for name, (_axes, rule, _lengths) in kind.attached.items():
        expected |= {f"attached.{name}"} | ({f"attached.{name}.precision"} if rule == "precision-mean" else set())
    if missing := sorted(expected - present):
        raise ValueError(f"lacks {', '.join(missing)}")
    if unknown := sorted(present - expected):
        raise ValueError(f"has what its header does not announce: {', '.join(unknown)}")


@dataclass(frozen=True, eq=False)
class PackedSites:
    """The sites of a packed file, or some of them."""

    components: ComponentColumns
    names: tuple[str, ...]  # of the sites
    digests: NDArray[np.uint8]  # SHA-256 of the files they were packed from (J, 32); zeros where there was none


@dataclass(frozen=True)
class ShardSummary:
    """What the header of a shard states."""

    kind: ShardSchema
    n_sites: int
    n_components: int | None  # None where only the sites say how many they have (Parquet)
    groups: tuple[int, ...] = field(default=())  # sites in each row group, for Parquet; else one group
    header: TensorHeader | None = None  # what a safetensors file says of its tensors


def column_problems(packed: PackedSites) -> Iterator[str]:
    """Yield how columns do not fit one another in shape or type, a line each."""
    components = packed.components
    natural, prior, n_sites = components.natural, components.prior, components.n_sites
    total, size = int(components.offsets[-1]), components.kind.family.size
    if natural.shape != (total, size) or natural.dtype not in (np.float32, np.float64):
        yield f"natural parameters are {natural.dtype} {natural.shape}, expected float ({total}, {size})"
    for name, values in components.stated_rows.items():
        if not _is_float64(values, (total,)):
            yield f"{name} are {values.dtype} {values.shape}, expected float64 ({total},)"
    if prior is not None and not _is_float64(prior, (size,), (n_sites, size)):
        yield f"prior is {prior.dtype} {prior.shape}, expected float64 ({size},) or ({n_sites}, {size})"
    for name in components.kind.attached:
        yield from (f"attached array {name!r} {text}" for text in _attached_problems(components, name))
    if packed.digests.dtype != np.uint8:
        yield f"digests are {packed.digests.dtype}, expected uint8"
    if len(packed.names) != n_sites or packed.digests.shape != (n_sites, DIGEST_BYTES):
        yield f"has {len(packed.names)} names and digests {packed.digests.shape} for {n_sites} sites"


def _attached_problems(components: ComponentColumns, name: str) -> Iterator[str]:
    """Yield how an attached array does not fit the sites' components, a line each."""
    ragged, length = components.attached[name], int(components.attached_starts[name][-1])
    if (components.kind.attached[name][1] == "precision-mean") != (ragged.precision is not None):
        yield "must have a precision exactly when its rule is 'precision-mean'"
    for part, values in (("values", ragged.values), ("precision", ragged.precision)):
        if values is not None and not _is_float64(values, (length,)):
            yield f"has {part} {values.dtype} {values.shape}, expected float64 ({length},)"


def _is_float64(values: Array, *shapes: tuple[int, ...]) -> bool:
    """Return whether an array is of float64 and has one of some shapes."""
    return values.dtype == np.float64 and values.shape in shapes


def site_names(names: Any, first: int, end: int) -> tuple[str, ...]:
    """Return the names of sites `first` to `end`; made up where a file has none."""
    if names is None:
        return tuple(f"site {i}" for i in range(first, end))
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError("names are not a list of texts")
    return tuple(names[first:end])


def site_digests(digests: Any, count: int) -> NDArray[np.uint8]:
    """Return digests (J, 32); zeros where a file has none."""
    return np.zeros((count, DIGEST_BYTES), dtype=np.uint8) if digests is None else np.asarray(digests)
