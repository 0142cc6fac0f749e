"""hmmlearn's hidden Markov models, in and out: start and transitions as expected counts, and scores of rows.

States are matched and averaged by what they emit. Start and transitions follow the matching, as expected counts without
the prior: ``start_counts`` (component,) and ``transition_counts`` (component, component), which add up over sites.
Beside them travel the Dirichlet concentrations of every entry, ``start_prior`` and ``transition_prior``.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, final

import numpy as np

from consilience.checks import Array, Labels
from consilience.core.scores import ScoreKind, Scores, row_scores
from consilience.errors import InputError
from consilience.posteriors.adapters.base import ASSUMED_SAMPLES, Adapter
from consilience.posteriors.adapters.hmmlearn.parameters import (
    as_positive,
    as_probabilities,
    common_value,
    counts_beyond_prior,
    expected_visits,
    normalised_counts,
)
from consilience.posteriors.hidden_markov.forward_backward import log_densities
from consilience.posteriors.posterior import Attached, Posterior

_CHAIN_ARRAYS = ("start_counts", "transition_counts", "start_prior", "transition_prior", "self_transition_prior")
"""Names of the attached arrays of start and transitions, in the order in which ``rebuild`` takes them."""


class HmmlearnAdapter(Adapter):
    """One class of hmmlearn's models, in and out: a subclass describes and rebuilds the emissions of the states."""

    library: ClassVar[str] = "hmmlearn"
    emission: ClassVar[str]
    """The attribute that holds what the states emit."""

    @final
    def require_parameters(self, model: Any) -> None:
        """Raise InputError unless `model` has start, transitions and emissions, fitted or set by hand."""
        for attribute in ("startprob_", "transmat_", self.emission):
            self.require_fitted(model, attribute)

    @abstractmethod
    def rebuild_emissions(self, posterior: Posterior) -> Any:
        """Return a model that has the emissions of its states, and neither start nor transitions."""

    def observations(self, model: Any, data: Any) -> Any:
        """Return `data` (n, D) in the form that hmmlearn takes."""
        return data

    @final
    def scores(self, model: Any, data: Any) -> Scores:
        """Return log p(x_t | x_1 .. x_{t-1}) of every row, the rows being ONE sequence in the order of time.

        They add up to hmmlearn's ``score``, which takes a variational model at the means of its posterior. The
        component of a row is its state on the most probable path.
        """
        start, transitions = _start(model), _transitions(model)
        if never_left := np.flatnonzero(transitions.sum(axis=1) == 0.0).tolist():
            text = f"row {never_left[0]} is zero, since that state was never left, and hmmlearn scores no data with it"
            raise InputError("transmat_", text, "score what `cs.rebuild(cs.describe(model))` gives", "E-NUMBER")
        rows = self.observations(model, data)
        labels = model.decode(rows, algorithm="viterbi")[1]
        evidence = model._compute_log_likelihood(rows)  # log p(x_t | state) (n, K), hmmlearn's hook for subclasses
        with np.errstate(divide="ignore"):  # impossible transitions have the logarithm minus infinity
            values = log_densities(np.log(start), np.log(transitions), evidence, np.array([len(rows)]))
        name, unit = "log density given the rows before", "nats per row"
        return row_scores(name, unit, values, labels, len(start), larger_is_better=True, kind=ScoreKind.PLUG_IN)


class PointEstimateAdapter(HmmlearnAdapter):
    """Models of point estimates, taken as frequencies in counts that hmmlearn does not record.

    A model is taken to be fitted to ONE sequence of n rows; hmmlearn does not record n, which is therefore asked for.
    State k counts as often as such a sequence is expected to be in it: n_k = n times the mean of pi A^t over time,
    which is the stationary law but for the start; less than once counts as once. So the start counts one sequence,
    transitions are n_k times the rows of ``transmat_``, and priors are flat, with concentrations of one. What
    regularised the fit (``startprob_prior``, ``covars_prior`` and the like) is part of the estimates already, and the
    rebuilt model has hmmlearn's defaults. In a left-to-right model the last state takes all rows that the one sequence
    has left.

    A state without usable emissions (hmmlearn leaves NaN in one that was never visited, and a covariance that is not
    positive definite where rows are too few) has nothing to be matched by. It is left out, a warning names it, and
    transitions among the other states are kept.

    The fused start and transitions are the frequencies in the summed counts, zeros included. Where no site could see a
    transition (none has both states, or the state was never left) one pseudo-count, spread evenly over all states,
    stands in. Where nothing was counted at all, probabilities are uniform.
    """

    records_n_observations: ClassVar[bool] = False
    counts_are_rows: ClassVar[bool] = True

    @abstractmethod
    def describe_emissions(self, model: Any, counts: Array, states: Labels) -> Posterior:
        """Return the posterior of the emissions of some states (k,) under a flat prior, given the rows in each (K,)."""

    @final
    def describe(self, model: Any, n_observations: float | None) -> Posterior:
        """Return the posterior of ``n_observations`` rows; see the class."""
        self.require_parameters(model)
        start, transitions = _start(model), _transitions(model)
        has_left = np.repeat(transitions.sum(axis=1, keepdims=True) > 0.0, len(start), axis=1)  # (K, K)
        counts = self._state_counts(start, transitions, n_observations)
        states = np.setdiff1d(np.arange(len(start)), self.unusable_components(model))
        emissions = self.describe_emissions(model, counts, states)
        attached = {
            "start_counts": Attached(start, ("component",), "sum"),
            "transition_counts": Attached(counts[:, None] * transitions, ("component", "component"), "sum"),
            "transition_seen": Attached(has_left, ("component", "component"), "mean"),
            "start_prior": Attached(np.array(1.0), (), "mean"),
            "transition_prior": Attached(np.array(1.0), (), "mean"),
        }
        return Posterior(
            emissions.family,
            emissions.natural,
            prior=emissions.prior,
            counts=counts[states],
            attached={**{name: array.take(states) for name, array in attached.items()}, **emissions.attached},
            source={"kind": self.kind, **emissions.source, "samples": "assumed" if n_observations is None else "given"},
        )

    @staticmethod
    def _state_counts(start: Array, transitions: Array, n_observations: float | None) -> Array:
        """Return the rows that each state is expected to have (K,), one at least."""
        n_rows = ASSUMED_SAMPLES if n_observations is None else n_observations
        return np.asarray(np.maximum(expected_visits(start, normalised_counts(transitions), n_rows), 1.0))

    @final
    def recount(self, posterior: Posterior, n_observations: float | None) -> Posterior:
        """Return the posterior of another number of rows: natural parameters are counts times moments."""
        start, transition_counts = (posterior.attached[name] for name in ("start_counts", "transition_counts"))
        if posterior.counts is None:
            raise InputError("", "states no counts, so its observations cannot be counted anew", code="E-NEEDED")
        transitions = transition_counts.values / posterior.counts[:, None]
        counts = self._state_counts(normalised_counts(start.values), transitions, n_observations)
        prior = np.zeros(posterior.family.size) if posterior.prior is None else posterior.prior
        return replace(
            posterior,
            natural=prior + (posterior.natural - prior) * (counts / posterior.counts)[:, None],
            counts=counts,
            attached={
                **posterior.attached,
                "transition_counts": replace(transition_counts, values=counts[:, None] * transitions),
            },
            source={**posterior.source, "samples": "assumed" if n_observations is None else "given"},
        )

    @final
    def rebuild(self, posterior: Posterior) -> Any:
        """Return a fitted model."""
        model = self.rebuild_emissions(posterior)
        start_counts, transition_counts, observed_share = (
            posterior.attached[name].values for name in ("start_counts", "transition_counts", "transition_seen")
        )
        model.startprob_ = normalised_counts(start_counts)
        # One pseudo-count per row, spread evenly, where no site could observe the transition.
        model.transmat_ = normalised_counts(transition_counts + (observed_share == 0.0) / len(start_counts))
        return model


class VariationalAdapter(HmmlearnAdapter):
    """Models with variational posteriors: counts are posteriors less priors, all of which hmmlearn records.

    The prior of the fused start is the mean of the sites' where they set it, and 1 / G where they left hmmlearn's
    default of 1 / K; so too for transitions, whose prior may have one value for staying (``self_transition_prior``) and
    another for every change. Any other prior says which state is which. It could not follow a matching and is refused,
    as is one of emissions that differs between states.
    """

    @abstractmethod
    def describe_emissions(self, model: Any) -> Posterior:
        """Return the posterior of the emissions of the states, with prior and counts."""

    @final
    def describe(self, model: Any, n_observations: float | None) -> Posterior:
        """Return the posterior; `n_observations` is not needed, the model records its counts."""
        self.require_parameters(model)
        emissions = self.describe_emissions(model)
        k = emissions.n_components
        start_prior = as_positive("startprob_prior_", model.startprob_prior_, (k,))
        transition_prior = as_positive("transmat_prior_", model.transmat_prior_, (k, k))
        start_counts = counts_beyond_prior("startprob_posterior_", model.startprob_posterior_, start_prior)
        transition_counts = counts_beyond_prior("transmat_posterior_", model.transmat_posterior_, transition_prior)
        # One value for staying and one for every change: what differs between states could not follow a matching.
        self_prior = common_value("the diagonal of transmat_prior_", np.diagonal(transition_prior))
        off_diagonal = transition_prior[~np.eye(k, dtype=bool)]
        change_prior = common_value("transmat_prior_ off its diagonal", off_diagonal) if k > 1 else self_prior
        return Posterior(
            emissions.family,
            emissions.natural,
            prior=emissions.prior,
            counts=emissions.counts,
            attached={
                "start_counts": Attached(start_counts, ("component",), "sum"),
                "transition_counts": Attached(transition_counts, ("component", "component"), "sum"),
                "start_prior": Attached(common_value("startprob_prior_", start_prior), (), "mean"),
                "transition_prior": Attached(change_prior, (), "mean"),
                "self_transition_prior": Attached(self_prior, (), "mean"),
                **emissions.attached,
            },
            source={
                "kind": self.kind,
                **emissions.source,
                "startprob_prior": "default" if model.startprob_prior is None else "given",
                "transmat_prior": "default" if model.transmat_prior is None else "given",
            },
        )

    @final
    def rebuild(self, posterior: Posterior) -> Any:
        """Return a fitted model that has the priors too."""
        model = self.rebuild_emissions(posterior)
        k = posterior.n_components
        start_counts, transition_counts, start_concentration, change_concentration, self_concentration = (
            posterior.attached[name].values for name in _CHAIN_ARRAYS
        )
        # hmmlearn's defaults, which depend on the number of states
        start_prior, transition_prior = np.full(k, 1.0 / k), np.full((k, k), 1.0 / k)
        if posterior.source["startprob_prior"] == "given":
            start_prior = np.full(k, start_concentration)
            model.set_params(startprob_prior=start_prior)
        if posterior.source["transmat_prior"] == "given":
            transition_prior = np.where(np.eye(k, dtype=bool), self_concentration, change_concentration)
            model.set_params(transmat_prior=transition_prior)
        model.startprob_prior_, model.transmat_prior_ = start_prior, transition_prior
        model.startprob_posterior_ = start_prior + start_counts
        model.transmat_posterior_ = transition_prior + transition_counts
        model.startprob_ = normalised_counts(model.startprob_posterior_)
        model.transmat_ = normalised_counts(model.transmat_posterior_)
        return model


def _start(model: Any) -> Array:
    """Return the probability of every state in the first row (K,)."""
    return as_probabilities("startprob_", model.startprob_, (model.n_components,))


def _transitions(model: Any) -> Array:
    """Return the transition probabilities (K, K), from rows to columns."""
    return as_probabilities("transmat_", model.transmat_, (model.n_components, model.n_components))
