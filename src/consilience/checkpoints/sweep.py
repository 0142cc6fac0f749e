"""Merges at several settings, evaluated one after another; the best is kept.

Each setting is merged into a folder of its own, evaluated, and removed again unless it is the best so far, so that two
merges lie on the disk at most. The table of scores is a file beside the output: a sweep that was stopped goes on after
the last setting that it has.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from consilience.checkpoints.merge import Merge, merge
from consilience.checkpoints.output import refuse_output
from consilience.checks import Json
from consilience.drawing.words import printable
from consilience.errors import InputError, OptionError
from consilience.files.atomic import write_bytes
from consilience.files.opening import read_file

Evaluate = Callable[[Path], float]
"""Returns the score of a merged checkpoint."""

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
PLACE = "{model}"
"""What stands for the path of a merge in a command."""


_HOW = ("overwrite", "threads", "engine", "progress", "resume")
"""Arguments of a merge that change no byte of it."""


@dataclass(frozen=True)
class SweepRow:
    """One setting and what it scored."""

    setting: Mapping[str, Json]  # method, weights and options
    score: float
    ratio: float | None  # how far it is from the base, over the model that is furthest; None without a base


@dataclass(frozen=True, eq=False)
class Sweep:
    """A sweep that has ended.

    Parameters
    ----------
    merge : Merge or None
        The best merge; None where an earlier run had made it.
    rows : sequence of SweepRow
        All settings, in the order of the sweep.
    best : int
        Number of the best of them, from 0.
    table : Path
        The file of the table.
    """

    merge: Merge | None
    rows: Sequence[SweepRow]
    best: int
    table: Path


class _Row(BaseModel):
    """A row of the table's file."""

    model_config = ConfigDict(extra="forbid")
    setting: dict[str, Any]
    score: float
    ratio: float | None


class _Table(BaseModel):
    """The table's file: what is merged beside the settings, and the rows so far."""

    model_config = ConfigDict(extra="forbid")
    models: list[str]
    fixed: str
    larger_is_better: bool
    rows: list[_Row]
    best: int | None


def sweep(
    models: Sequence[str | Path],
    output: str | Path,
    evaluate: Evaluate,
    settings: Mapping[str, Sequence[Any]],
    *,
    larger_is_better: bool = True,
    say: Callable[[SweepRow], None] | None = None,
    **fixed: Any,
) -> Sweep:
    """Merge checkpoints at all combinations of settings, evaluate each, and keep the best.

    Parameters
    ----------
    models, output
        As for `merge`; the table of scores goes beside the output, as ``OUTPUT.sweep.json``.
    evaluate : callable
        Called with the path of a merge, it returns a score.
    settings : mapping of str to sequence
        Values to try by argument of `merge`: ``{"method": ["ties", "dare"], "scaling": [0.3, 0.5, 1.0]}``.
    larger_is_better : bool
        Whether the largest score is the best. Default: True.
    say : callable, optional
        Called with each row.
    **fixed
        As for `merge`, the same for all.

    Raises
    ------
    OptionError
        For settings that are none, and those of `merge`.
    InputError
        For scores that are no numbers, and as `merge`.
    """
    target = Path(output)
    grid = _grid(settings)
    table_path = target.with_name(f"{target.name}.sweep.json")
    fixed_text = json.dumps({name: repr(value) for name, value in sorted(fixed.items()) if name not in _HOW})
    empty = _Table(
        models=[str(model) for model in models], fixed=fixed_text, larger_is_better=larger_is_better, rows=[], best=None
    )
    table = _read(table_path, empty)
    refuse_output(target, [Path(model) for model in models], bool(fixed.pop("overwrite", False)) or bool(table.rows))
    candidate = target.with_name(f".{target.stem}.candidate{target.suffix}")
    merged: Merge | None = None
    for number, setting in enumerate(grid):
        if number < len(table.rows):
            if table.rows[number].setting != _plain(setting):
                text = f"has other settings than these at place {number}"
                raise InputError(table_path, text, "remove it, or give another output", "E-OUTPUT")
            continue
        _remove(candidate)
        done = merge(models, candidate, **{**fixed, **setting})
        score = _checked(evaluate(candidate), candidate)
        ratio = (done.provenance.get("details", {}).get("changes") or {}).get("ratio")
        best = None if table.best is None else table.rows[table.best].score
        is_best = best is None or (score > best if larger_is_better else score < best)
        table.rows.append(_Row(setting=_plain(setting), score=score, ratio=ratio))
        if is_best:
            _move(candidate, target)
            merged, table.best = replace(done, output=target), number
        write_bytes(table_path, f"{table.model_dump_json(indent=1)}\n".encode())
        _remove(candidate)
        if say is not None:
            say(SweepRow(table.rows[-1].setting, score, ratio))
    rows = [SweepRow(row.setting, row.score, row.ratio) for row in table.rows]
    assert table.best is not None  # noqa: S101  (a grid has a setting)
    return Sweep(merged, rows, table.best, table_path)


def _grid(settings: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return all combinations, the last argument varying fastest."""
    if not settings or any(isinstance(values, str) or not len(values) for values in settings.values()):
        raise OptionError("settings", "expected values to try by argument", 'give {"scaling": [0.3, 0.5, 1.0]}')
    return [dict(zip(settings, values, strict=True)) for values in itertools.product(*settings.values())]


def _plain(setting: Mapping[str, Any]) -> dict[str, Any]:
    """Return a setting as JSON values."""
    plain: dict[str, Any] = json.loads(json.dumps(setting, default=str))
    return plain


def _read(path: Path, empty: _Table) -> _Table:
    """Return the table of an earlier run of the same sweep; an empty one where there is none."""
    if not path.is_file():
        return empty
    try:
        table = _Table.model_validate_json(read_file(path))
    except (ValidationError, ValueError) as error:
        raise InputError(path, "is no table of a sweep", "remove it, or give another output", "E-OUTPUT") from error
    if (table.models, table.fixed, table.larger_is_better) != (empty.models, empty.fixed, empty.larger_is_better):
        text = "is of a sweep of other models or arguments"
        raise InputError(path, text, "remove it, or give another output", "E-OUTPUT")
    return table


def _checked(score: Any, path: Path) -> float:
    """Return a score that is a number."""
    try:
        value = float(score)
    except (TypeError, ValueError):
        raise InputError("evaluate", f"returned {score!r:.80}, which is no number", code="E-TYPE") from None
    if not isfinite(value):
        raise InputError("evaluate", f"returned {value} for {path.name}", "look at what it evaluates", "E-NUMBER")
    return value


def _move(candidate: Path, target: Path) -> None:
    """Put a merge in the place of the best one before it."""
    _remove(target)
    candidate.rename(target)
    if (record := _record_of(candidate)).exists():
        record.rename(_record_of(target))


def _record_of(path: Path) -> Path:
    """Return the record of a merge that is a single file."""
    return path.with_name(f"{path.stem}.merge.json")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
        return
    path.unlink(missing_ok=True)
    _record_of(path).unlink(missing_ok=True)


def command_score(command: str) -> Evaluate:
    """Return an evaluation by a command, whose last number on stdout is the score; ``{model}`` is the merge's path.

    Raises OptionError for a command that says nowhere where the merge is to stand.
    """
    words = shlex.split(command)
    if not any(PLACE in word for word in words):
        raise OptionError("--evaluate", f"says nowhere {PLACE}, which stands for the merge", f"add {PLACE}")

    def evaluate(path: Path) -> float:
        filled = [word.replace(PLACE, str(path)) for word in words]
        try:
            done = subprocess.run(filled, capture_output=True, text=True, check=False)  # noqa: S603  (the caller's own)
        except OSError as error:
            raise InputError(words[0], f"cannot be run: {error.strerror}", code="E-SYSTEM") from error
        if done.returncode:
            last = printable((done.stderr.strip().splitlines() or ["no word on stderr"])[-1])
            raise InputError("--evaluate", f"ended with status {done.returncode}: {last:.200}", code="E-SYSTEM")
        numbers = _NUMBER.findall(done.stdout)
        if not numbers:
            raise InputError("--evaluate", "printed no number", "print the score last", "E-TYPE")
        return float(numbers[-1])

    return evaluate
