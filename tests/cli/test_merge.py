"""The command that merges checkpoints."""

import json
import sys

import pytest
import torch

import consilience as cs
from consilience.checkpoints.card import NOT_COMPARED, in_short
from tests.checkpoints.some_adapters import SIZES, factors, write_adapter
from tests.checkpoints.some_checkpoints import read, same_bits, tensors, write


@pytest.fixture
def checkpoints(folder):
    """Folders of a start and two models trained from it, in the current folder."""
    start = tensors(0)
    write(folder / "base", start)
    for seed, name in ((1, "one"), (2, "two")):
        write(folder / name, tensors(seed, torch.bfloat16, start), shards=seed)
    return folder


def test_checkpoints_are_merged_and_the_card_tells(checkpoints, command):
    options = ("--method", "ties", "--base", "base", "--set", "density=0.2", "--weights", "2,1", "--dtype", "float32")
    done = command("merge", "one", "two", "-o", "out", *options, "--shard-size", "200kB")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0].startswith("2 checkpoints of 6 tensors -> ")
    assert " ".join(done.out.split()).endswith(NOT_COMPARED)
    assert in_short(2) in (checkpoints / "out" / "README.md").read_text()
    assert "wrote out" in done.out.splitlines()
    assert "note: the merge is " in done.out
    again = cs.merge(
        ["one", "two"], "again", "ties", base="base", density=0.2, weights=[2, 1], dtype="float32", shard_bytes=200_000
    )
    assert same_bits(read("out"), read(again.output))
    assert "density: 0.2" in (checkpoints / "out" / "README.md").read_text()
    assert command("merge", "one", "two", "-o", "out").code == 1
    done = command("merge", "one", "two", "-o", "out", "--overwrite", "--quiet", "--threads", "1", "--restart")
    assert (done.code, done.out, done.err) == (0, "", "")


def test_a_folder_of_weights_is_inspected_by_its_headers(checkpoints, command):
    before = command("inspect", "two").out
    assert before.startswith("This is a checkpoint of ")
    assert "a checkpoint in 2 files of weights" in before
    assert command("inspect", "two/model.safetensors.index.json").out.split()[6:20] == before.split()[6:20]
    assert command("merge", "one", "two", "-o", "out").code == 0
    merged = command("inspect", "out").out
    assert merged.startswith("This is a merged checkpoint of ")
    assert "average: see merge.json" in " ".join(merged.split())
    document = json.loads(command("inspect", "out", "--json").out)
    assert document["shapes"] == {name: list(values.shape) for name, values in read("out").items()}


def test_a_recipe_says_it_all_and_the_command_line_has_the_last_word(checkpoints, command):
    (checkpoints / "recipes").mkdir()
    (checkpoints / "recipes" / "merge.yaml").write_text(
        """
models: [../one, ../two]
output: ../out
method: slerp
options: {t: 0.5}
dtype: bfloat16
shard_size: 1GB
tensors:
  - {pattern: "*.mlp.*", options: {t: 1.0}}
  - {pattern: "lm_head.*", method: copy, from: 0}
"""
    )
    assert command("merge", "--recipe", "recipes/merge.yaml").code == 0
    found, one, two = read("out"), read("one"), read("two")
    assert torch.equal(found["lm_head.weight"], one["lm_head.weight"])
    assert torch.equal(found["model.layers.0.mlp.up_proj.weight"], two["model.layers.0.mlp.up_proj.weight"])
    done = command("merge", "--recipe", "recipes/merge.yaml", "--set", "t=0.0", "-o", "other")
    assert (done.code, done.err) == (0, "")
    assert torch.equal(read("other")["model.norm.weight"], one["model.norm.weight"])
    (checkpoints / "recipes" / "bad.yaml").write_text("tensors: [{patern: x}]")
    assert "not a valid recipe" in command("merge", "--recipe", "recipes/bad.yaml").err


def test_a_recipe_of_mergekit_is_merged_and_its_notes_are_printed(checkpoints, command):
    (checkpoints / "recipe.yaml").write_text(
        "models: [{model: one, parameters: {weight: 1.0}}, {model: two, parameters: {weight: 0.0}}]\n"
        "merge_method: linear\ndtype: float32\n"
    )
    done = command("merge", "--recipe", "recipe.yaml", "-o", "out")
    assert (done.code, done.err) == (0, "")
    assert "note: dtype is the type of the output" in done.out
    assert all(torch.equal(values, read("one")[name].float()) for name, values in read("out").items())


def test_a_dry_run_prints_the_plan(checkpoints, command):
    done = command("merge", "one", "two", "-o", "out", "--dry-run", "--shard-size", "200kB")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith("6 tensors, 568 kB to read, 285 kB to write, ")
    assert lines[0].endswith("of memory at most")
    assert [line.partition(":")[0] for line in lines[1:4]] == [
        f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)
    ]
    assert lines[-1] == "nothing was written"
    assert not (checkpoints / "out").exists()


def test_every_problem_is_a_line(checkpoints, command):
    state = tensors(3)
    del state["model.norm.weight"]
    state["extra"] = torch.zeros(1)
    write(checkpoints / "three", state)
    done = command("merge", "one", "three", "-o", "out", "--dry-run")
    assert done.code == 1
    assert [line.partition(",")[0] for line in done.complaints()] == [
        "three: lacks model.norm.weight",
        "three: has extra",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("merge", "-o", "out"), "no checkpoints to merge"),
        (("merge", "one", "two"), "Missing option '-o'"),
        (("merge", "one", "two", "-o", "out", "--weights", "a,b"), "numbers separated by commas"),
        (("merge", "one", "two", "-o", "out", "--set", "seed=3"), "not an option of a method"),
        (("merge", "one", "two", "-o", "out", "--method", "mean"), "does not exist"),
        (("merge", "one", "two", "-o", "out", "--dtype", "int4"), "dtype"),
    ],
)
def test_wrong_usage_is_said_with_code_2(checkpoints, command, arguments, message):
    done = command(*arguments)
    assert (done.code, message in done.err) == (2, True), done.err


def test_methods_for_checkpoints_are_told(command):
    assert "Checkpoints, with `consilience merge`" in command("methods").out
    assert "\n  ties " in command("methods", "--kind", "checkpoints").out
    assert "Yadav et al. (2023)" in command("methods", "ties").out


def test_units_are_matched_by_a_file_that_says_which_move(folder, command):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.ReLU(), torch.nn.Linear(9, 2))
    symmetry = cs.symmetry(net, torch.randn(4, 6))
    cs.save(net, "one.safetensors", symmetry=symmetry)
    moved = cs.permute(net, symmetry, {"0": [8, 7, 6, 5, 4, 3, 2, 1, 0]})
    cs.save(moved, "two.safetensors")
    options = ("-o", "out.safetensors", "--symmetry", "one.safetensors")
    assert command("merge", "one.safetensors", "two.safetensors", *options).code == 0
    merged = read("out.safetensors")
    assert all(torch.equal(merged[name], values) for name, values in net.state_dict().items())
    assert json.loads((folder / "out.merge.json").read_text())["details"]["aligned"]["units_moved"] == [0, 8]


RECIPE = """
models: [{model: a, parameters: {weight: 0.5}}, {model: b, parameters: {weight: 0.5}}]
merge_method: dare_ties
base_model: base
parameters: {density: 1.0}
"""


def test_what_a_user_of_mergekit_types_works(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    start = tensors(0)
    for seed, name in enumerate(("base", "a", "b")):
        write(tmp_path / name, start if name == "base" else tensors(seed, torch.bfloat16, start))
    (tmp_path / "recipe.yml").write_text(RECIPE)
    assert command("merge", "recipe.yml", "-o", "one").code == 0
    options = ("--base", "base", "--set", "density=1.0", "--dtype", "bf16")
    assert command("merge", "a", "b", "-o", "two", "--method", "dare_ties", *options, "--weights", "0.5,0.5").code == 0
    assert same_bits(read(tmp_path / "one"), read(tmp_path / "two"))
    misread = command("merge", "a", "b", "-o", "three", "--weights", "0.5", "0.5")
    assert misread.code == 2
    assert "write weights with commas: --weights 0.5,0.5" in misread.err


SCORE = """import json, pathlib, sys
record = json.loads((pathlib.Path(sys.argv[1]) / "merge.json").read_text())
print("score", -abs(record["recipe"]["options"]["scaling"] - 0.6))
"""


def test_settings_are_swept_by_a_command(checkpoints, command):
    (checkpoints / "score.py").write_text(SCORE)
    options = ("--base", "base", "--method", "ties", "--sweep", "scaling=0.3,0.5,1", "-o", "out")
    done = command("merge", "one", "two", *options, "--evaluate", f"{sys.executable} score.py {{model}}")
    assert (done.code, done.err) == (0, "")
    assert "best of 3: -0.1 with scaling 0.5" in done.out
    record = json.loads((checkpoints / "out" / "merge.json").read_text())
    assert record["recipe"]["options"]["scaling"] == 0.5
    assert command("merge", "one", "two", *options).code == 2


def test_a_sweep_takes_the_options_of_a_merge(checkpoints, command):
    (checkpoints / "score.py").write_text("print(1)")
    score = ("--evaluate", f"{sys.executable} score.py {{model}}", "--sweep", "method=average")
    assert command("merge", "one", "two", "-o", "out", "--shard-size", "200kB", *score).code == 0
    assert len(list((checkpoints / "out").glob("*.safetensors"))) > 1
    assert "--fisher: there are 1 for 2" in command("merge", "one", "two", "-o", "b", "--fisher", "one", *score).err
    assert command("merge", "one", "two", "-o", "third", "--dry-run", *score).code == 2


def test_an_adapter_is_extracted_by_a_command(checkpoints, command):
    done = command("extract", "one", "--base", "base", "-o", "adapter", "--rank", "2")
    assert (done.code, done.err) == (0, "")
    assert "of all changes are lost" in " ".join(done.out.split())
    assert "wrote adapter" in done.out.splitlines()
    assert (checkpoints / "adapter" / "adapter_config.json").is_file()
    assert command("extract", "one", "--base", "base", "-o", "adapter").code == 1
    said = json.loads(command("extract", "one", "--base", "base", "-o", "adapter", "--overwrite", "--json").out)
    assert said["modules"] == 3


def test_flags_of_mergekit_are_read_and_named(checkpoints, command):
    done = command("merge", "one", "two", "-o", "out", "--cuda", "--lora-merge-cache", "x", "--out-shard-size", "200kB")
    assert done.code == 0
    assert "note: --cuda, --lora-merge-cache: not needed here" in done.out
    assert len(list((checkpoints / "out").glob("*.safetensors"))) > 1
    assert command("merge", "one", "two", "-o", "other", "--allow-crimes").code == 2


def test_adapters_are_reduced_by_energy_and_their_residual_goes_into_the_base(folder, command):
    for seed, name in enumerate("ab"):
        write_adapter(folder / name, factors(seed))
    write(folder / "base", {f"{module}.weight": torch.ones(size) for module, size in SIZES.items()})
    assert command("merge", "a", "b", "-o", "small", "--rank", "0.9", "--quiet").code == 0
    ranks = json.loads((folder / "small" / "merge.json").read_text())["details"]["adapters"]["ranks"]
    assert all(1 <= rank < 8 for rank in ranks.values())
    done = command("merge", "a", "b", "-o", "out", "--base", "base", "--residual-into-base")
    assert (done.code, done.err) == (0, "")
    assert "note: the adapter alone misses" in done.out
    assert command("merge", "out/base+out/adapter", "-o", "whole", "--quiet").code == 0
    (folder / "r.yaml").write_text("models: [a, b]\nbase: base\noutput: out\nresidual_into_base: true\n")
    before = (folder / "out" / "base" / "model.safetensors").read_bytes()
    assert command("merge", "r.yaml", "--overwrite", "--quiet").code == 0
    assert (folder / "out" / "base" / "model.safetensors").read_bytes() == before
    for rank, code in (("few", 2), ("1.5", 2), ("0", 2)):
        assert command("merge", "a", "b", "-o", "other", "--rank", rank).code == code
