"""Inputs with what is known of them, and the rows of numbers that networks answer to them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from consilience.checks import Array, Labels
from consilience.errors import UnsupportedError
from consilience.networks.example import BATCH_SIZE, Example
from consilience.networks.module_outputs import form_of
from consilience.networks.output_layout import RowOutputs, answered
from consilience.networks.repair.partial_forward import evaluation_without_gradients


@dataclass(frozen=True, eq=False)
class Rows:
    """Inputs (n, ...), with their classes (n,) where these are known, and the positions of the rows that count."""

    inputs: Tensor | Example
    labels: Labels | None = None
    positions: Tensor | None = None  # (n, P): tokens or pixels whose rows are compared; None where an input has one row
    next_tokens: Labels | None = None  # (n P,): the tokens behind them, where these are real texts

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """The tensors of a call, positions last."""
        tensors = self.inputs.tensors if isinstance(self.inputs, Example) else (self.inputs,)
        return tensors if self.positions is None else (*tensors, self.positions)


def like_module(inputs: Tensor, module: nn.Module) -> Tensor:
    """Return inputs on the device of a module, real ones in its precision."""
    parameter = next(iter(module.parameters()), None)
    if parameter is None:
        return inputs
    return inputs.to(parameter.device, parameter.dtype if inputs.is_floating_point() else inputs.dtype)


def outputs_of(module: nn.Module, inputs: Tensor | Rows) -> Array:
    """Return what a network answers on inputs (n, ...), in evaluation mode: an array (n, k), of P positions (n P, k).

    Of `Rows` with positions or several arguments the network is one that takes them (`as_row_outputs`). Raises
    UnsupportedError for networks that return anything but rows for each input, or do not take the inputs.
    """
    arguments = inputs.arguments if isinstance(inputs, Rows) else (inputs,)
    has_positions = isinstance(inputs, Rows) and inputs.positions is not None
    layout = next((part.layout for part in module.modules() if isinstance(part, RowOutputs)), None)
    n_rows = BATCH_SIZE if layout is None else min(BATCH_SIZE, layout.inputs_at_once)
    with evaluation_without_gradients(module):
        batches = [
            _row_outputs(answered(module, Example(batch)), len(batch[0]), has_positions)
            for batch in zip(*(torch.split(argument, n_rows) for argument in arguments), strict=True)
        ]
    outputs: Array = torch.cat(batches).numpy()
    return outputs


def _row_outputs(outputs: object, n_inputs: int, has_positions: bool) -> Tensor:
    """Return outputs as rows of double precision on the CPU."""
    axes = (2, 3) if has_positions else (1, 2)
    if not isinstance(outputs, Tensor) or outputs.ndim not in axes or len(outputs) != n_inputs:
        raise UnsupportedError(f"the networks do not return one row for each input (found {form_of(outputs)})")
    rows = outputs if outputs.ndim == axes[1] else outputs[..., None]
    return rows.detach().to(device="cpu", dtype=torch.float64).reshape(-1, rows.shape[-1])
