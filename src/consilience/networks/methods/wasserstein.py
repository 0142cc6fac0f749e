"""Wasserstein-barycenter fusion: every layer of the fused network is a barycenter of the models' layers.

The units of a layer are points, what they receive is where they lie, and the fused layer is the cloud of K points
nearest to all models' clouds in squared Wasserstein distance, equations (6) to (9) of the Wasserstein paper:

    B = sum_i a_i < C_i, Pi_i >,    C_i[j, g] = mean squared distance of row j from row g under the coupling before.

Plans and rows are found in turn; neither step raises B when plans are exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from consilience.checks import AnyArray, Array, is_count
from consilience.core.progress import Progress
from consilience.networks.method import Alignment, NetworkEnsemble
from consilience.networks.methods.barycenter_support import first_support
from consilience.networks.methods.layerwise import Layer, Rows
from consilience.networks.methods.optimal_transport import TransportMethod, receiving, squared_costs
from consilience.networks.symmetry.transport import Injection, Transport

_SETTLED = 1e-6
"""A fall of B below this share ends the iteration over a layer."""
_ROUNDING = 1e-12


@dataclass(frozen=True)
class WassersteinFusion(TransportMethod):
    """Find every layer of the fused network as a Wasserstein barycenter of the models' layers.

    Parameters
    ----------
    restarts
        Passes over the network: the first starts as `start` says from the reference model, the next from the other
        models, further ones from random units. The one with the lowest sum of B over layers is kept.
    max_iterations
        Iterations over one layer at most.

    References
    ----------
    The Wasserstein-barycenter paper, algorithm 1 with equations (4) to (9).
    """

    name: ClassVar[str] = "wb"
    summary: ClassVar[str] = "every layer of the fused network is a Wasserstein barycenter of the networks' layers"
    needs: ClassVar[str] = "networks of one architecture, widths may differ"
    gives: ClassVar[str] = "one network of any width"
    paper: ClassVar[str] = "akash2022"

    restarts: int = 1
    max_iterations: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("restarts", is_count(self.restarts), "a positive integer")
        self.require("max_iterations", is_count(self.max_iterations), "a positive integer")

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Pass over the network as often as asked, and keep the best."""
        models = len(ensemble.networks)
        references = [(ensemble.reference + number) % models for number in range(self.restarts)]
        found = []
        for number, (reference, child) in enumerate(zip(references, rng.spawn(self.restarts), strict=True)):
            method = self if number < models else _random_start(self)
            found.append(method.pass_through(ensemble, reference, child, lambda _d, _t: None))
            progress(number + 1, self.restarts)
        best = min(found, key=lambda one: one.objective)
        return replace(best, transports=numbered_as(ensemble.reference, best.transports))

    def match(
        self, bundle: Mapping[str, Rows], ensemble: NetworkEnsemble, reference: int, rng: np.random.Generator
    ) -> Layer:
        """Return the plans of a barycenter."""
        weights = ensemble.weights
        support, _ = first_support(self.start, bundle, reference, rng)
        history: list[float] = []
        transports: list[dict[str, Transport]] = []
        converged = False
        for _ in range(self.max_iterations):
            costs = [
                {name: squared_costs(support[name], rows, model) for name, rows in bundle.items()}
                for model in range(len(weights))
            ]
            plans = [self.plans(of_model) for of_model in costs]
            value = sum(
                weight * sum(_cost(values, moves[name]) for name, values in of_model.items())
                for weight, of_model, moves in zip(weights.tolist(), costs, plans, strict=True)
            )
            converged = settled(history, value)
            if history and value > history[-1]:  # entropic plans do not minimise the cost alone
                break
            transports = plans
            history.append(value)
            if converged:
                break
            support = {
                name: barycenter(rows, weights, [own[name] for own in transports]) for name, rows in bundle.items()
            }
        return Layer(tuple(transports), history, {"iterations": len(history)}, converged)


def settled(history: Sequence[float], value: float) -> bool:
    """Return whether a value falls no more, or by no more than rounding or too small a share of the first."""
    return bool(history) and history[-1] - value <= _SETTLED * abs(history[0]) + _ROUNDING


def numbered_as(reference: int, transports: Sequence[Mapping[str, Transport]]) -> tuple[dict[str, Transport], ...]:
    """Return the same fused network with its units as the reference has them, where these are only renumbered."""
    moves = {
        name: one.inverse
        for name, one in transports[reference].items()
        if isinstance(one, Injection) and len(one.slots) == one.width
    }
    return tuple(
        {name: one.then(moves[name]) if name in moves else one for name, one in own.items()} for own in transports
    )


def _random_start(method: WassersteinFusion) -> WassersteinFusion:
    return replace(method, start="random")


def barycenter(rows: Rows, weights: Array, transports: Sequence[Transport]) -> AnyArray:
    """Return the rows (K, F) of least B given the plans of all models: formula (9)."""
    moved = [
        weight * receiving(one, points, rows.odd)
        for weight, one, points in zip(weights.tolist(), transports, rows.points, strict=True)
    ]
    return sum(moved[1:], start=moved[0])


def _cost(costs: Array, transport: Transport) -> float:
    """Return < C, Pi >."""
    if isinstance(transport, Injection):
        return float(costs[transport.slots, np.arange(len(transport.slots))].sum()) / transport.width
    return float((costs * transport.coupling).sum())
