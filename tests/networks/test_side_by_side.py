"""Networks side by side in one wider network, as method and as candidate of the default."""

import re
from functools import cache, partial

import numpy as np
import pytest
import torch
from torch import nn

import consilience as cs
from consilience.errors import OptionError
from consilience.networks.choice.choose import CandidateFacts, CandidateScores
from consilience.networks.methods.baselines import SideBySide
from tests.networks.test_default_fusion import HELD, X, Y, accuracy, train
from tests.networks.zoo import ZOO
from tests.promises import SEEDS, lower_end

ROUNDING = 1e-4
PARTS = [~HELD & (torch.arange(len(X)) % 4 == part) for part in range(3)]

pytestmark = [pytest.mark.usefixtures("few_images"), pytest.mark.covering(2)]


def widths_of(net, example, factor):
    return {group: factor * width for group, width in cs.symmetry(net, example=example).groups.items()}


def make(widths=(4, 6)):
    layers, before = [nn.Unflatten(1, (1, 8, 8))], 1
    for width in widths:
        layers += [nn.Conv2d(before, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU()]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


def plain(width=16):
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


@cache
def nets(seed=0, make_net=make):
    """Return networks with batch normalisation, independently initialised, which saw all classes."""
    return {f"site {n}": train(rows, 10 * seed + n, make_net) for n, rows in enumerate(PARTS)}


def answers(net, x):
    with torch.no_grad():
        return net(x)


@pytest.mark.parametrize(
    "name", ["mlp", "lenet", "resnet18", "depthwise", pytest.param("vgg11", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("weights", [(0.5, 0.5), (0.2, 0.8)])
def test_the_wide_network_answers_the_mean_of_the_networks(name, weights):
    entry = ZOO[name]
    first, second, example = entry.module(0), entry.module(1), entry.inputs()
    widths = widths_of(first, example, 2)
    fused = cs.fuse([first, second], SideBySide(), example=example, target_widths=widths, weights=weights).model
    x = entry.inputs(1)
    mean = weights[0] * answers(first, x) + weights[1] * answers(second, x)
    torch.testing.assert_close(answers(fused, x), mean, rtol=ROUNDING, atol=ROUNDING)


def test_a_network_of_weight_zero_has_no_place():
    entry = ZOO["resnet18"]
    modules, example = [entry.module(seed) for seed in range(3)], entry.inputs()
    options = {"example": example, "target_widths": widths_of(modules[0], example, 2), "weights": (1, 0, 1)}
    fused = cs.fuse(modules, SideBySide(), **options).model
    mean = (answers(modules[0], example) + answers(modules[2], example)) / 2
    torch.testing.assert_close(answers(fused, example), mean, rtol=ROUNDING, atol=ROUNDING)


def test_too_narrow_a_network_is_refused():
    entry = ZOO["mlp"]
    modules, example = [entry.module(seed) for seed in range(3)], entry.inputs()
    with pytest.raises(cs.errors.UnsupportedError, match="no room for the units of model 2"):
        cs.fuse(modules, SideBySide(), example=example, target_widths=widths_of(modules[0], example, 2))


def test_in_a_wider_network_two_sites_stand_beside_each_other_and_all_keep_their_weights():
    single = list(nets().values())
    widths = widths_of(single[0], X[:2], 2)
    fusion = cs.fuse(nets(), example=X[:2], inputs=X[:300], target_widths=widths, steps=0)
    beside = fusion.candidates["side_by_side"]
    pairs = [(a, b) for number, a in enumerate(single) for b in single[number + 1 :]]
    gaps = [float((answers(beside, X) - (answers(a, X) + answers(b, X)) / 2).abs().max()) for a, b in pairs]
    assert min(gaps) < 1e-3
    # What the sites count stays said, also of the one that has no place.
    assert [of_site.weight for of_site in fusion.inputs] == pytest.approx([1 / 3] * 3)


@pytest.mark.slow
@pytest.mark.promise
def test_a_wider_network_of_the_default_is_not_below_the_best_site_over_eight_seeds():
    gains = []
    for seed in SEEDS:
        sites = nets(seed, partial(make, (6, 8)))
        widths = widths_of(sites["site 0"], X[:2], 2)
        fused = cs.fuse(sites, example=X[:2], target_widths=widths, steps=5, rng=seed).model
        gains.append(accuracy(fused) - max(map(accuracy, sites.values())))
    assert lower_end(gains) > 0.0, gains


@pytest.mark.slow
def test_distillation_starts_from_sites_beside_each_other_and_goes_half_of_the_way():
    widths = widths_of(next(iter(nets().values())), X[:2], 2)
    fusion = cs.fuse(nets(), "distill", example=X[:2], target_widths=widths, steps=5)
    assert fusion.details["chosen"] == "distill(side_by_side)"
    assert re.match(r"the networks of site \d and site \d side by side; distilled half of the way", fusion.repaired)


def test_at_the_width_of_the_sites_there_is_none():
    assert "side_by_side" not in cs.fuse(nets(), example=X[:2], inputs=X[:300], steps=0).candidates


@pytest.mark.slow
def test_where_classes_differ_matched_images_judge_no_two_of_three():
    parts = [~HELD & (low <= Y) & (low + 4 > Y) for low in (0, 3, 6)]
    skewed = {f"site {n}": train(rows, n, make) for n, rows in enumerate(parts)}
    for factor, is_there in ((2, False), (3, True)):
        widths = widths_of(skewed["site 0"], X[:2], factor)
        fusion = cs.fuse(skewed, example=X[:2], target_widths=widths, steps=0)
        assert ("side_by_side" in fusion.candidates) is is_there


@pytest.mark.parametrize(("gain", "chosen"), [(0.3, 0), (0.6, 1)])
def test_what_was_fitted_needs_its_margin_over_what_stands_for_sites(gain, chosen):
    rng = np.random.default_rng(0)
    beside = rng.random(4000) < 0.4
    fitted = beside & (rng.random(4000) < 1 - gain)
    losses = np.stack([beside, fitted]).astype(float)
    for stands, expected in ((True, chosen), (False, 1)):
        facts = [CandidateFacts(stands_for_sites=stands), CandidateFacts(margin=0.45)]
        scores = CandidateScores(losses, losses, facts)
        assert scores.choose() == expected


def test_where_nothing_tells_of_inputs_a_wider_network_holds_the_sites_of_the_most_observations():
    entry = ZOO["mlp"]
    models = {name: entry.module(seed) for seed, name in enumerate(("few", "many", "more"))}
    example = entry.inputs()
    widths = widths_of(models["few"], example, 2)
    said = {
        name: cs.describe(net, n_observations=n) for (name, net), n in zip(models.items(), (10, 300, 500), strict=True)
    }
    fusion = cs.fuse(said, example=example, target_widths=widths)
    assert fusion.details["chosen"] == "side_by_side"
    mean = (300 * answers(models["many"], example) + 500 * answers(models["more"], example)) / 800
    torch.testing.assert_close(answers(fusion.model, example), mean, rtol=ROUNDING, atol=ROUNDING)
    assert [of_site.weight for of_site in fusion.inputs] == pytest.approx([10 / 810, 300 / 810, 500 / 810])
    assert fusion.verdict.code == "no_inputs"


def said_of_one_width(make_net):
    """Return networks with their numbers of observations, an example and twice their widths."""
    example = torch.rand(4, 5, generator=torch.Generator().manual_seed(0))
    models = {}
    for seed, (name, n) in enumerate({"few": 10, "many": 300, "more": 500}.items()):
        models[name] = cs.describe(make_net(seed).eval(), n_observations=n)
    return models, {"example": example, "target_widths": widths_of(make_net(0), example, 2)}


def seeded(seed):
    torch.manual_seed(seed)
    return ZOO["mlp"].make()


def nudged(seed):
    net = seeded(0)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for values in net.parameters():
            values += 0.01 * torch.randn(values.shape, generator=generator)
    return net


def with_one_slope(seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(5, 7), nn.PReLU(), nn.Linear(7, 3))
    with torch.no_grad():
        net[1].weight.fill_(0.1 + 0.4 * seed)
    return net


@pytest.mark.parametrize(
    ("make_net", "chosen"), [(seeded, "side_by_side"), (nudged, "matched"), (with_one_slope, "matched")]
)
def test_unseen_networks_of_one_start_and_such_as_do_not_answer_their_mean_are_averaged(make_net, chosen):
    models, options = said_of_one_width(make_net)
    with torch.random.fork_rng(devices=[]):
        assert cs.fuse(models, **options).details["chosen"] == chosen


def test_arrays_without_a_module_are_refused_where_one_of_them_would_come():
    models, options = said_of_one_width(seeded)
    symmetry = cs.symmetry(seeded(0), example=options["example"])
    arrays = {name: dict(seeded(seed).state_dict()) for seed, name in enumerate(models)}
    with pytest.raises(OptionError, match="module: is needed: the default compares networks"):
        cs.fuse(arrays, symmetry=symmetry, target_widths=options["target_widths"])


def test_networks_of_several_widths_have_no_room_in_the_widest_that_nobody_asked_for():
    models = [train(PARTS[0], 0, lambda: plain(8)), train(PARTS[1], 1, lambda: plain(8)), train(PARTS[2], 2, plain)]
    assert "side_by_side" not in cs.fuse(models, example=X[:2], inputs=X[:300], steps=0).candidates


def test_where_classes_differ_no_distillation_starts_from_sites_beside_each_other():
    skewed = {
        f"site {n}": train(~HELD & torch.isin(Y, torch.arange(low, low + 4)), n, plain) for n, low in enumerate((0, 6))
    }
    widths = widths_of(skewed["site 0"], X[:2], 2)
    fusion = cs.fuse(skewed, example=X[:2], inputs=X[:300], target_widths=widths, steps=5)
    assert "side_by_side" in fusion.candidates
    assert "distill(side_by_side)" not in fusion.candidates
