"""The two baselines for networks: the plain average and all networks side by side."""

import numpy as np
import pytest
import torch
from torch import nn

import consilience as cs
from tests.copies import COPIES
from tests.networks.fusable_nets import (
    dense_net,
    deviation,
    layers_of,
    outputs,
    proved,
    random_layers,
    raw,
    shuffled,
    siblings,
)
from tests.networks.references import concatenated
from tests.networks.zoo import ZOO
from tests.tolerances import ROUNDING, SINGLE_PRECISION

pytestmark = pytest.mark.covering(2)

NAMES = ["mlp", "lenet", "resnet18", "gpt", "gru"]


def average(models, name, **options):
    _, inputs, symmetry = proved(name)
    return cs.fuse(models, method="average", symmetry=symmetry, example=inputs, **options)


# -- The average.


@COPIES
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("weights", [[1, 1], [1, 1, 1], [1] * 7, [0.2, 0.3, 0.5]], ids=str)
@pytest.mark.parametrize("name", ["lenet", "resnet18", "gru"])
def test_identical_networks_average_to_themselves_bit_for_bit(name, weights, dtype):
    module = ZOO[name].module().to(dtype)
    fusion = cs.fuse([module] * len(weights), method="average", symmetry=proved(name)[2], weights=weights)
    fused, expected = raw(fusion.network.arrays), raw(module.state_dict())
    assert [key for key in fused if fused[key] != expected[key]] == []


@pytest.mark.parametrize("weights", [None, [0.5, 0.3, 0.2], [5, 3, 2], [1, 0, 0]])
@pytest.mark.parametrize("name", NAMES)
def test_every_array_is_averaged_by_the_weights(name, weights):
    models = siblings(name)
    shares = np.ones(3) / 3 if weights is None else np.array(weights) / np.sum(weights)
    fusion = average(models, name, weights=weights)
    for key, value in fusion.model.state_dict().items():
        arrays = [model.state_dict()[key] for model in models]
        if value.is_floating_point():
            mean = sum(share * array.double() for share, array in zip(shares, arrays, strict=True))
            torch.testing.assert_close(value.double(), mean, rtol=SINGLE_PRECISION, atol=SINGLE_PRECISION)
            low, high = torch.stack(arrays).amin(0), torch.stack(arrays).amax(0)
            assert ((value >= low - SINGLE_PRECISION) & (value <= high + SINGLE_PRECISION)).all()
        else:
            assert any(torch.equal(value, array) for array in arrays)


def test_the_order_of_models_changes_no_byte_of_the_average():
    models = siblings("resnet18", 4)
    fusion = average(models, "resnet18", weights=[1, 2, 3, 4])
    other = average(models[::-1], "resnet18", weights=[4, 3, 2, 1])
    assert raw(fusion.network.arrays) == raw(other.network.arrays)


def test_counters_are_copied_from_one_model():
    models = siblings("resnet18", 2)
    for model in models:
        model.bn1.num_batches_tracked.fill_(41)
    assert average(models, "resnet18").model.bn1.num_batches_tracked.item() == 41


def test_an_average_of_many_half_precision_networks_does_not_drift():
    models = [ZOO["mlp"].module(seed).half() for seed in range(20)]
    fusion = cs.fuse(models, method="average", symmetry=proved("mlp")[2])
    for key, value in fusion.network.arrays.items():
        mean = torch.stack([model.state_dict()[key].double() for model in models]).mean(0)
        torch.testing.assert_close(value.double(), mean, rtol=1e-3, atol=1e-6)


def test_networks_of_other_widths_cannot_be_averaged():
    rng = np.random.default_rng(0)
    models = [dense_net(random_layers((4, width, 3), rng)) for width in (5, 6)]
    with pytest.raises(cs.ConsilienceError, match="average"):
        cs.fuse(models, method="average", example=torch.zeros(2, 4, dtype=torch.float64))


# -- The ensemble.


@COPIES
@pytest.mark.parametrize("mean", ["probabilities", "logits"])
@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet18"])
def test_an_ensemble_of_copies_answers_as_the_copies(name, mean):
    module, inputs, symmetry = proved(name)
    fusion = cs.fuse([shuffled(module, symmetry, seed) for seed in range(3)], method="ensemble", mean=mean)
    fused, expected = (
        torch.as_tensor(outputs(model, inputs)).reshape(len(inputs), -1) for model in (fusion.model, module)
    )
    torch.testing.assert_close(fused.softmax(1), expected.softmax(1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weights", [None, [0.5, 0.3, 0.2]])
def test_an_ensemble_averages_probabilities_or_logits(weights):
    models, inputs = siblings("mlp"), proved("mlp")[1]
    shares = np.ones(3) / 3 if weights is None else np.array(weights)
    logits = np.stack([outputs(model, inputs).reshape(len(inputs), -1) for model in models])
    chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    answers = {
        mean: outputs(cs.fuse(models, method="ensemble", mean=mean, weights=weights).model, inputs).reshape(3, -1)
        for mean in ("probabilities", "logits")
    }
    np.testing.assert_allclose(answers["logits"], np.einsum("j,jnc->nc", shares, logits), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        np.exp(answers["probabilities"]), np.einsum("j,jnc->nc", shares, chances), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(np.exp(answers["probabilities"]).sum(1), 1.0, rtol=1e-5)
    assert np.abs(answers["logits"] - answers["probabilities"]).max() > 1e-3


def test_an_ensemble_takes_networks_of_any_architecture_and_is_not_saved(tmp_path):
    rng = np.random.default_rng(0)
    models = [dense_net(random_layers(widths, rng)) for widths in ((4, 5, 3), (4, 6, 7, 3))]
    inputs = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    fusion = cs.fuse(models, method="ensemble", mean="logits", example=inputs)
    expected = sum(outputs(model, inputs) for model in models) / 2
    np.testing.assert_allclose(outputs(fusion.model, inputs), expected, rtol=ROUNDING)
    with pytest.raises(cs.errors.InputError, match="ensemble"):
        fusion.save(tmp_path / "fused.safetensors")


def test_the_order_of_an_ensembles_models_does_not_matter():
    models, inputs = siblings("lenet"), proved("lenet")[1]
    ensemble = cs.fuse(models, method="ensemble", weights=[0.5, 0.3, 0.2]).model
    other = cs.fuse(models[::-1], method="ensemble", weights=[0.2, 0.3, 0.5]).model
    assert deviation(ensemble, other, inputs) < SINGLE_PRECISION


@pytest.mark.parametrize("widths", [((4, 5, 3), (4, 5, 3)), ((4, 3, 3), (4, 6, 3)), ((4, 5, 6, 3), (4, 3, 2, 3))])
def test_an_ensemble_of_logits_is_one_network_with_all_units_side_by_side(widths):
    rng = np.random.default_rng(1)
    models = [random_layers(sizes, rng) for sizes in widths]
    shares = np.array([0.6, 0.4])
    inputs = torch.randn(20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ensemble = cs.fuse([dense_net(layers) for layers in models], method="ensemble", mean="logits", weights=shares).model
    assert deviation(ensemble, dense_net(concatenated(models, shares)), inputs) < ROUNDING


def test_asking_an_ensemble_leaves_its_models_in_training_mode_if_they_were():
    models = [dense_net(random_layers((4, 5, 3), np.random.default_rng(seed))).train() for seed in range(2)]
    before = [layers_of(model) for model in models]
    model = cs.fuse(models, method="ensemble").model
    model(torch.zeros(2, 4, dtype=torch.float64))
    assert all(module.training for module in models)
    for module, old_layers in zip(models, before, strict=True):
        for (weight, bias), (old, old_bias) in zip(layers_of(module), old_layers, strict=True):
            assert np.array_equal(weight, old)
            assert np.array_equal(bias, old_bias)
    assert not any(isinstance(layer, nn.Dropout) and layer.training for layer in model.modules())
