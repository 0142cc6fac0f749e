"""Everything that was refused stays refused, with sentences as good as those that were recorded."""

import json

import pytest

import consilience as cs
from tests.copies import COPIES
from tests.refusals.cases import RECORD, all_cases
from tests.refusals.running import refusal
from tests.refusals.wording import losses, lost_words

CASES = all_cases()

RECORDED = json.loads(RECORD.read_text()) if RECORD.exists() else {}


def as_severe(old, new):
    """Return whether something is still refused in the same way: by a class that catches as before, or the code."""
    kinds = [getattr(cs.errors, name, None) for name in (old, new)]
    return old == new or (None not in kinds and issubclass(kinds[1], kinds[0]))


@pytest.mark.parametrize("name", CASES)
@COPIES
def test_a_refusal_is_as_good_as_it_was(name, tmp_path):
    old, new = RECORDED[name], refusal(CASES[name], tmp_path)
    said = "\n".join(f"  {line}" for line in new.lines)
    assert as_severe(old["by"], new.by), f"was refused by {old['by']}, now by {new.by}:\n{said}"
    lost = losses(old["lines"], list(new.lines))
    assert not lost, "\n" + "\n".join(map(str, lost))
    assert len(new.lines) >= len(old["lines"]), f"{len(old['lines'])} lines before, now\n{said}"


def test_every_recorded_case_is_there():
    assert set(RECORDED) == set(CASES)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("b.safetensors: is the same file as a.safetensors; leave one out",
         "b.safetensors: has the contents of a.safetensors; give each model once"),
        ("model 3: has 2 columns, expected 4", "model 3 (columns.csv): expected 4 columns, found 2"),
        ("rng: expected an integer, found 'seed'", "option rng: an integer is expected, found 'seed'"),
        ("fusing takes at least two models, found 1", "expected at least 2 models to fuse, found 1"),
        ("method 'mean' does not exist; there are kl, spahm", "no method 'mean'; there are kl, spahm, and dp"),
        ("x: give symmetry= or --module PKG.MOD", "x: needs --module PKG.MOD, or symmetry="),
    ],
)  # fmt: skip
def test_another_wording_is_as_good(old, new):
    assert not lost_words(old, new)


@pytest.mark.parametrize(
    ("old", "new", "lost"),
    [
        ("b.safetensors: is empty; write it anew", "the file is empty; write it anew", "b.safetensors"),
        ("b.safetensors: is empty; write it anew", "b.safetensors: is empty", "remedy"),
        ("b.safetensors: is empty; write it anew", "b.safetensors: is no file of ours; write it anew", "empty"),
        ("model 3: is of another kind", "model 2: is of another kind", "3"),
        ("a.csv: component 1 has kappa = -2", "a.csv: a component has kappa = -2", "1"),
        ("rng: expected an integer, found 'seed'", "rng: expected an integer", "seed"),
        ("method 'mean' does not exist; there are kl, spahm", "method 'mean' does not exist; see the page", "spahm"),
        ("ot: matching needs inputs; give inputs=", "ot: matching needs activations; give some", "inputs"),
        ("x: array 0.weight has NaN values", "x: array weight has NaN values", "0.weight"),
        ("a: expected one model, found NoneType", "a: expected one model, found another", "NoneType"),
        ("a: is the same file as b", "b: is the same file as a", "subject 'a'"),
    ],
)  # fmt: skip
def test_what_is_lost_is_noticed(old, new, lost):
    assert any(lost in word for word in lost_words(old, new))
