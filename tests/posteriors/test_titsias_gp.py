"""Laws of the site's own fit of a sparse Gaussian process."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal

import consilience as cs
from consilience.posteriors.sparse_gp.kernels import KERNELS, RBF, make_kernel
from consilience.posteriors.sparse_gp.learner import TitsiasGP, starting_inputs
from consilience.posteriors.sparse_gp.titsias_bound import bound_gradient, collapsed_posterior
from tests.tolerances import CLOSE_INDUCING_INPUTS, DIFFERENCES, ROUNDING

RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, (80, 2))
Y = np.sin(2.0 * X[:, 0]) + 0.2 * X[:, 1] + 3.0 + 0.1 * RNG.normal(size=80)
Z = RNG.uniform(-2.0, 2.0, (6, 2))
JITTER = 1e-6


def at(vector, name):
    kernel = make_kernel(name, np.exp(vector[0]), np.exp(vector[1:3]))
    return bound_gradient(kernel, vector[5:].reshape(Z.shape), np.exp(vector[3]), vector[4], X, Y, JITTER)


@pytest.mark.parametrize("name", KERNELS)
def test_the_bound_is_that_of_the_paper_with_dense_matrices(name):
    kernel, noise = make_kernel(name, 1.3, [0.9, 1.4]), 0.05
    prior = kernel.matrix(Z) + JITTER * kernel.variance * np.eye(6)
    low_rank = kernel.matrix(X, Z) @ np.linalg.solve(prior, kernel.matrix(Z, X))
    density = multivariate_normal(np.full(80, 2.0), low_rank + noise * np.eye(80)).logpdf(Y)
    expected = density - (80 * kernel.variance - np.trace(low_rank)) / (2.0 * noise)
    assert_allclose(bound_gradient(kernel, Z, noise, 2.0, X, Y, JITTER).bound, expected, rtol=1e-9)
    assert_allclose(collapsed_posterior(kernel, Z, noise, 2.0, X, Y, JITTER).bound, expected, rtol=1e-9)


@pytest.mark.parametrize("name", KERNELS)
def test_its_derivatives_are_those_of_finite_differences(name):
    vector = np.concatenate([[0.3, -0.1, 0.4, -2.5, 2.0], Z.ravel()])
    found = at(vector, name)
    derivatives = np.concatenate(
        [[found.log_variance], found.log_lengthscales, [found.log_noise, found.constant], found.inputs.ravel()]
    )

    def difference(step):
        ends = [at(vector + times * step, name).bound for times in (1, -1, 2, -2)]
        return (8.0 * (ends[0] - ends[1]) - (ends[2] - ends[3])) / 12e-3

    expected = np.array([difference(1e-3 * unit) for unit in np.eye(len(vector))])
    assert_allclose(derivatives, expected, rtol=DIFFERENCES, atol=DIFFERENCES * np.abs(expected).max())


def test_the_posterior_is_the_dense_formula():
    """m = K Sigma K_mn y / s^2 and S = K Sigma K, with Sigma = (K + K_mn K_nm / s^2)^-1."""
    kernel, noise = RBF(1.3, [0.9, 1.4]), 0.05
    gp = TitsiasGP(
        kernel=kernel, noise=noise, constant=2.0, learn_parameters=False, learn_inducing=False, inducing_inputs=Z
    ).fit(X, Y)
    prior, cross = kernel.matrix(Z) + JITTER * kernel.variance * np.eye(6), kernel.matrix(Z, X)
    sigma = np.linalg.inv(prior + cross @ cross.T / noise)
    assert_allclose(gp.mean, 2.0 + prior @ sigma @ cross @ (Y - 2.0) / noise, rtol=1e-9)
    assert_allclose(gp.covariance, prior @ sigma @ prior, rtol=CLOSE_INDUCING_INPUTS, atol=CLOSE_INDUCING_INPUTS)
    assert np.array_equal(gp.inducing_inputs, Z)
    assert gp.n_observations == 80


@pytest.mark.parametrize("name", KERNELS)
def test_the_bound_never_falls_and_ends_at_that_of_the_model(name):
    gp = TitsiasGP(8, kernel=name, tolerance=1e-9).fit(X, Y)
    assert len(gp.bound) > 5
    assert np.all(np.diff(gp.bound) >= 0)
    again = collapsed_posterior(gp.kernel, gp.inducing_inputs, gp.noise, gp.constant, X, Y, JITTER)
    assert_allclose(gp.bound[-1], again.bound, rtol=1e-9)
    assert_allclose(np.sqrt(np.mean((gp.predict(X)[0] - Y) ** 2)), 0.1, atol=0.03)


def test_more_starts_and_more_inducing_inputs_raise_the_bound():
    few = [TitsiasGP(4, n_init=n, seed=1).fit(X, Y).bound[-1] for n in (1, 4)]
    assert few[1] >= few[0]
    assert TitsiasGP(12).fit(X, Y).bound[-1] > few[1]


def test_what_is_not_learned_stays():
    kernel = RBF(1.3, [0.9, 1.4])
    fixed = TitsiasGP(6, kernel=kernel, noise=0.05, constant=2.0, learn_parameters=False).fit(X, Y)
    assert fixed.kernel.same_as(kernel)
    assert (fixed.noise, fixed.constant) == (0.05, 2.0)
    assert fixed.bound[-1] > fixed.bound[0]
    learned = TitsiasGP(inducing_inputs=Z, learn_inducing=False).fit(X, Y)
    assert np.array_equal(learned.inducing_inputs, Z)
    assert not learned.kernel.same_as(kernel)


def test_the_length_scale_of_a_column_without_variation_stays_where_it_starts():
    gp = TitsiasGP(8).fit(np.column_stack([X, np.full(80, 7.0)]), Y)
    assert_allclose(gp.kernel.lengthscales[2], np.sqrt(3.0), rtol=0.05)


@pytest.mark.parametrize(
    "rows", [X, np.round(X), np.repeat(X[:8], 10, axis=0), np.column_stack([X[:, 0], np.ones(80)])]
)
def test_no_inducing_input_is_a_row_at_the_start_or_at_the_end(rows):
    """Also where whole groups of rows are the same, so that their mean is a row."""
    start = starting_inputs(rows, 12, 5, np.random.default_rng(0))
    found = TitsiasGP(12).fit(rows, Y).inducing_inputs
    for inputs in (start, found):
        distance = np.linalg.norm(inputs[:, None] - rows, axis=2)
        assert distance.min() > 1e-6


def test_starting_inputs_stand_for_enough_rows_and_spread():
    rows = np.random.default_rng(0).normal(size=(103, 3))
    for count, least in ((7, 5), (50, 5), (200, 1), (1, 5)):
        start = starting_inputs(rows, count, least, np.random.default_rng(1))
        assert len(start) == count or len(start) >= 103 // (2 * least)
        assert len(start) <= min(count, 103 // least)
    assert starting_inputs(rows[:3], 5, 5, np.random.default_rng(1)).shape == (1, 3)


def test_public_constants_standardise_as_by_hand():
    shift, scale = (1.0, -1.0, 40.0), (2.0, 0.5, 20.0)
    raw, target = X * scale[:2] + shift[:2], Y * 20.0 + 40.0
    few = {"max_iterations": 5}  # so that rounding does not grow from iteration to iteration
    by_hand, by_option = TitsiasGP(6, **few).fit(X, Y), TitsiasGP(6, shift=shift, scale=scale, **few).fit(raw, target)
    assert_allclose(by_option.predict(raw)[0], by_hand.predict(X)[0] * 20.0 + 40.0, rtol=1e-6)
    assert_allclose(by_option.predict(raw)[1], by_hand.predict(X)[1] * 400.0, rtol=1e-4)
    assert cs.describe(by_option).features.scaling == {"shift": shift, "scale": scale}


def test_inducing_inputs_are_given_in_units_of_the_data():
    shift, scale = (1.0, -1.0, 0.0), (2.0, 0.5, 1.0)
    learner = TitsiasGP(learn_inducing=False, shift=shift, scale=scale, inducing_inputs=Z * scale[:2] + shift[:2])
    assert_allclose(learner.fit(X * scale[:2] + shift[:2], Y).inducing_inputs, Z, rtol=ROUNDING)


def test_two_sites_know_together_what_none_knows_alone(tmp_path):
    """The toy of the method's sources: x + sin x on two overlapping parts of a line."""
    rng, fits, new = np.random.default_rng(0), [], np.linspace(0.6, 8.9, 80)[:, None]
    for number, (low, high) in enumerate(((0.5, 5.0), (4.5, 9.0))):
        x = rng.uniform(low, high, (100, 1))
        kernel = RBF(5.0, [2.0])
        gp = TitsiasGP(10, kernel=kernel, noise=0.04, constant=5.0, learn_parameters=False, seed=number).fit(
            x, x[:, 0] + np.sin(x[:, 0]) + 0.2 * rng.normal(size=100)
        )
        cs.save(gp, tmp_path / f"{number}.safetensors")
        fits.append(gp)
    fusion = cs.fuse([tmp_path / f"{number}.safetensors" for number in range(2)], "concatenate")

    def error(gp):
        return np.sqrt(np.mean((gp.predict(new)[0] - new[:, 0] - np.sin(new[:, 0])) ** 2))

    assert error(fusion.model) < 0.1
    assert min(error(gp) for gp in fits) > 1.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_inducing": 0},
        {"kernel": "cosine"},
        {"noise": -1.0},
        {"learn_parameters": False},
        {"lengthscale_bounds": (2.0, 1.0)},
        {"n_init": 0},
    ],
)
def test_options_that_mean_nothing_are_refused(wrong):
    with pytest.raises(cs.errors.OptionError, match=next(iter(wrong))):
        TitsiasGP(**wrong)


def test_data_that_mean_nothing_are_refused():
    with pytest.raises(cs.errors.InputError, match="y: row 3, counted from 0, is not finite"):
        TitsiasGP().fit(X, np.where(np.arange(80) == 3, np.nan, Y))
    with pytest.raises(cs.errors.InputError, match="X: expected rows"):
        TitsiasGP().fit(X[:, 0], Y)
    with pytest.raises(cs.errors.InputError, match="y: expected 80 values"):
        TitsiasGP().fit(X, Y[:-1])
    with pytest.raises(cs.errors.InputError, match="shift: expected 3 values"):
        TitsiasGP(shift=(0.0, 1.0)).fit(X, Y)
    with pytest.raises(cs.errors.InputError, match="those of scale positive"):
        TitsiasGP(scale=0.0).fit(X, Y)
    with pytest.raises(cs.errors.InputError, match="X: has 2 columns, but the kernel has 1 length-scales"):
        TitsiasGP(kernel=RBF(1.0, [1.0])).fit(X, Y)


def test_the_same_seed_gives_the_same_bits_and_constant_targets_do_no_harm():
    a, b = (TitsiasGP(6, seed=3).fit(X, Y) for _ in range(2))
    assert a.mean.tobytes() == b.mean.tobytes()
    flat = TitsiasGP(4).fit(X, np.full(80, 5.0))
    assert_allclose(flat.predict(X)[0], 5.0, rtol=1e-3)
    assert replace(flat, bound=np.zeros(0)).bound.size == 0
