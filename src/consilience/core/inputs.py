"""Inputs of a fusion under their names: objects in memory, and files that are opened and hashed once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consilience.errors import InputError, OptionError
from consilience.files.safetensors_file import SafetensorsFile, open_files


@dataclass(frozen=True, eq=False)
class NamedInput:
    """A model that was handed in.

    Parameters
    ----------
    name
        What results, reports and provenance call it.
    label
        What messages call it: its name, or the path that somebody typed.
    model
        The object in memory; None for a file.
    file
        The file; None for an object.
    """

    name: str
    label: str
    model: Any = None
    file: SafetensorsFile | None = None

    @property
    def format(self) -> str | None:
        """The format that a file's document states; None for a plain checkpoint, a broken file, and an object."""
        try:
            return None if self.file is None else self.file.format
        except InputError:  # whoever reads it says it better
            return None

    @property
    def is_plain_checkpoint(self) -> bool:
        """Whether it is a safetensors file without a document of ours."""
        try:
            return self.file is not None and self.file.header().text is None
        except InputError:
            return False


def name_inputs(models: Mapping[str, Any] | Sequence[Any]) -> tuple[NamedInput, ...]:
    """Return models under their names, every file's header read.

    Parameters
    ----------
    models : mapping of str to model, or sequence of models
        Objects, paths, or opened files. A mapping says the names. In a sequence, objects are "model 0", "model 1", ...
        by their place, and files go by their stems; equal stems by the shortest end of their paths that tells them
        apart.

    Raises
    ------
    InputError
        For anything but a mapping or sequence, and names that are no text.
    """
    if isinstance(models, Mapping):
        return _of_mapping(models)
    if isinstance(models, str | Path) or not isinstance(models, Sequence):
        raise InputError(f"models: expected a list of models or paths, found {type(models).__name__}")
    is_file = [isinstance(model, str | Path | SafetensorsFile) for model in models]
    paths = [model for model, file in zip(models, is_file, strict=True) if file]
    labels = [str(path) for path in paths]
    files = iter(_opened(paths, labels))
    stems = iter(distinct_stems(labels))
    return tuple(
        NamedInput(next(stems), label, file=next(files)) if file else NamedInput(label, label, model)
        for model, file, label in zip(models, is_file, _labels(models, is_file), strict=True)
    )


def _of_mapping(models: Mapping[Any, Any]) -> tuple[NamedInput, ...]:
    names = list(models)
    if odd := [name for name in names if not isinstance(name, str) or not name.strip()]:
        raise InputError(f"models: expected names that are texts, found {odd[0]!r}")
    paths = {name: model for name, model in models.items() if isinstance(model, str | Path | SafetensorsFile)}
    files = dict(zip(paths, _opened(list(paths.values()), list(paths)), strict=True))
    return tuple(
        NamedInput(name, name, file=files[name]) if name in files else NamedInput(name, name, model)
        for name, model in models.items()
    )


def _labels(models: Sequence[Any], is_file: Sequence[bool]) -> list[str]:
    return [
        str(model) if file else f"model {number}"
        for number, (model, file) in enumerate(zip(models, is_file, strict=True))
    ]


def _opened(paths: Sequence[Any], labels: Sequence[str]) -> list[SafetensorsFile]:
    """Return files opened under their labels; those that are open already are taken as they are."""
    closed = [place for place, path in enumerate(paths) if not isinstance(path, SafetensorsFile)]
    opened = open_files([paths[place] for place in closed], [labels[place] for place in closed])
    files: list[SafetensorsFile] = [
        path.called(label) if isinstance(path, SafetensorsFile) else SafetensorsFile(path)
        for path, label in zip(paths, labels, strict=True)
    ]
    for place, file in zip(closed, opened, strict=True):
        files[place] = file
    return files


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

    Parameters
    ----------
    values : mapping of str to value, sequence, or None
        What the caller gave; anything but a mapping is returned as it is.
    names
        The inputs' names.
    what
        Name of the argument, for messages.

    Raises
    ------
    OptionError
        For names that are missing or of no input.
    """
    if not isinstance(values, Mapping):
        return values
    if missing := [name for name in names if name not in values]:
        raise OptionError(f"{what}: has nothing for {', '.join(missing)}; the models are {', '.join(names)}")
    if odd := [str(name) for name in values if name not in names]:
        raise OptionError(f"{what}: {', '.join(odd)} is no model here; the models are {', '.join(names)}")
    return [values[name] for name in names]


def files_given_twice(inputs: Sequence[NamedInput]) -> list[str]:
    """Return which files have the same contents as an earlier one, a line each; only files of equal size are hashed."""
    problems: list[str] = []
    by_size: dict[int, list[NamedInput]] = defaultdict(list)
    for one in inputs:
        if one.file is None:
            continue
        try:
            size = one.file.path.stat().st_size
        except (OSError, ValueError):  # said by whoever reads it
            continue
        alike = by_size[size]
        first = next((other for other in alike if other.file and other.file.digest == one.file.digest), None)
        if first is None:
            alike.append(one)
        else:
            problems.append(f"{one.label}: is the same file as {first.label}; leave one out")
    return problems
