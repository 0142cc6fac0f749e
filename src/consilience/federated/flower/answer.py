"""Site of requests over Flower: gets a request, answers it from its own data, and runs no code of others.

The server's questions, beside those of `flower.site`: here is a piece of a request; what is your answer to it; all
requests are over. Between questions the site computes its answer, and answers none until it has it.
"""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from consilience.core.min_count import MIN_COUNT
from consilience.errors import InputError
from consilience.federated.contribution import Announcement
from consilience.federated.flower.messages import piece_of, quiet_flower
from consilience.federated.flower.site import ReceivedModel, connect, refuse_unknown_server, write_fused
from consilience.federated.folder.answer import Answered, parse_request, refuse_receive
from consilience.federated.folder.request_server import request_name
from consilience.federated.folder.site import TIMEOUT
from consilience.federated.report import RoundReport
from consilience.federated.requests.base import MAX_REQUEST_BYTES, Answer, RoundRequest
from consilience.federated.requests.exchange import answer, rows_for
from consilience.files.atomic import refuse_unwritable
from consilience.files.limits import Limits


def answer_flower(
    address: str,
    data: Any,
    *,
    key: str | Path,
    root_certificates: str | Path | None = None,
    module: Any = None,
    held_out: Any = None,
    min_count: float = MIN_COUNT,
    follow: bool = False,
    timeout: float = TIMEOUT,
    receive: str | Path | None = None,
    insecure: bool = False,
    say: Callable[[Answered], None] | None = None,
) -> tuple[Answered, ...]:
    """Answer the requests of a server that `consilience round flower --then` runs; only sums leave.

    Parameters
    ----------
    address, key, root_certificates, insecure
        As for `send_flower`.
    data, module, held_out, min_count, follow, receive, say
        As for `answer_folder`.
    timeout : float
        Seconds in which all must be done. Default: 3600.

    Returns
    -------
    tuple of Answered
        As from `answer_folder`.

    Raises
    ------
    InputError
        As `answer_folder`, and when the server refuses the key.
    UnsupportedError
        When Flower is not installed.
    """
    refuse_unknown_server(root_certificates, insecure)
    refuse_receive(receive, follow)
    quiet_flower()
    deadline = time.monotonic() + timeout
    done: list[Answered] = []
    with tempfile.TemporaryFile() as fused, connect(address, Path(key), root_certificates, insecure, deadline) as node:
        site = _RequestAnswers(follow, receive is not None, ReceivedModel(fused))
        while not site.is_done:
            if time.monotonic() > deadline:
                raise InputError(address, f"the requests were not over in {timeout:g} s", code="E-ROUND")
            node.answer_one(site.answer)
            if site.pending is not None:
                label = f"{address}: {request_name(site.pending)}"
                message = parse_request(bytes(site.request), label, site.pending, Limits())
                rows = rows_for(message, data, held_out)
                site.ready(message, answer(message, rows, min_count=min_count, module=module))
            if len(site.sent) > len(done):
                done.append(site.sent[-1])
                if say is not None:
                    say(done[-1])
        if site.model.refusal is not None:
            raise InputError(address, site.model.refusal, code="E-ROUND")
        if site.is_over and not done and not follow:
            text = "all requests of this round are over, or it has none; nothing was sent"
            raise InputError(address, text, code="E-ROUND")
        if receive is not None:
            write_fused(address, site.model, Path(receive))
    return tuple(done)


def receive_flower(
    address: str,
    output: str | Path,
    *,
    key: str | Path,
    root_certificates: str | Path | None = None,
    timeout: float = TIMEOUT,
    insecure: bool = False,
) -> RoundReport:
    """Wait for the model after the last request of a round over Flower, and write it to a file.

    Parameters
    ----------
    address, key, root_certificates, insecure
        As for `send_flower`.
    output : path
        File for the fused model.
    timeout : float
        Seconds in which the round must end. Default: 3600.

    Returns
    -------
    RoundReport
        The report of the last round that has a model.

    Raises
    ------
    InputError
        When no server runs at the address, the server refuses the key, the round failed, or it did not end in time.
    UnsupportedError
        When Flower is not installed.
    """
    refuse_unknown_server(root_certificates, insecure)
    refuse_unwritable(Path(output))
    quiet_flower()
    _refuse_silent_server(address)
    deadline = time.monotonic() + timeout
    with tempfile.TemporaryFile() as fused, connect(address, Path(key), root_certificates, insecure, deadline) as node:
        site = _RequestAnswers(True, True, ReceivedModel(fused))  # one that follows all requests, and answers none
        while not site.is_done:
            if time.monotonic() > deadline:
                raise InputError(address, f"the round did not end in {timeout:g} s", code="E-ROUND")
            node.answer_one(site.answer)
        if site.model.refusal is not None:
            raise InputError(address, site.model.refusal, code="E-ROUND")
        return write_fused(address, site.model, Path(output))


_REACH_SECONDS = 10.0
"""Time for a connection to the port. Chosen by hand."""


def _refuse_silent_server(address: str) -> None:
    """Raise where nothing listens at an address: a server that has ended has no model to hand out."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_SECONDS).close()
    except (OSError, ValueError) as error:
        text = f"no server runs there ({error}), and over Flower the model is handed out only while one does"
        raise InputError(address, text, "ask the server's owner for the fused file", "E-ROUND") from error


@dataclass
class _RequestAnswers:
    """A site's answers to the server's questions about requests.

    Parameters
    ----------
    follow, receive : bool
        Whether the site stays for all requests, and for the model after them.
    model : ReceivedModel
        Where the report and the model go.
    request : bytearray
        The bytes of the request that is coming.
    pending : int, optional
        Round of a request that came whole and is not answered yet.
    number : int
        Round of the answer that is ready; 0 before.
    message, answer_message : Request, Answer, optional
        That request, and the answer.
    sent : list of Answered
        What the server has taken.
    is_over : bool
        Whether the server said that all requests are over.
    is_done : bool
        Whether the site has what it came for.
    """

    follow: bool
    receive: bool
    model: ReceivedModel
    request: bytearray = field(default_factory=bytearray)
    pending: int | None = None
    number: int = 0
    message: RoundRequest | None = None
    answered: Answer | None = None
    sent: list[Answered] = field(default_factory=list)
    is_over: bool = False
    is_done: bool = False

    def ready(self, message: RoundRequest, answered: Answer) -> None:
        """Take the answer to the pending request."""
        assert self.pending is not None  # noqa: S101  (narrows the type)
        self.number, self.message, self.answered, self.pending = self.pending, message, answered, None

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a question of the server; an empty receipt for one that is not known."""
        kind = question.get("ask")
        if kind == "offer":
            return {"answers": True, "follow": self.follow, "receive": self.receive}
        if kind == "request":
            return self._take_piece(question)
        if kind == "answer" and self.answered is not None and question.get("number") == self.number:
            return {"digest": self.answered.digest, "size": len(self.answered.data), "attempt": 0}
        if kind == "piece" and self.answered is not None and question.get("digest") == self.answered.digest:
            return {"data": piece_of(self.answered.data, question)}
        if kind == "taken":
            self._note_taken(question)
        elif kind == "over":
            self.is_over = True
            self.model.begin()
            self.is_done = not self.receive
        elif kind in ("report", "fused", "refused"):
            self.model.take(kind, question)
            self.is_done = self.model.is_done
        return {"ok": True}

    def _take_piece(self, question: dict[str, Any]) -> dict[str, Any]:
        """Take a piece of a request; with the last one it is pending."""
        offset, size, data = question.get("offset"), question.get("size"), question.get("data")
        if not isinstance(size, int) or not 0 < size <= MAX_REQUEST_BYTES or not isinstance(data, bytes):
            self.model.refuse("sent a request that is too long, or none")
            self.is_done = True
            return {"ok": False}
        if offset == 0:
            self.request.clear()
        if offset != len(self.request) or offset + len(data) > size:
            return {"ok": False}  # the server sends it again
        self.request += data
        if len(self.request) == size:
            number = int(question.get("number", 0))
            is_answered = self.message is not None and self.message.data == bytes(self.request)
            self.pending = None if is_answered and number == self.number else number
        return {"ok": True}

    def _note_taken(self, question: dict[str, Any]) -> None:
        """Note that the server has taken the answer."""
        if self.answered is None or self.message is None or question.get("number") != self.number:
            return
        attempt = int(question.get("attempt", 1))
        announcement = Announcement("", self.number, attempt, self.answered.digest)
        withheld = int(self.answered.content.fields.get("withheld", 0))
        self.sent.append(
            Answered(
                self.message.kind,
                self.message.number,
                self.message.rounds,
                announcement,
                self.answered.n_observations,
                withheld,
                again=any(one.announcement == announcement for one in self.sent),
            )
        )
        self.is_done = not self.follow
