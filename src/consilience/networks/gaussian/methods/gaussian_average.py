"""Kullback-Leibler barycenter of Gaussian networks whose units were matched: averages of natural parameters.

By (4) of Claici et al. 2020, the barycenter of Gaussians N(m_j, v_j) with weights w_j has averaged natural parameters:

    1 / v = sum_j w_j / v_j / W,   m / v = sum_j w_j m_j / v_j / W,   W = sum_j w_j,

over the models j that have the units at both ends of a weight. Every weight is averaged once, after all groups are
matched. (The Wasserstein barycenter, the mean of means and of standard deviations, is the plain average of Gaussian
networks.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from consilience.checks import AnyArray, Array
from consilience.networks.gaussian.gaussian_arrays import DEVIATION, is_deviation
from consilience.networks.method import NetworkEnsemble, owned_entries
from consilience.networks.network import Network, convert_like, to_numpy
from consilience.networks.symmetry.axes import Layout
from consilience.networks.symmetry.transport import Transport, as_stored, laid_out, move_axis

Outgoing = Literal["sum", "share"]
"""What outgoing weights count: as averaged, or times the share of models that have the sender."""
Lacking = Literal["prior", "off"]
"""What weights are whose ends no model has both: drawn from the prior, or off."""

OFF_VARIANCE_RATIO = 1e-8
"""Least variance of a weight, and that of a weight that is off, relative to the median variance of its array. Chosen by
hand: such a weight is nearly a point, and precisions stay far from overflow. Nobody has measured other values."""


def natural_parameters(network: Network, key: str) -> tuple[Array, Array]:
    """Return m / v and 1 / v of a parameter's weights, dense; zero where there is no weight (grouped convolutions)."""
    layout = network.symmetry.layouts[key]
    precision = 1.0 / to_numpy(network.working[key + DEVIATION]) ** 2
    return laid_out(to_numpy(network.working[key]) * precision, layout), laid_out(precision, layout)


def natural_average(
    ensemble: NetworkEnsemble,
    transports: Sequence[Mapping[str, Transport]],
    priors: Mapping[str, float],
    outgoing: Outgoing = "share",
    lacking: Lacking = "off",
    row_weights: Mapping[str, Array] | None = None,
) -> dict[str, AnyArray]:
    """Return the arrays of the fused Gaussian network, given the transports of its models and prior variances.

    Where the sending unit of a weight is in n of the J models that have the receiving unit, "share" multiplies the
    average by n / J, which averages the models' logits, apart from the output biases, where no units are merged. "sum"
    leaves it as it is, as published, so that a unit of one model alone counts as much as one that all share. Weights
    between two units that no model has both of are drawn from the prior N(0, v), or "off", a point at zero.
    `row_weights` (J, rows) are, for a parameter whose rows do not move (those of the classes), the weights of the
    networks in the average of each row, in place of their one weight.
    """
    first = ensemble.networks[0]
    fused: dict[str, AnyArray] = {}
    for name in first.working:
        if not is_deviation(name):
            continue
        key = name.removesuffix(DEVIATION)
        layout = ensemble.symmetry.layouts[key]
        # Of the parameter's shape, dense: sums of w m / v and w / v, and the weight of the models that own both ends of
        # a weight, and of those that own its receiving end.
        linear, precision, mass, receiver_mass = _weighted_sums(
            ensemble, transports, key, layout, (row_weights or {}).get(key)
        )
        is_owned = mass > 0
        divisor = np.where(precision > 0, precision, 1.0)
        mean = linear / divisor
        variance = np.where(precision > 0, np.where(is_owned, mass, 1.0) / divisor, 0.0)
        if outgoing == "share":
            share = mass / np.where(receiver_mass > 0, receiver_mass, 1.0)  # n / J, by weight
            mean, variance = mean * share, variance * share**2
        positive = variance[variance > 0]
        floor = OFF_VARIANCE_RATIO * (float(np.median(positive)) if positive.size else priors[key])
        unowned_variance = priors[key] if lacking == "prior" else floor
        mean = as_stored(np.where(is_owned, mean, 0.0), layout)
        variance = as_stored(np.maximum(np.where(is_owned, variance, unowned_variance), floor), layout)
        fused[key], fused[name] = (
            convert_like(mean, first.working[key]),
            convert_like(np.sqrt(variance), first.working[name]),
        )
    return fused


def _weighted_sums(
    ensemble: NetworkEnsemble,
    transports: Sequence[Mapping[str, Transport]],
    key: str,
    layout: Layout,
    row_weights: Array | None = None,
) -> tuple[Array, Array, Array, Array]:
    """Return weighted sums of m / v and of 1 / v, and the weight of models that own both ends, and the receiver."""
    weights: Sequence[Any] = ensemble.weights.tolist()
    if row_weights is not None:
        weights = [of_model.reshape(-1, *(1,) * (len(layout.axes) - 1)) for of_model in row_weights]
    linear: Array = np.zeros(())
    precision, mass, receiver_mass = linear, linear, linear
    for network, moves, weight in zip(ensemble.networks, transports, weights, strict=True):
        natural = natural_parameters(network, key)
        owns_both, owns_receiver = np.ones(()), np.ones(())  # masks that broadcast to the parameter's shape
        for number, axis in enumerate(layout.axes):
            natural = tuple(move_axis(values, number, axis, moves, network.units) for values in natural)
            if axis.moves:
                shape = tuple(-1 if n == number else 1 for n in range(len(layout.axes)))
                owned = np.reshape(owned_entries(axis, moves, {}), shape)
                owns_both = owns_both * owned
                owns_receiver = owns_receiver if axis.side == "input" else owns_receiver * owned
        linear = linear + weight * natural[0] * owns_both
        precision = precision + weight * natural[1] * owns_both
        mass = mass + weight * np.broadcast_to(owns_both, natural[0].shape)
        receiver_mass = receiver_mass + weight * np.broadcast_to(owns_receiver, natural[0].shape)
    return linear, precision, mass, receiver_mass
