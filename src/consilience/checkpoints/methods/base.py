"""The interface of streaming merge methods: merged entries from facts about a tensor, computed block by block.

A merged entry is a function of the same entry of every model (and of the base, and of Fisher diagonals) and of a few
numbers about the whole tensor, its *facts*: a threshold, an angle. A method is therefore map, reduce, map:

    survey(number, block)    a statistic of every block; the statistics of all blocks are added up in their order
    conclude(number, total)  facts, from that sum
    merge(block)             the merged entries of a block, from the facts

The first two run once for each of ``surveys`` passes over the tensor. All passes see a tensor in blocks of the same
`BLOCK_ENTRIES` entries, so that neither the size of what is read at once nor the number of threads changes a bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from consilience.core.methods import Options

BLOCK_ENTRIES = 2**17
"""Entries of a block: 512 kB in 32 bits, so that a core's second-level cache holds the block of a few models
(docs/adr/0015). Another value would draw other random numbers in DARE and add up in another order."""

Floats = NDArray[np.floating[Any]]
Facts = Mapping[str, float]
"""What is known of a whole tensor, by name."""


@dataclass(frozen=True)
class TensorSetting:
    """What is the same for all blocks of a tensor."""

    tensor: str  # name of the tensor
    size: int  # number of its entries
    weights: tuple[float, ...]  # (J,), weight of each of the J models as the user gave it; not all zero
    seed: int = 0  # seed of random choices

    @property
    def normalised_weights(self) -> tuple[float, ...]:
        """The weights (J,), summing to 1."""
        total = sum(self.weights)
        return tuple(weight / total for weight in self.weights)


@dataclass(frozen=True, eq=False)
class TensorBlock:
    """The same entries of one tensor in all models."""

    number: int  # number of the block in the tensor, from 0
    # J of (n,): Values of the models, all in float32 or all in float64. Methods may overwrite them.
    models: Sequence[Floats]
    base: Floats | None = None  # (n,), values of the common start. Default: None, for methods without one.
    # J of (n,): Fisher diagonals of the models. Default: empty, for methods and tensors without.
    information: Sequence[Floats] = ()


@dataclass(frozen=True)
class TensorMethod(Options, ABC):
    """A way to merge tensors of one shape; its fields are its options.

    The class attributes ``summary``, ``needs``, ``gives`` and ``paper`` describe it for users as those of
    `NetworkMethod` do. Further class attributes:

    needs_base : bool
        Whether models are seen as changes of a common start.
    needs_information : bool
        Whether the method needs Fisher diagonals.
    count : int, optional
        The only number of models that the method takes. None for any.
    double : bool
        Whether 32 bits are too few to compute in, even for tensors of 16 bits.
    shows : bool
        Whether a NaN or an infinity in any model of positive weight is always one in the result, so that checking the
        result is enough.
    """

    summary: ClassVar[str]
    needs: ClassVar[str]
    gives: ClassVar[str] = "one checkpoint"
    paper: ClassVar[str]
    needs_base: ClassVar[bool] = False
    needs_information: ClassVar[bool] = False
    count: ClassVar[int | None] = None
    double: ClassVar[bool] = True
    shows: ClassVar[bool] = False

    @property
    def signed(self) -> bool:
        """Whether weights may be negative."""
        return False

    @property
    def surveys(self) -> int:
        """Number of passes over a tensor that gather its facts."""
        return 0

    def survey(self, number: int, block: TensorBlock, setting: TensorSetting, facts: Facts) -> NDArray[Any]:
        """Return the statistic of a block in a pass; the statistics of all blocks are added up in their order.

        `facts` are what earlier passes have found out; passes are numbered from 0.
        """
        raise AssertionError(f"{self.name} has no survey {number}")

    def conclude(self, number: int, total: NDArray[Any], setting: TensorSetting, facts: Facts) -> Facts:
        """Return the facts, from the sum of a pass's statistics and from the facts before."""
        raise AssertionError(f"{self.name} has no survey {number}")

    @abstractmethod
    def merge(self, block: TensorBlock, setting: TensorSetting, facts: Facts) -> Floats:
        """Return the merged entries (n,)."""


def linear(models: Sequence[Floats], coefficients: Sequence[float]) -> Floats:
    """Return sum_k c_k theta_k, computed in place of one of the models.

    Models whose coefficient is 0 are not looked at, so a NaN in them does not spread. A coefficient of 1 alone gives
    its model to the last bit, negative zeros included.

    Parameters
    ----------
    models : sequence of J arrays of shape (n,)
        The values; overwritten.
    coefficients : sequence of J floats
        The coefficients c_k.

    Examples
    --------
    >>> linear([np.array([1.0, 2.0]), np.array([3.0, np.nan])], [1.0, 0.0])
    array([1., 2.])
    """
    terms = [(model, factor) for model, factor in zip(models, coefficients, strict=True) if factor != 0.0]
    if not terms:
        return np.zeros_like(models[0])
    total = terms[0][0]  # (n,), the first model's own memory
    for number, (model, factor) in enumerate(terms):
        if factor != 1.0:  # in the precision of the block
            np.multiply(model, model.dtype.type(factor), out=model)
        if number:
            np.add(total, model, out=total)
    return total
