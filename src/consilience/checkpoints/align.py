"""Weight matching of checkpoints that no memory holds: every model's units into the order of the first model's.

The coordinate descent of `ReBasin` over lazy arrays (``weight_matching.lazy_arrays``), model by model. Each model is
first matched by what its units receive, from the input to the output, and then by all that touches a unit until no
group of units gains. That start need not be better than the order in which the units came; if the result is not closer
to the first model than that order, it stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from consilience.networks.methods.weight_matching.coordinate_descent import improve_model
from consilience.networks.methods.weight_matching.lazy_arrays import LazyArrays, LazyModel, RecomputedProducts
from consilience.networks.methods.weight_matching.match import match_incoming
from consilience.networks.methods.weight_matching.state import MatchingState, has_matched_units
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Injection

ReadArray = Callable[[int, str], NDArray[np.float32]]
"""Gives an array of a model by the model's number and the array's name."""


@dataclass(frozen=True, eq=False)
class CheckpointAlignment:
    """Where the units of every model go.

    Parameters
    ----------
    transports : tuple of J mappings of str to Injection
        For every model the permutation of each group; the identity for the first model.
    """

    transports: tuple[Mapping[str, Injection], ...]

    @property
    def moved(self) -> tuple[int, ...]:
        """Number of units of every model (J,) that have another number afterwards."""
        return tuple(
            sum(int(np.sum(transport.slots != np.arange(transport.width))) for transport in transports.values())
            for transports in self.transports
        )


def align(
    symmetry: Symmetry, units: Mapping[str, int], count: int, read: ReadArray, floating: set[str]
) -> CheckpointAlignment:
    """Return where the units of every model go so that it comes closest to the first.

    Parameters
    ----------
    symmetry : Symmetry
        Which axes move together.
    units : mapping of str to int
        Number of units of every group, the same in all models.
    count : int
        Number of models.
    read : callable
        Gives an array in float32 by the number of the model and the name of the array.
    floating : set of str
        Names of the arrays of floating-point numbers.
    """
    state = MatchingState(symmetry, units, is_full=True, product_type=RecomputedProducts, linearizes_recurrent=True)
    names = {
        key: None for key, layout in symmetry.layouts.items() if key in floating and has_matched_units(key, layout)
    }
    identity = {name: Injection(np.arange(width), width) for name, width in units.items()}

    def unmoved(number: int) -> LazyModel:
        return LazyModel(LazyArrays(partial(read, number), names, symmetry, units, identity), identity)

    first = unmoved(0)
    remaining = state.remaining_models([(1.0, first)])
    transports: list[Mapping[str, Injection]] = [identity]
    for number in range(1, count):
        model = unmoved(number)
        match_incoming(state, model, remaining)
        improve_model(state, model, remaining)
        is_closer = state.distance(model, first) < state.distance(unmoved(number), first)
        transports.append(model.transports if is_closer else identity)
    return CheckpointAlignment(tuple(transports))
