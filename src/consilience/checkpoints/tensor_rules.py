"""Choice of method and weights for every tensor: the recipe's rules matched against the tensors' names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from consilience.checkpoints.methods.base import TensorMethod
from consilience.checkpoints.methods.slerp import SLERP
from consilience.checkpoints.methods.table import make_tensor_method
from consilience.checkpoints.plan import Treatment
from consilience.checkpoints.recipe import TensorRule
from consilience.checks import as_weights
from consilience.errors import OptionError, Problem
from consilience.networks.weight_parts import WeightParts


def treatments_by_tensor(
    names: Sequence[str],
    count: int,
    method: TensorMethod,
    options: Mapping[str, Any],
    weights: Any,
    rules: Sequence[TensorRule],
    weights_in_parts: Sequence[WeightParts] = (),
) -> tuple[dict[str, Treatment], list[Problem]]:
    """Return how every tensor is merged, and a line for each rule that applies to no tensor or not to a whole weight.

    Parameters
    ----------
    names : sequence of str
        Names of the tensors.
    count : int
        Number of models, J.
    method : TensorMethod
        Method of the tensors that no rule matches.
    options : mapping
        Options that the user gave for that method; rules may add to them.
    weights : array_like of shape (J,), optional
        Weights where a rule gives none. None for equal weights.
    rules : sequence of TensorRule
        The rules, in order of precedence.
    weights_in_parts : sequence of WeightParts, optional
        Weights that are held in parts; a pattern that matches their names applies to all parts. Default: none.

    Raises
    ------
    OptionError
        For weights, methods and options that do not exist or do not fit.
    """
    default = _treatment(method, weights, count, "weights")
    by_rule = [_rule_treatment(rule, method, options, weights, count) for rule in rules]
    treatments = {}
    n_matched = [0] * len(rules)  # tensors whose names match
    n_applied = [0] * len(rules)  # of these, the ones that no earlier rule matches
    weight_of = {name: weight.name for weight in weights_in_parts for name in weight.names}
    for name in names:
        called = {name, weight_of.get(name, name)}
        matches = [number for number, rule in enumerate(rules) if any(fnmatchcase(one, rule.pattern) for one in called)]
        for number in matches:
            n_matched[number] += 1
        if matches:
            n_applied[matches[0]] += 1
        treatments[name] = by_rule[matches[0]] if matches else default
    problems = [
        Problem(
            "patterns",
            f"{rule.pattern!r} matches no tensor"
            + (f" that an earlier pattern left ({matched} taken)" if matched else ""),
        )
        for rule, applied, matched in zip(rules, n_applied, n_matched, strict=True)
        if not applied
    ]
    problems += [
        Problem(
            "patterns",
            f"the parts of {weight.name} ({', '.join(weight.names)}) would be merged differently, and are one weight",
            f"match its name, {weight.name}",
        )
        for weight in weights_in_parts
        if any(treatments[name] != treatments[weight.main] for name in weight.names)
    ]
    return treatments, problems


def _rule_treatment(
    rule: TensorRule, method: TensorMethod, options: Mapping[str, Any], weights: Any, count: int
) -> Treatment:
    where = f"pattern {rule.pattern!r}"
    if rule.method == "copy":
        source = rule.source or 0
        if source >= count:
            raise OptionError(where, f"from: there are {count} models, numbered from 0; found {source}")
        if rule.options or rule.weights is not None:
            raise OptionError(where, "a copy has no options and no weights")
        return Treatment(None, (1.0,) * count, source)
    if rule.source is not None:
        raise OptionError(where, "from: is for method copy")
    rule_method = method
    if rule.method is not None and rule.method != method.name:
        rule_method = make_tensor_method(rule.method, rule.options)
    elif rule.options:
        rule_method = make_tensor_method(method.name, {**options, **rule.options})
    # SLERP takes no weights; those of the other tensors are not meant for it.
    inherited = None if rule.weights is None and isinstance(rule_method, SLERP) else weights
    return _treatment(rule_method, inherited if rule.weights is None else rule.weights, count, f"{where}: weights")


def _treatment(method: TensorMethod, weights: Any, count: int, where: str) -> Treatment:
    if method.count is not None and method.count != count:
        raise OptionError(f"method {method.name!r} takes {method.count} models, found {count}")
    if method.count is not None and weights is not None:
        raise OptionError(where, f"method {method.name!r} takes none; its option t says where between the models")
    target = getattr(method, "favor_target", None)
    if target is not None and target >= count:
        raise OptionError("favor_target", f"there are {count} models, numbered from 0; found {target}")
    density = getattr(method, "density", None)
    if isinstance(density, Sequence) and len(density) != count:
        raise OptionError("density", f"expected a number, or {count}, one for each model, found {list(density)}")
    return Treatment(method, tuple(as_weights(weights, count, where, signed=method.signed).tolist()))
