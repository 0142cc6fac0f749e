"""A statistic of a site's observations: summed over batches, stated as far as it may leave; ranges and errors by class.

Errors of the network are counted by class. Ranges are quantiles of the least and the greatest number of every
observation, from a histogram of their leading bits. One observation may have any number of numbers, so quantiles count
observations. A float32 read as a whole number grows with the number (its exponent stands before its mantissa), so the
leading 20 bits (sign, exponent, 11 of the mantissa) are bins whose edges differ by 2^-11 of their value: a quantile is
found to 0.05 %, in any order of the blocks, and is not a number of the data.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from consilience.checks import Array, Labels
from consilience.networks.descriptions.description import Description, InputPart
from consilience.networks.descriptions.disclosure import Leaving
from consilience.networks.descriptions.input_parts import as_arguments
from consilience.networks.descriptions.observations import Batch
from consilience.networks.example import Example
from consilience.networks.output_layout import OutputLayout


@dataclass(frozen=True, eq=False)
class Setting:
    """What is known of a network and its observations with the first batch."""

    module: nn.Module  # the network
    first: Tensor  # (2, ...): two inputs, on the network's device
    n_outputs: int | None  # numbers of an answer; None where it is no vector
    classes: tuple[str, ...] | None  # names of the classes
    are_labelled: bool  # whether there are labels of classes
    is_token: bool  # whether inputs are tokens
    hooks: ExitStack  # what removes hooks from the network in the end
    parts: tuple[InputPart, ...] = ()  # the arguments that the inputs are; none for a single one
    padding: int | None = None  # the token that fills texts up
    layout: OutputLayout | None = None  # of the outputs where these are by position; None otherwise

    @property
    def predicts_tokens(self) -> bool:
        """Whether it is a language model, which answers the token after each."""
        return self.layout is not None and self.layout.is_next_token

    def arguments(self, inputs: Tensor) -> Tensor | Example:
        """Return what the network takes for inputs (n, ...)."""
        return as_arguments(self.parts, on_device(inputs, self.module), self.padding)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an input."""
        return tuple(self.first.shape[1:])

    @property
    def size(self) -> int:
        """Numbers d of an input."""
        return int(np.prod(self.shape))

    @property
    def n_classes(self) -> int:
        """Number of classes by which observations are distinguished."""
        return len(self.classes) if self.are_labelled and self.classes is not None else 0

    @property
    def n_groups(self) -> int:
        """The classes, and those without one."""
        return self.n_classes + 1


class Statistic(ABC):
    """What is summed over the observations of a site, by class."""

    def begin(self, groups: Labels) -> None:
        """Learn the groups (n,) of the observations that pass through the network next."""
        del groups

    def add(self, batch: Batch, groups: Labels, answer: Any) -> None:
        """Add observations of some groups (n,), and what the network answers."""
        del batch, groups, answer

    @abstractmethod
    def state(self, described: Description, leaving: Leaving) -> Description:
        """Return a description with what may leave of this statistic, and add what does not to ``leaving.left_out``."""


def on_device(inputs: Tensor, module: nn.Module) -> Tensor:
    """Return inputs on the device of a module."""
    like = next((tensor for tensor in (*module.parameters(), *module.buffers())), inputs)
    return inputs.to(like.device)


class ErrorCounts(Statistic):
    """Observations of every class that the network takes for another."""

    def __init__(self, n_groups: int) -> None:
        self._wrong = np.zeros((2, n_groups))  # of one output as log odds, and as a probability
        self._has_outputs = True
        self._has_log_odds = False

    def add(self, batch: Batch, groups: Labels, answer: Any) -> None:
        """Count the errors of a batch."""
        if not isinstance(answer, Tensor) or len(answer) != len(groups):
            self._has_outputs = False
        if not self._has_outputs:
            return
        outputs = answer.reshape(len(groups), -1)
        if outputs.shape[1] == 1 and bool(((outputs < 0) | (outputs > 1)).any()):
            self._has_log_odds = True
        for row, classes in zip(self._wrong, _taken(outputs), strict=True):
            row += np.bincount(groups[classes.cpu().numpy() != groups], minlength=len(row))

    def share_wrong(self, outputs: Tensor, labels: Labels) -> float:
        """Return the share of labels (n,) for which outputs are of another class, read as those that were counted."""
        taken = _taken(outputs.reshape(len(labels), -1))[0 if self._has_log_odds else 1]
        return float(np.mean(taken.cpu().numpy() != labels))

    def state(self, described: Description, leaving: Leaving) -> Description:
        """Return a description with the share of errors in the described classes, to three digits."""
        labels = sorted({*described.class_moments, *described.class_tokens})
        if not self._has_outputs or not labels:
            return described
        wrong = self._wrong[0 if self._has_log_odds else 1, labels].sum()
        return replace(described, own_error=float(f"{wrong / leaving.counts[labels].sum():.3g}"))


def _taken(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the classes (n,) that outputs (n, k) stand for; one output is log odds, or a probability."""
    if outputs.shape[1] > 1:
        return (outputs.argmax(dim=1),) * 2
    return (outputs[:, 0] > 0.0).long(), (outputs[:, 0] > 0.5).long()


TAIL = 0.001
"""Share of the observations that have a number outside the range, on either side."""

_SIGN = np.uint32(0x80000000)
_DROPPED_BITS = np.uint32(12)


class RangeAccumulator:
    """Range of observations that arrive in blocks; accumulators of several groups may be merged."""

    def __init__(self) -> None:
        # Observations by the bin of their least and of their greatest number: only bins that occur, as every class has
        # an accumulator of its own.
        self.least: Counter[int] = Counter()
        self.greatest: Counter[int] = Counter()

    def add(self, rows: Any) -> None:
        """Add observations (n, d) of real numbers."""
        rows = np.asarray(rows)
        self.least.update(_bins(rows.min(axis=1)).tolist())
        self.greatest.update(_bins(rows.max(axis=1)).tolist())

    def merge(self, other: RangeAccumulator) -> None:
        """Add the observations of another accumulator."""
        self.least.update(other.least)
        self.greatest.update(other.greatest)

    def range(self, min_count: float) -> tuple[float, float] | None:
        """Return numbers that a share `TAIL` of the observations, `min_count` at least, pass on either side.

        An observation passes the lower one when its least number is as low or lower, the upper one when its greatest is
        as high or higher. None where so many are half of all.
        """
        n = self.least.total()
        n_beyond = math.ceil(max(TAIL * n, min_count))
        if 2 * n_beyond >= n:
            return None
        low, high = _bin_after(self.least, n_beyond), _bin_after(self.greatest, n - 1 - n_beyond)
        return _edge(low), _edge(high)


class RangeStatistic(Statistic):
    """Ranges of the inputs of every class."""

    def __init__(self) -> None:
        self._by_group: dict[int, RangeAccumulator] = {}

    def add(self, batch: Batch, groups: Labels, answer: Any) -> None:
        """Add the observations of a batch."""
        rows = batch.rows
        for group in np.unique(groups).tolist():
            self._by_group.setdefault(group, RangeAccumulator()).add(rows[groups == group])

    def state(self, described: Description, leaving: Leaving) -> Description:
        """Return a description with the range of all inputs that may leave."""
        if not leaving.is_enough:
            return described
        total = RangeAccumulator()
        for group, of_group in self._by_group.items():
            if group in leaving.said:
                total.merge(of_group)
        return replace(described, input_range=total.range(leaving.min_count))


def _bins(values: Array) -> Labels:
    """Return the bins of numbers (n,), which grow with them."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    # Negative numbers are stored by magnitude: with all bits flipped they grow too, and lie below the others.
    ordered = np.where(bits & _SIGN, ~bits, bits | _SIGN)
    return (ordered >> _DROPPED_BITS).astype(np.int64)


def _bin_after(counts: Counter[int], n: int) -> int:
    """Return the bin of the observation that `n` others come before, in the order of the bins."""
    bins = sorted(counts)
    place = np.searchsorted(np.cumsum([counts[number] for number in bins]), n, side="right")
    return bins[int(place)]


def _edge(number: int) -> float:
    """Return the edge of a bin that is nearer to zero."""
    first = np.uint32(number) << _DROPPED_BITS
    bits = first ^ _SIGN if first & _SIGN else ~(first | np.uint32((1 << int(_DROPPED_BITS)) - 1))
    return float(np.array([bits], dtype=np.uint32).view(np.float32)[0])
