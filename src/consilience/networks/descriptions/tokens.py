"""Counts of tokens, of pairs of neighbours, and of lengths, over sequences that arrive in batches, by class.

A token is said where it occurs often enough and in enough observations: a name that one text repeats is not. Nor do
differences tell of it: of all observations together a token's count is

    sum of its counts in the classes that say it  +  its count in all others,

the latter where it is often enough too. So what is left when classes are taken from the whole could be said by itself.
Lengths alike. Pairs are not said by class: texts drawn from single tokens judged networks better than texts drawn
from pairs (docs/evidence/synthetic_inputs.md). Of all together they are counted between tokens that are said.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from consilience.checks import AnyArray, Labels
from consilience.networks.descriptions.description import Description, TokenCounts
from consilience.networks.descriptions.disclosure import MIN_TOKEN_COUNT, MIN_TOKENS, Leaving, least_class_observations
from consilience.networks.descriptions.observations import Batch
from consilience.networks.descriptions.statistic import Setting, Statistic

MAX_PAIRS = 2**22
"""Different pairs of neighbours, by class, that are counted at most (100 MB, and four times that while they are
sorted). Chosen by hand, for memory."""


MAX_TOKEN_ENTRIES = 2**24
"""Classes times vocabulary at most for counts of tokens by class (256 MiB while they are summed); beyond, tokens are
counted over all classes. Chosen by hand, for memory."""


class TokenAccumulator:
    """Counts of tokens (n, length) that arrive in batches, by group; `padding` fills sequences up at their end."""

    def __init__(self, vocabulary: int, padding: int | None, n_groups: int = 1) -> None:
        self.vocabulary, self.padding, self.n_groups = vocabulary, padding, n_groups
        self._occurrences = np.zeros((n_groups, vocabulary), dtype=np.int64)
        self._observations = np.zeros((n_groups, vocabulary), dtype=np.int64)  # in which a token occurs
        # Pairs by (group * vocabulary + first) * vocabulary + second, sorted, with their occurrences and observations.
        self._pairs = np.zeros((3, 0), dtype=np.int64)
        self._new_pairs: list[Labels] = []  # of batches that are not in the table yet
        self.has_too_many_pairs = False
        self._lengths = np.zeros((n_groups, 1), dtype=np.int64)

    def add(self, tokens: Labels, groups: Labels) -> None:
        """Add sequences of tokens (n, length) of the vocabulary, of some groups (n,)."""
        if self.n_groups == 1:
            groups = np.zeros_like(groups)
        n, length = tokens.shape
        is_said = np.ones_like(tokens, dtype=bool) if self.padding is None else tokens != self.padding
        # Padding within a sequence is a token like others; only what follows the last other token fills up.
        lengths = np.where(is_said.any(axis=1), length - np.argmax(is_said[:, ::-1], axis=1), 0)
        is_inside = np.arange(length) < lengths[:, None]  # (n, length)
        rows = np.broadcast_to(np.arange(n)[:, None], tokens.shape)
        np.add.at(self._occurrences, (groups[rows[is_inside]], tokens[is_inside]), 1)
        in_rows, of_rows = np.divmod(np.unique(rows[is_inside] * self.vocabulary + tokens[is_inside]), self.vocabulary)
        np.add.at(self._observations, (groups[in_rows], of_rows), 1)
        are_inside = is_inside[:, 1:]
        keys = (groups[:, None] * self.vocabulary + tokens[:, :-1]) * self.vocabulary + tokens[:, 1:]
        self._add_pairs(keys[are_inside], rows[:, 1:][are_inside])
        self._lengths = np.pad(self._lengths, ((0, 0), (0, max(0, length + 1 - self._lengths.shape[1]))))
        np.add.at(self._lengths, (groups, lengths), 1)

    def _add_pairs(self, pairs: Labels, rows: Labels) -> None:
        """Add pairs (k,) of neighbours and the observations (k,) that they are in."""
        if self.has_too_many_pairs:
            return
        distinct, occurrences = np.unique(pairs, return_counts=True)
        by_row = np.unique(np.stack([pairs, rows]), axis=1)[0]  # a pair once for every observation that has it
        observations = np.unique(by_row, return_counts=True)[1]
        self._new_pairs.append(np.stack([distinct, occurrences, observations]))
        # The table is sorted where it may have doubled, so that the work grows as n log n and not as n squared.
        if sum(of_batch.shape[1] for of_batch in self._new_pairs) >= self._pairs.shape[1]:
            self._merge_pairs()

    def _merge_pairs(self) -> None:
        """Add the pairs of the last batches to the table; forget all where they are too many."""
        if self._new_pairs:
            self._pairs = _summed(np.concatenate([self._pairs, *self._new_pairs], axis=1))
        if self._pairs.shape[1] > MAX_PAIRS:
            self.has_too_many_pairs, self._pairs = True, np.zeros((3, 0), dtype=np.int64)
        self._new_pairs = []

    def described_groups(self, min_count: float) -> Labels:
        """Return the groups that have enough observations and tokens for counts of their own."""
        is_enough = self._lengths.sum(axis=1) >= least_class_observations(min_count)
        if min_count > 0:
            is_enough &= self._occurrences.sum(axis=1) >= MIN_TOKENS
        return np.flatnonzero(is_enough)

    def result(
        self, said: Labels, described: Labels, min_count: float
    ) -> tuple[TokenCounts | None, dict[int, TokenCounts]]:
        """Return what may leave of the counts of the `said` groups together, and of the `described` ones of them alone.

        Single groups have no pairs. A token, a pair or a length must occur in `min_count` observations; with too few
        tokens of all there is nothing.
        """
        least = MIN_TOKEN_COUNT if min_count > 0 else 0
        is_single = np.isin(said, described)
        occurrences = self._occurrences[said]  # (groups, vocabulary)
        if occurrences.sum() < MIN_TOKENS and min_count > 0:
            return None, {}
        is_own, is_token = _is_frequent(occurrences, self._observations[said], is_single, least, min_count)
        lengths = self._lengths[said]  # (groups, longest + 1)
        is_own_length, is_length = _is_frequent(lengths, lengths, is_single, 0, min_count)

        said_lengths = (lengths * is_length).sum(axis=0)
        longest = int(np.flatnonzero(said_lengths).max(initial=0))

        def counts(tokens: Labels, pairs: Labels, of_lengths: Labels, total: int) -> TokenCounts:
            first, second = np.divmod(pairs[0], self.vocabulary)
            return TokenCounts(
                tokens.astype(np.float64),
                np.stack([first, second, pairs[1]], axis=1),
                of_lengths[: longest + 1].astype(np.float64),
                self.padding,
                float(total - tokens.sum()),
            )

        no_pairs = np.zeros((3, 0), dtype=np.int64)
        single = {
            int(said[g]): counts(
                occurrences[g] * is_own[g], no_pairs, lengths[g] * is_own_length[g], int(occurrences[g].sum())
            )
            for g in np.flatnonzero(is_single)
        }
        pairs = self._said_pairs(said, is_token)
        pairs = pairs[:, (pairs[1] >= least) & (pairs[2] >= min_count)]
        whole = counts((occurrences * is_token).sum(axis=0), pairs, said_lengths, int(occurrences.sum()))
        return whole, single

    def _said_pairs(self, said: Labels, is_token: AnyArray) -> Labels:
        """Return the pairs (3, k) of some groups, of occurrences of tokens that are said (groups, vocabulary)."""
        self._merge_pairs()
        group, key = np.divmod(self._pairs[0], self.vocabulary**2)
        first, second = np.divmod(key, self.vocabulary)
        place_of_group = np.full(self.n_groups, -1)
        place_of_group[said] = np.arange(len(said))
        place = place_of_group[group]
        is_said = (place >= 0) & is_token[place, first] & is_token[place, second]
        return _summed(np.stack([key, *self._pairs[1:]])[:, is_said])


class TokenStatistic(Statistic):
    """Counts of tokens, by class where memory allows."""

    def __init__(self, setting: Setting, table: nn.Embedding | nn.EmbeddingBag) -> None:
        padding = setting.padding
        is_by_class = setting.n_groups * table.num_embeddings <= MAX_TOKEN_ENTRIES
        self._counts = TokenAccumulator(table.num_embeddings, padding, setting.n_groups if is_by_class else 1)
        self._longest = 0

    def add(self, batch: Batch, groups: Labels, answer: Any) -> None:
        """Add the texts of a batch."""
        self._longest = max(self._longest, batch.inputs.shape[1])
        self._counts.add(batch.inputs.cpu().numpy(), groups)

    def state(self, described: Description, leaving: Leaving) -> Description:
        """Return a description with the counts of all texts, and of every class that has enough."""
        counts, said = self._counts, leaving.said
        described = replace(described, input_shape=(self._longest,))
        # Observations without a class are the last group, and the only one where classes are not told apart.
        groups = np.setdiff1d(counts.described_groups(leaving.min_count), [counts.n_groups - 1])
        if counts.n_groups < len(leaving.counts):
            if not leaving.is_all:
                text = "classes and tokens are too many to leave some classes out of the counts of tokens"
                leaving.left_out.append(text)
                return described
            said = np.zeros(1, dtype=np.int64)
        tokens, class_tokens = counts.result(said, groups, leaving.min_count)
        if counts.has_too_many_pairs:  # known for certain once the last pairs are merged
            text = f"pairs of neighbouring tokens are left out: there are more than {MAX_PAIRS:,}"
            described = replace(described, notes=(*described.notes, text))
        if tokens is None:
            leaving.left_out.append(f"fewer than {MIN_TOKENS} tokens, so that their counts are left out")
        return replace(described, tokens=tokens, class_tokens=class_tokens)


def _is_frequent(
    occurrences: Labels, observations: Labels, is_single: AnyArray, least: float, min_count: float
) -> tuple[AnyArray, AnyArray]:
    """Return which counts (groups, k) a group may say by itself, and which are in those of all groups together.

    The latter are the former and what is left of all groups together, where that is frequent too: with `least`
    occurrences in `min_count` observations.
    """
    is_own = is_single[:, None] & (occurrences >= least) & (observations >= min_count)
    others = [np.where(is_own, 0, counts).sum(axis=0) for counts in (occurrences, observations)]
    is_other = (others[0] >= least) & (others[1] >= min_count)
    return is_own, is_own | is_other


def _summed(table: Labels) -> Labels:
    """Return keys (first row) in order, each once, and the sums of their counts (other rows)."""
    keys, place = np.unique(table[0], return_inverse=True)
    return np.stack([keys, *(np.bincount(place, counts, len(keys)).astype(np.int64) for counts in table[1:])])
