"""The command line explains itself: options of methods, examples, completion, JSON, exit codes, colours."""

import json
import os
import pty
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import click
import pytest

import consilience as cs
from consilience.catalogue import CATALOGUE
from consilience.cli.command_table import COMMANDS, GROUPS, SECTIONS, commands_in, load_command
from consilience.cli.doctor import EXTRAS
from consilience.cli.json_output import FIELDS
from consilience.cli.methods import TABLES, option_meanings
from tests.checkpoints.some_checkpoints import tensors, write

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/results/command_line.md").read_text()


@pytest.mark.parametrize(
    "method", [method for table in TABLES.values() for method in table.methods], ids=lambda one: one.name
)
def test_every_option_of_every_method_has_a_meaning(method):
    meanings = option_meanings(method)
    assert list(meanings) == [option.name for option in fields(method)]
    assert all(meaning for _, meaning in meanings.values())


def test_a_method_is_explained(command):
    said = command("methods", "slerp").out
    assert "  t=0.5  (float)" in said
    assert "Position between the first model (0) and the second (1)" in said
    for option in fields(cs.methods.KLFusion):
        assert f"\n  {option.name}=" in command("methods", "kl").out


@pytest.mark.parametrize("width", [40, 80])
def test_lines_of_a_fusion_fit_the_terminal(command, monkeypatch, width):
    arguments = ("fuse", "a.safetensors", "b.safetensors", "-o", "fused.safetensors")
    whole = command(*arguments).out
    monkeypatch.setenv("COLUMNS", str(width))
    broken = command(*arguments).out
    assert broken.split() == whole.split()
    assert max(len(line) for line in whole.splitlines()) > 80  # in a pipe lines stay whole, for those who search them
    too_wide = [line for line in broken.splitlines() if len(line) > width]
    assert all(" " not in line.strip() for line in too_wide), too_wide  # a path is never broken


def test_the_list_of_methods_fits_80_columns_and_has_no_options(command):
    said = command("methods").out
    assert "Position between" not in said
    assert max(map(len, said.splitlines())) <= 80
    assert len(said.splitlines()) <= 160
    for table in TABLES.values():
        assert all(f"\n  {method.name} " in said for method in table.methods)


def test_methods_of_one_kind(command):
    said = command("methods", "--kind", "draws").out
    assert [line for line in said.splitlines() if line and not line.startswith((" ", "`"))] == [
        "Posterior draws (--kind draws)"
    ]
    assert "\n  consensus_mc " in said
    document = json.loads(command("methods", "average", "--kind", "adapters", "--json").out)
    assert [(one["kind"], one["name"]) for one in document["methods"]] == [("adapters", "average")]
    done = command("methods", "slerp", "--kind", "draws")
    assert (done.code, "slerp is no method for draws, but for checkpoints" in done.err) == (2, True)


def test_a_method_says_its_paper_as_a_reader_cites_it(command):
    assert 'Shoemake (1985), "Animating rotation' in command("methods", "slerp").out
    for table in TABLES.values():
        for method in table.methods:
            assert not re.search(r"\b[a-z]+\d{4}\b", command("methods", method.name).out), method.name


def test_a_code_is_explained(command):
    said = command("explain", "E-FEW").out
    assert said.startswith("E-FEW: too few observations to leave a site")
    assert "\n    lund: has 4 rows, fewer than 5: nothing may leave [E-FEW]\n" in said
    assert "docs/sites/privacy.md" in said
    assert "](" not in said
    assert all(command("explain", one).out == said for one in ("few", "[E-FEW]", "e-few"))
    for code, title in CATALOGUE.items():
        assert f"\n{code:15} {title}\n" in "\n" + command("explain").out
        assert len(command("explain", code).out.splitlines()) > 2, code
    (entry,) = printed(command, "explain", "few")["codes"]
    assert (entry["code"], entry["title"]) == ("E-FEW", CATALOGUE["E-FEW"])
    assert [one["code"] for one in printed(command, "explain")["codes"]] == list(CATALOGUE)
    done = command("explain", "E-METHDO")
    assert (done.code, "did you mean E-METHOD?" in done.err) == (2, True)


def loaded_commands():
    return {name: load_command(name) for name in COMMANDS}


def test_every_command_shows_an_example_that_its_own_options_take():
    for name, entry in COMMANDS.items():
        program, *words = shlex.split(entry.example)
        called = name.split()
        assert (program, words[: len(called)]) == ("consilience", called)
        one, words = load_command(name), words[len(called) :]
        assert one.name == called[-1]
        one.make_context(name, words, help_option_names=["-h", "--help"])  # as under the command itself
        shown = " ".join(one.get_help(click.Context(one, info_name=name, help_option_names=["-h", "--help"])).split())
        assert f"Example: {entry.example}" in shown


def test_help_has_a_whole_sentence_of_every_command_in_one_line(command):
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(commands_in(""))
    for group in ("", *GROUPS):
        rows = [row for row in command(*group.split(), "--help").out.splitlines() if len(row) <= 80]
        found = [row.split(maxsplit=1) for row in rows if row.startswith("  ") and len(row.split(maxsplit=1)) == 2]
        for title, names in ({"Commands": commands_in(group)} if group else SECTIONS).items():
            assert f"{title}:" in rows
            for name in names:
                assert [name, commands_in(group)[name]] in found


def test_groups_are_one_line_and_have_commands(command):
    for group, entry in GROUPS.items():
        assert f"\n  {group}  " in command("--help").out
        assert len(commands_in(group)) > 1
        assert entry.text.split(":")[0] in command(group, "--help").out
        assert command(group).code == 2


def test_a_misspelt_command_of_a_group_is_answered_with_the_one_that_was_meant(command):
    done = command("round", "opne")
    assert (done.code, "No such command 'opne', did you mean open?" in done.err) == (2, True)
    done = command("send", "a.safetensors")
    assert (done.code, "No such command 'send', did you mean round send?" in done.err) == (2, True)


def test_the_page_lists_the_options_that_several_commands_share():
    commands_of = {}
    for name, one in loaded_commands().items():
        for option in one.params:
            if isinstance(option, click.Option):
                commands_of.setdefault(max(option.opts, key=len), set()).add(name)
    rows = re.findall(r"^\| (`-.*?) \| .*? \| (.*?) \|$", PAGE, flags=re.MULTILINE)
    listed = {
        option: set(COMMANDS) if text == "all" else set(re.findall("`(.*?)`", text))
        for options, text in rows
        for option in re.findall("`(--.*?)`", options)
    }
    assert listed == {option: names for option, names in commands_of.items() if len(names) >= 3}


def test_help_says_the_exit_codes(command):
    said = command("--help").out
    assert "Exit codes: 0 done, 1 the input is at fault" in said
    for code in (0, 1, 2, 70, 130):
        assert f"| {code} | " in PAGE


@pytest.mark.parametrize(("shell", "sign"), [("bash", "complete -o nosort -F"), ("zsh", "#compdef consilience"),
                                             ("fish", "complete --no-files --command consilience")])  # fmt: skip
def test_completion_is_printed_for_every_shell(command, shell, sign):
    done = command("completion", shell)
    assert done.code == 0
    assert sign in done.out
    assert "_CONSILIENCE_COMPLETE" in done.out


def test_completion_knows_commands_and_options(folder):
    environment = {
        **os.environ,
        "_CONSILIENCE_COMPLETE": "bash_complete",
        "COMP_WORDS": "consilience me",
        "COMP_CWORD": "1",
    }
    words = [sys.executable, "-c", "from consilience.cli import main; main()"]
    done = subprocess.run(words, env=environment, check=False, capture_output=True, text=True)
    assert set(done.stdout.split()) == {"plain,merge", "plain,methods"}
    for typed, meant in (
        ("consilience round s", {"send", "status"}),
        ("consilience methods spa", {"spahm"}),
        ("consilience explain e-tw", {"E-TWICE"}),
        ("consilience merge a b --method tie", {"ties"}),
        ("consilience merge a b --method ties --set dens", {"density="}),
        ("consilience fuse a b --method amp", {"amps"}),
    ):
        environment |= {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
        done = subprocess.run(words, env=environment, check=False, capture_output=True, text=True)
        assert set(done.stdout.split()) == {f"plain,{word}" for word in meant}, typed


def test_another_shell_is_refused(command):
    assert command("completion", "tcsh").code == 2


def test_the_doctor_knows_every_extra_and_says_what_a_missing_one_brings(command, monkeypatch):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"]) - {"all", "dev"}
    assert f"consilience  {cs.__version__}" in command("doctor").out
    monkeypatch.setattr("consilience.cli.doctor._version", lambda name: None if name == "gensim" else "1.0")
    said = command("doctor").out
    assert "gensim       missing gensim: would bring topic models of gensim;\n" in said
    assert "pip install 'consilience[gensim]'" in said
    report = json.loads(command("doctor", "--json").out)
    (gensim,) = [extra for extra in report["extras"] if extra["name"] == "gensim"]
    assert gensim["missing"] == ["gensim"]
    assert report["cores"] == os.cpu_count()


def test_every_command_takes_json_and_the_docs_say_its_keys():
    assert set(FIELDS) == set(COMMANDS)
    for name, one in loaded_commands().items():
        assert any(parameter.name == "as_json" for parameter in one.params), name
    rows = re.findall(r"^\| `(.*?)` \| `(.*?)` \| (.*) \|$", PAGE.split("json-fields")[1], flags=re.MULTILINE)
    assert rows == [(name, key, text) for name, keys in FIELDS.items() for key, text in keys.items()]


def printed(command, *words):
    done = command(*words, "--json")
    assert (done.code, done.err) == (0, ""), done.err
    document = json.loads(done.out)
    expected = set(FIELDS[words[0] if words[0] in COMMANDS else " ".join(words[:2])])
    assert expected - {"*"} <= set(document) if "*" in expected else set(document) == expected
    return document


def test_json_of_fusions_and_files(folder, command):
    document = printed(command, "fuse", "a.safetensors", "b.safetensors", "-o", "fused.safetensors")
    assert (document["method"], document["inputs"]) == ("kl", ["a", "b"])
    assert document["wrote"] == ["fused.safetensors"]
    assert {"code", "text", "harmless"} <= set(document["verdict"])
    assert printed(command, "check", "a.safetensors", "b.safetensors") == {"ok": True, "models": 2}
    assert printed(command, "inspect", "fused.safetensors")
    assert printed(command, "report", "fused.safetensors", "-o", "page.html") == {"wrote": ["page.html"]}
    (folder / "sites").mkdir()
    for name in "ab":
        (folder / f"{name}.safetensors").rename(folder / "sites" / f"{name}.safetensors")
    assert printed(command, "pack", "sites", "-o", "packed")["models"] == 2


def test_json_of_merges_methods_and_completion(folder, command):
    for seed, name in enumerate(("one", "two")):
        write(folder / name, tensors(seed))
    planned = printed(command, "merge", "one", "two", "-o", "out", "--dry-run")
    assert planned["wrote"] == []
    assert planned["files"][0]["sha256"] is None
    done = printed(command, "merge", "one", "two", "-o", "out")
    assert done["wrote"] == ["out"]
    assert len(done["files"][0]["sha256"]) == 64
    (method,) = printed(command, "methods", "slerp")["methods"]
    meaning = "Position between the first model (0) and the second (1), or beyond them. Default: 0.5."
    assert method["options"] == [{"name": "t", "default": 0.5, "type": "float", "meaning": meaning}]
    assert printed(command, "methods")["estimators"]
    (estimator,) = printed(command, "methods", "GaussianNB")["estimators"]
    assert estimator["fusion"] == "exact"
    assert command("methods", "FullLaplace").out.count("FullLaplace of laplace") == 1
    assert printed(command, "completion", "fish")["shell"] == "fish"
    assert printed(command, "doctor")["versions"]["consilience"] == cs.__version__


def test_json_of_networks(nets, command):
    module = ("--module", "somenets:make_mlp")
    groups = printed(command, "network", "symmetry", *module, "--example", "1,6", "-o", "net.json")["groups"]
    assert all(group["units"] > 0 for group in groups)
    document = printed(command, "site", "describe", "one.safetensors", *module, "--data", "data.npz")
    assert document["wrote"] == ["one.description.safetensors"]
    printed(
        command,
        "network",
        "fisher",
        "one.safetensors",
        *module,
        "--data",
        "data.npz",
        "-o",
        "f.safetensors",
        "--min-count",
        "1",
    )
    printed(command, "network", "barrier", "one.safetensors", "two.safetensors", *module, "--data", "data.npz")


def test_json_of_a_round(folder, command):
    (folder / "round").mkdir()
    for name in ("a", "b"):
        document = printed(command, "round", "send", f"{name}.safetensors", "--to", "round", "--site", name, "--early")
        assert document["attempt"] == 1
    assert printed(command, "round", "status", "round")["state"] == "not opened"
    assert printed(command, "round", "check", "round", "--sites", "a,b")["ok"] is True
    document = printed(command, "round", "open", "round", "--sites", "a,b", "-o", "fused.safetensors", "--poll", "0.05")
    assert document["wrote"][0] == "fused.safetensors"
    assert printed(command, "round", "status", "round")["state"] == "over"
    assert printed(command, "round", "fetch", "round", "-o", "back.safetensors")["wrote"] == ["back.safetensors"]


def test_problems_are_json_too_and_exit_codes_stay(folder, command):
    done = command("fuse", "a.safetensors", "missing.safetensors", "-o", "c", "--json")
    assert done.code == 1
    (problem,) = json.loads(done.out)["problems"]
    assert problem["subject"] == "missing.safetensors"
    assert problem["code"] == "E-MISSING"
    assert "missing.safetensors: cannot be read" in done.err
    done = command("methods", "spham", "--json")
    assert done.code == 2
    assert "did you mean spahm?" in json.loads(done.out)["problems"][0]["text"]


def on_a_terminal(environment, folder):
    """Return what a command that fails prints to a stderr that is a terminal."""
    ours, theirs = pty.openpty()
    script = "import sys; from consilience.cli import main; sys.argv[1:] = ['inspect', 'x']; main()"
    words = [sys.executable, "-c", script]
    subprocess.run(words, stderr=theirs, stdout=theirs, cwd=folder, env={**os.environ, **environment}, check=False)
    os.close(theirs)
    try:
        return os.read(ours, 10_000).decode()
    finally:
        os.close(ours)


def test_marks_are_coloured_on_a_terminal_alone_and_not_where_that_is_unwanted(folder, command):
    assert on_a_terminal({"NO_COLOR": ""}, folder).startswith("\x1b[31m\x1b[1mconsilience:\x1b[0m x: ")
    assert on_a_terminal({"NO_COLOR": "1"}, folder).startswith("consilience: x: ")
    assert command("inspect", "x").err.startswith("consilience: x: ")
