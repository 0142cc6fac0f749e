"""Several Bayesian networks asked together: the mixture of their posteriors, a reference at the cost of all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience.bayesian.network import BayesianNetwork
from consilience.checks import Array


@dataclass(frozen=True, eq=False)
class BayesianEnsemble:
    """Networks side by side, whose predictive probabilities are averaged.

    Parameters
    ----------
    members
        The networks.
    weights
        What each counts (J,), summing to 1.
    """

    members: tuple[BayesianNetwork, ...]
    weights: Array

    def predict(
        self, inputs: Any, samples: int = 128, rng: int | np.random.Generator = 0, batch_size: int = 4096
    ) -> Array:
        """Return predictive probabilities (n, classes); `samples` of each member. Parameters as of the members."""
        children = np.random.default_rng(rng).spawn(len(self.members))
        parts = [
            weight * member.predict(inputs, samples, child, batch_size)
            for weight, member, child in zip(self.weights.tolist(), self.members, children, strict=True)
        ]
        total: Array = np.sum(parts, axis=0)
        return total
