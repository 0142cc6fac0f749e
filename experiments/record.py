"""What an experiment writes down: results one by one as they come, and in the end one JSON text."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import consilience as cs
from consilience.core.provenance import library_versions

FLAT = re.compile(r"\[[^\[\]{}]*\]|\{[^\[\]{}]*\}")


def versions() -> dict[str, str]:
    """Return versions, the machine's kind, and a digest that tells one state of the library's source from another."""
    folder = Path(cs.__file__).parent
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.rglob("*.py"))))
    return {**library_versions(), "library_source": digest.hexdigest()[:12], "machine": platform.machine()}


def remembered(
    path: Path, names: Iterable[str], again: set[str], source: str, work: Callable[[str], dict[str, Any] | None]
) -> dict[str, dict[str, Any]]:
    """Return {name: {"scores": what `work` gave, "library_source": ...}}, from `path` where it is there.

    Parameters
    ----------
    path
        JSON file that is written after every piece of work, so that nothing is lost when the run is stopped.
    names
        What is wanted.
    again
        Names to work on though they are there.
    source
        Digest of the library's source that is running.
    work
        Does one.
    """
    stored: dict[str, dict[str, Any]] = json.loads(path.read_text())["methods"] if path.exists() else {}
    for name in names:
        if name in stored and name not in again:
            continue
        stored[name] = {"scores": work(name), "library_source": source}
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".part")
        partial.write_text(json.dumps({"methods": stored}))
        partial.replace(path)
    return stored


def as_text(result: dict[str, Any]) -> str:
    """Return JSON with lists and objects of plain values on one line, and six digits, more than any table shows."""
    rounded = json.loads(json.dumps(result), parse_float=lambda text: float(f"{float(text):.6g}"))
    return FLAT.sub(lambda found: re.sub(r"\s+", " ", found[0]), json.dumps(rounded, indent=1)) + "\n"
