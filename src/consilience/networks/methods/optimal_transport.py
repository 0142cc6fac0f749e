"""OT fusion: align every model to one of them by optimal transport, layer by layer, and average.

Singh, Jaggi, "Model fusion via optimal transport", NeurIPS 2020, as in appendix D of the Wasserstein paper: with T of
the layer before, the incoming edges are aligned (34), units are compared by what they receive (35), and the plan moves
the units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from consilience.checks import AnyArray, Array, is_number
from consilience.matching.nested_assignment import assign_nested
from consilience.matching.transport import entropic_plan, exact_plan
from consilience.networks.method import NetworkEnsemble
from consilience.networks.methods.barycenter_support import Start, first_support
from consilience.networks.methods.layerwise import Layer, LayerwiseMethod, Rows
from consilience.networks.network import Network, to_numpy
from consilience.networks.symmetry.transport import Injection, Spread, Transport

Cost = Literal["weights", "activations"]
Metric = Literal["squared", "euclidean"]


@dataclass(frozen=True)
class TransportMethod(LayerwiseMethod):
    """What OT fusion and Wasserstein-barycenter fusion share.

    Parameters
    ----------
    cost
        Whether units are compared by the weights that they receive, or by what they give on unlabeled inputs.
    epsilon
        Weight of the entropy in a plan, relative to the largest cost; 0 solves exactly.
    start
        The units that models are first compared with: those of the reference model; of the reference model, with
        further ones of all models where the fused network is wider and fewer where it is narrower ("units", also what
        "reference" becomes where widths differ); or random ones.
    paper_scaling
        Whether what units of another width send is averaged, as formula (9) is printed, instead of split.
    """

    cost: Cost = "weights"
    epsilon: float = 0.0
    start: Start = "reference"
    paper_scaling: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("cost", self.cost in ("weights", "activations"), "'weights' or 'activations'")
        self.require("epsilon", is_number(self.epsilon), "a number that is not negative")
        self.require("start", self.start in ("reference", "units", "random"), "'reference', 'units' or 'random'")
        self.require("paper_scaling", isinstance(self.paper_scaling, bool), "true or false")

    @property
    def wants_activations(self) -> bool:
        """Whether units are compared by what they give."""
        return self.cost == "activations"

    def default_units(self, networks: Sequence[Network], reference: int | None) -> dict[str, int]:
        """Return how wide the fused network is where nobody says: as the reference, or the widest if that is open."""
        return super().default_units(networks, None) if reference is None else dict(networks[reference].units)

    def plans(self, costs: Mapping[str, Array]) -> dict[str, Transport]:
        """Return the transports of a group (first) and of the groups inside it, given costs (K, k_j)."""
        group, *inside = costs
        if inside:
            found = assign_nested(costs[group].T, {name: costs[name].T for name in inside})
            moved = {name: Injection(slots, len(slots)) for name, slots in found.inner.items()}
            return {group: Injection(found.outer, len(found.outer)), **moved}
        width, count = costs[group].shape
        if self.epsilon:
            return {group: self._spread(entropic_plan(costs[group], self.epsilon))}
        plan = exact_plan(costs[group])
        if width == count:
            return {group: Injection(plan.argmax(axis=0), width)}
        return {group: self._spread(plan)}

    def _spread(self, plan: Array) -> Spread:
        width, count = plan.shape
        return Spread(plan, width / count if self.paper_scaling else 1.0)


def squared_costs(support: AnyArray, rows: Rows, model: int) -> Array:
    """Return the mean squared distance (K, k) of support rows from what units receive: formula (7) as one product."""
    xp = array_namespace(support)
    products = xp.matmul(support, xp.matrix_transpose(rows.points[model]))
    costs = -2.0 * to_numpy(products)
    costs += to_numpy(xp.sum(support * support, axis=-1))[:, None]
    costs += to_numpy(rows.squares[model])
    return np.maximum(costs, 0.0, out=costs)


def receiving(transport: Transport, points: AnyArray, odd: NDArray[np.bool_]) -> AnyArray:
    """Return rows of units (k, F) moved to the fused network (K, F); only odd entries change sign."""
    moved = transport.unsigned.move(points, 0, "output")
    if transport.signs is None or not odd.any():
        return moved
    xp = array_namespace(moved)
    return xp.where(xp.asarray(odd, device=moved.device), transport.move(points, 0, "output"), moved)


@dataclass(frozen=True)
class OTFusion(TransportMethod):
    """Align every model to the reference by optimal transport, layer by layer, and average.

    Parameters
    ----------
    metric
        Whether rows are compared by squared distance, equation (35), or by distance.
    normalize
        Whether rows are divided by their length before they are compared.

    References
    ----------
    Singh, Jaggi (2020), "Model fusion via optimal transport", NeurIPS; equations (34) and (35) of appendix D in the
    Wasserstein-barycenter paper.
    """

    name: ClassVar[str] = "ot"
    summary: ClassVar[str] = "align each network to one of them by optimal transport, layer by layer, and average"
    needs: ClassVar[str] = "networks of one architecture, widths may differ; unlabeled inputs for cost=activations"
    gives: ClassVar[str] = "one network of any width"
    paper: ClassVar[str] = "singh2020"

    metric: Metric = "squared"
    normalize: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("metric", self.metric in ("squared", "euclidean"), "'squared' or 'euclidean'")
        self.require("normalize", isinstance(self.normalize, bool), "true or false")

    def match(
        self, bundle: Mapping[str, Rows], ensemble: NetworkEnsemble, reference: int, rng: np.random.Generator
    ) -> Layer:
        """Return plans from every model to the reference."""
        compared = {name: _normalized(rows) if self.normalize else rows for name, rows in bundle.items()}
        support, kept = first_support(self.start, compared, reference, rng)
        transports: list[dict[str, Transport]] = []
        for model in range(len(ensemble.networks)):
            if model == reference and kept:
                transports.append({n: Injection(np.arange(r.width), r.width) for n, r in bundle.items()})
                continue
            costs = {name: squared_costs(support[name], rows, model) for name, rows in compared.items()}
            if self.metric == "euclidean":
                costs = {name: np.sqrt(values) for name, values in costs.items()}
            transports.append(self.plans(costs))
        return Layer(tuple(transports))


def _normalized(rows: Rows) -> Rows:
    """Return rows of length 1."""
    points = []
    for own in rows.points:
        xp = array_namespace(own)
        length = xp.sqrt(xp.sum(own**2, axis=1, keepdims=True))
        points.append(own / xp.where(length > 0, length, xp.ones_like(length)))
    return Rows(rows.width, tuple(points), tuple(array_namespace(p).sum(p**2, axis=1) for p in points))
