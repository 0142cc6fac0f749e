"""Operations that put tensors together and take them apart: concatenation, slices, padding, indexing."""

from __future__ import annotations

from collections.abc import Sequence

from consilience.networks.tracing.axis_parts import (
    Atom,
    AxisTerms,
    axis_size,
    family_at,
    free,
    hosted,
    movable,
    resolve,
    still,
)
from consilience.networks.tracing.rules.common import Call, Record, Rule, Value, broadcast, uniform, unmoved


def lone(axis: AxisTerms) -> Atom | None:
    """Return the atom that an axis is, None if it is something else."""
    resolved = resolve(axis)
    if len(resolved) == 1 and len(resolved[0]) == 1 and isinstance(resolved[0][0], Atom):
        return resolved[0][0]
    return None


def _told_apart(record: Record, axis: AxisTerms) -> Atom | None:
    """Fix an axis whose units are told apart by number; return it if other axes differ from unit to unit."""
    atom = lone(axis)
    if atom is not None and atom.contains:
        record.atoms.fix(axis)
        return atom if hosted(atom) else None
    record.fix(axis)
    return None


def select(record: Record, value: Value, number: int, unit: int) -> Value:
    """Return the tensor at one index of an axis."""
    host = _told_apart(record, value.axes[number])
    rest = value.keeping(n for n in range(len(value.axes)) if n != number)
    if host is None:
        return rest
    return Value(tuple(family_at(axis, host, [unit % host.size]) for axis in rest.axes), rest.origins, value.data)


def cut(record: Record, value: Value, number: int, sizes: Sequence[int]) -> list[Value]:
    """Return the stretches of a tensor along one axis, of these lengths in order."""
    atom = lone(value.axes[number])
    host = _told_apart(record, value.axes[number]) if atom is not None and atom.contains else None
    if host is None:
        return [value.put(number, axis) for axis in record.atoms.split(value.axes[number], sizes)]
    pieces, start = [], 0
    for size in sizes:
        part = Atom(size, fixed=True)
        axes = [
            ((part,),) if n == number else family_at(axis, host, list(range(start, start + size)), part)
            for n, axis in enumerate(value.axes)
        ]
        pieces.append(Value(tuple(axes), value.origins, value.data))
        start += size
    return pieces


def join_all(record: Record, values: Sequence[Value], number: int) -> Value:
    """Return tensors concatenated along an axis."""
    values = [value for value in values if value.shape != (0,)]
    axes: list[AxisTerms] = []
    origins = []
    for n in range(len(values[0].axes)):
        if n == number:
            axes.append(tuple(term for value in values for term in resolve(value.axes[n])))
            origins.append(frozenset[tuple[str, int]]().union(*(value.origins[n] for value in values)))
        else:
            axis, origin = record.together(values, [n] * len(values))
            axes.append(axis)
            origins.append(origin)
    data = any(value.data for value in values)
    if data:
        for value in values:
            for n in range(len(value.axes)):
                record.side(value, n, "output")
    return Value(tuple(axes), () if data else tuple(origins), data)


def _cat(call: Call) -> Value:
    values = call["tensors"]
    return join_all(call.record, values, call.dim(max(values, key=lambda value: len(value.axes))))


def _stack(call: Call) -> Value:
    values = call["tensors"]
    number = int(call["dim"] or 0) % (len(values[0].axes) + 1)
    return join_all(call.record, [insert(value, number) for value in values], number)


def insert(value: Value, number: int) -> Value:
    """Return the tensor with an axis of length one before the axis of this number."""
    axes = (*value.axes[:number], still(1), *value.axes[number:])
    return Value(axes, (*value.origins[:number], frozenset(), *value.origins[number:]), value.data)


def _select(call: Call) -> Value:
    value = call["self"]
    return select(call.record, value, call.dim(value), call["index"])


def _unbind(call: Call) -> list[Value]:
    value = call["self"]
    number = call.dim(value)
    return [select(call.record, value, number, unit) for unit in range(value.shape[number])]


def _slice(call: Call) -> Value:
    value: Value = call["self"]
    number = call.dim(value)
    size = value.shape[number]
    start, stop, step = slice(call["start"], call["end"], call["step"]).indices(size)
    if (start, stop, step) == (0, size, 1):
        return value
    if step != 1 or stop <= start:
        call.record.fix(value.axes[number])
        return value.put(number, still(call.shape[number]))
    sizes = [length for length in (start, stop - start, size - stop) if length]
    return cut(call.record, value, number, sizes)[1 if start else 0]


def _narrow(call: Call) -> Value:
    value: Value = call["self"]
    number = call.dim(value)
    start = int(call["start"]) % value.shape[number]
    sizes = [length for length in (start, call["length"], value.shape[number] - start - call["length"]) if length]
    return cut(call.record, value, number, sizes)[1 if start else 0]


def _split(call: Call) -> list[Value]:
    """Split as the shapes of the outcome say."""
    value = call["self"]
    number = call.dim(value)
    return cut(call.record, value, number, [shape[number] for shape in call.shapes])


def _pad(call: Call) -> Value:
    """Pad by a constant, any entry of which may be swapped; other kinds tell positions."""
    value: Value = call["self"]
    constant = call.name == "constant_pad_nd" or call["mode"] in (None, "constant")
    for position in range(0, len(call["pad"]), 2):
        before, after = call["pad"][position : position + 2]
        number = len(value.axes) - 1 - position // 2
        axis = value.axes[number]
        if (before, after) == (0, 0):
            continue
        if constant and min(before, after) >= 0 and movable([axis]):
            sides = [free(size) if size else () for size in (before, after)]
            value = value.put(number, (*sides[0], *axis, *sides[1]))
        else:
            call.record.fix(axis)
            value = value.put(number, still(axis_size(axis) + before + after))
    return value


def _told(call: Call) -> Value:
    """Reorder entries along axes by their position."""
    value: Value = call["self"]
    for number in call.dims(value, "dims"):
        call.record.fix(value.axes[number])
    return value


def _index(call: Call) -> Value:
    """Pick entries by index tensors; the axes that are indexed never move, the others are as they were."""
    value, indices = call["self"], call["indices"]
    at = [number for number, one in enumerate(indices) if one is not None]
    for number in at:
        call.record.fix(value.axes[number])
    if any(call.shapes) and at == list(range(at[0], at[-1] + 1)):
        rank = len(call.shape) - (len(value.axes) - len(at))
        picked = [still(size) for size in call.shape[at[0] : at[0] + rank]]
        axes = (*value.axes[: at[0]], *picked, *value.axes[at[-1] + 1 :])
        if tuple(axis_size(axis) for axis in axes) == call.shape:
            return Value(axes, data=value.data)
    call.record.fix_value(value)
    return unmoved(call.shape, value.data)


def _index_select(call: Call) -> Value:
    value: Value = call["self"]
    number = call.dim(value)
    call.record.fix(value.axes[number])
    return value.put(number, still(call.shape[number]))


def _repeat(call: Call) -> Value:
    """Repeat along axes: the copies are equal, so that they may be swapped."""
    value: Value = call["self"]
    repeats = list(call["repeats"] if call["repeats"] is not None else call["dims"])
    while len(value.axes) < len(repeats):
        value = insert(value, 0)
    repeats = [1] * (len(value.axes) - len(repeats)) + repeats
    for number, times in enumerate(repeats):
        if times > 1:
            value = value.put(number, call.record.atoms.flatten([free(times), value.axes[number]]))
    return value


def _repeat_interleave(call: Call) -> Value:
    value: Value = call["self"]
    times = call["repeats"]
    if not isinstance(times, int) or call["dim"] is None:
        for one in call.values:
            call.record.fix_value(one)
        return unmoved(call.shape, value.data)
    number = call.dim(value)
    return value.put(number, call.record.atoms.flatten([value.axes[number], free(times)]))


def _expand(call: Call) -> Value:
    """Broadcast to a shape: along new entries all are equal."""
    value = call["self"]
    wide = broadcast(call.record, [value, uniform(call.shape)])
    origins = (frozenset[tuple[str, int]](),) * (len(call.shape) - len(value.axes)) + value.origins
    return Value(wide.axes, origins, value.data)


RULES: dict[str, Rule] = {
    **dict.fromkeys(["cat", "concat", "concatenate"], _cat),
    "stack": _stack,
    "select": _select,
    "unbind": _unbind,
    "slice": _slice,
    "narrow": _narrow,
    **dict.fromkeys(["split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk"], _split),
    **dict.fromkeys(["pad", "constant_pad_nd"], _pad),
    **dict.fromkeys(["flip", "roll"], _told),
    "index": _index,
    "index_select": _index_select,
    **dict.fromkeys(["repeat", "tile"], _repeat),
    "repeat_interleave": _repeat_interleave,
    **dict.fromkeys(["expand", "expand_as", "broadcast_to"], _expand),
}
