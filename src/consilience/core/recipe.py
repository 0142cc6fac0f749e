"""Recipes: a fusion as a YAML file that one can review, keep and run again."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from consilience.catalogue import suggestion, unreadable
from consilience.errors import FileFormatError

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


class _Loader(yaml.SafeLoader):
    """Safe YAML in which 1e-6 is a number, as everywhere but in YAML 1.1, which wants 1.0e-6."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML document of plain values.

    Raises ValueError for text that is not such a document, saying why in one line.

    Examples
    --------
    >>> parse_yaml("{regularization: 1e-2, direction: forward}")
    {'regularization': 0.01, 'direction': 'forward'}
    """
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(" ".join(str(error).split())) from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_recipe(path: Path) -> Recipe:
    """Return the recipe in a YAML file, with glob patterns in ``models`` expanded and paths made relative to here.

    Raises FileFormatError for a file that cannot be read, is not YAML, or has unknown or ill-typed keys.
    """
    recipe = parsed(path, Recipe)
    models: list[str] = []
    for pattern in recipe.models:
        places = os.path.join(glob.escape(str(path.parent)), pattern)
        found = sorted(glob.glob(places, recursive=True)) if glob.has_magic(pattern) else []
        models += found or [str(path.parent / pattern)]
    files = ("output", "report", "symmetry", "inputs")
    update: dict[str, Any] = {name: beside(path, getattr(recipe, name)) for name in files}
    examples = [recipe.example] if isinstance(recipe.example, str) else recipe.example
    if examples is not None:
        update["example"] = [str(path.parent / one) if one.endswith(".npy") else one for one in examples]
    return recipe.model_copy(update={**update, "models": models})


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
        document = parse_yaml(path.read_text(encoding="utf-8"))
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
