"""A way to merge checkpoints tensor by tensor, and each tensor piece by piece: for models that no memory holds.

A merged entry depends on the same entry of every model and on a few numbers about the whole tensor (a threshold, an
angle), its *facts*. These are gathered first, in as many passes as the method has surveys. All passes see a tensor in
blocks of the same `BLOCK` entries, so that neither the size of pieces nor the number of threads changes a bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from consilience.core.options import Options, find_method, refuse_options

BLOCK = 2**17
"""Entries of a block: what a core's cache holds of a few models."""

Floats = NDArray[np.floating[Any]]
Facts = Mapping[str, float]


@dataclass(frozen=True)
class Setting:
    """What is the same for all blocks of a tensor.

    Parameters
    ----------
    tensor
        Its name.
    size
        How many entries it has.
    weights
        How much each model counts (J,), as the user said; not all zero.
    seed
        Of random choices.
    """

    tensor: str
    size: int
    weights: tuple[float, ...]
    seed: int = 0

    @property
    def shares(self) -> tuple[float, ...]:
        """The weights, summing to 1."""
        total = sum(self.weights)
        return tuple(weight / total for weight in self.weights)


@dataclass(frozen=True, eq=False)
class Block:
    """The same entries of one tensor in all models.

    Parameters
    ----------
    number
        Which block of the tensor, from 0.
    models
        Their values, (n,) each, of one precision; methods may overwrite them.
    base
        The common start's values (n,); None for methods without one.
    information
        Fisher diagonals (n,) by model; empty for methods without.
    """

    number: int
    models: Sequence[Floats]
    base: Floats | None = None
    information: Sequence[Floats] = ()


@dataclass(frozen=True)
class TensorMethod(Options, ABC):
    """A way to merge tensors of one shape; its fields are its options.

    Class attributes describe it for users as those of `NetworkMethod` do. Besides: ``needs_base`` (whether models are
    seen as changes of a common start), ``needs_information`` (Fisher diagonals), ``count`` (of models, where it takes
    so many only), ``double`` (whether 32 bits are too few to work in, even for tensors of 16 bits), and ``shows``
    (whether a NaN or an infinity of a model that counts is always one of the result, so that only that is looked at).
    """

    summary: ClassVar[str]
    needs: ClassVar[str]
    gives: ClassVar[str]
    paper: ClassVar[str]
    needs_base: ClassVar[bool] = False
    needs_information: ClassVar[bool] = False
    count: ClassVar[int | None] = None
    double: ClassVar[bool] = True
    shows: ClassVar[bool] = False

    @property
    def surveys(self) -> int:
        """How many passes over a tensor gather its facts."""
        return 0

    def survey(self, number: int, block: Block, setting: Setting, facts: Facts) -> NDArray[Any]:
        """Return what a pass sees in a block; what it saw in all blocks is added up, in their order."""
        raise AssertionError(f"{self.name} has no survey {number}")

    def conclude(self, number: int, total: NDArray[Any], setting: Setting, facts: Facts) -> Facts:
        """Return the facts, from what a pass saw in all blocks and from the facts before."""
        raise AssertionError(f"{self.name} has no survey {number}")

    @abstractmethod
    def merge(self, block: Block, setting: Setting, facts: Facts) -> Floats:
        """Return the merged entries (n,)."""


def make_tensor_method(
    kinds: Sequence[type[TensorMethod]], method: str | TensorMethod, options: Mapping[str, Any]
) -> TensorMethod:
    """Return the method of a name with these options, or the method itself when no option is given.

    Raises
    ------
    OptionError
        For a name, an option or a value that does not exist, saying which do.
    """
    if isinstance(method, TensorMethod):
        refuse_options(method, options)
        return method
    return find_method(kinds, method, options, " for checkpoints")(**options)


def linear(models: Sequence[Floats], coefficients: Sequence[float]) -> Floats:
    """Return sum_i c_i x_i, in place of one of the models; those whose coefficient is 0 are not looked at.

    A coefficient of 1 alone gives its model to the last bit, negative zeros included.

    Examples
    --------
    >>> linear([np.array([1.0, 2.0]), np.array([3.0, np.nan])], [1.0, 0.0])
    array([1., 2.])
    """
    counted = [(model, factor) for model, factor in zip(models, coefficients, strict=True) if factor != 0.0]
    if not counted:
        return np.zeros_like(models[0])
    total = counted[0][0]
    for number, (model, factor) in enumerate(counted):
        if factor != 1.0:
            np.multiply(model, model.dtype.type(factor), out=model)
        if number:
            np.add(total, model, out=total)
    return total
