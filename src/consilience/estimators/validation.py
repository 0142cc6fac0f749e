"""Validation of statistics: numbers that can be sums of rows, in the arrays that their estimator has."""

from __future__ import annotations

from consilience.errors import InputError, Problem
from consilience.estimators.adapters.base import EstimatorAdapter
from consilience.estimators.adapters.table import adapter_of_kind
from consilience.estimators.hyper_parameters import decode
from consilience.estimators.statistics import FOURTH, FOURTH_TOTAL, ROWS, UNWEIGHTED, Statistics, is_by_class

MAX_ITERATIONS = 1_000_000
"""Iterations that hyper-parameters may ask for: far above scikit-learn's defaults (300 and 1,000), and a bound on the
time that the file of a stranger can take."""


def statistics_problems(statistics: Statistics) -> list[Problem]:
    """Return everything that is wrong with some statistics, a line each; none for those of rows."""
    return _shape_problems(statistics) or statistics.problems()


def _shape_problems(statistics: Statistics) -> list[Problem]:
    """Return what does not fit the estimator that the statistics name."""
    problems: list[Problem] = []
    adapter = adapter_of_kind(statistics.kind)
    if (adapter.needs == "classes") != (statistics.classes is not None):
        problems.append(Problem("classes", f"a {adapter.class_name} and classes do not go together", code="E-MISMATCH"))
    if (adapter.needs == "targets") != (statistics.target_shape is not None):
        text = f"a {adapter.class_name} and these targets do not go together"
        problems.append(Problem("target_shape", text, code="E-MISMATCH"))
    if statistics.last_step is None and statistics.steps:
        problems.append(Problem("last_step", "a Pipeline names its last step"))
    return problems + _parameter_problems(statistics) + _array_problems(statistics, adapter)


def _parameter_problems(statistics: Statistics) -> list[Problem]:
    """Return what is wrong with the hyper-parameters."""
    n_classes = None if statistics.classes is None else len(statistics.classes)
    problems = [
        Problem(name, f"has {len(value)} values, expected {n_classes}", code="E-SHAPE")
        for name, value in statistics.parameters.items()
        if n_classes is not None and is_by_class(name, value) and len(value) != n_classes
    ]
    try:
        for value in statistics.parameters.values():
            decode(value)
    except (InputError, TypeError, ValueError, KeyError) as error:
        problems.append(Problem("parameters", f"cannot be read: {error}"))
    iterations = statistics.parameters.get("max_iter")
    if isinstance(iterations, int | float) and iterations > MAX_ITERATIONS:
        text = f"is {str(iterations)[:20]}, expected at most {MAX_ITERATIONS:,}"
        problems.append(Problem("max_iter", text, code="E-NUMBER"))
    return problems


def _array_problems(statistics: Statistics, adapter: EstimatorAdapter) -> list[Problem]:
    """Return which arrays are missing, are too many, or have other shapes than those of the estimator."""
    expected = adapter.array_shapes(statistics)
    if FOURTH in statistics.counts and adapter.needs_fourth_moments(statistics.parameters):
        expected = {**expected, f"counts {FOURTH!r}": expected[f"moments {ROWS!r}"]}
        if statistics.classes is not None:
            expected[f"counts {FOURTH_TOTAL!r}"] = ()
    shapes = {f"counts {name!r}": values.shape for name, values in statistics.counts.items()}
    shapes |= {f"maxima {name!r}": values.shape for name, values in statistics.maxima.items()}
    shapes |= {f"moments {name!r}": record.shape for name, record in statistics.moments.items()}
    problems = [
        Problem("", f"{'lacks' if name in expected else 'has no use for'} {name}", code="E-NEEDED")
        for name in sorted(set(expected) ^ (set(shapes) - {f"moments {UNWEIGHTED!r}"}))
    ]
    return problems + [
        Problem("", f"{name} have shape {list(shapes[name])}, expected {list(shape)}", code="E-SHAPE")
        for name, shape in expected.items()
        if name in shapes and shapes[name] != shape
    ]
