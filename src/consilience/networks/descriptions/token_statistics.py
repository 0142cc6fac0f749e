"""Counts of tokens, of pairs of neighbours, and of lengths, over sequences that arrive in batches.

A token is said where it occurs often enough and in enough observations: a name that one text repeats is not.
"""

from __future__ import annotations

import numpy as np

from consilience.checks import Labels
from consilience.errors import InputError
from consilience.networks.descriptions.description import TokenCounts
from consilience.networks.descriptions.disclosure import MIN_TOKEN_COUNT, MIN_TOKENS


class TokenAccumulator:
    """Counts of tokens (n, length) that arrive in batches.

    Parameters
    ----------
    vocabulary : int
        Number of tokens that there are.
    padding : int, optional
        The token that fills sequences up at their end.
    """

    def __init__(self, vocabulary: int, padding: int | None) -> None:
        """Start without tokens."""
        self.vocabulary, self.padding = vocabulary, padding
        self._occurrences = np.zeros(vocabulary, dtype=np.int64)
        self._observations = np.zeros(vocabulary, dtype=np.int64)  # in which a token occurs
        # Pairs by first * vocabulary + second, sorted, with their occurrences and observations.
        self._pairs = np.zeros((3, 0), dtype=np.int64)
        self._lengths = np.zeros(1, dtype=np.int64)

    def add(self, tokens: Labels, name: str) -> None:
        """Add sequences of tokens (n, length).

        Raises
        ------
        InputError
            For tokens outside the vocabulary.
        """
        if (tokens < 0).any() or (tokens >= self.vocabulary).any():
            raise InputError(name, f"has tokens outside the vocabulary of {self.vocabulary}")
        n, length = tokens.shape
        is_said = np.ones_like(tokens, dtype=bool) if self.padding is None else tokens != self.padding
        # Padding within a sequence is a token like others; only what follows the last other token fills up.
        lengths = np.where(is_said.any(axis=1), length - np.argmax(is_said[:, ::-1], axis=1), 0)
        is_inside = np.arange(length) < lengths[:, None]  # (n, length)
        rows = np.broadcast_to(np.arange(n)[:, None], tokens.shape)
        self._occurrences += np.bincount(tokens[is_inside], minlength=self.vocabulary)
        in_rows = np.unique(rows[is_inside] * self.vocabulary + tokens[is_inside])
        self._observations += np.bincount(in_rows % self.vocabulary, minlength=self.vocabulary)
        are_inside = is_inside[:, 1:]
        pairs = (tokens[:, :-1] * self.vocabulary + tokens[:, 1:])[are_inside]
        self._add_pairs(pairs, rows[:, 1:][are_inside])
        counted = np.bincount(lengths, minlength=len(self._lengths))
        counted[: len(self._lengths)] += self._lengths
        self._lengths = counted

    def _add_pairs(self, pairs: Labels, rows: Labels) -> None:
        """Add pairs (k,) of neighbours and the observations (k,) that they are in."""
        distinct, occurrences = np.unique(pairs, return_counts=True)
        by_row = np.unique(np.stack([pairs, rows]), axis=1)[0]  # a pair once for every observation that has it
        observations = np.unique(by_row, return_counts=True)[1]
        both = np.concatenate([self._pairs, np.stack([distinct, occurrences, observations])], axis=1)
        keys, place = np.unique(both[0], return_inverse=True)
        self._pairs = np.stack([keys, *(np.bincount(place, counts, len(keys)).astype(np.int64) for counts in both[1:])])

    def result(self, min_count: float) -> TokenCounts | None:
        """Return what may leave of the counts; None where there are too few tokens."""
        total = int(self._occurrences.sum())
        if total < MIN_TOKENS and min_count > 0:
            return None
        least = MIN_TOKEN_COUNT if min_count > 0 else 0
        is_common = (self._occurrences >= least) & (self._observations >= min_count)
        unigrams = np.where(is_common, self._occurrences, 0)
        first, second = np.divmod(self._pairs[0], self.vocabulary)
        is_common_pair = (self._pairs[1] >= least) & (self._pairs[2] >= min_count)
        is_common_pair &= is_common[first] & is_common[second]
        lengths = np.where(self._lengths >= min_count, self._lengths, 0)
        return TokenCounts(
            unigrams.astype(np.float64),
            np.stack([first, second, self._pairs[1]], axis=1)[is_common_pair],
            lengths[: int(np.flatnonzero(lengths).max(initial=0)) + 1].astype(np.float64),
            self.padding,
            float(total - unigrams.sum()),
        )
