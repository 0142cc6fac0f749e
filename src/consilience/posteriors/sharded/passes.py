"""Shards prepared for passes: the fixed side of the Kullback-Leibler divergences of very many components.

For every local component l and fused component g the divergence splits into

    KL(l, g) = a_l + b_g - <f_l, h_g>                                                   (``families.base.Tangent``)

with levels a, b and factors f, h of length P. A pass (``descent``) is one product of the factors f of a chunk of
components with those of the centres, the assignments inside each site, and one sum of the factors of each group. These
sums are additive over shards, so any engine can add them up.

While centres move, a_l and f_l stay. Of the components only a_l is remembered, in float64 whatever they are stored in;
f_l only where it is costly (``direction="reverse"``, where it is a mean parameter). A divergence that is not finite is
an error that names the site.

Some sites are gathered in memory. A pilot sample of very many is the sites whose contents hash to the k smallest
numbers (a bottom-k sketch). So it depends on nothing but contents and a seed: neither on the order of sites nor on how
they lie in shards; and samples of shards merge in any order. Equal hashes of all bits also show which sites have the
same contents.

Refinement and confidence are computed up to some number of components only, for their cost, not for their memory. Up
to the same number the components of shards are gathered in canonical order, and both are computed by the same
functions, on the same ensemble: bit for bit, from the same labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array, Labels
from consilience.engines import Engine, Placed
from consilience.errors import InputError
from consilience.families import Direction, Family
from consilience.families.base import Tangent
from consilience.matching.groups import GroupSums
from consilience.posteriors.columns import ComponentColumns
from consilience.posteriors.ensemble import Ensemble, SiteRuns, informed_rows, offsets_of
from consilience.posteriors.methods.kl.divergences import DivergenceName, Geometry, make_geometry
from consilience.posteriors.posterior import Posterior

CHUNK_BYTES = 2**22
"""Bytes of float64 parameters in a chunk of rows: 4 MiB, about a processor's cache.

Chosen by hand; nobody has measured other values.
"""


@dataclass(frozen=True, eq=False)
class PreparedShard(SiteRuns):
    """The components of one shard with what never changes while centres move.

    Rows that take part are called active: components with enough observations, of sites that have weight.
    """

    components: ComponentColumns  # all L components of J sites
    active: Labels | None  # active rows of these (n,), ascending; None where all L are
    offsets: Labels  # first active row of each site, counted among the active ones, and n (J + 1,)
    weights: Array | None  # of each site (J,); None where all are 1
    levels: Array  # a_l of the active rows (n,)
    factors: Array | None  # f_l of the active rows (n, P), where remembered
    tangent: Tangent  # the log normaliser less its tangent at a centre: gives all divergences

    def natural(self, rows: slice) -> NDArray[np.floating[Any]]:
        """Return natural parameters of some of the active rows (rows, P), in the precision in which they are stored."""
        return self.components.natural[rows if self.active is None else self.active[rows]]

    def factor(self, rows: slice) -> Array:
        """Return f_l of some of the active rows (rows, P), in float64."""
        if self.factors is not None:
            return self.factors[rows]
        return np.subtract(self.natural(rows), self.tangent.centre, dtype=np.float64)

    def row_weights(self, rows: slice) -> Array:
        """Return the weight of the site of some of the active rows (rows,)."""
        return np.ones(rows.stop - rows.start) if self.weights is None else self.weights[self.owner[rows]]

    def chunks(self) -> Iterator[tuple[slice, Labels]]:
        """Yield active rows of whole sites, and the offsets of these sites in them, in chunks of ``CHUNK_BYTES``."""
        # As many whole sites as fit; a site with more rows than the limit is a chunk of its own.
        limit = max(1, CHUNK_BYTES // (8 * self.components.natural.shape[1]))
        for sites in self.runs(limit):
            rows = self.rows_of(sites)
            if rows.stop > rows.start:
                yield rows, self.offsets[sites.start : sites.stop + 1] - rows.start

    def of_active(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return those values of all rows (L,) that are of the active ones (n,)."""
        return values if self.active is None else values[self.active]

    def scatter(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return labels or values of the active rows (n,) as those of all rows (L,): the others have -1, or NaN."""
        if self.active is None:
            return values
        all_values = np.full(len(self.components.natural), np.nan if values.dtype.kind == "f" else -1, values.dtype)
        all_values[self.active] = values
        return all_values


def prepare(
    components: ComponentColumns, weights: Array | None, centre: Array, direction: Direction, min_count: float
) -> PreparedShard:
    """Return the components of one shard prepared for passes, with divergences from near `centre` (P,).

    Direction ``forward`` is KL(centre of a group || component), of equation (3) of Claici et al. 2020, ``reverse`` the
    other way round. Components with fewer than `min_count` effective observations take no part, but for the best
    informed one of each site. A component whose divergence from `centre` is not finite is refused.
    """
    tangent = Tangent(components.kind.family, centre)
    active, offsets = _active_rows(components, weights, min_count)
    total = int(offsets[-1])  # active rows n
    levels = np.empty(total)
    reverse = direction == "reverse"
    # In the direction "forward" f_l is a natural parameter less the centre: cheaper to compute again than to keep.
    factors = np.empty((total, components.natural.shape[1])) if reverse else None
    shard = PreparedShard(components, active, offsets, weights, levels, factors, tangent)
    for rows, _ in shard.chunks():
        natural = np.asarray(shard.natural(rows), dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused below
            factor, levels[rows] = tangent.kl_factors(natural, tangent.kl_from_centre, first=reverse)
        if factors is not None:
            factors[rows] = factor
    if not np.isfinite(levels).all():
        site = int(shard.owner[int(np.flatnonzero(~np.isfinite(levels))[0])])
        text = f"site {site} of a shard has a component whose divergence from the others is not finite"
        raise InputError("", text, code="E-NUMBER")
    return shard


def _active_rows(components: ComponentColumns, weights: Array | None, min_count: float) -> tuple[Labels | None, Labels]:
    """Return the active rows (n,), None for all of them, and the first of each site among them (J + 1,)."""
    is_active = np.ones(len(components.natural), dtype=np.bool_)  # (L,)
    if components.counts is not None and min_count > 0:
        is_active = informed_rows(components.counts, components.owner, components.offsets, min_count)
    if weights is not None:
        is_active &= weights[components.owner] > 0
    if is_active.all():
        return None, components.offsets
    active = np.flatnonzero(is_active)
    sizes = np.bincount(components.owner[active], minlength=components.n_sites)
    return active, offsets_of(sizes)


@dataclass(frozen=True)
class Divergence:
    """A divergence that is not Kullback-Leibler, by its name and order; see ``methods.kl.divergences``."""

    name: DivergenceName
    order: float

    def geometry(self, family: Family, natural: Array) -> Geometry:
        """Return the geometry of some components (n, P)."""
        return make_geometry(self.name, self.order, "forward", family, natural)


def _geometry_sums(
    shard: PreparedShard, labels: Labels, divergence: Divergence, function: Callable[..., Any], common: tuple[Any, ...]
) -> Any:
    """Return the sums of one shard that the average of a divergence asks for."""
    rows = slice(0, len(labels))
    geometry = divergence.geometry(shard.tangent.family, np.asarray(shard.natural(rows), dtype=np.float64))
    return function(geometry, labels, shard.row_weights(rows), *common)


def add_all(parts: Sequence[Any]) -> Any:
    """Return the sum of the sums of several shards."""
    return reduce(add, parts)


@dataclass(frozen=True, eq=False)
class PreparedShards:
    """All shards, prepared and held by an engine, and what they have in common."""

    engine: Engine
    shards: Placed[PreparedShard]
    tangent: Tangent  # the same for every shard
    direction: Direction  # as in ``prepare``
    n_sites: int
    n_rows: int  # components in all shards
    divergence: Divergence | None = None  # in place of that of Kullback and Leibler

    @property
    def family(self) -> Family:
        """The family of every component."""
        return self.tangent.family

    def map(self, function: Callable[..., Any], *common: Any, each: Sequence[Any] | None = None) -> list[Any]:
        """Return a function of every shard; parameters as in ``Engine.map``."""
        return self.engine.map(function, self.shards, *common, each=each)

    def reduce(
        self,
        function: Callable[..., Any],
        combine: Callable[[Sequence[Any]], Any],
        *common: Any,
        each: Sequence[Any] | None = None,
    ) -> Any:
        """Return a function of every shard, reduced over all; parameters as in ``Engine.reduce``."""
        return self.engine.reduce(function, combine, self.shards, *common, each=each)

    def sum(self, function: Callable[..., Any], *common: Any, each: Sequence[Any] | None = None) -> Any:
        """Return the sum of a function of every shard whose results can be added; parameters as in ``map``."""
        return self.engine.reduce(function, add_all, self.shards, *common, each=each)

    def group_averages(self, groups: GroupSums) -> Array:
        """Return the natural parameters (G, P) of the averages of groups, which all have mass, by sums of factors.

        Equation (4) of Claici et al. 2020: the minimiser of sum_l w_l KL(q || q_l) has the mean natural parameter. In
        the other direction it has the mean of the mean parameters.
        """
        means = groups.means()  # (G, P), less the centre, as factors are
        if self.direction == "forward":
            return means + self.tangent.centre
        return self.family.from_mean(means + self.tangent.centre_mean)

    def averages_of(self, labels: Sequence[Labels], n_groups: int) -> Array:
        """Return the averages (G, P) that belong to the divergence, given the labels of the active rows."""
        assert self.divergence is not None  # noqa: S101  (those of Kullback-Leibler follow from sums of factors)

        def ask(function: Callable[..., Any], *common: Any) -> Any:
            return self.sum(_geometry_sums, self.divergence, function, common, each=labels)

        no_rows = np.zeros((0, self.family.size))
        return self.divergence.geometry(self.family, no_rows).averages_by_sums(ask, n_groups)


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
