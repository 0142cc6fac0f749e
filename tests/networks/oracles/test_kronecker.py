"""Kronecker factors and merges by them against gradients of single observations and dense matrices.

Factors are loops over observations, positions and classes, gradients at the outputs of layers are autograd's, the merge
of a layer is one linear system of np.kron matrices; nothing of it is shared with the library.
"""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import consilience as cs
from consilience.core.progress import silent
from consilience.networks.methods.fisher.kronecker_quadratic import LayerQuadratic
from tests.tolerances import SINGLE_PRECISION

# Conjugate gradients are asked for a residual of 1e-13; what they solve has conditions below 1e4.
SOLVED = 1e-9
INDEFINITE = 1e-8
"""Differences where a factor of class probabilities is indefinite by the rounding of some kernels."""


def drawn(module, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for values in module.parameters():
            values.data = 0.5 * torch.randn_like(values)
    return module.double().eval()


def linear_net():
    return drawn(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3, bias=False)))


def convolutional_net():
    return drawn(
        nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1, stride=2), nn.Tanh(), nn.Conv2d(4, 6, 2, groups=2), nn.Tanh(),
            nn.Flatten(), nn.Linear(24, 3),
        )
    )  # fmt: skip


def sequence_net():
    return drawn(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Conv1d(5, 2, 1), nn.Flatten(), nn.Linear(8, 3)))


NETS = {
    "linear": (linear_net, (3,)),
    "convolutions, one grouped": (convolutional_net, (2, 5, 5)),
    "positions": (sequence_net, (5, 3)),
}


def rows(shape, number=60, seed=3):
    return torch.randn(number, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def patches(layer, x):
    """Return what a layer multiplies, one position after another, by group: [(T, d)]; written with loops."""
    if isinstance(layer, nn.Linear):
        return [x.reshape(-1, x.shape[-1])]
    padded = torch.nn.functional.pad(x, [p for size in reversed(layer.padding) for p in (size, size)])[0]
    per_group = padded.shape[0] // layer.groups
    found = []
    for group in range(layer.groups):
        channels = padded[group * per_group : (group + 1) * per_group]
        counts = [(n - k) // s + 1 for n, k, s in zip(channels.shape[1:], layer.kernel_size, layer.stride, strict=True)]
        of_group = []
        for place in np.ndindex(*counts):
            window = tuple(
                slice(i * s, i * s + k) for i, k, s in zip(place, layer.kernel_size, layer.stride, strict=True)
            )
            of_group.append(channels[(slice(None), *window)].reshape(-1))
        found.append(torch.stack(of_group))
    return found


def recorder(path, read, answered):
    def hook(_, arguments, output):
        read[path], answered[path] = arguments[0], output

    return hook


def brute_force(net, inputs, likelihood, noise):
    """Return {path: (A, B)} of every layer with weights, one observation and outcome after another."""
    layers = {path: part for path, part in net.named_modules() if hasattr(part, "weight")}
    sums = {}
    for x in inputs:
        read, answered = {}, {}
        hooks = [part.register_forward_hook(recorder(path, read, answered)) for path, part in layers.items()]
        outputs = net(x[None])
        for hook in hooks:
            hook.remove()
        logs = outputs[0].log_softmax(0)
        for outcome in range(len(logs)):
            weight = logs[outcome].exp().item() if likelihood == "categorical" else 1.0
            value = logs[outcome] if likelihood == "categorical" else outputs[0, outcome] / noise
            gradients = torch.autograd.grad(value, list(answered.values()), retain_graph=True)
            for path, gradient in zip(answered, gradients, strict=True):
                layer = layers[path]
                groups = getattr(layer, "groups", 1)
                if isinstance(layer, nn.Linear):
                    g = gradient.reshape(1, -1, gradient.shape[-1])
                else:
                    g = gradient[0].reshape(groups, gradient.shape[1] // groups, -1).transpose(1, 2)
                a = patches(layer, read[path].detach())
                if layer.bias is not None:
                    a = [torch.cat([one, torch.ones(len(one), 1, dtype=one.dtype)], dim=1) for one in a]
                if path not in sums:
                    sums[path] = [0.0, 0.0, 0]
                if outcome == 0:
                    sums[path][0] += np.stack([sum(np.outer(row, row) for row in one.numpy()) for one in a])
                    sums[path][2] += g.shape[1]
                sums[path][1] += weight * np.stack([sum(np.outer(row, row) for row in one.numpy()) for one in g])
    return {path: (A / len(inputs), B / positions) for path, (A, B, positions) in sums.items()}


@pytest.mark.parametrize(("likelihood", "noise"), [("categorical", 1.0), ("gaussian", 0.7)])
@pytest.mark.parametrize("name", NETS)
def test_factors_are_those_of_gradients_of_single_observations(name, likelihood, noise):
    make, shape = NETS[name]
    net, inputs = make(), rows(shape)
    information = cs.fisher(net, list(inputs.split(25)), "kronecker", likelihood, noise=noise, minimum=1)
    expected = brute_force(net, inputs, likelihood, noise)
    assert set(information.layers) == set(expected)
    for path, (A, B) in expected.items():
        found = information.layers[path]
        assert not information.residual
        for values, brute in ((found.inputs, A), (found.outputs, B)):
            np.testing.assert_allclose(values, brute, atol=SINGLE_PRECISION * np.abs(brute).max(), rtol=0, err_msg=path)


def test_of_one_observation_the_factors_are_the_whole_information():
    net, x = linear_net(), rows((3,), 1)
    with pytest.warns(cs.errors.WithheldWarning):  # of so few only diagonals leave, which is what is compared
        information = cs.fisher(net, x, "kronecker", minimum=1)
    diagonal = cs.fisher(net, x, minimum=1).diagonal
    for name, values in information.diagonal.items():
        np.testing.assert_allclose(values, diagonal[name].numpy(), rtol=1e-5)


def drawn_problem(seed, n_sites=3, groups=2, o=3, d=4):
    rng = np.random.default_rng(seed)

    def moments(size):
        roots = rng.normal(size=(n_sites, groups, size, size + 2))
        return roots @ roots.transpose(0, 1, 3, 2) / size

    weights = rng.dirichlet(np.ones(n_sites))
    return LayerQuadratic(weights, rng.normal(size=(n_sites, groups, o, d)), moments(d), moments(o))


def dense_solution(problem, start, damping):
    """Return the minimiser by one system for each group, of Kronecker products of whole matrices."""
    _, groups, o, d = problem.means.shape
    traces = sum(
        p * np.trace(problem.inputs[j, g]) * np.trace(problem.outputs[j, g])
        for j, p in enumerate(problem.weights)
        for g in range(groups)
    )
    mu = damping * traces / (groups * o * d)
    solved = []
    for g in range(groups):
        matrix, target = mu * np.eye(o * d), mu * start[g].ravel()
        for j, p in enumerate(problem.weights):
            information = p * np.kron(problem.outputs[j, g], problem.inputs[j, g])  # rows of W one after another
            matrix = matrix + information
            target = target + information @ problem.means[j, g].ravel()
        solved.append(np.linalg.solve(matrix, target).reshape(o, d))
    return np.stack(solved)


@pytest.mark.parametrize("damping", [0.01, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("seed", range(3))
def test_conjugate_gradients_give_the_dense_kronecker_solution(damping, seed):
    problem = drawn_problem(seed)
    start = np.random.default_rng(seed + 10).normal(size=problem.means.shape[1:])
    found = problem.minimise(start, damping, 1e-13, 2000, silent)
    assert found.converged
    np.testing.assert_allclose(found.x, dense_solution(problem, start, damping), atol=SOLVED, rtol=SOLVED)


def test_the_quadratic_and_its_gradient_are_those_of_whole_matrices():
    problem = drawn_problem(5, groups=1)
    matrix = np.random.default_rng(0).normal(size=problem.means.shape[1:])

    def value(of):
        steps = [(of[0] - mean[0]).ravel() for mean in problem.means]
        whole = [np.kron(B[0], A[0]) for A, B in zip(problem.inputs, problem.outputs, strict=True)]
        return 0.5 * sum(p * s @ F @ s for p, s, F in zip(problem.weights, steps, whole, strict=True))

    found, gradient = problem.value_and_gradient(matrix)
    np.testing.assert_allclose(found, value(matrix), rtol=1e-12)
    for index in np.ndindex(*matrix.shape):
        step = np.zeros_like(matrix)
        step[index] = 1e-5
        difference = (value(matrix + step) - value(matrix - step)) / 2e-5
        np.testing.assert_allclose(gradient[index], difference, rtol=1e-6, atol=1e-8)


def test_the_expected_increase_is_never_negative_and_zero_where_all_sites_agree():
    problem = drawn_problem(7)
    for mean in problem.means:
        assert problem.value(mean) > 0
    same = LayerQuadratic(problem.weights, np.stack([problem.means[0]] * 3), problem.inputs, problem.outputs)
    assert same.value(same.average) == 0
    np.testing.assert_array_equal(same.average, problem.means[0])


def sites(number=3):
    """Return networks of one start with a bias, grouped and plain convolutions, and what is known of them."""
    base = convolutional_net()
    nets = []
    for seed in range(number):
        net = copy.deepcopy(base)
        for values, step in zip(net.parameters(), drawn(convolutional_net(), seed + 5).parameters(), strict=True):
            values.data += 0.2 * step
        nets.append(net)
    return nets, [cs.fisher(net, rows((2, 5, 5), 120, seed), "kronecker", minimum=1) for seed, net in enumerate(nets)]


def test_a_merge_of_networks_is_the_dense_solution_of_every_layer():
    nets, infos = sites()
    weights = [0.5, 0.3, 0.2]
    fused = cs.fuse(nets, "kfac", damping=0.1, tolerance=1e-13, fishers=infos, weights=weights).model
    for path, factors in infos[0].layers.items():
        layers = [net.get_submodule(path) for net in nets]
        means = [
            np.concatenate(
                [layer.weight.detach().numpy().reshape(*factors.sizes[:2], -1),
                 layer.bias.detach().numpy().reshape(*factors.sizes[:2], 1)], axis=2,
            )
            for layer in layers
        ]  # fmt: skip
        problem = LayerQuadratic(
            np.array(weights),
            np.stack(means),
            np.stack([info.layers[path].inputs for info in infos]),
            np.stack([info.layers[path].outputs for info in infos]),
        )
        expected = dense_solution(problem, np.einsum("j,jgod->god", weights, problem.means), 0.1)
        merged = fused.get_submodule(path)
        np.testing.assert_allclose(
            merged.weight.detach().numpy().ravel(), expected[:, :, :-1].ravel(), atol=INDEFINITE, rtol=INDEFINITE
        )
        np.testing.assert_allclose(
            merged.bias.detach().numpy().ravel(), expected[:, :, -1].ravel(), atol=INDEFINITE, rtol=INDEFINITE
        )
