"""Units without a partner, and joined units: which models' answers a unit of the fused network should have.

A refit aims at the mean of the models' answers in every unit. Where aligned units answer alike that is what all of them
compute; where they do not, the mean is like none of them, and what later layers read is lost. So a unit whose members'
activations correlate by less than `MIN_CORRELATION` in the mean over pairs keeps the answers of one member, models
taking turns by their weights; the layers after it are fitted to the mean of all models again.

A model of which several units are joined in one slot has no aligned form: its layers would read means of its own units,
and answer otherwise than it does. So a refit asks the models as they are, and the means over their joined units are its
targets (`refit` with ``maps``), each unit counting as much as any other of its slot, by its model's weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from torch import nn

from consilience.checks import Array
from consilience.networks.activations import activations
from consilience.networks.symmetry.axes import Axis
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Transport, move_axis

MIN_CORRELATION = 0.5
"""Mean correlation below which members are no partners. Two MobileNets, whose matched units correlate by 0.0 to 0.4,
refitted on 1,000 real images: 71.8 % with the mean everywhere, 75.2 with a bound of 0.7, 75.3 with one member in every
unit (the models 84.6). Four ResNet-8 on one set of matched images: 74.0, with 0.3 76.0, with 0.5 78.0, with one member
76.9; on another set 73.1 with 0.5, which is no gain, so that the default does it for depthwise convolutions alone."""


def layer_shares(aligned: Sequence[nn.Module], weights: Array, symmetry: Symmetry, inputs: object) -> dict[str, Array]:
    """Return the weight of every model in every output channel of a layer (models, channels), by the layer's name.

    Layers whose units all have partners, or are not known to have none, are left out.
    """
    recorded = [activations(module, symmetry, inputs) for module in aligned]
    shares = {
        group: unit_shares(np.stack([of_model[group] for of_model in recorded]), weights) for group in recorded[0]
    }
    units = symmetry.units({name: tuple(values.shape) for name, values in aligned[0].state_dict().items()})
    by_layer = {}
    for path, axis in _moving_outputs(symmetry):
        parts = [
            segment.along(shares[segment.group][model])
            if segment.group in shares
            else np.full(segment.length(units), weights[model])
            for model in range(len(weights))
            for segment in axis.segments
        ]
        of_layer = np.concatenate(parts).reshape(len(weights), -1)
        if not np.array_equal(of_layer, np.broadcast_to(weights[:, None], of_layer.shape)):
            by_layer[path] = of_layer
    return by_layer


def unit_shares(points: Array, weights: Array) -> Array:
    """Return the weight of every model in every unit (models, K): all of it one model's where there is no partner.

    Points (n_models, K, m) are activations of the aligned models' units; constant for units that a model does not have.

    Examples
    --------
    >>> alike, unlike = np.array([[1.0, 2, 3], [1, -2, 1]]), np.array([[2.0, 4, 6], [-1, 0, 1]])
    >>> unit_shares(np.stack([alike, unlike]), np.array([0.5, 0.5])).tolist()
    [[0.5, 1.0], [0.5, 0.0]]
    """
    centred = points - points.mean(axis=2, keepdims=True)
    lengths = np.linalg.norm(centred, axis=2)  # (models, K)
    # Constant but for rounding: a unit that the model lacks, or that is silent.
    has_unit = lengths > np.finfo(np.float64).eps ** 0.5 * lengths.max(axis=1, keepdims=True)
    has_unit &= weights[:, None] > 0  # a model of weight zero has no say
    rows = np.where(has_unit[..., None], centred / np.maximum(lengths, np.finfo(np.float64).tiny)[..., None], 0.0)
    n_members = has_unit.sum(axis=0)  # (K,)
    # sum_{i != j} <x_i, x_j> = |sum_i x_i|^2 - number of members
    total = np.square(rows.sum(axis=0)).sum(axis=1) - n_members
    correlation = total / np.maximum(n_members * (n_members - 1), 1)
    shares = np.repeat(weights[:, None], points.shape[1], axis=1)
    taken = np.zeros(len(weights))
    for unit in np.flatnonzero((n_members > 1) & (correlation < MIN_CORRELATION)):
        # The member that is furthest behind its share of the units given so far.
        behind = np.where(has_unit[:, unit], weights * (taken.sum() + 1.0) - taken, -np.inf)
        owner = int(np.argmax(behind))
        taken[owner] += 1.0
        shares[:, unit] = 0.0
        shares[owner, unit] = 1.0
    return shares


def _moving_outputs(symmetry: Symmetry) -> Iterator[tuple[str, Axis]]:
    """Yield the path of every layer whose outputs move, with their axis."""
    for key, layout in symmetry.layouts.items():
        path, _, name = key.rpartition(".")
        axis = next((axis for axis in layout.axes if axis.moves and axis.side != "input"), None)
        if name == "weight" and axis is not None:
            yield path, axis


def joined_layers(
    symmetry: Symmetry,
    transports: Sequence[Mapping[str, Transport]],
    units: Sequence[Mapping[str, int]],
    weights: Array,
) -> tuple[dict[str, list[Array]], dict[str, Array]]:
    """Return the maps of the models' outputs, and the weight of every model in every channel, by the layer's name.

    For every model a map (channels, k_i) is the means over its joined outputs; weights (n_models, channels) sum to 1 in
    every channel that any model has. Layers whose outputs do not move have no maps, and all models have their weights
    there.
    """
    maps: dict[str, list[Array]] = {}
    shares: dict[str, Array] = {}
    for path, axis in _moving_outputs(symmetry):
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
