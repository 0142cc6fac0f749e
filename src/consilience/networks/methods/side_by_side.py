"""The networks of some sites side by side in one wider network, which computes the mean of their outputs.

Every unit has a place of its own. Weights between units of different networks are zero, and layers that make what all
networks answer average over them (``networks.method``), so nothing is fitted and nothing matched: J networks of equal
widths in one of J times these are their ensemble by means of logits. Networks of weight zero have no place.

Groups that layers mix, such as layer normalisation, can have no other width, and so no room for two networks. Arrays
that are no unit's, such as one slope of all units or a normalisation of the answers, are averaged, and then the answer
is not the mean: who uses it has to compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from consilience.core.progress import Progress
from consilience.errors import UnsupportedError
from consilience.networks.method import Alignment, NetworkEnsemble, NetworkMethod
from consilience.networks.symmetry.transport import Injection, Transport


@dataclass(frozen=True)
class SideBySide(NetworkMethod):
    """Put the networks that have a weight side by side in one wider network.

    The default fusion makes candidates by it; it has no name among the methods.
    """

    name: ClassVar[str] = "side_by_side"
    summary: ClassVar[str] = "put networks side by side in a wider one, which computes the mean of their outputs"
    needs: ClassVar[str] = "networks of one architecture, and as many units as those of all that have a weight"
    gives: ClassVar[str] = "one network"
    paper: ClassVar[str] = "none"
    widths: ClassVar[bool] = True

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return transports to places of their own; those of networks of weight zero share the first ones.

        Raises
        ------
        UnsupportedError
            Where there are fewer places than units.
        """
        placed = dict.fromkeys(ensemble.target_units, 0)  # units so far
        transports: list[Mapping[str, Transport]] = []
        for network, weight in zip(ensemble.networks, ensemble.weights.tolist(), strict=True):
            moves: dict[str, Transport] = {}
            for group, width in ensemble.target_units.items():
                n_units = network.units[group]
                first = placed[group] if weight > 0 else 0
                if first + n_units > width:
                    raise UnsupportedError(f"group {group} has no room for the units of {network.name} next to others'")
                moves[group] = Injection(np.arange(first, first + n_units), width)
                placed[group] += n_units if weight > 0 else 0
            transports.append(moves)
        return Alignment(tuple(transports))
