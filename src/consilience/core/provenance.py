"""How a fused file came to be: enough to make it again, and nothing that changes between two identical runs."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

_BLOCK = 2**16


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


@cache
def library_versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    names = ("consilience", "numpy", "scipy", "scikit-learn")
    return {**{name: version(name) for name in names}, "python": platform.python_version()}


def make_provenance(
    method: str, options: Mapping[str, Any], seed: int | None, inputs: list[dict[str, Any]], result: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the record that a fused file carries, as JSON values.

    Parameters
    ----------
    method, options
        The method's name and all its options.
    seed
        The integer seed, None when a Generator was given.
    inputs
        One record per model: ``name``, ``components``, ``weight``, ``labels`` (fused component of each of its own), and
        where known ``confidence`` of these and ``sha256`` of its file.
    result
        What came out: ``status``, ``objective``, its ``history`` and the method's own details.
    """
    return {
        "method": method,
        "options": {name: value.item() if isinstance(value, np.generic) else value for name, value in options.items()},
        "seed": seed,
        "inputs": _storable(inputs),
        "result": _storable(dict(result)),
        "versions": dict(library_versions()),
    }


def _storable(value: Any) -> Any:
    """Return JSON values of any depth with texts that any reader takes: file names may have bytes that are no text."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_storable(key): _storable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(one) for one in value]
    return value
