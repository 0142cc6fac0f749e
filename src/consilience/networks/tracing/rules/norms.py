"""Tracing rules of normalisation, softmax, reductions, and operations that depend on order.

What combines the units of an axis symmetrically (a mean, a norm, a softmax) leaves them free to move, but not networks
free to differ in their number. What depends on their order (a cumulative sum, an argmax) fixes them.
"""

from __future__ import annotations

from consilience.networks.tracing.axis_parts import axis_size, fixed_axis
from consilience.networks.tracing.rules.common import (
    OperatorCall,
    OperatorRule,
    TracedTensor,
    fixed_tensor,
    record_reduction,
    under_names,
)


def _with_statistics(call: OperatorCall, tensor: TracedTensor) -> TracedTensor | list[TracedTensor]:
    """Return the normalised tensor, with the statistics that some variants of the operation return too."""
    output = TracedTensor(tensor.axes, data=True)
    return output if len(call.shapes) == 1 else [output, *(fixed_tensor(shape) for shape in call.shapes[1:])]


def _channel_norm(call: OperatorCall) -> TracedTensor | list[TracedTensor]:
    """Trace batch and instance normalisation: every channel by its own statistics."""
    tensor: TracedTensor = call["input"]
    for name in ("weight", "bias", "running_mean", "running_var"):
        if call[name] is not None:
            call.record.algebra.join(tensor.axes[1], call[name].axes[0])
            call.record.add_side(call[name], 0, "output")
    return _with_statistics(call, tensor)


def _last_norm(call: OperatorCall) -> TracedTensor | list[TracedTensor]:
    """Trace layer and RMS normalisation over the last axes together."""
    tensor: TracedTensor = call["input"]
    first = len(tensor.axes) - len(call["normalized_shape"])
    dims = range(first, len(tensor.axes))
    for name in ("weight", "bias"):
        if call[name] is not None:
            for dim in dims:
                call.record.algebra.join(tensor.axes[dim], call[name].axes[dim - first])
                call.record.add_side(call[name], dim - first, "output")
    record_reduction(call.record, tensor, list(dims))
    return _with_statistics(call, tensor)


def _group_norm(call: OperatorCall) -> TracedTensor:
    """Trace group normalisation: blocks of channels move as a whole, and channels within every block."""
    tensor: TracedTensor = call["input"]
    blocks = call["num_groups"]
    factors = call.record.algebra.unflatten(tensor.axes[1], (blocks, axis_size(tensor.axes[1]) // blocks))
    channels = call.record.algebra.flatten(factors)  # (blocks, channels of a block)
    for name in ("weight", "bias"):
        if call[name] is not None:
            call.record.algebra.join(channels, call[name].axes[0])
            call.record.add_side(call[name], 0, "output")
    call.record.rigid_axes.append(channels)
    call.record.block_axes.append(factors[0])
    return TracedTensor((tensor.axes[0], channels, *tensor.axes[2:]), data=True)


def _softmax(call: OperatorCall) -> TracedTensor:
    """Trace a softmax along an axis, which is the same in any order."""
    tensor: TracedTensor = call["self"]
    record_reduction(call.record, tensor, [call.dim(tensor)])
    return tensor


def _reduce(call: OperatorCall) -> TracedTensor | list[TracedTensor]:
    """Trace reductions that are the same in any order of the entries: sums, means, maxima, norms."""
    tensor: TracedTensor = call["self"]
    dims = call.dims(tensor)
    record_reduction(call.record, tensor, dims)
    axes = [
        fixed_axis(1) if n in dims else axis for n, axis in enumerate(tensor.axes) if n not in dims or call["keepdim"]
    ]
    origins = [
        frozenset[tuple[str, int]]() if n in dims else origin
        for n, origin in enumerate(tensor.origins)
        if n not in dims or call["keepdim"]
    ]
    output = TracedTensor(tuple(axes), tuple(origins), tensor.data)
    return output if len(call.shapes) == 1 else [output] * len(call.shapes)


def _order_dependent(call: OperatorCall) -> TracedTensor | list[TracedTensor]:
    """Trace operations that depend on the order along an axis: cumulative sums, sorting, arg-maxima."""
    tensor: TracedTensor = call["self"]
    dims = call.dims(tensor) if call.name in ("argmax", "argmin", "max", "min") else [call.dim(tensor)]
    if call["dim"] is None and call.name in ("sort", "topk", "argsort", "kthvalue", "median", "mode"):
        dims = [len(tensor.axes) - 1]
    if call["dim"] is None and call.name in ("max", "min"):
        record_reduction(call.record, tensor, dims)
        return TracedTensor((), data=tensor.data)
    for dim in dims:
        call.record.fix(tensor.axes[dim])
    outputs = []
    for shape in call.shapes:
        if len(shape) == len(tensor.axes):
            axes = [fixed_axis(size) if n in dims else tensor.axes[n] for n, size in enumerate(shape)]
        else:
            axes = [axis for n, axis in enumerate(tensor.axes) if n not in dims]
        outputs.append(TracedTensor(tuple(axes), data=tensor.data))
    return outputs if len(outputs) > 1 else outputs[0]


RULES: dict[str, OperatorRule] = {
    **under_names(
        _channel_norm,
        "batch_norm instance_norm _native_batch_norm_legit_no_training native_batch_norm cudnn_batch_norm",
    ),
    **under_names(_last_norm, "layer_norm native_layer_norm rms_norm _fused_rms_norm"),
    "group_norm": _group_norm,
    **under_names(_softmax, "softmax _softmax log_softmax _log_softmax _safe_softmax"),
    **under_names(
        _reduce, "sum mean amax amin prod var std var_mean std_mean norm linalg_vector_norm logsumexp any all nansum"
    ),
    **under_names(
        _order_dependent,
        "max min argmax argmin cumsum cumprod cummax cummin logcumsumexp sort topk argsort kthvalue median mode",
    ),
}
