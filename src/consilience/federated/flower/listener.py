"""The port of a Flower round: who holds a connection without asking anything loses it.

Connections are bounded in all and by address before anything of them is read. A handshake has its time, and so has the
next request of an open connection; what is slower is cut off. Strangers from one address can therefore hold a few
connections for a few seconds, and never those of a site at another. Strangers from many can fill the port; an address
from which a registered key has asked before has room besides them.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

MAX_CONNECTIONS = 1024
"""Connections at once. Chosen by hand."""

MAX_PER_ADDRESS = 64
"""Connections at once from one address: sites behind one router have a few each. Chosen by hand."""

HANDSHAKE_SECONDS = 10.0
"""Time for the handshake of TLS. Chosen by hand."""

REQUEST_SECONDS = 15.0
"""Time from a connection, or from an answer, to the head of the next request. Chosen by hand."""


class _Counted(socket.socket):
    """A connection that tells when it is closed."""

    closed: Callable[[], None] | None = None

    def close(self) -> None:
        """Close it, and tell so once."""
        if self.closed is not None:
            self.closed()
            self.closed = None
        super().close()


class Listener(socket.socket):
    """A listening socket that accepts so many connections, and so many from one address.

    `refused` is called with an address whose connection was refused. `known` has addresses of sites, which get
    connections also where others hold all.
    """

    refused: Callable[[str], None] | None = None
    most = MAX_CONNECTIONS
    most_per_address = MAX_PER_ADDRESS

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.held: Counter[str] = Counter()
        self.known: set[str] = set()

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection and its address; raise ConnectionAbortedError for one that is refused."""
        plain, address = super().accept()
        host = str(address[0])
        connection = _Counted(plain.family, plain.type, plain.proto, fileno=plain.detach())
        is_full = host not in self.known and self.held.total() >= self.most
        if self.held[host] >= self.most_per_address or is_full:
            connection.close()
            if self.refused is not None:
                self.refused(host)
            raise ConnectionAbortedError(f"too many connections from {host}")
        self.held[host] += 1
        connection.closed = partial(self._release, host)
        return connection, address

    def _release(self, host: str) -> None:
        self.held[host] -= 1
        if not self.held[host]:
            del self.held[host]


def listen(host: str, port: int) -> Listener:
    """Return a socket that listens at an address; raise OSError where it cannot."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = Listener(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def allow_open_files(count: int) -> int:
    """Let this process open so many files, as far as the system does; return how many of them it does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def impatient_server(config: Any) -> Any:
    """Return a server of uvicorn whose connections end where a handshake or a request takes too long."""
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    base: Any = AutoHTTPProtocol

    class Impatient(base):  # type: ignore[misc]
        """A connection that is closed where no request comes."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch(None)

        def _watch(self, before: Any) -> None:
            """Close the connection where the last request is answered, and no other has begun since `before`."""
            is_idle = self.cycle is None or self.cycle.response_complete
            if before is not None and is_idle and before == (self.cycle,):
                self.transport.abort()
            if not self.transport.is_closing():
                self.watching = self.loop.call_later(REQUEST_SECONDS, self._watch, (self.cycle,))

        def connection_lost(self, exc: Exception | None) -> None:
            self.watching.cancel()
            super().connection_lost(exc)

    class Server(uvicorn.Server):
        """A server whose handshakes have less time."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            loop = asyncio.get_running_loop()
            if self.config.is_ssl:
                limited = partial(loop.create_server, ssl_handshake_timeout=HANDSHAKE_SECONDS)
                loop.create_server = limited  # type: ignore[method-assign]
            await super().startup(sockets)

    config.http = Impatient
    return Server(config)
