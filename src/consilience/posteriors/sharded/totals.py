"""Fused components, counts, weights and attached arrays from sums over shards: ``combine`` for very many sites.

All that a fused posterior is made of are weighted sums over the members of each group. For site weights w_j, members
l in S_g and priors eta^0_j,

    barycenter   eta_g = sum_{l in S_g} w_l eta_l / sum_{l in S_g} w_l        (equation (4) of Claici et al. 2020)
    product      eta_g = eta^0 + sum_{l in S_g} w_l (eta_l - eta^0_l),   eta^0 the weighted mean of the sites' priors,

and counts and mixture weights of a group are the sums of its members'. Shards return these sums, which an engine adds.
A product that leaves the family's domain is an error that names the component.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from consilience.checks import Array, Labels
from consilience.errors import InputError
from consilience.families.random_effects import RandomEffectsFamily
from consilience.matching.groups import GroupSums, group_sums
from consilience.posteriors.average import (
    PRIOR_ROUNDING,
    AttachedSums,
    AverageRecord,
    Combine,
    carry,
    fused_attached,
    mixture_mass,
    refuse_improper,
    why_improper,
)
from consilience.posteriors.columns import ShardSchema
from consilience.posteriors.posterior import Attached, Posterior, shares_of
from consilience.posteriors.robust.minority import GroupHolders, first_names, group_holders, holder_names
from consilience.posteriors.sharded.passes import PreparedShard, PreparedShards


@dataclass(frozen=True, eq=False)
class GroupTotals:
    """Sums over the members of every group in some sites, additive over shards.

    What a site does not state is None.
    """

    groups: GroupSums  # weighted sums of factors of every group, and the weight in it
    priors: Array | None  # weighted sums over members of their own site's prior (G, P)
    prior: Array | None  # weighted sum of the sites' priors (P,)
    prior_range: Array | None  # smallest and largest of the sites' priors, parameter by parameter (2, P)
    site_weight: float  # sum of the sites' weights
    counts: Array | None  # weighted observations of every group (G,)
    mixture_weights: Array | None  # weight of every group in the mixture (G,)
    attached: Mapping[str, AttachedSums] = field(default_factory=dict)  # by name


def shard_totals(shard: PreparedShard, labels: Labels, n_groups: int) -> GroupTotals:
    """Return the totals of one shard; `labels` (n,) are of its active rows."""
    components, rows = shard.components, slice(0, len(labels))
    weights = shard.row_weights(rows)
    groups = GroupSums(np.zeros((n_groups, components.natural.shape[1])), np.zeros(n_groups))
    for chunk, _ in shard.chunks():  # factors of all rows at once would be as large as the shard
        groups = groups + group_sums(shard.factor(chunk), labels[chunk], weights[chunk], n_groups)
    site_weights = np.ones(components.n_sites) if shard.weights is None else shard.weights

    def total(values: Array | None) -> Array | None:
        """Return the weighted sum of values of all rows (L,) over the active rows of each group (G,)."""
        return None if values is None else _group_totals(shard.of_active(values) * weights, labels, n_groups)

    mass = None
    if components.weights is not None:
        mass = mixture_mass(components.weights, components.counts, components.offsets, components.owner)
    return GroupTotals(
        groups,
        *_prior_sums(shard, labels, weights, site_weights, groups.mass),
        float(site_weights.sum()),
        total(components.counts),
        total(mass),
        _attached_sums(shard, labels, site_weights, n_groups),
    )


def _prior_sums(
    shard: PreparedShard, labels: Labels, weights: Array, site_weights: Array, mass: Array
) -> tuple[Array | None, Array | None, Array | None]:
    """Return `priors`, `prior` and `prior_range` of ``GroupTotals``."""
    prior = shard.components.prior
    if prior is None:
        return None, None, None
    if prior.ndim == 1:
        return np.multiply.outer(mass, prior), site_weights.sum() * prior, np.stack([prior, prior])
    priors = group_sums(prior[shard.of_active(shard.components.owner)], labels, weights, len(mass)).sums
    voting = prior[site_weights > 0]
    prior_range = np.stack([voting.min(axis=0), voting.max(axis=0)]) if len(voting) else None
    return priors, site_weights @ prior, prior_range


def _attached_sums(
    shard: PreparedShard, labels: Labels, site_weights: Array, n_groups: int
) -> Mapping[str, AttachedSums]:
    """Return the sums of attached arrays by name."""
    components = shard.components
    if not components.kind.attached:
        return {}
    posteriors = [components.site(number) for number in range(components.n_sites)]
    all_labels = shard.scatter(labels)  # (L,)
    # Rule "keep" takes an entry from the site of the smallest key that has it, whatever the order of sites.
    keys = components.keys(0)
    keys[site_weights == 0] = np.iinfo(np.uint64).max  # a site without weight has no say
    return {
        name: carry(
            [posterior.attached[name] for posterior in posteriors],
            components.offsets,
            all_labels,
            site_weights,
            n_groups,
            keys,
        )
        for name in components.kind.attached
    }


def shard_holders(shard: PreparedShard, labels: Labels, n_groups: int) -> GroupHolders:
    """Return how many sites of one shard hold each group; parameters as in ``shard_totals``."""
    counts = None if shard.components.counts is None else shard.of_active(shard.components.counts)
    n_sites = shard.components.n_sites if shard.weights is None else int(np.count_nonzero(shard.weights))
    return group_holders(shard.owner, labels, counts, n_sites, n_groups)


def shard_holder_names(shard: PreparedShard, labels: Labels, groups: Labels) -> list[list[str]]:
    """Return names of the sites of one shard that hold each of some groups, the first ones."""
    return holder_names(shard.owner, labels, shard.components.names, groups)


def merge_names(parts: Sequence[list[list[str]]]) -> list[list[str]]:
    """Return the first names of several shards, for each group."""
    return [first_names(name for names in names_of_group for name in names)
            for names_of_group in zip(*parts, strict=True)]  # fmt: skip


def _group_totals(values: Array, labels: Labels, n_groups: int) -> Array:
    """Return the sum of `values` (n,) over each group (G,)."""
    assigned = labels >= 0
    return np.bincount(labels[assigned], weights=values[assigned], minlength=n_groups).astype(np.float64, copy=False)


def add_totals(parts: Sequence[GroupTotals]) -> GroupTotals:
    """Return the totals of several shards."""
    return reduce(_added, parts)


def _added(first: GroupTotals, second: GroupTotals) -> GroupTotals:
    """Return the totals of two sets of sites."""
    return GroupTotals(
        first.groups + second.groups,
        _sum_or_none(first.priors, second.priors),
        _sum_or_none(first.prior, second.prior),
        _joint_range(first.prior_range, second.prior_range),
        first.site_weight + second.site_weight,
        _sum_or_none(first.counts, second.counts),
        _sum_or_none(first.mixture_weights, second.mixture_weights),
        {name: carried + second.attached[name] for name, carried in first.attached.items()},
    )


def _joint_range(first: Array | None, second: Array | None) -> Array | None:
    """Return the range (2, P) of both; that of the other where one is missing."""
    if first is None or second is None:
        return first if second is None else second
    return np.stack([np.minimum(first[0], second[0]), np.maximum(first[1], second[1])])


def _sum_or_none(first: Array | None, second: Array | None) -> Array | None:
    """Return the sum of two arrays, or None where one of them is missing."""
    return None if first is None or second is None else first + second


def average_of_sums(
    shards: PreparedShards, kind: ShardSchema, totals: GroupTotals, combine: Combine, own_average: str
) -> AverageRecord:
    """Return which average sums over shards allow: the product where ``"auto"`` would be hierarchical in memory.

    How much copies differ takes all of them at once, once for every value of the heterogeneity that is tried.
    `own_average` says why ``"auto"`` is the method's own average; empty where it is not.
    """
    has_prior = totals.prior is not None  # else the fused posterior has none either
    priors = _range_text(totals.prior_range) if has_prior and totals.prior_range is not None else ""
    if combine != "auto":
        is_product = combine == "product" and has_prior
        return AverageRecord("product" if is_product else "barycenter", combine, priors=priors)
    if reason := own_average or _why_no_product(shards, kind, totals):
        return AverageRecord("barycenter", combine, reason, priors)
    text = "sums over shards give the Bayes product, which takes sites for alike; how much they differ is not known"
    return AverageRecord("product", combine, text, priors)


def _why_no_product(shards: PreparedShards, kind: ShardSchema, totals: GroupTotals) -> str:
    """Return why sums give no Bayes product that would mean something; empty where they do."""
    if not (kind.family.has_width and isinstance(kind.family, RandomEffectsFamily)):
        return f"a {kind.family.name} has no random-effects average"
    if totals.prior is None or totals.priors is None:
        return "the models state no prior"
    if totals.counts is None:
        return "the models state no counts"
    if kind.source.get("samples") == "assumed":
        return "the numbers of observations are assumed"
    return why_improper(kind.family, _products(shards, totals))


def _range_text(prior_range: Array) -> str:
    """Return how the sites' priors differ, by the parameter that differs most relatively; empty where they agree."""
    low, high = prior_range
    if np.allclose(low, high, rtol=PRIOR_ROUNDING, atol=0.0):
        return ""
    widest = int(np.argmax((high - low) / np.maximum(np.maximum(np.abs(low), np.abs(high)), np.finfo(np.float64).tiny)))
    return f"sites state different priors (natural parameter {widest} from {low[widest]:.4g} to {high[widest]:.4g})"


def _products(shards: PreparedShards, totals: GroupTotals) -> Array:
    """Return the Bayes products (G, P) of the direction "forward"; all sites state a prior."""
    assert totals.prior is not None and totals.priors is not None  # noqa: S101, PT018  (narrows the types)
    # Factors are natural parameters less the centre, so the centre is added back by mass.
    sums = totals.groups.sums + np.multiply.outer(totals.groups.mass, shards.tangent.centre)
    return totals.prior / totals.site_weight + sums - totals.priors


def fused_posterior(
    shards: PreparedShards, kind: ShardSchema, totals: GroupTotals, average: str, averages: Array | None = None
) -> Posterior:
    """Return the fused posterior, as ``combine`` does for posteriors in memory, from the totals of all shards.

    It is a product, or another average whose `averages` (G, P) are given; else barycenters. A product that leaves the
    family's domain, or that is asked for in the direction ``reverse``, is refused.
    """
    # The mean of the sites' priors, by weight; a product divides each site's own out of its factor.
    prior = None if totals.prior is None else totals.prior / totals.site_weight
    if average == "product" and prior is not None and totals.priors is not None:
        if shards.direction == "reverse":
            problem = "`combine='product'`: adds natural parameters, so it needs `direction='forward'` on shards"
            raise InputError("", problem, code="E-NEEDED")
        natural = _products(shards, totals)
        refuse_improper(kind.family, natural)
    else:
        natural = shards.group_averages(totals.groups) if averages is None else averages
    attached: dict[str, Attached] = {
        name: fused_attached(totals.attached[name], axes, rule) for name, (axes, rule, _) in kind.attached.items()
    }
    return Posterior(
        kind.family,
        natural,
        prior=prior,
        counts=totals.counts,
        weights=None if totals.mixture_weights is None else shares_of(totals.mixture_weights),
        attached=attached,
        features=kind.features,
        source=kind.source,
    )
