"""Site of a round over Flower: a SuperNode that answers questions about its own files, and runs no code of others.

Flower's own SuperNode installs and runs the app that the server sends. This one speaks the same Fleet interface, with
the same key and the same TLS, but answers questions alone (`place`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from consilience.catalogue import unreadable
from consilience.checks import Json
from consilience.errors import InputError
from consilience.federated.flower.messages import deflate, inflate, object_names, records
from consilience.files.opening import read_file

_BEAT_SECONDS = 10.0
"""Time between heartbeats, a third of the interval that is announced to Flower. Chosen by hand."""

_MIN_PAUSE, _MAX_PAUSE = 0.1, 1.0
"""Seconds between looks for a question: the longer, the longer none came. Chosen by hand."""

_PAUSE_GROWTH = 1.5
"""Chosen by hand."""

_MAX_RETRY_PAUSE = 2.0
"""Seconds between attempts at most while the server cannot be reached. Chosen by hand."""

_MAX_PULLS = 50
"""Looks for an object of a message that the server still gets. Chosen by hand: five seconds."""

_FINAL_STATUSES = (412, 413)
"""The server's answers to an unknown key, and to too many bytes; other failures may pass."""

_PASSING_STATUSES = (429, 502, 503, 504)
"""Statuses of a server that is busy or restarting."""


class SuperNode:
    """A SuperNode of Flower without apps: pulls a message, and pushes an answer."""

    def __init__(self, client: Any, key: bytes, deadline: float) -> None:
        self.client, self.key, self.deadline = client, key, deadline
        self.pause, self.last_beat = _MIN_PAUSE, time.monotonic()
        self.activate()

    def activate(self) -> None:
        """Register as online, and get this site's node number."""
        from flwr.proto.node_pb2 import Node

        response = self.call("ActivateNode", public_key=self.key, heartbeat_interval=3 * _BEAT_SECONDS)
        self.node = Node(node_id=response.node_id)

    def call(self, method: str, **fields: Any) -> Any:
        """Call a method of the Fleet interface, tried again while the network fails."""
        return _retry(lambda: getattr(self.client, method)(_request(method, **fields)), self.deadline)

    def answer_one(self, answer: Callable[[dict[str, Json]], dict[str, Json]]) -> None:
        """Answer a question if there is one, or wait a little.

        A server that was killed and resumed has another node number for this site, so the site activates anew.
        """
        import httpx

        try:
            self._answer_one(answer)
        except httpx.HTTPStatusError as error:
            if error.response.status_code in _FINAL_STATUSES:
                raise
            time.sleep(_MAX_PAUSE)
            self.activate()

    def _answer_one(self, answer: Callable[[dict[str, Json]], dict[str, Json]]) -> None:
        from flwr.app import Message
        from flwr.common.serde import message_from_proto, message_to_proto

        if time.monotonic() - self.last_beat > _BEAT_SECONDS:
            self.call("SendNodeHeartbeat", node=self.node, heartbeat_interval=3 * _BEAT_SECONDS)
            self.last_beat = time.monotonic()
        pulled = self.call("PullMessages", node=self.node)
        if not pulled.messages_list:
            time.sleep(self.pause)
            self.pause = min(_PAUSE_GROWTH * self.pause, _MAX_PAUSE)
            return
        self.pause = _MIN_PAUSE
        message, tree = message_from_proto(pulled.messages_list[0]), pulled.message_object_trees[0]
        run, identifier = message.metadata.run_id, message.metadata.message_id
        try:
            question = inflate(identifier, object_names(tree), lambda name: self._pull(run, name))
        except ValueError:  # the server will ask again
            return
        self.call("ConfirmMessageReceived", node=self.node, run_id=run, message_object_id=identifier)
        reply = {**answer(question), "secret": str(question.get("secret", ""))}
        deflated = deflate(Message(records(reply), reply_to=message))
        pushed = self.call(
            "PushMessages",
            node=self.node,
            messages_list=[message_to_proto(deflated.message)],
            message_object_trees=[deflated.tree],
            clientapp_runtime_list=[0.0],
        )
        for name in pushed.objects_to_push:
            self.call(
                "PushObject",
                node=self.node,
                run_id=run,
                object_id=name,
                object_content=deflated.objects[name],
                session_id=pushed.session_id,
            )

    def _pull(self, run: int, name: str) -> bytes | None:
        """Return an object of a message; None if there is none, or it does not come in time."""
        for _ in range(_MAX_PULLS):
            response = self.call("PullObject", node=self.node, run_id=run, object_id=name)
            if not response.object_found:
                return None
            if response.object_available:
                return bytes(response.object_content)
            time.sleep(_MIN_PAUSE)
        return None


def _request(method: str, **fields: Any) -> Any:
    """Return the request message of a method of the Fleet interface."""
    from flwr.proto import fleet_pb2, heartbeat_pb2, message_pb2

    for module in (fleet_pb2, heartbeat_pb2, message_pb2):
        if hasattr(module, f"{method}Request"):
            return getattr(module, f"{method}Request")(**fields)
    raise AttributeError(method)


def _retry(action: Callable[[], Any], deadline: float) -> Any:
    """Return what a call gives, tried again with growing pauses until a time while the server cannot be reached."""
    import httpx

    pause = _MIN_PAUSE
    while True:
        try:
            return action()
        except (httpx.TransportError, httpx.HTTPStatusError) as error:
            status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else 503
            is_untrusted = "CERTIFICATE_VERIFY_FAILED" in str(error)  # no later attempt would be trusted
            if is_untrusted or status not in _PASSING_STATUSES or time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
        pause = min(2.0 * pause, _MAX_RETRY_PAUSE)


@contextmanager
def connect(address: str, key: Path, root: str | Path | None, insecure: bool, deadline: float) -> Iterator[SuperNode]:
    """Yield this site's node, authenticated by its key; it goes offline at the end."""
    import httpx
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    private = _private_key(key)
    signing = NodeAuthHttpInterceptor(private, private.public_key())
    certificates = None if root is None else _read(Path(root))
    interceptors: list[Any] = [RuntimeVersionHttpInterceptor(component_name="SuperNode"), signing]
    try:
        with FleetHttpClient.from_server_address(address, insecure, certificates, interceptors) as client:
            node = SuperNode(client, public_key_to_bytes(private.public_key()), deadline)
            try:
                yield node
            finally:
                with suppress(httpx.HTTPError):
                    client.DeactivateNode(_request("DeactivateNode", node_id=node.node.node_id))
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        text = f"refused this site (status {status}): is the public key of {key} registered?"
        raise InputError(address, text, code="E-ROUND") from error
    except httpx.HTTPError as error:
        raise InputError(address, f"cannot be reached: {error}", code="E-ROUND") from error


def _read(path: Path) -> bytes:
    try:
        return read_file(path)
    except OSError as error:
        raise InputError(unreadable(path, error)) from error


def _private_key(path: Path) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

    data = _read(path)
    for load in (load_ssh_private_key, load_pem_private_key):
        with suppress(ValueError, TypeError, UnsupportedAlgorithm):
            key = load(data, None)
            if isinstance(key, EllipticCurvePrivateKey):
                return key
    text = "is no private key without password on a NIST curve"
    raise InputError(path, text, "make one with ssh-keygen -t ecdsa -b 384", "E-ROUND")
