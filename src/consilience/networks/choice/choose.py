"""The rule that chooses among scored candidates, and what their scores say about harm.

The candidate of the least loss on the inputs to compare on is taken; of equal losses the one that breaks ties best. One
guard: a site's own network is kept unless another is better than the best of them by one standard error of the paired
difference on the same inputs.

Candidates that were fitted to synthetic inputs do better on others of their kind than on real ones. On images matched
to batch normalisation, where the ensemble that they were fitted to is the judge, that is more than they gain, and they
must gain a share of the site's loss too. Nor does anything count, where sites have their classes alike, that is small
against the error of the synthetic inputs themselves; where they differ, keeping a site's network is no safe choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

import numpy as np

from consilience.checks import Array
from consilience.core.site_losses import STANDARD_ERRORS_OF_CHOICE, STANDARD_ERRORS_OF_HARM

MARGIN_OF_IMAGES = 0.45
"""Share of a site's disagreement with the ensemble that what is fitted to matched images must gain. Over seven
ensembles such gains of 0 to 0.37 were losses of 2 to 5 points, and it kept a site, rightly, in three more that did not
shape it."""
GAP_SHARE = 0.5
"""Share of the mean gap, by which sites' errors on inputs drawn as they describe them are off, that any candidate must
gain where sites have their classes alike: gains of a third to 0.59 of it lost 1 to 3 points there (two moons described
without their mixtures). All of it kept a site in one more setting. Where classes differ it cost 5 points in the mean of
the fusions in which it kept a site (docs/evidence/networks_default.md). Below the whole gap the verdict says that it is
not known."""


@dataclass(frozen=True)
class CandidateFacts:
    """What is known of a candidate besides its losses."""

    is_site: bool = False  # whether it is a site's own network
    margin: float = 0.0  # share of a site's loss by which it must be better than it
    is_eligible: bool = True  # whether it may be chosen
    size: float = 0.0  # what the site counts: of sites that cannot be distinguished that of the largest is taken
    # Of a site's own network, how often it says that it errs on its own rows, and the standard error of that; None
    # where not every site says it, or class distributions differ.
    own_error: tuple[float, float] | None = None
    stands_for_sites: bool = False  # whether others must be better than it, as than a site's own network


@dataclass(frozen=True, eq=False)
class CandidateScores:
    """Losses of K candidates on n held-out inputs."""

    # `losses`, `ties`: (K, n), losses, and losses that break ties, of every candidate on every input.
    losses: Array
    ties: Array
    facts: Sequence[CandidateFacts]
    # How far sites' errors on inputs drawn as they describe them are from those on their own, over all observations:
    # what synthetic inputs cannot decide.
    mean_gap: float = 0.0
    are_alike: bool = True  # whether sites have their classes alike

    @property
    def sites(self) -> list[int]:
        """Numbers of the sites' own networks."""
        return [k for k, one in enumerate(self.facts) if one.is_site]

    @property
    def means(self) -> Array:
        """Mean loss (K,) of every candidate."""
        means: Array = self.losses.mean(axis=1)
        return means

    def excess(self, number: int, over: int) -> tuple[float, float]:
        """Return by how much one candidate's loss exceeds another's, and the standard error of that, paired."""
        differences = self.losses[number] - self.losses[over]
        return float(differences.mean()), float(differences.std(ddof=1) / len(differences) ** 0.5)

    def margin(self, number: int, over: int) -> float:
        """Return by how much a candidate must be better than a site's own network, besides standard errors."""
        return self.facts[number].margin * float(self.means[over])

    def choose(self) -> int:
        """Return the number of the candidate to take."""
        eligible = [(k, one) for k, one in enumerate(self.facts) if one.is_eligible]
        sites = [k for k, one in eligible if one.is_site or one.stands_for_sites]
        others = [k for k, _ in eligible if k not in sites]
        if sites:
            site = self.best_site(sites)
            others = [k for k in others if self._displaces(k, site)]
            if not others:
                return site
        return min(others, key=self._rank)

    def _rank(self, number: int) -> tuple[float, float]:
        return float(self.means[number]), float(self.ties[number].mean())

    def best_site(self, sites: Sequence[int]) -> int:
        """Return the site's own network of the least loss; among ties, that of the site with the most observations.

        Of equally many one whose error on its own rows is less by two standard errors goes before: real rows decide
        what synthetic inputs cannot.
        """
        best = min(sites, key=self._rank)
        excesses = {k: self.excess(k, best) for k in sites}
        bounds = {k: STANDARD_ERRORS_OF_CHOICE * error + self.mean_gap for k, (_, error) in excesses.items()}
        tied = [k for k, (excess, _) in excesses.items() if excess <= bounds[k]]
        largest = min(tied, key=lambda k: (-self.facts[k].size, self._rank(k)))
        size, stated = self.facts[largest].size, self.facts[largest].own_error
        if stated is None:
            return largest
        own = {k: one for k in tied if self.facts[k].size == size and (one := self.facts[k].own_error)}
        least = min(own, key=own.__getitem__)
        error = hypot(stated[1], own[least][1])
        return least if stated[0] - own[least][0] > STANDARD_ERRORS_OF_HARM * error else largest

    def _displaces(self, number: int, site: int) -> bool:
        """Return whether a candidate may be taken instead of a site's own network."""
        excess, error = self.excess(site, number)
        of_gap = GAP_SHARE * self.mean_gap if self.are_alike else 0.0
        return excess > max(STANDARD_ERRORS_OF_CHOICE * error, self.margin(number, site), of_gap)

    def is_better(self, chosen: int) -> bool:
        """Return whether the chosen network is better on these inputs than every site's, or the same.

        That is by two standard errors and what synthetic inputs leave open: the mean gap, or the margin where that is
        larger.
        """
        for k in self.sites:
            if all(np.array_equal(one[k], one[chosen]) for one in (self.losses, self.ties)):
                continue
            excess, error = self.excess(k, chosen)
            if excess <= STANDARD_ERRORS_OF_HARM * error + max(self.margin(chosen, k), self.mean_gap):
                return False
        return bool(self.sites)  # nothing is known of sites that were not compared

    def is_harmful(self, chosen: int) -> bool:
        """Return whether a site's own network is known to be better than the chosen one, beyond the mean gap."""
        excesses = (self.excess(chosen, k) for k in self.sites if k != chosen)
        return any(excess > STANDARD_ERRORS_OF_HARM * error + self.mean_gap for excess, error in excesses)
