"""Everything that reads a file of a stranger, with its time and what it allocates."""

import time
import tracemalloc
import warnings

import torch  # noqa: F401  (which readers import for types that only it has: once, and not on account of a file)

import consilience as cs
from consilience.api.kinds import inspect_file
from consilience.errors import ConsilienceError
from consilience.files.budget import allowed_memory
from consilience.files.limits import Limits, exceeded_limits
from consilience.networks.files import read_symmetry

SECONDS = 5.0


def readers(name):
    """Return what reads a mutant of this seed; what ``inspect`` says comes from the readers of headers."""
    if name.endswith(".json"):
        return [read_symmetry, inspect_file]
    return [cs.load, inspect_file, lambda path: exceeded_limits(path, Limits())]


def outcome(path, reader):
    """Return what a reader does with a file: (None, "refused" or the crash), seconds, bytes allocated at most."""
    tracemalloc.reset_peak()
    before, start = tracemalloc.get_traced_memory()[0], time.perf_counter()
    crash = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader(path)
        said = "read"
    except ConsilienceError:
        said = "refused"
    except Exception as error:
        said, crash = "crashed", f"{type(error).__name__}: {error}"[:200]
    return said, crash, time.perf_counter() - start, tracemalloc.get_traced_memory()[1] - before


def too_much(size, seconds, peak):
    """Whether a reading took too long or too much."""
    return seconds > SECONDS or peak > allowed_memory(size)
