"""Hidden Markov models of counts: rates are the means of the summed counts, states are matched, data are counts."""

import numpy as np
import pytest
from hmmlearn.hmm import PoissonHMM

import consilience as cs

RATES = np.array([[1.0, 20.0], [12.0, 3.0], [40.0, 40.0]])
MOVES = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])


def sequence(seed, length=400, states=(0, 1, 2)):
    rng = np.random.default_rng(seed)
    path, moves = [states[0]], MOVES[np.ix_(states, states)]
    moves = moves / moves.sum(axis=1, keepdims=True)
    for _ in range(length - 1):
        path.append(states[rng.choice(len(states), p=moves[states.index(path[-1])])])
    return rng.poisson(RATES[path])


def fitted(seed, states=(0, 1, 2)):
    model = PoissonHMM(len(states), n_iter=30, random_state=0)
    model.lambdas_, model.init_params = RATES[list(states)] * 1.1, "st"
    return model.fit(sequence(seed, states=states))


def test_a_model_is_rebuilt_as_it_was():
    model = fitted(0)
    again = cs.rebuild(cs.describe(model, n_observations=400))
    np.testing.assert_allclose(again.lambdas_, model.lambdas_, rtol=1e-12)
    np.testing.assert_allclose(again.transmat_, model.transmat_, atol=1e-12)
    assert again.score(sequence(1)) == pytest.approx(model.score(sequence(1)))


def test_sites_that_know_different_states_become_one_chain_of_all():
    sites = {"lund": fitted(0), "oslo": fitted(1, (0, 1)), "riga": fitted(2, (1, 2))}
    fusion = cs.fuse(sites, n_observations=dict.fromkeys(sites, 400))
    order = np.argsort(fusion.model.lambdas_.sum(axis=1))
    expected = RATES[np.argsort(RATES.sum(axis=1))]
    assert fusion.n_components == 3
    np.testing.assert_allclose(fusion.model.lambdas_[order], expected, rtol=0.1)
    assert fusion.model.score(sequence(5)) > max(sites[name].score(sequence(5)) for name in ("oslo", "riga"))


def test_the_product_of_two_sites_has_the_mean_of_all_counts():
    sites = [fitted(0), fitted(1)]
    fusion = cs.fuse(sites, n_observations=[400, 400], n_components=3, combine="product")
    described = [cs.describe(model, n_observations=400) for model in sites]
    summed = sum(one.natural for one in described)  # states are in one order here
    rates = summed.reshape(3, 2, 2)
    expected = rates[:, :, 0] / -rates[:, :, 1]
    np.testing.assert_allclose(np.sort(fusion.model.lambdas_, axis=0), np.sort(expected, axis=0), rtol=1e-9)


def test_what_is_no_count_is_refused_by_its_row():
    fusion = cs.fuse([fitted(0), fitted(1)], n_observations=[400, 400], n_components=3)
    rows = sequence(3).astype(float)
    assert cs.evaluate(fusion, fitted(0), rows).better in (None, "fused", "own")
    rows[7, 1] = 0.5
    with pytest.raises(cs.errors.InputError, match=r"row 7, counted from 0: expected a count, found 0\.5"):
        cs.evaluate(fusion, fitted(0), rows)
