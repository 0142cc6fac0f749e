"""Ranks of magnitudes are found exactly, whether a bracket holds them or not."""

import numpy as np
import pytest

from consilience.checkpoints.methods import order_statistics
from consilience.checkpoints.methods.order_statistics import (
    RANK_PASSES,
    RUN_ENTRIES,
    sample_starts,
    settle_ranks,
    survey_ranks,
)

N, BLOCK = 300_000, 2**17


def settled(values, ranks):
    """Return the values of some ranks, and the number of passes that it took."""
    queries, facts = [(0, rank) for rank in ranks], {}
    for number in range(RANK_PASSES):
        if "values" in facts:
            return facts["values"], number
        total = None
        starts, length = (
            (sample_starts(len(values)), RUN_ENTRIES) if not number else (range(0, len(values), BLOCK), BLOCK)
        )
        for start in starts:
            block = values[start : start + length]
            found = survey_ranks(number, [block], facts)
            total = found if total is None else total + found
        facts = settle_ranks(number, total, facts, queries, len(values))
    return facts["values"], RANK_PASSES


RANKS = [1, 2, 3000, 60_000, N // 2, N - 1, N]


@pytest.mark.parametrize("kind", ["normal", "few values", "zeros"])
def test_a_bracket_has_the_rank(kind):
    values = np.abs(np.random.default_rng(0).standard_normal(N)).astype(np.float32)
    if kind == "few values":
        values = np.round(values, 1)
    if kind == "zeros":
        values[values < 1.5] = 0
    found, passes = settled(values, RANKS)
    np.testing.assert_array_equal(found, np.sort(values)[::-1][np.array(RANKS) - 1])
    assert passes == 2


def test_a_sample_unlike_the_rest_is_noticed():
    values = np.abs(np.random.default_rng(1).standard_normal(N)).astype(np.float32)
    for start in sample_starts(N):
        values[start : start + RUN_ENTRIES] = 100.0
    found, passes = settled(values, RANKS)
    np.testing.assert_array_equal(found, np.sort(values)[::-1][np.array(RANKS) - 1])
    assert passes == RANK_PASSES


def test_a_bracket_of_too_many_is_given_up(monkeypatch):
    values = np.round(np.abs(np.random.default_rng(2).standard_normal(N)), 1).astype(np.float32)
    monkeypatch.setattr(order_statistics, "_MAX_KEPT", 1000)
    found, passes = settled(values, RANKS)
    np.testing.assert_array_equal(found, np.sort(values)[::-1][np.array(RANKS) - 1])
    assert passes == RANK_PASSES


def test_runs_of_a_sample_are_inside_the_tensor_and_apart():
    assert sample_starts(1000) == [0]
    for size in (2**17 + 1, N, 10**9):
        starts = np.array(sample_starts(size))
        assert starts[0] == 0
        assert starts[-1] + RUN_ENTRIES == size
        assert np.diff(starts).min() >= RUN_ENTRIES
