"""Joining of units by their activations, within and across models, into the slots of a network of any width.

The fused network has K slots in every group. With x_u the activations of unit u of any model over inputs, centred and
of length 1, units are placed in slots so that

    E = sum_slots sum_{units in the slot} |x_u - mean of the slot|^2

is least. In ``activation_slots`` no two units of one model may share a slot, so that at the width of J models each slot
has to hold one unit of every model, alike or not. Here a unit without a partner elsewhere stays in a slot of its own,
and in exchange units of one model that answer alike are joined: the merging within models of ZipIt (Stoica et al.
2024). Joined units are averaged, and what reads them reads their mean.

E is the objective of k-means, which is started at Ward's minimum-variance merging (Ward 1963), where ZipIt merges
greedily by the largest correlation, and lowered by moving units to the nearest mean. Both need correlations only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.cluster.hierarchy import cut_tree, linkage

from consilience.checks import Array, Labels
from consilience.errors import UnsupportedError
from consilience.networks.method import NetworkEnsemble
from consilience.networks.methods.by_activations import MAX_PASSES, ByActivations, distances_to_slots, unit_correlations
from consilience.networks.methods.layerwise import LayerMatching, UnitRows
from consilience.networks.symmetry.transport import MatrixTransport

ROUNDING = 1e-12
"""Squared distances of rows of length 1 that differ by less are equal but for rounding."""


@dataclass(frozen=True)
class ActivationJoins(ByActivations):
    """Join units that answer alike, within and across models, until the width is reached, and average.

    References
    ----------
    Stoica, Bolya, Bjorner, Ramesh, Hearn, Hoffman (2024), "ZipIt! Merging models from different tasks without
    training", ICLR, for joins within and across models by correlations; Ward (1963), "Hierarchical grouping to optimize
    an objective function", Journal of the American Statistical Association, for the order of joins.
    """

    name: ClassVar[str] = "activation_joins"
    summary: ClassVar[str] = "join units that answer alike, within and across models"
    needs: ClassVar[str] = "networks of one architecture, and inputs"
    gives: ClassVar[str] = "one network of any width"
    paper: ClassVar[str] = "none: joins within and across models (stoica2024) by the objective of k-means"

    def match(
        self, bundle: Mapping[str, UnitRows], ensemble: NetworkEnsemble, reference: int, rng: np.random.Generator
    ) -> LayerMatching:
        """Return the slots of one group's units.

        Raises
        ------
        UnsupportedError
            As for `ByActivations`, and for tied weights.
        """
        for group in bundle:
            if any(place.side == "both" for place in ensemble.symmetry.places(group)):
                raise UnsupportedError(
                    f"one array both makes and reads the units of group {group}, which joins cannot do"
                )
        return super().match(bundle, ensemble, reference, rng)

    def place(self, points: Sequence[Array], width: int) -> tuple[list[Labels], list[float]]:
        """Return the slots, of which several units of a model may share one; see `ByActivations.place`."""
        return join_units(points, width)

    def transport(self, slots: Labels, width: int) -> MatrixTransport:
        """Return the transport of a model's units (k,) to slots."""
        return join_transport(slots, width)


def join_transport(slots: Labels, width: int) -> MatrixTransport:
    """Return the transport of a model's units (k,) to slots, of which several may be in one.

    Examples
    --------
    >>> transport = join_transport(np.array([0, 2, 0]), 3)
    >>> transport.receiving.tolist(), transport.owned.tolist()
    ([[0.5, 0.0, 0.5], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [1.0, 0.0, 1.0])
    """
    members = np.zeros((width, len(slots)))  # 1 where a unit is in a slot
    members[slots, np.arange(len(slots))] = 1.0
    return MatrixTransport(members / np.maximum(members.sum(axis=1, keepdims=True), 1.0), members)


def join_units(points: Sequence[Array], width: int) -> tuple[list[Labels], list[float]]:
    """Return the slot of each unit of every model, and E at the start and after each pass.

    Parameters
    ----------
    points : sequence of arrays of shape (k_j, m), of length n_models
        Activations of every model's units over the same samples.
    width : int
        Number K of slots.

    Examples
    --------
    >>> first = np.array([[1.0, 0, 0, -1], [2.0, 0, 0, -2]])
    >>> second = np.array([[0, 1.0, -1, 0], [1.0, 0, 0, -1]])
    >>> [slots.tolist() for slots in join_units([first, second], 2)[0]]
    [[0, 0], [1, 0]]
    """
    correlations = unit_correlations(points)
    n_units = len(correlations)
    ends = np.cumsum([len(values) for values in points])[:-1]
    if n_units <= width:
        return np.split(np.arange(n_units), ends), [0.0]
    squares = np.diag(correlations)  # (L,): 1, or 0 for constant rows
    distances = np.sqrt(np.maximum(squares[:, None] + squares - 2.0 * correlations, 0.0))
    merges = linkage(distances[np.triu_indices(n_units, 1)], "ward")
    slots: Labels = cut_tree(merges, n_clusters=width)[:, 0].astype(np.int64)
    history: list[float] = []
    while len(history) < MAX_PASSES:
        members = np.zeros((n_units, width))
        members[np.arange(n_units), slots] = 1.0
        sizes, to_means, objective = distances_to_slots(correlations, members, correlations @ members)
        history.append(objective)
        to_means[:, sizes == 0] = np.inf
        nearest = to_means.argmin(axis=1)
        # Of equally near means a unit keeps its own, so that passes end.
        own, best = (to_means[np.arange(n_units), of_unit] for of_unit in (slots, nearest))
        moved = np.where(best < own - ROUNDING, nearest, slots)
        if np.array_equal(moved, slots):
            break
        slots = moved
    return np.split(slots, ends), history
