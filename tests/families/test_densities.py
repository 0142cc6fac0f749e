"""Laws of the densities of data that posteriors over Gaussian components give."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from consilience import families as f
from consilience.families.linalg import log_gaussians, log_student_ts
from tests.families.zoo import ZOO, D
from tests.tolerances import KL_PAIRWISE, ROUNDING

pytestmark = pytest.mark.covering(2)

CONJUGATE = [f.NormalWishart, f.NormalGamma, f.SphericalNormalGamma]
every_family = pytest.mark.parametrize("kind", CONJUGATE, ids=lambda kind: kind.name)
N = 7
POINTS = 3.0 * np.random.default_rng(5).normal(size=(11, D))


def specimen(kind, dim=D, seed=0):
    """A conjugate family, and natural parameters (N, P) of some of its members."""
    from tests.families.zoo import DESCRIBED

    family = kind(dim)
    parameters = DESCRIBED[kind].standard(family, np.random.default_rng(seed), N)
    return family, family.to_natural(**parameters)


def log_predictive(family, eta, points=POINTS):
    return log_student_ts(points, *family.predictive(eta))


def statistics_of_a_point(family, x):
    """What an observation adds to the natural parameters: the coefficients of T in log N(x | mu, Lambda^-1)."""
    outer = np.outer(x, x).ravel()
    if isinstance(family, f.NormalWishart):
        return np.concatenate([x, [-0.5], -0.5 * outer, [0.5]])
    blocks = x.reshape(family.n_rates, -1)
    return np.concatenate([x, [-0.5], -0.5 * np.square(blocks).sum(axis=1), [0.5 * blocks.shape[1]]])


@every_family
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_the_predictive_density_is_the_ratio_of_normalisers(kind, dim):
    """log p(x) = A(eta + T(x)) - A(eta) - (D / 2) log 2 pi, as for every conjugate family."""
    family, eta = specimen(kind, dim)
    points = np.random.default_rng(1).normal(size=(4, dim))
    expected = [
        family.log_normalizer(eta + statistics_of_a_point(family, x))
        - family.log_normalizer(eta)
        - 0.5 * dim * np.log(2 * np.pi)
        for x in points
    ]
    assert_allclose(log_predictive(family, eta, points), expected, rtol=KL_PAIRWISE, atol=KL_PAIRWISE)


@every_family
@pytest.mark.parametrize("dim", [1, 3])
def test_the_predictive_density_is_that_of_scipy(kind, dim):
    family, eta = specimen(kind, dim)
    locations, scales, dof = family.predictive(eta)
    points = np.random.default_rng(1).normal(size=(4, dim))
    for row in range(N):
        if scales.ndim == 3:
            expected = stats.multivariate_t(locations[row], scales[row], df=dof[row]).logpdf(points)
        else:
            blocks = np.split(np.arange(dim), scales.shape[1])
            expected = sum(
                stats.multivariate_t(locations[row, block], scale * np.eye(len(block)), df=dof[row]).logpdf(
                    points[:, block]
                )
                for block, scale in zip(blocks, scales[row], strict=True)
            )
        assert_allclose(log_predictive(family, eta, points)[:, row], expected, rtol=KL_PAIRWISE)


@every_family
def test_the_plug_in_density_is_that_of_scipy(kind):
    family, eta = specimen(kind)
    means, covariances = family.plug_in(eta)
    found = log_gaussians(POINTS, means, covariances)
    for row in range(N):
        covariance = covariances[row] if covariances.ndim == 3 else np.diag(covariances[row])
        expected = stats.multivariate_normal(means[row], covariance).logpdf(POINTS)
        assert_allclose(found[:, row], expected, rtol=KL_PAIRWISE)


@every_family
@pytest.mark.parametrize("times", [1e2, 1e4, 1e6])
def test_with_ever_more_observations_the_predictive_density_becomes_the_plug_in_one(kind, times):
    """The difference falls in proportion to the information: it is of order (1 + q^2) / nu for a squared distance q."""
    family, eta = specimen(kind)
    sure = family.reweighted(eta, np.full((N, 2), times))
    means, covariances = family.plug_in(sure)
    plug_in = log_gaussians(POINTS, means, covariances)
    squares = -2.0 * (plug_in - log_gaussians(means, means, covariances).diagonal())  # q (points, N)
    difference = np.abs(log_predictive(family, sure) - plug_in)
    smallest = family.information(sure).min(axis=1)
    assert np.all(difference <= (D + 1.0) * (1.0 + squares + squares**2) / smallest)


@every_family
def test_the_predictive_density_is_wider_than_the_plug_in_one_far_away(kind):
    family, eta = specimen(kind)
    far = np.full((1, D), 1e3)
    assert np.all(log_predictive(family, eta, far) > log_gaussians(far, *family.plug_in(eta)))


@every_family
def test_far_from_the_origin_densities_keep_their_digits(kind):
    """Moved by 1e4 widths with its component, a point keeps its density to what is left of the digits of its place."""
    family, eta = specimen(kind)
    locations, scales, dof = family.predictive(eta)
    shift = np.full(D, 1e4)
    moved = log_student_ts(POINTS + shift, locations + shift, scales, dof)
    assert_allclose(moved, log_student_ts(POINTS, locations, scales, dof), atol=1e4 * 1e3 * ROUNDING)


def test_other_families_have_no_predictive_density_of_data():
    for name, specimen_of in ZOO.items():
        if type(specimen_of.family) not in CONJUGATE:
            eta = specimen_of.draw(np.random.default_rng(0), 2)
            assert specimen_of.family.predictive(eta) is None, name
