"""Tracing rules of recurrent layers and cells.

One permutation acts on a recurrent layer: on the rows of both weights and of the biases, the same in each of the g
stacked gates, on the columns of the hidden-to-hidden weight, and on the output (for LSTM, GRU and RNN alike):

    W_ih (g * k, inputs),  W_hh (g * k, k),  b_ih, b_hh (g * k,)          W_ih -> P W_ih, W_hh -> P W_hh P^T, b -> P b.

With a projection W_hr (p, k) of an LSTM, the k units of the inner state and the p of the output are groups of their
own.
"""

from __future__ import annotations

from collections.abc import Sequence

from consilience.networks.tracing.axis_parts import (
    AxisPart,
    AxisTerms,
    as_factor,
    axis_size,
    fixed_axis,
    free_axis,
    single_part,
)
from consilience.networks.tracing.rules.common import OperatorCall, OperatorRule, TracedTensor, TraceRecord, under_names

_N_GATES = {"lstm": 4, "gru": 3, "rnn": 1}
"""Stacked gates in the weights of torch: LSTM (input, forget, cell, output), GRU (reset, update, new)."""
_STATE_GATES = {"lstm": (2,), "gru": (2,)}
"""The gate, of several, that proposes the new state through tanh: with its sign the state changes sign, and nothing
else."""


def _join_cell(
    record: TraceRecord, inputs: AxisTerms, arrays: Sequence[TracedTensor], kind: str
) -> tuple[AxisTerms, AxisTerms]:
    """Join the axes of one cell; return its output and its inner state, the same unless there is a projection.

    Arrays are W_ih (gates * units, inputs), W_hh (gates * units, output), then biases, and W_hr (output, units) where
    there is a projection; the kind, "lstm", "gru" or "rnn", decides the number of gates.
    """
    n_gates = _N_GATES[kind]
    input_weight, hidden_weight = arrays[:2]
    biases = [array for array in arrays[2:] if len(array.axes) == 1]
    projections = [array for array in arrays[2:] if len(array.axes) == 2]
    state = free_axis(axis_size(input_weight.axes[0]) // n_gates)
    stacked_gates = ((n_gates, as_factor(state)),)  # rows (gates, units), the same units in every gate
    for array in (input_weight, hidden_weight, *biases):
        record.algebra.join(stacked_gates, array.axes[0])
        record.add_side(array, 0, "output")
        if kind in _STATE_GATES:
            record.odd_copies |= dict.fromkeys(array.origins[0], _STATE_GATES[kind])
    record.algebra.join(inputs, input_weight.axes[1])
    for array in (input_weight, hidden_weight):
        record.add_side(array, 1, "input")
    output = hidden_weight.axes[1]
    if projections:
        record.algebra.join(projections[0].axes[0], output)
        record.algebra.join(projections[0].axes[1], state)
        record.add_side(projections[0], 0, "output")
        record.add_side(projections[0], 1, "input")
    else:
        record.algebra.join(state, output)
    return output, state


def _join_initial_state(record: TraceRecord, axis: AxisTerms, state: TracedTensor) -> None:
    """Join units with those of an initial state, unless that is a constant of equal entries."""
    part = single_part(state.axes[-1])
    if part is None or part.in_array or part.fixed:
        record.algebra.join(axis, state.axes[-1])


def _stack_states(n_states: int, axes: Sequence[AxisTerms], batch: AxisTerms) -> TracedTensor:
    """Return the last states (layers and directions, batch, units), which have units of their own in each layer."""
    if n_states == 1:
        return TracedTensor((fixed_axis(1), batch, axes[0]), data=True)
    host = AxisPart(n_states, fixed=True)
    family = AxisPart(axis_size(axes[0]), in_array=True, host=host, members=tuple(as_factor(axis) for axis in axes))
    host.inner_parts.append(family)
    return TracedTensor((((host,),), batch, ((family,),)), data=True)


def _layers(call: OperatorCall) -> list[TracedTensor]:
    """Trace stacked layers over a sequence, in one or both directions."""
    record, tensor = call.record, call["input"]
    initial_states = call["hx"] if isinstance(call["hx"], list | tuple) else [call["hx"]]
    arrays = call["params"]
    kind = call.name.split("_")[0]
    n_directions = 2 if call["bidirectional"] else 1
    arrays_per_cell = len(arrays) // (n_directions * call["num_layers"])
    batch = tensor.axes[0 if call["batch_first"] else 1]
    inputs = tensor.axes[2]
    outputs: list[AxisTerms] = []
    states: list[AxisTerms] = []
    for layer in range(call["num_layers"]):
        layer_outputs = []
        for direction in range(n_directions):
            start = (layer * n_directions + direction) * arrays_per_cell
            output, state = _join_cell(record, inputs, arrays[start : start + arrays_per_cell], kind)
            for axis, initial_state in zip((output, state), initial_states, strict=False):
                _join_initial_state(record, axis, initial_state)
            layer_outputs.append(output)
            states.append(state)
        outputs.extend(layer_outputs)
        # The next layer reads both directions, one after the other.
        inputs = tuple(term for axis in layer_outputs for term in axis)
    results = [TracedTensor((*tensor.axes[:2], inputs), data=True), _stack_states(len(outputs), outputs, batch)]
    # An LSTM has two states: its output h and its inner state c.
    return [*results, _stack_states(len(states), states, batch)] if len(initial_states) > 1 else results


def _step(call: OperatorCall) -> TracedTensor | list[TracedTensor]:
    """Trace one step of a cell."""
    record, tensor = call.record, call["input"]
    initial_states = call["hx"] if isinstance(call["hx"], list | tuple) else [call["hx"]]
    arrays = [call[name] for name in ("w_ih", "w_hh", "b_ih", "b_hh") if call[name] is not None]
    output, _ = _join_cell(record, tensor.axes[-1], arrays, call.name.split("_")[0])
    for initial_state in initial_states:
        _join_initial_state(record, output, initial_state)
    states = [TracedTensor((*tensor.axes[:-1], output), data=True) for _ in initial_states]
    return states if len(states) > 1 else states[0]


RULES: dict[str, OperatorRule] = {
    **under_names(_layers, "lstm gru rnn_tanh rnn_relu"),
    **under_names(_step, "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell"),
}
