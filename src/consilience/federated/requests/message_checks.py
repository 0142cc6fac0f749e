"""What messages of all kinds of requests are held to, and which answers count: a kind adds what is its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from pydantic import Field, ValidationError

from consilience.checks import Array
from consilience.errors import InputError, Problem
from consilience.files.schemas import StrictModel, first_problem

if TYPE_CHECKING:
    from consilience.federated.requests.base import Answer, RoundRequest, StandingAnswer

LARGEST = 1e75
"""Largest number in a message: products of four such numbers are finite in float64."""

SCATTER_ROUNDING = 1e-8
"""Least eigenvalue of a scatter or covariance, in units of its trace, that is taken for rounding."""


class AnswerFields(StrictModel):
    """JSON values of an answer."""

    withheld: int = Field(ge=0, le=2**31)


def field_problems(subject: str, schema: type[StrictModel], fields: Mapping[str, Any], prefix: str) -> list[Problem]:
    """Return the first thing that is wrong with the JSON values of a message, after a prefix on the whole message."""
    try:
        schema.model_validate(dict(fields))
    except ValidationError as error:
        location, reason = first_problem(error)
        return [Problem(subject, f"{prefix}: {location or 'the whole'}: {reason}")]
    return []


def array_problems(
    subject: str, arrays: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]], largest: float = LARGEST
) -> list[Problem]:
    """Return which arrays are missing, unknown, of another shape, or have numbers that are not finite or too large."""
    if set(arrays) != set(shapes):
        found = ", ".join(arrays) or "none"
        return [Problem(subject, f"expected the arrays {', '.join(sorted(shapes))}; found {found:.200}")]
    problems = []
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            problems.append(Problem(subject, f"{name} has shape {arrays[name].shape}, expected {shape}"))
        elif not np.all(np.abs(arrays[name]) <= largest):  # NaN is not
            problems.append(Problem(subject, f"{name} has values that are NaN or infinite, or beyond {largest:g}"))
    return problems


def count_problems(counts: Array, answer: Answer) -> list[Problem]:
    """Return what is wrong with the rows by class that an answer states."""
    if np.any(counts < 0.0) or np.any(counts != np.rint(counts)):
        return [Problem("answer", "its counts are no counts of rows")]
    if counts.sum() != answer.n_observations:
        text = f"its counts sum to {counts.sum():.10g}, and it states {answer.n_observations} rows"
        return [Problem("answer", text)]
    few = np.flatnonzero((counts > 0.0) & (counts < answer.min_count))
    if few.size:
        text = f"class {few[0]} has {counts[few[0]]:g} rows, and the site withholds fewer than {answer.min_count:g}"
        return [Problem("answer", text)]
    return []


def few_rows(data: Any, text: str, remedy: str = "answer with more rows, or take a lower `min_count=`") -> InputError:
    """Return the error for data of too few rows for their sums to leave the site."""
    return InputError(name_of(data), text, remedy, "E-FEW")


def name_of(data: Any) -> str | Path:
    """Return what messages call the data of a site: their path, where they have one."""
    return data if isinstance(data, str | Path) else "data"


Known = TypeVar("Known")


def latest_answers(
    request: RoundRequest, answers: Mapping[str, StandingAnswer], standing: Mapping[str, StandingAnswer]
) -> tuple[dict[str, StandingAnswer], dict[str, str]]:
    """Return the answers that count, new ones before those carried on, and why others are carried, both by site.

    Raises
    ------
    InputError
        Where no site has answered.
    """
    carried = {site: "sent no answer in time" for site in standing if site not in answers}
    carried |= {
        site: f"its answer to request {one.request.number} came late"
        for site, one in answers.items()
        if one.request.number != request.number
    }
    return in_order({**standing, **answers}), dict(sorted(carried.items()))


def in_order(chosen: Mapping[str, Known]) -> dict[str, Known]:
    """Return what sites sent in the order of their names, so that bytes do not depend on arrival.

    Raises InputError where no site has answered.
    """
    if not chosen:
        raise InputError("", "no site has answered, so there is nothing to reduce", code="E-NEEDED")
    return dict(sorted(chosen.items()))
