"""Git Re-Basin: weight matching and activation matching of networks of the same widths (Ainsworth et al. 2023).

Weight matching permutes the units of all models to minimise sum_{i < j} a_i a_j |theta_i - theta_j|^2 by coordinate
descent from several starts (``weight_matching``). For more than two models that is the published merge-many.
Activation matching is exact, group by group (``weight_matching.activations``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from consilience.checks import is_count
from consilience.core.methods import Requirement
from consilience.core.progress import Progress
from consilience.networks.method import Alignment, NetworkEnsemble, NetworkMethod
from consilience.networks.methods.weight_matching.activations import match_activations
from consilience.networks.methods.weight_matching.match import descent_starts, match_weights

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
        Number of descents: from the models as they are, from units matched by what they receive, then from random
        orders of units; and one more from units matched by their activations where there are inputs. The lowest
        objective is kept. Default: 3; the published code has the first alone.
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
    restarts: int = 3
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

    @property
    def starts_from_activations(self) -> bool:
        """Whether a descent starts from units matched by activations, where there are inputs."""
        return self.cost == "weights"

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return permutations of the units of all models."""
        if self.wants_activations:
            transports, total = match_activations(ensemble, self.cost == "correlation")
            return Alignment(tuple(transports), -total)  # an objective to minimise, like that of weight matching
        starts = descent_starts(ensemble, self.restarts)
        return match_weights(ensemble, starts, self.max_iterations, rng, progress)
