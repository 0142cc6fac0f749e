"""Request filter before Flower's SuperLink: only the requests of sites pass, bounded in size and total.

Flower 1.41 serves three interfaces on one port: Fleet for sites, Control for starting apps and registering keys, and
Runtime for apps. Control authenticates nobody unless a login service is set up, so whoever reaches the port could
register a key, or start an app on the server. The gate answers only the requests of Fleet that a site makes.
"""

from __future__ import annotations

import hashlib
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
"""Unregistered keys that are noted for the report, as many as it names of unexpected folders. Chosen by hand."""


class FleetGate:
    """Passes on the requests of sites, up to a quota for each key, and notes keys that are not registered.

    `app` is Flower's SuperLink; one key may send `quota` bytes in all. Unknown keys are noted in `spool`, the folder of
    the round, as folders beside those of sites.
    """

    def __init__(self, app: Any, quota: int, spool: Path) -> None:
        self.app, self.quota, self.spool = app, quota, spool
        self.sent: Counter[bytes] = Counter()

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
        elif not length.isdigit() or int(length) > MAX_BODY_BYTES or self.sent[key] > self.quota:
            await _refuse(send, 413)
        else:
            await self._pass_on(scope, receive, send, key)

    async def _pass_on(self, scope: Any, receive: Any, send: Any, key: bytes) -> None:
        n_read = 0

        async def receive_and_count() -> Any:
            nonlocal n_read
            message = await receive()
            n_read += len(message.get("body", b""))
            # The stated length was checked; a body without one, or longer than stated, ends here.
            return message if n_read <= MAX_BODY_BYTES else {"type": "http.disconnect"}

        async def send_and_note(message: Any) -> None:
            if message["type"] == "http.response.start":
                if message["status"] < 300:
                    self.sent[key] += n_read
                elif message["status"] != 401 and scope["path"].endswith("/activate-node"):
                    self._note_key(key)
            await send(message)

        await self.app(scope, receive_and_count, send_and_note)

    def _note_key(self, key: bytes) -> None:
        """Make a folder called by the digest of an unregistered key, which the report names as unexpected."""
        folder = self.spool / "sites"
        if sum(path.name.startswith("key-") for path in folder.iterdir()) < _MAX_UNKNOWN_KEYS:
            (folder / f"key-{hashlib.sha256(key).hexdigest()[:16]}").mkdir(exist_ok=True)


async def _refuse(send: Any, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})
