"""Whether networks were trained from one start, seen from their parameters alone.

Networks that share a start keep the numbering of its units: each is nearer to the mean of the others as it is than with
its units in a random order. Networks of their own starts are as near in any order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from consilience.checks import AnyArray
from consilience.networks.network import Network, to_numpy

MIN_GAIN = 0.1
"""Share of the squared distance, from a renumbered network to the mean of the others, that its own numbering must save.
On scikit-learn's digits (an MLP and a convolutional network, three sites, with and without classes apart, 2 to 60
epochs) networks of one start saved 0.24 to 0.98, those of their own starts 0.04 at most."""
N_ORDERS = 20
"""Random orders of the units; the nearest counts, so that few units are not in order by chance (once in 20 for one
network). Chosen by hand."""
N_ORDERS_OF_LARGE = 3
"""Random orders of networks beyond `LARGE` entries, whose distances hardly differ between orders. Chosen by hand."""
LARGE = 10**6
"""Entries beyond which a network is large. Chosen by hand, for time."""


def have_common_start(networks: Sequence[Network], rng: np.random.Generator) -> bool:
    """Return whether networks of one symmetry look as if they were trained from one start.

    Parameters
    ----------
    networks : sequence of Network
        Of the same widths; one alone has a common start.
    rng : numpy.random.Generator
        Draws the random orders of units.
    """
    if len(networks) < 2 or not networks[0].symmetry.groups:
        return True
    moving = [
        key
        for key, layout in networks[0].symmetry.layouts.items()
        if key in networks[0].working and any(axis.moves for axis in layout.axes)
    ]
    outer = [name for name, group in networks[0].symmetry.by_name.items() if group.parent is None]
    total = {key: np.sum([to_numpy(network.working[key]) for network in networks], axis=0) for key in moving}
    n_orders = N_ORDERS if sum(values.size for values in total.values()) <= LARGE else N_ORDERS_OF_LARGE
    for network in networks:
        distance = _distance(network.working, total, network.working, len(networks))
        renumbered = (
            network.permute({name: rng.permutation(network.units[name]) for name in outer}) for _ in range(n_orders)
        )
        distances = (_distance(other.working, total, network.working, len(networks)) for other in renumbered)
        if distance > (1 - MIN_GAIN) * min(distances):
            return False
    return True


def _distance(
    arrays: Mapping[str, AnyArray], total: Mapping[str, AnyArray], own: Mapping[str, AnyArray], n_networks: int
) -> float:
    """Return the squared distance from arrays to the mean of the other networks, whose own part in `total` is `own`."""
    return float(
        sum(
            np.square(to_numpy(arrays[key]) - (of_all - to_numpy(own[key])) / (n_networks - 1)).sum()
            for key, of_all in total.items()
        )
    )
