"""A site's place in a round over Flower: the storage of a round, whose files the server hands over by questions.

The server asks for the site's next wish: to read what it published under a name, to take a file of the site's, or
nothing more. What a site does in a folder or bucket it does here in the same words, and its name is that of its key.
"""

from __future__ import annotations

import io
import math
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from consilience.checks import Json
from consilience.errors import ConsilienceError, InputError, OptionError
from consilience.federated.flower.messages import piece_of, quiet_flower
from consilience.federated.flower.site import SuperNode, connect
from consilience.federated.folder.storage import RefusedError, copy_stream
from consilience.federated.plan import is_name
from consilience.files.opening import open_file

TIMEOUT = 3600.0
"""Seconds for whatever the server is asked. Chosen by hand."""

_LAST_SECONDS = 5.0
"""Time for informing the server that this site needs nothing more. Chosen by hand."""

_REACH_SECONDS = 10.0
"""Time for a connection to a server that should be running. Chosen by hand."""

_MAX_REASON = 200
"""Characters of a server's refusal that are shown. Chosen by hand."""

_MAX_NAMES_BYTES = 2**20
"""Bytes of a listing of this site's own files, at most. Chosen by hand, far above what a server keeps of them."""


class FlowerStorage:
    """The place of a round over Flower, as `folder.storage.Storage`.

    Parameters
    ----------
    node : SuperNode
        The connection.
    address : str
        What messages call the place.
    timeout : float
        Seconds in which the server must grant a wish.
    """

    def __init__(self, node: SuperNode, address: str, timeout: float) -> None:
        self.node, self.where, self.timeout = node, address, timeout
        self._wish: dict[str, Any] = {}
        self._outgoing: BinaryIO = io.BytesIO()
        self._incoming: BinaryIO = io.BytesIO()
        self._max_bytes = 0
        self._is_granted = self._is_absent = self._is_too_long = False
        self._refusal: str | None = None
        self._site: str | None = None

    @property
    def site(self) -> str:
        """Name of this site, as the server knows its key."""
        if self._site is None:
            self.names("", 1)  # whatever the server asks first
        return str(self._site)

    def names(self, folder: str, max_names: int) -> list[str]:
        """See `Storage`; of this site's own folder, which it alone can list."""
        try:
            return self.read(folder, _MAX_NAMES_BYTES).decode().split("\n")[:max_names]
        except FileNotFoundError:
            return []

    def read(self, name: str, max_bytes: int) -> bytes:
        """See `Storage`."""
        into = io.BytesIO()
        self._receive(name, into, max_bytes)
        return into.getvalue()

    def fetch(self, name: str, digest: str, target: Path, max_bytes: int, deadline: float = math.inf) -> None:
        """See `Storage`."""
        with tempfile.TemporaryFile(dir=target.parent) as into:
            self._receive(name, into, max_bytes)
            into.seek(0)
            copy_stream(into, digest, target, max_bytes, deadline)

    def put(self, name: str, data: Path | bytes) -> None:
        """See `Storage`."""
        if isinstance(data, bytes):
            self._send(name, io.BytesIO(data), len(data))
            return
        with open_file(data) as stream:
            self._send(name, stream, data.stat().st_size)

    def prepare(self, folder: str) -> None:
        """See `Storage`."""

    def remove(self, name: str) -> None:
        """See `Storage`."""

    def leave(self) -> None:
        """Tell the server that this site needs nothing more."""
        from httpx import HTTPError

        with suppress(InputError, HTTPError):  # the server may have gone, and nothing is lost
            self._grant({"done": True}, min(self.timeout, _LAST_SECONDS))

    def _receive(self, name: str, into: BinaryIO, max_bytes: int) -> None:
        """Read what the server published under a name; raise FileNotFoundError where there is nothing."""
        self._incoming, self._max_bytes, self._is_absent = into, max_bytes, False
        self._grant({"read": name}, self.timeout)
        if self._is_absent:
            raise FileNotFoundError(2, "is not there", name)

    def _send(self, name: str, stream: BinaryIO, size: int) -> None:
        """Hand a file over."""
        self._outgoing = stream
        self._grant({"put": name, "size": size}, self.timeout)

    def _grant(self, wish: dict[str, Any], timeout: float) -> None:
        """Answer questions of the server until a wish is granted."""
        self._wish, self._refusal = wish, None
        self.node.deadline = deadline = time.monotonic() + timeout
        self._is_granted = self._is_too_long = False
        while not self._is_granted:
            if time.monotonic() > deadline:
                raise InputError(self.where, "the server did not answer in time", code="E-ROUND")
            self.node.answer_one(self._answer)
        if self._is_too_long:
            raise RefusedError(f"is longer than the {self._max_bytes} bytes that a site reads")
        if self._refusal is not None:
            raise InputError(self.where, self._refusal, code="E-ROUND")

    def _answer(self, question: dict[str, Any]) -> dict[str, Json]:
        """Return the answer to a question of the server; an empty receipt for one that is not known."""
        kind = question.get("ask")
        if kind == "wish":
            self._note_name(question.get("site"))
            self._is_granted = self._wish.get("done") is True
            return self._wish
        if kind == "piece" and question.get("name") == self._wish.get("put"):
            return {"data": piece_of(self._outgoing, question)}
        if kind == "taken" and question.get("name") == self._wish.get("put"):
            self._is_granted = True
        elif kind == "published" and question.get("name") == self._wish.get("read"):
            self._take_piece(question)
        elif kind == "refused":
            self._refusal, self._is_granted = str(question.get("why"))[:_MAX_REASON], True
        return {"ok": True}

    def _note_name(self, site: Any) -> None:
        """Note what the server calls this site; it is part of paths, and stays the same."""
        if not is_name(site) or self._site not in (None, site):
            text = f"calls this site {site!r:.80}, which is no name or another than before"
            raise InputError(self.where, text, code="E-ROUND")
        self._site = site

    def _take_piece(self, question: dict[str, Json]) -> None:
        """Take a piece of what was published, or that there is nothing."""
        size, offset, data = question.get("size"), question.get("offset"), question.get("data")
        if size == -1:
            self._is_absent = self._is_granted = True
            return
        if not isinstance(size, int) or not 0 <= size <= self._max_bytes or not isinstance(data, bytes):
            self._is_too_long = self._is_granted = True
            return
        if offset == 0:
            self._incoming.seek(0)
            self._incoming.truncate()
        if offset == self._incoming.tell() and len(data) <= size - self._incoming.tell():
            self._incoming.write(data)
        self._is_granted = self._incoming.tell() == size


@contextmanager
def flower_place(
    address: str,
    *,
    key: str | Path,
    root_certificates: str | Path | None = None,
    insecure: bool = False,
    timeout: float = TIMEOUT,
    waits: bool = True,
) -> Iterator[FlowerStorage]:
    """Yield the place of a round that `consilience round flower` runs, for the functions that take a place.

    Parameters
    ----------
    address : str
        Host and port of the server.
    key : path
        Private key of this site, whose public key the server has under its name (``ssh-keygen -t ecdsa -b 384``).
    root_certificates : path, optional
        The certificate, PEM, that authenticates the server. Required unless `insecure`.
    insecure : bool
        Neither encrypt nor authenticate the server; for trials on one machine. Default: False.
    timeout : float
        Seconds in which the server must do what is asked of it, such as to take a file. Default: 3600.
    waits : bool
        Whether a server is waited for that does not run yet. Default: True.

    Raises
    ------
    InputError
        When the server cannot be reached, refuses the key, or time is over.
    UnsupportedError
        When Flower is not installed.

    Examples
    --------
    A site sends its file, and waits for the fused model::

        with flower_place("fusion.example.org:8000", key="lund", root_certificates="ca.crt") as place:
            send_folder("lund.safetensors", place, place.site, receive="fused.safetensors")
    """
    if insecure == (root_certificates is not None):
        text = "give the certificate by which the server is known, or insecure, not both"
        raise OptionError("root_certificates", text)
    quiet_flower()
    if not waits:
        _refuse_silent_server(address)
    with connect(address, Path(key), root_certificates, insecure, time.monotonic() + timeout) as node:
        storage = FlowerStorage(node, address, timeout)
        try:
            yield storage
        except ConsilienceError:
            storage.leave()
            raise
        storage.leave()


def _refuse_silent_server(address: str) -> None:
    """Raise where nothing listens at an address: a server that has ended has no model to hand out."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_SECONDS).close()
    except (OSError, ValueError) as error:
        text = f"no server runs there ({error}), and over Flower the model is handed out only while one does"
        raise InputError(address, text, "ask the server's owner for the fused file", "E-ROUND") from error
