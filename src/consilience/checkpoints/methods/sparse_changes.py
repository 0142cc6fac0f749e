"""Breadcrumbs, DELLA and SCE: changes of a common start, thinned out by size, rank or variance, and combined.

    delta_k = theta_k - base,        theta = base + scaling * combined(masked delta_1, ..., masked delta_J)

- Breadcrumbs (Davari and Belilovsky 2024) drops the largest entries of each change and the smallest ones.
- DELLA (Deep et al. 2024) drops at random, each row's small entries more likely: the r-th smallest of n is kept with
  probability p - epsilon + 2 epsilon (r - 1) / (n - 1), and divided by it.
- SCE (Wan et al. 2024) keeps the entries whose changes vary most between models, weighs every model by the square of
  what is kept of its change, elects signs, and averages those that agree.

What is kept is combined by a weighted sum, or by election of signs as in TIES.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from consilience.checkpoints.methods.base import Facts, Floats, TensorBlock, TensorSetting, linear
from consilience.checkpoints.methods.order_statistics import (
    PASSES,
    RANK_PASSES,
    conclude_ranks,
    count_patterns,
    magnitudes,
    settle_ranks,
    survey_ranks,
)
from consilience.checkpoints.methods.task_vectors import (
    TaskVectorMethod,
    coefficients,
    disjoint_mean,
    dropout_mask,
    sizes_of_changes,
    task_vectors,
)
from consilience.checks import is_number
from consilience.core.methods import Requirement

Combine = Literal["linear", "ties"]


@dataclass(frozen=True)
class MaskedChanges(TaskVectorMethod):
    """A method that masks changes and then combines them."""

    combine: Combine = "linear"
    normalize: bool = False

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield ("combine", self.combine in ("linear", "ties"), "'linear' or 'ties'")

    def combined(self, block: TensorBlock, deltas: list[Floats], setting: TensorSetting) -> Floats:
        """Return base + scaling * what the masked changes come to (n,)."""
        if self.combine == "ties":
            return self.put_back(block, disjoint_mean(deltas, setting.weights, self.normalize))
        return self.put_back(block, linear(deltas, coefficients(setting, self.normalize)))


@dataclass(frozen=True)
class Breadcrumbs(MaskedChanges):
    """Changes without their largest and their smallest entries, added up.

    Parameters
    ----------
    scaling : float
        lambda: the factor of the combined change. Default: 1.
    combine : {"linear", "ties"}
        A weighted sum, or election of signs as in TIES. Default: "linear".
    normalize : bool
        Whether the weighted sum is divided by the sum of the weights. Default: False.
    density : float
        Fraction of the entries of each change that is kept in each tensor, of those below the largest. Default: 0.9.
    gamma : float
        Fraction of the entries that is dropped for being the largest. Default: 0.01.

    References
    ----------
    Davari, Belilovsky (2024), "Model breadcrumbs: scaling multi-task model merging with sparse masks", ECCV.
    """

    name: ClassVar[str] = "breadcrumbs"
    summary: ClassVar[str] = "drop the largest and the smallest changes of a common start, add up the rest"
    paper: ClassVar[str] = "davari2024"
    surveys_in_single: ClassVar[bool] = True
    samples_first: ClassVar[bool] = True

    density: float = 0.9
    gamma: float = 0.01

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        fits = is_number(self.density) and is_number(self.gamma) and self.density > 0 and self.density + self.gamma <= 1
        yield ("density", fits, "above 0, and with gamma at most 1")

    @property
    def surveys(self) -> int:
        """Passes for both thresholds."""
        return RANK_PASSES

    def knows_enough(self, facts: Facts) -> bool:
        """Return whether the thresholds are found."""
        return "values" in facts

    def survey(self, number: int, block: TensorBlock, setting: TensorSetting, facts: Facts) -> Any:
        """Return what a pass finds of the magnitudes of each change; see `order_statistics`."""
        return survey_ranks(number, sizes_of_changes(block), facts)

    def conclude(self, number: int, total: Any, setting: TensorSetting, facts: Facts) -> Facts:
        """Return of every model the largest and the smallest magnitude that is kept."""
        n_top = min(round(self.gamma * setting.size), setting.size - 1)
        last = min(setting.size, n_top + max(1, round(self.density * setting.size)))
        queries = [(model, rank) for model in range(len(setting.weights)) for rank in (n_top + 1, last)]
        return settle_ranks(number, total, facts, queries, setting.size)

    def merge(self, block: TensorBlock, setting: TensorSetting, facts: Facts) -> Floats:
        """Return base + scaling * the combined changes (n,)."""
        deltas = task_vectors(block)
        for delta, (largest, smallest) in zip(deltas, facts["values"].reshape(-1, 2), strict=True):
            size = magnitudes(delta)
            delta *= (size <= largest) & (size >= smallest)
        return self.combined(block, deltas, setting)


@dataclass(frozen=True)
class DELLA(MaskedChanges):
    """Changes with entries dropped at random, the small ones of each row more likely, and the rest scaled up.

    Parameters
    ----------
    scaling : float
        lambda: the factor of the combined change. Default: 1.
    combine : {"linear", "ties"}
        A weighted sum, or election of signs as in TIES. Default: "ties".
    normalize : bool
        Whether the weighted sum is divided by the sum of the weights. Default: True.
    density : float
        Mean probability p of an entry to be kept. Default: 0.5.
    epsilon : float
        How far the probabilities of the smallest and the largest entry of a row are from p. Default: 0.15.
    rescale : bool
        Whether kept entries are divided by their own probability, as in the paper. Default: True.

    References
    ----------
    Deep, Bhardwaj, Poria (2024), "DELLA-merging: reducing interference in model merging through magnitude-based
    sampling".
    """

    name: ClassVar[str] = "della"
    summary: ClassVar[str] = "drop changes of a common start at random, small ones more likely, scale up the rest"
    paper: ClassVar[str] = "deep2024"
    whole_rows: ClassVar[bool] = True

    combine: Combine = "ties"
    normalize: bool = True
    density: float = 0.5
    epsilon: float = 0.15
    rescale: bool = True

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        fits = is_number(self.density) and is_number(self.epsilon)
        fits = fits and self.density - self.epsilon > 0 and self.density + self.epsilon <= 1
        yield ("density", fits or (self.density == 1 and is_number(self.epsilon)), "1, or with epsilon in (0, 1)")

    def merge(self, block: TensorBlock, setting: TensorSetting, facts: Facts) -> Floats:
        """Return base + scaling * the combined changes (n,)."""
        deltas = task_vectors(block)
        for model, delta in enumerate(deltas if self.density < 1 else ()):
            keep = self._probabilities(delta.reshape(-1, setting.row_length)).ravel()
            delta *= dropout_mask(setting, model, block.number, len(delta), keep)
            if self.rescale:
                delta /= keep
        return self.combined(block, deltas, setting)

    def _probabilities(self, rows: Floats) -> Floats:
        """Return the probability of every entry (rows, n) to be kept, by its rank in its row."""
        n = rows.shape[1]
        if n == 1:
            return np.full(rows.shape, self.density)
        order = np.argsort(magnitudes(rows), axis=1, kind="stable")
        ranks = np.empty(rows.shape)
        np.put_along_axis(ranks, order, np.arange(n, dtype=np.float64)[None, :], axis=1)
        probabilities: Floats = self.density - self.epsilon + 2.0 * self.epsilon * ranks / (n - 1)
        return probabilities


@dataclass(frozen=True)
class SCE(TaskVectorMethod):
    """Changes where models vary most, weighed by their squares, signs elected.

    Parameters
    ----------
    scaling : float
        lambda: the factor of the combined change. Default: 1.
    select : float
        Fraction of the entries in which models differ that is kept, those of the largest variance. Default: 1.

    References
    ----------
    Wan et al. (2024), "FuseChat: knowledge fusion of chat models". "sce" of mergekit weighs models alike where the sum
    of squares is below 1e-6; here only where it is 0.
    """

    name: ClassVar[str] = "sce"
    summary: ClassVar[str] = "select changes that vary most, weigh models by their squares, elect signs (SCE)"
    paper: ClassVar[str] = "wan2024"
    takes_weights: ClassVar[bool] = False
    least: ClassVar[int] = 2

    select: float = 1.0

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield ("select", is_number(self.select) and 0 < self.select <= 1, "above 0 and at most 1")

    @property
    def surveys(self) -> int:
        """Two passes for the threshold of variances, where not all are selected; one for squares."""
        return 1 if self.select == 1 else PASSES + 1

    def survey(self, number: int, block: TensorBlock, setting: TensorSetting, facts: Facts) -> NDArray[Any]:
        """Return histograms of the variances over models, and in the last pass sums of squares (J,)."""
        deltas = task_vectors(block)
        if number < self.surveys - 1:
            return count_patterns(number, [_variances(deltas)], facts)
        is_kept = self._is_kept(deltas, facts)
        return np.array([float(np.square(delta[is_kept]).sum()) for delta in deltas])

    def conclude(self, number: int, total: NDArray[Any], setting: TensorSetting, facts: Facts) -> Facts:
        """Return the threshold of variances, and the weights of models."""
        if number < self.surveys - 1:

            def queries(n_present: NDArray[Any]) -> list[tuple[int, int]]:
                return [(0, max(1, round(self.select * int(n_present[0]))))]

            return conclude_ranks(number, total, facts, queries)
        squares = float(total.sum())
        shares = total / squares if squares > 0 else np.full(len(total), 1.0 / len(total))
        return {**facts, "shares": shares.tolist()}

    def merge(self, block: TensorBlock, setting: TensorSetting, facts: Facts) -> Floats:
        """Return base + scaling * the mean of the selected changes that agree (n,)."""
        deltas = task_vectors(block)
        dropped = ~self._is_kept(deltas, facts)
        for delta in deltas:
            delta[dropped] = 0.0
        sign = np.sign(sum(deltas))
        shares = facts["shares"]
        numerator, denominator = np.zeros_like(deltas[0]), np.zeros_like(deltas[0])
        for share, delta in zip(shares, deltas, strict=True):
            agrees = delta * sign > 0
            numerator += np.where(agrees, share * delta, 0.0)
            denominator += share * agrees
        mean = np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)
        return self.put_back(block, mean)

    def _is_kept(self, deltas: list[Floats], facts: Facts) -> NDArray[np.bool_]:
        """Return which entries are selected (n,)."""
        if self.select == 1:
            return np.ones(len(deltas[0]), dtype=np.bool_)
        kept: NDArray[np.bool_] = _variances(deltas) >= facts["values"][0]
        return kept


def _variances(deltas: list[Floats]) -> NDArray[np.float32]:
    """Return the variance over models of every entry (n,), in 32 bits."""
    mean = sum(deltas) / len(deltas)
    return np.asarray(sum(np.square(delta - mean) for delta in deltas) / len(deltas), dtype=np.float32)
