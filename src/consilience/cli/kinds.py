"""Which kind of models files hold, told from their headers, and what does not go together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from consilience.bayesian.file_format import read_bayesian_summary
from consilience.bayesian.methods import BAYESIAN_METHODS
from consilience.core.recipe import Recipe
from consilience.errors import InputError, OptionError
from consilience.networks.files import file_kind, read_network_summary
from consilience.networks.methods import needs_no_symmetry
from consilience.posteriors.sharded.fuse import are_shards

Kind = Literal["posteriors", "shards", "networks", "bayesian"]

_NETWORKS = {
    "module": "--module",
    "example": "--example",
    "symmetry": "--symmetry",
    "target": "--target",
    "target_widths": "--target-width",
    "inputs": "--inputs",
    "reference": "--reference",
}
"""Keys of a recipe that are for networks, and how the command line has them."""

_CALLED = {
    "bayesian": "a Bayesian network",
    "checkpoint": "a plain checkpoint without variances",
    "fisher": "Fisher information",
    "network": "a network",
    "posterior": "a posterior file",
}


def kind_of_models(plan: Recipe) -> Kind:
    """Return what the models are: posteriors, shards of very many, networks, or Bayesian networks.

    Raises
    ------
    InputError
        For files that do not go together, and such of which nothing says which axes move together.
    OptionError
        For options of networks beside posteriors.
    """
    told = [option for name, option in _NETWORKS.items() if getattr(plan, name) is not None]
    if are_shards(plan.models):
        if told:
            raise OptionError(f"{', '.join(told)}: for networks only, and {plan.models[0]} holds posteriors")
        return "shards"
    kinds: dict[str, str] = {}
    unreadable: list[str] = []
    for model in plan.models:
        try:
            kinds[model] = file_kind(Path(model))
        except InputError as error:  # for posteriors, their reader says it better
            unreadable += error.problems
    if "bayesian" in kinds.values():
        _refuse_bayesian(plan, kinds, unreadable)
        return "bayesian"
    if "network" in kinds.values():
        return "networks"
    plain = [model for model, kind in kinds.items() if kind == "checkpoint"]
    if "posterior" in kinds.values():
        if told and not plain:
            raise OptionError(f"{', '.join(told)}: for networks only, and {plan.models[0]} is a posterior file")
        return "networks" if told else "posteriors"
    if not plain:
        if told:
            raise InputError(unreadable)
        if "fisher" in kinds.values():
            raise InputError(
                [*unreadable, *(f"{one}: {_INFORMATION}" for one, kind in kinds.items() if kind == "fisher")]
            )
        return "posteriors"
    informed = plan.method is None and "fisher" in kinds.values()
    if plan.module is None and plan.symmetry is None and not informed and not needs_no_symmetry(plan.method):
        raise InputError([*unreadable, *(f"{model}: {_PLAIN}" for model in plain)])
    return "networks"


_INFORMATION = "is Fisher information of a network; give the networks too"

_HINT = "give --symmetry FILE, or --module PKG.MOD:CALLABLE with --example SHAPE"
_PLAIN = (
    f"is a plain checkpoint, which says nothing of which axes move together; {_HINT} (or write it with "
    "consilience.save)"
)
_UNTOLD = f"says nothing of which axes move together; {_HINT} (or write it with consilience.save and its symmetry=)"


def _refuse_bayesian(plan: Recipe, kinds: Mapping[str, str], unreadable: Sequence[str]) -> None:
    """Raise for Bayesian networks among other files, and for such that nothing is known of how their axes move."""
    first = next(iter(kinds))
    expected = "bayesian" if kinds[first] in ("posterior", "checkpoint", "fisher") else kinds[first]
    like = next(model for model, kind in kinds.items() if kind == expected)
    problems = [
        f"{model}: is {_CALLED[kind]}, expected {_CALLED[expected]} as {like}; fuse files of one kind"
        for model, kind in kinds.items()
        if kind != expected
    ]
    if problems or unreadable:
        raise InputError([*unreadable, *problems])
    if plan.inputs is not None:
        raise OptionError("--inputs: of no use for Bayesian networks, whose variances say what is known")
    without = any(kind.name == plan.method and kind.optional_symmetry for kind in BAYESIAN_METHODS)
    traced = plan.module is not None and plan.example is not None
    if plan.symmetry is None and not traced and not without and not have_symmetry(plan.models):
        raise InputError([f"{model}: {_UNTOLD}" for model in plan.models])


def have_symmetry(models: Sequence[str]) -> bool:
    """Return whether any of the files says which axes move together."""
    for model in models:
        try:
            read = read_bayesian_summary if file_kind(Path(model)) == "bayesian" else read_network_summary
            if read(Path(model)).symmetry is not None:
                return True
        except InputError:  # said by whoever reads it whole
            continue
    return False
