"""Descriptions that have the Kronecker factors of layers: what they are of, what is withheld, files, bad input."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from torch import nn

import consilience as cs
from consilience.api.kinds import inspect_file
from consilience.networks.descriptions import layers as layers_module
from consilience.networks.descriptions.files import read_description, write_description
from consilience.networks.descriptions.layers import InputSample
from consilience.networks.fisher.kronecker import KroneckerFactors, factor_arrays
from tests.networks.described_nets import Reader, convolutional, perceptron, rows
from tests.tolerances import SINGLE_PRECISION

pytestmark = pytest.mark.covering(2)


def described(net=None, **options):
    X, y = rows()
    return cs.describe(perceptron() if net is None else net, (X, y), **{"layers": True, **options})


def assert_same(one, other):
    assert set(one) == set(other)
    for layer, factors in one.items():
        for name in ("inputs", "outputs"):
            a, b = getattr(factors, name), getattr(other[layer], name)
            np.testing.assert_allclose(a, b, atol=10 * SINGLE_PRECISION * np.abs(b).max(), rtol=0, err_msg=layer)


# -- What they are.


def test_factors_are_those_of_fisher_on_the_same_observations():
    net = perceptron()
    X, _ = rows()
    description = described(net).description
    assert description.layer_observations == len(X)
    assert description.layer_likelihood == "categorical"
    assert_same(description.layers, cs.fisher(net, torch.from_numpy(X), "kronecker").layers)


def test_of_networks_without_classes_outputs_are_means():
    net, (X, _) = perceptron(), rows()
    description = cs.describe(net, X, layers=True).description
    assert description.layer_likelihood == "gaussian"
    assert_same(description.layers, cs.fisher(net, torch.from_numpy(X), "kronecker", "gaussian").layers)


def test_of_many_observations_a_sample_stands_for_all(monkeypatch):
    monkeypatch.setattr("consilience.networks.descriptions.layers.MAX_LAYER_OBSERVATIONS", 200)
    net, (X, y) = perceptron(), rows(counts=(1500, 1200, 900))
    order = np.argsort(y)  # sorted by class, as files often are
    description = cs.describe(net, (X[order], y[order]), layers=True).description
    assert description.layer_observations == 200
    everything = cs.fisher(net, torch.from_numpy(X), "kronecker").layers
    for layer, factors in description.layers.items():
        expected = np.trace(everything[layer].inputs[0])
        assert np.trace(factors.inputs[0]) == pytest.approx(expected, rel=0.15)


def test_a_sample_is_uniform():
    taken = np.zeros(50)
    for seed in range(400):
        sample = InputSample(10, _rng=np.random.default_rng(seed))
        for block in np.split(np.arange(50), [7, 30]):
            sample.add(torch.tensor(block[:, None]), np.zeros(len(block), int))
        taken[[int(of) for of in sample.inputs]] += 1
    assert len(sample.inputs) == 10
    # Each is taken with probability 1/5: 80 times of 400, with a standard deviation of 8.
    assert np.abs(taken - 80).max() < 5 * 8


@pytest.mark.parametrize("n_beyond", [0, 1, 19, 20, 50])
def test_the_rows_that_factors_leave_out_are_none_or_many(monkeypatch, n_beyond):
    monkeypatch.setattr("consilience.networks.descriptions.layers.MAX_LAYER_OBSERVATIONS", 200)
    X, y = rows(counts=(100, 100 + n_beyond, 0))
    description = cs.describe(perceptron(), (X, y), classes=3, layers=True).description
    n, m = len(X), description.layer_observations
    assert m <= 200
    assert n == m or n - m >= 20
    # The mean of all and the factors give the sum of those left out, which is no row.
    left_out = n * description.inputs.mean - m * description.layers["0"].inputs[0, -1, :-1]
    if n > m:
        assert np.abs(X - left_out).max(axis=1).min() > 0.1


@pytest.mark.parametrize("n_rare", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [250, 900])
def test_the_number_of_observations_does_not_tell_of_withheld_ones(monkeypatch, n, n_rare):
    monkeypatch.setattr("consilience.networks.descriptions.layers.MAX_LAYER_OBSERVATIONS", 200)
    X, y = rows(counts=(n, n_rare, 0))
    with pytest.warns(cs.errors.WithheldWarning):
        description = cs.describe(perceptron(), (X, y), classes=3, layers=True).description
    assert description.layer_observations == 200
    with pytest.warns(cs.errors.WithheldWarning):
        scarce = cs.describe(perceptron(), rows(counts=(150, n_rare, 0)), classes=3, layers=True).description
    assert scarce.layer_observations == 150


def test_of_a_sample_that_is_mostly_withheld_nothing_is_said(monkeypatch):
    monkeypatch.setattr("consilience.networks.descriptions.layers.MAX_LAYER_OBSERVATIONS", 200)
    X, y = rows(counts=(600, 290, 290))
    with pytest.warns(cs.errors.WithheldWarning):
        description = cs.describe(perceptron(), (X, y), min_count=295, layers=True).description
    assert not description.layers
    assert "second moments of layers are left out: too many" in " ".join(description.notes)


def test_classes_that_are_withheld_do_not_enter():
    X, y = rows(counts=(150, 120, 3))
    net = perceptron()
    with pytest.warns(cs.errors.WithheldWarning):
        with_few = cs.describe(net, (X, y), layers=True).description
    without = cs.describe(net, (X[y < 2], y[y < 2]), classes=3, layers=True).description
    assert with_few.layer_observations == 270
    assert_same(with_few.layers, without.layers)
    kept = cs.describe(net, (X, y), min_count=0, layers=True).description
    assert kept.layer_observations == 273


def test_of_few_observations_nothing_is_said_or_only_diagonals():
    X, y = rows(counts=(40, 30, 20))
    with pytest.warns(cs.errors.WithheldWarning, match="fewer than 100"):
        few = cs.describe(perceptron(), (X, y), layers=True).description
    assert not few.layers
    X, y = rows(counts=(40, 40, 30), d=60)
    some = cs.describe(perceptron(d=60), (X, y), layers=True).description
    assert "only its diagonal leaves" in " ".join(some.notes)
    assert not (some.layers["0"].inputs * (1 - np.eye(61))).any()
    assert (some.layers["2"].inputs * (1 - np.eye(9))).any()


def off_diagonal(matrix, k):
    return np.delete(matrix[k], k)


@pytest.mark.parametrize("usual", [0.0, -0.3])
@pytest.mark.parametrize("n_rare", [1, 4, 5])
def test_a_column_that_few_observations_have_is_reduced_to_its_diagonal(tmp_path, usual, n_rare):
    X, y = rows()
    X[:, 2] = usual
    X[7 : 7 + n_rare, 2] = 4.0
    net = perceptron()
    information = cs.fisher(net, torch.from_numpy(X), "kronecker").layers
    description = cs.describe(net, (X, y), layers=True).description
    for layers in (information, description.layers):
        A = layers["0"].inputs[0]
        assert A[2, 2] == pytest.approx(np.square(X[:, 2]).mean(), rel=1e-5)
        assert off_diagonal(A, 2).any() == (n_rare >= 5)
        assert off_diagonal(A, 1).any()
    assert off_diagonal(cs.describe(net, (X, y), min_count=0, layers=True).description.layers["0"].inputs[0], 2).any()
    write_description(tmp_path / "a.safetensors", description)
    text = " ".join(inspect_file(tmp_path / "a.safetensors").document["people"])
    assert "of a row that fewer than 5 observations make non-zero" in text


def test_a_unit_that_one_observation_wakes_is_reduced_to_its_diagonal():
    X, y = rows()
    X[:, 2] = 0.0
    X[7, 2] = 4.0
    net = perceptron()
    with torch.no_grad():
        net[0].weight[3] = torch.tensor([0.0, 0, 1, 0, 0, 0])
        net[0].bias[3] = -1.0
    layers = cs.describe(net, (X, y), layers=True).description.layers
    assert layers["2"].inputs[0, 3, 3] > 0
    assert not off_diagonal(layers["2"].inputs[0], 3).any()
    assert layers["0"].outputs[0, 3, 3] > 0
    assert not off_diagonal(layers["0"].outputs[0], 3).any()


def test_few_images_that_light_a_channel_are_reduced_and_counted_once_for_all_positions():
    images = torch.rand(200, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    images[2:, 1] = 0.0  # two images of 36 positions each
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 2))
    A = cs.describe(net, (images, np.arange(200) % 2), layers=True).description.layers["0"].inputs[0]
    assert all(A[k, k] > 0 and not off_diagonal(A, k).any() for k in range(9, 18))
    assert all(off_diagonal(A, k).any() for k in range(9))


def test_factors_are_said_only_where_they_are_asked_for():
    assert not described(layers=None).description.layers
    assert not described(layers=False).description.layers
    n_bytes = layers_module.factor_bytes(perceptron())
    assert n_bytes == sum(values.nbytes for values in factor_arrays(described().description.layers).values())


def test_networks_without_such_layers_are_described_all_the_same():
    frozen = perceptron().requires_grad_(False)
    assert not described(frozen).description.layers
    batches = [(torch.randint(1, 40, (60, length)), torch.arange(60) % 2) for length in (5, 5, 7)]
    description = cs.describe(Reader(), batches, layers=True).description
    assert not description.layers
    assert "inputs have several lengths" in " ".join(description.notes)


def test_texts_and_images_have_layers():
    words = torch.randint(1, 40, (150, 9), generator=torch.Generator().manual_seed(0))
    assert set(cs.describe(Reader(), (words, np.arange(150) % 2), layers=True).description.layers) == {"out"}
    images = torch.randn(200, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    layers = cs.describe(convolutional(), (images, np.arange(200) % 3), layers=True).description.layers
    assert {path: factors.sizes for path, factors in layers.items()} == {
        "0": (1, 4, 10),
        "3": (1, 6, 37),
        "8": (1, 3, 7),
    }


def test_describing_leaves_channels_and_features_as_they_are():
    one, other = described(layers=True).description, described(layers=False).description
    np.testing.assert_array_equal(one.class_features, other.class_features)
    for path, channels in one.channels.items():
        np.testing.assert_array_equal(channels.mean, other.channels[path].mean)


# -- Files.


def test_what_is_saved_is_loaded(tmp_path):
    network = described()
    cs.save(network, tmp_path / "a.safetensors")
    path = tmp_path / "a.description.safetensors"
    read = read_description(path)
    for layer, factors in network.description.layers.items():
        np.testing.assert_array_equal(read.layers[layer].inputs, factors.inputs)
        np.testing.assert_array_equal(read.layers[layer].outputs, factors.outputs)
    write_description(tmp_path / "b.safetensors", replace(read, sha256=None))
    assert (tmp_path / "b.safetensors").read_bytes() == path.read_bytes()
    X, y = rows()
    cs.save(perceptron(), tmp_path / "c.safetensors", data=(X, y), layers=False)
    assert not read_description(tmp_path / "c.description.safetensors").layers


def tampered(tmp_path, change):
    write_description(tmp_path / "a.safetensors", described().description)
    with safe_open(tmp_path / "a.safetensors", "numpy") as file:
        metadata = file.metadata()
    arrays = load_file(tmp_path / "a.safetensors")
    change(arrays)
    save_file(arrays, tmp_path / "b.safetensors", metadata)
    return tmp_path / "b.safetensors"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a["layers/0/inputs"].__setitem__((0, 0), np.nan), "second moments of the inputs of 0 have NaN"),
        (lambda a: a["layers/2/outputs"].__setitem__((0, 0), -9.0), "output gradients of 2 have a negative eigenvalue"),
        (lambda a: a.__setitem__("layers/0/inputs", a["layers/0/inputs"][:, 1:]), "not those of sizes"),
        (lambda a: a.pop("layers/0/outputs"), "lacks the tensors layers/0/outputs"),
    ],
)
def test_a_file_of_contradictory_factors_is_refused_by_name(tmp_path, change, message):
    with pytest.raises(cs.errors.InputError, match=message):
        read_description(tampered(tmp_path, change))


def test_statements_that_contradict_each_other_are_refused():
    description = described().description
    with pytest.raises(cs.errors.InputError, match=r"second moments of layers are of 9e\+09"):
        replace(description, layer_observations=9e9)
    with pytest.raises(cs.errors.InputError, match="negative eigenvalue"):
        replace(description, layers={"0": KroneckerFactors(-np.eye(7)[None], np.eye(8)[None], has_bias=True)})
    wrong = replace(description, layers={"0": KroneckerFactors(np.eye(5)[None], np.eye(8)[None], has_bias=True)})
    with pytest.raises(cs.errors.InputError, match="describes another layer 0 than"):
        cs.fuse([perceptron(), perceptron(1)], descriptions=[wrong, None], example=torch.zeros(2, 6))
    with pytest.raises(cs.errors.OptionError, match="layers"):
        described(layers="all")


def test_statistical_models_have_no_layers():
    from sklearn.cluster import KMeans

    data = np.random.default_rng(0).normal(size=(50, 2))
    model = KMeans(n_clusters=2, n_init=1, random_state=0).fit(data)
    with pytest.raises(cs.errors.OptionError, match="layers: is for networks"):
        cs.describe(model, layers=True)


def test_a_bias_free_grouped_network_has_factors_by_group():
    net = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4, bias=False), nn.Flatten(), nn.Linear(16, 2))
    images = torch.randn(150, 4, 4, 4, generator=torch.Generator().manual_seed(0))
    factors = cs.describe(net, (images, np.arange(150) % 2), layers=True).description.layers["0"]
    assert factors.sizes == (4, 1, 9)
    assert not factors.has_bias
