"""Merges of changes by their singular vectors: TSV-M, Iso-C and Iso-CTS, KnOTS.

D_k = U_k diag(s_k) V_k^T is a change of a common start. Directions of different tasks overlap, and what overlaps counts
several times in their sum.

- TSV-M (Gargiulo et al. 2025) keeps an equal share of each task's leading triples, and moves the stacked directions to
  the nearest orthonormal ones on either side.
- Iso-C (Marczak et al. 2025) gives all directions of the sum the mean singular value. Iso-CTS keeps the leading common
  directions, and fills the rest with directions of each task outside of them.
- KnOTS (Stoica et al. 2025) writes all changes in one basis of outputs, merges their coordinates, and goes back.

Arbitrary directions, of singular values that are rounding, are left out everywhere; published code keeps them, and
gives tasks of low rank back wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from consilience.checkpoints.methods.base import Facts, TensorSetting
from consilience.checkpoints.methods.matrices import ChangeMatrixMethod, partial_isometry, triples
from consilience.checkpoints.methods.task_vectors import are_densities, disjoint_mean
from consilience.checks import Array, is_number
from consilience.core.methods import Requirement


@dataclass(frozen=True)
class SpectralMethod(ChangeMatrixMethod):
    """A merge of changes by their singular vectors."""

    @property
    def signed(self) -> bool:
        """A change may be taken away."""
        return True

    def weighted(self, matrices: Array, setting: TensorSetting) -> Array:
        """Return the changes times their weights as given (J, m, n)."""
        return matrices * np.array(setting.weights)[:, None, None]


@dataclass(frozen=True)
class TSVM(SpectralMethod):
    """Leading singular triples of every change, an equal number of each, their directions made orthonormal.

    Parameters
    ----------
    scaling : float
        The factor of the combined change. Default: 1.

    References
    ----------
    Gargiulo et al. (2025), "Task singular vectors: reducing task interference in model merging", CVPR.
    """

    name: ClassVar[str] = "tsv_m"
    summary: ClassVar[str] = "leading singular directions of every change, made orthonormal (TSV-M)"
    paper: ClassVar[str] = "gargiulo2025"

    def merged(self, matrices: Array, setting: TensorSetting, facts: Facts) -> Array:
        """Return polar(U) diag(s) polar(V)^T (m, n) of the stacked triples."""
        changes = self.weighted(matrices, setting)
        count = max(1, min(changes.shape[1:]) // len(changes))
        lefts, values, rights = zip(*(triples(change, count) for change in changes), strict=True)
        return _joined(np.hstack(lefts), np.concatenate(values), np.hstack(rights))


def _joined(left: Array, values: Array, right: Array) -> Array:
    """Return polar(U) diag(s) polar(V)^T (m, n)."""
    joined: Array = (partial_isometry(left) * values) @ partial_isometry(right).T
    return joined


@dataclass(frozen=True)
class Iso(SpectralMethod):
    """Directions of the summed changes with one singular value for all (Iso-C), or with some of every task (Iso-CTS).

    Parameters
    ----------
    scaling : float
        The factor of the combined change. Default: 1.
    common : float
        Share of directions that are those of the sum; the others are of each task, outside of them. 1 is Iso-C, 0.8 the
        Iso-CTS of the paper. Default: 1.

    References
    ----------
    Marczak et al. (2025), "No task left behind: isotropic model merging with common and task-specific subspaces", ICML.
    """

    name: ClassVar[str] = "iso"
    summary: ClassVar[str] = "one singular value for all directions of the summed changes (Iso-C, Iso-CTS)"
    paper: ClassVar[str] = "marczak2025"

    common: float = 1.0

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield ("common", is_number(self.common) and 0 < self.common <= 1, "above 0 and at most 1")

    def merged(self, matrices: Array, setting: TensorSetting, facts: Facts) -> Array:
        """Return the mean singular value times polar(U) polar(V)^T (m, n)."""
        changes = self.weighted(matrices, setting)
        n_tasks, size = len(changes), min(changes.shape[1:])
        per_task = min(round((size - int(self.common * size)) / n_tasks), (size - 1) // n_tasks)
        left, values, right = triples(changes.sum(axis=0), size - n_tasks * per_task)
        parts = [(left, values, right)]
        if per_task:
            parts += [triples(change - left @ (left.T @ change), per_task) for change in changes]
        lefts, all_values, rights = zip(*parts, strict=True)
        found = np.concatenate(all_values)
        mean = float(found.mean()) if len(found) else 0.0
        return _joined(np.hstack(lefts), np.full(len(found), mean), np.hstack(rights))


@dataclass(frozen=True)
class KnOTS(SpectralMethod):
    """Changes written in one basis of outputs, their coordinates merged by TIES or averaged.

    Parameters
    ----------
    scaling : float
        The factor of the combined change. Default: 1.
    combine : {"ties", "linear"}
        "ties": coordinates are trimmed and their signs elected. "linear": the weighted mean, which is that of the
        changes themselves. Default: "ties".
    density : float or sequence of J floats
        Share of each change's coordinates that "ties" keeps, the largest ones. Default: 0.2.

    References
    ----------
    Stoica et al. (2025), "Model merging with SVD to tie the Knots", ICLR.
    """

    name: ClassVar[str] = "knots"
    summary: ClassVar[str] = "changes in one basis of singular vectors, merged there by TIES (KnOTS)"
    paper: ClassVar[str] = "stoica2025"

    combine: Literal["ties", "linear"] = "ties"
    density: float | tuple[float, ...] = 0.2

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield ("combine", self.combine in ("linear", "ties"), "'linear' or 'ties'")
        yield ("density", are_densities(self.density), "above 0 and at most 1")

    def merged(self, matrices: Array, setting: TensorSetting, facts: Facts) -> Array:
        """Return U times the merged coordinates (m, n)."""
        if self.combine == "linear":
            return np.einsum("k,kmn->mn", setting.normalised_weights, matrices)
        left, values, _ = triples(np.hstack(list(matrices)))
        if not len(values):
            return np.zeros(matrices.shape[1:])
        rows = np.abs(left).argmax(axis=0)
        basis = left * np.sign(left[rows, np.arange(left.shape[1])])  # otherwise signs are the decomposition's choice
        coordinates = basis.T @ matrices  # (J, r, n)
        densities = self.density if isinstance(self.density, tuple | list) else [self.density] * len(matrices)
        for one, density in zip(coordinates, densities, strict=True):
            magnitudes = np.abs(one)
            kept = max(1, round(density * one.size))
            one[magnitudes < np.partition(magnitudes, one.size - kept, axis=None)[one.size - kept]] = 0.0
        merged: Array = basis @ disjoint_mean(list(coordinates), setting.weights, normalize=True)
        return merged
