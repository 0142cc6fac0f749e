"""Safetensors files and the JSON document in their header: open, parse, check the version, validate.

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

from consilience.catalogue import unreadable
from consilience.errors import FileFormatError, Problem
from consilience.files.budget import check_header, check_text
from consilience.files.foreign_formats import START_BYTES, foreign_problem
from consilience.files.schemas import first_problem

METADATA_KEY = "consilience"
"""The only key of the header's metadata. One, because the order of several is not fixed, and the same fusion must give
the same bytes."""

REMEDY = "write it with consilience.save"
"""Remedy in messages about files that this library writes."""

MAX_HEADER_BYTES = 100_000_000
"""A safetensors file starts with the length of its header, and none is longer: the limit of that library."""

DATA_SUFFIXES = (
    ".csv", ".tsv", ".parquet", ".feather", ".arrow", ".xlsx", ".xls", ".npy", ".npz", ".dta", ".sav", ".sas7bdat",
)  # fmt: skip
"""Ends of the names of tables and arrays, which newcomers give where a model is asked for."""

_MAX_NESTING = 64
"""Levels of lists and dicts in a document at most, far above the ten or so of honest ones. Chosen by hand."""

# Escapes of surrogates, halves of a character: only a pair of them is text.
_SURROGATE_IN_TEXT = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
_SURROGATE_IN_BYTES = re.compile(rb"\\ud[89a-f]", re.IGNORECASE)

Model = TypeVar("Model", bound=BaseModel)


def open_safetensors(path: Path, remedy: str = REMEDY, framework: str = "numpy") -> Any:
    """Open a safetensors file, with an error that says what the file is instead.

    Parameters
    ----------
    path : Path
        The file.
    remedy : str
        Remedy in messages.
    framework : {"numpy", "pt"}
        What tensors are read as.

    Returns
    -------
    safetensors.safe_open
        The open file, a context manager.

    Raises
    ------
    FileFormatError
        For a file that is missing, empty, truncated, a pickle, or anything else, and for one whose header would take
        more memory than `budget.allowed_memory` says.
    """
    if path.suffix.lower() in DATA_SUFFIXES and path.is_file():
        raise FileFormatError(
            path,
            "is a table of data by its name, expected the file of a model",
            "describe a model with it: consilience.describe(model, data), or compare models on it: "
            "consilience.evaluate(fused, own, data)",
            "E-DATA",
        )
    try:
        with path.open("rb") as stream:
            start = stream.read(8)
            size = stream.seek(0, 2)
        if not start:
            raise FileFormatError(path, "is empty", remedy)
        length = int.from_bytes(start, "little")
        if len(start) == 8 and length <= min(MAX_HEADER_BYTES, size - 8):  # safe_open refuses any other length unread
            check_header(path, length, size, remedy)
        return safe_open(path, framework=framework)
    except SafetensorError as error:
        with path.open("rb") as stream:
            foreign = foreign_problem(path, stream.read(START_BYTES))
        is_damaged = Problem(path, f"is truncated or not a safetensors file ({error})", remedy)
        raise FileFormatError(foreign or is_damaged) from error
    except OSError as error:
        raise FileFormatError(unreadable(path, error)) from error
    except ValueError as error:  # a name that no file can have, with a zero byte
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(path, f"cannot be read: {error}") from error


def parse_document(path: Path, text: str | bytes, what: str = "metadata", remedy: str = REMEDY) -> Any:
    """Return the values of a JSON document from a file.

    Parameters
    ----------
    path : Path
        The file that the text came from, for messages.
    text : str or bytes
        The document.
    what, remedy : str
        Name of the document and remedy in messages.

    Raises
    ------
    FileFormatError
        For text that is not JSON, that has a key twice in one object, that is nested too deeply, or that would take
        more memory than `budget.allowed_memory` says.
    """
    check_text(path, text, what, remedy)
    try:
        document = json.loads(text, object_pairs_hook=_dict_of_unique_keys)
        if _nesting(document) > _MAX_NESTING:
            raise ValueError(f"nested deeper than {_MAX_NESTING} levels")
        if (_SURROGATE_IN_TEXT if isinstance(text, str) else _SURROGATE_IN_BYTES).search(text):  # type: ignore[arg-type]
            json.dumps(document, ensure_ascii=False).encode()  # a lone surrogate cannot be encoded, and raises
    except (ValueError, RecursionError) as error:
        raise FileFormatError(path, f"its {what} is not valid JSON ({error})", remedy) from error
    return document


def check_version(path: Path | str, document: Any, newest: int) -> None:
    """Raise for a document of a later version than this library knows.

    Raises
    ------
    FileFormatError
        Saying both versions.
    """
    version = document.get("format_version") if isinstance(document, dict) else None
    if isinstance(version, int) and version > newest:
        raise FileFormatError(
            path, f"has format version {version}, this library reads up to {newest}", "update consilience"
        )


def validate_document(
    where: Path | str, model: type[Model], document: Any, what: str = "metadata", remedy: str = REMEDY
) -> Model:
    """Return a document as a pydantic model, every field checked.

    Parameters
    ----------
    where : Path or str
        The file, for messages.
    model : type of BaseModel
        The schema.
    document : JSON values
        What ``parse_document`` returned.
    what, remedy : str
        Name of the document and remedy in messages.

    Raises
    ------
    FileFormatError
        Naming the file and the first place that is wrong.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        location, reason = first_problem(error)
        raise FileFormatError(
            where, f"its {what} is not valid at {location or 'the whole'}: {reason}", remedy
        ) from error


def _dict_of_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's keys and values, refusing repeated keys, of which Python would silently take the last."""
    values = dict(pairs)
    if len(values) < len(pairs):
        repeated = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{repeated!r} stands twice in one object")
    return values


def _nesting(document: Any) -> int:
    """Return how deeply lists and dicts are nested, counted without recursion and without copies."""
    deepest, open_iterators = 0, [iter([document])]  # the first holds the document itself
    while open_iterators:
        deepest = max(deepest, len(open_iterators) - 1)
        for value in open_iterators[-1]:
            if isinstance(value, dict | list):
                open_iterators.append(iter(value.values() if isinstance(value, dict) else value))
                break
        else:
            open_iterators.pop()
    return deepest
