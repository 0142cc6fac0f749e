"""The process that sites reach over Flower: Flower's SuperLink, of which only what sites need can be reached.

Keys are registered in this process, and the round runs in it, so that nothing but what `flower_gate` lets through has
to be reached from outside. What sites send goes to a folder, laid out as `inbox` says, where
`serve_folder` finds it: this process checks digests and lengths and judges nothing else.

Started by `flower_server`, with its settings on the first line of its input; it ends when its input does.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from consilience.federated.contribution import Announcement, announced
from consilience.federated.flower.gate import Gate
from consilience.federated.flower.messages import PIECE, deflate, inflate, object_names, quiet_flower, records

_ANSWER = 20.0
_PIECE = 120.0  # seconds for a piece of a file: 4 MiB over a line of 300 kbit/s
_PAUSE = 0.1


class Link:
    """Flower's state, and a round in it.

    Parameters
    ----------
    app
        The SuperLink.
    spool
        The folder of the round.
    most
        Bytes that a file may have.
    """

    def __init__(self, app: Any, spool: Path, most: int) -> None:
        from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType

        self.state = app.state.linkstate_factory.state()
        self.spool, self.most = spool, most
        self.report = spool / "server" / "1" / "round.json"
        self.closing = threading.Event()
        self.pending = spool / "waiting"  # a file for each site that is to get the fused model, also after a restart
        self.pending.mkdir(exist_ok=True)
        self.there: set[int] = set()
        self.looked = 0.0
        self.run = self.state.create_run(None, None, None, {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP)
        self.task = self.state.get_run_info(run_ids=[self.run])[0].primary_task_id
        if self.state.claim_task(self.task) is None or not self.state.activate_task(self.task):
            raise RuntimeError("Flower did not start a run")

    def register(self, key: bytes) -> int:
        """Return the node of a public key, which only its holder can be."""
        from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID

        return int(self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 0))

    def ask(self, node: int, question: dict[str, Any], seconds: float = _ANSWER) -> dict[str, Any] | None:
        """Return what a site answers; None if it does not, or not what it was asked."""
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
        made = deflate(make_message(metadata, records({**question, "secret": secret})))
        session = self.state.start_session(self.run)
        stored, missing = self.state.store_message_and_object_tree(made.message, made.tree, session)
        if not stored:
            return None
        for name in missing:
            self.state.store_object(self.run, session, name, made.objects[name])
        identifier, ends = made.message.metadata.message_id, time.monotonic() + seconds
        found = None
        while found is None and time.monotonic() < ends:
            there = self.online(node)
            found = self._answer(identifier)  # a site that has left may have answered before
            if not there:
                break
            if found is None:
                time.sleep(_PAUSE / 2)
        self.state.delete_messages(message_ins_ids={identifier})
        return found if found is not None and found.get("secret") == secret else None

    def _answer(self, identifier: str) -> dict[str, Any] | None:
        for reply in self.state.get_message_res(message_ids={identifier}, run_id=self.run):
            root = reply.metadata.message_id
            try:
                tree = self.state.object_store.get_object_tree(root)
                names, ends = object_names(tree), time.monotonic() + _ANSWER
                while time.monotonic() < ends and not all(self.state.object_store.get(name) for name in names):
                    time.sleep(_PAUSE / 4)
                return inflate(root, names, self.state.object_store.get)
            except Exception as error:  # whatever a stranger's message makes Flower raise
                _say(f"an answer that cannot be read: {error}")
                return {}
            finally:
                with suppress(Exception):
                    self.state.object_store.delete(root)
        return None

    def online(self, node: int) -> bool:
        """Return whether a site is there, as of a moment ago: all sites are looked up at once."""
        if time.monotonic() - self.looked > _PAUSE / 2:
            self.there, self.looked = set(self.state.get_nodes(self.run)), time.monotonic()
        return node in self.there

    def attend(self, site: str, node: int) -> None:
        """Take what one site offers, as often as it comes, and give it the fused model if it waits for it."""
        while not self.closing.is_set():
            try:
                if self.online(node):
                    self._attend_once(site, node)
            except Exception as error:  # whatever one site's messages raise must not end its turn for good
                _say(f"{site}: {type(error).__name__}: {error}")
            time.sleep(_PAUSE)

    def _attend_once(self, site: str, node: int) -> None:
        offer = self.ask(node, {"ask": "offer", "limit": self.most})
        if offer is None:
            return
        if self.report.exists() and offer.get("digest") not in self._took_part():
            self.ask(node, {"ask": "refused", "why": "the round is over; nothing was taken"})
        else:
            taken = self._take(site, node, offer)
            if taken is None:
                return
            wants = offer.get("receive") is True
            if wants:
                (self.pending / site).touch()
            told = self.ask(node, {"ask": "taken", "attempt": taken.attempt})
            if told is not None and wants and self._give(node):
                (self.pending / site).unlink(missing_ok=True)
        while self.online(node) and not self.closing.is_set():  # it leaves when it has what it came for
            time.sleep(_PAUSE)

    def _took_part(self) -> set[str]:
        return {one["sha256"] for one in json.loads(self.report.read_bytes())["took_part"]}

    def _take(self, site: str, node: int, offer: dict[str, Any]) -> Announcement | None:
        """Return what a site has announced, once its files are in its folder; None if they did not come."""
        folder = self.spool / "sites" / site
        folder.mkdir(parents=True, exist_ok=True)
        one = _announcement(site, offer, folder)
        if one is None:
            return None
        for digest, field in zip(one.digests, ("size", "fisher_size"), strict=False):
            size = offer.get(field)
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                return None
            if not (folder / digest).exists() and not self._fetch(node, folder / digest, digest, size):
                return None
        (folder / one.name).touch()
        for path in folder.iterdir():  # files of attempts that this one replaces
            if len(path.name) == len(one.digest) and path.name not in one.digests:
                path.unlink()
        return one

    def _fetch(self, node: int, target: Path, digest: str, size: int) -> bool:
        partial = target.with_name(f".{target.name}.partial")
        with partial.open("wb") as stream:
            if size > self.most:  # a file without content of that length, which the server refuses for its length
                stream.truncate(min(size, 2**40))
            else:
                found = hashlib.sha256()
                while stream.tell() < size:
                    wanted = min(PIECE, size - stream.tell())
                    question = {"ask": "piece", "digest": digest, "offset": stream.tell(), "length": wanted}
                    answer = self.ask(node, question, _PIECE)
                    data = (answer or {}).get("data")
                    if not isinstance(data, bytes) or not 0 < len(data) <= wanted:
                        return False
                    found.update(data)
                    stream.write(data)
                if found.hexdigest() != digest:
                    return False
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(target)
        return True

    def _give(self, node: int) -> bool:
        """Wait for the end of the round and give a site its report and the fused model; return whether it has them."""
        while not self.report.exists():
            if not self.online(node):
                return False
            time.sleep(_PAUSE)
        text, fused = self.report.read_bytes(), self.report.with_name("fused.safetensors")
        good = fused.exists() and not json.loads(text).get("problems")
        size = fused.stat().st_size if good else 0
        for start in range(0, len(text), PIECE):
            question = {"ask": "report", "data": text[start : start + PIECE], "size": size}
            if self.ask(node, {**question, "last": start + PIECE >= len(text)}, _PIECE) is None:
                return False
        if good:
            with fused.open("rb") as stream:
                while data := stream.read(PIECE):
                    if self.ask(node, {"ask": "fused", "data": data}, _PIECE) is None:
                        return False
        return True

    def beat(self) -> None:
        """Keep Flower from taking this round for a dead one."""
        while True:
            self.state.acknowledge_task_heartbeat(self.task)
            time.sleep(5.0)


def _announcement(site: str, offer: dict[str, Any], folder: Path) -> Announcement | None:
    """Return what a site announces; without an attempt of its own, the next one, or that of the same files before."""
    digest, fisher, attempt = offer.get("digest"), offer.get("fisher", ""), offer.get("attempt", 0)
    before = sorted(one for path in folder.iterdir() if (one := announced(site, path.name)) is not None)
    if attempt == 0 and before:
        attempt = before[-1].attempt + ((before[-1].digest, before[-1].fisher) != (digest, fisher))
    name = "-".join([f"1-{attempt or 1}", str(digest), *([str(fisher)] if fisher else [])])
    return announced(site, name)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _public_key(path: Path) -> bytes:
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    found: Any = load_ssh_public_key(path.read_bytes())
    return public_key_to_bytes(found)


def _say_ready(server: Any, spool: Path) -> None:
    """Leave a sign once the port answers."""
    while not server.started:
        time.sleep(_PAUSE / 2)
    (spool / "ready").touch()


def _follow_input(link: Link, server: Any) -> None:
    """End when the input does: at once, or once the fused model is where it is waited for if that was asked for."""
    line = sys.stdin.readline()
    if not line:  # whoever started this was killed, and may start another at this port
        os._exit(0)
    ends = time.monotonic() + (_ANSWER if line.strip() == "finish" else 0.0)
    while any(link.pending.iterdir()) and time.monotonic() < ends:
        time.sleep(_PAUSE)
    link.closing.set()
    server.should_exit = True
    time.sleep(2.0)
    os._exit(0)


def main() -> None:
    """Serve until the input ends."""
    quiet_flower()
    import uvicorn
    from flwr.superlink.main import create_app

    told = json.loads(sys.stdin.readline())
    spool = Path(told["spool"])
    app = create_app()
    app.state.enable_supernode_auth = True
    link = Link(app, spool, told["most"])
    nodes = {site: link.register(_public_key(Path(path))) for site, path in sorted(told["keys"].items())}
    gate = Gate(app, told["quota"], spool)
    settings = {"ssl_certfile": told["certificate"], "ssl_keyfile": told["key"]} if told["certificate"] else {}
    config = uvicorn.Config(
        gate, told["host"], told["port"], log_level="warning", access_log=False, limit_concurrency=1024, **settings
    )
    server = uvicorn.Server(config)
    threads = [threading.Thread(target=link.attend, args=item, daemon=True) for item in nodes.items()]
    threads.append(threading.Thread(target=link.beat, daemon=True))
    threads.append(threading.Thread(target=_follow_input, args=(link, server), daemon=True))
    threads.append(threading.Thread(target=_say_ready, args=(server, spool), daemon=True))
    for thread in threads:
        thread.start()
    server.run()
    os._exit(0 if server.started else 3)


if __name__ == "__main__":
    main()
