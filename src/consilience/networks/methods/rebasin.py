"""Git Re-Basin: weight matching of any number of networks of the same widths, by weights or by activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from consilience.checks import Array, is_count
from consilience.core.progress import Progress
from consilience.matching.nested_assignment import assign_nested
from consilience.networks.method import Alignment, NetworkEnsemble, NetworkMethod
from consilience.networks.methods.weight_matching.match import matched
from consilience.networks.symmetry.transport import Injection

Cost = Literal["weights", "activations", "correlation"]


@dataclass(frozen=True)
class ReBasin(NetworkMethod):
    """Permute the units of all networks so that their weights, or what their units give, come closest, and average.

    Parameters
    ----------
    cost
        "weights" descends the sum of squared distances of all pairs of models (weight matching; merge-many for more
        than two). "activations" maximises the mean product of what matched units give on unlabeled inputs, group by
        group, to the reference model; "correlation" their correlation.
    restarts
        Descents; the first from the models as they are, further ones from random orders of units. The lowest objective
        is kept.
    max_passes
        Passes over all models at most.

    References
    ----------
    Ainsworth, Hayase, Srinivasa (2023), "Git Re-Basin: Merging models modulo permutation symmetries", ICLR.
    """

    name: ClassVar[str] = "rebasin"
    summary: ClassVar[str] = "permute units so that the networks' weights come closest, and average (Git Re-Basin)"
    needs: ClassVar[str] = "networks of the same widths; unlabeled inputs for cost=activations or correlation"
    gives: ClassVar[str] = "one network of the same widths"
    paper: ClassVar[str] = "ainsworth2023"

    cost: Cost = "weights"
    restarts: int = 1
    max_passes: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        known = ("weights", "activations", "correlation")
        self.require("cost", self.cost in known, "'weights', 'activations' or 'correlation'")
        self.require("restarts", is_count(self.restarts), "a positive integer")
        self.require("max_passes", is_count(self.max_passes), "a positive integer")

    @property
    def wants_activations(self) -> bool:
        """Whether units are compared by what they give."""
        return self.cost != "weights"

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return permutations."""
        if self.wants_activations:
            return _by_activations(ensemble, self.cost == "correlation")
        starts = ["identity", *["random"] * (self.restarts - 1)]
        return matched(ensemble, starts, self.max_passes, rng, progress)


def _by_activations(ensemble: NetworkEnsemble, correlation: bool) -> Alignment:
    """Return, for every group, the permutations to the reference that maximise products of what units give."""
    given = ensemble.activations or ()
    target = given[ensemble.reference]
    symmetry = ensemble.symmetry
    transports: list[dict[str, Injection]] = []
    total = 0.0
    for model, network in zip(given, ensemble.networks, strict=True):
        own: dict[str, Injection] = {}
        for top in (name for name, group in symmetry.by_name.items() if group.parent is None):
            names = [top, *(child.name for child in symmetry.children(top))]
            worth = {n: _products(model.get(n), target.get(n), network.units[n], correlation) for n in names}
            found = assign_nested(-worth[top], {name: -worth[name] for name in names[1:]})
            for name, slots in ((top, found.outer), *found.inner.items()):
                own[name] = Injection(slots, len(slots))
                total += float(worth[name][np.arange(len(slots)), slots].sum())
        transports.append(own)
    return Alignment(tuple(transports), -total)


def _products(one: Array | None, other: Array | None, units: int, correlation: bool) -> Array:
    """Return mean products or correlations (k, k) of what units give; where nothing is known, units stay."""
    if one is None or other is None:
        return np.eye(units)
    if correlation:
        one, other = _standardized(one), _standardized(other)
    return one @ other.T / one.shape[1]


def _standardized(values: Array) -> Array:
    """Return rows of mean 0 and deviation 1; units that always give the same become 0."""
    centred = values - values.mean(axis=1, keepdims=True)
    deviation = centred.std(axis=1, keepdims=True)
    return np.where(deviation > 0, centred / np.where(deviation > 0, deviation, 1.0), 0.0)
