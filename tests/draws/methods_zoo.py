"""Every method for draws, and sites that it takes: what the laws of all methods run on."""

import consilience as cs
from consilience.draws.methods import DRAWS_METHODS
from tests.draws.sites import gaussian_sites
from tests.specimens import Specimens


def shared_prior(n_draws=400):
    return gaussian_sites(n_draws=n_draws)


def whole_prior(n_draws=400):
    """Sites whose likelihoods were raised to their number."""
    return gaussian_sites(n_draws=n_draws, likelihood_power=4.0)


SPECIMENS = Specimens(
    "SPECIMENS in tests/draws/methods_zoo.py",
    {
        "auto": (cs.methods.DrawsAuto(), shared_prior),
        "consensus_mc": (cs.methods.ConsensusMonteCarlo(), shared_prior),
        "gaussian_product": (cs.methods.GaussianProduct(), shared_prior),
        "semiparametric": (cs.methods.DensityProduct(sweeps=600), shared_prior),
        "wasp": (cs.methods.WASP(), whole_prior),
        "hierarchical": (cs.methods.HierarchicalDraws(), shared_prior),
    },
)
"""By the method's name: a method, and what makes sites of some draws, with mean and covariance of their product."""

NAMES = [method.name for method in DRAWS_METHODS]
"""What the laws run over: the table itself."""
