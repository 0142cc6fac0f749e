"""Golden fusions give what was recorded: the same bytes on the machine of the record, the same numbers elsewhere."""

import json
import subprocess
import sys

import pytest

import consilience as cs
from consilience.posteriors.adapters.table import ADAPTERS
from tests.golden import record
from tests.golden.canonical import FILE
from tests.golden.cases import CASES

# Some fuse components drawn at random, of which no fusion could be better than all.
pytestmark = pytest.mark.filterwarnings("ignore::consilience.HarmWarning")

DOCUMENT = json.loads(record.RECORDED.read_text())
CASES_RECORDED = DOCUMENT["cases"]
# Another processor or version of linear algebra rounds otherwise, and iterations that end at a relative change of 1e-6
# end elsewhere. Relative to the sum of the absolute values of an array.
OTHER_ROUNDING = 1e-5
# What is zero but for rounding: residuals, and how much copies differ that are the same.
NOTHING = 1e-8
# Starts that end at the same objective but for rounding differ in their number of steps, and the first of them counts;
# where those end that lose decides nothing.
OF_STARTS = ("history", "details.starts")
# Mirror descent takes too long to be followed to its end; where it is cut off, steps have amplified every rounding.
HERE_ONLY = ("recurrent networks by gwb: mirror",)
# A last step that changes B by rounding alone is one iteration more where B falls by it, and none where it rises.
LAST_STEP_HERE_ONLY = ("dense networks: wb, random",)
SAME_MACHINE = DOCUMENT["machine"] == record.fingerprint()

every_case = pytest.mark.parametrize("name", CASES)


def same(name, found, expected):
    """Return whether an array is the recorded one, but for rounding."""
    mine, theirs = found.split(), expected.split()
    if name.endswith((FILE, *OF_STARTS)):  # every bit of a file is in its digest
        return True
    if len(theirs) == 3:  # nothing in it is rounded
        return mine == theirs
    if (len(mine), mine[:2], mine[-2]) != (len(theirs), theirs[:2], theirs[-2]):
        return False
    pairs = zip(map(float, mine[2:4]), map(float, theirs[2:4]), strict=True)
    return all(abs(one - other) <= NOTHING + OTHER_ROUNDING * float(theirs[2]) for one, other in pairs)


@every_case
def test_a_fusion_gives_what_was_recorded(name, tmp_path):
    found, expected = record.run(name, tmp_path), CASES_RECORDED[name]
    assert found["covers"] == expected["covers"]
    assert found["provenance"] == expected["provenance"]
    mine, theirs = found["arrays"], expected["arrays"]
    assert sorted(mine) == sorted(theirs)
    if name not in HERE_ONLY:
        changed = [array for array in mine if not same(array, mine[array], theirs[array])]
        if name in LAST_STEP_HERE_ONLY:
            changed = [array for array in changed if not array.endswith(".iterations")]
        assert changed == []
    if SAME_MACHINE:
        assert [array for array in mine if mine[array] != theirs[array]] == []
        assert found["digest"] == expected["digest"]


def test_what_is_recorded_are_the_cases_in_the_table():
    assert list(CASES_RECORDED) == list(CASES)


def covered():
    return {one for case in CASES_RECORDED.values() for one in case["covers"]}


SECTIONS = {
    "Posteriors of statistical models": "posteriors",
    "Neural networks": "networks",
    "Bayesian neural networks": "bayesian",
    "Checkpoints, with `consilience merge`": "checkpoints",
    "Posterior draws": "draws",
    "Estimators, fused by their sums, which takes no method": "estimators",
}


def test_every_method_that_the_command_lists_has_a_case():
    words = [sys.executable, "-m", "consilience", "methods"]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    section, listed = None, set()
    for line in lines:
        if line in SECTIONS:
            section = SECTIONS[line]
        elif line and not line.startswith(" "):
            listed.add(f"{section} by {line.split()[0]}")
    assert len(listed) > 20
    assert listed - covered() == set()


def test_every_kind_of_model_that_an_adapter_knows_has_a_case():
    kinds = {f"kind {adapter.kind}" for adapter in ADAPTERS}
    assert len(kinds) > 10
    assert kinds - covered() == set()


def test_every_family_has_a_case():
    assert {f"family {family.name}" for family in cs.families.FAMILIES} - covered() == set()
