"""Where the map and the reduce of statistical methods run. Work is passed in, so no method is known here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from consilience.engines.base import Engine, Placed
from consilience.engines.dask import Dask
from consilience.engines.local import Local
from consilience.errors import OptionError

__all__ = ["Dask", "Engine", "Local", "Placed", "make_engine", "running"]


@contextmanager
def running(engine: Any) -> Iterator[Engine]:
    """Yield the engine that is meant, see ``make_engine``; one that was made here is closed at the end."""
    made = make_engine(engine)
    try:
        yield made
    finally:
        if made is not engine:
            made.close()


def make_engine(engine: Any) -> Engine:
    """Return the engine that is meant: None and ``"local"`` this machine, a client or an address its Dask cluster.

    Raises
    ------
    OptionError
        For anything else.

    Examples
    --------
    >>> make_engine(None)
    Local(threads=None, memory=2147483648)
    """
    if engine is None or engine == "local":
        return Local()
    if isinstance(engine, Engine):
        return engine
    if isinstance(engine, str) and "://" not in engine:
        raise OptionError(
            f"engine: expected None, 'local', an address such as tcp://host:8786, a distributed.Client or an Engine, "
            f"found {engine!r}"
        )
    return Dask(engine)
