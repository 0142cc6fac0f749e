"""What an engine does: load shards where the work is, map over them, and add up in a tree.

The statistical methods are written as map, sufficient statistics, reduce. An engine carries that: shards are *placed*
by saying how each is loaded, so that one that is lost with its machine is loaded again (by lineage); they never pass
through the caller. Partial results are combined by eights in one fixed order, so that every engine gives the same bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

FAN_IN = 8
"""How many partial results are combined at a time."""

Source = TypeVar("Source")
Shard = TypeVar("Shard")
Result = TypeVar("Result")


class Placed(ABC, Generic[Shard]):
    """Shards at rest, in the order of their sources."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of shards."""


class Engine(ABC):
    """Where the map and the reduce run."""

    @abstractmethod
    def place(
        self, load: Callable[[Source], Shard], sources: Sequence[Source], sizes: Sequence[int] = ()
    ) -> Placed[Shard]:
        """Say how shards are loaded; each is when work first reaches it.

        Parameters
        ----------
        load
            Makes a shard of its source: a module's function or a frozen value with ``__call__``, since it may travel.
        sources
            What each shard is loaded from; small.
        sizes
            Bytes of each once loaded, for engines that keep only so much.
        """

    @abstractmethod
    def derive(
        self,
        function: Callable[..., Result],
        shards: Placed[Shard],
        *common: Any,
        each: Sequence[Any] | None = None,
    ) -> Placed[Result]:
        """Return shards made from shards, where these are, lost and made again with them; parameters as in ``map``."""

    @abstractmethod
    def map(
        self,
        function: Callable[..., Result],
        shards: Placed[Shard],
        *common: Any,
        each: Sequence[Any] | None = None,
    ) -> list[Result]:
        """Return ``function(shard, *common)`` for every shard in order, or ``function(shard, own, *common)``.

        Parameters
        ----------
        function
            As `load` in ``place``.
        shards
            What ``place`` gave.
        common
            What every shard is told.
        each
            For each shard what only it is told.
        """

    @abstractmethod
    def reduce(
        self,
        function: Callable[..., Result],
        combine: Callable[[Sequence[Result]], Result],
        shards: Placed[Shard],
        *common: Any,
        each: Sequence[Any] | None = None,
    ) -> Result:
        """Return the ``map`` combined by eights, in order, until one result is left."""

    def close(self) -> None:
        """Stop what the engine started."""
        return None


def arguments(each: Sequence[Any] | None, count: int) -> list[tuple[Any, ...]]:
    """Return what only each shard is told, as leading arguments."""
    if each is None:
        return [()] * count
    if len(each) != count:
        raise ValueError(f"{len(each)} values for {count} shards")
    return [(one,) for one in each]


def batches(values: Sequence[Result]) -> list[Sequence[Result]]:
    """Return values by eights, in order."""
    return [values[start : start + FAN_IN] for start in range(0, len(values), FAN_IN)]


def tree(parts: Sequence[Result], combine: Callable[[Sequence[Result]], Result]) -> Result:
    """Return parts combined by eights until one is left."""
    while True:
        parts = [combine(batch) for batch in batches(parts)]
        if len(parts) == 1:
            return parts[0]
