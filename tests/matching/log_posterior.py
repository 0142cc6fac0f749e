"""SPAHM's log posterior written out group by group, with dense normals, and the published form of its sum."""

import math

import numpy as np
from scipy.special import betaln
from scipy.stats import multivariate_normal

import consilience as cs
from consilience import families as f
from consilience.matching.beta_bernoulli import AtomLaw


def log_marginal(points, law):
    """log p of one atom's copies (n, D) stacked in one long vector: a dense normal, the atom in common."""
    n, dim = points.shape
    covariance = np.kron(np.eye(n), np.diag(law.within)) + np.kron(np.ones((n, n)), np.diag(law.between))
    return multivariate_normal(np.tile(law.mean, n), covariance).logpdf(points.reshape(n * dim))


def log_holders(n, n_sites, alpha, mass):
    return math.log(alpha * mass) + betaln(n, n_sites - n + alpha)


class LogPosterior:
    """The log posterior of matchings of points, group by group; `which` rows are there."""

    def __init__(self, points, n_sites, law, alpha=1.0, mass=1.0):
        self.points, self.law, self.process, self.known = points, law, (n_sites, alpha, mass), {}

    def group(self, rows):
        if rows not in self.known:
            self.known[rows] = log_marginal(self.points[list(rows)], self.law) + log_holders(len(rows), *self.process)
        return self.known[rows]

    def __call__(self, labels, which=None):
        which = range(len(labels)) if which is None else which
        return sum(self.group(tuple(r for r in which if labels[r] == g)) for g in {labels[r] for r in which})

    @classmethod
    def of(cls, atoms, alpha=1.0, mass=1.0):
        return cls(atoms.pieces, len(atoms.offsets) - 1, atoms.law, alpha, mass)


def published(n, t, law, marginal=True):
    """f(n, t), twice a group's log posterior up to what its members add in any matching; f_MAP without the logs."""
    total = 0.0
    for mu0, s, s0, td in zip(law.mean, law.within, law.between, t, strict=True):
        if marginal:
            total += ((s0 / s) * td**2 + 2 * mu0 * td - n * mu0**2) / (n * s0 + s) - math.log(n * s0 + s) + math.log(s)
        else:
            total += (td / s + mu0 / s0) ** 2 / (n / s + 1 / s0) - mu0**2 / s0
    return total


def fused(sites, **options):
    return cs.fuse([cs.Posterior(f.Point(v.shape[1]), v) for v in sites], method="spahm", **options)


def law_of(fusion):
    return AtomLaw(*(fusion.atoms.attached[name].values for name in ("mean", "within_variance", "between_variance")))
