"""What one use of a layer's parameters adds to the gradient of every single observation.

A layer was given a (n, ...) and answered z; with g = d log p / d z of every observation, its weight W has the gradient

    sum_t g_t a_t^T  (linear, t over positions),    sum_t g_t x_t  (a gain on normalised x),    rows of g  (embedding),

the sums over positions of that observation only: so a backward pass for all observations together, which gives g, gives
the gradients of each. (Goodfellow 2015, "Efficient per-example gradient computations".)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_ENTRIES = 2**25
"""Entries of gradients that are in memory at once."""

_LARGE = 2**15
"""A weight of more entries is a matter of memory more than of calls."""


@dataclass(frozen=True, eq=False)
class Use(ABC):
    """One use of one parameter.

    Parameters
    ----------
    parameter
        Its name.
    shape
        Its shape.
    answer
        The tensor whose gradient is asked for.
    """

    parameter: str
    shape: tuple[int, ...]
    answer: Tensor

    @abstractmethod
    def gradients(self, g: Tensor, rows: slice) -> Tensor:
        """Return the gradients of some observations (rows, *shape), given that of the answer for all."""

    def squares(self, g: Tensor, observations: int) -> Tensor:
        """Return the sum of the squared gradients of all observations, in the parameter's shape."""
        return summed_squares(lambda rows: self.gradients(g, rows), self.shape, observations)


def summed_squares(gradients: Callable[[slice], Tensor], shape: tuple[int, ...], observations: int) -> Tensor:
    """Return the sum of squares over observations, so many at a time as fit into memory."""
    step = max(1, _ENTRIES // max(1, torch.Size(shape).numel()))
    total: Any = 0.0
    for start in range(0, observations, step):
        total = total + gradients(slice(start, min(start + step, observations))).square().sum(dim=0)
    return total


@dataclass(frozen=True, eq=False)
class Product(Use):
    """A weight on what was given: linear layers, convolutions, the two weights of a recurrent cell.

    Parameters
    ----------
    given
        (n, groups, positions, inputs); one group but for grouped convolutions.
    outputs
        From the gradient of the answer to that of the product (n, groups, positions, outputs).
    """

    given: Tensor
    outputs: Callable[[Tensor], Tensor]

    def gradients(self, g: Tensor, rows: slice) -> Tensor:
        """Return sum_t g_t a_t^T."""
        made = self.outputs(g)[rows].transpose(2, 3) @ self.given[rows]
        return made.reshape(len(made), *self.shape)

    def squares(self, g: Tensor, observations: int) -> Tensor:
        """Return the sum of squares; with one position they factorise."""
        if self.given.shape[2] > 1:
            large = torch.Size(self.shape).numel() > _LARGE
            return self._summed(g) if large else super().squares(g, observations)
        of_outputs, given = self.outputs(g).square()[:, :, 0], self.given.square()[:, :, 0]
        return torch.einsum("ngo,ngi->goi", of_outputs, given).reshape(self.shape)

    def _summed(self, g: Tensor) -> Tensor:
        """Return the sum of squares, one gradient at a time in one place: what is large is read and written once."""
        of_outputs, given = self.outputs(g).transpose(2, 3), self.given
        made = given.new_empty(given.shape[1], of_outputs.shape[2], given.shape[3])
        total = torch.zeros_like(made)
        for one, read in zip(of_outputs, given, strict=True):
            torch.bmm(one, read, out=made)
            total.addcmul_(made, made)
        return total.reshape(self.shape)


@dataclass(frozen=True, eq=False)
class Sum(Use):
    """A bias or a gain: what it multiplies, summed over positions.

    Parameters
    ----------
    given
        What it multiplies, in the answer's shape; None for a bias.
    outputs
        From the gradient of the answer to (n, positions, *shape).
    """

    given: Tensor | None
    outputs: Callable[[Tensor], Tensor]

    def gradients(self, g: Tensor, rows: slice) -> Tensor:
        """Return sum_t g_t x_t."""
        return self.outputs(g if self.given is None else g * self.given)[rows].sum(dim=1).reshape(-1, *self.shape)


@dataclass(frozen=True, eq=False)
class Lookup(Use):
    """Rows of an embedding.

    Parameters
    ----------
    numbers
        Which rows were looked up (n, positions).
    skipped
        The row that is not trained (padding_idx); -1 for none.
    """

    numbers: Tensor
    skipped: int

    def gradients(self, g: Tensor, rows: slice) -> Tensor:
        """Return gradients that are zero but for the rows that were looked up."""
        numbers = self.numbers[rows]
        made = g.new_zeros(len(numbers), *self.shape)
        trained = (numbers != self.skipped).unsqueeze(-1)
        given = g.reshape(*self.numbers.shape, -1)[rows] * trained
        return made.scatter_add_(1, numbers.unsqueeze(-1).expand_as(given), given)

    def squares(self, g: Tensor, observations: int) -> Tensor:
        """Return the sum of squares, from those pairs of observation and row only that occur."""
        rows, width = self.shape
        order = torch.arange(observations, device=g.device)[:, None] * rows + self.numbers
        pairs, place = torch.unique(order, return_inverse=True)
        sums = g.new_zeros(len(pairs), width).index_add_(0, place.ravel(), g.reshape(-1, width))
        total = g.new_zeros(self.shape).index_add_(0, pairs % rows, sums.square())
        if self.skipped >= 0:
            total[self.skipped] = 0.0
        return total
