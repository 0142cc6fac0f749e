"""Regression means of linear maps: every model counts where its inputs were, or where its change reads them.

    argmin_M sum_k w_k || (M - D_k) G_k^(1/2) ||^2 = (sum_k w_k D_k G_k) (sum_k w_k G_k)^-1

with G_k (n, n) the second moments of the inputs of the map in model k. RegMean (Jin et al. 2023) is given them. WUDI
(Cheng et al. 2025) and ACE (Xu et al. 2026) have the changes alone, whose rows show which inputs a task used:
G_k = D_k^T D_k / |D_k|^2. What no model has seen is averaged: a ridge pulls towards the weighted mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from consilience.checkpoints.methods.base import Facts, TensorSetting
from consilience.checkpoints.methods.matrices import ChangeMatrixMethod, MatrixMethod
from consilience.checks import Array, is_number
from consilience.core.methods import Requirement
from consilience.core.solve_layer import solve_layer


def regression_mean(matrices: Array, moments: Array, weights: Array, ridge: float) -> Array:
    """Return the regression mean (m, n), with a ridge towards the weighted mean.

    Parameters
    ----------
    matrices : array of shape (J, m, n)
        The matrices.
    moments : array of shape (J, n, n)
        Second moments of the inputs of each.
    weights : array of shape (J,)
        The weights.
    ridge : float
        Share of the mean eigenvalue of the mean moments that is added to the moments of each.
    """
    shares = weights / weights.sum()
    first = matrices[0]
    mean: Array = first + sum(share * (one - first) for share, one in zip(shares, matrices, strict=True))
    gram = np.einsum("k,knp->np", shares, moments)
    pulls = sum(share * ((one - mean) @ moment) for share, one, moment in zip(shares, matrices, moments, strict=True))
    # The ridge is relative to the mean over models, whatever their shares: it is added to the moments of each.
    level = float(np.trace(moments, axis1=1, axis2=2).mean()) / len(gram)
    found: Array = mean + solve_layer(gram, np.asarray(pulls), ridge, level)
    return found


@dataclass(frozen=True)
class WUDI(ChangeMatrixMethod):
    """The regression mean of changes, each counted along the inputs that it reads itself.

    Parameters
    ----------
    scaling : float
        The factor of the combined change. Default: 1.
    ridge : float
        How much a mean over all directions counts, as a share of what the changes read on average. Default: 0.1.
    centered : bool
        Whether what all outputs have in common is left out of what a change reads, as in ACE. Default: False.

    References
    ----------
    Cheng et al. (2025), "Whoever started the interference should end it: guiding data-free model merging via task
    vectors", ICML, which stops an optimiser of the same objective early. Xu et al. (2026), "ACE-Merging: data-free
    model merging with adaptive covariance estimation", CVPR, whose switches depend on the units of the weights.
    """

    name: ClassVar[str] = "wudi"
    summary: ClassVar[str] = "changes averaged along the inputs that each reads (WUDI, ACE)"
    paper: ClassVar[str] = "cheng2025"

    ridge: float = 0.1
    centered: bool = False

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield ("ridge", is_number(self.ridge) and self.ridge >= 0, "a number of at least 0")
        yield ("centered", isinstance(self.centered, bool), "True or False")

    def merged(self, matrices: Array, setting: TensorSetting, facts: Facts) -> Array:
        """Return the regression mean of the changes (m, n)."""
        moments = np.stack([self._moments(one) for one in matrices])
        return regression_mean(matrices, moments, np.array(setting.weights), self.ridge)

    def _moments(self, change: Array) -> Array:
        """Return D^T D, of trace 1; zeros for no change."""
        read = change - change.mean(axis=0) if self.centered else change
        squares: Array = read.T @ read
        trace = float(np.trace(squares))
        return squares / trace if trace > 0 else squares


@dataclass(frozen=True)
class RegMean(MatrixMethod):
    """The regression mean of models, each counted along the inputs that its site's data give its layers.

    Tensors without second moments, and biases, are averaged.

    Parameters
    ----------
    off_diagonal : float
        Factor of the second moments of two different inputs. Default: 0.95.

    References
    ----------
    Jin et al. (2023), "Dataless knowledge fusion by merging weights of language models", ICLR.
    """

    name: ClassVar[str] = "regmean"
    summary: ClassVar[str] = "the mean of linear maps along the inputs that each site has (RegMean)"
    needs: ClassVar[str] = (
        "checkpoints, and a file of Kronecker factors for each (`consilience network fisher --kind kronecker`)"
    )
    paper: ClassVar[str] = "jin2023"
    needs_information: ClassVar[bool] = True
    uses_factors: ClassVar[bool] = True

    off_diagonal: float = 0.95

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield ("off_diagonal", is_number(self.off_diagonal) and 0 <= self.off_diagonal <= 1, "from 0 to 1")

    def is_matrix(self, setting: TensorSetting, facts: Facts) -> bool:
        """Return whether the inputs of a tensor are described."""
        return "moments" in facts

    def merged(self, matrices: Array, setting: TensorSetting, facts: Facts) -> Array:
        """Return the regression mean of the models (m, n), each group of a grouped convolution by itself."""
        moments: Array = facts["moments"]  # (J, groups, n, n)
        size = moments.shape[-1]
        shrunk = moments * (self.off_diagonal + (1.0 - self.off_diagonal) * np.eye(size))
        groups = np.split(matrices, moments.shape[1], axis=1)
        weights = np.array(setting.weights)
        return np.concatenate(
            [regression_mean(group, shrunk[:, number], weights, 0.0) for number, group in enumerate(groups)]
        )
