"""One specimen of every family, with random members and a weak prior, for laws that hold over all of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from consilience import families as f
from tests.specimens import Specimens

D, V = 2, 4
NOISE = np.array([[1.5, 0.4], [0.4, 0.7]])


@dataclass(frozen=True)
class Specimen:
    """A family, ``draw(rng, n)``, which gives natural parameters (n, P) of n random members, and a prior (P,).

    The prior is so weak that the members could be posteriors under it: their Bayes product exists.
    """

    family: f.Family
    draw: Callable[[np.random.Generator, int], np.ndarray]
    prior: np.ndarray

    def near(self, rng, eta, amount):
        """Members near each row of `eta`: the natural domain is convex, so mixing in another member stays inside."""
        return eta + amount * (self.draw(rng, len(eta)) - eta)


def random_spd(rng, n, dim=D):
    factor = rng.normal(size=(n, dim, 3 * dim))
    return factor @ factor.swapaxes(1, 2) / (3 * dim)


def means(rng, n, dim=D):
    return 4.0 * rng.normal(size=(n, dim))


@dataclass(frozen=True)
class Described:
    """What the laws need of a family.

    ``standard(family, rng, n)`` gives parameters, as ``to_natural`` takes them, of n members that differ by more than
    their widths; ``weak(family)`` those of a prior worth a thousandth of an observation. Both are asked of families of
    other dimensions than the example's too, and of the blocks of products.
    """

    example: f.Family
    standard: Callable[[Any, np.random.Generator, int], dict[str, Any]]
    weak: Callable[[Any], dict[str, Any]]


LITTLE = np.full(1, 1e-3)


def _place(family, rng, n):
    return {"mean": means(rng, n, family.dim)}


def _origin(family):
    return {"mean": np.zeros((1, family.dim))}


def _normal_wishart(family, rng, n):
    scale, dof = random_spd(rng, n, family.dim), family.dim + rng.uniform(2, 7, n)
    return {"mean": means(rng, n, family.dim), "kappa": rng.uniform(1, 5, n), "scale": scale, "dof": dof}


def _weak_normal_wishart(family):
    dof, inverse_scale = [float(family.dim)], 1e-3 * np.eye(family.dim)
    return {**_origin(family), "kappa": LITTLE, "inverse_scale": inverse_scale, "dof": dof}


def _normal_gamma(family, rng, n, rate):
    kappa, shape = rng.uniform(1, 5, n), rng.uniform(2, 6, n)
    return {"mean": means(rng, n, family.dim), "kappa": kappa, "shape": shape, "rate": rate}


def _weak_normal_gamma(family, rate):
    return {**_origin(family), "kappa": LITTLE, "shape": LITTLE, "rate": rate}


DESCRIBED: dict[type[f.Family], Described] = {
    f.Gaussian: Described(
        f.Gaussian(D),
        lambda family, rng, n: {**_place(family, rng, n), "covariance": random_spd(rng, n, family.dim)},
        lambda family: {**_origin(family), "covariance": 1e3 * np.eye(family.dim)},
    ),
    f.DiagonalGaussian: Described(
        f.DiagonalGaussian(D),
        lambda family, rng, n: {**_place(family, rng, n), "variance": rng.uniform(0.5, 2, (n, family.dim))},
        lambda family: {**_origin(family), "variance": np.full((1, family.dim), 1e3)},
    ),
    f.SphericalGaussian: Described(
        f.SphericalGaussian(D),
        lambda family, rng, n: {**_place(family, rng, n), "variance": rng.uniform(0.5, 2, n)},
        lambda family: {**_origin(family), "variance": 1 / LITTLE},
    ),
    f.KnownCovarianceGaussian: Described(f.KnownCovarianceGaussian(NOISE), _place, _origin),
    f.NormalWishart: Described(f.NormalWishart(D), _normal_wishart, _weak_normal_wishart),
    f.NormalGamma: Described(
        f.NormalGamma(D),
        lambda family, rng, n: _normal_gamma(family, rng, n, rate=rng.uniform(1, 4, (n, family.dim))),
        lambda family: _weak_normal_gamma(family, rate=np.full((1, family.dim), 1e-3)),
    ),
    f.SphericalNormalGamma: Described(
        f.SphericalNormalGamma(D),
        lambda family, rng, n: _normal_gamma(family, rng, n, rate=rng.uniform(1, 4, n)),
        lambda family: _weak_normal_gamma(family, rate=LITTLE),
    ),
    f.Dirichlet: Described(
        f.Dirichlet(V),
        lambda family, rng, n: {"concentration": 0.5 + 60.0 * rng.dirichlet(np.ones(family.dim), n)},
        lambda family: {"concentration": np.full((1, family.dim), 1e-3)},
    ),
    f.Beta: Described(
        f.Beta(),
        lambda _, rng, n: {"a": rng.uniform(0.7, 30, n), "b": rng.uniform(0.7, 30, n)},
        lambda _: {"a": LITTLE, "b": LITTLE},
    ),
    f.Gamma: Described(
        f.Gamma(),
        lambda _, rng, n: {"shape": np.exp(rng.uniform(0, 3, n)), "rate": np.exp(rng.uniform(-2, 2, n))},
        lambda _: {"shape": LITTLE, "rate": LITTLE},
    ),
    f.Categorical: Described(
        f.Categorical(V),
        lambda family, rng, n: {"probabilities": rng.dirichlet(np.ones(family.dim), n)},
        lambda family: {"probabilities": np.full((1, family.dim), 1 / family.dim)},
    ),
    f.Point: Described(
        f.Point(D),
        lambda family, rng, n: {"value": means(rng, n, family.dim)},
        lambda family: {"value": np.zeros((1, family.dim))},
    ),
    f.Product: Described(
        f.Product({"place": f.DiagonalGaussian(D), "rate": f.Gamma(), "shares": f.Dirichlet(3)}),
        lambda family, rng, n: {name: standard_parameters(block, rng, n) for name, block in family.blocks},
        lambda family: {name: weak_parameters(block) for name, block in family.blocks},
    ),
}
"""By the family's class; a new family is a new entry here."""


def standard_parameters(family, rng, n):
    """Parameters, as ``to_natural`` takes them, of n members that differ by more than their widths."""
    return DESCRIBED[type(family)].standard(family, rng, n)


def weak_parameters(family):
    """Parameters of a prior worth a thousandth of an observation, as ``to_natural`` takes them."""
    return DESCRIBED[type(family)].weak(family)


def specimen(family):
    prior = family.to_natural(**weak_parameters(family))[0]
    return Specimen(family, lambda rng, n: family.to_natural(**standard_parameters(family, rng, n)), prior)


ZOO = Specimens(
    "DESCRIBED in tests/families/zoo.py", {kind.name: specimen(made.example) for kind, made in DESCRIBED.items()}
)
"""By the family's name."""
NAMES = [kind.name for kind in f.FAMILIES]
"""What the laws run over: the table itself."""
