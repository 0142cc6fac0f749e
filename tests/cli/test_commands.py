"""The commands when all is well: what they write, what they print, and that the same job gives the same bytes."""

import itertools
import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import consilience as cs
from consilience.cli.methods import TABLES
from tests.cli.bad_files import content, forged, site
from tests.cli.running import on_terminal, rows_of

TWO = ("a.safetensors", "b.safetensors")
FUSED = "fused.safetensors"


@pytest.fixture
def four(folder):
    for seed, name in ((2, "c"), (3, "d")):
        (folder / f"{name}.safetensors").write_bytes(content(site(seed, components=4)))
    return [f"{name}.safetensors" for name in "abcd"]


def test_fuse_writes_the_fused_model_and_says_what_it_did(folder, process):
    done = process("fuse", *TWO, "-o", FUSED)
    assert (done.code, done.err) == (0, "")
    fused = cs.fuse([cs.load(name) for name in TWO])
    loaded = cs.load(FUSED)
    assert loaded.natural.tobytes() == fused.posterior.natural.tobytes()
    short, verdict, *remedies, first, second, average, last = done.out.splitlines()
    assert short == fused.in_short
    assert verdict == fused.verdict.text.replace("model 0", "a").replace("model 1", "b")
    assert all(remedy.startswith("to do: ") for remedy in remedies)
    assert first == f"2 models with 6 components -> {fused.n_components} components (method kl)"
    assert second.startswith("objective ")
    assert second.endswith((" step: converged", " steps: converged"))
    assert average == "average barycenter: a, b state no prior"
    assert last == f"wrote {FUSED}"
    assert sorted(path.name for path in folder.iterdir()) == [*TWO, FUSED]


def test_an_output_of_before_is_replaced(folder, command):
    (folder / FUSED).write_bytes((folder / TWO[0]).read_bytes())
    assert command("fuse", *TWO, "-o", FUSED).code == 0
    assert cs.load(FUSED).n_components != 0
    assert (folder / FUSED).read_bytes() != (folder / TWO[0]).read_bytes()


@pytest.mark.parametrize("is_allowed", [False, True])
def test_a_file_of_another_program_is_replaced_where_that_is_allowed(folder, command, is_allowed):
    (folder / "mine.txt").write_text("what only I have")
    done = command("fuse", *TWO, "-o", "mine.txt", *["--overwrite"] * is_allowed)
    if is_allowed:
        assert (done.code, cs.load("mine.txt").family) == (0, cs.families.NormalWishart(2))
    else:
        text = "mine.txt: is there already, and consilience did not write it"
        remedy = "give another output, or allow it to be overwritten (`--overwrite`)"
        assert done.complaints() == [f"{text}; {remedy}"]
        assert (folder / "mine.txt").read_text() == "what only I have"


@pytest.mark.parametrize("text", ["output: ../b-fused.safetensors", "output: f.safetensors\nreport: ../page.html"])
def test_a_file_outside_of_the_working_folder_is_replaced_where_that_is_allowed(folder, command, monkeypatch, text):
    path = recipe(folder, f"models: [../a.safetensors, ../b.safetensors]\n{text}")
    monkeypatch.chdir(folder / "job")
    assert command("fuse", "--recipe", path).code == 0  # new paths need no flag
    written = [folder / name for name in ("b-fused.safetensors", "page.html") if (folder / name).exists()]
    (done,) = command("fuse", "--recipe", path).complaints()
    assert done.startswith(f"{path.parent}/../{written[0].name}: is there already, outside of the working folder; ")
    assert command("fuse", "--recipe", path, "--overwrite").code == 0


@pytest.mark.parametrize("field", ["output", "report"])
@pytest.mark.parametrize("name", ["recipe.yaml", "../a.safetensors", "held.npz"])
def test_a_recipe_and_what_it_names_are_never_replaced(folder, command, field, name):
    output = "" if field == "output" else "\noutput: f.safetensors"
    path = recipe(folder, f"models: [../a.safetensors, ../b.safetensors]\n{field}: {name}{output}")
    np.savez(folder / "job" / "held.npz", x=np.zeros((4, 2)))
    before = (folder / "job" / name).read_bytes()
    done = command("fuse", "--recipe", path, "--held-out", f"a={folder / 'job' / 'held.npz'}", "--overwrite")
    assert done.code == 1
    assert " is " in done.complaints()[0]
    assert (folder / "job" / name).read_bytes() == before


@pytest.mark.parametrize("pattern", ["/**/*", "../*", "**/a/**/*"])
def test_patterns_of_recipes_stay_in_their_folder(folder, command, pattern):
    path = recipe(folder, f"models: ['{pattern}']")
    (done,) = command("check", "--recipe", path).complaints()
    assert f"has the pattern {pattern}, which may leave its folder or has ** twice" in done


def test_patterns_follow_no_links_out_of_their_folder(folder, command):
    path = recipe(folder, "models: ['*/*.safetensors']")
    (folder / "job" / "out").symlink_to(folder)
    (done,) = command("check", "--recipe", path).complaints()
    assert done.endswith("/*/*.safetensors: no file named *.safetensors or *.parquet is here")


def test_two_sites_may_have_found_the_same(folder, command):
    (folder / "b.safetensors").write_bytes(content(site(0, counts=[30.0, 20.0, 10.0])))
    done = command("fuse", *TWO, "-o", FUSED)
    assert "6 components -> 3 components" in done.out


def test_quiet_prints_nothing(command):
    done = command("fuse", *TWO, "-o", FUSED, "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")


def test_the_summary_reports_what_the_method_found(folder, command):
    assert "regularization 0.1\n" in command("fuse", *TWO, "-o", FUSED, "--set", "regularization=0.1").out
    assert "share a cluster" in command("fuse", *TWO, "-o", FUSED, "--method", "kmeans", "--set", "n_components=1").out
    (folder / "c.safetensors").write_bytes(forged(counts=[9.0, 9.0, 0.1]))
    done = command("fuse", *TWO, "c.safetensors", "-o", FUSED)
    assert "c: component 2 has fewer than 5 observations, and was left out" in done.out


def test_numbers_in_settings_may_have_an_exponent(command):
    assert command("fuse", *TWO, "-o", FUSED, "--set", "tolerance=1e-7", "--set", "min-count=0").code == 0
    assert json.loads(command("inspect", "--json", FUSED).out)["header"]["provenance"]["options"]["tolerance"] == 1e-7


@pytest.mark.parametrize("method", [pytest.param("kl", marks=pytest.mark.slow), "kmeans", "concatenate"])
def test_the_same_seed_gives_the_same_bytes_whoever_arrives_first(folder, command, four, method):
    contents = set()
    for number, order in enumerate(itertools.permutations(four)):
        if number % 5 == 0:
            assert command("fuse", *order, "-o", FUSED, "--seed", 3, "--quiet", "--method", method).code == 0
            contents.add((folder / FUSED).read_bytes())
    assert len(contents) == 1


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_in_another_process(folder, command, process, four):
    command("fuse", *four, "-o", "here.safetensors", "--seed", 7)
    process("fuse", *reversed(four), "-o", "there.safetensors", "--seed", 7)
    assert (folder / "here.safetensors").read_bytes() == (folder / "there.safetensors").read_bytes()


@pytest.mark.slow
def test_weights_follow_their_files(folder, command, four):
    weights = dict(zip(four, ("1", "2", "0.5", "4"), strict=True))
    contents = set()
    for order in (four, four[::-1]):
        command("fuse", *order, "-o", FUSED, "--weights", ",".join(weights[name] for name in order))
        contents.add((folder / FUSED).read_bytes())
    command("fuse", *four, "-o", FUSED)
    assert len(contents) == 1
    assert (folder / FUSED).read_bytes() not in contents


def test_weights_that_do_not_add_up_exactly_follow_their_files_too(folder, command, four):
    weights = dict(zip(four, ("0.1", "0.2", "0.3", "0.7"), strict=True))
    contents = set()
    for order in itertools.permutations(four):
        command("fuse", *order, "-o", FUSED, "--method", "concatenate", "--weights", ",".join(map(weights.get, order)))
        contents.add((folder / FUSED).read_bytes())
    assert len(contents) == 1


def recipe(folder, text):
    path = folder / "job" / "recipe.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_a_recipe_is_the_same_as_its_words(folder, command, four):
    path = recipe(
        folder,
        "models: ['s/[ab].safetensors', ../c.safetensors, 's/d*']\n"
        "method: kl\noptions: {regularization: 1e-1}\nweights: [1, 2, 1, 3]\nseed: 5\noutput: made.safetensors\n",
    )
    (folder / "job" / "s").mkdir()
    for name in four:
        (folder / "job" / "s" / name).write_bytes((folder / name).read_bytes())
    assert command("fuse", "--recipe", path).out.endswith(f"wrote {folder / 'job' / 'made.safetensors'}\n")
    words = ["--method", "kl", "--set", "regularization=0.1", "--weights", "1,2,1,3", "--seed", 5]
    files = [folder / "job" / ".." / name for name in four]
    command("fuse", *files, "-o", FUSED, *words)
    assert (folder / "job" / "made.safetensors").read_bytes() == (folder / FUSED).read_bytes()


def test_words_override_a_recipe(folder, command, four):
    path = recipe(
        folder,
        "models: [../a.safetensors, ../b.safetensors, ../c.safetensors, ../d.safetensors]\n"
        "method: kl\noptions: {restarts: 2, regularization: 0.1}\n"
        "weights: [1, 2, 1, 3]\nseed: 5\noutput: made.safetensors\n",
    )
    words = ["--set", "regularization=0.3", "--weights", "2,1", "--seed", "0", "-o", FUSED]
    assert command("fuse", *TWO, "--recipe", path, *words).code == 0
    provenance = json.loads(command("inspect", "--json", FUSED).out)["header"]["provenance"]
    assert sorted((record["name"], record["weight"]) for record in provenance["inputs"]) == [
        (Path(name).stem, weight) for name, weight in zip(TWO, (4 / 3, 2 / 3), strict=True)
    ]
    assert (provenance["seed"], provenance["options"]["restarts"], provenance["options"]["regularization"]) == (
        0,
        2,
        0.3,
    )
    assert not (folder / "job" / "made.safetensors").exists()
    other = command("fuse", *four, "--recipe", path, "--method", "average")
    assert (other.code, len(other.complaints())) == (2, 1)  # the recipe's options are not those of this method
    assert command("check", "--recipe", path).out == "ok: 4 models can be fused\n"


def test_patterns_do_not_match_what_a_stopped_run_left(folder, command):
    path = recipe(folder, "models: ['**/*.safetensors', '*.partial*']")
    (folder / "job" / ".c.safetensors.x7k2.partial").write_bytes(b"half")
    (folder / "job" / ".c.safetensors").write_bytes(b"half")
    for name in TWO:
        (folder / "job" / name).write_bytes((folder / name).read_bytes())
    assert command("check", "--recipe", path).complaints() == [
        f"{folder / 'job'}/*.partial*: no file named *.safetensors or *.parquet is here"
    ]


def test_brackets_in_names_are_names(folder, command):
    (folder / "job[1]").mkdir()
    for name in TWO:
        (folder / "job[1]" / f"site[{name[0]}].safetensors").write_bytes((folder / name).read_bytes())
    path = folder / "job[1]" / "recipe.yaml"
    path.write_text("models: ['site[a].safetensors', '*b*']")
    assert command("check", "--recipe", path).out == "ok: 2 models can be fused\n"


def test_check(command):
    done = command("check", *TWO)
    assert (done.code, done.out, done.err) == (0, "ok: 2 models can be fused\n", "")


def test_inspect_a_file_of_a_site(command):
    done = command("inspect", TWO[0])
    assert (done.code, done.err) == (0, "")
    lines = [line.split(":", 1) for line in rows_of(done.out)]
    people = [name for name, _ in lines].index("What this file tells about people")
    found = {name: value.strip() for name, value in lines[:people]}
    counts = [f"about {5 * int(count / 5 + 0.5)}" for count in sorted(cs.load(TWO[0]).counts)]
    name, protection = lines[-1]
    assert name == "protection"
    assert "no component has fewer than 5 observations; no noise is added" in protection
    assert found == {
        "file": TWO[0],
        "format": f"consilience-posterior 1 (consilience {cs.__version__})",
        "family": "normal-wishart {'dim': 2}",
        "components": "3",
        "model": "a posterior",
        "counts": f"smallest {counts[0]}, largest {counts[-1]} observations",
        "features": "x0, x1",
        "tensors": "natural [3, 8]",
    }


def test_inspect_a_fused_file(command):
    command("fuse", *TWO, "-o", FUSED, "--seed", 4)
    lines = command("inspect", FUSED).out.splitlines()
    assert any(line.startswith("fused by:    kl {") and line.endswith("} seed 4") for line in lines)
    assert sum(line.startswith("from:") and "3 components, sha256" in line for line in lines) == 2
    assert all(any(f"{Path(name).stem}: " in line for line in lines) for name in TWO)


def test_inspect_as_json(command):
    document = json.loads(command("inspect", "--json", TWO[0]).out)
    assert document["shapes"] == {"natural": [3, 8]}
    assert document["header"]["family"] == {"name": "normal-wishart", "dim": 2}
    assert document["header"]["features"]["names"] == ["x0", "x1"]


def test_inspect_reads_no_tensor(folder, command):
    (folder / "c.safetensors").write_bytes(forged({"natural": np.full((3, 8), np.nan)}))
    assert command("inspect", "c.safetensors").code == 0


def test_names_in_files_cannot_command_the_terminal(folder, command):
    (folder / "c.safetensors").write_bytes(forged(features={"names": ["\x1b[2Jage", "tail\nfile: other"]}))
    done = command("inspect", "c.safetensors")
    assert "features:    \\x1b[2Jage, tail\\nfile: other\n" in done.out


def test_methods_of_one_name_are_explained_with_their_options(command):
    for table in TABLES.values():
        for method in table.methods:
            said = command("methods", method.name)
            assert (said.code, said.err) == (0, "")
            words = " ".join(said.out.split())
            for text in (method.summary, method.needs, method.gives):
                assert " ".join(text.split()) in words
            for option in fields(method):
                assert f"\n  {option.name}=" in said.out


def test_methods_shows_those_of_one_name(command):
    done = command("methods", "distill")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("distill: neural networks\n\n")
    assert "learning_rate=None" in done.out
    both = "\n" + command("methods", "average").out
    assert both.count("\naverage: ") == sum(one.name == "average" for table in TABLES.values() for one in table.methods)
    unknown = command("methods", "distil")
    assert unknown.code == 2
    assert "there is no method distil, did you mean distill?; there are " in unknown.err


@pytest.mark.parametrize("words", [["-h"], ["--help"]])
def test_help(command, words):
    done = command(*words)
    assert (done.code, done.err) == (0, "")
    assert all(f"\n  {name} " in done.out for name in ("fuse", "check", "inspect", "methods", "report", "demo"))
    assert all(
        "Usage: consilience " in command(name, *words).out for name in ("fuse", "check", "inspect", "report", "demo")
    )


def test_version(command):
    done = command("--version")
    assert (done.code, done.out) == (0, f"consilience, version {cs.__version__}\n")


def test_a_bar_on_a_terminal_leaves_no_line(folder):
    with on_terminal("fuse", *TWO, "-o", FUSED) as terminal:
        shown = terminal.read().decode()
        assert terminal.process.wait(timeout=60) == 0
    assert "fusing:" in shown
    assert "\n" not in shown
    assert shown.endswith("\r")
    assert shown.rstrip("\r").rsplit("\r", 1)[-1].strip() == ""  # the last that was drawn is blank


@pytest.mark.slow
@pytest.mark.parametrize("words", [["fuse", "-o", FUSED, "--quiet"], ["check"]])
def test_a_terminal_stays_empty(folder, words):
    with on_terminal(*words, *TWO) as terminal:
        assert terminal.read() == b""
        assert terminal.process.wait(timeout=60) == 0
