"""Small Bayesian networks for the tests, and what they are as plain arrays.

A network is a list of layers (M, V, m, v): means and variances of the weights (out, into), and of the biases (out,),
inputs first. Nothing here matches, averages or learns, so that oracles can be built upon it.
"""

import functools
import itertools

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import consilience as cs

EXAMPLE_ROWS = 5


def example(layers):
    """Return inputs that a network takes."""
    rng = np.random.default_rng(99)
    return torch.tensor(rng.normal(size=(EXAMPLE_ROWS, layers[0][0].shape[1])))


def random_layers(widths, rng, spread=(0.2, 2.0), size=1.0):
    """Return layers of random means and variances with these widths, inputs first."""
    return [
        (
            size * rng.normal(size=(out, into)),
            rng.uniform(*spread, size=(out, into)),
            size * rng.normal(size=out),
            rng.uniform(*spread, size=out),
        )
        for into, out in itertools.pairwise(widths)
    ]


def network(layers, activation=nn.Tanh, **fields):
    """Return the Bayesian network of these layers, in double precision."""
    parts, means, variances = [], {}, {}
    for number, (mean, variance, bias, bias_variance) in enumerate(layers):
        parts.append(nn.Linear(mean.shape[1], mean.shape[0], dtype=torch.float64))
        parts.append(activation())
        name = str(2 * number)
        means |= {f"{name}.weight": torch.tensor(mean), f"{name}.bias": torch.tensor(bias)}
        variances |= {f"{name}.weight": torch.tensor(variance), f"{name}.bias": torch.tensor(bias_variance)}
    return cs.BayesianNetwork(nn.Sequential(*parts[:-1]), means, variances, **fields)


@functools.cache
def _traced(widths):
    layers = random_layers(widths, np.random.default_rng(0))
    return cs.symmetry(network(layers).module, example(layers))


def symmetry_of(layers):
    """Return the symmetry of networks of these widths; traced and proved once for all tests."""
    return _traced((layers[0][0].shape[1], *(len(layer[0]) for layer in layers)))


def layers_of(bnn):
    """Return the layers of a network of `network`, or of one that was fused from such."""
    names = sorted({key.partition(".")[0] for key in bnn.means}, key=int)
    return [
        tuple(
            np.asarray(array[f"{name}.{kind}"], dtype=float)
            for kind, array in itertools.product(("weight", "bias"), (bnn.means, bnn.variances))
        )
        for name in names
    ]


def permuted(layers, orders):
    """Return the same posterior with the units of hidden layer l in another order: new unit i is old orders[l][i]."""
    moved = [list(layer) for layer in layers]
    for number, order in enumerate(orders):
        moved[number] = [array[order] for array in moved[number]]
        moved[number + 1][:2] = [array[:, order] for array in moved[number + 1][:2]]
    return [tuple(layer) for layer in moved]


def shuffled(layers, rng):
    """Return the same posterior with all hidden units in a random order."""
    return permuted(layers, [rng.permutation(len(layer[0])) for layer in layers[:-1]])


def mean_logits(layers, inputs, activation=np.tanh):
    """Return what the network answers with its mean weights (n, classes)."""
    values = np.asarray(inputs, dtype=float)
    for number, (mean, _, bias, _) in enumerate(layers):
        values = values @ mean.T + bias
        if number < len(layers) - 1:
            values = activation(values)
    return values


def unit_vectors(layers, hidden=0):
    """Return means and variances (units, into + 1 + out) of a hidden layer's units: incoming, bias, outgoing."""
    mean, variance, bias, bias_variance = layers[hidden]
    after, after_variance = layers[hidden + 1][:2]
    return np.column_stack([mean, bias, after.T]), np.column_stack([variance, bias_variance, after_variance.T])


def assert_layers(found, expected, rtol=1e-12, atol=1e-12):
    """Assert that two networks are the same numbers."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


@functools.cache
def digits():
    """Return images (n, 64) from 0 to 1 and labels of scikit-learn's digits, shuffled."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return images[order] / 16, labels[order]


class Centred(nn.Module):
    """Has a buffer."""

    def __init__(self, middle):
        super().__init__()
        self.register_buffer("middle", torch.full((6,), float(middle)))
        self.net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))

    def forward(self, x):
        return self.net(x - self.middle)


class Twice(nn.Module):
    """Calls a layer twice."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.relu(self.inner(torch.relu(self.inner(x)))))
