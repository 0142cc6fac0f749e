"""Inputs of a linear layer or a convolution as rows of a matrix: for a convolution, patches under its kernel (im2col).

A convolution is the linear map W x of every patch x (channels * kernel,), so that least squares and moments treat all
kinds of layers alike. One of g groups is g maps, each of a block of output channels by a block of input channels: its
weights are blocks (g, k, d) and its patches (g, rows, d), where other layers have (k, d) and (rows, d). A transposed
convolution is the convolution, at stride 1 and with the kernel turned round, of its input with stride - 1 zeros between
neighbours (Dumoulin and Visin 2016, "A guide to convolution arithmetic for deep learning", section 4). Rows are taken
by their numbers, since all patches of a batch need not fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from consilience.networks.repair.partial_forward import Layer, is_transposed

_MAX_PATCH_BYTES = 2**26
"""Patches of a convolution in memory at once, in bytes. Chosen by hand; only speed and memory depend on it."""


def weight_blocks(layer: Layer) -> Tensor:
    """Return the weights of a layer as maps ((groups,) k, d) from patches of d to k outputs, of each group; float64."""
    weight: Tensor = layer.weight.detach().to(torch.float64)
    if isinstance(layer, nn.Linear):
        return weight
    if is_transposed(layer):  # (in, out / groups, *kernel), and the kernel is turned round
        by_group = weight.reshape(layer.groups, -1, *weight.shape[1:]).flip(tuple(range(3, weight.ndim + 1)))
        blocks = by_group.transpose(1, 2).flatten(2)
    else:  # (out, in / groups, *kernel)
        blocks = weight.reshape(layer.groups, len(weight) // layer.groups, -1)
    return blocks if layer.groups > 1 else blocks[0]


def channel_blocks(layer: Layer, rows: Tensor) -> Tensor:
    """Return rows of a layer's outputs (n, channels), or of its patches, as ((groups,) n, k): by group."""
    if isinstance(layer, nn.Linear) or layer.groups == 1:
        return rows
    return rows.reshape(len(rows), layer.groups, -1).transpose(0, 1)


def write_weight_blocks(layer: Layer, blocks: Tensor) -> None:
    """Write weights ((groups,) k, d), as `weight_blocks` gives them, into a layer in its own precision."""
    shape = layer.weight.shape
    if not is_transposed(layer):
        values = blocks.reshape(shape)
    else:
        by_group = blocks.reshape(layer.groups, shape[1], shape[0] // layer.groups, *shape[2:]).transpose(1, 2)
        values = by_group.flatten(0, 1).flip(tuple(range(2, len(shape))))
    with torch.no_grad():
        layer.weight.copy_(values)


def patch_chunks(layer: Layer, inputs: Tensor, output: Tensor) -> Iterator[Tensor]:
    """Yield the inputs of a layer of one group as rows (samples * positions, d), as many at once as fit into memory."""
    positions = output_positions(layer, output)
    step = max(1, _MAX_PATCH_BYTES // (inputs.element_size() * prod(layer.weight.shape[1:])))
    for start in range(0, prod(positions), step):
        rows = torch.arange(start, min(start + step, prod(positions)), device=inputs.device)
        yield patch_blocks(layer, inputs, rows, positions)


def output_positions(layer: Layer, output: Tensor) -> tuple[int, ...]:
    """Return the shape of a layer's output without its channels: (samples, *positions)."""
    return tuple(output.shape[:-1] if isinstance(layer, nn.Linear) else (output.shape[0], *output.shape[2:]))


def patch_blocks(layer: Layer, inputs: Tensor, rows: Tensor, positions: Sequence[int]) -> Tensor:
    """Return some rows ((groups,) m, d) of a layer's inputs; for a convolution, patches under its kernel.

    Inputs are (samples, ..., d), or (samples, channels, ...) for a convolution. Rows (m,) are flat indices into the
    positions (samples, *positions) of its output (`output_positions`).
    """
    if isinstance(layer, nn.Linear):
        return inputs.flatten(0, -2)[rows]
    if is_transposed(layer):
        windows = _transposed_windows(layer, inputs, positions[1:])  # (samples, *positions, channels, *kernel)
    else:
        windows = kernel_windows(layer, inputs)
    return channel_blocks(layer, windows[torch.unravel_index(rows, tuple(positions))].flatten(1))


def kernel_windows(layer: Any, inputs: Tensor) -> Tensor:
    """Return the windows under the kernel of a convolution (samples, *positions, channels, *kernel), as a view.

    Transposed convolutions have none.
    """
    # torch's modes of padding are those of functional.pad, but for the name of padding by zeros.
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padded = functional.pad(inputs, layer._reversed_padding_repeated_twice, mode=mode)
    return _windows(layer, padded, layer.stride)


def _transposed_windows(layer: Any, inputs: Tensor, positions: Sequence[int]) -> Tensor:
    """Return what every position of a transposed convolution reads (samples, *positions, channels, *kernel), a view."""
    axes = range(2, inputs.ndim)
    sizes = [stride * (inputs.shape[axis] - 1) + 1 for axis, stride in zip(axes, layer.stride, strict=True)]
    spread = inputs.new_zeros(*inputs.shape[:2], *sizes)
    spread[(slice(None), slice(None), *(slice(None, None, stride) for stride in layer.stride))] = inputs
    padding = []  # before and after, as functional.pad reads it: the last axis first
    for size, n_positions, kernel, dilation, cut in reversed(
        list(zip(sizes, positions, layer.kernel_size, layer.dilation, layer.padding, strict=True))
    ):
        reach = dilation * (kernel - 1)
        # What is asked of an output's size beyond the least one adds positions at the end.
        padding += [reach - cut, n_positions + cut - size]
    return _windows(layer, functional.pad(spread, padding), (1,) * len(sizes))


def _windows(layer: Any, padded: Tensor, strides: Sequence[int]) -> Tensor:
    """Return the windows (samples, *positions, channels, *kernel) of a padded input, as a view."""
    view = padded
    for axis, (size, dilation, stride) in enumerate(zip(layer.kernel_size, layer.dilation, strides, strict=True), 2):
        # A window spans the dilated kernel; of it, every dilation-th entry is under the kernel.
        view = view.unfold(axis, dilation * (size - 1) + 1, stride)[..., ::dilation]
    return view.movedim(1, len(layer.kernel_size) + 1)
