"""A limit on the wall-clock time of a piece of work, for experiments whose methods may not come to an end."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any


class GaveUpError(Exception):
    """A method took too long."""


def limited(work: Callable[[], Any], seconds: int) -> Any:
    """Return what `work` does, or raise after so many seconds of wall-clock time."""

    def stop(*_: Any) -> None:
        raise GaveUpError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        return work()
    finally:
        signal.alarm(0)
