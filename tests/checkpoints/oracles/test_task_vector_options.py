"""Negated weights, sums instead of means, and one density for each model, against direct formulas in float64."""

import numpy as np
import pytest
import torch

import consilience as cs
from tests.checkpoints.some_checkpoints import read, tensors, write

NAME = "model.layers.0.mlp.down_proj.weight"
ROUNDING = 2e-7  # of float32, relative to the largest entry


@pytest.fixture
def places(tmp_path):
    start = tensors(9, torch.float32)
    models = [write(tmp_path / name, tensors(seed, torch.float32, start)) for seed, name in enumerate("abc")]
    return models, write(tmp_path / "base", start), start


def merged(tmp_path, places, method, **options):
    models, base, _ = places
    return read(cs.merge(models, tmp_path / "out", method, base=base, **options).output)[NAME].double().numpy()


def deltas(places):
    _, _, start = places
    return [tensors(seed, torch.float32, start)[NAME].double().numpy() - start[NAME].double().numpy()
            for seed in range(3)]  # fmt: skip


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING * np.abs(expected).max())


def test_a_negative_weight_takes_a_skill_away(tmp_path, places):
    weights = [1.0, -1.0, 0.0]
    change = sum(w * delta for w, delta in zip(weights, deltas(places), strict=True))
    found = merged(tmp_path, places, "task_arithmetic", weights=weights, scaling=0.5)
    assert_close(found, places[2][NAME].double().numpy() + 0.5 * change)


def test_forgetting_by_negation_alone(tmp_path, places):
    """The first experiment of Ilharco et al. (2023): the base minus one task vector."""
    found = merged(tmp_path, places, "task_arithmetic", weights=[-1.0, 0.0, 0.0])
    assert_close(found, places[2][NAME].double().numpy() - deltas(places)[0])


def test_normalised_task_arithmetic_is_a_mean(tmp_path, places):
    weights = np.array([1.0, 2.0, 5.0])
    mean = sum(w * delta for w, delta in zip(weights / weights.sum(), deltas(places), strict=True))
    found = merged(tmp_path, places, "task_arithmetic", weights=weights.tolist(), normalize=True)
    assert_close(found, places[2][NAME].double().numpy() + mean)


def ties(changes, weights, densities, normalize):
    trimmed = []
    for change, density in zip(changes, densities, strict=True):
        kept = max(1, round(density * change.size))
        threshold = np.sort(np.abs(change).ravel())[-kept]
        trimmed.append(np.where(np.abs(change) >= threshold, change, 0.0))
    sign = np.sign(sum(w * change for w, change in zip(weights, trimmed, strict=True)))
    agree = [change * sign > 0 for change in trimmed]
    total = sum(w * np.where(yes, change, 0.0) for w, change, yes in zip(weights, trimmed, agree, strict=True))
    mass = sum(w * yes for w, yes in zip(weights, agree, strict=True))
    return np.divide(total, mass, out=np.zeros_like(total), where=mass > 0) if normalize else total


@pytest.mark.parametrize("normalize", [True, False])
def test_every_model_is_trimmed_to_its_own_density(tmp_path, places, normalize):
    weights, densities = [1.0, 0.5, 2.0], [0.2, 1.0, 0.5]
    found = merged(tmp_path, places, "ties", weights=weights, density=densities, normalize=normalize)
    expected = ties(deltas(places), weights, densities, normalize)
    assert_close(found, places[2][NAME].double().numpy() + expected)


def test_dropping_at_each_models_own_rate(tmp_path, places):
    """A model of density 1 keeps all: with weight on it alone, the sum is that model."""
    found = merged(tmp_path, places, "dare", weights=[1.0, 0.0, 0.0], density=[1.0, 0.1, 0.1], normalize=False)
    assert_close(found, tensors(0, torch.float32, places[2])[NAME].double().numpy())
    (tmp_path / "two").mkdir()
    thinned = merged(tmp_path / "two", places, "dare", weights=[0.0, 1.0, 0.0], density=[1.0, 0.1, 0.1])
    assert 0.02 < np.mean(thinned != places[2][NAME].double().numpy()) < 0.25


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("task_arithmetic", {"weights": [1, -2, 1], "normalize": True}, "sum to 0"),
        ("task_arithmetic", {"weights": [0, 0, 0]}, "finite and not all zero"),
        ("dare", {"weights": [1, -2, 1]}, "sum to 0"),
        ("ties", {"density": [0.1, 0.2]}, "expected a number, or 3, one for each model"),
        ("ties", {"density": [0.1, 0.2, 0.0]}, "above 0 and at most 1"),
        ("dare", {"density": []}, "above 0 and at most 1"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, places, method, options, message):
    with pytest.raises(cs.errors.OptionError, match=message):
        merged(tmp_path, places, method, **options)
