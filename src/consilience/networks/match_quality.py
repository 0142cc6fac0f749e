"""How well the units of every group match, whatever matched them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from consilience.checks import AnyArray, Array
from consilience.networks.methods.weight_matching.state import STATISTICS
from consilience.networks.network import Network, identity_transports, square_sum
from consilience.networks.symmetry.transport import Transport


@dataclass(frozen=True)
class GroupQuality:
    """How well the units of one group match.

    Parameters
    ----------
    units
        Number of fused units.
    shared
        How many of them more than one model has.
    distance
        Weighted mean squared distance of the aligned models from their average, over all arrays that touch the group,
        as a share of their mean square: 0 for copies; 1 - sum a_i^2 for models that have nothing in common.
    before
        The same without moving any unit; None where widths differ.
    """

    units: int
    shared: int
    distance: float
    before: float | None


def match_quality(
    networks: Sequence[Network], weights: Array, transports: Sequence[Mapping[str, Transport]]
) -> dict[str, GroupQuality]:
    """Return the quality of every group's matching.

    Parameters
    ----------
    networks
        The models.
    weights
        What each counts (J,), summing to 1.
    transports
        Where the units of each go.
    """
    symmetry = networks[0].symmetry
    after = _distances([n.move(t) for n, t in zip(networks, transports, strict=True)], weights)
    same = all(dict(network.units) == dict(networks[0].units) for network in networks)
    before = _distances([n.move(identity_transports(n.units)) for n in networks], weights) if same else None
    found = {}
    for name in symmetry.by_name:
        keys = {p.array for p in symmetry.places(name) if p.array in after and not p.array.endswith(STATISTICS)}
        owned = sum((moves[name].owned for moves in transports), start=np.zeros(()))
        found[name] = GroupQuality(
            transports[0][name].width,
            int((owned > 1).sum()),
            _share(after, keys),
            None if before is None else _share(before, keys),
        )
    return found


def _distances(moved: Sequence[Mapping[str, AnyArray]], weights: Array) -> dict[str, tuple[float, float]]:
    """Return, by array, the weighted mean squared distance from the average, and the mean square."""
    found = {}
    for key in moved[0]:
        values = [one[key] for one in moved]
        parts = [weight * one for weight, one in zip(weights.tolist(), values, strict=True)]
        mean = sum(parts[1:], start=parts[0])
        apart, squares = (
            sum(weight * square_sum(one) for weight, one in zip(weights.tolist(), ones, strict=True))
            for ones in ([one - mean for one in values], values)
        )
        found[key] = (apart, squares)
    return found


def _share(found: Mapping[str, tuple[float, float]], keys: set[str]) -> float:
    total = sum(found[key][1] for key in keys)
    return sum(found[key][0] for key in keys) / total if total else 0.0
