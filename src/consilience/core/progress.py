"""What public functions share: seeds, and bars that show how far they are, and how long it still takes.

A bar is shown in terminals and in notebooks; a notebook without widgets gets a line of text. A function of one's own is
called with (steps done, steps in all) or, where it takes a third argument, with the seconds that are left too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from inspect import signature
from numbers import Integral
from time import monotonic
from typing import Any, cast

import numpy as np
from tqdm import tqdm

from consilience.errors import OptionError

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""

TimedProgress = Callable[[int, int, float | None], None]
"""Called with the seconds that are left too, at the pace so far; None before there is one."""

_TEXT_WIDTH = 80
"""Letters of a bar of text in a notebook, whose width nobody knows."""


def silent(_done: int, _total: int) -> None:
    """Report progress to nobody."""


def seeded(rng: object) -> tuple[int | None, np.random.Generator]:
    """Return the seed, None when a Generator was given, and the Generator.

    Raises OptionError for anything but a Generator or a seed.
    """
    if isinstance(rng, np.random.Generator):
        return None, rng
    if not isinstance(rng, Integral) or rng < 0:
        raise OptionError("rng", f"expected a Generator or an integer that is not negative, found {rng!r}")
    return int(rng), np.random.default_rng(int(rng))


@contextmanager
def shown(wanted: bool | Progress | TimedProgress, what: str, unit: str) -> Iterator[Progress]:
    """Yield what work reports its progress to; a bar leaves no trace, and is not written into files and pipes."""
    if callable(wanted):
        yield _with_estimate(wanted) if _takes_three(wanted) else cast(Progress, wanted)
    elif wanted:
        with _bar(what, unit) as bar:

            def report(done: int, total: int) -> None:
                bar.total, bar.n = total, done
                bar.refresh()

            yield report
    else:
        yield silent


def _bar(what: str, unit: str) -> Any:
    """Return a bar for where this runs: a terminal, a notebook, or neither, which shows nothing."""
    options: dict[str, Any] = {"total": 1, "leave": False, "desc": what, "unit": unit}
    if not _in_notebook():
        return tqdm(disable=None, **options)
    if find_spec("ipywidgets") is None:  # tqdm.auto would warn, and nothing is wrong with text
        return tqdm(file=sys.stdout, ncols=_TEXT_WIDTH, **options)
    from tqdm.auto import tqdm as notebook_bar  # here, since it imports the widgets

    return notebook_bar(**options)


def _in_notebook() -> bool:
    """Return whether this runs in the kernel of a notebook; a prompt of IPython is a terminal."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def _takes_three(wanted: Callable[..., Any]) -> bool:
    """Return whether a function takes the time that is left as a third argument."""
    try:
        signature(wanted).bind(0, 1, None)
    except (TypeError, ValueError):  # it takes fewer, or is of a kind that does not say
        return False
    return True


def _with_estimate(wanted: Callable[..., None]) -> Progress:
    """Return what adds the seconds that are left, at the pace of all steps so far."""
    started = monotonic()

    def report(done: int, total: int) -> None:
        elapsed = monotonic() - started
        wanted(done, total, elapsed / done * max(total - done, 0) if done > 0 else None)

    return report
