"""Specimens of the kinds of requests: a fused model, and the rows of its sites."""

from functools import cache

import numpy as np
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression

import consilience as cs
from consilience.federated import REQUEST_KINDS
from consilience.federated.requests.table import request_kind
from tests.federated import network_sites
from tests.federated.network_sites import networks
from tests.federated.rounds import mixture, rows
from tests.specimens import Specimens

NAMES = [kind.name for kind in REQUEST_KINDS]


@cache
def mixtures():
    """Return a fusion of mixtures, and the rows of its sites."""
    return cs.fuse([mixture(seed) for seed in range(3)]), {site: rows(seed) for seed, site in enumerate("abc")}


@cache
def regressions():
    """Return a product of logistic regressions of three classes, and the rows of its sites."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(240, 3))
    y = np.argmax(X @ rng.normal(size=(3, 3)) + rng.gumbel(size=(240, 3)), axis=1)
    data = {site: (X[seed::3], y[seed::3]) for seed, site in enumerate("abc")}
    return cs.fuse({site: cs.describe(LogisticRegression(tol=1e-8).fit(*own), own) for site, own in data.items()}), data


@cache
def discriminants():
    """Return a fusion of discriminant analyses that shrink by fourth moments, and the rows of its sites."""
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=240)
    X = rng.standard_t(5, size=(240, 4)) + np.eye(3, 4)[y]
    data = {site: (X[seed::3], y[seed::3]) for seed, site in enumerate("abc")}
    fitted = {site: LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(*own) for site, own in data.items()}
    return cs.fuse({site: cs.describe(model, data[site]) for site, model in fitted.items()}), data


def poisson_density(draws, rows):
    """Return the log density of a Poisson rate, its prior gamma(2, 1) to the power 1/3."""
    rate = draws["rate"]
    return (np.sum(rows) + 1 / 3) * np.log(rate) - (len(rows) + 1 / 3) * rate


@cache
def subposteriors():
    """Return fused draws of a Poisson rate, and the counts of its sites."""
    rng = np.random.default_rng(0)
    data = {site: rng.poisson(3.0, size=12).astype(float) for site in "abc"}
    sent = {
        site: cs.Draws(
            {"rate": rng.gamma(rows.sum() + 4 / 3, 1 / (len(rows) + 1 / 3), size=(4, 500))},
            prior=1 / 3,
            constraints={"rate": "positive"},
            n_observations=len(rows),
        )
        for site, rows in data.items()
    }
    return cs.fuse(sent), data


@cache
def candidates():
    """Return a fusion of networks with several candidates, and the rows that its sites held out."""
    described = {site: cs.describe(network_sites.own(site), network_sites.SITES[site]) for site in network_sites.SITES}
    fusion = cs.fuse(described, cs.methods.Auto(n_inputs=200, steps=20))
    return fusion, {site: network_sites.rows(10 + seed, 60 + seed) for seed, site in enumerate("abc")}


SPECIMENS = Specimens(
    "SPECIMENS in tests/federated/request_kinds_zoo.py",
    {
        "em": mixtures,
        "refine": regressions,
        "head": networks,
        "gram": networks,
        "chain": networks,
        "moments4": discriminants,
        "density": subposteriors,
        "choose": candidates,
    },
)
"""What gives a fused model and the data of every site, by kind."""


def module_of(kind, fusion, site):
    """Return what a site answers with beside its data; None for kinds that need nothing."""
    if kind == "density":
        return poisson_density
    return request_kind(kind).site_module(fusion, site) if request_kind(kind).needs_module else None
