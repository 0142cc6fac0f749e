"""What the components of each group are together, added up over shards: ``combine`` for very many sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from consilience.checks import Array, Labels
from consilience.errors import InputError
from consilience.matching.groups import GroupSums, group_sums
from consilience.posteriors.attached_average import AttachedSums, carry, fused_attached
from consilience.posteriors.average import Combine
from consilience.posteriors.columns import Block, Kind
from consilience.posteriors.posterior import Attached, Posterior
from consilience.posteriors.sharded.passes import Shard, Work


@dataclass(frozen=True, eq=False)
class Totals:
    """What a labelled pass over some sites adds up to.

    Parameters
    ----------
    groups
        Weighted sums of factors of every group, and the weight in it.
    priors
        Weighted sums over the members of every group of their own site's prior (G, P); None where one lacks it.
    prior
        Weighted sum of the sites' priors (P,).
    sites
        Sum of the sites' weights.
    counts
        Weighted observations of every group (G,); None where a site does not state them.
    shares
        Weight of every group in the mixture (G,); None likewise.
    attached
        By name.
    """

    groups: GroupSums
    priors: Array | None
    prior: Array | None
    sites: float
    counts: Array | None
    shares: Array | None
    attached: Mapping[str, AttachedSums] = field(default_factory=dict)


def total(shard: Shard, labels: Labels, n_groups: int) -> Totals:
    """Return the totals of one shard, given the labels of the rows that take part."""
    block = shard.block
    n_rows = len(labels)
    weights = shard.row_weights(slice(0, n_rows))
    groups = GroupSums(np.zeros((n_groups, block.natural.shape[1])), np.zeros(n_groups))
    for rows, _ in shard.chunks():
        groups = groups + group_sums(shard.factor(rows), labels[rows], weights[rows], n_groups)
    site_weights = np.ones(block.n_sites) if shard.weights is None else shard.weights
    every = block.owner if shard.kept is None else block.owner[shard.kept]
    priors = prior = None
    if block.prior is not None and block.prior.ndim == 1:
        priors, prior = np.multiply.outer(groups.mass, block.prior), site_weights.sum() * block.prior
    elif block.prior is not None:
        priors, prior = group_sums(block.prior[every], labels, weights, n_groups).sums, site_weights @ block.prior
    kept = slice(None) if shard.kept is None else shard.kept
    counts = None if block.counts is None else _summed(block.counts[kept] * weights, labels, n_groups)
    shares = _shares(block)
    attached = {}
    if block.kind.attached:
        sites, everywhere, keys = (
            [block.site(number) for number in range(block.n_sites)],
            shard.placed(labels),
            block.keys(0),
        )
        keys[site_weights == 0] = np.iinfo(np.uint64).max  # a site without weight has no say
        attached = {
            name: carry(
                [site.attached[name] for site in sites], block.offsets, everywhere, site_weights, n_groups, keys
            )
            for name in block.kind.attached
        }
    mixture = None if shares is None else _summed(shares[kept] * weights, labels, n_groups)
    return Totals(groups, priors, prior, float(site_weights.sum()), counts, mixture, attached)


def _summed(values: Array, labels: Labels, n_groups: int) -> Array:
    kept = labels >= 0
    return np.bincount(labels[kept], weights=values[kept], minlength=n_groups).astype(np.float64, copy=False)


def _shares(block: Block) -> Array | None:
    """Return mixture weights (L,), those of a site adding up to its observations where these are known, else to 1."""
    if block.weights is None:
        return None
    starts = block.offsets[:-1]
    totals = np.add.reduceat(block.weights, starts)
    share: Array = block.weights / np.where(totals > 0, totals, 1.0)[block.owner]
    return share if block.counts is None else share * np.add.reduceat(block.counts, starts)[block.owner]


def add_totals(parts: Sequence[Totals]) -> Totals:
    """Return the totals of several shards together."""
    first, *others = parts
    whole = first
    for one in others:
        whole = Totals(
            whole.groups + one.groups,
            _both(whole.priors, one.priors),
            _both(whole.prior, one.prior),
            whole.sites + one.sites,
            _both(whole.counts, one.counts),
            _both(whole.shares, one.shares),
            {name: carried + one.attached[name] for name, carried in whole.attached.items()},
        )
    return whole


def _both(one: Array | None, other: Array | None) -> Array | None:
    return None if one is None or other is None else one + other


def fused(work: Work, kind: Kind, totals: Totals, how: Combine, averaged: Array | None = None) -> Posterior:
    """Return the fused posterior, as ``combine`` does; `averaged` (G, P) are components that the method found itself.

    Raises
    ------
    InputError
        When a product leaves the family's domain.
    """
    prior = None if totals.prior is None else totals.prior / totals.sites
    if how == "product" and prior is not None and totals.priors is not None:
        if work.direction == "reverse":
            raise InputError("combine='product': adds natural parameters, so it needs direction='forward' on shards")
        sums = totals.groups.sums + np.multiply.outer(totals.groups.mass, work.tangent.centre)
        natural: Array = prior + sums - totals.priors
        for row, text in kind.family.check(natural)[:1]:
            raise InputError(
                f"the product of the posteriors matched to component {row} {text}: check the sites' priors"
            )
    else:
        natural = work.averaged(totals.groups) if averaged is None else averaged
    weights = totals.shares
    if weights is not None:
        whole = weights.sum()
        weights = weights / whole if whole > 0 else np.full(len(weights), 1.0 / len(weights))
    attached: dict[str, Attached] = {
        name: fused_attached(totals.attached[name], axes, rule) for name, (axes, rule, _) in kind.attached.items()
    }
    return Posterior(
        kind.family,
        natural,
        prior=prior,
        counts=totals.counts,
        weights=weights,
        attached=attached,
        features=kind.features,
        source=kind.source,
    )
