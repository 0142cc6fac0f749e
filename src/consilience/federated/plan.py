"""What a round is told before it begins: who is expected, how their files are fused, and what ends it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from consilience.checks import is_count
from consilience.errors import OptionError
from consilience.files.limits import Limits
from consilience.networks.method import NetworkMethod
from consilience.posteriors.method import Method

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}[A-Za-z0-9]|[A-Za-z0-9]")
NAME_RULE = "letters, digits, and '.', '_', '-' between them, at most 64 in all"
DEADLINE = 600.0
"""Seconds that a round waits if nobody says how long."""


def is_positive(value: Any) -> bool:
    """Return whether a value is a finite number above zero."""
    return isinstance(value, int | float) and math.isfinite(value) and value > 0


def is_name(text: Any) -> bool:
    """Return whether a text may name a site or a round: it is part of paths, so it must not lead anywhere.

    Examples
    --------
    >>> is_name("st-mary_2"), is_name("../a"), is_name(".hidden")
    (True, False, False)
    """
    return isinstance(text, str) and _NAME.fullmatch(text) is not None and ".." not in text


@dataclass(frozen=True)
class RoundPlan:
    """What a round is told before it begins.

    Parameters
    ----------
    sites
        Names of the sites that may take part; kept sorted, so their order changes nothing.
    method, options, seed
        As for ``consilience.fuse``.
    weights
        How much each site counts, by name; None counts all the same.
    quorum
        So many contributions must be good; None asks for more than half of the sites.
    deadline
        Seconds after which the round ends with what it has. It ends before when every site's contribution is in.
    limits
        What a file may have at most.
    expect
        A file whose kind, family and shapes every contribution must have; without it the majority decides.
    name
        Of the round, for people.

    Examples
    --------
    >>> RoundPlan(("b", "a", "c")).sites, RoundPlan(("a", "b", "c")).needed
    (('a', 'b', 'c'), 2)
    """

    sites: tuple[str, ...]
    method: str | Method | NetworkMethod | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    weights: Mapping[str, float] | None = None
    quorum: int | None = None
    deadline: float = DEADLINE
    limits: Limits = field(default_factory=Limits)
    expect: Path | None = None
    name: str = "round"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sites", _sites(self.sites))
        count = len(self.sites)
        if self.quorum is not None and not (is_count(self.quorum) and 2 <= self.quorum <= count):
            raise OptionError(f"quorum: expected 2 to {count}, the number of sites; found {self.quorum!r}")
        if not is_positive(self.deadline):
            raise OptionError(f"deadline: expected a positive number of seconds, found {self.deadline!r}")
        if self.weights is not None and set(self.weights) != set(self.sites):
            odd = ", ".join(sorted(set(self.weights) ^ set(self.sites)))
            raise OptionError(f"weights: expected one for each site and no other; see {odd}")
        if not is_name(self.name):
            raise OptionError(f"name of the round: expected {NAME_RULE}; found {self.name!r}")

    @property
    def needed(self) -> int:
        """Number of good contributions without which nothing is fused."""
        return self.quorum if self.quorum is not None else max(2, len(self.sites) // 2 + 1)

    def fingerprint(self) -> dict[str, Any]:
        """Return the plan as JSON values: a server that goes on with a round must have been told the same."""
        method = self.method if self.method is None or isinstance(self.method, str) else repr(self.method)
        return {
            "name": self.name,
            "sites": list(self.sites),
            "method": method,
            "options": {key: repr(value) for key, value in sorted(self.options.items())},
            "seed": self.seed,
            "weights": None if self.weights is None else {key: float(self.weights[key]) for key in self.sites},
            "quorum": self.needed,
            "deadline": float(self.deadline),
            "limits": asdict(self.limits),
            "expect": None if self.expect is None else str(self.expect),
        }


def _sites(given: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        raise OptionError(f"sites: expected names, found the text {given!r}")
    sites = tuple(sorted(given))
    if bad := [one for one in sites if not is_name(one)]:
        raise OptionError(f"sites: expected names of {NAME_RULE}; found {', '.join(map(repr, bad))}")
    if len({one.casefold() for one in sites}) < len(sites):
        raise OptionError("sites: names must differ by more than capital letters, which some file systems ignore")
    if len(sites) < 2:
        raise OptionError(f"sites: a round takes at least two, found {len(sites)}")
    return sites
