"""Layers of checkpoints taken in ranges, one slice behind another: stacked, left out, or in another order.

A slice names for every merged model a checkpoint and a range of its layers. The layers of all slices are numbered anew.
Tensors before the layers (embeddings) are those of the first slice, tensors behind them (norms, heads) those of the
last one. Nothing is read but headers: a stacked checkpoint is another view of the files that its layers lie in.

Models of several towers (text and images, encoder and decoder) have slices for each *module*: by the names that
mergekit has for modules, or by the prefix of their layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
_COUNTS_OF_IMAGES = (*_COUNTS, "depth")
"""The same of a vision tower."""
_COUNTS_OF_HALVES = {
    "encoder": ("encoder_layers", "num_encoder_layers", "num_layers", "num_hidden_layers"),
    "decoder": ("decoder_layers", "num_decoder_layers"),
}
"""The same of an encoder and its decoder."""

_REST = "default"
"""Name of the module of all tensors that belong to no other."""
_SHARED = "shared"
"""Name of the module of what an encoder and its decoder share."""
_PROJECTOR = re.compile(r"^(?:model\.)?(?:multi_modal_projector|visual\.(?:merger|deepstack_merger_list))\.")
_TOWER = re.compile(r"^(?:model\.)?(?P<tower>vision_tower|vision_model|visual)\.")
_TEXT = re.compile(r"(?:^|\.)language_model\.|^model\.layers\.")
_HALF = re.compile(r"^(?:model\.)?(?P<half>encoder|decoder)\.")


@dataclass(frozen=True)
class LayerRange:
    """Some layers of a checkpoint."""

    model: int  # number of the checkpoint
    first: int
    stop: int  # the layer after the last

    def __len__(self) -> int:
        return self.stop - self.first


@dataclass(frozen=True)
class ModuleSlices:
    """Slices of a module one behind another: of each a range of every model that is merged there."""

    module: str  # "" for the whole model
    parts: tuple[tuple[LayerRange, ...], ...]

    def plain(self) -> list[list[list[int]]]:
        """Return them as plain values."""
        return [[[one.model, one.first, one.stop] for one in part] for part in self.parts]


Slices = tuple[ModuleSlices, ...]
"""Slices of all modules; none for models as they are."""


def as_slices(slices: Any, n_models: int) -> Slices:
    """Return slices from plain values: lists of [model, first layer, layer after the last], or these by module.

    Raises OptionError for slices that are none, of models that do not exist, or of unequal lengths.
    """
    by_module = dict(slices) if isinstance(slices, Mapping) else {"": slices} if slices else {}
    made = []
    for module, of_module in by_module.items():
        where = f"slices of {module}" if module else "slices"
        if not isinstance(of_module, Sequence) or isinstance(of_module, str) or not of_module:
            raise OptionError(where, f"expected a list of slices, found {of_module!r:.60}")
        made.append(ModuleSlices(str(module), tuple(_as_parts(of_module, n_models, where))))
    return tuple(made)


def _as_parts(slices: Sequence[Any], n_models: int, of: str) -> list[tuple[LayerRange, ...]]:
    """Return the slices of a module; see `as_slices`."""
    made: list[tuple[LayerRange, ...]] = []
    for number, part in enumerate(slices):
        where = f"{of}: number {number}"
        try:
            ranges = tuple(
                one if isinstance(one, LayerRange) else LayerRange(*(int(value) for value in one)) for one in part
            )
        except (TypeError, ValueError):
            text = f"expected lists of [model, first layer, layer after the last], found {part!r:.60}"
            raise OptionError(where, text) from None
        if bad := [one for one in ranges if not (0 <= one.model < n_models and 0 <= one.first <= one.stop)]:
            text = (
                f"layers {bad[0].first} to {bad[0].stop} of model {bad[0].model} are none; there are {n_models} models"
            )
            raise OptionError(where, text)
        if len({len(one) for one in ranges}) != 1:
            raise OptionError(where, "a slice has as many layers of every model", "give each the same number")
        made.append(ranges)
    return made


def plain_slices(slices: Slices) -> Json:
    """Return slices as plain values; see `as_slices`."""
    if len(slices) == 1 and not slices[0].module:
        return slices[0].plain()
    return {one.module: one.plain() for one in slices}


def tensors_by_module(checkpoint: Checkpoint, modules: Sequence[str]) -> dict[str, list[str]]:
    """Return the tensors of modules by the modules' names; "" alone is the module of all tensors.

    Raises InputError for modules that a checkpoint does not have, and where some that it has are missing.
    """
    names = list(checkpoint.tensors)
    if list(modules) == [""]:
        return {"": names}
    known = [one for one in (_named_modules(names), _modules_by_layers(names)) if one]
    fitting = next((one for one in known if set(modules) <= set(one)), None)
    if fitting is None:
        unknown = next(module for module in modules if not any(module in one for one in known))
        there_are = " or ".join(", ".join(one) for one in known)
        raise InputError(checkpoint.name, f"has no module {unknown}; its modules are {there_are}", "", "E-MISMATCH")
    if lost := [module for module in fitting if module not in modules]:
        text = f"has a module {lost[0]} of {len(fitting[lost[0]])} tensors, of which no model is named"
        raise InputError(checkpoint.name, text, "name its models too", "E-NEEDED")
    return fitting


def _named_modules(names: Sequence[str]) -> dict[str, list[str]]:
    """Return tensors by the modules that mergekit names: of text with images, of an encoder with its decoder."""
    modules: dict[str, list[str]] = {}
    halves = {match["half"] for name in names if (match := _HALF.match(name))}
    sees = any(map(_TOWER.match, names)) and any(map(_TEXT.search, names))
    if not sees and len(halves) < 2:
        return {}
    for name in names:
        if not sees:
            match = _HALF.match(name)
            module = match["half"] if match else _SHARED
        elif _PROJECTOR.match(name):
            module = "multi_modal_projector"
        elif match := _TOWER.match(name):
            module = "vision_model" if match["tower"] == "vision_model" else "vision_tower"
        else:
            module = "text_decoder"
        modules.setdefault(module, []).append(name)
    return modules


def _modules_by_layers(names: Sequence[str]) -> dict[str, list[str]]:
    """Return tensors by what stands before the numbers of their layers; the rest, or all of one tower, as default."""
    found = [(name, LAYER.match(name)) for name in names]
    stems = {match["stem"] for _, match in found if match}
    modules: dict[str, list[str]] = {}
    for name, match in found:
        module = _REST if match is None or len(stems) == 1 else match["stem"].removesuffix(".")
        modules.setdefault(module, []).append(name)
    return modules


def place_in_slices(name: str, lengths: Sequence[int]) -> tuple[int, float]:
    """Return the slice of a tensor of a stacked module by its number, and the tensor's place there from 0 to 1.

    `lengths` are the numbers of layers of the slices. What has no layer is of the first slice before the layers, of
    the last behind them, at 0; a slice of one layer has it at 1.

    Examples
    --------
    >>> place_in_slices("layers.3.weight", [2, 3]), place_in_slices("norm.weight", [2, 3])
    ((1, 0.5), (1, 0.0))
    """
    match = LAYER.match(name)
    if match is None:
        return (0 if is_before_layers(name) else len(lengths) - 1), 0.0
    layer = int(match["number"])
    for number, length in enumerate(lengths):
        if layer < length:
            return number, layer / (length - 1) if length > 1 else 1.0
        layer -= length
    return len(lengths) - 1, 0.0


def layer_counts(checkpoint: Checkpoint) -> dict[str, int]:
    """Return the number of layers from the names of tensors, by what stands before it: by tower."""
    return _layer_counts(checkpoint.tensors)


def _layer_counts(names: Iterable[str]) -> dict[str, int]:
    """Return the number of layers from the names of tensors, by what stands before it."""
    counts: dict[str, int] = {}
    for name in names:
        if match := LAYER.match(name):
            counts[match["stem"]] = max(counts.get(match["stem"], 0), int(match["number"]) + 1)
    return counts


def number_of_layers(names: Iterable[str]) -> int:
    """Return the number of layers of a module by its tensors; of the deepest tower, and 0 for one without layers."""
    return max(_layer_counts(names).values(), default=0)


def misfits(checkpoints: Sequence[Checkpoint], modules: Sequence[str]) -> list[Problem]:
    """Return why layers of checkpoints cannot stand behind one another: towers, names and shapes, a line each."""
    problems = []
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
    for checkpoint in checkpoints:
        for module, own in tensors_by_module(checkpoint, modules).items():
            if len(towers := _layer_counts(own)) > 1:
                of = f" in its module {module}" if module else ""
                text = (
                    f"has layers in {len(towers)} places{of} ({', '.join(towers)}), and slices do not say whose they"
                    " take"
                )
                remedy = "merge it without slices" if module else "give slices by module, or merge it without"
                problems.append(Problem(checkpoint.name, text, remedy, "E-SHAPE"))
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


Parts = Sequence[tuple[Checkpoint, LayerRange]]
"""Layers of checkpoints one behind another."""


def stacked(parts: Mapping[str, Parts]) -> Checkpoint:
    """Return the checkpoint whose layers are those of some ranges, one behind another, in every module.

    Raises InputError for layers and modules that a checkpoint does not have.
    """
    files: list[WeightFile] = []
    numbers: dict[Any, int] = {}
    tensors: dict[str, tuple[int, StoredTensor]] = {}
    first = next(iter(parts.values()))[0][0]
    config = dict(first.config)
    for module, of_module in parts.items():
        names_of = {id(one): tensors_by_module(one, list(parts))[module] for one, _ in of_module}
        for name, checkpoint, own in _stacked_names(of_module, names_of):
            number, stored = checkpoint.tensors[own]
            file = checkpoint.files[number]
            if file.path not in numbers:
                numbers[file.path] = len(files)
                files.append(file)
            tensors.setdefault(name, (numbers[file.path], stored))
        if any(number_of_layers(names) for names in names_of.values()):
            count = sum(len(part) for _, part in of_module)
            config = _counted(config, module, [(one.config, part) for one, part in of_module], count)
    sources = [checkpoint.name for of_module in parts.values() for checkpoint, _ in of_module]
    # Their tensors may be at fault.
    return Checkpoint(" and ".join(dict.fromkeys(sources)), tuple(files), tensors, first.folder, config)


def _stacked_names(parts: Parts, names_of: Mapping[int, Sequence[str]]) -> Iterator[tuple[str, Checkpoint, str]]:
    """Yield the tensors of a stacked module: the name, and whose it is with its own name there.

    `names_of` are the module's tensors by the identity of the checkpoint.
    """
    first, last = parts[0][0], parts[-1][0]
    for name in names_of[id(first)]:
        if LAYER.match(name) is None and is_before_layers(name):
            yield name, first, name
    start = 0
    for checkpoint, part in parts:
        there_are = number_of_layers(names_of[id(checkpoint)])
        if there_are and not part.first < part.stop <= there_are:
            text = f"has {there_are} layers, and a slice takes {part.first} to {part.stop}"
            raise InputError(checkpoint.name, text, "correct its range", "E-SHAPE")
        for name in names_of[id(checkpoint)]:
            match = LAYER.match(name)
            if match is not None and part.first <= int(match["number"]) < part.stop:
                moved = start + int(match["number"]) - part.first
                yield f"{match['stem']}{moved}.{name[match.end() :]}", checkpoint, name
        start += len(part)
    for name in names_of[id(last)]:
        if LAYER.match(name) is None and not is_before_layers(name):
            yield name, last, name


def counts_layers(field: str) -> bool:
    """Return whether a field of a configuration says how many layers there are, or lists them."""
    return field.rpartition(".")[2] in _COUNTS_OF_IMAGES or "layer" in field


def uncounted(config: Mapping[str, Json], modules: Sequence[str]) -> list[str]:
    """Return the fields of a configuration that number or count layers in a way that no stacking of modules follows."""
    counted = [key for half, keys in _COUNTS_OF_HALVES.items() if half in modules for key in keys]
    return [key for key in _NUMBERS if config.get(key) and key not in counted]


_Ranges = Sequence[tuple[Mapping[str, Json], LayerRange]]
"""Configurations of checkpoints, and the layers that are taken of each."""


def _counted(config: Mapping[str, Json], module: str, parts: _Ranges, count: int) -> dict[str, Json]:
    """Return a configuration that says how many layers a module has."""
    if _TOWER.match(f"{module}."):
        inner = config.get("vision_config")
        own = [(of.get("vision_config"), part) for of, part in parts]
        if not isinstance(inner, Mapping):
            return dict(config)
        of_vision = [(of, part) for of, part in own if isinstance(of, Mapping)]
        return {**config, "vision_config": _with_layers(inner, of_vision, count, _COUNTS_OF_IMAGES)}
    if match := _HALF.match(f"{module}."):
        return {**config, **{key: count for key in _COUNTS_OF_HALVES[match["half"]] if config.get(key) is not None}}
    return _with_layers(config, parts, count) if _is_of_text(module) else dict(config)


def is_counted(module: str) -> bool:
    """Return whether it is known where a configuration says how many layers a module has, if it has any."""
    return (
        module == _SHARED
        or _is_of_text(module)
        or any(pattern.match(f"{module}.") for pattern in (_TOWER, _HALF, _PROJECTOR))
    )


def _is_of_text(module: str) -> bool:
    return module in ("", _REST, "text_decoder") or _TEXT.search(f"{module}.") is not None


def _with_layers(
    config: Mapping[str, Json], parts: _Ranges, count: int, keys: Sequence[str] = _COUNTS
) -> dict[str, Json]:
    """Return a configuration of so many layers; lists with an entry for each layer follow the slices."""
    changed: dict[str, Json] = {}
    before = next((config[key] for key in keys if isinstance(config.get(key), int)), None)
    for key, value in config.items():
        if key in keys:
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
