"""Recipes: a fusion as a YAML file that one can review, keep and run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from consilience.errors import FileFormatError


class Recipe(BaseModel):
    """What ``consilience fuse`` would be told on its command line; paths are relative to the recipe's folder."""

    model_config = ConfigDict(extra="forbid", strict=True)
    models: list[str] = Field(default_factory=list)
    method: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    weights: list[float] | None = None
    seed: int | None = None
    output: str | None = None


def read_recipe(path: Path) -> Recipe:
    """Return the recipe in a YAML file, with glob patterns in ``models`` expanded and paths made relative to here.

    Raises
    ------
    FileFormatError
        For a file that cannot be read, is not YAML, or has unknown or ill-typed keys.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        recipe = Recipe.model_validate({} if document is None else document)
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path}: is not valid YAML: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise FileFormatError(f"{path}: is not a valid recipe at {place}: {first['msg']}") from error
    models: list[str] = []
    for pattern in recipe.models:
        found = sorted(str(match) for match in path.parent.glob(pattern)) if "*" in pattern else []
        models += found or [str(path.parent / pattern)]
    output = None if recipe.output is None else str(path.parent / recipe.output)
    return recipe.model_copy(update={"models": models, "output": output})
