"""What public functions share: seeds, and bars that show how far they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Integral

import numpy as np
from tqdm import tqdm

from consilience.errors import OptionError

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""


def silent(_done: int, _total: int) -> None:
    """Report progress to nobody."""


def seeded(rng: object) -> tuple[int | None, np.random.Generator]:
    """Return the seed, None when a Generator was given, and the Generator.

    Raises
    ------
    OptionError
        For anything but a Generator or a seed.
    """
    if isinstance(rng, np.random.Generator):
        return None, rng
    if not isinstance(rng, Integral) or rng < 0:
        raise OptionError("rng", f"expected a Generator or an integer that is not negative, found {rng!r}")
    return int(rng), np.random.default_rng(int(rng))


@contextmanager
def shown(wanted: bool | Progress, what: str, unit: str) -> Iterator[Progress]:
    """Yield what work reports its progress to; a bar is shown on a terminal only and leaves no trace."""
    if callable(wanted):
        yield wanted
    elif wanted:
        with tqdm(total=1, disable=None, leave=False, desc=what, unit=unit) as bar:

            def report(done: int, total: int) -> None:
                bar.total, bar.n = total, done
                bar.refresh()

            yield report
    else:
        yield silent
