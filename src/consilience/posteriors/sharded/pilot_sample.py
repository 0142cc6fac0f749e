"""A first look at all shards: how many sites they have, and a sample of sites that depends on nothing but contents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array, Labels
from consilience.posteriors.columns import Block
from consilience.posteriors.posterior import Posterior

_MANY = 2**62


@dataclass(frozen=True, eq=False)
class Survey:
    """What is known of some shards.

    Parameters
    ----------
    sites
        Number of sites of each shard (S,).
    rows
        Number of components of each shard (S,).
    smallest, largest
        Components of the smallest and of the largest site that has weight.
    every
        Numbers of all sites by their contents, see ``Block.keys`` (J,): two that are alike have the same contents.
    keys
        Of the sampled sites (k,), ascending; the smallest of all.
    places
        Which sites these are (k,).
    sample
        Their posteriors.
    """

    sites: Labels
    rows: Labels
    smallest: int
    largest: int
    keys: NDArray[np.uint64]
    places: Labels
    sample: tuple[Posterior, ...]
    every: NDArray[np.uint64]

    @property
    def n_sites(self) -> int:
        """Number of sites in all."""
        return int(self.sites.sum())

    def twice(self) -> list[tuple[int, int]]:
        """Return pairs of sites of the same contents, the earlier one first."""
        order = np.argsort(self.every, kind="stable")
        same = np.flatnonzero(self.every[order[1:]] == self.every[order[:-1]])
        return [(int(order[place]), int(order[place + 1])) for place in same.tolist()]


def survey(block: Block, weights: Array | None, seed: int, size: int) -> Survey:
    """Return a survey of one shard; sites without weight are not sampled.

    Parameters
    ----------
    block
        Its sites.
    weights
        Weight of each (J,); None where all are 1.
    seed
        Which sample.
    size
        Number of sites in it.
    """
    keys = block.keys(seed)
    asked = np.arange(block.n_sites) if weights is None else np.flatnonzero(weights > 0)
    chosen = asked[np.argsort(keys[asked], kind="stable")[:size]]
    return Survey(
        np.array([block.n_sites]),
        np.array([len(block.natural)]),
        int(block.sizes[asked].min(initial=_MANY)),
        int(block.sizes[asked].max(initial=0)),
        keys[chosen],
        chosen,
        tuple(block.site(number) for number in chosen.tolist()),
        keys,
    )


def add_surveys(parts: Sequence[Survey], size: int) -> Survey:
    """Return the survey of several shards, the sites of later ones numbered after those of earlier ones."""
    sites = np.concatenate([one.sites for one in parts])
    before = np.cumsum([0, *(one.n_sites for one in parts)])[:-1]
    keys = np.concatenate([one.keys for one in parts])
    places = np.concatenate([one.places + first for one, first in zip(parts, before, strict=True)])
    sample = [posterior for one in parts for posterior in one.sample]
    order = np.argsort(keys, kind="stable")[:size]
    return Survey(
        sites,
        np.concatenate([one.rows for one in parts]),
        min(one.smallest for one in parts),
        max(one.largest for one in parts),
        keys[order],
        places[order],
        tuple(sample[number] for number in order.tolist()),
        np.concatenate([one.every for one in parts]),
    )
