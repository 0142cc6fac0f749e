"""Operations that see the same entries in another shape or order of axes."""

from __future__ import annotations

from consilience.networks.tracing.rules.common import Call, Rule, Value, reshape
from consilience.networks.tracing.rules.joining import insert


def _reshape(call: Call) -> Value:
    return reshape(call.record, call["self"], call.shape)


def _unsqueeze(call: Call) -> Value:
    value = call["self"]
    return insert(value, int(call["dim"]) % (len(value.axes) + 1))


def _squeeze(call: Call) -> Value:
    value: Value = call["self"]
    numbers = call.dims(value)
    return value.keeping(n for n, size in enumerate(value.shape) if size != 1 or n not in numbers)


def _transpose(call: Call) -> Value:
    value = call["self"]
    order = list(range(len(value.axes)))
    if call.name in ("transpose", "swapaxes", "swapdims"):
        first, second = (
            next(call.dim(value, name) for name in (f"dim{n}", f"axis{n}") if name in call.args) for n in (0, 1)
        )
    elif call.name in ("t", "mT", "matrix_H", "adjoint", "mH"):
        if len(order) < 2:
            return value
        first, second = -2, -1
    else:
        return value.keeping(reversed(order))
    order[first], order[second] = order[second], order[first]
    return value.keeping(order)


def _permute(call: Call) -> Value:
    value: Value = call["self"]
    return value.keeping(call.dims(value, "dims"))


def _movedim(call: Call) -> Value:
    value = call["self"]
    source, target = call.dims(value, "source"), call.dims(value, "destination")
    order = [n for n in range(len(value.axes)) if n not in source]
    for place, number in sorted(zip(target, source, strict=True)):
        order.insert(place, number)
    return value.keeping(order)


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ["view", "reshape", "_unsafe_view", "view_as", "reshape_as", "flatten", "unflatten", "ravel"], _reshape
    ),
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    **dict.fromkeys(
        ["transpose", "swapaxes", "swapdims", "t", "mT", "matrix_H", "adjoint", "mH", "numpy_T"], _transpose
    ),
    "permute": _permute,
    **dict.fromkeys(["movedim", "moveaxis"], _movedim),
}
