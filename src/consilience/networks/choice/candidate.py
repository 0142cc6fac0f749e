"""Candidates of the default fusion: networks with a name, and the effort that went into them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from consilience.networks.fusion import NetworkFusion


class Effort(IntEnum):
    """What a candidate used beyond the sites' own networks; of candidates that cannot be told apart, less is chosen."""

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
    """Which candidates are made beside averages, and how long it may take.

    Parameters
    ----------
    refit : bool
        Whether layers are refitted. Default: False.
    steps : int
        Steps of Adam in a distillation; 0 for none. Default: 0.
    max_seconds : float, optional
        After so many seconds no further candidate is begun. Default: no bound.
    """

    refit: bool = False
    steps: int = 0
    max_seconds: float | None = None


@dataclass(frozen=True, eq=False)
class Candidate:
    """One network that the default fusion may return.

    Parameters
    ----------
    name : str
        Its name in the verdict, such as "refit" or "site:lund".
    effort : Effort
        What it used.
    module : Module or None
        The network, in evaluation mode; None where the networks came without a module.
    base : NetworkFusion
        The fusion by averaging that it was made from; of a site, the one that it was compared with.
    made : str
        How it was made of `base`; empty where it is the average itself.
    sites : tuple of int
        The numbers of the sites whose own networks it is: one, or several beside each other. Default: of none.
    is_eligible : bool
        Whether it may be returned: a site's own network may not where another width is asked for, and no network of
        another width than is asked for.
    learned_drawn : bool
        Whether its batch normalisation learned its statistics from drawn inputs.
    is_halfway : bool
        Whether it is the mean of sites' own networks, one or several beside each other, and of what these became by
        distillation.
    widths : mapping of str to int, optional
        Units of its groups, where these are more than were asked for. Default: None, it has the widths asked for.
    """

    name: str
    effort: Effort
    module: Any
    base: NetworkFusion
    made: str = ""
    sites: tuple[int, ...] = ()
    is_eligible: bool = True
    learned_drawn: bool = False
    is_halfway: bool = False
    widths: Mapping[str, int] | None = None

    @property
    def site(self) -> int | None:
        """The number of the site whose network it is, unchanged; None for all others."""
        return self.sites[0] if len(self.sites) == 1 else None
