"""Bayesian networks of other libraries: taken in, given back, and refused with every problem named.

Pyro is asked itself. laplace-torch, bayesian-torch and blitz come with more than the tests should need, so that small
classes stand in for them here, with the attributes and formulas that those libraries document.
"""

import copy
from dataclasses import replace

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoDiagonalNormal, AutoMultivariateNormal, AutoNormal
from pyro.nn import PyroModule, PyroSample
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from consilience.errors import InputError, UnsupportedError
from consilience.networks.gaussian.network import BayesianNetwork
from consilience.networks.gaussian.readers.table import as_bayesian_network, is_bayesian, written_like
from tests.tolerances import ROUNDING, SINGLE_PRECISION, STANDARD_ERRORS

SAMPLES = 1000


def network(hidden=5, bias=True):
    return nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, 3, bias=bias))


def inputs(rows=20):
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(5))


def gaussians(hidden=5, seed=0, dtype=torch.float32):
    """Return a Bayesian network made up of random numbers."""
    generator = torch.Generator().manual_seed(seed)
    module = network(hidden).to(dtype)
    draw = {k: torch.randn(v.shape, generator=generator, dtype=dtype) for k, v in module.named_parameters()}
    spread = {k: torch.rand(v.shape, generator=generator, dtype=dtype) + 0.05 for k, v in draw.items()}
    return BayesianNetwork(module, draw, spread)


def assert_same(one, other, tolerance=SINGLE_PRECISION):
    assert list(one.means) == list(other.means)
    for key in one.means:
        np.testing.assert_array_equal(one.means[key], other.means[key])
        np.testing.assert_allclose(one.variances[key], other.variances[key], rtol=tolerance)


def assert_predicts(bnn, probabilities):
    """Assert that a library's own samples of probabilities (S, n, classes) have the mean that the network predicts."""
    drawn = np.asarray(probabilities.detach(), dtype=float)
    error = np.sqrt(drawn.var(axis=0) * (1 / len(drawn) + 1 / SAMPLES))
    found = bnn.predict(inputs(), samples=SAMPLES, rng=3)
    assert np.all(np.abs(found - drawn.mean(axis=0)) < STANDARD_ERRORS * error)


# -- Pyro


class Classifier(PyroModule):
    """A classifier of which Pyro samples every weight."""

    def __init__(self, scales=(1.0, 0.5), prefix="net", bias_prior=None):
        super().__init__()
        self.inside = prefix
        layers = PyroModule[nn.Sequential](
            PyroModule[nn.Linear](4, 5), PyroModule[nn.Tanh](), PyroModule[nn.Linear](5, 3)
        )
        for layer, scale in zip((layers[0], layers[2]), scales, strict=True):
            layer.weight = PyroSample(dist.Normal(0.0, scale).expand(layer.weight.shape).to_event(2))
            layer.bias = PyroSample(bias_prior or dist.Normal(0.0, scale).expand(layer.bias.shape).to_event(1))
        setattr(self, prefix, layers)

    def forward(self, x, y=None):
        logits = getattr(self, self.inside)(x)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)
        return logits


@pytest.fixture
def pyro_seed():
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    yield
    pyro.clear_param_store()


def fitted(kind, model, steps=30):
    guide = kind(model, init_scale=0.2)
    rows = inputs(50)
    learner = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    for _ in range(steps):
        learner.step(rows, rows[:, :3].argmax(dim=1))
    return guide


def drawn_by_pyro(model, guide):
    logits = Predictive(model, guide=guide, num_samples=300, return_sites=("_RETURN",), parallel=False)(inputs())
    return logits["_RETURN"].softmax(dim=-1)


@pytest.mark.slow
@pytest.mark.usefixtures("pyro_seed")
@pytest.mark.parametrize("kind", [AutoDiagonalNormal, AutoNormal])
def test_a_guide_of_pyro_predicts_as_the_network_that_it_becomes_and_so_does_one_that_is_written(kind):
    model = Classifier()
    guide = fitted(kind, model)
    assert is_bayesian(guide)
    bnn = as_bayesian_network(guide, network(), name="site A")
    assert bnn.name == "site A"
    assert bnn.prior == {"0.weight": 1.0, "0.bias": 1.0, "2.weight": 0.25, "2.bias": 0.25}
    assert_predicts(bnn, drawn_by_pyro(model, guide))
    other = gaussians(seed=1)
    written = written_like(other, guide)
    assert_same(as_bayesian_network(written, network()), other)
    assert_predicts(other, drawn_by_pyro(model, written))
    assert_same(as_bayesian_network(written, network()), other)  # nothing came from the parameter store meanwhile
    assert_same(as_bayesian_network(guide, network()), bnn)
    assert guide.model is written.model


@pytest.mark.usefixtures("pyro_seed")
def test_a_written_guide_can_be_fitted_further_and_leaves_the_other_alone():
    model = Classifier()
    guide = fitted(AutoDiagonalNormal, model)
    before = as_bayesian_network(guide, network())
    written = written_like(gaussians(), guide)
    learner = SVI(model, written, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    learner.step(inputs(), inputs()[:, :3].argmax(dim=1))
    after = as_bayesian_network(written, network())
    for key, values in gaussians().means.items():
        assert not torch.equal(after.means[key], values)
        assert not torch.equal(after.variances[key], gaussians().variances[key])
    assert_same(as_bayesian_network(guide, network()), before, 0.0)


@pytest.mark.usefixtures("pyro_seed")
def test_sites_of_pyro_keep_their_names_without_a_module_and_lose_one_prefix_with_one():
    guide = fitted(AutoDiagonalNormal, Classifier(prefix="body"), steps=1)
    assert list(as_bayesian_network(guide).means) == ["body.0.weight", "body.0.bias", "body.2.weight", "body.2.bias"]
    whole = nn.Module()
    whole.body = network()
    assert list(as_bayesian_network(guide, whole).means) == [name for name, _ in whole.named_parameters()]
    assert list(as_bayesian_network(guide, network()).means) == [name for name, _ in network().named_parameters()]


@pytest.mark.usefixtures("pyro_seed")
def test_priors_of_pyro_that_are_not_one_normal_about_zero_a_site_are_not_known():
    for prior in (
        dist.Normal(0.0, torch.tensor([1.0, 2.0])),
        dist.Normal(1.0, torch.ones(2)),
        dist.StudentT(3.0, torch.zeros(2)),
        dist.TransformedDistribution(dist.Normal(torch.zeros(2), 1.0), dist.transforms.AffineTransform(0.0, 2.0)),
    ):
        guide = AutoDiagonalNormal(lambda prior=prior: pyro.sample("weight", prior.to_event(1)))
        with pytest.raises(
            InputError, match="has not seen its model; call it once with the model's arguments, or fit it"
        ):
            as_bayesian_network(guide)
        guide()
        assert as_bayesian_network(guide).prior is None


@pytest.mark.usefixtures("pyro_seed")
def test_every_site_of_pyro_that_does_not_fit_is_named():
    def model():
        pyro.sample("net.0.weight", dist.Normal(torch.zeros(5, 4), 1.0).to_event(2))
        pyro.sample("net.0.bias", dist.Laplace(torch.zeros(5), 1.0).to_event(1))
        pyro.sample("net.2.weight", dist.Normal(torch.zeros(3, 6), 1.0).to_event(2))
        pyro.sample("net.3.bias", dist.Normal(torch.zeros(3), torch.tensor([1.0, 2.0, 1.0])).to_event(1))
        pyro.sample("net.tau", dist.Gamma(2.0, 2.0))
        pyro.sample("net.share", dist.Dirichlet(torch.ones(3)))

    guide = AutoDiagonalNormal(model)
    guide()
    with pytest.raises(InputError) as caught:
        as_bayesian_network(guide, network(), "site A")
    lines = caught.value.problems
    assert len(lines) == 5
    assert any("site net.tau lies in" in line and "Normal prior" in line for line in lines)
    assert any("site net.share lies in" in line for line in lines)
    assert any("site net.3.bias: the module has no parameter 3.bias" in line for line in lines)
    assert any("site net.2.weight has shape (3, 6), the module's parameter 2.weight (3, 5)" in line for line in lines)
    assert any("nothing here is the module's parameter 2.bias" in line for line in lines)
    assert all(line.startswith("site A: ") for line in lines)


@pytest.mark.usefixtures("pyro_seed")
@pytest.mark.parametrize("kind", [AutoMultivariateNormal, AutoDelta])
def test_other_guides_of_pyro_are_refused_with_the_one_to_use(kind):
    guide = kind(Classifier())
    guide(inputs(), torch.zeros(20))
    assert is_bayesian(guide)
    with pytest.raises(UnsupportedError, match=r"no independent Gaussian for every weight; use pyro's AutoDiagonalNor"):
        as_bayesian_network(guide, network())


# -- laplace-torch, by a stand-in


class BaseLaplace:
    """The documented attributes of laplace-torch's approximations."""

    __module__ = "laplace.baselaplace"

    def __init__(self, model, likelihood="classification", prior_precision=1.0, prior_mean=0.0, temperature=1.0):
        self.model, self.likelihood, self.temperature = model, likelihood, temperature
        self.params = [values for values in model.parameters() if values.requires_grad]
        self.prior_precision = torch.as_tensor(prior_precision).reshape(-1)
        self.prior_mean, self.sigma_noise = torch.as_tensor(prior_mean), torch.tensor(1.0)
        self.mean, self.n_data = self.prior_mean, 0

    def fit(self, seed=0):
        self.mean = parameters_to_vector(self.params).detach()
        self.H = torch.rand(self.mean.shape, generator=torch.Generator().manual_seed(seed)) * 40.0
        self.n_data = 40
        return self

    @property
    def prior_precision_diag(self):
        given, sizes = self.prior_precision, torch.tensor([values.numel() for values in self.params])
        if len(given) == 1:
            return given.expand(int(sizes.sum()))
        return given if len(given) == int(sizes.sum()) else given.repeat_interleave(sizes)


class DiagLaplace(BaseLaplace):
    """A diagonal one, which samples as laplace-torch does."""

    __module__ = "laplace.baselaplace"

    @property
    def posterior_variance(self):
        return 1.0 / (self.H / (self.sigma_noise.square() * self.temperature) + self.prior_precision_diag)

    def probabilities(self, x):
        noise = torch.randn(SAMPLES, len(self.mean), generator=torch.Generator().manual_seed(1))
        found = []
        with torch.no_grad():
            for weights in self.mean + noise * self.posterior_variance.sqrt():
                vector_to_parameters(weights, self.params)
                found.append(self.model(x).softmax(dim=1))
            vector_to_parameters(self.mean, self.params)
        return torch.stack(found)


class KronLaplace(BaseLaplace):
    """Another structure."""

    __module__ = "laplace.baselaplace"


class LLLaplace(BaseLaplace):
    """The last layer only."""

    __module__ = "laplace.lllaplace"


class DiagLLLaplace(LLLaplace, DiagLaplace):
    """The last layer only, diagonal."""

    __module__ = "laplace.lllaplace"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "prior"),
    [
        (4.0, [0.25] * 4),
        (torch.tensor([1.0, 2.0, 4.0, 8.0]), [1.0, 0.5, 0.25, 0.125]),
        (torch.arange(1.0, 44.0), None),
    ],
)
def test_a_laplace_approximation_predicts_as_the_network_that_it_becomes_and_so_does_one_that_is_written(
    precision, prior
):
    torch.manual_seed(0)
    approximation = DiagLaplace(network(), prior_precision=precision, temperature=0.5).fit()
    assert is_bayesian(approximation)
    bnn = as_bayesian_network(approximation)
    assert bnn.module is approximation.model
    assert bnn.prior == (None if prior is None else dict(zip(bnn.means, prior, strict=True)))
    assert_predicts(bnn, approximation.probabilities(inputs()))
    again = as_bayesian_network(written_like(bnn, approximation))
    assert_same(again, bnn)
    assert again.prior == bnn.prior
    other = replace(gaussians(seed=1), prior_variances={"0.weight": 4.0, "0.bias": 1.0, "2.weight": 2.0, "2.bias": 0.5})
    written = written_like(other, approximation)
    assert_same(as_bayesian_network(written), other)
    assert as_bayesian_network(written).prior == other.prior
    assert_predicts(other, written.probabilities(inputs()))
    torch.testing.assert_close(parameters_to_vector(written.model.parameters()), written.mean)
    assert_same(as_bayesian_network(approximation), bnn, 0.0)


def test_a_laplace_prior_elsewhere_than_at_zero_is_not_known_and_gives_way_to_one_that_is():
    approximation = DiagLaplace(network(), prior_mean=0.5).fit()
    assert as_bayesian_network(approximation).prior is None
    written = written_like(replace(gaussians(), prior_variances=0.5), approximation)
    assert set(as_bayesian_network(written).prior.values()) == {0.5}


def test_other_laplace_approximations_are_refused_with_the_one_to_use():
    for kind in (KronLaplace, DiagLLLaplace, BaseLaplace):
        assert is_bayesian(kind(network()))
        with pytest.raises(UnsupportedError, match=rf'site A: a {kind.__name__} is no .*hessian_structure="diag"'):
            as_bayesian_network(kind(network()).fit(), name="site A")
    with pytest.raises(UnsupportedError, match="a DiagLaplace for regression: only classifiers are fused"):
        as_bayesian_network(DiagLaplace(network(), "regression").fit())
    with pytest.raises(InputError, match=r"is not fitted; call `fit\(train_loader\)` first"):
        as_bayesian_network(DiagLaplace(network()))
    frozen = network()
    frozen[0].weight.requires_grad_(False)
    with pytest.raises(InputError, match=r"model: 0\.weight: frozen, so that there is no variance of it") as caught:
        as_bayesian_network(DiagLaplace(frozen).fit())
    assert len(caught.value.problems) == 1


# -- layers with means and rho, by stand-ins for bayesian-torch and blitz


class BaseVariationalLayer_(nn.Module):  # noqa: N801 - the library's name
    """The base of bayesian-torch's layers."""

    __module__ = "bayesian_torch.layers.base_variational_layer"


class LinearReparameterization(BaseVariationalLayer_):
    """bayesian-torch's linear layer, whose prior's standard deviation is called its variance."""

    __module__ = "bayesian_torch.layers.variational_layers.linear_variational"
    what = "weight"

    def __init__(self, rows, columns, prior_variance=1.0, prior_mean=0.0, kept=False):
        super().__init__()
        self.prior_variance, self.prior_mean, self.bias, self.kept = prior_variance, prior_mean, True, kept
        self.last = None
        for name, shape in ((self.what, (columns, rows)), ("bias", (columns,))):
            self.register_parameter(f"mu_{name}", nn.Parameter(torch.randn(shape)))
            self.register_parameter(f"rho_{name}", nn.Parameter(torch.randn(shape) - 1.0))
            self.register_buffer(f"eps_{name}", torch.zeros(shape))
            self.register_buffer(f"prior_{name}_mu", torch.zeros(shape))

    def drawn(self, name):
        mean, rho = getattr(self, f"mu_{name}"), getattr(self, f"rho_{name}")
        return mean + torch.log1p(torch.exp(rho)) * getattr(self, f"eps_{name}").normal_()

    def forward(self, x):
        weight = self.drawn(self.what)
        self.last = weight if self.kept else None
        return nn.functional.linear(x, weight, self.drawn("bias"))


class KernelReparameterization(LinearReparameterization):
    """With the name that bayesian-torch's convolutions have for weights."""

    __module__ = "bayesian_torch.layers.variational_layers.conv_variational"
    what = "kernel"


class BayesianModule(nn.Module):
    """The base of blitz's layers."""

    __module__ = "blitz.modules.base_bayesian_module"


class Sampler(nn.Module):
    """What blitz draws from: the layer's own values under other names."""

    def __init__(self, mean, rho):
        super().__init__()
        self.mu, self.rho = nn.Parameter(mean), nn.Parameter(rho)
        self.register_buffer("eps_w", torch.zeros(mean.shape))

    def sample(self):
        return self.mu + torch.log1p(torch.exp(self.rho)) * self.eps_w.normal_()


class BayesianLinear(BayesianModule):
    """blitz's linear layer, which has the parameters of a bias also when it uses none."""

    __module__ = "blitz.modules.linear_bayesian_layer"

    def __init__(self, rows, columns, bias=True, prior_pi=1):
        super().__init__()
        self.bias, self.prior_pi, self.prior_sigma_1, self.prior_dist = bias, prior_pi, 0.5, None
        for name, shape in (("weight", (columns, rows)), ("bias", (columns,))):
            mean, rho = nn.Parameter(torch.randn(shape)), nn.Parameter(torch.randn(shape) - 1.0)
            setattr(self, f"{name}_mu", mean)
            setattr(self, f"{name}_rho", rho)
            setattr(self, f"{name}_sampler", Sampler(mean, rho))

    def forward(self, x):
        bias = self.bias_sampler.sample() if self.bias else None
        return nn.functional.linear(x, self.weight_sampler.sample(), bias)


def variational(first=LinearReparameterization, second=KernelReparameterization, **options):
    torch.manual_seed(0)
    return nn.Sequential(first(4, 5), nn.Tanh(), second(5, 3, **options))


LIBRARIES = [
    (
        variational,
        {"prior_variance": 0.7},
        network,
        {"0.weight": 1.0, "0.bias": 1.0, "2.weight": 0.7**2, "2.bias": 0.7**2},
    ),
    (lambda **o: variational(BayesianLinear, BayesianLinear, **o), {}, network, dict.fromkeys(gaussians().means, 0.25)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "options", "plain", "prior"), LIBRARIES, ids=["bayesian-torch", "blitz"])
def test_layers_with_rho_predict_as_the_network_that_they_become_and_so_do_written_ones(make, options, plain, prior):
    model = make(**options)
    assert is_bayesian(model)
    bnn = as_bayesian_network(model, plain())
    assert bnn.prior == prior
    assert_predicts(bnn, torch.stack([model(inputs()) for _ in range(SAMPLES)]).softmax(dim=-1))
    assert_same(as_bayesian_network(written_like(bnn, model), plain()), bnn)
    other = gaussians(seed=1)
    written = written_like(other, model)
    assert_same(as_bayesian_network(written, plain()), other)
    assert_predicts(other, torch.stack([written(inputs()) for _ in range(SAMPLES)]).softmax(dim=-1))
    assert_same(as_bayesian_network(model, plain()), bnn, 0.0)
    assert_same(as_bayesian_network(model.state_dict(), plain()), bnn, 0.0)
    assert_same(as_bayesian_network(written_like(other, model.state_dict()), plain()), other)


def test_a_layer_that_keeps_its_last_sample_can_be_written():
    model = variational(kept=True)
    model(inputs())
    assert_same(as_bayesian_network(written_like(gaussians(), model), network()), gaussians())


def test_what_layers_share_with_a_network_are_no_arrays_of_one_another():
    model = variational()
    bnn = as_bayesian_network(model, network())
    before = bnn.means["0.weight"].clone()
    written = written_like(bnn, model)
    with torch.no_grad():
        model[0].mu_weight.add_(1.0)
        written[0].mu_weight.add_(1.0)
    torch.testing.assert_close(bnn.means["0.weight"], before, rtol=0, atol=0)


def test_layers_of_blitz_without_a_bias_have_none_and_priors_that_are_mixtures_are_not_known():
    model = variational(BayesianLinear, BayesianLinear, bias=False, prior_pi=0.5)
    bnn = as_bayesian_network(model, network(bias=False))
    assert list(bnn.means) == ["0.weight", "0.bias", "2.weight"]
    assert bnn.prior is None
    assert as_bayesian_network(variational(prior_mean=1.0), network()).prior is None


def test_the_variance_of_a_prior_is_taken_as_it_is_where_the_layer_is_nobodys():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.mu_weight, self.rho_weight = nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.zeros(3, 2))
            self.prior_variance = 0.3

    assert as_bayesian_network(Own()).prior == {"weight": 0.3}


def test_statistics_that_layers_lie_between_go_with_them_both_ways():
    def between(layers):
        return nn.Sequential(layers[0], nn.BatchNorm1d(5, affine=False), layers[1])

    model = between([LinearReparameterization(4, 5), LinearReparameterization(5, 3)])
    model[1].running_mean += 2.0
    plain = between([nn.Linear(4, 5), nn.Linear(5, 3)])
    for source in (model, model.state_dict()):
        bnn = as_bayesian_network(source, plain)
        torch.testing.assert_close(bnn.module[1].running_mean, model[1].running_mean)
        torch.testing.assert_close(plain[1].running_mean, torch.zeros(5))
        bnn.module[1].running_mean += 1.0
        torch.testing.assert_close(written_like(bnn, model)[1].running_mean, torch.full((5,), 3.0))
        assert torch.equal(written_like(bnn, model.state_dict())["1.running_mean"], torch.full((5,), 3.0))


# -- dicts

FORMS = {
    "variance": lambda v: v,
    "std": np.sqrt,
    "log_variance": np.log,
    "log_var": np.log,
    "logvar": np.log,
    "log_std": lambda v: np.log(v) / 2,
    "rho": lambda v: np.log(np.expm1(np.sqrt(v))),
}


def flat(bnn, word, mean="mean", mark="."):
    found = {f"{key}{mark}{mean}": values.numpy() for key, values in bnn.means.items()}
    return found | {f"{key}{mark}{word}": FORMS[word](values.numpy()) for key, values in bnn.variances.items()}


@pytest.mark.parametrize("mark", [".", "_"])
@pytest.mark.parametrize("word", FORMS)
def test_a_flat_dict_tells_by_its_names_what_it_holds_and_is_written_for_any_width(word, mark):
    bnn = gaussians(dtype=torch.float64)
    given = flat(bnn, word, "mu", mark)
    assert is_bayesian(given)
    assert_same(as_bayesian_network(given, bnn.module), bnn, ROUNDING)
    wide = gaussians(hidden=9, seed=2, dtype=torch.float64)
    written = written_like(wide, given)
    assert list(written) == list(given)
    assert all(isinstance(values, np.ndarray) and values.dtype == np.float64 for values in written.values())
    assert_same(as_bayesian_network(written, wide.module), wide, ROUNDING)


def test_a_pair_of_dicts_is_means_and_log_variances_of_any_width():
    bnn = gaussians()
    given = dict(bnn.means), {key: values.log() for key, values in bnn.variances.items()}
    assert is_bayesian(given)
    assert_same(as_bayesian_network(given, network()), bnn)
    wide = gaussians(hidden=9, seed=2, dtype=torch.float64)
    written = written_like(wide, given)
    assert all(values.dtype == torch.float32 for one in written for values in one.values())
    double = {k: v.double() for k, v in given[0].items()}, {k: v.double() for k, v in given[1].items()}
    assert_same(as_bayesian_network(written_like(wide, double), wide.module), wide, ROUNDING)
    np.testing.assert_allclose(
        as_bayesian_network(written, network(9)).variances["0.weight"],
        wide.variances["0.weight"],
        rtol=SINGLE_PRECISION,
    )


def test_variances_that_stand_where_log_variances_should_are_refused():
    bnn = gaussians()
    with pytest.raises(InputError, match=r"every log-variance is positive, as variances are; .*0\.weight\.variance"):
        as_bayesian_network((bnn.means, bnn.variances), network())


def test_large_and_tiny_rho_go_both_ways_as_exact_as_their_precision():
    rho = {"weight.mu": np.zeros(5), "weight.rho": np.array([-300.0, -40.0, 0.0, 40.0, 1e4])}
    again = written_like(as_bayesian_network(rho), rho)
    np.testing.assert_allclose(again["weight.rho"], rho["weight.rho"], rtol=ROUNDING, atol=ROUNDING)


# -- what is told from what, and refusals


def test_ordinary_networks_and_dicts_are_not_bayesian():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight_mu, self.weight_sigma = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.ones(2))

    normed = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
    state = {**network().state_dict(), "norm.mean": torch.zeros(4), "norm.std": torch.ones(4)}
    for model in (network(), normed, normed.state_dict(), state, Noisy(), {}, ({}, {}), [], None, 3, "a.safetensors"):
        assert not is_bayesian(model)
    with pytest.raises(
        UnsupportedError, match=r"site A: .*Sequential is no Bayesian neural network of a known kind; known"
    ):
        as_bayesian_network(network(), name="site A")
    with pytest.raises(InputError, match=r"model: weight_mu has no variance; give weight_rho too"):
        as_bayesian_network(Noisy())


def test_a_network_of_ours_is_returned_under_another_name():
    bnn = gaussians()
    found = as_bayesian_network(bnn, name="site A")
    assert (found.name, found.module) == ("site A", bnn.module)
    assert_same(found, bnn, 0.0)
    assert written_like(replace(bnn, module=None), found).module is bnn.module


def test_every_problem_of_a_module_is_named_as_its_user_knows_it():
    model = variational()
    with torch.no_grad():
        model[0].rho_bias.fill_(-200.0)
        model[2].mu_kernel[0, 0] = torch.nan
    del model[2].rho_bias
    model[2].rho_bias = None
    model.append(nn.Linear(3, 3, bias=False))
    with pytest.raises(InputError) as caught:
        as_bayesian_network(model, network(bias=True), "site A")
    text = str(caught.value)
    assert (
        "0.rho_bias: its variances are not positive in torch.float32 (rho -200); give every weight a positive" in text
    )
    assert "2.mu_kernel has NaN or infinite values" in text
    assert "2.mu_bias has no variance; give 2.rho_bias too" in text
    assert "3.weight: a parameter without a distribution; give a pair of dicts" in text
    assert "nothing here is the module's parameter 2.bias" in text


def test_every_problem_of_a_dict_is_named():
    given = {
        "0.weight.mean": np.zeros((5, 4)),
        "0.weight.std": -np.ones((5, 4)),
        "0.bias.mean": np.zeros(5),
        "0.bias.variance": np.zeros(6),
        "2.weight.mean": np.zeros((3, 5)),
        "2.weight.mu": np.zeros((3, 5)),
        "2.weight.log_std": np.zeros((3, 5)),
        "2.bias.log_variance": np.zeros(3),
        "other": np.zeros(3),
        "5.bias.mean": np.zeros(3),
        "5.bias.variance": np.ones(3),
        "6.bias.mean": np.zeros(3, dtype=int),
        "6.bias.variance": np.ones(3),
    }
    with pytest.raises(InputError) as caught:
        as_bayesian_network(given, network(), "a.npz")
    text = str(caught.value)
    for part in (
        "2.weight.mean and 2.weight.mu both state 2.weight; keep one of them",
        "2.bias.log_variance has no mean; give 2.bias.mean too",
        "other: neither means nor variances by name; give a pair of dicts",
        "0.weight.std: its variances are not positive in float64 (deviation -1)",
        "0.bias.variance has shape (6,), but 0.bias.mean (5,)",
        "5.bias.mean: the module has no parameter 5.bias",
        "6.bias.mean holds int64, not floats",
    ):
        assert part in text
    assert all(line.startswith("a.npz: ") for line in caught.value.problems)
    with pytest.raises(InputError, match=r"model: 0\.weight\.mean, 0\.weight\.std: expected arrays or tensors by name"):
        as_bayesian_network({"0.weight.mean": [0.0], "0.weight.std": [1.0]})
    with pytest.raises(InputError, match="b: a log-variance, but no mean; give both"):
        as_bayesian_network(({"a": np.zeros(2)}, {"a": np.zeros(2), "b": np.zeros(2)}))
    with pytest.raises(InputError, match="has no weights with a distribution"):
        as_bayesian_network(({}, {}))
    with pytest.raises(InputError, match=r"weight\.log_variance: its variances overflow in float32"):
        as_bayesian_network({"weight.mean": np.zeros(2, "f"), "weight.log_variance": np.full(2, 300.0, "f")})


def test_blitz_samplers_that_hold_other_values_than_their_layer_are_refused():
    state = copy.deepcopy(variational(BayesianLinear, BayesianLinear).state_dict())
    state["0.weight_sampler.mu"] = state["0.weight_sampler.mu"] + 1.0
    with pytest.raises(InputError, match=r"0\.weight_mu and 0\.weight_sampler\.mu differ; copy what is sampled from"):
        as_bayesian_network(state)


@pytest.mark.usefixtures("pyro_seed")
def test_what_has_layers_of_another_width_or_other_names_is_not_written():
    wide, odd = gaussians(hidden=9), as_bayesian_network({"a.mean": torch.zeros(2), "a.std": torch.ones(2)})
    approximation = DiagLaplace(network()).fit()
    for like in (approximation, variational(), fitted(AutoNormal, Classifier(), steps=1), replace(gaussians())):
        with pytest.raises(
            UnsupportedError, match=r"other widths: 0\.weight \(9, 4\) and not \(5, 4\).*take its means"
        ):
            written_like(replace(wide, module=None), like)
    for like in (approximation, variational(), flat(gaussians(), "std"), (gaussians().means, gaussians().variances)):
        with pytest.raises(InputError, match=r"in one of them only; give a model of its architecture"):
            written_like(odd, like)
    with pytest.raises(UnsupportedError, match="known kind"):
        written_like(wide, network())
    with pytest.raises(InputError, match=r"expected a consilience\.BayesianNetwork, found Sequential"):
        written_like(network(), flat(wide, "std"))
    with pytest.raises(InputError, match="module: expected a torch module, found int"):
        as_bayesian_network(flat(wide, "std"), 3)
