"""The base class of methods for posterior draws: subposteriors in, draws of the full posterior out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from consilience.checks import Array, Labels, is_count
from consilience.core.methods import Options, Requirement
from consilience.core.progress import Progress
from consilience.draws.details import CombinationDetails
from consilience.draws.subposteriors import MIN_DRAWS_PER_COORDINATE, Subposteriors
from consilience.errors import InputError, Problem

STILL_WORKS = "consensus_mc with `covariance='diagonal'` still works"
"""What to do with too few draws for a covariance."""


@dataclass(frozen=True, eq=False)
class CombinedDraws:
    """What a method made."""

    draws: Array  # (T, D), draws of the full posterior in unconstrained coordinates
    details: CombinationDetails = field(default_factory=CombinationDetails)  # what it found on its way
    notes: Mapping[str, str] = field(default_factory=dict)  # what is wrong with them, each with its remedy


@dataclass(frozen=True)
class DrawsMethod(Options, ABC):
    """What all methods for draws share.

    Parameters
    ----------
    prior : float, "flat" or mapping, optional
        What sites' posteriors hold of the prior, for those that do not say: see ``Draws``. Default: what they say.
    constraints : mapping of str to constraint, optional
        Where variables lie, for sites that do not say: see ``Draws``. Default: what they say, else real.
    only : tuple of str, optional
        Variables to combine; others are dropped. Default: all.
    exchangeable : tuple of str, optional
        Variables by component of a mixture, for sites that do not say: see ``Draws``. Default: what they say.
    n_draws : int, optional
        Number of fused draws. Default: as many as the site with the fewest has.
    allow_divergent : bool
        Whether chains that did not mix, or diverged, are taken too.
    """

    prior: Any = None
    constraints: Any = None
    only: Any = None
    exchangeable: Any = None
    n_draws: int | None = None
    allow_divergent: bool = False

    name: ClassVar[str]
    summary: ClassVar[str]
    needs: ClassVar[str]
    gives: ClassVar[str]
    paper: ClassVar[str]
    keeps_models: ClassVar[bool] = False
    needs_prior: ClassVar[bool] = True
    """Whether it must know what of the prior is in the sites' posteriors."""
    multiplies: ClassVar[bool] = True
    """Whether copies of a site count as often as there are: an average of copies is the copy."""
    takes_modes: ClassVar[bool] = False
    """Whether it keeps modes that are apart."""
    assumes_agreement: ClassVar[bool] = True
    """Whether one parameter is assumed for all sites, so that a verdict names sites that differ."""
    assumes_normality: ClassVar[bool] = True
    """Whether subposteriors are taken for nearly normal, so that a verdict names skewed ones."""

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield "n_draws", self.n_draws is None or is_count(self.n_draws), "a positive integer or None"

    def refuse(self, stack: Subposteriors) -> list[Problem]:
        """Return why subposteriors cannot be combined by this method, a line each."""
        problems = self._prior_problems(stack) if self.needs_prior else []
        problems += self._power_problems(stack)
        if self.needs_covariance:
            problems += self._covariance_problems(stack)
        if problems:
            return problems
        if not self.takes_modes:
            problems += self._mode_problems(stack)
        if not problems:
            try:
                self.check(stack)
            except InputError as error:
                problems += error.problems
        return problems

    @property
    def needs_covariance(self) -> bool:
        """Whether it inverts the covariance of a site's draws."""
        return True

    def check(self, stack: Subposteriors) -> None:
        """Raise InputError where the product is not proper."""
        _ = stack.product

    def _prior_problems(self, stack: Subposteriors) -> list[Problem]:
        lacking = [name for name, site in zip(stack.names, stack.sites, strict=True) if site.prior is None]
        if not lacking:
            return []
        text = (
            f"does not say what of the prior its draws hold, which {self.name} needs: {stack.n_sites} whole priors"
            " would count it as often"
        )
        remedy = (
            f"sample with the prior raised to 1/{stack.n_sites} and state `prior=1/{stack.n_sites}`, or state its"
            " distribution by variable, to be divided out"
        )
        return [Problem(_some(lacking), text, remedy, "E-NEEDED")]

    def _power_problems(self, stack: Subposteriors) -> list[Problem]:
        odd = [name for name, site in zip(stack.names, stack.sites, strict=True) if site.likelihood_power != 1.0]
        if not odd:
            return []
        text = "raised its likelihood to a power, which is for `method='wasp'` alone"
        return [Problem(_some(odd), text, "name that method")]

    def _covariance_problems(self, stack: Subposteriors) -> list[Problem]:
        least = MIN_DRAWS_PER_COORDINATE * stack.n_coordinates
        needs = f"of {stack.n_coordinates} coordinates, and {self.name} needs {least} for its covariance"
        few = [
            Problem(name, f"has {site.n_draws} draws {needs}", f"draw more; {STILL_WORKS}", "E-NEEDED")
            for name, site in zip(stack.names, stack.sites, strict=True)
            if site.n_draws < least
        ]
        if few:
            return few
        problems = []
        for number, places in stack.singular_sites().items():
            text = f"has variables that are functions of each other ({stack.called(places)})"
            text += ", so that their covariance is singular"
            problems.append(Problem(stack.names[number], text, _without_functions(stack, places), "E-NUMBER"))
        return problems

    def _mode_problems(self, stack: Subposteriors) -> list[Problem]:
        remedy = "`method='semiparametric'` keeps modes; of a mixture whose labels switch, state `exchangeable=(...)`,"
        fills = f"and {self.name} would fill what lies between"
        return [
            Problem(
                name, f"has two modes that are apart in {stack.called(places)}, {fills}", f"{remedy} or call cs.relabel"
            )
            for name, places in zip(stack.names, stack.bimodal, strict=True)
            if len(places)
        ]

    def count(self, stack: Subposteriors) -> int:
        """Return the number T of fused draws."""
        return self.n_draws or stack.n_draws

    @abstractmethod
    def combine(self, stack: Subposteriors, rng: Any, progress: Progress) -> CombinedDraws:
        """Return draws of the full posterior."""


def _without_functions(stack: Subposteriors, places: Labels) -> str:
    """Return how to leave out coordinates that are functions of others."""
    names = [name for name, part, *_ in stack.sites[0].parts() if np.any((places >= part.start) & (places < part.stop))]
    if len(names) > 1:
        return "name the parameters alone with `only=(...)`; transformed parameters and generated quantities follow"
    return f"give the entries of {names[0]} that are parameters as variables of their own, by name; the others follow"


def _some(names: Sequence[str], limit: int = 5) -> str:
    """Return the first of some names."""
    return ", ".join(names[:limit]) + (f", ... ({len(names)})" if len(names) > limit else "")
