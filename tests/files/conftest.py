"""How often files are opened."""

import os
import sys
from collections import Counter
from contextlib import contextmanager

import pytest

_COUNTED: list[tuple[str, Counter]] = []


def _hear(event, arguments):
    if event == "open" and _COUNTED and isinstance(arguments[0], str | os.PathLike):
        folder, counts = _COUNTED[-1]
        if str(arguments[0]).startswith(folder):
            counts[os.path.basename(str(arguments[0]))] += 1


@pytest.fixture(scope="session")
def opens():
    """Return a context that counts how often Python opens each file of a folder."""
    sys.addaudithook(_hear)  # which nothing removes again

    @contextmanager
    def counting(folder):
        counts = Counter()
        _COUNTED.append((str(folder), counts))
        try:
            yield counts
        finally:
            _COUNTED.pop()

    return counting
