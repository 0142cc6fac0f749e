"""Recurrent layers take the sizes of their arrays, or say that these have none in common."""

import pytest
import torch
from torch import nn

from consilience.errors import UnsupportedError
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.torch_modules import module_with
from tests.networks.recurrent_nets import FORMS, every_form

NOTHING_MOVES = Symmetry({}, ())


class Layer(nn.Module):
    """A recurrent layer with a name."""

    def __init__(self, form, inputs, units, outputs=None):
        super().__init__()
        kind, options = FORMS[form]
        self.layer = kind(inputs, units, **options | ({"proj_size": outputs} if options.get("proj_size") else {}))


@every_form
def test_a_layer_with_arrays_of_another_size_answers_as_one_made_with_it(form):
    template, other = Layer(form, 5, 6, 3).double(), Layer(form, 4, 9, 7).double()
    resized = module_with(template, other.state_dict(), NOTHING_MOVES)
    for size in ("input_size", "hidden_size", "proj_size"):
        assert getattr(resized.layer, size) == getattr(other.layer, size)
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    with torch.no_grad():
        assert torch.equal(resized.eval().layer(x)[0], other.eval().layer(x)[0])
    assert template.layer.hidden_size == 6


@pytest.mark.parametrize(("units", "outputs"), [((9, 8), (7, 7)), ((9, 9), (7, 5)), ((9, 8), (7, 5))])
def test_layers_of_different_sizes_are_refused_whichever_size_differs(units, outputs):
    form = "projected stacked lstm both ways"
    arrays = {}
    for number in (0, 1):
        made = Layer(form, 4, units[number], outputs[number]).state_dict()
        arrays |= {name: values for name, values in made.items() if f"_l{number}" in name}
    with pytest.raises(UnsupportedError, match="the layers and directions of a LSTM must have one width, found"):
        module_with(Layer(form, 5, 6, 3), arrays, NOTHING_MOVES)
