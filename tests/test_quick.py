"""What ``make quick`` runs: a list of files, one a line, in which every room of the library has tests of its own."""

import ast
from pathlib import Path

import pytest

import consilience

ROOT = Path(__file__).parents[1]
LINES = (ROOT / "tests" / "quick.txt").read_text().splitlines()
SOURCES = ROOT / "src" / "consilience"
ROOMS = sorted(path.parent.name for path in SOURCES.glob("*/__init__.py"))
ELSEWHERE = {
    "learners": "tests/posteriors/test_gaussian_topics.py",
}
"""Rooms whose tests are those of the rooms that use them."""


def test_the_rooms_are_those_of_the_library():
    assert sorted(path.parent.name for path in Path(consilience.__file__).parent.glob("*/__init__.py")) == ROOMS
    assert len(ROOMS) > 10


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_has_quick_tests(room):
    home = f"tests/{room}"
    wanted = f"add some of {home} to tests/quick.txt, or say in ELSEWHERE which tests are those of {room}"
    own = [line for line in LINES if line == home or line.startswith(f"{home}/")]
    assert own or ELSEWHERE.get(room) in LINES, wanted
    assert not (own and room in ELSEWHERE), f"{room} has tests of its own: take it out of ELSEWHERE"


@pytest.mark.parametrize("line", LINES)
def test_every_line_is_a_file_or_a_folder_or_a_test(line):
    path, _, name = line.partition("::")
    assert (ROOT / path).exists()
    if name:
        functions = [one.name for one in ast.parse((ROOT / path).read_text()).body if isinstance(one, ast.FunctionDef)]
        assert name in functions


def test_the_list_is_in_order_without_repetition():
    assert sorted(set(LINES)) == LINES
