"""Site of rounds in a shared folder or a bucket: check and send files, receive fused models, take part in rounds."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import consilience as cs
from consilience.api.kinds import kind_of_file, load_file, packed
from consilience.checks import is_count
from consilience.core.min_count import MIN_COUNT
from consilience.errors import InputError, OptionError, Problem
from consilience.federated.check import check_files
from consilience.federated.contribution import Announcement, parse_announcement
from consilience.federated.folder.inbox import MAX_FILES, site_folder
from consilience.federated.folder.storage import MAX_REPORT_BYTES, RefusedError, Storage, retry, storage_of
from consilience.federated.plan import NAME_RULE, is_name
from consilience.federated.report import RoundReport
from consilience.files.atomic import refuse_unwritable
from consilience.files.document import parse_document
from consilience.files.limits import Limits, exceeded_limits
from consilience.files.safetensors_file import SafetensorsFile

FIRST_PAUSE, MAX_PAUSE = 0.125, 4.0
"""Seconds between looks for the report: doubled from the first to the longest. Chosen by hand."""

TIMEOUT = 3600.0
"""Seconds that a site waits for the fused model by default. Chosen by hand."""

_MAX_ATTEMPT = 999_999
"""Names of announcements have six digits for the attempt."""


@dataclass(frozen=True)
class Sent:
    """A site's contribution, sent."""

    announcement: Announcement  # the announcement, as the server sees it
    again: bool = False  # whether the same had been sent before, so that nothing was done
    warnings: tuple[str, ...] = ()  # what the site should know of its own file
    report: RoundReport | None = None  # the report of the round, where the site waited for it


def send_folder(
    file: str | Path,
    place: str | Path | Storage,
    site: str,
    *,
    fisher: str | Path | None = None,
    attempt: int | None = None,
    number: int = 1,
    min_count: float = MIN_COUNT,
    receive: str | Path | None = None,
    timeout: float = TIMEOUT,
    allow_differencing: bool = False,
) -> Sent:
    """Check a file and put it into the place of a round, where the server finds it.

    Parameters
    ----------
    file : path
        What ``consilience.save`` wrote.
    place : path or URL
        The folder or URL of the round.
    site : str
        Name of this site, as the server expects it.
    fisher : path, optional
        File of the network's Fisher information, or of its description.
    attempt : int, optional
        Number of this site's attempt: a higher one replaces a lower one. Default: the next, or the last one where the
        same files were sent before.
    number : int
        Number of the round, from 1. Default: 1.
    min_count : float
        Components with fewer observations are withheld, which a warning says. Default: 5.
    receive : path, optional
        File for the fused model. Default: None, which does not wait for it.
    timeout : float
        Seconds to wait for it. Default: 3600.
    allow_differencing : bool
        Whether a result of `cs.add` or `cs.remove` may be sent: whoever has it and the one before it gets a
        site's sums. Default: False.

    Raises
    ------
    InputError
        When the file is not one that can be fused, the site is not expected, the round is over, or nothing came back.
    """
    storage = storage_of(place)
    refuse_site_name(site)
    refuse_attempt(attempt)
    if receive is not None:
        refuse_unwritable(Path(receive))
    limits, allows_single = server_limits(storage, site)
    with sendable_files(file, fisher, limits, min_count, allow_differencing) as (files, warnings):
        announcement, again = _announce(storage, site, attempt, number, files)
    if allows_single:
        warnings = (
            *warnings,
            Problem("", f"this round may publish one site's own model as it is: also that of {site}"),
        )
    if receive is None:
        return Sent(announcement, again, warnings)
    report = receive_folder(place, receive, number=number, timeout=timeout)
    return Sent(announcement, again, warnings, report)


def refuse_site_name(site: Any) -> None:
    """Raise for what is no name of a site."""
    if not is_name(site):
        raise OptionError("site", f"expected a name of {NAME_RULE}; found {site!r}")


def refuse_attempt(attempt: Any) -> None:
    """Raise for what is no number of an attempt, where one is given."""
    if attempt is not None and not (is_count(attempt) and attempt <= _MAX_ATTEMPT):
        raise OptionError("attempt", f"expected a whole number from 1 to 999999, found {attempt!r}")


def _announce(
    storage: Storage, site: str, attempt: int | None, number: int, files: Sequence[SafetensorsFile]
) -> tuple[Announcement, bool]:
    """Put a site's files into the place of a round; return the announcement, and whether it was there before."""
    earlier_report = read_report(storage, number)
    if earlier_report is not None and not earlier_report.problems:  # a round that failed may be tried again
        again, announcement = next_announcement(storage, site, number, attempt, [part.digest for part in files])
        if again:  # by a site that was killed since
            return announcement, again
        raise InputError(storage.where, f"round {number} in this place is over; nothing was sent", code="E-ROUND")
    return put_announced(storage, site, number, attempt, [(part.digest, part.path) for part in files])


def put_announced(
    storage: Storage, site: str, number: int, attempt: int | None, contents: Sequence[tuple[str, Path | bytes]]
) -> tuple[Announcement, bool]:
    """Put files, by their digests, and their announcement into a site's folder, unless they are announced there.

    Return the announcement, and whether it was there before.
    """
    again, announcement = next_announcement(storage, site, number, attempt, [digest for digest, _ in contents])
    if not again:
        for digest, content in contents:
            retry(partial(storage.put, f"{site_folder(site)}/{digest}", content))
        # The announcement last: where it is, the files are whole.
        retry(lambda: storage.put(f"{site_folder(site)}/{announcement.name}", b""))
    return announcement, again


def receive_folder(
    place: str | Path | Storage, output: str | Path, *, number: int = 1, timeout: float = TIMEOUT
) -> RoundReport:
    """Wait for the fused model of a round and write it to a file, checked against the digest in the round's report.

    Parameters
    ----------
    place : path or URL
        The folder or URL of the round.
    output : path
        File for the fused model.
    number : int
        Number of the round, from 1. Default: 1.
    timeout : float
        Seconds to wait. Default: 3600.

    Raises
    ------
    InputError
        When the round failed, with the reasons, or did not end in time.
    """
    storage, target, deadline = storage_of(place), Path(output), time.monotonic() + timeout
    refuse_unwritable(target)
    report = wait_for_report(storage, number, deadline, f"within {timeout:g} seconds")
    if report.problems or report.fused is None:
        raise InputError([Problem(storage.where, f"round {number} failed"), *report.lines()])
    size, digest = report.fused.get("bytes"), report.fused.get("sha256")
    if not isinstance(size, int) or not isinstance(digest, str):
        text = f"the report of round {number} does not say which file is the fused model"
        raise InputError(storage.where, text, code="E-NEEDED")
    try:
        retry(lambda: storage.fetch(f"server/{number}/fused.safetensors", digest, target, size))
    except (RefusedError, FileNotFoundError) as error:
        text = f"the fused model of round {number} is not what its report says: {error}"
        raise InputError(storage.where, text, code="E-ROUND") from error
    return report


def wait_for_report(storage: Storage, number: int, deadline: float, when: str) -> RoundReport:
    """Return the report of a round once there is one; raise where the round did not end by a time, called `when`."""
    pause = FIRST_PAUSE
    while (report := read_report(storage, number)) is None:
        if time.monotonic() >= deadline:
            raise InputError(storage.where, f"round {number} did not end {when}", code="E-ROUND")
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(2.0 * pause, MAX_PAUSE)
    return report


def take_part(
    place: str | Path | Storage,
    site: str,
    refine: Callable[[Any, int], Any],
    *,
    timeout: float = TIMEOUT,
    min_count: float = MIN_COUNT,
    say: Callable[[str], None] | None = None,
) -> tuple[Any, RoundReport]:
    """Take part in all rounds: train, send, receive the fused model, train on from it, until the rounds end.

    Parameters
    ----------
    place, site, min_count
        As for `send_folder`.
    refine : callable
        ``refine(fused, number)`` returns this site's model for a round, anything ``consilience.save`` takes, or a pair
        of a network and its Fisher information. `fused` is what ``consilience.load`` gives of the round before; None in
        the first. Where `fused` is a posterior, start the fit from it, but keep the site's own prior: as a prior it
        would count the data of all sites again in every round.
    timeout : float
        Seconds to wait for each fused model. Default: 3600.
    say : callable, optional
        Called with each warning about the site's own files. Default: no warnings.

    Returns
    -------
    tuple of (object, RoundReport)
        The fused model and the report of the last round.

    Raises
    ------
    InputError
        As `send_folder`.
    """
    fused: Any = None
    number, storage = 1, storage_of(place)
    with tempfile.TemporaryDirectory(prefix="consilience-site-") as folder:
        fused_file = Path(folder) / "fused"
        while True:
            ended = read_report(storage, number)
            if ended is None or not (ended.continues or site in ended.sites):  # else this site was killed, and goes on
                sent = _send_refined(refine(fused, number), Path(folder), storage, site, number, min_count)
                for warning in sent.warnings:
                    (say or (lambda _line: None))(warning)
            report = receive_folder(storage, fused_file, number=number, timeout=timeout)
            fused = load_fused(fused_file)
            if not report.continues:
                return fused, report
            number += 1


def _send_refined(refined: Any, folder: Path, storage: Storage, site: str, number: int, min_count: float) -> Sent:
    """Send the model of a round, or the pair of a network and its Fisher information."""
    model, fisher = refined if isinstance(refined, tuple) and len(refined) == 2 else (refined, None)
    cs.save(model, folder / "own")
    if fisher is not None:
        cs.save(fisher, folder / "fisher")
    fisher_folder = None if fisher is None else folder / "fisher"
    return send_folder(folder / "own", storage, site, fisher=fisher_folder, number=number, min_count=min_count)


def load_fused(path: Path) -> Any:
    """Return the model in a fused file; of a plain checkpoint, without the library's document, its arrays by name."""
    file = SafetensorsFile(path)
    if file.header().text is not None:
        return load_file(file)
    from consilience.networks.files import read_network

    return read_network(file).arrays


@contextmanager
def sendable_files(
    file: str | Path, fisher: str | Path | None, limits: Limits, min_count: float, allow_differencing: bool = False
) -> Iterator[tuple[list[SafetensorsFile], tuple[Problem, ...]]]:
    """Yield the files that a site sends, and what it should know of them; they must be such that a server takes them.

    `fisher` is the file of Fisher information, or of the model's description. Components with fewer observations than
    `min_count` are withheld: a file without them, which is gone afterwards, is sent. Raises InputError with everything
    that is wrong with the files, and where nothing would be left of the model.
    """
    with tempfile.TemporaryDirectory(prefix="consilience-packed-") as place:
        own = SafetensorsFile(packed(Path(file), Path(place) / "packed.safetensors"), str(file))
        files = [own, *([] if fisher is None else [SafetensorsFile(Path(fisher))])]
        with _sendable(files, limits, min_count, allow_differencing) as sendable:
            yield sendable


@contextmanager
def _sendable(
    files: list[SafetensorsFile], limits: Limits, min_count: float, allow_differencing: bool
) -> Iterator[tuple[list[SafetensorsFile], tuple[Problem, ...]]]:
    """Yield the files that a site sends of files of this library and checkpoints; see `sendable_files`."""
    if problems := [problem for part in files for problem in exceeded_limits(part, limits)]:
        raise InputError(problems)
    checked = check_files(*files)
    if checked.problems:
        raise InputError(problem.about(files[0]) for problem in checked.problems)
    if not allow_differencing and (text := kind_of_file(files[0]).differencing(files[0])):
        raise InputError(files[0], text, "fuse the files of all sites that remain, or give `allow_differencing=True`")
    with tempfile.TemporaryDirectory(prefix="consilience-send-") as folder:
        rest = Path(folder) / "withheld.safetensors"
        for companion in files[1:]:
            kind_of_file(companion).withhold(companion, rest, min_count)
        withheld = kind_of_file(files[0]).withhold(files[0], rest, min_count)
        yield (files, ()) if withheld is None else ([SafetensorsFile(rest), *files[1:]], (withheld,))


def server_limits(storage: Storage, site: str) -> tuple[Limits, bool]:
    """Return the server's limits, and whether it may publish a site's own model; the defaults before it was started.

    Raises InputError for a site that is not expected, and for a masked round: what is sent here is not.
    """
    try:
        text = retry(lambda: storage.read("server/plan.json", MAX_REPORT_BYTES))
    except FileNotFoundError:
        return Limits(), False
    plan = parse_document(Path("plan.json"), text, "content", "`consilience round open` writes it")
    try:
        if site not in plan["sites"]:
            raise InputError(
                site, f"is not a site of the round in {storage.where}, which expects others", code="E-ROUND"
            )
        if plan.get("masked") is True:
            found = "this round is masked, and what you would send is not; nothing was sent"
            remedy = "take part with this site's signing key: `consilience round send --signing-key KEY`"
            raise InputError(storage.where, found, remedy)
        names = {field.name for field in fields(Limits)}  # a later version may have more
        limits = Limits(**{name: value for name, value in plan["limits"].items() if name in names})
        return limits, plan.get("allow_single") is True
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(storage.where, "server/plan.json is no plan of a round", code="E-ROUND") from error


def read_report(storage: Storage, number: int) -> RoundReport | None:
    """Return the report of a round; None while the round is open."""
    try:
        return RoundReport.from_bytes(storage.read(f"server/{number}/round.json", MAX_REPORT_BYTES))
    except RefusedError as error:
        raise InputError(f"{storage.where}: server/{number}/round.json", str(error), code="E-ROUND") from error
    except OSError:  # is not there yet, or may pass; the caller looks again
        return None


def next_announcement(
    storage: Storage, site: str, number: int, attempt: int | None, digests: list[str]
) -> tuple[bool, Announcement]:
    """Return whether the same was announced before, and the announcement."""
    names = retry(lambda: storage.names(site_folder(site), MAX_FILES))
    parsed = (parse_announcement(site, name) for name in names)
    earlier = sorted(
        announcement for announcement in parsed if announcement is not None and announcement.number == number
    )
    fisher = digests[1] if len(digests) > 1 else ""
    if attempt is None:
        is_same = bool(earlier) and (earlier[-1].digest, earlier[-1].fisher) == (digests[0], fisher)
        attempt = (earlier[-1].attempt if earlier else 0) + (0 if is_same else 1)
    announcement = Announcement(site, number, attempt, digests[0], fisher)
    return announcement in earlier, announcement
