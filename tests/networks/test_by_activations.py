"""What methods that compare units by activations share: a search has ended unless its passes were used up."""

import numpy as np
import pytest
import torch
from torch import nn

import consilience as cs
from consilience.networks.methods import by_activations

METHODS = {"joins": by_activations.ActivationJoins(), "slots": by_activations.ActivationSlots()}


def networks(n=3):
    rng = np.random.default_rng(0)
    made = [nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)) for _ in range(n)]
    with torch.no_grad():
        for values in (values for network in made for values in network.parameters()):
            values.copy_(torch.tensor(rng.normal(size=values.shape)))
    return made


@pytest.mark.parametrize("name", METHODS)
def test_a_search_that_used_all_its_passes_has_not_converged(name, monkeypatch):
    method = METHODS[name]
    inputs = torch.tensor(np.random.default_rng(1).normal(size=(40, 4)), dtype=torch.float32)
    options = {"example": inputs, "inputs": inputs}
    assert cs.fuse(networks(), method, **options).status is cs.results.Status.CONVERGED
    monkeypatch.setattr(by_activations, "MAX_PASSES", 1)
    assert cs.fuse(networks(), method, **options).status is cs.results.Status.MAX_ITERATIONS
