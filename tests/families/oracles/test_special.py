"""Special functions and determinants against fifty-digit arithmetic, where their branches meet and at both ends."""

import mpmath
import numpy as np
import pytest
from numpy.testing import assert_allclose

from consilience.families import linalg
from consilience.families.special import gamma_shape, inverse_digamma
from tests import tolerances

mp = mpmath.mp.clone()
mp.dps = 50


@pytest.mark.parametrize("x", [1e-12, 1e-5, 0.01, 0.3, 0.44, 0.45, 1.0, 1.4616, 2.0, 30.0, 1e6, 1e15], ids=str)
def test_the_inverse_of_digamma_is_its_inverse(x):
    """The digamma function rounded to float64 tells its argument to as many digits."""
    assert_allclose(inverse_digamma(np.array([float(mp.psi(0, x))])), [x], rtol=tolerances.ROUNDING)


@pytest.mark.parametrize("shape", [1e-10, 1e-3, 0.2, 1.0, 7.0, 1e4, 1e9], ids=str)
def test_the_shape_of_a_gamma_is_that_of_its_gap_between_logarithms(shape):
    gap = float(mp.log(shape) - mp.psi(0, shape))
    assert_allclose(gamma_shape(np.array([gap])), [shape], rtol=tolerances.ROUNDING)


SPECTRA = {
    "equal": [1.0, 1.0, 1.0],
    "near": [1.0 + 1e-9, 1.0 - 1e-7, 1.0],
    "one far below": [1e-14, 1.0, 1.0 + 1e-9],
    "one far above": [1e12, 1.0, 1.0],
    "all far": [1e-9, 1e9, 30.0],
    "where formulas meet": [1.0 + linalg._EIGENVALUE_NEAR, 1.0 - linalg._EIGENVALUE_NEAR, 1.0],
}


@pytest.mark.parametrize("name", SPECTRA)
def test_the_divergence_of_determinants_is_a_sum_over_eigenvalues(name):
    """tr(A^-1 B) - D - log|A^-1 B| of diagonal matrices, entry by entry; several pairs at once do not mix."""
    spectrum = np.array(SPECTRA[name])
    diagonals = np.stack([spectrum, np.ones(3), spectrum])
    a = np.array([[4.0, 0.25, 1.0]] * 3)  # powers of two, which round nothing
    factor_a, factor_b = (np.einsum("nd,de->nde", np.sqrt(values), np.eye(3)) for values in (a, a * diagonals))
    change = np.einsum("nd,de->nde", a * (diagonals - 1.0), np.eye(3))
    expected = float(sum(mp.mpf(value) - 1 - mp.log(mp.mpf(value)) for value in spectrum.tolist()))
    found = linalg.log_det_divergence(factor_a, factor_b, change)
    assert_allclose(found, [expected, 0.0, expected], rtol=tolerances.KL_PAIRWISE)
