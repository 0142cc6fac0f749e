"""Server process of the Flower transport: Flower's SuperLink behind a gate, which puts contributions into a folder.

Keys are registered in this process, and Flower's run lives in it, so that nothing but what `flower.gate` passes on has
to be reached from outside. Files of sites go into a folder with the layout of `folder.inbox`, where `serve_folder`
finds them: this process checks digests and lengths and judges nothing else.

`flower.server` starts it, with its settings as JSON on the first line of its input; it ends when its input does.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import secrets
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from consilience.checks import Json
from consilience.federated.contribution import Announcement, parse_announcement
from consilience.federated.flower.gate import FleetGate
from consilience.federated.flower.listener import MAX_CONNECTIONS, allow_open_files, impatient_server, listen
from consilience.federated.flower.messages import PIECE_BYTES, deflate, inflate, object_names, quiet_flower, records
from consilience.files.opening import open_file, read_file

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

LINGER_SECONDS = 120.0
"""Time at the end for sites that are online and have not got the fused model, since the port may be busy. Chosen by
hand."""

_EXIT_SECONDS = 2.0
"""Time for open requests when the process ends. Chosen by hand."""

_MAX_HOLE = 2**40
"""Longest file without content that stands for one that is too long; being sparse, it takes no room."""

_PUBLISHED = re.compile(
    r"server/(?:plan\.json|[1-9][0-9]{0,5}/"
    r"(?:masked\.json|expected\.safetensors|request\.safetensors|fused\.safetensors|round\.json|agreed-[134]|agreed-2/(?P<recipient>[^/]+)))"
)
"""Names under which a server publishes."""

_DIGEST = re.compile(r"[0-9a-f]{64}")

_MAX_UNANNOUNCED = 2
"""Contents that a site may send before it announces them: a model, and what travels with it."""


class FlowerLink:
    """The server's end of the transport: asks sites through Flower's state, and stores their files.

    `app` is Flower's SuperLink, `spool` the folder of so many rounds of models; a file may have `max_file_bytes`.
    """

    def __init__(self, app: Any, spool: Path, rounds: int, max_file_bytes: int) -> None:
        from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType

        self.state = app.state.linkstate_factory.state()
        self.spool, self.rounds, self.max_file_bytes = spool, rounds, max_file_bytes
        self.closing = threading.Event()
        self.waiting = spool / "waiting"  # a file for each site that is to get the fused model, also after a restart
        self.waiting.mkdir(exist_ok=True)
        _let_sites_come_again(self.state)
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
        """Grant the wishes of a site until it leaves: to read the server's files, and to hand over its own."""
        (self.waiting / site).touch()
        while self.online(node) and not self.closing.is_set():
            wish = self.ask(node, {"ask": "wish", "site": site})
            if wish is None:  # it computes
                continue
            if wish.get("done") is True:
                (self.waiting / site).unlink(missing_ok=True)
                self._wait_until_gone(node)
                return
            name, put = wish.get("read"), wish.get("put")
            if isinstance(name, str):
                self._send_published(site, node, name)
            elif isinstance(put, str):
                self._take(site, node, put, wish.get("size"))
            else:
                time.sleep(_PAUSE)

    def _wait_until_gone(self, node: int) -> None:
        """Wait until a site that has what it came for leaves; one that is still online after that has come again."""
        ends = time.monotonic() + _LEAVE_SECONDS
        while self.online(node) and not self.closing.is_set() and time.monotonic() < ends:
            time.sleep(_PAUSE)

    def _send_published(self, site: str, node: int, name: str) -> None:
        """Send a file of the server's piece by piece, or that there is none; only what this site may read."""
        question = {"ask": "published", "name": name}
        if name == f"sites/{site}":
            self._send_pieces(node, question, "\n".join(sorted(self._own_names(site))).encode())
            return
        path = self.spool / name
        if not may_read(site, name) or not path.is_file():
            self.ask(node, {**question, "size": -1, "offset": 0, "data": b""})
        elif path.name == "fused.safetensors" and not self._took_part(site):
            self.ask(node, {"ask": "refused", "why": "the round is over, and this site took no part in it"})
        else:
            with open_file(path) as stream:
                self._send_stream(node, question, stream, path.stat().st_size)

    def _own_names(self, site: str) -> list[str]:
        """Return the names in a site's folder."""
        folder = self.spool / "sites" / site
        return [path.name for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []

    def _send_pieces(self, node: int, question: dict[str, Any], data: bytes) -> bool:
        """Send data piece by piece; return whether the site has them."""
        return self._send_stream(node, question, io.BytesIO(data), len(data))

    def _send_stream(self, node: int, question: dict[str, Any], stream: BinaryIO, size: int) -> bool:
        """Send a stream piece by piece, each with a question; return whether the site has them."""
        for start in range(0, max(size, 1), PIECE_BYTES):
            piece = {"size": size, "offset": start, "data": stream.read(PIECE_BYTES)}
            if self.ask(node, {**question, **piece}, _PIECE_SECONDS) is None:
                return False
        return True

    def _took_part(self, site: str) -> bool:
        """Return whether a site is in the model of any round of this place."""
        reports = [json.loads(read_file(path)) for path in sorted((self.spool / "server").glob("*/round.json"))]
        return any(record["site"] == site for report in reports for record in report["took_part"])

    def _take(self, site: str, node: int, name: str, size: Any) -> None:
        """Take a file of a site's into its folder: a content by its digest, or an announcement of such."""
        folder, leaf = self.spool / "sites" / site, name.removeprefix(f"sites/{site}/")
        folder.mkdir(parents=True, exist_ok=True)
        announcement = parse_announcement(site, leaf)
        if announcement is not None:
            refusal = self._announce(announcement, folder)
        elif _DIGEST.fullmatch(leaf) is None or not isinstance(size, int) or size < 0:
            refusal = "a site sends contents by their digest, and announcements"
        else:
            if not (folder / leaf).exists() and not self._fetch(node, name, folder / leaf, size):
                return  # the site is asked again
            _remove_unannounced(site, folder, leaf)
            refusal = None
        question = {"ask": "taken", "name": name} if refusal is None else {"ask": "refused", "why": refusal}
        self.ask(node, question)

    def _announce(self, announcement: Announcement, folder: Path) -> str | None:
        """Announce what a site sent; return why not where it is too late, or its contents never came."""
        if (folder / announcement.name).exists():
            return None
        number = announcement.number
        if number <= self.rounds and (self.spool / "server" / str(number) / "round.json").exists():
            return "the round is over; nothing was taken"
        if not all((folder / digest).exists() for digest in announcement.digests):
            return "announces what it did not send"
        (folder / announcement.name).touch()
        for digest in _replaced_digests(announcement, folder, self.rounds):
            (folder / digest).unlink(missing_ok=True)
        return None

    def _fetch(self, node: int, name: str, target: Path, size: int) -> bool:
        """Fetch a file; return whether it came whole and has the digest that it is called by."""
        partial = target.with_name(f".{target.name}.partial")
        try:
            with partial.open("wb") as stream:
                if size > self.max_file_bytes:  # a file of that length without content, which is refused for its length
                    stream.truncate(min(size, _MAX_HOLE))
                elif self._fetch_pieces(node, name, stream, size) != target.name:
                    return False
                stream.flush()
                os.fsync(stream.fileno())
            partial.replace(target)
            return True
        finally:
            partial.unlink(missing_ok=True)

    def _fetch_pieces(self, node: int, name: str, stream: BinaryIO, size: int) -> str | None:
        """Fetch a file piece by piece; return the digest of what came, None where it is not whole."""
        hashed = hashlib.sha256()
        while stream.tell() < size:
            length = min(PIECE_BYTES, size - stream.tell())
            question = {"ask": "piece", "name": name, "offset": stream.tell(), "length": length}
            answer = self.ask(node, question, _PIECE_SECONDS)
            data = (answer or {}).get("data")
            if not isinstance(data, bytes) or not 0 < len(data) <= length:
                return None
            hashed.update(data)
            stream.write(data)
        return hashed.hexdigest()

    def beat(self) -> None:
        """Send heartbeats, without which Flower would end the run."""
        while True:
            self.state.acknowledge_task_heartbeat(self.task)
            time.sleep(_BEAT_SECONDS)


def _let_sites_come_again(state: Any) -> None:
    """Let the holder of a key take its place again: a site that was killed is online for Flower for a minute more.

    Flower has seen the signature before it activates a node.
    """
    activate = state.activate_node

    def activate_anew(node_id: int, heartbeat_interval: float) -> bool:
        state.deactivate_node(node_id)
        return bool(activate(node_id, heartbeat_interval))

    state.activate_node = activate_anew


def may_read(site: str, name: str) -> bool:
    """Return whether a site may read a file of the server's: none of another site's shares.

    Examples
    --------
    >>> may_read("a", "server/1/agreed-2/a"), may_read("a", "server/1/agreed-2/b"), may_read("a", "sites/b/x")
    (True, False, False)
    """
    match = _PUBLISHED.fullmatch(name)
    return match is not None and match["recipient"] in (None, site)


def _announcements(site: str, folder: Path) -> list[Announcement]:
    """Return the announcements in a site's folder."""
    parsed = (parse_announcement(site, path.name) for path in folder.iterdir())
    return [one for one in parsed if one is not None]


def _replaced_digests(announcement: Announcement, folder: Path, rounds: int) -> set[str]:
    """Return the digests of files of which nothing is needed any more once this announcement is there.

    They are of other attempts in its own round, and of rounds of models before, which are over. Answers to earlier
    requests stay: they may count later.
    """
    number = announcement.number
    earlier = [
        one
        for one in _announcements(announcement.site, folder)
        if one.number == number or one.number < number <= rounds
    ]
    return {digest for one in earlier for digest in one.digests} - set(announcement.digests)


def _remove_unannounced(site: str, folder: Path, newest: str) -> None:
    """Remove contents that no announcement names, but for the last ones: a site keeps no more on the server's disk."""
    announced = {digest for one in _announcements(site, folder) for digest in one.digests} | {newest}
    names = (path.name for path in folder.iterdir())
    others = [name for name in names if _DIGEST.fullmatch(name) and name not in announced]
    others.sort(key=lambda name: (folder / name).stat().st_mtime_ns)
    for name in others[: len(others) + 1 - _MAX_UNANNOUNCED]:
        (folder / name).unlink(missing_ok=True)


def _log(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _public_key(path: Path) -> bytes:
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    key: Any = load_ssh_public_key(read_file(path))
    return public_key_to_bytes(key)


def _mark_ready(server: Any, spool: Path) -> None:
    """Write the file `ready` once the port answers."""
    while not server.started:
        time.sleep(_PAUSE / 2)
    (spool / "ready").touch()


def _follow_input(link: FlowerLink, server: Any, nodes: dict[str, int]) -> None:
    """End the process at once when its input does, and after "finish", once all waiting sites have the fused model."""
    while sys.stdin.readline():  # it is "finish"; no other comes
        threading.Thread(target=_finish, args=(link, server, nodes), daemon=True).start()
    os._exit(0)  # the parent was killed, and may be started again at this port


def _finish(link: FlowerLink, server: Any, nodes: dict[str, int]) -> None:
    """End the process once all waiting sites have the fused model, or do not come for it."""
    begun = time.monotonic()
    while waiting := [nodes.get(path.name) for path in link.waiting.iterdir()]:
        is_there = any(node is not None and link.online(node) for node in waiting)
        if time.monotonic() - begun > (LINGER_SECONDS if is_there else _ANSWER_SECONDS):
            break
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
    link = FlowerLink(app, spool, settings["rounds"], settings["max_file_bytes"])
    nodes = {site: link.register(_public_key(Path(path))) for site, path in sorted(settings["keys"].items())}
    gate = FleetGate(app, settings["quota"], spool)
    has_tls = settings["certificate"] is not None
    tls = {"ssl_certfile": settings["certificate"], "ssl_keyfile": settings["key"]} if has_tls else {}
    config = uvicorn.Config(gate, loop="asyncio", ws="none", log_level="warning", access_log=False, **tls)
    server = impatient_server(config)
    listener = listen(settings["host"], settings["port"])
    # Half of the files are for connections, where the system allows fewer too: the others are what is read and written.
    listener.most = allow_open_files(2 * MAX_CONNECTIONS) // 2
    listener.refused, listener.known = gate.note_address, gate.known
    threads = [threading.Thread(target=link.attend, args=item, daemon=True) for item in nodes.items()]
    threads.append(threading.Thread(target=link.beat, daemon=True))
    threads.append(threading.Thread(target=_follow_input, args=(link, server, nodes), daemon=True))
    threads.append(threading.Thread(target=_mark_ready, args=(server, spool), daemon=True))
    for thread in threads:
        thread.start()
    server.run(sockets=[listener])
    os._exit(0 if server.started else 3)


if __name__ == "__main__":
    main()
