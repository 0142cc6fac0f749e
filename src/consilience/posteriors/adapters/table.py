"""The table of adapters: every class of fitted models that is taken in and given back."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from consilience.checks import Json
from consilience.core.inputs import REGISTERED_PACKAGES, library_classes
from consilience.errors import OptionError, UnsupportedError
from consilience.posteriors.adapters.base import Adapter
from consilience.posteriors.adapters.gensim_lda import LdaModelAdapter
from consilience.posteriors.adapters.hmmlearn.categorical import CategoricalHMMAdapter, VariationalCategoricalHMMAdapter
from consilience.posteriors.adapters.hmmlearn.gaussian import GaussianHMMAdapter, VariationalGaussianHMMAdapter
from consilience.posteriors.adapters.hmmlearn.poisson import PoissonHMMAdapter
from consilience.posteriors.adapters.sklearn.kmeans import (
    BirchAdapter,
    BisectingKMeansAdapter,
    KMeansAdapter,
    MiniBatchKMeansAdapter,
)
from consilience.posteriors.adapters.sklearn.mixture import BayesianGaussianMixtureAdapter, GaussianMixtureAdapter
from consilience.posteriors.adapters.sklearn.nmf import NMFAdapter
from consilience.posteriors.adapters.sklearn.topics import LatentDirichletAllocationAdapter
from consilience.posteriors.hidden_markov.model import StickyHDPHMMAdapter
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.sparse_gp.adapter import ApproximateGPAdapter, SparseGPAdapter
from consilience.posteriors.topics.gaussian_topics import GaussianTopicsAdapter

ADAPTERS: tuple[Adapter, ...] = (
    BayesianGaussianMixtureAdapter(),
    GaussianMixtureAdapter(),
    KMeansAdapter(),
    MiniBatchKMeansAdapter(),
    BisectingKMeansAdapter(),
    BirchAdapter(),
    LatentDirichletAllocationAdapter(),
    NMFAdapter(),
    LdaModelAdapter(),
    GaussianTopicsAdapter(),
    SparseGPAdapter(),
    ApproximateGPAdapter(),
    GaussianHMMAdapter(),
    VariationalGaussianHMMAdapter(),
    CategoricalHMMAdapter(),
    VariationalCategoricalHMMAdapter(),
    PoissonHMMAdapter(),
    StickyHDPHMMAdapter(),
)
"""Every adapter of this library; a new one is one file and one line here."""

_REGISTERED: list[Adapter] = []
"""Adapters of others, in the order in which they were registered."""


def known_adapters() -> tuple[Adapter, ...]:
    """Return every adapter: those that were registered, which may be for subclasses, then those of this library."""
    return (*_REGISTERED, *ADAPTERS)


def has_adapter(model: object) -> bool:
    """Return whether some adapter accepts a model, by its class alone."""
    return not library_classes(model).isdisjoint(_adapted_classes(known_adapters()))


@lru_cache(maxsize=1)  # every model is asked; the key is all adapters, of which one may be registered at any time
def _adapted_classes(adapters: tuple[Adapter, ...]) -> frozenset[tuple[str, str]]:
    """Return the (library, name) of every class that one of these adapters accepts."""
    return frozenset((adapter.library, adapter.class_name) for adapter in adapters)


def adapter_of(posterior: Posterior) -> Adapter | None:
    """Return the adapter of the kind that ``posterior.source`` names, as ``adapter_of_source`` does."""
    return adapter_of_source(posterior.source)


def adapter_of_source(source: Mapping[str, Json]) -> Adapter | None:
    """Return the adapter of the kind that a posterior's source names; None for a posterior of no library's model.

    It raises `UnsupportedError` when this version has no adapter for that kind.
    """
    kind = source.get("kind")
    if kind is None:
        return None
    for adapter in known_adapters():
        if adapter.kind == kind:
            return adapter
    known = ", ".join(adapter.kind for adapter in known_adapters())
    text = f"this version cannot rebuild a {kind!r}; known: {known}"
    raise UnsupportedError("", text, "hand the adapter of another kind to consilience.register_adapter first")


def has_labels(posterior: Posterior) -> bool:
    """Return whether the components of a posterior have labels, by the adapter of its kind."""
    adapter = adapter_of(posterior)
    return adapter is not None and adapter.components == "labelled"


def register_adapter(adapter: Adapter) -> None:
    """Take in and give back fitted models of one more class, in this process.

    Fusing, saving, loading and evaluating such models then work as for the classes of this library. A process that only
    reads their files needs the adapter too, to rebuild a model. ``consilience.testing.check_adapter`` holds it to the
    laws.

    Parameters
    ----------
    adapter : Adapter
        The adapter. One that was registered for the same kind before is replaced.

    Raises
    ------
    OptionError
        For anything but an adapter, and for a kind or a class of models that this library has an adapter for.
    """
    if not isinstance(adapter, Adapter):
        raise OptionError("adapter", f"expected an instance of a subclass of Adapter, found {adapter!r:.80}")
    if problems := adapter.declaration_problems():
        raise OptionError("adapter", f"{problems[0]}")
    models = (adapter.library, adapter.class_name)
    for other in known_adapters():
        is_same_class = models == (other.library, other.class_name)
        if (other.kind == adapter.kind and other in ADAPTERS) or (other.kind != adapter.kind and is_same_class):
            raise OptionError("adapter", f"there is one for {other.kind} already, a {other.library} {other.class_name}")
    _REGISTERED[:] = [*(other for other in _REGISTERED if other.kind != adapter.kind), adapter]
    REGISTERED_PACKAGES.add(adapter.library)
