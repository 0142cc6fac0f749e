"""Match quality of units: mean squared distance of aligned networks from their average, by group.

For the arrays theta that touch a group, with models i of weight a_i and their weighted mean,

    distance = sum_theta sum_i a_i |theta_i - mean|^2 / sum_theta sum_i a_i |theta_i|^2.

It is computed from the transports alone, so that every method is judged alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from consilience.checks import AnyArray, Array
from consilience.networks.methods.weight_matching.state import RUNNING_STATISTICS
from consilience.networks.network import Network, identity_transports, square_sum
from consilience.networks.symmetry.transport import Transport


@dataclass(frozen=True)
class GroupQuality:
    """Match quality of the units of one group."""

    units: int  # number of fused units
    shared: int  # number of fused units that more than one model has
    # Weighted mean squared distance of the aligned models from their average, over all arrays that touch the
    # group, relative to their mean square: 0 for copies; 1 - sum a_i^2 for models that have nothing in common.
    distance: float
    before: float | None  # the same with units as the models number them; None where widths differ


def match_quality(
    networks: Sequence[Network], weights: Array, transports: Sequence[Mapping[str, Transport]]
) -> dict[str, GroupQuality]:
    """Return the match quality of every group.

    `weights` (n_models,) sum to 1; `transports` are those of the units of every model and group.
    """
    symmetry = networks[0].symmetry
    after = _squared_distances([n.move(t) for n, t in zip(networks, transports, strict=True)], weights)
    has_equal_widths = all(dict(network.units) == dict(networks[0].units) for network in networks)
    before = (
        _squared_distances([n.move(identity_transports(n.units)) for n in networks], weights)
        if has_equal_widths
        else None
    )
    quality = {}
    for name in symmetry.by_name:
        # Statistics of batch normalisation describe data, not units, and are of another scale.
        arrays = {place.array for place in symmetry.places(name) if place.array in after}
        # In one order, so that the sum has the same bits whatever the hash seed.
        keys = sorted(key for key in arrays if not key.endswith(RUNNING_STATISTICS))
        n_owners = sum((model_transports[name].owned for model_transports in transports), start=np.zeros(()))  # (K,)
        quality[name] = GroupQuality(
            transports[0][name].width,
            int((n_owners > 1).sum()),
            _relative_distance(after, keys),
            None if before is None else _relative_distance(before, keys),
        )
    return quality


def _squared_distances(models: Sequence[Mapping[str, AnyArray]], weights: Array) -> dict[str, tuple[float, float]]:
    """Return, by array, the weighted mean squared distance of the models from their average, and their mean square."""

    def mean_square(arrays: Sequence[AnyArray]) -> float:
        return sum(weight * square_sum(values) for weight, values in zip(weights.tolist(), arrays, strict=True))

    distances = {}
    for key in models[0]:
        arrays = [model[key] for model in models]
        weighted = [weight * values for weight, values in zip(weights.tolist(), arrays, strict=True)]
        mean = sum(weighted[1:], start=weighted[0])
        distances[key] = (mean_square([values - mean for values in arrays]), mean_square(arrays))
    return distances


def _relative_distance(distances: Mapping[str, tuple[float, float]], keys: Sequence[str]) -> float:
    """Return the squared distance relative to the mean square, over some arrays; 0 where these are zero."""
    total = sum(distances[key][1] for key in keys)
    return sum(distances[key][0] for key in keys) / total if total else 0.0
