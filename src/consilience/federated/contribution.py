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
    """The statement that a site has sent certain files.

    Parameters
    ----------
    site : str
        Name of the site.
    number : int
        Number of the round, from 1.
    attempt : int
        Number of the site's attempt in this round, from 1.
    digest : str
        SHA-256 of the model's file.
    fisher : str
        SHA-256 of the file of its Fisher information. Default: empty, where there is none.
    """

    site: str
    number: int
    attempt: int
    digest: str
    fisher: str = ""

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

    Parameters
    ----------
    site : str
        The site in whose folder the file is.
    name : str
        Name of the file.

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
    """The files that a site sent, as the server has them.

    Parameters
    ----------
    announcement : Announcement
        The site, the attempt, and the digests that the files must have.
    path, fisher : Path, optional
        The server's own copies of the model's file and of its Fisher information. Default: None, where it has none.
    problem : str, optional
        Why the server has no copy. Default: None.
    """

    announcement: Announcement
    path: Path | None = None
    fisher: Path | None = None
    problem: str | None = None


@dataclass(frozen=True)
class AnnouncementSelection:
    """The announcement that counts of every site.

    Parameters
    ----------
    chosen : mapping of str to Announcement
        The selected announcement, by site.
    ignored : tuple of Announcement
        Lower attempts, sorted.
    conflicts : mapping of str to str
        Sites of which none is selected, with the reason.
    """

    chosen: Mapping[str, Announcement]
    ignored: tuple[Announcement, ...]
    conflicts: Mapping[str, str]


def select_announcements(announcements: Iterable[Announcement]) -> AnnouncementSelection:
    """Return the selection from the announcements of one round; their order and repetition change nothing.

    Parameters
    ----------
    announcements : iterable of Announcement
        Announcements of any sites, of one round.

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
                f"sent {len(last)} different contents as attempt {last[0].attempt}, of which none can be told to be "
                "the right one; send again with a higher `attempt=`"
            )
        else:
            chosen[site] = last[0]
            ignored += attempts[:-1]
    return AnnouncementSelection(chosen, tuple(ignored), conflicts)
