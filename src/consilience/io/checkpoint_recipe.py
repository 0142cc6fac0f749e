"""Recipes of merges: what is merged, how, and what is different for some tensors, as a YAML file to review and keep."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from consilience.errors import FileFormatError, OptionError
from consilience.io.recipe import parse_yaml

_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30}


class Rule(BaseModel):
    """What is different for tensors whose names match a pattern, as in ``fnmatch``; the first that matches counts."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)
    pattern: str = Field(min_length=1)
    method: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    weights: list[float] | None = None
    source: int | None = Field(default=None, ge=0, alias="from")


class MergeRecipe(BaseModel):
    """What ``consilience merge`` would be told on its command line; paths are relative to the recipe's folder."""

    model_config = ConfigDict(extra="forbid", strict=True)
    models: list[str] = Field(default_factory=list)
    output: str | None = None
    method: str = "average"
    options: dict[str, Any] = Field(default_factory=dict)
    base: str | None = None
    weights: list[float] | None = None
    dtype: str | None = None
    shard_size: str | int | None = None
    fishers: list[str] | None = None
    symmetry: str | None = None
    seed: int = Field(default=0, ge=0)
    tensors: list[Rule] = Field(default_factory=list)


def read_merge_recipe(path: Path) -> MergeRecipe:
    """Return the recipe in a YAML file, with paths made relative to here.

    Raises
    ------
    FileFormatError
        For a file that cannot be read, is not YAML, or has unknown or ill-typed keys.
    """
    try:
        document = parse_yaml(path.read_text(encoding="utf-8"))
        recipe = MergeRecipe.model_validate({} if document is None else document)
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise FileFormatError(f"{path}: is not a valid recipe {first_fault(error)}") from error
    except ValueError as error:
        raise FileFormatError(f"{path}: is not valid YAML: {error}") from error
    here = {name: _beside(path, getattr(recipe, name)) for name in ("output", "base", "symmetry")}
    lists = {"models": [str(path.parent / one) for one in recipe.models]}
    if recipe.fishers is not None:
        lists["fishers"] = [str(path.parent / one) for one in recipe.fishers]
    return recipe.model_copy(update={**here, **lists})


def as_rules(patterns: Any) -> tuple[Rule, ...]:
    """Return rules from plain values.

    Raises
    ------
    OptionError
        Saying which is wrong, and where.

    Examples
    --------
    >>> as_rules([{"pattern": "lm_head.*", "method": "copy", "from": 0}])[0].source
    0
    """
    found = []
    for number, one in enumerate(patterns or ()):
        try:
            found.append(one if isinstance(one, Rule) else Rule.model_validate(one))
        except ValidationError as error:
            raise OptionError(f"patterns: number {number} is not valid {first_fault(error)}") from error
    return tuple(found)


def first_fault(error: ValidationError) -> str:
    """Return where a document is wrong first, and how."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"]) or "the whole"
    return f"at {place}: {first['msg']}"


def as_bytes(size: str | int, what: str = "shard_bytes") -> int:
    """Return a number of bytes, from text such as "5GB".

    Raises
    ------
    OptionError
        For anything but a positive number with a known unit.

    Examples
    --------
    >>> as_bytes("5GB"), as_bytes("1.5 GiB"), as_bytes(1000)
    (5000000000, 1610612736, 1000)
    """
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([a-z]*)", str(size).strip().lower())
    if isinstance(size, bool) or found is None or found[2] not in _UNITS or float(found[1]) * _UNITS[found[2]] < 1:
        raise OptionError(f"{what}: expected a size such as 5GB, 500MB or a number of bytes, found {size!r}")
    return int(float(found[1]) * _UNITS[found[2]])


def _beside(recipe: Path, name: str | None) -> str | None:
    return None if name is None else str(recipe.parent / name)
