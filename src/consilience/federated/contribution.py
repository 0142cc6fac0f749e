"""Contributions of sites, and the selection of one per site, independent of the order of arrival.

An announcement is a name, ``ROUND-ATTEMPT-SHA256`` or ``ROUND-ATTEMPT-SHA256-SHA256`` (of the model's file and of the
file of its Fisher information), so there is nothing in it to parse but numbers and digests. The selection is a function
of the set of announcements alone:

- the highest attempt of a site is selected, lower ones are ignored;
- the same contents announced again are the same announcement;
- of two different contents under one attempt none is selected, since any choice would depend on the order of arrival.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

MAX_ATTEMPTS = 16
"""Announcements of one site in one round, at most: each may cost the server a copy of a file. Chosen by hand."""

_ANNOUNCEMENT = re.compile(r"([1-9][0-9]{0,5})-([1-9][0-9]{0,5})-([0-9a-f]{64})(?:-([0-9a-f]{64}))?")


@dataclass(frozen=True, order=True)
class Announcement:
    """The statement that a site has sent certain files."""

    site: str  # name of the site
    number: int  # number of the round, from 1
    attempt: int  # number of the site's attempt in this round, from 1
    digest: str  # SHA-256 of the model's file
    fisher: str = ""  # SHA-256 of the file of its Fisher information. Default: empty, where there is none.

    @property
    def name(self) -> str:
        """Name of the empty file that is the announcement."""
        return "-".join([str(self.number), str(self.attempt), self.digest, *([self.fisher] if self.fisher else [])])

    @property
    def digests(self) -> tuple[str, ...]:
        """Digests of all its files."""
        return (self.digest, self.fisher) if self.fisher else (self.digest,)


def parse_announcement(site: str, name: str) -> Announcement | None:
    """Return the announcement that is a file's name; None for any other name.

    `site` is the one in whose folder the file is.

    Examples
    --------
    >>> parse_announcement("a", f"1-2-{'0' * 64}").attempt
    2
    >>> parse_announcement("a", "../1-1") is None
    True
    """
    match = _ANNOUNCEMENT.fullmatch(name)
    if match is None:
        return None
    return Announcement(site, int(match[1]), int(match[2]), match[3], match[4] or "")


@dataclass(frozen=True)
class Contribution:
    """The files that a site sent, as the server has them."""

    announcement: Announcement  # the site, the attempt, and the digests that the files must have
    # The server's own copies of the model's file and of its Fisher information. Default: None, where it has none.
    path: Path | None = None
    fisher: Path | None = None
    problem: str | None = None  # why the server has no copy
    is_final: bool = True  # whether that stays so, whatever comes

    @property
    def n_bytes(self) -> int:
        """Length of the server's copies."""
        return sum(path.stat().st_size for path in (self.path, self.fisher) if path is not None)


@dataclass(frozen=True)
class AnnouncementSelection:
    """The announcement that counts of every site."""

    chosen: Mapping[str, Announcement]  # the selected announcement, by site
    ignored: tuple[Announcement, ...]  # lower attempts, sorted
    conflicts: Mapping[str, str]  # sites of which none is selected, with the reason


def select_announcements(announcements: Iterable[Announcement]) -> AnnouncementSelection:
    """Return the selection from the announcements of one round; their order and repetition change nothing.

    Examples
    --------
    >>> first, second = (Announcement("a", 1, attempt, "0" * 64) for attempt in (1, 2))
    >>> select_announcements([second, first, second]).chosen["a"].attempt
    2
    """
    by_site: dict[str, list[Announcement]] = {}
    for announcement in sorted(set(announcements)):  # of a site, by attempt
        by_site.setdefault(announcement.site, []).append(announcement)
    chosen, ignored, conflicts = {}, [], {}
    for site, attempts in by_site.items():
        # More than one at the highest attempt: different contents, since equal ones are one announcement.
        last = [announcement for announcement in attempts if announcement.attempt == attempts[-1].attempt]
        if len(attempts) > MAX_ATTEMPTS:
            conflicts[site] = f"sent more than {MAX_ATTEMPTS} contributions in one round"
        elif len(last) > 1:
            conflicts[site] = (
                f"sent {len(last)} different contents as attempt {last[0].attempt}, and which is the right one is "
                "not known; send again with a higher `attempt=`"
            )
        else:
            chosen[site] = last[0]
            ignored += attempts[:-1]
    return AnnouncementSelection(chosen, tuple(ignored), conflicts)


@dataclass(frozen=True, eq=False)
class Arrivals:
    """Contributions to a round: which count, and which are no expected site's."""

    by_announcement: Mapping[Announcement, Contribution]  # all of them
    selection: AnnouncementSelection  # those of the expected sites to this round
    misnumbered: Mapping[str, Announcement]  # the last of an expected site that sent for other rounds only
    strangers: set[str]  # names of others

    @classmethod
    def of(cls, contributions: Iterable[Contribution], sites: Iterable[str], number: int) -> Arrivals:
        """Return the arrivals among contributions of any order and repetition."""
        by_announcement = {contribution.announcement: contribution for contribution in contributions}
        expected = set(sites)
        announced = [one for one in by_announcement if one.site in expected]
        selection = select_announcements(one for one in announced if one.number == number)
        misnumbered = {
            one.site: one
            for one in sorted(announced, key=lambda one: one.name)
            if one.number != number and one.site not in selection.chosen
        }
        return cls(by_announcement, selection, misnumbered, {one.site for one in by_announcement} - expected)


def repeated(sites: Iterable[str], chosen: Mapping[str, Announcement], what: str) -> dict[str, str]:
    """Return those of some sites that sent the same as another one, which counts once: for the first by name."""
    first_sender: dict[str, str] = {}  # by digest
    reasons: dict[str, str] = {}
    for site in sorted(sites):
        first = first_sender.setdefault(chosen[site].digest, site)
        if first != site:
            reasons[site] = f"sent the same {what} as {first}, which counts once"
    return reasons
