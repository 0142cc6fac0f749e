"""Recipes of merges: what is merged, how, and what is different for some tensors, as a YAML file to review and keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from consilience.core.recipe import beside, first_fault, parsed
from consilience.errors import OptionError


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
    recipe = parsed(path, MergeRecipe)
    here = {name: beside(path, getattr(recipe, name)) for name in ("output", "base", "symmetry")}
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
