"""Baselines for networks: federated averaging in one round, the prediction ensemble, and networks side by side.

Networks side by side in one wider network compute the mean of their outputs: every unit has a place of its own. Weights
between units of different networks are zero, and layers that make what all networks answer average over them
(``networks.method``), so nothing is fitted and nothing matched: J networks of equal widths in one of J times these are
their ensemble by means of logits. Networks of weight zero have no place.

Groups that layers mix, such as layer normalisation, can have no other width, and so no room for two networks. Arrays
that are no unit's, such as one slope of all units or a normalisation of the answers, are averaged, and then the answer
is not the mean: who uses it has to compare.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from consilience.checks import Array
from consilience.core.methods import Requirement
from consilience.core.progress import Progress
from consilience.errors import InputError, UnsupportedError
from consilience.networks.classes.shares import as_class_counts
from consilience.networks.method import Alignment, NetworkEnsemble, NetworkMethod
from consilience.networks.network import identity_transports
from consilience.networks.symmetry.transport import Injection, Transport

if TYPE_CHECKING:
    from consilience.networks.descriptions.description import Description


@dataclass(frozen=True)
class NetworkAverage(NetworkMethod):
    """Average the networks weight by weight, units as they are numbered: right for networks of one common start.

    theta = sum_i a_i theta_i, with a_i the weight of model i.

    References
    ----------
    McMahan et al. (2017), federated averaging, one round.
    """

    name: ClassVar[str] = "average"
    summary: ClassVar[str] = "average the networks weight by weight, units as they are numbered"
    needs: ClassVar[str] = "networks of the same widths, best of one common start"
    gives: ClassVar[str] = "one network of the same widths"
    paper: ClassVar[str] = "mcmahan2017"
    optional_symmetry: ClassVar[bool] = True

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return identity transports: units stay as they are numbered."""
        return Alignment(tuple(identity_transports(network.units) for network in ensemble.networks))


@dataclass(frozen=True)
class NetworkEnsembleMethod(NetworkMethod):
    """Keep all networks and average their predictions: the reference for accuracy, at the cost of all networks.

    Parameters
    ----------
    mean : {"probabilities", "logits", "stationary"}, optional
        What is averaged: class probabilities, logits, or probabilities by how likely an input comes from each site
        (`consilience.networks.classes.stationary`), which needs `class_counts`. Default: "stationary" where there are
        class counts, else "probabilities".
    class_counts : array_like of shape (n_models, n_classes), optional
        Observations of every class at the site of each model, in the order of the models. With weights, which stand for
        numbers of observations, only the proportions of each row count.
    """

    name: ClassVar[str] = "ensemble"
    summary: ClassVar[str] = "keep all networks and average what they answer"
    needs: ClassVar[str] = "modules of any architecture with the same outputs"
    gives: ClassVar[str] = "one module that asks all networks"
    paper: ClassVar[str] = "none: a baseline"
    keeps_models: ClassVar[bool] = True
    widths: ClassVar[bool] = True
    robust: ClassVar[None] = None  # type: ignore[misc]  # no option here, as `trim`
    trim: ClassVar[float] = 0.2  # type: ignore[misc]

    mean: Literal["probabilities", "logits", "stationary"] | None = None
    class_counts: Sequence[Sequence[float]] | None = None

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        is_mean = self.mean is None or self.mean in ("probabilities", "logits", "stationary")
        yield ("mean", is_mean, "'probabilities', 'logits' or 'stationary'")
        has_counts = self.class_counts is not None
        yield ("mean", has_counts or self.mean != "stationary", "another one where there are no class_counts")
        yield ("class_counts", not has_counts or self.mean in (None, "stationary"), "left out with such a mean")

    @property
    def resolved_mean(self) -> Literal["probabilities", "logits", "stationary"]:
        """What is averaged, by the counts where the option does not say."""
        return self.mean or ("probabilities" if self.class_counts is None else "stationary")

    def with_described_counts(self, descriptions: Sequence[Description | None]) -> NetworkEnsembleMethod:
        """Return the ensemble by the counts that all sites describe, where the caller asks for no other mean."""
        counts = [None if description is None else description.class_counts for description in descriptions]
        said = [of_site.tolist() for of_site in counts if of_site is not None]
        is_asked = self.mean is not None or self.class_counts is not None
        return replace(self, class_counts=said) if said and len(said) == len(counts) and not is_asked else self

    def site_class_counts(self, n_models: int, weights: Array | None) -> Array | None:
        """Return the observations of every class at every site (J, C); with weights (J,), rows that sum to them."""
        if self.class_counts is None:
            return None
        counts = as_class_counts(self.class_counts)
        if len(counts) != n_models:
            text = f"expected a row for each of {n_models} models, found {len(counts)}"
            raise InputError("class_counts", text, code="E-SHAPE")
        if weights is None:
            return counts
        totals = counts.sum(axis=1, keepdims=True)
        weighted: Array = counts * weights[:, None] / np.where(totals > 0, totals, 1.0)
        return as_class_counts(weighted)

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return identity transports; nothing is averaged."""
        return Alignment(tuple(identity_transports(network.units) for network in ensemble.networks))


@dataclass(frozen=True)
class SideBySide(NetworkMethod):
    """Put the networks that have a weight side by side in one wider network.

    The default fusion makes candidates by it; it has no name among the methods.
    """

    name: ClassVar[str] = "side_by_side"
    summary: ClassVar[str] = "put networks side by side in a wider one, which computes the mean of their outputs"
    needs: ClassVar[str] = "networks of one architecture, and as many units as those of all that have a weight"
    gives: ClassVar[str] = "one network"
    paper: ClassVar[str] = "none"
    widths: ClassVar[bool] = True

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return transports to places of their own; those of networks of weight zero share the first ones.

        Fewer places than units are an `UnsupportedError`.
        """
        placed = dict.fromkeys(ensemble.target_units, 0)  # units so far
        transports: list[Mapping[str, Transport]] = []
        for network, weight in zip(ensemble.networks, ensemble.weights.tolist(), strict=True):
            moves: dict[str, Transport] = {}
            for group, width in ensemble.target_units.items():
                n_units = network.units[group]
                first = placed[group] if weight > 0 else 0
                if first + n_units > width:
                    raise UnsupportedError(f"group {group} has no room for the units of {network.name} next to others'")
                moves[group] = Injection(np.arange(first, first + n_units), width)
                placed[group] += n_units if weight > 0 else 0
            transports.append(moves)
        return Alignment(tuple(transports))
