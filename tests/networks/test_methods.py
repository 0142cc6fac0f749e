"""Laws of every method for networks: copies come back, numbering and order mean nothing, objectives fall."""

import numpy as np
import pytest
import torch

import consilience as cs
from consilience.networks.symmetry.transport import Injection
from tests.copies import COPIES
from tests.networks.fusable_nets import dense_net, deviation, proved, random_layers, raw, shuffled, siblings
from tests.networks.methods_zoo import (
    FEW,
    LAYERWISE,
    NETWORKS,
    VARIANTS,
    as_scaled,
    every_method,
    every_method_on,
    every_method_on_few,
    every_variant,
    fused,
    named,
)
from tests.tolerances import DESCENT, ROUNDING, SINGLE_PRECISION

pytestmark = pytest.mark.covering(2)

# -- Copies.


@COPIES
@every_method_on(*NETWORKS)
def test_renumbered_copies_fuse_into_the_same_function(method, name):
    module, inputs, symmetry = proved(name)
    fusion = fused([shuffled(module, symmetry, seed) for seed in range(3)], method, name)
    assert deviation(fusion.model, module, inputs) < 10 * SINGLE_PRECISION
    assert all(quality.distance < SINGLE_PRECISION**2 for quality in fusion.quality.values())
    assert all(deviation(model, module, inputs) < 10 * SINGLE_PRECISION for model in fusion.aligned_models)
    assert fusion.groups == dict(symmetry.groups)
    is_site = fusion.details.get("chosen", "").startswith("site:")  # which has no objective
    if fusion.history.size and not is_site:  # sums of squares that cancel, in the precision of the models
        size = sum(float((array.detach().double() ** 2).sum()) for array in module.parameters())
        assert abs(fusion.objective) < SINGLE_PRECISION * size


@COPIES
@pytest.mark.parametrize(
    "name", ["mlp", "mlp without biases", "tied embedding", "gru", pytest.param("densenet", marks=pytest.mark.slow)]
)
def test_renumbered_copies_fuse_into_the_same_function_with_layers_fitted_anew(name):
    module, inputs, symmetry = proved(name)
    fusion = fused([shuffled(module, symmetry, seed) for seed in range(2)], cs.methods.Consensus(), name)
    assert deviation(fusion.model, module, inputs) < 100 * SINGLE_PRECISION


@COPIES
@pytest.mark.parametrize("name", ["mlp", pytest.param("resnet18", marks=pytest.mark.slow)])
@named(*VARIANTS)
def test_renumbered_copies_fuse_into_the_same_function_with_any_option(method, name):
    module, inputs, symmetry = proved(name)
    fusion = fused([shuffled(module, symmetry, seed) for seed in range(3)], method, name)
    assert deviation(fusion.model, module, inputs) < 10 * SINGLE_PRECISION


@COPIES
@every_variant
def test_identical_networks_come_back_in_their_numbering(method):
    module, *_ = proved("mlp")
    arrays = fused([module] * 3, as_scaled(method), "mlp").network.arrays
    for key, value in module.state_dict().items():
        torch.testing.assert_close(arrays[key], value, rtol=1e-6, atol=1e-7)


# -- Numbering.


@pytest.mark.parametrize("name", FEW)
@named(*LAYERWISE)
def test_renumbering_any_model_leaves_the_fused_function_unchanged(method, name):
    _, inputs, symmetry = proved(name)
    models = siblings(name)
    expected = fused(models, method, name, reference=0)
    for moved in range(3):
        others = [shuffled(model, symmetry, 7) if i == moved else model for i, model in enumerate(models)]
        fusion = fused(others, method, name, reference=0)
        assert fusion.groups == expected.groups
        assert deviation(fusion.model, expected.model, inputs) < 100 * SINGLE_PRECISION


@pytest.mark.parametrize("name", ["mlp", "lenet"])
@named(*LAYERWISE)
def test_renumbering_the_models_does_not_change_which_of_them_is_started_from(method, name):
    _, inputs, symmetry = proved(name)
    models = siblings(name)
    expected = fused(models, method, name)
    for seed in range(4):
        others = [shuffled(model, symmetry, 10 * seed + number) for number, model in enumerate(models)]
        assert deviation(fused(others, method, name).model, expected.model, inputs) < 100 * SINGLE_PRECISION


@every_method
def test_renumbering_leaves_the_fused_function_of_one_hidden_layer_unchanged(method):
    models = [dense_net(random_layers((4, 6, 3), np.random.default_rng(seed))) for seed in range(2)]
    inputs = torch.randn(20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    symmetry = cs.symmetry(models[0], inputs)
    expected = cs.fuse(models, method=method, symmetry=symmetry, reference=0)
    for moved in range(2):
        others = [shuffled(model, symmetry, 7) if i == moved else model for i, model in enumerate(models)]
        fusion = cs.fuse(others, method=method, symmetry=symmetry, reference=0)
        assert deviation(fusion.model, expected.model, inputs) < ROUNDING


@every_method_on_few("mlp", "lenet", "transformer encoder")
def test_the_order_in_which_models_arrive_changes_no_byte(method, name):
    models = siblings(name)
    weights = [0.5, 0.3, 0.2]
    one = fused(models, method, name, weights=weights)
    other = fused(models[::-1], method, name, weights=weights[::-1])
    assert raw(one.network.arrays) == raw(other.network.arrays)
    for group, found in one.matching.items():
        assert found.of_site(0).tolist() == other.matching[group].of_site(2).tolist()


@COPIES
@every_variant
def test_the_order_of_arrival_leaves_the_record_of_a_fusion_of_equals_unchanged(method):
    models = siblings("lenet")
    one, other = fused(models, method, "lenet"), fused(models[::-1], method, "lenet")
    assert raw(one.network.arrays) == raw(other.network.arrays)
    for fusion in (one, other):  # the name of the site whose network is taken counts arrivals
        fusion.provenance["result"].pop("chosen", None)
        fusion.provenance["result"].pop("site_digests")  # as do the names that contents have
    assert one.provenance == other.provenance


@every_method
def test_the_order_of_arrival_changes_no_byte_with_a_reference(method):
    models = siblings("lenet")
    one = fused(models, method, "lenet", reference=2)
    other = fused([models[2], models[0], models[1]], method, "lenet", reference=0)
    assert raw(one.network.arrays) == raw(other.network.arrays)


@every_variant
def test_the_same_seed_gives_the_same_bytes(method):
    models = siblings("lenet")
    first, second = (fused(models, method, "lenet", rng=5) for _ in range(2))
    assert raw(first.network.arrays) == raw(second.network.arrays)
    assert first.provenance == second.provenance


@pytest.mark.parametrize("reference", [0, 1, 2])
@every_variant
def test_the_fused_network_keeps_the_numbering_of_the_reference(method, reference):
    models = siblings("lenet")
    fusion = fused(models, method, "lenet", reference=reference)
    for group, transport in fusion.transports[reference].items():
        assert isinstance(transport, Injection), group
        assert transport.labels.tolist() == list(range(len(transport.labels))), group
        labels = fusion.matching[group].of_site(reference)
        assert labels.tolist() == list(range(len(labels)))


@COPIES
@every_method_on_few("mlp")
def test_copies_come_back_in_the_numbering_of_the_reference(method, name):
    module, _, symmetry = proved(name)
    copies = [shuffled(module, symmetry, seed) for seed in range(3)]
    arrays = fused(copies, as_scaled(method), name, reference=1).network.arrays
    for key, value in copies[1].state_dict().items():
        torch.testing.assert_close(arrays[key], value, rtol=1e-5, atol=1e-6)


# -- Objectives.


@pytest.mark.parametrize("name", ["mlp", "lenet", "gru", "transformer encoder"])
@named("wb", "rebasin", "consensus", "wb, restarts", "wb, random", "rebasin, restarts")
def test_the_objective_never_rises(method, name):
    history = fused(siblings(name), method, name).history
    assert history.size >= 1
    assert np.all(np.diff(history) <= DESCENT * max(1.0, abs(history[0])))


@named("wb", "rebasin", "consensus", "wb, restarts", "wb, random", "rebasin, restarts")
def test_the_objective_is_the_last_of_its_history(method):
    fusion = fused(siblings("lenet"), method, "lenet")
    assert fusion.objective == pytest.approx(fusion.history[-1], rel=1e-6)


@pytest.mark.parametrize("kind", ["rebasin", "wb", "consensus"])
def test_restarts_never_end_higher(kind):
    for name in ("mlp", "gru"):
        one, more = (
            cs.fuse(siblings(name), method=kind, symmetry=proved(name)[2], restarts=count).objective for count in (1, 4)
        )
        assert more <= one * (1 + DESCENT)
