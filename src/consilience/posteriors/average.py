"""Average: what a fused component is, given the local components that are copies of it.

Two answers, and they mean different things. The **barycenter** is the Kullback-Leibler mean of the copies: it keeps
the width of one site's posterior. The **product** is the posterior given all sites' data, each site's prior removed
once and one prior put back: its width shrinks as data adds up, and for conjugate models with matched components it
equals the posterior that pooling the data would give.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from consilience.checks import Array, Labels
from consilience.errors import InputError
from consilience.families import Direction, Family
from consilience.matching.conjugate_groups import ConjugateGroups
from consilience.matching.groups import group_sums
from consilience.posteriors.attached_average import carry, fused_attached
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.posterior import Attached, Posterior

Combine = Literal["barycenter", "product"]
Average = Callable[[Ensemble, Labels, int], Array]


def averaged_parameters(family: Family, natural: Array, direction: Direction) -> Array:
    """Return the parameters whose mean is the barycenter: natural ones, or mean parameters in the reverse direction."""
    return natural if direction == "forward" else family.mean_parameters(natural)


def from_averaged(family: Family, means: Array, direction: Direction) -> Array:
    """Return natural parameters of what ``averaged_parameters`` averages to."""
    return means if direction == "forward" else family.from_mean(means)


def common_prior(ensemble: Ensemble) -> Array | None:
    """Return the weighted mean of the sites' priors (P,): their prior, when they share one; None where one lacks it."""
    priors = [posterior.prior for posterior in ensemble.posteriors]
    known = [prior for prior in priors if prior is not None]
    if len(known) < len(priors):
        return None
    share = ensemble.site_weights / ensemble.site_weights.sum()
    mean: Array = share @ np.stack(known)
    return mean


def kl_average(ensemble: Ensemble, labels: Labels, n_groups: int, direction: Direction) -> Array:
    """Return the Kullback-Leibler barycenters (G, P) of a matching whose groups all have members."""
    parameters = averaged_parameters(ensemble.family, ensemble.natural, direction)
    means = group_sums(parameters, labels, ensemble.row_weights, n_groups).means()
    return from_averaged(ensemble.family, means, direction)


def combine(ensemble: Ensemble, labels: Labels, n_groups: int, how: Combine, average: Average) -> Posterior:
    """Return the fused posterior of a matching: components, prior, counts, weights and what is attached.

    Parameters
    ----------
    ensemble
        The stacked models.
    labels
        Group of each component (L,); -1 drops it. Every group has at least one member.
    n_groups
        Number G of groups.
    how
        ``barycenter`` or ``product``.
    average
        Gives the barycenters (G, P) from the ensemble, the labels and their number; a product has none.

    Raises
    ------
    InputError
        When a product leaves the family's domain.
    """
    prior = common_prior(ensemble)
    if how == "product" and prior is not None:
        natural = _product(ensemble, labels, n_groups, prior)
    else:
        natural = average(ensemble, labels, n_groups)
    counts = ensemble.column("counts")
    fused_counts = None if counts is None else _totals(counts, labels, ensemble.row_weights, n_groups)
    return Posterior(
        ensemble.family,
        natural,
        prior=prior,
        counts=fused_counts,
        weights=_mixture_weights(ensemble, labels, n_groups),
        attached=_carry(ensemble, labels, n_groups),
        features=next((p.features for p in ensemble.posteriors if p.features.names), ensemble.posteriors[0].features),
    )


def _totals(values: Array, labels: Labels, weights: Array, n_groups: int) -> Array:
    kept = labels >= 0
    totals = np.bincount(labels[kept], weights=(values * weights)[kept], minlength=n_groups)
    return totals.astype(np.float64, copy=False)


def likelihoods(ensemble: Ensemble) -> Array:
    """Return what each component says beyond its own site's prior (L, P); every site states one."""
    own_priors = np.stack([p.prior for p in ensemble.posteriors if p.prior is not None])
    beyond: Array = ensemble.natural - own_priors[ensemble.owner]
    return beyond


def conjugate_groups(ensemble: Ensemble, level: Array) -> ConjugateGroups:
    """Return what groups of components that share a prior are worth; `level` (J + 1,) is that of n members as such."""
    prior = common_prior(ensemble)
    assert prior is not None  # noqa: S101  (methods refuse models without)
    pieces = likelihoods(ensemble) * ensemble.row_weights[:, None]
    proper = not ensemble.family.check(prior[None])
    return ConjugateGroups(ensemble.family, prior, pieces, ensemble.offsets, level, proper)


def _product(ensemble: Ensemble, labels: Labels, n_groups: int, prior: Array) -> Array:
    """Each site's own prior removed from each of its components, summed, and the common prior put back."""
    natural: Array = prior + group_sums(likelihoods(ensemble), labels, ensemble.row_weights, n_groups).sums
    faults = ensemble.family.check(natural)
    if faults:
        row, text = faults[0]
        raise InputError(f"the product of the posteriors matched to component {row} {text}: check the sites' priors")
    return natural


def _mixture_weights(ensemble: Ensemble, labels: Labels, n_groups: int) -> Array | None:
    """Return mixture weights (G,): each site's weights in proportion to its observations, where these are known."""
    weights = ensemble.column("weights")
    if weights is None:
        return None
    totals = np.add.reduceat(weights, ensemble.offsets[:-1])
    share = weights / np.where(totals > 0, totals, 1.0)[ensemble.owner]
    counts = ensemble.column("counts")
    if counts is not None:
        share = share * np.add.reduceat(counts, ensemble.offsets[:-1])[ensemble.owner]
    mass = _totals(share, labels, ensemble.row_weights, n_groups)
    total = mass.sum()
    return mass / total if total > 0 else np.full(n_groups, 1.0 / n_groups)


def _carry(ensemble: Ensemble, labels: Labels, n_groups: int) -> dict[str, Attached]:
    """Return what all sites attach, carried through the matching."""
    shared = set.intersection(*(set(posterior.attached) for posterior in ensemble.posteriors))
    found = {}
    for name in sorted(shared):
        arrays = [posterior.attached[name] for posterior in ensemble.posteriors]
        carried = carry(arrays, ensemble.offsets, labels, ensemble.site_weights, n_groups)
        found[name] = fused_attached(carried, arrays[0].axes, arrays[0].rule)
    return found
