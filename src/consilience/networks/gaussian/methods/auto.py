"""The default for Bayesian networks: candidates, and a choice among them without labels (``gaussian.choice``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import ClassVar

from consilience.checks import is_count, is_number
from consilience.core.methods import Requirement
from consilience.networks.gaussian.methods.kl import KLNetworkFusion
from consilience.networks.method import Road

MIN_INPUTS = 20
"""Inputs that candidates are compared on, at least. Chosen by hand."""


@dataclass(frozen=True)
class BayesianAuto(KLNetworkFusion):
    """Make several candidates, compare their predictions on inputs drawn from what sites describe, return the best.

    Candidates are every site's own network, KL-fusion, the same with all units side by side, the barycenter of aligned
    posteriors, and for networks with a common initialisation the averages of units as they are numbered; and those that
    average precisions once more with rows of the output layer by counts of classes. Where no site describes its inputs
    nothing is compared: KL-fusion comes back, and the verdict says that harm is not excluded. The options of
    `KLNetworkFusion` say how units are matched.

    Parameters
    ----------
    n_samples : int
        Samples of all weights by which the predictions of every candidate are computed, the same for all. Default: 32,
        chosen by hand.
    n_inputs : int
        Inputs on which candidates are compared. Default: 4000.
    max_seconds : float, optional
        After so many seconds no further candidate is begun; what was left out is said. Default: no bound, so that the
        same seed gives the same bytes.

    References
    ----------
    This library's; see docs/guides/bayesian.md for what was measured.
    """

    name: ClassVar[str] = "auto"
    summary: ClassVar[str] = "make several candidates, choose one without labels by what sites describe (recommended)"
    needs: ClassVar[str] = "Bayesian networks of one architecture; with descriptions (consilience.describe) it chooses"
    gives: ClassVar[str] = "one Bayesian network, with a verdict that lists the candidates and their scores"
    paper: ClassVar[str] = "none: a choice among the methods here"

    n_samples: int = 32
    n_inputs: int = 4000
    max_seconds: float | None = None

    @property
    def road(self) -> Road:
        """A choice among candidates."""
        return "chosen"

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        is_bound = self.max_seconds is None or (is_number(self.max_seconds) and self.max_seconds > 0)
        enough = is_count(self.n_inputs) and self.n_inputs >= MIN_INPUTS
        yield from (
            ("n_samples", is_count(self.n_samples), "a positive integer"),
            ("n_inputs", enough, f"an integer of {MIN_INPUTS} or more"),
            ("max_seconds", is_bound, "a positive number or None"),
        )

    @property
    def matching(self) -> KLNetworkFusion:
        """KL-fusion with the same options: what is returned where nothing can be compared."""
        return KLNetworkFusion(**{field.name: getattr(self, field.name) for field in fields(KLNetworkFusion)})
