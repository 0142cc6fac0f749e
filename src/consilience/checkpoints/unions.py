"""Unions of tokenizers: the numbers of all tokens, and the tokenizer that has them.

Tokenizers number the tokens of their model first, and then those that were added. A union has the model's tokens of the
first, unseen ones of the others behind them, and then all that were added. It needs one way to cut texts: tokenizers
with other merges, normalisation or splitting have none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from consilience.checkpoints.configurations import read_fast_tokenizer
from consilience.checkpoints.folder import Checkpoint, read_object
from consilience.errors import InputError

_REMEDY = "give tokenizers of one family, or take the tokens of one model (`vocabulary=0`)"


def json_bytes(document: Any) -> bytes:
    """Return a document as the content of a file."""
    return f"{json.dumps(document, indent=2, ensure_ascii=False)}\n".encode()


def union(
    checkpoints: Sequence[Checkpoint], tokenizers: Sequence[Mapping[str, Any] | None]
) -> tuple[dict[str, int], dict[str, bytes]]:
    """Return the numbers of all tokens, and the files of the tokenizer where it is not that of the first."""
    documents = [_fast_document(one) for one in checkpoints]
    first = tokenizers[0]
    for checkpoint, other in zip(checkpoints[1:], tokenizers[1:], strict=True):
        assert first is not None  # noqa: S101  (the caller has looked)
        assert other is not None  # noqa: S101
        names = [name for name in first["parts"] if name != "added_tokens"]
        if differing := [name for name in names if first["parts"].get(name) != other["parts"].get(name)]:
            text = f"cuts texts otherwise than {checkpoints[0].name} ({', '.join(differing)}), so there is no union"
            raise InputError(checkpoint.name, text, _REMEDY, "E-CONFIG")
    words = [_plain_tokens(document) for document in documents]
    plain = dict(words[0])
    for other in words[1:]:
        plain |= {token: len(plain) + place for place, token in enumerate(t for t in other if t not in plain)}
    numbers = dict(plain)
    added: dict[str, dict[str, Any]] = {}
    for document in documents:
        for entry in _added_tokens(document):
            token = str(entry["content"])
            numbers.setdefault(token, len(numbers))
            added.setdefault(token, dict(entry) | {"id": numbers[token]})
    is_new = len(plain) > len(words[0]) or len(added) > len(_added_tokens(documents[0]))
    if not is_new:
        return {**words[0], **{str(one["content"]): int(one["id"]) for one in _added_tokens(documents[0])}}, {}
    if len(plain) > len(words[0]) and isinstance(documents[0]["model"]["vocab"], list):
        text = "scores its tokens, so that no others can be added"
        raise InputError(checkpoints[0].name, text, _REMEDY, "E-CONFIG")
    if sorted(words[0].values()) != list(range(len(words[0]))):
        raise InputError(checkpoints[0].name, "numbers its tokens with gaps, so there is no union", _REMEDY, "E-CONFIG")
    return numbers, _union_files(checkpoints[0], documents[0], plain, added, numbers)


def _fast_document(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return a checkpoint's tokenizer.json."""
    path = Path() if checkpoint.folder is None else checkpoint.folder / "tokenizer.json"
    document: dict[str, Any] = read_fast_tokenizer(path) if path.is_file() else {}
    if not (document.get("model") or {}).get("vocab"):
        text = "has no tokenizer.json, which a union needs"
        raise InputError(checkpoint.name, text, "save its tokenizer with transformers", "E-NEEDED")
    return document


def _plain_tokens(document: Mapping[str, Any]) -> dict[str, int]:
    """Return the numbers of the tokens that were not added, in the order of their numbers."""
    vocabulary = document["model"]["vocab"]
    if isinstance(vocabulary, list):
        return {token: number for number, (token, _) in enumerate(vocabulary)}
    return dict(sorted(vocabulary.items(), key=lambda one: one[1]))


def _added_tokens(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the tokens that were added, in the order of their numbers."""
    return sorted(document.get("added_tokens") or [], key=lambda one: one["id"])


def _union_files(
    checkpoint: Checkpoint,
    document: Mapping[str, Any],
    plain: Mapping[str, int],
    added: Mapping[str, Mapping[str, Any]],
    numbers: Mapping[str, int],
) -> dict[str, bytes]:
    """Return the files of a tokenizer with more tokens."""
    changed = dict(document)
    changed["added_tokens"] = sorted(added.values(), key=lambda one: int(one["id"]))
    if not isinstance(document["model"]["vocab"], list):
        changed["model"] = {**document["model"], "vocab": dict(plain)}
    for part in ("post_processor", "padding"):
        changed[part] = _renumbered(document.get(part), numbers)
    files = {"tokenizer.json": json_bytes(changed)}
    path = Path() if checkpoint.folder is None else checkpoint.folder / "tokenizer_config.json"
    if path.is_file():
        config = read_object(path)
        if "added_tokens_decoder" in config:
            entries = {str(one["id"]): {k: v for k, v in one.items() if k != "id"} for one in changed["added_tokens"]}
            config["added_tokens_decoder"] = entries
        files["tokenizer_config.json"] = json_bytes(config)
    return files


def _renumbered(part: Any, numbers: Mapping[str, int]) -> Any:
    """Return a part of a tokenizer with the new numbers of its tokens."""
    if isinstance(part, list):
        if len(part) == 2 and isinstance(part[0], str) and isinstance(part[1], int):  # of BERT: a token and its number
            return [part[0], numbers.get(part[0], part[1])]
        return [_renumbered(one, numbers) for one in part]
    if not isinstance(part, Mapping):
        return part
    changed = {key: _renumbered(value, numbers) for key, value in part.items()}
    if isinstance(part.get("ids"), list) and isinstance(part.get("tokens"), list):
        pairs = zip(part["tokens"], part["ids"], strict=False)
        changed["ids"] = [numbers.get(token, number) for token, number in pairs]
    if "pad_token" in part and "pad_id" in part:
        changed["pad_id"] = numbers.get(part["pad_token"], part["pad_id"])
    return changed
