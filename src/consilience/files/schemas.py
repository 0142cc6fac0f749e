"""Checking documents from strangers with pydantic, in memory in proportion to the document.

Pydantic keeps up to four kilobytes for each thing that is wrong, and copies what is right. So a model here says of
unknown keys only the first, and long lists and dicts are looked at a few entries at a time, up to the first that is
wrong: `Plain` fields, whose entries stay as JSON gave them, are not copied; `Entries` are dicts of models.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, WrapValidator, model_validator
from pydantic_core import PydanticCustomError

_PIECE = 16

Value = TypeVar("Value")


class StrictModel(BaseModel):
    """A document, or a part of one, in which every key is known and every value of the type that is said."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, document: Any) -> Any:
        """Name the first key that is not known: one error, not one for each."""
        if isinstance(document, dict) and (odd := next((key for key in document if key not in cls.model_fields), None)):
            raise PydanticCustomError("unknown", "Extra inputs are not permitted", {"place": f"{odd:.80}"})
        return document


def validate_in_chunks(value: Any, handler: Callable[[Any], Any]) -> Any:
    """Return a list or dict that pydantic's `handler` takes, a few entries at a time, as it is.

    Raises
    ------
    PydanticCustomError
        Naming the first entry that is wrong.
    """
    if not value:
        return handler(value)
    if isinstance(value, list):
        for start in range(0, len(value), _PIECE):
            _checked(value[start : start + _PIECE], handler, start)
        return value
    if isinstance(value, dict):
        entries = iter(value.items())
        while piece := dict(islice(entries, _PIECE)):
            _checked(piece, handler, 0)
        return value
    return handler(value)


def _checked(piece: Any, handler: Callable[[Any], Any], start: int) -> None:
    try:
        handler(piece)
    except ValidationError as error:
        place, why = first_problem(error)
        number, _, rest = place.partition(".")
        if isinstance(piece, list):
            place = f"{start + int(number)}" + (f".{rest}" if rest else "")
        raise PydanticCustomError("entry", "{why}", {"place": place, "why": why}) from None


def first_problem(error: ValidationError) -> tuple[str, str]:
    """Return the place of the first thing that pydantic found wrong, empty for the whole, and what is wrong there."""
    first = error.errors(include_url=False, include_input=False)[0]
    inside = first.get("ctx", {}).get("place")
    place = [*map(str, first["loc"]), *([] if inside is None else [inside])]
    return ".".join(place), first["msg"]


def validate_entry_by_entry(value: Any, handler: Callable[[Any], Any]) -> Any:
    """Return what pydantic's `handler` makes of a dict, entry by entry, up to the first that is wrong."""
    if not isinstance(value, dict) or not value:
        return handler(value)
    made = {}
    for name, entry in value.items():
        made.update(handler({name: entry}))
    return made


Chunked = Annotated[Value, WrapValidator(validate_in_chunks)]
"""A long list or dict of plain values."""

Entries = Annotated[dict[str, Value], WrapValidator(validate_entry_by_entry)]
"""A dict of models."""
