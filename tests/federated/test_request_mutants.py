"""Requests and answers of strangers: whatever they hold, they are read or refused, and what is read does no harm."""

import warnings
from functools import cache

import numpy as np
import pytest

import consilience as cs
from consilience.errors import ConsilienceError
from tests.federated.request_kinds_zoo import NAMES, SPECIMENS, module_of
from tests.fuzz import mutants

kinds = pytest.mark.parametrize("kind", NAMES)


@cache
def messages(kind):
    """Return an honest request, and the answers of two sites."""
    fusion, data = SPECIMENS[kind]()
    request = cs.federated.request(kind, fusion, rounds=2)
    return request, {
        site: cs.federated.answer(request, data[site], module=module_of(kind, fusion, site)) for site in "ab"
    }


def mutant(content, number):
    return mutants.message_mutant(content, np.random.default_rng([number, 27]))


def said(action):
    """Return what an action gives; None where it is refused."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)  # of numbers that overflow
            return action()
    except ConsilienceError:
        return None


starts = pytest.mark.parametrize("start", [0, *(pytest.param(start, marks=pytest.mark.slow) for start in (100, 200))])


@kinds
@starts
def test_a_mutated_request_is_answered_with_finite_sums_or_refused(kind, start, tmp_path):
    request, _ = messages(kind)
    fusion, data = SPECIMENS[kind]()
    path, n_answered = tmp_path / "request", 0
    for number in range(start, start + 100):
        path.write_bytes(mutant(request.data, number))
        answer = said(lambda: cs.federated.answer(path, data["a"], module=module_of(kind, fusion, "a")))
        if answer is not None:
            n_answered += 1
            assert all(np.isfinite(values).all() for values in answer.content.arrays.values()), number
    assert n_answered < 100


@kinds
@starts
def test_a_mutated_answer_is_reduced_to_a_valid_state_or_refused(kind, start, tmp_path):
    request, answers = messages(kind)
    fusion, data = SPECIMENS[kind]()
    path, n_reduced = tmp_path / "answer", 0
    for number in range(start, start + 100):
        path.write_bytes(mutant(answers["a"].data, number))
        result = said(lambda: cs.federated.reduce(request, {"a": path, "b": answers["b"]}))
        if result is not None:
            n_reduced += 1
            assert np.isfinite(result.objective), number
            if result.next_request is not None:
                again = cs.federated.answer(result.next_request, data["b"], module=module_of(kind, fusion, "b"))
                assert again.n_observations == answers["b"].n_observations
    assert n_reduced < 100
