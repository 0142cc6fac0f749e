"""The teacher of the default fusion: what all sites answer together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from consilience.checks import Array
from consilience.networks.choice.answers import as_probabilities
from consilience.networks.choice.sites import Sites
from consilience.networks.classes.shares import class_shares, restore_prior
from consilience.networks.classes.stationary import stationary_posterior


@dataclass(frozen=True, eq=False)
class Teacher:
    """The ensemble of all sites' networks.

    Where every site says the counts of its classes it is exact under label shift: the fixed point of
    q(c) = sum_j p_j(c | x) sum_c' w_jc' q(c'), see ``classes.stationary``. Without counts it is the mean of the sites'
    probabilities by their weights, and of networks that do not classify, the mean of their outputs.

    Parameters
    ----------
    sites : Sites
        In the order in which outputs are given.
    classifies : bool
        Whether outputs are logits or probabilities of classes.
    """

    sites: Sites
    classifies: bool

    def answers(self, outputs: Sequence[Array]) -> Array:
        """Return the class probabilities (n, C), or mean outputs (n, k), for the outputs (n, k) of every site."""
        if not self.classifies:
            mean: Array = np.einsum("j,jnk->nk", self.sites.weights, np.stack(outputs))
            return mean
        probabilities = np.stack([as_probabilities(of_site) for of_site in outputs])  # (J, n, C)
        counts = self.sites.class_counts
        if counts is None:
            weighted: Array = np.einsum("j,jnc->nc", self.sites.weights, probabilities)
            return weighted
        for number, description in enumerate(self.sites.descriptions):
            if description is not None and description.class_prior == "removed":
                probabilities[number] = restore_prior(probabilities[number], counts[number])
        shares, _ = class_shares(counts, self.sites.weights)
        stationary: Array = stationary_posterior(
            torch.as_tensor(probabilities), torch.as_tensor(shares), torch.as_tensor(counts.sum(axis=0))
        ).numpy()
        return stationary

    def head_targets(self, outputs: Sequence[Array]) -> Array:
        """Return what a head is fitted to: centred logits (n, C), each class averaged by the sites' shares of it."""
        if not self.classifies:
            return self.answers(outputs)
        logarithms = np.stack([np.log(np.maximum(as_probabilities(of_site), 1e-12)) for of_site in outputs])
        centred = logarithms - logarithms.mean(axis=2, keepdims=True)
        counts = self.sites.class_counts
        if counts is None:
            targets: Array = np.einsum("j,jnc->nc", self.sites.weights, centred)
            return targets
        shares, _ = class_shares(counts, self.sites.weights)
        by_class: Array = np.einsum("jc,jnc->nc", shares, centred)
        return by_class
