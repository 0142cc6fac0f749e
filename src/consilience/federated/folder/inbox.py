"""What has arrived: the server's own copies of what sites put in a folder or bucket.

Layout of a round's place, so that one prefix has one writer and permissions can say so:

    server/plan.json                 what sites are told
    server/N/fused.safetensors       the fused model of round N, and round.json, its report, written last
    sites/NAME/SHA256                files of a site, called by their digest
    sites/NAME/N-ATTEMPT-SHA256      an empty file, written last: an announcement

The server looks into the folders of the sites that it expects and asks for files by the digests that their
announcements name. It copies them into its work folder and verifies digest and length there; what is changed in the
shared place afterwards changes nothing, and a server that was killed finds its copies again.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from consilience.federated.contribution import Announcement, Contribution, announced, standing
from consilience.federated.folder.storage import RefusedError, Storage
from consilience.federated.plan import RoundPlan

MAX_FILES = 4096
"""Names that are read of a site's folder; a site with more is left out."""

MAX_STRANGERS = 20
"""Folders of others than the expected sites that a report names."""

_TOGETHER = 8


def site_folder(site: str) -> str:
    """Return the folder of a site in a round's place."""
    return f"sites/{site}"


class Inbox:
    """Contributions to one round, as they arrive.

    Parameters
    ----------
    storage
        Where sites put them.
    plan
        Of whom, and how large.
    number
        Of the round.
    work
        The server's own folder; what an earlier server put there counts.
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

    def seen(self) -> set[Announcement]:
        """Return what has been announced so far."""
        found = {announced(site, one.name) for site in self.plan.sites for one in (self.seen_folder / site).iterdir()}
        return {one for one in found if one is not None}

    def poll(self, until: float) -> None:
        """Look for announcements and copy the files of those that stand, for so long (``time.monotonic()``)."""
        self.trouble = None
        with ThreadPoolExecutor(_TOGETHER) as pool:
            for trouble in pool.map(lambda site: self._poll_site(site, until), self.plan.sites):
                self.trouble = trouble or self.trouble

    def _poll_site(self, site: str, until: float) -> str | None:
        """Return what went wrong on the way, which may go right the next time."""
        try:
            own, too_many = self._listed(site)
            if too_many:
                self.blocked[site] = f"has more than {MAX_FILES} files in its folder"
                return None
            for one in own:
                (self.seen_folder / site / one.name).touch()
            known = (announced(site, one.name) for one in (self.seen_folder / site).iterdir())
            stands = standing(one for one in known if one is not None).chosen.get(site)
            for copy in (self.files / site).iterdir():  # one contribution of each site is kept
                if stands is None or copy.name not in stands.digests:
                    copy.unlink()
            if stands is not None and self.problems.get(stands) is None:
                self._fetch(stands, until)
        except OSError as error:
            return f"{site}: {error.strerror or error}"
        return None

    def _listed(self, site: str) -> tuple[list[Announcement], bool]:
        names = self.storage.names(site_folder(site), MAX_FILES + 1)
        found = (announced(site, name) for name in names)
        return [one for one in found if one is not None and one.number == self.number], len(names) > MAX_FILES

    def _fetch(self, one: Announcement, until: float) -> None:
        for digest in one.digests:
            copy = self.files / one.site / digest
            if copy.exists():
                continue
            try:
                name = f"{site_folder(one.site)}/{digest}"
                self.storage.fetch(name, digest, copy, self.plan.limits.file_bytes, until)
            except RefusedError as error:
                self.problems[one] = str(error)
                return

    def contributions(self) -> list[Contribution]:
        """Return what has been announced, with the server's copies of those that stand."""
        return [self._contribution(one) for one in sorted(self.seen()) if one.site not in self.blocked]

    def _contribution(self, one: Announcement) -> Contribution:
        places = [self.files / one.site / digest for digest in one.digests]
        copies = [path if path.exists() else None for path in places]
        return Contribution(one, copies[0], copies[1] if len(copies) > 1 else None, self.problems.get(one))

    def late(self) -> list[Announcement]:
        """Return what is announced now and was not when the server last looked."""
        known, found = self.seen(), []
        for site in self.plan.sites:
            try:
                found += [one for one in self._listed(site)[0] if one not in known]
            except OSError:  # nobody can tell
                continue
        return sorted(found)

    def strangers(self) -> list[str]:
        """Return names of folders beside those of the expected sites, as many as a report takes."""
        try:
            names = self.storage.names("sites", MAX_FILES)
        except OSError:
            return []
        return sorted(set(names) - set(self.plan.sites))[:MAX_STRANGERS]
