"""Golden fusions give the numbers that were recorded, on every machine, and on one machine the same bytes twice."""

import json
import os
import subprocess
import sys

import pytest

import consilience as cs
from consilience.posteriors.adapters.table import ADAPTERS
from tests.golden import record
from tests.golden.cases import CASES
from tests.tolerances import GOLDEN_NOTHING, GOLDEN_ROUNDING

# Some fuse components drawn at random, of which no fusion could be better than all.
pytestmark = pytest.mark.filterwarnings("ignore::consilience.errors.HarmWarning")

DOCUMENT = json.loads(record.RECORDED.read_text())
CASES_RECORDED = DOCUMENT["cases"]


def same(found, expected):
    """Return whether an array is the recorded one, but for rounding."""
    mine, theirs = found.split(), expected.split()
    if len(theirs) == 3:  # nothing in it is rounded
        return mine == theirs
    if (len(mine), mine[:2], mine[-1]) != (len(theirs), theirs[:2], theirs[-1]):
        return False
    pairs = zip(map(float, mine[2:4]), map(float, theirs[2:4]), strict=True)
    return all(abs(one - other) <= GOLDEN_NOTHING + GOLDEN_ROUNDING * float(theirs[2]) for one, other in pairs)


def first_of_their_kind():
    """Return the cases that cover a method, family or kind that none before them does."""
    seen: set[str] = set()
    names = set()
    for name, recorded in CASES_RECORDED.items():
        if not seen.issuperset(recorded["covers"]):
            names.add(name)
            seen.update(recorded["covers"])
    return names


FIRST_OF_THEIR_KIND = first_of_their_kind()
EVERY_CASE = [
    pytest.param(name, marks=() if name in FIRST_OF_THEIR_KIND else (pytest.mark.slow, pytest.mark.golden))
    for name in CASES
]


@pytest.mark.parametrize("name", EVERY_CASE)
def test_a_fusion_gives_what_was_recorded(name, tmp_path):
    found, expected = record.run(name, tmp_path), CASES_RECORDED[name]
    assert found["covers"] == expected["covers"]
    assert found["provenance"] == expected["provenance"]
    mine, theirs = found["arrays"], expected["arrays"]
    assert sorted(mine) == sorted(theirs)
    assert [array for array in mine if not same(mine[array], theirs[array])] == []


@pytest.mark.slow
def test_another_process_on_this_machine_gives_the_same_bytes():
    words = [sys.executable, "-m", "tests.golden.record", "--digests"]
    environment = os.environ | {"PYTHONHASHSEED": "1"}  # another order of sets
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=record.ROOT, env=environment)
    own, others = record.digests_of(CASES), json.loads(done.stdout)
    assert [(name, key) for name in own for key in own[name] if own[name][key] != others[name].get(key)] == []


def test_what_is_recorded_are_the_cases_in_the_table():
    assert list(CASES_RECORDED) == list(CASES)


def covered():
    return {one for case in CASES_RECORDED.values() for one in case["covers"]}


def test_every_method_that_the_command_lists_has_a_case():
    words = [sys.executable, "-m", "consilience", "methods", "--json"]
    said = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    listed = {f"{one['kind']} by {one['name']}" for one in said["methods"]}
    listed |= {f"estimators by {one['name'].split()[0]}" for one in said["estimators"]}
    assert len(listed) > 20
    assert listed - covered() == {"estimators by sums"}  # by which every class of estimators is fused


def test_every_kind_of_model_that_an_adapter_knows_has_a_case():
    kinds = {f"kind {adapter.kind}" for adapter in ADAPTERS}
    assert len(kinds) > 10
    assert kinds - covered() == set()


def test_every_family_has_a_case():
    assert {f"family {family.name}" for family in cs.families.FAMILIES} - covered() == set()
