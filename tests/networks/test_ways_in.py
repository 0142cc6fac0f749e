"""Networks as they come: folders and patterns of files, state dicts, and inputs that stand for an example."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import consilience as cs
from consilience.cli.commands import cli
from consilience.networks.example import derived_example


def make_net() -> nn.Module:
    """Return a network of 6 inputs and 3 classes, always of the same start."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def trained(seed):
    """Return a network after some steps on data of a site, and the data."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, 300)
    inputs = (rng.standard_normal((300, 6)) + 2.0 * np.eye(6)[labels]).astype(np.float32)
    net = make_net()
    optimiser = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(torch.from_numpy(inputs)), torch.from_numpy(labels)).backward()
        optimiser.step()
    return net, (inputs, labels)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder of three described networks."""
    where = tmp_path_factory.mktemp("sites")
    for seed in range(3):
        net, data = trained(seed)
        cs.save(net, where / f"site{seed}.safetensors", data=data)
    return where


def parameters(fusion):
    return {name: values.numpy() for name, values in fusion.model.state_dict().items()}


def test_a_folder_or_pattern_of_networks_is_the_list_of_its_files(folder):
    paths = sorted(folder.glob("site?.safetensors"))
    of_list = cs.fuse(paths, "average", module=make_net)
    for where in (folder, str(folder / "*.safetensors"), [folder]):
        assert cs.check(where, module=make_net) == []
        fusion = cs.fuse(where, "average", module=make_net)
        assert [one.name for one in fusion.inputs] == ["site0", "site1", "site2"]
        for name, values in parameters(of_list).items():
            np.testing.assert_array_equal(parameters(fusion)[name], values)


def test_the_command_fuses_a_folder_of_networks_and_never_into_it(folder, tmp_path):
    target = tmp_path / "fused.safetensors"
    command = ["fuse", str(folder), "--module", f"{__name__}:make_net", "-o"]
    done = CliRunner().invoke(cli, [*command, str(target), "--quiet"])
    assert (done.exit_code, target.is_file()) == (0, True), done.output
    inside = CliRunner().invoke(cli, [*command, str(folder / "fused.safetensors")])
    assert inside.exit_code == 1
    assert "is in a folder of models to fuse" in str(inside.exception)


def test_a_folder_of_plain_checkpoints_is_networks(tmp_path):
    from safetensors.torch import save_file

    for seed in range(2):
        save_file(trained(seed)[0].state_dict(), tmp_path / f"site{seed}.safetensors")
    fusion = cs.fuse(tmp_path, module=make_net, example=torch.zeros(2, 6), method="average")
    assert [one.name for one in fusion.inputs] == ["site0", "site1"]


def test_state_dicts_are_networks(tmp_path):
    nets = [trained(seed)[0] for seed in range(2)]
    example = torch.zeros(2, 6)
    of_modules = cs.fuse(nets, method="average", example=example)
    of_states = cs.fuse([net.state_dict() for net in nets], method="average", module=make_net, example=example)
    for name, values in parameters(of_modules).items():
        np.testing.assert_array_equal(parameters(of_states)[name], values)
    cs.save(nets[0].state_dict(), tmp_path / "site.safetensors")
    assert cs.check([tmp_path / "site.safetensors", nets[1].state_dict()], module=make_net, example=example) == []
    with pytest.raises(cs.errors.OptionError, match="describe the module"):
        cs.describe(nets[0].state_dict(), data=trained(0)[1])


def test_sites_that_describe_too_few_observations_are_told_so():
    described = []
    for seed in range(2):
        net, (inputs, labels) = trained(seed)
        few = np.flatnonzero(labels == seed)[:12]  # a class that is counted, and of which no moments are told
        rows = np.concatenate([few, np.flatnonzero(labels != seed)[:60]])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cs.errors.WithheldWarning)
            described.append(cs.describe(net, data=(inputs[rows], labels[rows])))
    chosen = cs.fuse(described).verdict
    assert (chosen.code, chosen.harmless) == ("chosen", None)
    assert "rare classes" in chosen.remedy
    # Files of earlier versions say no moments of all inputs of fewer than 100 observations.
    without = [replace(one, description=replace(one.description, inputs=None)) for one in described]
    verdict = cs.fuse(without).verdict
    assert verdict.text.startswith("Too few of the sites' observations are of classes whose inputs are described")
    assert "rare classes" in verdict.remedy


@pytest.mark.parametrize("form", ["tensor", "batches", "pairs"])
def test_inputs_are_an_example_too(form):
    nets, inputs = [trained(seed)[0] for seed in range(2)], torch.from_numpy(trained(3)[1][0])
    given = {"tensor": inputs, "batches": list(inputs.split(50)), "pairs": [(part, None) for part in inputs.split(50)]}
    fusion = cs.fuse(nets, inputs=given[form], method="rebasin")
    assert fusion.matching


def test_networks_whose_sites_proved_other_actions_keep_the_common_ones():
    nets = [trained(seed)[0] for seed in range(2)]
    traced = cs.symmetry(nets[0], torch.zeros(2, 6))
    without_scales = replace(traced, all_groups=tuple(replace(g, actions=("permute",)) for g in traced.all_groups))
    without_scales = replace(without_scales, proof=replace(traced.proof, digest=without_scales.digest))
    assert traced.by_name["0"].actions == ("permute", "scale")
    models = [
        cs.Network(net.state_dict(), of_site) for net, of_site in zip(nets, [traced, without_scales], strict=True)
    ]
    fusion = cs.fuse(models, method="rebasin")
    assert fusion.network.symmetry.by_name["0"].actions == ("permute",)
    assert fusion.network.symmetry.proved


def test_the_command_unites_classes(tmp_path):
    for seed, (name, classes) in enumerate([("a", ["red", "green", "blue"]), ("b", ["blue", "green", "grey"])]):
        net, data = trained(seed)
        cs.save(net, tmp_path / f"{name}.safetensors", data=data, classes=classes)
    models = [str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors")]
    alone = CliRunner().invoke(cli, ["check", *models])
    assert "classes" in str(alone.exception)
    without_module = CliRunner().invoke(cli, ["check", *models, "--classes", "union"])
    assert "give `module=" in str(without_module.exception)
    target, module = tmp_path / "fused.safetensors", ["--module", f"{__name__}:make_net"]
    done = CliRunner().invoke(cli, ["fuse", *models, "--classes", "union", *module, "-o", str(target), "--quiet"])
    assert done.exit_code == 0, done.exception
    assert cs.load(target).arrays["2.weight"].shape == (4, 8)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps({"models": ["a.safetensors", "b.safetensors"], "classes": "union"}))
    assert CliRunner().invoke(cli, ["check", "--recipe", str(recipe), *module]).exit_code == 0


class Pooled(nn.Module):
    """A network of images of any size."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 5, 3), nn.Linear(5, 2)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)).mean(dim=(2, 3)))


class Words(nn.Module):
    """A network of numbers of tokens."""

    def __init__(self):
        super().__init__()
        self.words, self.hidden, self.last = nn.Embedding(30, 4), nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, ids):
        return self.last(self.hidden(self.words(ids))[0][:, -1])


OF_FIRST_LAYERS = {
    "linear": lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)),
    "flattened images": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 5), nn.ReLU(), nn.Linear(5, 2)),
    "normalised columns": lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)),
    "images of one size": lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 30 * 30, 3)),
    "images of any size": Pooled,
    "tokens": Words,
}


@pytest.mark.parametrize("name", OF_FIRST_LAYERS)
def test_modules_alone_are_fused_by_an_input_that_their_first_layer_says(name):
    nets = [OF_FIRST_LAYERS[name]().eval() for _ in range(2)]
    fusion = cs.fuse(nets, "rebasin")
    assert fusion.details["proved"]
    example = derived_example(nets[0])
    of_example = cs.fuse(nets, "rebasin", example=example.args[0])
    for name, values in parameters(of_example).items():
        np.testing.assert_array_equal(parameters(fusion)[name], values)


def test_a_module_in_double_precision_is_asked_in_it():
    (inputs,) = derived_example(make_net().double()).args
    assert (inputs.dtype, tuple(inputs.shape)) == (torch.float64, (2, 6))


def test_a_page_about_a_network_that_was_not_fused_says_so_and_shows_no_matching(tmp_path):
    fusion = cs.fuse({name: OF_FIRST_LAYERS["linear"]() for name in ("lund", "oslo")}, allow_single=True)
    site = fusion.single_site
    assert site in ("lund", "oslo")
    fusion.report(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert f"Not fused: this is the model of {site}, as it came." in page
    assert f"not fused: the network of {site}" in page
    for text in ("How well units match", "Who is who", "Converged."):
        assert text not in page
    assert "symmetry: proved" not in fusion.summary()
