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

import numpy as np

from consilience.checks import Array, Labels
from consilience.errors import InputError
from consilience.families.random_effects import RandomEffectsFamily
from consilience.matching.groups import GroupSums, group_sums
from consilience.posteriors.average import PRIOR_ROUNDING, AttachedSums, AverageRecord, Combine, carry, fused_attached
from consilience.posteriors.columns import ComponentColumns, ShardSchema
from consilience.posteriors.posterior import Attached, Posterior
from consilience.posteriors.robust.minority import GroupHolders, first_names, group_holders, holder_names
from consilience.posteriors.sharded.passes import PreparedShard, PreparedShards


@dataclass(frozen=True, eq=False)
class GroupTotals:
    """Sums over the members of every group in some sites, additive over shards.

    Parameters
    ----------
    groups : GroupSums
        Weighted sums of factors of every group, and the weight in it.
    priors : Array of shape (G, P), optional
        Weighted sums over the members of every group of their own site's prior; None where a site has none.
    prior : Array of shape (P,), optional
        Weighted sum of the sites' priors; None likewise.
    prior_range : Array of shape (2, P), optional
        Smallest and largest of the sites' priors, parameter by parameter; None likewise.
    site_weight : float
        Sum of the sites' weights.
    counts : Array of shape (G,), optional
        Weighted observations of every group; None where a site does not state them.
    mixture_weights : Array of shape (G,), optional
        Weight of every group in the mixture; None likewise.
    attached : mapping from str to AttachedSums
        Attached arrays by name.
    """

    groups: GroupSums
    priors: Array | None
    prior: Array | None
    prior_range: Array | None
    site_weight: float
    counts: Array | None
    mixture_weights: Array | None
    attached: Mapping[str, AttachedSums] = field(default_factory=dict)


def shard_totals(shard: PreparedShard, labels: Labels, n_groups: int) -> GroupTotals:
    """Return the totals of one shard.

    Parameters
    ----------
    shard : PreparedShard
        The shard.
    labels : Labels of shape (n,)
        Labels of its active rows.
    n_groups : int
        Number of groups G.
    """
    components = shard.components
    n_rows = len(labels)
    weights = shard.row_weights(slice(0, n_rows))
    groups = GroupSums(np.zeros((n_groups, components.natural.shape[1])), np.zeros(n_groups))
    for rows, _ in shard.chunks():
        groups = groups + group_sums(shard.factor(rows), labels[rows], weights[rows], n_groups)
    site_weights = np.ones(components.n_sites) if shard.weights is None else shard.weights
    # The site of every active row (n,)
    site_of_row = components.owner if shard.active is None else components.owner[shard.active]
    priors = prior = prior_range = None  # (G, P), (P,) and (2, P)
    if components.prior is not None and components.prior.ndim == 1:
        priors, prior = np.multiply.outer(groups.mass, components.prior), site_weights.sum() * components.prior
        prior_range = np.stack([components.prior, components.prior])
    elif components.prior is not None:
        priors, prior = (
            group_sums(components.prior[site_of_row], labels, weights, n_groups).sums,
            site_weights @ components.prior,
        )
        voting = components.prior[site_weights > 0]
        if len(voting):
            prior_range = np.stack([voting.min(axis=0), voting.max(axis=0)])
    active = slice(None) if shard.active is None else shard.active
    counts = None if components.counts is None else _group_totals(components.counts[active] * weights, labels, n_groups)
    mixture_weights = _weights_in_mixture(components)
    attached = {}
    if components.kind.attached:
        posteriors = [components.site(number) for number in range(components.n_sites)]
        all_labels = shard.scatter(labels)  # (L,)
        # Rule "keep" takes an entry from the site of the smallest key that has it, whatever the order of sites.
        keys = components.keys(0)
        keys[site_weights == 0] = np.iinfo(np.uint64).max  # a site without weight has no say
        attached = {
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
    mixture_sums = (
        None if mixture_weights is None else _group_totals(mixture_weights[active] * weights, labels, n_groups)
    )
    return GroupTotals(groups, priors, prior, prior_range, float(site_weights.sum()), counts, mixture_sums, attached)


def shard_holders(shard: PreparedShard, labels: Labels, n_groups: int) -> GroupHolders:
    """Return how many sites of one shard hold each group; parameters as in ``shard_totals``."""
    counts = shard.components.counts
    if counts is not None and shard.active is not None:
        counts = counts[shard.active]
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


def _weights_in_mixture(components: ComponentColumns) -> Array | None:
    """Return mixture weights (L,) that add up to the observations of each site, or to 1 where these are not stated."""
    if components.weights is None:
        return None
    starts = components.offsets[:-1]  # reduceat sums the rows of each site; no site is empty
    totals = np.add.reduceat(components.weights, starts)
    scaled: Array = components.weights / np.where(totals > 0, totals, 1.0)[components.owner]
    return (
        scaled if components.counts is None else scaled * np.add.reduceat(components.counts, starts)[components.owner]
    )


def add_totals(parts: Sequence[GroupTotals]) -> GroupTotals:
    """Return the totals of several shards."""
    first, *others = parts
    so_far = first
    for part in others:
        so_far = GroupTotals(
            so_far.groups + part.groups,
            _sum_or_none(so_far.priors, part.priors),
            _sum_or_none(so_far.prior, part.prior),
            _joint_range(so_far.prior_range, part.prior_range),
            so_far.site_weight + part.site_weight,
            _sum_or_none(so_far.counts, part.counts),
            _sum_or_none(so_far.mixture_weights, part.mixture_weights),
            {name: carried + part.attached[name] for name, carried in so_far.attached.items()},
        )
    return so_far


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

    Parameters
    ----------
    shards, kind, totals, combine
        As in ``fused_posterior``.
    own_average : str
        Why ``"auto"`` is the method's own average; empty where it is not.
    """
    has_prior = totals.prior is not None  # else the fused posterior has none either
    priors = _range_text(totals.prior_range) if has_prior and totals.prior_range is not None else ""
    if combine != "auto":
        is_product = combine == "product" and has_prior
        return AverageRecord("product" if is_product else "barycenter", combine, priors=priors)
    reason = own_average
    if not reason and not (kind.family.has_width and isinstance(kind.family, RandomEffectsFamily)):
        reason = f"a {kind.family.name} has no random-effects average"
    if not reason and (totals.prior is None or totals.priors is None):
        reason = "the models state no prior"
    if not reason and totals.counts is None:
        reason = "the models state no counts"
    if not reason and kind.source.get("samples") == "assumed":
        reason = "the numbers of observations are assumed"
    if not reason:
        for row, text in kind.family.check(_products(shards, totals))[:1]:
            reason = f"the Bayes product of component {row} {text}, so the priors are not those of the models"
    if reason:
        return AverageRecord("barycenter", combine, reason, priors)
    text = "sums over shards give the Bayes product, which takes sites for alike; how much they differ is not known"
    return AverageRecord("product", combine, text, priors)


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
    products: Array = totals.prior / totals.site_weight + sums - totals.priors
    return products


def fused_posterior(
    shards: PreparedShards, kind: ShardSchema, totals: GroupTotals, average: str, averages: Array | None = None
) -> Posterior:
    """Return the fused posterior, as ``combine`` does for posteriors in memory.

    Parameters
    ----------
    shards : PreparedShards
        The shards.
    kind : ShardSchema
        What all sites share.
    totals : GroupTotals
        The totals of all shards.
    average : str
        ``barycenter`` or ``product``, or another, whose `averages` are given.
    averages : Array of shape (G, P), optional
        Fused components, unless it is the product. Default: barycenters.

    Raises
    ------
    InputError
        When a product leaves the family's domain, or is asked for in the direction ``reverse``.
    """
    prior = None if totals.prior is None else totals.prior / totals.site_weight
    if average == "product" and prior is not None and totals.priors is not None:
        if shards.direction == "reverse":
            raise InputError(
                "",
                "`combine='product'`: adds natural parameters, so it needs `direction='forward'` on shards",
                code="E-NEEDED",
            )
        natural = _products(shards, totals)
        for row, text in kind.family.check(natural)[:1]:
            raise InputError(
                "",
                f"the product of the posteriors matched to component {row} {text}: check the sites' priors",
                code="E-NUMBER",
            )
    else:
        natural = shards.group_averages(totals.groups) if averages is None else averages
    weights = totals.mixture_weights  # (G,), normalised below
    if weights is not None:
        total_weight = weights.sum()
        weights = weights / total_weight if total_weight > 0 else np.full(len(weights), 1.0 / len(weights))
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
