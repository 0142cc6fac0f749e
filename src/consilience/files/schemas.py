"""Strict pydantic schemas of documents from strangers, validated in memory proportional to the document.

Pydantic keeps up to four kilobytes for each thing that is wrong, and copies what is right. So a model here reports only
the first unknown key, and long lists and dicts are validated a few entries at a time, up to the first that is wrong:
`Chunked` fields, whose entries stay as JSON gave them, are not copied; `Entries` are dicts of models.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, WrapValidator, model_validator
from pydantic_core import PydanticCustomError

_CHUNK_ENTRIES = 16
"""Entries that pydantic validates at a time: at four kilobytes an error they cost 64 KiB at most. Chosen by hand."""

Value = TypeVar("Value")


class StrictModel(BaseModel):
    """A document, or a part of one, in which every key is known and every value of the type that is said."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, document: Any) -> Any:
        """Raise for the first unknown key: one error, not one for each."""
        if isinstance(document, dict):
            unknown = next((key for key in document if key not in cls.model_fields), None)
            if unknown:
                raise PydanticCustomError("unknown", "Extra inputs are not permitted", {"place": f"{unknown:.80}"})
        return document


def validate_in_chunks(value: Any, handler: Callable[[Any], Any]) -> Any:
    """Return a list or dict unchanged after pydantic's `handler` has validated it, a few entries at a time.

    Raises PydanticCustomError naming the first entry that is wrong.
    """
    if not value:
        return handler(value)
    if isinstance(value, list):
        for start in range(0, len(value), _CHUNK_ENTRIES):
            _validate_chunk(value[start : start + _CHUNK_ENTRIES], handler, start)
        return value
    if isinstance(value, dict):
        entries = iter(value.items())
        while chunk := dict(islice(entries, _CHUNK_ENTRIES)):
            _validate_chunk(chunk, handler, 0)
        return value
    return handler(value)


def _validate_chunk(chunk: Any, handler: Callable[[Any], Any], start: int) -> None:
    """Raise for the first wrong entry of a chunk, with its number in the whole list, which begins at `start`."""
    try:
        handler(chunk)
    except ValidationError as error:
        location, reason = first_problem(error)
        number, _, inner_location = location.partition(".")
        if isinstance(chunk, list):
            location = f"{start + int(number)}" + (f".{inner_location}" if inner_location else "")
        raise PydanticCustomError("entry", "{why}", {"place": location, "why": reason}) from None


def first_problem(error: ValidationError) -> tuple[str, str]:
    """Return the location of the first problem that pydantic reports, empty for the whole, and the reason."""
    first = error.errors(include_url=False, include_input=False)[0]
    inner_location = first.get("ctx", {}).get("place")  # of the errors that this module raises
    location = [*map(str, first["loc"]), *([] if inner_location is None else [inner_location])]
    return ".".join(location), first["msg"]


def validate_entry_by_entry(value: Any, handler: Callable[[Any], Any]) -> Any:
    """Return what pydantic's `handler` makes of a dict, entry by entry, up to the first that is wrong."""
    if not isinstance(value, dict) or not value:
        return handler(value)
    entries = {}
    for name, entry in value.items():
        entries.update(handler({name: entry}))
    return entries


Chunked = Annotated[Value, WrapValidator(validate_in_chunks)]
"""A long list or dict of plain values, validated in chunks and not copied."""

Entries = Annotated[dict[str, Value], WrapValidator(validate_entry_by_entry)]
"""A dict of models."""


def _refuse_not_finite(document: dict[str, Any]) -> dict[str, Any]:
    json.dumps(document, allow_nan=False)
    return document


FiniteJSON = Annotated[dict[str, Any], AfterValidator(_refuse_not_finite)]
"""An object without NaN and infinity, which Python reads from JSON but which no fused file could carry on."""


class MadeHeader(StrictModel):
    """Provenance of a fused file, as ``core.provenance.make_provenance`` records it."""

    method: str
    options: dict[str, Any]
    seed: int | None
    inputs: Chunked[list[dict[str, Any]]]
    result: dict[str, Any]
    versions: Chunked[dict[str, str]]
    verdict: dict[str, Any] | None = None


class FeaturesHeader(StrictModel):
    """What the columns mean."""

    names: Chunked[list[str] | None] = None
    units: Chunked[list[str] | None] = None
    scaling: Chunked[dict[str, Chunked[list[float]]] | None] = None
    classes: Chunked[list[str] | None] = None
    from_columns: bool = False
    categories: Chunked[dict[str, Chunked[list[str]]] | None] = None
