"""Every method for posteriors, and sites that it takes: what the laws of all methods run on."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import consilience as cs
from consilience.posteriors.method import Method
from consilience.posteriors.methods import METHODS
from tests.families.zoo import ZOO
from tests.specimens import Specimens


@dataclass(frozen=True)
class Specimen:
    """A method, and ``sites()``, which gives sites that it fuses."""

    method: Method
    sites: Callable[[], list[cs.Posterior]]


def sites_of(family, sizes):
    """Sites of one prior that hold some of four components, each site's a little moved, in orders of their own."""
    kind, rng = ZOO[family], np.random.default_rng([len(family), *sizes])
    shared, made = kind.draw(rng, 4), []
    for size in sizes:
        eta = kind.near(rng, shared[rng.permutation(4)[:size]], 0.05)
        moves = cs.Attached(rng.gamma(1.0, size=(size, size)), ("component", "component"), "sum")
        told = {"counts": rng.uniform(20, 80, size), "weights": rng.dirichlet(np.ones(size))}
        made.append(cs.Posterior(kind.family, eta, prior=kind.prior, attached={"moves": moves}, **told))
    return made


def _different():
    return sites_of("normal-wishart", (3, 2, 4))


def _alike():
    return sites_of("normal-wishart", (3, 3, 3))


SPECIMENS = Specimens(
    "SPECIMENS in tests/posteriors/methods_zoo.py",
    {
        "kl": Specimen(cs.methods.KLFusion(regularization=0.3, restarts=2), _different),
        "spahm": Specimen(cs.methods.SPAHM(restarts=2), _different),
        "amps": Specimen(cs.methods.AMPS(restarts=2), _alike),
        "kmeans": Specimen(cs.methods.KMeans(n_components=4, restarts=2), _different),
        "dp": Specimen(cs.methods.DirichletProcess(restarts=2), _different),
        "average": Specimen(cs.methods.Average(), _alike),
        "concatenate": Specimen(cs.methods.Concatenate(), _different),
        "ensemble": Specimen(cs.methods.PredictionEnsemble(), _different),
    },
)
"""By the method's name; a new method is a new entry here."""
NAMES = [kind.name for kind in METHODS]
"""What the laws run over: the table itself."""
