"""Wasserstein barycenters from random rows: annealed by default, and as in the published code by name."""

import numpy as np
import pytest
import torch

import consilience as cs
from consilience.networks.methods.wasserstein import ANNEALING_TEMPERATURES
from tests.copies import COPIES
from tests.networks.fusable_nets import dense_net, deviation, random_layers, shuffled
from tests.tolerances import DESCENT

pytestmark = pytest.mark.covering(2)

INPUTS = torch.randn(50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
TWICE = {"0": 24, "2": 16}


def noisy_copies(number, noise, seed=0):
    """Return renumbered copies of a network with noise on their weights, and their symmetry."""
    rng = np.random.default_rng(seed)
    base = random_layers((6, 12, 8, 3), rng)
    symmetry = cs.symmetry(dense_net(base), INPUTS)
    noisy = [[(w + noise * rng.normal(size=w.shape), b + noise * rng.normal(size=b.shape)) for w, b in base]
             for _ in range(number)]  # fmt: skip
    return [shuffled(dense_net(layers), symmetry, 100 + i) for i, layers in enumerate(noisy)], symmetry


def from_random_rows(models, symmetry, **options):
    return cs.fuse(models, "wb", symmetry=symmetry, target_widths=TWICE, start="random", **options)


# -- Annealing.


@pytest.mark.parametrize("epsilon", [0.0, 0.01])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_the_objective_never_rises_at_the_final_temperature(seed, epsilon):
    models, symmetry = noisy_copies(3, 0.5, seed)
    fusion = from_random_rows(models, symmetry, rng=seed, epsilon=epsilon)
    assert np.all(np.diff(fusion.history) <= DESCENT * fusion.history[0])
    assert fusion.status is cs.results.Status.CONVERGED
    assert fusion.history[0] <= sum(of_group["annealed"][0] for of_group in fusion.details["groups"].values())


def test_every_layer_is_annealed_once_through_all_temperatures():
    models, symmetry = noisy_copies(2, 0.5)
    groups = from_random_rows(models, symmetry).details["groups"]
    assert list(groups) == list(TWICE)
    assert all(len(of_group["annealed"]) == len(ANNEALING_TEMPERATURES) for of_group in groups.values())
    assert all("annealed" not in of_group for of_group in cs.fuse(
        models, "wb", symmetry=symmetry, target_widths=TWICE).details["groups"].values())  # fmt: skip


@pytest.mark.slow
def test_annealed_starts_end_lower_than_others():
    """By the sum over draws: exact plans from random rows match every model to noise."""
    objectives = {True: 0.0, False: 0.0}
    for seed in range(5):
        models, symmetry = noisy_copies(4, 0.5, seed)
        for annealing in objectives:
            objectives[annealing] += from_random_rows(models, symmetry, rng=seed, annealing=annealing).objective
    assert objectives[True] < 0.95 * objectives[False]


@COPIES
def test_annealed_copies_are_the_same_function():
    models, symmetry = noisy_copies(3, 0.0)
    assert deviation(from_random_rows(models, symmetry).model, models[0], INPUTS) < 1e-9
