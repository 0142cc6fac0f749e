"""Gate and sum: which sites' sums are added when sites are not trusted (``robust=True``).

A sum has breakdown 0: one site decides it. So sites are judged by what their own sums say, in coordinates that no count
changes, and the sums of the others are added, each cut to the median number of rows. What comes out is the estimator of
the rows of the sites that are kept: exactness survives.

    z_j = rms over coordinates of (v_j - med v) / (1.4826 mad);   left out: z_j > 3 med z, the worst first, fewer than
    half

v_j are the coefficients b_j = S_xx^-1 S_xy of a regression (ridge 1e-8 of the mean variance), whose residual variance
may differ by a factor of 4 from the median one besides; else the means and the logarithms of the variances, or of the
shares of what is counted, of every class that more than half of the sites have; a site is judged by those that it has.
Were it the classes that all have, one site of other classes would leave nothing to judge any site by. Copies whose v_j
are equal count as one hostile group.

A class that half of the sites or fewer have says nothing of a whole site, and is judged by itself: among its holders,
where these are three or more, by the same score with a spread no smaller than that of the classes which most have, and
what a holder beyond says of this class alone is left out. Of a class of one or two sites nothing tells who is right: it
is withheld. Estimators whose sums are of all classes together keep such classes, and the details name them.

What this is no defence against: sums that lie within the honest range. Colluding sites at one and a half deviations of
the coefficients move them as far as they move the plain sum. Nor against half of the holders of one rare class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from consilience.checks import Array
from consilience.core.details import LeftOut
from consilience.core.robust_judgement import alike_sites, tolerated
from consilience.errors import Problem
from consilience.estimators.adapters.table import adapter_of_kind
from consilience.estimators.details import GateDetails, LeftOutOfClass
from consilience.estimators.statistics import INFORMATION, ROWS, SHIFT, Statistics
from consilience.families.centred_moments import CentredMoments

MAX_SCORE = 3.0
"""Score, in the median score, beyond which a site is left out; 0.03 honest sites of ten are (40 draws of eight
coefficients at 200 rows a site)."""

MAX_VARIANCE_RATIO = 4.0
"""Ratio of a residual variance to the median one, either way, that honest sites do not reach at 200 rows."""

RIDGE = 1e-8
"""Part of the mean variance that is added before coefficients are solved for: columns may be constant at a site."""

NORMAL_MAD = 1.4826
"""Standard deviation of a normal law, in its median absolute deviation."""

MIN_SITES = 3
"""Of two sites nothing tells which is right."""

UNSEEN = 0.5
"""Count of what was never seen, before its logarithm: Jeffreys' prior."""


@dataclass(frozen=True)
class GatedSites:
    """Sums of the sites that are kept.

    Parameters
    ----------
    kept : ndarray of shape (J,), bool
        Sites whose sums are added.
    statistics : tuple of Statistics
        Their sums, cut to the median number of rows.
    details : GateDetails
        ``left_out``, a record for each site that was left out, ``cut``, names of the sites whose sums were cut,
        ``tolerated``, how many sites may be hostile. Of classes that half of the sites or fewer have:
        ``withheld_classes`` and ``unjudged_classes``, their names, and ``left_out_of_classes``, a record for each site
        and class.
    """

    kept: NDArray[np.bool_]
    statistics: tuple[Statistics, ...]
    details: GateDetails


def robust_problems(sites: Sequence[tuple[str, Statistics]]) -> list[Problem]:
    """Return why sums of these sites cannot be gated, a line each."""
    first = sites[0][1]
    if len(sites) < MIN_SITES:
        return [Problem("robust=True", "needs at least 3 sites: of two, none tells which is right", code="E-FEW")]
    if first.maxima or INFORMATION in first.counts or SHIFT in first.counts:
        text = f"is not known for a {first.kind}, whose sums do not say what one site would have fitted"
        return [Problem("robust=True", text, "leave it out")]
    if first.classes is not None and not adapter_of_kind(first.kind).pools_classes:
        holders = Counter(label for _, site in sites if site.classes is not None for label in site.classes.values)
        if max(holders.values()) < MIN_SITES:
            text = "needs a class that at least 3 sites have: of two, none tells which is right"
            return [Problem("robust=True", text, "leave it out")]
    if first.target_shape is not None and ROWS in first.moments:
        return [
            Problem(
                name,
                f"has {site.n_observations:g} rows for {site.n_columns} coefficients, which `robust=True` judges it by",
                "leave the site out, or robust",
                "E-SHAPE",
            )
            for name, site in sites
            if site.n_observations <= site.n_columns
        ]
    return []


def gate(sites: Sequence[tuple[str, Statistics]]) -> GatedSites:
    """Return the sums of the sites that are kept, and the others by name.

    Parameters
    ----------
    sites : sequence of (str, Statistics)
        At least three sites without `robust_problems`.
    """
    names, statistics = [name for name, _ in sites], [site for _, site in sites]
    with np.errstate(all="ignore"):
        values, is_known = _coordinates(statistics)  # (J, P), (J, P)
        variances = np.array([_residual_variances(site) for site in statistics])  # (J, q), q = 0 without targets
        values = np.where(np.isfinite(values), values, np.finfo(np.float64).max ** 0.25)
        centre = np.nanmedian(np.where(is_known, values, np.nan), axis=0)  # most sites know each
        spread = NORMAL_MAD * np.nanmedian(np.where(is_known, np.abs(values - centre), np.nan), axis=0)
        values = np.where(is_known, values, centre)  # where nothing is known, nothing deviates
        moves = spread > 0
        n_known = np.count_nonzero(is_known[:, moves], axis=1)  # (J,)
        deviations = (values[:, moves] - centre[moves]) / spread[moves]
        scores = np.sqrt(np.sum(deviations**2, axis=1) / np.maximum(n_known, 1))  # (J,)
        # Where most sites agree to the last bit, any other value is infinitely far.
        scores = np.where((values[:, ~moves] != centre[~moves]).any(axis=1), np.inf, scores)
        ratios = np.abs(np.log(variances / np.median(variances, axis=0))).max(axis=1, initial=0.0)
    limit, kept = tolerated(len(sites)), np.ones(len(sites), dtype=np.bool_)
    scaled = np.clip((values[:, moves] - centre[moves]) / spread[moves], -1e6, 1e6) if moves.any() else values[:, :0]
    alike = _alike(scaled, is_known[:, moves]) if moves.any() else ~kept
    kept &= ~alike
    steps = dict.fromkeys(np.flatnonzero(alike).tolist(), "copy of another")
    usual = float(np.median(scores[n_known > 0])) if moves.any() else 0.0
    is_far = (scores > MAX_SCORE * usual) | ~(ratios <= np.log(MAX_VARIANCE_RATIO))
    order = np.lexsort((-scores, -ratios)) if not np.isfinite(ratios).all() else np.argsort(-scores, kind="stable")
    for site in order.tolist():
        if kept[site] and is_far[site] and np.count_nonzero(~kept) < limit:
            kept[site], steps[site] = False, "gate"
    rare = _judge_rare_classes(names, statistics, kept)
    statistics = list(rare.statistics)
    for site in np.flatnonzero(kept & ~rare.has_classes).tolist():
        kept[site], steps[site] = False, "no class that enough sites have"
    rows = np.array([site.n_observations for site in statistics])
    usual_rows = float(np.median(rows))
    factors = np.where(rows > usual_rows, usual_rows / np.where(rows > 0, rows, 1.0), 1.0)
    chosen = np.flatnonzero(kept).tolist()
    left_out: list[LeftOut] = [
        {"model": names[site], "step": step, "score": round(min(float(scores[site]), 1e9), 3)}
        for site, step in sorted(steps.items())
    ]
    details: GateDetails = {
        "left_out": left_out,
        "cut": [names[site] for site in chosen if factors[site] < 1.0],
        "tolerated": limit,
        **rare.details,
    }
    return GatedSites(kept, tuple(scaled_sums(statistics[site], float(factors[site])) for site in chosen), details)


@dataclass(frozen=True)
class _RareClasses:
    """Statistics of all sites without what is not believed of rare classes, and a record of it.

    Parameters
    ----------
    statistics : tuple of Statistics of length J
        Of a site that has no class left, as it was.
    has_classes : ndarray of shape (J,), bool
        Whether a site has a class left; True without classes.
    details : GateDetails
        Its part of the details of ``GatedSites``.
    """

    statistics: tuple[Statistics, ...]
    has_classes: NDArray[np.bool_]
    details: GateDetails


def _judge_rare_classes(
    names: Sequence[str], statistics: Sequence[Statistics], kept: NDArray[np.bool_]
) -> _RareClasses:
    """Return the sums without what single sites say of classes that half of the sites or fewer have.

    Parameters
    ----------
    names, statistics : sequences of length J
        The sites.
    kept : ndarray of shape (J,), bool
        Sites that are not left out as a whole.
    """
    n_sites = len(statistics)
    positions = [
        {label: position for position, label in enumerate(site.classes.values)} if site.classes is not None else {}
        for site in statistics
    ]
    holders = {
        label: [site for site in range(n_sites) if label in positions[site]]
        for label in dict.fromkeys(label for known in positions for label in known)
    }
    common = [label for label, sites in holders.items() if 2 * len(sites) > n_sites]
    rare = [label for label in holders if label not in common]
    everyone = np.ones(n_sites, dtype=np.bool_)
    if not rare:
        return _RareClasses(tuple(statistics), everyone, {})
    if adapter_of_kind(statistics[0].kind).pools_classes:
        return _RareClasses(tuple(statistics), everyone, {"unjudged_classes": sorted(map(str, rare))})

    def values_of(label: Any, sites: Sequence[int]) -> Array:
        return np.stack([np.concatenate(_parts(statistics[site], positions[site][label])) for site in sites])

    with np.errstate(all="ignore"):
        # How much honest sites differ in each coordinate, from classes where most sites are there to say it: (P,).
        spreads = [_spread(values_of(label, holders[label])) for label in common]
        usual_spread = np.median(spreads, axis=0) if spreads else np.zeros(1)
        withheld: list[str] = []
        records: list[LeftOutOfClass] = []
        believed = [set(known) for known in positions]
        for label in rare:
            sites = [site for site in holders[label] if kept[site]]
            if len(sites) < MIN_SITES:
                withheld.append(str(label))
                outside = holders[label]
            else:
                values = values_of(label, sites)
                spread = np.maximum(_spread(values), usual_spread)
                deviations = (values - np.median(values, axis=0)) / np.where(spread > 0, spread, 1.0)
                scores = np.sqrt((np.nan_to_num(deviations, nan=np.inf) ** 2).mean(axis=1))
                limit = MAX_SCORE * max(float(np.median(scores)), 1.0)
                far = [i for i in np.argsort(-scores, kind="stable").tolist() if scores[i] > limit]
                outside = [sites[i] for i in far[: tolerated(len(sites))]]
                records += [
                    {"model": names[sites[i]], "class": str(label), "score": round(min(float(scores[i]), 1e9), 3)}
                    for i in far[: tolerated(len(sites))]
                ]
            for site in outside:
                believed[site].discard(label)
    results, has_classes = list(statistics), everyone.copy()
    for site, labels in enumerate(believed):
        has_classes[site] = bool(labels)
        if labels and len(labels) < len(positions[site]):
            chosen = np.array(sorted(positions[site][label] for label in labels), dtype=np.int64)
            adapter = adapter_of_kind(statistics[site].kind)
            results[site] = adapter.trimmed(statistics[site].some_classes(chosen))
    details: GateDetails = {}
    if withheld:
        details["withheld_classes"] = sorted(withheld)
    if records:
        details["left_out_of_classes"] = records
    return _RareClasses(tuple(results), has_classes, details)


def _spread(values: Array) -> Array:
    """Return the normal standard deviation (P,) of values (n, P), by their median absolute deviation."""
    spread: Array = NORMAL_MAD * np.median(np.abs(values - np.median(values, axis=0)), axis=0)
    return spread


def scaled_sums(statistics: Statistics, factor: float) -> Statistics:
    """Return the statistics of `factor` times as many rows of the same moments; the same object for 1."""
    if factor == 1.0:
        return statistics
    moments = {
        name: replace(
            record,
            n=record.n * factor,
            weight=record.weight * factor,
            log_weight=record.log_weight * factor,
            scatter=record.scatter * factor,
        )
        for name, record in statistics.moments.items()
    }
    counts = {name: values * factor for name, values in statistics.counts.items()}
    return replace(statistics, moments=moments, counts=counts)


def _alike(scaled: Array, is_known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which sites (J,) are copies, by the coordinates (J, P) that both of a pair know; none by none."""
    squares = np.zeros((len(scaled), len(scaled)))
    for row, known in enumerate(is_known):
        differences = np.where(is_known & known, scaled - scaled[row], 0.0)
        squares[row] = (differences**2).sum(axis=1)
    n_shared = is_known.astype(np.float64) @ is_known.T.astype(np.float64)  # (J, J)
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = np.where(n_shared > 0, squares * (scaled.shape[1] / n_shared), np.inf)
    return alike_sites(np.sqrt(squares), scaled.shape[1])


def _coordinates(statistics: Sequence[Statistics]) -> tuple[Array, NDArray[np.bool_]]:
    """Return what each site is judged by (J, P), and which of that it knows."""
    first = statistics[0]
    if first.target_shape is not None and ROWS in first.moments:
        values = np.stack([_coefficients(site)[0].ravel() for site in statistics])
        return values, np.ones(values.shape, dtype=np.bool_)
    if first.classes is None:
        values = np.stack([np.concatenate(_parts(site, None)) for site in statistics])
        return values, np.ones(values.shape, dtype=np.bool_)
    known = [list(site.classes.values) if site.classes is not None else [] for site in statistics]
    holders = Counter(label for labels in known for label in labels)
    blocks, masks = [np.zeros((len(known), 1))], [np.ones((len(known), 1), dtype=np.bool_)]
    for label in (label for label, number in holders.items() if 2 * number > len(known)):
        parts = [
            np.concatenate(_parts(site, labels.index(label))) if label in labels else None
            for site, labels in zip(statistics, known, strict=True)
        ]
        size = next(len(part) for part in parts if part is not None)
        blocks.append(np.stack([np.zeros(size) if part is None else part for part in parts]))
        masks.append(np.repeat([[part is not None] for part in parts], size, axis=1))
    return np.concatenate(blocks, axis=1), np.concatenate(masks, axis=1)


def _parts(site: Statistics, position: int | None) -> list[Array]:
    """Return means, log variances and log shares of one class, or of all rows."""
    parts: list[Array] = [np.zeros(1)]
    for record in site.moments.values():
        chosen = record if position is None else record.at(np.array([position]))
        rows = np.maximum(chosen.weight, 1.0)[..., None]
        parts += [np.ravel(chosen.mean), np.ravel(np.log(chosen.variances / rows + np.finfo(np.float64).tiny))]
    for name, values in sorted(site.counts.items()):
        row = np.atleast_1d(values if position is None else values[position])
        if name != ROWS and row.size > 1:
            parts.append(np.ravel(np.log((row + UNSEEN) / (row.sum() + UNSEEN * row.size))))
    return parts


def _coefficients(site: Statistics) -> tuple[Array, CentredMoments]:
    """Return S_xx^-1 S_xy (d, q) of a site, and its record."""
    record, d = site.rows, site.n_columns
    inputs, cross = record.scatter[:d, :d], record.scatter[:d, d:]
    ridge = RIDGE * float(np.trace(inputs)) / max(d, 1)
    try:
        coefficients: Array = np.asarray(np.linalg.solve(inputs + ridge * np.eye(d), cross), dtype=np.float64)
        return coefficients, record
    except np.linalg.LinAlgError:
        return np.full(cross.shape, np.inf), record


def _residual_variances(site: Statistics) -> Array:
    """Return the variance of each target (q,) about its regression; none without targets."""
    if site.target_shape is None or ROWS not in site.moments:
        return np.zeros(0)
    coefficients, record = _coefficients(site)
    d = site.n_columns
    explained = np.einsum("dq,dq->q", record.scatter[:d, d:], coefficients)
    residual: Array = np.maximum(np.diagonal(record.scatter[d:, d:]) - explained, 0.0)
    return residual / max(float(record.weight) - d - 1.0, 1.0) + np.finfo(np.float64).tiny
