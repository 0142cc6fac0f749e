"""Fisher information and merging against gradients of single observations, all outcomes, and dense matrices.

An expectation over outcomes is a loop over all outcomes there are, a Fisher matrix is P x P, a merge is a linear system
written down whole, the objective of self-supervised merging is a sum of log densities; nothing of it is shared with the
library.
"""

import copy
import dataclasses
import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit, logsumexp
from scipy.stats import multivariate_normal, norm
from torch import nn
from torch.nn import functional

import consilience as cs
from tests.copies import COPIES
from tests.tolerances import FLAT_MINIMUM, ROOT_FINDING, ROUNDING, STANDARD_ERRORS

pytestmark = pytest.mark.covering(2)

NOISE = 0.7
ALPHA = 0.3
# Conjugate gradients are asked for this residual, as a share; the solution errs by the condition (below 1e4) more.
EXACT, SOLVED = 1e-14, 1e-9
# Stochastic descent stops at a relative change of 1e-6, and averages iterates from before it came so far.
STOPPED = 1e-4


# -- Networks, float64.


class Wired(nn.Module):
    """Parts, and a function that says how they hang together."""

    def __init__(self, wiring, **parts):
        super().__init__()
        self.wiring = wiring
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.wiring(self, x)


def embedded(recurrent):
    """Return a network of words, batch second inside, that reads a recurrent layer's last step."""
    last = lambda net, x: net.head(net.cell(net.words(x).transpose(0, 1))[0][-1])  # noqa: E731
    width = recurrent.hidden_size * (2 if recurrent.bidirectional else 1)
    return Wired(last, words=nn.Embedding(5, 3, padding_idx=0), cell=recurrent, head=nn.Linear(width, 3))


def attentive(net, x):
    """Attend without dropout, weights of attention not asked for."""
    h = net.inside(x)
    return net.head((h + net.place + net.attention(h, h, h, need_weights=False)[0]).mean(1))


def tied():
    net = Wired(lambda net, x: net.decoder(torch.tanh(net.words(x).mean(1))), words=nn.Embedding(5, 3))
    net.decoder = nn.Linear(3, 5)
    net.decoder.weight = net.words.weight
    return net


def frozen():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    net[0].weight.requires_grad_(False)
    net[2].bias.requires_grad_(False)
    return net


def normalised():
    """Return a network of all normalisations, with statistics of its own."""
    net = nn.Sequential(
        nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.GELU(), nn.GroupNorm(2, 4), nn.LayerNorm(3), nn.Flatten(),
        nn.Dropout(0.5), nn.Linear(12, 3), nn.BatchNorm1d(3, affine=False),
    )  # fmt: skip
    for layer in (net[1], net[-1]):
        layer.running_mean.normal_()
        layer.running_var.uniform_(0.5, 2)
    return net


NETS = {
    "one layer": (lambda: nn.Sequential(nn.Linear(1, 3), nn.Tanh()), (1,)),
    "mlp": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)), (3,)),
    "in place": (lambda: nn.Sequential(nn.Linear(3, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)), (3,)),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2), nn.SiLU(), nn.Conv2d(4, 2, 2, padding_mode="circular",
            padding=1, bias=False), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3),
        ),
        (2, 5, 5),
    ),
    "dilated and transposed": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 3, 2, dilation=2, padding="same"), nn.Tanh(), nn.ConvTranspose1d(3, 2, 3, stride=2),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(2, 3),
        ),
        (2, 4),
    ),
    "normalisations": (normalised, (2, 5)),
    "lstm": (lambda: embedded(nn.LSTM(3, 2, num_layers=2)), "words"),
    "gru": (lambda: embedded(nn.GRU(3, 2, bidirectional=True)), "words"),
    "rnn": (lambda: embedded(nn.RNN(3, 4, nonlinearity="tanh", bias=False)), "words"),
    "tied": (tied, "words"),
    "frozen": (frozen, (3,)),
    "used twice": (
        lambda: Wired(
            lambda net, x: net.head(torch.tanh(net.layer(torch.tanh(net.layer(x))))),
            layer=nn.Linear(3, 3), head=nn.Linear(3, 3),
        ),
        (3,),
    ),
    "functional": (
        lambda: Wired(
            lambda net, x: functional.linear(torch.tanh(x @ net.left * net.gain.exp()), net.left - net.right),
            left=nn.Parameter(torch.randn(3, 3)), right=nn.Parameter(torch.randn(3, 3)),
            gain=nn.Parameter(torch.randn(1)),
        ),
        (3,),
    ),
    "attention": (
        lambda: Wired(
            attentive, inside=nn.Linear(2, 4), attention=nn.MultiheadAttention(4, 2, batch_first=True),
            place=nn.Parameter(torch.randn(3, 4)), head=nn.Linear(4, 3),
        ),
        (3, 2),
    ),
    "encoder": (
        lambda: Wired(
            lambda net, x: net.head(net.layer(x)[:, 0]),
            layer=nn.TransformerEncoderLayer(4, 2, 5, batch_first=True), head=nn.Linear(4, 3),
        ),
        (3, 4),
    ),
    # observations that share an axis with positions, or stand behind them, within the network
    "folded": (
        lambda: Wired(
            lambda net, x: net.head(torch.tanh(net.layer(x.reshape(-1, 2))).reshape(len(x), -1)),
            layer=nn.Linear(2, 3), head=nn.Linear(9, 3),
        ),
        (3, 2),
    ),
    "siamese": (
        lambda: Wired(
            lambda net, x: net.head(torch.cat(net.layer(torch.cat([x[:, 0], x[:, 1]])).tanh().chunk(2), 1)),
            layer=nn.Linear(2, 3), head=nn.Linear(6, 3),
        ),
        (2, 2),
    ),
    "behind": (
        lambda: Wired(
            lambda net, x: net.head(net.layer(x.transpose(0, 1)).tanh()).sum(0),
            layer=nn.Linear(2, 4), head=nn.Linear(4, 3),
        ),
        (4, 2),
    ),
    "positions": (lambda: nn.Sequential(nn.Conv1d(2, 3, 2), nn.Tanh(), nn.Conv1d(3, 3, 1)), (2, 3)),
}  # fmt: skip


def made(name, observations=4, seed=0):
    """Return a network by name, evaluated, and inputs for it."""
    torch.manual_seed(seed)
    make, shape = NETS[name]
    net = make().double().eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))  # off the initial zeros and ones
    if shape == "words":
        return net, torch.randint(5, (observations, 3))
    return net, torch.randn(observations, *shape, dtype=torch.float64)


# -- Fisher information by enumeration.


def outcomes(net, out, likelihood):
    """Yield all joint outcomes of one observation: probability, log probability with its graph.

    Of a gaussian the three points of Gauss-Hermite quadrature, exact for the fourth powers that a variance takes.
    """
    if likelihood == "categorical":
        logs = functional.log_softmax(out[0].reshape(len(out[0]), -1), 0)
        for labels in itertools.product(range(len(logs)), repeat=logs.shape[1]):
            log = sum(logs[label, place] for place, label in enumerate(labels))
            yield log.exp().item(), log
    elif likelihood == "bernoulli":
        for labels in itertools.product((-1, 1), repeat=out[0].numel()):
            log = sum(functional.logsigmoid(label * logit) for label, logit in zip(labels, out.flatten(), strict=True))
            yield log.exp().item(), log
    else:
        nodes = ((0.0, 2 / 3), (3**0.5, 1 / 6), (-(3**0.5), 1 / 6))
        for drawn in itertools.product(nodes, repeat=out[0].numel()):
            y = out.detach().flatten() + NOISE * torch.tensor([node for node, _ in drawn], dtype=out.dtype)
            log = torch.distributions.Normal(out.flatten(), NOISE).log_prob(y).sum()
            yield float(np.prod([weight for _, weight in drawn])), log


def trained(net):
    return {name: parameter for name, parameter in net.named_parameters() if parameter.requires_grad}


def flat(arrays, names):
    return np.concatenate([np.asarray(arrays[name], dtype=np.float64).ravel() for name in names])


def expected(net, x, likelihood="categorical"):
    """Return the dense F, and the variance of one draw's squared gradients, summed over observations."""
    net = copy.deepcopy(net).eval()
    parameters = list(trained(net).values())
    size = sum(parameter.numel() for parameter in parameters)
    dense, fourth = np.zeros((size, size)), np.zeros(size)
    for one in x:
        second = np.zeros(size)
        for probability, log in outcomes(net, net(one[None]), likelihood):
            found = torch.autograd.grad(log, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
            g = np.concatenate([gradient.numpy().ravel() for gradient in found])
            dense += probability * np.outer(g, g)
            second += probability * g**2
            fourth += probability * g**4
        fourth -= second**2
    return dense, fourth


def measured(info, names):
    """Return G, the rest of the diagonal, and the diagonal, of an information, in the order of names."""
    rest = flat(info.residual, names)
    rank = len(next(iter(info.factors.values()))) if info.factors else 0
    factors = np.concatenate([np.asarray(info.factors[name]).reshape(rank, -1) for name in names], 1) if rank else None
    return factors, rest, flat(info.diagonal, names)


def near(found, truth, tolerance=ROUNDING):
    found, truth = np.asarray(found), np.asarray(truth)
    np.testing.assert_allclose(found, truth, rtol=0, atol=tolerance * np.abs(truth).max())


OTHERS = ["mlp", "convolutions", "normalisations", "gru", "tied", "attention", "positions"]


@pytest.mark.parametrize(
    ("name", "likelihood"),
    [(name, "categorical") for name in NETS] + list(itertools.product(OTHERS, ["bernoulli", "gaussian"])),
)
def test_factors_and_diagonal_are_the_sum_over_observations_and_outcomes(name, likelihood):
    net, x = made(name, 1 if (name, likelihood) == ("positions", "gaussian") else 4)  # 729 outcomes of each
    names = list(trained(net))
    dense, _ = expected(net, x, likelihood)
    options = {"likelihood": likelihood, "noise": NOISE, "minimum": 1}
    alone = cs.fisher(net, x, **options)
    assert set(alone.residual) == set(names)
    near(measured(alone, names)[2], dense.diagonal())
    factors, rest, diagonal = measured(cs.fisher(net, x, "factors", rank=None, **options), names)
    near(diagonal, dense.diagonal())
    near(factors.T @ factors + np.diag(rest), dense)


@pytest.mark.parametrize("rank", [1, 4, 9])
@pytest.mark.parametrize("name", ["mlp", "gru", "tied", "positions"])
def test_truncated_factors_are_the_leading_directions_and_keep_the_diagonal(name, rank):
    net, x = made(name, 4 * rank)  # a direction for every four observations at most
    names = list(trained(net))
    dense, _ = expected(net, x)
    values, vectors = np.linalg.eigh(dense)
    leading = vectors[:, -rank:] * values[-rank:] @ vectors[:, -rank:].T
    factors, rest, diagonal = measured(cs.fisher(net, x, "factors", rank=rank, minimum=1), names)
    assert len(factors) <= rank
    near(diagonal, dense.diagonal())
    near(factors.T @ factors, leading, ROUNDING * 10)
    assert rest.min() >= 0
    assert np.linalg.eigvalsh(factors.T @ factors + np.diag(rest)).min() >= -ROUNDING * values[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "gru", "positions"])
@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli", "gaussian"])
def test_monte_carlo_lies_within_its_standard_error(name, likelihood):
    net, x = made(name, 2)
    names = list(trained(net))
    dense, variance = expected(net, x, likelihood)
    draws = 100
    options = {"likelihood": likelihood, "noise": NOISE, "minimum": 1, "n_draws": draws, "rng": 1}
    off = measured(cs.fisher(net, x, **options), names)[2] - dense.diagonal()
    error = np.sqrt(variance / draws)
    assert (np.abs(off) <= STANDARD_ERRORS * error + ROUNDING).all()
    moving = error > ROUNDING
    # nor is it the exact value: the errors have the size that they should have
    assert 0.2 < np.sqrt(np.mean((off[moving] / error[moving]) ** 2)) < 3
    factors, rest, _ = measured(cs.fisher(net, x, "factors", rank=None, **options), names)
    near(factors.T @ factors + np.diag(rest), dense, 0.3)


@pytest.mark.parametrize("name", ["mlp", "convolutions", "attention", "rnn"])
def test_information_adds_up_over_data_and_scales_with_observations(name):
    net, x = made(name, 7)
    names = list(trained(net))
    whole, first, second = (expected(net, part)[0] for part in (x, x[:3], x[3:]))
    near(first + second, whole)
    batched = cs.fisher(net, [x[:2], x[2:3], x[3:]], "factors", rank=None, minimum=1)
    factors, rest, _ = measured(batched, names)
    near(factors.T @ factors + np.diag(rest), whole)
    scaled = cs.fisher(net, [x[:4], x[4:]], "factors", rank=None, minimum=1, n_observations=70)
    factors, rest, diagonal = measured(scaled, names)
    near(factors.T @ factors + np.diag(rest), 10 * whole)
    near(diagonal, 10 * whole.diagonal())


@pytest.mark.parametrize("rank", [1, 4])
def test_truncated_factors_of_many_batches_say_no_more_than_the_information(rank):
    net, x = made("mlp", 20)
    names = list(trained(net))
    dense, _ = expected(net, x)
    factors, _, diagonal = measured(cs.fisher(net, list(x.split(3)), "factors", rank=rank, minimum=1), names)
    near(diagonal, dense.diagonal())
    values = np.linalg.eigvalsh(dense)
    assert np.linalg.eigvalsh(dense - factors.T @ factors).min() >= -ROUNDING * values[-1]
    assert np.linalg.matrix_rank(factors) == rank


def test_information_is_the_same_however_inputs_arrive():
    net, x = made("mlp", 6)
    names = list(trained(net))
    truth = expected(net, x)[0].diagonal()
    labels = torch.zeros(6, dtype=torch.long)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, labels), batch_size=4)
    for batches in (loader, iter(x.split(1)), [(x, labels)], [{"input": x[:2]}, {"input": x[2:]}]):
        near(measured(cs.fisher(net, batches, minimum=1), names)[2], truth)


@pytest.mark.parametrize("name", ["normalisations", "encoder"])
def test_training_mode_and_statistics_are_left_alone(name):
    net, x = made(name)
    names = list(trained(net))
    dense, _ = expected(net, x)
    net.train()
    state = copy.deepcopy(net.state_dict())
    near(measured(cs.fisher(net, x, minimum=1), names)[2], dense.diagonal())
    assert all(module.training for module in net.modules())
    assert all(torch.equal(value, state[key]) for key, value in net.state_dict().items())


# -- Merges against dense systems.


def site(theta):
    """Return a linear map from as many inputs, without bias, whose parameters are theta."""
    net = nn.Linear(len(theta), 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        net.weight.copy_(torch.as_tensor(theta)[None])
    return net


class Sites:
    """K sites of P parameters each, and dense information of any shape, some of it in factors."""

    def __init__(self, size=5, K=3, rank=3, alpha=ALPHA, seed=0):
        rng = np.random.default_rng([seed, size, K])
        self.thetas = rng.normal(size=(K, size)) + 1
        factors, rests = rng.normal(size=(K, rank, size)), rng.uniform(0.2, 1.5, size=(K, size))
        self.dense = np.array([g.T @ g + np.diag(d) for g, d in zip(factors, rests, strict=True)])
        self.alpha, self.K, self.size = alpha, K, size
        self.nets = [site(theta) for theta in self.thetas]
        self.infos = [
            cs.results.FisherInformation(
                residual={"weight": d[None]}, factors={"weight": g[:, None]}, prior_precision=alpha
            )
            for g, d in zip(factors, rests, strict=True)
        ]

    def shrunk(self, rho):
        """Return all F with so much of their off-diagonals taken away."""
        return self.dense * (1 - rho * (1 - np.eye(self.size)))

    def fused(self, method="fisher", **options):
        return cs.fuse(self.nets, method=method, fishers=self.infos, **{"tolerance": EXACT, **options})

    def merge(self, method="fisher", **options):
        return parameters(self.fused(method, **options).model)


def parameters(net):
    return np.concatenate([parameter.detach().numpy().ravel() for parameter in net.parameters()])


def solved(dense, thetas, prior, alpha, weights=None, fused_alpha=None):
    """Return the mode of the product of Gaussians; weights say how often each counts, the largest once."""
    K, size = thetas.shape
    share = np.ones(K) if weights is None else np.asarray(weights) / np.max(weights)
    local = dense + (0 if prior == "ignored" else alpha) * np.eye(size)
    total = np.tensordot(share, local, 1) - (prior == "removed") * (share.sum() - 1) * alpha * np.eye(size)
    return np.linalg.solve(total, sum(s * P @ theta for s, P, theta in zip(share, local, thetas, strict=True)))


every_weights = pytest.mark.parametrize("weights", [None, [1.0, 2.0, 4.0], [0.5, 0.0, 0.1]], ids=str)
every_prior = pytest.mark.parametrize("prior", ["removed", "kept", "ignored"])


@every_weights
@every_prior
@pytest.mark.parametrize("shrinkage", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("structure", ["full", "low_rank"])
def test_full_and_low_rank_merges_solve_the_dense_system(structure, shrinkage, prior, weights):
    sites = Sites()
    theta = sites.merge(structure=structure, shrinkage=shrinkage, prior=prior, weights=weights)
    near(theta, solved(sites.shrunk(shrinkage), sites.thetas, prior, ALPHA, weights), SOLVED)


@every_weights
@every_prior
def test_diagonal_and_isotropic_merges_solve_the_diagonal_system(prior, weights):
    sites = Sites()
    theta = sites.merge(structure="diagonal", prior=prior, weights=weights)
    near(theta, solved(sites.shrunk(1.0), sites.thetas, prior, ALPHA, weights))
    near(sites.merge(structure="isotropic", weights=weights), np.average(sites.thetas, axis=0, weights=weights))


def test_merges_without_options_are_the_published_ones():
    sites = Sites()
    ratio = (sites.shrunk(1.0) @ sites.thetas[..., None]).sum(0)[:, 0] / sites.shrunk(1.0).sum((0, 2))
    near(sites.merge(structure="diagonal"), ratio)
    near(sites.merge(shrinkage=0.0), solved(sites.dense, sites.thetas, "removed", ALPHA), SOLVED)


def test_normalized_floored_and_target_merges_are_matena_and_raffels():
    sites = Sites()
    diagonals = np.einsum("kpp->kp", sites.dense).copy()
    diagonals[:, 2] = 0
    sites.infos = [cs.results.FisherInformation(residual={"weight": d[None]}, prior_precision=ALPHA) for d in diagonals]
    share = diagonals / np.linalg.norm(diagonals, axis=1, keepdims=True)
    for weights, counts in ((None, np.ones(3)), ([1.0, 2.0, 3.0], np.arange(1.0, 4.0))):
        scaled = counts[:, None] * np.maximum(share, 1e-20)
        near(sites.merge(normalize=True, weights=weights), (scaled * sites.thetas).sum(0) / scaled.sum(0))
        floored = counts[:, None] * np.vstack([np.maximum(share[:1], 1e-6), share[1:]])
        theta = sites.merge(normalize=True, favor_target=0, weights=weights)
        near(theta, (floored * sites.thetas).sum(0) / floored.sum(0))
        assert theta[2] == pytest.approx(sites.thetas[0, 2], abs=ROUNDING)


@pytest.mark.parametrize("prior", ["removed", "kept"])
def test_sites_with_different_priors_keep_their_own_posteriors(prior):
    sites, alphas, eye = Sites(), [0.1, 0.5, 0.9], np.eye(5)
    sites.infos = [dataclasses.replace(i, prior_precision=a) for i, a in zip(sites.infos, alphas, strict=True)]
    local = [F + alpha * eye for F, alpha in zip(sites.dense, alphas, strict=True)]
    total = sum(local) if prior == "kept" else sites.dense.sum(0) + 0.7 * eye
    truth = np.linalg.solve(total, sum(P @ theta for P, theta in zip(local, sites.thetas, strict=True)))
    near(sites.merge(shrinkage=0.0, prior=prior, prior_precision=0.7 if prior == "removed" else None), truth, SOLVED)


def trio(name, rank=None, observations=5):
    """Return three networks of a kind, their information, the names it has, and it and their parameters dense."""
    nets, x = zip(*(made(name, observations, seed) for seed in range(3)), strict=True)
    names = list(trained(nets[0]))
    dense = np.array([expected(net, inputs)[0] for net, inputs in zip(nets, x, strict=True)])
    for F in dense if rank else ():
        values, vectors = np.linalg.eigh(F)
        leading = vectors[:, -rank:] * values[-rank:] @ vectors[:, -rank:].T
        F[:] = leading + np.diag((F - leading).diagonal())
    options = {"kind": "factors", "rank": rank, "minimum": 1, "prior_precision": ALPHA}
    infos = [cs.fisher(net, inputs, **options) for net, inputs in zip(nets, x, strict=True)]
    thetas = np.array([flat({name: p.detach() for name, p in trained(net).items()}, names) for net in nets])
    return list(nets), infos, names, dense, thetas


@pytest.mark.slow
@pytest.mark.parametrize("rank", [None, 4])
@pytest.mark.parametrize("structure", ["full", "low_rank"])
@pytest.mark.parametrize("name", ["mlp", "frozen", "tied", "normalisations"])
def test_networks_merge_as_their_enumerated_information_says(name, structure, rank):
    nets, infos, names, dense, thetas = trio(name, rank, 16)
    options = {"structure": structure, "shrinkage": 0.2, "aligned": False, "tolerance": EXACT, "weights": [3, 1, 2]}
    fused = cs.fuse(nets, method="fisher", fishers=infos, **options).model
    shrunk = dense * (0.8 + 0.2 * np.eye(len(dense[0])))
    state = fused.state_dict()
    near(flat(state, names), solved(shrunk, thetas, "removed", ALPHA, [3, 1, 2]), SOLVED)
    for key in set(state) - set(names):
        if state[key].is_floating_point():  # frozen, statistics: no information; a second name: the same values
            values = [net.state_dict()[key].numpy() for net in nets]
            near(state[key], state[names[0]] if name == "tied" else np.average(values, axis=0, weights=[3, 1, 2]))
    assert name != "tied" or fused.decoder.weight is fused.words.weight


# -- Models whose posterior is known.


def data(rows, inputs=4, seed=0):
    rng = np.random.default_rng([seed, rows])
    X = rng.normal(size=(rows, inputs)) @ rng.normal(size=(inputs, inputs))
    return X, rng


def ridge(X, Y):
    """Return the mode (outputs, inputs + 1) of the posterior of a linear map with a bias."""
    Z = np.column_stack([X, np.ones(len(X))])
    return np.linalg.solve(Z.T @ Z / NOISE**2 + ALPHA * np.eye(Z.shape[1]), Z.T @ Y / NOISE**2).T


def linear(W):
    """Return the layer of weights W (outputs, inputs + 1), the bias last."""
    net = nn.Linear(W.shape[1] - 1, len(W), dtype=torch.float64)
    with torch.no_grad():
        net.weight.copy_(torch.as_tensor(W[:, :-1]))
        net.bias.copy_(torch.as_tensor(W[:, -1]))
    return net


def matrix(net):
    return np.column_stack([net.weight.detach().numpy(), net.bias.detach().numpy()])


@pytest.mark.parametrize(
    "parts",
    [(range(20), range(20, 50), range(50, 60)), (range(3), range(3, 60)), (range(40), range(20, 60), range(10, 30))],
    ids=["apart", "fewer rows than inputs", "overlapping"],
)
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("structure", [None, "full"])
def test_linear_regressions_merge_into_the_ridge_solution_of_all_rows(parts, outputs, structure):
    X, rng = data(60)
    Y = X @ rng.normal(size=(4, outputs)) + 1 + NOISE * rng.normal(size=(60, outputs))
    nets = [linear(ridge(X[list(part)], Y[list(part)])) for part in parts]
    options = {"likelihood": "gaussian", "noise": NOISE, "prior_precision": ALPHA, "rank": None, "minimum": 1}
    infos = [cs.fisher(net, torch.tensor(X[list(p)]), "factors", **options) for net, p in zip(nets, parts, strict=True)]
    fused = cs.fuse(nets, method="fisher", fishers=infos, structure=structure, tolerance=EXACT).model
    rows = [row for part in parts for row in part]  # rows of several sites count as often
    near(matrix(fused), ridge(X[rows], Y[rows]), SOLVED)


@pytest.mark.parametrize("classes", [1, 3], ids=["bernoulli", "categorical"])
def test_logistic_regressions_merge_into_the_product_of_their_laplace_gaussians(classes):
    nets, infos, terms = [], [], []
    for seed in range(3):
        X, rng = data(40, seed=seed)
        Z = np.column_stack([X, np.ones(40)])
        y = rng.integers(2, size=40) if classes == 1 else np.eye(3)[rng.integers(3, size=40)]

        def loss(w, Z=Z, y=y):
            logits = Z @ w.reshape(classes, -1).T
            if classes == 1:
                log = np.logaddexp(0, logits[:, 0]) - y * logits[:, 0]
            else:
                log = logsumexp(logits, axis=1) - (y * logits).sum(1)
            return log.sum() + ALPHA / 2 * w @ w

        w = minimize(loss, np.zeros(5 * classes), options={"gtol": ROOT_FINDING}, method="BFGS").x
        nets.append(linear(w.reshape(classes, 5)))
        curvature = ALPHA * np.eye(5 * classes)
        for z in Z:
            logits = w.reshape(classes, 5) @ z
            p = np.exp(logits - logsumexp(logits))
            second = expit(logits) * expit(-logits) * np.eye(1) if classes == 1 else np.diag(p) - np.outer(p, p)
            curvature += np.kron(second, np.outer(z, z))
        terms.append((w, curvature))
        options = {"likelihood": "bernoulli" if classes == 1 else "categorical", "prior_precision": ALPHA}
        infos.append(cs.fisher(nets[-1], torch.tensor(X), "factors", rank=None, minimum=1, **options))

    def log_product(w):  # with two of the three priors divided out
        logs = [multivariate_normal.logpdf(w, mean, np.linalg.inv(H)) for mean, H in terms]
        return sum(logs) - 2 * multivariate_normal.logpdf(w, np.zeros(len(w)), np.eye(len(w)) / ALPHA)

    H = sum(H for _, H in terms) - 2 * ALPHA * np.eye(5 * classes)
    mode = np.linalg.solve(H, sum(H @ w for w, H in terms))
    fused = matrix(cs.fuse(nets, method="fisher", fishers=infos, tolerance=EXACT).model).ravel()
    near(fused, mode, SOLVED)
    steps = FLAT_MINIMUM**0.5 * np.vstack([np.eye(len(mode)), -np.eye(len(mode))])
    assert all(log_product(fused) > log_product(fused + step) for step in steps)


# -- Self-supervised merging against conditionals of dense Gaussians.


def conditional(P, theta, mean, masked, rest):
    """Return mean and precisions of the masked entries given the rest, from the partitioned covariance."""
    both = [*masked, *rest]
    S = np.linalg.inv(P[np.ix_(both, both)])  # a window's precision is that of what it leaves out given
    m = len(masked)
    if not rest:
        return mean[list(masked)], np.linalg.inv(S).diagonal()
    pull = S[:m, m:] @ np.linalg.inv(S[m:, m:])
    covariance = S[:m, :m] - pull @ S[m:, :m]
    return mean[list(masked)] + pull @ (theta[list(rest)] - mean[list(rest)]), np.linalg.inv(covariance).diagonal()


def unlikelihood(theta, sites, masks, rho=0.0, weights=None, prior="removed"):
    """Return the objective (7) of masks (masked, window), as a sum of log densities."""
    share = np.ones(sites.K) if weights is None else np.asarray(weights) / np.max(weights)
    total = 0.0
    for masked, window in masks:
        rest = [p for p in window if p not in masked]
        for s, F, mean in zip(share, sites.shrunk(rho), sites.thetas, strict=True):
            P = F + (0 if prior == "ignored" else sites.alpha) * np.eye(sites.size)
            centre, precision = conditional(P, theta, mean, masked, rest)
            total += s * norm.logpdf(theta[list(masked)], centre, precision**-0.5).sum()
        if prior == "removed" and sites.alpha:
            total -= (share.sum() - 1) * norm.logpdf(theta[list(masked)], 0, sites.alpha**-0.5).sum()
    return -total / len(masks) / len(masks[0][0])


def minimiser(sites, masks, *options):
    """Return where (7), which is quadratic, has no gradient: its system is read off from its values."""
    value = lambda theta: unlikelihood(theta, sites, masks, *options)  # noqa: E731
    axes, origin = np.eye(sites.size), value(np.zeros(sites.size))
    plus, minus = (np.array([value(sign * axis) for axis in axes]) for sign in (1, -1))
    hessian = np.diag(plus + minus - 2 * origin)
    for a, b in itertools.combinations(range(sites.size), 2):
        hessian[a, b] = hessian[b, a] = value(axes[a] + axes[b]) - plus[a] - plus[b] + origin
    assert np.linalg.eigvalsh(hessian).min() > 0
    return np.linalg.solve(hessian, (minus - plus) / 2)


def even(size, masked):
    """Return masks of one entry, or of all but one, which leave a balanced choice nothing to choose."""
    return [(mask, range(size)) for mask in itertools.combinations(range(size), masked)]


every_even = pytest.mark.parametrize(
    ("size", "masked"), [(2, 1), (3, 1), (4, 1), (7, 1), (2, 2), (3, 2), (4, 3), (6, 5), (5, 5)]
)


@every_even
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(("shrinkage", "weights"), [(0.0, None), (0.3, [1.0, 2.0, 4.0])])
def test_self_supervised_merge_minimises_the_log_densities_of_all_masks(size, masked, times, shrinkage, weights):
    sites = Sites(size, alpha=0.05)
    masks = even(size, masked)
    options = {"shrinkage": shrinkage, "weights": weights, "mask_rate": masked / size, "masks": times * len(masks)}
    near(sites.merge("ssf", **options), minimiser(sites, masks, shrinkage, weights), SOLVED)


@every_even
def test_objective_differs_as_the_log_densities_do(size, masked):
    sites = Sites(size, alpha=0.05)
    masks = even(size, masked)
    options = {"shrinkage": 0.0, "mask_rate": masked / size, "masks": len(masks)}
    rough = [sites.fused("ssf", max_iterations=1, **options)]
    found = [sites.fused("ssf", **options), *rough]
    values = np.array([unlikelihood(parameters(fusion.model), sites, masks) for fusion in found])
    near(np.array([fusion.objective for fusion in found]) - found[0].objective, values - values[0], SOLVED)
    assert values[0] <= values[1] + SOLVED


def level(sites, found, masked, masks, window=None, prior="removed", tolerance=SOLVED):
    """Return for how many sets of masks (7) is level at what was found."""
    slopes = []  # with one mask, for each there is; central differences of a square are exact
    for inside in itertools.combinations(range(sites.size), window or sites.size):
        for chosen in itertools.combinations(inside, masked):
            one = [(chosen, inside)]
            ends = [
                [unlikelihood(found + s, sites, one, 0.0, None, prior) for s in (e, -e)] for e in np.eye(sites.size)
            ]
            slopes.append(np.subtract(*np.transpose(ends)) / 2)
    sets = np.array(list(itertools.combinations_with_replacement(range(len(slopes)), masks)))
    return (np.abs(np.array(slopes)[sets].mean(1)).max(1) < tolerance * np.abs(slopes).max()).sum()


@pytest.mark.parametrize(
    ("masked", "masks", "window"), [(1, 4, None), (2, 3, None), (2, 4, None), (3, 2, None), (1, 6, 3), (2, 6, 3)]
)
@every_prior
def test_self_supervised_merge_is_that_of_some_masks_of_its_size(masked, masks, window, prior):
    sites = Sites(4, alpha=0.02)
    options = {"mask_rate": masked / (window or 4), "masks": masks, "prior": prior, "window": window}
    assert level(sites, sites.merge("ssf", shrinkage=0.0, **options), masked, masks, window, prior) == 1


def test_self_supervised_merge_of_networks_minimises_the_log_densities_of_all_masks():
    nets, infos, _, dense, thetas = trio("one layer")
    sites = Sites(len(thetas[0]), alpha=ALPHA)
    sites.nets, sites.infos, sites.dense, sites.thetas = nets, infos, dense, thetas
    masks = even(sites.size, sites.size - 1)
    options = {"shrinkage": 0.1, "aligned": False, "mask_rate": (sites.size - 1) / sites.size, "masks": len(masks)}
    near(sites.merge("ssf", **options), minimiser(sites, masks, 0.1), SOLVED)


@pytest.mark.parametrize("mask_rate", [0.2, 0.6, 1.0])
@pytest.mark.parametrize("window", [None, 5])
@every_prior
def test_diagonal_information_gives_the_diagonal_merge_for_any_masks(mask_rate, window, prior):
    sites = Sites(10)
    options = {"mask_rate": mask_rate, "window": window, "masks": 30, "prior": prior, "weights": [1.0, 2.0, 4.0]}
    truth = solved(sites.shrunk(1.0), sites.thetas, prior, ALPHA, [1.0, 2.0, 4.0])
    near(sites.merge("ssf", shrinkage=1.0, **options), truth, SOLVED)
    if mask_rate == 1 and not window:
        near(sites.merge("ssf", shrinkage=0.0, **options), truth, SOLVED)
    sites.infos = [
        cs.results.FisherInformation(residual={"weight": F.diagonal()[None].copy()}, prior_precision=ALPHA)
        for F in sites.dense
    ]
    near(sites.merge("ssf", **options), truth, SOLVED)


@COPIES
@pytest.mark.parametrize("method", ["fisher", "ssf"])
@pytest.mark.parametrize("same_information", [True, False])
def test_identical_models_without_prior_are_returned(method, same_information):
    sites = Sites(8, alpha=0.0)
    sites.thetas = np.tile(sites.thetas[0], (3, 1))
    sites.nets = [site(theta) for theta in sites.thetas]
    sites.infos = [sites.infos[0 if same_information else k] for k in range(3)]
    near(sites.merge(method, shrinkage=0.0), sites.thetas[0], SOLVED)


# -- Units that stand elsewhere, with other signs.


def moved(net, rng, signs):
    """Return the same function with the units of every hidden layer in another order, and some turned around."""
    net = copy.deepcopy(net)
    layers = [layer for layer in net if list(layer.parameters(recurse=False))]
    with torch.no_grad():
        for before, after in itertools.pairwise(layers):
            order = torch.as_tensor(rng.permutation(len(before.weight)))
            turn = torch.as_tensor(rng.choice([-1.0, 1.0] if signs else [1.0], len(order)))
            before.weight.copy_(torch.einsum("o...,o->o...", before.weight, turn)[order])
            before.bias.copy_((before.bias * turn)[order])
            # a channel has neighbouring columns behind a flattening
            columns = after.weight.reshape(len(after.weight), len(order), -1) * turn[:, None]
            after.weight.copy_(columns[:, order].reshape(after.weight.shape))
    return net


ALIGNED = {
    "tanh": (lambda: nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (3,)),
    "relu": (lambda: nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), (3,)),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 2), nn.ReLU(), nn.Conv2d(4, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)
        ),
        (2, 4, 4),
    ),
}
MERGES = {
    "isotropic": ("fisher", {"structure": "isotropic"}),
    "diagonal": ("fisher", {"structure": "diagonal"}),
    "full": ("fisher", {"structure": "full", "shrinkage": 0.1}),
    "low_rank": ("fisher", {"structure": "low_rank", "tolerance": EXACT}),
    "ssf": ("ssf", {"tolerance": EXACT}),
}


@pytest.mark.slow
@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("name", ALIGNED)
def test_units_that_stand_elsewhere_take_their_information_with_them(name, merge):
    torch.manual_seed(3)
    rng = np.random.default_rng(3)
    make, shape = ALIGNED[name]
    first = make().double()
    second = copy.deepcopy(first)
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    x = torch.randn(3, 12, *shape, dtype=torch.float64)
    stranger = moved(second, rng, signs=name == "tanh")
    near(stranger(x[2]).detach(), second(x[2]).detach())
    method, options = MERGES[merge]

    def fused(other, **more):
        nets = [first, other]
        infos = [cs.fisher(net, data, "factors", rank=20, minimum=1) for net, data in zip(nets, x, strict=False)]
        return cs.fuse(nets, method=method, fishers=infos, reference=0, **options, **more).model

    plain = fused(second, aligned=False)
    model = fused(stranger, example=x[2])
    near(parameters(model), parameters(plain), SOLVED)
    near(model(x[2]).detach(), plain(x[2]).detach(), SOLVED)
    assert np.abs(parameters(fused(stranger, aligned=False)) - parameters(plain)).max() > 0.1
