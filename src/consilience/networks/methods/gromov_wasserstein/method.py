"""Gromov-Wasserstein-barycenter fusion: WB fusion that matches recurrent units by their hidden-to-hidden weights too.

The rows and the columns of a hidden-to-hidden matrix H are the same units, so both follow the coupling P_i. A recurrent
layer of the fused network minimises equation (10) of the Wasserstein paper, with all gates under one coupling:

    B = sum_i a_i [ < C_i, P_i > + alpha sum_gates < L(H, H_i) (x) P_i, P_i > ],    L(H, H')_{jgqs} = (h_jq - h'_gs)^2,

with a_i the weight of model i, C_i (K, k_i) the costs of its incoming weights as in WB fusion, and P_i a plan with
marginals 1 / K and 1 / k_i. Algorithm 2 alternates couplings (fused Gromov-Wasserstein problems) and the layer, (45)
and (46), which is the minimiser for fixed couplings. B never rises in mode "exact"; equation (43), mode "paper", may
raise it, and the iteration then ends before that step. Layers without recurrent weights are those of WB fusion, except
that units may change sign, and that outgoing weights may count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from operator import attrgetter
from typing import Any, ClassVar, Literal

import numpy as np

from consilience.checks import AnyArray, Array, is_number
from consilience.core.methods import Requirement
from consilience.core.progress import Progress, silent
from consilience.matching.gromov import FusedGromov, TransportPlan
from consilience.matching.gromov_descent import (
    GromovSolution,
    alternating,
    conditional_gradient,
    is_permutation,
    mirror_descent,
)
from consilience.networks.details import GroupDetails
from consilience.networks.method import Alignment, NetworkEnsemble
from consilience.networks.methods.layerwise import LayerMatching, UnitRows
from consilience.networks.methods.optimal_transport import initial_support, squared_costs
from consilience.networks.methods.wasserstein import WassersteinFusion, barycenter_rows, has_converged
from consilience.networks.methods.weight_matching.coordinate_descent import (
    RecurrentWeights,
    ignored_recurrent_arrays,
    permutation_transport,
    recurrent_arrays,
    recurrent_weights,
)
from consilience.networks.methods.weight_matching.match import MAX_MATCHING_PASSES, match_weights
from consilience.networks.network import to_numpy
from consilience.networks.symmetry.transport import Injection, Spread, Transport, permutation

Mode = Literal["exact", "paper", "mirror"]
CouplingStart = Literal["input", "uniform", "matching"]


@dataclass(frozen=True)
class GromovFusion(WassersteinFusion):
    """Find every layer as a Wasserstein barycenter, recurrent ones as a fused Gromov-Wasserstein barycenter.

    Parameters
    ----------
    mode : {"exact", "paper", "mirror"}
        How couplings of recurrent units are found: "exact" descends B by conditional gradients and ends in permutations
        where widths agree; "paper" repeats equation (43), which for matrices that are not symmetric is no descent;
        "mirror" descends B by multiplicative steps, which keeps couplings soft. Default: "exact".
    alpha : float, optional
        Weight of the hidden-to-hidden term, with both terms divided by their means over all pairs of units. Default:
        every weight counts alike. The values in equation (10) and in the published code are in the details.
    starts : tuple of {"input", "uniform", "matching"}
        Initial couplings, of which the best result by B is kept: "input" ignores the hidden-to-hidden weights,
        "uniform" couples all units alike, as the published code does, "matching" is weight matching over all places of
        all groups (same widths only). Default: all three.
    sent : bool
        Whether outgoing weights count too, where the units that receive them are known: the weights of a decoder.
        Default: True.
    signs : bool, optional
        Whether units may change sign where that changes no output (tanh units, and the units of LSTMs and GRUs with
        their proposing gate). Default: in mode "exact", the only one that can.

    References
    ----------
    The Wasserstein-barycenter paper, algorithm 2 with equations (10) and (37) to (46); Peyre, Cuturi, Solomon (2016),
    "Gromov-Wasserstein averaging of kernel and distance matrices", ICML.
    """

    name: ClassVar[str] = "gwb"
    summary: ClassVar[str] = "WB fusion that matches recurrent units by their hidden-to-hidden weights too"
    needs: ClassVar[str] = "networks of one architecture with RNN, LSTM or GRU layers, widths may differ"
    gives: ClassVar[str] = "one network of any width"
    paper: ClassVar[str] = "akash2022"

    mode: Mode = "exact"
    alpha: float | None = None
    starts: tuple[CouplingStart, ...] = ("input", "uniform", "matching")
    sent: bool = True
    signs: bool | None = None

    def __post_init__(self) -> None:
        starts: Any = self.starts  # options from recipes and the command line are lists or texts
        if isinstance(starts, str):
            starts = [part.strip() for part in starts.split(",")]
        if isinstance(starts, list):
            object.__setattr__(self, "starts", tuple(starts))
        super().__post_init__()

    def requirements(self) -> Iterator[Requirement]:
        """Yield what the options must be."""
        yield from super().requirements()
        yield "cost", self.cost == "weights", "'weights': hidden-to-hidden weights are no activations"
        yield "mode", self.mode in ("exact", "paper", "mirror"), "'exact', 'paper' or 'mirror'"
        yield "alpha", self.alpha is None or is_number(self.alpha), "a number that is not negative, or None"
        starts: Any = self.starts  # whatever a recipe may say
        are_known = isinstance(starts, tuple) and all(start in ("input", "uniform", "matching") for start in starts)
        yield "starts", are_known and len(starts) > 0, "some of 'input', 'uniform' and 'matching'"
        yield "signs", self.signs is None or isinstance(self.signs, bool), "true, false or None"
        yield "signs", not self.signs or self.mode == "exact", "false or None: only mode 'exact' has signs"
        yield "epsilon", self.epsilon == 0 or self.mode == "paper", "0: only mode 'paper' has entropy"

    @property
    def counts_sent(self) -> bool:
        """Whether outgoing weights count too."""
        return self.sent

    @property
    def _allows_signs(self) -> bool:
        return self.mode == "exact" and self.signs is not False

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Return the alignment of least B over `restarts` passes, each with several initial couplings."""
        is_recurrent = any(recurrent_arrays(ensemble.symmetry, name) for name in ensemble.symmetry.by_name)
        if is_recurrent and "matching" in self.starts and ensemble.same_units and len(ensemble.networks) > 1:
            child = rng.spawn(1)[0]
            matching = match_weights(
                ensemble, ["receiving"], MAX_MATCHING_PASSES, child, silent, signs=self._allows_signs
            )
            ensemble = replace(ensemble, initial_transports=matching.transports)
        alignment = super().align(ensemble, rng, progress)
        ignored = sorted(
            {array for name in ensemble.symmetry.by_name for array in ignored_recurrent_arrays(ensemble.symmetry, name)}
        )
        return replace(alignment, details={**alignment.details, "not_matched_by": ignored}) if ignored else alignment

    def match(
        self, bundle: Mapping[str, UnitRows], ensemble: NetworkEnsemble, reference: int, rng: np.random.Generator
    ) -> LayerMatching:
        """Return the plans of one layer's barycenter, of a Wasserstein or a fused Gromov-Wasserstein one."""
        group, *inside = bundle
        weights = [
            recurrent_weights(network.symmetry, network.working, group, network.units[group])
            for network in ensemble.networks
        ]
        has_signs = self._allows_signs and "sign" in ensemble.symmetry.by_name[group].actions
        # Without recurrent weights and signs the problem is that of WB fusion.
        if inside or not (has_signs or weights[0].flips):
            return super().match(bundle, ensemble, reference, rng)
        width = bundle[group].width
        # Rows sum alike in every width: times k / K, because outgoing weights are split.
        rescaled = [replace(one, matrices=one.matrices * (one.matrices.shape[1] / width)) for one in weights]
        layer = _RecurrentLayer(bundle[group], rescaled, ensemble.weights, has_signs)
        return self._recurrent_barycenter(group, layer, ensemble, reference, rng)

    def _recurrent_barycenter(
        self, group: str, layer: _RecurrentLayer, ensemble: NetworkEnsemble, reference: int, rng: np.random.Generator
    ) -> LayerMatching:
        """Return the couplings of one recurrent layer, alternated with the layer: algorithm 2."""
        support, is_reference = initial_support(self.start, {group: layer.rows}, reference, rng, layer.has_signs)
        rows, hidden = support[group], layer.weights[reference].matrices  # (K, F), (gates, K, K)
        if not is_reference:
            # Sampled units have no recurrent weights: coupled by incoming weights, by which both are then averaged.
            problems = layer.problems(rows, np.zeros((0, layer.rows.width, layer.rows.width)), 0.0)
            rows, hidden = layer.barycenter([_transport(problem.by_costs()) for problem in problems])
        alpha, alpha_details = self._hidden_weight(layer, rows, hidden, fan_in(ensemble, group))
        solutions: list[GromovSolution] = []
        n_steps = np.zeros(len(layer.weights), dtype=np.int64)
        history: list[float] = []
        transports: list[Transport] = []
        converged = False
        for _ in range(self.max_iterations):
            problems = layer.problems(rows, hidden, alpha)
            # Warm start: from its last plan a descent can only fall.
            starts = [[solution.plan] for solution in solutions] or [
                # Where the layer has the units of the reference model, that one is coupled with itself.
                [_permutation_plan(permutation(np.arange(layer.rows.width)), layer.has_signs)]
                if is_reference and model == reference
                else self._initial_plans(problem, group, ensemble, reference, model)
                for model, problem in enumerate(problems)
            ]
            trial = [self._solve(problem, plans) for problem, plans in zip(problems, starts, strict=True)]
            n_steps += [len(solution.history) - 1 for solution in trial]
            # B after the coupling step; below zero is rounding.
            value = max(0.0, float(ensemble.weights @ [solution.objective for solution in trial]))
            is_last = has_converged(history, value)
            converged = is_last and all(solution.converged for solution in trial)
            if history and value > history[-1]:  # equation (43) is no descent: the couplings before are kept
                break
            solutions, transports = trial, [_transport(solution.plan) for solution in trial]
            history.append(value)
            if is_last:
                break
            rows, hidden = layer.barycenter(transports)
        found: GroupDetails = {"iterations": len(history), "steps": n_steps.tolist(), "signs": layer.has_signs}
        details: GroupDetails = {**found, **alpha_details}
        return LayerMatching(tuple({group: transport} for transport in transports), history, details, converged)

    def _solve(self, problem: FusedGromov, starts: Sequence[TransportPlan]) -> GromovSolution:
        """Return the best solution of a coupling problem from several initial plans.

        In mode "exact" it is never worse than an initial plan that is a permutation.
        """
        solutions = []
        for start in starts:
            if self.mode == "exact":
                solutions.append(conditional_gradient(problem, start))
                start_value = solutions[-1].history[:1]
                # Rounding to a permutation at the end of a descent may raise the objective above the start.
                if problem.square and is_permutation(start) and solutions[-1].objective > start_value[0]:
                    solutions.append(GromovSolution(start, float(start_value[0]), start_value, converged=True))
            elif self.mode == "paper":
                solutions.append(alternating(problem, start, self.epsilon))
            else:
                # Multiplicative steps keep zeros: start half way to the uniform plan.
                interior = TransportPlan(0.5 * (start.mass + problem.uniform().mass))
                solutions.append(mirror_descent(problem, interior))
        return min(solutions, key=attrgetter("objective"))

    def _initial_plans(
        self, problem: FusedGromov, group: str, ensemble: NetworkEnsemble, reference: int, model: int
    ) -> list[TransportPlan]:
        """Return the couplings from which one model's problem is solved first, as the option `starts` says."""
        plans = []
        for start in self.starts:
            if start == "input":
                plans.append(problem.by_costs())
            elif start == "uniform":
                plans.append(problem.uniform())
            elif ensemble.initial_transports is not None and problem.square:
                reference_transport, transport = (ensemble.initial_transports[i][group] for i in (reference, model))
                if isinstance(inverse := reference_transport.inverse, Injection) and isinstance(transport, Injection):
                    plans.append(_permutation_plan(transport.then(inverse), problem.odd is not None))
        if problem.odd is not None and not problem.square:
            # In other widths the best plan without signs may be the better start.
            mass = conditional_gradient(problem.unsigned, problem.unsigned.by_costs()).plan.mass
            plans.append(TransportPlan(mass, mass))
        return plans or [problem.by_costs()]

    def _hidden_weight(
        self, layer: _RecurrentLayer, rows: AnyArray, hidden: Array, n_inputs: float
    ) -> tuple[float, GroupDetails]:
        """Return the factor of the second term, and for the details its value in other conventions.

        Costs here are sums over inputs, as in the published code; in equation (10) they are means over inputs, so that
        alpha there is smaller by the number of inputs. The option `alpha` is relative to the means of both terms at the
        uniform plan. By default every weight counts alike: the second term is a mean over the K units that send, and K
        times that is a sum over them, as the first term is over inputs.
        """
        if not len(hidden):
            return 0.0, {}
        problems = replace(layer, has_signs=False).problems(rows, hidden, 1.0)
        input_mean = float(layer.shares @ [problem.costs.mean() for problem in problems])
        # At the uniform plan sum_g <H_g P H'_g^T, P> is the product of the means of both matrices.
        means = [[of.mean(axis=(1, 2)) for of in (one.row_structure, one.column_structure)] for one in problems]
        products = [float(np.einsum("g,g->", *of_model)) for of_model in means]
        constants = [problem.constant for problem in problems]
        hidden_mean = float(layer.shares @ [c - 2.0 * product for c, product in zip(constants, products, strict=True)])
        ratio = hidden_mean / input_mean if input_mean > 0 else 0.0
        alpha = float(layer.rows.width) if self.alpha is None or ratio == 0.0 else self.alpha / ratio
        return alpha, {
            "alpha": alpha * ratio if ratio else None,
            "alpha_as_printed": alpha / n_inputs,
            "alpha_as_published_code": alpha,
        }


@dataclass(frozen=True, eq=False)
class _RecurrentLayer:
    """The units of one group of recurrent units in all models."""

    rows: UnitRows  # incoming weights
    weights: Sequence[RecurrentWeights]  # recurrent weights of every model, rescaled to the width of the fused layer
    shares: Array  # (J,): weights of the models
    has_signs: bool  # whether units may change sign

    def problems(self, rows: AnyArray, hidden: Array, alpha: float) -> list[FusedGromov]:
        """Return the problems that couple every model's units to those of the fused layer: (10), alpha_H = `alpha`.

        The fused layer receives `rows` (K, F) and has recurrent weights `hidden` (gates, K, K), also of no gate.
        """
        problems = []
        odd = np.flatnonzero(self.rows.odd) if self.has_signs else None
        for model, weights in enumerate(self.weights):
            costs, matrices = squared_costs(rows, self.rows, model), weights.matrices[: len(hidden)]  # costs (K, k)
            if odd is None:
                problems.append(FusedGromov(costs, hidden, matrices, alpha))
                continue
            products = to_numpy(rows)[:, odd] @ to_numpy(self.rows.points[model])[:, odd].T  # (K, k)
            # Costs without the products of odd entries, which FusedGromov adds with the sign that it chooses.
            flips = weights.flips[: len(hidden)]
            problems.append(FusedGromov(costs + 2.0 * products, hidden, matrices, alpha, products, flips))
        return problems

    def barycenter(self, transports: Sequence[Transport]) -> tuple[AnyArray, Array]:
        """Return the layer of least B given the couplings: rows (K, F) by (45), matrices (gates, K, K) by (46).

        The weights were rescaled to the width of the fused layer, so both sides of (46) average here.
        """
        hidden = np.zeros((len(self.weights[0].matrices), self.rows.width, self.rows.width))
        for share, recurrent, transport in zip(self.shares.tolist(), self.weights, transports, strict=True):
            for total, matrix, flips in zip(hidden, recurrent.matrices, recurrent.flips, strict=True):
                columns = transport.move(matrix, 1, "output")  # (k, K)
                total += share * (transport if flips else transport.unsigned).move(columns, 0, "output")
        return barycenter_rows(self.rows, self.shares, transports), hidden


def fan_in(ensemble: NetworkEnsemble, group: str) -> float:
    """Return the number of inputs that a unit of the fused network has from the layers before, without biases."""
    layouts = ensemble.symmetry.layouts
    hidden_arrays = {place.array for pair in recurrent_arrays(ensemble.symmetry, group) for place in pair}
    total = 0.0
    for place in ensemble.symmetry.places(group):
        shape = layouts[place.array].shape(ensemble.target_units)
        if place.side != "input" and place.array not in hidden_arrays and len(shape) > 1:
            total += prod(shape) / shape[place.axis]
    return max(1.0, total)


def _transport(plan: TransportPlan) -> Transport:
    """Return the transport of a plan (K, k): an injection where it is a permutation, else a spread."""
    width, n_units = plan.mass.shape
    if width == n_units and is_permutation(plan):
        return permutation_transport(plan)
    signs = None
    if plan.signed is not None:  # a unit may go the same way with both signs: the mean sign, between -1 and 1
        signs = np.divide(plan.signed, plan.mass, out=np.ones_like(plan.mass), where=plan.mass > 0)
    return Spread(plan.mass, signs=signs)


def _permutation_plan(transport: Injection, has_signs: bool) -> TransportPlan:
    """Return a permutation as a plan (K, K), with its signs where the problem has any."""
    mass = np.zeros((transport.width, transport.width))
    mass[transport.slots, np.arange(transport.width)] = 1.0 / transport.width
    if not has_signs:
        return TransportPlan(mass)
    return TransportPlan(mass, mass if transport.signs is None else mass * transport.signs)
