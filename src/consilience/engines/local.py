"""The local engine: threads of this process, and a limit on the bytes of shards that stay in memory.

Threads suffice because NumPy and BLAS release the interpreter lock in the products that take the time. While several
threads run, BLAS is held to one thread each, so that processors are not asked for twice.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Generic

from threadpoolctl import ThreadpoolController

from consilience.checks import is_count, is_number
from consilience.engines.base import (
    FAN_IN,
    Engine,
    Placed,
    Result,
    Shard,
    Source,
    batches,
    shard_arguments,
    tree_reduce,
)
from consilience.errors import OptionError


@dataclass(eq=False)
class _CachedShard(Generic[Shard]):
    """A shard that is loaded when it is first used, and then stays in memory or not."""

    load: Callable[[], Shard]  # loads the shard, from its source or by a function of another shard
    is_cached: bool  # whether it stays in memory; if not, every use loads it again
    value: list[Shard] = field(default_factory=list)  # the loaded shard, or empty

    def get(self) -> Shard:
        if self.value:
            return self.value[0]
        value = self.load()
        if self.is_cached:
            self.value.append(value)
        return value


@dataclass(frozen=True, eq=False)
class _LocalShards(Placed[Shard]):
    entries: tuple[_CachedShard[Shard], ...]

    def __len__(self) -> int:
        return len(self.entries)


@dataclass(frozen=True)
class Local(Engine):
    """Threads of this process.

    Parameters
    ----------
    threads : int, optional
        Number of threads; linear algebra then runs in one thread for each. Default: None, one for each processor that
        this process may use.
    memory : int, optional
        Bytes of loaded shards that stay in memory; the others are loaded again in every pass. Default: 2 GiB, chosen by
        hand.

    Raises
    ------
    OptionError
        For threads that are no positive integer, or a negative memory.

    Examples
    --------
    >>> engine = Local(threads=2)
    >>> shards = engine.place(sum, [[1, 2], [3, 4]])
    >>> engine.map(max, shards, 5), engine.reduce(int, sum, shards)
    ([5, 7], 10)
    """

    threads: int | None = None
    memory: int = 2 * 2**30

    def __post_init__(self) -> None:
        if self.threads is not None and not is_count(self.threads):
            raise OptionError("threads", f"expected a positive integer or None, found {self.threads!r}")
        if not is_number(self.memory):
            raise OptionError("memory", f"expected a number of bytes that is not negative, found {self.memory!r}")

    def place(
        self, load: Callable[[Source], Shard], sources: Sequence[Source], sizes: Sequence[int] = ()
    ) -> Placed[Shard]:
        """Return shards of which as many of the first stay in memory as fit."""
        free_bytes, entries = self.memory, []
        for number, source in enumerate(sources):
            size = sizes[number] if sizes else 0
            entries.append(_CachedShard(partial(load, source), is_cached=size <= free_bytes))
            free_bytes -= size if size <= free_bytes else 0
        return _LocalShards(tuple(entries))

    def derive(
        self, function: Callable[..., Result], shards: Placed[Shard], *common: Any, each: Sequence[Any] | None = None
    ) -> Placed[Result]:
        """Return shards made from shards, which stay in memory where these do."""
        assert isinstance(shards, _LocalShards)  # noqa: S101  (this engine placed them)
        leading = shard_arguments(each, len(shards))
        pairs = zip(shards.entries, leading, strict=True)

        def make(shard: _CachedShard[Shard], lead: tuple[Any, ...]) -> Result:
            return function(shard.get(), *lead, *common)

        return _LocalShards(tuple(_CachedShard(partial(make, shard, lead), shard.is_cached) for shard, lead in pairs))

    def map(
        self, function: Callable[..., Result], shards: Placed[Shard], *common: Any, each: Sequence[Any] | None = None
    ) -> list[Result]:
        """Return the results of all shards, computed in threads; parameters as in ``Engine.map``."""
        assert isinstance(shards, _LocalShards)  # noqa: S101  (this engine placed them)
        leading = shard_arguments(each, len(shards))
        with self._thread_map(len(shards)) as run:
            return list(run(lambda shard, lead: function(shard.get(), *lead, *common), shards.entries, leading))

    def reduce(
        self,
        function: Callable[..., Result],
        combine: Callable[[Sequence[Result]], Result],
        shards: Placed[Shard],
        *common: Any,
        each: Sequence[Any] | None = None,
    ) -> Result:
        """Return one result, combined by eights; parameters as in ``Engine.reduce``.

        Of many shards, a thread combines eight results as soon as it has them, so that no more wait in memory.
        """
        assert isinstance(shards, _LocalShards)  # noqa: S101  (this engine placed them)
        # With few shards, eights would leave threads idle: all are mapped first. Both ways combine the same eights.
        if len(shards) <= FAN_IN * self._n_threads(len(shards)):
            return tree_reduce(self.map(function, shards, *common, each=each), combine)
        leading = shard_arguments(each, len(shards))

        def map_and_combine(entries: Sequence[_CachedShard[Shard]], leads: Sequence[tuple[Any, ...]]) -> Result:
            return combine([function(shard.get(), *lead, *common) for shard, lead in zip(entries, leads, strict=True)])

        with self._thread_map(len(shards)) as run:
            return tree_reduce(list(run(map_and_combine, batches(shards.entries), batches(leading))), combine)

    def _n_threads(self, tasks: int) -> int:
        """Return the number of threads for so many tasks."""
        return min(tasks, self.threads or _processors())

    @contextmanager
    def _thread_map(self, tasks: int) -> Iterator[Callable[..., Any]]:
        """Yield a ``map`` that runs tasks in threads, in the order of its arguments."""
        count = self._n_threads(tasks)
        if count <= 1:
            yield map
            return
        blas = _thread_pools(len(sys.modules))
        with blas.limit(limits=1, user_api="blas"), ThreadPoolExecutor(count) as pool:
            yield pool.map


@lru_cache(maxsize=1)
def _thread_pools(modules: int) -> ThreadpoolController:
    """Return the thread pools of the libraries that are loaded; they are looked for when further modules are imported.

    Looking takes 4 ms, as long as a round over small shards.
    """
    del modules
    return ThreadpoolController()


def _processors() -> int:
    """Return how many processors this process may use; some systems only say how many there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
