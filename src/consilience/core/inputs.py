"""Inputs of a fusion under their names: objects in memory, training states among them, and files, opened once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from consilience.checks import Array
from consilience.errors import InputError, OptionError, Problem
from consilience.files.document import misplaced
from consilience.files.safetensors_file import SafetensorsFile, open_files

EQUAL = "equal"
"""The value of ``n_observations`` that says that all models count alike."""


@dataclass(frozen=True, eq=False, slots=True)  # there may be very many
class NamedInput:
    """A model that was handed in."""

    name: str  # what results, reports and provenance call it
    label: str  # what messages call it: its name, or the path that somebody typed
    model: Any = None  # the object in memory; None for a file
    file: SafetensorsFile | None = None  # the file; None for an object
    # The format that a file's document states; None for a plain checkpoint, a broken file, and an object
    format: str | None = None
    is_plain_checkpoint: bool = False  # whether it is a safetensors file without a document of ours


def name_inputs(models: Mapping[str, Any] | Sequence[Any]) -> tuple[NamedInput, ...]:
    """Return models under their names, every file's header read.

    A mapping says the names. In a sequence, objects are "model 0", "model 1", ... by their place, and files go by their
    stems; equal stems by the shortest end of their paths that tells them apart. Raises InputError for anything but a
    mapping or sequence, and names that are no text.
    """
    if isinstance(models, Mapping):
        return _of_mapping(models)
    if isinstance(models, str | Path) or not isinstance(models, Sequence):
        text = f"expected a list of models or paths, found {type(models).__name__}"
        raise InputError("models", text, "give two or more in a list, or a mapping of names to models", "E-COUNT")
    labels = [str(model) if isinstance(model, FILE_TYPES) else f"model {number}" for number, model in enumerate(models)]
    names = list(labels)
    places = [place for place, model in enumerate(models) if isinstance(model, FILE_TYPES)]
    for place, stem in zip(places, distinct_stems([labels[place] for place in places]), strict=True):
        names[place] = stem
    return _named(names, labels, models)


FILE_TYPES = (str, Path, SafetensorsFile)
"""What stands for a file among models."""


def _of_mapping(models: Mapping[Any, Any]) -> tuple[NamedInput, ...]:
    names = list(models)
    if odd := [name for name in names if not isinstance(name, str) or not name.strip()]:
        raise InputError("models", f"expected names that are texts, found {odd[0]!r}", code="E-TYPE")
    return _named(names, names, list(models.values()))


def _named(names: Sequence[str], labels: Sequence[str], models: Sequence[Any]) -> tuple[NamedInput, ...]:
    """Return inputs, all files opened together."""
    places = [place for place, model in enumerate(models) if isinstance(model, FILE_TYPES)]
    opened = open_files([models[place] for place in places], [labels[place] for place in places]) if places else []
    files = dict(zip(places, opened, strict=True))
    return tuple(
        NamedInput(name, label, None, files[place], files[place].stated_format, files[place].is_plain_checkpoint)
        if place in files
        else NamedInput(name, label, model)
        for place, (name, label, model) in enumerate(zip(names, labels, models, strict=True))
    )


def distinct_stems(paths: Sequence[str]) -> list[str]:
    """Return the stem of every path; where stems are equal, the shortest ends of the paths that tell them apart.

    A path that stands twice is told apart by its number.

    Examples
    --------
    >>> distinct_stems(["a/site.safetensors", "b/site.safetensors", "b/other.safetensors"])
    ['a/site', 'b/site', 'other']
    """
    parts = [Path(path).with_suffix("").parts if Path(path).name else (path,) for path in paths]
    names = [""] * len(paths)
    by_stem: dict[str, list[int]] = defaultdict(list)
    for place, own in enumerate(parts):
        by_stem[own[-1]].append(place)
    for places in by_stem.values():
        longest = max(len(parts[place]) for place in places)
        for length in range(1, longest + 1):
            ends = ["/".join(part.strip("/") for part in parts[place][-length:]) for place in places]
            if len(set(ends)) == len(places):
                break
        for place, end in zip(places, ends, strict=True):
            names[place] = end
    counts: dict[str, int] = defaultdict(int)
    for place, name in enumerate(names):
        counts[name] += 1
        if counts[name] > 1:
            names[place] = f"{name} ({counts[name]})"
    return names


def in_order(values: Any, names: Sequence[str], what: str) -> Any:
    """Return one value for each input, in their order; a mapping is looked up by the inputs' names.

    Anything but a mapping is returned as it is; `what` names the argument in messages. Raises OptionError for names
    that are missing or of no input.
    """
    if not isinstance(values, Mapping):
        return values
    if missing := [name for name in names if name not in values]:
        raise OptionError(what, f"has nothing for {', '.join(missing)}; the models are {', '.join(names)}")
    if odd := [str(name) for name in values if name not in names]:
        raise OptionError(what, f"{', '.join(odd)} is no model here; the models are {', '.join(names)}")
    return [values[name] for name in names]


def stated_numbers(n_observations: Any, names: Sequence[str]) -> list[float] | None:
    """Return one positive number for each model, in their order; None where nothing, or ``"equal"``, was said.

    Raises OptionError for anything but one finite positive number for each model, and names of no model.
    """
    if n_observations is None or (isinstance(n_observations, str) and n_observations == EQUAL):
        return None
    if isinstance(n_observations, str):
        raise OptionError("n_observations", f"expected numbers or 'equal', found {n_observations!r}")
    values = in_order(n_observations, names, "n_observations")
    try:
        numbers: Array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        text = f"expected {len(names)} numbers, one for each, found {values!r:.80}"
        raise OptionError("n_observations", text) from None
    if numbers.shape != (len(names),):
        raise OptionError("n_observations", f"expected {len(names)} numbers, one for each, found shape {numbers.shape}")
    if not np.all(np.isfinite(numbers) & (numbers > 0)):
        text = f"must be finite and positive, not zero or negative, found {numbers.tolist()}"
        raise OptionError("n_observations", text)
    return [float(number) for number in numbers]


def too_few_models(count: int) -> list[Problem]:
    """Return that there are too few models to fuse, in a line; none where there are two or more."""
    text, remedy = f"fusing takes at least two models, found {count}", "give a list, a mapping, a folder or a pattern"
    return [Problem("", text, remedy, "E-COUNT")] if count < 2 else []


def refuse_other_kind(one: NamedInput, expected: str, like: str | None = None) -> NoReturn:
    """Raise for a file that is not of the format that was expected: why it cannot be read, else what it is instead.

    `expected` says what files of the kind are called, "a draws file", and `like` names an input of it. FileFormatError
    is for what is no safetensors file with a JSON document, InputError for a file of another kind.
    """
    assert one.file is not None  # noqa: S101  (narrows the type; objects in memory have no format)
    _ = one.file.document  # which raises where it cannot be read
    text = f"is a plain checkpoint, expected {expected}" if one.format is None else misplaced(one.format, expected)[0]
    text += "" if like is None else f" as {like}"
    raise InputError(one.label, text, "fuse files of one kind", "E-MISMATCH")


REGISTERED_PACKAGES: set[str] = set()
"""Packages of the classes that adapters of others take (`register_adapter`)."""


def library_classes(model: object) -> frozenset[tuple[str, str]]:
    """Return the (library, name) of the class of a model and of all its bases.

    Examples
    --------
    >>> ("builtins", "dict") in library_classes({})
    True
    """
    return _library_classes(type(model))  # type: ignore[arg-type]  # classes are hashable, which mypy does not see


@lru_cache(maxsize=256)  # every adapter asks the same of every model
def _library_classes(kind: type) -> frozenset[tuple[str, str]]:
    return frozenset((base.__module__.split(".")[0], base.__name__) for base in kind.__mro__)


INNER_ROOM = "consilience.networks.gaussian"
"""The room within another one."""


def defined_in(model: object) -> frozenset[str]:
    """Return the packages that define the class of an object and its bases; of ours the room, "consilience.networks".

    Of Bayesian networks that is a room within another, "consilience.networks.gaussian".

    Examples
    --------
    >>> import consilience as cs
    >>> sorted(defined_in(cs.methods.KLFusion()))
    ['abc', 'builtins', 'consilience.core', 'consilience.posteriors']
    """
    return _defined_in(type(model))  # type: ignore[arg-type]  # as above


@lru_cache(maxsize=256)
def _defined_in(kind: type) -> frozenset[str]:
    parts = [base.__module__.split(".") for base in kind.__mro__]
    depths = (3 if one[:3] == INNER_ROOM.split(".") else 2 if one[0] == "consilience" else 1 for one in parts)
    return frozenset(".".join(one[:depth]) for one, depth in zip(parts, depths, strict=True))


_MODULE_REMEDY = "hand in the module, or `module.state_dict()`"


def training_state_problem(model: object) -> Problem | None:
    """Return that an object is a checkpoint dictionary or an optimiser, and what of it to hand in; None for others.

    Examples
    --------
    >>> training_state_problem({"state": {}, "param_groups": []}).text
    'is the state of an optimiser, not of a model'
    """
    if isinstance(model, Mapping):
        for key, value in model.items():
            if _is_state_dict(value) and not str(key).startswith(("optim", "opt_", "sched")):
                text = f"is a training checkpoint, whose weights are under {key!r}"
                return Problem("", text, f"hand in checkpoint[{key!r}]", "E-MODEL")
        if "param_groups" in model:
            return Problem("", "is the state of an optimiser, not of a model", _MODULE_REMEDY, "E-MODEL")
    elif hasattr(model, "param_groups") and hasattr(model, "zero_grad"):
        return Problem("", f"is an optimiser ({type(model).__name__}), not a model", _MODULE_REMEDY, "E-MODEL")
    return None


def _is_state_dict(value: object) -> bool:
    """Return whether a value is a mapping of names to tensors."""
    return isinstance(value, Mapping) and any(
        isinstance(name, str) and hasattr(tensor, "is_floating_point") for name, tensor in value.items()
    )
