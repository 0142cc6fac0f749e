"""A model of every kind that a reader of Bayesian networks takes in, all of the same means and variances.

laplace-torch, bayesian-torch and blitz come with more than the tests should need, so that small classes stand in for
them, with the attributes that those libraries document.
"""

import pyro
import torch
from pyro import distributions
from pyro.infer.autoguide import AutoDiagonalNormal
from torch import nn

import consilience as cs
from consilience.networks.gaussian.readers.table import BAYESIAN_ADAPTERS
from tests.specimens import Specimens

SHAPES = {"0.weight": (5, 3), "0.bias": (5,), "2.weight": (2, 5), "2.bias": (2,)}


def module():
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def moments(seed=0):
    """Return means and variances by name."""
    draw = torch.Generator().manual_seed(seed)
    means = {name: torch.randn(shape, generator=draw, dtype=torch.float64) for name, shape in SHAPES.items()}
    spread = {name: torch.rand(shape, generator=draw, dtype=torch.float64) for name, shape in SHAPES.items()}
    return means, {name: 0.05 + 0.4 * values for name, values in spread.items()}


def flat(arrays):
    return torch.cat([values.reshape(-1) for values in arrays.values()])


class BaseLaplace:
    __module__ = "laplace.baselaplace"


class DiagLaplace(BaseLaplace):
    __module__ = "laplace.baselaplace"

    def __init__(self, means, variances):
        self.model, self.likelihood, self.temperature, self.n_data = module(), "classification", 1.0, 40
        self.model.load_state_dict(means)
        self.params = list(self.model.parameters())
        self.prior_precision, self.prior_mean, self.sigma_noise = torch.ones(1), torch.tensor(0.0), torch.tensor(1.0)
        self.mean, self.H = flat(means), 1.0 / flat(variances) - 1.0

    @property
    def prior_precision_diag(self):
        return self.prior_precision.double().expand(len(self.mean))

    @property
    def posterior_variance(self):
        return 1.0 / (self.H + self.prior_precision_diag)


class Variational(nn.Module):
    """A layer as bayesian-torch keeps it."""

    def __init__(self, mean, variance, bias, bias_variance):
        super().__init__()
        self.mu_weight, self.mu_bias = nn.Parameter(mean), nn.Parameter(bias)
        self.rho_weight, self.rho_bias = (
            nn.Parameter(torch.log(torch.expm1(torch.sqrt(values)))) for values in (variance, bias_variance)
        )

    def forward(self, x):
        return nn.functional.linear(x, self.mu_weight, self.mu_bias)


def _layers(means, variances):
    first, last = (
        Variational(*(part[f"{number}.{kind}"] for kind in ("weight", "bias") for part in (means, variances)))
        for number in (0, 2)
    )
    return nn.Sequential(first, nn.Tanh(), last)


def _pyro(means, variances):
    def model():
        for name, values in means.items():
            pyro.sample(name, distributions.Normal(torch.zeros_like(values), 1.0).to_event(values.ndim))

    pyro.clear_param_store()
    guide = AutoDiagonalNormal(model)
    guide()
    guide.loc = nn.Parameter(flat(means))
    guide.scale = flat(variances).sqrt()
    pyro.clear_param_store()
    return guide


def _pair(means, variances):
    logs = {name: values.log().numpy() for name, values in variances.items()}
    return {name: values.numpy() for name, values in means.items()}, logs


def _dict(means, variances):
    deviations = {f"{name}.std": values.sqrt().numpy() for name, values in variances.items()}
    return {**{f"{name}.mean": values.numpy() for name, values in means.items()}, **deviations}


SPECIMENS = Specimens(
    "SPECIMENS in tests/networks/gaussian/readers_zoo.py",
    {
        "consilience.BayesianNetwork": lambda means, variances: cs.BayesianNetwork(module(), means, variances),
        "laplace-torch's DiagLaplace": DiagLaplace,
        "Pyro's AutoDiagonalNormal or AutoNormal": _pyro,
        "a module with mu_weight and rho_weight or weight_mu and weight_rho (bayesian-torch, blitz)": _layers,
        "a pair of dicts (means, log-variances)": _pair,
        "a dict with NAME.mean and NAME.log_variance or NAME.variance": _dict,
    },
)
"""By what messages call the kind, what makes a model of means and variances; a new reader is a new entry here."""
KINDS = [adapter.kind for adapter in BAYESIAN_ADAPTERS]
"""What the laws run over: the table itself."""
