"""Laws of distillation as a method: what it starts from, is taught by, trains on, and what it says of that."""

import copy
from functools import cache
from itertools import count

import numpy as np
import pytest
import torch
from torch import nn

import consilience as cs
from consilience.networks.choice.teacher import Teacher
from consilience.networks.ensemble import ModuleEnsemble
from consilience.networks.torch_modules import arrays_of_module
from tests.copies import COPIES
from tests.networks.test_default_fusion import HELD, ROWS, X, Y, accuracy, make, make_normed, same_bytes, train
from tests.promises import SEEDS, lower_end

HALVES = [~HELD & (torch.arange(len(X)) % 2 == site) for site in range(2)]
UNLABELLED = X[HELD][:300]

pytestmark = pytest.mark.usefixtures("few_images")


class Tanh(nn.Module):
    """Another architecture."""

    def __init__(self, outputs=10):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            self.first, self.last = nn.Linear(64, 16), nn.Linear(16, outputs)

    def forward(self, x):
        return self.last(self.first(x).tanh())


@cache
def nets():
    return {name: train(rows, start) for start, (name, rows) in enumerate(ROWS.items())}


@cache
def described():
    return {name: cs.describe(net, (X[ROWS[name]], Y[ROWS[name]])) for name, net in nets().items()}


@cache
def normed(width=6):
    return [train(rows, start, lambda: make_normed(width)) for start, rows in enumerate(HALVES)]


@cache
def fusion():
    return cs.fuse(described(), method="distill")


def test_described_networks_are_distilled_into_one_that_is_better_than_each():
    distilled = fusion()
    assert accuracy(distilled.model) > max(accuracy(net) for net in nets().values()) + 0.2
    assert distilled.details["chosen"].startswith("distill(")
    assert distilled.verdict.code == "labelled"
    assert "is better than every site's own network; whether on real ones too" in distilled.verdict.text
    start = distilled.details["chosen"][len("distill(") : -1]
    scores = distilled.verdict.candidates
    assert scores[distilled.details["chosen"]] < scores[start] < min(scores[f"site:{name}"] for name in nets())
    record = distilled.provenance["result"]["distillation"]
    assert record["stopped_by"] == "steps"
    assert min(record["held_out_loss"]) < record["held_out_loss"][0]
    assert np.isnan(distilled.objective)


def test_the_method_by_name_and_by_class_are_one_and_the_same_seed_gives_the_same_bytes():
    again = cs.fuse(dict(reversed(described().items())), cs.methods.Distill())
    assert same_bytes(fusion().model, again.model)
    assert not same_bytes(fusion().model, cs.fuse(described(), cs.methods.Distill(), rng=1).model)


def test_networks_without_anything_that_tells_of_inputs_are_refused_by_name():
    with pytest.raises(
        cs.errors.InputError, match=r"lund, oslo, turku: nothing tells what inputs are like.*give `inputs=`, or"
    ):
        cs.fuse(nets(), method="distill", example=X[:2])
    assert len(cs.check(nets(), method="distill", example=X[:2])) == 1
    assert cs.check(nets(), method="distill", example=X[:2], inputs=UNLABELLED) == []
    assert cs.check(described(), method="distill") == []
    assert cs.check(normed(), method="distill", example=X[:2]) == []


def test_given_inputs_are_enough():
    distilled = cs.fuse(nets(), method="distill", inputs=UNLABELLED, example=X[:2])
    assert (distilled.verdict.code, distilled.verdict.harmless) in (("chosen", None), ("keep_ensemble", None))
    ensemble = cs.fuse(nets(), method="ensemble").model
    with torch.no_grad():
        answers = ensemble(X[HELD]).argmax(1)
        agreement = [
            float((net(X[HELD]).argmax(1) == answers).double().mean())
            for net in (distilled.model, cs.fuse(nets(), method="consensus", refit=False, example=X[:2]).model)
        ]
    assert agreement[0] > agreement[1]


def test_batch_normalisation_tells_of_inputs_and_stays_true_in_training_mode():
    distilled = cs.fuse(normed(), method="distill", example=X[:2])
    assert accuracy(distilled.model) > 0.85
    training = copy.deepcopy(distilled.model).train()
    with torch.no_grad():
        answers = training(X[HELD]).argmax(1)
    assert abs(float((answers == Y[HELD]).double().mean()) - accuracy(distilled.model)) < 0.02
    assert not distilled.needs_repair


def test_where_classes_differ_batch_normalisation_learns_from_drawn_inputs():
    nets = [train(rows, 0, make_normed, steps=80) for rows in ROWS.values()]
    sites = [cs.describe(net, (X[rows], Y[rows])) for net, rows in zip(nets, ROWS.values(), strict=True)]
    distilled = cs.fuse(sites, method="distill")
    assert distilled.details["distillation"]["steps"] > 60  # twice as many as without batch normalisation
    assert accuracy(distilled.model) > max(map(accuracy, nets)) + 0.2
    training = copy.deepcopy(distilled.model).train()
    with torch.no_grad():
        answers = training(X[HELD]).argmax(1)
    assert abs(float((answers == Y[HELD]).double().mean()) - accuracy(distilled.model)) < 0.05
    assert not distilled.needs_repair


def test_where_classes_are_alike_drawn_inputs_teach_batch_normalisation_no_statistics():
    sites = [cs.describe(net, (X[rows], Y[rows])) for net, rows in zip(normed(), HALVES, strict=True)]
    distilled = cs.fuse(sites, method="distill")
    norm, models = distilled.model[2], distilled.aligned_models
    gains = torch.stack([model[2].weight.abs() for model in models]).mean(dim=0)
    biases = torch.stack([model[2].bias for model in models]).mean(dim=0)
    # Steps move gamma and beta; the anchor puts them back.
    torch.testing.assert_close(norm.weight.abs(), gains, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(norm.bias, biases, rtol=1e-4, atol=1e-6)
    assert not distilled.needs_repair


def test_several_models_become_one_of_any_width():
    for width in (12, 40):
        distilled = cs.fuse(described(), method="distill", target=make(width), steps=500)
        assert distilled.model[0].out_features == width
        assert accuracy(distilled.model) > max(accuracy(net) for net in nets().values()) + 0.2
        assert ("narrower" in distilled.verdict.text) == (width == 12)
    assert cs.fuse(described(), method="distill", target_widths={"0": 30}, steps=5).groups == {"0": 30}


def test_a_network_of_the_same_arrays_and_other_activations_is_another_architecture():
    bent = nn.Sequential(nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 10))
    distilled = cs.fuse(described(), method="distill", target=bent, steps=5)
    assert "another architecture" in distilled.verdict.text
    with pytest.warns(cs.errors.HarmWarning, match="worse than a site's own network"):  # after five steps
        assert isinstance(distilled.model[1], nn.Tanh)


@pytest.mark.slow
def test_narrower_networks_with_batch_normalisation_have_statistics_of_their_own():
    distilled = cs.fuse(normed(), method="distill", example=X[:2], target=make_normed(4), steps=600)
    assert accuracy(distilled.model) > 0.75
    assert distilled.model[1].out_channels == 4


def test_a_network_of_another_architecture_is_trained_from_its_own_weights(tmp_path):
    target = Tanh()
    before = {key: values.clone() for key, values in target.state_dict().items()}
    distilled = cs.fuse(described(), method="distill", target=target, steps=700)
    assert accuracy(distilled.model) > max(accuracy(net) for net in nets().values()) + 0.2
    assert isinstance(distilled.model, Tanh)
    assert "another architecture" in distilled.verdict.text
    assert all(torch.equal(values, before[key]) for key, values in target.state_dict().items())
    assert accuracy(distilled.ensemble) == accuracy(fusion().ensemble)  # of the models, not of the target
    distilled.save(tmp_path / "fused.safetensors")
    distilled.report(tmp_path / "report.html")
    loaded = cs.load(tmp_path / "fused.safetensors")
    assert set(loaded.arrays) == set(arrays_of_module(distilled.model))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"target": Tanh(7)},
            cs.errors.InputError,
            r"target: answers \(7,\) for an input where the networks answer \(10,\)",
        ),
        ({"target": nn.Linear(3, 10)}, cs.errors.InputError, "target: Linear does not take an input"),
        ({"target": 3}, cs.errors.OptionError, "expected a torch module"),
        ({"steps": 0}, cs.errors.OptionError, "steps must be a positive integer or None"),
        ({"learning_rate": -1.0}, cs.errors.OptionError, "learning_rate must be a positive number or None"),
        ({"max_seconds": 0}, cs.errors.OptionError, "max_seconds must be"),
        ({"n_inputs": 3}, cs.errors.OptionError, "n_inputs must be"),
        ({"max_seconds": 1e-9}, cs.errors.OptionError, "were over before the first step"),
        ({"robust": "median"}, cs.errors.OptionError, "no option robust"),
    ],
)
def test_what_cannot_be_done_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        cs.fuse(described(), method="distill", **options)


def test_a_target_that_is_no_width_change_is_refused_elsewhere():
    with pytest.raises(
        cs.errors.InputError, match=r"target: a Tanh that is not the models' network in other widths.*distill"
    ):
        cs.fuse(nets(), method="consensus", example=X[:2], target=Tanh())


def test_time_that_is_up_is_said_in_status_and_verdict(monkeypatch):
    clock = count()  # every look at it is a hundredth of a second
    monkeypatch.setattr("consilience.networks.distillation.time.monotonic", lambda: next(clock) / 100)
    cut = cs.fuse(described(), method="distill", max_seconds=0.5, steps=10**6)
    assert cut.status is cs.results.Status.OUT_OF_TIME
    assert cut.provenance["result"]["status"] == "out_of_time"
    assert cut.details["distillation"]["stopped_by"] == "time"
    assert "Training ended at `max_seconds=0.5`, after" in cut.verdict.text


@COPIES
def test_networks_that_are_one_stay_as_they_are():
    net = nets()["lund"]
    same = cs.fuse([net, net], method="distill", inputs=UNLABELLED, example=X[:2])
    assert same_bytes(same.model, cs.fuse([net, net], method="average", example=X[:2]).model)
    assert same.details["distillation"]["best_step"] == 0
    assert "the start stays" in same.verdict.text


def test_progress_counts_steps():
    seen = []
    cs.fuse(described(), method="distill", steps=30, progress=lambda done, total: seen.append((done, total)))
    assert (30, 30) in seen


def test_default_and_method_are_taught_by_the_same_ensemble():
    # The teacher of both is `Teacher`; that of the public ensemble is written apart.
    ensemble = fusion().ensemble
    assert isinstance(ensemble, ModuleEnsemble)
    local = fusion().inputs
    sites = cs.networks.choice.sites.Sites(
        tuple(one.name for one in local),
        np.array([one.weight for one in local]),
        tuple(one.description for one in local),
    )
    outputs = np.stack([net(X[:50]).detach().double().numpy() for net in nets().values()])
    np.testing.assert_allclose(Teacher(sites, True).answers(outputs), ensemble(X[:50]).exp().detach(), atol=1e-4)


def test_batch_normalisation_learns_its_statistics_from_inputs_that_are_real():
    real = X[HELD]
    distilled = cs.fuse(normed(), method="distill", inputs=real, example=X[:2])
    assert int(distilled.model[2].num_batches_tracked) > int(normed()[0][2].num_batches_tracked)
    training = copy.deepcopy(distilled.model).train()
    with torch.no_grad():
        answers = training(real).argmax(1)
    assert float((answers == Y[HELD]).double().mean()) > accuracy(distilled.model) - 0.02
    few = cs.fuse(
        normed(), method="distill", inputs=real[:200], example=X[:2], steps=20
    )  # too few to learn statistics from
    assert int(few.model[2].num_batches_tracked) == int(normed()[0][2].num_batches_tracked)


def test_beside_another_architecture_the_models_are_as_they_came():
    distilled = cs.fuse(described(), method="distill", target=Tanh(), steps=5)
    x = X[HELD][:20]
    for aligned, net in zip(distilled.aligned_models, nets().values(), strict=True):
        torch.testing.assert_close(aligned(x), net(x))
    assert [network.name for network in distilled.aligned] == list(nets())


@cache
def alike(make=None, seed=0):
    """Return independently initialised networks that saw the same classes."""
    return {f"site {start}": train(rows, 10 * seed + start, make) for start, rows in enumerate(HALVES)}


def test_sites_that_are_alike_start_from_the_network_of_one_and_go_half_of_the_way():
    for seed in (4, 8, 0):  # a site's own network may be as good: the first pair whose distillation is better
        nets = alike(make_normed, seed)
        distilled = cs.fuse(nets, method="distill", example=X[:2])
        chosen = distilled.details["chosen"]
        if chosen.startswith("distill(site:"):
            break
    assert chosen.startswith("distill(site:site ")
    name = chosen[len("distill(site:") : -1]
    steps = distilled.details["distillation"]["best_step"]
    text = f"the network of {name}; distilled half of the way from the sites' ensemble, {steps} steps"
    assert distilled.repaired == text
    # It is near that network, its units in their order.
    start = nets[name].state_dict()
    for key, values in distilled.model.state_dict().items():
        if key.endswith("weight"):
            assert 0 < float((values - start[key]).norm()) < 0.3 * float(values.norm())


@pytest.mark.slow
@pytest.mark.promise
def test_a_distillation_of_sites_that_are_alike_is_near_the_best_of_them_over_eight_seeds():
    gains = []
    for seed in SEEDS:
        nets = alike(make_normed, seed)
        distilled = cs.fuse(nets, method="distill", example=X[:2], rng=seed, steps=400)
        gains.append(accuracy(distilled.model) - max(map(accuracy, nets.values())))
    assert lower_end(gains) > -0.02, gains


def test_a_network_of_another_width_starts_from_no_site():
    wider = dict.fromkeys(cs.symmetry(next(iter(alike().values())), example=X[:2]).groups, 32)
    distilled = cs.fuse(alike(), method="distill", inputs=UNLABELLED, example=X[:2], target_widths=wider)
    chosen = distilled.details["chosen"]
    assert "site:" not in chosen
    assert "side_by_side" not in chosen


def test_of_networks_that_answer_the_same_classes_the_one_nearest_to_the_ensemble_is_the_start():
    nets = {}
    for scale in (0.5, 0.7, 1.0):
        nets[f"times {scale}"] = net = copy.deepcopy(next(iter(alike().values())))
        with torch.no_grad():
            net[2].weight *= scale
            net[2].bias *= scale
    fusion = cs.fuse(nets, inputs=UNLABELLED, example=X[:2], steps=5)
    starts = [name for name in fusion.verdict.candidates if name.startswith("distill(site:")]
    assert starts == ["distill(site:times 0.7)"]
