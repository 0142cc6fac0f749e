"""Packed shards of posteriors as a kind of model, for the table of kinds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from consilience.core.arguments import SHARD_KEYWORDS
from consilience.core.kind import FileFormat, Prepared, Request, Saving
from consilience.errors import UnsupportedError
from consilience.files.document import PARQUET, SHARD
from consilience.posteriors.kind import Posteriors


class ShardedPosteriors(Posteriors):
    """The posteriors of very many sites, which are opened where the work is."""

    name = "shards"
    formats = (
        FileFormat(
            "shard",
            SHARD,
            "a shard of many posteriors",
            "consilience.posteriors.sharded.shards:open_shard_file",
            "consilience.posteriors.sharded.inspect:inspect_shard",
        ),
    )
    packages = frozenset(("consilience.posteriors",))
    title = "shards of posteriors"
    keywords = SHARD_KEYWORDS
    is_listed = False

    def are_models(self, models: Sequence[object]) -> list[bool]:
        """Return which objects are opened shards."""
        from consilience.posteriors.sharded.shards import Shards

        return [isinstance(model, Shards) for model in models]

    def are_given(self, models: Any, engine: Any = None) -> bool:
        """Return whether models are shards by how they are written: a path, shards, folders, patterns and addresses.

        With an engine that is not this process, posterior files are shards too. Nothing is opened: that a file is a
        packed shard is stated by its document.
        """
        if isinstance(models, str | Path) or self.recognises([models])[0]:
            return True
        if not isinstance(models, Sequence) or not all(isinstance(model, str | Path) for model in models):
            return False
        return any(map(_is_many, models)) or (engine is not None and len(models) > 0)

    def prepare(self, request: Request) -> Prepared:
        """Open shards and check them where they lie."""
        from consilience.posteriors.sharded.fuse import prepare_shards

        return prepare_shards(request)

    def save(self, model: Any, path: Path, saving: Saving) -> None:
        """Refuse: many posteriors are packed."""
        raise UnsupportedError("shards are written by consilience.pack, not by save")

    def digest_of(self, model: Any) -> str:
        """Refuse: posteriors of many sites are no model."""
        raise UnsupportedError("shards", "hold the posteriors of many sites, and are no model", "fuse them")


def _is_many(path: str | Path) -> bool:
    """Return whether a path stands for several files."""
    text = str(path)
    if "://" in text or any(sign in text for sign in "*?["):
        return not os.path.exists(path) or os.path.isdir(path)
    return os.path.isdir(path) or text.endswith(PARQUET)
