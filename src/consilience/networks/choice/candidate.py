"""Candidates of the default fusion: networks with a name, and the effort that went into them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from consilience.networks.fusion import NetworkFusion


class Effort(IntEnum):
    """What a candidate used beyond the sites' own networks."""

    SITE = 0
    AVERAGE = 1
    CLASS_HEADS = 2
    MATCHED = 3
    FISHER = 4
    KRONECKER = 5
    REFITTED = 6
    REFITTED_HEAD = 7
    DISTILLED = 8
    SIDE_BY_SIDE = 9

    @property
    def is_fitted(self) -> bool:
        """Whether it was fitted to inputs, and so does better on others of their kind than on real ones."""
        return Effort.REFITTED <= self <= Effort.DISTILLED


@dataclass(frozen=True)
class CandidateOptions:
    """Which candidates are made besides averages, and how long it may take."""

    refit: bool = False  # whether layers are refitted
    steps: int = 0  # steps of Adam in a distillation; 0 for none
    # After so many seconds no further candidate is begun. Default: no bound.
    max_seconds: float | None = None


@dataclass(frozen=True, eq=False)
class Candidate:
    """One network that the default fusion may return."""

    name: str  # its name in the verdict, such as "refit" or "site:lund"
    effort: Effort  # what it used
    module: Any  # the network, in evaluation mode; None where the networks came without a module
    base: NetworkFusion  # the fusion by averaging that it was made from; of a site, the one that it was compared with
    made: str = ""  # how it was made of `base`; empty where it is the average itself
    # The numbers of the sites whose own networks it is: one, or several side by side. Default: of none.
    sites: tuple[int, ...] = ()
    # Whether it may be returned: a site's own network may not where another width is asked for, and no network of
    # another width than is asked for.
    is_eligible: bool = True

    @property
    def site(self) -> int | None:
        """The number of the site whose network it is, unchanged; None for all others."""
        return self.sites[0] if len(self.sites) == 1 else None
