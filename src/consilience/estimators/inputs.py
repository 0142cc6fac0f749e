"""Inputs of a fusion described as statistics, and the checks of what must agree before they are summed."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from consilience.catalogue import said_once
from consilience.core.agreement import SAME_SUMS, Doubt, Meaning
from consilience.core.features import Features
from consilience.core.gather import Described, FormatReading, aligned_doubts, gather
from consilience.core.inputs import NamedInput, name_inputs, too_few_models
from consilience.drawing.words import first_names
from consilience.errors import ConsilienceError, InputError, Problem, WithheldWarning
from consilience.estimators.adapters.table import adapter_of_kind
from consilience.estimators.aligned_columns import MAX_NAMED, align_columns
from consilience.estimators.describe import describe_all, is_estimator, withhold
from consilience.estimators.files import STATISTICS_FILES, read_statistics, statistics_problems
from consilience.estimators.fusion import EstimatorFusion
from consilience.estimators.hyper_parameters import PRIORS
from consilience.estimators.statistics import Statistics, Step
from consilience.files.document import STATISTICS
from consilience.files.format import Record

SAME_FIT = 0.01
"""Relative difference of sums at two fits, times sqrt(n), below which the rows are the same ones in another order: the
fits of solvers end within 1e-4. Chosen by hand."""

PRIOR_ROUNDING = 1e-6
"""Difference from 1 of the sum of priors that is rounding. Chosen by hand."""


class HyperParameterWarning(UserWarning):
    """Sites used different hyper-parameters that change no sums; the fused estimator has those of one of them."""

    code = "W-DIFFER"


@dataclass(frozen=True, eq=False)
class DescribedEstimator(Described[Statistics]):
    """An input and the statistics that it was described as."""

    withheld: tuple[Problem, ...] = ()  # classes of too few rows, which were left out


@dataclass(frozen=True, eq=False)
class GatheredEstimators:
    """All inputs as statistics, and what is wrong, in doubt, or to be known of them."""

    described: list[DescribedEstimator]
    problems: list[Problem]
    doubts: list[Doubt]
    notes: list[str]  # how columns were aligned, a sentence each


class StatisticsReading(FormatReading[Statistics]):
    """How statistics are read."""

    called = "a statistics file"
    format = STATISTICS_FILES

    def convert(self, one: NamedInput) -> tuple[Statistics, Record]:
        """Return a fitted estimator, or the sums of a fusion, as statistics."""
        return statistics_of(one.model), one.model.record if isinstance(one.model, EstimatorFusion) else None

    def meaning_of(self, value: Statistics) -> Meaning:
        """Return where the columns of the rows lie, the classes that are texts, and the sums."""
        labels = None if value.classes is None else tuple(one for one in value.classes.values if isinstance(one, str))
        adapter = adapter_of_kind(value.kind)
        sums = () if adapter.is_idempotent else tuple(values for _, values in value.tensors())
        # A solver stops short of its optimum, and sites that are not the same differ by some 1 / sqrt(n).
        error = SAME_SUMS if adapter.mark == "exact" else SAME_FIT / np.sqrt(max(value.n_observations, 1.0))
        return Meaning(adapter.column_moments(value), labels, sums, error, adapter.is_idempotent)


def describe_inputs(
    inputs: Sequence[NamedInput], min_count: float, stated: Mapping[str, Any], absent_columns: str | None = None
) -> GatheredEstimators:
    """Return the statistics of all inputs that could be described, sorted by name and over the same columns.

    Classes of fewer rows than `min_count` are left out; `stated` are hyper-parameters that the caller gave, which sites
    need not agree in. `absent_columns` are as ``align_columns`` takes them.
    """
    gathered = gather(inputs, StatisticsReading())
    problems = [*too_few_models(len(inputs)), *gathered.problems]
    described: list[DescribedEstimator] = []
    for site in sorted(gathered.described, key=lambda site: site.name):
        try:
            left, withheld = withhold(site.value, min_count)
        except InputError as error:
            problems += [problem.about(site.label) for problem in error.problems]
            continue
        described.append(DescribedEstimator(**{**site.fields(), "value": left}, withheld=tuple(withheld)))
    aligned, notes = align_columns([(site.label, site.value) for site in described], absent_columns)
    described = [site.with_value(value) for site, value in zip(described, aligned, strict=True)]
    problems += disagreements([(site.label, site.value) for site in described], stated)
    doubts = gathered.doubts if not notes else aligned_doubts(described, StatisticsReading())
    return GatheredEstimators(described, said_once(problems), doubts, notes)


def statistics_of(model: Any) -> Statistics:
    """Return the statistics of an object in memory."""
    if isinstance(model, EstimatorFusion):
        return model.statistics
    if isinstance(model, Statistics):
        if problems := statistics_problems(model):
            raise InputError(problems)
        return model
    if not is_estimator(model):
        text = f"is a {type(model).__name__}, expected an estimator that is fused by its sums"
        raise InputError("", text, "fuse one kind", "E-TYPE")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WithheldWarning)
        return describe_all(model)


def read_sums(value: Any, called: str) -> tuple[Statistics, dict[str, Any] | None]:
    """Return the statistics of what has sums, with its provenance where it was fused; messages say `called`.

    `value` is a fusion, statistics, a fitted estimator, a path, or a mapping of one name to such.
    """
    inputs = name_inputs(value if isinstance(value, Mapping) else [value])
    if len(inputs) != 1:
        raise InputError(called, f"is a mapping of {len(inputs)} models, expected one", "give one after another")
    (one,) = inputs
    try:
        if one.file is not None:
            one.file.header()  # which says why, where it cannot be read
            if one.format != STATISTICS:
                text = "is no statistics file"
                raise InputError(one.label, text, "give what cs.save wrote of an estimator", "E-TYPE")
            return read_statistics(one.file)
        return statistics_of(one.model), dict(one.model.record) if isinstance(one.model, EstimatorFusion) else None
    except ConsilienceError as error:
        named = one.file is not None
        raise type(error)(problem if named else problem.about(called) for problem in error.problems) from error


def disagreements(sites: Sequence[tuple[str, Statistics]], stated: Mapping[str, Any]) -> list[Problem]:
    """Return how statistics differ in what must agree, a line each; sites are called by labels.

    Sites are compared with the first of the most common kind, so that the line names the odd one out.
    """
    problems: list[Problem] = []
    if not sites:
        return problems
    most_common = Counter(site.kind for _, site in sites).most_common(1)[0][0]  # of as many, the one that comes first
    reference = next(number for number, (_, site) in enumerate(sites) if site.kind == most_common)
    first_label, first = sites[reference]
    alike = [sites[reference]]
    for label, site in (*sites[:reference], *sites[reference + 1 :]):
        contradictions = _of_two(first_label, first, label, site, stated)
        problems += contradictions
        if not contradictions:
            alike.append((label, site))
    problems += _feature_disagreements(alike)
    if first.classes is not None:
        problems += _prior_disagreements(alike, stated)
    return problems


def _of_two(
    first_label: str, first: Statistics, label: str, site: Statistics, stated: Mapping[str, Any]
) -> list[Problem]:
    """Return how a site differs from the first of the most common kind."""
    differs = partial(_differs, label, first_label)
    if site.kind != first.kind:
        return [differs("is a", site.kind, first.kind, "fit the same estimator at all sites")]
    adapter = adapter_of_kind(first.kind)
    same_columns = site.features.names == first.features.names
    if problems := (
        adapter.contradictions(first_label, first, site)
        or first.design.differences(site.design, first_label, same_columns=same_columns)
    ):
        return [problem.about(label) for problem in problems]
    if _steps(site) != _steps(first):
        return [differs("has the steps", _steps(site), _steps(first), "use the same Pipeline at all sites")]
    if other_columns := _other_columns(first_label, first, label, site):
        return other_columns
    if site.n_columns != first.n_columns:
        return [differs("has columns:", site.n_columns, first.n_columns, "fit on the same columns at all sites")]
    if site.target_shape != first.target_shape:
        problems.append(differs("has targets of shape", site.target_shape, first.target_shape))
    if site.classes is not None and first.classes is not None and site.classes.kinds() != first.classes.kinds():
        its, expected = (", ".join(labels.kinds()) for labels in (site.classes, first.classes))
        problems.append(differs("names its classes by", its, expected, "give classes the same labels at all sites"))
    return problems + _sum_differences(label, first_label, first, site)


def _other_columns(first_label: str, first: Statistics, label: str, site: Statistics) -> list[Problem]:
    """Return which columns one site has and another lacks, by name."""
    own, expected = (list(one.features.names or ()) for one in (site, first))
    lacks, more = ([name for name in these if name not in those] for these, those in ((expected, own), (own, expected)))
    if not own or not expected or not (lacks or more) or len(own) == len(expected):
        return []
    parts = [
        f"{word} {first_names(names, MAX_NAMED)}" for word, names in (("lacks", lacks), ("also has", more)) if names
    ]
    text = f"{' and '.join(parts)}, unlike {first_label}"
    remedy = "fit on the same columns at all sites; for levels that no row of a site has, `absent_columns='zeros'`"
    return [Problem(label, text, remedy, "E-MISMATCH")]


def _sum_differences(label: str, first_label: str, first: Statistics, site: Statistics) -> list[Problem]:
    """Return how the sums of a site are taken otherwise than those of the first."""
    problems = []
    for name in adapter_of_kind(first.kind).sum_parameters:
        its, expected = site.parameters.get(name), first.parameters.get(name)
        if its == expected:
            continue
        other_features = Problem(
            label,
            f"took sums of other features than {first_label}",
            "make them once, and give them to all sites",
            "E-MISMATCH",
        )
        other_option = _differs(label, first_label, f"took sums with {name}", its, expected, "fit all sites alike")
        problems.append(other_features if name == "features" else other_option)
    both = [(first.moments[name], record) for name, record in site.moments.items() if name in first.moments]
    if any(one.is_diagonal != other.is_diagonal for one, other in both):
        text = f"has other products of columns than {first_label}"
        problems.append(Problem(label, text, "describe all sites alike", "E-MISMATCH"))
    return problems


def _differs(label: str, first_label: str, what: str, found: Any, expected: Any, remedy: str = "") -> Problem:
    return Problem(label, f"{what} {found}, expected {expected} as in {first_label}", remedy, "E-MISMATCH")


def _steps(statistics: Statistics) -> list[Any]:
    """Return the steps of a Pipeline, for comparison and for messages."""

    def called(step: Step) -> str:
        parameters = ", ".join(f"{name}={value!r}" for name, value in step.parameters.items())
        return f"{step.name}: {step.kind}({parameters})"

    return [*map(called, statistics.steps), *([statistics.last_step] if statistics.last_step is not None else [])]


def _feature_disagreements(sites: Sequence[tuple[str, Statistics]]) -> list[Problem]:
    problems: list[Problem] = []
    for name in ("names", "units", "scaling", "categories"):
        stating = [(label, site) for label, site in sites if getattr(site.features, name) is not None]
        for label, site in stating[1:]:
            first, other = (Features(**{name: getattr(one.features, name)}) for one in (stating[0][1], site))
            problems += [Problem(label, text, code="E-MISMATCH") for text in first.differences(other)]
    return problems


def _prior_disagreements(sites: Sequence[tuple[str, Statistics]], stated: Mapping[str, Any]) -> list[Problem]:
    """Return sites whose priors name other numbers for a class, or classes whose priors do not add up to one."""
    problems: list[Problem] = []
    for name in PRIORS:
        given = [(label, site, site.parameters.get(name)) for label, site in sites]
        if name in stated or not any(isinstance(value, list) for _, _, value in given):
            continue
        remedy = f"give {name}= for all classes here, or fit all sites with the same"
        numbers: dict[Any, float] = {}
        for label, site, value in given:
            if not isinstance(value, list):
                text = f"was fitted with {name}={value!r}, expected numbers as others"
                problems.append(Problem(label, text, remedy, "E-TYPE"))
                continue
            of_site = dict(zip(site.classes.values if site.classes else (), value, strict=True))
            odd = [key for key, number in of_site.items() if numbers.setdefault(key, number) != number]
            problems += [
                Problem(label, f"has {name} {of_site[key]:g} of class {key}, expected {numbers[key]:g}", remedy)
                for key in odd[:1]
            ]
        if not problems and abs(sum(numbers.values()) - 1.0) > PRIOR_ROUNDING:
            text = f"of all classes add up to {sum(numbers.values()):g}, expected 1"
            problems.append(Problem(name, text, remedy, "E-SHAPE"))
    return problems


def differing_parameters(sites: Sequence[tuple[str, Statistics]], stated: Mapping[str, Any]) -> list[str]:
    """Return the hyper-parameters that change no sums and in which sites differ, a line each."""
    first_label, first = sites[0]
    lines = []
    for name, value in first.parameters.items():
        others = [label for label, site in sites if site.parameters.get(name) != value]
        if others and name not in stated and name not in PRIORS:
            lines.append(f"{name} is {value!r} as at {first_label}, and another at {first_names(others, 3)}")
    return lines
