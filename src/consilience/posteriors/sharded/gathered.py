"""Sites of shards in memory: a pilot sample of very many, and all components where they are few.

A pilot sample is the sites whose contents hash to the k smallest numbers (a bottom-k sketch). So it depends on nothing
but contents and a seed: neither on the order of sites nor on how they lie in shards; and samples of shards merge in any
order. Equal hashes of all bits also show which sites have the same contents.

Refinement and confidence are computed up to some number of components only, for their cost, not for their memory. Up
to the same number the components of shards are gathered in canonical order, and both are computed by the same
functions, on the same ensemble: bit for bit, from the same labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array, Labels
from consilience.posteriors.columns import ComponentColumns
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.posterior import Posterior
from consilience.posteriors.sharded.passes import PreparedShard, PreparedShards

NO_SITE_SIZE = 2**62
"""Components of the smallest site of a shard without any site that has weight: more than any site has."""


@dataclass(frozen=True, eq=False)
class PilotSample:
    """A sample of the sites of some shards, and the sizes of all."""

    sites_by_shard: Labels  # (S,)
    rows_by_shard: Labels  # components of each shard (S,)
    smallest_site: int  # components of the smallest site that has weight
    largest_site: int  # and of the largest
    sample_keys: NDArray[np.uint64]  # the smallest of all ``ComponentColumns.keys``, ascending (k,)
    sample_sites: Labels  # which sites these are of, counted over all these shards (k,)
    posteriors: tuple[Posterior, ...]
    content_keys: NDArray[np.uint64]  # of all sites (J,): two that are equal have the same contents

    @property
    def n_sites(self) -> int:
        """Number of sites in all."""
        return int(self.sites_by_shard.sum())

    def duplicates(self) -> list[tuple[int, int]]:
        """Return pairs of sites with the same contents, the earlier one first."""
        order = np.argsort(self.content_keys, kind="stable")
        repeats = np.flatnonzero(self.content_keys[order[1:]] == self.content_keys[order[:-1]])
        return [(int(order[position]), int(order[position + 1])) for position in repeats.tolist()]


def draw_pilot_sample(components: ComponentColumns, weights: Array | None, seed: int, size: int) -> PilotSample:
    """Return the pilot sample of one shard, of `size` sites; those without weight are not sampled.

    The seed says which hash function, hence which sample.
    """
    content_keys = components.keys(seed)
    weighted_sites = np.arange(components.n_sites) if weights is None else np.flatnonzero(weights > 0)
    sample_sites = weighted_sites[np.argsort(content_keys[weighted_sites], kind="stable")[:size]]
    return PilotSample(
        np.array([components.n_sites]),
        np.array([len(components.natural)]),
        int(components.sizes[weighted_sites].min(initial=NO_SITE_SIZE)),
        int(components.sizes[weighted_sites].max(initial=0)),
        content_keys[sample_sites],
        sample_sites,
        tuple(components.site(number) for number in sample_sites.tolist()),
        content_keys,
    )


def merge_pilot_samples(parts: Sequence[PilotSample], size: int) -> PilotSample:
    """Return the sample of `size` sites of several shards; sites are numbered from shard to shard."""
    sites_by_shard = np.concatenate([part.sites_by_shard for part in parts])
    first_sites = np.cumsum([0, *(part.n_sites for part in parts)])[:-1]
    sample_keys = np.concatenate([part.sample_keys for part in parts])
    sample_sites = np.concatenate([part.sample_sites + first for part, first in zip(parts, first_sites, strict=True)])
    posteriors = [posterior for part in parts for posterior in part.posteriors]
    order = np.argsort(sample_keys, kind="stable")[:size]
    return PilotSample(
        sites_by_shard,
        np.concatenate([part.rows_by_shard for part in parts]),
        min(part.smallest_site for part in parts),
        max(part.largest_site for part in parts),
        sample_keys[order],
        sample_sites[order],
        tuple(posteriors[number] for number in order.tolist()),
        np.concatenate([part.content_keys for part in parts]),
    )


@dataclass(frozen=True, eq=False)
class GatheredComponents:
    """The components that take part, as a method in memory sees them."""

    ensemble: Ensemble  # sites that have a say, in canonical order, without thin components (n, P)
    rows: Labels  # where each component is among the active rows of all shards (n,)
    sizes: Labels  # active rows of each shard (S,)

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
    kept = canonical if is_kept.all() else canonical.keep(is_kept)
    return GatheredComponents(kept, row_of[origin[is_kept]], np.array(shards.map(n_active_rows)))


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
