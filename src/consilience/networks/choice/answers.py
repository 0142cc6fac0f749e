"""What networks answer on inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from consilience.checks import Array
from consilience.errors import UnsupportedError
from consilience.networks.module_inputs import first_line
from consilience.networks.module_outputs import form_of
from consilience.networks.repair.partial_forward import call_module, evaluation_without_gradients

BATCH_SIZE = 512
"""Inputs that a network is asked at once; only memory depends on it. Chosen by hand."""


def beside(inputs: Tensor, module: nn.Module) -> Tensor:
    """Return inputs on the device of a module, real ones in its precision."""
    parameter = next(iter(module.parameters()), None)
    if parameter is None:
        return inputs
    return inputs.to(parameter.device, parameter.dtype if inputs.is_floating_point() else inputs.dtype)


def outputs_of(module: nn.Module, inputs: Tensor) -> Array:
    """Return what a network answers on inputs (n, ...), in evaluation mode: an array (n, k).

    Raises UnsupportedError for networks that return anything but one row for each input, or do not take the inputs.
    """
    with evaluation_without_gradients(module):
        batches = [_row_outputs(_answered(module, batch), len(batch)) for batch in torch.split(inputs, BATCH_SIZE)]
    outputs: Array = torch.cat(batches).numpy()
    return outputs


def _answered(module: nn.Module, batch: Tensor) -> Any:
    """Return what a module answers to a batch that may be drawn: columns of ids, say, are none then."""
    try:
        return call_module(module, batch)
    except (IndexError, ValueError, RuntimeError) as error:
        text = f"the networks do not take inputs such as are drawn from what sites describe ({first_line(error)})"
        raise UnsupportedError(text) from error


def _row_outputs(outputs: Any, n_inputs: int) -> Tensor:
    """Return outputs as rows of double precision on the CPU."""
    if not isinstance(outputs, Tensor) or outputs.ndim not in (1, 2) or len(outputs) != n_inputs:
        raise UnsupportedError(f"the networks do not return one row for each input (found {form_of(outputs)})")
    rows = outputs if outputs.ndim == 2 else outputs[:, None]
    return rows.detach().to(device="cpu", dtype=torch.float64)
