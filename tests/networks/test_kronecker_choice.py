"""Merges by Kronecker factors in the default fusion, and the choice of their damping."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import consilience as cs
from consilience.networks.choice import inputs as choice_inputs_module
from consilience.networks.choice.compare import CandidateComparison
from consilience.networks.methods.fisher.informed import InformedMethod
from consilience.networks.torch_modules import arrays_of_module
from tests.copies import COPIES

X, Y = load_digits(return_X_y=True)
X, Y = torch.tensor(X / 16, dtype=torch.float32), torch.tensor(Y)
HELD = torch.arange(len(X)) % 3 == 0
CLASSES = {"lund": (0, 1, 2, 3, 4), "oslo": (4, 5, 6, 7), "turku": (7, 8, 9, 0)}
ROWS = {name: ~HELD & torch.isin(Y, torch.tensor(classes)) for name, classes in CLASSES.items()}
KRONECKER = ["kfac(0.01)", "kfac(0.1)", "kfac(1)", "kfac(10)", "kfac(0.1, class_heads)", "regmean"]

UNTRAINED = {"steps": 0}
"""Candidates of Kronecker factors come before any distillation."""


def make():
    return nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))


def train(rows, start):
    with torch.random.fork_rng():
        torch.manual_seed(start)
        net = make()
        optimizer = torch.optim.Adam(net.parameters(), 5e-3)
        for _ in range(60):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(X[rows]), Y[rows]).backward()
            optimizer.step()
    return net.eval()


def accuracy(net):
    with torch.no_grad():
        return float((net(X[HELD]).argmax(1) == Y[HELD]).double().mean())


@pytest.fixture(scope="module", params=[pytest.param("one start", marks=pytest.mark.slow), "own starts"])
def nets(request):
    return {
        name: train(rows, 0 if request.param == "one start" else start)
        for start, (name, rows) in enumerate(ROWS.items())
    }


def describe(nets, **options):
    return {name: cs.describe(net, (X[ROWS[name]], Y[ROWS[name]]), **options) for name, net in nets.items()}


@pytest.fixture(scope="module")
def described(nets):
    return describe(nets)


@pytest.fixture(scope="module")
def fusion(described):
    return cs.fuse(described, **UNTRAINED)


def same_bytes(first, second):
    one, other = arrays_of_module(first), arrays_of_module(second)
    return all(torch.equal(one[key], other[key]) for key in one)


# -- In the default.


def test_described_layers_make_candidates(fusion, nets):
    assert set(KRONECKER) <= set(fusion.verdict.candidates)
    base = accuracy(fusion.candidates.get("average", fusion.candidates.get("matched")))
    best = max(accuracy(fusion.candidates[name]) for name in KRONECKER)
    assert best > base + 0.05


def test_without_layers_there_are_none(nets):
    plain = cs.fuse(describe(nets, layers=False), **UNTRAINED)
    assert not set(KRONECKER) & set(plain.verdict.candidates)
    mixed = dict(describe(nets, layers=False), lund=describe(nets)["lund"])
    assert not set(KRONECKER) & set(cs.fuse(mixed, **UNTRAINED).verdict.candidates)


def test_the_order_of_the_sites_changes_nothing(described, fusion):
    again = cs.fuse(dict(reversed(described.items())), **UNTRAINED)
    assert again.verdict == fusion.verdict
    for name in KRONECKER:
        assert same_bytes(again.candidates[name], fusion.candidates[name])


def test_a_candidate_of_one_start_is_the_method_by_name(nets, described, fusion):
    if "average" not in fusion.candidates:
        pytest.skip("units of own starts are matched by other means")
    infos = {name: cs.fisher(net, X[ROWS[name]], "kronecker") for name, net in nets.items()}
    weights = {name: len(X[ROWS[name]]) for name in nets}
    by_name = cs.fuse(nets, "kfac", damping=0.1, fishers=infos, weights=weights, aligned=False).model
    with torch.no_grad():
        # Heads of candidates are centred, which changes no probability.
        np.testing.assert_allclose(
            fusion.candidates["kfac(0.1)"](X[HELD]).softmax(1), by_name(X[HELD]).softmax(1), atol=1e-3
        )


@COPIES
def test_equal_networks_stay_what_they_are():
    net = train(~HELD, 0)
    data = [(X[~HELD][part::3], Y[~HELD][part::3]) for part in range(3)]
    fusion = cs.fuse([cs.describe(net, of_site, classes=10) for of_site in data], **UNTRAINED)
    with torch.no_grad():
        expected = net(X[HELD]).softmax(1)
        for name in set(KRONECKER) - {"kfac(0.1, class_heads)"}:
            np.testing.assert_allclose(fusion.candidates[name](X[HELD]).softmax(1), expected, atol=1e-4, err_msg=name)


def test_a_constant_on_the_rows_of_a_head_changes_no_candidate(nets, described, fusion):
    shifted = dict(nets, oslo=make())
    shifted["oslo"].load_state_dict(nets["oslo"].state_dict())
    with torch.no_grad():
        shifted["oslo"][2].weight += torch.linspace(-0.5, 0.5, 24)
        shifted["oslo"][2].bias += 0.3
    again = cs.fuse(describe(shifted), **UNTRAINED)
    if "matched" in fusion.candidates:  # matched in balanced scales, by rows that are centred up to rounding
        assert set(again.candidates) >= set(KRONECKER)
        return
    with torch.no_grad():
        for name in KRONECKER:
            one, other = (of.candidates[name](X[HELD]).softmax(1).numpy() for of in (fusion, again))
            np.testing.assert_allclose(one, other, atol=5e-3, err_msg=name)


def test_information_that_came_along_is_used_without_described_layers(nets):
    infos = {name: cs.fisher(net, X[ROWS[name]], "kronecker") for name, net in nets.items()}
    fusion = cs.fuse(describe(nets, layers=False), fishers=infos, **UNTRAINED)
    assert {*KRONECKER, "fisher"} <= set(fusion.verdict.candidates)


def test_files_make_the_same_candidates(described, fusion, tmp_path):
    paths = {name: tmp_path / f"{name}.safetensors" for name in described}
    for name, network in described.items():
        cs.save(network, paths[name])
    of_files = cs.fuse(paths, module=make, **UNTRAINED)
    for name in KRONECKER:
        assert of_files.verdict.candidates[name] == pytest.approx(fusion.verdict.candidates[name], abs=0.01)


def test_sites_that_inform_other_parameters_have_none_and_the_verdict_says_so(nets, described):
    frozen = make()
    frozen.load_state_dict(nets["oslo"].state_dict())
    frozen[0].bias.requires_grad_(False)
    fusion = cs.fuse(dict(described, oslo=cs.describe(frozen, (X[ROWS["oslo"]], Y[ROWS["oslo"]]))), **UNTRAINED)
    assert not set(KRONECKER) & set(fusion.candidates)
    assert "kfac was left out" in fusion.verdict.text
    assert "of other parameters than" in fusion.verdict.text


def test_other_widths_have_none(nets, described):
    target = nn.Sequential(nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 10))
    fusion = cs.fuse(described, target=target, **UNTRAINED)
    assert not set(KRONECKER) & set(fusion.candidates)


def test_time_that_has_passed_leaves_them_out(described):
    fusion = cs.fuse(described, max_seconds=1e-9)
    assert not set(KRONECKER) & set(fusion.candidates)
    assert "kfac(0.01) was left out" in fusion.verdict.text
    assert fusion.status is cs.results.Status.OUT_OF_TIME


def test_what_another_note_says_of_time_cuts_nothing_short(described, monkeypatch):
    def fails(*_):
        raise cs.errors.UnsupportedError("in the paper 3 seconds had passed")

    monkeypatch.setattr("consilience.networks.choice.kronecker.KroneckerMerges.head_start", fails)
    fusion = cs.fuse(described, **UNTRAINED)
    assert "seconds had passed" in fusion.verdict.text
    assert fusion.status is not cs.results.Status.OUT_OF_TIME


# -- The damping of the method by name.


def test_the_damping_is_chosen_on_what_sites_describe(nets, described):
    infos = {name: cs.fisher(net, X[ROWS[name]], "kronecker") for name, net in nets.items()}
    chosen = cs.fuse(described, "kfac", fishers=infos, rng=3)
    damping = chosen.details["damping"]
    scores = chosen.verdict.candidates
    assert set(scores) == {"kfac(0.01)", "kfac(0.1)", "kfac(1)", "kfac(10)"}
    assert scores[f"kfac({damping:g})"] == pytest.approx(min(scores.values()), abs=0.02)
    assert chosen.verdict.code == "labelled"
    by_true_accuracy = [
        accuracy(cs.fuse(described, "kfac", fishers=infos, damping=m, rng=3).model) for m in (0.01, 0.1, 1.0, 10.0)
    ]
    assert accuracy(chosen.model) >= max(by_true_accuracy) - 0.05
    again = cs.fuse(described, "kfac", fishers=infos, rng=3)
    assert same_bytes(chosen.model, again.model)


def test_described_layers_are_merged_by_name(nets, described):
    infos = {
        name: replace(cs.fisher(net, X[ROWS[name]], "kronecker"), observations=float(ROWS[name].sum()))
        for name, net in nets.items()
    }
    for method in (cs.methods.KFAC(damping=0.1), cs.methods.FedLPA()):
        by_description = cs.fuse(described, method).model
        by_information = cs.fuse(described, method, fishers=infos).model
        with torch.no_grad():
            np.testing.assert_allclose(by_description(X), by_information(X), atol=2e-2)
    with pytest.raises(cs.errors.InputError, match="needs `fishers="):
        cs.fuse(dict(described, lund=nets["lund"]), "kfac")


def test_without_descriptions_the_damping_is_fixed_and_the_verdict_says_why(nets):
    infos = {name: cs.fisher(net, X[ROWS[name]], "kronecker") for name, net in nets.items()}
    fusion = cs.fuse(nets, "kfac", fishers=infos, example=X[:2])
    assert fusion.details["damping"] == 0.1
    assert fusion.verdict.text.startswith("Not every site described its inputs, so dampings were not compared")
    assert "describe" in fusion.verdict.remedy
    explicit = cs.fuse(nets, "kfac", damping=0.1, fishers=infos, example=X[:2])
    assert same_bytes(fusion.model, explicit.model)


def test_a_site_that_does_not_count_needs_no_layers(nets, described):
    without = dict(described, turku=replace(described["turku"], description=None))
    fusion = cs.fuse(without, weights={"lund": 2, "oslo": 1, "turku": 0}, **UNTRAINED)
    assert set(KRONECKER) - {"kfac(0.1, class_heads)"} <= set(fusion.candidates)


def test_every_damping_is_what_it_is_by_name_and_units_are_matched_once(nets, described, monkeypatch):
    infos = {name: cs.fisher(net, X[ROWS[name]], "kronecker") for name, net in nets.items()}
    compared, matched = [], []
    compare, align = CandidateComparison.compare, InformedMethod._align_units

    def seen(self, candidates, *rest):
        compared.extend(candidates)
        return compare(self, candidates, *rest)

    def counted(self, *rest):
        matched.append(self)
        return align(self, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(CandidateComparison, "compare", seen)
        patch.setattr(InformedMethod, "_align_units", counted)
        chosen = cs.fuse(described, "kfac", fishers=infos, rng=3)
    assert len(matched) == 1
    assert [candidate.name for candidate in compared] == ["kfac(0.01)", "kfac(0.1)", "kfac(1)", "kfac(10)"]
    for candidate, damping in zip(compared, (0.01, 0.1, 1.0, 10.0), strict=True):
        by_name = cs.fuse(described, "kfac", fishers=infos, damping=damping, rng=3)
        assert same_bytes(candidate.module, by_name.model)
        if damping == chosen.details["damping"]:
            assert same_bytes(chosen.model, by_name.model)
            np.testing.assert_array_equal(chosen.history, by_name.history)


def test_no_stream_is_drawn_from_twice_where_dampings_are_compared(nets, described, monkeypatch):
    infos = {name: cs.fisher(net, X[ROWS[name]], "kronecker") for name, net in nets.items()}
    streams = []
    align, merge, inputs = InformedMethod._align_units, cs.methods.KFAC.merge, choice_inputs_module.choice_inputs

    def of_units(self, ensemble, rng, progress):
        streams.append(rng)
        return align(self, ensemble, rng, progress)

    def of_merge(self, sites, rng, progress):
        streams.append(rng)
        return merge(self, sites, rng, progress)

    def of_inputs(*arguments):
        streams.append(arguments[5])
        return inputs(*arguments)

    monkeypatch.setattr(InformedMethod, "_align_units", of_units)
    monkeypatch.setattr(cs.methods.KFAC, "merge", of_merge)
    monkeypatch.setattr(choice_inputs_module, "choice_inputs", of_inputs)
    cs.fuse(described, "kfac", fishers=infos)
    keys = [of.bit_generator.seed_seq.spawn_key for of in streams]
    assert len(keys) == 6  # units, four merges, inputs
    assert len(set(keys)) == 6


def test_without_factors_of_the_head_no_merge_starts_at_its_rows(nets):
    frozen = {}
    for name, net in nets.items():
        frozen[name] = make()
        frozen[name].load_state_dict(net.state_dict())
        frozen[name][2].requires_grad_(False)
    candidates = cs.fuse(describe(frozen), **UNTRAINED).candidates
    assert set(KRONECKER) - {"kfac(0.1, class_heads)"} <= set(candidates)
    assert "kfac(0.1, class_heads)" not in candidates


def test_progress_never_stands_before_the_end(nets, described):
    infos = {name: cs.fisher(net, X[ROWS[name]], "kronecker") for name, net in nets.items()}
    steps = []
    cs.fuse(described, fishers=infos, inputs=X[HELD], progress=lambda done, total: steps.append((done, total)))
    total = steps[-1][1]
    counted = [done for done, of in steps if of == total]
    assert steps[-1] == (total, total)
    assert counted[:-1] == list(range(1, len(counted)))  # the last call says that all is done
    assert len(counted) - 1 <= total
