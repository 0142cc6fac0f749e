"""The rule of ``make quick``: what changed and what may import it in full, of the rest first cases."""

from pathlib import Path

import consilience
from tests.quick import LAWS_OF_A_FILE, layers, quick_cases, rooms_to_test

LAYERS = [{"cli"}, {"networks", "draws"}, {"core"}]


def test_the_layers_are_all_rooms_of_the_library():
    rooms = {path.parent.name for path in Path(consilience.__file__).parent.glob("*/__init__.py")}
    assert rooms - set().union(*layers()) == set()
    assert layers()[0] == {"cli"}


def test_a_changed_source_asks_for_its_room_and_those_above_alone():
    assert rooms_to_test(["src/consilience/networks/fuse.py"], LAYERS) == {"networks", "cli"}
    assert rooms_to_test(["src/consilience/core/kind.py"], LAYERS) == {"core", "networks", "draws", "cli"}
    assert rooms_to_test(["src/consilience/cli/main.py", "README.md"], LAYERS) == {"cli"}


def test_a_changed_test_asks_for_its_room_alone():
    assert rooms_to_test(["tests/draws/sites.py", "tests/tolerances.py"], LAYERS) == {"draws"}
    assert rooms_to_test([], LAYERS) == set()


def test_elsewhere_the_first_cases_of_the_first_laws_of_a_file_are_run():
    names = [f"test_{law}[{case}]" for law in range(LAWS_OF_A_FILE + 1) for case in range(2)]
    cases = [(path, name) for path in ("tests/draws/test_a.py", "tests/networks/test_b.py") for name in names]
    run = [case for case, is_run in zip(cases, quick_cases(cases, {"networks"}), strict=True) if is_run]
    first = [("tests/draws/test_a.py", f"test_{law}[0]") for law in range(LAWS_OF_A_FILE)]
    assert run == first + [("tests/networks/test_b.py", name) for name in names]
