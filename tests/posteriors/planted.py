"""Sites whose true components are known: data are drawn, posteriors are the textbook's, nothing is fitted."""

from dataclasses import dataclass, replace

import numpy as np

import consilience as cs
from consilience import families as f

NORMAL = ("normal-wishart", "normal-gamma", "spherical-normal-gamma", "gaussian", "point")
D = 2


@dataclass(frozen=True)
class Planted:
    """Sites, the true component of each of theirs (-1 for none), and the true centres."""

    sites: list
    truth: list
    centres: np.ndarray

    @property
    def all_truth(self):
        return np.concatenate(self.truth)


def centres_apart(rng, count, apart, dim=D):
    """Places (count, dim) near those of a lattice with `apart` between neighbours."""
    side = int(np.ceil(count ** (1 / dim))) + 2
    cells = rng.choice(side**dim, count, replace=False)
    lattice = np.stack(np.unravel_index(cells, [side] * dim), axis=1)
    return apart * (lattice + rng.uniform(-0.2, 0.2, lattice.shape))


def who_holds_what(rng, n_sites, n_components):
    """Subsets of two or more components, never all; every component at three sites or more."""
    while True:
        held = [rng.permutation(n_components)[: rng.integers(2, n_components)] for _ in range(n_sites)]
        if np.bincount(np.concatenate(held), minlength=n_components).min() >= 3:
            return held


def conjugate_site(family, data, counts=None):
    """The posterior of components whose observations (a list of (n, D)) are known, under a weak prior."""
    dim = data[0].shape[1]
    n = np.array([len(x) for x in data], dtype=float)
    means = np.stack([x.mean(axis=0) for x in data])
    scatter = np.stack([(x - m).T @ (x - m) for x, m in zip(data, means, strict=True)])
    kappa0, m0, wide = 0.1, np.zeros(dim), 1.0
    mean = (n[:, None] * means + kappa0 * m0) / (n + kappa0)[:, None]
    offset = means - m0
    pull = (kappa0 * n / (kappa0 + n))[:, None]
    squares = np.stack([np.diag(s) for s in scatter]) + pull * offset**2
    match family:
        case f.NormalWishart():
            inverse = wide * np.eye(dim) + scatter + pull[:, :, None] * offset[:, :, None] * offset[:, None, :]
            eta = family.to_natural(mean=mean, kappa=kappa0 + n, inverse_scale=inverse, dof=dim + n)
            prior = family.to_natural(mean=[m0], kappa=[kappa0], inverse_scale=[wide * np.eye(dim)], dof=[dim])
        case f.NormalGamma():
            eta = family.to_natural(mean=mean, kappa=kappa0 + n, shape=1 + n / 2, rate=(wide + squares) / 2)
            prior = family.to_natural(mean=[m0], kappa=[kappa0], shape=[1], rate=[np.full(dim, wide / 2)])
        case f.SphericalNormalGamma():
            rate = (wide + squares.sum(axis=1)) / 2
            eta = family.to_natural(mean=mean, kappa=kappa0 + n, shape=1 + n * dim / 2, rate=rate)
            prior = family.to_natural(mean=[m0], kappa=[kappa0], shape=[1], rate=[wide / 2])
        case f.Gaussian():
            own = scatter / n[:, None, None] ** 2
            return cs.Posterior(family, family.to_natural(mean=means, covariance=own), counts=n)
        case f.Point():
            return cs.Posterior(family, means, counts=n)
    return cs.Posterior(family, eta, prior=prior[0], counts=n if counts is None else counts)


def family_named(name, dim=D):
    kinds = (f.NormalWishart, f.NormalGamma, f.SphericalNormalGamma, f.Gaussian, f.Point)
    return {kind.name: kind(dim) for kind in kinds}[name]


def mixtures(
    name="normal-wishart",
    seed=0,
    *,
    n_sites=6,
    n_components=4,
    apart=8.0,
    between=0.3,
    n=80,
    dim=D,
    unit=1.0,
    shift=0.0,
):
    """Sites of a Gaussian mixture: component means differ between sites by `between`, widths by some tenths."""
    rng = np.random.default_rng([seed, 21])
    centres = centres_apart(rng, n_components, apart, dim)
    widths = rng.uniform(0.7, 1.4, (n_components, dim))
    truth = who_holds_what(rng, n_sites, n_components)
    sites = []
    for held in truth:
        local = centres[held] + between * rng.normal(size=(len(held), dim))
        spread = widths[held] * rng.uniform(0.95, 1.05, (len(held), 1))
        sizes = rng.integers(n // 2, 2 * n, len(held))
        data = [rng.normal(m, s, (size, dim)) for m, s, size in zip(local, spread, sizes, strict=True)]
        sites.append(conjugate_site(family_named(name, dim), [unit * (x + shift) for x in data]))
    return Planted(sites, truth, unit * (centres + shift))


def topics(seed=0, n_sites=6, n_components=4, words=32, between=0.002, tokens=2000, prior=0.1):
    """Topics with anchor words of their own; a site's topic is drawn about the common one."""
    rng = np.random.default_rng([seed, 22])
    anchors = words // n_components
    common = np.full((n_components, words), 0.1)
    for topic in range(n_components):
        common[topic, topic * anchors : (topic + 1) * anchors] = rng.uniform(0.5, 2.0, anchors)
    common /= common.sum(axis=1, keepdims=True)
    family, truth, sites = f.Dirichlet(words), who_holds_what(rng, n_sites, n_components), []
    for held in truth:
        counts = np.stack([rng.multinomial(tokens, rng.dirichlet(common[g] / between)) for g in held])
        eta = family.to_natural(concentration=counts + prior)
        sites.append(cs.Posterior(family, eta, prior=np.full(words, prior - 1.0), counts=counts.sum(axis=1)))
    return Planted(sites, truth, common)


def changed_by_rounding(sites, seed):
    """Copies of sites whose natural parameters are off by a factor 1 + 1e-12 z, z standard normal."""
    rng = np.random.default_rng(seed)
    return [
        replace(site, natural=site.natural * (1 + 1e-12 * rng.standard_normal(site.natural.shape))) for site in sites
    ]
