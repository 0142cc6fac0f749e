"""The average of Gaussian posteriors of networks whose units were matched, every weight once.

By natural parameters, the Kullback-Leibler barycenter of (4) of Claici et al. 2020: precisions and precision times mean
are averaged over the models that own both ends of a weight. The Wasserstein barycenter, the mean of means and of
standard deviations, is what `network_method.average` gives for Gaussian networks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from consilience.bayesian.gaussian_arrays import DEVIATION, is_deviation
from consilience.checks import AnyArray, Array
from consilience.networks.method import NetworkEnsemble, owned_entries
from consilience.networks.network import Network, convert_like, to_numpy
from consilience.networks.symmetry.axes import Layout
from consilience.networks.symmetry.transport import Transport, move_axis, to_blocks, to_dense

Outgoing = Literal["sum", "share"]
Lacking = Literal["prior", "off"]

OFF = 1e-8
"""Variance of a weight that does not exist, as a share of the median of its array."""


def natural_parameters(network: Network, key: str) -> tuple[Array, Array]:
    """Return precisions times means, and precisions, of a parameter's weights, dense; zero where there is no weight."""
    layout = network.symmetry.layouts[key]
    precision = 1.0 / to_numpy(network.working[key + DEVIATION]) ** 2
    return to_dense(to_numpy(network.working[key]) * precision, layout), to_dense(precision, layout)


def natural_average(
    ensemble: NetworkEnsemble,
    transports: Sequence[Mapping[str, Transport]],
    priors: Mapping[str, float],
    outgoing: Outgoing = "sum",
    lacking: Lacking = "off",
) -> dict[str, AnyArray]:
    """Return the arrays of the fused Gaussian network.

    Parameters
    ----------
    ensemble
        Gaussian networks.
    transports
        Where the units of every model go.
    priors
        Prior variance by name of the parameter.
    outgoing
        What a weight counts whose sender n of the J models have that own its receiver: "sum" leaves it as it is, so
        that a unit of one model alone speaks as loudly as one that all share; "share" multiplies it by n / J, which
        gives the average of the models' logits, but for the output biases, where units find room side by side.
    lacking
        Weights whose ends no model owns both: "prior" gives them the prior N(0, v), "off" a point at zero.
    """
    first = ensemble.networks[0]
    fused: dict[str, AnyArray] = {}
    for name in first.working:
        if not is_deviation(name):
            continue
        key = name.removesuffix(DEVIATION)
        layout = ensemble.symmetry.layouts[key]
        linear, precision, mass, receiving = _sums(ensemble, transports, key, layout)
        held = mass > 0
        safe = np.where(precision > 0, precision, 1.0)
        mean = linear / safe
        variance = np.where(precision > 0, np.where(held, mass, 1.0) / safe, 0.0)
        if outgoing == "share":
            share = mass / np.where(receiving > 0, receiving, 1.0)
            mean, variance = mean * share, variance * share**2
        known = variance[variance > 0]
        least = OFF * float(np.median(known)) if known.size else OFF * priors[key]
        nothing = priors[key] if lacking == "prior" else least
        mean = to_blocks(np.where(held, mean, 0.0), layout)
        variance = to_blocks(np.maximum(np.where(held, variance, nothing), least), layout)
        fused[key], fused[name] = (
            convert_like(mean, first.working[key]),
            convert_like(np.sqrt(variance), first.working[name]),
        )
    return fused


def _sums(
    ensemble: NetworkEnsemble, transports: Sequence[Mapping[str, Transport]], key: str, layout: Layout
) -> tuple[Array, Array, Array, Array]:
    """Return weighted sums of natural parameters, and the weight of the models that own both ends, and the receiver."""
    linear: Array = np.zeros(())
    precision, mass, receiving = linear, linear, linear
    for network, moves, weight in zip(ensemble.networks, transports, ensemble.weights.tolist(), strict=True):
        natural = natural_parameters(network, key)
        own, receives = np.ones(()), np.ones(())
        for number, axis in enumerate(layout.axes):
            natural = tuple(move_axis(values, number, axis, moves, network.units) for values in natural)
            if axis.moves:
                shape = tuple(-1 if n == number else 1 for n in range(len(layout.axes)))
                held = np.reshape(owned_entries(axis, moves, {}), shape)
                own = own * held
                receives = receives if axis.side == "input" else receives * held
        linear = linear + weight * natural[0] * own
        precision = precision + weight * natural[1] * own
        mass = mass + weight * np.broadcast_to(own, natural[0].shape)
        receiving = receiving + weight * np.broadcast_to(receives, natural[0].shape)
    return linear, precision, mass, receiving
