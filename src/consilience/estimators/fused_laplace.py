"""The product of Laplace approximations of laplace-torch, as a normal distribution of a network's weights.

It has no network: ``consilience.written_like(fused, like)`` puts it into a copy of any of the approximations that were
fused, which then predicts. Fusing approximations in memory does so by itself.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from consilience.checks import AnyArray, Array, symmetric_part
from consilience.core.progress import seeded


@dataclass(frozen=True, eq=False)
class FusedLaplace:
    """A normal distribution N(mean, (information + diag(prior_precision))^-1) of the weights of a network.

    Parameters
    ----------
    kind : str
        The class that was fused, such as ``laplace.FullLLLaplace``.
    weights : mapping of str to tuple of int
        Shapes of the weights by name, in their order.
    mean : ndarray of shape (q,)
        The mean of all weights.
    information : ndarray of shape (q, q)
        Precision without the prior's.
    prior_precision, prior_mean : ndarray of shape (q,)
        The prior, counted once.
    n_data : float
        Rows of all sites.
    parameters : mapping of str to JSON values
        Likelihood, noise, temperature and prior, as laplace-torch has them.
    """

    kind: str
    weights: Mapping[str, tuple[int, ...]]
    mean: Array = field(repr=False)
    information: Array = field(repr=False)
    prior_precision: Array = field(repr=False)
    prior_mean: Array = field(repr=False)
    n_data: float
    parameters: Mapping[str, Any] = field(repr=False)

    @property
    def estimator_kind(self) -> str:
        """The kind of estimator that it stands for."""
        return self.kind

    @property
    def posterior_precision(self) -> Array:
        """The precision (q, q)."""
        precision: Array = self.information + np.diag(self.prior_precision)
        return precision

    @property
    def posterior_covariance(self) -> Array:
        """The covariance (q, q)."""
        covariance: Array = np.linalg.inv(self.posterior_precision).astype(np.float64, copy=False)
        return symmetric_part(covariance)

    def arrays(self) -> dict[str, Array]:
        """Return the means of the weights by name, in their shapes."""
        ends = np.cumsum([prod(shape) for shape in self.weights.values()])[:-1]
        parts = np.split(self.mean, ends)
        return {name: part.reshape(shape) for (name, shape), part in zip(self.weights.items(), parts, strict=True)}

    def sample(self, n_samples: int = 100, rng: int | np.random.Generator = 0) -> Array:
        """Return draws of all weights (n_samples, q).

        Parameters
        ----------
        n_samples : int, default 100
            Number of draws.
        rng : int or numpy.random.Generator, default 0
            Randomness.
        """
        noise = seeded(rng)[1].standard_normal((len(self.mean), n_samples))  # (q, n_samples)
        # With Lam = L L^T, L^-T z has the covariance Lam^-1.
        draws: Array = self.mean + np.linalg.solve(np.linalg.cholesky(self.posterior_precision).T, noise).T
        return draws

    def copy_into(self, like: Any) -> Any:
        """Return a copy of an approximation of laplace-torch with this mean, curvature and prior.

        Its loss is not a number, and with it the marginal likelihood: no site knows the loss at the fused mean. A batch
        of data that a last-layer approximation keeps of its site stays out.
        """
        mean = like.mean.detach().new_tensor(self.mean)
        scale = float(self.parameters["sigma_noise"]) ** 2 * float(self.parameters["temperature"])
        curvature = like.H.detach().new_tensor(self.information * scale)
        # The memo of deepcopy puts the new mean and curvature, which have no graph, in place of the old ones.
        memo: dict[int, Any] = {id(like.mean): mean, id(like.H): curvature}
        if getattr(like, "data", None) is not None:
            memo[id(like.data)] = None
        written = copy.deepcopy(like, memo)
        written.mean, written.H = mean, curvature
        if hasattr(written, "data"):
            written.data = None
        written.sigma_noise = float(self.parameters["sigma_noise"])
        written.temperature = float(self.parameters["temperature"])
        written.prior_precision = _shared(mean, self.prior_precision)
        written.prior_mean = _shared(mean, self.prior_mean)
        written.n_data, written.loss = round(self.n_data), float("nan")
        _renew_hook(written.model)
        return written

    def write_weights(self, values_of: Mapping[str, AnyArray]) -> None:
        """Set tensors of a network, by name, to the means of the weights."""
        for name, array in self.arrays().items():
            target = values_of[name].detach()
            target.copy_(target.new_tensor(array))


def _shared(mean: Any, values: Array) -> Any:
    """Return numbers (q,) as a tensor, of one entry where all are the same."""
    return mean.new_tensor(values[:1] if np.all(values == values[0]) else values)


def _renew_hook(network: Any) -> None:
    """Let the copy of an extractor of features keep its own features: a copied hook writes to those of the original."""
    name = getattr(network, "_last_layer_name", None)
    if name is None or not hasattr(network, "set_last_layer"):
        return
    hooks = network.last_layer._forward_hooks
    for key in [key for key, hook in hooks.items() if "_get_hook" in getattr(hook, "__qualname__", "")]:
        del hooks[key]
    network._features.clear()
    network.set_last_layer(name)
