"""Coupling diagnostics: how close an optimal-transport plan of units is to a permutation.

A coupling Pi (k, k_i) has non-negative entries that say how much of each unit of a model (columns) goes to each unit of
the target (rows); its marginals are 1/k and 1/k_i. The papers on fusion by optimal transport report couplings that are
almost permutations. Four numbers say how nearly, with p_g = Pi_g / sum(Pi_g) the shares of row g:

    entropy       H(p_g) = -sum_i p_gi log p_gi,  exp(mean_g H) the number of partners of a unit in effect
    largest       max_i p_gi
    distance      min_P |k Pi - P|_F over permutations P, for k = k_i
    off           1 - sum_{(g, i) in P} Pi_gi / sum Pi, the mass off that permutation

Rows without mass have NaN. The nearest permutation is found exactly, as a linear assignment of -Pi.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import entr

from consilience.checks import Array, Labels
from consilience.errors import InputError
from consilience.matching.assignment import assign_block


@dataclass(frozen=True, eq=False)
class CouplingDiagnostics:
    """Distances of one coupling from a permutation and from its marginals.

    Parameters
    ----------
    entropy : ndarray of shape (k,)
        Entropy of each row in nats, the row scaled to sum one; NaN for rows without mass.
    largest : ndarray of shape (k,)
        Fraction of each row's mass that is on its largest entry; NaN for rows without mass.
    permutation : ndarray of shape (k,) or None
        Column that the nearest permutation gives each row; None unless the coupling is square.
    distance : float
        Frobenius norm of k Pi minus that permutation; NaN unless the coupling is square.
    off_permutation : float
        Fraction of all mass that is not on the nearest permutation; NaN unless the coupling is square.
    row_error, column_error : float
        Greatest deviation of a row sum from 1/k, and of a column sum from 1/k_i, relative to those.
    """

    entropy: Array
    largest: Array
    permutation: Labels | None
    distance: float
    off_permutation: float
    row_error: float
    column_error: float

    @property
    def mean_entropy(self) -> float:
        """Mean entropy of the rows that have mass, in nats: 0 for a permutation, log k_i for an even spread."""
        return float(np.nanmean(self.entropy))

    @property
    def effective_partners(self) -> float:
        """Exponential of the mean entropy: how many units, in effect, each target unit is made of."""
        return float(np.exp(self.mean_entropy))

    @property
    def mean_largest(self) -> float:
        """Mean over rows of the fraction on the largest entry: 1 for a permutation."""
        return float(np.nanmean(self.largest))


def coupling_diagnostics(coupling: ArrayLike) -> CouplingDiagnostics:
    """Return how close a coupling is to a permutation.

    Parameters
    ----------
    coupling : array_like of shape (k, k_i)
        Pi, not negative, of total mass near one, its marginals meant to be uniform.

    Returns
    -------
    CouplingDiagnostics
        Entropies, largest shares, and for a square coupling the nearest permutation.

    Raises
    ------
    InputError
        When it is no matrix, or has entries that are negative or not finite, or no mass at all.

    Examples
    --------
    >>> diagnostics = coupling_diagnostics([[0.5, 0.0], [0.25, 0.25]])
    >>> diagnostics.permutation, round(diagnostics.effective_partners, 3)
    (array([0, 1]), 1.414)
    >>> diagnostics.mean_largest, diagnostics.off_permutation
    (0.75, 0.25)
    """
    matrix = np.asarray(coupling, dtype=np.float64)
    if matrix.ndim != 2 or not np.all(np.isfinite(matrix)) or np.any(matrix < 0) or not np.any(matrix > 0):
        text = f"expected a matrix of finite numbers, not negative and not all zero, found shape {matrix.shape}"
        raise InputError("coupling", text, code="E-NUMBER")
    row_sums, column_sums = matrix.sum(axis=1), matrix.sum(axis=0)
    row_shares = matrix / np.where(row_sums > 0, row_sums, np.nan)[:, None]  # p (k, k_i), NaN in rows without mass
    permutation, distance, off_permutation = None, float("nan"), float("nan")
    if matrix.shape[0] == matrix.shape[1]:
        # |k Pi - P|^2 = |k Pi|^2 + k - 2 k <Pi, P>: the permutation of greatest overlap is the nearest one.
        permutation = assign_block(-matrix)
        units = np.arange(len(matrix))  # (k,)
        difference = len(matrix) * matrix
        difference[units, permutation] -= 1.0
        distance = float(np.linalg.norm(difference))
        off_permutation = float(max(0.0, 1.0 - matrix[units, permutation].sum() / matrix.sum()))
    return CouplingDiagnostics(
        entropy=entr(row_shares).sum(axis=1),  # entr(p) = -p log p, and 0 at p = 0
        largest=row_shares.max(axis=1),
        permutation=permutation,
        distance=distance,
        off_permutation=off_permutation,
        row_error=float(np.abs(row_sums * len(row_sums) - 1.0).max()),
        column_error=float(np.abs(column_sums * len(column_sums) - 1.0).max()),
    )
