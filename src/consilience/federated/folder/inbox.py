"""Inbox of a round: the server's own copies of what sites put into a folder or bucket.

Layout of a round's place, so that one prefix has one writer and permissions can say so:

    server/plan.json                 names and limits, for the sites
    server/N/fused.safetensors       the fused model of round N, and round.json, its report, written last
    sites/NAME/SHA256                files of a site, called by their digest
    sites/NAME/N-ATTEMPT-SHA256      an empty file, written last: an announcement

The server looks into the folders of the sites that it expects and asks for files by the digests that their
announcements name. It copies them into its work folder and verifies digest and length there: later changes in the
shared place have no effect, and a server that was killed finds its copies again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from consilience.federated.contribution import Announcement, Contribution, parse_announcement, select_announcements
from consilience.federated.folder.storage import RefusedError, Storage, UnlikeError
from consilience.federated.plan import RoundPlan
from consilience.files.atomic import write_bytes
from consilience.files.opening import read_text

MAX_FILES = 4096
"""Names that are read of a site's folder; a site with more is left out. Chosen by hand, far above three files for each
of `MAX_ATTEMPTS`."""

MAX_UNEXPECTED_FOLDERS = 20
"""Unexpected folders that a report names. Chosen by hand."""

_N_POLLING_THREADS = 8
"""Sites that are looked at in parallel, since a slow bucket answers in seconds. Chosen by hand."""


FIRST_LOOK = 0.5
"""Seconds after which a file with another content than announced is copied again; then twice as long, and so on. Chosen
by hand, for what a server reads for a site that never sends the right one."""


def site_folder(site: str) -> str:
    """Return the folder of a site in a round's place."""
    return f"sites/{site}"


class Inbox:
    """Contributions to one round, as they arrive.

    `blocked` has sites that are left out, and `problems` announcements whose files are refused, each with the reason;
    `trouble` is a failure of the last poll that may pass. A file with another content than announced may be on its way:
    it is copied again, after pauses that double. Copies in `work` of a server that was killed count.
    """

    def __init__(self, storage: Storage, plan: RoundPlan, number: int, work: Path) -> None:
        self.storage, self.plan, self.number = storage, plan, number
        self.seen_folder, self.files = work / str(number) / "seen", work / str(number) / "files"
        for site in plan.sites:  # by site: one that announces another's digest has to bring the file itself
            (self.seen_folder / site).mkdir(parents=True, exist_ok=True)
            (self.files / site).mkdir(parents=True, exist_ok=True)
        self.blocked: dict[str, str] = {}
        self.problems: dict[Announcement, str] = {}
        self.trouble: str | None = None
        self._unlike: dict[Announcement, tuple[str, int, float]] = {}  # what was found, how often, when to look again

    @property
    def is_waiting(self) -> bool:
        """Whether files of announced contributions may still come."""
        chosen = select_announcements(self.announcements()).chosen
        return any(
            not all((self.files / site / digest).exists() for digest in one.digests)
            for site, one in chosen.items()
            if site not in self.blocked and one not in self.problems
        )

    def announcements(self) -> set[Announcement]:
        """Return all announcements that were seen so far, also those that have vanished since."""
        parsed = {
            parse_announcement(site, path.name)
            for site in self.plan.sites
            for path in (self.seen_folder / site).iterdir()
        }
        return {announcement for announcement in parsed if announcement is not None}

    def poll(self, deadline: float, *, takes_new: bool = True) -> None:
        """Look for announcements, unless it is too late for new ones, and copy the files of the selected ones.

        No copying goes on after `deadline` (``time.monotonic()``).
        """
        self.trouble = None
        with ThreadPoolExecutor(_N_POLLING_THREADS) as pool:
            for trouble in pool.map(lambda site: self._poll_site(site, deadline, takes_new), self.plan.sites):
                self.trouble = trouble or self.trouble

    def _poll_site(self, site: str, deadline: float, takes_new: bool) -> str | None:
        """Return the failure, if any, that may pass until the next poll."""
        try:
            announcements, has_too_many = self._list(site) if takes_new else ([], False)
            if has_too_many:
                self.blocked[site] = f"has more than {MAX_FILES} files in its folder"
                return None
            # Remembered by touching empty files, so that an announcement that vanishes still counts after a restart.
            for announcement in announcements:
                (self.seen_folder / site / announcement.name).touch()
            parsed = (parse_announcement(site, path.name) for path in (self.seen_folder / site).iterdir())
            selected = select_announcements(announcement for announcement in parsed if announcement is not None).chosen
            chosen = selected.get(site)
            for copy in (self.files / site).iterdir():  # the disk holds one contribution of each site
                if chosen is None or copy.name not in chosen.digests:
                    copy.unlink()
            if chosen is not None and self.problems.get(chosen) is None:
                self._fetch(chosen, deadline, is_last=not takes_new)
        except OSError as error:
            return f"{site}: {error.strerror or error}"
        return None

    def _list(self, site: str) -> tuple[list[Announcement], bool]:
        """Return a site's announcements for this round, and whether its folder has too many names."""
        names = self.storage.names(site_folder(site), MAX_FILES + 1)
        parsed = (parse_announcement(site, name) for name in names)
        announcements = [
            announcement for announcement in parsed if announcement is not None and announcement.number == self.number
        ]
        return announcements, len(names) > MAX_FILES

    def _fetch(self, announcement: Announcement, deadline: float, *, is_last: bool) -> None:
        """Copy the files of an announcement, or record why they are refused; what was unlike them after a pause."""
        _, n_tries, next_look = self._unlike.get(announcement, ("", 0, 0.0))
        if not is_last and time.monotonic() < next_look:
            return
        for digest in announcement.digests:
            copy = self.files / announcement.site / digest
            if copy.exists():
                continue
            try:
                name = f"{site_folder(announcement.site)}/{digest}"
                self.storage.fetch(name, digest, copy, self.plan.limits.file_bytes, deadline)
            except FileNotFoundError:  # announced, and not to be seen yet
                return
            except UnlikeError as error:
                self._unlike[announcement] = (str(error), n_tries + 1, time.monotonic() + FIRST_LOOK * 2.0**n_tries)
                return
            except RefusedError as error:
                self.problems[announcement] = str(error)
                return
        self._unlike.pop(announcement, None)

    def contributions(self) -> list[Contribution]:
        """Return all announced contributions, with the server's copies of the selected ones."""
        return [
            self._contribution(announcement)
            for announcement in sorted(self.announcements())
            if announcement.site not in self.blocked
        ]

    def _contribution(self, announcement: Announcement) -> Contribution:
        paths = [self.files / announcement.site / digest for digest in announcement.digests]
        copies = [path if path.exists() else None for path in paths]
        problem, is_final = self.problems.get(announcement), True
        if problem is None and announcement in self._unlike:
            problem, is_final = self._unlike[announcement][0], False
        return Contribution(announcement, copies[0], copies[1] if len(copies) > 1 else None, problem, is_final)

    def late_announcements(self) -> list[Announcement]:
        """Return the announcements that came after the last poll."""
        before, late = self.announcements(), []
        for site in self.plan.sites:
            try:
                late += [announcement for announcement in self._list(site)[0] if announcement not in before]
            except OSError:  # whether this site was late stays unknown
                continue
        return sorted(late)

    def unexpected_folders(self) -> list[str]:
        """Return names of folders besides those of the expected sites, as many as a report names."""
        try:
            names = self.storage.names("sites", MAX_FILES)
        except OSError:
            return []
        return sorted(set(names) - set(self.plan.sites))[:MAX_UNEXPECTED_FOLDERS]


Checked = TypeVar("Checked")


def remembering(check: Callable[[Contribution], Checked]) -> Callable[[Contribution], Checked]:
    """Return a check that looks at every contribution once; one whose file may still come is looked at again."""
    known: dict[Announcement, Checked] = {}

    def look(contribution: Contribution) -> Checked:
        if contribution.path is None and (contribution.problem is None or not contribution.is_final):
            return check(contribution)
        if contribution.announcement not in known:
            known[contribution.announcement] = check(contribution)
        return known[contribution.announcement]

    return look


def seconds_left(started: Path, seconds: float) -> float:
    """Return how many of the seconds since the first start of a round are left; its time is kept in a file.

    Until the machine restarts its monotonic clock counts, whatever the wall clock is put to.
    """
    boot, now = _boot(), time.monotonic()
    if not started.exists():
        write_bytes(started, json.dumps({"wall": time.time(), "boot": boot, "monotonic": now}).encode())
    begun = json.loads(read_text(started))
    is_same_boot = boot is not None and begun["boot"] == boot
    passed = now - begun["monotonic"] if is_same_boot else time.time() - begun["wall"]
    return float(seconds - max(0.0, passed))


def _boot() -> str | None:
    """Return what names the time since this machine started; None where the system says nothing of it."""
    try:
        return read_text("/proc/sys/kernel/random/boot_id").strip()
    except OSError:
        return None
