"""The components of all shards in their evidence form, and equation (6) of Claici et al. 2020 for them.

``methods.kl.choose_number`` selects the number of components of a stack, whether it lies in memory or in shards: all
that it asks are sums over shards. A solution of (6) is descended to in passes (``descent``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array, Labels
from consilience.core.progress import silent
from consilience.core.status import Status
from consilience.engines import Engine, Placed
from consilience.families.base import Tangent
from consilience.families.evidence import EvidenceFamily
from consilience.matching.assignment import assign_blocks
from consilience.matching.groups import GroupSums, group_sums
from consilience.posteriors.columns import ComponentColumns, ShardSchema
from consilience.posteriors.ensemble import Ensemble, Stack
from consilience.posteriors.methods.kl.choose_number import DESCENT_TOLERANCE, MAX_DESCENT_STEPS
from consilience.posteriors.methods.kl.heterogeneity import is_mostly_judged, likelihood_stack, without_priors
from consilience.posteriors.methods.kl.problem import KLFit, KLProblem
from consilience.posteriors.sharded.descent import descend
from consilience.posteriors.sharded.gathered import n_active_rows, split_by_shard
from consilience.posteriors.sharded.passes import PreparedShard, PreparedShards, add_all, prepare
from consilience.posteriors.sharded.shard_pass import Centres, costs_by_chunk

MAX_LAW_ROWS = 5000
"""Components from which the law of a family is taken that has no law of sums. Chosen by hand for its memory."""


@dataclass(frozen=True, eq=False)
class MappedShards:
    """Something for every shard; see ``ensemble.Mapped``.

    Parameters
    ----------
    engine : Engine
        The engine that holds the shards.
    shards : Placed
        The shards.
    rows : Labels of shape (S,)
        Number of components of each shard.
    """

    engine: Engine
    shards: Placed[Any]
    rows: Labels

    def split(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Return values of all components (L,) by shard."""
        return split_by_shard(values, self.rows)

    def map(self, function: Callable[..., Any], *common: Any, each: NDArray[Any] | None = None) -> list[Any]:
        """Return the function of every shard."""
        return self.engine.map(function, self.shards, *common, each=None if each is None else self.split(each))

    def sum(self, function: Callable[..., Any], *common: Any, each: NDArray[Any] | None = None) -> Any:
        """Return the sum of the function over all shards."""
        by_shard = None if each is None else self.split(each)
        return self.engine.reduce(function, add_all, self.shards, *common, each=by_shard)


@dataclass(frozen=True, eq=False)
class StackShards(MappedShards):
    """Components in shards, each a ``Stack``; see ``ensemble.StackLike``.

    Parameters
    ----------
    family : EvidenceFamily
        The family of every component.
    sizes : Labels of shape (J,)
        Number of components of each site, sites without weight included.
    n_sites : int
        Number of sites that have a say.
    pilot : Stack
        Components of the sampled sites, from which centres are drawn.
    """

    family: EvidenceFamily
    sizes: Labels
    n_sites: int
    pilot: Stack

    @cached_property
    def owner(self) -> Labels:
        """The site of each component (L,)."""
        return np.repeat(np.arange(len(self.sizes), dtype=np.int64), self.sizes)

    def derive(self, function: Callable[..., Any], *common: Any) -> MappedShards:
        """Return the function of every shard, kept where the shards are."""
        return MappedShards(self.engine, self.engine.derive(function, self.shards, *common), self.rows)

    def transform(self, function: Callable[..., Stack], *common: Any) -> StackShards:
        """Return the same components after a function of every shard, and of the sample."""
        shards = self.engine.derive(function, self.shards, *common)
        return replace(self, shards=shards, pilot=function(self.pilot, *common))

    def take(self, rows: Labels) -> StackShards:
        """Return some rows, ascending; sites keep their places even when nothing is left of them."""
        by_shard = self._rows_by_shard(rows)
        shards = self.engine.derive(_take, self.shards, each=by_shard)
        sizes = np.bincount(self.owner[rows], minlength=len(self.sizes))
        return replace(self, shards=shards, rows=np.array([len(part) for part in by_shard]), sizes=sizes)

    def gather(self, rows: Labels) -> Stack:
        """Return some rows, ascending, in memory."""
        parts: list[Stack] = self.engine.map(_take, self.shards, each=self._rows_by_shard(rows))
        sizes = np.bincount(self.owner[rows], minlength=len(self.sizes))
        observed = [part.observed for part in parts if part.observed is not None]
        return Stack(
            self.family,
            np.concatenate([part.natural for part in parts]),
            np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)]),
            np.concatenate([part.row_weights for part in parts]),
            np.concatenate(observed) if observed else None,
        )

    def law(self) -> Array:
        """Return the law (P,) that all components are drawn from, see ``EvidenceFamily.law_of``."""
        if type(self.family).law_of is EvidenceFamily.law_of:
            moments: GroupSums = self.sum(_moments)
            return self.family.from_mean(moments.means())[0]
        n_rows = len(self.owner)
        rows = np.unique(np.linspace(0, n_rows - 1, min(n_rows, MAX_LAW_ROWS)).astype(np.int64))
        return self.family.law_of(self.gather(rows).natural)

    def search_problem(self) -> ShardedSearch:
        """Return equation (6) for these components; see ``choose_number.SearchProblem``."""
        return ShardedSearch(self)

    def _rows_by_shard(self, rows: Labels) -> list[Labels]:
        """Return ascending rows of all as rows of each shard."""
        ends = np.cumsum(self.rows)
        parts = np.split(rows, np.searchsorted(rows, ends[:-1]))
        return [part - start for part, start in zip(parts, [0, *ends[:-1]], strict=True)]


class ShardedSearch:
    """Equation (6) for components in shards; see ``choose_number.SearchProblem``."""

    def __init__(self, stack: StackShards) -> None:
        self.stack = stack
        centre = stack.pilot.natural.mean(axis=0)
        placed = stack.engine.derive(_prepare_stack, stack.shards, centre)
        tangent = Tangent(stack.family, centre)
        self.shards = PreparedShards(stack.engine, placed, tangent, "forward", stack.n_sites, len(stack.owner))

    def seeds(self, count: int, rng: np.random.Generator) -> Array:
        """Return components of the sample drawn as first centres."""
        return KLProblem.of(self.stack.pilot).seeds(count, rng)

    def barycenters(self, labels: Labels, n_groups: int) -> Array:
        """Return the averages (G, P) of a matching."""
        sums: GroupSums = self.shards.sum(_factor_sums, n_groups, each=self.stack.split(labels))
        return self.shards.group_averages(sums)

    def descend(self, centres: Array, rng: np.random.Generator) -> KLFit:
        """Return a solution of (6) from `centres`."""
        del rng
        descent = descend(
            self.shards,
            centres,
            0.0,
            np.zeros(len(centres)),
            exclusive=True,
            limit=len(centres),
            max_iterations=MAX_DESCENT_STEPS,
            tolerance=DESCENT_TOLERANCE,
            progress=silent,
        )
        history = tuple(descent.history.tolist())
        is_converged = descent.status is Status.CONVERGED
        return KLFit(np.concatenate(descent.labels), descent.centres, history[-1], history, is_converged)

    def without_one_group(self, fit: KLFit) -> Array:
        """Return the centres (G - 1, P) left when the group goes whose members cost least to place elsewhere."""
        centres = Centres.from_natural(self.shards.tangent, fit.centres, "forward", np.zeros(fit.n_groups))
        costs: Array = self.shards.sum(_costs_of_removal, centres)
        return np.delete(fit.centres, int(np.argmin(costs)), axis=0)


def likelihood_shards(shards: PreparedShards, pilot: Ensemble) -> tuple[StackShards, Labels]:
    """Return what the sites' data say about their components, as ``likelihood_stack`` does, in shards.

    Parameters
    ----------
    shards : PreparedShards
        The shards.
    pilot : Ensemble
        The sampled sites.

    Returns
    -------
    tuple of (StackShards, Labels)
        The components that are judged, and which of the active rows of all shards these are.
    """
    family = shards.family
    assert isinstance(family, EvidenceFamily)  # noqa: S101  (the form of others depends on all components together)
    pilot_stack, _ = likelihood_stack(pilot)
    judged: list[NDArray[np.bool_]] = shards.map(_judged_rows)
    are_without_priors = all(part is not None for part in judged) and is_mostly_judged(np.concatenate(judged))
    if not are_without_priors:
        judged = [np.ones(n, dtype=bool) for n in shards.map(n_active_rows)]
    placed = shards.engine.derive(_likelihoods, shards.shards, are_without_priors, each=judged)
    stack_sizes = np.concatenate(shards.engine.map(_sizes, placed))  # (J,)
    rows = np.array([int(part.sum()) for part in judged])
    n_sites = sum(shards.map(_n_voting))
    return (
        StackShards(shards.engine, placed, rows, family, stack_sizes, n_sites, pilot_stack),
        np.flatnonzero(np.concatenate(judged)),
    )


def _active_stack(shard: PreparedShard) -> tuple[Stack, Array | None]:
    """Return the active components of one shard, and their sites' priors (n, P)."""
    n_rows, components = len(shard.owner), shard.components
    family = components.kind.family
    assert isinstance(family, EvidenceFamily)  # noqa: S101  (others were turned away)
    natural = np.asarray(shard.natural(slice(0, n_rows)), dtype=np.float64)
    stack = Stack(family, natural, shard.offsets, shard.row_weights(slice(0, n_rows)))
    if components.prior is None:
        return stack, None
    priors = np.broadcast_to(components.prior, (components.n_sites, natural.shape[1]))  # (J, P)
    return stack, priors[shard.owner]


def _judged_rows(shard: PreparedShard) -> NDArray[np.bool_] | None:
    """Return which active components of one shard can be judged without their priors (n,); None without priors."""
    stack, priors = _active_stack(shard)
    return None if priors is None else without_priors(stack, priors)[1]


def _likelihoods(shard: PreparedShard, is_judged: NDArray[np.bool_], are_without_priors: bool) -> Stack:
    """Return the components of one shard that are judged."""
    stack, priors = _active_stack(shard)
    if are_without_priors and priors is not None:
        stack = without_priors(stack, priors)[0]
    return stack.take(np.flatnonzero(is_judged))


def _prepare_stack(stack: Stack, centre: Array) -> PreparedShard:
    """Return the components of one shard prepared for passes."""
    weights = None  # where all count the same, the scale of the costs decides nothing
    if len(stack.row_weights) and np.ptp(stack.row_weights) > 0:
        weights = np.zeros(len(stack.sizes))
        weights[stack.owner] = stack.row_weights
    columns = ComponentColumns(ShardSchema(stack.family), stack.natural, stack.offsets)
    return prepare(columns, weights, centre, "forward", 0.0)


def _factor_sums(shard: PreparedShard, labels: Labels, n_groups: int) -> GroupSums:
    """Return the weighted sums of the factors of each group in one shard."""
    rows = slice(0, len(labels))
    return group_sums(shard.factor(rows), labels, shard.row_weights(rows), n_groups)


def _costs_of_removal(shard: PreparedShard, centres: Centres) -> Array:
    """Return by how much the cost of one shard would rise if each of the groups went (G,), at unchanged centres."""
    n_groups = len(centres.factors)
    rises = np.zeros(n_groups)
    for costs, offsets in costs_by_chunk(shard, centres):
        labels = assign_blocks(costs, offsets)
        owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        assigned_costs = costs[np.arange(len(labels)), labels]
        for group in range(n_groups):
            # Only sites that use a group are matched anew without it: for all others nothing changes.
            rows = np.flatnonzero(np.isin(owner, owner[labels == group]))
            if rows.size:
                other_costs = np.delete(costs[rows], group, axis=1)
                ends = np.flatnonzero(np.diff(owner[rows], append=-1)) + 1
                columns = assign_blocks(other_costs, np.concatenate([np.zeros(1, dtype=np.int64), ends]))
                rises[group] += other_costs[np.arange(len(rows)), columns].sum() - assigned_costs[rows].sum()
    return rises


def _take(stack: Stack, rows: Labels) -> Stack:
    return stack.take(rows)


def _sizes(stack: Stack) -> Labels:
    return stack.sizes


def _moments(stack: Stack) -> GroupSums:
    """Return the sum of the mean parameters of all rows as that of one group (1, P)."""
    means = stack.family.mean_parameters(stack.natural)
    return GroupSums(means.sum(axis=0)[None], np.array([float(len(means))]))


def _n_voting(shard: PreparedShard) -> int:
    return shard.components.n_sites if shard.weights is None else int(np.count_nonzero(shard.weights))
