"""Files of this library are called by what they hold where something else is expected, with what takes them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture
from sklearn.naive_bayes import GaussianNB

import consilience as cs
from consilience.api.kinds import FORMATS
from consilience.federated.inspect import MESSAGE_FORMATS
from consilience.files.document import OUR_FORMATS, SHARD, misplaced
from consilience.networks.files import read_network
from tests.cli.running import command

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(200, 3)).astype(np.float32), np.arange(200) % 2


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


def bayesian():
    arrays = {name: values.numpy() for name, values in network().state_dict().items()}
    return cs.BayesianNetwork(network(), arrays, {name: np.ones_like(values) for name, values in arrays.items()})


def shard(path):
    sites = path.parent / "sites"
    sites.mkdir()
    for number in range(2):
        cs.save(GaussianMixture(2, random_state=number).fit(X), sites / f"{number}.safetensors", n_observations=200)
    cs.pack(sites, path.parent / "packed")
    next((path.parent / "packed").iterdir()).rename(path)


def description(path):
    cs.save(cs.describe(network(), (torch.tensor(X), Y)).description, path)


WRITERS = {
    "consilience-posterior": lambda path: cs.save(GaussianMixture(2).fit(X), path, n_observations=200),
    "consilience-statistics": lambda path: cs.save(GaussianNB().fit(X, Y), path, data=(X, Y)),
    "consilience-draws": lambda path: cs.save(cs.Draws({"b": RNG.normal(size=(500, 2))}, prior=None), path),
    "consilience-bayesian": lambda path: cs.save(bayesian(), path),
    "consilience-fisher": lambda path: cs.save(cs.fisher(network(), [(torch.tensor(X), torch.tensor(Y))]), path),
    "consilience-description": description,
    "consilience-shard": shard,
}


def test_every_format_has_a_name():
    tags = {form.tag for form in FORMATS if form.tag is not None} | {SHARD, *MESSAGE_FORMATS}
    assert tags <= OUR_FORMATS.keys()
    assert all(remedy for _, remedy in OUR_FORMATS.values())
    assert "of format 'consilience-later', expected weights" in misplaced("consilience-later", "weights")[0]


def merged(path):
    return cs.merge([path, path], "out")


ACTS = {
    "merge": merged,
    "merge of a folder": lambda path: merged(path.parent),
    "a base": lambda path: cs.merge(["net.safetensors"] * 2, "out", "ties", base=path),
    "a network": read_network,
}


@pytest.fixture(params=WRITERS)
def tag_and_path(request, tmp_path, monkeypatch):
    """A format, and a file of it in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a" / "file.safetensors"
    path.parent.mkdir()
    WRITERS[request.param](path)
    cs.save(network(), "net.safetensors")
    return request.param, path


def test_what_holds_no_weights_is_no_checkpoint(tag_and_path):
    tag, path = tag_and_path
    for act, call in ACTS.items():
        text, remedy = misplaced(
            tag, "a network or a checkpoint" if act == "a network" else "the weights of a checkpoint"
        )
        with pytest.raises(cs.errors.InputError) as refused:
            call(path)
        assert f"{text}; {remedy}" in str(refused.value), act
    (path.parent / "second.safetensors").write_bytes(path.read_bytes())
    with pytest.raises(cs.errors.InputError, match=f"{text.partition(',')[0]}, expected the weights"):
        merged(path.parent)
    done = command("merge", path, path, "-o", "out")
    assert (done.code, text.partition(",")[0] in done.err) == (1, True)
    assert not Path("out").exists()


def test_the_file_of_a_network_is_a_checkpoint(tmp_path):
    cs.save(cs.describe(network(), (torch.tensor(X), Y)), tmp_path / "a.safetensors")
    assert cs.merge([tmp_path / "a.safetensors"] * 2, tmp_path / "out.safetensors").digests
