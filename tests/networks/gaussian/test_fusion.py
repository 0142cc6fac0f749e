"""Laws of fusing Bayesian networks: order, copies, limits and refusals."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import consilience as cs
from consilience.errors import InputError, OptionError
from consilience.networks.gaussian.learners.mean_field import HorseshoeBNN
from tests.copies import COPIES
from tests.networks.gaussian.nets import (
    assert_layers,
    digits,
    example,
    layers_of,
    mean_logits,
    network,
    permuted,
    random_layers,
    shuffled,
    symmetry_of,
)
from tests.tolerances import DESCENT, ROUNDING

pytestmark = pytest.mark.covering(2)

METRICS = ("w2", "means", "kl", "kl_reverse", "hellinger")
WIDTHS = [pytest.param((3, 5, 2), id="one hidden layer"), pytest.param((3, 5, 4, 2), id="two hidden layers")]


def random_sites(widths, sites, seed=0):
    """Return networks with nothing in common."""
    return [random_layers(widths, np.random.default_rng((seed, site))) for site in range(sites)]


def copies(widths, sites, seed=0):
    """Return one posterior in several orders of units."""
    rng = np.random.default_rng(seed)
    layers = random_layers(widths, rng)
    return layers, [shuffled(layers, rng) for _ in range(sites)]


def fused(models, method="kl", **options):
    return cs.fuse([network(layers) for layers in models], method=method, symmetry=symmetry_of(models[0]), **options)


def answers(fusion, inputs):
    """Return the logits of the fused means."""
    with torch.no_grad():
        return fusion.model.mean_module()(inputs).numpy()


def in_order(layers, reference):
    """Return a posterior with units in the order in which the reference has them: sorted by its biases."""
    orders = []
    for layer, other in zip(layers[:-1], reference[:-1], strict=True):
        rank = np.argsort(np.argsort(other[2]))
        orders.append(np.argsort(layer[2])[rank])
    return permuted(layers, orders)


def same_up_to_order(found, expected, rtol=1e-9):
    """Assert that two posteriors are the same but for the order of units."""
    assert [layer[0].shape for layer in found] == [layer[0].shape for layer in expected]
    assert_layers(in_order(found, expected), expected, rtol=rtol, atol=1e-9)


# -- KL-fusion.


@COPIES
@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("outgoing", ["sum", "share"])
def test_fusing_copies_returns_the_posterior(widths, outgoing):
    layers, models = copies(widths, 4)
    fusion = fused(models, regularization=0.3, outgoing=outgoing)
    assert list(fusion.groups.values()) == list(widths[1:-1])
    same_up_to_order(layers_of(fusion.model), layers)
    for group in fusion.matching.values():
        assert np.all(group.members == 4)


@COPIES
def test_the_predictive_of_fused_copies_is_that_of_each():
    layers, models = copies((3, 5, 2), 3)
    fusion = fused(models, regularization=0.3)
    inputs = example(layers)
    # The same numbers for every weight, in the order of the fused units: the same samples of the same function.
    labels = fusion.matching["0"].of_site(0)
    member, order = network(models[0]), np.argsort(labels)
    for noise in member.noise(3, rng=1):
        moved = dict(noise)
        moved["0.weight"], moved["0.bias"] = noise["0.weight"][order], noise["0.bias"][order]
        moved["2.weight"] = noise["2.weight"][:, order]
        found = fusion.model.logits(inputs, fusion.model.state(moved))
        torch.testing.assert_close(found, member.logits(inputs, member.state(noise)))


def without_output_bias(layers):
    """Return the network with zero output biases."""
    *before, (mean, variance, bias, bias_variance) = layers
    return [*before, (mean, variance, np.zeros_like(bias), bias_variance)]


@pytest.mark.parametrize("widths", [*WIDTHS, pytest.param((3, 4, 3, 4, 2), id="three hidden layers")])
@pytest.mark.parametrize("weights", [None, (2.0, 1.0, 1.0)], ids=["equal", "weighted"])
def test_units_side_by_side_average_the_logits_where_they_share(widths, weights):
    models = random_sites(widths, 3)
    fusion = fused(models, regularization=0, outgoing="share", weights=weights)
    assert list(fusion.groups.values()) == [3 * units for units in widths[1:-1]]
    inputs = example(models[0])
    share = np.array((1.0, 1.0, 1.0) if weights is None else weights)
    share /= share.sum()
    each = [mean_logits(without_output_bias(layers), inputs) for layers in models]
    bias = np.asarray(fusion.model.means[f"{2 * (len(widths) - 2)}.bias"])
    np.testing.assert_allclose(answers(fusion, inputs), np.tensordot(share, each, axes=1) + bias, rtol=1e-9)
    precision = np.array([1 / layers[-1][3] for layers in models])
    natural = np.array([layers[-1][2] / layers[-1][3] for layers in models])
    np.testing.assert_allclose(bias, (share @ natural) / (share @ precision), rtol=ROUNDING)


def test_units_side_by_side_add_up_the_logits_as_the_paper_has_them():
    models = random_sites((3, 5, 2), 3)
    fusion = fused(models, regularization=0, outgoing="sum")
    inputs = example(models[0])
    expected = sum(mean_logits(without_output_bias(layers), inputs) for layers in models)
    np.testing.assert_allclose(answers(fusion, inputs), expected + np.asarray(fusion.model.means["2.bias"]), rtol=1e-9)


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("regularization", [0.05, 0.3, 3.0])
def test_the_order_of_units_inside_sites_does_not_matter(widths, regularization):
    models = random_sites(widths, 3)
    rng = np.random.default_rng(1)
    plain = fused(models, regularization=regularization)
    other = fused([shuffled(layers, rng) for layers in models], regularization=regularization)
    assert other.objective == pytest.approx(plain.objective, rel=DESCENT)
    same_up_to_order(layers_of(other.model), layers_of(plain.model))


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("regularization", [0.05, 0.3, 3.0])
def test_the_order_of_sites_does_not_matter(widths, regularization):
    models, weights = random_sites(widths, 3), np.array([3.0, 2.0, 1.0])
    inputs = example(models[0])
    plain = fused(models, regularization=regularization, weights=weights)
    for order in ([2, 0, 1], [1, 0, 2]):
        other = fused([models[site] for site in order], regularization=regularization, weights=weights[order])
        assert other.objective == pytest.approx(plain.objective, rel=DESCENT)
        np.testing.assert_allclose(answers(other, inputs), answers(plain, inputs), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("method", ["kl", "w2"])
def test_only_the_ratio_of_site_weights_counts(method):
    models = random_sites((3, 5, 2), 3)
    one, other = (fused(models, method, weights=weights) for weights in ((2, 1, 1), (6, 3, 3)))
    assert_layers(layers_of(one.model), layers_of(other.model))
    equal, none = fused(models, method, weights=(5, 5, 5)), fused(models, method)
    assert_layers(layers_of(equal.model), layers_of(none.model))


@COPIES
def test_a_site_of_overwhelming_weight_gives_its_shared_units():
    models = [copies((3, 4, 2), 1)[0], *random_sites((3, 4, 2), 1)]
    fusion = fused(models, regularization=50.0, weights=(1e9, 1))
    assert fusion.groups == {"0": 4}
    same_up_to_order(layers_of(fusion.model), models[0], rtol=1e-5)


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("regularization", [0.0, 0.3, 3.0])
def test_the_objective_never_rises(widths, regularization):
    models = random_sites(widths, 5)
    fusion = fused(models, regularization=regularization)
    assert np.all(np.diff(fusion.history) <= DESCENT * abs(fusion.history[0]) + DESCENT)
    assert fusion.history[-1] == pytest.approx(fusion.objective)


def test_the_price_decides_the_number_of_units():
    models = random_sites((3, 5, 2), 4)
    units = [fused(models, regularization=price).groups["0"] for price in (0, 0.1, 1.0, 1e4)]
    assert units[0] == 20
    assert units == sorted(units, reverse=True)
    assert units[-1] == 5


@pytest.mark.parametrize("most", [5, 7, {"0": 6}])
def test_the_bound_on_units_is_respected(most):
    fusion = fused(random_sites((3, 5, 2), 4), regularization=0.0, max_units=most)
    assert 5 <= fusion.groups["0"] <= (6 if isinstance(most, dict) else most)
    assert fusion.matching["0"].labels.min() >= 0
    for site in range(4):
        assert len(set(fusion.matching["0"].of_site(site))) == 5


@pytest.mark.parametrize("most", [4, {"0": 1}])
def test_a_bound_below_the_widest_site_is_refused(most):
    models = random_sites((3, 5, 2), 2)
    with pytest.raises((InputError, OptionError), match=r"\b5\b"):
        fused(models, max_units=most)
    bnns = [network(layers) for layers in models]
    assert cs.check(bnns, method="kl", example=example(models[0]), max_units=most)


@pytest.mark.parametrize("options", [{}, {"regularization": 0.7}, {"regularization": 0.0, "restarts": 2}])
def test_the_typed_method_is_the_named_one(options):
    models = random_sites((3, 5, 2), 3)
    named = fused(models, "kl", **options)
    typed = fused(models, cs.methods.KLNetworkFusion(**options))
    assert_layers(layers_of(named.model), layers_of(typed.model), rtol=0, atol=0)
    if "restarts" not in options and options:
        assert_layers(
            layers_of(named.model), layers_of(fused(models, cs.methods.KLFusion(**options)).model), rtol=0, atol=0
        )


def test_the_recommended_method_chooses_and_is_kl_fusion_where_nothing_tells():
    models = random_sites((3, 5, 2), 3)
    assert cs.fuse([network(layers) for layers in models], example=example(models[0])).provenance["method"] == "auto"
    by_default, kl = fused(models, None), fused(models, "kl")
    assert_layers(layers_of(by_default.model), layers_of(kl.model), rtol=0, atol=0)


@pytest.mark.parametrize("method", ["kl", "w2"])
def test_the_same_seed_gives_the_same_bytes(method):
    models = random_sites((3, 5, 4, 2), 3)
    one, other = (fused(models, method, rng=3, restarts=3) for _ in range(2))
    assert_layers(layers_of(one.model), layers_of(other.model), rtol=0, atol=0)


@pytest.mark.parametrize("method", ["kl", "w2"])
def test_the_networks_are_left_as_they_are(method):
    models = random_sites((3, 5, 2), 3)
    bnns = [network(layers) for layers in models]
    weights = [{name: value.clone() for name, value in bnn.module.state_dict().items()} for bnn in bnns]
    state = torch.random.get_rng_state()
    cs.fuse(bnns, method=method, example=example(models[0]))
    assert torch.equal(torch.random.get_rng_state(), state)
    for bnn, layers, before in zip(bnns, models, weights, strict=True):
        assert_layers(layers_of(bnn), layers, rtol=0, atol=0)
        assert all(torch.equal(value, before[name]) for name, value in bnn.module.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize("lone", [0, 4, 6, 9])
def test_a_class_that_one_of_three_sites_saw_survives(lone):
    images, labels = digits()
    train, held = slice(0, 1200), slice(1200, None)
    site = np.random.default_rng(0).integers(0, 3, 1200)
    site[labels[train] == lone] = 0
    sites = []
    for number in range(3):
        learner = HorseshoeBNN(
            hidden=(30,), epochs=60, batch_size=64, learning_rate=0.03, logit_adjustment=True, seed=number
        )
        own = site == number
        sites.append(learner.fit(images[train][own], labels[train][own], classes=10).posterior)
    fusion = cs.fuse(sites, method="kl", example=torch.zeros(2, 64))
    right = fusion.model.predict(images[held], samples=64).argmax(axis=1) == labels[held]
    # Guessing is right in one of ten.
    assert right[labels[held] == lone].mean() > 0.3
    assert right.mean() > 0.8


# -- Alignment.


@COPIES
@pytest.mark.parametrize("metric", METRICS)
def test_equal_posteriors_stay_in_their_order(metric):
    (layers,) = random_sites((3, 5, 4, 2), 1)
    fusion = fused([layers, layers], "w2", metric=metric)
    for group in fusion.matching.values():
        np.testing.assert_array_equal(group.of_site(0), group.of_site(1))
    assert fusion.details["distance_after"] == pytest.approx(0, abs=1e-9)
    assert_layers(layers_of(fusion.model), layers)


@COPIES
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("widths", WIDTHS)
def test_a_permuted_copy_comes_to_distance_zero(widths, metric):
    layers, (moved,) = copies(widths, 1)
    fusion = fused([layers, moved], "w2", metric=metric, reference=0)
    assert fusion.details["distance_after"] == pytest.approx(0, abs=1e-9)
    assert_layers(layers_of(fusion.model), layers)
    inputs = example(layers)
    for one in (0, 1):
        arrays = fusion.aligned[one].arrays
        np.testing.assert_allclose(np.asarray(arrays["0.weight"]), layers[0][0], rtol=ROUNDING)
        np.testing.assert_allclose(np.asarray(arrays["0.weight/deviation"]), np.sqrt(layers[0][1]), rtol=ROUNDING)
    np.testing.assert_allclose(answers(fusion, inputs), mean_logits(layers, inputs), rtol=1e-9)


def with_variances(layers, value):
    return [(m, np.full_like(v, value), b, np.full_like(u, value)) for m, v, b, u in layers]


@pytest.mark.parametrize("metric", METRICS)
def test_with_equal_deviations_posteriors_are_aligned_as_their_means_are(metric):
    models = [with_variances(layers, 0.3) for layers in random_sites((3, 6, 2), 2)]
    found = fused(models, "w2", metric=metric, reference=0).matching["0"]
    modules = [network(layers).mean_module() for layers in models]
    expected = cs.fuse(modules, method="rebasin", symmetry=symmetry_of(models[0]), reference=0).matching["0"]
    np.testing.assert_array_equal(found.labels, expected.labels)


@pytest.mark.parametrize("metric", ["w2", "kl", "kl_reverse", "hellinger"])
def test_with_equal_means_units_are_sorted_by_their_deviations(metric):
    rng = np.random.default_rng(0)
    models = []
    for _ in range(2):
        deviations = rng.uniform(0.2, 2.0, size=(6, 1))
        models.append([(np.full((6, 2), 0.4), np.repeat(deviations**2, 2, axis=1), np.zeros(6), np.ones(6)),
                       (np.full((2, 6), 0.7), np.ones((2, 6)), np.zeros(2), np.ones(2))])  # fmt: skip
    matching = fused(models, "w2", metric=metric, reference=0).matching["0"]
    ranks = [np.argsort(np.argsort(layers[0][1][:, 0])) for layers in models]
    at = [np.argsort(matching.of_site(site)) for site in range(2)]
    np.testing.assert_array_equal(ranks[0][at[0]], ranks[1][at[1]])


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("metric", METRICS)
def test_alignment_never_moves_apart(widths, metric):
    fusion = fused(random_sites(widths, 4), "w2", metric=metric)
    assert np.all(np.diff(fusion.history) <= DESCENT * abs(fusion.history[0]))
    assert fusion.history[-1] == pytest.approx(fusion.objective)
    if metric in ("w2", "means"):
        assert fusion.objective <= fusion.history[0]
    pair = fused(random_sites(widths, 2), "w2", metric=metric)
    assert pair.details["distance_after"] <= pair.details["distance_before"] * (1 + DESCENT)


@pytest.mark.parametrize("metric", ["kl", "kl_reverse", "hellinger"])
def test_the_objective_of_a_divergence_is_its_weighted_sum_before_and_after(metric):
    models, weights = random_sites((3, 5, 2), 3), (0.5, 0.2, 0.3)
    history = fused(models, "w2", metric=metric, reference=0, weights=weights).history
    pairs = [fused([models[0], models[i]], "w2", metric=metric, reference=0).details for i in (1, 2)]
    for found, when in zip(history, ("distance_before", "distance_after"), strict=True):
        assert found == pytest.approx(sum(w * pair[when] for w, pair in zip(weights[1:], pairs, strict=True)))


@pytest.mark.parametrize("metric", METRICS)
def test_an_alignment_has_converged_unless_its_passes_end_before(metric):
    """Divergences move one network after the other to the reference, for which a pass over its groups is enough."""
    models = random_sites((3, 5, 4, 2), 3)
    assert fused(models, "w2", metric=metric).status is cs.results.Status.CONVERGED
    is_joint = metric in ("w2", "means")
    one_pass = fused(models, "w2", metric=metric, max_iterations=1).status
    assert one_pass is (cs.results.Status.MAX_ITERATIONS if is_joint else cs.results.Status.CONVERGED)


@COPIES
def test_several_copies_align_with_one_another():
    layers, models = copies((3, 5, 4, 2), 4)
    fusion = fused(models, "w2", restarts=10)
    assert fusion.objective == pytest.approx(0, abs=1e-9)
    same_up_to_order(layers_of(fusion.model), layers)


@pytest.mark.parametrize("seed", range(5))
def test_distances_after_alignment_obey_the_triangle_inequality(seed):
    models = random_sites((2, 4, 2), 3, seed)

    def distance(one, other):
        return np.sqrt(fused([models[one], models[other]], "w2", reference=0).details["distance_after"])

    assert distance(0, 2) <= distance(0, 1) + distance(1, 2) + 1e-9


def test_no_weight_on_deviations_is_alignment_of_means():
    models = random_sites((3, 6, 2), 2)
    one, other = fused(models, "w2", rho=0.0, reference=0), fused(models, "w2", metric="means", reference=0)
    np.testing.assert_array_equal(one.matching["0"].labels, other.matching["0"].labels)
    heavy = fused(models, "w2", rho=1e8, reference=0).matching["0"]
    means_apart = [[(np.zeros_like(m), v, np.zeros_like(b), u) for m, v, b, u in layers] for layers in models]
    np.testing.assert_array_equal(heavy.labels, fused(means_apart, "w2", reference=0).matching["0"].labels)


@pytest.mark.parametrize("reference", [0, 1, 2])
def test_the_reference_keeps_its_order(reference):
    for method in ("w2", "kl"):
        fusion = fused(
            random_sites((3, 5, 2), 3), method, reference=reference, **({"rho": 1.0} if method == "w2" else {})
        )
        np.testing.assert_array_equal(fusion.matching["0"].of_site(reference), np.arange(5))


# -- Refusals: a line each, and never an error of another kind.


def bad_values(change):
    """Return what is wrong with a network whose means and variances were changed."""
    layers = random_layers((3, 4, 2), np.random.default_rng(0))
    good = network(layers)
    means, variances = dict(good.means), dict(good.variances)
    change(means, variances)
    with pytest.raises(InputError) as caught:
        cs.BayesianNetwork(good.module, means, variances)
    return str(caught.value)


def put(which, name, value):
    def change(means, variances):
        part = means if which == "means" else variances
        part[name] = part[name].clone()
        part[name].view(-1)[1] = value

    return change


@pytest.mark.parametrize("value", [-0.5, 0.0, float("nan"), float("inf")])
def test_variances_that_are_not_positive_are_refused_by_name(value):
    assert "0.weight" in bad_values(put("variances", "0.weight", value))


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_means_that_are_not_finite_are_refused_by_name(value):
    assert "2.bias" in bad_values(put("means", "2.bias", value))


@pytest.mark.parametrize("which", ["means", "variances"])
def test_parameters_that_lack_a_value_are_refused_by_name(which):
    assert "2.weight" in bad_values(lambda m, v: (m if which == "means" else v).pop("2.weight"))


def test_every_problem_of_a_network_is_named():
    def change(means, variances):
        put("variances", "0.weight", -1.0)(means, variances)
        put("variances", "2.bias", 0.0)(means, variances)
        variances.pop("0.bias")

    message = bad_values(change)
    assert all(name in message for name in ("0.weight", "2.bias", "0.bias"))


@pytest.mark.parametrize("which", ["means", "variances"])
def test_values_of_another_shape_or_name_are_refused(which):
    def reshape(means, variances):
        part = means if which == "means" else variances
        part["0.weight"] = part["0.weight"].T

    assert "0.weight" in bad_values(reshape)
    assert "extra" in bad_values(lambda m, v: (m if which == "means" else v).update(extra=torch.ones(2)))


def good(seed=0, widths=(3, 4, 2), **fields):
    return network(random_layers(widths, np.random.default_rng(seed)), **fields)


def plain_module():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


REFUSED = {
    "one model only": (lambda: [good()], {}),
    "no models": (list, {}),
    "a module among them": (lambda: [good(), plain_module()], {}),
    "a module first": (lambda: [plain_module(), good()], {}),
    "something else among them": (lambda: [good(), "no such file.safetensors"], {}),
    "a number among them": (lambda: [good(), 3], {}),
    "other inputs": (lambda: [good(), good(1, (5, 4, 2))], {}),
    "other outputs": (lambda: [good(), good(1, (3, 4, 3))], {}),
    "another depth": (lambda: [good(), good(1, (3, 4, 4, 2))], {}),
    "classes in another order": (lambda: [good(classes=("a", "b")), good(1, classes=("b", "a"))], {}),
    "other classes": (lambda: [good(classes=("a", "b")), good(1, classes=("a", "c"))], {}),
    "a method for modules": (lambda: [good(), good(1)], {"method": "fedma"}),
    "a method for posteriors": (lambda: [good(), good(1)], {"method": "spahm"}),
    "a typed method for modules": (lambda: [good(), good(1)], {"method": cs.methods.ReBasin()}),
    "a typed method for posteriors": (lambda: [good(), good(1)], {"method": cs.methods.SPAHM()}),
    "a method that does not exist": (lambda: [good(), good(1)], {"method": "nonsense"}),
    "an option that does not exist": (lambda: [good(), good(1)], {"method": "kl", "nonsense": 1}),
    "a negative price": (lambda: [good(), good(1)], {"method": "kl", "regularization": -1}),
    "a price that is no number": (lambda: [good(), good(1)], {"method": "kl", "regularization": float("nan")}),
    "a bound of no group": (lambda: [good(), good(1)], {"method": "kl", "max_units": {"nowhere": 9}}),
    "another way of counting": (lambda: [good(), good(1)], {"method": "kl", "outgoing": "nonsense"}),
    "no variance of the prior": (lambda: [good(), good(1)], {"method": "kl", "prior_variance": 0.0}),
    "an unknown metric": (lambda: [good(), good(1)], {"method": "w2", "metric": "nonsense"}),
    "a negative rho": (lambda: [good(), good(1)], {"method": "w2", "rho": -1.0}),
    "other widths for alignment": (lambda: [good(), good(1, (3, 5, 2))], {"method": "w2"}),
    "too few weights": (lambda: [good(), good(1)], {"weights": (1.0,)}),
    "negative weights": (lambda: [good(), good(1)], {"weights": (1.0, -1.0)}),
    "weights that are not finite": (lambda: [good(), good(1)], {"weights": (1.0, float("nan"))}),
    "options of mixtures": (lambda: [good(), good(1)], {"method": cs.methods.KLFusion(n_components=3)}),
    "no such reference": (lambda: [good(), good(1)], {"reference": 7}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_fused_is_refused_in_a_line(case):
    models, options = REFUSED[case]
    models = models()
    told = {"example": example(random_layers((3, 4, 2), np.random.default_rng(0))), **options}
    with pytest.raises((InputError, OptionError, cs.errors.UnsupportedError)) as caught:
        cs.fuse(models, **told)
    lines = str(caught.value).splitlines()
    assert 1 <= len(lines) <= 6
    assert all(0 < len(line) < 400 for line in lines)
    # The same is found without fusing: as a list of lines, or raised where an argument means nothing.
    try:
        problems = cs.check(models, **told)
    except OptionError:
        return
    assert problems
    assert all(isinstance(line, str) and "\n" not in line for line in problems)


def test_nothing_is_said_against_good_networks():
    bnns = [good(), good(1)]
    shown = example(random_layers((3, 4, 2), np.random.default_rng(0)))
    for method in (None, "kl", "w2"):
        assert cs.check(bnns, method=method, example=shown) == []


def test_variances_spoilt_after_the_network_was_made_are_found():
    spoilt = good(1)
    spoilt.variances["0.weight"][0, 0] = -1.0
    shown = example(random_layers((3, 4, 2), np.random.default_rng(0)))
    with pytest.raises(InputError, match=r"0\.weight"):
        replace(spoilt)
    with pytest.raises(InputError):
        cs.fuse([good(), spoilt], method="kl", example=shown)
