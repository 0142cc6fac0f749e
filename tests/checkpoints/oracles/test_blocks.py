"""Methods on blocks in memory: linear combinations and Fisher means entry by entry, against loops over entries."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from consilience.checkpoints.methods.average import TensorAverage, TensorFisher
from consilience.checkpoints.methods.base import TensorBlock, TensorSetting, linear
from consilience.checkpoints.methods.slerp import SLERP
from consilience.networks.methods.fisher.precision import MIN_TARGET_PRECISION
from tests.tolerances import ROUNDING

pytestmark = pytest.mark.covering(2)

SIZE = 9


def models_of(seed, number):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=SIZE) for _ in range(number)]


@pytest.mark.parametrize(
    "coefficients", [(1.0, 2.0), (2.0, 1.0), (2.0,), (-1.0, 0.0, 0.5), (0.0, 0.0), (1.0,), (0.5, 3.0, -2.0)], ids=str
)
def test_a_linear_combination_is_the_sum_of_its_terms(coefficients):
    models = models_of(0, len(coefficients))
    expected = sum(factor * model for factor, model in zip(coefficients, models, strict=True))
    assert_allclose(linear([model.copy() for model in models], coefficients), expected, rtol=ROUNDING, atol=ROUNDING)


def fisher_mean(models, information, weights, floor, target):
    """The merge, one entry after the other; where nobody knows anything, the weighted mean."""
    merged = np.empty(SIZE)
    for entry in range(SIZE):
        top = bottom = 0.0
        for number, weight in enumerate(weights):
            share = weight / max(weights)
            precision = share * information[number][entry]
            if target is None or target == number:
                precision = max(precision, share * (floor if target is None else max(floor, MIN_TARGET_PRECISION)))
            top, bottom = top + precision * models[number][entry], bottom + precision
        mean = sum(w * model[entry] for w, model in zip(weights, models, strict=True)) / sum(weights)
        merged[entry] = top / bottom if bottom > 0 else mean
    return merged


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (3.0, 0.5, 1.0), (0.0, 2.0, 1.0)], ids=str)
@pytest.mark.parametrize("target", [None, 0, 2])
@pytest.mark.parametrize("floor", [1e-20, 0.5])
def test_a_fisher_mean_is_taken_entry_by_entry(weights, target, floor):
    """Also where a target has no weight and the others no information, which leaves nobody but the mean."""
    models, rng = models_of(1, 3), np.random.default_rng(2)
    information = [np.where(rng.random(SIZE) < 0.4, 0.0, rng.gamma(1.0, size=SIZE)) for _ in range(3)]
    for diagonal in information:
        diagonal[:2] = 0.0
    block = TensorBlock(0, [model.copy() for model in models], information=information)
    found = TensorFisher(floor=floor, favor_target=target).merge(block, TensorSetting("tensor", SIZE, weights), {})
    assert np.all(np.isfinite(found))
    expected = fisher_mean(models, information, weights, floor, target)
    assert_allclose(found, expected, rtol=ROUNDING, atol=ROUNDING)
    if target == 0 and weights[0]:
        assert_allclose(found[:2], models[0][:2], rtol=ROUNDING)


def test_a_fisher_mean_of_equal_models_is_the_model_to_the_last_bit():
    rng = np.random.default_rng(4)
    model = rng.normal(size=SIZE)
    block = TensorBlock(0, [model.copy() for _ in range(3)], information=[rng.gamma(1.0, size=SIZE) for _ in range(3)])
    found = TensorFisher().merge(block, TensorSetting("tensor", SIZE, (3.0, 0.7, 1.0)), {})
    assert_array_equal(found, model)


def test_diagonals_are_divided_by_their_norms_where_these_are_known():
    models, information = models_of(3, 2), [np.full(SIZE, 8.0), np.full(SIZE, 0.5)]
    block = TensorBlock(0, [model.copy() for model in models], information=information)
    setting = TensorSetting("tensor", SIZE, (1.0, 1.0))
    found = TensorFisher().merge(block, setting, {"norm 0": 8.0, "norm 1": 0.25})
    assert_allclose(found, (models[0] + 2.0 * models[1]) / 3.0, rtol=ROUNDING)


def test_slerp_ends_half_way_unless_told_otherwise():
    assert SLERP().coefficients(1.0) == (0.5, 0.5)
    assert_array_equal(SLERP(t=0.25).coefficients(1.0), (0.75, 0.25))


@pytest.mark.parametrize("zeros", [(0,), (1,), (0, 1)], ids=str)
def test_where_a_tensor_is_zero_slerp_is_the_straight_line(zeros):
    """A tensor without a direction has no angle with another."""
    models, method, setting = models_of(4, 2), SLERP(t=0.25), TensorSetting("tensor", SIZE, (1.0, 1.0))
    for number in zeros:
        models[number][:] = 0.0
    sums = method.survey(0, TensorBlock(0, models), setting, {})
    facts = method.conclude(0, sums, setting, {})
    found = method.merge(TensorBlock(0, [model.copy() for model in models]), setting, facts)
    assert_allclose(found, 0.75 * models[0] + 0.25 * models[1], rtol=ROUNDING)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("ignored", [0, 1, 2])
def test_a_model_of_no_weight_has_no_say_in_a_mean_whatever_it_holds(ignored, dtype):
    weights = [3.0, 1.0, 2.0]
    weights[ignored] = 0.0
    models = [model.astype(dtype) for model in models_of(5, 3)]
    models[ignored][:] = np.nan
    block = TensorBlock(0, [model.copy() for model in models])
    found = TensorAverage().merge(block, TensorSetting("tensor", SIZE, tuple(weights)), {})
    expected = sum(w * m.astype(np.float64) for w, m in zip(weights, models, strict=True) if w) / sum(weights)
    assert_allclose(found, expected, rtol=0, atol=10 * np.finfo(dtype).eps)
