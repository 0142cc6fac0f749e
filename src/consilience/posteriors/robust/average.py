"""The fused posterior when sites may send anything: every part of it, not the components alone.

Components are averaged by ``robust.estimators``. What is added up is bounded twice: first a site's total is cut to the
largest total that remains when as many sites as may be hostile are left out, then within each group of three or more a
count to the largest that remains there. So no count decides the mixture weights, however large; and a site that is
honestly much larger than all others counts no more than the next ones, which is the price. Priors and attached arrays
are averaged over the sites that are nearest to their medoid, entry by entry in what follows the matching, as whole
arrays in what does not: a convex combination of covariances is a covariance.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from consilience.checks import Array, Labels
from consilience.errors import InputError
from consilience.families import Direction
from consilience.posteriors.average import Combine, likelihoods
from consilience.posteriors.ensemble import Ensemble
from consilience.posteriors.posterior import Attached, Posterior
from consilience.posteriors.robust.estimators import RobustEstimator, group_votes, squared_distance

Average = Callable[[Ensemble, Labels, int], Array]
Value = TypeVar("Value")


def robust_combine(
    ensemble: Ensemble,
    labels: Labels,
    n_groups: int,
    how: Combine,
    average: Average,
    direction: Direction,
    robust: RobustEstimator,
) -> Posterior:
    """Return the fused posterior of a matching as ``combine`` does, robustly; parameters as there.

    Raises
    ------
    InputError
        When a product leaves the family's domain.
    """
    prior = _prior(ensemble, robust)
    natural, kept = robust.average(ensemble, labels, n_groups, average, direction)
    if how == "product" and prior is not None:
        natural = _product(ensemble, labels, kept, n_groups, prior)
    counts = ensemble.column("counts")
    if counts is not None:
        counts = counts * capped_sites(counts, ensemble, robust)[ensemble.owner]
    return Posterior(
        ensemble.family,
        natural,
        prior=prior,
        counts=None if counts is None else _totals(counts, ensemble, labels, n_groups, robust),
        weights=_mixture_weights(ensemble, counts, labels, n_groups, robust),
        attached=_carry(ensemble, labels, n_groups, robust),
        features=most_common(
            [p.features for p in ensemble.posteriors if p.features.names] or [p.features for p in ensemble.posteriors]
        ),
    )


def most_common(values: Iterable[Value]) -> Value:
    """Return the value that most sites state: what only says what the model is cannot be averaged."""
    found = list(values)
    texts = [_text(value) for value in found]
    return found[texts.index(Counter(texts).most_common(1)[0][0])]


def _text(value: Any) -> str:
    told = value.to_json() if hasattr(value, "to_json") else dict(value)
    return json.dumps(told, sort_keys=True, default=str)


def capped_sites(values: Array, ensemble: Ensemble, robust: RobustEstimator) -> Array:
    """Return the factor (J,) by which each site's values are cut, so that its total is no larger than is credible."""
    totals = np.add.reduceat(np.abs(values), ensemble.offsets[:-1])
    return _cut(totals, robust)


def _cut(totals: Array, robust: RobustEstimator) -> Array:
    limit = np.sort(totals)[len(totals) - 1 - robust.tolerated(len(totals))]
    cut: Array = np.minimum(1.0, limit / np.where(totals > 0, totals, 1.0))
    return cut


def _capped(values: Array, labels: Labels, n_groups: int, robust: RobustEstimator) -> Array:
    """Return values (L,) cut to the largest that remains of their group when those that may be hostile are left out."""
    order = np.lexsort((values, labels))
    ends = np.searchsorted(labels[order], np.arange(n_groups + 1))
    limits = np.full(n_groups + 1, np.inf)  # the last is for rows that are in no group
    for group in range(n_groups):
        size = int(ends[group + 1] - ends[group])
        if size:
            limits[group] = values[order[ends[group + 1] - 1 - robust.tolerated(size)]]
    return np.minimum(values, limits[labels])


def _totals(values: Array, ensemble: Ensemble, labels: Labels, n_groups: int, robust: RobustEstimator) -> Array:
    cut = _capped(values, labels, n_groups, robust) * ensemble.row_weights
    held = labels >= 0
    return np.bincount(labels[held], weights=cut[held], minlength=n_groups).astype(np.float64, copy=False)


def _mixture_weights(
    ensemble: Ensemble, counts: Array | None, labels: Labels, n_groups: int, robust: RobustEstimator
) -> Array | None:
    """Return mixture weights (G,) as ``combine`` does, of counts that are credible (`counts` are cut already)."""
    weights = ensemble.column("weights")
    if weights is None:
        return None
    totals = np.add.reduceat(weights, ensemble.offsets[:-1])
    share = weights / np.where(totals > 0, totals, 1.0)[ensemble.owner]
    if counts is not None:
        share = share * np.add.reduceat(counts, ensemble.offsets[:-1])[ensemble.owner]
    mass = _totals(share, ensemble, labels, n_groups, robust)
    total = mass.sum()
    return mass / total if total > 0 else np.full(n_groups, 1.0 / n_groups)


def _prior(ensemble: Ensemble, robust: RobustEstimator) -> Array | None:
    priors = [posterior.prior for posterior in ensemble.posteriors]
    known = [prior for prior in priors if prior is not None]
    if len(known) < len(priors):
        return None
    rows = np.stack(known)
    kept, _ = robust.kept(squared_distance, rows, np.zeros(len(rows), dtype=np.int64), np.ones(len(rows)), 1)
    share = kept * ensemble.site_weights
    share = share / share.sum() if share.sum() > 0 else kept / kept.sum()
    mean: Array = share @ rows
    return mean


def _product(ensemble: Ensemble, labels: Labels, kept: Array, n_groups: int, prior: Array) -> Array:
    """Return the product of the copies kept, as if those left out had said what the others say."""
    held = labels >= 0
    weights = group_votes(ensemble, labels) * ensemble.row_weights
    everyone = np.bincount(labels[held], weights=ensemble.row_weights[held], minlength=n_groups)
    ours = np.bincount(labels[held], weights=(weights * kept)[held], minlength=n_groups)
    sums = np.zeros((n_groups, ensemble.natural.shape[1]))
    np.add.at(sums, labels[held], (likelihoods(ensemble) * (weights * kept)[:, None])[held])
    natural: Array = prior + sums * (everyone / ours)[:, None]
    for row, text in ensemble.family.check(natural):
        raise InputError(f"the product of the posteriors matched to component {row} {text}: check the sites' priors")
    return natural


def _carry(ensemble: Ensemble, labels: Labels, n_groups: int, robust: RobustEstimator) -> dict[str, Attached]:
    shared = set.intersection(*(set(posterior.attached) for posterior in ensemble.posteriors))
    return {
        name: _carry_one([p.attached[name] for p in ensemble.posteriors], ensemble, labels, n_groups, robust)
        for name in sorted(shared)
    }


def _carry_one(
    arrays: list[Attached], ensemble: Ensemble, labels: Labels, n_groups: int, robust: RobustEstimator
) -> Attached:
    """Return one attached array: a robust average at every place, of blocks that do not follow the matching."""
    first = arrays[0]
    follows = [axis for axis, tag in enumerate(first.axes) if tag == "component"]
    stays = [axis for axis, tag in enumerate(first.axes) if tag != "component"]
    fixed = tuple(first.values.shape[axis] for axis in stays)
    block = math.prod(fixed)
    rows, precisions, places, sites = [], [], [], []
    for site, attached in enumerate(arrays):
        own = labels[ensemble.offsets[site] : ensemble.offsets[site + 1]]
        held = np.flatnonzero(own >= 0)
        taken = attached.take(held)
        here = np.zeros(1, dtype=np.int64)
        for _ in follows:
            here = (here[:, None] * n_groups + own[held]).ravel()
        rows.append(np.transpose(taken.values, follows + stays).reshape(len(here), block))
        if taken.precision is not None:
            precisions.append(np.transpose(taken.precision, follows + stays).reshape(len(here), block))
        places.append(here)
        sites.append(np.full(len(here), site))
    entries, place, site_of = np.concatenate(rows), np.concatenate(places), np.concatenate(sites)
    n_places = n_groups ** len(follows)
    if first.rule == "sum":
        totals = np.bincount(site_of, np.abs(entries).sum(axis=1), len(arrays)).astype(np.float64, copy=False)
        entries = entries * _cut(totals, robust)[site_of, None]
    weights = ensemble.site_weights[site_of]
    if first.rule == "precision-mean":  # every number has a weight of its own, so every number is a place of its own
        place = (place[:, None] * block + np.arange(block)).ravel()
        entries, weights = entries.reshape(-1, 1), np.repeat(weights, block)
        weights = weights * _capped(np.concatenate(precisions).ravel(), place, n_places * block, robust)
        n_places, block = n_places * block, 1
    kept, medoids = robust.kept(squared_distance, entries, place, np.ones(len(place)), n_places)
    if first.rule == "keep":
        result = np.where((medoids >= 0)[:, None], entries[medoids], 0.0)
    else:
        sums, mass = np.zeros((n_places, block)), np.bincount(place, weights * kept, n_places)
        np.add.at(sums, place, entries * (weights * kept)[:, None])
        result = sums / np.where(mass > 0, mass, 1.0)[:, None]
    total = np.bincount(place, weights, n_places)
    if first.rule == "sum":
        result = result * total[:, None]
    back = sorted(range(len(first.axes)), key=(follows + stays).__getitem__)

    def shaped(values: Array) -> Array:
        return np.transpose(values.reshape((n_groups,) * len(follows) + fixed), back)

    precise = shaped(np.maximum(total, 1e-300)) if first.rule == "precision-mean" else None
    return Attached(shaped(result), first.axes, first.rule, precise)
