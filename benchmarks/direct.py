"""KL-fusion written directly from the paper with NumPy and cvxpy: what the library's speed is measured by.

Claici, Yurochkin, Ghosh, Solomon, "Model Fusion with Kullback-Leibler Divergence", ICML 2020, equation (9), for
Normal-Wishart components. It is meant to be good: costs are vectorised, the matching step is compiled once and only its
costs change. It shares nothing with the library but the standard parameters of the sites' components.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array
from scipy.special import digamma, gammaln

OUTER_ITERATIONS = 10  # of the authors' code
ACTIVE_MASS = 0.999  # of the authors' code
LAMBDA = 0.1  # of the paper, in standard deviations of the costs


@dataclass(frozen=True, eq=False)
class Components:
    """Normal-Wishart components: mean (n, D), kappa (n,), scale W (n, D, D) and degrees of freedom (n,)."""

    mean: np.ndarray
    kappa: np.ndarray
    scale: np.ndarray
    dof: np.ndarray

    @property
    def natural(self) -> np.ndarray:
        """Natural parameters as one array (n, D + 1 + D^2 + 1)."""
        inverse = np.linalg.inv(self.scale)
        second = inverse + self.kappa[:, None, None] * self.mean[:, :, None] * self.mean[:, None, :]
        parts = (
            self.kappa[:, None] * self.mean,
            self.kappa[:, None],
            second.reshape(len(second), -1),
            self.dof[:, None],
        )
        return np.concatenate(parts, axis=1)

    @classmethod
    def of_natural(cls, natural: np.ndarray) -> Components:
        """Undo ``natural``; D follows from the number of columns."""
        dim = round((np.sqrt(4 * natural.shape[1] - 7) - 1) / 2)
        kappa, dof = natural[:, dim], natural[:, -1]
        mean = natural[:, :dim] / kappa[:, None]
        second = natural[:, dim + 1 : -1].reshape(-1, dim, dim)
        inverse = second - kappa[:, None, None] * mean[:, :, None] * mean[:, None, :]
        return cls(mean, kappa, np.linalg.inv(inverse), dof)

    def take(self, rows: np.ndarray) -> Components:
        """Return some of the components."""
        return Components(self.mean[rows], self.kappa[rows], self.scale[rows], self.dof[rows])


def divergences(fused: Components, local: Components) -> np.ndarray:
    """Return KL(fused_g || local_l) as an array (L, G): the textbook sum of a Gaussian and a Wishart part."""
    dim = fused.mean.shape[1]
    steps = 0.5 * np.arange(dim)
    apart = local.mean[:, None, :] - fused.mean[None]
    square = np.einsum("lgi,gij,lgj->lg", apart, fused.scale, apart, optimize=True)
    ratio = local.kappa[:, None] / fused.kappa
    gaussian = 0.5 * dim * (ratio - np.log(ratio) - 1.0) + 0.5 * local.kappa[:, None] * fused.dof * square
    trace = np.linalg.inv(local.scale).reshape(len(local.dof), -1) @ fused.scale.reshape(len(fused.dof), -1).T
    log_det = np.linalg.slogdet(local.scale)[1][:, None] - np.linalg.slogdet(fused.scale)[1]
    gamma_local = gammaln(0.5 * local.dof[:, None] - steps).sum(axis=1)[:, None]
    gamma_fused = gammaln(0.5 * fused.dof[:, None] - steps).sum(axis=1)
    psi_fused = digamma(0.5 * fused.dof[:, None] - steps).sum(axis=1)
    wishart = 0.5 * local.dof[:, None] * log_det + 0.5 * fused.dof * (trace - dim) + gamma_local - gamma_fused
    return gaussian + wishart + 0.5 * (fused.dof - local.dof[:, None]) * psi_fused


def objective(plan: np.ndarray, local: Components, strength: float) -> float:
    """Return (9) of a plan (L, G), binary or not, with the best averages for it; nothing of the library is used."""
    plan = plan[:, plan.sum(axis=0) > 1e-9]
    fused = Components.of_natural((plan.T @ local.natural) / plan.sum(axis=0)[:, None])
    return float(np.sum(plan * divergences(fused, local)) + strength * np.linalg.norm(plan, axis=0).sum())


def binary(labels: np.ndarray) -> np.ndarray:
    """Return labels (L,) as a plan (L, G)."""
    return np.eye(labels.max() + 1)[labels]


def seeds(local: Components, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return the rows of `count` first centres: k-means++ with greedy trials, KL for squared distance."""
    between = np.maximum(divergences(local, local), 0.0)
    chosen = [int(rng.integers(len(local.dof)))]
    nearest = between[:, chosen[0]]
    for _ in range(count - 1):
        candidates = rng.choice(len(nearest), size=2 + int(np.log(count)), p=nearest / nearest.sum())
        shrunk = np.minimum(nearest[:, None], between[:, candidates])
        best = int(shrunk.sum(axis=0).argmin())
        chosen.append(int(candidates[best]))
        nearest = shrunk[:, best]
    return np.array(chosen)


@dataclass(frozen=True, eq=False)
class Result:
    """The relaxed plan (L, G), the plan rounded to binary, and the price lambda of a component."""

    plan: np.ndarray
    rounded: np.ndarray
    strength: float


def _compiled(shape: tuple[int, int], sizes: np.ndarray, price: float) -> Callable[[np.ndarray], np.ndarray]:
    """Return a solver of the relaxed matching for given costs (L, G), built once."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    member = csr_array((np.ones(len(owner)), (owner, np.arange(len(owner)))))
    plan, parameter = cp.Variable(shape, nonneg=True), cp.Parameter(shape)
    target = cp.sum(cp.multiply(parameter, plan)) + price * cp.sum(cp.norm(plan, 2, axis=0))
    problem = cp.Problem(cp.Minimize(target), [cp.sum(plan, axis=1) == 1, member @ plan <= 1])

    def solve(costs: np.ndarray) -> np.ndarray:
        parameter.value = costs
        problem.solve(solver=cp.SCS, warm_start=True)
        return plan.value

    return solve


def _written_out(shape: tuple[int, int], sizes: np.ndarray, price: float) -> Callable[[np.ndarray], np.ndarray]:
    """Return the same as the paper writes it: a matrix for each site, and the problem built anew for new costs."""
    ends = np.cumsum(sizes)

    def solve(costs: np.ndarray) -> np.ndarray:
        plans = [cp.Variable((size, shape[1]), nonneg=True) for size in sizes.tolist()]
        blocks = zip(plans, ends - sizes, ends, strict=True)
        matched = sum(cp.sum(cp.multiply(costs[start:end], plan)) for plan, start, end in blocks)
        norms = sum(cp.norm(cp.hstack([plan[:, group] for plan in plans]), 2) for group in range(shape[1]))
        limits = [limit for plan in plans for limit in (cp.sum(plan, axis=1) == 1, cp.sum(plan, axis=0) <= 1)]
        cp.Problem(cp.Minimize(matched + price * norms), limits).solve(solver=cp.SCS)
        return np.concatenate([plan.value for plan in plans])

    return solve


def fuse(local: Components, sizes: np.ndarray, rows: np.ndarray, *, compiled: bool = True) -> Result:
    """Alternate the relaxed matching (cvxpy with SCS) and averages, then prune and round.

    Parameters
    ----------
    local
        Components of all sites, stacked (L).
    sizes
        Number of components of each site (J,).
    rows
        Components taken for first centres (G,).
    compiled
        Whether the matching problem is built once, or anew in every iteration.
    """
    natural, owner = local.natural, np.repeat(np.arange(len(sizes)), sizes)
    fused = local.take(rows)
    costs = divergences(fused, local)
    strength = LAMBDA * float(costs.std())
    scale = float(costs.std())  # the solver is happier with costs near 1
    solve = (_compiled if compiled else _written_out)(costs.shape, sizes, strength / scale)
    for _ in range(OUTER_ITERATIONS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SCS may stop at its limit; the iteration goes on from what it has
            found = np.maximum(solve(costs / scale), 0.0)
        found /= found.sum(axis=1, keepdims=True)
        mass = found.sum(axis=0)
        used = mass > 1e-9
        averages = (found[:, used].T @ natural) / mass[used, None]
        kept = fused.natural
        kept[used] = averages
        fused = Components.of_natural(kept)
        costs = divergences(fused, local)
    active = np.flatnonzero(mass >= ACTIVE_MASS)
    if len(active) < sizes.max():
        active = np.argsort(-mass)[: sizes.max()]
    labels = np.empty(len(owner), dtype=np.int64)
    for site in range(len(sizes)):
        own = np.flatnonzero(owner == site)
        labels[own] = linear_sum_assignment(-found[np.ix_(own, active)])[1]
    return Result(found, binary(labels)[:, np.unique(labels)], strength)
