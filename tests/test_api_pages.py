"""Every public name has a page in the reference, and pages name what there is."""

import re
from functools import reduce
from itertools import chain
from pathlib import Path

import pytest

import consilience
from consilience.cli.command_table import COMMANDS, GROUPS, load_command
from consilience.cli.methods import TABLES

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/api/index.md").read_text()
LISTED = set(re.findall(r"^   (consilience\.[\w.]+)$", PAGE, flags=re.MULTILINE))
PUBLIC = ("methods", "results", "families", "learners", "features", "engines", "testing", "federated")


def names_of(module):
    return [name for name in getattr(module, "__all__", dir(module)) if not name.startswith("_")]


def test_every_function_and_value_has_a_page():
    modules = {*PUBLIC, "errors"}
    missing = [name for name in dir(consilience) if not name.startswith("_") and name not in modules]
    assert [name for name in missing if f"consilience.{name}" not in LISTED] == []


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_of_a_public_module_has_a_page(name):
    missing = {f"consilience.{name}.{one}" for one in names_of(getattr(consilience, name))} - LISTED
    assert {one for one in missing if not one.endswith("REQUEST_KINDS")} == set()


def test_every_error_and_warning_has_a_page():
    kinds = {
        name for name, one in vars(consilience.errors).items() if isinstance(one, type) and issubclass(one, Exception)
    }
    assert {name for name in kinds if not {f"consilience.errors.{name}", f"consilience.{name}"} & LISTED} == set()


def code_of(page):
    """Return the code in the lines of a page, and the commands in its blocks; decision records are not rewritten."""
    blocks = re.findall(r"(?ms)^```console\n(.*?)^```$", page)
    commands = [line[2:] for block in blocks for line in block.replace("\\\n", " ").splitlines() if line[:2] == "$ "]
    return commands + re.findall(r"`([^`\n]+)`", re.sub(r"(?ms)^```.*?^```$", "", page))


def faults_of_names(code):
    """Yield what code names of this library that there is not: functions, commands, and options of commands."""
    for name in re.findall(r"\bcs\.([a-zA-Z_.]*\w)", code):
        try:
            reduce(getattr, name.split("."), consilience)
        except AttributeError:
            yield f"cs.{name}"
    for words in (found.split() for found in re.findall(r"(?:^|[;&|/] ?)consilience (.*)", code.split("  #")[0])):
        name = next((" ".join(words[:n]) for n in (2, 1) if " ".join(words[:n]) in COMMANDS), None)
        if name is None:
            if words[0] not in GROUPS and words[0][0].islower():
                yield f"consilience {words[0]}"
            continue
        known = {flag for option in load_command(name).params for flag in option.opts}
        flags = (re.match(r"--[a-z][a-z-]*", word) for word in words)
        yield from (f"{name} {flag[0]}" for flag in flags if flag and flag[0] not in {"--help", "--debug", *known})


FOLDERS = [path for path in sorted((ROOT / "docs").glob("[a-z]*/")) if path.name != "adr"]
"""Folders of pages, without those that builds make while other workers collect tests."""


@pytest.mark.parametrize("folder", [ROOT, *FOLDERS], ids=["root", *(path.name for path in FOLDERS)])
def test_pages_name_functions_commands_and_options_that_there_are(folder):
    pages = {page.name: code_of(page.read_text()) for page in folder.glob("*.md")}
    assert [(name, fault) for name, codes in pages.items() for code in codes for fault in faults_of_names(code)] == []


def test_a_name_that_there_is_not_is_found():
    page = "`cs.fusee(a)`, `consilience melt a`, `consilience fuse a -o b`\n\n"
    page += "```console\n$ consilience merge a \\\n    --rankk 3\n```\n"
    assert [*chain(*map(faults_of_names, code_of(page)))] == ["merge --rankk", "cs.fusee", "consilience melt"]


def test_methods_of_published_codes_and_options_of_metafor_are_there():
    methods = {method.name for table in TABLES.values() for method in table.methods}
    rows = [line.split("|") for line in (ROOT / "docs/coming_from/published_code.md").read_text().splitlines()]
    named = {name for row in rows if len(row) > 3 for name in re.findall(r"`(\w+)`", row[2])}
    assert named <= methods
    page = (ROOT / "docs/coming_from/metafor.md").read_text()
    assert set(re.findall(r"`analysis\.(\w+)", page)) <= set(dir(consilience.results.MetaAnalysis))
    estimates = {"lund": (0.1, 0.01), "oslo": (0.4, 0.02), "riga": (0.2, 0.03)}
    for option, value in (("method", "reml"), ("method", "dersimonian_laird"), ("method", "paule_mandel"),
                          ("interval", "hartung_knapp"), ("interval", "normal")):  # fmt: skip
        assert f'"{value}"' in page
        consilience.meta_analysis(estimates, **{option: value})
