"""Matching of units by their activations into the slots of a network of any width.

The fused network has K slots in every group. With x_iu the activations of unit u of model i over inputs, centred and of
length 1, units of different models are placed in slots so that

    E = sum_slots sum_{units in the slot} |x_iu - mean of the slot|^2

is least, no two units of one model in one slot. At the width of the models that is the matching of activations, with
all models against the mean of the others. In wider networks only those units share a slot that answer alike, and the
others stand beside each other: the partial merging of ZipIt (Stoica et al. 2024), by correlations. Its joins within a
model have no place here, since a slot has one unit of a model at most.

E is lowered model by model, all others held, by a linear assignment problem: joining a slot of s units with mean m
costs s / (s + 1) |x - m|^2, an empty slot next to nothing. It needs correlations of units only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.optimize import linear_sum_assignment

from consilience.checks import Array, Labels
from consilience.core.progress import Progress
from consilience.errors import UnsupportedError
from consilience.networks.method import Alignment, NetworkEnsemble
from consilience.networks.methods.by_activations import MAX_PASSES, ByActivations, distances_to_slots, unit_correlations
from consilience.networks.methods.consensus import MIN_RELATIVE_DECREASE
from consilience.networks.symmetry.transport import Injection

EMPTY_SLOT_COST = 1e-6
"""What an empty slot costs, so that units that are equal but for the rounding of single precision share one."""


@dataclass(frozen=True)
class ActivationSlots(ByActivations):
    """Match the units of all models by their activations, keep apart what finds no partner, and average.

    References
    ----------
    Stoica, Bolya, Bjorner, Ramesh, Hearn, Hoffman (2024), "ZipIt! Merging models from different tasks without
    training", ICLR, for partial merging by correlations; the objective over slots is that of ``consensus``.
    """

    name: ClassVar[str] = "activation_slots"
    summary: ClassVar[str] = "match units by their activations, keep apart what finds no partner"
    needs: ClassVar[str] = "networks of one architecture, and inputs; the fused one is no narrower"
    gives: ClassVar[str] = "one network of any width no smaller than the widest"
    paper: ClassVar[str] = "none: partial merging (stoica2024) over the slots of consensus"

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return the transports into the slots, group by group.

        Raises
        ------
        UnsupportedError
            As for `ByActivations`, and for networks that are wider.
        """
        for network in ensemble.networks:
            if wider := [g for g, width in ensemble.target_units.items() if network.units[g] > width]:
                raise UnsupportedError(f"group {wider[0]} of {network.name} has more units than there are slots")
        return super().align(ensemble, rng, progress)

    def place(self, points: Sequence[Array], width: int) -> tuple[list[Labels], list[float]]:
        """Return the slots, no two units of a model in one; see `ByActivations.place`."""
        return match_to_slots(points, width)

    def transport(self, slots: Labels, width: int) -> Injection:
        """Return the transport of a model's units (k,) to slots of their own."""
        return Injection(slots, width)


def match_to_slots(points: Sequence[Array], width: int) -> tuple[list[Labels], list[float]]:
    """Return the slot of each unit of every model, and E after each pass.

    Parameters
    ----------
    points : sequence of arrays of shape (k_j, m), of length n_models
        Activations of every model's units over the same samples.
    width : int
        Number K of slots, at least the largest k_j.

    Examples
    --------
    >>> units = np.array([[1.0, 0, 0, 0], [0, 1.0, 0, 0]])
    >>> [slots.tolist() for slots in match_to_slots([units, units[::-1]], 2)[0]]
    [[0, 1], [1, 0]]
    """
    correlations = unit_correlations(points)
    ends = np.cumsum([len(values) for values in points])
    units = [np.arange(end - len(values), end) for values, end in zip(points, ends, strict=True)]
    members = np.zeros((len(correlations), width))  # 1 where a unit is in a slot
    slots: list[Labels] = [np.arange(len(of_model)) for of_model in units]
    members[units[0], slots[0]] = 1.0
    history: list[float] = []
    while len(history) < MAX_PASSES:
        products = correlations @ members  # (L, K): anew in every pass, so that rounding does not add up
        for model, rows in enumerate(units):
            if not history and not model:
                continue
            if history:
                members[rows] = 0.0
                products[:, slots[model]] -= correlations[:, rows]  # one unit of a model in a slot at most
            sizes, distances, _ = distances_to_slots(correlations, members, products)
            costs = np.where(sizes > 0, sizes / (sizes + 1.0) * distances[rows], EMPTY_SLOT_COST)  # (k, K)
            slots[model] = linear_sum_assignment(costs)[1]
            members[rows, slots[model]] = 1.0
            products[:, slots[model]] += correlations[:, rows]
        history.append(distances_to_slots(correlations, members, products)[2])
        if len(history) > 1 and history[-2] - history[-1] <= MIN_RELATIVE_DECREASE * history[-2]:
            break
    return slots, history
