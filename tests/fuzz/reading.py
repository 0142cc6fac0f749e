"""What readers do with a file: read it, refuse it or crash, with the time that it takes and what it allocates."""

import contextlib
import signal
import time
import tracemalloc
import warnings

import torch  # noqa: F401  (which readers import for types that only it has: once, and not on account of a file)

from consilience.errors import ConsilienceError
from consilience.files.budget import allowed_memory

SECONDS = 5.0
"""A reading that takes longer, of the processor, hangs: on a machine that does other things, clocks say little."""

RECIPE_BYTES = 14 * 2**20
"""What a recipe may take, whatever its size: as many values as one may have (`core.recipe`), in PyYAML's nodes."""


class HangError(BaseException):
    """A reading took ten times too long; no reader catches it."""


@contextlib.contextmanager
def _deadline():
    """Raise HangError in the work of the block where it takes far too long."""

    def end(_number, _frame):
        raise HangError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, 10 * SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def outcome(path, reader):
    """Return what a reader does with a file: how it ends, the crash, seconds, bytes allocated at most."""
    tracemalloc.reset_peak()
    before, start = tracemalloc.get_traced_memory()[0], time.process_time()
    crash = None
    try:
        with warnings.catch_warnings(), _deadline():
            warnings.simplefilter("ignore")
            reader(path)
        said = "read"
    except ConsilienceError:
        said = "refused"
    except HangError:
        said = "hung"
    except Exception as error:
        said, crash = "crashed", f"{type(error).__name__}: {error}"[:200]
    return said, crash, time.process_time() - start, tracemalloc.get_traced_memory()[1] - before


def too_much(size, seconds, peak, allowance=0):
    """Whether a reading took too long or too much."""
    return seconds > SECONDS or peak > allowed_memory(size) + allowance
