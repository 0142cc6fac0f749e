"""One specimen of every family, with random members and a weak prior, for laws that hold over all of them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from consilience import families as f

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


def standard_parameters(family, rng, n):
    """Parameters, as ``to_natural`` takes them, of n members that differ by more than their widths."""
    match family:
        case f.Gaussian():
            return {"mean": means(rng, n, family.dim), "covariance": random_spd(rng, n, family.dim)}
        case f.DiagonalGaussian():
            return {"mean": means(rng, n, family.dim), "variance": rng.uniform(0.5, 2, (n, family.dim))}
        case f.SphericalGaussian():
            return {"mean": means(rng, n, family.dim), "variance": rng.uniform(0.5, 2, n)}
        case f.KnownCovarianceGaussian():
            return {"mean": means(rng, n, family.dim)}
        case f.NormalWishart():
            scale, dof = random_spd(rng, n, family.dim), family.dim + rng.uniform(2, 7, n)
            return {"mean": means(rng, n, family.dim), "kappa": rng.uniform(1, 5, n), "scale": scale, "dof": dof}
        case f.NormalGamma() | f.SphericalNormalGamma():
            rate = rng.uniform(1, 4, (n, family.dim) if isinstance(family, f.NormalGamma) else n)
            kappa, shape = rng.uniform(1, 5, n), rng.uniform(2, 6, n)
            return {"mean": means(rng, n, family.dim), "kappa": kappa, "shape": shape, "rate": rate}
        case f.Dirichlet():
            return {"concentration": 0.5 + 60.0 * rng.dirichlet(np.ones(family.dim), n)}
        case f.Beta():
            return {"a": rng.uniform(0.7, 30, n), "b": rng.uniform(0.7, 30, n)}
        case f.Gamma():
            return {"shape": np.exp(rng.uniform(0, 3, n)), "rate": np.exp(rng.uniform(-2, 2, n))}
        case f.Categorical():
            return {"probabilities": rng.dirichlet(np.ones(family.dim), n)}
        case f.Point():
            return {"value": means(rng, n, family.dim)}
        case f.Product():
            return {name: standard_parameters(block, rng, n) for name, block in family.blocks}
    raise NotImplementedError(f"describe {family} here, so that the laws run on it")


def weak_parameters(family):
    """Parameters of a prior worth a thousandth of an observation, as ``to_natural`` takes them."""
    dim = getattr(family, "dim", 1)
    zero, one, little = np.zeros((1, dim)), np.ones((1, dim)), np.full(1, 1e-3)
    match family:
        case f.Gaussian():
            return {"mean": zero, "covariance": 1e3 * np.eye(dim)}
        case f.DiagonalGaussian():
            return {"mean": zero, "variance": 1e3 * one}
        case f.SphericalGaussian():
            return {"mean": zero, "variance": 1 / little}
        case f.KnownCovarianceGaussian():
            return {"mean": zero}
        case f.NormalWishart():
            return {"mean": zero, "kappa": little, "inverse_scale": 1e-3 * np.eye(dim), "dof": [float(dim)]}
        case f.NormalGamma():
            return {"mean": zero, "kappa": little, "shape": little, "rate": 1e-3 * one}
        case f.SphericalNormalGamma():
            return {"mean": zero, "kappa": little, "shape": little, "rate": little}
        case f.Dirichlet():
            return {"concentration": 1e-3 * one}
        case f.Beta():
            return {"a": little, "b": little}
        case f.Gamma():
            return {"shape": little, "rate": little}
        case f.Categorical():
            return {"probabilities": one / dim}
        case f.Point():
            return {"value": zero}
        case f.Product():
            return {name: weak_parameters(block) for name, block in family.blocks}
    raise NotImplementedError(f"describe a prior of {family} here, so that the laws run on it")


def specimen(family):
    prior = family.to_natural(**weak_parameters(family))[0]
    return Specimen(family, lambda rng, n: family.to_natural(**standard_parameters(family, rng, n)), prior)


ZOO = {
    family.name: specimen(family)
    for family in (
        f.Gaussian(D),
        f.DiagonalGaussian(D),
        f.SphericalGaussian(D),
        f.KnownCovarianceGaussian(NOISE),
        f.NormalWishart(D),
        f.NormalGamma(D),
        f.SphericalNormalGamma(D),
        f.Dirichlet(V),
        f.Beta(),
        f.Gamma(),
        f.Categorical(V),
        f.Point(D),
        f.Product({"place": f.DiagonalGaussian(D), "rate": f.Gamma(), "shares": f.Dirichlet(3)}),
    )
}
"""By the family's name."""
