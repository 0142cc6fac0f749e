"""Laws of recurrent layers that are stepped through: they answer what torch's layers answer."""

from copy import deepcopy

import torch
from numpy.testing import assert_allclose
from torch import nn

from consilience.networks.repair.recurrent_layers import RecurrentInputs, read_cell, write_cell
from tests.networks.recurrent_nets import Reader, every_form, inputs_for, outputs, randomised
from tests.tolerances import ROUNDING


def stepped(module, values, initial_state=None):
    """What a recurrent module answers, by its cells; the steps come first."""
    size = values.shape[0 if module.batch_first else 1]
    with torch.no_grad():
        layer_inputs = RecurrentInputs.of_call(module, values, initial_state, torch.arange(size))
        for layer in range(module.num_layers):
            layer_inputs = layer_inputs.next_layer(layer_inputs.run(module, layer))
    return layer_inputs.values


@every_form
def test_stepping_through_a_layer_is_what_torch_does(form):
    module = randomised(Reader(form), 0).recurrent
    values = inputs_for(Reader(form), 4)
    expected = outputs(module, values)[0]
    assert_allclose(
        stepped(module, values), expected.transpose(0, 1) if module.batch_first else expected, atol=ROUNDING
    )


@every_form
def test_first_states_that_are_given_are_those_stepped_from(form):
    module = randomised(Reader(form), 0).recurrent
    number = module.num_layers * (2 if module.bidirectional else 1)
    generator = torch.Generator().manual_seed(3)
    hidden, cell_state = (
        torch.randn(number, 4, size, generator=generator, dtype=torch.float64) for size in (module.proj_size or 6, 6)
    )
    initial_state = (hidden, cell_state) if module.mode == "LSTM" else hidden
    values = inputs_for(Reader(form), 4)
    with torch.no_grad():
        expected, _ = module(values, initial_state)
    hidden_states = stepped(module, values, initial_state)
    assert_allclose(hidden_states, expected.transpose(0, 1) if module.batch_first else expected, atol=ROUNDING)


@every_form
def test_a_cell_that_is_read_and_written_is_the_same_function(form):
    net = randomised(Reader(form), 0)
    module, copy = net.recurrent, deepcopy(net)
    for values in copy.recurrent.parameters():
        nn.init.zeros_(values)
    for layer in range(module.num_layers):
        for direction in range(2 if module.bidirectional else 1):
            write_cell(copy.recurrent, layer, direction, read_cell(module, layer, direction))
    assert_allclose(outputs(copy, inputs_for(net)), outputs(net, inputs_for(net)), atol=ROUNDING)
