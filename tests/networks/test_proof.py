"""Proof: what holds is proved, what is broken is refused by name, and actions are those that calculus gives."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from consilience.errors import InputError, UnsupportedError
from consilience.networks.symmetry.axes import Axis, Segment
from consilience.networks.tracing.proof import prove, symmetry
from consilience.networks.tracing.trace import trace
from tests.networks.zoo import ZOO, images, traced
from tests.tolerances import ROUNDING

pytestmark = pytest.mark.covering(2)

every_network = pytest.mark.parametrize("entry", ZOO.values(), ids=list(ZOO))

# Scores of attention change by the same number for all keys when the keys' bias does, which softmax takes out again;
# so does instance normalisation with the bias of a convolution before it.
WITHOUT_EFFECT = {
    "multi-head attention": ["attention.in_proj_bias axis 0 segment 1"],
    "cross attention": ["attention.in_proj_bias axis 0 segment 1"],
    "transformer encoder": [f"encoder.layers.{n}.self_attn.in_proj_bias axis 0 segment 1" for n in (0, 1)],
    "transformer encoder, norm first": [f"encoder.layers.{n}.self_attn.in_proj_bias axis 0 segment 1" for n in (0, 1)],
    "gpt": ["block.c_attn.bias axis 0 segment 1"],
    "vision transformer": ["qkv.bias axis 0 segment 1"],
    "bert": ["layer.key.bias axis 0 segment 0"],
    "instance norm": ["3.bias axis 0 segment 0"],
}
SLOW = (
    "densenet",
    "vgg11",
    "resnet18",
    "resnet20 with padded shortcuts",
    "transformer encoder",
    "transformer encoder, norm first",
)
every_quick_network = pytest.mark.parametrize(
    "entry", [entry for entry in ZOO.values() if entry.name not in SLOW], ids=[name for name in ZOO if name not in SLOW]
)


def with_segment(original, place, segment):
    """Return a symmetry with another segment at a place."""
    layout = original.layouts[place.array]
    axis = layout.axes[place.axis]
    segments = (*axis.segments[: place.segment], *segment, *axis.segments[place.segment + 1 :])
    axes = (*layout.axes[: place.axis], Axis(segments, axis.side), *layout.axes[place.axis + 1 :])
    return replace(original, layouts={**original.layouts, place.array: replace(layout, axes=axes)}, proof=None)


def segment_at(original, place):
    return original.layouts[place.array].axes[place.axis].segments[place.segment]


def refusal(module, broken, inputs):
    """Return what the proof says against a symmetry, nothing if it passes."""
    try:
        prove(module, broken, inputs)
    except InputError as error:
        return str(error)
    return ""


def refused(module, broken, inputs, group):
    return f"group {group}:" in refusal(module, broken, inputs)


@every_network
def test_what_is_traced_is_proved(entry):
    module, inputs, unproved = traced(entry.name)
    proved_symmetry = prove(module, unproved, inputs)
    assert proved_symmetry.proved
    assert not unproved.proved
    assert proved_symmetry.proof.trials == 2
    assert proved_symmetry.proof.deviation < ROUNDING
    assert all(group.actions[0] == "permute" for group in proved_symmetry.all_groups)


@pytest.mark.slow
@every_quick_network
def test_a_symmetry_that_misses_any_place_is_refused(entry):
    module, inputs, traced_symmetry = traced(entry.name)
    passed = []
    for group in traced_symmetry.by_name:
        for place in traced_symmetry.places(group):
            missing = Segment(None, inner=segment_at(traced_symmetry, place).length(traced_symmetry.groups))
            if not refused(module, with_segment(traced_symmetry, place, [missing]), inputs, group):
                passed.append(f"{place} segment {place.segment}")
    assert passed == WITHOUT_EFFECT.get(entry.name, [])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_a_deep_symmetry_that_is_broken_anywhere_is_refused(name):
    test_a_symmetry_that_misses_any_place_is_refused(ZOO[name])
    test_a_place_given_to_another_group_is_refused(ZOO[name])
    test_units_taken_for_their_repetitions_are_refused(ZOO[name])


@every_quick_network
def test_a_place_given_to_another_group_is_refused(entry):
    module, inputs, traced_symmetry = traced(entry.name)
    with_places = [group for group in traced_symmetry.all_groups if traced_symmetry.places(group.name)]
    for group in with_places:
        others = [o for o in with_places if o is not group and (o.size, o.parent) == (group.size, group.parent)]
        for other in others[:1]:
            place = traced_symmetry.places(group.name)[0]
            segment = segment_at(traced_symmetry, place)
            broken = with_segment(traced_symmetry, place, [Segment(other.name, segment.outer, segment.inner)])
            assert "changes the outputs" in refusal(module, broken, inputs), (group, other)


@every_quick_network
def test_units_taken_for_their_repetitions_are_refused(entry):
    module, inputs, traced_symmetry = traced(entry.name)
    for group in traced_symmetry.by_name:
        for place in traced_symmetry.places(group):
            segment = segment_at(traced_symmetry, place)
            if segment.outer != segment.inner:
                turned = with_segment(traced_symmetry, place, [Segment(group, segment.inner, segment.outer)])
                assert refused(module, turned, inputs, group)


def test_units_at_another_offset_are_refused():
    module, inputs, traced_symmetry = traced("densenet")
    (place,) = [p for p in traced_symmetry.places("convs.0") if p.array == "transition.weight"]
    axis = traced_symmetry.layouts[place.array].axes[1]
    assert [segment.group for segment in axis.segments] == ["first", "convs.0", "convs.1", "convs.2"]
    swapped = with_segment(traced_symmetry, place, [axis.segments[2]])
    swapped = with_segment(swapped, replace(place, segment=2), [axis.segments[1]])
    assert refused(module, swapped, inputs, "convs.0")
    assert refused(module, swapped, inputs, "convs.1")


def test_two_groups_taken_for_each_other_are_refused():
    module = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 2))
    traced_symmetry = trace(module, torch.zeros(2, 3))
    for place in traced_symmetry.places("0"):
        assert refused(module, with_segment(traced_symmetry, place, [Segment("2")]), torch.zeros(2, 3), "2")


def test_units_that_follow_no_head_are_refused():
    module, inputs, traced_symmetry = traced("multi-head attention")
    inside = traced_symmetry.by_name["attention.value"]
    loose = [replace(g, size=8, parent=None) if g is inside else g for g in traced_symmetry.all_groups]
    broken = replace(traced_symmetry, all_groups=tuple(loose))
    assert refused(module, broken, inputs, "attention.value")


def test_a_refusal_names_the_group_its_places_and_the_remedy():
    module = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    traced_symmetry = trace(module, torch.zeros(2, 3))
    broken = with_segment(traced_symmetry, traced_symmetry.places("0")[1], [Segment(None, inner=5)])
    with pytest.raises(InputError, match="group 0: another order of its units changes the outputs by") as refusal:
        prove(module, broken, torch.zeros(2, 3))
    assert "0.weight axis 0, 2.weight axis 1; correct the symmetry" in str(refusal.value)


def test_a_symmetry_of_another_network_is_refused():
    traced_symmetry = trace(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)), torch.zeros(2, 3))
    with pytest.raises(InputError, match=r"Sequential: array 2\.weight has shape \(2, 5\)|array 2\.weight has shape"):
        prove(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(5, 2)), traced_symmetry, torch.zeros(2, 3))


def test_zeros_and_ones_hide_no_place():
    """A fresh batch normalisation has equal statistics, gains and biases for all units."""
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    nn.init.zeros_(module[0].bias)
    traced_symmetry = trace(module, images()())
    assert len(traced_symmetry.places("0")) == 7
    for place in traced_symmetry.places("0"):
        broken = with_segment(traced_symmetry, place, [Segment(None, inner=4)])
        assert refused(module, broken, images()(), "0")


def test_an_identity_hides_no_place():
    """A recurrent layer that starts from the identity is the same in any order of its units."""
    entry = ZOO["rnn"]
    module, inputs = entry.module(), entry.inputs()
    nn.init.eye_(module.rnn.weight_hh_l0)
    traced_symmetry = trace(module, inputs)
    for place in traced_symmetry.places("rnn.l0"):
        assert refused(module, with_segment(traced_symmetry, place, [Segment(None, inner=4)]), inputs, "rnn.l0")


def actions(module, example):
    return {group.name: group.actions[1:] for group in symmetry(module, example).all_groups}


def test_actions_are_those_that_activations_allow():
    def net(activation):
        return nn.Sequential(nn.Linear(3, 5), activation, nn.Linear(5, 2))

    example = torch.zeros(4, 3)
    assert actions(net(nn.ReLU()), example) == {"0": ("scale",)}
    assert actions(net(nn.LeakyReLU()), example) == {"0": ("scale",)}
    assert actions(net(nn.Tanh()), example) == {"0": ("sign",)}
    assert actions(net(nn.Identity()), example) == {"0": ("sign", "scale")}
    for size in (1e-4, 1.0, 1e4):  # far from zero GELU is ReLU, near it half the identity
        assert actions(net(nn.GELU()), size * example) == {"0": ()}
        assert actions(net(nn.SiLU()), size * example) == {"0": ()}
        assert actions(net(nn.Tanh()), size * example) == {"0": ("sign",)}
    assert actions(net(nn.Sigmoid()), example) == {"0": ()}


def test_actions_on_attention_and_statistics():
    entry = ZOO["transformer encoder"]
    allowed = actions(entry.module(), entry.inputs())
    layer = "encoder.layers.0"
    assert allowed[f"{layer}.self_attn.value"] == ("sign", "scale")
    assert allowed[f"{layer}.self_attn.query_key"] == ("sign",)
    assert allowed[f"{layer}.linear1"] == ("scale",)
    assert allowed["embed"] == allowed[f"{layer}.self_attn.heads"] == ()
    assert set(actions(ZOO["resnet18"].module(), ZOO["resnet18"].inputs()).values()) == {()}
    tied = actions(ZOO["tied embedding"].module(), ZOO["tied embedding"].inputs())
    assert tied == {"embed": ("sign",), "hidden": ("scale",)}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_proved_in_double(dtype):
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).to(dtype)
    proved_symmetry = symmetry(module, images()().to(dtype))
    assert proved_symmetry.groups == {"0": 4}
    assert proved_symmetry.proof.deviation < ROUNDING
    assert module[0].weight.dtype == dtype


class Single(nn.Module):
    """Insists on single precision on the way."""

    def __init__(self):
        super().__init__()
        self.first, self.out = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.out(torch.relu(self.first(x.float())))


def test_a_module_that_insists_on_single_precision_is_proved_in_it():
    proved_symmetry = symmetry(Single(), torch.randn(2, 3))
    assert proved_symmetry.proved
    assert proved_symmetry.groups == {"first": 5}


def test_the_module_is_left_as_it_was():
    module = ZOO["resnet18"].module().train()
    before = {name: array.clone() for name, array in module.state_dict().items()}
    symmetry(module, ZOO["resnet18"].inputs())
    assert all(part.training for part in module.modules())
    assert all(torch.equal(array, before[name]) for name, array in module.state_dict().items())


def test_a_proof_is_the_same_for_the_same_seed_and_bound_to_what_it_proves():
    module, inputs = ZOO["mlp"].module(), ZOO["mlp"].inputs()
    proved_symmetry = symmetry(module, inputs, 3)
    assert proved_symmetry == symmetry(module, inputs, np.random.default_rng(3))
    place = proved_symmetry.places("0")[0]
    assert not replace(
        with_segment(proved_symmetry, place, [Segment(None, inner=7)]), proof=proved_symmetry.proof
    ).proved


def test_outputs_that_do_not_depend_on_the_weights_prove_nothing():
    class Empty(Single):
        def forward(self, x):
            return 0.0 * super().forward(x)

    with pytest.raises(InputError, match="does not depend on the weights"):
        symmetry(Empty(), torch.zeros(2, 3))


class Faded(nn.Module):
    """A block of ConvNeXt or of a ReZero network: a branch behind a gain that begins near 0."""

    def __init__(self, gain, activation, d=6):
        super().__init__()
        self.mix, self.norm = nn.Conv2d(d, d, 3, padding=1, groups=d), nn.GroupNorm(1, d)
        self.up, self.activation, self.down = nn.Conv2d(d, 3 * d, 1), activation, nn.Conv2d(3 * d, d, 1)
        self.gain = nn.Parameter(gain)

    def forward(self, x):
        return x + self.gain * self.down(self.activation(self.up(self.norm(self.mix(x)))))


GAINS = {
    "of one": torch.ones(6, 1, 1),
    "LayerScale": torch.full((6, 1, 1), 1e-6),
    "LayerScale, trained": 1e-6 * torch.tensor([1.0, -2.0, 0.5, 3.0, -1.0, 0.1])[:, None, None],
    "ReZero": torch.zeros(1),
}


def faded(gain, activation, spread=0.02, head=None):
    """Return a network of two such blocks with matrices as small as transformers begin with."""
    torch.manual_seed(0)
    blocks = [Faded(gain.clone(), activation, 6) for _ in range(2)]
    end = nn.Linear(6, 4)
    network = nn.Sequential(nn.Conv2d(3, 6, 2, 2), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5), end)
    for parameter in network.parameters():
        if parameter.ndim in (2, 4):
            nn.init.normal_(parameter, std=spread)
    if head == "zero":
        nn.init.zeros_(end.weight)
    return network


@pytest.mark.parametrize("gain", GAINS)
@pytest.mark.parametrize("head", [None, "zero"])
@pytest.mark.parametrize(
    ("activation", "actions"),
    [(nn.GELU(), ("permute",)), (nn.ReLU(), ("permute", "scale")), (nn.Tanh(), ("permute", "sign"))],
)
def test_gains_near_zero_hide_no_action_and_prove_none(gain, head, activation, actions):
    proved = symmetry(faded(GAINS[gain], activation, head=head), images()())
    assert {proved.by_name[name].actions for name in ("1.up", "2.up")} == {actions}
    assert proved.proved


def test_an_action_that_the_outputs_could_not_tell_is_left_out_and_said():
    network = faded(GAINS["of one"], nn.GELU())
    with torch.no_grad():
        network[2].down.weight.mul_(1e-7)  # no gain: a matrix, which is taken as it is
    proved = symmetry(network, images()())
    assert proved.by_name["2.up"].actions == ("permute",)
    assert (
        "2.up: 2.up.weight hardly moves the outputs, so that sign and scale of its units are not proved" in proved.notes
    )


def test_a_network_without_groups_is_proved():
    proved_symmetry = symmetry(nn.Linear(3, 2), torch.zeros(2, 3))
    assert proved_symmetry.proved
    assert proved_symmetry.groups == {}


class Uncopied(Single):
    def __deepcopy__(self, memo):
        raise RuntimeError("holds a file")


def test_a_module_that_cannot_be_copied_is_refused():
    with pytest.raises(UnsupportedError, match="a copy of it does not run in float64 or float32"):
        symmetry(Uncopied(), torch.zeros(2, 3))
