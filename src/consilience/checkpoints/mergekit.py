"""Recipes of mergekit, read as they are: every method of version 0.1.5 by its name there.

A parameter is looked up at a model (or a source of a slice), then at its slice, then at the top. Its value is

- a number,
- a list of numbers, the gradient: layer i of the L layers of a slice takes the value at t = i / (L - 1), by linear
  interpolation between the entries of the list; tensors outside of layers take the first entry, also those after them,
- a list of filters: the first whose ``filter`` is "*", missing, or a part of the tensor's name; where none matches, the
  next level is looked at.

Tensors before the layers are of the first slice, those after them of the last. That is what mergekit does. What differs
is arithmetic: mergekit rounds after every operation, takes int(p n) entries where this library takes round(p n), and
rescales DARE and DELLA to the L1 norm of a tensor where this library divides by an entry's own probability, as the
papers do (docs/guides/checkpoints.md). Weights are computed for every tensor by name, so headers are read here.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from consilience.catalogue import suggestion
from consilience.checkpoints.folder import Checkpoint
from consilience.checkpoints.layers import (
    LAYER,
    LayerRange,
    ModuleSlices,
    Slices,
    layer_counts,
    number_of_layers,
    place_in_slices,
    plain_slices,
    stacked,
    tensors_by_module,
)
from consilience.checkpoints.lora.into_base import open_model
from consilience.checkpoints.methods import OTHER_NAMES
from consilience.checks import Json
from consilience.errors import FileFormatError
from consilience.files.opening import read_text

BaseRole = Literal["none", "needed", "optional", "end", "model"]
"""What ``base_model`` is to a method: nothing, the common start, one where it is given, the first of two models, or one
model among the others."""


@dataclass(frozen=True)
class KnownMethod:
    """A method of mergekit, in words of this library."""

    name: str  # our method
    options: Mapping[str, Json] = field(default_factory=dict)  # our options that its name says
    # By mergekit's parameter our option and mergekit's default; None where it must be given.
    parameters: Mapping[str, tuple[str, Json]] = field(default_factory=dict)
    base: BaseRole = "needed"
    is_weighted: bool = True  # whether models have a weight, which must be given

    @property
    def takes(self) -> tuple[str, ...]:
        """Names of mergekit's parameters."""
        return (*(("weight",) if self.is_weighted else ()), *self.parameters)


def alias(method: str) -> tuple[str, dict[str, Json]] | None:
    """Return our method and the options that a name of mergekit or of a paper says; None for any other name.

    Examples
    --------
    >>> alias("dare_ties")
    ('dare', {'combine': 'ties', 'normalize': False})
    """
    if method in OTHER_NAMES:
        return OTHER_NAMES[method]
    known = METHODS.get(method)
    if known is None or known.name == method:
        return None
    defaults = {option: value for option, value in known.parameters.values() if option in ("normalize", "boost")}
    return known.name, {**known.options, **defaults}


def _task(normalize: bool, **more: tuple[str, Json]) -> dict[str, tuple[str, Json]]:
    """Return the parameters of a method for changes of a base."""
    return {"normalize": ("normalize", normalize), "lambda": ("scaling", 1.0), **more}


_DENSITY, _RESCALE = ("density", 1.0), ("rescale", True)
_CRUMBS, _DELLA = {"density": _DENSITY, "gamma": ("gamma", 0.01)}, {"density": _DENSITY, "epsilon": ("epsilon", 0.15)}
METHODS: Mapping[str, KnownMethod] = {
    "linear": KnownMethod("average", {}, {"normalize": ("normalize", True)}, "none"),
    "slerp": KnownMethod("slerp", {}, {"t": ("t", None)}, "end", False),
    "nuslerp": KnownMethod(
        "nuslerp", {}, {"nuslerp_flatten": ("axis", True), "nuslerp_row_wise": ("axis", False)}, "optional"
    ),
    "multislerp": KnownMethod(
        "multislerp", {}, {"normalize_weights": ("normalize", True), "eps": ("", 1e-8)}, "optional"
    ),
    "karcher": KnownMethod(
        "karcher", {}, {"max_iter": ("max_iterations", 10), "tol": ("tolerance", 1e-5)}, "model", False
    ),
    "task_arithmetic": KnownMethod("task_arithmetic", {}, _task(False)),
    "ties": KnownMethod("ties", {}, _task(True, density=_DENSITY)),
    "dare_linear": KnownMethod("dare", {"combine": "linear"}, _task(False, density=_DENSITY, rescale=_RESCALE)),
    "dare_ties": KnownMethod("dare", {"combine": "ties"}, _task(False, density=_DENSITY, rescale=_RESCALE)),
    "breadcrumbs": KnownMethod("breadcrumbs", {"combine": "linear"}, _task(False, **_CRUMBS)),
    "breadcrumbs_ties": KnownMethod("breadcrumbs", {"combine": "ties"}, _task(False, **_CRUMBS)),
    "della": KnownMethod("della", {"combine": "ties"}, _task(True, rescale=_RESCALE, **_DELLA)),
    "della_linear": KnownMethod("della", {"combine": "linear"}, _task(False, rescale=_RESCALE, **_DELLA)),
    "model_stock": KnownMethod("model_stock", {}, {"filter_wise": ("axis", False)}, is_weighted=False),
    "sce": KnownMethod("sce", {}, {"select_topk": ("select", 1.0)}, is_weighted=False),
    "ram": KnownMethod("ram", {}, {"epsilon": ("epsilon", 1e-5)}, is_weighted=False),
    "ramplus_tl": KnownMethod(
        "ram", {}, {"epsilon": ("epsilon", 1e-5), "r": ("boost", 0.1), "alpha": ("limit", 0.2)}, is_weighted=False
    ),
    "nearswap": KnownMethod("nearswap", {}, {"t": ("t", None)}, is_weighted=False),
    "arcee_fusion": KnownMethod("arcee_fusion", {}, {}, is_weighted=False),
    "passthrough": KnownMethod("passthrough", {}, {"scale": ("scale", 1.0)}, "none", False),
}
"""Every method of mergekit, by its name there."""

_KEYS = (
    "merge_method", "models", "slices", "modules", "base_model", "parameters", "dtype", "out_dtype", "tokenizer_source",
    "tokenizer", "chat_template", "name",
)  # fmt: skip
"""Keys of a recipe that are understood."""
_FORMS = ("models", "slices", "modules")
"""Of these, what says whose tensors are merged; a recipe has one."""

_EVERY_PARAMETER = frozenset(name for method in METHODS.values() for name in method.takes)
"""Parameters of any method."""

_REMEDY = "write it as a recipe of this library (docs/guides/checkpoints.md), or leave it out"


def is_mergekit(document: Any) -> bool:
    """Return whether the document of a recipe has mergekit's form."""
    if not isinstance(document, Mapping):
        return False
    models = document.get("models")
    named = isinstance(models, list) and any(isinstance(model, Mapping) for model in models)
    others = ("merge_method", "modules", "base_model", "gate_mode", "experts")
    return named or any(key in document for key in others) or _has_sources(document.get("slices"))


def _has_sources(slices: Any) -> bool:
    """Return whether slices are mergekit's."""
    return isinstance(slices, list) and any(isinstance(part, Mapping) for part in slices)


@dataclass(frozen=True)
class _Source:
    """A model of a slice, with its own parameters, and its layers; None for all."""

    model: str
    parameters: Mapping[str, Json]
    layers: tuple[int, int] | None = None


@dataclass(frozen=True)
class _Slice:
    """Some layers: their range (None for all), their models, and the parameters and the base that these share."""

    layers: tuple[int, int] | None
    sources: tuple[_Source, ...]
    parameters: Mapping[str, Json]
    base: str | None = None


@dataclass(frozen=True)
class _Module:
    """The slices of a module ("" is the whole model), and the parameters that these share."""

    name: str
    slices: tuple[_Slice, ...]
    parameters: Mapping[str, Json] = field(default_factory=dict)


def from_mergekit(path: Path, document: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a recipe of mergekit in the form of `MergeRecipe`, and notes on what has no counterpart.

    `path` is for messages, and for models that lie beside the recipe's file. Raises FileFormatError for what cannot be
    translated: by name, with what there is.
    """
    _refuse_unknown(path, document)
    method = str(document["merge_method"])
    known = METHODS[method]
    stated = _model_name(path, document["base_model"]) if document.get("base_model") is not None else None
    modules = _modules(path, document)
    base = _common_base(path, method, modules, stated)
    modules = [replace(one, slices=_with_base(path, method, one.slices, stated)) for one in modules]
    models = list(dict.fromkeys(source.model for one in modules for part in one.slices for source in part.sources))
    places = {model: _place(path, model) for model in [*models, *([base] if base is not None else [])]}
    opened = {model: open_model(Path(places[model])) for model in models}
    first_slice = modules[0].slices[0]
    fields: dict[str, Json] = {"models": [places[source.model] for source in first_slice.sources], "method": known.name}
    first = opened[first_slice.sources[0].model]
    if ranges := _ranges(path, modules, models, opened):
        fields["models"] = [places[model] for model in models]
        fields["slices"] = plain_slices(ranges)
        first = stacked({
            one.module: [(opened[models[part[0].model]], part[0]) for part in one.parts] for one in ranges
        })  # fmt: skip
    levels = _Levels(path, method, modules, document.get("parameters") or {}, first)
    default, tensors = _settings(levels, first, known)
    fields |= {"tensors": tensors, **default}
    if base is not None and known.base in ("needed", "optional"):
        fields["base"] = places[base]
    dtype = document.get("out_dtype") or document.get("dtype")
    if dtype is not None:
        fields["dtype"] = str(dtype)
    if document.get("chat_template") is not None:
        fields["chat_template"] = str(document["chat_template"])
    if _says_tokens(document):
        merged = [source.model for source in first_slice.sources]
        if base is not None and base not in merged:
            fields["base"] = places[base]
        fields["vocabulary"] = _vocabulary(path, document, [] if "slices" in fields else merged, base)
    return fields, _notes(document, method)


def _says_tokens(document: Mapping[str, Any]) -> bool:
    """Return whether a recipe says which tokens the output has."""
    return any(document.get(key) is not None for key in ("tokenizer_source", "tokenizer"))


def _vocabulary(path: Path, document: Mapping[str, Any], models: Sequence[str], base: str | None) -> dict[str, Json]:
    """Return which tokens the output has, in the words of `merge`."""
    stated = document.get("tokenizer") or {}
    if not isinstance(stated, Mapping):
        raise FileFormatError(path, f"tokenizer must be a mapping, found {stated!r:.40}", "give source")
    if unknown := [str(key) for key in stated if key not in ("source", "tokens", "pad_to_multiple_of")]:
        raise FileFormatError(path, f"tokenizer has {', '.join(unknown)}, which is not understood", _REMEDY, "E-RECIPE")

    def number(source: Any) -> int | str:
        name = _model_name(path, source)
        name = name if name in (*models, base) else name.removeprefix("model:")
        if name == base and name not in models:
            return "base"
        if name not in models:
            raise FileFormatError(path, f"takes tokens of {name}, which is not merged", "name one of the models")
        return models.index(name)

    source = stated.get("source") or document.get("tokenizer_source") or "base"
    if source == "base" and base in models:
        source = base
    tokens: dict[str, Json] = {}
    for token, rule in (stated.get("tokens") or {}).items():
        of = rule.get("source") if isinstance(rule, Mapping) else None
        kind = of.get("kind") if isinstance(of, Mapping) else None
        made: dict[str, Json] = {"force": bool(rule.get("force", False)) if isinstance(rule, Mapping) else False}
        if kind == "zero":
            made["from"] = "zero"
        elif kind == "model_token" and isinstance(of, Mapping) and isinstance(of.get("token"), str):
            made |= {"from": number(of.get("model")), "token": of["token"]}
        elif of is not None and kind is None:
            made["from"] = number(of)
        else:
            text = f"says of token {token!r} what is not understood: {rule!r:.60}"
            raise FileFormatError(path, text, "give source: MODEL, kind: zero, or kind: model_token with token")
        tokens[str(token)] = made
    return {
        "source": str(source) if source in ("base", "union") else number(source),
        "tokens": tokens,
        "multiple_of": stated.get("pad_to_multiple_of") or 1,
    }


def _common_base(path: Path, method: str, modules: Sequence[_Module], stated: str | None) -> str | None:
    """Return what all models are changes of: as the recipe says, or all of its slices; None where nobody does."""
    bases = {part.base or stated for one in modules for part in one.slices}
    if len(bases) > 1 and METHODS[method].base in ("needed", "optional"):
        raise FileFormatError(path, "slices are changes of different base models", "merge them in recipes of their own")
    return stated if len(bases) > 1 else bases.pop()


def _with_base(path: Path, method: str, slices: Sequence[_Slice], stated: str | None) -> tuple[_Slice, ...]:
    """Return slices of the models to merge: with a base that is one of them, without one that they are changes of."""
    role = METHODS[method].base
    made = []
    for part in slices:
        base = part.base or stated
        if base is None and role in ("needed", "end"):
            text = "the end at t = 0" if role == "end" else "what all were trained from"
            raise FileFormatError(path, f"method {method} needs a base_model, {text}", "name it")
        sources = part.sources
        own = [source for source in sources if source.model == base]
        others = tuple(source for source in sources if source.model != base)
        if role in ("needed", "optional"):
            sources = others
            if moved := [one for one in own if others and one.layers != others[0].layers]:
                text = f"a slice takes layers {moved[0].layers} of the base and {others[0].layers} of a change of it"
                raise FileFormatError(path, text, "give both the same layer_range")
        elif base is not None and role in ("end", "model"):
            layers = part.layers if own or part.layers is None else sources[0].layers
            sources = (own[0] if own else _Source(base, {}, layers), *others)
        if not sources:
            raise FileFormatError(path, "names no models to merge", "list them under models")
        if role == "end" and len(sources) != 2:
            raise FileFormatError(path, f"method {method} takes two models, found {len(sources)}", "leave others out")
        if method == "passthrough" and len(sources) != 1:
            raise FileFormatError(path, f"method {method} takes one model, found {len(sources)}", "leave others out")
        made.append(replace(part, sources=sources))
    return tuple(made)


def _ranges(path: Path, modules: Sequence[_Module], models: Sequence[str], opened: Mapping[str, Checkpoint]) -> Slices:
    """Return the layers of every source of every slice; none where the models are merged whole, as they are listed."""
    listed = {tuple(source.model for source in part.sources) for one in modules for part in one.slices}
    if len(listed) == 1 and not any(part.layers for one in modules for part in one.slices):
        return ()
    keys = [one.name for one in modules]
    counts = {
        model: {name: number_of_layers(own) for name, own in tensors_by_module(checkpoint, keys).items()}
        for model, checkpoint in opened.items()
    }
    ranges = tuple(
        ModuleSlices(one.name, tuple(_layers_of(path, part, one.name, models, counts) for part in one.slices))
        for one in modules
    )
    is_plain = keys == [""] and len(models) == len(ranges[0].parts[0]) and _covers(ranges[0].parts, counts)
    return () if is_plain else ranges


def _layers_of(
    path: Path, part: _Slice, module: str, models: Sequence[str], counts: Mapping[str, Mapping[str, int]]
) -> tuple[LayerRange, ...]:
    """Return the layers of every source of a slice; `counts` are of all layers by model and module."""
    made = []
    for source in part.sources:
        count = counts[source.model][module]
        first, stop = source.layers or (0, count)
        if count == 0:
            first, stop = 0, 0  # a module without layers is taken whole
        elif not 0 <= first < stop <= count:
            text = f"a slice takes layers {first} to {stop} of {source.model}, which has {count}"
            raise FileFormatError(path, text, "correct its layer_range")
        made.append(LayerRange(models.index(source.model), first, stop))
    if len({len(one) for one in made}) > 1:
        raise FileFormatError(path, "the sources of a slice have unequal numbers of layers", "give each as many")
    return tuple(made)


def _covers(parts: Sequence[Sequence[LayerRange]], counts: Mapping[str, Mapping[str, int]]) -> bool:
    """Return whether slices are all layers in order, of the same models in every one."""
    for place, source in enumerate(parts[0]):
        expected = 0
        for part in parts:
            if len(part) != len(parts[0]) or part[place].model != source.model or part[place].first != expected:
                return False
            expected = part[place].stop
        if expected != max(count for of_model in counts.values() for count in of_model.values()):
            return False
    return True


def _refuse_unknown(path: Path, document: Mapping[str, Json]) -> None:
    """Raise for methods, keys and parameters that have no counterpart here."""
    if other := [key for key in ("gate_mode", "experts") if key in document]:
        raise FileFormatError(path, f"has {other[0]}, a key of mergekit-moe, which makes mixtures of experts", _REMEDY)
    method = document.get("merge_method")
    there_are = ", ".join(METHODS)
    if method is None:
        raise FileFormatError(path, "has mergekit's form and no merge_method", f"give one of {there_are}")
    if method not in METHODS:
        text = f"method {method!r} does not exist{suggestion(str(method), METHODS)}; there are {there_are}"
        raise FileFormatError(path, text, "choose one of these", "E-METHOD")
    if unknown := [str(key) for key in document if key not in _KEYS]:
        hints = [f"{key}{suggestion(key, _KEYS)}" for key in unknown]
        raise FileFormatError(path, f"has {', '.join(hints)}, which is not understood", _REMEDY, "E-RECIPE")
    if sum(key in document for key in _FORMS) != 1:
        raise FileFormatError(path, "needs models, slices or modules, one of them", "leave the others out")
    for parameters in _all_parameters(document):
        _refuse_parameters(path, str(method), parameters)


def _refuse_parameters(path: Path, method: str, parameters: Any) -> None:
    """Raise for parameters that no method of mergekit has; those of other methods are passed over, with a note."""
    if not isinstance(parameters, Mapping):
        raise FileFormatError(path, f"parameters must be a mapping, found {parameters!r:.40}", "name each")
    if unknown := [str(key) for key in parameters if key not in (*_EVERY_PARAMETER, "int8_mask")]:
        takes = ", ".join(METHODS[method].takes)
        hints = [f"{key}{suggestion(key, METHODS[method].takes)}" for key in unknown]
        text = f"method {method!r} has no parameter {', '.join(hints)}; it has {takes}"
        raise FileFormatError(path, text, "leave it out", "E-RECIPE")


def _all_parameters(document: Mapping[str, Any]) -> list[Any]:
    """Return the parameters of all levels."""
    modules = document.get("modules")
    holders = [document, *(modules.values() if isinstance(modules, Mapping) else ())]
    entries: list[Any] = list(holders)
    for holder in holders:
        for key in ("models", "slices") if isinstance(holder, Mapping) else ():
            for entry in holder.get(key) or ():
                entries.append(entry)
                entries += (entry.get("sources") or []) if isinstance(entry, Mapping) else []
    found = (entry.get("parameters") for entry in entries if isinstance(entry, Mapping))
    return [parameters for parameters in found if parameters is not None]


def _modules(path: Path, document: Mapping[str, Any]) -> list[_Module]:
    """Return the modules of a recipe; without any, the whole model is one."""
    if "modules" not in document:
        return [_Module("", _slices(path, document))]
    stated = document["modules"]
    if not isinstance(stated, Mapping) or not stated:
        raise FileFormatError(path, f"modules must be a mapping, found {stated!r:.40}", "list models or slices of each")
    made = []
    for name, module in stated.items():
        if not isinstance(module, Mapping) or ("models" in module) == ("slices" in module):
            raise FileFormatError(path, f"module {name} needs models or slices, one of them", "leave the other out")
        if unknown := [str(key) for key in module if key not in ("models", "slices", "parameters")]:
            raise FileFormatError(path, f"module {name} has {', '.join(unknown)}, which is not understood", _REMEDY)
        made.append(_Module(str(name), _slices(path, module), module.get("parameters") or {}))
    return made


def _slices(path: Path, document: Mapping[str, Json]) -> tuple[_Slice, ...]:
    """Return the slices of a recipe or module; models without slices are one slice of all layers."""
    if "models" in document:
        sources = tuple(_source(path, entry) for entry in _entries(path, document["models"], "models"))
        return (_Slice(None, sources, {}),)
    slices = []
    for part in _entries(path, document["slices"], "slices"):
        if not isinstance(part, Mapping) or not isinstance(part.get("sources"), list):
            raise FileFormatError(path, "a slice needs sources", "list the models of every slice")
        if unknown := [str(key) for key in part if key not in ("sources", "parameters", "base_model")]:
            raise FileFormatError(path, f"a slice has {', '.join(unknown)}, which is not understood", _REMEDY)
        ranges = [_layer_range(entry) for entry in part["sources"]]
        if not ranges or None in ranges:
            raise FileFormatError(path, "a source needs layer_range: [first, last + 1]", "give both numbers")
        sources = tuple(
            replace(_source(path, entry), layers=layers) for entry, layers in zip(part["sources"], ranges, strict=True)
        )
        base = None if part.get("base_model") is None else _model_name(path, part["base_model"])
        slices.append(_Slice(ranges[0], sources, part.get("parameters") or {}, base))
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
        if unknown := [str(key) for key in model if key not in ("model", "path", "revision", "lora") and model[key]]:
            raise FileFormatError(path, f"a model has {', '.join(unknown)}, which is not understood", _REMEDY)
        if model.get("lora"):
            rest = {key: value for key, value in model.items() if key != "lora"}
            return f"{_model_name(path, rest)}+{_model_name(path, model['lora'])}"
        if isinstance(inner, Mapping) and isinstance(inner.get("path"), str):
            revision = inner.get("revision")
            return inner["path"] if revision is None else f"{inner['path']}@{revision}"
        model = inner
    if not isinstance(model, str) or not model:
        raise FileFormatError(path, f"a model must be a path or a name on the hub, found {model!r:.60}", "name it")
    return model


def _place(recipe: Path, model: str) -> str:
    """Return where a model lies: beside the recipe, here, or in the hub's cache."""
    beside = recipe.parent / model
    if os.path.exists(beside):
        return str(beside)
    if "+" in model:
        return "+".join(_place(recipe, part) for part in model.split("+"))
    place = where_model_lies(model)
    if os.path.exists(place):
        return place
    text = f"{model} is no folder next to it or here, nor in the hub's cache"
    raise FileFormatError(recipe, text, f"fetch it: hf download {model.partition('@')[0]}")


def where_model_lies(model: str) -> str:
    """Return the path of a model that is one, or of its snapshot in the hub's cache; else the text as it is."""
    if os.path.exists(model):
        return model
    if "+" in model:
        return "+".join(where_model_lies(part) for part in model.split("+"))
    name, _, revision = model.partition("@")
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{name.replace('/', '--')}"
    reference = cache / "refs" / (revision or "main")
    commit = read_text(reference).strip() if os.path.isfile(reference) else revision
    if commit and os.path.isdir(snapshot := cache / "snapshots" / commit) and snapshot.parent == cache / "snapshots":
        return str(snapshot)
    return model


class _Levels:
    """The parameters of a recipe at all levels, looked up by tensor and model."""

    def __init__(
        self, path: Path, method: str, modules: Sequence[_Module], top: Mapping[str, Any], merged: Checkpoint
    ) -> None:
        self._path, self._method, self._top = path, method, top
        self._counts = layer_counts(merged)
        names = tensors_by_module(merged, [one.name for one in modules])
        self._module_of = {name: one for one in modules for name in names[one.name]}

    def count(self, tensor: str) -> int:
        """Return the number of models that a tensor is merged of."""
        return len(self._position(tensor)[0].sources)

    def value(self, parameter: str, tensor: str, place: int | None, default: Any = None) -> Any:
        """Return the value of a parameter for a tensor of a source, or of all; the default where nobody gives one.

        Raises FileFormatError without a value and a default, and for values that are none.
        """
        part, position = self._position(tensor)
        sources = [] if place is None else [part.sources[place].parameters]
        for level in (*sources, part.parameters, self._module_of[tensor].parameters, self._top):
            if parameter in level:
                value = self._resolved(level[parameter], parameter, tensor, position)
                if value is not None:
                    return value
        if default is None:
            of = "" if place is None else f" of {part.sources[place].model}"
            raise FileFormatError(self._path, f"nothing says the {parameter} of {tensor}{of}", f"give {parameter}")
        return default

    def _position(self, tensor: str) -> tuple[_Slice, float]:
        """Return the slice of a tensor and its place in it from 0 to 1: before the layers the first, after the last."""
        slices = self._module_of[tensor].slices
        match = LAYER.match(tensor)
        lengths = [
            part.layers[1] - part.layers[0] if part.layers else self._counts[match["stem"]] if match else 0
            for part in slices
        ]
        number, position = place_in_slices(tensor, lengths)
        return slices[number], position

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


def _settings(levels: _Levels, first: Checkpoint, known: KnownMethod) -> tuple[dict[str, Json], list[dict[str, Json]]]:
    """Return weights and options of most tensors, and rules for the others, by layer where a layer has one setting."""
    by_tensor = {tensor: _setting(levels, tensor, levels.count(tensor), known) for tensor in first.tensors}
    common, _ = Counter(by_tensor.values()).most_common(1)[0]
    by_layer: dict[str, list[str]] = {}
    for tensor in by_tensor:
        if match := LAYER.match(tensor):
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
    return _fields(common), [
        {"pattern": pattern, "method": known.name, **_fields(setting)} for pattern, setting in rules
    ]


def _fields(setting: _Setting) -> dict[str, Json]:
    weights, options = setting
    chosen = {key: list(value) if isinstance(value, tuple) else value for key, value in options}
    return {"options": chosen} | ({} if weights is None else {"weights": list(weights)})


def _setting(levels: _Levels, tensor: str, count: int, known: KnownMethod) -> _Setting:
    """Return weights and options of one tensor."""
    options: dict[str, Any] = dict(known.options)
    weights = [float(levels.value("weight", tensor, place)) for place in range(count)] if known.is_weighted else None
    for parameter, (option, default) in known.parameters.items():
        if parameter == "density" and known.name in ("ties", "dare"):
            densities = [float(levels.value("density", tensor, place, default)) for place in range(count)]
            assert weights is not None  # noqa: S101  (both are weighted)
            # A model of which nothing is kept changes nothing.
            weights = [weight if density else 0.0 for weight, density in zip(weights, densities, strict=True)]
            densities = [density or 1.0 for density in densities]
            options["density"] = densities[0] if len(set(densities)) == 1 else tuple(densities)
        elif option and option != "axis":
            # What belongs to one model here may stand at it there.
            place = 0 if count == 1 else None
            value = levels.value(parameter, tensor, place, default)
            options[option] = bool(value) if isinstance(default, bool) else value
    options |= _converted(levels, tensor, known, options)
    if weights is not None and "scaling" in options and not any(weights):  # nothing is added to the base
        weights, options["scaling"] = [1.0] * count, 0.0
    return None if weights is None else tuple(weights), tuple(sorted(options.items()))


def _converted(levels: _Levels, tensor: str, known: KnownMethod, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that say the same in other words."""
    if known.name == "nuslerp":
        if levels.value("nuslerp_flatten", tensor, None, True):
            return {"axis": None}
        return {"axis": "columns" if levels.value("nuslerp_row_wise", tensor, None, False) else "rows"}
    if known.name == "model_stock":
        return {"axis": "rows" if levels.value("filter_wise", tensor, None, False) else None}
    if known.name == "breadcrumbs":  # of more than all, less is dropped at the top
        return {"gamma": min(float(options["gamma"]), 1.0 - float(options["density"]))}
    return {}


def _notes(document: Mapping[str, Json], method: str) -> list[str]:
    """Return what of a recipe has no counterpart, a line each."""
    notes = []
    given = {str(key) for parameters in _all_parameters(document) for key in parameters}
    if unused := sorted(given - {*METHODS[method].takes, "int8_mask"}):
        notes.append(f"{', '.join(unused)}: not looked at by {method}")
    if any("int8_mask" in parameters for parameters in _all_parameters(document)):
        notes.append("int8_mask changes memory only, and is ignored")
    if METHODS[method].base == "none" and document.get("base_model") is not None and not _says_tokens(document):
        notes.append(f"base_model is not looked at by {method}")
    if "rescale" in METHODS[method].parameters:
        notes.append(
            "kept entries are divided by their probability, as in the paper; mergekit rescales each tensor's L1 norm"
        )
    if method == "multislerp":
        notes.append("multislerp is the mean of directions, which mergekit's is too: its step in the tangent is zero")
    if document.get("dtype") is not None:
        notes.append("dtype is the type of the output; sums are rounded to it once")
    return notes
