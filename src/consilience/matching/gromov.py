"""Fused Gromov-Wasserstein matching: units told apart by costs, and by the weights among themselves.

The weights among the units of a recurrent layer are indexed twice by the same coupling. With H_g (K, K) and H'_g (k, k)
one matrix per gate, the coupling sought minimises, over plans with uniform marginals,

    F(P) = <C, P> + alpha sum_g <L(H_g, H'_g) (x) P, P>,    L(H, H')_{jgqs} = (h_jq - h'_gs)^2,

equation (10) of the Wasserstein paper for one model. By the marginals it is a constant minus 2 <H P H', P> (never a
tensor of four indices). Where units may also change sign, S holds the plan with its signs; rows of gates that do not
turn with the unit go with P, everything else with S:

    F(P, S) = <C, P> - 2 <O, S> + alpha (c - 2 sum_{g even} <H_g S H'_g^T, P> - 2 sum_{g odd} <H_g S H'_g^T, S>).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from consilience.checks import Array, Labels
from consilience.matching.assignment import assign_block
from consilience.matching.transport import exact_plan


@dataclass(frozen=True, eq=False)
class TransportPlan:
    """A coupling.

    Parameters
    ----------
    mass
        What goes from unit g to unit j (K, k), with marginals 1 / K and 1 / k.
    signed
        The same with its signs; None where none can change.
    """

    mass: Array
    signed: Array | None = None

    @property
    def turned(self) -> Array:
        """The coupling with its signs, where there are any."""
        return self.mass if self.signed is None else self.signed


@dataclass(frozen=True, eq=False)
class FusedGromov:
    """The problem for one model.

    Parameters
    ----------
    costs
        Squared distances (K, k) of what tells units apart by itself; with signs, without the products in `odd`.
    left, right
        Weights among units, one matrix per gate: (G, K, K) and (G, k, k).
    alpha
        Weight of the second term.
    odd
        Products (K, k) of what changes sign with a unit; None where units do not change sign.
    flips
        For every gate, whether its rows change sign with the unit (G,); its columns always do.
    """

    costs: Array
    left: Array
    right: Array
    alpha: float
    odd: Array | None = None
    flips: tuple[bool, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """(K, k)."""
        rows, columns = self.costs.shape
        return rows, columns

    @property
    def square(self) -> bool:
        """Whether there are as many units on both sides, so that couplings can be permutations."""
        return self.costs.shape[0] == self.costs.shape[1]

    @property
    def unsigned(self) -> FusedGromov:
        """The same problem without changes of sign."""
        costs = self.costs if self.odd is None else self.costs - 2.0 * self.odd
        return FusedGromov(costs, self.left, self.right, self.alpha)

    @cached_property
    def squares(self) -> tuple[Array, Array]:
        """The parts (K,) and (k,) of L (x) P that the marginals alone give."""
        rows, columns = self.shape
        left = np.einsum("gjq,gjq->j", self.left, self.left) / rows
        return left, np.einsum("gjq,gjq->j", self.right, self.right) / columns

    @cached_property
    def stake(self) -> float:
        """The size of F where nothing is told apart: what a fall is held against."""
        return float(np.abs(self.costs).mean()) + self.constant

    @cached_property
    def constant(self) -> float:
        """What the marginals alone add to F."""
        left, right = self.squares
        return self.alpha * float(left.mean() + right.mean())

    def hidden_costs(self, plan: TransportPlan) -> Array:
        """Return sum_g L(H_g, H'_g) (x) P (K, k), for plans without signs."""
        left, right = self.squares
        costs: Array = left[:, None] + right - 2.0 * self.at(plan).received_odd
        return costs

    def at(self, plan: TransportPlan) -> PlanProducts:
        """Return what F needs to know of a plan."""
        turned = plan.turned
        rows, columns = self.shape
        found = [np.zeros((rows, columns)) for _ in range(4)]
        for gate, odd in enumerate(self._odd_gates):
            left, right = self.left[gate], self.right[gate]
            found[1 if odd else 0] += left @ (turned @ right.T)
            found[3 if odd else 2] += left.T @ ((turned if odd else plan.mass) @ right)
        return PlanProducts(plan, *found)

    def at_permutation(self, columns: Labels, signs: Array | None) -> PlanProducts:
        """Return the same for a permutation, unit ``columns[j]`` to unit j: half of the products are look-ups."""
        rows = len(columns)
        share = np.full((rows, 1), 1.0 / rows)
        turned = share if signs is None else share * signs[:, None]
        mass = np.zeros((rows, rows))
        mass[np.arange(rows), columns] = 1.0 / rows
        found = [np.zeros((rows, rows)) for _ in range(4)]
        for gate, odd in enumerate(self._odd_gates):
            left, right = self.left[gate], self.right[gate]
            found[1 if odd else 0] += left @ (turned * right.T[columns])
            found[3 if odd else 2] += left.T @ ((turned if odd else share) * right[columns])
        return PlanProducts(TransportPlan(mass, None if signs is None else mass * signs[:, None]), *found)

    @property
    def _odd_gates(self) -> tuple[bool, ...]:
        return self.flips if self.odd is not None else (True,) * len(self.left)

    def value(self, state: PlanProducts) -> float:
        """Return F."""
        plan = state.plan
        linear = float(np.vdot(self.costs, plan.mass))
        if self.odd is not None:
            linear -= 2.0 * float(np.vdot(self.odd, plan.turned))
        return linear + self.constant - 2.0 * self.alpha * state.quadratic

    def gradients(self, state: PlanProducts) -> tuple[Array, Array]:
        """Return the derivatives of F in P and in S; without signs, F moves with their sum."""
        by_mass = self.costs - 2.0 * self.alpha * state.received_even
        by_turned = -2.0 * self.alpha * (state.sent_even + state.received_odd + state.sent_odd)
        if self.odd is not None:
            by_turned -= 2.0 * self.odd
        return by_mass, by_turned

    def vertex(self, by_mass: Array, by_turned: Array) -> PlanProducts:
        """Return the plan of least cost under linear costs of P and of S."""
        costs = by_mass + by_turned if self.odd is None else by_mass - np.abs(by_turned)
        signs = None if self.odd is None else np.where(by_turned <= 0.0, 1.0, -1.0)
        if self.square:
            columns = assign_block(costs)
            return self.at_permutation(columns, None if signs is None else signs[np.arange(len(columns)), columns])
        mass = exact_plan(costs)
        return self.at(TransportPlan(mass, None if signs is None else mass * signs))

    def uniform(self) -> TransportPlan:
        """Return the plan that tells nothing apart."""
        rows, columns = self.shape
        mass = np.full((rows, columns), 1.0 / (rows * columns))
        return TransportPlan(mass, None if self.odd is None else np.zeros_like(mass))

    def by_costs(self) -> TransportPlan:
        """Return the plan of least cost without the weights among units."""
        by_turned = np.zeros_like(self.costs) if self.odd is None else -2.0 * self.odd
        return self.vertex(self.costs, by_turned).plan


@dataclass(frozen=True, eq=False)
class PlanProducts:
    """A plan with its products: H S H'^T and H^T P H' summed over even gates, H S H'^T and H^T S H' over odd ones."""

    plan: TransportPlan
    received_even: Array
    received_odd: Array
    sent_even: Array
    sent_odd: Array

    @property
    def quadratic(self) -> float:
        """sum_{g even} <H S H'^T, P> + sum_{g odd} <H S H'^T, S>."""
        even = np.vdot(self.received_even, self.plan.mass)
        return float(even + np.vdot(self.received_odd, self.plan.turned))

    def moved(self, step: float, other: PlanProducts) -> PlanProducts:
        """Return the state of (1 - step) this plan + step the other; everything is linear in the plan."""

        def mixed(one: Array, two: Array) -> Array:
            return one + step * (two - one)

        plan, to = self.plan, other.plan
        signed = None if plan.signed is None or to.signed is None else mixed(plan.signed, to.signed)
        return PlanProducts(
            TransportPlan(mixed(plan.mass, to.mass), signed),
            mixed(self.received_even, other.received_even),
            mixed(self.received_odd, other.received_odd),
            mixed(self.sent_even, other.sent_even),
            mixed(self.sent_odd, other.sent_odd),
        )
