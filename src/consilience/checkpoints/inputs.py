"""What goes into a merge, and everything that keeps its parts from fitting together, found in headers alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from consilience.checkpoints.folder import Checkpoint, Part
from consilience.checkpoints.header import ITEM_BITS, Stored
from consilience.checkpoints.numbers import FLOATS

_FEW = 5
"""Tensors that a line names; more are counted."""

_SCALES = ("_scale_inv", "_scale", ".scale", ".weight_scale", ".weight_scale_inv", ".SCB", ".absmax", ".quant_state")
"""What the scales of quantised weights are called beside them."""


@dataclass(frozen=True, eq=False)
class Ingredients:
    """The checkpoints of a merge.

    Parameters
    ----------
    models
        What is merged.
    base
        The common start, for methods that need one.
    fishers
        Fisher diagonals by model, tensors named as the parameters; empty for methods without.
    digests
        For every model, the digest of the parameters that its diagonal was computed at, where the file says so.
    """

    models: tuple[Checkpoint, ...]
    base: Checkpoint | None = None
    fishers: tuple[Checkpoint, ...] = ()
    digests: tuple[str | None, ...] = field(default=())

    @property
    def all(self) -> tuple[Checkpoint, ...]:
        """Everything that is read."""
        return (*self.models, *(() if self.base is None else (self.base,)), *self.fishers)

    @property
    def parts(self) -> tuple[Part, ...]:
        """All files, each once."""
        found: dict[Path, Part] = {}
        for one in self.all:
            for part in one.parts:
                found.setdefault(part.path.resolve(), part)
        return tuple(found.values())

    def problems(self) -> list[str]:
        """Return why these do not fit together, a line each."""
        first = self.models[0]
        compared = [*self.models[1:], *(() if self.base is None else (self.base,))]
        found = [line for one in (first, *compared) for line in _unreadable(one)]
        for other in compared:
            found += _differences(first, other)
        for model, fisher in zip(self.models, self.fishers, strict=False):
            found += _unfit(model, fisher)
        if self.fishers and len(self.fishers) != len(self.models):
            found.append(f"fishers: there are {len(self.fishers)} for {len(self.models)} models; give one for each")
        elif self.fishers:
            for other in self.fishers[1:]:
                if odd := sorted(set(other.tensors) ^ set(self.fishers[0].tensors)):
                    found.append(f"{other.name}: informs other parameters than {self.fishers[0].name} ({_few(odd)})")
        return found


def _unreadable(one: Checkpoint) -> Iterator[str]:
    """Yield what of a checkpoint cannot be merged by itself."""
    by_type: dict[str, list[str]] = {}
    for name, (_, stored) in one.tensors.items():
        packed = ITEM_BITS.get(stored.dtype, 0) % 8 != 0
        if stored.dtype not in ITEM_BITS or packed or (stored.dtype.startswith("F") and stored.dtype not in FLOATS):
            by_type.setdefault(stored.dtype, []).append(name)
    for dtype, names in by_type.items():
        yield f"{one.name}: {_few(names)}: type {dtype} cannot be merged; convert to one of {', '.join(FLOATS)}"
    scaled = [
        name
        for name, (_, stored) in one.tensors.items()
        if stored.nbytes == stored.size and stored.dtype != "BOOL" and stored.size > 1
        and any(name + mark in one.tensors or name.removesuffix(".weight") + mark in one.tensors for mark in _SCALES)
    ]  # fmt: skip
    if scaled:
        yield (
            f"{one.name}: {_few(scaled)}: quantised with scales of its own, which no entry-by-entry merge respects; "
            "convert to bfloat16 first"
        )


def _differences(first: Checkpoint, other: Checkpoint) -> Iterator[str]:
    """Yield what another checkpoint has otherwise than the first."""
    missing = [name for name in first.tensors if name not in other.tensors]
    extra = [name for name in other.tensors if name not in first.tensors]
    if missing:
        yield f"{other.name}: lacks {_few(missing)}, which {first.name} has{_tied(missing, other, first)}"
    if extra:
        yield f"{other.name}: has {_few(extra)}, which {first.name} lacks{_tied(extra, first, other)}"
    shapes = [name for name in first.tensors if name in other.tensors and _shape(first, name) != _shape(other, name)]
    for name in shapes[:_FEW]:
        yield (
            f"{other.name}: {name} has shape {list(_shape(other, name))}, in {first.name} {list(_shape(first, name))}"
            f"{_vocabulary(_shape(first, name), _shape(other, name), name)}"
        )
    if len(shapes) > _FEW:
        yield f"{other.name}: {len(shapes) - _FEW} more tensors have other shapes than in {first.name}"
    kinds = [
        name
        for name, (_, stored) in first.tensors.items()
        if name in other.tensors and (stored.dtype in FLOATS) != (other.tensors[name][1].dtype in FLOATS)
    ]
    if kinds:
        yield (
            f"{other.name}: {_few(kinds)}: {other.tensors[kinds[0]][1].dtype} where {first.name} has "
            f"{first.tensors[kinds[0]][1].dtype}; floating numbers and others do not mix"
        )


def _unfit(model: Checkpoint, fisher: Checkpoint) -> Iterator[str]:
    """Yield why a Fisher diagonal is not that of a model."""
    if odd := [name for name in fisher.tensors if name not in model.tensors]:
        yield f"{fisher.name}: {_few(odd)}: not in {model.name}; give the information of this model"
    for name, (_, stored) in fisher.tensors.items():
        if stored.dtype not in FLOATS:
            yield f"{fisher.name}: {name} holds {stored.dtype}, not floats"
        elif name in model.tensors and stored.shape != _shape(model, name):
            yield f"{fisher.name}: {name} has shape {list(stored.shape)}, in {model.name} {list(_shape(model, name))}"


def _shape(one: Checkpoint, name: str) -> tuple[int, ...]:
    return one.tensors[name][1].shape


def _vocabulary(one: tuple[int, ...], other: tuple[int, ...], name: str) -> str:
    """Return a hint where only the number of rows differs of what looks like one row a token."""
    tokens = any(mark in name for mark in ("embed", "lm_head", "wte", "word_embeddings", "output.weight", "shared"))
    if tokens and one[1:] == other[1:]:
        return "; the vocabularies differ in size: give all models the same tokens first (resize_token_embeddings)"
    return ""


def _tied(names: list[str], lacking: Checkpoint, having: Checkpoint) -> str:
    """Return a hint where the output layer may be the embedding."""
    if any("lm_head" in name or name == "output.weight" for name in names):
        tied = [one.name for one in (lacking, having) if one.config.get("tie_word_embeddings")]
        said = f" ({', '.join(tied)} says tie_word_embeddings)" if tied else ""
        return f"; the one may tie it to the embedding{said}: untie it there, or drop it here, so that all are alike"
    return ""


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:_FEW])
    return shown if len(names) <= _FEW else f"{shown} and {len(names) - _FEW} more"


def located(one: Checkpoint, name: str) -> tuple[Part, Stored]:
    """Return where a tensor of a checkpoint is."""
    number, stored = one.tensors[name]
    return one.parts[number], stored
