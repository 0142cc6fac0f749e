"""Networks into wider ones: nothing is lost where there is room."""

import numpy as np
import pytest
import torch

import consilience as cs
from tests.copies import COPIES
from tests.networks.fusable_nets import dense_net, deviation, outputs, proved, random_layers, shuffled
from tests.networks.references import concatenated
from tests.networks.resizable_nets import (
    every_network,
    fused_kind,
    inputs_of,
    random_net,
    symmetry_of_kind,
    times,
)
from tests.tolerances import ROUNDING, SINGLE_PRECISION

pytestmark = pytest.mark.covering(2)

WIDENING = {
    "ot": cs.methods.OTFusion(),
    "ot, units": cs.methods.OTFusion(start="units"),
    "ot, random": cs.methods.OTFusion(start="random"),
    "wb": cs.methods.WassersteinFusion(),
    "wb, random": cs.methods.WassersteinFusion(start="random"),
    "consensus": cs.methods.Consensus(refit=False),
}
every_widening = pytest.mark.parametrize("method", WIDENING.values(), ids=list(WIDENING))


# -- One function, wider.


@COPIES
@every_network
@every_widening
def test_copies_into_twice_the_width_are_the_same_function(method, kind):
    module = random_net(kind, 0)
    copies = [shuffled(module, symmetry_of_kind(kind), seed) for seed in range(2)]
    fusion = fused_kind(copies, method, kind, target_widths=times(kind, 2))
    assert fusion.groups == times(kind, 2)
    assert deviation(fusion.model, module, inputs_of(kind)) < 1e-9


@COPIES
@pytest.mark.parametrize("factor", [1.5, 3])
@every_network
@pytest.mark.parametrize("kind_of_method", ["ot", "wb"])
def test_copies_into_any_greater_width_keep_every_unit(kind_of_method, kind, factor):
    """A unit may be halved, so wider targets start from the units and split them; 3 copies, 3 times the width."""
    module = random_net(kind, 0)
    copies = [shuffled(module, symmetry_of_kind(kind), seed) for seed in range(3)]
    fusion = fused_kind(copies, kind_of_method, kind, target_widths=times(kind, factor))
    if factor == 3:
        assert deviation(fusion.model, module, inputs_of(kind)) < 1e-9
    assert fusion.groups == times(kind, factor)
    assert np.isfinite(outputs(fusion.model, inputs_of(kind))).all()


# -- Room for all units: the ensemble.


@pytest.mark.parametrize("number", [2, 3])
@every_network
def test_where_the_widths_add_up_logits_are_the_mean_of_the_models(kind, number):
    models = [random_net(kind, seed) for seed in range(number)]
    fusion = fused_kind(models, cs.methods.Consensus(refit=False), kind, target_widths=times(kind, number))
    expected = sum(outputs(model, inputs_of(kind)) for model in models) / number
    np.testing.assert_allclose(outputs(fusion.model, inputs_of(kind)), expected, rtol=0, atol=1e-5)
    assert all(quality.shared == 0 for quality in fusion.quality.values())


@pytest.mark.parametrize("kind", ["mlp", "lenet"])
def test_where_the_widths_add_up_logits_are_the_mean_with_layers_fitted_anew(kind):
    models = [random_net(kind, seed) for seed in range(2)]
    fusion = fused_kind(models, None, kind, target_widths=times(kind, 2))
    expected = sum(outputs(model, inputs_of(kind)) for model in models) / 2
    np.testing.assert_allclose(outputs(fusion.model, inputs_of(kind)), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("balance", [True, False])
@pytest.mark.parametrize("kind", ["mlp", "lenet", "residual"])
def test_where_the_widths_add_up_logits_are_the_weighted_mean(kind, balance):
    models, weights = [random_net(kind, seed) for seed in range(3)], np.array([0.5, 0.3, 0.2])
    method = cs.methods.Consensus(refit=False, balance=balance)
    fusion = fused_kind(models, method, kind, target_widths=times(kind, 3), weights=weights)
    expected = sum(weight * outputs(model, inputs_of(kind)) for weight, model in zip(weights, models, strict=True))
    np.testing.assert_allclose(outputs(fusion.model, inputs_of(kind)), expected, rtol=0, atol=1e-5)


def test_where_the_widths_add_up_models_may_be_of_any_width():
    widths = [(5, 4), (3, 6), (2, 2)]
    models = [random_net("mlp", seed, *sizes) for seed, sizes in enumerate(widths)]
    names = list(symmetry_of_kind("mlp").groups)
    target = dict(zip(names, np.sum(widths, axis=0).tolist(), strict=True))
    for options in ({"target_widths": target}, {"target": random_net("mlp", 9, *target.values())}):
        fusion = fused_kind(models, cs.methods.Consensus(refit=False), "mlp", **options)
        expected = sum(outputs(model, inputs_of("mlp")) for model in models) / 3
        np.testing.assert_allclose(outputs(fusion.model, inputs_of("mlp")), expected, rtol=0, atol=1e-5)


def test_more_room_than_all_units_need_stays_empty():
    models = [random_net("mlp", seed) for seed in range(2)]
    fusion = fused_kind(models, cs.methods.Consensus(refit=False), "mlp", target_widths=times("mlp", 3))
    expected = sum(outputs(model, inputs_of("mlp")) for model in models) / 2
    np.testing.assert_allclose(outputs(fusion.model, inputs_of("mlp")), expected, rtol=0, atol=1e-5)


def test_units_side_by_side_are_the_network_of_blocks():
    """The fused arrays are, up to numbering, all hidden units stacked, with zeros between models."""
    rng = np.random.default_rng(0)
    models = [random_layers((4, 5, 6, 3), rng) for _ in range(2)]
    blocks = dense_net(concatenated(models, [0.5, 0.5]))
    modules = [dense_net(layers) for layers in models]
    inputs = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    symmetry = cs.symmetry(modules[0], inputs)
    method = cs.methods.Consensus(refit=False, balance=False)
    fusion = cs.fuse(modules, method=method, symmetry=symmetry, target_widths={"0": 10, "2": 12})
    for key, value in blocks.state_dict().items():
        fused = fusion.network.arrays[key].numpy()
        np.testing.assert_allclose(np.sort(fused.ravel()), np.sort(value.numpy().ravel()), atol=ROUNDING)


@COPIES
@pytest.mark.parametrize("name", ["resnet18", "depthwise", "densenet"])
def test_copies_of_networks_with_normalisation_come_back_wider(name):
    module, inputs, symmetry = proved(name)
    copies = [shuffled(module, symmetry, seed) for seed in range(2)]
    widths = {group.name: 2 * group.size for group in symmetry.all_groups if group.resizable}
    assert widths
    for method in (cs.methods.Consensus(refit=False), "ot", "wb"):
        fusion = cs.fuse(copies, method=method, symmetry=symmetry, example=inputs, target_widths=widths)
        assert deviation(fusion.model, module, inputs) < 100 * SINGLE_PRECISION
