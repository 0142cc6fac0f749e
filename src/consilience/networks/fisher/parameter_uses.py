"""Per-sample gradients of one use of a parameter, from one backward pass for all samples.

A layer with the input a (n, ...) has the output z; with g = d log p / d z of every observation, its weight W has the
per-sample gradient

    sum_t g_t a_t^T  (linear layers and convolutions, t over positions),
    sum_t g_t x_t    (a gain on normalised inputs x; a bias with x = 1),
    rows of g        (an embedding),

where the sums run over the positions of that observation only. So one backward pass for all observations together,
which gives g, gives the gradient of each. (Goodfellow 2015, "Efficient per-example gradient computations".) With one
position the squares factorise, (g a^T)^2 = g^2 (a^2)^T, and their sum over observations is one matrix product.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_MAX_GRADIENT_ENTRIES = 2**25
"""Entries of per-sample gradients in memory at once (128 MiB in float32). Chosen by hand; only speed and memory depend
on it, and nobody has measured other values."""

_LARGE_WEIGHT = 2**15
"""Entries from which on a weight's per-sample gradients are squared one sample after another, in one buffer: memory
traffic then costs more than the calls. Chosen by hand; nobody has measured other values."""


@dataclass(frozen=True, eq=False)
class ParameterUse(ABC):
    """One use of one parameter in the forward pass of a batch."""

    parameter: str  # its name
    shape: tuple[int, ...]  # and its shape
    output: Tensor  # the tensor z that the parameter contributes to; its gradient is g

    @abstractmethod
    def gradients(self, g: Tensor, rows: slice) -> Tensor:
        """Return the gradients of some observations (rows, *shape), from the gradient g of the output for all."""

    def squares(self, g: Tensor, n_observations: int) -> Tensor:
        """Return the sum of squared gradients over observations, in the parameter's shape."""
        return sum_of_squares(lambda rows: self.gradients(g, rows), self.shape, n_observations)


def sum_of_squares(gradients: Callable[[slice], Tensor], shape: tuple[int, ...], n_observations: int) -> Tensor:
    """Return the sum of squares over observations, computed for as many at a time as fit into memory."""
    step = max(1, _MAX_GRADIENT_ENTRIES // max(1, torch.Size(shape).numel()))
    total: Any = 0.0
    for start in range(0, n_observations, step):
        total = total + gradients(slice(start, min(start + step, n_observations))).square().sum(dim=0)
    return total


@dataclass(frozen=True, eq=False)
class LinearUse(ParameterUse):
    """A weight that multiplies inputs: linear layers, convolutions, the weights of a recurrent cell."""

    inputs: Tensor  # (n, groups, positions, d_in): what the weight multiplies; one group but for grouped convolutions
    # from the gradient g of the output to that of the product, (n, groups, positions, d_out)
    output_gradients: Callable[[Tensor], Tensor]

    def gradients(self, g: Tensor, rows: slice) -> Tensor:
        """Return sum_t g_t a_t^T."""
        products = self.output_gradients(g)[rows].transpose(2, 3) @ self.inputs[rows]  # (n, groups, d_out, d_in)
        return products.reshape(len(products), *self.shape)

    def squares(self, g: Tensor, n_observations: int) -> Tensor:
        """Return the sum of squares; with one position they factorise."""
        if self.inputs.shape[2] > 1:
            is_large = torch.Size(self.shape).numel() > _LARGE_WEIGHT
            return self._squares_one_by_one(g) if is_large else super().squares(g, n_observations)
        squared_gradients = self.output_gradients(g).square()[:, :, 0]  # (n, groups, d_out)
        squared_inputs = self.inputs.square()[:, :, 0]  # (n, groups, d_in)
        return torch.einsum("ngo,ngi->goi", squared_gradients, squared_inputs).reshape(self.shape)

    def _squares_one_by_one(self, g: Tensor) -> Tensor:
        """Return the sum of squares, one gradient at a time in one buffer, which is read and written once."""
        output_gradients = self.output_gradients(g).transpose(2, 3)  # (n, groups, d_out, positions)
        groups, d_out, d_in = self.inputs.shape[1], output_gradients.shape[2], self.inputs.shape[3]
        gradient = self.inputs.new_empty(groups, d_out, d_in)
        total = torch.zeros_like(gradient)
        for sample_gradients, sample_inputs in zip(output_gradients, self.inputs, strict=True):
            torch.bmm(sample_gradients, sample_inputs, out=gradient)
            total.addcmul_(gradient, gradient)
        return total.reshape(self.shape)


@dataclass(frozen=True, eq=False)
class ElementwiseUse(ParameterUse):
    """A bias or a gain: the sum over positions of what multiplies it."""

    factor: Tensor | None  # what the gain multiplies, in the output's shape; None for a bias
    by_position: Callable[[Tensor], Tensor]  # from a tensor in the output's shape to (n, positions, *shape)

    def gradients(self, g: Tensor, rows: slice) -> Tensor:
        """Return sum_t g_t x_t."""
        return self.by_position(g if self.factor is None else g * self.factor)[rows].sum(dim=1).reshape(-1, *self.shape)


@dataclass(frozen=True, eq=False)
class EmbeddingUse(ParameterUse):
    """Rows of an embedding."""

    indices: Tensor  # (n, positions): rows that were looked up
    padding_index: int  # the row that is not trained (padding_idx); -1 for none

    def gradients(self, g: Tensor, rows: slice) -> Tensor:
        """Return gradients that are zero but for the rows that were looked up."""
        indices = self.indices[rows]  # (rows, positions)
        gradients = g.new_zeros(len(indices), *self.shape)  # (rows, vocabulary, width)
        is_trained = (indices != self.padding_index).unsqueeze(-1)
        row_gradients = g.reshape(*self.indices.shape, -1)[rows] * is_trained  # (rows, positions, width)
        return gradients.scatter_add_(1, indices.unsqueeze(-1).expand_as(row_gradients), row_gradients)

    def squares(self, g: Tensor, n_observations: int) -> Tensor:
        """Return the sum of squares, from those pairs of observation and row only that occur."""
        vocabulary, width = self.shape
        # A word that occurs twice in one observation has the square of the sum, so sums come before squares.
        pair_codes = torch.arange(n_observations, device=g.device)[:, None] * vocabulary + self.indices
        pairs, pair_of_position = torch.unique(pair_codes, return_inverse=True)
        sums = g.new_zeros(len(pairs), width).index_add_(0, pair_of_position.ravel(), g.reshape(-1, width))
        total = g.new_zeros(self.shape).index_add_(0, pairs % vocabulary, sums.square())
        if self.padding_index >= 0:
            total[self.padding_index] = 0.0
        return total
