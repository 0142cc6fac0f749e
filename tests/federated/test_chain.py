"""A chain of merges: layers become those of a regression on all rows of what the sites' own networks compute."""

import threading
from functools import cache

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import consilience as cs
from consilience.errors import InputError, OptionError, UnsupportedError
from consilience.federated.requests.base import StandingAnswer
from consilience.federated.requests.layer_refits import RIDGE
from tests.copies import COPIES
from tests.federated.network_sites import SITES, fused, make, own

X, Y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)
IS_TEST = np.arange(len(Y)) % 3 == 0
LAYERS = (0, 2, 4)


def digits_network(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 10))


@cache
def digits():
    """Return rows of three sites with skewed classes, and networks trained from starts of their own."""
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.full(3, 0.5), size=10)
    owner = np.array([rng.choice(3, p=shares[y]) for y in Y])
    data, networks = {}, {}
    for number, site in enumerate("abc"):
        chosen = (owner == number) & ~IS_TEST
        data[site], network = (X[chosen], Y[chosen]), digits_network(number)
        optimiser = torch.optim.Adam(network.parameters(), 0.01)
        for _ in range(120):
            optimiser.zero_grad()
            functional.cross_entropy(network(torch.from_numpy(X[chosen])), torch.from_numpy(Y[chosen])).backward()
            optimiser.step()
        networks[site] = network.eval()
    return data, networks


def accuracy(module):
    with torch.no_grad():
        return float((module(torch.from_numpy(X[IS_TEST])).argmax(1).numpy() == Y[IS_TEST]).mean())


def regressed(fusion, data, layers=LAYERS):
    """Return the fused network, each layer in turn fitted by least squares on the rows of all sites, by pseudo-rows."""
    network = fusion.module_of(fusion.network).double()
    aligned = {site: model.double() for site, model in zip(data, fusion.aligned_models, strict=True)}
    for layer in layers:
        inputs, targets = [], []
        for site, (x, _) in data.items():
            with torch.no_grad():
                a = network[:layer](torch.from_numpy(x).double()).numpy()
                targets.append(aligned[site][: layer + 1](torch.from_numpy(x).double()).numpy())
            inputs.append(np.hstack([a, np.ones((len(a), 1))]))
        a, t, part = np.vstack(inputs), np.vstack(targets), network[layer]
        before = np.hstack([part.weight.detach().numpy(), part.bias.detach().numpy()[:, None]])
        strength = np.sqrt(RIDGE * np.mean((a**2).sum(axis=0)))
        rows = np.vstack([a, strength * np.eye(a.shape[1])])
        residuals = np.vstack([t - a @ before.T, np.zeros((a.shape[1], len(before)))])
        after = before + np.linalg.lstsq(rows, residuals, rcond=None)[0].T
        with torch.no_grad():
            part.weight.copy_(torch.from_numpy(after[:, :-1]))
            part.bias.copy_(torch.from_numpy(after[:, -1]))
    return network


def test_layers_are_those_of_a_regression_on_all_rows():
    data, networks = digits()
    fusion = cs.fuse(networks, method="consensus", example=torch.zeros(1, 64))
    ended = cs.federated.exchange("chain", fusion, data, rounds=3, min_count=0)
    expected = regressed(fusion, data)
    for layer in LAYERS:
        found = ended.network.arrays
        np.testing.assert_allclose(
            np.asarray(found[f"{layer}.weight"]), expected[layer].weight.detach().numpy(), atol=2e-4
        )
    assert np.all(np.diff(ended.history) >= 0.0)
    assert "what the sites' own networks compute" in ended.verdict.text
    assert accuracy(ended.model) > max(accuracy(network) for network in networks.values()) > accuracy(fusion.model)


def test_fewer_requests_refit_the_last_layers():
    data, networks = digits()
    fusion = cs.fuse(networks, method="consensus", example=torch.zeros(1, 64))
    for rounds in (1, 2):
        ended = cs.federated.exchange("chain", fusion, data, rounds=rounds, min_count=0)
        expected = regressed(fusion, data, LAYERS[-rounds:])
        for layer in LAYERS:
            found = torch.as_tensor(ended.network.arrays[f"{layer}.weight"]).double()
            torch.testing.assert_close(found, expected[layer].weight.detach(), atol=2e-4, rtol=0)
        assert f"{rounds} of 3 layers" in ended.verdict.text
        assert accuracy(ended.model) > accuracy(fusion.model)


def test_it_is_nearer_to_the_sites_than_layers_behind_fused_ones():
    data, networks = digits()
    fusion = cs.fuse(networks, method="consensus", example=torch.zeros(1, 64))
    chain, gram = (cs.federated.exchange(kind, fusion, data, rounds=3, min_count=0) for kind in ("chain", "gram"))
    gaps = {"chain": 0.0, "gram": 0.0}
    for site, (x, _) in data.items():
        inputs = torch.from_numpy(x)
        for name, ended in (("chain", chain), ("gram", gram)):
            gaps[name] += float(((ended.model(inputs) - networks[site](inputs)) ** 2).detach().sum())
    assert gaps["chain"] < gaps["gram"]


def test_networks_whose_units_are_turned_round_come_back_as_one():
    x, y = SITES["a"]
    network = own("a")
    turned = nn.Sequential(*(part if isinstance(part, nn.ReLU) else nn.Linear(part.in_features, part.out_features)
                             for part in network)).eval()  # fmt: skip
    order, scale = torch.randperm(8, generator=torch.Generator().manual_seed(0)), torch.linspace(0.5, 2.0, 8)
    with torch.no_grad():
        turned[0].weight.copy_(network[0].weight[order] * scale[:, None])
        turned[0].bias.copy_(network[0].bias[order] * scale)
        turned[2].weight.copy_(network[2].weight[:, order] / scale)
        turned[2].bias.copy_(network[2].bias)
        turned[4].load_state_dict(network[4].state_dict())
    fusion = cs.fuse({"a": network, "b": turned}, method="consensus", example=torch.zeros(1, 3))
    ended = cs.federated.exchange("chain", fusion, {"a": (x, y), "b": (x[:120], y[:120])}, rounds=3, min_count=0)
    inputs = torch.from_numpy(x)
    torch.testing.assert_close(ended.model(inputs), network(inputs), atol=2e-2, rtol=2e-2)


def test_a_site_answers_with_the_module_that_it_has_though_units_were_rescaled_to_be_matched():
    data, networks = digits()
    fusion = cs.fuse(networks, method="consensus", example=torch.zeros(1, 64))
    request = cs.federated.request("chain", fusion)
    for site, network in networks.items():
        mine = cs.federated.answer(request, data[site], module=network)
        held = cs.federated.answer(
            request, data[site], module=fusion.module_of(fusion.inputs["abc".index(site)].as_sent)
        )
        assert mine.data == held.data


def test_convolutions_take_part():
    def convolutional(seed):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return nn.Sequential(
                nn.Conv2d(1, 4, 3, padding=1, stride=2), nn.ReLU(), nn.Conv2d(4, 5, 2, bias=False), nn.ReLU(),
                nn.Flatten(), nn.Linear(45, 3),
            ).eval()  # fmt: skip

    rng = np.random.default_rng(0)
    data = {site: rng.normal(size=(160, 1, 8, 8)).astype(np.float32) for site in "ab"}
    fusion = cs.fuse(
        {"a": convolutional(0), "b": convolutional(1)}, method="consensus", example=torch.zeros(1, 1, 8, 8)
    )
    ended = cs.federated.exchange("chain", fusion, data, rounds=3, min_count=0)
    network = fusion.module_of(fusion.network).double()
    rows, targets = [], []
    for site, model in zip("ab", fusion.aligned_models, strict=True):
        x = torch.from_numpy(data[site]).double()
        rows.append(functional.unfold(x, 3, padding=1, stride=2).mT.reshape(-1, 9).numpy())
        targets.append(model.double()[0](x).flatten(2).mT.reshape(-1, 4).detach().numpy())
    a = np.hstack([np.vstack(rows), np.ones((sum(map(len, rows)), 1))])
    before = np.hstack([network[0].weight.detach().numpy().reshape(4, 9), network[0].bias.detach().numpy()[:, None]])
    strength = RIDGE * np.mean((a**2).sum(axis=0))
    change = np.linalg.solve(a.T @ a + strength * np.eye(10), a.T @ (np.vstack(targets) - a @ before.T))
    np.testing.assert_allclose(
        np.asarray(ended.network.arrays["0.weight"]).reshape(4, 9), (before + change.T)[:, :-1], atol=1e-5
    )
    assert np.all(np.diff(ended.history) >= 0.0)


@COPIES
def test_copies_of_a_network_stay_as_they_are():
    network = own("b")
    fusion = cs.fuse({"a": network, "b": network}, method="consensus", example=torch.zeros(1, 3))
    ended = cs.federated.exchange("chain", fusion, {"a": SITES["a"], "b": SITES["b"]}, rounds=2, min_count=0)
    for name, values in fusion.network.arrays.items():
        np.testing.assert_allclose(np.asarray(ended.network.arrays[name]), np.asarray(values), atol=1e-5)


def test_labels_change_nothing():
    request = cs.federated.request("chain", fused())
    x, y = SITES["a"]
    with_labels, without = (cs.federated.answer(request, data, module=own("a")) for data in ((x, y), x))
    assert with_labels.data == without.data


def test_a_site_that_stays_silent_is_carried_and_one_that_is_late_counts():
    first = cs.federated.request("chain", fused(), rounds=3)
    answers = {site: cs.federated.answer(first, data, module=own(site)) for site, data in SITES.items()}
    early = cs.federated.reduce(first, {site: answers[site] for site in "ab"})
    second = early.next_request
    again = {site: cs.federated.answer(second, SITES[site], module=own(site)) for site in "a"}
    late = {"c": StandingAnswer(first, answers["c"])}
    then = cs.federated.reduce(second, again, early.reduction.standing, late)
    assert set(then.reduction.carried) == {"b", "c"}
    assert "came late" in then.reduction.carried["c"]
    last = cs.federated.reduce(then.next_request, {}, then.reduction.standing)
    assert set(last.reduction.standing) == set("abc")
    ended = cs.federated.finish(fused(), [early, then, last])
    assert np.all(np.diff(ended.history) >= 0.0)
    assert [one["carried"] for one in ended.provenance["result"]["then"]["rounds"]] == [
        {},
        {"b": 1, "c": 1},
        {"a": 2, "b": 1, "c": 1},
    ]


@pytest.mark.parametrize(
    ("module", "error", "text"),
    [
        (make, InputError, "has other weights than all networks that were fused.*give your own trained network"),
        (None, OptionError, "chain asks for networks.*give the site's own trained network"),
        (nn.Linear(3, 3), InputError, "give the module of the network that was fused"),
        (7, OptionError, "expected a torch module"),
    ],
)
def test_a_site_answers_with_its_own_network_alone(module, error, text):
    request = cs.federated.request("chain", fused())
    with pytest.raises(error, match=text):
        cs.federated.answer(request, SITES["a"], module=module)


def test_few_rows_do_not_leave_and_unmatched_networks_are_refused():
    request = cs.federated.request("chain", fused())
    with pytest.raises(InputError, match="has 30 rows, and moments of layers over fewer than 100"):
        cs.federated.answer(request, SITES["a"][0][:30], module=own("a"))
    with pytest.raises(OptionError, match="says nothing of b, c"):
        cs.federated.exchange("chain", fused(), SITES, module={"a": own("a")})
    with pytest.raises(InputError, match=r"z: answers, and none of the networks"):
        cs.federated.exchange("chain", fused(), {"z": SITES["a"]})
    ensemble = cs.fuse(fused().aligned_models, method="ensemble", example=torch.zeros(1, 3))
    with pytest.raises(UnsupportedError, match="side by side"):
        cs.federated.request("chain", ensemble)


def test_over_a_folder_a_site_that_answers_once_is_carried_on(tmp_path):
    data, networks = digits()
    files = {}
    for site, network in networks.items():
        files[site] = tmp_path / f"{site}.safetensors"
        cs.save(network, files[site], symmetry=cs.symmetry(network, torch.zeros(1, 64)))
        cs.federated.send_folder(files[site], tmp_path / "round", site)
        np.savez(tmp_path / f"{site}.npz", x=data[site][0], y=data[site][1])
    results = {}

    def answer(site):
        results[site] = cs.federated.answer_folder(
            tmp_path / "round", site, tmp_path / f"{site}.npz", module=networks[site], follow=site != "c", timeout=60
        )

    threads = [threading.Thread(target=answer, args=(site,), daemon=True) for site in networks]
    for one in threads:
        one.start()
    output = tmp_path / "fused.safetensors"
    options = {"sites": list(networks), "method": "consensus", "then": "chain:3", "deadline": 5, "poll": 0.05}
    result = cs.federated.serve_folder(tmp_path / "round", output, **options)
    for one in threads:
        one.join(60)
    assert {site: len(sent) for site, sent in results.items()} == {"a": 3, "b": 3, "c": 1}
    assert [report.missing for report in result.reports] == [(), (), ("c",), ("c",)]
    assert result.reports[-1].carried[0].site == "c"
    own = cs.fuse({site: cs.load(files[site]) for site in networks}, method="consensus")
    message, standing, rounds = cs.federated.request("chain", own, rounds=3), {}, []
    while message is not None:
        sites = networks if message.number == 1 else "ab"
        answers = {site: cs.federated.answer(message, data[site], module=networks[site]) for site in sites}
        rounds.append(cs.federated.reduce(message, answers, standing))
        message, standing = rounds[-1].next_request, rounds[-1].reduction.standing
    expected, found = cs.federated.finish(own, rounds).network.arrays, cs.load(output).arrays
    for name, values in expected.items():
        np.testing.assert_allclose(np.asarray(found[name]), np.asarray(values), rtol=1e-4, atol=1e-5)
