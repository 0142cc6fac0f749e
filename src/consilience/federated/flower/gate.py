"""Request filter before Flower's SuperLink: only the requests of sites pass, bounded in size and total.

Flower 1.41 serves three interfaces on one port: Fleet for sites, Control for starting apps and registering keys, and
Runtime for apps. Control authenticates nobody unless a login service is set up, so whoever reaches the port could
register a key, or start an app on the server. The gate answers only the requests of Fleet that a site makes.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import Counter
from pathlib import Path
from typing import Any

from consilience.federated.flower.messages import MAX_BODY_BYTES

FLEET = "/v1/fleet/"
OPEN = frozenset(
    FLEET + name
    for name in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "push-object",
        "pull-object",
        "confirm-message-received",
    )
)
"""Paths that pass; Flower asks for the signature of a key on each of them."""

_MAX_UNKNOWN_KEYS = 20
"""Unregistered keys and addresses that are noted for the report, as many as it names of unexpected folders. Chosen by
hand."""

_MAX_HELD_BYTES = 2**28
"""Bytes of bodies that are held at once, of all connections together. Chosen by hand: sixty pieces of a file."""

BODY_SECONDS = 180.0
"""Time for the body of a request, at most: a piece of a file over a line of 200 kbit/s."""


class FleetGate:
    """Passes on the requests of sites, up to a quota for each key, and notes keys that are not registered.

    `app` is Flower's SuperLink; one key may send `quota` bytes for every round, or request, that has begun in `spool`,
    the folder of the rounds. Unknown keys are noted there, as folders next to those of sites.
    """

    def __init__(self, app: Any, quota: int, spool: Path) -> None:
        self.app, self.quota, self.spool = app, quota, spool
        self.sent: Counter[bytes] = Counter()
        self.held = 0  # bytes of bodies under way
        self.n_begun = 1  # rounds
        self.known: set[str] = set()  # addresses from which a registered key has asked

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        key = headers.get(b"flwr-public-key", b"")
        length = headers.get(b"content-length", b"0")
        if scope["path"] not in OPEN or scope["method"] != "POST":
            await _refuse(send, 404)
        elif b"transfer-encoding" in headers:  # a body without a length; no site sends one
            await _refuse(send, 411)
        elif self.held > _MAX_HELD_BYTES:
            await _refuse(send, 503)
        elif not length.isdigit() or int(length) > MAX_BODY_BYTES or self._has_sent_all(key):
            await _refuse(send, 413)
        else:
            await self._pass_on(scope, receive, send, key)

    def _has_sent_all(self, key: bytes) -> bool:
        """Return whether a key has sent what it may in all rounds that have begun: one more than are over."""
        if self.sent[key] > self.n_begun * self.quota:
            self.n_begun = 1 + sum(1 for _ in self.spool.glob("server/*/round.json"))
        return self.sent[key] > self.n_begun * self.quota

    async def _pass_on(self, scope: Any, receive: Any, send: Any, key: bytes) -> None:
        n_read = 0
        deadline = asyncio.get_running_loop().time() + BODY_SECONDS
        is_whole = False

        async def receive_and_count() -> Any:
            nonlocal n_read, is_whole
            try:
                async with asyncio.timeout_at(None if is_whole else deadline):
                    message = await receive()
            except TimeoutError:
                return {"type": "http.disconnect"}
            n_new = len(message.get("body", b""))
            n_read += n_new
            self.held += n_new
            is_whole = not message.get("more_body", False)
            # The stated length was checked; a body longer than stated ends here.
            return message if n_read <= MAX_BODY_BYTES else {"type": "http.disconnect"}

        async def send_and_note(message: Any) -> None:
            if message["type"] == "http.response.start":
                if message["status"] < 300:
                    self.sent[key] += n_read
                    self.known.add(scope["client"][0])
                elif message["status"] != 401 and scope["path"].endswith("/activate-node"):
                    self._note_key(key)
            await send(message)

        try:
            await self.app(scope, receive_and_count, send_and_note)
        finally:
            self.held -= n_read

    def _note_key(self, key: bytes) -> None:
        """Make a folder called by the digest of an unregistered key, which the report names as unexpected."""
        self._note(f"key-{hashlib.sha256(key).hexdigest()[:16]}")

    def note_address(self, host: str) -> None:
        """Make a folder called by an address that held too many connections."""
        self._note(f"too-many-connections-{re.sub(r'[^0-9A-Fa-f.]', '-', host)}")

    def _note(self, name: str) -> None:
        folder = self.spool / "sites"
        if sum(path.name.startswith(_NOTED) for path in folder.iterdir()) < _MAX_UNKNOWN_KEYS:
            (folder / name).mkdir(exist_ok=True)


_NOTED = ("key-", "too-many-connections-")


async def _refuse(send: Any, status: int) -> None:
    """Answer a status alone, and close the connection: what else comes over it is not read."""
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
