"""Adapters: which libraries' models are taken in and given back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from consilience.core.deprecated import renamed_keyword
from consilience.errors import InputError, UnsupportedError
from consilience.posteriors.adapters.base import Adapter
from consilience.posteriors.adapters.gensim_lda import LdaModelAdapter
from consilience.posteriors.adapters.hmmlearn.categorical import CategoricalHMMAdapter, VariationalCategoricalHMMAdapter
from consilience.posteriors.adapters.hmmlearn.gaussian import GaussianHMMAdapter
from consilience.posteriors.adapters.hmmlearn.variational_gaussian import VariationalGaussianHMMAdapter
from consilience.posteriors.adapters.sklearn.bayesian_mixture import BayesianGaussianMixtureAdapter
from consilience.posteriors.adapters.sklearn.kmeans import KMeansAdapter
from consilience.posteriors.adapters.sklearn.mixture import GaussianMixtureAdapter
from consilience.posteriors.adapters.sklearn.topics import LatentDirichletAllocationAdapter
from consilience.posteriors.hidden_markov.adapter import StickyHDPHMMAdapter
from consilience.posteriors.posterior import Features, Posterior
from consilience.posteriors.sparse_gp.adapter import SparseGPAdapter
from consilience.posteriors.sparse_gp.gpytorch import ApproximateGPAdapter
from consilience.posteriors.topics.gaussian_topics import GaussianTopicsAdapter

ADAPTERS: tuple[Adapter, ...] = (
    BayesianGaussianMixtureAdapter(),
    GaussianMixtureAdapter(),
    KMeansAdapter(),
    LatentDirichletAllocationAdapter(),
    LdaModelAdapter(),
    GaussianTopicsAdapter(),
    SparseGPAdapter(),
    ApproximateGPAdapter(),
    GaussianHMMAdapter(),
    VariationalGaussianHMMAdapter(),
    CategoricalHMMAdapter(),
    VariationalCategoricalHMMAdapter(),
    StickyHDPHMMAdapter(),
)
"""Every adapter; a new one is one file and one line here."""


def describe(
    model: Any,
    *,
    n_observations: float | None = None,
    features: Features | None = None,
    samples: float | None = None,
) -> Posterior:
    """Return the posterior over the components of a fitted model: what a site sends.

    Parameters
    ----------
    model
        A fitted model of a library in the table, or a Posterior, which is returned as it is.
    n_observations
        Number of observations it was fitted to; needed for models that do not record it (GaussianMixture).
    features
        What the columns mean; taken from the model where it knows.
    samples
        Old name of `n_observations`, deprecated since 0.2.

    Raises
    ------
    UnsupportedError
        When no adapter knows the model's class.
    InputError
        When the model is not fitted or has parameters outside its family.

    Examples
    --------
    >>> from sklearn.cluster import KMeans
    >>> model = KMeans(n_clusters=2, n_init=1, random_state=0).fit([[0.0], [0.1], [5.0], [5.1]])
    >>> describe(model).counts
    array([2., 2.])
    """
    if samples is not None:
        n_observations = renamed_keyword("samples", samples, "n_observations", n_observations)
    if isinstance(model, Posterior):
        return model if features is None else replace(model, features=features)
    for adapter in ADAPTERS:
        if adapter.accepts(model):
            posterior = adapter.describe(model, n_observations)
            if features is None:
                return posterior
            if not isinstance(features, Features):
                raise InputError(f"features: expected consilience.Features, found {type(features).__name__}")
            own = posterior.features
            if differences := own.differences(features):
                raise InputError(f"features: what is told {differences[0]}, as the model itself was trained")
            names = own.names if features.names is None else features.names
            return replace(posterior, features=replace(features, names=names, from_columns=own.from_columns))
    known = ", ".join(adapter.kind for adapter in ADAPTERS)
    raise UnsupportedError(f"no adapter for {type(model).__module__}.{type(model).__qualname__}; known: {known}")


def adapter_of(posterior: Posterior) -> Adapter | None:
    """Return the adapter of the kind that ``posterior.source`` names; None for a posterior of no library's model.

    Raises
    ------
    UnsupportedError
        When this version has no adapter for that kind.
    """
    kind = posterior.source.get("kind")
    if kind is None:
        return None
    for adapter in ADAPTERS:
        if adapter.kind == kind:
            return adapter
    raise UnsupportedError(f"this version cannot rebuild a {kind!r}; known: {', '.join(a.kind for a in ADAPTERS)}")


def rebuild(posterior: Posterior) -> Any:
    """Return a fitted model with the components of `posterior`, of the kind that ``posterior.source`` names.

    A posterior that came from no library's model is returned as it is.

    Raises
    ------
    UnsupportedError
        When this version has no adapter for that kind.
    InputError
        When the posterior is not one of such a model.

    Examples
    --------
    >>> from sklearn.cluster import KMeans
    >>> model = KMeans(n_clusters=2, n_init=1, random_state=0).fit([[0.0], [0.1], [5.0], [5.1]])
    >>> rebuild(describe(model)).predict([[4.9]]).shape
    (1,)
    """
    adapter = adapter_of(posterior)
    if adapter is None:
        return posterior
    try:
        return adapter.rebuild(posterior)
    except KeyError as error:
        raise InputError(f"this posterior of a {adapter.kind} lacks {error}, which rebuilding needs") from error


__all__ = ["ADAPTERS", "Adapter", "adapter_of", "describe", "rebuild"]
