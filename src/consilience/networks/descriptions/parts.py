"""Parts of a description's file: how moments and counts of tokens are stored, each stated once.

A part is a record in the header and some float32 tensors under one prefix. Several moments, or the counts of several
classes, are one part: their arrays stand one after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field

from consilience.checks import AnyArray, Array
from consilience.errors import FileFormatError, InputError, Problem
from consilience.files.format import TensorSpec
from consilience.files.schemas import Chunked, StrictModel
from consilience.networks.descriptions.description import Moments, TokenCounts

NEGATIVE_VARIANCE_SHARE = 1e-6
"""Negative residual variances up to this share of the mean variance are rounding, and are set to 0."""

REAL, WHOLE = ("float32",), ("int64",)
"""Types of tensors, of real and of whole numbers."""

_Rank = Annotated[int, Field(ge=0)]


class StoredMoments(StrictModel):
    """Moments of K groups of rows: tensors ``mean`` and ``residual`` (K, d), and ``factor`` (sum of ranks, d)."""

    n_observations: Chunked[list[float]]
    ranks: Chunked[list[_Rank]]

    @classmethod
    def of(cls, moments: Sequence[Moments]) -> Self | None:
        """Return what the header says of moments; None of none."""
        if not moments:
            return None
        return cls(
            n_observations=[float(one.n_observations) for one in moments], ranks=[len(one.factor) for one in moments]
        )

    @staticmethod
    def arrays(prefix: str, moments: Sequence[Moments]) -> dict[str, Array]:
        """Return the tensors of moments; none of none."""
        if not moments:
            return {}
        return {
            f"{prefix}/mean": np.stack([one.mean for one in moments]),
            f"{prefix}/residual": np.stack([one.residual for one in moments]),
            f"{prefix}/factor": np.concatenate([one.factor for one in moments]),
        }

    def tensors(self, prefix: str) -> dict[str, TensorSpec]:
        """Return what the tensors are called, and their shapes."""
        n_rows = {"mean": len(self.ranks), "residual": len(self.ranks), "factor": sum(self.ranks)}
        return {f"{prefix}/{what}": TensorSpec((n, None), REAL, may_be_empty=True) for what, n in n_rows.items()}

    def read(self, prefix: str, arrays: Mapping[str, AnyArray], called: Sequence[str]) -> list[Moments]:
        """Return the moments; raise InputError for moments that are none, each under what it is called."""
        factors = np.split(arrays[f"{prefix}/factor"], np.cumsum(self.ranks)[:-1])
        rows = zip(
            called, self.n_observations, arrays[f"{prefix}/mean"], factors, arrays[f"{prefix}/residual"], strict=True
        )
        moments: list[Moments] = []
        problems: list[Problem] = []
        for name, n, mean, factor, residual in rows:
            try:
                moments.append(Moments(float(n), mean, factor, _without_rounding(residual)))
            except InputError as error:
                problems += [Problem("", f"moments of {name} {problem.text}") for problem in error.problems]
        if problems:
            raise InputError(problems)
        return moments


def _without_rounding(residual: Array) -> Array:
    """Return residual variances (d,), 0 where they are negative by rounding."""
    scale = np.abs(residual).mean() if residual.size else 0.0
    is_rounding = (residual < 0) & (residual >= -NEGATIVE_VARIANCE_SHARE * scale)
    cleaned: Array = np.where(is_rounding, 0.0, residual)
    return cleaned


class StoredTokens(StrictModel):
    """Counts of tokens: tensors ``unigrams`` (vocabulary,), ``lengths`` (L + 1,) and whole ``bigrams`` (k, 3)."""

    padding: int | None
    n_rare: float

    @classmethod
    def of(cls, tokens: TokenCounts | None) -> Self | None:
        """Return what the header says of counts; None of none."""
        if tokens is None:
            return None
        return cls(padding=None if tokens.padding is None else int(tokens.padding), n_rare=float(tokens.n_rare))

    @staticmethod
    def arrays(prefix: str, tokens: TokenCounts | None) -> dict[str, Array]:
        """Return the tensors of counts; none of none."""
        if tokens is None:
            return {}
        counts = {f"{prefix}/unigrams": tokens.unigrams, f"{prefix}/lengths": tokens.lengths}
        return {**counts, f"{prefix}/bigrams": np.asarray(tokens.bigrams, dtype=np.int64)}

    def tensors(self, prefix: str) -> dict[str, TensorSpec]:
        """Return what the tensors are called, and their shapes."""
        return {
            f"{prefix}/unigrams": TensorSpec((None,), REAL, may_be_empty=True),
            f"{prefix}/lengths": TensorSpec((None,), REAL, may_be_empty=True),
            f"{prefix}/bigrams": TensorSpec((None, 3), WHOLE, may_be_empty=True),
        }

    def read(self, prefix: str, arrays: Mapping[str, AnyArray]) -> TokenCounts:
        """Return the counts."""
        unigrams, bigrams, lengths = (arrays[f"{prefix}/{what}"] for what in ("unigrams", "bigrams", "lengths"))
        return TokenCounts(unigrams, bigrams, lengths, self.padding, self.n_rare)


class StoredClassTokens(StrictModel):
    """Counts of tokens by class: ``unigrams`` (k, 3) of place, token and occurrences, and ``lengths`` (K, L + 1)."""

    numbers: Chunked[list[int]]
    n_rare: Chunked[list[float]]

    @classmethod
    def of(cls, counts: Mapping[int, TokenCounts]) -> Self | None:
        """Return what the header says of counts by class; None of none."""
        if not counts:
            return None
        numbers = sorted(counts)
        return cls(numbers=[int(n) for n in numbers], n_rare=[float(counts[n].n_rare) for n in numbers])

    @staticmethod
    def arrays(prefix: str, counts: Mapping[int, TokenCounts], longest: int) -> dict[str, Array]:
        """Return the tensors of counts by class, for lengths up to `longest` at least; none of none."""
        if not counts:
            return {}
        of_classes = [counts[number] for number in sorted(counts)]
        size = max(longest, *(len(one.lengths) for one in of_classes))
        unigrams = np.stack([one.unigrams for one in of_classes])  # (K, vocabulary)
        place, token = np.nonzero(unigrams)
        return {
            f"{prefix}/unigrams": np.stack([place, token, unigrams[place, token]], axis=1).astype(np.int64),
            f"{prefix}/lengths": np.stack([np.pad(one.lengths, (0, size - len(one.lengths))) for one in of_classes]),
        }

    def tensors(self, prefix: str) -> dict[str, TensorSpec]:
        """Return what the tensors are called, and their shapes."""
        return {
            f"{prefix}/unigrams": TensorSpec((None, 3), WHOLE, may_be_empty=True),
            f"{prefix}/lengths": TensorSpec((len(self.numbers), None), REAL, may_be_empty=True),
        }

    def read(self, prefix: str, arrays: Mapping[str, AnyArray], whole: TokenCounts) -> dict[int, TokenCounts]:
        """Return the counts of every class, of the vocabulary and padding of all."""
        place, token, occurrences = arrays[f"{prefix}/unigrams"].T
        size = (len(self.numbers), len(whole.unigrams))
        if len(place) and ((place < 0) | (place >= size[0]) | (token < 0) | (token >= size[1])).any():
            raise FileFormatError("", f"has counts by class outside {size[0]} classes and {size[1]} tokens")
        unigrams = np.zeros(size)
        unigrams[place, token] = occurrences
        no_pairs: Any = np.zeros((0, 3), dtype=np.int64)
        return {
            number: TokenCounts(of_class, no_pairs, lengths, whole.padding, n_rare)
            for number, of_class, lengths, n_rare in zip(
                self.numbers, unigrams, arrays[f"{prefix}/lengths"], self.n_rare, strict=True
            )
        }
