"""Sums cost what their matrix product costs, and fusing costs what adding costs."""

import time

import numpy as np
import pytest

from consilience.families.centred_moments import CentredMoments, merge_moments

pytestmark = pytest.mark.alone


def seconds(function, repetitions=3):
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def test_moments_cost_at_most_half_more_than_the_matrix_product():
    X = np.random.default_rng(0).normal(size=(20_000, 1_800))
    assert seconds(lambda: CentredMoments.of_rows(X)) < 1.5 * seconds(lambda: X.T @ X)


def test_fusing_a_thousand_sites_costs_at_most_twice_their_sum():
    rng = np.random.default_rng(0)
    records = [CentredMoments.of_rows(rng.normal(size=(40, 200))) for _ in range(1000)]
    assert seconds(lambda: merge_moments(records)) < 2.0 * seconds(lambda: sum(record.scatter for record in records))
