"""Layers of checkpoints taken in ranges, one slice behind another: stacked, left out, or in another order.

A slice names for every merged model a checkpoint and a range of its layers. The layers of all slices are numbered anew.
Tensors before the layers (embeddings) are those of the first slice, tensors behind them (norms, heads) those of the
last one. Nothing is read but headers: a stacked checkpoint is another view of the files that its layers lie in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from consilience.checkpoints.folder import Checkpoint, WeightFile
from consilience.checkpoints.header import StoredTensor
from consilience.checks import Json
from consilience.errors import InputError, OptionError, Problem

LAYER = re.compile(r"(?P<stem>(?:^|.*?\.)(?:layers|h|blocks|block|layer)\.)(?P<number>\d+)\.")
"""A tensor of a numbered layer; the stem is what stands before its number."""

_BEFORE = re.compile(r"(?:^|\.)(?:embed\w*|wte|wpe|word_embeddings\w*|position_embeddings\w*|shared)(?:\.|$)")
"""Names of what lies before the layers; all else without a number lies behind them."""

_NUMBERS = (
    "first_k_dense_replace", "num_dense_layers", "max_window_layers", "full_attention_interval", "mlp_only_layers",
    "num_decoder_layers", "num_nextn_predict_layers", "attn_layer_offset", "attn_layer_period",
)  # fmt: skip
"""Keys of configurations that number layers, or count some of them."""

_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
"""Keys of configurations that say how many layers there are."""


@dataclass(frozen=True)
class LayerRange:
    """Some layers of a checkpoint."""

    model: int  # number of the checkpoint
    first: int
    stop: int  # the layer after the last

    def __len__(self) -> int:
        return self.stop - self.first


Slices = tuple[tuple[LayerRange, ...], ...]
"""Slices one behind another: for every merged model a range."""


def as_slices(slices: Any, n_models: int) -> Slices:
    """Return slices from plain values: lists of [model, first layer, layer after the last].

    Raises OptionError for slices that are none, of models that do not exist, or of unequal lengths.
    """
    made: list[tuple[LayerRange, ...]] = []
    for number, part in enumerate(slices or ()):
        where = f"slices: number {number}"
        try:
            ranges = tuple(
                one if isinstance(one, LayerRange) else LayerRange(*(int(value) for value in one)) for one in part
            )
        except (TypeError, ValueError):
            text = f"expected lists of [model, first layer, layer after the last], found {part!r:.60}"
            raise OptionError(where, text) from None
        if bad := [one for one in ranges if not (0 <= one.model < n_models and 0 <= one.first < one.stop)]:
            text = (
                f"layers {bad[0].first} to {bad[0].stop} of model {bad[0].model} are none; there are {n_models} models"
            )
            raise OptionError(where, text)
        if len({len(one) for one in ranges}) != 1 or len(ranges) != len(made[0] if made else ranges):
            text = "a slice has as many layers of every model, and all slices as many models"
            raise OptionError(where, text, "give each the same number")
        made.append(ranges)
    return tuple(made)


def layer_counts(checkpoint: Checkpoint) -> dict[str, int]:
    """Return the number of layers from the names of tensors, by what stands before it: by tower."""
    counts: dict[str, int] = {}
    for name in checkpoint.tensors:
        if match := LAYER.match(name):
            counts[match["stem"]] = max(counts.get(match["stem"], 0), int(match["number"]) + 1)
    return counts


def number_of_layers(checkpoint: Checkpoint) -> int:
    """Return the number of layers of a model; of the deepest tower, and 0 for one without layers."""
    return max(layer_counts(checkpoint).values(), default=0)


def misfits(checkpoints: Sequence[Checkpoint]) -> list[Problem]:
    """Return why layers of checkpoints cannot stand behind one another: towers, names and shapes, a line each."""
    problems = []
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
    for checkpoint in checkpoints:
        if len(towers := layer_counts(checkpoint)) > 1:
            text = f"has layers in {len(towers)} places ({', '.join(towers)}), and slices do not say whose they take"
            problems.append(Problem(checkpoint.name, text, "merge it without slices", "E-SHAPE"))
        for name, (_, stored) in checkpoint.tensors.items():
            match = LAYER.match(name)
            place = name if match is None else f"{match['stem']}*.{name[match.end() :]}"
            first, shape = shapes.setdefault(place, (checkpoint.name, stored.shape))
            if shape != stored.shape:
                text = f"{name} has shape {list(stored.shape)}, in {first} {list(shape)}"
                problems.append(Problem(checkpoint.name, text, "stack layers of one architecture", "E-SHAPE"))
    whole = [{name for name in one.tensors if LAYER.match(name) is None} for one in checkpoints]
    for checkpoint, names in zip(checkpoints[1:], whole[1:], strict=True):
        if differing := sorted(names ^ whole[0]):
            text = f"{', '.join(differing[:3])}: in one of it and {checkpoints[0].name} alone"
            problems.append(Problem(checkpoint.name, text, "tie or untie the heads of all alike", "E-NEEDED"))
    return problems


def is_before_layers(name: str) -> bool:
    """Return whether a tensor without a layer lies before the layers."""
    return _BEFORE.search(name) is not None


def stacked(parts: Sequence[tuple[Checkpoint, LayerRange]]) -> Checkpoint:
    """Return the checkpoint whose layers are those of some ranges, one behind another.

    Raises InputError for layers that a checkpoint does not have.
    """
    files: list[WeightFile] = []
    numbers: dict[Any, int] = {}
    tensors: dict[str, tuple[int, StoredTensor]] = {}

    def put(name: str, checkpoint: Checkpoint, own: str) -> None:
        number, stored = checkpoint.tensors[own]
        file = checkpoint.files[number]
        if file.path not in numbers:
            numbers[file.path] = len(files)
            files.append(file)
        tensors[name] = numbers[file.path], stored

    first, last = parts[0][0], parts[-1][0]
    start = 0
    for name in first.tensors:
        if LAYER.match(name) is None and is_before_layers(name):
            put(name, first, name)
    for checkpoint, part in parts:
        there_are = number_of_layers(checkpoint)
        if part.stop > there_are:
            text = f"has {there_are} layers, and a slice takes {part.first} to {part.stop}"
            raise InputError(checkpoint.name, text, "correct its range", "E-SHAPE")
        for name in checkpoint.tensors:
            match = LAYER.match(name)
            if match is not None and part.first <= int(match["number"]) < part.stop:
                moved = start + int(match["number"]) - part.first
                put(f"{match['stem']}{moved}.{name[match.end() :]}", checkpoint, name)
        start += len(part)
    for name in last.tensors:
        if LAYER.match(name) is None and name not in tensors:
            put(name, last, name)
    config = _with_layers(first.config, [(one.config, part) for one, part in parts], start)
    name = " and ".join(dict.fromkeys(checkpoint.name for checkpoint, _ in parts))  # whose tensors may be at fault
    return Checkpoint(name, tuple(files), tensors, first.folder, config)


def counts_layers(field: str) -> bool:
    """Return whether a field of a configuration says how many layers there are, or lists them."""
    return field in _COUNTS or "layer" in field


def uncounted(config: Mapping[str, Json]) -> list[str]:
    """Return the fields of a configuration that number or count layers in a way that no stacking follows."""
    return [key for key in _NUMBERS if config.get(key)]


def _with_layers(
    config: Mapping[str, Json], parts: Sequence[tuple[Mapping[str, Json], LayerRange]], count: int
) -> dict[str, Json]:
    """Return a configuration of so many layers; lists with an entry for each layer follow the slices."""
    changed: dict[str, Json] = {}
    before = next((config[key] for key in _COUNTS if isinstance(config.get(key), int)), None)
    for key, value in config.items():
        if key in _COUNTS:
            changed[key] = count
        elif key == "text_config" and isinstance(value, Mapping):
            inner = [(of.get(key), part) for of, part in parts]
            changed[key] = _with_layers(value, [(of, part) for of, part in inner if isinstance(of, Mapping)], count)
        elif isinstance(value, list) and before is not None and len(value) == before:
            entries = [_part_of(of.get(key), part) for of, part in parts]
            changed[key] = value if None in entries else [one for entry in entries for one in entry or ()]
        else:
            changed[key] = value
    return changed


def _part_of(value: Json, part: LayerRange) -> list[Json] | None:
    """Return the entries of some layers of a list; None where it has none for them."""
    return value[part.first : part.stop] if isinstance(value, list) and len(value) >= part.stop else None
