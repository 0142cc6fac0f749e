"""Recurrent layers of torch, step by step: an affine map of input and hidden state, then the gates.

With x_t (d,) the input of a cell, h_t (p,) its hidden state and c_t (k,) the cell state of an LSTM,

    z_t = W [x_t; h_{t-1}] + b,    (y_t, c_t) = gates(z_t, h_{t-1}, c_{t-1}),    h_t = V y_t (h_t = y_t without V).

Rows of z are the gates in torch's order. The last gate of a GRU, tanh(W_in x + b_in + r (W_hn h + b_hn)), needs its two
summands apart: they are rows of their own, the first without weights on the state, the second without weights on x.
Stacked layers and both directions are such cells, one after the other (Hochreiter, Schmidhuber 1997; Cho et al. 2014;
equations as in the documentation of torch).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

Recurrent = nn.RNN | nn.LSTM | nn.GRU
# A subclass with a forward of its own may do anything, so that only torch's are known.
_FORWARDS = (nn.RNN.forward, nn.LSTM.forward, nn.GRU.forward)


def is_recurrent(part: nn.Module) -> TypeGuard[Recurrent]:
    """Return whether a module is a recurrent layer of torch, or a subclass that runs as it does."""
    return isinstance(part, (nn.RNN, nn.LSTM, nn.GRU)) and type(part).forward in _FORWARDS


def unsupported_reason(part: nn.Module, inputs: Any) -> str | None:
    """Return why a recurrent part cannot be run step by step; None if it can be, or is not recurrent."""
    if isinstance(part, nn.RNNCellBase):
        return "is a cell that is called step by step"
    if is_recurrent(part) and isinstance(inputs, PackedSequence):
        return "reads packed sequences"
    if is_recurrent(part) and inputs.ndim != 3:
        return "reads a single sequence, no batch"
    return None


def input_and_initial_state(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the input and the initial state (None unless given) in the arguments of a call of a torch module."""
    named = dict(zip(("input", "hx"), arguments, strict=False)) | dict(keywords)
    return named.get("input"), named.get("hx")


def clone_values(values: Any) -> Any:
    """Return a copy of what one part hands to the next: a tensor, or a recurrent layer's output and last states."""
    if isinstance(values, Tensor):
        return values.clone()
    return tuple(clone_values(item) for item in values) if type(values) is tuple else values


def n_bytes(values: Any) -> int:
    """Return the number of bytes of such values."""
    if isinstance(values, Tensor):
        return values.nbytes
    return sum(map(n_bytes, values)) if type(values) is tuple else 0


def _tanh(z: Tensor, _hidden: Tensor, cell_state: Tensor) -> tuple[Tensor, Tensor]:
    return z.tanh(), cell_state


def _relu(z: Tensor, _hidden: Tensor, cell_state: Tensor) -> tuple[Tensor, Tensor]:
    return z.relu(), cell_state


def _lstm(z: Tensor, _hidden: Tensor, cell_state: Tensor) -> tuple[Tensor, Tensor]:
    input_gate, forget_gate, candidate, output_gate = z.chunk(4, dim=1)  # (n, k) each
    cell_state = forget_gate.sigmoid() * cell_state + input_gate.sigmoid() * candidate.tanh()
    return output_gate.sigmoid() * cell_state.tanh(), cell_state


def _gru(z: Tensor, hidden: Tensor, cell_state: Tensor) -> tuple[Tensor, Tensor]:
    # Four blocks of three gates: the candidate's part from the input, and its part from the state, are rows apart.
    reset_gate, update_gate, candidate_input, candidate_hidden = z.chunk(4, dim=1)  # (n, k) each
    candidate = (candidate_input + reset_gate.sigmoid() * candidate_hidden).tanh()
    return candidate + update_gate.sigmoid() * (hidden - candidate), cell_state


@dataclass(frozen=True)
class CellKind:
    """The gates of a kind of recurrent layer."""

    n_gates: int  # gates that torch stacks in one array
    n_split_gates: int  # how many of them, the last ones, need the summands of input and hidden state apart
    # from z (n, rows), the hidden state before (n, p) and the cell state (n, k) to y (n, k) and the new cell state
    step: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

    def n_shared_rows(self, n_units: int) -> int:
        """Return how many rows of z, the first ones, get a summand from both input and hidden state."""
        return (self.n_gates - self.n_split_gates) * n_units


_KINDS: Mapping[str, CellKind] = {
    "RNN_TANH": CellKind(1, 0, _tanh),
    "RNN_RELU": CellKind(1, 0, _relu),
    "LSTM": CellKind(4, 0, _lstm),
    "GRU": CellKind(3, 1, _gru),
}


@dataclass(frozen=True, eq=False)
class RecurrentCell:
    """One layer of a recurrent module in one direction: d inputs, k units, p hidden states."""

    kind: CellKind  # its gates
    weight: Tensor  # (rows, d + p): W: on the input, then on the hidden state
    bias: Tensor | None  # (rows,): b; None for a module without biases
    projection: Tensor | None  # (p, k): V; None where y is the hidden state
    n_units: int  # k

    @property
    def n_states(self) -> int:
        """Length p of the hidden state."""
        return self.n_units if self.projection is None else len(self.projection)

    @property
    def n_inputs(self) -> int:
        """Length d of the input of a step."""
        return self.weight.shape[1] - self.n_states

    def weight_blocks(self) -> list[tuple[slice, slice]]:
        """Return the blocks (rows, columns) of W that hold weights; all of W outside them is zero."""
        n_shared, n_stacked = self.kind.n_shared_rows(self.n_units), self.kind.n_gates * self.n_units
        n_rows = len(self.weight)
        blocks = [(slice(0, n_shared), slice(None))]
        if self.kind.n_split_gates:
            input_columns, hidden_columns = slice(0, self.n_inputs), slice(self.n_inputs, None)
            blocks += [(slice(n_shared, n_stacked), input_columns), (slice(n_stacked, n_rows), hidden_columns)]
        return blocks


def read_cell(module: Recurrent, layer: int, direction: int) -> RecurrentCell:
    """Return one layer of a recurrent module, in single precision or better; `direction` is 1 for the reverse one."""
    names = _array_names(module, layer, direction)
    arrays = {kind: at_least_float32(getattr(module, name).detach()) for kind, name in names.items()}
    input_weight, hidden_weight = arrays["weight_ih"], arrays["weight_hh"]  # (gates * k, d) and (gates * k, p)
    kind = _KINDS[module.mode]
    n_shared = kind.n_shared_rows(module.hidden_size)
    # Rows: shared ones, then split gates on the input alone, then split gates on the hidden state alone.
    weight = torch.cat(
        [
            torch.cat([input_weight[:n_shared], hidden_weight[:n_shared]], dim=1),
            torch.cat([input_weight[n_shared:], torch.zeros_like(hidden_weight[n_shared:])], dim=1),
            torch.cat([torch.zeros_like(input_weight[n_shared:]), hidden_weight[n_shared:]], dim=1),
        ]
    )
    bias = None
    if module.bias:
        input_bias, hidden_bias = arrays["bias_ih"], arrays["bias_hh"]
        shared_bias = input_bias[:n_shared] + hidden_bias[:n_shared]
        bias = torch.cat([shared_bias, input_bias[n_shared:], hidden_bias[n_shared:]])
    return RecurrentCell(kind, weight, bias, arrays.get("weight_hr"), module.hidden_size)


def write_cell(module: Recurrent, layer: int, direction: int, cell: RecurrentCell) -> None:
    """Write a cell into a recurrent module; of two biases that add up, the second becomes zero."""
    n_shared, n_stacked = cell.kind.n_shared_rows(cell.n_units), cell.kind.n_gates * cell.n_units
    arrays = {
        "weight_ih": cell.weight[:n_stacked, : cell.n_inputs],
        "weight_hh": torch.cat([cell.weight[:n_shared, cell.n_inputs :], cell.weight[n_stacked:, cell.n_inputs :]]),
    }
    if cell.bias is not None:
        arrays["bias_ih"] = cell.bias[:n_stacked]
        arrays["bias_hh"] = torch.cat([torch.zeros_like(cell.bias[:n_shared]), cell.bias[n_stacked:]])
    if cell.projection is not None:
        arrays["weight_hr"] = cell.projection
    with torch.no_grad():
        for kind, name in _array_names(module, layer, direction).items():
            getattr(module, name).copy_(arrays[kind])


def _array_names(module: Recurrent, layer: int, direction: int) -> dict[str, str]:
    """Return the names of the arrays of one layer and direction in the module, by kind of array."""
    kinds = ["weight_ih", "weight_hh"]
    kinds += ["bias_ih", "bias_hh"] if module.bias else []
    kinds += ["weight_hr"] if module.proj_size else []
    return {kind: f"{kind}_l{layer}{'_reverse' if direction else ''}" for kind in kinds}


def at_least_float32(values: Tensor) -> Tensor:
    """Return real numbers in single precision or better."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


@dataclass(frozen=True, eq=False)
class CellTrajectory:
    """What a cell computed over all steps."""

    pre_activations: Tensor  # (steps, n, rows): z_t
    hidden_states: Tensor  # (steps + 1, n, p): h_t, from the state before the first step
    outputs: Tensor  # (steps, n, k): y_t, before the projection


def run_cell(cell: RecurrentCell, inputs: Tensor, hidden: Tensor, cell_state: Tensor) -> CellTrajectory:
    """Run a cell over sequences (steps, n, d) from initial hidden states (n, p) and cell states (n, k)."""
    z = inputs @ cell.weight[:, : cell.n_inputs].T  # (steps, n, rows): all inputs in one product
    if cell.bias is not None:
        z += cell.bias
    hidden_states = hidden.new_empty(len(inputs) + 1, *hidden.shape)
    outputs = cell_state.new_empty(len(inputs), *cell_state.shape)
    hidden_states[0] = hidden
    hidden_weight = cell.weight[:, cell.n_inputs :].T.contiguous()  # (p, rows)
    for step in range(len(inputs)):
        # In place: z becomes the whole pre-activation, which a refit needs as its target.
        z[step].addmm_(hidden_states[step], hidden_weight)
        outputs[step], cell_state = cell.kind.step(z[step], hidden_states[step], cell_state)
        hidden_states[step + 1] = outputs[step] if cell.projection is None else outputs[step] @ cell.projection.T
    return CellTrajectory(z, hidden_states, outputs)


@dataclass(frozen=True, eq=False)
class RecurrentInputs:
    """Inputs of a layer of a recurrent module, and initial states of all its layers."""

    values: Tensor  # (steps, n, d): inputs of the layer
    hidden: Tensor  # (layers * directions, n, p): initial hidden states
    cell_state: Tensor  # (layers * directions, n, k): initial cell states; zeros where there are none

    @classmethod
    def of_call(
        cls, module: Recurrent, values: Tensor, initial_state: Any, samples: Tensor | slice = slice(None)
    ) -> RecurrentInputs:
        """Return the inputs of a module's first layer, for all or some of the samples that the module is called with.

        Values are (steps, n, d), or (n, steps, d) with `batch_first`; an initial state of None is zeros.
        """
        n_directions = 2 if module.bidirectional else 1
        values = at_least_float32(values.transpose(0, 1) if module.batch_first else values)[:, samples]
        n_cells = module.num_layers * n_directions
        hidden, cell_state = (
            values.new_zeros(n_cells, values.shape[1], size)
            for size in (module.proj_size or module.hidden_size, module.hidden_size)
        )
        if isinstance(initial_state, (tuple, list)):  # of an LSTM: hidden and cell states
            hidden, cell_state = (at_least_float32(state)[:, samples] for state in initial_state)
        elif initial_state is not None:
            hidden = at_least_float32(initial_state)[:, samples]
        return cls(values, hidden, cell_state)

    def run(self, module: Recurrent, layer: int) -> list[CellTrajectory]:
        """Return the trajectory of each direction of a layer; the second goes from the last step to the first."""
        n_directions = 2 if module.bidirectional else 1
        trajectories = []
        for direction in range(n_directions):
            index = layer * n_directions + direction
            values = self.values.flip(0) if direction else self.values
            cell = read_cell(module, layer, direction)
            trajectories.append(run_cell(cell, values, self.hidden[index], self.cell_state[index]))
        return trajectories

    def next_layer(self, trajectories: Sequence[CellTrajectory]) -> RecurrentInputs:
        """Return the inputs of the next layer: the hidden states of all directions, in the order of steps."""
        outputs = [
            trajectory.hidden_states[1:].flip(0) if direction else trajectory.hidden_states[1:]
            for direction, trajectory in enumerate(trajectories)
        ]
        return replace(self, values=torch.cat(outputs, dim=-1))
