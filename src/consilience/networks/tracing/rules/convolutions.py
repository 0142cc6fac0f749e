"""Convolutions, pooling, and what moves positions into channels."""

from __future__ import annotations

import re
from math import prod

from consilience.networks.tracing.axis_parts import AxisTerms, axis_size, still
from consilience.networks.tracing.rules.common import Call, Rule, Value


def _convolution(call: Call) -> Value:
    """Convolve: weight (out, in / blocks, ...), transposed (in, out / blocks, ...); positions never move."""
    record, value, weight = call.record, call["input"], call["weight"]
    turned = call.name.startswith("conv_transpose") or bool(call["transposed"])
    made, read = (1, 0) if turned else (0, 1)
    blocks = int(call["groups"] or 1)
    number = len(value.axes) - (len(weight.axes) - 1)
    for axis in (*value.axes[number + 1 :], *weight.axes[2:]):
        record.atoms.fix(axis)
    if blocks == 1:
        record.atoms.join(value.axes[number], weight.axes[read])
        out = weight.axes[made]
    else:
        out = _blocks(call, value.axes[number], weight, blocks, read)
    if value.data:
        record.side(weight, read, "input")
    record.side(weight, made, "output")
    if call["bias"] is not None:
        record.atoms.join(out, call["bias"].axes[0])
        record.side(call["bias"], 0, "output")
    positions = [still(size) for size in call.shape[number + 1 :]]
    return Value((*value.axes[:number], out, *positions), data=True)


def _blocks(call: Call, channels: AxisTerms, weight: Value, blocks: int, read: int) -> AxisTerms:
    """Let blocks of channels move as a whole, and channels within every block in its own way."""
    atoms, record = call.record.atoms, call.record
    rows = atoms.unflatten(weight.axes[0], (blocks, axis_size(weight.axes[0]) // blocks))
    if read == 1:  # axis 0 makes the units, the input is read by axis 1
        inputs = atoms.unflatten(channels, (blocks, axis_size(channels) // blocks))
        atoms.join(inputs[0], rows[0])
        atoms.join(inputs[1], weight.axes[1])
        inner = inputs[1]
    else:
        atoms.join(channels, weight.axes[0])
        rows = atoms.unflatten(weight.axes[0], (blocks, axis_size(weight.axes[0]) // blocks))
        inner = atoms.inside(rows[0], weight.axes[1])
    record.blocks.append(rows[0])
    dense = (atoms.flatten(rows), atoms.flatten([rows[0], inner]), *weight.axes[2:])
    for array, _ in weight.origins[0]:
        record.dense[array] = (dense, blocks)
    return dense[0] if read == 1 else dense[1]


def _pool(call: Call) -> Value | list[Value]:
    """Combine neighbouring positions of every channel; positions never move."""
    value: Value = call["self"] if call["self"] is not None else call["input"]
    digit = re.search(r"(\d)d", call.name)
    number = len(value.axes) - int(digit.group(1) if digit else 2)
    for axis in value.axes[number:]:
        call.record.fix(axis)
    made = [
        Value((*value.axes[:number], *(still(size) for size in shape[number:])), data=value.data)
        for shape in call.shapes
    ]
    return made if len(made) > 1 else made[0]


def _shuffled(call: Call) -> Value:
    """Move neighbours among the channels into positions: (units, positions) become units."""
    value: Value = call["self"]
    number = len(value.axes) - 3
    channels = call.shape[number]
    units, inner = call.record.atoms.unflatten(
        value.axes[number], (channels, axis_size(value.axes[number]) // channels)
    )
    call.record.atoms.fix(inner)
    return Value((*value.axes[:number], units, *(still(size) for size in call.shape[number + 1 :])), data=value.data)


def _unshuffled(call: Call) -> Value:
    value: Value = call["self"]
    number = len(value.axes) - 3
    times = call.shape[number] // axis_size(value.axes[number])
    channels = call.record.atoms.flatten([value.axes[number], still(times)])
    return Value((*value.axes[:number], channels, *(still(size) for size in call.shape[number + 1 :])), data=value.data)


def _patches(call: Call) -> Value:
    """Stack the patches around every position: channels become (channels, positions of a patch)."""
    value: Value = call["self"]
    number = len(value.axes) - 3
    patch = still(prod(call["kernel_size"]))
    channels = call.record.atoms.flatten([value.axes[number], patch])
    return Value((*value.axes[:number], channels, still(call.shape[-1])), data=value.data)


def _windows(call: Call) -> Value:
    """Slide a window along an axis, which never moves."""
    value: Value = call["self"]
    number = call.dim(value, "dimension")
    call.record.fix(value.axes[number])
    axes = list(value.put(number, still(call.shape[number])).axes)
    return Value((*axes, still(call.shape[-1])), data=value.data)


_POOLS = [
    f"{name}{number}d"
    for number in (1, 2, 3)
    for name in ("max_pool", "avg_pool", "adaptive_avg_pool", "_adaptive_avg_pool", "adaptive_max_pool",
                 "upsample_nearest", "_upsample_nearest_exact", "lp_pool", "fractional_max_pool")
]  # fmt: skip

RULES: dict[str, Rule] = {
    **{f"conv{number}d": _convolution for number in (1, 2, 3)},
    **{f"conv_transpose{number}d": _convolution for number in (1, 2, 3)},
    "convolution": _convolution,
    **dict.fromkeys(_POOLS, _pool),
    **dict.fromkeys(["max_pool2d_with_indices", "max_pool1d_with_indices", "max_pool3d_with_indices"], _pool),
    **dict.fromkeys(["upsample_bilinear2d", "upsample_bicubic2d", "upsample_linear1d", "upsample_trilinear3d"], _pool),
    "pixel_shuffle": _shuffled,
    "pixel_unshuffle": _unshuffled,
    "im2col": _patches,
    "unfold": _windows,
}
