"""Round plans: the expected sites, the method, the quorum, the deadline and the limits of a round."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from consilience.checks import is_count
from consilience.core.methods import Options
from consilience.errors import OptionError
from consilience.files.limits import Limits

_SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}[A-Za-z0-9]|[A-Za-z0-9]")
NAME_RULE = "letters, digits, and '.', '_', '-' between them, at most 64 in all"
DEADLINE = 600.0
"""Seconds that a round waits by default. Chosen by hand, for trials; the examples of docs/sites/rounds.md wait a
day."""


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
    return isinstance(text, str) and _SITE_NAME.fullmatch(text) is not None and ".." not in text


@dataclass(frozen=True)
class RoundPlan:
    """Everything that is fixed before a round begins.

    Examples
    --------
    >>> RoundPlan(("b", "a", "c")).sites, RoundPlan(("a", "b", "c")).needed
    (('a', 'b', 'c'), 2)
    """

    # Names of the sites that may take part; sorted on the way in, so their order changes nothing.
    sites: tuple[str, ...]
    # As for ``consilience.fuse``.
    method: str | Options | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    weights: Mapping[str, float] | None = None  # weight of each site, by name. Default: equal weights.
    quorum: int | None = None  # least number of good contributions. Default: more than half of the sites, at least two.
    # Seconds after which the round ends with what it has. It ends before when every site's contribution is in. Default:
    # 600.
    deadline: float = DEADLINE
    limits: Limits = field(default_factory=Limits)  # largest sizes of a file. Default: those of `Limits`.
    # A file whose kind, family and shapes every contribution must have. Default: None, the majority decides.
    expect: Path | None = None
    name: str = "round"  # name of the round, for people
    # Whether one site's own model may be published as the fused one: sites see it before they send. Default: False.
    allow_single: bool = False
    # Whether a network's number of observations counts whole, however many it claims. Default: False.
    trust_counts: bool = False
    asks_sites: bool = False  # whether sites then choose among fused candidates

    def __post_init__(self) -> None:
        object.__setattr__(self, "sites", _check_sites(self.sites))
        count = len(self.sites)
        if self.quorum is not None and not (is_count(self.quorum) and 2 <= self.quorum <= count):
            raise OptionError("quorum", f"expected 2 to {count}, the number of sites; found {self.quorum!r}")
        if not is_positive(self.deadline):
            raise OptionError("deadline", f"expected a positive number of seconds, found {self.deadline!r}")
        if self.weights is not None and set(self.weights) != set(self.sites):
            unmatched = ", ".join(sorted(set(self.weights) ^ set(self.sites)))
            raise OptionError("weights", "expected one for each site and no other", f"see {unmatched}")
        if not is_name(self.name):
            raise OptionError("name of the round", f"expected {NAME_RULE}; found {self.name!r}")

    @property
    def needed(self) -> int:
        """Number of good contributions without which nothing is fused."""
        return self.quorum if self.quorum is not None else max(2, len(self.sites) // 2 + 1)

    def fingerprint(self) -> dict[str, Any]:
        """Return the plan as JSON values: a server resumes a round only with the same plan."""
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
            "allow_single": self.allow_single,
            "trust_counts": self.trust_counts,
        }


def _check_sites(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names sorted, or raise for names that cannot be folders, are equal, or are fewer than two."""
    if isinstance(names, str):
        raise OptionError("sites", f"expected names, found the text {names!r}")
    sites = tuple(sorted(names))
    if invalid := [site for site in sites if not is_name(site)]:
        raise OptionError("sites", f"expected names of {NAME_RULE}; found {', '.join(map(repr, invalid))}")
    if len({site.casefold() for site in sites}) < len(sites):
        raise OptionError("sites", "names must differ by more than capital letters, which some file systems ignore")
    if len(sites) < 2:
        raise OptionError("sites", f"a round takes at least two, found {len(sites)}")
    return sites
