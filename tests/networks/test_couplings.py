"""Couplings between networks, and matching by what units give on inputs."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

import consilience as cs
from consilience.networks.symmetry.transport import Injection
from tests.copies import COPIES
from tests.networks.fusable_nets import deviation, proved, shuffled, siblings
from tests.networks.methods_zoo import (
    MARGINALS,
    fused,
)
from tests.tolerances import SINGLE_PRECISION

pytestmark = pytest.mark.covering(2)

# -- Couplings.


@pytest.mark.parametrize("epsilon", [0.0, 0.02, 0.2])
@pytest.mark.parametrize(
    "method", [cs.methods.OTFusion(), cs.methods.WassersteinFusion(max_iterations=2)], ids=["ot", "wb"]
)
@pytest.mark.parametrize("name", ["mlp", "lenet", pytest.param("resnet18", marks=pytest.mark.slow), "gru"])
def test_couplings_have_uniform_marginals(method, name, epsilon):
    fusion = fused(siblings(name, 2), replace(method, epsilon=epsilon), name)
    for transports in fusion.transports:
        for group, one in transports.items():
            units = fusion.groups[group]
            if isinstance(one, Injection):
                assert sorted(one.labels.tolist()) == list(range(units))
            else:
                np.testing.assert_allclose(one.coupling.sum(0), 1 / units, rtol=0, atol=MARGINALS)
                np.testing.assert_allclose(one.coupling.sum(1), 1 / units, rtol=0, atol=MARGINALS)
                assert one.coupling.min() >= 0
    assert epsilon == 0 or any(
        not isinstance(transport, Injection) for moves in fusion.transports for transport in moves.values()
    )


@COPIES
@pytest.mark.parametrize("kind", ["ot", "wb"])
def test_little_entropy_leaves_copies_the_same_function(kind):
    module, inputs, symmetry = proved("lenet")
    copies = [shuffled(module, symmetry, seed) for seed in range(2)]
    assert deviation(fused(copies, kind, "lenet", epsilon=0.001).model, module, inputs) < 1e-3


# -- Unlabeled inputs.


@COPIES
@pytest.mark.parametrize("method", [
    cs.methods.ReBasin(cost="activations"), cs.methods.ReBasin(cost="correlation"),
    cs.methods.OTFusion(cost="activations"), cs.methods.WassersteinFusion(cost="activations"),
], ids=["rebasin", "rebasin, correlation", "ot", "wb"])  # fmt: skip
@pytest.mark.parametrize("name", ["mlp", pytest.param("resnet18", marks=pytest.mark.slow), "densenet"])
def test_units_are_matched_by_what_they_give_on_inputs(method, name):
    module, inputs, symmetry = proved(name)
    module = deepcopy(module)
    for layer in module.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.bias.data += 3.0  # or some channels are always 0, and nothing tells them apart
    copies = [shuffled(module, symmetry, seed) for seed in range(3)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        batches = [torch.randn(20, *inputs.shape[1:]) for _ in range(2)]
    fusion = fused(copies, method, name, inputs=batches)
    assert deviation(fusion.model, module, inputs) < 10 * SINGLE_PRECISION
    other = fused(copies, method, name, inputs=batches[::-1])
    assert deviation(other.model, module, inputs) < 10 * SINGLE_PRECISION


def test_a_method_that_asks_the_models_wants_inputs():
    with pytest.raises(cs.ConsilienceError, match="inputs"):
        fused(siblings("mlp"), cs.methods.ReBasin(cost="activations"), "mlp")


@pytest.mark.parametrize(
    "method", [cs.methods.ReBasin(cost="activations"), cs.methods.OTFusion(cost="activations")], ids=["rebasin", "ot"]
)
def test_activations_that_overflow_are_refused_by_the_name_of_the_network(method):
    models = siblings("mlp")
    x = 1e25 * torch.randn(20, *proved("mlp")[1].shape[1:])
    for layer in models[1].modules():
        if isinstance(layer, torch.nn.Linear):
            layer.weight.data *= 1e15
    with pytest.raises(cs.errors.InputError, match=r"model 1: has NaN or infinite activations in group .*E-NUMBER"):
        fused(models, method, "mlp", inputs=x)
