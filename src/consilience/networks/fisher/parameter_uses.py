"""Per-sample gradients of one use of a parameter, from one backward pass for all samples.

A layer with the input a (n, ...) has the output z; with g = d log p / d z of every observation, its weight W has the
per-sample gradient

    sum_t g_t a_t^T  (linear layers and convolutions, t over positions),
    sum_t g_t x_t    (a gain on normalised inputs x; a bias with x = 1),
    rows of g        (an embedding),

where the sums run over the positions of that observation only. So one backward pass for all observations together,
which gives g, gives the gradient of each. (Goodfellow 2015, "Efficient per-example gradient computations".) With one
position the squares factorise, (g a^T)^2 = g^2 (a^2)^T, and their sum over observations is one matrix product.

Recurrent layers are run cell by cell: a module is replaced for the while by its cells (``repair.recurrent_layers``).
Zeros are added to the gate pre-activations z_t and to the hidden states h_t; their gradients are g_t = d log p / d z_t
and g'_t = d log p / d h_t. With x_t the input of the cell and y_t its output before the projection V,

    W_ih: sum_t g_t x_t^T,    W_hh: sum_t g_t h_{t-1}^T,    V: sum_t g'_t y_t^T,    biases: sum_t g_t.

A module that reads packed or unbatched sequences runs as it is; its gradients are then taken one by one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from consilience.networks.repair.recurrent_layers import (
    Recurrent,
    RecurrentCell,
    RecurrentInputs,
    read_cell,
    unsupported_reason,
)

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


TrainedName = Callable[[nn.Module, str], str | None]
"""From a layer and an attribute of it to the name of that parameter; None unless it is trained."""


@contextmanager
def record_recurrent_uses(module: Recurrent, trained_name: TrainedName, uses: list[ParameterUse]) -> Iterator[None]:
    """Run a recurrent module cell by cell for the while, and append the uses of its trained weights to `uses`."""
    torch_forward: Any = module.forward

    def forward(inputs: Any, hx: Any = None) -> Any:
        if unsupported_reason(module, inputs) is not None:
            return torch_forward(inputs, hx)
        return _forward(module, inputs, hx, trained_name, uses)

    module.forward = forward  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        del module.forward


def _forward(module: Recurrent, inputs: Tensor, hx: Any, trained_name: TrainedName, uses: list[ParameterUse]) -> Any:
    """Return the outputs of a recurrent module: hidden states of the last layer, and last states of all layers."""
    n_directions = 2 if module.bidirectional else 1
    read = RecurrentInputs.of_call(module, inputs, hx)
    sequences = read.values  # (steps, n, d)
    last_hidden: list[Tensor] = []
    last_cell: list[Tensor] = []
    for layer in range(module.num_layers):
        hidden_by_direction = []
        for direction in range(n_directions):
            # torch orders states by layer, then by direction; the reverse direction reads the last step first.
            index, suffix = layer * n_directions + direction, f"_l{layer}{'_reverse' if direction else ''}"
            names = {array: trained_name(module, array + suffix) for array in _CELL_ARRAYS}
            recorded = _RecordedCell(read_cell(module, layer, direction), names)
            ordered = sequences.flip(0) if direction else sequences
            hidden, cell_state = recorded.run(ordered, read.hidden[index], read.cell_state[index], uses)
            last_hidden.append(hidden[-1])
            last_cell.append(cell_state)
            hidden_by_direction.append(hidden.flip(0) if direction else hidden)
        sequences = torch.cat(hidden_by_direction, dim=-1)
    outputs = (sequences.transpose(0, 1) if module.batch_first else sequences).to(inputs)
    hidden_ends = torch.stack(last_hidden).to(inputs)
    if isinstance(module, nn.LSTM):
        return outputs, (hidden_ends, torch.stack(last_cell).to(inputs))
    return outputs, hidden_ends


_CELL_ARRAYS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
"""Torch's names of the arrays of a cell, without layer and direction."""


class _RecordedCell:
    """A recurrent cell that records the uses of its weights."""

    def __init__(self, cell: RecurrentCell, names: Mapping[str, str | None]) -> None:
        """Take the cell, and the names of those of its arrays that are trained."""
        self.cell, self.names = cell, names

    def run(
        self, inputs: Tensor, hidden: Tensor, cell_state: Tensor, uses: list[ParameterUse]
    ) -> tuple[Tensor, Tensor]:
        """Return the hidden states (steps, n, p) and the last cell state (n, k), from those before the first step."""
        cell = self.cell
        n_steps, n_observations = inputs.shape[:2]
        # Added zeros, whose gradients are those of the gates z_t and of the hidden states h_t.
        gate_probe = inputs.new_zeros(n_steps, n_observations, len(cell.weight), requires_grad=True)
        hidden_probe = inputs.new_zeros(n_steps, n_observations, cell.n_states, requires_grad=True)
        z = inputs @ cell.weight[:, : cell.n_inputs].T + gate_probe  # (steps, n, rows)
        if cell.bias is not None:
            z = z + cell.bias
        hidden_weight = cell.weight[:, cell.n_inputs :].T
        previous_hidden, hidden_states, cell_outputs = [], [], []
        for step in range(n_steps):
            # Detached: a gradient with respect to W_hh holds its input fixed; g_t already has the later steps.
            previous_hidden.append(hidden.detach())
            cell_output, cell_state = cell.kind.step(z[step] + hidden @ hidden_weight, hidden, cell_state)
            projected = cell_output if cell.projection is None else cell_output @ cell.projection.T
            hidden = projected + hidden_probe[step]
            cell_outputs.append(cell_output.detach())
            hidden_states.append(hidden)
        uses += self._uses(
            gate_probe, hidden_probe, inputs.detach(), torch.stack(previous_hidden), torch.stack(cell_outputs)
        )
        return torch.stack(hidden_states), cell_state

    def _uses(
        self, gate_probe: Tensor, hidden_probe: Tensor, inputs: Tensor, previous_hidden: Tensor, cell_outputs: Tensor
    ) -> list[ParameterUse]:
        """Return the uses of the cell's arrays, in which torch stacks the gates."""
        cell = self.cell
        n_shared, n_stacked = cell.kind.n_shared_rows(cell.n_units), cell.kind.n_gates * cell.n_units

        def by_observation(g: Tensor) -> Tensor:  # (n, 1, steps, rows)
            return g.transpose(0, 1).unsqueeze(1)

        # Rows of z are those that input and state share, then those of the input alone, then those of the state alone.
        def input_gates(g: Tensor) -> Tensor:
            return by_observation(g[..., :n_stacked])

        def hidden_gates(g: Tensor) -> Tensor:
            return by_observation(torch.cat([g[..., :n_shared], g[..., n_stacked:]], dim=-1))

        uses: list[ParameterUse] = []
        products = [
            ("weight_ih", gate_probe, inputs, input_gates, n_stacked),
            ("weight_hh", gate_probe, previous_hidden, hidden_gates, n_stacked),
            ("weight_hr", hidden_probe, cell_outputs, by_observation, cell.n_states),
        ]
        for array, probe, multiplied, output_gradients, n_rows in products:
            if (parameter := self.names[array]) is not None:
                shape = (n_rows, multiplied.shape[-1])
                uses.append(LinearUse(parameter, shape, probe, by_observation(multiplied), output_gradients))
        for array, output_gradients in (("bias_ih", input_gates), ("bias_hh", hidden_gates)):
            if (parameter := self.names[array]) is not None:
                by_position = partial(_only_group, output_gradients)
                uses.append(ElementwiseUse(parameter, (n_stacked,), gate_probe, None, by_position))
        return uses


def _only_group(output_gradients: Callable[[Tensor], Tensor], g: Tensor) -> Tensor:
    """Return gradients (n, positions, rows) of a bias, from those of products with one group."""
    return output_gradients(g)[:, 0]
