"""Laws of every kind of request in the table; a kind without a specimen in the zoo fails."""

import numpy as np
import pytest

import consilience as cs
from consilience.errors import InputError
from consilience.federated import REQUEST_KINDS
from tests.federated.request_kinds_zoo import NAMES, SPECIMENS, module_of

kinds = pytest.mark.parametrize("kind", NAMES)


def exchanged(kind, rounds=2):
    """Return the fusion, the first request and the answers to it."""
    fusion, data = SPECIMENS[kind]()
    request = cs.federated.request(kind, fusion, rounds=rounds)
    answers = {
        site: cs.federated.answer(request, own, module=module_of(kind, fusion, site)) for site, own in data.items()
    }
    return fusion, request, answers


def test_every_kind_says_what_it_is_for():
    for kind in REQUEST_KINDS:
        assert kind.summary
        assert kind.supports


@kinds
def test_messages_are_the_same_bytes_again_and_when_read(kind, tmp_path):
    _, request, answers = exchanged(kind)
    _, again, answers_again = exchanged(kind)
    assert request.data == again.data
    assert [one.data for one in answers.values()] == [one.data for one in answers_again.values()]
    cs.federated.write_message(tmp_path / "request", request)
    assert cs.federated.read_request(tmp_path / "request").data == request.data
    cs.federated.write_message(tmp_path / "answer", answers["a"])
    assert cs.federated.read_answer(tmp_path / "answer").digest == answers["a"].digest


@kinds
def test_an_answer_has_no_array_as_long_as_the_rows(kind):
    _, data = SPECIMENS[kind]()
    _, _, answers = exchanged(kind)
    lengths = {len(own[0]) if isinstance(own, tuple) else len(own) for own in data.values()}
    for answer in answers.values():
        assert not lengths & {size for values in answer.content.arrays.values() for size in values.shape}


@kinds
def test_the_order_of_answers_changes_no_byte(kind):
    _, request, answers = exchanged(kind)
    forward = cs.federated.reduce(request, answers)
    backward = cs.federated.reduce(request, dict(reversed(answers.items())))
    assert forward.next_request.data == backward.next_request.data


@kinds
def test_an_answer_to_the_request_before_is_refused(kind):
    _, request, answers = exchanged(kind)
    following = cs.federated.reduce(request, answers).next_request
    with pytest.raises(InputError, match="answers another request"):
        cs.federated.reduce(following, answers)


@kinds
def test_no_answers_at_all_come_to_nothing(kind):
    _, request, _ = exchanged(kind)
    with pytest.raises(InputError, match="no site has answered"):
        cs.federated.reduce(request, {})


@kinds
def test_answers_that_stand_alone_are_carried_on(kind):
    fusion, request, answers = exchanged(kind)
    first = cs.federated.reduce(request, answers)
    second = cs.federated.reduce(first.next_request, {}, first.reduction.standing)
    assert set(second.reduction.carried) == set(answers)
    assert second.next_request is None
    ended = cs.federated.finish(fusion, [first, second])
    assert type(ended) is type(fusion)
    assert np.all(np.diff(ended.history) >= -1e-9 * np.abs(ended.history[0]))
    assert [one["number"] for one in ended.provenance["result"]["then"]["rounds"]] == [1, 2]
