"""Layer distances of several models, before and after their units were matched.

For a layer with weights theta_j in model j, aligned by T_j (the identity before matching), and weights a_j of sum 1,

    sum_j a_j |T_j theta_j - theta|^2 / sum_j a_j |T_j theta_j|^2,        theta = sum_j a_j T_j theta_j,

summed over the arrays of the layer; running statistics of normalisation are left out. A layer of zeros has distance 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import AnyArray, Array
from consilience.networks.methods.weight_matching.state import RUNNING_STATISTICS
from consilience.networks.network import Network
from consilience.networks.symmetry.transport import Transport, move


@dataclass(frozen=True)
class LayerSummary:
    """Size of one layer, and distances of the models in it.

    Parameters
    ----------
    name : str
        Name of its arrays without their last part.
    entries : int
        Number of weights in the fused network.
    after : float or None
        Weighted mean squared distance of the aligned models from their average, as a share of their mean square;
        None where the matching is not known.
    before : float or None
        The same without moving any unit; None where widths differ.
    """

    name: str
    entries: int
    after: float | None
    before: float | None


def layers_of(
    networks: Sequence[Network], weights: Array, transports: Sequence[Mapping[str, Transport]]
) -> tuple[LayerSummary, ...]:
    """Return every layer with weights, in the order of the arrays.

    Parameters
    ----------
    networks : sequence of Network, of length J
        The models.
    weights : ndarray of shape (J,)
        Weight of each, of sum 1.
    transports : sequence of mapping of str to Transport, of length J
        By group, where the units of each model go.
    """
    same_widths = all(dict(network.units) == dict(networks[0].units) for network in networks)
    # By layer: entries, then squared distance and mean square of the aligned models, then the same unaligned.
    sums_of_layer: dict[str, Array] = {}
    for key in networks[0].working:
        if key.endswith(RUNNING_STATISTICS):  # running means and variances are no weights
            continue
        layout = networks[0].symmetry.layouts[key]
        aligned = [
            move(network.working[key], layout, transport, network.units)
            for network, transport in zip(networks, transports, strict=True)
        ]
        before = (
            _squared_distance([network.working[key] for network in networks], weights) if same_widths else (np.nan, 1.0)
        )
        entries = float(np.prod(tuple(aligned[0].shape)))
        sums = sums_of_layer.setdefault(key.rpartition(".")[0] or key, np.zeros(5))
        sums += [entries, *_squared_distance(aligned, weights), *before]
    return tuple(
        LayerSummary(
            name, int(n_entries), _ratio(after, after_squares), _ratio(before, before_squares) if same_widths else None
        )
        for name, (n_entries, after, after_squares, before, before_squares) in sums_of_layer.items()
    )


def _squared_distance(values: Sequence[AnyArray], weights: Array) -> tuple[float, float]:
    """Return sum_j a_j |theta_j - theta|^2 and sum_j a_j |theta_j|^2 of one array of every model."""
    xp = array_namespace(values[0])
    # Sums are float64 whatever the dtype of the arrays: those of a large layer would lose digits.
    mean = sum(weight * array for weight, array in zip(weights.tolist(), values, strict=True))
    weighted_arrays = list(zip(weights.tolist(), values, strict=True))
    distance = sum(weight * float(xp.sum((array - mean) ** 2, dtype=xp.float64)) for weight, array in weighted_arrays)
    return distance, sum(weight * float(xp.sum(array**2, dtype=xp.float64)) for weight, array in weighted_arrays)


def _ratio(part: float, whole: float) -> float:
    """Return part / whole, 0 for a layer of zeros."""
    return float(part / whole) if whole else 0.0
