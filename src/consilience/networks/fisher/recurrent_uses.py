"""Recurrent layers step by step, so that the gradient of each of their weights is known for every observation.

A layer is replaced for the while by its cells (``landscape.recurrence``). To what enters the gates, z_t, and to the
states h_t, zeros are added whose gradients are those of z_t and h_t: with x_t what the cell is given,

    W_ih: sum_t g_t x_t^T,    W_hh: sum_t g_t h_{t-1}^T,    V: sum_t g'_t y_t^T,    g_t = d log p / d z_t, g'_t of h_t.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from consilience.networks.fisher.parameter_uses import Product, Sum, Use
from consilience.networks.repair.recurrent_layers import Cell, Recurrent, cell_of, precise, unfit


@contextmanager
def unrolled(module: Recurrent, name: Callable[[nn.Module, str], str | None], uses: list[Use]) -> Iterator[None]:
    """Run a recurrent module cell by cell for the while, and collect how its weights are used.

    Parameters
    ----------
    module
        The module.
    name
        The name of a part's parameter, if it is trained.
    uses
        Where to put what was used.
    """
    plain: Any = module.forward

    def forward(values: Any, hx: Any = None) -> Any:
        if unfit(module, values) is not None:
            return plain(values, hx)
        return _forward(module, values, hx, name, uses)

    module.forward = forward  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        del module.forward


def _forward(
    module: Recurrent, values: Tensor, hx: Any, name: Callable[[nn.Module, str], str | None], uses: list[Use]
) -> Any:
    """Return what a recurrent module answers: states of the last layer, and last states of all."""
    ways = 2 if module.bidirectional else 1
    given = precise(values.transpose(0, 1) if module.batch_first else values)
    sizes = (module.proj_size or module.hidden_size, module.hidden_size)
    zeros = [given.new_zeros(module.num_layers * ways, given.shape[1], size) for size in sizes]
    told = hx if isinstance(hx, (tuple, list)) else (zeros[0] if hx is None else hx, zeros[1])
    first, inner = map(precise, told)
    last: list[Tensor] = []
    last_inner: list[Tensor] = []
    for layer in range(module.num_layers):
        made = []
        for way in range(ways):
            place, suffix = layer * ways + way, f"_l{layer}{'_reverse' if way else ''}"
            own = _Recorded(cell_of(module, layer, way), {key: name(module, key + suffix) for key in _ARRAYS})
            states, end = own.run(given.flip(0) if way else given, first[place], inner[place], uses)
            last.append(states[-1])
            last_inner.append(end)
            made.append(states.flip(0) if way else states)
        given = torch.cat(made, dim=-1)
    answer = (given.transpose(0, 1) if module.batch_first else given).to(values)
    ends = torch.stack(last).to(values)
    return (answer, (ends, torch.stack(last_inner).to(values))) if isinstance(module, nn.LSTM) else (answer, ends)


_ARRAYS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
"""What torch calls the arrays of a cell, without layer and direction."""


class _Recorded:
    """A cell that remembers how its weights were used."""

    def __init__(self, cell: Cell, names: Mapping[str, str | None]) -> None:
        """Take the cell, and the names of those of its arrays that are trained."""
        self.cell, self.names = cell, names

    def run(self, given: Tensor, state: Tensor, inner: Tensor, uses: list[Use]) -> tuple[Tensor, Tensor]:
        """Return the states (steps, n, p) and the last inner state."""
        cell = self.cell
        steps, observations = given.shape[:2]
        at_gates = given.new_zeros(steps, observations, len(cell.weight), requires_grad=True)
        at_states = given.new_zeros(steps, observations, cell.states, requires_grad=True)
        z = given @ cell.weight[:, : cell.read].T + at_gates
        if cell.bias is not None:
            z = z + cell.bias
        on_state = cell.weight[:, cell.read :].T
        before, states, answers = [], [], []
        for step in range(steps):
            before.append(state.detach())
            answer, inner = cell.gates.step(z[step] + state @ on_state, state, inner)
            state = (answer if cell.projection is None else answer @ cell.projection.T) + at_states[step]
            answers.append(answer.detach())
            states.append(state)
        uses += self._uses(at_gates, at_states, given.detach(), torch.stack(before), torch.stack(answers))
        return torch.stack(states), inner

    def _uses(self, at_gates: Tensor, at_states: Tensor, given: Tensor, before: Tensor, made: Tensor) -> list[Use]:
        """Return the uses of the cell's arrays, of which torch stacks the gates."""
        cell = self.cell
        first, stacked = cell.gates.together(cell.units), cell.gates.number * cell.units

        def by_observation(g: Tensor) -> Tensor:  # (n, 1, steps, rows)
            return g.transpose(0, 1).unsqueeze(1)

        def of_input(g: Tensor) -> Tensor:
            return by_observation(g[..., :stacked])

        def of_state(g: Tensor) -> Tensor:
            return by_observation(torch.cat([g[..., :first], g[..., stacked:]], dim=-1))

        found: list[Use] = []
        products = [
            ("weight_ih", at_gates, given, of_input, stacked),
            ("weight_hh", at_gates, before, of_state, stacked),
            ("weight_hr", at_states, made, by_observation, cell.states),
        ]
        for key, answer, read, outputs, rows in products:
            if (parameter := self.names[key]) is not None:
                shape = (rows, read.shape[-1])
                found.append(Product(parameter, shape, answer, by_observation(read), outputs))
        for key, outputs in (("bias_ih", of_input), ("bias_hh", of_state)):
            if (parameter := self.names[key]) is not None:
                found.append(Sum(parameter, (stacked,), at_gates, None, partial(_first_group, outputs)))
        return found


def _first_group(outputs: Callable[[Tensor], Tensor], g: Tensor) -> Tensor:
    """Return gradients (n, positions, rows) of a bias, from those of products with one group."""
    return outputs(g)[:, 0]
