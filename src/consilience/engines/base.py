"""Engines: map and tree_reduce reduction over shards that stay where they are loaded.

The statistical methods are written as map, sufficient statistics, reduce:

    result = combine(function(shard_1), .., function(shard_S)),   `combine` associative up to rounding.

An engine runs that. Shards are *placed* by saying how each is loaded, so that one that is lost with its machine is
loaded again (by lineage); they never pass through the caller. Partial results are combined by eights in one fixed
order, the order of the shards, so that every engine gives the same bits. What `function` raises reaches the caller.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

FAN_IN = 8
"""Partial results that are combined at a time.

A part of the result: another number adds floats in another order. Chosen by hand, between the depth of the tree and the
memory of the task that combines; nobody has measured other values.
"""

Source = TypeVar("Source")
Shard = TypeVar("Shard")
Result = TypeVar("Result")


class Placed(ABC, Generic[Shard]):
    """Shards that an engine holds or can load, in the order of their sources."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of shards."""


class Engine(ABC):
    """A place where functions of shards run, and their results are combined."""

    @abstractmethod
    def place(
        self, load: Callable[[Source], Shard], sources: Sequence[Source], sizes: Sequence[int] = ()
    ) -> Placed[Shard]:
        """Return shards that are loaded when work first reaches them.

        Parameters
        ----------
        load : callable
            Makes a shard of its source. A module's function or a frozen value with ``__call__``: it may be pickled and
            sent to another machine.
        sources : sequence of length S
            What each shard is loaded from; small, since it travels too.
        sizes : sequence of int of length S, optional
            Bytes of each shard once loaded, for engines with a limit on memory. Default: unknown, counted as 0.

        Returns
        -------
        Placed
            The S shards in the order of `sources`.
        """

    @abstractmethod
    def derive(
        self, function: Callable[..., Result], shards: Placed[Shard], *common: Any, each: Sequence[Any] | None = None
    ) -> Placed[Result]:
        """Return shards made from shards, on the machines that hold these.

        They are made again from their sources when they are lost. Parameters as in ``map``.
        """

    @abstractmethod
    def map(
        self, function: Callable[..., Result], shards: Placed[Shard], *common: Any, each: Sequence[Any] | None = None
    ) -> list[Result]:
        """Return ``function(shard, *common)`` of every shard, or ``function(shard, each[i], *common)``.

        Parameters
        ----------
        function : callable
            May be pickled, as `load` in ``place``.
        shards : Placed
            What ``place`` or ``derive`` of this engine returned.
        *common
            Arguments that are the same for every shard.
        each : sequence of length S, optional
            One argument for each shard, which comes before the common ones. Default: none.

        Returns
        -------
        list of length S
            The results, in the order of the shards.
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
        """Return the results of ``map`` combined by eights, in order, until one is left.

        Parameters
        ----------
        function, shards, common, each
            As in ``map``.
        combine : callable
            Makes one result of a sequence of one to eight results. It is called on a single one too.
        """

    def close(self) -> None:
        """Stop what the engine itself started; by default nothing."""
        return None


def shard_arguments(each: Sequence[Any] | None, count: int) -> list[tuple[Any, ...]]:
    """Return the leading shard_arguments of every shard: none, or a tuple of its own value in `each`."""
    if each is None:
        return [()] * count
    if len(each) != count:
        raise ValueError(f"{len(each)} values for {count} shards")
    return [(value,) for value in each]


def batches(values: Sequence[Result]) -> list[Sequence[Result]]:
    """Return values by eights, in order."""
    return [values[start : start + FAN_IN] for start in range(0, len(values), FAN_IN)]


def tree_reduce(parts: Sequence[Result], combine: Callable[[Sequence[Result]], Result]) -> Result:
    """Return `parts` combined by eights until one is left; `parts` are not empty."""
    while True:
        parts = [combine(batch) for batch in batches(parts)]
        if len(parts) == 1:
            return parts[0]
