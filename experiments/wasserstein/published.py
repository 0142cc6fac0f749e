"""Wasserstein-barycenter fusion with the plans of the published code: Sinkhorn iterations that do not converge.

The numbers that Akash et al. (2022) print in table 3, networks fused into a wider one from random weights, come back
with what their code appears to do, which is inferred: nobody has their run. It differs from the paper's text in

    u += eps (log a - log(sum_k exp((u + v - C)_jk / eps) + 1e-6)),  v alike,

at most 100 times from u = v = 0, so that the small constant bounds every step; in plans that are used as they are then,
with what they lack of their marginals; in formula (9) as it is printed, W_l = k_l k_{l-1} sum_i a_i Pi_i W_i Pi*_i^T
for such plans too; in random weights as torch draws them; and in the end of the iteration. Where a plan misses its
marginals, B is no common objective of the two steps: it is recorded, and may rise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from array_api_compat import array_namespace

from consilience.checks import AnyArray, Array
from consilience.core.methods import Requirement
from consilience.networks.method import NetworkEnsemble
from consilience.networks.methods.layerwise import LayerMatching, UnitRows
from consilience.networks.methods.optimal_transport import initial_support, squared_costs, transport_rows
from consilience.networks.methods.wasserstein import WassersteinFusion
from consilience.networks.network import to_numpy
from consilience.networks.symmetry.transport import Injection, Transport

SINKHORN_ITERATIONS = 100
"""Sinkhorn iterations at most, as in the published code."""
LOGARITHM_OFFSET = 1e-6
"""Added inside the logarithm, as in the published code. A row whose kernel underflows moves by eps log(1e6 a) only."""
POTENTIAL_CHANGE = 1e-3
"""Summed absolute change of u that ends the iterations, as in the published code."""
MEAN_SQUARED_CHANGE = 1e-5
"""Mean squared change of a layer's weights and of its plans that ends the iteration over it, as in the published
code."""


@dataclass(frozen=True, eq=False)
class PrintedPlan(Transport):
    """Transport by k_new times a plan on both sides, whatever the plan's marginals: formula (9) as printed.

    Parameters
    ----------
    coupling : ndarray of shape (k_new, k_old)
        The plan; its marginals need not be uniform, nor its mass 1.
    """

    coupling: Array

    @cached_property
    def receiving(self) -> Array:
        """Matrix k_new Pi of the output side (k_new, k_old)."""
        scaled: Array = len(self.coupling) * self.coupling
        return scaled

    @property
    def sending(self) -> Array:
        """The same matrix on the input side."""
        return self.receiving

    @cached_property
    def owned(self) -> Array:
        """Mask (k_new,) of ones: a unit that receives no mass has weights of zero, which count."""
        return np.ones(len(self.coupling))

    @cached_property
    def plan(self) -> Array:
        """The plan."""
        return self.coupling

    @property
    def squared(self) -> PrintedPlan:
        """Transport of squared weights: formula (7) weighs squares by the plan, as it does weights."""
        return self

    def then(self, later: Injection) -> PrintedPlan:
        """Return this transport followed by a permutation."""
        return PrintedPlan(self.coupling[later.order])


def unconverged_plan(costs: Array, epsilon: float) -> Array:
    """Return the plan (n, m) after the published Sinkhorn iterations on costs divided by their largest.

    Parameters
    ----------
    costs : ndarray of shape (n, m)
        Cost of moving a unit of mass.
    epsilon : float
        Weight of the entropy, relative to the largest cost.
    """
    n, m = costs.shape
    scaled = (costs / (float(costs.max()) or 1.0)).astype(np.float32)  # the published code runs in single precision
    log_rows, log_columns = np.float32(np.log(1.0 / n)), np.float32(np.log(1.0 / m))
    eps, offset = np.float32(epsilon), np.float32(LOGARITHM_OFFSET)
    u, v = np.zeros(n, dtype=np.float32), np.zeros(m, dtype=np.float32)
    for _ in range(SINKHORN_ITERATIONS):
        mass = np.exp((u[:, None] + v - scaled) / eps)  # (n, m)
        step = eps * (log_rows - np.log(mass.sum(axis=1) + offset))
        u = u + step
        mass = np.exp((u[:, None] + v - scaled) / eps)
        v = v + eps * (log_columns - np.log(mass.sum(axis=0) + offset))
        if float(np.abs(step).sum()) < POTENTIAL_CHANGE:
            break
    return np.exp((u[:, None] + v - scaled) / eps).astype(np.float64)


def random_rows(bundle: Mapping[str, UnitRows], rng: np.random.Generator) -> dict[str, AnyArray]:
    """Return random rows (K, F) of every group, uniform within +-1 / sqrt(F) as torch starts linear layers."""
    drawn = {}
    for name, rows in bundle.items():
        like = rows.points[0]
        bound = 1.0 / np.sqrt(like.shape[1])
        values = rng.uniform(-bound, bound, (rows.width, like.shape[1]))
        drawn[name] = array_namespace(like).asarray(values, dtype=like.dtype, device=like.device)
    return drawn


@dataclass(frozen=True)
class PublishedFusion(WassersteinFusion):
    """Wasserstein-barycenter fusion with plans, formula (9), random units and the end of the published code.

    It needs `epsilon`, of which the paper tries 0.01 to 0.0005. Attention heads and groups inside others are matched as
    by the library.
    """

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield ("epsilon", self.epsilon > 0, "positive, such as 0.0005")

    def match(
        self, bundle: Mapping[str, UnitRows], ensemble: NetworkEnsemble, reference: int, rng: np.random.Generator
    ) -> LayerMatching:
        """Return the plans of one layer's barycenter, alternated with its rows."""
        group, *inside = bundle
        if inside:
            return super().match(bundle, ensemble, reference, rng)
        support, _ = initial_support(self.start, bundle, reference, rng)
        rows = random_rows(bundle, rng) if self.start == "random" else support
        return match_as_published(group, rows[group], bundle[group], ensemble, self.epsilon, self.max_iterations)


def match_as_published(
    group: str, support: AnyArray, rows: UnitRows, ensemble: NetworkEnsemble, epsilon: float, max_iterations: int
) -> LayerMatching:
    """Return the plans of one layer, alternated with its rows as in the published code.

    Parameters
    ----------
    group : str
        The group.
    support : array of shape (K, F)
        Rows to start from.
    rows : UnitRows
        Rows of all models' units.
    ensemble : NetworkEnsemble
        The models.
    epsilon : float
        Weight of the entropy, relative to the largest cost.
    max_iterations : int
        Iterations at most.
    """
    weights = ensemble.weights.tolist()
    history: list[float] = []
    plans: list[Array] = []
    transports: list[PrintedPlan] = []
    converged = False
    for _ in range(max_iterations):
        costs = [squared_costs(support, rows, model) for model in range(len(weights))]  # (K, k_i) each
        before, plans = plans, [unconverged_plan(values, epsilon) for values in costs]
        history.append(
            sum(w * float((c * plan).sum()) for w, c, plan in zip(weights, costs, plans, strict=True))
        )  # B after the plan step
        transports = [PrintedPlan(plan) for plan in plans]
        moved = [
            w * transport_rows(transport, points, rows.odd)
            for w, transport, points in zip(weights, transports, rows.points, strict=True)
        ]
        updated = sum(moved[1:], start=moved[0])
        weight_change = float(np.mean((to_numpy(updated) - to_numpy(support)) ** 2))
        plan_change = sum(float(np.mean((new - old) ** 2)) for new, old in zip(plans, before, strict=False))
        support = updated
        converged = bool(before) and max(weight_change, plan_change) < MEAN_SQUARED_CHANGE
        if converged:
            break
    mass = [float(plan.sum()) for plan in plans]
    details = {"iterations": len(history), "mass": mass}
    return LayerMatching(tuple({group: transport} for transport in transports), history, details, converged)
