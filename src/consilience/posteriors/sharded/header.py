"""The JSON header of shards: the schema that all sites of a packed file share, in both of its forms.

The document states format and version, family, source, features, and the attached arrays with their axes and rules. It
is validated field by field; a file whose columns do not fit it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from consilience.checks import AnyArray
from consilience.core.features import Features
from consilience.errors import FileFormatError
from consilience.files.document import check_version, validate_document
from consilience.files.format import document_text
from consilience.files.our_formats import SHARD
from consilience.files.schemas import FeaturesHeader
from consilience.posteriors.columns import ShardSchema
from consilience.posteriors.files import family_of
from consilience.posteriors.posterior import Attached, Posterior

FORMAT_VERSION = 1
"""Version of the shard format; a file of a later one is refused."""
STATED = ("counts", "weights", "prior")
"""What a site may state beside its components, in the order of ``ShardSchema.stated``."""
REMEDY = "write it with `consilience pack`"
"""What messages about shards advise."""


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
    """Return the kind that a shard's JSON document states, every field checked.

    Parameters
    ----------
    path : Path or str
        The name of the file in messages.
    document : JSON values
        The document.

    Raises
    ------
    FileFormatError
        For values that are no such document, are of a later version, or names a family that cannot be made.
    """
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


def columns_of(kind: ShardSchema) -> set[str]:
    """Return the names of all columns of parameters in shards of a kind."""
    columns = {"natural", *kind.stated}
    for name, (_axes, rule, _lengths) in kind.attached.items():
        columns |= {f"attached.{name}"} | ({f"attached.{name}.precision"} if rule == "precision-mean" else set())
    return columns


def refuse_columns(kind: ShardSchema, present: set[str]) -> None:
    """Raise for columns that a shard of a kind lacks, or has beyond those that it should have.

    Raises
    ------
    ValueError
        Naming them.
    """
    expected = columns_of(kind)
    if missing := sorted(expected - present):
        raise ValueError(f"lacks {', '.join(missing)}")
    if unknown := sorted(present - expected):
        raise ValueError(f"has what its header does not announce: {', '.join(unknown)}")
