"""Server process of the Flower transport: Flower's SuperLink behind a gate, which puts contributions into a folder.

Keys are registered in this process, and Flower's run lives in it, so that nothing but what `flower.gate` passes on has
to be reached from outside. Files of sites go into a folder with the layout of `folder.inbox`, where `serve_folder`
finds them: this process checks digests and lengths and judges nothing else.

`flower.server` starts it, with its settings as JSON on the first line of its input; it ends when its input does.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from consilience.checks import Json
from consilience.federated.contribution import Announcement, parse_announcement
from consilience.federated.flower.gate import FleetGate
from consilience.federated.flower.listener import MAX_CONNECTIONS, allow_open_files, impatient_server, listen
from consilience.federated.flower.messages import PIECE_BYTES, deflate, inflate, object_names, quiet_flower, records
from consilience.federated.folder.request_server import FIRST_REQUEST, request_name

_ANSWER_SECONDS = 20.0
"""Time for the answer to a question without a file. Chosen by hand."""

_PIECE_SECONDS = 120.0
"""Time for a piece of a file: 4 MiB over a line of 300 kbit/s."""

_PAUSE = 0.1
"""Seconds between two looks at Flower's state. Chosen by hand."""

_BEAT_SECONDS = 5.0
"""Time between heartbeats of the run. Chosen by hand."""

_LEAVE_SECONDS = 3.0
"""Time in which a site leaves that has what it came for. One that comes again between two looks is never seen to be
gone, and would not be asked. Chosen by hand."""

_EXIT_SECONDS = 2.0
"""Time for open requests when the process ends. Chosen by hand."""

_MAX_HOLE = 2**40
"""Longest file without content that stands for one that is too long; being sparse, it takes no room."""

_PUBLISHED = re.compile(
    r"server/(?:plan\.json|[1-9][0-9]{0,5}/"
    r"(?:masked\.json|expected\.safetensors|fused\.safetensors|round\.json|agreed-[134]|agreed-2/(?P<recipient>[^/]+)))"
)
"""Names under which a server of masked sums publishes."""


class FlowerLink:
    """The server's end of the transport: asks sites through Flower's state, and stores their files.

    `app` is Flower's SuperLink, `spool` the folder of the round; a file may have `max_file_bytes`.
    """

    def __init__(self, app: Any, spool: Path, max_file_bytes: int) -> None:
        from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType

        self.state = app.state.linkstate_factory.state()
        self.spool, self.max_file_bytes = spool, max_file_bytes
        self.report = spool / "server" / "1" / "round.json"
        self.closing = threading.Event()
        self.waiting = spool / "waiting"  # a file for each site that is to get the fused model, also after a restart
        self.waiting.mkdir(exist_ok=True)
        self.nodes_online: set[int] = set()
        self.nodes_updated = 0.0  # time.monotonic()
        self.run = self.state.create_run(None, None, None, {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP)
        self.task = self.state.get_run_info(run_ids=[self.run])[0].primary_task_id
        if self.state.claim_task(self.task) is None or not self.state.activate_task(self.task):
            raise RuntimeError("Flower did not start a run")

    def register(self, key: bytes) -> int:
        """Register a public key; return the node that only its holder can be."""
        from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID

        return int(self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 0))

    def ask(self, node: int, question: dict[str, Any], seconds: float = _ANSWER_SECONDS) -> dict[str, Any] | None:
        """Return a site's answer to a question; None if there is none in time, or one without the question's secret."""
        from flwr.app import MessageType, Metadata
        from flwr.app.message import make_message
        from flwr.common.constant import SUPERLINK_NODE_ID

        secret = secrets.token_hex(16)
        metadata = Metadata(
            run_id=self.run,
            message_id="",
            src_node_id=SUPERLINK_NODE_ID,
            dst_node_id=node,
            reply_to_message_id="",
            group_id="1",
            created_at=time.time(),
            ttl=seconds + 5.0,
            message_type=MessageType.QUERY,
        )
        deflated = deflate(make_message(metadata, records({**question, "secret": secret})))
        session = self.state.start_session(self.run)
        stored, missing = self.state.store_message_and_object_tree(deflated.message, deflated.tree, session)
        if not stored:
            return None
        for name in missing:
            self.state.store_object(self.run, session, name, deflated.objects[name])
        identifier, deadline = deflated.message.metadata.message_id, time.monotonic() + seconds
        answer = None
        while answer is None and time.monotonic() < deadline:
            is_online = self.online(node)  # before the answer is looked for: a site may answer and leave
            answer = self._answer(identifier)
            if not is_online:
                break
            if answer is None:
                time.sleep(_PAUSE / 2)
        self.state.delete_messages(message_ins_ids={identifier})
        return answer if answer is not None and answer.get("secret") == secret else None

    def _answer(self, identifier: str) -> dict[str, Json] | None:
        """Return the values of the reply to a message; empty if it cannot be read, None if there is none yet."""
        for reply in self.state.get_message_res(message_ids={identifier}, run_id=self.run):
            root = reply.metadata.message_id
            try:
                tree = self.state.object_store.get_object_tree(root)
                names, deadline = object_names(tree), time.monotonic() + _ANSWER_SECONDS
                while time.monotonic() < deadline and not all(self.state.object_store.get(name) for name in names):
                    time.sleep(_PAUSE / 4)
                return inflate(root, names, self.state.object_store.get)
            except Exception as error:  # whatever a stranger's message makes Flower raise
                _log(f"an answer that cannot be read: {error}")
                return {}
            finally:
                with suppress(Exception):
                    self.state.object_store.delete(root)
        return None

    def online(self, node: int) -> bool:
        """Return whether a site is online, as of a moment ago: all sites are looked up at once."""
        if time.monotonic() - self.nodes_updated > _PAUSE / 2:
            self.nodes_online, self.nodes_updated = set(self.state.get_nodes(self.run)), time.monotonic()
        return node in self.nodes_online

    def attend(self, site: str, node: int) -> None:
        """Serve one site, as often as it comes: fetch the files that it offers, give it the fused model if it waits."""
        while not self.closing.is_set():
            try:
                if self.online(node):
                    self._attend_once(site, node)
            except Exception as error:  # whatever one site's messages raise must not end its thread
                _log(f"{site}: {type(error).__name__}: {error}")
            time.sleep(_PAUSE)

    def _attend_once(self, site: str, node: int) -> None:
        offer = self.ask(node, {"ask": "offer", "limit": self.max_file_bytes})
        if offer is None:
            return
        if offer.get("answers") is True:
            self._attend_answers(site, node, offer)
            return
        if offer.get("masked") is True:
            self._attend_masked(site, node)
            return
        if self._is_masked():
            why = "this round is masked; nothing was taken. Send with `consilience round send --signing-key KEY`"
            self.ask(node, {"ask": "refused", "why": why})
            self._wait_until_gone(node)
            return
        # After the end of the round, only sites that took part may come back, for the fused model.
        if self.report.exists() and offer.get("digest") not in self._took_part():
            self.ask(node, {"ask": "refused", "why": "the round is over; nothing was taken"})
        else:
            announcement = self._accept(site, node, offer)
            if announcement is None:
                return
            wants_fused = offer.get("receive") is True
            if wants_fused:
                (self.waiting / site).touch()
            receipt = self.ask(node, {"ask": "taken", "attempt": announcement.attempt})
            if receipt is not None and wants_fused and self._send_fused(node):
                (self.waiting / site).unlink(missing_ok=True)
        self._wait_until_gone(node)

    def _wait_until_gone(self, node: int) -> None:
        """Wait until a site that has what it came for leaves; one that is still online after that has come again."""
        ends = time.monotonic() + _LEAVE_SECONDS
        while self.online(node) and not self.closing.is_set() and time.monotonic() < ends:
            time.sleep(_PAUSE)

    def _attend_answers(self, site: str, node: int, offer: dict[str, Json]) -> None:
        """Send a site the open request and fetch its answer, until it leaves or all requests are over."""
        if offer.get("follow") is True:
            (self.waiting / site).touch()
        taken = 0
        while self.online(node) and not self.closing.is_set():
            number, is_over = self._open_request()
            if is_over:
                # Anew: the site may have left and come again for something else between two looks.
                offer = self.ask(node, {"ask": "offer", "limit": self.max_file_bytes}) or offer
                if self.ask(node, {"ask": "over", "number": number}) is not None:
                    if offer.get("receive") is not True or self._send_fused(node, self._last_good(number)):
                        (self.waiting / site).unlink(missing_ok=True)
                    self._wait_until_gone(node)
                return
            file = self.spool / request_name(number)
            if number == taken or not file.exists():
                time.sleep(_PAUSE)
                continue
            if not self._send_pieces(node, {"ask": "request", "number": number}, file.read_bytes()):
                return
            announcement = self._fetch_answer(site, node, number)
            if announcement is None:
                continue
            self.ask(node, {"ask": "taken", "attempt": announcement.attempt, "number": number})
            taken = number

    def _is_masked(self) -> bool:
        """Return whether the round takes masked numbers only."""
        path = self.spool / "server" / "plan.json"
        return path.exists() and json.loads(path.read_bytes()).get("masked") is True

    def _attend_masked(self, site: str, node: int) -> None:
        """Grant the wishes of a site in a masked round, until it leaves: files of the server's, and messages taken."""
        (self.waiting / site).touch()
        while self.online(node) and not self.closing.is_set():
            wish = self.ask(node, {"ask": "wish"})
            if wish is None:  # it computes
                continue
            if wish.get("done") is True:
                (self.waiting / site).unlink(missing_ok=True)
                self._wait_until_gone(node)
                return
            name, number = wish.get("read"), wish.get("number")
            if isinstance(name, str):
                self._send_published(site, node, name)
            elif isinstance(number, int):
                announcement = self._accept(site, node, wish, number)
                if announcement is not None:
                    self.ask(node, {"ask": "taken", "attempt": announcement.attempt, "number": number})
            else:
                time.sleep(_PAUSE)

    def _send_published(self, site: str, node: int, name: str) -> None:
        """Send a file of the server's piece by piece, or that there is none; only what this site may read."""
        path = self.spool / name
        if not may_read(site, name) or not path.is_file():
            self.ask(node, {"ask": "published", "name": name, "size": -1, "offset": 0, "data": b""})
            return
        self._send_pieces(node, {"ask": "published", "name": name}, path.read_bytes())

    def _report_of(self, number: int) -> dict[str, Any] | None:
        """Return the report of a round; None while it is open."""
        path = self.spool / "server" / str(number) / "round.json"
        return json.loads(path.read_bytes()) if path.exists() else None

    def _open_request(self) -> tuple[int, bool]:
        """Return the number of the round whose request is open or comes next, or the last one and that all are over."""
        number = 1
        while (report := self._report_of(number)) is not None:
            if report.get("problems") or not (report.get("continues") or report.get("then")):
                return number, True
            number += 1
        return max(number, FIRST_REQUEST), False

    def _last_good(self, number: int) -> int:
        """Return the last round that has a model."""
        report = self._report_of(number)
        return number - 1 if report is not None and report.get("problems") and number > 1 else number

    def _send_pieces(self, node: int, question: dict[str, Any], data: bytes) -> bool:
        """Send data piece by piece, each with a question; return whether the site has them."""
        for start in range(0, max(len(data), 1), PIECE_BYTES):
            piece = {"size": len(data), "offset": start, "data": data[start : start + PIECE_BYTES]}
            if self.ask(node, {**question, **piece}, _PIECE_SECONDS) is None:
                return False
        return True

    def _fetch_answer(self, site: str, node: int, number: int) -> Announcement | None:
        """Wait for a site's answer to a request and fetch it, also when the round is over meanwhile: it counts as late.

        None where the site is gone, or has none to a request that is over.
        """
        while self.online(node) and not self.closing.is_set():
            # A site that computes answers nothing: the question is asked again.
            offer = self.ask(node, {"ask": "answer", "number": number})
            if offer is not None and "digest" in offer:
                return self._accept(site, node, offer, number)
            if offer is not None and self._open_request() != (number, False):
                return None
            time.sleep(_PAUSE)
        return None

    def _took_part(self) -> set[str]:
        """Return the digests of the contributions that were fused."""
        return {record["sha256"] for record in json.loads(self.report.read_bytes())["took_part"]}

    def _accept(self, site: str, node: int, offer: dict[str, Json], number: int = 1) -> Announcement | None:
        """Return the announcement of an offer, once its files are in the site's folder; None if they did not come."""
        folder = self.spool / "sites" / site
        folder.mkdir(parents=True, exist_ok=True)
        announcement = _offered_announcement(site, offer, folder, number)
        if announcement is None:
            return None
        for digest, field in zip(announcement.digests, ("size", "fisher_size"), strict=False):
            size = offer.get(field)
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                return None
            if not (folder / digest).exists() and not self._fetch(node, folder / digest, digest, size):
                return None
        (folder / announcement.name).touch()
        for digest in _replaced_digests(announcement, folder):
            (folder / digest).unlink(missing_ok=True)
        return announcement

    def _fetch(self, node: int, target: Path, digest: str, size: int) -> bool:
        """Fetch a file piece by piece; return whether it came whole and has its digest."""
        partial = target.with_name(f".{target.name}.partial")
        with partial.open("wb") as stream:
            if size > self.max_file_bytes:  # a file of that length without content, which is refused for its length
                stream.truncate(min(size, _MAX_HOLE))
            else:
                hashed = hashlib.sha256()
                while stream.tell() < size:
                    length = min(PIECE_BYTES, size - stream.tell())
                    question = {"ask": "piece", "digest": digest, "offset": stream.tell(), "length": length}
                    answer = self.ask(node, question, _PIECE_SECONDS)
                    data = (answer or {}).get("data")
                    if not isinstance(data, bytes) or not 0 < len(data) <= length:
                        return False
                    hashed.update(data)
                    stream.write(data)
                if hashed.hexdigest() != digest:
                    return False
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(target)
        return True

    def _send_fused(self, node: int, number: int = 1) -> bool:
        """Wait for the end of a round and give a site its report and the fused model; return whether it has them."""
        report = self.spool / "server" / str(number) / "round.json"
        while not report.exists():
            if not self.online(node):
                return False
            time.sleep(_PAUSE)
        text, fused = report.read_bytes(), report.with_name("fused.safetensors")
        is_fused = fused.exists() and not json.loads(text).get("problems")
        size = fused.stat().st_size if is_fused else 0
        for start in range(0, len(text), PIECE_BYTES):
            question = {"ask": "report", "data": text[start : start + PIECE_BYTES], "size": size}
            if self.ask(node, {**question, "last": start + PIECE_BYTES >= len(text)}, _PIECE_SECONDS) is None:
                return False
        if is_fused:
            with fused.open("rb") as stream:
                while data := stream.read(PIECE_BYTES):
                    if self.ask(node, {"ask": "fused", "data": data}, _PIECE_SECONDS) is None:
                        return False
        return True

    def beat(self) -> None:
        """Send heartbeats, without which Flower would end the run."""
        while True:
            self.state.acknowledge_task_heartbeat(self.task)
            time.sleep(_BEAT_SECONDS)


def may_read(site: str, name: str) -> bool:
    """Return whether a site of a masked round may read a file of the server's: none of another site's shares.

    Examples
    --------
    >>> may_read("a", "server/1/agreed-2/a"), may_read("a", "server/1/agreed-2/b"), may_read("a", "sites/b/x")
    (True, False, False)
    """
    match = _PUBLISHED.fullmatch(name)
    return match is not None and match["recipient"] in (None, site)


def _announcements(site: str, folder: Path, number: int) -> list[Announcement]:
    """Return the announcements of a round in a site's folder, sorted."""
    parsed = (parse_announcement(site, path.name) for path in folder.iterdir())
    return sorted(one for one in parsed if one is not None and one.number == number)


def _replaced_digests(announcement: Announcement, folder: Path) -> set[str]:
    """Return the digests of files of attempts that this one replaces: those of its own round alone."""
    earlier = _announcements(announcement.site, folder, announcement.number)
    return {digest for one in earlier for digest in one.digests} - set(announcement.digests)


def _offered_announcement(site: str, offer: dict[str, Json], folder: Path, number: int = 1) -> Announcement | None:
    """Return the announcement of an offer; without an attempt in it, the next, or the last one of the same files."""
    digest, fisher, attempt = offer.get("digest"), offer.get("fisher", ""), offer.get("attempt", 0)
    earlier = _announcements(site, folder, number)
    if attempt == 0 and earlier:
        attempt = earlier[-1].attempt + ((earlier[-1].digest, earlier[-1].fisher) != (digest, fisher))
    name = "-".join([f"{number}-{attempt or 1}", str(digest), *([str(fisher)] if fisher else [])])
    return parse_announcement(site, name)  # which is None for anything but numbers and digests


def _log(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _public_key(path: Path) -> bytes:
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    key: Any = load_ssh_public_key(path.read_bytes())
    return public_key_to_bytes(key)


def _mark_ready(server: Any, spool: Path) -> None:
    """Write the file `ready` once the port answers."""
    while not server.started:
        time.sleep(_PAUSE / 2)
    (spool / "ready").touch()


def _follow_input(link: FlowerLink, server: Any) -> None:
    """End the process when its input does: at once, or after "finish", once all waiting sites have the fused model."""
    line = sys.stdin.readline()
    if not line:  # the parent was killed, and may be started again at this port
        os._exit(0)
    deadline = time.monotonic() + (_ANSWER_SECONDS if line.strip() == "finish" else 0.0)
    while any(link.waiting.iterdir()) and time.monotonic() < deadline:
        time.sleep(_PAUSE)
    link.closing.set()
    server.should_exit = True
    time.sleep(_EXIT_SECONDS)
    os._exit(0)


def main() -> None:
    """Serve until the input ends."""
    quiet_flower()
    import uvicorn
    from flwr.superlink.main import create_app

    settings = json.loads(sys.stdin.readline())
    spool = Path(settings["spool"])
    app = create_app()
    app.state.enable_supernode_auth = True
    link = FlowerLink(app, spool, settings["max_file_bytes"])
    nodes = {site: link.register(_public_key(Path(path))) for site, path in sorted(settings["keys"].items())}
    gate = FleetGate(app, settings["quota"], spool)
    has_tls = settings["certificate"] is not None
    tls = {"ssl_certfile": settings["certificate"], "ssl_keyfile": settings["key"]} if has_tls else {}
    config = uvicorn.Config(gate, loop="asyncio", ws="none", log_level="warning", access_log=False, **tls)
    server = impatient_server(config)
    allow_open_files(2 * MAX_CONNECTIONS)
    listener = listen(settings["host"], settings["port"])
    listener.refused = gate.note_address
    threads = [threading.Thread(target=link.attend, args=item, daemon=True) for item in nodes.items()]
    threads.append(threading.Thread(target=link.beat, daemon=True))
    threads.append(threading.Thread(target=_follow_input, args=(link, server), daemon=True))
    threads.append(threading.Thread(target=_mark_ready, args=(server, spool), daemon=True))
    for thread in threads:
        thread.start()
    server.run(sockets=[listener])
    os._exit(0 if server.started else 3)


if __name__ == "__main__":
    main()
