"""Task vectors: what training changed in a common start, pruned, reconciled, added up and put back on the start.

    delta_k = theta_k - base,        theta = base + scaling * combined(delta_1, ..., delta_J)

Task arithmetic adds them up (Ilharco et al. 2023). TIES (Yadav et al. 2023) keeps the largest entries of each, elects
for every entry the sign that has more mass, and takes the mean of those that agree with it. DARE (Yu et al. 2024) drops
entries at random and scales up the rest, so that the expected change stays the same. Pruning is tensor by tensor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from consilience.checkpoints.methods.base import Block, Facts, Floats, Setting, TensorMethod
from consilience.checks import is_number

_HALF = 2**15
"""Magnitudes are floats of 31 bits, found by a histogram over the upper 16 of them and one over the others."""


@dataclass(frozen=True)
class TaskVectorMethod(TensorMethod):
    """A method that combines changes of a common start.

    Parameters
    ----------
    scaling
        lambda: how much of the combined change is put back on the start.
    """

    needs_base: ClassVar[bool] = True
    needs: ClassVar[str] = "checkpoints trained from one start, and that start as the base"
    gives: ClassVar[str] = "one checkpoint"

    scaling: float = 1.0

    def __post_init__(self) -> None:
        self.require(
            ("scaling", is_number(self.scaling), "a number, not negative"),
        )

    def put_back(self, block: Block, combined: Floats) -> Floats:
        """Return base + scaling * combined."""
        assert block.base is not None  # noqa: S101
        if self.scaling != 1.0:
            combined = combined * self.scaling
        total: Floats = block.base + combined
        return total


@dataclass(frozen=True)
class TaskArithmetic(TaskVectorMethod):
    """The sum of changes, each times its weight as given (1 where nobody says): skills add up.

    References
    ----------
    Ilharco et al. (2023), "Editing models with task arithmetic", ICLR.
    """

    name: ClassVar[str] = "task_arithmetic"
    summary: ClassVar[str] = "add up what training changed in a common start, times weights"
    paper: ClassVar[str] = "ilharco2023"

    def merge(self, block: Block, setting: Setting, facts: Facts) -> Floats:
        """Return the base and the sum of changes."""
        total: Any = 0.0
        for weight, change in zip(setting.weights, _changes(block), strict=True):
            if weight:
                total = total + weight * change
        return self.put_back(block, total)


@dataclass(frozen=True)
class TIES(TaskVectorMethod):
    """The largest changes, those that agree with the sign of more mass, averaged.

    Parameters
    ----------
    scaling
        lambda: how much of the combined change is put back on the start.
    density
        Share of the entries of each change that is kept in each tensor, the largest ones; equals at the threshold are
        all kept.

    References
    ----------
    Yadav et al. (2023), "TIES-merging: resolving interference when merging models", NeurIPS. There one threshold is
    taken for all tensors of a model together; here, as is usual for large checkpoints, one for each tensor.
    """

    name: ClassVar[str] = "ties"
    summary: ClassVar[str] = "trim changes of a common start, elect signs, average those that agree (TIES)"
    paper: ClassVar[str] = "yadav2023"

    density: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(
            ("density", is_number(self.density) and 0 < self.density <= 1, "above 0 and at most 1"),
        )

    @property
    def surveys(self) -> int:
        """Two histograms of magnitudes find the thresholds, unless all is kept."""
        return 0 if self.density == 1.0 else 2

    def survey(self, number: int, block: Block, setting: Setting, facts: Facts) -> NDArray[Any]:
        """Return for every model how many changes have which upper bits (J, 65536); or lower ones, at the threshold."""
        found = []
        for model, change in enumerate(_changes(block)):
            bits = _magnitude(change).view(np.uint32)
            upper = (bits >> 15).astype(np.intp)
            if number:
                lower = bits[upper == int(facts[f"upper {model}"])].astype(np.intp) % _HALF
                found.append(np.bincount(lower, minlength=_HALF))
            else:
                found.append(np.bincount(upper, minlength=2 * _HALF))
        return np.stack(found)

    def conclude(self, number: int, total: NDArray[Any], setting: Setting, facts: Facts) -> Facts:
        """Return thresholds: the magnitude of the last entry that is kept."""
        known = dict(facts)
        kept = max(1, round(self.density * setting.size))
        for model, counts in enumerate(total):
            wanted = int(known[f"rest {model}"]) if number else kept
            above = counts[::-1].cumsum()  # how many are at least so large
            place = int(np.searchsorted(above, wanted))
            found = len(counts) - 1 - place
            if number:
                bits = int(known[f"upper {model}"]) * _HALF + found
                known[f"least {model}"] = float(np.array(bits, dtype=np.uint32).view(np.float32))
            else:
                known[f"upper {model}"] = found
                known[f"rest {model}"] = wanted - (int(above[place - 1]) if place else 0)
        return known

    def merge(self, block: Block, setting: Setting, facts: Facts) -> Floats:
        """Return the base and the mean of agreeing changes."""
        changes = _changes(block)
        if self.surveys:
            for model, change in enumerate(changes):
                change[_magnitude(change) < np.float32(facts[f"least {model}"])] = 0.0
        return self.put_back(block, _elected(changes, setting.weights))


@dataclass(frozen=True)
class DARE(TaskVectorMethod):
    """Changes with most entries dropped at random and the rest scaled up, averaged.

    Parameters
    ----------
    scaling
        lambda: how much of the combined change is put back on the start.
    density
        Chance of each entry to be kept; what is kept is divided by it.
    combine
        "linear": the weighted mean. "ties": signs are elected, as in TIES.

    References
    ----------
    Yu et al. (2024), "Language models are super Mario: absorbing abilities from homologous models as a free lunch",
    ICML.
    """

    name: ClassVar[str] = "dare"
    summary: ClassVar[str] = "drop changes of a common start at random, scale up the rest, average (DARE)"
    paper: ClassVar[str] = "yu2024"

    density: float = 0.5
    combine: Literal["linear", "ties"] = "linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(
            ("density", is_number(self.density) and 0 < self.density <= 1, "above 0 and at most 1"),
            ("combine", self.combine in ("linear", "ties"), "'linear' or 'ties'"),
        )

    def merge(self, block: Block, setting: Setting, facts: Facts) -> Floats:
        """Return the base and the mean of what was not dropped."""
        changes = _changes(block)
        if self.density < 1.0:
            for model, change in enumerate(changes):
                change *= _kept(setting, model, block.number, len(change), self.density)
                change /= self.density
        if self.combine == "ties":
            return self.put_back(block, _elected(changes, setting.weights))
        total: Any = 0.0
        for share, change in zip(setting.shares, changes, strict=True):
            if share:
                total = total + share * change
        return self.put_back(block, total)


def _changes(block: Block) -> list[Floats]:
    """Return what training changed, in place of the models."""
    base = block.base
    assert base is not None  # noqa: S101  (plans give one to every method that needs it)
    return [np.subtract(model, base, out=model) for model in block.models]


def _magnitude(change: Floats) -> NDArray[np.float32]:
    """Return magnitudes in 32 bits, whose patterns as integers have the order of the numbers."""
    return np.abs(change).astype(np.float32)


def _elected(changes: Sequence[Floats], weights: Sequence[float]) -> Floats:
    """Return the weighted mean of the changes whose sign has the greater mass; 0 where both have the same.

    A change of 0 has no sign, and counts nowhere.
    """
    counted = [(change, weight) for change, weight in zip(changes, weights, strict=True) if weight]
    mass: Any = 0.0
    for change, weight in counted:
        mass = mass + weight * change
    sign = np.sign(mass)
    above, below = np.zeros_like(mass), np.zeros_like(mass)
    for change, weight in counted:
        agrees = change * sign > 0
        above += np.where(agrees, weight * change, 0.0)
        below += weight * agrees
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def _kept(setting: Setting, model: int, block: int, count: int, density: float) -> NDArray[np.bool_]:
    """Return which entries of a block are kept: the same for the same seed, tensor, model and block, whoever asks."""
    words = hashlib.sha256(setting.tensor.encode()).digest()
    entropy = [setting.seed, int.from_bytes(words[:16], "little"), model, block]
    draws = np.random.Generator(np.random.SFC64(np.random.SeedSequence(entropy))).random(count, dtype=np.float32)
    return draws < np.float32(density)
