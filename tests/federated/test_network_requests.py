"""The second message about networks: heads and layers from sums are those of all rows, whoever answers when."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

import consilience as cs
from consilience.errors import InputError, OptionError, UnsupportedError
from consilience.federated.requests.base import Content, StandingAnswer
from consilience.federated.requests.head import RIDGE
from consilience.federated.requests.network_state import PREFIX, module_of_state
from consilience.networks.parametrised_layers import plain_module
from tests.copies import COPIES
from tests.federated.network_sites import SITES, fused, make, own, rows, trained
from tests.federated.rounds import mixture
from tests.federated.test_request_mutants import mutant, said

EXACT = 1e-6
"""Rows of a head are written in single precision."""


def last_features(network, x):
    with torch.no_grad():
        return network[:-1](torch.from_numpy(x)).double().numpy()


def pooled():
    return tuple(np.concatenate(parts) for parts in zip(*SITES.values(), strict=True))


def ridge(features, y, ridge=RIDGE):
    """Return decisions of the ridge regression of indicators, by pseudo-rows."""
    deviation = features.std(0)
    deviation = np.where(deviation > 1e-12, deviation, 1.0)
    phi, targets = (features - features.mean(0)) / deviation, np.eye(3)[y]
    penalty = np.sqrt(ridge * len(y)) * np.eye(phi.shape[1])
    stacked = np.vstack([targets - targets.mean(0), np.zeros((phi.shape[1], 3))])
    found, _, _, _ = np.linalg.lstsq(np.vstack([phi, penalty]), stacked, rcond=None)
    return phi @ found + targets.mean(0)


def test_the_head_is_that_of_all_rows_up_to_the_scale_of_its_logits():
    x, y = pooled()
    ended = cs.federated.exchange("head", fused(), SITES, min_count=0)
    logits = ended.model(torch.from_numpy(x)).detach().double().numpy()
    expected = ridge(last_features(fused().model, x), y)
    centred = [values - values.mean(axis=1, keepdims=True) for values in (logits, expected)]
    factor = (centred[0] * centred[1]).sum() / (centred[1] ** 2).sum()
    assert factor > 1.0
    np.testing.assert_allclose(centred[0], factor * centred[1], atol=1e-4 * np.abs(centred[0]).max())
    assert np.mean(logits.argmax(1) == y) > 0.9
    assert "its head is exact: that of the 690 rows" in ended.verdict.text
    for name, values in fused().network.arrays.items():  # all other layers stay
        if not name.startswith("4."):
            assert torch.equal(torch.as_tensor(values), torch.as_tensor(ended.network.arrays[name]))


def test_the_scale_of_the_logits_lowers_the_cross_entropy_and_changes_no_decision():
    x, y = pooled()
    model = cs.federated.exchange("head", fused(), SITES, min_count=0).model
    logits = model(torch.from_numpy(x)).detach().double()
    losses = [
        float(torch.nn.functional.cross_entropy(scale * logits, torch.from_numpy(y))) for scale in (0.3, 1.0, 3.0)
    ]
    assert losses[1] < losses[0]
    assert losses[1] < losses[2]


def test_who_answers_late_or_after_another_request_counts_as_if_in_time():
    first = cs.federated.request("head", fused(), rounds=2)
    answers = {site: cs.federated.answer(first, data, module=make, min_count=0) for site, data in SITES.items()}
    whole = cs.federated.reduce(first, answers)
    early = cs.federated.reduce(first, {site: answers[site] for site in "ab"})
    second = early.next_request
    again = cs.federated.answer(second, SITES["a"], module=make, min_count=0)
    late = {"c": StandingAnswer(first, answers["c"])}
    ended = cs.federated.reduce(second, {"a": again}, early.reduction.standing, late)
    assert set(ended.reduction.carried) == {"b", "c"}
    assert "came late" in ended.reduction.carried["c"]
    for name, values in whole.reduction.content.arrays.items():
        np.testing.assert_allclose(ended.reduction.content.arrays[name], values, rtol=1e-6, atol=1e-6)


def second_moments(network, layer, x):
    with torch.no_grad():
        inputs = network[:layer](torch.from_numpy(x)).double().numpy()
    return np.hstack([inputs, np.ones((len(inputs), 1))])


def test_layers_are_refitted_one_behind_another_as_on_all_rows():
    fusion = fused()
    ended = cs.federated.exchange("gram", fusion, SITES, rounds=3, min_count=0)
    network = fusion._rebuild(fusion.network)
    models = dict(zip(SITES, fusion.aligned_models, strict=True))
    n = sum(len(y) for _, y in SITES.values())
    for layer in (0, 2, 4):
        reads = {site: second_moments(network, layer, x) for site, (x, _) in SITES.items()}
        stacked = np.vstack(list(reads.values()))
        targets = []
        for site, inputs in reads.items():
            own = models[site][layer]
            targets.append(inputs @ np.hstack([own.weight.detach().numpy(), own.bias.detach().numpy()[:, None]]).T)
        part = network[layer]
        before = np.hstack([part.weight.detach().double().numpy(), part.bias.detach().double().numpy()[:, None]])
        strength = np.sqrt(1e-4 * np.mean((stacked**2).sum(axis=0) / n) * n)
        residuals = np.vstack(targets) - stacked @ before.T
        change, _, _, _ = np.linalg.lstsq(
            np.vstack([stacked, strength * np.eye(stacked.shape[1])]),
            np.vstack([residuals, np.zeros((stacked.shape[1], len(before)))]),
            rcond=None,
        )
        after = before + change.T
        with torch.no_grad():
            part.weight.copy_(torch.from_numpy(after[:, :-1]))
            part.bias.copy_(torch.from_numpy(after[:, -1]))
        found = ended.network.arrays
        np.testing.assert_allclose(np.asarray(found[f"{layer}.weight"]), after[:, :-1], atol=2e-4)
        np.testing.assert_allclose(np.asarray(found[f"{layer}.bias"]), after[:, -1], atol=2e-4)
    assert np.all(np.diff(ended.history) >= 0.0)
    assert ended.history[0] == 0.0


@COPIES
def test_equal_networks_stay_as_they_are_under_gram():
    x, y = rows(5, 300)
    network = trained(0, x, y)
    same = trained(0, x, y)
    fusion = cs.fuse({"a": network, "b": same}, method="consensus", example=torch.zeros(1, 3))
    ended = cs.federated.exchange("gram", fusion, {"a": (x, y), "b": (x[:150], y[:150])}, min_count=0)
    for name, values in fusion.network.arrays.items():
        np.testing.assert_allclose(np.asarray(ended.network.arrays[name]), np.asarray(values), atol=1e-5)


def test_the_sites_networks_are_in_no_message():
    request = cs.federated.request("gram", fused())
    assert request.content.private is not None
    n_network = sum(values.size for values in request.content.arrays.values())
    assert n_network == sum(np.asarray(values).size for values in fused().network.arrays.values())
    assert len(request.data) < 8 * n_network + 4096


def test_over_a_folder_with_a_missing_site_the_head_is_that_of_those_who_answered(tmp_path):
    files = {}
    for site, network in zip(SITES, fused().inputs, strict=True):
        module = fused()._rebuild(network.network)
        files[site] = tmp_path / f"{site}.safetensors"
        cs.save(module, files[site], symmetry=fused().network.symmetry)
        cs.federated.send_folder(files[site], tmp_path / "round", site)
    output, results = tmp_path / "fused.safetensors", {}

    def follow(site):
        np.savez(tmp_path / f"{site}.npz", x=SITES[site][0], y=SITES[site][1])
        results[site] = cs.federated.answer_folder(
            tmp_path / "round", site, tmp_path / f"{site}.npz", module=make, follow=True, timeout=60
        )

    followers = [threading.Thread(target=follow, args=(site,), daemon=True) for site in "ab"]
    for one in followers:
        one.start()
    options = {"sites": list(SITES), "method": "consensus", "then": "head", "poll": 0.05}
    result = cs.federated.serve_folder(tmp_path / "round", output, deadline=8, **options)
    for one in followers:
        one.join(60)
    assert [len(sent) for sent in results.values()] == [1, 1]
    assert result.reports[-1].missing == ("c",)
    own = cs.fuse({site: cs.load(files[site]) for site in SITES}, method="consensus")
    expected = cs.federated.exchange("head", own, {site: SITES[site] for site in "ab"}, module=make)
    found = cs.load(output).arrays
    np.testing.assert_allclose(
        np.asarray(found["4.weight"]), np.asarray(expected.network.arrays["4.weight"]), atol=EXACT
    )


@pytest.mark.parametrize(
    ("data", "module", "error", "text"),
    [
        (SITES["a"], None, OptionError, "module: is needed"),
        (SITES["a"], torch.nn.Linear(3, 3), InputError, "give the module of the network that was fused"),
        (SITES["a"][0], make, InputError, "has no labels"),
        ((SITES["a"][0], SITES["a"][1] + 1), make, InputError, "expected labels 0 to 2"),
        ((SITES["a"][0][:3], SITES["a"][1][:3]), make, InputError, "has no class of 5 rows or more"),
        ((SITES["a"][0][:, :2], SITES["a"][1]), make, InputError, "does not take"),
        (
            SITES["a"],
            lambda: torch.nn.Sequential(*make(), torch.nn.Softmax(1)),
            InputError,
            "does not answer with the layer",
        ),
    ],
)
def test_a_site_says_why_it_cannot_answer(data, module, error, text):
    request = cs.federated.request("head", fused())
    with pytest.raises(error, match=text):
        cs.federated.answer(request, data, module=module)


def test_requests_that_no_network_has_are_refused():
    mixtures = cs.fuse([mixture(seed) for seed in range(2)])
    for kind in ("head", "gram", "chain"):
        with pytest.raises(UnsupportedError, match=f"{kind} is for fused networks"):
            cs.federated.request(kind, mixtures)
    ensemble = cs.fuse(fused().aligned_models, method="ensemble", example=torch.zeros(1, 3))
    with pytest.raises(UnsupportedError, match="side by side"):
        cs.federated.request("head", ensemble)


@pytest.mark.parametrize("kind", ["head", "gram", "chain"])
def test_answers_that_no_rows_give_are_refused_by_name(kind):
    request = cs.federated.request(kind, fused(), rounds=3)
    honest = cs.federated.answer(request, SITES["a"], module=own("a"), min_count=0)
    arrays = dict(honest.content.arrays)
    scatter, d = ("scatter", 6) if kind == "head" else ("covariance.0", 3)
    diagonal = np.eye(d)[np.triu_indices(d)]
    changes = {
        "not positive semidefinite": {scatter: arrays[scatter] - 10.0 * np.abs(arrays[scatter]).max() * diagonal},
        "NaN or infinite": {scatter: np.full_like(arrays[scatter], np.nan)},
        "expected": {scatter: arrays[scatter][:-1]},
    }
    if kind == "head":
        changes["no counts of rows"] = {"counts": arrays["counts"] + 0.5}
        changes["it states 250 rows"] = {"counts": arrays["counts"] + 1.0}
        changes["do not add up"] = {"sums": arrays["sums"] + 1.0}
    for text, change in changes.items():
        bad = replace(honest, content=Content(honest.content.fields, {**arrays, **change}))
        with pytest.raises(InputError, match=f"a: answer: .*{text}"):
            cs.federated.reduce(request, {"a": bad})
    if kind == "chain":
        bad = replace(honest, content=Content(honest.content.fields, {**arrays, "cross.0": arrays["cross.0"].T}))
        with pytest.raises(InputError, match=r"layer 0 has moments .*, expected"):
            cs.federated.reduce(request, {"a": bad})
    if kind != "head":
        with pytest.raises(InputError, match="none of the networks that were fused is called so"):
            cs.federated.reduce(request, {"z": honest})


def convolutional():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 3, 3), torch.nn.ReLU(), torch.nn.Conv2d(3, 4, 2), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(36, 3),
    )  # fmt: skip


@COPIES
def test_convolutions_are_refitted_and_have_heads():
    rng = np.random.default_rng(0)
    data = {site: (rng.random((150, 1, 6, 6)).astype(np.float32), rng.integers(0, 3, 150)) for site in "ab"}
    torch.manual_seed(0)
    network = convolutional().eval()
    fusion = cs.fuse({"a": network, "b": network}, method="consensus", example=torch.zeros(1, 1, 6, 6))
    same = cs.federated.exchange("gram", fusion, data, rounds=3, min_count=0)
    inputs = torch.from_numpy(data["a"][0])
    torch.testing.assert_close(same.model(inputs), fusion.model(inputs), atol=1e-4, rtol=1e-4)
    ended = cs.federated.exchange("head", same, data, min_count=0)
    features = network[:-1](inputs).detach()
    assert ended.model(inputs).shape == (150, 3)
    torch.testing.assert_close(ended.model[:-1](inputs).detach(), features, atol=1e-4, rtol=1e-4)


@COPIES
def test_a_table_of_embeddings_is_no_head():
    network = torch.nn.Sequential(torch.nn.Embedding(7, 5), torch.nn.Flatten(), torch.nn.Linear(20, 4), torch.nn.ReLU(),
                                  torch.nn.Linear(4, 3)).eval()  # fmt: skip
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    fusion = cs.fuse({"a": network, "b": network}, method="consensus", example=tokens)
    assert cs.federated.request("head", fusion).content.fields["head"] == "4"


@pytest.mark.parametrize("kind", ["head", "gram", "chain"])
def test_mutated_messages_are_answered_reduced_or_refused(kind, tmp_path):
    request = cs.federated.request(kind, fused(), rounds=2)
    answers = {site: cs.federated.answer(request, data, module=own(site), min_count=0) for site, data in SITES.items()}
    n_taken = 0
    for number in range(40):
        (tmp_path / "request").write_bytes(mutant(request.data, number))
        (tmp_path / "answer").write_bytes(mutant(answers["a"].data, number))
        answer = said(lambda: cs.federated.answer(tmp_path / "request", SITES["a"], module=own("a")))
        reduced = said(lambda: cs.federated.reduce(request, {"a": tmp_path / "answer", "b": answers["b"]}))
        contents = [one.content for one in (answer,) if one is not None]
        contents += [one.reduction.content for one in (reduced,) if one is not None]
        n_taken += len(contents)
        assert all(np.isfinite(values).all() for content in contents for values in content.arrays.values()), number
    assert n_taken < 20


def test_sites_answer_by_the_weights_that_layers_in_parts_stand_for():
    def parametrised(seed):
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 3)))

    sent = plain_module(parametrised(0)).state_dict()
    network = module_of_state(parametrised(1), {f"{PREFIX}{name}": values.numpy() for name, values in sent.items()})
    assert all(torch.equal(values, sent[name]) for name, values in network.state_dict().items())
