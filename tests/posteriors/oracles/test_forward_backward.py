"""Messages of hidden Markov chains against the enumeration of all paths, which shares no code with them."""

import itertools

import numpy as np
import pytest
from hmmlearn.hmm import GaussianHMM
from numpy.testing import assert_allclose
from scipy.special import logsumexp

import consilience as cs
from consilience.posteriors.hidden_markov import forward_backward as scaled
from consilience.posteriors.hidden_markov.forward_backward import (
    forward_backward,
    log_densities,
    messages_in_logs,
    viterbi,
)
from tests.tolerances import ROUNDING

pytestmark = pytest.mark.covering(2)

SCALES = {"like": 1.0, "unlike": 30.0, "so far apart that probabilities underflow": 2000.0}


def chain(seed, scale, states=None, lengths=None):
    rng = np.random.default_rng(seed)
    states = int(rng.integers(1, 4)) if states is None else states
    lengths = rng.integers(1, 7, rng.integers(1, 4)) if lengths is None else np.array(lengths)
    start, transition = -rng.gamma(1.0, scale, states), -rng.gamma(1.0, scale, (states, states))
    return start, transition, scale * rng.normal(size=(lengths.sum(), states)), lengths


def weight(path, start, transition, evidence):
    steps = sum(transition[a, b] for a, b in itertools.pairwise(path))
    return start[path[0]] + steps + sum(evidence[t, state] for t, state in enumerate(path))


def enumerated(start, transition, evidence, lengths):
    """Responsibilities, transitions, starts, log densities and best path by summing over every path there is."""
    states = len(start)
    found = np.zeros_like(evidence), np.zeros_like(transition), np.zeros(states), np.zeros(len(evidence)), []
    for begin, length in zip(np.cumsum(lengths) - lengths, lengths, strict=True):
        own = evidence[begin : begin + length]
        totals = [0.0]
        for known in range(1, length + 1):
            paths = list(itertools.product(range(states), repeat=known))
            weights = np.array([weight(path, start, transition, own[:known]) for path in paths])
            totals.append(logsumexp(weights))
        for path, probability in zip(paths, np.exp(weights - totals[-1]), strict=True):
            found[0][begin + np.arange(length), path] += probability
            np.add.at(found[1], (path[:-1], path[1:]), probability)
            found[2][path[0]] += probability
        found[3][begin : begin + length] = np.diff(totals)
        found[4].extend(paths[weights.argmax()])
    return found


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("seed", range(8))
def test_messages_are_sums_over_all_paths(seed, scale):
    given = chain(seed, scale)
    found = forward_backward(*given)
    responsibilities, transitions, starts, densities, path = enumerated(*given)
    assert_allclose(found.responsibilities, responsibilities, atol=ROUNDING * scale)
    assert_allclose(found.transitions, transitions, atol=ROUNDING * scale)
    assert_allclose(found.starts, starts, atol=ROUNDING * scale)
    assert_allclose(found.log_densities, densities, rtol=ROUNDING, atol=ROUNDING * scale)
    assert_allclose(log_densities(*given), densities, rtol=ROUNDING, atol=ROUNDING * scale)
    assert viterbi(*given).tolist() == path


@pytest.mark.parametrize("lengths", [[1], [400], [1, 1, 1], [50, 3, 1, 200], [9] * 30], ids=str)
@pytest.mark.parametrize("states", [1, 2, 7, 60])
@pytest.mark.parametrize("rare", [0.0, 1e3, np.inf], ids=["none", "very", "never"])
def test_scaled_messages_are_those_by_logarithms(lengths, states, rare, monkeypatch):
    """Also of sequences that are cut into pieces, with more states than cutting pays for, and rare transitions."""
    start, transition, evidence, lengths = chain(0, 20.0, states, lengths)
    if states > 1:  # hardly anything comes to the last state
        start[-1] -= rare
        transition[:-1, -1] -= rare
    given = (start, transition, evidence, lengths)
    found, expected = forward_backward(*given), messages_in_logs(*given)
    monkeypatch.setattr(scaled, "messages_in_logs", None)
    for name in ("responsibilities", "transitions", "log_densities"):
        assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e3 * ROUNDING, atol=1e3 * ROUNDING)


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_marginals_agree_with_each_other(scale):
    given = chain(1, scale, 5, [40, 1, 7])
    found = forward_backward(*given)
    last = np.cumsum(given[3]) - 1
    assert_allclose(found.responsibilities.sum(axis=1), 1.0, rtol=ROUNDING)
    leaving = found.responsibilities.sum(axis=0) - found.responsibilities[last].sum(axis=0)
    assert_allclose(found.transitions.sum(axis=1), leaving, atol=ROUNDING * scale)
    assert_allclose(found.transitions.sum(axis=0) + found.starts, found.responsibilities.sum(axis=0), rtol=1e-10)
    assert_allclose(found.log_likelihood, log_densities(*given).sum(), rtol=ROUNDING)


def test_sequences_are_apart():
    start, transition, evidence, lengths = chain(2, 3.0, 4, [30, 1, 12])
    found = forward_backward(start, transition, evidence, lengths)
    parts = [
        forward_backward(start, transition, one, np.array([len(one)]))
        for one in np.split(evidence, np.cumsum(lengths)[:-1])
    ]
    assert_allclose(found.responsibilities, np.concatenate([one.responsibilities for one in parts]), atol=ROUNDING)
    assert_allclose(found.transitions, sum(one.transitions for one in parts), rtol=ROUNDING)
    assert_allclose(found.log_densities, np.concatenate([one.log_densities for one in parts]), rtol=ROUNDING)


def test_states_may_be_in_any_order():
    start, transition, evidence, lengths = chain(3, 3.0, 5, [60, 20])
    order = np.random.default_rng(0).permutation(5)
    found = forward_backward(start[order], transition[np.ix_(order, order)], evidence[:, order], lengths)
    expected = forward_backward(start, transition, evidence, lengths)
    assert_allclose(found.responsibilities, expected.responsibilities[:, order], atol=ROUNDING)
    assert_allclose(found.transitions, expected.transitions[np.ix_(order, order)], rtol=1e-10)


def test_hmmlearn_says_the_same():
    rng = np.random.default_rng(0)
    model = GaussianHMM(3)
    model.startprob_, model.transmat_ = rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(3), 3)
    model.means_, model.covars_ = rng.normal(size=(3, 2)), rng.gamma(2.0, 1.0, (3, 2))
    rows, _ = model.sample(150, random_state=0)
    evidence, lengths = model._compute_log_likelihood(rows), np.array([100, 50])
    given = (np.log(model.startprob_), np.log(model.transmat_), evidence, lengths)
    found = forward_backward(*given)
    total, responsibilities = model.score_samples(rows, lengths)
    assert_allclose(found.responsibilities, responsibilities, atol=1e-10)
    assert_allclose(found.log_likelihood, total, rtol=ROUNDING)
    assert viterbi(*given).tolist() == model.decode(rows, lengths)[1].tolist()


def test_weights_of_zero_are_impossible_and_no_more():
    with np.errstate(divide="ignore"):
        start, transition = np.log([1.0, 0.0]), np.log([[0.5, 0.5], [0.0, 1.0]])
    evidence, lengths = np.log([[0.5, 0.9], [0.2, 0.4], [0.9, 0.1]]), np.array([3])
    found = forward_backward(start, transition, evidence, lengths)
    assert_allclose(found.responsibilities[0], [1.0, 0.0], atol=ROUNDING)
    assert found.transitions[1, 0] == 0.0
    assert_allclose(found.log_likelihood, np.log(0.5 * (0.5 * 0.2 * (0.45 + 0.05) + 0.5 * 0.4 * 0.1)), rtol=ROUNDING)
    evidence[1] = -np.inf
    for function in (forward_backward, log_densities):
        with pytest.raises(
            cs.errors.InputError, match=r"^row 1 has probability zero in this model after those before it \[E-NUMBER\]$"
        ):
            function(start, transition, evidence, lengths)
        with pytest.raises(cs.errors.InputError, match=r"^row 1 has probability zero"):
            function(np.log([0.5, 0.5]), np.log(np.full((2, 2), 0.5)), evidence, lengths)
