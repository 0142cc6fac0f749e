"""Everything that is refused, through the public functions and the command, and what is said of it.

``python -m tests.refusals.cases`` writes what is said today into recorded.json, with ``--new`` only of cases
that are not there yet.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path

from tests.refusals.running import Case, refusal

RECORD = Path(__file__).with_name("recorded.json")


def all_cases() -> dict[str, Case]:
    """Return every case by name."""
    from tests.refusals.tables import TABLES

    found: dict[str, Case] = {}
    for table in TABLES:
        if double := found.keys() & table:
            raise ValueError(f"cases of one name: {sorted(double)}")
        found |= table
    return found


def record(*, only_new: bool = False) -> None:
    """Write what is said today of every case, or of those that are not recorded yet; old cases go."""
    before = json.loads(RECORD.read_text()) if only_new else {}
    found = {}
    for name, case in all_cases().items():
        if name in before:
            found[name] = before[name]
            continue
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                said = refusal(case, Path(folder))
            except Exception as error:
                print(f"{name}: {type(error).__name__}: {str(error).replace(chr(10), ' ')[:200]}")  # noqa: T201
                continue
        found[name] = {"by": said.by, "lines": said.lines}
    RECORD.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    record(only_new="--new" in sys.argv)
