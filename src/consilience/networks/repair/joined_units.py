"""Joined units: which means of a model's outputs the channels of a fused layer stand for.

A model of which several units are joined in one slot has no aligned form: its layers would read means of its own units,
and answer otherwise than it does. So a refit asks the models as they are, and the means over their joined units are its
targets (`refit` with ``maps``), each unit counting as much as any other of its slot, by its model's weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from consilience.checks import Array
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Transport, move_axis


def joined_layers(
    symmetry: Symmetry,
    transports: Sequence[Mapping[str, Transport]],
    units: Sequence[Mapping[str, int]],
    weights: Array,
) -> tuple[dict[str, list[Array]], dict[str, Array]]:
    """Return the maps of the models' outputs, and the weight of every model in every channel, by the layer's name.

    Layers whose outputs do not move have no maps, and all models have their weights there.

    Parameters
    ----------
    symmetry : Symmetry
        Of the networks.
    transports : sequence of mappings of str to Transport, of length n_models
        By model and group, which units are joined in which slots.
    units : sequence of mappings of str to int, of length n_models
        Number of units of every group, by model.
    weights : array of shape (n_models,)
        Weight of each model.

    Returns
    -------
    maps : dict of str to list of arrays of shape (channels, k_i)
        For every model the means over its joined outputs.
    shares : dict of str to array of shape (n_models, channels)
        The weights, which sum to 1 in every channel that any model has.
    """
    maps: dict[str, list[Array]] = {}
    shares: dict[str, Array] = {}
    for key, layout in symmetry.layouts.items():
        path, _, name = key.rpartition(".")
        axis = next((axis for axis in layout.axes if axis.moves and axis.side != "input"), None)
        if name != "weight" or axis is None:
            continue
        of_layer, n_members = [], []
        for model_transports, model_units, weight in zip(transports, units, weights.tolist(), strict=True):
            outputs = np.eye(axis.length(model_units))  # (k_i, k_i)
            means = move_axis(outputs, 0, axis, model_transports, model_units)  # (channels, k_i)
            of_layer.append(means)
            n_members.append(weight * np.count_nonzero(means, axis=1))
        total = np.sum(n_members, axis=0)  # (channels,)
        maps[path] = of_layer
        shares[path] = np.stack(n_members) / np.where(total > 0, total, 1.0)
    return maps, shares
