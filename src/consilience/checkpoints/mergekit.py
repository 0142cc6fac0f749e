"""Recipes of mergekit, read as they are: linear, slerp, ties, dare_linear, dare_ties and task_arithmetic.

A parameter is looked up at a model (or a source of a slice), then at its slice, then at the top. Its value is

- a number,
- a list of numbers, the gradient: layer i of the L layers of a slice takes the value at t = i / (L - 1), by linear
  interpolation between the entries of the list; tensors outside of layers take the first entry, also those after them,
- a list of filters: the first whose ``filter`` is "*", missing, or a part of the tensor's name; where none matches, the
  next level is looked at.

That is what mergekit 0.1.5 does. What differs is arithmetic: mergekit rounds after every operation, takes int(p n)
entries where this library takes round(p n), and rescales DARE to the L1 norm of a tensor where this library divides by
p, as the paper does (docs/guides/checkpoints.md). Weights are computed for every tensor by name, so headers are read
here.
"""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consilience.catalogue import suggestion
from consilience.checkpoints.folder import Checkpoint, open_checkpoint
from consilience.checks import Json
from consilience.errors import FileFormatError

METHODS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "linear": ("average", {"normalize": True}),
    "slerp": ("slerp", {}),
    "ties": ("ties", {"normalize": True}),
    "dare_linear": ("dare", {"combine": "linear", "normalize": False}),
    "dare_ties": ("dare", {"combine": "ties", "normalize": False}),
    "task_arithmetic": ("task_arithmetic", {"normalize": False}),
}
"""Our method, and mergekit's defaults for its options, by mergekit's name."""

MISSING_METHODS = (
    "arcee_fusion", "breadcrumbs", "breadcrumbs_ties", "della", "della_linear", "karcher", "model_stock", "multislerp",
    "nearswap", "nuslerp", "passthrough", "ram", "ramplus_tl", "sce",
)  # fmt: skip
"""Methods of mergekit that this library does not have."""

_KEYS = (
    "merge_method", "models", "slices", "base_model", "parameters", "dtype", "out_dtype", "tokenizer_source",
    "tokenizer", "chat_template", "name",
)  # fmt: skip
"""Keys of a recipe that are understood."""

_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "linear": ("weight", "normalize"),
    "slerp": ("t",),
    "ties": ("weight", "density", "normalize", "lambda"),
    "dare_linear": ("weight", "density", "normalize", "lambda", "rescale"),
    "dare_ties": ("weight", "density", "normalize", "lambda", "rescale"),
    "task_arithmetic": ("weight", "normalize", "lambda"),
}
"""Parameters of every method."""
_EVERY_PARAMETER = frozenset(name for names in _PARAMETERS.values() for name in names) | {
    "epsilon", "gamma", "filter_wise", "max_iter", "tol", "select_topk", "nuslerp_flatten", "nuslerp_row_wise", "scale",
}  # fmt: skip
"""Parameters of any method of mergekit."""

_LAYER = re.compile(r"(?P<stem>(?:^|.*?\.)(?:layers|h|blocks|block|layer)\.)(?P<number>\d+)\.")
"""A tensor of a numbered layer; the stem is what stands before its number."""

_REMEDY = "write it as a recipe of this library (docs/guides/checkpoints.md), or leave it out"


def is_mergekit(document: Any) -> bool:
    """Return whether the document of a recipe has mergekit's form."""
    if not isinstance(document, Mapping):
        return False
    models = document.get("models")
    named = isinstance(models, list) and any(isinstance(model, Mapping) for model in models)
    return named or any(key in document for key in ("merge_method", "slices", "base_model", "gate_mode", "experts"))


@dataclass(frozen=True)
class _Source:
    """A model of a slice, with its own parameters."""

    model: str
    parameters: Mapping[str, Json]


@dataclass(frozen=True)
class _Slice:
    """Some layers: their range (None for all), their models, and the parameters that these share."""

    layers: tuple[int, int] | None
    sources: tuple[_Source, ...]
    parameters: Mapping[str, Json]


def from_mergekit(path: Path, document: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a recipe of mergekit in the form of `MergeRecipe`, and notes on what has no counterpart.

    `path` is for messages, and for models that lie beside the recipe's file. Raises FileFormatError for what cannot be
    translated: by name, with what there is.
    """
    _refuse_unknown(path, document)
    method = str(document["merge_method"])
    name, defaults = METHODS[method]
    slices = _slices(path, document)
    base = _model_name(path, document["base_model"]) if document.get("base_model") is not None else None
    models = _models_to_merge(path, method, slices, base)
    places = {model: _place(path, model) for model in [*models, *([base] if base is not None else [])]}
    first = open_checkpoint(Path(places[models[0]]))
    n_layers = _layer_count(first)
    _refuse_stacking(path, slices, n_layers)
    levels = _Levels(path, method, slices, document.get("parameters") or {}, n_layers)
    default, tensors = _settings(levels, first, models, method, name, defaults)
    fields: dict[str, Json] = {"models": [places[model] for model in models], "method": name, "tensors": tensors}
    fields |= default
    if name in ("ties", "dare", "task_arithmetic"):
        assert base is not None  # noqa: S101  (refused above)
        fields["base"] = places[base]
    dtype = document.get("out_dtype") or document.get("dtype")
    if dtype is not None:
        fields["dtype"] = str(dtype)
    return fields, _notes(document, method)


def _models_to_merge(path: Path, method: str, slices: Sequence[_Slice], base: str | None) -> list[str]:
    """Return the models of all slices, without a base whose change is nothing."""
    models = list(dict.fromkeys(source.model for part in slices for source in part.sources))
    if any({source.model for source in part.sources} != set(models) for part in slices):
        raise FileFormatError(path, "slices have different models, which this library does not stack", _REMEDY)
    if method == "slerp":
        models = _slerp_models(path, models, base)
    elif method != "linear":
        if base is None:
            raise FileFormatError(path, f"method {method} needs a base_model", "name what all were trained from")
        models = [model for model in models if model != base]
    if not models:
        raise FileFormatError(path, "names no models to merge", "list them under models")
    return models


def _refuse_unknown(path: Path, document: Mapping[str, Json]) -> None:
    """Raise for methods, keys and parameters that have no counterpart here."""
    if other := [key for key in ("gate_mode", "experts") if key in document]:
        raise FileFormatError(path, f"has {other[0]}, a key of mergekit-moe, which makes mixtures of experts", _REMEDY)
    method = document.get("merge_method")
    there_are = ", ".join(METHODS)
    if method is None:
        raise FileFormatError(path, "has mergekit's form and no merge_method", f"give one of {there_are}")
    if method not in METHODS:
        known = " of mergekit is not in this library" if method in MISSING_METHODS else " does not exist"
        text = f"method {method!r}{known}; there are {there_are}"
        raise FileFormatError(path, text, "choose one of these", "E-METHOD")
    if unknown := [str(key) for key in document if key not in _KEYS]:
        hints = [key if key == "modules" else f"{key}{suggestion(key, _KEYS)}" for key in unknown]
        raise FileFormatError(path, f"has {', '.join(hints)}, which is not understood", _REMEDY, "E-RECIPE")
    if (template := document.get("chat_template")) not in (None, "auto"):
        raise FileFormatError(path, f"sets chat_template ({template!r:.40})", "leave it out, and edit the output's")
    if ("models" in document) == ("slices" in document):
        raise FileFormatError(path, "needs models or slices, one of them", "leave the other out")
    for parameters in _all_parameters(document):
        _refuse_parameters(path, str(method), parameters)


def _refuse_parameters(path: Path, method: str, parameters: Any) -> None:
    """Raise for parameters that no method of mergekit has; those of other methods are passed over, with a note."""
    if not isinstance(parameters, Mapping):
        raise FileFormatError(path, f"parameters must be a mapping, found {parameters!r:.40}", "name each")
    if unknown := [str(key) for key in parameters if key not in (*_EVERY_PARAMETER, "int8_mask")]:
        takes = ", ".join(_PARAMETERS[method])
        hints = [f"{key}{suggestion(key, _PARAMETERS[method])}" for key in unknown]
        text = f"method {method!r} has no parameter {', '.join(hints)}; it has {takes}"
        raise FileFormatError(path, text, "leave it out", "E-RECIPE")
    if parameters.get("rescale", True) is not True:
        raise FileFormatError(path, "sets rescale to false, which this library does not have", "leave it out")


def _all_parameters(document: Mapping[str, Any]) -> list[Any]:
    """Return the parameters of all levels."""
    entries: list[Any] = [document]
    for key in ("models", "slices"):
        for entry in document.get(key) or ():
            entries.append(entry)
            entries += (entry.get("sources") or []) if isinstance(entry, Mapping) else []
    found = (entry.get("parameters") for entry in entries if isinstance(entry, Mapping))
    return [parameters for parameters in found if parameters is not None]


def _slices(path: Path, document: Mapping[str, Json]) -> tuple[_Slice, ...]:
    """Return the slices of a recipe; models without slices are one slice of all layers."""
    if "models" in document:
        sources = tuple(_source(path, entry) for entry in _entries(path, document["models"], "models"))
        return (_Slice(None, sources, {}),)
    slices = []
    for part in _entries(path, document["slices"], "slices"):
        if not isinstance(part, Mapping) or not isinstance(part.get("sources"), list):
            raise FileFormatError(path, "a slice needs sources", "list the models of every slice")
        ranges = [_layer_range(entry) for entry in part["sources"]]
        first = ranges[0] if ranges else None
        if first is None or None in ranges:
            raise FileFormatError(path, "a source needs layer_range: [first, last + 1]", "give both numbers")
        if any(one != first for one in ranges):
            text = f"the sources of a slice have layers {list(first)} and others, which this library does not stack"
            raise FileFormatError(path, text, _REMEDY)
        sources = tuple(_source(path, entry) for entry in part["sources"])
        slices.append(_Slice(first, sources, part.get("parameters") or {}))
    return tuple(slices)


def _layer_range(source: Any) -> tuple[int, int] | None:
    """Return the first layer of a source and the one after its last; None where it does not say them."""
    stated = source.get("layer_range") if isinstance(source, Mapping) else None
    if isinstance(stated, list) and len(stated) == 2 and all(isinstance(end, int) for end in stated):
        return stated[0], stated[1]
    return None


def _entries(path: Path, entries: Any, key: str) -> list[Any]:
    if not isinstance(entries, list) or not entries:
        raise FileFormatError(path, f"{key} must be a list, found {entries!r:.40}", "list them")
    return entries


def _source(path: Path, entry: Any) -> _Source:
    if isinstance(entry, str):
        return _Source(entry, {})
    if not isinstance(entry, Mapping) or "model" not in entry:
        raise FileFormatError(path, f"a model must be named as model: PATH, found {entry!r:.60}", "name it")
    if unknown := [str(key) for key in entry if key not in ("model", "parameters", "layer_range")]:
        raise FileFormatError(path, f"a model has {', '.join(unknown)}, which is not understood", _REMEDY)
    return _Source(_model_name(path, entry["model"]), entry.get("parameters") or {})


def _model_name(path: Path, model: Any) -> str:
    """Return the path or hub name of a model, REVISION after an @; a mapping is mergekit's long form."""
    if isinstance(model, Mapping):
        inner = model.get("model", model)
        if unknown := [str(key) for key in model if key not in ("model", "path", "revision") and model[key]]:
            raise FileFormatError(path, f"a model has {', '.join(unknown)}, which is not understood", _REMEDY)
        if isinstance(inner, Mapping) and isinstance(inner.get("path"), str):
            revision = inner.get("revision")
            return inner["path"] if revision is None else f"{inner['path']}@{revision}"
        model = inner
    if not isinstance(model, str) or not model:
        raise FileFormatError(path, f"a model must be a path or a name on the hub, found {model!r:.60}", "name it")
    if "+" in Path(model).name and not Path(model).exists():
        remedy = "merge the adapter into its base first (merge_and_unload of peft), and name the result"
        raise FileFormatError(path, f"{model} is a model with an adapter", remedy)
    return model


def _slerp_models(path: Path, models: list[str], base: str | None) -> list[str]:
    """Return the two ends of an arc, the base at t = 0."""
    if base is None:
        raise FileFormatError(path, "method slerp needs a base_model, the end at t = 0", "name one of the two models")
    ends = [base, *(model for model in models if model != base)]
    if len(ends) != 2:
        raise FileFormatError(path, f"method slerp takes two models, found {len(ends)}", "leave the others out")
    return ends


def _place(recipe: Path, model: str) -> str:
    """Return where a model lies: beside the recipe, here, or in the hub's cache."""
    for place in (recipe.parent / model, Path(model)):
        if place.exists():
            return str(place)
    name, _, revision = model.partition("@")
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{name.replace('/', '--')}"
    reference = cache / "refs" / (revision or "main")
    commit = reference.read_text().strip() if reference.is_file() else revision
    if commit and (snapshot := cache / "snapshots" / commit).is_dir() and snapshot.parent == cache / "snapshots":
        return str(snapshot)
    text = f"{model} is no folder next to it or here, nor in the hub's cache"
    raise FileFormatError(recipe, text, f"fetch it: hf download {name}")


def _layer_count(checkpoint: Checkpoint) -> int:
    """Return the number of layers of a model, from the names of its tensors; 0 for one without."""
    numbers = [int(match["number"]) for name in checkpoint.tensors if (match := _LAYER.match(name))]
    return max(numbers, default=-1) + 1


def _refuse_stacking(path: Path, slices: Sequence[_Slice], n_layers: int) -> None:
    """Raise for slices that leave layers out, repeat them, or put them in another order."""
    ranges = [part.layers for part in slices if part.layers is not None]
    if not ranges:
        return
    expected = 0
    for first, stop in ranges:
        if first != expected or stop <= first:
            break
        expected = stop
    if expected != n_layers or len(ranges) != len(slices):
        text = f"its slices have layers {', '.join(map(str, map(list, ranges)))} of {n_layers}"
        text = f"{text}: layers are not stacked or left out here"
        raise FileFormatError(path, text, "let slices cover them in order")


class _Levels:
    """The parameters of a recipe at all levels, looked up by tensor and model."""

    def __init__(
        self, path: Path, method: str, slices: Sequence[_Slice], top: Mapping[str, Any], n_layers: int
    ) -> None:
        self._path, self._method, self._slices, self._top, self._n_layers = path, method, slices, top, n_layers

    def value(self, parameter: str, tensor: str, model: str | None, default: Any = None) -> Any:
        """Return the value of a parameter for a tensor of a model, or of all; the default where nobody gives one.

        Raises FileFormatError without a value and a default, and for values that are none.
        """
        match = _LAYER.match(tensor)
        layer = int(match["number"]) if match else None
        part, position = self._position(layer)
        sources = [source.parameters for source in part.sources if source.model == model]
        for level in (*sources, part.parameters, self._top):
            if parameter in level:
                value = self._resolved(level[parameter], parameter, tensor, position)
                if value is not None:
                    return value
        if default is None:
            of = "" if model is None else f" of {model}"
            raise FileFormatError(self._path, f"nothing says the {parameter} of {tensor}{of}", f"give {parameter}")
        return default

    def _position(self, layer: int | None) -> tuple[_Slice, float]:
        """Return the slice of a layer, and the layer's place in it from 0 to 1; outside of layers the first slice's."""
        if layer is None:
            return self._slices[0], 0.0
        for part in self._slices:
            first, stop = part.layers or (0, self._n_layers)
            if first <= layer < stop:
                return part, (layer - first) / (stop - first - 1) if stop - first > 1 else 1.0
        return self._slices[0], 0.0

    def _resolved(self, value: Any, parameter: str, tensor: str, position: float) -> Any:
        """Return a number or truth value; None where only filters are given and none matches."""
        if isinstance(value, list) and value and all(isinstance(entry, Mapping) for entry in value):
            for entry in value:
                part = entry.get("filter")
                if part in (None, "*") or str(part) in tensor:
                    return self._resolved(entry.get("value"), parameter, tensor, position)
            return None
        if isinstance(value, list) and value and all(_is_number(entry) for entry in value):
            place = position * (len(value) - 1)
            below = min(int(place), len(value) - 2) if len(value) > 1 else 0
            above = min(below + 1, len(value) - 1)
            return float(value[below]) + (place - below) * (float(value[above]) - float(value[below]))
        if isinstance(value, bool) or _is_number(value):
            return value
        text = f"{parameter} must be a number, a list of numbers or of filters, found {value!r:.60}"
        raise FileFormatError(self._path, text, "see docs/guides/checkpoints.md")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_Setting = tuple[tuple[float, ...] | None, tuple[tuple[str, Any], ...]]
"""Weights of the models, and options, of a tensor."""


def _settings(
    levels: _Levels, first: Checkpoint, models: Sequence[str], method: str, name: str, defaults: Mapping[str, Json]
) -> tuple[dict[str, Json], list[dict[str, Json]]]:
    """Return weights and options of most tensors, and rules for the others, by layer where a layer has one setting."""
    by_tensor = {tensor: _setting(levels, tensor, models, method, defaults) for tensor in first.tensors}
    common, _ = Counter(by_tensor.values()).most_common(1)[0]
    by_layer: dict[str, list[str]] = {}
    for tensor in by_tensor:
        if match := _LAYER.match(tensor):
            by_layer.setdefault(f"{match['stem']}{match['number']}.", []).append(tensor)
    rules, ruled = [], set()
    for layer, tensors in by_layer.items():
        found = {by_tensor[tensor] for tensor in tensors}
        if len(found) == 1 and found != {common}:
            rules.append((f"{glob.escape(layer)}*", found.pop()))
        if len(found) <= 1:
            ruled.update(tensors)
    rules += [
        (glob.escape(tensor), setting)
        for tensor, setting in by_tensor.items()
        if tensor not in ruled and setting != common
    ]
    return _fields(common), [{"pattern": pattern, "method": name, **_fields(setting)} for pattern, setting in rules]


def _fields(setting: _Setting) -> dict[str, Json]:
    weights, options = setting
    chosen = {key: list(value) if isinstance(value, tuple) else value for key, value in options}
    return {"options": chosen} | ({} if weights is None else {"weights": list(weights)})


def _setting(
    levels: _Levels, tensor: str, models: Sequence[str], method: str, defaults: Mapping[str, Json]
) -> _Setting:
    """Return weights and options of one tensor."""
    if method == "slerp":
        return None, (("t", float(levels.value("t", tensor, None))),)
    options = dict(defaults)
    weights = [float(levels.value("weight", tensor, model)) for model in models]
    options["normalize"] = bool(levels.value("normalize", tensor, None, defaults["normalize"]))
    if method != "linear":
        options["scaling"] = float(levels.value("lambda", tensor, None, 1.0))
    if "density" in _PARAMETERS[method]:
        densities = [float(levels.value("density", tensor, model, 1.0)) for model in models]
        # A model of which nothing is kept changes nothing.
        weights = [weight if density else 0.0 for weight, density in zip(weights, densities, strict=True)]
        densities = [density or 1.0 for density in densities]
        options["density"] = densities[0] if len(set(densities)) == 1 else tuple(densities)
    if method != "linear" and not any(weights):  # nothing is added to the base
        weights, options["scaling"] = [1.0] * len(models), 0.0
    return tuple(weights), tuple(sorted(options.items()))


def _notes(document: Mapping[str, Json], method: str) -> list[str]:
    """Return what of a recipe has no counterpart, a line each."""
    notes = []
    given = {str(key) for parameters in _all_parameters(document) for key in parameters}
    if unused := sorted(given - {*_PARAMETERS[method], "int8_mask"}):
        notes.append(f"{', '.join(unused)}: not looked at by {method}")
    if any("int8_mask" in parameters for parameters in _all_parameters(document)):
        notes.append("int8_mask changes memory only, and is ignored")
    if tokens := [key for key in ("tokenizer_source", "tokenizer") if document.get(key) is not None]:
        notes.append(f"{tokens[0]}: tokenizers must be one and the same here; the first model's is copied")
    if method == "linear" and document.get("base_model") is not None:
        notes.append("base_model is not looked at by linear")
    if method.startswith("dare"):
        notes.append(
            "kept entries are divided by the density, as in the paper; mergekit rescales each tensor's L1 norm"
        )
    if document.get("dtype") is not None:
        notes.append("dtype is the type of the output; sums are rounded to it once")
    return notes
