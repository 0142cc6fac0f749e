"""hmmlearn's CategoricalHMM and VariationalCategoricalHMM, in and out: states that emit symbols."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from consilience.checks import Array, Labels
from consilience.errors import InputError
from consilience.families import Dirichlet
from consilience.posteriors.adapters.hmmlearn.base import HmmlearnAdapter, PointEstimateAdapter, VariationalAdapter
from consilience.posteriors.adapters.hmmlearn.parameters import (
    as_positive,
    as_probabilities,
    common_value,
    counts_beyond_prior,
    normalised_counts,
    prior_of,
)
from consilience.posteriors.posterior import Posterior


class SymbolAdapter(HmmlearnAdapter):
    """States that emit symbols, of which the data are one column of whole numbers."""

    def observations(self, model: Any, data: Any) -> Any:
        """Return symbols as whole numbers."""
        return _as_symbols(data, np.shape(getattr(model, self.emission))[-1])

    def n_columns(self, posterior: Posterior) -> int:
        """Return one: the column of symbols."""
        return 1


class CategoricalHMMAdapter(SymbolAdapter, PointEstimateAdapter):
    """States with probabilities of symbols, as the Dirichlet that n_k symbols of these frequencies give.

    The prior is flat, with concentrations of one, so the concentrations are 1 + n_k p_k and the fused probabilities are
    the frequencies in the summed counts. A state without probabilities, since it was never visited, emits all symbols
    alike until another site knows better. hmmlearn counts symbols up to the largest that it meets: give every site the
    same ``n_features``.
    """

    kind: ClassVar[str] = "hmmlearn.CategoricalHMM"
    class_name: ClassVar[str] = "CategoricalHMM"
    emission: ClassVar[str] = "emissionprob_"

    def describe_emissions(self, model: Any, counts: Array, states: Labels) -> Posterior:
        """Return the posterior of the probabilities of symbols."""
        n_symbols = np.atleast_2d(model.emissionprob_).shape[-1]
        symbol_probabilities = as_probabilities("emissionprob_", model.emissionprob_, (len(counts), n_symbols))
        natural = (counts[:, None] * symbol_probabilities)[states]  # eta = alpha - 1 = n_k p_k, (K, V)
        return Posterior(Dirichlet(n_symbols), natural, prior=np.zeros(n_symbols), source={"symbols": n_symbols})

    def rebuild_emissions(self, posterior: Posterior) -> Any:
        """Return a CategoricalHMM with probabilities of symbols."""
        from hmmlearn.hmm import CategoricalHMM

        self.require_family(posterior, Dirichlet)
        n_symbols = int(posterior.source["symbols"])
        model = CategoricalHMM(n_components=posterior.n_components, n_features=n_symbols)
        model.emissionprob_ = normalised_counts(np.maximum(posterior.natural, 0.0))
        return model


class VariationalCategoricalHMMAdapter(SymbolAdapter, VariationalAdapter):
    """States with Dirichlet posteriors over symbols: ``emissionprob_posterior_`` is prior plus expected counts."""

    kind: ClassVar[str] = "hmmlearn.VariationalCategoricalHMM"
    class_name: ClassVar[str] = "VariationalCategoricalHMM"
    counts_are_rows: ClassVar[bool] = True
    emission: ClassVar[str] = "emissionprob_posterior_"

    def describe_emissions(self, model: Any) -> Posterior:
        """Return the posterior of the probabilities of symbols."""
        shape = (int(model.n_components), np.atleast_2d(model.emissionprob_posterior_).shape[-1])  # (K, V)
        prior = as_positive("emissionprob_prior_", model.emissionprob_prior_, shape)
        counts = counts_beyond_prior("emissionprob_posterior_", model.emissionprob_posterior_, prior)
        family = Dirichlet(shape[1])
        return Posterior(
            family,
            family.to_natural(concentration=prior + counts),
            prior=family.to_natural(concentration=common_value("emissionprob_prior_", prior))[0],
            counts=counts.sum(axis=1),
            source={"symbols": shape[1]},
        )

    def rebuild_emissions(self, posterior: Posterior) -> Any:
        """Return a VariationalCategoricalHMM with the posterior of the probabilities of symbols, and its prior."""
        from hmmlearn.vhmm import VariationalCategoricalHMM

        self.require_family(posterior, Dirichlet)
        concentration = posterior.natural + 1.0  # (K, V)
        prior = np.repeat(prior_of(posterior) + 1.0, posterior.n_components, axis=0)  # (K, V)
        is_uniform = bool(np.all(prior == prior[0, 0]))  # hmmlearn fits with one number or not at all
        model = VariationalCategoricalHMM(
            n_components=len(concentration),
            n_features=int(posterior.source["symbols"]),
            emissionprob_prior=float(prior[0, 0]) if is_uniform else prior,
        )
        model.emissionprob_prior_, model.emissionprob_posterior_ = prior, concentration
        model.emissionprob_ = normalised_counts(concentration)
        return model


def _as_symbols(data: Any, n_symbols: int) -> Any:
    """Return one column of symbols (n, 1) as whole numbers, or raise naming the row at fault."""
    values = np.asarray(data)
    if values.ndim != 2 or values.shape[1] != 1:
        text = f"expected one column of symbols, numbered from 0, found an array of shape {values.shape}"
        raise InputError("", text, code="E-SHAPE")
    bad = np.flatnonzero(~np.isin(values[:, 0], np.arange(n_symbols)))
    if len(bad):
        text = f"row {bad[0]}, counted from 0: expected a symbol from 0 to {n_symbols - 1}, found {values[bad[0], 0]}"
        raise InputError("", text, code="E-NUMBER")
    return values.astype(np.int64)
