"""Sticky HDP-HMM: hidden Markov models with Gaussian states of unknown number, by variational inference.

    beta ~ GEM(gamma),  pi_k ~ DP(eta + kappa, (eta beta + kappa delta_k) / (eta + kappa)),
    z_{t+1} ~ pi_{z_t},  x_t ~ N(mu_k, Lambda_k^-1) for k = z_t,  (mu_k, Lambda_k) ~ Normal-Wishart,

equations (11) to (13) of Claici et al. 2020 (KL-fusion), the local model of their motion-capture experiment and of that
of Yurochkin et al. 2019 (SPAHM). beta are the weights of the states, pi_k the transition probabilities from state k.

Inference is that of Hughes, Stephenson, Sudderth (2015): coordinate ascent on the evidence bound
(``variational_steps``), truncated at ``n_states``, all further states in one remainder column; random restarts, merges
(``merge_moves``), and the highest bound wins. The bound never falls; a start that has not converged after
``max_iterations`` passes ends there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from consilience.checks import Array, is_count, is_number
from consilience.core.features import Features
from consilience.errors import InputError, OptionError
from consilience.families import NormalWishart
from consilience.posteriors.hidden_markov.adapter import KIND
from consilience.posteriors.hidden_markov.forward_backward import ChainMarginals
from consilience.posteriors.hidden_markov.initialisation import initial_factors
from consilience.posteriors.hidden_markov.merge_moves import simplify
from consilience.posteriors.hidden_markov.model import HiddenMarkovModel, as_lengths
from consilience.posteriors.hidden_markov.sticky_transitions import StickyPrior
from consilience.posteriors.hidden_markov.variational_steps import GlobalFactors, HMMProblem, global_step, local_step
from consilience.posteriors.observations import ExpectedColumns, read_observations
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
        prior = family.to_natural(
            mean=np.zeros((1, dim)),
            kappa=[self.mean_precision],
            dof=[self._dof(dim)],
            inverse_scale=self._inverse_scale(dim)[None],
        )
        transitions = StickyPrior(self.gamma, self.eta, self.kappa, self.start_concentration)
        # Far from the origin sums of squares would lose digits, so rows and prior are translated to the centre and
        # back.
        centre = rows.mean(axis=0)
        shifted = _translate(family, prior, -centre)[0]
        problem = HMMProblem(family, shifted, transitions, rows - centre, as_lengths(lengths, len(rows)))
        generators = np.random.default_rng(self.seed).spawn(self.n_init)
        fits = [
            self._coordinate_ascent(
                problem, initial_factors(problem, self.n_states, generator, clusters=number % 2 == 0)
            )
            for number, generator in enumerate(generators)
        ]
        marginals, bounds = max(fits, key=lambda fit: fit[1][-1])
        natural = _translate(family, shifted + marginals.responsibilities.T @ problem.statistics, centre)
        posterior = Posterior(
            family,
            natural,
            prior=prior[0],
            counts=marginals.responsibilities.sum(axis=0),
            attached=_attached(marginals, transitions),
            features=features,
            source={"kind": KIND},
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
        """Return q(z) at the end of one start, and the bound after every pass."""
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
