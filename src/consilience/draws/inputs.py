"""Inputs of a fusion as draws that were checked, in the order of their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from consilience.core.ancestry import NO_ANCESTORS, ancestors_of, counted_twice
from consilience.core.inputs import NamedInput, files_given_twice, in_order, refuse_other_kind, too_few_models
from consilience.draws.checking import chain_problems, disagreements, shared_chains, value_problems
from consilience.draws.draws import Draws, as_draws
from consilience.draws.files import DRAWS_FILES
from consilience.draws.fusion import DrawsFusion
from consilience.draws.methods.base import DrawsMethod
from consilience.draws.relabel import Relabelling, relabel_sites
from consilience.draws.structure import with_structures, with_tied_entries
from consilience.errors import InputError, OptionError, Problem, UnsupportedError
from consilience.files.our_formats import DRAWS


@dataclass(frozen=True, eq=False)
class DescribedDraws:
    """An input and its draws.

    Parameters
    ----------
    name, label : str
        Its name in results, and in messages.
    draws : Draws
        What takes part in the fusion.
    digest : str or None
        SHA-256 of its file; None for an object in memory.
    content_digest : str
        Digest of the draws as they were handed in.
    ancestors : mapping of str to str, optional
        Names of what a fused file was fused from, by their digests.
    relabelling : Relabelling, optional
        How components were renumbered.
    """

    name: str
    label: str
    draws: Draws
    digest: str | None
    content_digest: str
    ancestors: Mapping[str, str] = field(default_factory=lambda: NO_ANCESTORS)
    relabelling: Relabelling | None = None


def describe_inputs(
    inputs: Sequence[NamedInput], method: DrawsMethod, n_observations: Any
) -> tuple[list[DescribedDraws], list[Problem]]:
    """Return the draws of all inputs that could be read, sorted by name, and every problem.

    Parameters
    ----------
    inputs : sequence of NamedInput
        The sites.
    method : DrawsMethod
        The method, whose options say of sites what these do not say themselves.
    n_observations : mapping, sequence or None
        Number of observations of each site, in the order of the inputs.
    """
    numbers = in_order(n_observations, [one.name for one in inputs], "n_observations")
    if numbers is not None and (isinstance(numbers, str) or len(numbers) != len(inputs)):
        raise OptionError("n_observations", f"expected {len(inputs)} numbers, one for each, found {numbers!r:.80}")
    described, problems = _read(inputs, method, numbers)
    problems = [*too_few_models(len(inputs)), *problems]
    digests = [site.digest for site in described if site.digest is not None]
    if len(set(digests)) < len(digests):
        problems += files_given_twice(inputs)
    problems += counted_twice(described)
    if method.multiplies:
        problems += shared_chains([(site.label, site.draws) for site in described])
    if not described:
        return described, problems
    labels = [site.label for site in described]
    recognised, found = with_structures([site.draws for site in described], labels)
    described, problems = _with_draws(described, recognised), [*problems, *found]
    problems += disagreements([(site.label, site.draws) for site in described])
    if problems:
        return described, problems
    described = _alike(described)
    tied, problems = with_tied_entries([site.draws for site in described], labels)
    if problems:
        return described, problems
    described = _with_draws(described, tied)
    if not method.allow_divergent:
        problems += [problem.about(site.label) for site in described for problem in chain_problems(site.draws)]
    return described, problems


def _read(
    inputs: Sequence[NamedInput], method: DrawsMethod, numbers: Sequence[float] | None
) -> tuple[list[DescribedDraws], list[Problem]]:
    """Return the draws of all inputs that can be read, sorted by name, and what is wrong with each other one."""
    described: list[DescribedDraws] = []
    problems: list[Problem] = []
    files = [one.file for one in inputs if one.file is not None and one.format == DRAWS]
    contents = iter(DRAWS_FILES.read_many(files))
    for place, one in enumerate(inputs):
        is_read = True
        try:
            ancestors, digest = NO_ANCESTORS, None
            if one.file is not None and one.format == DRAWS:
                content = next(contents)
                if isinstance(content, InputError):
                    is_read = False
                    raise content
                draws, digest = content[0], one.file.sha256
                ancestors = ancestors_of(content[1])
            elif one.file is not None:
                is_read = False
                refuse_other_kind(one, "draws file")
            else:
                draws = one.model.draws if isinstance(one.model, DrawsFusion) else as_draws(one.model)
            content_digest = draws.digest
            draws = draws.stated(
                prior=method.prior,
                constraints=method.constraints,
                only=method.only,
                exchangeable=method.exchangeable,
                n_observations=None if numbers is None else numbers[place],
            )
            if wrong := value_problems(draws):
                raise InputError(wrong)
            described.append(DescribedDraws(one.name, one.label, draws, digest, content_digest, ancestors))
        except (InputError, UnsupportedError) as error:
            problems += [problem.about(one.label) if is_read else problem for problem in error.problems]
    described.sort(key=lambda site: site.name)
    return described, problems


def _with_draws(described: Sequence[DescribedDraws], draws: Sequence[Draws]) -> list[DescribedDraws]:
    """Return sites with other draws."""
    return [replace(site, draws=own) for site, own in zip(described, draws, strict=True)]


def _alike(described: Sequence[DescribedDraws]) -> list[DescribedDraws]:
    """Return sites with variables in one order and exchangeable components numbered alike."""
    order = list(described[0].draws.variables)
    sites = [
        site.draws
        if list(site.draws.variables) == order
        else replace(site.draws, variables={name: site.draws.variables[name] for name in order})
        for site in described
    ]
    if not sites[0].exchangeable:
        return _with_draws(described, sites)
    relabelled, relabellings = relabel_sites(sites)
    return [
        replace(site, draws=draws, relabelling=one)
        for site, draws, one in zip(described, relabelled, relabellings, strict=True)
    ]
