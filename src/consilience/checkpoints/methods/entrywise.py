"""Methods that look at one entry, or one row, of every model: NearSwap, RAM, Arcee Fusion, and one model as it is.

nearswap      theta = base + clip(theta_1 - base, -t, t)
ram           the mean of the changes that are larger than eps, over the models that have one (RAM); entries of one
model alone times 1 + r min(rho, alpha) (RAM+), rho shared over unique entries of that model
arcee_fusion  base + those changes whose importance is beyond the upper fence of its quartiles
passthrough   scale * theta_1
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from consilience.checkpoints.methods.base import Facts, Floats, TensorBlock, TensorMethod, TensorSetting
from consilience.checkpoints.methods.order_statistics import PASSES, conclude_ranks, count_patterns
from consilience.checkpoints.methods.task_vectors import TaskVectorMethod, task_vectors
from consilience.checks import is_finite, is_number
from consilience.core.methods import Requirement

SOFTENING = 1e-8
"""Added to probabilities of `ArceeFusion`, as there."""
FENCE = 1.5
"""Interquartile ranges above the median from which a change is important, as in `ArceeFusion`."""


@dataclass(frozen=True)
class NearSwap(TensorMethod):
    """The base, moved towards one model by no more than t in any entry.

    Parameters
    ----------
    t : float
        The most that an entry changes.

    References
    ----------
    "nearswap" of mergekit: a heuristic without a paper.
    """

    name: ClassVar[str] = "nearswap"
    summary: ClassVar[str] = "the base, every entry moved towards a model by t at most"
    needs: ClassVar[str] = "one checkpoint, and a base of its architecture"
    paper: ClassVar[str] = "goddard2024"
    needs_base: ClassVar[bool] = True
    count: ClassVar[int | None] = 1
    takes_weights: ClassVar[bool] = False

    t: float = 1e-3

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield ("t", is_number(self.t), "a number, not negative")

    def merge(self, block: TensorBlock, setting: TensorSetting, facts: Facts) -> Floats:
        """Return base + clip(theta - base, -t, t) (n,)."""
        assert block.base is not None  # noqa: S101  (plans give one to every method that needs it)
        (delta,) = task_vectors(block)
        return np.asarray(block.base + np.clip(delta, -self.t, self.t))


@dataclass(frozen=True)
class RAM(TaskVectorMethod):
    """The mean of changes over the models that have one; changes of one model alone may count for more.

    Parameters
    ----------
    scaling : float
        lambda: the factor of the combined change. Default: 1.
    epsilon : float
        Magnitude up to which an entry has not changed. Default: 1e-5.
    boost : float
        r: how much more an entry counts that one model alone has changed; 0 for RAM, 0.1 in RAM+. Default: 0.
    limit : float
        alpha: the largest ratio of shared to unique entries of a model that counts for that. Default: 0.2.

    References
    ----------
    "ram" and "ramplus_tl" of mergekit.
    """

    name: ClassVar[str] = "ram"
    summary: ClassVar[str] = "the mean of changes of a common start, over the models that have one (RAM)"
    paper: ClassVar[str] = "goddard2024"

    epsilon: float = 1e-5
    boost: float = 0.0
    limit: float = 0.2

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        for name in ("epsilon", "boost", "limit"):
            yield (name, is_number(getattr(self, name)), "a number, not negative")

    @property
    def surveys(self) -> int:
        """One pass, for the ratio of shared to unique entries, where it counts."""
        return 1 if self.boost else 0

    def survey(self, number: int, block: TensorBlock, setting: TensorSetting, facts: Facts) -> NDArray[Any]:
        """Return how many entries of each model others have changed too, and how many none has (J, 2)."""
        has_changed = [np.abs(delta) > self.epsilon for delta in task_vectors(block)]
        n_changed = np.sum(has_changed, axis=0)
        return np.array([[np.sum(one & (n_changed > 1)), np.sum(one & (n_changed == 1))] for one in has_changed])

    def conclude(self, number: int, total: NDArray[Any], setting: TensorSetting, facts: Facts) -> Facts:
        """Return the factor of entries that one model alone has changed, by model."""
        shared, unique = total.T.astype(np.float64)
        ratio = np.divide(shared, unique, out=np.zeros_like(shared), where=unique > 0)
        return {"factors": (1.0 + self.boost * np.minimum(ratio, self.limit)).tolist()}

    def merge(self, block: TensorBlock, setting: TensorSetting, facts: Facts) -> Floats:
        """Return base + scaling * the mean over the models that have a change (n,)."""
        deltas = task_vectors(block)
        has_changed = [np.abs(delta) > self.epsilon for delta in deltas]
        n_changed = np.sum(has_changed, axis=0)
        factors = facts.get("factors", [1.0] * len(deltas))
        top, bottom = np.zeros_like(deltas[0]), np.zeros_like(deltas[0])
        for delta, one, weight, factor in zip(deltas, has_changed, setting.weights, factors, strict=True):
            alone = np.where(n_changed == 1, factor, 1.0) if factor != 1.0 else 1.0
            top += np.where(one, weight * alone * delta, 0.0)
            bottom += abs(weight) * one
        return self.put_back(block, np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0))


@dataclass(frozen=True)
class ArceeFusion(TensorMethod):
    """The changes of one model that matter most, put into the base.

    With p and q the softmax of a row of the model and of the base, the importance of an entry is |delta| times the
    row's divergence KL(p || q); entries are taken from the median plus 1.5 interquartile ranges on.

    References
    ----------
    "arcee_fusion" of mergekit: a heuristic without a paper.
    """

    name: ClassVar[str] = "arcee_fusion"
    summary: ClassVar[str] = "the base with those changes of a model whose importance is beyond its quartiles' fence"
    needs: ClassVar[str] = "one checkpoint, and what it was trained from as the base"
    paper: ClassVar[str] = "goddard2024"
    needs_base: ClassVar[bool] = True
    count: ClassVar[int | None] = 1
    takes_weights: ClassVar[bool] = False
    whole_rows: ClassVar[bool] = True

    @property
    def surveys(self) -> int:
        """Two passes for the quartiles of the importance."""
        return PASSES

    def survey(self, number: int, block: TensorBlock, setting: TensorSetting, facts: Facts) -> NDArray[Any]:
        """Return histograms of the importance."""
        return count_patterns(number, [_importance(block, setting)], facts)

    def conclude(self, number: int, total: NDArray[Any], setting: TensorSetting, facts: Facts) -> Facts:
        """Return the quartiles, by index int(q (n - 1)) from the smallest."""
        ranks = [setting.size - int(q * (setting.size - 1)) for q in (0.25, 0.5, 0.75)]
        return conclude_ranks(number, total, facts, lambda _: [(0, rank) for rank in ranks])

    def merge(self, block: TensorBlock, setting: TensorSetting, facts: Facts) -> Floats:
        """Return base + the important changes (n,)."""
        assert block.base is not None  # noqa: S101  (as above)
        first, median, third = (float(value) for value in facts["values"])
        is_important = _importance(block, setting) >= median + FENCE * (third - first)
        return np.where(is_important, block.models[0], block.base)


def _importance(block: TensorBlock, setting: TensorSetting) -> NDArray[np.float32]:
    """Return |delta| KL(softmax(theta) || softmax(base)) of every entry, the divergence that of its row (n,)."""
    assert block.base is not None  # noqa: S101  (as above)
    model, base = (np.reshape(values, (-1, setting.row_length)) for values in (block.models[0], block.base))
    p, q = (np.exp(rows - logsumexp(rows, axis=1, keepdims=True)) + SOFTENING for rows in (model, base))
    divergence = np.maximum((p * np.log(p / q)).sum(axis=1, keepdims=True), 0.0)
    return np.asarray(np.abs(model - base) * divergence, dtype=np.float32).ravel()


@dataclass(frozen=True)
class Passthrough(TensorMethod):
    """One model as it is, or times a number: for layers that are stacked or left out.

    Parameters
    ----------
    scale : float
        What every entry is multiplied by. Default: 1.

    References
    ----------
    "passthrough" of mergekit.
    """

    name: ClassVar[str] = "passthrough"
    summary: ClassVar[str] = "one model as it is, or times a number"
    needs: ClassVar[str] = "one checkpoint"
    paper: ClassVar[str] = "goddard2024"
    count: ClassVar[int | None] = 1
    takes_weights: ClassVar[bool] = False
    shows: ClassVar[bool] = True

    scale: float = 1.0

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield ("scale", is_finite(self.scale), "a number")

    def merge(self, block: TensorBlock, setting: TensorSetting, facts: Facts) -> Floats:
        """Return scale * theta (n,)."""
        (model,) = block.models
        return model if self.scale == 1.0 else np.asarray(model * self.scale)
