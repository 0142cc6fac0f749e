"""The catalogue of problems: every code in the source has a section in the docs, and suggestions are sensible."""

import ast
import re
from pathlib import Path

import pytest

import consilience as cs
from consilience.catalogue import CATALOGUE, did_you_mean, said_once, suggestion
from consilience.errors import FAMILIES, Problem

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "src/consilience/cli/explanations.md").read_text()
CODES_IN_SOURCE = {
    code
    for path in (ROOT / "src").rglob("*.py")
    for code in re.findall(r"\b[EW]-[A-Z]{3,}\b", re.sub(r"CATALOGUE: .*?\n}", "", path.read_text(), flags=re.DOTALL))
}


def test_the_source_says_no_code_but_those_of_the_catalogue_and_all_of_them():
    assert set(CATALOGUE) == CODES_IN_SOURCE


def test_every_code_has_a_section_with_an_anchor_in_the_docs():
    sections = re.findall(r"^\((.*)\)=\n## (.*?): (.*)$", PAGE, flags=re.MULTILINE)
    assert {code: title for _, code, title in sections} == dict(CATALOGUE)
    assert all(anchor == code.lower() for anchor, code, _ in sections)


def test_examples_in_the_docs_end_with_the_code_of_their_section():
    for section in PAGE.split("\n## ")[1:]:
        for example in re.findall(r"```text\n(.*?)\n```", section, flags=re.DOTALL):
            assert example.endswith(f"[{section.partition(':')[0]}]")


def test_a_problem_keeps_its_code_and_ends_with_it():
    problem = Problem("lund", "is data", "fit a model", "E-DATA")
    for one in (problem, problem.about("b"), problem.renamed("lund", "c"), problem.without_subject()):
        assert one.code == "E-DATA"
        assert one.endswith("; fit a model [E-DATA]")
    (found,) = cs.errors.InputError("lund", "is data", "fit a model", "E-DATA").problems
    assert found == problem
    assert found.code == "E-DATA"
    assert Problem("a", "is data").code == ""


def test_every_error_ends_with_a_code_of_the_catalogue_and_what_wraps_it_says_it_once():
    for error in (cs.errors.InputError, cs.errors.FileFormatError, cs.errors.OptionError, cs.errors.UnsupportedError):
        assert error.code in FAMILIES
        first = error("a", "is empty", "write it again")
        assert str(first) == f"a: is empty; write it again [{error.code}]"
        outer = cs.errors.InputError("b", f"cannot be read ({first})", "give another")
        assert str(outer) == f"b: cannot be read (a: is empty; write it again); give another [{error.code}]"
    assert set(FAMILIES) <= set(CATALOGUE)


def test_of_a_family_each_subject_has_its_own_line():
    shared = [Problem(name, "is empty", "", "E-FILE") for name in ("a", "b")]
    assert said_once(shared) == shared


def test_every_warning_says_its_code():
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text()
        if not re.search(r"Warning\b|\bwarn", text):  # most files neither have a class of warnings nor warn
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and any("Warning" in ast.unparse(base) for base in node.bases):
                assert any("code" in ast.unparse(part) for part in node.body if isinstance(part, ast.Assign)), node.name
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn":
                assert re.search(r"\bcode\b|W-[A-Z]+", ast.unparse(node)), f"{path}:{node.lineno}"
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "warn_caller":
                category = ast.unparse(node.args[1])
                assert category != "UserWarning", f"{path}:{node.lineno}"


def test_problems_that_many_share_are_said_once_and_others_as_often_as_they_are():
    shared = [Problem(f"model {number}", "is data", "fit", "E-DATA") for number in range(7)]
    others = [Problem("x", "is empty"), Problem("x", "is empty"), Problem("model 2", "is wide")]
    found = said_once([*shared, *others])
    assert found[0] == "model 0, model 1, model 2, model 3, model 4 and 2 more: each is data; fit [E-DATA]"
    assert found[1:] == others
    assert found[0].parts == tuple(shared)
    assert [one.parts for one in found[1:]] == [()] * 3


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("seed", ["rng"], "rng"),
        ("rng", ["seed"], "seed"),
        ("random_state", ["seed", "weights"], "seed"),
        ("n_clusters", ["n_components"], "n_components"),
        ("k", ["n_components"], "n_components"),
        ("merge_method", ["method"], "method"),
        ("regularisation", ["regularization", "restarts"], "regularization"),
        ("Density", ["density"], "density"),
        ("max-iterations", ["max_iterations"], "max_iterations"),
        ("seed", ["density"], ""),  # an alias only of what is known where it was given
        ("colour", ["method", "rng"], ""),
        ("", ["method"], ""),
        (3, ["method"], ""),
    ],
)
def test_what_was_meant(word, known, meant):
    assert did_you_mean(word, known) == meant
    assert suggestion(word, known) == (f", did you mean {meant}?" if meant else "")
