"""Operations that treat all entries alike: elementwise, constants, and those that change nothing but form."""

from __future__ import annotations

from consilience.networks.tracing.axis_parts import still
from consilience.networks.tracing.rules.common import Call, Rule, Value, broadcast, uniform, unmoved
from consilience.networks.tracing.rules.joining import cut


def _same(call: Call) -> Value:
    """Return the first tensor: copies, conversions, and dropout, which does nothing in evaluation."""
    return call.values[0]


def _dropout(call: Call) -> Value:
    value = call.values[0]
    if call["train"]:
        call.record.fix_value(value)
    return value


def pointwise(call: Call) -> Value:
    """Combine entries at the same position."""
    return broadcast(call.record, call.values)


def _prelu(call: Call) -> Value:
    value, slope = call["self"], call["weight"]
    if slope.shape not in ((), (1,)):
        call.record.atoms.join(value.axes[1], slope.axes[0])
        call.record.side(slope, 0, "output")
    return value


def _glu(call: Call) -> Value:
    value: Value = call["self"]
    number = call.dim(value)
    size = value.shape[number] // 2
    one, other = cut(call.record, value, number, [size, size])
    return broadcast(call.record, [one, other])


def _constant(call: Call) -> Value:
    return uniform(call.shape)


def _filled(call: Call) -> Value:
    """Overwrite all entries of a stretch with one number: wherever it stood, the others are as they were."""
    return call["self"]


def _numbered(call: Call) -> Value:
    """Return entries that tell their position, or are drawn at random."""
    for value in call.values:
        call.record.fix_value(value)
    return Value(tuple(still(size) for size in call.shape))


def _scalar(call: Call) -> Value:
    return unmoved(call.shape, data=any(value.data for value in call.values))


_ENTRY_BY_ENTRY = [
    "hardswish",
    "masked_fill",
    "log_sigmoid",
    "rsub",
    "__and__",
    "__or__",
    "__xor__",
    "floor_divide",
    "copy",
    "copy_",
    "true_divide",
    "square",
    "multiply",
    "subtract",
    "divide",
    "greater",
    "less",
    "less_equal",
    "greater_equal",
    "not_equal",
    "logical_and",
    "where",
    "gelu",
    "silu",
    "softsign",
    "tanhshrink",
    "absolute",
    "negative",
    "arctan2",
    "isfinite",
    "isinf",
    "relu6",
    "hardswish",
    "masked_fill_",
    "bitwise_not",
    "clip",
    "fmod",
    "float_power",
    "special_expit",
]

RULES: dict[str, Rule] = {
    **dict.fromkeys(
        [
            "clone",
            "contiguous",
            "detach",
            "alias",
            "to",
            "_to_copy",
            "type_as",
            "lift_fresh_copy",
            "lift_fresh",
            "positive",
            "real",
            "float",
            "double",
        ],
        _same,
    ),
    **dict.fromkeys(
        ["dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "native_dropout"], _dropout
    ),
    **dict.fromkeys(_ENTRY_BY_ENTRY, pointwise),
    **dict.fromkeys(
        [
            "zeros",
            "ones",
            "full",
            "empty",
            "zeros_like",
            "ones_like",
            "full_like",
            "empty_like",
            "new_zeros",
            "new_ones",
            "new_full",
            "new_empty",
        ],
        _constant,
    ),
    **dict.fromkeys(["fill", "zero"], _filled),
    **dict.fromkeys(
        ["arange", "eye", "linspace", "rand", "randn", "rand_like", "randn_like", "randint", "randperm"], _numbered
    ),
    **dict.fromkeys(["scalar_tensor", "item"], _scalar),
    "prelu": _prelu,
    "_prelu_kernel": pointwise,
    "glu": _glu,
}
