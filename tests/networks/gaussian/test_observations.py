"""Bayesian networks say how many observations they saw, and those of our learners need no example to be fused."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import consilience as cs
from tests.tolerances import ROUNDING, SINGLE_PRECISION

COUNTS = (40, 25, 60)


def fitted(seed, n, **options):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    X = rng.normal(size=(n, 4)) + 2 * np.eye(3, 4)[y]
    learner = cs.learners.GaussianBNN(hidden=(6,), epochs=3, prior_variance=1.0, seed=seed, **options)
    return learner.fit(X, y, classes=3).posterior


@pytest.fixture(scope="module")
def bnns():
    return [fitted(seed, n) for seed, n in enumerate(COUNTS)]


def means(fusion):
    return {name: torch.as_tensor(values).numpy() for name, values in fusion.network.arrays.items()}


def same(one, other):
    expected = means(other)
    for name, values in means(one).items():
        np.testing.assert_allclose(values, expected[name], rtol=SINGLE_PRECISION, atol=SINGLE_PRECISION)


@pytest.mark.parametrize("method", ["kl", "w2", "average"])
def test_networks_of_our_learners_are_weighed_by_observations_and_need_no_example(bnns, method):
    plain = cs.fuse(bnns, method=method)
    same(plain, cs.fuse(bnns, method=method, weights=COUNTS, example=torch.zeros(2, 4)))
    assert [bnn.n_observations for bnn in bnns] == list(COUNTS)
    assert plain.model.n_observations == sum(COUNTS)


def test_weights_take_the_place_of_observations(bnns):
    equal = cs.fuse(bnns, weights=[1, 1, 1])
    assert [local.weight for local in equal.inputs] == pytest.approx([1 / 3] * 3)
    by_n = cs.fuse(bnns)
    assert [local.weight for local in by_n.inputs] == pytest.approx([n / sum(COUNTS) for n in COUNTS])


def test_where_one_network_does_not_say_all_count_alike(bnns):
    silent = cs.BayesianNetwork(bnns[0].module, bnns[0].means, bnns[0].variances)
    fusion = cs.fuse([silent, *bnns[1:]])
    assert [local.weight for local in fusion.inputs] == pytest.approx([1 / 3] * 3)
    assert fusion.model.n_observations is None


def test_outgoing_weights_are_shared_by_default(bnns):
    same(cs.fuse(bnns, method="kl"), cs.fuse(bnns, method="kl", outgoing="share"))
    side_by_side = cs.fuse(bnns, method="kl", regularization=0.0)
    loud = cs.fuse(bnns, method="kl", regularization=0.0, outgoing="sum")
    assert np.abs(means(side_by_side)["2.weight"]).sum() < np.abs(means(loud)["2.weight"]).sum()


def test_files_of_our_learners_are_fused_alone(bnns, tmp_path):
    for number, bnn in enumerate(bnns):
        cs.save(bnn, tmp_path / f"{number}.safetensors")
    files = sorted(tmp_path.iterdir())
    same(cs.fuse(files), cs.fuse(bnns))
    assert [cs.load(file).n_observations for file in files] == list(COUNTS)
    assert cs.load(files[0]).symmetry.proved


def test_the_number_of_observations_can_be_said_of_other_networks(bnns, tmp_path):
    other = cs.BayesianNetwork(bnns[0].module, bnns[0].means, bnns[0].variances)
    cs.save(other, tmp_path / "silent.safetensors")
    cs.save(other, tmp_path / "said.safetensors", n_observations=17)
    assert cs.load(tmp_path / "silent.safetensors").n_observations is None
    assert cs.load(tmp_path / "said.safetensors").n_observations == 17
    header = (tmp_path / "silent.safetensors").read_bytes()
    assert b"n_observations" not in header  # as files of earlier versions


@pytest.mark.parametrize("n", [0, -3, float("nan"), "many", True])
def test_a_number_of_observations_that_is_none_is_refused(bnns, n):
    with pytest.raises(cs.errors.InputError, match="n_observations: expected a positive number"):
        cs.BayesianNetwork(bnns[0].module, bnns[0].means, bnns[0].variances, n_observations=n)


def test_a_file_with_a_number_of_observations_that_is_none_is_refused(bnns, tmp_path):
    path = tmp_path / "bnn.safetensors"
    cs.save(bnns[0], path)
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    document = json.loads(header["__metadata__"]["consilience"])
    document["n_observations"] = -1.0
    header["__metadata__"]["consilience"] = json.dumps(document)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    with pytest.raises(cs.errors.FileFormatError, match="not valid at n_observations"):
        cs.load(path)


def test_made_up_inputs_are_none_of_the_sites(bnns):
    one, other = fitted(0, 30), fitted(5, 30)
    assert torch.equal(one.example, other.example)
    assert tuple(one.example.shape) == (2, 4)


def test_words_are_made_up_within_their_range():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.hidden, self.out = nn.Embedding(9, 5), nn.Linear(5, 6), nn.Linear(6, 2)

        def forward(self, x):
            return self.out(self.hidden(self.words(x).mean(1)).relu())

    rng = np.random.default_rng(0)
    learner = cs.learners.GaussianBNN(module=Words(), epochs=1)
    sites = [learner.fit(rng.integers(0, 9, (20, 4)), rng.integers(0, 2, 20), classes=2).posterior for _ in range(2)]
    assert sites[0].example.dtype == torch.int64
    assert int(sites[0].example.max()) < 9
    assert cs.fuse(sites, method="w2").model.n_observations == 40


def test_an_ensemble_by_class_counts_pools_the_predictive_probabilities(bnns):
    counts = np.array([[20, 20, 0], [0, 10, 15], [20, 0, 40.0]])
    X = np.random.default_rng(9).normal(size=(10, 4))
    fusion = cs.fuse(bnns, method="ensemble", class_counts=counts)
    pooled = fusion.model.predict(X, samples=8)
    children = np.random.default_rng(0).spawn(3)
    answers = np.stack([bnn.predict(X, 8, child) for bnn, child in zip(bnns, children, strict=True)])
    shares, prior = counts / counts.sum(axis=0), counts.sum(axis=0) / counts.sum()
    chains = np.einsum("jnc,jd->ncd", answers, shares)
    for chain, answer in zip(0.999 * chains + 0.001 * prior[:, None], pooled, strict=True):
        values, vectors = np.linalg.eig(chain)
        stationary = np.real(vectors[:, np.argmax(np.real(values))])
        np.testing.assert_allclose(answer, stationary / stationary.sum(), atol=1e-3)  # the jump itself is left out
    np.testing.assert_allclose(pooled.sum(axis=1), 1.0, rtol=ROUNDING)
    with pytest.raises(cs.errors.InputError, match="expected a row for each of 3 models"):
        cs.fuse(bnns, method="ensemble", class_counts=counts[:2])


def test_the_ensemble_of_a_fusion_averages_predictive_probabilities(bnns):
    fusion = cs.fuse(bnns)
    kept = cs.fuse(bnns, "ensemble").model
    rows = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    weights = [local.weight for local in fusion.inputs]
    alone = [bnn.predict(rows, samples=400, rng=0) for bnn in bnns]
    mean = sum(weight * answer for weight, answer in zip(weights, alone, strict=True))
    assert np.allclose(fusion.ensemble.predict(rows, samples=400, rng=1), mean, atol=0.1)
    assert type(fusion.ensemble) is type(kept)
