"""Site of a round over Flower: a SuperNode that answers questions about its own files, and runs no code of others.

Flower's own SuperNode installs and runs the app that the server sends. This one speaks the same Fleet interface, with
the same key and the same TLS, but has three answers: what it offers, a piece of it, and a receipt for a piece of the
fused model.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from consilience.catalogue import unreadable
from consilience.checks import Json
from consilience.core.min_count import MIN_COUNT
from consilience.core.provenance import file_digest
from consilience.errors import InputError, OptionError, Problem
from consilience.federated.contribution import Announcement
from consilience.federated.flower.messages import PIECE_BYTES, deflate, inflate, object_names, quiet_flower, records
from consilience.federated.folder.site import TIMEOUT, Sent, refuse_attempt, sendable_files
from consilience.federated.folder.storage import MAX_REPORT_BYTES
from consilience.federated.report import RoundReport
from consilience.files.atomic import refuse_unwritable, write_atomically
from consilience.files.limits import Limits

_BEAT_SECONDS = 10.0
"""Time between heartbeats, a third of the interval that Flower is told to expect. Chosen by hand."""

_MIN_PAUSE, _MAX_PAUSE = 0.1, 1.0
"""Seconds between looks for a question: the longer, the longer none came. Chosen by hand."""

_PAUSE_GROWTH = 1.5
"""Chosen by hand."""

_MAX_RETRY_PAUSE = 2.0
"""Seconds between attempts at most while the server cannot be reached. Chosen by hand."""

_MAX_PULLS = 50
"""Looks for an object of a message that the server still gets. Chosen by hand: five seconds."""

_MAX_REASON = 200
"""Characters of a server's refusal that are shown. Chosen by hand."""

_FINAL_STATUSES = (412, 413)
"""The server's answers to an unknown key, and to too many bytes; other failures may pass."""

_PASSING_STATUSES = (429, 502, 503, 504)
"""Statuses of a server that is busy or restarting."""


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
    timeout: float = TIMEOUT,
    insecure: bool = False,
    allow_differencing: bool = False,
) -> Sent:
    """Check a file and send it to a server that `consilience round flower` runs.

    Parameters
    ----------
    file, fisher, attempt, min_count, receive, allow_differencing
        As for `send_folder`.
    address : str
        Host and port of the server.
    key : path
        Private key of this site, whose public key the server has under its name (``ssh-keygen -t ecdsa -b 384``).
    root_certificates : path, optional
        The certificate, PEM, that authenticates the server. Required unless `insecure`.
    timeout : float
        Seconds in which the server must be reached, the file be taken, and the fused model come back. Default: 3600.
    insecure : bool
        Neither encrypt nor authenticate the server; for trials on one machine. Default: False.

    Raises
    ------
    InputError
        When the file is not one that can be fused, the server refuses the key, or time is over.
    UnsupportedError
        When Flower is not installed.
    """
    refuse_attempt(attempt)
    refuse_unknown_server(root_certificates, insecure)
    if receive is not None:
        refuse_unwritable(Path(receive))
    quiet_flower()
    deadline = time.monotonic() + timeout
    with (
        sendable_files(file, fisher, Limits(), min_count, allow_differencing) as (files, warnings),
        tempfile.TemporaryFile() as fused,
        connect(address, Path(key), root_certificates, insecure, deadline) as node,
    ):
        offer = {"digest": files[0].digest, "size": files[0].path.stat().st_size, "receive": receive is not None}
        offer["attempt"] = attempt or 0
        if len(files) > 1:
            offer |= {"fisher": files[1].digest, "fisher_size": files[1].path.stat().st_size}
        site = _SiteAnswers(offer, {part.digest: part.path for part in files}, ReceivedModel(fused))
        while not site.model.is_done:
            if time.monotonic() > deadline:
                text = f"{'the round did not end' if site.attempt else 'was not asked'} in {timeout:g} s"
                raise InputError(address, text, code="E-ROUND")
            node.answer_one(site.answer)
        if site.model.refusal is not None:
            raise InputError(address, site.model.refusal, code="E-ROUND")
        announcement = Announcement("", 1, site.attempt, str(offer["digest"]), str(offer.get("fisher", "")))
        if receive is None:
            return Sent(announcement, warnings=warnings)
        return Sent(announcement, warnings=warnings, report=write_fused(address, site.model, Path(receive)))


def refuse_unknown_server(root_certificates: str | Path | None, insecure: bool) -> None:
    """Raise unless a server is known by its certificate, or need not be."""
    if insecure == (root_certificates is not None):
        text = "give the certificate by which the server is known, or insecure, not both"
        raise OptionError("root_certificates", text)


def write_fused(address: str, model: ReceivedModel, target: Path) -> RoundReport:
    """Write the received fused model, checked against the digest in the report; return the report."""
    report = RoundReport.from_bytes(bytes(model.report))
    if report.problems or report.fused is None:
        raise InputError([Problem(address, "the round failed"), *report.lines()])
    with write_atomically(target) as partial, partial.open("wb") as stream:
        model.stream.seek(0)
        while data := model.stream.read(PIECE_BYTES):
            stream.write(data)
        stream.flush()
        if file_digest(partial) != report.fused.get("sha256"):
            raise InputError(address, "the fused model is not what the round's report says", code="E-ROUND")
    return report


@dataclass
class ReceivedModel:
    """The report and the fused model as they come from the server, piece by piece."""

    stream: BinaryIO | Any  # where the fused model goes
    report: bytearray = field(default_factory=bytearray)  # the report of the round
    fused_bytes: int = 0  # length of the fused model, as the server states it
    is_done: bool = False  # whether all has come, or the site was refused
    refusal: str | None = None  # why it was refused

    def refuse(self, reason: str) -> None:
        """Note that the site was refused."""
        self.refusal, self.is_done = reason[:_MAX_REASON], True

    def begin(self) -> None:
        """Forget what came: a server that was killed while it sent the fused model begins anew."""
        self.report.clear()
        self.stream.seek(0)
        self.stream.truncate()

    def take(self, kind: Any, question: dict[str, Any]) -> None:
        """Take a piece of the report or of the model, or a refusal."""
        data = question.get("data", b"")
        if kind == "refused":
            self.refuse(str(question.get("why")))
        elif kind == "report":
            self.report += data
            self.fused_bytes = int(question.get("size", 0))
            if len(self.report) > MAX_REPORT_BYTES:
                self.refuse("sent a report that is too long")
            elif question.get("last") and not self.fused_bytes:  # of a round that failed there is no model
                self.is_done = True
        elif kind == "fused":
            self.stream.write(data)
            self.is_done = self.stream.tell() >= self.fused_bytes


@dataclass
class _SiteAnswers:
    """A site's answers to the server's questions, and what the server has sent."""

    # Digests and lengths of the site's files, the attempt, and whether it waits for the fused model.
    offer: dict[str, Any]
    files_by_digest: dict[str, Path]  # its files
    model: ReceivedModel  # where the report and the fused model go
    attempt: int = 0  # the attempt that the server has taken; 0 before

    def answer(self, question: dict[str, Any]) -> dict[str, Json]:
        """Return the answer to a question of the server; an empty receipt for one that is not known."""
        kind = question.get("ask")
        if kind == "offer":
            limit = question.get("limit")
            size = max(self.offer["size"], self.offer.get("fisher_size", 0))
            if isinstance(limit, int) and size > limit:
                self.model.refuse(f"takes files of at most {limit} bytes, and this one has {size}")
            return self.offer
        if kind == "piece" and question.get("digest") in self.files_by_digest:
            with self.files_by_digest[question["digest"]].open("rb") as stream:
                stream.seek(max(0, int(question.get("offset", 0))))
                return {"data": stream.read(min(PIECE_BYTES, max(0, int(question.get("length", 0)))))}
        if kind == "taken":
            self.model.begin()
            self.attempt = int(question.get("attempt", 0))
            self.model.is_done = not self.offer["receive"]
        else:
            self.model.take(kind, question)
        return {"ok": True}


class _SuperNode:
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
def connect(address: str, key: Path, root: str | Path | None, insecure: bool, deadline: float) -> Iterator[_SuperNode]:
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
            node = _SuperNode(client, public_key_to_bytes(private.public_key()), deadline)
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
        return path.read_bytes()
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
