"""Components of few sites in shards, brought to memory in canonical order: for what has a limit in memory too.

Refinement and confidence are computed up to some number of components only, for their cost, not for their memory. Up
to the same number they are computed of shards by the same functions, on the same ensemble: bit for bit, from the same
labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Labels
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.sharded.passes import PreparedShard, PreparedShards


@dataclass(frozen=True, eq=False)
class GatheredComponents:
    """The components that take part, as a method in memory sees them.

    Parameters
    ----------
    ensemble : Ensemble
        Sites that have a say, in canonical order, without components of too few observations (n, P).
    rows : Labels of shape (n,)
        Where each of its components is among the active rows of all shards.
    sizes : Labels of shape (S,)
        Number of active rows of each shard.
    """

    ensemble: Ensemble
    rows: Labels
    sizes: Labels

    def labels(self, by_shard: Sequence[Labels]) -> Labels:
        """Return labels of the active rows of every shard as labels of the ensemble (n,)."""
        return np.concatenate(by_shard)[self.rows]

    def by_shard(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Return values of the ensemble (n,) as values of the active rows of every shard."""
        ordered = np.empty_like(values)
        ordered[self.rows] = values
        return split_by_shard(ordered, self.sizes)


def split_by_shard(values: NDArray[Any], sizes: Sequence[int] | Labels) -> list[NDArray[Any]]:
    """Return values of the rows of all shards as those of each, which has so many."""
    return np.split(values, np.cumsum(sizes)[:-1])


def gather(shards: PreparedShards) -> GatheredComponents:
    """Return the components of all shards that take part, few in all, in memory."""
    parts = shards.map(_voting_sites)
    sites = [site for sites_of_shard, _ in parts for site in sites_of_shard]
    posteriors, weights, names = zip(*sites, strict=True)
    canonical, origin = Ensemble.of(posteriors, weights, names).canonical(relabel=True)
    is_active = np.concatenate([is_active for _, is_active in parts])  # of the components of sites that have a say
    row_of = np.cumsum(is_active) - 1
    is_kept = is_active[origin]
    if not is_kept.all():
        kept = [
            posterior.take(np.flatnonzero(is_kept[start:end]))
            for posterior, start, end in zip(
                canonical.posteriors, canonical.offsets[:-1], canonical.offsets[1:], strict=True
            )
        ]
        canonical = Ensemble(tuple(kept), canonical.site_weights, canonical.names)
    return GatheredComponents(canonical, row_of[origin[is_kept]], np.array(shards.map(n_active_rows)))


def _voting_sites(shard: PreparedShard) -> tuple[list[tuple[Posterior, float, str]], NDArray[np.bool_]]:
    """Return posterior, weight and name of the sites of one shard that have a say, and which components are active."""
    components = shard.components
    weights = np.ones(components.n_sites) if shard.weights is None else shard.weights
    is_active = np.ones(len(components.owner), dtype=np.bool_)
    if shard.active is not None:
        is_active = np.zeros_like(is_active)
        is_active[shard.active] = True
    voting = np.flatnonzero(weights > 0).tolist()
    names = components.names or tuple(map(str, range(components.n_sites)))
    sites = [(components.site(site), float(weights[site]), names[site]) for site in voting]
    return sites, is_active[weights[components.owner] > 0]


def n_active_rows(shard: PreparedShard) -> int:
    """Return the number of active rows of one shard."""
    return len(shard.owner)
