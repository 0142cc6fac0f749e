"""Covariance functions, with those of scikit-learn as oracle."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import consilience as cs
from consilience.posteriors.sparse_gp.kernels import KERNELS, RBF, Matern, make_kernel
from tests.posteriors.sparse_gps import KERNEL, inputs, rows
from tests.tolerances import ROUNDING


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_scikit_learns(name):
    from sklearn.gaussian_process import kernels

    scales = [0.7, 2.0]
    theirs = kernels.RBF(scales) if name == "rbf" else kernels.Matern(scales, nu=int(name[-2]) / 2)
    X, Z = rows(0)[0], inputs()
    assert_allclose(make_kernel(name, 1.7, scales).matrix(X, Z), 1.7 * theirs(X, Z), rtol=ROUNDING)


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_survives_json_and_close_inputs(name):
    kernel = make_kernel(name, 1.7, [0.7, 2.0])
    assert make_kernel(**kernel.to_json()).same_as(kernel)
    X = np.array([[1e6, 1e6], [1e6, 1e6 + 1e-7]])  # where |x|^2 + |z|^2 - 2 x z has no digits left
    assert kernel.matrix(X).min() > 1.7 * (1 - 1e-6)
    assert_allclose(kernel.diagonal(X), 1.7, rtol=ROUNDING)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: RBF(-1.0, [1.0]),
        lambda: RBF(1.0, [1.0, 0.0]),
        lambda: Matern(1.0, [1.0], nu=2.0),
        lambda: make_kernel("cosine", 1.0, [1.0]),
        lambda: KERNEL.matrix(np.ones((3, 5))),
    ],
)
def test_kernels_that_mean_nothing_are_refused(wrong):
    with pytest.raises(cs.errors.InputError):
        wrong()
