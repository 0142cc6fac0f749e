"""Normalisation, softmax, and sums along axes."""

from __future__ import annotations

from consilience.networks.tracing.axis_parts import axis_size, still
from consilience.networks.tracing.rules.common import Call, Rule, Value, summed, unmoved


def _channel_norm(call: Call) -> Value | list[Value]:
    """Normalise every channel by its own statistics."""
    value: Value = call["input"]
    for name in ("weight", "bias", "running_mean", "running_var"):
        if call[name] is not None:
            call.record.atoms.join(value.axes[1], call[name].axes[0])
            call.record.side(call[name], 0, "output")
    made = Value(value.axes, data=True)
    return made if len(call.shapes) == 1 else [made, *(unmoved(shape) for shape in call.shapes[1:])]


def _last_norm(call: Call) -> Value | list[Value]:
    """Normalise over the last axes together."""
    value: Value = call["input"]
    first = len(value.axes) - len(call["normalized_shape"])
    numbers = range(first, len(value.axes))
    for name in ("weight", "bias"):
        if call[name] is not None:
            for number in numbers:
                call.record.atoms.join(value.axes[number], call[name].axes[number - first])
                call.record.side(call[name], number - first, "output")
    summed(call.record, value, list(numbers))
    made = Value(value.axes, data=True)
    return made if len(call.shapes) == 1 else [made, *(unmoved(shape) for shape in call.shapes[1:])]


def _group_norm(call: Call) -> Value:
    """Normalise blocks of neighbouring channels: blocks move as a whole, channels within every block."""
    value: Value = call["input"]
    blocks = call["num_groups"]
    parts = call.record.atoms.unflatten(value.axes[1], (blocks, axis_size(value.axes[1]) // blocks))
    channels = call.record.atoms.flatten(parts)
    for name in ("weight", "bias"):
        if call[name] is not None:
            call.record.atoms.join(channels, call[name].axes[0])
            call.record.side(call[name], 0, "output")
    call.record.rigid.append(channels)
    call.record.blocks.append(parts[0])
    return Value((value.axes[0], channels, *value.axes[2:]), data=True)


def _weight_norm(call: Call) -> Value:
    """Give every slice of an array a length of its own."""
    value, length = call["v"], call["g"]
    number = call.dim(value)
    if len(length.axes) == len(value.axes):
        call.record.atoms.join(value.axes[number], length.axes[number])
    summed(call.record, value, [n for n in range(len(value.axes)) if n != number])
    return value


def _softmax(call: Call) -> Value:
    value: Value = call["self"]
    summed(call.record, value, [call.dim(value)])
    return value


def _reduced(call: Call) -> Value | list[Value]:
    """Sum, average or otherwise combine along axes, the same in any order."""
    value: Value = call["self"]
    numbers = call.dims(value)
    summed(call.record, value, numbers)
    left = [
        still(1) if n in numbers else axis for n, axis in enumerate(value.axes) if n not in numbers or call["keepdim"]
    ]
    origins = [
        frozenset[tuple[str, int]]() if n in numbers else origin
        for n, origin in enumerate(value.origins)
        if n not in numbers or call["keepdim"]
    ]
    made = Value(tuple(left), tuple(origins), value.data)
    return made if len(call.shapes) == 1 else [made] * len(call.shapes)


def _ordered(call: Call) -> Value | list[Value]:
    """Whatever depends on the order along an axis: running sums, sorting, the index of the largest."""
    value: Value = call["self"]
    numbers = call.dims(value) if call.name in ("argmax", "argmin", "max", "min") else [call.dim(value)]
    if call["dim"] is None and call.name in ("sort", "topk", "argsort", "kthvalue", "median", "mode"):
        numbers = [len(value.axes) - 1]
    if call["dim"] is None and call.name in ("max", "min"):
        summed(call.record, value, numbers)
        return Value((), data=value.data)
    for number in numbers:
        call.record.fix(value.axes[number])
    made = []
    for shape in call.shapes:
        if len(shape) == len(value.axes):
            axes = [still(size) if n in numbers else value.axes[n] for n, size in enumerate(shape)]
        else:
            axes = [axis for n, axis in enumerate(value.axes) if n not in numbers]
        made.append(Value(tuple(axes), data=value.data))
    return made if len(made) > 1 else made[0]


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        [
            "batch_norm",
            "instance_norm",
            "_native_batch_norm_legit_no_training",
            "native_batch_norm",
            "cudnn_batch_norm",
        ],
        _channel_norm,
    ),
    **dict.fromkeys(["layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm"], _last_norm),
    "group_norm": _group_norm,
    "_weight_norm": _weight_norm,
    **dict.fromkeys(["softmax", "_softmax", "log_softmax", "_log_softmax", "_safe_softmax"], _softmax),
    **dict.fromkeys(
        [
            "sum",
            "mean",
            "amax",
            "amin",
            "prod",
            "var",
            "std",
            "var_mean",
            "std_mean",
            "norm",
            "linalg_vector_norm",
            "logsumexp",
            "any",
            "all",
            "nansum",
        ],
        _reduced,
    ),
    **dict.fromkeys(
        [
            "max",
            "min",
            "argmax",
            "argmin",
            "cumsum",
            "cumprod",
            "cummax",
            "cummin",
            "logcumsumexp",
            "sort",
            "topk",
            "argsort",
            "kthvalue",
            "median",
            "mode",
        ],
        _ordered,
    ),
}
