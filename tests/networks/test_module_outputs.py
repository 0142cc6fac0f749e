"""One reader of what modules return: objects with logits are fused, compared and asked as bare tensors are."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import consilience as cs
from consilience.networks.landscape import Classification

DIGITS = load_digits()
X = torch.tensor(DIGITS.data / 16, dtype=torch.float32)
Y = torch.tensor(DIGITS.target)
SITES = {"lund": Y < 6, "oslo": Y > 3}


@dataclass
class Output:
    """As models of transformers return it."""

    logits: torch.Tensor
    past_key_values: Any = None
    hidden_states: Any = None


FORMS = {
    "tensor": lambda z, h: z,
    "dictionary": lambda z, h: {"logits": z, "hidden_states": (h,)},
    "dataclass": lambda z, h: Output(z, hidden_states=(h,)),
    "object": lambda z, h: SimpleNamespace(logits=z, cache=object()),
    "tensor and states": lambda z, h: (z, (h, h)),
}


class Net(nn.Module):
    def __init__(self, form, k=10):
        super().__init__()
        self.form, self.one, self.two = form, nn.Linear(64, 24), nn.Linear(24, k)

    def forward(self, x):
        hidden = torch.relu(self.one(x))
        return FORMS[self.form](self.two(hidden), hidden)


def trained(form, rows, seed):
    torch.manual_seed(seed)
    bare = Net("tensor")
    optimizer = torch.optim.Adam(bare.parameters(), lr=5e-3)
    for _ in range(80):
        optimizer.zero_grad()
        nn.functional.cross_entropy(bare(X[rows]), Y[rows]).backward()
        optimizer.step()
    net = Net(form)
    net.load_state_dict(bare.state_dict())
    return net.eval()


def fused(form, method=None):
    nets = {site: trained(form, rows, seed) for seed, (site, rows) in enumerate(SITES.items())}
    described = {site: cs.describe(nets[site], (X[rows], Y[rows]), classes=10) for site, rows in SITES.items()}
    return cs.fuse(described, method)


@pytest.fixture(scope="module")
def bare():
    return fused("tensor")


@pytest.mark.parametrize("form", [form for form in FORMS if form != "tensor"])
def test_networks_whose_output_has_logits_are_fused_as_those_that_return_them(form, bare):
    fusion = fused(form)
    assert fusion.verdict.text == bare.verdict.text
    assert fusion.verdict.candidates == bare.verdict.candidates
    for name, values in bare.model.state_dict().items():
        assert torch.equal(fusion.model.state_dict()[name], values), name
    torch.testing.assert_close(fusion.ensemble(X[:9]), bare.ensemble(X[:9]))
    descriptions = [one.inputs[0].description for one in (fusion, bare)]
    assert descriptions[0].own_error == descriptions[1].own_error


def test_they_are_evaluated_and_their_barrier_is_computed(tmp_path):
    nets = [trained("dataclass", rows, seed) for seed, rows in enumerate(SITES.values())]
    score = Classification(X[::9], Y[::9])(nets[0])
    plain = Classification(X[::9], Y[::9])(trained("tensor", SITES["lund"], 0))
    assert score == plain
    barrier = cs.barrier(*nets, Classification(X[::9], Y[::9]), points=3)
    assert np.isfinite(barrier.values["loss"]).all()


@pytest.mark.parametrize("shape", ["(n, 1)", "(n,)"])
def test_an_ensemble_of_one_number_is_the_mean_of_the_numbers(shape):
    class Number(nn.Module):
        def __init__(self, seed):
            super().__init__()
            torch.manual_seed(seed)
            self.layer = nn.Linear(64, 1)

        def forward(self, x):
            return self.layer(x) if shape == "(n, 1)" else self.layer(x)[:, 0]

    nets = [Number(seed) for seed in range(2)]
    ensemble = cs.fuse(nets, "ensemble").model
    torch.testing.assert_close(ensemble(X[:5]), (nets[0](X[:5]) + nets[1](X[:5])) / 2)


def test_an_ensemble_of_described_regressions_is_the_mean_of_the_numbers():
    torch.manual_seed(0)
    nets, targets = [Net("tensor", 3).eval() for _ in range(2)], torch.randn(len(X), 3)
    ensemble = cs.fuse([cs.describe(net, (X, targets)) for net in nets], "ensemble").model
    torch.testing.assert_close(ensemble(X[:5]), (nets[0](X[:5]) + nets[1](X[:5])) / 2)
    note = "several outputs of networks that nobody described are taken for classes"
    assert note in cs.fuse(nets, "ensemble").notes[0]


def test_an_ensemble_of_members_with_other_outputs_is_refused_in_a_line():
    class Heads(Net):
        def forward(self, x):
            return super().forward(x), self.one(x)

    ensemble = cs.fuse([Heads("tensor"), Net("tensor")], "ensemble").model
    with pytest.raises(cs.errors.InputError, match=r"outputs: expected tensors of the same shapes .* 2 outputs"):
        ensemble(X[:5])


def test_a_list_of_observations_is_taken():
    listed, labels = list(X.numpy()), Y
    described = cs.describe(Net("tensor"), (listed, labels), classes=10)
    assert described.description.n_observations == len(X)
