"""Barriers, planes and diagnostics against closed forms, brute force and other libraries."""

from itertools import permutations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.stats import entropy
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from torch import nn

from consilience.networks.landscape.alignment import coupling_diagnostics, variance_collapse
from consilience.networks.landscape.barrier import barrier
from consilience.networks.landscape.evaluation import Classification
from consilience.networks.landscape.plane import plane
from tests.tolerances import FLAT_MINIMUM, ROUNDING, SINGLE_PRECISION

DIGITS = load_digits()
X, Y = DIGITS.data[:400] / 16.0, DIGITS.target[:400]


class Point(nn.Module):
    """A network that is nothing but its parameters."""

    def __init__(self, values):
        super().__init__()
        self.values = nn.Parameter(torch.tensor(np.asarray(values, dtype=np.float64)))


def along(function):
    """The evaluation of a function of the parameter vector."""
    return lambda net: {"loss": float(function(net.values.detach().numpy()))}


def linear(rng, scale=1.0):
    net = nn.Linear(64, 10).double()
    with torch.no_grad():
        net.weight.copy_(torch.from_numpy(scale * rng.normal(size=(10, 64))))
        net.bias.copy_(torch.from_numpy(scale * rng.normal(size=10)))
    return net


# -- Closed forms.


def test_between_two_bowls_the_barrier_is_what_their_formula_says():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 6))
    root = rng.normal(size=(6, 6))
    H = root @ root.T
    bowl = along(lambda w: min((w - a) @ H @ (w - a), (w - b) @ H @ (w - b)))
    curve = barrier(Point(a), Point(b), bowl, points=1001)
    depth = (b - a) @ H @ (b - a)
    # E(t) = depth min(t, 1-t)^2 between ends of zero: a quarter of the depth in the middle, and depth / 12 below.
    assert_allclose(curve.excess(), depth * np.minimum(curve.t, 1.0 - curve.t) ** 2, atol=depth * ROUNDING)
    assert_allclose((curve.height(), curve.height_over_maximum(), curve.height_over_mean()), depth / 4, rtol=ROUNDING)
    assert curve.peak() == 0.5
    assert_allclose(curve.area(), depth / 12, rtol=1e-5)  # trapezoids on steps h of 1e-3: relative error 2 h^2


def test_the_three_definitions_differ_as_their_formulas_say():
    # E(t) = 1 + 2 t + 12 t (1 - t): ends 1 and 3; excess 12 t (1 - t); the maximum 1 + 98 / 24 at t = 7 / 12.
    curve = barrier(Point([0.0]), Point([1.0]), along(lambda w: 1 + 2 * w[0] + 12 * w[0] * (1 - w[0])), points=13)
    top = 1.0 + 98.0 / 24.0
    assert_allclose(curve.height(), 3.0, rtol=ROUNDING)
    assert_allclose(curve.height_over_maximum(), top - 3.0, rtol=ROUNDING)
    assert_allclose(curve.height_over_mean(), top - 2.0, rtol=ROUNDING)
    assert_allclose(curve.midpoint(), 5.0, rtol=ROUNDING)


@pytest.mark.parametrize("points", [2, 5, 12])
def test_refining_finds_the_height_between_the_places_of_the_grid(points):
    # t^2 (1 - t) has its maximum 4/27 at 2/3.
    hill = along(lambda w: w[0] ** 2 * (1.0 - w[0]))
    fine = barrier(Point([0.0]), Point([1.0]), hill, points=points, refine=True)
    assert_allclose(fine.peak(), 2.0 / 3.0, atol=2.0 / (points - 1) * 0.618**9)
    # A maximum is flat: an error of d in its place is d^2 in its height, here at most 4e-5 for the coarsest grid.
    assert_allclose(fine.height(), 4.0 / 27.0, rtol=FLAT_MINIMUM * 30)


def test_a_quadratic_has_its_closed_form_in_a_plane():
    rng = np.random.default_rng(1)
    w = rng.normal(size=(4, 6))
    surface = plane(*map(Point, w[:3]), along(lambda p: p @ p), points=4, marked={"other": Point(w[3])})
    Q, R = np.linalg.qr(np.stack([w[2] - w[0], w[1] - w[0]], axis=1))
    u, v = (Q * np.sign(np.diag(R))).T
    x, y = np.meshgrid(surface.alphas * surface.dx, surface.betas * surface.dy)
    expected = np.sum((w[0] + x[..., None] * u + y[..., None] * v) ** 2, axis=-1)
    assert_allclose(surface.values["loss"], expected, rtol=10 * ROUNDING)
    assert_allclose((surface.dx, surface.dy), np.abs(np.diag(R)), rtol=ROUNDING)
    offset = w[3] - w[0]
    other = surface.markers[3]
    assert_allclose((other.alpha * surface.dx, other.beta * surface.dy), (offset @ u, offset @ v), rtol=10 * ROUNDING)
    assert_allclose(other.distance, np.linalg.norm(offset - Q @ (Q.T @ offset)), rtol=10 * ROUNDING)
    assert other.values["loss"] == w[3] @ w[3]


def test_convex_losses_have_no_barrier():
    rng = np.random.default_rng(2)
    data = torch.from_numpy(X)
    for _ in range(5):
        net_a, net_b = linear(rng), linear(rng)
        logistic = barrier(net_a, net_b, Classification(data, torch.from_numpy(Y)))
        assert logistic.height() <= ROUNDING
        targets = torch.from_numpy(rng.normal(size=(400, 10)))
        squares = barrier(net_a, net_b, lambda net, t=targets: {"loss": (net(data) - t).square().mean().item()})
        assert squares.height() <= ROUNDING
        assert 0.0 <= squares.area() <= ROUNDING  # what lies below the straight line does not count


# -- Brute force and other libraries.


def test_loss_and_error_are_those_of_scikit_learn():
    net = linear(np.random.default_rng(3), 0.3)
    scores = Classification(torch.from_numpy(X), torch.from_numpy(Y), batch_size=64)(net)
    logits = X @ net.weight.detach().numpy().T + net.bias.detach().numpy()
    probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    assert_allclose(scores["loss"], log_loss(Y, probabilities, labels=np.arange(10)), rtol=ROUNDING)
    assert_allclose(scores["error"], 100.0 * np.mean(logits.argmax(axis=1) != Y), rtol=ROUNDING)


def test_the_curve_between_two_perceptrons_is_that_of_numpy():
    rng = np.random.default_rng(4)
    shapes = [(20, 64), (20,), (10, 20), (10,)]
    ends = [[0.4 * rng.normal(size=shape) for shape in shapes] for _ in range(2)]

    def network(weights):
        net = nn.Sequential(nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10))
        with torch.no_grad():
            for parameter, weight in zip(net.parameters(), weights, strict=True):
                parameter.copy_(torch.from_numpy(weight))
        return net

    def loss(t):
        W1, b1, W2, b2 = ((1 - t) * p + t * q for p, q in zip(*ends, strict=True))
        logits = np.maximum(X @ W1.T + b1, 0.0) @ W2.T + b2
        return log_loss(Y, np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True), labels=np.arange(10))

    curve = barrier(*map(network, ends), Classification(X, Y, models_at_once=4), points=9)
    expected = np.array([loss(t) for t in curve.t])
    assert_allclose(curve.curve(), expected, rtol=100 * SINGLE_PRECISION)
    straight = (1 - curve.t) * expected[0] + curve.t * expected[-1]
    assert_allclose(curve.height(), np.max(expected - straight), rtol=100 * SINGLE_PRECISION)


def test_the_nearest_permutation_is_the_best_of_all():
    rng = np.random.default_rng(5)
    for _ in range(10):
        coupling = rng.dirichlet(np.full(25, 0.5)).reshape(5, 5)
        diagnostics = coupling_diagnostics(coupling)
        distances = {p: np.linalg.norm(5 * coupling - np.eye(5)[list(p)]) for p in permutations(range(5))}
        best = min(distances, key=distances.get)
        assert tuple(diagnostics.permutation) == best
        assert_allclose(diagnostics.distance, distances[best], rtol=ROUNDING)
        assert_allclose(diagnostics.off_permutation, 1.0 - coupling[range(5), best].sum(), rtol=ROUNDING)
        assert_allclose(diagnostics.entropy, entropy(coupling, axis=1), rtol=10 * ROUNDING)
        assert_allclose(diagnostics.row_error, max(abs(5 * row.sum() - 1) for row in coupling), rtol=ROUNDING)
        assert_allclose(
            diagnostics.column_error, max(abs(5 * column.sum() - 1) for column in coupling.T), rtol=ROUNDING
        )


def test_the_spread_that_is_left_is_that_of_numpy():
    rng = np.random.default_rng(6)
    W, V = rng.normal(size=(2, 3, 2, 2, 2))  # of two convolutions with 3 channels, 2 inputs, a 2 x 2 kernel
    images = rng.normal(size=(30, 2, 4, 4)) + 50.0  # far from zero, where sums of squares would cancel

    def network(kernel):
        net = nn.Sequential(nn.Conv2d(2, 3, 2, bias=False)).double()
        with torch.no_grad():
            net[0].weight.copy_(torch.from_numpy(kernel))
        return net

    def spread(kernel):
        windows = np.lib.stride_tricks.sliding_window_view(images, (2, 2), axis=(2, 3))
        return np.einsum("nixyab,oiab->onxy", windows, kernel).reshape(3, -1).std(axis=1).mean()

    for t in (0.5, 0.2):
        ratios = variance_collapse(network(W), network(V), torch.from_numpy(images), t=t, batch_size=7)
        expected = spread((1 - t) * W + t * V) / ((1 - t) * spread(W) + t * spread(V))
        assert_allclose(ratios["0"], expected, rtol=10 * ROUNDING)
