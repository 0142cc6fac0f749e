"""Inputs of a fusion described as posteriors, and the checks of what must agree before they are matched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from consilience.checks import as_weights
from consilience.core.inputs import NamedInput, files_given_twice, in_order, too_few_models
from consilience.errors import InputError, Problem, UnsupportedError
from consilience.posteriors.describe import describe
from consilience.posteriors.files import read_posteriors
from consilience.posteriors.labels import has_labels, label_problems
from consilience.posteriors.posterior import Features, Posterior
from consilience.posteriors.rebuild import adapter_of
from consilience.posteriors.vocabulary import VocabularyAlignment, align_vocabularies


@dataclass(frozen=True)
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
    """

    name: str
    label: str
    posterior: Posterior
    digest: str | None


def describe_inputs(
    inputs: Sequence[NamedInput], n_observations: Any
) -> tuple[list[DescribedInput], VocabularyAlignment | None, list[Problem]]:
    """Return the posteriors of all inputs that could be described, how words were aligned, and every problem.

    Topic models of different vocabularies come over the union of their words; all others must agree in their columns.

    Parameters
    ----------
    inputs : sequence of NamedInput
        The models.
    n_observations : sequence of float, mapping of str to float, or None
        Observations behind each model, for models that do not record it.

    Raises
    ------
    OptionError
        For `n_observations` that are not one positive number for each input.
    """
    counts = n_observations
    if counts is not None:
        counts = in_order(counts, [named_input.name for named_input in inputs], "n_observations")
        counts = as_weights(counts, len(inputs), "n_observations").tolist()
    described: list[DescribedInput] = []
    problems: list[Problem] = []
    files = [named_input.file for named_input in inputs if named_input.file is not None]
    contents = iter(read_posteriors(files) if files else ())
    for position, named_input in enumerate(inputs):
        try:
            if named_input.file is not None:
                content = next(contents)
                if isinstance(content, InputError):
                    raise content
                posterior, digest = content[0], named_input.file.sha256
            else:
                n_fitted = None if counts is None else float(counts[position])
                posterior, digest = describe(named_input.model, n_observations=n_fitted), None
            adapter_of(posterior)  # raises where no adapter is registered for its kind
            described.append(DescribedInput(named_input.name, named_input.label, posterior, digest))
        except (InputError, UnsupportedError) as error:
            # Readers of files say whose problems theirs are.
            is_named = named_input.file is not None and isinstance(error, InputError)
            problems += [problem if is_named else problem.about(named_input.label) for problem in error.problems]
    posteriors, alignment, unaligned = align_vocabularies(
        [site.label for site in described], [site.posterior for site in described]
    )
    described = [replace(site, posterior=posterior) for site, posterior in zip(described, posteriors, strict=True)]
    digests = [site.digest for site in described if site.digest is not None]
    if len(set(digests)) < len(digests):
        problems += files_given_twice(inputs)
    problems += _disagreements(described, unaligned)
    if len(inputs) < 2:
        problems += too_few_models(len(inputs))
    return described, alignment, problems


def _disagreements(described: list[DescribedInput], unaligned: list[Problem]) -> list[Problem]:
    """Return how the models differ in what must agree: source, family, features, and attached arrays.

    `unaligned` are the reasons why words could not be aligned; with any, columns are not compared further.
    """
    problems: list[Problem] = []
    for site in described[1:]:
        first, expected, posterior = described[0], described[0].posterior, site.posterior
        source_problems = [
            Problem(
                site.label,
                f"has {key} {posterior.source.get(key)!r}, expected {expected.source.get(key)!r} as in {first.label}",
            )
            for key in sorted(set(expected.source) | set(posterior.source))
            if posterior.source.get(key) != expected.source.get(key)
        ]
        problems += source_problems
        if posterior.family != expected.family and not source_problems and not unaligned:
            problems.append(
                Problem(site.label, f"is {posterior.family}, expected {expected.family} as in {first.label}")
            )
    comparable = [site for site in described if unaligned or site.posterior.family == described[0].posterior.family]
    fields: tuple[str, ...] = ("classes",) if unaligned else ("names", "units", "scaling", "classes")
    if described and has_labels(described[0].posterior):  # sites may have different classes
        fields = tuple(field for field in fields if field != "classes")
        problems += [Problem(site.label, text) for site in described for text in label_problems(site.posterior)]
    return problems + unaligned + _feature_disagreements(comparable, fields) + _attached_disagreements(comparable)


def _feature_disagreements(described: list[DescribedInput], fields: Sequence[str]) -> list[Problem]:
    """Return the models whose `fields` of features differ from those of the first model that states them."""
    problems: list[Problem] = []
    for field in fields:
        stating = [site for site in described if getattr(site.posterior.features, field) is not None]
        for site in stating[1:]:
            first, other = (Features(**{field: getattr(s.posterior.features, field)}) for s in (stating[0], site))
            problems += [Problem(site.label, text) for text in first.differences(other)]
    return problems


def _attached_disagreements(described: list[DescribedInput]) -> list[Problem]:
    """Return the models that lack an attached array of another model, or have it with another shape or rule."""
    problems: list[Problem] = []
    for name in sorted({name for site in described for name in site.posterior.attached}):
        holder = next(site for site in described if name in site.posterior.attached)
        for site in described:
            attached = site.posterior.attached.get(name)
            if attached is None:
                problems.append(Problem(site.label, f"lacks the attached array {name!r} of {holder.label}"))
            elif not attached.fits(holder.posterior.attached[name]):
                problems.append(
                    Problem(site.label, f"attached array {name!r} has another shape or rule than in {holder.label}")
                )
    return problems
