"""What is no member of a family is found: the row it stands in, and what is wrong, one parameter at a time."""

import numpy as np
import pytest

from consilience import families as f

pytestmark = pytest.mark.covering(2)

GOOD = {
    f.Dirichlet(3): {"concentration": np.array([0.5, 1.0, 2.0])},
    f.Gamma(): {"shape": 2.0, "rate": 3.0},
    f.SphericalGaussian(2): {"mean": np.array([1.0, -2.0]), "variance": 0.5},
    f.DiagonalGaussian(2): {"mean": np.array([1.0, -2.0]), "variance": np.array([0.5, 2.0])},
    f.Gaussian(2): {"mean": np.array([1.0, -2.0]), "covariance": np.eye(2)},
    f.NormalGamma(2): {"mean": np.array([1.0, -2.0]), "kappa": 3.0, "shape": 2.0, "rate": np.array([0.5, 2.0])},
    f.SphericalNormalGamma(2): {"mean": np.array([1.0, -2.0]), "kappa": 3.0, "shape": 2.0, "rate": 0.5},
    f.NormalWishart(2): {"mean": np.array([1.0, -2.0]), "kappa": 3.0, "inverse_scale": np.eye(2), "dof": 4.0},
}


def natural(family, **changes):
    return family.to_natural(**{name: np.asarray(value)[None] for name, value in (GOOD[family] | changes).items()})


def spoilt(family):
    """Yield a row that is wrong in one entry, below zero or, of matrices, indefinite with a good diagonal; and why."""
    if isinstance(family, f.Dirichlet):  # which raises what is too low, so that it is put into the row itself
        for entry in range(3):
            yield np.where(np.arange(3) == entry, -1.25, natural(family)), "concentration"
        return
    for name, value in GOOD[family].items():
        if name == "covariance":  # natural parameters are linear in the precision, here 1 and 2.7 beside the diagonal
            correlated = natural(family, covariance=np.linalg.inv([[1.0, 0.9], [0.9, 1.0]]))
            yield 3.0 * correlated - 2.0 * natural(family), name
        elif name == "inverse_scale":
            yield natural(family, inverse_scale=np.array([[1.0, 2.0], [2.0, 1.0]])), "scale matrix"
        elif name != "mean":
            for entry in np.ndindex(np.shape(value)):
                wrong = np.array(value)
                wrong[entry] = -0.25
                yield natural(family, **{name: wrong}), "degrees of freedom" if name == "dof" else name


@pytest.mark.parametrize("family", GOOD, ids=str)
def test_members_have_no_faults(family):
    assert family.check(np.repeat(natural(family), 3, axis=0)) == []


@pytest.mark.parametrize("family", GOOD, ids=str)
def test_one_wrong_entry_is_found_in_its_row(family):
    for wrong, reason in spoilt(family):
        ((row, text),) = family.check(np.concatenate([natural(family), wrong, natural(family)]))
        assert row == 1
        assert reason in text


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("family", GOOD, ids=str)
def test_one_parameter_that_is_not_finite_is_found_in_its_row(family, value):
    for column in range(family.size):
        rows = np.repeat(natural(family), 3, axis=0)
        rows[2, column] = value
        assert family.check(rows) == [(2, "has NaN or infinite natural parameters")]
