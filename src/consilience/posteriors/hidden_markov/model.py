"""Hidden Markov models with Gaussian states under a sticky HDP prior: prediction, decoding and scores; their adapter.

What ``learners.StickyHDPHMM`` fits and a fusion returns. The states are Normal-Wishart posteriors, the transitions
Dirichlet posteriors under a sticky hierarchical Dirichlet process (``sticky_transitions``). A fused model has the fused
states and the fused counts of transitions; the weights E[beta] of its states are those of highest evidence bound given
these counts, which is how the learner's own model is finished too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import digamma, gammaln

from consilience.checks import Array, Labels
from consilience.core.observations import ExpectedColumns, read_observations
from consilience.core.scores import ScoreKind, Scores, row_scores
from consilience.errors import InputError, OptionError
from consilience.families import NormalWishart
from consilience.families.linalg import cholesky, log_determinant
from consilience.posteriors.adapters.base import Adapter
from consilience.posteriors.hidden_markov.forward_backward import forward_backward, log_densities, viterbi
from consilience.posteriors.hidden_markov.sticky_transitions import (
    StickyPrior,
    TransitionCounts,
    canonical_sticks,
    dirichlet_parameters,
    expected_logs,
)
from consilience.posteriors.posterior import Posterior

CHUNK_ENTRIES = 2**22
"""Entries of differences between rows and means at a time, 32 MiB. A bound on memory, chosen by hand."""


@dataclass(frozen=True, eq=False)
class HiddenMarkovModel:
    """K Gaussian states and the transitions between them.

    Made by ``HiddenMarkovModel.of(posterior)``, by ``learners.StickyHDPHMM().fit(...)`` or by a fusion.

    Parameters
    ----------
    posterior : Posterior
        What a site sends: the states, their effective numbers of rows, the expected counts of first states and of
        transitions, and the hyper-parameters.
    start : Array of shape (K + 1,)
        Dirichlet parameters of the first state, the last one for all states that are not used.
    transition : Array of shape (K, K + 1)
        Dirichlet parameters of the state after each state.
    bound : Array of shape (passes,)
        Evidence bound after each pass of the fit, in nats; empty for a fused model.

    Examples
    --------
    >>> from consilience.learners import StickyHDPHMM
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(120, 2)) + np.repeat([[0.0, 0.0], [9.0, 9.0], [0.0, 0.0]], 40, axis=0)
    >>> model = StickyHDPHMM(n_states=4, n_init=2).fit(X)
    >>> model.n_states, np.bincount(model.predict(X)).tolist()
    (2, [80, 40])
    """

    posterior: Posterior
    start: Array
    transition: Array
    bound: Array = field(default_factory=lambda: np.empty(0))

    @classmethod
    def of(cls, posterior: Posterior, bound: ArrayLike = ()) -> HiddenMarkovModel:
        """Return the model of a posterior that has the counts of transitions attached.

        Parameters
        ----------
        posterior : Posterior
            Normal-Wishart components with ``start_counts``, ``transition_counts`` and the hyper-parameters attached.
        bound : array_like of shape (passes,), optional
            Evidence bound after each pass of the fit. Default: empty.

        Raises
        ------
        InputError
            When its components are not Normal-Wishart or its counts or hyper-parameters are out of range.
        KeyError
            When an attached array is missing.
        """
        if not isinstance(posterior.family, NormalWishart):
            text = f"a HiddenMarkovModel has normal-wishart components, found {posterior.family}"
            raise InputError("", text, code="E-TYPE")
        values = {name: attached.values for name, attached in posterior.attached.items()}
        counts = TransitionCounts(values["transition_counts"], values["start_counts"])
        hyperparameters = (float(values[name]) for name in ("gamma", "eta", "kappa", "start_concentration"))
        prior = StickyPrior(*hyperparameters)
        for name, array in (("transition_counts", counts.transitions), ("start_counts", counts.starts)):
            if not np.all(array >= 0.0):
                text = f"expected counts that are not negative, found {array.min():.6g}"
                raise InputError(name, text, code="E-NUMBER")
        sticks, order = canonical_sticks(counts, prior)
        weights = np.empty(len(order) + 1)
        # Sticks are in the order of visits; weights in the order of the posterior, the remainder last.
        weights[order], weights[-1] = sticks.weights[:-1], sticks.weights[-1]
        history = np.array(bound, dtype=np.float64)
        model = cls(posterior, *dirichlet_parameters(counts, weights, prior), history)
        for array in (model.start, model.transition, model.bound):
            array.setflags(write=False)
        return model

    @property
    def n_states(self) -> int:
        """Number K of states."""
        return self.posterior.n_components

    @property
    def start_probabilities(self) -> Array:
        """Mean probabilities of the first state (K,), given that it is one of these."""
        state_parameters = self.start[:-1]
        return state_parameters / state_parameters.sum()

    @property
    def transition_probabilities(self) -> Array:
        """Mean probabilities of what follows each state (K, K), given that it is one of these."""
        state_parameters = self.transition[:, :-1]
        return state_parameters / state_parameters.sum(axis=1, keepdims=True)

    def predict(
        self, X: Any, lengths: ArrayLike | None = None, method: Literal["viterbi", "marginal"] = "viterbi"
    ) -> Labels:
        """Return the state of every row (n,).

        Parameters
        ----------
        X : array_like of shape (n, D)
            Rows, sequences one after another.
        lengths : array_like of shape (N,), optional
            Lengths of the sequences. Default: one sequence.
        method : {"viterbi", "marginal"}, optional
            ``"viterbi"``, the default: the most probable path; ``"marginal"``: the most probable state of every row by
            itself. Both under expected log parameters.

        Raises
        ------
        InputError
            For rows of another width, values that are not finite, or lengths that do not add up.
        OptionError
            For another method.
        """
        if method not in ("viterbi", "marginal"):
            raise OptionError("method", f"expected 'viterbi' or 'marginal', found {method!r}")
        if method == "viterbi":
            return self.decode(X, lengths)
        return np.asarray(self.predict_proba(X, lengths).argmax(axis=1).astype(np.int64))

    def decode(self, X: Any, lengths: ArrayLike | None = None) -> Labels:
        """Return the most probable path (n,) under expected log parameters."""
        return viterbi(*self._expected_log_weights(X, lengths))

    def predict_proba(self, X: Any, lengths: ArrayLike | None = None) -> Array:
        """Return the probability of every state in every row (n, K) under expected log parameters, given all rows."""
        return forward_backward(*self._expected_log_weights(X, lengths)).responsibilities

    def score_samples(self, X: Any, lengths: ArrayLike | None = None) -> Array:
        """Return log p(x_t | x_1 .. x_{t-1}) of every row (n,), in nats.

        A state's density is its posterior predictive one, a Student t with nu - D + 1 degrees of freedom, location m
        and scale W^-1 (kappa + 1) / (kappa (nu - D + 1)); start and transitions are taken at their means. So these are
        logarithms of densities that integrate to one, and can be compared between models. What the rows of the
        sequence itself tell about the parameters is not used.
        """
        rows, steps = self._rows(X, lengths)
        dim, kappa, dof, squares, log_det = self._mahalanobis(rows)
        student_dof = dof - dim + 1.0  # (K,)
        # Student t of D dimensions: (n, K)
        log_scale = gammaln(0.5 * (student_dof + dim)) - gammaln(0.5 * student_dof)
        evidence = log_scale - 0.5 * dim * np.log(np.pi * (kappa + 1.0) / kappa)
        evidence = evidence - 0.5 * log_det - 0.5 * (student_dof + dim) * np.log1p(squares * (kappa / (kappa + 1.0)))
        return log_densities(np.log(self.start_probabilities), np.log(self.transition_probabilities), evidence, steps)

    def _expected_log_weights(self, X: Any, lengths: ArrayLike | None) -> tuple[Array, Array, Array, Labels]:
        """Return expected logs of start (K,), transitions (K, K) and densities of rows (n, K), and lengths."""
        rows, steps = self._rows(X, lengths)
        dim, kappa, dof, squares, log_det = self._mahalanobis(rows)
        # E[log |Lambda|] - D log 2, and E[(x - mu)^T Lambda (x - mu)] = D / kappa + nu (x - m)^T W (x - m)
        log_precision = digamma(0.5 * (dof[:, None] - np.arange(dim))).sum(axis=1) - log_det
        evidence = 0.5 * (log_precision - dim * np.log(np.pi) - dim / kappa) - 0.5 * dof * squares
        return expected_logs(self.start), expected_logs(self.transition), evidence, steps

    def _rows(self, X: Any, lengths: ArrayLike | None) -> tuple[Array, Labels]:
        """Return checked rows (n, D) and lengths of sequences."""
        assert isinstance(self.posterior.family, NormalWishart)  # noqa: S101  (narrows the type; `of` sees to it)
        columns = ExpectedColumns(self.posterior.family.dim, self.posterior.features.names, are_counts=False)
        rows: Array = read_observations(X, None, columns, name="X").values
        return rows, as_lengths(lengths, len(rows))

    def _mahalanobis(self, rows: Array) -> tuple[int, Array, Array, Array, Array]:
        """Return D, kappa (K,), nu (K,), (x - m)^T W (x - m) (n, K) and log|W^-1| (K,)."""
        family = self.posterior.family
        assert isinstance(family, NormalWishart)  # noqa: S101  (narrows the type; `of` sees to it)
        mean, kappa, inverse_scale, dof = family.standard(self.posterior.natural)
        factor = cholesky(inverse_scale, "scale matrix")
        inverse_factor = np.linalg.inv(factor)  # (K, D, D): its square is W
        squares = np.empty((len(rows), len(mean)))
        chunk_rows = max(1, CHUNK_ENTRIES // mean.size)
        for first in range(0, len(rows), chunk_rows):
            differences = rows[None, first : first + chunk_rows] - mean[:, None, :]  # (K, chunk, D)
            whitened = inverse_factor @ np.swapaxes(differences, 1, 2)  # (K, D, chunk)
            squares[first : first + chunk_rows] = np.einsum("kdn,kdn->nk", whitened, whitened)
        return family.dim, kappa, dof, squares, log_determinant(factor)


def as_lengths(lengths: ArrayLike | None, count: int) -> Labels:
    """Return lengths of sequences that follow each other in `count` rows, or raise; None for one sequence.

    Examples
    --------
    >>> as_lengths([3, 2], 5).tolist(), as_lengths(None, 5).tolist()
    ([3, 2], [5])
    """
    if lengths is None:
        return np.array([count])
    values = np.asarray(lengths)
    if values.ndim != 1 or values.dtype.kind not in "iu" or values.size == 0 or not np.all(values > 0):
        text = f"expected positive integers, one for each sequence, found {lengths!r:.80}"
        raise InputError("lengths", text, code="E-NUMBER")
    if values.sum() != count:
        raise InputError("lengths", f"add up to {values.sum()}, but there are {count} rows", code="E-SHAPE")
    return values.astype(np.int64)


KIND = "consilience.StickyHDPHMM"
"""Kind of the model in the files of posteriors."""


class StickyHDPHMMAdapter(Adapter):
    """Hidden Markov models with Normal-Wishart states; the learner's variational posterior is the posterior.

    States are matched and averaged by their emissions. The expected counts of first states (``start_counts``) and of
    transitions (``transition_counts``), without the prior, follow the matching and add up; hyper-parameters are
    averaged. The weights E[beta] of the fused states are fitted to the fused counts as the learner fits its own, and
    the rows of transitions are then counts + eta E[beta] + kappa on staying. The papers do not fuse transitions; the
    sum is ours.
    """

    kind: ClassVar[str] = KIND
    library: ClassVar[str] = "consilience"
    class_name: ClassVar[str] = "HiddenMarkovModel"
    counts_are_rows: ClassVar[bool] = True

    def describe(self, model: Any, n_observations: float | None) -> Posterior:
        """Return the posterior; `n_observations` is not needed, since the model records its counts."""
        posterior: Posterior = model.posterior
        return posterior

    def rebuild(self, posterior: Posterior) -> HiddenMarkovModel:
        """Return the model, without the history of a fit."""
        self.require_family(posterior, NormalWishart)
        return HiddenMarkovModel.of(posterior)

    def scores(self, model: Any, data: Any) -> Scores:
        """Return log p(x_t | x_1 .. x_{t-1}) of every row, the rows being ONE sequence in the order of time.

        Densities are posterior predictive ones (``score_samples``); the component of a row is its state on the most
        probable path under expected log parameters.
        """
        name, unit = "log density given the rows before", "nats per row"
        values, labels = model.score_samples(data), model.decode(data)
        return row_scores(name, unit, values, labels, model.n_states, larger_is_better=True, kind=ScoreKind.PREDICTIVE)
