"""Golden fusions of Bayesian networks with drawn moments: objects, files, and as other libraries have them."""

from functools import cache
from itertools import pairwise

import numpy as np
import torch
from torch import nn

import consilience as cs
from tests.golden.table import case, cases, saved

WIDTHS = (3, 5, 4, 2)


def module_of(widths=WIDTHS):
    """Return a module with drawn parameters: what PyTorch initialises them with is not the same twice."""
    parts = [part for into, out in pairwise(widths) for part in (nn.Linear(into, out), nn.Tanh())]
    module = nn.Sequential(*parts[:-1]).double()
    module.load_state_dict(moments(99, widths)[0])
    return module


def moments(seed, widths=WIDTHS):
    """Return means and variances by name."""
    rng = np.random.default_rng([seed, 20])
    means, variances = {}, {}
    for number, (into, out) in enumerate(pairwise(widths)):
        for name, shape in ((f"{2 * number}.weight", (out, into)), (f"{2 * number}.bias", (out,))):
            means[name] = torch.as_tensor(rng.normal(size=shape))
            variances[name] = torch.as_tensor(rng.uniform(0.05, 0.5, shape))
    return means, variances


def bnn(seed, widths=WIDTHS, **fields):
    return cs.BayesianNetwork(module_of(widths), *moments(seed, widths), prior_variances=1.0, **fields)


def inputs(count=4):
    return torch.as_tensor(np.random.default_rng(21).normal(size=(count, WIDTHS[0])))


@cache
def symmetry():
    return cs.symmetry(module_of(), inputs())


METHODS = {
    "kl": {"method": "kl"},
    "kl, share": {"method": "kl", "outgoing": "share", "weights": [3.0, 1.0, 2.0]},
    "kl, bounded": {"method": "kl", "max_units": 6, "restarts": 2, "regularization": 0.5},
    "kl, lacking prior": {"method": "kl", "lacking": "prior", "prior_variance": 2.0},
    "kl, side by side": {"method": "kl", "regularization": 0.0, "outgoing": "share"},
    "w2": {"method": "w2"},
    "w2, weights": {"method": "w2", "weights": [3.0, 1.0, 2.0], "restarts": 1, "reference": 1},
    "w2, means": {"method": "w2", "metric": "means"},
    "w2, kl": {"method": "w2", "metric": "kl"},
    "w2, kl reverse": {"method": "w2", "metric": "kl_reverse"},
    "w2, hellinger": {"method": "w2", "metric": "hellinger"},
    "w2, trim": {"method": "w2", "robust": "trim", "trim": 0.4},
    "average": {"method": "average"},
    "average, median": {"method": "average", "robust": "median"},
    "ensemble": {"method": "ensemble"},
}


@cases("Bayesian networks: {}", METHODS)
def _fused(folder, options):
    fusion = cs.fuse([bnn(seed) for seed in range(3)], symmetry=symmetry(), example=inputs(), **options)
    answers = fusion.model.predict(inputs(), samples=4)
    return {**({"fused": fusion} if fusion.keeps_models else saved(fusion, folder)), "answers": answers}


FILES = {method: method for method in ("kl", "w2", "average")}


@cases("Bayesian networks in files: {}", FILES)
def _files(folder, method):
    paths = []
    for seed in range(3):
        paths.append(folder / f"site-{seed}.safetensors")
        cs.save(bnn(seed, classes=("no", "yes")), paths[-1], symmetry=symmetry())
    fusion = cs.fuse(paths, method)
    loaded = cs.load(paths[0]).with_module(module_of())
    return {"site saved": paths[0], **saved(fusion, folder), "loaded": loaded.predict(inputs(), samples=4)}


DEFAULTS = {"described": True, "not described": False}


@cases("Bayesian networks by default: {}", DEFAULTS)
def _default(folder, is_described):
    models = [bnn(seed) for seed in range(3)]
    if is_described:
        rng = np.random.default_rng(22)
        labels = [rng.integers(0, 2, 150) for _ in models]
        rows = [torch.as_tensor(rng.normal(size=(150, WIDTHS[0])) + of_site[:, None]) for of_site in labels]
        models = [cs.describe(*one) for one in zip(models, zip(rows, labels, strict=True), strict=True)]
    fusion = cs.fuse(models, example=inputs(), n_inputs=200, n_samples=4)
    return {**saved(fusion, folder), "answers": fusion.model.predict(inputs(), samples=4)}


@case("Bayesian networks of different widths")
def _widths(folder):
    models = [bnn(seed, widths) for seed, widths in enumerate(((3, 5, 4, 2), (3, 6, 5, 2)))]
    return saved(cs.fuse(models, "kl", example=inputs()), folder)


def as_pair(seed):
    means, variances = moments(seed)
    return {name: m.numpy() for name, m in means.items()}, {name: v.log().numpy() for name, v in variances.items()}


def as_dict(seed):
    means, variances = moments(seed)
    deviations = {f"{name}.std": v.sqrt().numpy() for name, v in variances.items()}
    return {**{f"{name}.mean": m.numpy() for name, m in means.items()}, **deviations}


class Variational(nn.Module):
    """A layer as bayesian-torch keeps it."""

    def __init__(self, mean, variance, bias, bias_variance):
        super().__init__()
        self.mu_weight, self.mu_bias = nn.Parameter(mean), nn.Parameter(bias)
        self.rho_weight, self.rho_bias = (
            nn.Parameter(torch.log(torch.expm1(torch.sqrt(v)))) for v in (variance, bias_variance)
        )

    def forward(self, x):
        return nn.functional.linear(x, self.mu_weight, self.mu_bias)


def as_layers(seed):
    means, variances = moments(seed)
    parts = []
    for number in range(len(WIDTHS) - 1):
        names = f"{2 * number}.weight", f"{2 * number}.bias"
        parts += [Variational(*(array[name] for name in names for array in (means, variances))), nn.Tanh()]
    return nn.Sequential(*parts[:-1])


class BaseLaplace:
    """The documented attributes of laplace-torch's approximations, which is more than the tests should need."""

    __module__ = "laplace.baselaplace"


class DiagLaplace(BaseLaplace):
    __module__ = "laplace.baselaplace"

    def __init__(self, seed):
        means, variances = moments(seed)
        self.model, self.likelihood, self.temperature, self.n_data = module_of(), "classification", 0.5, 40
        self.model.load_state_dict(means)
        self.params = list(self.model.parameters())
        self.prior_precision, self.prior_mean, self.sigma_noise = torch.ones(1), torch.tensor(0.0), torch.tensor(1.0)
        self.mean = torch.cat([means[name].reshape(-1) for name in means])
        self.H = 0.5 / torch.cat([variances[name].reshape(-1) for name in means])

    @property
    def prior_precision_diag(self):
        return self.prior_precision.double().expand(len(self.mean))

    @property
    def posterior_variance(self):
        return 1.0 / (self.H / self.temperature + self.prior_precision_diag)


OTHERS = {"a pair": as_pair, "a dict": as_dict, "layers": as_layers, "laplace-torch": DiagLaplace}


def _of_another_library(models, folder, written=True):
    fusion = cs.fuse(models, "w2", module=module_of(), example=inputs())
    taken = cs.as_bayesian_network(models[1], module=module_of())
    found = {**saved(fusion, folder), "taken": taken}
    if written:
        again = cs.written_like(fusion.model, models[0])
        found["written"] = cs.as_bayesian_network(again, module=module_of())
    return found


@cases("Bayesian networks of other libraries: {}", OTHERS)
def _others(folder, maker):
    return _of_another_library([maker(seed) for seed in range(2)], folder)


def by_pyro(kind):
    """Return guides of Pyro, called once so that they know their model, then filled."""
    import pyro
    from pyro import distributions
    from pyro.nn import PyroModule, PyroSample

    class Classifier(PyroModule):
        def __init__(self):
            super().__init__()
            self.net = module_of()
            pyro.nn.module.to_pyro_module_(self.net)
            for layer in self.net:
                for name, values in list(layer.named_parameters()):
                    prior = distributions.Normal(torch.zeros_like(values), 1.0).to_event(values.ndim)
                    setattr(layer, name, PyroSample(prior))

        def forward(self, x):
            logits = self.net(x)
            with pyro.plate("data", len(x)):
                return pyro.sample("y", distributions.Categorical(logits=logits))

    made = []
    for seed in range(2):
        pyro.clear_param_store()
        pyro.set_rng_seed(seed)
        guide = kind(pyro.poutine.block(Classifier(), hide=["y"]), init_scale=0.2)
        guide(inputs())
        means, variances = moments(seed)
        with torch.no_grad():
            if hasattr(guide, "locs"):
                for name in means:
                    number, array = name.split(".")
                    setattr(getattr(guide.locs.net, number), array, means[name])
                    setattr(getattr(guide.scales.net, number), array, variances[name].sqrt())
            else:
                guide.loc = nn.Parameter(torch.cat([means[name].reshape(-1) for name in means]))
                guide.scale = torch.cat([variances[name].sqrt().reshape(-1) for name in means])
        made.append(guide)
    return made


@cases("Bayesian networks of Pyro: {}", {name: name for name in ("AutoDiagonalNormal", "AutoNormal")})
def _pyro(folder, name):
    from pyro.infer import autoguide

    return _of_another_library(by_pyro(getattr(autoguide, name)), folder)


@case("Bayesian networks compared: scores and the barrier between")
def _compared(_folder):
    models = [bnn(seed) for seed in range(2)]
    truth = np.random.default_rng(22).integers(2, size=30)
    scores = cs.predictive_scores(models[0].predict(inputs(30), samples=4), truth)
    barriers = {
        path: cs.predictive_barrier(*models, inputs(30), truth, path=path, points=3, samples=4).values
        for path in ("wasserstein", "natural", "mixture")
    }
    numbers = ("accuracy", "log_likelihood", "entropy", "calibration_error", "brier", "entropies", "predicted")
    return {"scores": {name: getattr(scores, name) for name in numbers}, "barriers": barriers}
