"""Tracing rules of views, concatenation, slices, padding, indexing and repetition.

A view has the same entries in another shape or another order of axes. A concatenated axis is a sum of terms, one after
the other; a slice or a split cuts an axis into stretches, each with units of its own. Where entries are addressed by
their number (a select, an index, a flip), their axis never moves: it is fixed, and what differed from unit to unit of
it (a family) is picked for the units that are addressed.
"""

from __future__ import annotations

from collections.abc import Sequence

from consilience.networks.tracing.axis_parts import (
    AxisPart,
    AxisTerms,
    at_host_units,
    axis_size,
    fixed_axis,
    free_axis,
    hosted_families,
    may_move,
    resolve,
    single_part,
)
from consilience.networks.tracing.rules.common import (
    OperatorCall,
    OperatorRule,
    TracedTensor,
    TraceRecord,
    broadcast,
    constant_tensor,
    fixed_tensor,
    reshape,
    under_names,
)


def _fix_indexed_axis(record: TraceRecord, axis: AxisTerms) -> AxisPart | None:
    """Fix an axis whose units are addressed by number; return its part if other axes differ from unit to unit of it."""
    part = single_part(axis)
    if part is not None and part.inner_parts:
        record.algebra.fix(axis)
        return part if hosted_families(part) else None
    record.fix(axis)
    return None


def select_index(record: TraceRecord, tensor: TracedTensor, dim: int, unit: int) -> TracedTensor:
    """Return the tensor at one index of an axis, without that axis."""
    host = _fix_indexed_axis(record, tensor.axes[dim])
    selected = tensor.select_axes(n for n in range(len(tensor.axes)) if n != dim)
    if host is None:
        return selected
    axes = tuple(at_host_units(axis, host, [unit % host.size]) for axis in selected.axes)
    return TracedTensor(axes, selected.origins, tensor.data)


def split_axis(record: TraceRecord, tensor: TracedTensor, dim: int, sizes: Sequence[int]) -> list[TracedTensor]:
    """Return the stretches of a tensor along one axis, of these lengths in order."""
    part = single_part(tensor.axes[dim])
    host = _fix_indexed_axis(record, tensor.axes[dim]) if part is not None and part.inner_parts else None
    if host is None:
        return [tensor.replace_axis(dim, axis) for axis in record.algebra.split(tensor.axes[dim], sizes)]
    # Units of the host never move, but what lies inside them may differ: each stretch gets a host of its own.
    stretches, start = [], 0
    for size in sizes:
        stretch_host = AxisPart(size, fixed=True)
        axes = [
            ((stretch_host,),)
            if n == dim
            else at_host_units(axis, host, list(range(start, start + size)), stretch_host)
            for n, axis in enumerate(tensor.axes)
        ]
        stretches.append(TracedTensor(tuple(axes), tensor.origins, tensor.data))
        start += size
    return stretches


def concatenate(record: TraceRecord, tensors: Sequence[TracedTensor], dim: int) -> TracedTensor:
    """Return tensors concatenated along an axis; their other axes move together."""
    tensors = [tensor for tensor in tensors if tensor.shape != (0,)]  # torch accepts empty vectors anywhere
    axes: list[AxisTerms] = []
    origins = []
    for n in range(len(tensors[0].axes)):
        if n == dim:
            axes.append(tuple(term for tensor in tensors for term in resolve(tensor.axes[n])))
            origins.append(frozenset[tuple[str, int]]().union(*(tensor.origins[n] for tensor in tensors)))
        else:
            axis, origin = record.join_axes(tensors, [n] * len(tensors))
            axes.append(axis)
            origins.append(origin)
    data = any(tensor.data for tensor in tensors)
    if data:
        for tensor in tensors:
            for n in range(len(tensor.axes)):
                record.add_side(tensor, n, "output")
    return TracedTensor(tuple(axes), () if data else tuple(origins), data)


def _cat(call: OperatorCall) -> TracedTensor:
    tensors = call["tensors"]
    return concatenate(call.record, tensors, call.dim(max(tensors, key=lambda tensor: len(tensor.axes))))


def _stack(call: OperatorCall) -> TracedTensor:
    tensors = call["tensors"]
    dim = int(call["dim"] or 0) % (len(tensors[0].axes) + 1)
    return concatenate(call.record, [insert_axis(tensor, dim) for tensor in tensors], dim)


def insert_axis(tensor: TracedTensor, dim: int) -> TracedTensor:
    """Return the tensor with an axis of length one before the axis of this number."""
    axes = (*tensor.axes[:dim], fixed_axis(1), *tensor.axes[dim:])
    return TracedTensor(axes, (*tensor.origins[:dim], frozenset(), *tensor.origins[dim:]), tensor.data)


def _select(call: OperatorCall) -> TracedTensor:
    tensor = call["self"]
    return select_index(call.record, tensor, call.dim(tensor), call["index"])


def _unbind(call: OperatorCall) -> list[TracedTensor]:
    tensor = call["self"]
    dim = call.dim(tensor)
    return [select_index(call.record, tensor, dim, unit) for unit in range(tensor.shape[dim])]


def _slice(call: OperatorCall) -> TracedTensor:
    tensor: TracedTensor = call["self"]
    dim = call.dim(tensor)
    size = tensor.shape[dim]
    start, stop, step = slice(call["start"], call["end"], call["step"]).indices(size)
    if (start, stop, step) == (0, size, 1):
        return tensor
    if step != 1 or stop <= start:
        call.record.fix(tensor.axes[dim])
        return tensor.replace_axis(dim, fixed_axis(call.shape[dim]))
    sizes = [length for length in (start, stop - start, size - stop) if length]
    return split_axis(call.record, tensor, dim, sizes)[1 if start else 0]


def _narrow(call: OperatorCall) -> TracedTensor:
    tensor: TracedTensor = call["self"]
    dim = call.dim(tensor)
    start = int(call["start"]) % tensor.shape[dim]
    sizes = [length for length in (start, call["length"], tensor.shape[dim] - start - call["length"]) if length]
    return split_axis(call.record, tensor, dim, sizes)[1 if start else 0]


def _split(call: OperatorCall) -> list[TracedTensor]:
    """Trace a split, whose lengths are read off the shapes of its outputs."""
    tensor = call["self"]
    dim = call.dim(tensor)
    return split_axis(call.record, tensor, dim, [shape[dim] for shape in call.shapes])


def _pad(call: OperatorCall) -> TracedTensor:
    """Trace padding: entries of constant padding may be permuted; other kinds address positions."""
    tensor: TracedTensor = call["self"]
    constant = call.name == "constant_pad_nd" or call["mode"] in (None, "constant")
    for position in range(0, len(call["pad"]), 2):
        before, after = call["pad"][position : position + 2]
        dim = len(tensor.axes) - 1 - position // 2
        axis = tensor.axes[dim]
        if (before, after) == (0, 0):
            continue
        if constant and min(before, after) >= 0 and may_move([axis]):
            sides = [free_axis(size) if size else () for size in (before, after)]
            tensor = tensor.replace_axis(dim, (*sides[0], *axis, *sides[1]))
        else:
            call.record.fix(axis)
            tensor = tensor.replace_axis(dim, fixed_axis(axis_size(axis) + before + after))
    return tensor


def _reorder(call: OperatorCall) -> TracedTensor:
    """Trace an operation that reorders entries by their position: its axes never move."""
    tensor: TracedTensor = call["self"]
    for dim in call.dims(tensor, "dims"):
        call.record.fix(tensor.axes[dim])
    return tensor


def _index(call: OperatorCall) -> TracedTensor:
    """Trace indexing by tensors: the indexed axes never move, the others are unchanged."""
    tensor, indices = call["self"], call["indices"]
    indexed = [dim for dim, index in enumerate(indices) if index is not None]
    for dim in indexed:
        call.record.fix(tensor.axes[dim])
    if any(call.shapes) and indexed == list(range(indexed[0], indexed[-1] + 1)):
        # Neighbouring indexed axes are replaced, in place, by the axes of the index tensors broadcast together.
        first, last = indexed[0], indexed[-1]
        index_rank = len(call.shape) - (len(tensor.axes) - len(indexed))
        index_axes = [fixed_axis(size) for size in call.shape[first : first + index_rank]]
        axes = (*tensor.axes[:first], *index_axes, *tensor.axes[last + 1 :])
        if tuple(axis_size(axis) for axis in axes) == call.shape:
            return TracedTensor(axes, data=tensor.data)
    call.record.fix_all_axes(tensor)
    return fixed_tensor(call.shape, tensor.data)


def _index_add(call: OperatorCall) -> TracedTensor:
    """Trace the sum of rows into those of an index, as of messages at nodes: the axis stays, others are joined."""
    tensor = call["self"]
    source = call["source"] if "source" in call.args else call["src"]
    dim = call.dim(tensor)
    parts = [tensor, source]
    if call.name.startswith("scatter"):  # the index has an entry for every one of the source
        parts.append(call["index"])
    others = [tuple(size for n, size in enumerate(part.shape) if n != dim) for part in parts]
    if not isinstance(source, TracedTensor) or len(set(others)) > 1:
        for part in parts:
            call.record.fix_all_axes(part)
        return fixed_tensor(call.shape, tensor.data)
    for part in parts:
        call.record.algebra.fix(part.axes[dim])
    rows = [part.replace_axis(dim, fixed_axis(1)) for part in parts[1:]]
    return broadcast(call.record, [tensor, *rows])


def _index_select(call: OperatorCall) -> TracedTensor:
    tensor: TracedTensor = call["self"]
    dim = call.dim(tensor)
    call.record.fix(tensor.axes[dim])
    return tensor.replace_axis(dim, fixed_axis(call.shape[dim]))


def _repeat(call: OperatorCall) -> TracedTensor:
    """Trace repetition along axes: copies are equal, so that they may be permuted."""
    tensor: TracedTensor = call["self"]
    repeats = list(call["repeats"] if call["repeats"] is not None else call["dims"])
    while len(tensor.axes) < len(repeats):
        tensor = insert_axis(tensor, 0)
    repeats = [1] * (len(tensor.axes) - len(repeats)) + repeats
    for dim, times in enumerate(repeats):
        if times > 1:
            tensor = tensor.replace_axis(dim, call.record.algebra.flatten([free_axis(times), tensor.axes[dim]]))
    return tensor


def _repeat_interleave(call: OperatorCall) -> TracedTensor:
    tensor: TracedTensor = call["self"]
    times = call["repeats"]
    if not isinstance(times, int) or call["dim"] is None:
        for argument in call.tensors:
            call.record.fix_all_axes(argument)
        return fixed_tensor(call.shape, tensor.data)
    dim = call.dim(tensor)
    return tensor.replace_axis(dim, call.record.algebra.flatten([tensor.axes[dim], free_axis(times)]))


def _expand(call: OperatorCall) -> TracedTensor:
    """Trace broadcasting to a shape: entries along the new length are equal."""
    tensor = call["self"]
    expanded = broadcast(call.record, [tensor, constant_tensor(call.shape)])
    origins = (frozenset[tuple[str, int]](),) * (len(call.shape) - len(tensor.axes)) + tensor.origins
    return TracedTensor(expanded.axes, origins, tensor.data)


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
    **under_names(_cat, "cat concat concatenate"),
    "stack": _stack,
    "select": _select,
    "unbind": _unbind,
    "slice": _slice,
    "narrow": _narrow,
    **under_names(_split, "split split_with_sizes chunk tensor_split unsafe_split unsafe_chunk"),
    **under_names(_pad, "pad constant_pad_nd"),
    **under_names(_reorder, "flip roll"),
    "index": _index,
    "index_select": _index_select,
    **under_names(_index_add, "index_add scatter_add scatter_reduce"),
    **under_names(_repeat, "repeat tile"),
    "repeat_interleave": _repeat_interleave,
    **under_names(_expand, "expand expand_as broadcast_to"),
}
