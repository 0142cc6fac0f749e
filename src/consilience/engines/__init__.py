"""Engines on which statistical methods map over shards and reduce: threads of this process, or a Dask cluster.

Functions and how to combine their results are passed in, so this package knows no method.
"""

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
    """Yield the engine that ``make_engine`` returns; one that it resolved, and was not given, is closed at the end."""
    resolved = make_engine(engine)
    try:
        yield resolved
    finally:
        if resolved is not engine:
            resolved.close()


def make_engine(engine: Any) -> Engine:
    """Return an engine: of this process or of a Dask cluster.

    Parameters
    ----------
    engine : None, str, distributed.Client or Engine
        None and ``"local"`` stand for threads of this process, a client or the address of a scheduler for its Dask
        cluster. An engine is returned as it is.

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
        expected = "None, 'local', an address such as tcp://host:8786, a distributed.Client or an Engine"
        raise OptionError("engine", f"expected {expected}, found {engine!r}")
    return Dask(engine)
