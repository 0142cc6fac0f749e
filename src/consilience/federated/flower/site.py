"""A site's side of a round over Flower: one SuperNode that answers questions about its own files, and runs nothing.

Flower's own SuperNode installs and runs the app that the server sends. This one speaks the same Fleet interface, with
the same key and the same TLS, but knows three answers: what it offers, a piece of it, and that it has received a piece
of the fused model.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from consilience.checks import is_count
from consilience.core.provenance import file_digest
from consilience.errors import InputError, OptionError
from consilience.federated.contribution import Announcement
from consilience.federated.flower.messages import PIECE, deflate, inflate, object_names, quiet_flower, records
from consilience.federated.folder.site import MIN_COUNT, Sent, checked_to_send
from consilience.federated.folder.storage import MOST_REPORT
from consilience.federated.report import RoundReport
from consilience.files.atomic import refuse_unwritable, write_atomically
from consilience.files.limits import Limits

_TIMEOUT = 3600.0
_BEAT = 10.0
_QUICK, _SLOW = 0.1, 1.0
_FINAL = (412, 413)  # how a server answers to a key that it does not know, and to too much; the rest may pass


def send_flower(
    file: str | Path,
    address: str,
    *,
    key: str | Path,
    root_certificates: str | Path | None = None,
    fisher: str | Path | None = None,
    attempt: int | None = None,
    min_count: float = MIN_COUNT,
    receive: str | Path | None = None,
    timeout: float = _TIMEOUT,
    insecure: bool = False,
) -> Sent:
    """Check a file and send it to a server that `consilience serve --flower` runs.

    Parameters
    ----------
    file, fisher, attempt, min_count, receive
        As for `send_folder`.
    address
        Host and port of the server.
    key
        Private key of this site, whose public one the server has under its name (``ssh-keygen -t ecdsa -b 384``).
    root_certificates
        The certificate, PEM, by which the server is known.
    timeout
        Seconds in which all must be done: the server be there, the file be taken, the fused model come back.
    insecure
        Neither encrypt nor know the server; for trying out on one machine.

    Raises
    ------
    InputError
        When the file is not one that can be fused, the server refuses the key, or time is over.
    UnsupportedError
        When Flower is not installed.
    """
    if attempt is not None and not (is_count(attempt) and attempt <= 999_999):
        raise OptionError(f"attempt: expected a whole number from 1 to 999999, found {attempt!r}")
    if insecure == (root_certificates is not None):
        raise OptionError("root_certificates: give the certificate by which the server is known, or insecure, not both")
    if receive is not None:
        refuse_unwritable(Path(receive))
    files = [Path(one) for one in (file, fisher) if one is not None]
    warnings = checked_to_send(files, Limits(), min_count)
    quiet_flower()
    offer = {"digest": file_digest(files[0]), "size": files[0].stat().st_size, "receive": receive is not None}
    offer["attempt"] = attempt or 0
    if len(files) > 1:
        offer |= {"fisher": file_digest(files[1]), "fisher_size": files[1].stat().st_size}
    own = dict(zip((str(offer["digest"]), str(offer.get("fisher", ""))), files, strict=False))
    ends = time.monotonic() + timeout
    with tempfile.TemporaryFile() as back, _node(address, Path(key), root_certificates, insecure, ends) as node:
        site = _Site(offer, own, back)
        while not site.done:
            if time.monotonic() > ends:
                raise InputError(
                    f"{address}: {'the round did not end' if site.attempt else 'was not asked'} in {timeout:g} s"
                )
            node.answer_one(site.answer)
        if site.refusal is not None:
            raise InputError(f"{address}: {site.refusal}")
        announcement = Announcement("", 1, site.attempt, str(offer["digest"]), str(offer.get("fisher", "")))
        if receive is None:
            return Sent(announcement, warnings=warnings)
        return Sent(announcement, warnings=warnings, report=_received(address, site, Path(receive)))


def _received(address: str, site: _Site, target: Path) -> RoundReport:
    """Write the fused model that came, checked against the digest in the report that came with it."""
    report = RoundReport.from_bytes(bytes(site.report))
    if report.problems or report.fused is None:
        raise InputError([f"{address}: the round failed", *report.lines()])
    with write_atomically(target) as partial, partial.open("wb") as stream:
        site.back.seek(0)
        while data := site.back.read(PIECE):
            stream.write(data)
        stream.flush()
        if file_digest(partial) != report.fused.get("sha256"):
            raise InputError(f"{address}: the fused model is not what the round's report says")
    return report


@dataclass
class _Site:
    """What a site answers; it keeps what came back."""

    offer: dict[str, Any]
    own: dict[str, Path]
    back: BinaryIO | Any
    attempt: int = 0
    report: bytearray = field(default_factory=bytearray)
    expected: int = 0
    done: bool = False
    refusal: str | None = None

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a question of the server; to one that is none, nothing."""
        asked = question.get("ask")
        if asked == "offer":
            limit = question.get("limit")
            size = max(self.offer["size"], self.offer.get("fisher_size", 0))
            if isinstance(limit, int) and size > limit:
                self.refusal = f"takes files of at most {limit} bytes, and this one has {size}"
                self.done = True
            return self.offer
        if asked == "piece" and question.get("digest") in self.own:
            with self.own[question["digest"]].open("rb") as stream:
                stream.seek(max(0, int(question.get("offset", 0))))
                return {"data": stream.read(min(PIECE, max(0, int(question.get("length", 0)))))}
        if asked == "refused":
            self.refusal, self.done = str(question.get("why"))[:200], True
            return {"ok": True}
        if asked == "taken":
            self.report.clear()  # of a server that was killed while it gave the fused model
            self.back.seek(0)
            self.back.truncate()
            self.attempt = int(question.get("attempt", 0))
            self.done = not self.offer["receive"]
            return {"ok": True}
        return self._receive(asked, question)

    def _receive(self, asked: Any, question: dict[str, Any]) -> dict[str, Any]:
        data = question.get("data", b"")
        if asked == "report":
            self.report += data
            self.expected = int(question.get("size", 0))
            if len(self.report) > MOST_REPORT:
                self.refusal, self.done = "sent a report that is too long", True
            elif question.get("last") and not self.expected:
                self.done = True
        elif asked == "fused":
            self.back.write(data)
            self.done = self.back.tell() >= self.expected
        return {"ok": True}


class _Node:
    """One SuperNode: pulls a message, and pushes an answer."""

    def __init__(self, client: Any, key: bytes, ends: float) -> None:
        self.client, self.key, self.ends = client, key, ends
        self.pause, self.beaten = _QUICK, time.monotonic()
        self.activate()

    def activate(self) -> None:
        """Say that this site is there, and learn which node it is."""
        from flwr.proto.node_pb2 import Node

        found = self.call("ActivateNode", public_key=self.key, heartbeat_interval=3 * _BEAT)
        self.node = Node(node_id=found.node_id)

    def call(self, method: str, **fields: Any) -> Any:
        """Call a method of the Fleet interface, tried again while the network fails."""
        return _patiently(lambda: getattr(self.client, method)(_request(method, **fields)), self.ends)

    def answer_one(self, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Answer a question if there is one, or wait a little.

        A server that was killed and goes on knows this site under another number.
        """
        import httpx

        try:
            self._answer_one(answer)
        except httpx.HTTPStatusError as error:
            if error.response.status_code in _FINAL:
                raise
            time.sleep(_SLOW)
            self.activate()

    def _answer_one(self, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        from flwr.app import Message
        from flwr.common.serde import message_from_proto, message_to_proto

        if time.monotonic() - self.beaten > _BEAT:
            self.call("SendNodeHeartbeat", node=self.node, heartbeat_interval=3 * _BEAT)
            self.beaten = time.monotonic()
        pulled = self.call("PullMessages", node=self.node)
        if not pulled.messages_list:
            time.sleep(self.pause)
            self.pause = min(1.5 * self.pause, _SLOW)
            return
        self.pause = _QUICK
        message, tree = message_from_proto(pulled.messages_list[0]), pulled.message_object_trees[0]
        run, identifier = message.metadata.run_id, message.metadata.message_id
        try:
            question = inflate(identifier, object_names(tree), lambda name: self._pull(run, name))
        except ValueError:  # it will be asked again
            return
        self.call("ConfirmMessageReceived", node=self.node, run_id=run, message_object_id=identifier)
        answered = {**answer(question), "secret": str(question.get("secret", ""))}
        made = deflate(Message(records(answered), reply_to=message))
        pushed = self.call(
            "PushMessages",
            node=self.node,
            messages_list=[message_to_proto(made.message)],
            message_object_trees=[made.tree],
            clientapp_runtime_list=[0.0],
        )
        for name in pushed.objects_to_push:
            self.call(
                "PushObject",
                node=self.node,
                run_id=run,
                object_id=name,
                object_content=made.objects[name],
                session_id=pushed.session_id,
            )

    def _pull(self, run: int, name: str) -> bytes | None:
        for _ in range(50):
            found = self.call("PullObject", node=self.node, run_id=run, object_id=name)
            if not found.object_found:
                return None
            if found.object_available:
                return bytes(found.object_content)
            time.sleep(_QUICK)
        return None


def _request(method: str, **fields: Any) -> Any:
    from flwr.proto import fleet_pb2, heartbeat_pb2, message_pb2

    for module in (fleet_pb2, heartbeat_pb2, message_pb2):
        if hasattr(module, f"{method}Request"):
            return getattr(module, f"{method}Request")(**fields)
    raise AttributeError(method)


def _patiently(act: Callable[[], Any], ends: float) -> Any:
    """Return what a call gives, tried again with growing pauses until `ends` while the server cannot be reached."""
    import httpx

    pause = _QUICK
    while True:
        try:
            return act()
        except (httpx.TransportError, httpx.HTTPStatusError) as error:
            status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else 503
            certificate = "CERTIFICATE_VERIFY_FAILED" in str(error)
            if certificate or status not in (429, 502, 503, 504) or time.monotonic() + pause > ends:
                raise
        time.sleep(pause)
        pause = min(2.0 * pause, 2.0)


@contextmanager
def _node(address: str, key: Path, root: str | Path | None, insecure: bool, ends: float) -> Iterator[_Node]:
    """Yield this site's node, known by its key; it leaves at the end."""
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
            node = _Node(client, public_key_to_bytes(private.public_key()), ends)
            try:
                yield node
            finally:
                with suppress(httpx.HTTPError):
                    client.DeactivateNode(_request("DeactivateNode", node_id=node.node.node_id))
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        raise InputError(
            f"{address}: refused this site (status {status}): is the public key of {key} registered?"
        ) from error
    except httpx.HTTPError as error:
        raise InputError(f"{address}: cannot be reached: {error}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def _private_key(path: Path) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

    text = _read(path)
    for load in (load_ssh_private_key, load_pem_private_key):
        with suppress(ValueError, TypeError):
            found = load(text, None)
            if isinstance(found, EllipticCurvePrivateKey):
                return found
    raise InputError(
        f"{path}: is no private key without password on a NIST curve; make one with ssh-keygen -t ecdsa -b 384"
    )
