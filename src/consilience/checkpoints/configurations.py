"""Comparison of the tokenizers and configurations of checkpoints.

Configurations are compared by their fields (`files.configurations`), tokenizers by what they do: the number of every
token, merges, normalisation, splitting.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, RootModel, field_validator

from consilience.checkpoints.folder import Checkpoint, companion_files, read_object
from consilience.checks import Json
from consilience.errors import FileFormatError, Problem
from consilience.files.configurations import compare_configurations
from consilience.files.document import validate_document
from consilience.files.opening import read_file, read_text
from consilience.files.quantisation import without_quantisation

_MAX_LISTED = 3
"""Tokens that a message names. Chosen by hand."""

_REMEDY = "merge models of one architecture, or allow it if both mean the same (`allow_differences=`)"


def compare_checkpoints(models: Sequence[Checkpoint]) -> tuple[list[Problem], list[str]]:
    """Return in which fields configurations must not differ and do, with both values, and what should be known.

    The first model is compared with all others; those without a configuration are left out.
    """
    # Packed tensors are refused elsewhere, so these are floats: dequantised, or never quantised.
    quantised = [
        f"{model.name}: its configuration says that it is quantised by {model.quantisation}, and its tensors are plain "
        "floats, which are merged as such; the output's configuration does not say so"
        for model in models
        if model.quantisation is not None
    ]
    configured = [(model.name, without_quantisation(model.config)) for model in models if model.config]
    problems, notes = compare_configurations(configured, _REMEDY)
    return problems, [*quantised, *notes]


def compare_tokenizers(models: Sequence[Checkpoint]) -> list[Problem]:
    """Return which models have tokenizers that give other tokens than the first's, or the same other numbers.

    Models without a tokenizer beside them are left out.
    """
    problems: list[Problem] = []
    first: tuple[str, dict[str, Any]] | None = None
    for model in models:
        try:
            content = None if model.folder is None else tokenizer_of(model.folder)
        except FileFormatError as error:
            problems.extend(error.problems)
            continue
        if content is None:
            continue
        if first is None:
            first = (model.name, content)
        elif text := _tokenizer_difference(first[1], content):
            problems.append(
                Problem(model.name, f"its tokenizer {text}, unlike that of {first[0]}", _TOKENIZER_REMEDY, "E-CONFIG")
            )
    return problems


_TOKENIZER_REMEDY = (
    "say which tokens the output has (`vocabulary=`), or allow it if they mean the same (`allow_differences=`)"
)


def tokenizer_of(folder: Path) -> dict[str, Any] | None:
    """Return what a tokenizer does: numbers by token, and its rules as JSON texts by name; None where there is none."""
    copied, _ = companion_files(folder)  # of bounded size, and no links that lead elsewhere
    files = {path.name: path for path in copied}
    if "tokenizer.json" in files:
        return _fast_tokenizer(read_fast_tokenizer(files["tokenizer.json"]))
    if "vocab.json" in files:
        merges = read_text(files["merges.txt"], errors="replace") if "merges.txt" in files else ""
        rules = [line for line in merges.splitlines() if line and not line.startswith("#version")]
        vocabulary = validate_document(files["vocab.json"], _Vocabulary, read_object(files["vocab.json"]), "content")
        return {"numbers": vocabulary.root, "parts": {"merges": json.dumps(rules)}}
    if "vocab.txt" in files:
        words = read_text(files["vocab.txt"], errors="replace").splitlines()
        return {"numbers": {word: number for number, word in enumerate(words)}, "parts": {}}
    if "tokenizer.model" in files:  # of sentencepiece: compared as bytes
        return {"numbers": {}, "parts": {"tokenizer.model": read_file(files["tokenizer.model"]).hex()}}
    return None


_Number = Annotated[int, Field(ge=0, lt=2**31)]
"""A token's number. Larger ones are no rows of a table that there is."""

_Numbers = dict[str, _Number]


class _Vocabulary(RootModel[_Numbers]):
    """``vocab.json``: the number of every token."""

    model_config = ConfigDict(strict=True)


class _OpenModel(BaseModel):
    """A part of ``tokenizer.json``, of which only what is read here is checked."""

    model_config = ConfigDict(extra="allow", strict=True)


class _AddedToken(_OpenModel):
    """A token that was added to those of the model."""

    id: _Number
    content: str


class _TokenModel(_OpenModel):
    """The model of a tokenizer: numbers by token, or tokens with their scores in the order of their numbers."""

    vocab: _Numbers | list[tuple[str, float]] | None = None
    merges: list[str | Annotated[list[str], Field(min_length=2, max_length=2)]] | None = None

    @field_validator("vocab", mode="before")
    @classmethod
    def _as_pairs(cls, value: Any) -> Any:
        """Return scored tokens as pairs: JSON has lists alone, and the strict schema asks for tuples."""
        return [tuple(one) if isinstance(one, list) else one for one in value] if isinstance(value, list) else value


class _FastTokenizer(_OpenModel):
    """``tokenizer.json`` of the library tokenizers."""

    model: _TokenModel | None = None
    added_tokens: list[_AddedToken] | None = None


def read_fast_tokenizer(path: Path) -> dict[str, Json]:
    """Return the document in a ``tokenizer.json``, its tokens and their numbers checked."""
    document = read_object(path)
    validate_document(path, _FastTokenizer, document, "content", "save the tokenizer again with transformers")
    return document


def _fast_tokenizer(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a tokenizer.json says; see `tokenizer_of`."""
    model: Mapping[str, Any] = document.get("model") or {}
    vocabulary = model.get("vocab") or {}
    if isinstance(vocabulary, list):  # of unigrams: [token, score], numbered by their place
        vocabulary = {token: number for number, (token, _) in enumerate(vocabulary)}
    numbers = dict(vocabulary) | {entry["content"]: entry["id"] for entry in document.get("added_tokens") or []}
    parts = {name: document.get(name) for name in ("normalizer", "pre_tokenizer", "added_tokens")}
    parts |= {"type of model": model.get("type"), "merges": _as_pairs(model.get("merges"))}
    return {"numbers": numbers, "parts": {name: json.dumps(part, sort_keys=True) for name, part in parts.items()}}


def _as_pairs(merges: Any) -> Any:
    """Return merges as texts "a b": newer files of tokenizers have pairs."""
    if isinstance(merges, list):
        return [" ".join(map(str, pair)) if isinstance(pair, list) else pair for pair in merges]
    return merges


def _tokenizer_difference(first: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return how a tokenizer differs from another, in words; an empty text where it does not."""
    ours, theirs = first["numbers"], other["numbers"]
    renumbered = [token for token, number in theirs.items() if token in ours and ours[token] != number]
    if renumbered:
        shown = ", ".join(f"{token!r} {theirs[token]} instead of {ours[token]}" for token in renumbered[:_MAX_LISTED])
        return f"gives {len(renumbered)} tokens other numbers ({shown})"
    missing, extra = (len(one.keys() - two.keys()) for one, two in ((ours, theirs), (theirs, ours)))
    if missing or extra:
        return f"lacks {missing} tokens and has {extra} more"
    parts = [name for name, text in first["parts"].items() if other["parts"].get(name) != text]
    return f"has another {' and '.join(parts)}" if parts else ""
