"""Ensembles of Bayesian networks: the mixture of their posteriors, a reference that costs all of them.

The predictive distribution is p(y | x) = sum_j w_j p_j(y | x), the weighted mean of those of the J members.
"""

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
    members : tuple of BayesianNetwork
        The J networks, each with a module.
    weights : array of shape (J,)
        Weight of each member, summing to 1.
    """

    members: tuple[BayesianNetwork, ...]
    weights: Array

    def predict(
        self, inputs: Any, samples: int = 128, rng: int | np.random.Generator = 0, batch_size: int = 4096
    ) -> Array:
        """Return predictive probabilities (n, n_classes); see `BayesianNetwork.predict`.

        Parameters
        ----------
        inputs : Tensor or array_like of shape (n, ...)
            Inputs, as the modules take them.
        samples : int
            Samples of the weights of each member.
        rng : int or numpy.random.Generator
            Seed or generator; every member draws from a child of its own.
        batch_size : int
            Inputs in one forward pass.
        """
        children = np.random.default_rng(rng).spawn(len(self.members))
        weighted = [  # (n, n_classes) each
            weight * member.predict(inputs, samples, child, batch_size)
            for weight, member, child in zip(self.weights.tolist(), self.members, children, strict=True)
        ]
        mixture: Array = np.sum(weighted, axis=0)
        return mixture
