"""Networks that cannot be fused, through the command: one clear line that names what is wrong and what to do."""

import dataclasses
import json
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.mixture import GaussianMixture
from torch import nn

import consilience as cs
from consilience.networks.files import write_symmetry
from tests.cli.some_nets import MODULE, SITES, TRACED

FUSED = "fused.safetensors"
ONE_ARCHITECTURE = "fuse networks of one architecture only"


@pytest.fixture
def site(folder, nets):
    """The arrays of the second site, and a way to write others in their place."""
    state = load_file(folder / SITES[1])
    return state, lambda changed: save_file(changed, folder / SITES[1])


def refused(done, code=1, lines=1):
    assert (done.code, done.out) == (code, "")
    complaints = done.complaints()
    assert len(complaints) == lines, complaints
    return "\n".join(complaints)


def without(state, name):
    return {key: values for key, values in state.items() if key != name}


def with_nan(state):
    values = state["2.weight"].clone()
    values[0, 0] = float("nan")
    return {**state, "2.weight": values}


def shallow(_):
    return nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 7)).state_dict()


CHANGED = {
    "a missing tensor": (lambda s: without(s, "2.bias"), f"array 2.bias is missing; {ONE_ARCHITECTURE}"),
    "another tensor": (
        lambda s: {**s, "more": torch.ones(2)},
        f"array more is not in the symmetry; {ONE_ARCHITECTURE}",
    ),
    "another depth": (shallow, r"arrays 4.weight, 4.bias are missing; .* one architecture"),
    "a shape of no group": (
        lambda s: {**s, "2.bias": torch.ones(8)},
        r"array 2.bias has shape \(8,\); by its groups \(2: 7\) it should have \(7,\)",
    ),
    "NaN weights": (with_nan, "array 2.weight has NaN or infinite values; leave this network out"),
    "integer weights": (
        lambda s: {**s, "2.weight": s["2.weight"].to(torch.int32)},
        "array 2.weight holds int32, but its units move; convert it to floating-point",
    ),
    "integer outputs": (
        lambda s: {**s, "4.bias": s["4.bias"].to(torch.int64)},
        f"array 4.bias holds int64, but float32 in {SITES[0]}; convert one",
    ),
}


@pytest.mark.parametrize("case", CHANGED)
@pytest.mark.parametrize("how", ["module", "symmetry"])
def test_a_network_that_is_not_like_the_other(folder, nets, site, command, unchanged, case, how):
    state, write = site
    change, message = CHANGED[case]
    write(change(state))
    assert command("network", "symmetry", *TRACED, "-o", "net.json").code == 0
    unchanged()
    hint = TRACED if how == "module" else ("--symmetry", "net.json")
    for arguments in (("fuse", "-o", FUSED), ("check",)):
        line = refused(command(arguments[0], *SITES, *hint, *arguments[1:]))
        assert line.startswith(f"{SITES[1]}: ")
        assert re.search(message, line), line


def test_another_architecture_is_named_with_what_it_lacks_and_has(folder, nets, command, unchanged):
    torch.manual_seed(2)
    save_file(nets.normalised().state_dict(), folder / SITES[1])
    unchanged()
    text = refused(command("fuse", *SITES, *TRACED, "-o", FUSED), lines=2)
    assert f"{SITES[1]}: arrays 2.weight, 2.bias, 4.weight, 4.bias are missing; {ONE_ARCHITECTURE}" in text
    assert "are not in the symmetry" in text


def test_a_symmetry_of_another_network(folder, nets, command, unchanged):
    assert (
        command("network", "symmetry", "--module", "somenets:normalised", "--example", "2,6", "-o", "other.json").code
        == 0
    )
    unchanged()
    text = refused(command("fuse", *SITES, "--symmetry", "other.json", "-o", FUSED), lines=4)
    assert "1.weight, 1.bias, 1.running_mean, 1.running_var, 1.num_batches_tracked and 2 more are missing" in text


def test_a_wrong_symmetry_is_found_out_where_it_can_be_proved(folder, nets, command):
    symmetry = cs.symmetry(nets.make_mlp(), torch.zeros(1, 6))
    layouts = dict(symmetry.layouts)
    still = layouts["0.weight"].axes[0]
    layouts["0.bias"] = dataclasses.replace(
        layouts["0.bias"], axes=(dataclasses.replace(still, segments=(cs_segment(10),)),)
    )
    write_symmetry(folder / "wrong.json", dataclasses.replace(symmetry, layouts=layouts, proof=None))
    line = refused(command("fuse", *SITES, "--symmetry", "wrong.json", *TRACED, "-o", FUSED))
    assert line.startswith("group 0: another order of its units changes the outputs")
    warned = command("check", *SITES, "--symmetry", "wrong.json").err.splitlines()
    assert warned[0].startswith("consilience: warning: ")
    assert warned[0].endswith(" [W-UNPROVED]")


def cs_segment(length):
    from consilience.networks.symmetry.axes import Segment

    return Segment(None, inner=length)


NORMALISED = ("--module", "somenets:normalised", "--example", "2,6")


@pytest.fixture
def normed(folder, nets):
    """Checkpoints of two sites with batch normalisation that has seen data; a way to write the second one's arrays."""
    states = []
    for seed, name in enumerate(SITES):
        torch.manual_seed(seed)
        net = nets.normalised()
        with torch.no_grad():
            for _ in range(20):
                net(2.0 * torch.randn(32, 6) + 1.0)
        states.append(net.state_dict())
        save_file(states[-1], folder / name)
    return states[1], lambda changed: save_file(changed, folder / SITES[1])


VARIANCES = {
    "negative": (
        -0.5,
        r"array 1.running_var has a negative variance \(-0.5\); leave this network out, or train it again",
    ),
    "NaN": (float("nan"), "array 1.running_var has NaN or infinite values; leave this network out, or train it again"),
}


@pytest.mark.parametrize("case", VARIANCES)
@pytest.mark.parametrize("arguments", [("fuse", "-o", FUSED), ("fuse", "--method", "ot", "-o", FUSED), ("check",)])
def test_running_variances_that_are_none(normed, command, unchanged, case, arguments):
    state, write = normed
    value, message = VARIANCES[case]
    state["1.running_var"][2] = value
    write(state)
    unchanged()
    line = refused(command(arguments[0], *SITES, *NORMALISED, *arguments[1:]))
    assert re.match(f"{SITES[1]}: {message}", line), line
    line = refused(command("site", "describe", SITES[1], *NORMALISED[:2], "--data", "data.npz"))
    assert re.search(message, line), line


def test_running_statistics_that_are_missing(normed, command, unchanged):
    state, write = normed
    write({name: values for name, values in state.items() if "running" not in name and "tracked" not in name})
    unchanged()
    line = refused(command("fuse", *SITES, *NORMALISED, "-o", FUSED))
    assert line.startswith(f"{SITES[1]}: arrays 1.running_mean, 1.running_var are missing; ")


def test_running_statistics_that_never_saw_data_are_said(normed, command):
    state, write = normed
    write({**state, "1.running_mean": torch.zeros(10), "1.running_var": torch.ones(10)})
    line = refused(command("fuse", *SITES, *NORMALISED, "--method", "distill", "-o", FUSED))
    assert line.startswith("two: batch normalisation 1 has never seen data (mean 0, variance 1); describe the network")
    done = command("fuse", *SITES, *NORMALISED, "-o", FUSED)
    assert done.code == 0
    assert "two: batch normalisation 1 has never seen data (mean 0, variance 1)" in " ".join(done.out.split())


def test_a_time_too_short_for_one_step(normed, command, unchanged):
    unchanged()
    short = ("--method", "distill", "--set", "max_seconds=1e-6")
    line = refused(command("fuse", *SITES, *NORMALISED, *short, "-o", FUSED), code=2)
    assert line.startswith("max_seconds: 1e-06 s were over before the first step")


def test_descriptions_of_inputs_of_different_shapes(folder, command):
    states = {}
    for number, name in enumerate(SITES):
        side = 8 + 2 * number
        net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
        states[name] = cs.describe(net, (torch.randn(200, 1, side, side), torch.arange(200) % 3))
        cs.save(states[name], folder / name)
    line = refused(command("fuse", *SITES, "-o", FUSED))
    assert line.startswith(f"{SITES[1]}: has inputs of shape (1, 10, 10), and those of {SITES[0]} have (1, 8, 8); ")


def test_a_target_that_is_no_change_of_widths(nets, command, unchanged):
    unchanged()
    text = refused(command("fuse", *SITES, *TRACED, "--target", "somenets:normalised", "-o", FUSED), lines=3)
    assert text.startswith("--target: a Sequential that is not the models' network in other widths; give one that")


def test_files_of_different_architectures_with_their_symmetries(folder, nets, command):
    nets_of = {"p.safetensors": nets.make_mlp(), "q.safetensors": nets.normalised()}
    for name, net in nets_of.items():
        cs.save(net, folder / name, symmetry=cs.symmetry(net, torch.zeros(2, 6)))
    line = refused(command("fuse", *nets_of, "-o", FUSED))
    assert (
        line == "p.safetensors, q.safetensors: come with different symmetries, so they are of different architectures"
    )


def test_plain_checkpoints_without_any_hint(nets, command, unchanged):
    unchanged()
    for arguments in (("fuse", "-o", FUSED), ("check",), ("fuse", "-o", FUSED, "--reference", "0")):
        text = refused(command(arguments[0], *SITES, *arguments[1:]), lines=2)
        for name, line in zip(SITES, text.splitlines(), strict=True):
            assert line.startswith(f"{name}: says nothing of which axes move together; give `--symmetry`")
            assert "or `--module` and `--example`" in line


def test_posteriors_and_networks_do_not_mix(folder, nets, command, unchanged):
    rows = np.random.default_rng(0).normal(size=(50, 6))
    cs.save(GaussianMixture(2, random_state=0).fit(rows), folder / "mixture.safetensors", n_observations=50)
    net = nets.make_mlp()
    cs.save(net, folder / "network.safetensors", symmetry=cs.symmetry(net, torch.zeros(1, 6)))
    unchanged()
    for files in ((SITES[0], "mixture.safetensors", *TRACED), ("network.safetensors", "mixture.safetensors")):
        line = refused(command("fuse", *files, "-o", FUSED))
        assert line.startswith("mixture.safetensors: is a posterior file, expected a network or a checkpoint")
    line = refused(command("fuse", "a.safetensors", "b.safetensors", *TRACED, "-o", FUSED), code=2)
    assert line == "--module, --example: for networks only, and a.safetensors holds posteriors"
    line = refused(command("evaluate", "network.safetensors", "mixture.safetensors", *MODULE, "--data", "data.npz"))
    assert line.startswith("mixture.safetensors: is a posterior file")
    line = refused(command("evaluate", "a.safetensors", "b.safetensors", *MODULE, "--data", "data.npz"), code=2)
    assert line == "--module: is for networks, and these models are none"


def test_pickles_are_never_loaded(folder, nets, command, unchanged):
    torch.save(nets.make_mlp().state_dict(), folder / "p.pt")
    torch.save(nets.wide().state_dict(), folder / "q.pt")
    unchanged()
    for hint in ((), TRACED):
        text = refused(command("fuse", "p.pt", "q.pt", *hint, "-o", FUSED), lines=2)
        assert text.startswith("p.pt: is a file of torch.save, a pickle or zip archive, which is never loaded; convert")
    line = refused(command("fuse", SITES[0], "p.pt", *TRACED, "-o", FUSED))
    assert line.startswith("p.pt: is a file of torch.save")


TOLD = {
    "--target-width 0=0": (2, "group 0 must have at least one unit, found 0"),
    "--target-width 0=-3": (2, "group 0 must have at least one unit, found -3"),
    "--target-width fc1=9": (2, "group 'fc1' does not exist; there are 0, 2"),
    "--target-width 9": (2, "--target-width 9: expected GROUP=N"),
    "--target-width 0=many": (2, "--target-width 0=many: expected GROUP=N"),
    "--target-width 0=9 --target somenets:wide": (2, "--target, --target-width: give one of them"),
    "--target somenets:number": (2, "--target somenets:number: is a int; expected a torch module"),
    "--reference 2": (2, "reference: expected the number of a model, 0 to 1, found 2"),
    "--inputs nowhere.npy": (1, "^nowhere.npy: cannot be read: No such file"),
    "--inputs one.safetensors": (
        1,
        "^one.safetensors: is the file of a model by its name, expected the rows of a site; give them as .npz or .npy$",
    ),
    "--inputs wrong.npy": (1, r"^wrong.npy: Sequential does not take an input such as float32 \(2, 5\)"),
    "--inputs nan.npy": (1, "^nan.npy: has NaN or infinite entries"),
    "--inputs words.npy": (1, "^words.npy: expected numbers, found an array of type <U3"),
    "--inputs scalar.npy": (1, r"^scalar.npy: expected an array with entries, found shape \(\)"),
    "--inputs many.npz": (1, "^many.npz: has the arrays p, q; expected inputs under one of the names x, X, inputs"),
    "--method kl": (
        2,
        "method 'kl' is for posteriors of statistical models and Bayesian networks, not for networks; give one of auto",
    ),
    "--method ensemble": (1, "an ensemble is its members; keep the sites' files, or use method 'consensus'"),
    "--set speed=9": (2, "method 'auto' has no option speed"),
    "--set module=x": (2, "module: not an option of a method"),
    "--weights 1": (2, "expected 2 numbers, one for each"),
    "--symmetry nowhere.json": (1, "^nowhere.json: cannot be read: No such file"),
    "--symmetry one.safetensors": (1, "^one.safetensors: carries no symmetry"),
    "--symmetry somenets.py": (1, "^somenets.py: its content is not valid JSON"),
    "--method ot --set cost=activations": (1, "^ot: matching by activations needs `--inputs`, unlabeled inputs"),
}


@pytest.mark.parametrize("words", TOLD)
def test_options_that_do_not_fit_the_networks(folder, nets, command, unchanged, words):
    np.save(folder / "wrong.npy", np.ones((4, 5)))
    np.save(folder / "nan.npy", np.full((4, 6), np.nan))
    np.save(folder / "words.npy", np.array(["one", "two"]))
    np.save(folder / "scalar.npy", np.float64(3))
    np.savez(folder / "many.npz", p=np.ones((4, 6)), q=np.ones(4))
    unchanged()
    code, message = TOLD[words]
    line = refused(command("fuse", *SITES, *TRACED, *words.split(), "-o", FUSED), code)
    assert re.search(message, line), line


def test_widths_that_a_method_or_an_architecture_cannot_have(nets, command, unchanged):
    unchanged()
    text = refused(
        command("fuse", *SITES, *TRACED, "--target-width", "0=9", "--method", "rebasin", "-o", FUSED), lines=2
    )
    assert f"{SITES[0]}: group 0 has 10 units where the fused network has 9; method 'rebasin' needs the same" in text
    text = refused(command("fuse", *SITES, *TRACED, "--target", "somenets:normalised", "-o", FUSED), lines=3)
    assert text.startswith(
        "--target: a Sequential that is not the models' network in other widths; give one that differs"
    )
    assert f"--target: arrays 2.weight, 2.bias, 4.weight, 4.bias are missing; {ONE_ARCHITECTURE}" in text


MODULES = {
    "nowhere.nets:make": r"cannot be imported \(ModuleNotFoundError: No module named 'nowhere'\)",
    "crash:make": r"cannot be imported \(ZeroDivisionError: division by zero\)",
    "typo:make": r"cannot be imported \(SyntaxError: ",
    "somenets:nothing": "somenets has no nothing",
    "somenets": "expected PKG.MOD:CALLABLE, such as mypkg.nets:make_mlp",
    "somenets:number": "is a int; expected a torch module or what makes one",
    "somenets:broken": r"cannot be called without arguments \(RuntimeError: out of order\)",
    "somenets:nn.Linear": r"cannot be called without arguments \(TypeError: ",
    "json:JSONDecoder": "gave a JSONDecoder; expected a torch module",
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_that_are_none(folder, nets, command, unchanged, name):
    (folder / "crash.py").write_text("1 / 0")
    (folder / "typo.py").write_text("def make(:")
    unchanged()
    module = ("--module", name)
    commands = [
        ("fuse", *SITES, *module, "--example", "1,6", "-o", FUSED),
        ("check", *SITES, *module, "--example", "1,6"),
    ]
    commands += [("network", "symmetry", *module, "--example", "1,6", "-o", "net.json")]
    commands += [(*what, *SITES, *module, "--data", "data.npz") for what in (("evaluate",), ("network", "barrier"))]
    for arguments in commands:
        line = refused(command(*arguments), 2)
        assert re.search(f"^--module {re.escape(name)}: {MODULES[name]}", line), line


EXAMPLES = {
    "1,5": (1, r"^--example 1,5: Sequential does not take an input such as float32 \(1, 5\)"),
    "int64:1,6": (1, "^--example int64:1,6: Sequential does not take an input such as int64"),
    "1,six": (2, "^--example 1,six: expected a shape such as 1,784 or int64:1,20, or a .npy file"),
    "0,6": (2, "every axis has at least one entry"),
    "99999999,99999999": (2, "at most 268435456"),
    "real:1,6": (2, "types are float16, bfloat16, float32, float64, int64, int32, bool"),
    "nowhere.npy": (1, "^nowhere.npy: cannot be read: No such file"),
    "objects.npy": (1, "^objects.npy: is damaged or not an array of numbers: it holds Python objects"),
}


@pytest.mark.parametrize("spec", EXAMPLES)
def test_examples_that_the_module_does_not_take(folder, nets, command, unchanged, spec):
    np.save(folder / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    unchanged()
    code, message = EXAMPLES[spec]
    for arguments in (("fuse", *SITES, "-o", FUSED), ("network", "symmetry", "-o", "net.json")):
        line = refused(command(*arguments, *MODULE, "--example", spec), code)
        assert re.search(message, line), line


def test_what_a_module_or_an_example_needs_beside_it(nets, command, unchanged):
    unchanged()
    assert command("network", "symmetry", *TRACED[:2], "-o", "net.json").code == 2
    assert command("network", "barrier", *SITES, "--data", "data.npz").code == 2
    line = refused(command("evaluate", *SITES, "--data", "data.npz"), 2)
    assert line.startswith(f"{SITES[0]}: is a network without code; give a module of its architecture")


def test_an_example_or_inputs_without_a_module(nets, command):
    assert command("network", "symmetry", *TRACED, "-o", "net.json").code == 0
    for option in (("--example", "1,6"), ("--inputs", "data.npz")):
        line = refused(command("fuse", *SITES, "--symmetry", "net.json", *option, "-o", FUSED), 2)
        assert line == f"{option[0]}: is for a module to take; give --module PKG.MOD:CALLABLE too"


def test_a_module_that_cannot_be_exported(nets, command, unchanged):
    unchanged()
    line = refused(
        command("network", "symmetry", "--module", "somenets:Undecided", "--example", "1,6", "-o", "net.json")
    )
    assert line.startswith("Undecided cannot be exported (")
    assert "write its forward without decisions that depend on the numbers in tensors" in line


DATA = {
    "inputs.npy": (2, "^inputs.npy: has no labels; give a .npz with x and y"),
    "inputs.npy --labels few.npy": (1, r"^few.npy: expected one for each of 8 inputs, found shape \(3,\)"),
    "inputs.npy --labels half.npy": (1, "^half.npy: row 0, counted from 0: expected the number of a class, .* 0.5"),
    "inputs.npy --labels words.npy": (1, "^words.npy: expected the numbers of classes, from 0"),
    "inputs.npy --labels large.npy": (1, "^--labels: found 3, but the network has 3 classes"),
    "inputs.npy --labels nowhere": (1, "^--labels: 'nowhere' is neither a column of inputs.npy nor a file"),
    "wrong.npz": (1, r"^wrong.npz: Sequential does not take an input such as float32 \(2, 5\)"),
    "nowhere.npz": (1, "^nowhere.npz: cannot be read: No such file"),
    "somenets.py": (1, "^somenets.py: expected a file named .npz, .npy or .csv"),
}


@pytest.mark.parametrize("words", DATA)
@pytest.mark.parametrize("what", ["evaluate", "network barrier"])
def test_data_that_do_not_fit(folder, nets, command, unchanged, what, words):
    np.save(folder / "inputs.npy", np.ones((8, 6)))
    for name, labels in {"few": [0, 1, 2], "half": np.full(8, 0.5), "words": ["a"] * 8, "large": np.full(8, 3)}.items():
        np.save(folder / f"{name}.npy", np.array(labels))
    np.savez(folder / "wrong.npz", x=np.ones((4, 5)), y=np.zeros(4))
    unchanged()
    code, message = DATA[words]
    line = refused(command(*what.split(), *SITES, *MODULE, "--data", *words.split()), code)
    assert re.search(message, line), line


def test_networks_of_other_widths_or_depths_have_no_barrier(folder, nets, command, site, unchanged):
    save_file(nets.wide().state_dict(), folder / "wide.safetensors")
    save_file(nets.normalised().state_dict(), folder / "other.safetensors")
    unchanged()
    text = refused(command("network", "barrier", SITES[0], "wide.safetensors", *MODULE, "--data", "data.npz"), lines=5)
    assert text.startswith("wide.safetensors: tensor '0.weight' has shape (20, 6), expected (10, 6); only networks of")
    for what in ("network barrier", "evaluate"):
        done = command(*what.split(), SITES[0], "other.safetensors", *MODULE, "--data", "data.npz")
        assert done.code == 1
        assert done.complaints()[0] == "other.safetensors: array 2.weight is missing, which Sequential has"


def test_a_file_with_a_symmetry_that_does_not_fit_it(folder, nets, command):
    net = nets.make_mlp()
    cs.save(net, folder / "p.safetensors", symmetry=cs.symmetry(net, torch.zeros(1, 6)))
    assert command("inspect", "p.safetensors").code == 0
    other = json.loads(command("inspect", "--json", "p.safetensors").out)
    assert other["units"] == {"0": 10, "2": 7}
    (folder / "bad.json").write_text('{"format": "consilience-symmetry"}')
    for what in (("inspect", "bad.json"), ("fuse", *SITES, "--symmetry", "bad.json", "-o", FUSED)):
        assert refused(command(*what)).startswith("bad.json: its content is not valid at ")


def test_outputs_never_take_the_place_of_what_is_read(folder, nets, command, unchanged):
    assert command("network", "symmetry", *TRACED, "-o", "net.json").code == 0
    unchanged()
    line = refused(command("fuse", *SITES, "--symmetry", "net.json", "-o", "net.json"))
    assert line == "net.json: is read here; give another output"
    line = refused(command("network", "barrier", *SITES, *MODULE, "--data", "data.npz", "-o", "data.npz"))
    assert line == "data.npz: is read here; give another output"


def test_report_options_belong_to_one_kind(folder, nets, command):
    assert command("fuse", *SITES, *TRACED, "-o", FUSED).code == 0
    line = refused(command("report", FUSED, "--data", "data.npz", "-o", "page.html"), 2)
    assert line.startswith("`--data`, `--truth`: for statistical models")
    line = refused(command("report", "a.safetensors", "--barrier", FUSED, "-o", "page.html"), 2)
    assert line == "`--barrier`, `--plane`: for networks only, and a.safetensors is none"
    line = refused(command("report", FUSED, "--barrier", SITES[0], "-o", "page.html"))
    assert line.startswith(f"{SITES[0]}: has no consilience metadata, so it is not a barrier file")
