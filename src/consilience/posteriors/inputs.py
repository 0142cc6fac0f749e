"""Inputs of a fusion described as posteriors, and the checks of what must agree before they are matched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from consilience.catalogue import said_once
from consilience.core.ancestry import MAX_SHARED, NO_ANCESTORS, ancestors_of, counted_twice
from consilience.core.inputs import EQUAL, NamedInput, files_given_twice, stated_numbers, too_few_models
from consilience.errors import InputError, Problem, UnsupportedError
from consilience.posteriors.describe import describe_all, unusable_components
from consilience.posteriors.files import POSTERIOR_FILES
from consilience.posteriors.labels import has_labels, label_problems
from consilience.posteriors.observation_counts import (
    is_stated,
    require_same_as_recorded,
    unknown_number,
)
from consilience.posteriors.posterior import Features, Posterior
from consilience.posteriors.rebuild import adapter_of
from consilience.posteriors.scaling import is_of_pipeline, without_pipeline
from consilience.posteriors.vocabulary import VocabularyAlignment, align_vocabularies

MAX_WEIGHT_DIFFERENCE = 0.8
"""Part of a mixture up to which weights and shares of counts may differ.

Weights are the mean of a posterior whose prior counts as much as A observations; beside N of data it moves at most the
part A / (N + A), which exceeds this only where the prior counts four times all data. Chosen by hand."""


@dataclass(frozen=True, slots=True)  # there may be very many
class DescribedInput:
    """An input and the posterior that it was described as.

    Parameters
    ----------
    name : str
        Its name in results.
    label : str
        Its name in messages.
    posterior : Posterior
        The posterior over its components.
    digest : str or None
        SHA-256 of its file; None for an object in memory.
    unusable : tuple of int, optional
        Components of a fitted model that the posterior lacks, since nothing is known of them. Default: none.
    content : str, optional
        Digest of the posterior as it was handed in. Default: that of `posterior`.
    ancestors : mapping of str to str, optional
        Names of what a fused file was fused from, by their digests. Default: none.
    """

    name: str
    label: str
    posterior: Posterior
    digest: str | None
    unusable: tuple[int, ...] = ()
    content: str = ""
    ancestors: Mapping[str, str] = field(default_factory=lambda: NO_ANCESTORS)

    @property
    def content_digest(self) -> str:
        """Digest of the posterior as it was handed in; computed when asked for, since there may be very many."""
        return self.content or self.posterior.digest

    def with_posterior(self, posterior: Posterior) -> DescribedInput:
        """Return the input described by another posterior; what was handed in stays."""
        if posterior is self.posterior:
            return self
        return replace(self, posterior=posterior, content=self.content_digest)


def describe_inputs(
    inputs: Sequence[NamedInput], n_observations: Any
) -> tuple[list[DescribedInput], VocabularyAlignment | None, list[Problem]]:
    """Return the posteriors of all inputs that could be described, how words were aligned, and every problem.

    Topic models of different vocabularies come over the union of their words; all others must agree in their columns.

    Parameters
    ----------
    inputs : sequence of NamedInput
        The models.
    n_observations : sequence of float, mapping of str to float, "equal", or None
        Observations behind each model, for models that do not record it; ``"equal"`` counts them all alike.

    Raises
    ------
    OptionError
        For `n_observations` that are not one positive number for each input.
    """
    numbers = stated_numbers(n_observations, [named_input.name for named_input in inputs])
    are_equal = numbers is None and n_observations is not None
    described: list[DescribedInput] = []
    problems: list[Problem] = []
    files = [named_input.file for named_input in inputs if named_input.file is not None]
    contents = iter(POSTERIOR_FILES.read_many(files))
    for position, named_input in enumerate(inputs):
        is_read, unusable, ancestors = True, tuple[int, ...](), NO_ANCESTORS
        try:
            if named_input.file is not None:
                content = next(contents)
                if isinstance(content, InputError):
                    is_read = False
                    raise content
                posterior, digest = content[0], named_input.file.sha256
                ancestors = ancestors_of(content[1])
            else:
                posterior, digest = describe_all(named_input.model), None
                unusable = tuple(unusable_components(named_input.model))
            n_fitted = None if numbers is None else numbers[position]
            counted = _with_number(named_input, posterior, n_fitted, problems, are_equal=are_equal)
            site = DescribedInput(named_input.name, named_input.label, posterior, digest, unusable, ancestors=ancestors)
            described.append(site.with_posterior(counted))
        except (InputError, UnsupportedError) as error:
            # Readers of files say whose problems theirs are.
            problems += [problem.about(named_input.label) if is_read else problem for problem in error.problems]
    problems = said_once(problems)
    if not all(is_of_pipeline(site.posterior) for site in described):
        # All are in the units of the data, so Pipelines go with models of unscaled data, and such a model comes out.
        described = [site.with_posterior(without_pipeline(site.posterior)) for site in described]
    posteriors, alignment, unaligned = align_vocabularies(
        [site.label for site in described], [site.posterior for site in described]
    )
    described = [site.with_posterior(posterior) for site, posterior in zip(described, posteriors, strict=True)]
    digests = [site.digest for site in described if site.digest is not None]
    if len(set(digests)) < len(digests):
        problems += files_given_twice(inputs)
    problems += counted_twice(described)
    problems += [problem for site in described for problem in _count_problems(site)]
    stated = [site.posterior.counts for site in described]
    if described and all(counts is not None and not np.any(counts > 0) for counts in stated):
        problems.append(
            Problem(
                ", ".join(site.label for site in described[:MAX_SHARED]),
                "state counts that are all zero, expected the observations behind each component",
                "leave counts out where they are not known",
                "E-NUMBER",
            )
        )
    problems += _disagreements(described, unaligned)
    if len(inputs) < 2:
        problems += too_few_models(len(inputs))
    return described, alignment, problems


def _count_problems(site: DescribedInput) -> list[Problem]:
    """Return what is wrong with the counts of an input: such that its weights contradict them."""
    counts, weights = site.posterior.counts, site.posterior.weights
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


def _with_number(
    named_input: NamedInput,
    posterior: Posterior,
    n_observations: float | None,
    problems: list[Problem],
    *,
    are_equal: bool,
) -> Posterior:
    """Return the posterior of an input whose number of observations is known, or whose models all count alike.

    Where it is neither, that is added to `problems`, and the posterior can still be compared with others.

    Raises
    ------
    InputError
        Where what is told contradicts what is recorded.
    UnsupportedError
        Where no adapter is registered for its kind.
    """
    adapter = adapter_of(posterior)
    if adapter is None:
        return posterior  # what is no library's model says all that it says by its counts
    if adapter.records_n_observations:
        if are_equal:
            raise InputError(
                "n_observations",
                f"is {EQUAL!r}, but a {adapter.kind} records its observations",
                "leave it out, and give weights if models are to count otherwise",
            )
        if n_observations is None:
            return posterior
        if named_input.file is None and not isinstance(named_input.model, Posterior):
            return describe_all(named_input.model, n_observations=n_observations)  # some take it where they lack it
        require_same_as_recorded(adapter, posterior, n_observations)
        return posterior
    if are_equal:
        return adapter.recount(posterior, None)
    if n_observations is None:
        if not is_stated(posterior):
            problems.append(unknown_number(named_input.label, adapter.kind))
        return posterior
    if is_stated(posterior):
        require_same_as_recorded(adapter, posterior, n_observations)
        return posterior
    if named_input.file is None and not isinstance(named_input.model, Posterior):
        return describe_all(named_input.model, n_observations=n_observations)
    return adapter.recount(posterior, n_observations)


def _disagreements(described: list[DescribedInput], unaligned: list[Problem]) -> list[Problem]:
    """Return how the models differ in what must agree: source, family, features, and attached arrays.

    `unaligned` are the reasons why words could not be aligned; with any, columns are not compared further.
    """
    problems: list[Problem] = []
    for site in described[1:]:
        first, expected, posterior = described[0], described[0].posterior, site.posterior
        keys = sorted(set(expected.source) | set(posterior.source))
        if "kind" in keys and posterior.source.get("kind") != expected.source.get("kind"):
            keys = ["kind"]  # models of another class have other options too, which say nothing more
        source_problems = [
            Problem(
                site.label,
                f"has {key} {posterior.source.get(key)!r}, expected {expected.source.get(key)!r} as in {first.label}",
                code="E-MISMATCH",
            )
            for key in keys
            if posterior.source.get(key) != expected.source.get(key)
        ]
        problems += source_problems
        if posterior.family != expected.family and not source_problems and not unaligned:
            problems.append(
                Problem(
                    site.label,
                    f"is {posterior.family}, expected {expected.family} as in {first.label}",
                    code="E-MISMATCH",
                )
            )
    comparable = [site for site in described if unaligned or site.posterior.family == described[0].posterior.family]
    fields: tuple[str, ...] = ("classes",) if unaligned else ("names", "units", "scaling", "classes", "categories")
    if described and has_labels(described[0].posterior):  # sites may have different classes
        fields = tuple(field for field in fields if field != "classes")
        problems += [
            Problem(site.label, text, code="E-MISMATCH")
            for site in described
            for text in label_problems(site.posterior)
        ]
    return problems + unaligned + _feature_disagreements(comparable, fields) + _attached_disagreements(comparable)


def _feature_disagreements(described: list[DescribedInput], fields: Sequence[str]) -> list[Problem]:
    """Return the models whose `fields` of features differ from those of the first model that states them."""
    problems: list[Problem] = []
    for name in fields:
        stating = [site for site in described if getattr(site.posterior.features, name) is not None]
        for site in stating[1:]:
            first, other = (Features(**{name: getattr(s.posterior.features, name)}) for s in (stating[0], site))
            problems += [Problem(site.label, text, code="E-MISMATCH") for text in first.differences(other)]
    return problems


def _attached_disagreements(described: list[DescribedInput]) -> list[Problem]:
    """Return the models that lack an attached array of another model, or have it with another shape or rule."""
    problems: list[Problem] = []
    for name in sorted({name for site in described for name in site.posterior.attached}):
        holder = next(site for site in described if name in site.posterior.attached)
        for site in described:
            attached = site.posterior.attached.get(name)
            if attached is None:
                problems.append(
                    Problem(site.label, f"lacks the attached array {name!r} of {holder.label}", code="E-NEEDED")
                )
            elif not attached.fits(holder.posterior.attached[name]):
                problems.append(
                    Problem(
                        site.label,
                        f"attached array {name!r} has another shape or rule than in {holder.label}",
                        code="E-SHAPE",
                    )
                )
    return problems
