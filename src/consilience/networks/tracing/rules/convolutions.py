"""Tracing rules of convolutions, pooling, and reshapes between channels and positions.

Positions (pixels, time steps, kernel offsets) never move; channels are units. In a convolution of g > 1 groups (called
*blocks* here, since groups are groups of units), output channels of a block read the input channels of that block only:
blocks may move as a whole, and channels within every block in its own way.
"""

from __future__ import annotations

import re
from math import prod

from consilience.networks.tracing.axis_parts import AxisTerms, axis_size, fixed_axis
from consilience.networks.tracing.rules.common import OperatorCall, OperatorRule, TracedTensor, under_names


def _convolution(call: OperatorCall) -> TracedTensor:
    """Trace a convolution with a weight (out, in / blocks, ...), or a transposed one with (in, out / blocks, ...)."""
    record, tensor, weight = call.record, call["input"], call["weight"]
    transposed = call.name.startswith("conv_transpose") or bool(call["transposed"])
    out_axis, in_axis = (1, 0) if transposed else (0, 1)
    blocks = int(call["groups"] or 1)
    dim = len(tensor.axes) - (len(weight.axes) - 1)  # the axis of the channels; positions follow
    for axis in (*tensor.axes[dim + 1 :], *weight.axes[2:]):
        record.algebra.fix(axis)
    if blocks == 1:
        record.algebra.join(tensor.axes[dim], weight.axes[in_axis])
        out_channels = weight.axes[out_axis]
    else:
        out_channels = _join_blocks(call, tensor.axes[dim], weight, blocks, in_axis)
    if tensor.data:
        record.add_side(weight, in_axis, "input")
    record.add_side(weight, out_axis, "output")
    if call["bias"] is not None:
        record.algebra.join(out_channels, call["bias"].axes[0])
        record.add_side(call["bias"], 0, "output")
    positions = [fixed_axis(size) for size in call.shape[dim + 1 :]]
    return TracedTensor((*tensor.axes[:dim], out_channels, *positions), data=True)


def _join_blocks(call: OperatorCall, channels: AxisTerms, weight: TracedTensor, blocks: int, in_axis: int) -> AxisTerms:
    """Join the channels of a grouped convolution block by block; return the axis of its output channels."""
    algebra, record = call.record.algebra, call.record
    rows = algebra.unflatten(weight.axes[0], (blocks, axis_size(weight.axes[0]) // blocks))
    if in_axis == 1:  # axis 0 makes the units, axis 1 reads the channels of one block
        inputs = algebra.unflatten(channels, (blocks, axis_size(channels) // blocks))
        algebra.join(inputs[0], rows[0])
        algebra.join(inputs[1], weight.axes[1])
        inner = inputs[1]
    else:
        algebra.join(channels, weight.axes[0])
        rows = algebra.unflatten(weight.axes[0], (blocks, axis_size(weight.axes[0]) // blocks))
        inner = algebra.nest(rows[0], weight.axes[1])
    record.block_axes.append(rows[0])
    # Segments cannot say that axis 1 of the stored array holds other channels in every block. Those of the
    # block-diagonal weight (out, in, ...) can.
    dense_axes = (algebra.flatten(rows), algebra.flatten([rows[0], inner]), *weight.axes[2:])
    for array, _ in weight.origins[0]:
        record.dense_weights[array] = (dense_axes, blocks)
    return dense_axes[0] if in_axis == 1 else dense_axes[1]


def _pool(call: OperatorCall) -> TracedTensor | list[TracedTensor]:
    """Trace pooling and resampling: neighbouring positions of every channel are combined."""
    tensor: TracedTensor = call["self"] if call["self"] is not None else call["input"]
    digit = re.search(r"(\d)d", call.name)
    dim = len(tensor.axes) - int(digit.group(1) if digit else 2)  # the first axis of positions
    for axis in tensor.axes[dim:]:
        call.record.fix(axis)
    outputs = [
        TracedTensor((*tensor.axes[:dim], *(fixed_axis(size) for size in shape[dim:])), data=tensor.data)
        for shape in call.shapes
    ]
    return outputs if len(outputs) > 1 else outputs[0]


def _pixel_shuffle(call: OperatorCall) -> TracedTensor:
    """Trace a pixel shuffle: channels (units, r * r) become channels (units,) at r * r times as many positions."""
    tensor: TracedTensor = call["self"]
    dim = len(tensor.axes) - 3
    channels = call.shape[dim]
    units, inner = call.record.algebra.unflatten(tensor.axes[dim], (channels, axis_size(tensor.axes[dim]) // channels))
    call.record.algebra.fix(inner)
    return TracedTensor(
        (*tensor.axes[:dim], units, *(fixed_axis(size) for size in call.shape[dim + 1 :])), data=tensor.data
    )


def _pixel_unshuffle(call: OperatorCall) -> TracedTensor:
    """Trace the inverse of a pixel shuffle: positions become the inner part of channels."""
    tensor: TracedTensor = call["self"]
    dim = len(tensor.axes) - 3
    positions_per_channel = call.shape[dim] // axis_size(tensor.axes[dim])
    channels = call.record.algebra.flatten([tensor.axes[dim], fixed_axis(positions_per_channel)])
    return TracedTensor(
        (*tensor.axes[:dim], channels, *(fixed_axis(size) for size in call.shape[dim + 1 :])), data=tensor.data
    )


def _patches(call: OperatorCall) -> TracedTensor:
    """Trace ``im2col``: the patch around every position is stacked, channels become (channels, patch positions)."""
    tensor: TracedTensor = call["self"]
    dim = len(tensor.axes) - 3
    patch = fixed_axis(prod(call["kernel_size"]))
    channels = call.record.algebra.flatten([tensor.axes[dim], patch])
    return TracedTensor((*tensor.axes[:dim], channels, fixed_axis(call.shape[-1])), data=tensor.data)


def _windows(call: OperatorCall) -> TracedTensor:
    """Trace sliding windows along an axis, which never moves."""
    tensor: TracedTensor = call["self"]
    dim = call.dim(tensor, "dimension")
    call.record.fix(tensor.axes[dim])
    axes = list(tensor.replace_axis(dim, fixed_axis(call.shape[dim])).axes)
    return TracedTensor((*axes, fixed_axis(call.shape[-1])), data=tensor.data)


_POOLS = [
    f"{name}{rank}d"
    for rank in (1, 2, 3)
    for name in ("max_pool", "avg_pool", "adaptive_avg_pool", "_adaptive_avg_pool", "adaptive_max_pool",
                 "upsample_nearest", "_upsample_nearest_exact", "lp_pool", "fractional_max_pool")
]  # fmt: skip

RULES: dict[str, OperatorRule] = {
    **{f"conv{rank}d": _convolution for rank in (1, 2, 3)},
    **{f"conv_transpose{rank}d": _convolution for rank in (1, 2, 3)},
    "convolution": _convolution,
    **dict.fromkeys(_POOLS, _pool),
    **under_names(_pool, "max_pool2d_with_indices max_pool1d_with_indices max_pool3d_with_indices"),
    **under_names(_pool, "upsample_bilinear2d upsample_bicubic2d upsample_linear1d upsample_trilinear3d"),
    "pixel_shuffle": _pixel_shuffle,
    "pixel_unshuffle": _pixel_unshuffle,
    "im2col": _patches,
    "unfold": _windows,
}
