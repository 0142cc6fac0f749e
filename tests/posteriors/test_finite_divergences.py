"""Divergences of rows of which some cannot be calculated: those are infinite, and the others as they are alone."""

from itertools import product

import numpy as np
import pytest

from consilience.core.robust_estimator import finite_divergences, squared_distance


def spoilt(kind):
    """Return squared distances that a negative first entry spoils, as one matrix without a factor spoils a stack."""

    def divergence(a, b):
        is_bad = (a[:, None, 0] < 0) | (b[None, :, 0] < 0)
        if kind == "raises" and is_bad.any():
            raise np.linalg.LinAlgError("not positive definite")
        return np.where(is_bad, np.nan, squared_distance(a, b))

    return divergence


@pytest.mark.parametrize("kind", ["raises", "NaN"])
@pytest.mark.parametrize(("bad_row", "bad_column"), [*product([None, 0, 1, 3], [None, 0, 2])])
def test_one_row_at_fault_spoils_no_divergence_of_others(kind, bad_row, bad_column):
    rng = np.random.default_rng(0)
    rows, columns = rng.uniform(size=(4, 2)), rng.uniform(size=(3, 2))
    expected = squared_distance(rows, columns)
    if bad_row is not None:
        rows[bad_row, 0], expected[bad_row] = -1.0, np.inf
    if bad_column is not None:
        columns[bad_column, 0], expected[:, bad_column] = -1.0, np.inf
    np.testing.assert_array_equal(finite_divergences(spoilt(kind), rows, columns), expected)
