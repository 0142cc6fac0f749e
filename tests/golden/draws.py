"""Golden fusions of posterior draws by every method, of constrained parameters, and of mixtures whose labels switch.

Draws of sites come from a generator, and fused ones are recorded by what any rounding leaves alone: files and draws.
"""

import numpy as np

import consilience as cs
from consilience.draws.methods import DRAWS_METHODS
from tests.golden.table import case, cases, saved

N_SITES = 3
METHODS = {method.name: method for method in DRAWS_METHODS}


def sites(power=1.0):
    """Return draws of a coefficient vector and a positive deviation at three sites."""
    found = {}
    for seed, name in enumerate(("lund", "oslo", "riga")):
        rng = np.random.default_rng(seed)
        beta = rng.normal([0.0, 1.0], 0.5, size=(2, 300, 2)) + 0.1 * seed
        sigma = np.exp(0.2 * rng.normal(size=(2, 300)))
        told = {"constraints": {"sigma": "positive"}, "likelihood_power": power, "n_observations": 200}
        found[name] = cs.Draws({"beta": beta, "sigma": sigma}, prior=1 / N_SITES, **told)
    return found


@cases("draws: {}", METHODS)
def draws(folder, method):
    chosen = method(sweeps=200) if method is cs.methods.DensityProduct else method()
    return saved(cs.fuse(sites(N_SITES if method is cs.methods.WASP else 1.0), chosen), folder)


@case("draws: a whole prior divided out")
def whole_prior(folder):
    laws = {"beta": ("normal", 0, 3), "sigma": ("half_normal", 2)}
    told = {"prior": laws, "constraints": {"sigma": "positive"}}
    whole = {name: cs.Draws(dict(site.variables), **told) for name, site in sites().items()}
    return saved(cs.fuse(whole, "consensus_mc"), folder)


@case("draws: components relabelled")
def relabelled(folder):
    found = {}
    for seed, name in enumerate(("lund", "oslo")):
        rng = np.random.default_rng(seed)
        mu = np.array([-2.0, 0.0, 2.0]) + 0.2 * rng.normal(size=(2, 200, 3))
        weights = rng.dirichlet([30.0, 20.0, 10.0], size=(2, 200))
        order = rng.permuted(np.tile(np.arange(3), (2, 200, 1)), axis=2)
        values = {"mu": np.take_along_axis(mu, order, 2), "w": np.take_along_axis(weights, order, 2)}
        found[name] = cs.Draws(values, prior=0.5, constraints={"w": "simplex"}, exchangeable=("mu", "w"))
    return saved(cs.fuse(found), folder)
