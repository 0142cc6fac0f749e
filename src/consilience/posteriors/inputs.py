"""What was handed in to be fused: models, posteriors and files, read, and compared for what must agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from consilience.checks import as_weights
from consilience.core.provenance import file_digest
from consilience.errors import InputError, UnsupportedError
from consilience.posteriors.adapters import describe
from consilience.posteriors.files import read_posterior
from consilience.posteriors.posterior import Features, Posterior
from consilience.posteriors.vocabulary import VocabularyAlignment, align_vocabularies


@dataclass(frozen=True)
class Given:
    """One model handed in: what to call it in messages, its posterior, and its file's digest."""

    name: str
    posterior: Posterior
    digest: str | None


def gather(
    models: Sequence[Any], samples: Sequence[float] | None
) -> tuple[list[Given], VocabularyAlignment | None, list[str]]:
    """Return what could be read of `models`, how words were aligned, and every problem, each naming its model.

    Topic models of different vocabularies come over the union of their words; all others must agree in their columns.
    """
    if isinstance(models, str | Path) or not isinstance(models, Sequence):
        raise InputError(f"models: expected a list of models or paths, found {type(models).__name__}")
    if samples is not None:
        samples = as_weights(samples, len(models), "samples").tolist()
    given: list[Given] = []
    problems: list[str] = []
    for number, model in enumerate(models):
        try:
            if isinstance(model, str | Path):
                path = Path(model)
                given.append(Given(str(model), read_posterior(path)[0], file_digest(path)))
            else:
                count = None if samples is None else float(samples[number])
                given.append(Given(f"model {number}", describe(model, samples=count), None))
        except UnsupportedError as error:
            problems.append(f"model {number}: {error}")
        except InputError as error:
            prefix = "" if isinstance(model, str | Path) else f"model {number}: "
            problems += [f"{prefix}{problem}" for problem in error.problems]
    posteriors, alignment, unaligned = align_vocabularies([one.name for one in given], [one.posterior for one in given])
    given = [replace(one, posterior=posterior) for one, posterior in zip(given, posteriors, strict=True)]
    problems += _disagreements(given, unaligned)
    if len(models) < 2:
        problems.append(f"fusing takes at least two models, found {len(models)}")
    return given, alignment, problems


def _disagreements(given: list[Given], unaligned: list[str]) -> list[str]:
    """Return how the models differ in what must agree, and which files were given twice.

    `unaligned` is why words could not be aligned: then nothing else is said of columns.
    """
    problems: list[str] = []
    digests: dict[str, str] = {}
    for one in given:
        if one.digest is not None and one.digest in digests:
            problems.append(f"{one.name}: is the same file as {digests[one.digest]}; leave one out")
        elif one.digest is not None:
            digests[one.digest] = one.name
    for one in given[1:]:
        first, mine, theirs = given[0], given[0].posterior, one.posterior
        sources = [
            f"{one.name}: has {key} {theirs.source.get(key)!r}, expected {mine.source.get(key)!r} as in {first.name}"
            for key in sorted(set(mine.source) | set(theirs.source))
            if theirs.source.get(key) != mine.source.get(key)
        ]
        problems += sources
        if theirs.family != mine.family and not sources and not unaligned:
            problems.append(f"{one.name}: is {theirs.family}, expected {mine.family} as in {first.name}")
    alike = [one for one in given if unaligned or one.posterior.family == given[0].posterior.family]
    stated = ("classes",) if unaligned else ("names", "units", "scaling", "classes")
    return problems + unaligned + _feature_disagreements(alike, stated) + _attached_disagreements(alike)


def _feature_disagreements(given: list[Given], fields: Sequence[str]) -> list[str]:
    """Return who states another value of any of these `fields` of its features than the first model that states one."""
    problems: list[str] = []
    for field in fields:
        stated = [one for one in given if getattr(one.posterior.features, field) is not None]
        for one in stated[1:]:
            first, other = (Features(**{field: getattr(m.posterior.features, field)}) for m in (stated[0], one))
            problems += [f"{one.name}: {text}" for text in first.differences(other)]
    return problems


def _attached_disagreements(given: list[Given]) -> list[str]:
    """Return who lacks an attached array that another model has, or has it in another form."""
    problems: list[str] = []
    for name in sorted({name for one in given for name in one.posterior.attached}):
        holder = next(one for one in given if name in one.posterior.attached)
        for one in given:
            attached = one.posterior.attached.get(name)
            if attached is None:
                problems.append(f"{one.name}: lacks the attached array {name!r} of {holder.name}")
            elif not attached.fits(holder.posterior.attached[name]):
                problems.append(f"{one.name}: attached array {name!r} has another shape or rule than in {holder.name}")
    return problems
