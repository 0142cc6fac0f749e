"""The sticky HDP-HMM learner: its bound never falls, it contains what is known in closed form, and odd data."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import logsumexp
from sklearn.metrics import adjusted_mutual_info_score

import consilience as cs
from consilience.families import NormalWishart
from consilience.posteriors.hidden_markov.learner import (
    StickyHDPHMM,
    initial_factors,
    merge_states,
    restrict_states,
    simplify,
)
from consilience.posteriors.hidden_markov.sticky_transitions import (
    HMMProblem,
    StickyPrior,
    dirichlet_parameters,
    expected_logs,
    global_step,
    local_step,
    sticks_bound,
)
from tests.posteriors.hidden_chains import SITES, fitted, simulated
from tests.tolerances import CONJUGATE_UPDATE, DESCENT, ROUNDING

pytestmark = pytest.mark.covering(2)

KAPPAS = (0.0, 10.0, 200.0)
every_kappa = pytest.mark.parametrize("kappa", KAPPAS)


def prior_of(family, mean_precision=0.01):
    identity = np.eye(family.dim)[None]
    zero = np.zeros((1, family.dim))
    return family.to_natural(mean=zero, kappa=[mean_precision], dof=[family.dim + 2.0], inverse_scale=identity)[0]


def problem(kappa=10.0, rows=None, lengths=None):
    family = NormalWishart(2)
    if rows is None:
        rows, _, lengths = simulated(SITES[0])
    return HMMProblem(family, prior_of(family), StickyPrior(kappa=kappa), rows, np.array(lengths))


@every_kappa
@pytest.mark.parametrize("clusters", [True, False])
def test_the_bound_never_falls(kappa, clusters):
    hmm_problem = problem(kappa)
    factors = initial_factors(hmm_problem, 9, np.random.default_rng(0), clusters=clusters)
    bounds = []
    for number in range(30):
        marginals, bound = local_step(hmm_problem, factors)
        bounds.append(bound)
        factors = global_step(hmm_problem, marginals, factors.sticks)
        if number % 7 == 6:
            marginals, bound = local_step(hmm_problem, factors)
            fewer, _, higher = simplify(hmm_problem, factors, marginals, bound, merge=True)
            assert (fewer is factors) == (higher == bound)
            assert higher >= bound
            factors = fewer
    assert np.diff(bounds).min() > -DESCENT * abs(bounds[-1])
    assert len(factors.natural) == 4


@every_kappa
def test_the_history_of_a_fit_never_falls(kappa):
    bound = fitted(kappa=kappa).bound
    assert len(bound) > 3
    assert np.diff(bound).min() > -DESCENT * abs(bound[-1])


@every_kappa
def test_the_bound_is_what_its_definition_says(kappa):
    """Expectations of log p less those of log q, with q(z) of every path by itself."""
    rows = np.array([[0.1, 0.0], [0.3, -0.5], [4.0, 4.2], [4.4, 3.0], [0.0, 0.7]])
    hmm_problem = problem(kappa, rows, [3, 2])
    factors = initial_factors(hmm_problem, 2, np.random.default_rng(0), clusters=True)
    for _ in range(2):
        marginals, bound = local_step(hmm_problem, factors)
        start, transition = map(
            expected_logs, dirichlet_parameters(factors.counts, factors.sticks.weights, hmm_problem.transition_prior)
        )
        means = hmm_problem.family.mean_parameters(factors.natural)
        evidence = hmm_problem.statistics @ means.T - np.log(2.0 * np.pi)
        weights = []
        for path in itertools.product(range(2), repeat=5):
            steps = transition[path[0], path[1]] + transition[path[1], path[2]] + transition[path[3], path[4]]
            weights.append(start[path[0]] + start[path[3]] + steps + evidence[np.arange(5), path].sum())
        expected = logsumexp(weights)  # the entropy of q(z) and what it expects of log p(x, z)
        expected -= hmm_problem.family.kl_pairs(
            factors.natural, np.broadcast_to(hmm_problem.prior, factors.natural.shape)
        ).sum()
        expected += sticks_bound(factors.sticks, factors.counts, hmm_problem.transition_prior)
        expected -= np.sum(factors.counts.transitions * transition) + np.sum(factors.counts.starts * start)
        assert_allclose(bound, expected, rtol=1e-9)
        factors = global_step(hmm_problem, marginals, factors.sticks)


def test_one_state_is_the_posterior_of_a_gaussian():
    """Bishop 2006, equations (10.60) to (10.63), with all responsibilities one."""
    rows, _, lengths = simulated(SITES[0])
    posterior = StickyHDPHMM(n_states=1, mean_precision=0.3, dof=5.0, inverse_scale=2.0).fit(rows, lengths).posterior
    parameters = posterior.parameters()
    n, mean = len(rows), rows.mean(axis=0)
    scatter = (rows - mean).T @ (rows - mean)
    inverse_scale = 2.0 * np.eye(2) + scatter + 0.3 * n / (0.3 + n) * np.outer(mean, mean)
    assert_allclose(parameters["kappa"], [n + 0.3], rtol=ROUNDING)
    assert_allclose(parameters["dof"], [n + 5.0], rtol=ROUNDING)
    assert_allclose(parameters["mean"][0], n * mean / (n + 0.3), rtol=CONJUGATE_UPDATE)
    assert_allclose(np.linalg.inv(parameters["scale"][0]), inverse_scale, rtol=CONJUGATE_UPDATE)
    assert_allclose(posterior.attached["transition_counts"].values, [[n - 3.0]], rtol=ROUNDING)


def test_no_stickiness_is_the_limit_of_little():
    plain, almost = fitted(kappa=0.0), fitted(kappa=1e-9)
    assert_allclose(almost.bound[-1], plain.bound[-1], rtol=1e-6)
    assert almost.predict(simulated(SITES[0])[0]).tolist() == plain.predict(simulated(SITES[0])[0]).tolist()


def test_stickier_models_change_state_less_often():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 2)) + 3.0 * rng.integers(0, 2, (300, 1))  # states that overlap and do not last
    changes = []
    for kappa in (0.0, 20.0, 50.0):
        model = StickyHDPHMM(n_states=2, kappa=kappa, merge=False, n_init=1).fit(rows)
        counts = model.posterior.attached["transition_counts"].values
        changes.append(counts.sum() - np.trace(counts))
    assert changes[0] > changes[1] > changes[2]


def test_states_that_were_simulated_are_found():
    rows, labels, lengths = simulated(SITES[0])
    model = fitted(0)
    assert model.n_states == 4
    assert adjusted_mutual_info_score(labels, model.predict(rows, lengths)) > 0.98
    assert adjusted_mutual_info_score(labels, model.predict(rows, lengths, method="marginal")) > 0.98
    assert np.all(np.diff(model.posterior.counts) <= 0.0)
    assert_allclose(model.posterior.counts.sum(), len(rows), rtol=ROUNDING)


def test_merging_gives_fewer_states_and_a_higher_bound():
    unmerged, fewer = fitted(merge=False), fitted()
    assert fewer.n_states < unmerged.n_states
    assert fewer.bound[-1] > unmerged.bound[-1]


def test_a_merged_state_has_what_both_had():
    hmm_problem = problem()
    factors = initial_factors(hmm_problem, 4, np.random.default_rng(0), clusters=True)
    factors = global_step(hmm_problem, local_step(hmm_problem, factors)[0], factors.sticks)
    merged = merge_states(hmm_problem, factors, 1, 3)
    total = factors.counts.transitions
    assert_allclose(merged.counts.transitions.sum(), total.sum(), rtol=ROUNDING)
    assert_allclose(merged.counts.starts.sum(), factors.counts.starts.sum(), rtol=ROUNDING)
    assert_allclose(
        (merged.natural - hmm_problem.prior).sum(axis=0), (factors.natural - hmm_problem.prior).sum(axis=0), rtol=1e-9
    )
    both = total[np.ix_([1, 3], [1, 3])].sum()
    assert np.isclose(np.diagonal(merged.counts.transitions), both).any()
    restricted = restrict_states(hmm_problem, factors, np.array([0, 2]))
    assert_allclose(
        np.sort(np.diagonal(restricted.counts.transitions)), np.sort(np.diagonal(total)[[0, 2]]), rtol=ROUNDING
    )


def test_states_without_rows_go_away():
    hmm_problem = problem()
    factors = initial_factors(hmm_problem, 4, np.random.default_rng(0), clusters=True)
    factors = global_step(hmm_problem, local_step(hmm_problem, factors)[0], factors.sticks)
    with_empty_state = initial_factors(hmm_problem, 5, np.random.default_rng(0), clusters=True)
    counts = np.pad(factors.counts.transitions, (0, 1))
    with_empty_state = replace(
        with_empty_state,
        natural=np.vstack([factors.natural, hmm_problem.prior]),
        counts=replace(factors.counts, transitions=counts, starts=np.append(factors.counts.starts, 0.0)),
    )
    marginals, bound = local_step(hmm_problem, with_empty_state)  # no row belongs to the fifth state
    fewer, _, higher = simplify(hmm_problem, with_empty_state, marginals, bound, merge=False)
    assert len(fewer.natural) == 4
    assert higher > bound


@every_kappa
def test_the_same_seed_gives_the_same_bytes(kappa):
    rows, _, lengths = simulated(SITES[1], seed=1)
    again = StickyHDPHMM(n_states=8, n_init=2, kappa=kappa).fit(rows, lengths)
    assert again.posterior.natural.tobytes() == fitted(1, kappa=kappa).posterior.natural.tobytes()
    assert again.transition.tobytes() == fitted(1, kappa=kappa).transition.tobytes()


ODD = {
    "one row": (np.zeros((1, 3)), None),
    "sequences of one row": (np.random.default_rng(0).normal(size=(5, 3)), [1] * 5),
    "fewer rows than columns": (np.random.default_rng(0).normal(size=(3, 8)), [2, 1]),
    "all rows the same": (np.full((40, 2), 7.0), None),
    "a constant column": (np.column_stack([np.zeros(30), np.arange(30.0)]), [20, 10]),
    "two clusters of very unlike width": (np.vstack([1e-3 * np.eye(2)[[0, 1] * 9], 1e4 * np.eye(2)[[0, 1] * 9]]), None),
    "far from the origin": (1e6 + np.random.default_rng(0).normal(size=(30, 2)), None),
    "integers": (np.arange(20).reshape(10, 2), [4, 6]),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("kappa", [0.0, 10.0])
def test_odd_data_are_fitted(name, kappa):
    rows, lengths = ODD[name]
    model = StickyHDPHMM(n_states=6, n_init=2, kappa=kappa).fit(rows, lengths)
    assert np.diff(model.bound).min(initial=0.0) > -DESCENT * abs(model.bound[-1])
    assert_allclose(model.posterior.counts.sum(), len(rows), rtol=1e-9)
    assert np.all(np.isfinite(model.score_samples(rows, lengths)))
    assert set(model.predict(rows, lengths)) <= set(range(model.n_states))


BAD = {
    "nan": (
        np.array([[0.0], [np.nan]]),
        None,
        "^X: row 1, column 0, counted from 0: expected a finite number, found nan",
    ),
    "no rows": (np.zeros((0, 2)), None, r"^X: has no rows \[E-SHAPE\]$"),
    "no columns": (np.zeros((3, 0)), None, r"^X: has no columns \[E-SHAPE\]$"),
    "a vector": (np.zeros(3), None, r"^X: expected an array \(rows, columns\), found shape \(3,\)"),
    "words": ([["a"]], None, "^X: expected numbers"),
    "lengths that do not add up": (
        np.zeros((3, 2)),
        [2, 2],
        r"^lengths: add up to 4, but there are 3 rows \[E-SHAPE\]$",
    ),
    "an empty sequence": (np.zeros((3, 2)), [3, 0], "^lengths: expected positive integers"),
    "lengths that are no integers": (np.zeros((3, 2)), [1.5, 1.5], "^lengths: expected positive integers"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_fitted_is_refused(name):
    rows, lengths, message = BAD[name]
    with pytest.raises(cs.errors.InputError, match=message):
        StickyHDPHMM(n_states=2).fit(rows, lengths)


IMPOSSIBLE = [
    {"n_states": 0},
    {"n_init": 1.5},
    {"max_iterations": True},
    {"gamma": 0.0},
    {"eta": -1.0},
    {"mean_precision": float("inf")},
    {"start_concentration": "5"},
    {"kappa": -1.0},
    {"tolerance": float("nan")},
    {"dof": 1.0},
    {"inverse_scale": -1.0},
    {"inverse_scale": [1.0, 2.0, 3.0]},
    {"inverse_scale": [[1.0, 2.0], [2.0, 1.0]]},
]


@pytest.mark.parametrize("options", IMPOSSIBLE, ids=str)
def test_impossible_options_are_refused(options):
    with pytest.raises(cs.errors.OptionError, match=f"^{next(iter(options))}: expected"):
        StickyHDPHMM(**options).fit(np.zeros((4, 2)))


def test_the_prior_may_have_any_covariance():
    rows = simulated(SITES[0])[0]
    matrix = np.array([[2.0, 0.5], [0.5, 1.0]])
    for given, expected in ((3.0, 3.0 * np.eye(2)), ([3.0, 4.0], np.diag([3.0, 4.0])), (matrix, matrix)):
        model = StickyHDPHMM(n_states=1, inverse_scale=given).fit(rows)
        family = model.posterior.family
        assert_allclose(family.standard(model.posterior.prior[None])[2][0], expected, rtol=ROUNDING)
