"""Distance of batch normalisation from that of the models: what training mode makes of it.

In training mode a channel is divided by the deviation of the batch, so that its output has the deviation |gamma| and
the mean beta. With G and B the means of the models' |gamma_i| and beta_i, by their weights, over those that have the
unit,

    distance = sqrt(mean_c [ (|gamma_c| - G_c)^2 + (beta_c - B_c)^2 ] / mean_c G_c^2),

the worst over all layers of batch normalisation. It is 0 for anchored ones (``repair.anchor``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from consilience.checks import AnyArray, Array
from consilience.networks.network import to_numpy, working_precision

MAX_NORM_DISTANCE = 0.5
"""Beyond, channels in training mode are off by half of the models' size. Refits that were anchored have 0 to rounding;
without it, and with inputs of ten times the models' scale, 9. Chosen by hand."""


def norm_distance(fused: Mapping[str, AnyArray], models: Sequence[Mapping[str, AnyArray]], weights: Array) -> float:
    """Return how far gamma and beta of batch normalisation are from those of the models, in units of their gamma.

    Parameters
    ----------
    fused : mapping of str to array
        Arrays of the fused network.
    models : sequence of mappings of str to array, of length n_models
        Those of the models, with their units in its order.
    weights : array of shape (n_models,)
        Weight of each model.
    """
    paths = [key.removesuffix("running_var") for key in fused if key.endswith("running_var")]
    distances = [
        _of_layer(*(_affine(arrays, path) for arrays in (fused, *models)), weights=weights)
        for path in paths
        if f"{path}weight" in fused
    ]
    return max(distances, default=0.0)


def _affine(arrays: Mapping[str, AnyArray], path: str) -> Array:
    """Return |gamma| and beta (2, channels) of one layer."""
    gamma, beta = (to_numpy(working_precision(arrays[f"{path}{name}"])) for name in ("weight", "bias"))
    return np.stack([np.abs(gamma), beta])


def _of_layer(fused: Array, *models: Array, weights: Array) -> float:
    """Return the distance of one layer."""
    of_models = np.stack(models)  # (models, 2, channels)
    has_unit = (of_models != 0).any(axis=1)  # (models, channels)
    a = weights[:, None] * has_unit
    a = a / np.where(a.sum(axis=0) > 0, a.sum(axis=0), 1.0)
    means = np.einsum("ic,ipc->pc", a, of_models)  # G and B
    size = float(np.mean(means[0] ** 2))
    gap = float(np.mean(((fused - means) ** 2).sum(axis=0)))
    return (gap / size) ** 0.5 if size > 0 else 0.0
