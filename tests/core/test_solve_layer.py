"""Laws of the regression of a layer: it is the ridge regression of rows, of NumPy's arrays as of torch's."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from consilience.core.solve_layer import MIN_RIDGE, solve_layer
from tests.tolerances import ROUNDING

# Least squares over rows has the square root of the condition, normal equations all of it: below 1e3 here.
CONDITION = 1e3

N_ROWS, N_INPUTS, N_OUTPUTS = 40, 5, 3


def rows(seed):
    """Return inputs (n, d), targets (n, k) and initial weights (k, d)."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(N_ROWS, N_INPUTS)) * np.arange(1, 1 + N_INPUTS)
    return inputs, rng.normal(size=(N_ROWS, N_OUTPUTS)), rng.normal(size=(N_OUTPUTS, N_INPUTS))


def moments(inputs, targets, initial):
    """Return E[a a^T] and E[(t - W_0 a) a^T]."""
    return inputs.T @ inputs / N_ROWS, (targets - inputs @ initial.T).T @ inputs / N_ROWS


def by_rows(inputs, targets, initial, penalty):
    """Return the same change by least squares over rows, the penalty as further rows."""
    further = np.sqrt(N_ROWS * penalty) * np.eye(N_INPUTS)
    design = np.vstack([inputs, further])
    wanted = np.vstack([targets - inputs @ initial.T, np.zeros((N_INPUTS, N_OUTPUTS))])
    return np.linalg.lstsq(design, wanted, rcond=None)[0].T


@pytest.mark.parametrize("ridge", [0.0, 1e-3, 2.0])
def test_the_change_is_the_ridge_regression_of_rows(ridge):
    gram, pull = moments(*rows(0))
    penalty = max(ridge, MIN_RIDGE) * np.square(rows(0)[0]).mean()
    assert_allclose(
        solve_layer(gram, pull, ridge), by_rows(*rows(0), penalty), rtol=CONDITION * ROUNDING, atol=ROUNDING
    )


def test_the_ridge_is_relative_to_the_mean_square_that_is_given():
    gram, pull = moments(*rows(1))
    assert_allclose(solve_layer(gram, pull, 0.1, 7.0), by_rows(*rows(1), 0.7), rtol=CONDITION * ROUNDING, atol=ROUNDING)


def test_groups_are_regressions_of_their_own():
    parts = [moments(*rows(seed)) for seed in range(4)]
    gram, pull = (np.stack(of_groups) for of_groups in zip(*parts, strict=True))
    each = np.stack([solve_layer(*part, 0.1) for part in parts])
    assert_allclose(solve_layer(gram, pull, 0.1), each, rtol=CONDITION * ROUNDING, atol=ROUNDING)


def test_tensors_of_torch_have_the_change_of_arrays():
    gram, pull = moments(*rows(2))
    change = solve_layer(torch.as_tensor(gram), torch.as_tensor(pull), 0.1)
    assert isinstance(change, torch.Tensor)
    assert_allclose(change.numpy(), solve_layer(gram, pull, 0.1), rtol=CONDITION * ROUNDING, atol=ROUNDING)


def test_weights_that_fit_already_stay():
    gram, pull = moments(*rows(3))
    assert_array_equal(solve_layer(gram, np.zeros_like(pull), 0.0), 0.0)


def test_inputs_that_are_all_zero_change_nothing():
    zeros = np.zeros((N_INPUTS, N_INPUTS))
    assert_array_equal(solve_layer(zeros, np.zeros((N_OUTPUTS, N_INPUTS)), 0.1), 0.0)


def test_an_input_that_is_always_zero_keeps_its_weights():
    inputs, targets, initial = rows(4)
    inputs[:, 2] = 0.0
    change = solve_layer(*moments(inputs, targets, initial), 0.0)
    assert_array_equal(change[:, 2], 0.0)
    assert np.abs(change[:, 0]).min() > 0
