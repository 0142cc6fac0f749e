"""Wasserstein-barycenter fusion: every layer of the fused network is a Wasserstein barycenter of the models' layers.

The units of a layer are points, with the weights that they receive as coordinates. The fused layer is the cloud of K
points of least mean squared Wasserstein distance to the models' clouds, equations (6) to (9) of the Wasserstein paper:

    B(W, {Pi_i}) = sum_i a_i < C_i, Pi_i >,    Pi_i (K, k_i) with marginals 1 / K and 1 / k_i,
    C_i[j, g] = mean squared distance of row j of W from row g of W_i under the coupling of the layer before    (7),

with a_i the weight of model i. Algorithm 1 alternates plans (optimal transport) and rows (9). With exact plans neither
step raises B. Entropic plans do not minimise B alone: a step that would raise it is not taken. The result is a local
minimum that depends on the initial rows.

From random rows exact plans match every model to noise, each by itself. So such a layer is annealed: its first plans
are entropic at falling temperatures, which keeps units undecided until the models agree on them. B is a function of the
temperature there and may rise; it is compared, and the iteration may end, only at the final temperature.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import ClassVar

import numpy as np

from consilience.checks import AnyArray, Array, is_count
from consilience.core.methods import Requirement
from consilience.core.progress import Progress, silent
from consilience.networks.details import GroupDetails
from consilience.networks.method import Alignment, NetworkEnsemble
from consilience.networks.methods.layerwise import LayerMatching, UnitRows
from consilience.networks.methods.optimal_transport import (
    TransportMethod,
    initial_support,
    squared_costs,
    transport_rows,
)
from consilience.networks.symmetry.transport import Injection, Transport

MIN_RELATIVE_DECREASE = 1e-6
"""A decrease of B below this fraction of its first value ends the iteration over a layer. The published code stops at a
mean squared change of weights and plans below 1e-5 instead. Chosen by hand; nobody has measured other values."""

ANNEALING_TEMPERATURES = tuple(0.015 * 0.6**step for step in range(6))
"""Entropies, relative to the largest cost, of the first iterations over a layer that starts from random rows: 0.015 to
0.0012. Compared with two other schedules on test images of MNIST (0.01 x 0.6^t in five steps is 0.6 points worse with
two models; 0.05 x 0.8^t in eighteen is 6 points worse with four), and judged on Fashion-MNIST, which chose nothing
(docs/evidence/networks.md)."""

OBJECTIVE_ROUNDING = 1e-12
"""Decreases of B below this are rounding, where copies make its first value zero. Chosen by hand."""


@dataclass(frozen=True)
class WassersteinFusion(TransportMethod):
    """Find every layer of the fused network as a Wasserstein barycenter of the models' layers.

    Parameters
    ----------
    restarts : int
        Passes over the network: the first starts as `start` says from the reference model, the next from the other
        models, further ones from random units. The one with the lowest sum of B over layers is kept. Default: 1.
    max_iterations : int
        Iterations over one layer at most, those of annealing not counted. Default: 100, as in the published code.
    annealing : bool
        Whether a layer that starts from random units first takes entropic plans of falling temperature. Attention heads
        and recurrent units are never annealed. Default: True.

    References
    ----------
    The Wasserstein-barycenter paper, algorithm 1 with equations (4) to (9). Annealing is this library's.
    """

    name: ClassVar[str] = "wb"
    summary: ClassVar[str] = "every layer of the fused network is a Wasserstein barycenter of the networks' layers"
    needs: ClassVar[str] = "networks of one architecture, widths may differ"
    gives: ClassVar[str] = "one network of any width"
    paper: ClassVar[str] = "akash2022"

    restarts: int = 1
    max_iterations: int = 100
    annealing: bool = field(default=True, kw_only=True)

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield "restarts", is_count(self.restarts), "a positive integer"
        yield "max_iterations", is_count(self.max_iterations), "a positive integer"

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return the alignment of least B over `restarts` passes."""
        n_models = len(ensemble.networks)
        references = [(ensemble.reference + number) % n_models for number in range(self.restarts)]
        alignments = []
        for number, (reference, child) in enumerate(zip(references, rng.spawn(self.restarts), strict=True)):
            # Every model is the start once; after that only random rows are new.
            method = self if number < n_models else replace(self, start="random")
            alignments.append(method.pass_through(ensemble, reference, child, silent))
            progress(number + 1, self.restarts)
        best = min(alignments, key=attrgetter("objective"))
        return replace(best, transports=renumber_permutations(ensemble.reference, best.transports))

    def match(
        self, bundle: Mapping[str, UnitRows], ensemble: NetworkEnsemble, reference: int, rng: np.random.Generator
    ) -> LayerMatching:
        """Return the plans of one layer's barycenter, alternated with its rows."""
        weights = ensemble.weights
        support, _ = initial_support(self.start, bundle, reference, rng)
        _, *inside = bundle
        annealed: list[float] = []  # B at each temperature: not comparable, and not part of the history
        for temperature in ANNEALING_TEMPERATURES if self.annealing and self.start == "random" and not inside else ():
            plans, value = self._couple(support, bundle, weights, max(temperature, self.epsilon))
            annealed.append(value)
            support = _barycenter(bundle, weights, plans)
        history: list[float] = []
        transports: list[dict[str, Transport]] = []
        converged = False
        for _ in range(self.max_iterations):
            plans, value = self._couple(support, bundle, weights, self.epsilon)  # B after the plan step
            converged = has_converged(history, value)
            if history and value > history[-1]:  # entropic plans do not minimise the cost alone
                break
            transports = plans
            history.append(value)
            if converged:
                break
            support = _barycenter(bundle, weights, transports)
        details: GroupDetails = {"iterations": len(history)}
        if annealed:
            details["annealed"] = annealed
        return LayerMatching(tuple(transports), history, details, converged)

    def _couple(
        self, support: Mapping[str, AnyArray], bundle: Mapping[str, UnitRows], weights: Array, epsilon: float
    ) -> tuple[list[dict[str, Transport]], float]:
        """Return the plans of all models to the support rows (K, F), with some entropy, and B."""
        plans: list[dict[str, Transport]] = []
        total = 0.0
        for model, weight in enumerate(weights.tolist()):
            costs = {name: squared_costs(support[name], rows, model) for name, rows in bundle.items()}  # (K, k_i)
            plans.append(self.plans(costs, epsilon))
            total += weight * sum(plans[-1][name].cost(values) for name, values in costs.items())
        return plans, total


def _barycenter(
    bundle: Mapping[str, UnitRows], weights: Array, plans: Sequence[Mapping[str, Transport]]
) -> dict[str, AnyArray]:
    """Return the rows of least B of a group and of those inside it, given the plans of all models."""
    return {name: barycenter_rows(rows, weights, [model[name] for model in plans]) for name, rows in bundle.items()}


def has_converged(history: Sequence[float], value: float) -> bool:
    """Return whether a new value of B is below the last of a history by no more than the least decrease that counts."""
    return bool(history) and history[-1] - value <= MIN_RELATIVE_DECREASE * abs(history[0]) + OBJECTIVE_ROUNDING


def renumber_permutations(
    reference: int, transports: Sequence[Mapping[str, Transport]]
) -> tuple[dict[str, Transport], ...]:
    """Return transports into the same fused network with its units in the order of the reference model.

    Groups in which the reference's transport is no permutation keep their numbering.
    """
    found = ((name, transport.inverse) for name, transport in transports[reference].items())
    inverses = {name: inverse for name, inverse in found if isinstance(inverse, Injection)}
    return tuple(
        {
            name: transport.then(inverses[name]) if name in inverses else transport
            for name, transport in model_transports.items()
        }
        for model_transports in transports
    )


def barycenter_rows(rows: UnitRows, weights: Array, transports: Sequence[Transport]) -> AnyArray:
    """Return the rows (K, F) of least B given the plans of all models: formula (9).

    Unit rows are already transported on their input side; on the output side plans average: rows of K Pi_i sum to 1.
    """
    weighted = [
        weight * transport_rows(transport, points, rows.odd)
        for weight, transport, points in zip(weights.tolist(), transports, rows.points, strict=True)
    ]
    return sum(weighted[1:], start=weighted[0])
