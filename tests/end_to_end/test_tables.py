"""Tables and numbers in README and docs are those of the results, and the figure of the rooms that of the walls."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = """
| sites | seconds (worst) | seconds |
| --- | ---: | ---: |
| **few** | 1.25 ± 0.1 (2) | 1,085 |
| many, rich | 9 | 17 of 20 |
| | +30.5 | -4 |
"""
TABLES = {"times": lambda: TEXT}


@pytest.fixture(scope="module")
def table_cells():
    spec = importlib.util.spec_from_file_location("table_cells", ROOT / "experiments/table_cells.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def write_tables(*arguments):
    command = [sys.executable, str(ROOT / "experiments/write_tables.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("address", "number"),
    [
        ("times :: few :: seconds (worst)", "1.25"),
        ("times :: few :: seconds (worst) :: #3", "2"),
        ("times :: few :: seconds (worst) :: .1f", "1.2"),
        ("times :: few :: seconds (worst) :: #* min", "0.1"),
        ("times :: * :: seconds (worst) :: #* sum", "42.85"),
        ("times :: few :: seconds", "1,085"),
        ("times :: few :: seconds :: /1000 .2f", "1.08"),
        ("times :: many* + 9 :: seconds :: #2", "20"),
        ("times :: sites + many, rich + +30.5 :: seconds (worst)", "30.5"),
        ("times :: many, rich :: seconds (worst) :: max +.0f", "+30"),
        ("times :: * :: seconds :: min", "-4"),
        ("times :: few :: seconds MINUS seconds (worst) :: .2f", "1083.75"),
        ("times :: many, rich + +30.5 MINUS few :: seconds", "-1089"),
        ("times :: * :: seconds :: min abs", "4"),
    ],
)
def test_an_address_gives_the_number_of_its_cell(table_cells, address, number):
    assert table_cells.with_numbers(f"**7<!-- n: {address} -->** %", "a page", TABLES).startswith(f"**{number}<")


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("speeds :: few :: seconds", "there is no table 'speeds'"),
        ("times :: none :: seconds", "has no row 'none', but: few; many, rich"),
        ("times :: few :: minutes", "has no column 'minutes', but: sites, seconds"),
        ("times :: many, rich :: seconds", "2 numbers are there, and one is needed"),
        ("times :: few :: seconds :: #2", "no such number is there: 1,085"),
        ("times :: few", "an address is table :: row :: column"),
        ("times :: --help :: seconds", "two hyphens"),
        ("benchmarks/none.json :: seconds", "No such file"),
        ("benchmarks/kl_fusion.json :: none", "benchmarks/kl_fusion.json has no 'none'"),
        ("experiments/demo/results.json :: results :: fused :: components :: 0 :: none", "has no 'none'"),
    ],
)
def test_an_address_that_does_not_exist_is_refused_with_its_page(table_cells, address, reason):
    with pytest.raises(LookupError, match=re.escape(f"docs/page.md:2: {address}: ")) as refused:
        table_cells.with_numbers(f"# A page\n7<!-- n: {address} -->", "docs/page.md", TABLES)
    assert reason in str(refused.value)


def test_an_address_without_a_number_in_front_is_refused(table_cells):
    with pytest.raises(LookupError, match=r"page:1: .* no number is in front"):
        table_cells.with_numbers("some<!-- n: times :: few :: seconds -->", "page", TABLES)


def errors_without_an_address(text):
    """Return the lines of prose in which a typed number has its error, in front of the trials without results."""
    text = re.sub(r"(?s)<!-- table: .*?<!-- end -->", lambda table: "\n" * table[0].count("\n"), text)
    prose = text.split("\n## Trials that are not in the tables\n")[0]
    prose = re.sub(r"[-+]?[\d.,]+<!-- n: .*? -->", "#", prose)
    # A published number may be quoted with its error.
    lines = [line for line in prose.splitlines() if not re.match(r"\|", line) and "ublished" not in line]
    return [line for line in lines if re.search(r"\d(?: %)? ?± ?\d|standard error \d", line)]


def test_a_typed_number_with_its_error_is_found():
    text = "4<!-- n: a :: b :: c --> ± 1<!-- n: a :: b :: d -->\n| 1 ± 2 |\npublished, 1 ± 2\n4.0 ± 1\n\n"
    trials = "## Trials that are not in the tables\n\n3 ± 1\n"
    assert errors_without_an_address(text + trials) == ["4.0 ± 1"]


@pytest.mark.parametrize("page", sorted((ROOT / "docs/evidence").glob("*.md")), ids=lambda page: page.stem)
def test_a_measured_number_with_its_error_has_an_address(page):
    assert errors_without_an_address(page.read_text()) == []


@pytest.mark.slow
def test_a_changed_number_is_found_and_written(tmp_path):
    page = tmp_path / "page.md"
    text = "in {}<!-- n: demo :: concatenation :: components --> components"
    page.write_text(text.format("7.1"))
    checked = write_tables("--check", page)
    assert checked.returncode == 1
    assert f"out of date: {page}" in checked.stderr
    assert write_tables(page).returncode == 0
    assert page.read_text() == text.format("25.0")
    page.write_text(text.format("25.0").replace("components -->", "no column -->"))
    refused = write_tables("--check", page)
    assert refused.returncode == 1
    assert f"{page}:1: demo :: concatenation :: no column: " in refused.stderr


@pytest.mark.slow
def test_tables_and_numbers_are_up_to_date():
    done = write_tables("--check")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_figure_of_the_rooms_shows_the_walls_that_are_checked():
    command = [sys.executable, str(ROOT / "docs/figures/house.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
