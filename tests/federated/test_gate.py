"""What strangers and registered sites can make the server do over Flower: nothing but what a round asks of them."""

import asyncio
import hashlib
import io
import json
import threading
from types import SimpleNamespace

import pytest

from consilience.federated.flower.answer import _RequestAnswers
from consilience.federated.flower.gate import OPEN, FleetGate
from consilience.federated.flower.link import FlowerLink, _offered_announcement, _replaced_digests
from consilience.federated.flower.messages import (
    MAX_BODY_BYTES,
    PIECE_BYTES,
    deflate,
    inflate,
    object_names,
    quiet_flower,
    records,
)
from consilience.federated.flower.site import ReceivedModel

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

    scope = {"type": "http", "path": path, "method": method, "headers": list(headers)}
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


@pytest.mark.parametrize(
    "offer",
    [
        {},
        {"digest": "../../etc/passwd"},
        {"digest": ZEROS[:-1]},
        {"digest": 3},
        {"digest": ZEROS, "attempt": -1},
        {"digest": ZEROS, "attempt": "1/../2"},
        {"digest": ZEROS, "attempt": 10**7},
        {"digest": ZEROS, "fisher": "x"},
        {"digest": ZEROS, "fisher": [ONES]},
    ],
)
def test_offers_of_something_else_are_none(offer, tmp_path):
    assert _offered_announcement("a", offer, tmp_path) is None


def test_an_attempt_is_counted_where_a_site_does_not_say(tmp_path):
    first = _offered_announcement("a", {"digest": ZEROS}, tmp_path)
    assert (first.site, first.attempt, first.digest) == ("a", 1, ZEROS)
    (tmp_path / first.name).touch()
    assert _offered_announcement("a", {"digest": ZEROS, "attempt": 0}, tmp_path) == first
    assert _offered_announcement("a", {"digest": ONES}, tmp_path).attempt == 2
    assert _offered_announcement("a", {"digest": ONES, "attempt": 1, "fisher": ZEROS}, tmp_path).fisher == ZEROS


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
    assert not answering(answers)._fetch(1, tmp_path / ZEROS, hashlib.sha256(b"abcdefghij").hexdigest(), 10)
    assert not (tmp_path / ZEROS).exists()


def test_pieces_are_put_together_and_a_file_that_is_too_long_is_not_even_asked_for(tmp_path):
    whole = b"abcdefghij"
    link = answering([{"data": whole[:4]}, {"data": whole[4:]}])
    assert link._fetch(1, tmp_path / "whole", hashlib.sha256(whole).hexdigest(), 10)
    assert (tmp_path / "whole").read_bytes() == whole
    assert answering([])._fetch(1, tmp_path / "long", ZEROS, 10**12)
    assert (tmp_path / "long").stat().st_size == 10**12
    assert (tmp_path / "long").stat().st_blocks < 100


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


def answered_late(tmp_path, offers, reports=()):
    """Return a link whose rounds have ended so far, and whose site answers a question as told."""
    link = answering(offers)
    link.spool, link.closing = tmp_path, threading.Event()
    link.online = lambda _node: True
    for number, report in enumerate(reports, 1):
        (tmp_path / "server" / str(number)).mkdir(parents=True)
        (tmp_path / "server" / str(number) / "round.json").write_text(json.dumps(report))
    return link


def test_an_answer_is_fetched_also_when_its_round_is_over_meanwhile(tmp_path):
    data = b"sums over rows"
    digest = hashlib.sha256(data).hexdigest()
    offers = [None, {"digest": digest, "size": len(data), "attempt": 0}, {"data": data}]  # it computes, then answers
    link = answered_late(tmp_path, offers, [{"then": "em:2"}, {"continues": True}])
    announcement = link._fetch_answer("a", 1, 2)
    assert (announcement.number, announcement.attempt, announcement.digest) == (2, 1, digest)
    assert (tmp_path / "sites" / "a" / digest).read_bytes() == data
    assert (tmp_path / "sites" / "a" / announcement.name).exists()


def test_a_site_without_an_answer_to_a_request_that_is_over_gets_the_next(tmp_path):
    link = answered_late(tmp_path, [{"ok": True}], [{"then": "em:2"}, {"continues": True}])
    assert link._fetch_answer("a", 1, 2) is None
    assert link._open_request() == (3, False)


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([], (2, False)),
        ([{"then": "em:1"}], (2, False)),
        ([{"then": "em:1"}, {"continues": False}], (2, True)),
        ([{"continues": False}], (1, True)),
        ([{"problems": ["nobody came"]}], (1, True)),
        ([{"then": "em:2"}, {"continues": True}, {"problems": ["too few"], "continues": True}], (3, True)),
    ],
)
def test_the_open_request_follows_from_the_reports(tmp_path, reports, expected):
    assert answered_late(tmp_path, [], reports)._open_request() == expected


def test_a_new_attempt_replaces_the_files_of_its_own_round_alone(tmp_path):
    for number, digest in ((1, ZEROS), (2, ONES), (2, "2" * 64)):
        announcement = _offered_announcement("a", {"digest": digest}, tmp_path, number)
        (tmp_path / announcement.name).touch()
    assert announcement.attempt == 2
    assert _replaced_digests(announcement, tmp_path) == {ONES}


def test_a_site_takes_a_request_in_pieces_and_none_that_is_too_long():
    site = _RequestAnswers(True, False, ReceivedModel(io.BytesIO()))
    piece = {"ask": "request", "number": 2, "size": 6}
    assert site.answer({**piece, "offset": 0, "data": b"abc"}) == {"ok": True}
    assert site.pending is None
    assert site.answer({**piece, "offset": 9, "data": b"abc"}) == {"ok": False}
    assert site.answer({**piece, "offset": 3, "data": b"def"}) == {"ok": True}
    assert (site.pending, bytes(site.request)) == (2, b"abcdef")
    assert site.answer({"ask": "answer", "number": 2}) == {"ok": True}  # it has none yet
    for size in (0, -1, 10**12, "many"):
        refused = _RequestAnswers(True, False, ReceivedModel(io.BytesIO()))
        assert refused.answer({**piece, "size": size, "offset": 0, "data": b"x"}) == {"ok": False}
        assert refused.is_done
