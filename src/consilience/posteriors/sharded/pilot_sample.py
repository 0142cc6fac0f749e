"""Pilot samples: some sites of all shards, chosen by their contents, and what is counted while they are drawn.

A sample is the sites whose contents hash to the k smallest numbers (a bottom-k sketch). So it depends on nothing but
contents and a seed: neither on the order of sites nor on how they lie in shards; and samples of shards merge in any
order. Equal hashes of all bits also show which sites have the same contents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array, Labels
from consilience.posteriors.columns import ComponentColumns
from consilience.posteriors.posterior import Posterior

NO_SITE_SIZE = 2**62
"""Components of the smallest site of a shard without any site that has weight: more than any site has."""


@dataclass(frozen=True, eq=False)
class PilotSample:
    """A sample of the sites of some shards, and the sizes of all.

    Parameters
    ----------
    sites_by_shard, rows_by_shard : Labels of shape (S,)
        Numbers of sites and of components of each shard.
    smallest_site, largest_site : int
        Components of the smallest and of the largest site that has weight.
    sample_keys : ndarray of shape (k,)
        Keys of the sampled sites, ascending; the smallest of all, see ``ComponentColumns.keys``.
    sample_sites : Labels of shape (k,)
        Numbers of the sampled sites, counted over all these shards.
    posteriors : tuple of Posterior
        Posteriors of the sampled sites.
    content_keys : ndarray of shape (J,)
        Keys of all sites, with weight or without: two that are equal have the same contents.
    """

    sites_by_shard: Labels
    rows_by_shard: Labels
    smallest_site: int
    largest_site: int
    sample_keys: NDArray[np.uint64]
    sample_sites: Labels
    posteriors: tuple[Posterior, ...]
    content_keys: NDArray[np.uint64]

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
    """Return the pilot sample of one shard; sites without weight are not sampled.

    Parameters
    ----------
    components : ComponentColumns
        The components of J sites.
    weights : Array of shape (J,), optional
        Weight of each site; None where all are 1.
    seed : int
        Which hash function, hence which sample.
    size : int
        Number of sites in the sample.
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
