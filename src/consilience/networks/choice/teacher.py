"""The teacher of the default fusion: what all sites answer together.

**How likely an input is at each site, by the moments that the sites describe**: weights of a regression's ensemble.

Where sites differ in their inputs and not in what follows from them (covariate shift), E[y | x] = sum_j p(j | x) f_j(x)
with p(j | x) proportional to n_j p_j(x) and f_j the regression of site j near its own inputs. A network far from what
it was trained on extrapolates, and a mean that weighs it by n alone is led astray there: over the networks of
temperatures by region (experiments/network_battery, first half) R^2 is 80.2 % by n alone, 81.3 by densities, and 80.4
that of the best site.

p_j is the Gaussian of the described mean and covariance F^T F + diag(r) (`Moments`), to which a share of the pooled
variances is added. Densities of many coordinates are sharper than what is known of them, so that logarithms are divided
by a temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor

from consilience.checks import Array
from consilience.networks.choice.sites import Sites
from consilience.networks.classes.logit_adjustment import log_class_counts
from consilience.networks.classes.logits import SMALLEST_PROBABILITY, as_probabilities
from consilience.networks.classes.shares import class_shares
from consilience.networks.classes.stationary import MIXING, stationary_posterior
from consilience.networks.descriptions.description import Moments
from consilience.networks.descriptions.moments import pooled_moments
from consilience.networks.example import Example


@dataclass(frozen=True, eq=False)
class Teacher:
    """The ensemble of all sites' networks.

    Where every site says the counts of its classes it is exact under label shift: the fixed point of
    q(c) = sum_j p_j(c | x) sum_c' w_jc' q(c'), see ``classes.stationary``. Where these are estimated it is as good as
    they are; without either it is the mean of the sites' probabilities by their weights. Several outputs have each the
    counts of its own classes, where sites describe them. Of networks that do not classify it is the mean of their
    outputs, each weighted by how likely the input is at its site where sites describe the moments of their inputs.
    """

    sites: Sites  # in the order in which outputs are given
    classifies: bool  # whether outputs are logits or probabilities of classes
    # Columns of every output, and whether it classifies, for networks of several; empty for one output.
    heads: tuple[tuple[slice, bool], ...] = ()

    def answers(self, outputs: Array, inputs: Tensor | Example | None = None) -> Array:
        """Return the class probabilities (n, C), or mean outputs (n, k), for the outputs (J, n, k) of all sites.

        Networks that do not classify are weighted by the inputs, where these are given: (n, ...), or (n / P, ...) for
        outputs at P positions of each. Several outputs, each answered by itself, stand side by side.
        """
        if self.heads:
            of_heads = [
                replace(self, sites=self.sites.of_output(place), classifies=classifies, heads=()).answers(
                    outputs[..., columns], inputs
                )
                for place, (columns, classifies) in enumerate(self.heads)
            ]
            together: Array = np.concatenate(of_heads, axis=1)
            return together
        if not self.classifies:
            mean: Array = np.einsum("jn,jnk->nk", self._local_weights(outputs.shape[1], inputs), outputs)
            return mean
        probabilities = np.stack([as_probabilities(of_site) for of_site in outputs])  # (J, n, C)
        counts = self.sites.ensemble_counts
        if counts is None or counts.shape[1] != probabilities.shape[2]:
            weighted: Array = np.einsum("j,jnc->nc", self.sites.weights, probabilities)
            return weighted
        removed = [d is not None and d.class_prior == "removed" for d in self.sites.descriptions]
        return stationary_answers(probabilities, counts, removed, self.sites.weights)

    def _local_weights(self, n: int, inputs: Tensor | Example | None) -> Array:
        """Return the weights (J, n) of the sites at n inputs: by densities where all describe theirs, else constant.

        Of fewer inputs each has several rows.
        """
        weights, said = self.sites.weights, self.sites.descriptions
        local = np.repeat(weights[:, None], n, axis=1)
        voting = np.flatnonzero(weights > 0)
        moments = [one.inputs for number in voting if (one := said[number]) is not None and one.inputs is not None]
        if not isinstance(inputs, Tensor) or len(moments) < len(voting) or not inputs.is_floating_point():
            return local
        rows = inputs.reshape(len(inputs), -1).to(device="cpu", dtype=torch.float64).numpy()
        local[voting] = np.repeat(site_posterior(moments, weights[voting], rows), n // len(inputs), axis=1)
        return local

    def head_targets(self, outputs: Array, inputs: Tensor | Example | None = None) -> Array:
        """Return what a head is fitted to: centred logits (n, C), each class averaged by the sites' shares of it."""
        if not self.classifies:
            return self.answers(outputs, inputs)
        logarithms = np.stack(
            [np.log(np.maximum(as_probabilities(of_site), SMALLEST_PROBABILITY)) for of_site in outputs]
        )
        centred = logarithms - logarithms.mean(axis=2, keepdims=True)
        counts = self.sites.class_counts
        if counts is None:
            targets: Array = np.einsum("j,jnc->nc", self.sites.weights, centred)
            return targets
        by_class: Array = np.einsum("jc,jnc->nc", class_shares(counts, self.sites.weights), centred)
        return by_class


def stationary_answers(
    probabilities: Array, counts: Array, are_removed: Sequence[bool], weights: Array | None = None
) -> Array:
    """Return the stationary ensemble (n, C) of the sites' probabilities (J, n, C), with counts of classes (J, C).

    Where a site's probabilities lack the frequencies of its classes (`are_removed`), these are put back. `weights` (J,)
    are the sites' shares in classes that nobody holds, by default those in all counts.
    """
    logarithms = np.log(np.maximum(probabilities, SMALLEST_PROBABILITY))
    logarithms += np.where(are_removed, 1.0, 0.0)[:, None, None] * log_class_counts(counts)[:, None]
    answers = torch.log_softmax(torch.as_tensor(logarithms), dim=2).exp()
    shares, prior = torch.as_tensor(class_shares(counts, weights)), torch.as_tensor(counts.sum(axis=0) / counts.sum())
    stationary: Array = stationary_posterior(answers, shares, prior, MIXING).numpy()
    return stationary


VARIANCE_SHARE = 0.02
"""Share of the pooled variance of a coordinate that is added to each site's: that with which ensembles by densities
were compared over 26 fusions of image classifiers."""
COORDINATES_PER_DEGREE = 20
"""The temperature is the number of coordinates over this, 1 at least: in the same fusions d / 20 was above 1 by 0.5 to
2 points under skew, and by 7 where sites are strong and weak. At 8 coordinates any of 1 to 10 has the same R^2."""


def site_posterior(moments: Sequence[Moments], weights: Array, inputs: Array) -> Array:
    """Return p(j | x) (J, n) of each site for inputs (n, d), given the moments of the sites' inputs.

    `weights` (J,) are the prior; a site of weight 0 has probability 0. Columns sum to 1.

    Examples
    --------
    >>> left, right = (Moments(100, np.array([mean]), np.zeros((0, 1)), np.ones(1)) for mean in (-3.0, 3.0))
    >>> site_posterior([left, right], np.array([0.5, 0.5]), np.array([[-3.0], [0.0]])).round(3).tolist()
    [[1.0, 0.5], [0.0, 0.5]]
    """
    _, _, pooled_variance = pooled_moments(moments)
    added = VARIANCE_SHARE * np.where(pooled_variance > 0, pooled_variance, 1.0)
    temperature = max(1.0, inputs.shape[1] / COORDINATES_PER_DEGREE)
    with np.errstate(divide="ignore"):
        prior = np.log(weights)[:, None]
    posterior: Array = softmax(
        np.stack([_log_density(of_site, added, inputs) for of_site in moments]) / temperature + prior, axis=0
    )
    return posterior


def _log_density(moments: Moments, added: Array, inputs: Array) -> Array:
    """Return log N(x; m, F^T F + diag(r + added)) (n,) up to a constant, by Woodbury's identity in the rank of F."""
    variances = moments.residual + added
    scaled = (inputs - moments.mean) / np.sqrt(variances)  # (n, d)
    factor = moments.factor / np.sqrt(variances)  # (rank, d)
    triangle = np.linalg.cholesky(np.eye(len(factor)) + factor @ factor.T)
    explained = np.linalg.solve(triangle, factor @ scaled.T)  # (rank, n)
    distances = np.square(scaled).sum(axis=1) - np.square(explained).sum(axis=0)
    log_determinant = np.log(variances).sum() + 2.0 * np.log(np.diag(triangle)).sum()
    density: Array = -0.5 * (distances + log_determinant)
    return density
