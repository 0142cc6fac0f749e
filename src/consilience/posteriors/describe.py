"""Describe: the posterior over the components of a fitted model, by the adapter of its class."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from consilience.core.deprecated import renamed_keyword
from consilience.errors import InputError, UnsupportedError
from consilience.posteriors.adapters.table import known_adapters
from consilience.posteriors.posterior import Features, Posterior


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
    model : fitted model or Posterior
        A fitted model of a class that an adapter accepts; a Posterior is returned as it is.
    n_observations : float, optional
        Number of observations it was fitted to; needed for models that do not record it (GaussianMixture).
    features : Features, optional
        What the columns mean. Default: what the model itself records.
    samples : float, optional
        Old name of `n_observations`, deprecated since 0.2.

    Returns
    -------
    Posterior
        The posterior over the L components of the model.

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
    for adapter in known_adapters():
        if adapter.accepts(model):
            posterior = adapter.describe(model, n_observations)
            if features is None:
                return posterior
            if not isinstance(features, Features):
                raise InputError("features", f"expected consilience.Features, found {type(features).__name__}")
            recorded = posterior.features
            if differences := recorded.differences(features):
                raise InputError("features", f"what is told {differences[0]}, as the model itself was trained")
            names = recorded.names if features.names is None else features.names
            return replace(posterior, features=replace(features, names=names, from_columns=recorded.from_columns))
    kinds = ", ".join(adapter.kind for adapter in known_adapters())
    raise UnsupportedError(f"no adapter for {type(model).__module__}.{type(model).__qualname__}; known: {kinds}")
