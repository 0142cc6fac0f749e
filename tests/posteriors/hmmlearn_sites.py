"""Sites with hidden Markov models of hmmlearn: simulated from one law of four states, or written by hand."""

from functools import cache

import numpy as np
import pytest
from hmmlearn.hmm import CategoricalHMM, GaussianHMM
from hmmlearn.vhmm import VariationalCategoricalHMM, VariationalGaussianHMM
from numpy.testing import assert_allclose

from consilience.posteriors.adapters.table import ADAPTERS
from tests.tolerances import CONJUGATE_UPDATE

D, V = 2, 5
TYPES = ("full", "tied", "diag", "spherical")
MEANS = np.array([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0], [8.0, 8.0]])
START = np.array([0.4, 0.3, 0.2, 0.1])
TRANSITIONS = np.array([[0.8, 0.1, 0.1, 0.0], [0.05, 0.85, 0.05, 0.05], [0.1, 0.1, 0.7, 0.1], [0.1, 0.0, 0.2, 0.7]])
SYMBOLS = np.array(
    [[0.97, 0.02, 0.01, 0.0, 0.0], [0.0, 0.97, 0.03, 0.0, 0.0], [0.01, 0.0, 0.98, 0.0, 0.01], [0.0, 0.0, 0.0, 0.5, 0.5]]
)
LENGTH = 100


def adapter_for(model):
    return next(adapter for adapter in ADAPTERS if adapter.accepts(model))


def scores(model, rows):
    return adapter_for(model).scores(model, np.asarray(rows, dtype=np.float64))


def chain(start, transitions, length, rng):
    states = [rng.choice(len(start), p=start)]
    while len(states) < length:
        states.append(rng.choice(len(start), p=transitions[states[-1]]))
    return np.array(states)


def only(states):
    """The law of a site that has these states alone."""
    inside = TRANSITIONS[np.ix_(states, states)]
    return START[list(states)] / START[list(states)].sum(), inside / inside.sum(axis=1, keepdims=True)


@cache
def simulated(seed, states=(0, 1, 2, 3), sequences=6):
    """Rows (n, D), symbols (n, 1) and true states (n,) of sequences of one length."""
    rng = np.random.default_rng(seed)
    found = np.concatenate([chain(*only(states), LENGTH, rng) for _ in range(sequences)])
    found = np.array(states)[found]
    symbols = np.array([rng.choice(V, p=SYMBOLS[state]) for state in found])
    return MEANS[found] + rng.normal(size=(len(found), D)), symbols[:, None], found


def lengths(rows):
    return [LENGTH] * (len(rows) // LENGTH)


def fit_gaussian(maker, kind, count, rows):
    """hmmlearn draws transitions to start from at random, which ends in poor optima; these stay."""
    model = maker(count, covariance_type=kind, init_params="mc", n_iter=30, random_state=0)
    start, transitions = np.full(count, 1.0 / count), np.full((count, count), 1.0 / count)
    if maker is VariationalGaussianHMM:
        model.startprob_prior_, model.transmat_prior_ = start, transitions
        model.startprob_posterior_, model.transmat_posterior_ = 1.0 + start, 1.0 + 9.0 * np.eye(count)
    else:
        model.startprob_, model.transmat_ = start, (transitions + np.eye(count)) / 2.0
    return model.fit(rows, lengths(rows)).set_params(init_params=maker().init_params)


def fit_categorical(maker, count, symbols):
    models = [
        maker(count, n_features=V, n_iter=60, random_state=draw).fit(symbols, lengths(symbols)) for draw in range(3)
    ]
    return max(models, key=lambda model: model.score(symbols, lengths(symbols)))


@cache
def fitted(name, kind, seed, states=(0, 1, 2, 3)):
    rows, symbols, _ = simulated(seed, states)
    if "Gaussian" in name:
        return fit_gaussian({"GaussianHMM": GaussianHMM}.get(name, VariationalGaussianHMM), kind, len(states), rows)
    maker = {"CategoricalHMM": CategoricalHMM}.get(name, VariationalCategoricalHMM)
    return fit_categorical(maker, len(states), symbols)


GAUSSIANS = [(name, kind) for name in ("GaussianHMM", "VariationalGaussianHMM") for kind in TYPES]
EVERY = [*GAUSSIANS, ("CategoricalHMM", ""), ("VariationalCategoricalHMM", "")]
every_model = pytest.mark.parametrize(("name", "kind"), EVERY)
some_models = pytest.mark.parametrize(
    ("name", "kind"),
    [("GaussianHMM", "spherical"), ("VariationalGaussianHMM", "full"), ("VariationalGaussianHMM", "tied"), *EVERY[-2:]],
)
every_gaussian = pytest.mark.parametrize(("name", "kind"), GAUSSIANS)
every_type = pytest.mark.parametrize("kind", TYPES)


def rows_for(name, seed=99):
    rows, symbols, _ = simulated(seed)
    return symbols if "Categorical" in name else rows


def by_hand(transitions, kind="diag", start=None, means=None):
    """A GaussianHMM whose parameters are set and which hmmlearn has never fitted."""
    count = len(transitions)
    model = GaussianHMM(count, covariance_type=kind)
    model.startprob_ = np.eye(count)[0] if start is None else np.array(start)
    model.transmat_ = np.array(transitions, dtype=float)
    model.means_ = MEANS[:count] if means is None else np.array(means)
    matrices = np.array([[[1.0 + state, 0.3], [0.3, 0.5]] for state in range(count)])
    diagonals = np.diagonal(matrices, axis1=1, axis2=2)
    model.covars_ = {"full": matrices, "tied": matrices[0], "diag": diagonals, "spherical": diagonals[:, 0]}[kind]
    return model


def true_law(name):
    if "Gaussian" in name:
        model = by_hand(TRANSITIONS, "spherical", START)
        model.covars_ = np.ones(4)
        return model
    model = CategoricalHMM(4)
    model.startprob_, model.transmat_, model.emissionprob_ = START, TRANSITIONS, SYMBOLS
    return model


LEFT_TO_RIGHT = [[0.9, 0.1, 0.0, 0.0], [0.0, 0.8, 0.2, 0.0], [0.0, 0.0, 0.9, 0.1], [0.0, 0.0, 0.0, 1.0]]
CYCLE = np.roll(np.eye(4), 1, axis=1)


STUCK = [[0.9, 0.1, 0.0], [0.0, 0.9, 0.1], [0.0, 0.0, 0.0]]


HELD = {
    "the same states": ((0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)),
    "states of their own": ((0, 1, 2, 3), (1, 0), (0, 3, 2)),
}
"""Which states each site has, in its own order."""


def statistics(rows, symbols, states, order):
    """What hmmlearn's E step would hand to its M step if the states were known."""
    place = np.array([list(order).index(state) for state in states])
    one = np.eye(len(order))[place]
    steps = np.ones(len(rows), dtype=bool)
    steps[LENGTH - 1 :: LENGTH] = False
    steps = np.flatnonzero(steps)
    counts = np.zeros((len(order), V))
    np.add.at(counts, (place, symbols[:, 0]), 1.0)
    gaussian = {
        "post": one.sum(axis=0),
        "obs": one.T @ rows,
        "obs**2": one.T @ rows**2,
        "obs*obs.T": np.einsum("nk,ni,nj->kij", one, rows, rows),
    }
    both = {"start": one[::LENGTH].sum(axis=0), "trans": one[steps].T @ one[steps + 1]}
    return {**both, **gaussian}, {**both, "obs": counts}


def gaussian_m_step(data, order, kind):
    count = len(order)
    model = VariationalGaussianHMM(count, covariance_type=kind, startprob_prior=0.4, transmat_prior=0.2)
    model.means_prior_, model.beta_prior_ = np.tile([3.0, -1.0], (count, 1)), np.full(count, 0.6)
    factor = np.array([[2.0, 0.3], [0.3, 0.7]])
    model.dof_prior_ = 3.5 if kind == "tied" else np.full(count, 3.5)
    diagonal = np.tile(np.diag(factor), (count, 1))
    model.scale_prior_ = {
        "full": np.tile(factor, (count, 1, 1)),
        "tied": factor,
        "diag": diagonal,
        "spherical": diagonal[:, 0],
    }[kind]
    return m_step(model, statistics(*data, order)[0], D)


def categorical_m_step(data, order):
    model = VariationalCategoricalHMM(len(order), n_features=V, startprob_prior=0.4, transmat_prior=0.2)
    model.emissionprob_prior_ = np.tile(np.linspace(0.1, 0.5, V), (len(order), 1))
    return m_step(model, statistics(*data, order)[1], V)


def m_step(model, found, n_features):
    model.startprob_prior_ = np.full(model.n_components, 0.4)
    model.transmat_prior_ = np.full((model.n_components, model.n_components), 0.2)
    model.n_features = n_features
    model._do_mstep(found)
    return model


def pooled(sites):
    return [np.concatenate(parts) for parts in zip(*sites, strict=True)]


def order_of(model, reference):
    """Place in `model` of each state of `reference`, by what they emit."""
    mine, other = (getattr(one, "means_", None) for one in (model, reference))
    if mine is None:
        mine, other = model.emissionprob_, reference.emissionprob_
    return np.square(mine[None] - other[:, None]).sum(axis=2).argmin(axis=1)


def assert_same_posteriors(found, expected):
    order = order_of(found, expected)
    assert sorted(order) == list(range(expected.n_components))
    for name in ("startprob", "transmat", "means", "beta", "dof", "scale", "emissionprob"):
        if not hasattr(expected, f"{name}_posterior_"):
            continue
        mine, other = getattr(found, f"{name}_posterior_"), getattr(expected, f"{name}_posterior_")
        if name == "transmat":
            mine = mine[np.ix_(order, order)]
        elif not (name in ("dof", "scale") and expected.covariance_type == "tied"):
            mine = mine[order]
        assert_allclose(mine, other, rtol=CONJUGATE_UPDATE, atol=CONJUGATE_UPDATE, err_msg=name)
