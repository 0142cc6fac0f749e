"""Ensembles weighed by counts of classes, and ensembles that are kept in a folder."""

import json
import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import consilience as cs
from consilience.networks.ensemble import ModuleEnsemble
from tests.networks.zoo import ZOO
from tests.tolerances import ROUNDING

COUNTS = np.array([[80.0, 20, 0], [0, 30, 40], [10, 0, 90]])


class TableOfLogits(nn.Module):
    """Answers each input, the number of a row, by a row of logits."""

    def __init__(self, probabilities):
        super().__init__()
        self.logits = nn.Parameter(torch.as_tensor(probabilities).log())

    def forward(self, rows):
        return self.logits[rows]


def site(seed=0, widths=(4, 6, 3), dtype=torch.float64):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = []
        for a, b in pairwise(widths):
            layers += [nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU()]
        return nn.Sequential(*layers[:-2]).to(dtype).eval()


def inputs(n=20):
    return torch.randn(n, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def ensemble_of(mean="stationary", **options):
    return ModuleEnsemble([site(0), site(1), site(2)], np.ones(3) / 3, mean, class_counts=COUNTS, **options).eval()


def answers(module, rows=None):
    with torch.no_grad():
        return module(inputs() if rows is None else rows)


# -- The stationary mean.


def test_an_ensemble_by_counts_gives_the_pooled_posterior_under_label_shift():
    rng = np.random.default_rng(0)
    likelihoods = rng.dirichlet(np.ones(40), size=3) + 1e-9  # (C, inputs)
    joint = (COUNTS + 5)[:, :, None] * likelihoods  # (J, C, inputs): every site holds all classes
    sites = [TableOfLogits((of_site / of_site.sum(axis=0)).T) for of_site in joint]
    pooled = joint.sum(axis=0) / joint.sum(axis=(0, 1))
    fusion = cs.fuse(sites, method="ensemble", class_counts=COUNTS + 5)
    fused = fusion.model(torch.arange(40)).exp().detach().numpy()
    # Networks always mix by 1e-3, which moves exact posteriors by as much at most.
    np.testing.assert_allclose(fused, pooled.T, rtol=0, atol=1e-3)
    by_n = cs.fuse(sites, method="ensemble", weights=COUNTS.sum(1) + 15).model(torch.arange(40)).exp().detach().numpy()
    assert np.abs(by_n - pooled.T).max() > 0.05


def test_copies_answer_as_the_copies_whatever_the_counts():
    ensemble = ModuleEnsemble([site()] * 3, np.ones(3) / 3, "stationary", class_counts=COUNTS)
    torch.testing.assert_close(answers(ensemble), answers(site()).log_softmax(1), rtol=0, atol=1e-13)


def test_equal_class_distributions_are_weighed_by_observations():
    counts = np.outer([1, 2, 5], [10, 20, 30])
    modules = [site(seed) for seed in range(3)]
    by_counts = cs.fuse(modules, method="ensemble", class_counts=counts).model
    by_n = cs.fuse(modules, method="ensemble", weights=[1, 2, 5]).model
    torch.testing.assert_close(answers(by_counts), answers(by_n), rtol=0, atol=1e-13)


def test_a_constant_added_to_all_rows_of_a_head_changes_nothing():
    ensemble = ensemble_of()
    before = answers(ensemble)
    with torch.no_grad():
        head = ensemble.members[1][-1]
        head.weight += torch.linspace(-1, 1, 6)
        head.bias += 3.0
    torch.testing.assert_close(answers(ensemble), before, rtol=0, atol=1e-12)


def test_a_network_without_its_sites_frequencies_gets_them_back():
    modules = [site(seed) for seed in range(3)]
    usual = ModuleEnsemble(modules, np.ones(3) / 3, "stationary", class_counts=COUNTS)
    removed = [nn.Sequential(module, Shift(-np.log(row + 0.1))) for module, row in zip(modules, COUNTS, strict=True)]
    prior = ("removed", "removed", "removed")
    restored = ModuleEnsemble(removed, np.ones(3) / 3, "stationary", class_counts=COUNTS, class_prior=prior)
    torch.testing.assert_close(answers(restored), answers(usual), rtol=0, atol=1e-12)


class Shift(nn.Module):
    """Adds a constant to every logit."""

    def __init__(self, by):
        super().__init__()
        self.by = nn.Parameter(torch.as_tensor(by))

    def forward(self, logits):
        return logits + self.by


def test_weights_stand_for_observations_beside_counts():
    modules = [site(seed) for seed in range(3)]
    weights = np.array([5.0, 1, 2])
    by_weights = cs.fuse(modules, method="ensemble", class_counts=COUNTS, weights=weights).model
    rows = COUNTS / COUNTS.sum(axis=1, keepdims=True) * weights[:, None]
    by_counts = cs.fuse(modules, method="ensemble", class_counts=rows).model
    torch.testing.assert_close(answers(by_weights), answers(by_counts), rtol=ROUNDING, atol=ROUNDING)


def test_answers_at_many_positions_are_pooled_one_by_one():
    modules = [nn.Linear(4, 3).double() for _ in range(3)]
    ensemble = ModuleEnsemble(modules, np.ones(3) / 3, "stationary", class_counts=COUNTS)
    rows = inputs(6)
    torch.testing.assert_close(
        answers(ensemble, rows.reshape(2, 3, 4)), answers(ensemble, rows).reshape(2, 3, 3), rtol=0, atol=1e-14
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": "stationary"}, "mean must be another one where there are no class_counts"),
        ({"mean": "logits", "class_counts": COUNTS}, "class_counts must be left out with such a mean"),
        ({"mean": "median"}, "mean must be 'probabilities', 'logits' or 'stationary'"),
        ({"class_counts": COUNTS[:2]}, "expected a row for each of 3 models, found 2"),
        ({"class_counts": [[1, 2], [3]]}, "class_counts"),
        ({"class_counts": -COUNTS}, "not negative"),
    ],
    ids=str,
)
def test_counts_that_do_not_fit_are_refused_and_checked(options, message):
    modules = [site(seed) for seed in range(3)]
    with pytest.raises(cs.ConsilienceError, match=message):
        cs.fuse(modules, method="ensemble", **options)


def test_counts_of_other_classes_are_refused_by_both_numbers():
    fusion = cs.fuse([site(seed) for seed in range(3)], method="ensemble", class_counts=np.ones((3, 5)))
    with pytest.raises(cs.errors.InputError, match="counts of 5 classes, and the members answer 3"):
        answers(fusion.model)


# -- Kept in a folder.


@pytest.mark.parametrize("mean", ["probabilities", "logits", "stationary"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_an_ensemble_is_saved_and_loaded_to_the_bit(tmp_path, mean, dtype):
    prior = ("own", "removed", "own")
    modules = [site(seed, dtype=dtype) for seed in range(3)]
    weights = np.array([0.1, 0.2, 0.7])
    ensemble = ModuleEnsemble(
        modules, weights, mean, class_counts=COUNTS, n_observations=[100, 77, 101.5], class_prior=prior,
        classes=["a", "b", "ç"], names=["lund", "oslo", "åbo"],
    ).eval()  # fmt: skip
    cs.save(ensemble, tmp_path / "kept")
    loaded = cs.load(tmp_path / "kept", module=site)
    rows = inputs().to(dtype)
    assert torch.equal(answers(loaded, rows), answers(ensemble, rows))
    assert not loaded.training
    assert (loaded.names, loaded.answer.classes, loaded.answer.class_prior) == (ensemble.names, ("a", "b", "ç"), prior)
    assert np.array_equal(loaded.answer.n_observations, [100, 77, 101.5])
    cs.save(loaded, tmp_path / "again")
    for file in (tmp_path / "kept").iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()


@pytest.mark.parametrize("name", ["mlp", "resnet18", "gpt", "gru"])
def test_members_of_every_architecture_are_kept(tmp_path, name):
    zoo = ZOO[name]
    modules = [zoo.module(seed) for seed in range(2)]
    fusion = cs.fuse({"lund": modules[0], "oslo": modules[1]}, method="ensemble", mean="logits")
    cs.save(fusion.model, tmp_path / "kept")
    loaded = cs.load(tmp_path / "kept", module=zoo.module)
    assert loaded.names == ("lund", "oslo")
    for member, module in zip(loaded.members, modules, strict=True):
        state = module.state_dict()
        assert all(torch.equal(values, state[key]) for key, values in member.state_dict().items())


def test_members_of_several_architectures_are_made_one_by_one(tmp_path):
    modules = {"narrow": site(0), "wide": site(1, (4, 9, 3)), "deep": site(2, (4, 5, 5, 3))}
    ensemble = cs.fuse(modules, method="ensemble", class_counts=COUNTS).model
    cs.save(ensemble, tmp_path / "kept")
    for templates in (modules, list(modules.values())):
        loaded = cs.load(tmp_path / "kept", module=templates)
        assert torch.equal(answers(loaded), answers(ensemble))


def test_members_are_files_that_can_be_fused(tmp_path):
    cs.save(ensemble_of(), tmp_path / "kept")
    files = [tmp_path / "kept" / f"member-{number}.safetensors" for number in range(3)]
    assert cs.check(files, method="average") == []


def test_a_folder_that_is_taken_is_left_alone(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "letter.txt").write_text("mine")
    with pytest.raises(cs.errors.InputError, match="there already"):
        cs.save(ensemble_of(), tmp_path / "kept")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["letter.txt"]
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_an_ensemble_is_written_whole_or_not_at_all(tmp_path):
    broken = ensemble_of()
    broken.members[2].register_buffer("strange", torch.ones(2, dtype=torch.complex128))
    with pytest.raises(cs.errors.InputError, match=r"kept/member-2\.safetensors: cannot be written: array 'strange'"):
        cs.save(broken, tmp_path / "kept")
    assert list(tmp_path.iterdir()) == []


def edited(**changes):
    def change(folder):
        path = folder / "ensemble.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def edited_answer(**changes):
    def change(folder):
        path = folder / "ensemble.json"
        document = json.loads(path.read_text())
        path.write_text(json.dumps({**document, "answer": {**document["answer"], **changes}}))

    return change


def exchanged(folder):
    (folder / "member-0.safetensors").rename(folder / "x")
    (folder / "member-1.safetensors").rename(folder / "member-0.safetensors")
    (folder / "x").rename(folder / "member-1.safetensors")


BROKEN = {
    "no document": (
        lambda folder: (folder / "ensemble.json").unlink(),
        "kept: cannot be read: it is a directory without ensemble.json",
    ),
    "no JSON": (lambda folder: (folder / "ensemble.json").write_text("{"), "ensemble.json: its content is not valid"),
    "a newer version": (edited(format_version=2), "has format version 2"),
    "another format": (edited(format="consilience-network"), "not valid at format"),
    "an unknown key": (edited(more=1), "not valid at more"),
    "another mean": (edited_answer(mean="median"), "not valid at answer.mean"),
    "no members": (edited(members=[]), "names no members"),
    "too few weights": (
        edited_answer(weights=[1.0]),
        "not valid at weights: expected one for each of 3 networks, found 1",
    ),
    "weights of zero": (edited_answer(weights=[0.0, 0.0, 0.0]), "not valid at weights"),
    "no counts": (edited_answer(class_counts=None), "not valid at class_counts: the stationary mean needs"),
    "negative counts": (edited_answer(class_counts=[[1.0, -1.0, 1.0]] * 3), "not valid at class_counts"),
    "ragged counts": (edited_answer(class_counts=[[1.0], [1.0, 2.0], [1.0]]), "not valid at class_counts"),
    "too many names": (edited_answer(classes=["a"] * 4), "not valid at classes: 4 names for 3 classes"),
    "a missing member": (lambda folder: (folder / "member-1.safetensors").unlink(), "member-1.safetensors: cannot be"),
    "a broken member": (lambda folder: (folder / "member-1.safetensors").write_bytes(b"x" * 99), "member-1.safetensor"),
    "exchanged members": (exchanged, "member-0.safetensors: is not the file that the ensemble was written with"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_folder_is_refused_by_name(tmp_path, case):
    breaks, message = BROKEN[case]
    cs.save(ensemble_of(), tmp_path / "kept")
    breaks(tmp_path / "kept")
    with pytest.raises(cs.errors.FileFormatError, match=re.escape(message)):
        cs.load(tmp_path / "kept", module=site)


def test_what_makes_no_members_is_refused(tmp_path):
    cs.save(ensemble_of(), tmp_path / "kept")
    for module, message in (
        (None, "files have parameters only"),
        (5, "expected a torch module or a function"),
        ([site(), site()], "expected one for each of 3 members, found 2"),
        ({"member 0": site()}, "there is none for member member 1"),
    ):
        with pytest.raises(cs.errors.OptionError, match=message):
            cs.load(tmp_path / "kept", module=module)
    with pytest.raises(cs.errors.InputError, match=r"member-0\.safetensors: .* in the module or in the network only"):
        cs.load(tmp_path / "kept", module=nn.Linear(4, 3))
    file = tmp_path / "kept" / "member-0.safetensors"
    with pytest.raises(cs.errors.OptionError, match="module: is for the folder of an ensemble"):
        cs.load(file, module=site)
    with pytest.raises(cs.errors.OptionError, match="symmetry: an ensemble has none"):
        cs.save(ensemble_of(), tmp_path / "other", symmetry=cs.symmetry(site(), inputs()))
