"""Names of entries: prefixes of wrappers are left out, bookkeeping that only some have is completed or left out."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import consilience as cs
from consilience.networks.entry_names import common_names, is_bookkeeping
from tests.copies import COPIES

PREFIXES = ["module.", "_orig_mod.", "model.", "bert.", "transformer.", "module._orig_mod.", "_forward_module.model."]
SHAPES = {"a.weight": (2, 3), "a.bias": (2,), "b.weight": (3, 2)}


def prefixed(prefix, names=SHAPES):
    return {f"{prefix}{name}": shape for name, shape in names.items()}


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("first", [True, False])
def test_a_prefix_of_one_checkpoint_is_left_out_and_said(prefix, first):
    pair = [prefixed(prefix), SHAPES] if first else [SHAPES, prefixed(prefix)]
    found = common_names(pair, ["a", "b"])
    assert [set(one) for one in found.own_names] == [set(SHAPES)] * 2
    assert found.notes == (f"{'a' if first else 'b'}: names without the prefix {prefix!r}",)
    assert not found.problems


def test_a_prefix_of_all_checkpoints_stays():
    pair = [prefixed("model.")] * 2
    assert [dict(one) for one in common_names(pair, ["a", "b"]).own_names] == [{name: name for name in pair[0]}] * 2


def test_parts_of_wrappers_inside_of_names_are_left_out():
    inside = {"a._orig_mod.weight": (2, 3), "a.module.bias": (2,), "b._checkpoint_wrapped_module.weight": (3, 2)}
    assert set(common_names([inside, SHAPES], ["a", "b"]).own_names[0]) == set(SHAPES)


def test_names_that_would_collide_stay():
    twice = {"a.module.weight": (2,), "a.weight": (2,)}
    assert set(common_names([twice], ["a"], {"a.weight"}).own_names[0]) == set(twice)


@pytest.mark.parametrize("order", [1, -1])
def test_a_prefix_of_a_part_of_the_names_is_the_reason(order):
    whole = prefixed("bert.") | {"cls.weight": (2, 2)}
    found = common_names([whole, SHAPES][::order], ["a", "b"])
    (problem,) = found.problems
    assert "the prefix 'bert.'" in problem
    assert "without it cls.weight would still differ" in problem


def test_other_names_are_no_prefix():
    found = common_names([{"x.weight": (2,), "x.bias": (2,)}, SHAPES], ["a", "b"])
    assert not found.problems
    assert not found.notes


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("bn.num_batches_tracked", (), True),
        ("h.0.attn.bias", (1, 1, 8, 8), True),
        ("h.0.attn.bias", (8,), False),
        ("h.0.attn.masked_bias", (), True),
        ("rotary.inv_freq", (4,), True),
        ("weight", (4,), False),
    ],
)
def test_bookkeeping_is_known_by_name_and_shape(name, shape, expected):
    assert is_bookkeeping(name, shape) is expected


def norm_net():
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))


@pytest.mark.parametrize("without", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("has_module", [True, False])
def test_a_counter_that_not_all_have_keeps_nothing_apart(without, has_module):
    states = [norm_net().state_dict() for _ in range(2)]
    for number, state in enumerate(states):
        state["1.num_batches_tracked"] = torch.tensor(number + 5)
        if number in without:
            del state["1.num_batches_tracked"]
    if has_module:
        fusion = cs.fuse(states, "average", module=norm_net, example=torch.randn(3, 5))
        remaining = [number + 5 for number in range(2) if number not in without]
        assert int(fusion.model[1].num_batches_tracked) == max(remaining, default=0)
        assert any("bookkeeping that not all networks have, completed" in note for note in fusion.notes)
    else:
        fusion = cs.fuse(states, "average")
        assert "1.num_batches_tracked" not in fusion.model
        assert (len(without) == 2) == (not fusion.notes)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("has_module", [True, False])
def test_state_dicts_under_a_prefix_are_fused(prefix, has_module):
    state = norm_net().state_dict()
    wrapped = {f"{prefix}{name}": values for name, values in state.items()}
    options = {"module": norm_net, "example": torch.randn(3, 5)} if has_module else {}
    fusion = cs.fuse([wrapped, state], "average", **options)
    found = fusion.model.state_dict() if has_module else fusion.model
    assert all(torch.equal(found[name], values) for name, values in state.items())
    assert f"model 0: names without the prefix {prefix!r}" in fusion.notes


@COPIES
@pytest.mark.parametrize("has_module", [True, False])
def test_state_dicts_of_parametrised_layers_under_a_prefix_are_fused(has_module):
    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)))

    state = make().state_dict()
    wrapped = {f"module.{name}": values for name, values in state.items()}
    fusion = cs.fuse(
        [wrapped, state], "average", **({"module": make, "example": torch.randn(3, 5)} if has_module else {})
    )
    found = fusion.model.state_dict() if has_module else fusion.model
    assert all(torch.allclose(found[name], values) for name, values in state.items())
    assert "model 0: names without the prefix 'module.'" in fusion.notes


class Wrapper(nn.Module):
    """A module around a network, as a trainer has it."""

    def __init__(self):
        super().__init__()
        self.model = norm_net()


def test_a_module_around_the_network_of_another_site_is_refused_by_its_prefix():
    with pytest.raises(
        cs.errors.InputError, match=r"model 1: its names have the prefix 'model\.'.*give the network inside"
    ):
        cs.fuse([norm_net(), Wrapper()], "average")


@COPIES
def test_extra_state_in_files_is_left_out(tmp_path):
    paths = [tmp_path / f"{number}.safetensors" for number in (2, 4)]
    for number, path in zip((2, 4), paths, strict=True):
        save_file({"w": torch.ones(2), "l._extra_state": torch.ones(number, dtype=torch.uint8)}, path)
    fusion = cs.fuse(paths, "average")
    assert set(fusion.model) == {"w"}
    assert any("_extra_state: extra state has no mean" in note for note in fusion.notes)


def test_a_prefix_with_more_than_it_is_the_reason_of_the_refusal():
    state = norm_net().state_dict()
    wrapped = {f"bert.{name}": values for name, values in state.items()} | {"cls.weight": torch.ones(2)}
    with pytest.raises(cs.errors.InputError, match=r"prefix 'bert\.'.*cls\.weight would still differ") as caught:
        cs.fuse([state, wrapped], "average")
    assert len(caught.value.problems) == 1
