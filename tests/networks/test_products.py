"""Layers whose product is written out: x W^T keeps the group of hidden units, however it is multiplied."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import consilience as cs
from consilience.networks.tracing.trace import trace
from tests.copies import COPIES
from tests.networks.fusable_nets import deviation, shuffled
from tests.tolerances import SINGLE_PRECISION

TRANSPOSES = {
    "t()": lambda w: w.t(),
    "T": lambda w: w.T,
    "mT": lambda w: w.mT,
    "H": lambda w: w.H,
    "mH": lambda w: w.mH,
    "adjoint": lambda w: w.adjoint(),
    "transpose": lambda w: w.transpose(0, 1),
    "transpose from the end": lambda w: torch.transpose(w, -1, -2),
    "swapaxes": lambda w: w.swapaxes(0, 1),
    "swapdims": lambda w: w.swapdims(1, 0),
    "permute": lambda w: w.permute(1, 0),
    "moveaxis": lambda w: w.moveaxis(0, 1),
    "movedim": lambda w: w.movedim(1, 0),
    "t().contiguous()": lambda w: w.t().contiguous(),
}

PRODUCTS = {
    **{f"x @ w.{name}": lambda x, w, transpose=transpose: x @ transpose(w) for name, transpose in TRANSPOSES.items()},
    "linear": F.linear,
    "mm": lambda x, w: torch.mm(x, w.t()),
    "matmul": lambda x, w: torch.matmul(x[:, None], w.mT)[:, 0],
    "linalg.matmul": lambda x, w: torch.linalg.matmul(x, w.mT),
    "(w @ x.T).T": lambda x, w: (w @ x.T).T,
    "bmm": lambda x, w: torch.bmm(x[None], w.t()[None])[0],
    "baddbmm": lambda x, w: torch.baddbmm(torch.zeros(1, 1, len(w)), x[None], w.t()[None])[0],
    "addmm": lambda x, w: torch.addmm(torch.zeros(len(w)), x, w.t()),
    "mv": lambda x, w: torch.stack([w.mv(row) for row in x]),
    "addmv": lambda x, w: torch.stack([torch.addmv(torch.zeros(len(w)), w, row) for row in x]),
    "einsum": lambda x, w: torch.einsum("ni,oi->no", x, w),
    "einsum with an ellipsis": lambda x, w: torch.einsum("...i,oi->...o", x, w),
    "einsum, implicit": lambda x, w: torch.einsum("az,bz", x, w),
    "inner": torch.inner,
    "tensordot": lambda x, w: torch.tensordot(x, w, dims=([1], [1])),
    "tensordot, one axis": lambda x, w: torch.tensordot(x, w.t(), dims=1),
    "multi_dot": lambda x, w: torch.linalg.multi_dot([torch.eye(len(x)), x, w.t()]),
    "vecdot": lambda x, w: torch.linalg.vecdot(x[:, None], w),
    "vecdot, first axis": lambda x, w: torch.linalg.vecdot(x.t()[..., None], w.t()[:, None], dim=0),
    "conv1d": lambda x, w: F.conv1d(x[..., None], w[..., None])[..., 0],
}
every_product = pytest.mark.parametrize("product", PRODUCTS.values(), ids=list(PRODUCTS))


class WrittenOut(nn.Module):
    """Two hidden layers of raw parameters: rows of a weight are the units that it makes."""

    def __init__(self, product, seed):
        super().__init__()
        self.product = product
        generator = torch.Generator().manual_seed(seed)
        shapes = {"first": (7, 4), "first_bias": (7,), "second": (6, 7), "second_bias": (6,), "last": (3, 6)}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape, generator=generator)))

    def forward(self, x):
        x = torch.relu(self.product(x, self.first) + self.first_bias)
        x = torch.relu(self.product(x, self.second) + self.second_bias)
        return self.product(x, self.last)


@every_product
def test_a_product_written_out_keeps_its_groups(product):
    module, inputs = WrittenOut(product, seed=0), torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    symmetry = cs.symmetry(module, example=inputs)
    assert symmetry.groups == {"first": 7, "second": 6}
    assert symmetry.proved
    assert all(note.startswith("proved in float32") for note in symmetry.notes)  # some add zeros of single precision
    assert [str(place) for place in symmetry.places("first")] == ["first axis 0", "first_bias axis 0", "second axis 1"]
    assert [str(place) for place in symmetry.places("second")] == ["second axis 0", "second_bias axis 0", "last axis 1"]
    assert [axis.side for axis in symmetry.layouts["second"].axes] == ["output", "input"]
    assert deviation(shuffled(module, symmetry, seed=2), module, inputs) < SINGLE_PRECISION


@COPIES
@pytest.mark.parametrize("name", ["x @ w.t()", "x @ w.T", "linear", "einsum", "inner", "tensordot", "multi_dot"])
def test_renumbered_copies_of_a_product_written_out_are_fused_to_the_same_function(name):
    module, inputs = WrittenOut(PRODUCTS[name], seed=3), torch.randn(5, 4, generator=torch.Generator().manual_seed(4))
    symmetry = cs.symmetry(module, example=inputs)
    copies = [module, *(shuffled(module, symmetry, seed) for seed in (5, 6))]
    assert not np.array_equal(copies[1].first.detach(), module.first.detach())
    for method in (None, "average", "rebasin"):
        change = deviation(cs.fuse(copies, method, symmetry=symmetry).model, module, inputs)
        assert (change < SINGLE_PRECISION) == (method != "average"), method


def test_a_sum_of_products_keeps_its_groups_at_their_widths():
    module = WrittenOut(lambda x, w: (x[:, None] * w).sum(-1), seed=7)
    symmetry = cs.symmetry(module, example=torch.randn(5, 4, generator=torch.Generator().manual_seed(8)))
    assert symmetry.groups == {"first": 7, "second": 6}
    assert not any(group.resizable for group in symmetry.all_groups)  # whether a factor makes or reads units stays open


def test_inner_products_with_a_number_scale_every_unit():
    class Scaled(WrittenOut):
        def forward(self, x):
            return super().forward(torch.inner(x, torch.tensor(2.0)))

    assert trace(Scaled(torch.inner, seed=9), torch.zeros(5, 4)).groups == {"first": 7, "second": 6}


def test_axes_multiplied_by_tensordot_stand_in_the_order_of_the_two_tensors():
    class Stacked(nn.Module):
        """The units of `made` are the axis that `read` names second, behind one that it multiplies with data."""

        def __init__(self):
            super().__init__()
            self.made = nn.Parameter(torch.randn(6, 4))
            self.read = nn.Parameter(torch.randn(2, 6, 5, 3))

        def forward(self, x):
            hidden = torch.relu(torch.tensordot(x, self.made, dims=([-1], [1])))  # (samples, positions, units)
            return torch.tensordot(hidden, self.read, dims=([2, 1], [1, 2]))  # (samples, 2, 3)

    module = Stacked()
    symmetry = cs.symmetry(module, example=torch.randn(7, 5, 4))
    assert module(torch.zeros(7, 5, 4)).shape == (7, 2, 3)
    assert symmetry.groups == {"made": 6}
    assert [str(place) for place in symmetry.places("made")] == ["made axis 0", "read axis 1"]
