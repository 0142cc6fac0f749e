"""Recurrent layers and cells: one renumbering for the stacked gates, the recurrent axis and the output."""

from __future__ import annotations

from collections.abc import Sequence

from consilience.networks.tracing.axis_parts import Atom, AxisTerms, axis_size, free, packed, still
from consilience.networks.tracing.rules.common import Call, Record, Rule, Value
from consilience.networks.tracing.rules.joining import lone

_GATES = {"lstm": 4, "gru": 3, "rnn": 1}
_PROPOSING = {"lstm": (2,), "gru": (2,)}
"""Of several gates, the one that proposes the new state: with its sign the state changes sign, and nothing else."""


def _cell(record: Record, read: AxisTerms, arrays: Sequence[Value], kind: str) -> tuple[AxisTerms, AxisTerms]:
    """Join the axes of one cell; return its output and its inner state, the same unless it is projected.

    Arrays are weight_ih (gates * units, read), weight_hh (gates * units, output), then biases, and weight_hr
    (output, units) where there is a projection.
    """
    gates = _GATES[kind]
    made, recurrent = arrays[:2]
    biases = [array for array in arrays[2:] if len(array.axes) == 1]
    projections = [array for array in arrays[2:] if len(array.axes) == 2]
    state = free(axis_size(made.axes[0]) // gates)
    stacked = ((gates, packed(state)),)
    for array in (made, recurrent, *biases):
        record.atoms.join(stacked, array.axes[0])
        record.side(array, 0, "output")
        if kind in _PROPOSING:
            record.flips(array, 0, _PROPOSING[kind])
    record.atoms.join(read, made.axes[1])
    for array in (made, recurrent):
        record.side(array, 1, "input")
    output = recurrent.axes[1]
    if projections:
        record.atoms.join(projections[0].axes[0], output)
        record.atoms.join(projections[0].axes[1], state)
        record.side(projections[0], 0, "output")
        record.side(projections[0], 1, "input")
    else:
        record.atoms.join(state, output)
    return output, state


def _start(record: Record, axis: AxisTerms, given: Value) -> None:
    """Join units with those of a first state, unless its entries are all equal."""
    atom = lone(given.axes[-1])
    if atom is None or atom.named or atom.fixed:
        record.atoms.join(axis, given.axes[-1])


def _stacked(number: int, axes: Sequence[AxisTerms], batch: AxisTerms) -> Value:
    """Return the last states (layers and directions, batch, units), which have units of their own in each layer."""
    if number == 1:
        return Value((still(1), batch, axes[0]), data=True)
    host = Atom(number, fixed=True)
    family = Atom(axis_size(axes[0]), named=True, host=host, members=tuple(packed(axis) for axis in axes))
    host.contains.append(family)
    return Value((((host,),), batch, ((family,),)), data=True)


def _layers(call: Call) -> list[Value]:
    """Run layers over a sequence, one or both ways."""
    record, value = call.record, call["input"]
    states = call["hx"] if isinstance(call["hx"], list | tuple) else [call["hx"]]
    arrays = call["params"]
    kind = call.name.split("_")[0]
    ways = 2 if call["bidirectional"] else 1
    each = len(arrays) // (ways * call["num_layers"])
    batch = value.axes[0 if call["batch_first"] else 1]
    read = value.axes[2]
    outputs: list[AxisTerms] = []
    inner: list[AxisTerms] = []
    for layer in range(call["num_layers"]):
        made = []
        for way in range(ways):
            start = (layer * ways + way) * each
            output, state = _cell(record, read, arrays[start : start + each], kind)
            for axis, given in zip((output, state), states, strict=False):
                _start(record, axis, given)
            made.append(output)
            inner.append(state)
        outputs.extend(made)
        read = tuple(term for axis in made for term in axis)
    found = [Value((*value.axes[:2], read), data=True), _stacked(len(outputs), outputs, batch)]
    return [*found, _stacked(len(inner), inner, batch)] if len(states) > 1 else found


def _one_step(call: Call) -> Value | list[Value]:
    """Run one step of a cell."""
    record, value = call.record, call["input"]
    states = call["hx"] if isinstance(call["hx"], list | tuple) else [call["hx"]]
    arrays = [call[name] for name in ("w_ih", "w_hh", "b_ih", "b_hh") if call[name] is not None]
    output, _ = _cell(record, value.axes[-1], arrays, call.name.split("_")[0])
    for given in states:
        _start(record, output, given)
    made = [Value((*value.axes[:-1], output), data=True) for _ in states]
    return made if len(made) > 1 else made[0]


RULES: dict[str, Rule] = {
    **dict.fromkeys(["lstm", "gru", "rnn_tanh", "rnn_relu"], _layers),
    **dict.fromkeys(["lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"], _one_step),
}
