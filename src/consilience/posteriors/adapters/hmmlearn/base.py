"""What the adapters of hmmlearn's hidden Markov models share: start and transitions as counts, and how rows score.

States are matched and averaged by what they emit. Start and transitions follow the matching, as expected counts without
the prior: ``start_counts`` (component,) and ``transition_counts`` (component, component), which add up over sites.
Beside them travel the Dirichlet concentrations of every entry, ``start_prior`` and ``transition_prior``.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, final

import numpy as np

from consilience.checks import Array
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
from consilience.posteriors.scores import Scores, row_scores

_CHAIN = ("start_counts", "transition_counts", "start_prior", "transition_prior", "self_transition_prior")


class HmmlearnAdapter(Adapter):
    """One class of hmmlearn's models, in and out: a subclass says what the states emit."""

    library: ClassVar[str] = "hmmlearn"
    emission: ClassVar[str]
    """The attribute that holds what the states emit."""

    @final
    def checked(self, model: Any) -> None:
        """Raise unless `model` has start, transitions and emissions, fitted or set by hand."""
        for attribute in ("startprob_", "transmat_", self.emission):
            self.require_fitted(model, attribute)

    @abstractmethod
    def with_emissions(self, posterior: Posterior) -> Any:
        """Return a model that has what its states emit, and neither start nor transitions."""

    def observations(self, model: Any, data: Any) -> Any:
        """Return `data` (n, D) as hmmlearn takes them."""
        del model
        return data

    @final
    def scores(self, model: Any, data: Any) -> Scores:
        """Return log p(x_t | x_1 .. x_{t-1}) of every row, the rows being ONE sequence in the order of time.

        They add up to hmmlearn's ``score``, which takes a variational model at the means of its posterior. The
        component of a row is its state on the most probable path.
        """
        start, transitions = _start(model), _transitions(model)
        if stuck := np.flatnonzero(transitions.sum(axis=1) == 0.0).tolist():
            raise InputError(
                f"transmat_: row {stuck[0]} is zero, since that state was never left, and hmmlearn scores no data with"
                " it; score what cs.rebuild(cs.describe(model)) gives"
            )
        rows = self.observations(model, data)
        labels = model.decode(rows, algorithm="viterbi")[1]
        evidence = model._compute_log_likelihood(rows)  # the hook by which hmmlearn's models say what they emit
        with np.errstate(divide="ignore"):
            values = log_densities(np.log(start), np.log(transitions), evidence, np.array([len(rows)]))
        name, unit = "log density given the rows before", "nats per row"
        return row_scores(name, unit, values, labels, len(start), larger_is_better=True)


class PointEstimateAdapter(HmmlearnAdapter):
    """Models of point estimates, taken as frequencies in counts that hmmlearn does not record.

    A model is taken to be fitted to ONE sequence of ``samples`` rows, or of 1000. State k counts as often as such a
    sequence is expected to be in it: n_k = samples times the mean of pi A^t over time, which is the stationary law but
    for the start; less than once counts as once. So the start counts one sequence, transitions are n_k times the rows
    of ``transmat_``, and priors are flat, with concentrations of one. What regularised the fit (``startprob_prior``,
    ``covars_prior`` and the like) is part of the estimates already, and the rebuilt model has hmmlearn's defaults. In a
    left-to-right model the last state takes all rows that the one sequence has left.

    The fused start and transitions are the frequencies in the summed counts, zeros included. Where no site could see a
    transition (none has both states, or the state was never left) one pseudo-count, spread evenly over all states,
    stands in. Where nothing was counted at all, everything is alike.
    """

    @abstractmethod
    def emissions(self, model: Any, counts: Array) -> Posterior:
        """Return the posterior of what the states emit under a flat prior, from the rows in each state (K,)."""

    @final
    def describe(self, model: Any, samples: float | None) -> Posterior:
        """Return the posterior of ``samples`` rows; see the class."""
        self.checked(model)
        if samples is not None and not 0 < samples < float("inf"):
            raise InputError(f"samples: expected a positive number of observations, found {samples}")
        start, transitions = _start(model), _transitions(model)
        left = np.repeat(transitions.sum(axis=1, keepdims=True) > 0.0, len(start), axis=1)
        rows = ASSUMED_SAMPLES if samples is None else samples
        counts = np.maximum(expected_visits(start, normalised_counts(transitions), rows), 1.0)
        emitted = self.emissions(model, counts)
        return Posterior(
            emitted.family,
            emitted.natural,
            prior=emitted.prior,
            counts=counts,
            attached={
                "start_counts": Attached(start, ("component",), "sum"),
                "transition_counts": Attached(counts[:, None] * transitions, ("component", "component"), "sum"),
                "transition_seen": Attached(left, ("component", "component"), "mean"),
                "start_prior": Attached(np.array(1.0), (), "mean"),
                "transition_prior": Attached(np.array(1.0), (), "mean"),
            },
            source={"kind": self.kind, **emitted.source, "samples": "assumed" if samples is None else "given"},
        )

    @final
    def rebuild(self, posterior: Posterior) -> Any:
        """Return a fitted model."""
        model = self.with_emissions(posterior)
        start, counts, seen = (
            posterior.attached[name].values for name in ("start_counts", "transition_counts", "transition_seen")
        )
        model.startprob_ = normalised_counts(start)
        model.transmat_ = normalised_counts(counts + (seen == 0.0) / len(start))
        return model


class VariationalAdapter(HmmlearnAdapter):
    """Models with variational posteriors: counts are posteriors less priors, all of which hmmlearn records.

    The prior of the fused start is the mean of the sites' where they set it, and 1 / G where they left hmmlearn's
    default of 1 / K; so too for transitions, whose prior may have one value for staying (``self_transition_prior``) and
    another for every change. Any other prior says which state is which. It could not follow a matching and is refused,
    as is one of emissions that differs between states.
    """

    @abstractmethod
    def emissions(self, model: Any) -> Posterior:
        """Return the posterior of what the states emit, with prior and counts."""

    @final
    def describe(self, model: Any, samples: float | None) -> Posterior:
        """Return the posterior; `samples` is not needed, the model records its counts."""
        del samples
        self.checked(model)
        emitted = self.emissions(model)
        count = emitted.n_components
        start = as_positive("startprob_prior_", model.startprob_prior_, (count,))
        transitions = as_positive("transmat_prior_", model.transmat_prior_, (count, count))
        start_counts = counts_beyond_prior("startprob_posterior_", model.startprob_posterior_, start)
        transition_counts = counts_beyond_prior("transmat_posterior_", model.transmat_posterior_, transitions)
        stay = common_value("the diagonal of transmat_prior_", np.diagonal(transitions))
        changes = transitions[~np.eye(count, dtype=bool)]
        change = common_value("transmat_prior_ off its diagonal", changes) if count > 1 else stay
        return Posterior(
            emitted.family,
            emitted.natural,
            prior=emitted.prior,
            counts=emitted.counts,
            attached={
                "start_counts": Attached(start_counts, ("component",), "sum"),
                "transition_counts": Attached(transition_counts, ("component", "component"), "sum"),
                "start_prior": Attached(common_value("startprob_prior_", start), (), "mean"),
                "transition_prior": Attached(change, (), "mean"),
                "self_transition_prior": Attached(stay, (), "mean"),
                **emitted.attached,
            },
            source={
                "kind": self.kind,
                **emitted.source,
                "startprob_prior": "default" if model.startprob_prior is None else "given",
                "transmat_prior": "default" if model.transmat_prior is None else "given",
            },
        )

    @final
    def rebuild(self, posterior: Posterior) -> Any:
        """Return a fitted model that has the priors too."""
        model = self.with_emissions(posterior)
        count = posterior.n_components
        start_counts, transition_counts, before, change, stay = (posterior.attached[name].values for name in _CHAIN)
        start, transitions = np.full(count, 1.0 / count), np.full((count, count), 1.0 / count)
        if posterior.source["startprob_prior"] == "given":
            start = np.full(count, before)
            model.set_params(startprob_prior=start)
        if posterior.source["transmat_prior"] == "given":
            transitions = np.where(np.eye(count, dtype=bool), stay, change)
            model.set_params(transmat_prior=transitions)
        model.startprob_prior_, model.transmat_prior_ = start, transitions
        model.startprob_posterior_, model.transmat_posterior_ = start + start_counts, transitions + transition_counts
        model.startprob_ = normalised_counts(model.startprob_posterior_)
        model.transmat_ = normalised_counts(model.transmat_posterior_)
        return model


def _start(model: Any) -> Array:
    return as_probabilities("startprob_", model.startprob_, (model.n_components,))


def _transitions(model: Any) -> Array:
    return as_probabilities("transmat_", model.transmat_, (model.n_components, model.n_components))
