"""The verdict on a method that the caller named: harm is said where the described inputs show it."""

from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import consilience as cs
from consilience.errors import HarmWarning
from consilience.networks.torch_modules import arrays_of_module
from tests.copies import COPIES

X, Y = load_digits(return_X_y=True)
X, Y = torch.tensor(X / 16, dtype=torch.float32), torch.tensor(Y)
CLASSES = {"lund": (0, 1, 2, 3, 4), "oslo": (4, 5, 6, 7), "turku": (7, 8, 9, 0)}
ROWS = {name: torch.isin(Y, torch.tensor(classes)) for name, classes in CLASSES.items()}


def make():
    return nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))


@pytest.fixture(scope="module")
def nets():
    found = {}
    for start, (name, rows) in enumerate(ROWS.items()):
        with torch.random.fork_rng():
            torch.manual_seed(start)
            net = make()
            optimizer = torch.optim.Adam(net.parameters(), 5e-3)
            for _ in range(80):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(X[rows]), Y[rows]).backward()
                optimizer.step()
        found[name] = net.eval()
    return found


@pytest.fixture(scope="module")
def described(nets):
    return {name: cs.describe(net, (X[ROWS[name]], Y[ROWS[name]])) for name, net in nets.items()}


def accuracy(net):
    with torch.no_grad():
        return float((net(X).argmax(1) == Y).double().mean())


def test_an_average_of_unmatched_units_is_said_to_harm(described, nets, tmp_path):
    fusion = cs.fuse(described, "average")
    verdict = fusion.verdict
    assert (verdict.code, verdict.harmless) == ("harm", False)
    assert set(verdict.candidates) == {"average", *(f"site:{name}" for name in nets)}
    assert "keep fusion.ensemble" in verdict.remedy
    with pytest.warns(HarmWarning):
        model = fusion.model
    assert accuracy(model) < max(map(accuracy, nets.values())) - 0.05
    with pytest.warns(HarmWarning):
        fusion.save(tmp_path / "fused.safetensors")


def test_the_verdict_changes_no_byte_of_the_network(described, nets):
    named = cs.fuse(described, "consensus", refit=False)
    plain = cs.fuse(
        nets, "consensus", example=X[:2], n_observations={n: int(r.sum()) for n, r in ROWS.items()}, refit=False
    )
    assert plain.verdict.candidates == {}
    assert all((named.network.arrays[key] == values).all() for key, values in plain.network.arrays.items())


@COPIES
def test_copies_of_one_network_are_neither_better_nor_worse(described):
    one = described["lund"]
    fusion = cs.fuse({"lund": one, "again": one}, "average")
    assert fusion.verdict.code == "named"
    assert fusion.verdict.harmless is None  # nobody saw the other classes
    other = arrays_of_module(fusion.model)
    assert all(torch.equal(other[key], values) for key, values in arrays_of_module(one.module).items())


def test_a_method_that_helps_is_said_to(described, nets):
    fusion = cs.fuse(described, "distill")
    assert "is better than every site's own network; whether on real ones too" in fusion.verdict.text
    assert accuracy(fusion.model) > max(map(accuracy, nets.values()))


def test_without_classes_or_trust_nothing_is_said(described):
    counts = {
        name: replace(one, description=cs.Description(one.description.digest, one.description.n_observations))
        for name, one in described.items()
    }
    assert cs.fuse(counts, "average", example=X[:2]).verdict.candidates == {}
    assert cs.fuse(described, "average", robust="median").verdict.candidates == {}
