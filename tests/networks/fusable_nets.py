"""Networks to be fused by the tests: those of the zoo with renumbered copies, and dense ones given as pairs (W, b)."""

import itertools
from functools import cache

import numpy as np
import torch
from torch import nn

import consilience as cs
from tests.networks.zoo import ZOO

# -- Of the zoo.


@cache
def proved(name):
    """Return a network of the zoo, its example and its proved symmetry; made once for all tests, never changed."""
    module, inputs = ZOO[name].module(), ZOO[name].inputs()
    return module, inputs, cs.symmetry(module, inputs)


def siblings(name, number=3):
    """Return networks of one architecture with nothing in common."""
    return [ZOO[name].module(seed) for seed in range(number)]


def random_orders(symmetry, rng, units=None):
    """Return a random order of the units of every group, those inside others following them."""
    units = units or symmetry.groups
    orders = {}
    for group in sorted(symmetry.all_groups, key=lambda group: group.parent is not None):
        if group.parent is None:
            orders[group.name] = rng.permutation(units[group.name])
        else:
            outer = orders[group.parent]
            size = units[group.name] // len(outer)
            orders[group.name] = np.concatenate([unit * size + rng.permutation(size) for unit in outer])
    return orders


def shuffled(module, symmetry, seed, units=None):
    """Return the same function with all units in a random order."""
    return cs.permute(module, symmetry, random_orders(symmetry, np.random.default_rng(seed), units))


def outputs(module, inputs):
    """Return all outputs of a module in one row."""

    def flat(output):
        if isinstance(output, torch.Tensor):
            return [output]
        return [tensor for item in (output.values() if isinstance(output, dict) else output) for tensor in flat(item)]

    with torch.no_grad():
        result = module(**inputs) if isinstance(inputs, dict) else module(inputs)
    return np.concatenate([tensor.double().numpy().ravel() for tensor in flat(result)])


def deviation(model, other, inputs):
    """Return the largest difference of two modules' outputs, relative to the largest output."""
    expected = outputs(other, inputs)
    return np.abs(outputs(model, inputs) - expected).max() / np.abs(expected).max()


def raw(arrays):
    """Return the bytes of arrays by name."""
    return {key: value.contiguous().view(torch.uint8).numpy().tobytes() if value.ndim else value.item()
            for key, value in arrays.items()}  # fmt: skip


# -- Layers.


def dense_net(layers, activation=nn.ReLU):
    """Return a module in double precision from pairs (W, b); b may be None."""
    parts = []
    for number, (weight, bias) in enumerate(layers):
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=torch.float64)
        with torch.no_grad():
            linear.weight.copy_(torch.tensor(weight))
            if bias is not None:
                linear.bias.copy_(torch.tensor(bias))
        parts += [linear, activation()] if number < len(layers) - 1 else [linear]
    return nn.Sequential(*parts).eval()


def random_layers(widths, rng, bias=True):
    """Return pairs (W, b) of a network with these widths, inputs first."""
    return [
        (rng.normal(size=(out, into)), rng.normal(size=out) if bias else None)
        for into, out in itertools.pairwise(widths)
    ]


def layers_of(module):
    """Return the pairs (W, b) of a module made by `dense_net`."""
    linear = [layer for layer in module if isinstance(layer, nn.Linear)]
    return [
        (layer.weight.detach().numpy().copy(), None if layer.bias is None else layer.bias.detach().numpy().copy())
        for layer in linear
    ]


def deep_names(layers):
    """Return the groups of a module made by `dense_net`."""
    return [str(2 * number) for number in range(len(layers) - 1)]


SYMMETRY = {}


def symmetry_of_layers(module):
    """Return the proved symmetry of a network made by `dense_net`; traced once for every depth."""
    parts = (len(module), module[0].bias is None, module[0].in_features, module[-1].out_features)
    if parts not in SYMMETRY:
        SYMMETRY[parts] = cs.symmetry(module, torch.zeros(2, module[0].in_features, dtype=torch.float64))
    return SYMMETRY[parts]


def fused_layers(models, method, **options):
    """Return the fusion of networks given as layers."""
    modules = [dense_net(layers) for layers in models]
    return cs.fuse(modules, method=method, symmetry=symmetry_of_layers(modules[0]), **options)


def drawn_layers(widths, number, seed=0, bias=True):
    rng = np.random.default_rng(seed)
    return [random_layers(sizes, rng, bias) for sizes in (widths if isinstance(widths, list) else [widths] * number)]


def assert_layers(layers, expected, tolerance=1e-9):
    for (weight, bias), (value, other) in zip(layers, expected, strict=True):
        np.testing.assert_allclose(weight, value, rtol=0, atol=tolerance)
        if bias is not None:
            np.testing.assert_allclose(bias, other, rtol=0, atol=tolerance)


def coupling_of(transport):
    """Return the plan (k_new, k_old) of a transport."""
    if hasattr(transport, "coupling"):
        return transport.coupling
    plan = np.zeros((transport.width, len(transport.labels)))
    plan[transport.labels, np.arange(len(transport.labels))] = 1 / transport.width
    return plan
