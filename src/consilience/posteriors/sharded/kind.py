"""Packed shards of posteriors as a kind of model, for the table of kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from consilience.core.kind import FileFormat, Inspection, Prepared, Request
from consilience.errors import UnsupportedError
from consilience.files.safetensors_file import SafetensorsFile
from consilience.posteriors.kind import Posteriors
from consilience.posteriors.sharded.fuse import prepare_shards
from consilience.posteriors.sharded.shards import Shards, open_shards

FORMAT = "consilience-shard"


def _load(file: SafetensorsFile) -> Shards:
    return open_shards(file.path)


def _inspect(file: SafetensorsFile) -> Inspection:
    from consilience.posteriors.sharded.inspect import inspect_shard  # here, so that fusing starts without it

    return inspect_shard(Path(file.path))


class ShardedPosteriors(Posteriors):
    """The posteriors of very many sites, which are opened where the work is."""

    name = "shards"
    formats = (FileFormat("shard", FORMAT, "a shard of many posteriors", _load, _inspect),)

    def recognises(self, models: Sequence[object]) -> list[bool]:
        """Return which objects are opened shards."""
        return [isinstance(model, Shards) for model in models]

    def prepare(self, request: Request) -> Prepared:
        """Open shards and check them where they lie."""
        return prepare_shards(request)

    def save(self, model: Any, path: Path, *, features: Any, symmetry: Any, stated: Mapping[str, Any]) -> None:
        """Refuse: many posteriors are packed."""
        raise UnsupportedError("shards are written by consilience.pack, not by save")
