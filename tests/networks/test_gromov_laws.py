"""What holds when recurrent networks are fused by Gromov-Wasserstein barycenters, for every cell."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

import consilience as cs
from consilience.networks.symmetry.transport import Injection
from tests.copies import COPIES
from tests.networks.gromov_nets import (
    ARCHITECTURES,
    EXACT,
    GATES,
    MIRROR,
    TURNING,
    difference,
    every_architecture,
    every_cell,
    every_mode,
    fused,
    may_turn,
    moved,
    net,
    plan_of,
    renumbered,
    symmetry_of,
)
from tests.networks.methods_zoo import MARGINALS
from tests.networks.references import four_way_costs
from tests.tolerances import DESCENT, DIFFERENCES, ROUNDING, SINGLE_PRECISION

pytestmark = pytest.mark.covering(2)

FEW = ["rnn", "lstm", "gru, stacked", "lstm, both ways"]
SIGNED = ["rnn", "lstm", "gru"]


def assert_same_transports(one, other):
    for first, second in zip(one.transports, other.transports, strict=True):
        assert list(first) == list(second)
        for group in first:
            for own, another in zip(plan_of(first[group]), plan_of(second[group]), strict=True):
                np.testing.assert_allclose(own, another, rtol=0, atol=ROUNDING, err_msg=group)


def never_rises(history):
    return bool(np.all(np.diff(history) <= DESCENT * max(1.0, abs(history[0]))))


# -- Copies.


@COPIES
@every_architecture
@pytest.mark.parametrize("turned", [False, True], ids=["renumbered", "turned"])
def test_renumbered_and_turned_copies_fuse_into_the_same_function(name, turned):
    module = net(name)
    fusion = fused([renumbered(module, name, seed, turned) for seed in range(3)], name, reference=0)
    assert difference(fusion.model, module, name) < EXACT
    assert abs(fusion.objective) < EXACT
    assert all(difference(model, module, name) < EXACT for model in fusion.aligned_models)
    assert all(isinstance(transport, Injection) for moves in fusion.transports for transport in moves.values())


@COPIES
@every_cell
@pytest.mark.parametrize("number", [2, 4])
def test_any_number_of_copies_fuse_into_the_same_function(kind, number):
    module = net(kind, hidden=8)
    fusion = fused([renumbered(module, kind, 10 + seed, True) for seed in range(number)], kind)
    assert difference(fusion.model, module, kind) < EXACT


@pytest.mark.parametrize("kind", SIGNED)
def test_signs_are_found_as_they_were_drawn(kind):
    symmetry, module = symmetry_of(kind), net(kind)
    orders, signs = [3, 1, 4, 0, 2], np.array([1.0, -1.0, -1.0, 1.0, -1.0])
    other = moved(module, symmetry, {"rnn.l0": orders}, {"rnn.l0": signs})
    assert difference(other, module, kind) < ROUNDING
    found = fused([module, other], kind, reference=0).transports[1]["rnn.l0"]
    assert found.slots.tolist() == orders
    assert found.signs.tolist() == signs.tolist()
    plain = fused([module, other], kind, reference=0, signs=False)
    assert plain.transports[1]["rnn.l0"].signs is None
    assert difference(plain.model, module, kind) > 0.01


def test_units_of_relu_cells_never_turn():
    assert may_turn(symmetry_of("relu rnn")) == []
    for moves in fused([net("relu rnn", seed) for seed in range(2)], "relu rnn", signs=True).transports:
        assert moves["rnn.l0"].signs is None


@pytest.mark.parametrize("kind", SIGNED)
def test_only_the_proposing_gate_turns_with_its_unit(kind):
    """Turning the rows of any other gate too is another function; by hand, without the symmetry."""
    module = net(kind)
    for gate in range(GATES[kind]):
        turned = net(kind)
        arrays = turned.state_dict()
        with torch.no_grad():
            for name in ("rnn.weight_ih_l0", "rnn.weight_hh_l0", "rnn.bias_ih_l0", "rnn.bias_hh_l0"):
                arrays[name][5 * gate + 2] *= -1
            for name in ("rnn.weight_hh_l0", "out.weight"):
                arrays[name][:, 2] *= -1
        same = difference(turned, module, kind) < ROUNDING
        assert same == (gate in TURNING[kind])
        if same:
            assert difference(fused([module, turned], kind).model, module, kind) < EXACT


@COPIES
@every_mode
@pytest.mark.parametrize("name", FEW)
def test_renumbered_copies_fuse_into_the_same_function_in_every_mode(name, mode):
    module = net(name)
    fusion = fused([renumbered(module, name, seed) for seed in range(2)], name, mode=mode)
    assert difference(fusion.model, module, name) < (EXACT if mode == "exact" else SINGLE_PRECISION)


@COPIES
@pytest.mark.parametrize("start", ["input", "matching"])
@pytest.mark.parametrize("name", FEW)
def test_renumbered_copies_are_found_from_one_start(name, start):
    module = net(name)
    fusion = fused([renumbered(module, name, seed) for seed in range(3)], name, starts=(start,), signs=False)
    assert difference(fusion.model, module, name) < EXACT


@COPIES
@pytest.mark.parametrize("kind", SIGNED)
def test_renumbered_and_turned_units_are_found_under_noise(kind):
    module = net(kind, hidden=8)
    copies = []
    for seed in range(3):
        copy = renumbered(module, kind, seed, True)
        source = torch.Generator().manual_seed(seed)
        for array in copy.parameters():
            array.data += 0.02 * torch.randn(array.shape, dtype=torch.float64, generator=source)
        copies.append(copy)
    fusion = fused(copies, kind, reference=0)
    exact = fused([renumbered(module, kind, seed, True) for seed in range(3)], kind, reference=0)
    assert_same_transports(fusion, exact)


# -- The objective.


def by_gate(module, suffix):
    """Return arrays of a recurrent layer by gate: W (G, k, F), b (G, k) twice or none, H (G, k, k)."""
    rnn = module.rnn
    found = {}
    for name, values in rnn.named_parameters():
        if name.endswith(suffix):
            array = values.detach().numpy()
            found[name[: -len(suffix)]] = array.reshape(-1, rnn.hidden_size, *array.shape[1:])
    return found


def total_distance(fused_module, moved_modules, shares):
    """Return sum_i a_i times the squared distance of all arrays."""
    total = 0.0
    for module, share in zip(moved_modules, shares, strict=True):
        for one, other in zip(fused_module.parameters(), module.parameters(), strict=True):
            total += share * float(((one - other) ** 2).detach().sum())
    return total


@pytest.mark.parametrize("signs", [None, False])
@pytest.mark.parametrize("name", ["rnn", "relu rnn", "lstm", "gru", "lstm, no bias"])
def test_between_equal_widths_the_objective_is_the_squared_distance_of_all_weights_by_unit(name, signs):
    """With alpha None all weights count alike: B is the mean over units of what the models differ by, all told."""
    models = [net(name, seed) for seed in range(3)]
    shares = [0.5, 0.3, 0.2]
    fusion = fused(models, name, weights=shares, signs=signs)
    distance = total_distance(fusion.model, fusion.aligned_models, shares)
    decoders = sum(
        share * float(((fusion.model.out.bias - model.out.bias) ** 2).detach().sum())
        for model, share in zip(models, shares, strict=True)
    )
    assert fusion.objective == pytest.approx((distance - decoders) / 5, rel=EXACT)


def objective_of(fusion, models, kind, shares):
    """Return B of the reported couplings, signs included, by the tensor of all four indices.

    Equation (10) with costs that sum over features, as the published code has them, and its alpha of the details.
    Weights among units are compared as densities, so that layers of different widths can be the same function.
    """
    alpha = fusion.details["groups"]["rnn.l0"]["alpha_as_published_code"]
    target = by_gate(fusion.model, "_l0")
    total = 0.0
    for module, share, moves in zip(models, shares, fusion.transports, strict=True):
        own, (mass, signs) = by_gate(module, "_l0"), plan_of(moves["rnn.l0"])
        width, count = mass.shape
        for gate in range(GATES[kind]):
            rows = signs if gate in TURNING.get(kind, ()) else np.ones_like(signs)
            for name in ("weight_ih", "bias_ih", "bias_hh"):
                new, old = target[name][gate].reshape(width, -1), own[name][gate].reshape(count, -1)
                for j, g in np.ndindex(width, count):
                    total += share * mass[j, g] * ((new[j] - rows[j, g] * old[g]) ** 2).sum()
            new, old = target["weight_hh"][gate], own["weight_hh"][gate] * count / width
            turned = rows[:, None, :, None] * signs[None, :, None, :] * old[None, None]
            squares = (new[:, :, None, None] - turned) ** 2  # j, q, g, s
            total += share * alpha * np.einsum("jqgs,jg,qs->", squares, mass, mass)
    return total


@pytest.mark.parametrize("alpha", [0.5, 3.0])
@pytest.mark.parametrize("signs", [None, False])
@every_mode
@pytest.mark.parametrize("kind", SIGNED)
def test_the_objective_is_b_of_the_reported_couplings_by_the_tensor(kind, mode, signs, alpha):
    models, shares = [net(kind, seed) for seed in range(2)], [0.6, 0.4]
    fusion = fused(models, kind, weights=shares, mode=mode, alpha=alpha, sent=False, signs=signs)
    assert fusion.details["groups"]["rnn.l0"]["alpha"] == alpha
    assert fusion.objective == pytest.approx(objective_of(fusion, models, kind, shares), rel=MARGINALS)


@pytest.mark.parametrize("seed", [0, 16, 29])
@pytest.mark.parametrize("kind", SIGNED)
def test_into_another_width_the_objective_is_b_of_the_reported_couplings_by_the_tensor(kind, seed):
    models = [net(kind, 10 * seed + number, hidden=width) for number, width in enumerate((4, 6))]
    fusion = fused(models, kind, sent=False, target=net(kind, hidden=5))
    assert fusion.objective == pytest.approx(objective_of(fusion, models, kind, [0.5, 0.5]), rel=MARGINALS)


@pytest.mark.parametrize(
    ("kind", "seed", "widths", "alpha"),
    [("rnn", 31, (3, 5, 4), 10.0), ("rnn", 4, (4, 3, 6), 3.0), ("gru", 13, (4, 6, 5), None)],
)
def test_what_goes_from_a_unit_to_another_with_both_signs_counts_with_both(kind, seed, widths, alpha):
    """Steps that stop inside may couple two units with both signs; what moves is what B was counted for."""
    models = [net(kind, 10 * seed + number, hidden=width) for number, width in enumerate(widths[:2])]
    fusion = fused(models, kind, sent=False, alpha=alpha, target=net(kind, hidden=widths[2]))
    assert fusion.objective == pytest.approx(objective_of(fusion, models, kind, [0.5, 0.5]), rel=MARGINALS)


@pytest.mark.parametrize("name", ["rnn, no bias", "lstm, no bias", "rnn", "lstm"])
def test_alpha_as_printed_is_that_of_the_published_code_over_the_number_of_inputs(name):
    """In equation (10) inputs have mass 1 / k, and the bias as one more input has the same; in the code all have 1."""
    details = fused([net(name, seed) for seed in range(2)], name, sent=False).details["groups"]["rnn.l0"]
    assert details["alpha_as_published_code"] == pytest.approx(5, rel=ROUNDING)  # all weights alike: times the width
    assert details["alpha_as_printed"] == pytest.approx(details["alpha_as_published_code"] / 3, rel=ROUNDING)


@pytest.mark.parametrize("name", ["rnn, no bias", "lstm"])
def test_alpha_is_one_where_both_terms_have_the_same_mean_over_all_pairs(name):
    models, shares = [net(name, seed) for seed in range(2)], [0.6, 0.4]
    options = {"sent": False, "signs": False, "reference": 0, "weights": shares}
    details = fused(models, name, alpha=1.0, **options).details["groups"]["rnn.l0"]
    first = by_gate(models[0], "_l0")
    received = among = 0.0
    for module, share in zip(models, shares, strict=True):
        own = by_gate(module, "_l0")
        for kind in set(own) - {"weight_hh"}:
            for new, old in zip(first[kind], own[kind], strict=True):
                received += share * ((new[:, None] - old[None]) ** 2).sum() / 25
        for new, old in zip(first["weight_hh"], own["weight_hh"], strict=True):
            among += share * ((new[:, :, None, None] - old[None, None]) ** 2).mean()
    assert details["alpha_as_published_code"] == pytest.approx(received / among, rel=EXACT)


@pytest.mark.parametrize("sent", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["exact", MIRROR])
@pytest.mark.parametrize("name", FEW)
def test_the_objective_never_rises(name, mode, sent):
    for alpha in (None, 10.0):
        models = [net(name, seed) for seed in range(3)]
        fusion = fused(models, name, mode=mode, sent=sent, alpha=alpha)
        assert never_rises(fusion.history)
        assert fusion.objective == pytest.approx(fusion.history[-1], rel=ROUNDING)


def test_the_objective_never_rises_by_mirror_descent():
    models = [net("rnn", seed, hidden=width) for seed, width in enumerate((3, 4))]
    fusion = fused(models, "rnn", mode="mirror", target=net("rnn", hidden=3), starts=("input",))
    assert never_rises(fusion.history)
    for moves in fusion.transports:
        mass, _ = plan_of(moves["rnn.l0"])
        np.testing.assert_allclose(mass.sum(axis=1), 1 / len(mass), rtol=0, atol=MARGINALS)
        np.testing.assert_allclose(mass.sum(axis=0), 1 / mass.shape[1], rtol=0, atol=MARGINALS)


@pytest.mark.parametrize("mode", ["exact", MIRROR])
@pytest.mark.parametrize("name", ["rnn", "gru"])
def test_the_objective_never_rises_into_another_width(name, mode):
    models = [net(name, seed, hidden=width) for seed, width in enumerate((6, 9))]
    fusion = fused(models, name, mode=mode, target=net(name, hidden=8))
    assert never_rises(fusion.history)


@pytest.mark.parametrize("kind", ["rnn", "relu rnn", "lstm"])
def test_no_fusion_of_two_is_below_the_best_of_all_signed_permutations(kind):
    size, gaps = 3, []
    turns = list(itertools.product([1.0, -1.0], repeat=size)) if kind != "relu rnn" else [(1.0,) * size]
    for seed in range(6):
        one, other = net(kind, 2 * seed, hidden=size), net(kind, 2 * seed + 1, hidden=size)
        found = fused([one, other], kind).objective
        best = np.inf
        for order, turn in itertools.product(itertools.permutations(range(size)), turns):
            signs = {"rnn.l0": np.array(turn)}
            there = moved(other, symmetry_of(kind), {"rnn.l0": order}, signs)
            distance = sum(
                float(((a - b) ** 2).detach().sum())
                for (key, a), b in zip(one.named_parameters(), there.parameters(), strict=True)
                if key != "out.bias"
            )
            best = min(best, 0.25 * distance / size)
        assert found >= best - DESCENT
        gaps.append(found / best - 1)
    assert np.median(gaps) < ROUNDING  # mostly it is that best one


# -- The layer of least B.


def value_of_layer(layer, models, shares, befores, plans):
    """Return B of the rows and the weights among units of one gate, as functions of weights times widths."""
    weight, bias, among = layer
    total = 0.0
    for (w, b, h), share, before, mass in zip(models, shares, befores, plans, strict=True):
        costs = four_way_costs((weight, bias), (w, b), before) + four_way_costs((among, None), (h, None), mass)
        total += share * (costs * mass).sum()
    return total


@pytest.mark.parametrize("sizes", [(5, 5), (6, 4)], ids=["equal", "unequal"])
@pytest.mark.parametrize("options", [
    {"mode": "exact"}, {"mode": "paper"}, {"mode": "paper", "epsilon": 0.3, "starts": ("uniform",)},
    pytest.param({"mode": "mirror"}, marks=pytest.mark.slow),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("name", ["gru, stacked", pytest.param("rnn, stacked", marks=pytest.mark.slow)])
def test_every_layer_is_the_one_of_least_objective_for_its_couplings(name, options, sizes):
    """Formulas (45) and (46): differences of B by the tensor vanish, and any change raises it."""
    models = [net(name, seed, hidden=size) for seed, size in enumerate(sizes)]
    shares = [0.7, 0.3]
    fusion = fused(models, name, weights=shares, signs=False, target=net(name, hidden=5), reference=0, **options)
    rng = np.random.default_rng(0)
    before = "enc"
    for layer in ("l0", "l1"):
        found = by_gate(fusion.model, f"_{layer}")
        own = [by_gate(model, f"_{layer}") for model in models]
        befores, plans = (
            [plan_of(moves[group])[0] for moves in fusion.transports] for group in (before, f"rnn.{layer}")
        )
        before = f"rnn.{layer}"
        for gate in range(GATES[ARCHITECTURES[name]["kind"]]):
            here = [found[kind][gate].copy() for kind in ("weight_ih", "bias_ih", "weight_hh")]
            theirs = [[one[kind][gate] for kind in ("weight_ih", "bias_ih", "weight_hh")] for one in own]
            least = value_of_layer(here, theirs, shares, befores, plans)
            step = 1e-3
            for part in range(3):
                for _ in range(4):
                    change = rng.normal(size=here[part].shape)
                    values = []
                    for sign in (1, -1):
                        there = list(here)
                        there[part] = here[part] + sign * step * change
                        values.append(value_of_layer(there, theirs, shares, befores, plans))
                    assert min(values) > least
                    assert abs(values[0] - values[1]) / (2 * step) < DIFFERENCES * max(1.0, least)


# -- Without hidden-to-hidden weights, and gates.


@pytest.mark.parametrize("name", ["rnn", "lstm", "gru, stacked", "lstm, both ways", "rnn, learned start"])
def test_without_hidden_weights_couplings_are_those_of_wasserstein_fusion(name):
    models = [net(name, seed) for seed in range(3)]
    options = {"weights": [0.5, 0.3, 0.2], "reference": 0}
    one = fused(models, name, alpha=0, sent=False, signs=False, **options)
    other = fused(models, name, method="wb", **options)
    assert_same_transports(one, other)


def with_gates(kind, weights):
    """Return a module whose gates have these weights: pairs of arrays, and a decoder that all share."""
    module = net(kind)
    with torch.no_grad():
        for key, value in weights.items():
            module.state_dict()[key].copy_(torch.tensor(value))
    return module


ROWS = ("rnn.weight_ih_l0", "rnn.weight_hh_l0", "rnn.bias_ih_l0", "rnn.bias_hh_l0")


@every_mode
@pytest.mark.parametrize("alpha", [None, 2.0])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_gates_that_are_all_alike_give_the_coupling_of_one(kind, alpha, mode):
    plain = [net("rnn", seed) for seed in range(2)]
    stacked = []
    for module in plain:
        arrays = {key: value.numpy() for key, value in module.state_dict().items()}
        stacked.append(with_gates(kind, {
            key: np.concatenate([value] * GATES[kind]) if key in ROWS else value for key, value in arrays.items()
        }))  # fmt: skip
    options = {"sent": False, "signs": False, "alpha": alpha, "mode": mode, "reference": 0}
    one, other = fused(plain, "rnn", **options), fused(stacked, kind, **options)
    if mode == "exact":
        assert_same_transports(one, other)
    for first, second in zip(one.transports, other.transports, strict=True):
        np.testing.assert_allclose(plan_of(first["rnn.l0"])[0], plan_of(second["rnn.l0"])[0], rtol=0, atol=MARGINALS)
    assert other.objective == pytest.approx(GATES[kind] * one.objective, rel=MARGINALS)


@every_mode
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_the_order_of_gates_leaves_couplings_unchanged(kind, mode):
    models = [net(kind, seed) for seed in range(3)]
    order = np.roll(np.arange(GATES[kind]), 1)
    others = []
    for module in models:
        arrays = {key: value.numpy() for key, value in module.state_dict().items()}
        others.append(with_gates(kind, {
            key: value.reshape(GATES[kind], 5, -1)[order].reshape(value.shape) if key in ROWS else value
            for key, value in arrays.items()
        }))  # fmt: skip
    one, other = (fused(nets, kind, mode=mode, signs=False, reference=0) for nets in (models, others))
    for first, second in zip(one.transports, other.transports, strict=True):
        np.testing.assert_allclose(plan_of(first["rnn.l0"])[0], plan_of(second["rnn.l0"])[0], rtol=0, atol=MARGINALS)


# -- Numbering and order.


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if "stacked" in name else ()) for name in FEW]
)
def test_renumbering_any_model_but_the_reference_leaves_the_fused_function_unchanged(name):
    models = [net(name, seed) for seed in range(3)]
    expected = fused(models, name, reference=0)
    for changed in (1, 2):
        for turned in (False, True):
            others = [renumbered(model, name, 7, turned) if i == changed else model for i, model in enumerate(models)]
            fusion = fused(others, name, reference=0)
            assert fusion.objective == pytest.approx(expected.objective, rel=EXACT)
            assert difference(fusion.model, expected.model, name) < EXACT


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("start", ["input", "uniform"])
def test_renumbering_the_reference_leaves_the_fused_function_unchanged_from_any_start(name, start):
    models = [net(name, seed) for seed in range(2)]
    expected = fused(models, name, reference=0, starts=(start,))
    fusion = fused([renumbered(models[0], name, 3), models[1]], name, reference=0, starts=(start,))
    assert difference(fusion.model, expected.model, name) < EXACT


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("name", ["rnn", "lstm", pytest.param("gru, stacked", marks=pytest.mark.slow)])
def test_the_order_of_the_models_leaves_the_fused_function_unchanged(name, number):
    models = [net(name, seed) for seed in range(number)]
    expected = fused(models, name, reference=0)
    for order in [(1, 0), (0, 1)] if number == 2 else [(1, 0, 2), (0, 2, 1), (2, 0, 1)]:
        fusion = fused([models[i] for i in order], name, reference=order.index(0))
        assert difference(fusion.model, expected.model, name) < ROUNDING
        for place, i in enumerate(order):
            for group, one in fusion.transports[place].items():
                np.testing.assert_array_equal(one.labels, expected.transports[i][group].labels)


def test_networks_without_recurrent_layers_are_fused_by_wasserstein_barycenters():
    def dense(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double().eval()

    with torch.random.fork_rng(devices=[]):
        models = [dense(seed) for seed in range(2)]
    example = torch.ones(2, 3, dtype=torch.float64)
    one = cs.fuse(models, method="gwb", sent=False, signs=False, example=example)
    other = cs.fuse(models, method="wb", example=example)
    assert_same_transports(one, other)
