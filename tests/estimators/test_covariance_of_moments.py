"""Covariances from a scatter and a number of rows: those that scikit-learn computes from the rows."""

import numpy as np
import pytest
from sklearn.covariance import OAS, EmpiricalCovariance, ShrunkCovariance, ledoit_wolf
from sklearn.preprocessing import StandardScaler

from consilience.errors import InputError
from consilience.estimators.adapters.covariance_of_moments import column_scales, covariance_of
from consilience.families.centred_moments import CentredMoments
from tests.tolerances import ROUNDING

SHAPES = [(40, 3), (4, 6), (12, 1)]


def rows_of(shape):
    rng = np.random.default_rng(shape)
    rows = rng.normal(size=shape) @ rng.normal(size=(shape[1], shape[1])) + rng.normal(size=shape[1])
    rows[:, -1] = 0.1  # is a constant column, but for rounding
    return rows


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scales_of_columns_are_those_of_a_standard_scaler(shape):
    rows = rows_of(shape)
    np.testing.assert_allclose(
        column_scales(CentredMoments.of_rows(rows)), StandardScaler().fit(rows).scale_, rtol=ROUNDING
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_with_fourth_moments_the_shrinkage_is_that_of_ledoit_and_wolf(shape):
    """As scikit-learn's discriminant analysis has it: of standardised rows, in the scale of the rows again."""
    rows = rows_of(shape)
    scaler = StandardScaler().fit(rows)
    standardised = scaler.transform(rows)
    expected = np.outer(scaler.scale_, scaler.scale_) * ledoit_wolf(standardised)[0]
    fourth = float(np.mean(np.sum(standardised**2, axis=1) ** 2))
    found = covariance_of(CentredMoments.of_rows(rows), "auto", None, fourth)
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING * np.abs(expected).max())


@pytest.mark.parametrize("fourth", [None, 0.0])
def test_without_fourth_moments_the_shrinkage_is_the_oracle_approximating_one(fourth):
    rows = rows_of((40, 3))
    scaler = StandardScaler().fit(rows)
    expected = np.outer(scaler.scale_, scaler.scale_) * OAS().fit(scaler.transform(rows)).covariance_
    found = covariance_of(CentredMoments.of_rows(rows), "auto", None, fourth)
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING * np.abs(expected).max())


@pytest.mark.parametrize("about_zero", [False, True])
@pytest.mark.parametrize(
    "estimator", [OAS, EmpiricalCovariance, lambda **options: ShrunkCovariance(shrinkage=0.2, **options)]
)
@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_a_covariance_estimator_is_applied_to_the_moments_as_to_the_rows(shape, estimator, about_zero):
    rows = rows_of(shape)
    fitted = estimator(assume_centered=about_zero).fit(rows)
    found = covariance_of(CentredMoments.of_rows(rows), None, fitted)
    np.testing.assert_allclose(found, fitted.covariance_, rtol=0, atol=ROUNDING * np.abs(fitted.covariance_).max())
    with pytest.raises(InputError, match="expected one of them"):
        covariance_of(CentredMoments.of_rows(rows), 0.1, fitted)
