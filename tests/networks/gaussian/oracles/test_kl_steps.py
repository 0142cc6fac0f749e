"""Steps of KL-fusion of Bayesian networks by themselves: starts, priors not stated, groups of a fixed width."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import nn
from torch.nn import functional as F  # noqa: N812

import consilience as cs
from consilience.networks.gaussian.gaussian_arrays import DEVIATION
from consilience.networks.gaussian.methods.kl import has_free_width, prior_variances
from consilience.networks.tracing.trace import trace
from tests.networks.gaussian.nets import network, symmetry_of
from tests.networks.gaussian.oracles.test_networks import close_sites
from tests.tolerances import DESCENT, ROUNDING


def test_further_starts_never_raise_the_objective_and_sometimes_lower_it():
    """Starts are drawn one after the other, so that those of fewer are the first of those of more."""
    lower = 0
    for seed in range(6):
        models = close_sites((3, 12, 2), (8, 9, 8, 7), seed, noise=1.5)
        networks, symmetry = [network(layers) for layers in models], symmetry_of(models[0])
        objectives = [
            cs.fuse(networks, "kl", symmetry=symmetry, regularization=1.0, restarts=restarts, rng=0).objective
            for restarts in (1, 2, 4, 8)
        ]
        rises = np.diff(objectives)
        assert np.all(rises <= DESCENT * abs(objectives[0])), seed
        lower += bool(np.any(rises < -DESCENT * abs(objectives[0])))
    assert lower > 0


def test_a_prior_that_is_not_stated_fits_the_weights_of_all_networks():
    """N(0, v) is nearest to all posteriors for v = E[w^2], the mean of squared means and of variances."""
    rng = np.random.default_rng(0)
    working = [{"w": rng.normal(size=(3, 2)), f"w{DEVIATION}": rng.uniform(0.1, 3.0, (3, 2))} for _ in range(2)]
    ensemble = SimpleNamespace(networks=[SimpleNamespace(working=arrays) for arrays in working], priors=None)
    expected = np.mean([arrays["w"] ** 2 + arrays[f"w{DEVIATION}"] ** 2 for arrays in working])
    assert prior_variances(ensemble, None) == pytest.approx({"w": expected}, rel=ROUNDING)
    assert prior_variances(ensemble, 7.0) == {"w": 7.0}
    ensemble.priors = [{"w": 2.0}, None]
    last = np.mean(working[1]["w"] ** 2 + working[1][f"w{DEVIATION}"] ** 2)
    assert_allclose(prior_variances(ensemble, None)["w"], (2.0 + last) / 2, rtol=ROUNDING)


class TiedAutoencoder(nn.Module):
    """An encoder whose transpose decodes: the hidden units stand on one axis of one weight, which makes and reads."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(4))
        self.last = nn.Linear(3, 2)

    def forward(self, x):
        return self.last(torch.tanh(F.linear(x, self.weight) + self.bias) @ self.weight)


def test_a_group_with_an_axis_that_makes_and_reads_its_units_has_a_fixed_width():
    plain = trace(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.zeros(2, 3))
    assert has_free_width(plain, "0")
    tied = trace(TiedAutoencoder(), torch.zeros(2, 3))
    (group,) = (name for name in tied.by_name if any(place.array == "bias" for place in tied.places(name)))
    assert {place.side for place in tied.places(group)} == {"both", "output"}
    assert not has_free_width(tied, group)
