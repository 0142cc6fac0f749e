"""The table of constraints by the names that users state."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from consilience.catalogue import suggestion
from consilience.draws.constraints import Bound, Constraint, IntervalConstraint, Ordered, Real, Simplex, SumToZero
from consilience.draws.matrix_constraints import (
    CholeskyCorrelation,
    CholeskyCovariance,
    Correlation,
    Covariance,
    MatrixConstraint,
)
from consilience.draws.tied_entries import TIED, TiedEntries, inner_of_json, tied_of_json
from consilience.errors import OptionError

STRUCTURES: tuple[Constraint, ...] = (
    CholeskyCorrelation(),
    CholeskyCovariance(),
    Correlation(),
    Covariance(),
    Simplex(),
    SumToZero(),
)
"""Constraints that draws show by themselves, the narrower ones first: no law without them has such draws."""

NARROWER: dict[Constraint, Constraint] = {
    CholeskyCorrelation(): CholeskyCovariance(),
    Correlation(): Covariance(),
}
"""Structures that are others with rows of length 1: in the coordinates of these, some never vary."""

_PLAIN: dict[str, Constraint] = {
    "real": Real(),
    "positive": Bound(),
    "unit_interval": IntervalConstraint(),
    "simplex": Simplex(),
    "ordered": Ordered(),
    "sum_to_zero": SumToZero(),
    "covariance": Covariance(),
    "correlation": Correlation(),
    "cholesky_covariance": CholeskyCovariance(),
    "cholesky_correlation": CholeskyCorrelation(),
}

NAMES = ", ".join(
    ["real", "positive", "unit_interval", "(lower, a)", "(upper, b)", "(interval, a, b)", *list(_PLAIN)[3:]]
)
"""What there is, for messages."""


def as_constraint(stated: Any, variable: str) -> Constraint:
    """Return a constraint of its name, or of its name with bounds.

    Raises
    ------
    OptionError
        For one that there is not.

    Examples
    --------
    >>> as_constraint(["interval", 0, 2], "p")
    IntervalConstraint(low=0.0, high=2.0)
    """
    if isinstance(stated, Constraint):
        return stated
    if isinstance(stated, str) and stated in _PLAIN:
        return _PLAIN[stated]
    try:
        parts: Any = () if isinstance(stated, str) else stated
        name, *bounds = parts
        if name == TIED:
            return tied_of_json(bounds, as_constraint(inner_of_json(bounds), variable))
        if (bounded := _bounded(name, [float(bound) for bound in bounds])) is not None:
            return bounded
    except (TypeError, ValueError):
        pass
    text = f"of {variable}: found {stated!r:.80}{suggestion(stated, NAMES.split(', '))}, expected one of {NAMES}"
    raise OptionError("constraints", text)


def _bounded(name: Any, bounds: list[float]) -> Constraint | None:
    """Return the constraint with these bounds; None where there is none of this name."""
    if not all(np.isfinite(bounds)):
        return None
    if name in ("lower", "upper") and len(bounds) == 1:
        return Bound(bounds[0], 1 if name == "lower" else -1)
    return IntervalConstraint(*bounds) if name == "interval" and len(bounds) == 2 and bounds[0] < bounds[1] else None


def is_shaped(constraint: Constraint, shape: tuple[int, ...]) -> bool:
    """Return whether a variable of this shape can have the constraint."""
    if constraint.event_dims > len(shape):
        return False
    if isinstance(constraint, MatrixConstraint):
        return shape[-1] == shape[-2] and shape[-1] > -constraint.diagonal
    if isinstance(constraint, TiedEntries):
        return len(constraint.places) == prod(shape)
    return not isinstance(constraint, Simplex | SumToZero) or shape[-1] > 1
