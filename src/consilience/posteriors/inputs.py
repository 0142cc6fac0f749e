"""Inputs of a fusion described as posteriors, and the checks of what must agree before they are matched.

Components may have labels, such as the classes of a classifier: the same label is the same component, and nothing is
matched by divergence. The fused model has the union of the labels of all sites that have weight, sorted as texts, and
the average of the components of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from consilience.checks import Array, Labels
from consilience.core.agreement import ColumnMoments, Doubt, Meaning
from consilience.core.features import Features
from consilience.core.gather import MAX_SHARED, Described, FormatReading, aligned_doubts, gather
from consilience.core.inputs import EQUAL, NamedInput, stated_numbers, too_few_models
from consilience.drawing.words import format_count
from consilience.errors import InputError, Problem
from consilience.families import Dirichlet, Family
from consilience.files.format import Record
from consilience.posteriors.adapters.table import adapter_of, has_labels
from consilience.posteriors.describe import describe_all, require_same_as_recorded, unknown_number, unusable_components
from consilience.posteriors.files import POSTERIOR_FILES
from consilience.posteriors.mixture_density import place_of
from consilience.posteriors.origin import about, common_origin
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.scaling import in_order_of, is_of_pipeline, without_pipeline
from consilience.posteriors.vocabulary import VocabularyAlignment, align_vocabularies

MAX_WEIGHT_DIFFERENCE = 0.8
"""Part of a mixture up to which weights and shares of counts may differ.

Weights are the mean of a posterior whose prior counts as much as A observations; beside N of data it moves at most the
part A / (N + A), which exceeds this only where the prior counts four times all data. Chosen by hand."""


class PosteriorReading(FormatReading[Posterior]):
    """How posteriors are read: with the numbers of observations that the call states, or all counted alike."""

    called = "a posterior file"
    format = POSTERIOR_FILES

    def __init__(self, numbers: Sequence[float] | None, *, are_equal: bool) -> None:
        self.numbers, self.are_equal = numbers, are_equal

    def takes(self, file: NamedInput) -> bool:
        """Return that every file is read: the reader says what else it is."""
        return True

    def convert(self, one: NamedInput) -> tuple[Posterior, Record]:
        """Return a fitted model as a posterior."""
        return describe_all(one.model), None

    def meaning_of(self, value: Posterior) -> Meaning:
        """Return mean and deviation of the columns of a mixture, and the labels of components that have some."""
        labels, family = value.features.classes, value.family
        gaussians = family.plug_in(value.natural) if family.describes_data else None
        columns = None
        if gaussians is not None:
            n = np.inf if value.counts is None else float(value.counts.sum())
            centres, covariances = map(np.asarray, gaussians)
            means, deviations = place_of(centres + value.origin, covariances, value.shares)
            columns = ColumnMoments(value.features.names, n, means, deviations, has_origin=False)
        return Meaning(columns, labels if has_labels(value) else None)

    def settle(self, value: Posterior, one: NamedInput, place: int, problems: list[Problem]) -> Posterior:
        """Return a posterior whose number of observations is known, or whose models all count alike.

        Where it is neither, that is added to `problems`, and the posterior can still be compared with others. What is
        stated and contradicts what is recorded is an InputError.
        """
        adapter = adapter_of(value)
        if adapter is None:
            return value  # what is no library's model says all that it says by its counts
        n_observations = None if self.numbers is None else self.numbers[place]
        is_fitted = one.file is None and not isinstance(one.model, Posterior)
        if adapter.records_n_observations:
            if self.are_equal:
                remedy = "leave it out, and give weights if models are to count otherwise"
                raise InputError(
                    "n_observations", f"is {EQUAL!r}, but a {adapter.kind} records its observations", remedy
                )
            if n_observations is None:
                return value
            if is_fitted:
                return describe_all(one.model, n_observations=n_observations)  # some take it where they lack it
            require_same_as_recorded(adapter, value, n_observations)
            return value
        if self.are_equal:
            return adapter.recount(value, None)
        if n_observations is None:
            if not value.states_observations:
                problems.append(unknown_number(one.label, adapter.kind))
            return value
        if value.states_observations:
            require_same_as_recorded(adapter, value, n_observations)
            return value
        if is_fitted:
            return describe_all(one.model, n_observations=n_observations)
        return adapter.recount(value, n_observations)


def describe_inputs(
    inputs: Sequence[NamedInput], n_observations: Any, *, is_robust: bool = False
) -> tuple[list[Described[Posterior]], VocabularyAlignment | None, list[Problem], list[Doubt], list[str]]:
    """Return the posteriors of all inputs that could be described, how words were aligned, what is wrong and in doubt.

    Last come the sites whose columns were put in the order of the first, a sentence each.

    Topic models of different vocabularies come over the union of their words; all others must agree in their columns.
    `n_observations` are as in ``fuse``, for models that do not record them; ``"equal"`` counts all models alike. Where
    fusion `is_robust`, models too far from the others to calculate with are put nearer, to be left out.
    """
    numbers = stated_numbers(n_observations, [named_input.name for named_input in inputs])
    reading = PosteriorReading(numbers, are_equal=numbers is None and n_observations is not None)
    gathered = gather(inputs, reading)
    described, problems = gathered.described, gathered.problems
    if not all(is_of_pipeline(site.value) for site in described):
        # All are in the units of the data, so Pipelines go with models of unscaled data, and such a model comes out.
        described = [site.with_value(without_pipeline(site.value)) for site in described]
    described, notes = _in_one_order(described)
    described, too_far = _about_one_origin(described, is_robust=is_robust)
    problems += too_far
    alignment, unaligned = None, list[Problem]()
    if all(isinstance(site.value.family, Dirichlet) for site in described):  # as topic models are
        labels, values = [site.label for site in described], [site.value for site in described]
        values, alignment, unaligned = align_vocabularies(labels, values)
        described = [site.with_value(value) for site, value in zip(described, values, strict=True)]
    problems += _count_problems(described) + _disagreements(described, unaligned) + too_few_models(len(inputs))
    return described, alignment, problems, aligned_doubts(described, reading) if notes else gathered.doubts, notes


def _in_one_order(described: list[Described[Posterior]]) -> tuple[list[Described[Posterior]], list[str]]:
    """Return sites with their columns in the order of the first that names them, and which sites were reordered."""
    names = next((site.value.features.names for site in described if site.value.features.names is not None), None)
    ordered, notes = [], []
    for site in described:
        own = site.value.features.names
        moved = None
        if names is not None and own is not None and own != names:
            moved = in_order_of(site.value, names, adapter_of(site.value))
        if moved is not None:
            notes.append(f"{site.label} has its columns in another order: aligned by name")
        ordered.append(site if moved is None else site.with_value(moved))
    return ordered, notes


def _about_one_origin(
    described: list[Described[Posterior]], *, is_robust: bool
) -> tuple[list[Described[Posterior]], list[Problem]]:
    """Return sites with natural parameters about one origin, where some have one, and those too far from it."""
    family = described[0].value.family if described else None
    origin = common_origin([site.value for site in described if site.value.family == family])
    if origin is None:
        return described, []
    moved, problems = list[Described[Posterior]](), list[Problem]()
    for site in described:
        value = site.value
        try:
            value = about(value, origin) if value.family == family else value
        except InputError:  # its widths are lost beside the distance
            text = "has components too far from those of the other models to calculate with both in float64"
            remedy = "see whether its columns are in the same units and count from the same zero"
            if is_robust:
                value = about(value, origin, is_cut=True)
            else:
                problems.append(Problem(site.label, text, remedy, "E-MISMATCH"))
        moved.append(site.with_value(value))
    return moved, problems


def unusable_in(site: Described[Posterior]) -> list[int]:
    """Return the components of a fitted model that its posterior lacks, since nothing is known of them."""
    return [] if site.model is None else unusable_components(site.model)


def _count_problems(described: Sequence[Described[Posterior]]) -> list[Problem]:
    """Return what is wrong with the counts of the inputs: that weights contradict them, or that none has any."""
    problems = [problem for site in described for problem in _contradicted_counts(site)]
    stated = [site.value.counts for site in described]
    if described and all(counts is not None and not np.any(counts > 0) for counts in stated):
        labels = ", ".join(site.label for site in described[:MAX_SHARED])
        text = "state counts that are all zero, expected the observations behind each component"
        problems.append(Problem(labels, text, "leave counts out where they are not known", "E-NUMBER"))
    return problems


def _contradicted_counts(site: Described[Posterior]) -> list[Problem]:
    """Return that the weights of an input contradict its counts, where they do."""
    counts, weights = site.value.counts, site.value.weights
    if counts is None or weights is None or not (np.any(counts > 0) and np.any(weights > 0)):
        return []
    # Half of the sum of absolute differences: the part of the mixture that is elsewhere.
    difference = 0.5 * float(np.abs(weights / weights.sum() - counts / counts.sum()).sum())
    if difference <= MAX_WEIGHT_DIFFERENCE:
        return []
    return [
        Problem(
            site.label,
            f"has weights that contradict its counts: {100 * difference:.0f} % of the mixture is on other components",
            "give counts and weights in the same order of components, or leave one of them out",
            "E-MISMATCH",
        )
    ]


def _disagreements(described: list[Described[Posterior]], unaligned: list[Problem]) -> list[Problem]:
    """Return how the models differ in what must agree: source, family, features, and attached arrays.

    `unaligned` are the reasons why words could not be aligned; with any, columns are not compared further.
    """
    problems = [
        problem for site in described[1:] for problem in _kind_problems(site, described[0], are_aligned=not unaligned)
    ]
    comparable = [site for site in described if unaligned or site.value.family == described[0].value.family]
    fields: tuple[str, ...] = ("classes",) if unaligned else ("names", "units", "scaling", "classes", "categories")
    if described and has_labels(described[0].value):  # sites may have different classes
        fields = tuple(field for field in fields if field != "classes")
        problems += [
            Problem(site.label, text, code="E-MISMATCH") for site in described for text in label_problems(site.value)
        ]
    return problems + unaligned + _feature_disagreements(comparable, fields) + _attached_disagreements(comparable)


def _kind_problems(site: Described[Posterior], first: Described[Posterior], *, are_aligned: bool) -> list[Problem]:
    """Return how a model differs from the first one in its source or else, where words are aligned, in its family."""
    actual, expected = site.value, first.value
    keys = sorted(set(expected.source) | set(actual.source))
    differing = [key for key in keys if actual.source.get(key) != expected.source.get(key)]
    if "kind" in differing:
        differing = ["kind"]  # models of another class have other options too, which say nothing more
    texts = [f"has {key} {actual.source.get(key)!r}, expected {expected.source.get(key)!r}" for key in differing]
    if not texts and are_aligned and actual.family != expected.family:
        texts.append(_other_family(actual.family, expected.family))
    return [Problem(site.label, f"{text} as in {first.label}", code="E-MISMATCH") for text in texts]


def _other_family(actual: Family, expected: Family) -> str:
    """Return how a family differs from the one that is expected: in its columns alone, or altogether."""
    found, wanted = (int(getattr(family, "dim", 0)) for family in (actual, expected))
    if actual.describes_data and type(actual) is type(expected) and found != wanted:
        return f"has {format_count(found, 'column')}, expected {wanted}"
    return f"is {actual}, expected {expected}"


def _feature_disagreements(described: list[Described[Posterior]], fields: Sequence[str]) -> list[Problem]:
    """Return the models whose `fields` of features differ from those of the first model that states them."""
    problems: list[Problem] = []
    for name in fields:
        stating = [site for site in described if getattr(site.value.features, name) is not None]
        for site in stating[1:]:
            first, other = (Features(**{name: getattr(s.value.features, name)}) for s in (stating[0], site))
            problems += [Problem(site.label, text, code="E-MISMATCH") for text in first.differences(other)]
    return problems


def _attached_disagreements(described: list[Described[Posterior]]) -> list[Problem]:
    """Return the models that lack an attached array of another model, or have it with another shape or rule."""
    problems: list[Problem] = []
    for name in sorted({name for site in described for name in site.value.attached}):
        holder = next(site for site in described if name in site.value.attached)
        for site in described:
            attached = site.value.attached.get(name)
            if attached is None:
                text = f"lacks the attached array {name!r} of {holder.label}"
                problems.append(Problem(site.label, text, code="E-NEEDED"))
            elif not attached.fits(holder.value.attached[name]):
                text = f"attached array {name!r} has another shape or rule than in {holder.label}"
                problems.append(Problem(site.label, text, code="E-SHAPE"))
    return problems


def label_problems(posterior: Posterior) -> list[str]:
    """Return what is wrong with the labels of a posterior that must have them, a line each."""
    labels, n_components = posterior.features.classes, posterior.n_components
    if labels is None or len(labels) != n_components:
        stated = "no" if labels is None else len(labels)
        return [f"has {stated} labels in features.classes for {n_components} components, expected one for each"]
    return [
        f"has the label {label!r} for {count} components, expected one"
        for label, count in Counter(labels).items()
        if count > 1
    ]


def group_by_label(posteriors: Sequence[Posterior], site_weights: Array) -> Labels:
    """Return the group of every component (L,): the number of its label among the sorted labels of sites with weight.

    A label that only sites without weight have is in no group: -1.
    """
    labels_by_site = [posterior.features.classes or () for posterior in posteriors]
    weighted = {label for labels, w in zip(labels_by_site, site_weights, strict=True) if w > 0 for label in labels}
    number_of_label = {label: number for number, label in enumerate(sorted(weighted))}
    return np.array([number_of_label.get(label, -1) for labels in labels_by_site for label in labels], dtype=np.int64)


def with_labels(fused: Posterior, posteriors: Sequence[Posterior], groups: Labels) -> Posterior:
    """Return a fused posterior with the labels of its components; `groups` (L,) are those of the sites' components."""
    labels = [label for posterior in posteriors for label in posterior.features.classes or ()]
    label_of_group = {int(group): label for group, label in zip(groups, labels, strict=True)}
    classes = tuple(label_of_group[group] for group in range(fused.n_components))
    return replace(fused, features=replace(fused.features, classes=classes))
