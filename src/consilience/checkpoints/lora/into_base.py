"""Checkpoints with adapters: BASE+ADAPTER is read as the base whose tensors the adapter has changed, tensor by tensor.

Nothing is written for it. A tensor that an adapter changes is read whole, changed in 64 bits, and goes into a merge
unrounded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from consilience.checkpoints.folder import Checkpoint, open_checkpoint
from consilience.checkpoints.lora.changes import ReadTensor, TensorChange, changes_by, changes_by_file
from consilience.checkpoints.lora.conventions import left_out, modules_in_base
from consilience.checkpoints.lora.files import LoraFile, adapter_at, open_adapter_at
from consilience.checkpoints.numbers import FLOAT_TYPES
from consilience.checks import Array
from consilience.errors import InputError, Problem

_OTHER = "give the base that it was trained from"
_MAX_LISTED = 3
"""Tensors that a message names. Chosen by hand."""


class Change(Protocol):
    """What is done to a tensor of a base when it is read."""

    def apply(self, values: Array, read: ReadTensor) -> Array:
        """Return the tensor, changed (in the same shape)."""


def split_adapters(path: Path) -> tuple[Path, list[Path]]:
    """Return the base and the adapters of BASE+ADAPTER; a path that exists is one, whatever its name."""
    text = str(path)
    if os.path.exists(path) or "+" not in text:
        return path, []
    places = [place for place, letter in enumerate(text) if letter == "+"]
    for place in reversed(places):
        adapter = Path(text[place + 1 :])
        base, others = split_adapters(Path(text[:place]))
        if os.path.exists(base) and adapter_at(adapter) is not None:
            return base, [*others, adapter]
    return path, []


def open_model(path: Path) -> Checkpoint:
    """Return a checkpoint, with the adapters that stand behind it after a "+".

    Raises InputError for adapters that change what the base does not have, or whose type is not understood.
    """
    base_path, adapters = split_adapters(path)
    base = open_checkpoint(base_path)
    for adapter_path in adapters:
        base = with_adapter(base, open_adapter_at(adapter_at(adapter_path) or adapter_path))
    return base


def with_adapter(base: Checkpoint, adapter: Checkpoint) -> Checkpoint:
    """Return a checkpoint whose tensors an adapter changes when they are read."""
    if isinstance(adapter, LoraFile):
        return _with_file(base, adapter)
    named: list[tuple[str, TensorChange]] = []
    unmatched = []
    for target, change in changes_by(adapter):
        place = name_in(base, target.removesuffix("?"))
        if place is not None:
            named.append((place, change))
        elif not target.endswith("?"):
            unmatched.append(target)
    if unmatched:
        text = f"changes {', '.join(unmatched[:_MAX_LISTED])}, which {base.name} does not have"
        raise InputError(Problem(adapter.name, text, _OTHER, "E-MISMATCH"))
    return with_changes(base, adapter, named)


def _with_file(base: Checkpoint, adapter: LoraFile) -> Checkpoint:
    """Return a checkpoint whose tensors a LoRA file changes, of the components that the checkpoint has."""
    found = changes_by_file(adapter)
    taken = modules_in_base(base, adapter, {module: known.sizes for module, known in found.items()})
    named: list[tuple[str, Change]] = [(name, found[module].change) for module, name in taken.items()]
    for module, name in taken.items():
        if (bias := found[module].bias) is not None:
            named.append((f"{name.removesuffix('weight')}bias", bias))
    if lacking := [name for name, _ in named if name not in base.tensors]:
        text = f"changes {lacking[0]}, which {base.name} does not have"
        raise InputError(adapter.name, text, _OTHER, "E-MISMATCH")
    said = left_out(adapter, taken)
    notes = () if said is None else (f"{adapter.name}: {said}",)
    return replace(with_changes(base, adapter, named), notes=(*base.notes, *notes))


def with_changes(base: Checkpoint, adapter: Checkpoint, named: Sequence[tuple[str, Change]]) -> Checkpoint:
    """Return a checkpoint of which some tensors, by name, are changed when they are read.

    Raises InputError for quantised bases, and tensors that are no floats or are tied to others.
    """
    if base.quantisation is not None:
        text = f"is quantised by {base.quantisation}, so an adapter has nothing to be added to"
        raise InputError(base.name, text, "dequantise it first", "E-TYPE")
    changes: dict[tuple[Path, int], tuple[Change, ...]] = dict(base.changes)
    for name, change in named:
        number, stored = base.tensors[name]
        if stored.dtype not in FLOAT_TYPES:
            raise InputError(base.name, f"{name} holds {stored.dtype}, and an adapter changes it", code="E-TYPE")
        if _is_tied(base, name):
            text = f"changes {name}, which the base ties to its other end"
            raise InputError(Problem(adapter.name, text, "untie the base first, and save both", "E-ADAPTER"))
        key = base.files[number].path, stored.start
        changes[key] = (*changes.get(key, ()), change)
    files, settings = (*base.files, *adapter.files), (*base.adapters, adapter)
    return replace(base, name=f"{base.name}+{adapter.name}", files=files, changes=changes, adapters=settings)


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
