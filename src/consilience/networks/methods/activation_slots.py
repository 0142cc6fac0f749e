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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.optimize import linear_sum_assignment

from consilience.checks import Array, Labels
from consilience.core.progress import Progress
from consilience.errors import UnsupportedError
from consilience.networks.method import Alignment, NetworkEnsemble
from consilience.networks.methods.consensus import MIN_RELATIVE_DECREASE
from consilience.networks.methods.layerwise import LayerMatching, LayerwiseMethod, UnitRows
from consilience.networks.network import to_numpy
from consilience.networks.symmetry.transport import Injection

EMPTY_SLOT_COST = 1e-6
"""What an empty slot costs, so that units that are equal but for the rounding of single precision share one."""
MAX_PASSES = 50
"""A bound that is not reached: passes end at the first one that lowers E by a thousandth or less, after 3 to 6 on four
ResNet-8."""


@dataclass(frozen=True)
class ActivationSlots(LayerwiseMethod):
    """Match the units of all models by their activations, keep apart what finds no partner, and average.

    The default fusion makes candidates by it, on the inputs that it draws; it has no name among the methods.

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

    @property
    def wants_activations(self) -> bool:
        """Units are compared by their activations."""
        return True

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return the transports into the slots, group by group.

        Raises
        ------
        UnsupportedError
            For groups inside others, such as attention heads, units that no layer reads, and networks that are wider.
        """
        if any(group.parent is not None for group in ensemble.symmetry.all_groups):
            raise UnsupportedError("units inside heads are not matched by activations")
        for network in ensemble.networks:
            if wider := [g for g, width in ensemble.target_units.items() if network.units[g] > width]:
                raise UnsupportedError(f"group {wider[0]} of {network.name} has more units than there are slots")
        return super().align(ensemble, rng, progress)

    def match(
        self, bundle: Mapping[str, UnitRows], ensemble: NetworkEnsemble, reference: int, rng: np.random.Generator
    ) -> LayerMatching:
        """Return the slots of one group's units.

        Raises
        ------
        UnsupportedError
            For units whose activations no layer reads.
        """
        ((group, rows),) = bundle.items()
        points = [to_numpy(values) for values in rows.points]
        if any(not values.shape[1] for values in points):
            raise UnsupportedError(f"no layer reads the units of group {group} alone, so their activations are unknown")
        slots, history = match_to_slots(points, rows.width)
        transports = tuple({group: Injection(of_model, rows.width)} for of_model in slots)
        return LayerMatching(transports, history, converged=len(history) < MAX_PASSES)


def unit_correlations(points: Sequence[Array]) -> Array:
    """Return the correlations (L, L) of the rows (k_j, m) of all models; 0 for rows that are constant."""
    rows = np.concatenate([values - values.mean(axis=1, keepdims=True) for values in points])
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    # A row that is constant but for rounding has no correlation.
    floor = np.finfo(np.float64).eps ** 0.5 * float(lengths.max(initial=0.0))
    rows = np.where(lengths > floor, rows / np.maximum(lengths, np.finfo(np.float64).tiny), 0.0)
    return np.asarray(rows @ rows.T)


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
    squares = np.diag(correlations)  # (L,): 1, or 0 for constant rows
    members = np.zeros((len(correlations), width))  # 1 where a unit is in a slot
    slots: list[Labels] = [np.arange(len(of_model)) for of_model in units]
    members[units[0], slots[0]] = 1.0
    history: list[float] = []
    while len(history) < MAX_PASSES:
        for model, rows in enumerate(units):
            if not history and not model:
                continue
            members[rows] = 0.0
            sizes = members.sum(axis=0)  # (K,)
            products = correlations @ members  # (L, K): of every unit with the sum of a slot
            sum_squares = np.einsum("lk,lk->k", members, products)  # (K,): of the slots' sums
            filled = np.maximum(sizes, 1.0)
            distances = squares[rows, None] - 2.0 * products[rows] / filled + sum_squares / filled**2
            costs = np.where(sizes > 0, sizes / (sizes + 1.0) * distances, EMPTY_SLOT_COST)  # (k, K)
            slots[model] = linear_sum_assignment(costs)[1]
            members[rows, slots[model]] = 1.0
        sizes = np.maximum(members.sum(axis=0), 1.0)
        within = squares.sum() - (np.einsum("lk,lk->k", members, correlations @ members) / sizes).sum()
        history.append(float(max(within, 0.0)))
        if len(history) > 1 and history[-2] - history[-1] <= MIN_RELATIVE_DECREASE * history[-2]:
            break
    return slots, history
