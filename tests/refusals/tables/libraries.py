"""What is refused of other libraries' models: hidden Markov models, Gaussian processes, states."""

from __future__ import annotations

import math

import numpy as np
import pandas
import statsmodels.formula.api as smf
import torch
from hmmlearn.hmm import CategoricalHMM, GaussianHMM

import consilience as cs
from tests.cli.bad_files import TENSORS, forged
from tests.refusals.tables.checkpoints import fused, sites
from tests.refusals.tables.nets import bayesian, bayesians, mlp, symmetry
from tests.refusals.tables.things import by_fuse_and_check, each, gamma, normal, rows, written


def hidden(**changes):
    """Return a hidden Markov model of two states, as if it were fitted, some parameters changed."""
    model = GaussianHMM(2, covariance_type="diag")
    model.n_features = 2
    model.startprob_, model.transmat_ = np.array([0.5, 0.5]), np.array([[0.9, 0.1], [0.2, 0.8]])
    model.means_, model.covars_ = np.array([[0.0, 0.0], [5.0, 5.0]]), np.ones((2, 2))
    for name, value in changes.items():
        setattr(model, name, value)
    return model


def gaussian_process(seed=0, kernel="rbf", **options):
    """Return a sparse Gaussian process of few rows."""
    x = rows(seed, count=12)
    learner = cs.learners.TitsiasGP(n_inducing=3, kernel=kernel, noise=0.1, **options)
    return learner.fit(x, x.sum(axis=1))


def states(**changes):
    """Return means and log-variances by name, as another library saves them."""
    own = bayesian()
    found = {f"{name}_mu": values for name, values in own.means.items()}
    found |= {f"{name}_log_var": torch.log(values) for name, values in own.variances.items()}
    found |= {name.replace("__", "."): values for name, values in changes.items()}
    return {name: values for name, values in found.items() if values is not None}


def regressions(first, second, **options):
    """Return results of statsmodels of two sites, by a formula each."""
    sites = []
    for seed, formula in enumerate((first, second)):
        table = pandas.DataFrame(rows(seed, dim=3) + seed, columns=["x", "y", "t"])
        sites.append(smf.ols(formula, table).fit(**options))
    return sites, {}


LIBRARIES = {
    **by_fuse_and_check({
        "results of statsmodels, standardize(x)": lambda: regressions("y ~ standardize(x)", "y ~ standardize(x)"),
        "results of statsmodels, splines": lambda: regressions("y ~ bs(x, df=4)", "y ~ bs(x, df=4)"),
        "results of statsmodels, means of a column": lambda: regressions("y ~ I(x - x.mean())", "y ~ I(x - x.mean())"),
        "results of statsmodels, two outcomes": lambda: regressions("y ~ x", "np.log(t + 99) ~ x"),
        "results of statsmodels, robust": lambda: regressions("y ~ x", "y ~ x", cov_type="HC3"),
    }),
    "describe, statsmodels, fit_regularized": lambda at: cs.describe(
        smf.ols("y ~ x", pandas.DataFrame(rows(), columns=["x", "y"])).fit_regularized(alpha=1.0)
    ),
    "describe, statsmodels, another model": lambda at: cs.describe(
        smf.quantreg("y ~ x", pandas.DataFrame(rows(), columns=["x", "y"])).fit()
    ),
    "describe, statsmodels, not fitted": lambda at: cs.describe(
        smf.ols("y ~ x", pandas.DataFrame(rows(), columns=["x", "y"]))
    ),
    **each("describe, hidden Markov model, ", {
        "not fitted": lambda: GaussianHMM(2), "symbols, not fitted": lambda: CategoricalHMM(2),
        "NaN means": lambda: hidden(means_=np.full((2, 2), np.nan)),
        "means of another shape": lambda: hidden(means_=np.ones((3, 2))),
        "negative startprob_": lambda: hidden(startprob_=np.array([1.5, -0.5])),
        "startprob_ of another sum": lambda: hidden(startprob_=np.array([0.5, 0.6])),
        "transmat_ of another sum": lambda: hidden(transmat_=np.ones((2, 2))),
    }, lambda make: cs.describe(make(), n_observations=60)),
    "describe, hidden Markov model, no samples": lambda at: cs.describe(hidden(), n_observations=-1),
    **each("as_bayesian_network, states: ", {
        "a mean alone": (states(**{"0__bias_log_var": None}), mlp()),
        "a log-variance alone": (states(**{"0__bias_mu": None}), mlp()),
        "another shape": (states(**{"0__bias_log_var": torch.zeros(4)}), mlp()),
        "NaN": (states(**{"0__bias_mu": torch.full((5,), math.nan)}), mlp()),
        "a parameter more": (states(**{"more_mu": torch.zeros(2), "more_log_var": torch.zeros(2)}), mlp()),
        "another module": (states(), mlp(hidden=4)), "a module that is none": (states(), 5),
        "words": (states(**{"0__bias_mu": "zero"}), mlp()), "nothing": ({}, mlp()),
        "plain weights": (dict(mlp().state_dict()), mlp()),
    }, lambda given: cs.as_bayesian_network(*given)),
    "written_like, states of less": lambda at: cs.written_like(bayesian(), {"0.bias_mu": 0, "0.bias_log_var": 0}),
    **each("learners, TitsiasGP: ", {
        "no rows": {"X": np.zeros((0, 2)), "y": np.zeros(0)}, "a vector": {"X": np.zeros(4), "y": np.zeros(4)},
        "y with NaN": {"X": np.ones((4, 2)), "y": np.full(4, np.nan)}, "y of another length": {"X": np.ones((4, 2)),
        "y": np.ones(3)},
    }, lambda data: cs.learners.TitsiasGP(n_inducing=2).fit(data["X"], data["y"])),
    **each("learners, TitsiasGP, option ", {
        "n_inducing": {"n_inducing": 0}, "noise": {"noise": 0.0},
        "lengthscale_bounds": {"lengthscale_bounds": (2.0, 1.0)}, "learn_parameters": {"learn_parameters": False},
    }, lambda options: cs.learners.TitsiasGP(**options).fit(rows(0, 8), np.ones(8))),
    **each("learners, StickyHDPHMM, option ", {
        name: {name: -1.0} for name in ("n_states", "gamma", "kappa", "dof", "inverse_scale")
    }, lambda options: cs.learners.StickyHDPHMM(**options).fit(rows(0, 8))),
    "learners, StickyHDPHMM, NaN": lambda at: cs.learners.StickyHDPHMM().fit(rows(0, 8) * np.nan),
    "load, two thousand attached arrays": lambda at: cs.load(written("bad.safetensors", forged(
        {**TENSORS, **{f"attached.{n}": np.ones(1) for n in range(2000)}},
        attached={str(n): {"axes": ["fixed"], "rule": "mean"} for n in range(2000)}))),
    **each("fuse shards with an option that does not run: ", {
        "assignment": {"assignment": "relaxed"},
        "conjugate": {"method": "spahm", "likelihood": "conjugate"},
        "a product the other way": {"combine": "product", "direction": "reverse"},
    }, lambda options: fused(sites(normal(7, size=4)), **options)),
}  # fmt: skip

FUSED = by_fuse_and_check({
    "hidden Markov models and a posterior": lambda: ([hidden(), normal()], {"n_observations": [60, 60]}),
    "Gaussian processes of other kernels": lambda: ([gaussian_process(0), gaussian_process(1, "matern32")], {}),
    "Gaussian processes, robust": lambda: ([gaussian_process(n) for n in range(3)], {"robust": "trim"}),
    "a Gaussian process and a posterior": lambda: ([gaussian_process(), normal()], {}),
    "the wasserstein divergence of gammas": lambda: ([gamma(), gamma()], {"method": "kl", "divergence": "wasserstein"}),
    "conjugate with an improper prior": lambda: (
        [gamma(prior=np.zeros(2)), gamma(prior=np.zeros(2))], {"method": "spahm", "likelihood": "conjugate"}),
    "a Bayesian network of no symmetry beside states": lambda: (bayesians(), {"symmetry": symmetry(), "max_units": 0}),
    "posteriors without width as dp": lambda: ([gamma(), gamma()], {"method": "dp", "covariance_type": "round"}),
})  # fmt: skip

CASES = LIBRARIES | FUSED
