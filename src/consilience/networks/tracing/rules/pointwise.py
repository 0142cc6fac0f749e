"""Tracing rules of elementwise operations, constants, and copies.

Tensors that are combined entry by entry move together along every axis. Constants of equal entries may be permuted.
"""

from __future__ import annotations

from consilience.networks.tracing.axis_parts import fixed_axis
from consilience.networks.tracing.rules.common import (
    OperatorCall,
    OperatorRule,
    TracedTensor,
    broadcast,
    constant_tensor,
    fixed_tensor,
    under_names,
)
from consilience.networks.tracing.rules.joining import split_axis


def _identity(call: OperatorCall) -> TracedTensor:
    """Trace an operation whose axes are those of its first tensor: copies, conversions, overwriting with a number."""
    return call.tensors[0]


def _dropout(call: OperatorCall) -> TracedTensor:
    """Trace dropout: the identity in evaluation; active, it draws a mask by position, which fixes all axes."""
    tensor = call.tensors[0]
    if call["train"]:
        call.record.fix_all_axes(tensor)
    return tensor


def pointwise(call: OperatorCall) -> TracedTensor:
    """Trace an operation that combines the entries at the same position of all its tensors."""
    return broadcast(call.record, call.tensors)


def _prelu(call: OperatorCall) -> TracedTensor:
    """Trace a parametric ReLU, whose slopes are one for all channels or one for each."""
    tensor, slope = call["self"], call["weight"]
    if slope.shape not in ((), (1,)):
        call.record.algebra.join(tensor.axes[1], slope.axes[0])
        call.record.add_side(slope, 0, "output")
    return tensor


def _glu(call: OperatorCall) -> TracedTensor:
    """Trace a gated linear unit, a * sigmoid(b) of the two halves of an axis, which move together."""
    tensor: TracedTensor = call["self"]
    dim = call.dim(tensor)
    size = tensor.shape[dim] // 2
    halves = split_axis(call.record, tensor, dim, [size, size])
    return broadcast(call.record, halves)


def _check(call: OperatorCall) -> None:
    """Trace a check that the exporter writes into the graph, of a tensor's type say: it moves nothing."""


def _constant(call: OperatorCall) -> TracedTensor:
    """Trace a new tensor of equal entries."""
    return constant_tensor(call.shape)


def _position_dependent(call: OperatorCall) -> TracedTensor:
    """Trace a new tensor of entries that differ by position or are drawn at random: its axes never move."""
    for tensor in call.tensors:
        call.record.fix_all_axes(tensor)
    return TracedTensor(tuple(fixed_axis(size) for size in call.shape))


def _scalar(call: OperatorCall) -> TracedTensor:
    """Trace the conversion between a number and a tensor."""
    return fixed_tensor(call.shape, data=any(tensor.data for tensor in call.tensors))


_ELEMENTWISE = (
    "hardswish masked_fill masked_fill_ log_sigmoid rsub __and__ __or__ __xor__ floor_divide copy copy_ true_divide "
    "square multiply subtract divide greater less less_equal greater_equal not_equal logical_and where gelu silu "
    "softsign tanhshrink absolute negative arctan2 isfinite isinf relu6 bitwise_not clip fmod float_power special_expit"
)
"""Elementwise operations, tagged as pointwise by torch or not; others with the tag need no entry (see `trace`)."""

RULES: dict[str, OperatorRule] = {
    **under_names(
        _identity,
        "clone contiguous detach alias to _to_copy type_as lift_fresh_copy lift_fresh positive real float double",
    ),
    **under_names(_dropout, "dropout feature_dropout alpha_dropout feature_alpha_dropout native_dropout"),
    **under_names(pointwise, _ELEMENTWISE),
    **under_names(_check, "_assert_tensor_metadata _assert_scalar _assert_async"),
    **under_names(
        _constant,
        "zeros ones full empty zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty",
    ),
    **under_names(_identity, "fill zero"),
    **under_names(_position_dependent, "arange eye linspace rand randn rand_like randn_like randint randperm"),
    **under_names(_scalar, "scalar_tensor item"),
    "prelu": _prelu,
    "_prelu_kernel": pointwise,
    "glu": _glu,
}
