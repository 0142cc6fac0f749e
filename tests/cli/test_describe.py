"""The command at a site that describes its network, and what is said of the file."""

import json

import numpy as np
import pytest
import torch

import consilience as cs
from tests.cli.some_nets import MODULE, SITES, TRACED
from tests.networks.described_nets import Reader

DESCRIBED = ("one.description.safetensors", "two.description.safetensors")


@pytest.fixture
def data(nets, folder):
    """Training data of the two sites."""
    rng = np.random.default_rng(0)
    for number in range(len(SITES)):
        labels = rng.integers(0, 3, 240)
        inputs = rng.normal(size=(240, 6)).astype(np.float32) + np.eye(6, dtype=np.float32)[labels]
        np.savez(folder / f"{number}.npz", x=inputs * (1 if number == 0 else 200), y=labels)
    return nets


def test_a_site_describes_its_network_and_sends_both(data, folder, command):
    done = command(
        "site", "describe", SITES[0], *MODULE, "--data", "0.npz", "-o", "site.safetensors", "--classes", "a,b,c"
    )
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == "wrote site.safetensors, site.description.safetensors"
    assert "What this file tells about people" in done.out
    assert cs.load("site.safetensors").symmetry.proved
    assert cs.load("site.description.safetensors").classes == ("a", "b", "c")
    again = command(
        "site", "describe", SITES[0], *MODULE, "--data", "0.npz", "-o", "again.safetensors", "--classes", "a,b,c"
    )
    assert again.code == 0
    for name in ("{}.safetensors", "{}.description.safetensors"):
        assert (folder / name.format("again")).read_bytes() == (folder / name.format("site")).read_bytes()


def test_the_description_alone_is_written_beside_the_network(data, folder, command):
    before = (folder / SITES[0]).read_bytes()
    assert command("site", "describe", SITES[0], *MODULE, "--data", "0.npz", "--quiet").out == ""
    assert (folder / SITES[0]).read_bytes() == before
    assert cs.load(DESCRIBED[0]).n_observations == 240


def test_sites_of_another_scale_are_named_by_check(data, command):
    for number, site in enumerate(SITES):
        assert command("site", "describe", site, *MODULE, "--data", f"{number}.npz").code == 0
    done = command("check", *SITES, *TRACED)
    assert done.code == 1
    assert done.err.startswith("consilience: two.safetensors: its inputs are 2")
    same = command("check", *DESCRIBED, *SITES, *TRACED)  # as a pattern of both would give them
    assert same.err == done.err


@pytest.mark.filterwarnings("always::consilience.errors.WithheldWarning")
def test_inspect_says_what_a_description_tells_of_people(data, command):
    np.savez("few.npz", x=np.random.default_rng(0).normal(size=(200, 6)), y=np.r_[np.zeros(198, int), 1, 2])
    done = command("site", "describe", SITES[0], *MODULE, "--data", "few.npz", "--layers")
    assert (done.code, done.err) == (
        0,
        "consilience: warning: 2 of 3 classes have fewer than 5 observations and are withheld: 1, 2 "
        "(`--min-count 0` keeps them) [W-WITHHELD]\n",
    )
    lines = command("inspect", DESCRIBED[0]).out.splitlines()
    assert "withheld:    of fewer than 5 observations: 1, 2" in lines
    people = lines[lines.index("What this file tells about people: ") :]
    assert [line.partition(":")[0] for line in people[1:]] == [
        "counts", "mean input", "range", "mean by class", "features", "membership", "channels", "layers",
        "directions", "differences", "protection",
    ]  # fmt: skip
    document = json.loads(command("inspect", "--json", DESCRIBED[0]).out)
    assert document["header"]["n_observations"] == 198
    assert document["bytes"]["moments of the inputs"] == 4 * 6 * 8


def told(command, file):
    """Return what a description tells about people, by what it is called."""
    lines = command("inspect", file).out.splitlines()
    people = lines[lines.index("What this file tells about people: ") + 1 :]
    return {name: text.strip() for name, _, text in (line.partition(":") for line in people)}


def test_layers_are_left_out_or_asked_for(data, command):
    sizes = {}
    for flag in ("--layers", "--no-layers"):
        assert command("site", "describe", SITES[0], *MODULE, "--data", "0.npz", flag).code == 0
        sizes[flag] = json.loads(command("inspect", "--json", DESCRIBED[0]).out)["bytes"]
    assert set(sizes["--layers"]) - set(sizes["--no-layers"]) == {"second moments of layers"}
    assert bool(cs.load(DESCRIBED[0]).layers) is False


def test_inspect_says_that_a_mean_without_classes_tells_who_was_in_it(data, command):
    np.savez("targets.npz", x=np.random.default_rng(0).normal(size=(200, 6)))
    assert command("site", "describe", SITES[0], *MODULE, "--data", "targets.npz").code == 0
    people = told(command, DESCRIBED[0])
    assert list(people) == [
        "counts", "mean input", "range", "membership", "channels", "differences", "protection",
    ]  # fmt: skip
    assert people["range"].endswith("of the observations, and 5 at least")
    cs.save(cs.Description("0" * 64, 200), "number.safetensors")
    assert list(told(command, "number.safetensors")) == ["counts", "differences", "protection"]


def test_inspect_says_that_nothing_is_withheld(data, command):
    assert command("site", "describe", SITES[0], *MODULE, "--data", "0.npz", "--min-count", "0").code == 0
    people = told(command, DESCRIBED[0])
    assert people["counts"] == "how many observations of each class the site has, however few"
    assert people["range"].endswith("outermost 0.1 % of the observations")
    assert people["protection"].startswith("no class is withheld for being small; no noise")


def test_a_description_is_no_network(data, command):
    assert command("site", "describe", SITES[0], *MODULE, "--data", "0.npz").code == 0
    done = command("fuse", DESCRIBED[0], "-o", "fused")
    assert done.code == 1
    assert done.err.splitlines() == [
        f"consilience: {DESCRIBED[0]}: is the description of a network; give the networks too [E-NEEDED]"
    ]
    done = command("evaluate", DESCRIBED[0], SITES[1], "--data", "0.npz", *MODULE)
    assert (
        "is a description, expected a network or a checkpoint; give it with the network that it describes" in done.err
    )


COMMANDS = {
    "describe": ("site", "describe", "a.pt", *MODULE, "--data", "0.npz"),
    "inspect": ("inspect", "a.pt"),
    "evaluate": ("evaluate", "a.pt", SITES[0], "--data", "0.npz", *MODULE),
    "fuse": ("fuse", "a.pt", SITES[0], "-o", "fused", *MODULE, "--example", "1,6"),
    "check": ("check", "a.pt", SITES[0], *MODULE, "--example", "1,6"),
    "merge": ("merge", "a.pt", SITES[0], "-o", "merged"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_file_of_torch_gets_the_two_lines_that_convert_it_from_every_command(data, command, name):
    torch.save({"epoch": 1, "state_dict": torch.nn.Linear(6, 2).state_dict()}, "a.pt")
    done = command(*COMMANDS[name])
    assert done.code == 1
    text, _, remedy = done.complaints()[0].partition("; ")
    assert (
        text == "a.pt: is a training checkpoint of torch (weights under 'state_dict'), a pickle, which is never loaded"
    )
    lines = (
        "`state = torch.load('a.pt', weights_only=True)['state_dict']`, then `consilience.save(state, 'a.safetensors')`"
    )
    assert remedy == f"convert it once: {lines}"


def test_inspect_says_what_counts_of_tokens_by_class_tell_of_people(folder, command):
    words = np.random.default_rng(0).integers(1, 40, (400, 12))
    cs.save(cs.describe(Reader(), (words, np.arange(400) % 2)), folder / "texts.safetensors")
    people = told(command, "texts.description.safetensors")
    assert people["words by class"] == "which words the site's texts of each class use often"
    lines = command("inspect", "texts.description.safetensors").out.splitlines()
    assert any(line.startswith("tokens by class:") and line.endswith("counts of 2 classes") for line in lines)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: {"x": np.where(np.arange(6) == 2, np.nan, x), "y": y}, "has NaN or infinite inputs"),
        (lambda x, y: {"x": x, "y": np.where(y == 1, np.nan, y)}, "has NaN or infinite labels"),
        (lambda x, y: {"x": x, "y": y + 1}, "has labels outside the classes 0 to 2: 3"),
        (lambda x, y: {"x": x[:, :5], "y": y}, "does not take an input such as float32 (2, 5)"),
        (lambda x, y: {"x": x, "y": y[:100]}, "has 240 observations and 100 labels"),
        (lambda x, y: {"x": x[:4], "y": y[:4]}, "a description of 4 observations discloses single ones"),
    ],
)
def test_data_that_do_not_fit_are_refused_in_a_line(data, folder, unchanged, command, change, message):
    with np.load(folder / "0.npz") as stored:
        np.savez(folder / "bad.npz", **change(stored["x"].astype(np.float32), stored["y"]))
    unchanged()
    done = command("site", "describe", SITES[0], *MODULE, "--data", "bad.npz")
    assert done.code == 1
    assert len(done.err.splitlines()) == 1
    assert message in done.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--data", "0.npz", "-o", "one.safetensors"), "is read here"),
        (("--data", "none.npz"), "none.npz"),
        (("--data", "0.npz", "--classes", "4"), "are 4, but the network has 3 outputs"),
        (("--data", "0.npz", "--n-observations", "7"), "is 7, but data has 240 observations"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(data, unchanged, command, options, message):
    unchanged()
    done = command("site", "describe", SITES[0], *MODULE, *options)
    assert done.code in (1, 2)
    assert message in done.err
    assert len(done.err.splitlines()) == 1
