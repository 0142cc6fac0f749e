"""Merge recipes: a YAML file that names models, method and options, and rules for tensors by name pattern."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from consilience.checkpoints.mergekit import from_mergekit, is_mergekit
from consilience.core.recipe import beside, first_fault, read_document, validated
from consilience.errors import OptionError


class TensorRule(BaseModel):
    """Method, options or weights of the tensors whose names match a pattern (``fnmatch``); the first match counts."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)
    pattern: str = Field(min_length=1)
    method: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    weights: list[float] | None = None
    source: int | None = Field(default=None, ge=0, alias="from")


class MergeRecipe(BaseModel):
    """The arguments of ``consilience merge`` as a document; paths are relative to the recipe's folder."""

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
    tensors: list[TensorRule] = Field(default_factory=list)
    slices: list[list[list[int]]] | dict[str, list[list[list[int]]]] = Field(default_factory=list)
    rank: int | float | None = None
    residual_into_base: bool = False
    vocabulary: str | int | dict[str, Any] | None = None
    chat_template: str | None = None
    _notes: list[str] = PrivateAttr(default_factory=list)

    @property
    def notes(self) -> tuple[str, ...]:
        """What its translation from another program's form left out, a line each."""
        return tuple(self._notes)


def read_merge_recipe(path: Path) -> MergeRecipe:
    """Return the recipe in a YAML file, with paths relative to the working directory; recipes of mergekit as they are.

    Raises FileFormatError for a file that cannot be read, is not YAML, or has unknown or ill-typed keys.
    """
    document = read_document(path)
    if is_mergekit(document):
        fields, notes = from_mergekit(path, document)
        recipe = validated(path, MergeRecipe, fields)
        recipe._notes = notes
        return recipe
    recipe = validated(path, MergeRecipe, document)
    paths = {name: beside(path, getattr(recipe, name)) for name in ("output", "base", "symmetry")}
    lists = {"models": [str(path.parent / model) for model in recipe.models]}
    if recipe.fishers is not None:
        lists["fishers"] = [str(path.parent / fisher) for fisher in recipe.fishers]
    return recipe.model_copy(update={**paths, **lists})


def as_rules(patterns: Any) -> tuple[TensorRule, ...]:
    """Return rules from plain values.

    Rules are in order of precedence. Raises OptionError, naming the rule that is not valid, and its fault.

    Examples
    --------
    >>> as_rules([{"pattern": "lm_head.*", "method": "copy", "from": 0}])[0].source
    0
    """
    rules = []
    for number, pattern in enumerate(patterns or ()):
        try:
            rules.append(pattern if isinstance(pattern, TensorRule) else TensorRule.model_validate(pattern))
        except ValidationError as error:
            raise OptionError("patterns", f"number {number} is not valid {first_fault(error)}") from error
    return tuple(rules)
