"""What can be reached of Flower's SuperLink from outside: what a site needs, and so much of it.

Flower 1.41 serves three interfaces on one port: Fleet for sites, Control for whoever starts apps and registers keys,
and Runtime for apps. Control asks nobody who they are unless a login service is set up, so whoever reaches the port
could register a key, or start an app on the server. Here only the requests of Fleet that a site makes are answered.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

from consilience.federated.flower.messages import MOST_BODY

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
"""Paths that answer; of these each asks for the signature of a key."""

_MOST_STRANGERS = 20


class Gate:
    """Lets through what sites need, so much of it, and notes keys that are not registered.

    Parameters
    ----------
    app
        Flower's SuperLink as an ASGI application.
    quota
        Bytes that one key may send in all.
    spool
        Where unknown keys are noted, as folders beside those of sites.
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
        elif not length.isdigit() or int(length) > MOST_BODY or self.sent[key] > self.quota:
            await _refuse(send, 413)
        else:
            await self._pass_on(scope, receive, send, key)

    async def _pass_on(self, scope: Any, receive: Any, send: Any, key: bytes) -> None:
        read = 0

        async def counted() -> Any:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            return message if read <= MOST_BODY else {"type": "http.disconnect"}

        async def noted(message: Any) -> None:
            if message["type"] == "http.response.start":
                if message["status"] < 300:
                    self.sent[key] += read
                elif message["status"] != 401 and scope["path"].endswith("/activate-node"):
                    self._note(key)
            await send(message)

        await self.app(scope, counted, noted)

    def _note(self, key: bytes) -> None:
        folder = self.spool / "sites"
        if sum(one.name.startswith("key-") for one in folder.iterdir()) < _MOST_STRANGERS:
            (folder / f"key-{hashlib.sha256(key).hexdigest()[:16]}").mkdir(exist_ok=True)


async def _refuse(send: Any, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})
