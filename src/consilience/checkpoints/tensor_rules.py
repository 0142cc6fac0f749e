"""Which method and weights hold for which tensor: the recipe's patterns against the tensors' names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from consilience.checkpoints.methods.base import TensorMethod, make_tensor_method
from consilience.checkpoints.methods.slerp import SLERP
from consilience.checkpoints.methods.table import TENSOR_METHODS
from consilience.checkpoints.plan import Treatment
from consilience.checkpoints.recipe import Rule
from consilience.checks import as_weights
from consilience.errors import OptionError


def treatments(
    names: Sequence[str],
    count: int,
    method: TensorMethod,
    options: Mapping[str, Any],
    weights: Any,
    rules: Sequence[Rule],
) -> tuple[dict[str, Treatment], list[str]]:
    """Return how every tensor is treated, and which patterns are at fault.

    Parameters
    ----------
    names
        Of the tensors.
    count
        Number of models.
    method
        For tensors that no pattern matches.
    options
        What was said of that method, which patterns may add to.
    weights
        For patterns that give none; None for the same everywhere.
    rules
        The patterns.

    Raises
    ------
    OptionError
        For weights, methods and options that do not exist or do not fit.
    """
    usual = _treatment(method, weights, count, "weights")
    special = [_of_rule(rule, method, options, weights, count) for rule in rules]
    found = {}
    taken, matched = [0] * len(rules), [0] * len(rules)
    for name in names:
        hits = [number for number, rule in enumerate(rules) if fnmatchcase(name, rule.pattern)]
        for number in hits:
            matched[number] += 1
        if hits:
            taken[hits[0]] += 1
        found[name] = special[hits[0]] if hits else usual
    problems = [
        f"patterns: {rule.pattern!r} matches no tensor"
        + (f" that an earlier pattern left ({all_} taken)" if all_ else "")
        for rule, own, all_ in zip(rules, taken, matched, strict=True)
        if not own
    ]
    return found, problems


def _of_rule(rule: Rule, method: TensorMethod, options: Mapping[str, Any], weights: Any, count: int) -> Treatment:
    where = f"pattern {rule.pattern!r}"
    if rule.method == "copy":
        source = rule.source or 0
        if source >= count:
            raise OptionError(f"{where}: from: there are {count} models, numbered from 0; found {source}")
        if rule.options or rule.weights is not None:
            raise OptionError(f"{where}: a copy has no options and no weights")
        return Treatment(None, (1.0,) * count, source)
    if rule.source is not None:
        raise OptionError(f"{where}: from: is for method copy")
    own = method
    if rule.method is not None and rule.method != method.name:
        own = make_tensor_method(TENSOR_METHODS, rule.method, rule.options)
    elif rule.options:
        own = make_tensor_method(TENSOR_METHODS, method.name, {**options, **rule.options})
    inherited = None if rule.weights is None and isinstance(own, SLERP) else weights
    return _treatment(own, inherited if rule.weights is None else rule.weights, count, f"{where}: weights")


def _treatment(method: TensorMethod, weights: Any, count: int, where: str) -> Treatment:
    if method.count is not None and method.count != count:
        raise OptionError(f"method {method.name!r} takes {method.count} models, found {count}")
    if method.count is not None and weights is not None:
        raise OptionError(f"{where}: method {method.name!r} takes none; its option t says where between the models")
    target = getattr(method, "favor_target", None)
    if target is not None and target >= count:
        raise OptionError(f"favor_target: there are {count} models, numbered from 0; found {target}")
    return Treatment(method, tuple(as_weights(weights, count, where).tolist()))
