"""Networks of other widths, in and out: nothing is lost where there is room, and what cannot be done is said."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import consilience as cs
from consilience.networks.transport import Spread
from tests.network_oracles import concatenated, dense_net, deviation, outputs, proved, random_layers, shuffled
from tests.network_zoo import ZOO, conv
from tests.tolerances import ROUNDING, SINGLE_PRECISION

# -- Networks whose widths may be told.


class Residual(nn.Module):
    """A residual network without normalisation, whose 1x1 shortcut widens the stream."""

    def __init__(self, stem=3, inner=4, stream=5):
        super().__init__()
        self.stem = conv(2, stem)
        self.first, self.second = conv(stem, inner), conv(inner, stem)
        self.third, self.fourth = conv(stem, inner), conv(inner, stream)
        self.shortcut = nn.Conv2d(stem, stream, 1)
        self.fc = nn.Linear(stream, 3)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = F.relu(x + self.second(F.relu(self.first(x))))
        x = F.relu(self.shortcut(x) + self.fourth(F.relu(self.third(x))))
        return self.fc(x.mean(dim=(2, 3)))


def lenet(one=3, two=4, three=5):
    return nn.Sequential(
        conv(1, one), nn.ReLU(), nn.MaxPool2d(2), conv(one, two), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(4 * two, three), nn.ReLU(), nn.Linear(three, 3),
    )  # fmt: skip


def mlp(one=5, two=4, activation=nn.ReLU):
    return nn.Sequential(nn.Linear(4, one), activation(), nn.Linear(one, two), activation(), nn.Linear(two, 3))


def tanh_mlp(one=5, two=4):
    return mlp(one, two, nn.Tanh)


MAKERS = {"mlp": mlp, "tanh": tanh_mlp, "lenet": lenet, "residual": Residual}
SHAPES = {"mlp": (4,), "tanh": (4,), "lenet": (1, 8, 8), "residual": (2, 6, 6)}
every_network = pytest.mark.parametrize("kind", list(MAKERS))


def made(kind, seed, *widths):
    """Return a network in double precision with biases that matter."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = MAKERS[kind](*widths).double().eval()
        for name, array in module.named_parameters():
            if name.endswith("bias"):
                array.data = 0.5 * torch.randn_like(array)
    return module


def inputs_of(kind):
    return torch.randn(12, *SHAPES[kind], dtype=torch.float64, generator=torch.Generator().manual_seed(1))


SYMMETRY = {}


def symmetry_of(kind):
    if kind not in SYMMETRY:
        SYMMETRY[kind] = cs.symmetry(made(kind, 0), inputs_of(kind))
    return SYMMETRY[kind]


def fused(models, method, kind, **options):
    return cs.fuse(models, method=method, symmetry=symmetry_of(kind), example=inputs_of(kind), **options)


def times(kind, factor, groups=None):
    return {name: round(factor * size) for name, size in symmetry_of(kind).groups.items()}


WIDENING = {
    "ot": cs.OTFusion(),
    "ot, units": cs.OTFusion(start="units"),
    "ot, random": cs.OTFusion(start="random"),
    "wb": cs.WassersteinFusion(),
    "wb, random": cs.WassersteinFusion(start="random"),
    "consensus": cs.Consensus(refit=False),
}
every_widening = pytest.mark.parametrize("method", WIDENING.values(), ids=list(WIDENING))


# -- One function, wider.


@every_network
@every_widening
def test_copies_into_twice_the_width_are_the_same_function(method, kind):
    module = made(kind, 0)
    copies = [shuffled(module, symmetry_of(kind), seed) for seed in range(2)]
    fusion = fused(copies, method, kind, target_widths=times(kind, 2))
    assert fusion.groups == times(kind, 2)
    assert deviation(fusion.model, module, inputs_of(kind)) < 1e-9


@pytest.mark.parametrize("factor", [1.5, 3])
@every_network
@pytest.mark.parametrize("kind_of_method", ["ot", "wb"])
def test_copies_into_any_greater_width_keep_every_unit(kind_of_method, kind, factor):
    """A unit may be halved, so wider targets start from the units and split them; 3 copies, 3 times the width."""
    module = made(kind, 0)
    copies = [shuffled(module, symmetry_of(kind), seed) for seed in range(3)]
    fusion = fused(copies, kind_of_method, kind, target_widths=times(kind, factor))
    if factor == 3:
        assert deviation(fusion.model, module, inputs_of(kind)) < 1e-9
    assert fusion.groups == times(kind, factor)
    assert np.isfinite(outputs(fusion.model, inputs_of(kind))).all()


@pytest.mark.parametrize("method", ["ot", "wb"])
@pytest.mark.parametrize("kind", ["mlp", "tanh", "lenet"])
def test_averaging_what_units_send_as_the_paper_prints_it_is_another_function(method, kind):
    module = made(kind, 0)
    fusion = fused([module] * 2, method, kind, target_widths=times(kind, 2), paper_scaling=True)
    assert deviation(fusion.model, module, inputs_of(kind)) > 0.05
    scales = {one.scale for moves in fusion.transports for one in moves.values() if isinstance(one, Spread)}
    assert scales == {2.0}


def test_relu_networks_without_biases_hide_the_papers_scaling_up_to_a_factor():
    rng = np.random.default_rng(0)
    module = dense_net(random_layers((4, 5, 6, 3), rng, bias=False))
    inputs = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    symmetry = cs.symmetry(module, inputs)
    widths = {name: 2 * size for name, size in symmetry.groups.items()}
    for method in ("ot", "wb"):
        fusion = cs.fuse([module] * 2, method=method, symmetry=symmetry, target_widths=widths, paper_scaling=True)
        np.testing.assert_allclose(outputs(fusion.model, inputs), 4 * outputs(module, inputs), rtol=1e-9)


@pytest.mark.parametrize("method", ["ot", "wb"])
def test_the_paper_scaling_changes_nothing_where_widths_are_equal(method):
    models = [made("lenet", seed) for seed in range(2)]
    plain, printed = (fused(models, method, "lenet", paper_scaling=one) for one in (False, True))
    assert deviation(plain.model, printed.model, inputs_of("lenet")) < ROUNDING


# -- Room for all units: the ensemble.


@pytest.mark.parametrize("number", [2, 3])
@every_network
def test_where_the_widths_add_up_logits_are_the_mean_of_the_models(kind, number):
    models = [made(kind, seed) for seed in range(number)]
    fusion = fused(models, cs.Consensus(refit=False), kind, target_widths=times(kind, number))
    expected = sum(outputs(one, inputs_of(kind)) for one in models) / number
    np.testing.assert_allclose(outputs(fusion.model, inputs_of(kind)), expected, rtol=0, atol=1e-5)
    assert all(quality.shared == 0 for quality in fusion.quality.values())


@pytest.mark.parametrize("kind", ["mlp", "lenet"])
def test_where_the_widths_add_up_logits_are_the_mean_with_layers_fitted_anew(kind):
    models = [made(kind, seed) for seed in range(2)]
    fusion = fused(models, None, kind, target_widths=times(kind, 2))
    expected = sum(outputs(one, inputs_of(kind)) for one in models) / 2
    np.testing.assert_allclose(outputs(fusion.model, inputs_of(kind)), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("balance", [True, False])
@pytest.mark.parametrize("kind", ["mlp", "lenet", "residual"])
def test_where_the_widths_add_up_logits_are_the_weighted_mean(kind, balance):
    models, weights = [made(kind, seed) for seed in range(3)], np.array([0.5, 0.3, 0.2])
    method = cs.Consensus(refit=False, balance=balance)
    fusion = fused(models, method, kind, target_widths=times(kind, 3), weights=weights)
    expected = sum(weight * outputs(one, inputs_of(kind)) for weight, one in zip(weights, models, strict=True))
    np.testing.assert_allclose(outputs(fusion.model, inputs_of(kind)), expected, rtol=0, atol=1e-5)


def test_where_the_widths_add_up_models_may_be_of_any_width():
    widths = [(5, 4), (3, 6), (2, 2)]
    models = [made("mlp", seed, *one) for seed, one in enumerate(widths)]
    names = list(symmetry_of("mlp").groups)
    target = dict(zip(names, np.sum(widths, axis=0).tolist(), strict=True))
    for options in ({"target_widths": target}, {"target": made("mlp", 9, *target.values())}):
        fusion = fused(models, cs.Consensus(refit=False), "mlp", **options)
        expected = sum(outputs(one, inputs_of("mlp")) for one in models) / 3
        np.testing.assert_allclose(outputs(fusion.model, inputs_of("mlp")), expected, rtol=0, atol=1e-5)


def test_more_room_than_all_units_need_stays_empty():
    models = [made("mlp", seed) for seed in range(2)]
    fusion = fused(models, cs.Consensus(refit=False), "mlp", target_widths=times("mlp", 3))
    expected = sum(outputs(one, inputs_of("mlp")) for one in models) / 2
    np.testing.assert_allclose(outputs(fusion.model, inputs_of("mlp")), expected, rtol=0, atol=1e-5)


def test_units_side_by_side_are_the_network_of_blocks():
    """The fused arrays are, up to numbering, all hidden units stacked, with zeros between models."""
    rng = np.random.default_rng(0)
    models = [random_layers((4, 5, 6, 3), rng) for _ in range(2)]
    blocks = dense_net(concatenated(models, [0.5, 0.5]))
    modules = [dense_net(one) for one in models]
    inputs = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    symmetry = cs.symmetry(modules[0], inputs)
    method = cs.Consensus(refit=False, balance=False)
    fusion = cs.fuse(modules, method=method, symmetry=symmetry, target_widths={"0": 10, "2": 12})
    for key, value in blocks.state_dict().items():
        found = fusion.network.arrays[key].numpy()
        np.testing.assert_allclose(np.sort(found.ravel()), np.sort(value.numpy().ravel()), atol=ROUNDING)


@pytest.mark.parametrize("name", ["resnet18", "depthwise", "densenet"])
def test_copies_of_networks_with_normalisation_come_back_wider(name):
    module, inputs, symmetry = proved(name)
    copies = [shuffled(module, symmetry, seed) for seed in range(2)]
    widths = {one.name: 2 * one.size for one in symmetry.all_groups if one.resizable}
    assert widths
    for method in (cs.Consensus(refit=False), "ot", "wb"):
        fusion = cs.fuse(copies, method=method, symmetry=symmetry, example=inputs, target_widths=widths)
        assert deviation(fusion.model, module, inputs) < 100 * SINGLE_PRECISION


# -- Narrower, and mixed.


@every_network
@pytest.mark.parametrize("method", ["ot", "wb"])
def test_the_fused_network_may_be_narrower(method, kind):
    models = [made(kind, seed) for seed in range(2)]
    widths = {name: size - 1 for name, size in symmetry_of(kind).groups.items()}
    fusion = fused(models, method, kind, target_widths=widths)
    assert fusion.groups == widths
    assert np.isfinite(outputs(fusion.model, inputs_of(kind))).all()
    for moves in fusion.transports:
        for name, one in moves.items():
            old = symmetry_of(kind).groups[name]
            assert one.coupling.shape == (widths[name], old)
            np.testing.assert_allclose(one.coupling.sum(1), 1 / widths[name], atol=1e-9)
            np.testing.assert_allclose(one.coupling.sum(0), 1 / old, atol=1e-9)
            np.testing.assert_allclose(one.receiving.sum(1), 1.0, atol=1e-9)
            np.testing.assert_allclose(one.sending.sum(0), 1.0, atol=1e-9)


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
    [cs.OTFusion(), cs.WassersteinFusion(), cs.Consensus(refit=False), cs.FedMA(shrink=False)],
    ids=["ot", "wb", "consensus", "fedma"],
)
def test_models_of_different_widths_are_fused(method, kind):
    models = [made(kind, seed, *widths) for seed, widths in enumerate(MIXED[kind])]
    widest = np.max(MIXED[kind], axis=0)
    fusion = fused(models, method, kind)
    reference = fused(models, method, kind, reference=0)
    if isinstance(method, cs.Consensus | cs.FedMA):
        assert sorted(fusion.groups.values()) == sorted(
            max(one.network.units[name] for one in fusion.inputs) for name in fusion.groups
        )
    else:
        assert reference.groups == dict(reference.inputs[0].network.units)
    for one in (fusion, reference):
        assert np.isfinite(outputs(one.model, inputs_of(kind))).all()
    other = fused(models[::-1], method, kind)
    assert deviation(other.model, fusion.model, inputs_of(kind)) == 0
    assert widest.min() > 0


@pytest.mark.parametrize("method", [cs.Consensus(refit=False), cs.FedMA(shrink=False)], ids=["consensus", "fedma"])
def test_a_narrower_model_without_weight_leaves_the_other_as_it_was(method):
    """The units that only the wide model has keep its weights."""
    wide, narrow = made("mlp", 0, 6, 5), made("mlp", 1, 4, 3)
    fusion = fused([wide, narrow], method, "mlp", weights=[1.0, 1e-12])
    assert deviation(fusion.model, wide, inputs_of("mlp")) < 1e-6


def test_units_of_one_model_alone_keep_its_incoming_weights_and_send_its_share():
    wide, narrow = made("mlp", 0, 6, 5), made("mlp", 1, 4, 3)
    method = cs.Consensus(refit=False, balance=False)
    fusion = fused([wide, narrow], method, "mlp", reference=0, weights=[0.7, 0.3])
    (first, other), arrays = fusion.matching.values(), fusion.network.arrays
    alone = np.setdiff1d(np.arange(6), first.of_site(1))
    place = first.of_site(0)
    own = [int(np.flatnonzero(place == unit)[0]) for unit in alone]
    np.testing.assert_allclose(arrays["0.weight"].numpy()[alone], wide[0].weight.detach().numpy()[own], rtol=1e-12)
    np.testing.assert_allclose(arrays["0.bias"].numpy()[alone], wide[0].bias.detach().numpy()[own], rtol=1e-12)
    rows = np.flatnonzero(np.isin(other.of_site(0), other.of_site(1)))
    shared = other.of_site(0)[rows]
    np.testing.assert_allclose(
        arrays["2.weight"].numpy()[np.ix_(shared, alone)],
        0.7 * wide[2].weight.detach().numpy()[np.ix_(rows, own)], rtol=1e-12,
    )  # fmt: skip


@pytest.mark.parametrize("method", ["ot", "wb", "consensus", "fedma"])
def test_modules_of_different_widths_need_nothing_but_an_example(method):
    models = [made("mlp", 0, 5, 4), made("mlp", 1, 6, 3)]
    options = {"refit": False} if method == "consensus" else {}
    fusion = cs.fuse(models, method=method, example=inputs_of("mlp"), **options)
    assert outputs(fusion.model, inputs_of("mlp")).shape == (36,)


# -- Growing, by FedMA.


def test_without_growth_the_fused_network_is_as_wide_as_the_widest_model():
    models = [made("mlp", seed, *widths) for seed, widths in enumerate([(5, 4), (3, 6), (4, 4)])]
    for gamma in (1e-3, 1.0, 1e3):
        assert list(fused(models, cs.FedMA(gamma=gamma), "mlp").groups.values()) == [5, 6]


def test_with_growth_the_width_lies_between_the_widest_model_and_all_units_together():
    models = [made("mlp", seed, *widths) for seed, widths in enumerate([(5, 4), (3, 6), (4, 4)])]
    found = []
    for gamma, sigma in ((1e-9, 1.0), (1.0, 0.5), (7.0, 0.3), (1e9, 0.1)):
        groups = fused(models, cs.FedMA(gamma=gamma, sigma=sigma, growth=True), "mlp").groups
        found.append(list(groups.values()))
        assert all(low <= one <= high for low, one, high in zip((5, 6), found[-1], (12, 14), strict=True))
    assert found[0] == [5, 6]
    assert found[-1] == [12, 14]


def test_growth_stops_at_the_target_widths():
    models = [made("mlp", seed) for seed in range(3)]
    names = list(symmetry_of("mlp").groups)
    method = cs.FedMA(gamma=1e9, sigma=0.1, growth=True)
    fusion = fused(models, method, "mlp", target_widths=dict(zip(names, (7, 9), strict=True)))
    assert list(fusion.groups.values()) == [7, 9]


def test_with_growth_far_beyond_copies_are_found_to_be_copies():
    module = made("mlp", 0)
    copies = [shuffled(module, symmetry_of("mlp"), seed) for seed in range(3)]
    fusion = fused(copies, cs.FedMA(gamma=1.0, sigma=0.01, sigma0=1.0, growth=True, shrink=False), "mlp")
    assert fusion.groups == dict(symmetry_of("mlp").groups)
    assert deviation(fusion.model, module, inputs_of("mlp")) < 1e-9


# -- What cannot be.


@pytest.mark.parametrize("name", ["layer norm", "gpt", "resnext", "multi-head attention"])
@pytest.mark.parametrize("method", ["ot", "wb", "consensus", "fedma"])
def test_groups_that_cannot_be_resized_are_named(method, name):
    _, inputs, symmetry = proved(name)
    models = [ZOO[name].module(seed) for seed in range(2)]
    for group in ZOO[name].rigid:
        widths = {group: 2 * symmetry.groups[group]}
        with pytest.raises(cs.OptionError, match=group):
            cs.fuse(models, method=method, symmetry=symmetry, example=inputs, target_widths=widths)


@pytest.mark.parametrize("method", ["rebasin", "average"])
def test_methods_for_one_width_say_so(method):
    models = [made("mlp", seed) for seed in range(2)]
    for given, options in ((models, {"target_widths": {"0": 9}}), ([models[0], made("mlp", 1, 6, 4)], {})):
        with pytest.raises(cs.ConsilienceError, match=f"{method}.*(width|units)|(width|units).*{method}"):
            fused(given, method, "mlp", **options)


@pytest.mark.parametrize("method", ["consensus", "fedma"])
def test_a_fused_network_narrower_than_a_model_is_refused_where_units_are_kept(method):
    models = [made("mlp", seed) for seed in range(2)]
    with pytest.raises(cs.ConsilienceError, match="group 0"):
        fused(models, method, "mlp", target_widths={"0": 4})


@pytest.mark.parametrize("width", [0, -1, 2.5, "7", None, float("nan"), True])
@pytest.mark.parametrize("method", ["ot", "consensus"])
def test_widths_that_are_no_number_of_units_are_refused(method, width):
    models = [made("mlp", seed) for seed in range(2)]
    with pytest.raises(cs.OptionError, match="0"):
        fused(models, method, "mlp", target_widths={"0": width})


def test_groups_that_do_not_exist_are_named_with_those_that_do():
    models = [made("mlp", seed) for seed in range(2)]
    with pytest.raises(cs.OptionError, match=r"hidden.*0.*2"):
        fused(models, "wb", "mlp", target_widths={"hidden": 9})


@pytest.mark.parametrize("reference", [-1, 2, 1.5, "a", True])
def test_references_that_do_not_exist_are_refused(reference):
    with pytest.raises(cs.OptionError, match="reference"):
        fused([made("mlp", seed) for seed in range(2)], "ot", "mlp", reference=reference)
