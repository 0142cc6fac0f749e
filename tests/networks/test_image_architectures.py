"""Blocks of well-known convolutional networks, mixers, sequences and graphs: their groups, and copies recovered."""

import numpy as np
import pytest
import torch

import consilience as cs
from tests.copies import COPIES
from tests.networks import image_nets

IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
NODES = torch.randn(5, 5, generator=torch.Generator().manual_seed(0))
INVERTED = {"stem": 8, "blocks.0.expand": 20, "blocks.0.squeeze.down": 6, "blocks.1.expand": 20,
            "blocks.1.squeeze.down": 6, "last": 12}  # fmt: skip
NETS = {
    "MobileNetV3": (image_nets.MobileNetV3, IMAGES, INVERTED),
    "EfficientNet": (image_nets.EfficientNet, IMAGES, INVERTED),
    "ConvNeXt": (image_nets.ConvNeXt, IMAGES, {"stem": 8, "blocks.0.up": 32, "blocks.1.up": 32}),
    "ShuffleNet": (image_nets.ShuffleNet, IMAGES, {"stem": 6, "first": 6}),
    "Mixer": (image_nets.Mixer, IMAGES, {"stem": 8, **{f"blocks.{n}.{what}.0": size for n in range(2)
                                                       for what, size in (("mix", 10), ("channels", 14))}}),
    "WaveNet": (image_nets.WaveNet, torch.randn(2, 2, 12), {"stem": 8, "filters.0": 10, "skips.0": 9, "filters.1": 10}),
    "graph, index_add": (image_nets.GraphConvolution, NODES, {"first": 7, "second": 6}),
    "graph, scatter_add": (lambda: image_nets.GraphConvolution("scatter_add"), NODES, {"first": 7, "second": 6}),
    "graph, scatter_reduce": (lambda: image_nets.GraphConvolution("scatter_reduce"), NODES, {"first": 7, "second": 6}),
    "graph attention": (image_nets.GraphAttention, NODES, {"heads": 2, "value": 8}),
}  # fmt: skip


def moved_from_the_start(make):
    """Return a network in evaluation mode whose arrays and statistics are not those that it began with."""
    torch.manual_seed(0)
    net = make().eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for name, buffer in net.named_buffers():
            if name.endswith("running_var"):
                buffer.mul_(1 + torch.rand_like(buffer))
            elif name.endswith("running_mean"):
                buffer.add_(0.1 * torch.randn_like(buffer))
    return net


def random_orders(symmetry):
    """Return a new order of the units of every group, and of those inside each unit of another."""
    rng, orders = np.random.default_rng(0), {}
    for name, group in symmetry.by_name.items():
        outer = range(1) if group.parent is None else orders[group.parent]
        orders[name] = np.concatenate([unit * group.size + rng.permutation(group.size) for unit in outer])
    return orders


@COPIES
@pytest.mark.parametrize("name", NETS)
def test_groups_are_found_proved_and_recovered(name):
    make, example, expected = NETS[name]
    net = moved_from_the_start(make)
    symmetry = cs.symmetry(net, example)
    assert symmetry.groups == expected
    assert symmetry.proved
    renumbered = cs.permute(net, symmetry, random_orders(symmetry))
    with torch.no_grad():
        before = net(example)
        for method in ("rebasin", "consensus"):
            options = {"refit": False} if method == "consensus" else {}
            fused = cs.fuse([net, renumbered], method, example=example, **options).model
            assert float((fused(example) - before).abs().max()) <= 1e-5 * float(before.std()), method


def test_a_symmetry_says_what_its_groups_are():
    def streams(net, example):
        return [name for name, role in cs.symmetry(net.eval(), example).roles.items() if role == "residual stream"]

    assert streams(image_nets.MobileNetV3(), IMAGES) == ["stem"]
    assert streams(image_nets.Mixer(), IMAGES) == ["stem"]
    assert streams(torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 2)), NODES) == []
    attention = cs.symmetry(image_nets.GraphAttention(), NODES)
    assert attention.roles == {"heads": "heads", "value": "values inside heads"}
    assert "stem 8 (residual stream)" in str(cs.symmetry(image_nets.Mixer().eval(), IMAGES))


def test_layers_of_a_network_that_takes_no_inputs_of_ours_are_not_refitted():
    nets = [moved_from_the_start(image_nets.GraphAttention) for _ in range(2)]
    with torch.no_grad():
        nets[1].layer.weight.add_(1.0)
    fusion = cs.fuse(nets, "consensus", example=NODES)
    assert "synthetic inputs: GraphAttention does not take" in fusion.details["refit"]
