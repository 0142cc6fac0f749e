"""Inputs of a fusion as draws that were checked, in the order of their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from consilience.core.gather import Described, FormatReading, gather, twice
from consilience.core.inputs import NamedInput, in_order, too_few_models
from consilience.draws.checking import chain_problems, disagreements, shared_chains, value_problems
from consilience.draws.draws import Draws, as_draws
from consilience.draws.files import DRAWS_FILES
from consilience.draws.fusion import DrawsFusion
from consilience.draws.methods.base import DrawsMethod
from consilience.draws.relabel import Relabelling, relabel_sites
from consilience.draws.structure import with_structures, with_tied_entries
from consilience.errors import InputError, OptionError, Problem
from consilience.files.format import Record


@dataclass(frozen=True, eq=False)
class DescribedDraws(Described[Draws]):
    """An input and its draws.

    Parameters
    ----------
    relabelling : Relabelling, optional
        How components were renumbered.
    """

    relabelling: Relabelling | None = None


class DrawsReading(FormatReading[Draws]):
    """How draws are read: with what the method and the call say of sites that do not say it themselves."""

    called = "draws file"
    format = DRAWS_FILES

    def __init__(self, method: DrawsMethod, numbers: Sequence[float] | None) -> None:
        self.method, self.numbers = method, numbers

    def convert(self, one: NamedInput) -> tuple[Draws, Record]:
        """Return a container, or the draws of a fusion, as draws."""
        if isinstance(one.model, DrawsFusion):
            return one.model.draws, one.model.record
        return as_draws(one.model), None

    def settle(self, value: Draws, one: NamedInput, place: int, problems: list[Problem]) -> Draws:
        """Return draws with what is said of them; raises for values that are none."""
        del one, problems
        draws = value.stated(
            prior=self.method.prior,
            constraints=self.method.constraints,
            only=self.method.only,
            exchangeable=self.method.exchangeable,
            n_observations=None if self.numbers is None else self.numbers[place],
        )
        if wrong := value_problems(draws):
            raise InputError(wrong)
        return draws


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
    gathered, problems = gather(inputs, DrawsReading(method, numbers))
    described = [DescribedDraws(**vars(site)) for site in sorted(gathered, key=lambda site: site.name)]
    problems = [*too_few_models(len(inputs)), *problems, *twice(inputs, described)]
    if method.multiplies:
        problems += shared_chains([(site.label, site.value) for site in described])
    if not described:
        return described, problems
    labels = [site.label for site in described]
    recognised, found = with_structures([site.value for site in described], labels)
    described, problems = _with_draws(described, recognised), [*problems, *found]
    problems += disagreements([(site.label, site.value) for site in described])
    if problems:
        return described, problems
    described = _alike(described)
    tied, problems = with_tied_entries([site.value for site in described], labels)
    if problems:
        return described, problems
    described = _with_draws(described, tied)
    if not method.allow_divergent:
        problems += [problem.about(site.label) for site in described for problem in chain_problems(site.value)]
    return described, problems


def _with_draws(described: Sequence[DescribedDraws], draws: Sequence[Draws]) -> list[DescribedDraws]:
    """Return sites with other draws."""
    return [site.with_value(own) for site, own in zip(described, draws, strict=True)]


def _alike(described: Sequence[DescribedDraws]) -> list[DescribedDraws]:
    """Return sites with variables in one order and exchangeable components numbered alike."""
    order = list(described[0].value.variables)
    sites = [
        site.value
        if list(site.value.variables) == order
        else replace(site.value, variables={name: site.value.variables[name] for name in order})
        for site in described
    ]
    if not sites[0].exchangeable:
        return _with_draws(described, sites)
    relabelled, relabellings = relabel_sites(sites)
    return [
        replace(site, value=draws, relabelling=one)
        for site, draws, one in zip(described, relabelled, relabellings, strict=True)
    ]
