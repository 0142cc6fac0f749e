"""Running what is refused, through the public functions and the command, and catching what is said."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import consilience as cs
from tests.cli.running import Finished

Case = Callable[[Path], object]


@dataclass(frozen=True)
class Refusal:
    """How something was refused: the class of the error, ``check`` or the exit code, and what was said."""

    by: str
    lines: tuple[str, ...]


def refusal(case: Case, folder: Path) -> Refusal:
    """Return how a case is refused in an empty folder, paths in it as they stand below it.

    Raises
    ------
    AssertionError
        For a case that is not refused.
    """
    with contextlib.chdir(folder):
        try:
            found = case(folder)
        except cs.ConsilienceError as error:
            said = getattr(error, "problems", None) or str(error).splitlines()
            return Refusal(type(error).__name__, tuple(_normal(line, folder) for line in said))
    if isinstance(found, Finished):
        assert found.code, f"the command went through: {found.out}"
        said = [line.removeprefix("consilience: ").removeprefix("Error: ") for line in found.err.splitlines()
                if line.startswith(("consilience: ", "Error: "))]  # fmt: skip
        return Refusal(f"exit {found.code}", tuple(_normal(line, folder) for line in said))
    assert isinstance(found, list), f"nothing was refused: {found!r:.300}"
    assert found, "check has nothing against it"
    return Refusal("check", tuple(_normal(line, folder) for line in found))


def _normal(line: str, folder: Path) -> str:
    for place in (folder.resolve(), folder):
        line = line.replace(f"{place}/", "").replace(str(place), ".")
    return re.sub(r"0x[0-9a-f]{6,}|\b[0-9a-f]{12,}…?", "...", line)
