"""The Dask engine: the workers of a Dask cluster, on one machine or many.

Shards come from ``client.map(load, ...)``, so that those of a lost worker are loaded again by another; scattered data
would be lost with it. Every task has a key of its own (``pure=False``, a fresh uuid): equal arguments in two passes
must not be taken for one task. Shards go by bytes rather than by count, since a task costs the scheduler a millisecond.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from consilience.engines.base import Engine, Placed, Result, Shard, Source, batches, shard_arguments
from consilience.errors import InputError, OptionError

CONNECT_SECONDS = 10
"""Seconds after which a scheduler counts as not answering. Chosen by hand; nobody has measured other values."""


@dataclass(frozen=True, eq=False)
class _Futures(Placed[Shard]):
    """Shards as futures of a Dask client, which keep them in the workers' memory while they exist."""

    futures: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.futures)


@dataclass(frozen=True, eq=False)
class Dask(Engine):
    """Workers of a Dask cluster.

    Parameters
    ----------
    client : distributed.Client or str
        A client, which stays open, or the address of a scheduler, ``tcp://host:8786``. The workers need this library
        and must reach the shards under the same paths or addresses.

    Raises
    ------
    OptionError
        For something else, or where ``distributed`` is not installed.
    InputError
        When no scheduler answers.
    """

    client: Any
    _closes_client: bool = field(init=False, default=False, repr=False)

    def __post_init__(self) -> None:
        try:
            from distributed import Client
        except ImportError as error:
            raise OptionError(
                "engine", "Dask is not installed", "pip install 'consilience[scale]'", "E-EXTRA"
            ) from error
        if isinstance(self.client, str):
            try:
                object.__setattr__(self, "client", Client(self.client, timeout=CONNECT_SECONDS, set_as_default=False))  # type: ignore[no-untyped-call]
            except (OSError, ValueError) as error:
                raise InputError("engine", f"no Dask scheduler answers at {self.client}: {error}") from error
            object.__setattr__(self, "_closes_client", True)
        elif not isinstance(self.client, Client):
            raise OptionError(
                "engine", f"expected a distributed.Client or a scheduler's address, found {self.client!r}"
            )
        elif self.client.asynchronous:
            raise OptionError("engine", "this distributed.Client is asynchronous", "make it with `asynchronous=False`")

    def place(
        self, load: Callable[[Source], Shard], sources: Sequence[Source], sizes: Sequence[int] = ()
    ) -> Placed[Shard]:
        """Return shards that workers load, on machines that the scheduler chooses.

        `sizes` is not used: workers spill what does not fit their memory.
        """
        del sizes
        if self.client.status != "running":
            raise InputError("engine", f"the distributed.Client is {self.client.status}", "make another")
        return _Futures(tuple(self.client.map(load, sources, key=f"shard-{uuid4().hex}", pure=False)))

    def derive(
        self, function: Callable[..., Result], shards: Placed[Shard], *common: Any, each: Sequence[Any] | None = None
    ) -> Placed[Result]:
        """Return shards made from shards; the scheduler runs a task where its shard is."""
        return _Futures(tuple(self._submit(function, shards, common, each)))

    def map(
        self, function: Callable[..., Result], shards: Placed[Shard], *common: Any, each: Sequence[Any] | None = None
    ) -> list[Result]:
        """Return the results of all shards, gathered here; parameters as in ``Engine.map``."""
        results: list[Result] = self.client.gather(self._submit(function, shards, common, each))
        return results

    def reduce(
        self,
        function: Callable[..., Result],
        combine: Callable[[Sequence[Result]], Result],
        shards: Placed[Shard],
        *common: Any,
        each: Sequence[Any] | None = None,
    ) -> Result:
        """Return one result, combined on the workers; parameters as in ``Engine.reduce``."""
        parts = self._submit(function, shards, common, each)
        while True:
            parts = [self.client.submit(combine, list(batch), pure=False) for batch in batches(parts)]
            if len(parts) == 1:
                results: Result = parts[0].result()
                return results

    def close(self) -> None:
        """Close a client that this engine made; the cluster goes on."""
        if self._closes_client:
            self.client.close()

    def _submit(
        self, function: Callable[..., Any], shards: Placed[Any], common: tuple[Any, ...], each: Sequence[Any] | None
    ) -> list[Any]:
        """Return the futures of a function of every shard."""
        assert isinstance(shards, _Futures)  # noqa: S101  (this engine placed them)
        leading = shard_arguments(each, len(shards))
        name = f"{getattr(function, '__name__', type(function).__name__)}-{uuid4().hex}"
        task = _ShardTask(function, common)
        futures: list[Any] = self.client.map(task, shards.futures, leading, key=name, pure=False)
        return futures


@dataclass(frozen=True, eq=False)
class _ShardTask:
    """A function of a shard with the arguments that are common to all, to be pickled once."""

    function: Callable[..., Any]
    common: tuple[Any, ...]

    def __call__(self, shard: Any, leading: tuple[Any, ...]) -> Any:
        return self.function(shard, *leading, *self.common)
