"""Git Re-Basin: weight matching and activation matching of networks of the same widths (Ainsworth et al. 2023).

Weight matching permutes the units of all models to minimise sum_{i < j} a_i a_j |theta_i - theta_j|^2 by coordinate
descent (``weight_matching``). For more than two models that is the published merge-many.

Activation matching maximises, for every group by itself, the mean product of the activations z of matched units,

    <P, Z_i Z_ref^T> / n,    Z (k, n) the activations of k units on n inputs,

one assignment per group, which is exact. With z standardised it is their correlation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from consilience.checks import Array, is_count
from consilience.core.methods import Requirement
from consilience.core.progress import Progress
from consilience.matching.assignment import assign_nested
from consilience.networks.method import Alignment, NetworkEnsemble, NetworkMethod
from consilience.networks.methods.weight_matching.match import match_weights
from consilience.networks.symmetry.transport import Injection

Cost = Literal["weights", "activations", "correlation"]


@dataclass(frozen=True)
class ReBasin(NetworkMethod):
    """Permute the units of all networks so that their weights, or what their units give, come closest, and average.

    Parameters
    ----------
    cost : {"weights", "activations", "correlation"}
        "weights" minimises the sum of squared distances of all pairs of models (weight matching; merge-many for more
        than two). "activations" maximises the mean product of the activations of matched units on unlabeled inputs,
        group by group, against the reference model; "correlation" their correlation. Default: "weights".
    restarts : int
        Number of descents; the first from the models as they are, further ones from random orders of units. The lowest
        objective is kept. Default: 1.
    max_iterations : int
        Passes over all models at most. Default: 100, as in the published code.

    References
    ----------
    Ainsworth, Hayase, Srinivasa (2023), "Git Re-Basin: Merging models modulo permutation symmetries", ICLR.
    """

    name: ClassVar[str] = "rebasin"
    summary: ClassVar[str] = "permute units so that the networks' weights come closest, and average (Git Re-Basin)"
    needs: ClassVar[str] = "networks of the same widths; unlabeled inputs for `cost=activations` or correlation"
    gives: ClassVar[str] = "one network of the same widths"
    paper: ClassVar[str] = "ainsworth2023"

    cost: Cost = "weights"
    restarts: int = 1
    max_iterations: int = 100

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        costs = ("weights", "activations", "correlation")
        yield "cost", self.cost in costs, "'weights', 'activations' or 'correlation'"
        yield "restarts", is_count(self.restarts), "a positive integer"
        yield "max_iterations", is_count(self.max_iterations), "a positive integer"

    @property
    def wants_activations(self) -> bool:
        """Whether units are compared by their activations."""
        return self.cost != "weights"

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return permutations of the units of all models."""
        if self.wants_activations:
            return _match_activations(ensemble, self.cost == "correlation")
        starts = ["identity", *["random"] * (self.restarts - 1)]
        return match_weights(ensemble, starts, self.max_iterations, rng, progress)


def _match_activations(ensemble: NetworkEnsemble, correlation: bool) -> Alignment:
    """Return, for every group, the permutations to the reference that maximise products of activations."""
    activations = ensemble.activations or ()  # by model and group (k, n)
    target = activations[ensemble.reference]
    symmetry = ensemble.symmetry
    transports: list[dict[str, Injection]] = []
    total = 0.0
    for model_activations, network in zip(activations, ensemble.networks, strict=True):
        model_transports: dict[str, Injection] = {}
        for top in (name for name, group in symmetry.by_name.items() if group.parent is None):
            names = [top, *(child.name for child in symmetry.children(top))]
            # Groups are independent, unlike in weight matching: activations do not depend on how others are numbered.
            gains = {
                name: _products(model_activations.get(name), target.get(name), network.units[name], correlation)
                for name in names
            }
            # Heads, and what lies inside them, are assigned together.
            assignment = assign_nested(-gains[top], {name: -gains[name] for name in names[1:]})
            for name, slots in ((top, assignment.outer), *assignment.inner.items()):
                model_transports[name] = Injection(slots, len(slots))
                total += float(gains[name][np.arange(len(slots)), slots].sum())
        transports.append(model_transports)
    return Alignment(tuple(transports), -total)  # an objective to minimise, like that of weight matching


def _products(first: Array | None, second: Array | None, n_units: int, correlation: bool) -> Array:
    """Return mean products or correlations (k, k) of activations (k, n).

    For groups whose activations are not known the identity is returned, so that units stay.
    """
    if first is None or second is None:
        return np.eye(n_units)
    if correlation:
        first, second = _standardize(first), _standardize(second)
    return first @ second.T / first.shape[1]


def _standardize(activations: Array) -> Array:
    """Return rows of mean 0 and deviation 1; the rows of dead units, whose correlation is 0 / 0, become 0."""
    centred = activations - activations.mean(axis=1, keepdims=True)
    deviation = centred.std(axis=1, keepdims=True)
    return np.where(deviation > 0, centred / np.where(deviation > 0, deviation, 1.0), 0.0)
