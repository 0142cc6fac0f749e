"""Files that are broken, or of another kind, among good ones of every kind: the one line names that file, and why."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression
from sklearn.mixture import GaussianMixture
from torch import nn

import consilience as cs
from tests.cli.running import command


def write(kind, seed, path):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(60, 2))
    if kind == "draws":
        cs.save(cs.Draws({"mu": rng.normal(size=(2, 200))}, prior=0.5), path)
    elif kind == "statistics":
        targets = rows @ [1.0, 2.0] + rng.normal(size=60)
        cs.save(LinearRegression().fit(rows, targets), path, data=(rows, targets))
    elif kind == "posterior":
        cs.save(GaussianMixture(1, random_state=0).fit(rows), path, n_observations=60)
    else:
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
        cs.save(net, path, symmetry=cs.symmetry(net, torch.zeros(1, 2)))


KINDS = ("draws", "statistics", "posterior", "network")
BROKEN = {
    "truncated at the end": (lambda whole: whole[:-7], "is truncated or not a safetensors file"),
    "truncated in the header": (lambda whole: whole[:40], "is truncated or not a safetensors file"),
    "empty": (lambda whole: b"", "is empty"),
    "netCDF": (lambda whole: b"\x89HDF\r\n\x1a\n" + bytes(3000), "is an HDF5 file"),
    "a zip": (lambda whole: b"PK\x03\x04\x14\x00\x08\x08" + bytes(3000), "is a"),
    "a text": (lambda whole: b"mu,tau\n1,2\n", "is truncated or not a safetensors file"),
    "metadata that are no JSON": (
        lambda whole: whole.replace(b'"consilience":"{', b'"consilience":"[', 1), "its metadata is not valid JSON",
    ),
    "missing": (None, "cannot be read: No such file or directory"),
}  # fmt: skip


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    paths = {kind: [folder / f"{kind}_{site}.safetensors" for site in ("lund", "oslo")] for kind in KINDS}
    for kind, own in paths.items():
        for seed, path in enumerate(own):
            write(kind, seed, path)
    return paths


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [0, 2])
def test_a_broken_file_among_good_ones_is_named_with_what_it_is(kind, place, good, tmp_path):
    for number, (spoil, text) in enumerate(BROKEN.values()):
        path = tmp_path / f"broken_{number}.safetensors"
        if spoil is not None:
            path.write_bytes(spoil(good[kind][0].read_bytes()))
        models = list(good[kind])
        models.insert(place, path)
        (problem,) = cs.check(models)
        assert problem.startswith(f"{path}: {text}"), problem
        assert problem.remedy or spoil is None
        with pytest.raises(cs.errors.InputError) as caught:
            cs.fuse(models)
        assert list(caught.value.problems) == [problem]


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_file_in_a_folder_and_on_the_command_line_is_named(kind, good, tmp_path):
    for path in good[kind]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "riga.safetensors").write_bytes(good[kind][0].read_bytes()[:-7])
    with pytest.raises(cs.errors.InputError, match=r"riga\.safetensors: is truncated"):
        cs.fuse(tmp_path)
    for finished in (
        command("check", *tmp_path.glob("*.safetensors")),
        command("fuse", *tmp_path.glob("*.safetensors"), "-o", tmp_path / "fused.safetensors"),
    ):
        (line,) = finished.complaints()
        assert "riga.safetensors: is truncated" in line


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_of_two_kinds_one_is_named_and_so_is_the_truncated_file(kind, other, good, tmp_path):
    if kind == other:
        return
    path = tmp_path / "riga.safetensors"
    path.write_bytes(good[kind][0].read_bytes()[:-7])
    models = [good[kind][0], path, good[other][1]]
    odd, truncated = sorted(cs.check(models), key=lambda problem: str(path) in problem)
    assert truncated.startswith(f"{path}: is truncated")
    assert any(str(model) in odd for model in models)
    called = {f"is a {name} file" for name in (kind, other)} | {f"consilience-{name}" for name in (kind, other)}
    assert any(text in odd for text in called)


UNREADABLE = {
    "no such files": lambda folder: [folder / "lund.safetensors", folder / "oslo.safetensors"],
    "no such folder": lambda folder: folder / "sites",
    "a pattern of nothing": lambda folder: str(folder / "*.safetensors"),
    "objects that nobody knows": lambda folder: [object(), object()],
}


@pytest.mark.parametrize("models", UNREADABLE.values(), ids=UNREADABLE)
def test_what_cannot_be_read_is_said_before_a_keyword_for_other_models(models, tmp_path):
    with pytest.raises(cs.ConsilienceError) as refused:
        cs.fuse(models(tmp_path), module=nn.Linear(2, 1))
    assert "for networks only" not in str(refused.value)
    (problem, *_) = cs.check(models(tmp_path), module=nn.Linear(2, 1))
    assert "for networks only" not in problem


def test_a_keyword_for_other_models_is_refused_once_models_are_known(tmp_path):
    path = tmp_path / "lund.safetensors"
    write("posterior", 0, path)
    with pytest.raises(cs.errors.OptionError, match="module: for networks only"):
        cs.fuse([path], module=nn.Linear(2, 1))
