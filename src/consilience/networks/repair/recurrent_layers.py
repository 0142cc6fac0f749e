"""Recurrent layers of torch, step by step: an affine map of input and state, then what the gates make of it.

With x_t what a layer is given, h_t its state and c_t the inner state of an LSTM,

    z_t = W [x_t; h_{t-1}] + b,    (y_t, c_t) = gates(z_t, h_{t-1}, c_{t-1}),    h_t = V y_t (h_t = y_t without V).

Rows of z are the gates in torch's order. The last gate of a GRU, tanh(W_in x + b_in + r (W_hn h + b_hn)), takes its two
parts apart: they are rows of their own, the first without weights on the state, the second without weights on x.
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
_FORWARDS = (nn.RNN.forward, nn.LSTM.forward, nn.GRU.forward)


def is_recurrent(part: nn.Module) -> TypeGuard[Recurrent]:
    """Return whether a module is a recurrent layer of torch, or a subclass that runs as it does."""
    return isinstance(part, (nn.RNN, nn.LSTM, nn.GRU)) and type(part).forward in _FORWARDS


def unfit(part: nn.Module, given: Any) -> str | None:
    """Return why a recurrent part cannot be looked at step by step; None if it can be, or is not recurrent."""
    if isinstance(part, nn.RNNCellBase):
        return "is a cell that is called step by step"
    if is_recurrent(part) and isinstance(given, PackedSequence):
        return "reads packed sequences"
    if is_recurrent(part) and given.ndim != 3:
        return "reads a single sequence, no batch"
    return None


def called_with(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return what a module of torch is called with: its input, and the first states of a recurrent one or None."""
    told = dict(zip(("input", "hx"), arguments, strict=False)) | dict(keywords)
    return told.get("input"), told.get("hx")


def copied(values: Any) -> Any:
    """Return a copy of what goes from part to part: a tensor, or, of a recurrent layer, an output and last states."""
    if isinstance(values, Tensor):
        return values.clone()
    return tuple(copied(one) for one in values) if type(values) is tuple else values


def size_of(values: Any) -> int:
    """Return how many bytes such values take."""
    if isinstance(values, Tensor):
        return values.nbytes
    return sum(map(size_of, values)) if type(values) is tuple else 0


def _tanh(z: Tensor, _state: Tensor, inner: Tensor) -> tuple[Tensor, Tensor]:
    return z.tanh(), inner


def _relu(z: Tensor, _state: Tensor, inner: Tensor) -> tuple[Tensor, Tensor]:
    return z.relu(), inner


def _lstm(z: Tensor, _state: Tensor, inner: Tensor) -> tuple[Tensor, Tensor]:
    write, keep, new, read = z.chunk(4, dim=1)
    inner = keep.sigmoid() * inner + write.sigmoid() * new.tanh()
    return read.sigmoid() * inner.tanh(), inner


def _gru(z: Tensor, state: Tensor, inner: Tensor) -> tuple[Tensor, Tensor]:
    reset, keep, of_input, of_state = z.chunk(4, dim=1)
    new = (of_input + reset.sigmoid() * of_state).tanh()
    return new + keep.sigmoid() * (state - new), inner


@dataclass(frozen=True)
class Gates:
    """What a kind of recurrent layer makes of its affine map.

    Parameters
    ----------
    number
        Gates that torch stacks in one array.
    apart
        How many of them, the last ones, take the parts of input and state apart.
    step
        From z (n, rows), the state before (n, p) and the inner state (n, k) to y (n, k) and the inner state.
    """

    number: int
    apart: int
    step: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

    def together(self, units: int) -> int:
        """Return how many rows of z, the first ones, both input and state add to."""
        return (self.number - self.apart) * units


_GATES: Mapping[str, Gates] = {
    "RNN_TANH": Gates(1, 0, _tanh),
    "RNN_RELU": Gates(1, 0, _relu),
    "LSTM": Gates(4, 0, _lstm),
    "GRU": Gates(3, 1, _gru),
}


@dataclass(frozen=True, eq=False)
class Cell:
    """One layer of a recurrent module in one direction; it reads d numbers, has k units and p states.

    Parameters
    ----------
    gates
        Its kind.
    weight
        W (rows, d + p): on what it is given, then on its states.
    bias
        b (rows,); None for a module without biases.
    projection
        V (p, k); None where y is the state.
    units
        k.
    """

    gates: Gates
    weight: Tensor
    bias: Tensor | None
    projection: Tensor | None
    units: int

    @property
    def states(self) -> int:
        """Number of states, p."""
        return self.units if self.projection is None else len(self.projection)

    @property
    def read(self) -> int:
        """How many numbers it is given in each step, d."""
        return self.weight.shape[1] - self.states

    def blocks(self) -> list[tuple[slice, slice]]:
        """Return which rows of W have weights on which columns, together all weights that there are."""
        first, stacked, rows = self.gates.together(self.units), self.gates.number * self.units, len(self.weight)
        found = [(slice(0, first), slice(None))]
        if self.gates.apart:
            found += [(slice(first, stacked), slice(0, self.read)), (slice(stacked, rows), slice(self.read, None))]
        return found


def cell_of(module: Recurrent, layer: int, way: int) -> Cell:
    """Return one layer of a recurrent module, in single precision or better; `way` is 1 for the reverse direction."""
    names = _names(module, layer, way)
    arrays = {name: precise(getattr(module, key).detach()) for name, key in names.items()}
    of_input, of_state = arrays["weight_ih"], arrays["weight_hh"]
    gates = _GATES[module.mode]
    first = gates.together(module.hidden_size)
    weight = torch.cat(
        [
            torch.cat([of_input[:first], of_state[:first]], dim=1),
            torch.cat([of_input[first:], torch.zeros_like(of_state[first:])], dim=1),
            torch.cat([torch.zeros_like(of_input[first:]), of_state[first:]], dim=1),
        ]
    )
    bias = None
    if module.bias:
        one, two = arrays["bias_ih"], arrays["bias_hh"]
        bias = torch.cat([one[:first] + two[:first], one[first:], two[first:]])
    return Cell(gates, weight, bias, arrays.get("weight_hr"), module.hidden_size)


def put_cell(module: Recurrent, layer: int, way: int, cell: Cell) -> None:
    """Write a cell into a recurrent module; of two biases that add up, the second becomes zero."""
    first, stacked = cell.gates.together(cell.units), cell.gates.number * cell.units
    made = {
        "weight_ih": cell.weight[:stacked, : cell.read],
        "weight_hh": torch.cat([cell.weight[:first, cell.read :], cell.weight[stacked:, cell.read :]]),
    }
    if cell.bias is not None:
        made["bias_ih"] = cell.bias[:stacked]
        made["bias_hh"] = torch.cat([torch.zeros_like(cell.bias[:first]), cell.bias[stacked:]])
    if cell.projection is not None:
        made["weight_hr"] = cell.projection
    with torch.no_grad():
        for name, key in _names(module, layer, way).items():
            getattr(module, key).copy_(made[name])


def _names(module: Recurrent, layer: int, way: int) -> dict[str, str]:
    """Return what the arrays of one layer and direction are called in the module."""
    kinds = ["weight_ih", "weight_hh"]
    kinds += ["bias_ih", "bias_hh"] if module.bias else []
    kinds += ["weight_hr"] if module.proj_size else []
    return {kind: f"{kind}_l{layer}{'_reverse' if way else ''}" for kind in kinds}


def precise(values: Tensor) -> Tensor:
    """Return real numbers in single precision or better."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


@dataclass(frozen=True, eq=False)
class Run:
    """What a cell did: z (steps, n, rows), states from the first (steps + 1, n, p), and y (steps, n, k)."""

    rows: Tensor
    states: Tensor
    made: Tensor


def run(cell: Cell, given: Tensor, state: Tensor, inner: Tensor) -> Run:
    """Run a cell over sequences (steps, n, d) from first states (n, p) and inner states (n, k)."""
    z = given @ cell.weight[:, : cell.read].T
    if cell.bias is not None:
        z += cell.bias
    states, made = state.new_empty(len(given) + 1, *state.shape), inner.new_empty(len(given), *inner.shape)
    states[0] = state
    on_state = cell.weight[:, cell.read :].T.contiguous()
    for step in range(len(given)):
        z[step].addmm_(states[step], on_state)
        made[step], inner = cell.gates.step(z[step], states[step], inner)
        states[step + 1] = made[step] if cell.projection is None else made[step] @ cell.projection.T
    return Run(z, states, made)


@dataclass(frozen=True, eq=False)
class Sequences:
    """What a layer of a recurrent module is given.

    Parameters
    ----------
    values
        (steps, n, d).
    states
        First states of all layers and directions (layers * ways, n, p).
    inner
        First inner states (layers * ways, n, k); zeros where there are none.
    """

    values: Tensor
    states: Tensor
    inner: Tensor

    @classmethod
    def given_to(cls, module: Recurrent, values: Tensor, first: Any, chosen: Tensor) -> Sequences:
        """Return some of the sequences (their numbers) that a module is called with, and their first states if told."""
        ways = 2 if module.bidirectional else 1
        values = precise(values.transpose(0, 1) if module.batch_first else values)[:, chosen]
        number = module.num_layers * ways
        states, inner = (
            values.new_zeros(number, len(chosen), size)
            for size in (module.proj_size or module.hidden_size, module.hidden_size)
        )
        if isinstance(first, (tuple, list)):
            states, inner = (precise(one)[:, chosen] for one in first)
        elif first is not None:
            states = precise(first)[:, chosen]
        return cls(values, states, inner)

    def run(self, module: Recurrent, layer: int) -> list[Run]:
        """Return what a layer makes of them, for each direction; the second goes from the last step to the first."""
        ways = 2 if module.bidirectional else 1
        found = []
        for way in range(ways):
            place = layer * ways + way
            values = self.values.flip(0) if way else self.values
            found.append(run(cell_of(module, layer, way), values, self.states[place], self.inner[place]))
        return found

    def after(self, runs: Sequence[Run]) -> Sequences:
        """Return what the next layer is given."""
        made = [one.states[1:].flip(0) if way else one.states[1:] for way, one in enumerate(runs)]
        return replace(self, values=torch.cat(made, dim=-1))
