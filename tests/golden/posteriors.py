"""Golden fusions of posteriors: every method with its options, and every family."""

from dataclasses import replace

import numpy as np

import consilience as cs
from tests.golden.table import case, cases, saved

f = cs.families
DIM = 2


def positive_definite(rng, count, dim=DIM):
    factor = rng.normal(size=(count, dim, 3 * dim))
    return factor @ factor.swapaxes(1, 2) / (3 * dim)


def spread_means(rng, count, dim=DIM):
    return 4.0 * rng.normal(size=(count, dim))


def standard_parameters(family, rng, count):
    """Return parameters of `count` members of a family that differ by more than their widths."""
    means = spread_means(rng, count, getattr(family, "dim", DIM))
    match family:
        case f.Gaussian():
            return {"mean": means, "covariance": positive_definite(rng, count)}
        case f.DiagonalGaussian():
            return {"mean": means, "variance": rng.uniform(0.5, 2.0, means.shape)}
        case f.SphericalGaussian():
            return {"mean": means, "variance": rng.uniform(0.5, 2.0, count)}
        case f.KnownCovarianceGaussian():
            return {"mean": means}
        case f.NormalWishart():
            scale, dof = positive_definite(rng, count), DIM + rng.uniform(2.0, 7.0, count)
            return {"mean": means, "kappa": rng.uniform(1.0, 5.0, count), "scale": scale, "dof": dof}
        case f.NormalGamma() | f.SphericalNormalGamma():
            rate = rng.uniform(1.0, 4.0, means.shape if isinstance(family, f.NormalGamma) else count)
            kappa, shape = rng.uniform(1.0, 5.0, count), rng.uniform(2.0, 6.0, count)
            return {"mean": means, "kappa": kappa, "shape": shape, "rate": rate}
        case f.Dirichlet():
            return {"concentration": 0.5 + 60.0 * rng.dirichlet(np.ones(family.dim), count)}
        case f.Beta():
            return {"a": rng.uniform(0.7, 30.0, count), "b": rng.uniform(0.7, 30.0, count)}
        case f.Gamma():
            return {"shape": np.exp(rng.uniform(0.0, 3.0, count)), "rate": np.exp(rng.uniform(-2.0, 2.0, count))}
        case f.Categorical():
            return {"probabilities": rng.dirichlet(np.ones(family.dim), count)}
        case f.Point():
            return {"value": means}
        case f.Product():
            return {name: standard_parameters(block, rng, count) for name, block in family.blocks}
    raise NotImplementedError(f"say here what members {family} has, so that fusions of it are recorded")


def weak_prior(family):
    """Return natural parameters of a prior worth a thousandth of an observation: members may be posteriors under it."""
    dim = getattr(family, "dim", 1)
    zero, one, little = np.zeros((1, dim)), np.ones((1, dim)), np.full(1, 1e-3)
    match family:
        case f.Gaussian():
            parameters = {"mean": zero, "covariance": 1e3 * np.eye(dim)}
        case f.DiagonalGaussian():
            parameters = {"mean": zero, "variance": 1e3 * one}
        case f.SphericalGaussian():
            parameters = {"mean": zero, "variance": 1.0 / little}
        case f.KnownCovarianceGaussian():
            parameters = {"mean": zero}
        case f.NormalWishart():
            parameters = {"mean": zero, "kappa": little, "inverse_scale": 1e-3 * np.eye(dim), "dof": [float(dim)]}
        case f.NormalGamma():
            parameters = {"mean": zero, "kappa": little, "shape": little, "rate": 1e-3 * one}
        case f.SphericalNormalGamma():
            parameters = {"mean": zero, "kappa": little, "shape": little, "rate": little}
        case f.Dirichlet():
            parameters = {"concentration": 1e-3 * one}
        case f.Beta():
            parameters = {"a": little, "b": little}
        case f.Gamma():
            parameters = {"shape": little, "rate": little}
        case f.Categorical():
            parameters = {"probabilities": one / dim}
        case f.Point():
            parameters = {"value": zero}
        case f.Product():
            return np.concatenate([weak_prior(block) for _, block in family.blocks])
        case _:
            raise NotImplementedError(f"say here what a weak prior of {family} is")
    return family.to_natural(**parameters)[0]


def sites(family, held=((0, 1, 2), (2, 1, 3), (3, 0, 1)), seed=0, amount=0.02, prior=True, attached=True):
    """Return sites that hold some of four members of a family, each site's a little moved, in orders of their own.

    The natural domain is convex, so a little of another member mixed in stays inside.
    """
    rng = np.random.default_rng(seed)
    planted = family.to_natural(**standard_parameters(family, rng, 4))
    made = []
    for own in held:
        other = family.to_natural(**standard_parameters(family, rng, len(own)))
        steps = rng.poisson(20.0, (len(own), len(own))).astype(float)
        carried = {
            "steps": cs.Attached(steps, ("component", "component"), "sum"),
            "bias": cs.Attached(rng.normal(size=(len(own), 2)), ("component", "fixed"), "mean"),
            "scale": cs.Attached(rng.normal(size=3), ("fixed",), "precision-mean", rng.uniform(1.0, 2.0, 3)),
        }
        made.append(
            cs.Posterior(
                family,
                planted[list(own)] + amount * (other - planted[list(own)]),
                prior=weak_prior(family) if prior else None,
                counts=rng.uniform(20.0, 60.0, len(own)),
                weights=rng.dirichlet(np.full(len(own), 5.0)),
                attached=carried if attached else {},
            )
        )
    return made


SAME_SIZE = ((0, 1, 2, 3), (2, 1, 3, 0), (3, 0, 1, 2), (1, 0, 2, 3))
METHODS = {
    "kl, default": {},
    "kl, number given": {"method": "kl", "n_components": 4},
    "kl, product": {"method": "kl", "n_components": 4, "combine": "product"},
    "kl, priced": {"method": "kl", "regularization": 0.2},
    "kl, priced, reverse": {"method": "kl", "regularization": 0.2, "direction": "reverse"},
    "kl, relaxed": {"method": "kl", "regularization": 0.2, "assignment": "relaxed"},
    "kl, reverse": {"method": "kl", "n_components": 4, "direction": "reverse"},
    "kl, renyi": {"method": "kl", "n_components": 4, "divergence": "renyi", "order": 0.3},
    "kl, hellinger": {"method": "kl", "divergence": "hellinger"},
    "kl, wasserstein": {"method": "kl", "n_components": 4, "divergence": "wasserstein"},
    "kl, at most three": {"method": "kl", "max_components": 3, "restarts": 2},
    "kl, weights": {"method": "kl", "weights": [3.0, 1.0, 0.5], "rng": 7},
    "kl, trim": {"method": "kl", "n_components": 4, "robust": "trim", "trim": 0.3},
    "kl, median": {"method": "kl", "n_components": 4, "robust": "median"},
    "spahm, default": {"method": "spahm"},
    "spahm, conjugate": {"method": "spahm", "likelihood": "conjugate"},
    "spahm, plain atoms": {
        "method": "spahm",
        "within_variance": 0.5,
        "between_variance": 20.0,
        "marginal": False,
        "optimize": False,
        "shrink": False,
    },
    "spahm, scalar variances": {"method": "spahm", "variances": "scalar", "mass": 5.0, "concentration": 2.0},
    "spahm, variances given": {"method": "spahm", "within_variance": 0.5, "between_variance": 20.0},
    "spahm, product": {"method": "spahm", "combine": "product", "weights": [2.0, 1.0, 1.0]},
    "spahm, clip": {"method": "spahm", "clip": 3},
    "kmeans, default": {"method": "kmeans", "n_components": 4},
    "kmeans, reverse": {"method": "kmeans", "n_components": 3, "direction": "reverse", "weights": [1.0, 2.0, 4.0]},
    "dp, default": {"method": "dp"},
    "dp, diagonal": {"method": "dp", "covariance_type": "diag", "max_components": 5},
    "dp, means": {"method": "dp", "assignment": "means"},
    "dp, means, penalty": {"method": "dp", "assignment": "means", "penalty": 20.0, "direction": "reverse"},
    "concatenate, default": {"method": "concatenate"},
    "amps, growth": {"method": "amps", "growth": True},
    "amps, growth, once": {"method": "amps", "growth": True, "concentration": 3.0, "revisit": False, "restarts": 2},
    "a method object": {"method": cs.methods.KLFusion(n_components=4, restarts=2)},
}


@cases("posteriors: {}", METHODS)
def _of_a_method(folder, options):
    return saved(cs.fuse(sites(f.DiagonalGaussian(DIM)), **options), folder)


ALIGNED = {
    "amps, default": {"method": "amps"},
    "amps, barycenter": {"method": "amps", "combine": "barycenter", "revisit": False, "restarts": 3},
    "average, default": {"method": "average"},
    "average, product": {"method": "average", "combine": "product"},
    "average, median": {"method": "average", "robust": "median"},
    "average, trim": {"method": "average", "robust": "trim", "trim": 0.3, "weights": [1.0, 2.0, 1.0, 1.0]},
    "spahm, trim": {"method": "spahm", "robust": "trim"},
    "kmeans, median": {"method": "kmeans", "n_components": 4, "robust": "median"},
}


@cases("posteriors of one size: {}", ALIGNED)
def _of_sites_of_one_size(folder, options):
    return saved(cs.fuse(sites(f.DiagonalGaussian(DIM), SAME_SIZE, seed=3), **options), folder)


RARE = ((0, 1), (1, 0), (2, 0, 1), (1, 0), (0, 1, 3))
"""Components 2 and 3 are at one of five sites each."""
MINORITIES = {
    "kl, by default": {"method": "kl", "robust": "median"},
    "kl, dropped": {"method": "kl", "robust": "median", "minority": "drop"},
    "kmeans, dropped": {"method": "kmeans", "n_components": 4, "robust": "trim", "minority": "drop"},
}


@cases("posteriors of a minority: {}", MINORITIES)
def _of_a_minority(folder, options):
    return saved(cs.fuse(sites(f.DiagonalGaussian(DIM), RARE, seed=4), **options), folder)


@case("posteriors: ensemble")
def _ensemble(_folder):
    return {"ensemble": cs.fuse(sites(f.DiagonalGaussian(DIM)), "ensemble")}


@case("posteriors: without prior, counts, weights and attached arrays")
def _bare(folder):
    made = [replace(site, counts=None, weights=None) for site in sites(f.Gaussian(DIM), prior=False, attached=False)]
    return saved(cs.fuse(made, "spahm"), folder)


FAMILIES = {
    family.name: family
    for family in (
        f.Gaussian(DIM),
        f.DiagonalGaussian(DIM),
        f.SphericalGaussian(DIM),
        f.KnownCovarianceGaussian(np.array([[1.5, 0.4], [0.4, 0.7]])),
        f.NormalWishart(DIM),
        f.NormalGamma(DIM),
        f.SphericalNormalGamma(DIM),
        f.Dirichlet(4),
        f.Beta(),
        f.Gamma(),
        f.Categorical(4),
        f.Point(DIM),
        f.Product({"place": f.DiagonalGaussian(DIM), "rate": f.Gamma(), "shares": f.Dirichlet(3)}),
    )
}
NOT_GAUSSIAN = ("known-covariance-gaussian", "dirichlet", "beta", "gamma", "categorical", "product")
REFUSED = dict.fromkeys(NOT_GAUSSIAN, ("kl wasserstein",)) | {"point": ("kl product", "kl wasserstein", "amps")}
"""By family, what it cannot be fused by: a distance between Gaussians, and products of what has no width."""


@cases("family: {}", FAMILIES)
def _of_a_family(folder, family):
    """Fuse files of a family by every averaging, each way round, and by every method that goes by its geometry."""
    own = sites(family, amount=0.01, attached=False)
    paths = []
    for number, site in enumerate(own):
        paths.append(folder / f"site-{number}.safetensors")
        cs.save(site, paths[-1])
    aligned = sites(family, SAME_SIZE, amount=0.01, attached=False)
    refused = REFUSED.get(family.name, ())
    fusions = {
        "kl": lambda: cs.fuse(paths, "kl"),
        "kl reverse": lambda: cs.fuse(paths, "kl", n_components=4, direction="reverse"),
        "kl product": lambda: cs.fuse(paths, "kl", n_components=4, combine="product"),
        "kl hellinger": lambda: cs.fuse(paths, "kl", n_components=4, divergence="hellinger"),
        "kl wasserstein": lambda: cs.fuse(paths, "kl", n_components=4, divergence="wasserstein"),
        "kl median": lambda: cs.fuse(aligned, "kl", n_components=4, robust="median"),
        "spahm": lambda: cs.fuse(paths, "spahm"),
        "spahm conjugate": lambda: cs.fuse(paths, "spahm", likelihood="conjugate"),
        "amps": lambda: cs.fuse(aligned, "amps", restarts=3),
        "kmeans": lambda: cs.fuse(paths, "kmeans", n_components=4, restarts=2),
        "dp": lambda: cs.fuse(paths, "dp", assignment="means", restarts=2),
        "average": lambda: cs.fuse(aligned, "average"),
    }
    found = {name: fuse() for name, fuse in fusions.items() if name not in refused}
    first = next(iter(found.values()))
    return {
        **found,
        "described": own[0],
        "site saved": paths[0],
        **saved(first, folder),
        "parameters": first.posterior.parameters(),
    }
