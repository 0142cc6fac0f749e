"""Task arithmetic, TIES and DARE: merging fine-tuned checkpoints by their task vectors.

    delta_k = theta_k - base,        theta = base + scaling * combined(delta_1, ..., delta_J)

with theta_k the entries of model k, base those of the common start, and delta_k the task vector of model k.

- Task arithmetic (Ilharco et al. 2023) adds up: combined = sum_k w_k delta_k. A negative weight takes a skill away.
- TIES (Yadav et al. 2023) *trims* each delta_k to its largest entries, *elects* the sign s = sign(sum_k w_k delta_k) of
  every entry, and takes the mean of the *disjoint* set of models whose entry has that sign.
- DARE (Yu et al. 2024) drops entries at random and divides the others by the probability p of being kept, which leaves
  the expectation of delta_k unchanged; then the weighted mean, or election and mean as in TIES.

Thresholds are exact and are taken tensor by tensor: two histograms of the magnitudes' bit patterns find the k-th
largest entry of a tensor that no memory holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from consilience.checkpoints.methods.base import Facts, Floats, TensorBlock, TensorMethod, TensorSetting
from consilience.checks import is_number
from consilience.core.methods import Requirement

LOWER_BITS = 15
"""A magnitude in float32 has 31 bits (the sign is 0): a histogram over the upper 16 of them finds the bin of the
threshold, and one over the lower 15 inside that bin the threshold itself. 512 kB of counts a model."""
N_LOWER = 2**LOWER_BITS
N_UPPER = 2 ** (31 - LOWER_BITS)


@dataclass(frozen=True)
class TaskVectorMethod(TensorMethod):
    """A method that combines task vectors, the changes of a common start."""

    needs_base: ClassVar[bool] = True
    needs: ClassVar[str] = "checkpoints trained from one start, and that start as the base"

    scaling: float = 1.0  # lambda: the factor of the combined change

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield ("scaling", is_number(self.scaling), "a number, not negative")

    def put_back(self, block: TensorBlock, combined: Floats) -> Floats:
        """Return base + scaling * combined (n,)."""
        assert block.base is not None  # noqa: S101
        if self.scaling != 1.0:
            combined = combined * self.scaling
        total: Floats = block.base + combined
        return total


@dataclass(frozen=True)
class TaskArithmetic(TaskVectorMethod):
    """The sum of task vectors, each times its weight as given (1 by default): skills add up, or are negated.

    Parameters
    ----------
    scaling : float
        lambda: the factor of the combined change. Default: 1.
    normalize : bool
        Whether weights are divided by their sum, for a mean instead of a sum; they may not be negative then.
        Default: False.

    References
    ----------
    Ilharco et al. (2023), "Editing models with task arithmetic", ICLR.
    """

    name: ClassVar[str] = "task_arithmetic"
    summary: ClassVar[str] = "add up what training changed in a common start, times weights"
    paper: ClassVar[str] = "ilharco2023"

    normalize: bool = False

    @property
    def signed(self) -> bool:
        """A sum has negations (Ilharco et al. 2023, section 3), a mean has none."""
        return not self.normalize

    def merge(self, block: TensorBlock, setting: TensorSetting, facts: Facts) -> Floats:
        """Return base + scaling * sum_k w_k delta_k (n,)."""
        return self.put_back(block, _weighted_sum(_task_vectors(block), _coefficients(setting, self.normalize)))


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

    density: float | Sequence[float] = 0.2
    normalize: bool = True

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield ("density", _are_densities(self.density), "above 0 and at most 1")

    @property
    def surveys(self) -> int:
        """Two passes, a histogram of magnitudes each, find the thresholds; none where all entries are kept."""
        return 0 if all(value == 1.0 for value in _density_of_each(self.density, 1)) else 2

    def survey(self, number: int, block: TensorBlock, setting: TensorSetting, facts: Facts) -> NDArray[Any]:
        """Return a histogram of the magnitudes of each task vector.

        Returns
        -------
        counts : array of shape (J, 2**16) in pass 0, (J, 2**15) in pass 1
            Pass 0: entries by the upper bits of their magnitude. Pass 1: by the lower bits, of those entries whose
            upper bits are those of the threshold.
        """
        histograms = []
        for model, delta in enumerate(_task_vectors(block)):
            bits = _magnitudes(delta).view(np.uint32)  # (n,); order of patterns = order of magnitudes
            upper = (bits >> LOWER_BITS).astype(np.intp)
            if number:
                lower = bits[upper == int(facts[f"upper bits {model}"])].astype(np.intp) % N_LOWER
                histograms.append(np.bincount(lower, minlength=N_LOWER))
            else:
                histograms.append(np.bincount(upper, minlength=N_UPPER))
        return np.stack(histograms)

    def conclude(self, number: int, total: NDArray[Any], setting: TensorSetting, facts: Facts) -> Facts:
        """Return the threshold of each model: the magnitude of its k-th largest entry, k = round(density * size).

        After pass 0 the facts are its upper bits, and how many of the k entries have just these; after pass 1 the
        threshold. At least one entry is kept; other implementations truncate density * size instead of rounding it.
        """
        concluded = dict(facts)
        n_kept = [max(1, round(density * setting.size)) for density in _density_of_each(self.density, len(total))]
        for model, counts in enumerate(total):
            rank = int(concluded[f"rank in bin {model}"]) if number else n_kept[model]
            # The threshold lies in the highest bin at which the count from above reaches its rank.
            n_at_least = counts[::-1].cumsum()  # entries in the bins from the last one down
            n_bins_above = int(np.searchsorted(n_at_least, rank))
            threshold_bin = len(counts) - 1 - n_bins_above
            if number:
                bits = int(concluded[f"upper bits {model}"]) * N_LOWER + threshold_bin
                concluded[f"threshold {model}"] = float(np.array(bits, dtype=np.uint32).view(np.float32))
            else:
                concluded[f"upper bits {model}"] = threshold_bin
                concluded[f"rank in bin {model}"] = rank - (int(n_at_least[n_bins_above - 1]) if n_bins_above else 0)
        return concluded

    def merge(self, block: TensorBlock, setting: TensorSetting, facts: Facts) -> Floats:
        """Return base + scaling * mean of the agreeing entries of the trimmed task vectors (n,)."""
        deltas = _task_vectors(block)
        if self.surveys:
            for model, delta in enumerate(deltas):
                # In 32 bits, as the threshold was found: rounding is monotone, so no order changes.
                delta[_magnitudes(delta) < np.float32(facts[f"threshold {model}"])] = 0.0
        return self.put_back(block, _disjoint_mean(deltas, setting.weights, self.normalize))


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
        Whether the weighted sum is divided by the sum of the weights; else a linear one takes negative weights too.
        Default: True.

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

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield from (
            ("density", _are_densities(self.density), "above 0 and at most 1"),
            ("combine", self.combine in ("linear", "ties"), "'linear' or 'ties'"),
        )

    @property
    def signed(self) -> bool:
        """A linear sum has negations; a mean has none, and elected signs would divide by weights that cancel."""
        return self.combine == "linear" and not self.normalize

    def merge(self, block: TensorBlock, setting: TensorSetting, facts: Facts) -> Floats:
        """Return base + scaling * mean of the sparsified task vectors (n,)."""
        deltas = _task_vectors(block)
        for model, density in enumerate(_density_of_each(self.density, len(deltas))):
            if density < 1.0:
                deltas[model] *= _dropout_mask(setting, model, block.number, len(deltas[model]), density)
                # By p, as in the paper; mergekit rescales the whole tensor to its L1 norm before the drop instead.
                deltas[model] /= density
        if self.combine == "ties":
            return self.put_back(block, _disjoint_mean(deltas, setting.weights, self.normalize))
        return self.put_back(block, _weighted_sum(deltas, _coefficients(setting, self.normalize)))


def _are_densities(density: Any) -> bool:
    """Whether an option is a fraction above 0, or a list of such."""
    values = density if isinstance(density, list | tuple) and density else [density]
    return all(is_number(value) and 0 < value <= 1 for value in values)


def _density_of_each(density: float | Sequence[float], count: int) -> list[float]:
    """Return the density of each model (J,)."""
    return list(density) if isinstance(density, Sequence) else [density] * count


def _coefficients(setting: TensorSetting, normalize: bool) -> Sequence[float]:
    """Return the weights (J,), as given or summing to 1."""
    return setting.normalised_weights if normalize else setting.weights


def _weighted_sum(deltas: Sequence[Floats], coefficients: Sequence[float]) -> Any:
    """Return sum_k c_k delta_k (n,); a task vector of coefficient 0 is not looked at."""
    total: Any = 0.0
    for coefficient, delta in zip(coefficients, deltas, strict=True):
        if coefficient:
            total = total + coefficient * delta
    return total


def _task_vectors(block: TensorBlock) -> list[Floats]:
    """Return delta_k = theta_k - base (n,) of every model, in place of the models."""
    base = block.base
    assert base is not None  # noqa: S101  (plans give one to every method that needs it)
    return [np.subtract(model, base, out=model) for model in block.models]


def _magnitudes(delta: Floats) -> NDArray[np.float32]:
    """Return magnitudes in 32 bits (n,): patterns of positive floats, as integers, have the order of the numbers."""
    return np.abs(delta).astype(np.float32)


def _disjoint_mean(deltas: Sequence[Floats], weights: Sequence[float], normalize: bool) -> Floats:
    """Return the weighted mean of the task vectors whose sign has the greater mass (n,); 0 where masses are equal.

    Without `normalize` it is their weighted sum. A change of 0 has no sign and counts nowhere. Other implementations
    take equal masses as positive.
    """
    terms = [(delta, weight) for delta, weight in zip(deltas, weights, strict=True) if weight]
    mass: Any = 0.0
    for delta, weight in terms:
        mass = mass + weight * delta
    sign = np.sign(mass)  # (n,); 0 where masses are equal, and then no change agrees
    numerator, denominator = np.zeros_like(mass), np.zeros_like(mass)
    for delta, weight in terms:
        agrees = delta * sign > 0
        numerator += np.where(agrees, weight * delta, 0.0)
        denominator += weight * agrees
    if not normalize:
        return numerator
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


def _dropout_mask(setting: TensorSetting, model: int, block: int, n_entries: int, density: float) -> NDArray[np.bool_]:
    """Return which entries of a block are kept (n_entries,).

    The generator is seeded by seed, tensor name, model and block alone, so that neither shards nor threads nor the
    order of blocks change a draw.
    """
    name_digest = hashlib.sha256(setting.tensor.encode()).digest()
    entropy = [setting.seed, int.from_bytes(name_digest[:16], "little"), model, block]
    draws = np.random.Generator(np.random.SFC64(np.random.SeedSequence(entropy))).random(n_entries, dtype=np.float32)
    return draws < np.float32(density)
