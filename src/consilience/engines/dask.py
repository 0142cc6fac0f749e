"""The engine of many machines: the workers of a Dask cluster, whoever runs it.

Shards come from ``client.map(load, ...)``, so that those of a lost worker are loaded again by another; scattered data
would be lost with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from consilience.engines.base import Engine, Placed, Result, Shard, Source, arguments, batches
from consilience.errors import InputError, OptionError


@dataclass(frozen=True, eq=False)
class _Futures(Placed[Shard]):
    futures: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.futures)


@dataclass(frozen=True, eq=False)
class Dask(Engine):
    """Workers of a Dask cluster.

    Parameters
    ----------
    client
        A ``distributed.Client``, which stays open, or the address of a scheduler, ``tcp://host:8786``. The workers
        need this library and must reach the shards under the same paths or addresses.

    Raises
    ------
    OptionError
        For something else, or where ``distributed`` is not installed.
    InputError
        When no scheduler answers.
    """

    client: Any
    _own: bool = field(init=False, default=False, repr=False)

    def __post_init__(self) -> None:
        try:
            from distributed import Client
        except ImportError as error:
            raise OptionError("engine: Dask is not installed; pip install 'consilience[scale]'") from error
        if isinstance(self.client, str):
            try:
                object.__setattr__(self, "client", Client(self.client, timeout=10, set_as_default=False))  # type: ignore[no-untyped-call]
            except (OSError, ValueError) as error:
                raise InputError(f"engine: no Dask scheduler answers at {self.client}: {error}") from error
            object.__setattr__(self, "_own", True)
        elif not isinstance(self.client, Client):
            raise OptionError(f"engine: expected a distributed.Client or a scheduler's address, found {self.client!r}")
        elif self.client.asynchronous:
            raise OptionError("engine: this distributed.Client is asynchronous; make it with asynchronous=False")

    def place(
        self, load: Callable[[Source], Shard], sources: Sequence[Source], sizes: Sequence[int] = ()
    ) -> Placed[Shard]:
        """Leave to the scheduler where; workers spill what does not fit their memory."""
        del sizes
        if self.client.status != "running":
            raise InputError(f"engine: the distributed.Client is {self.client.status}; make another")
        return _Futures(tuple(self.client.map(load, sources, key=f"shard-{uuid4().hex}", pure=False)))

    def derive(
        self, function: Callable[..., Result], shards: Placed[Shard], *common: Any, each: Sequence[Any] | None = None
    ) -> Placed[Result]:
        """Leave what is made where its shard is."""
        return _Futures(tuple(self._submit(function, shards, common, each)))

    def map(
        self, function: Callable[..., Result], shards: Placed[Shard], *common: Any, each: Sequence[Any] | None = None
    ) -> list[Result]:
        """Run where the shards are."""
        found: list[Result] = self.client.gather(self._submit(function, shards, common, each))
        return found

    def reduce(
        self,
        function: Callable[..., Result],
        combine: Callable[[Sequence[Result]], Result],
        shards: Placed[Shard],
        *common: Any,
        each: Sequence[Any] | None = None,
    ) -> Result:
        """Combine on the workers; one result travels back."""
        parts = self._submit(function, shards, common, each)
        while True:
            parts = [self.client.submit(combine, list(batch), pure=False) for batch in batches(parts)]
            if len(parts) == 1:
                found: Result = parts[0].result()
                return found

    def close(self) -> None:
        """Close a client that was made here; the cluster goes on."""
        if self._own:
            self.client.close()

    def _submit(
        self, function: Callable[..., Any], shards: Placed[Any], common: tuple[Any, ...], each: Sequence[Any] | None
    ) -> list[Any]:
        assert isinstance(shards, _Futures)  # noqa: S101  (this engine placed them)
        own = arguments(each, len(shards))
        name = f"{getattr(function, '__name__', type(function).__name__)}-{uuid4().hex}"
        work = _Told(function, common)
        futures: list[Any] = self.client.map(work, shards.futures, own, key=name, pure=False)
        return futures


@dataclass(frozen=True, eq=False)
class _Told:
    """A function with what every shard is told."""

    function: Callable[..., Any]
    common: tuple[Any, ...]

    def __call__(self, shard: Any, own: tuple[Any, ...]) -> Any:
        return self.function(shard, *own, *self.common)
