"""The default for networks: several candidates, and a choice among them without labels (``networks.choice``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

from consilience.checks import is_count, is_number
from consilience.core.methods import Requirement
from consilience.networks.fisher.information import FisherInformation
from consilience.networks.method import NetworkMethod, Road
from consilience.networks.methods.consensus import Consensus
from consilience.networks.methods.fisher.merging import FisherMerging

MIN_INPUTS = 20
"""Inputs that candidates are fitted on, at least: a quarter of them stops distillations. Chosen by hand."""


@dataclass(frozen=True)
class Auto(Consensus):
    """Make several candidates, compare them on inputs drawn from what the sites describe, and return the best.

    Candidates are every site's own network, in a wider network those of several beside each other, the average, the
    matched network, both refitted, with a head by the counts of classes, and distilled from the ensemble of all sites.
    Where no site describes its inputs, and there is no batch normalisation to match images to, nothing is fitted and
    nothing compared: networks of a common initialisation come back matched and refitted, else sites' own networks, and
    the verdict says that harm is not excluded. The options of `Consensus` say how units are matched. With
    ``robust=True`` candidates are made of the sites whose networks are kept, and their numbers of observations cut to
    the usual one; where not all describe their inputs, and with the other robust averages, it is `Consensus`.

    Parameters
    ----------
    steps : int, optional
        Steps of Adam in each distillation; 0 for none. Default: 200, and 400 where batch normalisation reads
        the statistics of batches of drawn inputs or matched images.
    n_inputs : int
        Inputs on which candidates are fitted; twice as many compare them. Default: 2000.
    max_seconds : float, optional
        After so many seconds no further candidate is begun; what was left out is said. Default: no bound, so that the
        same seed gives the same bytes.
    allow_single : bool
        Without a module, by which networks are compared, take that of the site whose classes cover those of all best,
        else of most observations, in place of an error. Default: False.

    References
    ----------
    This library's; see docs/evidence/networks_default.md for what was measured.
    """

    name: ClassVar[str] = "auto"
    summary: ClassVar[str] = "make several candidates, choose one without labels by what sites describe (recommended)"
    needs: ClassVar[str] = "networks of one architecture; with descriptions (consilience.describe) it can choose"
    gives: ClassVar[str] = "one network, with a verdict that lists the candidates and their scores"
    paper: ClassVar[str] = "none: a choice among the methods here"
    takes_information: ClassVar[bool] = True
    compares_networks: ClassVar[bool] = True

    steps: int | None = None
    n_inputs: int = 2000
    max_seconds: float | None = None
    allow_single: bool = False

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        is_bound = self.max_seconds is None or (is_number(self.max_seconds) and self.max_seconds > 0)
        are_steps = self.steps is None or self.steps == 0 or is_count(self.steps)
        yield "steps", are_steps, "a whole number that is not negative, or None"
        yield "n_inputs", is_count(self.n_inputs) and self.n_inputs >= MIN_INPUTS, f"an integer of {MIN_INPUTS} or more"
        yield "max_seconds", is_bound, "a positive number or None"
        yield "allow_single", isinstance(self.allow_single, bool), "True or False"

    @property
    def starts_from_activations(self) -> bool:
        """Not: candidates that are matched by activations are made apart."""
        return False

    @property
    def road(self) -> Road:
        """Chosen among candidates."""
        return "chosen"

    def resolved(self, *, can_compare: bool = False) -> NetworkMethod:
        """Return `matching` for robust fusion, but where networks can be compared on inputs that all sites describe."""
        return self.matching if self.is_robust and not (self.robust is True and can_compare) else self

    def informed(self, information: Sequence[FisherInformation] | None) -> NetworkMethod:
        """Return the product of the posteriors where it is what pooled data would give: linear, Gaussian noise."""
        are_exact = (
            information is not None
            and not self.is_robust
            and all(of_site.linear and of_site.likelihood == "gaussian" for of_site in information)
        )
        return FisherMerging() if are_exact else self

    @property
    def matching(self) -> Consensus:
        """The method that matches units, with the same options."""
        return Consensus(**{field.name: getattr(self, field.name) for field in fields(Consensus)})
