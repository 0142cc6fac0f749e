"""Networks of different widths, into narrower and growing ones, and what cannot be done, which is said."""

import numpy as np
import pytest
import torch

import consilience as cs
from tests.copies import COPIES
from tests.networks.fusable_nets import dense_net, deviation, outputs, proved, random_layers, shuffled
from tests.networks.resizable_nets import (
    every_network,
    fused_kind,
    inputs_of,
    random_net,
    symmetry_of_kind,
)
from tests.networks.zoo import ZOO

pytestmark = pytest.mark.covering(2)

# -- Narrower, and mixed.


@every_network
@pytest.mark.parametrize("method", ["ot", "wb"])
def test_the_fused_network_may_be_narrower(method, kind):
    models = [random_net(kind, seed) for seed in range(2)]
    widths = {name: size - 1 for name, size in symmetry_of_kind(kind).groups.items()}
    fusion = fused_kind(models, method, kind, target_widths=widths)
    assert fusion.groups == widths
    assert np.isfinite(outputs(fusion.model, inputs_of(kind))).all()
    for moves in fusion.transports:
        for name, transport in moves.items():
            old = symmetry_of_kind(kind).groups[name]
            assert transport.coupling.shape == (widths[name], old)
            np.testing.assert_allclose(transport.coupling.sum(1), 1 / widths[name], atol=1e-9)
            np.testing.assert_allclose(transport.coupling.sum(0), 1 / old, atol=1e-9)
            np.testing.assert_allclose(transport.receiving.sum(1), 1.0, atol=1e-9)
            np.testing.assert_allclose(transport.sending.sum(0), 1.0, atol=1e-9)


@COPIES
@pytest.mark.parametrize("method", ["ot", "wb"])
def test_units_that_a_network_has_twice_merge_without_loss(method):
    """Every hidden unit twice, what it sends halved: half the width is the same function."""
    rng = np.random.default_rng(3)
    (one, bias), (two, other), (three, last) = random_layers((4, 3, 4, 3), rng)
    double = [
        (np.repeat(one, 2, 0), np.repeat(bias, 2)),
        (np.repeat(np.repeat(two, 2, 0), 2, 1) / 2, np.repeat(other, 2)),
        (np.repeat(three, 2, 1) / 2, last),
    ]
    inputs = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    wide = dense_net(double)
    symmetry = cs.symmetry(wide, inputs)
    copies = [wide, shuffled(wide, symmetry, 1)]
    fusion = cs.fuse(copies, method=method, symmetry=symmetry, target_widths={"0": 3, "2": 4}, start="units")
    assert deviation(fusion.model, dense_net([(one, bias), (two, other), (three, last)]), inputs) < 1e-9
    narrow = dense_net([(one, bias), (two, other), (three, last)])
    mixed = cs.fuse([wide, narrow], method=method, symmetry=symmetry, example=inputs, reference=1)
    assert mixed.groups == {"0": 3, "2": 4}
    assert deviation(mixed.model, narrow, inputs) < 1e-9
    widened = cs.fuse([wide, narrow], method=method, symmetry=symmetry, example=inputs, reference=0)
    assert widened.groups == {"0": 6, "2": 8}
    assert deviation(widened.model, narrow, inputs) < 1e-9


MIXED = {
    "mlp": [(5, 4), (3, 6), (4, 4)], "lenet": [(3, 4, 5), (2, 5, 3), (3, 3, 6)], "residual": [(3, 4, 5), (2, 5, 6)],
}  # fmt: skip


@pytest.mark.parametrize("kind", list(MIXED))
@pytest.mark.parametrize(
    "method",
    [cs.methods.OTFusion(), cs.methods.WassersteinFusion(), cs.methods.Consensus(refit=False), cs.methods.FedMA()],
    ids=["ot", "wb", "consensus", "fedma"],
)
def test_models_of_different_widths_are_fused(method, kind):
    models = [random_net(kind, seed, *widths) for seed, widths in enumerate(MIXED[kind])]
    widest = np.max(MIXED[kind], axis=0)
    fusion = fused_kind(models, method, kind)
    reference = fused_kind(models, method, kind, reference=0)
    if isinstance(method, cs.methods.Consensus | cs.methods.FedMA):
        assert sorted(fusion.groups.values()) == sorted(
            max(model.network.units[name] for model in fusion.inputs) for name in fusion.groups
        )
    else:
        assert reference.groups == dict(reference.inputs[0].network.units)
    for result in (fusion, reference):
        assert np.isfinite(outputs(result.model, inputs_of(kind))).all()
    other = fused_kind(models[::-1], method, kind)
    assert deviation(other.model, fusion.model, inputs_of(kind)) == 0
    assert widest.min() > 0


@pytest.mark.parametrize("method", [cs.methods.Consensus(refit=False), cs.methods.FedMA()], ids=["consensus", "fedma"])
def test_a_narrower_model_without_weight_leaves_the_other_as_it_was(method):
    """The units that only the wide model has keep its weights."""
    wide, narrow = random_net("mlp", 0, 6, 5), random_net("mlp", 1, 4, 3)
    fusion = fused_kind([wide, narrow], method, "mlp", weights=[1.0, 1e-12])
    assert deviation(fusion.model, wide, inputs_of("mlp")) < 1e-6


def test_units_of_one_model_alone_keep_its_incoming_weights_and_send_its_share():
    wide, narrow = random_net("mlp", 0, 6, 5), random_net("mlp", 1, 4, 3)
    method = cs.methods.Consensus(refit=False, balance=False)
    fusion = fused_kind([wide, narrow], method, "mlp", reference=0, weights=[0.7, 0.3])
    (first, other), arrays = fusion.matching.values(), fusion.network.arrays
    alone = np.setdiff1d(np.arange(6), first.of_site(1))
    labels = first.of_site(0)
    wide_units = [int(np.flatnonzero(labels == unit)[0]) for unit in alone]
    np.testing.assert_allclose(
        arrays["0.weight"].numpy()[alone], wide[0].weight.detach().numpy()[wide_units], rtol=1e-12
    )
    np.testing.assert_allclose(arrays["0.bias"].numpy()[alone], wide[0].bias.detach().numpy()[wide_units], rtol=1e-12)
    rows = np.flatnonzero(np.isin(other.of_site(0), other.of_site(1)))
    shared = other.of_site(0)[rows]
    np.testing.assert_allclose(
        arrays["2.weight"].numpy()[np.ix_(shared, alone)],
        0.7 * wide[2].weight.detach().numpy()[np.ix_(rows, wide_units)], rtol=1e-12,
    )  # fmt: skip


@pytest.mark.parametrize("method", ["ot", "wb", "consensus", "fedma"])
def test_modules_of_different_widths_need_nothing_but_an_example(method):
    models = [random_net("mlp", 0, 5, 4), random_net("mlp", 1, 6, 3)]
    options = {"refit": False} if method == "consensus" else {}
    fusion = cs.fuse(models, method=method, example=inputs_of("mlp"), **options)
    assert outputs(fusion.model, inputs_of("mlp")).shape == (36,)


# -- Growing, by FedMA.


def test_without_growth_the_fused_network_is_as_wide_as_the_widest_model():
    models = [random_net("mlp", seed, *widths) for seed, widths in enumerate([(5, 4), (3, 6), (4, 4)])]
    for gamma in (1e-3, 1.0, 1e3):
        assert list(fused_kind(models, cs.methods.FedMA(gamma=gamma), "mlp").groups.values()) == [5, 6]


def test_with_growth_the_width_lies_between_the_widest_model_and_all_units_together():
    models = [random_net("mlp", seed, *widths) for seed, widths in enumerate([(5, 4), (3, 6), (4, 4)])]
    widths = []
    for gamma, sigma in ((1e-9, 1.0), (1.0, 0.5), (7.0, 0.3), (1e9, 0.1)):
        groups = fused_kind(models, cs.methods.FedMA(gamma=gamma, sigma=sigma, growth=True), "mlp").groups
        widths.append(list(groups.values()))
        assert all(low <= width <= high for low, width, high in zip((5, 6), widths[-1], (12, 14), strict=True))
    assert widths[0] == [5, 6]
    assert widths[-1] == [12, 14]


def test_growth_stops_at_the_target_widths():
    models = [random_net("mlp", seed) for seed in range(3)]
    names = list(symmetry_of_kind("mlp").groups)
    method = cs.methods.FedMA(gamma=1e9, sigma=0.1, growth=True)
    fusion = fused_kind(models, method, "mlp", target_widths=dict(zip(names, (7, 9), strict=True)))
    assert list(fusion.groups.values()) == [7, 9]


@COPIES
def test_with_growth_far_beyond_copies_are_found_to_be_copies():
    module = random_net("mlp", 0)
    copies = [shuffled(module, symmetry_of_kind("mlp"), seed) for seed in range(3)]
    fusion = fused_kind(copies, cs.methods.FedMA(gamma=1.0, sigma=0.01, sigma0=1.0, growth=True), "mlp")
    assert fusion.groups == dict(symmetry_of_kind("mlp").groups)
    assert deviation(fusion.model, module, inputs_of("mlp")) < 1e-9


# -- What cannot be.


@pytest.mark.parametrize("name", ["layer norm", "gpt", "resnext", "multi-head attention"])
@pytest.mark.parametrize("method", ["ot", "wb", "consensus", "fedma"])
def test_groups_that_cannot_be_resized_are_named(method, name):
    _, inputs, symmetry = proved(name)
    models = [ZOO[name].module(seed) for seed in range(2)]
    for group in ZOO[name].rigid:
        widths = {group: 2 * symmetry.groups[group]}
        with pytest.raises(cs.errors.OptionError, match=group):
            cs.fuse(models, method=method, symmetry=symmetry, example=inputs, target_widths=widths)


@pytest.mark.parametrize("method", ["rebasin", "average"])
def test_methods_for_one_width_say_so(method):
    models = [random_net("mlp", seed) for seed in range(2)]
    for nets, options in ((models, {"target_widths": {"0": 9}}), ([models[0], random_net("mlp", 1, 6, 4)], {})):
        with pytest.raises(cs.ConsilienceError, match=f"{method}.*(width|units)|(width|units).*{method}"):
            fused_kind(nets, method, "mlp", **options)


@pytest.mark.parametrize("method", ["consensus", "fedma"])
def test_a_fused_network_narrower_than_a_model_is_refused_where_units_are_kept(method):
    models = [random_net("mlp", seed) for seed in range(2)]
    with pytest.raises(cs.ConsilienceError, match="group 0"):
        fused_kind(models, method, "mlp", target_widths={"0": 4})


@pytest.mark.parametrize("width", [0, -1, 2.5, "7", None, float("nan"), True])
@pytest.mark.parametrize("method", ["ot", "consensus"])
def test_widths_that_are_no_number_of_units_are_refused(method, width):
    models = [random_net("mlp", seed) for seed in range(2)]
    with pytest.raises(cs.errors.OptionError, match="0"):
        fused_kind(models, method, "mlp", target_widths={"0": width})


def test_groups_that_do_not_exist_are_named_with_those_that_do():
    models = [random_net("mlp", seed) for seed in range(2)]
    with pytest.raises(cs.errors.OptionError, match=r"hidden.*0.*2"):
        fused_kind(models, "wb", "mlp", target_widths={"hidden": 9})


@pytest.mark.parametrize("reference", [-1, 2, 1.5, "a", True])
def test_references_that_do_not_exist_are_refused(reference):
    with pytest.raises(cs.errors.OptionError, match="reference"):
        fused_kind([random_net("mlp", seed) for seed in range(2)], "ot", "mlp", reference=reference)
