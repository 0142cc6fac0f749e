"""Checkpoints of different vocabularies: every row of a table of tokens found by its token, not by its number.

The output's tokens are those of one checkpoint, or the union: the tokens of the first, then unseen ones of the others,
then those that were added to a tokenizer (``unions``). Each model's tables are read in that order. A token that a
model lacks takes the row of the base in sums of changes, which then add nothing, and elsewhere the weighted mean of the
models that have it, so that it counts for those alone. Rules say so for single tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from consilience.checkpoints.configurations import tokenizer_of
from consilience.checkpoints.folder import Checkpoint, read_object
from consilience.checkpoints.header import StoredTensor
from consilience.checkpoints.inputs import TOKEN_MARKS, MergeInputs
from consilience.checkpoints.methods.base import Floats
from consilience.checkpoints.numbers import FLOAT_TYPES
from consilience.checkpoints.tensor_reader import ArrayTensorReader, ByteArray
from consilience.checkpoints.unions import json_bytes, union
from consilience.checks import Json
from consilience.drawing.words import first_names
from consilience.errors import InputError, OptionError, Problem

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt",
    "merges.txt", "added_tokens.json", "special_tokens_map.json", "chat_template.json", "chat_template.jinja",
    "generation_config.json",
)  # fmt: skip
"""Files that belong to a vocabulary, or number its tokens."""
_SLOW_FILES = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "merges.txt", "added_tokens.json")
"""Of these, what says again what tokenizer.json says."""


@dataclass(frozen=True)
class TokenRule:
    """Where the row of a token comes from, in models that lack it or in all."""

    source: int | Literal["zero", "base"]  # number of a model
    token: str | None = None  # the token of that model. Default: the same one.
    force: bool = False  # whether models that have the token take the row too


@dataclass(frozen=True)
class VocabularyRequest:
    """Which tokens the output has."""

    source: int | Literal["base", "union"]  # number of a model; the base is the first model where there is none
    tokens: Mapping[str, TokenRule]  # what is different for some tokens
    multiple_of: int = 1  # rows of tables are a multiple of this

    def document(self) -> dict[str, Json]:
        """Return it as plain values."""
        tokens: dict[str, Json] = {
            token: {"from": rule.source, "token": rule.token, "force": rule.force}
            for token, rule in self.tokens.items()
        }
        return {"source": self.source, "tokens": tokens, "multiple_of": self.multiple_of}


def as_vocabulary(value: Any, n_models: int) -> VocabularyRequest | None:
    """Return a request from plain values: "base", "union", the number of a model, or a mapping with these as source.

    Raises OptionError for anything else.
    """
    if value is None or isinstance(value, VocabularyRequest):
        return value
    stated: dict[str, Any] = dict(value) if isinstance(value, Mapping) else {"source": value}
    source = stated.pop("source", "base")
    tokens = stated.pop("tokens", None) or {}
    multiple = stated.pop("multiple_of", 1)
    if stated:
        raise OptionError("vocabulary", f"has no {', '.join(map(repr, stated))}: source, tokens, multiple_of")
    if source not in ("base", "union") and not _is_model(source, n_models):
        raise OptionError("vocabulary", f"expected 'base', 'union' or the number of a model, found {source!r}")
    if isinstance(multiple, bool) or not isinstance(multiple, int) or multiple < 1:
        raise OptionError("vocabulary", f"multiple_of: expected a positive integer, found {multiple!r}")
    if not isinstance(tokens, Mapping):
        raise OptionError("vocabulary", f"tokens: expected a rule by token, found {tokens!r:.60}")
    rules = {str(token): _as_rule(token, rule, n_models) for token, rule in tokens.items()}
    return VocabularyRequest(source, rules, multiple)


def _is_model(value: Any, n_models: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < n_models


def _as_rule(token: str, rule: Any, n_models: int) -> TokenRule:
    stated = dict(rule) if isinstance(rule, Mapping) else {"from": rule}
    source = stated.pop("from", None)
    made = TokenRule(source, stated.pop("token", None), bool(stated.pop("force", False)))
    if stated or not (source in ("zero", "base") or _is_model(source, n_models)):
        text = f"token {token!r}: expected the number of a model, 'base' or 'zero', found {rule!r:.60}"
        raise OptionError("vocabulary", text)
    return made


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens of an output, and which rows of each checkpoint's tables they are."""

    numbers: Mapping[str, int]  # rows of the output by token
    own_numbers: Mapping[str, int]  # the same in the tokenizer of `source`
    # (rows,) by checkpoint, models before the base: its own row, -1 where it has none.
    rows: tuple[NDArray[np.int64], ...]
    tables: Mapping[str, tuple[StoredTensor, ...]]  # where each checkpoint has the tables of tokens, by name
    # By row: checkpoint (None: zeros), its row, and whether all take it.
    rules: Mapping[int, tuple[int | None, int, bool]]
    source: Checkpoint  # whose tokenizer the output has
    files: Mapping[str, bytes]  # files of the tokenizer that are written anew
    left_out: tuple[str, ...]  # files of the tokenizer that are not copied
    notes: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.rows[0])

    def readers(
        self, name: str, read: Callable[[int], ByteArray], checkpoints: Sequence[Checkpoint], weights: Sequence[float],
        n_models: int, fills_from_base: bool,
    ) -> list[ArrayTensorReader]:  # fmt: skip
        """Return readers of a table in the order of the output's tokens, one for each checkpoint.

        `read` gives all bytes of the table in a checkpoint by its number; `weights` (J,) are those of the models.
        """
        tables = []
        for number, stored in enumerate(self.tables[name]):
            values: Floats = np.empty(stored.size, np.float32 if FLOAT_TYPES[stored.dtype].itemsize < 8 else np.float64)
            FLOAT_TYPES[stored.dtype].decode(read(number), values)
            tables.append(values.reshape(stored.shape[0], -1))
        owned = np.stack([rows >= 0 for rows in self.rows])  # (checkpoints, rows)
        found = [
            np.where(has[:, None], table[np.maximum(rows, 0)], 0)
            for table, rows, has in zip(tables, self.rows, owned, strict=True)
        ]
        fill = _filling(found, owned, np.maximum(np.array(weights), 0.0), n_models, fills_from_base)
        for number, (values, has) in enumerate(zip(found, owned, strict=True)):
            values[~has] = fill[number < n_models][~has]
        for row, (donor, its_row, force) in self.rules.items():
            value: Any = 0.0 if donor is None else tables[donor][its_row]
            for values, has in zip(found, owned, strict=True):
                if force or not has[row]:
                    values[row] = value
        return [
            _reader(values, stored.dtype, checkpoint.name)
            for values, stored, checkpoint in zip(found, self.tables[name], checkpoints, strict=True)
        ]


def _filling(
    found: Sequence[NDArray[Any]], owned: NDArray[np.bool_], weights: NDArray[Any], n_models: int, fills_from_base: bool
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return what rows take that are not there (rows, n): in the base, and in a model."""
    shares = np.where(weights.any(), weights, 1.0)[:, None] * owned[:n_models]  # (J, rows)
    total = shares.sum(axis=0)
    mean = sum(share[:, None] * values for share, values in zip(shares, found, strict=False))
    mean = np.divide(mean, total[:, None], out=np.zeros_like(found[0], dtype=np.float64), where=total[:, None] > 0)
    if len(found) == n_models:
        return mean, mean
    takes_base = owned[-1] & (fills_from_base | (total == 0))
    return mean, np.where(takes_base[:, None], found[-1], mean)


def _reader(values: NDArray[Any], dtype: str, name: str) -> ArrayTensorReader:
    float_type = FLOAT_TYPES[dtype]
    data = np.empty(values.size * float_type.itemsize, dtype=np.uint8)
    float_type.encode(np.ascontiguousarray(values).reshape(-1), data)
    return ArrayTensorReader(data, dtype, name)


def with_vocabulary(request: VocabularyRequest, inputs: MergeInputs) -> tuple[MergeInputs, Vocabulary]:
    """Return the inputs with tables of the output's rows, and how these are read.

    Raises InputError where a checkpoint has no tokenizer, or a union cannot be made.
    """
    checkpoints = [*inputs.models, *(() if inputs.base is None else (inputs.base,))]
    tokenizers = [None if one.folder is None else tokenizer_of(one.folder) for one in checkpoints]
    lacking = [one.name for one, known in zip(checkpoints, tokenizers, strict=True) if not (known and known["numbers"])]
    if lacking:
        text = "has no tokenizer with tokens that can be read"
        raise InputError([Problem(name, text, "save it with its tokenizer.json", "E-NEEDED") for name in lacking])
    numbers = [dict(known["numbers"]) for known in tokenizers if known is not None]
    number = _source_number(request, inputs)
    files: dict[str, bytes] = {}
    left_out: tuple[str, ...] = ()
    tables = _tables(checkpoints, numbers)
    padding = {}
    if request.source == "union":
        order = [number, *(one for one in range(len(checkpoints)) if one != number)]
        tokens, files = union([checkpoints[one] for one in order], [tokenizers[one] for one in order])
        size = max(tokens.values()) + 1
        left_out = _SLOW_FILES if files else ()
    else:
        tokens = numbers[number]
        size = min((table[number].shape[0] for table in tables.values()), default=0)
        taken = set(tokens.values())
        padding = {row: row for row in range(size) if row not in taken}
    size = -(-size // request.multiple_of) * request.multiple_of
    rows = tuple(
        _rows(tokens, padding, one, min((table[place].shape[0] for table in tables.values()), default=0), size)
        for place, one in enumerate(numbers)
    )
    source = checkpoints[number]
    vocabulary = Vocabulary(
        tokens, numbers[number], rows, tables, _rules(request, tokens, numbers, inputs), source, files, left_out,
        (_summary(tokens, numbers, [one.name for one in checkpoints]), *_without_rows(tokens, rows)),
    )  # fmt: skip
    generation = Path() if source.folder is None else source.folder / "generation_config.json"
    if left_out and generation.is_file():
        stated = read_object(generation)
        files["generation_config.json"] = json_bytes(_with_special_tokens(stated, stated, vocabulary))
    resized = [_resized(one, vocabulary) for one in checkpoints]
    count = len(inputs.models)
    return replace(inputs, models=tuple(resized[:count]), base=next(iter(resized[count:]), None)), vocabulary


def _source_number(request: VocabularyRequest, inputs: MergeInputs) -> int:
    """Return the number of the checkpoint whose tokenizer is the output's, or the first of the union."""
    if isinstance(request.source, int):
        return request.source
    return 0 if inputs.base is None else len(inputs.models)


def _tables(
    checkpoints: Sequence[Checkpoint], numbers: Sequence[Mapping[str, int]]
) -> dict[str, tuple[StoredTensor, ...]]:
    """Return the tensors that have a row for each token, by name: in every checkpoint."""
    tables = {}
    for name in checkpoints[0].tensors:
        if not is_token_table(name):
            continue
        stored = [one.tensors[name][1] for one in checkpoints if name in one.tensors]
        if len(stored) == len(checkpoints) and all(
            _has_rows(one, checkpoint, known)
            for one, checkpoint, known in zip(stored, checkpoints, numbers, strict=True)
        ):
            tables[name] = tuple(stored)
    return tables


def is_token_table(name: str) -> bool:
    """Return whether a name is that of a tensor with a row for each token."""
    return any(mark in name for mark in TOKEN_MARKS) and "position" not in name and "type_embed" not in name


def _has_rows(stored: StoredTensor, checkpoint: Checkpoint, numbers: Mapping[str, int]) -> bool:
    """Return whether a tensor has as many rows as a checkpoint has tokens, or more."""
    stated = vocabulary_size(checkpoint.config)
    rows = stored.shape[0] if stored.shape else 0
    if stored.dtype not in FLOAT_TYPES or not rows:
        return False
    return rows == stated if stated is not None else rows > max(numbers.values(), default=0)


def vocabulary_size(config: Mapping[str, Json]) -> int | None:
    """Return the number of rows that a configuration states; None for one that states none."""
    inner = config.get("text_config")
    stated = config.get("vocab_size", inner.get("vocab_size") if isinstance(inner, Mapping) else None)
    return stated if isinstance(stated, int) else None


def _rows(
    tokens: Mapping[str, int], padding: Mapping[int, int], own: Mapping[str, int], n_rows: int, size: int
) -> NDArray[np.int64]:
    """Return the rows (size,) of a checkpoint's tables that the output's rows are; -1 for those that it lacks."""
    rows = np.full(size, -1, dtype=np.int64)
    taken = set(own.values())
    for row, its_row in padding.items():
        if its_row < n_rows and its_row not in taken:
            rows[row] = its_row
    for token, row in tokens.items():
        if own.get(token, n_rows) < n_rows and row < size:
            rows[row] = own[token]
    return rows


def _rules(
    request: VocabularyRequest, tokens: Mapping[str, int], numbers: Sequence[Mapping[str, int]], inputs: MergeInputs
) -> dict[int, tuple[int | None, int, bool]]:
    """Return rules for tokens by their rows: checkpoint, its row, and whether all take it."""
    rules: dict[int, tuple[int | None, int, bool]] = {}
    for token, rule in request.tokens.items():
        if token not in tokens:
            raise InputError("vocabulary", f"there is no token {token!r} in the output", "correct it", "E-MISMATCH")
        if rule.source == "zero":
            rules[tokens[token]] = (None, 0, rule.force)
            continue
        if rule.source == "base" and inputs.base is None:
            raise InputError(
                "vocabulary", f"token {token!r} is of a base, and there is none", "give `base=`", "E-NEEDED"
            )
        number = len(inputs.models) if rule.source == "base" else int(rule.source)
        donor = token if rule.token is None else rule.token
        if donor not in numbers[number]:
            name = [*inputs.models, inputs.base][number]
            text = f"there is no token {donor!r} in {name.name if name else ''}"
            raise InputError("vocabulary", text, "name another", "E-MISMATCH")
        rules[tokens[token]] = (number, numbers[number][donor], rule.force)
    return rules


def _resized(checkpoint: Checkpoint, vocabulary: Vocabulary) -> Checkpoint:
    """Return a checkpoint whose tables have the output's rows, and its configuration the numbers of its tokens."""
    tensors = dict(checkpoint.tensors)
    for name in vocabulary.tables:
        number, stored = tensors[name]
        shape = (vocabulary.size, *stored.shape[1:])
        nbytes = stored.nbytes // stored.shape[0] * vocabulary.size
        tensors[name] = number, replace(stored, shape=shape, nbytes=nbytes)
    return replace(checkpoint, tensors=tensors)


def with_tokens(config: Mapping[str, Json], vocabulary: Vocabulary) -> dict[str, Json]:
    """Return a configuration with the number of rows, and the numbers of special tokens as the output has them."""
    changed = dict(config)
    inner = config.get("text_config")
    if isinstance(config.get("vocab_size"), int):
        changed["vocab_size"] = vocabulary.size
    if isinstance(inner, Mapping):
        changed["text_config"] = with_tokens(inner, vocabulary)
    return _with_special_tokens(changed, vocabulary.source.config, vocabulary)


def _with_special_tokens(
    config: Mapping[str, Json], stated_config: Mapping[str, Json], vocabulary: Vocabulary
) -> dict[str, Json]:
    """Return a configuration with the special tokens of another one, which has the numbers of the source's tokens."""
    changed = dict(config)
    token_of = {number: token for token, number in vocabulary.own_numbers.items()}
    for key, stated in stated_config.items():
        if key.endswith("_token_id") and key in config:
            numbers = stated if isinstance(stated, list) else [stated]
            moved = [_moved(number, token_of, vocabulary.numbers) for number in numbers]
            changed[key] = moved if isinstance(stated, list) else moved[0]
    return changed


def _moved(number: Json, token_of: Mapping[int, str], numbers: Mapping[str, int]) -> Json:
    """Return the number in the output of a token by its number in the tokenizer."""
    return numbers.get(token_of.get(number, ""), number) if isinstance(number, int) else number


def _summary(tokens: Mapping[str, int], numbers: Sequence[Mapping[str, int]], names: Sequence[str]) -> str:
    """Return how many tokens are whose, in a sentence."""
    counts = [sum(token in one for one in numbers) for token in tokens]
    everywhere, alone = counts.count(len(numbers)), counts.count(1)
    shared = f"{everywhere} of them in all of {len(names)} checkpoints"
    return f"vocabulary: {len(tokens)} tokens, {shared}, {alone} in one alone"


def _without_rows(tokens: Mapping[str, int], rows: Sequence[NDArray[np.int64]]) -> list[str]:
    """Return a note on the tokens that no table has a row for; an empty list where there is none."""
    has_row = np.any([one >= 0 for one in rows], axis=0)
    beyond = [token for token, row in tokens.items() if row >= len(has_row)]
    empty = [token for token, row in tokens.items() if row < len(has_row) and not has_row[row]]
    notes = [f"{first_names(beyond, 3)}: tokens of the tokenizer beyond the rows of the tables"] if beyond else []
    return notes + ([f"{first_names(empty, 3)}: no checkpoint has a row for it, zeros are written"] if empty else [])
