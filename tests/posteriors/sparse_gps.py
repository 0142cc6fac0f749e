"""Sparse Gaussian processes of made-up data, by the textbook's formulas, for the tests to compare with."""

from dataclasses import replace

import numpy as np
from numpy.testing import assert_allclose

from consilience.posteriors.sparse_gp.kernels import RBF
from consilience.posteriors.sparse_gp.model import SparseGP
from tests.tolerances import CLOSE_INDUCING_INPUTS

KERNEL = RBF(1.5, [1.2, 0.8])
NOISE, CONSTANT = 0.05, 0.7


def truth(X):
    return np.sin(X[:, 0]) + 0.3 * X[:, 1] ** 2


def rows(seed, n=60, low=(-2.0, -2.0), high=(2.0, 2.0)):
    rng = np.random.default_rng(seed)
    X = rng.uniform(low, high, (n, 2))
    return X, truth(X) + 0.2 * rng.normal(size=n)


def inputs(seed=0, n=9):
    return np.random.default_rng([seed, 7]).uniform(-2.0, 2.0, (n, 2))


def prior_at(kernel, Z, jitter=1e-6):
    return kernel.matrix(Z) + jitter * kernel.variance * np.eye(len(Z))


def titsias(X, y, Z, kernel=KERNEL, noise=NOISE, constant=CONSTANT, **others):
    """The textbook posterior, with explicit inverses: m = K Sigma K_mn y / s^2, S = K Sigma K."""
    K, cross = prior_at(kernel, Z), kernel.matrix(Z, X)
    sigma = np.linalg.inv(K + cross @ cross.T / noise)
    mean = constant + K @ sigma @ cross @ (y - constant) / noise
    return SparseGP(
        Z, mean, K @ sigma @ K, kernel, noise=noise, constant=constant, n_observations=float(len(y)), **others
    )


def site(seed, Z, **options):
    return titsias(*rows(seed), Z, **options)


def assert_same_predictions(found, expected, error=CLOSE_INDUCING_INPUTS, X=None):
    X = rows(99)[0] if X is None else X
    for mine, theirs in zip(found.predict(X), expected.predict(X), strict=True):
        assert_allclose(mine, theirs, rtol=error, atol=error)


NEW = np.array([[0.3, -0.4], [1.9, 1.9], [-1.0, 0.2]])


def relabelled(gp, order):
    return replace(
        gp,
        inducing_inputs=gp.inducing_inputs[order],
        mean=gp.mean[order],
        covariance=gp.covariance[np.ix_(order, order)],
    )
