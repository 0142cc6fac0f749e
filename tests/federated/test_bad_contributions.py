"""Bad contributions by hand: each is one site of six, is named with a reason, and the other five are fused."""

import io
import json
import pickle
import zipfile

import numpy as np
import pytest
import torch
from hmmlearn.vhmm import VariationalGaussianHMM
from safetensors import safe_open
from safetensors.numpy import save_file
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.linear_model import LinearRegression
from sklearn.mixture import BayesianGaussianMixture
from sklearn.naive_bayes import GaussianNB

import consilience as cs
from consilience.federated import Announcement, Contribution, RoundPlan, run_round
from tests.federated.rounds import contribution, digest, mixture, rows, write_sites

GOOD = ("a", "b", "c", "d", "e")
SITES = (*GOOD, "bad")
EXTREME = 1e7


@pytest.fixture(scope="module")
def mixtures(tmp_path_factory):
    return write_sites(tmp_path_factory.mktemp("mixtures"), SITES)


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """Return the files of networks of one start."""
    folder = tmp_path_factory.mktemp("networks")
    for seed, site in enumerate(SITES):
        cs.save(network(seed), folder / site, example=torch.zeros(2, 3), n_observations=100)
    return {site: folder / site for site in SITES}


@pytest.fixture(scope="module")
def sums(tmp_path_factory):
    """Return the files of regressions."""
    folder = tmp_path_factory.mktemp("sums")
    for seed, site in enumerate(SITES):
        regression(seed, folder / site)
    return {site: folder / site for site in SITES}


def network(seed, widths=(3, 4, 2), activation=torch.nn.ReLU):
    torch.manual_seed(0)
    inputs, hidden, outputs = widths
    module = torch.nn.Sequential(torch.nn.Linear(inputs, hidden), activation(), torch.nn.Linear(hidden, outputs))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return module


def regression(seed, path, columns=3, names=None):
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(60, columns))
    target = inputs.sum(axis=1) + rng.normal(size=60)
    features = None if names is None else cs.Features(names=names)
    cs.save(LinearRegression().fit(inputs, target), path, data=(inputs, target), features=features)


def rewritten(source, target, tensors=None, header=None):
    """Write a file again with some tensors, and some fields of its header, changed by functions of what was there."""
    with safe_open(source, "np") as file:
        arrays = {name: np.array(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118  (no mapping)
        metadata = dict(file.metadata())
    for name, change in (tensors or {}).items():
        arrays[name] = np.ascontiguousarray(change(arrays.get(name)))
    for name, change in (header or {}).items():
        (key,) = metadata  # one JSON document
        document = json.loads(metadata[key])
        document[name] = change(document.get(name))
        metadata[key] = json.dumps(document)
    save_file(arrays, target, metadata=metadata)


def with_entry(index, value):
    """Return a function that changes one entry of an array."""

    def change(values):
        values = values.copy()
        values[index] = value
        return values

    return change


def parameters(change):
    """Return what writes a bad mixture: standard parameters of the file that are changed."""

    def write(source, target):
        posterior = cs.load(source)
        standard = {**posterior.family.from_natural(posterior.natural)}
        natural = posterior.family.to_natural(**change(standard))
        rewritten(source, target, {"natural": lambda _: natural})

    return write


def moved(value, components=slice(0, 1)):
    return parameters(lambda p: {**p, "mean": with_entry(components, value)(np.asarray(p["mean"]))})


def scaled(name, factor):
    return parameters(lambda p: {**p, name: np.asarray(p[name]) * factor})


def tensor(name, change):
    return lambda source, target: rewritten(source, target, {name: change})


def header(name, change):
    return lambda source, target: rewritten(source, target, header={name: change})


def content(data):
    return lambda _source, target: target.write_bytes(data)


def cut(_source, target):
    target.write_bytes(_source.read_bytes()[:-9])


def zipped(source, target):
    with zipfile.ZipFile(target, "w") as archive:
        archive.write(source, "model.safetensors")


def npz(_source, target):
    buffer = io.BytesIO()
    np.savez(buffer, natural=np.zeros((3, 8)))
    target.write_bytes(buffer.getvalue())


def saved(make):
    """Return what writes a model of another kind."""
    return lambda _source, target: cs.save(make(), target, min_count=0)


def saved_estimator(_source, target):
    data = rows(3)
    labels = np.arange(len(data)) % 3
    cs.save(GaussianNB().fit(data, labels), target, data=(data, labels))


def many_components(source, target):
    posterior = cs.load(source)
    again = {"natural": 40, "weights": 40}
    rewritten(
        source,
        target,
        {name: lambda values, n=n: np.repeat(values, n, axis=0) / (n if values.ndim == 1 else 1)
         for name, n in again.items()},
        {"counts": lambda counts: [count / 40 for count in counts for _ in range(40)]},
    )  # fmt: skip
    assert posterior.n_components == 3


MIXTURES = {
    "nothing": content(b""),
    "text": content(b"means: 0 0\n" * 40),
    "pickle": content(pickle.dumps({"natural": [1.0]})),
    "half a file": cut,
    "a zip archive": zipped,
    "a NumPy archive": npz,
    "a header longer than the file": content((2**40).to_bytes(8, "little") + b"{}" * 50),
    "a header that is no JSON": content((64).to_bytes(8, "little") + b"{" * 64),
    "another dimension": saved(lambda: mixture(9, dim=1)),
    "another family": saved(
        lambda: BayesianGaussianMixture(n_components=3, covariance_type="diag", random_state=0, max_iter=200).fit(
            rows(9)
        )
    ),
    "topics": saved(
        lambda: LatentDirichletAllocation(2, random_state=0).fit(np.random.default_rng(0).poisson(3.0, size=(40, 6)))
    ),
    "a hidden Markov model": saved(lambda: VariationalGaussianHMM(3, random_state=0, n_iter=20).fit(rows(9))),
    "a network": lambda _source, target: cs.save(network(0), target, example=torch.zeros(2, 3), n_observations=100),
    "sums of an estimator": saved_estimator,
    "a newer format": header("format_version", lambda version: version + 1),
    "no family": header("family", lambda _: None),
    "a family that nobody knows": header("family", lambda family: {**family, "name": "normal-wishart-2"}),
    "a dimension that is not that of its numbers": header("family", lambda family: {**family, "dim": 3}),
    "units of other columns": header("features", lambda _: {"names": ["a", "b", "c"]}),
    "a component more than it counts": header("counts", lambda counts: counts[:-1]),
    "a count below zero": header("counts", lambda counts: [-1.0, *counts[1:]]),
    "a count that no sum holds": header("counts", lambda counts: [1e308, *counts[1:]]),
    "counts that its parameters contradict": header("counts", lambda counts: [1e6 * count for count in counts]),
    "no number in its parameters": tensor("natural", with_entry((0, 0), np.nan)),
    "infinity in its parameters": tensor("natural", with_entry((1, 3), np.inf)),
    "a covariance that is none": tensor("natural", lambda values: -values),
    "parameters of zero": tensor("natural", np.zeros_like),
    "parameters in single precision beyond it": tensor("natural", lambda values: 1e300 * values),
    "columns of parameters in the wrong number": tensor("natural", lambda values: values[:, :-1]),
    "weights below zero": tensor("weights", with_entry(0, -0.5)),
    "weights of no number": tensor("weights", with_entry(1, np.nan)),
    "a prior of no number": tensor("prior", with_entry(0, np.nan)),
    "a prior outside its family": tensor("prior", lambda values: -1e3 * np.abs(values)),
    "an attached array at infinity": tensor("attached.weight_concentration_prior", lambda _: np.array(np.inf)),
    "a mean at 1e7": moved(EXTREME),
    "all means at 1e7": moved(EXTREME, slice(None)),
    "a mean at 1e150": moved(1e150),
    "degrees of freedom of 1e16": scaled("dof", 1e16),
    "variances of 1e-300": scaled("scale", 1e290),
    "variances of 1e300": scaled("scale", 1e-290),
    "forty times as many components": many_components,
}
NETWORKS = {
    "another width": lambda _s, target: cs.save(
        network(9, (3, 9, 2)), target, example=torch.zeros(2, 3), n_observations=100
    ),
    "other inputs": lambda _s, target: cs.save(
        network(9, (5, 4, 2)), target, example=torch.zeros(2, 5), n_observations=100
    ),
    "another number of classes": lambda _s, target: cs.save(
        network(9, (3, 4, 7)), target, example=torch.zeros(2, 3), n_observations=100
    ),
    "another symmetry": lambda _s, target: cs.save(
        network(9, activation=torch.nn.Tanh), target, example=torch.zeros(2, 3), n_observations=100
    ),
    "a weight of no number": tensor("0.weight", with_entry((0, 0), np.nan)),
    "a weight at infinity": tensor("2.bias", with_entry(0, np.inf)),
    "weights a million times as large": tensor("0.weight", lambda values: 1e6 * values),
    "weights of zero": tensor("0.weight", np.zeros_like),
    "a layer that is turned": tensor("0.weight", np.transpose),
    "whole numbers for weights": tensor("0.weight", lambda values: np.rint(100 * values).astype(np.int32)),
}
SUMS = {
    "another number of columns": lambda _s, target: regression(9, target, columns=4),
    "a sum of no number": lambda source, target: _changed_sum(source, target, np.nan),
    "a variance below zero": lambda source, target: _changed_sum(source, target, -1e6),
    "rows below zero": lambda source, target: rewritten(source, target, {"moments.rows.n": lambda n: -n}),
    "a sum at 1e300": lambda source, target: _changed_sum(source, target, 1e300),
}


def _changed_sum(source, target, value):
    rewritten(source, target, {"moments.rows.scatter": with_entry(0, value)})


def named(plan, given):
    """Return the reasons for which the bad site is left out of a round that fuses all others."""
    result = run_round(plan, given)
    assert set(GOOD) <= set(result.report.sites)
    reasons = [reason for record in result.report.left_out if record.site == "bad" for reason in record.reasons]
    assert [record.site for record in result.report.left_out] == ["bad"] * len(result.report.left_out)
    return reasons


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        (kind, case)
        for kind, cases in (("mixtures", MIXTURES), ("networks", NETWORKS), ("sums", SUMS))
        for case in cases
    ],
)
def test_a_bad_contribution_is_named_with_a_reason_and_the_others_are_fused(kind, case, request, tmp_path):
    files = request.getfixturevalue(kind)
    write = {"mixtures": MIXTURES, "networks": NETWORKS, "sums": SUMS}[kind][case]
    write(files["bad"], tmp_path / "bad")
    method = {"mixtures": "kl", "networks": "average", "sums": None}[kind]
    given = [*(contribution(site, files[site]) for site in GOOD), contribution("bad", tmp_path / "bad")]
    reasons = named(RoundPlan(SITES, method), given)
    assert reasons, f"{case}: nobody was named"
    assert all(reason and str(tmp_path) not in reason for reason in reasons)


def announced(number=1, attempt=1, of="bad"):
    return lambda files: [Contribution(Announcement("bad", number, attempt, digest(files[of])), files[of])]


ANNOUNCEMENTS = {
    "two files under one attempt": lambda files: [*announced()(files), *announced(of="a")(files)],
    "another site's file": announced(of="a"),
    "a file that never came": lambda files: [
        Contribution(Announcement("bad", 1, 1, digest(files["bad"])), None, problem="its file never came")
    ],
    "another file than it announced": lambda files: [Contribution(Announcement("bad", 1, 1, "0" * 64), files["bad"])],
    "Fisher information that never came": lambda files: [
        Contribution(Announcement("bad", 1, 1, digest(files["bad"]), "1" * 64), files["bad"])
    ],
    "another round's file": announced(number=2),
    "attempts without end": lambda files: [c for n in range(1, 2000) for c in announced(attempt=n)(files)],
}


@pytest.mark.parametrize("case", ANNOUNCEMENTS)
def test_a_site_that_announces_what_cannot_be_is_named(case, mixtures):
    given = [*(contribution(site, mixtures[site]) for site in GOOD), *ANNOUNCEMENTS[case](mixtures)]
    assert named(RoundPlan(SITES, "kl"), given), f"{case}: nobody was named"


def test_a_site_that_answers_twice_counts_once_and_with_its_last_attempt(mixtures):
    given = [*(contribution(site, mixtures[site]) for site in GOOD), contribution("bad", mixtures["a"], attempt=1)]
    result = run_round(RoundPlan(SITES, "kl"), [*given, contribution("bad", mixtures["bad"], attempt=2)])
    assert set(result.report.sites) == set(SITES)
    assert [(record.site, record.attempt) for record in result.report.ignored] == [("bad", 1)]
