"""What results depend on besides settings and seeds."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import consilience as cs
from consilience.io.provenance import library_versions


def versions() -> dict[str, str]:
    """Return versions, the machine's kind, and a digest that tells one state of the library's source from another."""
    folder = Path(cs.__file__).parent
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.rglob("*.py"))))
    return {**library_versions(), "library_source": digest.hexdigest()[:12], "machine": platform.machine()}
