"""The fused posterior under hostile sites: components, counts, weights, priors and attached arrays, each robust.

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

AverageFunction = Callable[[Ensemble, Labels, int], Array]
"""Gives the averages (G, P) of an ensemble's groups from labels (L,) and their number."""
Value = TypeVar("Value")

MIN_PRECISION = 1e-300
"""Precision of an entry that no site has: positive, since a precision must be, and next to nothing."""


def robust_combine(
    ensemble: Ensemble,
    labels: Labels,
    n_groups: int,
    how: Combine,
    average: AverageFunction,
    direction: Direction,
    robust: RobustEstimator,
) -> Posterior:
    """Return the fused posterior of a matching as ``combine`` does, robustly.

    Parameters
    ----------
    ensemble, labels, n_groups, how, average
        As for ``combine``.
    direction : {"forward", "reverse"}
        Divergence that the geometric median takes: KL(fused || local) or KL(local || fused).
    robust : RobustEstimator
        The rule, and how many sites may be hostile.

    Raises
    ------
    InputError
        When a product leaves the family's domain.
    """
    prior = _prior(ensemble, robust)
    natural, inliers = robust.average(ensemble, labels, n_groups, average, direction)
    if how == "product" and prior is not None:
        natural = _product(ensemble, labels, inliers, n_groups, prior)
    counts = ensemble.column("counts")
    if counts is not None:
        # Sites are cut before groups: one site could else be largest in every group, each time by little.
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
    candidates = list(values)
    texts = [_text(value) for value in candidates]
    return candidates[texts.index(Counter(texts).most_common(1)[0][0])]


def _text(value: Any) -> str:
    """Return the JSON text of features or of a source, to compare them by."""
    fields = value.to_json() if hasattr(value, "to_json") else dict(value)
    return json.dumps(fields, sort_keys=True, default=str)


def capped_sites(values: Array, ensemble: Ensemble, robust: RobustEstimator) -> Array:
    """Return the factor (J,) by which each site's values are cut, so that its total is no larger than is credible."""
    totals = np.add.reduceat(np.abs(values), ensemble.offsets[:-1])  # (J,)
    return _cap_factors(totals, robust)


def _cap_factors(totals: Array, robust: RobustEstimator) -> Array:
    """Return the factors (J,) that cut totals to the largest left when the tolerated number is set aside."""
    limit = np.sort(totals)[len(totals) - 1 - robust.tolerated(len(totals))]
    factors: Array = np.minimum(1.0, limit / np.where(totals > 0, totals, 1.0))
    return factors


def _capped(values: Array, labels: Labels, n_groups: int, robust: RobustEstimator) -> Array:
    """Return values (L,) cut to the largest that remains of their group when the tolerated number is set aside."""
    order = np.lexsort((values, labels))
    ends = np.searchsorted(labels[order], np.arange(n_groups + 1))
    limits = np.full(n_groups + 1, np.inf)  # the last is for rows that are in no group
    for group in range(n_groups):
        size = int(ends[group + 1] - ends[group])
        if size:
            limits[group] = values[order[ends[group + 1] - 1 - robust.tolerated(size)]]
    return np.minimum(values, limits[labels])


def _totals(values: Array, ensemble: Ensemble, labels: Labels, n_groups: int, robust: RobustEstimator) -> Array:
    """Return the sums of capped values over the groups (G,)."""
    capped = _capped(values, labels, n_groups, robust) * ensemble.row_weights
    assigned = labels >= 0
    return np.bincount(labels[assigned], weights=capped[assigned], minlength=n_groups).astype(np.float64, copy=False)


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
    """Return the mean of the priors that are inliers (P,); None where a site states none."""
    priors = [posterior.prior for posterior in ensemble.posteriors]
    stated = [prior for prior in priors if prior is not None]
    if len(stated) < len(priors):
        return None
    rows = np.stack(stated)  # (J, P)
    inliers, _ = robust.inliers(squared_distance, rows, np.zeros(len(rows), dtype=np.int64), np.ones(len(rows)), 1)
    site_shares = inliers * ensemble.site_weights
    site_shares = site_shares / site_shares.sum() if site_shares.sum() > 0 else inliers / inliers.sum()
    mean: Array = site_shares @ rows
    return mean


def _product(ensemble: Ensemble, labels: Labels, inliers: Array, n_groups: int, prior: Array) -> Array:
    """Return the product of the inliers (G, P), as if the copies left out had said what the others say."""
    assigned = labels >= 0
    weights = group_votes(ensemble, labels) * ensemble.row_weights  # (L,)
    all_weight = np.bincount(labels[assigned], weights=ensemble.row_weights[assigned], minlength=n_groups)
    inlier_weight = np.bincount(labels[assigned], weights=(weights * inliers)[assigned], minlength=n_groups)
    sums = np.zeros((n_groups, ensemble.natural.shape[1]))
    np.add.at(sums, labels[assigned], (likelihoods(ensemble) * (weights * inliers)[:, None])[assigned])
    # Inliers stand for all members: their likelihoods are scaled up to the weight of everyone in the group.
    natural: Array = prior + sums * (all_weight / inlier_weight)[:, None]
    for row, text in ensemble.family.check(natural):
        raise InputError(f"the product of the posteriors matched to component {row} {text}: check the sites' priors")
    return natural


def _carry(ensemble: Ensemble, labels: Labels, n_groups: int, robust: RobustEstimator) -> dict[str, Attached]:
    """Return what all sites attach, averaged robustly."""
    shared = set.intersection(*(set(posterior.attached) for posterior in ensemble.posteriors))
    return {
        name: _average_attached([p.attached[name] for p in ensemble.posteriors], ensemble, labels, n_groups, robust)
        for name in sorted(shared)
    }


def _average_attached(
    arrays: list[Attached], ensemble: Ensemble, labels: Labels, n_groups: int, robust: RobustEstimator
) -> Attached:
    """Return one attached array: a robust average in every cell, of blocks of the fixed axes.

    A cell is a tuple of groups, one for each component axis: G^a cells for a axes. Its rows are the blocks of all sites
    that have an entry there, with the fixed axes flattened.
    """
    first = arrays[0]
    component_axes = [axis for axis, tag in enumerate(first.axes) if tag == "component"]
    fixed_axes = [axis for axis, tag in enumerate(first.axes) if tag != "component"]
    fixed_shape = tuple(first.values.shape[axis] for axis in fixed_axes)
    block_size = math.prod(fixed_shape)
    blocks, precisions, cells, site_rows = [], [], [], []
    for site, attached in enumerate(arrays):
        site_labels = labels[ensemble.offsets[site] : ensemble.offsets[site + 1]]
        assigned = np.flatnonzero(site_labels >= 0)
        entries_of_site = attached.take(assigned)
        site_cells = np.zeros(1, dtype=np.int64)
        for _ in component_axes:  # row-major index of the cell: (n_j^a,)
            site_cells = (site_cells[:, None] * n_groups + site_labels[assigned]).ravel()
        blocks.append(
            np.transpose(entries_of_site.values, component_axes + fixed_axes).reshape(len(site_cells), block_size)
        )
        if entries_of_site.precision is not None:
            precisions.append(
                np.transpose(entries_of_site.precision, component_axes + fixed_axes).reshape(
                    len(site_cells), block_size
                )
            )
        cells.append(site_cells)
        site_rows.append(np.full(len(site_cells), site))
    entries, cell_of_row, site_of_row = np.concatenate(blocks), np.concatenate(cells), np.concatenate(site_rows)
    n_cells = n_groups ** len(component_axes)
    if first.rule == "sum":
        totals = np.bincount(site_of_row, np.abs(entries).sum(axis=1), len(arrays)).astype(np.float64, copy=False)
        entries = entries * _cap_factors(totals, robust)[site_of_row, None]
    weights = ensemble.site_weights[site_of_row]
    if first.rule == "precision-mean":  # every number has a weight of its own, so every number is a place of its own
        cell_of_row = (cell_of_row[:, None] * block_size + np.arange(block_size)).ravel()
        entries, weights = entries.reshape(-1, 1), np.repeat(weights, block_size)
        weights = weights * _capped(np.concatenate(precisions).ravel(), cell_of_row, n_cells * block_size, robust)
        n_cells, block_size = n_cells * block_size, 1
    inliers, medoids = robust.inliers(squared_distance, entries, cell_of_row, np.ones(len(cell_of_row)), n_cells)
    if first.rule == "keep":
        result = np.where((medoids >= 0)[:, None], entries[medoids], 0.0)
    else:
        sums, mass = np.zeros((n_cells, block_size)), np.bincount(cell_of_row, weights * inliers, n_cells)
        np.add.at(sums, cell_of_row, entries * (weights * inliers)[:, None])
        result = sums / np.where(mass > 0, mass, 1.0)[:, None]
    total = np.bincount(cell_of_row, weights, n_cells)
    if first.rule == "sum":
        result = result * total[:, None]
    inverse_axes = sorted(range(len(first.axes)), key=(component_axes + fixed_axes).__getitem__)

    def shaped(values: Array) -> Array:
        return np.transpose(values.reshape((n_groups,) * len(component_axes) + fixed_shape), inverse_axes)

    precision = shaped(np.maximum(total, MIN_PRECISION)) if first.rule == "precision-mean" else None
    return Attached(shaped(result), first.axes, first.rule, precision)
