"""Methods whose result is a combination of the models with coefficients from their inner products alone.

With z_1 = theta_1 and z_k = theta_k - theta_1, or with a base z_k = theta_k - base, one pass over a tensor gives the
Gram matrix G = Z Z^T (J, J), and all methods here are

    theta = origin + sum_k c_k z_k,        c = c(G, weights),

origin 0, or the base. Differences keep the digits of small angles: models of one start differ by little. Where rows or
columns of a matrix are vectors of their own there is a G for each.

- Multislerp: the mean of directions u_k = y_k / |y_k|, brought to the length sum_k w_k |y_k|, y_k the models or their
  changes.
- Karcher mean: the direction with the least sum of squared angles to all; the length is the mean of the lengths.
- NuSLERP: two models on the arc, by their weights.
- Model Stock (Jang et al. 2024): base + t mean(delta), t from the mean cosine of the changes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from consilience.checkpoints.methods.base import (
    Facts,
    Floats,
    TensorBlock,
    TensorMethod,
    TensorSetting,
)
from consilience.checks import Array, is_count, is_number
from consilience.core.methods import Requirement

Axis = Literal["rows", "columns"]
"""Of a matrix, which vectors have angles of their own: those of an output, or those of an input."""


@dataclass(eq=False)
class GroupSums:
    """Sums for each of some groups of entries, of which a block has a part."""

    first: int  # number of the first group
    values: Array  # (groups of the part, ...)
    n_groups: int  # of the tensor

    def __add__(self, other: GroupSums) -> GroupSums:
        """Return both together; the sums of all groups are made once, and added to in place."""
        whole = self
        if len(self.values) < self.n_groups:
            whole = GroupSums(0, np.zeros((self.n_groups, *self.values.shape[1:])), self.n_groups)
            whole.values[self.first : self.first + len(self.values)] = self.values
        whole.values[other.first : other.first + len(other.values)] += other.values
        return whole

    @property
    def whole(self) -> Array:
        """The sums of all groups."""
        return (GroupSums(0, np.zeros((self.n_groups, *self.values.shape[1:])), self.n_groups) + self).values


@dataclass(frozen=True)
class InnerProductMethod(TensorMethod):
    """A method that needs nothing but the inner products of the models, or of their changes."""

    takes_base: ClassVar[bool] = True

    @property
    def divides_by_sum(self) -> bool:
        """Weights are shares."""
        return bool(getattr(self, "normalize", True))

    @property
    def surveys(self) -> int:
        """One pass, for the inner products."""
        return 1

    def survey(self, number: int, block: TensorBlock, setting: TensorSetting, facts: Facts) -> Any:
        """Return the Gram matrix of a block (1, J, J), or of every group of its entries."""
        rows = _differences(block)
        groups, first, n_groups = _groups(getattr(self, "axis", None), block, setting)
        if groups is None:
            stacked = np.stack(rows)
            return GroupSums(0, (stacked @ stacked.T)[None], 1)
        count = int(groups[-1]) + 1 if getattr(self, "axis", None) == "rows" else n_groups
        sums = np.empty((count, len(rows), len(rows)))
        for k, one in enumerate(rows):
            for j, other in enumerate(rows[: k + 1]):
                sums[:, k, j] = sums[:, j, k] = np.bincount(groups, weights=one * other, minlength=count)
        return GroupSums(first, sums, n_groups)

    def conclude(self, number: int, total: Any, setting: TensorSetting, facts: Facts) -> Facts:
        """Return the coefficients c (groups, J)."""
        gram: Array = total.whole
        return {"coefficients": np.stack([self.coefficients(one, setting) for one in gram])}

    def merge(self, block: TensorBlock, setting: TensorSetting, facts: Facts) -> Floats:
        """Return origin + sum_k c_k z_k (n,)."""
        coefficients: Array = facts["coefficients"]
        groups, first, _ = _groups(getattr(self, "axis", None), block, setting)
        total: Any = None
        for number, row in enumerate(_differences(block)):
            factor: Any = coefficients[0, number] if groups is None else coefficients[first + groups, number]
            if groups is None and factor == 0.0:
                continue
            term = row if groups is None and factor == 1.0 else row * factor
            total = term if total is None else total + term
        if block.base is not None:
            return block.base if total is None else np.asarray(block.base + total)
        return np.zeros_like(block.models[0]) if total is None else np.asarray(total)

    @abstractmethod
    def coefficients(self, gram: Array, setting: TensorSetting) -> Array:
        """Return the coefficients c (J,) of z, from their Gram matrix (J, J)."""


def _differences(block: TensorBlock) -> list[Floats]:
    """Return z (J arrays of n): the first model and the differences to it, or with a base all changes of it."""
    if block.base is not None:
        return [model - block.base for model in block.models]
    first, *others = block.models
    return [first, *(model - first for model in others)]


def _groups(axis: Axis | None, block: TensorBlock, setting: TensorSetting) -> tuple[NDArray[np.intp] | None, int, int]:
    """Return the group of every entry, from that of the first one on, the first group, and how many there are.

    None where the tensor is one group.
    """
    if axis is None or len(setting.shape) < 2 or not setting.size:
        return None, 0, 1
    n_inputs = setting.size // setting.shape[0]
    entries = block.start + np.arange(len(block.models[0]))
    if axis == "columns":
        return entries % n_inputs, 0, n_inputs
    rows = entries // n_inputs
    return rows - rows[0], int(rows[0]), setting.shape[0]


@dataclass(frozen=True, eq=False)
class _Vectors:
    """The models, or their changes, as combinations of z."""

    rows: Array  # (J, J): y_k = sum_l rows_kl z_l
    gram: Array  # (J, J): of z

    @classmethod
    def of(cls, gram: Array, has_base: bool) -> _Vectors:
        rows = np.eye(len(gram))
        if not has_base:
            rows[:, 0] = 1.0
        return cls(rows, gram)

    def norm(self, combination: Array) -> float:
        """Return the norm of a combination of z."""
        return float(np.sqrt(max(0.0, float(combination @ self.gram @ combination))))

    @property
    def norms(self) -> Array:
        """Norms (J,) of the vectors."""
        return np.array([self.norm(row) for row in self.rows])

    def directions(self, norms: Array) -> Array:
        """Return the unit vectors (J, J) as combinations; zero for a vector of none."""
        return np.divide(self.rows, norms[:, None], out=np.zeros_like(self.rows), where=norms[:, None] > 0)


@dataclass(frozen=True)
class Multislerp(InnerProductMethod):
    """The weighted mean of directions, at the weighted mean of lengths; with a base, of the models' changes.

    Parameters
    ----------
    normalize : bool
        Whether weights are divided by their sum. Default: True.

    References
    ----------
    "multislerp" of mergekit, whose step in the tangent space is zero: what it computes is this.
    """

    name: ClassVar[str] = "multislerp"
    summary: ClassVar[str] = "the mean of directions, at the mean length: many models on a sphere"
    needs: ClassVar[str] = "checkpoints of one common start; or with it as the base, their changes"
    paper: ClassVar[str] = "goddard2024"

    normalize: bool = True

    @property
    def signed(self) -> bool:
        """Directions may be taken away."""
        return True

    def coefficients(self, gram: Array, setting: TensorSetting) -> Array:
        """Return the coefficients of z; see `InnerProductMethod.coefficients`."""
        weights = np.array(setting.weights)
        shares = weights / weights.sum() if self.normalize else weights
        vectors = _Vectors.of(gram, setting.has_base)
        norms = vectors.norms
        mean = shares @ vectors.directions(norms)
        length = vectors.norm(mean)
        return _scaled(mean, float(shares @ norms) / length) if length > 0 else np.zeros(len(gram))


@dataclass(frozen=True)
class Karcher(InnerProductMethod):
    """The direction nearest to all by angle, at the mean length; with a base, of the models' changes.

    Parameters
    ----------
    max_iterations : int
        Steps at most. Default: 10.
    tolerance : float
        Angle, in radians, below which a step is the last. Default: 1e-5.

    References
    ----------
    Karcher (1977), "Riemannian center of mass and mollifier smoothing", CPAM; "karcher" of mergekit.
    """

    name: ClassVar[str] = "karcher"
    summary: ClassVar[str] = "the mean direction by angle (Karcher mean), at the mean length"
    needs: ClassVar[str] = "checkpoints of one common start; or with it as the base, their changes"
    paper: ClassVar[str] = "karcher1977"

    max_iterations: int = 10
    tolerance: float = 1e-5

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield ("max_iterations", is_count(self.max_iterations), "a positive integer")
        yield ("tolerance", is_number(self.tolerance) and self.tolerance > 0, "a positive number")

    def coefficients(self, gram: Array, setting: TensorSetting) -> Array:
        """Return the coefficients of z; see `InnerProductMethod.coefficients`."""
        weights = np.array(setting.weights)
        vectors = _Vectors.of(gram, setting.has_base)
        norms = vectors.norms
        units, shares = vectors.directions(norms), weights / weights.sum()
        present = np.where(norms > 0, shares, 0.0)
        if not present.any():
            return np.zeros(len(gram))
        present = present / present.sum()
        mean = present @ units
        length = vectors.norm(mean)
        if length == 0:  # opposite directions have no mean
            return np.zeros(len(gram))
        mean = mean / length
        for _ in range(self.max_iterations):
            step = np.zeros(len(gram))
            for share, unit in zip(present, units, strict=True):
                if share:
                    step += share * _logarithm(vectors, mean, unit)
            angle = vectors.norm(step)
            if angle == 0:
                break
            mean = np.cos(angle) * mean + np.sin(angle) / angle * step
            mean = mean / vectors.norm(mean)
            if angle < self.tolerance:
                break
        return _scaled(mean, float(shares @ norms))


def _logarithm(vectors: _Vectors, at: Array, unit: Array) -> Array:
    """Return the tangent at a unit vector that leads to another one, of the length of the angle between them."""
    chord = unit - at
    angle = 2.0 * float(np.arcsin(min(1.0, vectors.norm(chord) / 2.0)))
    tangent: Array = chord + 2.0 * np.sin(angle / 2.0) ** 2 * at  # unit - cos(angle) at
    length = vectors.norm(tangent)
    return tangent * (angle / length) if length > 0 else np.zeros_like(at)


def _scaled(combination: Array, length: float) -> Array:
    """Return a combination times a length; of equal models exactly the model, whatever was rounded on the way."""
    scaled: Array = combination * length
    near = np.rint(scaled)
    return np.where(np.abs(scaled - near) < 1e-14, near, scaled)


@dataclass(frozen=True)
class NuSLERP(InnerProductMethod):
    """Two models on the arc between them, by their weights; with a base, of their changes.

    Parameters
    ----------
    axis : {"rows", "columns"}, optional
        Interpolate every row or column of a matrix on an arc of its own: a row is what one output reads. Default: None,
        the whole tensor.

    References
    ----------
    Shoemake (1985), "Animating rotation with quaternion curves", SIGGRAPH; "nuslerp" of mergekit.
    """

    name: ClassVar[str] = "nuslerp"
    summary: ClassVar[str] = "two models on the arc between them by their weights; or their changes of a base"
    needs: ClassVar[str] = "two checkpoints of one common start; or with it as the base, their changes"
    paper: ClassVar[str] = "shoemake1985"
    count: ClassVar[int | None] = 2

    axis: Axis | None = None

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield ("axis", self.axis in (None, "rows", "columns"), "'rows', 'columns' or None")

    @property
    def signed(self) -> bool:
        """The arc goes on beyond its ends."""
        return True

    @property
    def divides_by_sum(self) -> bool:
        """Of weights that sum to 0 the middle is taken."""
        return False

    def coefficients(self, gram: Array, setting: TensorSetting) -> Array:
        """Return the coefficients of z; see `InnerProductMethod.coefficients`."""
        weights = np.array(setting.weights)
        total = float(weights.sum())
        t = 0.5 if abs(total) < 1e-6 else float(weights[1]) / total
        vectors = _Vectors.of(gram, setting.has_base)
        norms = vectors.norms
        line = (1.0 - t) * vectors.rows[0] + t * vectors.rows[1]
        if float(norms.min()) == 0:
            return line
        first, second = vectors.directions(norms)
        angle = 2.0 * float(np.arcsin(min(1.0, vectors.norm(second - first) / 2.0)))
        if np.sin(angle) < 1e-8:  # parallel or opposite
            return line
        factors = np.sin((1.0 - t) * angle) / np.sin(angle), np.sin(t * angle) / np.sin(angle)
        return np.asarray(factors[0] * vectors.rows[0] + factors[1] * vectors.rows[1])


@dataclass(frozen=True)
class ModelStock(InnerProductMethod):
    """The mean of changes of a common start, as far from it as their angles suggest.

    With c the mean cosine between the changes of J models, t = J c / (1 + (J - 1) c), between 0 and 1.

    Parameters
    ----------
    axis : {"rows", "columns"}, optional
        A t for every row or column of a matrix. Default: None, one for the whole tensor.

    References
    ----------
    Jang, Yun, Han (2024), "Model Stock: all we need is just a few fine-tuned models", ECCV.
    """

    name: ClassVar[str] = "model_stock"
    summary: ClassVar[str] = "the mean of changes of a common start, shortened by how far they disagree"
    needs: ClassVar[str] = "two checkpoints or more trained from one start, and that start as the base"
    paper: ClassVar[str] = "jang2024"
    needs_base: ClassVar[bool] = True
    least: ClassVar[int] = 2
    takes_weights: ClassVar[bool] = False

    axis: Axis | None = None

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield ("axis", self.axis in (None, "rows", "columns"), "'rows', 'columns' or None")

    def coefficients(self, gram: Array, setting: TensorSetting) -> Array:
        """Return the coefficients of z; see `InnerProductMethod.coefficients`."""
        j = len(gram)
        norms = np.sqrt(np.diagonal(gram))
        products = np.outer(norms, norms)
        cosines = np.divide(gram, products, out=np.zeros_like(gram), where=products > 0)
        c = float(cosines[np.triu_indices(j, 1)].mean())
        bottom = 1.0 + (j - 1) * c
        t = min(1.0, max(0.0, j * c / bottom)) if bottom > 0 else 0.0
        return np.full(j, t / j)
