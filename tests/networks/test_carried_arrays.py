"""Entries of state dicts that are not real numbers: averaged as what they are, carried over, or refused by name."""

import pytest
import torch
from torch import nn

import consilience as cs
from tests.copies import COPIES
from tests.networks.state_dicts import CONSTANTS, ENTRIES, INF, NAN, same_bits, state

ROBUST = [None, "median", "trim", True]
every_kind = pytest.mark.parametrize("kind", ENTRIES)


def fused(states, **options):
    return {key: torch.as_tensor(values) for key, values in cs.fuse(states, "average", **options).model.items()}


@COPIES
@every_kind
@pytest.mark.parametrize("robust", ROBUST, ids=str)
def test_copies_of_a_network_fuse_to_it_to_the_bit(kind, robust):
    one = state(kind, 0)
    count = 2 if robust is None else 5
    found = fused([{key: v.clone() for key, v in one.items()} for _ in range(count)], robust=robust)
    assert found.keys() == one.keys()
    exact = robust is None
    for key, values in one.items():
        close = same_bits(found[key], values) or (not exact and torch.allclose(found[key], values, rtol=1e-6))
        assert close, (kind, key)


@every_kind
def test_the_order_of_networks_changes_nothing(kind):
    states = [state(kind, seed) for seed in range(3)]
    first, last = fused(states), fused(states[::-1])
    assert all(same_bits(values, last[key]) for key, values in first.items())


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 3, 1, 2)])
def test_complex_tensors_are_averaged_as_complex_numbers(dtype, shape):
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, dtype=dtype, generator=draw) for _ in range(2))
    found = fused([{"w": a}, {"w": b}], weights=[3, 1])["w"]
    assert found.dtype == dtype
    torch.testing.assert_close(found, 0.75 * a + 0.25 * b)


class ComplexNet(nn.Module):
    """Two complex layers; magnitudes out."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(5, 7, dtype=torch.cfloat), nn.Linear(7, 3, dtype=torch.cfloat)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x.to(self.hidden.weight.dtype)))).abs()


@COPIES
@pytest.mark.parametrize("method", ["rebasin", "ot", "wb", "fedma", "consensus"])
def test_units_of_complex_networks_are_matched(method):
    torch.manual_seed(0)
    net, x = ComplexNet().eval(), torch.randn(6, 5)
    renumbered = cs.permute(net, cs.symmetry(net, x), {"hidden": [3, 1, 0, 2, 6, 5, 4]})
    fusion = cs.fuse([net, renumbered], method, example=x)
    torch.testing.assert_close(fusion.model(x), net(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["truth values", "indices", "small integers"])
def test_integers_and_truth_values_that_differ_are_refused_by_name(name):
    states = [{"w": torch.ones(2), "entry": CONSTANTS[name]}, {"w": torch.ones(2), "entry": CONSTANTS[name].flip(-1)}]
    with pytest.raises(
        cs.errors.InputError, match=r"model 1: array entry \(.*\) is not the same as in model 0.*dequantise"
    ):
        cs.fuse(states, "average")


def test_integers_of_other_types_that_are_equal_pass():
    states = [{"w": torch.ones(2), "ids": torch.arange(3)}, {"w": torch.ones(2), "ids": torch.arange(3).int()}]
    assert fused(states)["ids"].tolist() == [0, 1, 2]


@COPIES
def test_eight_bit_floats_are_carried_over_or_refused():
    states = [{"w": torch.ones(2), "f": torch.tensor([v, 2.0]).to(torch.float8_e4m3fn)} for v in (1.0, 1.0, 3.0)]
    assert fused(states[:2])["f"].float().tolist() == [1.0, 2.0]
    with pytest.raises(cs.errors.InputError, match="float8_e4m3fn"):
        cs.fuse(states[1:], "average")


def test_real_and_complex_do_not_mix():
    with pytest.raises(cs.errors.InputError, match="array w holds complex64, but float32 in model 0"):
        cs.fuse([{"w": torch.ones(2)}, {"w": torch.ones(2, dtype=torch.cfloat)}], "average")


@COPIES
@pytest.mark.parametrize("counts", [(3, 9), (9, 3)])
def test_counters_take_the_largest(counts):
    states = [{"bn.weight": torch.ones(2), "bn.num_batches_tracked": torch.tensor(count)} for count in counts]
    assert int(fused(states)["bn.num_batches_tracked"]) == 9


@pytest.mark.parametrize("values", [[0.0, -INF], [1.0, NAN], [2.0, INF]])
def test_infinities_that_differ_are_refused(values):
    states = [{"w": torch.ones(2), "mask": torch.tensor(one)} for one in (values, values[::-1])]
    with pytest.raises(cs.errors.InputError, match=r"array mask has NaN or infinite values.*E-NUMBER"):
        cs.fuse(states, "average")


class Masked(nn.Module):
    """Attention with a causal mask as a buffer."""

    def __init__(self):
        super().__init__()
        self.attention, self.out = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)
        self.register_buffer("mask", torch.triu(torch.full((3, 3), -INF), 1))

    def forward(self, x):
        return self.out(self.attention(x, x, x, attn_mask=self.mask, need_weights=False)[0]).mean(dim=1)


def masked(seed):
    torch.manual_seed(seed)
    return Masked().eval()


@pytest.mark.parametrize("method", ["average", "rebasin", "consensus", "wb"])
def test_a_causal_mask_comes_out_as_it_was(method):
    x = torch.randn(5, 3, 4)
    model = cs.fuse([masked(0), masked(1)], method, example=x).model
    assert torch.equal(model.mask, masked(0).mask)
    assert torch.isfinite(model(x)).all()


class Pruned(nn.Module):
    """A layer of which a mask keeps some units."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(5, 6), nn.Linear(6, 3)
        self.register_buffer("keep", torch.tensor([True] * 3 + [False] * 3))

    def forward(self, x):
        return self.out(torch.relu(self.hidden(x)) * self.keep)


@COPIES
def test_a_mask_over_units_is_refused_where_units_go_elsewhere():
    torch.manual_seed(0)
    net, other, x = Pruned().eval(), Pruned().eval(), torch.randn(5, 5)
    assert cs.fuse([net, net], "rebasin", example=x).model.keep.tolist() == [True] * 3 + [False] * 3
    order = [5, 4, 3, 2, 1, 0]
    with torch.no_grad():  # the units of the first in another order, but for the mask
        for name, values in net.state_dict().items():
            moved = {"hidden": lambda v: v[order], "out": lambda v: v[:, order] if v.ndim > 1 else v}
            if name != "keep":
                other.state_dict()[name].copy_(moved[name.partition(".")[0]](values))
    with pytest.raises(cs.errors.InputError, match=r"mask keep is not that of model . once the units are matched"):
        cs.fuse([net, other], "rebasin", example=x)


def test_masks_with_infinities_are_described_saved_and_read(tmp_path):
    x = torch.randn(120, 3, 4)
    for number in (0, 1):
        cs.save(masked(number), tmp_path / f"{number}.safetensors", data=(x, torch.arange(120) % 3), example=x[:2])
    files = [tmp_path / f"{number}.safetensors" for number in (0, 1)]
    assert torch.equal(torch.as_tensor(cs.load(files[0]).arrays["mask"]), masked(0).mask)
    assert torch.equal(torch.as_tensor(cs.fuse(files, "average").model["mask"]), masked(0).mask)


@pytest.mark.parametrize("entry", ["out.weight", "attention.in_proj_bias"])
def test_parameters_that_are_not_finite_are_refused_where_a_network_is_described(entry):
    net = masked(0)
    with torch.no_grad():
        net.get_parameter(entry)[0] = INF
    with pytest.raises(cs.errors.InputError, match=f"array {entry} has NaN or infinite values"):
        cs.describe(net, example=torch.randn(2, 3, 4), n_observations=10)


def half_net(dtype, seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(5, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3))
    net(torch.randn(64, 5) * 2)
    return net.eval().to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("method", [None, "average", "consensus", "rebasin", "ot", "wb", "gwb", "fedma"])
def test_networks_of_sixteen_bits_with_batch_normalisation_are_fused(dtype, method):
    x = torch.randn(4, 5).to(dtype)
    options = {"steps": 2} if method is None else {}
    model = cs.fuse([half_net(dtype, 0), half_net(dtype, 1)], method, example=x, **options).model
    assert {values.dtype for values in model.parameters()} == {dtype}
    assert torch.isfinite(model(x)).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_networks_of_sixteen_bits_are_described_informed_and_evaluated(dtype):
    x, y = torch.randn(120, 5).to(dtype), torch.arange(120) % 3
    nets = [half_net(dtype, seed) for seed in (0, 1)]
    described = [cs.describe(net, data=(x, y), classes=3) for net in nets]
    assert cs.fuse(described, "average").verdict.text
    information = [cs.fisher(net, [(x, y)], minimum=5) for net in nets]
    assert cs.fuse(nets, "fisher", fishers=information).model(x).dtype == dtype
    assert cs.evaluate(*nets, x, y)


def test_fisher_information_of_complex_networks_is_refused_in_one_line():
    with pytest.raises(cs.errors.UnsupportedError, match=r"parameter hidden.weight is complex"):
        cs.fisher(ComplexNet(), [(torch.randn(120, 5), torch.arange(120) % 3)])
