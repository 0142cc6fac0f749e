"""OT fusion: alignment of every model to a reference by optimal transport, layer by layer, and averaging.

Singh, Jaggi, "Model fusion via optimal transport", NeurIPS 2020, in the notation of appendix D of the Wasserstein paper
(Akash et al. 2022). For layer l, with T_{l-1} the transport of the layer before,

    hatW = W T_{l-1}                                       (34), incoming weights in the reference's numbering
    C[g, j] = |hatW[g] - W_ref[j]|^2                       (35), cost of moving unit g to unit j
    P = argmin <C, P>  with uniform marginals,             the plan, and T_l = P divided by its marginal.

Exact plans between equal widths are permutations. Departures from the published code: the output layer is never
transported, biases are one more incoming weight, and all layers that write to a residual stream share one plan.

Where widths differ, units to compare with are sampled from those of all models as in k-means++ (Arthur, Vassilvitskii
2007): each with a probability proportional to its squared distance from the nearest unit that was chosen before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from consilience.checks import AnyArray, Array, Labels, is_number
from consilience.core.methods import Requirement
from consilience.matching.assignment import assign_block, assign_nested
from consilience.matching.transport import entropic_plan, exact_plan
from consilience.networks.method import NetworkEnsemble
from consilience.networks.methods.layerwise import LayerMatching, LayerwiseMethod, UnitRows
from consilience.networks.network import Network, to_numpy
from consilience.networks.symmetry.transport import Injection, Spread, Transport
from consilience.networks.symmetry.unit_rows import row_squares

Cost = Literal["weights", "activations"]
Metric = Literal["squared", "euclidean"]
Start = Literal["reference", "units", "random"]


@dataclass(frozen=True)
class TransportMethod(LayerwiseMethod):
    """Base class of OT fusion and Wasserstein-barycenter fusion.

    Parameters
    ----------
    cost : {"weights", "activations"}
        Whether units are compared by the weights that they receive, or by their activations on unlabeled inputs.
        Default: "weights".
    epsilon : float
        Weight of the entropy in a plan, relative to the largest cost, as in the published code; 0 solves exactly.
        Default: 0.
    start : {"reference", "units", "random"}
        The units that models are first compared with: those of the reference model; of the reference model, with
        further units of all models where the fused network is wider and fewer where it is narrower ("units", which
        "reference" becomes where widths differ); or random ones. Default: "reference".
    """

    cost: Cost = "weights"
    epsilon: float = 0.0
    start: Start = "reference"

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield "cost", self.cost in ("weights", "activations"), "'weights' or 'activations'"
        yield "epsilon", is_number(self.epsilon), "a number that is not negative"
        yield "start", self.start in ("reference", "units", "random"), "'reference', 'units' or 'random'"

    @property
    def wants_activations(self) -> bool:
        """Whether units are compared by their activations."""
        return self.cost == "activations"

    def default_units(self, networks: Sequence[Network], reference: int | None) -> dict[str, int]:
        """Return the default widths of the fused network: the reference's, or without one the widest model's."""
        return super().default_units(networks, None) if reference is None else dict(networks[reference].units)

    def plans(self, costs: Mapping[str, Array], epsilon: float) -> dict[str, Transport]:
        """Return the transports of one model's group (first) and of the groups inside it, by least cost.

        `costs` (K, k_j), by group, are those of moving a unit of the model (column) to a unit of the fused network
        (row); `epsilon` is the weight of the entropy relative to the largest cost, and 0 solves exactly.
        """
        group, *inside = costs
        if inside:  # attention heads: their units are never split, so plans are assignments
            assignment = assign_nested(costs[group].T, {name: costs[name].T for name in inside})
            inner = {name: Injection(slots, len(slots)) for name, slots in assignment.inner.items()}
            return {group: Injection(assignment.outer, len(assignment.outer)), **inner}
        width, n_units = costs[group].shape
        if epsilon:
            return {group: Spread(entropic_plan(costs[group], epsilon))}
        if width == n_units:  # a vertex of the polytope: a permutation
            units = assign_block(costs[group])  # (K,): the model's unit in each unit of the fused network
            slots = np.empty(width, dtype=np.int64)
            slots[units] = np.arange(width)
            return {group: Injection(slots, width)}
        return {group: Spread(exact_plan(costs[group]))}


def squared_costs(support: AnyArray, rows: UnitRows, model: int, support_squares: Array | None = None) -> Array:
    """Return the mean squared distances (K, k_j) of support rows from the rows of one model's units.

    Formula (7) as one matrix product: |x|^2 + |y|^2 - 2 <x, y>, with |y|^2 the mean square under the coupling before.
    `support` (K, F) has the rows of the fused layer; `support_squares` (K,) are its `row_squares`, where known.
    """
    xp = array_namespace(support)
    # In as few passes over (K, k_j) as there may be: for layers of a few hundred units memory takes the time.
    products = xp.matmul(support, xp.matrix_transpose(rows.points[model]))
    products *= -2.0
    if support_squares is None:
        support_squares = to_numpy(row_squares(support))
    on_cpu = np.asarray(products.detach().cpu() if hasattr(products, "detach") else products)
    costs: Array = np.add(on_cpu, support_squares[:, None], dtype=np.float64)
    costs += to_numpy(rows.squares[model])
    return np.maximum(costs, 0.0, out=costs)  # differences of equal rows may round to below zero


def transport_rows(transport: Transport, points: AnyArray, odd: NDArray[np.bool_]) -> AnyArray:
    """Return unit rows (k, F) transported into the fused network (K, F); only odd entries (F,) change sign."""
    unsigned = transport.unsigned.move(points, 0, "output")
    if transport.signs is None or not odd.any():
        return unsigned
    xp = array_namespace(unsigned)
    return xp.where(xp.asarray(odd, device=unsigned.device), transport.move(points, 0, "output"), unsigned)


@dataclass(frozen=True)
class OTFusion(TransportMethod):
    """Align every model to the reference by optimal transport, layer by layer, and average.

    Parameters
    ----------
    metric : {"squared", "euclidean"}
        Whether rows are compared by squared distance, equation (35), or by distance, as the published commands do.
        Default: "squared".
    normalize : bool
        Whether rows are divided by their length before they are compared. Default: False.

    References
    ----------
    Singh, Jaggi (2020), "Model fusion via optimal transport", NeurIPS; equations (34) and (35) of appendix D in the
    Wasserstein-barycenter paper.
    """

    name: ClassVar[str] = "ot"
    summary: ClassVar[str] = "align each network to one of them by optimal transport, layer by layer, and average"
    needs: ClassVar[str] = "networks of one architecture, widths may differ; unlabeled inputs for `cost=activations`"
    gives: ClassVar[str] = "one network of any width"
    paper: ClassVar[str] = "singh2020"

    metric: Metric = "squared"
    normalize: bool = False

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield ("metric", self.metric in ("squared", "euclidean"), "'squared' or 'euclidean'")

    def match(
        self, bundle: Mapping[str, UnitRows], ensemble: NetworkEnsemble, reference: int, rng: np.random.Generator
    ) -> LayerMatching:
        """Return the plans from every model to the initial support."""
        compared = {name: _normalize_rows(rows) if self.normalize else rows for name, rows in bundle.items()}
        support, is_reference = initial_support(self.start, compared, reference, rng)
        support_squares = {
            name: to_numpy(rows.squares[reference] if is_reference and rows.are_squares_exact else row_squares(points))
            for (name, rows), points in zip(compared.items(), support.values(), strict=True)
        }
        transports: list[dict[str, Transport]] = []
        for model in range(len(ensemble.networks)):
            if model == reference and is_reference:  # exactly itself, where ties or entropy could move its units
                transports.append({n: Injection(np.arange(r.width), r.width) for n, r in bundle.items()})
                continue
            costs = {
                name: squared_costs(support[name], rows, model, support_squares[name])
                for name, rows in compared.items()
            }
            if self.metric == "euclidean":
                costs = {name: np.sqrt(values) for name, values in costs.items()}
            transports.append(self.plans(costs, self.epsilon))
        return LayerMatching(tuple(transports))


def _normalize_rows(rows: UnitRows) -> UnitRows:
    """Return rows of length 1; rows of zeros stay."""
    points = []
    for model_points in rows.points:
        xp = array_namespace(model_points)
        length = xp.sqrt(xp.sum(model_points**2, axis=1, keepdims=True))  # (k, 1)
        points.append(model_points / xp.where(length > 0, length, xp.ones_like(length)))
    return UnitRows(rows.width, tuple(points), tuple(map(row_squares, points)))


DUPLICATE_ROUNDING = 1e-10
"""Squared distances below this fraction of the longest row's square are rounding: such units are duplicates. Chosen by
hand; nobody has measured other values."""


def initial_support(
    start: Start, bundle: Mapping[str, UnitRows], reference: int, rng: np.random.Generator, has_signs: bool = False
) -> tuple[dict[str, AnyArray], bool]:
    """Return rows (K, F) to start from for every group, and whether they are the reference model's in their order.

    They are the reference model's units; these and further units of all models, sampled far from those before, where
    more are needed ("units", which "reference" becomes where widths differ); or random rows. Where units may change
    sign, a unit and its mirror image are duplicates.
    """
    if start == "random":
        return {name: _as_array_of(rows, _random_rows(rows, rng)) for name, rows in bundle.items()}, False
    if all(len(rows.points[reference]) == rows.width for rows in bundle.values()):
        return {name: rows.points[reference] for name, rows in bundle.items()}, True
    return {
        name: _as_array_of(rows, _sample_units(rows, reference, rng, has_signs)) for name, rows in bundle.items()
    }, False


def _as_array_of(rows: UnitRows, values: Array) -> AnyArray:
    """Return values as an array of the library, precision and device of the unit rows."""
    like = rows.points[0]
    return array_namespace(like).asarray(values, dtype=like.dtype, device=like.device)


def _random_rows(rows: UnitRows, rng: np.random.Generator) -> Array:
    """Return Gaussian rows (K, F) of mean 0, every entry with its standard deviation over all models' units."""
    deviation = np.concatenate([to_numpy(points) for points in rows.points]).std(axis=0)  # (F,)
    return rng.normal(size=(rows.width, len(deviation))) * deviation


def _sample_units(rows: UnitRows, reference: int, rng: np.random.Generator, has_signs: bool) -> Array:
    """Return rows (K, F) of the models' units: the reference's first, then sampled far from those before."""
    points = [to_numpy(model_points) for model_points in rows.points]
    odd = np.flatnonzero(rows.odd) if has_signs else None
    pool = np.concatenate([points[reference], *points])  # the reference's units come first, at numbers 0 to k - 1
    n_reference = len(points[reference])
    if rows.width >= n_reference:
        chosen: list[int] = list(range(n_reference))
        nearest = _squared_distances(pool, pool[:n_reference], odd).min(axis=1)  # (pool,)
    else:  # fewer units than the reference has: all of them are drawn from it
        chosen = [int(rng.integers(n_reference))]
        pool = pool[:n_reference]
        nearest = _squared_distances(pool, pool[chosen], odd).min(axis=1)
    duplicate_distance = DUPLICATE_ROUNDING * float((pool**2).sum(axis=1).max(initial=0.0))
    while len(chosen) < rows.width:
        if nearest.max(initial=0.0) > duplicate_distance:
            draw = int(rng.choice(len(pool), p=nearest / nearest.sum()))
        else:  # every distinct unit is there: repeat the reference's in turn, so that all are split alike
            draw = len(chosen) % min(n_reference, len(pool))
        chosen.append(draw)
        nearest = np.minimum(nearest, _squared_distances(pool, pool[draw : draw + 1], odd)[:, 0])
    return pool[np.array(chosen)]


def _squared_distances(points: Array, others: Array, odd: Labels | None) -> Array:
    """Return squared distances (n, m); with `odd` entries that may change sign together, of the nearer sign."""
    squares = (points**2).sum(axis=1)[:, None] + (others**2).sum(axis=1) - 2.0 * points @ others.T
    if odd is not None:
        products = points[:, odd] @ others[:, odd].T
        squares += 2.0 * (products - np.abs(products))  # <x, y> becomes |<x, y>| over the odd entries
    return np.maximum(squares, 0.0)
