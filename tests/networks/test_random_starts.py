"""Wasserstein barycenters from random rows: annealed by default, and as in the published code by name."""

import numpy as np
import pytest
import torch

import consilience as cs
from consilience.networks.methods.wasserstein import ANNEALING_TEMPERATURES
from consilience.networks.methods.wasserstein_compat import unconverged_plan
from tests.networks.fusable_nets import dense_net, deviation, layers_of, random_layers, shuffled
from tests.tolerances import DESCENT, ROUNDING

pytestmark = pytest.mark.covering(1)

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
    assert fusion.status is cs.Status.CONVERGED
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


def test_annealed_copies_are_the_same_function():
    models, symmetry = noisy_copies(3, 0.0)
    assert deviation(from_random_rows(models, symmetry).model, models[0], INPUTS) < 1e-9


# -- The published code.


def test_the_fused_layers_are_those_of_formula_9_as_printed():
    models, symmetry = noisy_copies(3, 0.5)
    fusion = from_random_rows(models, symmetry, compat=True, epsilon=0.001)
    plans = [[np.eye(6) / 6, *(transports[name].plan for name in TWICE)] for transports in fusion.transports]
    fused = layers_of(fusion.model)
    for layer in (0, 1):
        expected = sum(
            len(own[layer + 1]) * len(own[layer]) * own[layer + 1] @ layers_of(model)[layer][0] @ own[layer].T
            for own, model in zip(plans, models, strict=True)
        ) / len(models)  # fmt: skip
        np.testing.assert_allclose(fused[layer][0], expected, rtol=1e-9, atol=ROUNDING)


def test_plans_of_the_published_code_miss_mass_where_entropy_is_small_and_none_where_it_is_large():
    costs = np.random.default_rng(0).uniform(0.5, 1.0, size=(20, 10))
    assert unconverged_plan(costs, 0.0002).sum() < 0.9
    converged = unconverged_plan(costs, 0.1)
    np.testing.assert_allclose(converged.sum(axis=1), 1 / 20, rtol=1e-3)
    np.testing.assert_allclose(converged.sum(axis=0), 1 / 10, rtol=1e-3)


def test_a_step_of_the_published_code_is_bounded_where_the_kernel_underflows():
    """Each potential grows by eps log(1e6 / 2) in a step, so that 100 steps of both reach the cost 1 or do not."""
    costs = np.ones((2, 2))
    for epsilon in (1e-4, 1e-3):
        has_reached = 2 * 100 * epsilon * np.log(1e6 / 2) > 1
        np.testing.assert_allclose(unconverged_plan(costs, epsilon), 0.25 if has_reached else 0.0, rtol=1e-3)


def test_the_published_code_needs_entropy():
    with pytest.raises(cs.OptionError, match="epsilon must be positive with compat=True"):
        cs.WassersteinFusion(compat=True)


def test_gromov_fusion_has_a_published_iteration_of_its_own():
    with pytest.raises(cs.OptionError, match="compat must be false"):
        cs.GromovFusion(compat=True, mode="paper", epsilon=0.01)
