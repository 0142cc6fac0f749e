"""The interface of streaming merge methods: merged entries from facts about a tensor, computed block by block.

A merged entry is a function of the same entry of every model (and of the base, and of Fisher diagonals) and of a few
numbers about the whole tensor, its *facts*: a threshold, an angle. A method is therefore map, reduce, map:

    survey(number, block)    a statistic of every block; the statistics of all blocks are added up in their order
    conclude(number, total)  facts, from that sum
    merge(block)             the merged entries of a block, from the facts

The first two run once for each of ``surveys`` passes over the tensor. All passes see a tensor in blocks of the same
`BLOCK_ENTRIES` entries, or of whole rows, so that neither the size of what is read at once nor the number of threads
changes a bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from consilience.checks import as_weights
from consilience.core.methods import Options
from consilience.errors import OptionError

BLOCK_ENTRIES = 2**17
"""Entries of a block: 512 kB in 32 bits, so that a core's second-level cache holds the block of a few models
(docs/adr/0015). Another value would draw other random numbers in DARE and add up in another order."""

SINGLE_ERROR = 16
"""Units of the last place of float32, for each model and four more, by which `merge_single` may be wrong: 2 J + 8
roundings of terms at most four times as large as the result, and twice as much for safety."""

Floats = NDArray[np.floating[Any]]
Facts = Mapping[str, Any]
"""What is known of a whole tensor, by name."""


@dataclass(frozen=True)
class TensorSetting:
    """What is the same for all blocks of a tensor."""

    tensor: str  # name of the tensor
    size: int  # number of its entries
    weights: tuple[float, ...]  # (J,), weight of each of the J models as the user gave it; not all zero
    seed: int = 0  # seed of random choices
    shape: tuple[int, ...] = ()  # its shape
    has_base: bool = False  # whether blocks have values of a common start

    @property
    def row_length(self) -> int:
        """Entries of a row: what belongs to one output, of a vector all of it."""
        return self.size // self.shape[0] if len(self.shape) > 1 and self.shape[0] else max(1, self.size)

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
    start: int = 0  # number of its first entry in the tensor


@dataclass(frozen=True)
class TensorMethod(Options, ABC):
    """A way to merge tensors of one shape; its fields are its options.

    The class attributes ``summary``, ``needs``, ``gives`` and ``paper`` describe it for users as those of
    `NetworkMethod` do. Further class attributes:

    needs_base, takes_base : bool
        Whether models are seen as changes of a common start: always, or where there is one.
    needs_information, uses_factors : bool
        Whether the method needs Fisher files; of these the factors of layers' inputs, in place of diagonals.
    count, least : int, optional
        The only number of models that the method takes, None for any; the least number.
    takes_weights : bool
        Whether models have weights.
    whole_rows, whole_matrices : bool
        Whether blocks are whole rows of a matrix, in place of a fixed number of entries; whether a tensor of all models
        is in memory at once.
    double : bool
        Whether 32 bits are too few to compute in, even for tensors of 16 bits.
    surveys_in_single : bool
        Whether facts are order statistics of single differences, which are the same in 32 bits.
    samples_first : bool
        Whether the first pass looks at a sample of a tensor alone, as if it were its first block.
    merges_in_single : bool
        Whether tensors of 16 bits are merged in 32 bits by `merge_single`, and what is not certain again by `merge`.
    shows : bool
        Whether a NaN or an infinity in any model of positive weight is always one in the result, so that checking the
        result is enough.
    """

    summary: ClassVar[str]
    needs: ClassVar[str]
    gives: ClassVar[str] = "one checkpoint"
    paper: ClassVar[str]
    needs_base: ClassVar[bool] = False
    takes_base: ClassVar[bool] = False
    needs_information: ClassVar[bool] = False
    uses_factors: ClassVar[bool] = False
    count: ClassVar[int | None] = None
    least: ClassVar[int] = 1
    takes_weights: ClassVar[bool] = True
    whole_rows: ClassVar[bool] = False
    whole_matrices: ClassVar[bool] = False
    double: ClassVar[bool] = True
    surveys_in_single: ClassVar[bool] = False
    samples_first: ClassVar[bool] = False
    merges_in_single: ClassVar[bool] = False
    shows: ClassVar[bool] = False

    @property
    def signed(self) -> bool:
        """Whether weights may be negative."""
        return False

    @property
    def divides_by_sum(self) -> bool:
        """Whether weights are divided by their sum, which then is not 0."""
        return bool(getattr(self, "normalize", False)) and getattr(self, "combine", "linear") == "linear"

    def weights_of(self, weights: Any, count: int, where: str) -> tuple[float, ...]:
        """Return the weights of the models as numbers, 1 each where none are given.

        Raises OptionError for weights that this method does not take.
        """
        if not self.takes_weights and weights is not None:
            hint = "; its option t says where between the models" if self.name == "slerp" else ""
            raise OptionError(where, f"method {self.name!r} takes none{hint}")
        vector = as_weights(weights, count, where, signed=self.signed)
        if self.divides_by_sum and not float(vector.sum()):
            raise OptionError(where, "sum to 0, and are divided by their sum", "give others, or `normalize=False`")
        return tuple(vector.tolist())

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

    def knows_enough(self, facts: Facts) -> bool:
        """Return whether the passes that are left are not needed."""
        return False

    @abstractmethod
    def merge(self, block: TensorBlock, setting: TensorSetting, facts: Facts) -> Floats:
        """Return the merged entries (n,)."""

    def merge_single(
        self, block: TensorBlock, setting: TensorSetting, facts: Facts
    ) -> tuple[Floats, NDArray[np.bool_]]:
        """Return the merged entries in 32 bits, and which are not certain to `SINGLE_ERROR` for each model (n,)."""
        raise AssertionError(f"{self.name} does not merge in 32 bits")


def block_length(method: TensorMethod, row_length: int) -> int:
    """Return the entries of a block: a fixed number, or as many whole rows as it holds, one at least."""
    return row_length * max(1, BLOCK_ENTRIES // row_length) if method.whole_rows else BLOCK_ENTRIES


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
