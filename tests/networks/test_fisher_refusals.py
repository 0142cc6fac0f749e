"""Fisher information that is wrong, missing or of something else: one clear line for each problem."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import nn

import consilience as cs
from tests.networks.informed_nets import informed, observations, perceptron


def refused(error, *messages, **options):
    """Assert that fusing is refused, by check as by fuse."""
    models = options.pop("models", None) or informed()[0]
    method = options.pop("method", "fisher")
    with pytest.raises(error) as raised:
        cs.fuse(models, method, **options)
    assert all(part in str(raised.value) for part in messages), str(raised.value)
    if error is cs.errors.InputError:
        assert cs.check(models, method, **options) == list(raised.value.problems)


def diagonals(change=None, number=0):
    """Return the diagonals by parameter, the first changed."""
    found = [{key: np.asarray(values).copy() for key, values in info.diagonal.items()} for info in informed()[1]]
    if change is not None:
        change(found[number])
    return found


# -- What a site computes.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "full"}, "kind: expected 'diagonal', 'factors', 'kronecker'"),
        ({"likelihood": "poisson"}, "likelihood: expected"),
        ({"n_draws": 0}, "n_draws: expected a positive integer"),
        ({"rank": 0}, "rank: expected"),
        ({"n_observations": -3.0}, "n_observations: expected a positive number"),
        ({"prior_precision": -1.0}, "prior_precision: expected"),
        ({"noise": 0.0}, "noise: expected"),
        ({"noise": "a"}, "noise: expected"),
        ({"minimum": 0}, "minimum: expected"),
        ({"rng": -1}, "rng"),
    ],
)
def test_options_that_do_not_exist_are_refused(options, message):
    with pytest.raises(cs.errors.OptionError, match=message):
        cs.fisher(perceptron(), observations(0), **options)


@pytest.mark.parametrize(
    ("module", "batches", "options", "message"),
    [
        (perceptron(), observations(0, 99), {}, "99 observations may betray single ones; give at least 100"),
        (perceptron().requires_grad_(False), observations(0), {"minimum": 1}, "no parameter with requires_grad"),
        (perceptron(), observations(0) * np.nan, {"minimum": 1}, "NaN or infinite"),
        (perceptron(classes=1), observations(0), {"minimum": 1}, "two classes"),
        (perceptron(), observations(0)[:0], {"minimum": 1}, "at least one batch"),
        (perceptron(), (observations(0), torch.zeros(40)), {"minimum": 1}, "a tuple is one batch"),
        (perceptron(), observations(0).numpy(), {"minimum": 1}, "found a NumPy array"),
        (perceptron(), observations(0, 40, 5), {"minimum": 1}, "does not take these inputs"),
        (perceptron(), [{"wrong": observations(0)}], {"minimum": 1}, "does not take these inputs"),
        (perceptron(), observations(0), {"minimum": 1, "n_observations": 39.0}, "fewer than the 40"),
        ("a network", observations(0), {}, "expected a torch module"),
    ],
)
def test_networks_and_data_that_give_no_information_are_refused(module, batches, options, message):
    with pytest.raises(cs.errors.InputError, match=message):
        cs.fisher(module, batches, **options)


class Summed(nn.Linear):
    """Answers one row for all observations."""

    def forward(self, x):
        return super().forward(x).sum(dim=0, keepdim=True)


class Heads(nn.Linear):
    """Answers twice."""

    def forward(self, x):
        return {"age": super().forward(x), "sex": super().forward(x)}


def test_outputs_that_are_no_rows_of_numbers_are_refused():
    x = observations(0).float()
    with pytest.raises(cs.errors.InputError, match="must count them"):
        cs.fisher(Summed(3, 2), x, minimum=1)
    with pytest.raises(cs.errors.InputError, match="answers 2 outputs: age, sex; wrap it so that it answers a tensor"):
        cs.fisher(Heads(3, 2), x, minimum=1)


def test_a_network_that_normalises_over_the_batch_is_refused():
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, track_running_stats=False))
    with pytest.raises(cs.errors.UnsupportedError, match="1: normalises over the batch"):
        cs.fisher(module, observations(0).float(), minimum=1)


def test_a_saturated_network_says_nothing():
    module = nn.Linear(3, 2)
    with torch.no_grad():
        module.bias += torch.tensor([1e4, 0.0])
    with pytest.raises(cs.errors.InputError, match="is zero for every parameter"):
        cs.fisher(module, observations(0).float(), minimum=1)


# -- What is handed in.


def test_information_must_be_there_for_every_network():
    infos = informed()[1]
    refused(cs.errors.InputError, "needs `fishers=")
    refused(cs.errors.OptionError, "expected 3, one for each network", fishers=infos[:2])
    refused(cs.errors.OptionError, "expected a list", fishers=infos[0])
    refused(cs.errors.InputError, "fishers[1]", "found NoneType", fishers=[infos[0], None, infos[2]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda one: one["0.weight"].__setitem__((0, 0), -1.0), "fishers[0]: parameter 0.weight has negative"),
        (lambda one: one["0.weight"].__setitem__((0, 0), np.nan), "0.weight has NaN"),
        (lambda one: one.update({"0.weight": one["0.weight"].T}), "0.weight has shape (3, 4), but (4, 3)"),
        (lambda one: one.update({"other": one["0.weight"]}), "fishers[0]: other: not in model 0"),
        (lambda one: one.pop("0.bias"), "informs other parameters than"),
        (lambda one: [values.fill(0.0) for values in one.values()], "is zero for every parameter"),
        (lambda one: one.update({"0.bias": np.arange(4)}), "0.bias holds int64"),
        (lambda one: one.update({"0.bias": 3.0}), "expected arrays by parameter"),
        (lambda one: one.clear(), "has no parameters"),
    ],
)
def test_diagonals_that_are_none_are_refused(change, message):
    refused(cs.errors.InputError, message, fishers=diagonals(change))


def test_information_of_another_network_is_refused():
    models, infos = informed()
    refused(
        cs.errors.InputError,
        "computed at other parameters than those of model 0",
        fishers=[infos[1], infos[0], infos[2]],
    )
    symmetry = cs.symmetry(models[0], observations(0))
    permuted = [cs.permute(models[0], symmetry, {"0": [1, 0, 2, 3]}), *models[1:]]
    refused(cs.errors.InputError, "other order of units", models=permuted, fishers=infos)


def test_scales_that_differ_are_refused():
    infos = informed()[1]
    refused(
        cs.errors.InputError, "counted on another scale", fishers=[diagonals()[0], *infos[1:]], structure="diagonal"
    )
    other = replace(infos[0], likelihood="gaussian")
    refused(cs.errors.InputError, "counted on another scale", "likelihood", fishers=[other, *infos[1:]])


def test_priors_must_be_known_where_they_count():
    infos = informed()[1]
    silent = [replace(info, prior_precision=None) for info in infos]
    for method in ("fisher", "ssf"):
        refused(cs.errors.InputError, "says no prior precision", method=method, fishers=silent)
    refused(cs.errors.InputError, "says no prior precision", fishers=diagonals(), structure="low_rank")
    cs.fuse(informed()[0], "fisher", fishers=silent, prior="ignored")
    mixed = [replace(infos[0], prior_precision=3.0), *infos[1:]]
    refused(cs.errors.InputError, "different priors (precisions 0.7, 0.7, 3)", "=", fishers=mixed, prior="removed")
    cs.fuse(informed()[0], "fisher", fishers=mixed, prior_precision=1.0)
    cs.fuse(informed()[0], "fisher", fishers=mixed, prior="kept")


def test_a_matrix_that_is_too_large_is_refused():
    models = [nn.Linear(100, 90) for _ in range(2)]
    infos = [{key: np.ones(v.shape) for key, v in model.state_dict().items()} for model in models]
    message = "matrix of 9090 x 9090 parameters"
    refused(cs.errors.InputError, message, models=models, fishers=infos, structure="full", prior="ignored")


def test_priors_taken_out_of_masks_that_hold_too_little_are_an_error():
    rng = np.random.default_rng(0)
    models = [nn.Linear(30, 1, bias=False).double() for _ in range(4)]
    rows = [torch.as_tensor(rng.normal(size=(1, 1, 30))) for _ in models]
    infos = [
        cs.results.FisherInformation({"weight": 0 * row[0]}, {"weight": 100 * row}, 10.0, 1.0, "gaussian")
        for row in rows
    ]
    options = {"fishers": infos, "mask_rate": 0.03, "masks": 30, "shrinkage": 0.0}
    with pytest.raises(cs.errors.InputError, match="no minimum for these masks"):
        cs.fuse(models, "ssf", **options)
    cs.fuse(models, "ssf", **options, prior="kept")


def test_information_alone_is_no_network(files):
    infos = sorted(map(str, files.glob("*.fisher.safetensors")))
    refused(cs.errors.InputError, "give the networks too", models=infos)


def test_factors_of_rank_zero_are_refused():
    with pytest.raises(cs.errors.InputError, match="factors of rank 0"):
        cs.results.FisherInformation({"weight": np.ones((2, 3))}, {"weight": np.ones((0, 2, 3))})


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("fisher", {"structure": "kronecker"}, "structure must be"),
        ("fisher", {"prior": "none"}, "prior must be"),
        ("fisher", {"shrinkage": 1.5}, "shrinkage must be"),
        ("fisher", {"floor": 0.0}, "floor must be"),
        ("fisher", {"tolerance": 0.0}, "tolerance must be"),
        ("fisher", {"aligned": 1}, "aligned must be"),
        ("ssf", {"mask_rate": 0.0}, "mask_rate must be"),
        ("ssf", {"window": 0}, "window must be"),
    ],
)
def test_values_of_options_that_mean_nothing_are_refused(method, options, message):
    with pytest.raises(cs.errors.OptionError, match=message):
        cs.fuse(informed()[0], method, fishers=informed()[1], **options)


def test_alignment_that_was_asked_for_needs_a_symmetry():
    refused(cs.errors.InputError, "`aligned=True` needs to know", fishers=informed()[1], aligned=True)


def test_networks_of_other_widths_are_refused():
    wide = perceptron(hidden=5)
    infos = [cs.fisher(one, observations(0), minimum=1) for one in (informed()[0][0], wide)]
    models = [informed()[0][0], wide]
    refused(cs.errors.InputError, "needs the same everywhere", models=models, fishers=infos, example=observations(0))
    refused(cs.errors.InputError, "0.weight has shape (5, 3)", models=models, fishers=infos)


# -- Files.


@pytest.fixture
def files(tmp_path):
    models, infos = informed()
    for name, model, information in zip("abc", models, infos, strict=True):
        cs.save(model, tmp_path / f"{name}.safetensors")
        cs.save(information, tmp_path / f"{name}.fisher.safetensors")
    return tmp_path


def test_files_of_information_find_their_networks(files):
    networks, infos = (sorted(map(str, files.glob(pattern))) for pattern in ("?.safetensors", "*.fisher.safetensors"))
    expected = cs.fuse(informed()[0], "fisher", fishers=informed()[1]).model.state_dict()
    for given in ([*infos[::-1], *networks], sorted(map(str, files.glob("*")))):
        fusion = cs.fuse(given, "fisher")
        assert all(np.allclose(fusion.network.arrays[key], values, atol=1e-12) for key, values in expected.items())
        records = fusion.provenance["inputs"]
        assert all(len(record["fisher"]["sha256"]) == 64 for record in records)
    told = cs.fuse(networks, "fisher", fishers=infos)
    assert all(np.allclose(told.network.arrays[key], values, atol=1e-12) for key, values in expected.items())
    assert len(cs.fuse([*networks, *infos], "average").inputs) == 3


def test_files_without_a_network_and_networks_without_a_file_are_named(files, tmp_path):
    networks, infos = (sorted(map(str, files.glob(pattern))) for pattern in ("?.safetensors", "*.fisher.safetensors"))
    refused(cs.errors.InputError, "c.safetensors: no file of Fisher", models=[*networks, *infos[:2]])
    refused(cs.errors.InputError, "c.fisher.safetensors: was computed at other", models=[*networks[:2], *infos])
    (tmp_path / "copy").write_bytes((files / "a.fisher.safetensors").read_bytes())
    refused(cs.errors.InputError, "copy: is of", models=[*networks, *infos, str(tmp_path / "copy")])
    refused(
        cs.errors.InputError,
        "a.safetensors: is a network, expected a file of Fisher information",
        models=networks,
        fishers=networks,
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header, arrays: header.update(format_version=2), "has format version 2"),
        (lambda header, arrays: header.update(likelihood="poisson"), "not valid at likelihood"),
        (lambda header, arrays: header.update(parameters=["0.weight"]), "does not announce: factors/0.bias"),
        (lambda header, arrays: header.update(extra=1), "not valid at extra"),
        (lambda header, arrays: arrays.pop("residual/0.bias"), "lacks the tensors residual/0.bias"),
        (lambda header, arrays: arrays["residual/0.bias"].fill(-1.0), "negative information"),
        (lambda header, arrays: arrays.update({"factors/0.bias": np.ones((2, 4))}), "factors of 0.bias have shape"),
        (lambda header, arrays: arrays.update({"factors/0.weight": np.array(1.0)}), "factors"),
    ],
)
def test_files_that_were_tampered_with_are_refused(files, change, message):
    path = files / "a.fisher.safetensors"
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        header = json.loads(file.metadata()["consilience"])
    arrays = load_file(path)
    change(header, arrays)
    save_file(arrays, path, {"consilience": json.dumps(header)})
    with pytest.raises(cs.errors.InputError, match=message):
        cs.load(path)


def test_other_files_are_no_information(files):
    from consilience.networks.fisher.files import read_fisher

    with pytest.raises(cs.errors.FileFormatError, match="expected a file of Fisher information"):
        read_fisher(files / "a.safetensors")
    (files / "cut").write_bytes((files / "a.fisher.safetensors").read_bytes()[:200])
    with pytest.raises(cs.errors.FileFormatError, match="truncated"):
        read_fisher(files / "cut")
