"""A site's side of a round in a shared folder or a bucket: sending a file, and taking part in several rounds."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from consilience import api
from consilience.api.kinds import load_file
from consilience.checks import is_count
from consilience.core.provenance import file_digest
from consilience.errors import InputError, OptionError
from consilience.federated.check import check_files
from consilience.federated.contribution import Announcement, announced
from consilience.federated.folder.inbox import MAX_FILES, site_folder
from consilience.federated.folder.storage import MOST_REPORT, RefusedError, Storage, patiently, storage_of
from consilience.federated.plan import NAME_RULE, is_name
from consilience.federated.report import RoundReport
from consilience.files.atomic import refuse_unwritable
from consilience.files.document import parse_document
from consilience.files.limits import Limits, exceeded_limits
from consilience.files.safetensors_file import SafetensorsFile

MIN_COUNT = 5.0
"""A component with fewer observations behind it is warned about: it may tell of single persons."""

_POLL = 0.5
_TIMEOUT = 3600.0


@dataclass(frozen=True)
class Sent:
    """What a site sent.

    Parameters
    ----------
    announcement
        As the server sees it.
    again
        Whether the very same had been sent before, so that nothing was done.
    warnings
        What the site should know of its own file.
    report
        What the round says, where the site waited for it.
    """

    announcement: Announcement
    again: bool = False
    warnings: tuple[str, ...] = ()
    report: RoundReport | None = None


def send_folder(
    file: str | Path,
    place: str | Path,
    site: str,
    *,
    fisher: str | Path | None = None,
    attempt: int | None = None,
    number: int = 1,
    min_count: float = MIN_COUNT,
    receive: str | Path | None = None,
    timeout: float = _TIMEOUT,
) -> Sent:
    """Check a file and put it into the place of a round, where the server finds it.

    Parameters
    ----------
    file
        What ``consilience.save`` wrote.
    place
        The folder or URL of the round.
    site
        Name of this site, as the server expects it.
    fisher
        File of the network's Fisher information.
    attempt
        Which attempt of this site it is: a higher one replaces a lower one. None takes the next, or the last one where
        the same files were sent before.
    number
        Of the round, from 1.
    min_count
        A component with fewer observations is warned about.
    receive
        Where the fused model is to go; None does not wait for it.
    timeout
        Seconds to wait for it.

    Raises
    ------
    InputError
        When the file is not one that can be fused, the site is not expected, the round is over, or nothing came back.
    """
    storage = storage_of(place)
    if not is_name(site):
        raise OptionError(f"site: expected a name of {NAME_RULE}; found {site!r}")
    if attempt is not None and not (is_count(attempt) and attempt <= 999_999):
        raise OptionError(f"attempt: expected a whole number from 1 to 999999, found {attempt!r}")
    if receive is not None:
        refuse_unwritable(Path(receive))
    path, information = Path(file), None if fisher is None else Path(fisher)
    files = [one for one in (path, information) if one is not None]
    warnings = checked_to_send(files, _limits(storage, site), min_count)
    ended = _report(storage, number)
    if ended is not None and not ended.problems:  # one that failed may be tried again
        raise InputError(f"{storage.where}: round {number} in this place is over; nothing was sent")
    digests = [file_digest(one) for one in files]
    again, announcement = _numbered(storage, site, number, attempt, digests)
    if not again:
        for one, digest in zip(files, digests, strict=True):
            patiently(partial(storage.put, f"{site_folder(site)}/{digest}", one))
        patiently(lambda: storage.put(f"{site_folder(site)}/{announcement.name}", b""))
    if receive is None:
        return Sent(announcement, again, warnings)
    report = receive_folder(place, receive, number=number, timeout=timeout)
    return Sent(announcement, again, warnings, report)


def receive_folder(place: str | Path, output: str | Path, *, number: int = 1, timeout: float = _TIMEOUT) -> RoundReport:
    """Wait for the fused model of a round and write it to a file, checked against the digest in the round's report.

    Raises
    ------
    InputError
        When the round failed, saying why, or did not end in time.
    """
    storage, target, ends = storage_of(place), Path(output), time.monotonic() + timeout
    refuse_unwritable(target)
    pause = _POLL / 4
    while (report := _report(storage, number)) is None:
        if time.monotonic() >= ends:
            raise InputError(f"{storage.where}: round {number} did not end within {timeout:g} seconds")
        time.sleep(min(pause, max(0.0, ends - time.monotonic())))
        pause = min(2.0 * pause, 8 * _POLL)
    if report.problems or report.fused is None:
        raise InputError([f"{storage.where}: round {number} failed", *report.lines()])
    size, digest = report.fused.get("bytes"), report.fused.get("sha256")
    if not isinstance(size, int) or not isinstance(digest, str):
        raise InputError(f"{storage.where}: the report of round {number} does not say which file is the fused model")
    try:
        patiently(lambda: storage.fetch(f"server/{number}/fused.safetensors", digest, target, size))
    except (RefusedError, FileNotFoundError) as error:
        found = f"{storage.where}: the fused model of round {number} is not what its report says"
        raise InputError(f"{found}: {error}") from error
    return report


def take_part(
    place: str | Path,
    site: str,
    refine: Callable[[Any, int], Any],
    *,
    timeout: float = _TIMEOUT,
    min_count: float = MIN_COUNT,
    say: Callable[[str], None] | None = None,
) -> tuple[Any, RoundReport]:
    """Take part in all rounds: learn, send, receive the fused model, go on from it, until the server has enough.

    Parameters
    ----------
    place, site, min_count
        As for `send_folder`.
    refine
        ``refine(fused, number)`` returns this site's model for a round, anything ``consilience.save`` takes, or a pair
        of a network and its Fisher information. `fused` is what ``consilience.load`` gives of the round before; None in
        the first. Where `fused` is a posterior, start the fit from it, but keep the site's own prior: as a prior it
        would count the data of all sites again in every round.
    timeout
        Seconds to wait for each fused model.
    say
        Told what the site should know of its own files, a line at a time.

    Returns
    -------
    fused, report
        Of the last round.

    Raises
    ------
    InputError
        As `send_folder`.
    """
    fused: Any = None
    number = 1
    with tempfile.TemporaryDirectory(prefix="consilience-site-") as folder:
        own, information, back = (Path(folder) / name for name in ("own", "fisher", "fused"))
        while True:
            made = refine(fused, number)
            model, extra = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
            api.save(model, own)
            if extra is not None:
                api.save(extra, information)
            sent = send_folder(
                own, place, site, fisher=None if extra is None else information, number=number, min_count=min_count
            )
            for warning in sent.warnings:
                (say or (lambda _line: None))(warning)
            report = receive_folder(place, back, number=number, timeout=timeout)
            fused = load_fused(back)
            if not report.continues:
                return fused, report
            number += 1


def load_fused(path: Path) -> Any:
    """Return what a fused file holds: of a checkpoint that says nothing of its units, its arrays by name."""
    file = SafetensorsFile(path)
    if file.header().text is not None:
        return load_file(file)
    from consilience.networks.files import read_network

    return read_network(file).arrays


def checked_to_send(files: list[Path], limits: Limits, min_count: float) -> tuple[str, ...]:
    """Return what a site should know of its own file, which must be one that a server takes.

    Raises
    ------
    InputError
        With everything that is wrong with it.
    """
    if problems := [problem for path in files for problem in exceeded_limits(path, limits)]:
        raise InputError(problems)
    found = check_files(*map(SafetensorsFile, files))
    if found.problems:
        raise InputError([f"{files[0]}: {problem}" for problem in found.problems])
    if found.smallest is None or found.smallest >= min_count:
        return ()
    return (
        f"{files[0]}: a component has {found.smallest:.3g} observations behind it, fewer than {min_count:g}: it may "
        "tell of single persons; fit fewer components, or leave it out",
    )


def _limits(storage: Storage, site: str) -> Limits:
    """Return what the server takes, where it has said so already."""
    try:
        text = patiently(lambda: storage.read("server/plan.json", MOST_REPORT))
    except FileNotFoundError:
        return Limits()
    told = parse_document(Path("plan.json"), text, "content", "`consilience serve` writes it")
    try:
        if site not in told["sites"]:
            raise InputError(f"{site}: is not a site of the round in {storage.where}, which expects others")
        known = {field.name for field in fields(Limits)}  # a later version may tell of more
        return Limits(**{name: value for name, value in told["limits"].items() if name in known})
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"{storage.where}: server/plan.json is no plan of a round") from error


def _report(storage: Storage, number: int) -> RoundReport | None:
    """Return what a round says of itself; None while it is open."""
    try:
        return RoundReport.from_bytes(storage.read(f"server/{number}/round.json", MOST_REPORT))
    except FileNotFoundError:
        return None
    except OSError:  # it will be asked again
        return None


def _numbered(
    storage: Storage, site: str, number: int, attempt: int | None, digests: list[str]
) -> tuple[bool, Announcement]:
    """Return whether the same was sent before, and what to announce."""
    names = patiently(lambda: storage.names(site_folder(site), MAX_FILES))
    own = sorted(one for name in names if (one := announced(site, name)) is not None and one.number == number)
    fisher = digests[1] if len(digests) > 1 else ""
    if attempt is None:
        same = bool(own) and (own[-1].digest, own[-1].fisher) == (digests[0], fisher)
        attempt = (own[-1].attempt if own else 0) + (0 if same else 1)
    found = Announcement(site, number, attempt, digests[0], fisher)
    return found in own, found
