"""The engine of one machine: threads of this process, which NumPy keeps busy, and a limit on what is kept in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic

from threadpoolctl import threadpool_limits

from consilience.checks import is_count, is_number
from consilience.engines.base import FAN_IN, Engine, Placed, Result, Shard, Source, arguments, batches, tree
from consilience.errors import OptionError


@dataclass(eq=False)
class _Slot(Generic[Shard]):
    """A shard that is loaded when asked for, and then kept or not."""

    load: Callable[[], Shard]
    kept: bool
    value: list[Shard] = field(default_factory=list)

    def get(self) -> Shard:
        if self.value:
            return self.value[0]
        value = self.load()
        if self.kept:
            self.value.append(value)
        return value


@dataclass(frozen=True, eq=False)
class _Slots(Placed[Shard]):
    slots: tuple[_Slot[Shard], ...]

    def __len__(self) -> int:
        return len(self.slots)


@dataclass(frozen=True)
class Local(Engine):
    """Threads of this process.

    Parameters
    ----------
    threads
        How many; None takes one for each processor that this process may use. Linear algebra then runs in one thread
        for each.
    memory
        Bytes of loaded shards that are kept; what does not fit is loaded again in every pass.
    """

    threads: int | None = None
    memory: int = 2 * 2**30

    def __post_init__(self) -> None:
        if self.threads is not None and not is_count(self.threads):
            raise OptionError(f"threads: expected a positive integer or None, found {self.threads!r}")
        if not is_number(self.memory):
            raise OptionError(f"memory: expected a number of bytes that is not negative, found {self.memory!r}")

    def place(
        self, load: Callable[[Source], Shard], sources: Sequence[Source], sizes: Sequence[int] = ()
    ) -> Placed[Shard]:
        """Keep as many of the first shards as fit into the memory."""
        left, slots = self.memory, []
        for number, source in enumerate(sources):
            size = sizes[number] if sizes else 0
            slots.append(_Slot(partial(load, source), kept=size <= left))
            left -= size if size <= left else 0
        return _Slots(tuple(slots))

    def derive(
        self, function: Callable[..., Result], shards: Placed[Shard], *common: Any, each: Sequence[Any] | None = None
    ) -> Placed[Result]:
        """Keep what is made of shards that are kept."""
        assert isinstance(shards, _Slots)  # noqa: S101  (this engine placed them)
        own = arguments(each, len(shards))
        pairs = zip(shards.slots, own, strict=True)

        def make(slot: _Slot[Shard], first: tuple[Any, ...]) -> Result:
            return function(slot.get(), *first, *common)

        return _Slots(tuple(_Slot(partial(make, slot, first), slot.kept) for slot, first in pairs))

    def map(
        self, function: Callable[..., Result], shards: Placed[Shard], *common: Any, each: Sequence[Any] | None = None
    ) -> list[Result]:
        """Run over the shards in threads."""
        assert isinstance(shards, _Slots)  # noqa: S101  (this engine placed them)
        own = arguments(each, len(shards))
        with self._workers(len(shards)) as run:
            return list(run(lambda slot, first: function(slot.get(), *first, *common), shards.slots, own))

    def reduce(
        self,
        function: Callable[..., Result],
        combine: Callable[[Sequence[Result]], Result],
        shards: Placed[Shard],
        *common: Any,
        each: Sequence[Any] | None = None,
    ) -> Result:
        """Combine by eights; of many shards, each thread combines its own eight before the next."""
        assert isinstance(shards, _Slots)  # noqa: S101  (this engine placed them)
        if len(shards) <= FAN_IN * self._count(len(shards)):
            return tree(self.map(function, shards, *common, each=each), combine)
        own = arguments(each, len(shards))

        def eight(slots: Sequence[_Slot[Shard]], firsts: Sequence[tuple[Any, ...]]) -> Result:
            return combine([function(slot.get(), *first, *common) for slot, first in zip(slots, firsts, strict=True)])

        with self._workers(len(shards)) as run:
            return tree(list(run(eight, batches(shards.slots), batches(own))), combine)

    def _count(self, tasks: int) -> int:
        return min(tasks, self.threads or _processors())

    @contextmanager
    def _workers(self, tasks: int) -> Iterator[Callable[..., Any]]:
        count = self._count(tasks)
        if count <= 1:
            yield map
            return
        with threadpool_limits(limits=1, user_api="blas"), ThreadPoolExecutor(count) as pool:
            yield pool.map


def _processors() -> int:
    """Return how many processors this process may use; not every system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
