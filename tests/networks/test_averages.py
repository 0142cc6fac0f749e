"""What every method for networks makes of what it matched: weighted averages in which nothing is spoilt."""

from copy import deepcopy

import numpy as np
import pytest
import torch

import consilience as cs
from tests.copies import COPIES
from tests.networks.fusable_nets import deviation, outputs, proved, raw, shuffled, siblings
from tests.networks.methods_zoo import (
    METHODS,
    as_scaled,
    every_method,
    every_method_on,
    fused,
    named,
    near,
)
from tests.tolerances import SINGLE_PRECISION

pytestmark = pytest.mark.covering(2)

# -- What is averaged.


@every_method_on("mlp", "transformer encoder")
def test_models_of_one_start_that_stayed_close_are_averaged_as_they_are_numbered(method, name):
    module, inputs, _ = proved(name)
    models = [near(module, 1e-3, seed) for seed in range(3)]
    expected = fused(models, "average", name)
    fusion = fused(models, method, name)
    assert deviation(fusion.model, expected.model, inputs) < 100 * SINGLE_PRECISION


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", pytest.param("resnet18", marks=pytest.mark.slow)])
@every_method
def test_a_model_that_alone_counts_is_returned(method, name):
    inputs = proved(name)[1]
    for alone in range(3):
        models = siblings(name)
        weights = [float(number == alone) for number in range(3)]
        for reference in (alone, (alone + 1) % 3):
            fusion = fused(models, method, name, weights=weights, reference=reference)
            assert deviation(fusion.model, models[alone], inputs) < 10 * SINGLE_PRECISION


@pytest.mark.parametrize("name", ["lenet", pytest.param("resnet18", marks=pytest.mark.slow)])
@named("ot", "wb", "rebasin", "fedma")
def test_the_fused_network_is_the_weighted_average_of_the_aligned_models(method, name):
    weights = np.array([0.5, 0.3, 0.2])
    models = siblings(name)
    fusion = fused(models, method, name, weights=weights)
    for key, value in fusion.network.arrays.items():
        if value.is_floating_point():
            mean = sum(w * model.arrays[key].double() for w, model in zip(weights, fusion.aligned, strict=True))
            torch.testing.assert_close(value.double(), mean, rtol=1e-5, atol=1e-6)


@every_method_on("lenet", "transformer encoder")
def test_aligned_models_are_the_same_functions(method, name):
    models = siblings(name)
    inputs = proved(name)[1]
    fusion = fused(models, method, name)
    for module, aligned in zip(models, fusion.aligned_models, strict=True):
        assert deviation(aligned, module, inputs) < 100 * SINGLE_PRECISION


@named("ot", "wb", "rebasin", "fedma", "consensus")
def test_statistics_of_batch_normalisation_are_averaged_and_counters_copied(method):
    models = siblings("resnet18")
    for number, module in enumerate(models):
        module.bn1.num_batches_tracked.fill_(10 + number)
    fusion = fused(models, method, "resnet18", reference=1)
    for kind in ("running_mean", "running_var"):
        moved = [
            model.state_dict()[f"bn1.{kind}"][torch.as_tensor(move["conv1"].order)]
            for model, move in zip(models, fusion.transports, strict=True)
        ]
        if not isinstance(method, cs.methods.Consensus):  # which writes the models in other scales first
            torch.testing.assert_close(fusion.network.arrays[f"bn1.{kind}"], sum(moved) / 3)
    counter = fusion.model.bn1.num_batches_tracked
    assert counter.dtype == torch.int64
    assert counter.item() in (10, 11, 12)
    assert fusion.needs_repair


# -- Nothing is spoilt.


@pytest.mark.parametrize("name", ["resnet18", "gpt"])
@named("ot", "wb", "rebasin", "consensus", "fedma")
def test_models_that_went_in_are_left_as_they_are(method, name):
    models = siblings(name, 2)
    before = [raw(model.state_dict()) for model in models]
    fusion = fused(models, method, name)
    made = fusion.model
    for array in made.parameters():
        array.data.zero_()
    assert [raw(model.state_dict()) for model in models] == before


def test_fitting_layers_anew_leaves_the_models_as_they_are():
    models = siblings("mlp", 2)
    models[0].train()
    before = [raw(model.state_dict()) for model in models]
    made = fused(models, cs.methods.Consensus(), "mlp").model
    assert [raw(model.state_dict()) for model in models] == before
    assert models[0].training
    assert not made.training


@COPIES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@every_method
def test_the_precision_of_the_models_is_kept(method, dtype):
    module, inputs, symmetry = proved("mlp")
    copies = [shuffled(module, symmetry, seed).to(dtype) for seed in range(2)]
    fusion = cs.fuse(copies, method=method, symmetry=symmetry)
    assert {array.dtype for array in fusion.network.arrays.values()} == {dtype}
    assert {array.dtype for array in fusion.model.parameters()} == {dtype}
    again = fusion.model.float()
    assert deviation(again, copies[0].float(), inputs) < 10 * (torch.finfo(dtype).eps + SINGLE_PRECISION)


@COPIES
def test_double_precision_is_computed_in_double_precision():
    module, inputs, symmetry = proved("lenet")
    copies = [shuffled(module, symmetry, seed).double() for seed in range(2)]
    for name, method in METHODS.items():
        model = cs.fuse(copies, method=method, symmetry=symmetry).model
        assert deviation(model, copies[0], inputs.double()) < 1e-12, name


@COPIES
@every_method
def test_half_precision_is_averaged_in_single_precision(method):
    """The mean of many half-precision networks keeps digits that sums in half precision lose."""
    module, _, symmetry = proved("mlp")
    copies = [shuffled(module, symmetry, seed).half() for seed in range(12)]
    model = cs.fuse(copies, method=as_scaled(method), symmetry=symmetry, reference=0).model
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, copies[0].state_dict()[key], rtol=1e-3, atol=1e-6)


@every_method_on("tied embedding", "gpt")
def test_tied_weights_stay_tied(method, name):
    models = siblings(name)
    fusion = fused(models, method, name)
    made = fusion.model
    tied = (made.decoder, made.embed) if name == "tied embedding" else (made.lm_head, made.wte)
    assert tied[0].weight is tied[1].weight


# -- Outputs stay where they are.


@COPIES
@pytest.mark.parametrize("name", ["mlp", "transformer encoder"])
@every_method
def test_outputs_are_never_renumbered(method, name):
    """Two copies whose classes were exchanged average to equal logits of these classes."""
    module, inputs, _ = proved(name)
    other = deepcopy(module)
    last = [layer for layer in other.modules() if isinstance(layer, torch.nn.Linear)][-1]
    swap = [1, 0, *range(2, last.out_features)]
    last.weight.data, last.bias.data = last.weight.data[swap], last.bias.data[swap]
    found = outputs(fused([module, other], method, name).model, inputs).reshape(-1, last.out_features)
    if not isinstance(method, cs.methods.ReBasin | cs.methods.Consensus):  # which look at what units send
        np.testing.assert_allclose(found[:, 0], found[:, 1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "method", [cs.methods.NetworkAverage(), cs.methods.ReBasin(), cs.methods.FisherMerging(structure="isotropic")]
)
def test_modules_and_files_are_fused_together(tmp_path, method):
    module, inputs, symmetry = proved("mlp")
    models = [module, near(module, 0.1, 1), near(module, 0.1, 2)]
    cs.save(models[1], tmp_path / "plain.safetensors")
    cs.save(models[2], tmp_path / "known.safetensors", symmetry=symmetry)
    fusion = cs.fuse([module, tmp_path / "plain.safetensors", tmp_path / "known.safetensors"], method, example=inputs)
    assert deviation(fusion.model, fused(models, method, "mlp").model, inputs) < SINGLE_PRECISION
