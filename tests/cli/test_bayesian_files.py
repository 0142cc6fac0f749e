"""The command on files of Bayesian networks: what is inside, from the header alone."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import consilience as cs
from consilience.networks.gaussian.files import write_bayesian_network
from consilience.networks.gaussian.network import BayesianNetwork
from tests.cli.running import rows_of
from tests.cli.some_nets import SITES

FILE = "bnn.safetensors"


@pytest.fixture
def bnn(nets):
    """A Bayesian network and the symmetry of its module."""
    module = nets.make_mlp()
    means = {name: values.detach() for name, values in module.named_parameters()}
    variances = {name: torch.full_like(values, 0.5) for name, values in means.items()}
    classes = ("low", "high", "none\x1b[31m")
    network = BayesianNetwork(module, means, variances, 2.0, classes, n_observations=1250)
    return network, cs.symmetry(module, torch.zeros(1, 6))


def test_all_that_the_header_says_is_told(bnn, folder, command):
    network, symmetry = bnn
    made = {"method": "kl", "options": {}, "seed": 0, "inputs": [{"name": "a", "weight": 1.0, "sha256": "f00"}]}
    write_bayesian_network(folder / FILE, network, symmetry, made)
    content = (folder / FILE).read_bytes()
    length = 8 + int.from_bytes(content[:8], "little")
    (folder / FILE).write_bytes(content[:length] + b"\xff" * (len(content) - length))  # every number is NaN
    done = command("inspect", FILE)
    assert (done.code, done.err) == (0, "")
    lines = rows_of(done.out)
    people = next(place for place, line in enumerate(lines) if line.startswith("What this file tells about people"))
    assert len(lines) > people + 1
    assert lines[:people] == [
        f"file:        {FILE}",
        f"format:      consilience-bayesian 1 (consilience {cs.__version__})",
        "parameters:  171 in 6 arrays of float32, each with a mean and a variance",
        "arrays:      0.weight [10, 6], 0.bias [10], 2.weight [7, 10], 2.bias [7], 4.weight [3, 7], 4.bias [3]",
        "prior:       variance 2",
        "trained on:  1,250 observations",
        "classes:     3: low, high, none\\x1b[31m",
        "groups:      2: 0 10, 2 7",
        f"proved:      yes: outputs differed by {symmetry.proof.deviation:.1e} at most, "
        f"{symmetry.proof.trials} trials a group",
        "fused by:    kl {} seed 0",
        "from:        a: weight 1.0, sha256 f00",
    ]
    found = json.loads(command("inspect", "--json", FILE).out)
    assert (found["kind"], found["parameters"], found["units"]) == ("bayesian", 171, {"0": 10, "2": 7})
    assert (found["proved"], found["provenance"], found["classes"][1]) == (True, made, "high")
    assert found["arrays"]["2.bias"] == {"shape": [7], "mean": "float32", "variance": "float32"}
    assert found["n_observations"] == 1250
    assert found["prior_variances"] == dict.fromkeys(network.means, 2.0)


def test_what_the_header_does_not_say_is_told_too(folder, command):
    means = {"a": np.ones((2, 3)), "b": np.ones(4, np.float32)}
    plain = BayesianNetwork(None, means, means)
    cs.save(plain, folder / FILE)
    lines = rows_of(command("inspect", FILE).out)
    people = next(place for place, line in enumerate(lines) if line.startswith("What this file tells about people"))
    assert lines[2:people] == [
        "parameters:  10 in 2 arrays of float32, float64, each with a mean and a variance",
        "arrays:      a [2, 3], b [4]",
        "prior:       not stated",
        "trained on:  not stated",
        "classes:     not stated",
        "groups:      not stated; give a symmetry or a module to fuse it",
    ]
    document = json.loads(command("inspect", "--json", FILE).out)
    assert [document[key] for key in ("units", "symmetry", "classes", "n_observations")] == [None] * 4
    assert document["prior_variances"] is None
    assert document["proved"] is False
    cs.save(BayesianNetwork(None, means, means, {"a": 1.0, "b": 0.25}, ()), folder / FILE)
    lines = rows_of(command("inspect", FILE).out)
    assert [lines[4], lines[6]] == ["prior:       variance 1 of a, 0.25 of b", "classes:     none"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header, tensors: header.update(format_version=2), "has format version 2"),
        (lambda header, tensors: header.update(surprise=1), "not valid at surprise"),
        (lambda header, tensors: header["parameters"].append("0.bias"), "parameter '0.bias' stands twice"),
        (lambda header, tensors: header["symmetry"]["arrays"].pop("0.bias"), "array 0.bias is not in the symmetry"),
        (lambda header, tensors: tensors.pop("variance/0.bias"), "parameter '0.bias' has no tensor 'variance/0.bias'"),
        (
            lambda header, tensors: tensors.update({"mean/0.bias": tensors["mean/0.bias"].astype(int)}),
            "tensor 'mean/0.bias' has type int64",
        ),
        (lambda header, tensors: tensors.update({"mean/\x1b[31m": np.ones(1)}), "is of no parameter"),
    ],
)
def test_a_bad_file_is_told_in_a_line(bnn, folder, command, unchanged, change, message):
    cs.save(bnn[0], folder / FILE, symmetry=bnn[1])
    with safe_open(FILE, "numpy") as file:
        header = json.loads(file.metadata()["consilience"])
    tensors = load_file(FILE)
    change(header, tensors)
    save_file(tensors, FILE, {"consilience": json.dumps(header)})
    unchanged()
    for arguments in (("inspect", FILE), ("inspect", "--json", FILE)):
        done = command(*arguments)
        (line,) = done.complaints()
        assert done.code == 1
        if "--json" in arguments:
            (problem,) = json.loads(done.out)["problems"]
            assert message in problem["text"]
        else:
            assert done.out == ""
        assert line.startswith(f"{FILE}: ")
        assert message in line
        assert line.isprintable()


def test_a_file_that_was_cut_is_told_in_a_line(bnn, folder, command):
    cs.save(bnn[0], folder / FILE)
    (folder / FILE).write_bytes((folder / FILE).read_bytes()[:-1])
    done = command("inspect", FILE)
    (line,) = done.complaints()
    assert done.code == 1
    assert "is truncated" in line


def test_a_network_is_not_fused_with_a_bayesian_one(bnn, folder, command, unchanged):
    cs.save(bnn[0], folder / FILE)
    cs.save(bnn[0].module, folder / SITES[0], symmetry=bnn[1], overwrite=True)
    unchanged()
    done = command("fuse", SITES[0], FILE, "-o", "fused")
    assert done.code == 1
    assert any(f"{SITES[0]}: is a network, expected a Bayesian network" in line for line in done.complaints())
