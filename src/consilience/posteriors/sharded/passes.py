"""KL-divergences of very many components, shard by shard: one pass assigns them all and adds up what moves the centres.

For every local component l and fused component g, KL = a_l + b_g - <f_l, h_g> (``families.Tangent``): a pass is one
product of the factors f of a chunk of components with those of the centres, the assignments inside each site, and one
sum of the factors of each group. What a pass returns is additive, so any engine can add it up. Of the components only
a_l is remembered (and f_l where it is costly), in float64 whatever they are stored in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array, Labels
from consilience.engines import Engine, Placed
from consilience.errors import InputError
from consilience.families import Direction, Family
from consilience.families.base import Tangent
from consilience.matching.groups import GroupSums
from consilience.posteriors.columns import Block

_CHUNK_BYTES = 2**22


@dataclass(frozen=True, eq=False)
class Shard:
    """A block with what never changes while centres move.

    Parameters
    ----------
    block
        The components.
    kept
        Rows of the block that take part (n,), ascending: those of sites with weight, with enough observations; None for
        all of them.
    offsets
        Where each site starts among these, and the end (J + 1,).
    weights
        Weight of each site (J,); None where all are 1.
    fixed
        a_l of these rows (n,).
    factors
        f_l of these rows (n, P) where they are remembered; None takes differences from the tangent's centre.
    tangent
        What the divergences are taken from.
    """

    block: Block
    kept: Labels | None
    offsets: Labels
    weights: Array | None
    fixed: Array
    factors: Array | None
    tangent: Tangent

    @cached_property
    def owner(self) -> Labels:
        """The site of each row that takes part (n,)."""
        return np.repeat(np.arange(len(self.offsets) - 1, dtype=np.int64), np.diff(self.offsets))

    def natural(self, rows: slice) -> NDArray[np.floating[Any]]:
        """Return natural parameters of some of the rows that take part, as they are stored."""
        return self.block.natural[rows if self.kept is None else self.kept[rows]]

    def factor(self, rows: slice) -> Array:
        """Return f_l of some of the rows that take part, in float64."""
        if self.factors is not None:
            return self.factors[rows]
        return np.subtract(self.natural(rows), self.tangent.centre, dtype=np.float64)

    def row_weights(self, rows: slice) -> Array:
        """Return the site weight of some of the rows that take part."""
        if self.weights is None:
            return np.ones(rows.stop - rows.start)
        return self.weights[self.owner[rows]]

    def chunks(self) -> Iterator[tuple[slice, Labels]]:
        """Return rows of whole sites, and where these start among them, in pieces that fit a processor's cache."""
        limit = max(1, _CHUNK_BYTES // (8 * self.block.natural.shape[1]))
        first, total = 0, len(self.offsets) - 1
        while first < total:
            end = int(np.searchsorted(self.offsets, self.offsets[first] + limit, side="right")) - 1
            end = min(max(end, first + 1), total)
            rows = slice(int(self.offsets[first]), int(self.offsets[end]))
            if rows.stop > rows.start:
                yield rows, self.offsets[first : end + 1] - self.offsets[first]
            first = end

    def placed(self, labels: Labels) -> Labels:
        """Return labels of the rows that take part as labels of all rows of the block, -1 for the others."""
        if self.kept is None:
            return labels
        everywhere = np.full(len(self.block.natural), -1, dtype=np.int64)
        everywhere[self.kept] = labels
        return everywhere


def prepare(block: Block, weights: Array | None, centre: Array, direction: Direction, min_count: float) -> Shard:
    """Return a block ready for passes.

    Parameters
    ----------
    block
        The components.
    weights
        Weight of each site (J,); None where all are 1.
    centre
        Natural parameters (P,) near those of all components.
    direction
        ``forward``: KL(centre of a group || component); ``reverse``: the other way round.
    min_count
        Components with fewer effective observations take no part, but for the best informed one of each site.
    """
    tangent = Tangent(block.kind.family, centre)
    kept, offsets = _taking_part(block, weights, min_count)
    total = int(offsets[-1])
    fixed = np.empty(total)
    reverse = direction == "reverse"
    factors = np.empty((total, block.natural.shape[1])) if reverse else None
    shard = Shard(block, kept, offsets, weights, fixed, factors, tangent)
    for rows, _ in shard.chunks():
        natural = np.asarray(shard.natural(rows), dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            factor, fixed[rows] = tangent.kl_factors(natural, tangent.kl_from_centre, first=reverse)
        if factors is not None:
            factors[rows] = factor
    if not np.isfinite(fixed).all():
        site = int(shard.owner[int(np.flatnonzero(~np.isfinite(fixed))[0])])
        raise InputError(f"site {site} of a shard has a component whose divergence from the others is not finite")
    return shard


def _taking_part(block: Block, weights: Array | None, min_count: float) -> tuple[Labels | None, Labels]:
    """Return the rows that take part, None for all, and where each site starts among them."""
    keep = np.ones(len(block.natural), dtype=np.bool_)
    if block.counts is not None and min_count > 0:
        keep = block.counts >= min_count
        keep[np.lexsort((-block.counts, block.owner))[block.offsets[:-1]]] = True
    if weights is not None:
        keep &= weights[block.owner] > 0
    if keep.all():
        return None, block.offsets
    kept = np.flatnonzero(keep)
    sizes = np.bincount(block.owner[kept], minlength=block.n_sites)
    return kept, np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])


@dataclass(frozen=True, eq=False)
class Work:
    """Shards at rest, prepared, and what is known of all of them.

    Parameters
    ----------
    engine
        Where they are.
    shards
        The shards.
    tangent
        What divergences are taken from.
    direction
        As in ``prepare``.
    n_sites, n_rows
        Numbers of sites and of components.
    """

    engine: Engine
    shards: Placed[Shard]
    tangent: Tangent
    direction: Direction
    n_sites: int
    n_rows: int

    @property
    def family(self) -> Family:
        """The family of every component."""
        return self.tangent.family

    def map(self, function: Callable[..., Any], *common: Any, each: Sequence[Any] | None = None) -> list[Any]:
        """Return what a function says of every shard."""
        return self.engine.map(function, self.shards, *common, each=each)

    def reduce(
        self,
        function: Callable[..., Any],
        combine: Callable[[Sequence[Any]], Any],
        *common: Any,
        each: Sequence[Any] | None = None,
    ) -> Any:
        """Return what a function says of all shards together."""
        return self.engine.reduce(function, combine, self.shards, *common, each=each)

    def averaged(self, groups: GroupSums) -> Array:
        """Return the natural parameters (G, P) of the averages of groups, which all have mass, by sums of factors."""
        means = groups.means()
        if self.direction == "forward":
            return means + self.tangent.centre
        return self.family.from_mean(means + self.tangent.centre_mean)
