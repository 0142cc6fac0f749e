"""Tracing: the groups of every architecture are those listed by hand, and what is not looked through is said."""

import logging

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import consilience as cs
from consilience.errors import InputError, UnsupportedError
from consilience.networks.symmetry.axes import Segment
from consilience.networks.tracing.trace import trace
from tests.networks.zoo import RESNET20, ZOO, ResNet, images, resnet18_groups, traced

every_network = pytest.mark.parametrize("entry", ZOO.values(), ids=list(ZOO))


class Written(nn.Module):
    """A module whose forward is a function of it."""

    def __init__(self, forward, **parts):
        super().__init__()
        self.steps = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args, **kwargs):
        return self.steps(self, *args, **kwargs)


def segments(symmetry, array, axis=0):
    return [(segment.group, segment.outer, segment.inner) for segment in symmetry.layouts[array].axes[axis].segments]


@every_network
def test_the_groups_are_those_listed(entry):
    _, _, symmetry = traced(entry.name)
    assert symmetry.groups == entry.groups
    assert {group.name: group.parent for group in symmetry.all_groups if group.parent} == entry.parents
    assert {group.name for group in symmetry.all_groups if not group.resizable} == set(entry.rigid)
    assert [group.order for group in symmetry.all_groups] == list(range(len(entry.groups)))


@every_network
def test_every_array_has_a_layout_that_explains_its_shape(entry):
    module, _, symmetry = traced(entry.name)
    arrays = module.state_dict()
    assert set(arrays) == set(symmetry.layouts) | set(symmetry.aliases)
    assert symmetry.units({name: tuple(array.shape) for name, array in arrays.items()}) == dict(symmetry.groups)


@every_network
def test_what_is_not_looked_through_is_said_and_nothing_else(entry):
    notes = traced(entry.name)[2].notes
    assert len(notes) == len(entry.notes)
    for note, text in zip(notes, entry.notes, strict=True):
        assert text in note
        assert "never moves" in note


@pytest.mark.parametrize("name", ["resnet18", "lstm both ways", "gpt"])
def test_tracing_leaves_the_module_as_it_was(name):
    entry = ZOO[name]
    module = entry.module().train()
    before = {name: array.clone() for name, array in module.state_dict().items()}
    trace(module, entry.inputs())
    assert all(part.training for part in module.modules())
    assert all(torch.equal(array, before[name]) for name, array in module.state_dict().items())


def test_a_symmetry_tells_the_widths_of_a_wider_network():
    symmetry = trace(ResNet((4, 5, 6, 7), 2), images(3, 16)())
    wider = {name: tuple(array.shape) for name, array in ResNet((8, 6, 9, 7), 2).state_dict().items()}
    assert symmetry.units(wider) == resnet18_groups((8, 6, 9, 7))


def test_flattened_channels_keep_their_positions():
    symmetry = traced("flattened by view")[2]
    assert segments(symmetry, "hidden.weight", 1) == [("conv", 1, 64)]
    last = Written(
        lambda m, x: m.out(m.conv(x).permute(0, 2, 3, 1).flatten(1)), conv=nn.Conv2d(3, 6, 1), out=nn.Linear(96, 2)
    )
    assert segments(trace(last, images(3, 4)()), "out.weight", 1) == [("conv", 16, 1)]


def test_gates_are_stacked_units():
    symmetry = traced("lstm both ways")[2]
    assert segments(symmetry, "rnn.weight_ih_l1") == [("rnn.l1", 4, 1)]
    assert segments(symmetry, "rnn.weight_ih_l1", 1) == [("rnn.l0", 1, 1), ("rnn.l0_reverse", 1, 1)]
    assert segments(symmetry, "rnn.weight_hh_l1", 1) == [("rnn.l1", 1, 1)]
    assert symmetry.layouts["rnn.weight_hh_l1"].axes[1].side == "input"


def test_packed_attention_tells_queries_keys_and_values_apart():
    for name, array in [("multi-head attention", "attention.in_proj_weight"), ("vision transformer", "qkv.weight")]:
        symmetry = traced(name)[2]
        kinds = [group.rpartition(".")[2] for group, _, _ in segments(symmetry, array)]
        assert kinds == ["query_key", "query_key", "value"]


def test_padded_shortcuts_split_units_into_carried_and_new_ones():
    symmetry = traced("resnet20 with padded shortcuts")[2]
    carried = [("layers.1.0.conv2", 1, 1), ("conv1", 1, 1), ("layers.1.0.conv2.2", 1, 1)]
    assert segments(symmetry, "layers.1.0.conv2.weight") == carried
    assert sum(RESNET20[group] for group, _, _ in carried) == 8


def test_the_weight_of_a_grouped_convolution_is_laid_out_dense():
    symmetry = traced("resnext")[2]
    layout = symmetry.layouts["2.weight"]
    assert (layout.blocks, layout.shape(symmetry.groups)) == (3, (12, 2, 3, 3))
    assert segments(symmetry, "2.weight", 1) == [("0", 1, 1)]
    assert traced("depthwise")[2].layouts["2.weight"].blocks == 1


def test_tied_weights_are_one_array_that_makes_and_reads_units():
    symmetry = traced("tied embedding")[2]
    assert symmetry.aliases == {"decoder.weight": "embed.weight"}
    assert symmetry.layouts["embed.weight"].axes[1].side == "both"
    assert not symmetry.layouts["embed.weight"].axes[0].moves


def test_sides_say_what_makes_units_and_what_reads_them():
    symmetry = traced("mlp")[2]
    sides = [(place.array, place.side) for place in symmetry.places("2")]
    assert sides == [("2.weight", "output"), ("2.bias", "output"), ("4.weight", "input")]


def test_inputs_and_outputs_never_move():
    doubled = Written(lambda m, x: x + m.two(torch.relu(m.one(x))), one=nn.Linear(5, 5), two=nn.Linear(5, 5))
    assert trace(doubled, torch.zeros(2, 5)).groups == {"one": 5}


def test_constants_fix_the_axes_along_which_they_vary():
    table = torch.arange(6.0)
    added = Written(lambda m, x: m.out(torch.relu(m.first(x) + m.table)), first=nn.Linear(5, 6), out=nn.Linear(6, 2))
    added.table = table
    assert trace(added, torch.zeros(2, 5)).groups == {}
    added.table = torch.ones(6)
    assert trace(added, torch.zeros(2, 5)).groups == {"first": 6}
    del added.table
    added.register_buffer("table", table, persistent=False)
    assert trace(added, torch.zeros(2, 5)).groups == {}
    added.register_buffer("table", table)
    assert "table axis 0" in [str(place) for place in trace(added, torch.zeros(2, 5)).places("first")]


def test_positions_that_the_example_does_not_reach_are_no_units():
    cut = Written(
        lambda m, x: m.out(torch.relu(m.first(x) + m.position[:, : x.shape[1]])),
        first=nn.Linear(5, 6),
        out=nn.Linear(6, 2),
    )
    cut.position = nn.Parameter(torch.randn(1, 9, 6))
    assert trace(cut, torch.zeros(2, 4, 5)).groups == {"first": 6}


def test_units_told_apart_by_number_are_fixed_and_said():
    picked = Written(lambda m, x: m.out(m.first(x)[:, [0, 2, 1]]), first=nn.Linear(5, 6), out=nn.Linear(3, 2))
    symmetry = trace(picked, torch.zeros(2, 5))
    assert symmetry.groups == {}
    assert symmetry.notes[0].startswith("network: index")


def test_a_state_given_as_input_fixes_the_units_of_the_cell():
    stateful = Written(lambda m, x, state: m.out(m.rnn(x, state)[0]), rnn=nn.GRU(3, 4), out=nn.Linear(4, 2))
    assert trace(stateful, (torch.zeros(5, 2, 3), torch.zeros(1, 2, 4))).groups == {}


def test_an_output_that_shows_hidden_units_pins_them_and_another_can_be_named():
    def forward(m, x):
        hidden = m.first(x).relu()
        return {"hidden": hidden, "classes": m.out(hidden)}

    both = Written(forward, first=nn.Linear(5, 6), out=nn.Linear(6, 3))
    pinned = cs.symmetry(both, torch.zeros(2, 5))
    assert pinned.groups == {}
    (note,) = pinned.notes
    assert note.startswith("the output hidden pins the units that out.weight reads")
    assert note.endswith("name it with `output=`")
    named = cs.symmetry(both, torch.zeros(2, 5), output="classes")
    assert (named.groups, named.notes, named.proved) == ({"first": 6}, (), True)


def test_arrays_that_are_not_used_stay_and_are_named():
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    module.register_parameter("spare", nn.Parameter(torch.zeros(4)))
    symmetry = trace(module, torch.zeros(2, 3))
    assert segments(symmetry, "spare") == [(None, 1, 4)]
    assert symmetry.notes == ("spare: the network does not use it, so it is left as it is",)


def test_shared_heads_of_keys_move_with_all_their_queries():
    def forward(m, x):
        query, key, value = (layer(x).view(2, 5, -1, 3).transpose(1, 2) for layer in (m.q, m.k, m.v))
        return m.o(F.scaled_dot_product_attention(query, key, value, enable_gqa=True).transpose(1, 2).flatten(2))

    parts = {"q": nn.Linear(8, 12), "k": nn.Linear(8, 6), "v": nn.Linear(8, 6), "o": nn.Linear(12, 8)}
    symmetry = trace(Written(forward, **parts), torch.zeros(2, 5, 8))
    assert symmetry.groups == {"heads": 2}
    assert segments(symmetry, "q.weight") == [("heads", 1, 6)]
    assert segments(symmetry, "k.weight") == [("heads", 1, 3)]


def test_weights_computed_from_others_are_looked_through():
    normalised = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 6))
    symmetry = trace(nn.Sequential(normalised, nn.ReLU(), nn.Linear(6, 2)), torch.zeros(2, 3))
    assert list(symmetry.groups.values()) == [6]
    assert symmetry.notes == ()


def test_a_tensor_written_in_pieces_is_looked_through():
    def forward(m, x):
        hidden = torch.zeros(2, 9)
        hidden[:, :6] = m.one(x)
        hidden[:, 6:] = m.two(x)
        return m.out(torch.relu_(hidden))

    parts = {"one": nn.Linear(3, 6), "two": nn.Linear(3, 3), "out": nn.Linear(9, 2)}
    symmetry = trace(Written(forward, **parts), torch.zeros(2, 3))
    assert segments(symmetry, "out.weight", 1) == [("one", 1, 1), ("two", 1, 1)]


def test_half_precision_is_traced():
    for dtype in (torch.float16, torch.bfloat16):
        module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).to(dtype)
        assert trace(module, torch.zeros(2, 3, dtype=dtype)).groups == {"0": 4}


def test_a_module_that_decides_by_numbers_is_refused():
    deciding = Written(lambda m, x: m.one(x) if x.sum() > 0 else m.two(x), one=nn.Linear(3, 2), two=nn.Linear(3, 2))
    with pytest.raises(UnsupportedError, match=r"Written cannot be exported \(.*\); write its forward without"):
        trace(deciding, torch.zeros(2, 3))
    assert logging.root.manager.disable == 0


def test_an_example_that_does_not_fit_is_refused():
    with pytest.raises(InputError, match="example: Linear cannot be called with it"):
        trace(nn.Linear(3, 4), torch.zeros(2, 5))


def test_a_group_has_one_segment_per_stretch_of_an_axis():
    symmetry = traced("densenet")[2]
    assert symmetry.layouts["transition.weight"].axes[1].segments == tuple(
        Segment(name) for name in ("first", "convs.0", "convs.1", "convs.2")
    )


class UnknownOperation(nn.Module):
    """A weight that is the exponential of a matrix, of which nobody has a rule, between two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.square, self.last = nn.Linear(3, 4), nn.Parameter(torch.eye(4)), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)) @ torch.linalg.matrix_exp(self.square))


def test_what_an_operation_without_a_rule_touches_is_fixed_and_the_trace_goes_on():
    symmetry = trace(UnknownOperation().eval(), torch.zeros(2, 3))
    assert symmetry.groups == {}
    assert any("matrix_exp tells units apart or is unknown" in note for note in symmetry.notes)


class CosineNet(nn.Module):
    """The cosine of hidden units with a vector of as many numbers."""

    def __init__(self):
        super().__init__()
        self.first, self.direction = nn.Linear(3, 4), nn.Parameter(torch.randn(4))

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        return F.cosine_similarity(hidden, self.direction.expand_as(hidden), dim=1)


def test_the_axis_of_a_cosine_is_summed_over_and_moves():
    assert list(trace(CosineNet().eval(), torch.ones(2, 3)).groups.values()) == [4]
