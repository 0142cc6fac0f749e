"""Inputs of a linear layer or a convolution as rows of a matrix: for a convolution, patches under its kernel (im2col).

A convolution is the linear map W x of every patch x (channels * kernel,), so that least squares and moments treat both
kinds of layers alike. Rows are taken by their numbers, since all patches of a batch need not fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from consilience.networks.repair.partial_forward import Layer

_MAX_PATCH_BYTES = 2**26
"""Patches of a convolution in memory at once, in bytes. Chosen by hand; only speed and memory depend on it."""


def patch_chunks(layer: Layer, inputs: Tensor) -> Iterator[Tensor]:
    """Yield a layer's inputs as rows (samples * positions, d), as many at a time as fit into memory."""
    shape = output_positions(layer, inputs)
    step = max(1, _MAX_PATCH_BYTES // (inputs.element_size() * _row_length(layer)))
    for start in range(0, prod(shape), step):
        yield patch_rows(layer, inputs, torch.arange(start, min(start + step, prod(shape)), device=inputs.device))


def _row_length(layer: Layer) -> int:
    return int(prod(layer.weight.shape[1:]))


def output_positions(layer: Layer, inputs: Tensor) -> tuple[int, ...]:
    """Return the shape of a layer's output without its channels: (samples, *positions)."""
    if isinstance(layer, nn.Linear):
        return tuple(inputs.shape[:-1])
    # Output size of a convolution: (padded size - span of the dilated kernel) // stride + 1, for every axis.
    padded = [inputs.shape[2 + axis] + before + after for axis, (before, after) in enumerate(_padding(layer))]
    spans = [dilation * (size - 1) + 1 for dilation, size in zip(layer.dilation, layer.kernel_size, strict=True)]
    counts = [(size - span) // stride + 1 for size, span, stride in zip(padded, spans, layer.stride, strict=True)]
    return (inputs.shape[0], *counts)


def _padding(layer: Any) -> list[tuple[int, int]]:
    """Return how much is padded before and after each axis of positions."""
    flat = layer._reversed_padding_repeated_twice  # as functional.pad reads it: the last axis first
    return [(flat[index], flat[index + 1]) for index in range(len(flat) - 2, -1, -2)]


def patch_rows(layer: Layer, inputs: Tensor, rows: Tensor) -> Tensor:
    """Return some rows (m, d) of a layer's inputs; for a convolution, patches under its kernel.

    Parameters
    ----------
    layer : Linear or convolution
        A linear layer, or a convolution that is not grouped.
    inputs : Tensor of shape (samples, ..., d), or (samples, channels, ...) for a convolution
        Its input.
    rows : Tensor of int of shape (m,)
        Flat indices into (samples, *positions) of the layer's output.
    """
    if isinstance(layer, nn.Linear):
        return inputs.flatten(0, -2)[rows]
    windows = kernel_windows(layer, inputs)  # (samples, *positions, channels, *kernel)
    return windows[torch.unravel_index(rows, output_positions(layer, inputs))].flatten(1)


def kernel_windows(layer: Any, inputs: Tensor) -> Tensor:
    """Return the windows under the kernel of a convolution (samples, *positions, channels, *kernel), as a view."""
    # torch's modes of padding are those of functional.pad, but for the name of padding by zeros.
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    view = functional.pad(inputs, layer._reversed_padding_repeated_twice, mode=mode)
    for axis, (size, dilation, stride) in enumerate(
        zip(layer.kernel_size, layer.dilation, layer.stride, strict=True), 2
    ):
        # A window spans the dilated kernel; of it, every dilation-th entry is under the kernel.
        view = view.unfold(axis, dilation * (size - 1) + 1, stride)[..., ::dilation]
    return view.movedim(1, len(layer.kernel_size) + 1)
