"""Statistics files: safetensors with a JSON document in the header, and which numbers can be sums of rows.

Format 1. Tensors, all float64: ``moments.NAME.n``, ``.weight``, ``.log_weight``, ``.mean`` and ``.scatter`` (its upper
triangle, row by row) or ``.variances``; ``counts.NAME``; ``maxima.NAME``. Classifiers have the classes as first axis.
The header's metadata has one key, ``consilience``, whose value is the JSON of ``StatisticsHeader``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import FailFast, Field

from consilience.checks import AnyArray, Array, Json
from consilience.core.features import Features
from consilience.core.provenance import library_versions
from consilience.errors import FileFormatError, InputError, Problem
from consilience.estimators.adapters.base import EstimatorAdapter
from consilience.estimators.adapters.table import adapter_of_kind
from consilience.estimators.class_labels import ClassLabels
from consilience.estimators.design import Design
from consilience.estimators.hyper_parameters import decode
from consilience.estimators.rebuild import COLUMN_TRANSFORMER, PASSTHROUGH
from consilience.estimators.statistics import FOURTH, FOURTH_TOTAL, ROWS, UNWEIGHTED, Statistics, Step, is_by_class
from consilience.families.centred_moments import CentredMoments
from consilience.files.document import REMEDY, STATISTICS
from consilience.files.format import Format
from consilience.files.safetensors_file import SafetensorsFile, TensorHeader
from consilience.files.schemas import Chunked, Entries, FeaturesHeader, FiniteJSON, MadeHeader, StrictModel

FORMAT_VERSION = 1
"""Version of the format, stated by every file; another one is refused."""

_MAX_STEPS = 100
"""Steps of a Pipeline at most, against files that exhaust memory. Chosen by hand."""

_PARTS = ("n", "weight", "log_weight", "mean")


class StepHeader(StrictModel):
    """A step of a Pipeline."""

    name: str
    estimator: str
    parameters: FiniteJSON


class FactorHeader(StrictModel):
    """A categorical column of a formula."""

    levels: Chunked[list[str]]
    contrasts: str


class DesignHeader(StrictModel):
    """What a formula made columns and outcome of."""

    outcome: Chunked[list[str]] | None = None
    factors: Entries[FactorHeader] = Field(default_factory=dict)
    constants: dict[str, dict[str, Annotated[float, Field(allow_inf_nan=False)] | str | None]] = Field(
        default_factory=dict
    )
    extra: dict[str, str | None] = Field(default_factory=dict)
    hasconst: bool | None = None


class StatisticsHeader(StrictModel):
    """The JSON document in the header of a statistics file."""

    format: Literal["consilience-statistics"]
    format_version: Literal[1]
    library_version: str
    versions: Chunked[dict[str, str]]
    estimator: str
    parameters: FiniteJSON
    n_columns: int = Field(gt=0)
    classes: Chunked[list[bool | int | float | str] | None] = None
    classes_are_objects: bool = False
    target_shape: Chunked[list[int]] | None = None
    features: FeaturesHeader = Field(default_factory=FeaturesHeader)
    design: DesignHeader = Field(default_factory=DesignHeader)
    steps: Annotated[list[StepHeader], FailFast()] = Field(default_factory=list)
    last_step: str | None = None
    approximations: Chunked[list[str]] = Field(default_factory=list)
    min_count: float = Field(ge=0, allow_inf_nan=False)
    n_withheld: int = Field(default=0, ge=0)
    provenance: MadeHeader | None = None

    @property
    def n_targets(self) -> int:
        """Number of columns of the targets; 0 without."""
        return 0 if self.target_shape is None else (self.target_shape[0] if self.target_shape else 1)


def write_statistics(path: Path, statistics: Statistics, provenance: Mapping[str, Json] | None = None) -> None:
    """Write a statistics file, whole or not at all."""
    fields = {
        "versions": {"scikit-learn": library_versions()["scikit-learn"]},
        **statistics.header(),
        "provenance": None if provenance is None else dict(provenance),
    }
    arrays = {name: np.asarray(values, dtype=np.float64, order="C") for name, values in statistics.tensors()}
    STATISTICS_FILES.write(path, fields, arrays)


def _checked(file: SafetensorsFile, header: StatisticsHeader, tensors: TensorHeader) -> StatisticsHeader:
    """Return the document, if the tensors are those of this estimator, of the types and shapes that are theirs."""
    adapter = _known_adapter(file, header)
    for name in sorted(tensors.shapes):
        if tensors.dtypes[name] != "float64":
            raise FileFormatError(file.label, f"tensor {name!r} has type {tensors.dtypes[name]}, expected F64")
        if math.prod(tensors.shapes[name]) == 0:
            raise FileFormatError(file.label, f"tensor {name!r} is empty")
    shapes = dict(tensors.shapes)
    names = {name.split(".")[1] for name in shapes if name.startswith("moments.") and name.count(".") == 2}
    for name in sorted(names):
        p, is_by_column = _take_moments(file, name, shapes)
        expected = 1 if adapter.by_column and is_by_column else header.n_columns + header.n_targets
        if p != expected:
            raise FileFormatError(file.label, f"moments {name!r} are of {p} columns, expected {expected}", REMEDY)
    if unknown := sorted(name for name in shapes if name.partition(".")[0] not in ("counts", "maxima")):
        raise FileFormatError(file.label, f"has tensors that such a file does not have: {', '.join(unknown[:5])}")
    if not {f"moments.{ROWS}.n", f"counts.{ROWS}"} & set(tensors.shapes):
        raise FileFormatError(file.label, "has no moments and no counts of rows", REMEDY)
    return header


def _known_adapter(file: SafetensorsFile, header: StatisticsHeader) -> EstimatorAdapter:
    """Return the adapter of the estimator in a file, if that and all steps before it are known."""
    try:
        adapter = adapter_of_kind(header.estimator)
        for step in header.steps:
            if step.estimator not in (PASSTHROUGH, COLUMN_TRANSFORMER):
                adapter_of_kind(step.estimator)
        return adapter
    except InputError as error:
        raise FileFormatError(problem.about(file.label) for problem in error.problems) from error


def _take_moments(file: SafetensorsFile, name: str, shapes: dict[str, tuple[int, ...]]) -> tuple[int, bool]:
    """Take the tensors of moments out of `shapes`; return their number of columns, and whether there are several."""
    if missing := [part for part in _PARTS if f"moments.{name}.{part}" not in shapes]:
        raise FileFormatError(file.label, f"lacks the tensor 'moments.{name}.{missing[0]}'", REMEDY)
    leading, *of_parts = (shapes.pop(f"moments.{name}.{part}") for part in _PARTS)
    p = of_parts[-1][-1] if of_parts[-1] else 0
    spread = shapes.pop(f"moments.{name}.variances", None) or shapes.pop(f"moments.{name}.scatter", None)
    is_whole = spread in ((*leading, p), (*leading, p * (p + 1) // 2))
    if not is_whole or of_parts != [leading, leading, (*leading, p)]:
        raise FileFormatError(file.label, f"tensors of moments {name!r} have shapes that do not go together", REMEDY)
    return p, bool(leading)


def _make(
    file: SafetensorsFile, header: StatisticsHeader, arrays: dict[str, AnyArray]
) -> tuple[Statistics, dict[str, Any] | None]:
    """Return the statistics of a file with its provenance, if its values are such."""
    tensors = {name: np.asarray(values, dtype=np.float64) for name, values in arrays.items()}
    names = sorted({name.split(".")[1] for name in tensors if name.startswith("moments.")})
    counts, maxima = (
        {name.partition(".")[2]: values for name, values in tensors.items() if name.startswith(group)}
        for group in ("counts.", "maxima.")
    )
    try:
        statistics = Statistics(
            header.estimator,
            dict(header.parameters),
            header.n_columns,
            {name: _moments(tensors, name) for name in names},
            counts,
            maxima,
            classes=None if header.classes is None else ClassLabels(tuple(header.classes), header.classes_are_objects),
            target_shape=None if header.target_shape is None else tuple(header.target_shape),
            features=Features(**header.features.model_dump()),
            design=Design.from_json(header.design.model_dump()),
            steps=tuple(Step(step.name, step.estimator, dict(step.parameters)) for step in header.steps),
            last_step=header.last_step,
            approximations=tuple(header.approximations),
            min_count=header.min_count,
            n_withheld=header.n_withheld,
        )
        problems = statistics_problems(statistics)
    except InputError as error:
        problems = list(error.problems)
    if problems:
        raise InputError(problem.about(file.label) for problem in problems)
    return statistics, None if header.provenance is None else header.provenance.model_dump(exclude_unset=True)


def _moments(tensors: Mapping[str, Array], name: str) -> CentredMoments:
    parts = {part: tensors[f"moments.{name}.{part}"] for part in _PARTS}
    variances = tensors.get(f"moments.{name}.variances")
    if variances is not None:
        return CentredMoments(**parts, scatter=variances)
    p = parts["mean"].shape[-1]
    packed = tensors[f"moments.{name}.scatter"]
    scatter = np.zeros((*packed.shape[:-1], p, p))
    rows, columns = np.triu_indices(p)
    scatter[..., rows, columns] = packed
    scatter[..., columns, rows] = packed
    return CentredMoments(**parts, scatter=scatter)


STATISTICS_FILES = Format(
    STATISTICS,
    FORMAT_VERSION,
    StatisticsHeader,
    "a statistics file",
    _make,
    prepare=_checked,
    max_entries={"steps": _MAX_STEPS},
)
read_header = STATISTICS_FILES.read_header
read_statistics = STATISTICS_FILES.read
"""Returns the statistics of a file, and its provenance or None."""
load_statistics = STATISTICS_FILES.load
"""Returns the statistics of a file."""


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
