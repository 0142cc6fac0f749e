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


def describe(nets, layers=True):
    return {name: cs.describe(net, (X[ROWS[name]], Y[ROWS[name]]), layers=layers) for name, net in nets.items()}


@pytest.fixture(scope="module")
def described(nets):
    return describe(nets)


def same_bytes(first, second):
    one, other = arrays_of_module(first), arrays_of_module(second)
    return all(torch.equal(one[key], other[key]) for key in one)


def test_the_default_merges_by_no_factors(nets, described):
    names = cs.fuse(described, **UNTRAINED).candidates
    assert not any(name.startswith(("kfac", "regmean")) for name in names)
    assert all(one.description.layers == {} for one in describe(nets, layers=None).values())


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

    def of_inputs(*arguments, **options):
        streams.append(arguments[5])
        return inputs(*arguments, **options)

    monkeypatch.setattr(InformedMethod, "_align_units", of_units)
    monkeypatch.setattr(cs.methods.KFAC, "merge", of_merge)
    monkeypatch.setattr(choice_inputs_module, "choice_inputs", of_inputs)
    cs.fuse(described, "kfac", fishers=infos)
    keys = [of.bit_generator.seed_seq.spawn_key for of in streams]
    assert len(keys) == 6  # units, four merges, inputs
    assert len(set(keys)) == 6
