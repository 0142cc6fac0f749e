"""Laws of one sparse Gaussian process, moved and scored; dense formulas and exact processes are the oracles."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal, norm

import consilience as cs
from consilience.posteriors.sparse_gp.adapter import SparseGPAdapter
from consilience.posteriors.sparse_gp.kernels import KERNELS, make_kernel
from tests.posteriors.sparse_gps import (
    CONSTANT,
    KERNEL,
    NEW,
    NOISE,
    assert_same_predictions,
    inputs,
    prior_at,
    relabelled,
    rows,
    site,
    titsias,
)
from tests.tolerances import CLOSE_INDUCING_INPUTS, JITTERED, ROUNDING

# -- One process.


def test_predictions_are_the_dense_formulas():
    gp, X = site(0, inputs()), rows(5)[0]
    K, cross = prior_at(KERNEL, gp.inducing_inputs), KERNEL.matrix(gp.inducing_inputs, X)
    inverse = np.linalg.inv(K)
    mean, variance = gp.predict(X)
    assert_allclose(mean, CONSTANT + cross.T @ inverse @ (gp.mean - CONSTANT), rtol=1e-8)
    expected = KERNEL.variance - np.diag(cross.T @ inverse @ (K - gp.covariance) @ inverse @ cross)
    assert_allclose(variance, expected, rtol=1e-6)
    assert_allclose(gp.predict(X, noise=True)[1] - variance, NOISE, rtol=ROUNDING)


def test_with_an_inducing_input_at_every_row_it_is_the_exact_process():
    (X, y), kernel, new = rows(1, 40), make_kernel("matern12", 1.5, [1.2, 0.8]), rows(2)[0]
    exact, cross = kernel.matrix(X) + NOISE * np.eye(40), kernel.matrix(X, new)
    mean, variance = titsias(X, y, X, kernel).predict(new)
    assert_allclose(mean, CONSTANT + cross.T @ np.linalg.solve(exact, y - CONSTANT), rtol=JITTERED, atol=JITTERED)
    left = kernel.variance - np.einsum("nm,nm->m", cross, np.linalg.solve(exact, cross))
    assert_allclose(variance, left, rtol=JITTERED, atol=JITTERED)


def test_predictive_variance_is_positive_and_at_most_that_of_the_prior():
    for gp in (site(0, inputs()), titsias(*rows(0, 2000), inputs(0, 60), noise=1e-4)):
        variance = gp.predict(np.vstack([rows(3, 500)[0], gp.inducing_inputs, 30 + NEW]))[1]
        assert np.all(variance >= 0)
        assert np.all(variance <= KERNEL.variance * (1 + ROUNDING))
        assert np.all(gp.predict(NEW, noise=True)[1] > 0)


def test_far_from_all_inducing_inputs_it_is_the_prior():
    mean, variance = site(0, inputs()).predict(NEW + 50.0)
    assert_allclose(mean, CONSTANT, rtol=ROUNDING)
    assert_allclose(variance, KERNEL.variance, rtol=ROUNDING)


def test_log_density_is_that_of_a_normal_distribution():
    gp, (X, y) = site(0, inputs()), rows(4)
    mean, variance = gp.predict(X, noise=True)
    assert_allclose(gp.log_density(X, y), norm(mean, np.sqrt(variance)).logpdf(y), rtol=ROUNDING)


def test_standardised_units_are_taken_in_and_given_back():
    gp, X = site(0, inputs()), rows(4)[0]
    shift, scale = np.array([3.0, -1.0, 50.0]), np.array([2.0, 0.1, 20.0])
    other = replace(gp, shift=shift, scale=scale)
    mean, variance = other.predict(X * scale[:2] + shift[:2])
    assert_allclose((mean - 50.0) / 20.0, gp.predict(X)[0], rtol=1e-10)
    assert_allclose(variance / 400.0, gp.predict(X)[1], rtol=1e-8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"covariance": np.eye(3)}, r"covariance: expected shape \(9, 9\), found \(3, 3\)"),
        ({"covariance": -np.eye(9)}, "positive semi-definite matrix, found the eigenvalue -1"),
        ({"mean": np.full(9, np.nan)}, "mean of a sparse Gaussian process has NaN"),
        ({"noise": -1.0}, "noise: expected a finite number that is not negative"),
        ({"scale": np.zeros(3)}, "scale: expected positive numbers"),
    ],
)
def test_processes_that_cannot_be_are_refused(changes, message):
    with pytest.raises(cs.errors.InputError, match=message):
        replace(site(0, inputs()), **changes)
    with pytest.raises(cs.errors.InputError, match=r"X: expected an array of shape \(n, 2\)"):
        site(0, inputs()).predict(np.ones((3, 1)))


# -- Moving a process to other inducing inputs.


def test_moving_to_the_same_inducing_inputs_is_the_identity():
    gp = site(0, inputs())
    order = np.random.default_rng(1).permutation(9)
    other = relabelled(gp, order)
    for moved, original in ((gp.at(gp.inducing_inputs), gp), (gp.at(other.inducing_inputs), other)):
        assert_allclose(moved.mean, original.mean, rtol=CLOSE_INDUCING_INPUTS)
        assert_allclose(moved.covariance, original.covariance, rtol=CLOSE_INDUCING_INPUTS, atol=CLOSE_INDUCING_INPUTS)


@pytest.mark.parametrize("name", KERNELS)
def test_moving_to_more_inducing_inputs_changes_no_prediction(name):
    gp = site(0, inputs(), kernel=make_kernel(name, 1.5, [1.2, 0.8]))
    assert_same_predictions(gp.at(np.vstack([inputs(1, 15), gp.inducing_inputs])), gp)


def test_moving_is_the_dense_formula():
    gp, Z = site(0, inputs()), inputs(3, 5)
    A = KERNEL.matrix(Z, gp.inducing_inputs) @ np.linalg.inv(prior_at(KERNEL, gp.inducing_inputs))
    own = prior_at(KERNEL, gp.inducing_inputs)
    moved = gp.at(Z)
    assert_allclose(moved.mean, CONSTANT + A @ (gp.mean - CONSTANT), rtol=1e-8)
    assert_allclose(moved.covariance, prior_at(KERNEL, Z) - A @ (own - gp.covariance) @ A.T, rtol=1e-7, atol=1e-9)


# -- Scores and evaluation.


def test_scores_are_log_densities_of_the_last_column_and_nearest_inducing_inputs():
    gp, (X, y) = site(0, inputs()), rows(3)
    scores = SparseGPAdapter().scores(gp, np.column_stack([X, y]))
    assert_allclose(scores.values, gp.log_density(X, y), rtol=ROUNDING)
    distance = np.linalg.norm((X[:, None] - gp.inducing_inputs) / KERNEL.lengthscales, axis=2)
    assert scores.labels.tolist() == distance.argmin(axis=1).tolist()
    assert scores.usage.sum() == len(y)


def test_a_fused_process_is_better_where_the_site_has_no_data():
    left = titsias(*rows(0, low=(-2.0, -2.0), high=(0.0, 2.0)), inputs() * [0.5, 1.0] - [1.0, 0.0])
    right = titsias(*rows(1, low=(0.0, -2.0), high=(2.0, 2.0)), inputs() * [0.5, 1.0] + [1.0, 0.0])
    X, y = rows(2, 200)
    evaluation = cs.evaluate(cs.fuse([left, right], "concatenate"), left, np.column_stack([X, y]))
    assert evaluation.better == "fused"
    assert evaluation.scores[0].unit == "nats per row"


def test_the_fused_process_is_a_distribution_of_functions():
    """Its law at inducing inputs is what it predicts there, up to the jitter of the values."""
    gp = cs.fuse([site(0, inputs()), site(1, inputs(1))], "concatenate").model
    mean, variance = gp.predict(gp.inducing_inputs)
    assert_allclose(mean, gp.mean, atol=1e-3)
    assert_allclose(variance, np.diag(gp.covariance), atol=1e-4)
    assert np.isfinite(multivariate_normal(gp.mean, gp.covariance, allow_singular=True).logpdf(gp.mean))
