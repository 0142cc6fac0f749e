"""The adapter protocol: a library's fitted model described as a posterior, and rebuilt from one.

To take in another library, write one file with a class that gives ``kind``, ``library``, ``class_name``, ``describe``,
``rebuild`` and ``scores``, and add an instance to the table in ``table``; the laws in ``tests/posteriors`` then run
on it. An adapter recognises models by the names of their classes, so a library is imported only when a model is
rebuilt. An adapter of your own package is registered with ``consilience.register_adapter`` instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, final

import numpy as np

from consilience.checks import Json, Labels
from consilience.core.inputs import library_classes
from consilience.core.scores import Scores
from consilience.errors import InputError, Problem
from consilience.families import Family
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.mixture_density import MixtureDensity
from consilience.posteriors.posterior import Posterior

ASSUMED_SAMPLES = 1000.0
"""Observations that a model is taken to be fitted to when neither it nor the user says how many.

Such a posterior says so in its source, and is not fused unless all models are said to count alike (then any number
gives the same relative weights) or the true numbers are given. Chosen by hand; nobody has measured other values."""


class Adapter(ABC):
    """One class of fitted models, in and out."""

    kind: ClassVar[str]
    """Name of this kind of model in files and messages, such as ``sklearn.KMeans``."""
    library: ClassVar[str]
    """Top-level package that defines the class."""
    class_name: ClassVar[str]
    """Name of the class; subclasses are accepted too."""
    components: ClassVar[Literal["exchangeable", "labelled"]] = "exchangeable"
    """Whether components have no names, so that the fusion finds which are the same, or each has a label, such as the
    class of a classifier: then ``features.classes`` of the posterior names component k at position k, and components of
    one label are averaged, never permuted. Sites may have different labels; the fused model has them all."""
    takes_counts: ClassVar[bool] = False
    """Whether an observation is a row of word counts, given to ``scores`` as a sparse array."""
    has_vocabulary: ClassVar[bool] = False
    """Whether the columns are the words of a vocabulary, by which models of different vocabularies are aligned."""
    recommended: ClassVar[str] = "kl"
    """The method that ``method=None`` takes for such models."""
    recommended_options: ClassVar[Mapping[str, Json]] = {}
    """Options of the recommended method where they are not its defaults."""
    records_n_observations: ClassVar[bool] = True
    """Whether fitted models record how many observations they were fitted to. If not, ``describe`` is told the number,
    ``source["samples"]`` of its posterior is ``"given"`` or ``"assumed"``, and ``recount`` states another."""
    counts_are_rows: ClassVar[bool] = False
    """Whether the counts of all components add up to the rows of the data, so that a stated number can be checked."""
    centres_are_means: ClassVar[bool] = False
    """Whether components are centres, each the mean of its rows, whose squares are attached as ``inertia``."""
    follows_units: ClassVar[bool] = False
    """Whether components are laws of Gaussian data, so that a model of scaled data can be told in the data's own units
    (``scaling``). What is attached then has no units, but for `in_squared_units`."""
    follows_order: ClassVar[bool] = False
    """Whether components follow the order of columns without being laws of Gaussian data; who follows units does."""
    in_squared_units: ClassVar[tuple[str, ...]] = ()
    """Names of attached arrays in squared units of the data: numbers, or matrices (..., D, D)."""
    recombines: ClassVar[bool] = False
    """Whether ``recombine`` computes something from all sites, whichever of them have a component."""

    @abstractmethod
    def describe(self, model: Any, n_observations: float | None) -> Posterior:
        """Return the posterior over the components of a fitted model.

        Parameters
        ----------
        model : object
            A fitted model that ``accepts`` takes.
        n_observations : float or None
            Number of observations it was fitted to, for models that do not record it.
        """

    def unusable_components(self, model: Any) -> Labels:
        """Return the numbers of a fitted model's components that ``describe`` leaves out: nothing is known of them.

        Components without observations may have no parameters (NaN), or such that no density belongs to them.
        """
        return np.zeros(0, dtype=np.int64)

    def recount(self, posterior: Posterior, n_observations: float | None) -> Posterior:
        """Return what `posterior` would be had its model been fitted to another number of observations.

        Parameters
        ----------
        posterior : Posterior
            A posterior of this kind, of which models do not record the number.
        n_observations : float or None
            The number; None assumes one, as ``describe`` does.
        """
        raise InputError("n_observations", f"a {self.kind} records its own, so {n_observations} changes nothing in it")

    @abstractmethod
    def rebuild(self, posterior: Posterior) -> Any:
        """Return a fitted model with the components of `posterior`."""

    def refuse(self, ensemble: Ensemble) -> list[Problem]:
        """Return why these models, described as their kind is, cannot be fused into one of it; empty when they can."""
        return []

    def recombine(self, fused: Posterior, ensemble: Ensemble) -> Posterior:
        """Return `fused` with the quantities that its components share computed from all sites.

        Most models have nothing of the kind, since whatever is attached follows the matching. A sparse Gaussian process
        has: the joint law of its inducing values belongs to no single one of them.

        Parameters
        ----------
        fused : Posterior
            The fused components.
        ensemble : Ensemble
            What was fused.
        """
        return fused

    def n_columns(self, posterior: Posterior) -> int:
        """Return how many columns the data have that such models are scored on."""
        return int(getattr(posterior.family, "dim", 0))

    def mixture(self, posterior: Posterior) -> MixtureDensity | None:
        """Return the densities of data that `posterior` gives; None for models that are no mixtures of Gaussians."""
        return None

    @abstractmethod
    def scores(self, model: Any, data: Any) -> Scores:
        """Return the score of every observation under a fitted `model`, and the component it belongs to.

        The same data give the same scores, observation by observation in two models, so that differences can be paired.

        Parameters
        ----------
        model : object
            A fitted model of this class.
        data : ndarray of shape (n, D) or CSR array of shape (n, V)
            Finite rows in float64, or whole counts where ``takes_counts``.
        """

    @final
    def declaration_problems(self) -> list[str]:
        """Return what is wrong with what the class says of itself, a line each."""
        problems = [
            f"{name} must be a text, found {getattr(self, name, None)!r}"
            for name in ("kind", "library", "class_name")
            if not isinstance(getattr(self, name, None), str)
        ]
        if self.components not in ("exchangeable", "labelled"):
            problems.append(f"components must be 'exchangeable' or 'labelled', found {self.components!r}")
        return problems

    @final
    def accepts(self, model: object) -> bool:
        """Return whether `model` is of this class or a subclass."""
        return (self.library, self.class_name) in library_classes(model)

    @final
    def require_fitted(self, model: Any, attribute: str) -> None:
        """Raise InputError unless `model` has the attribute that fitting sets."""
        if not hasattr(model, attribute):
            raise InputError("", f"this {self.class_name} is not fitted yet", "call fit first", "E-UNFITTED")

    @final
    def require_family(self, posterior: Posterior, family: type[Family]) -> None:
        """Raise InputError unless the components of `posterior` are of the family that rebuilding this class needs."""
        if not isinstance(posterior.family, family):
            text = f"a {self.class_name} has {family.name} components, found {posterior.family}"
            raise InputError("", text, code="E-TYPE")


def set_sklearn_features(model: Any, posterior: Posterior, n_features: int) -> None:
    """Give a rebuilt estimator the number of columns, and their names where the originals had them."""
    model.n_features_in_ = n_features
    if posterior.features.from_columns:
        model.feature_names_in_ = np.array(posterior.features.names, dtype=object)
