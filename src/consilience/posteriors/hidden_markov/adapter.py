"""Adapter of hidden Markov models under a sticky HDP prior, as ``learners.StickyHDPHMM`` fits them."""

from __future__ import annotations

from typing import Any, ClassVar

from consilience.core.scores import ScoreKind, Scores, row_scores
from consilience.families import NormalWishart
from consilience.posteriors.adapters.base import Adapter
from consilience.posteriors.hidden_markov.model import HiddenMarkovModel
from consilience.posteriors.posterior import Posterior

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
        del n_observations
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
