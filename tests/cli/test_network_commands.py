"""The command on networks when all is well: fuse, check, inspect, symmetry, barrier, evaluate, report."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import consilience as cs
from consilience.networks.files import read_network, read_symmetry
from consilience.networks.landscape.barrier import Barrier
from consilience.networks.landscape.evaluation import Classification
from tests.cli.running import run
from tests.cli.some_nets import MODULE, SITES, TRACED
from tests.tolerances import SINGLE_PRECISION

FUSED = "fused.safetensors"


def test_checkpoints_and_a_module_give_an_ordinary_state_dict(folder, nets, command):
    done = command("fuse", *SITES, "--method", "wb", *TRACED, "-o", FUSED)
    assert (done.code, done.err) == (0, "")
    module = nets.make_mlp()
    module.load_state_dict(load_file(folder / FUSED), strict=True)
    with torch.no_grad():
        assert torch.isfinite(module(torch.ones(2, 6))).all()
    lines = done.out.splitlines()
    assert lines[0] == (
        "One network of 171 parameters, fused from 2 models. Whether it is better than each of them is not known. "
        "Next: compare it with each site's own on that site's data before anybody adopts it."
    )
    assert lines[1] == "2 networks with 17 units each in 2 groups -> 17 units (method wb)"
    assert [line.split()[:4] for line in lines[2:5]] == [
        ["group", "units", "fused", "shared"],
        ["0", "10", "10", "10"],
        ["2", "7", "7", "7"],
    ]
    fusion = cs.fuse(SITES, "wb", module=module, example=torch.zeros(1, 6))
    assert all(
        line.endswith(f"{fusion.quality[group].before:.3f} -> {fusion.quality[group].distance:.3f}")
        for group, line in zip("02", lines[3:5], strict=True)
    )
    assert "symmetry: proved" in lines
    assert lines[-1] == f"wrote {FUSED}"


@pytest.mark.slow
def test_the_command_in_a_process_finds_the_module_beside_it(nets):
    done = run("fuse", *SITES, *TRACED, "-o", FUSED)
    assert done.code == 0
    assert done.err.startswith("consilience: warning: No site described its inputs")
    assert done.err.count("\n") == 1
    assert "taken: site" in done.out
    nets.make_mlp().load_state_dict(load_file(FUSED), strict=True)


@pytest.mark.parametrize("name", ["make_mlp", "instance"])
def test_a_symmetry_once_traced_needs_no_code(folder, nets, command, name):
    done = command("network", "symmetry", "--module", f"somenets:{name}", "--example", "2,6", "-o", "net.json")
    assert (done.code, done.err) == (0, "")
    assert "2 groups of units that move together" in done.out
    assert "proved: yes" in done.out
    assert read_symmetry(folder / "net.json").groups == {"0": 10, "2": 7}
    assert read_symmetry(folder / "net.json").proved
    (folder / "somenets.py").unlink()
    refused = command("fuse", *SITES, "--symmetry", "net.json", "-o", FUSED)
    assert (refused.code, (folder / FUSED).exists()) == (2, False)  # one site's network would have come
    assert "--module: is needed: the default compares networks by what they answer" in refused.err
    done = command("fuse", *SITES, "--symmetry", "net.json", "--method", "consensus", "-o", FUSED)
    assert (done.code, done.err) == (0, "")
    assert read_network(folder / FUSED).symmetry.proved
    assert command("check", *SITES, "--symmetry", "net.json").out == "ok: 2 models can be fused\n"


def test_files_with_their_symmetry_need_nothing_else(folder, nets, command):
    symmetry = cs.symmetry(nets.make_mlp(), torch.zeros(1, 6))
    for name in SITES:
        net = nets.make_mlp()
        net.load_state_dict(load_file(folder / name))
        cs.save(net, folder / name, symmetry=symmetry, overwrite=True)
    assert command("check", *SITES).code == 0
    assert command("fuse", *SITES, "--method", "consensus", "-o", FUSED).code == 0
    assert command("inspect", FUSED).code == 0


def test_the_same_seed_gives_the_same_bytes(folder, nets, command):
    written = []
    for _ in range(2):
        assert command("fuse", *SITES, *TRACED, "--method", "wb", "--seed", "3", "-o", FUSED).code == 0
        written.append((folder / FUSED).read_bytes())
    assert written[0] == written[1]


def test_half_precision_stays_half(folder, nets, command):
    for name in SITES:
        save_file({key: values.half() for key, values in load_file(folder / name).items()}, folder / name)
    for options, warning in ((("--method", "wb"), ""), ((), "[W-UNCOMPARED]\n")):
        done = command("fuse", *SITES, *TRACED, *options, "-o", FUSED)
        assert (done.code, done.err[-len("[W-UNCOMPARED]\n") :]) == (0, warning)
        assert {str(values.dtype) for values in load_file(folder / FUSED).values()} == {"torch.float16"}


def test_integer_buffers_are_carried_and_statistics_warned_of(folder, nets, command):
    for seed, name in enumerate(SITES):
        torch.manual_seed(seed)
        net = nets.normalised().train()
        net(torch.randn(50, 6))
        save_file(net.state_dict(), folder / name)
    traced = ("--module", "somenets:normalised", "--example", "4,6")
    done = command("fuse", *SITES, *traced, "--method", "rebasin", "-o", FUSED)
    assert (done.code, done.err) == (0, "")
    assert "warning: its statistics of batch normalisation are averages" in done.out
    nets.normalised().load_state_dict(load_file(folder / FUSED), strict=True)


def test_tied_weights_may_be_saved_once(folder, nets, command):
    for seed, name in enumerate(SITES):
        torch.manual_seed(seed)
        state = nets.Tied().state_dict()
        del state["out.weight"]
        save_file(state, folder / name)
    tied = ("--module", "somenets:Tied")
    done = command("fuse", *SITES, *tied, "--example", "int64:2,4", "--method", "rebasin", "-o", FUSED)
    assert (done.code, done.err) == (0, "")
    nets.Tied().load_state_dict(load_file(folder / FUSED), strict=True)
    assert "tied:" in command("inspect", FUSED).out
    assert json.loads(command("inspect", "--json", FUSED).out)["parameters"] == 11 * 5 + 11


def test_other_widths_by_a_module_or_by_numbers(folder, nets, command):
    assert command("fuse", *SITES, *TRACED, "--target", "somenets:wide", "-o", FUSED).code == 0
    nets.wide().load_state_dict(load_file(folder / FUSED), strict=True)
    widths = ("--target-width", "0=12", "--target-width", "2=9")
    assert command("fuse", *SITES, *TRACED, *widths, "-o", FUSED).code == 0
    nets.make_mlp(12, 9).load_state_dict(load_file(folder / FUSED), strict=True)


def test_inputs_are_asked_by_methods_that_match_activations(folder, nets, command):
    np.save(folder / "inputs.npy", data_of(folder)[0])
    by_file = []
    for name in ("inputs.npy", "data.npz"):
        options = ("--method", "ot", "--set", "cost=activations", "--inputs", name)
        assert command("fuse", *SITES, *TRACED, *options, "-o", FUSED).code == 0
        by_file.append((folder / FUSED).read_bytes())
    assert by_file[0] == by_file[1]


def test_weights_and_reference_count(folder, nets, command):
    options = ("--method", "average", "--weights", "3,1", "--reference", "1")
    assert command("fuse", *SITES, *TRACED, *options, "-o", FUSED).code == 0
    one, two, fused = (load_file(folder / name) for name in (*SITES, FUSED))
    for key, values in fused.items():
        assert torch.allclose(values, 0.75 * one[key] + 0.25 * two[key], atol=SINGLE_PRECISION)


def test_an_unproved_symmetry_is_warned_of_in_one_line(folder, nets, command):
    assert command("network", "symmetry", *TRACED, "-o", "net.json").code == 0
    document = json.loads((folder / "net.json").read_text())
    document["symmetry"]["proof"] = None
    (folder / "net.json").write_text(json.dumps(document))
    for arguments in (("fuse", "-o", FUSED, "--method", "consensus"), ("check",)):
        done = command(arguments[0], *SITES, "--symmetry", "net.json", *arguments[1:])
        assert done.code == 0
        (line,) = done.err.splitlines()
        assert line.startswith("consilience: warning: the symmetry of these networks is unproved")
        assert line.endswith(" [W-UNPROVED]")
        assert "symmetry: proved" not in done.out
    assert "proved:      no" in command("inspect", FUSED).out
    done = command("fuse", *SITES, "--symmetry", "net.json", *TRACED, "--method", "consensus", "-o", FUSED)
    assert (done.code, done.err) == (0, "")
    assert "symmetry: proved" in done.out


RECIPE = """
models: ["*.safetensors"]
module: somenets:make_mlp
example: "1,6"
target_widths: {"0": 12}
inputs: inputs.npy
reference: 0
method: ot
options: {cost: activations}
output: fused.safetensors
"""


def test_a_recipe_says_the_same(folder, nets, command):
    (folder / "sites").mkdir()
    for name in SITES:
        (folder / name).rename(folder / "sites" / name)
    np.save(folder / "sites" / "inputs.npy", np.ones((5, 6)) * np.arange(5)[:, None])
    (folder / "sites" / "recipe.yaml").write_text(RECIPE)
    done = command("fuse", "--recipe", "sites/recipe.yaml", *MODULE)
    assert (done.code, done.err) == (0, "")
    by_recipe = (folder / "sites" / FUSED).read_bytes()
    nets.make_mlp(12).load_state_dict(load_file(folder / "sites" / FUSED), strict=True)
    options = ("--target-width", "0=12", "--inputs", "sites/inputs.npy", "--reference", "0")
    arguments = ("--method", "ot", "--set", "cost=activations", "-o", FUSED)
    assert command("fuse", *(f"sites/{name}" for name in SITES), *TRACED, *options, *arguments).code == 0
    assert (folder / FUSED).read_bytes() == by_recipe


def test_a_recipe_imports_nothing_by_itself(folder, nets, command, unchanged):
    (folder / "recipe.yaml").write_text(RECIPE.replace("*", "one").replace("fused", "trap"))
    (folder / "somenets.py").write_text("raise SystemExit('imported')")
    sys.modules.pop("somenets")
    unchanged()
    done = command("fuse", "--recipe", "recipe.yaml")
    assert done.code == 2
    (line,) = done.complaints()
    assert line.startswith("recipe.yaml: names the module somenets:make_mlp, whose import would run code")
    done = command("fuse", "--recipe", "recipe.yaml", "--allow-import")
    assert done.complaints() == ["--module somenets:make_mlp: cannot be imported (SystemExit: imported)"]


def test_inspect_says_what_is_in_networks_and_symmetries(folder, nets, command):
    assert command("network", "symmetry", *TRACED, "-o", "net.json").code == 0
    assert command("fuse", *SITES, *TRACED, "-o", FUSED).code == 0
    plain = command("inspect", SITES[0]).out
    assert "format:      a plain checkpoint" in plain
    count = sum(values.numel() for values in load_file(folder / FUSED).values())
    assert f"parameters:  {count} in 6 arrays of float32" in plain
    fused = command("inspect", FUSED).out
    assert all(part in fused for part in ("groups:      2: 0 10, 2 7\n", "proved:      yes", "fused by:", "from:"))
    assert "groups:      2: 0 10, 2 7\n" in command("inspect", "net.json").out
    for name, kind in ((SITES[0], "checkpoint"), (FUSED, "network"), ("net.json", "symmetry")):
        document = json.loads(command("inspect", "--json", name).out)
        assert document["kind"] == kind
    document = json.loads(command("inspect", "--json", FUSED).out)
    assert (document["parameters"], document["proved"], document["units"]) == (count, True, {"0": 10, "2": 7})
    assert document["arrays"]["0.weight"] == {"shape": [10, 6], "dtype": "float32"}
    assert document["provenance"]["method"] == "auto"


def data_of(folder):
    with np.load(folder / "data.npz") as data:
        return data["x"], data["y"]


def loaded(folder, nets, name):
    net = nets.make_mlp()
    net.load_state_dict(load_file(folder / name))
    return net


def test_a_barrier_is_what_the_function_finds(folder, nets, command):
    done = command(
        "network", "barrier", *SITES, *MODULE, "--data", "data.npz", "--points", "7", "-o", "curve.safetensors"
    )
    assert (done.code, done.err) == (0, "")
    x, y = data_of(folder)
    expected = cs.barrier(
        *(loaded(folder, nets, name) for name in SITES),
        Classification(torch.tensor(x).float(), torch.tensor(y)),
        7,
    )
    saved = Barrier.load(folder / "curve.safetensors")
    for name in ("loss", "error"):
        assert np.allclose(saved.curve(name), expected.curve(name), atol=SINGLE_PRECISION)
        assert f"{name:6} {expected.height(name):.4f}, " in done.out
    done = command("network", "barrier", *SITES, *MODULE, "--data", "data.npz", "--points", "7", "--json")
    document = json.loads(done.out)
    assert document["summary"]["error"]["height"] == pytest.approx(expected.height("error"))
    assert np.allclose(document["t"], expected.t)


def test_between_a_network_and_itself_there_is_no_barrier(nets, command):
    done = command("network", "barrier", SITES[0], SITES[0], *MODULE, "--data", "data.npz", "--points", "3", "--json")
    assert json.loads(done.out)["summary"]["error"]["height"] == 0.0


def test_an_evaluation_counts_what_each_network_gets_right(folder, nets, command):
    x, y = map(torch.tensor, data_of(folder))
    x = x.float()
    scores = [Classification(x, y)(loaded(folder, nets, name)) for name in SITES]
    done = command("evaluate", *SITES, *MODULE, "--data", "data.npz", "--json")
    assert (done.code, done.err) == (0, "")
    document = json.loads(done.out)
    accuracy, loss = document["scores"]
    assert [one["kind"] for one in (accuracy, loss)] == ["plug-in", "plug-in"]
    for who, score in zip(("fused", "own"), scores, strict=True):
        assert accuracy[who] == pytest.approx(100.0 - score["error"])
        assert loss[who] == pytest.approx(score["loss"], rel=SINGLE_PRECISION)
    right = [(net(x).argmax(1) == y).numpy() for net in (loaded(folder, nets, name) for name in SITES)]
    gap = 100.0 * (right[0].astype(float) - right[1])
    low, high = document["difference"]["interval"]
    margin = 1.98009987 * gap.std(ddof=1) / np.sqrt(120)  # Student's t with 119 degrees of freedom
    assert (low, high) == pytest.approx((gap.mean() - margin, gap.mean() + margin))
    assert sum(row["rows"] for row in document["classes"]) == 120
    text = command("evaluate", *SITES, *MODULE, "--data", "data.npz").out
    assert text.startswith(document["verdict"])
    assert "accuracy by class" in text


def test_data_may_come_in_every_form(folder, nets, command):
    x, y = data_of(folder)
    np.savez(folder / "names.npz", inputs=x, labels=y)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    (folder / "y.csv").write_text("\n".join(map(str, y)) + "\n")
    rows = [",".join([*map(repr, row.tolist()), str(label)]) for row, label in zip(x, y, strict=True)]
    (folder / "all.csv").write_text("\n".join(["a,b,c,d,e,f,class", *rows]) + "\n")
    forms = [("names.npz",), ("x.npy", "--labels", "y.npy"), ("x.npy", "--labels", "y.csv")]
    forms += [("all.csv", "--labels", "class")]
    expected = command("evaluate", *SITES, *MODULE, "--data", "data.npz").out
    for form in forms:
        done = command("evaluate", *SITES, *MODULE, "--data", *form)
        assert (done.code, done.err, done.out) == (0, "", expected), form


def test_the_function_evaluates_modules_fusions_networks_and_files(folder, nets):
    x, y = data_of(folder)
    modules = [loaded(folder, nets, name) for name in SITES]
    fusion = cs.fuse(modules, "wb", example=torch.zeros(1, 6))
    of_files = cs.fuse(SITES, "wb", symmetry=fusion.network.symmetry)
    fusion.save(folder / FUSED)
    expected = str(cs.evaluate(fusion, modules[0], x, y))
    for fused in (fusion, fusion.model, fusion.network, of_files, folder / FUSED):
        for rows, labels in ((x, y), (torch.tensor(x), torch.tensor(y))):
            assert str(cs.evaluate(fused, SITES[0], rows, labels, module=nets.make_mlp)) == expected


def test_a_network_evaluated_against_itself_is_no_different(nets, folder):
    evaluation = cs.evaluate(SITES[0], SITES[0], folder / "data.npz", module=nets.make_mlp())
    assert (evaluation.better, evaluation.difference.interval) == (None, (0.0, 0.0))
    assert evaluation.verdict == "both are the same on all 120 rows: the fused model may be this one"


def test_a_report_of_files_has_the_curves_it_is_given(folder, nets, command):
    assert command("fuse", *SITES, *TRACED, "-o", FUSED, "--report", "at-once.html").code == 0
    curve = ("--data", "data.npz", "--points", "5", "-o", "before.safetensors")
    assert command("network", "barrier", *SITES, *MODULE, *curve).code == 0
    done = command("report", FUSED, *SITES, "--barrier", "before.safetensors", "-o", "page.html")
    assert (done.code, done.out) == (0, "wrote page.html\n")
    assert "before" in (folder / "page.html").read_text()
    assert (folder / "at-once.html").exists()


def test_the_command_starts_without_torch():
    script = "import sys, consilience.cli; assert not {'torch', 'ot'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_candidates_are_chosen_on_held_out_rows_in_files(folder, nets, command):
    rng = np.random.default_rng(0)
    for site in range(len(SITES)):
        np.savez(folder / f"{site}.npz", x=rng.normal(size=(60, 6)).astype(np.float32), y=rng.integers(0, 3, 60))
    held = [option for site, name in enumerate(SITES) for option in ("--held-out", f"{name[:-12]}={site}.npz")]
    done = command("fuse", *SITES, *TRACED, "--method", "wb", *held, "-o", FUSED)
    assert (done.code, done.err) == (0, "")
    assert "on about 120 rows that 2 sites held out" in done.out
    for text, told in (("one", "expected NAME=FILE"), ("nobody=0.npz", "has rows of nobody; the models are of")):
        refused = command("fuse", *SITES, *TRACED, "--held-out", text, "-o", FUSED)
        assert refused.code == 2
        assert f"--held-out: {told}" in refused.err
