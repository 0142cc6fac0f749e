"""Task arithmetic, TIES and DARE: merging fine-tuned checkpoints by their task vectors.

    delta_k = theta_k - base,        theta = base + scaling * combined(delta_1, ..., delta_J)

with theta_k the entries of model k, base those of the common start, and delta_k the task vector of model k.

- Task arithmetic (Ilharco et al. 2023) adds up: combined = sum_k w_k delta_k. A negative weight takes a skill away.
- TIES (Yadav et al. 2023) *trims* each delta_k to its largest entries, *elects* the sign s = sign(sum_k w_k delta_k) of
  every entry, and takes the mean of the *disjoint* set of models whose entry has that sign.
- DARE (Yu et al. 2024) drops entries at random and divides the others by the probability p of being kept, which leaves
  the expectation of delta_k unchanged; then the weighted mean, or election and mean as in TIES.

Thresholds are exact and are taken tensor by tensor (``order_statistics``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from consilience.checkpoints.methods.base import Facts, Floats, TensorBlock, TensorMethod, TensorSetting, linear
from consilience.checkpoints.methods.order_statistics import (
    RANK_PASSES,
    magnitudes,
    settle_ranks,
    survey_ranks,
)
from consilience.checks import is_finite, is_number
from consilience.core.methods import Requirement


@dataclass(frozen=True)
class TaskVectorMethod(TensorMethod):
    """A method that combines task vectors, the changes of a common start."""

    needs_base: ClassVar[bool] = True
    needs: ClassVar[str] = "checkpoints trained from one start, and that start as the base"

    scaling: float = 1.0  # lambda: the factor of the combined change

    @property
    def signed(self) -> bool:
        """A change may be taken away (Ilharco et al. 2023, section 3)."""
        return True

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield ("scaling", is_finite(self.scaling), "a number")

    def put_back(self, block: TensorBlock, combined: Floats) -> Floats:
        """Return base + scaling * combined (n,)."""
        assert block.base is not None  # noqa: S101
        if self.scaling != 1.0:
            combined *= self.scaling
        return np.add(block.base, combined, out=combined)


@dataclass(frozen=True)
class TaskArithmetic(TaskVectorMethod):
    """The sum of task vectors, each times its weight as given (1 by default): skills add up, or are negated.

    Parameters
    ----------
    scaling : float
        lambda: the factor of the combined change. Default: 1.
    normalize : bool
        Whether weights are divided by their sum, for a mean instead of a sum. Default: False.

    References
    ----------
    Ilharco et al. (2023), "Editing models with task arithmetic", ICLR.
    """

    name: ClassVar[str] = "task_arithmetic"
    summary: ClassVar[str] = "add up what training changed in a common start, times weights"
    paper: ClassVar[str] = "ilharco2023"
    shows: ClassVar[bool] = True

    normalize: bool = False

    def merge(self, block: TensorBlock, setting: TensorSetting, facts: Facts) -> Floats:
        """Return base + scaling * sum_k w_k delta_k (n,)."""
        return self.put_back(block, linear(task_vectors(block), coefficients(setting, self.normalize)))


@dataclass(frozen=True)
class TIES(TaskVectorMethod):
    """The largest changes, those that agree with the sign of more mass, averaged.

    Parameters
    ----------
    scaling : float
        lambda: the factor of the combined change. Default: 1.
    density : float or sequence of J floats
        Fraction of the entries of each change that is kept in each tensor, the largest ones; entries equal to the
        threshold are all kept. One for each model, or one for all. Default: 0.2.
    normalize : bool
        Whether the weighted sum of what agrees is divided by the sum of its weights. Default: True, as in the paper.

    References
    ----------
    Yadav et al. (2023), "TIES-merging: resolving interference when merging models", NeurIPS. There one threshold is
    taken for all tensors of a model together; here, as is usual for large checkpoints, one for each tensor.
    """

    name: ClassVar[str] = "ties"
    summary: ClassVar[str] = "trim changes of a common start, elect signs, average those that agree (TIES)"
    paper: ClassVar[str] = "yadav2023"
    surveys_in_single: ClassVar[bool] = True
    samples_first: ClassVar[bool] = True
    merges_in_single: ClassVar[bool] = True

    density: float | Sequence[float] = 0.2
    normalize: bool = True

    @property
    def divides_by_sum(self) -> bool:
        """The divisor is of magnitudes of weights."""
        return False

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield ("density", are_densities(self.density), "above 0 and at most 1")

    @property
    def surveys(self) -> int:
        """Passes that find the thresholds; none where all entries are kept."""
        return 0 if all(value == 1.0 for value in density_of_each(self.density, 1)) else RANK_PASSES

    def knows_enough(self, facts: Facts) -> bool:
        """Return whether the thresholds are found."""
        return "values" in facts

    def survey(self, number: int, block: TensorBlock, setting: TensorSetting, facts: Facts) -> Any:
        """Return what a pass finds of the magnitudes of each task vector; see `order_statistics`."""
        return survey_ranks(number, sizes_of_changes(block), facts)

    def conclude(self, number: int, total: Any, setting: TensorSetting, facts: Facts) -> Facts:
        """Return the threshold of each model: the magnitude of its k-th largest entry, k = round(density * size).

        At least one entry is kept; other implementations truncate density * size instead of rounding it.
        """
        densities = density_of_each(self.density, len(setting.weights))
        kept = [max(1, round(density * setting.size)) for density in densities]
        return settle_ranks(number, total, facts, list(enumerate(kept)), setting.size)

    def merge(self, block: TensorBlock, setting: TensorSetting, facts: Facts) -> Floats:
        """Return base + scaling * mean of the agreeing entries of the trimmed task vectors (n,)."""
        return self.put_back(block, disjoint_mean(self._trimmed(block, facts), setting.weights, self.normalize))

    def merge_single(
        self, block: TensorBlock, setting: TensorSetting, facts: Facts
    ) -> tuple[Floats, NDArray[np.bool_]]:
        """Return the merged entries in 32 bits, and which of them are not certain (n,).

        Differences are rounded once, so that thresholds part them as in 64 bits. Uncertain is a sign that is elected by
        a narrow margin, and a sum of the base and a much larger change. All other errors are below `SINGLE_ERROR` for
        each model, in units of the last place.
        """
        assert block.base is not None  # noqa: S101  (plans give one to every method that needs it)
        margin = np.empty_like(block.base)
        mean = disjoint_mean(self._trimmed(block, facts), setting.weights, self.normalize, margin)
        uncertain: NDArray[np.bool_] = margin < 0
        if self.scaling != 1.0:
            mean *= np.float32(self.scaling)
        merged = np.add(block.base, mean, out=margin)
        uncertain |= np.abs(mean, out=mean) > np.abs(merged) * np.float32(_FAR)
        return merged, uncertain

    def _trimmed(self, block: TensorBlock, facts: Facts) -> list[Floats]:
        """Return the changes whose entries below the thresholds are 0, in place of the models."""
        deltas = task_vectors(block)
        if self.surveys:
            size, is_kept = np.empty_like(deltas[0]), np.empty(deltas[0].shape, dtype=np.bool_)
            for delta, threshold in zip(deltas, facts["values"], strict=True):
                delta *= np.greater_equal(magnitudes(delta, size), threshold, out=is_kept)
        return deltas


@dataclass(frozen=True)
class DARE(TaskVectorMethod):
    """Changes with most entries dropped at random and the rest scaled up, averaged.

    Parameters
    ----------
    scaling : float
        lambda: the factor of the combined change. Default: 1.
    density : float or sequence of J floats
        Probability p of each entry to be kept; kept entries are divided by it. One for each model, or one for all.
        Default: 0.5.
    combine : {"linear", "ties"}
        "linear": the weighted mean. "ties": signs are elected, as in TIES. Default: "linear".
    normalize : bool
        Whether the weighted sum is divided by the sum of the weights. Default: True.
    rescale : bool
        Whether kept entries are divided by p, as in the paper. Default: True.

    References
    ----------
    Yu et al. (2024), "Language models are super Mario: absorbing abilities from homologous models as a free lunch",
    ICML.
    """

    name: ClassVar[str] = "dare"
    summary: ClassVar[str] = "drop changes of a common start at random, scale up the rest, average (DARE)"
    paper: ClassVar[str] = "yu2024"

    density: float | Sequence[float] = 0.5
    combine: Literal["linear", "ties"] = "linear"
    normalize: bool = True
    rescale: bool = True

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield from (
            ("density", are_densities(self.density), "above 0 and at most 1"),
            ("combine", self.combine in ("linear", "ties"), "'linear' or 'ties'"),
        )

    def merge(self, block: TensorBlock, setting: TensorSetting, facts: Facts) -> Floats:
        """Return base + scaling * mean of the sparsified task vectors (n,)."""
        deltas = task_vectors(block)
        for model, density in enumerate(density_of_each(self.density, len(deltas))):
            if density < 1.0:
                deltas[model] *= dropout_mask(setting, model, block.number, len(deltas[model]), density)
                if self.rescale:  # by p; mergekit rescales the whole tensor to its L1 norm before the drop instead
                    deltas[model] /= density
        if self.combine == "ties":
            return self.put_back(block, disjoint_mean(deltas, setting.weights, self.normalize))
        return self.put_back(block, linear(deltas, coefficients(setting, self.normalize)))


def are_densities(density: Any) -> bool:
    """Whether an option is a fraction above 0, or a list of such."""
    values = density if isinstance(density, list | tuple) and density else [density]
    return all(is_number(value) and 0 < value <= 1 for value in values)


def density_of_each(density: float | Sequence[float], count: int) -> list[float]:
    """Return the density of each model (J,)."""
    return list(density) if isinstance(density, Sequence) else [density] * count


def coefficients(setting: TensorSetting, normalize: bool) -> Sequence[float]:
    """Return the weights (J,), as given or summing to 1."""
    return setting.normalised_weights if normalize else setting.weights


def task_vectors(block: TensorBlock) -> list[Floats]:
    """Return delta_k = theta_k - base (n,) of every model, in place of the models."""
    base = block.base
    assert base is not None  # noqa: S101  (plans give one to every method that needs it)
    return [np.subtract(model, base, out=model) for model in block.models]


def sizes_of_changes(block: TensorBlock) -> list[NDArray[np.float32]]:
    """Return the magnitudes of changes, by model; the models are overwritten."""
    return [magnitudes(delta, delta) for delta in task_vectors(block)]


_FAR = 4.0
"""How many times as large as the merged entry a change may be for its error to stay below `SINGLE_ERROR`."""
_NARROW = 2.0**-23
"""Share of the sum of magnitudes, times the number of models, that rounding in 32 bits may move an elected mass."""


def disjoint_mean(
    deltas: Sequence[Floats], weights: Sequence[float], normalize: bool, margin: Floats | None = None
) -> Floats:
    """Return the weighted mean of the changes whose sign, times their weight's, has the greater mass (n,).

    It is 0 where masses are equal. Without `normalize` it is their weighted sum, else over sum |w_k|, which is never 0.
    A change of 0 has no sign and counts nowhere. Other implementations take equal masses as positive, and divide by
    signed weights. `margin` (n,) is overwritten: it is below 0 where rounding to 32 bits may have elected.
    """
    terms = [
        (delta if weight == 1.0 else delta.dtype.type(weight) * delta, abs(weight))
        for delta, weight in zip(deltas, weights, strict=True)
        if weight
    ]
    mass, total = _masses([weighted for weighted, _ in terms])
    size = np.abs(mass)
    if margin is not None:
        np.multiply(total, -(len(terms) + 4) * _NARROW, out=margin)
        margin += size
    total += size
    total *= 0.5  # the greater mass: half of |up| + |down| + ||up| - |down||
    if normalize:
        total /= _elected_weights(terms, mass)
    are_equal = mass == 0
    are_equal &= total > 0
    if len(equal := np.flatnonzero(are_equal)):
        total[np.unravel_index(equal, total.shape)] = 0.0
    patterns = np.dtype(f"u{total.itemsize}").type
    signs = mass.view(patterns)
    signs &= patterns(1 << 8 * total.itemsize - 1)
    signs |= total.view(patterns)
    return mass


def _masses(terms: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Return the sum of changes and the sum of their magnitudes (n,)."""
    first, *others = terms
    mass, total = first + np.zeros((), first.dtype), np.abs(first)
    size = np.empty_like(first)
    for weighted in others:
        mass += weighted
        total += np.abs(weighted, out=size)
    return mass, total


def _elected_weights(terms: Sequence[tuple[Floats, float]], mass: Floats) -> Floats:
    """Return the sum of |w_k| over the models whose change has the sign of the mass (n,); where none has, above 0."""
    is_counted = all(weight == 1.0 for _, weight in terms) and len(terms) < 256
    counts = np.dtype(np.uint8) if is_counted else mass.dtype
    rising, falling = np.zeros((2, *mass.shape), dtype=counts)
    has_sign = np.empty(mass.shape, dtype=np.bool_)
    for weighted, weight in terms:
        for total, compare in ((rising, np.greater), (falling, np.less)):
            compare(weighted, 0, out=has_sign)
            total += has_sign if is_counted else counts.type(weight) * has_sign
    rising *= np.greater(mass, 0, out=has_sign)
    falling *= np.less(mass, 0, out=has_sign)
    elected = np.add(rising, falling, out=rising)
    least = 1 if is_counted else np.finfo(mass.dtype).tiny
    return np.maximum(elected, least, out=elected).astype(mass.dtype, copy=False)


def dropout_mask(
    setting: TensorSetting, model: int, block: int, n_entries: int, density: float | NDArray[np.floating[Any]]
) -> NDArray[np.bool_]:
    """Return which entries of a block are kept (n_entries,), with a probability for all or for each.

    The generator is seeded by seed, tensor name, model and block alone, so that neither shards nor threads nor the
    order of blocks change a draw.
    """
    name_digest = hashlib.sha256(setting.tensor.encode()).digest()
    entropy = [setting.seed, int.from_bytes(name_digest[:16], "little"), model, block]
    draws = np.random.Generator(np.random.SFC64(np.random.SeedSequence(entropy))).random(n_entries, dtype=np.float32)
    return draws < np.asarray(density, dtype=np.float32)
