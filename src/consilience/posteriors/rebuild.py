"""Rebuild: a fitted model of a posterior, by the adapter of the kind that it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consilience.errors import InputError, UnsupportedError
from consilience.posteriors.adapters.base import Adapter
from consilience.posteriors.adapters.table import known_adapters
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.scaling import is_of_pipeline, rebuild_pipeline


def adapter_of(posterior: Posterior) -> Adapter | None:
    """Return the adapter of the kind that ``posterior.source`` names, as ``adapter_of_source`` does."""
    return adapter_of_source(posterior.source)


def adapter_of_source(source: Mapping[str, Any]) -> Adapter | None:
    """Return the adapter of the kind that a posterior's source names; None for a posterior of no library's model.

    Raises
    ------
    UnsupportedError
        When this version has no adapter for that kind.
    """
    kind = source.get("kind")
    if kind is None:
        return None
    for adapter in known_adapters():
        if adapter.kind == kind:
            return adapter
    known = ", ".join(adapter.kind for adapter in known_adapters())
    raise UnsupportedError(
        "",
        f"this version cannot rebuild a {kind!r}; known: {known}",
        "hand the adapter of another kind to consilience.register_adapter first",
    )


def rebuild(posterior: Posterior) -> Any:
    """Return a fitted model with the components of `posterior`, of the kind that ``posterior.source`` names.

    A posterior that came from no library's model is returned as it is.

    Parameters
    ----------
    posterior : Posterior
        Posterior over components, usually fused.

    Raises
    ------
    UnsupportedError
        When this version has no adapter for that kind.
    InputError
        When the posterior is not one of such a model.

    Examples
    --------
    >>> from sklearn.cluster import KMeans
    >>> model = KMeans(n_clusters=2, n_init=1, random_state=0).fit([[0.0], [0.1], [5.0], [5.1]] * 5)
    >>> from consilience import describe
    >>> rebuild(describe(model)).predict([[4.9]]).shape
    (1,)
    """
    adapter = adapter_of(posterior)
    if adapter is None:
        return posterior
    try:
        return rebuild_pipeline(posterior, adapter) if is_of_pipeline(posterior) else adapter.rebuild(posterior)
    except KeyError as error:
        raise InputError(
            "", f"this posterior of a {adapter.kind} lacks {error}, which rebuilding needs", code="E-NEEDED"
        ) from error
