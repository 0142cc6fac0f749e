"""Sticky HDP-HMM: hidden Markov models with Gaussian states of unknown number, by variational inference.

    beta ~ GEM(gamma),  pi_k ~ DP(eta + kappa, (eta beta + kappa delta_k) / (eta + kappa)),
    z_{t+1} ~ pi_{z_t},  x_t ~ N(mu_k, Lambda_k^-1) for k = z_t,  (mu_k, Lambda_k) ~ Normal-Wishart,

equations (11) to (13) of Claici et al. 2020 (KL-fusion), the local model of their motion-capture experiment and of that
of Yurochkin et al. 2019 (SPAHM). beta are the weights of the states, pi_k the transition probabilities from state k.

Inference is that of Hughes, Stephenson, Sudderth (2015): coordinate ascent on the evidence bound
(``sticky_transitions``), truncated at ``n_states``, all further states in one remainder column; random restarts,
merges, and the highest bound wins. The bound never falls; a start that has not converged after ``max_iterations``
passes ends there.

**Initialisation of the sticky HDP-HMM**: rows of data for every state, and no transitions yet.

States start from clusters of rows (k-means) or from random blocks of time, the "random examples" of Hughes et al. 2015
made longer. Transitions have their prior; the first local step fills them.

**Merge and delete moves of the sticky HDP-HMM**: fewer states where the evidence bound rises.

Empty states are deleted, and pairs of states that explain one thing are merged. A merged state has the sum of both
states' statistics, counts and weights. Pairs are tried in the order of what merging does to the evidence of the rows
alone,

    A(eta_a + eta_b - prior) - A(eta_a) - A(eta_b) + A(prior),

with A the log normaliser; a pair is merged when the evidence bound of the merged model, with its own best q(z), is
higher.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from consilience.checks import Array, Labels, is_count, is_number
from consilience.core.features import Features
from consilience.core.observations import ExpectedColumns, read_observations
from consilience.errors import InputError, OptionError
from consilience.families import NormalWishart
from consilience.posteriors.hidden_markov.forward_backward import ChainMarginals
from consilience.posteriors.hidden_markov.model import KIND, HiddenMarkovModel, as_lengths
from consilience.posteriors.hidden_markov.sticky_transitions import (
    GlobalFactors,
    HMMProblem,
    StickyPrior,
    TransitionCounts,
    global_step,
    local_step,
    sticks_from_weights,
    uniform_sticks,
    with_refitted_sticks,
)
from consilience.posteriors.posterior import Attached, Posterior


@dataclass(frozen=True, eq=False)
class StickyHDPHMM:
    """Fit hidden Markov models with Gaussian states to sequences.

    Sites whose models are to be fused take the same hyper-parameters, and columns scaled by the same public constants.

    Parameters
    ----------
    n_states : int, optional
        Truncation K: states at most. Default: 20, as in the example of the library of Hughes et al. (2015).
    gamma : float, optional
        Concentration of the weights of states: the larger, the more states. Default: 5 (Claici et al. 2020, appendix
        C).
    eta : float, optional
        Transition concentration of each state's row around these weights. Default: 0.5 (Claici et al. 2020, appendix
        C).
    kappa : float, optional
        Concentration that each row has in addition on staying; 0 gives the HDP-HMM that is not sticky. Default: 10
        (Claici et al. 2020, appendix C).
    start_concentration : float, optional
        Concentration of the probabilities of first states around the weights. Default: 5, that of the library of Hughes
        et al. (2015); the papers do not state it.
    mean_precision : float, optional
        lambda: rows of data that the prior of a state's mean, which is zero, is worth. Default: 0.01, chosen by hand;
        the papers do not state it.
    dof : float, optional
        Degrees of freedom of the Wishart prior, above D - 1. Default: D + 2, as in the library of Hughes et al. (2015);
        the expected covariance is then `inverse_scale`.
    inverse_scale : array_like, optional
        W^-1 of the Wishart prior: a number for its multiple of the identity, a diagonal (D,) or a matrix (D, D). For D
        + 2 degrees of freedom it is the covariance that a state is expected to have before data. Default: the identity
        (Claici et al. 2020, appendix C).
    n_init : int, optional
        Starts: clusters of rows (k-means) and random blocks of time in turn. The highest bound wins. Default: 5.
    max_iterations : int, optional
        Passes over the data at most in one start. Default: 200.
    tolerance : float, optional
        Rise of the bound, in nats per row, below which a pass is the last but for merges. Default: 1e-4.
    merge : bool, optional
        Whether pairs of states are merged where that raises the bound. Default: True.
    seed : int, optional
        Seed of the starts. Default: 0.

    Raises
    ------
    OptionError
        For options that mean nothing.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 2)) + np.repeat([[0.0, 0.0], [9.0, 9.0], [0.0, 0.0], [9.0, 0.0]], 50, axis=0)
    >>> model = StickyHDPHMM(n_states=6, n_init=2).fit(X, lengths=[100, 100])
    >>> model.posterior.counts.round().tolist()
    [100.0, 50.0, 50.0]
    >>> bool(np.all(np.diff(model.bound) >= 0))
    True
    """

    n_states: int = 20
    gamma: float = 5.0
    eta: float = 0.5
    kappa: float = 10.0
    start_concentration: float = 5.0
    mean_precision: float = 0.01
    dof: float | None = None
    inverse_scale: ArrayLike = 1.0
    n_init: int = 5
    max_iterations: int = 200
    tolerance: float = 1e-4
    merge: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for option in ("n_states", "n_init", "max_iterations"):
            if not is_count(getattr(self, option)):
                raise OptionError(option, f"expected a positive integer, found {getattr(self, option)!r}")
        for option in ("gamma", "eta", "start_concentration", "mean_precision"):
            value = getattr(self, option)
            if not (is_number(value) and value > 0):
                raise OptionError(option, f"expected a positive number, found {value!r}")
        for option in ("kappa", "tolerance"):
            if not is_number(getattr(self, option)):
                raise OptionError(option, f"expected a number that is not negative, found {getattr(self, option)!r}")

    def fit(self, X: Any, lengths: ArrayLike | None = None) -> HiddenMarkovModel:
        """Return the model of highest bound, its states from the most to the least visited.

        Parameters
        ----------
        X : array_like of shape (n, D), or table
            Rows, sequences one after another; a table's columns keep their names.
        lengths : array_like of shape (N,), optional
            Lengths of the sequences. Default: one sequence.

        Returns
        -------
        HiddenMarkovModel
            The fitted model, with the bound after each pass.

        Raises
        ------
        InputError
            For rows that are not finite numbers, or lengths that do not add up to n.
        OptionError
            For a prior that does not fit the number of columns.
        """
        rows, features = _rows_and_names(X)
        dim = rows.shape[1]
        family = NormalWishart(dim)
        mean = np.zeros((1, dim))
        prior = family.to_natural(
            mean=mean, kappa=[self.mean_precision], dof=[self._dof(dim)], inverse_scale=self._inverse_scale(dim)[None]
        )
        transitions = StickyPrior(self.gamma, self.eta, self.kappa, self.start_concentration)
        # Far from the origin sums of squares would lose digits, so rows and prior are translated to the centre and
        # back.
        centre = rows.mean(axis=0)
        shifted = _translate(family, prior, -centre)[0]
        problem = HMMProblem(family, shifted, transitions, rows - centre, as_lengths(lengths, len(rows)))
        generators = np.random.default_rng(self.seed).spawn(self.n_init)
        starts = (initial_factors(problem, self.n_states, g, clusters=i % 2 == 0) for i, g in enumerate(generators))
        fits = [self._coordinate_ascent(problem, start) for start in starts]
        marginals, bounds = max(fits, key=lambda fit: fit[1][-1])
        natural = _translate(family, shifted + marginals.responsibilities.T @ problem.statistics, centre)
        counts = marginals.responsibilities.sum(axis=0)
        attached = _attached(marginals, transitions)
        posterior = Posterior(
            family, natural, prior=prior[0], counts=counts, attached=attached, features=features, source={"kind": KIND}
        )
        order = np.argsort(-marginals.responsibilities.sum(axis=0), kind="stable")
        return HiddenMarkovModel.of(posterior.take(order), bounds)

    def _dof(self, dim: int) -> float:
        """Return the degrees of freedom of the Wishart prior."""
        dof = dim + 2.0 if self.dof is None else float(self.dof)
        if not dim - 1.0 < dof < np.inf:
            raise OptionError("dof", f"expected more than D - 1 = {dim - 1} degrees of freedom, found {self.dof!r}")
        return dof

    def _inverse_scale(self, dim: int) -> Array:
        """Return the inverse scale matrix of the Wishart prior (D, D)."""
        requested = np.asarray(self.inverse_scale, dtype=np.float64)
        matrix = np.eye(dim) * requested if requested.shape in ((), (dim,)) else requested
        proper = matrix.shape == (dim, dim) and bool(np.all(np.isfinite(matrix)))
        if not (proper and np.allclose(matrix, matrix.T) and np.linalg.eigvalsh(matrix)[0] > 0.0):
            raise OptionError(
                "inverse_scale",
                f"expected a positive number, {dim} of them or a positive definite matrix"
                f" ({dim}, {dim}), found {self.inverse_scale!r:.80}",
            )
        return matrix

    def _coordinate_ascent(self, problem: HMMProblem, factors: GlobalFactors) -> tuple[ChainMarginals, list[float]]:
        """Return q(z) at the end of one coordinate ascent, and the bound after every pass."""
        marginals, bound = local_step(problem, factors)
        bounds = [bound]
        while len(bounds) < self.max_iterations:
            factors = global_step(problem, marginals, factors.sticks)
            marginals, bound = local_step(problem, factors)
            bounds.append(bound)
            # Where coordinate ascent is stationary, moves that change the number of states are tried.
            if bound - bounds[-2] < self.tolerance * len(problem.rows):
                factors, marginals, bound = simplify(problem, factors, marginals, bound, merge=self.merge)
                if bound == bounds[-1]:
                    break
                bounds.append(bound)
        return marginals, bounds


def _rows_and_names(X: Any) -> tuple[Array, Features]:
    """Return finite rows (n, D) and the column names of a table."""
    names = tuple(str(name) for name in X.columns) if hasattr(X, "columns") else None
    width = len(names) if names is not None else np.shape(X)[1] if np.ndim(X) == 2 else 0
    rows: Array = read_observations(X, None, ExpectedColumns(width, names, are_counts=False), name="X").values
    if width == 0:
        raise InputError("X", "has no columns", code="E-SHAPE")
    return rows, Features(names=names, from_columns=names is not None)


def _translate(family: NormalWishart, natural: Array, offset: Array) -> Array:
    """Return states (n, P) with their means translated by `offset` (D,)."""
    mean, kappa, inverse_scale, dof = family.standard(natural)
    return family.to_natural(mean=mean + offset, kappa=kappa, inverse_scale=inverse_scale, dof=dof)


def _attached(marginals: ChainMarginals, prior: StickyPrior) -> dict[str, Attached]:
    """Return the arrays that follow the matching of the states."""
    hyperparameters = {"gamma": prior.gamma, "eta": prior.eta, "kappa": prior.kappa, "start_concentration": prior.start}
    return {
        "start_counts": Attached(marginals.starts, ("component",), "sum"),
        "transition_counts": Attached(marginals.transitions, ("component", "component"), "sum"),
        **{name: Attached(np.array(value), (), "mean") for name, value in hyperparameters.items()},
    }


MAX_CLUSTER_STEPS = 10
"""Steps of k-means at most: a start need not be a converged clustering. Chosen by hand."""


def initial_factors(problem: HMMProblem, n_states: int, rng: np.random.Generator, *, clusters: bool) -> GlobalFactors:
    """Return factors of `n_states` states, or fewer when there are fewer different rows.

    With `clusters` every state has a cluster of rows, by a few steps of k-means with columns scaled by their standard
    deviations; else a random block of time, half as long as would cover all rows together.
    """
    make = _cluster_membership if clusters else _block_membership
    membership = make(problem.rows, n_states, rng)
    size = membership.shape[1]
    no_counts = TransitionCounts(np.zeros((size, size)), np.zeros(size))
    # Prior plus the statistics of each state's rows: (K, n) @ (n, P)
    natural = problem.prior + membership.T @ problem.statistics
    return GlobalFactors(natural, no_counts, uniform_sticks(size, problem.transition_prior))


def _cluster_membership(rows: Array, n_states: int, rng: np.random.Generator) -> Array:
    """Return the cluster of every row, one-hot (n, K)."""
    from sklearn.cluster import KMeans

    deviations = rows.std(axis=0)  # (D,); 0 for a constant column, which is left as it is
    scaled = rows / np.where(deviations > 0.0, deviations, 1.0)
    size = min(n_states, len(np.unique(scaled, axis=0)))
    seed = int(rng.integers(2**31))
    clusters = KMeans(size, n_init=1, max_iter=MAX_CLUSTER_STEPS, random_state=seed).fit_predict(scaled)
    return np.eye(size)[clusters]


def _block_membership(rows: Array, n_states: int, rng: np.random.Generator) -> Array:
    """Return which rows are in the block of which state (n, K); blocks may overlap."""
    n_rows = len(rows)
    size = min(n_states, n_rows)
    length = max(1, n_rows // (2 * size))
    first_rows = rng.choice(n_rows - length + 1, size, replace=False)
    membership = np.zeros((n_rows, size))
    for step in range(length):
        membership[first_rows + step, np.arange(size)] = 1.0
    return membership


MAX_PAIRS_TRIED = 10
"""Pairs, the most likely first, that are tried before merging ends. Chosen by hand; not compared with others."""

MIN_EXPECTED_ROWS = 1.0
"""Expected rows below which a state counts as empty. Chosen by hand: less than one row of data."""

MIN_WEIGHT = 1e-12
"""Least weight E[beta] from which sticks are refitted, so that none is zero. A bound, chosen by hand."""

Solution = tuple[GlobalFactors, ChainMarginals, float]
"""Factors, the q(z) that is best given them, and the evidence bound of both."""


def simplify(
    problem: HMMProblem, factors: GlobalFactors, marginals: ChainMarginals, bound: float, *, merge: bool
) -> Solution:
    """Return a solution with fewer states and a higher bound, or the very same when no move raises it.

    The marginals and the bound are those of the factors' local step. Pairs are merged if `merge`, or else only empty
    states deleted.
    """
    best = factors, marginals, bound
    occupied = np.flatnonzero(marginals.responsibilities.sum(axis=0) >= MIN_EXPECTED_ROWS)
    if 0 < len(occupied) < len(factors.natural):
        best = _first_improvement(problem, best, [restrict_states(problem, factors, occupied)])
    while merge and len(best[0].natural) > 1:
        pairs = _likely_pairs(problem, best[0])
        improved = _first_improvement(problem, best, (merge_states(problem, best[0], *pair) for pair in pairs))
        if improved is best:
            break
        best = improved
    return best


def _first_improvement(problem: HMMProblem, best: Solution, candidates: Iterable[GlobalFactors]) -> Solution:
    """Return the first of `candidates` with a higher bound, after its local step, or else `best`."""
    for factors in candidates:
        marginals, bound = local_step(problem, factors)
        if bound > best[2]:
            return factors, marginals, bound
    return best


def restrict_states(problem: HMMProblem, factors: GlobalFactors, occupied: Labels) -> GlobalFactors:
    """Return `factors` with only the states `occupied`; the weight of the others goes to the remainder."""
    weights = factors.sticks.weights[occupied]
    return _by_visits(problem, factors.natural[occupied], factors.counts.take(occupied), weights)


def merge_states(problem: HMMProblem, factors: GlobalFactors, first: int, second: int) -> GlobalFactors:
    """Return `factors` with the second state merged into the first."""
    size = len(factors.natural)
    survivors = np.delete(np.arange(size), second)
    merge_matrix = np.eye(size)[survivors]  # (K - 1, K): row g adds up the states that become state g
    merge_matrix[np.flatnonzero(survivors == first)[0], second] = 1.0
    natural = problem.prior + merge_matrix @ (factors.natural - problem.prior)
    transitions = merge_matrix @ factors.counts.transitions @ merge_matrix.T
    counts = TransitionCounts(transitions, merge_matrix @ factors.counts.starts)
    return _by_visits(problem, natural, counts, merge_matrix @ factors.sticks.weights[:-1])


def _by_visits(problem: HMMProblem, natural: Array, counts: TransitionCounts, weights: Array) -> GlobalFactors:
    """Return factors with states from the most to the least visited, and sticks refitted from these weights (K,)."""
    # Stick-breaking expects decreasing weights, so states stand in the order of visits.
    order = np.argsort(-(counts.transitions.sum(axis=0) + counts.starts), kind="stable")
    normalised = np.maximum(np.append(weights[order], 1.0 - weights.sum()), MIN_WEIGHT)
    sticks = sticks_from_weights(normalised / normalised.sum(), len(order) + 1.0 + problem.transition_prior.gamma)
    return with_refitted_sticks(problem, natural[order], counts.take(order), sticks)


def _likely_pairs(problem: HMMProblem, factors: GlobalFactors) -> list[tuple[int, int]]:
    """Return the pairs whose merging costs the evidence of the rows least, best first."""
    family, natural = problem.family, factors.natural
    first, second = np.triu_indices(len(natural), 1)
    single = family.log_normalizer(natural)
    # What a merge adds to the evidence of the rows, less the constant A(prior); the largest is the likeliest merge.
    gain = family.log_normalizer(natural[first] + natural[second] - problem.prior) - single[first] - single[second]
    best = np.argsort(-gain, kind="stable")[:MAX_PAIRS_TRIED]
    return list(zip(first[best].tolist(), second[best].tolist(), strict=True))
