"""How far apart the models are, layer by layer, before and after their units were matched."""

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
class Layer:
    """One layer.

    Parameters
    ----------
    name
        That of its arrays without their last part.
    entries
        Number of weights in the fused network.
    after
        Weighted mean squared distance of the aligned models from their average, as a share of their mean square;
        None where it is not known who became whom.
    before
        The same without moving any unit; None where widths differ.
    """

    name: str
    entries: int
    after: float | None
    before: float | None


def layers_of(
    networks: Sequence[Network], weights: Array, transports: Sequence[Mapping[str, Transport]]
) -> tuple[Layer, ...]:
    """Return every layer with weights, in the order of the arrays.

    Parameters
    ----------
    networks
        The models.
    weights
        What each counts (J,), summing to 1.
    transports
        Where the units of each go.
    """
    same = all(dict(one.units) == dict(networks[0].units) for one in networks)
    found: dict[str, Array] = {}
    for key in networks[0].working:
        if key.endswith(RUNNING_STATISTICS):
            continue
        layout = networks[0].symmetry.layouts[key]
        moved = [
            move(one.working[key], layout, moves, one.units) for one, moves in zip(networks, transports, strict=True)
        ]
        before = _spread([one.working[key] for one in networks], weights) if same else (np.nan, 1.0)
        entries = float(np.prod(tuple(moved[0].shape)))
        layer = found.setdefault(key.rpartition(".")[0] or key, np.zeros(5))
        layer += [entries, *_spread(moved, weights), *before]
    return tuple(
        Layer(name, int(n), _share(after, squares), _share(before, start) if same else None)
        for name, (n, after, squares, before, start) in found.items()
    )


def _spread(values: Sequence[AnyArray], weights: Array) -> tuple[float, float]:
    """Return the weighted mean squared distance from the average, and the mean square, summed over the entries."""
    xp = array_namespace(values[0])
    mean = sum(weight * one for weight, one in zip(weights.tolist(), values, strict=True))
    pairs = list(zip(weights.tolist(), values, strict=True))
    distance = sum(weight * float(xp.sum((one - mean) ** 2, dtype=xp.float64)) for weight, one in pairs)
    return distance, sum(weight * float(xp.sum(one**2, dtype=xp.float64)) for weight, one in pairs)


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0
