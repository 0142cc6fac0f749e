"""Messages speak the language of the door: Python's in the library, the command's in the shell."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest

import consilience as cs
from consilience.cli.command_table import COMMANDS, load_command
from consilience.cli.methods import method_options
from consilience.cli.shell_wording import flags_of, in_shell, problem_in_shell
from consilience.errors import Problem
from tests.cli.running import command

LIBRARY = Path(cs.__file__).parent
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def texts(path):
    """Yield the literal texts of a file that are no docstrings, values in them as three dots."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, documented)]
    done = {id(one.value) for body in bodies for one in body if isinstance(one, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            done.update(map(id, node.values))
            yield "".join(
                getattr(part, "value", "") if isinstance(part, ast.Constant) else "..." for part in node.values
            )
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in done:
            yield node.value


def test_texts_of_the_library_name_no_flag_but_in_a_whole_command():
    found = {
        (path.relative_to(LIBRARY).as_posix(), flag)
        for path in LIBRARY.rglob("*.py")
        if path.relative_to(LIBRARY).parts[0] != "cli"
        for text in texts(path)
        for flag in FLAG.findall(re.sub(r"`[^`]*`?", "", text))
        if not text.startswith("--")  # a style sheet's, or the arguments of another program
    }
    assert found <= {("drawing/blocks.py", "--rank"), ("drawing/downloads.py", "--paper")}  # of style sheets


KEYWORD = re.compile(r"(?<![^\s(`,;:])([a-z][a-z_]*)=(?![\w/.*{\'\"-]*[/{])")
CALL = re.compile(r"\b(?:consilience|cs)\.[a-z_]+\([^()]*\)")


def keywords():
    return set(method_options()).union(*(flags_of(load_command(name)) for name in COMMANDS))


def bare_code(text, known):
    """Yield the calls of ours and the options in a text that stand outside backticks."""
    words = re.sub(r"`[^`]*`?", " ", text)
    yield from (found[0] for found in CALL.finditer(words))
    yield from (found[0] for found in KEYWORD.finditer(words) if found[1] in known)


def test_options_and_calls_in_messages_stand_in_backticks():
    known = keywords()
    written_as_code = {"cli/command_table.py", "cli/options.py"}  # examples of whole commands
    found = {
        (path.relative_to(LIBRARY).as_posix(), text)
        for path in LIBRARY.rglob("*.py")
        if path.relative_to(LIBRARY).as_posix() not in written_as_code
        for text in texts(path)
        if any(bare_code(text, known))
    }
    assert not found


@pytest.mark.parametrize(
    "text", ["give min_count=0", "describe it: cs.describe(model)", "`consilience fuse` takes (module=), `rng=`"]
)
def test_code_outside_backticks_is_found(text):
    assert list(bare_code(text, keywords()))


@pytest.mark.parametrize(
    ("name", "text", "translated"),
    [
        ("fuse", "give `min_count=0`", "give `--min-count 0`"),
        ("fuse", "give `method='distill'` for networks", "give `--method distill` for networks"),
        ("fuse", "give `module=`, one of the architecture", "give `--module`, one of the architecture"),
        (
            "fuse",
            "leave out `combine='product'`, or give `rng=3`",
            "leave out `--set combine=product`, or give `--seed 3`",
        ),
        ("fuse", "(`target_widths=`)", "(`--target-width`)"),
        ("fuse", "describe it: `consilience.describe(model, data)`", "describe it: `consilience site describe`"),
        ("fuse", "describe it: `cs.describe(model, data=(X, y))`", "describe it: `consilience site describe`"),
        ("fuse", "write it with `consilience.save`", "write it with `consilience.save`"),
        ("fuse", "hand in `consilience.Draws(mapping, prior=1)`", "hand in `consilience.Draws(mapping, prior=1)`"),
        ("fuse", "sites/weights=3/a.safetensors is empty", "sites/weights=3/a.safetensors is empty"),
        ("fuse", "a file called `weights", "a file called `weights"),
        ("merge", "allow it (`allow_differences=True`)", "allow it (`--allow-differences`)"),
        ("inspect", "give `min_count=0`", "give `min_count=0`"),
    ],
)
def test_a_text_in_the_words_of_a_command(name, text, translated):
    assert in_shell(text, load_command(name), COMMANDS, method_options()) == translated


def test_a_subject_that_is_an_option_is_called_as_the_command_calls_it():
    problem = Problem("weights", "expected one for each model", "give `weights=2,1`", "E-VALUE")
    said = problem_in_shell(problem, load_command("fuse"), COMMANDS, method_options())
    assert said == "--weights: expected one for each model; give `--weights 2,1` [E-VALUE]"
    assert problem_in_shell(problem, None, COMMANDS, ()) == problem


def test_every_flag_of_a_command_is_known_by_its_keyword():
    for one in map(load_command, COMMANDS):
        for name, flag in flags_of(one).items():
            assert flag.startswith("--"), (one.name, name)


def test_both_doors_say_the_same_refusal_in_their_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    means = np.array([[0.0, 0.0], [8.0, 8.0]])
    family = cs.families.DiagonalGaussian(2)
    for shift, name in enumerate("ab"):
        natural = family.to_natural(mean=means + shift, variance=np.ones((2, 2)))
        cs.save(cs.Posterior(family, natural, counts=[20.0, 30.0]), f"{name}.safetensors")
    with pytest.raises(cs.errors.OptionError, match=r"^min_count: expected .* \[E-VALUE\]$"):
        cs.fuse(["a.safetensors", "b.safetensors"], min_count=float("inf"))
    done = command("fuse", "a.safetensors", "b.safetensors", "-o", "out.safetensors", "--set", "min_count=.inf")
    assert done.code == 2
    assert done.err.startswith("consilience: --min-count: expected ")
