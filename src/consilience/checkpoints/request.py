"""What is asked of a merge, and the plan of it, from headers alone, or everything that is in the way."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from consilience.checkpoints.buffers import memory_bound
from consilience.checkpoints.fisher_files import open_fisher
from consilience.checkpoints.folder import open_checkpoint
from consilience.checkpoints.inputs import Ingredients
from consilience.checkpoints.methods.average import TensorFisher
from consilience.checkpoints.methods.base import TensorMethod
from consilience.checkpoints.numbers import FLOATS
from consilience.checkpoints.plan import Plan, Treatment, planned_tasks, sharded
from consilience.checkpoints.recipe import Rule
from consilience.checkpoints.tensor_rules import treatments
from consilience.errors import InputError
from consilience.networks.symmetry.symmetry import Symmetry

SINGLE = ".safetensors"
"""How the output's name ends where a single file is wanted."""


@dataclass(frozen=True, eq=False)
class Request:
    """What is to be merged, and how.

    Parameters
    ----------
    models, base, fishers
        Paths.
    method, options
        For tensors that no pattern matches, and what was said of it.
    weights
        As the user gave them.
    rules
        The patterns.
    dtype
        Of the output, as safetensors calls it; None keeps the first model's types.
    shard_bytes
        Of a file of the output, at most.
    symmetry
        By which units are aligned first; None for as they are numbered.
    seed
        Of random choices.
    """

    models: tuple[Path, ...]
    method: TensorMethod
    options: Mapping[str, Any] = field(default_factory=dict)
    base: Path | None = None
    fishers: tuple[Path, ...] = ()
    weights: Any = None
    rules: tuple[Rule, ...] = ()
    dtype: str | None = None
    shard_bytes: int = 5 * 10**9
    symmetry: Symmetry | None = None
    seed: int = 0

    def document(self) -> dict[str, Any]:
        """Return what was asked for as plain values, without paths."""
        rules = [
            {key: value for key, value in rule.model_dump(by_alias=True).items() if value not in (None, {})}
            for rule in self.rules
        ]
        found = {
            "method": self.method.name,
            "options": asdict(self.method),
            "weights": None if self.weights is None else [float(one) for one in self.weights],
            "dtype": None if self.dtype is None else FLOATS[self.dtype].name,
            "shard_size": self.shard_bytes,
            "symmetry": None if self.symmetry is None else self.symmetry.digest,
            "seed": self.seed,
            "tensors": rules,
        }
        return {key: value for key, value in found.items() if value not in (None, [], {})}


@dataclass(frozen=True, eq=False)
class Prepared:
    """A merge of which all headers have been read and nothing is in the way.

    Parameters
    ----------
    request
        What was asked for.
    ingredients
        What goes in.
    plan
        What is done with every tensor.
    """

    request: Request
    ingredients: Ingredients
    plan: Plan


def prepare(request: Request, output: Path) -> Prepared:
    """Return what a merge will do, from headers alone.

    Raises
    ------
    InputError
        Naming everything that is in the way, all at once.
    OptionError
        For options that do not fit.
    """
    problems: list[str] = []

    def opened(path: Path, how: Callable[[Path], Any]) -> Any:
        try:
            return how(path)
        except InputError as error:
            problems.extend(error.problems)
            return None

    models = [opened(path, open_checkpoint) for path in request.models]
    base = None if request.base is None else opened(request.base, open_checkpoint)
    fishers = [
        opened(path, partial(open_fisher, model=model))
        for path, model in zip(request.fishers, models, strict=False)
        if model is not None
    ]
    if len(request.fishers) not in (0, len(request.models)):
        problems.append(
            f"fishers: there are {len(request.fishers)} for {len(request.models)} models; give one for each"
        )
    if problems:
        raise InputError(problems)
    ingredients = Ingredients(
        tuple(models), base, tuple(one for one, _ in fishers), tuple(digest for _, digest in fishers)
    )
    problems += ingredients.problems()
    names = list(ingredients.models[0].tensors)
    treated, found = treatments(names, len(models), request.method, request.options, request.weights, request.rules)
    problems += found + _missing(request, ingredients, treated)
    if problems:
        raise InputError(problems)
    if request.symmetry is not None:
        units_of(request.symmetry, ingredients)
    plan = _planned(request, ingredients, treated, output)
    return Prepared(request, ingredients, plan)


def _missing(request: Request, ingredients: Ingredients, treated: Mapping[str, Treatment]) -> list[str]:
    """Return which methods lack what they need, and what is given that none needs."""
    methods = {one.method.name: one.method for one in treated.values() if one.method is not None}
    based = [name for name, method in methods.items() if method.needs_base]
    informed = [name for name, method in methods.items() if method.needs_information]
    found = []
    if based and ingredients.base is None:
        found.append(f"method {based[0]!r} needs base=, the checkpoint that all models were trained from")
    if ingredients.base is not None and not based:
        found.append(f"base: no method here looks at one (method {request.method.name!r}); leave it out")
    if informed and not ingredients.fishers:
        found.append("method 'fisher' needs fishers=, a file of Fisher diagonals for each model")
    if ingredients.fishers and not informed:
        found.append(f"fishers: no method here looks at them (method {request.method.name!r}); leave them out")
    if request.symmetry is not None and based:
        found.append(
            f"symmetry: method {based[0]!r} takes units as they are numbered, since models of one start have one "
            "numbering; leave it out"
        )
    return found


def units_of(symmetry: Symmetry, ingredients: Ingredients) -> dict[str, int]:
    """Return the number of units of every group, which all models share."""
    problems: list[str] = []
    found: list[dict[str, int]] = []
    for one in ingredients.models:
        shapes = {name: stored.shape for name, (_, stored) in one.tensors.items()}
        for alias, name in symmetry.aliases.items():
            if name not in shapes and alias in shapes:
                shapes[name] = shapes[alias]
        try:
            found.append(symmetry.units(shapes, one.name))
        except InputError as error:
            problems.extend(error.problems)
    if problems:
        raise InputError(problems)
    return found[0]


def _planned(request: Request, ingredients: Ingredients, treated: Mapping[str, Treatment], output: Path) -> Plan:
    tasks = planned_tasks(ingredients, treated, request.dtype)
    single = output.name if output.suffix == SINGLE else None
    shards = sharded(tasks, request.shard_bytes, single)
    notes = []
    others = [task.name for task in tasks if task.compared]
    if others:
        notes.append(
            f"{len(others)} tensor{'s' if len(others) > 1 else ''} of integers or truth values "
            f"({', '.join(others[:3])}{', ...' if len(others) > 3 else ''}) are the first model's"
        )
    informed = any(isinstance(task.treatment.method, TensorFisher) for task in tasks)
    if informed:
        known = ingredients.fishers[0].tensors
        plain = [task.name for task in tasks if isinstance(task.treatment.method, TensorFisher)
                 and task.name not in known]  # fmt: skip
        if plain:
            notes.append(f"{len(plain)} tensors without information ({', '.join(plain[:3])}) are averaged")
    if request.symmetry is not None and not request.symmetry.proved:
        notes.append("the symmetry is unproved: if it is wrong, so is the merge; look at it before it is used")
    return Plan(
        shards,
        sum(one.nbytes for one in ingredients.all),
        sum(shard.nbytes for shard in shards),
        _memory(request, ingredients),
        tuple(notes),
    )


def _memory(request: Request, ingredients: Ingredients) -> int:
    """Return the bytes that a merge allocates at most."""
    threads = default_threads()
    widest = max(
        (stored.nbytes // stored.size for one in ingredients.all for _, stored in one.tensors.values() if stored.size),
        default=1,
    )
    found = memory_bound(widest * len(ingredients.all), len(ingredients.all), threads)
    if request.method.surveys > 1:
        found += 64 * 2**20 * len(ingredients.models)
    if request.symmetry is None:
        return found
    largest = max(stored.size for _, stored in ingredients.models[0].tensors.values())
    units = max(units_of(request.symmetry, ingredients).values(), default=0)
    matching = 6 * 4 * largest + 4 * 8 * units**2
    moving = largest * widest * (len(ingredients.all) + 2)
    return found + max(matching, moving)


def default_threads() -> int:
    """Return how many threads calculate where nobody says."""
    return min(4, os.cpu_count() or 1)
