"""Gromov-Wasserstein-barycenter fusion: recurrent layers matched by their hidden-to-hidden weights too.

The hidden-to-hidden matrices H of a layer are indexed twice by the coupling of its units, so a layer of the fused
network minimises, with all gates under one coupling, equation (10) of the Wasserstein paper:

    B = sum_i a_i [ < C_i, P_i > + alpha < L(H, H_i) (x) P_i, P_i > ],

C_i as in WB fusion. Couplings and the layer are found in turn. Layers without such weights are those of WB fusion, but
that units may change sign, and that what they send may count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from consilience.checks import AnyArray, Array, is_number
from consilience.core.progress import Progress
from consilience.matching.gromov import FusedGromov, TransportPlan
from consilience.matching.gromov_descent import (
    GromovSolution,
    alternating,
    conditional_gradient,
    is_permutation,
    mirror_descent,
)
from consilience.networks.method import Alignment, NetworkEnsemble
from consilience.networks.methods.barycenter_support import first_support
from consilience.networks.methods.gromov_wasserstein.problem import (
    in_density,
    inputs_of,
    mean_product,
    plan_of,
    problem_of,
    stay,
)
from consilience.networks.methods.layerwise import Layer, Rows
from consilience.networks.methods.wasserstein import WassersteinFusion, barycenter, settled
from consilience.networks.methods.weight_matching.match import matched
from consilience.networks.methods.weight_matching.recurrent_matching import moved_by
from consilience.networks.methods.weight_matching.recurrent_weights import Among, loops, unseen_loops, weights_among
from consilience.networks.symmetry.symmetry import Symmetry
from consilience.networks.symmetry.transport import Injection, Spread, Transport

Mode = Literal["exact", "paper", "mirror"]
First = Literal["input", "uniform", "matching"]

_MATCHING_PASSES = 100


@dataclass(frozen=True)
class GromovFusion(WassersteinFusion):
    """Find every layer as a Wasserstein barycenter, recurrent ones as a fused Gromov-Wasserstein barycenter.

    Parameters
    ----------
    mode
        How couplings of recurrent units are found: "exact" descends B by conditional gradients and ends in permutations
        where widths agree; "paper" repeats equation (43), which for matrices that are not symmetric is no descent;
        "mirror" descends B by multiplicative steps, which keeps couplings soft.
    alpha
        What the hidden-to-hidden term counts, with both terms divided by their means over all pairs of units; None lets
        every weight count alike. What it is in equation (10), and in the published code, is in the details.
    starts
        Couplings to start from, of which the best by B is kept: "input" ignores the hidden-to-hidden weights,
        "uniform" couples all alike, "matching" is weight matching over all places of all groups (same widths only).
    sent
        Whether what units send counts too, where its readers are known: the weights of a decoder.
    signs
        Whether units may change sign where that changes no output (tanh units, and the units of LSTMs and GRUs with
        their proposing gate); None for wherever the mode is "exact", the only one that can.

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
    starts: tuple[First, ...] = ("input", "uniform", "matching")
    sent: bool = True
    signs: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        starts: Any = self.starts  # options from recipes and the command line are lists or texts
        if isinstance(starts, str):
            starts = [part.strip() for part in starts.split(",")]
        told = isinstance(starts, list | tuple) and len(starts) > 0
        self.require("starts", told, "some of 'input', 'uniform' and 'matching'")
        object.__setattr__(self, "starts", tuple(starts))
        self.require("cost", self.cost == "weights", "'weights': hidden-to-hidden weights are no activations")
        self.require("mode", self.mode in ("exact", "paper", "mirror"), "'exact', 'paper' or 'mirror'")
        self.require("alpha", self.alpha is None or is_number(self.alpha), "a number that is not negative, or None")
        known = all(one in ("input", "uniform", "matching") for one in self.starts)
        self.require("starts", known, "some of 'input', 'uniform' and 'matching'")
        self.require("sent", isinstance(self.sent, bool), "true or false")
        self.require("signs", self.signs is None or isinstance(self.signs, bool), "true, false or None")
        self.require("signs", not self.signs or self.mode == "exact", "false or None: only mode 'exact' has signs")
        self.require("epsilon", self.epsilon == 0 or self.mode == "paper", "0: only mode 'paper' has entropy")

    @property
    def counts_sent(self) -> bool:
        """Whether what units send counts too."""
        return self.sent

    def align(self, ensemble: NetworkEnsemble, rng: np.random.Generator, progress: Progress) -> Alignment:
        """Pass over the network as often as asked, and keep the best."""
        recurrent = any(loops(ensemble.symmetry, name) for name in ensemble.symmetry.by_name)
        if recurrent and "matching" in self.starts and ensemble.same_units and len(ensemble.networks) > 1:
            child = rng.spawn(1)[0]
            turning = self.mode == "exact" and self.signs is not False
            found = matched(ensemble, ["receiving"], _MATCHING_PASSES, child, lambda _done, _all: None, signs=turning)
            ensemble = replace(ensemble, placed=found.transports)
        found = super().align(ensemble, rng, progress)
        unseen = sorted(
            {array for name in ensemble.symmetry.by_name for array in unseen_loops(ensemble.symmetry, name)}
        )
        return replace(found, details={**found.details, "not_matched_by": unseen}) if unseen else found

    def match(
        self, bundle: Mapping[str, Rows], ensemble: NetworkEnsemble, reference: int, rng: np.random.Generator
    ) -> Layer:
        """Return the plans of a barycenter."""
        group, *inside = bundle
        among = [
            weights_among(network.symmetry, network.working, group, network.units[group])
            for network in ensemble.networks
        ]
        signed = self.mode == "exact" and self.signs is not False and can_turn(ensemble.symmetry, group)
        if inside or not (signed or among[0].flips):
            return super().match(bundle, ensemble, reference, rng)
        hidden = in_density(among, bundle[group].width, self.paper_scaling)
        return self._barycenter(group, bundle[group], hidden, ensemble, reference, signed, rng)

    def _barycenter(
        self,
        group: str,
        rows: Rows,
        among: Sequence[Among],
        ensemble: NetworkEnsemble,
        reference: int,
        signed: bool,
        rng: np.random.Generator,
    ) -> Layer:
        """Return the couplings of one recurrent layer, found in turn with the layer."""
        first, kept = first_support(self.start, {group: rows}, reference, rng, signed)
        support, left = first[group], among[reference].matrices
        if not kept:  # nothing is known of what drawn units have among themselves until they are coupled
            plans = [
                problem_of(support, None, rows, one, model, 0.0, signed).by_costs() for model, one in enumerate(among)
            ]
            support, left = self._layer(rows, among, ensemble.weights, [self._transport(plan) for plan in plans])
        inputs = inputs_of(ensemble, group)
        alpha, told = self._alpha(support, left, rows, among, ensemble.weights, inputs)
        solved: list[GromovSolution] = []
        steps = np.zeros(len(among), dtype=np.int64)
        history: list[float] = []
        transports: list[Transport] = []
        converged = False
        for _ in range(self.max_iterations):
            problems = [problem_of(support, left, rows, one, model, alpha, signed) for model, one in enumerate(among)]
            if solved:
                trial = [self._solve(problem, [before.plan]) for problem, before in zip(problems, solved, strict=True)]
            else:
                trial = [
                    self._solve(problem, [stay(problem)])
                    if kept and model == reference
                    else self._solve(problem, self._first_plans(problem, group, ensemble, reference, model))
                    for model, problem in enumerate(problems)
                ]
            steps += [len(one.history) - 1 for one in trial]
            value = max(0.0, float(ensemble.weights @ [one.objective for one in trial]))  # below is rounding
            converged = settled(history, value) and all(one.converged for one in trial)
            if history and value > history[-1]:  # equation (43) is no descent
                break
            solved, transports = trial, [self._transport(one.plan) for one in trial]
            history.append(value)
            if settled(history[:-1], value):
                break
            support, left = self._layer(rows, among, ensemble.weights, transports)
        facts = {"iterations": len(history), "steps": steps.tolist(), "signs": signed, **told}
        return Layer(tuple({group: one} for one in transports), history, facts, converged)

    def _solve(self, problem: FusedGromov, starts: Sequence[TransportPlan]) -> GromovSolution:
        """Return the best solution from several starts; never worse than a start that is a permutation."""
        found = []
        for start in starts:
            if self.mode == "exact":
                found.append(conditional_gradient(problem, start))
                before = found[-1].history[:1]
                if problem.square and is_permutation(start) and found[-1].objective > before[0]:
                    found.append(GromovSolution(start, float(before[0]), before, converged=True))
            elif self.mode == "paper":
                found.append(alternating(problem, start, self.epsilon))
            else:
                inside = TransportPlan(0.5 * (start.mass + problem.uniform().mass))  # mass that is zero would stay so
                found.append(mirror_descent(problem, inside))
        return min(found, key=lambda one: one.objective)

    def _first_plans(
        self, problem: FusedGromov, group: str, ensemble: NetworkEnsemble, reference: int, model: int
    ) -> list[TransportPlan]:
        """Return the couplings to start from."""
        plans = []
        for start in self.starts:
            if start == "input":
                plans.append(problem.by_costs())
            elif start == "uniform":
                plans.append(problem.uniform())
            elif ensemble.placed is not None and problem.square:
                base, own = (ensemble.placed[i][group] for i in (reference, model))
                if isinstance(base, Injection) and isinstance(own, Injection):
                    plans.append(plan_of(own.then(base.inverse), problem.odd is not None))
        if problem.odd is not None and not problem.square:  # in other widths the unsigned plan may be the better start
            unsigned = conditional_gradient(problem.unsigned, problem.unsigned.by_costs()).plan.mass
            plans.append(TransportPlan(unsigned, unsigned))
        return plans or [problem.by_costs()]

    def _transport(self, plan: TransportPlan) -> Transport:
        """Return how a coupling moves units."""
        width, count = plan.mass.shape
        if width == count and is_permutation(plan):
            return moved_by(plan)
        each = None
        if plan.signed is not None:  # a unit may go the same way with both signs, by shares
            each = np.divide(plan.signed, plan.mass, out=np.ones_like(plan.mass), where=plan.mass > 0)
        return Spread(plan.mass, width / count if self.paper_scaling else 1.0, each)

    def _layer(
        self, rows: Rows, among: Sequence[Among], weights: Array, transports: Sequence[Transport]
    ) -> tuple[AnyArray, Array]:
        """Return the layer of least B given the couplings: rows by formula (45), weights among units by (46)."""
        hidden = np.zeros((len(among[0].matrices), rows.width, rows.width))
        for weight, one, transport in zip(weights.tolist(), among, transports, strict=True):
            for total, matrix, odd in zip(hidden, one.matrices, one.flips, strict=True):
                columns = transport.move(matrix, 1, "output")
                total += weight * (transport if odd else transport.unsigned).move(columns, 0, "output")
        return barycenter(rows, weights, transports), hidden

    def _alpha(
        self, support: AnyArray, left: Array, rows: Rows, among: Sequence[Among], weights: Array, inputs: float
    ) -> tuple[float, dict[str, Any]]:
        """Return what the second term is multiplied by, and what that is by other conventions.

        Costs here are sums over inputs, as in the published code; in equation (10) they are means.
        """
        if not len(left):
            return 0.0, {}
        problems = [problem_of(support, left, rows, one, model, 1.0, False) for model, one in enumerate(among)]
        first = float(weights @ [one.costs.mean() for one in problems])
        second = float(weights @ [one.constant - 2.0 * mean_product(one) for one in problems])
        alike = float(rows.width)
        ratio = second / first if first > 0 else 0.0
        alpha = alike if self.alpha is None or ratio == 0.0 else self.alpha / ratio
        return alpha, {
            "alpha": alpha * ratio if ratio else None,
            "alpha_as_printed": alpha / inputs,
            "alpha_as_published_code": alpha,
        }


def can_turn(symmetry: Symmetry, group: str) -> bool:
    """Return whether the units of a group may change sign."""
    return "sign" in symmetry.by_name[group].actions
