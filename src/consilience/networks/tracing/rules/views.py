"""Tracing rules of views: the same entries in another shape or another order of axes."""

from __future__ import annotations

from consilience.networks.tracing.rules.common import OperatorCall, OperatorRule, TracedTensor, reshape, under_names
from consilience.networks.tracing.rules.joining import insert_axis


def _reshape(call: OperatorCall) -> TracedTensor:
    """Trace a reshape to the shape of the output."""
    return reshape(call.record, call["self"], call.shape)


def _unsqueeze(call: OperatorCall) -> TracedTensor:
    tensor = call["self"]
    return insert_axis(tensor, int(call["dim"]) % (len(tensor.axes) + 1))


def _squeeze(call: OperatorCall) -> TracedTensor:
    tensor: TracedTensor = call["self"]
    dims = call.dims(tensor)
    return tensor.select_axes(n for n, size in enumerate(tensor.shape) if size != 1 or n not in dims)


def _transpose(call: OperatorCall) -> TracedTensor:
    """Trace the exchange of two axes, or the reversal of all (``numpy_T``)."""
    tensor = call["self"]
    order = list(range(len(tensor.axes)))
    if call.name in ("transpose", "swapaxes", "swapdims"):
        # transpose and swapdims name their axes dim0 and dim1, swapaxes axis0 and axis1.
        first, second = (
            next(call.dim(tensor, name) for name in (f"dim{n}", f"axis{n}") if name in call.args) for n in (0, 1)
        )
    elif call.name in ("t", "mT", "matrix_H", "adjoint", "mH"):
        if len(order) < 2:
            return tensor
        first, second = -2, -1
    else:
        return tensor.select_axes(reversed(order))
    order[first], order[second] = order[second], order[first]
    return tensor.select_axes(order)


def _permute(call: OperatorCall) -> TracedTensor:
    tensor: TracedTensor = call["self"]
    return tensor.select_axes(call.dims(tensor, "dims"))


def _movedim(call: OperatorCall) -> TracedTensor:
    tensor = call["self"]
    source, target = call.dims(tensor, "source"), call.dims(tensor, "destination")
    order = [n for n in range(len(tensor.axes)) if n not in source]
    for new_dim, old_dim in sorted(zip(target, source, strict=True)):
        order.insert(new_dim, old_dim)
    return tensor.select_axes(order)


RULES: dict[str, OperatorRule] = {
    **under_names(_reshape, "view reshape _unsafe_view view_as reshape_as flatten unflatten ravel"),
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    **under_names(_transpose, "transpose swapaxes swapdims t mT matrix_H adjoint mH numpy_T"),
    "permute": _permute,
    **under_names(_movedim, "movedim moveaxis"),
}
