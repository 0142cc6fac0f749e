"""What strangers and registered sites can make the server do over Flower: nothing but what a round asks of them."""

import asyncio
import hashlib
import json
import threading
from types import SimpleNamespace

import pytest

from consilience.errors import InputError
from consilience.federated.flower.gate import OPEN, FleetGate
from consilience.federated.flower.link import FlowerLink
from consilience.federated.flower.messages import (
    MAX_BODY_BYTES,
    PIECE_BYTES,
    deflate,
    inflate,
    object_names,
    quiet_flower,
    records,
)
from consilience.federated.flower.place import FlowerStorage
from consilience.federated.folder.storage import RefusedError

KEY = (b"flwr-public-key", b"a key")
PUSH = "/v1/fleet/push-object"
ZEROS, ONES = "0" * 64, "1" * 64


def gate(tmp_path, status=200, quota=10**9):
    """Return a gate before an application that reads all and answers, and what that has read."""
    read = []

    async def app(_scope, receive, send):
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                read.append(None)
                return
            body += message["body"]
            more = message.get("more_body", False)
        read.append(len(body))
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    (tmp_path / "sites").mkdir(exist_ok=True)
    return FleetGate(app, quota, tmp_path), read


def asked(one, path=PUSH, blocks=(b"x",), method="POST", headers=(KEY,)):
    """Return the status of the answer to a request; None for a connection that ends without one."""
    sent = []
    messages = iter(
        [{"type": "http.request", "body": block, "more_body": n < len(blocks) - 1} for n, block in enumerate(blocks)]
    )

    async def receive():
        return next(messages)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": path, "method": method, "headers": list(headers), "client": ("10.0.0.1", 1)}
    asyncio.run(one(scope, receive, send))
    return sent[0]["status"] if sent else None


def test_only_what_a_site_asks_is_answered(tmp_path):
    one, read = gate(tmp_path)
    for path in ("/", "/docs", "/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/push-messages"):
        assert asked(one, path) == 404
    for path in (
        "/v1/fleet/register-node",
        "/v1/fleet/unregister-node",
        "/v1/fleet/get-fab",
        PUSH + "/",
        "/V1/fleet/x",
    ):
        assert asked(one, path) == 404
    assert asked(one, PUSH, method="GET") == 404
    assert read == []
    assert {asked(one, path) for path in OPEN} == {200}


def test_long_requests_are_refused_whether_they_say_so_or_not(tmp_path):
    one, read = gate(tmp_path)
    assert asked(one, headers=[KEY, (b"content-length", str(MAX_BODY_BYTES + 1).encode())]) == 413
    assert asked(one, headers=[KEY, (b"content-length", b"-5")]) == 413
    assert asked(one, headers=[KEY, (b"content-length", b"many")]) == 413
    assert read == []
    assert asked(one, blocks=[bytes(PIECE_BYTES), bytes(PIECE_BYTES)]) is None
    assert read == [None]
    assert asked(one, blocks=[bytes(PIECE_BYTES), b"x"]) == 200


def test_a_key_has_a_quota_that_other_keys_cannot_use_up(tmp_path):
    one, _ = gate(tmp_path, quota=1000)
    assert asked(one, blocks=[bytes(1001)]) == 200
    assert asked(one) == 413
    assert asked(one, headers=[(b"flwr-public-key", b"another")]) == 200
    unsigned, _ = gate(tmp_path, status=401, quota=1000)
    assert [asked(unsigned, blocks=[bytes(1001)]) for _ in range(3)] == [401, 401, 401]
    assert unsigned.sent.total() == 0


def test_a_quota_is_of_every_round_that_has_begun(tmp_path):
    one, _ = gate(tmp_path, quota=1000)
    for number in (1, 2, 3):
        assert asked(one, blocks=[bytes(1001)]) == 200
        assert asked(one) == 413
        (tmp_path / "server" / str(number)).mkdir(parents=True)
        (tmp_path / "server" / str(number) / "round.json").touch()
    assert asked(one) == 200


def test_unknown_keys_are_noted_by_digest_and_not_without_end(tmp_path):
    one, _ = gate(tmp_path, status=412)
    for number in range(50):
        asked(one, "/v1/fleet/activate-node", headers=[(b"flwr-public-key", b"%d" % number)])
    names = [path.name for path in (tmp_path / "sites").iterdir()]
    assert len(names) == 20
    assert f"key-{hashlib.sha256(b'0').hexdigest()[:16]}" in names
    (tmp_path / "other").mkdir()
    unsigned, _ = gate(tmp_path / "other", status=401)
    asked(unsigned, "/v1/fleet/activate-node")
    assert list((tmp_path / "other" / "sites").iterdir()) == []


def answering(answers, most=1000):
    """Return a link whose site answers as told."""
    link = FlowerLink.__new__(FlowerLink)
    link.max_file_bytes = most
    given = iter(answers)
    link.ask = lambda _node, _question, _seconds=0: next(given, None)
    return link


@pytest.mark.parametrize(
    "answers",
    [
        [None],
        [{}],
        [{"data": b""}],
        [{"data": "text"}],
        [{"data": bytes(11)}],
        [{"data": b"12345"}, None],
        [{"data": b"1234567890"}],
    ],
)
def test_pieces_that_are_not_what_was_asked_leave_no_file(answers, tmp_path):
    target = tmp_path / hashlib.sha256(b"abcdefghij").hexdigest()
    assert not answering(answers)._fetch(1, "sites/a/x", target, 10)
    assert not target.exists()


def test_pieces_are_put_together_and_a_file_that_is_too_long_is_not_even_asked_for(tmp_path):
    whole = b"abcdefghij"
    link = answering([{"data": whole[:4]}, {"data": whole[4:]}])
    target = tmp_path / hashlib.sha256(whole).hexdigest()
    assert link._fetch(1, "sites/a/x", target, 10)
    assert target.read_bytes() == whole
    assert answering([])._fetch(1, "sites/a/x", tmp_path / ZEROS, 10**12)
    assert (tmp_path / ZEROS).stat().st_size == 10**12
    assert (tmp_path / ZEROS).stat().st_blocks < 100


def test_messages_of_strangers_are_bounded_before_they_are_put_together(monkeypatch, tmp_path):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    quiet_flower()
    from flwr.app import MessageType, Metadata
    from flwr.app.message import make_message

    metadata = Metadata(1, "", 1, 2, "", "1", 1.8e9, 60.0, MessageType.QUERY)
    made = deflate(make_message(metadata, records({"ask": "offer", "data": b"123"})))
    root = made.message.metadata.message_id
    names = object_names(made.tree)
    assert inflate(root, names, made.objects.get) == {"ask": "offer", "data": b"123"}
    with pytest.raises(ValueError, match="too long"):
        inflate(root, names, lambda _name: bytes(MAX_BODY_BYTES))
    with pytest.raises(ValueError, match="never came"):
        inflate(root, names, lambda _name: None)
    with pytest.raises(ValueError, match="more parts"):
        object_names(_many())


def _many():
    leaf = SimpleNamespace(object_id="x", children=[])
    return SimpleNamespace(object_id="root", children=[leaf] * 100)


def server_of(tmp_path, answers=(), reports=(), most=1000, rounds=1):
    """Return a link to a place whose rounds have ended so far, its questions to a site, which answers as told."""
    link, asked, given = FlowerLink.__new__(FlowerLink), [], iter(answers)
    link.max_file_bytes, link.spool, link.closing = most, tmp_path, threading.Event()
    link.rounds, link.waiting = rounds, tmp_path / "waiting"
    link.waiting.mkdir(exist_ok=True)
    link.online = lambda _node: not (asked and asked[-1].get("ask") == "gone")

    def ask(_node, question, _seconds=0):
        asked.append(question)
        return next(given, None) if question["ask"] == "piece" else {}

    link.ask = ask
    for number, report in enumerate(reports, 1):
        (tmp_path / "server" / str(number)).mkdir(parents=True)
        (tmp_path / "server" / str(number) / "round.json").write_text(json.dumps({"took_part": [], **report}))
    return link, asked


CONTENT = b"a model"
NAMED = hashlib.sha256(CONTENT).hexdigest()


def test_a_site_hands_over_a_content_and_announces_it(tmp_path):
    link, asked = server_of(tmp_path, [{"data": CONTENT}])
    link._take("a", 1, f"sites/a/{NAMED}", len(CONTENT))
    assert (tmp_path / "sites" / "a" / NAMED).read_bytes() == CONTENT
    assert asked[-1] == {"ask": "taken", "name": f"sites/a/{NAMED}"}
    link._take("a", 1, f"sites/a/1-1-{NAMED}", 0)
    assert (tmp_path / "sites" / "a" / f"1-1-{NAMED}").exists()
    assert asked[-1]["ask"] == "taken"
    link._take("a", 1, f"sites/a/{NAMED}", len(CONTENT))  # the same again is asked for no more
    assert [question["ask"] for question in asked] == ["piece", "taken", "taken", "taken"]


@pytest.mark.parametrize(
    "name",
    ["sites/b/x", "../x", "sites/a/../b/" + ZEROS, "server/plan.json", "sites/a/notes.txt", f"sites/b/1-1-{ZEROS}"],
)
def test_what_is_no_content_of_its_own_is_refused(name, tmp_path):
    link, asked = server_of(tmp_path)
    link._take("a", 1, name, 3)
    assert asked == [{"ask": "refused", "why": "a site sends contents by their digest, and announcements"}]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_what_was_not_sent_cannot_be_announced_nor_anything_after_the_end(tmp_path):
    link, asked = server_of(tmp_path)
    link._take("a", 1, f"sites/a/1-1-{ZEROS}", 0)
    assert asked[-1]["why"] == "announces what it did not send"
    link, asked = server_of(tmp_path, [{"data": CONTENT}], [{}])
    link._take("a", 1, f"sites/a/{NAMED}", len(CONTENT))
    link._take("a", 1, f"sites/a/1-1-{NAMED}", 0)
    assert asked[-1]["why"] == "the round is over; nothing was taken"
    link._take("a", 1, f"sites/a/2-1-{NAMED}", 0)  # an answer to a request, which counts as late
    assert asked[-1]["ask"] == "taken"


def test_in_a_later_round_a_site_sends_anew_and_what_it_sent_before_goes(tmp_path):
    again, other = hashlib.sha256(b"again").hexdigest(), hashlib.sha256(b"other").hexdigest()
    for rounds, kept in ((2, {again}), (1, {again, other})):  # of one round, the second is a request
        place = tmp_path / str(rounds)
        place.mkdir()
        link, asked = server_of(place, [{"data": b"other"}, {"data": b"again"}], rounds=rounds)
        link._take("a", 1, f"sites/a/{other}", 5)
        link._take("a", 1, f"sites/a/1-1-{other}", 0)
        (place / "server" / "1").mkdir(parents=True)
        (place / "server" / "1" / "round.json").touch()
        link._take("a", 1, f"sites/a/{again}", 5)
        link._take("a", 1, f"sites/a/1-2-{again}", 0)
        assert asked[-1]["why"] == "the round is over; nothing was taken"
        link._take("a", 1, f"sites/a/2-1-{again}", 0)
        assert asked[-1]["ask"] == "taken"
        assert {path.name for path in (place / "sites" / "a").iterdir() if len(path.name) == 64} == kept
        (place / "server" / "2").mkdir()
        (place / "server" / "2" / "round.json").touch()
        link._take("a", 1, f"sites/a/2-2-{again}", 0)
        assert asked[-1]["ask"] == ("taken" if rounds == 1 else "refused")


def test_a_site_keeps_few_contents_on_the_servers_disk(tmp_path):
    contents = [bytes([value]) * 5 for value in range(9)]
    link, _ = server_of(tmp_path, [{"data": content} for content in contents])
    for content in contents:
        link._take("a", 1, f"sites/a/{hashlib.sha256(content).hexdigest()}", 5)
    assert len(list((tmp_path / "sites" / "a").iterdir())) == 2
    last = hashlib.sha256(contents[-1]).hexdigest()
    link._take("a", 1, f"sites/a/1-1-{last}", 0)
    again, other = contents[0], hashlib.sha256(contents[0]).hexdigest()
    link.ask = lambda _node, question, _seconds=0: {"data": again} if question["ask"] == "piece" else {}
    link._take("a", 1, f"sites/a/{other}", 5)
    link._take("a", 1, f"sites/a/1-2-{other}", 0)  # another attempt replaces the content of the one before
    assert not (tmp_path / "sites" / "a" / last).exists()


def test_a_site_reads_what_is_published_and_its_own_names_alone(tmp_path):
    link, asked = server_of(tmp_path, (), [{"took_part": [{"site": "b"}]}])
    (tmp_path / "server" / "plan.json").write_text("{}")
    (tmp_path / "server" / "1" / "fused.safetensors").write_bytes(b"fused")
    (tmp_path / "sites" / "a").mkdir(parents=True)
    (tmp_path / "sites" / "a" / ZEROS).touch()
    (tmp_path / "sites" / "b").mkdir()
    (tmp_path / "flower.log").write_text("x")
    for name, expected in (
        ("server/plan.json", b"{}"),
        ("sites/a", ZEROS.encode()),
        ("sites/b", None),
        ("flower.log", None),
        ("server/../flower.log", None),
        ("server/2/request.safetensors", None),
    ):
        link._send_published("a", 1, name)
        assert asked[-1]["data"] == (expected or b"")
        assert (asked[-1]["size"] == -1) == (expected is None)
    link._send_published("a", 1, "server/1/fused.safetensors")
    assert asked[-1] == {"ask": "refused", "why": "the round is over, and this site took no part in it"}
    link._send_published("b", 1, "server/1/fused.safetensors")
    assert asked[-1]["data"] == b"fused"


class Node:
    """A connection over which the server asks as told."""

    def __init__(self, questions):
        self.questions, self.answers = iter(questions), []

    def answer_one(self, answer):
        self.answers.append(answer(next(self.questions)))


def storage_of(questions):
    node = Node(questions)
    return FlowerStorage(node, "server", 60.0), node


def test_a_site_reads_in_pieces_whatever_else_it_is_asked(tmp_path):
    wish = {"ask": "wish", "site": "a"}
    piece = {"ask": "published", "name": "server/plan.json", "size": 6}
    storage, node = storage_of(
        [
            {"ask": "run this"},
            wish,
            {**piece, "name": "server/other", "offset": 0, "data": b"other!"},
            {**piece, "offset": 0, "data": b"abc"},
            {**piece, "offset": 9, "data": b"abc"},
            {**piece, "offset": 3, "data": b"def"},
        ]
    )
    assert storage.read("server/plan.json", 10) == b"abcdef"
    assert storage.site == "a"
    assert node.answers[:2] == [{"ok": True}, {"read": "server/plan.json"}]


@pytest.mark.parametrize("size", [11, -2, 10**12, "many", None])
def test_a_site_reads_nothing_that_is_too_long(size):
    name = "server/1/round.json"
    storage, _ = storage_of([{"ask": "published", "name": name, "size": size, "offset": 0, "data": b"x"}])
    with pytest.raises(RefusedError, match="longer than the 10 bytes"):
        storage.read(name, 10)


def test_what_is_not_there_and_what_is_refused(tmp_path):
    storage, _ = storage_of([{"ask": "published", "name": "x", "size": -1, "offset": 0, "data": b""}])
    with pytest.raises(FileNotFoundError):
        storage.read("x", 10)
    storage, _ = storage_of([{"ask": "refused", "why": "y" * 999}])
    with pytest.raises(InputError, match=r"y{200}\b"):
        storage.put("sites/a/x", b"x")


def test_a_site_gives_pieces_of_what_it_hands_over_and_of_nothing_else(tmp_path):
    (tmp_path / "file").write_bytes(b"0123456789")
    piece = {"ask": "piece", "name": "sites/a/x", "offset": 4, "length": 3}
    storage, node = storage_of(
        [
            {**piece, "name": "/etc/passwd"},
            piece,
            {**piece, "offset": -5, "length": 10**12},
            {"ask": "taken", "name": "sites/a/other"},
            {"ask": "taken", "name": "sites/a/x"},
        ]
    )
    storage.put("sites/a/x", tmp_path / "file")
    assert node.answers[:3] == [{"ok": True}, {"data": b"456"}, {"data": b"0123456789"}]


@pytest.mark.parametrize("names", [["../a"], [None], ["a", "b"]])
def test_a_server_cannot_choose_another_name_for_a_site_nor_one_that_leads_elsewhere(names):
    storage, _ = storage_of([{"ask": "wish", "site": name} for name in names])
    with pytest.raises(InputError, match="which is no name or another than before"):
        storage.read("server/plan.json", 10)
