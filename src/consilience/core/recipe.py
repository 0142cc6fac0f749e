"""Recipes: a fusion as a YAML file that one can review, keep and run again."""

from __future__ import annotations

import glob
import os
import re
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from consilience.catalogue import suggestion, unreadable
from consilience.errors import FileFormatError, InputError
from consilience.files.opening import read_file

Model = TypeVar("Model", bound=BaseModel)


class Recipe(BaseModel):
    """Arguments of ``consilience fuse``, as on its command line; paths are relative to the recipe's folder.

    The last eight are for networks. ``module`` and ``target`` only say which modules were meant: a recipe is a file,
    and no file makes the command import anything unless the command line allows it.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    models: list[str] = Field(default_factory=list)
    method: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    weights: list[float] | None = None
    n_observations: list[float] | Literal["equal"] | None = None
    seed: int | None = Field(default=None, ge=0)
    output: str | None = None
    report: str | None = None
    module: str | None = None
    example: str | list[str] | None = None
    symmetry: str | None = None
    target: str | None = None
    target_widths: dict[str, int] | None = None
    inputs: str | None = None
    classes: Literal["union"] | None = None
    reference: int | None = Field(default=None, ge=0)


_MAX_BYTES = 2**17
"""Bytes of a recipe at most: a merge of 100 models with a rule for each of 1,000 tensors has as many. PyYAML scans half
a megabyte a second, whatever is in it."""
_MAX_EVENTS = 20_000
"""Values and brackets of a document at most: as many are scanned in half a second, and take 13 MB."""
_MAX_NESTING = 64
"""Levels of lists and mappings at most, as of JSON (`files.document`)."""
_MAX_SCALAR = 4096
"""Characters of a value at most. A chat template has some 2,000."""
_MAX_DIGITS = 20
"""Digits of an integer at most, those of 2^64: beyond 4,300, Python refuses to write one."""
_MAX_SHOWN = 60
"""Characters of a value that a message shows."""

_INTEGER = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO]?[0-7_]+|[0-9][0-9_]*)$")
_FLOAT = re.compile(
    r"(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)"
    r"|\.(?:nan|NaN|NAN))$"
)


class _Loader(yaml.SafeLoader):
    """Safe YAML of texts, numbers, truth values, lists and mappings.

    1e-6 is a number, as everywhere but in YAML 1.1, which wants 1.0e-6. Texts are what YAML 1.1 alone takes for numbers
    to the base 60 (12:30:00) and for dates.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012  (as PyYAML reads it)
        first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] in ("bool", "null")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.n_events = self.depth = 0

    def get_event(self) -> Any:
        """Return the next event of the parser; raise for one that plain values do not have, or for too many."""
        event: Any = super().get_event()  # type: ignore[no-untyped-call]
        self.n_events += 1
        self.depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if self.depth > _MAX_NESTING:
            raise ValueError(f"nested too deeply, and {_MAX_NESTING} levels are the most")
        if self.n_events > _MAX_EVENTS:
            raise ValueError(f"it has more than {_MAX_EVENTS:,} values")
        if refusal := _refusal(event):
            raise ValueError(f"line {event.start_mark.line + 1} has {refusal}")
        return event


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INTEGER, list("-+0123456789"))


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML document of plain values.

    Raises ValueError for text that is not such a document, saying why in one line. The events of the parser are counted
    and looked at before any value is built: a few hundred bytes of aliases stand for gigabytes.

    Examples
    --------
    >>> parse_yaml("{regularization: 1e-2, direction: forward}")
    {'regularization': 0.01, 'direction': 'forward'}
    >>> parse_yaml("{a: &x [1], b: *x}")
    Traceback (most recent call last):
        ...
    ValueError: line 1 has an anchor or alias (&x), which recipes do not have; write the value out
    """
    if len(text) > _MAX_BYTES or text.count("[") + text.count("{") > _MAX_EVENTS:
        raise ValueError(f"it has more than {_MAX_BYTES:,} characters, or {_MAX_EVENTS:,} brackets")
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(" ".join(str(error).split())[:_MAX_MESSAGE]) from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


_MAX_MESSAGE = 300
"""Characters of a message of PyYAML that are shown: it quotes lines of the text."""


def _refusal(event: Any) -> str:
    """Return what a value has that plain values do not have, and the remedy; "" where it is one."""
    if (anchor := getattr(event, "anchor", None)) is not None:
        return f"an anchor or alias (&{anchor:.{_MAX_SHOWN}}), which recipes do not have; write the value out"
    if (tag := getattr(event, "tag", None)) is not None:
        return f"the type {tag:.{_MAX_SHOWN}}, which recipes do not have; write a plain value"
    if not isinstance(event, yaml.ScalarEvent):
        return ""
    shown = f"{event.value:.{_MAX_SHOWN}}"
    if len(event.value) > _MAX_SCALAR:
        return f"a text of {len(event.value):,} characters ({shown}...), and {_MAX_SCALAR:,} is the most"
    if event.style is None and event.value == "<<":
        return "a merge key (<<), which recipes do not have; write the values out"
    if event.style is None and len(event.value) > _MAX_DIGITS and _INTEGER.match(event.value):
        return f"a number of {len(event.value)} digits ({shown}), and {_MAX_DIGITS} is the most"
    return ""


def read_recipe(path: Path) -> Recipe:
    """Return the recipe in a YAML file, with glob patterns in ``models`` expanded and paths made relative to here.

    Patterns find files in the recipe's folder and below, and never follow links out of it. Raises FileFormatError for a
    file that cannot be read, is not YAML, or has unknown or ill-typed keys.
    """
    recipe = parsed(path, Recipe)
    models: list[str] = []
    for pattern in recipe.models:
        is_pattern = glob.has_magic(pattern) and not os.path.exists(path.parent / pattern)
        models += _matches(path, pattern) if is_pattern else [str(path.parent / pattern)]
    files = ("output", "report", "symmetry", "inputs")
    update: dict[str, Any] = {name: beside(path, getattr(recipe, name)) for name in files}
    examples = [recipe.example] if isinstance(recipe.example, str) else recipe.example
    if examples is not None:
        update["example"] = [str(path.parent / one) if one.endswith(".npy") else one for one in examples]
    return recipe.model_copy(update={**update, "models": models})


_MAX_MATCHES = 100_000
"""Files that a pattern may find: more are given as a folder, or as shards."""


def _matches(recipe: Path, pattern: str) -> list[str]:
    """Return the files in a recipe's folder that a pattern finds, in order, hidden ones left out.

    Raises FileFormatError for a pattern that may leave the folder, and for one that finds nothing or too many.
    """
    folder, parts = recipe.parent, PurePath(pattern).parts
    called = f"has the pattern {pattern:.{_MAX_SHOWN}}, which"
    if os.path.isabs(pattern) or ".." in parts or parts.count("**") > 1:
        remedy = "give patterns of files in the recipe's folder, or the models on the command line"
        raise FileFormatError(recipe, f"{called} may leave its folder or has ** twice", remedy, "E-RECIPE")
    # Within a name, two stars are one, as for `glob`; `Path.glob` does not take them.
    inside = "/".join(part if part == "**" else re.sub(r"\*+", "*", part) for part in parts)
    home = folder.resolve()
    found = [
        str(place)
        for place in islice(folder.glob(inside), _MAX_MATCHES + 1)
        if place.resolve().is_relative_to(home)
        and not any(part.startswith(".") for part in place.relative_to(folder).parts)
    ]
    if len(found) > _MAX_MATCHES:
        text = f"{called} finds more than {_MAX_MATCHES:,} files"
        raise FileFormatError(recipe, text, "give a narrower one, or the folder itself", "E-RECIPE")
    if not found:
        raise InputError(folder / pattern, "no file named *.safetensors or *.parquet is here")
    return sorted(found)


def parsed(path: Path, model: type[Model]) -> Model:
    """Return a YAML file as a model, every field checked.

    Raises FileFormatError for a file that cannot be read, is not YAML, or has unknown or ill-typed keys.
    """
    return validated(path, model, read_document(path))


def read_document(path: Path) -> Any:
    """Return the value in a YAML file; an empty mapping for an empty one.

    Raises FileFormatError for a file that cannot be read, or is not YAML of plain values.
    """
    try:
        document = parse_yaml(read_file(path, _MAX_BYTES + 1).decode())
    except OSError as error:
        raise FileFormatError(unreadable(path, error)) from error
    except ValueError as error:
        raise FileFormatError(path, f"is not valid YAML: {error}") from error
    return {} if document is None else document


def validated(path: Path, model: type[Model], document: Any) -> Model:
    """Return the value of a YAML file as a model, every field checked.

    Raises FileFormatError for unknown or ill-typed keys.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        unknown = [fault["loc"] for fault in error.errors() if fault["type"] == "extra_forbidden"]
        meant = suggestion(unknown[0][-1], _known_keys(model, nested=len(unknown[0]) > 1)) if unknown else ""
        code = "E-RECIPE" if unknown else ""
        raise FileFormatError(path, f"is not a valid recipe {first_fault(error)}{meant}", "", code) from error


def _known_keys(model: type[BaseModel], nested: bool) -> list[str]:
    """Return the keys of a document, or those of the documents within it."""
    schema = model.model_json_schema()
    parts = schema.get("$defs", {}).values() if nested else [schema]
    return [key for part in parts for key in part.get("properties", {})]


def first_fault(error: ValidationError) -> str:
    """Return where a document is wrong first, and how."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"]) or "the whole"
    return f"at {place}: {first['msg']}"


def beside(recipe: Path, name: str | None) -> str | None:
    """Return a path relative to the recipe's folder, relative to here."""
    return None if name is None else str(recipe.parent / name)
