"""Rebuild: a fitted model of a posterior, by the adapter of the kind that it names."""

from __future__ import annotations

from typing import Any

from consilience.errors import InputError
from consilience.posteriors.adapters.table import adapter_of
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.scaling import is_of_pipeline, rebuild_pipeline


def rebuild(posterior: Posterior) -> Any:
    """Return a fitted model with the components of `posterior`, of the kind that ``posterior.source`` names.

    A posterior that came from no library's model is returned as it is.

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
        text = f"this posterior of a {adapter.kind} lacks {error}, which rebuilding needs"
        raise InputError("", text, code="E-NEEDED") from error
