"""The JSON document in the header of our files: formats by name; parse, check the version, validate.

All that our files say beside arrays is one JSON document, the value of the only key of the header's metadata. Nothing
that comes out of it is trusted: neither its depth, nor its version, nor any of its fields.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from consilience.errors import FileFormatError
from consilience.files.budget import check_text
from consilience.files.schemas import first_problem

METADATA_KEY = "consilience"
"""The only key of the header's metadata. One, because the order of several is not fixed, and the same fusion must give
the same bytes."""

REMEDY = "write it with consilience.save"
"""Remedy in messages about files that this library writes."""

_MAX_NESTING = 64
"""Levels of lists and dicts in a document at most, far above the ten or so of honest ones. Chosen by hand."""

# Escapes of surrogates, halves of a character: only a pair of them is text.
_SURROGATE_IN_TEXT = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
_SURROGATE_IN_BYTES = re.compile(rb"\\ud[89a-f]", re.IGNORECASE)

Model = TypeVar("Model", bound=BaseModel)


def parse_document(path: Path, text: str | bytes, what: str = "metadata", remedy: str = REMEDY) -> Any:
    """Return the values of a JSON document from a file.

    Raises FileFormatError for text that is not JSON, that has a key twice in one object, that is nested too deeply, or
    that would take more memory than `budget.allowed_memory` says.
    """
    check_text(path, text, what, remedy)
    try:
        document = json.loads(text, object_pairs_hook=dict_of_unique_keys)
        if _nesting(document) > _MAX_NESTING:
            raise ValueError(f"nested deeper than {_MAX_NESTING} levels")
        if (_SURROGATE_IN_TEXT if isinstance(text, str) else _SURROGATE_IN_BYTES).search(text):  # type: ignore[arg-type]
            json.dumps(document, ensure_ascii=False).encode()  # a lone surrogate cannot be encoded, and raises
    except (ValueError, RecursionError) as error:
        raise FileFormatError(path, f"its {what} is not valid JSON ({error})", remedy) from error
    return document


def check_version(path: Path | str, document: Any, newest: int) -> None:
    """Raise FileFormatError, saying both versions, for a document of a later version than this library knows."""
    version = document.get("format_version") if isinstance(document, dict) else None
    if isinstance(version, int) and version > newest:
        text = f"has format version {version}, this library reads up to {newest}"
        raise FileFormatError(path, text, "update consilience")


def validate_document(
    where: Path | str, model: type[Model], document: Any, what: str = "metadata", remedy: str = REMEDY
) -> Model:
    """Return a document as a pydantic model, every field checked.

    Raises FileFormatError naming the file and the first place that is wrong.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        location, reason = first_problem(error)
        text = f"its {what} is not valid at {location or 'the whole'}: {reason}"
        raise FileFormatError(where, text, remedy) from error


def dict_of_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
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


POSTERIOR, SHARD, STATISTICS = "consilience-posterior", "consilience-shard", "consilience-statistics"
DRAWS, BAYESIAN, NETWORK = "consilience-draws", "consilience-bayesian", "consilience-network"
FISHER, DESCRIPTION = "consilience-fisher", "consilience-description"
ADAPTER = "consilience-adapter"

PARQUET = ".parquet"
"""Suffix of shards that are tables."""

_FUSE = "use `fuse`, with others of its kind"
_ROUND = "leave it in the folder of its round"

OUR_FORMATS: Mapping[str, tuple[str, str]] = {
    NETWORK: ("a network", _FUSE),
    FISHER: ("a file of Fisher information", "give it with its network: method 'fisher', `fishers=`"),
    DESCRIPTION: ("a description", "give it with the network that it describes"),
    POSTERIOR: ("a posterior file", _FUSE),
    STATISTICS: ("a statistics file", _FUSE),
    DRAWS: ("a draws file", _FUSE),
    BAYESIAN: ("a Bayesian network", _FUSE),
    ADAPTER: ("an adapter file", _FUSE),
    SHARD: ("a shard of many posteriors", _FUSE),
    "consilience-request": ("a request of a round", _ROUND),
    "consilience-answer": ("an answer of a round", _ROUND),
    "consilience-masked": ("a masked message of a round", _ROUND),
    "consilience-barrier": ("a loss barrier", "show it in a report: `consilience report`"),
    "consilience-plane": ("a loss plane", "show it in a report: `consilience report`"),
}
"""Noun and remedy of every format of safetensors files that this library writes."""


def misplaced(tag: object, expected: str) -> tuple[str, str]:
    """Return the problem with a file of one of our formats where something else is expected, and its remedy.

    Examples
    --------
    >>> misplaced("consilience-plane", "a network")
    ('is a loss plane, expected a network', 'show it in a report: `consilience report`')
    """
    called, remedy = OUR_FORMATS.get(str(tag), (f"a file of format {tag!r}", "update consilience"))
    return f"is {called}, expected {expected}", remedy
