"""A site's part in a masked round over Flower: the messages are those of a folder, and the server fetches them.

The server asks for the site's next wish: to read what the server published under a name, or to hand over a message.
Reading follows in pieces, or that there is nothing yet.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from consilience.checks import Json
from consilience.core.min_count import MIN_COUNT
from consilience.errors import InputError
from consilience.federated.flower.messages import piece_of, quiet_flower
from consilience.federated.flower.site import connect, refuse_unknown_server
from consilience.federated.folder.masked_site import file_folder, masked_part, rows_folder, run_part
from consilience.federated.folder.site import TIMEOUT, sendable_files
from consilience.federated.masking.exchange import TookPart
from consilience.federated.masking.table import MaskedSiteRows
from consilience.files.limits import Limits

_LAST_SECONDS = 5.0
"""Time in which the server is told that this site needs nothing more. Chosen by hand."""


class FlowerMailbox:
    """A site's end of a masked round over Flower.

    All must be done at `deadline` (``time.monotonic()``).
    """

    def __init__(self, node: Any, address: str, deadline: float) -> None:
        self.node, self.where, self.deadline = node, address, deadline
        self._wish: dict[str, Any] = {}
        self._outgoing = b""
        self._incoming = bytearray()
        self._max_bytes = 0
        self._is_granted = False
        self._is_absent = False

    def read(self, name: str, max_bytes: int) -> bytes | None:
        """See `Mailbox`."""
        self._incoming.clear()
        self._max_bytes, self._is_absent = max_bytes, False
        self._grant({"read": name}, self.deadline)
        return None if self._is_absent else bytes(self._incoming)

    def send(self, number: int, data: bytes) -> None:
        """See `Mailbox`."""
        self._outgoing = data
        digest = hashlib.sha256(data).hexdigest()
        self._grant({"digest": digest, "size": len(data), "number": number}, self.deadline)

    def leave(self) -> None:
        """Tell the server that this site needs nothing more."""
        ends = min(self.deadline, time.monotonic() + _LAST_SECONDS)
        try:
            self._grant({"done": True}, ends)
        except InputError:  # the server may have gone, and nothing is lost
            return

    def _grant(self, wish: dict[str, Any], deadline: float) -> None:
        """Answer questions of the server until a wish is granted."""
        self._wish, self._is_granted = wish, False
        while not self._is_granted:
            if time.monotonic() > deadline:
                raise InputError(self.where, "the round did not go on in time", code="E-ROUND")
            self.node.answer_one(self._answer)

    def _answer(self, question: dict[str, Any]) -> dict[str, Json]:
        """Return the answer to a question of the server; an empty receipt for one that is not known."""
        kind = question.get("ask")
        if kind == "offer":
            return {"masked": True}
        if kind == "wish":
            self._is_granted = self._wish.get("done") is True
            return self._wish
        if kind == "piece" and question.get("digest") == self._wish.get("digest"):
            return {"data": piece_of(self._outgoing, question)}
        if kind == "taken" and question.get("number") == self._wish.get("number"):
            self._is_granted = True
        elif kind == "published" and question.get("name") == self._wish.get("read"):
            self._take_piece(question)
        elif kind == "refused":
            raise InputError(self.where, str(question.get("why"))[:200], code="E-ROUND")
        return {"ok": True}

    def _take_piece(self, question: dict[str, Json]) -> None:
        """Take a piece of what was published, or that there is nothing yet."""
        size, offset, data = question.get("size"), question.get("offset"), question.get("data")
        if size == -1:
            self._is_absent = self._is_granted = True
            return
        if not isinstance(size, int) or not 0 <= size <= self._max_bytes or not isinstance(data, bytes):
            text = f"published more than the {self._max_bytes} bytes that a site reads"
            raise InputError(self.where, text, code="E-ROUND")
        if offset == 0:
            self._incoming.clear()
        if offset == len(self._incoming) and len(data) <= size - len(self._incoming):
            self._incoming += data
        self._is_granted = len(self._incoming) == size


def send_masked_flower(
    file: str | Path,
    address: str,
    *,
    key: str | Path,
    signing_key: str | Path,
    signing_keys: str | Path | None = None,
    root_certificates: str | Path | None = None,
    description: str | Path | None = None,
    min_count: float = MIN_COUNT,
    receive: str | Path | None = None,
    timeout: float = TIMEOUT,
    work: str | Path | None = None,
    insecure: bool = False,
    allow_differencing: bool = False,
    say: Callable[[str], None] | None = None,
) -> TookPart:
    """Take part with a file in a masked round that `consilience round masked flower://...` runs.

    Parameters
    ----------
    file, signing_key, signing_keys, description, min_count, receive, work, allow_differencing, say
        As for `send_masked`.
    address, key, root_certificates, insecure
        As for `send_flower`.
    timeout : float
        Seconds in which all must be done. Default: 3600.

    Raises
    ------
    InputError
        As `send_masked`, and when the server refuses the key.
    UnsupportedError
        When Flower is not installed.
    """
    with sendable_files(file, description, Limits(), min_count, allow_differencing) as (files, warnings):
        for warning in warnings:
            if say is not None:
                say(str(warning))
        connection = (address, key, root_certificates, insecure, timeout)
        return _run(connection, signing_key, signing_keys, files, file_folder(work, file), receive, say)


def answer_masked_flower(
    address: str,
    data: Any,
    *,
    key: str | Path,
    signing_key: str | Path,
    signing_keys: str | Path | None = None,
    root_certificates: str | Path | None = None,
    module: Any = None,
    min_count: float = MIN_COUNT,
    receive: str | Path | None = None,
    timeout: float = TIMEOUT,
    work: str | Path | None = None,
    insecure: bool = False,
    say: Callable[[str], None] | None = None,
) -> TookPart:
    """Answer all requests of a masked round over Flower from this site's own data.

    Parameters
    ----------
    data, module, min_count
        As for `answer_masked`.
    address, key, signing_key, signing_keys, root_certificates, receive, timeout, insecure, say
        As for `send_masked_flower`.
    work : path, optional
        This site's own folder. Default: named like the signing key, with ``.masked``, in the working directory.

    Raises
    ------
    InputError, UnsupportedError
        As `send_masked_flower`, and for data that do not fit.
    """
    connection = (address, key, root_certificates, insecure, timeout)
    folder = rows_folder(work, Path(signing_key).name)
    return _run(connection, signing_key, signing_keys, MaskedSiteRows(data, min_count, module), folder, receive, say)


def _run(
    connection: tuple[str, str | Path, str | Path | None, bool, float],
    signing_key: str | Path,
    signing_keys: str | Path | None,
    source: Any,
    work: Path,
    receive: str | Path | None,
    say: Callable[[str], None] | None,
) -> TookPart:
    """Connect, take part, and leave."""
    address, key, root_certificates, insecure, timeout = connection
    refuse_unknown_server(root_certificates, insecure)
    quiet_flower()
    deadline = time.monotonic() + timeout
    with connect(address, Path(key), root_certificates, insecure, deadline) as node:
        mailbox = FlowerMailbox(node, address, deadline)
        part = masked_part(mailbox, None, signing_key, signing_keys, source, work, timeout, say)
        took = run_part(part, receive)
        mailbox.leave()
        return took
