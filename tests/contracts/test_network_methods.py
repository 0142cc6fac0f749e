"""Laws of every method for networks: copies come back, numbering and order mean nothing, nothing is spoilt."""

from copy import deepcopy

import numpy as np
import pytest
import torch

import consilience as cs
from consilience.networks.transport import Injection
from tests.network_oracles import deviation, dense_net, outputs, proved, random_layers, raw, shuffled, siblings
from tests.tolerances import DESCENT, ROUNDING, SINGLE_PRECISION

METHODS = {
    "ot": cs.OTFusion(),
    "wb": cs.WassersteinFusion(),
    "rebasin": cs.ReBasin(),
    "consensus": cs.Consensus(refit=False),
    "fedma": cs.FedMA(shrink=False),
}
VARIANTS = {
    "ot, lengths": cs.OTFusion(metric="euclidean", normalize=True),
    "wb, restarts": cs.WassersteinFusion(restarts=3),
    "rebasin, restarts": cs.ReBasin(restarts=3),
    "consensus, as scaled": cs.Consensus(refit=False, balance=False, restarts=1),
}
NETWORKS = [
    "mlp", "mlp without biases", "lenet", "resnet18", "depthwise", "densenet", "transformer encoder", "gpt",
    "tied embedding", "lstm both ways", "gru",
]  # fmt: skip
FEW = ["mlp", "lenet", "resnet18", "transformer encoder"]
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
every_variant = pytest.mark.parametrize(
    "method", [*METHODS.values(), *VARIANTS.values()], ids=[*METHODS, *VARIANTS]
)
# Whether units match is asked of one layer after another, so that no numbering has a say; the others start their
# descent from the models as they are numbered.
LAYERWISE = ["ot", "wb", "fedma"]
# What entropic plans may miss their marginals by.
MARGINALS = 1e-6


def named(*names):
    known = METHODS | VARIANTS
    return pytest.mark.parametrize("method", [known[name] for name in names], ids=names)


def fused(models, method, name, **options):
    _, inputs, symmetry = proved(name)
    return cs.fuse(models, method=method, symmetry=symmetry, example=inputs, **options)


def near(module, size, seed):
    """Return a copy of a network with a little noise on its parameters."""
    made = deepcopy(module)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for array in made.parameters():
            array.data += size * torch.randn_like(array)
    return made


def as_scaled(method):
    """Return a method that writes its fused network in the scales of the models."""
    return VARIANTS["consensus, as scaled"] if isinstance(method, cs.Consensus) else method


# -- Copies.


@pytest.mark.parametrize("name", NETWORKS)
@every_method
def test_renumbered_copies_fuse_into_the_same_function(method, name):
    module, inputs, symmetry = proved(name)
    fusion = fused([shuffled(module, symmetry, seed) for seed in range(3)], method, name)
    assert deviation(fusion.model, module, inputs) < 10 * SINGLE_PRECISION
    assert all(quality.distance < SINGLE_PRECISION**2 for quality in fusion.quality.values())
    assert all(deviation(one, module, inputs) < 10 * SINGLE_PRECISION for one in fusion.aligned_models)
    assert fusion.groups == dict(symmetry.groups)
    if fusion.history.size:
        assert abs(fusion.objective) < 1e-9


@pytest.mark.parametrize("name", ["mlp", "mlp without biases", "densenet", "tied embedding", "gru"])
def test_renumbered_copies_fuse_into_the_same_function_with_layers_fitted_anew(name):
    module, inputs, symmetry = proved(name)
    fusion = fused([shuffled(module, symmetry, seed) for seed in range(2)], cs.Consensus(), name)
    assert deviation(fusion.model, module, inputs) < 100 * SINGLE_PRECISION


@pytest.mark.parametrize("name", ["mlp", "resnet18"])
@named(*VARIANTS)
def test_renumbered_copies_fuse_into_the_same_function_with_any_option(method, name):
    module, inputs, symmetry = proved(name)
    fusion = fused([shuffled(module, symmetry, seed) for seed in range(3)], method, name)
    assert deviation(fusion.model, module, inputs) < 10 * SINGLE_PRECISION


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
        others = [shuffled(one, symmetry, 7) if i == moved else one for i, one in enumerate(models)]
        found = fused(others, method, name, reference=0)
        assert found.groups == expected.groups
        assert deviation(found.model, expected.model, inputs) < 100 * SINGLE_PRECISION


@pytest.mark.parametrize("name", ["mlp", "lenet"])
@named(*LAYERWISE)
def test_renumbering_the_models_does_not_change_which_of_them_is_started_from(method, name):
    _, inputs, symmetry = proved(name)
    models = siblings(name)
    expected = fused(models, method, name)
    for seed in range(4):
        others = [shuffled(one, symmetry, 10 * seed + number) for number, one in enumerate(models)]
        assert deviation(fused(others, method, name).model, expected.model, inputs) < 100 * SINGLE_PRECISION


@every_method
def test_renumbering_leaves_the_fused_function_of_one_hidden_layer_unchanged(method):
    models = [dense_net(random_layers((4, 6, 3), np.random.default_rng(seed))) for seed in range(2)]
    inputs = torch.randn(20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    symmetry = cs.symmetry(models[0], inputs)
    expected = cs.fuse(models, method=method, symmetry=symmetry, reference=0)
    for moved in range(2):
        others = [shuffled(one, symmetry, 7) if i == moved else one for i, one in enumerate(models)]
        found = cs.fuse(others, method=method, symmetry=symmetry, reference=0)
        assert deviation(found.model, expected.model, inputs) < ROUNDING


@pytest.mark.parametrize("name", FEW)
@every_method
def test_the_order_in_which_models_arrive_changes_no_byte(method, name):
    models = siblings(name)
    weights = [0.5, 0.3, 0.2]
    one = fused(models, method, name, weights=weights)
    other = fused(models[::-1], method, name, weights=weights[::-1])
    assert raw(one.network.arrays) == raw(other.network.arrays)
    for group, found in one.matching.items():
        assert found.of_site(0).tolist() == other.matching[group].of_site(2).tolist()


@every_variant
def test_the_order_of_arrival_leaves_the_record_of_a_fusion_of_equals_unchanged(method):
    models = siblings("lenet")
    one, other = fused(models, method, "lenet"), fused(models[::-1], method, "lenet")
    assert raw(one.network.arrays) == raw(other.network.arrays)
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


@pytest.mark.parametrize("name", ["mlp", "resnet18", "transformer encoder"])
@every_method
def test_copies_come_back_in_the_numbering_of_the_reference(method, name):
    module, _, symmetry = proved(name)
    copies = [shuffled(module, symmetry, seed) for seed in range(3)]
    arrays = fused(copies, as_scaled(method), name, reference=1).network.arrays
    for key, value in copies[1].state_dict().items():
        torch.testing.assert_close(arrays[key], value, rtol=1e-5, atol=1e-6)


# -- What is averaged.


@pytest.mark.parametrize("name", FEW)
@every_method
def test_models_of_one_start_that_stayed_close_are_averaged_as_they_are_numbered(method, name):
    module, inputs, _ = proved(name)
    models = [near(module, 1e-3, seed) for seed in range(3)]
    expected = fused(models, "average", name)
    found = fused(models, method, name)
    assert deviation(found.model, expected.model, inputs) < 100 * SINGLE_PRECISION


@pytest.mark.parametrize("name", ["mlp", "resnet18"])
@every_method
def test_a_model_that_alone_counts_is_returned(method, name):
    inputs = proved(name)[1]
    for alone in range(3):
        models = siblings(name)
        weights = [float(number == alone) for number in range(3)]
        for reference in (alone, (alone + 1) % 3):
            fusion = fused(models, method, name, weights=weights, reference=reference)
            assert deviation(fusion.model, models[alone], inputs) < 10 * SINGLE_PRECISION


@pytest.mark.parametrize("name", FEW)
@named("ot", "wb", "rebasin", "fedma")
def test_the_fused_network_is_the_weighted_average_of_the_aligned_models(method, name):
    weights = np.array([0.5, 0.3, 0.2])
    models = siblings(name)
    fusion = fused(models, method, name, weights=weights)
    for key, value in fusion.network.arrays.items():
        if value.is_floating_point():
            mean = sum(w * one.arrays[key].double() for w, one in zip(weights, fusion.aligned, strict=True))
            torch.testing.assert_close(value.double(), mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", FEW)
@every_method
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
            one.state_dict()[f"bn1.{kind}"][torch.as_tensor(move["conv1"].order)]
            for one, move in zip(models, fusion.transports, strict=True)
        ]
        if not isinstance(method, cs.Consensus):  # which writes the models in other scales first
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
    before = [raw(one.state_dict()) for one in models]
    fusion = fused(models, method, name)
    made = fusion.model
    for array in made.parameters():
        array.data.zero_()
    assert [raw(one.state_dict()) for one in models] == before


def test_fitting_layers_anew_leaves_the_models_as_they_are():
    models = siblings("mlp", 2)
    models[0].train()
    before = [raw(one.state_dict()) for one in models]
    made = fused(models, cs.Consensus(), "mlp").model
    assert [raw(one.state_dict()) for one in models] == before
    assert models[0].training
    assert not made.training


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


def test_double_precision_is_computed_in_double_precision():
    module, inputs, symmetry = proved("lenet")
    copies = [shuffled(module, symmetry, seed).double() for seed in range(2)]
    for name, method in METHODS.items():
        model = cs.fuse(copies, method=method, symmetry=symmetry).model
        assert deviation(model, copies[0], inputs.double()) < 1e-12, name


@every_method
def test_half_precision_is_averaged_in_single_precision(method):
    """The mean of many half-precision networks keeps digits that sums in half precision lose."""
    module, _, symmetry = proved("mlp")
    copies = [shuffled(module, symmetry, seed).half() for seed in range(12)]
    model = cs.fuse(copies, method=as_scaled(method), symmetry=symmetry, reference=0).model
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, copies[0].state_dict()[key], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["tied embedding", "gpt"])
@every_method
def test_tied_weights_stay_tied(method, name):
    models = siblings(name)
    fusion = fused(models, method, name)
    made = fusion.model
    tied = (made.decoder, made.embed) if name == "tied embedding" else (made.lm_head, made.wte)
    assert tied[0].weight is tied[1].weight


# -- Objectives.


@pytest.mark.parametrize("name", FEW)
@named("wb", "rebasin", "consensus", "wb, restarts", "rebasin, restarts", "consensus, as scaled")
def test_the_objective_never_rises(method, name):
    for seed in range(2):
        history = fused(siblings(name, 4), method, name, rng=seed).history
        assert history.size >= 1
        assert np.all(np.diff(history) <= DESCENT * max(1.0, abs(history[0])))


@named("wb", "rebasin", "consensus", "wb, restarts", "rebasin, restarts")
def test_the_objective_is_the_last_of_its_history(method):
    fusion = fused(siblings("lenet"), method, "lenet")
    assert fusion.objective == pytest.approx(fusion.history[-1], rel=1e-6)


@pytest.mark.parametrize("kind", ["rebasin", "wb", "consensus"])
def test_restarts_never_end_higher(kind):
    for name in ("mlp", "lenet"):
        one, more = (
            cs.fuse(siblings(name), method=kind, symmetry=proved(name)[2], restarts=count).objective for count in (1, 6)
        )
        assert more <= one * (1 + DESCENT)


# -- Couplings.


@pytest.mark.parametrize("epsilon", [0.0, 0.02, 0.2])
@pytest.mark.parametrize("kind", ["ot", "wb"])
@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet18", "gru"])
def test_couplings_have_uniform_marginals(kind, name, epsilon):
    fusion = fused(siblings(name), kind, name, epsilon=epsilon)
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
        not isinstance(one, Injection) for moves in fusion.transports for one in moves.values()
    )


@pytest.mark.parametrize("kind", ["ot", "wb"])
def test_little_entropy_leaves_copies_the_same_function(kind):
    module, inputs, symmetry = proved("lenet")
    copies = [shuffled(module, symmetry, seed) for seed in range(2)]
    assert deviation(fused(copies, kind, "lenet", epsilon=0.001).model, module, inputs) < 1e-3


# -- Unlabeled inputs.


@pytest.mark.parametrize("method", [
    cs.ReBasin(cost="activations"), cs.ReBasin(cost="correlation"), cs.OTFusion(cost="activations"),
    cs.WassersteinFusion(cost="activations"),
], ids=["rebasin", "rebasin, correlation", "ot", "wb"])  # fmt: skip
@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet18", "depthwise", "densenet"])
def test_units_are_matched_by_what_they_give_on_inputs(method, name):
    module, inputs, symmetry = proved(name)
    module = deepcopy(module)
    for one in module.modules():
        if isinstance(one, torch.nn.BatchNorm2d):
            one.bias.data += 3.0  # or some channels are always 0, and nothing tells them apart
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
        fused(siblings("mlp"), cs.ReBasin(cost="activations"), "mlp")


# -- Outputs stay where they are.


@pytest.mark.parametrize("name", ["mlp", "transformer encoder"])
@every_method
def test_outputs_are_never_renumbered(method, name):
    """Two copies whose classes were exchanged average to equal logits of these classes."""
    module, inputs, _ = proved(name)
    other = deepcopy(module)
    last = [one for one in other.modules() if isinstance(one, torch.nn.Linear)][-1]
    swap = [1, 0, *range(2, last.out_features)]
    last.weight.data, last.bias.data = last.weight.data[swap], last.bias.data[swap]
    found = outputs(fused([module, other], method, name).model, inputs).reshape(-1, last.out_features)
    if not isinstance(method, cs.ReBasin | cs.Consensus):  # which look at what units send
        np.testing.assert_allclose(found[:, 0], found[:, 1], rtol=1e-4, atol=1e-5)
