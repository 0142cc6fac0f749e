"""What a site sends, and which of all that it sent stands, whatever arrived first.

An announcement is a name, ``ROUND-ATTEMPT-SHA256`` or ``ROUND-ATTEMPT-SHA256-SHA256`` (of the model's file and of the
file of its Fisher information), so there is nothing in it to parse but numbers and digests. The rule of which one
stands depends on the set of announcements alone:

- the highest attempt stands, lower ones are ignored;
- the same contents announced again are the same announcement;
- two different contents under one attempt: none stands, since whichever was chosen would depend on who came first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

MAX_ATTEMPTS = 16
"""Announcements that are taken of one site in one round: each may cost the server a copy of a file."""

_ANNOUNCEMENT = re.compile(r"([1-9][0-9]{0,5})-([1-9][0-9]{0,5})-([0-9a-f]{64})(?:-([0-9a-f]{64}))?")


@dataclass(frozen=True, order=True)
class Announcement:
    """That a site has sent something.

    Parameters
    ----------
    site
        Who.
    number
        Of the round, from 1.
    attempt
        Which of the site's attempts in this round, from 1.
    digest
        SHA-256 of the model's file.
    fisher
        SHA-256 of the file of its Fisher information; empty where there is none.
    """

    site: str
    number: int
    attempt: int
    digest: str
    fisher: str = ""

    @property
    def name(self) -> str:
        """Name of the empty file that says it."""
        return "-".join([str(self.number), str(self.attempt), self.digest, *([self.fisher] if self.fisher else [])])

    @property
    def digests(self) -> tuple[str, ...]:
        """Digests of all its files."""
        return (self.digest, self.fisher) if self.fisher else (self.digest,)


def announced(site: str, name: str) -> Announcement | None:
    """Return what a file's name announces; None for any other name.

    Examples
    --------
    >>> announced("a", f"1-2-{'0' * 64}").attempt
    2
    >>> announced("a", "../1-1") is None
    True
    """
    found = _ANNOUNCEMENT.fullmatch(name)
    if found is None:
        return None
    return Announcement(site, int(found[1]), int(found[2]), found[3], found[4] or "")


@dataclass(frozen=True)
class Contribution:
    """What a site sent, as the server has it.

    Parameters
    ----------
    announcement
        Who sent it, which attempt it is, and the digests that its files must have.
    path, fisher
        The server's own copies; None where it has none.
    problem
        Why the server has no copy, if so.
    """

    announcement: Announcement
    path: Path | None = None
    fisher: Path | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Standing:
    """Which announcement of every site stands.

    Parameters
    ----------
    chosen
        The one of each site that has one.
    ignored
        Lower attempts, in order.
    conflicts
        Sites of which none stands, with the reason.
    """

    chosen: Mapping[str, Announcement]
    ignored: tuple[Announcement, ...]
    conflicts: Mapping[str, str]


def standing(announcements: Iterable[Announcement]) -> Standing:
    """Return which announcements of one round stand; their order and repetition change nothing.

    Examples
    --------
    >>> one, two = (Announcement("a", 1, attempt, "0" * 64) for attempt in (1, 2))
    >>> standing([two, one, two]).chosen["a"].attempt
    2
    """
    own: dict[str, list[Announcement]] = {}
    for one in sorted(set(announcements)):
        own.setdefault(one.site, []).append(one)
    chosen, ignored, conflicts = {}, [], {}
    for site, found in own.items():
        last = [one for one in found if one.attempt == found[-1].attempt]
        if len(found) > MAX_ATTEMPTS:
            conflicts[site] = f"sent more than {MAX_ATTEMPTS} contributions in one round"
        elif len(last) > 1:
            conflicts[site] = (
                f"sent {len(last)} different contents as attempt {last[0].attempt}, of which none can be told to be "
                "the right one; send again with a higher --attempt"
            )
        else:
            chosen[site] = last[0]
            ignored += found[:-1]
    return Standing(chosen, tuple(ignored), conflicts)
