"""Checkpoints with adapters: BASE+ADAPTER is read as the base whose tensors the adapter has changed, tensor by tensor.

Nothing is written for it. A tensor that an adapter changes is read whole, changed in 64 bits, and goes into a merge
unrounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from consilience.checkpoints.folder import Checkpoint, adapter_folder, open_adapter, open_checkpoint
from consilience.checkpoints.lora.changes import TensorChange, changes_by
from consilience.checkpoints.numbers import FLOAT_TYPES
from consilience.errors import InputError, Problem

_MAX_LISTED = 3
"""Tensors that a message names. Chosen by hand."""


def split_adapters(path: Path) -> tuple[Path, list[Path]]:
    """Return the base and the adapters of BASE+ADAPTER; a path that exists is one, whatever its name."""
    text = str(path)
    if path.exists() or "+" not in text:
        return path, []
    places = [place for place, letter in enumerate(text) if letter == "+"]
    for place in reversed(places):
        adapter = Path(text[place + 1 :])
        base, others = split_adapters(Path(text[:place]))
        if base.exists() and adapter_folder(adapter) is not None:
            return base, [*others, adapter]
    return path, []


def open_model(path: Path) -> Checkpoint:
    """Return a checkpoint, with the adapters that stand behind it after a "+".

    Raises InputError for adapters that change what the base does not have, or whose type is not understood.
    """
    base_path, adapters = split_adapters(path)
    base = open_checkpoint(base_path)
    for adapter_path in adapters:
        base = with_adapter(base, open_adapter(adapter_folder(adapter_path) or adapter_path))
    return base


def with_adapter(base: Checkpoint, adapter: Checkpoint) -> Checkpoint:
    """Return a checkpoint whose tensors an adapter changes when they are read."""
    if base.quantisation is not None:
        text = f"is quantised by {base.quantisation}, so an adapter has nothing to be added to"
        raise InputError(base.name, text, "dequantise it first", "E-TYPE")
    changes: dict[tuple[Path, int], tuple[TensorChange, ...]] = dict(base.changes)
    unmatched, tied = [], []
    for target, change in changes_by(adapter):
        name = name_in(base, target.removesuffix("?"))
        if name is None:
            unmatched += [] if target.endswith("?") else [target]
            continue
        number, stored = base.tensors[name]
        if stored.dtype not in FLOAT_TYPES:
            raise InputError(base.name, f"{name} holds {stored.dtype}, and an adapter changes it", code="E-TYPE")
        if _is_tied(base, name):
            tied.append(name)
        key = base.files[number].path, stored.start
        changes[key] = (*changes.get(key, ()), change)
    if unmatched:
        text = f"changes {', '.join(unmatched[:_MAX_LISTED])}, which {base.name} does not have"
        raise InputError(Problem(adapter.name, text, "give the base that it was trained from", "E-MISMATCH"))
    if tied:
        text = f"changes {tied[0]}, which the base ties to its other end"
        raise InputError(Problem(adapter.name, text, "untie the base first, and save both", "E-ADAPTER"))
    name = f"{base.name}+{adapter.name}"
    settings = (*base.adapters, adapter)
    return replace(base, name=name, files=(*base.files, *adapter.files), changes=changes, adapters=settings)


def name_in(base: Checkpoint, target: str) -> str | None:
    """Return the name in a checkpoint of a tensor by its name in peft's module; None for none, or for several."""
    if target in base.tensors:
        return target
    found = [name for name in base.tensors if name.endswith(f".{target}") or target.endswith(f".{name}")]
    return found[0] if len(found) == 1 else None


def _is_tied(base: Checkpoint, name: str) -> bool:
    """Return whether a tensor is an embedding that serves as the head too, or the other way round."""
    config: Mapping[str, object] = base.config
    is_end = any(mark in name for mark in ("embed_tokens", "wte", "word_embeddings", "lm_head"))
    stores_head = any("lm_head" in other for other in base.tensors) and any("embed" in other for other in base.tensors)
    return is_end and bool(config.get("tie_word_embeddings")) and not stores_head
