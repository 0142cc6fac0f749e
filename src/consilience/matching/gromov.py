"""The fused Gromov-Wasserstein problem: units compared by their costs, and by the weights among themselves.

The weights among the units of a recurrent layer are indexed twice by the same coupling. With H_g (K, K) and H'_g (k, k)
one matrix per gate, the coupling sought minimises, over plans with uniform marginals,

    F(P) = <C, P> + alpha sum_g <L(H_g, H'_g) (x) P, P>,    L(H, H')_{jgqs} = (h_jq - h'_gs)^2,

equation (10) of the Wasserstein paper for one model. By the marginals it is a constant minus 2 <H P H', P> (never a
tensor of four indices). Where units may also change sign, S holds the plan with its signs; rows of gates that do not
turn with the unit go with P, everything else with S:

    F(P, S) = <C, P> - 2 <O, S> + alpha (c - 2 sum_{g even} <H_g S H'_g^T, P> - 2 sum_{g odd} <H_g S H'_g^T, S>).

``gromov_descent`` solves it; F is not convex, so every solution is a local one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from consilience.checks import Array, Labels
from consilience.matching.assignment import assign_block
from consilience.matching.transport import exact_plan


@dataclass(frozen=True, eq=False)
class TransportPlan:
    """A coupling of units, with the sign that each unit takes where signs can change."""

    mass: Array  # P (K, k): what goes from unit g to unit j, with marginals 1 / K and 1 / k
    signed: Array | None = None  # S (K, k): the same with its signs; without, none changes

    @property
    def signed_mass(self) -> Array:
        """The coupling with its signs, where there are any."""
        return self.mass if self.signed is None else self.signed


@dataclass(frozen=True, eq=False)
class FusedGromov:
    """The fused Gromov-Wasserstein problem of one model."""

    costs: Array  # C (K, k): squared distances by all other weights; with signs, without the products in `odd`
    row_structure: Array  # H (G, K, K): weights among the units, one matrix per gate
    column_structure: Array  # H' (G, k, k): those of the other side
    alpha: float  # weight of the quadratic term
    odd: Array | None = None  # O (K, k): products of what changes sign with a unit; without, none does
    flips: tuple[bool, ...] = ()  # whether the rows of each gate change sign with the unit (G,); its columns always do

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
        return FusedGromov(costs, self.row_structure, self.column_structure, self.alpha)

    @cached_property
    def squares(self) -> tuple[Array, Array]:
        """The parts (K,) and (k,) of L (x) P that the marginals alone give."""
        rows, columns = self.shape
        row_squares = np.einsum("gjq,gjq->j", self.row_structure, self.row_structure) / rows
        return row_squares, np.einsum("gjq,gjq->j", self.column_structure, self.column_structure) / columns

    @cached_property
    def objective_scale(self) -> float:
        """The size of F at a plan that tells no units apart: falls of F are compared with it."""
        return float(np.abs(self.costs).mean()) + self.constant

    @cached_property
    def constant(self) -> float:
        """What the marginals alone add to F: alpha c."""
        row_squares, column_squares = self.squares
        return self.alpha * float(row_squares.mean() + column_squares.mean())

    def hidden_costs(self, plan: TransportPlan) -> Array:
        """Return sum_g L(H_g, H'_g) (x) P (K, k), for plans without signs."""
        row_squares, column_squares = self.squares
        return np.asarray(row_squares[:, None] + column_squares - 2.0 * self.at(plan).received_odd)

    def at(self, plan: TransportPlan) -> PlanProducts:
        """Return what F needs to know of a plan."""
        return self._products(plan, lambda weights, signed: (plan.signed_mass if signed else plan.mass) @ weights)

    def at_permutation(self, columns: Labels, signs: Array | None) -> PlanProducts:
        """Return the same for a permutation, unit ``columns[j]`` to unit j: half of the products are look-ups."""
        rows = len(columns)
        share = np.full((rows, 1), 1.0 / rows)  # the mass of each row, without a dense plan (K, 1)
        signed_share = share if signs is None else share * signs[:, None]
        mass = np.zeros((rows, rows))
        mass[np.arange(rows), columns] = 1.0 / rows
        plan = TransportPlan(mass, None if signs is None else mass * signs[:, None])
        return self._products(plan, lambda weights, signed: (signed_share if signed else share) * weights[columns])

    def _products(self, plan: TransportPlan, moved: Callable[[Array, bool], Array]) -> PlanProducts:
        """Return the products of a plan, given what S (or P, unsigned) times weights among the units is (K, k)."""
        products = [np.zeros(self.shape) for _ in range(4)]  # received even, odd; sent even, odd: as the fields
        for gate, odd in enumerate(self._odd_gates):
            row_weights, column_weights = self.row_structure[gate], self.column_structure[gate]  # (K, K), (k, k)
            products[1 if odd else 0] += row_weights @ moved(column_weights.T, True)
            products[3 if odd else 2] += row_weights.T @ moved(column_weights, odd)
        return PlanProducts(plan, *products)

    @property
    def _odd_gates(self) -> tuple[bool, ...]:
        # Without signs P and S are one, and all gates are summed with S.
        return self.flips if self.odd is not None else (True,) * len(self.row_structure)

    def value(self, state: PlanProducts) -> float:
        """Return F."""
        plan = state.plan
        linear = float(np.vdot(self.costs, plan.mass))
        if self.odd is not None:
            linear -= 2.0 * float(np.vdot(self.odd, plan.signed_mass))
        return linear + self.constant - 2.0 * self.alpha * state.quadratic

    def gradients(self, state: PlanProducts) -> tuple[Array, Array]:
        """Return the derivatives of F in P and in S; without signs, F moves with their sum."""
        # F takes <P, H S H'^T> over even gates and <S, H S H'^T> over odd ones twice: that 2 is of -2 h h' in the loss
        # (h - h')^2. Each is bilinear, so its derivative in S has a term for either factor, and no further 2.
        by_mass = self.costs - 2.0 * self.alpha * state.received_even  # (K, k)
        by_signed = -2.0 * self.alpha * (state.sent_even + state.received_odd + state.sent_odd)
        if self.odd is not None:
            by_signed -= 2.0 * self.odd
        return by_mass, by_signed

    def vertex(self, by_mass: Array, by_signed: Array) -> PlanProducts:
        """Return the plan of least cost under linear costs of P and of S."""
        # |S| <= P, so the best sign of an entry is that of its slope, and gains its absolute value.
        costs = by_mass + by_signed if self.odd is None else by_mass - np.abs(by_signed)
        signs = None if self.odd is None else np.where(by_signed <= 0.0, 1.0, -1.0)
        if self.square:
            columns = assign_block(costs)
            return self.at_permutation(columns, None if signs is None else signs[np.arange(len(columns)), columns])
        # Between unequal widths the vertex is a transport plan, no permutation.
        mass = exact_plan(costs)
        return self.at(TransportPlan(mass, None if signs is None else mass * signs))

    def uniform(self) -> TransportPlan:
        """Return the plan that tells nothing apart."""
        rows, columns = self.shape
        mass = np.full((rows, columns), 1.0 / (rows * columns))
        return TransportPlan(mass, None if self.odd is None else np.zeros_like(mass))

    def by_costs(self) -> TransportPlan:
        """Return the plan of least cost without the weights among units."""
        by_signed = np.zeros_like(self.costs) if self.odd is None else -2.0 * self.odd
        return self.vertex(self.costs, by_signed).plan


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
        # Rows of even gates keep their sign, so their products go with P; those of odd ones go with S.
        even = np.vdot(self.received_even, self.plan.mass)
        return float(even + np.vdot(self.received_odd, self.plan.signed_mass))

    def moved(self, step: float, other: PlanProducts) -> PlanProducts:
        """Return the state of (1 - step) this plan + step the other; everything is linear in the plan."""

        def mixed(start: Array, end: Array) -> Array:
            return start + step * (end - start)

        plan, other_plan = self.plan, other.plan
        signed = None if plan.signed is None or other_plan.signed is None else mixed(plan.signed, other_plan.signed)
        products = ("received_even", "received_odd", "sent_even", "sent_odd")
        moved = (mixed(getattr(self, name), getattr(other, name)) for name in products)
        return PlanProducts(TransportPlan(mixed(plan.mass, other_plan.mass), signed), *moved)
