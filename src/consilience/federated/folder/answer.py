"""Site of requests in a shared folder or a bucket: read the request, answer it from the site's own data, send."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consilience.core.min_count import MIN_COUNT
from consilience.errors import InputError, OptionError, Problem
from consilience.federated.contribution import Announcement
from consilience.federated.folder.request_server import FIRST_REQUEST, request_name
from consilience.federated.folder.site import (
    FIRST_PAUSE,
    MAX_PAUSE,
    TIMEOUT,
    put_announced,
    read_report,
    receive_folder,
    refuse_site_name,
    server_limits,
    wait_for_report,
)
from consilience.federated.folder.storage import RefusedError, Storage, storage_of
from consilience.federated.report import RoundReport
from consilience.federated.requests.base import MAX_REQUEST_BYTES, Answer, RoundRequest, read_request
from consilience.federated.requests.exchange import answer, check_request, rows_for
from consilience.files.atomic import refuse_unwritable, write_bytes
from consilience.files.limits import Limits, exceeded_limits
from consilience.files.safetensors_file import SafetensorsFile


@dataclass(frozen=True)
class Answered:
    """A site's answer to one request, sent."""

    kind: str  # kind of the request
    # Which request it is, from 1, and how many there are.
    number: int
    rounds: int
    announcement: Announcement  # the announcement, as the server sees it
    n_observations: int  # rows behind the sums
    withheld: int  # sums that were withheld, being of fewer rows than the least number
    again: bool = False  # whether the same had been sent before, so that nothing was done


def answer_folder(
    place: str | Path | Storage,
    site: str,
    data: Any,
    *,
    module: Any = None,
    held_out: Any = None,
    min_count: float = MIN_COUNT,
    follow: bool = False,
    timeout: float = TIMEOUT,
    receive: str | Path | None = None,
    say: Callable[[Answered], None] | None = None,
) -> tuple[Answered, ...]:
    """Answer the requests of a round from this site's own data; only sums leave.

    The open request is answered, or the first one that is published within `timeout`. With `follow` the later ones are
    answered too, until the last is over.

    Parameters
    ----------
    place : path or URL
        The folder or URL of the round.
    site : str
        Name of this site, as the server expects it.
    data : array_like, DataFrame, str or Path
        The rows of the site: an array, a table, or the path of a .csv, .npy or .npz.
    module : object, optional
        The module of a network, for kinds that need one.
    held_out : optional
        Rows that were held out of training, as `data`, for requests of these. Default: `data`.
    min_count : float
        A sum over fewer observations does not leave the site. Default: 5.
    follow : bool
        Whether to answer all requests that follow. Default: False.
    timeout : float
        Seconds to wait for a request, and for what comes after an answer. Default: 3600.
    receive : path, optional
        File for the model after the last request, for which `follow` is needed. Default: none.
    say : callable, optional
        Called with each answer once it is sent.

    Returns
    -------
    tuple of Answered
        What was answered, in order; empty with `follow` where all requests were over.

    Raises
    ------
    InputError
        For data that do not fit, a request that is none, a round without requests or whose requests are over, and where
        none came in time.
    """
    storage = storage_of(place)
    refuse_site_name(site)
    refuse_receive(receive, follow)
    done: list[Answered] = []
    number, deadline = FIRST_REQUEST, time.monotonic() + timeout
    while True:
        number, message = _next_request(storage, site, number, deadline)
        if message is None:
            if not follow:
                raise InputError(storage.where, "all requests of this round are over; nothing was sent", code="E-ROUND")
            if receive is not None:
                last = read_report(storage, number)
                is_failed = last is not None and bool(last.problems)  # then the model of the round before stays
                receive_folder(place, receive, number=number - is_failed, timeout=timeout)
            return tuple(done)
        answered = answer(message, rows_for(message, data, held_out), min_count=min_count, module=module)
        done.append(_send(storage, site, number, answered, message))
        if say is not None:
            say(done[-1])
        if not follow:
            return tuple(done)
        number, deadline = number + 1, time.monotonic() + timeout
        wait_for_report(storage, number - 1, deadline, "in time")


def refuse_receive(receive: str | Path | None, follow: bool) -> None:
    """Raise for a file for the model that nobody waits for, or that cannot be written."""
    if receive is not None:
        if not follow:
            raise OptionError("receive", "the model after the last request comes with follow", "give both")
        refuse_unwritable(Path(receive))


def _next_request(storage: Storage, site: str, number: int, deadline: float) -> tuple[int, RoundRequest | None]:
    """Return the round of the open request, and the request; None, with the last round, where all are over."""
    pause = FIRST_PAUSE
    while True:
        limits, _ = server_limits(storage, site)  # which refuses a site that is not expected
        previous = read_report(storage, number - 1)
        if previous is not None and (previous.problems or not previous.goes_on):
            if number == FIRST_REQUEST:
                _refuse_without_requests(storage, previous)
            return number - 1, None
        if read_report(storage, number) is not None:  # this one is over
            number += 1
            continue
        message = fetch_request(storage, number, limits)
        if message is not None:
            return number, message
        if time.monotonic() >= deadline:
            remedy = "is `consilience round open --then` running?"
            raise InputError(storage.where, "published no request in time", remedy, "E-ROUND")
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(2.0 * pause, MAX_PAUSE)


def _refuse_without_requests(storage: Storage, report: RoundReport) -> None:
    """Raise for a round after whose models nothing follows."""
    if report.problems:
        raise InputError([Problem(storage.where, "round 1 failed, so there is no request"), *report.problems])
    raise InputError(storage.where, "this round has no requests: nothing follows its models", code="E-ROUND")


def fetch_request(storage: Storage, number: int, limits: Limits) -> RoundRequest | None:
    """Return the request of a round, checked; None while there is none."""
    label = f"{storage.where}: {request_name(number)}"
    try:
        data = storage.read(request_name(number), MAX_REQUEST_BYTES + 1)
    except FileNotFoundError:
        return None
    except RefusedError as error:
        raise InputError(label, f"{error}", code="E-ROUND") from error
    except OSError:  # may pass; the caller looks again
        return None
    if len(data) > MAX_REQUEST_BYTES:
        raise InputError(label, f"is longer than the {MAX_REQUEST_BYTES} bytes that a site reads", code="E-ROUND")
    return parse_request(data, label, number, limits)


def parse_request(data: bytes, label: str, number: int, limits: Limits) -> RoundRequest:
    """Return the request of a round that came as bytes, checked; messages call it by a label."""
    with tempfile.TemporaryDirectory(prefix="consilience-site-") as folder:
        path = Path(folder) / "request"
        write_bytes(path, data)
        file = SafetensorsFile(path, label)
        if problems := exceeded_limits(file, limits):
            raise InputError(problems)
        message = check_request(read_request(file), label)
    if message.number > number - FIRST_REQUEST + 1:  # less where requests of another kind came before
        raise InputError(label, f"is request {message.number}, expected {number - FIRST_REQUEST + 1}", code="E-ROUND")
    return message


def _send(storage: Storage, site: str, number: int, answered: Answer, message: RoundRequest) -> Answered:
    """Put an answer and its announcement into the place."""
    announcement, again = put_announced(storage, site, number, None, [(answered.digest, answered.data)])
    withheld = int(answered.content.fields.get("withheld", 0))
    return Answered(
        message.kind, message.number, message.rounds, announcement, answered.n_observations, withheld, again
    )
