"""What sites say of Bayesian networks: measured, withheld, bound to means and variances, written, refused."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import consilience as cs
from consilience.federated.check import check_files
from consilience.files.safetensors_file import SafetensorsFile
from tests.networks.described_nets import CLASSES, rows

COUNTS = (150, 120, 90)


def bnn_of(seed=0, named=None):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    means = {name: values.detach() for name, values in module.named_parameters()}
    variances = {key: torch.full_like(values, 0.01) for key, values in means.items()}
    return cs.BayesianNetwork(module, means, variances, classes=named)


def moved(bnn):
    """Return a network one of whose variances is another."""
    variances = copy.deepcopy(dict(bnn.variances))
    variances["2.bias"][0] = 0.02
    return replace(bnn, variances=variances)


def test_data_are_described_as_those_of_a_network_without_variances():
    bnn, (x, y) = bnn_of(), rows(counts=COUNTS)
    ours = cs.describe(bnn, (x, y), classes=CLASSES)
    theirs = cs.describe(bnn.mean_module(), (x, y), classes=CLASSES).description
    said = ours.description
    assert isinstance(ours, cs.BayesianNetwork)
    assert (said.n_observations, said.classes, said.input_range) == (360, CLASSES, theirs.input_range)
    np.testing.assert_array_equal(said.class_counts, COUNTS)
    for number, moments in theirs.class_moments.items():
        np.testing.assert_array_equal(said.class_moments[number].mean, moments.mean)
        np.testing.assert_array_equal(said.class_moments[number].factor, moments.factor)
    assert (said.channels, said.class_features) == ({}, None)  # of one network, and predictions are of many
    assert said.digest == bnn.digest != theirs.digest
    assert ours.n_observations == 360
    assert ours.symmetry.proved
    assert list(ours.symmetry.groups) == ["0"]


def test_what_is_known_is_kept():
    x, y = rows(counts=COUNTS)
    learned = cs.learners.GaussianBNN(hidden=(4,), epochs=1, seed=0).fit(x, y, classes=CLASSES).posterior
    assert cs.describe(learned, (x, y)).description.classes == CLASSES
    assert cs.describe(learned).description.n_observations == 360
    assert cs.describe(learned, (x[:200], y[:200])).description.n_observations == 360  # the data are some of them
    with pytest.raises(cs.errors.InputError, match="n_observations: is 360, but data has 720 observations"):
        cs.describe(learned, (np.tile(x, (2, 1)), np.tile(y, 2)))


def test_numbers_of_observations_do_not_tell_how_many_are_withheld():
    x, y = rows(counts=(150, 120, 3))
    learned = cs.learners.GaussianBNN(hidden=(4,), epochs=1, seed=0).fit(x, y, classes=3).posterior
    with pytest.warns(cs.errors.WithheldWarning, match="1 of 3 classes have fewer than 5"):
        described = cs.describe(learned, (x, y))
    assert described.n_observations == described.description.n_observations == 270
    with pytest.warns(cs.errors.WithheldWarning):
        again = cs.describe(described, (x, y))
    assert again.n_observations == 270


def test_what_is_saved_is_loaded_and_stands_beside_the_weights(tmp_path):
    bnn, data = bnn_of(), rows(counts=COUNTS)
    path = tmp_path / "site.safetensors"
    cs.save(bnn, path, data=data, classes=CLASSES)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["site.description.safetensors", "site.safetensors"]
    loaded = cs.load(path)
    assert loaded.digest == bnn.digest == cs.load(tmp_path / "site.description.safetensors").digest
    assert loaded.n_observations == 360
    assert loaded.symmetry.proved
    described = cs.describe(bnn, data, classes=CLASSES)
    cs.save(described, tmp_path / "same.safetensors")
    for name in ("{}.safetensors", "{}.description.safetensors"):
        assert (tmp_path / name.format("same")).read_bytes() == (tmp_path / name.format("site")).read_bytes()
    cs.save(moved(bnn), path)  # of which the description is not
    assert not (tmp_path / "site.description.safetensors").exists()


def test_a_number_alone_stands_in_the_file_itself(tmp_path):
    cs.save(bnn_of(), tmp_path / "site.safetensors", n_observations=120)
    assert [file.name for file in tmp_path.iterdir()] == ["site.safetensors"]
    assert cs.load(tmp_path / "site.safetensors").n_observations == 120


def test_half_precision_is_bound_too(tmp_path):
    bnn = bnn_of()
    half = replace(
        bnn,
        means={key: values.bfloat16() for key, values in bnn.means.items()},
        variances={key: values.bfloat16() for key, values in bnn.variances.items()},
    )
    cs.save(half, tmp_path / "site.safetensors", data=rows(counts=COUNTS))
    assert cs.check([tmp_path / "site.safetensors", bnn_of(1)], example=torch.zeros(1, 6)) == []


@pytest.fixture
def files(tmp_path):
    """Files of two described Bayesian networks."""
    for seed, name in enumerate(("lund", "oslo")):
        data = rows(seed, counts=COUNTS)
        cs.save(bnn_of(seed), tmp_path / f"{name}.safetensors", data=data, classes=CLASSES)
    return tmp_path


def test_descriptions_are_found_beside_files_and_among_the_inputs(files):
    beside = cs.fuse([files / "lund.safetensors", files / "oslo.safetensors"], "kl")
    assert [one.description.n_observations for one in beside.inputs] == [360, 360]
    names = ["lund.description", "oslo", "oslo.description", "lund"]
    among = cs.fuse([files / f"{name}.safetensors" for name in names], "kl")
    assert {one.name: one.description.digest for one in among.inputs} == {
        one.name: one.description.digest for one in beside.inputs
    }
    assert all("description" in record for record in among.provenance["inputs"])


def test_a_description_is_bound_to_means_and_variances(files):
    described = cs.describe(bnn_of(), rows(counts=COUNTS))
    other = cs.describe(bnn_of(1), rows(1, counts=COUNTS))
    text = "describes other parameters than those of"
    with pytest.raises(cs.errors.InputError, match=text):
        cs.fuse([replace(moved(described), description=described.description), other])
    with pytest.raises(cs.errors.InputError, match=text):
        cs.fuse([described, bnn_of(1)], descriptions=[None, described.description])
    stray = cs.check([files / "lund.safetensors", bnn_of(3), files / "oslo.description.safetensors"])
    assert ["describes no network here" in str(problem) for problem in stray] == [True]
    (files / "oslo.description.safetensors").write_bytes((files / "lund.description.safetensors").read_bytes())
    assert any(text in str(problem) for problem in cs.check([files / "lund.safetensors", files / "oslo.safetensors"]))


def test_other_classes_inputs_and_scales_are_refused_by_name():
    first = cs.describe(bnn_of(), rows(counts=COUNTS), classes=CLASSES)
    x, y = rows(1, counts=COUNTS)
    for classes, message in ((("fig", *CLASSES[1:]), "other classes"), (CLASSES[::-1], "another order")):
        other = cs.describe(bnn_of(1), (x, y), classes=classes)
        assert message in "\n".join(map(str, cs.check({"lund": first, "oslo": other})))
    large = cs.describe(bnn_of(1), (255 * x, y), classes=CLASSES)
    assert "oslo: its inputs are" in "\n".join(map(str, cs.check({"lund": first, "oslo": large})))


def test_a_network_with_other_names_of_classes_than_its_description_is_refused():
    described = cs.describe(bnn_of(), rows(counts=COUNTS), classes=CLASSES)
    renamed = replace(described, classes=("x", "y", "z"))
    with pytest.raises(cs.errors.InputError, match="describes classes ash, birch, cedar, and has x, y, z"):
        cs.fuse([renamed, renamed])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sample_weight": [1.0]}, cs.errors.OptionError, "sample_weight: is for statistical models"),
        (
            {"classes": ("a", "b", "c")},
            cs.errors.InputError,
            "classes: are a, b, c, and the network has ash, birch, cedar",
        ),
        ({"classes": 4}, cs.errors.InputError, "are 4, but the network has 3 outputs"),
        ({"n_observations": 3}, cs.errors.InputError, "is 3, but data has 360 observations"),
        ({"min_count": -1}, cs.errors.OptionError, "min_count"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        cs.describe(bnn_of(named=CLASSES), rows(counts=COUNTS), **options)


def test_what_cannot_be_described_is_refused():
    bnn, data = bnn_of(), rows(counts=COUNTS)
    with pytest.raises(cs.errors.OptionError, match="by its module, and this one has none"):
        cs.describe(replace(bnn, module=None), data)
    with pytest.raises(cs.errors.OptionError, match="needed to describe a network"):
        cs.describe(bnn)
    with pytest.raises(cs.errors.UnsupportedError, match="an ensemble: is its members"):
        cs.describe(cs.fuse([bnn, bnn_of(1)], "ensemble").model, data)
    with pytest.raises(cs.errors.InputError, match="does not take"):
        cs.describe(bnn, rows(d=5, counts=COUNTS))
    assert cs.describe(replace(bnn, module=None), n_observations=10).description.n_observations == 10


def test_a_fused_network_is_described_by_its_own_data():
    bnns = [bnn_of(seed) for seed in range(2)]
    fusion = cs.fuse(bnns, example=torch.zeros(1, 6))
    assert cs.describe(fusion, rows(counts=COUNTS)).description.digest == fusion.model.digest


def test_a_round_takes_a_network_with_its_description(files):
    network, description, other = (
        SafetensorsFile(files / f"{name}.safetensors") for name in ("lund", "lund.description", "oslo.description")
    )
    assert check_files(network, description).problems == ()
    assert "describes no network here" in str(check_files(network, other).problems[0])
