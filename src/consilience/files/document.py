"""What is common to our safetensors files: opening them with errors that help, and the JSON document of the header.

All that our files say beside arrays is one JSON document, the value of the only key of the header's metadata. Nothing
that comes out of it is trusted: neither its depth, nor its version, nor any of its fields.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open

from consilience.errors import FileFormatError
from consilience.files.budget import check_header, check_text
from consilience.files.schemas import first_problem

METADATA_KEY = "consilience"
"""The only key of the header's metadata. One, because the order of several is not fixed, and the same fusion must give
the same bytes."""

REMEDY = "write it with consilience.save"
MAX_HEADER_BYTES = 100_000_000
"""A safetensors file starts with the length of its header, and none is longer."""

_MAX_DEPTH = 64
_HALF_A_LETTER = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
_HALF_IN_BYTES = re.compile(rb"\\ud[89a-f]", re.IGNORECASE)

Model = TypeVar("Model", bound=BaseModel)


def open_safetensors(path: Path, remedy: str = REMEDY, framework: str = "numpy") -> Any:
    """Open a safetensors file, with an error that says what the file is instead.

    Raises
    ------
    FileFormatError
        For a file that is missing, empty, truncated, a pickle, or anything else, and for one whose header would take
        more memory than `budget.allowed` says.
    """
    try:
        with path.open("rb") as stream:
            start = stream.read(8)
            size = stream.seek(0, 2)
        if not start:
            raise FileFormatError(f"{path}: is empty; {remedy}")
        if start.startswith((b"\x80", b"PK\x03\x04")) and int.from_bytes(start[:8], "little") > MAX_HEADER_BYTES:
            raise FileFormatError(f"{path}: is a pickle or zip archive, which is never loaded; {remedy}")
        length = int.from_bytes(start, "little")
        if len(start) == 8 and length <= min(MAX_HEADER_BYTES, size - 8):  # of any other length it is not read at all
            check_header(path, length, size, remedy)
        return safe_open(path, framework=framework)
    except SafetensorError as error:
        raise FileFormatError(f"{path}: is truncated or not a safetensors file ({error}); {remedy}") from error
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # a name that no file can have, with a zero byte
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{path}: cannot be read: {error}") from error


def parse_document(path: Path, text: str | bytes, what: str = "metadata", remedy: str = REMEDY) -> Any:
    """Return the values of a JSON document from a file.

    Raises
    ------
    FileFormatError
        For text that is not JSON, that has a key twice in one object, that is nested too deeply, or that would take
        more memory than `budget.allowed` says.
    """
    check_text(path, text, what, remedy)
    try:
        document = json.loads(text, object_pairs_hook=_once)
        if _depth(document) > _MAX_DEPTH:
            raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")
        if (_HALF_A_LETTER if isinstance(text, str) else _HALF_IN_BYTES).search(text):  # type: ignore[arg-type]
            json.dumps(document, ensure_ascii=False).encode()  # which half a letter, alone, cannot be
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: its {what} is not valid JSON ({error}); {remedy}") from error
    return document


def check_version(path: Path, document: Any, newest: int) -> None:
    """Raise for a document of a later version than this library knows.

    Raises
    ------
    FileFormatError
        Saying both versions.
    """
    found = document.get("format_version") if isinstance(document, dict) else None
    if isinstance(found, int) and found > newest:
        raise FileFormatError(
            f"{path}: has format version {found}, this library reads up to {newest}; update consilience"
        )


def validate_document(
    where: Path | str, model: type[Model], document: Any, what: str = "metadata", remedy: str = REMEDY
) -> Model:
    """Return a document as a model, every field checked.

    Raises
    ------
    FileFormatError
        Naming the file and the first place that is wrong.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        place, why = first_problem(error)
        raise FileFormatError(f"{where}: its {what} is not valid at {place or 'the whole'}: {why}; {remedy}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's keys and values, refusing those of which Python would silently take the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{twice!r} stands twice in one object")
    return found


def _depth(document: Any) -> int:
    """Return how deeply lists and dicts are nested, counted without recursion and without copies."""
    deepest, nested = 0, [iter([document])]  # the first holds the document itself
    while nested:
        deepest = max(deepest, len(nested) - 1)
        for value in nested[-1]:
            if isinstance(value, dict | list):
                nested.append(iter(value.values() if isinstance(value, dict) else value))
                break
        else:
            nested.pop()
    return deepest
