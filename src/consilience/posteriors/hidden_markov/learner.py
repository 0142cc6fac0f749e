"""Sticky HDP-HMM: hidden Markov models with Gaussian states whose number is found, by variational inference.

    beta ~ GEM(gamma),  pi_k ~ DP(eta + kappa, (eta beta + kappa delta_k) / (eta + kappa)),
    z_{t+1} ~ pi_{z_t},  x_t ~ N(mu_k, Lambda_k^-1) for k = z_t,  (mu_k, Lambda_k) ~ Normal-Wishart,

equations (11) to (13) of Claici et al. 2020 (KL-fusion), the local model of their motion-capture experiment and of that
of Yurochkin et al. 2019 (SPAHM). Inference is that of Hughes, Stephenson, Sudderth (2015): truncated at ``n_states``,
what is beyond in one remainder column; random restarts, merges, and the highest bound wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from consilience.checks import Array, is_count, is_number
from consilience.errors import InputError, OptionError
from consilience.families import NormalWishart
from consilience.posteriors.hidden_markov.adapter import KIND
from consilience.posteriors.hidden_markov.forward_backward import Smoothed
from consilience.posteriors.hidden_markov.initialisation import first_beliefs
from consilience.posteriors.hidden_markov.merge_moves import simplified
from consilience.posteriors.hidden_markov.model import HiddenMarkovModel, as_lengths
from consilience.posteriors.hidden_markov.sticky_transitions import StickyPrior
from consilience.posteriors.hidden_markov.variational_steps import Beliefs, Problem, global_step, local_step
from consilience.posteriors.observations import ExpectedColumns, read_observations
from consilience.posteriors.posterior import Attached, Features, Posterior


@dataclass(frozen=True, eq=False)
class StickyHDPHMM:
    """Fit hidden Markov models with Gaussian states to sequences.

    Sites whose models are to be fused take the same hyper-parameters, and columns scaled by the same public constants.

    Parameters
    ----------
    n_states
        Truncation K: states at most.
    gamma
        Concentration of the weights of states: the larger, the more states.
    eta
        Transition concentration of each state's row around these weights.
    kappa
        What each row has more on staying; 0 gives the HDP-HMM that is not sticky.
    start_concentration
        Concentration of the probabilities of first states around the weights.
    mean_precision
        lambda: rows of data that the prior of a state's mean, which is zero, is worth.
    dof
        Degrees of freedom of the Wishart prior, above D - 1; None takes D + 2.
    inverse_scale
        W^-1 of the Wishart prior: a number for its multiple of the identity, a diagonal (D,) or a matrix (D, D). For
        D + 2 degrees of freedom it is the covariance that a state is expected to have before data.
    n_init
        Starts: clusters of rows (k-means) and random blocks of time in turn. The highest bound wins.
    max_iterations
        Passes over the data at most in one start.
    tolerance
        Rise of the bound, in nats per row, below which a pass is the last but for merges.
    merge
        Whether pairs of states are merged where that raises the bound.
    seed
        Of the starts.

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
                raise OptionError(f"{option}: expected a positive integer, found {getattr(self, option)!r}")
        for option in ("gamma", "eta", "start_concentration", "mean_precision"):
            value = getattr(self, option)
            if not (is_number(value) and value > 0):
                raise OptionError(f"{option}: expected a positive number, found {value!r}")
        for option in ("kappa", "tolerance"):
            if not is_number(getattr(self, option)):
                raise OptionError(f"{option}: expected a number that is not negative, found {getattr(self, option)!r}")

    def fit(self, X: Any, lengths: ArrayLike | None = None) -> HiddenMarkovModel:
        """Return the model of highest bound, its states from the most to the least visited.

        Parameters
        ----------
        X
            Rows (n, D), sequences one after another; or a table with named columns.
        lengths
            Lengths of the sequences (N,); None for one sequence.

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
        prior = family.to_natural(
            mean=np.zeros((1, dim)),
            kappa=[self.mean_precision],
            dof=[self._dof(dim)],
            inverse_scale=self._inverse_scale(dim)[None],
        )
        transitions = StickyPrior(self.gamma, self.eta, self.kappa, self.start_concentration)
        centre = rows.mean(axis=0)  # far from the origin, sums of squares would lose digits
        shifted = _moved(family, prior, -centre)[0]
        problem = Problem(family, shifted, transitions, rows - centre, as_lengths(lengths, len(rows)))
        generators = np.random.default_rng(self.seed).spawn(self.n_init)
        climbed = [
            self._climb(problem, first_beliefs(problem, self.n_states, generator, clusters=number % 2 == 0))
            for number, generator in enumerate(generators)
        ]
        smoothed, bounds = max(climbed, key=lambda one: one[1][-1])
        natural = _moved(family, shifted + smoothed.responsibilities.T @ problem.statistics, centre)
        posterior = Posterior(
            family,
            natural,
            prior=prior[0],
            counts=smoothed.responsibilities.sum(axis=0),
            attached=_attached(smoothed, transitions),
            features=features,
            source={"kind": KIND},
        )
        order = np.argsort(-smoothed.responsibilities.sum(axis=0), kind="stable")
        return HiddenMarkovModel.of(posterior.take(order), bounds)

    def _dof(self, dim: int) -> float:
        dof = dim + 2.0 if self.dof is None else float(self.dof)
        if not dim - 1.0 < dof < np.inf:
            raise OptionError(f"dof: expected more than D - 1 = {dim - 1} degrees of freedom, found {self.dof!r}")
        return dof

    def _inverse_scale(self, dim: int) -> Array:
        given = np.asarray(self.inverse_scale, dtype=np.float64)
        matrix = np.eye(dim) * given if given.shape in ((), (dim,)) else given
        proper = matrix.shape == (dim, dim) and bool(np.all(np.isfinite(matrix)))
        if not (proper and np.allclose(matrix, matrix.T) and np.linalg.eigvalsh(matrix)[0] > 0.0):
            raise OptionError(
                f"inverse_scale: expected a positive number, {dim} of them or a positive definite matrix"
                f" ({dim}, {dim}), found {self.inverse_scale!r:.80}"
            )
        return matrix

    def _climb(self, problem: Problem, beliefs: Beliefs) -> tuple[Smoothed, list[float]]:
        """Return q(z) at the end, and the bound after every pass."""
        smoothed, bound = local_step(problem, beliefs)
        bounds = [bound]
        while len(bounds) < self.max_iterations:
            beliefs = global_step(problem, smoothed, beliefs.sticks)
            smoothed, bound = local_step(problem, beliefs)
            bounds.append(bound)
            if bound - bounds[-2] < self.tolerance * len(problem.rows):
                beliefs, smoothed, bound = simplified(problem, beliefs, smoothed, bound, merge=self.merge)
                if bound == bounds[-1]:
                    break
                bounds.append(bound)
        return smoothed, bounds


def _rows_and_names(X: Any) -> tuple[Array, Features]:
    """Return finite rows (n, D) and what a table calls its columns."""
    names = tuple(str(name) for name in X.columns) if hasattr(X, "columns") else None
    width = len(names) if names is not None else np.shape(X)[1] if np.ndim(X) == 2 else 0
    rows: Array = read_observations(X, None, ExpectedColumns(width, names, are_counts=False), name="X").values
    if width == 0:
        raise InputError("X: has no columns")
    return rows, Features(names=names, from_columns=names is not None)


def _moved(family: NormalWishart, natural: Array, by: Array) -> Array:
    """Return states (n, P) with their means moved by a vector (D,)."""
    mean, kappa, inverse_scale, dof = family.standard(natural)
    return family.to_natural(mean=mean + by, kappa=kappa, inverse_scale=inverse_scale, dof=dof)


def _attached(smoothed: Smoothed, prior: StickyPrior) -> dict[str, Attached]:
    """Return what follows the matching beside the states."""
    numbers = {"gamma": prior.gamma, "eta": prior.eta, "kappa": prior.kappa, "start_concentration": prior.start}
    return {
        "start_counts": Attached(smoothed.starts, ("component",), "sum"),
        "transition_counts": Attached(smoothed.transitions, ("component", "component"), "sum"),
        **{name: Attached(np.array(value), (), "mean") for name, value in numbers.items()},
    }
