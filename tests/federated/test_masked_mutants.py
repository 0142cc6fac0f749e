"""Messages of masked sums as hostile sites and servers may send them: one line for each, and the sum goes on."""

import json
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import consilience as cs
from consilience.errors import ConsilienceError
from consilience.federated.folder.masked_site import FolderMailbox
from consilience.federated.inspect import inspect_message
from consilience.federated.masking import keys
from consilience.federated.masking.messages import (
    ADVERTISE,
    CONFIRM,
    DEAL,
    FORMAT,
    MASK,
    REVEAL,
    STEPS,
    Message,
    read_message,
)
from consilience.federated.masking.plan import MaskedPlan
from consilience.federated.report import RoundReport
from consilience.files.document import parse_document
from consilience.files.limits import Limits, exceeded_limits
from consilience.files.safetensors_file import SafetensorsFile
from tests.federated.masked_sites import Exchange, signing_key
from tests.federated.test_masked_rounds import SITES, Round
from tests.fuzz import mutants

pytestmark = pytest.mark.covering(2)

NAMES = tuple(f"s{site:02d}" for site in range(5))
LIAR = "s02"
steps = pytest.mark.parametrize("step", STEPS)
EXTREMES = (0, 1, 2**63, 2**64 - 1)


def exchange(length=6, seed=0):
    """Return five sites of which three open the sum."""
    rng = np.random.default_rng(seed)
    return Exchange({name: rng.normal(size=length) for name in NAMES}, threshold=3)


@cache
def complete(length=6):
    """Return a sum that has ended, all of its messages kept."""
    ended = exchange(length)
    ended.run()
    return ended


def at(step):
    """Return a sum whose messages of a step have come and are not agreed on."""
    going = exchange()
    for earlier in range(ADVERTISE, step):
        going.advance(earlier)
    return going


def signed(message, site=LIAR):
    """Return a message that its site has signed, whatever it says."""
    text = keys.signed_text(message.round_id, message.step, site, message.payload)
    return replace(message, signature=signing_key(NAMES.index(site) + 1).sign(text))


def what_the_server_says(server, step, site, content, path):
    """Return the reason for which a server refuses a file; None where it takes it. As the server of a folder does."""
    path.write_bytes(content)
    file = SafetensorsFile(path, site)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if problems := exceeded_limits(file, Limits()):
                return "; ".join(problem.without_subject().text for problem in problems)
            return server.problem(step, site, read_message(file))
    except ConsilienceError as error:
        return "; ".join(problem.without_subject().text for problem in error.problems)


def attempt(action):
    """Return what an action gives and None, or None and the lines by which it is refused."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return action(), None
    except ConsilienceError as error:
        return None, str(error).splitlines()


def honest_answer(going, step, site=LIAR):
    """Return what the liar would have said if it were honest."""
    server, machine = going.server, going.sites[site]
    shares = server.agreed_shares.get(site)
    return {
        ADVERTISE: lambda: machine.advertise(),
        DEAL: lambda: machine.deal(server.agreed_keys),
        MASK: lambda: machine.mask(server.agreed_keys, shares, going.words[site]),
        CONFIRM: lambda: machine.confirm(server.agreed_keys, shares, server.agreed_sum),
        REVEAL: lambda: machine.reveal(server.agreed_keys, shares, server.agreed_sum, server.agreed_confirmations),
    }[step]()


def truncated(message, rng):
    return message.data[: int(rng.integers(len(message.data)))]


def of_another_round(message, rng):
    """Its own message of another sum, as good as it was there: sent again."""
    return complete(7).messages[message.step][LIAR].data


def of_another_round_signed_anew(message, rng):
    return signed(replace(message, round_id=bytes(rng.bytes(32)))).data


def of_another_step(message, rng):
    """Its arrays under the number of another step, signed so."""
    return signed(replace(message, step=int(rng.choice([step for step in STEPS if step != message.step])))).data


def of_another_site(message, rng):
    """What another site has said, as it came, or under the name of the liar."""
    other = complete().messages[message.step]["s04"]
    return (other if rng.integers(2) else replace(other, round_id=message.round_id, sites=(LIAR,))).data


def under_another_key(message, rng):
    text = keys.signed_text(message.round_id, message.step, LIAR, message.payload)
    return replace(message, signature=signing_key(77).sign(text)).data


def of_another_shape(message, rng):
    """Rows too many or too few, and other types, signed."""
    arrays = {
        name: np.concatenate([values, values]) if rng.integers(2) else values[: len(values) // 2].astype("uint64")
        for name, values in message.arrays.items()
    }
    return signed(replace(message, arrays=arrays)).data


def without_signature(message, rng):
    return replace(message, signature=b"").data


REFUSED = {
    truncated: "",
    of_another_round: "is a message of another round, step or site",
    of_another_round_signed_anew: "is a message of another round, step or site",
    of_another_step: "is a message of another round, step or site",
    of_another_site: "",
    under_another_key: "is not signed with its key",
    of_another_shape: "",
    without_signature: "is not signed with its key",
}


def go_on(going, step, out=()):
    """Run the remaining steps without some sites; return the sum and what was wrong."""
    for later in range(step, REVEAL + 1):
        going.advance(later, out)
    return going.server.open(going.messages[MASK], going.messages[REVEAL])


@steps
@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_a_message_that_is_none_is_refused_by_one_line_and_the_others_are_summed(step, kind, tmp_path):
    going, rng = at(step), np.random.default_rng(step)
    content = kind(honest_answer(going, step), rng)
    reason = what_the_server_says(going.server, step, LIAR, content, tmp_path / "message")
    assert reason
    assert "\n" not in reason
    assert "Traceback" not in reason
    assert REFUSED[kind] in reason
    total, problems = go_on(going, step, [LIAR])
    assert not problems
    assert (LIAR in going.server.agreed_sum.sites) == (step > MASK)
    assert_array_equal(total, going.plain_sum())


@steps
@pytest.mark.parametrize("start", range(0, 300, 100))
def test_a_mutated_message_says_the_same_or_is_refused_by_one_line(step, start, tmp_path):
    going = at(step)
    honest, taken = honest_answer(going, step), 0
    for number in range(start, start + 100):
        content = mutant(honest.data, number)
        reason = what_the_server_says(going.server, step, LIAR, content, tmp_path / "message")
        if reason is None:  # what was changed is not of the message: an unsigned name of a version, spaces
            taken += 1
            assert read_message(tmp_path / "message").payload == honest.payload, number
        else:
            assert "\n" not in reason, number
        _, lines = attempt(lambda: inspect_message(SafetensorsFile(tmp_path / "message")))
        assert lines is None or len(lines) == 1, number
    assert taken < 50


def mutant(content, number):
    return mutants.message_mutant(content, np.random.default_rng([number, 36]))


# Signed by who has the key, of the right form, and false


@pytest.mark.parametrize("value", EXTREMES)
@pytest.mark.parametrize("row", [0, 1])
def test_extreme_public_keys_are_refused_or_bring_the_sum_of_the_others(row, value, tmp_path):
    going = at(ADVERTISE)
    message = honest_answer(going, ADVERTISE)
    rows = message.arrays["keys"].copy()
    rows[row] = np.frombuffer(value.to_bytes(32, "little"), np.uint8)
    reason = what_the_server_says(
        going.server, ADVERTISE, LIAR, signed(replace(message, arrays={"keys": rows})).data, tmp_path / "message"
    )
    assert reason is None or "small order" in reason
    assert reason is not None or value > 1
    total, problems = go_on(going, ADVERTISE, [LIAR])
    assert not problems
    assert_array_equal(total, going.plain_sum())


@pytest.mark.parametrize("fill", [0, 255])
def test_boxes_that_nobody_can_open_are_named_and_survived(fill):
    """Three of five open a secret: two boxes that are broken on the way leave enough."""
    going = at(DEAL)
    going.advance(DEAL)
    boxes = {site: message for site, message in going.server.agreed_shares.items() if site in ("s00", "s01")}
    row = going.server.agreed_keys.sites.index(LIAR)
    for site, message in boxes.items():
        changed = message.arrays["boxes"].copy()
        changed[row] = fill
        going.server.agreed_shares[site] = replace(message, arrays={"boxes": changed})
    total, problems = go_on(going, MASK)
    assert sorted(str(problem) for problem in problems) == [
        f"{site}: could not open the share that {LIAR} dealt to it" for site in ("s00", "s01")
    ]
    assert_array_equal(total, going.plain_sum())


@pytest.mark.parametrize("fill", [0, 255])
def test_a_site_that_deals_to_nobody_is_named_when_nothing_can_be_opened(fill):
    going = at(DEAL)
    message = honest_answer(going, DEAL)
    going.advance(DEAL)
    bad = signed(replace(message, arrays={**message.arrays, "boxes": np.full_like(message.arrays["boxes"], fill)}))
    assert going.server.problem(DEAL, LIAR, bad) is None  # nobody but those for whom they are can see that
    going.messages[DEAL][LIAR] = bad
    going.server.agree_on_shares(going.messages[DEAL])
    with pytest.raises(ConsilienceError) as caught:
        go_on(going, MASK)
    assert str(caught.value).splitlines()[0].startswith(f"{LIAR}: 1 right shares of its secret were opened, and 3 make")


@pytest.mark.parametrize("value", EXTREMES)
def test_extreme_words_under_a_signature_are_summed_as_any_others(value):
    """Under masks every word is as likely as any other: what one site adds cannot be judged."""
    going = at(MASK)
    going.advance(MASK)
    message = going.messages[MASK][LIAR]
    words = np.full_like(message.arrays["words"], value)
    going.messages[MASK][LIAR] = signed(replace(message, arrays={"words": words}))
    assert going.server.problem(MASK, LIAR, going.messages[MASK][LIAR]) is None
    total, problems = go_on(going, CONFIRM)
    assert not problems
    assert total.shape == words.shape


@pytest.mark.parametrize("kind", [0, 1, 2, 3, 255])
@pytest.mark.parametrize("fill", [0, 255])
def test_extreme_openings_are_named_and_survived(kind, fill):
    going = at(REVEAL)
    going.advance(REVEAL)
    arrays = going.messages[REVEAL][LIAR].arrays
    lie = {"kinds": np.full_like(arrays["kinds"], kind), "shares": np.full_like(arrays["shares"], fill)}
    going.messages[REVEAL][LIAR] = signed(replace(going.messages[REVEAL][LIAR], arrays=lie))
    assert going.server.problem(REVEAL, LIAR, going.messages[REVEAL][LIAR]) is None
    total, problems = going.server.open(going.messages[MASK], going.messages[REVEAL])
    assert {str(problem.subject) for problem in problems} == {LIAR}
    assert_array_equal(total, going.plain_sum())


# Servers that lie


def site_reads(going, step, message, path):
    """Let a site answer what a server says it agreed on after a step, read from a file; return what it would send."""
    path.write_bytes(message if isinstance(message, bytes) else message.data)
    agreed = read_message(SafetensorsFile(path, "place: agreed"))
    server, machine = going.server, going.sites[LIAR]
    shares = server.agreed_shares.get(LIAR)
    return {
        ADVERTISE: lambda: machine.deal(agreed),
        DEAL: lambda: machine.mask(server.agreed_keys, agreed, going.words[LIAR]),
        MASK: lambda: machine.confirm(server.agreed_keys, shares, agreed),
        CONFIRM: lambda: machine.reveal(server.agreed_keys, shares, server.agreed_sum, agreed),
    }[step]()


def agreed_on(going, step):
    """Return what the server agreed on after a step, for the liar."""
    server = going.server
    return {
        ADVERTISE: server.agreed_keys,
        DEAL: server.agreed_shares.get(LIAR),
        MASK: server.agreed_sum,
        CONFIRM: server.agreed_confirmations,
    }[step]


@pytest.mark.parametrize("step", [ADVERTISE, DEAL, MASK, CONFIRM])
@pytest.mark.parametrize("start", range(0, 200, 100))
def test_what_a_lying_server_says_is_refused_by_one_line_or_answered_alike(step, start, tmp_path):
    going = exchange()
    for earlier in range(ADVERTISE, step + 1):
        going.advance(earlier)
    agreed = agreed_on(going, step)
    expected = site_reads(going, step, agreed, tmp_path / "agreed").data
    for number in range(start, start + 100):
        content = mutant(agreed.data, number)
        answer, lines = attempt(lambda content=content: site_reads(going, step, content, tmp_path / "agreed"))
        assert lines is None or len(lines) == 1, number
        # What was changed in one that is answered says nothing, or is a box, which is opened in the last step.
        assert answer is None or answer.data == expected, number


def plan_of(content):
    return MaskedPlan.from_json(parse_document(Path("masked.json"), content, "content", ""), "place")


@pytest.mark.parametrize("start", range(0, 300, 100))
def test_a_mutated_plan_is_refused_by_one_line_or_is_another_round(start):
    plan = complete().plan
    for number in range(start, start + 100):
        rng = np.random.default_rng([number, 37])
        document = json.loads(plan.data)
        if rng.integers(3):
            mutants._in_values(document, rng, 300)
            content = json.dumps(document).encode("utf-8", "replace")
        else:
            content = mutants._in_text(plan.data.decode(), rng).encode("utf-8", "replace")
        read, lines = attempt(lambda content=content: plan_of(content))
        assert lines is None or len(lines) == 1, number
        assert read is None or (read.round_id == plan.round_id) == (read.data == plan.data), number


@pytest.mark.parametrize("start", range(0, 300, 100))
def test_a_mutated_report_is_refused_by_one_line_or_read(start):
    content = RoundReport(None, 1, NAMES, masked={"round": "0" * 64, "threshold": 3}).to_bytes()
    for number in range(start, start + 100):
        rng = np.random.default_rng([number, 38])
        document = json.loads(content)
        mutants._in_values(document, rng, 300)
        text = json.dumps(document).encode("utf-8", "replace")
        lines, refused = attempt(lambda text=text: RoundReport.from_bytes(text).lines())
        assert refused is None or len(refused) == 1, number
        assert lines is None or all(isinstance(line, str) for line in lines), number


# Over a folder


def of_strangers(data, step, made):
    """Return the corpus: what a hostile site puts in the place of its message of a step."""
    message = read_of(data, made)
    other_key = signing_key(99)
    text = keys.signed_text(message.round_id, message.step, "oslo", message.payload)
    header, document, tail = mutants.taken_apart(data)
    return {
        "truncated": data[: len(data) // 2],
        "foreign round": replace(message, round_id=bytes(32)).data,
        "swapped step": replace(message, step=step % 5 + 1).data,
        "extreme numbers": mutants.put_together(header, document, b"\xff" * len(tail)),
        "wrong key": replace(message, signature=other_key.sign(text)).data,
        "a lying header": mutants.put_together(header, {**document, "step": 10**30, "format": FORMAT}, tail),
    }


def read_of(data, made):
    path = made.folder / "told"
    path.write_bytes(data)
    return read_message(path)


CORPUS = ("truncated", "foreign round", "swapped step", "extreme numbers", "wrong key", "a lying header", "replay")


@pytest.mark.parametrize(
    ("what", "step"),
    [
        pytest.param(what, 1 + number % 5, marks=[pytest.mark.slow] if number % 2 else [])
        for number, what in enumerate(CORPUS)
    ],
)
def test_a_round_with_a_hostile_site_ends_with_the_sum_of_the_others(what, step, tmp_path, monkeypatch):
    made, send = Round(tmp_path), FolderMailbox.send
    first: list[bytes] = []

    def lie(self, number, data):
        if self.site == "oslo":
            first.append(data)
            if number == step:
                data = first[0] if what == "replay" else of_strangers(data, step, made)[what]
        send(self, number, data)

    monkeypatch.setattr(FolderMailbox, "send", lie)
    said = []
    result = made.run(serve={"deadline": 2.0, "say": said.append}, timeout=6.0)
    summed = SITES if step > MASK else tuple(site for site in SITES if site != "oslo")
    assert result.report.sites == summed
    np.testing.assert_allclose(
        result.fusion.model.theta_, cs.fuse([made.files[site] for site in summed]).model.theta_, rtol=1e-15
    )
    told = [line for line in result.report.lines() if "oslo" in line and f"step {step}, " in line]
    assert len(told) == 1, result.report.lines()
    assert "nothing in time" not in told[0]
    assert not any("Traceback" in str(line) for line in said)


def test_messages_are_frozen_in_what_they_say():
    """What was checked cannot be another when it is used: arrays of a message are those of its payload."""
    message = complete().messages[ADVERTISE][LIAR]
    with pytest.raises((TypeError, AttributeError)):
        message.arrays["keys"] = np.zeros((3, 32), np.uint8)
    assert isinstance(message, Message)
