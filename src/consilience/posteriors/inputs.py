"""Inputs described as posteriors, and compared for what must agree before they can be matched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from consilience.checks import as_weights
from consilience.core.inputs import NamedInput, files_given_twice, in_order
from consilience.errors import InputError, UnsupportedError
from consilience.posteriors.describe import describe
from consilience.posteriors.files import read_posteriors
from consilience.posteriors.posterior import Features, Posterior
from consilience.posteriors.vocabulary import VocabularyAlignment, align_vocabularies


@dataclass(frozen=True)
class DescribedInput:
    """An input and the posterior that it was described as.

    Parameters
    ----------
    name
        What results call it.
    label
        What messages call it.
    posterior
        The posterior over its components.
    digest
        SHA-256 of its file; None for an object in memory.
    """

    name: str
    label: str
    posterior: Posterior
    digest: str | None


def describe_inputs(
    inputs: Sequence[NamedInput], n_observations: Any
) -> tuple[list[DescribedInput], VocabularyAlignment | None, list[str]]:
    """Return the posteriors of all inputs that could be described, how words were aligned, and every problem.

    Topic models of different vocabularies come over the union of their words; all others must agree in their columns.

    Parameters
    ----------
    inputs
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
        counts = in_order(counts, [one.name for one in inputs], "n_observations")
        counts = as_weights(counts, len(inputs), "n_observations").tolist()
    described: list[DescribedInput] = []
    problems: list[str] = []
    contents = iter(read_posteriors([one.file for one in inputs if one.file is not None]))
    for place, one in enumerate(inputs):
        try:
            if one.file is not None:
                content = next(contents)
                if isinstance(content, InputError):
                    raise content
                described.append(DescribedInput(one.name, one.label, content[0], one.file.sha256))
            else:
                posterior = describe(one.model, n_observations=None if counts is None else float(counts[place]))
                described.append(DescribedInput(one.name, one.label, posterior, None))
        except UnsupportedError as error:
            problems.append(f"{one.label}: {error}")
        except InputError as error:
            prefix = f"{one.label}: " if one.file is None else ""
            problems += [f"{prefix}{problem}" for problem in error.problems]
    posteriors, alignment, unaligned = align_vocabularies(
        [one.label for one in described], [one.posterior for one in described]
    )
    described = [replace(one, posterior=posterior) for one, posterior in zip(described, posteriors, strict=True)]
    problems += files_given_twice(inputs) + _disagreements(described, unaligned)
    if len(inputs) < 2:
        problems.append(f"fusing takes at least two models, found {len(inputs)}")
    return described, alignment, problems


def _disagreements(described: list[DescribedInput], unaligned: list[str]) -> list[str]:
    """Return how the models differ in what must agree.

    `unaligned` is why words could not be aligned: then nothing else is said of columns.
    """
    problems: list[str] = []
    for one in described[1:]:
        first, expected, posterior = described[0], described[0].posterior, one.posterior
        sources = [
            f"{one.label}: has {key} {posterior.source.get(key)!r}, expected {expected.source.get(key)!r} "
            f"as in {first.label}"
            for key in sorted(set(expected.source) | set(posterior.source))
            if posterior.source.get(key) != expected.source.get(key)
        ]
        problems += sources
        if posterior.family != expected.family and not sources and not unaligned:
            problems.append(f"{one.label}: is {posterior.family}, expected {expected.family} as in {first.label}")
    alike = [one for one in described if unaligned or one.posterior.family == described[0].posterior.family]
    stated = ("classes",) if unaligned else ("names", "units", "scaling", "classes")
    return problems + unaligned + _feature_disagreements(alike, stated) + _attached_disagreements(alike)


def _feature_disagreements(described: list[DescribedInput], fields: Sequence[str]) -> list[str]:
    """Return who states another value of any of these `fields` of its features than the first model that states one."""
    problems: list[str] = []
    for field in fields:
        stated = [one for one in described if getattr(one.posterior.features, field) is not None]
        for one in stated[1:]:
            first, other = (Features(**{field: getattr(m.posterior.features, field)}) for m in (stated[0], one))
            problems += [f"{one.label}: {text}" for text in first.differences(other)]
    return problems


def _attached_disagreements(described: list[DescribedInput]) -> list[str]:
    """Return who lacks an attached array that another model has, or has it in another form."""
    problems: list[str] = []
    for name in sorted({name for one in described for name in one.posterior.attached}):
        holder = next(one for one in described if name in one.posterior.attached)
        for one in described:
            attached = one.posterior.attached.get(name)
            if attached is None:
                problems.append(f"{one.label}: lacks the attached array {name!r} of {holder.label}")
            elif not attached.fits(holder.posterior.attached[name]):
                problems.append(
                    f"{one.label}: attached array {name!r} has another shape or rule than in {holder.label}"
                )
    return problems
