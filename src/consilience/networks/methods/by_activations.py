"""What methods that place units in slots by their activations have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from consilience.checks import Array, Labels
from consilience.core.progress import Progress
from consilience.errors import UnsupportedError
from consilience.networks.method import Alignment, NetworkEnsemble
from consilience.networks.methods.layerwise import LayerMatching, LayerwiseMethod, UnitRows
from consilience.networks.network import to_numpy
from consilience.networks.symmetry.transport import Transport

MAX_PASSES = 50
"""A bound that is not reached: passes of ``activation_slots`` end at the first one that lowers E by a thousandth or
less, after 3 to 6 on four ResNet-8."""


@dataclass(frozen=True)
class ByActivations(LayerwiseMethod):
    """A method that places the units of every group, of all models, in the slots of the fused network.

    The default fusion makes candidates by such methods, on the inputs that it draws; they have no names among the
    methods.
    """

    @property
    def wants_activations(self) -> bool:
        """Units are compared by their activations."""
        return True

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return the transports into the slots, group by group.

        Raises
        ------
        UnsupportedError
            For groups inside others, such as attention heads, and units that no layer reads.
        """
        if any(group.parent is not None for group in ensemble.symmetry.all_groups):
            raise UnsupportedError("units inside heads are not compared by activations")
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
        slots, history = self.place(points, rows.width)
        transports = tuple({group: self.transport(of_model, rows.width)} for of_model in slots)
        return LayerMatching(transports, history, converged=len(history) < MAX_PASSES)

    @abstractmethod
    def place(self, points: Sequence[Array], width: int) -> tuple[list[Labels], list[float]]:
        """Return the slot of each unit of every model, and the objective after each pass.

        Parameters
        ----------
        points : sequence of arrays of shape (k_j, m), of length n_models
            Activations of every model's units over the same samples.
        width : int
            Number K of slots.
        """

    @abstractmethod
    def transport(self, slots: Labels, width: int) -> Transport:
        """Return the transport of a model's units (k,) to slots."""


def unit_correlations(points: Sequence[Array]) -> Array:
    """Return the correlations (L, L) of the rows (k_j, m) of all models; 0 for rows that are constant."""
    rows = np.concatenate([values - values.mean(axis=1, keepdims=True) for values in points])
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    # A row that is constant but for rounding has no correlation.
    floor = np.finfo(np.float64).eps ** 0.5 * float(lengths.max(initial=0.0))
    rows = np.where(lengths > floor, rows / np.maximum(lengths, np.finfo(np.float64).tiny), 0.0)
    return np.asarray(rows @ rows.T)


def distances_to_slots(correlations: Array, members: Array, products: Array) -> tuple[Array, Array, float]:
    """Return the size (K,) of every slot, the squared distance (L, K) of every unit from its mean, and E.

    From an empty slot the distance is that from 0.

    Parameters
    ----------
    correlations : array of shape (L, L)
        Of the units of all models, as `unit_correlations` returns them.
    members : array of shape (L, K)
        1 where a unit is in a slot.
    products : array of shape (L, K)
        ``correlations @ members``: of every unit with the sum of a slot.
    """
    squares = np.diag(correlations)  # (L,): 1, or 0 for constant rows
    sizes = members.sum(axis=0)
    sum_squares = np.einsum("lk,lk->k", members, products)  # (K,): of the slots' sums
    divisors = np.maximum(sizes, 1.0)
    distances = squares[:, None] - 2.0 * products / divisors + sum_squares / divisors**2
    return sizes, distances, float(max(squares.sum() - (sum_squares / divisors).sum(), 0.0))
