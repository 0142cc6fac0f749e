"""Sweeps: every setting is merged and scored, the best is kept, and a sweep that was stopped goes on."""

import json
import sys

import pytest
import torch
from safetensors.torch import load_file

import consilience as cs
from consilience.checkpoints.sweep import command_score, sweep
from consilience.errors import InputError, OptionError
from tests.checkpoints.some_checkpoints import read, same_bits
from tests.checkpoints.test_laws import three

GRID = {"method": ["task_arithmetic", "ties"], "scaling": [0.25, 0.5, 1.0]}


def scorer(wanted):
    """Return a score that is largest for the merge that is nearest to one, and the paths that it was asked of."""
    asked = []

    def evaluate(path):
        asked.append(path)
        return -sum(
            float((values.double() - wanted[name].double()).square().sum()) for name, values in read(path).items()
        )

    return evaluate, asked


def test_the_best_of_all_settings_is_kept(tmp_path):
    base, models = three(tmp_path, torch.float32)
    wanted = read(cs.merge(models, tmp_path / "wanted", "task_arithmetic", base=base, scaling=0.5).output)
    evaluate, asked = scorer(wanted)
    found = sweep(models, tmp_path / "out", evaluate, GRID, base=base)
    assert len(asked) == len(found.rows) == 6
    assert found.rows[found.best].setting == {"method": "task_arithmetic", "scaling": 0.5}
    assert same_bits(read(tmp_path / "out"), wanted)
    assert found.rows[found.best].ratio > 0
    assert {path.name for path in tmp_path.iterdir()} == {"base", "a", "b", "wanted", "out", "out.sweep.json"}
    worst = sweep(models, tmp_path / "worst", evaluate, GRID, base=base, larger_is_better=False)
    assert worst.rows[worst.best].score == min(row.score for row in found.rows)


def test_a_sweep_that_was_stopped_goes_on(tmp_path):
    base, models = three(tmp_path, torch.float32)
    evaluate, asked = scorer(read(models[0]))

    def stopped(path):
        if len(asked) == 3:
            raise KeyboardInterrupt
        return evaluate(path)

    with pytest.raises(KeyboardInterrupt):
        sweep(models, tmp_path / "out", stopped, GRID, base=base)
    found = sweep(models, tmp_path / "out", evaluate, GRID, base=base)
    assert len(asked) == 6
    whole = sweep(models, tmp_path / "whole", evaluate, GRID, base=base)
    assert [row.score for row in found.rows] == [row.score for row in whole.rows]
    assert same_bits(read(tmp_path / "out"), read(tmp_path / "whole"))
    again = sweep(models, tmp_path / "out", evaluate, GRID, base=base)
    assert again.merge is None
    assert again.best == found.best
    with pytest.raises(InputError, match="other models or arguments"):
        sweep(models[:1], tmp_path / "out", evaluate, GRID, base=base)
    with pytest.raises(InputError, match="has other settings than these at place 0"):
        sweep(models, tmp_path / "out", evaluate, {"scaling": [0.1]}, base=base)


def test_a_single_file_is_kept_with_its_record(tmp_path):
    base, models = three(tmp_path, torch.float32)
    evaluate, _ = scorer(read(models[0]))
    sweep(models, tmp_path / "out.safetensors", evaluate, {"scaling": [0.5, 1.0]}, base=base, method="ties")
    assert load_file(tmp_path / "out.safetensors")
    assert json.loads((tmp_path / "out.merge.json").read_text())["recipe"]["method"] == "ties"
    assert not list(tmp_path.glob(".out*"))


@pytest.mark.parametrize(
    ("evaluate", "settings", "message"),
    [
        (lambda path: "good", GRID, "returned 'good', which is no number"),
        (lambda path: float("nan"), GRID, "returned nan for"),
        (lambda path: 1.0, {}, "expected values to try by argument"),
        (lambda path: 1.0, {"scaling": "0.5"}, "expected values to try by argument"),
        (lambda path: 1.0, {"speed": [1]}, "has no option speed"),
    ],
)
def test_what_cannot_be_swept_is_said(tmp_path, evaluate, settings, message):
    base, models = three(tmp_path)
    with pytest.raises((InputError, OptionError), match=message):
        sweep(models, tmp_path / "out", evaluate, settings, base=base)


def test_the_last_number_that_a_command_prints_is_the_score(tmp_path):
    told = command_score(f"{sys.executable} -c 'print(\"accuracy of\", 1, 0.75)' {{model}}")
    assert told(tmp_path) == 0.75
    with pytest.raises(InputError, match="printed no number"):
        command_score(f"{sys.executable} -c 'print(\"none\")' {{model}}")(tmp_path)
    with pytest.raises(InputError, match="ended with status 3: no such data"):
        command_score(
            f"{sys.executable} -c 'import sys; print(\"no such data\", file=sys.stderr); sys.exit(3)' {{model}}"
        )(tmp_path)
    with pytest.raises(InputError, match="cannot be run"):
        command_score("no-such-program {model}")(tmp_path)
    with pytest.raises(OptionError, match="says nowhere"):
        command_score("program out")
