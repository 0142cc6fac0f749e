"""Laws of networks of different classes: known by names, in a head of all of them."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import consilience as cs
from consilience.errors import InputError
from consilience.networks.classes.union import unite_classes
from consilience.networks.inputs import DescribedNetwork
from consilience.networks.torch_modules import arrays_of_module
from tests.networks.described_nets import Reader

X, Y = load_digits(return_X_y=True)
X = torch.tensor(X / 16, dtype=torch.float32)
HELD = np.arange(len(X)) % 3 == 0


def site(names, seed, width=32):
    """Return a network trained on digits of some names, in their order, described, with its rows."""
    rows = torch.tensor(np.flatnonzero(~HELD & np.isin(Y, [int(name) for name in names])))
    labels = torch.tensor([names.index(str(label)) for label in Y[rows.numpy()]])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, len(names)))
        optimizer = torch.optim.Adam(net.parameters(), 5e-3)
        for _ in range(80):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(X[rows]), labels).backward()
            optimizer.step()
    return cs.describe(net.eval(), (X[rows], labels), classes=names, layers=True)


@pytest.fixture(scope="module")
def sites():
    return {
        "odd": site(["1", "3", "5", "7", "9"], 0),
        "low": site(["3", "2", "1", "0"], 1),
        "rest": site(["4", "6", "8", "0"], 2),
    }


def test_sites_of_different_classes_are_refused_unless_they_are_to_be_united(sites):
    with pytest.raises(InputError, match="classes='union'"):
        cs.fuse(sites)
    assert cs.check(sites)
    assert not cs.check(sites, classes="union")
    with pytest.raises(cs.errors.OptionError, match="expected 'union'"):
        cs.fuse(sites, classes="all")


def test_the_union_knows_what_no_site_knows(sites):
    fusion = cs.fuse(sites, classes="union")
    assert fusion.details["classes"] == [str(number) for number in range(10)]
    right = (fusion.model(X[HELD]).argmax(1).numpy() == Y[HELD]).mean()
    assert right > 0.8
    assert "is better than every site's own network; whether on real ones too" in fusion.verdict.text


def test_a_new_class_is_hardly_ever_answered_and_leaves_the_others_their_proportions(sites):
    described = [
        DescribedNetwork(name, name, arrays_of_module(one.module), None, one.module, None, one.description)
        for name, one in sites.items()
    ]
    for before, after in zip(described, unite_classes(described, X[:2]), strict=True):
        places = [after.description.classes.index(name) for name in before.description.classes]
        old, new = before.module(X).softmax(1), after.module(X).softmax(1)
        assert torch.allclose(new[:, places], old, atol=1e-3)
        missing = [number for number in range(10) if number not in places]
        assert new[:, missing].max() < np.exp(-10)
        assert after.description.class_counts[places].tolist() == before.description.class_counts.tolist()
        assert not after.description.class_counts[missing].any()
        own, widened = (of.description.layers["2"].outputs[0] for of in (before, after))
        np.testing.assert_array_equal(widened[np.ix_(places, places)], own)
        assert not widened[missing].any()


def test_the_order_of_the_sites_changes_nothing(sites):
    fused = [cs.fuse(order, classes="union", steps=0).model for order in (sites, dict(reversed(sites.items())))]
    assert torch.equal(fused[0](X), fused[1](X))


def test_counts_of_tokens_by_class_go_to_their_places_in_the_union():
    words = np.random.default_rng(0).integers(1, 40, (300, 12))
    described = [
        cs.describe(Reader(classes=2), (words, np.arange(300) % 2), classes=names) for names in (["b", "d"], ["c", "a"])
    ]
    networks = [
        DescribedNetwork(name, name, arrays_of_module(one.module), None, one.module, None, one.description)
        for name, one in zip(("lund", "oslo"), described, strict=True)
    ]
    united = unite_classes(networks, torch.as_tensor(words[:2]))
    for (b, d), network, one in zip(((1, 3), (2, 0)), united, described, strict=True):
        assert network.description.class_tokens == {
            b: one.description.class_tokens[0], d: one.description.class_tokens[1],
        }  # fmt: skip


def test_networks_without_names_or_without_a_linear_head_are_refused(sites):
    plain = sites["odd"].module
    with pytest.raises(InputError, match="does not name its classes"):
        cs.fuse({**sites, "plain": plain}, classes="union", example=X[:2])
    soft = nn.Sequential(plain, nn.Softmax(dim=1)).eval()
    rows = torch.tensor(np.flatnonzero(np.isin(Y, [1, 3, 5, 7, 9])))
    labels = torch.tensor([[1, 3, 5, 7, 9].index(label) for label in Y[rows.numpy()]])
    described = cs.describe(soft, (X[rows], labels), classes=["1", "3", "5", "7", "9"])
    with pytest.raises(InputError, match="does not end in a linear layer"):
        cs.fuse({"soft": described, "low": sites["low"]}, classes="union")
